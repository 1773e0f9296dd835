//! The command line.

mod alone;
mod bands;
mod cache;
mod check;
mod client;
mod config;
mod confirm;
mod connections;
mod cores;
mod deadline;
mod demo;
mod events;
mod fence;
mod init;
mod inject;
mod lab;
mod log;
mod logs;
mod moving;
mod output;
mod part;
mod pool;
mod profile;
mod promise;
mod read;
mod reload;
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

/// The version, with the commit in a package (packaging/build.sh).
const VERSION: &str = match option_env!("PLIMSOLL_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Shared storage in which every request carries a promise, and every layer keeps it or says no at once.
#[derive(Parser)]
#[command(name = "plimsoll", version = VERSION, propagate_version = true)]
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
    /// Check a configuration and its devices, without changing anything
    Check(check::Check),
    /// Write a commented configuration for devices
    Init(init::Init),
    Config(config::Config),
    Reload(reload::Reload),
    Drain(reload::Drain),
    Events(events::Events),
    /// Show the node's state and its problems
    Status(status::Status),
    /// Watch a node: tenants, volumes, layers
    Top(top::Top),
    /// List, create, grow, rename, delete volumes
    Volume(volume::Volume),
    /// List, show, set, remove tenants
    Tenant(tenant::Tenant),
    /// List connected clients
    Connections(connections::Connections),
    /// List and show pools, change settings, back up and restore metadata
    Pool(pool::Pool),
    Inject(inject::Inject),
    /// Show how a pool's cores are shared, and whether they suffice
    Cores(cores::Cores),
    Fence(fence::Fence),
    /// Show a pool's flash cache, resize it, write back its dirty data
    Cache(cache::Cache),
    /// Show a pool's scattered logs, checkpoint their data
    Logs(logs::Logs),
    /// Show the bands of a pool's shingled drive
    Bands(bands::Bands),
    /// Read at random within a deadline, and print each time or Busy
    Read(read::Read),
    /// Measure what a device's requests cost, for the predictors
    Profile(profile::ProfileArgs),
    /// Run the papers' experiments on models, and report (docs/guides/lab.md)
    Lab(lab::Lab),
    /// Replay the recorded inputs of a live pool
    Tape(tape::Tape),
    #[command(flatten)]
    Tool(tools::Tool),
    /// Give a database's users fair, stable service from outside of it
    Shape(Box<shape::Shape>),
}

/// As a shell says of a command that the signal killed.
const SIGPIPE_STATUS: u8 = 128 + 13;

/// `println!` panics when standard output can't be written to. The reader of a pipe that has gone (`plimsoll status | head -1`) is no fault:
/// the command ends, as if the signal had killed it. A full disk is an error. A node sets a hook of its own, and never prints so.
fn end_without_an_output() {
    let say = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let text = info.payload().downcast_ref::<String>();
        match text.and_then(|text| text.strip_prefix("failed printing to stdout: ")) {
            Some(why) if why.contains("Broken pipe") => std::process::exit(SIGPIPE_STATUS.into()),
            Some(why) => {
                let _ = writeln!(std::io::stderr(), "plimsoll: {}{why}", output::UNWRITTEN);
                std::process::exit(1);
            }
            None => say(info),
        }
    }));
}

fn main() -> ExitCode {
    end_without_an_output();
    let cli = Cli::parse(); // misuse ends here with status 2
    let result = match cli.command {
        Command::Serve(c) => c.run(),
        Command::Demo(c) => c.run(),
        Command::Check(c) => c.run(),
        Command::Init(c) => c.run(),
        Command::Config(c) => c.run(),
        Command::Reload(c) => c.run(),
        Command::Drain(c) => c.run(),
        Command::Events(c) => c.run(),
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
        Command::Bands(c) => c.run(),
        Command::Read(c) => c.run(),
        Command::Profile(c) => c.run(),
        Command::Lab(c) => c.run(),
        Command::Tape(c) => c.run(),
        Command::Tool(c) => c.run(),
        Command::Shape(c) => c.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) if lost_its_reader(&e) => ExitCode::from(SIGPIPE_STATUS),
        Err(e) => {
            // Whoever reads it may have gone.
            let _ = writeln!(std::io::stderr(), "plimsoll: {e:#}");
            tools::status(&e).map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// True if the reader of the command's output has gone. A broken pipe of a socket is an error like any other.
fn lost_its_reader(e: &anyhow::Error) -> bool {
    e.downcast_ref::<output::Unwritten>().is_some_and(|e| e.0.kind() == std::io::ErrorKind::BrokenPipe)
}
