//! Writing back: what only the cache has goes to the slow device, in address order, a batch at a time (NI-M15).
//!
//! ```text
//!  flush of the fast device ──► a batch: read, check, unpack, write to the slow device ──► flush of the slow device
//!     ──► clean, in memory and in the journal
//! ```

use crate::config::{Mode, Planted};
use crate::format::Record;
use crate::index::{Key, Loc, set_bit};
use crate::layer::{Cache, SLOW};
use crate::read::Purpose;
use crate::request::{Pending, RETRY};
use plimsoll_base::{Data, Op, Outcome, OwnKind, TenantId, Time, VolumeKey};
use plimsoll_stack::Actions;

/// Extents in a batch, per request at the slow device at once.
const ROUNDS: u32 = 8;

/// One extent of a batch.
#[derive(Clone, Copy, Debug)]
struct Item {
    key: Key,
    /// Where it was when it was read.
    loc: Loc,
    /// It was begun.
    begun: bool,
    /// Another content was pointed at since it was begun. The same content may be back since, at the same place: then it is as
    /// the slow device has it, but the header that says so, and with which all before it is dead, is another one.
    changed: bool,
    /// Is it on the slow device now?
    written: bool,
}

/// A batch.
pub(crate) struct Destage {
    items: Vec<Item>,
    /// The next to begin.
    next: usize,
    outstanding: u32,
    /// It waits for a flush of the fast device before it begins, or of the slow device before it ends.
    flushing: bool,
    /// A flush of the slow device failed.
    failed: bool,
}

impl Cache {
    /// Should something be written back?
    fn destage_wanted(&mut self) -> bool {
        let e = self.extent_bytes();
        let space = u64::from(self.config.weus_max.min(self.layout.weus)) * u64::from(self.layout.shape.weu_bytes);
        let mark = space * u64::from(self.config.watermark_percent) / 100 / e;
        let dirty = self.dirty.len() as u64;
        self.destage_on = dirty > mark || (self.destage_on && dirty > mark / 2);
        let draining = self.volumes.iter().any(|v| v.drains() && v.dirty > 0);
        dirty > 0 && (self.destage_on || draining || !self.urgent().is_empty())
    }

    pub(crate) fn progress_destage(&mut self, now: Time, out: &mut Actions) {
        for v in &mut self.volumes {
            v.draining &= v.dirty > 0;
        }
        if self.stopping || self.destage.is_some() || !self.destage_wanted() {
            return;
        }
        if now < self.destage_retry_at {
            return out.wake_at(self.destage_retry_at);
        }
        self.destage = Some(Destage { items: Vec::new(), next: 0, outstanding: 0, flushing: true, failed: false });
        self.flush_wanted = true;
        self.progress_flush(now, out);
    }

    /// Where a header says that dirty `key` is at `loc`.
    fn named_at(&self, key: Key, loc: Loc) -> Loc {
        self.refs.get(&key).copied().unwrap_or(loc)
    }

    /// `key` has another content, or none: what is on its way to the slow device isn't its latest any more.
    pub(crate) fn destage_changed(&mut self, key: Key) {
        if let Some(d) = &mut self.destage
            && let Ok(i) = d.items.binary_search_by_key(&key, |i| i.key)
        {
            d.items[i].changed = d.items[i].begun;
        }
    }

    /// Is the header that names this place durable?
    fn is_durable(&self, place: Loc) -> bool {
        let slot = place.slot();
        self.chunk_of(place.weu(), slot).is_none()
            && !self.undurable.iter().any(|(_, weu, slots, _)| *weu == place.weu() && slots.contains(&slot))
    }

    /// The fast device was flushed: a batch that waited for it begins.
    pub(crate) fn destage_after_flush(&mut self, now: Time, out: &mut Actions) {
        let Some(d) = &self.destage else { return };
        if !d.flushing || !d.items.is_empty() {
            return;
        }
        let keys = self.choose();
        let d = self.destage.as_mut().expect("just seen");
        d.flushing = false;
        d.items = keys;
        if d.items.is_empty() {
            // All of it is being written again, or its volumes aren't known yet: later.
            self.destage = None;
            self.destage_retry_at = now + RETRY;
            return out.wake_at(self.destage_retry_at);
        }
        for i in &self.destage.as_ref().expect("just seen").items {
            self.destaging.insert(i.key);
        }
        self.destage_more(now, out);
    }

    /// What goes next: what evictions wait for, then the rest, in address order from where the last batch ended.
    fn choose(&mut self) -> Vec<Item> {
        let most = (self.config.write_back_depth * ROUNDS).max(1) as usize;
        let urgent = self.urgent();
        let drains = |k: &Key| self.volumes[k.volume() as usize].drains();
        let after = self.dirty.range(self.destage_cursor..).chain(self.dirty.range(..self.destage_cursor));
        let rest = after.filter(|k| self.destage_on || drains(k));
        let mut items: Vec<Item> = Vec::new();
        let mut cursor = self.destage_cursor;
        for (i, key) in urgent.iter().chain(rest).enumerate() {
            if items.len() >= most {
                break;
            }
            let Some(loc) = self.index.look(*key) else { continue };
            let own = self.named_at(*key, loc);
            let announced = self.volumes[key.volume() as usize].config.is_some();
            let readable = !self.bad.contains(&(loc.weu(), loc.at_bytes()));
            let free = items.iter().all(|it| it.key != *key);
            if free && announced && readable && self.is_durable(own) {
                items.push(Item { key: *key, loc, begun: false, changed: false, written: false });
                if i >= urgent.len() {
                    cursor = *key;
                }
            }
        }
        self.destage_cursor = cursor;
        items.sort_unstable_by_key(|i| i.key);
        items
    }

