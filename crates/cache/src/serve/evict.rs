//! Making room: the WEU that the policy chooses is evicted, as a whole (NI-M17).
//!
//! ```text
//!  leaving ──► waits until it is clean, unpinned and superseded ──► its header is read, its entries are removed
//!                 ▲                                                       │ some policies: clean extents that were used
//!                 └── they are fetched, and inserted as any fill is ──────┘ are put in again, once
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

use crate::config::{Mode, Sharing};
use crate::fetch::Purpose;
use crate::format::{Slot, headers};
use crate::index::Key;
use crate::place::Superseded;
use crate::request::Pending;
use crate::residency::{Entry, Evict, Retired};
use crate::serve::{Cache, FAST};
use plimsoll_base::{Completion, Data, Op, OwnKind, TenantId, Time, VolumeKey};
use plimsoll_stack::Actions;

/// WEUs that are kept free, or on their way there, per partition: for writes while others are evicted. `RESERVE` at least, one of
/// `RESERVE_SHARE`, and at most `RESERVE_MAX`: the dirty extents in them are written back together.
const RESERVE: u32 = 2;
const RESERVE_SHARE: u32 = 64;
const RESERVE_MAX: u32 = 8;
/// WEUs of a partition that may be leaving without getting any further.
const STUCK_MAX: usize = 1024;
impl Cache {
    /// True if a WEU became free.
    pub(crate) fn progress_evictions(&mut self, now: Time, out: &mut Actions) -> bool {
        for partition in 0..self.residency.partitions() {
            let mine = self.residency.leaving().filter(|(w, _)| self.residency.weu(*w).partition == partition);
            // One that gets no further for now makes no room: another must go.
            let (mut leaving, mut stuck) = mine.fold((0, 0), |(leaving, stuck), (w, _)| match self.is_stuck(w) {
                true => (leaving, stuck + 1),
                false => (leaving + 1, stuck),
            });
            loop {
                let (used, quota) = self.residency.use_of(partition);
                // A reserve must leave something to reserve for.
                let wanted = (u64::from(quota) * u64::from(self.config.free_percent) / 100) as u32;
                let ahead = (quota / RESERVE_SHARE).clamp(RESERVE, RESERVE_MAX);
                let reserve = ahead.max(wanted).min(quota / 2);
                let room = (quota + leaving).saturating_sub(used);
                if (room >= reserve && used <= quota + leaving) || stuck > STUCK_MAX {
                    break;
                }
                let Some(weu) = self.residency.begin_eviction(partition) else { break };
                match self.is_stuck(weu) {
                    true => stuck += 1,
                    false => leaving += 1,
                }
            }
        }
        let before = self.residency.leaving_len();
        for (weu, stage) in self.residency.leaving().collect::<Vec<_>>() {
            self.progress_eviction(now, weu, stage, out);
        }
        self.residency.leaving_len() < before
    }

