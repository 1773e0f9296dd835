//! `plimsoll shape`: starts a server under the shim, or a proxy before one, and looks after the gate.

mod drive;
mod knobs;
mod proxy;
mod run;
mod top;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use plimsoll_shape::control::PMode;
use plimsoll_shape::segment::Segment;
use plimsoll_shape::tune::parallelism::TunerConfig;
use plimsoll_shape::users::{GroupBy, Rule, parse_rules};
use std::path::{Path, PathBuf};

/// Give a database's users fair, stable service from outside of it.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(
    after_help = "Examples:\n  plimsoll shape --profile mysql-thread --p auto --user mysql -- mariadbd --datadir=/var/lib/mysql\n  plimsoll shape top\n  plimsoll shape set p=16 weight:web=3"
)]
pub struct Shape {
    #[command(subcommand)]
    command: Option<ShapeCommand>,
    #[command(flatten)]
    run: run::Run,
}

#[derive(Subcommand)]
enum ShapeCommand {
    /// Watch users, their shares and waits
    Top(top::Top),
    /// Change knobs: p=16, p=auto, zeta=8, lend_ms=20, stall_ms=50, hold_ms=10000, pressure=500, weight:USER=3
    Set(knobs::Set),
    /// Hold all knobs where they are; `--undo` lets them move again
    Freeze(knobs::Freeze),
    /// Let everything pass; `--undo` shapes again
    Off(knobs::Off),
    /// Print metrics in Prometheus' text format
    Metrics(top::Metrics),
    /// Shape as a TCP proxy, for servers that nothing can be preloaded into
    Proxy(proxy::Proxy),
    /// Put a TPC-C-like, YCSB-like or hot-row load on a server
    Drive(drive::Drive),
}

impl Shape {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            None => self.run.run(),
            Some(ShapeCommand::Top(c)) => c.run(),
            Some(ShapeCommand::Set(c)) => c.run(),
            Some(ShapeCommand::Freeze(c)) => c.run(),
            Some(ShapeCommand::Off(c)) => c.run(),
            Some(ShapeCommand::Metrics(c)) => c.run(),
            Some(ShapeCommand::Proxy(c)) => c.run(),
            Some(ShapeCommand::Drive(c)) => c.run(),
        }
    }
}

/// Which shaped server is meant.
#[derive(Args)]
pub struct Which {
    /// The control segment's file.
    #[arg(long, value_name = "FILE", default_value = "/run/plimsoll/shape.segment", env = "PLIMSOLL_SHAPE_CONTROL")]
    control: PathBuf,
}

impl Which {
    fn open(&self) -> Result<Segment> {
        let hint = "is a server running under `plimsoll shape`? Name its file with --control";
        Segment::open(&self.control).with_context(|| format!("{}: {hint}", self.control.display()))
    }
}

/// This thread's id, for the segment's lock.
fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// `auto`, or a number.
fn p_mode(text: &str) -> Result<PMode, String> {
    match text {
        "auto" => Ok(PMode::Auto(TunerConfig::default())),
        "unlimited" => Ok(PMode::Fixed(plimsoll_shape::gate::P_UNLIMITED)),
        n => n
            .parse()
            .map(PMode::Fixed)
            .map_err(|_| format!("`{n}` is neither auto, unlimited nor a number of transactions")),
    }
}

fn group_by(text: &str) -> Result<GroupBy, String> {
    match text {
        "account" => Ok(GroupBy::Account),
        "database" => Ok(GroupBy::Database),
        "peer" => Ok(GroupBy::Peer),
        "connection" => Ok(GroupBy::Connection),
        other => Err(format!("`{other}` is none of account, database, peer, connection")),
    }
}

fn read_rules(path: Option<&Path>) -> Result<Vec<Rule>> {
    let Some(path) = path else { return Ok(Vec::new()) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    match parse_rules(&text) {
        Ok(rules) => Ok(rules),
        Err(e) => bail!("{}: {e}", path.display()),
    }
}
