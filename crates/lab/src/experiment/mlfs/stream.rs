//! ML-E2: a sequential reader beside a writer that syncs, in each journaling mode (Manylogs Fig 2a).

use super::{DEVICE, DEVICE_NOTE, HOST_NOTE, Outcome, Setup, beside_reader};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::mlfs::Host;
use plimsoll_base::Span;
use plimsoll_fs::Mode;

/// See the module's documentation.
pub struct ReaderBesideSyncs;

const RATES: [u64; 4] = [40, 80, 160, 320];
const ENDS: [u64; 2] = [40, 320];
pub(super) const MODES: [Mode; 4] = [Mode::Ordered, Mode::Data, Mode::Adaptive, Mode::Manylogs];
const ORDER: &str = "manylogs journaling results in the highest sustained bandwidth";
const BETTER: &str = "The condition is better with (single-log) adaptive journaling";
const SYNCS: &str = "fast durability of small writes can still be achieved even in the midst of large I/Os and high write IOPS (35 to 40 ms";
const EXT4: &str = "ext4 (data=ordered) on this modelled disk in real time keeps 52 and 60 % at 40 writes/s, 36 and 39 % at 320 (docs/results/notes/fs.md)";
/// The goal at 320 writes/s: a quarter more than the paper's.
const GOAL: f64 = 51.0 * 1.25;

/// An assumption changed.
struct Suspect {
    name: &'static str,
    change: fn(&mut Setup),
    modes: &'static [Mode],
}

fn during(s: &mut Setup) {
    s.goes_on = true;
}
fn small(s: &mut Setup) {
    s.pages = 32;
}
fn one_read(s: &mut Setup) {
    (s.host.stream_depth, s.host.stream_bytes) = (1, 64 << 10);
}

const THREE: &[Mode] = &[Mode::Ordered, Mode::Adaptive, Mode::Manylogs];
const SUSPECTS: [Suspect; 7] = [
    Suspect { name: "all requests in the disk", change: |s| s.host = Host::TAGS, modes: THREE },
    Suspect { name: "a sync's writes at once, first come first served", change: |s| s.host = Host::FIFO, modes: THREE },
    Suspect { name: "files of 128 KiB", change: small, modes: &[Mode::Ordered] },
    Suspect { name: "one read of 64 KiB in flight", change: one_read, modes: &[Mode::Ordered] },
    Suspect {
        name: "a checkpoint each second",
        change: |s| s.checkpoint = Span::from_secs(1),
        modes: &[Mode::Ordered],
    },
    Suspect { name: "the writer goes on during a sync", change: during, modes: &[Mode::Ordered] },
    Suspect {
        name: "it goes on, files of 128 KiB, one read of 64 KiB",
        change: |s| {
            during(s);
            small(s);
            one_read(s);
        },
        modes: THREE,
    },
];

/// The paper's bandwidth kept and mean sync, where it names them.
fn paper(mode: Mode, rate: u64) -> Option<(f64, f64)> {
    match (mode, rate) {
        (Mode::Ordered, 40) => Some((57.0, 209.0)),
        (Mode::Ordered, 320) => Some((5.0, 919.0)),
        (Mode::Adaptive, 40) => Some((85.0, 58.0)),
        (Mode::Adaptive, 320) => Some((17.0, 100.0)),
        (Mode::Manylogs, 40) => Some((97.0, 35.0)),
        (Mode::Manylogs, 320) => Some((51.0, 40.0)),
        _ => None,
    }
}

/// Rows of one mode at one rate.
fn rows_of(mode: Mode, rate: u64) -> [RowSpec; 3] {
    let row = |what: &str, unit| RowSpec::new(format!("{rate} writes/s, {}: {what}", mode.name()), unit);
    let (kept, sync) = (row("bandwidth kept", "%"), row("sync, mean", "ms"));
    let (kept, sync) = match (paper(mode, rate), mode) {
        (None, _) => (kept, sync),
        (Some((k, s)), Mode::Manylogs) => {
            (kept.beside(k).paper_says(Check::AtLeast(k), ORDER), sync.beside(s).paper_says(Check::AtMost(40.0), SYNCS))
        }
        (Some((k, s)), Mode::Ordered) => (kept.reproduces(k).note(EXT4), sync.reproduces(s)),
        (Some((k, s)), _) => (kept.reproduces(k), sync.reproduces(s)),
    };
    [kept, sync, row("writes done", "1/s")]
}