    fn progress_eviction(&mut self, now: Time, weu: u32, stage: Evict, out: &mut Actions) {
        match stage {
            Evict::Waiting => {
                let in_memory = self.packing.has_weu(weu);
                if self.residency.must_stay(weu) || in_memory {
                    return self.want_durable_successors(weu);
                }
                let len = u64::from(self.residency.weu(weu).header_bytes);
                self.residency.read_header(weu);
                let range = (self.layout.weu_at(weu), len);
                let (what, whose) = ((Op::Read, OwnKind::Metadata), self.owner_of_weu(weu));
                self.send_own(now, FAST, what, whose, range, Data::Absent, Pending::EvictHeader(weu), out);
            }
            Evict::Journaling(number) if self.durability.has_record(number) && !self.residency.is_pinned(weu) => {
                if !self.config.trim {
                    return self.trimmed(weu);
                }
                self.residency.trim(weu);
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
        let part = self.residency.weu(weu).partition;
        let own = if self.config.sharing == Sharing::PerVolume { self.volumes.of_partition(part) } else { None };
        (own.unwrap_or(VolumeKey::POOL), TenantId::default())
    }

    /// Orders a flush of the extents that supersede those of a WEU that is being evicted. Until they are durable, the WEU must stay.
    fn want_durable_successors(&mut self, weu: u32) {
        if self.residency.weu(weu).dirty > 0 {
            return;
        }
        let of_it = |s: &Superseded| s.place.weu() == weu || s.bytes_in == weu;
        // They may be in another part's WEUs: space was shared before.
        let parts = self.packing.superseding(of_it);
        if !parts.is_empty() || self.durability.is_superseding(of_it) {
            self.durability.want_flush(parts);
        }
    }

    /// Keys of a partition's volumes that evictions wait for: what is dirty in leaving WEUs, and what headers in them name, which
    /// pins them. They may lie in another's WEUs: space was shared before.
    pub(crate) fn urgent(&self, part: u16) -> impl Iterator<Item = Key> {
        // One with extents of a halted volume doesn't leave, whatever else of it is written back.
        let waiting = self.residency.leaving().filter(|(w, e)| *e == Evict::Waiting && !self.is_halted_in(*w));
        let mine = move |k: &Key| self.volumes[k.volume() as usize].partition == part;
        waiting.flat_map(|(w, _)| self.dirty.in_weu(w)).filter(mine)
    }

    /// True if evictions of a part wait for extents that can be written back now.
    pub(crate) fn is_urgent(&self, now: Time, part: u16) -> bool {
        self.urgent(part).any(|k| !self.dirty.is_held(k, now))
    }

    pub(crate) fn evict_header_read(&mut self, now: Time, weu: u32, c: Completion, out: &mut Actions) {
        if !self.residency.may_retire(weu) {
            return;
        }
        let mut bytes = vec![0; c.io.len as usize];
        if c.outcome.is_done() {
            c.io.data.copy_to(&mut bytes);
        } // else it is as if it were damaged
        let sequence = self.residency.weu(weu).sequence;
        let mut entries = Vec::new();
        for h in headers(&bytes, self.layout.salt, self.layout.block_bytes, weu, Some(sequence), false) {
            entries.extend(h.entries.iter().zip(h.first_slot..).map(|(e, slot)| Entry {
                slot,
                key: self.volumes.slot(&e.name.volume).map(|v| Key::new(v, e.name.extent)),
                is_name: matches!(e.what, Slot::Ref { .. }),
                fp: if let Slot::Base(fp) = e.what { fp } else { None },
                is_dead: e.dead,
            }));
        }
        if self.begin_reinsertion(now, weu, &entries, out) {
            return;
        }
        let Retired { trusted, nameless, is_damaged } = self.residency.retire(weu, entries);
        // Duplicates that it named, and whose bytes are elsewhere, are named anew.
        for (key, loc) in nameless {
            let sequence = self.residency.weu(loc.weu()).sequence;
            if let Some(own) = self.name_duplicate(now, key, loc, sequence, out) {
                self.residency.name(key, own);
            }
        }
        self.counters.evicted += 1;
        let number = self.durability.retired((weu, sequence), trusted, is_damaged);
        self.residency.retired(weu, number);
    }

    /// Fetches the clean extents of a leaving WEU that were used, to put them in again, once. True if there are any: the WEU stays
    /// until they are read.
    fn begin_reinsertion(&mut self, now: Time, weu: u32, entries: &[Entry], out: &mut Actions) -> bool {
        if self.stopping || !self.residency.begin_reinsertion(weu) {
            return false;
        }
        let mut found = Vec::new();
        for e in entries.iter().filter(|e| !e.is_name) {
            let Some(key) = e.key else { continue };
            let is_cached = self.volumes[key.volume() as usize].config.is_some_and(|c| c.mode != Mode::Off);
            let is_free = !self.gate.is_busy(&key) && !self.gate.is_filling(&key);
            if is_cached && is_free && self.residency.must_reinsert(key, weu, e.slot) {
                found.push(key);
            }
        }
        if !found.is_empty() {
            self.residency.wait_for_reinsertion(weu);
        }
        for key in &found {
            let token = self.gate.new_token();
            self.gate.begin_fill(*key, token);
            let (tenant, priority) = self.background_of(*key);
            let fetch = self.whole_fetch(*key, Purpose::Reinsert { token }, tenant, priority);
            self.fetch(now, fetch, out);
        }
        !found.is_empty()
    }

    /// An extent that is to be put in again is here, or can't be read. As with any fill, a change since has taken its token away.
    pub(crate) fn reinsert_fetched(&mut self, now: Time, key: Key, token: u64, data: Option<Data>, out: &mut Actions) {
        match data.filter(|_| self.gate.may_fill(&key, token)) {
            Some(data) => {
                self.counters.reinserted += 1;
                let insert = self.clean_insert(key, data, token);
                self.insert_clean(now, insert, out);
            }
            None => {
                self.gate.end_fill(&key, token);
            }
        }
    }

    pub(crate) fn trimmed(&mut self, weu: u32) {
        if self.residency.free(weu) {
            self.may_have_room();
        }
    }
}
