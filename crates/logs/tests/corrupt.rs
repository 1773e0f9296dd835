//! A sector of the layer's own structures becomes corrupt or unreadable, at any time: between a power loss and the next start, or
//! while it serves. Then a read brings what it should or fails, or the pool is degraded or failed and says why. It never brings
//! anything else. Only of what became durable just before the power loss, and no record followed, something older may be
//! found: a torn record looks the same (see `LogsConfig::witness_after`).

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::{Corruption, DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;
use std::collections::BTreeMap;

/// From when something becomes durable until a witness of it is: [`LogsConfig::witness_after`], and what the writes of two
/// notes, a record and a flush take on this disk behind all that may be before them.
const WINDOW: Span = Span::from_micros(200 + 3000);

#[derive(Default)]
struct Tally {
    /// By structure and what happened to it: how many, and how many of them ended how.
    kinds: BTreeMap<(&'static str, &'static str), [u64; 4]>,
    second_lives: u64,
    between_notes: u64,
    lost_sectors: u64,
}

impl Tally {
    fn total(&self) -> u64 {
        self.kinds.values().map(|k| k.iter().sum::<u64>()).sum()
    }
}

/// A sector of an own structure that holds something.
fn pick(disk: &SimDisk, rng: &mut Rng) -> (&'static str, u64) {
    let l = layout_on(disk.size_bytes(), disk.block_bytes());
    let any = |rng: &mut Rng, of: Vec<u64>| (!of.is_empty()).then(|| of[rng.below(of.len() as u64) as usize]);
    loop {
        let (what, sector) = match rng.below(20) {
            0 => ("layout", Some(layout::LAYOUTS_AT[rng.below(2) as usize] / SECTOR)),
            1..4 => ("note", Some(layout::NOTES_AT[rng.below(2) as usize] / SECTOR)),
            4..8 => ("image", any(rng, disk.written_sectors(l.image_at(0) / SECTOR, l.base / SECTOR))),
            _ => {
                let log = rng.below(u64::from(l.logs)) as u32;
                let from = l.log_start(log);
                ("record", any(rng, disk.written_sectors(from / SECTOR, (from + l.shape.log_bytes) / SECTOR)))
            }
        };
        if let Some(sector) = sector {
            return (what, sector);
        }
    }
}

/// Corrupts it somehow; how.
fn corrupt(disk: &mut SimDisk, sector: u64, rng: &mut Rng) -> &'static str {
    loop {
        let (what, how) = match rng.below(5) {
            0 => ("one bit", Corruption::Bit(rng.below(4096) as u16)),
            1 => ("zeroes", Corruption::Zeroes),
            2 => ("older", Corruption::Older(1 + rng.below(3) as usize)),
            3 => ("another's", Corruption::Other(pick(disk, rng).1)),
            _ => {
                disk.lose_sector(sector);
                return "unreadable";
            }
        };
        if disk.corrupt(sector, how) {
            return what;
        }
    }
}

