//! The run phase: epochs are applied, periods are watched, and what was learnt is remembered (OT-M4, OT-M10).

use crate::adapter::{AdapterError, Guarded, Lengths, requests};
use crate::cdf::{Cdf, ks_critical};
use crate::graph::ServiceGraph;
use crate::objective::{Goal, Objective, Point};
use crate::solve::{Candidate, Epochs, Mix};
use crate::space::Setting;
use crate::stats::more_than_before;
use plimsoll_base::Span;
use std::collections::BTreeMap;
use std::fmt;

/// Settings of each period, and the expected distribution.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Settings in order, each with its number of epochs.
    pub parts: Vec<(Setting, u32)>,
    /// The distribution of a period's requests.
    pub expected: Cdf,
    /// Number of recorded requests that the expectation rests on; infinite: it's exact.
    pub rests_on: f64,
    /// The percentiles that were asked for, as shares, each with the time it's expected or bound to be.
    pub watched: Vec<(f64, f64)>,
}

impl Plan {
    /// The plan of a mix: every configuration in one stretch, so that a period has as few switches as it can.
    pub fn of(mix: &Mix, candidates: &[Candidate], epochs: Epochs, objective: &Objective) -> Plan {
        let count = if let Epochs::Count(n) = epochs { f64::from(n) } else { 1.0 };
        let part =
            |&(i, share): &(usize, f64)| (candidates[i].setting.clone(), ((share * count).round() as u32).max(1));
        let expected = mix.cdf(candidates);
        let watched = watched(&expected, objective);
        Plan { parts: mix.parts.iter().map(part).collect(), expected, rests_on: mix.requests(candidates), watched }
    }
}

/// The percentiles of goal and bounds, ascending: a goal's with the time that is expected, a bound's with the time that it allows.
fn watched(expected: &Cdf, objective: &Objective) -> Vec<(f64, f64)> {
    let share = |p: &Point| if let Point::Share(s) = p { Some(*s) } else { None };
    let sought: Vec<f64> = match &objective.goal {
        Goal::Least(terms) => terms.iter().filter_map(|(p, _)| share(p)).collect(),
        Goal::Target(points) => points.iter().map(|p| p.0).filter(|&s| s < 1.0).collect(),
    };
    let mut all: Vec<(f64, f64)> = sought.into_iter().map(|s| (s, expected.quantile(s))).collect();
    all.extend(objective.bounds.iter().filter_map(|b| Some((share(&b.of)?, b.at_most_ms))));
    all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    all.dedup();
    all
}

/// A percentile that was asked for, as one period had it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Beyond {
    /// The percentile, as a share.
    pub share: f64,
    /// The time that it's expected or bound to be.
    pub within_ms: f64,
    /// The share of requests that took longer; expected: `1 - share` at most.
    pub seen: f64,
    /// Probability that chance alone puts at least this share there.
    pub chance: f64,
    /// True if it is an alarm.
    pub is_alarming: bool,
}

impl fmt::Display for Beyond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seen, expected) = (100.0 * self.seen, 100.0 * (1.0 - self.share));
        let point = Point::Share(self.share);
        write!(f, "{point}: {seen:.2} % took more than {:.3} ms, where {expected:.2} % may", self.within_ms)
    }
}

/// One period that was run.
#[derive(Clone, PartialEq, Debug)]
pub struct Period {
    /// Observed distribution; each epoch has the same weight, as in the prediction.
    pub observed: Cdf,
    /// Number of requests.
    pub requests: f64,
    /// The largest difference between observed and expected shares.
    pub ks: f64,
    /// Limit at which the alarm begins.
    pub limit: f64,
    /// Results for the objective's percentiles.
    pub beyond: Vec<Beyond>,
}

impl Period {
    /// True if the system no longer behaves as profiled: the distribution, or one of the objective's percentiles, is beyond its limit.
    pub fn is_alarming(&self) -> bool {
        self.ks > self.limit || self.beyond.iter().any(|b| b.is_alarming)
    }

