//! Starts on devices that can't be read everywhere, after many deletions, and how much a start has to look at.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::sim::{DiskFaults, SimDisk};
use plimsoll_stack::{Layer, LayerState};

const EXTENTS: u64 = SECTORS * SECTOR / EXTENT;

fn plain(modes: [Mode; 2]) -> Setup {
    let plain = CacheConfig { codec: Codec::None, fingerprints_percent: 0, weus_max: 20, ..config() };
    Setup { config: plain, ..Setup::of(modes) }
}

/// A life in which everything was written and flushed.
fn written(setup: Setup) -> Life {
    let mut life = Life::begin(1, setup);
    for v in 0..2 {
        life.ask_extents(Op::Write, v, 0..30).unwrap();
        life.ask_flush(v).unwrap();
    }
    life.settle().unwrap();
    life
}

fn unreadable(disk: &mut SimDisk, at: u64) {
    unreadable_range(disk, at, at + SECTOR);
}

fn unreadable_range(disk: &mut SimDisk, from: u64, to: u64) {
    disk.set_faults(DiskFaults { unreadable: Some((from, to)), ..DiskFaults::default() });
}

fn start(disks: Vec<SimDisk>, setup: Setup, life: &Life) -> (LayerState, Life) {
    let mut p = pool(disks, &setup, &life.oracle);
    let state = p.start();
    (
        state,
        Life {
            pool: p,
            oracle: life.oracle.clone(),
            setup,
            may_fail: false,
            failed: 0,
            errors: Vec::new(),
            slow_lost: false,
        },
    )
}

/// One sector of each WEU's headers, of the journal, of the page: where nobody can miss anything the volumes are served, with what is
/// left of the cache or without; where somebody might, nothing is, and it is said why.
#[test]
fn a_sector_that_cannot_be_read_stops_only_who_would_miss_it() {
    let l = layout();
    let places: Vec<u64> =
        [0, l.half_at(0), l.half_at(1)].into_iter().chain((0..l.weus).map(|w| l.weu_at(w))).collect();
    for at in places {
        let setup = Setup { known: Some([false; 2]), ..plain([Mode::Through, Mode::Through]) };
        let mut life = written(setup);
        let mut disks = life.killed();
        unreadable(&mut disks[1], at);
        let (state, mut next) = start(disks, setup, &life);
        assert_ne!(state, LayerState::Failed, "at {at}: {:?}", next.cache().status().why);
        if next.cache().wants_failure_record() {
            next.setup.config.generation += 1;
            next.order(plimsoll_cache::CacheControl::FailureNoted);
        }
        let found = next.read_all().unwrap();
        next.oracle.check_killed(&found).unwrap();
        // What can't be read now may be read one day: by then it's older than what was written since.
        for v in 0..2 {
            next.ask_extents(Op::Write, v, 0..30).unwrap();
        }
        next.settle().unwrap();
        let mut disks = next.killed();
        disks[1].set_faults(DiskFaults::default());
        let (_, mut last) = start(disks, next.setup, &next);
        let found = last.read_all().unwrap();
        last.oracle.check_killed(&found).unwrap_or_else(|e| panic!("at {at}: {e}"));
    }
}

