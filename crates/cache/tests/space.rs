//! Whose the space is, and what of it is kept free (VF-M4, VF-M6).

mod common;
use common::{EXTENT, Life, SECTOR, SECTORS, Setup};
use plimsoll_base::Op;
use plimsoll_cache::{CacheConfig, Codec, Mode, Sharing};
use plimsoll_stack::Front;
use plimsoll_stack::sim::oracle::Ask;

/// Whole extents of a volume.
const EXTENTS: u64 = SECTORS * SECTOR / EXTENT;
/// WEUs that the cache may use, or each volume's part, and what one holds at most.
const WEUS: u64 = 8;
const EXTENTS_A_WEU: u64 = 8;

fn begin(config: CacheConfig) -> Life {
    // Shared, it is as large as each of two parts.
    let weus_max = if config.sharing == Sharing::Shared { WEUS } else { 2 * WEUS } as u32;
    let config = CacheConfig { codec: Codec::None, fingerprints_percent: 0, weus_max, ..config };
    Life::begin(1, Setup { config, ..Setup::of([Mode::Back, Mode::Back]) })
}

/// Asks for one extent after the other, all at once.
fn ask(life: &mut Life, op: Op, volume: u32, extents: std::ops::Range<u64>) {
    let per = EXTENT / SECTOR;
    let asks: Vec<_> =
        extents.map(|n| common::Act::Ask(Ask { op, volume, first: n * per, len: per, fua: false })).collect();
    life.run(&asks, &mut |_| Ok(true)).unwrap();
}

/// VF-M4: a share of the space is free again as soon as what fills it is written back.
#[test]
fn a_share_of_the_space_is_kept_free() {
    let used = |sharing, free_percent| {
        let mut life = begin(CacheConfig { free_percent, sharing, ..common::config() });
        for volume in 0..2 {
            ask(&mut life, Op::Write, volume, 0..EXTENTS);
        }
        life.settle().unwrap();
        let used = u64::from(life.cache().status().weus.2);
        life.judge().unwrap();
        used
    };
    for sharing in [Sharing::Shared, Sharing::PerVolume] {
        let (little, half) = (used(sharing, 0), used(sharing, 50));
        assert!(half < little, "{sharing:?}: {little} and {half}");
    }
}

/// VF-M4, the low watermark: when nothing is free, who writes waits until something has been written back; then all go on.
#[test]
fn who_finds_nothing_free_waits() {
    let mut life = begin(CacheConfig { sharing: Sharing::Shared, ..common::config() });
    for volume in 0..2 {
        ask(&mut life, Op::Write, volume, 0..EXTENTS);
    }
    let inside = |life: &mut Life| {
        let keys = [life.oracle.key(0), life.oracle.key(1)];
        let front = life.pool.stack().layer::<Front>().unwrap();
        keys.iter().map(|k| front.inflight_of(*k) as u64).sum::<u64>()
    };
    let mut waited = inside(&mut life);
    assert_eq!(waited, 2 * EXTENTS);
    while life.step().unwrap() {
        if life.cache().status().counters.written_back == 0 {
            waited = inside(&mut life);
        }
    }
    assert!(waited >= 2 * EXTENTS - WEUS * EXTENTS_A_WEU, "{waited} waited, as there is no more room");
    assert_eq!(inside(&mut life), 0);
    life.judge().unwrap();
}

/// VF-M6: what one volume does to its own part of the cache takes nothing of another's; of a shared one it does.
#[test]
fn a_flood_of_one_volume_takes_nothing_of_anothers_part() {
    let few = 4;
    let hits = |sharing| {
        let mut life = begin(CacheConfig { sharing, ..common::config() });
        ask(&mut life, Op::Write, 0, 0..few);
        life.settle().unwrap();
        for _ in 0..6 {
            ask(&mut life, Op::Write, 1, 0..EXTENTS);
            life.settle().unwrap();
        }
        let key = life.oracle.key(0);
        let hits = |life: &mut Life| {
            let status = life.cache().status();
            status.volumes.iter().find(|v| v.key == key).expect("it is known").read_hits
        };
        let before = hits(&mut life);
        ask(&mut life, Op::Read, 0, 0..few);
        life.settle().unwrap();
        hits(&mut life) - before
    };
    assert_eq!((hits(Sharing::PerVolume), hits(Sharing::Shared)), (few, 0));
}
