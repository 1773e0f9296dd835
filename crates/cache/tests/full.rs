//! A slow device without space, or that takes no writes at all: no request waits for it without end, nothing acknowledged is lost, and what
//! needs no new space goes on. The oracle knows only what was asked, what was answered and what failed.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::LayerState;
use plimsoll_stack::sim::oracle::Ask;
use plimsoll_stack::sim::{DiskFaults, SimDisk};

const EXTENTS: u64 = SECTORS * SECTOR / EXTENT;
/// Extents of volume 1 that are on the slow device before it is full.
const ALLOCATED: u64 = 12;

fn full() -> DiskFaults {
    DiskFaults { full: true, ..DiskFaults::default() }
}

fn unwritable() -> DiskFaults {
    DiskFaults { unwritable: Some((0, SLOW_BYTES)), ..DiskFaults::default() }
}

fn slow(life: &mut Life, faults: DiskFaults) {
    life.pool.disk(0).set_faults(faults);
}

/// A cache that is smaller than a volume. Volume 1 has something on the slow device already, and nothing dirty.
fn begin(sharing: Sharing, shuffle: Option<u64>) -> Life {
    let weus_max = if sharing == Sharing::Shared { 6 } else { 12 };
    let config = CacheConfig { codec: Codec::None, fingerprints_percent: 0, sharing, weus_max, ..config() };
    let setup = Setup { config, shuffle, known: Some([true; 2]), ..Setup::of([Mode::Back, Mode::Back]) };
    let mut life = Life::begin(1, setup);
    life.ask_extents(Op::Write, 1, 0..ALLOCATED).unwrap();
    life.all_end(50_000).unwrap();
    life.order(CacheControl::Flush);
    life.settle().unwrap();
    assert_eq!(life.cache().status().dirty, 0);
    life
}

/// Reads everything; the oracle judges. Nothing of it fails.
fn read(life: &mut Life) {
    let whole = |volume| Act::Ask(Ask { op: Op::Read, volume, first: 0, len: SECTORS, fua: false });
    let before = life.errors.len();
    life.run(&[whole(0), whole(1)], &mut |_| Ok(true)).unwrap();
    life.all_end(50_000).unwrap();
    assert_eq!(life.errors[before..], [], "a read failed");
}

/// All goes to the slow device, and only that is looked at.
fn written_back(life: &mut Life) {
    slow(life, DiskFaults::default());
    life.order(CacheControl::Flush);
    life.settle().unwrap();
    let status = life.cache().status();
    assert_eq!((status.dirty, status.flush_left, status.write_back_fails.len()), (0, 0, 0));
    let found = life.read_all().unwrap();
    for (v, found) in (0..).zip(&found) {
        let below = life.pool.disk(0).peek(extent_of(v).device_offset, SECTORS * SECTOR);
        assert!(found == below.as_slice(), "volume {v}: the slow device has something else");
    }
    life.judge().unwrap();
}

/// Restarts over these disks, which have no space yet, and has the oracle judge what is there.
fn again(disks: Vec<SimDisk>, life: &Life, killed: bool) {
    let mut next = Life::start(disks, life.setup, life.oracle.clone()).unwrap();
    let found = next.read_all().unwrap();
    match killed {
        true => next.oracle.check_killed(&found).unwrap(),
        false => next.oracle.check(&found).unwrap(),
    }
    assert!(next.cache().status().dirty > 0, "it is in the cache still");
    assert!(next.read_all().unwrap() == found);
    written_back(&mut next);
    assert!(next.read_all().unwrap() == found, "what was acknowledged is on the slow device");
}

/// Volume 0 fills the cache while there is no space for it below: its changes end, with the slow device's error. Volume 1 goes on where it
/// has space. All that was acknowledged is there, at once, after a restart, and when there is space again.
#[test]
fn a_volume_without_space_below_is_told_so_and_another_goes_on() {
    for sharing in [Sharing::Shared, Sharing::PerVolume] {
        for (faults, error) in [(full(), IoError::NoSpace), (unwritable(), IoError::Device)] {
            let mut life = begin(sharing, None);
            life.may_fail = true;
            slow(&mut life, faults);
            for _ in 0..3 {
                life.ask_extents(Op::Write, 0, 0..EXTENTS).unwrap();
                life.all_end(50_000).unwrap_or_else(|e| panic!("{sharing:?}: {e}"));
            }
            assert!(!life.errors.is_empty(), "{sharing:?}: a cache of fewer extents took them all");
            let as_said = |e: &(u32, Op, Outcome)| *e == (0, Op::Write, Outcome::Failed(error));
            assert!(life.errors.iter().all(as_said), "{:?}", life.errors);
            let acknowledged = life.cache().status().dirty;
            assert!(acknowledged > EXTENTS / 2, "only {acknowledged} extents");

            life.errors.clear();
            for v in [0, 1] {
                life.ask_flush(v).unwrap();
                life.all_end(50_000).unwrap();
            }
            if error == IoError::NoSpace {
                for _ in 0..3 {
                    life.ask_extents(Op::Write, 1, 0..ALLOCATED).unwrap();
                    life.all_end(50_000).unwrap_or_else(|e| panic!("{sharing:?}: {e}"));
                    life.ask_flush(1).unwrap();
                    life.all_end(50_000).unwrap();
                }
            }
            assert_eq!(life.errors, [], "{sharing:?}: what needs no space, and flushes, go on");
            read(&mut life);
            let fails = life.cache().status().write_back_fails;
            let of_0 = fails.iter().find(|f| f.volume == life.oracle.key(0)).expect("it is told");
            assert!(of_0.error == error && of_0.dirty_bytes >= EXTENT * EXTENTS / 2, "{of_0:?}");
            assert_eq!(life.pool.stack().state(), LayerState::Ready);

            let (cut, killed) = (life.cut(), life.killed());
            again(cut, &life, false);
            again(killed, &life, true);
            written_back(&mut life);
        }
    }
}

