//! `plimsoll-lab`, which `plimsoll lab` starts.

mod evidence;
mod figure;
mod live;
#[cfg(feature = "switches")]
mod switches;

use anyhow::{Context, Result, bail};
use clap::{Args, CommandFactory, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_lab::experiment::runner::{SEEDS_DEFAULT, SEEDS_MORE, SEEDS_QUICK};
use plimsoll_lab::experiment::{self, Experiment, ExperimentReport, Inputs, RunOptions, Verdict, data_folder};
use plimsoll_lab::report::{self, Machine, figure};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Run the papers' experiments on models and compare.
#[derive(Parser)]
#[command(name = "plimsoll-lab", bin_name = "plimsoll lab", version, propagate_version = true)]
#[command(after_help = "Exit status: 0 done, 1 failed, 2 misused.\n\nExample:\n  plimsoll lab run MT-E4 --quick")]
struct Lab {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Subcommand)]
enum LabCommand {
    /// List the experiments
    List(List),
    /// Run one experiment, or all
    Run(Run),
    /// Run experiments (or take their kept results) and write one HTML page
    Report(Report),
    /// Run every experiment on a clean commit and keep each result in a file; goes on where it was broken off
    Evidence(evidence::Run),
    /// Write the pages of docs/results from kept results
    Pages(evidence::Pages),
    /// Measure what each switch of a list does to its rows, and write the page of them
    #[cfg(feature = "switches")]
    Switches(switches::Run),
    /// Draw results of `plimsoll demo --json`, and print them as a Markdown table: medians over the rounds
    Figure(figure::Figure),
    /// Write man pages or shell completions
    #[command(hide = true)]
    Generate(plimsoll_manual::Generate),
}

/// As a shell says of a command that the signal killed.
const SIGPIPE_STATUS: i32 = 128 + 13;

/// `println!` panics when standard output can't be written to. The reader of a pipe that has gone (`plimsoll lab list | head`) is no fault: the
/// command ends, as if the signal had killed it. A full disk is an error.
fn end_without_an_output() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>();
        match text.and_then(|text| text.strip_prefix("failed printing to stdout: ")) {
            Some(why) if why.contains("Broken pipe") => std::process::exit(SIGPIPE_STATUS),
            Some(why) => {
                let _ = writeln!(std::io::stderr(), "plimsoll-lab: cannot write to standard output: {why}");
                std::process::exit(1);
            }
            None => say(info),
        }
    }));
}

