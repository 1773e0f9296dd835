//! Power is lost at every event of many runs, copies of the map rot, requests overtake each other and fail; an oracle says of each
//! sector what it may hold. A layer between keeps the zones' rules. Then the same with mistakes planted: each must be found.

use plimsoll_bands::*;
use plimsoll_base::*;
use plimsoll_stack::sim::oracle::{Ask, Oracle};
use plimsoll_stack::sim::{Corruption, DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;
use std::collections::BTreeMap;

const SECTOR: u64 = 512;
const ZONE: u64 = 8 << 10;
/// So many that the map is longer than a sector, and tears.
const DEVICE_BYTES: u64 = 200 * ZONE;

fn us(n: u64) -> Span {
    Span::from_micros(n)
}

fn places() -> Places {
    let shape = Shape { zone_bytes: ZONE, free_every: 5, spares: 2, head_bytes: 8192, log_bytes: 4 << 10, salt: 3 };
    Places::new(DEVICE_BYTES, 512, shape).unwrap()
}

fn config(seed: u64) -> BandsConfig {
    let patience = us([0, 100, 2000][seed as usize % 3]);
    let run_bytes = [2048, ZONE][seed as usize / 3 % 2];
    BandsConfig {
        buffer_bytes: 12 << 10,
        io_bytes: 1024,
        run_bytes,
        patience,
        copy_patience: patience,
        quiet: patience / 2,
        resets: true,
        planted: None,
    }
}

fn content(_: u32, sector: u64, version: u64) -> Vec<u8> {
    let words = if version == 0 { [0; 2] } else { [sector, version] };
    words.map(u64::to_le_bytes).concat().repeat(SECTOR as usize / 16)
}

/// The drive's own rules: a zone is written at its pointer, from its start after a reset. And a queue that reorders, and fails
/// one request in a hundred if asked to.
struct Drive {
    pointers: Vec<u64>,
    broken: Option<String>,
    rng: Rng,
    held: Vec<(Time, Io)>,
    late: u64,
    errors: bool,
}

impl Drive {
    /// After a start nobody knows the pointers: a zone is reset before it's written.
    fn new(seed: u64, errors: bool) -> Drive {
        let late = if seed.is_multiple_of(2) { 0 } else { 300 };
        let pointers = vec![ZONE; places().zones as usize];
        Drive { pointers, broken: None, rng: Rng::new(seed, "drive"), held: Vec::new(), late, errors }
    }

    fn check(&mut self, io: &Io) {
        let p = places();
        for z in 0..p.zones {
            let (from, to) = (p.zone_at(z), p.zone_at(z) + ZONE);
            if !io.op.is_change() || io.offset >= to || io.end() <= from {
                continue;
            }
            let pointer = &mut self.pointers[z as usize];
            if io.op == Op::Trim && (io.offset, io.end()) == (from, to) {
                *pointer = 0;
            } else if io.op == Op::Write && io.offset == from + *pointer && io.end() <= to {
                *pointer += io.len;
            } else {
                self.broken = Some(format!("zone {z} at its pointer {pointer}: {:?}", io.head));
            }
        }
    }

    fn send(&mut self, io: Io, out: &mut Actions) {
        let may_fail = self.errors && io.op != Op::Flush && !io.flags.has(IoFlags::FUA);
        if may_fail && self.rng.chance(0.01) {
            return out.end(io, Outcome::Failed(IoError::Device));
        }
        self.check(&io);
        out.submit(0, io);
    }
}

impl Layer for Drive {
    fn name(&self) -> &'static str {
        "drive"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if self.late == 0 {
            return self.send(io, out);
        }
        let most = if io.op == Op::Read && self.rng.chance(0.2) { 6000 } else { self.late };
        let until = now + us(self.rng.below(most));
        self.held.push((until, io));
        out.wake_at(until);
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        while let Some(i) = self.held.iter().position(|(until, _)| *until <= now) {
            let io = self.held.remove(i).1;
            self.send(io, out);
        }
        if let Some(until) = self.held.iter().map(|h| h.0).min() {
            out.wake_at(until);
        }
    }
    fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

fn sectors() -> u64 {
    places().shown_bytes / SECTOR
}

fn pool(disk: SimDisk, oracle: &Oracle, config: BandsConfig, seed: u64, errors: bool) -> SimPool {
    let (mut front, mut map) = (Front::new(), Map::new());
    let size_bytes = sectors() * SECTOR;
    front.set_volume(oracle.key(0), FrontVolume { size_bytes, read_only: false });
    map.set_volume(oracle.key(0), &[Extent { device_offset: 0, len: size_bytes }]);
    let bands = Bands::new(places(), config);
    let drive = Drive::new(seed, errors);
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(front), Box::new(map), Box::new(bands), Box::new(drive)];
    SimPool::chain(StackConfig::default(), layers, vec![disk])
}

