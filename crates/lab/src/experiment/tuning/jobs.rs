//! OT-E9 and OT-E11: MapReduce.
//!
//! As in §5.4.1, what is profiled are the workload's first three hours, and what was chosen is tried on its last three: other jobs,
//! another load. A period is ten minutes of five epochs.

use super::rows::{IDENTITY, Trial, between, fill_single_point, shown, single_point};
use super::{EPOCHS, Profiled, objective, profiled, told};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::system::map_reduce::{self, Cluster, HALF, Job};
use plimsoll_base::Span;
use plimsoll_tune::adapter::{Adapter, requests};
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::profile::times;
use plimsoll_tune::run::{Levels, Memory};
use plimsoll_tune::solve::{Mix, solve};
use plimsoll_tune::space::Setting;

const SWIM: &str = "mapreduce/FB-2009_samples_24_times_1hr_0.tsv.gz";
/// An accounting period (§5.2.1).
pub(super) const PERIOD: Span = Span::from_secs(600);
/// Periods in three hours.
const PERIODS: u32 = 18;

fn jobs(seed: u64, inputs: &Inputs) -> Result<Vec<Job>, LabError> {
    match inputs.file(SWIM) {
        Some(file) => map_reduce::swim(&file, seed).map_err(LabError),
        None => Ok(map_reduce::generated(seed)),
    }
}

/// A cluster whose work is what is profiled, again and again.
fn to_profile(seed: u64, inputs: &Inputs) -> Result<Cluster, LabError> {
    Ok(Cluster::new(map_reduce::halves(jobs(seed, inputs)?).0, seed))
}

/// A cluster whose work is what is tried.
pub(super) fn to_try(seed: u64, inputs: &Inputs) -> Result<Cluster, LabError> {
    Ok(Cluster::new(map_reduce::halves(jobs(seed, inputs)?).1, seed + 1_000))
}

/// Times that the three hours are gone through.
fn passes(inputs: &Inputs) -> u32 {
    inputs.length(8, 2, 1)
}

/// Returns the number of periods in which a mix is tried.
pub(super) fn periods(inputs: &Inputs) -> u32 {
    passes(inputs) * PERIODS
}

/// The cluster, profiled at one load level or at all together.
pub(super) fn mr_profile(seed: u64, inputs: &Inputs, level: Option<usize>) -> Result<Profiled, LabError> {
    // A level's jobs are few: it takes many rounds of the workload to see enough of them under each setting.
    let rounds = if level.is_some() { 6 } else { 1 };
    let mut c = to_profile(seed, inputs)?;
    c.report_level(level);
    let time = HALF * u64::from(passes(inputs) * rounds);
    profiled(&mut c, map_reduce::graph(), map_reduce::space(), Span::from_secs(3_600), time)
}

/// OT-E11.
pub struct MapReduce;

/// Average, median, p90 and p99 of Table A.2's rows, in seconds. (Its caption says web server: OT-A6.)
const TABLE_A_2: [[f64; 4]; 4] = [
    [2412.0, 2079.0, 4792.0, 8756.0],
    [2923.0, 1926.0, 7864.0, 9188.0],
    [2578.0, 2103.0, 4284.0, 8996.0],
    [3360.0, 3924.0, 4807.0, 6993.0],
];

const MR_NOTE: &str = "every eighth job of a day of SWIM's Facebook trace of 2009, squeezed into six hours on 40 map and 10 reduce slots; \
                       sizes are mapped by rank onto the paper's ranges (generated jobs where the trace isn't there); profiled on the \
                       first three hours and tried on the last three, as in the paper, in periods of ten minutes of five epochs";

