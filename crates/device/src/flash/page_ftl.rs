//! The page-mapped translation layer: every logical page anywhere in its unit, greedy garbage collection.
//!
//! * A write goes to the open block of its stream and makes the page's older copy garbage.
//! * When a unit runs short of free blocks, the full block with the fewest valid pages is the victim: those pages
//!   move to an open block, then it's erased. Full blocks hang in lists by their number of valid pages, so the
//!   choice costs a step or two, not a search.
//! * A victim may be worked off a few pages at a time, between the host's writes and while the unit is idle.
//!
//! Each unit (die or plane) is a world of its own: logical page `n` belongs to unit `n mod units` for ever.

use std::collections::VecDeque;

use super::ftl::{FtlStats, Shape, Step};
use super::spec::PageFtlSpec;

/// "No block" in links and open blocks.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Block {
    valid: u32,
    erases: u32,
    previous: u32,
    next: u32,
    /// In a list of full blocks.
    listed: bool,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    block: u32,
    next_page: u32,
}

#[derive(Clone, Debug)]
struct Unit {
    free: VecDeque<u32>,
    /// Host, then (if kept apart) cold host pages and moved pages.
    open: [Open; 3],
    victim: u32,
    victim_page: u32,
    /// Pages of it that must be moved in a step. At that rate the victim is empty when the pages that it frees have been
    /// written.
    keeps_up: u32,
    /// No full block has fewer valid pages.
    fewest: u32,
    /// Until wear is looked at again.
    erases_to_look: u32,
}

/// Pages written in this epoch or the last. An epoch has one write for each logical page.
#[derive(Clone, Debug)]
struct Recency {
    bits: [Vec<u64>; 2],
    left: u32,
}

/// The page-mapped translation layer of a drive.
#[derive(Clone, Debug)]
pub(crate) struct PageFtl {
    shape: Shape,
    spec: PageFtlSpec,
    /// Page of each logical page, plus one; 0 for none. Zero pages of memory stay untouched until written.
    map: Vec<u32>,
    /// Logical page in each page, plus one; 0 for garbage and empty ones.
    back: Vec<u32>,
    blocks: Vec<Block>,
    units: Vec<Unit>,
    /// First full block of each unit with each number of valid pages.
    lists: Vec<u32>,
    recency: Option<Recency>,
    /// Places in `Unit::open`.
    cold_stream: usize,
    moved_stream: usize,
    stats: FtlStats,
}

impl PageFtl {
    pub(crate) fn new(shape: Shape, spec: &PageFtlSpec) -> PageFtl {
        let closed = Open { block: NONE, next_page: shape.pages_per_block };
        let unit = |u: u32| Unit {
            free: (u * shape.blocks_per_unit..(u + 1) * shape.blocks_per_unit).collect(),
            open: [closed; 3],
            victim: NONE,
            victim_page: 0,
            keeps_up: 0,
            fewest: shape.pages_per_block,
            erases_to_look: shape.blocks_per_unit,
        };
        let block = Block { valid: 0, erases: 0, previous: NONE, next: NONE, listed: false };
        let words = (shape.logical_pages() as usize).div_ceil(64);
        PageFtl {
            map: vec![0; shape.logical_pages() as usize],
            back: vec![0; shape.pages() as usize],
            blocks: vec![block; shape.blocks() as usize],
            units: (0..shape.units).map(unit).collect(),
            lists: vec![NONE; shape.units as usize * (shape.pages_per_block as usize + 1)],
            recency: spec
                .hot_cold
                .then(|| Recency { bits: [vec![0; words], vec![0; words]], left: shape.logical_pages() }),
            cold_stream: usize::from(spec.hot_cold),
            moved_stream: if spec.gc_stream { 2 } else { usize::from(spec.hot_cold) },
            stats: FtlStats::default(),
            spec: spec.clone(),
            shape,
        }
    }

    pub(crate) fn stats(&self) -> &FtlStats {
        &self.stats
    }

