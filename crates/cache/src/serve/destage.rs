//! Write-back: dirty extents are written to the slow device, in address order, a batch at a time (NI-M15). Each partition writes back
//! by itself. Where volumes have their own parts, one volume's write-back doesn't wait for another's.
//!
//! ```text
//!  a batch of extents that are durable on the fast device (which is flushed first if there are few), as the journal says durably, too:
//!     read, check, unpack, write to the slow device, adjoining extents as one ──► flush of the slow device ──► clean, in memory and in the journal
//! ```
//! The next batch is twice as large if a batch's flush took longer than half of its writes' time. It is half as large if the flush took
//! less than an eighth. A write that the slow device refuses is tried again at once, each extent alone, then every second, while the
//! others go on ([`super::refused`]).

use crate::batch::{Batch, DirtyPart, Item, Piece, WaitsFor, WriteBack, runs_of};
use crate::config::{Mode, Planted};
use crate::fetch::Purpose;
use crate::index::{Key, Loc};
use crate::refusals::Tally;
use crate::request::{Pending, RETRY, join};
use crate::serve::{Cache, SLOW};
use crate::state::Bypassed;
use plimsoll_base::{Data, IoError, Op, Outcome, OwnKind, TenantId, Time, VolumeKey};
use plimsoll_stack::Actions;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes in a batch at first, per request at the slow device at once ...
const ROUND_BYTES: u64 = 64 << 10;
/// ... and at most.
const BATCH_BYTES_MAX: u64 = 16 << 20;
/// Adjoining extents are written as one up to this: a longer request would keep others waiting.
const RUN_BYTES_MAX: u64 = 128 << 10;

impl Cache {
    fn batch(&mut self, part: u16) -> Option<&mut Batch> {
        self.write_backs.get_mut(usize::from(part))?.batch.as_mut()
    }

    pub(crate) fn write_back_of(&mut self, part: u16) -> &mut WriteBack {
        if self.write_backs.len() <= usize::from(part) {
            self.write_backs.resize_with(usize::from(part) + 1, WriteBack::default);
        }
        &mut self.write_backs[usize::from(part)]
    }

    fn part_of(&self, key: Key) -> u16 {
        self.volumes[key.volume() as usize].partition
    }

    /// Extents of the smallest and of the largest batch.
    fn batch_bounds(&self) -> (usize, usize) {
        let depth = u64::from(self.config.write_back_depth.max(1));
        let least = (depth * ROUND_BYTES / self.extent_bytes()).max(depth);
        (least as usize, (BATCH_BYTES_MAX / self.extent_bytes()).max(least) as usize)
    }

    /// True if something of a partition should be written back, which has `dirty` dirty extents; `drains`: some of its volumes drain.
    fn destage_wanted(&mut self, now: Time, part: u16, dirty: u64, drains: bool) -> bool {
        let space = u64::from(self.residency.use_of(part).1) * u64::from(self.layout.shape.weu_bytes);
        let mark = space * u64::from(self.config.watermark_percent) / 100 / self.extent_bytes();
        let w = &mut self.write_backs[usize::from(part)];
        w.on = dirty > mark || (w.on && dirty > mark / 2);
        let on = w.on;
        let leisure = !self.stopping && (on || drains || self.has_probes(part));
        leisure || ((!self.stopping || self.inserts.has_starved()) && self.is_urgent(now, part))
    }

    pub(crate) fn progress_destage(&mut self, now: Time, out: &mut Actions) {
        if self.dirty.is_empty() {
            return self.write_backs.iter_mut().for_each(|w| w.on = false);
        }
        let mut parts = std::mem::take(&mut self.dirty_parts);
        parts.extend(self.dirty.volumes().map(|slot| {
            let v = &self.volumes[slot as usize];
            DirtyPart { part: v.partition, dirty: v.dirty, drains: v.drains() }
        }));
        parts.sort_unstable_by_key(|p| p.part);
        parts.dedup_by(|from, into| {
            let same = from.part == into.part;
            if same {
                (into.dirty, into.drains) = (into.dirty + from.dirty, into.drains | from.drains);
            }
            same
        });
        for DirtyPart { part, dirty, drains } in parts.drain(..) {
            let w = self.write_back_of(part);
            let retry_at = w.retry_at;
            if w.is_busy() || w.waits.is_some() {
                continue;
            }
            // A client waits for the outcome of what is asked.
            let asked = self.asked(part).next().is_some();
            if now < retry_at && !asked {
                out.wake_at(retry_at);
                continue;
            }
            if self.destage_wanted(now, part, dirty, drains) || asked {
                self.begin_batch(now, part, false, out);
            }
        }
        self.dirty_parts = parts;
    }

