use super::*;
use crate::testing::{Bench, ms};
use plimsoll_base::Op;

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

#[test]
fn real_time_goes_before_best_effort_of_the_same_tenant() {
    let mut b = cfq(100, 0);
    b.offer_as(1, Op::Read, 10, ms(0));
    b.offer_as(1, Op::Read, 11, ms(0));
    b.offer_real_time(1, Op::Read, 90, ms(1));
    assert_eq!(b.order(ms(2)), [10, 90, 11]);
}
