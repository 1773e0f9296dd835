use super::*;
use crate::testing::{Bench, ms};
use plimsoll_base::{IoFlags, Op};

fn cfq(slice_ms: u64, idle_ms: u64) -> Bench {
    let config = CfqConfig {
        slice: Span::from_millis(slice_ms),
        slice_idle: Span::from_millis(idle_ms),
        ..CfqConfig::default()
    };
    Bench::new(Box::new(Cfq::new(config, DiskModel::unknown(1 << 40))))
}

#[test]
fn tenants_take_turns_of_a_slice() {
    let mut b = cfq(25, 0);
    for i in 0..4 {
        b.offer_as(1, Op::Read, 10 + i, ms(0));
        b.offer_as(2, Op::Read, 90 - i, ms(0));
    }
    // Ten milliseconds each: three in a slice of 25.
    let mut order = Vec::new();
    for i in 1..=8 {
        order.push(b.finish_one(ms(i * 10)));
    }
    assert_eq!(order, [10, 11, 12, 87, 88, 89, 13, 90]);
}

#[test]
fn the_device_waits_for_who_has_the_turn() {
    let mut b = cfq(100, 8);
    b.offer_as(1, Op::Read, 10, ms(0));
    b.offer_as(2, Op::Read, 90, ms(0));
    assert_eq!(b.finish_one(ms(5)), 10);
    assert_eq!(b.at_device(), 0, "idling for tenant 1");
    b.offer_as(1, Op::Read, 11, ms(9));
    assert_eq!(b.finish_one(ms(14)), 11);
    b.wake(ms(22));
    assert_eq!(b.finish_one(ms(30)), 90, "tenant 1 did not come back in time");
}

/// A scheduler that idles while another tenant's flush fills the device doesn't set a timer in the past. An engine would spin until
/// the flush ends.
#[test]
fn the_end_of_idling_is_not_waited_for_in_the_past() {
    let config = CfqConfig { depth: 1, slice_idle: Span::from_millis(8), ..CfqConfig::default() };
    let mut s = stack_of(config, false);
    let done = |s: &mut Stack, now| {
        let (d, io) = s.next_device_io().expect("it was sent");
        s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
    };
    let ask = |s: &mut Stack, now, tenant, op| {
        let len = if op == Op::Flush { 0 } else { 4096 };
        s.offer(now, Io::new(IoHead::new(op, VolumeKey::POOL, TenantId(tenant), 0, len, now), Data::Absent));
    };
    ask(&mut s, ms(0), 1, Op::Read);
    ask(&mut s, ms(1), 2, Op::Read);
    done(&mut s, ms(5));
    assert!(s.next_device_io().is_none(), "idling for tenant 1");
    ask(&mut s, ms(6), 3, Op::Flush);
    s.wake(ms(13));
    assert!(s.next_wake() > ms(13), "{:?}", s.next_wake());
    done(&mut s, ms(20));
    assert!(s.next_device_io().is_some(), "tenant 1 did not come back in time");
}

#[test]
fn real_time_goes_before_best_effort_of_the_same_tenant() {
    let mut b = cfq(100, 0);
    b.offer_as(1, Op::Read, 10, ms(0));
    b.offer_as(1, Op::Read, 11, ms(0));
    b.offer_real_time(1, Op::Read, 90, ms(1));
    assert_eq!(b.order(ms(2)), [10, 90, 11]);
}

use crate::disk::OpCosts;
use plimsoll_base::{Data, Priority, PriorityClass, VolumeKey};
use plimsoll_stack::{Offered, Stack, StackConfig, Target};

/// Ten milliseconds a request, wherever it is.
fn ten_ms() -> DiskModel {
    let points = vec![(4096, Span::from_millis(10))];
    let sequential = Span::from_millis(10);
    let c = OpCosts { sequential, distances: [points.clone(), points], transfer_ns_per_kib: [0; 8] };
    DiskModel::from_costs(1 << 40, &[c.clone(), c], 0)
}

