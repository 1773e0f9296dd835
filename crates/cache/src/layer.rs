//! The layer: what becomes of each request, and who does what next.
//!
//! ```text
//!  read ──► per extent: WEU (memory or fast device, checked and unpacked by a worker) │ read ahead │ slow device, then fill
//!  write through ──► cached copies dead in the journal ──► slow device ──► done ──► fill
//!  write back ──► fingerprint, pack (workers) ──► open WEU ──► done;  flush: chunk, journal, flush of both devices
//!  fill ──► fingerprint ──► duplicate │ pack ──► open WEU ──► full: written whole
//! ```
//! Each state below is kept by one of the modules `read`, `write`, `insert`, `evict`, `flush`, `destage`, `recover`; what may
//! go on after an event goes on in [`Cache::progress`].

use crate::chunk::{Chunk, Superseded};
use crate::config::{CacheConfig, CacheVolume, Mode, Planted, Sharing};
use crate::destage::Destage;
use crate::evict::Evict;
use crate::flush::FlushJob;
use crate::format::{ExtentName, Record};
use crate::index::{Index, Key, Loc, set_bit};
use crate::insert::Insert;
use crate::journal::Journal;
use crate::layout::Layout;
use crate::read::{Ahead, Fetch};
use crate::recover::Recovery;
use crate::status::{Activity, CacheStatus, Counters, LostRange, StartReport, VolumeStatus};
use crate::streams::Streams;
use plimsoll_base::{
    Completion, Data, Io, IoError, IoFlags, IoHead, IoId, Op, Origin, Outcome, OwnKind, Span, TenantId, Time, VolumeKey,
};
use plimsoll_stack::{Actions, Forecast, Layer, LayerState, Offer, Order, Port, Ports, VolumeTerms, Work, Worked};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The port to the slow device, whose addresses are the volumes'.
pub const SLOW: Port = 0;
/// The port to the fast device, all of which is the cache's.
pub const FAST: Port = 1;
/// Lost ranges that are remembered.
const LOST_MAX: usize = 1000;

/// Where the layer is in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Recovering,
    Ready,
    /// The fast device failed. Writes wait until somebody has noted that what it holds is no longer true.
    Broken {
        why: String,
        noted: bool,
    },
    /// Not this cache's device, or it can't be read.
    Failed(String),
}

/// A volume that is known, or of which something is cached.
pub(crate) struct Volume {
    pub key: VolumeKey,
    /// `None` until it is announced.
    pub config: Option<CacheVolume>,
    pub partition: u16,
    /// What its fingerprints are keyed with.
    pub hash_key: [u8; 32],
    pub dirty: u64,
    pub reads: u64,
    pub read_hits: u64,
    /// All of it is to be written back: it isn't write-back any more.
    pub draining: bool,
    /// Changes that the slow device has acknowledged, and how many of them a flush has covered.
    pub changes: u64,
    pub flushed: u64,
    /// A flush of the cache's own is under way.
    pub settling: bool,
}

impl Volume {
    /// Is all of it to be written back?
    pub fn drains(&self) -> bool {
        self.draining || self.config.is_some_and(|c| c.mode != Mode::Back)
    }
}

/// A client's request under way.
pub(crate) struct ClientOp {
    pub head: IoHead,
    pub data: Data,
    /// Parts that haven't ended.
    pub outstanding: u32,
    pub failed: Option<IoError>,
    /// The whole of it was refused below.
    pub busy: Option<Outcome>,
    pub dispatched_at: Time,
    /// A read's answer: lengths and data, in order.
    pub pieces: Vec<(u64, Data)>,
    /// Nothing of it needed the slow device.
    pub hit: bool,
    /// A change's ranges that go to the slow device.
    pub through: Vec<(u64, u64)>,
    /// Extents of those ranges, and whether they were cached.
    pub touched: Vec<(Key, bool)>,
    /// Extents that it changes in the cache.
    pub locked: Vec<Key>,
    /// It must be durable before it ends.
    pub flush_after: bool,
}

/// What a request that was sent below is for.
pub(crate) enum Pending {
    /// A client's request that passes by; if it's a flush, what it covers.
    Pass {
        head: IoHead,
        covers: Option<Covers>,
    },
    /// A run of a client's read: the piece, where the run began, and the fills' token.
    Run {
        op: usize,
        piece: usize,
        from: u64,
        len: u64,
        token: u64,
    },
    /// A part of a client's change.
    Through {
        op: usize,
    },
    /// A client's flush, at the slow device.
    SlowFlush {
        op: usize,
        covers: Covers,
    },
    /// The cache's own, before something that the slow device may still lose is cached for good.
    Settle(Covers),
    /// A fetch, at either device.
    Fetch(usize),
    /// A read ahead, or a fill of its own.
    Fill {
        key: Key,
        count: u64,
        token: u64,
        ahead: bool,
    },
    Chunk {
        weu: u32,
        first_slot: u32,
    },
    Journal,
    FastFlush,
    EvictHeader(u32),
    Trim(u32),
    Destage {
        at: usize,
    },
    DestageFlush,
    Recovery(u32),
}

