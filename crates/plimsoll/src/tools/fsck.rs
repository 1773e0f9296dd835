//! `plimsoll fsck`.

use super::fs::open;
use crate::client::print_json;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;

/// Check a file system that isn't mounted, and repair it
#[derive(Args)]
#[command(
    after_help = "Exit status: 0 no problems, or all repaired; 1 problems that were not repaired.\n\nExample:\n  plimsoll fsck fs.img"
)]
pub struct Fsck {
    /// A file or a block device.
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Repair what is wrong. FILES WHOSE METADATA IS CORRUPT ARE LOST.
    #[arg(long)]
    repair: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Fsck {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let path = self.device.display();
        let disk = open(&self.device, self.repair)?;
        let report = plimsoll_fs::fsck(disk, self.repair).with_context(|| format!("{path}: check the file system"))?;
        if self.json {
            let counts = json!({ "problems": report.problems, "repaired": report.repaired, "inodes": report.inodes, "blocks": report.blocks });
            print_json(&counts)?;
        } else {
            report.problems.iter().for_each(|p| println!("{p}"));
            println!("{path}: {} inodes, {} blocks, {} problems", report.inodes, report.blocks, report.problems.len());
        }
        if !report.problems.is_empty() && !report.repaired {
            bail!("{path}: problems were found; add --repair to repair them");
        }
        Ok(())
    }
}