fn stack_of(config: CfqConfig, flag_only: bool) -> Stack {
    let offer =
        Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
    let hop = config.failover_hop;
    let mut s = Stack::new(StackConfig { failover_hop: hop, flag_only, ..StackConfig::default() }, vec![offer]);
    s.push(Box::new(Cfq::new(config, ten_ms())), vec![Target::Device(0)]);
    s.start(Time::ZERO);
    s
}

fn config(late: Late) -> CfqConfig {
    CfqConfig { slice_idle: Span::ZERO, failover_hop: Span::ZERO, late, ..CfqConfig::default() }
}

/// A read at block `block` of `tenant`, real time or best effort; true if it was accepted.
fn offer(s: &mut Stack, tenant: u16, block: u64, real_time: bool, deadline_ms: Option<u64>) -> bool {
    let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(tenant), block << 30, 4096, Time::ZERO);
    head.deadline = deadline_ms.map_or(Time::NEVER, |d| Time::ZERO + Span::from_millis(d));
    if real_time {
        head.priority = Priority { class: PriorityClass::RealTime, level: 0 };
    }
    matches!(s.offer(Time::ZERO, Io::new(head, Data::Absent)), Offered::Accepted(_))
}

/// MittOS §4.2's example: a request that tolerates some milliseconds survives the first arrival of a better class, not
/// the second; nothing of it reached the device.
#[test]
fn a_promise_that_breaks_later_ends_busy_where_it_waits() {
    let mut s = stack_of(config(Late::Cancel), false);
    assert!(offer(&mut s, 1, 1, false, None), "at the device");
    assert!(offer(&mut s, 1, 2, false, None), "in front");
    assert!(offer(&mut s, 1, 3, false, Some(45)), "30 ms without noise");
    let mut others = offer(&mut s, 1, 10, true, None);
    assert!(s.next_done().is_none(), "40 ms are within 45");
    others &= offer(&mut s, 1, 11, true, None);
    assert!(others, "without a deadline nothing is refused");
    let told = s.next_done().expect("50 ms are not, and that is told at once");
    assert!(matches!(told.outcome, Outcome::Busy { .. }) && told.io.offset >> 30 == 3, "{told:?}");
    let mut now = Time::ZERO;
    let mut outcomes = Vec::new();
    while let Some((d, io)) = s.next_device_io() {
        now += Span::from_millis(10);
        s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        while let Some(c) = s.next_done() {
            outcomes.push((c.io.offset >> 30, c.outcome.is_done()));
        }
    }
    assert_eq!(outcomes, [(1, true), (10, true), (11, true), (2, true)]);
    assert_eq!(s.layer::<Cfq>().unwrap().revoked(), 1);
    assert!(s.is_idle());
}

/// The same request of a client that waits is served after what broke its promise.
#[test]
fn a_broken_promise_of_a_client_that_waits_is_served_late() {
    let mut s = stack_of(config(Late::Cancel), false);
    assert!(offer(&mut s, 1, 1, false, None), "at the device");
    let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), 3 << 30, 4096, Time::ZERO);
    (head.flags, head.deadline) = (IoFlags::WAITS, Time::ZERO + Span::from_millis(25));
    assert!(matches!(s.offer(Time::ZERO, Io::new(head, Data::Absent)), Offered::Accepted(_)), "20 ms without noise");
    assert!(offer(&mut s, 1, 10, true, None) && offer(&mut s, 1, 11, true, None), "in front of it");
    let (mut now, mut order) = (Time::ZERO, Vec::new());
    while let Some((d, io)) = s.next_device_io() {
        now += Span::from_millis(10);
        s.wake(now);
        s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        while let Some(c) = s.next_done() {
            assert_eq!(c.outcome, Outcome::Done);
            order.push((c.io.offset >> 30, c.io.flags));
        }
    }
    let none = IoFlags::NONE;
    assert_eq!(order, [(1, none), (10, none), (11, none), (3, IoFlags::WAITS)], "it wasn't late when it came");
    assert_eq!(s.layer::<Cfq>().unwrap().revoked(), 0);
}

