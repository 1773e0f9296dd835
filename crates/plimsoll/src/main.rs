//! The command line.

mod lab;
mod replay;
mod serve;
mod trace;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Shared storage in which every request carries a promise, and every layer keeps it or says no at once.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a storage node
    Serve(serve::Serve),
    /// Check a configuration and say file, line and key of what is wrong
    Check(serve::Check),
    /// Replay a trace or a workload on a modelled device
    Replay(Box<replay::Replay>),
    /// Run the papers' experiments on models, and report
    Lab(lab::Lab),
    /// Describe and change block traces
    Trace(trace::Trace),
}

fn main() -> ExitCode {
    let cli = Cli::parse(); // misuse ends here with status 2
    let result = match cli.command {
        Command::Serve(c) => c.run(),
        Command::Check(c) => c.run(),
        Command::Replay(c) => c.run(),
        Command::Lab(c) => c.run(),
        Command::Trace(c) => c.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("plimsoll: {e:#}");
            ExitCode::FAILURE
        }
    }
}
