//! Closed loop: simulated threads that wait for their answers.

use crate::address::Placer;
use crate::measure::Measured;
use crate::open::{Limits, PROGRESS_EVERY, VOLUME, io, pool_op, volume_of};
use crate::pool::{BadPool, Pool};
use crate::workload::{ClosedLoop, Step};
use plimsoll_base::{Completion, Data, IoHead, LatencyHistogram, Op, Span, TenantId, Time};
use plimsoll_stack::Offered;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Clone, Copy, Default)]
struct Thread {
    outstanding: u32,
    waits_for_all: bool,
    waits_for_one: bool,
}

/// Results of a part of a workload: an operation, or a tenant (`tenant 0`).
pub struct PerLabel {
    /// Its name.
    pub label: String,
    /// Response times of its requests.
    pub response: LatencyHistogram,
}

struct Driver<'a, W, F> {
    pool: &'a mut Pool,
    workload: &'a mut W,
    limits: &'a Limits,
    placer: Placer,
    threads: Vec<Thread>,
    /// Threads that think, by the time they go on; the number keeps ties in order.
    thinking: BinaryHeap<Reverse<(Time, u64, u32)>>,
    thoughts: u64,
    /// Threads to go on now.
    ready: Vec<u32>,
    sent: u64,
    now: Time,
    m: Measured,
    labels: Vec<LatencyHistogram>,
    /// By tenant; empty if there is only one.
    tenants: Vec<LatencyHistogram>,
    watch: F,
}

/// Steps a thread may take without sending or waiting: more means that time would stand still.
const STEPS_MAX: u32 = 1 << 20;

/// Drives `workload` against `pool` until it finishes or a limit is reached, then lets everything complete. A read that
/// is refused counts as answered: the thread goes elsewhere with it, which takes it one failover hop. Threads are dealt
/// out to [`Limits::tenants`] tenants in turn.
///
/// # Errors
/// If the threads may have more outstanding than the pool holds.
pub fn closed_loop<W: ClosedLoop>(
    pool: &mut Pool,
    workload: &mut W,
    limits: &Limits,
    progress: &mut dyn FnMut(u64, Time),
) -> Result<(Measured, Vec<PerLabel>), BadPool> {
    closed_loop_watched(pool, workload, limits, progress, &mut |_, _| {})
}

/// [`closed_loop`], and `watch` sees each request that ended, and when.
///
/// # Errors
/// As [`closed_loop`].
pub fn closed_loop_watched<W: ClosedLoop>(
    pool: &mut Pool,
    workload: &mut W,
    limits: &Limits,
    progress: &mut dyn FnMut(u64, Time),
    watch: &mut impl FnMut(Time, &Completion),
) -> Result<(Measured, Vec<PerLabel>), BadPool> {
    let offer = pool.offer();
    let threads = workload.threads();
    let most = (0..threads).map(|t| u64::from(workload.depth_of(t))).sum::<u64>();
    if most > pool.inflight_max() as u64 {
        return Err(BadPool(format!(
            "{threads} threads of depth {} may have {most} requests outstanding, and the pool holds {}: use fewer",
            workload.depth(),
            pool.inflight_max()
        )));
    }
    let labels = workload.labels().iter().map(|_| LatencyHistogram::new()).collect();
    let tenants = if limits.tenants > 1 { usize::from(limits.tenants) } else { 0 };
    let mut d = Driver {
        placer: Placer::new(offer.size_bytes, offer.block_bytes, offer.io_bytes_max),
        threads: vec![Thread::default(); threads as usize],
        thinking: BinaryHeap::new(),
        thoughts: 0,
        ready: (0..threads).rev().collect(),
        sent: 0,
        now: pool.ready_at(),
        m: Measured::new(),
        labels,
        tenants: vec![LatencyHistogram::new(); tenants],
        pool,
        workload,
        limits,
        watch,
    };
    d.run(progress);
    d.m.placed(&d.placer);
    let Driver { m, labels, tenants, workload, .. } = d;
    let operations = workload.labels().iter().map(|l| l.to_string()).zip(labels);
    let tenants = tenants.into_iter().enumerate().map(|(t, h)| (format!("tenant {t}"), h));
    Ok((m, operations.chain(tenants).map(|(label, response)| PerLabel { label, response }).collect()))
}

