//! Zones over a device that takes any write: a host-managed shingled drive that keeps its bytes, as a layer.
//!
//! One zone in every N is *conventional* and takes any write. All others are *sequential*: a write is taken at the zone's write pointer only,
//! and never across its end. Other writes fail as a drive's do. A trim of exactly one sequential zone resets it. Bytes at and
//! beyond a pointer read as zeroes. [`ZonedDisk`] has the same rules and a drive's times, but forgets its pointers when it ends.
//!
//! ```text
//! device │ zone 0: conventional │ zone 1 │ zone 2 │ … │ zone N: conventional │ … │ table: a write pointer for each zone │
//! ```
//!
//! **Pointers after a crash**, of the process or of the power:
//! * A pointer is never beyond bytes that are durable: below it are the bytes that were written since the zone's last reset.
//! * It is nowhere before the pointer that the last flush covered, or the last durable write (FUA) to the zone.
//! * A reset that has ended has happened.
//!
//! So a flush goes below first. Then the pointers that it covers are written to the table, durably. A reset is durable in the table before
//! the zone takes a write. A start reads the table, and flushes the device before it trusts it: a process before may have left the table in
//! a volatile cache. Bytes written since the last flush are beyond the pointer then, and gone, even if only the process was killed.
//!
//! A sector of the table has its own checksum, and a device writes a sector whole. A corrupt sector fails the start: the table is kept once,
//! as a drive's own memory is no matter of its host.
//!
//! [`ZonedDisk`]: crate::smr::zoned::ZonedDisk

use crate::smr::zoned::{Zone, ZoneError, ZoneState};
use plimsoll_base::{
    Buf, BufMut, Completion, Data, Io, IoError, IoFlags, IoHead, Op, Origin, Outcome, OwnKind, Time, VolumeKey,
};
use plimsoll_stack::{Actions, Layer, LayerState, Offer};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"PLIMZONE";
const VERSION: u32 = 1;
/// Bytes that a device writes whole.
const SECTOR_BYTES: u64 = 512;
const SUM_AT: usize = 16;
const POINTERS_AT: usize = 24;
/// Pointers in a sector of the table.
const POINTERS: u64 = (SECTOR_BYTES - POINTERS_AT as u64) / 8;
/// The table is read in pieces of this size, and its length is a multiple of it.
const PAGE_BYTES: u64 = 4096;
/// Bytes of one read of the table.
const READ_BYTES: u64 = 1 << 20;

/// Division of a device into zones. It can't change once the device is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZonesSpec {
    /// Bytes of a zone: a multiple of 4096.
    pub zone_bytes: u64,
    /// One zone in N is conventional, from zone 0 on: 2 or more.
    pub conventional_every: u32,
    /// Makes this device's table its own.
    pub salt: u64,
    /// A mistake planted by a test that looks whether it is found.
    #[serde(skip)]
    pub planted: Option<Planted>,
}

/// Mistakes that the tests must find, one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A write anywhere in a zone is taken.
    PointerIgnored,
    /// A write may cross the end of its zone.
    EndIgnored,
    /// A flush doesn't write pointers.
    FlushWithoutTable,
    /// A flush covers what is written when it ends, not when it began.
    CoveredLate,
    /// A durable write doesn't write its pointer.
    FuaWithoutTable,
    /// A reset is acknowledged before it is durable.
    ResetEarly,
    /// A start doesn't flush the device.
    StartUnflushed,
    /// Older bytes can be read beyond a pointer.
    ReadsBeyond,
    /// A failed write moves the pointer.
    FailedWriteCounted,
    /// A write is acknowledged though one before it in its zone may still fail.
    AcknowledgedEarly,
}

impl Planted {
    /// All of them.
    pub const ALL: [Planted; 10] = [
        Planted::PointerIgnored,
        Planted::EndIgnored,
        Planted::FlushWithoutTable,
        Planted::CoveredLate,
        Planted::FuaWithoutTable,
        Planted::ResetEarly,
        Planted::StartUnflushed,
        Planted::ReadsBeyond,
        Planted::FailedWriteCounted,
        Planted::AcknowledgedEarly,
    ];
}

/// The reason why a device can't have such zones, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadZones(pub String);

impl fmt::Display for BadZones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadZones {}

