//! A pool with a cache over two disks that lose, tear and reorder.
#![allow(dead_code)] // each test file uses its own part

use plimsoll_base::*;
use plimsoll_cache::*;
pub use plimsoll_nvram::Nvram;
use plimsoll_stack::sim::oracle::{Ask, Oracle};
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;

pub const SECTOR: u64 = 512;
pub const EXTENT: u64 = 4096;
/// Sectors of each of the two volumes; the last extent isn't whole.
pub const SECTORS: u64 = 48 * 8 + 3;
pub const VOLUMES: u32 = 2;
pub const FAST_BYTES: u64 = 800 << 10;
pub const SLOW_BYTES: u64 = 1 << 20;
/// Of the NVRAM, as small as it may be.
pub fn nvram_bytes(block: u32) -> u64 {
    (64 << 10).max(64 * u64::from(block))
}

pub fn us(n: u64) -> Span {
    Span::from_micros(n)
}

pub fn shape() -> Shape {
    Shape { extent_bytes: EXTENT as u32, weu_bytes: 32 << 10 }
}

pub fn layout() -> Layout {
    layout_of(512)
}

/// On a fast disk with blocks of so many bytes, which tear between sectors all the same.
pub fn layout_of(block_bytes: u32) -> Layout {
    Layout::new(FAST_BYTES, block_bytes, shape(), 0x5a17).unwrap()
}

pub fn config() -> CacheConfig {
    CacheConfig {
        weus_max: 8,
        write_back_depth: 2,
        // As the defaults, for volumes as small as these: scans are told, and read ahead.
        sequential_bytes: 8 << 10,
        prefetch_bytes_max: 32 << 10,
        ..CacheConfig::default()
    }
}

/// The policy of a seed's run in its first life, or a later one. Seeds that once found a loss have the policy that found it.
pub fn eviction(seed: u64, life: u64) -> Eviction {
    const FOUND: [u64; 10] = [6, 33, 55, 82, 89, 134, 386, 1063, 3333, 3719];
    let drawn = Rng::new(seed, "eviction").below(6) + life;
    match drawn % 6 {
        _ if FOUND.contains(&seed) => Eviction::Lru,
        0 | 1 => Eviction::Live,
        2 => Eviction::Sieve,
        3 => Eviction::S3Fifo,
        _ => Eviction::Lru,
    }
}

/// Settings of a test's pool.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub config: CacheConfig,
    pub modes: [Mode; 2],
    pub shuffle: Option<u64>,
    /// Small writes of the fast disk go to an NVRAM before it.
    pub nvram: bool,
    /// The cache is told which volumes there are, and whether only it may have something of each.
    pub known: Option<[bool; 2]>,
    /// The cache's data of volume 0 that are from before this generation were given up.
    pub given_up: Option<u16>,
    /// The cache starts without its fast disk.
    pub absent: bool,
    /// Bytes of WEUs may have rotted.
    pub rots: bool,
    /// Bytes of a block of the fast disk and of the NVRAM.
    pub block: u32,
}

impl Setup {
    pub fn of(modes: [Mode; 2]) -> Setup {
        Setup {
            config: config(),
            modes,
            shuffle: None,
            nvram: false,
            known: None,
            given_up: None,
            absent: false,
            rots: false,
            block: 512,
        }
    }
}

