//! Accepted means kept, live: reads with a deadline at loads from half to three times as much as a device can do. `make promises`.
//!
//! `promises [--seconds S] [--rounds N] [--only CASE] [--load PERCENT] [--limit MINUTES] [--json FILE]`. `--only` takes a part of a case's name;
//! a case that takes longer than the limit (20 minutes) is broken off, and fails. One connection sends reads of 4 KiB at seeded Poisson arrivals, whatever
//! becomes of the ones before. A ticker at real-time priority that only sleeps a millisecond at a time sees the host's pauses: reads that one touches are left
//! out, and a run that leaves out more than 0.5 % is void and repeated, three times at most. Rounds alternate with rounds of the same
//! arrivals without a deadline, which only observe: on a plain device they show how many reads would be late if all were accepted.
//!
//! *Needed* refusals are those of a server that knows what each read takes, first come, first served (tests/common/promised.rs): with the
//! times of lone reads, and the throughput of a closed loop. Refusals beyond 1.1 times that fail, or beyond a percent of the reads where less is
//! needed. Those of disks are only listed: a part of a read's time is chance there (KEPT in the lab).
//!
//! A read's time is its client's; that by the node's clock, of whole runs, is without the waits in sockets and for a processor.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Server;
use common::busy::{Metrics, config};
use common::client::Client;
use common::promised::{CASES, Case, Served};
use plimsoll_base::Rng;
use plimsoll_nbd::wire::{Command, CommandFlags};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const LOADS: [u64; 4] = [50, 100, 200, 300];
/// Reads that a closed loop keeps inside to find out what the device can do.
const SATURATED: usize = 16;
/// Reads inside at most when nothing is refused.
const INSIDE_MAX: usize = 4096;
/// The ticker's sleep, and its oversleeping that is a pause.
const TICK: Duration = Duration::from_millis(1);
const RUNS_MAX: usize = 3;
const EXCLUDED_MAX: f64 = 0.005;
/// Refusals over the needed ones that are the goal, and percent of needed ones below which a ratio is chance.
const REFUSED_TIMES: f64 = 1.1;
const NEEDED_LEAST: f64 = 1.0;

/// One read that ended.
struct Read {
    sent: Instant,
    ended: Instant,
    refused: bool,
}

/// A stretch in which the host didn't run this process.
type Pause = (Instant, Instant);

struct Ticker {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Vec<Pause>>,
}

/// So that the ticker waits for the host only, not for the node or the load, whose waits are what is measured.
fn to_real_time(thread: rustix::thread::Pid) {
    let id = thread.as_raw_nonzero().to_string();
    let chrt = std::process::Command::new("chrt").args(["--fifo", "--pid", "50", &id]).status();
    assert!(chrt.is_ok_and(|s| s.success()), "a ticker in real time needs `chrt` and root");
}

impl Ticker {
    fn start() -> Ticker {
        let stop = Arc::new(AtomicBool::new(false));
        let ends = stop.clone();
        let thread = std::thread::spawn(move || {
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            to_real_time(rustix::thread::gettid());
            let mut pauses = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let began = Instant::now();
                std::thread::sleep(TICK);
                if began.elapsed() > 2 * TICK {
                    pauses.push((began + TICK, Instant::now()));
                }
            }
            pauses
        });
        Ticker { stop, thread }
    }

    fn end(self) -> Vec<Pause> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it only sleeps")
    }
}

fn offset(rng: &mut Rng, span: u64) -> u64 {
    rng.below(span / 4096) * 4096
}

/// Receives one answer if one comes before `until`.
fn receive(client: &mut Client, until: Instant) -> Option<(u64, bool)> {
    let left = until.saturating_duration_since(Instant::now()).max(Duration::from_micros(1));
    client.stream().set_read_timeout(Some(left)).expect("a time");
    match client.receive() {
        Ok((cookie, ended)) => Some((cookie, ended.is_err())),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => None,
        Err(e) => panic!("the node is gone: {e}"),
    }
}

