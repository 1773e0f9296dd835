//! Counters of a pool per volume and tenant. One thread writes; readers get copies.

use super::lateness::Lateness;
use super::recent::{CELLS_OF_A_DAY, Counts, Recent, Ring, Tally, Within};
use super::refusals::Spared;
use plimsoll_base::{Completion, IoError, IoFlags, IoHead, LatencyHistogram, Objective, Op, Outcome, Span, Time};

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

/// Reads of NVMe hosts that are served, however late, as their host was refused reads before.
#[derive(Clone, Debug, Default)]
pub struct SparedMetrics {
    /// By rule, in the order of [`SPARED_NAMES`].
    pub by_rule: [u64; 4],
    /// From the refusal to the read's return, of those that were refused themselves.
    pub returned: LatencyHistogram,
    /// From arrival to completion, of those done.
    pub response: LatencyHistogram,
}

/// The rules' names, in the order of [`SparedMetrics::by_rule`].
pub const SPARED_NAMES: [&str; 4] = ["again", "overlap", "too-many", "stranger"];

impl SparedMetrics {
    /// Counts a read.
    pub fn count(&mut self, rule: Spared) {
        let place = match rule {
            Spared::Again(ago) => {
                self.returned.record(ago);
                0
            }
            Spared::Overlap(_) => 1,
            Spared::TooMany => 2,
            Spared::Stranger => 3,
        };
        self.by_rule[place] += 1;
    }
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
    /// Reads done by their deadline (those that had one).
    pub deadline_met: u64,
    /// Reads accepted by a forecast that they would meet it, and done after it: broken promises.
    pub deadline_missed: u64,
    /// Done after it as was forecast: their clients wait instead of being refused.
    pub deadline_waited: u64,
    /// From device dispatch to completion, of those that reached a device.
    pub device: LatencyHistogram,
    /// Error of the admission's forecast (either way), of those that had one.
    pub forecast_error: LatencyHistogram,
    /// Response times by minute, for objectives.
    pub minutes: Windows,
    /// Response times by second, for live views.
    pub seconds: Windows,
    /// The largest of the minutes' 99th percentiles, by ten minutes.
    day: Ring<Largest>,
    /// Outcomes of requests and promises in the last minute, hour and day.
    pub recent: Recent<Tally>,
    /// By how much reads with a deadline ended later than forecast, or earlier.
    pub lateness: Lateness,
    /// The tenant's objectives, and how requests kept to them.
    pub objectives: Vec<(Objective, Recent<Within>)>,
    /// The last failure of a request below the node.
    pub last_failure: Option<IoError>,
    /// Reads that were spared a refusal; absent before the first: few exports have any.
    pub spared: Option<Box<SparedMetrics>>,
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
            day: Ring::of_a_day(),
            recent: Recent::default(),
            lateness: Lateness::default(),
            objectives: Vec::new(),
            last_failure: None,
            spared: None,
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

/// True if a request failed below the node, rather than by its client's mistake.
fn is_below(why: IoError) -> bool {
    match why {
        IoError::Device | IoError::FlushFailed | IoError::NoSpace => true,
        IoError::Invalid | IoError::ReadOnly | IoError::NotSupported | IoError::Cancelled | IoError::Unavailable => {
            false
        }
    }
}

impl ExportMetrics {
    /// Counts a request that was refused at once.
    pub fn refused(&mut self, now: Time) {
        self.busy_refused += 1;
        self.recent.count(now, |c| c.refused += 1);
    }

    /// Counters of reads that are spared a refusal, which are made at the first use.
    pub fn spared(&mut self) -> &mut SparedMetrics {
        self.spared.get_or_insert_default()
    }

    /// Counts requests against these objectives from now on. Counts of objectives that were set before continue.
    pub fn set_objectives(&mut self, objectives: &[Objective]) {
        let old = std::mem::take(&mut self.objectives);
        let counted = |o: &Objective| old.iter().find(|(was, _)| was == o).map(|(_, recent)| recent.clone());
        self.objectives = objectives.iter().map(|o| (*o, counted(o).unwrap_or_default())).collect();
    }

    /// Moves all windows on to `now`.
    pub fn turn(&mut self, now: Time) {
        self.turn_minute(now);
        self.day.turn(now);
        self.seconds.turn(now);
        self.recent.turn(now);
        self.lateness.turn(now);
        self.objectives.iter_mut().for_each(|(_, recent)| recent.turn(now));
    }

    /// Ends the running minute if it is over at `now`: the day keeps its percentile.
    #[inline]
    fn turn_minute(&mut self, now: Time) {
        if let Some((began_at, tail)) = self.minutes.turn(now) {
            self.day.turn(began_at);
            self.day.running().add(&Largest(tail));
        }
    }

