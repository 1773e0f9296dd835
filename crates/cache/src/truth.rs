//! The entries that are true: the place of each extent, and the headers' entries that are no longer valid.

use crate::chunk::{Chunk, Superseded};
use crate::config::Planted;
use crate::format::ExtentName;
use crate::index::{Key, Loc};
use crate::layer::Cache;

impl Cache {
    pub(crate) fn name_of(&self, key: Key) -> ExtentName {
        ExtentName { volume: self.volumes[key.volume() as usize].key, extent: key.extent() }
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

    /// Removes the reference of `key` as a duplicate, and returns the place of the header's entry; unpinned if it was dirty.
    pub(crate) fn take_reference(&mut self, key: Key, was_dirty: bool) -> Option<Loc> {
        let own = self.refs.remove(&key)?;
        if was_dirty {
            self.unpin(own.weu());
        }
        Some(own)
    }

    /// The chunk in memory that has this slot of this WEU, if there is one.
    pub(crate) fn chunk_of(&self, weu: u32, slot: u32) -> Option<usize> {
        let has = |c: &Chunk| c.weu == weu && (c.first_slot..c.first_slot + c.entries.len() as u32).contains(&slot);
        self.chunks.iter().position(has)
    }

    /// Points `key` at `loc`; `own` is where a header says so. The extent that `key` pointed at before is superseded.
    pub(crate) fn point(&mut self, key: Key, loc: Loc, own: Option<Loc>) {
        let was_dirty = self.mark_clean(key);
        let old_ref = self.take_reference(key, was_dirty);
        let old = self.index.set(key, loc);
        let by = own.filter(|_| loc.is_dirty()).and_then(|o| self.chunk_of(o.weu(), o.slot()));
        self.supersede(key, old, old_ref, by);
        if loc.is_dirty() {
            self.mark_dirty(key, loc, own);
        }
        if let Some(own) = own.filter(|_| loc.is_dup()) {
            self.refs.insert(key, own);
            if loc.is_dirty() {
                self.pin(own.weu());
            }
        }
    }

    /// Forgets a clean extent.
    pub(crate) fn drop_clean(&mut self, key: Key) -> bool {
        debug_assert!(!self.dirty.contains(&key));
        let old_ref = self.take_reference(key, false);
        let old = self.index.remove(key);
        self.supersede(key, old, old_ref, None);
        old.is_some()
    }

    /// A header's entry is no longer true: it never becomes so; or the journal says it, at once, when the dirty chunk `by` that has the
    /// newer content is durable, or when its WEU is confirmed.
    pub(crate) fn supersede(&mut self, key: Key, old: Option<Loc>, old_ref: Option<Loc>, by: Option<usize>) {
        // A clean duplicate's bytes may be gone: then only its name is superseded.
        let bytes_in = old.map(Loc::weu);
        let Some(old) = old.filter(|o| !o.is_dup()).or(old_ref) else { return };
        let bytes_in = bytes_in.unwrap_or(old.weu());
        if let Some(c) = self.chunk_of(old.weu(), old.slot())
            && self.chunks[c].kill(old.slot())
        {
            return;
        }
        match by {
            Some(c) if !self.planted(Planted::DeadBeforeDurable) => {
                self.chunks[c].supersedes.push(Superseded { key, place: old, bytes_in });
                self.pin(old.weu());
                self.pin(bytes_in);
            }
            _ => self.kill(key, old),
        }
    }

    /// A slot's entry, of `key`, is no longer true.
    pub(crate) fn kill(&mut self, key: Key, place: Loc) {
        self.durability.died(&mut self.index, key, place);
    }
}
