//! Bounds, order and shares of permits.

use super::queue::Waiting;
use super::*;
use plimsoll_base::TenantId;
use proptest::prelude::*;

const T: TenantId = TenantId(1);
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn bounded(jobs_max: u32, bytes_max: u64) -> Admission {
    let mut a = Admission::default();
    a.set_limits(T, PermitLimits { jobs_max, bytes_max });
    a
}

fn permit(conn: usize, tenant: TenantId, bytes: u64) -> Waiting {
    Waiting { conn, ticket: conn as u64, tenant, resource: WaitsFor::Permit, bytes }
}

/// A request of a connection ends, and its answer is sent.
fn end(a: &mut Admission, conn: usize, held: Held) {
    a.answered(T, held);
    a.give(T, conn, held);
}

fn let_in(a: &mut Admission) -> Vec<usize> {
    std::iter::from_fn(|| a.next_let_in(false)).map(|w| w.conn).collect()
}

#[track_caller]
fn nobody_gets_in(a: &mut Admission) {
    assert_eq!(a.next_let_in(false), None);
}

#[test]
fn jobs_and_bytes_are_both_bounds() {
    let mut a = bounded(3, 100);
    assert!(a.take(T, 1, 60) && a.take(T, 1, 40) && !a.take(T, 1, 1), "bytes");
    end(&mut a, 1, Held::one(60));
    assert!(a.take(T, 1, 0) && a.take(T, 2, 0) && !a.take(T, 3, 0), "jobs");
    end(&mut a, 2, Held::one(0));
    end(&mut a, 1, Held { jobs: 2, bytes: 40 });
    assert!(a.take(T, 1, 1000), "a request larger than the bound passes alone");
    assert!(!a.take(T, 1, 1));
    end(&mut a, 1, Held::one(1000));
    assert_eq!(a.inside()[&T], (0, 0));
    assert!(a.tenants[&T].active().is_empty(), "who holds nothing isn't kept");
}

#[test]
fn who_waits_longest_goes_first_and_others_do_not_pass() {
    let mut a = bounded(10, 100);
    let other = TenantId(2);
    assert!(a.take(T, 9, 100));
    let mut wait = |conn, tenant, bytes| a.wait(conn, tenant, WaitsFor::Permit, bytes);
    assert_eq!([wait(1, T, 80), wait(2, T, 1), wait(3, other, 5)], [1, 2, 3]);
    assert!(!a.take(T, 4, 0), "nobody passes who waits for the stack, however small");
    assert!(a.others_wait(T, 1) && a.others_wait(other, 1));
    assert!(!a.others_wait(other, 3), "a connection isn't among its others");
    assert_eq!(a.next_let_in(false), Some(permit(3, other, 5)), "another tenant isn't held up");
    assert_eq!(a.next_let_in(false), None);
    end(&mut a, 9, Held::one(100));
    assert_eq!(a.next_let_in(false), Some(permit(1, T, 80)));
    a.leave(T, 2);
    assert_eq!(a.next_let_in(false), None, "who has gone is passed over");
    assert!(a.waiting().is_empty() && a.take(T, 4, 20));
    a.wait(5, other, WaitsFor::Permit, 1);
    a.answered(other, Held::one(5));
    a.give(other, 3, Held::one(5));
    a.forget(other);
    assert_eq!(a.next_let_in(false), None, "a tenant's waits go with it");
}

#[test]
fn payloads_that_are_only_announced_keep_nobody_from_a_permit() {
    let mut a = bounded(10, 10 * MIB);
    assert!(a.announce(T, 3 * MIB) && a.announce(T, 2 * MIB) && !a.announce(T, MIB), "room for half as many bytes");
    assert_eq!(a.wait(1, T, WaitsFor::Room, 2 * MIB + 1), 1);
    assert!(!a.announce(T, OWN.bytes + 1), "nobody passes who waits");
    assert!(a.announce(T, OWN.bytes), "a connection's own payload waits for nobody");
    a.withdraw(T, OWN.bytes);
    assert!(a.take(T, 9, 10 * MIB), "all permits are there");
    assert!(!a.take_for_payload(T, 2, 3 * MIB));
    assert_eq!(a.wait(2, T, WaitsFor::PermitForPayload, 3 * MIB), 2);
    assert_eq!(a.next_let_in(false), None);
    end(&mut a, 9, Held::one(10 * MIB));
    assert_eq!(a.next_let_in(true), None, "the stack is full");
    assert_eq!(a.next_let_in(false).map(|w| w.conn), Some(2), "of itself when it no longer is");
    assert_eq!(a.next_let_in(false).map(|w| w.conn), Some(1), "with the room that became free");
    assert_eq!(a.inside()[&T], (1, 7 * MIB + 1));
    a.withdraw(T, 2 * MIB);
    a.withdraw(T, 2 * MIB + 1);
    assert!(a.announce(T, 100 * MIB), "a payload larger than the room passes alone");
    a.withdraw(T, 100 * MIB);
    end(&mut a, 2, Held::one(3 * MIB));
    assert_eq!(a.inside()[&T], (0, 0));
}