/// A header that is corrupt isn't taken for one that was never written. Of dirty extents there is a copy of it; if that is corrupt, too, the
/// start says so, and each after it, and of whom something may be missing.
#[test]
fn a_header_that_rotted_is_noticed() {
    for (mode, known) in [(Mode::Back, true), (Mode::Through, false)] {
        let setup = Setup { known: Some([known, false]), ..plain([mode, Mode::Through]) };
        let mut life = Life::begin(1, setup);
        // Many flushes: the journal says how far what is durable is with some of them.
        for n in 0..80 {
            life.ask_extents(Op::Write, 0, n % 30..n % 30 + 1).unwrap();
            life.ask_flush(0).unwrap();
            life.settle().unwrap();
        }
        let l = layout();
        let mut noticed = 0;
        for weu in 0..l.weus {
            let mut disks = life.cut();
            spoil_header(&mut disks[1], l.weu_at(weu));
            if mode == Mode::Back {
                let (state, mut next) = start(disks.clone(), setup, &life);
                let status = next.cache().status();
                assert_eq!((state, status.start.damaged), (LayerState::Ready, 0), "there is a copy");
                next.judge().unwrap();
                // All headers in it and their copies.
                for at in (l.weu_at(weu)..l.weu_at(weu + 1)).step_by(SECTOR as usize) {
                    if disks[1].peek(at, SECTOR).as_slice().starts_with(b"WEU1") {
                        spoil_header(&mut disks[1], at);
                    }
                }
            }
            let (state, mut next) = start(disks, setup, &life);
            let status = next.cache().status();
            if status.start.damaged == 0 {
                continue;
            }
            noticed += 1;
            assert_eq!(status.start.damaged, 1);
            match mode {
                Mode::Back => {
                    let why = status.why.unwrap_or_default();
                    assert!(state == LayerState::Degraded && why.contains("volume 1.1"), "{state:?}: {why}");
                }
                _ => {
                    assert_eq!((state, status.why), (LayerState::Ready, None), "nobody misses anything");
                    next.judge().unwrap();
                }
            }
            let disks = next.cut();
            let (state, mut last) = start(disks, setup, &next);
            let status = last.cache().status();
            assert_eq!(status.start.damaged, 0, "it is counted once");
            if mode == Mode::Back {
                stays_named(state, last, setup);
            }
        }
        assert!(noticed > 0, "{mode:?}");
    }
}

/// Also after a start that was stopped in order the pool is degraded and says of whom something may be missing, until that volume is given
/// up, or the slow device has all that is left of it.
fn stays_named(mut state: LayerState, mut life: Life, setup: Setup) {
    for _ in 0..3 {
        let why = life.cache().status().why.unwrap_or_default();
        assert!(state == LayerState::Degraded && why.contains("volume 1.1 may be missing"), "{state:?}: {why}");
        life.stop();
        let now = life.pool.now();
        life.pool.with_layer(|c: &mut Cache, out| c.drain(now, out));
        life.settle().unwrap();
        let disks = life.killed();
        (state, life) = start(disks, setup, &life);
    }
    let disks = life.cut();
    let over = [
        Setup { known: Some([false; 2]), ..setup },
        Setup {
            config: CacheConfig { generation: setup.config.generation + 1, ..setup.config },
            given_up: Some(setup.config.generation + 1),
            ..setup
        },
    ];
    for setup in over {
        let (state, mut next) = start(disks.clone(), setup, &life);
        assert_eq!((state, next.cache().status().why), (LayerState::Ready, None), "given up: {:?}", setup.given_up);
        // Nor is it said again.
        let disks = next.cut();
        let (state, _) = start(disks, Setup { given_up: None, ..setup }, &next);
        assert_eq!(state, LayerState::Ready);
    }
}

fn spoil_header(disk: &mut SimDisk, at: u64) {
    let header = disk.peek(at, SECTOR).as_slice().to_vec();
    disk.write_durably(at, &[&[!header[0]], &header[1..]].concat());
}

