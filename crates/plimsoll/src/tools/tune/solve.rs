//! `plimsoll tune solve`.

use super::live::with_system;
use super::show::{Choice, bar};
use super::{load, write_plot};
use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use plimsoll_base::Rng;
use plimsoll_tune::adapter::{AdapterError, Guarded, requests};
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::compose::Composer;
use plimsoll_tune::confirm::{Unconfirmed, confirmed};
use plimsoll_tune::file::TuneFile;
use plimsoll_tune::objective::{self, Bound, Goal, Objective};
use plimsoll_tune::predict::{How, add_settling, candidates};
use plimsoll_tune::profile::{Profile, times};
use plimsoll_tune::record;
use plimsoll_tune::solve::baseline::{Found, Grid};
use plimsoll_tune::solve::{Candidate, Epochs, Mix, Solution, Unsolved, best_static, solve};
use plimsoll_tune::space::Setting;
use std::path::{Path, PathBuf};

/// Find the settings, and for how many epochs each, that meet an objective best.
#[derive(Args)]
#[command(after_help = "Objectives: mean, p50, p99.9, or a sum such as '2*p50 + 0.5*p99'. A target CDF is a file of \
    `percent,ms` lines.\n\nExamples:\n  plimsoll tune solve web.toml --profile web.parquet --minimise p99 --bound 'p50 <= 10ms'\n  \
    plimsoll tune solve web.toml --profile web.parquet --target cdf.csv --plot cdf.svg\n  \
    plimsoll tune solve web.toml --profile web.parquet --minimise p99 --what-if 'p50 <= 5ms' --what-if 'p50 <= 20ms'")]
pub struct Solve {
    /// The tune file.
    file: PathBuf,
    /// The profile, as `tune profile` wrote it or anybody else.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    #[command(flatten)]
    wanted: Wanted,
    /// Epochs of a period instead of the tune file's; `any` for any shares.
    #[arg(long, value_name = "N|any", value_parser = epochs)]
    epochs: Option<Epochs>,
    /// Method of solving; all but `exact` are OpTune's, to compare with.
    #[arg(long, value_enum, default_value = "exact")]
    method: Method,
    /// Compose by drawing requests with this seed instead of by convolution.
    #[arg(long, value_name = "SEED")]
    sampled: Option<u64>,
    /// Also solve with this bound added; repeat it to compare several.
    #[arg(long, value_name = "BOUND")]
    what_if: Vec<Bound>,
    /// Measure the chosen settings N times again, and choose again, until all chosen ones were measured again.
    ///
    /// Use it where whole measurements are off: without it, the luckiest measurement would be chosen.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100),
          conflicts_with_all = ["what_if", "method"])]
    confirm: Option<u32>,
    /// The setting that the system has now and is put back to: NAME=VALUE, once for each parameter.
    #[arg(long, value_name = "NAME=VALUE", requires = "confirm")]
    current: Vec<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    /// Write target and predicted CDFs as an SVG plot: with --what-if of each answer, and if bounds can't be kept, the nearest.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// An objective on the command line; it replaces the tune file's.
#[derive(Args)]
pub struct Wanted {
    /// Goal to minimise.
    #[arg(long, value_name = "GOAL", conflicts_with = "target")]
    minimise: Option<Goal>,
    /// A target CDF: a file of `percent,ms` lines.
    #[arg(long, value_name = "FILE")]
    target: Option<PathBuf>,
    /// Bound to keep: 'p50 <= 10ms'; may be repeated.
    #[arg(long, value_name = "BOUND")]
    bound: Vec<Bound>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Method {
    /// Linear and integer programs, with a proof.
    Exact,
    /// Complete search over all mixes of epochs.
    Brute,
    /// Simulated annealing, 200,000 steps.
    Anneal,
    /// 200,000 mixes at random.
    Random,
}

/// Steps of the searches that have no end of their own.
const STEPS: u64 = 200_000;
/// Mixes that complete search looks at before it gives up.
const BRUTE_MAX: u64 = 50_000_000;
/// Times of the searches' grid.
const GRID_POINTS: usize = 2_000;

fn epochs(text: &str) -> Result<Epochs, String> {
    if text == "any" {
        return Ok(Epochs::Any);
    }
    let n = text.parse::<u32>().ok().filter(|n| (1..=plimsoll_tune::solve::EPOCHS_MAX).contains(n));
    n.map(Epochs::Count).ok_or_else(|| "a whole number from 1 to 100000, or `any`".into())
}

impl Wanted {
    /// The objective: of the command line if it has one, else of the file.
    pub fn objective(&self, f: &TuneFile, file: &Path) -> Result<Objective> {
        let goal = match (&self.minimise, &self.target) {
            (Some(g), _) => Some(g.clone()),
            (None, Some(path)) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                Some(Goal::Target(objective::target(&text).map_err(|e| anyhow!("{}:{e}", path.display()))?))
            }
            (None, None) => None,
        };
        match (goal, &f.objective) {
            (Some(goal), _) => Ok(Objective { goal, bounds: self.bound.clone() }),
            (None, Some(o)) => {
                let bounds = if self.bound.is_empty() { o.bounds.clone() } else { self.bound.clone() };
                Ok(Objective { goal: o.goal.clone(), bounds })
            }
            (None, None) => bail!("{}: it has no [objective]: say --minimise or --target", file.display()),
        }
    }
}

