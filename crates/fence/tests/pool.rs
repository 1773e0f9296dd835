//! Tests of work without slots: the pool's zeroing, and requests longer than the time left. It progresses and doesn't disturb owners.

mod common;
use common::{A, B, Bench, C, D, at, config, ms, terms};
use plimsoll_base::{Op, Rng, Span, VolumeKey};
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::{DiskPredictor, FenceConfig};
use plimsoll_stack::map::{Extent, Map};
use std::ops::Range;

/// A's and B's requests while space of a deleted volume is zeroed, or isn't: when A's ended, when pieces reached the disk.
fn beside_zeroing(zeroes: bool, slots: &[(VolumeKey, u32)]) -> (Vec<f64>, Vec<u64>, Bench) {
    let mut b = Bench::new(config(4, ms(20), ms(5), ms(1)), (ms(5), ms(1)), slots);
    if zeroes {
        let extents = vec![Extent { device_offset: 0, len: 640 << 20 }];
        b.pool.with_layer(|m: &mut Map, out| m.zero(at(0), 1, extents, out));
    }
    let mut rng = Rng::new(3, "arrivals");
    for k in 0..200 {
        let mut sends = [A, B].map(|v| (at(k * 80 + 20) + Span::from_micros(rng.below(14_000)), v));
        sends.sort_by_key(|s| s.0);
        for (t, v) in sends {
            b.send(t, v, (k % 7) << 20);
        }
    }
    b.run_to(at(20_000));
    let seen = b.seen[0].lock().unwrap();
    let pieces =
        seen.iter().filter(|s| s.1 == Op::WriteZeroes).map(|s| s.0.since(at(0)).as_millis_f64() as u64).collect();
    drop(seen);
    (b.ends(A), pieces, b)
}

fn is_zeroed(b: &mut Bench) -> bool {
    b.pool.with_layer(|m: &mut Map, _| m.next_zeroed()).unwrap().is_some_and(|z| z == (1, Ok(())))
}

/// A deleted volume's space is zeroed in slots that nobody has, and its neighbours' requests end at the very same times.
#[test]
fn zeroing_goes_in_nobodys_slots() {
    let (alone, none, _) = beside_zeroing(false, &[(A, 1), (B, 1)]);
    let (beside, pieces, mut b) = beside_zeroing(true, &[(A, 1), (B, 1)]);
    let changed: Vec<_> = alone.iter().zip(&beside).filter(|(a, b)| a != b).collect();
    assert!(changed.is_empty(), "{changed:?}");
    assert_eq!((none.len(), pieces.len()), (0, 10));
    assert!(pieces.iter().all(|t| (20..60).contains(&(t % 80))), "{pieces:?}");
    assert!(is_zeroed(&mut b));
}

/// If every slot has an owner, zeroing runs at the beginning of turns whose owners are idle.
#[test]
fn without_such_slots_zeroing_goes_where_owners_want_nothing() {
    // A has the first slot, B the second: who comes after them is dealt what is left from the end on.
    let slots = [(A, 1), (C, 1), (B, 1), (C, 2)];
    let (alone, ..) = beside_zeroing(false, &slots);
    let (beside, pieces, mut b) = beside_zeroing(true, &slots);
    assert_eq!((alone.len(), pieces.len()), (beside.len(), 10));
    // Who comes meanwhile waits for one, and its turn begins later from then on.
    let latest = alone.iter().zip(&beside).map(|(a, b)| b - a).fold(0.0, f64::max);
    assert!(latest > 0.0 && latest <= 10.0, "{latest}");
    assert!(is_zeroed(&mut b));
}

/// Keeps volumes busy from one millisecond to another; when requests of `of` ended.
fn saturated(b: &mut Bench, volumes: &[VolumeKey], span: Range<u64>, of: VolumeKey) -> Vec<f64> {
    let mut sent = vec![0; volumes.len()];
    for k in span.start / 5..span.end / 5 {
        b.run_to(at(k * 5));
        for (v, sent) in volumes.iter().zip(&mut sent) {
            while *sent < 8 + b.ended.iter().filter(|e| e.0 == *v).count() {
                b.send(at(k * 5), *v, (*sent as u64 % 50) << 20);
                *sent += 1;
            }
        }
    }
    b.ends(of)
}

