//! Service times of a queue's requests at the device: mean and tail, measured as they end (QW-M4, QW-A3).
//!
//! The mean is an exponential average over about 128 requests, which would follow a change of the device's pace too slowly. So the
//! mean begins anew, from the last eight requests' median, when nine of the last twelve are far off. Far off is more than one and a
//! half times, or less than two thirds of, the mean. A few slow requests don't do that; a slow device does.
//!
//! The tail is that of the last 8,192 to 16,384 requests at the objective's own percentile, with steps of 6 %, rounded up.

use plimsoll_base::Span;

const PART_BITS: u32 = 4;
const PARTS: u64 = 1 << PART_BITS;
const RANGE_BITS: u32 = 36;
const BUCKETS: usize = ((RANGE_BITS - PART_BITS + 1) as usize) << PART_BITS;
const EPOCH: u32 = 8192;
/// Number of requests after which tails are computed anew; they are also when the pace has changed.
const LOOK_EVERY: u64 = 64;
const MEAN_SHIFT: u32 = 7;
const RECENT: usize = 8;
const SIGNS: u32 = 12;
const SIGNS_CHANGED: u32 = 9;

fn bucket(ns: u64) -> usize {
    let ns = ns.min((1 << RANGE_BITS) - 1);
    let shift = (ns | PARTS).ilog2() - PART_BITS;
    ((u64::from(shift) << PART_BITS) + (ns >> shift)) as usize
}

fn bucket_end(index: usize) -> u64 {
    let shift = (index >> PART_BITS).saturating_sub(1);
    (((index - (shift << PART_BITS)) as u64 + 1) << shift) - 1
}

/// Mean and tails of one queue's service times.
#[derive(Clone, Debug)]
pub struct ServiceTimes {
    count: u64,
    /// Samples that the mean rests on, as far as that matters.
    weight: u64,
    mean_ns: u64,
    recent_ns: [u64; RECENT],
    /// Of the last requests, newest lowest: far above the mean, far below it.
    above: u16,
    below: u16,
    /// Requests by what they took: this epoch's and the last one's.
    counts: [Box<[u32; BUCKETS]>; 2],
    epoch_count: [u32; 2],
    /// Percentile in hundredths of a percent, and the tail there.
    tails: Vec<(u16, Span)>,
}

impl ServiceTimes {
    /// Nothing measured; tails will be known at `percentiles_bp` (hundredths of a percent).
    pub fn new(percentiles_bp: impl IntoIterator<Item = u16>) -> ServiceTimes {
        ServiceTimes {
            count: 0,
            weight: 0,
            mean_ns: 0,
            recent_ns: [0; RECENT],
            above: 0,
            below: 0,
            counts: [Box::new([0; BUCKETS]), Box::new([0; BUCKETS])],
            epoch_count: [0; 2],
            tails: percentiles_bp.into_iter().map(|bp| (bp, Span::ZERO)).collect(),
        }
    }

    /// A request took `took` from when it was sent below to its end.
    pub fn record(&mut self, took: Span) {
        let ns = took.as_nanos();
        self.count += 1;
        self.weight += 1;
        self.recent_ns[self.count as usize % RECENT] = ns;
        self.above = self.above << 1 | u16::from(2 * ns > 3 * self.mean_ns);
        self.below = self.below << 1 | u16::from(3 * ns < 2 * self.mean_ns);
        let shift = (63 - self.weight.leading_zeros()).min(MEAN_SHIFT);
        // A running mean at first, exponential later; the added half keeps small differences from being lost.
        let divisor = if shift < MEAN_SHIFT { self.weight as i64 } else { 1 << MEAN_SHIFT };
        let step = (ns as i64 - self.mean_ns as i64) / divisor;
        self.mean_ns = self.mean_ns.saturating_add_signed(step);
        let changed = self.count > u64::from(SIGNS) && self.has_changed();
        if changed {
            let mut recent = self.recent_ns;
            recent.sort_unstable();
            self.mean_ns = recent[RECENT / 2];
            (self.weight, self.above, self.below) = (RECENT as u64, 0, 0);
        }
        self.count_for_tail(ns);
        if changed || self.count < LOOK_EVERY || self.count.is_multiple_of(LOOK_EVERY) {
            for i in 0..self.tails.len() {
                self.tails[i].1 = self.look_up(self.tails[i].0);
            }
        }
    }

    fn has_changed(&self) -> bool {
        let set = |signs: u16| (signs & ((1 << SIGNS) - 1)).count_ones() >= SIGNS_CHANGED;
        set(self.above) || set(self.below)
    }