/// `next_let_in` is asked after each receive: thousands who wait must not be walked over.
#[test]
fn who_waits_is_looked_at_only_when_something_has_changed() {
    let mut a = bounded(1, 100);
    assert!(a.take(T, 10_000, 1));
    let mut wait = |conn| _ = a.wait(conn, T, WaitsFor::Permit, 1);
    (0..10_000).for_each(&mut wait);
    (0..10_000).for_each(|_| assert_eq!(a.next_let_in(false), None));
    assert_eq!(a.looks, 1);
    end(&mut a, 10_000, Held::one(1));
    assert_eq!(a.next_let_in(false).map(|w| w.conn), Some(0));
    assert_eq!(a.next_let_in(false), None);
    assert_eq!(a.looks, 3);
}

#[test]
fn tenants_take_turns() {
    let mut a = bounded(100, 100);
    let other = TenantId(2);
    for (conn, tenant) in [(0, T), (1, T), (2, T), (10, other), (11, other)] {
        a.wait(conn, tenant, WaitsFor::Permit, 1);
    }
    assert_eq!(let_in(&mut a), [0, 10, 1, 11, 2]);
}

/// Connections 100.. ask for `bytes` at a time until they wait; what they get is answered, and never sent.
fn deaf(a: &mut Admission, conns: usize, bytes: u64) {
    for conn in 100..100 + conns {
        while a.take(T, conn, bytes) {
            a.answered(T, Held::one(bytes));
        }
        a.wait(conn, T, WaitsFor::Permit, bytes);
    }
    nobody_gets_in(a);
}

#[test]
fn clients_that_do_not_read_keep_no_connection_from_its_own() {
    let mut a = bounded(64, 8 * MIB);
    deaf(&mut a, 200, MIB);
    for _ in 0..1000 {
        assert!((0..16).all(|_| a.take(T, 1, 4 * KIB)), "a depth of 16 is served at once");
        assert!(!a.take(T, 1, 4 * KIB), "and no more, as others wait");
        end(&mut a, 1, Held { jobs: 16, bytes: 64 * KIB });
    }
    // A wait behind them turns into one for its own as soon as its answers have been sent.
    assert!((0..16).all(|_| a.take(T, 1, 4 * KIB)));
    a.wait(1, T, WaitsFor::Permit, 4 * KIB);
    nobody_gets_in(&mut a);
    a.answered(T, Held::one(4 * KIB));
    nobody_gets_in(&mut a);
    a.give(T, 1, Held::one(4 * KIB));
    assert_eq!(let_in(&mut a), [1]);
    let beyond: u64 = a.tenants[&T].active().values().map(|h| h.beyond(OWN).bytes).sum();
    assert!(beyond <= 8 * MIB && a.inside()[&T].1 <= 8 * MIB + 201 * OWN.bytes);
}

#[test]
fn a_bound_of_one_request_is_kept_and_shared() {
    let mut a = bounded(1, 8 * MIB);
    deaf(&mut a, 200, MIB);
    assert!(a.take(T, 1, 4096) && !a.take(T, 2, 4096), "one request is in the stack");
    a.wait(2, T, WaitsFor::Permit, 4096);
    nobody_gets_in(&mut a);
    a.answered(T, Held::one(4096));
    assert_eq!(let_in(&mut a), [2], "before those who wait for answers to be sent");
}

#[test]
fn who_holds_more_than_its_share_yields() {
    let mut a = bounded(1000, 8 * MIB);
    assert!((0..8).all(|_| a.take(T, 1, MIB)), "alone it may have everything");
    a.wait(1, T, WaitsFor::Permit, MIB);
    a.wait(2, T, WaitsFor::Permit, 2 * MIB);
    a.wait(3, T, WaitsFor::Permit, 2 * MIB);
    end(&mut a, 1, Held { jobs: 2, bytes: 2 * MIB });
    assert_eq!(let_in(&mut a), [2], "the first in line holds six of eight");
    end(&mut a, 1, Held { jobs: 2, bytes: 2 * MIB });
    assert_eq!(let_in(&mut a), [3]);
    end(&mut a, 1, Held { jobs: 2, bytes: 2 * MIB });
    assert_eq!(let_in(&mut a), [1]);
}

