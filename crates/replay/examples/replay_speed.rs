//! Simulated requests per second on one core: `cargo run --release -p plimsoll-replay --example replay_speed -- [N [DEPTH
//! [IOPS [DEVICE [WRITES%]]]]]`: N random 4 KiB requests, open loop, through the FIFO with its forecast and all histograms.
//!
//! For instruction counts run it under `valgrind --tool=callgrind` with two values of N and divide the difference.

use plimsoll_base::Span;
use plimsoll_replay::workload::fio::{FioJob, FioRequests};
use plimsoll_replay::workload::open::{Arrivals, OpenLoop, Until};
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig, open_loop};
use std::time::Instant;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, default: u64| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (n, depth, iops) = (number(0, 2_000_000), number(1, 1) as u32, number(2, 120));
    let device = DeviceChoice::named(args.get(3).map_or("cheetah-15k5", String::as_str)).expect("a profile");
    let mut pool = Pool::new(&device, &PoolConfig { depth, ..PoolConfig::default() }).expect("a pool");
    let job = FioJob { read_percent: 100 - number(4, 0), ..FioJob::new(pool.offer().size_bytes) };
    let requests = FioRequests::new(&job, 0, 1).expect("a job");
    let gap = Arrivals::Poisson(Span::from_nanos(1_000_000_000 / iops));
    let mut source = OpenLoop::new(requests, gap, Until::count(n), "d", 1).expect("arrivals");
    let started = Instant::now();
    let m = open_loop(&mut pool, &mut source, &Limits::default(), &mut |_, _| {}).expect("no trace, no error");
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{}, depth {depth}, {iops}/s: {:.1} ns a request, {:.2} million a second; hash {:016x}, response {:?}",
        device.name,
        seconds / n as f64 * 1e9,
        n as f64 / seconds / 1e6,
        m.event_hash,
        m.response[0]
    );
}
