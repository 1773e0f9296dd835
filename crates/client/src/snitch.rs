//! Chooses the replica with the best recent median (Cassandra's dynamic snitch, `DynamicEndpointSnitch`; MittOS §2 and §7.8.3).
//!
//! Each client keeps a sample of a hundred response times of each node. Newer ones are likelier to be in it, by a factor of e
//! every 1.33 s. Every 100 ms it takes their medians anew. It keeps its usual order unless some place has a node that is more
//! than a tenth slower than the node that belongs there by median. Every ten minutes it discards all samples.

use crate::course::Course;
use crate::learn::Decaying;
use crate::policy::{Heard, Orders, Preference, ReplicaPolicy, Reply};
use plimsoll_base::{Span, Time};

/// Cassandra's figures by default.
#[derive(Clone, Copy, Debug)]
pub struct SnitchConfig {
    /// Interval at which medians are taken.
    pub update: Span,
    /// Interval at which all samples are discarded.
    pub reset: Span,
    /// By how many percent a node must be slower than the best for the order to change.
    pub badness_percent: u64,
    /// Response times kept of each node.
    pub samples: usize,
    /// The order without measurements.
    pub order: Preference,
}

impl Default for SnitchConfig {
    fn default() -> SnitchConfig {
        SnitchConfig {
            update: Span::from_millis(100),
            reset: Span::from_secs(600),
            badness_percent: 10,
            samples: 100,
            order: Preference::default(),
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Snitch {
    config: SnitchConfig,
    /// By node.
    samples: Vec<Decaying>,
    scores: Vec<u64>,
    updated_at: Option<Time>,
    reset_at: Time,
}

impl Snitch {
    /// One that has heard nothing.
    pub fn new(config: SnitchConfig) -> Snitch {
        Snitch { config, samples: Vec::new(), scores: Vec::new(), updated_at: None, reset_at: Time::ZERO }
    }

    fn update(&mut self, now: Time) {
        if now.since(self.reset_at) >= self.config.reset {
            self.samples.iter_mut().for_each(Decaying::clear);
            self.reset_at = now;
        }
        if self.updated_at.is_none_or(|t| now.since(t) >= self.config.update) {
            self.scores = self.samples.iter().map(|s| s.median().unwrap_or(0)).collect();
            self.updated_at = Some(now);
        }
    }

    /// The median as last taken; nodes that nothing is known of come first.
    fn score(&self, node: u16) -> u64 {
        self.scores.get(usize::from(node)).copied().unwrap_or(0)
    }

    fn ranked(&self, course: &Course) -> Vec<u16> {
        let get = course.get();
        let preferred: Vec<u16> = (0..get.replicas.len()).map(|i| self.config.order.nth(get, i)).collect();
        let mut sorted = preferred.clone();
        sorted.sort_by_key(|&n| self.score(n));
        let worse = |(p, s): (&u16, &u16)| {
            u128::from(self.score(*p)) * 100
                > u128::from(self.score(*s)) * u128::from(100 + self.config.badness_percent)
        };
        if preferred.iter().zip(&sorted).any(worse) { sorted } else { preferred }
    }
}

impl ReplicaPolicy for Snitch {
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders) {
        self.update(now);
        out.send(self.ranked(course)[0], None);
    }

    fn refused(&mut self, _: Time, course: &Course, _: u32, out: &mut Orders) {
        if let Some(node) = self.ranked(course).into_iter().find(|&n| !course.was_tried(n)) {
            out.send(node, None);
        }
    }

    fn heard(&mut self, now: Time, heard: &Heard) {
        if heard.answer.reply != Reply::Done {
            return;
        }
        let node = usize::from(heard.node);
        if self.samples.len() <= node {
            self.samples.resize(node + 1, Decaying::new(self.config.samples));
        }
        self.samples[node].saw(now, now.since(heard.sent_at).as_nanos());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{answer, begun, ms, sends};

    fn policy() -> Snitch {
        Snitch::new(SnitchConfig { order: Preference::Placement, ..SnitchConfig::default() })
    }

    /// `node` answered at `at` after `took` ms.
    fn hear(p: &mut Snitch, node: u16, at: u64, took: u64) {
        p.heard(ms(at), &Heard { node, sent_at: ms(at - took), answer: answer(Reply::Done) });
    }

    fn first(p: &mut Snitch, at: u64) -> u16 {
        sends(&begun(p, ms(at)).1)[0].0
    }

    #[test]
    fn it_follows_the_medians_but_not_for_a_tenth_and_not_at_once() {
        let mut p = policy();
        assert_eq!(first(&mut p, 0), 0);
        for (node, took) in [(0, 105), (1, 100), (2, 100)] {
            (0..9).for_each(|i| hear(&mut p, node, 1000 + i, took));
        }
        assert_eq!(first(&mut p, 1100), 0, "5 % is no reason");
        (0..30).for_each(|i| hear(&mut p, 0, 1110 + i, 200));
        assert_eq!(first(&mut p, 1150), 0, "medians are 50 ms old");
        assert_ne!(first(&mut p, 1200), 0);
        assert_eq!(first(&mut p, 1200 + 600_000), 0, "all is forgotten");
    }

    #[test]
    fn a_node_that_nothing_is_known_of_goes_first() {
        let mut p = policy();
        hear(&mut p, 0, 100, 10);
        hear(&mut p, 1, 100, 10);
        assert_eq!(first(&mut p, 300), 2);
    }

    #[test]
    fn an_error_asks_the_next_best() {
        let mut p = policy();
        for (node, took) in [(0, 30), (1, 20), (2, 10)] {
            hear(&mut p, node, 100, took);
        }
        let (mut c, step) = begun(&mut p, ms(300));
        assert_eq!(sends(&step)[0].0, 2);
        assert_eq!(sends(&c.answered(ms(301), 0, answer(Reply::Failed), &mut p))[0].0, 1);
    }
}
