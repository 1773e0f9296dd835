//! Zones against a naive model of a drive: a pointer and the bytes since the last reset, for each zone. Power is lost, processes are killed
//! and writes fail at any event. Then the same with mistakes planted: each must be found.

use plimsoll_base::*;
use plimsoll_device::smr::zoned::ZoneState;
use plimsoll_device::zones::{Planted, Zones, ZonesLayout, ZonesSpec};
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;
use std::collections::BTreeMap;

const SECTOR: u64 = 512;
const ZONE: u64 = 8 << 10;
const EVERY: u32 = 3;
/// So many that the table is longer than a sector.
const ZONES: u32 = 130;

fn layout(planted: Option<Planted>, block_bytes: u32) -> ZonesLayout {
    let spec = ZonesSpec { zone_bytes: ZONE, conventional_every: EVERY, salt: 5, planted };
    let layout = ZonesLayout::new(u64::from(ZONES) * ZONE + 4096, block_bytes, spec).unwrap();
    assert_eq!(layout.zones, ZONES);
    layout
}

fn content(at: u64, version: u64) -> Vec<u8> {
    [at, version].map(u64::to_le_bytes).concat().repeat(SECTOR as usize / 16)
}

/// Fails writes of clients, one in so many, and lets requests overtake each other.
struct Faulty {
    rng: Rng,
    one_in: u64,
}

impl Layer for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
        let fails = self.one_in > 0 && io.op == Op::Write && io.origin == Origin::Client;
        if fails && self.rng.below(self.one_in) == 0 {
            return out.end(io, Outcome::Failed(IoError::Device));
        }
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

fn pool(disk: SimDisk, layout: ZonesLayout, seed: u64, one_in: u64) -> SimPool {
    let layers: Vec<Box<dyn Layer>> =
        vec![Box::new(Zones::new(layout)), Box::new(Faulty { rng: Rng::new(seed, "faulty"), one_in })];
    SimPool::chain(StackConfig::default(), layers, vec![disk])
}

fn formatted(layout: &ZonesLayout, seed: u64, block_bytes: u64) -> SimDisk {
    let us = Span::from_micros;
    let size = u64::from(ZONES) * ZONE + 4096;
    let mut disk = SimDisk::new(size, (us(1), us(200)), seed, DiskFaults::default()).with_blocks_of(block_bytes);
    let (at, bytes) = layout.format();
    disk.write_durably(at, &bytes);
    disk
}

/// A zone as the drive must have it.
#[derive(Clone, Default)]
struct Expected {
    /// Content of each sector that a write was sent for since the last reset.
    sent: Vec<Vec<u8>>,
    /// Sectors whose writes have been acknowledged, and of those the durable ones.
    acknowledged: usize,
    durable: usize,
    in_flight: u32,
    /// Place of a write that failed: it and what was sent after it is gone.
    failed: Option<usize>,
    /// A reset is in flight.
    resetting: bool,
    resets: u32,
}

enum Asked {
    Write { zone: u32, from: usize, to: usize, fua: bool },
    Refused,
    Reset { zone: u32 },
    Flush { covers: BTreeMap<u32, (u32, usize)> },
}

#[derive(Clone)]
struct Oracle {
    zones: BTreeMap<u32, Expected>,
    version: u64,
}

struct Run {
    pool: SimPool,
    oracle: Oracle,
    asked: BTreeMap<u64, Asked>,
    next_tag: u64,
    rng: Rng,
    block: u64,
    may_fail: bool,
}

#[derive(Default)]
struct Tally {
    losses: u64,
    kills: u64,
    refused: u64,
    failed: u64,
    resets: u64,
    back: u64,
}

impl Run {
    fn send(&mut self, op: Op, offset: u64, len: u64, data: Data, fua: bool, asked: Asked) {
        let now = self.pool.now();
        let mut head = IoHead::new(op, VolumeKey::POOL, TenantId(1), offset, len, now);
        head.flags = if fua { IoFlags::FUA } else { IoFlags::NONE };
        head.tag = self.next_tag;
        self.next_tag += 1;
        self.asked.insert(head.tag, asked);
        self.pool.offer(now, Io::new(head, data));
    }

    fn bytes(&mut self, at: u64, len: u64) -> Vec<Vec<u8>> {
        self.oracle.version += 1;
        (at / SECTOR..(at + len) / SECTOR).map(|s| content(s, self.oracle.version)).collect()
    }

