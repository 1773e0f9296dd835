//! Measurements of a replay.

use crate::address::Placer;
use plimsoll_base::{Completion, IoHead, LatencyHistogram, Op, Outcome, Span, Time};
use plimsoll_stack::sim::EventHash;

/// Comparison of the forecast at admission with a request's actual end, seen from the deadline.
///
/// Only of accepted requests can the truth be known: a refused one never ran. To count wrong refusals too, run with
/// deadlines that are judged but not enforced ([`crate::Limits::judge`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdicts {
    /// Forecast in time, was in time.
    pub true_accept: u64,
    /// Forecast in time, was late (MittOS calls it a false negative).
    pub false_accept: u64,
    /// Forecast late, was in time (false positive).
    pub false_reject: u64,
    /// Forecast late, was late.
    pub true_reject: u64,
}

impl Verdicts {
    /// All requests judged.
    pub fn all(&self) -> u64 {
        self.true_accept + self.false_accept + self.false_reject + self.true_reject
    }
}

/// Counters and distributions of one replay. Its size doesn't depend on how much is replayed.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Requests that ended Done, by kind: reads, writes, others (trims, flushes).
    pub done: [u64; 3],
    /// Their bytes.
    pub bytes: [u64; 3],
    /// Their response times: completion minus the trace's arrival.
    pub response: [LatencyHistogram; 3],
    /// From arrival until their first part reached the device.
    pub queue_delay: LatencyHistogram,
    /// From there to completion.
    pub service: LatencyHistogram,
    /// Completion against the forecast at admission, absolute.
    pub forecast_error: LatencyHistogram,
    /// Sum of completion minus forecast, in nanoseconds: positive where forecasts are too short.
    pub forecast_bias_ns: i128,
    /// Requests refused at once.
    pub busy: u64,
    /// Forecast waits of the refused ones.
    pub busy_wait: LatencyHistogram,
    /// Accepted, then given back Busy.
    pub revoked: u64,
    /// Requests that failed.
    pub failed: u64,
    /// With a deadline, accepted, and done after it.
    pub missed: u64,
    /// Forecast against fact, of reads with a deadline.
    pub verdicts: Verdicts,
    /// Requests that arrived while the pool was full and had to wait outside.
    pub held_back: u64,
    /// The longest of those waits.
    pub held_back_max: Span,
    /// First arrival.
    pub first_arrival: Time,
    /// Last arrival.
    pub last_arrival: Time,
    /// Time of the last request's end: the final clock.
    pub clock: Time,
    /// A hash of every event: arrival, address, outcome and completion of each request in the order they ended.
    pub event_hash: u64,
    /// Requests whose address lay beyond the device and wrapped around.
    pub wrapped: u64,
    /// Requests cut to the largest that the device takes.
    pub cut: u64,
}

/// Returns the index of the kind, of three, that an operation belongs to.
pub(crate) fn kind(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write | Op::WriteZeroes => 1,
        Op::Trim | Op::Flush | Op::Cache | Op::BlockStatus => 2,
    }
}

/// Names of the kinds.
pub const KINDS: [&str; 3] = ["read", "write", "other"];

impl Default for Measured {
    fn default() -> Measured {
        Measured::new()
    }
}

impl Measured {
    /// Nothing yet.
    pub fn new() -> Measured {
        Measured {
            done: [0; 3],
            bytes: [0; 3],
            response: std::array::from_fn(|_| LatencyHistogram::new()),
            queue_delay: LatencyHistogram::new(),
            service: LatencyHistogram::new(),
            forecast_error: LatencyHistogram::new(),
            forecast_bias_ns: 0,
            busy: 0,
            busy_wait: LatencyHistogram::new(),
            revoked: 0,
            failed: 0,
            missed: 0,
            verdicts: Verdicts::default(),
            held_back: 0,
            held_back_max: Span::ZERO,
            first_arrival: Time::NEVER,
            last_arrival: Time::ZERO,
            clock: Time::ZERO,
            event_hash: 0,
            wrapped: 0,
            cut: 0,
        }
    }

