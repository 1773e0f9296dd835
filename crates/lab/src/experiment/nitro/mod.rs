//! Nitro's experiments (checklist NI-E1 to E11 and E14).

mod erasures;
mod evictions;
mod extents;
mod hits;
mod overhead;
mod real;
mod sensitivity;
mod throughput;
mod write_cost;

use crate::experiment::study::Study;
use crate::experiment::{Experiment, Inputs, Sample};
use crate::nitro::EXTENT_BYTES;
use crate::nitro::traces::{Access, Generator, Trace, Tweak};
use plimsoll_cache::index::Key;
use plimsoll_cache::replay::{Policy, PolicyConfig, PolicyCounters, Unit};
use plimsoll_cache::{Admission, Eviction};

/// Divisor of all sizes against the paper's, WEUs included: hit ratios depend on ratios of sizes only.
const SCALE: u64 = 64;
/// Size of a WEU. 2 MiB at full size would leave a scaled cache with few WEUs: the number in a cache is kept at that of 2 MiB
/// in a thirtieth.
const WEU_BYTES: u32 = 256 << 10;
/// Default size: 2 % of the file system.
const CACHE_PERMILLE: u64 = 20;

/// Treatment of cached data.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    unit: Unit,
    /// Percent of the fingerprints.
    dedup: u32,
    compress: bool,
}

impl Variant {
    const fn of(name: &'static str, unit: Unit, dedup: u32, compress: bool) -> Variant {
        Variant { name, unit, dedup, compress }
    }

    /// Returns its policy on `cache_bytes`.
    fn config(&self, cache_bytes: u64) -> PolicyConfig {
        PolicyConfig {
            cache_bytes,
            extent_bytes: EXTENT_BYTES as u32,
            unit: self.unit,
            compress: self.compress,
            fingerprints_percent: self.dedup,
            eviction: Eviction::Lru,
            admission: Admission::All,
        }
    }
}

/// Those shown of recorded traces.
const SHOWN_REAL: [Variant; 5] = [EXTENT, PLAIN, WEU_C, WEU_D, NITRO];

const WEU: Unit = Unit::Weu(WEU_BYTES);
const EXTENT: Variant = Variant::of("extents (ND, NC)", Unit::Extent, 0, false);
const EXTENT_D: Variant = Variant::of("extents (D, NC)", Unit::Extent, 100, false);
const PLAIN: Variant = Variant::of("WEU (ND, NC)", WEU, 0, false);
const WEU_C: Variant = Variant::of("WEU (ND, C)", WEU, 0, true);
const WEU_D: Variant = Variant::of("WEU (D, NC)", WEU, 100, false);
const NITRO: Variant = Variant::of("WEU (D, C)", WEU, 100, true);

/// Passes all of `accesses` to a policy. Returns its counts after the first `warm`.
fn watch(policy: &mut Policy, accesses: impl Iterator<Item = Access>, warm: u64) -> PolicyCounters {
    for (i, a) in accesses.enumerate() {
        if i as u64 == warm {
            policy.reset_counters();
        }
        let key = Key::new(0, a.extent);
        match a.write {
            true => policy.write(key, a.content),
            false => policy.read(key, a.content),
        };
    }
    policy.counters()
}

/// Replays a generated trace on a cache of `permille` of the file system. A quick run is a quarter of it.
fn replay(t: &Trace, v: &Variant, permille: u64, tweak: Tweak, seed: u64, inputs: &Inputs) -> PolicyCounters {
    replay_on(&mut Policy::new(v.config(t.cache_bytes(SCALE, permille))), t, tweak, seed, inputs)
}

/// The same on this cache.
fn replay_on(policy: &mut Policy, t: &Trace, tweak: Tweak, seed: u64, inputs: &Inputs) -> PolicyCounters {
    let tweak = Tweak { accesses: tweak.accesses / inputs.length(1.0, 4.0, 12.0), ..tweak };
    let g = Generator::new(t, tweak, seed, SCALE);
    let (all, warm) = g.accesses();
    watch(policy, g.take(all as usize), warm)
}

fn hit_percent(c: &PolicyCounters) -> f64 {
    100.0 * c.read_hits as f64 / c.reads.max(1) as f64
}

/// Returns the gain of `a` over `b`, in percent of `b` (NI-A2).
fn gain(a: f64, b: f64) -> Option<f64> {
    Some(100.0 * (a / b - 1.0))
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

/// Those of the policy alone.
const POLICY: Study = Study {
    id: "",
    title: "",
    source: "",
    version: 3,
    device: "none",
    common: notes,
    notes: &[],
    rows: Vec::new,
    sample: |_, _| Ok(Sample::default()),
    refused: |_| false,
};

/// All of Nitro's.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(hits::CACHE_DEDUP),
        Box::new(hits::HIT_RATIOS),
        Box::new(real::RealTraces),
        Box::new(hits::FINGERPRINT_RATIOS),
        Box::new(erasures::Erasures),
        Box::new(throughput::DEDUPLICATING),
        Box::new(throughput::PLAIN),
        Box::new(write_cost::WRITE_COST),
        Box::new(extents::OVER_EXTENTS),
        Box::new(extents::COLD_CACHE),
        Box::new(sensitivity::Sensitivity),
        Box::new(overhead::BootStorm),
        Box::new(hits::FAST_WRITES),
        Box::new(evictions::Evictions),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nitro::traces::TRACES;
    use plimsoll_replay::lru::Lru;

    /// With everything off it is an LRU cache, access by access: the one whose hits `make peers` compares with libCacheSim's.
    #[test]
    fn with_everything_off_it_is_lru() {
        let t = &TRACES[0];
        let extents = 500;
        let mut policy = Policy::new(EXTENT.config(extents * EXTENT_BYTES));
        let mut lru = Lru::new(extents);
        let (mut hits, mut accesses) = (0, 0);
        for a in Generator::new(t, Tweak::NONE, 1, 512).take(20_000) {
            let key = Key::new(0, a.extent);
            let hit = if a.write { policy.write(key, a.content) } else { policy.read(key, a.content) };
            assert_eq!(hit, lru.access(0, a.extent, 1), "access {accesses} to extent {}", a.extent);
            (hits, accesses) = (hits + u32::from(hit), accesses + 1);
        }
        assert!(hits > 5_000 && hits < 19_000, "{hits} hits");
    }
}