/// After a power loss at this instant the oracle judges what is read, and then the slow device alone has the same.
fn cut_here(life: &mut Life) -> Result<(), String> {
    let mut next = Life::again(life.cut(), life.setup, life.oracle.clone())?;
    let found = next.read_all()?;
    slow(&mut next, DiskFaults::default());
    next.order(CacheControl::Flush);
    next.settle()?;
    for (v, found) in (0..).zip(&found) {
        let below = next.pool.disk(0).peek(extent_of(v).device_offset, SECTORS * SECTOR);
        if found != below.as_slice() {
            return Err(format!("the slow device has something else of volume {v} than what was read"));
        }
    }
    Ok(())
}

/// Changes of dirty extents that find no room, while there is space below for these: each is written back first. The power goes after every
/// event, and the oracle judges.
fn changed_without_room(shuffle: Option<u64>) -> Result<Life, String> {
    let mut life = begin(Sharing::Shared, shuffle);
    life.may_fail = true;
    // Dirty, and allocated below.
    life.ask_extents(Op::Write, 1, 0..ALLOCATED)?;
    life.all_end(50_000)?;
    slow(&mut life, full());
    for _ in 0..2 {
        life.ask_extents(Op::Write, 0, 0..EXTENTS)?;
        life.all_end(50_000)?;
    }
    assert!(life.errors.iter().all(|e| e.0 == 0) && !life.errors.is_empty(), "{:?}", life.errors);
    life.errors.clear();
    for n in 0..ALLOCATED - 1 {
        // In parts, too: the rest comes from where it is.
        let ask = Ask { op: Op::Write, volume: 1, first: n * 8 + n % 3, len: 8 - n % 5, fua: n % 2 == 0 };
        life.run(&[Act::Ask(ask)], &mut |_| Ok(true))?;
        while life.inside() > 0 {
            life.step()?;
            cut_here(&mut life)?;
        }
        for _ in 0..3 {
            cut_here(&mut life)?;
            life.step()?;
        }
    }
    Ok(life)
}

#[test]
fn a_change_of_a_dirty_extent_that_finds_no_room_ends_well_where_there_is_space_below() {
    for shuffle in [None, Some(1)] {
        let mut life = changed_without_room(shuffle).unwrap();
        assert_eq!(life.errors, []);
        assert!(life.cache().status().counters.diverted > 0);
        read(&mut life);
        let (cut, killed) = (life.cut(), life.killed());
        again(cut, &life, false);
        again(killed, &life, true);
        written_back(&mut life);
    }
}

/// Tries of what was refused stay few, whatever there is of it, and of the space that is made all is used soon.
#[test]
fn tries_are_few_and_end_when_there_is_space() {
    let mut life = begin(Sharing::Shared, None);
    life.may_fail = true;
    slow(&mut life, full());
    life.ask_extents(Op::Write, 0, 0..EXTENTS).unwrap();
    life.all_end(50_000).unwrap();
    let mut events = 0;
    let until = life.pool.now() + Span::from_secs(20);
    while life.pool.now() < until {
        life.step().unwrap();
        events += 1;
    }
    assert!(events < 20 * 100, "{events} events in 20 s");
    slow(&mut life, DiskFaults::default());
    let until = life.pool.now() + Span::from_secs(3);
    while !life.cache().status().write_back_fails.is_empty() {
        assert!(life.pool.now() < until, "{:?}", life.cache().status().write_back_fails);
        life.step().unwrap();
    }
    life.errors.clear();
    life.ask_extents(Op::Write, 0, 0..EXTENTS).unwrap();
    life.all_end(50_000).unwrap();
    assert_eq!(life.errors, [], "writes go on");
    written_back(&mut life);
}

#[derive(Default, Debug)]
struct Tally {
    full: u64,
    unwritable: u64,
    failed: u64,
    diverted: u64,
    /// Power losses while a change goes through for want of room, or soon after.
    cuts: u64,
    /// Lives that ended while the slow device had no space, and some of them with a kill.
    left_full: u64,
    kills: u64,
}

