//! Asks replicas for their load first (Wydrowski et al., "Load is not what you should balance: Prequal", NSDI 2024).
//!
//! A probe's answer has the requests in flight and an estimate of latency. A node is hot if it has more in flight than a
//! quantile (0.84) of recent probes' answers. Of the cold nodes the one with the least latency is asked. If all are hot, the
//! one with the fewest requests in flight is asked. This is Prequal's synchronous mode: each get probes its replicas and goes
//! on when all but one have answered, a round trip later. Its asynchronous mode keeps a pool of probed nodes, any of which may
//! serve the next query. Where only three nodes have the data, few of the pool are among them.

use crate::base::elsewhere;
use crate::course::Course;
use crate::learn::Recent;
use crate::policy::{Orders, Preference, Probe, ReplicaPolicy};
use plimsoll_base::{Span, Time};

/// Probes of which the quantile is taken.
const PROBES_KEPT: usize = 128;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Prequal {
    /// Longest wait for probes.
    wait: Span,
    /// The quantile above which a node is hot, in thousandths.
    hot_permille: usize,
    order: Preference,
    in_flight: Recent,
}

impl Prequal {
    /// One that goes on without the probes that took longer than `wait`.
    pub fn new(wait: Span, order: Preference) -> Prequal {
        Prequal { wait, hot_permille: 840, order, in_flight: Recent::new(PROBES_KEPT) }
    }

    fn choose(&self, probes: &[Probe]) -> Option<u16> {
        let hot = self.in_flight.quantile(self.hot_permille, Time::ZERO).unwrap_or(0);
        let is_hot = |p: &&Probe| u64::from(p.in_flight) > hot;
        let cold = probes.iter().filter(|p| !is_hot(p)).min_by_key(|p| p.latency);
        cold.or_else(|| probes.iter().min_by_key(|p| p.in_flight)).map(|p| p.node)
    }

    fn go(&self, course: &Course, out: &mut Orders) {
        if course.tries().is_empty() {
            let node = self.choose(course.probes()).unwrap_or_else(|| self.order.nth(course.get(), 0));
            out.send(node, None);
        }
    }
}

impl ReplicaPolicy for Prequal {
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders) {
        let get = course.get();
        if get.replicas.len() == 1 {
            out.send(get.replicas[0], None);
            return;
        }
        (0..get.replicas.len()).for_each(|i| out.probe(self.order.nth(get, i)));
        out.wake_at(now + self.wait);
    }

    fn probed(&mut self, now: Time, course: &Course, out: &mut Orders) {
        let last = course.probes().last().expect("one has just come");
        self.in_flight.saw(now, u64::from(last.in_flight));
        if course.probes().len() + 1 >= course.get().replicas.len() {
            self.go(course, out);
        }
    }

    fn timer(&mut self, _: Time, course: &Course, out: &mut Orders) {
        self.go(course, out);
    }

    fn refused(&mut self, _: Time, course: &Course, _: u32, out: &mut Orders) {
        elsewhere(self.order, course, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{begun, ms, sends};

    fn probe(node: u16, in_flight: u32, latency_ms: u64) -> Probe {
        Probe { node, in_flight, latency: Span::from_millis(latency_ms) }
    }

    /// One for which 84 % of all probes said 3 or less.
    fn policy() -> Prequal {
        let mut p = Prequal::new(Span::from_millis(3), Preference::Placement);
        (0..100).for_each(|i| p.in_flight.saw(ms(0), if i < 90 { 3 } else { 10 }));
        p
    }

    #[test]
    fn the_least_latency_of_the_cold_or_the_least_in_flight_of_the_hot() {
        let p = policy();
        assert_eq!(p.choose(&[probe(0, 9, 1), probe(1, 3, 20), probe(2, 0, 30)]), Some(1));
        assert_eq!(p.choose(&[probe(0, 9, 1), probe(1, 8, 20), probe(2, 7, 30)]), Some(2));
        assert_eq!(p.choose(&[]), None);
    }

    #[test]
    fn two_of_three_probes_are_enough() {
        let mut p = policy();
        let (mut c, step) = begun(&mut p, ms(0));
        assert_eq!((step.orders.probes.as_slice(), step.orders.sends.len()), ([0, 1, 2].as_slice(), 0));
        assert!(c.probed(ms(1), probe(2, 2, 9), &mut p).orders.sends.is_empty());
        assert_eq!(sends(&c.probed(ms(1), probe(0, 2, 8), &mut p)), [(0, None)]);
        assert!(c.probed(ms(2), probe(1, 0, 1), &mut p).orders.sends.is_empty(), "too late");
    }

    #[test]
    fn without_probes_it_goes_on_after_a_while() {
        let mut p = policy();
        let (mut c, _) = begun(&mut p, ms(0));
        assert_eq!(sends(&c.timer(ms(3), &mut p)), [(0, None)]);
        let (mut c, _) = begun(&mut p, ms(10));
        let _ = c.probed(ms(11), probe(2, 0, 9), &mut p);
        assert_eq!(sends(&c.timer(ms(13), &mut p)), [(2, None)]);
    }
}
