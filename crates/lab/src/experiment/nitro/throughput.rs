//! NI-E5 and E6: requests per second and read response time over the two backends.

use super::{EXTENT_BYTES, POLICY, WEU_BYTES, gain};
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample, Switch};
use crate::nitro::machine::{Behind, Extents, Front, Measured, Setup, replay};
use crate::nitro::traces::{Generator, TRACES, Trace, Tweak};
use plimsoll_base::CacheMode;
use plimsoll_cache::replay::{Policy, PolicyConfig, Unit};
use plimsoll_cache::{CacheConfig, Codec, Shape};

/// Returns the divisor of sizes against the paper's, as every request is simulated through all layers: WebVM is small enough
/// anyway.
fn scale(t: &Trace) -> u64 {
    if t.volume_gb < 100 { 64 } else { 256 }
}
/// Half of the accesses of the policy's experiments.
const ACCESSES: f64 = 0.5;
pub(super) const CLIENTS: usize = 16;
/// The paper's 960 MB, at full size.
pub(super) const NVRAM_BYTES: u64 = 960_000_000;

/// Memory for recipes where the store has them: more than all of those of what is accessed here.
const RECIPE_BYTES: u64 = 8 << 20;

/// The cache of such a variant. Of WEUs of 2 MiB too few would fit.
pub(super) fn nitro(dedup: bool, compress: bool) -> Front {
    let shape = Shape { extent_bytes: EXTENT_BYTES as u32, weu_bytes: WEU_BYTES / 4 };
    let config = CacheConfig {
        fingerprints_percent: if dedup { 100 } else { 0 },
        codec: if compress { Codec::Lz4 } else { Codec::None },
        recipe_bytes: RECIPE_BYTES,
        ..CacheConfig::default()
    };
    Front::Nitro(config, shape, CacheMode::Through)
}

/// The same, treating its volume so.
fn in_mode(front: Front, mode: CacheMode) -> Front {
    match front {
        Front::Nitro(config, shape, _) => Front::Nitro(config, shape, mode),
        other => other,
    }
}

/// Table 3.2's columns.
pub(super) const COLUMNS: [&str; 5] = ["Extent (ND, NC)", "WEU (ND, NC)", "WEU (ND, C)", "WEU (D, NC)", "WEU (D, C)"];

pub(super) fn fronts() -> [Front; 5] {
    [Front::Extents, nitro(false, false), nitro(false, true), nitro(true, false), nitro(true, true)]
}

/// Device behind the cache, and the cost of its writes.
#[derive(Clone, Copy)]
pub(super) struct Over {
    pub behind: Behind,
    /// At full size.
    pub nvram_bytes: u64,
    pub free_writes: bool,
}

/// A trace on a front over a backend; a cold one begins with the measured third.
pub(super) fn run(
    t: &Trace,
    front: Front,
    behind: Behind,
    warm: bool,
    seed: u64,
    inputs: &Inputs,
) -> Result<Measured, LabError> {
    run_over(t, front, Over { behind, nvram_bytes: NVRAM_BYTES, free_writes: false }, warm, seed, inputs)
}

/// Part of what a system does for the clients at which its timed replay runs (§3.6.2: about 95 % of the resources).
const LOAD: f64 = 0.95;

/// The same, warm, but the measured third comes at [`LOAD`] of the rate that `closed` had, at random times.
fn run_timed(
    t: &Trace,
    front: Front,
    behind: Behind,
    closed: &Measured,
    seed: u64,
    inputs: &Inputs,
) -> Result<Measured, LabError> {
    let over = Over { behind, nvram_bytes: NVRAM_BYTES, free_writes: false };
    run_with(t, front, over, Arrivals { warm: true, rate: Some(closed.iops * LOAD) }, seed, inputs)
}

/// Arrivals of a replay's requests.
#[derive(Clone, Copy)]
struct Arrivals {
    /// The first two thirds warm the cache; else they are left out.
    warm: bool,
    /// See [`Setup::rate`].
    rate: Option<f64>,
}

