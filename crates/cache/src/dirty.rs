//! Dirty extents and their WEUs. Some of them can't be written back now. Others are on the slow device already, and the journal's record of
//! that isn't durable yet.

use crate::index::{Key, Loc};
use crate::layer::Cache;
use plimsoll_base::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Dirty {
    /// The WEU that has its bytes, and the one whose header names it.
    keys: BTreeMap<Key, [u32; 2]>,
    /// The same, by WEU.
    places: BTreeSet<(u32, Key)>,
    /// Slots of volumes that have any.
    volumes: BTreeSet<u16>,
    /// Those not to be tried before this: refused, or [`Time::NEVER`] if unreadable or of a volume that isn't announced.
    held: BTreeMap<Key, Time>,
    /// Number of those in each WEU, which can't be evicted while there are any.
    held_in: BTreeMap<u32, u32>,
    /// Those that were refused together with others: tried alone.
    alone: BTreeSet<Key>,
    /// Written back, and the number of the journal's record of it: until that is durable, a start trusts the cache's copy.
    cleaned: VecDeque<(u64, Key)>,
    /// The content of `cleaned` when the fast device failed.
    uncertain: BTreeSet<Key>,
    /// Extents that were dirty when all were asked to be written back, and haven't been written back since.
    wanted: BTreeSet<Key>,
    /// Duplicates whose content no start can find: the header of the WEU that has it is corrupt. Their place in the index is the header's
    /// entry that names them, which keeps them lost over restarts.
    lost: BTreeSet<Key>,
    /// Counts the changes of what is at risk.
    changes: u64,
}

impl Dirty {
    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.keys.contains_key(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Bytes that all of it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let extents = self.keys.len() as u64 * 40;
        let keys = self.wanted.len() + self.alone.len() + self.lost.len();
        extents + (self.held.len() * 16 + keys * 8 + self.cleaned.len() * 16) as u64
    }

