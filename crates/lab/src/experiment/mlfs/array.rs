//! ML-E4-FS: as ML-E2 on four striped disks (Manylogs Fig 3a).

use super::stream::MODES;
use super::{DEVICE_NOTE, HOST_NOTE, Setup, beside_reader};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_fs::Mode;

/// See the module's documentation.
pub struct Striped;

const DISKS: u64 = 4;
const RATES: [u64; 2] = [40, 320];

/// An assumption on the host and its change.
type Change = (&'static str, fn(&mut Setup));
const HOSTS: [Change; 2] = [
    ("one write of a sync at a time in the array", |s| s.host.window = 1),
    ("that, and one read of 64 KiB in flight for each disk", |s| {
        s.host.window = 1;
        (s.host.stream_depth, s.host.stream_bytes) = (1, 64 << 10);
    }),
];

impl Experiment for Striped {
    fn id(&self) -> &'static str {
        "ML-E4-FS"
    }
    fn title(&self) -> &'static str {
        "The file system on RAID-0: a sequential reader beside a writer that syncs"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-A2, Fig 3a"
    }
    fn device(&self) -> &'static str {
        "raid0:4:64K of cheetah-15k5"
    }
    fn notes(&self) -> Vec<String> {
        let ours = "as ML-E2, with 4 striped disks that differ from each other, each with a queue before it, 2 of the reader's requests and a write of a sync; groups of 100 MB of \
                    the array, so 2.5 MB of log in 25 MB of each disk";
        vec![ours.into(), HOST_NOTE.into(), DEVICE_NOTE.into()]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (rate, mode) in RATES.iter().flat_map(|r| MODES.map(|m| (r, m))) {
            let row = |what: &str, unit| RowSpec::new(format!("{rate} writes/s/disk, {}: {what}", mode.name()), unit);
            let kept = row("bandwidth kept", "%");
            rows.push(match (rate, mode) {
                (40, Mode::Ordered) => kept.reproduces(30.0),
                (40, Mode::Manylogs) => {
                    let quote = "MLFS throughput does not degrade significantly (97% in single-disk and 92% in RAID experiments";
                    kept.beside(92.0).paper_says(Check::AtLeast(92.0), quote)
                }
                _ => kept,
            });
            rows.push(row("sync, mean", "ms"));
        }
        let less = RowSpec::new("40 writes/s/disk, ordered: bandwidth kept by the array over that of one disk", "x");
        let quote = "in the RAID experiment (with the same 40 IOPS/disk), the throughput collapses more significantly";
        rows.push(less.beside(30.0 / 57.0).paper_says(Check::AtMost(1.0), quote));
        for (name, _) in &HOSTS {
            let row = |what: &str, unit| RowSpec::new(format!("{name}; 40 writes/s/disk, ordered: {what}"), unit);
            rows.extend([row("bandwidth kept", "%").beside(30.0), row("sync, mean", "ms")]);
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let time = Span::from_secs(inputs.length(30, 6, 3));
        let array = Setup::on(DISKS as usize);
        let run = |setup: &Setup, mode, rate| beside_reader(setup, mode, rate * setup.disks as u64, seed, time);
        let mut values = Vec::new();
        for (rate, mode) in RATES.iter().flat_map(|&r| MODES.map(|m| (r, m))) {
            if inputs.brief && rate != RATES[0] {
                values.extend([None; 2]);
                continue;
            }
            let o = run(&array, mode, rate)?;
            values.extend([o.kept, o.sync_ms].map(Some));
        }
        let one = run(&Setup::on(1), Mode::Ordered, RATES[0])?.kept;
        values.push(values[0].map(|array| array / one));
        for (_, change) in &HOSTS {
            if inputs.brief {
                values.extend([None; 2]);
                continue;
            }
            let mut setup = array;
            change(&mut setup);
            let o = run(&setup, Mode::Ordered, RATES[0])?;
            values.extend([o.kept, o.sync_ms].map(Some));
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
