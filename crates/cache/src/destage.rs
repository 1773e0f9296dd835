//! Writing back: what only the cache has goes to the slow device, in address order, a batch at a time (NI-M15). Each partition
//! writes back by itself: where volumes have their own parts, one doesn't wait for another.
//!
//! ```text
//!  flush of the fast device ──► a batch: read, check, unpack, write to the slow device, what adjoins as one ──► flush of the
//!     slow device ──► clean, in memory and in the journal
//! ```

use crate::config::{Mode, Planted};
use crate::format::Record;
use crate::index::{Key, Loc, set_bit};
use crate::layer::{Cache, SLOW};
use crate::read::Purpose;
use crate::request::{Pending, RETRY, join};
use crate::volumes::Volume;
use plimsoll_base::{Data, Op, Outcome, OwnKind, TenantId, Time, VolumeKey};
use plimsoll_stack::Actions;
use std::collections::BTreeSet;
use std::ops::Range;

/// Extents that adjoin, by their numbers in a batch, with the length and content of each: one request of the slow device.
type Piece = (Range<usize>, Vec<(u64, Data)>);

/// Bytes in a batch, per request at the slow device at once.
const ROUND_BYTES: u64 = 64 << 10;
/// Adjoining extents are written as one up to this: a longer request would keep others waiting.
const RUN_BYTES_MAX: u64 = 128 << 10;

/// One extent of a batch.
#[derive(Clone, Debug)]
struct Item {
    key: Key,
    /// Where it was when it was read.
    loc: Loc,
    /// It was begun.
    begun: bool,
    /// Another content was pointed at since it was begun. The same content may be back since, at the same place: then it is as
    /// the slow device has it, but the header that says so, and with which all before it is dead, is another one.
    changed: bool,
    /// What was read, until it's written.
    data: Option<Data>,
    /// Is it on the slow device now?
    written: bool,
}

/// Adjoining extents of a batch.
struct Run {
    items: Range<usize>,
    /// Reads that haven't ended; then writes.
    outstanding: u32,
}

/// See the module's documentation.
struct Batch {
    /// The flush of the fast device that it waits for before it begins.
    after: u64,
    items: Vec<Item>,
    runs: Vec<Run>,
    /// The next run to begin.
    next: usize,
    /// Runs that haven't ended; then flushes.
    outstanding: u32,
    /// It waits for a flush of the fast device before it begins, or of the slow device before it ends.
    flushing: bool,
    /// A flush of the slow device failed.
    failed: bool,
}

impl Batch {
    fn after(flush: u64) -> Batch {
        let (items, runs) = (Vec::new(), Vec::new());
        Batch { after: flush, items, runs, next: 0, outstanding: 0, flushing: true, failed: false }
    }

    fn run_of(&mut self, item: usize) -> (usize, &mut Run) {
        let at = self.runs.partition_point(|r| r.items.end <= item);
        (at, &mut self.runs[at])
    }
}

/// A partition's write-back.
#[derive(Default)]
pub(crate) struct WriteBack {
    /// So much is dirty that it goes on.
    on: bool,
    /// The next batch begins here.
    cursor: Option<Key>,
    /// Not before this.
    retry_at: Time,
    batch: Option<Batch>,
}

impl WriteBack {
    /// Is a batch under way?
    pub(crate) fn is_busy(&self) -> bool {
        self.batch.is_some()
    }
}

/// What adjoins, up to `most` extents each.
fn runs_of(items: &[Item], most: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        match runs.last_mut() {
            Some(r) if r.items.len() < most && items[i - 1].key.adjoins(item.key) => r.items.end = i + 1,
            _ => runs.push(Run { items: i..i + 1, outstanding: 0 }),
        }
    }
    runs
}

impl Cache {
    fn batch(&mut self, part: u16) -> Option<&mut Batch> {
        self.write_backs.get_mut(usize::from(part))?.batch.as_mut()
    }

    fn part_of(&self, key: Key) -> u16 {
        self.volumes[key.volume() as usize].partition
    }

    /// Should something of a partition be written back, of which so many extents are dirty, and some volumes drain?
    fn destage_wanted(&mut self, part: u16, dirty: u64, drains: bool) -> bool {
        let space = u64::from(self.index.use_of(part).1) * u64::from(self.layout.shape.weu_bytes);
        let mark = space * u64::from(self.config.watermark_percent) / 100 / self.extent_bytes();
        let w = &mut self.write_backs[usize::from(part)];
        w.on = dirty > mark || (w.on && dirty > mark / 2);
        dirty > 0 && (w.on || drains || !self.urgent(part).is_empty())
    }

