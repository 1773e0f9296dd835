//! QWin: windows, demand, core policies, and the taking and yielding of cores (§3.3, Algorithms 1 and 2; QW-M5–M11).
//!
//! No central allocator exists. A core that is about to serve the first request of a window computes the window's demand. A
//! core that has served a request examines the waiting requests when the core policy says so (a *temp window*). A queue's cores
//! only grow within a window; surplus cores are yielded at the next one. A core that finds window and queue empty is yielded
//! unless it is the queue's last. Cores are taken from best effort only, as soon as the request on them has ended.
//!
//! A core examines its queue only when it begins or ends a request. If every core of a queue serves a long request (a flush, a read
//! behind an erase), no core would. So a timer, too, examines a queue in which nothing moves for three mean service times (ours).
//!
//! The paper leaves open what happens with too few cores (QW-A6). If the demands of all queues together exceed the cores, each
//! queue is entitled to a part. The part is one core, and a share by weight of the remaining cores, up to the queue's demand.
//! Shares that a queue doesn't need go to the others. A queue with more cores than its part yields the surplus at its next window.
//! So a part is reached within a window's length, in whatever order queues came. The forecast is in [`Policy::wait`]. It finds the
//! requests that can't be in time then, so that one with a deadline is answered Busy.

use crate::bound::{self, WriteBound};
use crate::config::{Deadlines, QwinConfig};
use crate::demand::{self, Bound};
use crate::policy::Policy;
use crate::policy::partition::{self, Partition};
use crate::queue::{Queue, Queues};
use crate::window::Windows;
use plimsoll_base::{IoHead, Span, Time};

/// See the module's documentation.
pub struct Qwin {
    config: QwinConfig,
    /// By queue; those of best-effort queues stay unused.
    runs: Vec<Run>,
    partition: Partition,
    /// Demands and weights of the queues while parts are worked out.
    parts: Vec<Part>,
    /// Time at which a queue is next examined although none of its cores moves.
    look_at: Time,
    /// The bound on best effort's changes, if there is one, and when it passes the next one that it holds now.
    bound: Option<WriteBound>,
    pass_at: Time,
}

#[derive(Default)]
struct Run {
    windows: Windows,
    /// Identity of the queue: numbers are used again.
    born: u64,
    /// Cores that it last asked for.
    demand: u32,
    /// Time at which one of its cores last took up or ended a request, or at which it was found to stand still.
    moved_at: Time,
}

/// Number of mean service times without movement after which a queue stands still.
const STILL: u64 = 3;
/// Before anything is measured, and so that looking isn't most of what is done.
const STILL_MIN: Span = Span::from_micros(20);

/// A queue's part of too few cores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Queue.
    pub at: usize,
    /// Cores it asks for, at least 1.
    pub demand: u64,
    /// Its weight, at least 1.
    pub weight: u64,
    /// Cores it's entitled to.
    pub part: u64,
}

/// Works out everyone's part of `cores`: one each, then by weight up to the demand. With more queues than cores the
/// heaviest get one, the first of equals.
pub fn entitle(parts: &mut [Part], cores: u64) {
    let mut left = cores;
    parts.iter_mut().for_each(|p| p.part = 0);
    while left > 0
        && let Some(p) = parts.iter_mut().filter(|p| p.part == 0).max_by_key(|p| (p.weight, std::cmp::Reverse(p.at)))
    {
        p.part = 1;
        left -= 1;
    }
    // Whoever asks for no more than its share gets all of it, which enlarges the others' shares: again, until nobody does.
    loop {
        let open = |p: &Part| p.part < p.demand;
        let weights: u64 = parts.iter().filter(|p| open(p)).map(|p| p.weight).sum();
        let satisfied = |p: &Part| open(p) && (p.demand - p.part) * weights <= left * p.weight;
        let Some(p) = parts.iter_mut().find(|p| satisfied(p)) else { break };
        left -= p.demand - p.part;
        p.part = p.demand;
    }
    let weights: u64 = parts.iter().filter(|p| p.part < p.demand).map(|p| p.weight).sum();
    let before = left;
    for p in parts.iter_mut().filter(|p| p.part < p.demand) {
        let share = before * p.weight / weights;
        p.part += share;
        left -= share;
    }
    // What rounding left over: one each, the heaviest first, then the lower number.
    while left > 0
        && let Some(p) = parts
            .iter_mut()
            .filter(|p| p.part < p.demand)
            .max_by_key(|p| (p.weight.saturating_mul(1 << 20) / (p.part + 1), std::cmp::Reverse(p.at)))
    {
        p.part += 1;
        left -= 1;
    }
}

