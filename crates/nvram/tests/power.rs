//! Power is lost, or the process killed, at many events of many runs. Requests overtake each other and fail, and sectors of the ring are
//! corrupt; an oracle says of each sector what it may hold. Then the same with mistakes planted: each must be found.

use plimsoll_base::*;
use plimsoll_nvram::{Nvram, Planted};
use plimsoll_stack::sim::oracle::{Ask, Oracle};
use plimsoll_stack::sim::{Corruption, DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use xxhash_rust::xxh3::xxh3_64;

const SECTOR: u64 = 512;
const SECTORS: u64 = 600;
const SALT: u64 = 7;
const NOT_MISSED: &str = "a record that is corrupt in both copies isn't missed";
/// The disks.
const DEVICE: usize = 0;
const RING: usize = 1;

fn us(n: u64) -> Span {
    Span::from_micros(n)
}

fn content(_: u32, sector: u64, version: u64) -> Vec<u8> {
    let words = if version == 0 { [0; 2] } else { [sector, version] };
    words.map(u64::to_le_bytes).concat().repeat(SECTOR as usize / 16)
}

/// Settings of a seed's runs.
#[derive(Clone, Copy, Debug)]
struct Setup {
    seed: u64,
    /// Bytes of a block of the NVRAM.
    block: u64,
    /// Bytes of a unit that the device is written in; none: 0.
    unit: u64,
    shuffles: bool,
    planted: Option<Planted>,
}

impl Setup {
    fn of(seed: u64, planted: Option<Planted>) -> Setup {
        let block = if seed % 3 == 2 { 4096 } else { 512 };
        Setup { seed, block, unit: [0, 8192][seed as usize / 2 % 2], shuffles: seed % 4 == 3, planted }
    }

    /// As small as it may be.
    fn nvram_bytes(&self) -> u64 {
        (64 << 10).max(64 * self.block)
    }

    fn disks(&self, faults: [DiskFaults; 2]) -> Vec<SimDisk> {
        let [of_device, of_ring] = faults;
        let device = SimDisk::new(1 << 20, (us(50), us(900)), self.seed, of_device);
        let ring = SimDisk::new(self.nvram_bytes(), (us(1), us(20)), self.seed + 1, of_ring).with_history();
        vec![device, ring.with_blocks_of(self.block)]
    }

    fn pool(&self, disks: Vec<SimDisk>, oracle: &Oracle) -> SimPool {
        let (mut front, mut map) = (Front::new(), Map::new());
        let size_bytes = SECTORS * SECTOR;
        front.set_volume(oracle.key(0), FrontVolume { size_bytes, read_only: false });
        map.set_volume(oracle.key(0), &[Extent { device_offset: 4096, len: size_bytes }]);
        let nvram = Nvram::new(self.nvram_bytes(), self.block as u32, SALT).expect("large enough");
        let nvram = if self.unit > 0 { nvram.with_units(self.unit) } else { nvram };
        let nvram = nvram.with_planted(self.planted);
        SimPool::with_stack(disks, |offers| {
            let mut s = Stack::new(StackConfig::default(), offers);
            s.push(Box::new(front), vec![Target::Node(1)]);
            s.push(Box::new(map), vec![Target::Node(2)]);
            if self.shuffles {
                s.push(Box::new(nvram), vec![Target::Node(3), Target::Node(4)]);
                s.push(Box::new(Shuffle::new(self.seed, "ring")), vec![Target::Device(RING)]);
                s.push(Box::new(Shuffle::new(self.seed, "device")), vec![Target::Device(DEVICE)]);
            } else {
                s.push(Box::new(nvram), vec![Target::Device(RING), Target::Device(DEVICE)]);
            }
            s
        })
    }
}

/// A queue that reorders.
struct Shuffle {
    rng: Rng,
    held: Vec<(Time, Io)>,
}

impl Shuffle {
    fn new(seed: u64, who: &str) -> Shuffle {
        Shuffle { rng: Rng::new(seed, who), held: Vec::new() }
    }
}

impl Layer for Shuffle {
    fn name(&self) -> &'static str {
        "shuffle"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let most = if self.rng.chance(0.1) { 5000 } else { 300 };
        let until = now + us(self.rng.below(most));
        self.held.push((until, io));
        out.wake_at(until);
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        while let Some(i) = self.held.iter().position(|(until, _)| *until <= now) {
            out.submit(0, self.held.remove(i).1);
        }
        if let Some(until) = self.held.iter().map(|h| h.0).min() {
            out.wake_at(until);
        }
    }
    fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

/// The client's next request; `None`: it lets time pass.
fn next_ask(rng: &mut Rng, (base, span): (u64, u64)) -> Option<Ask> {
    let first = base + rng.below(span);
    let most = if rng.chance(0.2) { 90 } else { 8 };
    let len = (1 + rng.below(most)).min(SECTORS - first);
    let op = match rng.below(22) {
        0..13 => Op::Write,
        13..16 => Op::Read,
        16 | 17 => Op::Flush,
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
    Ok(())
}

/// A pool that has started, and all sectors.
type Started = (SimPool, Vec<Vec<u8>>);

/// Starts a pool over disks; `None` if the start was refused.
fn recovered(disks: Vec<SimDisk>, o: &Oracle, setup: Setup) -> Result<Option<Started>, String> {
    let mut p = setup.pool(disks, o);
    if p.start() != LayerState::Ready {
        let why = p.stack().layer::<Nvram>().expect("there is one").why();
        return if why.is_some_and(|w| w.contains("NVRAM")) { Ok(None) } else { Err(format!("failed: {why:?}")) };
    }
    let now = p.now();
    let head = IoHead::new(Op::Read, o.key(0), TenantId(1), 0, SECTORS * SECTOR, now);
    p.offer(now, Io::new(head, Data::Absent));
    let c = loop {
        if let Some(c) = p.next_done() {
            break c;
        }
        p.step().ok_or("the read never ends")?;
    };
    let mut bytes = vec![0; (SECTORS * SECTOR) as usize];
    c.io.data.copy_to(&mut bytes);
    Ok(Some((p, vec![bytes])))
}

/// A record of the ring, as its bytes say.
struct Found {
    number: u64,
    first: u64,
    whole: u64,
    at: u64,
}

/// Whole records of both copies.
fn records(ring: &SimDisk, block: u64) -> Vec<Found> {
    let all = ring.peek(0, ring.size_bytes());
    let found = (0..ring.size_bytes()).step_by(block as usize).filter_map(|at| {
        let b = &all.as_slice()[at as usize..];
        let word = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        let len = 64 + u32::from_le_bytes(b[4..8].try_into().expect("four bytes")) as usize;
        let mut summed = b.get(..len).filter(|b| b.starts_with(b"NVR2"))?.to_vec();
        summed[40..48].fill(0);
        // One in the place of another counts for nothing.
        let is_whole = xxh3_64(&summed) == word(40) && word(56) == at % (ring.size_bytes() / 2);
        is_whole.then(|| Found { number: word(16), first: word(24), whole: word(48), at: word(56) })
    });
    found.collect()
}

/// Corrupts some sectors of one copy of the ring.
fn rot(ring: &mut SimDisk, copy: u64, rng: &mut Rng, t: &mut Tally) {
    let half = ring.size_bytes() / SECTOR / 2;
    for _ in 0..1 + rng.below(3) {
        let written = ring.written_sectors(copy * half, (copy + 1) * half);
        if written.is_empty() {
            return;
        }
        t.rots += 1;
        let sector = written[rng.below(written.len() as u64) as usize];
        match rng.below(6) {
            0..2 => drop(ring.corrupt(sector, Corruption::Bit(rng.below(4096) as u16))),
            2 => drop(ring.corrupt(sector, Corruption::Zeroes)),
            3 => drop(ring.corrupt(sector, Corruption::Older(1 + rng.below(3) as usize))),
            4 => drop(ring.corrupt(sector, Corruption::Other(written[rng.below(written.len() as u64) as usize]))),
            _ => ring.lose_sector(sector),
        }
    }
}

/// Corrupts both copies of a record that a later one says was durable. False if there is none.
fn rot_both(ring: &mut SimDisk, block: u64, rng: &mut Rng, t: &mut Tally) -> bool {
    let all = records(ring, block);
    let first = all.iter().map(|r| r.first).max().unwrap_or(0);
    let whole = all.iter().map(|r| r.whole).max().unwrap_or(0);
    let known: Vec<u64> =
        all.iter().filter(|r| (first..whole).contains(&r.number) && r.whole < whole).map(|r| r.at).collect();
    if known.is_empty() {
        return false;
    }
    t.double += 1;
    let at = known[rng.below(known.len() as u64) as usize] / SECTOR;
    let how = if rng.chance(0.5) { Corruption::Zeroes } else { Corruption::Bit(rng.below(384) as u16) };
    for sector in [at, ring.size_bytes() / SECTOR / 2 + at] {
        ring.corrupt(sector, how);
    }
    true
}

#[derive(Default, Debug)]
struct Tally {
    losses: u64,
    kills: u64,
    lives: u64,
    rots: u64,
    double: u64,
    failures: u64,
    /// Power losses while data are being moved, ...
    moving: u64,
    /// ... and in all.
    held: u64,
}

/// A power loss or a kill on a copy of the running pool's disks, a start, and the oracle's verdict; some lives go on and end again.
fn cut(p: &mut SimPool, o: &Oracle, setup: Setup, rng: &mut Rng, t: &mut Tally) -> Result<(), String> {
    let (mut disks, mut oracle) = (vec![p.disk(DEVICE).clone(), p.disk(RING).clone()], o.clone());
    let (copy, mut rotten) = (rng.below(2), false);
    for life in 0..3 {
        let kill = life < 2 && rng.chance(0.15);
        for d in &mut disks {
            if kill {
                d.abandoned()
            } else {
                d.lose_power()
            }
            d.set_faults(DiskFaults::default());
        }
        t.held += u64::from(!records(&disks[RING], setup.block).is_empty());
        // Not where one copy is corrupt already: it may be the only one that says so.
        let both = !rotten && !kill && rng.chance(0.2) && rot_both(&mut disks[RING], setup.block, rng, t);
        if !both && rng.chance(0.4) {
            rotten = true;
            rot(&mut disks[RING], copy, rng, t);
        }
        let Some((mut next, found)) = recovered(disks, &oracle, setup)? else {
            return if both { Ok(()) } else { Err(format!("life {life}: it doesn't start")) };
        };
        if kill {
            t.kills += 1;
            oracle.check_killed(&found).map_err(|e| format!("life {life}, after a kill: {e}"))?;
        } else {
            t.losses += 1;
            oracle.check(&found).map_err(|e| format!("life {life}, both copies corrupt {both}: {e}"))?;
        }
        if both {
            return Err(NOT_MISSED.into());
        }
        if life == 2 || !kill && !rng.chance(0.3) {
            return Ok(());
        }
        t.lives += 1;
        for _ in 0..rng.below(60) {
            let now = next.now();
            if let Some(ask) = next_ask(rng, (0, SECTORS)) {
                let io = oracle.ask(ask, now);
                next.offer(now, io);
            }
            next.step();
            hear(&mut next, &mut oracle, false)?;
        }
        disks = vec![next.disk(DEVICE).clone(), next.disk(RING).clone()];
    }
    Ok(())
}

fn run(setup: Setup, cuts: f64, t: &mut Tally) -> Result<(), String> {
    let mut rng = Rng::new(setup.seed, "nvram");
    let n = 1 + rng.below(30);
    let none = DiskFaults::default;
    let faults = match setup.seed % 9 {
        3 => [DiskFaults { flush_fails_at: Some(1 + n / 10), ..none() }, none()],
        5 => [none(), DiskFaults { fua_fails_at: Some(n), ..none() }],
        7 => {
            let from = 4096 + rng.below(SECTORS) * SECTOR;
            [DiskFaults { unwritable: Some((from, from + SECTOR)), ..none() }, none()]
        }
        _ => [none(), none()],
    };
    let faulty = matches!(setup.seed % 9, 3 | 5 | 7);
    let mut o = Oracle::new(1, SECTORS, content);
    let mut p = setup.pool(setup.disks(faults), &o);
    if p.start() != LayerState::Ready {
        return if faulty { Ok(()) } else { Err("it doesn't start".into()) };
    }
    // Some runs stay among few sectors.
    let span = [(0, SECTORS), (rng.below(SECTORS - 60), 60)][rng.below(2) as usize];
    let mut lost = false;
    for _ in 0..240 {
        match next_ask(&mut rng, span) {
            Some(ask) => {
                let now = p.now();
                let io = o.ask(ask, now);
                p.offer(now, io);
            }
            None => {
                for _ in 0..rng.below(30) {
                    p.step();
                    if !lost && (p.disk(DEVICE).has_failed() || p.disk(RING).has_failed()) {
                        (lost, t.failures) = (true, t.failures + 1);
                        o.device_lost();
                    }
                    hear(&mut p, &mut o, faulty)?;
                    if rng.chance(cuts) {
                        t.moving += u64::from(p.stack().layer::<Nvram>().expect("there is one").is_moving());
                        cut(&mut p, &o, setup, &mut rng, t)?;
                    }
                }
            }
        }
        hear(&mut p, &mut o, faulty)?;
    }
    p.run();
    hear(&mut p, &mut o, faulty)?;
    cut(&mut p, &o, setup, &mut rng, t)
}

/// Many more with `PLIMSOLL_CRASH_SEEDS=500`.
#[test]
fn nothing_flushed_is_lost_at_any_instant() {
    let seeds = std::env::var("PLIMSOLL_CRASH_SEEDS").map_or(16, |n| n.parse().expect("a number"));
    let mut t = Tally::default();
    for seed in 0..seeds {
        run(Setup::of(seed, None), 0.2, &mut t).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{t:?}");
    assert!(t.losses > 20 * seeds && t.lives > seeds && t.moving > seeds && t.held > 10 * seeds, "{t:?}");
    assert!(t.kills > 10 * seeds && t.rots > 10 * seeds && t.double > seeds / 2 && t.failures > seeds / 12, "{t:?}");
}

/// Tests of the test. An assertion of the layer's own that ends a run finds nothing, nor does a start that should have been refused: the
/// oracle must see what is lost.
#[test]
fn every_planted_mistake_is_found() {
    let mut missed = Vec::new();
    for planted in Planted::ALL {
        let found = (0..200).find_map(|seed| {
            let run = || run(Setup::of(seed, Some(planted)), 0.2, &mut Tally::default());
            let error = catch_unwind(AssertUnwindSafe(run)).ok()?.err()?;
            (!error.contains(NOT_MISSED)).then_some((seed, error))
        });
        match found {
            Some((seed, e)) => println!("{planted:?}: seed {seed}: {e}"),
            None => missed.push(planted),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
