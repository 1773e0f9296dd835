//! `plimsoll tune profile`.

use super::{load, show::bar, solve::adapter};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use plimsoll_tune::adapter::{Guarded, profile};
use plimsoll_tune::file::TuneFile;
use plimsoll_tune::record;
use plimsoll_tune::screen::{Effect, ScreenConfig, design, screen};
use plimsoll_tune::shell::Shell;
use plimsoll_tune::space::{Setting, Space};
use std::path::PathBuf;

/// Record how long each part takes under each setting, through the tune file's adapter.
#[derive(Args)]
#[command(
    after_help = "Parameters that move different nodes (`moves`) are profiled side by side: a sum of runs, not a product. \
    --screen finds what moves what.\n\nExamples:\n  plimsoll tune profile web.toml --out web.parquet\n  plimsoll tune profile web.toml --screen"
)]
pub struct Record {
    /// The tune file.
    file: PathBuf,
    /// Where the profile goes: Parquet if the name ends so, else CSV.
    #[arg(long, value_name = "FILE", required_unless_present = "screen")]
    out: Option<PathBuf>,
    /// Find by few runs which parameter moves which node, and print it as `moves` lines; records no profile.
    #[arg(long, conflicts_with = "out")]
    screen: bool,
    /// Of the pairs that a screen finds, the share that may be false.
    #[arg(long, value_name = "SHARE", default_value = "0.05", requires = "screen")]
    false_discoveries: f64,
    /// The setting that the system has now and is put back to: NAME=VALUE, once for each parameter.
    #[arg(long, value_name = "NAME=VALUE")]
    current: Vec<String>,
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

/// The setting of `NAME=VALUE` words; `None` without any.
pub fn current(space: &Space, words: &[String]) -> Result<Option<Setting>> {
    if words.is_empty() {
        return Ok(None);
    }
    let pair = |w: &'_ String| w.split_once('=').map(|(n, v)| (n.to_string(), v.to_string()));
    let pairs: Vec<(String, String)> =
        words.iter().map(pair).collect::<Option<_>>().context("--current takes NAME=VALUE")?;
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let setting = space.named(&pairs);
    setting.map(Some).ok_or_else(|| anyhow!("--current must name one of the tune file's values for each parameter"))
}

impl Record {
    /// Runs the command.
    pub fn run(&self) -> Result<()> {
        let f = load(&self.file)?;
        let spec = adapter(&f, &self.file)?;
        let mut shell = Shell::new(spec.clone(), f.space.clone());
        let mut guarded = Guarded::new(&mut shell, &f.space, current(&f.space, &self.current)?);
        if self.screen {
            return self.screen(&f, &mut guarded);
        }
        let nodes: Vec<String> = f.graph.measured().iter().map(|&id| f.graph.nodes()[id].name.clone()).collect();
        let settings = f.space.to_profile(&nodes);
        let bar = bar(settings.len() as u64, "profiling");
        let recorded = profile(&mut guarded, &f.graph, &settings, f.settle, spec.profile_time, &mut |n| {
            bar.set_position(n as u64)
        });
        bar.finish_and_clear();
        let recorded = recorded.map_err(|e| anyhow!(e))?;
        let out = self.out.as_deref().expect("clap asks for it");
        record::write(out, &f.space, &recorded).map_err(|e| anyhow!(e))?;
        let observations: usize = recorded.iter().map(|(_, _, o)| o.len()).sum();
        if self.json {
            println!("{}", serde_json::json!({ "settings": settings.len(), "observations": observations, "out": out }));
        } else {
            println!(
                "{}: {observations} observations under {} of {} settings",
                out.display(),
                settings.len(),
                f.space.len()
            );
        }
        Ok(())
    }

    fn screen(&self, f: &TuneFile, guarded: &mut Guarded<'_>) -> Result<()> {
        let time = f.adapter.as_ref().expect("seen before").profile_time;
        let settings = design(&f.space).map_err(|e| anyhow!(e))?;
        let bar = bar(settings.len() as u64, "screening");
        let mut runs = Vec::new();
        for s in &settings {
            let mut one = || {
                guarded.apply(s)?;
                if f.settle > plimsoll_base::Span::ZERO {
                    guarded.measure(f.settle)?;
                }
                guarded.measure(time)
            };
            runs.push(one().map_err(|e| anyhow!(e))?);
            bar.inc(1);
        }
        bar.finish_and_clear();
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