fn main() -> ExitCode {
    end_without_an_output();
    let lab = Lab::parse(); // misuse ends here with status 2
    let result = match lab.command {
        LabCommand::List(l) => l.run(),
        LabCommand::Run(r) => r.run(),
        LabCommand::Report(r) => r.run(),
        LabCommand::Evidence(e) => e.run(),
        LabCommand::Pages(p) => p.run(),
        #[cfg(feature = "switches")]
        LabCommand::Switches(s) => s.run(),
        LabCommand::Figure(f) => f.run(),
        LabCommand::Generate(g) => g.run(Lab::command()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Whoever reads it may have gone.
            let _ = writeln!(std::io::stderr(), "plimsoll-lab: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// List the experiments.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll lab list")]
struct List {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// Options of a run of experiments.
#[derive(Args)]
struct How {
    /// Seeds 1 to N: at least 10 for an interval that means something.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: Option<u64>,
    /// Add seeds up to N while judged rows are undecided [default: twice --seeds; with --quick none].
    #[arg(long, value_name = "N")]
    seeds_max: Option<u64>,
    /// Shorter runs and 3 seeds: to see that it works, not for figures.
    #[arg(long)]
    quick: bool,
    /// The shortest runs that still fill the rows, as `make test` has them where a quick run takes too long.
    #[arg(long)]
    brief: bool,
    /// Assumptions to change and mechanisms to undo (docs/guides/lab.md).
    #[cfg(feature = "switches")]
    #[arg(long = "switch", value_name = "NAME", value_enum, num_args = 1..)]
    switches: Vec<experiment::Switch>,
    /// The folder of recorded data [default: ../shared/data where it exists].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Traces instead of the experiment's own, where it takes any.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    trace: Vec<PathBuf>,
    /// Folder of results, each named by a hash of all that it depends on.
    #[arg(long, value_name = "DIR", default_value = "target/lab")]
    cache: PathBuf,
    /// Run anew even if the result is kept.
    #[arg(long)]
    no_cache: bool,
}

/// Run one experiment, or all, and print the paper's figures beside ours.
#[derive(Args)]
#[command(after_help = "Examples:\n  plimsoll lab run MT-E4\n  plimsoll lab run all --quick --json")]
struct Run {
    /// The experiment's id (see `plimsoll lab list`), or `all`; `mittos-live` runs three nodes in real time for ten minutes
    /// (--quick: 80 s; --seeds N: with seed N).
    #[arg(value_parser = known_id)]
    id: String,
    #[command(flatten)]
    how: How,
    /// Print as JSON: one object, or an array for `all`. Equal runs print equal bytes.
    #[arg(long)]
    json: bool,
    /// Also write the rows as a table: Parquet if the name ends so, else CSV.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Run experiments (or take their kept results) and write one HTML page.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll lab report --out lab.html")]
struct Report {
    /// The experiments; all if none is named.
    #[arg(value_parser = known_id)]
    ids: Vec<String>,
    #[command(flatten)]
    how: How,
    /// The page to write.
    #[arg(long, value_name = "FILE.html", default_value = "lab-report.html")]
    out: PathBuf,
}

fn known_id(text: &str) -> Result<String, String> {
    if text == "all" || text == live::ID || experiment::by_id(text).is_some() {
        return Ok(text.to_string());
    }
    let ids: Vec<&str> = experiment::all().iter().map(|e| e.id()).collect();
    Err(format!("there is no such experiment; there are {}, {} and `all`", ids.join(", "), live::ID))
}

fn chosen(ids: &[String]) -> Vec<Box<dyn Experiment>> {
    if ids.is_empty() || ids.iter().any(|i| i == "all") {
        return experiment::all();
    }
    ids.iter().filter_map(|i| experiment::by_id(i)).collect()
}

impl List {
    fn run(&self) -> Result<()> {
        let all = experiment::all();
        if self.json {
            let entry = |e: &dyn Experiment| serde_json::json!({ "id": e.id(), "title": e.title(), "source": e.source(), "device": e.device(), "data": e.files() });
            let list: Vec<_> = all.iter().map(|e| entry(e.as_ref())).collect();
            println!("{}", serde_json::to_string_pretty(&list)?);
            return Ok(());
        }
        for e in all {
            println!("{:<10} {:<60} {}", e.id(), e.title(), e.source());
        }
        Ok(())
    }
}

impl How {
    fn options(&self) -> Result<RunOptions> {
        let data = data_folder(self.data.as_deref());
        if let (Some(named), None) = (&self.data, &data) {
            bail!("{}: no such folder; name the one that holds the recorded data", named.display());
        }
        if data.is_none() {
            eprintln!("running without recorded data: ../shared/data isn't there (name it with --data)");
        }
        let seeds = self.seeds.unwrap_or(if self.quick || self.brief { SEEDS_QUICK } else { SEEDS_DEFAULT });
        let seeds_max = self.seeds_max.unwrap_or(if self.quick || self.brief { seeds } else { seeds * SEEDS_MORE });
        Ok(RunOptions {
            seeds,
            seeds_max: seeds_max.max(seeds),
            inputs: Inputs {
                data,
                traces: self.trace.clone(),
                quick: self.quick || self.brief,
                brief: self.brief,
                #[cfg(feature = "switches")]
                switches: self.switches.clone(),
                #[cfg(not(feature = "switches"))]
                switches: Vec::new(),
            },
            cache: (!self.no_cache).then(|| self.cache.clone()),
            program: program_hash()?,
            commit: commit(),
        })
    }

    fn run(&self, experiments: &[Box<dyn Experiment>]) -> Result<Vec<ExperimentReport>> {
        let options = self.options()?;
        if !self.trace.is_empty() && !experiments.iter().any(|e| e.takes_traces()) {
            let takers: Vec<&str> = experiment::all().iter().filter(|e| e.takes_traces()).map(|e| e.id()).collect();
            bail!(
                "no trace can be named for this: its inputs are given by the paper; --trace is for {}",
                takers.join(", ")
            );
        }
        let bar = progress_bar(options.seeds * experiments.len() as u64);
        let one = |e: &dyn Experiment| {
            bar.set_message(e.id());
            experiment::run(e, &options, &|| bar.inc(1)).with_context(|| e.id().to_string())
        };
        let reports = experiments.iter().map(|e| one(e.as_ref())).collect();
        bar.finish_and_clear();
        reports
    }
}

impl Run {
    fn run(&self) -> Result<()> {
        if self.id == live::ID {
            return self.live();
        }
        let reports = self.how.run(&chosen(std::slice::from_ref(&self.id)))?;
        if let Some(file) = &self.out {
            ExperimentReport::table(&reports).write(file)?;
        }
        match (self.json, reports.as_slice()) {
            (true, [one]) if self.id != "all" => print!("{}", one.to_json()),
            (true, many) => {
                let all: Vec<String> = many.iter().map(|r| r.to_json().trim_end().to_string()).collect();
                println!("[\n{}\n]", all.join(",\n"));
            }
            (false, many) => many.iter().for_each(print_report),
        }
        Ok(())
    }
}

impl Run {
    /// The demonstration that takes real time: no seeds to repeat, nothing to keep.
    fn live(&self) -> Result<()> {
        if self.json || self.out.is_some() {
            bail!("{}: prints for people only", live::ID);
        }
        let turns = if self.how.quick { 500 } else { 4_000 };
        let mut passed = true;
        for load in live::LOADS {
            passed &= live::Live { turns, seed: self.how.seeds.unwrap_or(1), load }.run()?;
        }
        if passed { Ok(()) } else { bail!("mitt's p95 isn't below hedged's beyond doubt under each load") }
    }
}

impl Report {
    fn run(&self) -> Result<()> {
        if self.ids.iter().any(|i| i == live::ID) {
            bail!("{}: isn't repeatable, so it's in no report", live::ID);
        }
        let reports = self.how.run(&chosen(&self.ids))?;
        let page = report::html(&reports, &Machine::this());
        std::fs::write(&self.out, page).with_context(|| format!("cannot write {}", self.out.display()))?;
        println!("{}: {} experiments", self.out.display(), reports.len());
        Ok(())
    }
}

fn print_report(r: &ExperimentReport) {
    println!("{}: {} ({})", r.id, r.title, r.source);
    println!("modelled device: {}; seeds 1 to {}; commit {}\n", r.device, r.seeds, r.commit);
    let width = r.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    println!(
        "{:<width$}  {:<5}{:>9}{:>11}  {:<24}{:>4}  {:<13}verdict",
        "", "unit", "paper", "ours", "95 % interval", "n", "kind"
    );
    let shown = |v: Option<f64>| v.map_or("–".to_string(), figure);
    for row in &r.rows {
        let interval = match (row.lo, row.hi) {
            (Some(lo), Some(hi)) if row.n > 1 => format!("{} … {}", figure(lo), figure(hi)),
            _ => "–".into(),
        };
        let verdict = match row.verdict {
            Some(Verdict::Met) => "met: ",
            Some(Verdict::Missed) => "MISSED: ",
            Some(Verdict::Undecided) => "undecided: ",
            None => "",
        };
        let remarks = report::remarks(row);
        let note = if remarks.is_empty() { String::new() } else { format!(" ({remarks})") };
        println!(
            "{:<width$}  {:<5}{:>9}{:>11}  {interval:<24}{:>4}  {:<13}{verdict}{}{note}",
            row.name,
            row.unit,
            shown(row.paper),
            shown(row.ours),
            row.n,
            row.kind.name(),
            row.check
        );
    }
    r.notes.iter().for_each(|n| println!("note: {n}"));
    println!();
}

fn progress_bar(steps: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}").expect("a constant template");
    ProgressBar::new(steps).with_style(style)
}

/// Results depend on every line of the program, so its bytes name it.
fn program_hash() -> Result<String> {
    let path = std::env::current_exe().context("cannot find this program's file")?;
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(format!("{:016x}", plimsoll_figure::table::hash_of(&bytes)))
}

/// The commit that a package was built from; else that of the working directory, `+` if it has changes; `unknown` outside of one.
fn commit() -> String {
    if let Some(packaged) = option_env!("PLIMSOLL_COMMIT") {
        return packaged.into();
    }
    let git = |args: &[&str]| {
        let out = std::process::Command::new("git").args(args).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_string())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(head) => {
            let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|s| !s.is_empty());
            format!("{head}{}", if changed { "+" } else { "" })
        }
        None => "unknown".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_a_completion_and_an_example() {
        plimsoll_manual::check(&Lab::command(), tempfile::tempdir().unwrap().path());
    }
}
