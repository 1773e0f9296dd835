//! Policies of eviction and of admission in the whole cache: extents that are still read stay while others pass through, what is used once
//! stays outside, and a policy changes over a restart.

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

/// Rounds under a policy of admission: hits of the hot extents, bytes of WEUs written, extents that didn't come in.
fn admitting(admission: Admission) -> (u64, u64, u64) {
    let setup = setup(Eviction::Lru);
    let setup = Setup { config: CacheConfig { admission, ..setup.config }, ..setup };
    let (mut life, mut rng) = (Life::begin(3, setup), Rng::new(3, "evictions"));
    let hits = (0..40).map(|_| round(&mut life, &mut rng)).sum();
    life.settle().unwrap();
    life.judge().unwrap();
    let Counters { weu_bytes, rejected, .. } = life.cache().status().counters;
    (hits, weu_bytes, rejected)
}

#[test]
fn what_is_used_once_is_not_written_and_the_rest_is_hit_hardly_less() {
    let (all, second) = (admitting(Admission::All), admitting(Admission::Second));
    println!("hits, bytes written, rejected: all {all:?}, second {second:?}");
    assert_eq!(all.2, 0);
    assert!(second.2 > 40, "{} extents stayed outside", second.2);
    assert!(second.1 * 10 < all.1 * 9, "{} bytes written, and {} with all", second.1, all.1);
    assert!(second.0 * 10 > all.0 * 9, "{} hits, and {} with all", second.0, all.0);
}

/// Under `second`: one that is missed, missed again, and hit; one that is written twice, and hit; one that is overwritten while it is cached.
#[test]
fn an_extent_comes_in_the_second_time_and_its_newer_content_at_once() {
    let setup = setup(Eviction::Lru);
    let mut life =
        Life::begin(4, Setup { config: CacheConfig { admission: Admission::Second, ..setup.config }, ..setup });
    let write = |extent: u64| {
        Act::Ask(Ask { op: Op::Write, volume: 0, first: extent * PER_EXTENT, len: PER_EXTENT, fua: false })
    };
    let mut hits_after = |act: Act| {
        life.run(&[act, Act::Rest], &mut |_| Ok(true)).unwrap();
        life.cache().status().counters.extents_hit
    };
    assert_eq!([read(1), read(1), read(1)].map(&mut hits_after), [0, 0, 1]);
    assert_eq!([write(2), read(2), read(2)].map(&mut hits_after), [1, 1, 2]);
    assert_eq!(
        [write(1), read(1)].map(&mut hits_after),
        [2, 3],
        "the newer content of what is cached comes in at once"
    );
    assert_eq!([write(3), write(3), read(3)].map(&mut hits_after), [3, 3, 4]);
    life.settle().unwrap();
    life.judge().unwrap();
}

/// In a write-back volume what is written comes in: only the cache has it.
#[test]
fn dirty_extents_come_in_under_each_policy() {
    for admission in [Admission::All, Admission::Second] {
        let of = setup(Eviction::Lru);
        let config = CacheConfig { admission, ..of.config };
        let mut life = Life::begin(5, Setup { config, modes: [Mode::Back, Mode::Through], ..of });
        let write = Act::Ask(Ask { op: Op::Write, volume: 0, first: 0, len: PER_EXTENT, fua: false });
        life.run(&[write, Act::Rest, read(0), Act::Rest], &mut |_| Ok(true)).unwrap();
        let Counters { extents_hit, rejected, .. } = life.cache().status().counters;
        assert_eq!((extents_hit, rejected), (1, 0), "{admission:?}");
        life.settle().unwrap();
        life.judge().unwrap();
    }
}

/// The policy's memory of a volume that has its own part goes with the volume.
#[test]
fn the_memory_of_admission_is_given_back_with_the_volume() {
    let of = setup(Eviction::Lru);
    let config = CacheConfig { admission: Admission::Second, sharing: Sharing::PerVolume, weus_max: 24, ..of.config };
    let mut life = Life::begin(7, Setup { config, ..of });
    let mut after_a_volume = |_| {
        let read = Act::Ask(Ask { op: Op::Read, volume: 1, first: 0, len: PER_EXTENT, fua: false });
        life.run(&[read], &mut |_| Ok(true)).unwrap();
        life.settle().unwrap();
        life.delete(1).unwrap();
        life.settle().unwrap();
        life.cache().status().memory_bytes
    };
    let all: Vec<u64> = (0..20).map(&mut after_a_volume).collect();
    // A part of 8 WEUs of 8 extents: 128 tags of two bytes.
    let grown = all[19] - all[3];
    assert!(grown < 16 * 256 / 2, "{grown} bytes more after 16 volumes: {all:?}");
}
