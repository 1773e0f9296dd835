//! Policies of eviction in the whole cache: extents that are still read stay while others pass through, and a policy changes over a restart.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::sim::oracle::Ask;

const ALL: [Eviction; 4] = [Eviction::Lru, Eviction::Live, Eviction::Sieve, Eviction::S3Fifo];
const PER_EXTENT: u64 = EXTENT / SECTOR;
/// Extents that are read all the time; the others are read now and then.
const HOT: u64 = 3;

fn setup(eviction: Eviction) -> Setup {
    let plain =
        CacheConfig { codec: Codec::None, fingerprints_percent: 0, prefetch_bytes_max: 0, weus_max: 5, ..config() };
    let config = CacheConfig { eviction, sequential_bytes: 1 << 20, ..plain };
    Setup { config, ..Setup::of([Mode::Through, Mode::Through]) }
}

fn read(extent: u64) -> Act {
    Act::Ask(Ask { op: Op::Read, volume: 0, first: extent * PER_EXTENT, len: PER_EXTENT, fua: false })
}

/// A round: the hot extents, and more than a WEU of others. Returns how many of the hot ones were hits.
fn round(life: &mut Life, rng: &mut Rng) -> u64 {
    let extents = SECTORS / PER_EXTENT;
    let before = life.cache().status().counters.extents_hit;
    for extent in 0..HOT {
        life.run(&[read(extent), Act::Rest], &mut |_| Ok(true)).unwrap();
    }
    let hits = life.cache().status().counters.extents_hit - before;
    for _ in 0..10 {
        life.run(&[read(HOT + rng.below(extents - HOT)), Act::Rest], &mut |_| Ok(true)).unwrap();
    }
    hits
}

#[test]
fn extents_that_are_read_outlive_their_weu() {
    let mut lru = None;
    for eviction in ALL {
        let (mut life, mut rng) = (Life::begin(1, setup(eviction)), Rng::new(1, "evictions"));
        let hits: u64 = (0..40).map(|_| round(&mut life, &mut rng)).sum();
        let Counters { evicted, reinserted, .. } = life.cache().status().counters;
        println!("{eviction:?}: {hits} hits, {evicted} WEUs left, {reinserted} extents again");
        assert!(evicted > 10, "{eviction:?}: {evicted} WEUs left");
        assert_eq!(reinserted > 0, eviction != Eviction::Lru, "{eviction:?}: {reinserted} extents again");
        let of_lru = *lru.get_or_insert(hits);
        assert!(hits >= of_lru, "{eviction:?}: {hits} hits, and LRU has {of_lru}");
        life.settle().unwrap();
        life.judge().unwrap();
    }
}

#[test]
fn a_policy_may_change_at_each_start() {
    let (mut life, mut rng) = (Life::begin(2, setup(Eviction::Lru)), Rng::new(2, "evictions"));
    for eviction in ALL.into_iter().chain(ALL.into_iter().rev()) {
        (0..10).for_each(|_| _ = round(&mut life, &mut rng));
        life.settle().unwrap();
        let (disks, oracle) = (life.cut(), life.oracle.clone());
        life = Life::again(disks, setup(eviction), oracle).unwrap();
        assert!(life.cache().status().start.extents > 10, "{eviction:?}: it is cold");
    }
}
