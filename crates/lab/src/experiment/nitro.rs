//! Nitro's policy on generated traces: NI-E1, E2, E3 and E14.
//!
//! FIU's traces with content can't be had. The generator has what the paper publishes of them (§3.5.2: size of the file system,
//! the share of it that is accessed, writes per read; §3.1 and §3.6.1: the deduplication ratio of the whole working set), and
//! three assumptions where the paper says nothing: Zipf popularity of addresses and of repeated contents, both with exponent
//! 0.9, and twelve accesses per extent of the footprint. They were set before the first run and are not fitted; NI-E2 shows what
//! ±25 % of them does.

use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Rng;
use plimsoll_cache::index::Key;
use plimsoll_cache::policy::{Policy, PolicyConfig, PolicyCounters, Unit};

/// Everything is smaller than the paper's by as much, WEUs too: hit ratios depend on ratios of sizes only.
const SCALE: u64 = 64;
/// Accesses per extent of the footprint; the first two thirds warm the cache (the paper: 16 days of 21).
const ACCESSES: u64 = 12;
const EXTENT_BYTES: u32 = 8 << 10;
/// 2 MiB at full size would leave a scaled cache with few WEUs: the unit is kept at as many per cache as 2 MiB in a thirtieth.
const WEU_BYTES: u32 = 256 << 10;
const ZIPF: f64 = 0.9;

/// A trace of the paper's.
#[derive(Clone, Copy)]
struct Trace {
    name: &'static str,
    /// GB of the file system, and per mille of it that is accessed.
    volume_gb: u64,
    accessed_permille: u64,
    writes_per_read: f64,
    /// Of the working set, written contents per different one (Fig 3.1, §3.6.1: Homes and Mail have more than WebVM).
    dedup: f64,
}

const TRACES: [Trace; 3] = [
    Trace { name: "WebVM", volume_gb: 70, accessed_permille: 53, writes_per_read: 3.6, dedup: 1.5 },
    Trace { name: "Homes", volume_gb: 470, accessed_permille: 58, writes_per_read: 4.2, dedup: 2.0 },
    Trace { name: "Mail", volume_gb: 500, accessed_permille: 115, writes_per_read: 4.3, dedup: 2.0 },
];

/// What the generator draws from, changed by a factor each.
#[derive(Clone, Copy)]
struct Tweak {
    zipf: f64,
    dedup: f64,
    accesses: f64,
}

const AS_IT_IS: Tweak = Tweak { zipf: 1.0, dedup: 1.0, accesses: 1.0 };

/// Ranks by Zipf, drawn by rejection from its continuous envelope.
struct Zipf {
    n: f64,
    s: f64,
}

impl Zipf {
    fn draw(&self, rng: &mut Rng) -> u64 {
        let one_minus = 1.0 - self.s;
        let x = (1.0 + rng.unit() * (self.n.powf(one_minus) - 1.0)).powf(1.0 / one_minus);
        (x as u64 - 1).min(self.n as u64 - 1)
    }
}

struct Generator {
    rng: Rng,
    addresses: Zipf,
    contents: Zipf,
    /// The address of each rank.
    places: Vec<u32>,
    /// What each extent has.
    content: Vec<u128>,
    repeat: f64,
    write: f64,
    unique: u128,
}

impl Generator {
    fn new(t: &Trace, tweak: Tweak, seed: u64) -> Generator {
        let mut rng = Rng::new(seed, t.name);
        let n = t.volume_gb * 1_000_000_000 * t.accessed_permille / 1000 / SCALE / u64::from(EXTENT_BYTES);
        let mut places: Vec<u32> = (0..n as u32).collect();
        rng.shuffle(&mut places);
        let s = (ZIPF * tweak.zipf).min(1.2);
        let s = if (s - 1.0).abs() < 0.01 { 0.99 } else { s };
        // So many contents are repeated that a written one is new with probability 1/dedup.
        let repeat = 1.0 - 1.0 / (1.0 + (t.dedup - 1.0) * tweak.dedup);
        let mut g = Generator {
            rng,
            addresses: Zipf { n: n as f64, s },
            contents: Zipf { n: (n / 4).max(2) as f64, s },
            places,
            content: Vec::new(),
            repeat,
            write: t.writes_per_read / (1.0 + t.writes_per_read),
            unique: 1 << 64,
        };
        g.content = (0..n).map(|_| g.draw_content()).collect();
        g
    }

