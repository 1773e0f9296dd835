//! Tests of the order of service, and of forecasts.

mod common;
use common::{A, B, Bench, C, FLASH, at, by_distance, by_distance_of, config, ms, terms};
use plimsoll_base::{Data, Io, Op, Rng, Span};
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::{DiskPredictor, Fence, FenceConfig, FlashPredictor};

/// VF-M7, M8: a volume is served in its slot only, although nobody else is there.
#[test]
fn only_in_its_slot_though_nobody_else_is_there() {
    let mut b = Bench::new(config(4, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (B, 1)]);
    b.send(at(2), A, 0); // slot 0 is A's
    b.send(at(25), A, 0); // slot 1 runs
    b.send(at(26), A, FLASH);
    b.run_to(at(200));
    assert_eq!(b.ends(A), [7.0, 81.0, 85.0]);
}

/// VF-M9: the largest batch that is predicted to fit goes, then the next; VF-M10: what doesn't fit ends the slot, and its rest
/// is the next turn's.
#[test]
fn batches_fit_and_an_early_end_is_credited() {
    let mut b = Bench::new(config(2, ms(20), ms(8), ms(1)), (ms(8), ms(1)), &[(A, 1), (B, 1)]);
    for i in 0..5 {
        b.send(at(1), A, i << 20);
    }
    b.run_to(at(300));
    // The first alone (it came first), then one more by 17 ms; the third doesn't fit 3 ms. B's 20 ms, then 23 ms: two.
    assert_eq!(b.ends(A), [9.0, 17.0, 45.0, 53.0, 81.0]);
    let s = b.fence().status(at(300));
    assert_eq!(s.slots[0].counters.early, (2, ms(3) + ms(7)));
    assert_eq!(s.slots[1].counters.early.0, 0);
}

/// VF-M11: a batch that takes longer than predicted is debited; meanwhile flash gets one request at a time.
#[test]
fn an_overrun_is_debited_and_flash_goes_on_slowly() {
    // The disk takes 18 ms where 5 were predicted.
    let mut b = Bench::new(config(2, ms(20), ms(5), ms(1)), (ms(18), ms(1)), &[(A, 1), (B, 1)]);
    b.send(at(14), A, 0); // due at 19, ends at 32
    for i in 0..20 {
        b.send(at(18), A, FLASH + (i << 12));
    }
    b.send(at(21), B, 0);
    b.run_to(at(31));
    // Two fit before 20 ms (predicted), in batches; from 20 on one by one.
    let flash = b.ends(A);
    assert_eq!(flash, [19.0, 20.0, 21.0, 22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0, 31.0]);
    b.run_to(at(300));
    // A's batch ends at 32, and the flash request that was just sent at 33.
    assert_eq!(b.ends(B), [51.0], "B begins when both have ended");
    let s = b.fence().status(at(300));
    assert_eq!(s.slots[0].counters.overruns, (1, ms(13)));
    // A's next turn begins at 53 and has 7 ms: its remaining flash requests fit.
    assert!(b.ends(A).iter().all(|e| *e <= 60.0), "{:?}", b.ends(A));
}

/// One request of flash at a time: were they sent together, the next slot would wait for all of them.
#[test]
fn slow_sends_hold_the_next_slot_up_by_one_request_at_most() {
    let mut b = Bench::new(config(2, ms(20), ms(5), ms(1)), (ms(10), ms(3)), &[(A, 1), (B, 1)]);
    b.send(at(14), A, 0); // ends at 24
    for i in 0..30 {
        b.send(at(19), A, FLASH + (i << 12));
    }
    b.send(at(19), B, 0);
    b.run_to(at(100));
    assert!(b.ends(B)[0] <= 24.0 + 3.0 + 10.0, "{:?}", b.ends(B));
}

/// VF-M5: requests are sent to both devices at once, and none of a batch waits for another's answer.
#[test]
fn both_devices_work_at_once_and_no_answer_is_waited_for() {
    let mut b = Bench::new(config(2, ms(20), ms(5), ms(2)), (ms(5), ms(2)), &[(A, 1), (B, 1)]);
    for i in 0..6 {
        b.send(at(25), A, i / 3 * FLASH + (i << 20));
    }
    b.run_to(at(100));
    let times = |d: usize| b.seen[d].lock().unwrap().iter().map(|s| s.0).collect::<Vec<_>>();
    assert_eq!((times(0), times(1)), (vec![at(40); 3], vec![at(40); 3]));
    let mut ends = b.ends(A);
    ends.sort_by(f64::total_cmp);
    assert_eq!(ends, [42.0, 44.0, 45.0, 46.0, 50.0, 55.0]);
}

