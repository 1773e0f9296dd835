//! `plimsoll lab`: starts the lab's own program, `plimsoll-lab`, so that a node links no experiment.

use anyhow::{Context, Result};
use clap::Args;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Run the papers' experiments on models and compare.
#[derive(Args)]
#[command(
    disable_help_flag = true,
    disable_version_flag = true,
    after_help = "The program plimsoll-lab, beside this one or in PATH, takes all arguments: `plimsoll lab --help` is its help.\n\n\
    Example:\n  plimsoll lab run MT-E4 --quick"
)]
pub struct Lab {
    /// Arguments of plimsoll-lab.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

const PROGRAM: &str = "plimsoll-lab";

impl Lab {
    /// Becomes the lab's program; returns only if it can't be started.
    pub fn run(self) -> Result<()> {
        let beside = std::env::current_exe().ok().map(|p| p.with_file_name(PROGRAM)).filter(|p| p.is_file());
        // A bare name is looked for in PATH.
        let program = beside.unwrap_or_else(|| PathBuf::from(PROGRAM));
        let failed = Command::new(&program).args(self.arguments).exec();
        let missing = failed.kind() == ErrorKind::NotFound;
        Err(failed).with_context(|| match missing {
            true => format!(
                "{PROGRAM} is neither beside this program nor in PATH; build it with `cargo build --release -p {PROGRAM}`"
            ),
            false => format!("cannot start {}", program.display()),
        })
    }
}