/// A device divided into zones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZonesLayout {
    spec: ZonesSpec,
    block_bytes: u64,
    /// Number of zones.
    pub zones: u32,
}

impl ZonesLayout {
    /// The zones of a device of `device_bytes` in blocks of `block_bytes`. Space behind the table isn't used.
    ///
    /// # Errors
    /// If the device can't have such zones; says which number to change.
    pub fn new(device_bytes: u64, block_bytes: u32, spec: ZonesSpec) -> Result<ZonesLayout, BadZones> {
        let bad = |what: String| Err(BadZones(what));
        let ZonesSpec { zone_bytes, conventional_every, .. } = spec;
        let block_bytes = u64::from(block_bytes).max(SECTOR_BYTES);
        if !block_bytes.is_power_of_two() || block_bytes > PAGE_BYTES {
            return bad(format!("zones need blocks of at most {PAGE_BYTES} bytes, the device has {block_bytes}"));
        }
        if zone_bytes == 0 || !zone_bytes.is_multiple_of(PAGE_BYTES) {
            return bad(format!("a zone of {zone_bytes} bytes is no multiple of {PAGE_BYTES}"));
        }
        if conventional_every < 2 {
            return bad(format!("one conventional zone in {conventional_every}: 2 or more leave sequential ones"));
        }
        // A zone less leaves more than its part of the table takes.
        let fits = |n: u64| n * zone_bytes + table_bytes(n) <= device_bytes;
        let most = device_bytes / zone_bytes;
        let zones = (most.saturating_sub(1 + table_bytes(most) / zone_bytes)..=most).rev().find(|n| fits(*n));
        match zones.and_then(|n| u32::try_from(n).ok()) {
            Some(zones) if zones >= 2 => Ok(ZonesLayout { spec, block_bytes, zones }),
            _ => bad(format!("{device_bytes} bytes can't be divided into zones of {zone_bytes}: choose others")),
        }
    }

    /// Bytes of all zones: the layer's size.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.zones) * self.spec.zone_bytes
    }

    fn is_conventional(&self, zone: u32) -> bool {
        zone.is_multiple_of(self.spec.conventional_every)
    }

    fn table_at(&self) -> u64 {
        self.size_bytes()
    }

    fn table_bytes(&self) -> u64 {
        table_bytes(u64::from(self.zones))
    }

    /// Block of the table that has a zone's pointer.
    fn block_of(&self, zone: u32) -> u64 {
        u64::from(zone) / POINTERS * SECTOR_BYTES / self.block_bytes
    }

    fn sum(&self, sector: &[u8]) -> u64 {
        let mut sum = Xxh3::with_seed(self.spec.salt);
        sum.update(&self.spec.zone_bytes.to_le_bytes());
        sum.update(&self.spec.conventional_every.to_le_bytes());
        sum.update(&self.zones.to_le_bytes());
        sum.update(&sector[..SUM_AT]);
        sum.update(&sector[POINTERS_AT..]);
        sum.digest()
    }

    /// Sector `index` of the table.
    fn encode(&self, index: u32, pointer: impl Fn(u32) -> u64, sector: &mut [u8]) {
        sector[..8].copy_from_slice(MAGIC);
        sector[8..12].copy_from_slice(&VERSION.to_le_bytes());
        sector[12..16].copy_from_slice(&index.to_le_bytes());
        for (word, zone) in sector[POINTERS_AT..].chunks_exact_mut(8).zip(u64::from(index) * POINTERS..) {
            let zone = u32::try_from(zone).ok().filter(|z| *z < self.zones);
            word.copy_from_slice(&zone.map_or(0, &pointer).to_le_bytes());
        }
        let sum = self.sum(sector);
        sector[SUM_AT..POINTERS_AT].copy_from_slice(&sum.to_le_bytes());
    }

    /// The pointers that a sector of the table has, unless it is something else or corrupt. Trusts nothing.
    fn decode(&self, index: u32, sector: &[u8]) -> Option<Vec<(u32, u64)>> {
        let long = |at: usize| u64::from_le_bytes(sector[at..at + 8].try_into().expect("eight bytes"));
        let word = |at: usize| u32::from_le_bytes(sector[at..at + 4].try_into().expect("four bytes"));
        let is_ours = &sector[..8] == MAGIC && word(8) == VERSION && word(12) == index;
        if !is_ours || long(SUM_AT) != self.sum(sector) {
            return None;
        }
        let first = u32::try_from(u64::from(index) * POINTERS).ok()?;
        let pointers = (first..self.zones).take(POINTERS as usize);
        let found = pointers.enumerate().map(|(i, zone)| (zone, long(POINTERS_AT + 8 * i)));
        let fits = |&(_, p): &(u32, u64)| p <= self.spec.zone_bytes && p.is_multiple_of(SECTOR_BYTES);
        found.map(Some).map(|p| p.filter(fits)).collect()
    }

    /// The place of a table on a device with zones of that size, whatever else they are like.
    pub fn place(device_bytes: u64, block_bytes: u32, zone_bytes: u64) -> Option<u64> {
        let spec = ZonesSpec { zone_bytes, conventional_every: 2, salt: 0, planted: None };
        Some(ZonesLayout::new(device_bytes, block_bytes, spec).ok()?.table_at())
    }

    /// True if a table begins so: of any version, and also a corrupt one.
    pub fn is_table(sector: &[u8]) -> bool {
        sector.starts_with(MAGIC)
    }

    /// The version of a sector of the table, if a later program wrote it. Magic, version and checksum stay where they are in every version.
    fn later_version(&self, sector: &[u8]) -> Option<u32> {
        let version = u32::from_le_bytes(sector[8..12].try_into().expect("four bytes"));
        let sum = u64::from_le_bytes(sector[SUM_AT..POINTERS_AT].try_into().expect("eight bytes"));
        let is_whole = &sector[..8] == MAGIC && sum == self.sum(sector);
        Some(version).filter(|version| is_whole && *version > VERSION)
    }

    /// Returns the address and bytes that format a device: a table of empty zones.
    pub fn format(&self) -> (u64, Vec<u8>) {
        let mut bytes = vec![0; self.table_bytes() as usize];
        for (index, sector) in (0..).zip(bytes.chunks_exact_mut(SECTOR_BYTES as usize)) {
            self.encode(index, |_| 0, sector);
        }
        (self.table_at(), bytes)
    }
}