/// All writes are durable when they end, as a device would write buffered data in another volume's slot. A flush then has nothing
/// to do and needs no slot, once a first flush has covered the data from before the start.
#[test]
fn writes_are_durable_and_a_flush_needs_no_slot() {
    let mut b = Bench::new(config(4, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (B, 1)]);
    b.send_op(at(1), A, 0, Op::Write);
    b.send_op(at(1), A, FLASH, Op::Write);
    b.run_to(at(25)); // B's
    let flush = |b: &mut Bench, t: u64| {
        let n = b.ended.len();
        b.send_op(at(t), A, 0, Op::Flush);
        b.run_to(at(t) + ms(79));
        assert_eq!(b.ended.len(), n + 1);
        b.ended[n].2.since(at(t))
    };
    assert_eq!(flush(&mut b, 25), ms(60), "at 80, in A's slot, and 5 ms");
    assert_eq!(flush(&mut b, 105), Span::ZERO);
    b.send_op(at(200), A, 0, Op::Write);
    b.run_to(at(300));
    assert_eq!(flush(&mut b, 345), Span::ZERO, "though something was written");
    let writes =
        |d: usize| b.seen[d].lock().unwrap().iter().filter(|s| s.1 == Op::Write).map(|s| s.2).collect::<Vec<_>>();
    assert_eq!((writes(0), writes(1)), (vec![true; 2], vec![false]), "flash isn't asked for that");
}

/// If a device's writes aren't durable at their end, they are flushed in their volume's slot.
#[test]
fn what_is_buffered_is_flushed() {
    let mut c = config(4, ms(20), ms(5), ms(1));
    c.devices[0].durable_writes = false;
    let mut b = Bench::new(c, (ms(5), ms(1)), &[(A, 1), (B, 1)]);
    for k in 0..3 {
        b.send_op(at(k * 80 + 1), A, 0, Op::Write);
        b.send_op(at(k * 80 + 8), A, 0, Op::Flush);
    }
    b.run_to(at(400));
    let seen: Vec<_> = b.seen[0].lock().unwrap().iter().map(|s| (s.1, s.2)).collect();
    assert_eq!(seen, [(Op::Write, false), (Op::Flush, false)].repeat(3));
}

/// Several slots of a volume come several times a rotation.
#[test]
fn two_slots_wait_half_as_long() {
    let run = |slots| {
        let mut b = Bench::new(config(4, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, slots), (B, 1)]);
        for k in 0..16 {
            b.send(at(k * 85 + 21), A, 0);
        }
        b.run_to(at(3000));
        let waited: Vec<f64> = b.ended.iter().map(|e| e.2.since(e.1).as_millis_f64()).collect();
        assert_eq!(waited.len(), 16);
        let longest = waited.iter().copied().fold(0.0, f64::max);
        (longest, waited.iter().sum::<f64>() / 16.0)
    };
    let (one, two) = (run(1), run(2));
    // From the slot's end: 60 ms to the next of one, 20 of two; and 5 for itself.
    assert!((60.0..=65.0).contains(&one.0) && (20.0..=25.0).contains(&two.0), "{one:?} {two:?}");
    assert!(two.1 * 2.0 <= one.1 && two.1 > 5.0, "{one:?} {two:?}");
}

