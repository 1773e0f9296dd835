//! Insertion: fingerprint, look up, pack, append, index (NI-M8).

use crate::chunk::Chunk;
use crate::config::{Codec, Planted, Sharing};
use crate::durability::Undurable;
use crate::format::{ExtentHead, Packing};
use crate::index::{Fingerprint, Key, Loc};
use crate::layer::{Cache, FAST};
use crate::recover::LIFE_SHIFT;
use crate::request::{Pending, WorkFor};
use crate::residency::Residency;
use crate::tasks::{MakeFingerprint, Pack};
use plimsoll_base::{Data, IoError, Op, OwnKind, Priority, Span, TenantId, Time, VolumeKey};
use plimsoll_stack::{Actions, Answer};
use std::collections::BTreeSet;

/// Clean extents on their way into the cache at once; more are not cached.
const INSERTS_MAX: usize = 4096;

/// Clean extents are not cached while this number of clean chunks wait for the fast device: it can't keep up.
const CLEAN_CHUNKS_MAX: usize = 4;

/// If changes wait for the journal when a clean chunk has been written, no further clean chunk is sent for this multiple of the
/// time that the chunk took. The device is left to the changes meanwhile.
const CLEAN_PAUSE: u64 = 32;
const CLEAN_PAUSE_MAX: Span = Span::from_millis(250);

/// A clean extent isn't cached either if this number of inserts wait for room.
const STARVED_CLEAN_MAX: usize = 512;

/// An extent on its way into the cache.
pub(crate) struct Insert {
    pub key: Key,
    data: Data,
    /// A clean one goes in only if it still has the extent's token.
    token: u64,
    /// The change that waits for it, if it's dirty.
    op: Option<usize>,
    fp: Option<Fingerprint>,
    head: Option<ExtentHead>,
    tenant: TenantId,
    priority: Priority,
}

impl Insert {
    /// The change that waits for it, if it's dirty.
    pub(crate) fn op(&self) -> Option<usize> {
        self.op
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.op.is_some()
    }
}

/// The result for an extent whose content seemed to be there.
enum Duplicate {
    /// It wasn't, or can't be relied on.
    None,
    /// It points there now.
    Taken,
    /// There is no room for another entry.
    Dropped,
}

impl Cache {
    /// Caches what the slow device has too.
    pub(crate) fn insert_clean(&mut self, now: Time, key: Key, data: Data, token: u64, out: &mut Actions) {
        let behind = self.chunks.iter().filter(|c| c.closed && !c.dirty).count() >= CLEAN_CHUNKS_MAX
            || self.is_known_full(self.volumes[key.volume() as usize].partition);
        if self.inserts.len() >= INSERTS_MAX || behind || !self.is_ready() || self.stopping {
            self.counters.dropped += 1;
            self.gate.drop_fill(&key);
            return;
        }
        let (tenant, priority) = self.background_of(key);
        let insert = Insert { key, data, token, op: None, fp: None, head: None, tenant, priority };
        self.begin_insert(now, insert, out);
    }

    /// Caches what only the cache will have, for a part of change `op`.
    pub(crate) fn insert_dirty(&mut self, now: Time, op: usize, key: Key, data: Data, out: &mut Actions) {
        let (tenant, priority) = (self.ops[op].head.tenant, self.ops[op].head.priority);
        let insert = Insert { key, data, token: 0, op: Some(op), fp: None, head: None, tenant, priority };
        self.begin_insert(now, insert, out);
    }

    fn begin_insert(&mut self, now: Time, mut insert: Insert, out: &mut Actions) {
        if self.config.fingerprints_percent == 0 {
            let insert = self.inserts.insert(insert);
            return self.pack(now, insert, out);
        }
        let task = MakeFingerprint {
            data: std::mem::take(&mut insert.data),
            len: self.extent_bytes(),
            hash: self.config.hash,
            key: self.volumes[insert.key.volume() as usize].hash_key,
            speeds: self.config.speeds,
        };
        // A tape's answers have no data: it stays here.
        insert.data = task.data.clone();
        let (tenant, priority) = (insert.tenant, insert.priority);
        let at = self.inserts.insert(insert);
        self.order_work(WorkFor::Fingerprint(at), tenant, priority, Box::new(task), out);
    }

