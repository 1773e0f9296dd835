//! A device that was slow for a while and is no more: nobody may be refused for good for what it was.

use plimsoll_base::{Completion, Data, Io, IoHead, Op, Outcome, Rng, Span, TenantId, Time, VolumeKey};
use plimsoll_sched::disk::OpCosts;
use plimsoll_sched::{DiskModel, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Offer, Offered, Stack, StackConfig, Target};

const SIZE: u64 = 1 << 40;

fn ms(n: u64) -> Span {
    Span::from_millis(n)
}

/// Ten milliseconds, wherever it is.
fn measured() -> DiskModel {
    let points = vec![(4096, ms(10))];
    let costs = OpCosts { sequential: ms(10), distances: [points.clone(), points], transfer_ns_per_kib: [0; 8] };
    DiskModel::from_costs(SIZE, &[costs.clone(), costs], 0)
}

struct Bench {
    stack: Stack,
    now: Time,
    rng: Rng,
}

impl Bench {
    fn new(kind: SchedulerKind, model: DiskModel) -> Bench {
        let offer =
            Offer { size_bytes: SIZE, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let mut stack = Stack::new(StackConfig::default(), vec![offer]);
        let options = SchedulerOptions { depth: 1, ..SchedulerOptions::default() };
        stack.push(kind.layer(&options, model), vec![Target::Device(0)]);
        stack.start(Time::ZERO);
        Bench { stack, now: Time::ZERO, rng: Rng::new(7, "healed") }
    }

    /// Offers a request somewhere; the device, which has nothing else, serves it in `took` if it wasn't refused.
    fn one(&mut self, op: Op, deadline: Option<Span>, took: Span) -> bool {
        let offset = self.rng.below(SIZE / 4096 - 1) * 4096;
        let mut head = IoHead::new(op, VolumeKey::POOL, TenantId(1), offset, 4096, self.now);
        head.deadline = deadline.map_or(Time::NEVER, |d| self.now + d);
        let accepted = matches!(self.stack.offer(self.now, Io::new(head, Data::Absent)), Offered::Accepted(_));
        if accepted {
            self.now += took;
            let (d, io) = self.stack.next_device_io().expect("nothing else is there");
            self.stack.device_done(self.now, d, Completion { io, outcome: Outcome::Done, dispatched_at: self.now });
            let ended = self.stack.next_done().expect("it was served");
            assert!(ended.outcome.is_done(), "what was let through isn't given back: {:?}", ended.outcome);
        }
        accepted
    }

    /// For so long a read with a deadline of 20 ms every 50 ms, and a write every second: how many of a thousand reads come through.
    fn share_accepted(&mut self, time: Span, took: Span) -> u64 {
        let (from, mut accepted, mut n) = (self.now, 0, 0);
        while self.now < from + time {
            let next = self.now + ms(50);
            accepted += u64::from(self.one(Op::Read, Some(ms(20)), took));
            if n % 20 == 0 {
                assert!(self.one(Op::Write, None, took));
            }
            n += 1;
            self.now = self.now.max(next);
        }
        accepted * 1000 / n
    }
}

#[test]
fn who_was_refused_for_slowness_is_served_once_it_is_over() {
    use SchedulerKind::{Auto, BlackBox, Cfq, Deadline, Noop};
    for kind in [Auto, Noop, Deadline, Cfq, BlackBox] {
        for profiled in [true, false] {
            let model = if profiled { measured() } else { DiskModel::unknown(SIZE) };
            let mut b = Bench::new(kind, model);
            (0..300).for_each(|_| assert!(b.one(Op::Read, None, ms(10))));
            (0..6000).for_each(|_| assert!(b.one(Op::Read, None, ms(25))));
            let what = format!("{}, profiled: {profiled}", kind.name());
            assert!((0..10).all(|_| !b.one(Op::Read, Some(ms(20)), ms(10))), "{what}: slow it was");
            b.share_accepted(Span::from_secs(60), ms(10));
            let served = b.share_accepted(Span::from_secs(60), ms(10));
            assert!(served >= 900, "{what}: {served} of a thousand");
        }
    }
}

/// While it is slow no more than one a second is let through to find that out, and none that the drive has never been able to serve.
#[test]
fn who_asks_for_too_much_is_refused_all_the_same() {
    for kind in SchedulerKind::FOR_DISKS {
        let mut b = Bench::new(kind, measured());
        (0..6000).for_each(|_| assert!(b.one(Op::Read, None, ms(25))));
        let served = b.share_accepted(Span::from_secs(60), ms(25));
        // One of twenty, and those at distances that it has hardly ever seen.
        assert!((10..=100).contains(&served), "{}: {served} of a thousand", kind.name());
        for _ in 0..10 {
            b.now += Span::from_secs(5);
            assert!(!b.one(Op::Read, Some(ms(5)), ms(10)), "{}: below the smallest I/O", kind.name());
        }
    }
}
