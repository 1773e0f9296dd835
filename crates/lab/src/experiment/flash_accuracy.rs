//! MT-E13, flash: how often forecasts of visible flash (MittSSD) and of a hidden drive (the black-box predictor) are wrong
//! about a deadline. As [`super::accuracy`], over 128 chips and 128 times as fast (§7.6).

use crate::experiment::judged::{
    NEEDLESS, NOTHING, Read, Verdict, calibration_percent, from, missed_in_hindsight, p95, replay_reads,
};
use crate::experiment::traces;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_device::{BlackBox as HiddenFlash, Flash, FlashOptions, FlashSpec, History, Mismatch, ModelLayer};
use plimsoll_profile::flash_profile_of;
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig};
use plimsoll_sched::Late;
use plimsoll_sched::blackbox::{BlackBox, BlackBoxConfig};
use plimsoll_sched::profile::FlashProfile;
use plimsoll_sched::ssd::{MittSsd, SsdPrecision};
use plimsoll_stack::Layer;
use plimsoll_trace::record::TraceRecord;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// See the module's documentation.
#[derive(Default)]
pub struct FlashAccuracy {
    /// The speed of each trace, by the length that it is cut to. No seed changes it, and the search takes longer than the rest of a seed.
    speeds: Mutex<BTreeMap<(PathBuf, usize), i32>>,
}

const DEVICE: &str = "mittos-openchannel";
/// The drive is shrunk to this, so that its past fits in memory and it collects garbage.
const BYTES: u64 = 8 << 30;
const SPREAD: f64 = 0.15;
/// Binary logarithm of the speed relative to the disk's replay: one for each chip.
const FASTER_LOG2: i32 = 7;
/// The paper's device for the disk's speed.
const DISK: &str = "cheetah-15k5";

/// A seed's drive with its past, which takes longer than a short replay: each replay begins with a copy.
struct Drive {
    visible: Flash,
    hidden: HiddenFlash,
}

impl Drive {
    fn of(seed: u64) -> Result<Drive, LabError> {
        let failed = |e: plimsoll_device::SpecError| LabError(e.to_string());
        let spec = FlashSpec::by_name(DEVICE).map_err(failed)?;
        let options = FlashOptions {
            seed,
            mismatch: Some(Mismatch { seed, spread: SPREAD }),
            history: History::Aged { overwrites_permille: 1_000 },
            bytes_max: Some(BYTES),
        };
        Ok(Drive {
            visible: Flash::new(&spec, options).map_err(failed)?,
            hidden: HiddenFlash::new(&spec, options).map_err(failed)?,
        })
    }
}

#[derive(Clone, Copy)]
enum Predictor<'a> {
    Visible(&'a FlashProfile, SsdPrecision),
    Hidden,
}

fn replay(
    records: &[TraceRecord],
    predictor: Predictor<'_>,
    drive: &Drive,
    deadline: Option<Span>,
) -> Result<Vec<Read>, LabError> {
    let layers: Vec<Box<dyn Layer>> = match predictor {
        Predictor::Visible(profile, precision) => {
            let flash = drive.visible.clone();
            vec![Box::new(ModelLayer::new(flash).with_predictor(Box::new(MittSsd::new(profile, precision))))]
        }
        Predictor::Hidden => {
            let config = BlackBoxConfig { depth: 256, ..BlackBoxConfig::default() };
            vec![Box::new(BlackBox::new(config)), Box::new(ModelLayer::new(drive.hidden.clone()))]
        }
    };
    let queue_max = drive.visible.spec().interface.queue_depth as usize;
    let config =
        PoolConfig { late: Late::Flag, failover_hop: Span::ZERO, inflight_max: queue_max, ..PoolConfig::default() };
    let mut pool = Pool::alone(layers, &config)?;
    replay_reads(&mut pool, records, &Limits { deadline, ..Limits::default() })
}

