//! The drives that were measured, and where their files are.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use plimsoll_base::{Span, Time};
use plimsoll_device::diskspec;
use plimsoll_device::measured::Measured;
use plimsoll_device::{Disk, DiskOptions, DiskSpec, Done, Model, Op, Request, profile};

/// A drive with parameters and measurements.
#[derive(Clone, Copy, Debug)]
pub struct Drive {
    /// Name of its files.
    pub name: &'static str,
    /// Its model file, where the `.diskspecs` names one that isn't there.
    pub model: Option<&'static str>,
    /// Microseconds a sector takes over the bench's bus, reading and writing, where the drive's own files say 0:
    /// those sets give the bus apart from the drive ("Read/Write block transfer time" of the second bus in the
    /// `valid/NAME.parv` that comes with each in DiskSim 4.0).
    pub bus_us_per_sector: Option<(f64, f64)>,
}

const fn drive(name: &'static str) -> Drive {
    Drive { name, model: None, bus_us_per_sector: None }
}

/// The drives of DiskSim's validation. Not all of them need have measurements at hand.
const DRIVES: [Drive; 11] = [
    drive("cheetah9LP"),
    drive("cheetah4LP"),
    drive("atlas10k"),
    drive("atlas_III"),
    drive("barracuda"),
    drive("ibm18es"),
    Drive { model: Some("hp_c3323a_validate.model"), bus_us_per_sector: Some((145.5, 145.5)), ..drive("hp_c3323a") },
    Drive { bus_us_per_sector: Some((170.1, 186.86)), ..drive("hp_c2247a") },
    Drive { bus_us_per_sector: Some((148.41, 148.41)), ..drive("hp_c2490a") },
    Drive { bus_us_per_sector: Some((70.69, 70.69)), ..drive("dec_rz26") },
    Drive { bus_us_per_sector: Some((95.52, 95.52)), ..drive("st41601n") },
];

/// Returns the folder that `PLIMSOLL_DATA` names, or `../shared/data` seen from the project's root.
pub fn default_data() -> PathBuf {
    if let Some(dir) = std::env::var_os("PLIMSOLL_DATA") {
        return dir.into();
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data")
}

/// The drives that have measurements in `data`.
pub fn measured(data: &Path) -> Vec<Drive> {
    DRIVES.into_iter().filter(|d| data.join(format!("disks/validate/{}.csv.gz", d.name)).is_file()).collect()
}

/// The middle of sorted figures.
pub fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0
}

/// A drive's specification and what was measured.
pub fn load(data: &Path, drive: Drive) -> Result<(DiskSpec, Vec<Measured>), String> {
    let dir = data.join("disks/model");
    let model = drive.model.map(|m| dir.join(m));
    let specs = dir.join(format!("{}.diskspecs", drive.name));
    let mut spec = diskspec::load(&specs, model.as_deref()).map_err(|e| e.to_string())?;
    if let Some((read, write)) = drive.bus_us_per_sector {
        (spec.bus.read_us_per_sector, spec.bus.write_us_per_sector) = (read, write);
    }
    let path = data.join(format!("disks/validate/{}.csv.gz", drive.name));
    let file = std::fs::File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let text = BufReader::new(flate2::read::GzDecoder::new(file));
    let requests = plimsoll_device::measured::read(text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok((spec, requests))
}

/// One request of the hplajw trace as the host saw it.
#[derive(Clone, Copy, Debug)]
struct Traced {
    arrived: Time,
    started: Time,
    service: Span,
    op: Op,
    offset: u64,
    size: u64,
}

/// Results of replaying hplajw's first disk.
#[derive(Clone, Debug)]
pub struct Workstation {
    pub measured_service: Vec<Span>,
    pub model_service: Vec<Span>,
    /// Queueing in the host, which follows from the service times and the order of the real host.
    pub measured_wait: Vec<Span>,
    pub model_wait: Vec<Span>,
}

/// Replays disk 0 of hplajw on the HP 335H profile: requests arrive when they did and are issued in the order in
/// which the host issued them, each when the drive is free. So the waits are the model's own.
pub fn replay_hplajw(data: &Path, seed: u64) -> Result<Workstation, String> {
    let mut requests = load_hplajw(data)?;
    requests.sort_by_key(|r| r.started);
    let spec = profile::by_name("hp-335h").map_err(|e| e.to_string())?;
    let mut disk = Disk::new(&spec, DiskOptions { seed, mismatch: None }).map_err(|e| e.to_string())?;
    let mut out = Workstation {
        measured_service: requests.iter().map(|r| r.service).collect(),
        model_service: Vec::new(),
        measured_wait: requests.iter().map(|r| r.started.since(r.arrived)).collect(),
        model_wait: Vec::new(),
    };
    let mut done: Vec<Done> = Vec::new();
    let mut free = Time::ZERO;
    for (i, r) in requests.iter().enumerate() {
        let now = r.arrived.max(free);
        disk.submit(now, Request { tag: i as u64, op: r.op, offset: r.offset, len: r.size });
        while done.is_empty() {
            disk.advance(disk.next_event(), &mut done);
        }
        free = done.pop().map_or(now, |d| d.at);
        out.model_service.push(free.since(now));
        out.model_wait.push(now.since(r.arrived));
    }
    Ok(out)
}

fn load_hplajw(data: &Path) -> Result<Vec<Traced>, String> {
    let path = data.join("block/hplajw_workstation.csv.gz");
    let file = std::fs::File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut out = Vec::new();
    for (i, line) in BufReader::new(flate2::read::GzDecoder::new(file)).lines().enumerate().skip(1) {
        let line = line.map_err(|e| format!("{}: {e}", path.display()))?;
        let bad = || format!("{}:{}: not a request", path.display(), i + 1);
        let f: Vec<&str> = line.split(',').collect();
        let number = |k: usize| f.get(k).and_then(|v| v.parse::<u64>().ok()).ok_or_else(bad);
        if number(1)? != 0 {
            continue;
        }
        let arrived = Time::ZERO + Span::from_micros(number(0)?);
        out.push(Traced {
            arrived,
            started: arrived + Span::from_micros(number(5)?),
            service: Span::from_micros(number(6)?),
            op: if f[2] == "R" { Op::Read } else { Op::Write { fua: false } },
            offset: number(3)?,
            size: number(4)?,
        });
    }
    Ok(out)
}
