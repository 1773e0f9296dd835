//! Making room: the least recently used WEU is evicted, as a whole (NI-M17).
//!
//! ```text
//!  leaving ──► waits until it is clean, unpinned and superseded ──► its header is read, its entries are removed
//!     ──► journal: nothing in it is valid (if it is confirmed) ──► TRIM ──► free
//! ```
//!
//! A leaving WEU waits until three things hold:
//!
//! * *clean*: its dirty extents are written back;
//! * *unpinned*: no dirty extent elsewhere is stored as a reference to its data. Those that are get written back, too;
//! * *superseded*: newer versions of its extents, in other WEUs, are durable. Until then recovery needs the older ones.
//!
//! Write-back that the slow device refuses keeps the WEU: `STUCK_MAX` bounds their number.

use crate::chunk::Superseded;
use crate::config::Sharing;
use crate::format::{Slot, headers};
use crate::index::{Key, Loc};
use crate::layer::{Cache, FAST};
use crate::request::Pending;
use plimsoll_base::{Completion, Data, Op, OwnKind, TenantId, Time, VolumeKey};
use plimsoll_stack::Actions;
use std::collections::BTreeSet;

/// WEUs that are kept free, or on their way there, per partition: for writes while others are evicted. `RESERVE` at least, one of
/// `RESERVE_SHARE`, and at most `RESERVE_MAX`: the dirty extents in them are written back together.
const RESERVE: u32 = 2;
const RESERVE_SHARE: u32 = 64;
const RESERVE_MAX: u32 = 8;
/// WEUs of a partition that may be leaving without getting any further.
const STUCK_MAX: usize = 1024;
/// Entries that the cleaner looks at per eviction, beside its share of all.
const SWEEP_LEAST: usize = 64;

/// Progress of an eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Evict {
    /// Something in it is dirty or relied on.
    Waiting,
    /// Its header is being read.
    Reading,
    /// Retired; waits for the journal.
    Journaling(u64),
    /// Being trimmed.
    Trimming,
}

impl Cache {
    /// True if a WEU became free.
    pub(crate) fn progress_evictions(&mut self, now: Time, out: &mut Actions) -> bool {
        for partition in 0..self.partitions() {
            let mine = self.evicting.keys().filter(|w| self.index.weu(**w).partition == partition);
            // One that gets no further for now makes no room: another must go.
            let (mut leaving, mut stuck) = mine.fold((0, 0), |(leaving, stuck), w| match self.is_stuck(*w) {
                true => (leaving, stuck + 1),
                false => (leaving + 1, stuck),
            });
            loop {
                let (used, quota) = self.index.use_of(partition);
                // A reserve must leave something to reserve for.
                let wanted = (u64::from(quota) * u64::from(self.config.free_percent) / 100) as u32;
                let ahead = (quota / RESERVE_SHARE).clamp(RESERVE, RESERVE_MAX);
                let reserve = ahead.max(wanted).min(quota / 2);
                let room = (quota + leaving).saturating_sub(used);
                if (room >= reserve && used <= quota + leaving) || stuck > STUCK_MAX {
                    break;
                }
                let Some(weu) = self.index.begin_eviction(partition) else { break };
                self.evicting.insert(weu, Evict::Waiting);
                match self.is_stuck(weu) {
                    true => stuck += 1,
                    false => leaving += 1,
                }
            }
        }
        let before = self.evicting.len();
        for weu in self.evicting.keys().copied().collect::<Vec<_>>() {
            self.progress_eviction(now, weu, out);
        }
        self.evicting.len() < before
    }

    pub(crate) fn partitions(&self) -> u16 {
        self.index.partitions()
    }

    fn progress_eviction(&mut self, now: Time, weu: u32, out: &mut Actions) {
        match self.evicting[&weu] {
            Evict::Waiting => {
                let in_memory = self.chunks.iter().any(|c| c.weu == weu);
                if self.index.weu(weu).dirty > 0 || self.pins.contains_key(&weu) || in_memory {
                    return self.want_durable_successors(weu);
                }
                let len = u64::from(self.index.weu(weu).header_bytes);
                self.evicting.insert(weu, Evict::Reading);
                let range = (self.layout.weu_at(weu), len);
                let (what, whose) = ((Op::Read, OwnKind::Metadata), self.owner_of_weu(weu));
                self.send_own(now, FAST, what, whose, range, Data::Absent, Pending::EvictHeader(weu), out);
            }
            Evict::Journaling(number) if self.durability.has_record(number) && !self.pins.contains_key(&weu) => {
                if !self.config.trim {
                    return self.trimmed(weu);
                }
                self.evicting.insert(weu, Evict::Trimming);
                let range = (self.layout.weu_at(weu), u64::from(self.layout.shape.weu_bytes));
                let (what, whose) = ((Op::Trim, OwnKind::Metadata), self.owner_of_weu(weu));
                self.send_own(now, FAST, what, whose, range, Data::Absent, Pending::Trim(weu), out);
            }
            _ => {}
        }
    }