fn formatted(seed: u64, faults: DiskFaults) -> SimDisk {
    let mut disk = SimDisk::new(DEVICE_BYTES, (us(1), us(200)), seed, faults).with_history();
    format_device(&places()).into_iter().for_each(|(at, bytes)| disk.write_durably(at, &bytes));
    disk
}

/// The first sector and the number of sectors of the band with a sector, if it is one of a band.
fn band_of(sector: u64) -> Option<(u64, u64)> {
    let Place::Band { at, .. } = places().place(sector * SECTOR) else { return None };
    Some((sector - at % ZONE / SECTOR, ZONE / SECTOR))
}

/// The client's next request; `None`: it lets time pass.
fn next_ask(rng: &mut Rng, (base, span): (u64, u64)) -> Option<Ask> {
    let first = base + rng.below(span);
    let most = if rng.chance(0.2) { 64 } else { 6 };
    let len = (1 + rng.below(most)).min(sectors() - first);
    let op = match rng.below(20) {
        0..9 => Op::Write,
        9 => Op::WriteZeroes,
        10 => Op::Trim,
        11..14 => Op::Read,
        14 | 15 => Op::Flush,
        _ => return None,
    };
    let (first, len) = if op == Op::Flush { (0, 0) } else { (first, len) };
    Some(Ask { op, volume: 0, first, len, fua: op == Op::Write && rng.chance(0.15) })
}

fn hear(p: &mut SimPool, o: &mut Oracle, may_fail: bool) -> Result<(), String> {
    while let Some(c) = p.next_done() {
        if !c.outcome.is_done() && may_fail {
            o.failed(&c);
        } else {
            o.ended(&c)?;
        }
    }
    p.stack().layer::<Drive>().expect("it's there").broken.clone().map_or(Ok(()), Err)
}

/// A start, and all sectors.
fn recovered(disk: SimDisk, o: &Oracle, config: BandsConfig, seed: u64) -> Result<(SimPool, Vec<Vec<u8>>), String> {
    let mut p = pool(disk, o, config, seed, false);
    if p.start() != LayerState::Ready {
        return Err(format!("after a start: {:?}", p.stack().layer::<Bands>().unwrap().problem()));
    }
    let (len, now) = (sectors() * SECTOR, p.now());
    let head = IoHead::new(Op::Read, o.key(0), TenantId(1), 0, len, now);
    p.offer(now, Io::new(head, Data::Absent));
    let c = loop {
        if let Some(c) = p.next_done() {
            break c;
        }
        p.step().ok_or("the read never ends")?;
    };
    let mut bytes = vec![0; len as usize];
    c.io.data.copy_to(&mut bytes);
    Ok((p, vec![bytes]))
}

/// A copy of the map as a later program would write it, with the same data: magic, version and checksum keep their places.
fn of_later_version() -> Vec<u8> {
    let (p, mut bytes) = (places(), format_device(&places()).remove(0).1);
    bytes[8] += 1;
    let mut sum = xxhash_rust::xxh3::Xxh3::with_seed(p.shape.salt);
    let Shape { zone_bytes, free_every, spares, head_bytes, log_bytes, .. } = p.shape;
    let shape = [zone_bytes, free_every.into(), spares.into(), head_bytes, log_bytes];
    shape.iter().for_each(|n| sum.update(&n.to_le_bytes()));
    sum.update(&bytes[..24]);
    sum.update(&bytes[32..]);
    bytes[24..32].copy_from_slice(&sum.digest().to_le_bytes());
    bytes
}

