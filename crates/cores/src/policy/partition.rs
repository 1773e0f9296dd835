//! Common part of policies that give cores to queues: the queue that is served next with the present allocation.

use crate::policy::fair::Fair;
use crate::policy::wait_behind;
use crate::queue::{Queue, Queues};
use plimsoll_base::{Span, Time};

/// While every core is somebody's, one is lent this often for one request of those without: or an overload would keep them for ever.
pub const LEND_EVERY: Span = Span::from_secs(1);

/// Order of service: queues with cores of their own on these, the others by weight on the rest.
#[derive(Default)]
pub struct Partition {
    fair: Fair,
    /// Time at which a core was last lent.
    lent_at: Time,
}

impl Partition {
    /// Returns the queue whose request is taken up next.
    pub fn next(&mut self, now: Time, queues: &Queues) -> Option<usize> {
        let lent = self.next_to_lend_to(now, queues, |_| u64::MAX);
        lent.or_else(|| critical_next(queues)).or_else(|| self.next_of_rest(queues, |_| true, |_| u64::MAX))
    }

    /// Returns the queue that gets a core for one request although each core has an owner: a queue without cores whose oldest
    /// request has waited for [`LEND_EVERY`]. `piece` is the most bytes of a queue's request that are served at once.
    pub fn next_to_lend_to(&mut self, now: Time, queues: &Queues, piece: impl Fn(usize) -> u64) -> Option<usize> {
        if now < self.lent_at + LEND_EVERY || queues.unowned() > 0 {
            return None;
        }
        let has_waited = |q: &Queue| q.cores() == 0 && q.oldest().is_some_and(|since| now.since(since) >= LEND_EVERY);
        let at = self.fair.pick(queues, |at| has_waited(queues.get(at)))?;
        self.fair.charge(at, queues, queues.get(at).weight(), piece(at));
        self.lent_at = now;
        Some(at)
    }

    /// The same of those that have no core of their own, as far as they may.
    pub fn next_of_rest(
        &mut self,
        queues: &Queues,
        may: impl Fn(&Queue) -> bool,
        piece: impl Fn(usize) -> u64,
    ) -> Option<usize> {
        let at = rest_next(queues, &self.fair, may)?;
        self.fair.charge(at, queues, queues.get(at).weight(), piece(at));
        Some(at)
    }
}

/// Returns the wait of a request that would arrive at queue `at`, with the present allocation.
pub fn wait(at: usize, queues: &Queues) -> Span {
    match queues.get(at).cores() {
        0 => rest_wait(queues, at, false),
        cores => own_wait(queues, at, cores),
    }
}

/// True if a core of the queue itself could take one more request.
pub fn has_room(queues: &Queues, at: usize) -> bool {
    let q = queues.get(at);
    q.in_service < q.cores() * queues.depth
}

/// Of the latency-critical queues in which something waits and that have room on a core of their own: the one whose oldest
/// request is due first.
pub fn critical_next(queues: &Queues) -> Option<usize> {
    critical_due(queues, |at| has_room(queues, at))
}

/// The same of those that `may`.
pub fn critical_due(queues: &Queues, may: impl Fn(usize) -> bool) -> Option<usize> {
    let due = |at: usize| {
        let q = queues.get(at);
        let bound = q.objectives().iter().map(|o| o.bound).min().unwrap_or(Span::MAX);
        q.oldest().map(|t| (t + bound, at))
    };
    queues.critical().filter(|&at| may(at)).filter_map(due).min().map(|(_, at)| at)
}

/// The best-effort queue whose turn it is on the cores that nobody owns.
///
/// A latency-critical queue that has no core (there are more such queues than cores) is served among these. When no core is
/// unowned, one whose owner has nothing at all to do is lent for one request: a queue's last core is never yielded, and
/// without that best effort would never end.
fn rest_next(queues: &Queues, fair: &Fair, may: impl Fn(&Queue) -> bool) -> Option<usize> {
    let is_candidate = |at: usize| queues.get(at).cores() == 0 && may(queues.get(at));
    let in_service: u32 = queues.all().iter().filter(|q| q.cores() == 0).map(|q| q.in_service).sum();
    let cores = match queues.unowned() {
        0 => u32::from(an_owner_is_idle(queues)),
        n => n,
    };
    if in_service >= cores * queues.depth {
        return None;
    }
    fair.pick(queues, is_candidate)
}

fn an_owner_is_idle(queues: &Queues) -> bool {
    queues.all().iter().any(|q| q.cores() > 0 && q.in_service == 0 && q.waiting().is_empty())
}

/// Returns the wait of a request that would arrive at a queue without cores: its part of the unowned cores serves the requests
/// in front. Where each core has an owner, one request is served every [`LEND_EVERY`], unless some cores are given back soon
/// (`soon`).
pub fn rest_wait(queues: &Queues, at: usize, soon: bool) -> Span {
    let q = queues.get(at);
    let is_lent = queues.unowned() == 0 && !soon && !an_owner_is_idle(queues);
    let slots = queues.unowned().max(1) * queues.depth;
    let others = || queues.all().iter().filter(|o| o.cores() == 0);
    let in_service: u32 = others().map(|o| o.in_service).sum();
    if !is_lent && q.waiting().is_empty() && in_service < slots && queues.has_free_slot() {
        return Span::ZERO;
    }
    let all: u64 = others().filter(|o| !o.waiting().is_empty()).map(|o| o.weight()).sum();
    let weight = q.weight();
    let all = if q.waiting().is_empty() { all + weight } else { all };
    if is_lent {
        return (LEND_EVERY * (q.waiting().len() as u64 + 1)).scale(all.max(weight), weight);
    }
    wait_behind(q.waiting().len() as u64, slots, q.service.mean()).scale(all.max(weight), weight)
}

/// Returns the wait of a request that would arrive at a queue with cores of its own, if it had `cores`.
pub fn own_wait(queues: &Queues, at: usize, cores: u32) -> Span {
    let q = queues.get(at);
    let slots = cores * queues.depth;
    if q.waiting().is_empty() && q.in_service < slots {
        if queues.has_free_slot() {
            return Span::ZERO;
        }
        // A core is its own as soon as a best-effort request on it has ended.
        let slowest =
            queues.all().iter().filter(|o| o.cores() == 0 && o.in_service > 0).map(|o| o.service.mean()).max();
        return slowest.unwrap_or(Span::ZERO) / 2;
    }
    wait_behind(q.waiting().len() as u64, slots, q.service.mean())
}
