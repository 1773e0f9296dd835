//! A pool with logs over a disk that loses, tears and reorders, and an oracle of what may be found on it.
#![allow(dead_code)] // each test file uses its own part

use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;
use std::collections::{BTreeMap, BTreeSet};

pub const SECTOR: u64 = 512;
pub const DEVICE_BYTES: u64 = 1 << 20;
/// The device of a share of the seeds.
pub const LARGE_BYTES: u64 = 4 << 20;
/// Sectors of each of the two volumes.
pub const SECTORS: u64 = 400;
pub const VOLUMES: u32 = 2;

pub fn us(n: u64) -> Span {
    Span::from_micros(n)
}

pub fn layout() -> Layout {
    layout_of(SECTOR)
}

/// The layout on a device with such blocks.
pub fn layout_of(block: u64) -> Layout {
    layout_on(DEVICE_BYTES, block)
}

/// The same on a device of either size: on the large one the logs take records of several units.
pub fn layout_on(device_bytes: u64, block: u64) -> Layout {
    let (group_bytes, log_bytes) =
        if device_bytes == LARGE_BYTES { (640 << 10, 384 << 10) } else { (96 << 10, 16 << 10) };
    let shape = Shape { group_bytes, log_bytes, extents_max: 256 };
    Layout::new(device_bytes, block as u32, shape, 0x5eed).unwrap()
}

/// A share of the seeds has the large device.
pub fn device_bytes_of(seed: u64) -> u64 {
    if seed % 12 == 10 { LARGE_BYTES } else { DEVICE_BYTES }
}

/// A configuration for the large device: writes of up to 96 KiB are logged.
pub fn for_large(config: LogsConfig) -> LogsConfig {
    let clean = CleanConfig { batch_bytes: 256 << 10, ..config.clean };
    LogsConfig { logged_write_bytes: 96 << 10, record_bytes_max: 128 << 10, clean, ..config }
}

/// On the large device the next start may have a lower LoggedWriteSize than the one before.
pub fn at_next_start(config: LogsConfig, device_bytes: u64, rng: &mut Rng) -> LogsConfig {
    if device_bytes != LARGE_BYTES || rng.chance(0.5) {
        return config;
    }
    LogsConfig { logged_write_bytes: 4096, record_bytes_max: 12 << 10, ..config }
}

pub fn config() -> LogsConfig {
    LogsConfig {
        logged_write_bytes: 2048,
        record_bytes_max: 8192,
        gather: us(20),

        clean: CleanConfig {
            idle_after: Some(us(2000)),
            batch_bytes: 16 << 10,
            when_used_percent: 0,
            ..CleanConfig::default()
        },
        image_every: Span::from_millis(20),
        adaptive: false,
        swap_reach_groups: 0,
        off_below: Span::ZERO,
        witness_after: us(200),
        ..LogsConfig::default()
    }
}

/// The same for a device with such blocks.
pub fn config_for(block: u64) -> LogsConfig {
    LogsConfig { logged_write_bytes: block.max(2048), record_bytes_max: 8192.max(3 * block), ..config() }
}

pub fn key(volume: u32) -> VolumeKey {
    VolumeKey { id: volume + 1, generation: 1 }
}

/// A freshly formatted disk.
pub fn formatted(seed: u64, faults: DiskFaults) -> SimDisk {
    let mut disk = SimDisk::new(DEVICE_BYTES, (us(1), us(200)), seed, faults);
    for (at, bytes) in format_device(&layout()) {
        disk.write_durably(at, &bytes);
    }
    disk
}

/// The same with blocks of `block` bytes, which remembers what was on it.
pub fn formatted_with(seed: u64, block: u64) -> SimDisk {
    formatted_on(DEVICE_BYTES, seed, block)
}

/// The same on a device of either size.
pub fn formatted_on(device_bytes: u64, seed: u64, block: u64) -> SimDisk {
    let disk = SimDisk::new(device_bytes, (us(1), us(200)), seed, DiskFaults::default());
    let mut disk = disk.with_blocks_of(block).with_history();
    for (at, bytes) in format_device(&layout_on(device_bytes, block)) {
        disk.write_durably(at, &bytes);
    }
    disk
}

