//! Measures the flash model's speed: `cargo run --release -p plimsoll-device --example flash_speed`.
//!
//! Random 4 KiB requests in a closed loop on a drive in steady state, so that garbage is collected all the time.
//! Options: `--profile NAME` (default nvme-modern), `--gib N` logical capacity (default 16), `--requests N` (default
//! 2,000,000), `--reads PERCENT` (default 50), `--depth N` (default 64), `--seed N` (default 1).

#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::process::ExitCode;
use std::time::Instant;

use plimsoll_base::{LatencyHistogram, Rng, Time};
use plimsoll_device::{Flash, FlashOptions, FlashSpec, History, Model, Op, Request};

fn main() -> ExitCode {
    let (mut profile, mut gib, mut requests) = (String::from("nvme-modern"), 16u64, 2_000_000u64);
    let (mut reads, mut depth, mut seed) = (50u64, 64u64, 1u64);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next();
        let number = value.as_deref().and_then(|v| v.parse().ok());
        match (arg.as_str(), value, number) {
            ("--profile", Some(name), _) => profile = name,
            ("--gib", _, Some(n)) => gib = n,
            ("--requests", _, Some(n)) => requests = n,
            ("--reads", _, Some(n)) => reads = n,
            ("--depth", _, Some(n)) => depth = n,
            ("--seed", _, Some(n)) => seed = n,
            _ => {
                eprintln!(
                    "usage: flash_speed [--profile NAME] [--gib N] [--requests N] [--reads %] [--depth N] [--seed N]"
                );
                return ExitCode::from(2);
            }
        }
    }
    let history = History::Aged { overwrites_permille: 2000 };
    let options = FlashOptions { seed, history, bytes_max: Some(gib << 30), ..FlashOptions::default() };
    let flash = FlashSpec::by_name(&profile).and_then(|spec| Flash::new(&spec, options));
    let mut flash = match flash {
        Ok(f) => f,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    };
    let depth = depth.clamp(1, flash.queue_max() as u64);
    let pages = flash.size_bytes() / 4096;
    let mut rng = Rng::new(seed, "flash speed");
    let mut issue = |flash: &mut Flash, now: Time, tag: u64| {
        let op = if rng.below(100) < reads { Op::Read } else { Op::Write { fua: false } };
        flash.submit(now, Request { tag, op, offset: rng.below(pages) * 4096, len: 4096 });
        now
    };
    let before = flash.stats();
    let mut sent_at = vec![Time::ZERO; depth as usize];
    let mut latency = LatencyHistogram::new();
    let began = Instant::now();
    for tag in 0..depth {
        issue(&mut flash, Time::ZERO, tag);
    }
    let (mut done, mut finished, mut last) = (Vec::new(), 0, Time::ZERO);
    while finished < requests {
        flash.advance(flash.next_event(), &mut done);
        for d in done.drain(..) {
            latency.record(d.at.since(sent_at[d.tag as usize]));
            sent_at[d.tag as usize] = issue(&mut flash, d.at, d.tag);
            (finished, last) = (finished + 1, d.at);
        }
    }
    let wall = began.elapsed().as_secs_f64();
    let stats = flash.stats().since(&before);
    println!(
        "{} ({gib} GiB asked, {} units), {reads} % reads, depth {depth}, seed {seed}",
        profile,
        flash.spec().units()
    );
    println!(
        "simulated: {finished} requests in {:.3} s, {:.0}/s",
        last.as_secs_f64(),
        finished as f64 / last.as_secs_f64()
    );
    println!("latency {latency:?}; write amplification {:.2}, {} erases", stats.write_amplification(), stats.erases);
    println!("wall time {wall:.2} s: {:.0} simulated requests a second", finished as f64 / wall);
    ExitCode::SUCCESS
}
