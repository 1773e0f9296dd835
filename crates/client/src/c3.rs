//! Chooses the replica whose queue and service time promise the soonest answer (Suresh et al., "C3", NSDI 2015; MittOS §7.8.3).
//!
//! A node's answers carry the length of its queue and its service time. The client keeps averages of both and of the response
//! time. It asks the node with the least `response - service + q^3 * service`, `q = 1 + own requests outstanding there *
//! clients + average queue`. The cube keeps all clients from going to the same short queue. One read in ten goes to all other
//! replicas, too, as in C3's published simulator (and by Cassandra's read repair). So the averages of a node that no client
//! asks don't grow old. The first answer is taken, which in the simulator is the chosen node's. C3's other half limits how fast
//! a client sends to a node. It is left out: it acts where the clients themselves are the load.

use crate::course::Course;
use crate::learn::Average;
use crate::policy::{Heard, Orders, Preference, ReplicaPolicy, Reply};
use plimsoll_base::Time;

/// Reads in a thousand that go to all replicas.
pub const SHADOW_PERMILLE: u64 = 100;

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    outstanding: u32,
    response_ns: Average,
    service_ns: Average,
    /// Thousandths of a request.
    queue: Average,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct C3 {
    /// Number of clients: each of them may have the same number of requests outstanding as this one.
    clients: u64,
    order: Preference,
    shadow_permille: u64,
    /// By node.
    nodes: Vec<Known>,
}

impl C3 {
    /// One of `clients` clients, that has heard nothing; of a thousand reads, `shadow_permille` go to all replicas.
    pub fn new(clients: u16, order: Preference, shadow_permille: u64) -> C3 {
        C3 { clients: u64::from(clients), order, shadow_permille, nodes: Vec::new() }
    }

    fn node(&mut self, node: u16) -> &mut Known {
        let at = usize::from(node);
        if self.nodes.len() <= at {
            self.nodes.resize(at + 1, Known::default());
        }
        &mut self.nodes[at]
    }

    /// In thousandths of nanoseconds; nodes that nothing is known of have the least.
    fn score(&self, node: u16) -> i128 {
        let Some(k) = self.nodes.get(usize::from(node)) else { return i128::MIN };
        let outstanding = i128::from(k.outstanding);
        let (Some(response), Some(service), Some(queue)) =
            (k.response_ns.value(), k.service_ns.value(), k.queue.value())
        else {
            return i128::MIN + outstanding; // asked, but not heard of yet
        };
        let q = 1000 * (1 + u128::from(k.outstanding) * u128::from(self.clients)) + u128::from(queue);
        // Beyond a million requests longer queues are alike, and the cube stays within 128 bits.
        let q = q.min(1_000_000_000);
        let cube = q.pow(3) * u128::from(service.min(1 << 36)) / 1_000_000;
        (i128::from(response) - i128::from(service)) * 1000 + cube as i128
    }

    fn send(&mut self, course: &Course, out: &mut Orders) {
        let get = course.get();
        let untried = (0..get.replicas.len()).map(|i| self.order.nth(get, i)).filter(|&n| !course.was_tried(n));
        if let Some(node) = untried.min_by_key(|&n| self.score(n)) {
            self.node(node).outstanding += 1;
            out.send(node, None);
        }
    }
}

impl ReplicaPolicy for C3 {
    fn begin(&mut self, _: Time, course: &Course, out: &mut Orders) {
        self.send(course, out);
        let get = course.get();
        // Other bits of the draw than those that order the replicas.
        if (get.draw >> 32) % 1000 < self.shadow_permille {
            let chosen = out.sends.last().map(|s| s.node);
            for &node in get.replicas.iter().filter(|&&n| Some(n) != chosen) {
                self.node(node).outstanding += 1;
                out.send(node, None);
            }
        }
    }

    fn refused(&mut self, _: Time, course: &Course, _: u32, out: &mut Orders) {
        self.send(course, out);
    }

    fn heard(&mut self, now: Time, heard: &Heard) {
        let k = self.node(heard.node);
        k.outstanding = k.outstanding.saturating_sub(1);
        k.queue.saw(u64::from(heard.answer.in_flight) * 1000);
        if heard.answer.reply == Reply::Done {
            k.response_ns.saw(now.since(heard.sent_at).as_nanos());
            k.service_ns.saw(heard.answer.service.as_nanos());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Answer;
    use crate::testing::{begun, ms, sends};
    use plimsoll_base::Span;

    fn hear(p: &mut C3, node: u16, took: u64, service: u64, in_flight: u32) {
        let answer = Answer { reply: Reply::Done, in_flight, service: Span::from_millis(service) };
        p.heard(ms(1000), &Heard { node, sent_at: ms(1000 - took), answer });
    }

    #[test]
    fn the_score_is_the_papers() {
        let mut p = C3::new(20, Preference::Placement, 0);
        hear(&mut p, 0, 30, 5, 2);
        p.node(0).outstanding = 1;
        // Naively, in floats and milliseconds.
        let q: f64 = 1.0 + 1.0 * 20.0 + 2.0;
        let naive = 30.0 - 5.0 + q.powi(3) * 5.0;
        let ours = p.score(0) as f64 / 1e9;
        assert!((ours / naive - 1.0).abs() < 1e-6, "{ours} against {naive}");
    }

    #[test]
    fn short_queues_and_unknown_nodes_are_asked() {
        let mut p = C3::new(1, Preference::Placement, 0);
        hear(&mut p, 0, 10, 5, 1);
        hear(&mut p, 1, 10, 5, 4);
        let (_, step) = begun(&mut p, ms(2000));
        assert_eq!(sends(&step)[0].0, 2, "unknown");
        hear(&mut p, 2, 10, 5, 3);
        let (_, step) = begun(&mut p, ms(2000));
        assert_eq!(sends(&step)[0].0, 0);
        // Now one is outstanding at 0: 1 + 1 + 1 = 3 there, 5 and 4 at the others; then 4, and then 5.
        assert_eq!(sends(&begun(&mut p, ms(2000)).1)[0].0, 0);
        assert_eq!(p.node(0).outstanding, 2);
    }

    #[test]
    fn outstanding_requests_come_down_whatever_is_answered() {
        let mut p = C3::new(1, Preference::Placement, 0);
        let (mut c, _) = begun(&mut p, ms(0));
        let busy = Answer { reply: Reply::Busy(Span::from_millis(9)), in_flight: 7, service: Span::ZERO };
        let _ = c.answered(ms(1), 0, busy, &mut p);
        assert_eq!((p.node(0).outstanding, p.node(1).outstanding), (0, 1));
    }
    #[test]
    fn a_share_of_the_reads_asks_everybody() {
        let mut p = C3::new(1, Preference::Placement, 1000);
        let (_, step) = begun(&mut p, ms(0));
        let mut nodes: Vec<u16> = sends(&step).iter().map(|s| s.0).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 2]);
        assert!((0..3).all(|n| p.node(n).outstanding == 1));
    }
}