/// Composes all settings of a tune file from a profile.
pub fn compose(f: &TuneFile, profile: &Profile, epochs: Epochs, sampled: Option<u64>) -> Result<Vec<Candidate>> {
    let composer = Composer::new(&f.graph, &f.space, profile).map_err(|e| anyhow!(e))?;
    let how = sampled.map_or(How::Convolved, How::Sampled);
    let bar = bar(f.space.len() as u64, "composing");
    let mut all = candidates(&composer, &f.space, how, &|n| bar.inc(n as u64));
    bar.finish_and_clear();
    if let Epochs::Count(n) = epochs {
        let period = f.epoch.as_nanos() as f64 * f64::from(n);
        add_settling(&mut all, profile, f.settle.as_nanos() as f64 / period).map_err(|e| anyhow!(e))?;
    }
    Ok(all)
}

impl Solve {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let f = load(&self.file)?;
        let objective = self.wanted.objective(&f, &self.file)?;
        let profile = record::read(&self.profile, &f.space).map_err(|e| anyhow!(e))?;
        let epochs = self.epochs.unwrap_or(f.epochs);
        let mut all = compose(&f, &profile, epochs, self.sampled)?;
        if !self.what_if.is_empty() {
            return self.what_if(&f, &all, epochs, &objective);
        }
        let found = match self.confirm {
            None => self.solved(&all, epochs, &objective),
            Some(repeats) => with_system(&f, &self.file, &self.current, |guarded| {
                confirm(&f, guarded, &mut all, epochs, &objective, repeats)
            })?,
        };
        let choice = Choice { space: &f.space, candidates: &all, epochs, objective: &objective };
        let title = format!("{}: {}", self.file.display(), objective.goal);
        if let (Some(file), Err(Unsolved::Infeasible(why))) = (&self.plot, &found) {
            let nearest = why.nearest.cdf(&all);
            write_plot(file, &choice.compared(&title, &[("nearest that can be had", &nearest)]))?;
        }
        let s = found.map_err(|e| anyhow!(choice.refusal(&e)))?;
        choice.beyond_reach(&s.mix).iter().for_each(|w| eprintln!("warning: {w}"));
        if let Some(file) = &self.plot {
            let alone = s.best_static.map(|(i, _)| &all[i].cdf);
            let more: Vec<(&str, &Cdf)> = alone.into_iter().map(|c| ("best single setting, predicted", c)).collect();
            write_plot(file, &choice.plot(&title, &s.mix, &more))?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&choice.json(&s))?);
        } else {
            print!("{}", choice.table(&s));
            println!("{}", choice.verdict(&s));
        }
        Ok(())
    }

    fn solved(&self, all: &[Candidate], epochs: Epochs, objective: &Objective) -> Result<Solution, Unsolved> {
        if self.method == Method::Exact {
            return solve(all, epochs, objective);
        }
        let Epochs::Count(n) = epochs else { return Err(Unsolved::Empty("searches need a number of epochs")) };
        let grid = Grid::new(all, objective, GRID_POINTS);
        let bar = bar(STEPS, "searching");
        let mut watch = |n: u64, _: Option<f64>| {
            bar.set_position(n);
            n < BRUTE_MAX
        };
        let mut rng = Rng::new(1, "search");
        let found: Found = match self.method {
            Method::Brute => grid.brute_force(n as usize, &mut watch),
            Method::Anneal => grid.anneal(n as usize, STEPS, &mut rng, &mut watch),
            _ => grid.random(n as usize, STEPS, &mut rng, &mut watch),
        };
        bar.finish_and_clear();
        let (mix, _) = found.best.ok_or(Unsolved::Empty("the search met no mix that keeps the bounds"))?;
        if !mix.keeps(all, objective) {
            return Err(Unsolved::Empty(
                "the search's grid of times is too coarse for these bounds: what it found misses them",
            ));
        }
        let value = mix.value(all, &objective.goal);
        let bound = if found.is_complete && grid.is_exact() { value } else { 0.0 };
        Ok(Solution { mix, value, bound, programs: 0, best_static: best_static(all, objective) })
    }

    /// One line for each bound added: what it would cost.
    fn what_if(&self, f: &TuneFile, all: &[Candidate], epochs: Epochs, objective: &Objective) -> Result<()> {
        let mut rows = Vec::new();
        let mut answers = Vec::new();
        let mut cdfs: Vec<(String, Cdf)> = Vec::new();
        for added in std::iter::once(None).chain(self.what_if.iter().map(Some)) {
            let mut o = objective.clone();
            o.bounds.extend(added);
            let choice = Choice { space: &f.space, candidates: all, epochs, objective: &o };
            let name = added.map_or("as it is".to_string(), ToString::to_string);
            match self.solved(all, epochs, &o) {
                Ok(s) => {
                    let settings: Vec<String> =
                        s.mix.parts.iter().map(|&(i, _)| f.space.shown(&all[i].setting)).collect();
                    rows.push(vec![name.clone(), format!("{:.3}", s.value), settings.join(" | ")]);
                    answers.push(serde_json::json!({ "what_if": name, "answer": choice.json(&s) }));
                    cdfs.push((name, s.mix.cdf(all)));
                }
                Err(e) => {
                    rows.push(vec![name.clone(), "-".into(), e.to_string()]);
                    answers.push(serde_json::json!({ "what_if": name, "infeasible": e.to_string() }));
                    if let Unsolved::Infeasible(why) = e {
                        cdfs.push((format!("nearest to {name}"), why.nearest.cdf(all)));
                    }
                }
            }
        }
        if let Some(file) = &self.plot {
            let choice = Choice { space: &f.space, candidates: all, epochs, objective };
            let all: Vec<(&str, &Cdf)> = cdfs.iter().map(|(name, cdf)| (name.as_str(), cdf)).collect();
            write_plot(file, &choice.compared(&format!("{}: what if", self.file.display()), &all))?;
        }
        if self.json {
            println!("{}", serde_json::to_string_pretty(&answers)?);
        } else {
            print!("{}", crate::table::table(&["WHAT IF", &objective.goal.to_string(), "SETTINGS"], &rows));
        }
        Ok(())
    }
}

