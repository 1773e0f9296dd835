//! With deduplication, compression and WEUs off, the flash cache's policy is an LRU cache: hit for hit the one that
//! `tests/peers/libcachesim_lru.py` compares with libCacheSim.

use plimsoll_base::Rng;
use plimsoll_cache::index::Key;
use plimsoll_cache::replay::{Policy, PolicyConfig, Unit};
use plimsoll_cache::{Admission, Eviction};
use plimsoll_replay::lru::Lru;
use plimsoll_trace::record::Op;
use plimsoll_trace::{ReadOptions, TraceReader};
use std::path::PathBuf;

const EXTENT: u64 = 8192;

/// Hits of both, over the same accesses; they must agree at each.
fn compare(extents: u64, accesses: impl Iterator<Item = (u64, bool)>) -> (u64, u64) {
    let unit = Unit::Extent;
    let config = PolicyConfig {
        cache_bytes: extents * EXTENT,
        extent_bytes: EXTENT as u32,
        unit,
        compress: false,
        fingerprints_percent: 0,
        eviction: Eviction::Lru,
        admission: Admission::All,
    };
    let (mut policy, mut lru) = (Policy::new(config), Lru::new(extents * EXTENT));
    let (mut hits, mut all) = (0, 0);
    for (block, write) in accesses {
        let key = Key::new(0, block);
        let ours = if write { policy.write(key, 0) } else { policy.read(key, 0) };
        let theirs = lru.access(0, block, EXTENT);
        assert_eq!(ours, theirs, "access {all} of block {block}");
        (hits, all) = (hits + u64::from(ours), all + 1);
    }
    (hits, all)
}

#[test]
fn a_plain_extent_cache_hits_what_lru_hits() {
    for (seed, extents) in [(1, 2), (2, 50), (3, 777)] {
        let mut rng = Rng::new(seed, "lru");
        let accesses = (0..100_000).map(|_| {
            let spread = 1 + rng.below(3000);
            (rng.below(spread), rng.chance(0.4))
        });
        let (hits, all) = compare(extents, accesses.collect::<Vec<_>>().into_iter());
        assert!(hits > 100 && hits < all, "{hits} of {all}");
    }
}

#[test]
fn also_on_recorded_traces() {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let data = PathBuf::from(std::env::var_os("PLIMSOLL_DATA").unwrap_or_else(|| default.into()));
    for name in ["block/cloudphysics_vm.csv.gz", "block/tpcc_small.csv.gz"] {
        let path = data.join(name);
        if !path.is_file() {
            println!("ran without {name}");
            continue;
        }
        let reader = TraceReader::open(&path, &ReadOptions::default()).unwrap();
        let mut accesses = Vec::new();
        for r in reader {
            let r = r.unwrap();
            if !matches!(r.op, Op::Read | Op::Write) || r.len == 0 {
                continue;
            }
            let blocks = r.offset / EXTENT..(r.offset + r.len).div_ceil(EXTENT);
            accesses.extend(blocks.map(|b| (b, r.op == Op::Write)));
            if accesses.len() > 300_000 {
                break;
            }
        }
        let (hits, all) = compare(4000, accesses.into_iter());
        println!("{name}: {hits} hits of {all}, the same ones");
        assert!(all > 1000);
    }
}