fn table_bytes(zones: u64) -> u64 {
    (zones.div_ceil(POINTERS) * SECTOR_BYTES).next_multiple_of(PAGE_BYTES)
}

/// Counts since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ZonesCounters {
    /// Bytes written to sequential zones.
    pub written_bytes: u64,
    /// Zones reset.
    pub resets: u64,
    /// Writes that were refused.
    pub refused: u64,
    /// Blocks of the table that were written.
    pub table_blocks: u64,
}

/// Stage of the layer's life.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Life {
    Recovering,
    Ready,
    Failed(String),
}

/// A sequential zone. All places are counted from its start.
#[derive(Default)]
struct Sequential {
    /// Place of the next write.
    pointer: u64,
    /// Before it are the bytes whose writes have all ended.
    settled: u64,
    /// The pointer that the device is to find after a crash.
    durable: u64,
    /// Resets since the start.
    epoch: u64,
    in_flight: u32,
    /// Writes that have ended while one before them hasn't, by their start.
    early: BTreeMap<u64, Completion>,
    /// A write failed: once the others have ended, the pointer goes back to where everything was written.
    torn: bool,
    /// A reset is on its way, or failed: no write until one has ended.
    unusable: bool,
}

/// Something sent below.
enum Pending {
    /// A request that is passed on.
    Passed { tag: u64 },
    /// A read of bytes at or beyond a pointer.
    Masked { tag: u64 },
    /// A write to a sequential zone.
    Write { tag: u64, zone: u32 },
    /// A flush, and the pointers that it covers; the request that it is for, if it isn't that itself.
    Flush { tag: u64, covers: Vec<(u32, u64, u64)>, of: Option<Completion> },
    /// A block of the table.
    Table,
    /// A start's read of the table, or its flush.
    Recovery { at: u64 },
}

/// A request that ends when the table is durable.
struct Waiter {
    c: Completion,
    /// The zone that it resets.
    resets: Option<u32>,
}

/// The table's blocks that are to be written, and whoever waits for them.
#[derive(Default)]
struct Table {
    /// Blocks that differ from the device's.
    dirty: BTreeSet<u64>,
    waiting: Vec<Waiter>,
    /// Blocks being written, and who waits for those.
    writing: Vec<u64>,
    current: Vec<Waiter>,
    outstanding: usize,
    failed: bool,
}

