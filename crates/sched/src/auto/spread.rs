//! Times of reads relative to an index of theirs, by the index's level. So every index has a chance and a quantile, however far off the
//! index itself is.
//!
//! A level with few reads leans on its group of levels, a group on all: each weighs as its reads do against [`LEAN`].

use crate::blackbox::log::OCTAVE;

/// Levels of an index, and levels of a group.
pub(super) const LEVELS: usize = 128;
const GROUP: usize = 8;
/// Bins are sixteenths of an octave.
const BIN: i32 = OCTAVE / 16;
const BINS: usize = 128;
/// A histogram that holds this many reads is halved.
const FADE_AT: u32 = 1024;
/// Weight of its group in a level's estimate, as a number of reads.
const LEAN: u64 = 6;
/// A chance of 1, as bits.
pub(super) const CERTAIN_BITS: u32 = 16;
/// Weights of a histogram's reads, as bits.
const WEIGHT_BITS: u32 = 32;

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

    fn fade(&mut self, shift: u32) {
        self.bins.iter_mut().for_each(|b| *b >>= shift);
        self.sum = self.bins.iter().map(|b| u32::from(*b)).sum();
    }
}

/// See the module's documentation.
pub(super) struct Spread {
    /// Smallest ratio of a time to its anchor that has a bin of its own, as a logarithm.
    least: i32,
    levels: Vec<Histogram>,
    groups: Vec<Histogram>,
    all: Histogram,
}

/// A level's histogram, its group's and all, each with the weight of one read.
type Leaning<'a> = [(&'a Histogram, u64); 3];

impl Spread {
    /// Creates a table without samples. Bins begin this many octaves below the anchor and cover eight octaves.
    pub(super) fn new(octaves_below: i32) -> Spread {
        Spread {
            least: -octaves_below * OCTAVE,
            levels: vec![EMPTY; LEVELS],
            groups: vec![EMPTY; LEVELS / GROUP],
            all: EMPTY,
        }
    }

    fn leaning(&self, level: usize) -> Leaning<'_> {
        let (own, group) = (&self.levels[level], &self.groups[level / GROUP]);
        let own_weight = (1u64 << WEIGHT_BITS) / (u64::from(own.sum) + LEAN);
        let group_weight = own_weight * LEAN / (u64::from(group.sum) + LEAN);
        let all_weight = group_weight * LEAN / u64::from(self.all.sum).max(1);
        [(own, own_weight), (group, group_weight), (&self.all, all_weight)]
    }

    fn mass(of: &Leaning<'_>, bin: usize) -> u64 {
        of.iter().map(|(h, weight)| u64::from(h.bins[bin]) * weight).sum()
    }

    fn bin(&self, ratio: i32) -> (usize, i32) {
        let from = (ratio - self.least).clamp(0, BINS as i32 * BIN - 1);
        ((from / BIN) as usize, from % BIN)
    }

    /// The chance, of 2 to the power of [`CERTAIN_BITS`], that a read of this level takes longer than this ratio, a logarithm.
    pub(super) fn beyond(&self, level: usize, ratio: i32) -> u32 {
        let of = self.leaning(level);
        let (bin, along) = self.bin(ratio);
        let later: u64 = of.iter().map(|(h, w)| w * h.bins[bin + 1..].iter().map(|&b| u64::from(b)).sum::<u64>()).sum();
        let here = Spread::mass(&of, bin) * (BIN - along) as u64 / BIN as u64;
        (((later + here) >> (WEIGHT_BITS - CERTAIN_BITS)) as u32).min(1 << CERTAIN_BITS)
    }

    /// The ratio, as a logarithm, that a read of this level exceeds with this chance.
    pub(super) fn quantile(&self, level: usize, chance: u32) -> i32 {
        let of = self.leaning(level);
        let wanted = u64::from(chance) << (WEIGHT_BITS - CERTAIN_BITS);
        let mut later = 0;
        for bin in (0..BINS).rev() {
            let here = Spread::mass(&of, bin);
            if later + here > wanted {
                let along = (u128::from(wanted - later) * BIN as u128 / u128::from(here)) as i32;
                return self.least + (bin as i32 + 1) * BIN - along;
            }
            later += here;
        }
        self.least
    }

    /// Records that a read of this level took this ratio of its anchor, as a logarithm.
    pub(super) fn learn(&mut self, level: usize, ratio: i32) {
        let (bin, _) = self.bin(ratio);
        self.levels[level].add(bin);
        self.groups[level / GROUP].add(bin);
        self.all.add(bin);
    }

    /// All that was seen weighs a quarter.
    pub(super) fn fade(&mut self) {
        self.levels.iter_mut().chain(&mut self.groups).for_each(|h| h.fade(2));
        self.all.fade(2);
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
    use plimsoll_base::Rng;

    /// Against the obvious way: all ratios, sorted.
    #[test]
    fn chances_and_quantiles_are_those_of_what_was_seen() {
        let (mut s, mut rng) = (Spread::new(2), Rng::new(1, "spread"));
        let mut seen: Vec<i32> = (0..900).map(|_| rng.below(1024) as i32 - 256).collect();
        seen.iter().for_each(|r| s.learn(40, *r));
        seen.sort_unstable();
        for ratio in (-256..768).step_by(50) {
            let share = seen.iter().filter(|r| **r > ratio).count() as f64 / 900.0;
            let chance = f64::from(s.beyond(40, ratio)) / 65_536.0;
            assert!((share - chance).abs() < 0.03, "{ratio}: {share} and {chance}");
            let back = s.quantile(40, s.beyond(40, ratio));
            assert!((back - ratio).abs() <= 2, "{ratio} became {back}");
        }
        assert!((s.beyond(3, 256) as i32 - s.beyond(40, 256) as i32).abs() < 1_000, "an unseen level leans on all");
    }

    #[test]
    fn a_level_differs_from_its_group_once_it_has_reads() {
        let mut s = Spread::new(2);
        (0..500).for_each(|_| s.learn(41, 0));
        (0..30).for_each(|_| s.learn(40, 600));
        assert!(s.beyond(40, 300) > 50_000 && s.beyond(41, 300) < 2_000);
        assert_eq!(Spread::new(2).beyond(0, 0), 0, "nothing is refused on a guess");
    }
}
