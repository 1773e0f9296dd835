//! The command line.

mod cache;
mod check;
mod client;
mod connections;
mod cores;
mod deadline;
mod demo;
mod fence;
mod inject;
mod lab;
mod logs;
mod part;
mod pool;
mod profile;
mod promise;
mod read;
mod resync;
mod serve;
mod shape;
mod status;
mod table;
mod tape;
mod tenant;
#[cfg_attr(not(feature = "tools"), path = "absent.rs")]
mod tools;
mod top;
mod volume;

use clap::{Parser, Subcommand};
use std::io::Write;
use std::process::ExitCode;

/// Shared storage in which every request carries a promise, and every layer keeps it or says no at once.
#[derive(Parser)]
#[command(name = "plimsoll", version, propagate_version = true)]
#[command(
    after_help = "Exit status: 0 done, 1 failed, 2 misused, 130 interrupted while tuning.\n\nExample:\n  plimsoll serve --data DIR"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a storage node
    Serve(serve::Serve),
    Demo(demo::Demo),
    /// Check a configuration and say file, line and key of what is wrong
    Check(check::Check),
    /// Show how a node is, in short
    Status(status::Status),
    /// Watch a node: tenants, volumes, layers
    Top(top::Top),
    /// List, create, grow, delete volumes
    Volume(volume::Volume),
    /// List, show, set, remove tenants
    Tenant(tenant::Tenant),
    /// List the clients that are connected
    Connections(connections::Connections),
    /// Show a pool's layers, show and change its settings, bring one back after a failed flush
    Pool(pool::Pool),
    Inject(inject::Inject),
    /// Show who has a pool's cores, and whether they suffice
    Cores(cores::Cores),
    Fence(fence::Fence),
    /// Show a pool's flash cache, resize it, write back what only it has
    Cache(cache::Cache),
    /// Show a pool's scattered logs, bring home what is in them
    Logs(logs::Logs),
    /// Read at random within a deadline, and show each answer: the time it took, or Busy with the predicted wait
    Read(read::Read),
    /// Measure what a device's requests cost, for the predictors
    Profile(profile::ProfileArgs),
    /// Run the papers' experiments on models, and report
    Lab(lab::Lab),
    /// Replay what a live pool was told
    Tape(tape::Tape),
    #[command(flatten)]
    Tool(tools::Tool),
    /// Give a database's users fair, stable service from outside of it
    Shape(Box<shape::Shape>),
}

fn main() -> ExitCode {
    let cli = Cli::parse(); // misuse ends here with status 2
    let result = match cli.command {
        Command::Serve(c) => c.run(),
        Command::Demo(c) => c.run(),
        Command::Check(c) => c.run(),
        Command::Status(c) => c.run(),
        Command::Top(c) => c.run(),
        Command::Volume(c) => c.run(),
        Command::Tenant(c) => c.run(),
        Command::Connections(c) => c.run(),
        Command::Pool(c) => c.run(),
        Command::Inject(c) => c.run(),
        Command::Cores(c) => c.run(),
        Command::Fence(f) => f.run(),
        Command::Cache(c) => c.run(),
        Command::Logs(c) => c.run(),
        Command::Read(c) => c.run(),
        Command::Profile(c) => c.run(),
        Command::Lab(c) => c.run(),
        Command::Tape(c) => c.run(),
        Command::Tool(c) => c.run(),
        Command::Shape(c) => c.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Whoever reads it may have gone.
            let _ = writeln!(std::io::stderr(), "plimsoll: {e:#}");
            tools::status(&e).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}
