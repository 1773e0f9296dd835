//! LRU: the WEU that was used longest ago leaves (Nitro's policy, NI-M17).
//!
//! A WEU enters as the newest, and is the newest again whenever an extent of it is used.

use super::Order;
use super::list::{List, NONE, Nodes};

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Lru {
    by_use: List,
}

impl Order for Lru {
    fn enter(&mut self, nodes: &mut Nodes, weu: u32) {
        self.by_use.push(nodes, weu);
    }

    fn used(&mut self, nodes: &mut Nodes, weu: u32) {
        if self.by_use.newest() != weu {
            self.by_use.remove(nodes, weu);
            self.by_use.push(nodes, weu);
        }
    }

    fn victim(&mut self, _nodes: &mut Nodes) -> Option<u32> {
        Some(self.by_use.oldest()).filter(|weu| *weu != NONE)
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
    use super::*;

    #[test]
    fn the_one_used_longest_ago_leaves() {
        let (mut nodes, mut lru) = (Nodes::new(4), Lru::default());
        assert_eq!(lru.victim(&mut nodes), None);
        (0..4).for_each(|w| lru.enter(&mut nodes, w));
        [0, 1, 0, 3].into_iter().for_each(|w| lru.used(&mut nodes, w));
        let mut left = Vec::new();
        while let Some(weu) = lru.victim(&mut nodes) {
            lru.remove(&mut nodes, weu);
            left.push(weu);
        }
        assert_eq!(left, [2, 1, 0, 3]);
    }

    #[test]
    fn one_that_is_removed_out_of_turn_leaves_the_order_of_the_others() {
        let (mut nodes, mut lru) = (Nodes::new(3), Lru::default());
        (0..3).for_each(|w| lru.enter(&mut nodes, w));
        lru.remove(&mut nodes, 1);
        assert_eq!((lru.victim(&mut nodes), lru.members(&nodes)), (Some(0), Ok(vec![2, 0])));
    }
}
