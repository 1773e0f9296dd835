//! `plimsoll tune profile`.

use super::live::with_system;
use super::{load, show::bar};
use crate::output::may_be_replaced;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use plimsoll_tune::adapter::{Guarded, Incomplete, Run, profile};
use plimsoll_tune::file::TuneFile;
use plimsoll_tune::profile::Profile;
use plimsoll_tune::record;
use plimsoll_tune::screen::{Effect, ScreenConfig, design, screen};
use std::path::{Path, PathBuf};

/// Record how long each part takes under each setting, through the tune file's adapter.
#[derive(Args)]
#[command(
    after_help = "Parameters that move different nodes (`moves`) are profiled side by side: a sum of runs, not a product. \
    --screen finds what moves what.\n\nExamples:\n  plimsoll tune profile web.toml --out web.parquet\n  plimsoll tune profile web.toml --screen"
)]
pub struct Record {
    /// The tune file.
    file: PathBuf,
    /// File for the profile: Parquet if the name ends so, else CSV.
    #[arg(long, value_name = "FILE", required_unless_present = "screen")]
    out: Option<PathBuf>,
    /// Find by few runs which parameter moves which node, and print it as `moves` lines; records no profile.
    #[arg(long, conflicts_with = "out")]
    screen: bool,
    /// Of the pairs that a screen finds, the share that may be false.
    #[arg(long, value_name = "SHARE", default_value = "0.05", requires = "screen", value_parser = share)]
    false_discoveries: f64,
    /// The setting that the system has now and is put back to: NAME=VALUE, once for each parameter.
    #[arg(long, value_name = "NAME=VALUE")]
    current: Vec<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().ok().filter(|s| *s > 0.0 && *s < 1.0);
    share.ok_or_else(|| "a share above 0 and below 1".into())
}

impl Record {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let f = load(&self.file)?;
        with_system(&f, &self.file, &self.current, |guarded| match &self.out {
            Some(out) => self.record(&f, guarded, out),
            None => self.screen(&f, guarded),
        })
    }

    fn record(&self, f: &TuneFile, guarded: &mut Guarded<'_>, out: &Path) -> Result<()> {
        // Before an hour's work: whether there is a place for it.
        may_be_replaced(out)?;
        let is_new = !out.exists();
        let opened = std::fs::OpenOptions::new().append(true).create(true).open(out);
        opened.with_context(|| format!("cannot write {}", out.display()))?;
        let write = |p: &Profile| record::write(out, &f.space, p).map_err(|e| anyhow!(e));
        match recorded(f, guarded) {
            Ok((profile, settings)) => {
                write(&profile)?;
                self.tell(f, &profile, settings, out)
            }
            Err(Incomplete { recorded, why }) if recorded.nodes().next().is_some() => {
                write(&recorded)?;
                Err(anyhow!(why).context(format!("{}: only what was recorded until then", out.display())))
            }
            Err(Incomplete { why, .. }) => {
                if is_new {
                    std::fs::remove_file(out).with_context(|| format!("cannot remove {}", out.display()))?;
                }
                Err(anyhow!(why))
            }
        }
    }

    fn tell(&self, f: &TuneFile, recorded: &Profile, settings: usize, out: &Path) -> Result<()> {
        let observations: usize = recorded.iter().map(|(_, _, o)| o.len()).sum();
        if self.json {
            println!("{}", serde_json::json!({ "settings": settings, "observations": observations, "out": out }));
        } else {
            let all = f.space.len();
            println!("{}: {observations} observations under {settings} of {all} settings", out.display());
        }
        Ok(())
    }

    fn screen(&self, f: &TuneFile, guarded: &mut Guarded<'_>) -> Result<()> {
        let lengths = f.lengths();
        let settings = design(&f.space).map_err(|e| anyhow!(e))?;
        let bar = bar(settings.len() as u64, "screening");
        let runs = guarded.experiment(|guarded| {
            let run = |s| guarded.try_out(s, &lengths).map(|r| r.1).inspect(|_| bar.inc(1));
            settings.iter().map(run).collect::<Result<Vec<Run>, _>>()
        });
        bar.finish_and_clear();
        let runs = runs.map_err(|e| anyhow!(e))?;
        let config = ScreenConfig { false_discoveries: self.false_discoveries, ..ScreenConfig::default() };
        let effects = screen(&f.space, &f.graph, &settings, &runs, &config).map_err(|e| anyhow!(e))?;
        if self.json {
            let entry = |e: &Effect| serde_json::json!({ "parameter": e.parameter, "node": e.node, "change": e.size, "p": e.p, "moves": e.moves });
            println!("{}", serde_json::to_string_pretty(&effects.iter().map(entry).collect::<Vec<_>>())?);
            return Ok(());
        }
        let row = |e: &Effect| {
            let found = if e.moves { "moves" } else { "" };
            vec![
                e.parameter.clone(),
                e.node.clone(),
                format!("{:.1} %", e.size * 100.0),
                format!("{:.2e}", e.p),
                found.into(),
            ]
        };
        let rows: Vec<Vec<String>> = effects.iter().map(row).collect();
        print!("{}", crate::table::table(&["PARAMETER", "NODE", "CHANGE", "CHANCE", ""], &rows));
        for p in f.space.parameters() {
            let moved: Vec<&str> =
                effects.iter().filter(|e| e.moves && e.parameter == p.name).map(|e| e.node.as_str()).collect();
            println!("{}: moves = {moved:?}", p.name);
        }
        println!(
            "{} runs, first and last values only: a parameter whose middle values matter most isn't seen",
            settings.len()
        );
        Ok(())
    }
}

/// Profiles as the tune file says; with the number of settings that were run.
pub fn recorded(f: &TuneFile, guarded: &mut Guarded<'_>) -> Result<(Profile, usize), Incomplete> {
    let nodes: Vec<String> = f.graph.measured().iter().map(|&id| f.graph.nodes()[id].name.clone()).collect();
    let settings = f.space.to_profile(&nodes);
    let bar = bar(settings.len() as u64, "profiling");
    let made = profile(guarded, &f.graph, &settings, &f.lengths(), &mut |n| bar.set_position(n as u64));
    bar.finish_and_clear();
    Ok((made?, settings.len()))
}