/// A header that can't be read is like a corrupt one: its copy is used; without one the volumes are named. So long as that is not most
/// of the device.
#[test]
fn a_header_that_cannot_be_read_is_like_a_corrupt_one() {
    let setup = Setup { known: Some([true, false]), ..plain([Mode::Back, Mode::Through]) };
    let mut life = written(setup);
    life.all_end(100_000).unwrap();
    life.ask_flush(0).unwrap();
    life.settle().unwrap();
    let whole = life.killed();
    let l = layout();
    let mut disks = whole.clone();
    unreadable(&mut disks[1], l.weu_at(0));
    let (state, mut next) = start(disks, setup, &life);
    assert_eq!((state, next.cache().status().why), (LayerState::Ready, None));
    let mut named = 0;
    for weu in 0..l.weus {
        let mut disks = whole.clone();
        unreadable_range(&mut disks[1], l.weu_at(weu), l.weu_at(weu + 1));
        let (state, mut next) = start(disks, setup, &life);
        assert_ne!(state, LayerState::Failed);
        let why = next.cache().status().why.unwrap_or_default();
        named += u32::from(state == LayerState::Degraded && why.contains("volume 1.1 may be missing"));
    }
    assert!(named > 0);
    let mut disks = whole;
    unreadable_range(&mut disks[1], l.weu_at(0), l.weu_at(l.weus));
    let (state, mut next) = start(disks, setup, &life);
    let why = next.cache().status().why.unwrap_or_default();
    assert!(state == LayerState::Failed && why.contains("volume 1.1") && why.contains("more than"), "{state:?}: {why}");
}

/// Headers of data that only the cache has can't be read, and then the start fails at its flush or its journal: what it has sealed is in memory
/// only. Were the volumes served from the slow device, the old data would come back over newer ones when the device can be read again.
#[test]
fn a_start_that_fails_after_headers_could_not_be_read_serves_nobody_who_needs_the_cache() {
    let setup = plain([Mode::Back, Mode::Through]);
    let config = CacheConfig { watermark_percent: 90, ..setup.config };
    let setup = Setup { known: Some([true, false]), config, ..setup };
    let mut life = written(setup);
    assert_eq!(life.cache().status().dirty, 30);
    let whole = life.killed();
    let l = layout();
    let is_dirty = |weu: &u32| {
        let bytes = whole[1].peek(l.weu_at(*weu), SECTOR);
        format::ChunkHeader::decode(bytes.as_slice(), l.salt, l.block_bytes, false).is_some_and(|h| h.dirty)
    };
    let dirty: Vec<u32> = (0..l.weus).filter(is_dirty).collect();
    assert!(!dirty.is_empty() && dirty.len() < l.weus as usize / 2, "{dirty:?}");
    let (flushes, _) = whole[1].counts();
    let none = DiskFaults::default();
    let faults = [
        DiskFaults { flush_fails_at: Some(flushes + 1), ..none.clone() },
        DiskFaults { unwritable: Some((0, l.weu_at(0))), ..none },
    ];
    for fault in faults {
        for readable in [false, true] {
            let mut disks = whole.clone();
            if !readable {
                let sectors = dirty.iter().flat_map(|weu| l.weu_at(*weu) / SECTOR..l.weu_at(weu + 1) / SECTOR);
                sectors.for_each(|sector| disks[1].lose_sector(sector));
            }
            disks[1].set_faults(fault.clone());
            let (state, mut next) = start(disks, setup, &life);
            let status = next.cache().status();
            let why = status.why.unwrap_or_default();
            assert!(state == LayerState::Failed && why.contains("volume 1.1"), "{readable}: {state:?}: {why}");
        }
    }
    Life::start(whole, setup, life.oracle.clone()).unwrap().judge().unwrap();
}

/// The slow device has all data if all was read and nothing is dirty: such a start does without the device.
#[test]
fn a_start_that_fails_with_all_written_back_serves_without_the_device() {
    let setup = Setup { known: Some([true, false]), ..plain([Mode::Back, Mode::Through]) };
    let mut life = written(setup);
    life.order(CacheControl::Flush);
    life.settle().unwrap();
    assert_eq!(life.cache().status().dirty, 0);
    let mut disks = life.killed();
    let (flushes, _) = disks[1].counts();
    disks[1].set_faults(DiskFaults { flush_fails_at: Some(flushes + 1), ..DiskFaults::default() });
    let (state, mut next) = start(disks, setup, &life);
    assert_eq!((state, next.cache().status().state), (LayerState::Ready, "broken"));
    next.judge().unwrap();
}

