//! The profiles against the figures that are published of their drives. Each test prints both.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_device::{Disk, DiskOptions, Done, Model, Op, Request, profile};

fn disk(name: &str) -> Disk {
    let spec = profile::by_name(name).expect("embedded");
    Disk::new(&spec, DiskOptions { seed: 1, mismatch: None }).expect("valid")
}

/// Mean service time in milliseconds of random 4 KiB reads, and requests a second, with `depth` outstanding.
fn random_reads(name: &str, depth: usize, n: usize) -> (f64, f64) {
    let mut d = disk(name);
    let pages = d.size_bytes() / 4096;
    let mut rng = Rng::new(1, "figures");
    let mut done: Vec<Done> = Vec::new();
    let (mut tag, mut now, mut finished) = (0, Time::ZERO, 0);
    let mut service = Span::ZERO;
    while finished < n {
        while d.outstanding() < depth {
            d.submit(now, Request { tag, op: Op::Read, offset: rng.below(pages) * 4096, len: 4096 });
            tag += 1;
        }
        now = d.next_event();
        d.advance(now, &mut done);
        service += done.iter().map(|d| d.at.since(d.started_at)).sum();
        finished += done.len();
        done.clear();
    }
    (service.as_millis_f64() / finished as f64, finished as f64 / now.as_secs_f64())
}

/// MB/s of a long sequential read that begins at `offset`.
fn sequential(name: &str, offset: u64) -> f64 {
    let mut d = disk(name);
    let (mut now, mut done) = (Time::ZERO, Vec::new());
    let mut read = |d: &mut Disk, tag: u64, len: u64| {
        let offset = offset + tag * (1 << 20);
        d.submit(now, Request { tag, op: Op::Read, offset, len });
        while done.is_empty() {
            d.advance(d.next_event(), &mut done);
        }
        now = done.pop().map_or(now, |d: Done| d.at);
        now
    };
    let begin = read(&mut d, 0, 1 << 20);
    let mut end = begin;
    for tag in 1..=64 {
        end = read(&mut d, tag, 1 << 20);
    }
    64.0 * f64::from(1 << 20) / end.since(begin).as_secs_f64() / 1e6
}

fn near(what: &str, model: f64, published: f64, tolerance: f64) {
    println!("{what}: model {model:.2}, published {published:.2}");
    assert!((model / published - 1.0).abs() <= tolerance, "{what}: {model} is not within {tolerance} of {published}");
}

#[test]
fn cheetah_15k5() {
    let name = "cheetah-15k5";
    // OSTEP's disk chapter: 4 ms seek + 2 ms rotation + transfer, about 6 ms.
    near("Cheetah 15K.5 random 4 KiB read, ms", random_reads(name, 1, 20_000).0, 6.0, 0.05);
    near("Cheetah 15K.5 capacity, sectors", disk(name).size_bytes() as f64 / 512.0, 286_749_487.0, 1e-9);
    // Media rates 153.6 and 92.2 MB/s from the geometry, less the switches; OSTEP gives 125 MB/s at the top.
    let (outer, inner) = (sequential(name, 0), sequential(name, disk(name).size_bytes() - (80 << 20)));
    near("Cheetah 15K.5 outer sequential, MB/s, against the raw media rate", outer, 153.6, 0.12);
    near("Cheetah 15K.5 inner sequential, MB/s, against the raw media rate", inner, 92.2, 0.12);
}

#[test]
fn constellation_es3() {
    let name = "constellation-es3-1tb";
    near("ES.3 capacity, sectors", disk(name).size_bytes() as f64 / 512.0, 1_953_525_168.0, 1e-9);
    near("ES.3 outer sequential, MB/s", sequential(name, 0), 175.0, 0.05);
    near("ES.3 inner sequential, MB/s", sequential(name, disk(name).size_bytes() - (80 << 20)), 83.0, 0.05);
    // No seek time is published: the 4 TB stand-in's mean of 7.45 ms and half a turn of 4.17 ms.
    near("ES.3 random 4 KiB read, ms", random_reads(name, 1, 20_000).0, 7.45 + 4.17, 0.05);
}

#[test]
fn hdd_160g() {
    let name = "hdd-160g-7200";
    // VirtualFence: 11 ms average seek; half a turn is 4.17 ms.
    near("160 GB random 4 KiB read, ms", random_reads(name, 1, 20_000).0, 11.0 + 4.17, 0.05);
    let spec = profile::by_name(name).expect("embedded");
    let n = spec.geometry.cylinders;
    near("160 GB average seek, ms", spec.mechanics.seek.mean_millis(n), 11.0, 0.01);
    near("160 GB full stroke, ms", spec.mechanics.seek.millis(n - 1, n), 22.0, 0.001);
}

#[test]
fn a_deeper_queue_serves_more() {
    for name in ["cheetah-15k5", "constellation-es3-1tb", "hdd-160g-7200"] {
        let rates = [1, 4, 32].map(|depth| random_reads(name, depth, 6000).1);
        println!("{name}: random 4 KiB reads a second at depth 1, 4, 32: {rates:.0?} (model)");
        // The square-root-like gain of positioning disciplines: half as much again at 4, double at 32.
        assert!(rates[1] > 1.15 * rates[0] && rates[2] > 1.7 * rates[0] && rates[2] < 4.0 * rates[0]);
    }
}
