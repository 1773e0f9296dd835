//! `plimsoll logs …`

use crate::client::{Client, Control, print_json};
use crate::part;
use crate::table::{bytes, micros};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use hyper::Method;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_node::parts::logs::{Logs as Layer, LogsView};
use std::io::IsTerminal;
use std::time::Duration;

/// Show a pool's scattered logs, checkpoint their data.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll logs status main")]
pub struct Logs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show a map of the logs on the disk, swaps, checkpoints and the MTL table
    #[command(visible_alias = "show", after_help = "Example:\n  plimsoll logs status main --json")]
    Status {
        /// Pool [default: the only one with logs].
        pool: Option<String>,
        #[command(flatten)]
        control: Control,
    },
    /// Checkpoint: write logged data to their place, and wait for it
    #[command(after_help = "Example:\n  plimsoll logs checkpoint main --control control.sock")]
    Checkpoint {
        /// Pool [default: the only one with logs].
        pool: Option<String>,
        /// Start it and return at once.
        #[arg(long)]
        no_wait: bool,
        #[command(flatten)]
        control: Control,
    },
}

impl Logs {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Status { pool, control } => {
                let client = Client::new(&control)?;
                let (name, view) = find(&client, pool)?;
                part::show::<Layer>(&name, &view, &control)
            }
            Command::Checkpoint { pool, no_wait, control } => {
                let client = Client::new(&control)?;
                let (name, before) = find(&client, pool)?;
                client.order(Method::POST, &part::path(&name, "logs/checkpoint"))?;
                if no_wait {
                    return Ok(());
                }
                let view = wait(&client, &name, before.valid_bytes)?;
                let done_bytes = view.cleaned_bytes - before.cleaned_bytes;
                if done_bytes == 0 && before.valid_bytes > 0 && view.valid_bytes > 0 {
                    bail!(
                        "pool `{name}`: none of the logged data could be written to their place, {} stay logged: `plimsoll status` has the \
                         reason, such as a full file system or a device that fails",
                        bytes(view.valid_bytes)
                    );
                }
                if control.json {
                    return print_json(&view);
                }
                let took = view.last_cleaning_us.map_or("-".into(), micros);
                println!(
                    "pool {name}: {} checkpointed in {took}, {} are logged now",
                    bytes(done_bytes),
                    bytes(view.valid_bytes)
                );
                Ok(())
            }
        }
    }
}

/// The pool meant, and its logs.
fn find(client: &Client, named: Option<String>) -> Result<(String, LogsView)> {
    let name = part::pool_with::<Layer>(client, named)?;
    let view = part::view::<Layer>(client, &name)?;
    Ok((name, view))
}

/// Until the checkpoint that was asked for has ended.
fn wait(client: &Client, name: &str, bytes_before: u64) -> Result<LogsView> {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(bytes_before) } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{wide_bar} {bytes}/{total_bytes} {eta}").expect("a constant template"));
    loop {
        let view: LogsView = part::view::<Layer>(client, name)?;
        if view.cleaning.is_none() {
            bar.finish_and_clear();
            return Ok(view);
        }
        bar.set_position(bytes_before.saturating_sub(view.cleaning_left_bytes));
        std::thread::sleep(Duration::from_millis(100));
    }
}
