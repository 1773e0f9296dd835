//! Replays against oracles, and twice.

use plimsoll_base::{Completion, Rng, Span, Time};
use plimsoll_device::{Disk, DiskOptions, Done, Model, Op as ModelOp, Request};
use plimsoll_replay::workload::fio::{Fio, FioJob, FioRequests};
use plimsoll_replay::workload::open::{Arrivals, OpenLoop, Until};
use plimsoll_replay::{DeviceChoice, Limits, Measured, Pool, PoolConfig, closed_loop, open_loop, open_loop_watched};
use plimsoll_sched::SchedulerKind;
use plimsoll_trace::record::{Op, Tables, TraceRecord};
use plimsoll_trace::stream::{Held, RecordStream};

const DEVICE: &str = "cheetah-15k5";

fn pool(config: &PoolConfig) -> Pool {
    Pool::new(&DeviceChoice::named(DEVICE).unwrap(), config).unwrap()
}

fn random_trace(n: u64, gap_mean_us: u64, seed: u64) -> Vec<TraceRecord> {
    let mut rng = Rng::new(seed, "trace");
    let mut at = Time::ZERO;
    (0..n)
        .map(|_| {
            at += Span::from_micros(1 + rng.below(2 * gap_mean_us));
            let op = if rng.chance(0.6) { Op::Read } else { Op::Write };
            TraceRecord::new(at, 0, op, rng.below(1 << 24) * 4096, 4096 << rng.below(4))
        })
        .collect()
}

/// A queue in front of a disk, one request at a time, written as plainly as can be.
fn naive_fifo(records: &[TraceRecord], seed: u64) -> Vec<Span> {
    let choice = DeviceChoice::named(DEVICE).unwrap();
    let mut disk = Disk::new(choice.disk().unwrap(), DiskOptions { seed, mismatch: None }).unwrap();
    let mut free_at = Time::ZERO;
    let mut responses = Vec::new();
    for r in records {
        let start = r.arrived_at.max(free_at);
        let op = if r.op == Op::Read { ModelOp::Read } else { ModelOp::Write { fua: false } };
        let mut done: Vec<Done> = Vec::new();
        // What the drive does of its own until then.
        while disk.next_event() <= start {
            disk.advance(disk.next_event(), &mut done);
        }
        disk.submit(start, Request { tag: 0, op, offset: r.offset, len: r.len });
        while done.is_empty() {
            disk.advance(disk.next_event(), &mut done);
        }
        free_at = done[0].at;
        responses.push(free_at.since(r.arrived_at));
    }
    responses
}

#[test]
fn depth_one_is_a_queue_before_a_disk() {
    for (gap_us, seed) in [(20_000, 1), (6_500, 2), (2_000, 3)] {
        let records = random_trace(2_000, gap_us, seed);
        let mut p = pool(&PoolConfig { depth: 1, seed, ..PoolConfig::default() });
        let mut ours = Vec::new();
        let mut source = Held::new(records.clone(), Tables::new());
        let mut watch = |now: Time, c: &Completion| ours.push(now.since(c.io.arrived_at));
        open_loop_watched(&mut p, &mut source, &Limits::default(), &mut |_, _| {}, &mut watch).unwrap();
        assert_eq!(ours, naive_fifo(&records, seed), "mean gap {gap_us} us");
    }
}

fn fingerprint(m: &Measured, next: u64) -> (u64, u64, u64, u64) {
    (m.event_hash, next, m.clock.as_nanos(), m.requests())
}

/// Every run twice: same events, same next random number, same final clock.
#[test]
fn a_run_repeats_to_the_bit() {
    for sched in SchedulerKind::FOR_DISKS {
        let open = |seed| {
            let config = PoolConfig { sched, seed, mismatch: 0.15, ..PoolConfig::default() };
            let mut p = pool(&config);
            let requests = FioRequests::new(&FioJob::new(p.offer().size_bytes), 0, seed).unwrap();
            let mut rng = Rng::new(seed, "deadlines");
            let deadline = Span::from_millis(10 + rng.below(20));
            let arrivals = Arrivals::poisson_per_second(150);
            let mut source = OpenLoop::new(requests, arrivals, Until::count(20_000), "d", seed).unwrap();
            let limits = Limits { deadline: Some(deadline), ..Limits::default() };
            let m = open_loop(&mut p, &mut source, &limits, &mut |_, _| {}).unwrap();
            fingerprint(&m, rng.next_u64())
        };
        assert_eq!(open(7), open(7), "{}", sched.name());
        assert_ne!(open(7).0, open(8).0, "{}", sched.name());
        let closed = |seed| {
            let mut p = pool(&PoolConfig { sched, seed, depth: 8, ..PoolConfig::default() });
            let job = FioJob { depth: 4, jobs: 4, read_percent: 70, ..FioJob::new(p.offer().size_bytes) };
            let mut w = Fio::new(&job, seed).unwrap();
            let limits = Limits { count_max: 10_000, ..Limits::default() };
            let (m, _) = closed_loop(&mut p, &mut w, &limits, &mut |_, _| {}).unwrap();
            fingerprint(&m, 0)
        };
        assert_eq!(closed(7), closed(7), "{}", sched.name());
    }
}