    /// True if this insert may continue. It may not if the extent was written since, or the device is gone. At the end no clean one may:
    /// the chunks packed then were confirmed.
    fn still_wanted(&self, insert: usize) -> bool {
        let i = &self.inserts[insert];
        self.is_ready() && (i.op.is_some() || (self.gate.may_fill(&i.key, i.token) && !self.stopping))
    }

    pub(crate) fn end_insert(&mut self, now: Time, insert: usize, out: &mut Actions) {
        let i = self.inserts.remove(insert);
        match i.op {
            Some(op) => self.part_done(now, op, out),
            None => {
                self.gate.end_fill(&i.key, i.token);
            }
        }
    }

    pub(crate) fn insert_failed(&mut self, now: Time, insert: usize, out: &mut Actions) {
        if let Some(op) = self.inserts[insert].op {
            self.ops[op].failed = Some(IoError::Device);
        }
        self.end_insert(now, insert, out);
    }

    pub(crate) fn fingerprinted(&mut self, now: Time, insert: usize, answer: Answer, out: &mut Actions) {
        if !self.still_wanted(insert) {
            return self.insert_failed(now, insert, out);
        }
        if answer.words[2] == 1 {
            let fp = [answer.words[0], answer.words[1]];
            self.inserts[insert].fp = Some(fp);
            let part = self.volumes[self.inserts[insert].key.volume() as usize].partition;
            let found = self.residency.find_content(fp, part);
            match found.map_or(Duplicate::None, |loc| self.duplicate(now, insert, loc, out)) {
                Duplicate::None => {}
                Duplicate::Taken => {
                    self.counters.inserted += 1;
                    self.counters.duplicates += 1;
                    return self.end_insert(now, insert, out);
                }
                Duplicate::Dropped => {
                    self.counters.dropped += 1;
                    return self.end_insert(now, insert, out);
                }
            }
        }
        self.pack(now, insert, out);
    }

    /// Points the extent at equal content, if that may be relied on.
    fn duplicate(&mut self, now: Time, insert: usize, loc: Loc, out: &mut Actions) -> Duplicate {
        let (key, dirty) = (self.inserts[insert].key, self.inserts[insert].op.is_some());
        let sequence = self.residency.weu(loc.weu()).sequence;
        if !dirty {
            self.residency.touch(loc.weu());
            // It may be the very extent: it stays the base entry then.
            if self.residency.look(key).is_none_or(|l| !l.same_place(loc)) {
                // However many there are of few contents, the index doesn't grow with them.
                if !self.residency.make_room(self.slots()) {
                    self.drop_clean(key);
                    return Duplicate::Dropped;
                }
                let own = self.name_duplicate(now, key, loc, sequence, out);
                self.point(key, loc.dup(true), own);
            }
            return Duplicate::Taken;
        }
        // What a dirty duplicate relies on must count when it does.
        if !self.durability.may_rely_on(loc.weu()) {
            return Duplicate::None;
        }
        let loc = loc.dup(true).dirty(true);
        if self.planted(Planted::ForgetDirtyDuplicates) {
            self.point(key, loc, None);
            return Duplicate::Taken;
        }
        let Some(own) = self.name_duplicate(now, key, loc, sequence, out) else { return Duplicate::None };
        self.residency.touch(loc.weu());
        self.point(key, loc, Some(own));
        Duplicate::Taken
    }

    /// Slots of all WEUs.
    fn slots(&self) -> u64 {
        u64::from(self.layout.weus) * u64::from(self.layout.slots_max())
    }

