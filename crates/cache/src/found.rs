//! Entries found after a restart, and the index that they become, at once.

use crate::index::{FileEntry, Index};
use crate::place::{Key, Loc, mix};
use crate::table::{Bulk, Entry};
use crate::weu::set_bit;

/// A duplicate, as a header names it.
#[derive(Clone, Copy)]
struct Name {
    key: u64,
    /// The place of the header's entry.
    own: Loc,
    /// The place of its bytes, as the duplicate that it is, dirty or clean, ...
    target: Loc,
    /// ... if that WEU still has this number.
    sequence: u64,
}

impl Entry for Name {
    type Key = u64;
    fn key(&self) -> u64 {
        self.key
    }
    fn hash(key: u64) -> u64 {
        mix(key)
    }
}

/// Results for the duplicates that headers name.
#[derive(Default)]
pub struct Named {
    /// Those that count, in order, and where a header says so.
    pub refs: Vec<(Key, Loc)>,
    /// Those of which a dirty name was found, whether it counts or not.
    pub dirty: Vec<Key>,
    /// Those that are dirty, and whose bytes aren't there.
    pub lost: Vec<Key>,
}

/// See the module's documentation.
pub struct Found {
    files: Bulk<FileEntry>,
    dirty: Vec<Key>,
    /// Extents of each WEU.
    live: Vec<u32>,
    names: Bulk<Name>,
    /// A planted mistake: lost duplicates are left out.
    pub forgets_lost: bool,
}

impl Found {
    /// Nothing yet, of WEUs that hold about `extents`.
    pub fn new(extents: usize) -> Found {
        let (dirty, live) = (Vec::new(), Vec::new());
        Found { files: Bulk::new(extents), dirty, live, names: Bulk::new(extents), forgets_lost: false }
    }

    /// `key` is at `loc`.
    pub fn extent(&mut self, key: Key, loc: Loc) {
        if loc.is_dirty() {
            self.dirty.push(key);
        }
        let weu = loc.weu() as usize;
        if self.live.len() <= weu {
            self.live.resize(weu + 1, 0);
        }
        self.live[weu] += 1;
        self.files.push(FileEntry { key: key.0, loc: loc.bits(), generation: 0 });
    }

    /// A header says at `own` that `key` is a duplicate, whose bytes are at `target` if that WEU has number `sequence`.
    pub fn name(&mut self, key: Key, own: Loc, target: Loc, sequence: u64) {
        self.names.push(Name { key: key.0, own, target, sequence });
    }

    /// Extents so far.
    pub fn extents(&self) -> usize {
        self.files.len()
    }
}

impl Index {
    /// Takes in all that was found after a restart, into an index that holds nothing. Of two entries of one extent that counts
    /// which is later in `order`; the other is dead from now on. Of volumes that aren't `there` no duplicate counts. Returns the
    /// extents of which a dirty entry was found, whether it counts or not, and what became of duplicates.
    pub fn load<T: Ord>(
        &mut self,
        found: Found,
        order: impl Fn(Loc) -> T,
        there: impl Fn(u16) -> bool,
    ) -> (Vec<Key>, Named) {
        assert!(self.files.is_empty());
        let room = self.files.room().max(found.files.len() + found.names.len());
        let (weus, mut live) = (&mut self.weus, found.live);
        self.files = found.files.build(
            room,
            |_| true,
            |there, other| {
                let (there, other) = (Loc::of_bits(there.loc), Loc::of_bits(other.loc));
                let replaces = order(other) > order(there);
                let loser = if replaces { there } else { other };
                set_bit(&mut weus[loser.weu() as usize].dead, loser.slot());
                live[loser.weu() as usize] -= 1;
                replaces
            },
        );
        (0..).zip(&live).for_each(|(weu, n)| self.orders.found(weu, *n));
        // Nothing is looked at but what may be dirty: a walk over tens of millions takes a second.
        let mut dirty = found.dirty;
        dirty.sort_unstable();
        dirty.dedup();
        for key in &dirty {
            if let Some(loc) = self.look(*key) {
                self.weus[loc.weu() as usize].dirty += u32::from(loc.is_dirty());
            }
        }
        let mut named = Named::default();
        // In the order in which the table was filled: looked up everywhere at once each would take several times as long.
        for mut part in found.names.into_parts() {
            part.sort_unstable_by_key(|n| n.key);
            for same in part.chunk_by(|a, b| a.key == b.key) {
                if there(Key(same[0].key).volume()) {
                    self.load_names(same, &order, found.forgets_lost, &mut named);
                }
            }
        }
        named.refs.sort_unstable_by_key(|r| r.0);
        named.lost.sort_unstable();
        (dirty, named)
    }

