//! Sampled traces: a request's forecast, the decision, and its end.
//!
//! Every N-th request is kept. Requests refused at the top are all kept, up to a rate. The ring is allocated once; a request that isn't
//! sampled costs one count-down.

use plimsoll_base::{Completion, IoHead, Op, Outcome, Span, TenantId, Time, VolumeKey};
use plimsoll_stack::Forecast;

/// Traces kept; older ones are overwritten.
pub const TRACES_MAX: usize = 512;
/// Refused requests kept a second beyond those sampled: under overload they would push out everything else.
const REFUSED_PER_SECOND_MAX: u32 = 16;

/// One request's trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// From 1, in the order of sampling.
    pub number: u64,
    /// Its volume.
    pub volume: VolumeKey,
    /// The tenant that it is charged to.
    pub tenant: TenantId,
    /// Operation.
    pub op: Op,
    /// First byte within the volume.
    pub offset: u64,
    /// Number.
    pub len: u64,
    /// Its arrival.
    pub arrived_at: Time,
    /// By when it had to be done; [`Time::NEVER`] without a promise.
    pub deadline: Time,
    /// The stack's forecast at admission.
    pub forecast: Forecast,
    /// True if it was refused at admission.
    pub refused: bool,
    /// The time at which its first part reached a device; [`Time::NEVER`] if none did (yet).
    pub dispatched_at: Time,
    /// Its end; [`Time::NEVER`] while under way.
    pub ended_at: Time,
    /// Its outcome; `None` while under way.
    pub outcome: Option<Outcome>,
}

/// See the module's documentation.
pub struct Traces {
    /// Every how many requests one is kept; 0 keeps none but refused ones.
    every: u32,
    left: u32,
    /// Number `n` is at `(n - 1) % TRACES_MAX`.
    ring: Vec<Trace>,
    taken: u64,
    refused_second: u64,
    refused_in_second: u32,
}

impl Traces {
    /// Keeps every `every`-th request; with 0 only refused ones.
    pub fn new(every: u32) -> Traces {
        let ring = Vec::with_capacity(TRACES_MAX);
        Traces { every, left: every, ring, taken: 0, refused_second: 0, refused_in_second: 0 }
    }

    /// Counts a request. True if it is one to keep.
    pub fn due(&mut self) -> bool {
        if self.left > 1 {
            self.left -= 1;
            return false;
        }
        self.left = self.every;
        self.every > 0
    }

    /// Keeps an accepted request; its number, for [`Traces::ended`].
    pub fn accepted(&mut self, head: &IoHead, forecast: Forecast) -> u64 {
        self.keep(Trace {
            number: 0,
            volume: head.volume,
            tenant: head.tenant,
            op: head.op,
            offset: head.offset,
            len: head.len,
            arrived_at: head.arrived_at,
            deadline: head.deadline,
            forecast,
            refused: false,
            dispatched_at: Time::NEVER,
            ended_at: Time::NEVER,
            outcome: None,
        })
    }

    /// Keeps a refused request, unless there were many this second.
    pub fn refused(&mut self, now: Time, head: &IoHead, forecast: Forecast) {
        let second = now.as_nanos() / Span::from_secs(1).as_nanos();
        if second != self.refused_second {
            (self.refused_second, self.refused_in_second) = (second, 0);
        }
        if self.refused_in_second == REFUSED_PER_SECOND_MAX {
            return;
        }
        self.refused_in_second += 1;
        let number = self.accepted(head, forecast);
        let trace = self.slot(number).expect("just kept");
        trace.refused = true;
        trace.ended_at = now;
        trace.outcome = Some(Outcome::Busy { wait: forecast.wait, confidence: forecast.confidence });
    }

    /// A kept request has ended. One that was overwritten since is ignored.
    pub fn ended(&mut self, number: u64, now: Time, c: &Completion) {
        if let Some(trace) = self.slot(number) {
            trace.dispatched_at = c.dispatched_at;
            trace.ended_at = now;
            trace.outcome = Some(c.outcome);
        }
    }

    /// A copy of all, newest first.
    pub fn newest_first(&self) -> Vec<Trace> {
        let mut all = self.ring.clone();
        all.sort_unstable_by_key(|t| std::cmp::Reverse(t.number));
        all
    }

    fn keep(&mut self, mut trace: Trace) -> u64 {
        self.taken += 1;
        trace.number = self.taken;
        match self.ring.get_mut(place(self.taken)) {
            Some(slot) => *slot = trace,
            None => self.ring.push(trace),
        }
        self.taken
    }

    fn slot(&mut self, number: u64) -> Option<&mut Trace> {
        self.ring.get_mut(place(number)).filter(|t| t.number == number)
    }
}

fn place(number: u64) -> usize {
    ((number - 1) % TRACES_MAX as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Data, Io};

    fn head(offset: u64) -> IoHead {
        IoHead::new(Op::Read, VolumeKey { id: 1, generation: 1 }, TenantId(1), offset, 512, Time::from_nanos(5))
    }

    #[test]
    fn every_nth_is_due() {
        let mut t = Traces::new(3);
        let due: Vec<bool> = (0..7).map(|_| t.due()).collect();
        assert_eq!(due, [false, false, true, false, false, true, false]);
        let mut always = Traces::new(1);
        assert!(always.due() && always.due());
        let mut never = Traces::new(0);
        assert!(!never.due() && !never.due());
    }

    #[test]
    fn a_trace_that_was_overwritten_is_not_ended() {
        let mut t = Traces::new(1);
        let first = t.accepted(&head(0), Forecast::NONE);
        let capacity = t.ring.capacity();
        for i in 1..=TRACES_MAX as u64 {
            t.accepted(&head(i), Forecast::NONE);
        }
        assert_eq!((t.ring.len(), t.ring.capacity()), (TRACES_MAX, capacity), "bounded, allocated once");
        let done = |h: IoHead| Completion {
            io: Io::new(h, Data::Absent),
            outcome: Outcome::Done,
            dispatched_at: Time::from_nanos(6),
        };
        t.ended(first, Time::from_nanos(9), &done(head(0)));
        assert!(t.newest_first().iter().all(|t| t.outcome.is_none()));
        t.ended(2, Time::from_nanos(9), &done(head(1)));
        let all = t.newest_first();
        let second = all.last().unwrap();
        assert_eq!((second.number, second.offset, second.outcome), (2, 1, Some(Outcome::Done)));
        assert_eq!((second.dispatched_at, second.ended_at), (Time::from_nanos(6), Time::from_nanos(9)));
        assert_eq!(all[0].number, TRACES_MAX as u64 + 1);
    }

    #[test]
    fn refused_ones_are_kept_up_to_a_rate() {
        let mut t = Traces::new(0);
        let at = |s| Time::ZERO + Span::from_secs(s);
        (0..100).for_each(|i| t.refused(at(1), &head(i), Forecast::NONE));
        assert_eq!(t.newest_first().len(), REFUSED_PER_SECOND_MAX as usize);
        t.refused(at(2), &head(1000), Forecast::NONE);
        assert!(t.newest_first()[0].refused && t.newest_first()[0].offset == 1000);
    }
}
