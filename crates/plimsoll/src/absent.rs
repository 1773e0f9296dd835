//! Stands for the commands of `tools.rs` in a build without them, and says which build has them.

use anyhow::{Result, bail};
use clap::Subcommand;
use std::ffi::OsString;

/// One of the commands.
#[derive(Subcommand)]
pub enum Tool {
    /// Not in this build, which serves only
    #[command(visible_aliases = ["fs", "fsck", "host", "mkfs", "mount", "replay", "tune"], disable_help_flag = true)]
    #[command(after_help = "Example:\n  cargo build --release -p plimsoll")]
    Trace {
        /// Arguments of the missing command.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
        _arguments: Vec<OsString>,
    },
}

impl Tool {
    /// Fails, and says what to do.
    pub fn run(self) -> Result<()> {
        bail!(
            "this build has no fs, fsck, host, mkfs, mount, replay, trace and tune; build all commands with `cargo build --release -p plimsoll`"
        )
    }
}

/// The exit status of a failure, if it has one of its own.
pub fn status(_: &anyhow::Error) -> Option<u8> {
    None
}
