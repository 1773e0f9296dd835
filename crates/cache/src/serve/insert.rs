//! Insertion: fingerprint, look up, pack, append, index (NI-M8).

use crate::config::{Planted, Sharing};
use crate::durability::Undurable;
use crate::format::{ExtentHead, Packing};
use crate::index::{Key, Loc};
use crate::inserts::Insert;
use crate::packing::{Closed, Outgoing, Room, Sending, Written};
use crate::request::{Pending, WorkFor};
use crate::serve::{Cache, FAST};
use crate::tasks::{MakeFingerprint, Pack};
use plimsoll_base::{Data, IoError, Op, OwnKind, TenantId, Time, VolumeKey};
use plimsoll_stack::{Actions, Answer};
use std::collections::BTreeSet;

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
    pub(crate) fn insert_clean(&mut self, now: Time, insert: Insert, out: &mut Actions) {
        let key = insert.key;
        let behind = self.packing.is_behind() || self.is_known_full(self.volumes[key.volume() as usize].partition);
        if self.inserts.is_full() || behind || !self.is_ready() || self.stopping {
            self.counters.dropped += 1;
            self.gate.drop_fill(&key);
            return;
        }
        self.begin_insert(now, insert, out);
    }

    /// An extent to be cached that the slow device has too.
    pub(crate) fn clean_insert(&self, key: Key, data: Data, token: u64) -> Insert {
        Insert::clean(key, data, token, self.background_of(key))
    }

    /// True if an extent that a client has read or written, and that isn't cached, is to be cached.
    pub(crate) fn admits(&mut self, key: Key) -> bool {
        let partition = self.volumes[key.volume() as usize].partition;
        let admits = self.admissions.admits(partition, self.extents_that_fit(partition), key);
        self.counters.rejected += u64::from(!admits);
        admits
    }

    /// Number of extents that fit into a part uncompressed.
    pub(crate) fn extents_that_fit(&self, partition: u16) -> u64 {
        let per_weu = self.layout.shape.weu_bytes / self.layout.shape.extent_bytes;
        u64::from(self.residency.use_of(partition).1) * u64::from(per_weu)
    }

    /// Caches what only the cache will have, for a part of change `op`.
    pub(crate) fn insert_dirty(&mut self, now: Time, op: usize, key: Key, data: Data, out: &mut Actions) {
        let whose = (self.ops[op].head.tenant, self.ops[op].head.priority);
        let was_cached = self.residency.look(key).is_some();
        let insert = Insert::dirty(key, data, op, whose).over(was_cached);
        self.begin_insert(now, insert, out);
    }

    fn begin_insert(&mut self, now: Time, insert: Insert, out: &mut Actions) {
        if self.config.fingerprints_percent == 0 {
            let insert = self.inserts.begin(insert);
            return self.pack(now, insert, out);
        }
        let task = MakeFingerprint {
            // A tape's answers have no data: it stays here.
            data: insert.data().clone(),
            len: self.extent_bytes(),
            hash: self.config.hash,
            key: self.volumes[insert.key.volume() as usize].hash_key,
            speeds: self.config.speeds,
        };
        let (tenant, priority) = (insert.tenant, insert.priority);
        let at = self.inserts.begin(insert);
        self.order_work(WorkFor::Fingerprint(at), tenant, priority, Box::new(task), out);
    }

    /// True if this insert may continue. It may not if the extent was written since, or the device is gone. At the end no clean one may:
    /// the chunks packed then were confirmed.
    fn still_wanted(&self, insert: usize) -> bool {
        let i = self.inserts.get(insert);
        self.is_ready() && (i.op.is_some() || (self.gate.may_fill(&i.key, i.token) && !self.stopping))
    }

    pub(crate) fn end_insert(&mut self, now: Time, insert: usize, out: &mut Actions) {
        let i = self.inserts.end(insert);
        match i.op {
            Some(op) => self.part_done(now, op, out),
            None => {
                self.gate.end_fill(&i.key, i.token);
            }
        }
    }

    pub(crate) fn insert_failed(&mut self, now: Time, insert: usize, out: &mut Actions) {
        if let Some(op) = self.inserts.get(insert).op {
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
            self.inserts.set_fingerprint(insert, fp);
            let part = self.volumes[self.inserts.get(insert).key.volume() as usize].partition;
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
        let (key, dirty) = (self.inserts.get(insert).key, self.inserts.get(insert).is_dirty());
        let sequence = self.residency.weu(loc.weu()).sequence;
        if !dirty {
            self.residency.touch(loc);
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
        self.residency.touch(loc);
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
        Some(self.packing.add_name(c, name, loc, sequence, sum))
    }

    fn pack(&mut self, now: Time, insert: usize, out: &mut Actions) {
        let i = self.inserts.get(insert);
        let task = Pack {
            data: i.data().clone(),
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
        let key = self.inserts.get(insert).key;
        let (payload_bytes, sum, name) = (answer.words[0] as u32, answer.words[1], self.name_of(key));
        self.inserts.set_packed(insert, ExtentHead { payload_bytes, packing, name, sum }, answer.data);
        self.append(now, insert, out);
    }

    /// Appends a packed extent to an open WEU, or has it wait until there is room in one; clean ones only if not too many do.
    fn append(&mut self, now: Time, insert: usize, out: &mut Actions) {
        let i = self.inserts.get(insert);
        let (key, dirty, fp, head) = (i.key, i.is_dirty(), i.fp, i.head.expect("it is packed"));
        let was_cached = i.was_cached();
        let partition = self.volumes[key.volume() as usize].partition;
        let Some(c) = self.room(now, partition, dirty, head.payload_bytes, out) else {
            if dirty || (self.inserts.may_starve() && self.residency.use_of(partition).1 > 0) {
                return self.inserts.starve(insert);
            }
            self.counters.dropped += 1;
            return self.end_insert(now, insert, out);
        };
        let loc = self.packing.add(c, head, self.inserts.take_data(insert), fp);
        if loc.is_bare(self.extent_bytes()) {
            let extents = self.layout.shape.weu_bytes / self.layout.shape.extent_bytes;
            self.residency.set_sum(loc, head.sum as u32, extents);
        }
        self.counters.inserted += 1;
        self.counters.packed_bytes += self.extent_bytes();
        self.counters.payload_bytes += u64::from(head.payload_bytes);
        self.point(key, loc, Some(loc));
        if was_cached {
            self.residency.touch(loc);
        }
        if let Some(fp) = fp {
            self.residency.set_content(fp, loc);
        }
        self.end_insert(now, insert, out);
    }

    /// Inserts that found no room try again; clean ones only if no dirty one is left, as nobody waits for them.
    pub(crate) fn feed_starved(&mut self, now: Time, out: &mut Actions) {
        let (dirty, clean) = self.inserts.take_starved_apart();
        for insert in dirty {
            self.feed(now, insert, out);
        }
        if self.inserts.has_starved() {
            return clean.into_iter().for_each(|i| self.inserts.starve(i));
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
        let c = match self.packing.open(partition, false) {
            Some(c) => c,
            None => self.room(now, partition, false, 0, out)?,
        };
        match self.packing.room_for_name(c) {
            Ok(has_room) => has_room.then_some(c),
            Err(weu) if self.residency.may_be_of_names(partition, weu) => self.room(now, partition, false, 0, out),
            Err(_) => None,
        }
    }

    /// The open chunk of a partition with room for one more extent, or reference if `payload_bytes` is 0.
    fn room(&mut self, now: Time, partition: u16, dirty: bool, payload_bytes: u32, out: &mut Actions) -> Option<usize> {
        match self.packing.room(partition, dirty, payload_bytes) {
            Room::Here(c) => return Some(c),
            Room::Full(c) => self.close(now, c, true, out),
            Room::Nowhere => {}
        }
        let sequence = self.packing.next_sequence();
        let weu = self.residency.open(partition, sequence, dirty)?;
        if !dirty {
            self.durability.clean_begun(weu, sequence);
        }
        Some(self.packing.begin(weu, partition, dirty))
    }

    /// Closes an open chunk and writes it. Its WEU is filled, or another chunk is begun in it.
    pub(crate) fn close(&mut self, now: Time, c: usize, full: bool, out: &mut Actions) {
        let closed = self.packing.close(c, full);
        let weu = closed.weu;
        self.residency.closed(weu, closed.header_bytes, closed.slots, closed.is_full);
        if !closed.is_dirty {
            let needs = self.unflushed(&closed);
            let counts = self.is_ready() && !self.durability.is_on_trial(weu);
            assert!(!counts || closed.is_empty, "nothing comes into a WEU that counts");
            self.durability.clean_closed(weu, needs);
        }
        self.send_chunks(now, out);
    }

    /// Volumes with extents in a chunk that the slow device may still lose: changed, and not flushed since.
    fn unflushed(&self, chunk: &Closed) -> Vec<(u16, u64)> {
        let slots: BTreeSet<u16> = chunk.volumes.iter().filter_map(|volume| self.volumes.slot(volume)).collect();
        let volume = |s: u16| (s, &self.volumes[s as usize]);
        slots.into_iter().map(volume).filter(|(_, v)| v.changes > v.flushed).map(|(s, v)| (s, v.changes)).collect()
    }

    /// Sends the writes of chunks that are closed.
    pub(crate) fn send_chunks(&mut self, now: Time, out: &mut Actions) {
        for c in 0..self.packing.len() {
            let chunk = match self.packing.send(c, now, self.stopping) {
                Sending::Nothing => continue,
                Sending::Later(at) => {
                    out.wake_at(at);
                    continue;
                }
                Sending::Now(chunk) => chunk,
            };
            let (weu, first_slot) = (chunk.weu, chunk.first_slot);
            let (whose, kind) = self.whose_chunk(&chunk);
            for (at, len, parts) in chunk.writes {
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
    fn whose_chunk(&self, chunk: &Outgoing) -> ((VolumeKey, TenantId), OwnKind) {
        match chunk.volume {
            Some(volume) if self.config.sharing == Sharing::PerVolume => {
                let kind = if chunk.is_dirty { OwnKind::Metadata } else { OwnKind::Fill };
                ((volume, TenantId::default()), kind)
            }
            _ => ((VolumeKey::POOL, TenantId::default()), OwnKind::Fill),
        }
    }

    /// Closes the open dirty chunks of some partitions, or all open chunks, that have something.
    pub(crate) fn close_open(&mut self, now: Time, of: Option<&BTreeSet<u16>>, out: &mut Actions) {
        while let Some(c) = self.packing.open_of(of) {
            // Where there is no part nothing stays open.
            let part = self.packing.part(c);
            self.close(now, c, self.residency.use_of(part).1 == 0, out);
        }
    }

    /// Closes a partition's open chunks permanently: its volume was deleted.
    pub(crate) fn close_part(&mut self, now: Time, part: u16, out: &mut Actions) {
        while let Some(c) = self.packing.open_in(part) {
            self.close(now, c, true, out);
        }
    }

    /// A part of a chunk is on the device.
    pub(crate) fn chunk_written(&mut self, now: Time, weu: u32, first_slot: u32) {
        let Some(c) = self.packing.written(weu, first_slot) else { return };
        if c.is_dirty {
            let Written { weu, part, sequence, number, slots, supersedes, .. } = c;
            return self.durability.dirty_written(Undurable { weu, sequence, part, number, slots, supersedes });
        }
        if c.is_last {
            self.durability.clean_written(now, weu);
        }
        if self.durability.has_held() {
            self.packing.pause(now, c.sent_at);
        }
    }
}