impl<W: ClosedLoop, F: FnMut(Time, &Completion)> Driver<'_, W, F> {
    fn is_over(&self) -> bool {
        self.sent >= self.limits.count_max || self.now >= self.limits.until
    }

    fn run(&mut self, progress: &mut dyn FnMut(u64, Time)) {
        let mut reported = 0;
        loop {
            while let Some(t) = self.ready.pop() {
                self.go(t);
            }
            if self.sent / PROGRESS_EVERY != reported {
                reported = self.sent / PROGRESS_EVERY;
                progress(self.sent, self.now);
            }
            let wake = self.pool.next_event();
            let thought = match self.thinking.peek() {
                Some(Reverse((at, ..))) if !self.is_over() && *at < self.limits.until => *at,
                _ => Time::NEVER,
            };
            if wake.min(thought) == Time::NEVER || (self.pool.stack.inflight() == 0 && !thought.is_set()) {
                break;
            }
            if wake <= thought {
                self.now = wake;
                self.pool.advance(wake);
                self.collect();
            } else {
                self.now = thought;
                let Reverse((_, _, t)) = self.thinking.pop().expect("just seen");
                self.ready.push(t);
            }
        }
        assert_eq!(self.pool.stack.inflight(), 0, "requests are left that nothing will end");
    }

    /// Lets a thread take steps until it waits for something.
    fn go(&mut self, t: u32) {
        for _ in 0..STEPS_MAX {
            if self.is_over() {
                return;
            }
            match self.workload.next(t, self.now) {
                Step::Finished => return,
                Step::Think(span) => return self.think(t, span),
                Step::Wait if self.threads[t as usize].outstanding > 0 => {
                    self.threads[t as usize].waits_for_all = true;
                    return;
                }
                Step::Wait => {}
                Step::Send { request, label } => {
                    let op = pool_op(request.op);
                    if !self.send(t, op, request.offset, request.len, label) {
                        return self.think(t, self.pool.failover_hop());
                    }
                    let thread = &mut self.threads[t as usize];
                    if thread.outstanding >= self.workload.depth_of(t) {
                        thread.waits_for_one = true;
                        return;
                    }
                }
            }
        }
        panic!("thread {t} of the workload takes steps for ever at {:?}", self.now);
    }

    fn think(&mut self, t: u32, span: Span) {
        self.thoughts += 1;
        self.thinking.push(Reverse((self.now + span, self.thoughts, t)));
    }

    fn tenant(&self, thread: u32) -> u16 {
        let dealt = (thread % u32::from(self.limits.tenants.max(1))) as u16;
        self.workload.tenant_of(thread).unwrap_or(dealt)
    }

    /// True if the request was accepted.
    fn send(&mut self, t: u32, op: Op, offset: u64, len: u64, label: u16) -> bool {
        let (offset, len) = if op == Op::Flush { (0, 0) } else { self.placer.place(0, offset, len) };
        let tenant = self.tenant(t);
        let volume = match self.limits.volumes {
            true => volume_of(tenant),
            false => VOLUME,
        };
        let mut head = IoHead::new(op, volume, TenantId(tenant), offset, len, self.now);
        head.tag = u64::from(t) | u64::from(label) << 32;
        if op == Op::Read
            && let Some(within) = self.limits.deadline
        {
            head.deadline = self.now + within;
        }
        self.sent += 1;
        self.m.arrived(self.now, self.now);
        let mut io = io(head);
        if self.pool.is_backed() && op == Op::Write {
            io.data = Data::Zeroes;
        }
        let offered = self.pool.stack.offer(self.now, io);
        self.pool.collect(self.now);
        match &offered {
            Offered::Accepted(_) => self.threads[t as usize].outstanding += 1,
            Offered::Busy(f) => self.m.refused(self.now, &head, f.total()),
        }
        self.collect();
        matches!(offered, Offered::Accepted(_))
    }

    fn collect(&mut self) {
        while let Some(c) = self.pool.stack.next_done() {
            self.ended(&c);
        }
    }

    fn ended(&mut self, c: &Completion) {
        (self.watch)(self.now, c);
        self.m.ended(self.now, c, self.limits.judge);
        let (t, label) = (c.io.tag as u32, (c.io.tag >> 32) as usize);
        if c.outcome.is_done() {
            self.labels[label].record(self.now.since(c.io.arrived_at));
            if let Some(h) = self.tenants.get_mut(usize::from(c.io.tenant.0)) {
                h.record(self.now.since(c.io.arrived_at));
            }
        }
        let thread = &mut self.threads[t as usize];
        thread.outstanding -= 1;
        if thread.waits_for_one || (thread.waits_for_all && thread.outstanding == 0) {
            (thread.waits_for_one, thread.waits_for_all) = (false, false);
            self.ready.push(t);
        }
    }
}