    fn draw_content(&mut self) -> u128 {
        if self.rng.chance(self.repeat) {
            return u128::from(self.contents.draw(&mut self.rng));
        }
        self.unique += 1;
        self.unique
    }

    /// The next access: extent, content, and is it a write?
    fn next(&mut self) -> (u64, u128, bool) {
        let at = self.places[self.addresses.draw(&mut self.rng) as usize];
        let write = self.rng.chance(self.write);
        if write {
            let c = self.draw_content();
            self.content[at as usize] = c;
        }
        (u64::from(at), self.content[at as usize], write)
    }
}

/// Replays a trace on a cache of `percent_x10` tenths of a percent of the volume.
fn replay(
    t: &Trace,
    config: &dyn Fn(u64) -> PolicyConfig,
    percent_x10: u64,
    tweak: Tweak,
    seed: u64,
    quick: bool,
) -> PolicyCounters {
    let cache_bytes = t.volume_gb * 1_000_000_000 * percent_x10 / 1000 / SCALE;
    let mut policy = Policy::new(config(cache_bytes));
    let mut g = Generator::new(t, tweak, seed);
    let per = if quick { ACCESSES / 4 } else { ACCESSES };
    let total = (g.content.len() as f64 * per as f64 * tweak.accesses) as u64;
    for i in 0..total {
        if i == total * 2 / 3 {
            policy.reset_counters();
        }
        let (at, content, write) = g.next();
        let key = Key::new(0, at);
        match write {
            true => policy.write(key, content),
            false => policy.read(key, content),
        };
    }
    policy.counters()
}

fn config(unit: Unit, dedup_percent: u32, compress: bool) -> impl Fn(u64) -> PolicyConfig {
    move |cache_bytes| PolicyConfig {
        cache_bytes,
        extent_bytes: EXTENT_BYTES,
        unit,
        compress,
        fingerprints_percent: dedup_percent,
    }
}

const WEU: Unit = Unit::Weu(WEU_BYTES);

fn hit_percent(c: &PolicyCounters) -> f64 {
    100.0 * c.read_hits as f64 / c.reads.max(1) as f64
}

fn notes() -> Vec<String> {
    vec![
        "generated traces with the properties that the paper publishes of FIU's (which can't be had), all sizes divided by 64; the \
         policy is the cache's own index, without devices or time: hit ratios are of the model of the workload, not of FIU's"
            .into(),
        "addresses and repeated contents are drawn by Zipf (0.9), 12 accesses per extent, the first two thirds warm the cache: \
         assumptions, set before the first run; compressibility N(2, 0.25) per content (NI-M25)"
            .into(),
        "gains are relative: percent of the compared hit ratio (NI-A2)".into(),
    ]
}

/// NI-E2: read hits of WEUs and extents, with and without deduplication and compression.
pub struct HitRatios;

