//! `plimsoll tune`.

mod live;
mod load;
mod profile;
mod show;
mod solve;
mod watch;
mod web;

pub use live::{Interrupted, STATUS_INTERRUPTED};

use crate::output::write_over;
use anyhow::{Context, Result, anyhow};
use clap::{Args, Subcommand};
use plimsoll_figure::plot::Plot;
use plimsoll_tune::file::TuneFile;
use std::path::{Path, PathBuf};

/// Choose settings so that several points of a latency distribution are met at once.
#[derive(Args)]
#[command(
    after_help = "A tune file says what can be set, how a request runs, what is wanted and how the system is set and \
    measured: docs/guides/tuner.md.\n\nExample:\n  plimsoll tune profile web.toml --out web.parquet\n  plimsoll tune solve web.toml \
    --profile web.parquet --minimise p99 --bound 'p50 <= 10ms'\n  plimsoll tune run web.toml --profile web.parquet"
)]
pub struct Tune {
    #[command(subcommand)]
    command: TuneCommand,
}

#[derive(Subcommand)]
enum TuneCommand {
    /// Check a tune file and say file and line of what is wrong
    Check(CheckFile),
    /// Record the time of each part under each setting
    Profile(profile::Record),
    /// Find the settings, and prove that nothing is better
    Solve(solve::Solve),
    /// Apply the solution, watch it, and tune again when the system changes
    Run(watch::Run),
    Load(load::Load),
    WebServer(web::WebServer),
    WebSet(web::WebSet),
    WebLoad(web::WebLoad),
}

/// Check a tune file.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll tune check web.toml")]
struct CheckFile {
    /// The tune file.
    file: PathBuf,
}

impl Tune {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            TuneCommand::Check(c) => c.run(),
            TuneCommand::Profile(c) => c.run(),
            TuneCommand::Solve(c) => c.run(),
            TuneCommand::Run(c) => c.run(),
            TuneCommand::Load(c) => c.run(),
            TuneCommand::WebServer(c) => c.run(),
            TuneCommand::WebSet(c) => c.run(),
            TuneCommand::WebLoad(c) => c.run(),
        }
    }
}

impl CheckFile {
    fn run(&self) -> Result<()> {
        let f = load(&self.file)?;
        let nodes: Vec<String> = f.graph.measured().iter().map(|&id| f.graph.nodes()[id].name.clone()).collect();
        let runs = f.space.to_profile(&nodes).len();
        println!(
            "{}: {} settings, {} nodes to measure, {runs} runs to profile",
            self.file.display(),
            f.space.len(),
            nodes.len()
        );
        Ok(())
    }
}

/// Reads a tune file.
fn load(file: &Path) -> Result<TuneFile> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    TuneFile::parse(&file.display().to_string(), &text).map_err(|e| anyhow!(e))
}

fn write_plot(file: &Path, plot: &Plot) -> Result<()> {
    write_over(file, &plot.to_svg())
}
