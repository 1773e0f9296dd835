//! Power is lost at every event of many runs, in the middle of everything the layer does, and an oracle says of each
//! sector what it may hold. Then the same with mistakes planted: each must be found.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::{DiskFaults, SimDisk};
use std::collections::BTreeMap;

/// Names the layer's activity at the power loss.
fn phase(a: Activity) -> &'static str {
    match a {
        Activity { image: true, cleaning: Some(Why::Swap), .. } => "swap, table",
        Activity { image: true, cleaning: Some(_), .. } => "checkpoint, table",
        Activity { image: true, .. } => "table",
        Activity { cleaning: Some(Why::Swap), .. } => "swap",
        Activity { cleaning: Some(_), .. } => "checkpoint",
        Activity { recording_kills: true, .. } => "kills",
        Activity { records: 1.., .. } => "append",
        _ => "other",
    }
}

#[derive(Default)]
struct Tally {
    points: BTreeMap<&'static str, u64>,
    second_lives: u64,
    kills: u64,
    recovery_max: Span,
    from_dump: u64,
    dumps_cut: u64,
    after_failures: u64,
    with_errors: u64,
    large: u64,
}

impl Tally {
    fn total(&self) -> u64 {
        self.points.values().sum()
    }
}

/// The disk as a power loss at this instant leaves it; with a capacitor, as much of its table as it managed to write.
fn cut(life: &mut Life, rng: &mut Rng, tally: &mut Tally) -> SimDisk {
    let dump = life.pool.stack().layer::<Logs>().unwrap().dump();
    let mut disk = life.pool.disk(0).clone();
    tally.after_failures += u64::from(disk.has_failed());
    disk.lose_power();
    // Whatever failed is told once; the next life has a good device.
    disk.set_faults(DiskFaults::default());
    if let Some((at, bytes)) = dump {
        // Half of the time all of it, else cut off somewhere.
        let sectors = bytes.len() as u64 / SECTOR;
        let n = if rng.chance(0.5) { sectors } else { rng.below(sectors) };
        tally.dumps_cut += u64::from(n < sectors);
        disk.write_durably(at, &bytes[..(n * SECTOR) as usize]);
    }
    disk
}

/// Returns the faults of a seed's device: none for three of four seeds, else a flush or a durable write that fails.
fn faults(seed: u64) -> DiskFaults {
    let at = 1 + Rng::new(seed, "when it fails").below(30);
    match seed % 8 {
        3 => DiskFaults { flush_fails_at: Some(at), ..DiskFaults::default() },
        6 => DiskFaults { fua_fails_at: Some(at), ..DiskFaults::default() },
        _ => DiskFaults::default(),
    }
}

/// One seed's run: at every event (or a share of them) the power is lost on a copy, which recovers and is judged; some of the copies live on
/// and lose their power again.
fn run(seed: u64, acts: usize, config: LogsConfig, cuts: f64, tally: &mut Tally) -> Result<(), String> {
    let shuffle = (seed % 2 == 1).then_some(seed);
    let block = block_of(seed);
    let device_bytes = device_bytes_of(seed);
    let is_large = device_bytes == LARGE_BYTES;
    let config = if is_large { for_large(config) } else { config };
    let cuts = if is_large { cuts / 4.0 } else { cuts };
    let mut disk = formatted_on(device_bytes, seed, block);
    disk.set_faults(faults(seed));
    let mut oracle = Oracle::new();
    // In one run of eight single requests fail, too.
    oracle.device_failed = seed % 8 == 5;
    let pool = if oracle.device_failed { failing_pool(disk, config, seed) } else { pool(disk, config, shuffle) };
    let mut life = Life { pool, oracle };
    life.pool.start();
    let mut rng = Rng::new(seed, "power");
    let work = in_blocks(acts_on(device_bytes, seed, acts), block);
    life.run(&work, &mut |life| {
        if !rng.chance(cuts) {
            return Ok(true);
        }
        let config = at_next_start(config, device_bytes, &mut rng);
        tally.large += u64::from(is_large);
        let activity = life.pool.stack().layer::<Logs>().unwrap().activity();
        *tally.points.entry(phase(activity)).or_default() += 1;
        let disk = cut(life, &mut rng, tally);
        let (again, found) = recovered(disk, config, shuffle)?;
        let mut oracle = life.oracle.clone();
        oracle.check(&found)?;
        if rng.chance(0.2) && config.capacitor.is_none() && !life.pool.disk(0).has_failed() {
            tally.kills += 1;
            killed(life, &mut rng, config, tally)?;
        }
        let mut next = Life { pool: again, oracle };
        let report = next.pool.stack().layer::<Logs>().unwrap().counters().recovery;
        tally.recovery_max = tally.recovery_max.max(report.took);
        tally.with_errors += u64::from(seed % 8 == 5);
        tally.from_dump += u64::from(report.from_dump);
        if rng.chance(0.25) {
            tally.second_lives += 1;
            second_life(&mut next, &mut rng, config, tally)?;
        } else if rng.chance(0.2) {
            zeroes_read_as_zeroes(&mut next.pool)?;
        }
        Ok(true)
    })
}