/// Blocks of headers that a start can't read don't count as reads that failed since: one more doesn't make the device a failed one.
#[test]
fn headers_that_cannot_be_read_do_not_count_as_reads_since() {
    let setup = Setup { known: Some([true, false]), ..plain([Mode::Back, Mode::Through]) };
    let setup = Setup { config: CacheConfig { watermark_percent: 90, ..setup.config }, ..setup };
    let mut life = written(setup);
    let l = layout();
    let mut disks = life.killed();
    // Two WEUs that nothing was written to.
    let blocks = l.weu_at(l.weus - 2) / SECTOR..l.weu_at(l.weus) / SECTOR;
    assert!(blocks.clone().count() > 100);
    blocks.clone().for_each(|sector| disks[1].lose_sector(sector));
    let (state, mut next) = start(disks, setup, &life);
    let status = next.cache().status();
    assert_eq!((state, status.why, status.counters.unreadable), (LayerState::Ready, None, 0));
    assert_eq!(u64::from(status.start.unreadable), blocks.clone().count() as u64, "each once");
    // Then some reads fail.
    next.may_fail = true;
    unreadable(next.pool.disk(1), (l.weu_at(1) - 2048) / SECTOR * SECTOR);
    for v in 0..2 {
        next.ask_extents(Op::Read, v, 0..30).unwrap();
    }
    next.all_end(50_000).unwrap();
    let status = next.cache().status();
    assert!(status.counters.unreadable > 0 && status.state == "ready", "{:?}", status.why);
}

/// A read of headers that fails once is repeated: what it was for is there.
#[test]
fn a_header_that_cannot_be_read_once_is_read_again() {
    for known in [true, false] {
        let mode = if known { Mode::Back } else { Mode::Through };
        let setup = Setup { known: Some([known, false]), ..plain([mode, Mode::Through]) };
        let mut life = written(setup);
        life.stop();
        let now = life.pool.now();
        life.pool.with_layer(|c: &mut Cache, out| c.drain(now, out));
        life.settle().unwrap();
        let l = layout();
        let whole = Life::start(life.killed(), setup, life.oracle.clone()).unwrap().cache().status().start;
        assert!(whole.weus > 2);
        for reads in [1, 1000] {
            let mut disks = life.killed();
            for weu in 0..l.weus / 2 {
                (0..8).for_each(|block| disks[1].fail_reads_of(l.weu_at(weu) / SECTOR + block, reads));
            }
            let (state, mut next) = start(disks, setup, &life);
            let status = next.cache().status();
            assert_ne!(state, LayerState::Failed, "{:?}", status.why);
            if reads == 1 {
                assert_eq!((state, status.start.unreadable), (LayerState::Ready, 0));
                assert_eq!((status.start.weus, status.start.extents), (whole.weus, whole.extents));
            } else {
                assert!(status.start.unreadable >= l.weus / 2 && status.start.weus < whole.weus, "{:?}", status.start);
            }
        }
        // More than half of them: the device has failed, whoever would miss something.
        let mut disks = life.killed();
        (0..=l.weus / 2).for_each(|weu| disks[1].lose_sector(l.weu_at(weu) / SECTOR));
        let (state, mut next) = start(disks, setup, &life);
        let status = next.cache().status();
        let why = status.why.unwrap_or_default();
        assert!(why.contains("device failed") && why.contains("more than half"), "{state:?}: {why}");
        assert_eq!((state == LayerState::Failed, status.state == "broken"), (known, !known));
    }
}