/// Reorders requests as a scheduler or a drive does: each waits a while before it has any effect, so that requests overtake each
/// other. With `errors` one in a hundred fails, with or without having had its effect.
pub struct Shuffle {
    rng: Rng,
    held: Vec<(Time, Io)>,
    errors: bool,
}

impl Shuffle {
    /// Returns whether a request fails here. Flushes and durable writes fail in the device itself (see [`DiskFaults`]), as everyone
    /// must hear of that.
    fn fails(&mut self, io: &Io) -> bool {
        let may = self.errors && io.op != Op::Flush && !io.flags.has(IoFlags::FUA);
        may && self.rng.chance(0.005)
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
        // Now and then a read takes so long that what it reads might be moved and overwritten meanwhile.
        let most = if io.op == Op::Read && self.rng.chance(0.2) { 5000 } else { 300 };
        let until = now + us(self.rng.below(most));
        self.held.push((until, io));
        out.wake_at(until);
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        while let Some(i) = self.held.iter().position(|(until, _)| *until <= now) {
            let io = self.held.remove(i).1;
            if self.fails(&io) {
                out.end(io, Outcome::Failed(IoError::Device));
            } else {
                out.submit(0, io);
            }
        }
        if let Some(until) = self.held.iter().map(|h| h.0).min() {
            out.wake_at(until);
        }
    }
    fn completed(&mut self, _now: Time, mut c: Completion, out: &mut Actions) {
        if self.fails(&c.io) {
            c.outcome = Outcome::Failed(IoError::Device);
        }
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

/// Front, map and logs over the disk; with a seed, over something that shuffles.
pub fn pool(disk: SimDisk, config: LogsConfig, shuffle: Option<u64>) -> SimPool {
    let layer = shuffle.map(|seed| Shuffle { rng: Rng::new(seed, "shuffle"), held: Vec::new(), errors: false });
    pool_over(disk, config, layer)
}

/// The same over something that shuffles and fails.
pub fn failing_pool(disk: SimDisk, config: LogsConfig, seed: u64) -> SimPool {
    pool_over(disk, config, Some(Shuffle { rng: Rng::new(seed, "errors"), held: Vec::new(), errors: true }))
}

fn pool_over(disk: SimDisk, config: LogsConfig, shuffle: Option<Shuffle>) -> SimPool {
    let mut front = Front::new();
    let mut map = Map::new();
    for v in 0..VOLUMES {
        front.set_volume(key(v), FrontVolume { size_bytes: SECTORS * SECTOR, read_only: false });
        // Interleaved, so that volumes and logs lie in each other's way.
        let half = SECTORS * SECTOR / 2;
        let extents = [0, 1].map(|h| Extent { device_offset: (h * 2 + u64::from(v)) * half, len: half });
        map.set_volume(key(v), &extents);
    }
    let logs = Logs::new(layout_on(disk.size_bytes(), disk.block_bytes()), config);
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(front), Box::new(map), Box::new(logs)];
    layers.extend(shuffle.map(|s| Box::new(s) as Box<dyn Layer>));
    let pool = SimPool::chain(StackConfig::default(), layers, vec![disk]);
    // A planted mistake is the oracle's to find, not the stack's.
    if config.planted.is_some() { pool.unchecked() } else { pool }
}

/// A request: volume, first sector, sectors, and the version it brings (0: zeroes).
#[derive(Clone, Debug)]
pub enum Act {
    Write {
        volume: u32,
        first: u64,
        len: u64,
        fua: bool,
    },
    Zero {
        volume: u32,
        first: u64,
        len: u64,
        trim: bool,
    },
    Read {
        volume: u32,
        first: u64,
        len: u64,
    },
    Flush {
        volume: u32,
    },
    /// Ask what of a range is zero.
    Status {
        volume: u32,
        first: u64,
        len: u64,
    },
    /// Let some events happen.
    Pause(u8),
    /// Let time pass without requests.
    Rest,
    Checkpoint,
}

/// A workload that touches everything: small and large, hot and cold, overlapping, with rests.
pub fn some_acts(seed: u64, count: usize) -> Vec<Act> {
    let mut rng = Rng::new(seed, "logs workload");
    // Some runs stay in one corner, so that a log fills and others stay cold.
    let span = [SECTORS, 60, 24][rng.below(3) as usize];
    let large = if rng.chance(0.3) { 0 } else { 1 };
    (0..count)
        .map(|_| {
            let volume = u32::from(rng.chance(0.3));
            let mut range = |max: u64| {
                let first = rng.below(span - 1);
                (first, 1 + rng.below((span - first).min(max)))
            };
            let (small, big) = (range(4), range(24));
            match rng.below(20) {
                0..9 => Act::Write { volume, first: small.0, len: small.1, fua: rng.chance(0.25) },
                9..11 if large == 1 => Act::Write { volume, first: big.0, len: big.1, fua: rng.chance(0.3) },
                11 if large == 1 => Act::Zero { volume, first: big.0, len: big.1, trim: rng.chance(0.5) },
                12..14 => Act::Flush { volume },
                14..16 => Act::Read { volume, first: big.0, len: big.1 },
                19 if rng.chance(0.3) => Act::Status { volume, first: big.0, len: big.1 },
                16 if rng.chance(0.3) => Act::Rest,
                17 if rng.chance(0.4) => Act::Checkpoint,
                _ => Act::Pause(rng.below(8) as u8 + 1),
            }
        })
        .collect()
}

/// The acts for a device of this size: on the large one, many writes are longer than a unit.
pub fn acts_on(device_bytes: u64, seed: u64, count: usize) -> Vec<Act> {
    let mut acts = some_acts(seed, count);
    let mut rng = Rng::new(seed, "long writes");
    for act in acts.iter_mut().filter(|_| device_bytes == LARGE_BYTES) {
        if let Act::Write { first, len, .. } = act
            && rng.chance(0.3)
        {
            *first = rng.below(SECTORS - 192);
            *len = 100 + rng.below(92);
        }
    }
    acts
}

/// The same acts on whole blocks.
pub fn in_blocks(mut acts: Vec<Act>, block: u64) -> Vec<Act> {
    let n = block / SECTOR;
    for act in &mut acts {
        match act {
            Act::Write { first, len, .. }
            | Act::Zero { first, len, .. }
            | Act::Read { first, len, .. }
            | Act::Status { first, len, .. } => {
                let end = (*first + *len).next_multiple_of(n).min(SECTORS);
                *first = *first / n * n;
                *len = end - *first;
            }
            Act::Flush { .. } | Act::Pause(_) | Act::Rest | Act::Checkpoint => {}
        }
    }
    acts
}

/// A sector's content: what it is, over and over, so that a torn or misplaced one can't pass for another.
pub fn content(volume: u32, sector: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; SECTOR as usize];
    }
    [u64::from(volume) << 32 | sector, version].map(u64::to_le_bytes).concat().repeat(SECTOR as usize / 16)
}

