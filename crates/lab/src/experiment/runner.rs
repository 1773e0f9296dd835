//! Runs an experiment over seeds on all cores, judges it, and remembers the result by its inputs.

use crate::experiment::stats::estimate;
use crate::experiment::{Experiment, Inputs, Kind, LabError, RowSpec, Sample, Verdict};
use crate::report::remarks;
use plimsoll_figure::plot::Plot;
use plimsoll_figure::table::{Table, Values};
use plimsoll_replay::decided;
use plimsoll_stack::sim::EventHash;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Options of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RunOptions {
    /// Seeds 1 to N at first.
    pub seeds: u64,
    /// While judged rows are undecided, seeds are added up to this one, half of `seeds` at a time.
    pub seeds_max: u64,
    /// Inputs of the experiments.
    pub inputs: Inputs,
    /// Folder of results, named by their inputs; `None`: they aren't kept.
    pub cache: Option<PathBuf>,
    /// Identity of the running program (a hash of it), as results depend on every line of it.
    pub program: String,
    /// The commit of the working directory, for the reader.
    pub commit: String,
}

/// Default number of seeds.
pub const SEEDS_DEFAULT: u64 = 10;
/// Seeds of a quick run.
pub const SEEDS_QUICK: u64 = 3;
/// By this factor a run that isn't quick may have more seeds than it was begun with.
pub const SEEDS_MORE: u64 = 2;

/// One row, filled.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RowReport {
    /// Measured quantity.
    pub name: String,
    /// Unit.
    pub unit: String,
    /// The paper's figure.
    pub paper: Option<f64>,
    /// Ours: the mean over the seeds.
    pub ours: Option<f64>,
    /// Lower end of the 95 % interval.
    pub lo: Option<f64>,
    /// Upper end.
    pub hi: Option<f64>,
    /// Seeds it rests on; 1 where nothing varies with the seed.
    pub n: usize,
    /// The statement's kind.
    pub kind: Kind,
    /// The interval's verdict; `None` without a bound or without values.
    pub verdict: Option<Verdict>,
    /// The bound.
    pub check: String,
    /// The paper's words that the bound rests on.
    pub quote: String,
    /// Hints for the reader.
    pub note: String,
}

impl RowReport {
    /// True if it was judged and met, false if missed; `None` if it is undecided, or of a kind that isn't judged.
    pub fn pass(&self) -> Option<bool> {
        if self.kind.is_judged() { self.verdict?.decided() } else { None }
    }

    /// The verdict, if rows of its kind are judged.
    pub fn judged(&self) -> Option<Verdict> {
        self.verdict.filter(|_| self.kind.is_judged())
    }

    /// True if rows of its kind are judged, and no seed gave it a value.
    pub fn is_without_value(&self) -> bool {
        self.kind.is_judged() && self.ours.is_none()
    }
}

/// An experiment's result.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExperimentReport {
    /// Id.
    pub id: String,
    /// True if every judged row has a value and is met, and there is one at least.
    pub pass: bool,
    /// Rows.
    pub rows: Vec<RowReport>,
    /// Seeds 1 to N.
    pub seeds: u64,
    /// Commit of the working directory.
    pub commit: String,
    /// Hash of the program.
    pub program: String,
    /// Modelled devices.
    pub device: String,
    /// Title.
    pub title: String,
    /// Place in the paper.
    pub source: String,
    /// True if this was a smaller run (`--quick`).
    pub quick: bool,
    /// Facts that a reader must know.
    pub notes: Vec<String>,
    /// Hash of every decision of the simulated pools and, unless figures are wall-clock time, of every figure that isn't derived,
    /// over the seeds that the run began with.
    /// Equal inputs give an equal hash until some layer, model or workload decides otherwise.
    #[serde(default)]
    pub decisions: String,
    /// Distributions under the first seed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plots: Vec<Plot>,
}

