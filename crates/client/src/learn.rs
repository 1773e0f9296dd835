//! Statistics that policies learn from answers: percentiles and averages, in integers.

use crate::policy::Get;
use plimsoll_base::{Rng, Span, Time};

/// A percentile of a stream that may drift: each value moves it by a step of its own size over 1,000, up by the
/// percentile's share or down by the rest, so that it settles where that share lies below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quantile {
    value_ns: u64,
    permille: u64,
}

impl Quantile {
    /// Begins at `first`; `permille` is the share below it, 950 for p95.
    ///
    /// # Panics
    /// If `permille` isn't in 1..=999.
    pub fn new(first: Span, permille: u64) -> Quantile {
        assert!((1..1000).contains(&permille), "a percentile lies between 0 and 100");
        Quantile { value_ns: first.as_nanos().max(1_000), permille }
    }

    /// Returns the present value.
    pub fn value(&self) -> Span {
        Span::from_nanos(self.value_ns)
    }

    /// Another value was seen; `None`: one that is larger than any.
    pub fn saw(&mut self, value: Option<Span>) {
        let step = self.value_ns.div_ceil(20_000);
        if value.is_none_or(|v| v.as_nanos() > self.value_ns) {
            self.value_ns = self.value_ns.saturating_add(step * self.permille / 10);
        } else {
            self.value_ns = self.value_ns.saturating_sub(step * (1000 - self.permille) / 10).max(1_000);
        }
    }
}

/// A deadline, a time-out or a delay: given, or the percentile of what answers took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// Always this.
    Given(Span),
    /// As the answers were.
    Learned(Quantile),
}

impl Limit {
    /// Returns the present value.
    pub fn span(&self) -> Span {
        match self {
            Limit::Given(span) => *span,
            Limit::Learned(q) => q.value(),
        }
    }

    /// Returns the limit for `get`, which may have its own.
    pub fn of(&self, get: &Get) -> Span {
        get.limit.unwrap_or_else(|| self.span())
    }

    /// An answer took so long; `None`: it was refused for taking longer.
    pub fn saw(&mut self, took: Option<Span>) {
        if let Limit::Learned(q) = self {
            q.saw(took);
        }
    }
}

/// An average that forgets: the newest value has nine tenths of the weight (as in C3's published code).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Average(Option<u64>);

impl Average {
    /// Another value.
    pub fn saw(&mut self, value: u64) {
        self.0 = Some(self.0.map_or(value, |old| ((u128::from(value) * 9 + u128::from(old)) / 10) as u64));
    }

    /// Returns the present value; `None` before the first sample.
    pub fn value(&self) -> Option<u64> {
        self.0
    }
}

/// The last values of a stream, with their times.
#[derive(Clone, Debug)]
pub struct Recent {
    values: Vec<(Time, u64)>,
    next: usize,
    most: usize,
}

impl Recent {
    /// Keeps `most` values.
    ///
    /// # Panics
    /// If that is none.
    pub fn new(most: usize) -> Recent {
        assert!(most > 0, "something must be kept");
        Recent { values: Vec::new(), next: 0, most }
    }

    /// Another value; the oldest goes.
    pub fn saw(&mut self, now: Time, value: u64) {
        if self.values.len() < self.most {
            self.values.push((now, value));
        } else {
            self.values[self.next] = (now, value);
            self.next = (self.next + 1) % self.most;
        }
    }

    /// The value at most which `permille` of those seen since `since` lie (nearest rank); `None` if there is none.
    pub fn quantile(&self, permille: usize, since: Time) -> Option<u64> {
        let mut sorted: Vec<u64> = self.values.iter().filter(|v| v.0 >= since).map(|v| v.1).collect();
        if sorted.is_empty() {
            return None;
        }
        let rank = (sorted.len() * permille).div_ceil(1000).clamp(1, sorted.len()) - 1;
        Some(*sorted.select_nth_unstable(rank).1)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.values.clear();
        self.next = 0;
    }
}

/// Growth of the weight of new values: the exponent of e for a second (Cassandra's alpha).
const DECAY_PER_S: f64 = 0.75;