/// A whole map of an earlier number lies beside it: that one must not be served, nor written over it.
#[test]
fn a_map_of_a_later_version_is_refused_by_name() {
    let o = Oracle::new(1, sectors(), content);
    for (i, at) in places().maps_at().into_iter().enumerate() {
        let mut disk = formatted(1, DiskFaults::default());
        disk.write_durably(at, &of_later_version());
        let mut p = pool(disk, &o, config(1), 1, false);
        assert_eq!(p.start(), LayerState::Failed, "copy {i}");
        let said = p.stack().layer::<Bands>().unwrap().problem().unwrap();
        assert!(said.contains("version 2, the newest this program knows is 1"), "{said}");
        let there = p.disk(0).peek(at, places().map_bytes);
        assert_eq!(there.as_slice(), of_later_version(), "copy {i} was replaced");
    }
}

#[derive(Default)]
struct Tally {
    losses: u64,
    lives: u64,
    rotten: u64,
    refused: u64,
    kills: u64,
    starts_cut: u64,
    copied: u64,
    repaired: u64,
    failed: u64,
    phases: BTreeMap<&'static str, u64>,
}

/// Corrupts one copy of the map: nothing durable may be lost by it. Not rolled back while the power loss may have torn the other: nobody can notice
/// these two faults together.
fn rot(disk: &mut SimDisk, rng: &mut Rng, copying: bool) {
    let at = places().maps_at()[rng.below(2) as usize] / SECTOR;
    // Among the sectors that say something: a header of 64 bytes and a word for each band.
    let sector = at + rng.below((64 + 4 * u64::from(places().bands)).div_ceil(SECTOR));
    match rng.below(if copying { 3 } else { 4 }) {
        0 => drop(disk.corrupt(at, Corruption::Zeroes)),
        1 => drop(disk.corrupt(sector, Corruption::Bit(rng.below(4096) as u16))),
        2 => disk.lose_sector(sector),
        _ => drop(disk.corrupt(at, Corruption::Older(1 + rng.below(2) as usize))),
    }
}

fn is_copying(p: &mut SimPool) -> bool {
    p.stack().layer::<Bands>().unwrap().status().copying.is_some()
}

/// At most `most` requests of a client, with zeroes of whole bands if `whole`.
fn live(p: &mut SimPool, o: &mut Oracle, rng: &mut Rng, most: u64, whole: bool) -> Result<(), String> {
    for _ in 0..rng.below(most) {
        let now = p.now();
        if let Some(mut ask) = next_ask(rng, (0, sectors())) {
            if whole && ask.op == Op::WriteZeroes {
                (ask.first, ask.len) = band_of(ask.first).unwrap_or((ask.first, ask.len));
            }
            let io = o.ask(ask, now);
            p.offer(now, io);
        }
        p.step();
        hear(p, o, false)?;
    }
    Ok(())
}

/// The process is killed instead: its writes are in the drive's volatile cache. The next one lives for a while, or not even until it has
/// started. Returns its disk, and whether the map is being written.
fn killed(
    mut disk: SimDisk,
    o: &mut Oracle,
    c: BandsConfig,
    seed: u64,
    rng: &mut Rng,
    t: &mut Tally,
) -> Result<(SimDisk, bool), String> {
    t.kills += 1;
    disk.abandoned();
    disk.set_faults(DiskFaults::default());
    if rng.chance(0.3) {
        t.starts_cut += 1;
        let mut p = pool(disk, o, c, seed, false);
        let now = p.now();
        p.stack().start(now);
        p.with_layer(|_: &mut Bands, _| ());
        for _ in 0..rng.below(8) {
            p.step();
        }
        return Ok((p.disk(0).clone(), true));
    }
    let (mut next, found) = recovered(disk, o, c, seed)?;
    o.check_killed(&found).map_err(|e| format!("after a kill: {e}"))?;
    live(&mut next, o, rng, 120, true)?;
    Ok((next.disk(0).clone(), is_copying(&mut next)))
}