/// Versions that each sector may have, in the order of the requests that brought them.
#[derive(Clone)]
pub struct Oracle {
    /// Per volume and sector: number of the change and the version it brings.
    possible: Vec<Vec<(u64, u64)>>,
    acknowledged: BTreeSet<u64>,
    /// Changes that are durable, and since when.
    durable: BTreeMap<u64, Time>,
    /// Changes that a flush under way will make durable.
    covers: BTreeMap<u64, (u32, Vec<u64>)>,
    /// Changes and their volumes.
    volumes: BTreeMap<u64, u32>,
    /// Reads under way: what each sector may be, at least as new as what was asked for before.
    pub reads: BTreeMap<u64, Vec<u64>>,
    pub next: u64,
    /// The device has failed: requests may fail, and what wasn't durable may be gone already.
    pub device_failed: bool,
    /// Something became corrupt: reads may fail, but never bring anything else.
    pub may_fail: bool,
    /// The time of what ends now.
    pub now: Time,
}

/// A version that no read may return: the sector is lost.
const LOST: u64 = u64::MAX;

fn place(volume: u32, sector: u64) -> usize {
    (u64::from(volume) * SECTORS + sector) as usize
}

impl Oracle {
    pub fn new() -> Oracle {
        Oracle {
            possible: vec![vec![(0, 0)]; (u64::from(VOLUMES) * SECTORS) as usize],
            acknowledged: BTreeSet::new(),
            durable: BTreeMap::from([(0, Time::ZERO)]),
            covers: BTreeMap::new(),
            volumes: BTreeMap::new(),
            reads: BTreeMap::new(),
            next: 1,
            device_failed: false,
            may_fail: false,
            now: Time::ZERO,
        }
    }

