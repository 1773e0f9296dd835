//! Tests of forecasts and of their confidence.

mod common;
use common::{A, B, Bench, C, FLASH, at, by_distance, config, ms};
use plimsoll_base::{Data, Io, Rng, Span, VolumeKey};
use plimsoll_fence::FenceConfig;
use plimsoll_stack::Offered;

/// Outside its slot a request's wait is known, hits and misses alike. Certain means certain: whatever neighbours do whose turns end
/// early or overrun. Else it's wrong by what they do.
#[test]
fn what_is_certain_is_exact_outside_the_slot() {
    // Two in five of a disk's batches overrun.
    let mut b = Bench::new(config(6, ms(20), ms(4), ms(1)), (ms(6), ms(1)), &[(A, 1), (B, 1), (C, 1)]);
    let mut rng = Rng::new(7, "forecast");
    let mut now = at(1);
    let (mut exact, mut nearly, mut wrong) = (0, 0, 0);
    for _ in 0..1200 {
        now += ms(rng.below(70));
        b.run_to(now);
        for _ in 0..rng.below(5) {
            b.send(now, [A, B, C][rng.below(3) as usize], rng.below(100) << 20);
        }
        let v = [A, B, C][rng.below(3) as usize];
        let offset = rng.below(2) * FLASH + (rng.below(100) << 20);
        let f = b.pool.stack().forecast(now, &Bench::head(v, offset, now));
        b.send(now, v, offset);
        if f.confidence.0 >= 950 && f.wait > Span::ZERO {
            let n = b.ended.len();
            // The disk really takes 6.
            let service = if offset < FLASH { ms(6) } else { ms(1) };
            let want = now + f.wait + service;
            b.run_to(want + ms(200));
            let ended = b.ended[n..].iter().find(|e| e.0 == v && e.1 == now).expect("it has ended by then").2;
            match f.confidence.0 {
                1000 => assert_eq!(ended, want),
                _ => assert!(ended.since(want) <= ms(60) && want.since(ended) <= ms(60), "{ended:?} {want:?}"),
            }
            exact += u32::from(f.confidence.0 == 1000);
            nearly += u32::from(f.confidence.0 < 1000);
            wrong += u32::from(f.confidence.0 < 1000 && ended != want);
            now = b.pool.now();
        }
    }
    assert!(exact > 100 && nearly > 100 && wrong > 10, "{exact} {nearly} {wrong}");
}

/// Steady: outside its slot a disk's request is answered as if the arm had been away, and the forecast says so; in its turn, near its last
/// one, it's what it takes there.
#[test]
fn a_steady_fences_answers_are_forecast() {
    let mut b = by_distance(|c| c.slot = ms(40));
    let total = |b: &mut Bench, t: u64| {
        let f = b.pool.stack().forecast(at(t), &Bench::head(A, 0, at(t)));
        (f.wait.as_millis_f64(), f.service.as_millis_f64().round())
    };
    assert_eq!(total(&mut b, 1), (0.0, 15.0), "its turn, and the arm is away");
    b.send(at(1), A, 0);
    b.run_to(at(18));
    assert_eq!(total(&mut b, 18), (0.0, 5.0), "at home");
    assert_eq!(total(&mut b, 38), (42.0, 15.0), "what doesn't fit goes in the next turn");
    b.run_to(at(85));
    assert_eq!(total(&mut b, 85), (0.0, 15.0), "its next turn, though nothing has happened since");
    assert_eq!(total(&mut b, 125), (35.0, 15.0));
    b.send(at(125), A, 0);
    b.run_to(at(300));
    assert_eq!(b.ends(A).iter().map(|e| e.round()).collect::<Vec<_>>(), [16.0, 175.0]);
}