    fn ask(&mut self) {
        let sequential: Vec<u32> = self.oracle.zones.keys().copied().collect();
        // A few zones, so that they fill up.
        let zone = sequential[self.rng.below(6) as usize * 15];
        let start = u64::from(zone) * ZONE;
        let z = self.oracle.zones[&zone].clone();
        let pointer = z.sent.len() as u64 * SECTOR;
        let len = (1 + self.rng.below(4)) * self.block;
        match self.rng.below(14) {
            0..8 if pointer < ZONE && z.failed.is_none() && !z.resetting && z.in_flight < 3 => {
                let bytes = self.bytes(start + pointer, len);
                let data = Data::Bytes(Buf::copy_of(&bytes.concat()));
                let fua = self.rng.chance(0.1);
                if pointer + len > ZONE {
                    return self.send(Op::Write, start + pointer, len, data, fua, Asked::Refused);
                }
                let z = self.oracle.zones.get_mut(&zone).unwrap();
                z.sent.extend(bytes);
                z.in_flight += 1;
                let (from, to) = ((pointer / SECTOR) as usize, z.sent.len());
                self.send(Op::Write, start + pointer, len, data, fua, Asked::Write { zone, from, to, fua });
            }
            8 if z.in_flight == 0 && !z.resetting && pointer + 2 * len <= ZONE => {
                // Not at the pointer: before it, or beyond.
                let back = pointer.min(self.block);
                let at = if self.rng.chance(0.5) && back > 0 { pointer - back } else { pointer + self.block };
                let bytes = self.bytes(start + at, len);
                self.send(
                    Op::Write,
                    start + at,
                    len,
                    Data::Bytes(Buf::copy_of(&bytes.concat())),
                    false,
                    Asked::Refused,
                );
            }
            9 if z.in_flight == 0 && !z.resetting => {
                self.oracle.zones.get_mut(&zone).unwrap().resetting = true;
                self.send(Op::Trim, start, ZONE, Data::Absent, false, Asked::Reset { zone });
            }
            10 | 11 => {
                let covers = self.oracle.zones.iter().map(|(n, z)| (*n, (z.resets, z.acknowledged))).collect();
                self.send(Op::Flush, 0, 0, Data::Absent, false, Asked::Flush { covers });
            }
            _ => {}
        }
    }

