//! Admission of objectives: whether one fits beside those already promised, and the number of cores that it lacks.
//!
//! A tenant may have `in_flight_max` requests in flight (its permits). With n cores of depth d, n·d of those requests are in service. The
//! last of the others, which are QWin's QL, waits for (in_flight_max - n·d) · T_io / (n·d). So the objective needs, at its worst,
//!
//! ```text
//! n = in_flight_max · T_io / (T_slo - Tail_io + T_io) / d
//! ```
//! cores. T_io and Tail_io are measured values: the first of these queues that was measured.
//!
//! 1. The objective's own queue.
//! 2. The tenant's present queue, if it has at least [`OWN_LEAST`] requests.
//! 3. The slowest latency-critical queue.
//! 4. The slowest queue of any kind.
//!
//! If that queue has fewer than [`OWN_LEAST`] requests, the times are those that the device's profile lets expect, if there is a profile
//! ([`Cores::expect`](crate::Cores::expect)). An answer by the profile refuses nothing, as the profile's reads are no tenant's. An objective
//! that stands is judged by the profile rather than by other tenants' requests.
//!
//! Tail_io is the tail at the objective's own percentile. The text has the number of requests that it rests on, and says so where they are
//! few: fewer than [`BEYOND_LEAST`] of them are beyond that percentile.
//!
//! Objectives of one type share a queue: their in-flight bounds add up. The sum over all types is compared with the cores. It holds for
//! the worst load that permits admit, so a tenant with an objective needs permits to match. An objective that only fits a smaller load is
//! refused with the permits that fit: accepted, it would be kept only as long as the tenant doesn't use its permits.

use crate::demand::Bound;
use crate::queue::{Queue, Queues};
use crate::service::ServiceTimes;
use plimsoll_base::{Class, Objective, Span, TenantId, Time};
use plimsoll_stack::Terms;
use std::fmt;

/// Requests of a queue from which on an objective is judged by them: one that the tenant hasn't yet, and one for which there is a profile.
const OWN_LEAST: u64 = 64;
/// Requests beyond a percentile from which on the tail there isn't chance.
const BEYOND_LEAST: u64 = 10;

/// A tenant's terms that are to be set together with those that are judged.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The tenant whose terms these replace; none if it is a new one.
    pub tenant: Option<TenantId>,
    /// Terms.
    pub terms: Terms,
}

/// The tenants as they will be when all that is planned has been set.
#[derive(Clone, Copy)]
struct Tenants<'a> {
    /// The tenant that is judged.
    except: Option<TenantId>,
    planned: &'a [Planned],
    /// Limits of requests in flight that are the default count as the most that there were lately before this time.
    lately: Option<Time>,
}

impl Tenants<'_> {
    /// Those of today.
    fn today(lately: Option<Time>) -> Tenants<'static> {
        Tenants { except: None, planned: &[], lately }
    }

    /// Requests in flight that the tenants of these objectives may have; `q` is the queue that they share, if there is one.
    fn in_flight(&self, q: Option<&Queue>, objectives: &[Objective]) -> u64 {
        let stays = |id: TenantId| Some(id) != self.except && self.planned.iter().all(|p| p.tenant != Some(id));
        let now = q.into_iter().flat_map(|q| &q.tenants).filter(|(id, _)| stays(*id)).map(|(_, t)| t);
        let planned = self.planned.iter().map(|p| &p.terms).filter(|t| objectives_of(t) == objectives);
        let seen = q.zip(self.lately).map(|(q, now)| u64::from(q.most_in_flight(now).max(1)));
        let (mut chosen, mut default) = (0, 0);
        for t in now.chain(planned) {
            let is_default = t.in_flight_max == Terms::IN_FLIGHT_DEFAULT;
            *(if is_default { &mut default } else { &mut chosen }) += u64::from(t.in_flight_max);
        }
        chosen + seen.map_or(default, |seen| default.min(seen))
    }

    /// The planned objectives that no queue has, each once, with a tenant that is to have them.
    fn new_objectives<'a>(&'a self, queues: &Queues) -> Vec<(&'a [Objective], Option<TenantId>)> {
        let mut all: Vec<(&[Objective], Option<TenantId>)> = Vec::new();
        for p in self.planned {
            let objectives = objectives_of(&p.terms);
            let is_known = all.iter().any(|(o, _)| *o == objectives)
                || queues.all().iter().any(|q| q.is_critical() && q.objectives() == objectives);
            if !objectives.is_empty() && !is_known {
                all.push((objectives, p.tenant));
            }
        }
        all
    }
}