/// Nothing is certain where slots are about to change.
#[test]
fn a_pending_change_is_uncertain() {
    let mut b = Bench::new(config(4, ms(20), ms(4), ms(1)), (ms(4), ms(1)), &[(A, 1), (B, 1)]);
    b.run_to(at(22));
    let sure = |b: &mut Bench, v, t: u64| b.pool.stack().forecast(at(t), &Bench::head(v, 0, at(t))).confidence.0;
    assert_eq!((sure(&mut b, B, 22), sure(&mut b, A, 22)), (1000, 950), "B's turn comes before A's");
    b.send(at(22), B, 0);
    b.pool
        .stack()
        .tell(at(23), &plimsoll_stack::Addressed::new(&plimsoll_fence::FenceControl::Slots { slots: 8, slot: ms(20) }));
    assert_eq!(sure(&mut b, A, 24), 500);
    b.run_to(at(41));
    assert_eq!(sure(&mut b, B, 41), 800, "its own are before it");
}

/// With a backlog, too: what waits before it is counted once. Of those that go in its own turn half go before it, as far as is
/// known: they are served by address.
#[test]
fn the_forecast_counts_the_backlog() {
    let mut b = Bench::new(config(2, ms(20), ms(4), ms(1)), (ms(4), ms(1)), &[(A, 1), (B, 1)]);
    b.run_to(at(21)); // B's
    for i in 0..12 {
        let f = b.pool.stack().forecast(at(21), &Bench::head(A, i << 20, at(21)));
        b.send(at(21), A, i << 20);
        // Five a turn: at 40, 80, 120.
        let want = 40 + (i / 5) * 40 + (i % 5) * 2 - 21;
        assert_eq!(f.wait, ms(want), "request {i}");
    }
    b.run_to(at(1000));
    let want: Vec<f64> = (0..12).map(|i| (40 + (i / 5) * 40 + (i % 5) * 4 + 4) as f64).collect();
    assert_eq!(b.ends(A), want);
}

#[test]
fn a_deadline_that_the_slot_cannot_keep_is_refused_at_once() {
    let mut b = Bench::new(config(4, ms(20), ms(4), ms(1)), (ms(4), ms(1)), &[(A, 1), (B, 1)]);
    b.run_to(at(30));
    let mut head = Bench::head(A, 0, at(30));
    head.deadline = at(60);
    match b.pool.offer(at(30), Io::new(head, Data::Absent)) {
        Offered::Busy(f) => assert_eq!(f.wait, ms(50)),
        other => panic!("{other:?}"),
    }
    head.deadline = at(90);
    assert!(matches!(b.pool.offer(at(30), Io::new(head, Data::Absent)), Offered::Accepted(_)));
}

fn hybrid(slots: u32, lend_permille: u64, volumes: &[(VolumeKey, u32)]) -> Bench {
    let c = FenceConfig { hybrid: true, lend_permille, ..config(slots, ms(20), ms(4), ms(1)) };
    Bench::new(c, (ms(4), ms(1)), volumes)
}

/// A volume without slots waits for others' turns to end, with nothing of its own before it, too.
#[test]
fn a_volume_without_slots_waits_for_a_turn_of_nobody() {
    // Slots of A, nobody, nobody, B.
    for (lend_permille, t, wait) in [(0, 1, 19), (0, 21, 0), (0, 59, 41), (0, 61, 39), (10, 61, 0), (10, 59, 1)] {
        let mut b = hybrid(4, lend_permille, &[(A, 1), (B, 1), (C, 0)]);
        b.run_to(at(t));
        let f = b.pool.stack().forecast(at(t), &Bench::head(C, 0, at(t)));
        let said = f.wait.as_millis_f64();
        assert!(
            (said - wait as f64).abs() <= 0.5,
            "{said} ms instead of {wait} at {t} ms, lend_permille = {lend_permille}"
        );
    }
    // Nobody's time is left to it: one request in 16 rotations.
    let mut b = hybrid(2, 0, &[(A, 1), (B, 1), (C, 0)]);
    for n in 1..=3 {
        let f = b.pool.stack().forecast(at(0), &Bench::head(C, 0, at(0)));
        assert_eq!(f.wait, ms(640 * n));
        b.send(at(0), C, 0);
    }
    b.run_to(at(5000));
    assert_eq!(b.ends(C), [644.0, 1284.0, 1924.0]);
}