#[test]
fn every_request_ends_once_and_a_full_pool_holds_the_rest_back() {
    let records = random_trace(3_000, 500, 9);
    let mut p = pool(&PoolConfig { inflight_max: 64, ..PoolConfig::default() });
    let mut source = Held::new(records.clone(), Tables::new());
    let m = open_loop(&mut p, &mut source, &Limits::default(), &mut |_, _| {}).unwrap();
    assert_eq!((m.requests(), m.done.iter().sum::<u64>(), p.stack.inflight()), (3_000, 3_000, 0));
    assert!(m.held_back > 1_000, "{}", m.held_back);
    let mut roomy = pool(&PoolConfig::default());
    let mut source = Held::new(records, Tables::new());
    let r = open_loop(&mut roomy, &mut source, &Limits::default(), &mut |_, _| {}).unwrap();
    assert_eq!(r.held_back, 0);
    // A first-in-first-out queue doesn't care which side of the door it stands on: nobody's time is lost.
    let mean = |m: &Measured| m.all_responses().mean().as_secs_f64();
    assert!((mean(&m) / mean(&r) - 1.0).abs() < 0.01, "{} against {}", mean(&m), mean(&r));
}

#[test]
fn closed_loops_keep_their_depth_and_stop_in_time() {
    let mut p = pool(&PoolConfig { depth: 32, ..PoolConfig::default() });
    let job = FioJob { depth: 3, jobs: 2, ..FioJob::new(p.offer().size_bytes) };
    let mut w = Fio::new(&job, 1).unwrap();
    let limits = Limits { until: Time::ZERO + Span::from_secs(20), ..Limits::default() };
    let (m, labels) = closed_loop(&mut p, &mut w, &limits, &mut |_, _| {}).unwrap();
    // Little's law: six outstanding all the time.
    let outstanding = m.iops() * m.all_responses().mean().as_secs_f64();
    assert!((outstanding - 6.0).abs() < 0.05, "{outstanding}");
    assert!((19.9..21.0).contains(&m.clock.as_secs_f64()), "{:?}", m.clock);
    assert_eq!((labels.len(), labels[0].response.count()), (1, m.requests()));
    let mut crowded = pool(&PoolConfig { inflight_max: 5, ..PoolConfig::default() });
    let mut w = Fio::new(&job, 1).unwrap();
    assert!(closed_loop(&mut crowded, &mut w, &limits, &mut |_, _| {}).is_err());
}

/// Memory doesn't follow the trace: the pool's structures stay as large after many requests as after few.
#[test]
fn a_source_is_read_no_further_than_needed() {
    struct Counted(OpenLoop<FioRequests>, u64);
    impl RecordStream for Counted {
        fn next_record(&mut self) -> Option<Result<TraceRecord, plimsoll_trace::TraceError>> {
            self.1 += 1;
            self.0.next_record()
        }
        fn tables(&self) -> &Tables {
            self.0.tables()
        }
    }
    let mut p = pool(&PoolConfig { inflight_max: 100, ..PoolConfig::default() });
    let requests = FioRequests::new(&FioJob::new(p.offer().size_bytes), 0, 1).unwrap();
    let arrivals = Arrivals::poisson_per_second(100_000);
    let mut source = Counted(OpenLoop::new(requests, arrivals, Until::count(5_000), "d", 1).unwrap(), 0);
    let mut ended = 0;
    let pulled = std::cell::Cell::new(0);
    let mut most = 0;
    struct Shared<'a>(&'a mut Counted, &'a std::cell::Cell<u64>);
    impl RecordStream for Shared<'_> {
        fn next_record(&mut self) -> Option<Result<TraceRecord, plimsoll_trace::TraceError>> {
            let r = self.0.next_record();
            self.1.set(self.0.1);
            r
        }
        fn tables(&self) -> &Tables {
            self.0.tables()
        }
    }
    let mut shared = Shared(&mut source, &pulled);
    open_loop_watched(&mut p, &mut shared, &Limits::default(), &mut |_, _| {}, &mut |_, _| {
        ended += 1;
        most = most.max(pulled.get() - ended);
    })
    .unwrap();
    assert_eq!(ended, 5_000);
    assert!(most <= 102, "{most} records were in memory with room for 100");
}
