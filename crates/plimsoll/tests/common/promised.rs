//! Pools whose accepted reads are held against their deadlines, live: by `make promises`, and in a quick form by tests/promises.rs.

use super::mount::{Loop, may_mount};
use super::write_profile;
use plimsoll_base::Rng;
use std::path::Path;

/// The SATA drive's times are multiplied by this: two cores with the load on them can't keep up with the drive.
const SLOWER: f64 = 10.0;
const SATA: &str = include_str!("../../../device/profiles/flash/vf-sata-60g.toml");
const DISK: &str = "constellation-es3-1tb";

/// A pool, and the deadline of its reads.
pub struct Case {
    pub name: &'static str,
    /// Its section. `FOLDER` is the folder of the node, `LOOP` a loop device.
    pool: &'static str,
    pub deadline: &'static str,
    pub deadline_ms: f64,
    /// Bytes that are written, and then read.
    pub span: u64,
    /// A part of a read's time that no forecast can know: a disk's rotation.
    pub has_chance: bool,
}

const fn case(name: &'static str, pool: &'static str, deadline: (&'static str, f64), span: u64) -> Case {
    Case { name, pool, deadline: deadline.0, deadline_ms: deadline.1, span, has_chance: true }
}

/// A case without a disk.
const fn even(case: Case) -> Case {
    Case { has_chance: false, ..case }
}

const OF_DISKS: (&str, f64) = ("20ms", 20.0);
const OF_FILES: (&str, f64) = ("2ms", 2.0);

pub const CASES: [Case; 14] = [
    case(
        "modelled disk, the embedded default",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 1",
        OF_DISKS,
        1 << 30,
    ),
    case(
        "modelled disk, cfq, depth 4",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 4\nsched = \"cfq\"",
        OF_DISKS,
        1 << 30,
    ),
    case(
        "modelled disk, profile, cfq, depth 1",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 1\nsched = \"cfq\"\n\
         profile = \"FOLDER/disk.profile\"",
        OF_DISKS,
        1 << 30,
    ),
    case(
        "modelled disk, profile, depth 4",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 4\n\
         profile = \"FOLDER/disk.profile\"",
        OF_DISKS,
        1 << 30,
    ),
    case(
        "modelled disk, profile, deadline, depth 4",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 4\nsched = \"deadline\"\n\
         profile = \"FOLDER/disk.profile\"",
        OF_DISKS,
        1 << 30,
    ),
    case(
        "modelled disk, auto, depth 4",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 4\nsched = \"auto\"",
        OF_DISKS,
        1 << 30,
    ),
    case(
        "modelled disk, cores",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 4\ncores = 4",
        OF_DISKS,
        1 << 30,
    ),
    case(
        "modelled disk, page cache of an eighth",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 1\nmemory = \"32MiB\"",
        OF_DISKS,
        256 << 20,
    ),
    case(
        "modelled disk, flash cache of an eighth",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 1\n\
         [pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nsize = \"64MiB\"\ncodec = \"none\"\ndedup = \"off\"",
        OF_DISKS,
        512 << 20,
    ),
    case(
        "modelled disk, logs",
        "device = { file = \"d.img\", size = \"8GiB\", model = \"constellation-es3-1tb\" }\ndepth = 1\n[pool.logs]",
        OF_DISKS,
        1 << 30,
    ),
    even(case(
        "modelled SATA flash ten times slowed, ssd",
        "device = { file = \"d.img\", size = \"2GiB\", model = \"sized:2G:FOLDER/slowed.toml\" }\nsched = \"ssd\"",
        OF_DISKS,
        64 << 20,
    )),
    even(case("plain file", "device = { file = \"d.img\", size = \"2GiB\" }", OF_FILES, 1 << 30)),
    even(case(
        "plain file, auto",
        "device = { file = \"d.img\", size = \"2GiB\" }\nsched = \"auto\"",
        OF_FILES,
        1 << 30,
    )),
    even(case("loop device", "device = { file = \"LOOP\", format = true }", OF_FILES, 1 << 30)),
];

/// A case's pool in a folder of its own: what it needs is made there. A loop device goes with this.
pub struct Prepared {
    pub pool: String,
    _device: Option<Loop>,
}

impl Case {
    /// Makes what the pool needs; `None` where this process may not make a loop device.
    pub fn prepared(&self, dir: &Path) -> Option<Prepared> {
        let folder = dir.to_str().expect("a plain name");
        std::fs::write(dir.join("slowed.toml"), slowed(SATA)).expect("written");
        if self.pool.contains("disk.profile") {
            write_profile(dir, DISK, "disk.profile");
        }
        let pool = self.pool.replace("FOLDER", folder);
        if !pool.contains("LOOP") {
            return Some(Prepared { pool, _device: None });
        }
        if !may_mount() {
            return None;
        }
        let file = dir.join("loop.img");
        std::fs::File::create(&file).expect("made").set_len(2 << 30).expect("made");
        let device = Loop::over(&file, &[]);
        Some(Prepared {
            pool: pool.replace("LOOP", device.path.to_str().expect("a plain name")),
            _device: Some(device),
        })
    }
}

/// A flash profile whose times are multiplied.
fn slowed(profile: &str) -> String {
    let number = |n: &str, by: f64| n.trim().parse::<f64>().map_or(n.into(), |v| format!("{:?}", v * by));
    let line = |line: &str| match line.split_once(" = ") {
        Some((key, times)) if key.ends_with("_us") => {
            let list = times.trim_matches(['[', ']']).split(',').map(|n| number(n, SLOWER)).collect::<Vec<_>>();
            let list = list.join(", ");
            if times.starts_with('[') { format!("{key} = [{list}]") } else { format!("{key} = {list}") }
        }
        Some((key @ "link_mb_per_s", n)) => format!("{key} = {}", number(n, SLOWER.recip())),
        _ => line.into(),
    };
    profile.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A device as a server that takes reads in their order of arrival, by what was measured of it.
pub struct Served {
    /// Times of lone reads, in ms.
    lone_ms: Vec<f64>,
    /// Reads that are served at once.
    slots: usize,
    /// Factor on a lone read's time, so that all slots together serve as much as the device did.
    stretch: f64,
}

impl Served {
    /// `lone_ms`: what reads took one after the other. `per_s`: reads a second of a closed loop that kept the device busy.
    pub fn new(lone_ms: Vec<f64>, per_s: f64) -> Served {
        let mean_ms = lone_ms.iter().sum::<f64>() / lone_ms.len().max(1) as f64;
        let at_once = (per_s * mean_ms / 1e3).max(f64::MIN_POSITIVE);
        let slots = (at_once.ceil() as usize).max(1);
        Served { lone_ms, slots, stretch: slots as f64 / at_once }
    }

    /// Percent of the reads that must be refused so that all others are in time, by one that knows what each takes. Reads arrive at
    /// `arrivals_ms`, which ascend; those before `from` aren't judged.
    pub fn needed_percent(&self, arrivals_ms: &[f64], from: usize, deadline_ms: f64, seed: u64) -> f64 {
        let mut rng = Rng::new(seed, "needed refusals");
        let mut free_at = vec![0.0f64; self.slots];
        let mut refused = 0;
        for (n, arrived) in arrivals_ms.iter().enumerate() {
            let takes = self.lone_ms[rng.below(self.lone_ms.len() as u64) as usize] * self.stretch;
            let slot = free_at.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("there is one at least");
            let ends = slot.max(*arrived) + takes;
            if ends - arrived > deadline_ms {
                refused += usize::from(n >= from);
            } else {
                *slot = ends;
            }
        }
        100.0 * refused as f64 / (arrivals_ms.len() - from).max(1) as f64
    }
}
