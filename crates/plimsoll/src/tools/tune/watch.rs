//! `plimsoll tune run`.

use super::live::with_system;
use super::profile::recorded;
use super::show::{Choice, bar};
use super::solve::{Wanted, best, compose, confirm};
use super::{load, write_plot};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use plimsoll_tune::adapter::Guarded;
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::file::TuneFile;
use plimsoll_tune::objective::Objective;
use plimsoll_tune::profile::Profile;
use plimsoll_tune::record;
use plimsoll_tune::run::{Backoff, Beyond, Levels, Memory, Period, Plan, period, warm};
use plimsoll_tune::solve::{Candidate, Mix};
use std::path::PathBuf;

/// Apply what was found epoch by epoch, compare what is observed with what was expected, and tune anew when they part.
#[derive(Args)]
#[command(
    after_help = "A period is compared with what was expected as a whole (Kolmogorov and Smirnov), and at each percentile of goal and \
    bounds: twice as many requests beyond its time as there may be (`tail`) are an alarm, if chance doesn't explain them.\n\nWhen a command of \
    the adapter fails or hangs, or a signal ends the run, the system is put back to the last setting that worked; status 1, or 130 after a \
    signal.\n\nExamples:\n  plimsoll tune run web.toml --profile web.parquet --periods 6\n  \
    plimsoll tune run web.toml --profile web.parquet --retune --remember profiles --levels 100,1000"
)]
pub struct Run {
    /// The tune file.
    file: PathBuf,
    /// The profile.
    #[arg(long, value_name = "FILE")]
    profile: PathBuf,
    #[command(flatten)]
    wanted: Wanted,
    /// Periods to run; without: until interrupted.
    #[arg(long, value_name = "N")]
    periods: Option<u64>,
    /// On an alarm, profile and solve anew instead of ending with status 1.
    #[arg(long)]
    retune: bool,
    /// Measure the chosen settings N times again before using them, as `plimsoll tune solve --confirm`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    confirm: Option<u32>,
    /// Keep profiles per load level in this folder, and use those that are there.
    #[arg(long, value_name = "DIR", requires = "levels")]
    remember: Option<PathBuf>,
    /// Bounds of the load levels, in requests a second.
    #[arg(long, value_name = "R,R…", value_delimiter = ',', value_parser = rate)]
    levels: Vec<f64>,
    /// The setting that the system has now: NAME=VALUE, once for each parameter.
    #[arg(long, value_name = "NAME=VALUE")]
    current: Vec<String>,
    /// Print each period as one line of JSON.
    #[arg(long)]
    json: bool,
    /// Write target, predicted and achieved CDFs of the last period as an SVG plot.
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

/// Profile and plan of one load level.
struct Tuned {
    all: Vec<Candidate>,
    mix: Mix,
    plan: Plan,
}

impl Tuned {
    fn new(f: &TuneFile, profile: &Profile, objective: &Objective) -> Result<Tuned> {
        let all = compose(f, profile, f.epochs, None)?;
        let mix = best(f, &all, objective)?;
        Ok(Tuned::of(f, all, mix, objective))
    }