/// A volume, and how many of its changes a flush of the slow device covers.
pub(crate) type Covers = (u16, u64);

/// What a worker does is for this.
pub(crate) enum WorkFor {
    Fingerprint(usize),
    Pack(usize),
    Unpack(usize),
}

/// See the module's documentation.
pub struct Cache {
    pub(crate) config: CacheConfig,
    pub(crate) layout: Layout,
    pub(crate) life: Life,
    pub(crate) index: Index,
    pub(crate) journal: Journal,
    /// Packed and not yet on the device, oldest first.
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) next_sequence: u64,
    pub(crate) next_chunk: u64,
    pub(crate) volumes: Vec<Volume>,
    pub(crate) by_key: BTreeMap<VolumeKey, u16>,
    /// Volumes that are gone, and the first WEU's number that can't hold anything of theirs.
    pub(crate) gone: Vec<(VolumeKey, u64)>,
    pub(crate) pending: Slab<Pending>,
    pub(crate) ops: Slab<ClientOp>,
    pub(crate) fetches: Slab<Fetch>,
    pub(crate) inserts: Slab<Insert>,
    pub(crate) works: Slab<WorkFor>,
    /// Fills under way: only who has the extent's token may fill it.
    pub(crate) fills: BTreeMap<Key, u64>,
    pub(crate) next_token: u64,
    /// Extents with changes on their way to the slow device.
    pub(crate) writing: BTreeMap<Key, u32>,
    /// Extents being changed in the cache.
    pub(crate) locked: BTreeSet<Key>,
    /// Client requests that wait for one of those.
    pub(crate) waiting: VecDeque<Io>,
    /// Changes that wait for the journal.
    pub(crate) held: Vec<(u64, usize)>,
    /// What came while recovering.
    pub(crate) early: Vec<Io>,
    pub(crate) dirty: BTreeSet<Key>,
    /// Dirty duplicates: where a header says so.
    pub(crate) refs: BTreeMap<Key, Loc>,
    /// WEUs that must stay: being read, with references, or with superseded extents whose successors aren't durable.
    pub(crate) pins: BTreeMap<u32, u32>,
    /// Dirty chunks on the device that no flush has covered: number, WEU, slots, and what they supersede.
    pub(crate) undurable: Vec<(u64, u32, std::ops::Range<u32>, Vec<Superseded>)>,
    /// Chunks below this are durable.
    pub(crate) durable_chunks: u64,
    /// Places whose bytes are not what they should be.
    pub(crate) bad: BTreeSet<(u32, u32)>,
    /// WEUs found at the start that no flush is known to have covered: nothing dirty may rely on them.
    pub(crate) suspect: BTreeSet<u32>,
    pub(crate) evicting: BTreeMap<u32, Evict>,
    /// Dirty inserts without room.
    pub(crate) starved: VecDeque<usize>,
    pub(crate) flush_job: Option<FlushJob>,
    /// Who waits for the next one.
    pub(crate) flush_next: Vec<usize>,
    pub(crate) flush_wanted: bool,
    pub(crate) destage: Option<Destage>,
    pub(crate) destaging: BTreeSet<Key>,
    pub(crate) destage_on: bool,
    pub(crate) destage_cursor: Key,
    pub(crate) destage_retry_at: Time,
    pub(crate) settle_retry_at: Time,
    pub(crate) streams: Streams,
    pub(crate) ahead: Ahead,
    pub(crate) stopping: bool,
    /// What must survive was ordered to be written out for the last time.
    draining: bool,
    pub(crate) recovery: Option<Box<Recovery>>,
    pub(crate) counters: Counters,
    pub(crate) start_report: StartReport,
    pub(crate) lost: Vec<LostRange>,
}

