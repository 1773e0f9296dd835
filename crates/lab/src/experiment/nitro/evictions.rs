//! NI-EVICTION: policies of eviction and of admission, by hits and by bytes written, against plain extents.

use super::real::{FILES, accesses};
use super::{EXTENT, NITRO, Variant, hit_percent, notes, watch};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::nitro::EXTENT_BYTES;
use crate::nitro::traces::{Generator, TRACES, Tweak};
use plimsoll_cache::replay::{Policy, PolicyConfig, PolicyCounters, Unit};
use plimsoll_cache::{Admission, Eviction};

const POLICIES: [(Eviction, &str); 4] =
    [(Eviction::Lru, "lru"), (Eviction::Live, "live"), (Eviction::Sieve, "sieve"), (Eviction::S3Fifo, "s3fifo")];
/// The one that the goal is of.
const GOAL: usize = 1;
/// Of the footprint, and of generated file systems, too: the paper's sizes, which are 38 and 95 % of WebVM's footprint.
const SIZES_PERCENT: [u64; 2] = [2, 5];
/// 2 MiB at full size, divided as all sizes are.
const SCALE: u64 = 16;
const WEU: Unit = Unit::Weu(128 << 10);

/// See the module's documentation.
pub struct Evictions;

impl Experiment for Evictions {
    fn id(&self) -> &'static str {
        "NI-EVICTION"
    }
    fn title(&self) -> &'static str {
        "Read hits and bytes written by policy of eviction, WEU (D, C) against plain extents, caches of 2 and 5 %"
    }
    fn source(&self) -> &'static str {
        "ours; Nitro §3.4.3 has WEU-LRU"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn files(&self) -> Vec<&'static str> {
        FILES.map(|f| f.0).to_vec()
    }
    fn notes(&self) -> Vec<String> {
        let own = [
            "generated sizes are divided by 16, WEUs have 128 KiB; plain extents are evicted one by one by LRU, and overwritten in place",
            "sizes are in percent of the footprint, if not of the file system; constants of the policies were chosen on the generated \
             traces under seed 1, so their rows under that seed are no test of them",
            "recorded traces: addresses, order, reads and writes are recorded, contents are drawn as in NI-E2-real",
        ];
        notes().into_iter().chain(own.map(String::from)).collect()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        rows()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        sample(seed, inputs)
    }
}

fn rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    let generated = TRACES.iter().flat_map(|t| [(t.name, ""), (t.name, " of the file system")]);
    for (name, of) in generated.chain(FILES.map(|f| (f.1, ""))) {
        for percent in SIZES_PERCENT {
            let row = |what: &str, unit| RowSpec::new(format!("{name}, {percent} %{of}: {what}"), unit);
            rows.push(row("read hits, plain extents", "%"));
            rows.extend(POLICIES.map(|p| row(&format!("read hits, {}", p.1), "%")));
            rows.extend(POLICIES.map(|p| row(&format!("bytes written over plain extents', {}", p.1), "1")));
            rows.push(row("read hits, lru with admission of the second", "%"));
            rows.push(row("bytes written over plain extents', lru with admission of the second", "1"));
            rows.push(row("hits of live over plain extents'", "points").goal(Check::AtLeast(0.0)));
            rows.push(row("bytes of live over plain extents'", "1").goal(Check::AtMost(1.05)));
        }
    }
    rows
}

/// Figures of one trace and one size: `run` replays it on a policy.
fn figures(cache_bytes: u64, run: impl Fn(&mut Policy) -> PolicyCounters) -> Vec<Option<f64>> {
    let of =
        |v: &Variant, unit, eviction| run(&mut Policy::new(PolicyConfig { unit, eviction, ..v.config(cache_bytes) }));
    let plain = of(&EXTENT, Unit::Extent, Eviction::Lru);
    let all = POLICIES.map(|p| of(&NITRO, WEU, p.0));
    let hits = all.map(|c| hit_percent(&c));
    let bytes = all.map(|c| c.written_bytes as f64 / plain.written_bytes.max(1) as f64);
    let own = hit_percent(&plain);
    let goals = [hits[GOAL] - own, bytes[GOAL]];
    let config = PolicyConfig { unit: WEU, admission: Admission::Second, ..NITRO.config(cache_bytes) };
    let second = run(&mut Policy::new(config));
    let admitted = [hit_percent(&second), second.written_bytes as f64 / plain.written_bytes.max(1) as f64];
    std::iter::once(own).chain(hits).chain(bytes).chain(admitted).chain(goals).map(Some).collect()
}

fn sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let mut values = Vec::new();
    let tweak = Tweak { accesses: 1.0 / inputs.length(1.0, 4.0, 12.0), ..Tweak::NONE };
    for t in &TRACES {
        let of_footprint = SIZES_PERCENT.map(|p| t.extents(SCALE) * EXTENT_BYTES * p / 100);
        let of_file_system = SIZES_PERCENT.map(|p| t.cache_bytes(SCALE, p * 10));
        for cache_bytes in of_footprint.into_iter().chain(of_file_system) {
            values.extend(figures(cache_bytes, |policy| {
                let g = Generator::new(t, tweak, seed, SCALE);
                let (all, warm) = g.accesses();
                watch(policy, g.take(all as usize), warm)
            }));
        }
    }
    for (file, _) in FILES {
        let Some(path) = inputs.file(file) else {
            values.extend(vec![None; SIZES_PERCENT.len() * (2 * POLICIES.len() + 5)]);
            continue;
        };
        let (all, footprint) = accesses(&path, seed, inputs.quick)?;
        for percent in SIZES_PERCENT {
            let warm = all.len() as u64 * 2 / 3;
            let run = |policy: &mut Policy| watch(policy, all.iter().copied(), warm);
            values.extend(figures(footprint * EXTENT_BYTES * percent / 100, run));
        }
    }
    Ok(Sample { values, ..Sample::default() })
}