    /// 99th percentiles of the worst minute in each ten of the last day, as of the last turn. The running ten minutes are the last; zero without a request.
    pub fn day_tails(&self) -> impl Iterator<Item = Span> + '_ {
        let running = self.minutes.tail();
        let last = CELLS_OF_A_DAY - 1;
        self.day
            .last(CELLS_OF_A_DAY)
            .enumerate()
            .map(move |(n, cell)| if n == last { cell.0.max(running) } else { cell.0 })
    }

    /// Counts a request that an injected error ended: it failed, and nothing below the node did.
    pub fn injected(&mut self, op: Op) {
        self.ops[op_index(op)].failed += 1;
    }

    /// Counts a request that ended.
    pub fn ended(&mut self, now: Time, c: &Completion) {
        let op = &mut self.ops[op_index(c.io.op)];
        match c.outcome {
            Outcome::Busy { .. } => {
                self.busy_revoked += 1;
                // Told in time, it's a refusal that came late. After its deadline the promise is broken like any that is missed.
                let is_late = c.io.deadline.is_set() && now > c.io.deadline;
                self.deadline_missed += u64::from(is_late);
                self.recent.count(now, |c| if is_late { c.missed += 1 } else { c.refused += 1 });
            }
            // Its client has withdrawn it, or is gone.
            Outcome::Failed(IoError::Cancelled) => {}
            Outcome::Failed(why) => {
                op.failed += 1;
                if is_below(why) {
                    self.last_failure = Some(why);
                    self.recent.count(now, |c| c.failed += 1);
                }
            }
            Outcome::Done => {
                let response = now.since(c.io.arrived_at);
                op.done += 1;
                op.bytes += c.io.len;
                op.response.record(response);
                self.turn_minute(now);
                self.minutes.record(now, response);
                self.seconds.record(now, response);
                if c.dispatched_at.is_set() {
                    self.device.record(now.since(c.dispatched_at));
                }
                if c.io.expected_at.is_set() {
                    self.forecast_error.record(now.since(c.io.expected_at) + c.io.expected_at.since(now));
                }
                for (objective, recent) in &mut self.objectives {
                    let within = u64::from(response <= objective.bound);
                    recent.count(now, |c| (c.requests, c.within) = (c.requests + 1, c.within + within));
                }
                self.recent.count(now, |c| c.done += 1);
                if c.io.op == Op::Read && c.io.deadline.is_set() {
                    self.promise_ended(now, &c.io);
                }
            }
        }
    }

    /// A read that was accepted with a deadline is done.
    fn promise_ended(&mut self, now: Time, io: &IoHead) {
        if io.expected_at.is_set() {
            self.lateness.ended(now, io.expected_at);
        }
        if now <= io.deadline {
            self.deadline_met += 1;
            self.recent.count(now, |c| c.kept += 1);
        } else if io.flags.has(IoFlags::LATE) {
            self.deadline_waited += 1;
            self.recent.count(now, |c| c.waited += 1);
        } else {
            self.deadline_missed += 1;
            self.recent.count(now, |c| c.missed += 1);
        }
    }
}

/// The largest of several times.
#[derive(Clone, Copy, Debug, Default)]
struct Largest(Span);

impl Counts for Largest {
    fn add(&mut self, other: &Largest) {
        self.0 = self.0.max(other.0);
    }
}

/// Periods whose tails are remembered: a minute's seconds, an hour's minutes.
pub const TAILS: usize = 60;

/// Response times of the last whole period and of the running one.
#[derive(Clone, Debug)]
pub struct Windows {
    /// The last whole period.
    pub last: LatencyHistogram,
    /// The running period.
    pub running: LatencyHistogram,
    period: Span,
    /// Number of periods before the running one.
    number: u64,
    /// 99th percentiles of the last whole periods; period `n` is at `n` modulo their number. Zero without a request.
    tails: Box<[Span; TAILS]>,
}

impl Windows {
    /// Empty windows, `period` long each.
    pub fn every(period: Span) -> Windows {
        Windows {
            last: LatencyHistogram::new(),
            running: LatencyHistogram::new(),
            period,
            number: 0,
            tails: Box::new([Span::ZERO; TAILS]),
        }
    }

    fn record(&mut self, now: Time, response: Span) {
        self.turn(now);
        self.running.record(response);
    }

    /// Moves on to `now`'s period. Returns the beginning of the one that ended, and its 99th percentile.
    pub fn turn(&mut self, now: Time) -> Option<(Time, Span)> {
        let number = now.as_nanos() / self.period.as_nanos();
        if number != self.number {
            let place = |n: u64| (n % TAILS as u64) as usize;
            let ended = (Time::ZERO + self.period * self.number, self.tail());
            self.tails[place(self.number)] = ended.1;
            // The running period's place is the oldest's.
            (self.number + 1..=number).rev().take(TAILS).for_each(|n| self.tails[place(n)] = Span::ZERO);
            std::mem::swap(&mut self.last, &mut self.running);
            if number != self.number + 1 {
                self.last.clear(); // a whole period without a request lies between
            }
            self.running.clear();
            self.number = number;
            return Some(ended);
        }
        None
    }