/// Its objectives; none of a tenant without.
fn objectives_of(terms: &Terms) -> &[Objective] {
    match &terms.class {
        Class::LatencyCritical { objectives, .. } => objectives,
        Class::BestEffort { .. } | Class::Fenced { .. } => &[],
    }
}

/// The answer, with what it rests on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fit {
    /// The objective that is hardest to keep; none if there are no objectives.
    pub objective: Option<Objective>,
    /// Cores that the objective needs at its worst, with others of its type.
    pub needs: u64,
    /// Cores that other objectives need at their worst.
    pub promised: u64,
    /// Cores there are.
    pub cores: u64,
    /// Mean service time and tail that this was calculated with; zero if nothing was measured.
    pub mean: Span,
    /// The tail at the objective's percentile; see `mean`.
    pub tail: Span,
    /// Number of requests that the tail rests on.
    pub samples: u64,
    /// The origin of those requests.
    pub basis: Basis,
    /// The load that it is for.
    pub load: Load,
    /// Conclusion.
    pub verdict: Verdict,
}

/// Load that an answer is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// All requests that permits let in.
    Allowed,
    /// The most requests at once that there were lately.
    Seen(u64),
}

/// Requests that an answer rests on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Basis {
    /// Measured ones of tenants with the same objectives, or of the tenant itself.
    Own,
    /// Measured ones of other tenants.
    Others,
    /// Random reads that the device's profile lets expect.
    Profile,
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
        /// The requests in flight with which it would fit as it is; none if it would with no number.
        fits_in_flight: Option<u64>,
    },
    /// The device's own tail leaves no time to wait: no number of cores would do.
    DeviceTooSlow,
}

impl Fit {
    /// True if the tenant may be accepted: it fits, or too little was measured yet.
    pub fn is_accepted(&self) -> bool {
        self.basis == Basis::Profile || !self.is_lacking()
    }

    /// True if the objective can't be kept, by what was measured or what the device's profile lets expect.
    pub fn is_lacking(&self) -> bool {
        matches!(self.verdict, Verdict::Short { .. } | Verdict::DeviceTooSlow)
    }

    /// The same, if it rests on enough requests of its own, or on the profile.
    pub fn is_surely_lacking(&self) -> bool {
        self.is_lacking() && self.basis != Basis::Others && self.samples >= OWN_LEAST
    }
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fit { objective, needs, promised, cores, mean, tail, samples, basis, load, verdict } = self;
        let percentile_bp = objective.map_or(0, |o| o.percentile_bp);
        let percentile = f64::from(percentile_bp) / 100.0;
        let enough = (BEYOND_LEAST * 10_000).div_ceil(10_000 - u64::from(percentile_bp.min(9999)));
        let few = match *samples < enough {
            true => format!(", few for that percentile: {enough} are enough"),
            false => String::new(),
        };
        let (by, of) = match basis {
            Basis::Profile => (", by the profile of its device, with random reads of 4 KiB", String::new()),
            Basis::Own | Basis::Others => ("", format!(", of {samples} requests{few}")),
        };
        let measured = format!("{tail} at p{percentile}{of}");
        match verdict {
            Verdict::Unmeasured => write!(f, "is unknown yet: no request was measured"),
            Verdict::Fits => write!(f, "fits: it needs {needs} of {cores} cores at its worst, others need {promised}"),
            Verdict::DeviceTooSlow => {
                write!(f, "doesn't fit{by}: requests alone take {measured}, whatever cores there are")
            }
            Verdict::Short { cores: missing, fits_within, fits_in_flight } => {
                let load = match load {
                    Load::Allowed => "at its worst, with all requests that `jobs_max` allows".to_string(),
                    Load::Seen(n) => format!("with up to {n} requests at once, as lately"),
                };
                write!(
                    f,
                    "doesn't fit{by}: it needs {needs} cores {load} (they take {mean}, {measured}), others need {promised}, there are \
                     {cores}: {missing} missing; "
                )?;
                match (fits_within, fits_in_flight) {
                    (Some(bound), Some(n)) => write!(f, "--jobs-max {n} would fit, or within {bound}"),
                    (Some(bound), None) => {
                        write!(f, "within {bound} would fit, or allow it or others fewer requests in flight")
                    }
                    (None, _) => f.write_str("the cores are all promised: allow it or others fewer requests in flight"),
                }
            }
        }
    }
}