/// See the module's documentation.
pub struct Zones {
    layout: ZonesLayout,
    life: Life,
    zones: BTreeMap<u32, Sequential>,
    /// Zones whose durable pointer is behind what was written.
    moved: BTreeSet<u32>,
    pending: Slab<Pending>,
    table: Table,
    /// Reads of the table that a start waits for.
    recovering: u64,
    counters: ZonesCounters,
    refusal: Option<String>,
}

impl Zones {
    /// A layer over a formatted device, whose table it reads before it serves.
    pub fn new(layout: ZonesLayout) -> Zones {
        let sequential = (0..layout.zones).filter(|z| !layout.is_conventional(*z));
        Zones {
            zones: sequential.map(|z| (z, Sequential::default())).collect(),
            layout,
            life: Life::Recovering,
            moved: BTreeSet::new(),
            pending: Slab::new(),
            table: Table::default(),
            recovering: 0,
            counters: ZonesCounters::default(),
            refusal: None,
        }
    }

    fn has(&self, planted: Planted) -> bool {
        self.layout.spec.planted == Some(planted)
    }

    /// Number of zones.
    pub fn zones(&self) -> u32 {
        self.layout.zones
    }

    /// The zone numbered `zone`, as a report gives it; `None` beyond the last.
    pub fn zone(&self, zone: u32) -> Option<Zone> {
        let bytes = self.layout.spec.zone_bytes;
        let start = u64::from(zone) * bytes;
        let report = |state, pointer| Some(Zone { state, start, bytes, pointer: start + pointer });
        if zone >= self.layout.zones {
            return None;
        }
        match self.zones.get(&zone).map(|z| z.pointer) {
            None => report(ZoneState::Conventional, 0),
            Some(0) => report(ZoneState::Empty, 0),
            Some(p) if p == bytes => report(ZoneState::Full, p),
            Some(p) => report(ZoneState::Closed, p),
        }
    }

    /// Returns the counts.
    pub fn counters(&self) -> &ZonesCounters {
        &self.counters
    }

    /// The write that was refused last, and why.
    pub fn refusal(&self) -> Option<&str> {
        self.refusal.as_deref()
    }

    /// Returns why it doesn't serve.
    pub fn problem(&self) -> Option<String> {
        match &self.life {
            Life::Failed(why) => Some(why.clone()),
            Life::Recovering | Life::Ready => None,
        }
    }

    fn zone_of(&self, at: u64) -> u32 {
        (at / self.layout.spec.zone_bytes) as u32
    }

    /// Sends a request of this layer's own.
    fn send_own(&mut self, now: Time, (op, at, len): (Op, u64, u64), data: Data, what: Pending, out: &mut Actions) {
        let kind = if matches!(what, Pending::Recovery { .. }) { OwnKind::Recovery } else { OwnKind::Metadata };
        let mut head = IoHead::new(op, VolumeKey::POOL, Default::default(), at, len, now);
        head.id = out.new_id();
        head.origin = Origin::Own(kind);
        head.tag = self.pending.insert(what) as u64;
        if op == Op::Write {
            head.flags = IoFlags::FUA;
        }
        out.submit(0, Io::new(head, data));
    }

    fn pass(&mut self, mut io: Io, what: Pending, out: &mut Actions) {
        io.head.tag = self.pending.insert(what) as u64;
        out.submit(0, io);
    }

    /// Parts of `from..to` that are at or beyond a pointer, in order.
    fn beyond(&self, from: u64, to: u64) -> Vec<(u64, u64)> {
        let zone_bytes = self.layout.spec.zone_bytes;
        let zones = self.zones.range(self.zone_of(from)..=self.zone_of(to.max(1) - 1));
        let part = |(n, z): (&u32, &Sequential)| {
            let start = u64::from(*n) * zone_bytes;
            let part = (from.max(start + z.pointer), to.min(start + zone_bytes));
            (part.0 < part.1).then_some(part)
        };
        zones.filter_map(part).collect()
    }

