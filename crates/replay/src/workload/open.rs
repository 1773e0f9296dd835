//! Open loop: requests arrive when they do, whatever becomes of the ones before.

use crate::workload::{BadWorkload, Requests};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::error::TraceError;
use plimsoll_trace::record::{Tables, TraceRecord};
use plimsoll_trace::stream::RecordStream;

/// Arrivals of requests.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Arrivals {
    /// One every this long.
    Constant(Span),
    /// A Poisson process with this mean gap.
    Poisson(Span),
    /// A Poisson process that is on for a while and off for a while, both exponential: bursts.
    OnOff {
        /// Mean gap while on.
        gap: Span,
        /// Mean time on.
        on: Span,
        /// Mean time off.
        off: Span,
    },
}

impl Arrivals {
    /// A Poisson process of `per_second` requests a second (not 0).
    pub fn poisson_per_second(per_second: u64) -> Arrivals {
        Arrivals::Poisson(Span::from_nanos(1_000_000_000 / per_second.max(1)))
    }

    fn check(self) -> Result<(), BadWorkload> {
        let spans: &[Span] = match &self {
            Arrivals::Constant(gap) | Arrivals::Poisson(gap) => &[*gap],
            Arrivals::OnOff { gap, on, off } => &[*gap, *on, *off],
        };
        if spans.contains(&Span::ZERO) {
            return Err(BadWorkload::new("arrivals", "a mean time of zero would send all requests at once"));
        }
        Ok(())
    }
}

/// An exponential span with the given mean.
pub(crate) fn exponential(rng: &mut Rng, mean: Span) -> Span {
    Span::from_nanos((rng.exp1() * mean.as_nanos() as f64).round() as u64)
}

/// End of the load: the first of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Until {
    /// Records at most.
    pub count: u64,
    /// No arrival at or after this.
    pub time: Time,
}

impl Until {
    /// After `count` records.
    pub const fn count(count: u64) -> Until {
        Until { count, time: Time::NEVER }
    }

    /// After this long.
    pub fn time(span: Span) -> Until {
        Until { count: u64::MAX, time: Time::ZERO + span }
    }
}

/// Requests of one volume, arriving by a process: a trace that never was.
pub struct OpenLoop<R> {
    requests: R,
    arrivals: Arrivals,
    until: Until,
    rng: Rng,
    now: Time,
    /// End of the present burst.
    on_until: Time,
    given: u64,
    tables: Tables,
}

impl<R: Requests> OpenLoop<R> {
    /// Creates a load of `requests` at the times of `arrivals`, to a device called `device`. The first comes after a
    /// gap, not at zero.
    ///
    /// # Errors
    /// If a mean time is zero.
    pub fn new(requests: R, arrivals: Arrivals, until: Until, device: &str, seed: u64) -> Result<Self, BadWorkload> {
        arrivals.check()?;
        let mut tables = Tables::new();
        tables.devices.intern(device.as_bytes());
        let mut rng = Rng::new(seed, "arrivals");
        let on_until = match arrivals {
            Arrivals::OnOff { on, .. } => Time::ZERO + exponential(&mut rng, on),
            _ => Time::NEVER,
        };
        Ok(OpenLoop { requests, arrivals, until, rng, now: Time::ZERO, on_until, given: 0, tables })
    }

    fn next_arrival(&mut self) -> Time {
        match self.arrivals {
            Arrivals::Constant(gap) => self.now + gap,
            Arrivals::Poisson(gap) => self.now + exponential(&mut self.rng, gap),
            Arrivals::OnOff { gap, on, off } => {
                let mut at = self.now + exponential(&mut self.rng, gap);
                // A Poisson process has no memory: what is left of a gap at the end of a burst goes on in the next.
                while at >= self.on_until && at.is_set() {
                    let pause = exponential(&mut self.rng, off);
                    at += pause;
                    self.on_until = self.on_until + pause + exponential(&mut self.rng, on);
                }
                at
            }
        }
    }
}

impl<R: Requests> RecordStream for OpenLoop<R> {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        if self.given == self.until.count {
            return None;
        }
        let at = self.next_arrival();
        if at >= self.until.time {
            self.given = self.until.count;
            return None;
        }
        self.now = at;
        self.given += 1;
        let r = self.requests.next_request();
        Some(Ok(TraceRecord::new(at, 0, r.op, r.offset, r.len)))
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Request;
    use plimsoll_trace::record::Op;

    struct Same;
    impl Requests for Same {
        fn next_request(&mut self) -> Request {
            Request { op: Op::Read, offset: 0, len: 1 }
        }
    }

    fn gaps(arrivals: Arrivals, n: u64) -> Vec<f64> {
        let mut s = OpenLoop::new(Same, arrivals, Until::count(n), "d", 1).unwrap();
        let at: Vec<f64> = s.records().map(|r| r.unwrap().arrived_at.as_secs_f64()).collect();
        at.windows(2).map(|w| w[1] - w[0]).collect()
    }

    fn mean_and_cv(x: &[f64]) -> (f64, f64) {
        let mean = x.iter().sum::<f64>() / x.len() as f64;
        let variance = x.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / x.len() as f64;
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let mut g = gaps(Arrivals::poisson_per_second(1_000), 100_000);
        let (mean, cv) = mean_and_cv(&g);
        assert!((mean - 1e-3).abs() < 1.6e-5 && (cv - 1.0).abs() < 0.02, "{mean} {cv}");
        // Kolmogorov–Smirnov against 1 - exp(-t), at about the 0.1 % level.
        g.sort_by(f64::total_cmp);
        let n = g.len() as f64;
        let distance = |(i, t): (usize, &f64)| ((i as f64 + 0.5) / n - (1.0 - (-t / 1e-3).exp())).abs();
        let worst = g.iter().enumerate().map(distance).fold(0.0, f64::max);
        assert!(worst < 1.95 / n.sqrt(), "{worst}");
    }

    #[test]
    fn bursts_keep_the_mean_rate_of_their_share() {
        let (gap, on, off) = (Span::from_millis(1), Span::from_millis(100), Span::from_millis(300));
        let (mean, cv) = mean_and_cv(&gaps(Arrivals::OnOff { gap, on, off }, 400_000));
        // On a quarter of the time: four times the gap, within three standard errors of 4,000 bursts.
        assert!((mean / 4e-3 - 1.0).abs() < 0.06 && cv > 3.0, "{mean} {cv}");
    }

    #[test]
    fn a_time_limit_holds() {
        let mut s =
            OpenLoop::new(Same, Arrivals::Constant(Span::from_millis(10)), Until::time(Span::from_secs(1)), "d", 1)
                .unwrap();
        assert_eq!(s.records().count(), 99);
        assert!(s.next_record().is_none());
        assert!(OpenLoop::new(Same, Arrivals::Poisson(Span::ZERO), Until::count(1), "d", 1).is_err());
    }
}
