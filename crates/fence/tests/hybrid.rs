//! The hybrid: volumes without slots use what is left, and change nothing for those with slots.

mod common;
use common::{A, B, Bench, C, FLASH, at, config, ms};
use plimsoll_base::{Rng, Span, VolumeKey};
use plimsoll_fence::FenceConfig;

fn hybrid(lend_permille: u64, slots: &[(VolumeKey, u32)]) -> Bench {
    let c = FenceConfig { hybrid: true, lend_permille, ..config(4, ms(20), ms(5), ms(1)) };
    Bench::new(c, (ms(5), ms(1)), slots)
}

/// Volumes without slots have those without an owner, and what owners leave idle.
#[test]
fn the_hybrid_gives_idle_time_away() {
    let mut b = hybrid(1000, &[(A, 1), (B, 1), (C, 0)]);
    let mut sent = 0;
    for k in 0..400u64 {
        b.run_to(at(k * 5));
        while sent < b.ended.len() + 4 {
            b.send(at(k * 5), C, (sent as u64 % 50) << 20);
            sent += 1;
        }
    }
    b.run_to(at(2000));
    let (idle, lent) = b.fence().status(at(2000)).idle;
    assert!(lent.as_nanos() * 10 >= idle.as_nanos() * 9, "{lent} of {idle}");
    let first_second = b.ends(C).iter().filter(|e| **e <= 1000.0).count();
    assert!(first_second >= 120, "of 200 that a disk of its own would do: {first_second}");
}

/// Returns the times at which A's requests end, and the ratio of their wait for borrowers to their own time. If `borrows`, C always
/// has a request waiting. The disk takes `really` where 5 ms are predicted.
fn beside_a_borrower(lend_permille: u64, borrows: bool, really: Span) -> (Vec<f64>, f64) {
    let c = FenceConfig { hybrid: true, lend_permille, ..config(2, ms(20), ms(5), ms(1)) };
    let mut b = Bench::new(c, (really, ms(1)), &[(A, 1), (B, 1), (C, 0)]);
    let mut rng = Rng::new(5, "owner");
    let mut sent = 0;
    for k in 0..20_000u64 {
        b.run_to(at(k * 5));
        while borrows && sent < 16 + b.ended.iter().filter(|e| e.0 == C).count() {
            b.send(at(k * 5), C, (sent as u64 % 4 / 3) * FLASH + ((sent as u64 % 50) << 20));
            sent += 1;
        }
        if rng.chance(0.05) {
            let face = if rng.chance(0.5) { FLASH } else { 0 };
            b.send(at(k * 5) + Span::from_micros(rng.below(4999)), A, face);
        }
    }
    b.run_to(at(110_000));
    let status = b.fence().status(at(110_000));
    let a = status.volumes.iter().find(|v| v.volume == A).unwrap();
    let share = a.imposed.as_millis_f64() / a.counters.response.as_millis_f64();
    assert!(b.pool.stack().is_idle());
    (b.ends(A), share)
}

/// An owner who comes too late for its turn waits for the next one whether somebody borrowed the rest or not: where predictions hold,
/// its requests end at the very same times.
#[test]
fn who_borrows_changes_nothing_where_predictions_hold() {
    let (alone, none) = beside_a_borrower(10, false, ms(5));
    let (beside, imposed) = beside_a_borrower(10, true, ms(5));
    assert!(alone.len() > 900);
    assert_eq!((alone, none), (beside, imposed));
}

/// If predictions don't hold, the owners' waits for borrowers are bounded. Time is kept in reserve once lending has cost its share.
#[test]
fn lending_costs_no_more_than_allowed() {
    let really = ms(8);
    let mean = |ends: &[f64]| ends.iter().sum::<f64>() / ends.len() as f64;
    let (alone, _) = beside_a_borrower(10, false, really);
    let (bounded, share) = beside_a_borrower(10, true, really);
    let (_, freely) = beside_a_borrower(1000, true, really);
    assert!(share <= 0.02, "{share}");
    assert!(freely > 2.0 * share, "without the bound it costs more: {freely} {share}");
    let later = mean(&bounded) - mean(&alone);
    assert!(later.abs() < 1.5, "the same arrivals end {later} ms later on average, share {share}, freely {freely}");
}

/// Nothing of owners' turns is lent where that is asked for: then they aren't given away either.
#[test]
fn without_lending_an_owner_has_its_whole_turn() {
    for (permille, end) in [(0, 15.0), (10, 85.0)] {
        let mut b = hybrid(permille, &[(A, 1), (B, 1), (C, 0)]);
        b.send(at(10), A, 0); // half of its turn is over, and nothing was wanted
        b.run_to(at(200));
        assert_eq!(b.ends(A), [end]);
    }
    // Whose next request follows the answer isn't too late.
    let mut b = hybrid(10, &[(A, 1), (B, 1), (C, 0)]);
    b.send(at(0), A, 0);
    b.send(at(5), A, 0);
    b.run_to(at(10));
    b.send(at(10) + Span::from_micros(300), A, 0);
    b.run_to(at(100));
    assert_eq!(b.ends(A), [5.0, 10.0, 15.3]);
}

/// Lent time continues from a slot without an owner into the next such slot, which isn't later because of it.
#[test]
fn a_stretch_of_nobodys_slots_is_one() {
    let mut b = hybrid(10, &[(A, 1), (B, 1), (C, 0)]);
    b.send(at(1), A, 0);
    b.send(at(17), C, 0);
    b.send(at(17), C, 1 << 20);
    // They end at 27, beyond A's turn; two more go beyond the second slot's end.
    b.send(at(37), C, 2 << 20);
    b.send(at(37), C, 3 << 20);
    b.send(at(37), B, 0);
    b.run_to(at(200));
    assert_eq!(b.ends(B), [65.0], "at the beginning of its turn");
    let overruns: u64 = b.fence().status(at(200)).slots.iter().map(|s| s.counters.overruns.0).sum();
    assert_eq!(overruns, 0);
    assert_eq!(b.ends(C).len(), 4);
}

/// The same seed, the same run.
#[test]
fn the_same_seed_is_the_same_run() {
    let run = || {
        let mut b = hybrid(10, &[(A, 1), (B, 2), (C, 0)]);
        let mut rng = Rng::new(11, "same");
        for k in 0..3000u64 {
            let v = [A, B, C][rng.below(3) as usize];
            let t = at(k * 7) + Span::from_micros(rng.below(6_999));
            b.send(t, v, rng.below(2) * FLASH + (rng.below(500) << 20));
            if k % 1000 == 999 {
                b.pool.stack().tell(
                    t,
                    &plimsoll_stack::Addressed::new(&plimsoll_fence::FenceControl::Slots {
                        slots: 4 + k as u32 / 1000,
                        slot: ms(15),
                    }),
                );
            }
        }
        b.run_to(at(40_000));
        assert_eq!(b.ended.len(), 3000, "every request ends once");
        assert!(b.pool.stack().is_idle());
        (b.ended.clone(), b.fence().status(at(40_000)))
    };
    assert_eq!(run(), run());
}
