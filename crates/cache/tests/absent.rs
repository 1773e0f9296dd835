//! Starts without the cache's device, which comes back later as it was: nothing that it has counts then, volumes that may have dirty
//! extents there aren't served meanwhile, and nothing is read from it or written to it.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::LayerState;
use plimsoll_stack::sim::oracle::Oracle;
use plimsoll_stack::sim::{DiskFaults, SimDisk};

/// Starts with the device and starts without it, by turns.
const ROUNDS: usize = 3;
const ACTS: usize = 70;

#[derive(Default, Debug)]
struct Tally {
    absent: u64,
    /// Of them, those after the device had failed while the pool served.
    failed: u64,
    flushes: u64,
    kills: u64,
    power_losses: u64,
    /// Extents that a start with the device found, and that don't count.
    found: u64,
}

fn setup(seed: u64, rng: &mut Rng) -> Setup {
    let shuffle = rng.chance(0.3).then(|| rng.next_u64());
    let config = CacheConfig {
        codec: [Codec::None, Codec::Lz4][rng.below(2) as usize],
        fingerprints_percent: [0, 100][rng.below(2) as usize],
        sharing: if rng.chance(0.3) { Sharing::PerVolume } else { Sharing::Shared },
        watermark_percent: [5, 30, 90][rng.below(3) as usize],
        ..config()
    };
    let nvram = shuffle.is_none() && rng.chance(0.3);
    let block = if seed.is_multiple_of(3) { 4096 } else { 512 };
    Setup { config, shuffle, nvram, block, known: Some([false; 2]), ..Setup::of(modes(rng)) }
}

fn modes(rng: &mut Rng) -> [Mode; 2] {
    [(); 2].map(|()| [Mode::Back, Mode::Back, Mode::Through, Mode::Off][rng.below(4) as usize])
}

/// The disks as a loss of power or a kill leaves them, and whether it was a kill.
fn end(life: &mut Life, rng: &mut Rng, tally: &mut Tally) -> (Vec<SimDisk>, bool) {
    if rng.chance(0.5) {
        tally.kills += 1;
        return (life.killed(), true);
    }
    tally.power_losses += 1;
    (life.cut(), false)
}

/// The next life over what another one left, with all that is there judged.
fn begin((disks, killed): (Vec<SimDisk>, bool), setup: Setup, oracle: Oracle) -> Result<Life, String> {
    let mut life = Life::start(disks, setup, oracle)?;
    if setup.absent {
        // The owner has recorded it before the start.
        life.order(CacheControl::FailureNoted);
    }
    if killed {
        let found = life.read_all()?;
        life.oracle.check_killed(&found)?;
    } else {
        life.judge()?;
    }
    Ok(life)
}

/// Writes all volumes back. After that the pool's record says that the cache may go.
fn write_back(life: &mut Life) -> Result<(), String> {
    for v in 0..VOLUMES {
        life.setup.modes[v as usize] = Mode::Through;
        announce(&mut life.pool, life.oracle.key(v), Mode::Through);
    }
    life.settle()?;
    let keys = [life.oracle.key(0), life.oracle.key(1)];
    match keys.iter().all(|key| life.cache().is_written_back(*key)) {
        true => Ok(()),
        false => Err("it isn't written back".into()),
    }
}

/// The fast disk fails while the pool serves. Returns whether it was noticed, and the slow disk has all of both volumes: then the pool's
/// record says that no volume needs the cache.
fn fail(life: &mut Life, rng: &mut Rng) -> Result<bool, String> {
    life.may_fail = true;
    life.pool.disk(1).set_faults(DiskFaults { away: true, ..DiskFaults::default() });
    let record = |life: &mut Life| {
        if life.cache().wants_failure_record() {
            life.order(CacheControl::FailureNoted);
        }
        Ok(true)
    };
    let acts = some_acts(rng.next_u64(), ACTS / 2);
    let acts: Vec<Act> = acts.into_iter().filter(|a| !matches!(a, Act::Delete)).collect();
    life.run(&acts, &mut |life| record(life))?;
    for _ in 0..20_000 {
        record(life)?;
        if life.inside() == 0 || !life.step()? {
            break;
        }
    }
    life.all_end(0)?;
    let keys = [life.oracle.key(0), life.oracle.key(1)];
    Ok(keys.iter().all(|key| life.cache().is_whole_without(*key)))
}