impl ExperimentReport {
    /// As JSON: `{id, pass, rows: [{name, unit, paper, ours, lo, hi, pass, kind, verdict, n}], seeds, commit, decisions, device,
    /// notes}`, a schema that scripts rely on. Other facts about a row are in a note that begins with its name.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Row<'a> {
            name: &'a str,
            unit: &'a str,
            paper: Option<f64>,
            ours: Option<f64>,
            lo: Option<f64>,
            hi: Option<f64>,
            pass: Option<bool>,
            kind: Kind,
            verdict: Option<Verdict>,
            n: usize,
        }
        #[derive(Serialize)]
        struct Report<'a> {
            id: &'a str,
            pass: bool,
            rows: Vec<Row<'a>>,
            seeds: u64,
            commit: &'a str,
            decisions: &'a str,
            device: &'a str,
            notes: Vec<String>,
        }
        fn row(r: &RowReport) -> Row<'_> {
            let &RowReport { ref name, ref unit, paper, ours, lo, hi, kind, verdict, n, .. } = r;
            Row { name, unit, paper, ours, lo, hi, pass: r.pass(), kind, verdict, n }
        }
        let mut notes = self.notes.clone();
        if self.quick {
            notes.push("a quick run: shorter, to see that it works".into());
        }
        let remarks = self.rows.iter().map(|r| (&r.name, remarks(r)));
        notes.extend(remarks.filter(|(_, text)| !text.is_empty()).map(|(name, text)| format!("{name}: {text}")));
        let report = Report {
            id: &self.id,
            pass: self.pass,
            rows: self.rows.iter().map(row).collect(),
            seeds: self.seeds,
            commit: &self.commit,
            decisions: &self.decisions,
            device: &self.device,
            notes,
        };
        serde_json::to_string_pretty(&report).expect("numbers and texts") + "\n"
    }

    /// Rows of several reports as one table.
    pub fn table(reports: &[ExperimentReport]) -> Table {
        let rows = || reports.iter().flat_map(|r| r.rows.iter().map(move |row| (r, row)));
        let text = |f: &dyn Fn(&ExperimentReport, &RowReport) -> String| {
            Values::Text(rows().map(|(r, row)| f(r, row)).collect())
        };
        let real = |f: &dyn Fn(&RowReport) -> Option<f64>| Values::Real(rows().map(|(_, row)| f(row)).collect());
        Table::new()
            .column("experiment", text(&|r, _| r.id.clone()))
            .column("row", text(&|_, row| row.name.clone()))
            .column("unit", text(&|_, row| row.unit.clone()))
            .column("paper", real(&|r| r.paper))
            .column("ours", real(&|r| r.ours))
            .column("lo", real(&|r| r.lo))
            .column("hi", real(&|r| r.hi))
            .column("n", Values::Whole(rows().map(|(_, r)| r.n as i64).collect()))
            .column("kind", text(&|_, r| r.kind.name().into()))
            .column("verdict", text(&|_, r| r.verdict.map_or(String::new(), |v| v.name().into())))
            .column("pass", text(&|_, r| r.pass().map_or(String::new(), |p| p.to_string())))
    }
}

/// Runs `experiment`, or takes its result from the cache. `progress` hears of each seed that is done.
///
/// # Errors
/// The first seed's that failed.
pub fn run(
    experiment: &dyn Experiment,
    options: &RunOptions,
    progress: &(dyn Fn() + Sync),
) -> Result<ExperimentReport, LabError> {
    let kept = options.cache.as_ref().map(|dir| dir.join(cache_name(experiment, options)));
    if let Some(report) = kept.as_deref().and_then(read_cached) {
        (0..report.seeds).for_each(|_| progress());
        // The commit may have moved on without changing the program.
        return Ok(ExperimentReport { commit: options.commit.clone(), ..report });
    }
    let one = |seed| {
        decided::take();
        let sample = experiment.sample(seed, &options.inputs);
        progress();
        sample.map(|s| (s, decided::take()))
    };
    let specs = experiment.rows(&options.inputs);
    let mut samples: Vec<Sample> = Vec::new();
    let mut decisions = Vec::new();
    let report = loop {
        let done = samples.len() as u64;
        let more = if done == 0 { options.seeds } else { options.seeds.div_ceil(2).min(options.seeds_max - done) };
        // Time is measured alone: a run on a neighbouring core slows another.
        let new: Vec<(Sample, u64)> = match experiment.is_timed() {
            true => (done + 1..=done + more).map(one).collect::<Result<_, _>>()?,
            false => (done + 1..=done + more).into_par_iter().map(one).collect::<Result<_, _>>()?,
        };
        let (new, decided): (Vec<Sample>, Vec<u64>) = new.into_iter().unzip();
        if done == 0 {
            decisions = decided;
        }
        samples.extend(new);
        let rows = judge(experiment.id(), &specs, &samples);
        let is_undecided = rows.iter().any(|r| r.judged() == Some(Verdict::Undecided));
        if !is_undecided || samples.len() as u64 >= options.seeds_max {
            break assembled(experiment, options, rows, &specs, samples, &decisions);
        }
    };
    if let Some(path) = kept {
        write_cached(&path, &report)?;
    }
    Ok(report)
}

