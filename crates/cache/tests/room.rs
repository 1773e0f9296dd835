//! Requests end: whatever size the cache is given, however many volumes share it, whatever the slow device refuses, and when the
//! pool ends.

mod common;
use common::*;
use plimsoll_base::Op;
use plimsoll_cache::*;
use plimsoll_stack::Layer;
use plimsoll_stack::sim::DiskFaults;

const EXTENTS: u64 = SECTORS * SECTOR / EXTENT;

fn begin(config: CacheConfig) -> Life {
    let config = CacheConfig { codec: Codec::None, fingerprints_percent: 0, ..config };
    Life::begin(1, Setup { config, ..Setup::of([Mode::Back, Mode::Back]) })
}

fn flood(life: &mut Life, volumes: std::ops::Range<u32>) {
    for round in 0..3 {
        for v in volumes.clone() {
            life.ask_extents(Op::Write, v, 0..EXTENTS).unwrap();
        }
        life.all_end(50_000).unwrap_or_else(|e| panic!("round {round}: {e}"));
    }
}

fn slow(life: &mut Life, faults: DiskFaults) {
    life.pool.disk(0).set_faults(faults);
}

#[test]
fn a_cache_made_as_small_as_it_gets_goes_on() {
    for bytes in [0, 1 << 15, 3 << 15, 1 << 20] {
        let mut life = begin(config());
        flood(&mut life, 0..2);
        life.order(plimsoll_cache::CacheControl::Bytes(bytes));
        flood(&mut life, 0..2);
        life.settle().unwrap();
        life.judge().unwrap();
        assert!(u64::from(life.cache().status().weus.2) <= (bytes >> 15).max(4), "{bytes}");
    }
}

/// Each wants as much as there is.
#[test]
fn parts_that_together_want_more_than_there_is_go_on() {
    for weus_max in [4, 6, 8, 9, 24] {
        let mut life = begin(CacheConfig { sharing: Sharing::PerVolume, weus_max, ..config() });
        flood(&mut life, 0..2);
        life.order(plimsoll_cache::CacheControl::Bytes(16 << 15));
        flood(&mut life, 0..2);
        life.settle().unwrap();
        life.judge().unwrap();
    }
}

/// A range of the slow device takes no writes: what is to go there stays, and keeps its WEUs; everybody else goes on.
#[test]
fn what_the_slow_device_refuses_holds_up_nobody_else() {
    for sharing in [Sharing::Shared, Sharing::PerVolume] {
        let mut life = begin(CacheConfig { sharing, weus_max: 16, ..config() });
        // In every WEU there is something that can't be written back.
        let refused = extent_of(0).device_offset + 20 * EXTENT;
        slow(&mut life, DiskFaults { unwritable: Some((refused, refused + EXTENT)), ..DiskFaults::default() });
        life.ask_extents(Op::Write, 0, 0..EXTENTS).unwrap();
        life.all_end(50_000).unwrap();
        flood(&mut life, 1..2);
        for n in 0..20 {
            life.ask_extents(Op::Write, 0, 0..20 + n % 2).unwrap();
            life.ask_extents(Op::Write, 0, 22..EXTENTS).unwrap();
            life.all_end(50_000).unwrap_or_else(|e| panic!("{sharing:?}, {n}: {e}"));
        }
        life.order(plimsoll_cache::CacheControl::Flush);
        let left = |life: &mut Life| life.cache().status().flush_left;
        for _ in 0..20_000 {
            life.step().unwrap();
        }
        assert_eq!(left(&mut life), 1, "what adjoins it isn't refused with it for good");
        slow(&mut life, DiskFaults::default());
        life.settle().unwrap();
        assert_eq!((left(&mut life), life.cache().status().dirty), (0, 0));
        life.judge().unwrap();
    }
}

/// The pool ends while writers wait for room, and the slow device takes nothing: they fail; else they are served.
#[test]
fn an_orderly_end_ends() {
    for away in [true, false] {
        let mut life = begin(config());
        life.may_fail = true;
        for v in 0..2 {
            life.ask_extents(Op::Write, v, 0..EXTENTS).unwrap();
        }
        slow(&mut life, DiskFaults { away, ..DiskFaults::default() });
        life.stop();
        life.all_end(50_000).unwrap_or_else(|e| panic!("away {away}: {e}"));
        assert_eq!(life.failed > 0, away, "{} failed", life.failed);
        let now = life.pool.now();
        life.pool.with_layer(|c: &mut Cache, out| c.drain(now, out));
        for _ in 0..50_000 {
            if life.pool.stack().is_idle() {
                break;
            }
            life.step().unwrap();
        }
        assert!(life.pool.stack().is_idle());
    }
}

/// A flush of the cache writes back the extents that were dirty at its begin, whatever is written meanwhile. Then it ends.
#[test]
fn a_flush_of_the_cache_ends_under_load_and_not_before() {
    let mut life = begin(CacheConfig { weus_max: 20, watermark_percent: 90, ..config() });
    life.ask_extents(Op::Write, 0, 0..EXTENTS).unwrap();
    life.all_end(50_000).unwrap();
    life.order(plimsoll_cache::CacheControl::Flush);
    assert_eq!(life.cache().status().flush_left, EXTENTS);
    let mut n = 0;
    while life.cache().status().flush_left > 0 {
        let before = life.cache().status();
        assert!(before.counters.written_back <= EXTENTS * 4, "it never ends");
        // One extent that is never left alone, and what wasn't there when it was asked.
        life.ask_extents(Op::Write, 0, 3..4).unwrap();
        life.ask_extents(Op::Write, 1, n % EXTENTS..n % EXTENTS + 1).unwrap();
        life.all_end(50_000).unwrap();
        n += 1;
        assert!(n < 5_000, "{before:?}");
    }
    let below = life.pool.disk(0).peek(extent_of(0).device_offset, EXTENTS * EXTENT);
    let bare = |e: &u64| below.as_slice()[(e * EXTENT) as usize..][..EXTENT as usize].iter().all(|b| *b == 0);
    assert_eq!((0..EXTENTS).filter(bare).count(), 0, "all of it is on the slow device");
}