impl Experiment for HitRatios {
    fn id(&self) -> &'static str {
        "NI-E2"
    }
    fn title(&self) -> &'static str {
        "Read-hit ratio of WEU and extent caching, deduplicated and compressed or not, 2 % cache"
    }
    fn source(&self) -> &'static str {
        "Nitro §3.6.1, Fig 3.4"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn notes(&self) -> Vec<String> {
        notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (t, gain) in TRACES.iter().zip([25.0, 14.0, 20.0]) {
            let row = |what: &str| RowSpec::new(format!("{}: {what}", t.name), "%");
            rows.push(row("read hits, extents (ND, NC)"));
            rows.push(row("read hits, extents (D, NC)"));
            rows.push(row("read hits, WEU (ND, NC)"));
            rows.push(row("read hits, WEU (ND, C)"));
            rows.push(row("read hits, WEU (D, NC)"));
            rows.push(row("read hits, WEU (D, C)"));
            rows.push(row("gain of WEU (D, C) over (ND, NC)").paper(gain, Check::AtLeast(10.0)));
            rows.push(row("gain by compression, WEU").check(Check::AtLeast(0.0)).note("paper: 5 to 9 %"));
            rows.push(row("gain by deduplication, WEU").check(Check::AtLeast(0.0)).note("paper: 8 to 19 %"));
            rows.push(
                row("gain of extents over WEU at (D, NC)").check(Check::Within(-1.0, 15.0)).note("paper: 1 to 4 %"),
            );
            rows.push(row("gain of WEU (D, C), 5 % cache").note("paper: still the largest"));
            rows.push(row("gain of WEU (D, C), popularity -25 %"));
            rows.push(row("gain of WEU (D, C), popularity +25 %"));
            rows.push(row("gain of WEU (D, C), duplicates -25 %"));
            rows.push(row("gain of WEU (D, C), duplicates +25 %"));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for t in &TRACES {
            let hits = |unit, dedup, compress, percent, tweak| {
                hit_percent(&replay(t, &config(unit, dedup, compress), percent, tweak, seed, inputs.quick))
            };
            let gain = |a: f64, b: f64| Some(100.0 * (a / b - 1.0));
            let at = |unit, dedup, compress| hits(unit, dedup, compress, 20, AS_IT_IS);
            let (e, ed) = (at(Unit::Extent, 0, false), at(Unit::Extent, 100, false));
            let (w, wc) = (at(WEU, 0, false), at(WEU, 0, true));
            let (wd, wdc) = (at(WEU, 100, false), at(WEU, 100, true));
            values.extend([e, ed, w, wc, wd, wdc].map(Some));
            values.extend([gain(wdc, w), gain(wc, w), gain(wd, w), gain(ed, wd)]);
            let both = |percent, tweak| gain(hits(WEU, 100, true, percent, tweak), hits(WEU, 0, false, percent, tweak));
            values.push(both(50, AS_IT_IS));
            values.push(both(20, Tweak { zipf: 0.75, ..AS_IT_IS }));
            values.push(both(20, Tweak { zipf: 1.25, ..AS_IT_IS }));
            values.push(both(20, Tweak { dedup: 0.75, ..AS_IT_IS }));
            values.push(both(20, Tweak { dedup: 1.25, ..AS_IT_IS }));
        }
        Ok(Sample { values, ..Sample::default() })
    }
}

/// NI-E3: a partial fingerprint index.
pub struct FingerprintRatios;

const RATIOS: [u32; 5] = [100, 75, 50, 25, 0];

impl Experiment for FingerprintRatios {
    fn id(&self) -> &'static str {
        "NI-E3"
    }
    fn title(&self) -> &'static str {
        "Read hits and deduplication with a partial fingerprint index, WEU (D, NC), 2 % cache"
    }
    fn source(&self) -> &'static str {
        "Nitro §3.6.1, Fig 3.5"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn notes(&self) -> Vec<String> {
        notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for t in &TRACES {
            for r in RATIOS {
                rows.push(RowSpec::new(format!("{}: read hits, ratio {r} %", t.name), "%"));
                rows.push(RowSpec::new(format!("{}: deduplication, ratio {r} %", t.name), "1"));
            }
            let loss = RowSpec::new(format!("{}: hits lost at ratio 50 %", t.name), "%");
            rows.push(loss.check(Check::Within(0.0, 15.0)).note("paper: 5 to 11 % at ratios 75 and 50"));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for t in &TRACES {
            let mut hits = Vec::new();
            for r in RATIOS {
                let c = replay(t, &config(WEU, r, false), 20, AS_IT_IS, seed, inputs.quick);
                hits.push(hit_percent(&c));
                let dedup = c.inserted as f64 / (c.inserted - c.duplicates).max(1) as f64;
                values.extend([Some(hit_percent(&c)), Some(dedup)]);
            }
            values.push(Some(100.0 * (1.0 - hits[2] / hits[0])));
        }
        Ok(Sample { values, ..Sample::default() })
    }
}