    /// The request for an act, entered into the books.
    pub fn ask(&mut self, act: &Act, now: Time) -> Option<Io> {
        let (op, volume, first, len, fua) = match *act {
            Act::Write { volume, first, len, fua } => (Op::Write, volume, first, len, fua),
            Act::Zero { volume, first, len, trim } => {
                (if trim { Op::Trim } else { Op::WriteZeroes }, volume, first, len, false)
            }
            Act::Read { volume, first, len } => (Op::Read, volume, first, len, false),
            Act::Flush { volume } => (Op::Flush, volume, 0, 0, false),
            Act::Status { volume, first, len } => (Op::BlockStatus, volume, first, len, false),
            Act::Pause(_) | Act::Rest | Act::Checkpoint => return None,
        };
        let n = self.next;
        self.next += 1;
        let mut head = IoHead::new(op, key(volume), TenantId(1), first * SECTOR, len * SECTOR, now);
        head.tag = n;
        head.flags = if fua { IoFlags::FUA } else { IoFlags::NONE };
        let mut io = Io::new(head, Data::Absent);
        let sectors = first..first + len;
        match op {
            Op::Write => {
                let bytes: Vec<u8> = sectors.clone().flat_map(|s| content(volume, s, n)).collect();
                io.data = Data::Bytes(Buf::copy_of(&bytes));
                sectors.for_each(|s| self.possible[place(volume, s)].push((n, n)));
            }
            Op::Trim | Op::WriteZeroes => sectors.for_each(|s| self.possible[place(volume, s)].push((n, 0))),
            Op::Read | Op::BlockStatus => {
                let newest = |s| self.possible[place(volume, s)].last().expect("never empty").1;
                self.reads.insert(n, sectors.map(newest).collect());
            }
            Op::Flush => {
                let mine = |n: &&u64| self.volumes[n] == volume;
                let covered = self.acknowledged.iter().filter(mine).copied().collect();
                self.covers.insert(n, (volume, covered));
            }
            _ => {}
        }
        if op.is_change() {
            self.volumes.insert(n, volume);
        }
        Some(io)
    }

    /// A request ended; what is wrong with it.
    pub fn ended(&mut self, c: &Completion) -> Result<(), String> {
        let n = c.io.tag;
        let may_fail = self.device_failed || (self.may_fail && !c.io.op.is_change() && c.io.op != Op::Flush);
        if !c.outcome.is_done() && may_fail {
            self.covers.remove(&n);
            self.reads.remove(&n);
            return Ok(());
        }
        if !c.outcome.is_done() {
            return Err(format!("{:?} ended {:?}", c.io.head, c.outcome));
        }
        if c.io.op.is_change() {
            self.acknowledged.insert(n);
            if c.io.flags.has(IoFlags::FUA) {
                self.durable.entry(n).or_insert(self.now);
            }
        }
        if let Some((_, covered)) = self.covers.remove(&n) {
            covered.into_iter().for_each(|n| {
                self.durable.entry(n).or_insert(self.now);
            });
        }
        if let Data::Status(extents) = &c.io.data {
            return self.status_ended(c, &extents.clone());
        }
        if let Some(expected) = self.reads.remove(&n) {
            let mut bytes = vec![0; c.io.len as usize];
            c.io.data.copy_to(&mut bytes);
            let volume = c.io.volume.id - 1;
            for (i, version) in expected.into_iter().enumerate() {
                let s = c.io.offset / SECTOR + i as u64;
                let got = &bytes[i * 512..][..512];
                if self.device_failed {
                    self.version_of(volume, s, got)?;
                } else if got != content(volume, s, version) {
                    return Err(format!("read of volume {volume} sector {s}: {}, not version {version}", name(got)));
                }
            }
        }
        Ok(())
    }