/// Neighbours' requests on either device change nothing for a volume, as long as predictions hold and no slot ends early (VF-M7).
/// Its times are exactly the same.
#[test]
fn neighbours_change_nothing_where_predictions_hold() {
    let run = |neighbours: bool| {
        let mut b = Bench::new(config(4, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (B, 1), (C, 2)]);
        let mut rng = Rng::new(3, "arrivals");
        for k in 0..200u64 {
            // Neighbours' come when all of them fit what is left of a slot.
            let before = [(B, 2), (C, 3)].into_iter().filter(|_| neighbours);
            let mut sends = Vec::new();
            for (v, n) in before {
                let turn = at(k * 80) + if v == B { ms(22) } else { ms(42) };
                sends.extend((0..n).map(|i| (turn, v, i << 20)));
                sends.extend((0..4).map(|i| (turn, v, FLASH + (i << 20))));
            }
            // A's own arrivals are the same in both runs: where they need not end its turn early.
            for face in [0, FLASH] {
                let t = at(k * 80 + 20) + Span::from_micros(rng.below(59_000));
                sends.push((t, A, face + ((k % 7) << 20)));
            }
            sends.sort_by_key(|s| s.0);
            for (t, v, offset) in sends {
                b.send(t, v, offset);
            }
        }
        b.run_to(at(60_000));
        let early: u64 = b.fence().status(at(60_000)).slots.iter().map(|s| s.counters.early.0).sum();
        assert_eq!(early, 0);
        b.ends(A)
    };
    let (alone, beside) = (run(false), run(true));
    assert_eq!(alone.len(), 400);
    assert_eq!(alone, beside);
}

