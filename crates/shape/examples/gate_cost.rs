//! Measures the shim's cost for a request that is let in at once (AP-E13), without the kernel's part: walking a query of 40
//! bytes and its answer, two clock readings, two changes of the gate under the segment's lock. Prints the least and the median
//! of rounds.
//!
//! `cargo run --release -p plimsoll-shape --example gate_cost [ROUNDS] [REQUESTS] [walking|gate|all] [THREADS]`. Under callgrind the instructions of
//! one request are the difference of two runs over the difference of their requests: what the start costs is in neither (`make shape-cost`).
//! With threads each has a connection of its own and asks without a pause: all fight for the one lock, as no server's would.

use plimsoll_shape::gate::{Answered, ConnId, Knobs};
use plimsoll_shape::segment::{Segment, monotonic};
use plimsoll_shape::walk::{Protocol, Walker};
use std::hint::black_box;
use std::time::Instant;

/// Parts of a request that are measured.
#[derive(Clone, Copy)]
struct Parts {
    name: &'static str,
    walking: bool,
    gating: bool,
}

const PARTS: [Parts; 3] = [
    Parts { name: "walking", walking: true, gating: false },
    Parts { name: "gate", walking: false, gating: true },
    Parts { name: "all", walking: true, gating: true },
];

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u32| args.get(at).map_or(default, |a| a.parse().expect("a number"));
    let (rounds, each, threads) = (number(0, 60), number(1, 100_000), number(3, 1));
    let path = std::env::temp_dir().join(format!("gate-cost-{}", std::process::id()));
    let segment = Segment::create(&path, Knobs { p: 64, ..Knobs::default() }, monotonic())?;
    std::fs::remove_file(&path)?;
    for parts in PARTS {
        if args.get(2).is_some_and(|o| o != parts.name) {
            continue;
        }
        let mut ns: Vec<f64> = (0..rounds).map(|_| round(&segment, parts, each, threads)).collect();
        ns.sort_by(f64::total_cmp);
        let (name, middle) = (parts.name, ns[ns.len() / 2]);
        println!(
            "{name}: {:.0} ns at least, median {middle:.0} ns ({rounds} rounds of {each}, {threads} threads)",
            ns[0]
        );
    }
    Ok(())
}

/// Mean of a request, as its own thread sees it.
fn round(segment: &Segment, parts: Parts, each: u32, threads: u32) -> f64 {
    let one = |tid: u32| {
        let conn = segment.lock(tid, monotonic()).gate().open(0).expect("the table has room");
        let mut walker = Walker::new(Protocol::Mysql);
        login(&mut walker);
        let begun = Instant::now();
        (0..each).for_each(|_| request(segment, parts, tid, conn, &mut walker));
        let took = begun.elapsed().as_nanos() as f64 / f64::from(each);
        let now = monotonic();
        segment.lock(tid, now).gate().close(now, conn);
        took
    };
    if threads == 1 {
        return one(1);
    }
    let took: Vec<f64> = std::thread::scope(|scope| {
        // The lock asks whether its owner is dead: any process that is there will do.
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(|| one(std::process::id()))).collect();
        all.into_iter().map(|t| t.join().expect("no thread fails")).collect()
    });
    took.iter().sum::<f64>() / f64::from(threads)
}

fn request(segment: &Segment, parts: Parts, tid: u32, conn: ConnId, walker: &mut Walker) {
    const QUERY: &[u8; 42] = b"\x25\0\0\0\x03SELECT c FROM sbtest1 WHERE id = 1234";
    const ANSWER: [u8; 11] = [7, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0];
    if parts.walking {
        black_box(walker.input(black_box(&QUERY[..4])));
        black_box(walker.input(black_box(&QUERY[4..41])));
    }
    if parts.gating {
        let now = monotonic();
        black_box(segment.lock(tid, now).gate().request(now, conn));
    }
    if parts.walking {
        black_box(walker.output(black_box(&ANSWER)));
    }
    if parts.gating {
        let now = monotonic();
        segment.lock(tid, now).gate().answered(now, conn, Answered::Done);
    }
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
