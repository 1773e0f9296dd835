//! `plimsoll lab evidence` and `plimsoll lab pages`.

use super::{chosen, commit, known_id, program_hash};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_lab::evidence::audit::Audit;
use plimsoll_lab::evidence::misses::Misses;
use plimsoll_lab::evidence::{Evidence, Plan, pages};
use plimsoll_lab::experiment::runner::{SEEDS_DEFAULT, SEEDS_MORE};
use plimsoll_lab::experiment::{self, Inputs, RunOptions, Verdict, data_folder};
use plimsoll_lab::report::Machine;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Run every experiment on a clean commit and keep each result in a file.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll lab evidence --results results")]
pub struct Run {
    /// The experiments; all if none is named.
    #[arg(value_parser = known_id)]
    ids: Vec<String>,
    /// Seeds 1 to N at first.
    #[arg(long, value_name = "N", default_value_t = SEEDS_DEFAULT, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    seeds: u64,
    /// Add seeds up to N while judged rows are undecided [default: twice --seeds].
    #[arg(long, value_name = "N")]
    seeds_max: Option<u64>,
    /// Shorter runs: to see that it works, not for figures.
    #[arg(long)]
    quick: bool,
    /// The folder of recorded data [default: ../shared/data where it exists].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The folder of results.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
}

impl Run {
    pub fn run(&self) -> Result<()> {
        let plan = Plan {
            seeds: self.seeds,
            seeds_max: self.seeds_max.unwrap_or(self.seeds * SEEDS_MORE).max(self.seeds),
            quick: self.quick,
        };
        let (program, data) = (program_hash()?, data_folder(self.data.as_deref()));
        if data.is_none() {
            bail!("the recorded data aren't there: name their folder with --data; without them rows would be empty");
        }
        refuse_changes()?;
        let experiments = chosen(&self.ids);
        let mut todo = Vec::new();
        for e in &experiments {
            let known = Evidence::read(&self.results, e.id())?;
            if !known.as_ref().is_some_and(|k| k.is_of(&program, &plan)) {
                // A result of another program still tells how long it takes.
                todo.push((e.as_ref(), known.map(|k| k.duration_s)));
            }
        }
        println!("{} experiments, {} of them to be run", experiments.len(), todo.len());
        let begun = Instant::now();
        let mut known_s = 0.0;
        for (i, (e, expected)) in todo.iter().enumerate() {
            let inputs = Inputs { data: data.clone(), quick: self.quick, ..Inputs::default() };
            let options = RunOptions {
                seeds: plan.seeds,
                seeds_max: plan.seeds_max,
                inputs,
                cache: None,
                program: program.clone(),
                commit: commit(),
            };
            let at = Instant::now();
            let report = experiment::run(*e, &options, &|| {}).with_context(|| e.id().to_string())?;
            let duration_s = at.elapsed().as_secs_f64();
            known_s += duration_s;
            let count = |v| report.rows.iter().filter(|r| r.judged() == Some(v)).count();
            let (met, missed, open) = (count(Verdict::Met), count(Verdict::Missed), count(Verdict::Undecided));
            let seeds = report.seeds;
            Evidence { plan: plan.clone(), machine: Machine::this(), duration_s, report }.write(&self.results)?;
            // What isn't known takes as long as the others on average.
            let average = known_s / (i + 1) as f64;
            let left = todo[i + 1..].iter().fold(0.0, |sum, (_, s)| sum + s.unwrap_or(average));
            println!(
                "{:>3}/{} {:<13} {duration_s:>7.1} s, {seeds} seeds: {met} met, {missed} missed, {open} undecided; {:.0} min done, about {:.0} min left{}",
                i + 1,
                todo.len(),
                e.id(),
                begun.elapsed().as_secs_f64() / 60.0,
                left / 60.0,
                expected.map_or(String::new(), |s| format!(" (took {s:.0} s before)"))
            );
        }
        Ok(())
    }
}

/// A figure belongs to a commit, so there must be nothing beside it but results.
fn refuse_changes() -> Result<()> {
    let out = Command::new("git")
        .args(["status", "--porcelain", "--", ".", ":!results", ":!docs/results"])
        .output()
        .context("cannot run git, which tells the commit")?;
    if !out.status.success() {
        bail!("not in a git repository: evidence needs a commit");
    }
    let changed = String::from_utf8_lossy(&out.stdout);
    if let Some(first) = changed.lines().next() {
        bail!("the tree has {} change(s) ({}): commit them first", changed.lines().count(), first.trim());
    }
    Ok(())
}

/// Write the pages of docs/results from kept results.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll lab pages --results results --out docs/results")]
pub struct Pages {
    /// The folder of results.
    #[arg(long, value_name = "DIR", default_value = "results")]
    results: PathBuf,
    /// The list of known misses, for their reasons.
    #[arg(long, value_name = "FILE", default_value = "crates/lab/known-misses.toml")]
    misses: PathBuf,
    /// The list of audits' points.
    #[arg(long, value_name = "FILE", default_value = "crates/lab/audit.toml")]
    audit: PathBuf,
    /// The folder of pages.
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    out: PathBuf,
}

impl Pages {
    pub fn run(&self) -> Result<()> {
        let (misses, audit) = (Misses::read(&self.misses)?, Audit::read(&self.audit)?);
        let mut results = Vec::new();
        let all = experiment::all();
        for e in &all {
            results.extend(Evidence::read(&self.results, e.id())?);
        }
        let ids: Vec<&str> = all.iter().map(|e| e.id()).collect();
        let pages = pages::write(&results, &ids, &misses, &audit, &self.out)?;
        println!("{}: {pages} pages of {} experiments", self.out.display(), results.len());
        Ok(())
    }
}
