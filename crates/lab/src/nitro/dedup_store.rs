//! A capacity-optimised store (`cos`, NI-M26, NI-A5), as far as its I/O goes: which reads and writes of the array an access needs.
//!
//! ```text
//!  file recipe   pages of 4 KiB, each the fingerprints and places of 1 MiB of file; some are in memory
//!  containers    4 MiB each, compressed extents in the order they were first written; only ever appended
//!  index         fingerprint ──► container; a container's own list is read before duplicates in it are believed
//! ```
//! * A read needs its recipe page, then the extent.
//! * A write with new content is appended; a duplicate needs its container's list. Either changes a recipe page, which must be
//!   read first if it isn't in memory. The change goes up the recipe's tree (metadata propagation): changed pages and their
//!   parents are appended at the end of a batch.
//!
//! No ageing yet: nothing is reclaimed, and what lies together was written together.

use crate::nitro::EXTENT_BYTES;
use plimsoll_base::Op;
use plimsoll_replay::lru::Lru;
use std::collections::{BTreeMap, BTreeSet};

/// Extents that one recipe page describes: 32 bytes each, the fingerprint's 20 and a place (NI-M13).
pub const PAGE_EXTENTS: u64 = 128;
const PAGE_BYTES: u64 = 4096;
/// Recipe pages that a page of the level above names.
const FAN_OUT: u64 = 128;
const CONTAINER_BYTES: u64 = 4 << 20;
/// A compressed extent as it's read: the blocks that it touches.
const BLOCK_BYTES: u64 = 4096;

/// One request of the array: what, where, how much.
pub type Part = (Op, u64, u64);

/// See the module's documentation.
pub struct DedupStore {
    /// Place of each content, and its bytes.
    places: BTreeMap<u128, (u64, u64)>,
    /// Next free byte of the containers; at first their start.
    log_at: u64,
    recipes: Lru,
    lists: Lru,
    /// Content of a container that isn't full yet, at the end of the log.
    open_from: u64,
    /// Counted: recipe pages and container lists read.
    metadata_reads: u64,
}

fn compressed(content: u128) -> u64 {
    plimsoll_cache::tasks::modelled_payload_bytes(content, EXTENT_BYTES)
}

impl DedupStore {
    /// A store whose containers begin at `log_at` (before it are the recipes). It keeps `pages` recipe pages and `lists`
    /// container lists in memory.
    pub fn new(log_at: u64, pages: u64, lists: u64) -> DedupStore {
        DedupStore {
            places: BTreeMap::new(),
            log_at,
            recipes: Lru::new(pages * PAGE_BYTES),
            lists: Lru::new(lists),
            open_from: log_at,
            metadata_reads: 0,
        }
    }

    /// The content is there from the beginning.
    pub fn preload(&mut self, content: u128) {
        self.append(content);
        self.open_from = self.log_at;
    }

    /// Contents that are stored, each once.
    pub fn stored(&self) -> u64 {
        self.places.len() as u64
    }

    /// Recipe pages and container lists that were read.
    pub fn metadata_reads(&self) -> u64 {
        self.metadata_reads
    }

    /// Appends a content unless it's there. Returns whether it was new.
    fn append(&mut self, content: u128) -> bool {
        let bytes = compressed(content);
        let new = !self.places.contains_key(&content);
        if new {
            self.places.insert(content, (self.log_at, bytes));
            self.log_at += bytes;
        }
        new
    }

    fn recipe(&mut self, page: u64) -> Option<Part> {
        let there = self.recipes.access(0, page * PAGE_BYTES, PAGE_BYTES);
        self.metadata_reads += u64::from(!there);
        (!there).then_some((Op::Read, page * PAGE_BYTES, PAGE_BYTES))
    }

    /// Returns the recipe pages that must be read, for `count` extents from `extent` on.
    pub fn recipes(&mut self, extent: u64, count: u64) -> Vec<Part> {
        (extent / PAGE_EXTENTS..(extent + count).div_ceil(PAGE_EXTENTS)).filter_map(|p| self.recipe(p)).collect()
    }

