//! Open loop: requests come at their arrivals, whatever becomes of the ones before.

use crate::address::Placer;
use crate::measure::Measured;
use crate::pool::Pool;
use plimsoll_base::{Completion, Data, Io, IoHead, Op, Span, TenantId, Time, VolumeKey};
use plimsoll_stack::Offered;
use plimsoll_trace::error::TraceError;
use plimsoll_trace::record::{Op as TraceOp, TraceRecord};
use plimsoll_trace::stream::RecordStream;

/// Limits of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Each read's deadline, from its arrival: a read that is forecast to miss it is refused.
    pub deadline: Option<Span>,
    /// Forecasts are judged against this time from arrival, and nothing is refused for it (MittOS §7.6).
    pub judge: Option<Span>,
    /// Requests at most.
    pub count_max: u64,
    /// No request arrives at or after this.
    pub until: Time,
    /// Tenants that the threads of a closed loop are dealt out to; in an open loop each device of the trace is one.
    pub tenants: u16,
    /// Requests of different contexts (processes) of the trace go to volumes of their own, which a scheduler keeps apart.
    pub processes: bool,
    /// Tenants of a closed loop have volumes of their own ([`volume_of`]).
    pub volumes: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            deadline: None,
            judge: None,
            count_max: u64::MAX,
            until: Time::NEVER,
            tenants: 1,
            processes: false,
            volumes: false,
        }
    }
}

/// Number of processes that are distinguished; further ones share their numbers.
const PROCESSES_MAX: u32 = 1024;

/// Requests between two reports of progress.
pub(crate) const PROGRESS_EVERY: u64 = 1 << 16;

/// The pool's operation for a trace's.
pub(crate) fn pool_op(op: TraceOp) -> Op {
    match op {
        TraceOp::Read => Op::Read,
        TraceOp::Write => Op::Write,
        TraceOp::Trim => Op::Trim,
        TraceOp::Flush => Op::Flush,
    }
}

/// A request on its way to the pool.
pub(crate) fn io(head: IoHead) -> Io {
    Io::new(head, Data::Absent)
}

/// The volume of all replayed requests: one pool, one arbiter, one volume.
pub const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 0 };

/// The volume of a closed loop's tenant, where tenants have their own.
pub const fn volume_of(tenant: u16) -> VolumeKey {
    VolumeKey { id: tenant as u32 + 1, generation: 0 }
}

/// Replays `source` on `pool` until it ends and everything has completed. Each device of the trace is a tenant (the
/// first 65,536; further ones share their numbers). `progress` hears now and then how many
/// requests have arrived and at what time.
///
/// # Errors
/// The source's first; what was measured before it is lost.
pub fn open_loop<S: RecordStream>(
    pool: &mut Pool,
    source: &mut S,
    limits: &Limits,
    progress: &mut dyn FnMut(u64, Time),
) -> Result<Measured, TraceError> {
    open_loop_watched(pool, source, limits, progress, &mut |_, _| {})
}

/// [`open_loop`], and `watch` sees each request that ended, and when.
///
/// # Errors
/// As [`open_loop`].
pub fn open_loop_watched<S: RecordStream>(
    pool: &mut Pool,
    source: &mut S,
    limits: &Limits,
    progress: &mut dyn FnMut(u64, Time),
    watch: &mut impl FnMut(Time, &Completion),
) -> Result<Measured, TraceError> {
    let offer = pool.offer();
    let mut placer = Placer::new(offer.size_bytes, offer.block_bytes, offer.io_bytes_max);
    let mut m = Measured::new();
    let mut now = Time::ZERO;
    let mut arrivals = 0;
    let mut next = pull(source, limits, arrivals)?;
    loop {
        let wake = pool.stack.next_wake();
        let arrival = match &next {
            Some(r) if !pool.is_full() => r.at.max(now),
            _ => Time::NEVER,
        };
        // At one instant the device goes first: what has ended leaves room.
        if wake <= arrival {
            if !wake.is_set() {
                break;
            }
            if next.is_none() && pool.stack.inflight() == 0 {
                break; // only work of the device's own is left
            }
            now = wake;
            pool.stack.wake(now);
            while let Some(c) = pool.stack.next_done() {
                watch(now, &c);
                m.ended(now, &c, limits.judge);
            }
            continue;
        }
        now = arrival;
        let r = next.take().expect("an arrival that is due");
        m.arrived(r.at, now);
        arrive(pool, &mut placer, &mut m, limits, now, &r);
        while let Some(c) = pool.stack.next_done() {
            watch(now, &c);
            m.ended(now, &c, limits.judge);
        }
        arrivals += 1;
        if arrivals % PROGRESS_EVERY == 0 {
            progress(arrivals, now);
        }
        next = pull(source, limits, arrivals)?;
    }
    assert_eq!(pool.stack.inflight(), 0, "requests are left that nothing will end");
    m.placed(&placer);
    Ok(m)
}

/// Part of a record that the pool is to know: a third of its size, and it is moved several times.
struct Arrival {
    at: Time,
    op: TraceOp,
    device: u32,
    offset: u64,
    len: u64,
    context: Option<u32>,
}

fn pull<S: RecordStream>(source: &mut S, limits: &Limits, arrivals: u64) -> Result<Option<Arrival>, TraceError> {
    if arrivals == limits.count_max {
        return Ok(None);
    }
    match source.next_record() {
        Some(Ok(TraceRecord { arrived_at: at, op, device, offset, len, context, .. })) if at < limits.until => {
            Ok(Some(Arrival { at, op, device, offset, len, context }))
        }
        Some(Err(e)) => Err(e),
        _ => Ok(None),
    }
}

fn arrive(pool: &mut Pool, placer: &mut Placer, m: &mut Measured, limits: &Limits, now: Time, r: &Arrival) {
    let op = pool_op(r.op);
    let (offset, len) = if op == Op::Flush { (0, 0) } else { placer.place(r.device, r.offset, r.len) };
    let mut head = IoHead::new(op, VOLUME, TenantId(r.device as u16), offset, len, r.at);
    if limits.processes {
        head.volume.id += r.context.map_or(0, |c| c % PROCESSES_MAX);
    }
    if op == Op::Read
        && let Some(within) = limits.deadline
    {
        head.deadline = r.at + within;
    }
    if let Offered::Busy(f) = pool.stack.offer(now, io(head)) {
        m.refused(now, &head, f.total());
    }
}
