//! `plimsoll host check`: predicted against actual.

use crate::client::print_json;
use crate::table::{micros, table};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_base::{Rng, Span};
use plimsoll_host::accuracy::{AtDeadline, Errors, Pair, at_deadline, errors, took_ns};
use plimsoll_host::agent::{Agent, Judged, TICK, Wanted};
use plimsoll_host::disk;
use plimsoll_host::forecast::Costs;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Compare forecasts with what reads take, and count what deadlines would have refused
///
/// Programs of its own watch the disk under whatever load it has; nothing is refused meanwhile, so both errors are seen: misses (accepted, and
/// late) and needless refusals (refused, and in time). The first reads are learned from and not judged.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  plimsoll host check sda\n  plimsoll host check /srv/data --for 10s --deadline 20ms --json"
)]
pub struct Check {
    /// The disk, by name, path, partition or a file on it.
    disk: String,
    /// Watch for this time after learning.
    #[arg(long = "for", value_name = "TIME", default_value = "1m")]
    time: Span,
    /// A deadline to judge; may be repeated [default: what 50, 90, 95 and 99 of 100 reads took].
    #[arg(long = "deadline", value_name = "TIME")]
    deadlines: Vec<Span>,
    /// Refuse reads whose lateness is at least this probable, in percent.
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100))]
    busy_at: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    disk: String,
    scheduler: String,
    seconds: f64,
    learned_from: u64,
    /// Reads that were timed meanwhile. The errors and deadlines are of all of them, or of a sample.
    timed: u64,
    /// In the end.
    costs: Costs,
    errors: Errors,
    deadlines: Vec<AtDeadline>,
}

/// A disk without enough reads to learn from for this long isn't judged.
const LEARNING: Duration = Duration::from_secs(30);

/// Reads that are judged at most: a sample of all, if there are more. Those of a minute are no more, as a disk has 1400 timed in a second at most.
const MOST: usize = 100_000;

/// A sample of what comes, in which each has the same chance to be (Vitter's algorithm R).
struct Reservoir<T> {
    kept: Vec<T>,
    seen: u64,
    most: usize,
    random: Rng,
}

impl<T> Reservoir<T> {
    fn new(most: usize) -> Reservoir<T> {
        Reservoir { kept: Vec::new(), seen: 0, most, random: Rng::new(1, "host check") }
    }

    fn take(&mut self, item: T) {
        self.seen += 1;
        if self.kept.len() < self.most {
            self.kept.push(item);
        } else if let Some(place) = self.kept.get_mut(self.random.below(self.seen) as usize) {
            *place = item;
        }
    }
}

impl Check {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let Some(found) = disk::named(&self.disk) else {
            return Err(plimsoll_host::agent::StartError::no_disk(&self.disk).into());
        };
        let mut agent = Agent::start(Wanted { disks: vec![found.name.clone()], ..Wanted::default() })?;
        let begun = Instant::now();
        while !agent.disk_mut(found.dev).is_some_and(|w| w.knows() && w.seen() >= 128) {
            if begun.elapsed() > LEARNING {
                bail!(
                    "{}: too few reads in {LEARNING:?} to learn from; run the load that is to be judged beside it",
                    found.name
                );
            }
            agent.tick();
            std::thread::sleep(TICK);
        }
        let gone = || format!("{}: the disk has gone", found.name);
        let watched = agent.disk_mut(found.dev).with_context(gone)?;
        let learned_from = watched.seen();
        watched.judge();
        let (begun, mut sampled) = (Instant::now(), Reservoir::new(MOST));
        while begun.elapsed() < Duration::from(self.time) {
            std::thread::sleep(TICK);
            agent.tick();
            agent.disk_mut(found.dev).with_context(gone)?.judged().into_iter().for_each(|j| sampled.take(j));
        }
        let judged = &sampled.kept;
        let watched = agent.disk_mut(found.dev).with_context(gone)?;
        let pair = |j: &Judged| Pair { took_ns: j.sample.took_ns(), forecast_ns: j.forecast.total_ns };
        let pairs: Vec<Pair> = judged.iter().map(pair).collect();
        if pairs.is_empty() {
            bail!("{}: no reads in {}; run the load that is to be judged beside it", found.name, self.time);
        }
        let mut deadlines: Vec<u64> = self.deadlines.iter().map(|d| d.as_nanos()).collect();
        if deadlines.is_empty() {
            deadlines = took_ns(&pairs, &[50, 90, 95, 99]);
            deadlines.dedup();
        }
        let judge = |ns: u64| {
            let refused = |j: &Judged| j.late_permille(ns) >= self.busy_at * 10;
            at_deadline(ns, judged.iter().map(|j| (pair(j), refused(j))))
        };
        let report = Report {
            scheduler: scheduler(&found.name),
            disk: found.name.clone(),
            seconds: begun.elapsed().as_secs_f64(),
            learned_from,
            timed: sampled.seen,
            costs: *watched.costs(),
            errors: errors(&pairs),
            deadlines: deadlines.into_iter().map(judge).collect(),
        };
        if self.json {
            return print_json(&report);
        }
        print!("{}", text(&report));
        Ok(())
    }
}

/// The disk's I/O scheduler.
fn scheduler(name: &str) -> String {
    let all =
        std::fs::read_to_string(format!("/sys/block/{}/queue/scheduler", name.replace('/', "!"))).unwrap_or_default();
    let chosen = all.split_whitespace().find(|s| s.starts_with('['));
    chosen.map_or_else(|| "none".into(), |s| s.trim_matches(['[', ']']).to_string())
}

fn text(r: &Report) -> String {
    let e = &r.errors;
    let mut text = format!(
        "{} ({}): {} reads timed in {:.0} s, after learning from {}{}\n  they took  p50 {}  p95 {}  p99 {}\n  forecasts erred by  p50 {}  p90 {}  p99 {}\n",
        r.disk,
        r.scheduler,
        r.timed,
        r.seconds,
        r.learned_from,
        if e.reads < r.timed { format!("; a sample of {} is judged", e.reads) } else { String::new() },
        micros(e.took_p50_us),
        micros(e.took_p95_us),
        micros(e.took_p99_us),
        micros(e.error_p50_us),
        micros(e.error_p90_us),
        micros(e.error_p99_us)
    );
    let percent = |n: u64, of: u64| format!("{:.2} %", 100.0 * n as f64 / of.max(1) as f64);
    let rows: Vec<Vec<String>> = r
        .deadlines
        .iter()
        .map(|d| {
            vec![
                micros(d.deadline_us),
                percent(d.late, d.reads),
                percent(d.refused, d.reads),
                format!("{:.2} %", d.missed_percent()),
                format!("{:.2} %", d.needless_percent()),
            ]
        })
        .collect();
    let head = ["DEADLINE", "LATE", "REFUSED", "MISSES OF ACCEPTED", "NEEDLESS OF IN TIME"];
    text.push_str(&table(&head, &rows));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_reads_a_fair_sample_is_kept() {
        let mut few = Reservoir::new(100);
        (0..100).for_each(|i| few.take(i));
        assert_eq!(few.kept, (0..100).collect::<Vec<u64>>());
        let mut many = Reservoir::new(1000);
        (0..100_000u64).for_each(|i| many.take(i));
        assert_eq!((many.kept.len(), many.seen), (1000, 100_000));
        // Of each tenth of them about a hundred.
        for tenth in 0..10 {
            let n = many.kept.iter().filter(|i| **i / 10_000 == tenth).count();
            assert!((60..140).contains(&n), "{tenth}: {n}");
        }
    }
}
