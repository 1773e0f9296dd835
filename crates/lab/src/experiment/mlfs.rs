//! The papers' experiments with the file system (Manylogs §V-A): the core of `plimsoll-fs` on a modelled disk.

pub mod array;
pub mod commit_log;
pub mod filebench;
pub mod stream;
pub mod summary;
pub mod writer;

use crate::experiment::{Experiment, LabError};
use crate::mlfs::{Batches, Host, Machine, Meter, SimDisk, Tender, Work};
use plimsoll_base::{LatencyHistogram, Span, Time};
use plimsoll_device::Op;
use plimsoll_fs::Mode;

/// The paper's disk.
const DEVICE: &str = "cheetah-15k5";
/// The stream is measured alone for this time first.
const ALONE: Span = Span::from_secs(3);
/// Files of the random writer (§V-A1).
const FILES: usize = 20;
/// Rows on what no paper's host did as assumed.
const HOST_NOTE: &str = "the paper doesn't say how its host gave requests to the disk. The rows without a remark on the host have one request in \
the disk at a time, in the order of their coming; a client's next write comes when the one before has ended; 2 reads of 128 KiB are in flight";
const DEVICE_NOTE: &str = "the device differs from its profile by ±15 % per component, drawn by the seed";

/// The experiments with the file system.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(stream::ReaderBesideSyncs),
        Box::new(writer::WriterBesideSyncs),
        Box::new(array::Striped),
        Box::new(filebench::Instances),
        Box::new(commit_log::CommitLogs),
        Box::new(summary::SpeedUps),
    ]
}

/// The host and the writer, as far as they are assumed.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Setup {
    disks: usize,
    host: Host,
    /// Pages of each of the writer's files.
    pages: u64,
    /// The writer goes on during a sync.
    goes_on: bool,
    /// Between checkpoints of a single journal.
    checkpoint: Span,
}

impl Setup {
    const fn on(disks: usize) -> Setup {
        let checkpoint = Span::from_secs(5);
        // A sync has a write in each disk.
        let host = Host { window: disks, ..Host::ALTERNATE };
        Setup { disks, host, pages: 1024, goes_on: false, checkpoint }
    }
}

/// A run's figures.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Outcome {
    /// Bandwidth that the stream kept, in percent of that alone.
    kept: f64,
    /// Mean time of a sync.
    sync_ms: f64,
    /// Writes made durable.
    writes_per_s: f64,
}

fn mean_ms(h: &LatencyHistogram) -> f64 {
    h.sum().as_millis_f64() / h.count().max(1) as f64
}

/// A sequential reader beside batches of writes.
fn beside_reader(setup: &Setup, mode: Mode, writes_per_s: u64, seed: u64, time: Span) -> Result<Outcome, LabError> {
    let disk = SimDisk::new(DEVICE, setup.disks, setup.host, 2, seed).map_err(LabError)?;
    let mut m = Machine::new(disk, mode)?;
    let files = m.small_files(FILES, setup.pages)?;
    m.start()?;
    m.stream_large(Op::Read)?;
    let alone = Meter::new(&m.disk);
    m.run(&mut [], Time::ZERO + ALONE)?;
    let alone = alone.mb_per_s(&m.disk);
    let (from, beside) = (m.disk.now(), Meter::new(&m.disk));
    let mut writer = Batches::new(files, setup.pages, writes_per_s, setup.goes_on, from, seed);
    let mut tender = Tender::new(from, setup.checkpoint);
    m.run(&mut [&mut writer as &mut dyn Work, &mut tender], from + time)?;
    Ok(Outcome {
        kept: 100.0 * beside.mb_per_s(&m.disk) / alone,
        sync_ms: mean_ms(&writer.syncs),
        writes_per_s: writer.written as f64 / m.disk.now().since(from).as_secs_f64(),
    })
}