    fn count_for_tail(&mut self, ns: u64) {
        self.counts[0][bucket(ns)] += 1;
        self.epoch_count[0] += 1;
        if self.epoch_count[0] == EPOCH {
            self.counts.swap(0, 1);
            self.counts[0].fill(0);
            self.epoch_count = [0, EPOCH];
        }
    }

    fn look_up(&self, percentile_bp: u16) -> Span {
        let all = u64::from(self.epoch_count[0] + self.epoch_count[1]);
        let beyond = all - (all * u64::from(percentile_bp)).div_ceil(10_000);
        let mut seen = 0;
        for i in (0..BUCKETS).rev() {
            seen += u64::from(self.counts[0][i] + self.counts[1][i]);
            if seen > beyond {
                return Span::from_nanos(bucket_end(i));
            }
        }
        Span::ZERO
    }

    /// Returns the tail at any percentile, in hundredths of a percent; zero before the first request. It looks all counts up: for
    /// questions, not for each request.
    pub fn tail_at(&self, percentile_bp: u16) -> Span {
        self.look_up(percentile_bp)
    }

    /// Returns the number of requests that tails rest on.
    pub fn tail_samples(&self) -> u64 {
        u64::from(self.epoch_count[0] + self.epoch_count[1])
    }

    /// Returns the number of measured requests.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the present mean of a request; zero before the first.
    pub fn mean(&self) -> Span {
        Span::from_nanos(self.mean_ns)
    }

    /// The tail at one of the percentiles asked for, by its place among them; zero before the first request.
    pub fn tail(&self, place: usize) -> Span {
        self.tails[place].1
    }

    /// All tails: percentile in hundredths of a percent, and the time there.
    pub fn tails(&self) -> &[(u16, Span)] {
        &self.tails
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;
    use proptest::prelude::*;

    fn us(n: u64) -> Span {
        Span::from_micros(n)
    }

    #[test]
    fn buckets_join() {
        for i in 1..BUCKETS {
            assert_eq!((bucket(bucket_end(i - 1) + 1), bucket(bucket_end(i))), (i, i));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// The naive way: sort all that was recorded.
        #[test]
        fn tails_agree_with_sorting(values in proptest::collection::vec(1u64..50_000_000, 64..3000), bp in 1u16..10_000) {
            let n = values.len() / LOOK_EVERY as usize * LOOK_EVERY as usize;
            let mut s = ServiceTimes::new([bp]);
            values[..n].iter().for_each(|&v| s.record(Span::from_nanos(v)));
            let mut sorted = values[..n].to_vec();
            sorted.sort_unstable();
            let exact = sorted[(n * usize::from(bp)).div_ceil(10_000).max(1) - 1];
            let ours = s.tail(0).as_nanos();
            prop_assert!(ours >= exact && ours as f64 <= exact as f64 * 1.07 + 1.0, "{ours} against {exact}");
        }
    }

    #[test]
    fn the_mean_is_the_mean_and_ignores_a_few_slow_ones() {
        let mut rng = Rng::new(1, "service");
        let mut s = ServiceTimes::new([9990]);
        let mut sum = 0;
        for i in 0..4000 {
            let v = if rng.below(100) == 0 { 2000 } else { 80 + rng.below(40) };
            sum += v;
            s.record(us(v));
            if i > 200 {
                let m = s.mean().as_micros();
                assert!((80..320).contains(&m), "after {i}: {m}");
            }
        }
        let (ours, exact) = (s.mean().as_micros() as f64, sum as f64 / 4000.0);
        assert!((ours / exact - 1.0).abs() < 0.4, "{ours} against {exact}");
    }

    #[test]
    fn a_change_of_pace_is_seen_within_twelve_requests() {
        for (from, to) in [(100, 500), (500, 100)] {
            let mut s = ServiceTimes::new([9990]);
            (0..1000).for_each(|_| s.record(us(from)));
            (0..12).for_each(|_| s.record(us(to)));
            let m = s.mean().as_micros();
            assert!(m.abs_diff(to) <= to / 10, "{from} to {to}: {m}");
        }
    }

    #[test]
    fn the_tail_forgets_after_two_epochs() {
        let mut s = ServiceTimes::new([9900]);
        (0..EPOCH).for_each(|_| s.record(us(5000)));
        (0..EPOCH / 2).for_each(|_| s.record(us(100)));
        assert!(s.tail(0) > us(4900));
        (0..EPOCH + 64).for_each(|_| s.record(us(100)));
        assert!(s.tail(0) < us(110), "{}", s.tail(0));
    }
}