impl Qwin {
    /// No queue yet.
    pub fn new(config: QwinConfig) -> Qwin {
        Qwin {
            runs: Vec::new(),
            partition: Partition::default(),
            parts: Vec::new(),
            look_at: Time::NEVER,
            bound: config.bound_writes.then(WriteBound::default),
            pass_at: Time::NEVER,
            config,
        }
    }

    fn bounds(q: &Queue) -> impl Iterator<Item = Bound> + '_ {
        let tails = q.service.tails();
        q.objectives().iter().zip(tails).map(|(o, &(_, tail))| Bound { within: o.bound, tail })
    }

    /// The shortest wait that any of its objectives allows.
    fn wait_allowed(q: &Queue) -> Span {
        Qwin::bounds(q).map(|b| b.wait()).min().unwrap_or(Span::MAX)
    }

    /// The same less the margin that its slack calls for, at most half of it.
    fn wait_wanted(&self, at: usize, q: &Queue) -> Span {
        let allowed = Qwin::wait_allowed(q);
        match self.config.deadlines {
            Deadlines::Window => allowed,
            Deadlines::Each => allowed.saturating_sub(self.runs[at].windows.margin).max(allowed / 2),
        }
    }

    /// Cores that all that waits in the queue needs now (QW-M3), over all its objectives, and `more` requests that come now.
    fn demand(&self, now: Time, at: usize, queues: &Queues, more: usize) -> u32 {
        let q = queues.get(at);
        let waiting = q.waiting().len();
        let arrived = |k: usize| q.waiting().get(k).map_or(now, |w| w.arrived_at);
        let len = waiting + more;
        // All objectives allow a wait; the shortest one decides for every request.
        let slots = demand::slots(self.config.deadlines, now, len, arrived, self.wait_wanted(at, q), q.service.mean());
        let cores = slots.div_ceil(u64::from(queues.depth));
        cores.min(u64::from(queues.cores)) as u32
    }

    /// Cores that all queues together asked for last.
    fn asked(&self, queues: &Queues) -> u32 {
        let used = queues.critical().filter(|&i| !queues.get(i).tenants.is_empty());
        used.map(|i| self.runs[i].demand.max(1)).sum()
    }

    /// Returns the queue's part of `demand` if the sum of all demands exceeds the cores.
    fn entitled(&mut self, at: usize, demand: u32, queues: &Queues) -> u32 {
        self.runs[at].demand = demand;
        if self.asked(queues) <= queues.cores {
            return demand;
        }
        let mut parts = std::mem::take(&mut self.parts);
        parts.clear();
        parts.extend(queues.critical().filter(|&i| !queues.get(i).tenants.is_empty()).map(|i| Part {
            at: i,
            demand: u64::from(self.runs[i].demand.max(1)),
            weight: queues.get(i).weight(),
            part: 0,
        }));
        entitle(&mut parts, u64::from(queues.cores));
        let part = parts.iter().find(|p| p.at == at).map_or(1, |p| p.part as u32);
        self.parts = parts;
        part
    }

    /// Algorithm 2: yields what is too much (at a window's beginning only), or takes what is missing, as far as there is.
    fn adjust(&mut self, now: Time, at: usize, target: u32, may_yield: bool, queues: &mut Queues) {
        let have = queues.get(at).cores();
        if target < have {
            if may_yield {
                queues.set_cores(now, at, target);
            }
        } else {
            let taken = (target - have).min(queues.unowned());
            queues.set_cores(now, at, have + taken);
        }
    }

    fn begin_window(&mut self, now: Time, at: usize, queues: &mut Queues) {
        let q = queues.get(at);
        let oldest = q.oldest().unwrap_or(now);
        let budget = demand::budget(now, oldest, self.wait_wanted(at, q), q.service.mean());
        let waiting = (q.waiting().len() as u64, q.waiting().back().map_or(0, |w| w.serial));
        self.runs[at].windows.begin(waiting, q.objectives(), &self.config, budget);
        let demand = self.demand(now, at, queues, 0);
        let target = self.entitled(at, demand, queues);
        self.adjust(now, at, target, true, queues);
    }

    /// Returns the time at which the queue will have stood still; [`Time::NEVER`] if it needn't move or has room to.
    fn still_at(&self, at: usize, queues: &Queues) -> Time {
        let q = queues.get(at);
        if !q.is_critical() || q.waiting().is_empty() || q.cores() == 0 || partition::has_room(queues, at) {
            return Time::NEVER;
        }
        self.runs[at].moved_at + q.service.mean().max(STILL_MIN) * STILL
    }

    fn arm(&mut self, queues: &Queues) {
        self.look_at = (0..self.runs.len()).map(|at| self.still_at(at, queues)).min().unwrap_or(Time::NEVER);
    }

    fn temp_window(&mut self, now: Time, at: usize, queues: &mut Queues) {
        self.runs[at].windows.temp += 1;
        let demand = self.demand(now, at, queues, 0);
        if demand > queues.get(at).cores() {
            let target = self.entitled(at, demand, queues);
            self.adjust(now, at, target, false, queues);
        }
    }

    /// Chooses the queue whose request is taken up next.
    fn choose(&mut self, now: Time, queues: &mut Queues) -> Option<usize> {
        let piece = |at| piece_bytes(self.bound.as_ref(), at, queues);
        if let Some(at) = self.partition.next_to_lend_to(now, queues, piece) {
            return Some(self.taken_by_rest(at));
        }
        while let Some(at) = partition::critical_next(queues) {
            if self.runs[at].windows.is_over() {
                self.begin_window(now, at, queues);
                if !partition::has_room(queues, at) {
                    continue; // this core was too much and is yielded
                }
            }
            return Some(self.taken_by_own(now, at));
        }
        match self.choose_of_rest(now, queues) {
            Some(at) => Some(self.taken_by_rest(at)),
            None if self.bound.is_some() => self.choose_ahead(now, queues),
            None => None,
        }
    }

    fn taken_by_own(&mut self, now: Time, at: usize) -> usize {
        self.runs[at].windows.take_up();
        self.runs[at].moved_at = now;
        at
    }

    /// Best effort may not, or need not, have the cores that are left: they serve objectives beyond the cores that those have. QWin as
    /// published lets them stay free, as it knows no best effort that is held.
    fn choose_ahead(&mut self, now: Time, queues: &mut Queues) -> Option<usize> {
        let at = partition::critical_due(queues, |_| true)?;
        if self.runs[at].windows.is_over() {
            self.begin_window(now, at, queues);
        }
        Some(self.taken_by_own(now, at))
    }

    /// A queue without cores has a request taken up: it may be a latency-critical one that has lost its last.
    fn taken_by_rest(&mut self, at: usize) -> usize {
        let windows = &mut self.runs[at].windows;
        if windows.left > 0 {
            windows.take_up();
        }
        at
    }

    /// Nothing waits in the queue: what isn't at a request is yielded, but for the last core (QW-M9).
    fn yield_idle(&mut self, now: Time, at: usize, queues: &mut Queues) {
        let q = queues.get(at);
        let busy = q.in_service.div_ceil(queues.depth);
        self.runs[at].demand = busy.max(1);
        let keep = busy.max(u32::from(!q.is_unused()));
        if keep < q.cores() {
            queues.set_cores(now, at, keep);
        }
    }
}

