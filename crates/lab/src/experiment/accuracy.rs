//! MT-E13, disk: how often a forecast is wrong about a deadline.
//!
//! Every request runs; what would have been refused, at once or later, is only flagged (MT-M28). The trace is cut in
//! time: the first half sets the deadline (p95 of a run without rejection) and lets the predictor learn, the second half is
//! judged.

use crate::experiment::traces::{self, Case};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::plot::{Curve, Plot};
use crate::replay::{Limits, Pool, PoolConfig, open_loop_watched};
use crate::trace::record::{Tables, TraceRecord};
use crate::trace::stream::Held;
use plimsoll_base::{Completion, LatencyHistogram, Op, Span, Time};
use plimsoll_device::{Disk, DiskOptions, Mismatch, Model, ModelLayer};
use plimsoll_sched::{Cfq, CfqConfig, DiskModel, Late, Precision};
use plimsoll_stack::Layer;

/// A read that ended, as the accounting needs it.
#[derive(Clone, Copy)]
pub(crate) struct Read {
    pub arrived_at: Time,
    pub expected_at: Time,
    pub done_at: Time,
    pub offset: u64,
}

/// Verdicts over the judged reads.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Verdict {
    pub reads: u64,
    pub late: u64,
    pub false_positives: u64,
    pub false_negatives: u64,
    /// Sum over the wrong ones of how far the prediction was off, in ns.
    pub wrong_by_ns: u64,
}

impl Verdict {
    pub(crate) fn of(reads: &[Read], deadline: Span) -> Verdict {
        let mut v = Verdict::default();
        for r in reads {
            let due = r.arrived_at + deadline;
            let (flagged, late) = (r.expected_at > due, r.done_at > due);
            v.reads += 1;
            v.late += u64::from(late);
            v.false_positives += u64::from(flagged && !late);
            v.false_negatives += u64::from(!flagged && late);
            if flagged != late {
                v.wrong_by_ns += r.expected_at.since(r.done_at).max(r.done_at.since(r.expected_at)).as_nanos();
            }
        }
        v
    }

    fn percent(&self, n: u64) -> f64 {
        100.0 * n as f64 / self.reads.max(1) as f64
    }

    pub(crate) fn inaccuracy(&self) -> f64 {
        self.percent(self.false_positives + self.false_negatives)
    }

    pub(crate) fn late_percent(&self) -> f64 {
        self.percent(self.late)
    }
}

/// The drive that everything runs on, and how far it is from its profile.
const DEVICE: &str = "cheetah-15k5";
const SPREAD: f64 = 0.15;
/// Requests at the drive at once.
const DEPTH: u32 = 1;
/// Reads judged at least: p95 needs some beyond it.
const READS_MIN: u64 = 400;

/// A predictor with or without its parts.
struct Variant {
    name: &'static str,
    late: Late,
    precision: Precision,
    order: bool,
    note: &'static str,
}

const FULL: Variant = Variant { name: "MittCFQ", late: Late::Flag, precision: Precision::FULL, order: true, note: "" };

fn variants() -> [Variant; 6] {
    [
        FULL,
        Variant {
            name: "at admission only",
            late: Late::Keep,
            note: "without the table of tolerable times: nothing is flagged after it was accepted",
            ..FULL
        },
        Variant {
            name: "without calibration",
            precision: Precision { calibrate: false, ..Precision::FULL },
            note: "the profile of another drive of the kind, never corrected",
            ..FULL
        },
        Variant {
            name: "without distances",
            precision: Precision { distances: false, ..Precision::FULL },
            note: "every request of an operation costs the same",
            ..FULL
        },
        Variant { name: "without order", order: false, note: "all accepted work counts as in front", ..FULL },
        Variant {
            name: "without all of them",
            late: Late::Keep,
            precision: Precision { calibrate: false, distances: false },
            order: false,
            note: "as Fig 9's without the precision work of §4.2",
        },
    ]
}

/// See the module's documentation.
pub struct DiskAccuracy;

