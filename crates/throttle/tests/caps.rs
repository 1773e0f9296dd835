//! Caps are kept, at every instant, and no request waits longer than its cap asks for.

use plimsoll_base::{Data, Io, IoError, IoHead, IoId, LatencyHistogram, Op, Outcome, Span, TenantId, Time, VolumeKey};
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::{Layer, LayerState, Offer, Offered, OwnTerms, Stack, StackConfig, Target, VolumeTerms};
use plimsoll_throttle::{Limit, Throttle, ThrottleTerms};
use proptest::prelude::*;

const CAPPED: VolumeKey = VolumeKey { id: 1, generation: 1 };
const FREE: VolumeKey = VolumeKey { id: 2, generation: 1 };

fn pool() -> SimPool {
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(Throttle::new())];
    let disk = SimDisk::new(1 << 30, (Span::ZERO, Span::ZERO), 1, DiskFaults::default());
    let mut pool = SimPool::chain(StackConfig::default(), layers, vec![disk]);
    assert_eq!(pool.start(), LayerState::Ready);
    pool
}

fn cap(pool: &mut SimPool, requests: Option<Limit>, bytes: Option<Limit>) {
    let own = OwnTerms::of(&ThrottleTerms { requests, bytes });
    let now = pool.now();
    pool.stack().set_volume(now, CAPPED, &VolumeTerms { size_bytes: 1 << 30, tenant: 1, own });
}

fn head(op: Op, volume: VolumeKey, len: u64, now: Time) -> IoHead {
    IoHead::new(op, volume, TenantId(1), 0, len, now)
}

fn ask(pool: &mut SimPool, at: Time, op: Op, volume: VolumeKey, len: u64) -> Offered {
    pool.run_until(at);
    pool.offer(at, Io::new(head(op, volume, len, at), Data::Absent))
}

fn id_of(offered: Offered) -> IoId {
    match offered {
        Offered::Accepted(id) => id,
        Offered::Busy(_) => unreachable!("without a deadline"),
    }
}

fn ends(pool: &mut SimPool) -> Vec<(Op, Time)> {
    let mut all = Vec::new();
    loop {
        while let Some(c) = pool.next_done() {
            assert_eq!(c.outcome, Outcome::Done);
            all.push((c.io.op, pool.now()));
        }
        if pool.step().is_none() {
            return all;
        }
    }
}

/// Sends on the requests that the layer let go when the stack was called directly.
fn collect(p: &mut SimPool) {
    p.with_layer(|_: &mut Throttle, _| ());
}

fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_millis(n)
}

#[test]
fn a_burst_passes_and_the_rest_comes_at_the_rate() {
    let mut p = pool();
    cap(&mut p, Some(Limit { per_s: 100, burst: 2 }), None);
    for _ in 0..6 {
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 4096);
    }
    ask(&mut p, Time::ZERO, Op::Read, FREE, 4096);
    let at: Vec<Time> = ends(&mut p).into_iter().map(|(_, at)| at).collect();
    assert_eq!(at, [ms(0), ms(0), ms(0), ms(0), ms(10), ms(20), ms(30)], "the free volume's is one of those at 0");
}

#[test]
fn bytes_are_capped_and_flushes_pass() {
    let mut p = pool();
    cap(&mut p, None, Some(Limit { per_s: 1 << 20, burst: 0 }));
    for op in [Op::Write, Op::Write, Op::Flush, Op::Trim] {
        ask(&mut p, Time::ZERO, op, CAPPED, if op == Op::Flush { 0 } else { 1 << 19 });
    }
    let all = ends(&mut p);
    assert_eq!(all, [(Op::Write, ms(0)), (Op::Flush, ms(0)), (Op::Write, ms(500)), (Op::Trim, ms(1000))]);
}

#[test]
fn a_read_whose_deadline_is_sooner_is_refused_at_once() {
    let mut p = pool();
    cap(&mut p, Some(Limit { per_s: 10, burst: 0 }), None);
    ask(&mut p, Time::ZERO, Op::Read, CAPPED, 4096);
    ask(&mut p, Time::ZERO, Op::Read, CAPPED, 4096);
    let with = |deadline| IoHead { deadline, ..head(Op::Read, CAPPED, 4096, Time::ZERO) };
    let Offered::Busy(f) = p.offer(Time::ZERO, Io::new(with(ms(150)), Data::Absent)) else { panic!("accepted") };
    assert_eq!(f.wait, Span::from_millis(200));
    assert!(matches!(p.offer(Time::ZERO, Io::new(with(ms(200)), Data::Absent)), Offered::Accepted(_)));
}

