//! Repeats one kind of adjustment, for instruction counts: `adjust_cost demand|turn COUNT`. The difference between two counts
//! under `valgrind --tool=callgrind` is what they cost without the setup.
#![allow(dead_code)] // what only the benchmark uses

#[path = "../benches/adjust/setup.rs"]
mod setup;

use std::hint::black_box;

fn main() {
    let mut args = std::env::args().skip(1);
    let (kind, count) = (args.next().unwrap_or_default(), args.next().and_then(|n| n.parse().ok()).unwrap_or(0u64));
    match kind.as_str() {
        "demand" => {
            let queue = setup::arrivals(128);
            let sum: u64 = (0..count).map(|_| setup::demand(black_box(&queue))).sum();
            println!("{sum}");
        }
        "turn" => {
            let mut m = setup::Loop::new();
            (0..count).for_each(|_| m.turn());
        }
        _ => {
            eprintln!("adjust_cost demand|turn COUNT");
            std::process::exit(2);
        }
    }
}
