//! S3-FIFO at the level of WEUs, with reinsertion of extents that are still read.
//!
//! ```text
//!  full ──► small: a tenth ──► used enough? ──► main ──► used enough? ──► main again, uses forgotten
//!                                   └─ no ──► leaves           └─ no ──► leaves
//! ```
//! S3-FIFO's third queue remembers objects that left, so that they go to the main queue when they return. Extents of a WEU don't return
//! together, so there is none. Extents that were used are put in again when their WEU leaves.

use super::Order;
use super::list::{List, Nodes};
use super::sieve::stays;
use super::uses::Uses;

/// One of this number of WEUs is in the small queue.
const SMALL_SHARE: u32 = 10;

/// See the module's documentation.
pub(super) struct S3Fifo {
    small: List,
    main: List,
    /// By WEU, whether it is in the main queue.
    is_main: Vec<bool>,
}

impl S3Fifo {
    /// Queues for WEUs below `weus`.
    pub(super) fn new(weus: u32) -> S3Fifo {
        S3Fifo { small: List::default(), main: List::default(), is_main: vec![false; weus as usize] }
    }

    fn queue(&mut self, weu: u32) -> &mut List {
        match self.is_main[weu as usize] {
            true => &mut self.main,
            false => &mut self.small,
        }
    }
}

impl Order for S3Fifo {
    fn enter(&mut self, nodes: &mut Nodes, weu: u32) {
        self.is_main[weu as usize] = false;
        self.small.push(nodes, weu);
    }

    fn used(&mut self, _nodes: &mut Nodes, _weu: u32) {}

    fn victim(&mut self, nodes: &mut Nodes, uses: &mut Uses) -> Option<u32> {
        loop {
            let all = self.small.len() + self.main.len();
            let from_small = self.small.len() * SMALL_SHARE > all || self.main.len() == 0;
            let weu = if from_small { self.small.oldest() } else { self.main.oldest() }?;
            if !stays(uses, weu) {
                return Some(weu);
            }
            uses.forget(weu);
            self.queue(weu).remove(nodes, weu);
            self.is_main[weu as usize] = true;
            self.main.push(nodes, weu);
        }
    }

    fn remove(&mut self, nodes: &mut Nodes, weu: u32) {
        self.queue(weu).remove(nodes, weu);
    }

    fn members(&self, nodes: &Nodes) -> Result<Vec<u32>, String> {
        let (mut all, main) = (self.small.members(nodes)?, self.main.members(nodes)?);
        let is_main = |weu: &u32| self.is_main[*weu as usize];
        if all.iter().any(is_main) || !main.iter().all(is_main) {
            return Err(format!(
                "{all:?} are in the small queue and {main:?} in the main one, some of which elsewhere"
            ));
        }
        all.extend(main);
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::naive::{Extents, Naive, compare};
    use crate::config::Eviction;
    use std::collections::VecDeque;

    /// Two queues, the oldest first.
    #[derive(Default)]
    struct NaiveS3 {
        small: VecDeque<u32>,
        main: VecDeque<u32>,
    }

    impl Naive for NaiveS3 {
        fn enter(&mut self, weu: u32) {
            self.small.push_back(weu);
        }
        fn used(&mut self, _: u32) {}
        fn victim(&mut self, extents: &mut Extents) -> Option<u32> {
            loop {
                let tenth = (self.small.len() + self.main.len()) / 10;
                let from =
                    if self.small.len() > tenth || self.main.is_empty() { &mut self.small } else { &mut self.main };
                let weu = *from.front()?;
                let slots = extents.get_mut(&weu).expect("it is full");
                let used = slots.values().filter(|used| **used).count();
                if slots.is_empty() || used * 4 < slots.len() * 3 {
                    return Some(weu);
                }
                slots.values_mut().for_each(|used| *used = false);
                from.pop_front();
                self.main.push_back(weu);
            }
        }
        fn reinserts(&self, is_used: bool, _: usize, _: usize) -> bool {
            is_used
        }
        fn remove(&mut self, weu: u32) {
            self.small.retain(|w| *w != weu);
            self.main.retain(|w| *w != weu);
        }
    }

    #[test]
    fn new_ones_prove_themselves_in_the_small_queue() {
        for seed in 0..10 {
            let (victims, again) = compare(Eviction::S3Fifo, &mut NaiveS3::default(), seed);
            assert!(victims > 500 && again > 100, "{victims} left, {again} extents again");
        }
    }
}
