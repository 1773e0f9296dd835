//! Changes of an extent's place, across the parts: the headers' entries that are no longer true by that die in a chunk or in the journal.

use crate::chunk::Chunk;
use crate::config::Planted;
use crate::format::ExtentName;
use crate::index::{Key, Loc};
use crate::layer::Cache;
use crate::place::Superseded;

/// Entries of the index up to which all of them are checked after each event.
const CHECKED_MAX: usize = 256;

impl Cache {
    pub(crate) fn name_of(&self, key: Key) -> ExtentName {
        ExtentName { volume: self.volumes[key.volume() as usize].key, extent: key.extent() }
    }

    /// The chunk in memory that has this slot of this WEU, if there is one.
    pub(crate) fn chunk_of(&self, weu: u32, slot: u32) -> Option<usize> {
        let has = |c: &Chunk| c.weu == weu && (c.first_slot..c.first_slot + c.entries.len() as u32).contains(&slot);
        self.chunks.iter().position(has)
    }

    /// Points `key` at `loc`; `own` is where a header says so. The extent that `key` pointed at before is superseded.
    pub(crate) fn point(&mut self, key: Key, loc: Loc, own: Option<Loc>) {
        self.mark_clean(key);
        if let Some(old) = self.residency.point(key, loc, own) {
            let by = own.filter(|_| loc.is_dirty()).and_then(|o| self.chunk_of(o.weu(), o.slot()));
            self.supersede(old, by);
        }
        if loc.is_dirty() {
            self.mark_dirty(key, loc, own);
        }
    }

    /// Checks what must hold after each event, across the parts that know of an extent. Everything that is cached is looked at, so only in
    /// tests of small caches.
    pub(crate) fn check_truth(&self) -> Result<(), String> {
        if self.config.planted.is_some() || self.residency.index().files() > CHECKED_MAX {
            return Ok(());
        }
        self.residency.check()?;
        let dirty: u64 = self.residency.index().weus().iter().map(|w| u64::from(w.dirty)).sum();
        let of_volumes: u64 = self.volumes.iter().map(|v| v.dirty).sum();
        let known = self.dirty.len() as u64;
        if (known, known) != (dirty, of_volumes) {
            return Err(format!("{known} extents are dirty, {dirty} in WEUs and {of_volumes} of volumes"));
        }
        Ok(())
    }

    /// Forgets a clean extent.
    pub(crate) fn drop_clean(&mut self, key: Key) -> bool {
        debug_assert!(!self.dirty.contains(&key));
        let (was_cached, old) = self.residency.remove(key);
        if let Some(old) = old {
            self.supersede(old, None);
        }
        was_cached
    }

    /// A header's entry is no longer true: it never becomes so; or the journal says it, at once, when the dirty chunk `by` that has the
    /// newer content is durable, or when its WEU is confirmed.
    fn supersede(&mut self, old: Superseded, by: Option<usize>) {
        let Superseded { key, place, bytes_in } = old;
        if let Some(c) = self.chunk_of(place.weu(), place.slot())
            && self.chunks[c].kill(place.slot())
        {
            return;
        }
        match by {
            Some(c) if !self.planted(Planted::DeadBeforeDurable) => {
                self.chunks[c].supersedes.push(old);
                self.residency.pin(place.weu());
                self.residency.pin(bytes_in);
            }
            _ => self.durability.died(&mut self.residency.bits(), key, place),
        }
    }
}
