//! Hits and bytes written by policies of admission, by the policy's model alone, on a recorded block trace:
//!
//! ```text
//! zcat cloudphysics_vm.csv.gz | cargo run --release -p plimsoll-cache --example admissions
//! ```
//! Standard input has lines of `time,device,R or W,offset,bytes,…`. Contents are unknown: nothing is deduplicated or compressed. The first
//! two thirds of the accesses warm the cache.

use plimsoll_cache::index::Key;
use plimsoll_cache::replay::{Policy, PolicyConfig, PolicyCounters, Unit};
use plimsoll_cache::{Admission, Eviction};
use std::collections::BTreeMap;

const EXTENT: u64 = 8192;
const SIZES_PERCENT: [u64; 4] = [2, 5, 10, 20];

/// Extents in order of access, and whether each access is a write.
fn accesses() -> Vec<(u64, bool)> {
    let (mut all, mut names) = (Vec::new(), BTreeMap::new());
    for line in std::io::stdin().lines().skip(1) {
        let line = line.expect("lines of text");
        let fields: Vec<&str> = line.split(',').collect();
        let [_, device, op @ ("R" | "W"), offset, bytes, ..] = fields[..] else { continue };
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        let (offset, bytes) = (number(offset), number(bytes));
        for n in offset / EXTENT..(offset + bytes).div_ceil(EXTENT) {
            let next = names.len() as u64;
            all.push((*names.entry((device.to_string(), n)).or_insert(next), op == "W"));
        }
    }
    all
}

fn replay(all: &[(u64, bool)], cache_bytes: u64, eviction: Eviction, admission: Admission) -> PolicyCounters {
    let config = PolicyConfig {
        cache_bytes,
        extent_bytes: EXTENT as u32,
        unit: Unit::Weu(128 << 10),
        compress: false,
        fingerprints_percent: 0,
        eviction,
        admission,
    };
    let mut policy = Policy::new(config);
    for (at, (extent, is_write)) in all.iter().enumerate() {
        if at == all.len() * 2 / 3 {
            policy.reset_counters();
        }
        let key = Key::new(0, *extent);
        _ = if *is_write { policy.write(key, 0) } else { policy.read(key, 0) };
    }
    policy.counters()
}

fn main() {
    let all = accesses();
    let extents = all.iter().map(|a| a.0 + 1).max().unwrap_or(0);
    println!("{} accesses of {extents} extents", all.len());
    for percent in SIZES_PERCENT {
        for eviction in [Eviction::Lru, Eviction::Live] {
            for admission in [Admission::All, Admission::Second] {
                let c = replay(&all, extents * EXTENT * percent / 100, eviction, admission);
                let hits = c.read_hits as f64 * 100.0 / c.reads.max(1) as f64;
                let mib = c.written_bytes >> 20;
                let (eviction, admission) = (format!("{eviction:?}"), format!("{admission:?}"));
                println!(
                    "{percent:2} % {eviction:5} {admission:7} {hits:5.1} % read hits, {mib} MiB written, {} rejected",
                    c.rejected
                );
            }
        }
    }
}