    pub(crate) fn arrived(&mut self, at: Time, now: Time) {
        if !self.first_arrival.is_set() {
            self.first_arrival = at;
        }
        self.last_arrival = at;
        if now > at {
            self.held_back += 1;
            self.held_back_max = self.held_back_max.max(now.since(at));
        }
    }

    pub(crate) fn refused(&mut self, now: Time, head: &IoHead, wait: Span) {
        self.busy += 1;
        self.busy_wait.record(wait);
        self.note([head.offset, head.arrived_at.as_nanos(), now.as_nanos() ^ 1]);
    }

    /// `due` is the deadline that is judged, where it isn't the request's own.
    pub(crate) fn ended(&mut self, now: Time, c: &Completion, judge: Option<Span>) {
        let head = &c.io.head;
        self.note([head.offset, head.arrived_at.as_nanos(), now.as_nanos()]);
        self.clock = now;
        match c.outcome {
            Outcome::Done => {}
            Outcome::Busy { .. } => {
                self.revoked += 1;
                return;
            }
            Outcome::Failed(_) => {
                self.failed += 1;
                return;
            }
        }
        let k = kind(head.op);
        self.done[k] += 1;
        self.bytes[k] += if k == 2 { 0 } else { head.len };
        self.response[k].record(now.since(head.arrived_at));
        self.queue_delay.record(c.dispatched_at.min(now).since(head.arrived_at));
        self.service.record(now.since(c.dispatched_at));
        let (late, early) = (now.since(head.expected_at), head.expected_at.since(now));
        self.forecast_error.record(late.max(early));
        self.forecast_bias_ns += i128::from(late.as_nanos()) - i128::from(early.as_nanos());
        if head.deadline.is_set() {
            self.missed += u64::from(now > head.deadline);
        }
        if let Some(within) = judge
            && head.op == Op::Read
        {
            let due = head.arrived_at + within;
            let verdict = match (head.expected_at <= due, now <= due) {
                (true, true) => &mut self.verdicts.true_accept,
                (true, false) => &mut self.verdicts.false_accept,
                (false, true) => &mut self.verdicts.false_reject,
                (false, false) => &mut self.verdicts.true_reject,
            };
            *verdict += 1;
        }
    }

    pub(crate) fn placed(&mut self, placer: &Placer) {
        (self.wrapped, self.cut) = (placer.wrapped(), placer.cut());
    }

    fn note(&mut self, words: [u64; 3]) {
        let mut hash = EventHash::from(self.event_hash);
        hash.note(words);
        self.event_hash = hash.value();
    }

    /// Requests that ended, however.
    pub fn requests(&self) -> u64 {
        self.done.iter().sum::<u64>() + self.busy + self.revoked + self.failed
    }

    /// Response times of all kinds together.
    pub fn all_responses(&self) -> LatencyHistogram {
        let mut all = self.response[0].clone();
        all.merge(&self.response[1]);
        all.merge(&self.response[2]);
        all
    }

    /// From the first arrival to the last completion.
    pub fn elapsed(&self) -> Span {
        self.clock.since(self.first_arrival.min(self.clock))
    }

    /// Requests done a second of virtual time; zero if no time passed.
    pub fn iops(&self) -> f64 {
        per_second(self.done.iter().sum::<u64>() as f64, self.elapsed())
    }

    /// Megabytes (10^6) done a second, of the kinds chosen.
    pub fn megabytes_per_second(&self, kinds: &[usize]) -> f64 {
        per_second(kinds.iter().map(|&k| self.bytes[k]).sum::<u64>() as f64 / 1e6, self.elapsed())
    }
}

fn per_second(amount: f64, span: Span) -> f64 {
    if span == Span::ZERO { 0.0 } else { amount / span.as_secs_f64() }
}
