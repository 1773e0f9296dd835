//! ML-M8: how long a start takes after a power loss, on a large disk that holds bytes.

use crate::experiment::manylogs::{DEVICE, plan};
use crate::experiment::{Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{BufPool, Rng, Span, VolumeKey};
use plimsoll_logs::format::{
    Entry, EntryKind, Image, LogEntry, Note, Place, data_sum, encode_image, encode_note, encode_record, epoch_of,
    first_sum, header_bytes, logs_per_chunk,
};
use plimsoll_logs::layout::NOTES_AT;
use plimsoll_logs::mtl::{Mapped, Unit};
use plimsoll_logs::{Layout, Logs, LogsConfig, RecoveryReport, Shape, format_device};
use plimsoll_pool::{UNLIMITED, build, seen};
use plimsoll_replay::DeviceChoice;
use plimsoll_stack::LayerState;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use std::num::NonZeroU32;

/// See the module's documentation.
pub struct RecoveryTime;

/// Content of the device at the start.
struct Left {
    what: &'static str,
    /// Extents in the last image.
    extents: u32,
    /// Records since, of twenty writes of 4 KiB.
    records: u64,
    /// The notes of which logs have any can't be read.
    no_note: bool,
    /// The image is what a capacitor wrote out at the end.
    complete: bool,
}

const KEY: VolumeKey = VolumeKey { id: 1, generation: 1 };
const WRITE: u64 = 4096;
const WRITES: u64 = 20;
/// 28 writes a second for an hour.
const HOUR_OF_RECORDS: u64 = 5000;
const FULL: u32 = 1 << 20;
const LEFT: [Left; 5] = [
    Left { what: "nothing logged", extents: 0, records: 0, no_note: false, complete: false },
    Left {
        what: "100,000 writes since the last image",
        extents: 0,
        records: HOUR_OF_RECORDS,
        no_note: false,
        complete: false,
    },
    Left { what: "a full table, a million extents", extents: FULL, records: 0, no_note: false, complete: false },
    Left {
        what: "100,000 writes and no note: all logs are looked at",
        extents: 0,
        records: HOUR_OF_RECORDS,
        no_note: true,
        complete: false,
    },
    Left {
        what: "a capacitor's table of 20 MB, written out whole",
        extents: 600_000,
        records: 0,
        no_note: false,
        complete: true,
    },
];

/// The device as it was left: tables, records (of zeroes, which take no memory), notes.
fn disk(layout: &Layout, left: &Left, seed: u64) -> SimDisk {
    let mut disk = SimDisk::new(layout.device_bytes, (Span::ZERO, Span::ZERO), seed, DiskFaults::default());
    for (at, bytes) in format_device(layout) {
        disk.write_durably(at, &bytes);
    }
    let number = 2;
    let each = left.extents.div_ceil(layout.logs);
    let tail = each * WRITE as u32;
    let extents = (0..left.extents).map(|i| {
        let log = i / each.max(1);
        let at = layout.log_start(log) + u64::from(i % each.max(1)) * WRITE;
        let unit = NonZeroU32::new(WRITE as u32).map(|len| Unit { sum: 0, skip: 0, len });
        (u64::from(i) * 2 * WRITE, Mapped { at, len: WRITE as u32, log, key: KEY, unit })
    });
    let first =
        |log| LogEntry { tail, busy: false, bad: false, sum: first_sum(layout, log, number), epoch: epoch_of(number) };
    let image = Image {
        number,
        complete: left.complete,
        has_loss: false,
        next_sequence: 1,
        logs: (0..layout.logs).map(first).collect(),
        extents: extents.collect(),
    };
    // In both places, unless a capacitor wrote it.
    let image = encode_image(layout, &image);
    for slot in (0..2).filter(|slot| !left.complete || *slot == 0) {
        disk.write_durably(layout.image_at(slot), &image);
    }
    let note = records(layout, left, seed, &mut disk);
    let page = if left.no_note { vec![0; 512] } else { encode_note(layout, &note) };
    NOTES_AT.iter().for_each(|at| disk.write_durably(*at, &page));
    disk
}

/// Writes records into logs all over the disk, and says where.
fn records(layout: &Layout, left: &Left, seed: u64, disk: &mut SimDisk) -> Note {
    let per_chunk = logs_per_chunk(layout.logs);
    let image = if left.complete { 1 } else { 2 };
    let mut note = Note { number: 2, image, chunks: vec![false; layout.logs.div_ceil(per_chunk) as usize] };
    let mut rng = Rng::new(seed, "records");
    let mut buffers = BufPool::new();
    let sum = data_sum(layout, &[0; WRITE as usize]);
    let total = header_bytes(WRITES as usize, layout.block()) + WRITES * WRITE;
    let (mut log, mut room, mut at, mut previous) = (0, 0, 0, 0);
    for record in 0..left.records {
        if room < total {
            // The stream that they are near has moved on.
            log = rng.below(u64::from(layout.logs)) as u32;
            while note.chunks[(log / per_chunk) as usize] {
                log = (log + per_chunk) % layout.logs;
            }
            note.chunks[(log / per_chunk) as usize] = true;
            (room, at, previous) = (layout.shape.log_bytes, layout.log_start(log), first_sum(layout, log, 2));
        }
        let entry = |i: u64| {
            let home = rng.below(layout.home_bytes / WRITE - 1) * WRITE;
            let (len, sequence) = (WRITE as u32, 1 + record * WRITES + i);
            Entry { home, len, kind: EntryKind::Data, key: KEY, sequence, sum }
        };
        let entries: Vec<Entry> = (0..WRITES).map(entry).collect();
        let (header, next) =
            encode_record(&mut buffers, layout, Place { at, log, previous, epoch: epoch_of(2) }, &entries, &[], 1);
        disk.write_durably(at, header.as_slice());
        (room, at, previous) = (room - total, at + total, next);
    }
    note
}

/// Starts a pool over it; what the layer reports.
fn recovered(left: &Left, seed: u64) -> Result<RecoveryReport, LabError> {
    let device = DeviceChoice::named(DEVICE)?;
    let failed = |e: &dyn std::fmt::Display| LabError(format!("device `{}`: {e}", device.name));
    let plan = plan(&device, Shape::default(), LogsConfig::default(), seed);
    let slow = seen(plan.model.as_ref(), UNLIMITED).map_err(|e| failed(&e))?.offer;
    let layout = Layout::new(slow.size_bytes, slow.block_bytes, Shape::default(), 1).map_err(|e| failed(&e))?;
    let mut pool = SimPool::with_stack(vec![disk(&layout, left, seed)], |offers| {
        build(&plan, offers).expect("logs fit on the disk that they were put on")
    });
    if pool.start() != LayerState::Ready {
        return Err(LabError(format!("{}: it doesn't start", left.what)));
    }
    plimsoll_replay::decided::note(pool.stack().decisions());
    let report = pool.stack().layer::<Logs>().expect("it is there").counters().recovery;
    if report.records != left.records || report.image_extents != u64::from(left.extents) {
        return Err(LabError(format!("{}: found {report:?}", left.what)));
    }
    Ok(report)
}

impl Experiment for RecoveryTime {
    fn id(&self) -> &'static str {
        "ML-M8"
    }
    fn title(&self) -> &'static str {
        "Starting after a power loss: the table is read, the checkpoint skipped"
    }
    fn source(&self) -> &'static str {
        "Manylogs §III-H (no figure there)"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the device's time on a modelled 1 TB disk that holds what a run would have left; an image is written hourly, and when logs are \
             emptied, so the second row is an hour of 28 writes a second"
                .into(),
            "the paper reads its table from where capacitor-backed RAM wrote it; the last row is that".into(),
            "the device differs from its profile by ±15 % per component, drawn by the seed".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let of = |left: &Left| {
            let row = |what: &str, unit| RowSpec::new(format!("{}: {what}", left.what), unit);
            [row("until it serves", "s"), row("read", "MB"), row("logs looked at", "1")]
        };
        LEFT.iter().flat_map(of).collect()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for left in &LEFT {
            let few = Left { records: left.records / 10, extents: left.extents / 10, ..*left };
            let r = recovered(if inputs.quick { &few } else { left }, seed)?;
            values.extend([r.took.as_secs_f64(), r.bytes_read as f64 / 1e6, f64::from(r.logs_scanned)].map(Some));
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