/// Another group's time is in no request's sum. A request whose deadline has passed ends at that time, not at its next turn.
#[test]
fn a_promise_that_another_tenant_breaks_ends_when_its_time_is_over() {
    let mut s = stack_of(config(Late::Cancel), false);
    s.with_layer(Time::ZERO, |c: &mut Cfq, _| c.set_weight(TenantId(2), 10_000)).unwrap();
    (1..=10).for_each(|block| assert!(offer(&mut s, 1, block, false, None)));
    for block in [11, 12, 13] {
        assert!(offer(&mut s, 1, block, false, Some(200)), "110 to 130 ms while nobody else is there");
    }
    (0..200).for_each(|i| assert!(offer(&mut s, 2, 500 + i, false, None)));
    let mut now = Time::ZERO;
    let mut told = Vec::new();
    let at_device = |s: &mut Stack| s.next_device_io().expect("there is more");
    let mut serving = at_device(&mut s);
    while told.len() < 3 {
        let done_at = now + Span::from_millis(10);
        if s.next_wake() < done_at {
            now = s.next_wake();
            s.wake(now);
        } else {
            now = done_at;
            let (d, io) = serving;
            s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
            serving = at_device(&mut s);
        }
        while let Some(c) = s.next_done() {
            if let Outcome::Busy { wait, .. } = c.outcome {
                told.push((c.io.offset >> 30, now.since(Time::ZERO).as_micros() / 1000));
                assert!(wait > Span::ZERO, "the device is busy");
            }
        }
    }
    assert_eq!(told, [(11, 200), (12, 200), (13, 200)], "at their deadline");
}

/// A tenant's group goes with it, at the latest with its last request; another one with its number begins anew.
#[test]
fn a_tenant_that_goes_leaves_nothing_behind() {
    let mut s = stack_of(config(Late::Keep), false);
    let kept = |s: &Stack| s.layer::<Cfq>().map(|c| (c.groups.len(), c.nodes.len())).unwrap();
    for tenant in 1..=3 {
        s.with_layer(Time::ZERO, |c: &mut Cfq, _| c.set_weight(TenantId(tenant), 700)).unwrap();
        assert!(offer(&mut s, tenant, u64::from(tenant), false, None));
    }
    assert_eq!(kept(&s), (3, 3));
    [1, 2].into_iter().for_each(|t| s.set_tenant(Time::ZERO, TenantId(t), None));
    assert_eq!(kept(&s), (3, 3), "their requests are still inside");
    let mut now = Time::ZERO;
    let mut served = Vec::new();
    while let Some((d, io)) = s.next_device_io() {
        now += Span::from_millis(10);
        served.push(io.tenant.0);
        s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
    }
    served.sort_unstable();
    assert_eq!(served, [1, 2, 3]);
    assert_eq!(kept(&s), (1, 1));
    s.set_tenant(now, TenantId(3), None);
    assert_eq!(kept(&s), (0, 0));
    process(&mut s, now, 1, Op::Read, Priority::DEFAULT, 0);
    assert_eq!(s.layer::<Cfq>().unwrap().groups[0].weight, WEIGHT_DEFAULT);
}

/// MT-M28: flagged, not refused, at admission and later; and it runs.
#[test]
fn flags_only_mark_what_would_have_been_refused() {
    let mut s = stack_of(config(Late::Flag), true);
    assert!(offer(&mut s, 1, 1, false, None));
    assert!(offer(&mut s, 1, 2, false, Some(5)), "10 ms too late, and accepted");
    assert!(offer(&mut s, 1, 3, false, Some(45)));
    (10..13).for_each(|b| assert!(offer(&mut s, 1, b, true, None)));
    let mut now = Time::ZERO;
    let mut flagged = Vec::new();
    while let Some((d, io)) = s.next_device_io() {
        now += Span::from_millis(10);
        s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        while let Some(c) = s.next_done() {
            assert!(c.outcome.is_done());
            if c.io.deadline.is_set() && c.io.expected_at > c.io.deadline {
                flagged.push(c.io.offset >> 30);
            }
        }
    }
    assert_eq!(flagged, [2, 3]);
}