/// Solves, measuring what is chosen anew; the system is then put back. The outer error is the adapter's.
pub fn confirm(
    f: &TuneFile,
    guarded: &mut Guarded<'_>,
    all: &mut [Candidate],
    epochs: Epochs,
    objective: &Objective,
    repeats: u32,
) -> Result<Result<Solution, Unsolved>> {
    let lengths = f.lengths();
    let bar = bar(all.len() as u64, "measuring what is chosen");
    let found = guarded.experiment(|guarded| {
        let mut measure = |setting: &Setting| {
            let run = guarded.try_out(setting, &lengths)?.1;
            bar.inc(1);
            let root = &f.graph.nodes()[f.graph.root()].name;
            times(root, requests(&f.graph, &run)?).map_err(|e| AdapterError(e.to_string()))
        };
        match confirmed(all, epochs, objective, repeats, &mut measure) {
            Ok((s, anew)) => {
                eprintln!("{anew} settings were chosen at some time, and measured {repeats} times anew");
                Ok(Ok(s))
            }
            Err(Unconfirmed::Unsolved(e)) => Ok(Err(e)),
            Err(Unconfirmed::Measuring(e)) => Err(e),
        }
    });
    bar.finish_and_clear();
    found.map_err(|e| anyhow!(e))
}

/// The best mix, or the refusal as an error.
pub fn best(f: &TuneFile, all: &[Candidate], objective: &Objective) -> Result<Mix> {
    let choice = Choice { space: &f.space, candidates: all, epochs: f.epochs, objective };
    let mix = solve(all, f.epochs, objective).map(|s| s.mix).map_err(|e| anyhow!(choice.refusal(&e)))?;
    choice.beyond_reach(&mix).iter().for_each(|w| eprintln!("warning: {w}"));
    Ok(mix)
}