    /// Takes in the names of one extent: the latest entry of it counts, also if that is a dirty name whose bytes aren't there. It is
    /// lost then, and nothing older stands for it.
    fn load_names<T: Ord>(&mut self, same: &[Name], order: &impl Fn(Loc) -> T, forgets: bool, named: &mut Named) {
        let key = Key(same[0].key);
        let mut best: Option<&Name> = None;
        for n in same {
            if n.target.is_dirty() {
                named.dirty.push(key);
            }
            // What a clean name names, and isn't there, the slow device has.
            let counts = self.is_there(n) || (n.target.is_dirty() && !forgets);
            let loser = match best {
                _ if !counts => n,
                Some(b) if order(b.own) > order(n.own) => n,
                _ => match best.replace(n) {
                    Some(b) => b,
                    None => continue,
                },
            };
            self.kill_found(loser.own);
        }
        let Some(best) = best else { return };
        // Of a lost one the header's entry is all that there is.
        let lost = !self.is_there(best);
        let loc = if lost { best.own.dirty(true) } else { best.target };
        let entry = FileEntry { key: key.0, loc: loc.bits(), generation: 0 };
        if let Some(at) = self.files.find_or_insert(entry) {
            let old = Loc::of_bits(self.files.get(at).loc);
            if order(old) > order(best.own) {
                return self.kill_found(best.own);
            }
            self.kill_found(old);
            self.uncount_at(old);
            self.files.change(at, |e| e.loc = entry.loc);
        }
        self.count(loc);
        match lost {
            true => named.lost.push(key),
            false => named.refs.push((key, best.own)),
        }
    }

    /// True if the WEU that has a duplicate's bytes is the one that its name means.
    fn is_there(&self, n: &Name) -> bool {
        self.weus[n.target.weu() as usize].sequence == n.sequence
    }

    fn kill_found(&mut self, own: Loc) {
        set_bit(&mut self.weus[own.weu() as usize].dead, own.slot());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::new(3, n)
    }

    /// Loaded at once or set one by one, the same is there.
    #[test]
    fn what_is_found_is_as_if_it_had_been_set() {
        const SEQUENCES: [u64; 8] = [3, 9, 1, 7, 2, 8, 4, 6];
        let mut rng = plimsoll_base::Rng::new(5, "found");
        let (mut found, mut model) = (Found::new(100), std::collections::BTreeMap::new());
        let mut i = Index::new(8, 150, 0);
        i.add_partition(8);
        for weu in 0..8 {
            i.weu_mut(weu).sequence = SEQUENCES[weu as usize];
            for slot in 0..30 {
                let (n, loc) = (rng.below(100), Loc::new(weu, slot * 10, 10, slot).dirty(weu == 5));
                found.extent(key(n), loc);
                let at = (i.weu(weu).sequence, slot, loc);
                let e = model.entry(n).or_insert(at);
                *e = if (at.0, at.1) > (e.0, e.1) { at } else { *e };
            }
        }
        let (were_dirty, _) = i.load(found, |loc| (SEQUENCES[loc.weu() as usize], loc.slot()), |_| true);
        assert_eq!(i.files(), model.len());
        assert!(were_dirty.iter().all(|k| i.look(*k).is_some()));
        let mut dirty = 0;
        for (n, (_, _, loc)) in &model {
            assert_eq!(i.look(key(*n)), Some(*loc));
            assert!(!i.weu(loc.weu()).is_dead(loc.slot()));
            dirty += u32::from(loc.is_dirty());
            assert!(!loc.is_dirty() || were_dirty.contains(&key(*n)));
        }
        assert_eq!(i.weu(5).dirty, dirty);
        let dead: u32 = i.weus().iter().flat_map(|w| &w.dead).map(|b| b.count_ones()).sum();
        assert_eq!(dead as usize, 240 - model.len(), "who lost is dead");
    }