#[test]
fn limits_change_while_requests_wait_and_a_cancelled_one_ends() {
    let mut p = pool();
    cap(&mut p, Some(Limit { per_s: 1, burst: 0 }), None);
    let ids: Vec<IoId> = (0..4).map(|_| id_of(ask(&mut p, Time::ZERO, Op::Read, CAPPED, 4096))).collect();
    p.stack().cancel(Time::ZERO, ids[1]);
    p.run_until(ms(500));
    let cancelled = std::iter::from_fn(|| p.next_done()).filter(|c| !c.outcome.is_done()).count();
    assert_eq!(cancelled, 1);
    cap(&mut p, Some(Limit { per_s: 10, burst: 0 }), None);
    assert_eq!(ends(&mut p).last().map(|e| e.1), Some(ms(650)), "half a request is left, for 50 ms");
    cap(&mut p, Some(Limit { per_s: 1, burst: 0 }), None);
    let now = p.now();
    for _ in 0..3 {
        ask(&mut p, now, Op::Read, CAPPED, 4096);
    }
    let now = p.now();
    p.stack().forget_volume(now, CAPPED);
    collect(&mut p);
    p.run_until(now);
    assert!(p.stack().is_idle(), "without a limit everything goes on");
}

/// A burst of 3,000 s at the old rate is one of 30 s at the new one, and no more than the new one's own.
#[test]
fn a_higher_limit_ends_a_long_burst_sooner() {
    for burst in [300_000, 1000] {
        let mut p = pool();
        cap(&mut p, Some(Limit { per_s: 100, burst: 300_000 }), None);
        for _ in 0..=300_000 {
            ask(&mut p, Time::ZERO, Op::Trim, CAPPED, 512);
        }
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
        cap(&mut p, Some(Limit { per_s: 10_000, burst }), None);
        collect(&mut p);
        let ended = ends(&mut p).last().copied();
        assert_eq!(ended, Some((Op::Read, Time::ZERO + Span::from_micros(100))), "of a burst of {burst}");
    }
}

/// A lower limit doesn't hold a volume back for longer than the one before it would have, nor for the burst that that one allowed.
#[test]
fn a_lower_limit_asks_no_more_time_for_what_has_gone_on() {
    let mut p = pool();
    cap(&mut p, Some(Limit { per_s: 1000, burst: 1000 }), None);
    for _ in 0..1001 {
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
    }
    cap(&mut p, Some(Limit { per_s: 10, burst: 1 }), None);
    ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
    ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
    let at: Vec<Time> = ends(&mut p).into_iter().skip(1001).map(|e| e.1).collect();
    assert_eq!(at, [ms(1), ms(101)], "the old burst fills the new one, and the request beyond it is owed");
}

/// A volume that used an hour's burst goes on at once when its operator lowers the burst, or both.
#[test]
fn a_lowered_burst_does_not_stop_a_volume() {
    const BURST: u64 = 20_000;
    for (per_s, burst, gap) in [(10, 1, 100), (2, 1, 500), (2, 0, 500), (1000, 0, 1)] {
        for op in [Op::Trim, Op::Read] {
            let mut p = pool();
            let of = |per_s, burst, unit| Some(Limit { per_s: per_s * unit, burst: burst * unit });
            let limits = |per_s, burst| match op {
                Op::Trim => (of(per_s, burst, 1), None),
                _ => (None, of(per_s, burst, 512)),
            };
            let (requests, bytes) = limits(10, BURST);
            cap(&mut p, requests, bytes);
            for _ in 0..BURST {
                ask(&mut p, Time::ZERO, op, CAPPED, 512);
            }
            let (requests, bytes) = limits(per_s, burst);
            cap(&mut p, requests, bytes);
            collect(&mut p);
            for _ in 0..3 {
                ask(&mut p, Time::ZERO, op, CAPPED, 512);
            }
            let at: Vec<Time> = ends(&mut p).into_iter().skip(BURST as usize).map(|(_, at)| at).collect();
            assert_eq!(at, [ms(0), ms(gap), ms(2 * gap)], "{op:?} at {per_s} a second with a burst of {burst}");
        }
    }
}

