//! A plain LRU cache replay: no device, no time, only hits. It exists to compare what we read out of a trace with
//! what another cache simulator reads (libCacheSim; `tests/peers/libcachesim_lru.py`).

use plimsoll_trace::error::TraceError;
use plimsoll_trace::record::{Op, TraceRecord};
use plimsoll_trace::stream::RecordStream;
use std::collections::HashMap;

/// Unit of caching.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granularity {
    /// A request's start address is an object's name and its length the object's size, as in libCacheSim's reading
    /// of block traces. An object keeps the size it was inserted with.
    Object,
    /// Each aligned block of this many bytes (at least 1) that a request touches is an access of its own.
    Block(u64),
}

/// Accesses and hits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hits {
    /// Requests, or blocks of requests.
    pub accesses: u64,
    /// Those found in the cache.
    pub hits: u64,
}

impl Hits {
    /// Hits per access, 0 to 1; 0 if there were none.
    pub fn ratio(&self) -> f64 {
        self.hits as f64 / self.accesses.max(1) as f64
    }
}

/// Device and address (or number of the block).
type Key = (u32, u64);

/// "No neighbour" in the list.
const NONE: usize = usize::MAX;

struct Node {
    key: Key,
    bytes: u64,
    newer: usize,
    older: usize,
}

/// A cache of a number of bytes that evicts what was used least recently. Memory grows with what it holds.
pub struct Lru {
    capacity_bytes: u64,
    used_bytes: u64,
    /// Looked up only, never walked: the hash's order decides nothing.
    index: HashMap<Key, usize>,
    nodes: Vec<Node>,
    free: Vec<usize>,
    newest: usize,
    oldest: usize,
}

impl Lru {
    /// An empty cache.
    pub fn new(capacity_bytes: u64) -> Lru {
        Lru {
            capacity_bytes,
            used_bytes: 0,
            index: HashMap::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// Uses the object `(device, address)`; true if it was there. If not, it is inserted with `bytes`, after the eviction of
    /// the oldest ones that are in its way. An object larger than the cache is not inserted.
    pub fn access(&mut self, device: u32, address: u64, bytes: u64) -> bool {
        let key = (device, address);
        if let Some(&i) = self.index.get(&key) {
            self.unlink(i);
            self.link_newest(i);
            return true;
        }
        if bytes <= self.capacity_bytes {
            while self.used_bytes + bytes > self.capacity_bytes {
                self.evict();
            }
            self.insert(key, bytes);
        }
        false
    }

    fn insert(&mut self, key: Key, bytes: u64) {
        let node = Node { key, bytes, newer: NONE, older: NONE };
        let i = match self.free.pop() {
            Some(i) => {
                self.nodes[i] = node;
                i
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.index.insert(key, i);
        self.used_bytes += bytes;
        self.link_newest(i);
    }

    fn evict(&mut self) {
        let i = self.oldest;
        assert!(i != NONE, "bytes in use, but nothing to evict");
        self.unlink(i);
        self.used_bytes -= self.nodes[i].bytes;
        self.index.remove(&self.nodes[i].key);
        self.free.push(i);
    }

    fn unlink(&mut self, i: usize) {
        let (newer, older) = (self.nodes[i].newer, self.nodes[i].older);
        match newer {
            NONE => self.newest = older,
            n => self.nodes[n].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            n => self.nodes[n].newer = newer,
        }
    }

    fn link_newest(&mut self, i: usize) {
        (self.nodes[i].newer, self.nodes[i].older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = i,
            n => self.nodes[n].newer = i,
        }
        self.newest = i;
    }

    /// Takes a read or a write; trims and flushes use nothing.
    pub fn replay(&mut self, r: &TraceRecord, granularity: Granularity, hits: &mut Hits) {
        if !matches!(r.op, Op::Read | Op::Write) {
            return;
        }
        let mut count = |hit: bool| {
            hits.accesses += 1;
            hits.hits += u64::from(hit);
        };
        match granularity {
            Granularity::Object => count(self.access(r.device, r.offset, r.len)),
            Granularity::Block(bytes) => {
                for block in r.offset / bytes..=(r.end() - 1) / bytes {
                    count(self.access(r.device, block, bytes));
                }
            }
        }
    }
}

/// Replays all of `stream` through one cache per capacity, in one pass.
///
/// # Errors
/// The stream's.
pub fn replay(
    stream: &mut impl RecordStream,
    granularity: Granularity,
    capacities_bytes: &[u64],
) -> Result<Vec<Hits>, TraceError> {
    let mut caches: Vec<_> = capacities_bytes.iter().map(|&c| (Lru::new(c), Hits::default())).collect();
    for r in stream.records() {
        let r = r?;
        for (cache, hits) in &mut caches {
            cache.replay(&r, granularity, hits);
        }
    }
    Ok(caches.into_iter().map(|(_, hits)| hits).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    /// The same by a list searched from end to end, newest last.
    struct Naive(Vec<(u64, u64)>, u64);

    impl Naive {
        fn access(&mut self, address: u64, bytes: u64) -> bool {
            if let Some(i) = self.0.iter().position(|o| o.0 == address) {
                let o = self.0.remove(i);
                self.0.push(o);
                return true;
            }
            if bytes <= self.1 {
                while self.0.iter().map(|o| o.1).sum::<u64>() + bytes > self.1 {
                    self.0.remove(0);
                }
                self.0.push((address, bytes));
            }
            false
        }
    }

    #[test]
    fn the_cache_is_the_naive_list() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed, "lru");
            let capacity = 1 + rng.below(200);
            let (mut lru, mut naive) = (Lru::new(capacity), Naive(Vec::new(), capacity));
            for step in 0..2_000 {
                let (address, bytes) = (rng.below(40), 1 + rng.below(30));
                assert_eq!(lru.access(0, address, bytes), naive.access(address, bytes), "seed {seed}, step {step}");
            }
        }
    }

    #[test]
    fn blocks_and_objects_count_differently() {
        let r = |offset, len| TraceRecord::new(plimsoll_base::Time::ZERO, 0, Op::Read, offset, len);
        let records = [r(0, 8192), r(4096, 4096), r(0, 1)];
        let count = |granularity| {
            let (mut lru, mut hits) = (Lru::new(1 << 20), Hits::default());
            records.iter().for_each(|r| lru.replay(r, granularity, &mut hits));
            (hits.accesses, hits.hits)
        };
        assert_eq!(count(Granularity::Block(4096)), (4, 2));
        assert_eq!(count(Granularity::Object), (3, 1));
    }
}