/// Reads a second that a closed loop gets.
fn saturated(client: &mut Client, rng: &mut Rng, span: u64, time: Duration) -> f64 {
    let mut send = |client: &mut Client| {
        client.send(Command::Read, CommandFlags::EMPTY, offset(rng, span), 4096, &[]).expect("sent");
    };
    (0..SATURATED).for_each(|_| send(client));
    let (began, mut ended) = (Instant::now(), 0u32);
    client.stream().set_read_timeout(None).expect("a time");
    while began.elapsed() < time {
        client.receive().expect("an answer").1.expect("no deadline, no error");
        ended += 1;
        send(client);
    }
    let rate = f64::from(ended) / began.elapsed().as_secs_f64();
    (0..SATURATED).for_each(|_| drop(client.receive().expect("an answer")));
    rate
}

/// Times of reads one after the other, in ms.
fn lone(client: &mut Client, rng: &mut Rng, span: u64, time: Duration) -> Vec<f64> {
    let mut took = Vec::new();
    client.stream().set_read_timeout(None).expect("a time");
    let began = Instant::now();
    while began.elapsed() < time {
        let sent = Instant::now();
        client.read(offset(rng, span), 4096).expect("an answer").expect("no deadline, no error");
        took.push(sent.elapsed().as_secs_f64() * 1e3);
    }
    took
}