/// A volume without slots is served once in a while even if every slot has an owner, owners are never idle, and nothing is lent.
#[test]
fn nobody_waits_for_ever() {
    for lend_permille in [0, 10] {
        let c = FenceConfig { hybrid: true, lend_permille, ..config(2, ms(20), ms(5), ms(1)) };
        let mut b = Bench::new(c, (ms(5), ms(1)), &[(A, 1), (B, 1), (C, 0)]);
        for offset in [0, common::FLASH] {
            b.send(at(0), C, offset);
        }
        let ends = saturated(&mut b, &[A, B], 0..4000, C);
        assert_eq!(ends.len(), 2, "{ends:?}");
        // Sixteen rotations each.
        assert!(ends[0] >= 640.0 && ends[0] <= 720.0 && ends[1] <= 1400.0, "{ends:?}");
        let served = b.ends(A).len();
        assert!(served >= 380, "A has its half of 800 all the same: {served}");
    }
}

/// A request longer than a slot is served, too: a borrower's, and one of the background.
#[test]
fn what_is_longer_than_a_slot_goes_in_nobodys() {
    let disk = DiskPredictor::new(vec![(0, 1_000_000)], 100_000).unwrap(); // 0.1 ms a KiB
    let mut c = FenceConfig { hybrid: true, lend_permille: 0, ..config(3, ms(20), ms(5), ms(1)) };
    c.devices[0] = DeviceKind::disk(disk);
    for zeroes in [false, true] {
        let mut b = Bench::new(c.clone(), (ms(10), ms(1)), &[(A, 1), (B, 1), (C, 0)]);
        if zeroes {
            // Predicted to take 6.5 s.
            let extents = vec![Extent { device_offset: 0, len: 64 << 20 }];
            b.pool.with_layer(|m: &mut Map, out| m.zero(at(0), 1, extents, out));
        } else {
            let mut head = Bench::head(C, 0, at(0));
            head.len = 512 << 10;
            b.send_head(at(0), head);
        }
        saturated(&mut b, &[A, B], 0..2000, A);
        b.run_to(at(3000));
        if zeroes {
            assert!(is_zeroed(&mut b));
        } else {
            assert_eq!(b.ends(C).len(), 1);
        }
    }
}

/// A borrower that overruns an owner's turn makes the turns up to the next one that nobody has later: all of their owners' waits are
/// counted; and no owner is debited for it.
#[test]
fn who_waits_for_a_borrower_is_known_and_owes_nothing() {
    let c = FenceConfig { hybrid: true, lend_permille: 1000, ..config(4, ms(20), ms(5), ms(1)) };
    // The first three slots are A's, B's and C's: the last one was D's.
    let mut b = Bench::new(c, (ms(12), ms(1)), &[(A, 1), (D, 1), (B, 1), (C, 1), (D, 0)]);
    // Borrowed from A at about 10 ms, as 5 were predicted: ends at 22.
    b.send(at(10), D, 0);
    for v in [B, C] {
        b.send(at(11), v, 0);
    }
    // A's turn is given away: this doesn't go meanwhile.
    b.send(at(21), A, common::FLASH);
    b.run_to(at(81));
    let s = b.fence().status(at(81));
    assert_eq!((s.slots[0].balance_ns, s.slots[0].counters.overruns.0), (0, 0));
    let imposed = |v| s.volumes.iter().find(|x| x.volume == v).unwrap().imposed;
    assert_eq!((imposed(A), imposed(B), imposed(C)), (Span::ZERO, ms(2), ms(2)));
    assert_eq!(b.ends(B), [34.0]);
    assert_eq!(b.ends(C), [54.0]);
    b.run_to(at(200));
    assert_eq!(b.ends(A), [81.0], "in time: nobody's slot was shorter");
}

/// A volume's space may be zeroed after its slots are somebody else's again.
#[test]
fn former_slots_may_be_promised_again() {
    let mut b = Bench::new(config(2, ms(20), ms(5), ms(1)), (ms(5), ms(1)), &[(A, 1), (B, 1)]);
    b.pool.stack().forget_volume(at(0), B);
    b.pool.with_layer(|m: &mut Map, out| {
        m.zero(at(0), 1, vec![Extent { device_offset: 0, len: 640 << 20 }], out);
    });
    b.run_to(at(30));
    let zeroed = b.seen[0].lock().unwrap().len();
    assert!((1..10).contains(&zeroed));
    b.pool.stack().set_volume(at(30), C, &terms(1));
    saturated(&mut b, &[A, C], 30..10_000, A);
    assert!(is_zeroed(&mut b));
}