/// The accesses of a trace.
fn generator(t: &Trace, seed: u64, inputs: &Inputs) -> Generator {
    let accesses = ACCESSES / inputs.length(1.0, 8.0, 16.0);
    let g = Generator::new(t, Tweak { accesses, ..Tweak::NONE }, seed, scale(t));
    if inputs.has(Switch::Runs) { g.in_runs() } else { g }
}

/// The cache's size. A unit of 64 KiB has a header of 4 KiB, and so room for 7 bare extents of 8; one of 2 MiB has 255 of 256. A switch gives
/// the smaller units that room, too.
fn cache_bytes(t: &Trace, front: &Front, inputs: &Inputs) -> u64 {
    let bytes = t.cache_bytes(scale(t), super::CACHE_PERMILLE);
    match front {
        Front::Nitro(..) if inputs.has(Switch::LargeUnits) => bytes * 8 * 255 / (7 * 256),
        _ => bytes,
    }
}

/// The front with what a switch undoes or changes.
fn switched(front: Front, inputs: &Inputs) -> Front {
    let Front::Nitro(mut config, shape, mut mode) = front else { return front };
    if inputs.has(Switch::NoDedup) {
        config.fingerprints_percent = 0;
    }
    if inputs.has(Switch::NoCompression) {
        config.codec = Codec::None;
    }
    if inputs.has(Switch::WriteBack) {
        mode = CacheMode::Back;
    }
    Front::Nitro(config, shape, mode)
}

/// The same, over any such backend.
pub(super) fn run_over(
    t: &Trace,
    front: Front,
    over: Over,
    warm: bool,
    seed: u64,
    inputs: &Inputs,
) -> Result<Measured, LabError> {
    run_with(t, front, over, Arrivals { warm, rate: None }, seed, inputs)
}

fn run_with(
    t: &Trace,
    front: Front,
    over: Over,
    arrivals: Arrivals,
    seed: u64,
    inputs: &Inputs,
) -> Result<Measured, LabError> {
    let front = switched(front, inputs);
    let warm = arrivals.warm;
    let mut g = generator(t, seed, inputs);
    let (all, before) = g.accesses();
    if !warm {
        g.by_ref().take(before as usize).for_each(drop);
    }
    let contents = g.content().to_vec();
    let addresses: Vec<u64> = (0..contents.len() as u64).map(|e| g.address(e)).collect();
    let address = |e: u64| addresses[e as usize];
    let setup = Setup {
        front,
        cache_bytes: cache_bytes(t, &front, inputs),
        behind: over.behind,
        nvram_bytes: over.nvram_bytes / scale(t),
        free_writes: over.free_writes,
        coalesces: inputs.has(Switch::Coalesce),
        clients: CLIENTS,
        rate: arrivals.rate,
        write_back: false,
        seed,
    };
    let (take, warm_up) = if warm { (all, before) } else { (all - before, 0) };
    replay(
        &setup,
        &Extents { address: &address, contents: &contents, bytes: EXTENT_BYTES },
        g.take(take as usize),
        warm_up,
    )
}

/// Read hits, percent, of the policy alone under the accesses and with the sizes of [`run`].
fn policy_hits(t: &Trace, seed: u64, inputs: &Inputs) -> f64 {
    let g = generator(t, seed, inputs);
    let (all, before) = g.accesses();
    let config = PolicyConfig {
        cache_bytes: t.cache_bytes(scale(t), super::CACHE_PERMILLE),
        extent_bytes: EXTENT_BYTES as u32,
        unit: Unit::Weu(WEU_BYTES / 4),
        compress: true,
        fingerprints_percent: 100,
        eviction: plimsoll_cache::Eviction::Lru,
        admission: plimsoll_cache::Admission::All,
    };
    super::hit_percent(&super::watch(&mut Policy::new(config), g.take(all as usize), before))
}

