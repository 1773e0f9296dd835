//! NI-E2 once more on recorded block traces: their addresses, order, reads and writes, with generated contents.

use super::{SHOWN_REAL, Variant, gain, hit_percent, watch};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::nitro::EXTENT_BYTES;
use crate::nitro::traces::{Access, Contents};
use plimsoll_base::Rng;
use plimsoll_cache::replay::Policy;
use plimsoll_trace::record::Op;
use plimsoll_trace::stream::RecordStream as _;
use plimsoll_trace::{ReadOptions, TraceReader};
use std::collections::BTreeMap;
use std::path::Path;

/// Traces with enough of both, file and name.
pub(super) const FILES: [(&str, &str); 3] = [
    ("block/cloudphysics_vm.csv.gz", "cloudphysics"),
    ("block/mobile_telegram.csv.gz", "telegram"),
    ("block/mobile_genshin.csv.gz", "genshin"),
];
/// Homes' and Mail's.
const DEDUP: f64 = 2.0;
/// The cache, in percent of the extents that the trace touches.
const CACHE_PERCENT: u64 = 20;

/// The extents that a trace touches, in order. Contents are drawn as the generator draws them.
pub(super) fn accesses(path: &Path, seed: u64, quick: bool) -> Result<(Vec<Access>, u64), LabError> {
    let mut reader = TraceReader::open(path, &ReadOptions::default())?;
    let mut all: Vec<(u64, bool)> = Vec::new();
    let mut names: BTreeMap<(u32, u64), u64> = BTreeMap::new();
    for r in reader.records() {
        let r = r?;
        if !matches!(r.op, Op::Read | Op::Write) {
            continue;
        }
        for n in r.offset / EXTENT_BYTES..(r.offset + r.len).div_ceil(EXTENT_BYTES) {
            let next = names.len() as u64;
            all.push((*names.entry((r.device, n)).or_insert(next), r.op == Op::Write));
        }
        if quick && all.len() > 50_000 {
            break;
        }
    }
    let footprint = names.len() as u64;
    let mut rng = Rng::new(seed, "real contents");
    let mut contents = Contents::new(DEDUP, footprint / 4, 0.9);
    let mut held: Vec<u128> = (0..footprint).map(|_| contents.draw(&mut rng)).collect();
    let access = |(extent, write): (u64, bool)| {
        if write {
            held[extent as usize] = contents.draw(&mut rng);
        }
        Access { extent, content: held[extent as usize], write }
    };
    Ok((all.into_iter().map(access).collect(), footprint))
}

/// See the module's documentation.
pub struct RealTraces;

impl Experiment for RealTraces {
    fn id(&self) -> &'static str {
        "NI-E2-real"
    }
    fn title(&self) -> &'static str {
        "Read-hit ratio on recorded traces with generated contents, cache of 20 % of the footprint"
    }
    fn source(&self) -> &'static str {
        "Nitro §3.6.1, Fig 3.4, on other traces"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn files(&self) -> Vec<&'static str> {
        FILES.map(|f| f.0).to_vec()
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "recorded addresses, order, reads and writes; contents are drawn: half of what is written is new for ever (deduplication \
             2.0), the rest among a quarter as many as there are extents, by Zipf (0.9); compressibility N(2, 0.25)"
                .into(),
            "the first two thirds of the accesses warm the cache; a request is as many accesses as it has extents of 8 KiB; nothing is \
             done about scans"
                .into(),
            "gains are relative: percent of the compared hit ratio (NI-A2)".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let of = |name: &str| {
            let row = |what: &str| RowSpec::new(format!("{name}: {what}"), "%");
            let mut rows = SHOWN_REAL.map(|v| row(&format!("read hits, {}", v.name))).to_vec();
            let both = row("gain of WEU (D, C) over (ND, NC)").goal(Check::AtLeast(0.0));
            rows.push(both.note("paper, on FIU's traces: 14 to 25 %"));
            rows
        };
        FILES.iter().flat_map(|f| of(f.1)).collect()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        for (file, _) in FILES {
            let Some(path) = inputs.file(file) else {
                sample.values.extend([None; SHOWN_REAL.len() + 1]);
                continue;
            };
            let (all, footprint) = accesses(&path, seed, inputs.quick)?;
            let cache_bytes = footprint * EXTENT_BYTES * CACHE_PERCENT / 100;
            let hits = |v: &Variant| {
                let warm = all.len() as u64 * 2 / 3;
                hit_percent(&watch(&mut Policy::new(v.config(cache_bytes)), all.iter().copied(), warm))
            };
            let shown = SHOWN_REAL.map(|v| hits(&v));
            sample.values.extend(shown.map(Some));
            let [_, plain, _, _, both] = shown;
            sample.values.push(gain(both, plain));
        }
        Ok(sample)
    }
}