    /// Checks an ended block status: a sector reported as zero must have been zero at some time since the request.
    fn status_ended(&mut self, c: &Completion, extents: &[StatusExtent]) -> Result<(), String> {
        let asked = self.reads.remove(&c.io.tag).unwrap_or_default();
        let (volume, mut at) = (c.io.volume.id - 1, c.io.offset);
        for e in extents {
            for s in at / SECTOR..(at + e.len) / SECTOR {
                let newest = asked.get((s - c.io.offset / SECTOR) as usize).copied().unwrap_or(0);
                let all = &self.possible[place(volume, s)];
                let from = all.iter().rposition(|(_, v)| *v == newest).unwrap_or(0);
                if e.zero && all[from..].iter().all(|(_, v)| *v != 0) && !self.device_failed {
                    return Err(format!("volume {volume} sector {s} was said to be zero, is version {newest}"));
                }
            }
            at += e.len;
        }
        Ok(())
    }

    /// After a power loss on a device with something corrupt: each sector is what it may be, or can't be read. What became
    /// durable after `floor` may be missing; with `any`, what was there at any time may be found. What can't be read stays so.
    pub fn check_corrupt(&mut self, found: &[Vec<Option<Vec<u8>>>], floor: Time, any: bool) -> Result<u64, String> {
        let mut lost = 0;
        for volume in 0..VOLUMES {
            for s in 0..SECTORS {
                let all = &mut self.possible[place(volume, s)];
                let Some(got) = &found[volume as usize][s as usize] else {
                    *all = vec![(0, LOST)];
                    lost += 1;
                    continue;
                };
                let durable = |n: &u64| self.durable.get(n).is_some_and(|at| *at <= floor);
                let from = all.iter().rposition(|(n, _)| durable(n)).unwrap_or(0);
                let allowed = if any { &all[..] } else { &all[from..] };
                let Some(&(_, version)) = allowed.iter().find(|(_, v)| *v != LOST && *got == content(volume, s, *v))
                else {
                    let allowed: Vec<u64> = allowed.iter().map(|a| a.1).collect();
                    return Err(format!("volume {volume} sector {s} is {}, may be {allowed:?}", name(got)));
                };
                *all = vec![(0, version)];
            }
        }
        self.acknowledged.clear();
        self.covers.clear();
        self.reads.clear();
        Ok(lost)
    }

    /// Checks after a power loss that every sector has a version that it may have. From then on the version found is the only one allowed.
    pub fn check(&mut self, found: &[Vec<u8>]) -> Result<(), String> {
        for volume in 0..VOLUMES {
            for s in 0..SECTORS {
                let got = &found[volume as usize][(s * SECTOR) as usize..][..SECTOR as usize];
                let version = self.version_of(volume, s, got)?;
                self.possible[place(volume, s)] = vec![(0, version)];
            }
        }
        self.acknowledged.clear();
        self.covers.clear();
        self.reads.clear();
        self.device_failed = false;
        Ok(())
    }

    /// The same after a kill of the process without a power loss. The version found stays from now on. Until it is flushed, a power loss
    /// may still bring an earlier one back.
    pub fn check_killed(&mut self, found: &[Vec<u8>]) -> Result<(), String> {
        self.acknowledged.clear();
        self.covers.clear();
        self.reads.clear();
        for volume in 0..VOLUMES {
            for s in 0..SECTORS {
                let got = &found[volume as usize][(s * SECTOR) as usize..][..SECTOR as usize];
                self.version_of(volume, s, got)?;
                let all = &mut self.possible[place(volume, s)];
                let from = all.iter().rposition(|(n, _)| self.durable.contains_key(n)).expect("the first is durable");
                let is = |(_, version): &(u64, u64)| got == content(volume, s, *version);
                let last = all.iter().rposition(is).filter(|last| *last >= from).expect("just found");
                all.truncate(last + 1);
                if all[last].0 == 0 {
                    all.retain(is);
                }
                // A flush covers what was read, acknowledged or not.
                self.acknowledged.extend(all.iter().map(|p| p.0).filter(|n| *n > 0));
            }
        }
        Ok(())
    }

