//! `plimsoll host top`: who makes whom wait.

use crate::client::print_json;
use crate::table::{bytes, micros, table};
use anyhow::Result;
use clap::Args;
use plimsoll_base::Span;
use plimsoll_host::agent::{Requests, cgroup_of};
use plimsoll_host::blame::{Blame, Had, Owner};
use plimsoll_host::disk;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Watch who makes whom wait, by process and control group
///
/// A line is a process's requests of a disk: their rate, the share of the disk's time, what they took, and for whose requests they
/// waited most. Needs no agent and no promise. Writes that the kernel writes back for others count as a kernel thread's (kworker).
#[derive(Args)]
#[command(after_help = "Examples:\n  plimsoll host top\n  plimsoll host top --once --every 5s --json")]
pub struct Top {
    /// Print once and end.
    #[arg(long)]
    once: bool,
    /// Length of each picture.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    every: Span,
    /// Lines at most.
    #[arg(long, default_value_t = 30)]
    lines: usize,
    /// Print JSON, a document each time.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Picture {
    seconds: f64,
    /// Requests that came too fast to be counted.
    lost: u64,
    owners: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    disk: String,
    process: u32,
    command: String,
    cgroup: String,
    requests: u64,
    bytes: u64,
    disk_percent: f64,
    took_us: u64,
    waited_us: u64,
    waited_for: Vec<WaitedFor>,
}

#[derive(Serialize)]
struct WaitedFor {
    process: u32,
    command: String,
    /// Of a request, on average.
    waited_us: u64,
}

impl Top {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let mut requests = Requests::open()?;
        let mut blame = Blame::default();
        let mut lost_before = 0;
        loop {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from(self.every) {
                std::thread::sleep(Duration::from_millis(20));
                for ended in requests.by_ref() {
                    blame.ended(ended);
                }
            }
            let lost = requests.lost();
            let picture = picture(blame.take(), begun.elapsed(), lost - lost_before);
            lost_before = lost;
            if self.json {
                print_json(&picture)?;
            } else {
                let clear = if !self.once && std::io::stdout().is_terminal() { "\x1b[2J\x1b[H" } else { "" };
                print!("{clear}{}", text(&picture, self.lines));
                std::io::stdout().flush()?;
            }
            if self.once {
                return Ok(());
            }
        }
    }
}

fn picture(had: BTreeMap<(u32, Owner), Had>, time: Duration, lost: u64) -> Picture {
    let names: BTreeMap<u32, String> = disk::all().into_iter().map(|d| (d.dev, d.name)).collect();
    let row = |((dev, owner), had): ((u32, Owner), Had)| {
        let each = |ns: u64| ns / had.requests.max(1) / 1000;
        let mut waited_for: Vec<WaitedFor> = had
            .waited_ns
            .iter()
            .map(|(o, ns)| WaitedFor { process: o.process, command: o.command.clone(), waited_us: each(*ns) })
            .collect();
        waited_for.sort_by_key(|w| std::cmp::Reverse(w.waited_us));
        Row {
            disk: names.get(&dev).cloned().unwrap_or_else(|| format!("{}:{}", dev >> 20, dev & 0xf_ffff)),
            cgroup: cgroup_of(owner.process).unwrap_or_default(),
            process: owner.process,
            command: owner.command,
            requests: had.requests,
            bytes: had.bytes,
            disk_percent: 100.0 * had.disk_ns as f64 / time.as_nanos() as f64,
            took_us: each(had.took_ns),
            waited_us: each(had.waited_ns.values().sum()),
            waited_for,
        }
    };
    let mut owners: Vec<Row> = had.into_iter().map(row).collect();
    owners.sort_by(|a, b| b.disk_percent.total_cmp(&a.disk_percent));
    Picture { seconds: time.as_secs_f64(), lost, owners }
}

fn text(p: &Picture, lines: usize) -> String {
    let rows: Vec<Vec<String>> = p
        .owners
        .iter()
        .take(lines)
        .map(|r| {
            let most = r.waited_for.first().filter(|w| w.waited_us > 0);
            vec![
                r.disk.clone(),
                r.process.to_string(),
                shown(&r.command),
                shown(&r.cgroup),
                format!("{:.0}", r.requests as f64 / p.seconds),
                bytes((r.bytes as f64 / p.seconds) as u64),
                format!("{:.0} %", r.disk_percent),
                micros(r.took_us),
                micros(r.waited_us),
                most.map_or_else(String::new, |w| {
                    format!("{} {}, {}", w.process, shown(&w.command), micros(w.waited_us))
                }),
            ]
        })
        .collect();
    let head = ["DISK", "PID", "COMMAND", "CGROUP", "IOPS", "BYTES/S", "DISK", "TOOK", "WAITED", "MOST FOR"];
    let mut text = table(&head, &rows);
    if p.owners.len() > lines {
        text.push_str(&format!("and {} more\n", p.owners.len() - lines));
    }
    if p.lost > 0 {
        text.push_str(&format!("{} requests came too fast to be counted\n", p.lost));
    }
    text
}

/// A name that a program gave itself: it may have a terminal's control characters.
fn shown(name: &str) -> String {
    name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_control_no_terminal() {
        let owner = |command: &str| Owner { process: 7, command: command.into() };
        let had = Had { requests: 1, waited_ns: [(owner("\u{9b}2J"), 9_000_000)].into(), ..Had::default() };
        let picture = picture([((0, owner("a\x1b[2J\r\nb")), had)].into(), Duration::from_secs(1), 0);
        let text = text(&picture, 10);
        assert!(text.contains("a\\u{1b}[2J\\r\\nb") && text.contains("\\u{9b}2J"), "{text}");
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text:?}");
    }
}