const ABLATIONS: [(&str, SsdPrecision); 4] = [
    ("without calibration", SsdPrecision { calibrate: false, ..SsdPrecision::FULL }),
    ("without channels", SsdPrecision { channels: false, ..SsdPrecision::FULL }),
    ("without classes of pages", SsdPrecision { classes: false, ..SsdPrecision::FULL }),
    ("as one queue", SsdPrecision { chips: false, channels: false, classes: false, calibrate: false }),
];

const ONLY: &str = "MITTSSD inaccuracy is also only up to 0.8%";

fn trace_rows(name: &str) -> Vec<RowSpec> {
    let row = |what: &str, unit| RowSpec::new(format!("{name}: {what}"), unit);
    let mut rows = vec![
        row("deadline: p95 of the first half", "ms"),
        row("late reads, all accepted", "%")
            .note("what accepting always would be wrong about; 5 % by construction in the first half"),
        row("false positives", "%"),
        row("false negatives", "%"),
        row("inaccuracy", "%").beside(0.8).paper_says(Check::AtMost(0.8), ONLY).note(NOTHING),
        row("mean error of the wrong ones", "ms").beside(1.0),
        row("calibration error of the forecast", "%").note("by tenths of what was predicted"),
    ];
    rows.extend(ABLATIONS.map(|(what, _)| row(&format!("inaccuracy {what}"), "%")));
    rows.push(row("false negatives of the late", "%"));
    rows.push(row("false positives of the others", "%"));
    rows.push(
        row("false negatives of the late, limit chosen in hindsight", "%")
            .note("with at most 1 % false positives of the others: what the inside tells at best"),
    );
    rows.push(row("black box: false negatives of the late", "%").goal(Check::AtMost(20.0)));
    rows.push(row("black box: false positives of the others", "%").goal(Check::AtMost(1.0)));
    rows.push(row("black box: false negatives of the late, limit chosen in hindsight", "%"));
    rows.push(row("black box: inaccuracy", "%"));
    rows.push(row("black box: calibration error of the forecast", "%"));
    rows
}

impl Experiment for FlashAccuracy {
    fn id(&self) -> &'static str {
        "MT-E13-SSD"
    }
    fn title(&self) -> &'static str {
        "Accuracy of MittSSD's and the black-box predictor's forecasts on recorded traces"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.6, Fig 9"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn files(&self) -> Vec<&'static str> {
        traces::RECORDED.iter().map(|r| r.0).collect()
    }
    fn takes_traces(&self) -> bool {
        true
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "as MT-E13, 128 times as fast (or less, by powers of two, until half of the reads find their chip all but free), on modelled \
             flash of 128 chips, shrunk to 8 GiB and overwritten once at random, which differs by ±15 % per component from the one \
             that was profiled"
                .into(),
            "black box: the same drive with its inside hidden; learns online from the first read on; judged on the second half".into(),
        ]
    }
    fn rows(&self, inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows: Vec<RowSpec> = traces::cases(inputs).iter().flat_map(|c| trace_rows(&c.name)).collect();
        rows.push(
            RowSpec::new("traces with an inaccuracy of at most 0.8 %", "1")
                .note("has traces without late reads, which nothing can be wrong about: not judged"),
        );
        let right = RowSpec::new("traces with late reads and an inaccuracy of at most 0.8 %", "1").derived();
        rows.push(right.paper_says(Check::AtLeast(5.0), ONLY).note("the paper has five traces"));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let spec = FlashSpec::by_name(DEVICE).map_err(|e| LabError(e.to_string()))?;
        let profile = flash_profile_of(&spec, BYTES).map_err(|e| LabError(e.to_string()))?.flash.expect("measured");
        let drive = Drive::of(seed)?;
        let mut values = Vec::new();
        let (mut good, mut good_of_late) = (0u32, 0u32);
        for case in traces::cases(inputs) {
            if !case.file.is_file() && inputs.traces.is_empty() {
                values.extend(std::iter::repeat_n(None, trace_rows(&case.name).len()));
                continue;
            }
            let length = inputs.length(100_000, 20_000, 1_000);
            let whole = traces::stretch(&case, length)?;
            let speed = self.speed(&case, length, &whole, &profile)?;
            let records = traces::from_a_start(&traces::at_speed(&whole, speed), seed);
            let first = values.len();
            fill(&records, &profile, &drive, &mut values)?;
            let is_right = values[first + 4].is_some_and(|v| v <= 0.8);
            good += u32::from(is_right);
            good_of_late += u32::from(is_right && values[first + 1].is_some_and(|v| v > 0.0));
        }
        let has_any = !values.iter().all(Option::is_none);
        values.extend([good, good_of_late].map(|n| has_any.then_some(f64::from(n))));
        Ok(Sample { values, plots: vec![], notes: vec![] })
    }
}