/// Small requests that never end coming don't starve a large one: what is in the stack when the large one waits is all
/// that it waits for.
#[test]
fn large_requests_are_not_starved_by_small_ones() {
    let mut a = bounded(1000, 8 * MIB);
    assert!((0..100).all(|conn| a.take(T, conn, 64 * KIB)));
    a.wait(1000, T, WaitsFor::Permit, 8 * MIB);
    for conn in 0..100 {
        assert!(!a.take(T, 500 + conn, 64 * KIB));
        nobody_gets_in(&mut a);
        a.answered(T, Held::one(64 * KIB));
    }
    assert_eq!(let_in(&mut a), [1000], "answers that small ones haven't taken yet are their own");
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(usize, u64),
    Answered(usize),
    Sent(usize),
    Leaves(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let conn = 0usize..6;
    let bytes = prop_oneof![Just(0), Just(4 * KIB), Just(40 * KIB), Just(MIB), Just(3 * MIB)];
    prop_oneof![
        4 => (conn.clone(), bytes).prop_map(|(c, b)| Step::Ask(c, b)),
        3 => conn.clone().prop_map(Step::Answered),
        3 => conn.clone().prop_map(Step::Sent),
        1 => conn.prop_map(Step::Leaves),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    /// Under any sequence of steps bounds hold and permits return. Once all is sent, every waiting connection is let in.
    #[test]
    fn bounds_hold_and_nobody_waits_for_nothing(steps in prop::collection::vec(step(), 0..200), jobs_max in 1u32..8) {
        let mut a = bounded(jobs_max, 2 * MIB);
        let mut inside: Vec<Vec<u64>> = vec![Vec::new(); 6];
        let mut unsent = [Held::NONE; 6];
        let mut waits = [None::<u64>; 6];
        let look = |a: &mut Admission, inside: &mut Vec<Vec<u64>>, waits: &mut [Option<u64>; 6]| {
            while let Some(w) = a.next_let_in(false) {
                assert_eq!(waits[w.conn].take(), Some(w.bytes));
                inside[w.conn].push(w.bytes);
            }
        };
        for s in steps {
            match s {
                Step::Ask(c, bytes) if waits[c].is_none() => match a.take(T, c, bytes) {
                    true => inside[c].push(bytes),
                    false => {
                        a.wait(c, T, WaitsFor::Permit, bytes);
                        waits[c] = Some(bytes);
                    }
                },
                Step::Answered(c) => if let Some(bytes) = inside[c].pop() {
                    a.answered(T, Held::one(bytes));
                    unsent[c].add(Held::one(bytes));
                },
                Step::Sent(c) => a.give_some(c, std::mem::take(&mut unsent[c])),
                Step::Leaves(c) => {
                    a.leave(T, c);
                    waits[c] = None;
                }
                Step::Ask(..) => {}
            }
            look(&mut a, &mut inside, &mut waits);
            let stack: Vec<u64> = inside.iter().flatten().copied().collect();
            prop_assert!(stack.len() <= jobs_max as usize);
            prop_assert!(stack.iter().sum::<u64>() <= 2 * MIB || stack.iter().filter(|b| **b > 0).count() == 1);
        }
        for (c, unsent) in unsent.iter_mut().enumerate() {
            a.give_some(c, std::mem::take(unsent));
        }
        look(&mut a, &mut inside, &mut waits);
        while let Some(c) = (0..6).find(|c| !inside[*c].is_empty()) {
            let bytes = inside[c].pop().unwrap();
            a.answered(T, Held::one(bytes));
            a.give(T, c, Held::one(bytes));
            look(&mut a, &mut inside, &mut waits);
        }
        prop_assert_eq!(waits, [None; 6]);
        prop_assert_eq!(a.inside()[&T], (0, 0));
        prop_assert!(a.tenants[&T].active().is_empty() && a.tenants[&T].shared() == Held::NONE);
    }
}

impl Admission {
    fn give_some(&mut self, conn: usize, held: Held) {
        if held != Held::NONE {
            self.give(T, conn, held);
        }
    }
}