/// A power loss on a copy of the running pool's disk, a start, and the oracle's verdict; some lives go on and lose it again. Before it,
/// `kills` processes are killed.
fn cut(
    p: &mut SimPool,
    o: &Oracle,
    c: BandsConfig,
    seed: u64,
    rng: &mut Rng,
    t: &mut Tally,
    kills: u64,
) -> Result<(), String> {
    let (mut disk, mut oracle) = (p.disk(0).clone(), o.clone());
    let mut copying = is_copying(p);
    for _ in 0..kills {
        (disk, copying) = killed(disk, &mut oracle, c, seed, rng, t)?;
    }
    for life in 0..3 {
        t.losses += 1;
        disk.lose_power();
        disk.set_faults(DiskFaults::default());
        let rots = rng.chance(0.3);
        if rots {
            t.rotten += 1;
            rot(&mut disk, rng, copying);
        }
        let started = recovered(disk, &oracle, c, seed);
        if started.is_err() && rots && copying {
            // The power loss tore one copy and the other is rotten: it says so, and serves nothing.
            t.refused += 1;
            return Ok(());
        }
        let (mut next, found) = started?;
        oracle.check(&found).map_err(|e| format!("life {life}, rotten {rots}, copying {copying}: {e}"))?;
        t.repaired += next.stack().layer::<Bands>().unwrap().counters().repaired;
        if life == 2 || !rng.chance(0.3) {
            return Ok(());
        }
        t.lives += 1;
        live(&mut next, &mut oracle, rng, 60, false)?;
        copying = is_copying(&mut next);
        disk = next.disk(0).clone();
    }
    Ok(())
}

fn run(seed: u64, planted: Option<Planted>, cuts: f64, t: &mut Tally) -> Result<(), String> {
    let config = BandsConfig { planted, ..config(seed) };
    let (mut rng, mut more) = (Rng::new(seed, "bands"), Rng::new(seed, "kills"));
    let n = 1 + rng.below(40);
    let faults = match seed % 8 {
        3 => DiskFaults { flush_fails_at: Some(n), ..DiskFaults::default() },
        6 => DiskFaults { fua_fails_at: Some(n), ..DiskFaults::default() },
        _ => DiskFaults::default(),
    };
    let (errors, faulty) = (seed % 8 == 5, matches!(seed % 8, 3 | 5 | 6));
    let mut o = Oracle::new(1, sectors(), content);
    let mut p = pool(formatted(seed, faults), &o, config, seed, errors);
    p.start();
    // Some runs stay among few bands.
    let narrow = (rng.below(sectors() - 100), 100);
    let span = [(0, sectors()), narrow, narrow][rng.below(3) as usize];
    let mut lost = false;
    for _ in 0..160 {
        match next_ask(&mut rng, span) {
            Some(ask) => {
                let now = p.now();
                let io = o.ask(ask, now);
                p.offer(now, io);
            }
            None => {
                for _ in 0..rng.below(60) {
                    p.step();
                    if !lost && p.disk(0).has_failed() {
                        lost = true;
                        o.device_lost();
                    }
                    hear(&mut p, &mut o, faulty)?;
                    if rng.chance(cuts) {
                        let phase = if is_copying(&mut p) { "copy" } else { "other" };
                        *t.phases.entry(phase).or_default() += 1;
                        cut(&mut p, &o, config, seed, &mut rng, t, 0)?;
                        if !p.disk(0).has_failed() && more.chance(0.3) {
                            let kills = 1 + more.below(2);
                            cut(&mut p, &o, config, seed, &mut more, t, kills)?;
                        }
                    }
                }
            }
        }
        hear(&mut p, &mut o, faulty)?;
    }
    if !faulty {
        p.run();
        hear(&mut p, &mut o, false)?;
    }
    let c = *p.stack().layer::<Bands>().unwrap().counters();
    (t.copied, t.failed) = (t.copied + c.copied, t.failed + c.failed);
    Ok(())
}