/// Cores with which the last of `in_flight` requests of `mean` waits no longer than `wait`: those in service don't wait.
fn needs(in_flight: u64, mean: Span, wait: Span, depth: u32) -> u64 {
    let slots = u128::from(in_flight) * u128::from(mean.as_nanos());
    let slots = slots.div_ceil(u128::from((wait + mean).as_nanos().max(1)));
    u64::try_from(slots.div_ceil(u128::from(depth))).unwrap_or(u64::MAX).max(1)
}

/// The most requests in flight of which the last waits no longer than `wait` with `slots` in service.
fn most_in_flight(slots: u64, mean: Span, wait: Span) -> u64 {
    let most = u128::from(slots) * u128::from((wait + mean).as_nanos()) / u128::from(mean.as_nanos().max(1));
    u64::try_from(most).unwrap_or(u64::MAX)
}

/// Number of tenants with these objectives.
fn tenants(queues: &Queues, objectives: &[Objective]) -> usize {
    queues.all().iter().filter(|q| q.objectives() == objectives).map(|q| q.tenants.len()).sum()
}

/// The times that objectives are judged by; see the module's documentation.
fn times<'a>(
    queues: &'a Queues,
    objectives: &[Objective],
    tenant: Option<TenantId>,
    stands: bool,
) -> Option<Times<'a>> {
    let measured = || queues.all().iter().filter(|q| q.service.count() > 0);
    let same = measured().find(|q| q.objectives() == objectives);
    let own = || {
        let mine = |q: &&Queue| q.tenants.iter().any(|(id, _)| Some(*id) == tenant);
        measured().filter(|q| q.service.count() >= OWN_LEAST).find(mine)
    };
    if let Some(q) = same.or_else(own) {
        return Some(Times::of(queues, q, Basis::Own));
    }
    let critical = || measured().filter(|q| q.is_critical()).max_by_key(|q| q.service.mean());
    let slowest = critical().or_else(|| measured().max_by_key(|q| q.service.mean()));
    let expected = || Times::expected(queues);
    let others = expected().filter(|_| stands).or_else(|| Some(Times::of(queues, slowest?, Basis::Others)));
    others.or_else(expected)
}

/// Times that objectives are judged by.
#[derive(Clone, Copy)]
struct Times<'a> {
    service: &'a ServiceTimes,
    /// Without best effort's part in them, where that is known.
    alone: Option<&'a ServiceTimes>,
    basis: Basis,
}

impl<'a> Times<'a> {
    /// A queue's measured ones. The device's profile goes before few of them.
    fn of(queues: &'a Queues, q: &'a Queue, basis: Basis) -> Times<'a> {
        let measured = Times { service: &q.service, alone: q.measured_alone(), basis };
        let expected = Times::expected(queues).filter(|_| q.service.count() < OWN_LEAST);
        expected.unwrap_or(measured)
    }

    fn expected(queues: &'a Queues) -> Option<Times<'a>> {
        Some(Times { service: queues.expected()?, alone: None, basis: Basis::Profile })
    }

    /// The tail at a percentile, and the number of requests that it rests on.
    fn tail_at(self, percentile_bp: u16) -> (Span, u64) {
        let of = |times: &ServiceTimes| (times.tail_at(percentile_bp), times.tail_samples());
        of(self.service).min(self.alone.map_or((Span::MAX, 0), of))
    }

    fn bound(self, o: &Objective) -> Bound {
        Bound { within: o.bound, tail: self.tail_at(o.percentile_bp).0 }
    }
}

