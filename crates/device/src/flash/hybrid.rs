//! The hybrid translation layer: blocks are mapped, and a few log blocks by page (NI-M24; the scheme known as FAST).
//!
//! * A run that starts at a block's first page goes to a sequential log block of its own. Once full, that block
//!   simply becomes the data block (switch merge); if the run breaks off, the rest is copied in first (partial merge).
//! * Everything else goes to the random log blocks, which all logical blocks of the unit share. When they are
//!   full, the oldest is emptied: each logical block with a page in it is gathered from wherever its newest pages
//!   are into a fresh block (full merge).
//!
//! Nitro §3.4 names the parts (data and log blocks, a sequential and a random region, merges) and not the rules for
//! choosing; those are ours, after the scheme it cites.

use std::collections::VecDeque;

use super::ftl::{FtlStats, Shape, Step};
use super::spec::HybridFtlSpec;

/// A log block that holds the beginning of one logical block.
#[derive(Clone, Copy, Debug)]
struct Run {
    logical: u32,
    block: u32,
    next_page: u32,
}

#[derive(Clone, Debug)]
struct Unit {
    free: VecDeque<u32>,
    /// Least recently written first.
    runs: Vec<Run>,
    /// Oldest first; the last one is open.
    random: VecDeque<u32>,
    random_next_page: u32,
}

/// The hybrid translation layer of a drive.
#[derive(Clone, Debug)]
pub(crate) struct HybridFtl {
    shape: Shape,
    /// Logical blocks of a unit.
    logical_blocks: u32,
    runs_max: usize,
    random_max: usize,
    /// Data block of each logical block, plus one; 0 for none.
    data: Vec<u32>,
    /// Valid pages in that data block.
    data_valid: Vec<u32>,
    /// Page in a log block of each logical page, plus one; 0 if its newest copy isn't in the log.
    log: Vec<u32>,
    /// One bit a logical page: its newest copy is in the data block.
    in_data: Vec<u64>,
    /// Logical page of each valid page in a log block, plus one.
    back: Vec<u32>,
    erases: Vec<u32>,
    units: Vec<Unit>,
    stats: FtlStats,
}

impl HybridFtl {
    pub(crate) fn new(shape: Shape, spec: &HybridFtlSpec) -> HybridFtl {
        let logical_blocks = shape.logical_per_unit / shape.pages_per_block;
        let log_blocks = spec.log_blocks(shape.blocks_per_unit);
        let unit = |u: u32| Unit {
            free: (u * shape.blocks_per_unit..(u + 1) * shape.blocks_per_unit).collect(),
            runs: Vec::with_capacity(spec.sequential_log_blocks as usize),
            random: VecDeque::new(),
            random_next_page: shape.pages_per_block,
        };
        let pages = shape.logical_pages() as usize;
        HybridFtl {
            logical_blocks,
            runs_max: spec.sequential_log_blocks as usize,
            random_max: (log_blocks - spec.sequential_log_blocks) as usize,
            data: vec![0; (shape.units * logical_blocks) as usize],
            data_valid: vec![0; (shape.units * logical_blocks) as usize],
            log: vec![0; pages],
            in_data: vec![0; pages.div_ceil(64)],
            back: vec![0; shape.pages() as usize],
            erases: vec![0; shape.blocks() as usize],
            units: (0..shape.units).map(unit).collect(),
            stats: FtlStats::default(),
            shape,
        }
    }

    pub(crate) fn stats(&self) -> &FtlStats {
        &self.stats
    }

