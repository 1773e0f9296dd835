//! What the shim adds to a request that is let in at once (AP-E13), without the kernel's part: walking a query of 40 bytes and its
//! answer, two clock readings, two changes of the gate under the segment's lock. Prints the least and the median of rounds.
//!
//! `cargo run --release -p plimsoll-shape --example gate_cost [ROUNDS] [REQUESTS] [walking|gate|all]`. Under callgrind the instructions of one
//! request are the difference of two runs over the difference of their requests: what the start costs is in neither (`make shape-cost`).

use plimsoll_shape::gate::{Answered, Knobs};
use plimsoll_shape::segment::{Segment, monotonic};
use plimsoll_shape::walk::{Protocol, Walker};
use std::hint::black_box;
use std::time::Instant;

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: u32| args.next().map_or(default, |a| a.parse().expect("a number"));
    let (rounds, each) = (number(60), number(100_000));
    let only = args.next();
    let path = std::env::temp_dir().join(format!("gate-cost-{}", std::process::id()));
    let segment = Segment::create(&path, Knobs { p: 64, ..Knobs::default() }, monotonic())?;
    std::fs::remove_file(&path)?;
    let conn = segment.lock(1, monotonic()).gate().open(0).expect("an empty table has room");
    let mut walker = Walker::new(Protocol::Mysql);
    login(&mut walker);
    let query = [&[37, 0, 0, 0, 3][..], b"SELECT c FROM sbtest1 WHERE id = 1234"].concat();
    let query = &query[..41];
    let answer = [7, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
    let parts = |walking: bool, gating: bool, walker: &mut Walker| {
        let begun = Instant::now();
        for _ in 0..each {
            if walking {
                black_box(walker.input(black_box(&query[..4])));
                black_box(walker.input(black_box(&query[4..])));
            }
            if gating {
                let now = monotonic();
                black_box(segment.lock(1, now).gate().request(now, conn));
            }
            if walking {
                black_box(walker.output(black_box(&answer)));
            }
            if gating {
                let now = monotonic();
                segment.lock(1, now).gate().answered(now, conn, Answered::Done);
            }
        }
        begun.elapsed().as_nanos() as f64 / f64::from(each)
    };
    for (name, walking, gating) in [("walking", true, false), ("gate", false, true), ("all", true, true)] {
        if only.as_ref().is_some_and(|o| o != name) {
            continue;
        }
        let mut ns: Vec<f64> = (0..rounds).map(|_| parts(walking, gating, &mut walker)).collect();
        ns.sort_by(f64::total_cmp);
        println!("{name}: {:.0} ns at least, median {:.0} ns ({rounds} rounds of {each})", ns[0], ns[ns.len() / 2]);
    }
    Ok(())
}

fn login(w: &mut Walker) {
    let mut greeting = b"\x0a10.11\0\x01\0\0\0scramble\0\x00\x80\x2d\x02\0\0\0\x15".to_vec();
    greeting.extend([0; 30]);
    w.output(&[&[greeting.len() as u8, 0, 0, 0][..], &greeting].concat());
    let mut body = vec![0, 0x82, 0, 0];
    body.extend([0; 28]);
    body.extend(b"web\0\0");
    w.input(&[&[body.len() as u8, 0, 0, 1][..], &body].concat());
    w.output(&[7, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0]);
    assert!(w.at_rest(), "logged in");
}