    /// Dirty extents of a partition's volumes that aren't halted, from `from` on and round.
    fn dirty_of(&self, part: u16, from: Key) -> impl Iterator<Item = Key> {
        let all = move || {
            let is_mine = move |v: &u16| self.volumes[*v as usize].partition == part && !self.is_halted(*v);
            let mine = self.dirty.volumes().filter(is_mine);
            mine.map(|v| (Key::new(v, 0), Key::new(v + 1, 0)))
        };
        let after = all().flat_map(move |(first, end)| self.dirty.range(first.max(from).min(end), end));
        let before = all().flat_map(move |(first, end)| self.dirty.range(first, end.min(from).max(first)));
        after.chain(before)
    }

    /// `key` has another content, or none: what is on its way to the slow device isn't its latest any more.
    pub(crate) fn destage_changed(&mut self, key: Key) {
        if let Some(b) = self.batch(self.part_of(key))
            && let Ok(i) = b.items.binary_search_by_key(&key, |i| i.key)
        {
            b.items[i].changed = b.items[i].begun;
        }
    }

    /// True if the header that names this place is durable.
    fn is_durable(&self, place: Loc) -> bool {
        !self.packing.has(place) && self.durability.is_covered(place)
    }

    /// The fast device was flushed for the `flush`th time, for a partition or for all: batches that waited for it begin, or wait until
    /// the journal has a record of what is durable now.
    pub(crate) fn destage_after_flush(&mut self, now: Time, flush: u64, of: Option<u16>, out: &mut Actions) {
        let saying = self.durability.saying().filter(|_| !self.planted(Planted::WriteBackUnsaid));
        for part in (0..self.write_backs.len() as u16).filter(|p| of.is_none_or(|of| of == *p)) {
            let w = &mut self.write_backs[usize::from(part)];
            if matches!(w.waits, Some(WaitsFor::Flush(f)) if f <= flush) {
                w.waits = saying.map(WaitsFor::Record);
                if saying.is_none() {
                    self.begin_batch(now, part, true, out);
                }
            }
        }
    }

    /// The journal is durable up to this record: batches that waited for it begin.
    pub(crate) fn destage_after_record(&mut self, now: Time, durable: u64, out: &mut Actions) {
        if !self.is_ready() {
            return;
        }
        for part in 0..self.write_backs.len() as u16 {
            let w = &mut self.write_backs[usize::from(part)];
            if matches!(w.waits, Some(WaitsFor::Record(n)) if n <= durable) {
                w.waits = None;
                self.begin_batch(now, part, true, out);
            }
        }
    }

    /// Begins a batch of what a start would find, whatever is corrupt by then. If that is little it waits for a flush of the fast device,
    /// and for the journal's record of it, if there hasn't been one just now.
    fn begin_batch(&mut self, now: Time, part: u16, flushed: bool, out: &mut Actions) {
        let (items, unflushed, unsaid, most) = self.choose(now, part);
        if items.is_empty() || (!flushed && items.len() < most / 2) {
            if unflushed {
                let flush = self.durability.want_flush([part]);
                self.write_backs[usize::from(part)].waits = Some(WaitsFor::Flush(flush));
                return self.progress_flush(now, out);
            }
            if let Some(record) = self.durability.saying().filter(|_| unsaid) {
                self.write_backs[usize::from(part)].waits = Some(WaitsFor::Record(record));
                return;
            }
        }
        if items.is_empty() {
            // All of it was refused, or can't be read, or its volumes aren't known: a client's change, an announcement or time
            // may help.
            let at = now + RETRY;
            self.write_backs[usize::from(part)].retry_at = at;
            return out.wake_at(at);
        }
        self.destaging.extend(items.iter().map(|i| i.key));
        let runs = runs_of(&items, (RUN_BYTES_MAX / self.extent_bytes()).max(1) as usize);
        self.write_backs[usize::from(part)].batch = Some(Batch::of(now, items, runs));
        self.destage_more(now, part, out);
    }