    pub(crate) fn erases(&self) -> impl Iterator<Item = u32> + '_ {
        self.erases.iter().copied()
    }

    /// Returns the place of `lpn`, if it has one.
    pub(crate) fn find(&self, lpn: u32) -> Option<u32> {
        if let Some(page) = self.log[lpn as usize].checked_sub(1) {
            return Some(page);
        }
        if !self.is_in_data(lpn) {
            return None;
        }
        let (logical, offset) = self.split(lpn);
        Some((self.data[logical as usize] - 1) * self.shape.pages_per_block + offset)
    }

    /// Writes `lpn`: appends what its unit must do, the program last, and gives the page.
    pub(crate) fn write(&mut self, lpn: u32, steps: &mut Vec<Step>) -> u32 {
        let unit = self.shape.unit_of(lpn);
        let (logical, offset) = self.split(lpn);
        let page = match self.run_of(unit, logical) {
            _ if offset == 0 => self.begin_run(unit, logical, steps),
            Some(i) if self.units[unit as usize].runs[i].next_page == offset => self.continue_run(unit, i),
            _ => self.random_page(unit, steps),
        };
        self.forget(lpn, steps);
        self.log[lpn as usize] = page + 1;
        self.back[page as usize] = lpn + 1;
        self.stats.host_pages += 1;
        steps.push(Step::Program { page });
        self.switch_full_run(unit, logical, steps);
        page
    }

    /// Forgets `lpn`.
    pub(crate) fn trim(&mut self, lpn: u32, steps: &mut Vec<Step>) {
        if self.find(lpn).is_some() {
            self.forget(lpn, steps);
            self.stats.trimmed_pages += 1;
        }
    }

    /// Logical block (over the drive) and page in it.
    fn split(&self, lpn: u32) -> (u32, u32) {
        let local = lpn / self.shape.units;
        let per_block = self.shape.pages_per_block;
        (self.shape.unit_of(lpn) * self.logical_blocks + local / per_block, local % per_block)
    }

    fn lpn(&self, logical: u32, offset: u32) -> u32 {
        let local = logical % self.logical_blocks * self.shape.pages_per_block + offset;
        local * self.shape.units + logical / self.logical_blocks
    }

    fn is_in_data(&self, lpn: u32) -> bool {
        self.in_data[lpn as usize / 64] >> (lpn % 64) & 1 != 0
    }

    /// Makes the newest copy of `lpn` garbage; a data block without valid pages is given up.
    fn forget(&mut self, lpn: u32, steps: &mut Vec<Step>) {
        let logged = std::mem::replace(&mut self.log[lpn as usize], 0);
        if logged != 0 {
            self.back[(logged - 1) as usize] = 0;
        } else if self.is_in_data(lpn) {
            self.in_data[lpn as usize / 64] &= !(1 << (lpn % 64));
            let (logical, _) = self.split(lpn);
            self.data_valid[logical as usize] -= 1;
            if self.data_valid[logical as usize] == 0 {
                self.drop_data(logical, steps);
            }
        }
    }

    fn drop_data(&mut self, logical: u32, steps: &mut Vec<Step>) {
        let old = std::mem::replace(&mut self.data[logical as usize], 0);
        if old != 0 {
            self.erase(old - 1, steps);
        }
    }

    fn erase(&mut self, block: u32, steps: &mut Vec<Step>) {
        self.erases[block as usize] += 1;
        self.stats.erases += 1;
        self.units[(block / self.shape.blocks_per_unit) as usize].free.push_back(block);
        steps.push(Step::Erase { block });
    }

    fn take_free(&mut self, unit: u32) -> u32 {
        self.units[unit as usize].free.pop_front().expect("data, log and one block to merge into fit in a unit")
    }

    fn run_of(&self, unit: u32, logical: u32) -> Option<usize> {
        self.units[unit as usize].runs.iter().position(|r| r.logical == logical)
    }

    fn begin_run(&mut self, unit: u32, logical: u32, steps: &mut Vec<Step>) -> u32 {
        if let Some(i) = self.run_of(unit, logical) {
            self.end_run(unit, i, steps);
        }
        if self.units[unit as usize].runs.len() == self.runs_max {
            self.end_run(unit, 0, steps);
        }
        let block = self.take_free(unit);
        self.units[unit as usize].runs.push(Run { logical, block, next_page: 1 });
        block * self.shape.pages_per_block
    }

    fn continue_run(&mut self, unit: u32, i: usize) -> u32 {
        let runs = &mut self.units[unit as usize].runs;
        let mut run = runs.remove(i);
        run.next_page += 1;
        runs.push(run);
        run.block * self.shape.pages_per_block + run.next_page - 1
    }

    fn switch_full_run(&mut self, unit: u32, logical: u32, steps: &mut Vec<Step>) {
        if let Some(i) = self.run_of(unit, logical)
            && self.units[unit as usize].runs[i].next_page == self.shape.pages_per_block
        {
            self.end_run(unit, i, steps);
        }
    }

    /// Turns a run into the data block of its logical block: as it is if it's full, else filled up from the old one.
    fn end_run(&mut self, unit: u32, i: usize, steps: &mut Vec<Step>) {
        let per_block = self.shape.pages_per_block;
        let Run { logical, block, next_page } = self.units[unit as usize].runs.remove(i);
        let old = self.data[logical as usize];
        let mut valid = 0;
        for offset in 0..per_block {
            let (lpn, page) = (self.lpn(logical, offset), block * per_block + offset);
            if self.log[lpn as usize] == page + 1 {
                (self.log[lpn as usize], self.back[page as usize]) = (0, 0);
                self.in_data[lpn as usize / 64] |= 1 << (lpn % 64);
                valid += 1;
            } else if offset >= next_page && self.is_in_data(lpn) {
                steps.push(Step::Copy { from: (old - 1) * per_block + offset, to: page });
                self.stats.moved_pages += 1;
                valid += 1;
            }
        }
        if next_page == per_block {
            self.stats.switch_merges += 1;
        } else {
            self.stats.partial_merges += 1;
        }
        self.drop_data(logical, steps);
        if valid == 0 {
            self.erase(block, steps);
        } else {
            self.data[logical as usize] = block + 1;
        }
        self.data_valid[logical as usize] = valid;
    }

    fn random_page(&mut self, unit: u32, steps: &mut Vec<Step>) -> u32 {
        let per_block = self.shape.pages_per_block;
        if self.units[unit as usize].random_next_page == per_block {
            if self.units[unit as usize].random.len() == self.random_max {
                self.empty_oldest(unit, steps);
            }
            let block = self.take_free(unit);
            let u = &mut self.units[unit as usize];
            u.random.push_back(block);
            u.random_next_page = 0;
        }
        let u = &mut self.units[unit as usize];
        u.random_next_page += 1;
        u.random.back().expect("just made sure") * per_block + u.random_next_page - 1
    }

    /// Empties the oldest random log block.
    fn empty_oldest(&mut self, unit: u32, steps: &mut Vec<Step>) {
        let per_block = self.shape.pages_per_block;
        let victim = self.units[unit as usize].random.pop_front().expect("there are random log blocks");
        for page in victim * per_block..(victim + 1) * per_block {
            if let Some(lpn) = self.back[page as usize].checked_sub(1) {
                let (logical, _) = self.split(lpn);
                self.full_merge(unit, logical, steps);
            }
        }
        self.erase(victim, steps);
    }

    /// Gathers the newest pages of `logical` into a fresh block.
    fn full_merge(&mut self, unit: u32, logical: u32, steps: &mut Vec<Step>) {
        let per_block = self.shape.pages_per_block;
        let block = self.take_free(unit);
        let mut valid = 0;
        for offset in 0..per_block {
            let lpn = self.lpn(logical, offset);
            let Some(from) = self.find(lpn) else { continue };
            if self.log[lpn as usize] != 0 {
                (self.log[lpn as usize], self.back[from as usize]) = (0, 0);
                self.in_data[lpn as usize / 64] |= 1 << (lpn % 64);
            }
            steps.push(Step::Copy { from, to: block * per_block + offset });
            self.stats.moved_pages += 1;
            valid += 1;
        }
        self.stats.full_merges += 1;
        if let Some(i) = self.run_of(unit, logical) {
            let run = self.units[unit as usize].runs.remove(i);
            self.erase(run.block, steps);
        }
        self.drop_data(logical, steps);
        self.data[logical as usize] = block + 1;
        self.data_valid[logical as usize] = valid;
    }

    /// Checks what must hold between any two calls.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        for (lpn, &p) in self.log.iter().enumerate().filter(|(_, p)| **p != 0) {
            assert_eq!(self.back[(p - 1) as usize], lpn as u32 + 1, "log and back agree");
            assert!(!self.is_in_data(lpn as u32), "the newest copy is in one place");
        }
        let logged = self.log.iter().filter(|p| **p != 0).count();
        assert_eq!(self.back.iter().filter(|l| **l != 0).count(), logged, "one log page for each logged one");
        for (logical, &valid) in self.data_valid.iter().enumerate() {
            let pages = (0..self.shape.pages_per_block).filter(|o| self.is_in_data(self.lpn(logical as u32, *o)));
            assert_eq!(pages.count(), valid as usize, "valid pages of logical block {logical}");
            assert_eq!(self.data[logical] != 0, valid > 0, "a data block is held while it has valid pages");
        }
        for (i, u) in self.units.iter().enumerate() {
            let mut places: Vec<u32> = u.free.iter().chain(&u.random).copied().collect();
            places.extend(u.runs.iter().map(|r| r.block));
            let logical = i * self.logical_blocks as usize..(i + 1) * self.logical_blocks as usize;
            places.extend(self.data[logical].iter().filter_map(|b| b.checked_sub(1)));
            places.sort_unstable();
            let first = i as u32 * self.shape.blocks_per_unit;
            assert_eq!(places, (first..first + self.shape.blocks_per_unit).collect::<Vec<_>>());
        }
    }
}