/// Sends Poisson arrivals at `rate` a second for `time`; all ends.
fn open_loop(client: &mut Client, case: &Case, seed: u64, rate: f64, time: Duration) -> Vec<Read> {
    let mut rng = Rng::new(seed, "arrivals");
    let mut inside: BTreeMap<u64, Instant> = BTreeMap::new();
    let mut reads = Vec::new();
    let began = Instant::now();
    let mut next = began;
    loop {
        let sending = next.duration_since(began) < time;
        if !sending && inside.is_empty() {
            return reads;
        }
        if sending && Instant::now() >= next && inside.len() < INSIDE_MAX {
            let cookie =
                client.send(Command::Read, CommandFlags::EMPTY, offset(&mut rng, case.span), 4096, &[]).expect("sent");
            inside.insert(cookie, Instant::now());
            // Whoever only sends is not read from any more, once the node can't send.
            while let Some((cookie, refused)) = receive(client, Instant::now()) {
                let sent = inside.remove(&cookie).expect("it was sent");
                reads.push(Read { sent, ended: Instant::now(), refused });
            }
            let uniform = (rng.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64;
            next += Duration::from_secs_f64(-uniform.ln() / rate);
            continue;
        }
        let until = if sending && inside.len() < INSIDE_MAX { next } else { Instant::now() + Duration::from_secs(1) };
        if let Some((cookie, refused)) = receive(client, until) {
            let sent = inside.remove(&cookie).expect("it was sent");
            reads.push(Read { sent, ended: Instant::now(), refused });
        }
    }
}

/// Counts of the reads of one run.
#[derive(Clone, Copy, Default)]
struct Outcome {
    reads: usize,
    excluded: usize,
    refused: usize,
    accepted: usize,
    missed: usize,
    p99_ms: f64,
    needed_percent: f64,
}

fn judge(reads: &[Read], pauses: &[Pause], deadline_ms: f64, served: &Served, seed: u64) -> Outcome {
    // The first quarter teaches.
    let first = reads.len() / 4;
    let judged = &reads[first..];
    let mut sent: Vec<Instant> = reads.iter().map(|r| r.sent).collect();
    sent.sort_unstable();
    let arrivals: Vec<f64> = sent.iter().map(|at| at.duration_since(sent[0]).as_secs_f64() * 1e3).collect();
    let touched = |r: &&Read| !pauses.iter().any(|(from, to)| r.sent < *to && *from < r.ended);
    let clean: Vec<&Read> = judged.iter().filter(touched).collect();
    let took = |r: &&Read| r.ended.duration_since(r.sent).as_secs_f64() * 1e3;
    let mut times: Vec<f64> = clean.iter().copied().filter(|r| !r.refused).map(|r| took(&r)).collect();
    times.sort_by(f64::total_cmp);
    Outcome {
        reads: judged.len(),
        excluded: judged.len() - clean.len(),
        refused: clean.iter().filter(|r| r.refused).count(),
        accepted: times.len(),
        missed: times.iter().filter(|t| **t > deadline_ms).count(),
        p99_ms: times.get(times.len() * 99 / 100).copied().unwrap_or(0.0),
        needed_percent: served.needed_percent(&arrivals, first, deadline_ms, seed),
    }
}

/// Numbers of reads that the node answered in time, and late, until now.
fn counted(server: &Server) -> [f64; 2] {
    let metrics = Metrics::of(server);
    ["met", "missed"].map(|result| metrics.of_tenant("plimsoll_deadlines_total", "web", ("result", result)))
}

fn percent(n: usize, of: usize) -> f64 {
    100.0 * n as f64 / of.max(1) as f64
}

/// Load of one run.
#[derive(Clone, Copy)]
struct Load {
    seed: u64,
    per_s: f64,
    time: Duration,
}

/// Runs until the host left enough alone. Returns what such a run has, with the percent of late reads by the node's clock; `None` if all are void.
fn run(server: &Server, client: &mut Client, case: &Case, served: &Served, load: Load) -> Option<(Outcome, f64)> {
    (0..RUNS_MAX).find_map(|attempt| {
        let before = counted(server);
        let ticker = Ticker::start();
        let seed = load.seed + (attempt as u64) * 1000;
        let reads = open_loop(client, case, seed, load.per_s, load.time);
        let outcome = judge(&reads, &ticker.end(), case.deadline_ms, served, seed);
        let after = counted(server);
        let (met, late) = (after[0] - before[0], after[1] - before[1]);
        let is_valid = outcome.excluded as f64 <= EXCLUDED_MAX * outcome.reads as f64;
        is_valid.then(|| (outcome, 100.0 * late / (met + late).max(1.0)))
    })
}

struct Options {
    time: Duration,
    rounds: u64,
    only: Option<String>,
    load: Option<u64>,
    limit: Duration,
    json: Option<String>,
}

fn options() -> Options {
    let limit = Duration::from_secs(20 * 60);
    let mut o = Options { time: Duration::from_secs(20), rounds: 3, only: None, load: None, limit, json: None };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--seconds" => o.time = Duration::from_secs(value().parse().expect("seconds")),
            "--rounds" => o.rounds = value().parse().expect("a number"),
            "--only" => o.only = Some(value()),
            "--load" => o.load = Some(value().parse().expect("percent")),
            "--limit" => o.limit = Duration::from_secs(60 * value().parse::<u64>().expect("minutes")),
            "--json" => o.json = Some(value()),
            "--bench" => {} // cargo's
            other => {
                panic!("{other}: --seconds S, --rounds N, --only CASE, --load PERCENT, --limit MINUTES, --json FILE")
            }
        }
    }
    o
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let o = options();
    println!(
        "reads of 4 KiB, Poisson; medians of {} rounds of {} s, their first quarter left out",
        o.rounds,
        o.time.as_secs()
    );
    println!(
        "| pool | load | missed of accepted | by the node's clock | p99 ms | refused | needed | times | late if all are accepted | void |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let mut rows = Vec::new();
    let (mut broken, mut too_often, mut by_chance) = (Vec::new(), Vec::new(), Vec::new());
    for case in CASES.iter().filter(|c| o.only.as_ref().is_none_or(|only| c.name.contains(only.as_str()))) {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let Some(prepared) = case.prepared(dir.path()) else { continue };
        let begun = Instant::now();
        let server = Server::start(dir.path(), &config(&prepared.pool, "", "1GiB"));
        let mut plain = Client::connect(&server.socket(), "vol").expect("it's there");
        fill(&mut plain, case.span);
        let promised = format!("vol?deadline={}&busy=error", case.deadline);
        let mut promised = Client::connect(&server.socket(), &promised).expect("it's there");
        let rate = saturated(&mut plain, &mut Rng::new(1, "saturated"), case.span, Duration::from_secs(5));
        let served = Served::new(lone(&mut plain, &mut Rng::new(1, "lone"), case.span, Duration::from_secs(5)), rate);
        for load in LOADS.into_iter().filter(|load| o.load.is_none_or(|only| only == *load)) {
            let asked = rate * load as f64 / 100.0;
            let (mut missed, mut p99, mut refused, mut late, mut void) = (vec![], vec![], vec![], vec![], 0);
            let (mut inside, mut needed, mut accepted, mut is_broken_off) = (vec![], vec![], 0, false);
            for round in 0..o.rounds {
                if begun.elapsed() > o.limit {
                    is_broken_off = true;
                    break;
                }
                let seed = 100 * load + round;
                eprintln!("{}, {load} % of {rate:.0}/s, round {} of {}", case.name, round + 1, o.rounds);
                let load_of = Load { seed, per_s: asked, time: o.time };
                if let Some((with, by_node)) = run(&server, &mut promised, case, &served, load_of) {
                    inside.push(by_node);
                    missed.push(percent(with.missed, with.accepted));
                    accepted += with.accepted;
                    p99.push(with.p99_ms);
                    needed.push(with.needed_percent);
                    refused.push(percent(with.refused, with.reads - with.excluded));
                } else {
                    void += 1;
                }
                // Above what it can do nearly all are late: nothing to observe.
                if load < 100
                    && let Some((without, _)) = run(&server, &mut plain, case, &served, load_of)
                {
                    late.push(percent(without.missed, without.accepted));
                }
            }
            let worst = missed.iter().copied().fold(0.0, f64::max);
            let (missed, p99, refused, late) =
                (median(&mut missed), median(&mut p99), median(&mut refused), median(&mut late));
            let (inside, needed) = (median(&mut inside), median(&mut needed));
            let times = (needed >= NEEDED_LEAST).then(|| refused / needed);
            // Where next to none are needed, a ratio is chance: there it's a share of all reads.
            if times.map_or(refused > needed + NEEDED_LEAST, |times| times > REFUSED_TIMES) {
                let list = if case.has_chance { &mut by_chance } else { &mut too_often };
                list.push(format!("{}, {load} %: {refused:.1} of {needed:.1} %", case.name));
            }
            if is_broken_off {
                broken.push(format!("{}, {load} %: broken off after {} s", case.name, begun.elapsed().as_secs()));
            } else if missed.is_nan() {
                broken.push(format!("{}, {load} %: all rounds are void", case.name));
            } else if accepted == 0 {
                broken.push(format!("{}, {load} %: no read was accepted", case.name));
            } else if missed > 1.0 {
                broken.push(format!("{}, {load} %: {missed:.2} % missed", case.name));
            }
            let observed = if late.is_nan() { "–".into() } else { format!("{late:.1} %") };
            println!(
                "| {} | {load} % | {missed:.2} % (≤ {worst:.2}) | {inside:.2} % | {p99:.1} | {refused:.1} % | {needed:.1} % | {} | {observed} | {void} of {} |",
                case.name,
                times.map_or("–".into(), |times| format!("{times:.2}")),
                o.rounds
            );
            rows.push(serde_json::json!({
                "pool": case.name, "load_percent": load, "capacity_per_s": rate, "missed_percent": missed, "missed_worst_percent": worst,
                "missed_inside_percent": inside,
                "p99_ms": p99, "refused_percent": refused, "needed_percent": needed, "refused_times": times, "late_if_accepted_percent": if late.is_nan() { None } else { Some(late) },
                "void_rounds": void, "broken_off": is_broken_off,
            }));
        }
    }
    if let Some(file) = o.json {
        std::fs::write(&file, serde_json::to_string_pretty(&rows).expect("plain")).expect("written");
    }
    if !by_chance.is_empty() {
        println!(
            "refused more than {REFUSED_TIMES} times of what is needed, where forecasts can't know it: {}",
            by_chance.join("; ")
        );
    }
    if !too_often.is_empty() {
        eprintln!("refused more than {REFUSED_TIMES} times of what is needed: {}", too_often.join("; "));
    }
    if !broken.is_empty() {
        eprintln!(
            "more than 1 % of the accepted reads missed their deadline, or it isn't known: {}",
            broken.join("; ")
        );
    }
    if rows.is_empty() {
        eprintln!("nothing was measured: --only names no case, or none can be made here");
    }
    if rows.is_empty() || !broken.is_empty() || !too_often.is_empty() {
        std::process::exit(1);
    }
}

/// Writes what is read, so that the device behind has bytes there.
fn fill(client: &mut Client, span: u64) {
    let block = vec![0xA5; 1 << 20];
    for at in (0..span).step_by(1 << 20) {
        client.write(at, &block).expect("an answer").expect("written");
    }
    client.flush().expect("an answer").expect("flushed");
}