/// Power is lost on `life`'s device after `already` happened to it, or something happens to it then; what is found is judged.
fn judge(
    life: &mut Life,
    already: Option<(&'static str, &'static str)>,
    config: LogsConfig,
    rng: &mut Rng,
    tally: &mut Tally,
) -> Result<(), String> {
    let at = life.pool.now();
    let mut disk = life.pool.disk(0).clone();
    disk.lose_power();
    let (what, how) = already.unwrap_or_else(|| {
        let (what, sector) = pick(&disk, rng);
        (what, corrupt(&mut disk, sector, rng))
    });
    let context = |e: String| format!("{what}, {how}: {e}");
    let device_bytes = disk.size_bytes();
    let config = at_next_start(config, device_bytes, rng);
    let (mut p, state, found) = started(disk, config).map_err(context)?;
    let problem = problem(&mut p);
    let ends = match state {
        LayerState::Ready => 0,
        LayerState::Degraded => 1,
        _ => 2,
    };
    let has_eio = found.iter().flatten().any(Option::is_none);
    tally.kinds.entry((what, how)).or_default()[if ends == 0 && has_eio { 3 } else { ends }] += 1;
    if ends > 0 && problem.is_none() {
        return Err(context(format!("it is {state:?} and doesn't say why")));
    }
    if ends == 2 {
        return Ok(());
    }
    let floor = if what == "record" { at - WINDOW } else { at };
    let unreadable = problem.as_ref().is_some_and(|p| p.contains("could not be read"));
    let mut oracle = life.oracle.clone();
    tally.lost_sectors += oracle.check_corrupt(&found, floor, unreadable).map_err(context)?;
    // What the device itself can't read, the client hears of from it.
    if has_eio && problem.is_none() && how != "unreadable" {
        return Err(context("sectors are lost and nothing says so".into()));
    }
    zeroes_read_as_zeroes(&mut p).map_err(context)?;
    if rng.chance(0.25) {
        // What was repaired or given up stays so.
        tally.second_lives += 1;
        oracle.may_fail = true;
        let block = p.disk(0).block_bytes();
        let mut next = Life { pool: p, oracle };
        let work = in_blocks(acts_on(device_bytes, rng.next_u64(), 12), block);
        let mut left = 1 + rng.below(40);
        next.run(&work, &mut |_| {
            left -= 1;
            Ok(left > 0)
        })
        .map_err(|e| context(format!("second life: {e}")))?;
        let (at, mut disk) = (next.pool.now(), next.pool.disk(0).clone());
        disk.lose_power();
        // Something lost by name may be read rightly again; nothing that the first start left out may come back.
        if !has_eio && state == LayerState::Ready && rng.chance(0.5) {
            disk.heal_sectors();
        }
        let (mut p, state, found) = started(disk, config).map_err(context)?;
        let problem = common::problem(&mut p);
        if state == LayerState::Failed {
            return if how == "unreadable" || what == "record" {
                Ok(())
            } else {
                Err(context(format!("fails only at the second start: {problem:?}")))
            };
        }
        let any = problem.as_ref().is_some_and(|p| p.contains("could not be read"));
        if unreadable && problem.is_none() {
            return Err(context("what was lost at a start isn't said any more at the next".into()));
        }
        next.oracle.check_corrupt(&found, at, any).map_err(|e| context(format!("after a second life: {e}")))?;
    }
    Ok(())
}

/// The newer of the two notes, where the power was lost between their writes.
fn newer_note(disk: &SimDisk) -> Option<usize> {
    let layout = layout_on(disk.size_bytes(), disk.block_bytes());
    let numbers = layout::NOTES_AT.map(|at| {
        let bytes = disk.peek(at, layout.block());
        format::decode_note(&layout, bytes.as_slice()).map(|n| n.number)
    });
    (numbers[0].is_some() && numbers[1].is_some() && numbers[0] != numbers[1])
        .then(|| usize::from(numbers[0] < numbers[1]))
}

/// Power is lost between the two copies of a note; what follows is durable; then the copy that was written is corrupt.
fn between_notes(life: &mut Life, config: LogsConfig, rng: &mut Rng, tally: &mut Tally) -> Result<(), String> {
    let mut disk = life.pool.disk(0).clone();
    disk.lose_power();
    let Some(newer) = newer_note(&disk) else { return Ok(()) };
    tally.between_notes += 1;
    let block = disk.block_bytes();
    let context = |e: String| format!("between two notes: {e}");
    let (p, state, found) = started(disk, config).map_err(context)?;
    if state != LayerState::Ready {
        return Err(context(format!("it is {state:?}")));
    }
    let mut oracle = life.oracle.clone();
    oracle.check_corrupt(&found, life.pool.now(), false).map_err(context)?;
    let mut next = Life { pool: p, oracle };
    let work = in_blocks(some_acts(rng.next_u64(), 12), block);
    let mut left = 1 + rng.below(60);
    next.run(&work, &mut |_| {
        left -= 1;
        Ok(left > 0)
    })
    .map_err(context)?;
    let (at, mut disk) = (next.pool.now(), next.pool.disk(0).clone());
    disk.lose_power();
    disk.corrupt(layout::NOTES_AT[newer] / SECTOR, Corruption::Zeroes);
    let (mut p, state, found) = started(disk, config).map_err(context)?;
    if state != LayerState::Ready {
        return Err(context(format!("then a corrupt note: it is {state:?}: {:?}", problem(&mut p))));
    }
    next.oracle.check_corrupt(&found, at, false).map_err(|e| context(format!("then a corrupt note: {e}")))?;
    Ok(())
}

fn block_of(seed: u64) -> u64 {
    if seed % 5 == 4 { 4096 } else { 512 }
}

fn config_of(seed: u64) -> LogsConfig {
    let config = config_for(block_of(seed));
    let config = if device_bytes_of(seed) == LARGE_BYTES { for_large(config) } else { config };
    match seed / 5 % 3 {
        0 => config,
        1 => LogsConfig { clean: CleanConfig { when_idle: false, ..config.clean }, ..config },
        // Images are rare: records are all that there is.
        _ => LogsConfig {
            image_every: Span::from_secs(1),
            clean: CleanConfig { idle_after: None, ..config.clean },
            ..config
        },
    }
}

