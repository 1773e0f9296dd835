//! The commands that no node needs to serve, of the feature `tools`.

mod fs;
mod fsck;
mod host;
mod mkfs;
mod mount;
mod replay;
mod trace;
mod tune;

use crate::Cli;
use anyhow::Result;
use clap::{CommandFactory, Subcommand};

/// One of the commands.
#[derive(Subcommand)]
pub enum Tool {
    /// Make a file system with scattered journals. ALL DATA on the device is lost
    Mkfs(mkfs::Mkfs),
    Mount(mount::MountCommand),
    /// Check a file system that isn't mounted, and repair it
    Fsck(fsck::Fsck),
    /// Show a file system's layout, space and logs, or make its files durable
    Fs(fs::FsCommand),
    /// Write man pages or shell completions
    #[command(hide = true)]
    Generate(plimsoll_manual::Generate),
    Host(Box<host::Host>),
    /// Replay a trace or a workload on a modelled device
    Replay(Box<replay::Replay>),
    /// Choose settings for several points of a latency distribution at once
    Tune(Box<tune::Tune>),
    /// Describe and change block traces
    Trace(trace::Trace),
}

impl Tool {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self {
            Tool::Mkfs(c) => c.run(),
            Tool::Mount(c) => c.run(),
            Tool::Fsck(c) => c.run(),
            Tool::Fs(c) => c.run(),
            Tool::Generate(c) => c.run(Cli::command()),
            Tool::Host(c) => c.run(),
            Tool::Replay(c) => c.run(),
            Tool::Tune(c) => c.run(),
            Tool::Trace(c) => c.run(),
        }
    }
}

/// The exit status of a failure, if it has one of its own.
pub fn status(failed: &anyhow::Error) -> Option<u8> {
    failed.is::<tune::Interrupted>().then_some(tune::STATUS_INTERRUPTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_a_completion_and_an_example() {
        plimsoll_manual::check(&Cli::command(), tempfile::tempdir().unwrap().path());
    }
}