    /// Returns the reason for the alarm, if there is one.
    pub fn alarm(&self) -> Option<String> {
        let mut what = Vec::new();
        if self.ks > self.limit {
            what.push(format!("observed and expected are {:.3} apart (alarm above {:.3})", self.ks, self.limit));
        }
        what.extend(self.beyond.iter().filter(|b| b.is_alarming).map(Beyond::to_string));
        (!what.is_empty()).then(|| what.join("; "))
    }
}

/// A difference that chance alone exceeds this rarely raises no alarm, however low the tolerance.
const ALPHA: f64 = 0.001;

/// Inexactness of expected times against observed ones: the histograms' 0.8 %, and a step of a grid.
const BLUR: f64 = 0.01;

/// Length of epochs, and the conditions of an alarm.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Watch {
    /// An epoch.
    pub epoch: Span,
    /// The distance of observed and expected (Kolmogorov and Smirnov) at which the alarm begins, 0 to 1.
    pub tolerance: f64,
    /// Factor of the permitted share beyond a percentile's time at which an alarm begins; infinite: never.
    pub tail: f64,
}

/// Returns the distance at which the alarm begins, for `requests` observed ones and an expectation that rests on `rests_on`
/// recorded ones. It is the tolerance, or with few requests the distance that chance explains (two-sample Kolmogorov–Smirnov).
/// Successive requests are alike, so the test alone would alarm at differences that don't matter; the tolerance is the
/// criterion.
pub fn alarm_limit(tolerance: f64, requests: f64, rests_on: f64) -> f64 {
    tolerance.max(ks_critical(ALPHA, requests.max(1.0), rests_on.clamp(1.0, 1e12)))
}

/// Judges a period's observations for one percentile of the objective. The test of Kolmogorov and Smirnov doesn't see it: a p99
/// that is ten times longer moves a distribution by a hundredth.
fn beyond((share, within_ms): (f64, f64), (observed, requests): (&Cdf, f64), plan: &Plan, tail: f64) -> Beyond {
    let seen = 1.0 - observed.at(within_ms * (1.0 + BLUR));
    let chance = more_than_before((seen * requests, requests), (1.0 - share, plan.rests_on));
    // Each of several percentiles gets its part of what chance may do.
    let is_alarming = seen > tail * (1.0 - share) && chance < ALPHA / plan.watched.len() as f64;
    Beyond { share, within_ms, seen, chance, is_alarming }
}

/// Before a plan's first period, or when nobody knows what the caches hold: its first setting, warmed up.
///
/// # Errors
/// The adapter's; the system is then back at what worked last.
pub fn warm(guarded: &mut Guarded<'_>, plan: &Plan, lengths: &Lengths) -> Result<(), AdapterError> {
    guarded.apply(&plan.parts[0].0)?;
    guarded.warm(lengths)
}

/// Runs one period: for each part of the plan, applies it and measures its epochs. `progress` hears after each epoch.
///
/// # Errors
/// The adapter's; the system is then back at what worked last.
pub fn period(
    guarded: &mut Guarded<'_>,
    graph: &ServiceGraph,
    plan: &Plan,
    watch: &Watch,
    progress: &mut dyn FnMut(&Setting),
) -> Result<Period, AdapterError> {
    let mut points: Vec<(f64, f64)> = Vec::new();
    // Requests, and what each epoch's number makes of the whole's uncertainty.
    let (mut requests_seen, mut uncertain) = (0.0, 0.0);
    for (setting, epochs) in &plan.parts {
        guarded.apply(setting)?;
        for _ in 0..*epochs {
            let run = guarded.measure(watch.epoch)?;
            let seen = requests(graph, &run)?;
            let weight: f64 = seen.iter().map(|o| o.weight).sum();
            // Epochs may serve different numbers; each counts the same, as in the prediction (equation 5.3).
            points.extend(seen.iter().map(|o| (o.value, o.weight / weight)));
            (requests_seen, uncertain) = (requests_seen + weight, uncertain + 1.0 / weight);
            progress(setting);
        }
    }
    let epochs: f64 = plan.parts.iter().map(|p| f64::from(p.1)).sum();
    let observed = Cdf::of_weighted(points).map_err(|e| AdapterError(format!("what was measured: {e}")))?;
    let counted = epochs * epochs / uncertain;
    Ok(Period {
        ks: observed.ks_blurred(&plan.expected, BLUR),
        beyond: plan.watched.iter().map(|&w| beyond(w, (&observed, counted), plan, watch.tail)).collect(),
        observed,
        requests: requests_seen,
        limit: alarm_limit(watch.tolerance, counted, plan.rests_on),
    })
}