    pub(crate) fn erases(&self) -> impl Iterator<Item = u32> + '_ {
        self.blocks.iter().map(|b| b.erases)
    }

    /// Returns the place of `lpn`, if it has one.
    pub(crate) fn find(&self, lpn: u32) -> Option<u32> {
        self.map[lpn as usize].checked_sub(1)
    }

    /// Writes `lpn`: appends what its unit must do, the program last, and gives the page.
    pub(crate) fn write(&mut self, lpn: u32, steps: &mut Vec<Step>) -> u32 {
        let unit = self.shape.unit_of(lpn);
        if self.units[unit as usize].free.len() <= self.spec.gc_start_free_blocks as usize {
            self.make_room(unit, steps);
        }
        let stream = self.stream(lpn);
        let page = self.append(unit, stream, lpn);
        let old = std::mem::replace(&mut self.map[lpn as usize], page + 1);
        if old != 0 {
            self.invalidate(unit, old - 1);
        }
        self.stats.host_pages += 1;
        steps.push(Step::Program { page });
        page
    }

    /// Forgets `lpn`.
    pub(crate) fn trim(&mut self, lpn: u32) {
        if let Some(page) = self.find(lpn) {
            self.map[lpn as usize] = 0;
            self.invalidate(self.shape.unit_of(lpn), page);
            self.stats.trimmed_pages += 1;
        }
    }

    /// A step of collection, if `unit` is short of free blocks.
    pub(crate) fn idle_work(&mut self, unit: u32, steps: &mut Vec<Step>) {
        if self.units[unit as usize].free.len() <= self.spec.gc_start_free_blocks as usize {
            self.collect(unit, self.step_pages(), steps);
        }
    }

    fn step_pages(&self) -> u32 {
        if self.spec.gc_step_pages == 0 { u32::MAX } else { self.spec.gc_step_pages }
    }

    /// True if the free blocks have fallen to the mean of two limits: the one that starts collection and the urgent one.
    fn is_behind(&self, unit: u32) -> bool {
        let half = (self.spec.gc_start_free_blocks + self.spec.gc_urgent_free_blocks) / 2;
        self.units[unit as usize].free.len() <= half as usize
    }

    fn make_room(&mut self, unit: u32, steps: &mut Vec<Step>) {
        self.collect(unit, self.step_pages(), steps);
        while self.units[unit as usize].free.len() <= self.spec.gc_urgent_free_blocks as usize {
            self.stats.urgent += 1;
            let progress = self.collect(unit, u32::MAX, steps);
            assert!(progress, "a unit with spare blocks has garbage to collect");
        }
    }

    fn stream(&mut self, lpn: u32) -> usize {
        let Some(r) = &mut self.recency else { return 0 };
        let (word, bit) = (lpn as usize / 64, 1u64 << (lpn % 64));
        let hot = (r.bits[0][word] | r.bits[1][word]) & bit != 0;
        r.bits[0][word] |= bit;
        r.left -= 1;
        if r.left == 0 {
            r.left = self.shape.logical_pages();
            r.bits.swap(0, 1);
            r.bits[0].fill(0);
        }
        if hot { 0 } else { self.cold_stream }
    }

    /// Puts `lpn` into the next page of an open block.
    fn append(&mut self, unit: u32, stream: usize, lpn: u32) -> u32 {
        let per_block = self.shape.pages_per_block;
        let u = &mut self.units[unit as usize];
        if u.open[stream].next_page == per_block {
            let block = u.free.pop_front().expect("make_room keeps blocks free");
            u.open[stream] = Open { block, next_page: 0 };
        }
        let o = &mut u.open[stream];
        let page = o.block * per_block + o.next_page;
        o.next_page += 1;
        let (block, full) = (o.block, o.next_page == per_block);
        self.blocks[block as usize].valid += 1;
        debug_assert_eq!(self.back[page as usize], 0, "a page is programmed once between erases");
        self.back[page as usize] = lpn + 1;
        if full {
            self.list(unit, block);
        }
        page
    }

    fn invalidate(&mut self, unit: u32, page: u32) {
        let block = page / self.shape.pages_per_block;
        self.back[page as usize] = 0;
        if self.blocks[block as usize].listed {
            self.unlist(unit, block);
            self.blocks[block as usize].valid -= 1;
            self.list(unit, block);
        } else {
            self.blocks[block as usize].valid -= 1;
        }
    }

    fn list_index(&self, unit: u32, valid: u32) -> usize {
        unit as usize * (self.shape.pages_per_block as usize + 1) + valid as usize
    }

    fn list(&mut self, unit: u32, block: u32) {
        let valid = self.blocks[block as usize].valid;
        let at = self.list_index(unit, valid);
        let first = std::mem::replace(&mut self.lists[at], block);
        let b = &mut self.blocks[block as usize];
        (b.previous, b.next, b.listed) = (NONE, first, true);
        if first != NONE {
            self.blocks[first as usize].previous = block;
        }
        let u = &mut self.units[unit as usize];
        u.fewest = u.fewest.min(valid);
    }

    fn unlist(&mut self, unit: u32, block: u32) {
        let Block { valid, previous, next, .. } = self.blocks[block as usize];
        if previous == NONE {
            let at = self.list_index(unit, valid);
            self.lists[at] = next;
        } else {
            self.blocks[previous as usize].next = next;
        }
        if next != NONE {
            self.blocks[next as usize].previous = previous;
        }
        self.blocks[block as usize].listed = false;
    }

    /// Takes the next victim; false if there is no garbage.
    fn choose_victim(&mut self, unit: u32) -> bool {
        if let Some(block) = self.worn_apart(unit) {
            self.stats.levelled_blocks += 1;
            self.take_victim(unit, block);
            return true;
        }
        let per_block = self.shape.pages_per_block;
        let mut valid = self.units[unit as usize].fewest;
        while valid < per_block && self.lists[self.list_index(unit, valid)] == NONE {
            valid += 1;
        }
        self.units[unit as usize].fewest = valid;
        if valid == per_block {
            return false;
        }
        let block = self.lists[self.list_index(unit, valid)];
        self.take_victim(unit, block);
        true
    }

    fn take_victim(&mut self, unit: u32, block: u32) {
        self.unlist(unit, block);
        let valid = self.blocks[block as usize].valid;
        // One of the writes that it makes room for has the erasure before it.
        let writes = (self.shape.pages_per_block - valid).saturating_sub(1).max(1);
        let u = &mut self.units[unit as usize];
        (u.victim, u.victim_page, u.keeps_up) = (block, 0, valid.div_ceil(writes));
    }

    /// Returns the least worn full block, if wear has drifted too far apart. It searches once in N erases, where N is the
    /// number of blocks, so that the search costs nothing that matters.
    fn worn_apart(&mut self, unit: u32) -> Option<u32> {
        let gap = self.spec.wear_gap_erases;
        let u = &mut self.units[unit as usize];
        if gap == 0 || u.erases_to_look > 0 {
            return None;
        }
        u.erases_to_look = self.shape.blocks_per_unit;
        let first = unit * self.shape.blocks_per_unit;
        let own = first..first + self.shape.blocks_per_unit;
        let most = own.clone().map(|b| self.blocks[b as usize].erases).max()?;
        let least = own.filter(|&b| self.blocks[b as usize].listed).min_by_key(|&b| self.blocks[b as usize].erases)?;
        (most - self.blocks[least as usize].erases > gap).then_some(least)
    }

    /// Moves up to `pages` valid pages of the victim (of a new one if there is none) and erases it once it's
    /// empty. Paced, a bounded step does one or the other. False if there was nothing to do.
    fn collect(&mut self, unit: u32, pages: u32, steps: &mut Vec<Step>) -> bool {
        if self.units[unit as usize].victim == NONE && !self.choose_victim(unit) {
            return false;
        }
        let per_block = self.shape.pages_per_block;
        let Unit { victim, mut victim_page, keeps_up, .. } = self.units[unit as usize];
        let paced = self.spec.gc_paced && pages != u32::MAX;
        let pages = if paced && self.is_behind(unit) { pages.max(keeps_up) } else { pages };
        let mut left = pages;
        while self.blocks[victim as usize].valid > 0 && left > 0 {
            let from = victim * per_block + victim_page;
            victim_page += 1;
            let held = std::mem::replace(&mut self.back[from as usize], 0);
            if held == 0 {
                continue;
            }
            self.blocks[victim as usize].valid -= 1;
            let to = self.append(unit, self.moved_stream, held - 1);
            self.map[(held - 1) as usize] = to + 1;
            steps.push(Step::Copy { from, to });
            self.stats.moved_pages += 1;
            left -= 1;
        }
        let u = &mut self.units[unit as usize];
        u.victim_page = victim_page;
        if self.blocks[victim as usize].valid == 0 && !(paced && left < pages) {
            u.victim = NONE;
            u.free.push_back(victim);
            u.erases_to_look = u.erases_to_look.saturating_sub(1);
            self.blocks[victim as usize].erases += 1;
            self.stats.erases += 1;
            steps.push(Step::Erase { block: victim });
        }
        true
    }

    /// Checks what must hold between any two calls: counts add up, maps agree, every block is in one place.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        let per_block = self.shape.pages_per_block;
        for (lpn, &p) in self.map.iter().enumerate().filter(|(_, p)| **p != 0) {
            assert_eq!(self.back[(p - 1) as usize], lpn as u32 + 1, "map and back agree");
        }
        let mapped = self.map.iter().filter(|p| **p != 0).count();
        assert_eq!(self.back.iter().filter(|l| **l != 0).count(), mapped, "one valid page for each mapped one");
        for (b, block) in self.blocks.iter().enumerate() {
            let pages = &self.back[b * per_block as usize..(b + 1) * per_block as usize];
            assert_eq!(pages.iter().filter(|l| **l != 0).count(), block.valid as usize, "valid count of block {b}");
        }
        for (i, u) in self.units.iter().enumerate() {
            let mut places: Vec<u32> = u.free.iter().copied().collect();
            places.extend(u.open.iter().filter(|o| o.next_page < per_block).map(|o| o.block));
            places.extend(Some(u.victim).filter(|v| *v != NONE));
            let first = i as u32 * self.shape.blocks_per_unit;
            let own = first..first + self.shape.blocks_per_unit;
            places.extend(own.clone().filter(|b| self.blocks[*b as usize].listed));
            places.sort_unstable();
            assert_eq!(places, own.collect::<Vec<_>>(), "each block of unit {i} is in one place");
        }
    }
}
