//! Generated traces with the properties that Nitro publishes of FIU's.
//!
//! FIU's traces with content aren't available. The generator has the figures that the paper publishes (§3.5.2: size of the file
//! system, the share of it that is accessed, writes per read; §3.1 and §3.6.1: the deduplication ratio of the whole working
//! set). It has three assumptions where the paper has no figure: Zipf popularity of addresses and of repeated contents, both
//! with exponent 0.9, and twelve accesses per extent of the footprint. They were set before the first run and are not fitted;
//! NI-E2 shows the effect of ±25 % of each.
//!
//! [`Generator::in_runs`] adds properties of the one recorded sample of FIU's Mail (10,000 requests) that the generator lacks:
//! reads and writes in runs, of 9.7 and 3.8 blocks of 4 KiB on average, and next to no block both written and read (6 of 894).
//! The share of extents with writes is an assumption, a tenth, as in the sample. All were set before the first run with them.

use crate::nitro::EXTENT_BYTES;
use plimsoll_base::Rng;
use plimsoll_replay::workload::random::Zipf;

const ZIPF: f64 = 0.9;
/// Accesses per extent of the footprint; the first two thirds warm the cache (the paper: 16 days of 21).
const ACCESSES: f64 = 12.0;
/// Extents that lie together: 1 MiB of a file.
const TOGETHER: u64 = 128;

/// Mean extents of a run of reads and of one of writes: 9.7 and 3.8 blocks of 4 KiB.
const READ_RUN: f64 = 4.85;
const WRITE_RUN: f64 = 1.9;
/// Extents for each one that is only written.
const WRITTEN: u64 = 10;

/// A trace of the paper's.
#[derive(Clone, Copy, Debug)]
pub struct Trace {
    /// Its name there.
    pub name: &'static str,
    /// GB of the file system, ...
    pub volume_gb: u64,
    /// ... and per mille of it that is accessed.
    pub accessed_permille: u64,
    /// Number of writes for each read.
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

/// Parameters of the generator, each changed by a factor.
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

    /// Returns the bytes of a cache of `permille` thousandths of the file system.
    pub fn cache_bytes(&self, scale: u64, permille: u64) -> u64 {
        self.volume_gb * 1_000_000_000 * permille / 1000 / scale
    }
}

/// One access to an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Extent.
    pub extent: u64,
    /// Its content, after this access if it's a write.
    pub content: u128,
    /// True if it is a write.
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
    /// With runs, those of reads and of writes that are under way: the next extent, and how many are left.
    runs: Option<[(u64, u64); 2]>,
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
            runs: None,
            stride: (t.volume_gb * 1_000_000_000 / n.div_ceil(TOGETHER).max(1) / together).max(1) * together,
        }
    }

    /// The same with runs, and with extents that are only read and others that are only written.
    #[must_use]
    pub fn in_runs(mut self) -> Generator {
        self.runs = Some([(0, 0); 2]);
        self
    }

    /// The next extent of a run of reads or writes, or the first of a new one.
    fn next_of_run(&mut self, write: bool) -> u64 {
        let side = usize::from(write);
        let runs = self.runs.as_mut().expect("only with runs");
        let (next, left) = runs[side];
        let n = self.places.len() as u64;
        let written = n / WRITTEN;
        let (first, end) = if write { (0, written.max(1)) } else { (written, n) };
        if left > 0 && next < end {
            runs[side] = (next + 1, left - 1);
            return next;
        }
        let mean = if write { WRITE_RUN } else { READ_RUN };
        let more = (self.rng.exp1() * (mean - 1.0)).round() as u64;
        // Of the places that ranks have, those of the other side stand for others of this one.
        let at = u64::from(self.places[self.addresses.draw(&mut self.rng) as usize - 1]);
        let at = first + at % (end - first);
        self.runs.as_mut().expect("only with runs")[side] = (at + 1, more);
        at
    }

    /// Accesses of the whole trace, and how many of them warm the cache.
    pub fn accesses(&self) -> (u64, u64) {
        (self.accesses, self.accesses * 2 / 3)
    }

    /// Returns the present content of each extent.
    pub fn content(&self) -> &[u128] {
        &self.content
    }

    /// Returns the place of an extent in the file system, which isn't scaled down: accessed extents are spread over it by the
    /// megabyte.
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
        let (at, write) = if self.runs.is_some() {
            let write = self.rng.chance(self.write);
            (self.next_of_run(write) as u32, write)
        } else {
            let at = self.places[self.addresses.draw(&mut self.rng) as usize - 1];
            (at, self.rng.chance(self.write))
        };
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
    fn runs_are_as_long_as_the_samples_and_sides_have_extents_of_their_own() {
        let mut g = Generator::new(&TRACES[2], Tweak::NONE, 1, 2048).in_runs();
        let all: Vec<Access> = g.by_ref().take(40_000).collect();
        for (write, mean) in [(false, READ_RUN), (true, WRITE_RUN)] {
            let side: Vec<u64> = all.iter().filter(|a| a.write == write).map(|a| a.extent).collect();
            let begun = side.windows(2).filter(|w| w[1] != w[0] + 1).count() + 1;
            let found = side.len() as f64 / begun as f64;
            assert!((found / mean - 1.0).abs() < 0.15, "{write}: {found} of {mean}");
        }
        let of = |write| all.iter().filter(|a| a.write == write).map(|a| a.extent).collect::<BTreeSet<u64>>();
        assert!(of(false).is_disjoint(&of(true)));
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
