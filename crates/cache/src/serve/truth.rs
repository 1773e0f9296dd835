//! Changes of an extent's place, across the parts: the headers' entries that are no longer true by that die in a chunk or in the journal.

use crate::format::ExtentName;
use crate::index::{Key, Loc, WeuState};
use crate::place::Superseded;
use crate::serve::Cache;

/// Entries of the index up to which all of them are checked.
const CHECKED_MAX: usize = 256;

impl Cache {
    pub(crate) fn name_of(&self, key: Key) -> ExtentName {
        ExtentName { volume: self.volumes[key.volume() as usize].key, extent: key.extent() }
    }

    /// Points `key` at `loc`; `own` is where a header says so. The extent that `key` pointed at before is superseded.
    pub(crate) fn point(&mut self, key: Key, loc: Loc, own: Option<Loc>) {
        self.mark_clean(key);
        if let Some(old) = self.residency.point(key, loc, own) {
            self.supersede(old, own.filter(|_| loc.is_dirty()));
        }
        if loc.is_dirty() {
            self.mark_dirty(key, loc, own);
        }
    }

    /// Only the cache has `key` now, at `loc`; a header says so at `own`, if not there.
    pub(crate) fn mark_dirty(&mut self, key: Key, loc: Loc, own: Option<Loc>) {
        self.dirty.insert(key, [loc.weu(), own.unwrap_or(loc).weu()]);
        self.volumes[key.volume() as usize].dirty += 1;
    }

    /// `key` isn't dirty any more, if it was.
    pub(crate) fn mark_clean(&mut self, key: Key) {
        if self.dirty.remove(key) {
            self.destage_changed(key);
            let v = &mut self.volumes[key.volume() as usize];
            v.dirty -= 1;
            v.draining &= v.dirty > 0;
        }
    }

    /// Nothing of a volume is dirty any more: it is gone.
    pub(crate) fn forget_dirty(&mut self, slot: u16) {
        for k in self.dirty.of_volume(slot).collect::<Vec<_>>() {
            self.mark_clean(k);
            // Its volume is gone or given up: no record of the journal is needed for each.
            let _ = self.residency.remove(k);
        }
        self.dirty.forget(slot);
    }

    /// Checks what must hold across the parts that know of an extent. Debug builds call it after each event while the cache serves. It
    /// checks nothing with a planted mistake, or if more than [`CHECKED_MAX`] extents are indexed: everything that is cached is looked at.
    pub(crate) fn check_truth(&self) -> Result<(), String> {
        if self.config.planted.is_some() || self.residency.index().files() > CHECKED_MAX {
            return Ok(());
        }
        self.residency.check()?;
        let fetched = self.fetches.iter().filter_map(|(_, f)| f.loc).map(Loc::weu);
        let superseded = self.packing.all().iter().flat_map(|c| &c.supersedes).chain(self.durability.superseded());
        self.residency.check_pins(fetched.chain(superseded.flat_map(|s| [s.place.weu(), s.bytes_in])))?;
        self.packing.check()?;
        for c in self.packing.all() {
            let w = self.residency.weu(c.weu);
            if (w.sequence, w.partition, w.for_dirty) != (c.sequence, c.part, c.dirty)
                || (w.state != WeuState::Open && !c.closed)
            {
                return Err(format!("WEU {} is {w:?}, and a chunk in memory is of {}", c.weu, c.sequence));
            }
        }
        self.dirty.check()?;
        let dirty: u64 = self.residency.index().weus().iter().map(|w| u64::from(w.dirty)).sum();
        let of_volumes: u64 = self.volumes.iter().map(|v| v.dirty).sum();
        let known = self.dirty.len() as u64;
        if (known, known) != (dirty, of_volumes) {
            return Err(format!("{known} extents are dirty, {dirty} in WEUs and {of_volumes} of volumes"));
        }
        for (key, loc) in self.residency.index().entries().filter(|e| e.1.is_dirty()) {
            let weus = [loc.weu(), self.residency.named_at(key, loc).weu()];
            if self.dirty.weus_of(&key) != Some(weus) {
                return Err(format!("{key:?} is dirty in WEUs {weus:?}, not {:?}", self.dirty.weus_of(&key)));
            }
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

    /// A header's entry is no longer true: it never becomes so; or the journal says it, at once, when the dirty entry `by` of
    /// the newer content is durable, or when its WEU is confirmed.
    fn supersede(&mut self, old: Superseded, by: Option<Loc>) {
        let Superseded { key, place, bytes_in } = old;
        if self.packing.kill(place) {
            return;
        }
        match by.is_some_and(|by| self.packing.supersede(by, old)) {
            true => {
                self.residency.pin(place.weu());
                self.residency.pin(bytes_in);
            }
            false => self.durability.died(&mut self.residency.bits(), key, place),
        }
    }
}
