//! Ranges in flight at the front, and those of them that a new one must wait for.
//!
//! Two ranges conflict if they share bytes of a volume and at least one of them changes these. A new one waits
//! for some of its conflicts only: once those have ended, all others have. A change waits for everything older that it overlaps, so
//! where one covers the new range, it needn't wait for anything older than that change. So a thousand writes of the same block
//! are a chain, not a thousand times a thousand waits.
//!
//! Cost: a range is recorded in each 64 KiB granule that it touches, by hash. A search reads the notes of its own granules, newest
//! first, up to a change that covers it there; so it looks at others' requests too, but at those only that are near or have the same
//! hash. Ranges of more than [`GRANULES_MAX`] granules are recorded once, in a list that volumes share by hash. Each search reads that
//! list, too, and a search for such a range reads every note. Nothing is allocated once the table of notes has grown.

use plimsoll_base::VolumeKey;

/// A range of bytes of a volume, not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Range {
    pub volume: VolumeKey,
    /// Its first byte.
    pub from: u64,
    /// The byte after its last.
    pub to: u64,
    /// True if its request changes it, false if it only reads.
    pub is_change: bool,
}

impl Range {
    pub fn conflicts(&self, other: &Range) -> bool {
        (self.is_change || other.is_change) && self.shares(other.volume, other.from, other.to)
    }

    fn shares(&self, volume: VolumeKey, from: u64, to: u64) -> bool {
        self.volume == volume && self.from < to && from < self.to
    }

    fn covers(&self, from: u64, to: u64) -> bool {
        self.from <= from && to <= self.to
    }
}

/// Takes a range out again: see [`Conflicts::add`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Noted(u32);

/// See the module's documentation.
pub(crate) struct Conflicts {
    notes: Vec<Note>,
    /// The first note that isn't in use, linked by `older`.
    free: u32,
    lists: Box<[Lists]>,
    /// Number of ranges that are recorded by granule.
    small: usize,
    /// Number of ranges that are recorded once, as they are too large.
    large: usize,
    /// Number of ranges added so far: gives their order.
    added: u64,
}

/// Notes of one granule (or of what has its hash), newest first.
#[derive(Clone, Copy)]
struct Lists {
    changes: u32,
    reads: u32,
}

/// A range in one of its granules.
struct Note {
    range: Range,
    /// Place of its request.
    owner: u32,
    /// Order of its coming.
    number: u64,
    list: u32,
    newer: u32,
    older: u32,
    /// The note of the same range in its next granule.
    next: u32,
    /// It is its range's first note; false for notes that aren't in use.
    is_first: bool,
}

const NONE: u32 = u32::MAX;
const GRANULE_SHIFT: u32 = 16;
const GRANULES_MAX: u64 = 64;
/// Lists of granules, and after them those of large ranges.
const GRANULE_LISTS: usize = 4096;
const LARGE_LISTS: usize = 64;

impl Conflicts {
    pub fn new() -> Conflicts {
        let empty = Lists { changes: NONE, reads: NONE };
        Conflicts {
            notes: Vec::new(),
            free: NONE,
            lists: vec![empty; GRANULE_LISTS + LARGE_LISTS].into_boxed_slice(),
            small: 0,
            large: 0,
            added: 0,
        }
    }

    /// Notes a range of the request at `owner`, until [`Conflicts::remove`].
    pub fn add(&mut self, range: Range, owner: usize) -> Noted {
        self.added += 1;
        let Some(granules) = granules(&range) else {
            self.large += 1;
            return Noted(self.note(range, owner, large_list(&range), NONE));
        };
        let mut first = NONE;
        for g in granules.rev() {
            first = self.note(range, owner, granule_list(&range, g), first);
        }
        self.notes[first as usize].is_first = true;
        self.small += 1;
        Noted(first)
    }