#[test]
fn groups_get_their_weights() {
    let mut s = stack_of(CfqConfig { slice: Span::from_millis(10), ..config(Late::Keep) }, false);
    s.with_layer(Time::ZERO, |c: &mut Cfq, _| c.set_weight(TenantId(2), 300)).unwrap();
    for i in 0..200 {
        offer(&mut s, 1, i, false, None);
        offer(&mut s, 2, 500 + i, false, None);
    }
    let (mut now, mut second) = (Time::ZERO, 0);
    for _ in 0..100 {
        let (d, io) = s.next_device_io().expect("there is always more");
        second += u32::from(io.tenant == TenantId(2));
        now += Span::from_millis(10);
        s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
    }
    assert!((70..=80).contains(&second), "three quarters: {second}");
}

/// The wait that is forecast for a read is what it then waits, behind processes of its own class and a better one.
#[test]
fn what_is_forecast_is_what_it_waits() {
    let mut s = stack_of(config(Late::Keep), false);
    for volume in 1..=6u32 {
        for i in 0..4u64 {
            let mut head =
                IoHead::new(Op::Read, VolumeKey { id: volume, generation: 0 }, TenantId(1), 0, 4096, Time::ZERO);
            head.offset = (u64::from(volume) * 16 + i) << 30;
            if volume == 5 {
                head.priority = Priority { class: PriorityClass::RealTime, level: 0 };
            }
            s.offer(Time::ZERO, Io::new(head, Data::Absent));
        }
    }
    let head = IoHead::new(Op::Read, VolumeKey { id: 3, generation: 0 }, TenantId(1), 60 << 30, 4096, Time::ZERO);
    let forecast = s.forecast(Time::ZERO, &head);
    let Offered::Accepted(id) = s.offer(Time::ZERO, Io::new(head, Data::Absent)) else { panic!("no deadline") };
    let mut now = Time::ZERO;
    while let Some((d, io)) = s.next_device_io() {
        now += Span::from_millis(10);
        let ours = io.id == id;
        s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        if ours {
            break;
        }
    }
    assert_eq!(forecast.total(), now.since(Time::ZERO), "four of real time, 4 + 4 before its own four, and itself");
}

/// Two processes that seek beside one that reads on, all of one tenant: the order in which their requests come, and how long the
/// device then stands still before the one that reads on begins, if it comes last. What each does is known from a first wave.
fn seekers(together: bool) -> (Vec<u32>, bool) {
    let config = CfqConfig {
        slice: Span::from_millis(200),
        slice_idle: Span::from_millis(8),
        seekers_together: together,
        ..CfqConfig::default()
    };
    let mut s = stack_of(config, false);
    let mut now = Time::ZERO;
    wave(&mut s, &mut now, 0);
    wave(&mut s, &mut now, 1)
}

fn wave(s: &mut Stack, now: &mut Time, wave: u64) -> (Vec<u32>, bool) {
    for i in 5 * wave..5 * wave + 5 {
        for (process, offset) in [(1, (10 + 7 * i) << 30), (2, (500 << 30) + i * 4096), (3, (100 + 9 * i) << 30)] {
            let volume = VolumeKey { id: process, generation: 0 };
            let head = IoHead::new(Op::Read, volume, TenantId(1), offset, 4096, *now);
            assert!(matches!(s.offer(*now, Io::new(head, Data::Absent)), Offered::Accepted(_)));
        }
    }
    let (mut order, mut idled) = (Vec::new(), false);
    while order.len() < 15 {
        match s.next_device_io() {
            Some((d, io)) => {
                *now += Span::from_millis(10);
                order.push(io.volume.id);
                s.device_done(*now, d, Completion { io, outcome: Outcome::Done, dispatched_at: *now });
                while s.next_done().is_some() {}
            }
            None => {
                idled |= order.len() == 10 && !order.contains(&2);
                *now = s.next_wake().max(*now);
                s.wake(*now);
            }
        }
    }
    order.dedup();
    (order, idled)
}

#[test]
fn who_seeks_is_served_together_if_that_is_wanted() {
    assert_eq!(seekers(false), (vec![1, 2, 3], false), "in turn");
    assert_eq!(seekers(true), (vec![1, 3, 2], true), "and the device is kept for the next of them");
}

