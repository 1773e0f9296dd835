//! The end of a recovery: what headers say is judged, references are resolved, and the index is complete.

use super::{Recovered, Recovery, Step, World};
use crate::config::{Planted, Sharing};
use crate::format::{ChunkHeader, Slot, chunk_header_bytes};
use crate::found::Found;
use crate::index::{Key, Loc, SLOTS_MAX, UNIT_BYTES, bit, set_bit};
use crate::place::LIFE_SHIFT;
use plimsoll_base::VolumeKey;

impl Recovery {
    /// Takes what a WEU's headers say for true.
    pub(super) fn adopt_headers(&mut self, weu: u32, found: Vec<ChunkHeader>, world: &mut World) {
        let doubtful = found.iter().any(|h| self.is_doubtful(h));
        let (sequence, dirty) = (found[0].sequence, found[0].dirty);
        let marks = std::mem::take(&mut self.marks[weu as usize]);
        // Once and for all: this start's number is above all of its chunks, so the next one couldn't tell.
        let suspect = self.suspect.contains(&(weu, sequence)) || doubtful;
        let header_bytes: u32 =
            found.iter().map(|h| chunk_header_bytes(h.entries.len(), self.layout.block_bytes)).sum();
        let w = world.index.weu_mut(weu);
        (w.sequence, w.for_dirty, w.header_bytes) = (sequence, dirty, header_bytes);
        let slots = found.last().map_or(0, |h| h.first_slot + h.entries.len() as u32);
        w.slots = slots;
        w.durable_slots = if dirty { slots } else { 0 };
        (w.dead, w.cleaned) = (marks.dead, marks.cleaned);
        if suspect {
            self.doubted.insert(weu);
        }
        let names = found.iter().flat_map(|h| &h.entries).filter(|e| matches!(e.what, Slot::Ref { .. })).count();
        if !dirty && names as u32 > self.layout.slots_max() / 2 {
            self.of_names.push(weu);
        }
        let (stale, extent_bytes) = (self.stale, self.extent_bytes());
        let mut last: Option<(VolumeKey, Option<u16>)> = None;
        let (mut whose, mut fingerprints) = (None, 0);
        for h in found {
            self.chunks[weu as usize].push((h.first_slot, h.chunk));
            for (i, e) in h.entries.iter().enumerate() {
                let slot = h.first_slot + i as u32;
                let end = (u32::from(e.at_unit) + u32::from(e.len_units)) * UNIT_BYTES;
                let fits = (1..1 << 12).contains(&e.len_units) && end <= self.layout.shape.weu_bytes;
                if slot >= SLOTS_MAX || !fits {
                    continue; // no header that was written says so
                }
                let cleaned = bit(&world.index.weu(weu).cleaned, slot);
                let own = Loc::new(weu, u32::from(e.at_unit), u32::from(e.len_units), slot);
                fingerprints += u32::from(matches!(e.what, Slot::Base(Some(_))));
                // Also of what is dead: a duplicate may have its bytes.
                if own.is_bare(extent_bytes) && matches!(e.what, Slot::Base(_)) {
                    world.index.weu_mut(weu).set_sum(slot, e.sum, slots);
                }
                if stale && (!h.dirty || cleaned || self.is_given_up(&e.name.volume, world)) {
                    set_bit(&mut world.index.weu_mut(weu).dead, slot);
                    continue;
                }
                if e.dead || world.index.weu(weu).is_dead(slot) {
                    continue;
                }
                let volume = match last {
                    Some((key, volume)) if key == e.name.volume => volume,
                    _ => self.found_volume(e.name.volume, world),
                };
                last = Some((e.name.volume, volume));
                let Some(volume) = volume else {
                    // Should its key ever be a volume's again, as after a restore of the metadata, nothing of it comes back.
                    if self.is_gone(&e.name.volume, world) {
                        set_bit(&mut world.index.weu_mut(weu).dead, slot);
                    }
                    continue;
                };
                whose = whose.or(Some(world.volumes[volume as usize].partition));
                let key = Key::new(volume, e.name.extent);
                match e.what {
                    Slot::Base(_) => self.load.extent(key, own.dirty(h.dirty && !cleaned)),
                    Slot::Ref { weu: to, sequence: target_sequence, slot: target_slot } => {
                        if to < self.layout.weus && target_slot < SLOTS_MAX {
                            let target = Loc::new(to, u32::from(e.at_unit), u32::from(e.len_units), target_slot);
                            let is_bare = target.is_bare(extent_bytes);
                            let target = target.dup(true).dirty(h.dirty && !cleaned);
                            let w = world.index.weu(to);
                            if is_bare && (w.sequence != target_sequence || target_slot >= w.slots) {
                                self.unlisted.push((to, target_sequence, target_slot, e.sum));
                            }
                            self.load.name(key, own, target, target_sequence);
                        }
                    }
                }
            }
        }
        self.found.push((sequence, weu, dirty, whose));
        if fingerprints > 0 {
            self.fingerprints.push((sequence, weu, fingerprints));
        }
    }

    /// The slot of a volume that a header names, unless it is gone.
    fn found_volume(&self, key: VolumeKey, world: &mut World) -> Option<u16> {
        let sharing = world.config.sharing;
        let World { volumes, index, .. } = world;
        if self.gone.contains(&key) || volumes.is_unknown(&key) {
            return None;
        }
        volumes.slot_of(key, sharing, || index.add_partition(0))
    }