    fn note(&mut self, range: Range, owner: usize, list: usize, next: u32) -> u32 {
        let head = self.lists[list].of(range.is_change);
        let is_large = list >= GRANULE_LISTS;
        let note = Note {
            range,
            owner: u32::try_from(owner).expect("fewer requests than 2 to the 32nd"),
            number: self.added,
            list: list as u32,
            newer: NONE,
            older: *head,
            next,
            is_first: is_large,
        };
        let at = match self.free {
            NONE => {
                self.notes.push(note);
                (self.notes.len() - 1) as u32
            }
            free => {
                self.free = self.notes[free as usize].older;
                self.notes[free as usize] = note;
                free
            }
        };
        let older = std::mem::replace(head, at);
        if let Some(older) = self.notes.get_mut(older as usize) {
            older.newer = at;
        }
        at
    }

    /// Takes out a range that has ended.
    pub fn remove(&mut self, Noted(mut at): Noted) {
        let is_small = (self.notes[at as usize].list as usize) < GRANULE_LISTS;
        *(if is_small { &mut self.small } else { &mut self.large }) -= 1;
        while at != NONE {
            let note = &mut self.notes[at as usize];
            note.is_first = false;
            let (newer, older, next) = (note.newer, note.older, note.next);
            let (list, is_change) = (note.list as usize, note.range.is_change);
            note.older = self.free;
            self.free = at;
            match self.notes.get_mut(newer as usize) {
                Some(newer) => newer.older = older,
                None => *self.lists[list].of(is_change) = older,
            }
            if let Some(older) = self.notes.get_mut(older as usize) {
                older.newer = newer;
            }
            at = next;
        }
    }

    /// Calls `visit` with the places of the requests that one for `range` must wait for, some of them more than once.
    pub fn blockers(&self, range: &Range, mut visit: impl FnMut(usize)) {
        let whole = (range.from, range.to);
        let since = if self.large == 0 { 0 } else { self.walk(large_list(range), range, whole, 0, &mut visit) };
        // One request at a time is a common load, and its instructions are counted (bench/request_cost.py).
        if self.small == 0 {
            return;
        }
        match granules(range) {
            Some(granules) => {
                for g in granules {
                    let (from, to) = (g << GRANULE_SHIFT, (g + 1) << GRANULE_SHIFT);
                    let part = (range.from.max(from), range.to.min(to));
                    self.walk(granule_list(range, g), range, part, since, &mut visit);
                }
            }
            None => {
                let small = |n: &&Note| n.is_first && (n.list as usize) < GRANULE_LISTS;
                let of_all = self.notes.iter().filter(small).take(self.small);
                of_all.filter(|n| n.number >= since && n.range.conflicts(range)).for_each(|n| visit(n.owner as usize));
            }
        }
    }

    /// Visits the requests of a list that share `part` of `range`, no older than number `since`. Returns the number of the newest
    /// change that covers the part: older ones need no visit.
    fn walk(
        &self,
        list: usize,
        range: &Range,
        (from, to): (u64, u64),
        mut since: u64,
        visit: &mut impl FnMut(usize),
    ) -> u64 {
        let lists = self.lists[list];
        let mut at = lists.changes;
        while let Some(note) = self.notes.get(at as usize).filter(|n| n.number >= since) {
            if note.range.shares(range.volume, from, to) {
                visit(note.owner as usize);
                if note.range.covers(from, to) {
                    since = note.number;
                }
            }
            at = note.older;
        }
        at = if range.is_change { lists.reads } else { NONE };
        while let Some(note) = self.notes.get(at as usize).filter(|n| n.number >= since) {
            if note.range.shares(range.volume, from, to) {
                visit(note.owner as usize);
            }
            at = note.older;
        }
        since
    }
}

impl Lists {
    fn of(&mut self, is_change: bool) -> &mut u32 {
        if is_change { &mut self.changes } else { &mut self.reads }
    }
}

/// Numbers of the granules that a range touches; `None` if they are too many.
fn granules(range: &Range) -> Option<impl DoubleEndedIterator<Item = u64> + use<>> {
    let (first, last) = (range.from >> GRANULE_SHIFT, (range.to - 1) >> GRANULE_SHIFT);
    (last - first < GRANULES_MAX).then_some(first..=last)
}

