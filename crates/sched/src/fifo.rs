//! A queue in the order of arrival, over a device of whose requests only the rate is known.

use plimsoll_base::{Io, IoId, Span, Time};
use std::collections::VecDeque;

/// A completion that follows the one before by more says nothing of the rate.
const BETWEEN_MAX_NS: u64 = 10_000_000_000;
/// The rate follows by 1/2 to the power of this.
const RATE_SHIFT: u32 = 4;

/// See the module's documentation.
pub(crate) struct Fifo {
    queue: VecDeque<Io>,
    depth: usize,
    at_device: usize,
    /// The mean time between two completions while something waited, in ns.
    between_ns: u64,
    last_done: Time,
    /// Since when the device has had something without a break.
    busy_since: Time,
}

impl Fifo {
    /// An empty queue over a device that is given at most `depth` requests at once.
    ///
    /// # Panics
    /// If the depth is zero.
    pub(crate) fn new(depth: u32) -> Fifo {
        assert!(depth > 0, "a device with depth 0 would serve nothing");
        let (depth, never) = (depth as usize, Time::ZERO);
        Fifo { queue: VecDeque::new(), depth, at_device: 0, between_ns: 0, last_done: never, busy_since: never }
    }

    /// The device takes no more than this.
    pub(crate) fn limit_depth(&mut self, queue_max: u32) {
        self.depth = self.depth.min(queue_max as usize).max(1);
    }

    /// Requests waiting here and at the device.
    pub(crate) fn depths(&self) -> (usize, usize) {
        (self.queue.len(), self.at_device)
    }

    /// Returns the wait of a new request here, by the rate at which the device takes waiting requests.
    pub(crate) fn wait(&self) -> Span {
        Span::from_nanos(self.between_ns) * self.queue.len() as u64
    }

    pub(crate) fn push(&mut self, io: Io) {
        self.queue.push_back(io);
    }

    /// The next request for the device, if it has room.
    pub(crate) fn next(&mut self, now: Time) -> Option<Io> {
        if self.at_device == self.depth {
            return None;
        }
        let io = self.queue.pop_front()?;
        if self.at_device == 0 {
            self.busy_since = now;
        }
        self.at_device += 1;
        Some(io)
    }

    /// The device has answered one.
    pub(crate) fn came_back(&mut self, now: Time) {
        self.at_device -= 1;
        // While it had nothing it took nothing.
        let between = now.since(self.last_done.max(self.busy_since)).as_nanos();
        if !self.queue.is_empty() && between <= BETWEEN_MAX_NS {
            self.between_ns = self.between_ns - (self.between_ns >> RATE_SHIFT) + (between >> RATE_SHIFT);
        }
        self.last_done = now;
    }

    /// Takes out a request that waits here.
    pub(crate) fn withdraw(&mut self, id: IoId) -> Option<Io> {
        let at = self.queue.iter().position(|io| io.id == id)?;
        self.queue.remove(at)
    }

    /// Asserts what holds between two calls of the layer, which fills the device at the end of each.
    pub(crate) fn check(&self) {
        assert!(self.queue.is_empty() || self.at_device >= self.depth, "a request waits while the device has room");
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.at_device == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Data, IoHead, Op, TenantId, VolumeKey};

    #[test]
    fn the_wait_is_what_the_queue_took_lately() {
        let mut f = Fifo::new(2);
        let mut now = Time::ZERO;
        for i in 0..200 {
            let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), i, 1, now);
            head.id = IoId(i);
            f.push(Io::new(head, Data::Absent));
        }
        assert_eq!((f.next(now).map(|io| io.offset), f.next(now).map(|io| io.offset)), (Some(0), Some(1)));
        assert!(f.next(now).is_none(), "two are at the device");
        for i in 2..100 {
            now += Span::from_millis(3);
            f.came_back(now);
            assert_eq!(f.next(now).map(|io| io.offset), Some(i));
        }
        let want = Span::from_millis(3) * f.depths().0 as u64;
        assert!(f.wait() > want * 9 / 10 && f.wait() <= want, "{} of {want}", f.wait());
        assert_eq!(f.withdraw(IoId(150)).map(|io| io.offset), Some(150));
        assert!(f.withdraw(IoId(1)).is_none(), "it's at the device");
    }

    /// A hundred at once after a pause of `pause`; what the one behind them waits once the first has come back.
    fn burst_after(pause: Span) -> Span {
        let mut f = Fifo::new(32);
        let mut now = Time::ZERO + pause;
        for i in 0..100 {
            let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), i, 1, now);
            head.id = IoId(i);
            f.push(Io::new(head, Data::Absent));
        }
        while f.next(now).is_some() {}
        now += Span::from_micros(100);
        f.came_back(now);
        f.wait()
    }

    #[test]
    fn a_pause_is_not_taken_for_slowness() {
        for pause in [Span::ZERO, Span::from_secs(1), Span::from_secs(3600)] {
            let wait = burst_after(pause);
            assert!(wait < Span::from_millis(1), "{wait} after a pause of {pause}");
        }
    }
}
