//! A pool's page cache in memory (MittCache).

use super::page::{Family, Page};
use super::{About, Part, Shown};
use plimsoll_base::{Time, bytes_text};
use plimsoll_device::{CacheCounts, PageCacheLayer};
use plimsoll_stack::Stack;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;

/// `GET /v1/pools/{name}/memory`: a pool's page cache.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MemoryView {
    /// Bytes of the pages in it.
    pub bytes: u64,
    /// Reads answered from it, since the start.
    pub hits: u64,
    /// Reads that went below it.
    pub misses: u64,
    /// Reads of its own that bring in pages that were asked for and refused.
    pub fills: u64,
    /// Refused reads whose pages weren't brought in for too many others.
    pub fills_dropped: u64,
}

/// The part.
pub struct Memory;

impl Part for Memory {
    type Seen = CacheCounts;
    type View = MemoryView;
    const NAME: &'static str = "memory";
    const SUMMARY: &'static str = "A pool's page cache in memory";
    const HOW: &'static str = "say `memory = SIZE` in the pool's section";

    fn look(stack: &Stack, _: Time) -> Option<CacheCounts> {
        stack.layer::<PageCacheLayer>().map(PageCacheLayer::counts)
    }

    fn view(c: &CacheCounts, _: &About) -> MemoryView {
        MemoryView {
            bytes: c.resident * PAGE_BYTES,
            hits: c.hits,
            misses: c.misses,
            fills: c.fills,
            fills_dropped: c.fills_dropped,
        }
    }

    fn shown(v: &MemoryView) -> Shown {
        let (reads, bytes) = (v.hits + v.misses, bytes_text(v.bytes));
        let share = if reads == 0 { 0.0 } else { v.hits as f64 * 100.0 / reads as f64 };
        let mut shown = Shown::new(format!("{bytes} of pages, {share:.1} % of {reads} reads hit"));
        shown.line("fills", format!("{} after refused reads, {} dropped", v.fills, v.fills_dropped));
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, MemoryView)]) {
        let of: Vec<_> = pools.iter().map(|(pool, v)| (vec![("pool", *pool)], v)).collect();
        page.families(POOLS, &of);
    }
}

/// Metrics of a pool's page cache.
const POOLS: &[Family<MemoryView>] = &[
    ("plimsoll_memory_bytes", "Pages in the page cache.", |v| v.bytes as f64),
    ("plimsoll_memory_hits_total", "Reads answered from the page cache.", |v| v.hits as f64),
    ("plimsoll_memory_misses_total", "Reads that went below it.", |v| v.misses as f64),
    ("plimsoll_memory_fills_total", "Reads by the page cache itself, of pages whose read was refused.", |v| {
        v.fills as f64
    }),
    (
        "plimsoll_memory_fills_dropped_total",
        "Refused reads whose pages weren't read because too many such reads were in flight.",
        |v| v.fills_dropped as f64,
    ),
];
