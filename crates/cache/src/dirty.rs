//! Dirty extents and their WEUs. Some of them can't be written back now. Others are on the slow device already, and the journal's record of
//! that isn't durable yet.
//!
//! [`Dirty`] doesn't know what else is cached, and how an extent is written back.

use crate::config::Planted;
use crate::index::Key;
use plimsoll_base::Time;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Dirty {
    planted: Option<Planted>,
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
    /// None are dirty.
    pub(crate) fn new(planted: Option<Planted>) -> Dirty {
        Dirty { planted, ..Dirty::default() }
    }

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

    /// The WEU that has the bytes of a dirty extent, and the one whose header names it.
    pub(crate) fn weus_of(&self, key: &Key) -> Option<[u32; 2]> {
        self.keys.get(key).copied()
    }

    /// An extent is dirty that wasn't: the WEU that has its bytes, and the one whose header names it.
    pub(crate) fn insert(&mut self, key: Key, weus: [u32; 2]) {
        debug_assert!(!self.contains(&key));
        self.changes += 1;
        self.keys.insert(key, weus);
        self.places.extend(weus.map(|w| (w, key)));
        self.volumes.insert(key.volume());
    }

    /// An extent isn't dirty any more. Returns whether it was.
    pub(crate) fn remove(&mut self, key: Key) -> bool {
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
        if Planted::ForgetCleaning.is_in(self.planted) {
            return;
        }
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
    pub(crate) fn forget(&mut self, slot: u16) {
        self.changes += 1;
        let mine = |k: &Key| k.volume() == slot;
        self.wanted.retain(|k| !mine(k));
        self.uncertain.retain(|k| !mine(k));
        self.cleaned.retain(|c| !mine(&c.1));
    }

    /// Checks what must hold after each event, for `Cache::check_truth`. It looks at all dirty extents.
    ///
    /// # Errors
    /// The rule that is broken.
    pub(crate) fn check(&self) -> Result<(), String> {
        let rule = |holds: bool, why: &str| if holds { Ok(()) } else { Err(why.to_string()) };
        let known = |key: &Key| self.keys.contains_key(key);
        let places: BTreeSet<(u32, Key)> =
            self.keys.iter().flat_map(|(key, weus)| places_of(*weus).map(|weu| (weu, *key))).collect();
        rule(self.places == places, "dirty extents aren't in the WEUs that have them")?;
        let volumes: BTreeSet<u16> = self.keys.keys().map(|key| key.volume()).collect();
        rule(self.volumes == volumes, "dirty extents aren't of the volumes that have any")?;
        let mut held_in: BTreeMap<u32, u32> = BTreeMap::new();
        for key in self.held.keys() {
            let weus = self.keys.get(key).ok_or_else(|| format!("{key:?} is held, and isn't dirty"))?;
            places_of(*weus).for_each(|weu| *held_in.entry(weu).or_default() += 1);
        }
        rule(self.held_in == held_in, "held extents are counted wrong in their WEUs")?;
        rule(self.alone.iter().all(known) && self.lost.iter().all(known), "what isn't dirty is tried alone, or lost")?;
        rule(self.cleaned.iter().is_sorted_by_key(|c| c.0), "records of what is clean are out of order")
    }
}

/// Its WEUs, each once.
fn places_of(weus: [u32; 2]) -> impl Iterator<Item = u32> {
    let second = (weus[1] != weus[0]).then_some(weus[1]);
    std::iter::once(weus[0]).chain(second)
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
            d.check().unwrap();
            let now: Vec<BTreeSet<Key>> = (0..3).map(|slot| d.risks_of(slot)).collect();
            let (then, changes) = std::mem::replace(&mut risks, (now, d.changes()));
            assert!(then == risks.0 || changes != risks.1, "what is at risk has changed, and nobody is told");
        }
    }

    /// True if the next start is known to trust the cache's copy of an extent that was written back, and whose record isn't durable
    /// when the device fails.
    fn is_at_risk_without_its_record(planted: Option<Planted>) -> bool {
        let (key, other) = (Key::new(1, 7), Key::new(1, 8));
        let mut d = Dirty::new(planted);
        for (key, record) in [(other, 4), (key, 5)] {
            d.insert(key, [2, 3]);
            assert!(d.remove(key) && !d.is_at_risk(&key));
            d.cleaned(key, record);
        }
        d.journaled(4);
        let is_cleaning = d.is_cleaning(1);
        d.break_down();
        d.check().unwrap();
        assert!(!d.is_at_risk(&other) && d.is_at_risk(&key) == is_cleaning && d.has_risk(1) == is_cleaning);
        is_cleaning
    }

    #[test]
    fn what_is_written_back_is_at_risk_until_the_journal_says_so_and_the_mistake_is_found() {
        assert!(is_at_risk_without_its_record(None));
        assert!(!is_at_risk_without_its_record(Some(Planted::ForgetCleaning)), "it is found");
    }

    /// All that is dirty when it is asked for, but what can't be read, and no more than that.
    #[test]
    fn what_is_wanted_is_what_was_dirty_then() {
        let mut d = Dirty::new(None);
        (0..4).for_each(|n| d.insert(Key::new(0, n), [1, 1]));
        d.set_lost(Key::new(0, 3));
        d.want_all();
        d.insert(Key::new(0, 9), [1, 1]);
        assert_eq!(d.wanted(), 3);
        d.hold(Key::new(0, 2), Time::NEVER);
        d.mark_written_back(&Key::new(0, 0));
        d.mark_written_back(&Key::new(0, 9));
        assert_eq!(d.wanted(), 1);
        d.forget(0);
        assert_eq!(d.wanted(), 0);
    }
}