/// One extent of the fast device can't be read: its reads are the slow device's; if only the cache had it, they fail, and all else
/// goes on.
#[test]
fn an_extent_that_cannot_be_read_is_lost_alone() {
    for modes in [[Mode::Through; 2], [Mode::Back; 2]] {
        let setup = plain(modes);
        let setup = Setup { config: CacheConfig { watermark_percent: 90, ..setup.config }, ..setup };
        let mut life = written(setup);
        life.may_fail = true;
        let last_of_weu_0 = layout().weu_at(1) - 2048;
        unreadable(life.pool.disk(1), last_of_weu_0 / SECTOR * SECTOR);
        for v in 0..2 {
            life.ask_extents(Op::Read, v, 0..30).unwrap();
        }
        life.all_end(50_000).unwrap();
        let status = life.cache().status();
        assert_eq!(status.state, "ready");
        let back = modes[0] == Mode::Back;
        assert_eq!((life.failed, status.counters.lost), if back { (1, 1) } else { (0, 0) });
        assert!(status.counters.unreadable > 0);
        // What is written again is there again.
        life.pool.disk(1).set_faults(DiskFaults::default());
        for v in 0..2 {
            life.ask_extents(Op::Write, v, 0..EXTENTS).unwrap();
        }
        life.all_end(50_000).unwrap();
        life.may_fail = false;
        for v in 0..2 {
            life.ask_extents(Op::Read, v, 0..EXTENTS).unwrap();
        }
        life.settle().unwrap();
    }
}

/// After an orderly end a start needn't look at any chunk's extents; after a kill, at no more than the journal leaves open.
#[test]
fn a_start_checks_only_what_the_journal_leaves_open() {
    let setup = plain([Mode::Back, Mode::Back]);
    let mut life = Life::begin(1, setup);
    for n in 0..200 {
        life.ask_extents(Op::Write, 0, n % EXTENTS..n % EXTENTS + 1).unwrap();
        life.ask_flush(0).unwrap();
        life.settle().unwrap();
    }
    let disks = life.killed();
    let killed = Life::start(disks, setup, life.oracle.clone()).unwrap().cache().status().start.doubtful;
    life.stop();
    let now = life.pool.now();
    life.pool.with_layer(|c: &mut Cache, out| c.drain(now, out));
    life.settle().unwrap();
    let disks = life.killed();
    let stopped = Life::start(disks, setup, life.oracle.clone()).unwrap().cache().status().start.doubtful;
    assert!(killed <= 6 && stopped == 0, "{killed} after a kill, {stopped} after an end in order");
}

fn volume(id: u32) -> (VolumeKey, CacheVolume) {
    (VolumeKey { id, generation: 1 }, cache_volume(Mode::Back, 0))
}

fn make_and_forget(life: &mut Life, id: u32) -> Result<(), &'static str> {
    let (now, (key, config)) = (life.pool.now(), volume(id));
    let c = |c: &mut Cache, out: &mut plimsoll_stack::Actions| {
        let made = c.announce(now, key, config, out);
        c.forget(now, key, out);
        made
    };
    life.pool.with_layer(c).unwrap()
}

/// More deletions than the journal has room for, while a WEU is there that may have something of each: no start needs them that is
/// told which volumes there are.
#[test]
fn any_number_of_volumes_may_come_and_go() {
    let setup = Setup { known: Some([true; 2]), ..plain([Mode::Back, Mode::Back]) };
    let mut life = written(setup);
    for id in 10..5_000 {
        make_and_forget(&mut life, id).unwrap();
        if id % 50 == 0 {
            life.settle().unwrap();
        }
    }
    life.settle().unwrap();
    let mut life = Life::again(life.cut(), setup, life.oracle.clone()).unwrap();
    // More than there are slots, since the start.
    for id in 5_000..75_000 {
        make_and_forget(&mut life, id).unwrap_or_else(|e| panic!("volume {id}: {e}"));
        if id % 500 == 0 {
            life.settle().unwrap();
        }
    }
    life.judge().unwrap();
}