    fn tail(&self) -> Span {
        if self.running.count() > 0 { self.running.percentile(99.0) } else { Span::ZERO }
    }

    /// 99th percentiles of the last periods, the running one last; zero without a request.
    pub fn tails(&self) -> impl Iterator<Item = Span> + '_ {
        let running = (self.number % TAILS as u64) as usize;
        let whole = (1..TAILS).map(move |after| self.tails[(running + after) % TAILS]);
        whole.chain(std::iter::once(self.tail()))
    }

    /// The larger sample of the two: what an objective is judged by.
    pub fn judged(&self) -> &LatencyHistogram {
        if self.last.count() > self.running.count() { &self.last } else { &self.running }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Data, Io, VolumeKey};

    #[test]
    fn windows_turn_by_the_period() {
        let at = |s: u64| Time::ZERO + Span::from_secs(s);
        let mut w = Windows::every(Span::from_secs(60));
        w.record(at(10), Span::from_millis(1));
        w.record(at(59), Span::from_millis(1));
        w.record(at(61), Span::from_millis(2));
        assert_eq!((w.last.count(), w.running.count()), (2, 1));
        assert_eq!(w.judged().count(), 2);
        let tails = |w: &Windows| w.tails().map(|t| t.as_micros() / 1000).skip(TAILS - 4).collect::<Vec<_>>();
        assert_eq!(tails(&w), [0, 0, 1, 2], "of the last minute and the running one");
        w.turn(at(200));
        assert_eq!((w.last.count(), w.running.count()), (0, 0));
        assert_eq!(tails(&w), [1, 2, 0, 0]);
        w.turn(at(200 + 60 * 60));
        assert_eq!(w.tails().max(), Some(Span::ZERO), "an hour later");
    }

    /// A client that is gone, or no longer wants an answer, isn't a failure: alerts go by their number.
    #[test]
    fn a_withdrawn_request_has_not_failed() {
        let mut m = ExportMetrics::default();
        let head = IoHead::new(Op::Read, VolumeKey { id: 1, generation: 1 }, Default::default(), 0, 512, Time::ZERO);
        for (why, failed) in [(IoError::Cancelled, 0), (IoError::Device, 1)] {
            let io = Io::new(head, Data::Absent);
            m.ended(Time::ZERO, &Completion { io, outcome: Outcome::Failed(why), dispatched_at: Time::NEVER });
            assert_eq!(m.ops[op_index(Op::Read)].failed, failed);
        }
    }

    /// A read that was accepted and is answered busy after its deadline broke its promise; before it, it's a refusal.
    #[test]
    fn a_read_given_back_too_late_is_missed() {
        let at = |ms: u64| Time::ZERO + Span::from_millis(ms);
        let mut m = ExportMetrics::default();
        let mut head =
            IoHead::new(Op::Read, VolumeKey { id: 1, generation: 1 }, Default::default(), 0, 512, Time::ZERO);
        head.deadline = at(50);
        for (now, missed, refused) in [(at(10), 0, 1), (at(50), 0, 2), (at(51), 1, 2)] {
            let outcome = Outcome::Busy { wait: Span::ZERO, confidence: plimsoll_base::Confidence::CERTAIN };
            m.ended(now, &Completion { io: Io::new(head, Data::Absent), outcome, dispatched_at: Time::NEVER });
            let minute = m.recent.sum(crate::engine::recent::Window::Minute);
            assert_eq!((minute.missed, minute.refused), (missed, refused), "at {now:?}");
            assert_eq!(m.deadline_missed, missed, "the counter says the same, at {now:?}");
        }
    }

    /// A day has the percentile of the worst minute of each ten, at the minute's place, however late it is asked.
    #[test]
    fn a_day_keeps_the_worst_minute_of_each_ten() {
        let at = |s: u64| Time::ZERO + Span::from_secs(s);
        let mut m = ExportMetrics::default();
        let ended = |m: &mut ExportMetrics, s, ms| {
            m.turn_minute(at(s));
            m.minutes.record(at(s), Span::from_millis(ms));
        };
        let day = |m: &mut ExportMetrics, s| {
            m.turn(at(s));
            m.day_tails().skip(CELLS_OF_A_DAY - 4).map(|t| t.as_micros() / 1000).collect::<Vec<_>>()
        };
        ended(&mut m, 5, 3);
        assert_eq!(day(&mut m, 5), [0, 0, 0, 3], "the running minute counts");
        ended(&mut m, 70, 9);
        ended(&mut m, 130, 2);
        assert_eq!(day(&mut m, 130), [0, 0, 0, 9]);
        ended(&mut m, 599, 14);
        ended(&mut m, 1250, 5);
        assert_eq!(day(&mut m, 1250), [0, 14, 0, 5], "the last minute of the first ten is counted there");
        assert_eq!(day(&mut m, 1900), [14, 0, 5, 0]);
        m.turn(at(1200 + 24 * 3600));
        assert_eq!(m.day_tails().max(), Some(Span::ZERO), "a day later");
    }
}