    fn destage_more(&mut self, now: Time, out: &mut Actions) {
        loop {
            let Some(d) = &mut self.destage else { return };
            if d.next == d.items.len() || d.outstanding >= self.config.write_back_depth.max(1) {
                break;
            }
            let at = d.next;
            (d.next, d.outstanding) = (at + 1, d.outstanding + 1);
            let key = d.items[at].key;
            let (tenant, priority) = self.background_of(key);
            let mut fetch = self.whole_fetch(key, Purpose::Destage { at }, tenant, priority);
            match fetch.loc.take() {
                Some(loc) if self.dirty.contains(&key) && self.is_durable(self.named_at(key, loc)) => {
                    let item = &mut self.destage.as_mut().expect("just seen").items[at];
                    (item.loc, item.begun) = (loc, true);
                    fetch.loc = Some(loc);
                    self.fetch(now, fetch, out);
                }
                _ => self.destage_ended(now, out), // it went with its volume, or it was written again: in a later batch
            }
        }
        let d = self.destage.as_mut().expect("just seen");
        if d.outstanding == 0 && d.next == d.items.len() && !d.flushing {
            d.flushing = true;
            if self.planted(Planted::CleanBeforeFlush) {
                return self.destage_over(now, true, out);
            }
            self.flush_slow(now, out);
        }
    }

    /// Flushes the slow device for each volume of the batch.
    fn flush_slow(&mut self, now: Time, out: &mut Actions) {
        let d = self.destage.as_mut().expect("a batch is under way");
        let volumes = &self.volumes;
        let mut whose: Vec<VolumeKey> =
            d.items.iter().filter(|i| i.written).map(|i| volumes[i.key.volume() as usize].key).collect();
        whose.dedup(); // they are in the order of their keys
        whose.retain(|v| self.by_key.contains_key(v));
        d.outstanding = whose.len() as u32;
        if whose.is_empty() {
            return self.destage_over(now, false, out);
        }
        for volume in whose {
            let (what, whose) = ((Op::Flush, OwnKind::WriteBack), (volume, TenantId::default()));
            self.send_own(now, SLOW, what, whose, (0, 0), Data::Absent, Pending::DestageFlush, out);
        }
    }

    pub(crate) fn destage_fetched(&mut self, now: Time, at: usize, data: Option<Data>, out: &mut Actions) {
        let Some(d) = &self.destage else { return };
        let key = d.items[at].key;
        let (Some(data), true) = (data, self.is_ready() && self.dirty.contains(&key)) else {
            return self.destage_ended(now, out);
        };
        let v = &self.volumes[key.volume() as usize];
        let whose = (v.key, self.background_of(key).0);
        let e = self.extent_bytes();
        let range = (key.extent() * e, e);
        self.send_own(now, SLOW, (Op::Write, OwnKind::WriteBack), whose, range, data, Pending::Destage { at }, out);
    }

    pub(crate) fn destage_written(&mut self, now: Time, at: usize, outcome: Outcome, out: &mut Actions) {
        if let Some(d) = &mut self.destage {
            self.recipes.changed(d.items[at].key);
            d.items[at].written = outcome.is_done();
            if !outcome.is_done() {
                self.destage_retry_at = now + RETRY;
            }
        }
        self.destage_ended(now, out);
    }

    fn destage_ended(&mut self, now: Time, out: &mut Actions) {
        if let Some(d) = &mut self.destage {
            d.outstanding -= 1;
            self.destage_more(now, out);
        }
    }

    /// The slow device has one volume's part of the batch for good, or not.
    pub(crate) fn destage_flushed(&mut self, now: Time, outcome: Outcome, out: &mut Actions) {
        let Some(d) = &mut self.destage else { return };
        d.outstanding -= 1;
        d.failed |= !outcome.is_done();
        let (left, failed) = (d.outstanding, d.failed);
        if failed {
            self.destage_retry_at = now + RETRY;
        }
        if left == 0 {
            self.destage_over(now, !failed, out);
        }
    }

    /// A batch is over: what the slow device has for good is clean.
    fn destage_over(&mut self, now: Time, flushed: bool, out: &mut Actions) {
        let d = self.destage.take().expect("a batch is under way");
        for i in d.items {
            self.destaging.remove(&i.key);
            if i.written && flushed && !i.changed && self.dirty.contains(&i.key) {
                assert!(
                    self.is_durable(self.named_at(i.key, i.loc)),
                    "what it supersedes is dead in the journal before"
                );
                self.clean(i.key, i.loc);
            }
        }
        self.retry_waiting(now, out);
    }

    /// The slow device has what the cache has of `key`.
    fn clean(&mut self, key: Key, loc: Loc) {
        self.undirty(key);
        let own = self.refs.remove(&key);
        if let Some(r) = own {
            self.unpin(r.weu());
        }
        self.index.set(key, loc.dirty(false));
        self.counters.written_back += 1;
        let place = own.unwrap_or(loc);
        let w = self.index.weu_mut(place.weu());
        if (own.is_some() || !loc.is_dup()) && set_bit(&mut w.cleaned, place.slot()) {
            let sequence = w.sequence;
            self.journal.push(Record::Cleaned { weu: place.weu(), sequence, slot: place.slot() });
        }
    }

    /// Do all requests of this volume find on the slow device what they should?
    pub fn is_written_back(&self, volume: VolumeKey) -> bool {
        let slot = self.by_key.get(&volume);
        slot.is_none_or(|s| {
            let v = &self.volumes[*s as usize];
            v.dirty == 0 && v.config.is_none_or(|c| c.mode != Mode::Back)
        })
    }
}