/// Offers a request of 4 KiB of process `volume`; none of these has a deadline.
fn process(s: &mut Stack, now: Time, volume: u32, op: Op, priority: Priority, offset: u64) {
    let mut head = IoHead::new(op, VolumeKey { id: volume, generation: 0 }, TenantId(1), offset, 4096, now);
    head.priority = priority;
    assert!(matches!(s.offer(now, Io::new(head, Data::Absent)), Offered::Accepted(_)));
}

/// The device serves one request, in ten milliseconds; whose it was.
fn serve(s: &mut Stack, now: &mut Time) -> Option<u32> {
    let (d, io) = s.next_device_io()?;
    *now += Span::from_millis(10);
    let process = io.volume.id;
    s.device_done(*now, d, Completion { io, outcome: Outcome::Done, dispatched_at: *now });
    while s.next_done().is_some() {}
    Some(process)
}

#[test]
fn a_level_sets_how_long_a_turn_is() {
    for level in 0..8u8 {
        let mut s = stack_of(CfqConfig { slice: Span::from_millis(100), ..config(Late::Keep) }, false);
        let mut now = Time::ZERO;
        let of = |level| Priority { class: PriorityClass::BestEffort, level };
        for i in 0..40u64 {
            process(&mut s, now, 1, Op::Read, of(level), i << 20);
            process(&mut s, now, 2, Op::Read, of(4), (500 << 30) + (i << 20));
        }
        let order: Vec<u32> = (0..40).map(|_| serve(&mut s, &mut now).expect("there is more")).collect();
        let turns: Vec<(u32, usize)> = order.chunk_by(|a, b| a == b).map(|t| (t[0], t.len())).collect();
        // A fifth of 100 ms more or less for each level above or below 4.
        assert_eq!(turns[..2], [(1, 2 * (9 - usize::from(level))), (2, 10)], "level {level}");
    }
}

#[test]
fn the_idle_class_has_what_nobody_else_wants() {
    let mut s = stack_of(config(Late::Keep), false);
    let mut now = Time::ZERO;
    let idle = Priority { class: PriorityClass::Idle, level: 4 };
    (0..3).for_each(|i| process(&mut s, now, 1, Op::Read, idle, i << 20));
    (0..2).for_each(|i| process(&mut s, now, 2, Op::Read, Priority::DEFAULT, (9 << 30) + (i << 20)));
    let order: Vec<u32> = std::iter::from_fn(|| serve(&mut s, &mut now)).collect();
    assert_eq!(order, [1, 2, 2, 1, 1], "what the device has already is all that goes before");
}

/// A process that has one request at a time, `apart` bytes from the last and `think` after it. Returns whether the device is kept
/// for it in the end, while another process waits.
fn is_kept(idle_ms: u64, op: Op, class: PriorityClass, apart: u64, think: Span) -> (bool, Stack, Time) {
    let slice = Span::from_millis(1000);
    let idle = Span::from_millis(idle_ms);
    let config = CfqConfig { slice, slice_writes: slice, slice_idle: idle, ..config(Late::Keep) };
    let (mut s, mut now) = (stack_of(config, false), Time::ZERO);
    let priority = Priority { class, level: 4 };
    for i in 0..12 {
        process(&mut s, now, 1, op, priority, i * apart);
        assert_eq!(serve(&mut s, &mut now), Some(1));
        now += think;
        s.wake(now);
    }
    process(&mut s, now, 1, op, priority, 12 * apart);
    process(&mut s, now, 2, op, priority, 500 << 30);
    assert_eq!(serve(&mut s, &mut now), Some(1));
    (s.next_device_io().is_none(), s, now)
}

/// OT-M11, and the kernel's rules for whom idling is worth it.
#[test]
fn the_device_is_kept_for_near_reads_that_come_soon() {
    let (best_effort, near, soon) = (PriorityClass::BestEffort, 4096, Span::from_millis(1));
    let kept = |idle, op, class, apart, think| is_kept(idle, op, class, apart, think).0;
    assert!(kept(8, Op::Read, best_effort, near, soon));
    assert!(!kept(0, Op::Read, best_effort, near, soon), "no idling");
    assert!(!kept(8, Op::Write, best_effort, near, soon), "writes");
    assert!(!kept(8, Op::Read, PriorityClass::Idle, near, soon), "the idle class");
    assert!(!kept(8, Op::Read, best_effort, 1 << 30, soon), "it seeks");
    assert!(
        !kept(8, Op::Read, best_effort, near, Span::from_millis(20)),
        "it thinks for longer than the device is kept"
    );
}

