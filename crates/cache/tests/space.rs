//! Tests of the owners of space, and of the part that is kept free (VF-M4, VF-M6).

mod common;
use common::{EXTENT, Life, SECTOR, SECTORS, Setup};
use plimsoll_base::Op;
use plimsoll_cache::{Cache, CacheConfig, CacheVolume, Codec, Mode, Sharing};
use plimsoll_stack::Front;
use plimsoll_stack::sim::oracle::Ask;

/// Whole extents of a volume.
const EXTENTS: u64 = SECTORS * SECTOR / EXTENT;
/// WEUs that the cache may use, or each volume's part, and what one holds at most.
const WEUS: u64 = 8;
const EXTENTS_A_WEU: u64 = 8;

fn begin(config: CacheConfig) -> Life {
    begin_with(config, WEUS)
}

/// With so many WEUs, or as many in each part.
fn begin_with(config: CacheConfig, weus: u64) -> Life {
    // Shared, it is as large as each of two parts.
    let weus_max = if config.sharing == Sharing::Shared { weus } else { 2 * weus } as u32;
    let config = CacheConfig { codec: Codec::None, fingerprints_percent: 0, weus_max, ..config };
    let mut life = Life::begin(1, Setup { config, ..Setup::of([Mode::Back, Mode::Back]) });
    for volume in 0..2 {
        let (now, key) = (life.pool.now(), life.oracle.key(volume));
        let part = CacheVolume { weus_max: weus as u32, ..common::cache_volume(Mode::Back, volume) };
        life.pool.with_layer(|c: &mut Cache, out| c.announce(now, key, part, out)).unwrap().unwrap();
    }
    life
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

/// Client requests of both volumes that haven't ended.
fn inside(life: &mut Life) -> [u64; 2] {
    let keys = [life.oracle.key(0), life.oracle.key(1)];
    let front = life.pool.stack().layer::<Front>().unwrap();
    keys.map(|k| front.inflight_of(k) as u64)
}

/// Goes on to the end; what was inside as long as nothing had been written back.
fn inside_until_written_back(life: &mut Life) -> [u64; 2] {
    let mut waited = inside(life);
    while life.step().unwrap() {
        if life.cache().status().counters.written_back == 0 {
            waited = inside(life);
        }
    }
    assert_eq!(inside(life), [0, 0]);
    waited
}

/// VF-M4, the low watermark: when nothing is free, who writes waits until something has been written back; then all go on.
#[test]
fn who_finds_nothing_free_waits() {
    for (sharing, weus) in [(Sharing::Shared, WEUS), (Sharing::PerVolume, WEUS / 2)] {
        let mut life = begin_with(CacheConfig { sharing, ..common::config() }, weus);
        for volume in 0..2 {
            ask(&mut life, Op::Write, volume, 0..EXTENTS);
        }
        assert_eq!(inside(&mut life), [EXTENTS; 2]);
        let [a, b] = inside_until_written_back(&mut life);
        let room = weus * EXTENTS_A_WEU;
        match sharing {
            Sharing::Shared => assert!(a + b >= 2 * EXTENTS - room, "{a} and {b} waited, as there is no more room"),
            Sharing::PerVolume => assert!(a.min(b) >= EXTENTS - room, "{a} and {b} waited, each for its own part"),
        }
        life.judge().unwrap();
    }
}

/// VF-M4 where each volume has its own part: who waits for room there holds up nobody who has some.
#[test]
fn a_full_part_holds_only_its_own_volume_up() {
    let weus = WEUS / 2;
    let waited = |sharing| {
        let mut life = begin_with(CacheConfig { sharing, ..common::config() }, weus);
        ask(&mut life, Op::Write, 0, 0..EXTENTS);
        ask(&mut life, Op::Write, 1, 0..4);
        let waited = inside_until_written_back(&mut life);
        life.judge().unwrap();
        waited
    };
    let ([full, other], [_, shared]) = (waited(Sharing::PerVolume), waited(Sharing::Shared));
    assert!(full >= EXTENTS - weus * EXTENTS_A_WEU, "{full} wait for room");
    assert_eq!((other, shared), (0, 4), "in a part of its own there is room; in a shared one there is none");
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