impl Experiment for ReaderBesideSyncs {
    fn id(&self) -> &'static str {
        "ML-E2"
    }
    fn title(&self) -> &'static str {
        "The file system: a sequential reader beside a writer that syncs"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-A1, Fig 2a"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        let ours = "the core of plimsoll-fs, without FUSE; a 4 KiB page in each of 20 files of 4 MiB, then sync(): 20 writes a sync; the reader's requests \
                    are those of a 2 GiB file's blocks";
        vec![ours.into(), HOST_NOTE.into(), DEVICE_NOTE.into()]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows: Vec<RowSpec> =
            RATES.iter().flat_map(|&rate| MODES.into_iter().flat_map(move |mode| rows_of(mode, rate))).collect();
        for rate in ENDS {
            let over = |a: &str, b: &str| RowSpec::new(format!("{rate} writes/s: bandwidth kept, {a} over {b}"), "x");
            rows.push(over("manylogs", "adaptive").derived().paper_says(Check::AtLeast(1.0), ORDER));
            rows.push(over("adaptive", "ordered").derived().paper_says(Check::AtLeast(1.0), BETTER));
        }
        let goal = RowSpec::new("320 writes/s, manylogs: bandwidth kept, the goal", "%").derived();
        rows.push(goal.goal(Check::AtLeast(GOAL)).note("1.25 times the paper's"));
        for s in &SUSPECTS {
            for (mode, rate) in s.modes.iter().flat_map(|m| ENDS.map(|r| (m, r))) {
                let row = |what: &str, unit| {
                    RowSpec::new(format!("{}; {rate} writes/s, {}: {what}", s.name, mode.name()), unit)
                };
                let [kept, sync] = [row("bandwidth kept", "%"), row("sync, mean", "ms")];
                rows.extend(match paper(*mode, rate) {
                    Some((k, s)) => [kept.beside(k), sync.beside(s)],
                    None => [kept, sync],
                });
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let time = Span::from_secs(inputs.length(30, 6, 3));
        let run = |change: &dyn Fn(&mut Setup), mode, rate| {
            let mut setup = Setup::on(1);
            change(&mut setup);
            beside_reader(&setup, mode, rate, seed, time)
        };
        let mut values = Vec::new();
        let mut kept = Vec::new();
        for rate in RATES {
            for mode in MODES {
                if inputs.brief && !ENDS.contains(&rate) {
                    values.extend([None; 3]);
                    continue;
                }
                let o: Outcome = run(&|_| {}, mode, rate)?;
                values.extend([o.kept, o.sync_ms, o.writes_per_s].map(Some));
                if ENDS.contains(&rate) {
                    kept.push(o.kept);
                }
            }
        }
        let [ordered, _, adaptive, manylogs, ordered_most, _, adaptive_most, manylogs_most] = kept[..] else {
            unreachable!("two rates, four modes")
        };
        let orders =
            [(manylogs, adaptive), (adaptive, ordered), (manylogs_most, adaptive_most), (adaptive_most, ordered_most)];
        values.extend(orders.map(|(a, b)| Some(a / b)));
        values.push(Some(manylogs_most));
        for s in &SUSPECTS {
            for (mode, rate) in s.modes.iter().flat_map(|&m| ENDS.map(|r| (m, r))) {
                if inputs.brief {
                    values.extend([None; 2]);
                    continue;
                }
                let o = run(&s.change, mode, rate)?;
                values.extend([o.kept, o.sync_ms].map(Some));
            }
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