    /// The same, with what is chosen measured anew.
    fn confirmed(
        f: &TuneFile,
        profile: &Profile,
        objective: &Objective,
        (guarded, repeats): (&mut Guarded<'_>, u32),
    ) -> Result<Tuned> {
        let mut all = compose(f, profile, f.epochs, None)?;
        let found = confirm(f, guarded, &mut all, f.epochs, objective, repeats)?;
        let choice = Choice { space: &f.space, candidates: &all, epochs: f.epochs, objective };
        let mix = found.map_err(|e| anyhow!(choice.refusal(&e)))?.mix;
        Ok(Tuned::of(f, all, mix, objective))
    }

    fn of(f: &TuneFile, all: Vec<Candidate>, mix: Mix, objective: &Objective) -> Tuned {
        let plan = Plan::of(&mix, &all, f.epochs, objective);
        Tuned { all, mix, plan }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.trim().parse::<f64>().ok().filter(|r| r.is_finite() && *r > 0.0);
    rate.ok_or_else(|| "requests a second: a number above 0".into())
}

impl Run {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let f = load(&self.file)?;
        let objective = self.wanted.objective(&f, &self.file)?;
        let levels = Levels::new(self.levels.clone()).context("--levels must ascend")?;
        let first = record::read(&self.profile, &f.space).map_err(|e| anyhow!(e))?;
        let mut memory = self.remembered(&f, &objective, &levels)?;
        with_system(&f, &self.file, &self.current, |guarded| {
            if memory.at(0).is_none() {
                memory.learn(0, self.tuned(&f, &first, &objective, guarded)?);
            }
            self.watch(&f, &objective, &levels, (guarded, &mut memory))
        })
    }

    fn watch(
        &self,
        f: &TuneFile,
        objective: &Objective,
        levels: &Levels,
        (guarded, memory): (&mut Guarded<'_>, &mut Memory<Tuned>),
    ) -> Result<()> {
        let (mut backoff, mut is_cold) = (Backoff::default(), true);
        for n in (1..).take_while(|&n| self.periods.is_none_or(|p| n <= p)) {
            let tuned = memory.predicted().expect("one is known from the start");
            if std::mem::take(&mut is_cold) {
                warm(guarded, &tuned.plan, &f.lengths()).map_err(|e| anyhow!(e))?;
            }
            let (epochs, ran) = self.period(n, f, objective, tuned, guarded)?;
            let had = tuned.plan.clone();
            let level = levels.of(ran.requests / (f.epoch.as_nanos() as f64 / 1e9 * f64::from(epochs)));
            memory.observed(level);
            let Some(alarm) = ran.alarm() else {
                backoff.quiet();
                continue;
            };
            let what = format!("period {n}: {alarm}");
            if memory.at(level).is_some_and(|known| known.plan != had) {
                eprintln!("{what}: load level {level}, which is known");
                continue;
            }
            if !self.retune {
                bail!("{what}: the system is not the one that was profiled; --retune tunes anew");
            }
            if let Err(then) = backoff.may(n) {
                eprintln!("{what}: tuning anew didn't help; again after period {then}");
                continue;
            }
            eprintln!("{what}: tuning anew for load level {level}");
            let profile = recorded(f, guarded).map_err(|e| anyhow!(e))?.0;
            if let Some(dir) = &self.remember {
                let path = dir.join(format!("level-{level}.parquet"));
                record::write(&path, &f.space, &profile).map_err(|e| anyhow!(e))?;
            }
            memory.learn(level, self.tuned(f, &profile, objective, guarded)?);
            backoff.tuned(n);
            is_cold = true;
        }
        Ok(())
    }

    /// Runs one period and reports it; with its number of epochs.
    fn period(
        &self,
        n: u64,
        f: &TuneFile,
        objective: &Objective,
        tuned: &Tuned,
        guarded: &mut Guarded<'_>,
    ) -> Result<(u32, Period)> {
        let epochs: u32 = tuned.plan.parts.iter().map(|p| p.1).sum();
        let bar = bar(u64::from(epochs), &format!("period {n}"));
        let ran = period(guarded, &f.graph, &tuned.plan, &f.watch(), &mut |_| bar.inc(1));
        bar.finish_and_clear();
        let ran = ran.map_err(|e| anyhow!(e))?;
        self.report(n, f, objective, tuned, &ran)?;
        Ok((epochs, ran))
    }

    fn tuned(
        &self,
        f: &TuneFile,
        profile: &Profile,
        objective: &Objective,
        guarded: &mut Guarded<'_>,
    ) -> Result<Tuned> {
        match self.confirm {
            None => Tuned::new(f, profile, objective),
            Some(repeats) => Tuned::confirmed(f, profile, objective, (guarded, repeats)),
        }
    }

    fn remembered(&self, f: &TuneFile, objective: &Objective, levels: &Levels) -> Result<Memory<Tuned>> {
        let mut memory = Memory::new();
        let Some(dir) = &self.remember else { return Ok(memory) };
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for level in 0..levels.count() {
            let path = dir.join(format!("level-{level}.parquet"));
            if path.is_file() {
                let profile = record::read(&path, &f.space).map_err(|e| anyhow!(e))?;
                memory.learn(level, Tuned::new(f, &profile, objective)?);
            }
        }
        Ok(memory)
    }

    fn report(&self, n: u64, f: &TuneFile, objective: &Objective, tuned: &Tuned, ran: &Period) -> Result<()> {
        let choice = Choice { space: &f.space, candidates: &tuned.all, epochs: f.epochs, objective };
        let value = |cdf: &Cdf| [0.5, 0.9, 0.99].map(|s| cdf.quantile(s));
        let (seen, expected) = (value(&ran.observed), value(&tuned.plan.expected));
        let beyond = |b: &Beyond| {
            serde_json::json!({ "percentile": 100.0 * b.share, "within_ms": b.within_ms, "beyond": b.seen,
                "beyond_expected": 1.0 - b.share, "chance": b.chance, "alarm": b.is_alarming })
        };
        if self.json {
            println!(
                "{}",
                serde_json::json!({ "period": n, "requests": ran.requests, "ks": ran.ks, "alarm_above": ran.limit, "alarm": ran.is_alarming(),
                    "asked_for": ran.beyond.iter().map(beyond).collect::<Vec<_>>(),
                    "observed_ms": { "p50": seen[0], "p90": seen[1], "p99": seen[2] },
                    "expected_ms": { "p50": expected[0], "p90": expected[1], "p99": expected[2] } })
            );
        } else {
            println!(
                "period {n}: {} requests, KS {:.3} (alarm above {:.3}); p50 {:.3} (expected {:.3}), p90 {:.3} ({:.3}), p99 {:.3} ms ({:.3})",
                ran.requests, ran.ks, ran.limit, seen[0], expected[0], seen[1], expected[1], seen[2], expected[2]
            );
        }
        match &self.plot {
            Some(file) => {
                let title = format!("{}: {}, period {n}", self.file.display(), objective.goal);
                write_plot(file, &choice.plot(&title, &tuned.mix, &[("achieved", &ran.observed)]))
            }
            None => Ok(()),
        }
    }
}