#[test]
fn what_idling_is_set_to_holds_at_once() {
    let (kept, mut s, mut now) = is_kept(8, Op::Read, PriorityClass::BestEffort, 4096, Span::from_millis(1));
    assert!(kept);
    assert!(s.tell(now, &plimsoll_stack::Addressed::new(&CfqControl::SliceIdle(Span::ZERO))));
    assert_eq!(serve(&mut s, &mut now), Some(2));
}

const MANY: u64 = 30_000;

/// Behind a request at the device wait many reads of tenant 1 with one deadline, all of them accepted: each goes before those that came
/// earlier.
fn many_behind_one(deadline: Time) -> Stack {
    let mut s = stack_of(config(Late::Cancel), false);
    let mut ask = |offset, deadline| {
        let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), offset, 4096, Time::ZERO);
        head.deadline = deadline;
        assert!(matches!(s.offer(Time::ZERO, Io::new(head, Data::Absent)), Offered::Accepted(_)));
    };
    ask(0, Time::NEVER);
    (0..MANY).for_each(|n| ask((MANY - n) << 20, deadline));
    s
}

/// The number of requests that have ended, all of them given back.
fn given_back(s: &mut Stack) -> u64 {
    let all = std::iter::from_fn(|| s.next_done()).map(|c| c.outcome);
    all.inspect(|o| assert!(matches!(o, Outcome::Busy { .. }), "{o:?}")).count() as u64
}

/// Tens of thousands of promises break at once, as a better class takes what they tolerate or as their deadline passes: a call ends a part of
/// them, so that others have their turn before the rest.
#[test]
fn promises_that_break_together_are_given_back_in_parts() {
    let deadline = ms(5 * MANY);
    for (by_others, by_completion) in [(true, false), (false, false), (false, true)] {
        let mut s = many_behind_one(deadline);
        let (mut now, mut gone, mut most) = (Time::ZERO, 0, 0);
        if by_completion {
            // The device is idle from now on: a millisecond is too short for any of them.
            now = ms(5 * MANY - 1);
            let (d, io) = s.next_device_io().expect("it was sent");
            s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
            assert_eq!(s.next_done().map(|c| c.outcome), Some(Outcome::Done));
        }
        let mut count = |s: &mut Stack| {
            let ended = given_back(s);
            (gone, most) = (gone + ended, most.max(ended));
            gone
        };
        for block in 0..if by_others { MANY * 2 / 3 } else { 0 } {
            let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), block << 20, 4096, now);
            head.priority = Priority { class: PriorityClass::RealTime, level: 0 };
            s.offer(now, Io::new(head, Data::Absent));
            count(&mut s);
        }
        let mut wakes = 0;
        while count(&mut s) < MANY {
            now = now.max(s.next_wake());
            assert!(now < deadline + Span::from_millis(20) && wakes < MANY, "too few of {MANY} were given back");
            s.wake(now);
            wakes += 1;
        }
        assert_eq!(now < deadline, by_others || by_completion);
        assert_eq!(count(&mut s), MANY, "each is given back once");
        assert!(most <= 256, "{most} at once, by others: {by_others}, as one ended: {by_completion}");
    }
}

/// Tens of thousands of requests are withdrawn in any order: none is looked for among all.
#[test]
fn withdrawals_look_at_no_other_requests() {
    let mut s = stack_of(config(Late::Cancel), false);
    let offer = |n: u64| IoHead::new(Op::Read, VolumeKey::POOL, TenantId(1), (n * 7919 % MANY) << 20, 4096, Time::ZERO);
    let ids: Vec<IoId> = (0..2 * MANY)
        .map(|n| match s.offer(Time::ZERO, Io::new(offer(n), Data::Absent)) {
            Offered::Accepted(id) => id,
            Offered::Busy(f) => panic!("it has no deadline: {f:?}"),
        })
        .collect();
    ids[1..].iter().rev().for_each(|id| s.cancel(Time::ZERO, *id));
    let cancelled = std::iter::from_fn(|| s.next_done()).filter(|c| !c.outcome.is_done()).count();
    assert_eq!(cancelled as u64, 2 * MANY - 1);
    let cfq = s.layer::<Cfq>().expect("it is there");
    assert_eq!(cfq.nodes.iter().map(|(_, n)| n.pending.walked.get()).sum::<usize>(), 0, "requests looked at");
}

