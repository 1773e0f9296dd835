//! A closed loop against a device that answers everything after the same time, whatever its load: turns a closed loop into a
//! trace, and shows its shape without a device model.

use crate::workload::open::Until;
use crate::workload::{ClosedLoop, Step};
use plimsoll_base::{Span, Time};
use plimsoll_trace::error::TraceError;
use plimsoll_trace::record::{Tables, TraceRecord};
use plimsoll_trace::stream::RecordStream;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Event that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// One of its requests completes.
    Done,
    /// It may take its next step.
    Go,
}

struct Thread {
    outstanding: u32,
    waits_for_all: bool,
    waits_for_one: bool,
}

/// The requests of a closed loop under a constant latency. The service time of a record is that latency; its
/// context is the operation's label.
pub struct Paced<C> {
    workload: C,
    latency: Span,
    until: Until,
    threads: Vec<Thread>,
    /// Time, a number that keeps ties in order, thread.
    events: BinaryHeap<Reverse<(Time, u64, u32, Event)>>,
    events_made: u64,
    given: u64,
    tables: Tables,
}

/// Steps a thread may take at one instant: more means that it neither sends nor waits, and time would stand still.
const STEPS_MAX: u32 = 1 << 20;

impl<C: ClosedLoop> Paced<C> {
    /// Drives `workload` with every answer coming after `latency` (at least 1 ns).
    pub fn new(workload: C, latency: Span, until: Until, device: &str) -> Paced<C> {
        let mut tables = Tables::new();
        tables.devices.intern(device.as_bytes());
        for label in workload.labels() {
            tables.contexts.intern(label.as_bytes());
        }
        let threads = (0..workload.threads())
            .map(|_| Thread { outstanding: 0, waits_for_all: false, waits_for_one: false })
            .collect();
        let latency = latency.max(Span::from_nanos(1));
        let mut paced =
            Paced { workload, latency, until, threads, events: BinaryHeap::new(), events_made: 0, given: 0, tables };
        for t in 0..paced.workload.threads() {
            paced.schedule(Time::ZERO, t, Event::Go);
        }
        paced
    }

    fn schedule(&mut self, at: Time, thread: u32, event: Event) {
        self.events.push(Reverse((at, self.events_made, thread, event)));
        self.events_made += 1;
    }

    /// Lets a thread take steps until it sends something (which is returned) or has to wait.
    fn go(&mut self, thread: u32, now: Time) -> Option<TraceRecord> {
        for _ in 0..STEPS_MAX {
            match self.workload.next(thread, now) {
                Step::Finished => return None,
                Step::Think(span) => {
                    self.schedule(now + span, thread, Event::Go);
                    return None;
                }
                Step::Wait => {
                    let t = &mut self.threads[thread as usize];
                    if t.outstanding > 0 {
                        t.waits_for_all = true;
                        return None;
                    }
                }
                Step::Send { request, label } => {
                    let t = &mut self.threads[thread as usize];
                    t.outstanding += 1;
                    t.waits_for_one = t.outstanding >= self.workload.depth();
                    if !t.waits_for_one {
                        self.schedule(now, thread, Event::Go);
                    }
                    self.schedule(now + self.latency, thread, Event::Done);
                    return Some(TraceRecord {
                        service: Some(self.latency),
                        context: Some(u32::from(label)),
                        ..TraceRecord::new(now, 0, request.op, request.offset, request.len)
                    });
                }
            }
        }
        panic!("thread {thread} of the workload takes steps for ever at {now:?}");
    }
}

impl<C: ClosedLoop> RecordStream for Paced<C> {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        while self.given < self.until.count {
            let Reverse((now, _, thread, event)) = self.events.pop()?;
            if now >= self.until.time {
                self.events.clear();
                return None;
            }
            if event == Event::Done {
                let t = &mut self.threads[thread as usize];
                t.outstanding -= 1;
                let goes_on = (t.waits_for_all && t.outstanding == 0) || t.waits_for_one;
                if !goes_on {
                    continue;
                }
                (t.waits_for_all, t.waits_for_one) = (false, false);
            }
            if let Some(record) = self.go(thread, now) {
                self.given += 1;
                return Some(Ok(record));
            }
        }
        None
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }
}