impl Experiment for MapReduce {
    fn id(&self) -> &'static str {
        "OT-E11"
    }
    fn title(&self) -> &'static str {
        "MapReduce: single points and bounds"
    }
    fn source(&self) -> &'static str {
        "OpTune Table A.2, Fig. A.3"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn files(&self) -> Vec<&'static str> {
        vec![SWIM]
    }
    fn notes(&self) -> Vec<String> {
        vec![
            MR_NOTE.into(),
            "phases are the components; the product of the tasks' CDFs, as in the paper, has a row".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = single_point(TABLE_A_2, "s");
        rows.push(RowSpec::new("p99 under the tighter bound on the median over the looser", "1").note(IDENTITY));
        rows.push(RowSpec::new("KS of predicted and recorded, composed of tasks as in the paper", "1"));
        rows.push(RowSpec::new("KS of predicted and recorded, composed of phases", "1").goal(Check::AtMost(0.03)));
        rows.push(
            RowSpec::new("KS of the first and the last three hours, first come first served", "1")
                .note("what a prediction from the one for the other is off by, whatever is predicted"),
        );
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let p = mr_profile(seed, inputs, None)?;
        let mut fresh = || Ok(Box::new(to_try(seed, inputs)?) as Box<dyn Adapter>);
        let trial = Trial { fresh: &mut fresh, period: PERIOD, periods: periods(inputs) };
        let mut sample = fill_single_point(&p, trial, 1e3)?;
        let under = |part| p.solve(&objective("p99", &[(0.5, between(&p, 0.5, part)?)])).map(|s| s.value);
        sample.values.push(Some(under(0.3)? / under(0.7)?));
        // First come first served, nothing dropped: recorded whole, and composed in two ways.
        let first = &p.all[0].setting;
        let recorded = p.profile.of_node("job").find(|(s, _)| *s == first).expect("it was profiled").1;
        let recorded = times("job", recorded).map_err(told)?;
        let tasks = map_reduce::graph_of_tasks();
        let composer = plimsoll_tune::compose::Composer::new(&tasks, &p.space, &p.profile).map_err(told)?;
        let bins = plimsoll_tune::compose::convolve::BINS_FINE;
        let of_tasks = composer.convolved(bins).expect("nothing is declared correlated").cdf(first);
        sample.values.push(Some(of_tasks.ks(&recorded)));
        sample.values.push(Some(p.all[0].cdf.ks(&recorded)));
        let alone = p.achieved(&mut to_try(seed, inputs)?, &Mix::only(0), PERIOD, periods(inputs))?;
        sample.values.push(Some(alone.ks(&recorded)));
        Ok(sample)
    }
}

/// OT-E9.
pub struct LoadLevels;

const LEVELS: [&str; 5] = ["VERY_LOW", "LOW", "NORMAL", "HIGH", "VERY_HIGH"];

impl Experiment for LoadLevels {
    fn id(&self) -> &'static str {
        "OT-E9"
    }
    fn title(&self) -> &'static str {
        "MapReduce: a profile and an optimum for each load level"
    }
    fn source(&self) -> &'static str {
        "OpTune Fig. 5.7, §5.4.1"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn files(&self) -> Vec<&'static str> {
        vec![SWIM]
    }
    fn notes(&self) -> Vec<String> {
        vec![MR_NOTE.into(), "levels by active map tasks when a job arrives: below 5, 10, 15, 50, and more".into()]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = vec![RowSpec::new("map slots in use", "%").beside(64.0)];
        rows.push(RowSpec::new("periods of ten minutes whose level is the last one's", "%"));
        for level in LEVELS {
            rows.push(RowSpec::new(format!("{level}: least median"), "s"));
            rows.push(RowSpec::new(format!("{level}: least p99"), "s"));
        }
        rows.push(RowSpec::new("least p99, VERY_HIGH over VERY_LOW", "1").goal(Check::AtLeast(1.0)));
        for (goal, point) in [("median", "median"), ("p99", "p99")] {
            rows.push(RowSpec::new(format!("least {goal}, one plan for all: {point} achieved"), "s"));
            rows.push(RowSpec::new(format!("least {goal}, a plan for each level: {point} achieved"), "s"));
            let over = RowSpec::new(format!("least {goal}: plans for each level over one for all, achieved"), "1");
            rows.push(over.paper_says(Check::AtMost(1.0), "Fig 5.7: a plan for each level is better than one for all"));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample { values: occupancy(seed, inputs)?.map(Some).to_vec(), ..Sample::default() };
        let mut tails = Vec::new();
        let (mut medians, mut p99s) = (Memory::new(), Memory::new());
        for (level, name) in LEVELS.iter().enumerate() {
            // A level that is too rare under some setting can't be profiled there: said, not guessed.
            match mr_profile(seed, inputs, Some(level)) {
                Ok(p) => {
                    let best = |goal| solve(&p.all, EPOCHS, &objective(goal, &[])).map_err(told);
                    let (median, tail) = (best("p50")?, best("p99")?);
                    sample.notes.push(format!("{name}, in one seed, least p99: {}", shown(&p, &tail.mix)));
                    sample.values.extend([Some(median.value / 1e3), Some(tail.value / 1e3)]);
                    tails.push(Some(tail.value));
                    medians.learn(level, plan(&p, &median.mix));
                    p99s.learn(level, plan(&p, &tail.mix));
                }
                Err(e) => {
                    sample.notes.push(format!("{name}, in one seed: not enough jobs: {e}"));
                    sample.values.extend([None, None]);
                    tails.push(None);
                }
            }
        }
        sample.values.push(tails[4].zip(tails[0]).map(|(high, low)| high / low));
        let all = mr_profile(seed, inputs, None)?;
        for (goal, share, by_level) in [("p50", 0.5, medians), ("p99", 0.99, p99s)] {
            let mut one = Memory::new();
            one.learn(0, plan(&all, &all.solve(&objective(goal, &[]))?.mix));
            let (alone, had_alone) = followed(seed, inputs, one)?;
            let alone = alone.quantile(share) / 1e3;
            if by_level.predicted().is_none() {
                // No level has jobs enough under every setting.
                sample.values.extend([Some(alone), None, None]);
                continue;
            }
            let (many, had) = followed(seed, inputs, by_level)?;
            let many = many.quantile(share) / 1e3;
            sample.values.extend([Some(alone), Some(many), Some(many / alone)]);
            sample.notes.push(format!(
                "least {goal}, in one seed: periods by level with a plan for each level: {had:?}; with one plan: {had_alone:?}"
            ));
        }
        Ok(sample)
    }
}