    fn read(&mut self, io: Io, out: &mut Actions) {
        let tag = io.tag;
        let beyond = if self.has(Planted::ReadsBeyond) { Vec::new() } else { self.beyond(io.offset, io.end()) };
        if beyond == [(io.offset, io.end())] {
            out.done(io, Data::Zeroes);
        } else if beyond.is_empty() {
            self.pass(io, Pending::Passed { tag }, out);
        } else {
            self.pass(io, Pending::Masked { tag }, out);
        }
    }

    /// Bytes of a read, with zeroes at and beyond pointers.
    fn masked(&self, io: &Io) -> Data {
        let (mut at, mut parts) = (io.offset, Vec::new());
        let beyond = self.beyond(io.offset, io.end());
        for (from, to) in beyond.into_iter().chain([(io.end(), io.end())]) {
            if at < from {
                parts.push((from - at, io.data.slice(io.len, at - io.offset, from - at)));
            }
            if from < to {
                parts.push((to - from, Data::Zeroes));
            }
            at = to;
        }
        Data::Parts(parts.into())
    }

    /// Says whether a write would be taken.
    ///
    /// # Errors
    /// If not: why.
    pub fn check_write(&self, at: u64, len: u64) -> Result<(), ZoneError> {
        let zone_bytes = self.layout.spec.zone_bytes;
        let number = self.zone_of(at);
        let end = (u64::from(number) + 1) * zone_bytes;
        let crosses = at + len > end;
        if let Some(z) = self.zones.get(&number) {
            let pointer = end - zone_bytes + z.pointer;
            if z.unusable || z.torn || (at != pointer && !self.has(Planted::PointerIgnored)) {
                return Err(if z.pointer == zone_bytes {
                    ZoneError::Full
                } else {
                    ZoneError::NotAtPointer { pointer }
                });
            }
        }
        if crosses && !self.has(Planted::EndIgnored) { Err(ZoneError::CrossesZone { end }) } else { Ok(()) }
    }

    fn write(&mut self, io: Io, out: &mut Actions) {
        if let Err(why) = self.check_write(io.offset, io.len) {
            self.counters.refused += 1;
            self.refusal = Some(format!("{} of {} bytes at {}: {why}", io.op.name(), io.len, io.offset));
            return out.end(io, Outcome::Failed(IoError::Device));
        }
        let (tag, zone) = (io.tag, self.zone_of(io.offset));
        let Some(z) = self.zones.get_mut(&zone) else { return self.pass(io, Pending::Passed { tag }, out) };
        z.pointer = (io.end() - u64::from(zone) * self.layout.spec.zone_bytes).min(self.layout.spec.zone_bytes);
        z.in_flight += 1;
        self.counters.written_bytes += io.len;
        self.pass(io, Pending::Write { tag, zone }, out);
    }

    /// A write to a sequential zone has ended: it is acknowledged after all before it.
    fn written(&mut self, now: Time, zone: u32, c: Completion, out: &mut Actions) {
        let early = self.has(Planted::AcknowledgedEarly);
        let counted = self.has(Planted::FailedWriteCounted);
        let start = u64::from(zone) * self.layout.spec.zone_bytes;
        let z = self.zones.get_mut(&zone).expect("a sequential zone");
        z.in_flight -= 1;
        if c.outcome.is_done() || counted {
            if early {
                z.settled = z.settled.max(c.io.end() - start);
                self.moved.insert(zone);
                out.complete(c);
                return;
            }
            z.early.insert(c.io.offset - start, c);
        } else {
            z.torn = true;
            out.complete(c);
        }
        let mut ended = Vec::new();
        while let Some(c) = z.early.remove(&z.settled) {
            z.settled += c.io.len;
            ended.push(c);
            self.moved.insert(zone);
        }
        if z.torn && z.in_flight == 0 {
            // Behind the write that failed nothing is acknowledged.
            (z.pointer, z.torn) = (z.settled, false);
            let lost = std::mem::take(&mut z.early).into_values();
            lost.for_each(|c| out.complete(Completion { outcome: Outcome::Failed(IoError::Device), ..c }));
        }
        for c in ended {
            if c.io.flags.has(IoFlags::FUA) && !self.has(Planted::FuaWithoutTable) {
                // The pointer covers writes before it, too, that aren't durable yet.
                let covers = self.covered();
                let what = Pending::Flush { tag: 0, covers, of: Some(c) };
                self.send_own(now, (Op::Flush, 0, 0), Data::Absent, what, out);
            } else {
                out.complete(c);
            }
        }
    }