    /// Adds a reference to a chunk's header: `key` is a duplicate of the extent at `loc`. Returns the reference's place, or `None`
    /// without room.
    pub(crate) fn name_duplicate(
        &mut self,
        now: Time,
        key: Key,
        loc: Loc,
        sequence: u64,
        out: &mut Actions,
    ) -> Option<Loc> {
        let part = self.volumes[key.volume() as usize].partition;
        let c = match loc.is_dirty() {
            true => self.room(now, part, true, 0, out)?,
            false => self.room_for_name(now, part, out)?,
        };
        let name = self.name_of(key);
        let sum = self.residency.weu(loc.weu()).sum(loc.slot());
        let slot = self.chunks[c].add_reference(name, loc, sequence, sum);
        Some(Loc::new(self.chunks[c].weu, 0, 0, slot))
    }

    fn pack(&mut self, now: Time, insert: usize, out: &mut Actions) {
        let i = &self.inserts[insert];
        let task = Pack {
            data: i.data.clone(),
            len: self.extent_bytes(),
            codec: self.config.codec,
            speeds: self.config.speeds,
        };
        let (tenant, priority) = (i.tenant, i.priority);
        let _ = now;
        self.order_work(WorkFor::Pack(insert), tenant, priority, Box::new(task), out);
    }

    pub(crate) fn packed(&mut self, now: Time, insert: usize, answer: Answer, out: &mut Actions) {
        if !self.still_wanted(insert) {
            return self.insert_failed(now, insert, out);
        }
        let packing = match answer.words[2] {
            0 => Packing::Raw,
            1 => Packing::Lz4,
            2 => Packing::Zstd,
            _ => Packing::Modelled,
        };
        let key = self.inserts[insert].key;
        let (payload_bytes, sum, name) = (answer.words[0] as u32, answer.words[1], self.name_of(key));
        self.inserts[insert].head = Some(ExtentHead { payload_bytes, packing, name, sum });
        self.inserts[insert].data = answer.data;
        self.append(now, insert, out);
    }

    /// Appends a packed extent to an open WEU, or has it wait until there is room in one; clean ones only if not too many do.
    fn append(&mut self, now: Time, insert: usize, out: &mut Actions) {
        let i = &self.inserts[insert];
        let (key, dirty, head) = (i.key, i.op.is_some(), i.head.expect("it is packed"));
        let partition = self.volumes[key.volume() as usize].partition;
        let Some(c) = self.room(now, partition, dirty, head.payload_bytes, out) else {
            if dirty || (self.starved.len() < STARVED_CLEAN_MAX && self.residency.use_of(partition).1 > 0) {
                return self.starved.push_back(insert);
            }
            self.counters.dropped += 1;
            return self.end_insert(now, insert, out);
        };
        let (payload, fp) = (std::mem::take(&mut self.inserts[insert].data), self.inserts[insert].fp);
        let loc = self.chunks[c].add(head, payload, fp);
        if loc.is_bare(self.extent_bytes()) {
            let extents = self.layout.shape.weu_bytes / self.layout.shape.extent_bytes;
            self.residency.set_sum(loc, head.sum as u32, extents);
        }
        self.counters.inserted += 1;
        self.counters.packed_bytes += self.extent_bytes();
        self.counters.payload_bytes += u64::from(head.payload_bytes);
        self.point(key, loc, Some(loc));
        if let Some(fp) = fp {
            self.residency.set_content(fp, loc);
        }
        self.end_insert(now, insert, out);
    }