    /// The owner of work on a WEU: the part's volume where volumes have their own parts; a fence below then does it in that volume's
    /// slot.
    pub(crate) fn owner_of_weu(&self, weu: u32) -> (VolumeKey, TenantId) {
        let part = self.index.weu(weu).partition;
        let own = if self.config.sharing == Sharing::PerVolume { self.volumes.of_partition(part) } else { None };
        (own.unwrap_or(VolumeKey::POOL), TenantId::default())
    }

    /// Orders a flush of the extents that supersede those of a WEU that is being evicted. Until they are durable, the WEU must stay.
    fn want_durable_successors(&mut self, weu: u32) {
        if self.index.weu(weu).dirty > 0 {
            return;
        }
        let of_it = |s: &Superseded| s.place.weu() == weu || s.bytes_in == weu;
        let packing = self.chunks.iter().filter(|c| c.supersedes.iter().any(of_it));
        // They may be in another part's WEUs: space was shared before.
        let parts: BTreeSet<u16> = packing.map(|c| self.index.weu(c.weu).partition).collect();
        if !parts.is_empty() || self.durability.is_superseding(of_it) {
            self.durability.want_flush(parts);
        }
    }

    /// Keys of a partition's volumes that evictions wait for: what is dirty in leaving WEUs, and what headers in them name, which
    /// pins them. They may lie in another's WEUs: space was shared before.
    pub(crate) fn urgent(&self, part: u16) -> impl Iterator<Item = Key> {
        // One with extents of a halted volume doesn't leave, whatever else of it is written back.
        let waiting = self.evicting.iter().filter(|(w, e)| **e == Evict::Waiting && !self.is_halted_in(**w));
        let mine = move |k: &Key| self.volumes[k.volume() as usize].partition == part;
        waiting.flat_map(|(w, _)| self.dirty.in_weu(*w)).filter(mine)
    }

    /// True if evictions of a part wait for extents that can be written back now.
    pub(crate) fn is_urgent(&self, now: Time, part: u16) -> bool {
        self.urgent(part).any(|k| !self.dirty.is_held(k, now))
    }

    pub(crate) fn evict_header_read(&mut self, now: Time, weu: u32, c: Completion, out: &mut Actions) {
        if !matches!(self.evicting.get(&weu), Some(Evict::Reading)) {
            return;
        }
        if self.index.weu(weu).dirty > 0 || self.pins.contains_key(&weu) {
            self.evicting.insert(weu, Evict::Waiting); // somebody came meanwhile
            return;
        }
        let mut bytes = vec![0; c.io.len as usize];
        if c.outcome.is_done() {
            c.io.data.copy_to(&mut bytes);
        } // else it is as if it were damaged
        let sequence = self.index.weu(weu).sequence;
        let (mut entries, mut nameless, mut trusted) = (Vec::new(), Vec::new(), Vec::new());
        for h in headers(&bytes, self.layout.salt, self.layout.block_bytes, weu, Some(sequence), false) {
            for (i, e) in h.entries.iter().enumerate() {
                let key = self.volumes.slot(&e.name.volume).map(|v| Key::new(v, e.name.extent));
                let slot = h.first_slot + i as u32;
                let fp = match e.what {
                    Slot::Base(fp) => fp,
                    Slot::Ref { .. } => {
                        let here = |own: &Loc| own.weu() == weu && own.slot() == slot;
                        if let Some(key) = key.filter(|k| self.refs.get(k).is_some_and(here)) {
                            self.refs.remove(&key);
                            nameless.push(key);
                        }
                        None
                    }
                };
                // What is dead is so in the journal, or waited for already.
                trusted.extend(key.filter(|_| !e.dead && !self.index.weu(weu).is_dead(slot)));
                entries.push((slot, key, fp));
            }
        }
        let is_damaged = entries.len() < self.index.weu(weu).slots as usize;
        if is_damaged {
            // Whom it named isn't told by it.
            self.refs.retain(|_, own| own.weu() != weu);
        }
        self.index.retire(weu, entries.into_iter());
        // Duplicates that it named, and whose bytes are elsewhere, are named anew.
        for key in nameless {
            if let Some(loc) = self.index.look(key).filter(|l| l.is_dup() && !l.is_dirty()) {
                let sequence = self.index.weu(loc.weu()).sequence;
                if let Some(own) = self.name_duplicate(now, key, loc, sequence, out) {
                    self.refs.insert(key, own);
                }
            }
        }
        self.bad.retain(|(w, _)| *w != weu);
        if let Some(of_names) = self.name_weus.get_mut(&self.index.weu(weu).partition) {
            of_names.remove(&weu);
        }
        self.counters.evicted += 1;
        let share = self.index.files() / self.index.weus().len().max(1);
        self.index.sweep(SWEEP_LEAST + 2 * share);
        let number = self.durability.retired((weu, sequence), trusted, is_damaged);
        self.evicting.insert(weu, Evict::Journaling(number));
    }

    pub(crate) fn trimmed(&mut self, weu: u32) {
        if self.evicting.remove(&weu).is_some() {
            self.index.free(weu);
            self.may_have_room();
        }
    }
}
