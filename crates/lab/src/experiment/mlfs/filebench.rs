//! ML-E5: instances of Filebench's varmail and fileserver beside a sequential reader (Manylogs Fig 4).

use super::stream::MODES;
use super::{ALONE, DEVICE, DEVICE_NOTE, HOST_NOTE, Setup, mean_ms};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::mlfs::{Machine, Meter, Personality, SimDisk, Tender, Thread, Work};
use plimsoll_base::{LatencyHistogram, Span, Time};
use plimsoll_device::Op;
use plimsoll_fs::Mode;

/// See the module's documentation.
pub struct Instances;

pub(super) const COUNTS: [u64; 3] = [2, 4, 8];
/// Of an instance.
const OPS_PER_S: u64 = 20;
/// Files of a thread.
const FILES: u64 = 4;
const BEST: &str = "MLFS provides the best outcomes";

fn name(p: Personality) -> &'static str {
    match p {
        Personality::Varmail => "varmail",
        Personality::Fileserver => "fileserver",
    }
}

/// Bandwidth that the reader keeps, in percent; mean time of varmail's syncs or fileserver's writes, in ms.
pub(super) fn run(p: Personality, instances: u64, mode: Mode, seed: u64, time: Span) -> Result<(f64, f64), LabError> {
    let setup = Setup::on(1);
    let clients = (instances * p.threads()) as usize + 1;
    let mut m = Machine::new(SimDisk::new(DEVICE, 1, setup.host, clients, seed).map_err(LabError)?, mode)?;
    let mut threads = Vec::new();
    for i in 0..instances {
        let dir = m.dirs[((i as f64 + 0.5) / instances as f64 * (m.dirs.len() - 1) as f64) as usize];
        for number in 0..p.threads() {
            threads.push(Thread::new(p, &mut m.fs, dir, number, FILES, OPS_PER_S, seed)?);
        }
    }
    m.start()?;
    m.stream_large(Op::Read)?;
    let alone = Meter::new(&m.disk);
    m.run(&mut [], Time::ZERO + ALONE)?;
    let alone = alone.mb_per_s(&m.disk);
    let (from, beside) = (m.disk.now(), Meter::new(&m.disk));
    threads.iter_mut().for_each(|t| t.start(from));
    let mut tender = Tender::new(from, setup.checkpoint);
    let mut works: Vec<&mut dyn Work> = threads.iter_mut().map(|t| t as &mut dyn Work).collect();
    works.push(&mut tender);
    m.run(&mut works, from + time)?;
    let mut timed = LatencyHistogram::new();
    threads.iter().for_each(|t| timed.merge(&t.timed));
    Ok((100.0 * beside.mb_per_s(&m.disk) / alone, mean_ms(&timed)))
}

impl Experiment for Instances {
    fn id(&self) -> &'static str {
        "ML-E5"
    }
    fn title(&self) -> &'static str {
        "The file system: varmail and fileserver beside a sequential reader"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-A3, Fig 4"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        let ours = "Filebench's loops, not Filebench: varmail with 16 threads an instance, fileserver with 50; files of 16 and 128 KB and appends of 16 KB on average; \
                    4 files a thread, so fewer than Filebench's; instances spread over the disk, each limited to 20 reads, writes and syncs a second. \
                    Fileserver doesn't sync: its writes are made durable each 5 s. The paper's text has no figures for these";
        vec![ours.into(), HOST_NOTE.into(), DEVICE_NOTE.into()]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for p in [Personality::Varmail, Personality::Fileserver] {
            for (n, mode) in COUNTS.iter().flat_map(|n| MODES.map(|m| (n, m))) {
                let row = |what: &str, unit| RowSpec::new(format!("{n} x {}, {}: {what}", name(p), mode.name()), unit);
                let timed = if p == Personality::Varmail { "sync, mean" } else { "write or append, mean" };
                rows.extend([row("bandwidth kept", "%"), row(timed, "ms")]);
            }
            let row = |what: &str, unit| RowSpec::new(format!("8 x {}: {what}", name(p)), unit).derived();
            let kept = row("bandwidth kept, manylogs over the best other mode", "x");
            rows.push(kept.paper_says(Check::AtLeast(1.0), BEST));
            if p == Personality::Varmail {
                let sync = row("sync, manylogs over the best other mode", "x");
                rows.push(sync.paper_says(Check::AtMost(1.0), BEST));
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let time = Span::from_secs(inputs.length(30, 10, 6));
        let mut values = Vec::new();
        for p in [Personality::Varmail, Personality::Fileserver] {
            let mut all = Vec::new();
            for (&n, mode) in COUNTS.iter().flat_map(|n| MODES.map(|m| (n, m))) {
                if inputs.brief && n < 8 {
                    values.extend([None; 2]);
                    continue;
                }
                let (kept, ms) = run(p, n, mode, seed, time)?;
                values.extend([kept, ms].map(Some));
                all.push((kept, ms));
            }
            let [others @ .., manylogs] = &all[all.len() - MODES.len()..] else { unreachable!("four modes") };
            values.push(Some(manylogs.0 / others.iter().map(|o| o.0).fold(0.0, f64::max)));
            if p == Personality::Varmail {
                values.push(Some(manylogs.1 / others.iter().map(|o| o.1).fold(f64::MAX, f64::min)));
            }
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
