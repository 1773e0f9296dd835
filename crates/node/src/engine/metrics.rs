//! What a pool counts per volume and tenant. One thread writes; readers get copies.

use plimsoll_base::{Completion, IoFlags, LatencyHistogram, Op, Outcome, Span, Time};

/// One operation's counters.
#[derive(Clone, Debug, Default)]
pub struct OpMetrics {
    /// Requests that ended Done.
    pub done: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Requests that failed.
    pub failed: u64,
    /// From arrival at the pool to completion, of those done.
    pub response: LatencyHistogram,
}

/// The counters of one tenant on one volume.
#[derive(Clone, Debug)]
pub struct ExportMetrics {
    /// Reads, writes, flushes, and all else, in this order.
    pub ops: [OpMetrics; 4],
    /// Refused at once.
    pub busy_refused: u64,
    /// Accepted, and given back Busy later.
    pub busy_revoked: u64,
    /// Done by their deadline (those that had one).
    pub deadline_met: u64,
    /// Accepted by a forecast that said they would meet it, and done after it: broken promises.
    pub deadline_missed: u64,
    /// Done after it as was forecast: their clients wait instead of being refused.
    pub deadline_waited: u64,
    /// From device dispatch to completion, of those that reached a device.
    pub device: LatencyHistogram,
    /// How far the admission's forecast was off (either way), of those that had one.
    pub forecast_error: LatencyHistogram,
    /// Response times by minute, for objectives.
    pub minutes: Windows,
    /// Response times by second, for live views.
    pub seconds: Windows,
}

impl Default for ExportMetrics {
    fn default() -> ExportMetrics {
        ExportMetrics {
            ops: Default::default(),
            busy_refused: 0,
            busy_revoked: 0,
            deadline_met: 0,
            deadline_missed: 0,
            deadline_waited: 0,
            device: LatencyHistogram::new(),
            forecast_error: LatencyHistogram::new(),
            minutes: Windows::every(Span::from_secs(60)),
            seconds: Windows::every(Span::from_secs(1)),
        }
    }
}

/// The operations' names, in the order of [`ExportMetrics::ops`].
pub const OP_NAMES: [&str; 4] = ["read", "write", "flush", "other"];

fn op_index(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        _ => 3,
    }
}

impl ExportMetrics {
    /// Counts a request that ended.
    pub fn ended(&mut self, now: Time, c: &Completion) {
        let op = &mut self.ops[op_index(c.io.op)];
        match c.outcome {
            Outcome::Busy { .. } => self.busy_revoked += 1,
            Outcome::Failed(_) => op.failed += 1,
            Outcome::Done => {
                let response = now.since(c.io.arrived_at);
                op.done += 1;
                op.bytes += c.io.len;
                op.response.record(response);
                self.minutes.record(now, response);
                self.seconds.record(now, response);
                if c.dispatched_at.is_set() {
                    self.device.record(now.since(c.dispatched_at));
                }
                if c.io.expected_at.is_set() {
                    self.forecast_error.record(now.since(c.io.expected_at) + c.io.expected_at.since(now));
                }
                if c.io.deadline.is_set() {
                    let counter = match (now <= c.io.deadline, c.io.flags.has(IoFlags::LATE)) {
                        (true, _) => &mut self.deadline_met,
                        (false, true) => &mut self.deadline_waited,
                        (false, false) => &mut self.deadline_missed,
                    };
                    *counter += 1;
                }
            }
        }
    }
}

/// Response times of the last whole period and of the running one.
#[derive(Clone, Debug)]
pub struct Windows {
    /// The last whole period.
    pub last: LatencyHistogram,
    /// The running period.
    pub running: LatencyHistogram,
    period: Span,
    /// How many periods went before the running one.
    number: u64,
}

impl Windows {
    /// Empty windows, `period` long each.
    pub fn every(period: Span) -> Windows {
        Windows { last: LatencyHistogram::new(), running: LatencyHistogram::new(), period, number: 0 }
    }

    fn record(&mut self, now: Time, response: Span) {
        self.turn(now);
        self.running.record(response);
    }

    /// Moves on to `now`'s period.
    pub fn turn(&mut self, now: Time) {
        let number = now.as_nanos() / self.period.as_nanos();
        if number != self.number {
            std::mem::swap(&mut self.last, &mut self.running);
            if number != self.number + 1 {
                self.last.clear(); // a whole period without a request lies between
            }
            self.running.clear();
            self.number = number;
        }
    }

    /// The larger sample of the two: what an objective is judged by.
    pub fn judged(&self) -> &LatencyHistogram {
        if self.last.count() > self.running.count() { &self.last } else { &self.running }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_turn_by_the_period() {
        let at = |s: u64| Time::ZERO + Span::from_secs(s);
        let mut w = Windows::every(Span::from_secs(60));
        w.record(at(10), Span::from_millis(1));
        w.record(at(59), Span::from_millis(1));
        w.record(at(61), Span::from_millis(2));
        assert_eq!((w.last.count(), w.running.count()), (2, 1));
        assert_eq!(w.judged().count(), 2);
        w.turn(at(200));
        assert_eq!((w.last.count(), w.running.count()), (0, 0));
    }
}
