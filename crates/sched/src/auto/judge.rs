//! The judge. It chooses the candidate that finds the most late reads within the budget of needless refusals. It also sets the
//! chance to be late from which on reads are refused.
//!
//! Each candidate has a curve: its reads by the chance that it gave them, late ones and others. The judge walks down from certainty, until
//! the needless refusals have used up the budget. That chance is the candidate's threshold; the late reads above it are those that the
//! candidate finds. Hindsight would choose this limit over the recent reads. Only for refused reads, which never ran, is the result an
//! expectation.

use super::spread::CERTAIN_BITS;

/// Bins below a chance of 1/8, in 512ths, and above, in 64ths.
const LOW: usize = 64;
const BINS: usize = LOW + 56;
const LOW_BITS: u32 = CERTAIN_BITS - 9;
/// A read's weight.
const READ: u64 = 1 << CERTAIN_BITS;
/// Reads beyond which older ones weigh half.
const FADE_AT: u64 = 1 << 14;
/// Reads before which no curve says anything, and the chance from which reads are refused until then.
const ENOUGH: u64 = 128;
const AT_FIRST: u32 = 3 << (CERTAIN_BITS - 2);
/// The largest such chance if there is room above for a forecast's errors: the room learns by how much reads exceed their forecasts, so
/// a forecast that varies with the budget of needless refusals would make each of these errors one of another measure.
const WITH_ROOM: u32 = 1 << (CERTAIN_BITS - 1);
/// Of the budget, a part is kept back: what was isn't what will be.
const SPENT_PERCENT: u64 = 90;
/// Reads between two looks at the curves.
const EVERY: u32 = 64;
/// Another candidate is chosen if it finds more than this part of the late reads more, in thousandths, and this many reads.
const BETTER_PERMILLE: u64 = 20;
const BETTER_READS: u64 = 3;

/// Reads by the chance that a candidate gave them.
#[derive(Clone)]
struct Curve {
    late: [u64; BINS],
    in_time: [u64; BINS],
}

fn bin(chance: u32) -> usize {
    let low = (chance >> LOW_BITS) as usize;
    if low < LOW { low } else { (LOW + (low - LOW) / 8).min(BINS - 1) }
}

/// The least chance of a bin.
fn chance_of(bin: usize) -> u32 {
    let low = if bin < LOW { bin } else { LOW + (bin - LOW) * 8 };
    (low as u32) << LOW_BITS
}

impl Curve {
    /// The chance from which on reads are refused, and the late reads that this finds.
    fn within(&self, needless_max: u64) -> (u32, u64) {
        let (mut needless, mut found) = (0, 0);
        for bin in (1..BINS).rev() {
            needless += self.in_time[bin];
            if needless > needless_max {
                return (chance_of(bin + 1), found);
            }
            found += self.late[bin];
        }
        (chance_of(1), found)
    }
}

/// See the module's documentation.
pub(super) struct Judge<const N: usize> {
    needless_permille: u64,
    threshold_max: u32,
    curves: [Curve; N],
    late: u64,
    in_time: u64,
    chosen: usize,
    threshold: u32,
    until_look: u32,
}

impl<const N: usize> Judge<N> {
    /// Nothing was judged, and the first candidate is chosen.
    pub(super) fn new(needless_permille: u32, has_room: bool) -> Judge<N> {
        let curve = Curve { late: [0; BINS], in_time: [0; BINS] };
        Judge {
            needless_permille: needless_permille.into(),
            threshold_max: if has_room { WITH_ROOM } else { u32::MAX },
            curves: std::array::from_fn(|_| curve.clone()),
            late: 0,
            in_time: 0,
            chosen: 0,
            threshold: AT_FIRST,
            until_look: EVERY,
        }
    }

    /// The candidate that forecasts.
    pub(super) fn chosen(&self) -> usize {
        self.chosen
    }

    /// Reads with at least this chance to be late are refused.
    pub(super) fn threshold(&self) -> u32 {
        self.threshold.min(self.threshold_max)
    }