/// Many more with `PLIMSOLL_CRASH_SEEDS=500`.
#[test]
fn nothing_flushed_is_lost_at_any_instant() {
    let seeds = std::env::var("PLIMSOLL_CRASH_SEEDS").map_or(8, |n| n.parse().expect("a number"));
    let mut t = Tally::default();
    for seed in 0..seeds {
        run(seed, None, 0.5, &mut t).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!(
        "{} power losses ({} after an earlier one, {} with a map rotten), {:?}",
        t.losses, t.lives, t.rotten, t.phases
    );
    println!(
        "{} bands copied, {} copies failed, {} maps written again, {} starts refused",
        t.copied, t.failed, t.repaired, t.refused
    );
    println!("{} kills before a power loss, {} of them with a start that it cut off", t.kills, t.starts_cut);
    assert!(t.kills > 200 && t.starts_cut > 50);
    assert!(t.losses > 500 && t.rotten > 100 && t.lives > 100 && t.copied > 100 && t.failed > 3 && t.repaired > 50);
    assert!(t.refused * 20 < t.rotten, "two faults at once are rare");
}

/// Makes a change, if there is one, and a flush. Calls `f` whenever a write of the map has reached the drive's cache and wasn't answered yet,
/// until nothing is left to happen.
fn at_map_writes(
    p: &mut SimPool,
    o: &mut Oracle,
    change: Option<(Op, u64, u64)>,
    mut f: impl FnMut(&mut SimPool, &Oracle) -> Result<(), String>,
) -> Result<(), String> {
    let mut writes = p.disk(0).counts().1;
    for (op, first, len) in change.into_iter().flat_map(|c| [c, (Op::Flush, 0, 0)]) {
        let (now, io) = (p.now(), o.ask(Ask { op, volume: 0, first, len, fua: false }, p.now()));
        p.offer(now, io);
    }
    loop {
        if p.disk(0).counts().1 > writes {
            writes = p.disk(0).counts().1;
            f(p, o)?;
        }
        let is_over = p.step().is_none();
        hear(p, o, true)?;
        if is_over {
            return Ok(());
        }
    }
}

/// A band is copied, and the process killed. The zone that the band had is the next copy's, which fails, and a band of zeroes changes the map with no
/// flush before. At each write of the map the power is lost.
fn map_left_by_a_kill(seed: u64, planted: Option<Planted>) -> Result<(), String> {
    let (config, mut kills, mut losses) = (BandsConfig { planted, ..config(0) }, 0, 0);
    // Their words aren't in the map's first sector.
    let band = |n: u64| {
        (0..sectors())
            .find_map(|s| band_of(s).filter(|_| places().place(s * SECTOR) == Place::Band { at: n * ZONE, len: ZONE }))
    };
    let [before, copied, after] = [129, 130, 131].map(|n| band(n).expect("it's shown"));
    let mut after_kill = |p: &mut SimPool, o: &Oracle| {
        kills += 1;
        let (mut disk, mut o) = (p.disk(0).clone(), o.clone());
        disk.abandoned();
        let mut lose = |p: &mut SimPool, o: &Oracle| {
            losses += 1;
            let (mut disk, mut o) = (p.disk(0).clone(), o.clone());
            disk.lose_power();
            disk.set_faults(DiskFaults::default());
            o.check(&recovered(disk, &o, config, 0)?.1)
        };
        let mut next = pool(disk.clone(), &o, config, 0, false);
        let now = next.now();
        next.stack().start(now);
        next.with_layer(|_: &mut Bands, _| ());
        at_map_writes(&mut next, &mut o, None, &mut lose)?;
        let (mut next, found) = recovered(disk, &o, config, 0)?;
        o.check_killed(&found)?;
        // When nearly all is copied: with a zone that can't be written it would take another, and flush.
        next.disk(0).fail_reads_of((places().zone_at(131) + ZONE) / SECTOR - 1, 1);
        at_map_writes(&mut next, &mut o, Some((Op::Write, after.0, 1)), &mut lose)?;
        assert_eq!(next.stack().layer::<Bands>().unwrap().counters().failed, 1, "it took another zone");
        at_map_writes(&mut next, &mut o, Some((Op::WriteZeroes, before.0, before.1)), &mut lose)
    };
    let mut o = Oracle::new(1, sectors(), content);
    let mut p = pool(formatted(seed, DiskFaults::default()), &o, config, 0, false);
    p.start();
    for (first, len) in [before, copied, after] {
        at_map_writes(&mut p, &mut o, Some((Op::Write, first, len)), |_, _| Ok(()))?;
    }
    at_map_writes(&mut p, &mut o, Some((Op::Write, copied.0, 1)), &mut after_kill)?;
    assert!(kills == 2 && losses >= 5, "{kills}, {losses}");
    Ok(())
}

#[test]
fn a_map_that_a_kill_leaves_is_made_durable() {
    (0..48).for_each(|seed| map_left_by_a_kill(seed, None).unwrap_or_else(|e| panic!("seed {seed}: {e}")));
}

/// A copy makes room for all changes that wait, however many they are, on a thread with the stack that threads have.
#[test]
fn many_changes_that_waited_go_on_at_once() {
    const MANY: u64 = 20_000;
    let held = || {
        let layers: Vec<Box<dyn Layer>> = vec![Box::new(Bands::new(places(), config(0)))];
        let mut p =
            SimPool::chain(StackConfig::default(), layers, vec![formatted(1, DiskFaults::default())]).unchecked();
        p.start();
        let (band, len) = (0..).find_map(band_of).expect("there are bands");
        let mut write = |first: u64, len: u64| {
            let now = p.now();
            let head = IoHead::new(
                Op::Write,
                VolumeKey { id: 1, generation: 1 },
                TenantId(1),
                first * SECTOR,
                len * SECTOR,
                now,
            );
            p.offer(now, Io::new(head, Data::Bytes(Buf::copy_of(&content(0, first, 1).repeat(len as usize)))));
        };
        // The band fills the buffer, and its copy makes room.
        write(band, len);
        (0..MANY).for_each(|_| write(band, len / 2 + 1));
        let waited = p.stack().layer::<Bands>().unwrap().counters().waited;
        assert_eq!(waited, MANY);
        p.run();
        let done = std::iter::from_fn(|| p.next_done()).filter(|c| c.outcome.is_done()).count() as u64;
        assert_eq!(done, MANY + 1);
    };
    std::thread::Builder::new().stack_size(2 << 20).spawn(held).unwrap().join().unwrap();
}

/// Tests of the test: every planted mistake is found by the oracle or by the drive's rules. An assertion of the layer doesn't count.
#[test]
fn every_planted_mistake_is_found() {
    let mut missed = Vec::new();
    for planted in Planted::ALL {
        let mut asserted = 0;
        // Saves the time of seeds that don't meet the rarer ones.
        let from = match planted {
            Planted::FlushNotPassed => 24,
            Planted::ReaderIgnored => 1260,
            Planted::SumIgnored => 8,
            _ => 0,
        };
        // A read finds it, no power loss.
        let cuts = if planted == Planted::ReaderIgnored { 0.0 } else { 0.2 };
        let found = (from..from + 400).find_map(|seed| {
            let run = || match planted {
                Planted::StartUnflushed => map_left_by_a_kill(seed, Some(planted)),
                _ => run(seed, Some(planted), cuts, &mut Tally::default()),
            };
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            asserted += u64::from(ended.is_err());
            ended.ok()?.err().map(|e| (seed, e))
        });
        match found {
            Some((seed, e)) => println!("{planted:?}: seed {seed}, {asserted} assertions before it: {e}"),
            None => missed.push((planted, asserted)),
        }
    }
    assert!(missed.is_empty(), "not found (and failed assertions): {missed:?}");
}
