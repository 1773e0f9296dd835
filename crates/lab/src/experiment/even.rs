//! A drive without chance: one request after the other, each for a time that its distance from the one before determines. On it
//! only the order is left to predict. A predictor's additional errors on a real drive come from properties that distances don't
//! show.

use plimsoll_base::{IoHead, Op as IoOp, Span, TenantId, Time, VolumeKey};
use plimsoll_device::{Done, Model, Op, Request};
use plimsoll_sched::DiskModel;
use std::collections::VecDeque;

/// See the module's documentation.
#[derive(Clone)]
pub(crate) struct Even {
    costs: DiskModel,
    size_bytes: u64,
    arm: u64,
    /// As they came; the first is being served since, until.
    queue: VecDeque<Request>,
    served: (Time, Time),
}

impl Even {
    pub(crate) fn new(costs: DiskModel, size_bytes: u64) -> Even {
        Even { costs, size_bytes, arm: 0, queue: VecDeque::new(), served: (Time::NEVER, Time::NEVER) }
    }

    fn begin(&mut self, now: Time) {
        let Some(req) = self.queue.front() else { return };
        let op = match req.op {
            Op::Read => IoOp::Read,
            Op::Flush => IoOp::Flush,
            Op::Write { .. } | Op::Trim | Op::WriteZeroes => IoOp::Write,
        };
        let head = IoHead::new(op, VolumeKey::POOL, TenantId(0), req.offset, req.len, now);
        let takes = self.costs.cost(now, self.arm, &head).max(Span::from_nanos(1));
        self.served = (now, now + takes);
    }
}

impl Model for Even {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
    fn block_bytes(&self) -> u32 {
        512
    }
    fn submit(&mut self, now: Time, req: Request) {
        self.queue.push_back(req);
        if self.queue.len() == 1 {
            self.begin(now);
        }
    }
    fn next_event(&self) -> Time {
        if self.queue.is_empty() { Time::NEVER } else { self.served.1 }
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        while !self.queue.is_empty() && self.served.1 <= now {
            let req = self.queue.pop_front().expect("just seen");
            let (started_at, at) = self.served;
            if req.op != Op::Flush {
                self.arm = req.offset + req.len;
            }
            done.push(Done { tag: req.tag, at, started_at });
            self.begin(at);
        }
    }
    fn outstanding(&self) -> usize {
        self.queue.len()
    }
    fn queue_max(&self) -> usize {
        1024
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_sched::disk::OpCosts;

    #[test]
    fn times_follow_from_distances_alone() {
        // A millisecond a gigabyte.
        let points = vec![(4096, Span::from_nanos(4)), (1 << 40, Span::from_millis(1024))];
        let c = OpCosts { sequential: Span::ZERO, distances: [points.clone(), points], transfer_ns_per_kib: [0; 8] };
        let mut drive = Even::new(DiskModel::from_costs(1 << 40, &[c.clone(), c], 0), 1 << 40);
        let mut done = Vec::new();
        for (tag, gib) in [(1, 10u64), (2, 30), (3, 0)] {
            drive.submit(Time::ZERO, Request { tag, op: Op::Read, offset: gib << 30, len: 512 });
        }
        while drive.outstanding() > 0 {
            drive.advance(drive.next_event(), &mut done);
        }
        let ms: Vec<u64> = done.iter().map(|d| (d.at.as_nanos() + 500_000) / 1_000_000).collect();
        assert_eq!(ms, [10, 30, 60]);
        assert_eq!(done[1].started_at, done[0].at);
    }
}