fn judge(id: &str, specs: &[RowSpec], samples: &[Sample]) -> Vec<RowReport> {
    assert!(samples.iter().all(|s| s.values.len() == specs.len()), "{id}: a row wasn't filled");
    specs.iter().enumerate().map(|(i, spec)| row(id, spec, i, samples)).collect()
}

fn assembled(
    experiment: &dyn Experiment,
    options: &RunOptions,
    rows: Vec<RowReport>,
    specs: &[RowSpec],
    mut samples: Vec<Sample>,
    decisions: &[u64],
) -> ExperimentReport {
    let hash = hash_of(&samples[..decisions.len()], specs, decisions, experiment.is_timed());
    let mut judged = rows.iter().filter(|r| r.kind.is_judged()).map(RowReport::judged).peekable();
    let pass = judged.peek().is_some() && judged.all(|v| v == Some(Verdict::Met));
    let mut notes = experiment.notes();
    if options.inputs.data.is_none() && !experiment.files().is_empty() {
        notes.push("ran without the recorded data: rows that need it are empty".into());
    }
    for note in samples.iter().flat_map(|s| &s.notes) {
        if !notes.contains(note) {
            notes.push(note.clone());
        }
    }
    let plots = samples.first_mut().map(|s| std::mem::take(&mut s.plots)).unwrap_or_default();
    ExperimentReport {
        id: experiment.id().into(),
        pass,
        rows,
        seeds: samples.len() as u64,
        commit: options.commit.clone(),
        program: options.program.clone(),
        device: experiment.device().into(),
        title: experiment.title().into(),
        source: experiment.source().into(),
        quick: options.inputs.quick,
        notes,
        decisions: format!("{hash:016x}"),
        plots,
    }
}

/// Hash of the decisions under each seed and, unless they are wall-clock time, of the figures.
fn hash_of(samples: &[Sample], specs: &[RowSpec], decisions: &[u64], is_timed: bool) -> u64 {
    let mut hash = EventHash::default();
    for (sample, decided) in samples.iter().zip(decisions) {
        hash.note([*decided]);
        let figures = sample.values.iter().zip(specs).filter(|(_, spec)| !is_timed && !spec.is_derived);
        figures.for_each(|(v, _)| hash.note([u64::from(v.is_some()), v.map_or(0, f64::to_bits)]));
    }
    hash.value()
}

fn row(id: &str, spec: &RowSpec, i: usize, samples: &[Sample]) -> RowReport {
    let values: Vec<f64> = samples.iter().filter_map(|s| s.values[i]).collect();
    let e = estimate(&values, &format!("{id} {}", spec.name));
    let mut notes = vec![spec.note.to_string()];
    if !values.is_empty() && values.len() < samples.len() {
        notes.push(format!("{} of {} seeds have a value", values.len(), samples.len()));
    }
    if values.len() > 1 && e.is_some_and(|e| e.n == 1) {
        notes.push("n = 1: nothing varies".into());
    }
    notes.retain(|n| !n.is_empty());
    RowReport {
        name: spec.name.clone(),
        unit: spec.unit.into(),
        paper: spec.paper,
        ours: e.map(|e| e.mean),
        lo: e.map(|e| e.low),
        hi: e.map(|e| e.high),
        n: e.map_or(0, |e| e.n),
        kind: spec.kind,
        verdict: e.and_then(|e| {
            // One value has no interval.
            let known = values.len() > 1;
            spec.check.judge(e.low, e.high).map(|v| if known { v } else { Verdict::Undecided })
        }),
        check: spec.check.to_string(),
        quote: spec.quote.into(),
        note: notes.join("; "),
    }
}