    /// A read to which the candidates gave these chances was late with this one: none, certain, or, of a read that never ran,
    /// something in between.
    pub(super) fn judged(&mut self, chances: &[u32; N], late: u32) {
        let late = u64::from(late).min(READ);
        for (curve, &chance) in self.curves.iter_mut().zip(chances) {
            let bin = bin(chance);
            curve.late[bin] += late;
            curve.in_time[bin] += READ - late;
        }
        self.late += late;
        self.in_time += READ - late;
        self.until_look -= 1;
        if self.until_look == 0 {
            self.until_look = EVERY;
            self.look();
        }
    }

    fn look(&mut self) {
        if self.late + self.in_time < ENOUGH * READ {
            return;
        }
        let needless_max = self.in_time / 1000 * self.needless_permille * SPENT_PERCENT / 100;
        let found = |c: &Curve| c.within(needless_max).1;
        let best = (0..N).max_by_key(|&i| (found(&self.curves[i]), N - i)).expect("there are candidates");
        let (best_finds, chosen_finds) = (found(&self.curves[best]), found(&self.curves[self.chosen]));
        let better = (self.late / 1000 * BETTER_PERMILLE).max(BETTER_READS * READ);
        if best_finds > chosen_finds + better {
            self.chosen = best;
        }
        self.threshold = self.curves[self.chosen].within(needless_max).0;
        if self.late + self.in_time > FADE_AT * READ {
            for n in self.curves.iter_mut().flat_map(|c| c.late.iter_mut().chain(&mut c.in_time)) {
                *n /= 2;
            }
            (self.late, self.in_time) = (self.late / 2, self.in_time / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    #[test]
    fn chances_and_bins_are_each_others_inverse() {
        for i in 0..BINS {
            assert_eq!(bin(chance_of(i)), i);
        }
        assert_eq!((bin(0), bin(1 << CERTAIN_BITS)), (0, BINS - 1));
    }

    /// A candidate that knows nothing, one that is right nine times of ten, one that cries wolf: the second is chosen, the budget kept.
    #[test]
    fn the_best_within_the_budget_is_chosen() {
        let (mut judge, mut rng) = (Judge::<3>::new(10, false), Rng::new(2, "judge"));
        let (mut needless, mut in_time, mut found, mut late) = (0u32, 0u32, 0u32, 0u32);
        for i in 0..20_000 {
            let is_late = rng.chance(0.05);
            let good = if is_late == rng.chance(0.9) { 40_000 } else { 500 };
            // Of those in time, one of twenty looks bad to the second.
            let good = if is_late || rng.chance(0.05) { good } else { 500 };
            let chances = [3_277, good, 50_000];
            let refused = chances[judge.chosen()] >= judge.threshold();
            if i > 2_000 {
                in_time += u32::from(!is_late);
                needless += u32::from(refused && !is_late);
                late += u32::from(is_late);
                found += u32::from(refused && is_late);
            }
            judge.judged(&chances, if is_late { 1 << CERTAIN_BITS } else { 0 });
        }
        assert_eq!(judge.chosen(), 1);
        assert!(needless * 100 <= in_time, "{needless} of {in_time}");
        assert!(found * 100 >= late * 85, "{found} of {late}");
    }

    /// A candidate that was best and no longer is gives way.
    #[test]
    fn another_is_chosen_when_things_change() {
        let (mut judge, mut rng) = (Judge::<2>::new(10, false), Rng::new(3, "judge"));
        for (best, reads) in [(0, 5_000), (1, 60_000)] {
            for _ in 0..reads {
                let is_late = rng.chance(0.05);
                let mut chances = [3_000; 2];
                chances[best] = if is_late { 60_000 } else { 100 };
                judge.judged(&chances, u32::from(is_late) << CERTAIN_BITS);
            }
            assert_eq!(judge.chosen(), best);
        }
    }
}