    /// Slots of volumes that have any.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = u16> + '_ {
        self.volumes.iter().copied()
    }

    /// Those from `from` on and before `to`.
    pub(crate) fn range(&self, from: Key, to: Key) -> impl Iterator<Item = Key> + '_ {
        self.keys.range(from.min(to)..to).map(|k| *k.0)
    }

    /// A volume's.
    pub(crate) fn of_volume(&self, slot: u16) -> impl Iterator<Item = Key> + '_ {
        self.range(Key::new(slot, 0), Key::new(slot + 1, 0))
    }

    /// Those whose bytes, or names, are in a WEU.
    pub(crate) fn in_weu(&self, weu: u32) -> impl Iterator<Item = Key> + '_ {
        self.places.range((weu, Key::new(0, 0))..(weu + 1, Key::new(0, 0))).map(|p| p.1)
    }

    fn insert(&mut self, key: Key, weus: [u32; 2]) {
        self.changes += 1;
        self.keys.insert(key, weus);
        self.places.extend(weus.map(|w| (w, key)));
        self.volumes.insert(key.volume());
    }

    fn remove(&mut self, key: Key) -> bool {
        self.release(key);
        self.alone.remove(&key);
        self.lost.remove(&key);
        let Some(weus) = self.keys.remove(&key) else { return false };
        self.changes += 1;
        for weu in weus {
            self.places.remove(&(weu, key));
        }
        if self.of_volume(key.volume()).next().is_none() {
            self.volumes.remove(&key.volume());
        }
        true
    }

    /// The extent isn't written back again before `until`.
    pub(crate) fn hold(&mut self, key: Key, until: Time) {
        let Some(weus) = self.keys.get(&key) else { return };
        if self.held.insert(key, until).is_none() {
            for weu in places_of(*weus) {
                *self.held_in.entry(weu).or_default() += 1;
            }
        }
        if until == Time::NEVER {
            self.wanted.remove(&key);
        }
    }

    /// It may be tried.
    pub(crate) fn release(&mut self, key: Key) {
        if self.held.remove(&key).is_none() {
            return;
        }
        for weu in places_of(self.keys[&key]) {
            let n = self.held_in.get_mut(&weu).expect("counted when it was held");
            *n -= 1;
            if *n == 0 {
                self.held_in.remove(&weu);
            }
        }
    }

    /// All of a volume's may be tried.
    pub(crate) fn release_volume(&mut self, slot: u16) {
        let of_it: Vec<Key> = self.held.range(Key::new(slot, 0)..Key::new(slot + 1, 0)).map(|k| *k.0).collect();
        of_it.into_iter().for_each(|k| self.release(k));
    }

    /// True if an extent must still wait.
    pub(crate) fn is_held(&self, key: Key, now: Time) -> bool {
        self.held.get(&key).is_some_and(|until| *until > now)
    }

    /// True if any extent waits.
    pub(crate) fn is_any_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// True if an extent couldn't be written back when it was tried last, or can't be read.
    pub(crate) fn is_refused(&self, key: &Key) -> bool {
        self.held.contains_key(key)
    }

    /// The extents of a volume that the slow device refused when they were tried last.
    pub(crate) fn refused_of(&self, slot: u16) -> impl Iterator<Item = Key> + '_ {
        let of_it = self.held.range(Key::new(slot, 0)..Key::new(slot + 1, 0));
        of_it.filter(|(_, until)| **until != Time::NEVER).map(|(k, _)| *k)
    }

    /// True if a WEU has an extent that can't be written back for now.
    pub(crate) fn is_stuck(&self, weu: u32) -> bool {
        self.held_in.contains_key(&weu)
    }

    /// It was refused as one of several: the next time it's tried alone.
    pub(crate) fn set_alone(&mut self, key: Key) {
        if self.contains(&key) {
            self.alone.insert(key);
        }
    }

    pub(crate) fn is_alone(&self, key: Key) -> bool {
        self.alone.contains(&key)
    }

    /// Marks a dirty extent as lost until it is written again.
    pub(crate) fn set_lost(&mut self, key: Key) {
        if self.contains(&key) {
            self.lost.insert(key);
            self.hold(key, Time::NEVER);
        }
    }

    /// True if nothing is known of a dirty extent but that it was written.
    pub(crate) fn is_lost(&self, key: Key) -> bool {
        self.lost.contains(&key)
    }

    /// The slow device has it; the journal's record `number` says so.
    pub(crate) fn cleaned(&mut self, key: Key, number: u64) {
        self.cleaned.push_back((number, key));
    }

    /// The journal's records up to `number` are durable.
    pub(crate) fn journaled(&mut self, number: u64) {
        while self.cleaned.front().is_some_and(|c| c.0 <= number) {
            self.cleaned.pop_front();
        }
    }

    /// The journal gets no further: the next start will take the cache's copy of each extent in `cleaned` for the latest.
    pub(crate) fn break_down(&mut self) {
        self.changes += 1;
        self.uncertain = self.cleaned.drain(..).map(|c| c.1).collect();
    }

    /// True if the next start would take the cache's copy of `key` for the latest, after the fast device has failed.
    pub(crate) fn is_at_risk(&self, key: &Key) -> bool {
        self.contains(key) || self.uncertain.contains(key)
    }

    /// True if any extent is at risk.
    pub(crate) fn is_any_at_risk(&self) -> bool {
        !self.keys.is_empty() || !self.uncertain.is_empty()
    }

    /// True if any extent of a volume is at risk.
    pub(crate) fn has_risk(&self, slot: u16) -> bool {
        let mut uncertain = self.uncertain.range(Key::new(slot, 0)..Key::new(slot + 1, 0));
        self.of_volume(slot).next().is_some() || uncertain.next().is_some()
    }

    /// The extents of a volume that are at risk.
    pub(crate) fn risks_of(&self, slot: u16) -> BTreeSet<Key> {
        let more = self.uncertain.range(Key::new(slot, 0)..Key::new(slot + 1, 0)).copied();
        self.of_volume(slot).chain(more).collect()
    }

    /// A number that changes whenever [`Dirty::risks_of`] may.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// True if the journal's record that the slow device has all of a volume isn't durable yet.
    pub(crate) fn is_cleaning(&self, slot: u16) -> bool {
        self.cleaned.iter().any(|c| c.1.volume() == slot)
    }

    /// All that is dirty now is to be written back.
    pub(crate) fn want_all(&mut self) {
        let held = &self.held;
        self.wanted.extend(self.keys.keys().filter(|k| held.get(k) != Some(&Time::NEVER)));
    }

    /// The slow device has what was dirty then, or something newer.
    pub(crate) fn mark_written_back(&mut self, key: &Key) {
        self.wanted.remove(key);
    }

    /// Number of extents of [`Dirty::want_all`] that aren't written back yet.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted.len()
    }

    /// Of a volume that is gone, nothing matters.
    fn forget(&mut self, slot: u16) {
        self.changes += 1;
        let mine = |k: &Key| k.volume() == slot;
        self.wanted.retain(|k| !mine(k));
        self.uncertain.retain(|k| !mine(k));
        self.cleaned.retain(|c| !mine(&c.1));
    }
}