    /// Returns a sector's version. It must be one that is allowed: the last durable one, or a later one.
    fn version_of(&self, volume: u32, s: u64, got: &[u8]) -> Result<u64, String> {
        let all = &self.possible[place(volume, s)];
        let from = all.iter().rposition(|(n, _)| self.durable.contains_key(n)).expect("the first is durable");
        let allowed = &all[from..];
        match allowed.iter().find(|(_, v)| got == content(volume, s, *v)) {
            Some(&(_, version)) => Ok(version),
            None => Err(format!(
                "volume {volume} sector {s} is {}, may be {:?}",
                name(got),
                allowed.iter().map(|a| a.1).collect::<Vec<_>>()
            )),
        }
    }
}

fn name(bytes: &[u8]) -> String {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let (who, version) = (word(0), word(8));
    let whole = bytes.chunks(16).all(|c| c == &bytes[..16]);
    format!("volume {} sector {} version {version}{}", who >> 32, who & 0xffff_ffff, if whole { "" } else { ", torn" })
}

/// Starts a pool over a disk as a power loss left it, and reads everything.
pub fn recovered(disk: SimDisk, config: LogsConfig, shuffle: Option<u64>) -> Result<(SimPool, Vec<Vec<u8>>), String> {
    let mut p = pool(disk, config, shuffle);
    let state = p.start();
    if state != LayerState::Ready {
        return Err(format!("after recovery it is {state:?}: {:?}", p.stack().layer::<Logs>().unwrap().problem()));
    }
    let mut all = vec![Vec::new(); VOLUMES as usize];
    for v in 0..VOLUMES {
        let head = IoHead::new(Op::Read, key(v), TenantId(1), 0, SECTORS * SECTOR, p.now());
        let now = p.now();
        p.offer(now, Io::new(head, Data::Absent));
        let c = loop {
            if let Some(c) = p.next_done() {
                break c;
            }
            p.step().ok_or("the read never ends")?;
        };
        let mut bytes = vec![0; (SECTORS * SECTOR) as usize];
        c.io.data.copy_to(&mut bytes);
        all[v as usize] = bytes;
    }
    Ok((p, all))
}

/// One request to its end.
pub fn request(p: &mut SimPool, op: Op, volume: u32, offset: u64, len: u64) -> Result<Completion, String> {
    let head = IoHead::new(op, key(volume), TenantId(1), offset, len, p.now());
    let now = p.now();
    p.offer(now, Io::new(head, Data::Absent));
    loop {
        if let Some(c) = p.next_done() {
            return Ok(c);
        }
        p.step().ok_or("a request never ends")?;
    }
}

/// The problem that the layer reports.
pub fn problem(p: &mut SimPool) -> Option<String> {
    p.stack().layer::<Logs>().unwrap().problem()
}

/// Content of each sector of each volume, as far as readable.
pub type Sectors = Vec<Vec<Option<Vec<u8>>>>;

/// Starts a pool over a disk on which something is corrupt, and reads what can be read of each sector.
pub fn started(disk: SimDisk, config: LogsConfig) -> Result<(SimPool, LayerState, Sectors), String> {
    let block = disk.block_bytes();
    let mut p = pool(disk, config, None);
    let state = p.start();
    let mut all = Vec::new();
    for v in 0..VOLUMES {
        let mut sectors = Vec::new();
        for at in (0..SECTORS * SECTOR).step_by(16 * block as usize) {
            let len = (16 * block).min(SECTORS * SECTOR - at);
            let c = request(&mut p, Op::Read, v, at, len)?;
            let step = if c.outcome.is_done() { len } else { block };
            for at in (at..at + len).step_by(step as usize) {
                let c = if step == len { c.clone() } else { request(&mut p, Op::Read, v, at, block)? };
                let got = c.outcome.is_done().then(|| bytes(&c));
                let each = |i: u64| got.as_ref().map(|b| b[(i * SECTOR) as usize..][..SECTOR as usize].to_vec());
                sectors.extend((0..step / SECTOR).map(each));
            }
        }
        all.push(sectors);
    }
    Ok((p, state, all))
}