fn begin(seed: u64, config: LogsConfig) -> Life {
    let shuffle = (seed % 2 == 1).then_some(seed);
    let disk = formatted_on(device_bytes_of(seed), seed, block_of(seed));
    let mut life = Life { pool: pool(disk, config, shuffle), oracle: Oracle::new() };
    life.pool.start();
    life
}

/// One seed's run, with a power loss and a corruption at a share of its events; and with one while it serves.
fn run(seed: u64, config: LogsConfig, cuts: f64, tally: &mut Tally) -> Result<(), String> {
    let work = in_blocks(acts_on(device_bytes_of(seed), seed, 160), block_of(seed));
    let mut rng = Rng::new(seed, "corrupt");
    let mut life = begin(seed, config);
    life.run(&work, &mut |life| {
        if rng.chance(cuts) {
            judge(life, None, config, &mut rng, tally)?;
        }
        between_notes(life, config, &mut rng, tally)?;
        Ok(true)
    })?;
    let mut life = begin(seed, config);
    let mut until = 20 + rng.below(200);
    let mut happened = None;
    let mut then = 1 + rng.below(150);
    life.run(&work, &mut |life| {
        until = until.saturating_sub(1);
        if until == 0 && happened.is_none() {
            let (what, sector) = pick(life.pool.disk(0), &mut rng);
            happened = Some((what, corrupt(life.pool.disk(0), sector, &mut rng)));
            life.oracle.may_fail = true;
        }
        then -= u64::from(happened.is_some());
        Ok(then > 0)
    })
    .map_err(|e| format!("while it serves, {happened:?}: {e}"))?;
    match happened {
        Some(_) => judge(&mut life, happened, config, &mut rng, tally).map_err(|e| format!("while it served, {e}")),
        None => Ok(()),
    }
}