pub(super) fn notes() -> Vec<String> {
    vec![
        "generated traces (see NI-E2), sizes divided by 64 (WebVM) or 256, six accesses per extent, in a closed loop of 16 clients: as fast as the \
         system goes; the paper's replay was accelerated to 95 % of the resources, as in the rows “timed replay”"
            .into(),
        "a WEU of 64 KiB (of 2 MiB too few would fit the scaled cache) loses an eighth of its bare extents to its header, where one of 2 MiB \
         loses a 256th: columns (.., NC) have that much less cache than in the paper (the switch large-units gives it back)"
            .into(),
        "the flash cache's own code over models, writes in NVRAM and cached after (write-through): vf-sata-60g, ten disks of 1 TB striped, with next to no buffers of their own, NVRAM of 960 MB divided likewise, for writes and for the cache's journal; \
         tps pays for a small write what RAID-5 does; cos has recipes, containers and metadata propagation, an eighth of its metadata \
         in memory (NI-A5); neither has a path of CPU time of its own. Requests are whole extents"
            .into(),
        "improvements are percent of the same backend without a cache (NI-A1)".into(),
    ]
}

/// Common part of the studies.
pub(super) const REPLAYED: Study =
    Study { version: 4, device: "vf-sata-60g, raid0:10:64K:constellation-es3-1tb", common: notes, ..POLICY };

/// Table 3.2, one backend's half.
struct Half {
    behind: Behind,
    /// By trace, then column: IOPS and read response time.
    iops: [[f64; 5]; 3],
    rrt: [[f64; 5]; 3],
}

/// Over `cos`.
const COS: Half = Half {
    behind: Behind::Dedup,
    iops: [
        [251.0, 307.0, 393.0, 532.0, 661.0],
        [259.0, 341.0, 432.0, 556.0, 673.0],
        [213.0, 254.0, 292.0, 320.0, 450.0],
    ],
    rrt: [[52.0, 54.0, 63.0, 72.0, 78.0], [46.0, 49.0, 55.0, 57.0, 62.0], [50.0, 53.0, 61.0, 67.0, 72.0]],
};

/// Over `tps`.
const TPS: Half = Half {
    behind: Behind::Plain,
    iops: [[93.0, 113.0, 148.0, 198.0, 264.0], [90.0, 130.0, 175.0, 233.0, 287.0], [56.0, 75.0, 115.0, 122.0, 165.0]],
    rrt: [[39.0, 41.0, 49.0, 58.0, 64.0], [39.0, 42.0, 47.0, 49.0, 54.0], [41.0, 44.0, 51.0, 57.0, 61.0]],
};

/// NI-E5: over `cos`.
pub const DEDUPLICATING: Study = Study {
    id: "NI-E5",
    title: "IOPS and read response time over a deduplicating, compressing store (cos), warm, 2 % cache",
    source: "Nitro §3.6.2, Table 3.2",
    rows: || COS.rows(),
    sample: |seed, inputs| COS.sample(seed, inputs),
    ..REPLAYED
};

/// NI-E6: over `tps`.
pub const PLAIN: Study = Study {
    id: "NI-E6",
    title: "IOPS and read response time over a plain array (tps), warm, 2 % cache",
    source: "Nitro §3.6.2, Table 3.2",
    rows: || TPS.rows(),
    sample: |seed, inputs| TPS.sample(seed, inputs),
    ..REPLAYED
};

