//! The run phase: epochs are applied, periods are watched, and what was learnt is remembered (OT-M4, OT-M10).

use crate::adapter::{AdapterError, Guarded, requests};
use crate::cdf::{Cdf, ks_critical};
use crate::graph::ServiceGraph;
use crate::profile::Observation;
use crate::solve::{Candidate, Epochs, Mix};
use crate::space::Setting;
use plimsoll_base::Span;
use std::collections::BTreeMap;

/// What to do in each period, and what to expect of it.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Settings in order, each for so many epochs.
    pub parts: Vec<(Setting, u32)>,
    /// The distribution of a period's requests.
    pub expected: Cdf,
}

impl Plan {
    /// The plan of a mix: every configuration in one stretch, so that a period has as few switches as it can.
    pub fn of(mix: &Mix, candidates: &[Candidate], epochs: Epochs) -> Plan {
        let count = if let Epochs::Count(n) = epochs { f64::from(n) } else { 1.0 };
        let part =
            |&(i, share): &(usize, f64)| (candidates[i].setting.clone(), ((share * count).round() as u32).max(1));
        Plan { parts: mix.parts.iter().map(part).collect(), expected: mix.cdf(candidates) }
    }
}

/// One period that was run.
#[derive(Clone, PartialEq, Debug)]
pub struct Period {
    /// What was observed.
    pub observed: Cdf,
    /// How many requests.
    pub requests: f64,
    /// The largest difference between observed and expected shares.
    pub ks: f64,
    /// Where the alarm begins.
    pub limit: f64,
}

impl Period {
    /// Is the system another one than was profiled?
    pub fn is_alarming(&self) -> bool {
        self.ks > self.limit
    }
}

/// A difference that chance alone exceeds this rarely raises no alarm, however low the tolerance.
const ALPHA: f64 = 0.001;

/// What expected times may be beside observed ones: the histograms' 0.8 %, and a step of a grid.
const BLUR: f64 = 0.01;

/// Where the alarm begins for so many requests: at the tolerance, or, for few requests, at what chance makes of them
/// (one-sample Kolmogorov–Smirnov). Requests that follow each other are alike, so that the test on its own would cry at
/// differences that don't matter; the tolerance is what matters.
pub fn alarm_limit(tolerance: f64, requests: f64) -> f64 {
    tolerance.max(ks_critical(ALPHA, requests.max(1.0), 1e12))
}

/// Runs one period: for each part of the plan, applies it and measures its epochs. `watch` hears after each epoch.
///
/// # Errors
/// The adapter's; the system is then back at what worked last.
pub fn period(
    guarded: &mut Guarded<'_>,
    graph: &ServiceGraph,
    plan: &Plan,
    epoch: Span,
    tolerance: f64,
    watch: &mut dyn FnMut(&Setting),
) -> Result<Period, AdapterError> {
    let mut all: Vec<Observation> = Vec::new();
    for (setting, epochs) in &plan.parts {
        guarded.apply(setting)?;
        for _ in 0..*epochs {
            let run = guarded.measure(epoch)?;
            // Epochs are equally long but may serve different numbers: each counts by its requests, as users see it.
            all.extend(requests(graph, &run)?);
            watch(setting);
        }
    }
    let points = all.iter().map(|o| (o.value, o.weight)).collect();
    let observed = Cdf::of_weighted(points).map_err(|e| AdapterError(format!("what was measured: {e}")))?;
    let requests: f64 = all.iter().map(|o| o.weight).sum();
    Ok(Period {
        ks: observed.ks_blurred(&plan.expected, BLUR),
        observed,
        requests,
        limit: alarm_limit(tolerance, requests),
    })
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

    /// How many there are.
    pub fn count(&self) -> usize {
        self.bounds.len() + 1
    }

    /// The level of a load.
    pub fn of(&self, load: f64) -> usize {
        self.bounds.partition_point(|&b| load >= b)
    }
}

/// What was learnt for each level. The next period is predicted to have the level of the last one (OpTune §5.4.1).
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

    /// What is known for the predicted level; else for the nearest lower or, failing that, higher one.
    pub fn predicted(&self) -> Option<&T> {
        let level = self.last.unwrap_or(0);
        let lower = self.by_level.range(..=level).next_back();
        lower.or_else(|| self.by_level.range(level..).next()).map(|l| l.1)
    }

    /// Forgets a level: it turned out to be another than was learnt.
    pub fn forget(&mut self, level: usize) {
        self.by_level.remove(&level);
    }

    /// What is known for exactly this level.
    pub fn at(&self, level: usize) -> Option<&T> {
        self.by_level.get(&level)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapter::{Adapter, Run};
    use crate::graph::WrittenGraph;
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
        let plan = Plan::of(&Mix { parts: vec![(0, 0.4), (1, 0.6)] }, &candidates, Epochs::Count(5));
        assert_eq!(plan.parts.iter().map(|p| p.1).collect::<Vec<_>>(), [2, 3]);
        let run = |factor| {
            let mut model = Model { mean: 0.0, factor, rng: Rng::new(4, "model") };
            let mut guarded = Guarded::new(&mut model, &space, None);
            period(&mut guarded, &graph, &plan, Span::from_secs(1), 0.05, &mut |_| {}).unwrap()
        };
        let same = run(1.0);
        assert!(!same.is_alarming() && same.ks < 0.03, "{}", same.ks);
        let slower = run(1.4);
        assert!(slower.is_alarming(), "{}", slower.ks);
        // Few requests make no alarm by chance.
        assert!(alarm_limit(0.05, 100.0) > 0.15 && alarm_limit(0.05, 1e6) == 0.05);
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
