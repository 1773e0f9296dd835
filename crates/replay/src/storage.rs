//! A modelled disk under CFQ, with readers that each are a queue of their own, and timers: what the systems run on.

use crate::pool::BadPool;
use crate::{DeviceChoice, Pool, PoolConfig};
use plimsoll_base::{Data, Io, IoHead, Op, Span, TenantId, Time, VolumeKey};
use plimsoll_device::{DeviceOptions, Model, ModelLayer};
use plimsoll_sched::{Cfq, CfqConfig, DiskModel};
use plimsoll_stack::{Layer, Offered};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// All readers are of one tenant: processes of one of CFQ's groups, served in turn, as on a machine without control groups.
const TENANT: TenantId = TenantId(0);
/// Requests that the systems may have at the disk at once.
const INFLIGHT_MAX: usize = 1 << 16;

/// Next event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<T> {
    /// A timer set by the system.
    Timer(T),
    /// A disk request with this tag has ended.
    Disk(u64),
}

/// A disk and a clock.
pub struct Storage<T> {
    pool: Pool,
    timers: BinaryHeap<Reverse<(Time, u64, T)>>,
    set: u64,
    now: Time,
    /// Requests that have not come back.
    outside: u32,
    /// Since when there are some, and how long there were before.
    busy_since: Time,
    busy: Span,
}

impl<T: Ord> Storage<T> {
    /// The disk `profile` under CFQ that idles for `idle_time`; the seed turns the platters and draws by how much the
    /// drive differs from its profile.
    ///
    /// # Errors
    /// If there is no such profile.
    pub fn new(profile: &str, idle_time: Span, seed: u64) -> Result<Storage<T>, BadPool> {
        let options = DeviceOptions { seed, mismatch: 0.15 };
        let disk = DeviceChoice::named(profile)?.spec.build(options).map_err(|e| BadPool(e.to_string()))?;
        let config = CfqConfig { depth: 1, slice_idle: idle_time, seekers_together: true, ..CfqConfig::default() };
        let cfq = Cfq::new(config, DiskModel::unknown(disk.size_bytes()));
        let layers: Vec<Box<dyn Layer>> = vec![Box::new(cfq), Box::new(ModelLayer::new(disk))];
        let config = PoolConfig { seed, inflight_max: INFLIGHT_MAX, ..PoolConfig::default() };
        let pool = Pool::alone(layers, &config)?;
        Ok(Storage {
            pool,
            timers: BinaryHeap::new(),
            set: 0,
            now: Time::ZERO,
            outside: 0,
            busy_since: Time::ZERO,
            busy: Span::ZERO,
        })
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the disk's busy time so far.
    pub fn busy(&self) -> Span {
        if self.outside == 0 { self.busy } else { self.busy + self.now.since(self.busy_since) }
    }

    /// Bytes on the disk.
    pub fn size_bytes(&self) -> u64 {
        self.pool.offer().size_bytes
    }

    /// Changes CFQ's `idle_time` from now on.
    pub fn set_idle_time(&mut self, idle_time: Span) {
        let set = self.pool.stack.with_layer(self.now, |cfq: &mut Cfq, _| cfq.set_slice_idle(idle_time));
        assert!(set.is_some(), "the stack has a CFQ layer");
    }

    /// Sends a request of reader `queue`; its end is an [`Event::Disk`] with `tag`.
    pub fn send(&mut self, op: Op, queue: u16, offset: u64, len: u64, tag: u64) {
        // CFQ tells a tenant's processes apart by their volumes.
        let process = VolumeKey { id: u32::from(queue) + 1, generation: 0 };
        let mut head = IoHead::new(op, process, TENANT, offset, len, self.now);
        head.tag = tag;
        if self.outside == 0 {
            self.busy_since = self.now;
        }
        self.outside += 1;
        let offered = self.pool.stack.offer(self.now, Io::new(head, Data::Absent));
        assert!(matches!(offered, Offered::Accepted(_)), "a request without a deadline is never refused");
    }

    /// Sets a timer.
    pub fn after(&mut self, span: Span, event: T) {
        self.set += 1;
        self.timers.push(Reverse((self.now + span, self.set, event)));
    }

    /// Returns the time of the next event, if nothing is sent or set until then; [`Time::NEVER`] if there is none.
    pub fn next_at(&self) -> Time {
        let timer = self.timers.peek().map_or(Time::NEVER, |Reverse(t)| t.0);
        self.pool.stack.next_wake().min(timer)
    }

    /// The next event before `until`; `None`, and the clock at `until`, if there is none.
    pub fn next(&mut self, until: Time) -> Option<Event<T>> {
        loop {
            if let Some(c) = self.pool.stack.next_done() {
                self.outside -= 1;
                if self.outside == 0 {
                    self.busy += self.now.since(self.busy_since);
                }
                return Some(Event::Disk(c.io.tag));
            }
            if self.next_at() >= until {
                self.now = until;
                return None;
            }
            let wake = self.pool.stack.next_wake();
            let timer = self.timers.peek().map_or(Time::NEVER, |Reverse(t)| t.0);
            if wake <= timer {
                self.now = wake;
                self.pool.stack.wake(wake);
            } else {
                let Reverse((at, _, event)) = self.timers.pop().expect("just seen");
                self.now = at;
                return Some(Event::Timer(event));
            }
        }
    }
}