impl Cache {
    /// A cache on a fast device that was formatted as `layout` says (its salt is read from there).
    pub fn new(layout: Layout, config: CacheConfig) -> Cache {
        let extents = layout.capacity_bytes() / u64::from(layout.shape.extent_bytes);
        let fps_max = (extents * u64::from(config.fingerprints_percent) / 100) as usize;
        let mut index = Index::new(layout.weus, fps_max);
        if config.sharing == Sharing::Shared {
            index.add_partition(config.weus_max.min(layout.weus));
        }
        Cache {
            config,
            layout,
            life: Life::Recovering,
            index,
            journal: Journal::new(layout, config.generation, 2),
            chunks: Vec::new(),
            next_sequence: 1,
            next_chunk: 1,
            volumes: Vec::new(),
            by_key: BTreeMap::new(),
            gone: Vec::new(),
            pending: Slab::new(),
            ops: Slab::new(),
            fetches: Slab::new(),
            inserts: Slab::new(),
            works: Slab::new(),
            fills: BTreeMap::new(),
            next_token: 1,
            writing: BTreeMap::new(),
            locked: BTreeSet::new(),
            waiting: VecDeque::new(),
            held: Vec::new(),
            early: Vec::new(),
            dirty: BTreeSet::new(),
            refs: BTreeMap::new(),
            pins: BTreeMap::new(),
            undurable: Vec::new(),
            durable_chunks: 0,
            bad: BTreeSet::new(),
            suspect: BTreeSet::new(),
            evicting: BTreeMap::new(),
            starved: VecDeque::new(),
            flush_job: None,
            flush_next: Vec::new(),
            flush_wanted: false,
            destage: None,
            destaging: BTreeSet::new(),
            destage_on: false,
            destage_cursor: Key::new(0, 0),
            destage_retry_at: Time::ZERO,
            settle_retry_at: Time::ZERO,
            streams: Streams::default(),
            ahead: Ahead::default(),
            stopping: false,
            draining: false,
            recovery: None,
            counters: Counters::default(),
            start_report: StartReport::default(),
            lost: Vec::new(),
        }
    }

