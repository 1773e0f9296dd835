//! Inputs of a policy, and the orders that it may give.

use crate::course::Course;
use plimsoll_base::{Span, Time};

/// A read of one object that has several replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Get {
    /// Counts all gets of the run from 0.
    pub number: u64,
    /// Time of the user's request.
    pub arrived_at: Time,
    /// The caller's own limit: if there is no answer by then, the get has failed. [`Time::NEVER`]: none.
    pub until: Time,
    /// Client.
    pub client: u16,
    /// The nodes that have it, in the order of the data's placement.
    pub replicas: Box<[u16]>,
    /// Offset on each of them.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// For policies that choose at random: the same under all of them.
    pub draw: u64,
    /// The caller's own deadline, delay or time-out for each try, in place of the policy's.
    pub limit: Option<Span>,
    /// The caller prefers a refusal to a wait: policies with deadlines ask no replica without one, and give up when all have refused.
    pub refusable: bool,
}

/// Reply to one try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The bytes.
    Done,
    /// Refused, at once or later: it would have waited so long.
    Busy(Span),
    /// An error, or the node had no room.
    Failed,
}

/// A reply and what the node says of itself with it (C3's feedback).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Reply.
    pub reply: Reply,
    /// Requests that were in the node when it answered.
    pub in_flight: u32,
    /// Time that the node's device had the request; zero if it never had it.
    pub service: Span,
}

/// An answer as the policy that sent the try hears of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard {
    /// Node that answered.
    pub node: u16,
    /// Time at which the try was sent.
    pub sent_at: Time,
    /// Answer.
    pub answer: Answer,
}

/// Load that a node reports when it is asked (Prequal's probes).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Node.
    pub node: u16,
    /// Requests in it.
    pub in_flight: u32,
    /// Median response time of recent requests that arrived at about the same number in flight.
    pub latency: Span,
}

/// A try to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Send {
    /// To whom.
    pub node: u16,
    /// To be refused if it would take longer than this from its arrival there.
    pub deadline: Option<Span>,
    /// If true, the node reports the start of the request's execution: a cancel after that has no effect.
    pub tells: bool,
}

/// Orders of a policy for a get.
#[derive(Default, Debug)]
pub struct Orders {
    /// Tries to be sent, in order.
    pub sends: Vec<Send>,
    /// Tries to be cancelled, by number; also those abandoned.
    pub cancels: Vec<u32>,
    /// Nodes to be probed.
    pub probes: Vec<u16>,
    /// Times at which [`ReplicaPolicy::timer`] is to be called.
    pub timers: Vec<Time>,
    pub(crate) abandons: Vec<u32>,
    pub(crate) gives_up: bool,
    pub(crate) first: u32,
}

impl Orders {
    /// Sends the get to `node`, to be refused there if it would take longer than `deadline` from its arrival there.
    /// Gives the try's number, counted from 0 for each get.
    pub fn send(&mut self, node: u16, deadline: Option<Span>) -> u32 {
        self.push(Send { node, deadline, tells: false })
    }

    /// Sends the get to `node`, which is to tell when it begins ([`ReplicaPolicy::began`]).
    pub fn send_telling(&mut self, node: u16) -> u32 {
        self.push(Send { node, deadline: None, tells: true })
    }

    fn push(&mut self, send: Send) -> u32 {
        self.sends.push(send);
        self.first + self.sends.len() as u32 - 1
    }

    /// Sends a cancel after a try; what a device has begun, it finishes, and its data are taken.
    pub fn cancel(&mut self, a_try: u32) {
        self.cancels.push(a_try);
    }

    /// Cancels a try, and whatever it still brings isn't taken.
    pub fn abandon(&mut self, a_try: u32) {
        self.cancels.push(a_try);
        self.abandons.push(a_try);
    }

    /// Asks `node` how it is ([`ReplicaPolicy::probed`]).
    pub fn probe(&mut self, node: u16) {
        self.probes.push(node);
    }

    /// Asks for [`ReplicaPolicy::timer`] at `at`, if the get hasn't ended by then.
    pub fn wake_at(&mut self, at: Time) {
        self.timers.push(at);
    }

    /// Ends the get with an error, whatever is under way.
    pub fn give_up(&mut self) {
        self.gives_up = true;
    }
}