/// A sector's content. Three versions in ten are of one of a few kinds, the same wherever they are written: duplicates. The
/// others say what they are, over and over or with noise, so that a torn or misplaced one can't pass for another.
pub fn content(volume: u32, sector: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; SECTOR as usize];
    }
    let words = match version % 10 {
        0..3 => [0xd0b1_e000 + version / 10 % 4, sector % 8],
        _ => [u64::from(volume) << 32 | sector, version],
    };
    if version % 10 < 7 {
        return words.map(u64::to_le_bytes).concat().repeat(SECTOR as usize / 16);
    }
    let mut rng = Rng::new(words[0] << 20 ^ words[1], "noise");
    (0..SECTOR / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

pub fn oracle() -> Oracle {
    Oracle::new(VOLUMES, SECTORS, content)
}

/// An empty slow disk, a formatted fast one, and NVRAM.
pub fn disks(seed: u64, block: u32) -> Vec<SimDisk> {
    let slow = SimDisk::new(SLOW_BYTES, (us(50), us(900)), seed, DiskFaults::default());
    let of_blocks = |d: SimDisk| d.with_blocks_of(u64::from(block));
    let mut fast = of_blocks(SimDisk::new(FAST_BYTES, (us(1), us(200)), seed + 1, DiskFaults::default()));
    for (at, bytes) in format_device(&layout_of(block), 0) {
        fast.write_durably(at, &bytes);
    }
    let nvram = of_blocks(SimDisk::new(nvram_bytes(block), (us(1), us(20)), seed + 2, DiskFaults::default()));
    vec![slow, fast, nvram]
}

/// Reorders requests as a scheduler or a drive does: each waits a while before it has any effect, so that requests overtake each other.
pub struct Shuffle {
    rng: Rng,
    held: Vec<(Time, Io)>,
}

impl Shuffle {
    pub fn new(seed: u64, who: &str) -> Shuffle {
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

pub fn cache_volume(mode: Mode, volume: u32) -> CacheVolume {
    CacheVolume { size_bytes: SECTORS * SECTOR, mode, tenant: TenantId(1), domain: u64::from(volume / 2), weus_max: 8 }
}

/// Returns the place of a volume on the slow disk.
pub fn extent_of(volume: u32) -> Extent {
    let len = (SECTORS * SECTOR).next_multiple_of(4096);
    Extent { device_offset: u64::from(volume) * len, len }
}

/// Makes a volume known to all layers.
pub fn announce(p: &mut SimPool, key: VolumeKey, mode: Mode) {
    announce_of(p, key, mode, SECTORS * SECTOR);
}

/// The same of a volume that has this size.
pub fn announce_of(p: &mut SimPool, key: VolumeKey, mode: Mode, size_bytes: u64) {
    let volume = key.id - 1;
    p.with_layer(|f: &mut Front, _| f.set_volume(key, FrontVolume { size_bytes, read_only: false }));
    p.with_layer(|m: &mut Map, _| m.set_volume(key, &[extent_of(volume)]));
    let (now, config) = (p.now(), CacheVolume { size_bytes, ..cache_volume(mode, volume) });
    p.with_layer(|c: &mut Cache, out| c.announce(now, key, config, out)).unwrap().unwrap();
}

/// Front, cache, map over the disks; with a seed, over something that shuffles.
pub fn pool(disks: Vec<SimDisk>, setup: &Setup, oracle: &Oracle) -> SimPool {
    let mut p = SimPool::with_stack(disks, |offers| {
        let mut s = Stack::new(StackConfig::default(), offers);
        s.push(Box::new(Front::new()), vec![Target::Node(1)]);
        let mut cache = Box::new(Cache::new(layout_of(setup.block), setup.config));
        if let Some(behind) = setup.known {
            *cache = Cache::new(layout_of(setup.block), setup.config)
                .with_known((0..VOLUMES).map(|v| (oracle.key(v), behind[v as usize])));
        }
        if let Some(since) = setup.given_up {
            *cache = cache.with_given_up([(oracle.key(0), since)]);
        }
        *cache = cache.with_absent(setup.absent.then(|| "it isn't here".into()));
        match setup.shuffle {
            // Without its fast disk it has no use for its NVRAM.
            None if setup.nvram && !setup.absent => {
                s.push(cache, vec![Target::Node(2), Target::Node(3)]);
                s.push(Box::new(Map::new()), vec![Target::Device(0)]);
                let nvram = Nvram::new(nvram_bytes(setup.block), setup.block, 7).expect("large enough");
                s.push(Box::new(nvram), vec![Target::Device(2), Target::Device(1)]);
            }
            None => {
                s.push(cache, vec![Target::Node(2), Target::Device(1)]);
                s.push(Box::new(Map::new()), vec![Target::Device(0)]);
            }
            Some(seed) => {
                s.push(cache, vec![Target::Node(2), Target::Node(4)]);
                s.push(Box::new(Map::new()), vec![Target::Node(3)]);
                s.push(Box::new(Shuffle::new(seed, "slow")), vec![Target::Device(0)]);
                s.push(Box::new(Shuffle::new(seed, "fast")), vec![Target::Device(1)]);
            }
        }
        s
    });
    for v in 0..VOLUMES {
        announce(&mut p, oracle.key(v), setup.modes[v as usize]);
    }
    p
}

/// A step of a workload.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    Ask(Ask),
    /// Let some events happen.
    Pause(u8),
    /// Let what was begun end, mostly.
    Rest,
    Checkpoint,
    /// Delete volume 1 and make another in its place.
    Delete,
    /// Volume 1 is cached otherwise from now on.
    Mode(Mode),
}

/// A workload that touches everything: small and large, hot and cold, whole extents and parts.
pub fn some_acts(seed: u64, count: usize) -> Vec<Act> {
    let mut rng = Rng::new(seed, "cache workload");
    let span = [SECTORS, SECTORS, 120, 40][rng.below(4) as usize];
    let extents = span / 8;
    (0..count)
        .map(|_| {
            let volume = u32::from(rng.chance(0.3));
            let whole = {
                let first = rng.below(extents);
                (first * 8, (1 + rng.below((extents - first).min(4))) * 8)
            };
            let part = {
                let first = rng.below(span - 1);
                (first, 1 + rng.below((span - first).min(14)))
            };
            let (first, len) = if rng.chance(0.6) { whole } else { part };
            let ask = |op, fua| Act::Ask(Ask { op, volume, first, len, fua });
            match rng.below(25) {
                24 => ask(Op::BlockStatus, false),
                0..9 => ask(Op::Write, rng.chance(0.15)),
                9..14 => ask(Op::Read, false),
                14 => ask(if rng.chance(0.5) { Op::Trim } else { Op::WriteZeroes }, rng.chance(0.2)),
                15..17 => Act::Ask(Ask { op: Op::Flush, volume, first: 0, len: 0, fua: false }),
                17 if rng.chance(0.3) => Act::Rest,
                18 if rng.chance(0.2) => Act::Checkpoint,
                19 if rng.chance(0.15) => Act::Delete,
                20 if rng.chance(0.15) => Act::Mode([Mode::Off, Mode::Through, Mode::Back][rng.below(3) as usize]),
                _ => Act::Pause(rng.below(12) as u8 + 1),
            }
        })
        .collect()
}

/// One life of a pool.
pub struct Life {
    pub pool: SimPool,
    pub oracle: Oracle,
    pub setup: Setup,
    /// Requests may fail; so many did.
    pub may_fail: bool,
    pub failed: u64,
    /// They were of these volumes (from 0), and ended so.
    pub errors: Vec<(u32, Op, Outcome)>,
    /// A flush of the slow disk has failed, and with it went what wasn't durable there.
    pub slow_lost: bool,
}

impl Life {
    /// Over fresh disks.
    pub fn begin(seed: u64, setup: Setup) -> Life {
        let oracle = oracle();
        let mut pool = pool(disks(seed, setup.block), &setup, &oracle);
        assert_eq!(pool.start(), LayerState::Ready, "{:?}", pool.stack().layer::<Cache>().unwrap().status());
        Life { pool, oracle, setup, may_fail: false, failed: 0, errors: Vec::new(), slow_lost: false }
    }

    /// Starts over disks as an earlier life left them.
    pub fn start(disks: Vec<SimDisk>, setup: Setup, oracle: Oracle) -> Result<Life, String> {
        let mut pool = pool(disks, &setup, &oracle);
        let state = pool.start();
        let status = pool.stack().layer::<Cache>().unwrap().status();
        let corrupt = setup.rots && !status.missed.is_empty() && status.lost.is_empty();
        if state != LayerState::Ready && !corrupt {
            return Err(format!("after recovery it is {state:?}: {:?}, lost {:?}", status.why, status.lost));
        }
        if status.start.damaged > 0 && !setup.rots {
            return Err(format!("headers are said to be damaged: {:?}", status.start));
        }
        Ok(Life { pool, oracle, setup, may_fail: false, failed: 0, errors: Vec::new(), slow_lost: false })
    }

    /// Starts over disks as a power loss left them, and judges all that is there.
    pub fn again(disks: Vec<SimDisk>, setup: Setup, oracle: Oracle) -> Result<Life, String> {
        let mut life = Life::start(disks, setup, oracle)?;
        life.judge()?;
        Ok(life)
    }

    /// Reads everything and has the oracle say whether it may be so; then once more, for what a read itself may have moved.
    pub fn judge(&mut self) -> Result<(), String> {
        let found = self.read_all()?;
        self.oracle.check(&found)?;
        self.statuses()?;
        let again = self.read_all()?;
        self.oracle.check(&again)
    }

    /// Asks for the BLOCK_STATUS of everything, a few sectors after the other, of which the oracle knows what they are.
    pub fn statuses(&mut self) -> Result<(), String> {
        for volume in 0..VOLUMES {
            for (first, len) in [(0, 13), (13, 40), (53, SECTORS - 53)] {
                let now = self.pool.now();
                let io = self.oracle.ask(Ask { op: Op::BlockStatus, volume, first, len, fua: false }, now);
                self.pool.offer(now, io);
                let c = loop {
                    if let Some(c) = self.pool.next_done() {
                        break c;
                    }
                    self.pool.step().ok_or("the BLOCK_STATUS never ends")?;
                };
                match c.outcome.is_done() {
                    true => self.oracle.ended(&c)?,
                    false if self.may_fail => self.oracle.failed(&c),
                    false => return Err(format!("BLOCK_STATUS ended {:?}", c.outcome)),
                }
            }
        }
        Ok(())
    }

    /// All sectors of all volumes, while nothing else is under way.
    pub fn read_all(&mut self) -> Result<Vec<Vec<u8>>, String> {
        let mut all = Vec::new();
        for v in 0..VOLUMES {
            let now = self.pool.now();
            let head = IoHead::new(Op::Read, self.oracle.key(v), TenantId(1), 0, SECTORS * SECTOR, now);
            self.pool.offer(now, Io::new(head, Data::Absent));
            let c = loop {
                if let Some(c) = self.pool.next_done() {
                    break c;
                }
                self.pool.step().ok_or("the read never ends")?;
            };
            if !c.outcome.is_done() {
                return Err(format!("reading everything ended {:?}", c.outcome));
            }
            let mut bytes = vec![0; (SECTORS * SECTOR) as usize];
            c.io.data.copy_to(&mut bytes);
            all.push(bytes);
        }
        Ok(all)
    }

    pub fn step(&mut self) -> Result<bool, String> {
        let stepped = self.pool.step().is_some();
        self.collect()?;
        Ok(stepped)
    }

    fn must_step(&mut self) -> Result<(), String> {
        if self.step()? { Ok(()) } else { Err(format!("it never ends: {:?}", self.cache().activity())) }
    }

    fn collect(&mut self) -> Result<(), String> {
        if !self.slow_lost && self.pool.disk(0).has_failed() {
            self.slow_lost = true;
            self.oracle.device_lost();
        }
        while let Some(c) = self.pool.next_done() {
            if self.may_fail && !c.outcome.is_done() {
                self.failed += 1;
                self.errors.push((c.io.volume.id - 1, c.io.op, c.outcome));
                self.oracle.failed(&c);
            } else {
                self.oracle.ended(&c)?;
            }
        }
        Ok(())
    }

    /// Clients' requests that haven't ended.
    pub fn inside(&mut self) -> u64 {
        let keys = [self.oracle.key(0), self.oracle.key(1)];
        let front = self.pool.stack().layer::<Front>().unwrap();
        keys.iter().map(|k| front.inflight_of(*k) as u64).sum()
    }

    /// Until no client waits for anything: at most so many events.
    pub fn all_end(&mut self, most: u64) -> Result<(), String> {
        for _ in 0..most {
            if self.inside() == 0 {
                return Ok(());
            }
            if !self.step()? {
                break;
            }
        }
        let (inside, activity) = (self.inside(), self.cache().activity());
        if inside == 0 { Ok(()) } else { Err(format!("{inside} requests never end: {activity:?}")) }
    }

    /// Asks for whole extents, one request each.
    pub fn ask_extents(&mut self, op: Op, volume: u32, extents: std::ops::Range<u64>) -> Result<(), String> {
        let per = EXTENT / SECTOR;
        let asks: Vec<Act> =
            extents.map(|n| Act::Ask(Ask { op, volume, first: n * per, len: per, fua: false })).collect();
        self.run(&asks, &mut |_| Ok(true))
    }

    /// Asks for a flush.
    pub fn ask_flush(&mut self, volume: u32) -> Result<(), String> {
        let flush = Act::Ask(Ask { op: Op::Flush, volume, first: 0, len: 0, fua: false });
        self.run(&[flush], &mut |_| Ok(true))
    }

    /// Sends the cache a message.
    pub fn order(&mut self, control: plimsoll_cache::CacheControl) {
        let (now, message) = (self.pool.now(), plimsoll_stack::Message::encode(&control));
        self.pool.with_layer(|c: &mut Cache, out| c.told(now, &message, out));
    }

    /// The pool will end.
    pub fn stop(&mut self) {
        let now = self.pool.now();
        self.pool.with_layer(|c: &mut Cache, out| plimsoll_stack::Layer::stop(c, now, out));
    }

    /// Until nothing is left to happen.
    pub fn settle(&mut self) -> Result<(), String> {
        for _ in 0..100_000 {
            if !self.step()? {
                return match self.pool.stack().is_idle() {
                    true => Ok(()),
                    false => Err(format!("it is stuck: {:?}", self.cache().activity())),
                };
            }
        }
        Err(format!("it never rests: {:?}", self.cache().activity()))
    }

    pub fn cache(&mut self) -> &Cache {
        self.pool.stack().layer::<Cache>().unwrap()
    }

    /// Drives the acts; `after` sees the life after every event and may end it with `Ok(false)`.
    pub fn run(
        &mut self,
        acts: &[Act],
        after: &mut dyn FnMut(&mut Life) -> Result<bool, String>,
    ) -> Result<(), String> {
        for act in acts {
            let now = self.pool.now();
            let events = match *act {
                Act::Ask(ask) => {
                    let io = self.oracle.ask(ask, now);
                    self.pool.offer(now, io);
                    self.collect()?;
                    0
                }
                Act::Pause(n) => u64::from(n),
                Act::Rest => 80,
                Act::Checkpoint => {
                    self.pool.with_layer(|l: &mut Cache, out| {
                        plimsoll_stack::Layer::told(
                            l,
                            now,
                            &plimsoll_stack::Message::encode(&plimsoll_cache::CacheControl::Flush),
                            out,
                        )
                    });
                    2
                }
                Act::Delete => {
                    self.delete(1)?;
                    0
                }
                Act::Mode(mode) => {
                    self.setup.modes[1] = mode;
                    announce(&mut self.pool, self.oracle.key(1), mode);
                    1
                }
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

    /// Notes the fast disk's failure, if it is to be noted, as the node does it: the next start must know. Returns whether it was.
    pub fn note_failure(&mut self) -> bool {
        if !self.cache().wants_failure_record() {
            return false;
        }
        let report = self.pool.stack().next_report().and_then(|r| r.get());
        assert_eq!(report, Some(plimsoll_cache::CacheReport::DeviceFailed), "reported once");
        self.setup.config.generation += 1;
        self.order(plimsoll_cache::CacheControl::FailureNoted);
        true
    }

    /// A step of a deletion, which waits for nothing but the pool: meanwhile a failure is noted when nothing else happens.
    fn step_of_deletion(&mut self) -> Result<(), String> {
        if self.step()? || self.note_failure() { Ok(()) } else { self.must_step() }
    }

    /// As the node does it: no more requests, nothing under way, space zeroed; then another volume in its place.
    pub fn delete(&mut self, volume: u32) -> Result<(), String> {
        let key = self.oracle.key(volume);
        while self.pool.stack().layer::<Front>().unwrap().inflight_of(key) > 0 {
            self.step_of_deletion()?;
        }
        let now = self.pool.now();
        self.pool.with_layer(|f: &mut Front, _| f.remove_volume(key));
        self.pool.with_layer(|c: &mut Cache, out| c.forget(now, key, out));
        while self.pool.stack().is_using(key) {
            self.step_of_deletion()?;
        }
        let now = self.pool.now();
        self.pool.with_layer(|m: &mut Map, out| {
            m.remove_volume(key);
            m.zero(now, 1, vec![extent_of(volume)], out);
        });
        while self.pool.with_layer(|m: &mut Map, _| m.next_zeroed()).flatten().is_none() {
            self.step_of_deletion()?;
        }
        self.oracle.deleted(volume);
        announce(&mut self.pool, self.oracle.key(volume), self.setup.modes[volume as usize]);
        Ok(())
    }

    /// The disks as a power loss at this instant leaves them.
    pub fn cut(&mut self) -> Vec<SimDisk> {
        self.disks_after(SimDisk::lose_power)
    }

    /// The disks as they are when the process is killed at this instant.
    pub fn killed(&mut self) -> Vec<SimDisk> {
        self.disks_after(SimDisk::abandoned)
    }

    fn disks_after(&mut self, what: fn(&mut SimDisk)) -> Vec<SimDisk> {
        [0, 1, 2]
            .map(|d| {
                let mut disk = self.pool.disk(d).clone();
                what(&mut disk);
                disk
            })
            .into()
    }
}

/// Returns the mistake `e`, followed by the fast disk's content about the wrong sector.
pub fn explained(e: String, fast: &SimDisk, oracle: &Oracle) -> String {
    let part = |word: &str| {
        let digits = e.split(&format!("{word} ")).nth(1)?.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u64>().ok()
    };
    match (part("volume"), part("sector")) {
        (Some(v), Some(s)) => format!("{e}\n{}", explain(fast, oracle.key(v as u32), s / 8)),
        _ => e,
    }
}

/// Lists the fast disk's headers and journal records of one extent, as a text for debugging.
pub fn explain(fast: &SimDisk, volume: VolumeKey, extent: u64) -> String {
    use plimsoll_cache::format::*;
    use plimsoll_cache::journal::{Reading, read};
    let Ok(l) = Layout::decode(fast.peek(0, 4096).as_slice()) else { return "the page is damaged".into() };
    let mut text = String::new();
    let copies = [0, 1].map(|h| l.copies_at(h).map(|at| fast.peek(at, l.copy_bytes())));
    let copies = copies.each_ref().map(|half| half.each_ref().map(|c| c.as_slice()));
    let found = match read(copies, &l, Reading::default()) {
        Ok(found) => found,
        Err(corrupt) => return corrupt.why,
    };
    text += &format!("next epoch {}, durable {:#x}\n", found.next_epoch, found.durable);
    for w in 0..l.weus {
        let bytes = fast.peek(l.weu_at(w), u64::from(l.shape.weu_bytes));
        let mut at = 0;
        while let Some(h) = ChunkHeader::decode(&bytes.as_slice()[at..], l.salt, l.block_bytes, false) {
            at += chunk_header_bytes(h.entries.len(), l.block_bytes) as usize;
            for (i, e) in h.entries.iter().enumerate() {
                if e.name == (ExtentName { volume, extent }) {
                    let slot = h.first_slot + i as u32;
                    text += &format!("WEU {w} sequence {:#x} chunk {:#x} slot {slot} {e:?}\n", h.sequence, h.chunk);
                    for r in &found.records {
                        let of = match *r {
                            Record::Dead { weu, slot: s, .. } | Record::Cleaned { weu, slot: s, .. } => {
                                weu == w && s == slot
                            }
                            Record::Least { weu, .. }
                            | Record::DeadBits { weu, .. }
                            | Record::CleanBits { weu, .. }
                            | Record::Held { weu, .. } => weu == w,
                            Record::Gone(_) | Record::Missed(_) => false,
                        };
                        if of {
                            text += &format!("    {r:x?}\n");
                        }
                    }
                }
            }
        }
    }
    text
}

/// Runs a suite's seeds: `usual` of them, or as many as `PLIMSOLL_{suite}_SEEDS` says, or one, `PLIMSOLL_{suite}_SEED`. Returns their number;
/// `None` if it was one, of which nothing can be counted.
///
/// # Panics
/// If one of them fails, with the reasons of all that do.
pub fn each_seed(suite: &str, usual: u64, mut run: impl FnMut(u64) -> Result<(), String>) -> Option<u64> {
    let asked = |what: &str| {
        let value = std::env::var(format!("PLIMSOLL_{suite}_{what}")).ok();
        value.map(|n| n.parse::<u64>().expect("a number"))
    };
    let (seeds, only) = (asked("SEEDS").unwrap_or(usual), asked("SEED"));
    let failed = |seed| run(seed).err().map(|e| format!("seed {seed}: {e}"));
    let wrong: Vec<String> = only.map_or(0..seeds, |n| n..n + 1).filter_map(failed).collect();
    assert!(wrong.is_empty(), "{} of {seeds} seeds:\n{}", wrong.len(), wrong.join("\n"));
    only.is_none().then_some(seeds)
}