/// Checks that sectors reported as zero read as zeroes.
pub fn zeroes_read_as_zeroes(p: &mut SimPool) -> Result<(), String> {
    for v in 0..VOLUMES {
        let mut at = 0;
        while at < SECTORS * SECTOR {
            let c = request(p, Op::BlockStatus, v, at, SECTORS * SECTOR - at)?;
            let Data::Status(extents) = c.io.data.clone() else { return Err("no status".into()) };
            for e in extents.iter() {
                let read = request(p, Op::Read, v, at, e.len)?;
                if e.zero && read.outcome.is_done() && bytes(&read).iter().any(|b| *b != 0) {
                    return Err(format!("volume {v}: {} bytes at {at} are said to be zero and aren't", e.len));
                }
                at += e.len;
            }
        }
    }
    Ok(())
}

/// One life of a pool: drives acts, and calls `after` for every event.
pub struct Life {
    pub pool: SimPool,
    pub oracle: Oracle,
}

impl Life {
    pub fn step(&mut self) -> Result<bool, String> {
        let stepped = self.pool.step().is_some();
        self.hear()?;
        Ok(stepped)
    }

    fn hear(&mut self) -> Result<(), String> {
        if self.pool.disk(0).has_failed() {
            self.oracle.device_failed = true;
            if self.pool.stack().layer::<Logs>().expect("it is there").problem().is_none() {
                // What it has lost it hasn't told of yet: nobody can know what a read finds.
                self.oracle.reads.clear();
            }
        }
        self.oracle.now = self.pool.now();
        while let Some(c) = self.pool.next_done() {
            self.oracle.ended(&c)?;
        }
        Ok(())
    }

    /// Drives the acts; `after` sees the life after every event and may end it with `Ok(false)`.
    pub fn run(
        &mut self,
        acts: &[Act],
        after: &mut dyn FnMut(&mut Life) -> Result<bool, String>,
    ) -> Result<(), String> {
        for act in acts {
            let now = self.pool.now();
            if let Some(io) = self.oracle.ask(act, now) {
                self.pool.offer(now, io);
                self.hear()?;
            }
            let events = match act {
                Act::Pause(n) => u64::from(*n),
                // Until everything that was begun has ended, idle work included, but not for ever.
                Act::Rest => 60,
                Act::Checkpoint => {
                    self.pool.with_layer(|l: &mut Logs, out| {
                        plimsoll_stack::Layer::told(
                            l,
                            now,
                            &plimsoll_stack::Message::encode(&plimsoll_logs::LogsControl::Checkpoint),
                            out,
                        )
                    });
                    2
                }
                _ => 0,
            };
            for _ in 0..events {
                if !self.step()? {
                    break;
                }
                if !after(self)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// A request of the first volume, to its end.
pub fn ask(p: &mut SimPool, op: Op, offset: u64, len: u64, byte: u8) -> Completion {
    let mut head = IoHead::new(op, key(0), TenantId(1), offset, len, p.now());
    head.tag = 7;
    let data = if op == Op::Write { Data::Bytes(Buf::copy_of(&vec![byte; len as usize])) } else { Data::Absent };
    let now = p.now();
    p.offer(now, Io::new(head, data));
    loop {
        if let Some(c) = p.next_done() {
            return c;
        }
        p.step().expect("it ends");
    }
}

/// Returns the bytes of a read.
pub fn bytes(c: &Completion) -> Vec<u8> {
    let mut b = vec![0; c.io.len as usize];
    c.io.data.copy_to(&mut b);
    b
}

/// Returns the present status of the logs.
pub fn logs(p: &mut SimPool) -> LogsStatus {
    let now = p.now();
    p.stack().layer::<Logs>().unwrap().status(now)
}