/// The file that keeps this run: named by a hash of all that its result depends on.
fn cache_name(experiment: &dyn Experiment, options: &RunOptions) -> String {
    let mut h = Xxh3::new();
    h.update(options.program.as_bytes());
    h.update(
        format!(
            "{} {} {} {} {} {:?}",
            experiment.version(),
            options.seeds,
            options.seeds_max,
            options.inputs.quick,
            options.inputs.brief,
            options.inputs.switches
        )
        .as_bytes(),
    );
    let files = experiment.files().into_iter().filter_map(|f| options.inputs.file(f));
    for path in files.chain(options.inputs.traces.iter().cloned()) {
        // A file that can't be read is reported by the run itself.
        let bytes = std::fs::read(&path).unwrap_or_default();
        h.update(path.as_os_str().as_encoded_bytes());
        h.update(&xxh3_64(&bytes).to_le_bytes());
    }
    format!("{}-{:016x}.json", experiment.id(), h.digest())
}

fn read_cached(path: &Path) -> Option<ExperimentReport> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

fn write_cached(path: &Path, report: &ExperimentReport) -> Result<(), LabError> {
    let failed = |e: &dyn std::fmt::Display| LabError(format!("{}: can't keep the result: {e}", path.display()));
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|e| failed(&e))?;
    }
    let text = serde_json::to_string(report).map_err(|e| failed(&e))?;
    // Renamed into place, so that a broken-off run leaves no half result.
    let partial = path.with_extension("partial");
    std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, path)).map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Check;

    fn filled(values: &[Option<f64>]) -> RowReport {
        let spec = RowSpec::new("a row", "%").goal(Check::AtMost(1.0)).note("a note");
        let samples: Vec<Sample> = values.iter().map(|v| Sample { values: vec![*v], ..Sample::default() }).collect();
        judge("XX-E1", &[spec], &samples).remove(0)
    }

    #[test]
    fn a_row_says_how_many_seeds_gave_it_a_value() {
        let one = filled(&[None, Some(0.5), None]);
        assert_eq!((one.n, one.note.as_str()), (1, "a note; 1 of 3 seeds have a value"));
        assert_eq!(one.judged(), Some(Verdict::Undecided), "one value has no interval");
        let same = filled(&[Some(0.5); 3]);
        assert_eq!(
            (same.n, same.note.as_str(), same.judged()),
            (1, "a note; n = 1: nothing varies", Some(Verdict::Met))
        );
        let some = filled(&[Some(0.5), Some(0.5), None]);
        assert_eq!(some.note, "a note; 2 of 3 seeds have a value; n = 1: nothing varies");
        assert_eq!(filled(&[Some(0.5), Some(0.4)]).note, "a note");
        let none = filled(&[None; 3]);
        assert_eq!((none.judged(), none.is_without_value(), none.note.as_str()), (None, true, "a note"));
        assert!(!same.is_without_value());
    }

    /// One row that is met, and one that may have no value.
    struct Two(Option<f64>);

    impl Experiment for Two {
        fn id(&self) -> &'static str {
            "XX-E1"
        }
        fn title(&self) -> &'static str {
            "a test"
        }
        fn source(&self) -> &'static str {
            "nowhere"
        }
        fn device(&self) -> &'static str {
            "none"
        }
        fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
            ["a row", "another"].map(|name| RowSpec::new(name, "%").goal(Check::AtMost(1.0))).to_vec()
        }
        fn sample(&self, _: u64, _: &Inputs) -> Result<Sample, LabError> {
            Ok(Sample { values: vec![Some(0.5), self.0], ..Sample::default() })
        }
    }

    #[test]
    fn an_experiment_with_a_judged_row_without_a_value_does_not_pass() {
        let passes = |second| {
            let options = RunOptions {
                seeds: 2,
                seeds_max: 2,
                inputs: Inputs::default(),
                cache: None,
                program: "test".into(),
                commit: "test".into(),
            };
            run(&Two(second), &options, &|| {}).expect("it runs").pass
        };
        assert_eq!([Some(0.5), Some(2.0), None].map(passes), [true, false, false]);
    }
}
