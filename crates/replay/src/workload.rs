//! Workloads made up from parameters and a seed.
//!
//! Two shapes:
//! * **Open loop**: arrival times are given, whatever the system does. [`open::OpenLoop`] sends the requests of a [`Requests`]
//!   generator at the times of an [`open::Arrivals`] process. It is a [`RecordStream`](plimsoll_trace::RecordStream) like a
//!   trace, and response time counts from the arrival. Noise ([`noise`]) is of this shape.
//! * **Closed loop**: simulated threads, each of which waits for its answers ([`ClosedLoop`]). Someone drives them:
//!   the replay engine against a device, or [`pace::Paced`] against a constant latency.
//!
//! Every generator takes a seed; the same seed gives the same requests, as long as answers come at the same times.

pub mod filebench;
pub mod fio;
pub mod named;
pub mod noise;
pub mod open;
pub mod pace;
pub mod random;
pub mod together;
pub mod web;
pub mod ycsb;

use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::record::Op;
use std::fmt;

/// Request to the volume.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes; zero for flushes.
    pub len: u64,
}

impl Request {
    /// A flush.
    pub const FLUSH: Request = Request { op: Op::Flush, offset: 0, len: 0 };
}

/// An endless sequence of requests without times.
pub trait Requests {
    /// The next one.
    fn next_request(&mut self) -> Request;
}

/// Next step of a thread in a closed loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Sends a request, part of the operation numbered `label` ([`ClosedLoop::labels`]).
    Send {
        /// Request.
        request: Request,
        /// Operation that it belongs to.
        label: u16,
    },
    /// Idles for this time. Requests that the thread has sent may complete meanwhile.
    Think(Span),
    /// Sync point: goes on once everything this thread has sent is complete.
    Wait,
    /// Never does anything again.
    Finished,
}

/// Simulated threads that wait for their answers. The driver asks each thread for its next step when the last one is
/// over: a request is over at once unless the thread then has [`ClosedLoop::depth`] requests outstanding, in which
/// case it is over when one of them completes.
pub trait ClosedLoop {
    /// Returns the number of threads, numbered from 0.
    fn threads(&self) -> u32;

    /// Requests a thread may have outstanding, at least 1.
    fn depth(&self) -> u32;

    /// Requests that one thread may have outstanding, where threads differ; at most [`ClosedLoop::depth`].
    fn depth_of(&self, thread: u32) -> u32 {
        let _ = thread;
        self.depth()
    }

    /// Returns the thread's tenant; `None`: threads are dealt out to the driver's tenants in turn.
    fn tenant_of(&self, thread: u32) -> Option<u16> {
        let _ = thread;
        None
    }

    /// The names of the operations that requests belong to, in the order of their numbers.
    fn labels(&self) -> &[&'static str];

    /// Returns the step of thread `thread` at `now`. `now` never goes back from one call to the next.
    fn next(&mut self, thread: u32, now: Time) -> Step;
}

/// Parameters that contradict each other or have no meaning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadWorkload {
    /// Parameter.
    pub parameter: &'static str,
    /// Problem and remedy.
    pub what: String,
}

impl BadWorkload {
    pub(crate) fn new(parameter: &'static str, what: impl Into<String>) -> BadWorkload {
        BadWorkload { parameter, what: what.into() }
    }
}

impl fmt::Display for BadWorkload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "workload: {}: {}", self.parameter, self.what)
    }
}
impl std::error::Error for BadWorkload {}

/// Keeps operations to a rate: operation number `n` may start `n / rate` seconds after the first. Being late isn't
/// made up for by more than one interval, so that a stall is not followed by a burst.
#[derive(Clone, Debug)]
pub(crate) struct RateCap {
    interval: Span,
    next_at: Time,
}

impl RateCap {
    /// `per_second` operations a second; 0: no cap.
    pub fn new(per_second: u64) -> RateCap {
        let interval = Span::from_nanos(1_000_000_000u64.checked_div(per_second).unwrap_or(0));
        RateCap { interval, next_at: Time::ZERO }
    }

    /// Returns the wait at `now` before the next operation; zero: it may start, and is counted.
    pub fn wait(&mut self, now: Time) -> Span {
        self.wait_at(now, None)
    }

    /// The same, with exponentially distributed gaps if `gaps` draws them; operations that couldn't start in time follow at once, up
    /// to a second's worth.
    pub fn wait_at(&mut self, now: Time, gaps: Option<&mut Rng>) -> Span {
        if now < self.next_at {
            return self.next_at.since(now);
        }
        self.next_at = match gaps {
            None => self.next_at.max(now - self.interval) + self.interval,
            Some(rng) => {
                let gap = -(1.0 - rng.unit()).ln() * self.interval.as_nanos() as f64;
                self.next_at.max(now - Span::from_secs(1)) + Span::from_nanos(gap as u64)
            }
        };
        Span::ZERO
    }
}