    /// Pointers that a flush covers that begins now: zone, its resets, and the place before which all is written.
    fn covered(&self) -> Vec<(u32, u64, u64)> {
        let place = |n: &u32| (*n, self.zones[n].epoch, self.zones[n].settled);
        self.moved.iter().map(place).collect()
    }

    fn flush(&mut self, io: Io, out: &mut Actions) {
        let (tag, covers) = (io.tag, self.covered());
        self.pass(io, Pending::Flush { tag, covers, of: None }, out);
    }

    fn cover(&mut self, covers: &[(u32, u64, u64)]) {
        for (zone, epoch, settled) in covers {
            let z = self.zones.get_mut(zone).expect("a sequential zone");
            if z.epoch == *epoch && z.durable < *settled {
                z.durable = *settled;
                if z.durable == z.settled {
                    self.moved.remove(zone);
                }
                self.table.dirty.insert(self.layout.block_of(*zone));
            }
        }
    }

    fn reset(&mut self, now: Time, zone: u32, io: Io, out: &mut Actions) {
        let z = self.zones.get_mut(&zone).expect("a sequential zone");
        if z.in_flight > 0 || z.torn {
            // Nobody sends a change while another of the same bytes is in flight.
            return out.end(io, Outcome::Failed(IoError::Device));
        }
        self.counters.resets += 1;
        z.epoch += 1;
        (z.pointer, z.settled) = (0, 0);
        self.moved.remove(&zone);
        if std::mem::take(&mut z.durable) > 0 || z.unusable {
            self.table.dirty.insert(self.layout.block_of(zone));
        }
        if self.has(Planted::ResetEarly) {
            out.done(io, Data::Absent);
            return self.write_table(now, out);
        }
        let z = self.zones.get_mut(&zone).expect("a sequential zone");
        z.unusable = true;
        let c = Completion { io, outcome: Outcome::Done, dispatched_at: now };
        self.await_table(now, Waiter { c, resets: Some(zone) }, out);
    }

    /// Ends a request when all of the table is durable.
    fn await_table(&mut self, now: Time, waiter: Waiter, out: &mut Actions) {
        self.table.waiting.push(waiter);
        self.write_table(now, out);
    }

    /// Writes the blocks that differ, unless some are being written: then those come next.
    fn write_table(&mut self, now: Time, out: &mut Actions) {
        if self.table.outstanding > 0 {
            return;
        }
        self.table.current.append(&mut self.table.waiting);
        let blocks: Vec<u64> = std::mem::take(&mut self.table.dirty).into_iter().collect();
        self.table.writing.clone_from(&blocks);
        self.table.outstanding = blocks.len();
        self.table.failed = false;
        self.counters.table_blocks += blocks.len() as u64;
        for block in &blocks {
            let (at, bytes) = (self.layout.table_at() + block * self.layout.block_bytes, self.block(*block));
            let what = (Op::Write, at, self.layout.block_bytes);
            self.send_own(now, what, Data::Bytes(bytes), Pending::Table, out);
        }
        if blocks.is_empty() {
            self.table_written(now, out);
        }
    }

    fn block(&self, block: u64) -> Buf {
        let mut bytes = BufMut::zeroed(self.layout.block_bytes as usize);
        let first = (block * self.layout.block_bytes / SECTOR_BYTES) as u32;
        let durable = |zone: u32| self.zones.get(&zone).map_or(0, |z| z.durable);
        for (index, sector) in (first..).zip(bytes.as_mut_slice().chunks_exact_mut(SECTOR_BYTES as usize)) {
            self.layout.encode(index, durable, sector);
        }
        bytes.freeze()
    }

    /// The blocks are durable, or one of them failed: then nobody knows what a start would find of them, and the next writes them again.
    fn table_written(&mut self, now: Time, out: &mut Actions) {
        let failed = std::mem::take(&mut self.table.failed);
        let written = std::mem::take(&mut self.table.writing);
        if failed {
            self.table.dirty.extend(written);
        }
        for Waiter { c, resets } in std::mem::take(&mut self.table.current) {
            if let Some(z) = resets.and_then(|zone| self.zones.get_mut(&zone)) {
                z.unusable = failed;
            }
            let outcome = if failed { Outcome::Failed(IoError::Device) } else { c.outcome };
            out.complete(Completion { outcome, ..c });
        }
        if !self.table.waiting.is_empty() {
            self.write_table(now, out);
        }
    }