/// A request that was larger than the burst is owed for, under new limits for no longer than their burst takes to fill up.
#[test]
fn what_is_owed_for_a_large_request_is_bounded_by_the_new_burst() {
    for (limit, free_at) in [
        (Limit { per_s: 1 << 20, burst: 0 }, 10_000),
        (Limit { per_s: 1 << 20, burst: 1 << 20 }, 1000),
        (Limit { per_s: 4 << 20, burst: 40 << 20 }, 0),
    ] {
        let mut p = pool();
        cap(&mut p, None, Some(Limit { per_s: 1 << 20, burst: 0 }));
        ask(&mut p, Time::ZERO, Op::Write, CAPPED, 10 << 20);
        cap(&mut p, Some(Limit { per_s: 1000, burst: 100 }), Some(limit));
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
        assert_eq!(ends(&mut p).last(), Some(&(Op::Read, ms(free_at))), "{limit:?}");
    }
}

#[test]
fn both_limits_are_forecast_together() {
    let mut p = pool();
    cap(&mut p, Some(Limit { per_s: 10, burst: 0 }), Some(Limit { per_s: 1 << 20, burst: 0 }));
    ask(&mut p, Time::ZERO, Op::Write, CAPPED, 10 << 20);
    for _ in 0..100 {
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
    }
    // The byte limit lets the first read go after 10 s; the request limit, which ran empty meanwhile, the others one after the other.
    let forecast = p.stack().forecast(Time::ZERO, &head(Op::Read, CAPPED, 512, Time::ZERO)).wait;
    ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
    let ended = ends(&mut p).last().expect("all end").1;
    assert_eq!((ended, Time::ZERO + forecast), (ms(20_000), ms(20_000)));
}

#[test]
fn a_pool_that_ends_waits_for_no_limit() {
    let mut p = pool();
    cap(&mut p, Some(Limit { per_s: 1, burst: 0 }), None);
    for _ in 0..100 {
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 4096);
    }
    p.stack().stop(Time::ZERO);
    collect(&mut p);
    assert_eq!(ends(&mut p).last().map(|e| e.1), Some(Time::ZERO));
}

#[test]
fn a_pool_that_ends_takes_no_limits() {
    let mut p = pool();
    p.stack().stop(Time::ZERO);
    cap(&mut p, Some(Limit { per_s: 1, burst: 0 }), None);
    for _ in 0..100 {
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 4096);
    }
    assert_eq!(ends(&mut p).last().map(|e| e.1), Some(Time::ZERO));
}

/// Limits that change while both hold requests back never let through what the time before would have had room for.
#[test]
fn a_limit_that_goes_leaves_the_other_one_its_rate() {
    let mut p = pool();
    let requests = Some(Limit { per_s: 10, burst: 0 });
    cap(&mut p, requests, Some(Limit { per_s: 1 << 20, burst: 0 }));
    ask(&mut p, Time::ZERO, Op::Write, CAPPED, 10 << 20);
    for _ in 0..20 {
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
    }
    p.run_until(ms(9000));
    cap(&mut p, requests, None);
    collect(&mut p);
    let at: Vec<Time> = ends(&mut p).into_iter().skip(1).map(|(_, at)| at).collect();
    assert_eq!(at, (0..20).map(|n| ms(9000 + 100 * n)).collect::<Vec<_>>());
}

/// A hint names a range of any size and brings its client nothing.
#[test]
fn a_hint_costs_no_more_than_the_largest_read() {
    let mut p = pool();
    cap(&mut p, None, Some(Limit { per_s: 1 << 20, burst: 0 }));
    ask(&mut p, Time::ZERO, Op::Cache, CAPPED, 1 << 30);
    ask(&mut p, Time::ZERO, Op::Read, CAPPED, 4096);
    assert_eq!(ends(&mut p).last(), Some(&(Op::Read, ms(32_000))));
}

/// A thread that wakes late takes nothing of the rate, and forecasts hold.
#[test]
fn late_wakes_do_not_slow_a_volume_down() {
    const LATE: Span = Span::from_millis(3);
    let offer =
        Offer { size_bytes: 1 << 30, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 4096 };
    let mut stack = Stack::new(StackConfig::default(), vec![offer]);
    stack.push(Box::new(Throttle::new()), vec![Target::Device(0)]);
    stack.start(Time::ZERO);
    let own = OwnTerms::of(&ThrottleTerms { requests: Some(Limit { per_s: 100, burst: 0 }), bytes: None });
    stack.set_volume(Time::ZERO, CAPPED, &VolumeTerms { size_bytes: 1 << 30, tenant: 1, own });
    let read = |at| head(Op::Read, CAPPED, 512, at);
    for n in 0..100 {
        assert_eq!(stack.forecast(Time::ZERO, &read(Time::ZERO)).wait, Span::from_millis(10) * n);
        stack.offer(Time::ZERO, Io::new(read(Time::ZERO), Data::Absent));
    }
    let mut n = 1;
    assert!(stack.next_device_io().is_some(), "the first goes at once");
    while stack.next_wake().is_set() {
        let now = stack.next_wake() + LATE;
        stack.wake(now);
        assert_eq!(now, ms(10 * n) + LATE);
        assert!(stack.next_device_io().is_some() && stack.next_device_io().is_none());
        assert_eq!(now + stack.forecast(now, &read(now)).wait, ms(1000).max(now));
        n += 1;
    }
    assert_eq!(n, 100);
}

