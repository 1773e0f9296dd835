//! `plimsoll pool …`

use crate::client::{Client, Control, print_json, segment};
use crate::table::{bytes, micros, table};
use anyhow::Result;
use clap::{Args, Subcommand};
use hyper::Method;
use plimsoll_base::Span;
use plimsoll_node::config::ByteSize;
use plimsoll_node::http::knobs::{KnobsChange, KnobsView};

/// Show and change a pool's settings; bring it back after a failed flush.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll pool show main\n  plimsoll pool set main --idle-time 16ms --control control.sock\n  plimsoll pool recover main --control control.sock"
)]
pub struct Pool {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Believe flushes again, after you have looked at the device and at what was lost
    #[command(after_help = "Example:\n  plimsoll pool recover main --control control.sock")]
    Recover {
        /// Its name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Show what can be tuned while it serves, as it is now
    #[command(after_help = "Example:\n  plimsoll pool show main")]
    Show {
        /// Its name.
        name: String,
        #[command(flatten)]
        control: Control,
    },
    /// Change that, each setting until something else is configured for it; what isn't said stays
    #[command(
        after_help = "Time slots are changed with `plimsoll fence set`, deadlines with `plimsoll volume deadline`.\n\nExamples:\n  \
        plimsoll pool set main --idle-time 16ms\n  plimsoll pool set main --logged-write 64KiB --fingerprints 50"
    )]
    Set(Set),
}

#[derive(Args)]
#[group(required = true, multiple = true, args = ["idle_time", "logged_write", "fingerprints", "core_slack_low", "core_slack_high", "core_poll_windows"])]
struct Set {
    /// Its name.
    name: String,
    /// How long cfq keeps the device for a client's next request.
    #[arg(long, value_name = "TIME")]
    idle_time: Option<Span>,
    /// Writes up to this are logged (LoggedWriteSize); 0B: none.
    #[arg(long, value_name = "SIZE")]
    logged_write: Option<ByteSize>,
    /// Fingerprints that the cache keeps, in percent of its extents.
    #[arg(long, value_name = "PERCENT")]
    fingerprints: Option<u32>,
    /// With less slack than this, QWin gives cores aggressively.
    #[arg(long, value_name = "TIME")]
    core_slack_low: Option<Span>,
    /// With more than this, conservatively.
    #[arg(long, value_name = "TIME")]
    core_slack_high: Option<Span>,
    /// Windows from one look at the slack to the next.
    #[arg(long, value_name = "N")]
    core_poll_windows: Option<u64>,
    #[command(flatten)]
    control: Control,
}

impl Pool {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Recover { name, control } => {
                Client::new(&control)?.order(Method::POST, &format!("/v1/pools/{}/recover", segment(&name)))
            }
            Command::Show { name, control } => show(&Client::new(&control)?.get(&path(&name))?, &control),
            Command::Set(set) => set.run(),
        }
    }
}

impl Set {
    fn run(self) -> Result<()> {
        let us = |s: Option<Span>| s.map(Span::as_micros);
        let change = KnobsChange {
            idle_us: us(self.idle_time),
            logged_write_bytes: self.logged_write.map(|b| b.0),
            fingerprints_percent: self.fingerprints,
            core_slack_low_us: us(self.core_slack_low),
            core_slack_high_us: us(self.core_slack_high),
            core_poll_windows: self.core_poll_windows,
        };
        show(&Client::new(&self.control)?.send(Method::PATCH, &path(&self.name), &change)?, &self.control)
    }
}

fn path(name: &str) -> String {
    format!("/v1/pools/{}/knobs", segment(name))
}

fn show(k: &KnobsView, control: &Control) -> Result<()> {
    if control.json {
        return print_json(k);
    }
    let all = [
        ("idle time", k.idle_us.map(micros)),
        ("logged write", k.logged_write_bytes.map(bytes)),
        ("fingerprints", k.fingerprints_percent.map(|p| format!("{p} %"))),
        ("core slack, low", k.core_slack_low_us.map(micros)),
        ("core slack, high", k.core_slack_high_us.map(micros)),
        ("core poll windows", k.core_poll_windows.map(|n| n.to_string())),
    ];
    let rows: Vec<Vec<String>> = all.into_iter().filter_map(|(n, v)| Some(vec![n.to_string(), v?])).collect();
    print!("{}", table(&["SETTING", "NOW"], &rows));
    Ok(())
}
