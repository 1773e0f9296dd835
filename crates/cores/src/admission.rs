//! Admission of objectives: whether one fits beside those already promised, and the number of cores that it lacks.
//!
//! A tenant may have `in_flight_max` requests in flight (its permits). With n cores of depth d, the last of those requests waits for
//! in_flight_max · T_io / (n·d). So the objective needs, at its worst,
//!
//! ```text
//! n = in_flight_max · T_io / (T_slo - Tail_io) / d
//! ```
//! cores. T_io and Tail_io are measured values of the objective's own queue, if it has one. Otherwise they are those of the slowest
//! latency-critical queue, or else of the slowest queue of any kind. Objectives of one type share a queue: their in-flight bounds
//! add up. The sum over all types is compared with the cores. It holds for the worst load that permits admit, so a tenant with an
//! objective should have permits to match.

use crate::demand::Bound;
use crate::queue::{Queue, Queues};
use plimsoll_base::{Class, Objective, Span, TenantId};
use plimsoll_stack::Terms;
use std::fmt;

/// The answer, with what it rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// Cores that the objective needs at its worst, with others of its type.
    pub needs: u64,
    /// Cores that other objectives need at their worst.
    pub promised: u64,
    /// Cores there are.
    pub cores: u64,
    /// Mean service time and tail that this was calculated with; zero if nothing was measured.
    pub mean: Span,
    /// See `mean`.
    pub tail: Span,
    /// Conclusion.
    pub verdict: Verdict,
}

/// Result of the admission check of one tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It does.
    Fits,
    /// Nothing was measured yet that the answer could rest on.
    Unmeasured,
    /// Cores are missing.
    Short {
        /// Number of missing cores.
        cores: u64,
        /// The objective that would fit, at the same percentile; none if none does.
        fits_within: Option<Span>,
    },
    /// The device's own tail leaves no time to wait: no number of cores would do.
    DeviceTooSlow,
}

impl Fit {
    /// True if the tenant may be accepted: it fits, or nothing was measured yet.
    pub fn is_accepted(&self) -> bool {
        matches!(self.verdict, Verdict::Fits | Verdict::Unmeasured)
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fit { needs, promised, cores, mean, tail, verdict } = self;
        match verdict {
            Verdict::Unmeasured => write!(f, "is unknown yet: no request was measured"),
            Verdict::Fits => write!(f, "fits: it needs {needs} of {cores} cores at its worst, others need {promised}"),
            Verdict::DeviceTooSlow => {
                write!(f, "doesn't fit: requests alone take {tail} at that percentile, whatever cores there are")
            }
            Verdict::Short { cores: missing, fits_within } => {
                write!(
                    f,
                    "doesn't fit: it needs {needs} cores at its worst (requests take {mean}, {tail} at that percentile), others need \
                     {promised}, there are {cores}: {missing} missing; "
                )?;
                match fits_within {
                    Some(bound) => write!(f, "within {bound} would fit, or allow it fewer requests in flight"),
                    None => f.write_str("the cores are all promised: allow it or others fewer requests in flight"),
                }
            }
        }
    }
}

/// Cores that `in_flight` requests of `mean` need to wait no longer than `wait`.
fn needs(in_flight: u64, mean: Span, wait: Span, depth: u32) -> u64 {
    let slots = u128::from(in_flight) * u128::from(mean.as_nanos());
    let slots = slots.div_ceil(u128::from(wait.as_nanos().max(1)));
    u64::try_from(slots.div_ceil(u128::from(depth))).unwrap_or(u64::MAX).max(1)
}

fn in_flight(q: &Queue, except: Option<TenantId>) -> u64 {
    let others = q.tenants.iter().filter(|(id, _)| Some(*id) != except);
    others.map(|(_, t)| u64::from(t.in_flight_max)).sum()
}

/// Mean and tails by which a type is judged that isn't there yet: of the slowest latency-critical queue that was measured, else
/// of any.
fn measured<'a>(queues: &'a Queues, objectives: &[Objective]) -> Option<&'a Queue> {
    let measured = || queues.all().iter().filter(|q| q.service.count() > 0);
    let own = measured().find(|q| q.objectives() == objectives);
    let critical = || measured().filter(|q| q.is_critical()).max_by_key(|q| q.service.mean());
    own.or_else(critical).or_else(|| measured().max_by_key(|q| q.service.mean()))
}

/// The tail at `percentile_bp` or the nearest above it that is known of a queue, else the highest. Without best effort's part in it,
/// where that is known.
fn tail_at(q: &Queue, percentile_bp: u16) -> Span {
    let at = |tails: &[(u16, Span)]| {
        let above = tails.iter().filter(|(bp, _)| *bp >= percentile_bp).map(|t| t.1).min();
        above.or(tails.iter().map(|t| t.1).max()).unwrap_or(Span::ZERO)
    };
    let alone = q.measured_alone().map_or(Span::MAX, |alone| at(alone.tails()));
    at(q.service.tails()).min(alone)
}

/// Computes whether a tenant with these terms would fit. `except` is a tenant whose terms these would replace.
pub fn fit(queues: &Queues, terms: &Terms, except: Option<TenantId>) -> Fit {
    let objectives: &[Objective] = match &terms.class {
        Class::LatencyCritical { objectives, .. } => objectives,
        Class::BestEffort { .. } | Class::Fenced { .. } => &[],
    };
    fit_of(queues, objectives, u64::from(terms.in_flight_max), except)
}

/// The fit of a queue's objectives as they stand, by what was measured since they were accepted.
pub fn standing(queues: &Queues, q: &Queue) -> Fit {
    fit_of(queues, q.objectives(), 0, None)
}