/// The queue's next request, if it's of best effort and bounded.
fn bounded_next(q: &Queue) -> Option<&IoHead> {
    q.waiting().front().map(|w| &w.io.head).filter(|head| !q.is_critical() && bound::is_bounded(head))
}

/// The most bytes of the next request of queue `at` that go below at once.
fn piece_bytes(bound: Option<&WriteBound>, at: usize, queues: &Queues) -> u64 {
    let is_promised = || queues.critical().any(|at| !queues.get(at).tenants.is_empty());
    match (bound, bounded_next(queues.get(at))) {
        (Some(bound), Some(head)) if is_promised() => bound.piece_bytes(head.op),
        _ => u64::MAX,
    }
}

impl Qwin {
    /// Chooses the queue whose request is taken up on a core without an owner.
    fn choose_of_rest(&mut self, now: Time, queues: &Queues) -> Option<usize> {
        let Some(bound) = &mut self.bound else {
            return self.partition.next_of_rest(queues, |_| true, |_| u64::MAX);
        };
        let is_busy = || queues.critical().any(|at| queues.get(at).is_busy());
        bound.tick(now, is_busy);
        let pass_at = bound.may_pass_at(now);
        let may = |q: &Queue| pass_at == Time::ZERO || bounded_next(q).is_none();
        let chosen = self.partition.next_of_rest(queues, may, |at| piece_bytes(Some(bound), at, queues));
        let is_held = || queues.all().iter().any(|q| bounded_next(q).is_some());
        self.pass_at = if chosen.is_none() && pass_at > now && is_held() { pass_at } else { Time::NEVER };
        chosen
    }
}