/// Limits the rate of renewed tuning: alarms that tuning doesn't end are waited out, each time twice as long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Backoff {
    wait: u64,
    not_before: u64,
}

/// Periods between two attempts, at most.
const WAIT_MAX: u64 = 64;

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { wait: 1, not_before: 0 }
    }
}

impl Backoff {
    /// Checks that the system may be tuned again after this period.
    ///
    /// # Errors
    /// The period after which it may.
    pub fn may(&self, period: u64) -> Result<(), u64> {
        if period >= self.not_before { Ok(()) } else { Err(self.not_before) }
    }

    /// It was tuned anew after this period.
    pub fn tuned(&mut self, period: u64) {
        self.not_before = period + self.wait;
        self.wait = (self.wait * 2).min(WAIT_MAX);
    }

    /// A period was as expected.
    pub fn quiet(&mut self) {
        self.wait = 1;
    }
}

/// Load levels: one profile and one plan for each (OT-M15).
#[derive(Clone, PartialEq, Debug)]
pub struct Levels {
    /// Ascending; level `i` lies below bound `i`, the last one above all.
    bounds: Vec<f64>,
}

impl Levels {
    /// Levels between these bounds; `None` if they don't ascend.
    pub fn new(bounds: Vec<f64>) -> Option<Levels> {
        bounds.is_sorted_by(|a, b| a < b).then_some(Levels { bounds })
    }

    /// Returns the number of levels.
    pub fn count(&self) -> usize {
        self.bounds.len() + 1
    }

    /// The level of a load.
    pub fn of(&self, load: f64) -> usize {
        self.bounds.partition_point(|&b| load >= b)
    }
}

/// Results learned for each level. The next period is predicted to have the level of the last one (OpTune §5.4.1).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Memory<T> {
    by_level: BTreeMap<usize, T>,
    last: Option<usize>,
}

impl<T> Memory<T> {
    /// Nothing.
    pub fn new() -> Memory<T> {
        Memory { by_level: BTreeMap::new(), last: None }
    }

    /// Keeps what was learnt for a level, in place of what was known.
    pub fn learn(&mut self, level: usize, what: T) {
        self.by_level.insert(level, what);
    }

    /// A period had this level.
    pub fn observed(&mut self, level: usize) {
        self.last = Some(level);
    }

    /// Returns the result for the predicted level; else for the nearest lower or, failing that, higher one.
    pub fn predicted(&self) -> Option<&T> {
        let level = self.last.unwrap_or(0);
        let lower = self.by_level.range(..=level).next_back();
        lower.or_else(|| self.by_level.range(level..).next()).map(|l| l.1)
    }

    /// Forgets a level: it turned out to be another than was learnt.
    pub fn forget(&mut self, level: usize) {
        self.by_level.remove(&level);
    }