/// A read that certainly waits beyond its deadline is refused at once.
#[test]
fn a_volume_without_slots_is_promised_nothing_that_must_break() {
    let mut b = hybrid(4, 10, &[(A, 1), (B, 3), (C, 0)]);
    for n in 0..60 {
        b.send(at(0), [A, B][n % 2], (n as u64) << 20);
    }
    let mut head = Bench::head(C, 0, at(0));
    head.deadline = at(100);
    match b.pool.offer(at(0), Io::new(head, Data::Absent)) {
        Offered::Busy(f) => {
            assert!(f.wait >= ms(120), "{}: both owners have more to do than two of their turns", f.wait)
        }
        other => panic!("{other:?}"),
    }
    head.deadline = at(2000);
    assert!(matches!(b.pool.offer(at(0), Io::new(head, Data::Absent)), Offered::Accepted(_)));
}

/// A read without slots waits for the first idle owner where all slots have one, if that is before the 16 rotations after which it goes in
/// any case.
#[test]
fn where_all_slots_are_owned_the_first_idle_owner_is_waited_for() {
    // Reads of A, B and C, and the wait of one more of C: five reads take a turn, and there are four of C in what is left of one that is idle.
    for (a, b, c, wait) in
        [(20, 20, 0, 160.4), (60, 30, 0, 260.4), (20, 60, 2, 168.4), (0, 30, 3, 12.4), (200, 200, 0, 640.0)]
    {
        let mut bench = hybrid(2, 10, &[(A, 1), (B, 1), (C, 0)]);
        for (v, reads) in [(A, a), (B, b), (C, c)] {
            (0..reads).for_each(|i| bench.send(at(0), v, i << 20));
        }
        let mut head = Bench::head(C, 900 << 20, at(0));
        let said = bench.pool.stack().forecast(at(0), &head).wait.as_millis_f64();
        assert!((said - wait).abs() < 0.5, "{said} ms instead of {wait}: {a}, {b} and {c} reads");
        head.deadline = at(wait as u64 + 10);
        bench.send_head(at(0), head);
        bench.run_to(at(5000));
        let ended = bench.ends(C).into_iter().fold(0.0, f64::max);
        assert!((ended - said - 4.0).abs() < 0.5, "{ended} ms, of which {said} were forecast: {a}, {b} and {c} reads");
    }
}

/// Owners with random work and nothing more later: forecasts of a volume without slots against what happens, where a slot has no owner, and
/// where all have one and lend.
#[test]
fn forecasts_without_slots_follow_what_owners_leave() {
    let mut rng = Rng::new(12, "without slots");
    // What is left of an owned turn has room for four reads and a half: the half isn't known.
    for (all_owned, most_off_percent) in [(false, 8.0), (true, 11.0)] {
        let (mut error, mut waited, mut early) = (0.0, 0.0, 0);
        for round in 0..300u64 {
            let owned = 1 + rng.below(3) as u32;
            let (lend_permille, of_b) = match all_owned {
                false => ([0, 1000][rng.below(2) as usize], u32::from(owned < 3)),
                true => (1000, 4 - owned),
            };
            let mut b = hybrid(4, lend_permille, &[(A, owned), (B, of_b), (C, 0)]);
            let t = at(rng.below(200));
            b.run_to(t);
            for v in [A, B] {
                (0..rng.below(25)).for_each(|i| b.send(t, v, i << 20));
            }
            (0..rng.below(25)).for_each(|i| b.send(t, C, i << 20));
            let said = b.pool.stack().forecast(t, &Bench::head(C, 0, t)).wait.as_millis_f64();
            // Farther than all others: those go before it.
            b.send(t, C, 900 << 20);
            b.run_to(t + ms(5000));
            let ended = b.ends(C).into_iter().fold(0.0, f64::max);
            let was = ended - t.since(plimsoll_base::Time::ZERO).as_millis_f64() - 4.0;
            (error, waited) = (error + (said - was).abs(), waited + was);
            early += u32::from(said > was + 8.0);
            assert!(b.pool.stack().is_idle(), "round {round}");
        }
        let is_near = error * 100.0 <= most_off_percent * waited && early == 0;
        assert!(is_near, "error {error:.0} of {waited:.0} ms, {early} too long, all slots owned: {all_owned}");
    }
}