    pub(crate) fn progress_destage(&mut self, now: Time, out: &mut Actions) {
        for v in &mut self.volumes {
            v.draining &= v.dirty > 0;
        }
        if self.stopping {
            return;
        }
        if self.dirty.is_empty() {
            return self.write_backs.iter_mut().for_each(|w| w.on = false);
        }
        let parts = self.partitions();
        self.write_backs.resize_with(usize::from(parts), WriteBack::default);
        let mut state = vec![(0, false); usize::from(parts)];
        for v in &self.volumes {
            let (dirty, drains) = &mut state[usize::from(v.partition)];
            *dirty += v.dirty;
            *drains |= v.drains() && v.dirty > 0;
        }
        let mut begun = false;
        for (part, (dirty, drains)) in (0..parts).zip(state) {
            let busy = self.write_backs[usize::from(part)].is_busy();
            if busy || !self.destage_wanted(part, dirty, drains) {
                continue;
            }
            let w = &mut self.write_backs[usize::from(part)];
            if now < w.retry_at {
                out.wake_at(w.retry_at);
                continue;
            }
            w.batch = Some(Batch::after(self.flushes + 1));
            self.flush_wanted = true;
            self.flush_parts.insert(part);
            begun = true;
        }
        if begun {
            self.progress_flush(now, out);
        }
    }

    /// What is dirty of a partition's volumes, from `from` on and round.
    pub(crate) fn dirty_of(&self, part: u16, from: Option<Key>) -> impl Iterator<Item = &Key> {
        let from = from.unwrap_or(Key::new(0, 0));
        let mine = move |v: &(u16, &Volume)| v.1.partition == part && v.1.dirty > 0;
        let all = move || (0..).zip(&self.volumes).filter(mine).map(|(v, _)| (Key::new(v, 0), Key::new(v + 1, 0)));
        let after = move |(first, end): (Key, Key)| self.dirty.range(first.max(from).min(end)..end);
        let before = move |(first, end): (Key, Key)| self.dirty.range(first..end.min(from).max(first));
        all().flat_map(after).chain(all().flat_map(before))
    }

    /// Where a header says that dirty `key` is at `loc`.
    fn named_at(&self, key: Key, loc: Loc) -> Loc {
        self.refs.get(&key).copied().unwrap_or(loc)
    }

    /// `key` has another content, or none: what is on its way to the slow device isn't its latest any more.
    pub(crate) fn destage_changed(&mut self, key: Key) {
        if let Some(b) = self.batch(self.part_of(key))
            && let Ok(i) = b.items.binary_search_by_key(&key, |i| i.key)
        {
            b.items[i].changed = b.items[i].begun;
        }
    }

    /// Is the header that names this place durable?
    fn is_durable(&self, place: Loc) -> bool {
        let slot = place.slot();
        self.chunk_of(place.weu(), slot).is_none()
            && !self.undurable.iter().any(|(_, weu, slots, _)| *weu == place.weu() && slots.contains(&slot))
    }

    /// The fast device was flushed for the `flush`th time, for a partition or for all: batches that waited for it begin.
    pub(crate) fn destage_after_flush(&mut self, now: Time, flush: u64, of: Option<u16>, out: &mut Actions) {
        for part in (0..self.write_backs.len() as u16).filter(|p| of.is_none_or(|of| of == *p)) {
            let waits = |b: &mut Batch| b.flushing && b.items.is_empty() && b.after <= flush;
            if self.batch(part).is_some_and(waits) {
                self.begin_batch(now, part, out);
            }
        }
    }

    fn begin_batch(&mut self, now: Time, part: u16, out: &mut Actions) {
        let items = self.choose(part);
        let runs = runs_of(&items, (RUN_BYTES_MAX / self.extent_bytes()).max(1) as usize);
        let w = &mut self.write_backs[usize::from(part)];
        if items.is_empty() {
            // All of it is being written again, or its volumes aren't known yet: later.
            (w.batch, w.retry_at) = (None, now + RETRY);
            return out.wake_at(w.retry_at);
        }
        self.destaging.extend(items.iter().map(|i| i.key));
        let b = w.batch.as_mut().expect("it waited for this");
        (b.flushing, b.items, b.runs) = (false, items, runs);
        self.destage_more(now, part, out);
    }

