//! Policies that choose the queue that a free core serves next. QWin and all that it is compared with have one interface; each
//! is a file.

pub mod cake;
pub mod clairvoyant;
pub mod fair;
pub mod fixed;
pub mod mclock;
pub mod partition;
mod passing;
pub mod qwin;
pub mod share;
pub mod shenango;

use crate::bound::WriteBound;
use crate::config::PolicyConfig;
use crate::queue::Queues;
use crate::window::Windows;
use plimsoll_base::{IoHead, Span, Time};

/// A policy: a pure state machine that receives each event, in order.
pub trait Policy: Send {
    /// A short name for metrics.
    fn name(&self) -> &'static str;

    /// Queues were added, or their tenants changed.
    fn queues_changed(&mut self, now: Time, queues: &mut Queues) {
        let _ = (now, queues);
    }

    /// A request waits in queue `at`.
    fn arrived(&mut self, now: Time, at: usize, queues: &mut Queues) {
        let _ = (now, at, queues);
    }

    /// Returns the queue to serve next, when a core is free. Its request is taken at once. `None`: the free cores stay free.
    fn next(&mut self, now: Time, queues: &mut Queues) -> Option<usize>;

    /// A request of queue `at` has ended, `response` after its arrival.
    fn ended(&mut self, now: Time, at: usize, response: Span, queues: &mut Queues) {
        let _ = (now, at, response, queues);
    }

    /// A request that waited in queue `at`, with this number, was withdrawn.
    fn withdrawn(&mut self, now: Time, at: usize, serial: u64, queues: &mut Queues) {
        let _ = (now, at, serial, queues);
    }

    /// The time it asked for has come.
    fn wake(&mut self, now: Time, queues: &mut Queues) {
        let _ = (now, queues);
    }

    /// Returns the time at which it wants [`Policy::wake`]; [`Time::NEVER`] if never.
    fn wake_at(&self) -> Time {
        Time::NEVER
    }

    /// Returns the wait of a request that would arrive at queue `at` now. Constant time in the number of waiting requests.
    fn wait(&self, now: Time, at: usize, queues: &Queues) -> Span;

    /// Other thresholds of slack, and another number of windows between two looks, from the next look on. Nothing in policies
    /// that don't measure slack.
    fn set_slack(&mut self, low: Span, high: Span, poll_windows: u64) {
        let _ = (low, high, poll_windows);
    }

    /// A request of queue `at`, or a piece of one, is sent below as `head`. True if [`Policy::left`] is to tell of its end.
    fn sent(&mut self, now: Time, at: usize, head: &IoHead, queues: &Queues) -> bool {
        let _ = (now, at, head, queues);
        false
    }

    /// It has left there, `took` later.
    fn left(&mut self, now: Time, head: &IoHead, took: Span) {
        let _ = (now, head, took);
    }

    /// The pool will end: nothing is held back any more.
    fn hold_no_more(&mut self) {}

    /// The most bytes of the next request of queue `at` that go below at once; the rest follows as requests of its own.
    fn piece_bytes(&self, at: usize, queues: &Queues) -> u64 {
        let _ = (at, queues);
        u64::MAX
    }

    /// The bound on best effort's changes, if there is one.
    fn write_bound(&self) -> Option<&WriteBound> {
        None
    }

    /// The queue's windows, if it has any.
    fn windows(&self, at: usize) -> Option<&Windows> {
        let _ = at;
        None
    }
}

/// The policy of a configuration.
pub fn build(config: &PolicyConfig) -> Box<dyn Policy> {
    match config {
        PolicyConfig::Qwin(c) => Box::new(qwin::Qwin::new(*c)),
        PolicyConfig::ShareEverything => Box::new(share::Share::new(share::Order::Arrival)),
        PolicyConfig::PartialSharing => Box::new(share::Share::new(share::Order::Turns)),
        PolicyConfig::TwoPriorities => Box::new(share::Share::new(share::Order::CriticalFirst)),
        PolicyConfig::Cake { interval } => Box::new(cake::Cake::new(*interval)),
        PolicyConfig::Shenango { interval } => Box::new(shenango::Shenango::new(*interval)),
        PolicyConfig::Static => Box::new(fixed::Fixed::default()),
        PolicyConfig::Mclock => Box::new(mclock::Mclock::default()),
        PolicyConfig::Clairvoyant { service } => Box::new(clairvoyant::Clairvoyant::new(service.clone())),
    }
}

/// Returns the wait of a request behind `in_front` others of `mean` on `slots` that are all busy.
pub(crate) fn wait_behind(in_front: u64, slots: u32, mean: Span) -> Span {
    mean.scale(in_front + 1, u64::from(slots.max(1)))
}
