//! Write-back that the slow device refuses: the volumes that have such extents, the next tries, and the changes for which there is no room
//! because of it.
//!
//! ```text
//!  no room for a dirty extent, and none comes before write-back works again:
//!     the extent isn't dirty yet ──► through to the slow device, whose outcome is the change's
//!     it is, and was refused     ──► the change fails with that error; what was acknowledged before stays
//!     it is, and wasn't tried    ──► it is written back now, then it is one of the other two
//! ```
//! A volume is *halted* while nothing of it can be written. Then only a few of its extents are tried every second, so that
//! those of other volumes are written back meanwhile.

use crate::config::Planted;
use crate::index::Key;
use crate::refusals::{Diverted, Due, Tally};
use crate::residency::Evict;
use crate::serve::Cache;
use crate::status::WriteBackFails;
use plimsoll_base::{IoError, Time};
use plimsoll_stack::Actions;
use std::collections::BTreeMap;

/// Extents of a volume that are tried at a time, beside those that are written back anyhow.
const PROBES: usize = 8;

impl Cache {
    /// True if something dirty can't be written back for now.
    fn is_anything_refused(&self) -> bool {
        !self.refusals.is_empty() || self.dirty.is_any_held()
    }

    /// True if only a few extents of a volume are tried.
    pub(crate) fn is_halted(&self, slot: u16) -> bool {
        self.refusals.is_halted(slot)
    }

    /// True if a WEU has a dirty extent of a halted volume.
    pub(crate) fn is_halted_in(&self, weu: u32) -> bool {
        !self.refusals.is_empty() && self.dirty.in_weu(weu).any(|k| self.is_halted(k.volume()))
    }

    /// A batch has ended, with this outcome for each of its volumes; `least` is the size of the smallest batch.
    pub(crate) fn batch_tallied(&mut self, now: Time, tallies: BTreeMap<u16, Tally>, least: usize) {
        if tallies.values().any(|t| t.written > 0) {
            self.may_have_room();
        }
        for (slot, tally) in tallies {
            let is_any_refused = self.dirty.refused_of(slot).next().is_some();
            self.refusals.tallied(now, slot, &tally, least, is_any_refused);
        }
    }

    /// Volumes without dirty extents have nothing that could be refused.
    pub(crate) fn forget_refusals(&mut self) {
        let volumes = &self.volumes;
        self.refusals.retain(|slot| volumes[usize::from(slot)].dirty > 0);
    }

    /// True if refused extents of a part's volumes must be tried again some time.
    pub(crate) fn has_probes(&self, part: u16) -> bool {
        !self.stopping && self.refusals.slots().any(|slot| self.volumes[usize::from(slot)].partition == part)
    }

    /// Up to `most` extents of a part's volumes with refused ones, to be tried now.
    pub(crate) fn probes(&self, now: Time, part: u16, most: usize) -> Vec<Key> {
        if self.stopping {
            return Vec::new();
        }
        let mine = |d: &Due| self.volumes[usize::from(d.slot)].partition == part;
        let of_volume = |d: Due| {
            let (first, end) = (Key::new(d.slot, 0), Key::new(d.slot + 1, 0));
            let (before, after) = (self.dirty.range(first, d.next), self.dirty.range(d.next, end));
            let refused = self.dirty.refused_of(d.slot).take(if d.halted { 0 } else { PROBES });
            let all = refused.chain(after).chain(before);
            all.filter(move |k| !self.dirty.is_held(*k, now)).take(PROBES)
        };
        self.refusals.due(now).filter(mine).flat_map(of_volume).take(most).collect()
    }

    /// A probe is on its way: the next begins after it.
    pub(crate) fn probed(&mut self, key: Key) {
        self.refusals.probed(key);
    }

    /// Dirty extents of a part's volumes whose changes wait for room, and that haven't been tried since they were written.
    pub(crate) fn asked(&self, part: u16) -> impl Iterator<Item = Key> {
        let inserts = self.inserts.starved().filter(|_| self.is_anything_refused());
        let keys = inserts.filter(|i| i.is_dirty()).map(|i| i.key);
        keys.filter(move |k| {
            self.volumes[usize::from(k.volume())].partition == part
                && self.dirty.contains(k)
                && !self.dirty.is_refused(k)
                && !self.destaging.contains(k)
        })
    }

    /// True if a part was found to be full, and nothing has happened since that makes room.
    pub(crate) fn is_known_full(&self, part: u16) -> bool {
        self.write_backs.get(usize::from(part)).is_some_and(|w| w.full)
    }

