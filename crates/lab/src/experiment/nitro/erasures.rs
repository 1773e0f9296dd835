//! NI-E4: blocks erased by WEU and extent caching, on drives that know of them and drives that don't.

use super::{CACHE_PERMILLE, EXTENT_D, SCALE, Variant, WEU_BYTES, WEU_D, gain, hit_percent, notes};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::nitro::EXTENT_BYTES;
use crate::nitro::traces::{Access, Generator, TRACES, Trace, Tweak};
use plimsoll_base::Time;
use plimsoll_cache::index::Key;
use plimsoll_cache::replay::{FastIo, Policy};
use plimsoll_device::flash::{FtlSpec, PageFtlSpec, WriteBuffer};
use plimsoll_device::{Flash, FlashOptions, FlashSpec, History, Model, Op, Request};

/// Information that the drive gets, and its mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drive {
    /// Hybrid mapping; evictions aren't reported.
    Plain,
    /// Hybrid mapping, TRIM.
    Trim,
    /// A WEU is a block: blocks are mapped, evictions are known, and [`BLOCKS_SPARE`] are spare.
    Blocks,
    /// Pages are mapped, evictions are known.
    Pages,
}

const CASES: [(&str, Variant, Drive); 6] = [
    ("WEU-LRU", WEU_D, Drive::Plain),
    ("WEU-LRU-TRIM", WEU_D, Drive::Trim),
    ("WEU-LRU-mod", WEU_D, Drive::Blocks),
    ("extent-LRU-TRIM", EXTENT_D, Drive::Trim),
    ("extent-LRU-mod", EXTENT_D, Drive::Pages),
    ("extent-LRU, neither", EXTENT_D, Drive::Plain),
];

/// Blocks that a drive of whole blocks keeps to itself: the open one, a free one, and two that it needs to collect.
const BLOCKS_SPARE: f64 = 4.0;

/// Nitro's drive as one unit whose block is a WEU, of `raw_bytes` of flash.
fn drive(drive: Drive, raw_bytes: u64) -> Result<Flash, LabError> {
    let mut spec = FlashSpec::by_name("nitro-mlc").map_err(|e| LabError(e.to_string()))?;
    let g = &mut spec.geometry;
    (g.channels, g.chips_per_channel, g.dies_per_chip, g.planes_per_die) = (1, 1, 1, 1);
    g.pages_per_block = WEU_BYTES / g.page_bytes;
    g.blocks_per_plane = (raw_bytes / u64::from(WEU_BYTES)) as u32;
    spec.buffer = WriteBuffer::default();
    let pages = PageFtlSpec {
        over_provision: 0.07,
        gc_start_free_blocks: 4,
        gc_urgent_free_blocks: 1,
        gc_step_pages: 0,
        gc_paced: false,
        gc_stream: true,
        hot_cold: false,
        wear_gap_erases: 0,
    };
    match drive {
        Drive::Plain | Drive::Trim => {}
        Drive::Pages => spec.ftl = FtlSpec::Page(pages),
        Drive::Blocks => {
            // Whole blocks are written and evicted, so the same mapping never has anything to move, and needs next to no spare blocks.
            let blocks = f64::from(g.blocks_per_plane);
            // Less by what rounding could take a page for.
            let over_provision = blocks / (blocks - BLOCKS_SPARE) - 1.0 - 1e-9;
            let (gc_start_free_blocks, gc_stream) = (1, false);
            spec.ftl = FtlSpec::Page(PageFtlSpec { over_provision, gc_start_free_blocks, gc_stream, ..pages });
        }
    }
    let options = FlashOptions { history: History::Fresh, ..FlashOptions::default() };
    Flash::new(&spec, options).map_err(|e| LabError(e.to_string()))
}

/// A drive on which the policy's writes and evictions are performed.
struct Driven {
    flash: Flash,
    trims: bool,
    now: Time,
}

impl Driven {
    fn one(&mut self, op: Op, offset: u64, len: u64) {
        self.flash.submit(self.now, Request { tag: 0, op, offset, len });
        let mut done = Vec::new();
        while done.is_empty() {
            self.now = self.flash.next_event().max(self.now);
            self.flash.advance(self.now, &mut done);
        }
    }

