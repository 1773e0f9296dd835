//! `plimsoll tape …`

use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_node::engine::tape::TapeReader;
use plimsoll_stack::tape::{Entry, Replay};
use serde_json::json;
use std::io::IsTerminal;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

/// Replay the recorded inputs of a live pool, and compare its decisions.
#[derive(Args)]
#[command(after_help = "A pool records a tape when its configuration says `tape = \"FILE\"`.\n\n\
                        Example:\n  plimsoll tape replay main.tape")]
pub struct Tape {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Feed the recorded inputs to the same layers, and compare every decision
    #[command(after_help = "Example:\n  plimsoll tape replay main.tape --json")]
    Replay {
        /// The tape.
        file: PathBuf,
        /// Replay with N requests at the device instead, to find the first different decision
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
        depth: Option<u32>,
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
}

impl Tape {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let Command::Replay { file, depth, json } = self.command;
        let mut tape = TapeReader::open(&file)?;
        let failed = |e: &dyn std::error::Error| anyhow!("{}: {e}", file.display());
        let mut plan = plimsoll_node::plan::recorded(&tape.header).map_err(|e| failed(&e))?;
        plan.scheduler.options.depth = depth.unwrap_or(plan.scheduler.options.depth);
        let stack = plimsoll_pool::build(&plan, tape.header.offers()).map_err(|e| failed(&e))?;
        let mut replay = Replay::new(stack);
        let bar = bar(std::fs::metadata(&file).map_or(0, |m| m.len()));
        // A panic of the replay is told as an error, once.
        let noisy = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let all = replay_all(&mut tape, &mut replay, &bar);
        std::panic::set_hook(noisy);
        bar.finish_and_clear();
        all?;
        let seen = replay.seen();
        let name = &tape.header.pool;
        if json {
            println!("{}", json!({ "pool": name, "same": true, "replayed": seen }));
            return Ok(());
        }
        println!("pool `{name}`: {:.3} s of tape, {} calls", seen.ends_at_ns as f64 / 1e9, seen.told);
        println!("all {} decisions as recorded", seen.decided);
        println!("{} requests accepted, {} refused; {} sent to devices", seen.accepted, seen.refused, seen.to_devices);
        if !seen.complete {
            println!("the tape was cut: the pool did not end in order, or its tape had its full size");
        }
        Ok(())
    }
}

fn replay_all(tape: &mut TapeReader, replay: &mut Replay, bar: &ProgressBar) -> Result<()> {
    while let Some(entries) = tape.next_frame()? {
        for entry in &entries {
            step(replay, entry).map_err(|what| anyhow!("{}: {what}", tape.path().display()))?;
        }
        bar.set_position(tape.position());
    }
    Ok(())
}

/// One entry. A tape that no pool recorded may tell what can't happen (an answer to nothing), and layers assert that it
/// doesn't: here that is the tape's fault and not theirs.
fn step(replay: &mut Replay, entry: &Entry) -> std::result::Result<(), String> {
    // The stack isn't used again after a panic.
    match catch_unwind(AssertUnwindSafe(|| replay.step(entry))) {
        Ok(step) => step.map_err(|d| format!("decided otherwise: {d}")),
        Err(panic) => {
            let said = panic.downcast_ref::<String>().cloned();
            let said = said.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default();
            Err(format!("tells what can't have happened ({said}): it isn't as a pool recorded it"))
        }
    }
}

fn bar(bytes: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {eta}").expect("a constant template");
    ProgressBar::new(bytes).with_style(style)
}
