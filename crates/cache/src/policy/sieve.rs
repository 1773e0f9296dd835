//! SIEVE at the level of WEUs, with reinsertion of extents that are still read.
//!
//! ```text
//!  newest  W W W W W W W W  oldest      A hand goes from the oldest to the newest, and begins anew there.
//!              ◄── hand                 A WEU of which enough was used since it passed stays where it is, and its uses are forgotten.
//! ```
//! The first WEU that doesn't stay leaves. Its extents that were used are put in again. SIEVE's bit of an object is here a share of a WEU:
//! hardly any WEU of hundreds of extents is left without a single use.

use super::Order;
use super::list::{List, Nodes};
use super::uses::Uses;

/// A WEU stays if at least this many percent of its live extents were used.
const STAYS_PERCENT: u32 = 75;

/// True if enough extents of a WEU were used to keep all of it.
pub(super) fn stays(uses: &Uses, weu: u32) -> bool {
    uses.live(weu) > 0 && uses.used(weu) * 100 >= uses.live(weu) * STAYS_PERCENT
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Sieve {
    by_age: List,
    hand: Option<u32>,
}

impl Order for Sieve {
    fn enter(&mut self, nodes: &mut Nodes, weu: u32) {
        self.by_age.push(nodes, weu);
    }

    fn used(&mut self, _nodes: &mut Nodes, _weu: u32) {}

    fn victim(&mut self, nodes: &mut Nodes, uses: &mut Uses) -> Option<u32> {
        loop {
            let weu = self.hand.or(self.by_age.oldest())?;
            if !stays(uses, weu) {
                self.hand = Some(weu);
                return Some(weu);
            }
            uses.forget(weu);
            self.hand = List::newer(nodes, weu);
        }
    }

    fn remove(&mut self, nodes: &mut Nodes, weu: u32) {
        if self.hand == Some(weu) {
            self.hand = List::newer(nodes, weu);
        }
        self.by_age.remove(nodes, weu);
    }

    fn members(&self, nodes: &Nodes) -> Result<Vec<u32>, String> {
        let all = self.by_age.members(nodes)?;
        match self.hand.filter(|hand| !all.contains(hand)) {
            Some(hand) => Err(format!("the hand is at WEU {hand}, which isn't among {all:?}")),
            None => Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{Extents, Naive, compare};
    use crate::config::Eviction;

    /// WEUs, the oldest first, and the place of the hand among them.
    #[derive(Default)]
    struct NaiveSieve {
        all: Vec<u32>,
        hand: usize,
    }

    impl Naive for NaiveSieve {
        fn enter(&mut self, weu: u32) {
            // A hand that is past the newest begins anew at the oldest.
            self.hand = if self.hand == self.all.len() { 0 } else { self.hand };
            self.all.push(weu);
        }
        fn used(&mut self, _: u32) {}
        fn victim(&mut self, extents: &mut Extents) -> Option<u32> {
            if self.all.is_empty() {
                return None;
            }
            loop {
                self.hand %= self.all.len();
                let slots = extents.get_mut(&self.all[self.hand]).expect("it is full");
                let used = slots.values().filter(|used| **used).count();
                if slots.is_empty() || used * 4 < slots.len() * 3 {
                    return Some(self.all[self.hand]);
                }
                slots.values_mut().for_each(|used| *used = false);
                self.hand += 1;
            }
        }
        fn reinserts(&self, is_used: bool, _: usize, _: usize) -> bool {
            is_used
        }
        fn remove(&mut self, weu: u32) {
            let at = self.all.iter().position(|w| *w == weu).expect("it has entered");
            self.all.remove(at);
            self.hand -= usize::from(at < self.hand);
        }
    }

    #[test]
    fn the_hand_stops_at_the_first_that_was_hardly_used() {
        for seed in 0..10 {
            let (victims, again) = compare(Eviction::Sieve, &mut NaiveSieve::default(), seed);
            assert!(victims > 500 && again > 100, "{victims} left, {again} extents again");
        }
    }
}