    /// Parts that were found to be full may have room.
    pub(crate) fn may_have_room(&mut self) {
        self.write_backs.iter_mut().for_each(|w| w.full = false);
    }

    /// True if a part has no room, and gets none before write-back works again.
    fn is_full(&mut self, part: u16) -> bool {
        if self.is_known_full(part) {
            return true;
        }
        let (used, quota) = self.residency.use_of(part);
        // Who has less than its part, or no part, takes what becomes free anywhere.
        let anywhere = used < quota || quota == 0;
        let comes =
            |(weu, _): &(u32, Evict)| (anywhere || self.residency.weu(*weu).partition == part) && !self.is_stuck(*weu);
        let has_free = anywhere && self.residency.index().free_weus() > 0;
        let full = !(has_free || self.residency.leaving().any(|l| comes(&l)));
        if full {
            self.write_back_of(part).full = true;
        }
        full
    }

    /// True if a leaving WEU waits for an extent that can't be written back for now.
    pub(crate) fn is_stuck(&self, weu: u32) -> bool {
        self.residency.stage(weu) == Some(Evict::Waiting) && (self.dirty.is_stuck(weu) || self.is_halted_in(weu))
    }

    /// Inserts that found no room, and won't find any because the slow device refuses what is to be written back: they go through, fail, or
    /// have their extents written back; see the module's documentation.
    pub(crate) fn resolve_starved(&mut self, now: Time, out: &mut Actions) {
        if !self.inserts.has_starved() || !self.is_anything_refused() {
            return;
        }
        for insert in self.inserts.take_starved() {
            let (key, op) = (self.inserts.get(insert).key, self.inserts.get(insert).op);
            let part = self.volumes[usize::from(key.volume())].partition;
            if !self.is_full(part) {
                self.inserts.starve(insert);
                continue;
            }
            match op {
                None => {
                    self.counters.dropped += 1;
                    self.end_insert(now, insert, out);
                }
                Some(_) if self.destaging.contains(&key) => self.inserts.starve(insert),
                Some(op) if !self.dirty.contains(&key) => self.divert(insert, op, key, out),
                Some(op) if self.dirty.is_refused(&key) => {
                    let error = self.refusals.error(key.volume()).unwrap_or(IoError::Device);
                    self.ops[op].failed = Some(error);
                    self.end_insert(now, insert, out);
                }
                Some(_) => self.inserts.starve(insert),
            }
        }
    }

    /// A part of a change that should have been changed in the cache goes through to the slow device.
    fn divert(&mut self, insert: usize, op: usize, key: Key, out: &mut Actions) {
        self.inserts.end(insert);
        self.counters.diverted += 1;
        self.gate.divert(key);
        let was_cached = self.drop_clean(key);
        let needs = self.durability.precedes(&key);
        let (from, len) = self.covered(&self.ops[op].head, key);
        let o = &mut self.ops[op];
        o.locked.retain(|k| *k != key);
        o.touched.push((key, was_cached));
        let range = (from, from + len);
        // As a change that goes through from the beginning: no start may find the older copy.
        match self.durability.has_record(needs) || self.planted(Planted::DivertAtOnce) {
            true => self.send_range(op, range, out),
            false => self.diverted.push(Diverted { needs, op, range }),
        }
    }

    /// The journal has come further: parts of changes that waited for it go through.
    pub(crate) fn send_diverted(&mut self, out: &mut Actions) {
        let durability = &self.durability;
        let ready = self.diverted.extract_if(.., |d| durability.has_record(d.needs));
        for d in ready.collect::<Vec<_>>() {
            self.send_range(d.op, d.range, out);
        }
    }

    /// The fast device has failed: nothing more is written back, and what waits for the journal fails.
    pub(crate) fn break_diverted(&mut self, now: Time, out: &mut Actions) {
        self.refusals.clear();
        for d in std::mem::take(&mut self.diverted) {
            self.ops[d.op].failed = Some(IoError::Device);
            self.part_done(now, d.op, out);
        }
    }

    /// Volumes whose write-back fails.
    pub(crate) fn write_back_fails(&self) -> Vec<WriteBackFails> {
        let fails = |(slot, error, since): (u16, IoError, Time)| {
            let v = &self.volumes[usize::from(slot)];
            let dirty_bytes = v.dirty * self.extent_bytes();
            WriteBackFails { volume: v.key, error, since, dirty_bytes }
        };
        self.refusals.iter().map(fails).collect()
    }
}
