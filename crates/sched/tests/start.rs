//! Accepted means kept from the first read on: admission over a device of which nothing is known yet, by a hand-moved clock.

use plimsoll_base::{Completion, Data, Io, IoHead, Op, Outcome, Rng, Span, TenantId, Time, VolumeKey};
use plimsoll_sched::admission::{Admission, AdmissionConfig};
use plimsoll_sched::room::RoomConfig;
use plimsoll_sched::{DiskModel, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Offer, Offered, Stack, StackConfig, Target};
use std::collections::VecDeque;

const SIZE: u64 = 4 << 30;
/// A turn of the platter at 7200 rpm, in microseconds.
const TURN_US: u64 = 8333;
const DEADLINE: Span = Span::from_millis(20);

/// A disk's own time for a read: a seek by distance, a part of a turn by chance, the transfer.
fn disk(from: u64, to: u64, rng: &mut Rng) -> Span {
    let seek_us = 500 + 2000 * from.abs_diff(to).isqrt() / SIZE.isqrt();
    Span::from_micros(seek_us + rng.below(TURN_US) + 40)
}

const SEEDS: u64 = 8;

/// Numbers of a run's reads by their ends.
#[derive(Clone, Copy, Default, Debug)]
struct Run {
    kept: u64,
    late: u64,
    refused: u64,
}

impl Run {
    fn and(self, r: Run) -> Run {
        Run { kept: self.kept + r.kept, late: self.late + r.late, refused: self.refused + r.refused }
    }
}

/// `n` reads at `rate` a second, evenly or by chance, from a fresh pool's first moment on.
fn run(kind: SchedulerKind, depth: u32, seed: u64, n: u64, rate: u64, evenly: bool) -> Run {
    let offer = Offer { size_bytes: SIZE, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
    let config = StackConfig::default();
    let mut s = Stack::new(config, vec![offer]);
    let admission = AdmissionConfig { room: Some(RoomConfig::DEFAULT) };
    s.push(Box::new(Admission::new(admission, config.failover_hop)), vec![Target::Node(1)]);
    let options = SchedulerOptions { depth, has_room: true, ..SchedulerOptions::default() };
    s.push(kind.layer(&options, DiskModel::unknown(SIZE)), vec![Target::Device(0)]);
    s.start(Time::ZERO);
    let mut rng = Rng::new(seed, "start");
    let mut times = Rng::new(seed, "disk");
    let (mut r, mut arm) = (Run::default(), 0);
    let mut at_disk = VecDeque::new();
    let mut ends_at = Time::NEVER;
    let mut arrives_at = Time::ZERO;
    let mut arrived = 0;
    loop {
        let next = if arrived < n { arrives_at } else { Time::NEVER };
        let now = next.min(ends_at).min(s.next_wake());
        if !now.is_set() {
            break;
        }
        if ends_at <= now {
            let io: Io = at_disk.pop_front().expect("it ends");
            arm = io.end();
            ends_at = Time::NEVER;
            s.device_done(now, 0, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        } else if s.next_wake() <= now {
            s.wake(now);
        } else {
            let mean = 1_000_000_000 / rate;
            let uniform = (rng.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64;
            arrives_at += Span::from_nanos(if evenly { mean } else { (-uniform.ln() * mean as f64) as u64 });
            arrived += 1;
            let offset = rng.below(SIZE / 4096) * 4096;
            let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), offset, 4096, now);
            head.deadline = now + DEADLINE;
            r.refused += u64::from(matches!(s.offer(now, Io::new(head, Data::Absent)), Offered::Busy(_)));
        }
        while let Some((_, io)) = s.next_device_io() {
            at_disk.push_back(io);
        }
        if !ends_at.is_set()
            && let Some(io) = at_disk.front()
        {
            ends_at = now + disk(arm, io.offset, &mut times);
        }
        while let Some(c) = s.next_done() {
            let end = match (c.outcome.is_done(), now > c.io.deadline) {
                (false, _) => &mut r.refused,
                (true, true) => &mut r.late,
                (true, false) => &mut r.kept,
            };
            *end += 1;
        }
    }
    assert_eq!(r.kept + r.late + r.refused, n);
    r
}

/// The banner's demonstration: 250 reads a second on a disk that serves 150, the first 400 of them. The other rates are 50 to 300 % of
/// what the disk serves.
#[test]
fn accepted_reads_are_in_time_from_the_first_one_on() {
    for (kind, depth) in [
        (SchedulerKind::Noop, 1),
        (SchedulerKind::Noop, 4),
        (SchedulerKind::Deadline, 4),
        (SchedulerKind::Cfq, 1),
        (SchedulerKind::Cfq, 4),
        (SchedulerKind::Auto, 1),
        (SchedulerKind::Auto, 4),
        (SchedulerKind::Auto, 32),
    ] {
        for rate in [75, 150, 250, 300, 450] {
            for evenly in [true, false] {
                let runs = (1..=SEEDS).map(|seed| run(kind, depth, seed, 400, rate, evenly));
                let all = runs.fold(Run::default(), Run::and);
                let accepted = all.kept + all.late;
                let what = format!("{} of depth {depth}, {rate} a second, evenly: {evenly}: {all:?}", kind.name());
                assert!(all.late * 100 <= accepted, "{what}");
                // Of 400 reads the disk can serve 400 at 75 a second, and 133 at 450. CFQ without a profile accepts half of them.
                let served = 400 * 150 / rate.max(150);
                assert!(accepted * 100 >= SEEDS * served * 40, "needlessly refused: {what}");
            }
        }
    }
}

/// Twenty reads begin within the time of one: of all but the first nothing is known that a promise could rest on.
#[test]
fn reads_of_an_unknown_device_are_accepted_one_at_a_time() {
    let all =
        (1..=20).map(|seed| run(SchedulerKind::Noop, 1, seed, 20, 1_000_000, true)).fold(Run::default(), Run::and);
    assert_eq!((all.kept, all.late, all.refused), (20, 0, 380), "{all:?}");
}

/// Auto forecasts by costs at first, then by what reads took that looked alike, and moves its limit as it learns: none of it may break
/// more promises than the first reads do.
#[test]
fn auto_keeps_promises_while_it_learns() {
    for (depth, rate) in [(1, 75), (1, 150), (1, 250), (4, 250), (32, 250), (4, 450)] {
        let runs = (1..=4).map(|seed| run(SchedulerKind::Auto, depth, seed, 6_000, rate, false));
        let all = runs.fold(Run::default(), Run::and);
        let accepted = all.kept + all.late;
        let what = format!("depth {depth}, {rate} a second: {all:?}");
        assert!(all.late * 100 <= accepted, "{what}");
        assert!(accepted * 100 >= 4 * 6_000 * 150 / rate.max(150) * 40, "needlessly refused: {what}");
    }
}