/// NI-E1: how much of the possible deduplication caches of different sizes find.
pub struct CacheDedup;

const SIZES_X10: [u64; 6] = [1, 2, 5, 10, 20, 100];

impl Experiment for CacheDedup {
    fn id(&self) -> &'static str {
        "NI-E1"
    }
    fn title(&self) -> &'static str {
        "Deduplication ratio in caches of different sizes, extents of 8 KiB"
    }
    fn source(&self) -> &'static str {
        "Nitro §3.2, Fig 3.1"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn notes(&self) -> Vec<String> {
        let mut all = notes();
        all.push("the paper's figure is of 4 KB blocks; the last size holds all of the working set".into());
        all
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let row = |t: &Trace, p: u64| RowSpec::new(format!("{}: cache of {:.1} %", t.name, p as f64 / 10.0), "1");
        let mut rows: Vec<RowSpec> = TRACES.iter().flat_map(|t| SIZES_X10.map(|p| row(t, p))).collect();
        for t in &TRACES {
            let grows = RowSpec::new(format!("{}: largest over smallest", t.name), "1");
            rows.push(grows.check(Check::AtLeast(1.0)).note("the paper's rises to about 2.0"));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        let mut grows = Vec::new();
        for t in &TRACES {
            let ratio = |p| {
                let c = replay(t, &config(WEU, 100, false), p, AS_IT_IS, seed, inputs.quick);
                c.inserted as f64 / (c.inserted - c.duplicates).max(1) as f64
            };
            let all = SIZES_X10.map(ratio);
            values.extend(all.map(Some));
            grows.push(Some(all[SIZES_X10.len() - 1] / all[0]));
        }
        values.extend(grows);
        Ok(Sample { values, ..Sample::default() })
    }
}

/// NI-E14: bytes written to the fast device.
pub struct FastWrites;

impl Experiment for FastWrites {
    fn id(&self) -> &'static str {
        "NI-E14"
    }
    fn title(&self) -> &'static str {
        "Bytes written to the fast device, against WEU (ND, NC), 2 % cache"
    }
    fn source(&self) -> &'static str {
        "Nitro §3.6.3"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn notes(&self) -> Vec<String> {
        notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for t in &TRACES {
            let row = |what: &str| RowSpec::new(format!("{}: saved by {what}", t.name), "%");
            rows.push(row("compression alone").check(Check::AtLeast(22.0)));
            rows.push(match t.name {
                "Homes" => row("deduplication alone").paper(39.0, Check::AtLeast(22.0)),
                _ => row("deduplication alone").check(Check::AtLeast(22.0)),
            });
            rows.push(row("both").paper(53.0, Check::AtLeast(35.0)));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for t in &TRACES {
            let bytes = |dedup, compress| {
                replay(t, &config(WEU, dedup, compress), 20, AS_IT_IS, seed, inputs.quick).written_bytes as f64
            };
            let plain = bytes(0, false);
            let saved = |b: f64| Some(100.0 * (1.0 - b / plain));
            values.extend([saved(bytes(0, true)), saved(bytes(100, false)), saved(bytes(100, true))]);
        }
        Ok(Sample { values, ..Sample::default() })
    }
}

/// All of Nitro's.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![Box::new(CacheDedup), Box::new(HitRatios), Box::new(FingerprintRatios), Box::new(FastWrites)]
}