fn salt(range: &Range) -> u64 {
    u64::from(range.volume.id).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn granule_list(range: &Range, granule: u64) -> usize {
    (granule.wrapping_add(salt(range)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 52) as usize
}

fn large_list(range: &Range) -> usize {
    GRANULE_LISTS + (salt(range) >> 58) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use std::collections::{BTreeMap, BTreeSet};

    fn volume(id: u32) -> VolumeKey {
        VolumeKey { id, ..VolumeKey::POOL }
    }

    fn write(from: u64, to: u64) -> Range {
        Range { volume: volume(1), from, to, is_change: true }
    }

    fn blockers(c: &Conflicts, range: &Range) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        c.blockers(range, |at| {
            found.insert(at);
        });
        found
    }

    #[test]
    fn writes_of_one_block_are_a_chain() {
        let mut c = Conflicts::new();
        let block = write(4096, 8192);
        for i in 0..10_000 {
            let mut visits = Vec::new();
            c.blockers(&block, |at| visits.push(at));
            assert_eq!(visits, if i == 0 { vec![] } else { vec![i - 1] });
            c.add(block, i);
        }
    }

    #[test]
    fn notes_are_used_again() {
        let mut c = Conflicts::new();
        for i in 0..100 {
            let [a, b] = [c.add(write(0, 1 << 20), i), c.add(write(1 << 30, 1 << 40), i)];
            c.remove(a);
            c.remove(b);
        }
        assert_eq!(c.notes.len(), 17, "16 granules, and one note of a large range");
        assert!(blockers(&c, &write(0, 1 << 41)).is_empty());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(Range),
        /// Ends one of those that wait for nobody.
        End(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        // Blocks of one granule, blocks of some, and ranges that are too large to be noted in each.
        let sized = prop_oneof![
            (0u64..24, 1u64..8).prop_map(|(from, n)| (from * 4096, n * 4096)),
            (0u64..8, 1u64..6).prop_map(|(from, n)| (from << 15, n << 15)),
            (0u64..4, 60u64..80).prop_map(|(from, n)| (from << 16, n << 16)),
        ];
        let range = (1u32..3, sized, any::<bool>()).prop_map(|(id, (from, len), is_change)| Range {
            volume: volume(id),
            from,
            to: from + len,
            is_change,
        });
        prop_oneof![3 => range.prop_map(Step::Add), 2 => any::<usize>().prop_map(Step::End)]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, rng_seed: RngSeed::Fixed(3), ..ProptestConfig::default() })]

        /// A request that waits for nobody conflicts with nobody older: the chains are enough. And nobody waits for one with which there
        /// is no conflict.
        #[test]
        fn whoever_waits_for_nobody_conflicts_with_nobody_older(steps in prop::collection::vec(step(), 1..120)) {
            let mut c = Conflicts::new();
            let mut in_flight: BTreeMap<usize, (Range, Noted, BTreeSet<usize>)> = BTreeMap::new();
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Add(range) => {
                        let waits_for = blockers(&c, &range);
                        for w in &waits_for {
                            prop_assert!(in_flight[w].0.conflicts(&range));
                        }
                        in_flight.insert(n, (range, c.add(range, n), waits_for));
                    }
                    Step::End(which) => {
                        let free: Vec<usize> =
                            in_flight.iter().filter(|(_, (_, _, w))| w.is_empty()).map(|(n, _)| *n).collect();
                        if let Some(ended) = free.get(which % free.len().max(1)) {
                            c.remove(in_flight.remove(ended).unwrap().1);
                            in_flight.values_mut().for_each(|(_, _, w)| {
                                w.remove(ended);
                            });
                        }
                    }
                }
                for (n, (range, _, waits_for)) in &in_flight {
                    let older = in_flight.range(..n).any(|(_, (other, _, _))| other.conflicts(range));
                    prop_assert_eq!(waits_for.is_empty(), !older, "{} {:?}", n, range);
                }
            }
        }
    }
}
