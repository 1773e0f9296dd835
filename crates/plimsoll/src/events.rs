//! `plimsoll events`

use crate::client::{Client, Control, segment};
use anyhow::Result;
use clap::Args;
use plimsoll_node::http::api::{EventStatus, EventsStatus};
use std::io::Write;
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
    /// Only events of this kind: node, change, problem, connection, refusal or tls
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
        let mut out = std::io::stdout().lock();
        let mut after = 0;
        loop {
            let found: EventsStatus = client.get(&format!("/v1/events?after={after}{kind}"))?;
            // A node that was restarted counts from 1 again.
            after = if found.last < after { 0 } else { found.last };
            for e in &found.events {
                let line = if self.control.json { serde_json::to_string(e)? } else { text(e) };
                writeln!(out, "{line}")?;
            }
            out.flush()?;
            if !self.follow {
                return Ok(());
            }
            std::thread::sleep(LOOK); // the API answers at once and has no stream
        }
    }
}

fn text(e: &EventStatus) -> String {
    let who = e.who.as_ref().map_or(String::new(), |who| format!(" {who}:"));
    format!("{} {:<7} {:<10}{who} {}", time(e.unix_us), e.severity, e.kind, e.what)
}

/// A time of UTC, as RFC 3339 has it.
fn time(unix_us: u64) -> String {
    let (days, s) = (unix_us / 86_400_000_000, unix_us / 1_000_000 % 86_400);
    // Days since 0000-03-01, in eras of 400 years (Hinnant, "chrono-compatible low-level date algorithms").
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (s, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_437_296, "2026-11-23T12:34:56Z"),
        ] {
            assert_eq!(time(s * 1_000_000), text);
        }
    }
}