/// A sample of a stream in which newer values are likelier to be: by forward decay (Cormode et al., ICDE 2009), as the samples of
/// Cassandra's snitch. It draws from a generator of its own, so equal streams give equal samples.
#[derive(Clone, Debug)]
pub struct Decaying {
    /// Values with the logarithm of their priority, in no order.
    values: Vec<(f64, u64)>,
    most: usize,
    rng: Rng,
}

impl Decaying {
    /// Keeps `most` values.
    ///
    /// # Panics
    /// If that is none.
    pub fn new(most: usize) -> Decaying {
        assert!(most > 0, "something must be kept");
        Decaying { values: Vec::new(), most, rng: Rng::new(0, "decaying sample") }
    }

    /// Another value; the one of the least priority goes.
    pub fn saw(&mut self, now: Time, value: u64) {
        // The logarithm of weight over a uniform draw.
        let priority = DECAY_PER_S * now.since(Time::ZERO).as_secs_f64() + self.rng.exp1();
        if self.values.len() < self.most {
            return self.values.push((priority, value));
        }
        let least = self.values.iter_mut().min_by(|a, b| a.0.total_cmp(&b.0)).expect("something is kept");
        if least.0 < priority {
            *least = (priority, value);
        }
    }

    /// The median (nearest rank); `None` if there is nothing.
    pub fn median(&self) -> Option<u64> {
        let mut values: Vec<u64> = self.values.iter().map(|v| v.1).collect();
        let rank = values.len().div_ceil(2).checked_sub(1)?;
        Some(*values.select_nth_unstable(rank).1)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.values.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decaying_sample_forgets_within_seconds() {
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        let mut sample = Decaying::new(100);
        assert_eq!(sample.median(), None);
        // Ten a second: a hundred of them are ten seconds.
        (0..300).for_each(|i| sample.saw(at(100 * i), 10));
        (300..330).for_each(|i| sample.saw(at(100 * i), 90));
        assert_eq!(sample.median(), Some(10), "three seconds are a third of the sample at most");
        (330..380).for_each(|i| sample.saw(at(100 * i), 90));
        assert_eq!(sample.median(), Some(90));
        sample.clear();
        assert_eq!(sample.median(), None);
    }

    #[test]
    fn a_percentile_is_found_and_followed() {
        let mut rng = Rng::new(1, "quantile");
        let mut q = Quantile::new(Span::from_millis(1), 950);
        for mean_ms in [10.0, 30.0, 5.0] {
            let mut beyond = 0;
            for i in 0..40_000 {
                let v = Span::from_millis_f64(mean_ms * rng.exp1());
                beyond += u32::from(i >= 20_000 && v > q.value());
                q.saw(Some(v));
            }
            let share = f64::from(beyond) / 200.0;
            assert!((4.0..6.0).contains(&share), "{share} % beyond at {mean_ms} ms");
        }
        let was = q.value();
        q.saw(None);
        assert!(q.value() > was, "what was refused would have taken longer");
    }

    #[test]
    fn recent_values_agree_with_sorting() {
        let mut rng = Rng::new(2, "recent");
        let (mut recent, mut all) = (Recent::new(50), Vec::new());
        for i in 0..500u64 {
            let v = rng.below(1000);
            recent.saw(Time::from_nanos(i), v);
            all.push(v);
            let mut last: Vec<u64> = all.iter().rev().take(50).copied().collect();
            last.sort_unstable();
            let rank = (last.len() as f64 * 0.84).ceil() as usize - 1;
            assert_eq!(recent.quantile(840, Time::ZERO), Some(last[rank]));
        }
        assert_eq!(recent.quantile(500, Time::from_nanos(499)), all.last().copied());
        recent.clear();
        assert_eq!(recent.quantile(500, Time::ZERO), None);
    }

    #[test]
    fn an_average_is_mostly_its_newest_value() {
        let mut a = Average::default();
        assert_eq!(a.value(), None);
        a.saw(100);
        a.saw(200);
        assert_eq!(a.value(), Some(190));
    }
}