    fn hear(&mut self, t: &mut Tally) -> Result<(), String> {
        while let Some(c) = self.pool.next_done() {
            let done = c.outcome.is_done();
            match self.asked.remove(&c.io.tag).ok_or("answered twice")? {
                Asked::Refused if done => return Err(format!("{:?} was taken", c.io.head)),
                Asked::Refused => t.refused += 1,
                Asked::Write { zone, from, to, fua } => {
                    let z = self.oracle.zones.get_mut(&zone).unwrap();
                    z.in_flight -= 1;
                    if done {
                        if z.failed.is_some_and(|failed| failed < from) {
                            return Err(format!("a write of zone {zone} ended behind one that failed"));
                        }
                        z.acknowledged = z.acknowledged.max(to);
                        if fua {
                            z.durable = z.durable.max(to);
                        }
                    } else {
                        t.failed += 1;
                        z.failed = Some(z.failed.map_or(from, |f| f.min(from)));
                    }
                    if z.failed.is_some() && z.in_flight == 0 {
                        z.failed = None;
                        z.sent.truncate(z.acknowledged);
                    }
                    if !done && !self.may_fail {
                        return Err(format!("{:?} failed", c.io.head));
                    }
                }
                Asked::Reset { zone } => {
                    t.resets += 1;
                    if !done {
                        return Err(format!("the reset of zone {zone} failed"));
                    }
                    let resets = self.oracle.zones[&zone].resets + 1;
                    self.oracle.zones.insert(zone, Expected { resets, ..Expected::default() });
                }
                Asked::Flush { covers } => {
                    if !done {
                        return Err("a flush failed".into());
                    }
                    for (zone, (resets, n)) in covers {
                        let z = self.oracle.zones.get_mut(&zone).unwrap();
                        if z.resets == resets {
                            z.durable = z.durable.max(n);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The zones as they are while the pool runs, where nothing is in flight.
    fn check_running(&mut self) -> Result<(), String> {
        let quiet: Vec<(u32, u64)> = self
            .oracle
            .zones
            .iter()
            .filter(|(_, z)| z.in_flight == 0 && !z.resetting && z.failed.is_none())
            .map(|(n, z)| (*n, z.sent.len() as u64 * SECTOR))
            .collect();
        let zones = self.pool.stack().layer::<Zones>().unwrap();
        for (n, pointer) in quiet {
            let found = zones.zone(n).unwrap();
            if found.pointer - found.start != pointer {
                return Err(format!("zone {n}: its pointer is {}, not {pointer}", found.pointer - found.start));
            }
        }
        Ok(())
    }
}

/// Reads all zones of a pool.
fn all(pool: &mut SimPool) -> Result<Vec<u8>, String> {
    let (len, now) = (u64::from(ZONES) * ZONE, pool.now());
    pool.offer(now, Io::new(IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), 0, len, now), Data::Absent));
    let c = loop {
        if let Some(c) = pool.next_done() {
            break c;
        }
        pool.step().ok_or("the read never ends")?;
    };
    let mut bytes = vec![0; len as usize];
    c.io.data.copy_to(&mut bytes);
    Ok(bytes)
}

/// After a crash: a start, and the verdict.
fn check(disk: SimDisk, oracle: &Oracle, layout: ZonesLayout, t: &mut Tally) -> Result<SimPool, String> {
    let mut pool = pool(disk, layout, 0, 0);
    if pool.start() != LayerState::Ready {
        return Err(format!("{:?}", pool.stack().layer::<Zones>().unwrap().problem()));
    }
    let bytes = all(&mut pool)?;
    let zones = pool.stack().layer::<Zones>().unwrap();
    for (n, z) in &oracle.zones {
        let found = zones.zone(*n).unwrap();
        let pointer = ((found.pointer - found.start) / SECTOR) as usize;
        let may_be_empty = z.resetting && pointer == 0;
        if !may_be_empty && !(z.durable..=z.sent.len()).contains(&pointer) {
            return Err(format!("zone {n}: {pointer} sectors, {} are durable of {}", z.durable, z.sent.len()));
        }
        t.back += u64::from(pointer < z.sent.len());
        let of_zone = &bytes[*n as usize * ZONE as usize..][..ZONE as usize];
        for (i, sector) in of_zone.chunks(SECTOR as usize).enumerate() {
            let zeroes = vec![0; SECTOR as usize];
            let expected = if i < pointer { &z.sent[i] } else { &zeroes };
            if sector != expected {
                return Err(format!("zone {n}: sector {i} before the pointer {pointer} isn't what was written"));
            }
        }
    }
    Ok(pool)
}

/// The state from which a pool goes on after `check`.
fn expected_from(pool: &mut SimPool, oracle: &Oracle) -> Oracle {
    let zones = pool.stack().layer::<Zones>().unwrap();
    let of = |(n, z): (&u32, &Expected)| {
        let found = zones.zone(*n).unwrap();
        let n_sectors = ((found.pointer - found.start) / SECTOR) as usize;
        let sent = z.sent[..n_sectors].to_vec();
        (*n, Expected { sent, acknowledged: n_sectors, durable: n_sectors, ..Expected::default() })
    };
    Oracle { zones: oracle.zones.iter().map(of).collect(), ..*oracle }
}

fn live(
    run: &mut Run,
    t: &mut Tally,
    asks: u64,
    mut at_event: impl FnMut(&mut Run, &mut Tally) -> Result<(), String>,
) -> Result<(), String> {
    for _ in 0..asks {
        run.ask();
        run.hear(t)?;
        for _ in 0..run.rng.below(4) {
            run.pool.step();
            run.hear(t)?;
            run.check_running()?;
            at_event(run, t)?;
        }
    }
    Ok(())
}

fn cut(run: &mut Run, layout: ZonesLayout, t: &mut Tally) -> Result<(), String> {
    let (mut disk, mut oracle) = (run.pool.disk(0).clone(), run.oracle.clone());
    for _ in 0..run.rng.below(3) {
        // Only the process ends: the next one finds what the device's cache has, and lives for a while.
        t.kills += 1;
        disk.abandoned();
        let mut next = check(disk, &oracle, layout, t)?;
        oracle = expected_from(&mut next, &oracle);
        let rng = Rng::new(run.rng.next_u64(), "next");
        let mut next =
            Run { pool: next, oracle, asked: BTreeMap::new(), next_tag: 0, rng, block: run.block, may_fail: false };
        let asks = run.rng.below(12);
        live(&mut next, t, asks, |_, _| Ok(()))?;
        (disk, oracle) = (next.pool.disk(0).clone(), next.oracle);
    }
    t.losses += 1;
    disk.lose_power();
    check(disk, &oracle, layout, t).map(drop)
}

fn run(seed: u64, planted: Option<Planted>, t: &mut Tally) -> Result<(), String> {
    let block = [SECTOR, 4096][usize::from(seed % 5 == 4)];
    let layout = layout(planted, block as u32);
    let one_in = if seed.is_multiple_of(3) { 12 } else { 0 };
    let zones = (0..ZONES).filter(|z| !z.is_multiple_of(EVERY)).map(|z| (z, Expected::default())).collect();
    let mut pool = pool(formatted(&layout, seed, block), layout, seed, one_in);
    if planted.is_some() {
        pool = pool.unchecked();
    }
    assert_eq!(pool.start(), LayerState::Ready);
    let oracle = Oracle { zones, version: 0 };
    let rng = Rng::new(seed, "zones");
    let mut run = Run { pool, oracle, asked: BTreeMap::new(), next_tag: 0, rng, block, may_fail: one_in > 0 };
    live(&mut run, t, 300, |run, t| if run.rng.chance(0.03) { cut(run, layout, t) } else { Ok(()) })
}

/// Many more with `PLIMSOLL_CRASH_SEEDS=500`.
#[test]
fn pointers_are_never_beyond_what_was_written_nor_before_what_was_flushed() {
    let seeds = std::env::var("PLIMSOLL_CRASH_SEEDS").map_or(60, |n| n.parse().expect("a number"));
    let mut t = Tally::default();
    for seed in 0..seeds {
        run(seed, None, &mut t).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    let Tally { losses, kills, refused, failed, resets, back } = t;
    println!(
        "{losses} power losses, {kills} kills, {refused} writes refused, {failed} failed, {resets} resets, {back} pointers went back"
    );
    assert!(losses > 500 && kills > 300 && refused > 300 && failed > 100 && resets > 300 && back > 300);
}

#[test]
fn every_planted_mistake_is_found() {
    let mut missed = Vec::new();
    for planted in Planted::ALL {
        let found = (0..200).find_map(|seed| {
            let run = || run(seed, Some(planted), &mut Tally::default());
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

/// A refused write changes nothing; a conventional one takes any write; a reset empties a zone.
#[test]
fn a_write_is_taken_at_the_pointer_only() {
    let layout = layout(None, 512);
    let mut pool = pool(formatted(&layout, 1, 512), layout, 1, 0);
    assert_eq!(pool.start(), LayerState::Ready);
    let mut ask = |op, offset, len: u64, byte: u8| {
        let now = pool.now();
        let data = if op == Op::Write { Data::Bytes(Buf::copy_of(&vec![byte; len as usize])) } else { Data::Absent };
        pool.offer(now, Io::new(IoHead::new(op, VolumeKey::POOL, TenantId(1), offset, len, now), data));
        let c = loop {
            match pool.next_done() {
                Some(c) => break c,
                None => drop(pool.step().expect("it ends")),
            }
        };
        let zones = pool.stack().layer::<Zones>().unwrap();
        (c.outcome.is_done(), zones.zone(1).unwrap().pointer - ZONE, zones.refusal().map(str::to_owned))
    };
    assert!(ask(Op::Write, 4096, 1024, 1).0, "zone 0 is conventional");
    let (done, pointer, why) = ask(Op::Write, ZONE + 512, 512, 2);
    assert_eq!((done, pointer), (false, 0));
    assert_eq!(why.unwrap(), "write of 512 bytes at 8704: not at the zone's write pointer, which is 8192");
    assert_eq!((ask(Op::Write, ZONE, 512, 3).0, ask(Op::Write, ZONE, 512, 4).0), (true, false));
    assert!(!ask(Op::Write, ZONE + 512, ZONE, 5).0, "it crosses the zone's end");
    assert!(!ask(Op::Write, ZONE - 512, 1024, 5).0, "so does one from a conventional zone");
    assert_eq!(ask(Op::WriteZeroes, ZONE + 512, ZONE - 512, 0).1, ZONE);
    let (done, _, why) = ask(Op::Write, ZONE, 512, 6);
    assert!(!done && why.unwrap().ends_with("the zone is full; reset it first"));
    assert_eq!(ask(Op::Trim, ZONE, 512, 0).1, ZONE, "part of a zone");
    assert_eq!(ask(Op::Trim, ZONE, ZONE, 0).1, 0);
    assert!(ask(Op::Write, ZONE, 512, 7).0);
    let states = [0, 1, 2, ZONES].map(|n| pool.stack().layer::<Zones>().unwrap().zone(n).map(|z| z.state));
    assert_eq!(states, [Some(ZoneState::Conventional), Some(ZoneState::Closed), Some(ZoneState::Empty), None]);
}

#[test]
fn a_corrupt_table_and_one_of_other_zones_are_refused() {
    let (ours, other) =
        (layout(None, 512), ZonesSpec { zone_bytes: ZONE, conventional_every: 4, salt: 5, planted: None });
    let other = ZonesLayout::new(u64::from(ZONES) * ZONE + 4096, 512, other).unwrap();
    let mut corrupt = formatted(&ours, 1, 512);
    corrupt.corrupt(ours.format().0 / SECTOR + 1, plimsoll_stack::sim::Corruption::Bit(77));
    for (disk, layout) in [(corrupt, ours), (formatted(&ours, 1, 512), other)] {
        let mut pool = pool(disk, layout, 1, 0);
        assert_eq!(pool.start(), LayerState::Failed);
        let said = pool.stack().layer::<Zones>().unwrap().problem().unwrap();
        assert!(said.contains("corrupt, or the device was made with other `zones`"), "{said}");
    }
}