/// Slots and their length change while requests wait; none is lost, and who has slots keeps them.
#[test]
fn slots_change_live() {
    let mut b = Bench::new(config(2, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (B, 1)]);
    b.send(at(25), A, 0);
    b.pool
        .stack()
        .tell(at(25), &plimsoll_stack::Addressed::new(&plimsoll_fence::FenceControl::Slots { slots: 8, slot: ms(10) }));
    b.run_to(at(39));
    assert_eq!(b.fence().status(at(39)).slot, ms(20), "the running slot ends first");
    b.run_to(at(130));
    let s = b.fence().status(at(130));
    assert_eq!((s.slot, s.slots.len()), (ms(10), 8));
    assert_eq!(s.volumes.iter().map(|v| v.slots).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(b.ends(A).len(), 1);
    let refused = b.pool.with_layer(|f: &mut Fence, _| f.set_slots(at(130), 1, ms(20))).unwrap();
    assert!(refused.unwrap_err().contains("2 slots are promised"), "too few");
    let refused = b.pool.with_layer(|f: &mut Fence, _| f.set_slots(at(130), 8, ms(4))).unwrap();
    assert!(refused.unwrap_err().contains("shorter than one request"));
}

/// Counts go on where slots change; credit and debit are in slots of the old length, and are forgotten.
#[test]
fn a_change_resets_no_counts() {
    let mut b = Bench::new(config(2, ms(20), ms(8), ms(1)), (ms(8), ms(1)), &[(A, 1), (B, 1)]);
    for i in 0..5 {
        b.send(at(1), A, i << 20);
    }
    b.run_to(at(30));
    let first = |b: &mut Bench, t: u64| b.fence().status(at(t)).slots[0];
    assert_eq!(first(&mut b, 30).counters.early, (1, ms(3)));
    assert_eq!(first(&mut b, 30).balance_ns, 3_000_000);
    for (t, slots) in [(30, 1), (130, 2)] {
        let terms = terms(u32::from(slots == 2));
        b.pool.stack().set_volume(at(t), B, &terms);
        b.pool
            .stack()
            .tell(at(t), &plimsoll_stack::Addressed::new(&plimsoll_fence::FenceControl::Slots { slots, slot: ms(40) }));
        b.run_to(at(t + 100));
    }
    let counters = first(&mut b, 230).counters;
    assert!(counters.turns >= 3 && counters.early.0 >= 1 && counters.used >= 2, "{counters:?}");
    assert_eq!(b.ends(A).len(), 5);
}

/// Slots that a change which hasn't come into force yet will bring can be promised: who has them waits for that, and isn't let
/// through meanwhile.
#[test]
fn slots_that_are_about_to_come_are_waited_for() {
    let mut b = Bench::new(config(2, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (B, 1)]);
    b.send(at(1), A, 0);
    b.pool
        .stack()
        .tell(at(2), &plimsoll_stack::Addressed::new(&plimsoll_fence::FenceControl::Slots { slots: 4, slot: ms(20) }));
    b.pool.stack().set_volume(at(3), C, &terms(1));
    b.send(at(4), C, 0);
    b.run_to(at(19));
    assert_eq!((b.ends(A), b.ends(C)), (vec![6.0], vec![]));
    b.run_to(at(120));
    let turn = b.fence().status(at(120)).slots.iter().position(|s| s.owner == Some(C)).unwrap();
    assert_eq!(b.ends(C), [20.0 + 20.0 * turn as f64 + 5.0]);
}

/// The owner of the running slot isn't removed until the slot has ended.
#[test]
fn the_running_slots_owner_is_not_removed() {
    let mut b = Bench::new(config(2, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (B, 1)]);
    b.run_to(at(5));
    let may = |b: &mut Bench, t: u64, v| b.fence().status(at(t)).may_remove(v);
    assert_eq!((may(&mut b, 5, A), may(&mut b, 5, B)), (Err(ms(15)), Ok(())));
    b.run_to(at(25));
    assert_eq!(may(&mut b, 25, A), Ok(()));
    b.pool.stack().forget_volume(at(25), A);
    assert_eq!(b.fence().free_slots(), 1);
    // Who owns every slot could never be removed otherwise.
    b.pool.stack().set_volume(at(25), B, &terms(2));
    assert_eq!(may(&mut b, 30, B), Ok(()));
}

/// A request longer than a slot gathers a slot's credit, then goes, and is paid for.
#[test]
fn a_request_longer_than_a_slot_is_served_and_paid_for() {
    let d = DiskPredictor::new(vec![(0, 1_000_000)], 100_000).unwrap(); // 0.1 ms a KiB
    let f = FlashPredictor::by_number(1_000_000, 1_000_000);
    let devices = vec![DeviceKind::disk(d), DeviceKind::flash(f)];
    let c = FenceConfig { slot: ms(20), first_anyway: false, ..FenceConfig::new(2, devices) };
    let mut b = Bench::new(c, (ms(50), ms(1)), &[(A, 1), (B, 1)]);
    b.run_to(at(1));
    let mut head = Bench::head(A, 0, at(1));
    head.len = 512 << 10; // predicted: 52 ms
    b.pool.offer(at(1), Io::new(head, Data::Absent));
    for k in 0..20 {
        b.send(at(20 + k * 40), B, FLASH);
    }
    b.run_to(at(2000));
    assert_eq!(b.ends(A).len(), 1);
    assert!(b.ends(A)[0] <= 42.0 + 50.0, "{:?}", b.ends(A));
    let waits: Vec<f64> = b.ended.iter().filter(|e| e.0 == B).map(|e| e.2.since(e.1).as_millis_f64()).collect();
    assert!(waits.iter().filter(|w| **w > 61.0).count() <= 1, "one overrun holds B up once: {waits:?}");
}

/// The arm is a neighbour's away, so the first request doesn't fit: it goes all the same and is paid for, or waits a rotation for credit.
#[test]
fn a_first_request_that_overruns_goes_at_once_unless_as_published() {
    let run = |first_anyway| {
        let mut c = FenceConfig { first_anyway, arm_away: false, ..config(4, ms(20), ms(5), ms(1)) };
        let near = DiskPredictor::new(vec![(0, 24_000_000), (1 << 40, 5_000_000)], 0).unwrap();
        c.devices[0] = DeviceKind::disk(near);
        let mut b = Bench::new(c, (ms(24), ms(1)), &[(A, 1), (B, 1)]);
        b.send(at(30), A, 0);
        b.run_to(at(400));
        b.ends(A)
    };
    assert_eq!((run(true), run(false)), (vec![104.0], vec![164.0]));
}

/// The requests sent in a turn don't depend on whether a neighbour had the arm before. A turn's first request is predicted as a
/// long way off even without neighbours.
#[test]
fn the_first_request_of_a_turn_is_predicted_as_if_there_were_neighbours() {
    let run = |arm_away| {
        let mut b = by_distance(|c| (c.arm_away, c.steady) = (arm_away, false));
        b.send(at(8), A, 0); // 12 ms are left: 5 would fit, 15 don't
        b.send(at(30), A, 0);
        b.run_to(at(200));
        b.ends(A)
    };
    // The slot ends at 8 ms, its turn comes again at 28; the second is near the first.
    assert_eq!((run(true), run(false)), (vec![33.0, 38.0], vec![13.0, 45.0]));
}

/// Steady: what the arm's way back was predicted to cost is waited for where it was spared, once a turn.
#[test]
fn a_steady_fence_answers_as_if_the_arm_had_been_away() {
    let mut b = by_distance(|c| (c.steady, c.slot) = (true, ms(21)));
    b.send(at(1), A, 0);
    b.run_to(at(10));
    assert!(b.ends(A).is_empty() && b.pool.stack().is_using(A));
    b.run_to(at(39));
    assert_eq!(b.ends(A).iter().map(|e| e.round()).collect::<Vec<_>>(), [16.0]);
    b.send(at(39), A, 0);
    b.send(at(39), A, 0);
    b.run_to(at(200));
    // Its turn begins at 42; the batch would take 5 ms each, and 10 ms the arm.
    let rounded = |b: &Bench| b.ends(A).iter().map(|e| e.round()).collect::<Vec<f64>>();
    assert_eq!(rounded(&b), [16.0, 57.0, 62.0]);
    // Its slot's end comes before the answer.
    let mut b = by_distance(|c| (c.steady, c.slot) = (true, ms(12)));
    b.send(at(1), A, 0);
    b.run_to(at(100));
    assert_eq!(rounded(&b), [16.0]);
}

/// Alone, what is near may take longer than predicted: nobody is answered later than if the arm had been away because of that.
#[test]
fn a_steady_fence_answers_no_later_than_from_away() {
    for (really, end) in [(5, 16.0), (9, 16.0), (14, 16.0), (17, 18.0)] {
        let mut b = by_distance_of(ms(really), |c| c.slot = ms(40));
        b.send(at(1), A, 0);
        b.run_to(at(100));
        assert_eq!(b.ends(A).iter().map(|e| e.round()).collect::<Vec<_>>(), [end], "{really}");
    }
}

/// A slot's next turn is a new one although nothing waited when the last one ended, and no other slot ran since: it begins with the arm
/// away again.
#[test]
fn a_later_turn_of_the_same_slot_is_a_new_one() {
    let rounded = |b: &Bench, v| b.ends(v).iter().map(|e| e.round()).collect::<Vec<f64>>();
    let mut b = by_distance(|_| {});
    for t in [1, 41, 401] {
        b.send(at(t), A, 0);
    }
    b.run_to(at(500));
    assert_eq!(rounded(&b, A), [16.0, 56.0, 416.0]);
    b.send(at(505), A, 0);
    let [own, other] = [0, 1].map(|slot| b.fence().status(at(505)).slots[slot].counters);
    assert_eq!((own.used, other.used), (3, 0));
    assert_eq!((own.turns, other.turns), (13, 12));
    // With one slot there is no other that could run.
    let mut b = by_distance(|c| c.slots = 1);
    b.send(at(1), A, 0);
    b.send(at(21), A, 0);
    b.run_to(at(100));
    assert_eq!(rounded(&b, A), [16.0, 36.0]);
}

/// A change that holds at once begins a new turn, too.
#[test]
fn a_change_begins_a_new_turn() {
    let mut b = by_distance(|_| {});
    b.send(at(1), A, 0);
    b.run_to(at(17));
    b.pool
        .stack()
        .tell(at(17), &plimsoll_stack::Addressed::new(&plimsoll_fence::FenceControl::Slots { slots: 2, slot: ms(20) }));
    b.send(at(18), A, 0);
    b.run_to(at(100));
    assert_eq!(b.ends(A).iter().map(|e| e.round()).collect::<Vec<_>>(), [16.0, 33.0]);
}

/// Without the hybrid, who has no slots isn't held.
#[test]
fn without_slots_and_hybrid_nothing_is_held() {
    let mut b = Bench::new(config(4, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (C, 0)]);
    b.send(at(31), C, 0);
    b.run_to(at(100));
    assert_eq!(b.ends(C), [36.0]);
}

/// A volume that loses its slots while requests wait isn't stuck; one that gains some is held from then on.
#[test]
fn slots_come_and_go_with_the_volume() {
    let mut b = Bench::new(config(4, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (B, 1)]);
    b.send(at(30), A, 0);
    b.pool.stack().set_volume(at(30), A, &terms(0));
    b.run_to(at(40));
    assert_eq!(b.ends(A), [35.0]);
    b.pool.stack().set_volume(at(40), A, &terms(1));
    // B has the last slot: what A is given now is the next from there, from 40 on and from 120 on.
    b.send(at(65), A, 0);
    b.run_to(at(200));
    assert_eq!(b.ends(A), [35.0, 125.0]);
}
