//! Cached extents stay readable while they are replaced: reads that come with a write of the same extent hit.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::sim::oracle::Ask;

const PER_EXTENT: u64 = EXTENT / SECTOR;
const EXTENTS: u64 = 20;

fn begin(seed: u64) -> Life {
    let plain = CacheConfig { prefetch_bytes_max: 0, sequential_bytes: 1 << 20, ..config() };
    Life::begin(seed, Setup { config: plain, ..Setup::of([Mode::Through, Mode::Through]) })
}

fn ask(op: Op, first: u64, len: u64) -> Act {
    Act::Ask(Ask { op, volume: 0, first, len, fua: false })
}

/// Asks for all of `acts` at once, and lets them end; the oracle judges what is read. Returns hits of extents.
fn together(life: &mut Life, acts: &[Act]) -> u64 {
    let before = life.cache().status().counters.extents_hit;
    life.run(acts, &mut |_| Ok(true)).unwrap();
    while life.inside() > 0 {
        assert!(life.step().unwrap(), "it never ends");
    }
    life.cache().status().counters.extents_hit - before
}

/// The read waits above the cache until the write has ended, and finds the new content on its way into the cache.
#[test]
fn a_read_that_follows_a_write_of_its_extent_hits() {
    let mut life = begin(1);
    let hits: u64 = (0..EXTENTS)
        .map(|n| {
            let at = n * PER_EXTENT;
            together(&mut life, &[ask(Op::Write, at, PER_EXTENT), ask(Op::Read, at, PER_EXTENT)])
        })
        .sum();
    assert_eq!(hits, EXTENTS);
    life.settle().unwrap();
    life.judge().unwrap();
}

/// The second read finds what the first one brings, which is not packed yet.
#[test]
fn a_read_that_follows_a_miss_of_its_extent_hits() {
    let mut life = begin(1);
    let mut hits = 0;
    for n in 0..EXTENTS {
        let read = || ask(Op::Read, n * PER_EXTENT, PER_EXTENT);
        hits += together(&mut life, &[read()]) + together(&mut life, &[read()]);
    }
    assert_eq!(hits, EXTENTS);
    life.settle().unwrap();
    life.judge().unwrap();
}

/// A write of an extent's first half is in flight, and a read of the other half does not wait for it.
#[test]
fn the_rest_of_an_extent_hits_while_a_part_of_it_is_written() {
    let mut life = begin(1);
    let half = PER_EXTENT / 2;
    let mut hits = 0;
    for n in 0..EXTENTS {
        let at = n * PER_EXTENT;
        together(&mut life, &[ask(Op::Write, at, PER_EXTENT)]);
        life.settle().unwrap();
        hits += together(&mut life, &[ask(Op::Write, at, half), ask(Op::Read, at + half, half)]);
    }
    assert_eq!(hits, EXTENTS);
    life.settle().unwrap();
    life.judge().unwrap();
}

/// Whichever of two changes ends first, the former copy ends with it: the other half is read as it was written.
#[test]
fn what_was_written_is_read_while_another_part_is_still_being_written() {
    let mut life = begin(1);
    let half = PER_EXTENT / 2;
    for n in 0..EXTENTS {
        let at = n * PER_EXTENT;
        together(&mut life, &[ask(Op::Write, at, PER_EXTENT)]);
        life.settle().unwrap();
        let both = [ask(Op::Write, at, half), ask(Op::Write, at + half, half)];
        let reads = [ask(Op::Read, at, half), ask(Op::Read, at + half, half)];
        together(&mut life, &[both, reads].concat());
    }
    life.settle().unwrap();
    life.judge().unwrap();
}

/// A closed loop of 16 clients over a few popular extents, two requests in three being writes. Returns hits of extents, and those read.
fn closed_loop(seed: u64) -> (u64, u64) {
    let (mut life, mut rng) = (begin(seed), Rng::new(seed, "loop"));
    for _ in 0..3000 {
        while life.inside() >= 16 {
            assert!(life.step().unwrap(), "it never ends");
        }
        let extent = ((1.0 - rng.unit().sqrt()) * 47.0) as u64;
        let op = if rng.chance(0.67) { Op::Write } else { Op::Read };
        life.run(&[ask(op, extent * PER_EXTENT, PER_EXTENT)], &mut |_| Ok(true)).unwrap();
    }
    life.settle().unwrap();
    let Counters { extents_hit, extents_read, .. } = life.cache().status().counters;
    life.judge().unwrap();
    (extents_hit, extents_read)
}

#[test]
fn reads_hit_in_a_closed_loop_of_writers() {
    let all: Vec<(u64, u64)> = (0..5).map(closed_loop).collect();
    let (hits, reads) = all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    println!("{hits} of {reads} extents hit: {} %", hits as f64 * 100.0 / reads as f64);
    assert!(hits * 100 > reads * 85, "{hits} of {reads} extents hit");
}
