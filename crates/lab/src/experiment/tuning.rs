//! OT-E1 to OT-E12: what the tuner does with OpTune's three systems, and how its solver compares.
//!
//! Each system is profiled as OpTune does it: a warm-up, then one run after the other under the settings of
//! [`plimsoll_tune::space::Space::to_profile`]. The result is measured on a fresh system with another stream of requests: the
//! same files and disk, other arrivals.

pub mod carry;
pub mod conflict;
pub mod jobs;
pub mod node;
mod rows;
pub mod screening;
pub mod solver;
pub mod traced;
pub mod web;
pub mod work;

use crate::experiment::{Inputs, LabError};
use plimsoll_base::Span;
use plimsoll_tune::adapter::{Adapter, Run, record};
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::compose::Composer;
use plimsoll_tune::graph::ServiceGraph;
use plimsoll_tune::objective::{Goal, Objective, Point};
use plimsoll_tune::predict::{How, candidates};
use plimsoll_tune::profile::{Observation, Profile, times};
use plimsoll_tune::solve::{Candidate, Epochs, Mix, Solution, solve};
use plimsoll_tune::space::{Setting, Space};

/// Epochs of a period (§5.2.1: ten minutes of two-minute epochs).
pub(crate) const EPOCHS: Epochs = Epochs::Count(5);

/// Length of a trial for a period: a tenth of the period in a brief run.
pub(crate) fn tried_for(period: Span, inputs: &Inputs) -> Span {
    inputs.length(period, period, period.scale(1, 10))
}

pub(crate) fn told(e: impl std::fmt::Display) -> LabError {
    LabError(e.to_string())
}

/// `p99` under `p50 <= 10ms` and the like.
pub(crate) fn objective(goal: &str, bounds: &[(f64, f64)]) -> Objective {
    let bound = |&(share, ms): &(f64, f64)| plimsoll_tune::objective::Bound { of: Point::Share(share), at_most_ms: ms };
    let goal: Goal = goal.parse().expect("a constant");
    Objective { goal, bounds: bounds.iter().map(bound).collect() }
}

/// The distribution of a run's whole requests.
pub(crate) fn whole(graph: &ServiceGraph, run: &Run) -> Result<Cdf, LabError> {
    let root = &graph.nodes()[graph.root()].name;
    times(root, run.get(root).map(Vec::as_slice).unwrap_or_default()).map_err(told)
}

/// A system, profiled.
pub(crate) struct Profiled {
    pub graph: ServiceGraph,
    pub space: Space,
    pub profile: Profile,
    pub all: Vec<Candidate>,
}

/// Profiles `system` under the settings that are needed, each after `warm` of settling, for `time`.
pub(crate) fn profiled(
    system: &mut dyn Adapter,
    graph: ServiceGraph,
    space: Space,
    warm: Span,
    time: Span,
) -> Result<Profiled, LabError> {
    profiled_by(graph, space, &mut |setting| {
        system.apply(setting).map_err(told)?;
        system.measure(warm).map_err(told)?;
        system.measure(time).map_err(told)
    })
}

/// Profiles by `measure`, which gives a run under a setting.
pub(crate) fn profiled_by(
    graph: ServiceGraph,
    space: Space,
    measure: &mut dyn FnMut(&Setting) -> Result<Run, LabError>,
) -> Result<Profiled, LabError> {
    let nodes: Vec<String> = graph.measured().iter().map(|&id| graph.nodes()[id].name.clone()).collect();
    let mut profile = Profile::new();
    for (n, setting) in space.to_profile(&nodes).iter().enumerate() {
        record(&mut profile, setting, n as u64, measure(setting)?);
    }
    let composer = Composer::new(&graph, &space, &profile).map_err(told)?;
    let all = candidates(&composer, &space, How::Convolved, &|_| {});
    Ok(Profiled { graph, space, profile, all })
}

impl Profiled {
    /// Solves; the explanation of what can't be had is the error.
    pub fn solve(&self, objective: &Objective) -> Result<Solution, LabError> {
        solve(&self.all, EPOCHS, objective).map_err(told)
    }

    /// Returns the distribution that a fresh system achieves over `periods` of `period` under a mix, after a warm-up of six
    /// periods. The profiled system had served that long, too, and a cache of a few thousand out of 60,000 files needs an hour.
    /// Jobs may outlast an epoch: they count when they end.
    pub fn achieved(&self, system: &mut dyn Adapter, mix: &Mix, period: Span, periods: u32) -> Result<Cdf, LabError> {
        let first = &self.all[mix.parts[0].0].setting;
        system.apply(first).map_err(told)?;
        system.measure(period * 6).map_err(told)?;
        let mut all = Vec::new();
        for _ in 0..periods {
            self.serve(system, mix, period, &mut all)?;
        }
        times("request", &all).map_err(told)
    }

    /// Returns the distribution of a period under a mix, of a system as it is.
    pub fn served(&self, system: &mut dyn Adapter, mix: &Mix, period: Span) -> Result<Cdf, LabError> {
        let mut all = Vec::new();
        self.serve(system, mix, period, &mut all)?;
        times("request", &all).map_err(told)
    }

    fn serve(
        &self,
        system: &mut dyn Adapter,
        mix: &Mix,
        period: Span,
        all: &mut Vec<Observation>,
    ) -> Result<(), LabError> {
        for &(i, share) in &mix.parts {
            system.apply(&self.all[i].setting).map_err(told)?;
            let time = Span::from_nanos((period.as_nanos() as f64 * share) as u64);
            let run = system.measure(time).map_err(told)?;
            let root = &self.graph.nodes()[self.graph.root()].name;
            all.extend(run.get(root).into_iter().flatten().copied());
        }
        Ok(())
    }
}

/// Mean, median, p90, p99.
pub(crate) fn figures(cdf: &Cdf) -> [f64; 4] {
    [cdf.mean_ms(), cdf.quantile(0.5), cdf.quantile(0.9), cdf.quantile(0.99)]
}
