//! Generated traces with the properties that Nitro publishes of FIU's.
//!
//! FIU's traces with content can't be had. The generator has what the paper says of them (§3.5.2: size of the file system,
//! the share of it that is accessed, writes per read; §3.1 and §3.6.1: the deduplication ratio of the whole working set), and
//! three assumptions where the paper says nothing: Zipf popularity of addresses and of repeated contents, both with exponent
//! 0.9, and twelve accesses per extent of the footprint. They were set before the first run and are not fitted; NI-E2 shows
//! what ±25 % of each does.

use crate::nitro::EXTENT_BYTES;
use plimsoll_base::Rng;
use plimsoll_replay::workload::random::Zipf;

const ZIPF: f64 = 0.9;
/// Accesses per extent of the footprint; the first two thirds warm the cache (the paper: 16 days of 21).
const ACCESSES: f64 = 12.0;
/// Extents that lie together: 1 MiB of a file.
const TOGETHER: u64 = 128;

/// A trace of the paper's.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// Its name there.
    pub name: &'static str,
    /// GB of the file system, ...
    pub volume_gb: u64,
    /// ... and per mille of it that is accessed.
    pub accessed_permille: u64,
    /// How many writes come with one read.
    pub writes_per_read: f64,
    /// Of the working set, written contents per different one (Fig 3.1, §3.6.1: Homes and Mail have more than WebVM).
    pub dedup: f64,
}

/// FIU's three.
pub const TRACES: [Trace; 3] = [
    Trace { name: "WebVM", volume_gb: 70, accessed_permille: 53, writes_per_read: 3.6, dedup: 1.5 },
    Trace { name: "Homes", volume_gb: 470, accessed_permille: 58, writes_per_read: 4.2, dedup: 2.0 },
    Trace { name: "Mail", volume_gb: 500, accessed_permille: 115, writes_per_read: 4.3, dedup: 2.0 },
];

/// What the generator draws from, each changed by a factor.
#[derive(Clone, Copy, Debug)]
pub struct Tweak {
    /// The exponent of popularity.
    pub zipf: f64,
    /// Repeated contents.
    pub dedup: f64,
    /// Accesses per extent.
    pub accesses: f64,
}

impl Tweak {
    /// Nothing is changed.
    pub const NONE: Tweak = Tweak { zipf: 1.0, dedup: 1.0, accesses: 1.0 };
}

impl Trace {
    /// Extents of the footprint, everything being smaller by `scale`.
    pub fn extents(&self, scale: u64) -> u64 {
        self.volume_gb * 1_000_000_000 * self.accessed_permille / 1000 / scale / EXTENT_BYTES
    }

    /// Bytes of a cache of so many tenths of a percent of the file system.
    pub fn cache_bytes(&self, scale: u64, permille: u64) -> u64 {
        self.volume_gb * 1_000_000_000 * permille / 1000 / scale
    }
}

/// One access to an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Which.
    pub extent: u64,
    /// What it holds, after this if it's a write.
    pub content: u128,
    /// Is it a write?
    pub write: bool,
}

/// The contents that a trace writes: some over and over, others once.
pub struct Contents {
    popular: Zipf,
    repeat: f64,
    unique: u128,
}

impl Contents {
    /// `dedup` written contents per different one; the repeated ones are among `repeated`, by Zipf's law.
    pub fn new(dedup: f64, repeated: u64, zipf: f64) -> Contents {
        let popular = Zipf::new(repeated.max(2), zipf).expect("a positive exponent");
        // So many are repeated that a written one is new with probability 1/dedup.
        Contents { popular, repeat: 1.0 - 1.0 / dedup, unique: 1 << 64 }
    }

    /// The next that is written.
    pub fn draw(&mut self, rng: &mut Rng) -> u128 {
        if rng.chance(self.repeat) {
            return u128::from(self.popular.draw(rng));
        }
        self.unique += 1;
        self.unique
    }
}

