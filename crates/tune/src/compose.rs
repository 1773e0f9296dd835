//! From the components' distributions to the request's (OT-M2, OT-M3).
//!
//! There are two ways. [`sampled`](Composer::sampled) draws requests from recorded times as OpTune does (§5.2.4). It can respect
//! correlation between components. [`convolved`](Composer::convolved) computes the distribution numerically ([`convolve`]),
//! thousands of settings a second. It takes all components for independent. A test compares both on independent components.

pub mod convolve;
mod sample;

pub use sample::DRAWS_DEFAULT;

use crate::cdf::Cdf;
use crate::graph::{COUNT_MAX, Kind, NodeId, ServiceGraph, Weights};
use crate::profile::{Missing, Observation, Profile, enough, outcomes, times};
use crate::space::{Key, Setting, Space};
use std::collections::BTreeMap;

pub use convolve::Convolver;

/// Observations of one measured node under one key.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Known {
    Times(Cdf),
    Outcomes(Vec<f64>),
}

/// A graph with the profile that it is composed from.
pub struct Composer<'a> {
    pub(crate) graph: &'a ServiceGraph,
    pub(crate) space: &'a Space,
    /// By node; empty for those that aren't measured.
    pub(crate) known: Vec<BTreeMap<Key, Known>>,
    /// By node: how many executions were recorded under each key.
    recorded: Vec<BTreeMap<Key, f64>>,
    /// Joint ranks of each correlated group: for each recorded request, a rank in 0..1 per component of the group.
    pub(crate) joint: Vec<Vec<Vec<f64>>>,
}

/// Number of requests recorded in whole below which correlation can't be estimated.
const JOINT_MIN: usize = 100;

impl<'a> Composer<'a> {
    /// Looks up all that the settings of `space` need.
    ///
    /// # Errors
    /// The first node and setting that the profile lacks, or has strange values for.
    pub fn new(graph: &'a ServiceGraph, space: &'a Space, profile: &Profile) -> Result<Composer<'a>, Missing> {
        let mut known = vec![BTreeMap::new(); graph.nodes().len()];
        let mut recorded = vec![BTreeMap::new(); graph.nodes().len()];
        for id in graph.measured() {
            let node = &graph.nodes()[id];
            let pooled = profile.pooled(space, &node.name);
            for setting in space.settings() {
                let key = space.key(&node.name, &setting);
                if known[id].contains_key(&key) {
                    continue;
                }
                let observations = enough(&pooled, space, &node.name, &setting)?;
                recorded[id].insert(key.clone(), observations.iter().map(|o| o.weight).sum());
                known[id].insert(key, understood(&node.name, &node.kind, observations)?);
            }
        }
        let joint = graph.correlated().iter().map(|g| joint_ranks(graph, profile, g)).collect::<Result<_, _>>()?;
        Ok(Composer { graph, space, known, recorded, joint })
    }

    /// Returns the number of whole requests that the distribution under a setting rests on. It is the number of requests that
    /// would run through the parts as often as the parts were recorded.
    pub fn requests(&self, setting: &Setting) -> f64 {
        let mut of = vec![f64::INFINITY; self.graph.nodes().len()];
        for &id in self.graph.parts_first() {
            let key = || self.space.key(&self.graph.nodes()[id].name, setting);
            let own = || self.recorded[id].get(&key()).copied();
            let least = |parts: &[NodeId]| parts.iter().map(|&p| of[p]).fold(f64::INFINITY, f64::min);
            let mean = |w: &[f64]| w.iter().enumerate().map(|(n, p)| n as f64 * p).sum::<f64>();
            of[id] = match &self.graph.nodes()[id].kind {
                Kind::Component => own().unwrap_or(f64::INFINITY),
                Kind::Sequence(parts) => least(parts),
                Kind::Condition(_, Weights::Measured)
                | Kind::Parallel(_, Weights::Measured)
                | Kind::Loop(_, Weights::Measured) => own().unwrap_or(f64::INFINITY),
                Kind::Condition(parts, Weights::Given(p)) => {
                    parts.iter().zip(p).filter(|b| *b.1 > 0.0).map(|(&part, _)| of[part]).sum()
                }
                Kind::Parallel(parts, Weights::Given(w)) => least(parts) / mean(w).max(1.0),
                Kind::Loop(body, Weights::Given(w)) => of[*body] / mean(w).max(1.0),
            };
        }
        of[self.graph.root()]
    }

    /// Returns the observations of a measured node under a setting.
    pub(crate) fn known(&self, id: NodeId, setting: &Setting) -> &Known {
        let key = self.space.key(&self.graph.nodes()[id].name, setting);
        self.known[id].get(&key).expect("looked up for every setting")
    }

    /// The weights of a node's outcomes under a setting.
    pub(crate) fn weights<'b>(&'b self, id: NodeId, given: &'b Weights, setting: &Setting) -> &'b [f64] {
        match given {
            Weights::Given(w) => w,
            Weights::Measured => match self.known(id, setting) {
                Known::Outcomes(w) => w,
                Known::Times(_) => unreachable!("a pattern has outcomes"),
            },
        }
    }

    /// A component's times under a setting.
    pub(crate) fn times(&self, id: NodeId, setting: &Setting) -> &Cdf {
        match self.known(id, setting) {
            Known::Times(c) => c,
            Known::Outcomes(_) => unreachable!("a component has times"),
        }
    }

    /// True if components depend on each other, so that only sampling is right.
    pub fn is_correlated(&self) -> bool {
        !self.joint.is_empty()
    }
}

fn understood(name: &str, kind: &Kind, observations: &[Observation]) -> Result<Known, Missing> {
    Ok(match kind {
        Kind::Component => Known::Times(times(name, observations)?),
        Kind::Condition(branches, _) => Known::Outcomes(outcomes(name, observations, branches.len())?),
        Kind::Parallel(..) | Kind::Loop(..) => Known::Outcomes(outcomes(name, observations, COUNT_MAX)?),
        Kind::Sequence(_) => unreachable!("sequences have nothing to measure"),
    })
}

/// For each request that has a value of each component of the group under one setting: where in its component's
/// distribution under that setting each value lies.
fn joint_ranks(graph: &ServiceGraph, profile: &Profile, group: &[NodeId]) -> Result<Vec<Vec<f64>>, Missing> {
    let name = |id: NodeId| graph.nodes()[id].name.as_str();
    let mut joint = Vec::new();
    let Some(&first) = group.first() else { return Ok(joint) };
    for (setting, _) in profile.of_node(name(first)) {
        // Per component: each request's value, the last where there are several, and the distribution.
        let mut columns = Vec::new();
        for &id in group {
            let observed = profile.of_node(name(id)).find(|o| o.0 == setting).map(|o| o.1).unwrap_or_default();
            if observed.is_empty() {
                break;
            }
            let by_request: BTreeMap<u64, f64> = observed.iter().map(|o| (o.request, o.value)).collect();
            columns.push((by_request, times(name(id), observed)?));
        }
        if columns.len() < group.len() {
            continue;
        }
        for &request in columns[0].0.keys() {
            let rank = |(values, cdf): &(BTreeMap<u64, f64>, Cdf)| values.get(&request).map(|&v| cdf.at(v));
            joint.extend(columns.iter().map(rank).collect::<Option<Vec<f64>>>());
        }
    }
    if joint.len() < JOINT_MIN {
        let what = format!(
            "it is declared correlated, and {} requests were recorded with all of its group: record {JOINT_MIN} at least, with one `request` number each",
            joint.len()
        );
        return Err(Missing { node: name(first).to_string(), what });
    }
    Ok(joint)
}