/// `forgets`: the record that the device's content is out of date isn't made, a mistake.
fn run(seed: u64, forgets: bool, tally: &mut Tally) -> Result<(), String> {
    let mut rng = Rng::new(seed, "absent");
    let mut life = Life::begin(seed, setup(seed, &mut rng));
    for _ in 0..ROUNDS {
        life.run(&some_acts(rng.next_u64(), ACTS), &mut |_| Ok(true))?;
        if rng.chance(0.5) {
            write_back(&mut life)?;
            // What is cached clean is in place by now, and confirmed.
            for v in 0..VOLUMES {
                life.ask_extents(Op::Read, v, 0..SECTORS * SECTOR / EXTENT)?;
                life.settle()?;
                life.ask_flush(v)?;
            }
            life.settle()?;
        } else if fail(&mut life, &mut rng)? {
            tally.failed += 1;
        } else {
            // A start without it isn't allowed. With it, nothing is missing.
            let (mut disks, killed) = end(&mut life, &mut rng, tally);
            disks[1].set_faults(DiskFaults::default());
            let mut back = Setup { known: Some([true; 2]), ..life.setup };
            back.config.generation += 1;
            life = begin((disks, killed), back, life.oracle.clone()).map_err(|e| format!("repaired: {e}"))?;
            life.setup.known = Some([false; 2]);
            continue;
        }

        let (mut disks, killed) = end(&mut life, &mut rng, tally);
        let before = disks[1].peek(0, FAST_BYTES);
        disks[1].set_faults(DiskFaults { away: true, ..DiskFaults::default() });
        let absent = Setup { absent: true, modes: modes(&mut rng), ..life.setup };
        life = begin((disks, killed), absent, life.oracle.clone()).map_err(|e| format!("absent: {e}"))?;
        tally.absent += 1;
        let status = life.cache().status();
        let why = status.why.clone().unwrap_or_default();
        if status.state != "broken" || !why.contains("it isn't here") || !why.contains("nothing is lost") {
            return Err(format!("{}: {why}", status.state));
        }
        let (mut left, flushes) = (rng.below(250), life.pool.disk(0).counts().0);
        life.run(&some_acts(rng.next_u64(), ACTS), &mut |_| {
            left = left.saturating_sub(1);
            Ok(left > 0)
        })?;
        tally.flushes += life.pool.disk(0).counts().0 - flushes;
        let now = life.pool.disk(1).peek(0, FAST_BYTES);
        if now.as_slice() != before.as_slice() {
            return Err("something was written to a device that isn't there".into());
        }

        let (mut disks, killed) = end(&mut life, &mut rng, tally);
        disks[1].set_faults(DiskFaults::default());
        let mut back = Setup { absent: false, modes: modes(&mut rng), ..life.setup };
        back.config.generation += u16::from(!forgets);
        let fast = disks[1].clone();
        let next = begin((disks, killed), back, life.oracle.clone());
        life = next.map_err(|e| format!("back: {}", explained(e, &fast, &life.oracle)))?;
        tally.found += life.cache().status().start.weus as u64;
    }
    Ok(())
}

/// Many more with `PLIMSOLL_ABSENT_SEEDS=5000`, one of them with `PLIMSOLL_ABSENT_SEED=7`.
#[test]
fn a_device_that_comes_back_is_out_of_date() {
    let mut tally = Tally::default();
    let seeds = each_seed("ABSENT", 60, |seed| run(seed, false, &mut tally));
    println!("{tally:?}");
    let Some(seeds) = seeds else { return };
    assert!(tally.absent > seeds && tally.kills > seeds / 2 && tally.power_losses > seeds / 2, "{tally:?}");
    assert!(tally.failed > seeds / 10 && tally.flushes > seeds && tally.found > seeds, "{tally:?}");
}

/// A test of the test: a start that takes the device for current is found.
#[test]
fn a_device_that_comes_back_and_counts_is_found() {
    let found = (0..60).find_map(|seed| Some((seed, run(seed, true, &mut Tally::default()).err()?)));
    let (seed, why) = found.expect("it isn't found");
    println!("seed {seed}: {why}");
    assert!(why.contains("volume"), "{why}");
}

/// If a volume may have dirty extents on the device, or nobody knows, nothing is served without it.
#[test]
fn a_volume_that_may_miss_something_is_not_served_without_its_device() {
    for known in [Some([true, false]), Some([false, true]), None] {
        let setup = Setup { known, ..Setup::of([Mode::Back; 2]) };
        let mut life = Life::begin(1, setup);
        for v in 0..VOLUMES {
            life.ask_extents(Op::Write, v, 0..10).unwrap();
            life.ask_flush(v).unwrap();
        }
        life.settle().unwrap();
        // Write-through now, which changes nothing about what it may have.
        let setup = Setup { absent: true, modes: [Mode::Through; 2], ..setup };
        let mut p = pool(life.cut(), &setup, &life.oracle);
        assert_eq!(p.start(), LayerState::Failed, "{known:?}");
        let status = p.stack().layer::<Cache>().unwrap().status();
        let why = status.why.unwrap();
        assert!(status.state == "failed" && why.contains("it isn't here") && why.contains("give-up"), "{why}");
        let now = p.now();
        let head = IoHead::new(Op::Read, life.oracle.key(0), TenantId(1), 0, EXTENT, now);
        p.offer(now, Io::new(head, Data::Absent));
        assert_eq!(p.next_done().map(|c| c.outcome), Some(Outcome::Failed(IoError::Unavailable)));
        let now = p.now();
        assert!(p.stack().tell_of_loss(now, 1), "what it lost may be nowhere else");
        // With the device again, all of it is there.
        Life::again(p.lose_power(), Setup { absent: false, ..setup }, life.oracle.clone()).unwrap();
    }
}