/// Chooses among replicas, for one client. It reads no clock and draws nothing.
///
/// The driver tells of every try's answer once, or, where a message may be lost, not at all; a policy that must
/// survive losses asks for timers.
pub trait ReplicaPolicy {
    /// A get begins: orders at least one try or one probe.
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders);

    /// A try of a get that hasn't ended was refused or failed. If nothing is under way then and nothing is ordered, the
    /// get has failed.
    fn refused(&mut self, now: Time, course: &Course, a_try: u32, out: &mut Orders);

    /// A node has begun to execute a try that it was to tell of, and the get hasn't ended.
    fn began(&mut self, now: Time, course: &Course, a_try: u32, out: &mut Orders) {
        let _ = (now, course, a_try, out);
    }

    /// A probe of this get was answered (the last of [`Course::probes`]), and it hasn't ended.
    fn probed(&mut self, now: Time, course: &Course, out: &mut Orders) {
        let _ = (now, course, out);
    }

    /// A time asked for has come, and the get hasn't ended.
    fn timer(&mut self, now: Time, course: &Course, out: &mut Orders) {
        let _ = (now, course, out);
    }

    /// Try `a_try` was the first to bring the bytes; `None`: the get has failed. Only cancels can be ordered.
    fn ended(&mut self, now: Time, course: &Course, a_try: Option<u32>, out: &mut Orders) {
        let _ = (now, course, a_try, out);
    }

    /// Hears every answer to every try, before its consequences; also answers that come after their get's end.
    fn heard(&mut self, now: Time, heard: &Heard) {
        let _ = (now, heard);
    }
}

impl<P: ReplicaPolicy + ?Sized> ReplicaPolicy for Box<P> {
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders) {
        (**self).begin(now, course, out);
    }
    fn refused(&mut self, now: Time, course: &Course, a_try: u32, out: &mut Orders) {
        (**self).refused(now, course, a_try, out);
    }
    fn began(&mut self, now: Time, course: &Course, a_try: u32, out: &mut Orders) {
        (**self).began(now, course, a_try, out);
    }
    fn probed(&mut self, now: Time, course: &Course, out: &mut Orders) {
        (**self).probed(now, course, out);
    }
    fn timer(&mut self, now: Time, course: &Course, out: &mut Orders) {
        (**self).timer(now, course, out);
    }
    fn ended(&mut self, now: Time, course: &Course, a_try: Option<u32>, out: &mut Orders) {
        (**self).ended(now, course, a_try, out);
    }
    fn heard(&mut self, now: Time, heard: &Heard) {
        (**self).heard(now, heard);
    }
}

/// In which order replicas are taken where nothing else is known of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Preference {
    /// As the data are placed: the first replica of every object first.
    Placement,
    /// At random by the get's draw: where to begin, and in which direction. With three replicas that's every order.
    #[default]
    Drawn,
}

impl Preference {
    /// The replica at place `i` of the order, 0 first.
    ///
    /// # Panics
    /// If there are no more than `i` replicas.
    pub fn nth(self, get: &Get, i: usize) -> u16 {
        let n = get.replicas.len();
        assert!(i < n, "replica {i} of {n}");
        let at = match self {
            Preference::Placement => i,
            Preference::Drawn => {
                let first = (get.draw % n as u64) as usize;
                if get.draw >> 63 == 0 { (first + i) % n } else { (first + n - i) % n }
            }
        };
        get.replicas[at]
    }

    /// The first replica that no try was sent to.
    pub fn next_untried(self, course: &Course) -> Option<u16> {
        let get = course.get();
        (0..get.replicas.len()).map(|i| self.nth(get, i)).find(|&node| !course.was_tried(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::get;
    use std::collections::BTreeSet;

    #[test]
    fn every_order_of_three_is_drawn_and_none_has_a_node_twice() {
        let mut orders = BTreeSet::new();
        for draw in (0..12).map(|i| i | i << 62) {
            let g = Get { draw, ..get(0, 3) };
            let order: Vec<u16> = (0..3).map(|i| Preference::Drawn.nth(&g, i)).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2]);
            orders.insert(order);
        }
        assert_eq!(orders.len(), 6);
        assert_eq!((0..3).map(|i| Preference::Placement.nth(&get(0, 3), i)).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
