//! Victims by liveness: of the WEUs that were used longest ago, the one in which the fewest extents live leaves.
//!
//! Extents that are overwritten or trimmed leave dead bytes in their WEU. Such a WEU costs few hits when it leaves, and gives the room
//! of any other. The order is LRU's. So among equally full WEUs the one that was used longest ago leaves.
//!
//! Extents of it that were used are put in again. If at most half of those that came live, all of them are: that costs at most half of the
//! room, and nothing that still counts is lost, as in a log that is cleaned.

use super::Order;
use super::list::{List, Nodes};
use super::lru::Lru;
use super::uses::Uses;

/// WEUs that are looked at: this share of all, ...
const SHARE: u32 = 4;
/// ... at most this many, as each eviction walks over them.
const LOOKED_AT_MAX: u32 = 64;

/// True if the extent in a slot of a WEU that leaves is to be put in again.
pub(super) fn must_reinsert(uses: &Uses, weu: u32, slot: u32) -> bool {
    uses.is_used(weu, slot) || uses.live(weu) * 2 <= uses.came(weu)
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Live {
    by_use: Lru,
}

impl Order for Live {
    fn enter(&mut self, nodes: &mut Nodes, weu: u32) {
        self.by_use.enter(nodes, weu);
    }

    fn used(&mut self, nodes: &mut Nodes, weu: u32) {
        self.by_use.used(nodes, weu);
    }

    fn victim(&mut self, nodes: &mut Nodes, uses: &mut Uses) -> Option<u32> {
        let oldest = self.by_use.victim(nodes, uses);
        let looked_at = (self.by_use.len() / SHARE).clamp(1, LOOKED_AT_MAX) as usize;
        let tail = std::iter::successors(oldest, |weu| List::newer(nodes, *weu)).take(looked_at);
        tail.min_by_key(|weu| uses.live(*weu))
    }

    fn remove(&mut self, nodes: &mut Nodes, weu: u32) {
        self.by_use.remove(nodes, weu);
    }

    fn members(&self, nodes: &Nodes) -> Result<Vec<u32>, String> {
        self.by_use.members(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{Extents, Naive, compare};
    use crate::config::Eviction;

    /// WEUs, the one used longest ago first.
    #[derive(Default)]
    struct NaiveLive(Vec<u32>);

    impl Naive for NaiveLive {
        fn enter(&mut self, weu: u32) {
            self.0.push(weu);
        }
        fn used(&mut self, weu: u32) {
            self.remove(weu);
            self.0.push(weu);
        }
        fn victim(&mut self, extents: &mut Extents) -> Option<u32> {
            let looked_at = (self.0.len() / 4).max(1);
            let mut best: Option<u32> = None;
            for weu in self.0.iter().take(looked_at) {
                if best.is_none_or(|best| extents[weu].len() < extents[&best].len()) {
                    best = Some(*weu);
                }
            }
            best
        }
        fn reinserts(&self, is_used: bool, live: usize, came: usize) -> bool {
            is_used || live * 2 <= came
        }
        fn remove(&mut self, weu: u32) {
            self.0.retain(|w| *w != weu);
        }
    }

    #[test]
    fn of_the_oldest_quarter_the_emptiest_leaves() {
        for seed in 0..10 {
            let (victims, again) = compare(Eviction::Live, &mut NaiveLive::default(), seed);
            assert!(victims > 500 && again > 100, "{victims} left, {again} extents again");
        }
    }
}