/// Many more with `PLIMSOLL_ROT_SEEDS=5000`.
#[test]
fn nothing_else_is_ever_read() {
    let seeds = std::env::var("PLIMSOLL_ROT_SEEDS").map_or(60, |n| n.parse().expect("a number"));
    let mut tally = Tally::default();
    for seed in 0..seeds {
        run(seed, config_of(seed), 0.3, &mut tally).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!(
        "{} corruptions, {} with a second life, {} sectors lost",
        tally.total(),
        tally.second_lives,
        tally.lost_sectors
    );
    println!("{} power losses between two notes", tally.between_notes);
    assert!(tally.between_notes > seeds, "power was hardly lost between two notes");
    println!("  {:20} ready, degraded, failed, some reads fail", "");
    for ((what, how), ends) in &tally.kinds {
        println!("  {what:8} {how:11} {ends:?}");
    }
    for what in ["layout", "note"] {
        let failed: u64 =
            tally.kinds.iter().filter(|(k, _)| k.0 == what).map(|(_, ends)| ends[1..].iter().sum::<u64>()).sum();
        assert_eq!(failed, 0, "of {what} there is another copy");
    }
    for what in ["layout", "note", "image", "record"] {
        let n: u64 = tally.kinds.iter().filter(|(k, _)| k.0 == what).map(|(_, ends)| ends.iter().sum::<u64>()).sum();
        assert!(n > seeds, "hardly any {what} was corrupt");
    }
}

/// Tests of the test: every planted mistake that needs a corruption to show is found, and not by an assertion.
#[test]
fn every_planted_mistake_is_found() {
    let mut missed = Vec::new();
    for planted in Planted::NEED_CORRUPTION {
        let found = (0..600).find_map(|seed| {
            let config = LogsConfig { planted: Some(planted), ..config_of(seed) };
            run(seed, config, 0.3, &mut Tally::default()).err().map(|e| (seed, e))
        });
        match found {
            Some((seed, e)) => println!("{planted:?}: seed {seed}: {e}"),
            None => missed.push(planted),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

const LONG: u64 = 128 << 10;

/// Writes of 128 KiB, each flushed, with images meanwhile; whenever the last image was begun with one of them under way, power is lost
/// and that one's header is corrupt. How often that was; an error if something older is then read in silence.
fn long_record_under_an_image(config: LogsConfig) -> Result<u32, String> {
    let shape = layout::Shape { group_bytes: 8 << 20, log_bytes: 2 << 20, extents_max: 256 };
    let layout = Layout::new(64 << 20, 512, shape, 0x5eed).expect("it fits");
    let mut disk = SimDisk::new(layout.device_bytes, (us(1), us(200)), 1, DiskFaults::default());
    for (at, bytes) in format_device(&layout) {
        disk.write_durably(at, &bytes);
    }
    let config = LogsConfig {
        logged_write_bytes: LONG,
        record_bytes_max: LONG + 4096,
        image_every: Span::from_micros(900),
        clean: CleanConfig { idle_after: None, ..config.clean },
        ..config
    };
    let pool = |disk: SimDisk| {
        let (mut front, mut map) = (Front::new(), Map::new());
        front.set_volume(key(0), FrontVolume { size_bytes: layout.home_bytes, read_only: false });
        map.set_volume(key(0), &[Extent { device_offset: 0, len: layout.home_bytes }]);
        let logs = Logs::new(layout, config);
        SimPool::chain(StackConfig::default(), vec![Box::new(front), Box::new(map), Box::new(logs)], vec![disk])
    };
    let mut p = pool(disk);
    assert_eq!(p.start(), LayerState::Ready);
    let mut times = 0;
    for n in 0..60u64 {
        ask(&mut p, Op::Write, n * LONG, LONG, n as u8 + 1);
        ask(&mut p, Op::Flush, 0, 0, 0);
        let mut disk = p.disk(0).clone();
        disk.lose_power();
        let image = (0..2).filter_map(|slot| {
            let bytes = disk.peek(layout.image_at(slot), layout.image_bytes);
            let header = format::decode_image_header(&layout, bytes.as_slice())?;
            let body = &bytes.as_slice()[layout::IMAGE_HEADER_BYTES as usize..];
            format::decode_image(&layout, &header, body)
        });
        let image = image.max_by_key(|i| i.number).expect("there is one");
        // What the write before this one brought is known durable by this one's record.
        let known = n.saturating_sub(1);
        for (log, entry) in image.logs.iter().enumerate() {
            let at = layout.log_start(log as u32) + u64::from(entry.tail);
            let header = disk.peek(at, 512);
            let place = format::Place { at, log: log as u32, previous: entry.sum, epoch: entry.epoch };
            let is_long = |r: &format::Record| r.data_bytes == LONG && r.entries[0].home < known * LONG;
            if !format::decode_record(&layout, place, header.as_slice()).as_ref().is_some_and(is_long) {
                continue;
            }
            times += 1;
            let mut disk = disk.clone();
            disk.corrupt(at / SECTOR, Corruption::Bit(2000));
            let mut p = pool(disk);
            if p.start() != LayerState::Ready {
                continue;
            }
            for m in 0..known {
                let c = ask(&mut p, Op::Read, m * LONG, LONG, 0);
                if c.outcome.is_done() && bytes(&c).iter().any(|b| *b != m as u8 + 1) {
                    return Err(format!("write {m} of {n} isn't read, and nothing says so"));
                }
            }
        }
    }
    Ok(times)
}

#[test]
fn behind_a_long_record_under_an_image_others_are_found() {
    let times = long_record_under_an_image(config()).unwrap();
    assert!(times > 0, "no image was begun with a long record under way");
    let planted = LogsConfig { planted: Some(Planted::BusyForgotten), ..config() };
    println!("{times} times; BusyForgotten: {}", long_record_under_an_image(planted).unwrap_err());
}

/// A long record between two short ones, each flushed; then power is lost, the long one's header becomes corrupt, and the next start has a lower
/// LoggedWriteSize. An error if the older data of the long one is then read in silence.
fn long_record_of_an_earlier_setting(planted: Option<Planted>) -> Result<(), String> {
    let shape = layout::Shape { group_bytes: 8 << 20, log_bytes: 2 << 20, extents_max: 256 };
    let layout = Layout::new(64 << 20, 512, shape, 0x5eed).expect("it fits");
    let mut disk = SimDisk::new(layout.device_bytes, (us(1), us(200)), 1, DiskFaults::default());
    for (at, bytes) in format_device(&layout) {
        disk.write_durably(at, &bytes);
    }
    let long = shape.logged_write_max();
    let quiet = CleanConfig { idle_after: None, ..config().clean };
    let base = LogsConfig { image_every: Span::from_secs(3600), clean: quiet, planted, ..config() };
    let pool = |disk: SimDisk, logged_write_bytes: u64| {
        let (mut front, mut map) = (Front::new(), Map::new());
        front.set_volume(key(0), FrontVolume { size_bytes: layout.home_bytes, read_only: false });
        map.set_volume(key(0), &[Extent { device_offset: 0, len: layout.home_bytes }]);
        let logs = Logs::new(layout, LogsConfig { logged_write_bytes, ..base });
        SimPool::chain(StackConfig::default(), vec![Box::new(front), Box::new(map), Box::new(logs)], vec![disk])
    };
    let mut p = pool(disk, long);
    assert_eq!(p.start(), LayerState::Ready);
    for (n, len) in [4096, long, 4096].into_iter().enumerate() {
        ask(&mut p, Op::Write, n as u64 * long, len, n as u8 + 1);
        ask(&mut p, Op::Flush, 0, 0, 0);
    }
    let mut disk = p.disk(0).clone();
    disk.lose_power();
    let is_long = |at: &u64| {
        let header = disk.peek(*at, 512);
        let previous = format::previous_of(header.as_slice()).unwrap_or(0);
        let log = layout.log_of(*at, 512).expect("it is in a log");
        let place = format::Place { at: *at, log, previous, epoch: 1 };
        format::decode_record(&layout, place, header.as_slice()).is_some_and(|r| r.data_bytes == long)
    };
    let places = (0..layout.logs).flat_map(|log| {
        let from = layout.log_start(log);
        (from..from + shape.log_bytes).step_by(512)
    });
    let at = places.into_iter().find(is_long).expect("the long write was logged");
    assert!(disk.corrupt(at / SECTOR, Corruption::Bit(2000)));
    let mut p = pool(disk, 4096);
    if p.start() != LayerState::Ready {
        return Ok(());
    }
    let c = ask(&mut p, Op::Read, long, long, 0);
    if c.outcome.is_done() && bytes(&c).iter().any(|b| *b != 2) {
        return Err("the long write isn't read, and nothing says so".into());
    }
    Ok(())
}

#[test]
fn behind_a_long_record_of_an_earlier_setting_others_are_found() {
    long_record_of_an_earlier_setting(None).unwrap();
    println!("{}", long_record_of_an_earlier_setting(Some(Planted::SearchByToday)).unwrap_err());
}

/// Starts a pool over what a power loss leaves of another's disk: its state, and what it says.
fn started_again(p: &mut SimPool, config: LogsConfig) -> (SimPool, LayerState, Option<String>) {
    let mut disk = p.disk(0).clone();
    disk.lose_power();
    let mut p = pool(disk, config, None);
    let state = p.start();
    let _ = (0..500).try_for_each(|_| p.step().map(|_| ()));
    let what = problem(&mut p);
    (p, state, what)
}

#[test]
fn a_loss_of_ranges_that_are_not_known_is_said_until_it_is_accepted() {
    let config = config();
    let mut p = pool(formatted(1, DiskFaults::default()), config, None);
    assert_eq!(p.start(), LayerState::Ready);
    ask(&mut p, Op::Write, 0, SECTOR, 1);
    ask(&mut p, Op::Flush, 0, 0, 0);
    let l = layout();
    let log = (0..l.logs)
        .find(|n| !p.disk(0).written_sectors(l.log_start(*n) / SECTOR, l.log_start(*n) / SECTOR + 1).is_empty());
    p.disk(0).lose_sector(l.log_start(log.expect("a record was written")) / SECTOR);
    let (mut p, state, what) = started_again(&mut p, config);
    assert_eq!(state, LayerState::Degraded);
    assert!(what.unwrap().contains("could not be read"));
    for _ in 0..2 {
        let (next, state, what) = started_again(&mut p, config);
        assert_eq!(state, LayerState::Degraded);
        assert!(what.unwrap().contains("an earlier start"));
        p = next;
    }
    let (mut p, state, what) = started_again(&mut p, LogsConfig { accept_loss: true, ..config });
    assert_eq!((state, what), (LayerState::Ready, None));
    let (_, state, what) = started_again(&mut p, config);
    assert_eq!((state, what), (LayerState::Ready, None));
}

/// The first start after writes follows chains; no setting of a length may overflow there.
#[test]
fn a_start_bears_the_longest_logged_writes_that_can_be_set() {
    let config = LogsConfig { logged_write_bytes: u64::MAX, ..config() };
    let mut p = pool(formatted(1, DiskFaults::default()), config, None);
    assert_eq!(p.start(), LayerState::Ready);
    ask(&mut p, Op::Write, 0, SECTOR, 1);
    ask(&mut p, Op::Flush, 0, 0, 0);
    let (mut p, state, what) = started_again(&mut p, config);
    assert_eq!((state, what), (LayerState::Ready, None));
    let c = ask(&mut p, Op::Read, 0, SECTOR, 0);
    assert!(c.outcome.is_done() && bytes(&c).iter().all(|b| *b == 1));
}
