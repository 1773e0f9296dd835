//! LRU: the WEU that was used longest ago leaves (Nitro's policy, NI-M17).
//!
//! A WEU enters as the newest, and is the newest again whenever an extent of it is used.

use super::Order;
use super::list::{List, Nodes};
use super::uses::Uses;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Lru {
    by_use: List,
}

impl Lru {
    /// WEUs that have entered.
    pub(super) fn len(&self) -> u32 {
        self.by_use.len()
    }
}

impl Order for Lru {
    fn enter(&mut self, nodes: &mut Nodes, weu: u32) {
        self.by_use.push(nodes, weu);
    }

    fn used(&mut self, nodes: &mut Nodes, weu: u32) {
        if self.by_use.newest() != Some(weu) {
            self.by_use.remove(nodes, weu);
            self.by_use.push(nodes, weu);
        }
    }

    fn victim(&mut self, _nodes: &mut Nodes, _uses: &mut Uses) -> Option<u32> {
        self.by_use.oldest()
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
    use super::*;
    use crate::config::Eviction;

    #[test]
    fn the_one_used_longest_ago_leaves() {
        let (mut nodes, mut uses, mut lru) = (Nodes::new(4), Uses::new(4, false), Lru::default());
        assert_eq!(lru.victim(&mut nodes, &mut uses), None);
        (0..4).for_each(|w| lru.enter(&mut nodes, w));
        [0, 1, 0, 3].into_iter().for_each(|w| lru.used(&mut nodes, w));
        let mut left = Vec::new();
        while let Some(weu) = lru.victim(&mut nodes, &mut uses) {
            lru.remove(&mut nodes, weu);
            left.push(weu);
        }
        assert_eq!(left, [2, 1, 0, 3]);
    }

    #[test]
    fn one_that_is_removed_out_of_turn_leaves_the_order_of_the_others() {
        let (mut nodes, mut uses, mut lru) = (Nodes::new(3), Uses::new(3, false), Lru::default());
        (0..3).for_each(|w| lru.enter(&mut nodes, w));
        lru.remove(&mut nodes, 1);
        assert_eq!((lru.victim(&mut nodes, &mut uses), lru.members(&nodes)), (Some(0), Ok(vec![2, 0])));
    }

    /// WEUs, the one used longest ago first.
    #[derive(Default)]
    pub(super) struct NaiveLru(pub Vec<u32>);

    impl Naive for NaiveLru {
        fn enter(&mut self, weu: u32) {
            self.0.push(weu);
        }
        fn used(&mut self, weu: u32) {
            self.remove(weu);
            self.0.push(weu);
        }
        fn victim(&mut self, _: &mut Extents) -> Option<u32> {
            self.0.first().copied()
        }
        fn reinserts(&self, _: bool, _: usize, _: usize) -> bool {
            false
        }
        fn remove(&mut self, weu: u32) {
            self.0.retain(|w| *w != weu);
        }
    }

    #[test]
    fn it_is_a_list_in_the_order_of_use() {
        for seed in 0..10 {
            let (victims, again) = compare(Eviction::Lru, &mut NaiveLru::default(), seed);
            assert!(victims > 500 && again == 0, "{victims} left");
        }
    }
}