/// Map slots in use, and how often a period's level is the last one's, in percent: over all six hours.
fn occupancy(seed: u64, inputs: &Inputs) -> Result<[f64; 2], LabError> {
    let mut c = Cluster::new(jobs(seed, inputs)?, seed);
    let levels = levels();
    let (mut busy, mut seen) = (0.0, Vec::new());
    for _ in 0..2 * PERIODS {
        c.serve(PERIOD);
        busy += c.utilisation(PERIOD) / f64::from(2 * PERIODS);
        seen.push(levels.of(c.level_seen()));
    }
    let same = seen.windows(2).filter(|w| w[0] == w[1]).count();
    Ok([100.0 * busy, 100.0 * same as f64 / (seen.len() - 1) as f64])
}

fn levels() -> Levels {
    Levels::new(map_reduce::LEVEL_BOUNDS.to_vec()).expect("ascending")
}

/// Settings with their parts of a period.
fn plan(p: &Profiled, mix: &Mix) -> Vec<(Setting, f64)> {
    mix.parts.iter().map(|&(i, share)| (p.all[i].setting.clone(), share)).collect()
}

/// Returns the times of the last three hours' jobs if each period has the plan of the level that the last one had, with
/// knowledge of one level at least. Also returns the number of periods of each level.
fn followed(
    seed: u64,
    inputs: &Inputs,
    mut memory: Memory<Vec<(Setting, f64)>>,
) -> Result<(Cdf, [u32; LEVELS.len()]), LabError> {
    let (mut c, levels, graph) = (to_try(seed, inputs)?, levels(), map_reduce::graph());
    let (mut all, mut had) = (Vec::new(), [0; LEVELS.len()]);
    // The first pass is the warm-up.
    for n in 0..PERIODS + periods(inputs) {
        let plan = memory.predicted().expect("one level is known at least").clone();
        let mut seen = Vec::new();
        for (setting, share) in plan {
            c.apply(&setting).map_err(told)?;
            let run = c.serve(Span::from_nanos((PERIOD.as_nanos() as f64 * share) as u64));
            seen.push((c.level_seen(), share));
            if n >= PERIODS && run.contains_key("job") {
                all.extend(requests(&graph, &run).map_err(told)?.iter().copied());
            }
        }
        let level = levels.of(seen.iter().map(|(level, share)| level * share).sum());
        had[level] += 1;
        memory.observed(level);
    }
    Ok((times("job", &all).map_err(told)?, had))
}