impl Half {
    fn rows(&self) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (i, t) in TRACES.iter().enumerate() {
            let row = |what: &str, unit| RowSpec::new(format!("{}: {what}", t.name), unit);
            rows.push(row("no cache, IOPS", "1/s"));
            rows.push(row("no cache, read response time", "ms"));
            for (j, column) in COLUMNS.iter().enumerate() {
                let iops = row(&format!("IOPS, {column}"), "%");
                rows.push(iops.reproduces(self.iops[i][j]));
                let rrt = row(&format!("read response time reduced, {column}"), "%");
                rows.push(rrt.reproduces(self.rrt[i][j]));
                rows.push(row(&format!("read hits, {column}"), "%"));
            }
            let back = |what: &str| row(&format!("{what}, WEU (D, C) in write-back mode"), "%");
            rows.push(
                back("IOPS")
                    .beside(self.iops[i][COLUMNS.len() - 1])
                    .note("writes are done when the cache has them; the paper doesn't say which mode"),
            );
            rows.push(back("read response time reduced"));
            rows.push(
                back("read hits")
                    .note("a write is there at once: next to no extent is uncached while its write is under way"),
            );
            let timed = |what: &str, unit| row(&format!("{what}, timed replay at 95 % of its own IOPS"), unit);
            rows.push(timed("no cache: read response time", "ms"));
            rows.push(
                timed("read response time reduced, WEU (D, C)", "%")
                    .reproduces(self.rrt[i][COLUMNS.len() - 1])
                    .note("either system at 95 % of what it does for 16 clients, as the paper's replay"),
            );
            if self.behind == Behind::Dedup {
                let without = row("read hits lost without the recipe cache, WEU (D, C)", "%");
                rows.push(without.reproduces_range(5.0, 14.0).note("paper: NI-E6"));
            }
            let order = row("columns in the paper's order, of 4 steps", "1");
            rows.push(
                order
                    .note("by IOPS; a step may fall back by 2 %: any order of near equal columns has 4, so not judged"),
            );
            rows.push(
                row("columns of Table 3.2 in strict order by IOPS, of 4 steps", "1")
                    .derived()
                    .paper_says(Check::AtLeast(4.0), "Table 3.2: each column is above the one before it"),
            );
            rows.push(
                row("read hits, WEU (D, C), by the policy alone", "%")
                    .note("NI-E1 to E4 and E14 are of the policy: no time passes in it, so a write never keeps a read from hitting"),
            );
            rows.push(row("read hits, WEU (D, C) over extents", "points").derived().paper_says(
                Check::AtLeast(0.0),
                "the cache effectively holds more when it deduplicates and compresses (§3.6.1)",
            ));
        }
        rows
    }

    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for t in &TRACES {
            let of = |front| run(t, front, self.behind, true, seed, inputs);
            let none = of(Front::None)?;
            values.extend([Some(none.iops), Some(none.read_ms)]);
            let (mut iops, mut hits, mut extent_hits, mut last) = (Vec::new(), 0.0, 0.0, none);
            for front in fronts() {
                let m = of(front)?;
                last = m;
                values.extend([gain(m.iops, none.iops), Some(100.0 * (1.0 - m.read_ms / none.read_ms))]);
                values.push(Some(m.hit_percent));
                if iops.is_empty() {
                    extent_hits = m.hit_percent;
                }
                iops.push(m.iops);
                hits = m.hit_percent;
            }
            let back = of(in_mode(nitro(true, true), CacheMode::Back))?;
            values.extend([gain(back.iops, none.iops), Some(100.0 * (1.0 - back.read_ms / none.read_ms))]);
            values.push(Some(back.hit_percent));
            let timed = |front, closed: &Measured| run_timed(t, front, self.behind, closed, seed, inputs);
            let (alone, ours) = (timed(Front::None, &none)?, timed(nitro(true, true), &last)?);
            values.extend([alone.read_ms, 100.0 * (1.0 - ours.read_ms / alone.read_ms)].map(Some));
            if self.behind == Behind::Dedup {
                let Front::Nitro(config, shape, mode) = nitro(true, true) else { unreachable!("it is one") };
                let without = of(Front::Nitro(CacheConfig { recipe_bytes: 0, ..config }, shape, mode))?;
                values.push(Some(100.0 * (1.0 - without.hit_percent / hits)));
            }
            let steps = iops.windows(2).filter(|w| w[1] >= w[0] * 0.98).count();
            values.push(Some(steps as f64));
            values.push(Some(iops.windows(2).filter(|w| w[1] > w[0]).count() as f64));
            values.push(Some(policy_hits(t, seed, inputs)));
            values.push(Some(hits - extent_hits));
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