    /// Inserts that found no room try again; clean ones only if no dirty one is left, as nobody waits for them.
    pub(crate) fn feed_starved(&mut self, now: Time, out: &mut Actions) {
        let (dirty, clean): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.starved).into_iter().partition(|i| self.inserts[*i].op.is_some());
        for insert in dirty {
            self.feed(now, insert, out);
        }
        if !self.starved.is_empty() {
            return self.starved.extend(clean);
        }
        for insert in clean {
            self.feed(now, insert, out);
        }
    }

    fn feed(&mut self, now: Time, insert: usize, out: &mut Actions) {
        match self.still_wanted(insert) {
            true => self.append(now, insert, out),
            false => self.insert_failed(now, insert, out),
        }
    }

    /// The open chunk of a partition with room for a clean duplicate's name. Names only make a restart warmer: they take at most
    /// half of a WEU's slots, without filling it. Only the part's share of WEUs for names may have more. So a flood of duplicates
    /// evicts hardly anything.
    fn room_for_name(&mut self, now: Time, partition: u16, out: &mut Actions) -> Option<usize> {
        if self.stopping {
            return None; // what is open was confirmed
        }
        let slots_max = self.layout.slots_max();
        let c = match self.open_chunk(partition, false) {
            Some(c) => c,
            None => self.room(now, partition, false, 0, out)?,
        };
        let chunk = &self.chunks[c];
        if chunk.names < slots_max / 2 {
            return chunk.has_room(0, slots_max).then_some(c);
        }
        let weu = chunk.weu;
        if !self.residency.may_be_of_names(partition, weu) {
            return None;
        }
        self.room(now, partition, false, 0, out)
    }

    fn open_chunk(&self, partition: u16, dirty: bool) -> Option<usize> {
        let open = |c: &Chunk| !c.closed && c.dirty == dirty && self.residency.weu(c.weu).partition == partition;
        self.chunks.iter().position(open)
    }

    /// The open chunk of a partition with room for one more extent, or reference if `payload_bytes` is 0.
    fn room(&mut self, now: Time, partition: u16, dirty: bool, payload_bytes: u32, out: &mut Actions) -> Option<usize> {
        let slots_max = self.layout.slots_max();
        if let Some(c) = self.open_chunk(partition, dirty) {
            if self.chunks[c].has_room(payload_bytes, slots_max) {
                return Some(c);
            }
            self.close(now, c, true, out);
        }
        let life = self.next_sequence >> LIFE_SHIFT;
        let mut sequence = self.next_sequence;
        if self.planted(Planted::ReuseSequence) {
            sequence &= 7;
        }
        let weu = self.residency.open(partition, sequence, dirty)?;
        self.next_sequence += 1;
        assert_eq!(self.next_sequence >> LIFE_SHIFT, life, "a life has 2^40 WEUs");
        if !dirty {
            self.durability.clean_begun(weu, sequence);
        }
        self.chunks.push(Chunk::first(weu, sequence, dirty, &self.layout));
        Some(self.chunks.len() - 1)
    }

    /// Closes an open chunk and writes it. Its WEU is filled, or another chunk is begun in it.
    pub(crate) fn close(&mut self, now: Time, c: usize, full: bool, out: &mut Actions) {
        let number = self.next_chunk;
        self.next_chunk += 1;
        let writes = self.chunks[c].close(self.layout.salt, number, full);
        let chunk = &self.chunks[c];
        let (weu, first_slot, header_end) = (chunk.weu, chunk.first_slot, chunk.header_end());
        let slots = first_slot + chunk.entries.len() as u32;
        // A chunk after this one must have room for a few extents, or it isn't worth a header.
        let least = if self.config.codec == Codec::None { 1 } else { 2 };
        let next =
            if full { None } else { chunk.next(self.layout.shape.extent_bytes / least, self.layout.slots_max()) };
        self.residency.closed(weu, header_end, slots, next.is_none());
        self.chunks.extend(next);
        self.chunks[c].held = writes;
        if !self.chunks[c].dirty {
            let needs = self.unflushed(c);
            let counts = self.is_ready() && !self.durability.is_on_trial(weu);
            assert!(!counts || self.chunks[c].entries.is_empty(), "nothing comes into a WEU that counts");
            self.durability.clean_closed(weu, needs);
        }
        self.send_chunks(now, out);
    }

    /// Volumes with extents in a chunk that the slow device may still lose: changed, and not flushed since.
    fn unflushed(&self, c: usize) -> Vec<(u16, u64)> {
        let slots: BTreeSet<u16> =
            self.chunks[c].entries.iter().filter_map(|e| self.volumes.slot(&e.name.volume)).collect();
        let volume = |s: u16| (s, &self.volumes[s as usize]);
        slots.into_iter().map(volume).filter(|(_, v)| v.changes > v.flushed).map(|(s, v)| (s, v.changes)).collect()
    }

    /// Sends the writes of chunks that are closed.
    pub(crate) fn send_chunks(&mut self, now: Time, out: &mut Actions) {
        for c in 0..self.chunks.len() {
            if self.chunks[c].held.is_empty() {
                continue;
            }
            // For a clean one nobody waits; for the journal, behind it, changes may.
            if !self.chunks[c].dirty && now < self.clean_after && !self.stopping {
                out.wake_at(self.clean_after);
                continue;
            }
            self.chunks[c].sent_at = now;
            let (weu, first_slot) = (self.chunks[c].weu, self.chunks[c].first_slot);
            let (whose, kind) = self.whose_chunk(c);
            for (at, len, parts) in std::mem::take(&mut self.chunks[c].held) {
                self.counters.weu_bytes += u64::from(len);
                let range = (self.layout.weu_at(weu) + u64::from(at), u64::from(len));
                let pending = Pending::Chunk { weu, first_slot };
                let what = (Op::Write, kind);
                self.send_own(now, FAST, what, whose, range, Data::Parts(parts.into()), pending, out);
            }
            self.counters.weu_writes += 1;
        }
    }

    /// For whom a chunk is written: where volumes have their own parts its volume, in whose slot a fence below then writes it. For a
    /// clean one nobody waits; for a dirty one a flush does, or soon will.
    fn whose_chunk(&self, c: usize) -> ((VolumeKey, TenantId), OwnKind) {
        let chunk = &self.chunks[c];
        match chunk.entries.first() {
            Some(e) if self.config.sharing == Sharing::PerVolume => {
                let kind = if chunk.dirty { OwnKind::Metadata } else { OwnKind::Fill };
                ((e.name.volume, TenantId::default()), kind)
            }
            _ => ((VolumeKey::POOL, TenantId::default()), OwnKind::Fill),
        }
    }

    /// Closes the open dirty chunks of some partitions, or all open chunks, that have something.
    pub(crate) fn close_open(&mut self, now: Time, of: Option<&BTreeSet<u16>>, out: &mut Actions) {
        let wanted = |c: &Chunk, r: &Residency| match of {
            None => true,
            Some(parts) => c.dirty && parts.contains(&r.weu(c.weu).partition),
        };
        let open = |c: &Chunk, r: &Residency| !c.closed && !c.entries.is_empty() && wanted(c, r);
        while let Some(c) = self.chunks.iter().position(|c| open(c, &self.residency)) {
            // Where there is no part nothing stays open.
            let part = self.residency.weu(self.chunks[c].weu).partition;
            self.close(now, c, self.residency.use_of(part).1 == 0, out);
        }
    }

    /// Closes a partition's open chunks permanently: its volume was deleted.
    pub(crate) fn close_part(&mut self, now: Time, part: u16, out: &mut Actions) {
        let open = |c: &Chunk, r: &Residency| !c.closed && r.weu(c.weu).partition == part;
        while let Some(c) = self.chunks.iter().position(|c| open(c, &self.residency)) {
            self.close(now, c, true, out);
        }
    }

    /// A part of a chunk is on the device.
    pub(crate) fn chunk_written(&mut self, now: Time, weu: u32, first_slot: u32) {
        let at = self.chunks.iter().position(|c| c.closed && (c.weu, c.first_slot) == (weu, first_slot));
        let at = at.expect("it stays until it's written");
        self.chunks[at].writes -= 1;
        if self.chunks[at].writes > 0 {
            return;
        }
        let c = self.chunks.remove(at);
        if !c.dirty && !self.chunks.iter().any(|other| other.closed && other.weu == weu) {
            self.durability.clean_written(now, weu);
        }
        if !c.dirty && self.durability.has_held() {
            let took = now.since(c.sent_at).min(CLEAN_PAUSE_MAX);
            self.clean_after = now + Span::from_nanos(took.as_nanos() * CLEAN_PAUSE);
        }
        if c.dirty {
            let slots = c.first_slot..c.first_slot + c.entries.len() as u32;
            let (weu, sequence, number, supersedes) = (c.weu, c.sequence, c.number, c.supersedes);
            let part = self.residency.weu(weu).partition;
            self.durability.dirty_written(Undurable { weu, sequence, part, number, slots, supersedes });
        }
    }
}
