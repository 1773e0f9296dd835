//! Files of a web server: sizes, places on a disk, popularity, and the kernel's read-ahead.
//!
//! The modelled web server that the tuner is shown on and `plimsoll tune web-server` have them in common.

use plimsoll_base::Rng;

/// Files above this aren't cached (footnote 3).
pub const CACHED_BYTES_MAX: u64 = 2_000_000;
/// The kernel's first read-ahead window, ...
const WINDOW_FIRST: u64 = 32 << 10;
/// ... each of the next ones being twice as large, up to this.
const WINDOW_MAX: u64 = 128 << 10;
/// Windows asked for at once, after the first: a thread that comes to a window asks for the next one, and waits for this one.
pub const WINDOWS_AHEAD: usize = 2;
/// Contiguous pieces in which files lie: ext4's largest.
const EXTENT_BYTES: u64 = 128 << 20;
/// Bytes of the file system's blocks.
pub const BLOCK_BYTES: u64 = 4096;

/// File sizes of web servers: lognormal ones, and some that are of a Pareto distribution.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FileSizes {
    /// Median of the lognormal ones in bytes.
    pub median_bytes: f64,
    /// Standard deviation of their logarithms.
    pub sigma: f64,
    /// Share of the others.
    pub tail_share: f64,
    /// The least of those in bytes.
    pub tail_from_bytes: f64,
    /// Their index.
    pub tail: f64,
}

impl FileSizes {
    /// The median of all, 60 KB, and the tail's index are OpTune's (§5.4.1). It doesn't say what the rest is like, which ProWGen
    /// has as a lognormal: its deviation, the tail's share and where the tail begins, relative to the median, are those
    /// that Barford and Crovella measured (SURGE, 1998). The paper's standard deviation of 10 MB only says how large the
    /// largest files were: a Pareto of index 1.2 has none.
    pub const OPTUNE: FileSizes =
        FileSizes { median_bytes: 53e3, sigma: 1.318, tail_share: 0.07, tail_from_bytes: 609e3, tail: 1.2 };

    /// The next size, at least 1 and at most `largest`.
    pub fn draw(&self, largest: u64, rng: &mut Rng) -> u64 {
        let bytes = match rng.chance(self.tail_share) {
            true => self.tail_from_bytes * (rng.exp1() / self.tail).exp(),
            false => self.median_bytes * (rng.normal() * self.sigma).exp(),
        };
        (bytes as u64).clamp(1, largest)
    }
}

/// Place on a disk of `size_bytes` of the part of a file that begins at `done_bytes`, if the file begins at `offset`. Extents
/// lie a stride apart, so that a large file costs a seek for each.
pub fn chunk_at(offset: u64, done_bytes: u64, size_bytes: u64) -> u64 {
    let extent = done_bytes / EXTENT_BYTES;
    (offset + extent * (1021 << 20)) % (size_bytes / 2) + done_bytes % EXTENT_BYTES
}

/// The window that follows one of `before` bytes, of a file of which `left` bytes weren't asked for.
pub fn next_window(before: u64, left: u64) -> u64 {
    let window = if before == 0 { WINDOW_FIRST } else { (before * 2).min(WINDOW_MAX) };
    window.min(left)
}

/// A place where a file may begin: somewhere in the disk's outer half.
pub fn place_file(size_bytes: u64, rng: &mut Rng) -> u64 {
    let span = size_bytes / 2 - (64 << 20);
    rng.below(span / BLOCK_BYTES) * BLOCK_BYTES
}

/// Popularity ranks from 0 on, by Zipf's law.
#[derive(Clone, Debug)]
pub struct Ranks {
    shares: Vec<f64>,
}

impl Ranks {
    /// `n` ranks; rank k is asked for in proportion to (k + 1)^-`exponent`.
    pub fn new(n: usize, exponent: f64) -> Ranks {
        assert!(n > 0, "no ranks");
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=n)
            .map(|k| {
                sum += (k as f64).powf(-exponent);
                sum
            })
            .collect();
        shares.iter_mut().for_each(|s| *s /= sum);
        Ranks { shares }
    }

    /// The next one.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let u = rng.unit();
        self.shares.partition_point(|&s| s <= u).min(self.shares.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_sizes_have_their_quantiles() {
        let mut rng = Rng::new(1, "sizes");
        let mut all: Vec<u64> = (0..200_000).map(|_| FileSizes::OPTUNE.draw(1 << 30, &mut rng)).collect();
        all.sort_unstable();
        let at = |share: f64| all[(share * all.len() as f64) as usize] as f64;
        // A tenth of the tail is beyond 10^(1/1.2) times its beginning; few of the others are.
        for (share, bytes, within) in [(0.5, 60e3, 0.03), (0.148, 53e3 * (-1.318f64).exp(), 0.05), (0.993, 4.15e6, 0.1)]
        {
            assert!((at(share) / bytes - 1.0).abs() < within, "{share}: {} against {bytes}", at(share));
        }
    }
}
