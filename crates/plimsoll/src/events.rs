//! `plimsoll events`

use crate::client::{Client, Control, segment};
use crate::output::print;
use anyhow::Result;
use clap::Args;
use plimsoll_node::events::utc;
use plimsoll_node::http::api::{EventStatus, EventsStatus};
use std::time::Duration;

/// Show the event log: changes, problems, clients, refusals
#[derive(Args)]
#[command(
    after_help = "The node keeps the newest 512 events of each kind in memory; its log has them, too.\n\nExamples:\n  plimsoll events --kind problem\n  plimsoll events --follow --json"
)]
pub struct Events {
    /// Print further events as they happen
    #[arg(long, short)]
    follow: bool,
    /// Only events of this kind: node, change, problem, connection, refusal, tls or cleaning
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,
    #[command(flatten)]
    control: Control,
}

/// While following, the node is asked this often.
const LOOK: Duration = Duration::from_millis(500);

impl Events {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let client = Client::new(&self.control)?;
        let kind = self.kind.as_ref().map_or(String::new(), |kind| format!("&kind={}", segment(kind)));
        let mut after = 0;
        loop {
            let found: EventsStatus = client.get(&format!("/v1/events?after={after}{kind}"))?;
            // A node that was restarted counts from 1 again.
            after = if found.last < after { 0 } else { found.last };
            let mut lines = String::new();
            for e in &found.events {
                lines += &if self.control.json { serde_json::to_string(e)? } else { text(e) };
                lines.push('\n');
            }
            print(&lines)?;
            if !self.follow {
                return Ok(());
            }
            std::thread::sleep(LOOK); // the API answers at once and has no stream
        }
    }
}

fn text(e: &EventStatus) -> String {
    let who = e.who.as_ref().map_or(String::new(), |who| format!(" {who}:"));
    format!("{} {:<7} {:<10}{who} {}", utc(e.unix_us), e.severity, e.kind, e.what)
}