    /// What goes next: what evictions wait for, then the rest, in address order from where the last batch ended.
    fn choose(&mut self, part: u16) -> Vec<Item> {
        let depth = u64::from(self.config.write_back_depth.max(1));
        let most = (depth * ROUND_BYTES / self.extent_bytes()).max(depth) as usize;
        let w = &self.write_backs[usize::from(part)];
        let (on, from) = (w.on, w.cursor.unwrap_or(Key::new(0, 0)));
        let urgent = self.urgent(part);
        let drains = |k: &Key| self.volumes[k.volume() as usize].drains();
        let rest = self.dirty_of(part, Some(from)).filter(|k| on || drains(k));
        let (mut items, mut chosen, mut cursor): (Vec<Item>, _, _) = (Vec::new(), BTreeSet::new(), w.cursor);
        for (i, key) in urgent.iter().chain(rest).enumerate() {
            if items.len() >= most {
                break;
            }
            let Some(loc) = self.index.look(*key) else { continue };
            let own = self.named_at(*key, loc);
            let announced = self.volumes[key.volume() as usize].config.is_some();
            let readable = !self.bad.contains(&(loc.weu(), loc.at_bytes()));
            if announced && readable && self.is_durable(own) && chosen.insert(*key) {
                items.push(Item { key: *key, loc, begun: false, changed: false, data: None, written: false });
                if i >= urgent.len() {
                    cursor = Some(*key);
                }
            }
        }
        self.write_backs[usize::from(part)].cursor = cursor;
        items.sort_unstable_by_key(|i| i.key);
        items
    }

    fn destage_more(&mut self, now: Time, part: u16, out: &mut Actions) {
        let depth = self.config.write_back_depth.max(1);
        while let Some(b) = self.batch(part)
            && b.next < b.runs.len()
            && b.outstanding < depth
        {
            let at = b.next;
            (b.next, b.outstanding) = (at + 1, b.outstanding + 1);
            self.read_for_run(now, part, at, out);
        }
        let Some(b) = self.batch(part) else { return };
        if b.outstanding == 0 && b.next == b.runs.len() && !b.flushing {
            b.flushing = true;
            if self.planted(Planted::CleanBeforeFlush) {
                return self.destage_over(now, part, true, out);
            }
            self.flush_slow(now, part, out);
        }
    }

    /// Reads a run's extents, but for those that went with their volume or were written again: they are in a later batch.
    fn read_for_run(&mut self, now: Time, part: u16, at: usize, out: &mut Actions) {
        let items = self.batch(part).expect("it has this run").runs[at].items.clone();
        for i in items {
            let key = self.batch(part).expect("just seen").items[i].key;
            let (tenant, priority) = self.background_of(key);
            let fetch = self.whole_fetch(key, Purpose::Destage { part, at: i }, tenant, priority);
            let Some(loc) = fetch.loc else { continue };
            if !self.dirty.contains(&key) || !self.is_durable(self.named_at(key, loc)) {
                continue;
            }
            let b = self.batch(part).expect("just seen");
            (b.items[i].loc, b.items[i].begun) = (loc, true);
            b.runs[at].outstanding += 1;
            self.fetch(now, fetch, out);
        }
        let b = self.batch(part).expect("just seen");
        if b.runs[at].outstanding == 0 {
            b.outstanding -= 1;
        }
    }

    /// Flushes the slow device for each volume of the batch.
    fn flush_slow(&mut self, now: Time, part: u16, out: &mut Actions) {
        let b = self.write_backs[usize::from(part)].batch.as_ref().expect("a batch is under way");
        let volumes = &self.volumes;
        let mut whose: Vec<VolumeKey> =
            b.items.iter().filter(|i| i.written).map(|i| volumes[i.key.volume() as usize].key).collect();
        whose.dedup(); // they are in the order of their keys
        whose.retain(|v| self.by_key.contains_key(v));
        self.batch(part).expect("just seen").outstanding = whose.len() as u32;
        if whose.is_empty() {
            return self.destage_over(now, part, false, out);
        }
        for volume in whose {
            let (what, whose) = ((Op::Flush, OwnKind::WriteBack), (volume, TenantId::default()));
            let pending = Pending::DestageFlush { part };
            self.send_own(now, SLOW, what, whose, (0, 0), Data::Absent, pending, out);
        }
    }