/// A volume with something that only the cache has is deleted when nobody can write that down: it's gone all the same.
#[test]
fn a_deletion_without_a_journal_is_one() {
    for while_starting in [true, false] {
        let setup = Setup { known: Some([true; 2]), ..plain([Mode::Back, Mode::Back]) };
        let setup = Setup { config: CacheConfig { watermark_percent: 90, ..setup.config }, ..setup };
        let mut life = written(setup);
        let key = life.oracle.key(1);
        let disks = if while_starting {
            let mut p = pool(life.killed(), &setup, &life.oracle);
            let now = p.now();
            p.stack().start(now);
            for _ in 0..5 {
                p.step();
            }
            let now = p.now();
            p.with_layer(|c: &mut Cache, out| c.forget(now, key, out));
            p.run();
            let status = p.stack().layer::<Cache>().unwrap().status();
            assert!(!p.stack().layer::<Cache>().unwrap().is_using(key) && status.state == "ready");
            assert_eq!(status.dirty, 30, "the other one's");
            p.lose_power()
        } else {
            life.may_fail = true;
            life.pool.disk(1).set_faults(DiskFaults { away: true, ..DiskFaults::default() });
            life.ask_extents(Op::Write, 0, 0..40).unwrap();
            life.all_end(1_000).unwrap_or_default(); // some of them wait for the note
            assert_eq!(life.cache().status().state, "broken");
            let now = life.pool.now();
            life.pool.with_layer(|c: &mut Cache, out| c.forget(now, key, out));
            let mut disks = life.cut();
            disks.iter_mut().for_each(|d| d.set_faults(DiskFaults::default()));
            disks
        };
        life.oracle.deleted(1);
        let mut next = Life::start(disks, setup, life.oracle.clone()).unwrap();
        let status = next.cache().status();
        assert_eq!((status.dirty, status.volumes.len()), (30, 2), "{while_starting}");
        assert!(next.cache().status().volumes.iter().all(|v| v.key != key));
    }
}

/// A volume is deleted at each step of a start, also in the last ones, when what was found is taken over already and the journal's snapshot
/// is on its way: once its deletion is over no later start has anything of it, one that isn't told which volumes there are least of all.
#[test]
fn a_volume_that_is_deleted_while_starting_stays_deleted() {
    let setup = plain([Mode::Back, Mode::Back]);
    let setup = Setup { config: CacheConfig { watermark_percent: 90, ..setup.config }, ..setup };
    let mut life = written(setup);
    let (key, disks) = (life.oracle.key(1), life.cut());
    let (mut taken_over, mut in_snapshot) = (0, 0);
    for steps in 0.. {
        let mut p = pool(disks.clone(), &setup, &life.oracle);
        let now = p.now();
        p.stack().start(now);
        p.with_layer(|_: &mut Cache, _| ());
        for _ in 0..steps {
            p.step().expect("it starts");
        }
        let a = p.stack().layer::<Cache>().unwrap().activity();
        if !a.recovering {
            break;
        }
        taken_over += u32::from(a.dirty > 0 && !a.journal);
        in_snapshot += u32::from(a.journal);
        let now = p.now();
        p.with_layer(|f: &mut plimsoll_stack::Front, _| f.remove_volume(key));
        p.with_layer(|c: &mut Cache, out| c.forget(now, key, out));
        while p.stack().is_using(key) {
            p.step().expect("its deletion becomes durable");
        }
        let mut oracle = life.oracle.clone();
        oracle.deleted(1);
        let mut next = Life::start(p.lose_power(), setup, oracle).unwrap();
        let dirty = |v: &VolumeStatus| if v.key == key { v.dirty } else { 0 };
        let status = next.cache().status();
        let dirty: u64 = status.volumes.iter().map(dirty).sum();
        assert_eq!((dirty, status.dirty), (0, 30), "after {steps} steps: only the other one's count");
    }
    assert!(taken_over > 0 && in_snapshot > 0, "{taken_over} {in_snapshot}");
}

