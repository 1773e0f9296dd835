//! Composition by drawing requests (OpTune §5.2.4).

use super::Composer;
use crate::cdf::Cdf;
use crate::graph::{Kind, NodeId};
use crate::space::Setting;
use plimsoll_base::Rng;

/// Default number of draws for one distribution: the 99.9th percentile then has 50 values beyond it.
pub const DRAWS_DEFAULT: usize = 50_000;

/// One request that is being drawn.
struct Draw<'b> {
    composer: &'b Composer<'b>,
    setting: &'b Setting,
    rng: &'b mut Rng,
    /// This request's ranks, for each correlated group.
    joint: Vec<&'b [f64]>,
}

impl Composer<'_> {
    /// The distribution of `draws` requests under `setting`, each composed of recorded values drawn at random.
    /// Components of a correlated group take the ranks that one recorded request had (a component that is run several
    /// times in a request takes the same rank each time).
    pub fn sampled(&self, setting: &Setting, draws: usize, rng: &mut Rng) -> Cdf {
        assert!(draws > 0, "no draws");
        let one = |rng: &mut Rng| {
            let joint = self.joint.iter().map(|j| j[rng.below(j.len() as u64) as usize].as_slice()).collect();
            Draw { composer: self, setting, rng, joint }.time(self.graph.root())
        };
        let times: Vec<f64> = (0..draws).map(|_| one(rng)).collect();
        Cdf::of_samples(&times).expect("sums of recorded times")
    }
}

impl Draw<'_> {
    fn time(&mut self, id: NodeId) -> f64 {
        let graph = self.composer.graph;
        match &graph.nodes()[id].kind {
            Kind::Component => {
                let rank = self.rank(id);
                self.composer.times(id, self.setting).quantile(rank)
            }
            Kind::Sequence(parts) => parts.iter().map(|&p| self.time(p)).sum(),
            Kind::Condition(parts, w) => {
                let branch = self.outcome(self.composer.weights(id, w, self.setting));
                self.time(parts[branch])
            }
            Kind::Parallel(parts, w) => {
                let copies = self.outcome(self.composer.weights(id, w, self.setting));
                let all = (0..copies).flat_map(|_| parts);
                all.fold(0.0, |longest, &p| self.time(p).max(longest))
            }
            Kind::Loop(body, w) => {
                let iterations = self.outcome(self.composer.weights(id, w, self.setting));
                (0..iterations).map(|_| self.time(*body)).sum()
            }
        }
    }

    fn rank(&mut self, id: NodeId) -> f64 {
        for (group, ranks) in self.composer.graph.correlated().iter().zip(&self.joint) {
            if let Some(at) = group.iter().position(|&g| g == id) {
                return ranks[at];
            }
        }
        // Ranks are in (0, 1]: the smallest value has a share of its own.
        1.0 - self.rng.unit()
    }

    fn outcome(&mut self, weights: &[f64]) -> usize {
        let mut left = self.rng.unit();
        for (i, w) in weights.iter().enumerate() {
            left -= w;
            if left < 0.0 {
                return i;
            }
        }
        weights.iter().rposition(|&w| w > 0.0).expect("weights sum to 1")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{ServiceGraph, WrittenGraph};
    use crate::profile::{Observation, Profile};
    use crate::space::Space;

    fn graph(text: &str) -> ServiceGraph {
        ServiceGraph::new(&toml::from_str::<WrittenGraph>(text).unwrap()).unwrap()
    }

    #[test]
    fn correlation_is_respected_where_it_is_declared() {
        let mut rng = Rng::new(1, "correlated");
        let mut profile = Profile::new();
        let setting = Setting(vec![]);
        for request in 0..20_000 {
            let size = rng.exp1();
            for (node, value) in [("a", size), ("b", 2.0 * size)] {
                profile.add(node, &setting, Observation { request, value, weight: 1.0 });
            }
        }
        let space = Space::default();
        let text = "root = 'r'\ncomponents = ['a', 'b']\n[node]\nr = { sequence = ['a', 'b'] }\n";
        let p99 = |text: &str| {
            let g = graph(text);
            let c = Composer::new(&g, &space, &profile).unwrap();
            c.sampled(&setting, 40_000, &mut Rng::new(2, "draws")).quantile(0.99)
        };
        let (apart, together) = (p99(text), p99(&text.replace("[node]", "correlated = [['a', 'b']]\n[node]")));
        // Three times one exponential draw: 3 ln 100 = 13.8; the sum of independent ones has a p99 of 10.7.
        assert!((10.2..11.0).contains(&apart), "{apart}");
        assert!((13.2..14.4).contains(&together), "{together}");
    }

    #[test]
    fn a_correlated_group_needs_requests_recorded_in_whole() {
        let mut profile = Profile::new();
        for request in 0..200 {
            let one = |request| Observation { request, value: 1.0, weight: 1.0 };
            profile.add("a", &Setting(vec![]), one(request));
            profile.add("b", &Setting(vec![]), one(request + 1_000));
        }
        let g = graph(
            "root = 'r'\ncomponents = ['a', 'b']\ncorrelated = [['a', 'b']]\n[node]\nr = { sequence = ['a', 'b'] }\n",
        );
        let space = Space::default();
        let e = Composer::new(&g, &space, &profile).err().unwrap().to_string();
        assert!(e.contains("0 requests were recorded with all of its group"), "{e}");
    }
}