/// A device that serves its requests in order, four of them at once in 10 ms, below a scheduler that has seen it full and nearly empty.
struct FourAtOnce {
    s: Stack,
    now: Time,
    at_device: VecDeque<Io>,
    places: u64,
    /// Reads that were done, but after their deadline.
    late: usize,
}

impl FourAtOnce {
    fn new(slice_idle: Span) -> FourAtOnce {
        let config = CfqConfig { depth: 4, discipline: Discipline::Fifo, slice_idle, ..config(Late::Cancel) };
        let mut d =
            FourAtOnce { s: stack_of(config, false), now: Time::ZERO, at_device: VecDeque::new(), places: 0, late: 0 };
        for round in 0..60 {
            d.keep(if round % 2 == 0 { 8 } else { 1 }, if round % 2 == 0 { 60 } else { 4 });
            while d.s.inflight() > 0 {
                d.next();
            }
        }
        d
    }

    /// A place far behind the one before: the drive's buffer has none of them, and reads are sent in their order of arrival.
    fn far(&mut self) -> u64 {
        self.places += 1;
        self.places << 28
    }

    /// A process keeps `inflight` reads in the scheduler while `count` end.
    fn keep(&mut self, inflight: usize, count: usize) {
        for _ in 0..count {
            self.fill(inflight);
            self.next();
        }
    }

    fn fill(&mut self, inflight: usize) {
        while self.s.inflight() < inflight {
            let place = self.far();
            process(&mut self.s, self.now, 1, Op::Read, Priority::DEFAULT, place);
        }
    }

    /// Ends one request at the device. Returns one that ended.
    fn next(&mut self) -> Completion {
        let FourAtOnce { s, now, at_device, late, .. } = self;
        at_device.extend(std::iter::from_fn(|| s.next_device_io().map(|(_, io)| io)));
        *now += Span::from_millis(10) / at_device.len() as u64;
        let io = at_device.pop_front().expect("the device is busy");
        s.device_done(*now, 0, Completion { io, outcome: Outcome::Done, dispatched_at: *now });
        let c = s.next_done().expect("ended");
        *late += usize::from(c.outcome.is_done() && *now > c.io.deadline);
        c
    }

    fn head(&mut self, volume: u32, deadline: Time) -> IoHead {
        let place = self.far();
        let mut head =
            IoHead::new(Op::Read, VolumeKey { id: volume, generation: 0 }, TenantId(1), place, 4096, self.now);
        head.deadline = deadline;
        head
    }

    /// A read of another process with a deadline; true if it was accepted.
    fn promised(&mut self, volume: u32, deadline: Time) -> bool {
        let head = self.head(volume, deadline);
        matches!(self.s.offer(self.now, Io::new(head, Data::Absent)), Offered::Accepted(_))
    }

    /// Lets a process have the device, which is then kept for its next read for 8 ms. Returns the end of that.
    fn kept_for_another(&mut self) -> Time {
        self.now += Span::from_millis(500);
        self.s.wake(self.now);
        for i in 0..8 {
            process(&mut self.s, self.now, 2, Op::Read, Priority::DEFAULT, (700 << 30) + i * 4096);
            self.next();
        }
        self.now + Span::from_millis(8)
    }

    fn revoked(&self) -> u64 {
        self.s.layer::<Cfq>().unwrap().revoked()
    }
}

