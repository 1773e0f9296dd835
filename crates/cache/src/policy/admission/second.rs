//! An extent comes in the second time that it is missed or written, while the first is remembered.
//!
//! Extents that are used once never cost a write of the fast device. The price is one more miss for each that is used again. CacheLib calls
//! it "reject first".
//!
//! Extents are remembered by tags in small buckets, and each bucket forgets the one that was asked for longest ago. So an event allocates
//! nothing, and memory has a bound. Two extents with one tag are taken for each other: one of thousands comes in a time early, and no data
//! are at stake.

use super::Admit;
use crate::place::{Key, mix};

/// Tags of a bucket.
const WAYS: usize = 16;
/// Extents remembered for each one that fits: buckets fill unevenly.
const REMEMBERED: u64 = 2;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Second {
    /// A power of two of them, or none. Tags in each, the one asked for last first; 0 is none.
    buckets: Vec<[u16; WAYS]>,
}

impl Admit for Second {
    /// The number of buckets is a power of two: most changes of a quota forget nothing.
    fn set_extents(&mut self, extents: u64) {
        let buckets = match extents {
            0 => 0,
            _ => (extents * REMEMBERED).div_ceil(WAYS as u64).next_power_of_two() as usize,
        };
        if buckets != self.buckets.len() {
            self.buckets = vec![[0; WAYS]; buckets];
        }
    }

    fn admits(&mut self, key: Key) -> bool {
        let Some(mask) = self.buckets.len().checked_sub(1) else { return false };
        let hash = mix(key.0);
        let bucket = &mut self.buckets[(hash >> 16) as usize & mask];
        let tag = (hash as u16).max(1);
        let found = bucket.iter().position(|t| *t == tag);
        bucket[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        bucket[0] = tag;
        found.is_some()
    }

    fn memory_bytes(&self) -> u64 {
        (self.buckets.capacity() * size_of::<[u16; WAYS]>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    fn of(extents: u64) -> Second {
        let mut second = Second::default();
        second.set_extents(extents);
        second
    }

    fn key(n: u64) -> Key {
        Key::new(3, n)
    }

    #[test]
    fn an_extent_comes_in_the_second_time() {
        let mut second = of(100);
        assert!(!second.admits(key(1)) && !second.admits(key(2)));
        assert!(second.admits(key(1)) && second.admits(key(2)) && second.admits(key(1)));
    }

    #[test]
    fn what_fits_is_remembered() {
        for extents in [10, 100, 1024, 10_000] {
            let mut second = of(extents);
            let early = (0..extents).filter(|n| second.admits(key(*n))).count();
            let known = (0..extents).filter(|n| second.admits(key(*n))).count() as u64;
            assert!(early as u64 <= extents / 500, "{early} of {extents} came a time early");
            assert!(known >= extents * 98 / 100, "{known} of {extents}");
        }
    }

    #[test]
    fn those_of_long_ago_are_forgotten_and_memory_has_a_bound() {
        let mut second = of(1000);
        let before = second.memory_bytes();
        assert!(before <= 1000 * 8, "{before} bytes");
        (0..100_000).for_each(|n| _ = second.admits(key(n)));
        let known = (0..1000).filter(|n| second.admits(key(*n))).count();
        assert!(known < 10, "{known} of 1000 are known still");
        assert_eq!(second.memory_bytes(), before);
    }

    /// With one bucket it is a list in the order of use, over plain collections.
    #[test]
    fn the_one_asked_for_longest_ago_is_forgotten() {
        let (mut rng, mut second, mut model) = (Rng::new(1, "second"), of(8), Vec::<u64>::new());
        assert_eq!(second.buckets.len(), 1);
        for step in 0..5000 {
            let n = rng.below(24);
            let known = model.iter().position(|m| *m == n);
            known.into_iter().for_each(|at| _ = model.remove(at));
            model.push(n);
            if model.len() > WAYS {
                model.remove(0);
            }
            assert_eq!(second.admits(key(n)), known.is_some(), "step {step}");
        }
    }

    #[test]
    fn a_partition_without_room_lets_nothing_in() {
        let mut second = of(0);
        assert!(!second.admits(key(1)) && !second.admits(key(1)));
    }
}