/// See the module's documentation.
pub struct Generator {
    rng: Rng,
    addresses: Zipf,
    contents: Contents,
    /// The extent of each rank.
    places: Vec<u32>,
    content: Vec<u128>,
    write: f64,
    accesses: u64,
    /// Bytes of the file system for each megabyte that is accessed.
    stride: u64,
}

impl Generator {
    /// The same trace for the same seed.
    pub fn new(t: &Trace, tweak: Tweak, seed: u64, scale: u64) -> Generator {
        let mut rng = Rng::new(seed, t.name);
        let n = t.extents(scale);
        let mut places: Vec<u32> = (0..n as u32).collect();
        rng.shuffle(&mut places);
        let zipf = ZIPF * tweak.zipf;
        let mut contents = Contents::new(1.0 + (t.dedup - 1.0) * tweak.dedup, n / 4, zipf);
        let content = (0..n).map(|_| contents.draw(&mut rng)).collect();
        let addresses = Zipf::new(n.max(1), zipf).expect("a positive exponent");
        let together = TOGETHER * EXTENT_BYTES;
        Generator {
            rng,
            addresses,
            contents,
            places,
            content,
            write: t.writes_per_read / (1.0 + t.writes_per_read),
            accesses: (n as f64 * ACCESSES * tweak.accesses) as u64,
            stride: (t.volume_gb * 1_000_000_000 / n.div_ceil(TOGETHER).max(1) / together).max(1) * together,
        }
    }

    /// Accesses of the whole trace, and how many of them warm the cache.
    pub fn accesses(&self) -> (u64, u64) {
        (self.accesses, self.accesses * 2 / 3)
    }

    /// What each extent holds now.
    pub fn content(&self) -> &[u128] {
        &self.content
    }

    /// Where an extent lies in the file system, which isn't scaled down: what is accessed is spread over it by the megabyte.
    pub fn address(&self, extent: u64) -> u64 {
        extent / TOGETHER * self.stride + extent % TOGETHER * EXTENT_BYTES
    }

    /// Bytes of the file system.
    pub fn volume_bytes(&self) -> u64 {
        self.address(self.content.len() as u64 - 1) + EXTENT_BYTES
    }
}

impl Iterator for Generator {
    type Item = Access;

    /// The next access; it never ends.
    fn next(&mut self) -> Option<Access> {
        let at = self.places[self.addresses.draw(&mut self.rng) as usize - 1];
        let write = self.rng.chance(self.write);
        if write {
            self.content[at as usize] = self.contents.draw(&mut self.rng);
        }
        Some(Access { extent: u64::from(at), content: self.content[at as usize], write })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_trace_has_what_it_was_made_to_have() {
        for t in &TRACES {
            let mut g = Generator::new(t, Tweak::NONE, 1, 2048);
            let (n, _) = g.accesses();
            let all: Vec<Access> = g.by_ref().take(n as usize).collect();
            let writes: Vec<u128> = all.iter().filter(|a| a.write).map(|a| a.content).collect();
            let per_read = writes.len() as f64 / (all.len() - writes.len()) as f64;
            assert!((per_read / t.writes_per_read - 1.0).abs() < 0.1, "{}: {per_read}", t.name);
            // Of what is written, one in `dedup` is new for ever; the repeated ones are few.
            let new = writes.iter().filter(|c| **c > 1 << 64).count();
            assert!((writes.len() as f64 / new as f64 / t.dedup - 1.0).abs() < 0.1, "{}", t.name);
            let again: Vec<Access> = Generator::new(t, Tweak::NONE, 1, 2048).take(n as usize).collect();
            assert_eq!(all, again, "the same seed, the same trace");
        }
    }

    #[test]
    fn extents_lie_apart_and_in_the_file_system() {
        let g = Generator::new(&TRACES[0], Tweak::NONE, 1, 512);
        let n = g.content().len() as u64;
        let all: BTreeSet<u64> = (0..n).map(|e| g.address(e)).collect();
        assert_eq!(all.len() as u64, n);
        assert!(g.volume_bytes() <= 70_000_000_000 && g.volume_bytes() > 50_000_000_000, "{}", g.volume_bytes());
    }
}