    /// Makes a volume known, or changes how it is cached. What only the cache has of a volume that is no longer write-back
    /// goes to the slow device from now on.
    ///
    /// # Errors
    /// If 65,535 volumes were known since the start.
    pub fn announce(
        &mut self,
        now: Time,
        key: VolumeKey,
        volume: CacheVolume,
        out: &mut Actions,
    ) -> Result<(), &'static str> {
        let slot = self.slot_of(key).ok_or("65,535 volumes were cached since the start: restart the node")?;
        let partition = self.volumes[slot as usize].partition;
        if self.config.sharing == Sharing::PerVolume {
            self.index.set_quota(partition, volume.weus_max.min(self.layout.weus));
        }
        let v = &mut self.volumes[slot as usize];
        v.hash_key = *blake3::Hasher::new()
            .update(&self.layout.salt.to_le_bytes())
            .update(&volume.domain.to_le_bytes())
            .finalize()
            .as_bytes();
        v.config = Some(volume);
        v.draining = volume.mode != Mode::Back && v.dirty > 0;
        self.progress(now, out);
        Ok(())
    }

    /// The volume's slot, a new one if it has none.
    pub(crate) fn slot_of(&mut self, key: VolumeKey) -> Option<u16> {
        if let Some(&slot) = self.by_key.get(&key) {
            return Some(slot);
        }
        let slot = u16::try_from(self.volumes.len()).ok().filter(|s| *s < u16::MAX)?;
        let partition = match self.config.sharing {
            Sharing::Shared => 0,
            // Until it's announced it may keep what it has, and take no more.
            Sharing::PerVolume => self.index.add_partition(0),
        };
        self.volumes.push(Volume {
            key,
            config: None,
            partition,
            hash_key: [0; 32],
            dirty: 0,
            reads: 0,
            read_hits: 0,
            draining: false,
            changes: 0,
            flushed: 0,
            settling: false,
        });
        self.by_key.insert(key, slot);
        Some(slot)
    }

    /// Forgets a volume that was deleted, also what only the cache has of it. No request of it may be under way.
    pub fn forget(&mut self, now: Time, key: VolumeKey, out: &mut Actions) {
        let Some(slot) = self.by_key.remove(&key) else { return };
        let mine = |k: &Key| k.volume() == slot;
        for k in self.dirty.iter().copied().filter(mine).collect::<Vec<_>>() {
            self.undirty(k);
            self.index.remove(k);
            if let Some(own) = self.refs.remove(&k) {
                self.unpin(own.weu());
            }
        }
        self.fills.retain(|k, _| !mine(k));
        self.ahead.forget(mine);
        self.index.forget_volume(slot);
        if self.config.planted != Some(Planted::ForgetDeletions) {
            self.gone.push((key, self.next_sequence));
            self.journal.push(Record::Gone(key));
        }
        self.progress(now, out);
    }

    /// May use so many WEUs from now on: a live resize where space is shared.
    pub fn set_weus_max(&mut self, now: Time, weus_max: u32, out: &mut Actions) {
        self.config.weus_max = weus_max;
        if self.config.sharing == Sharing::Shared {
            self.index.set_quota(0, weus_max.min(self.layout.weus));
        }
        self.progress(now, out);
    }

    /// The fast device has failed and that isn't noted yet: somebody must make it known for the next start that what it holds
    /// is no longer true. Changes wait meanwhile.
    pub fn wants_note(&self) -> bool {
        matches!(self.life, Life::Broken { noted: false, .. })
    }

    /// That was noted, durably.
    pub fn noted(&mut self, now: Time, out: &mut Actions) {
        if let Life::Broken { noted, .. } = &mut self.life {
            *noted = true;
        }
        for io in std::mem::take(&mut self.waiting) {
            self.route(now, io, out);
        }
    }

    /// What it is doing.
    pub fn status(&self) -> CacheStatus {
        let (state, why) = match &self.life {
            Life::Recovering => ("recovering", None),
            Life::Ready => ("ready", None),
            Life::Broken { why, .. } => ("broken", Some(self.at_risk(why))),
            Life::Failed(why) => ("failed", Some(why.clone())),
        };
        let used = self.layout.weus - self.index.free_weus();
        let mut counters = self.counters;
        counters.journal_bytes = self.journal.written().0;
        let volume = |v: &Volume| {
            let config = v.config?;
            Some(VolumeStatus { key: v.key, mode: config.mode, dirty: v.dirty, reads: v.reads, read_hits: v.read_hits })
        };
        CacheStatus {
            state,
            why,
            extent_bytes: self.layout.shape.extent_bytes,
            weu_bytes: self.layout.shape.weu_bytes,
            codec: self.config.codec,
            dedup: self.config.fingerprints_percent > 0,
            sharing: self.config.sharing,
            weus: (self.layout.weus, self.config.weus_max.min(self.layout.weus), used),
            entries: (self.index.files() as u64, self.index.fingerprints() as u64),
            dirty: self.dirty.len() as u64,
            memory_bytes: self.index.memory_bytes() + self.dirty.len() as u64 * 16 + self.refs.len() as u64 * 32,
            counters,
            index: self.index.counters(),
            start: self.start_report,
            volumes: self.volumes.iter().filter(|v| self.by_key.contains_key(&v.key)).filter_map(volume).collect(),
            lost: self.lost.clone(),
        }
    }

    /// What is lost if the fast device doesn't come back.
    fn at_risk(&self, why: &str) -> String {
        let at_risk: Vec<String> = self
            .volumes
            .iter()
            .filter(|v| v.dirty > 0)
            .map(|v| format!("{} extents of volume {}.{}", v.dirty, v.key.id, v.key.generation))
            .collect();
        if at_risk.is_empty() {
            return format!("{why}; nothing is lost: volumes go on without a cache");
        }
        format!("{why}; only the cache has {}: those volumes stop until it is back", at_risk.join(", "))
    }

    pub(crate) fn planted(&self, p: Planted) -> bool {
        self.config.planted == Some(p)
    }

    pub(crate) fn extent_bytes(&self) -> u64 {
        u64::from(self.layout.shape.extent_bytes)
    }

    pub(crate) fn name_of(&self, key: Key) -> ExtentName {
        ExtentName { volume: self.volumes[key.volume() as usize].key, extent: key.extent() }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.life == Life::Ready
    }

    /// Sends a request of the cache's own; `volume` is [`VolumeKey::POOL`] for the fast device.
    #[allow(clippy::too_many_arguments)] // a request has that many parts
    pub(crate) fn send_own(
        &mut self,
        now: Time,
        port: Port,
        (op, kind): (Op, OwnKind),
        (volume, tenant): (VolumeKey, TenantId),
        (offset, len): (u64, u64),
        data: Data,
        pending: Pending,
        out: &mut Actions,
    ) -> IoId {
        let mut head = IoHead::new(op, volume, tenant, offset, len, now);
        head.id = out.new_id();
        head.origin = Origin::Own(kind);
        head.skips = out.own_skips();
        head.tag = self.pending.insert(pending) as u64;
        if matches!(self.pending[head.tag as usize], Pending::Journal) {
            head.flags = IoFlags::FUA;
        }
        out.submit(port, Io::new(head, data));
        head.id
    }

    /// The same, to the fast device.
    pub(crate) fn send_fast(
        &mut self,
        now: Time,
        op: (Op, OwnKind),
        range: (u64, u64),
        data: Data,
        pending: Pending,
        out: &mut Actions,
    ) {
        self.send_own(now, FAST, op, (VolumeKey::POOL, TenantId::default()), range, data, pending, out);
    }

    /// Has a worker do something.
    pub(crate) fn order_work(
        &mut self,
        what: WorkFor,
        tenant: TenantId,
        priority: plimsoll_base::Priority,
        task: Box<dyn plimsoll_stack::Task>,
        out: &mut Actions,
    ) {
        let tag = self.works.insert(what) as u64;
        out.work(Work { tag, tenant, priority, task });
    }

    pub(crate) fn pin(&mut self, weu: u32) {
        *self.pins.entry(weu).or_default() += 1;
    }

    pub(crate) fn unpin(&mut self, weu: u32) {
        let n = self.pins.get_mut(&weu).expect("pinned before");
        *n -= 1;
        if *n == 0 {
            self.pins.remove(&weu);
        }
    }

    pub(crate) fn undirty(&mut self, key: Key) {
        if self.dirty.remove(&key) {
            self.volumes[key.volume() as usize].dirty -= 1;
        }
    }

    /// Is this slot of this WEU still in memory?
    pub(crate) fn chunk_of(&self, weu: u32, slot: u32) -> Option<usize> {
        let has = |c: &Chunk| c.weu == weu && (c.first_slot..c.first_slot + c.entries.len() as u32).contains(&slot);
        self.chunks.iter().position(has)
    }

    /// Points `key` at `loc`; `own` is where a header says so. What it pointed at before is superseded.
    pub(crate) fn point(&mut self, key: Key, loc: Loc, own: Option<Loc>) {
        self.undirty(key);
        let old_ref = self.refs.remove(&key);
        let old = self.index.set(key, loc);
        let by = own.filter(|_| loc.is_dirty()).and_then(|o| self.chunk_of(o.weu(), o.slot()));
        self.supersede(old, old_ref, by);
        if loc.is_dirty() {
            self.dirty.insert(key);
            self.volumes[key.volume() as usize].dirty += 1;
            if let Some(own) = own.filter(|_| loc.is_dup()) {
                self.refs.insert(key, own);
                self.pin(own.weu());
            }
        }
    }

    /// Forgets a clean extent.
    pub(crate) fn drop_clean(&mut self, key: Key) -> bool {
        debug_assert!(!self.dirty.contains(&key));
        let old = self.index.remove(key);
        self.supersede(old, None, None);
        old.is_some()
    }

    /// A header's entry is no longer true: it never becomes so, or the journal says it, at once or when the dirty chunk `by`
    /// that has the newer content is durable.
    fn supersede(&mut self, old: Option<Loc>, old_ref: Option<Loc>, by: Option<usize>) {
        if let Some(r) = old_ref {
            self.unpin(r.weu());
        }
        let bytes_in = old.map_or(0, Loc::weu);
        let Some(old) = old.filter(|o| !o.is_dup()).or(old_ref) else { return };
        if let Some(c) = self.chunk_of(old.weu(), old.slot())
            && self.chunks[c].kill(old.slot())
        {
            return;
        }
        match by {
            Some(c) if !self.planted(Planted::DeadBeforeDurable) => {
                self.chunks[c].supersedes.push(Superseded { place: old, bytes_in });
                self.pin(old.weu());
                self.pin(bytes_in);
            }
            _ => self.kill(old),
        }
    }

    /// Has the journal say that a slot's entry is no longer true.
    pub(crate) fn kill(&mut self, place: Loc) {
        if self.planted(Planted::NoDeadRecords) {
            return;
        }
        let w = self.index.weu_mut(place.weu());
        if set_bit(&mut w.dead, place.slot()) {
            let sequence = w.sequence;
            self.journal.push(Record::Dead { weu: place.weu(), sequence, slot: place.slot() });
        }
    }

    /// All that the journal must say when it begins anew.
    fn snapshot(index: &Index, gone: &mut Vec<(VolumeKey, u64)>) -> Vec<Record> {
        use crate::index::WeuState;
        let holds = |w: &&crate::index::Weu| !matches!(w.state, WeuState::Free | WeuState::Retired);
        let oldest = index.weus().iter().filter(holds).map(|w| w.sequence).min().unwrap_or(u64::MAX);
        gone.retain(|(_, before)| *before > oldest);
        let mut records: Vec<Record> = gone.iter().map(|(key, _)| Record::Gone(*key)).collect();
        for (weu, w) in index.weus().iter().enumerate() {
            let weu = weu as u32;
            if !holds(&w) {
                if w.sequence > 0 {
                    records.push(Record::Least { weu, sequence: w.sequence + 1 });
                }
                continue;
            }
            records.push(Record::Least { weu, sequence: w.sequence });
            let words = |bits: &[u64]| bits.iter().copied().enumerate().filter(|(_, b)| *b != 0).collect::<Vec<_>>();
            records.extend(words(&w.dead).into_iter().map(|(i, bits)| Record::DeadBits { weu, word: i as u32, bits }));
            records.extend(words(&w.cleaned).into_iter().map(|(i, bits)| Record::CleanBits {
                weu,
                word: i as u32,
                bits,
            }));
        }
        records
    }

    /// Writes what the journal has to say, if it isn't writing already.
    pub(crate) fn write_journal(&mut self, now: Time, force: bool, out: &mut Actions) {
        if matches!(self.life, Life::Broken { .. } | Life::Failed(_)) {
            return;
        }
        let (index, gone, durable) = (&self.index, &mut self.gone, self.durable_chunks);
        if let Some(w) = self.journal.next_write(durable, force, || Cache::snapshot(index, gone)) {
            let len = w.bytes.len() as u64;
            let data = Data::Bytes(plimsoll_base::Buf::copy_of(&w.bytes));
            self.send_fast(now, (Op::Write, OwnKind::Metadata), (w.at, len), data, Pending::Journal, out);
        }
    }

    /// Lets go on what can, after anything has happened.
    pub(crate) fn progress(&mut self, now: Time, out: &mut Actions) {
        if !self.is_ready() {
            return;
        }
        self.feed_starved(now, out);
        self.send_settled(now, out);
        self.progress_flush(now, out);
        self.progress_destage(now, out);
        self.progress_evictions(now, out);
        self.write_journal(now, false, out);
    }

    /// The journal has come further: who waited for it goes on.
    fn journaled(&mut self, now: Time, out: &mut Actions) {
        let durable = self.journal.durable();
        let (go, wait): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(|h| h.0 <= durable);
        self.held = wait;
        for (_, op) in go {
            self.send_through(now, op, out);
        }
        if self.recovery.is_some() {
            self.recovery_journaled(now, out);
        }
    }

    /// Where a client's request goes.
    pub(crate) fn route(&mut self, now: Time, io: Io, out: &mut Actions) {
        if let Life::Failed(_) = self.life {
            return out.end(io, Outcome::Failed(IoError::Unavailable));
        }
        match io.op {
            Op::Read => self.read(now, io, out),
            Op::Write | Op::Trim | Op::WriteZeroes => self.change(now, io, out),
            Op::Flush => self.flush(now, io, out),
            Op::Cache | Op::BlockStatus => self.pass(io, out),
        }
    }

    /// Sends a client's request to the slow device as it is.
    pub(crate) fn pass(&mut self, mut io: Io, out: &mut Actions) {
        let slot = self.by_key.get(&io.volume).filter(|_| io.op == Op::Flush);
        let covers = slot.map(|s| (*s, self.volumes[*s as usize].changes));
        io.head.tag = self.pending.insert(Pending::Pass { head: io.head, covers }) as u64;
        out.submit(SLOW, io);
    }

    /// The slow device was flushed, if that went well.
    pub(crate) fn slow_flushed(&mut self, covers: Option<Covers>, outcome: Outcome) {
        if let Some((slot, n)) = covers.filter(|_| outcome.is_done()) {
            let v = &mut self.volumes[slot as usize];
            v.flushed = v.flushed.max(n);
        }
    }

    /// A part of a client's request has ended; the last one ends it.
    pub(crate) fn part_done(&mut self, now: Time, op: usize, out: &mut Actions) {
        let o = &mut self.ops[op];
        o.outstanding -= 1;
        if o.outstanding > 0 {
            return;
        }
        if o.flush_after && o.failed.is_none() && o.busy.is_none() {
            o.flush_after = false;
            o.outstanding = 1;
            self.flush_next.push(op);
            return self.progress_flush(now, out);
        }
        let o = self.ops.remove(op);
        self.changed(now, &o, out);
        let outcome = o.busy.or(o.failed.map(Outcome::Failed)).unwrap_or(Outcome::Done);
        let mut data = Data::Absent;
        if o.head.op == Op::Read && outcome.is_done() {
            let v = &mut self.volumes[self.by_key[&o.head.volume] as usize];
            v.reads += 1;
            v.read_hits += u64::from(o.hit);
            self.counters.reads += 1;
            self.counters.read_hits += u64::from(o.hit);
            data = join(o.pieces);
        }
        out.complete(Completion { io: Io::new(o.head, data), outcome, dispatched_at: o.dispatched_at });
        if !o.locked.is_empty() || !o.touched.is_empty() {
            self.retry_waiting(now, out);
        }
    }

    /// Client requests that waited for an extent try again.
    pub(crate) fn retry_waiting(&mut self, now: Time, out: &mut Actions) {
        if self.wants_note() {
            return;
        }
        for io in std::mem::take(&mut self.waiting) {
            self.route(now, io, out);
        }
    }

    /// The fast device has failed: nothing that it holds is served any more, and nothing is written to it.
    pub(crate) fn break_down(&mut self, now: Time, what: &str, out: &mut Actions) {
        if !self.is_ready() {
            if self.life == Life::Recovering {
                self.life = Life::Failed(format!("the fast device can't be read: {what}"));
                self.end_early(now, out);
            }
            return;
        }
        self.life = Life::Broken { why: format!("the fast device failed ({what})"), noted: false };
        self.fills.clear();
        self.ahead = Ahead::default();
        self.evicting.clear();
        for op in
            std::mem::take(&mut self.flush_next).into_iter().chain(self.flush_job.take().map_or(vec![], |j| j.ops))
        {
            self.ops[op].failed = Some(IoError::Device);
            self.part_done(now, op, out);
        }
        for insert in std::mem::take(&mut self.starved) {
            self.insert_failed(now, insert, out);
        }
        // What hasn't reached the slow device yet must not, before it's noted that the cache holds something older.
        for (_, op) in std::mem::take(&mut self.held) {
            let o = &mut self.ops[op];
            let mut io = Io::new(o.head, std::mem::take(&mut o.data));
            if o.outstanding > 1 || !o.locked.is_empty() {
                o.failed = Some(IoError::Device);
                self.part_done(now, op, out);
                continue;
            }
            let o = self.ops.remove(op);
            self.unlock(&o);
            io.head = o.head;
            self.waiting.push_back(io);
        }
    }

    fn own_failed(&mut self, now: Time, c: &Completion, out: &mut Actions) -> bool {
        match c.outcome {
            Outcome::Done => false,
            other => {
                let what = match other {
                    Outcome::Failed(e) => e.to_string(),
                    _ => unreachable!("own I/O is never refused"),
                };
                self.break_down(now, &what, out);
                true
            }
        }
    }

    pub(crate) fn lose(&mut self, key: Key) {
        self.counters.lost += 1;
        if self.lost.len() < LOST_MAX {
            let (e, name) = (self.extent_bytes(), self.name_of(key));
            self.lost.push(LostRange { volume: name.volume, offset: name.extent * e, len: e });
        }
    }

    /// What is under way, for who watches closely.
    pub fn activity(&self) -> Activity {
        Activity {
            recovering: self.recovery.is_some(),
            snapshot: self.journal.in_snapshot(),
            journal: !self.journal.is_idle(),
            chunks: self.chunks.iter().filter(|c| c.closed).count(),
            flushing: self.flush_job.is_some(),
            destaging: self.destage.is_some(),
            evicting: !self.evicting.is_empty(),
            dirty: self.dirty.len(),
        }
    }

    fn end_early(&mut self, now: Time, out: &mut Actions) {
        for io in std::mem::take(&mut self.early) {
            self.route(now, io, out);
        }
    }

    /// Recovery is over.
    pub(crate) fn ready(&mut self, now: Time, out: &mut Actions) {
        self.life = Life::Ready;
        self.end_early(now, out);
        self.progress(now, out);
    }
}