    /// Chooses the next batch: a few extents that were refused before, those that evictions wait for, then the rest, in address order from
    /// the end of the last batch. Nothing else of halted volumes.
    /// Returns them, whether there are more that aren't durable yet, or that the journal has no record of, and the most that a batch may
    /// have.
    fn choose(&mut self, now: Time, part: u16) -> (Vec<Item>, bool, bool, usize) {
        let bounds = self.batch_bounds();
        let w = &self.write_backs[usize::from(part)];
        let most = w.most.clamp(bounds.0, bounds.1);
        let (on, from) = (w.on && !self.stopping, w.cursor.unwrap_or(Key::new(0, 0)));
        let asked = self.asked(part).take(most.div_ceil(2));
        let probes = self.probes(now, part, most.div_ceil(4));
        let first: Vec<Key> = asked.chain(probes).collect();
        let urgent: BTreeSet<Key> = self.urgent(part).filter(|k| !self.is_halted(k.volume())).collect();
        let before_rest = first.len() + urgent.len();
        let drains = |k: &Key| !self.stopping && self.volumes[k.volume() as usize].drains();
        let rest = self.dirty_of(part, from).filter(|k| on || drains(k));
        let (mut items, mut chosen, mut cursor): (Vec<Item>, _, _) = (Vec::new(), BTreeSet::new(), w.cursor);
        let (mut held, mut unflushed, mut unsaid) = (Vec::new(), false, false);
        for (i, key) in first.iter().copied().chain(urgent).chain(rest).enumerate() {
            if items.len() >= most {
                break;
            }
            let Some(loc) = self.residency.look(key) else { continue };
            let announced = self.volumes[key.volume() as usize].config.is_some();
            if !announced || self.dirty.is_lost(key) || self.residency.is_bad(loc) {
                held.push(key);
            } else if self.dirty.is_held(key, now) || chosen.contains(&key) {
                continue;
            } else if !self.is_durable(self.residency.named_at(key, loc)) {
                unflushed = true;
            } else if !self.durability.is_said(self.residency.named_at(key, loc)) {
                unsaid = true;
            } else {
                chosen.insert(key);
                items.push(Item::new(key, loc, self.dirty.is_alone(key), self.dirty.is_refused(&key)));
                if i >= before_rest {
                    cursor = Some(key);
                }
            }
        }
        held.into_iter().for_each(|k| self.dirty.hold(k, Time::NEVER));
        items.iter().for_each(|i| self.dirty.release(i.key));
        first.into_iter().filter(|k| chosen.contains(k)).for_each(|k| self.probed(k));
        let w = &mut self.write_backs[usize::from(part)];
        (w.cursor, w.most) = (cursor, most);
        items.sort_unstable_by_key(|i| i.key);
        (items, unflushed, unsaid, most)
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
            (b.flushing, b.flush_at) = (true, now);
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
            let named_at = self.residency.named_at(key, loc);
            if !self.dirty.contains(&key) || !self.is_durable(named_at) || !self.durability.is_said(named_at) {
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
        whose.retain(|v| self.volumes.slot(v).is_some());
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
        let Some(b) = self.write_backs.get_mut(usize::from(part)).and_then(|w| w.batch.as_mut()) else { return };
        for i in items.clone() {
            let key = b.items[i].key;
            self.recipes.changed(key);
            b.items[i].written = outcome.is_done();
            if let Outcome::Failed(error) = outcome {
                b.refused = true;
                match items.len() {
                    1 => b.items[i].refused = Some(error),
                    _ => self.dirty.set_alone(key),
                }
            }
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

    /// The flush of one volume's part of the batch has ended: the slow device has it durably, or not.
    pub(crate) fn destage_flushed(&mut self, now: Time, part: u16, outcome: Outcome, out: &mut Actions) {
        let w = &mut self.write_backs[usize::from(part)];
        let Some(b) = &mut w.batch else { return };
        b.outstanding -= 1;
        b.failed |= !outcome.is_done();
        if let Outcome::Failed(error) = outcome {
            b.error = Some(error);
        }
        let (left, failed) = (b.outstanding, b.failed);
        if failed {
            w.retry_at = now + RETRY;
        }
        if left == 0 {
            self.destage_over(now, part, !failed, out);
        }
    }

    /// A batch is over: extents that the slow device has durably are clean. Not if the fast device has failed: no journal could
    /// record it for the next start, which trusts the cache's content.
    fn destage_over(&mut self, now: Time, part: u16, flushed: bool, out: &mut Actions) {
        let bounds = self.batch_bounds();
        let ready = self.is_ready() || self.planted(Planted::CleanWhenBroken);
        let w = &mut self.write_backs[usize::from(part)];
        let b = w.batch.take().expect("a batch is under way");
        w.resize(&b, now, bounds);
        if b.refused && !b.items.iter().any(|i| i.written) {
            self.give_up_waiting(now, out);
        }
        let mut tallies: BTreeMap<u16, Tally> = BTreeMap::new();
        let unflushed = (!flushed).then_some(b.error.unwrap_or(IoError::FlushFailed));
        for i in b.items {
            self.destaging.remove(&i.key);
            let tally = tallies.entry(i.key.volume()).or_default();
            let error = i.refused.or(unflushed.filter(|_| i.written));
            if let Some(error) = error.filter(|_| ready) {
                (tally.refused, tally.error) = (tally.refused + usize::from(!i.again), Some(error));
                self.dirty.hold(i.key, now + RETRY);
            }
            if !(i.written && flushed && ready) {
                continue;
            }
            tally.written += 1;
            self.dirty.mark_written_back(&i.key);
            if !i.changed && self.dirty.contains(&i.key) {
                assert!(
                    self.is_durable(self.residency.named_at(i.key, i.loc)),
                    "what it supersedes is dead in the journal before"
                );
                self.clean(i.key);
            }
        }
        self.batch_tallied(now, tallies, bounds.0);
        for io in self.state.bypassed_mut().map(Bypassed::write_back_over).unwrap_or_default() {
            self.route(now, io, out);
        }
        if self.flush_asked && self.dirty.wanted() == 0 {
            self.flush_asked = false;
            // Those that aren't write-back any more drain in any case.
            self.volumes.iter_mut().for_each(|v| v.draining = false);
        }
    }

    /// The slow device takes nothing: while the pool ends, who waits for room waits no longer.
    fn give_up_waiting(&mut self, now: Time, out: &mut Actions) {
        if self.stopping {
            for insert in self.inserts.take_starved() {
                self.insert_failed(now, insert, out);
            }
        }
    }

    /// The slow device has what the cache has of `key`.
    fn clean(&mut self, key: Key) {
        self.mark_clean(key);
        self.counters.written_back += 1;
        if let Some(named) = self.residency.clean(key) {
            self.durability.cleaned(&mut self.residency.bits(), named);
        }
        self.dirty.cleaned(key, self.durability.last_record());
    }

    /// True if all requests of this volume find the right content on the slow device, also if the cache is never seen again, and if a
    /// cache that is seen again knows that.
    pub fn is_written_back(&self, volume: VolumeKey) -> bool {
        let Some(slot) = self.volumes.slot(&volume) else { return false };
        let v = &self.volumes[slot as usize];
        let through = v.config.is_some_and(|c| c.mode != Mode::Back);
        self.is_ready() && through && v.dirty == 0 && !self.gate.is_changing(slot) && !self.dirty.is_cleaning(slot)
    }
}
