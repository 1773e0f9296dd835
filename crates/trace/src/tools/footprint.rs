//! Footprint of a trace: the part of the devices that it touches.

use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the blocks that are counted.
pub const BLOCK_BYTES: u64 = 4096;

/// Blocks of one entry of the exact count.
const CHUNK_BLOCKS: u64 = 512;
/// Entries at most: about 200 MiB. They cover 4 TiB of dense addresses, or 2 million scattered requests.
const CHUNKS_MAX: usize = 1 << 21;
/// log2 of the registers of the estimate: 16,384 of them, a standard error of 0.8 %.
const REGISTER_BITS: u32 = 14;

/// Bitmap of the touched blocks of one chunk.
type Chunk = [u64; (CHUNK_BLOCKS / 64) as usize];

/// Counts distinct 4 KiB blocks: exactly in a bitmap by address while that takes no more than about 200 MiB, then by
/// a HyperLogLog estimate.
pub struct Footprint {
    counter: Counter,
    chunks_max: usize,
}

enum Counter {
    /// By device and chunk.
    Exact(BTreeMap<(u32, u64), Chunk>),
    Estimate(Vec<u8>),
}

impl Default for Footprint {
    fn default() -> Footprint {
        Footprint::new()
    }
}

impl Footprint {
    /// Nothing touched.
    pub fn new() -> Footprint {
        Footprint { counter: Counter::Exact(BTreeMap::new()), chunks_max: CHUNKS_MAX }
    }

    /// Counts the blocks of `len` bytes (at least 1) from `offset`.
    pub fn touch(&mut self, device: u32, offset: u64, len: u64) {
        let (first, last) = (offset / BLOCK_BYTES, (offset + len - 1) / BLOCK_BYTES);
        match &mut self.counter {
            Counter::Exact(chunks) => {
                for chunk in first / CHUNK_BLOCKS..=last / CHUNK_BLOCKS {
                    let bits = chunks.entry((device, chunk)).or_default();
                    let base = chunk * CHUNK_BLOCKS;
                    let (from, to) = (first.max(base) - base, last.min(base + CHUNK_BLOCKS - 1) - base);
                    for (word, bits) in bits.iter_mut().enumerate() {
                        *bits |= mask(word as u64, from, to);
                    }
                }
                if chunks.len() > self.chunks_max {
                    self.give_up_exactness();
                }
            }
            Counter::Estimate(registers) => (first..=last).for_each(|b| register(registers, device, b)),
        }
    }

    fn give_up_exactness(&mut self) {
        let mut registers = vec![0; 1 << REGISTER_BITS];
        if let Counter::Exact(chunks) = &self.counter {
            for (&(device, chunk), bits) in chunks {
                for i in (0..CHUNK_BLOCKS).filter(|i| bits[(i / 64) as usize] >> (i % 64) & 1 == 1) {
                    register(&mut registers, device, chunk * CHUNK_BLOCKS + i);
                }
            }
        }
        self.counter = Counter::Estimate(registers);
    }

    /// Distinct blocks so far, and whether the number is exact.
    pub fn blocks(&self) -> (u64, bool) {
        match &self.counter {
            Counter::Exact(chunks) => (chunks.values().flatten().map(|w| u64::from(w.count_ones())).sum(), true),
            Counter::Estimate(registers) => (estimate(registers), false),
        }
    }
}

/// The bits of word `word` of a chunk for its blocks `from..=to`.
fn mask(word: u64, from: u64, to: u64) -> u64 {
    let (low, high) = (word * 64, word * 64 + 63);
    if to < low || from > high {
        return 0;
    }
    let (a, b) = (from.max(low) - low, to.min(high) - low);
    u64::MAX << a & u64::MAX >> (63 - b)
}

/// HyperLogLog: the register chosen by the hash's low bits keeps the longest run of zeroes of the others.
fn register(registers: &mut [u8], device: u32, block: u64) {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&device.to_le_bytes());
    key[4..].copy_from_slice(&block.to_le_bytes());
    let hash = xxh3_64(&key);
    let rank = (hash >> REGISTER_BITS | 1 << (64 - REGISTER_BITS)).trailing_zeros() as u8 + 1;
    let r = &mut registers[hash as usize & ((1 << REGISTER_BITS) - 1)];
    *r = (*r).max(rank);
}

/// The harmonic mean over the registers. The correction for few elements isn't needed: the exact count hands over
/// millions.
fn estimate(registers: &[u8]) -> u64 {
    let m = registers.len() as f64;
    let alpha = 0.7213 / (1.0 + 1.079 / m);
    let sum: f64 = registers.iter().map(|&r| (-f64::from(r)).exp2()).sum();
    (alpha * m * m / sum).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn the_exact_count_is_that_of_a_set() {
        let mut rng = Rng::new(1, "footprint");
        let (mut f, mut set) = (Footprint::new(), BTreeSet::new());
        for _ in 0..3_000 {
            let (device, offset, len) = (rng.below(2) as u32, rng.below(1 << 34), 1 + rng.below(8 << 20));
            f.touch(device, offset, len);
            set.extend((offset / 4096..=(offset + len - 1) / 4096).map(|b| (device, b)));
        }
        assert_eq!(f.blocks(), (set.len() as u64, true));
    }

    #[test]
    fn the_estimate_takes_over_within_its_error() {
        let mut f = Footprint { chunks_max: 1_000, ..Footprint::new() };
        let mut rng = Rng::new(2, "footprint");
        let mut set = BTreeSet::new();
        for _ in 0..300_000 {
            let block = rng.below(1 << 40);
            set.insert(block);
            f.touch(0, block * 4096, 4096);
        }
        let (found, is_exact) = f.blocks();
        assert!(!is_exact);
        // Three standard errors of 0.8 %.
        assert!((found as f64 / set.len() as f64 - 1.0).abs() < 0.024, "{found} for {}", set.len());
    }
}
