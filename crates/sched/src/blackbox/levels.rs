//! Times of reads by score: a fading histogram for each level of the score. So a score becomes a time and a probability, however far off
//! the score itself is.

use super::log::{OCTAVE, OCTAVES, log_of, ns_of};

/// Bins and levels are quarters of an octave.
const PART: i32 = OCTAVE / 4;
const BINS: usize = OCTAVES * 4;
/// Levels that a scarce one leans on.
const COARSE: usize = 8;
/// Number of samples at which a histogram is halved: older reads weigh less and less.
const FADE_AT: u32 = 512;
/// A histogram with fewer reads leans on the coarser one.
const ENOUGH: u32 = 24;

#[derive(Clone)]
struct Histogram {
    bins: [u16; BINS],
    sum: u32,
}

const EMPTY: Histogram = Histogram { bins: [0; BINS], sum: 0 };

impl Histogram {
    fn add(&mut self, bin: usize) {
        if self.sum >= FADE_AT {
            self.fade(1);
        }
        self.bins[bin] += 1;
        self.sum += 1;
    }

    /// Keeps so large a part: 1/2 to the power of `shift`.
    fn fade(&mut self, shift: u32) {
        self.bins.iter_mut().for_each(|b| *b >>= shift);
        self.sum = self.bins.iter().map(|b| u32::from(*b)).sum();
    }

    /// The time that `permille` of what is in it took at most: within a bin in proportion.
    fn quantile_ns(&self, permille: u32) -> u64 {
        let wanted = self.sum * permille / 1000;
        let mut before = 0;
        for (i, &n) in self.bins.iter().enumerate() {
            let n = u32::from(n);
            if before + n > wanted {
                let along = PART * (wanted - before) as i32 / n as i32;
                return ns_of(i as i32 * PART + along);
            }
            before += n;
        }
        ns_of(BINS as i32 * PART)
    }

    /// Returns the number of reads, per thousand, that took longer than `ns`.
    fn beyond_permille(&self, ns: u64) -> u32 {
        let log = log_of(ns);
        let bin = bin_of(log);
        let later: u32 = self.bins[bin + 1..].iter().map(|b| u32::from(*b)).sum();
        let left = (PART - (log - bin as i32 * PART)) as u32;
        let here = u32::from(self.bins[bin]) * left / PART as u32;
        (later + here) * 1000 / self.sum.max(1)
    }
}

fn bin_of(log: i32) -> usize {
    ((log / PART).max(0) as usize).min(BINS - 1)
}

/// Histograms by level.
pub(super) struct Levels {
    fine: Vec<Histogram>,
    coarse: Vec<Histogram>,
    all: Histogram,
}

impl Levels {
    /// Nothing was seen.
    pub(super) fn new() -> Levels {
        Levels { fine: vec![EMPTY; BINS], coarse: vec![EMPTY; BINS / COARSE], all: EMPTY }
    }

    fn of(&self, score: i32) -> &Histogram {
        let at = bin_of(score);
        match (&self.fine[at], &self.coarse[at / COARSE]) {
            (h, _) if h.sum >= ENOUGH => h,
            (_, h) if h.sum >= ENOUGH => h,
            _ => &self.all,
        }
    }

    /// All that was seen weighs a quarter.
    pub(super) fn fade(&mut self) {
        self.fine.iter_mut().chain(&mut self.coarse).for_each(|h| h.fade(2));
        self.all.fade(2);
    }

    /// True if at least `ENOUGH` reads were seen, so that a forecast is possible.
    pub(super) fn knows(&self) -> bool {
        self.all.sum >= ENOUGH
    }

    /// Returns the time within which `permille` of a thousand reads of this score ended.
    pub(super) fn quantile_ns(&self, score: i32, permille: u32) -> u64 {
        self.of(score).quantile_ns(permille)
    }

    /// Returns the number of reads of this score, per thousand, that took longer than `ns`.
    pub(super) fn beyond_permille(&self, score: i32, ns: u64) -> u32 {
        self.of(score).beyond_permille(ns)
    }

    /// A read that scored so took so long, as a logarithm.
    pub(super) fn learn(&mut self, score: i32, took_log: i32) {
        let (at, bin) = (bin_of(score), bin_of(took_log));
        self.fine[at].add(bin);
        self.coarse[at / COARSE].add(bin);
        self.all.add(bin);
    }

    /// Weight of all reads that are remembered.
    #[cfg(test)]
    pub(super) fn seen(&self) -> u32 {
        self.all.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_shares_are_those_of_what_was_seen() {
        let mut l = Levels::new();
        assert!(!l.knows());
        // Levels an octave apart: one whose reads are always fast, one of which a fifth are slow.
        for i in 0..200 {
            l.learn(0, log_of(100_000));
            l.learn(OCTAVE, log_of(if i % 5 == 0 { 5_000_000 } else { 100_000 }));
        }
        let near = |a: u64, b: u64| assert!(a.abs_diff(b) < b / 5, "{a} instead of {b}");
        near(l.quantile_ns(0, 500), 100_000);
        near(l.quantile_ns(OCTAVE, 500), 100_000);
        near(l.quantile_ns(OCTAVE, 900), 5_000_000);
        assert_eq!(l.beyond_permille(0, 1_000_000), 0);
        assert!((180..=220).contains(&l.beyond_permille(OCTAVE, 1_000_000)));
        assert!(
            (80..=120).contains(&l.beyond_permille(OCTAVE + PART, 1_000_000)),
            "a level never seen leans on its neighbours"
        );
    }

    #[test]
    fn what_is_old_fades() {
        let mut l = Levels::new();
        (0..600).for_each(|_| l.learn(0, log_of(5_000_000)));
        (0..2000).for_each(|_| l.learn(0, log_of(100_000)));
        assert!(l.quantile_ns(0, 900) < 150_000 && l.beyond_permille(0, 1_000_000) < 50);
    }
}
