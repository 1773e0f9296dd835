//! Recorded observations by setting: the time of each component, the branch taken, the count of a loop.
//!
//! Each observation belongs to one node and one execution. Its value is a time in milliseconds for a component, the branch's number for a
//! condition, the count for a loop or a parallel. Observations of a node are pooled over the parameters that don't move it
//! ([`crate::space::Space::key`]).

use crate::cdf::{Cdf, NoCdf};
use crate::space::{Key, Setting, Space};
use std::collections::BTreeMap;
use std::fmt;

/// One recorded value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Observation {
    /// The execution it belongs to: what equal numbers join are values of one request.
    pub request: u64,
    /// Milliseconds, branch or count.
    pub value: f64,
    /// Number of executions that it stands for; 1 unless it comes from a histogram.
    pub weight: f64,
}

/// Observations by node and setting.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Profile {
    nodes: BTreeMap<String, BTreeMap<Setting, Vec<Observation>>>,
}

/// Observations below which a node's distribution says nothing of a 99th percentile.
pub const OBSERVATIONS_MIN: f64 = 100.0;

/// Observations that a profile lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The node.
    pub node: String,
    /// Missing part, and the remedy.
    pub what: String,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node `{}`: {}", self.node, self.what)
    }
}
impl std::error::Error for Missing {}

impl Profile {
    /// Without observations.
    pub fn new() -> Profile {
        Profile::default()
    }

    /// Adds one.
    pub fn add(&mut self, node: &str, setting: &Setting, observation: Observation) {
        if !self.nodes.contains_key(node) {
            self.nodes.insert(node.to_string(), BTreeMap::new());
        }
        let by_setting = self.nodes.get_mut(node).expect("just put there");
        match by_setting.get_mut(setting) {
            Some(all) => all.push(observation),
            None => {
                by_setting.insert(setting.clone(), vec![observation]);
            }
        }
    }

    /// The nodes it knows.
    pub fn nodes(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }

    /// A node's observations, by the setting they were recorded under.
    pub fn of_node(&self, node: &str) -> impl Iterator<Item = (&Setting, &[Observation])> {
        self.nodes.get(node).into_iter().flatten().map(|(s, o)| (s, o.as_slice()))
    }

    /// All observations, by node and setting.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting, &[Observation])> {
        self.nodes.iter().flat_map(|(n, by)| by.iter().map(move |(s, o)| (n.as_str(), s, o.as_slice())))
    }

    /// Adds all of another's observations.
    pub fn merge(&mut self, other: &Profile) {
        for (node, setting, observations) in other.iter() {
            observations.iter().for_each(|o| self.add(node, setting, *o));
        }
    }

    /// Observations of `node` under each combination of the parameters that move it.
    pub fn pooled(&self, space: &Space, node: &str) -> BTreeMap<Key, Vec<Observation>> {
        let mut pooled: BTreeMap<Key, Vec<Observation>> = BTreeMap::new();
        for (setting, observations) in self.of_node(node) {
            pooled.entry(space.key(node, setting)).or_default().extend(observations);
        }
        pooled
    }
}

/// A node's observations under one key, or what is missing.
///
/// # Errors
/// If there are none, or too few to stand for a distribution.
pub fn enough<'a>(
    pooled: &'a BTreeMap<Key, Vec<Observation>>,
    space: &Space,
    node: &str,
    setting: &Setting,
) -> Result<&'a [Observation], Missing> {
    let key = space.key(node, setting);
    let part = || {
        let values: Vec<String> =
            space.values(setting).zip(&key.0).filter(|v| v.1.is_some()).map(|((n, v), _)| format!("{n}={v}")).collect();
        if values.is_empty() { "any setting".to_string() } else { values.join(" ") }
    };
    let missing = |what: String| Missing { node: node.to_string(), what };
    let Some(observations) = pooled.get(&key) else {
        return Err(missing(format!("nothing was recorded under {}: profile that setting", part())));
    };
    let weight: f64 = observations.iter().map(|o| o.weight).sum();
    if weight < OBSERVATIONS_MIN {
        return Err(missing(format!(
            "{weight} executions under {} are too few for a distribution: record {OBSERVATIONS_MIN} at least",
            part()
        )));
    }
    Ok(observations)
}

/// The distribution of observed times.
///
/// # Errors
/// If a value is no time.
pub fn times(node: &str, observations: &[Observation]) -> Result<Cdf, Missing> {
    let points = observations.iter().map(|o| (o.value, o.weight)).collect();
    Cdf::of_weighted(points).map_err(|e: NoCdf| Missing { node: node.to_string(), what: e.to_string() })
}

/// The share of each outcome 0, 1, 2, … among observed branches or counts.
///
/// # Errors
/// If a value is no whole number below `below`.
pub fn outcomes(node: &str, observations: &[Observation], below: usize) -> Result<Vec<f64>, Missing> {
    let mut weights: Vec<f64> = Vec::new();
    for o in observations {
        if o.value.fract() != 0.0 || !(0.0..below as f64).contains(&o.value) {
            let what = format!("{} is no outcome: a whole number below {below} is needed", o.value);
            return Err(Missing { node: node.to_string(), what });
        }
        let at = o.value as usize;
        if weights.len() <= at {
            weights.resize(at + 1, 0.0);
        }
        weights[at] += o.weight;
    }
    let sum: f64 = weights.iter().sum();
    Ok(weights.into_iter().map(|w| w / sum).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Parameter;

    #[test]
    fn values_pool_over_what_does_not_move_the_node() {
        let p = |name: &str, moves: &str| Parameter {
            name: name.into(),
            values: vec!["0".into(), "1".into()],
            moves: vec![moves.into()],
        };
        let space = Space::new(vec![p("a", "x"), p("b", "y")]).unwrap();
        let mut profile = Profile::new();
        for s in space.settings() {
            for i in 0..60 {
                let value = f64::from(s.0[0]) * 10.0 + f64::from(i);
                profile.add("x", &s, Observation { request: i as u64, value, weight: 1.0 });
            }
        }
        let pooled = profile.pooled(&space, "x");
        assert_eq!(pooled.len(), 2);
        let seen = enough(&pooled, &space, "x", &Setting(vec![1, 0])).unwrap();
        assert_eq!((seen.len(), times("x", seen).unwrap().quantile(0.0)), (120, 10.0));
        let none = enough(&BTreeMap::new(), &space, "x", &Setting(vec![1, 0])).unwrap_err();
        assert_eq!(none.to_string(), "node `x`: nothing was recorded under a=1: profile that setting");
    }

    #[test]
    fn too_few_and_no_outcomes_are_told() {
        let space = Space::default();
        let mut profile = Profile::new();
        for i in 0..99 {
            profile.add("x", &Setting(vec![]), Observation { request: i, value: (i % 2) as f64, weight: 1.0 });
        }
        let pooled = profile.pooled(&space, "x");
        let e = enough(&pooled, &space, "x", &Setting(vec![])).unwrap_err().to_string();
        assert!(e.contains("99 executions under any setting are too few"), "{e}");
        let all = &pooled[&Key(vec![])];
        let shares = outcomes("x", all, 2).unwrap();
        assert!((shares[0] - 50.0 / 99.0).abs() < 1e-12 && shares.len() == 2);
        assert!(outcomes("x", all, 1).unwrap_err().to_string().contains("1 is no outcome"));
    }
}