    /// Returns the steps of a read of extents from `extent` on with these contents, in order.
    pub fn read(&mut self, extent: u64, contents: &[u128]) -> Vec<Vec<Part>> {
        let recipes = self.recipes(extent, contents.len() as u64);
        let mut data: Vec<Part> = Vec::new();
        for content in contents {
            let Some(&(at, bytes)) = self.places.get(content) else { continue };
            let (from, to) = (at / BLOCK_BYTES * BLOCK_BYTES, (at + bytes).next_multiple_of(BLOCK_BYTES));
            match data.last_mut() {
                Some((_, start, len)) if *start <= from && from <= *start + *len => *len = (*len).max(to - *start),
                _ => data.push((Op::Read, from, to - from)),
            }
        }
        [recipes, data].into_iter().filter(|s| !s.is_empty()).collect()
    }

    /// Returns the steps of a batch of writes, in order: metadata first, `together` at a time, then one append.
    pub fn write(&mut self, batch: &[(u64, u128)], together: usize) -> Vec<Vec<Part>> {
        let mut first: Vec<Part> = Vec::new();
        let mut pages = BTreeSet::new();
        for &(extent, content) in batch {
            pages.insert(extent / PAGE_EXTENTS);
            if !self.append(content) {
                let container = self.places[&content].0 / CONTAINER_BYTES;
                if !self.lists.access(1, container, 1) {
                    self.metadata_reads += 1;
                    first.push((Op::Read, container * CONTAINER_BYTES, PAGE_BYTES));
                }
            }
        }
        let parents: BTreeSet<u64> = pages.iter().map(|p| p / FAN_OUT).collect();
        first.extend(pages.iter().filter_map(|p| self.recipe(*p)).collect::<Vec<_>>());
        let metadata = (pages.len() + parents.len() + 1) as u64 * PAGE_BYTES;
        self.log_at = (self.log_at + metadata).next_multiple_of(PAGE_BYTES);
        let from = self.open_from / PAGE_BYTES * PAGE_BYTES;
        self.open_from = self.log_at;
        let mut steps: Vec<Vec<Part>> = first.chunks(together).map(<[Part]>::to_vec).collect();
        steps.push(vec![(Op::Write, from, self.log_at - from)]);
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_contents_are_stored_once_and_found() {
        let mut s = DedupStore::new(1 << 20, 2, 4);
        for content in [5, 6, 5, 5] {
            s.preload(content);
        }
        assert_eq!(s.stored(), 2);
        let steps = s.read(0, &[5, 6]);
        assert_eq!(steps.len(), 2, "a recipe, then data: {steps:?}");
        assert_eq!(steps[0], [(Op::Read, 0, PAGE_BYTES)]);
        assert_eq!(steps[1].len(), 1, "what lies together is read together");
        assert_eq!(s.read(1, &[6]).len(), 1, "the recipe is in memory now");
        // Two other pages push it out.
        assert_eq!((s.read(200, &[5]).len(), s.read(300, &[5]).len(), s.read(0, &[5]).len()), (2, 2, 2));
    }

    #[test]
    fn a_batch_reads_what_it_changes_and_is_appended_in_one_piece() {
        let mut s = DedupStore::new(1 << 20, 100, 4);
        s.preload(5);
        let steps = s.write(&[(0, 7), (1, 8), (130, 7)], 8);
        // Two recipe pages, and the list of the container that has 7.
        assert_eq!((steps[0].len(), steps.len()), (3, 2));
        let [(Op::Write, at, len)] = steps[1][..] else { panic!("{steps:?}") };
        assert!(at >= 1 << 20 && len >= 4 * PAGE_BYTES, "pages, their parent and the root go with it: {at} {len}");
        let again = s.write(&[(2, 9)], 8);
        assert_eq!(again.len(), 1, "its page is in memory");
        let [(Op::Write, next, _)] = again[0][..] else { panic!("{again:?}") };
        assert_eq!(next, at + len, "one after the other");
    }
}