    fn recovered(&mut self, now: Time, at: u64, c: &Completion, out: &mut Actions) {
        self.recovering -= 1;
        if !c.outcome.is_done() {
            self.life = Life::Failed(
                "the table of the zones' write pointers can't be read, or the device can't be flushed: look at the device, then start again"
                    .into(),
            );
            return;
        }
        if c.io.op == Op::Read {
            let mut bytes = vec![0; c.io.len as usize];
            c.io.data.copy_to(&mut bytes);
            let first = ((at - self.layout.table_at()) / SECTOR_BYTES) as u32;
            for (index, sector) in (first..).zip(bytes.chunks_exact(SECTOR_BYTES as usize)) {
                let Some(pointers) = self.layout.decode(index, sector) else {
                    let later = self.layout.later_version(sector);
                    self.life = Life::Failed(later.map_or_else(
                        || "the table of the zones' write pointers is corrupt, or the device was made with other `zones` or without: set them as they were, or take them out; if they are right, make a new device and restore its data".into(),
                        |version| format!(
                            "the table of the zones' write pointers has version {version}, the newest this program knows is {VERSION}: use the program that wrote it, or a newer one"
                        ),
                    ));
                    return;
                };
                for (zone, pointer) in pointers {
                    if let Some(z) = self.zones.get_mut(&zone) {
                        (z.pointer, z.settled, z.durable) = (pointer, pointer, pointer);
                    }
                }
            }
            if self.recovering == 0 && self.life == Life::Recovering && !self.has(Planted::StartUnflushed) {
                self.recovering = 1;
                let what = Pending::Recovery { at };
                return self.send_own(now, (Op::Flush, 0, 0), Data::Absent, what, out);
            }
        }
        if self.recovering == 0 && self.life == Life::Recovering {
            self.life = Life::Ready;
        }
    }
}