/// Computes whether a tenant with these terms would fit. `except` is a tenant whose terms these would replace, `planned` what is to be set
/// with them.
pub fn fit(queues: &Queues, terms: &Terms, except: Option<TenantId>, planned: &[Planned]) -> Fit {
    fit_of(
        queues,
        objectives_of(terms),
        Some(u64::from(terms.in_flight_max)),
        Tenants { except, planned, lately: None },
    )
}

/// The fit of a queue's objectives as they stand, by what was measured since they were accepted, at their worst.
pub fn standing(queues: &Queues, q: &Queue) -> Fit {
    fit_of(queues, q.objectives(), None, Tenants::today(None))
}

/// The same under the load that is expected: all that permits allow if somebody chose them, and the most that there was lately if they are the
/// default. Hardly any objective can be kept for that default, which no tenant has announced.
pub fn present(queues: &Queues, q: &Queue, now: Time) -> Fit {
    fit_of(queues, q.objectives(), None, Tenants::today(Some(now)))
}

/// The fit of objectives, with `more` requests in flight beside those of the queue that has the same objectives; of objectives that stand, if
/// there are none.
fn fit_of(queues: &Queues, objectives: &[Objective], more: Option<u64>, beside: Tenants<'_>) -> Fit {
    let cores = u64::from(queues.cores);
    let needed = |in_flight: u64, by: Times<'_>, objectives: &[Objective]| {
        let wait = objectives.iter().map(|o| by.bound(o).wait()).min().unwrap_or(Span::MAX);
        if in_flight == 0 { 0 } else { needs(in_flight, by.service.mean(), wait, queues.depth) }
    };
    let mut promised = 0;
    for q in queues.all().iter().filter(|q| q.is_critical() && q.objectives() != objectives) {
        let in_flight = beside.in_flight(Some(q), q.objectives());
        promised += needed(in_flight, Times::of(queues, q, Basis::Own), q.objectives());
    }
    for (new, tenant) in beside.new_objectives(queues).into_iter().filter(|(new, _)| *new != objectives) {
        // Without a measured time nothing is known of them, as of the one that is judged.
        let Some(by) = times(queues, new, tenant, false) else { continue };
        promised += needed(beside.in_flight(None, new), by, new);
    }
    let nothing = Fit {
        objective: None,
        needs: 0,
        promised,
        cores,
        mean: Span::ZERO,
        tail: Span::ZERO,
        samples: 0,
        basis: Basis::Own,
        load: Load::Allowed,
        verdict: Verdict::Fits,
    };
    let Some(first) = objectives.first() else { return nothing };
    let Some(by) = times(queues, objectives, beside.except, more.is_none()) else {
        return Fit { objective: Some(*first), verdict: Verdict::Unmeasured, ..nothing };
    };
    let its = queues.all().iter().find(|q| q.objectives() == objectives);
    let mates = beside.in_flight(its, objectives);
    let all = Tenants { lately: None, ..beside }.in_flight(its, objectives);
    let load = if mates < all { Load::Seen(mates) } else { Load::Allowed };
    let together = mates + more.unwrap_or(0);
    let hopeless = objectives.iter().find(|o| by.bound(o).is_hopeless());
    let hardest = hopeless.or(objectives.iter().min_by_key(|o| by.bound(o).wait())).unwrap_or(first);
    let (mean, (tail, samples), wait) =
        (by.service.mean(), by.tail_at(hardest.percentile_bp), by.bound(hardest).wait());
    let needs = needs(together, mean, wait, queues.depth);
    let verdict = if hopeless.is_some() {
        Verdict::DeviceTooSlow
    } else if promised + needs <= cores {
        Verdict::Fits
    } else {
        let left = cores.saturating_sub(promised) * u64::from(queues.depth);
        let waiting = together.saturating_sub(left);
        let fits_within = (left > 0).then(|| tail + mean.scale(waiting, left) + Span::from_micros(1));
        // Of an objective that stands: its only tenant's. Several tenants would have to share the number.
        let others = if more.is_none() && tenants(queues, objectives) == 1 { 0 } else { mates };
        let fits_in_flight = Some(most_in_flight(left, mean, wait).saturating_sub(others)).filter(|n| *n > 0);
        Verdict::Short { cores: promised + needs - cores, fits_within, fits_in_flight }
    };
    Fit { objective: Some(*hardest), needs, promised, cores, mean, tail, samples, basis: by.basis, load, verdict }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Data, Io, IoHead, IoId, Op, VolumeKey};

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
        let ok = fit(&q, &terms(9990, 20, 10), None, &[]);
        assert_eq!((ok.verdict, ok.needs, ok.promised), (Verdict::Fits, 1, 1), "10 ms of 19, beside 8 of 9");
        let short = fit(&q, &terms(9990, 5, 10), None, &[]);
        let Verdict::Short { cores, fits_within: Some(within), fits_in_flight: Some(jobs) } = short.verdict else {
            panic!("{short}")
        };
        assert_eq!((short.needs, cores), (3, 2), "{short}");
        // The bound that it names does fit, and is no further off than it must be.
        let ms = within.as_nanos().div_ceil(1_000_000);
        assert!(fit(&q, &terms(9990, ms, 10), None, &[]).is_accepted() && ms == 11, "{short}");
        assert!(short.to_string().contains("2 missing; --jobs-max 4 would fit, or within 10"), "{short}");
        let fits = |jobs| fit(&q, &terms(9990, 5, jobs), None, &[]).is_accepted();
        assert!(jobs == 4 && fits(4) && !fits(5), "{short}");
    }

    #[test]
    fn a_type_shares_its_queue() {
        let q = queues();
        let same = fit(&q, &terms(9990, 10, 8), None, &[]);
        assert_eq!((same.needs, same.promised), (2, 0), "16 requests in 9 ms");
        let replaced = fit(&q, &terms(9990, 10, 8), Some(TenantId(1)), &[]);
        assert_eq!((replaced.needs, replaced.promised), (1, 0));
    }

    /// Two tenants that fit one at a time, and not together: with the same objectives, with others, and with those of a queue that is there.
    #[test]
    fn what_is_planned_together_is_judged_together() {
        let q = queues();
        let planned = |tenant, terms| [Planned { tenant, terms }];
        for (first, second) in [(11, 11), (11, 12), (10, 11)] {
            let (first, second) = (terms(9990, first, 8), terms(9990, second, 8));
            let are_accepted = [&first, &second].map(|t| fit(&q, t, None, &[]).is_accepted());
            assert_eq!(are_accepted, [true, true], "each alone");
            let beside = fit(&q, &second, None, &planned(None, first.clone()));
            assert!(!beside.is_accepted() && beside.needs + beside.promised == 3, "{beside}");
        }
        // What a planned change gives back is there for the other.
        let large = terms(9990, 11, 16);
        let smaller = |jobs| planned(Some(TenantId(1)), terms(9990, 10, jobs));
        assert!(!fit(&q, &large, None, &[]).is_accepted());
        assert!(!fit(&q, &large, None, &smaller(8)).is_accepted());
        let best_effort = Terms::of(Class::BestEffort { weight: 1 }, 1000);
        assert!(fit(&q, &large, None, &planned(Some(TenantId(1)), best_effort)).is_accepted());
    }

    /// Requests turn out to take four times as long: the objective that stands lacks cores from then on.
    #[test]
    fn what_stands_is_judged_by_what_was_measured_since() {
        let mut q = queues();
        let ok = standing(&q, q.get(0));
        assert_eq!((ok.verdict, ok.needs, ok.promised), (Verdict::Fits, 1, 0), "{ok}");
        (0..10_000).for_each(|_| q.get_mut(0).service.record(Span::from_micros(4000)));
        let short = standing(&q, q.get(0));
        assert_eq!((short.verdict, short.needs), (fit(&q, &terms(9990, 10, 8), Some(TenantId(1)), &[]).verdict, 4));
        assert!(!short.is_accepted() && short.to_string().contains("2 missing; --jobs-max 4 would fit"), "{short}");
    }

    #[test]
    fn no_cores_help_a_device_that_is_too_slow() {
        let q = queues();
        assert_eq!(fit(&q, &terms(9990, 1, 1), None, &[]).verdict, Verdict::DeviceTooSlow);
        let unmeasured = Queues::new(2, 1, 0);
        assert_eq!(fit(&unmeasured, &terms(9990, 1, 1), None, &[]).verdict, Verdict::Unmeasured);
        let best_effort = Terms::of(Class::BestEffort { weight: 1 }, 1000);
        assert_eq!(fit(&q, &best_effort, None, &[]).verdict, Verdict::Fits);
    }

    /// Two cores: a tenant without an objective had 2,000 requests of 12 ms, one in sixty of 20 ms and a few of 105 ms. Another one's took
    /// longer.
    fn before_an_objective() -> Queues {
        let mut queues = Queues::new(2, 1, 0);
        let best_effort = Terms::of(Class::BestEffort { weight: 100 }, 1024);
        queues.set_tenant(TenantId(1), Some(&best_effort));
        queues.set_tenant(TenantId(2), Some(&best_effort));
        for n in 0..2000u64 {
            let took_ms = if n % 500 == 499 {
                105
            } else if n % 60 == 0 {
                20
            } else {
                12
            };
            queues.get_mut(0).service.record(Span::from_millis(took_ms));
            queues.get_mut(1).service.record(Span::from_millis(200));
        }
        queues
    }

    /// A first objective is judged by the tenant's own requests, at the percentile that it names.
    #[test]
    fn a_first_objective_is_judged_by_its_own_percentile_and_requests() {
        let q = before_an_objective();
        let ok = fit(&q, &terms(9900, 30, 2), Some(TenantId(1)), &[]);
        assert!(
            ok.is_accepted() && (20_000..22_000).contains(&ok.tail.as_micros()) && ok.samples == 2000,
            "{ok} {ok:?}"
        );
        let slow = fit(&q, &terms(9990, 30, 2), Some(TenantId(1)), &[]);
        assert_eq!(slow.verdict, Verdict::DeviceTooSlow, "{slow}");
        let said = slow.to_string();
        assert!(said.contains("at p99.9, of 2000 requests, few for that percentile: 10000 are enough"), "{said}");
        let said = fit(&q, &terms(9900, 15, 2), Some(TenantId(1)), &[]).to_string();
        assert!(said.contains("at p99, of 2000 requests, whatever"), "{said}");
        // With the default permits it doesn't fit, and the permits that do are named.
        let short = fit(&q, &terms(9900, 30, 1024), Some(TenantId(1)), &[]);
        assert!(short.to_string().contains("; --jobs-max 3 would fit, or within "), "{short}");
        assert!(fit(&q, &terms(9900, 30, 3), Some(TenantId(1)), &[]).is_accepted());
        // Somebody else is judged by the slowest.
        assert_eq!(fit(&q, &terms(9900, 30, 2), Some(TenantId(3)), &[]).verdict, Verdict::DeviceTooSlow);
    }

    /// The profile's times are judged by until requests were measured: they refuse nothing, but say what can't be kept.
    #[test]
    fn before_requests_are_measured_the_profile_says_what_does_not_fit() {
        let mut q = Queues::new(2, 1, 0);
        q.set_tenant(TenantId(1), Some(&terms(9900, 30, 8)));
        let unknown = standing(&q, q.get(0));
        assert!(unknown.verdict == Verdict::Unmeasured && !unknown.is_lacking(), "{unknown}");
        q.expect(&[Span::from_millis(12); 1000]);
        let short = standing(&q, q.get(0));
        assert!(short.is_surely_lacking() && short.is_accepted(), "{short}");
        let said = short.to_string();
        assert!(
            said.starts_with("doesn't fit, by the profile of its device, with random reads of 4 KiB: it needs 4 "),
            "{said}"
        );
        assert!(said.contains("2 missing; --jobs-max ") && !said.contains("requests few"), "{said}");
        assert!(fit(&q, &terms(9900, 1, 1), Some(TenantId(2)), &[]).is_accepted(), "nothing is refused by it");
        // Another tenant's requests are no reason to think otherwise of it.
        q.set_tenant(TenantId(2), Some(&Terms::of(Class::BestEffort { weight: 1 }, 8)));
        (0..1000).for_each(|_| q.get_mut(1).service.record(Span::from_micros(10)));
        assert_eq!(standing(&q, q.get(0)).basis, Basis::Profile);
        // Its own are.
        (0..OWN_LEAST).for_each(|_| q.get_mut(0).service.record(Span::from_millis(2)));
        let ok = standing(&q, q.get(0));
        assert!(ok.basis == Basis::Own && ok.verdict == Verdict::Fits, "{ok}");
    }

    /// A tenant that nobody bounded may have 1,024 requests in flight, for which hardly any objective can be kept. It is no problem before it has
    /// more than the cores can keep, nor are its objectives in the way of others'.
    #[test]
    fn a_default_bound_is_no_load() {
        let unbounded = |p, ms| terms(p, ms, Terms::IN_FLIGHT_DEFAULT);
        let at = |s| Time::ZERO + Span::from_secs(s);
        let mut q = Queues::new(2, 1, 0);
        q.set_tenant(TenantId(1), Some(&unbounded(9900, 30)));
        q.set_tenant(TenantId(2), Some(&terms(9900, 60, 4)));
        (0..64).for_each(|_| q.get_mut(0).service.record(Span::from_millis(12)));
        (0..64).for_each(|_| q.get_mut(1).service.record(Span::from_millis(12)));
        let both = |q: &Queues, now| [0, 1].map(|n| present(q, q.get(n), now));
        assert!([0, 1].iter().all(|n| standing(&q, q.get(*n)).is_surely_lacking()), "at their worst they are too much");
        let [first, second] = both(&q, at(0));
        assert!(!first.is_lacking() && !second.is_lacking(), "{first} {second}");
        assert_eq!((first.load, second.load), (Load::Seen(1), Load::Allowed));
        // It has more at once than is kept: as long as that was lately.
        for id in 0..8 {
            let head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), 0, 4096, at(100));
            q.push(Io::new(IoHead { id: IoId(id), ..head }, Data::Absent));
            q.note_load(at(100), 0);
        }
        (0..8).for_each(|_| _ = (q.take(0), q.release(0)));
        let [first, second] = both(&q, at(150));
        assert!(first.is_surely_lacking() && second.is_surely_lacking() && first.load == Load::Seen(8), "{first}");
        assert!(first.to_string().contains("it needs 4 cores with up to 8 requests at once, as lately"), "{first}");
        let [first, _] = both(&q, at(300));
        assert!(!first.is_lacking(), "{first}");
        // A number that somebody chose is a load that they expect, and what the device alone misses is missed by one request.
        q.set_tenant(TenantId(1), Some(&terms(9900, 30, 1000)));
        assert!(present(&q, q.get(0), at(300)).is_surely_lacking());
        q.set_tenant(TenantId(1), Some(&unbounded(9900, 5)));
        (0..64).for_each(|_| q.get_mut(0).service.record(Span::from_millis(12)));
        let hopeless = q.all().iter().find(|q| q.objectives().iter().any(|o| o.bound == Span::from_millis(5)));
        assert_eq!(present(&q, hopeless.expect("it has a queue"), at(300)).verdict, Verdict::DeviceTooSlow);
    }

    /// As many requests as there are cores never wait, however little time is left for waiting.
    #[test]
    fn requests_in_service_do_not_wait() {
        let mut q = Queues::new(2, 1, 0);
        q.set_tenant(TenantId(1), Some(&terms(9900, 30, 1)));
        (0..64).for_each(|_| q.get_mut(0).service.record(Span::from_millis(24)));
        assert!(fit(&q, &terms(9900, 30, 2), Some(TenantId(1)), &[]).is_accepted());
        let short = fit(&q, &terms(9900, 30, 3), Some(TenantId(1)), &[]);
        assert!(short.needs == 3 && short.to_string().contains("--jobs-max 2 would fit"), "{short}");
    }
}