    pub(crate) fn destage_fetched(&mut self, now: Time, part: u16, at: usize, data: Option<Data>, out: &mut Actions) {
        let Some(b) = self.batch(part) else { return };
        b.items[at].data = data;
        let (run, r) = b.run_of(at);
        r.outstanding -= 1;
        if r.outstanding == 0 {
            self.write_run(now, part, run, out);
        }
    }

    /// Writes what was read of a run, what adjoins as one.
    fn write_run(&mut self, now: Time, part: u16, run: usize, out: &mut Actions) {
        let (ready, e) = (self.is_ready(), self.extent_bytes());
        let dirty = &self.dirty;
        let Some(b) = self.write_backs.get_mut(usize::from(part)).and_then(|w| w.batch.as_mut()) else { return };
        let mut pieces: Vec<Piece> = Vec::new();
        for i in b.runs[run].items.clone() {
            let item = &mut b.items[i];
            let Some(data) = item.data.take().filter(|_| ready && dirty.contains(&item.key)) else { continue };
            match pieces.last_mut() {
                Some((at, parts)) if at.end == i => {
                    at.end = i + 1;
                    parts.push((e, data));
                }
                _ => pieces.push((i..i + 1, vec![(e, data)])),
            }
        }
        b.runs[run].outstanding = pieces.len() as u32;
        if pieces.is_empty() {
            return self.run_over(now, part, out);
        }
        for (at, parts) in pieces {
            let key = self.batch(part).expect("just seen").items[at.start].key;
            let whose = (self.volumes[key.volume() as usize].key, self.background_of(key).0);
            let range = (key.extent() * e, at.len() as u64 * e);
            let pending = Pending::Destage { part, first: at.start, count: at.len() };
            self.send_own(now, SLOW, (Op::Write, OwnKind::WriteBack), whose, range, join(parts), pending, out);
        }
    }

    pub(crate) fn destage_written(
        &mut self,
        now: Time,
        part: u16,
        items: Range<usize>,
        outcome: Outcome,
        out: &mut Actions,
    ) {
        let w = &mut self.write_backs[usize::from(part)];
        if !outcome.is_done() {
            w.retry_at = now + RETRY;
        }
        let Some(b) = &mut w.batch else { return };
        for i in items.clone() {
            self.recipes.changed(b.items[i].key);
            b.items[i].written = outcome.is_done();
        }
        let (_, r) = b.run_of(items.start);
        r.outstanding -= 1;
        if r.outstanding == 0 {
            self.run_over(now, part, out);
        }
    }

    fn run_over(&mut self, now: Time, part: u16, out: &mut Actions) {
        self.batch(part).expect("it has a run").outstanding -= 1;
        self.destage_more(now, part, out);
    }

    /// The slow device has one volume's part of the batch for good, or not.
    pub(crate) fn destage_flushed(&mut self, now: Time, part: u16, outcome: Outcome, out: &mut Actions) {
        let w = &mut self.write_backs[usize::from(part)];
        let Some(b) = &mut w.batch else { return };
        b.outstanding -= 1;
        b.failed |= !outcome.is_done();
        let (left, failed) = (b.outstanding, b.failed);
        if failed {
            w.retry_at = now + RETRY;
        }
        if left == 0 {
            self.destage_over(now, part, !failed, out);
        }
    }

    /// A batch is over: what the slow device has for good is clean.
    fn destage_over(&mut self, now: Time, part: u16, flushed: bool, out: &mut Actions) {
        let b = self.write_backs[usize::from(part)].batch.take().expect("a batch is under way");
        for i in b.items {
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
        let own = self.refs.get(&key).copied();
        if self.undirty(key)
            && let Some(r) = own
        {
            // As a clean duplicate it stays named.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight extents of a file that were written one by one are one request; neither another volume's nor too many join it.
    #[test]
    fn what_adjoins_is_one_run() {
        let keys = [(1, 4), (1, 5), (1, 6), (1, 8), (1, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14)];
        let item = |(v, n): (u16, u64)| {
            let loc = Loc::new(0, 0, 1, 0);
            Item { key: Key::new(v, n), loc, begun: false, changed: false, data: None, written: false }
        };
        let items = keys.map(item);
        let runs: Vec<_> = runs_of(&items, 4).into_iter().map(|r| r.items).collect();
        assert_eq!(runs, [0..3, 3..5, 5..9, 9..10]);
    }
}