impl Layer for Zones {
    fn name(&self) -> &'static str {
        "zones"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { size_bytes: self.layout.size_bytes(), ..below[0] }
    }

    fn start(&mut self, now: Time, below: &[Offer], out: &mut Actions) {
        if self.life != Life::Recovering || self.recovering > 0 {
            return;
        }
        let (mut at, end) = (self.layout.table_at(), self.layout.table_at() + self.layout.table_bytes());
        if below[0].size_bytes < end || below[0].io_bytes_max < READ_BYTES {
            let (size, most) = (below[0].size_bytes, below[0].io_bytes_max);
            let why =
                format!("zones need {end} bytes and requests of {READ_BYTES}; the device has {size} and takes {most}");
            self.life = Life::Failed(why);
            return;
        }
        while at < end {
            let len = READ_BYTES.min(end - at);
            self.recovering += 1;
            self.send_own(now, (Op::Read, at, len), Data::Absent, Pending::Recovery { at }, out);
            at += len;
        }
    }

    fn state(&self) -> LayerState {
        match self.life {
            Life::Recovering => LayerState::Recovering,
            Life::Ready => LayerState::Ready,
            Life::Failed(_) => LayerState::Failed,
        }
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if self.life != Life::Ready {
            return out.end(io, Outcome::Failed(IoError::Unavailable));
        }
        if io.op != Op::Flush && (io.len == 0 || io.end() > self.layout.size_bytes()) {
            return out.end(io, Outcome::Failed(IoError::Invalid));
        }
        let (tag, zone_bytes) = (io.tag, self.layout.spec.zone_bytes);
        match io.op {
            Op::Read => self.read(io, out),
            Op::Write | Op::WriteZeroes => self.write(io, out),
            Op::Flush => self.flush(io, out),
            Op::Trim => {
                let (first, last) = (self.zone_of(io.offset), self.zone_of(io.end() - 1));
                let is_whole = io.len == zone_bytes && io.offset.is_multiple_of(zone_bytes);
                match (first == last, self.zones.contains_key(&first)) {
                    (true, false) => self.pass(io, Pending::Passed { tag }, out),
                    (true, true) if is_whole => self.reset(now, first, io, out),
                    // Advice that the drive doesn't take.
                    _ => out.done(io, Data::Absent),
                }
            }
            Op::Cache | Op::BlockStatus => self.pass(io, Pending::Passed { tag }, out),
        }
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        match self.pending.remove(c.io.tag as usize) {
            Pending::Passed { tag } => {
                c.io.head.tag = tag;
                out.complete(c);
            }
            Pending::Masked { tag } => {
                c.io.head.tag = tag;
                if c.outcome.is_done() {
                    c.io.data = self.masked(&c.io);
                }
                out.complete(c);
            }
            Pending::Write { tag, zone } => {
                c.io.head.tag = tag;
                self.written(now, zone, c, out);
            }
            Pending::Flush { tag, covers, of } => {
                let flushed = c.outcome;
                let mut c = of.unwrap_or_else(|| {
                    c.io.head.tag = tag;
                    c
                });
                if !flushed.is_done() {
                    c.outcome = flushed;
                    return out.complete(c);
                }
                if self.has(Planted::FlushWithoutTable) && c.io.op == Op::Flush {
                    return out.complete(c);
                }
                let covers = if self.has(Planted::CoveredLate) { self.covered() } else { covers };
                self.cover(&covers);
                self.await_table(now, Waiter { c, resets: None }, out);
            }
            Pending::Table => {
                self.table.failed |= !c.outcome.is_done();
                self.table.outstanding -= 1;
                if self.table.outstanding == 0 {
                    self.table_written(now, out);
                }
            }
            Pending::Recovery { at } => self.recovered(now, at, &c, out),
        }
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.table.current.is_empty() && self.table.waiting.is_empty()
    }

    fn check(&self) {
        for (n, z) in self.zones.iter().filter(|(_, z)| z.in_flight > 0 || !z.early.is_empty()).take(8) {
            assert!(
                z.settled <= z.pointer && z.durable <= z.settled,
                "zone {n}: {} {} {}",
                z.pointer,
                z.settled,
                z.durable
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ZonesSpec {
        ZonesSpec { zone_bytes: 8192, conventional_every: 4, salt: 7, planted: None }
    }

    #[test]
    fn a_sector_of_the_table_is_what_was_written_and_any_change_shows() {
        let layout = ZonesLayout::new(2 << 20, 512, spec()).unwrap();
        let mut sector = vec![0; 512];
        layout.encode(1, |z| if z == 70 { 512 } else { 0 }, &mut sector);
        let found = layout.decode(1, &sector).unwrap();
        assert_eq!(found.len() as u64, POINTERS);
        assert!(found.iter().all(|(z, p)| *p == if *z == 70 { 512 } else { 0 }));
        assert_eq!(layout.decode(0, &sector), None, "another sector's place");
        let other = ZonesLayout::new(2 << 20, 512, ZonesSpec { salt: 8, ..spec() }).unwrap();
        assert_eq!(other.decode(1, &sector), None, "another device's");
        for bit in 0..sector.len() * 8 {
            let mut b = sector.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!((layout.decode(1, &b), layout.later_version(&b)), (None, None), "bit {bit}");
        }
        assert_eq!(layout.later_version(&sector), None);
        sector[8] += 1;
        let sum = layout.sum(&sector);
        sector[SUM_AT..POINTERS_AT].copy_from_slice(&sum.to_le_bytes());
        assert_eq!((layout.decode(1, &sector), layout.later_version(&sector)), (None, Some(VERSION + 1)));
    }

    #[test]
    fn zones_and_table_fit_the_device() {
        for device_bytes in (40_000..4_000_000).step_by(4321) {
            let layout = ZonesLayout::new(device_bytes, 512, spec()).unwrap();
            let used = |n: u64| n * 8192 + table_bytes(n);
            let n = u64::from(layout.zones);
            assert!(used(n) <= device_bytes && used(n + 1) > device_bytes, "{device_bytes}: {n}");
            assert_eq!(layout.format().0 + layout.format().1.len() as u64, used(n));
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let says = |bytes, spec| ZonesLayout::new(bytes, 512, spec).unwrap_err().0;
        assert!(says(1 << 20, ZonesSpec { zone_bytes: 1000, ..spec() }).contains("no multiple of 4096"));
        assert!(says(1 << 20, ZonesSpec { conventional_every: 1, ..spec() }).contains("2 or more"));
        assert!(says(1 << 20, ZonesSpec { zone_bytes: 1 << 20, ..spec() }).contains("can't be divided"));
    }
}