/// A life after a loss or a kill, as short as it gets, and a power loss.
fn second_life(life: &mut Life, rng: &mut Rng, config: LogsConfig, tally: &mut Tally) -> Result<(), String> {
    let (size_bytes, block) = (life.pool.disk(0).size_bytes(), life.pool.disk(0).block_bytes());
    let work = in_blocks(acts_on(size_bytes, rng.next_u64(), 12), block);
    let mut left = 1 + rng.below(40);
    life.run(&work, &mut |_| {
        left -= 1;
        Ok(left > 0)
    })?;
    let disk = cut(life, rng, tally);
    let (_, found) = recovered(disk, config, None)?;
    life.oracle.check(&found)
}

/// The process is killed instead: what it wrote is in the device's volatile cache. The next one loses the power.
fn killed(life: &mut Life, rng: &mut Rng, config: LogsConfig, tally: &mut Tally) -> Result<(), String> {
    let mut disk = life.pool.disk(0).clone();
    disk.abandoned();
    disk.set_faults(DiskFaults::default());
    let (again, found) = recovered(disk, config, None)?;
    let mut oracle = life.oracle.clone();
    oracle.check_killed(&found)?;
    second_life(&mut Life { pool: again, oracle }, rng, config, tally)
}

/// Some devices have blocks of 4096 bytes, of which sectors of 512 tear.
fn block_of(seed: u64) -> u64 {
    if seed % 5 == 4 { 4096 } else { 512 }
}

fn configs(block: u64) -> Vec<LogsConfig> {
    let config = || config_for(block);
    let swaps = CleanConfig { when_idle: false, ..config().clean };
    let capacitor = Capacitor { lasts: Span::from_millis(200), bytes_per_s: 100_000_000 };
    vec![
        config(),
        LogsConfig { clean: swaps, ..config() },
        LogsConfig { capacitor: Some(capacitor), ..config() },
        LogsConfig { records_inflight_max: 4, gather: Span::ZERO, ..config() },
    ]
}

/// Many more with `PLIMSOLL_CRASH_SEEDS=500`.
#[test]
fn nothing_promised_is_lost_at_any_instant() {
    let seeds = std::env::var("PLIMSOLL_CRASH_SEEDS").map_or(48, |n| n.parse().expect("a number"));
    let mut tally = Tally::default();
    for seed in 0..seeds {
        let all = configs(block_of(seed));
        let config = all[seed as usize / 8 % all.len()];
        run(seed, 160, config, 1.0, &mut tally).unwrap_or_else(|e| panic!("seed {seed}, {:?}: {e}", tally.points));
    }
    println!("{} power losses, {} with a second life, by what was under way:", tally.total(), tally.second_lives);
    println!("{} lives after a kill, and a power loss", tally.kills);
    for (phase, n) in &tally.points {
        println!("  {phase:18} {n}");
    }
    println!("longest recovery {:?}, {} from the capacitor's table", tally.recovery_max, tally.from_dump);
    println!("{} tables of a capacitor cut off", tally.dumps_cut);
    println!(
        "{} after a failed flush or durable write, {} among failing requests",
        tally.after_failures, tally.with_errors
    );
    println!("{} with logs that take records of several units", tally.large);
    assert!(tally.kills > 500, "hardly any kill");
    assert!(tally.large > 100, "hardly any run had such logs");
    assert!(tally.dumps_cut > 500 && tally.after_failures > 250 && tally.with_errors > 500);
    for phase in ["append", "checkpoint", "checkpoint, table", "swap", "swap, table", "table", "kills"] {
        assert!(tally.points.get(phase).copied().unwrap_or(0) > 20, "hardly any power loss during {phase}");
    }
}

/// A kill left the second copy of an image in a volatile cache. The next start took it for durable, wrote another image over the first copy, and
/// lost the power.
#[test]
fn a_copy_of_an_image_that_a_kill_leaves_is_made_durable() {
    let (seed, all) = (108, configs(block_of(108)));
    run(seed, 160, all[seed as usize / 8 % all.len()], 1.0, &mut Tally::default()).unwrap();
}

/// Tests of the test: every planted mistake is found by the oracle. An assertion of the layer's own that ends a run finds nothing: a build
/// without assertions must be found out, too.
#[test]
fn every_planted_mistake_is_found() {
    let mut missed = Vec::new();
    for planted in Planted::ALL {
        let found = (0..1000).find_map(|seed| {
            let all = configs(block_of(seed));
            let config = LogsConfig { planted: Some(planted), ..all[[0, 1, 3][seed as usize / 8 % 3]] };
            let run = || run(seed, 160, config, 0.2, &mut Tally::default());
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            ended.ok()?.err().map(|e| (seed, e))
        });
        match found {
            Some((seed, e)) => println!("{planted:?}: seed {seed}: {e}"),
            None => missed.push(planted),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