/// Its WEUs, each once.
fn places_of(weus: [u32; 2]) -> impl Iterator<Item = u32> {
    let second = (weus[1] != weus[0]).then_some(weus[1]);
    std::iter::once(weus[0]).chain(second)
}

impl Cache {
    /// Only the cache has `key` now, at `loc`; a header says so at `own`, if not there.
    pub(crate) fn mark_dirty(&mut self, key: Key, loc: Loc, own: Option<Loc>) {
        debug_assert!(!self.dirty.contains(&key));
        self.dirty.insert(key, [loc.weu(), own.unwrap_or(loc).weu()]);
        self.volumes[key.volume() as usize].dirty += 1;
    }

    /// True if it was dirty.
    pub(crate) fn mark_clean(&mut self, key: Key) -> bool {
        let was_dirty = self.dirty.remove(key);
        if was_dirty {
            self.destage_changed(key);
            let v = &mut self.volumes[key.volume() as usize];
            v.dirty -= 1;
            v.draining &= v.dirty > 0;
        }
        was_dirty
    }

    /// Nothing of a volume is dirty any more: it is gone.
    pub(crate) fn forget_dirty(&mut self, slot: u16) {
        for k in self.dirty.of_volume(slot).collect::<Vec<_>>() {
            let was_dirty = self.mark_clean(k);
            self.index.remove(k);
            self.take_reference(k, was_dirty);
        }
        self.dirty.forget(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    /// Against sets that are searched from one end to the other.
    #[test]
    fn what_is_held_where_is_counted_right() {
        let mut rng = Rng::new(3, "dirty");
        let (mut d, mut model) = (Dirty::default(), BTreeMap::<Key, ([u32; 2], Option<Time>)>::new());
        let mut risks = (vec![BTreeSet::new(); 3], d.changes());
        for _ in 0..20_000 {
            let key = Key::new(rng.below(3) as u16, rng.below(40));
            let at = |rng: &mut Rng| Time::from_nanos(rng.below(100));
            match rng.below(6) {
                0 | 1 => {
                    let weus = [rng.below(6) as u32, rng.below(6) as u32];
                    assert_eq!(d.remove(key), model.remove(&key).is_some());
                    d.insert(key, weus);
                    model.insert(key, (weus, None));
                }
                2 => assert_eq!(d.remove(key), model.remove(&key).is_some()),
                3 => {
                    let until = if rng.chance(0.3) { Time::NEVER } else { at(&mut rng) };
                    d.hold(key, until);
                    model.entry(key).and_modify(|m| m.1 = Some(until));
                }
                4 => {
                    d.release(key);
                    model.entry(key).and_modify(|m| m.1 = None);
                }
                _ => {
                    d.release_volume(key.volume());
                    model.iter_mut().filter(|m| m.0.volume() == key.volume()).for_each(|m| m.1.1 = None);
                }
            }
            let now = at(&mut rng);
            assert_eq!(d.is_held(key, now), model.get(&key).is_some_and(|m| m.1.is_some_and(|t| t > now)));
            for weu in 0..6 {
                let here = |m: &(&Key, &([u32; 2], Option<Time>))| m.1.0.contains(&weu);
                assert!(d.in_weu(weu).eq(model.iter().filter(here).map(|m| *m.0)));
                assert_eq!(d.is_stuck(weu), model.iter().filter(here).any(|m| m.1.1.is_some()));
            }
            let volumes: BTreeSet<u16> = model.keys().map(|k| k.volume()).collect();
            assert!(d.volumes().eq(volumes) && d.len() == model.len());
            let now: Vec<BTreeSet<Key>> = (0..3).map(|slot| d.risks_of(slot)).collect();
            let (then, changes) = std::mem::replace(&mut risks, (now, d.changes()));
            assert!(then == risks.0 || changes != risks.1, "what is at risk has changed, and nobody is told");
        }
    }
}
