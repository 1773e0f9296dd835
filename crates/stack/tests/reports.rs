//! Reports of layers to the pool's owner.

use plimsoll_base::{Io, Span, Time};
use plimsoll_stack::{Actions, Layer, Message, Offer, Stack, StackConfig};
use serde::{Deserialize, Serialize};

#[derive(PartialEq, Debug, Serialize, Deserialize)]
struct Woken(u64);
impl Message for Woken {
    const LAYER: &'static str = "reports";
}

#[derive(PartialEq, Debug, Serialize, Deserialize)]
struct OfAnother(u64);
impl Message for OfAnother {
    const LAYER: &'static str = "another";
}

/// A layer that reports each time it is woken.
struct Reports(u64);
impl Layer for Reports {
    fn name(&self) -> &'static str {
        "reports"
    }
    fn offer(&self, _: &[Offer]) -> Offer {
        Offer { size_bytes: 1 << 20, block_bytes: 512, io_bytes_max: 1 << 20, atomic_bytes: 512, queue_max: 1 }
    }
    fn start(&mut self, now: Time, _: &[Offer], out: &mut Actions) {
        out.wake_at(now);
    }
    fn submit(&mut self, _: Time, _: Io, _: &mut Actions) {
        unreachable!("nothing is sent");
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.0 += 1;
        out.report(&Woken(self.0));
        out.wake_at(now + Span::from_nanos(1));
    }
    fn is_idle(&self) -> bool {
        true
    }
}

#[test]
fn reports_come_in_order_and_are_bounded() {
    let mut stack = Stack::new(StackConfig::default(), vec![]);
    stack.push(Box::new(Reports(0)), vec![]);
    stack.start(Time::ZERO);
    (0..3).for_each(|ns| stack.wake(Time::from_nanos(ns)));
    let first = stack.next_report().expect("a report");
    assert_eq!((first.get(), first.get::<OfAnother>()), (Some(Woken(1)), None));
    assert_eq!(stack.next_report().and_then(|r| r.get()), Some(Woken(2)));
    // An engine that takes none keeps the last 64.
    (3..1000).for_each(|ns| stack.wake(Time::from_nanos(ns)));
    let rest: Vec<Woken> = std::iter::from_fn(|| stack.next_report()).filter_map(|r| r.get()).collect();
    assert_eq!(rest, (937..=1000).map(Woken).collect::<Vec<_>>());
}