    /// True if the volume was deleted.
    pub(super) fn is_gone(&self, key: &VolumeKey, world: &World) -> bool {
        self.gone.contains(key) || world.volumes.is_unknown(key)
    }

    /// True if the journal says that a volume was deleted, and the pool's metadata have it: they were restored from an older backup.
    fn is_there_again(&self, key: &VolumeKey, world: &World) -> bool {
        world.volumes.known().is_some_and(|known| known.contains_key(key)) && !self.forgotten.contains(key)
    }

    /// True if a volume's extents were given up after the journal was last written.
    pub(super) fn is_given_up(&self, volume: &VolumeKey, world: &World) -> bool {
        let Some(since) = world.volumes.given_up_since(volume) else { return false };
        (self.generation.wrapping_sub(since) as i16) < 0
    }

    /// Torn chunks of a WEU.
    fn torn(&self, chunks: &[ChunkHeader], world: &World) -> Vec<bool> {
        chunks.iter().map(|h| self.is_doubtful(h) && !self.is_whole(h, world)).collect()
    }

    /// All has been read: what is torn goes, references are resolved, and the index is complete.
    pub(super) fn judge(&mut self, world: &mut World) -> Step {
        let tails = std::mem::take(&mut self.tails.weus);
        // Those that were found after a WEU that one refers to have said by now under which numbers they are.
        let judged: Vec<Vec<bool>> = tails.iter().map(|(_, chunks)| self.torn(chunks, world)).collect();
        for ((weu, mut chunks), torn) in tails.into_iter().zip(judged) {
            for (h, torn) in chunks.iter().zip(&torn) {
                if *torn {
                    self.report.torn += 1;
                    let slots = h.first_slot..h.first_slot + h.entries.len() as u32;
                    slots.for_each(|s| {
                        set_bit(&mut self.marks[weu as usize].dead, s);
                    });
                }
            }
            // Their bytes must not be relied on either, but their headers keep their place.
            for (h, torn) in chunks.iter_mut().zip(torn) {
                if torn {
                    h.entries.iter_mut().for_each(|e| (e.dead, e.what) = (true, Slot::Base(None)));
                }
            }
            self.adopt_headers(weu, chunks, world);
        }
        self.take_unlisted(world);
        let mut load = std::mem::replace(&mut self.load, Found::new(0));
        load.forgets_lost = self.planted(Planted::LostDuplicateForgotten);
        self.report.extents = load.extents() as u64;
        // Some may have been deleted meanwhile.
        let there: Vec<bool> = (0..world.volumes.len() as u16).map(|slot| world.volumes.is_there(slot)).collect();
        let (mut maybe_dirty, named) = world.index.load(load, |loc| self.order(loc), |slot| there[slot as usize]);
        maybe_dirty.extend(named.dirty);
        self.order_weus(world);
        // A number that was begun and left no header is never used again: each start has its own.
        let life = self.life << LIFE_SHIFT;
        assert!(life > self.highest.0 && life > self.highest.1, "starts ascend");
        let first = match self.planted(Planted::ReuseSequence) {
            true => (self.highest.0 + 1, self.highest.1 + 1),
            false => (life, life),
        };
        let missed = std::mem::take(&mut self.missed);
        let journal_lost = self.corrupt.is_some();
        Ok(Some(Box::new(Recovered {
            first,
            durable_chunks: life,
            next_epoch: self.next_epoch,
            refs: named.refs.into_iter().collect(),
            maybe_dirty,
            lost: named.lost,
            suspect: std::mem::take(&mut self.doubted),
            of_names: std::mem::take(&mut self.of_names),
            fingerprints: std::mem::take(&mut self.fingerprints),
            // Of a volume that is there again all that was found is dead: what is cached of it from now on counts.
            gone: self.gone.iter().filter(|key| !self.is_there_again(key, world)).map(|key| (*key, life)).collect(),
            missed: missed.into_iter().filter(|key| self.is_missed(key, world)).collect(),
            old: self.old,
            begun_at: self.begun_at,
            report: crate::status::StartReport { journal_lost, converted: self.old, ..self.report },
        })))
    }

    /// Takes the checksums of bare extents that duplicates rely on and no header lists: their own chunk's header was lost, and the
    /// duplicate's was not. Their bytes are there, or the duplicate would be torn.
    fn take_unlisted(&mut self, world: &mut World) {
        for (weu, sequence, slot, sum) in std::mem::take(&mut self.unlisted) {
            let w = world.index.weu_mut(weu);
            if w.sequence == sequence && slot >= w.slots && !Planted::UnlistedUnsummed.is_in(self.planted) {
                w.set_sum(slot, sum, slot + 1);
            }
        }
    }

    /// The index's own order of WEUs.
    fn order_weus(&mut self, world: &mut World) {
        self.found.sort_unstable();
        let first = world.volumes.iter().next().map_or(0, |v| v.partition);
        let has_partition = world.config.sharing == Sharing::Shared || world.volumes.len() > 0;
        if has_partition {
            let found = self.found.iter();
            world.index.adopt_all(found.map(|(s, w, d, whose)| (*w, whose.unwrap_or(first), *s, *d)));
            self.found.iter().for_each(|(_, weu, ..)| world.index.filled(*weu));
        }
        for (weu, least) in self.least.iter().enumerate() {
            let w = world.index.weu_mut(weu as u32);
            // What a free WEU held is forgotten under the same number in the next snapshot too.
            w.sequence = w.sequence.max(least.saturating_sub(1));
        }
        self.report.weus = self.found.len() as u32;
    }
}