impl FlashAccuracy {
    fn speed(
        &self,
        case: &traces::Case,
        length: usize,
        whole: &[TraceRecord],
        profile: &FlashProfile,
    ) -> Result<i32, LabError> {
        // Held while it is looked for: seeds that run side by side begin with the same trace.
        let mut speeds = self.speeds.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (case.file.clone(), length);
        if let Some(known) = speeds.get(&key) {
            return Ok(*known);
        }
        let found = flash_speed(whole, profile)?;
        speeds.insert(key, found);
        Ok(found)
    }
}

/// Returns the paper's speed, or the fastest slower one, by powers of two, at which half of the reads still find their chip all but
/// free: the shrunk drive collects more garbage than the paper's.
fn flash_speed(whole: &[TraceRecord], profile: &FlashProfile) -> Result<i32, LabError> {
    let fastest = traces::speed_for_disk(whole, &DeviceChoice::named(DISK)?)? + FASTER_LOG2;
    let free = Span::from_nanos((profile.read_us * 2e3) as u64);
    let drive = Drive::of(1)?;
    for speed in (fastest - 2 * FASTER_LOG2..=fastest).rev() {
        let records = traces::at_speed(whole, speed);
        let mut reads = replay(&records, Predictor::Visible(profile, SsdPrecision::FULL), &drive, None)?;
        reads.sort_by_key(|r| r.done_at.since(r.arrived_at));
        let median = reads.get(reads.len() / 2).map_or(Span::ZERO, |r| r.done_at.since(r.arrived_at));
        if median <= free {
            return Ok(speed);
        }
    }
    Ok(fastest - 2 * FASTER_LOG2)
}

fn fill(
    records: &[TraceRecord],
    profile: &FlashProfile,
    drive: &Drive,
    values: &mut Vec<Option<f64>>,
) -> Result<(), LabError> {
    let middle = traces::middle(records);
    let full = Predictor::Visible(profile, SsdPrecision::FULL);
    let deadline = p95(&replay(records, full, drive, None)?, middle);
    let run = |p| replay(records, p, drive, Some(deadline));
    let judge = |p| Ok::<_, LabError>(Verdict::of(from(&run(p)?, middle), deadline));
    let all = run(full)?;
    let judged = from(&all, middle);
    let v = Verdict::of(judged, deadline);
    values.extend([
        Some(deadline.as_millis_f64()),
        Some(v.late_percent()),
        Some(v.percent(v.false_positives)),
        Some(v.percent(v.false_negatives)),
        v.inaccuracy(),
        v.wrong_by_ms(),
        calibration_percent(judged),
    ]);
    for (_, precision) in ABLATIONS {
        values.push(judge(Predictor::Visible(profile, precision))?.inaccuracy());
    }
    values.extend([v.missed_percent(), v.needless_percent(), missed_in_hindsight(judged, deadline, NEEDLESS)]);
    let all = run(Predictor::Hidden)?;
    let hidden = from(&all, middle);
    let v = Verdict::of(hidden, deadline);
    values.extend([v.missed_percent(), v.needless_percent(), missed_in_hindsight(hidden, deadline, NEEDLESS)]);
    values.extend([v.inaccuracy(), calibration_percent(hidden)]);
    Ok(())
}