/// A replay of `records` where reads have `deadline`, nothing is refused, and late ones are flagged; the reads that
/// arrived from `from` on.
fn replay(
    variant: &Variant,
    records: &[TraceRecord],
    seed: u64,
    deadline: Option<Span>,
    from: Time,
) -> Result<Vec<Read>, LabError> {
    let spec = crate::replay::DeviceChoice::named(DEVICE)?.spec;
    let mismatch = Some(Mismatch { seed, spread: SPREAD });
    let disk = Disk::new(&spec, DiskOptions { seed, mismatch }).map_err(|e| LabError(e.to_string()))?;
    let model = DiskModel::unknown(disk.size_bytes()).with_precision(variant.precision);
    let config = CfqConfig {
        depth: DEPTH,
        late: variant.late,
        predict_order: variant.order,
        failover_hop: Span::ZERO,
        ..CfqConfig::default()
    };
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(Cfq::new(config, model)), Box::new(ModelLayer::new(disk))];
    let pool = PoolConfig { late: Late::Flag, failover_hop: Span::ZERO, seed, ..PoolConfig::default() };
    let mut pool = Pool::of_layers(layers, &pool)?;
    let mut reads = Vec::new();
    let mut watch = |now: Time, c: &Completion| {
        if c.io.op == Op::Read && c.io.arrived_at >= from {
            reads.push(Read {
                arrived_at: c.io.arrived_at,
                expected_at: c.io.expected_at,
                done_at: now,
                offset: c.io.offset,
            });
        }
    };
    let limits = Limits { deadline, processes: true, ..Limits::default() };
    let mut source = Held::new(records.to_vec(), Tables::new());
    open_loop_watched(&mut pool, &mut source, &limits, &mut |_, _| {}, &mut watch)?;
    Ok(reads)
}

/// The p95 of the reads that arrived before `until`.
fn p95(reads: &[Read], until: Time) -> Span {
    let mut h = LatencyHistogram::new();
    reads.iter().filter(|r| r.arrived_at < until).for_each(|r| h.record(r.done_at.since(r.arrived_at)));
    h.percentile(95.0)
}

#[test]
fn scratch() {
    let data = std::path::PathBuf::from(std::env::var("PLIMSOLL_DATA").unwrap());
    let inputs = Inputs { data: Some(data), ..Inputs::default() };
    let device = crate::replay::DeviceChoice::named(DEVICE).unwrap();
    for case in traces::cases(&inputs) {
        let records = traces::stretch(&case, 100_000).unwrap();
        let speed = traces::speed_for_disk(&records, &device).unwrap();
        let records = traces::at_speed(&records, speed);
        let records = traces::from_a_start(&records, 1);
        let middle = traces::middle(&records);
        let free = replay(&FULL, &records, 1, None, Time::ZERO).unwrap();
        let deadline = p95(&free, middle);
        let mut sorted: Vec<f64> = free.iter().map(|r| r.done_at.since(r.arrived_at).as_millis_f64()).collect();
        sorted.sort_by(f64::total_cmp);
        let p = |q: f64| sorted[((sorted.len() - 1) as f64 * q) as usize];
        println!(
            "{}: {} records speed 2^{speed} reads {} p50 {:.1} p90 {:.1} p95 {:.1} p99 {:.1} deadline {deadline}",
            case.name,
            records.len(),
            free.len(),
            p(0.5),
            p(0.9),
            p(0.95),
            p(0.99)
        );
        for v in variants() {
            let reads = replay(&v, &records, 1, Some(deadline), middle).unwrap();
            if v.name == "at admission only" && std::env::var("DUMP").is_ok_and(|d| d == case.name) {
                let mut by: std::collections::BTreeMap<u64, Vec<f64>> = Default::default();
                for r in &reads {
                    let (e, a) = (
                        r.expected_at.since(r.arrived_at).as_millis_f64(),
                        r.done_at.since(r.arrived_at).as_millis_f64(),
                    );
                    if e > 20.0 && a < e - 15.0 {
                        eprintln!("BAD {}-{} expected {e} actual {a}", r.arrived_at.as_nanos(), r.offset);
                    }
                    let e = r.expected_at.since(r.arrived_at).as_millis_f64();
                    let a = r.done_at.since(r.arrived_at).as_millis_f64();
                    by.entry((e.max(0.1).log2() * 2.0).floor() as i64 as u64).or_default().push(a - e);
                }
                for (k, mut v) in by {
                    v.sort_by(f64::total_cmp);
                    let q = |q: f64| v[((v.len() - 1) as f64 * q) as usize];
                    println!(
                        "# expected {:.1} ms n {} error p5 {:.1} p25 {:.1} p50 {:.1} p75 {:.1} p95 {:.1} mean {:.2}",
                        2f64.powf(k as i64 as f64 / 2.0),
                        v.len(),
                        q(0.05),
                        q(0.25),
                        q(0.5),
                        q(0.75),
                        q(0.95),
                        v.iter().sum::<f64>() / v.len() as f64
                    );
                }
            }
            let r = Verdict::of(&reads, deadline);
            println!(
                "   {:22} late {:.2} % FP {:.2} FN {:.2} sum {:.2} wrong by {:.1} ms",
                v.name,
                r.late_percent(),
                r.percent(r.false_positives),
                r.percent(r.false_negatives),
                r.inaccuracy(),
                r.wrong_by_ns as f64 / 1e6 / (r.false_positives + r.false_negatives).max(1) as f64
            );
        }
    }
}
