//! ML-E3: a sequential writer beside a writer that syncs (Manylogs Fig 2b).

use super::stream::MODES;
use super::{ALONE, DEVICE, DEVICE_NOTE, FILES, HOST_NOTE, Setup, beside_reader, mean_ms};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::mlfs::{Batches, Host, LARGE_BYTES, LargeWrites, Machine, Meter, PIECE, SimDisk, Tender};
use plimsoll_base::{Span, Time};
use plimsoll_device::Op;
use plimsoll_fs::Mode;

/// See the module's documentation.
pub struct WriterBesideSyncs;

const RATES: [u64; 2] = [40, 320];
/// Written back together.
const CHUNK_BYTES: u64 = 4 << 20;
const WRITERS: u64 = 2;

/// Bandwidth that the sequential writer has, in percent of a disk's that only writes a file's blocks; mean time of a sync in ms.
pub(super) fn run(mode: Mode, writes_per_s: u64, seed: u64, time: Span) -> Result<(f64, f64), LabError> {
    let setup = Setup::on(1);
    // The large file's write-back comes in pieces of this size, one of each writer at a time.
    let host = Host { stream_depth: WRITERS as usize, stream_bytes: PIECE, ..setup.host };
    let new = || -> Result<Machine, LabError> {
        Ok(Machine::new(SimDisk::new(DEVICE, 1, host, 4, seed).map_err(LabError)?, mode)?)
    };
    let mut raw = new()?;
    raw.start()?;
    raw.stream_large(Op::Write { fua: false })?;
    let alone = Meter::new(&raw.disk);
    raw.run(&mut [], Time::ZERO + ALONE)?;
    let alone = alone.mb_per_s(&raw.disk);
    let mut m = new()?;
    let files = m.small_files(FILES, setup.pages)?;
    m.start()?;
    let mut large: Vec<LargeWrites> =
        (0..WRITERS).map(|i| LargeWrites::new(m.large, LARGE_BYTES, CHUNK_BYTES, i, WRITERS)).collect();
    let mut writer = Batches::new(files, setup.pages, writes_per_s, false, Time::ZERO, seed);
    let mut tender = Tender::new(Time::ZERO, setup.checkpoint);
    let [first, second] = &mut large[..] else { unreachable!("two") };
    m.run(&mut [&mut writer, first, second, &mut tender], Time::ZERO + time)?;
    let bytes: u64 = large.iter().map(|l| l.bytes).sum();
    let kept = bytes as f64 / 1e6 / m.disk.now().as_secs_f64() / alone;
    Ok((100.0 * kept, mean_ms(&writer.syncs)))
}

impl Experiment for WriterBesideSyncs {
    fn id(&self) -> &'static str {
        "ML-E3"
    }
    fn title(&self) -> &'static str {
        "The file system: a sequential writer beside a writer that syncs"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-A1, Fig 2b"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        let ours = "as ML-E2, with a writer in the reader's place: a 2 GiB file whose chunks of 4 MiB are written back, two at a time, each with its metadata. \
                    100 % are the same disk's writes to the file's blocks in the same pieces, without a file system; the paper's figure has no numbers in its text";
        vec![ours.into(), HOST_NOTE.into(), DEVICE_NOTE.into()]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (rate, mode) in RATES.iter().flat_map(|r| MODES.map(|m| (r, m))) {
            let row = |what: &str, unit| RowSpec::new(format!("{rate} writes/s, {}: {what}", mode.name()), unit);
            rows.extend([row("bandwidth kept", "%"), row("sync, mean", "ms")]);
        }
        for rate in RATES {
            let best = RowSpec::new(format!("{rate} writes/s: bandwidth kept, manylogs over the best other mode"), "x");
            rows.push(
                best.derived().paper_says(Check::AtLeast(1.0), "MLFS is also superior to the other journaling modes"),
            );
        }
        let data = RowSpec::new("40 writes/s, data: bandwidth kept by the writer over that of a reader", "x");
        let quote = "data journaling performs worse than in the experiments in Figure 2a; this is because the double large writes problem";
        rows.push(data.paper_says(Check::AtMost(1.0), quote));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        // Longer than the period of checkpoints.
        let time = Span::from_secs(inputs.length(20, 11, 6));
        let (mut values, mut best, mut data) = (Vec::new(), Vec::new(), 0.0);
        for rate in RATES {
            if inputs.brief && rate != RATES[0] {
                values.extend([None; 8]);
                best.push(None);
                continue;
            }
            let mut kept = Vec::new();
            for mode in MODES {
                let (of_mode, sync) = run(mode, rate, seed, time)?;
                values.extend([of_mode, sync].map(Some));
                kept.push(of_mode);
            }
            let [others @ .., manylogs] = &kept[..] else { unreachable!("four modes") };
            best.push(Some(manylogs / others.iter().copied().fold(0.0, f64::max)));
            if rate == RATES[0] {
                data = kept[1];
            }
        }
        values.extend(best);
        values.push(Some(data / beside_reader(&Setup::on(1), Mode::Data, RATES[0], seed, time)?.kept));
        Ok(Sample { values, ..Sample::default() })
    }
}