/// The NVRAM below the cache can't be read: the cache never starts. A deletion doesn't wait for that. What the cache has of the volume counts
/// at no later start, whether that isn't told of the volume any more, or has it again and knows that it was given up.
#[test]
fn a_deletion_ends_though_the_cache_never_starts() {
    let setup = Setup { known: Some([true; 2]), nvram: true, ..plain([Mode::Back, Mode::Back]) };
    let setup = Setup { config: CacheConfig { watermark_percent: 90, ..setup.config }, ..setup };
    let mut life = written(setup);
    let mut disks = life.killed();
    disks[2].set_faults(DiskFaults { away: true, ..DiskFaults::default() });
    let (state, mut next) = start(disks, setup, &life);
    assert_eq!((state, next.cache().status().state), (LayerState::Failed, "recovering"));
    next.delete(0).unwrap();
    let mut disks = next.killed();
    disks[2].set_faults(DiskFaults::default());
    let dirty = |life: &mut Life| {
        let volumes = life.cache().status().volumes;
        [0, 1].map(|v| volumes.iter().find(|s| s.key == life.oracle.key(v)).map(|s| s.dirty))
    };
    let had = dirty(&mut Life::start(disks.clone(), setup, life.oracle.clone()).unwrap());
    assert!(had[0] > Some(0) && had[1] > Some(0), "{had:?}");
    let mut without = Life::start(disks.clone(), setup, next.oracle.clone()).unwrap();
    assert_eq!(dirty(&mut without), [Some(0), had[1]]);
    without.judge().unwrap();
    let generation = setup.config.generation + 1;
    let config = CacheConfig { generation, ..setup.config };
    let mut again = Life::start(disks, Setup { config, given_up: Some(generation), ..setup }, life.oracle).unwrap();
    assert_eq!(dirty(&mut again), [Some(0), had[1]]);
}

/// A pool whose cache is told of these volumes of the oracle, and of no others.
fn told_of(disks: Vec<SimDisk>, setup: &Setup, keys: &[VolumeKey]) -> plimsoll_stack::sim::SimPool {
    told_of_sizes(disks, setup, &keys.iter().map(|key| (*key, SECTORS * SECTOR)).collect::<Vec<_>>())
}

/// The same with the volumes' sizes.
fn told_of_sizes(disks: Vec<SimDisk>, setup: &Setup, volumes: &[(VolumeKey, u64)]) -> plimsoll_stack::sim::SimPool {
    let mut p = plimsoll_stack::sim::SimPool::with_stack(disks, |offers| {
        let mut s = plimsoll_stack::Stack::new(plimsoll_stack::StackConfig::default(), offers);
        s.push(Box::new(plimsoll_stack::Front::new()), vec![plimsoll_stack::Target::Node(1)]);
        let cache = Cache::new(layout(), setup.config).with_known(volumes.iter().map(|(key, _)| (*key, true)));
        s.push(Box::new(cache), vec![plimsoll_stack::Target::Node(2), plimsoll_stack::Target::Device(1)]);
        s.push(Box::new(plimsoll_stack::Map::new()), vec![plimsoll_stack::Target::Device(0)]);
        s
    });
    for (key, size_bytes) in volumes {
        announce_of(&mut p, *key, setup.modes[key.id as usize - 1], *size_bytes);
    }
    assert_eq!(p.start(), LayerState::Ready);
    p
}

/// A start that isn't told of a volume has nothing of it. Nor has any later start, which may be told of its key: after a restore of the
/// metadata it may be another volume's.
#[test]
fn what_is_found_of_an_unknown_volume_never_comes_back() {
    for mode in [Mode::Through, Mode::Back] {
        let setup = plain([mode; 2]);
        let setup = Setup { config: CacheConfig { watermark_percent: 90, ..setup.config }, ..setup };
        let mut life = written(setup);
        let keys = [life.oracle.key(0), life.oracle.key(1)];
        life.stop();
        let now = life.pool.now();
        life.pool.with_layer(|c: &mut Cache, out| c.drain(now, out));
        life.settle().unwrap();
        let disks = life.killed();
        let found = |p: &mut plimsoll_stack::sim::SimPool| {
            let status = p.stack().layer::<Cache>().unwrap().status();
            (status.start.extents, status.dirty)
        };
        let both = found(&mut told_of(disks.clone(), &setup, &keys));
        let mut p = told_of(disks, &setup, &keys[..1]);
        let one = found(&mut p);
        assert!(one.0 > 0 && one.0 < both.0, "{mode:?}: {one:?} of {both:?}");
        let later = found(&mut told_of(p.lose_power(), &setup, &keys));
        assert_eq!(later, one, "{mode:?}");
    }
}

