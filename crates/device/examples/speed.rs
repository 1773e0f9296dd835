//! Measures the time of a simulated request: `cargo run --release -p plimsoll-device --example speed [PROFILE [DEPTH [N]]]`.
//!
//! Random 4 KiB reads; the queue is kept at DEPTH (default 1). For instruction counts, run it under
//! `valgrind --tool=callgrind` with two values of N and divide the difference.

#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::time::Instant;

use plimsoll_base::{Rng, Time};
use plimsoll_device::{Disk, DiskOptions, Done, Model, Op, Request, profile};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let name = args.first().map_or("cheetah-15k5", String::as_str);
    let depth: usize = args.get(1).and_then(|a| a.parse().ok()).unwrap_or(1);
    let n: u64 = args.get(2).and_then(|a| a.parse().ok()).unwrap_or(2_000_000);
    let spec = profile::by_name(name).unwrap_or_else(|e| panic!("{e}"));
    let mut disk = Disk::new(&spec, DiskOptions::default()).unwrap_or_else(|e| panic!("{e}"));
    let pages = disk.size_bytes() / 4096;
    // Drawn beforehand, so that only the model is measured.
    let mut rng = Rng::new(1, "speed");
    let offsets: Vec<u64> = (0..1 << 16).map(|_| rng.below(pages) * 4096).collect();
    let mut done: Vec<Done> = Vec::with_capacity(depth);
    let (mut now, mut tag, mut finished) = (Time::ZERO, 0u64, 0u64);
    let started = Instant::now();
    while finished < n {
        while disk.outstanding() < depth {
            let offset = offsets[tag as usize & (offsets.len() - 1)];
            disk.submit(now, Request { tag, op: Op::Read, offset, len: 4096 });
            tag += 1;
        }
        now = disk.next_event();
        disk.advance(now, &mut done);
        finished += done.len() as u64;
        done.clear();
    }
    let ns = started.elapsed().as_nanos() as f64 / n as f64;
    println!(
        "{name}, depth {depth}: {ns:.1} ns a request, {:.2} simulated ms each",
        now.as_secs_f64() * 1e3 / n as f64
    );
}
