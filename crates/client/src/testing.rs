//! Helpers that the policies' tests share.

use crate::course::{Course, Step};
use crate::policy::{Answer, Get, ReplicaPolicy, Reply};
use plimsoll_base::{Span, Time};

/// A get of an object on nodes 0 to `replicas` - 1, asked for at time zero.
pub fn get(number: u64, replicas: u16) -> Get {
    let replicas = (0..replicas).collect();
    Get {
        number,
        arrived_at: Time::ZERO,
        until: Time::NEVER,
        client: 0,
        replicas,
        offset: 0,
        len: 4096,
        draw: 0,
        limit: None,
        refusable: false,
    }
}

/// Returns the time `n` milliseconds after the start.
pub fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_millis(n)
}

/// `reply` of a node that has nothing else to do.
pub fn answer(reply: Reply) -> Answer {
    Answer { reply, in_flight: 0, service: Span::from_millis(5) }
}

/// Begins a get of three replicas and gives what was ordered first.
pub fn begun<P: ReplicaPolicy>(policy: &mut P, at: Time) -> (Course, Step) {
    let mut c = Course::new(Get { arrived_at: at, ..get(0, 3) });
    let step = c.begin(at, policy);
    (c, step)
}

/// The nodes and deadlines of what is to be sent.
pub fn sends(step: &Step) -> Vec<(u16, Option<Span>)> {
    step.orders.sends.iter().map(|s| (s.node, s.deadline)).collect()
}