fn setup(seed: u64, rng: &mut Rng, planted: Option<Planted>) -> Setup {
    let shuffle = rng.chance(0.3).then(|| rng.next_u64());
    let config = CacheConfig {
        codec: [Codec::None, Codec::Lz4][rng.below(2) as usize],
        fingerprints_percent: [0, 100, 100][rng.below(3) as usize],
        sharing: if rng.chance(0.4) { Sharing::PerVolume } else { Sharing::Shared },
        weus_max: [5, 8, 12][rng.below(3) as usize],
        watermark_percent: [2, 10, 30, 90][rng.below(4) as usize],
        trim: rng.chance(0.8),
        planted,
        ..config()
    };
    let modes = [Mode::Back, if rng.chance(0.7) { Mode::Back } else { Mode::Through }];
    let nvram = shuffle.is_none() && rng.chance(0.2);
    let block = if seed.is_multiple_of(3) { 4096 } else { 512 };
    Setup { config, shuffle, nvram, block, known: Some([true; 2]), ..Setup::of(modes) }
}

/// Events after each change that went through for want of room, after which the power is lost if `cut` says so.
const CUT_EVENTS: u64 = 30;

/// One life, in which the slow device has no space from some event on; perhaps it has some again later.
fn live(life: &mut Life, rng: &mut Rng, cut: bool, tally: &mut Tally) -> Result<bool, String> {
    life.may_fail = true;
    let (seed, is_full) = (rng.next_u64(), rng.chance(0.8));
    let (mut events, at, heals) = (0, rng.below(300), rng.chance(0.5).then(|| 100 + rng.below(1500)));
    let acts: Vec<Act> = some_acts(seed, 160).into_iter().filter(|a| !matches!(a, Act::Delete)).collect();
    let (mut is_left, mut diverted, mut cut_until) = (false, 0, 0);
    life.run(&acts, &mut |life| {
        events += 1;
        if cut {
            let now = life.cache().status().counters.diverted;
            cut_until = if now > diverted { events + CUT_EVENTS } else { cut_until };
            diverted = now;
            if events < cut_until {
                tally.cuts += 1;
                cut_here(life)?;
            }
        }
        if events == at {
            slow(life, if is_full { full() } else { unwritable() });
            *(if is_full { &mut tally.full } else { &mut tally.unwritable }) += 1;
            is_left = true;
        }
        if heals.is_some_and(|n| events == at + n) {
            slow(life, DiskFaults::default());
            is_left = false;
        }
        Ok(true)
    })?;
    // Whether there is space again or not.
    if rng.chance(0.8) {
        life.all_end(30_000)?;
    }
    let status = life.cache().status();
    tally.failed += life.failed;
    tally.diverted += status.counters.diverted;
    match life.pool.stack().state() {
        LayerState::Ready if status.state == "ready" => Ok(is_left),
        state => Err(format!("it is {state:?}: {status:?}")),
    }
}

fn run(seed: u64, planted: Option<Planted>, cut: bool, tally: &mut Tally) -> Result<(), String> {
    let mut rng = Rng::new(seed, "full");
    let mut life = Life::begin(seed, setup(seed, &mut rng, planted));
    for n in 0..3 {
        let is_left = live(&mut life, &mut rng, cut, tally).map_err(|e| format!("life {n}: {e} ({:?})", life.setup))?;
        let killed = rng.chance(0.4);
        tally.left_full += u64::from(is_left);
        tally.kills += u64::from(is_left && killed);
        let disks = if killed { life.killed() } else { life.cut() };
        let fast = disks[1].clone();
        let explain = |e, oracle: &_| format!("after life {n}: {}", explained(e, &fast, oracle));
        let mut next = Life::start(disks, life.setup, life.oracle.clone())?;
        let found = next.read_all()?;
        let judged = if killed { next.oracle.check_killed(&found) } else { next.oracle.check(&found) };
        judged.map_err(|e| explain(e, &life.oracle))?;
        if next.read_all()? != found {
            return Err("what was read once is read otherwise".into());
        }
        life = next;
    }
    slow(&mut life, DiskFaults::default());
    life.order(CacheControl::Flush);
    life.settle()?;
    let status = life.cache().status();
    match (status.dirty, status.flush_left, status.write_back_fails.len()) {
        (0, 0, 0) => life.judge(),
        left => Err(format!("{left:?} extents can't be written back")),
    }
}

/// Many more with `PLIMSOLL_FULL_SEEDS=5000`, one of them with `PLIMSOLL_FULL_SEED=7`.
#[test]
fn whatever_finds_no_space_ends_and_nothing_promised_is_lost() {
    let mut tally = Tally::default();
    let seeds = each_seed("FULL", 120, |seed| run(seed, None, seed.is_multiple_of(10), &mut tally));
    println!("{tally:?}");
    if let Some(seeds) = seeds {
        let t = &tally;
        assert!(t.full > seeds && t.unwritable > seeds / 4 && t.failed > seeds && t.diverted > seeds, "{t:?}");
        assert!(t.cuts > seeds && t.left_full > seeds / 2 && t.kills > seeds / 5, "{t:?}");
    }
}

#[test]
fn the_planted_mistake_is_found() {
    let found = (0..120).find_map(|seed| run(seed, Some(Planted::OF_FULL), true, &mut Tally::default()).err());
    assert!(found.is_some_and(|what| what.contains("something else")));
}
