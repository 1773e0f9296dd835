//! The drives that were measured, and where their files are.

use std::io::BufReader;
use std::path::{Path, PathBuf};

use plimsoll_device::DiskSpec;
use plimsoll_device::diskspec;
use plimsoll_device::measured::{self, Measured};

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

/// The drives of `disks/validate`.
pub const DRIVES: [Drive; 8] = [
    drive("cheetah9LP"),
    drive("cheetah4LP"),
    drive("atlas10k"),
    drive("barracuda"),
    Drive { model: Some("hp_c3323a_validate.model"), bus_us_per_sector: Some((145.5, 145.5)), ..drive("hp_c3323a") },
    Drive { bus_us_per_sector: Some((170.1, 186.86)), ..drive("hp_c2247a") },
    Drive { bus_us_per_sector: Some((70.69, 70.69)), ..drive("dec_rz26") },
    Drive { bus_us_per_sector: Some((95.52, 95.52)), ..drive("st41601n") },
];

/// `../shared/data` seen from the project's root.
pub fn default_data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data")
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
    let requests = measured::read(text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok((spec, requests))
}