/// Reads that wait while the device is kept for somebody else go to it together once that is over. What they were promised is judged by what
/// so few take together, not by what each takes alone after the others: all of them are served, and in time.
#[test]
fn promises_to_a_few_are_kept_as_they_go_together() {
    let mut d = FourAtOnce::new(Span::from_millis(8));
    let over = d.kept_for_another();
    for _ in 0..3 {
        assert!(d.promised(3, over + Span::from_micros(19_300)), "it's forecast at less");
    }
    assert!(d.s.next_device_io().is_none(), "the device is kept");
    d.now = over;
    d.s.wake(over);
    for _ in 0..3 {
        let c = d.next();
        assert!(c.outcome.is_done(), "{:?} at {:?}", c.outcome, d.now);
    }
    assert_eq!((d.revoked(), d.late), (0, 0));
}

/// A read behind a turn for which the device is kept is promised what so few take, by which it is judged later: nothing is accepted that must
/// be given back. By the ratio of full queues the second read was promised within 5 ms of the turn's end, where two take 15.
#[test]
fn reads_behind_a_kept_device_are_promised_what_they_are_judged_by() {
    for (reads, takes_us) in [(1, 10_000), (2, 15_000), (3, 18_300)] {
        for (spare_us, is_kept) in [(-1500, false), (1500, true)] {
            let mut d = FourAtOnce::new(Span::from_millis(8));
            let over = d.kept_for_another();
            for _ in 1..reads {
                assert!(d.promised(3, over + Span::from_secs(1)));
            }
            let deadline = over + Span::from_micros((takes_us + spare_us) as u64);
            assert_eq!(d.promised(3, deadline), is_kept, "the last of {reads}, spare {spare_us} us");
            d.now = over;
            d.s.wake(over);
            for _ in 0..reads - usize::from(!is_kept) {
                assert!(d.next().outcome.is_done(), "given back, of {reads}");
            }
            assert_eq!(d.revoked(), 0);
        }
    }
}

/// A read of the process that the device is kept for goes to it alone, however many others wait behind the turn.
#[test]
fn a_read_in_a_kept_turn_is_promised_the_time_of_one_alone() {
    let mut d = FourAtOnce::new(Span::from_millis(8));
    let over = d.kept_for_another();
    for _ in 0..20 {
        assert!(d.promised(3, over + Span::from_secs(1)));
    }
    for (within_ms, is_accepted) in [(8, false), (12, true)] {
        let deadline = d.now + Span::from_millis(within_ms);
        assert_eq!(d.promised(2, deadline), is_accepted, "within {within_ms} ms");
    }
    assert!(d.next().outcome.is_done());
    assert_eq!(d.revoked(), 0);
}

/// A read of a full queue, behind which others wait, is judged by it as it was promised: in place of each that ends another one goes to the
/// device.
#[test]
fn promises_of_a_full_queue_are_judged_by_it() {
    let mut d = FourAtOnce::new(Span::ZERO);
    for _ in 0..20 {
        d.keep(12, 8);
        d.fill(12);
        // Behind four at the device and eight that wait, 2.5 ms each.
        assert!(d.promised(1, d.now + Span::from_micros(33_000)), "it is forecast at 32.5 ms");
    }
    d.keep(12, 20);
    assert_eq!((d.revoked(), d.late), (0, 0));
}

/// Processes that seek go to the device together when a turn for which it was kept is over.
#[test]
fn seekers_behind_a_kept_device_are_promised_what_they_take_together() {
    let seekers = 10..13;
    let mut d = FourAtOnce::new(Span::from_millis(8));
    for volume in seekers.clone().cycle().take(30) {
        assert!(d.promised(volume, Time::NEVER));
        // The device may be kept for the one before.
        d.now += Span::from_millis(10);
        d.s.wake(d.now);
        d.next();
    }
    let over = d.kept_for_another();
    for (volume, takes_us) in seekers.zip([10_000, 15_000, 18_300]) {
        assert!(!d.promised(volume, over + Span::from_micros(takes_us - 2500)), "{volume}");
        assert!(d.promised(volume, over + Span::from_micros(takes_us + 2500)), "{volume}");
    }
    d.now = over;
    d.s.wake(over);
    for _ in 0..3 {
        assert!(d.next().outcome.is_done());
    }
    assert_eq!((d.revoked(), d.late), (0, 0));
}