    /// Returns the result for exactly this level.
    pub fn at(&self, level: usize) -> Option<&T> {
        self.by_level.get(&level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{Adapter, Run};
    use crate::graph::WrittenGraph;
    use crate::profile::Observation;
    use crate::space::{Parameter, Space};
    use plimsoll_base::Rng;

    /// Serves times of a mean that its setting says, times a factor.
    struct Model {
        mean: f64,
        factor: f64,
        rng: Rng,
    }
    impl Adapter for Model {
        fn apply(&mut self, s: &Setting) -> Result<(), AdapterError> {
            self.mean = 1.0 + f64::from(s.0[0]);
            Ok(())
        }
        fn measure(&mut self, _: Span) -> Result<Run, AdapterError> {
            let one = |request| Observation { request, value: self.rng.exp1() * self.mean * self.factor, weight: 1.0 };
            Ok(BTreeMap::from([("r".to_string(), (0..2_000).map(one).collect())]))
        }
    }

    #[test]
    fn an_alarm_is_raised_when_the_system_changes_and_only_then() {
        let space =
            Space::new(vec![Parameter { name: "a".into(), values: vec!["0".into(), "1".into()], moves: vec![] }])
                .unwrap();
        let graph: WrittenGraph = toml::from_str("root = 'r'\ncomponents = ['r']").unwrap();
        let graph = ServiceGraph::new(&graph).unwrap();
        let mut rng = Rng::new(3, "expected");
        let candidates: Vec<Candidate> = space
            .settings()
            .map(|s| {
                let mean = 1.0 + f64::from(s.0[0]);
                Candidate::new(s, Cdf::of_samples(&(0..20_000).map(|_| rng.exp1() * mean).collect::<Vec<_>>()).unwrap())
            })
            .collect();
        let any = objective("mean", &[]);
        let plan = Plan::of(&Mix { parts: vec![(0, 0.4), (1, 0.6)] }, &candidates, Epochs::Count(5), &any);
        assert_eq!(plan.parts.iter().map(|p| p.1).collect::<Vec<_>>(), [2, 3]);
        let run = |factor| {
            let mut model = Model { mean: 0.0, factor, rng: Rng::new(4, "model") };
            let mut guarded = Guarded::new(&mut model, &space, None);
            period(&mut guarded, &graph, &plan, &within(0.05), &mut |_| {}).unwrap()
        };
        let same = run(1.0);
        assert!(!same.is_alarming() && same.ks < 0.03, "{}", same.ks);
        let slower = run(1.4);
        assert!(slower.is_alarming(), "{}", slower.ks);
        // Few requests make no alarm by chance, and neither do many that few are compared with.
        assert!(alarm_limit(0.05, 100.0, 1e9) > 0.15 && alarm_limit(0.05, 1e6, f64::INFINITY) == 0.05);
        assert!(alarm_limit(0.05, 1e6, 100.0) > 0.15);
    }

    fn within(tolerance: f64) -> Watch {
        Watch { epoch: Span::from_secs(1), tolerance, tail: 2.0 }
    }

    fn objective(goal: &str, bounds: &[&str]) -> Objective {
        Objective { goal: goal.parse().unwrap(), bounds: bounds.iter().map(|b| b.parse().unwrap()).collect() }
    }

    /// A system of one setting: `(n, mean)` of its exponential times by epoch, of which so many in a hundred are ten times as long.
    struct Epochal {
        epochs: Vec<(u64, f64)>,
        long: f64,
        rng: Rng,
    }
    impl Adapter for Epochal {
        fn apply(&mut self, _: &Setting) -> Result<(), AdapterError> {
            Ok(())
        }
        fn measure(&mut self, _: Span) -> Result<Run, AdapterError> {
            let (n, mean) = self.epochs.remove(0);
            let mut time = || self.rng.exp1() * mean * if self.rng.chance(self.long) { 10.0 } else { 1.0 };
            let all = (0..n).map(|request| Observation { request, value: time(), weight: 1.0 }).collect();
            Ok(BTreeMap::from([("r".to_string(), all)]))
        }
    }

    fn exponential(mean: f64) -> Candidate {
        let times: Vec<f64> = (0..10_000).map(|i| -mean * (1.0 - (f64::from(i) + 0.5) / 1e4).ln()).collect();
        Candidate::new(Setting(vec![0]), Cdf::of_samples(&times).unwrap())
    }

    fn ran(plan: &Plan, epochs: Vec<(u64, f64)>, long: f64, seed: u64) -> Period {
        let space = Space::new(vec![Parameter { name: "a".into(), values: vec!["0".into()], moves: vec![] }]).unwrap();
        let graph: WrittenGraph = toml::from_str("root = 'r'\ncomponents = ['r']").unwrap();
        let mut system = Epochal { epochs, long, rng: Rng::new(seed, "epochs") };
        let mut guarded = Guarded::new(&mut system, &space, None);
        let graph = ServiceGraph::new(&graph).unwrap();
        period(&mut guarded, &graph, plan, &within(0.1), &mut |_| {}).unwrap()
    }

    #[test]
    fn a_longer_tail_is_an_alarm_where_the_tail_was_asked_for() {
        let all = [exponential(1.0)];
        let plan = |o: &Objective| Plan::of(&Mix::only(0), &all, Epochs::Count(2), o);
        let (tail, mean) = (plan(&objective("p99", &[])), plan(&objective("mean", &["p50 <= 1ms"])));
        let epochs = vec![(5_000, 1.0); 2];
        // Four in a hundred requests take ten times as long: three more in a hundred beyond the p99.
        let longer = ran(&tail, epochs.clone(), 0.04, 1);
        assert!(longer.ks < 0.05 && longer.is_alarming(), "{longer:?}");
        assert!(longer.alarm().unwrap().contains("p99: "), "{:?}", longer.alarm());
        assert!(!ran(&mean, epochs.clone(), 0.04, 1).is_alarming(), "nobody asked for the tail");
        // A bound is watched as well, and chance makes no alarm.
        let bound = plan(&objective("mean", &["p99 <= 6ms"]));
        assert_eq!(bound.watched, [(0.99, 6.0)]);
        assert!(ran(&bound, epochs.clone(), 0.06, 1).is_alarming());
        let alarms = (0..200).filter(|&seed| ran(&tail, vec![(300, 1.0); 2], 0.0, seed).is_alarming()).count();
        assert!(alarms <= 2, "{alarms} of 200");
        // What few recorded requests promise isn't held against a system.
        let mut unsure = tail.clone();
        unsure.rests_on = 100.0;
        assert!(ran(&tail, vec![(150, 1.0); 2], 0.06, 3).is_alarming());
        assert!(!ran(&unsure, vec![(150, 1.0); 2], 0.06, 3).is_alarming());
    }

    #[test]
    fn epochs_count_the_same_however_many_they_serve() {
        let mut all = vec![exponential(1.0), exponential(8.0)];
        all[1].setting = Setting(vec![1]);
        let mix = Mix { parts: vec![(0, 0.5), (1, 0.5)] };
        let plan = Plan::of(&mix, &all, Epochs::Count(2), &objective("mean", &[]));
        // A closed loop serves eight times as many while it is quick.
        let p = ran(&plan, vec![(16_000, 1.0), (2_000, 8.0)], 0.0, 5);
        assert!(p.ks < 0.03 && !p.is_alarming(), "{}", p.ks);
        assert_eq!(p.requests, 18_000.0);
    }

    #[test]
    fn tuning_anew_waits_ever_longer_while_it_does_not_help() {
        let (mut b, mut tuned) = (Backoff::default(), Vec::new());
        for period in 1..=20 {
            if b.may(period).is_ok() {
                tuned.push(period);
                b.tuned(period);
            }
        }
        assert_eq!((tuned, b.may(20)), (vec![1, 2, 4, 8, 16], Err(32)));
        b.quiet();
        b.tuned(40);
        assert_eq!(b.may(41), Ok(()));
    }

    #[test]
    fn levels_are_remembered() {
        let levels = Levels::new(vec![5.0, 10.0, 15.0, 50.0]).unwrap();
        assert_eq!([0.0, 4.9, 5.0, 14.0, 50.0].map(|l| levels.of(l)), [0, 0, 1, 2, 4]);
        assert!(Levels::new(vec![5.0, 5.0]).is_none());
        let mut memory = Memory::new();
        assert_eq!(memory.predicted(), None);
        memory.learn(1, "low");
        memory.learn(3, "high");
        memory.observed(2);
        assert_eq!(memory.predicted(), Some(&"low"));
        memory.forget(1);
        assert_eq!((memory.predicted(), memory.at(2)), (Some(&"high"), None));
    }
}