impl Policy for Qwin {
    fn name(&self) -> &'static str {
        "qwin"
    }

    fn write_bound(&self) -> Option<&WriteBound> {
        self.bound.as_ref()
    }

    fn queues_changed(&mut self, now: Time, queues: &mut Queues) {
        let config = self.config;
        let run = |born| Run { windows: Windows::new(&config), born, demand: 0, moved_at: now };
        self.runs.resize_with(queues.len(), || run(0));
        for (at, (own, q)) in self.runs.iter_mut().zip(queues.all()).enumerate() {
            let is_new = own.born != q.born;
            if is_new {
                *own = run(q.born);
            }
            if let Some(bound) = self.bound.as_mut().filter(|_| is_new || q.tenants.is_empty()) {
                bound.forget(at);
            }
        }
        // The heaviest first, where there are more queues than cores.
        let mut critical: Vec<usize> = queues.critical().collect();
        critical.sort_by_key(|&at| (std::cmp::Reverse(queues.get(at).weight()), at));
        let (unused, used): (Vec<usize>, Vec<usize>) = critical.iter().partition(|&&at| queues.get(at).is_unused());
        for at in unused {
            self.runs[at].demand = 0;
            queues.set_cores(now, at, 0);
        }
        // QW-M8: one core each to begin with, while there are any.
        for at in used {
            if queues.get(at).cores() == 0 {
                queues.set_cores(now, at, queues.unowned().min(1));
            }
        }
    }

    fn arrived(&mut self, now: Time, at: usize, queues: &mut Queues) {
        if let Some(bound) = self.bound.as_mut().filter(|_| queues.get(at).is_critical()) {
            bound.came(now);
        }
        self.arm(queues);
    }

    fn next(&mut self, now: Time, queues: &mut Queues) -> Option<usize> {
        let chosen = self.choose(now, queues);
        if chosen.is_none() {
            self.arm(queues);
        }
        chosen
    }

    fn ended(&mut self, now: Time, at: usize, response: Span, queues: &mut Queues) {
        if !queues.get(at).is_critical() {
            return;
        }
        self.runs[at].moved_at = now;
        if let Some(bound) = &mut self.bound {
            bound.ended(now, at, queues.get(at).objectives(), response);
        }
        if self.runs[at].windows.served(response) {
            self.temp_window(now, at, queues);
        }
        let had = queues.get(at).cores();
        if queues.get(at).waiting().is_empty() {
            self.yield_idle(now, at, queues);
        }
        if had == 0 {
            self.queues_changed(now, queues); // perhaps there is one for it by now
        }
    }

    /// Something waits, every core of its own is at a request, and none has moved for too long: when it's to be looked at.
    fn wake_at(&self) -> Time {
        self.look_at.min(self.pass_at)
    }

    fn wake(&mut self, now: Time, queues: &mut Queues) {
        if self.pass_at <= now {
            self.pass_at = Time::NEVER; // a core that gets free asks again
        }
        for at in 0..self.runs.len() {
            if self.still_at(at, queues) <= now {
                self.runs[at].moved_at = now;
                self.temp_window(now, at, queues);
            }
        }
        self.arm(queues);
    }

    fn withdrawn(&mut self, now: Time, at: usize, serial: u64, queues: &mut Queues) {
        self.runs[at].windows.withdrawn(serial);
        if queues.get(at).is_critical() && queues.get(at).waiting().is_empty() {
            self.yield_idle(now, at, queues);
        }
    }

    fn wait(&self, now: Time, at: usize, queues: &Queues) -> Span {
        let q = queues.get(at);
        if q.cores() == 0 {
            let heads = q.waiting().iter().map(|w| &w.io.head);
            let slots = queues.unowned().max(1) * queues.depth;
            let bound = self.bound.as_ref().filter(|_| !q.is_critical());
            let delay = bound.map_or(Span::ZERO, |b| b.delay_behind(now, heads, q.service.mean(), slots));
            // Unless the objectives ask for all there is, cores come back with the next windows.
            let soon = self.asked(queues) < queues.cores;
            return partition::rest_wait(queues, at, soon) + delay;
        }
        // It would get what it asks for, as far as best effort has it.
        let wanted = self.demand(now, at, queues, 1);
        let cores = wanted.clamp(q.cores(), q.cores() + queues.unowned());
        // More cores come when one of its own looks next: after one more request at the latest.
        let until_then = if cores > q.cores() { q.service.mean() } else { Span::ZERO };
        partition::own_wait(queues, at, cores) + until_then
    }

    fn sent(&mut self, now: Time, at: usize, head: &IoHead, queues: &Queues) -> bool {
        let bound = self.bound.as_mut().filter(|_| !queues.get(at).is_critical() && bound::is_bounded(head));
        bound.map(|bound| bound.passed(now, head)).is_some()
    }

    fn left(&mut self, now: Time, head: &IoHead, took: Span) {
        if let Some(bound) = &mut self.bound {
            bound.left(now, head, took);
        }
    }

    fn piece_bytes(&self, at: usize, queues: &Queues) -> u64 {
        piece_bytes(self.bound.as_ref(), at, queues)
    }

    fn hold_no_more(&mut self) {
        self.bound = None;
    }

    fn set_slack(&mut self, low: Span, high: Span, poll_windows: u64) {
        (self.config.slack_low, self.config.slack_high, self.config.poll_windows) = (low, high, poll_windows);
    }

    fn windows(&self, at: usize) -> Option<&Windows> {
        self.runs.get(at).map(|r| &r.windows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(at: usize, demand: u64, weight: u64) -> Part {
        Part { at, demand, weight, part: 0 }
    }

    #[test]
    fn parts_go_by_weight_and_no_further_than_asked_for() {
        let of = |mut p: Vec<Part>, cores| {
            entitle(&mut p, cores);
            p.iter().map(|p| p.part).collect::<Vec<_>>()
        };
        assert_eq!(of(vec![part(0, 20, 100), part(1, 20, 100)], 24), [12, 12]);
        assert_eq!(of(vec![part(0, 20, 200), part(1, 20, 100)], 24), [16, 8]);
        assert_eq!(of(vec![part(0, 3, 100), part(1, 40, 100), part(2, 40, 100)], 24), [3, 11, 10]);
        assert_eq!(of(vec![part(0, 9, 1), part(1, 9, 1), part(2, 9, 1)], 2), [1, 1, 0]);
    }

    proptest! {
        /// Against giving the cores out one by one to whoever has least for its weight: never more than one core apart.
        #[test]
        fn parts_agree_with_one_by_one(queues in proptest::collection::vec((1u64..40, 1u64..20), 1..6), cores in 1u64..64) {
            let mut parts: Vec<Part> = queues.iter().enumerate().map(|(i, &(d, w))| part(i, d, w)).collect();
            entitle(&mut parts, cores);
            let given: u64 = parts.iter().map(|p| p.part).sum();
            let asked: u64 = queues.iter().map(|q| q.0).sum();
            prop_assert_eq!(given, asked.min(cores), "no core lost while somebody asks");
            prop_assert!(parts.iter().all(|p| p.part <= p.demand));
            // Nobody with room to ask has a whole core less for its weight than another has more than one core.
            for p in parts.iter().filter(|p| p.part < p.demand) {
                for other in parts.iter().filter(|o| o.part > 1) {
                    let (mine, theirs) = (p.part.saturating_sub(1) + 2, other.part - 2 + 1);
                    prop_assert!(mine * other.weight + other.weight + p.weight > theirs * p.weight, "{parts:?}");
                }
            }
        }
    }
}