    fn apply(&mut self, what: FastIo) {
        match what {
            FastIo::Write(at, len) => self.one(Op::Write { fua: true }, at, len),
            FastIo::Evict(at, len) if self.trims => self.one(Op::Trim, at, len),
            FastIo::Evict(..) => {}
        }
    }
}

/// Erases and read hits of the trace's last third, and the pages that the drive moved in all.
fn erases(t: &Trace, v: &Variant, kind: Drive, seed: u64, quick: bool) -> Result<(f64, f64, f64), LabError> {
    let accesses = if quick { 0.25 } else { 1.0 };
    let g = Generator::new(t, Tweak { accesses, ..Tweak::NONE }, seed, SCALE);
    let raw = t.cache_bytes(SCALE, CACHE_PERMILLE);
    let mut driven = Driven { flash: drive(kind, raw)?, trims: kind != Drive::Plain, now: Time::ZERO };
    let space = driven.flash.size_bytes();
    let unit = if v.unit == super::WEU { u64::from(WEU_BYTES) } else { EXTENT_BYTES };
    let mut policy = Policy::new(v.config(space / unit * unit));
    policy.take_done();
    let (all, warm) = g.accesses();
    let mut before = 0;
    for (i, a) in g.take(all as usize).enumerate() {
        let Access { extent, content, write } = a;
        if i as u64 == warm {
            policy.reset_counters();
            before = driven.flash.stats().erases;
        }
        match write {
            true => policy.write(Key::new(0, extent), content),
            false => policy.read(Key::new(0, extent), content),
        };
        policy.take_done().into_iter().for_each(|what| driven.apply(what));
    }
    let after = driven.flash.stats().erases;
    let moved = driven.flash.stats().moved_pages;
    Ok(((after - before) as f64, hit_percent(&policy.counters()), moved as f64))
}

/// See the module's documentation.
pub struct Erasures;

impl Experiment for Erasures {
    fn id(&self) -> &'static str {
        "NI-E4"
    }
    fn title(&self) -> &'static str {
        "Erasures of WEU and extent caching, modified and unmodified drives, (D, NC), 2 % cache"
    }
    fn source(&self) -> &'static str {
        "Nitro §3.6.1, Fig 3.6"
    }
    fn device(&self) -> &'static str {
        "nitro-mlc"
    }
    fn notes(&self) -> Vec<String> {
        let mut all = notes();
        all.push(
            "nitro-mlc's hybrid mapping (7 % spare, 10 % log blocks) as one unit whose block is a WEU; all variants have the same raw \
             flash, so the cache on an unmodified drive is smaller by what the drive keeps to itself"
                .into(),
        );
        all.push(
            "WEU-LRU-mod: a drive that is written, and told of evictions, by whole blocks, and keeps four blocks to itself; extent-LRU-mod \
             stands for FlashTier's drive: pages are mapped (7 % spare, greedy collection) and evictions are known to it"
                .into(),
        );
        all
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let of = |t: &Trace| {
            let row = |what: &str, unit| RowSpec::new(format!("{}: {what}", t.name), unit);
            let mut rows = vec![row("erasures, WEU-LRU", "1")];
            for (name, ..) in &CASES[1..] {
                let r = row(&format!("erasures of {name} over WEU-LRU"), "1");
                rows.push(match *name {
                    "WEU-LRU-TRIM" | "WEU-LRU-mod" => r.reproduces_range(0.91, 1.2),
                    "extent-LRU, neither" => r.paper_says(Check::AtLeast(10.0), "orders of magnitude more"),
                    _ => r.reproduces_range(2.0, 4.0),
                });
            }
            let hits = row("read hits of WEU-LRU-mod over WEU-LRU", "%");
            rows.push(hits.reproduces_range(5.0, 8.0));
            let moved = row("pages that the drive of WEU-LRU-mod moved", "1");
            rows.push(
                moved.property(Check::AtMost(0.0)).note("a WEU is a block, so a block's pages are garbage all at once"),
            );
            rows
        };
        TRACES.iter().flat_map(of).collect()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for t in &TRACES {
            let mut found = Vec::new();
            for (_, v, kind) in &CASES {
                found.push(erases(t, v, *kind, seed, inputs.quick)?);
            }
            values.push(Some(found[0].0));
            values.extend(found[1..].iter().map(|f| Some(f.0 / found[0].0.max(1.0))));
            values.extend([gain(found[2].1, found[0].1), Some(found[2].2)]);
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