    /// Names of duplicates, some whose bytes are gone, some superseded by names or extents, against what is set one by one.
    #[test]
    fn names_count_if_they_are_the_latest_and_their_bytes_are_there() {
        let mut rng = plimsoll_base::Rng::new(6, "names");
        let mut found = Found::new(300);
        let mut i = Index::new(8, 150, 0);
        i.add_partition(8);
        // All that is said of each extent: when, where, and what it then points at (nothing if that is gone).
        let mut said: std::collections::BTreeMap<u64, Vec<(u64, Loc, Option<Loc>)>> = Default::default();
        for weu in 0..8u32 {
            i.weu_mut(weu).sequence = 100 + u64::from(weu);
            for slot in 0..40 {
                let (n, dirty) = (rng.below(60), weu == 5);
                let own = Loc::new(weu, slot * 10, 10, slot);
                let when = u64::from(weu) << 32 | u64::from(slot);
                if rng.chance(0.5) {
                    found.extent(key(n), own.dirty(dirty));
                    said.entry(n).or_default().push((when, own, Some(own.dirty(dirty))));
                } else {
                    let to = rng.below(8) as u32;
                    let gone = rng.chance(0.2);
                    let target = Loc::new(to, 7, 7, 50 + slot).dup(true).dirty(dirty);
                    found.name(key(n), own, target, 100 + u64::from(to) + if gone { 50 } else { 0 });
                    said.entry(n).or_default().push((when, own, (!gone).then_some(target)));
                }
            }
        }
        let (_, named) = i.load(found, |l| u64::from(l.weu()) << 32 | u64::from(l.slot()), |_| true);
        let (mut names, mut lost, mut in_use) = (0, 0, [0; 8]);
        for (n, all) in &said {
            let is_dirty = |s: &(u64, Loc, Option<Loc>)| s.1.weu() == 5;
            let latest = all.iter().filter(|s| s.2.is_some() || is_dirty(s)).max_by_key(|s| s.0);
            let lost_at = |own: Loc| own.dirty(true);
            assert_eq!(i.look(key(*n)), latest.map(|s| s.2.unwrap_or(lost_at(s.1))), "extent {n}");
            for s in all {
                let counts = latest.is_some_and(|l| l.0 == s.0);
                assert_eq!(i.weu(s.1.weu()).is_dead(s.1.slot()), !counts, "extent {n}");
            }
            if let Some((_, own, at)) = latest {
                let is_lost = at.is_none();
                assert_eq!(named.lost.contains(&key(*n)), is_lost, "extent {n}");
                lost += usize::from(is_lost);
                let at = at.unwrap_or(lost_at(*own));
                in_use[at.weu() as usize] += u32::from(at.is_dirty());
                let name = named.refs.binary_search_by_key(&key(*n), |r| r.0).map(|at| named.refs[at].1);
                assert_eq!(name.ok(), at.is_dup().then_some(*own));
                names += usize::from(at.is_dup());
            }
        }
        assert_eq!((named.refs.len(), named.lost.len()), (names, lost));
        assert!(names > 10 && lost > 0, "{names} {lost}");
        assert!((0..8).all(|w| i.weu(w).dirty == in_use[w as usize]));
        let mut none = Index::new(1, 0, 0);
        let mut found = Found::new(1);
        found.name(key(1), Loc::new(0, 0, 1, 0), Loc::new(0, 0, 1, 1).dup(true), 0);
        assert!(none.load(found, |l| l.slot(), |_| false).1.refs.is_empty(), "its volume is gone");
        assert!(none.look(key(1)).is_none());
    }
}