/// The journal says that a volume was deleted, and the metadata have it, as they were restored from an older backup. The first start has
/// nothing of it; what is written to it then is there after the next.
#[test]
fn a_volume_that_is_there_again_keeps_what_is_written_to_it() {
    let setup = Setup { known: Some([true; 2]), ..plain([Mode::Back, Mode::Back]) };
    let setup = Setup { config: CacheConfig { watermark_percent: 90, ..setup.config }, ..setup };
    let mut life = written(setup);
    let (key, now) = (life.oracle.key(1), life.pool.now());
    life.pool.with_layer(|c: &mut Cache, out| c.forget(now, key, out));
    while life.pool.stack().is_using(key) {
        life.pool.step().expect("its deletion becomes durable");
    }
    let mut life = Life::start(life.cut(), setup, life.oracle.clone()).unwrap();
    assert_eq!(life.cache().status().dirty, 30, "the other one's");
    life.ask_extents(Op::Write, 1, 0..30).unwrap();
    life.settle().unwrap();
    life.ask_flush(1).unwrap();
    life.settle().unwrap();
    let mut next = Life::again(life.cut(), setup, life.oracle.clone()).unwrap();
    assert_eq!(next.cache().status().dirty, 60);
}

/// The metadata were restored from before the volume grew, and it ends within an extent now of which only the cache has the latest. A write
/// to its end keeps the rest of that extent, also what is beyond the end: the volume may grow again.
#[test]
fn a_write_to_the_end_of_a_volume_that_was_larger_keeps_the_extent_that_it_ends_in() {
    let setup = plain([Mode::Back, Mode::Back]);
    let setup = Setup { config: CacheConfig { watermark_percent: 90, ..setup.config }, ..setup };
    let mut life = written(setup);
    let (key, other) = (life.oracle.key(0), life.oracle.key(1));
    let all = life.read_all().unwrap().remove(0);
    let (at, small) = (20 * EXTENT, 20 * EXTENT + 3 * SECTOR);
    let sizes = |size| [(key, size), (other, SECTORS * SECTOR)];
    let mut p = told_of_sizes(life.killed(), &setup, &sizes(small));
    let one = |p: &mut plimsoll_stack::sim::SimPool, op, offset, len, data| {
        let now = p.now();
        p.offer(now, Io::new(IoHead::new(op, key, TenantId(1), offset, len, now), data));
        loop {
            if let Some(c) = p.next_done() {
                assert!(c.outcome.is_done(), "{op:?}: {:?}", c.outcome);
                let mut bytes = vec![0; c.io.len as usize];
                if op == Op::Read {
                    c.io.data.copy_to(&mut bytes);
                }
                break bytes;
            }
            p.step().expect("it ends");
        }
    };
    let new = vec![0xa5; SECTOR as usize];
    one(&mut p, Op::Write, at + 2 * SECTOR, SECTOR, Data::Bytes(Buf::copy_of(&new)));
    one(&mut p, Op::Flush, 0, 0, Data::Absent);
    let expected = |to: usize| [&all[at as usize..][..2 * SECTOR as usize], &new, &all[small as usize..to]].concat();
    assert_eq!(one(&mut p, Op::Read, at, 3 * SECTOR, Data::Absent), expected(small as usize));
    // It grows again.
    let mut p = told_of_sizes(p.lose_power(), &setup, &sizes(SECTORS * SECTOR));
    assert_eq!(one(&mut p, Op::Read, at, EXTENT, Data::Absent), expected((at + EXTENT) as usize));
}