/// Thousands of requests wait and every second one is withdrawn, the newest first. This takes milliseconds if no withdrawal looks at the
/// whole queue, and 15 s if each does.
#[test]
fn a_withdrawal_from_a_long_queue_is_forecast_exactly() {
    const MANY: u64 = 50_000;
    let mut p = pool();
    cap(&mut p, Some(Limit { per_s: 1000, burst: 0 }), None);
    let ids: Vec<IoId> = (0..MANY).map(|_| id_of(ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512))).collect();
    for (n, id) in (1..).zip(ids.iter().skip(1).step_by(2).rev()) {
        p.stack().cancel(Time::ZERO, *id);
        let wait = p.stack().forecast(Time::ZERO, &head(Op::Read, CAPPED, 512, Time::ZERO)).wait;
        assert_eq!(wait, Span::from_millis(MANY - n), "exact with one limit");
    }
    let withdrawn = std::iter::from_fn(|| p.next_done()).filter(|c| !c.outcome.is_done()).count();
    assert_eq!(withdrawn as u64, MANY / 2);
    assert_eq!(ends(&mut p).last().map(|e| e.1), Some(ms(MANY / 2 - 1)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, rng_seed: proptest::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    /// In no span of time does more go on than its rate and its burst allow (and one request beyond), and nothing waits while its
    /// bucket would let it go.
    #[test]
    fn no_span_holds_more_than_it_may(
        per_s in 1u64..2000,
        burst in 0u64..50,
        gaps in proptest::collection::vec(0u64..20_000, 1..200),
    ) {
        let mut p = pool();
        cap(&mut p, Some(Limit { per_s, burst }), None);
        let mut at = Time::ZERO;
        for us in &gaps {
            at += Span::from_micros(*us);
            ask(&mut p, at, Op::Read, CAPPED, 512);
        }
        let mut went: Vec<Time> = Vec::new();
        let mut waits = LatencyHistogram::new();
        loop {
            while let Some(c) = p.next_done() {
                went.push(c.dispatched_at);
                waits.record(c.dispatched_at.since(c.io.arrived_at));
            }
            if p.step().is_none() {
                break;
            }
        }
        prop_assert_eq!(went.len(), gaps.len());
        went.sort_unstable();
        for i in 0..went.len() {
            for j in i..went.len() {
                let span_ns = went[j].since(went[i]).as_nanos();
                let may = burst + 2 + (u128::from(span_ns) * u128::from(per_s) / 1_000_000_000) as u64;
                prop_assert!((j - i + 1) as u64 <= may, "{} in {span_ns} ns", j - i + 1);
            }
        }
    }

    /// However requests of both limits are withdrawn, a forecast is what happens. (Longer queues are planned anew now and then only.)
    #[test]
    fn forecasts_after_withdrawals_hold(
        sectors in proptest::collection::vec(0u64..8192, 1..16),
        withdrawn in proptest::collection::vec(any::<bool>(), 16),
    ) {
        let mut p = pool();
        cap(&mut p, Some(Limit { per_s: 1, burst: 2 }), Some(Limit { per_s: 1 << 20, burst: 1 << 19 }));
        let ids: Vec<IoId> = sectors.iter().map(|n| id_of(ask(&mut p, Time::ZERO, Op::Read, CAPPED, *n * 512))).collect();
        for (id, _) in ids.iter().zip(&withdrawn).filter(|(_, w)| **w) {
            p.stack().cancel(Time::ZERO, *id);
        }
        let forecast = p.stack().forecast(Time::ZERO, &head(Op::Read, CAPPED, 512, Time::ZERO)).wait;
        ask(&mut p, Time::ZERO, Op::Read, CAPPED, 512);
        let ended = loop {
            while let Some(c) = p.next_done() {
                prop_assert!(c.outcome.is_done() || c.outcome == Outcome::Failed(IoError::Cancelled));
            }
            if p.step().is_none() {
                break p.now();
            }
        };
        prop_assert_eq!(Time::ZERO + forecast, ended);
    }
}
