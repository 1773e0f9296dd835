//! Free granules of the home region: allocation is first fit, with as few extents as possible.
//!
//! The free list is never stored. It is what the volumes' extents leave over, so it can't disagree with them.

use crate::superblock::Region;
use plimsoll_stack::map::Extent;
use std::collections::BTreeMap;

/// Volumes are made of whole granules.
pub const GRANULE_BYTES: u64 = 1 << 20;

/// The free runs of a home region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Space {
    /// Offset on the device -> length; runs never touch.
    free: BTreeMap<u64, u64>,
    free_bytes: u64,
}

/// Two extents that share bytes, or one outside the home region or off the granules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Misplaced(pub Extent);

impl Space {
    /// All of `home` free.
    ///
    /// # Panics
    /// If `home` isn't aligned to granules.
    pub fn new(home: Region) -> Space {
        assert!(
            home.offset.is_multiple_of(GRANULE_BYTES) && home.len.is_multiple_of(GRANULE_BYTES),
            "home {home:?} is off the granules"
        );
        Space { free: BTreeMap::from([(home.offset, home.len)]), free_bytes: home.len }
    }

    /// Free bytes in all.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Offset and length of each free run, ascending.
    pub(crate) fn free_runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.free.iter().map(|(at, len)| (*at, *len))
    }

    /// Marks `extent` used.
    ///
    /// # Errors
    /// If any of it is not free, not in the home region, or off the granules.
    pub fn take(&mut self, extent: Extent) -> Result<(), Misplaced> {
        let misplaced = Err(Misplaced(extent));
        let Extent { device_offset, len } = extent;
        let Some(end) = device_offset.checked_add(len) else { return misplaced };
        if len == 0 || device_offset % GRANULE_BYTES != 0 || len % GRANULE_BYTES != 0 {
            return misplaced;
        }
        let Some((&run, &run_len)) = self.free.range(..=device_offset).next_back() else { return misplaced };
        if run + run_len < end {
            return misplaced;
        }
        self.free.remove(&run);
        if run < device_offset {
            self.free.insert(run, device_offset - run);
        }
        if end < run + run_len {
            self.free.insert(end, run + run_len - end);
        }
        self.free_bytes -= len;
        Ok(())
    }

    /// Marks `extent`, which was taken, free.
    ///
    /// # Panics
    /// If any of it is free already.
    pub fn release(&mut self, extent: Extent) {
        let Extent { device_offset: mut from, len } = extent;
        let mut end = from + len;
        let below = self.free.range(..=from).next_back().map(|(at, len)| (*at, at + len));
        let above = self.free.range(from..).next().map(|(at, len)| (*at, at + len));
        assert!(
            below.is_none_or(|(_, below_end)| below_end <= from) && above.is_none_or(|(above, _)| above >= end),
            "{extent:?} is free already"
        );
        if let Some((at, _)) = below.filter(|(_, below_end)| *below_end == from) {
            self.free.remove(&at);
            from = at;
        }
        if let Some((at, above_end)) = above.filter(|(above, _)| *above == end) {
            self.free.remove(&at);
            end = above_end;
        }
        self.free.insert(from, end - from);
        self.free_bytes += len;
    }

    /// Takes `len` bytes in at most `extents_max` extents, ascending: the first run that holds all of it; if none does, the
    /// longest runs, which makes the extents as few as they can be. Prefers to begin at `follow`, so that a growing volume's
    /// last extent gets longer. `None`, and nothing taken, if that is impossible.
    ///
    /// # Panics
    /// If `len` is not a multiple of [`GRANULE_BYTES`].
    pub fn allocate(&mut self, len: u64, extents_max: usize, follow: Option<u64>) -> Option<Vec<Extent>> {
        let extents = self.choose(len, extents_max, follow)?;
        for e in &extents {
            self.take(*e).expect("it was chosen from the free runs");
        }
        Some(extents)
    }

    /// Chooses what [`Space::allocate`] would take.
    ///
    /// # Panics
    /// If `len` is not a multiple of [`GRANULE_BYTES`].
    pub fn choose(&self, len: u64, extents_max: usize, follow: Option<u64>) -> Option<Vec<Extent>> {
        assert!(len.is_multiple_of(GRANULE_BYTES), "{len} bytes are not whole granules");
        let mut extents = Vec::new();
        let mut left = len;
        if let Some(at) = follow
            && let Some(run_len) = self.free.get(&at)
            && left > 0
        {
            extents.push(Extent { device_offset: at, len: left.min(*run_len) });
            left -= left.min(*run_len);
        }
        // The run at `follow`, if it was too short, is used up.
        let used_up = extents.first().map(|e| e.device_offset);
        let mut runs: Vec<Extent> =
            self.free.iter().map(|(at, len)| Extent { device_offset: *at, len: *len }).collect();
        runs.retain(|e| Some(e.device_offset) != used_up);
        if let Some(first_fit) = runs.iter().position(|e| e.len >= left) {
            runs = vec![runs[first_fit]];
        }
        runs.sort_unstable_by_key(|e| (std::cmp::Reverse(e.len), e.device_offset));
        let mut picked = Vec::new();
        for run in runs {
            if left > 0 {
                picked.push(Extent { len: left.min(run.len), ..run });
                left -= left.min(run.len);
            }
        }
        picked.sort_unstable_by_key(|e| e.device_offset);
        extents.extend(picked);
        (left == 0 && extents.len() <= extents_max).then_some(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::RegionKind;
    use proptest::prelude::*;

    const HOME: Region = Region { kind: RegionKind::Home, offset: 5 * GRANULE_BYTES, len: 40 * GRANULE_BYTES };

    fn granules(extents: &[Extent]) -> Vec<(u64, u64)> {
        extents.iter().map(|e| (e.device_offset / GRANULE_BYTES, e.len / GRANULE_BYTES)).collect()
    }

    #[test]
    fn the_first_run_that_holds_all_is_preferred_to_pieces() {
        let mut space = Space::new(HOME);
        for (at, len) in [(7, 1), (11, 1), (30, 1)] {
            space.take(Extent { device_offset: at * GRANULE_BYTES, len: len * GRANULE_BYTES }).expect("free");
        }
        // Free now: 5..7, 8..11, 12..30, 31..45.
        assert_eq!(granules(&space.allocate(3 * GRANULE_BYTES, 9, None).expect("room")), [(8, 3)]);
        assert_eq!(granules(&space.allocate(20 * GRANULE_BYTES, 9, None).expect("room")), [(12, 18), (31, 2)]);
        assert_eq!(space.allocate(13 * GRANULE_BYTES, 1, None), None);
        assert_eq!(granules(&space.allocate(14 * GRANULE_BYTES, 9, None).expect("room")), [(5, 2), (33, 12)]);
        assert_eq!((space.allocate(GRANULE_BYTES, 9, None), space.free_bytes()), (None, 0));
    }

    #[test]
    fn growing_follows_on_where_it_can() {
        let mut space = Space::new(HOME);
        space.take(Extent { device_offset: 20 * GRANULE_BYTES, len: GRANULE_BYTES }).expect("free");
        let more = space.allocate(2 * GRANULE_BYTES, 9, Some(21 * GRANULE_BYTES)).expect("room");
        assert_eq!(granules(&more), [(21, 2)]);
    }

    /// In how few pieces `granules` fit: the longest free runs, until there are enough.
    fn fewest_pieces(owned: &[bool], granules: u64) -> Option<usize> {
        let mut runs: Vec<u64> = owned.split(|o| *o).map(|run| run.len() as u64).collect();
        runs.sort_unstable_by_key(|len| std::cmp::Reverse(*len));
        (1..=runs.len()).find(|n| runs[..*n].iter().sum::<u64>() >= granules)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Allocate { granules: u64, extents_max: usize },
        Release(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1u64..16, 1usize..5).prop_map(|(granules, extents_max)| Step::Allocate { granules, extents_max }),
            any::<usize>().prop_map(Step::Release),
        ]
    }

    proptest! {
        /// Against an array with one owner per granule.
        #[test]
        fn no_granule_has_two_owners(steps in proptest::collection::vec(step(), 1..60)) {
            let mut space = Space::new(HOME);
            let mut owned = [false; 45];
            let mut held: Vec<Vec<Extent>> = Vec::new();
            let each = |extents: &[Extent], f: &mut dyn FnMut(usize)| {
                granules(extents).iter().for_each(|(at, n)| (*at..at + n).for_each(|g| f(g as usize)));
            };
            for step in steps {
                match step {
                    Step::Allocate { granules, extents_max } => {
                        let least = fewest_pieces(&owned[5..], granules);
                        let got = space.allocate(granules * GRANULE_BYTES, extents_max, None);
                        prop_assert_eq!(got.as_ref().map(Vec::len), least.filter(|n| *n <= extents_max));
                        let Some(extents) = got else { continue };
                        let mut total = 0;
                        each(&extents, &mut |g| { assert!(g >= 5 && !owned[g]); owned[g] = true; total += 1; });
                        prop_assert_eq!(total, granules);
                        held.push(extents);
                    }
                    Step::Release(which) if !held.is_empty() => {
                        let extents = held.swap_remove(which % held.len());
                        each(&extents, &mut |g| owned[g] = false);
                        extents.iter().for_each(|e| space.release(*e));
                        let mut anew = Space::new(HOME); // as the store does it when it is opened
                        held.iter().flatten().for_each(|e| anew.take(*e).expect("disjoint"));
                        prop_assert_eq!(&space, &anew);
                    }
                    Step::Release(_) => {}
                }
                prop_assert_eq!(space.free_bytes() / GRANULE_BYTES, owned[5..].iter().filter(|o| !**o).count() as u64);
            }
        }
    }
}
