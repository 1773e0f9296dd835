//! `plimsoll-lab switches`.

use super::{How, known_id};
use anyhow::{Context, Result};
use clap::Args;
use plimsoll_lab::evidence::switches::Switches;
use std::path::PathBuf;

/// Measure what each switch of a list does to its rows, and write the page of them.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll-lab switches --quick --out switches.md")]
pub struct Run {
    /// Only entries of these experiments; all if none is named.
    #[arg(value_parser = known_id)]
    ids: Vec<String>,
    #[command(flatten)]
    how: How,
    /// The list.
    #[arg(long, value_name = "FILE", default_value = "crates/lab/switches.toml")]
    list: PathBuf,
    /// The page.
    #[arg(long, value_name = "FILE", default_value = "switches.md")]
    out: PathBuf,
}

impl Run {
    pub fn run(&self) -> Result<()> {
        let page = Switches::read(&self.list)?.page(&self.how.options()?, &self.ids)?;
        if let Some(folder) = self.out.parent() {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        std::fs::write(&self.out, page).with_context(|| format!("cannot write {}", self.out.display()))?;
        println!("{}", self.out.display());
        Ok(())
    }
}
