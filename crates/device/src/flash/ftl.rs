//! The model's view of a translation layer: pages in, array operations out.

use super::hybrid::HybridFtl;
use super::page_ftl::PageFtl;
use super::spec::{FlashSpec, FtlSpec};

/// One array operation, in the order in which the unit must do it. Pages and blocks are numbered over the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A page to the controller.
    Read { page: u32 },
    /// Data from the host.
    Program { page: u32 },
    /// A page moved inside its unit.
    Copy { from: u32, to: u32 },
    /// A block emptied.
    Erase { block: u32 },
}

/// Numbers of units, blocks and pages, and the spread of logical pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub units: u32,
    pub blocks_per_unit: u32,
    pub pages_per_block: u32,
    pub logical_per_unit: u32,
}

impl Shape {
    pub(crate) fn new(spec: &FlashSpec) -> Shape {
        Shape {
            units: spec.units(),
            blocks_per_unit: spec.blocks_per_unit(),
            pages_per_block: spec.geometry.pages_per_block,
            logical_per_unit: spec.logical_pages_per_unit(),
        }
    }
    pub(crate) fn logical_pages(&self) -> u32 {
        self.units * self.logical_per_unit
    }
    pub(crate) fn pages(&self) -> u32 {
        self.blocks() * self.pages_per_block
    }
    pub(crate) fn blocks(&self) -> u32 {
        self.units * self.blocks_per_unit
    }
    /// Logical pages go round the units, so a run keeps all of them busy.
    pub(crate) fn unit_of(&self, lpn: u32) -> u32 {
        lpn % self.units
    }
}

/// Counters of a translation layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FtlStats {
    /// Pages programmed because the host wrote them.
    pub host_pages: u64,
    /// Pages moved by collection, merges and wear levelling.
    pub moved_pages: u64,
    /// Blocks erased.
    pub erases: u64,
    /// Mapped pages that the host trimmed.
    pub trimmed_pages: u64,
    /// Log blocks that became data blocks as they were (hybrid).
    pub switch_merges: u64,
    /// Log blocks that were filled up from their data block, then became data blocks (hybrid).
    pub partial_merges: u64,
    /// Logical blocks gathered into a fresh block (hybrid).
    pub full_merges: u64,
    /// Blocks moved only to level wear.
    pub levelled_blocks: u64,
    /// Victims collected whole before a write, as free blocks had run out.
    pub urgent: u64,
}

impl FtlStats {
    /// Pages programmed for each page the host wrote; 0 before the first write.
    pub fn write_amplification(&self) -> f64 {
        if self.host_pages == 0 {
            return 0.0;
        }
        (self.host_pages + self.moved_pages) as f64 / self.host_pages as f64
    }

    /// Returns the counts since `earlier`.
    pub fn since(&self, earlier: &FtlStats) -> FtlStats {
        FtlStats {
            host_pages: self.host_pages - earlier.host_pages,
            moved_pages: self.moved_pages - earlier.moved_pages,
            erases: self.erases - earlier.erases,
            trimmed_pages: self.trimmed_pages - earlier.trimmed_pages,
            switch_merges: self.switch_merges - earlier.switch_merges,
            partial_merges: self.partial_merges - earlier.partial_merges,
            full_merges: self.full_merges - earlier.full_merges,
            levelled_blocks: self.levelled_blocks - earlier.levelled_blocks,
            urgent: self.urgent - earlier.urgent,
        }
    }
}

/// Erase counts of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wear {
    /// Erases of the least worn block.
    pub least: u32,
    /// Erases of the most worn block.
    pub most: u32,
    /// Mean over all blocks.
    pub mean: f64,
}

impl Wear {
    pub(crate) fn of(erases: &[u32]) -> Wear {
        let sum: u64 = erases.iter().map(|e| u64::from(*e)).sum();
        Wear {
            least: erases.iter().copied().min().unwrap_or(0),
            most: erases.iter().copied().max().unwrap_or(0),
            mean: sum as f64 / erases.len().max(1) as f64,
        }
    }
}

/// The translation layer of a drive.
#[derive(Clone, Debug)]
pub(crate) enum Ftl {
    Page(PageFtl),
    Hybrid(HybridFtl),
}

impl Ftl {
    pub(crate) fn new(spec: &FlashSpec) -> Ftl {
        let shape = Shape::new(spec);
        match &spec.ftl {
            FtlSpec::Page(p) => Ftl::Page(PageFtl::new(shape, p)),
            FtlSpec::Hybrid(h) => Ftl::Hybrid(HybridFtl::new(shape, h)),
        }
    }

    /// Returns the place of `lpn`, if it has one.
    pub(crate) fn find(&self, lpn: u32) -> Option<u32> {
        match self {
            Ftl::Page(f) => f.find(lpn),
            Ftl::Hybrid(f) => f.find(lpn),
        }
    }

    /// Writes `lpn`: appends what its unit must do, the program last, and gives the page.
    pub(crate) fn write(&mut self, lpn: u32, steps: &mut Vec<Step>) -> u32 {
        match self {
            Ftl::Page(f) => f.write(lpn, steps),
            Ftl::Hybrid(f) => f.write(lpn, steps),
        }
    }

    /// Forgets `lpn`.
    pub(crate) fn trim(&mut self, lpn: u32, steps: &mut Vec<Step>) {
        match self {
            Ftl::Page(f) => f.trim(lpn),
            Ftl::Hybrid(f) => f.trim(lpn, steps),
        }
    }

    /// Work that `unit` should do as it is idle; none appended if there is none.
    pub(crate) fn idle_work(&mut self, unit: u32, steps: &mut Vec<Step>) {
        match self {
            Ftl::Page(f) => f.idle_work(unit, steps),
            Ftl::Hybrid(_) => {}
        }
    }

    pub(crate) fn stats(&self) -> &FtlStats {
        match self {
            Ftl::Page(f) => f.stats(),
            Ftl::Hybrid(f) => f.stats(),
        }
    }

    /// Erases of each block, unit by unit.
    pub(crate) fn erases(&self) -> Vec<u32> {
        match self {
            Ftl::Page(f) => f.erases().collect(),
            Ftl::Hybrid(f) => f.erases().collect(),
        }
    }
}