fn join(mut pieces: Vec<(u64, Data)>) -> Data {
    if pieces.len() == 1 {
        return pieces.pop().expect("one").1;
    }
    if pieces.iter().all(|(_, d)| matches!(d, Data::Absent)) {
        return Data::Absent;
    }
    Data::Parts(pieces.into())
}

impl Layer for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[SLOW as usize]
    }

    fn start(&mut self, now: Time, below: &[Offer], out: &mut Actions) {
        self.begin_recovery(now, below[FAST as usize], out);
    }

    fn state(&self) -> LayerState {
        match &self.life {
            Life::Recovering => LayerState::Recovering,
            Life::Ready if self.lost.is_empty() => LayerState::Ready,
            Life::Ready | Life::Broken { .. } => LayerState::Degraded,
            Life::Failed(_) => LayerState::Failed,
        }
    }

    fn set_volume(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms, out: &mut Actions) {
        let weus_max = (terms.cache_bytes / u64::from(self.layout.shape.weu_bytes)).min(u64::from(self.layout.weus));
        let config = CacheVolume {
            size_bytes: terms.size_bytes,
            mode: terms.cache,
            tenant: TenantId(terms.tenant),
            domain: terms.domain,
            weus_max: weus_max as u32,
        };
        // More volumes than there can be slots pass by.
        let _ = self.announce(now, volume, config, out);
    }

    fn forget_volume(&mut self, now: Time, volume: VolumeKey, out: &mut Actions) {
        self.forget(now, volume, out);
    }

    fn is_using(&self, volume: VolumeKey) -> bool {
        let gone = |k: &Key| self.volumes[k.volume() as usize].key == volume;
        let fills = || self.pending.iter().any(|(_, p)| matches!(p, Pending::Fill { key, .. } if gone(key)));
        let settles = || {
            let settle = |p: &Pending| matches!(p, Pending::Settle((s, _)) if self.volumes[*s as usize].key == volume);
            self.pending.iter().any(|(_, p)| settle(p))
        };
        self.destaging.iter().any(gone) || self.fetches.iter().any(|(_, f)| gone(&f.key)) || fills() || settles()
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        self.forecast_read(at, head, below)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        match self.life {
            Life::Recovering => self.early.push(io),
            _ => self.route(now, io, out),
        }
        self.progress(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        match self.pending.remove(c.io.tag as usize) {
            Pending::Pass { head, covers } => {
                self.slow_flushed(covers, c.outcome);
                c.io.head.tag = head.tag;
                out.complete(c);
            }
            Pending::Settle(covers) => {
                self.volumes[covers.0 as usize].settling = false;
                self.slow_flushed(Some(covers), c.outcome);
                if !c.outcome.is_done() {
                    self.settle_retry_at = now + RETRY;
                }
            }
            Pending::Run { op, piece, from, len, token } => self.run_done(now, (op, piece), (from, len), token, c, out),
            p @ (Pending::Through { op } | Pending::SlowFlush { op, .. }) => {
                match p {
                    Pending::SlowFlush { covers, .. } => self.slow_flushed(Some(covers), c.outcome),
                    _ => self.volumes[self.by_key[&c.io.volume] as usize].changes += 1,
                }
                let o = &mut self.ops[op];
                o.dispatched_at = o.dispatched_at.min(c.dispatched_at);
                if let Outcome::Failed(e) = c.outcome {
                    o.failed = Some(e);
                }
                self.part_done(now, op, out);
            }
            Pending::Fetch(fetch) => self.fetch_read(now, fetch, c, out),
            Pending::Fill { key, count, token, ahead } => self.fill_read(now, (key, count), token, ahead, c, out),
            Pending::Chunk { weu, first_slot } => {
                if !self.own_failed(now, &c, out) {
                    self.chunk_written(weu, first_slot);
                }
            }
            Pending::Journal => {
                if !self.own_failed(now, &c, out) {
                    self.journal.wrote();
                    self.journaled(now, out);
                }
            }
            Pending::FastFlush => {
                if !self.own_failed(now, &c, out) {
                    self.fast_flushed(now, out);
                }
            }
            Pending::EvictHeader(weu) => {
                if !self.own_failed(now, &c, out) {
                    self.evict_header_read(weu, c);
                }
            }
            // Advice: whether it was taken makes no difference.
            Pending::Trim(weu) => self.trimmed(weu),
            Pending::Destage { at } => self.destage_written(now, at, c.outcome, out),
            Pending::DestageFlush => self.destage_flushed(now, c.outcome, out),
            Pending::Recovery(what) => self.recovery_read(now, what, c, out),
        }
        self.progress(now, out);
    }

    fn worked(&mut self, now: Time, done: Worked, out: &mut Actions) {
        match self.works.remove(done.tag as usize) {
            WorkFor::Fingerprint(insert) => self.fingerprinted(now, insert, done.answer, out),
            WorkFor::Pack(insert) => self.packed(now, insert, done.answer, out),
            WorkFor::Unpack(fetch) => {
                let data = (done.answer.words[0] == 1).then_some(done.answer.data);
                self.fetched(now, fetch, data, out);
            }
        }
        self.progress(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.progress(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        // Only what went below under its own id as a whole can be called back.
        let whole = |p: &Pending| match p {
            Pending::Pass { head, .. } => head.id == id,
            Pending::Run { op, .. } => self.ops[*op].head.id == id && self.ops[*op].pieces.len() == 1,
            _ => false,
        };
        if self.pending.iter().any(|(_, p)| whole(p)) {
            out.cancel(SLOW, id);
        }
    }

    fn ordered(&mut self, now: Time, order: Order, out: &mut Actions) {
        match order {
            Order::Checkpoint => self.volumes.iter_mut().for_each(|v| v.draining = v.dirty > 0),
            Order::Stop => self.stopping = true,
            Order::CacheBytes(bytes) => {
                let weus = bytes / u64::from(self.layout.shape.weu_bytes);
                self.set_weus_max(now, weus.min(u64::from(self.layout.weus)) as u32, out);
            }
            Order::CacheNoted => self.noted(now, out),
            Order::Fence { .. } => {}
        }
        self.progress(now, out);
    }

    /// What is packed is written, so that the next start finds it.
    fn drain(&mut self, now: Time, out: &mut Actions) {
        self.stopping = true;
        if self.is_ready() {
            // Asked for again and again until nothing is under way: what the first time began must not begin anew each time.
            if !std::mem::replace(&mut self.draining, true) {
                self.close_open(now, true, out);
                self.flush_wanted |= !self.chunks.is_empty() || !self.undurable.is_empty();
            }
            self.progress(now, out);
        }
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.ops.is_empty()
            && self.works.is_empty()
            && self.waiting.is_empty()
            && self.early.is_empty()
    }
}

/// Time between two tries to write back what the slow device refused.
pub(crate) const RETRY: Span = Span::from_secs(1);