/// The fit of objectives, with `more` requests in flight beside those of the queue that has the same objectives.
fn fit_of(queues: &Queues, objectives: &[Objective], more: u64, except: Option<TenantId>) -> Fit {
    let cores = u64::from(queues.cores);
    let mut promised = 0;
    for q in queues.all().iter().filter(|q| q.is_critical() && q.objectives() != objectives) {
        let in_flight = in_flight(q, except);
        let tightest = |o: &Objective| Bound { within: o.bound, tail: tail_at(q, o.percentile_bp) }.wait();
        let wait = q.objectives().iter().map(tightest).min().unwrap_or(Span::MAX);
        promised += if in_flight == 0 { 0 } else { needs(in_flight, q.service.mean(), wait, queues.depth) };
    }
    let nothing = Fit { needs: 0, promised, cores, mean: Span::ZERO, tail: Span::ZERO, verdict: Verdict::Fits };
    let Some(first) = objectives.first() else { return nothing };
    let Some(by) = measured(queues, objectives) else { return Fit { verdict: Verdict::Unmeasured, ..nothing } };
    let mates = queues.all().iter().filter(|q| q.objectives() == objectives).map(|q| in_flight(q, except));
    let together = mates.sum::<u64>() + more;
    let bound = |o: &Objective| Bound { within: o.bound, tail: tail_at(by, o.percentile_bp) };
    let tightest = objectives.iter().min_by_key(|o| bound(o).wait()).unwrap_or(first);
    let (mean, tail) = (by.service.mean(), bound(tightest).tail);
    let needs = needs(together, mean, bound(tightest).wait(), queues.depth);
    let verdict = if objectives.iter().any(|o| bound(o).is_hopeless()) {
        Verdict::DeviceTooSlow
    } else if promised + needs <= cores {
        Verdict::Fits
    } else {
        let left = cores.saturating_sub(promised) * u64::from(queues.depth);
        let fits_within = (left > 0).then(|| tail + mean.scale(together, left) + Span::from_micros(1));
        Verdict::Short { cores: promised + needs - cores, fits_within }
    };
    Fit { needs, promised, cores, mean, tail, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(p: u16, ms: u64, in_flight_max: u32) -> Terms {
        let objectives = vec![Objective { percentile_bp: p, bound: Span::from_millis(ms) }];
        Terms::of(Class::LatencyCritical { objectives, weight: 100 }, in_flight_max)
    }

    /// Two cores; tenant 1 has p99.9 within 10 ms with 20 in flight; requests take 1 ms.
    fn queues() -> Queues {
        let mut queues = Queues::new(2, 1, 0);
        queues.set_tenant(TenantId(1), Some(&terms(9990, 10, 8)));
        for _ in 0..64 {
            queues.get_mut(0).service.record(Span::from_micros(1000));
        }
        queues
    }

    #[test]
    fn what_fits_fits_and_what_doesnt_is_told_by_how_much() {
        let q = queues();
        let ok = fit(&q, &terms(9990, 20, 10), None);
        assert_eq!((ok.verdict, ok.needs, ok.promised), (Verdict::Fits, 1, 1), "10 ms of 19, beside 8 of 9");
        let short = fit(&q, &terms(9990, 5, 10), None);
        let Verdict::Short { cores, fits_within: Some(within) } = short.verdict else { panic!("{short}") };
        assert_eq!((short.needs, cores), (3, 2), "{short}");
        // The bound that it names does fit, and is no further off than it must be.
        let ms = within.as_nanos().div_ceil(1_000_000);
        assert!(fit(&q, &terms(9990, ms, 10), None).is_accepted() && (11..=12).contains(&ms), "{short}");
        assert!(short.to_string().contains("2 missing; within 11"), "{short}");
    }

    #[test]
    fn a_type_shares_its_queue() {
        let q = queues();
        let same = fit(&q, &terms(9990, 10, 8), None);
        assert_eq!((same.needs, same.promised), (2, 0), "16 requests in 9 ms");
        let replaced = fit(&q, &terms(9990, 10, 8), Some(TenantId(1)));
        assert_eq!((replaced.needs, replaced.promised), (1, 0));
    }

    /// Requests turn out to take four times as long: the objective that stands lacks cores from then on.
    #[test]
    fn what_stands_is_judged_by_what_was_measured_since() {
        let mut q = queues();
        let ok = standing(&q, q.get(0));
        assert_eq!((ok.verdict, ok.needs, ok.promised), (Verdict::Fits, 1, 0), "{ok}");
        (0..10_000).for_each(|_| q.get_mut(0).service.record(Span::from_micros(4000)));
        let short = standing(&q, q.get(0));
        assert_eq!((short.verdict, short.needs), (fit(&q, &terms(9990, 10, 8), Some(TenantId(1))).verdict, 6));
        assert!(!short.is_accepted() && short.to_string().contains("4 missing"), "{short}");
    }

    #[test]
    fn no_cores_help_a_device_that_is_too_slow() {
        let q = queues();
        assert_eq!(fit(&q, &terms(9990, 1, 1), None).verdict, Verdict::DeviceTooSlow);
        let unmeasured = Queues::new(2, 1, 0);
        assert_eq!(fit(&unmeasured, &terms(9990, 1, 1), None).verdict, Verdict::Unmeasured);
        let best_effort = Terms::of(Class::BestEffort { weight: 1 }, 1000);
        assert_eq!(fit(&q, &best_effort, None).verdict, Verdict::Fits);
    }
}
