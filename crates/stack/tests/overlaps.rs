//! The front's order: requests that overlap are served in the order of coming, one after the other, whoever is withdrawn meanwhile.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_stack::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::{BTreeMap, BTreeSet};

/// Passes everything on, and checks what it is sent.
#[derive(Default)]
struct Watch {
    in_flight: Vec<IoHead>,
    sent: Vec<IoHead>,
}

fn conflict(a: &IoHead, b: &IoHead) -> bool {
    let ((from, to), (other_from, other_to)) = (range(a), range(b));
    let shared = from.max(other_from)..to.min(other_to);
    a.volume == b.volume && (a.op.is_change() || b.op.is_change()) && !shared.is_empty()
}

/// A trim changes whole blocks only.
fn range(head: &IoHead) -> (u64, u64) {
    match head.op {
        Op::Trim => (head.offset.next_multiple_of(512), head.end() / 512 * 512),
        _ => (head.offset, head.end()),
    }
}

impl Layer for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        below.ask(0, at, head)
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        if let Some(other) = self.in_flight.iter().find(|other| conflict(other, &io.head)) {
            panic!("{:?} was sent while {other:?} is in flight", io.head);
        }
        self.in_flight.push(io.head);
        self.sent.push(io.head);
        out.submit(0, io);
    }
    fn completed(&mut self, _now: Time, c: Completion, out: &mut Actions) {
        self.in_flight.retain(|h| h.id != c.io.id);
        out.complete(c);
    }
    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        out.cancel(0, id);
    }
    fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Offer(u32, Op, u64, u64),
    /// Withdraws one of the requests so far.
    Withdraw(usize),
    /// Lets time pass.
    Pass(u64),
}

fn step(range: impl Strategy<Value = (u64, u64)>) -> impl Strategy<Value = Step> {
    let op = vec![Op::Read, Op::Write, Op::Write, Op::WriteZeroes, Op::Trim, Op::BlockStatus, Op::Cache];
    prop_oneof![
        4 => (1u32..3, prop::sample::select(op), range).prop_map(|(id, op, (from, len))| Step::Offer(id, op, from, len)),
        2 => any::<usize>().prop_map(Step::Withdraw),
        1 => (1u64..300).prop_map(Step::Pass),
    ]
}

fn offer(pool: &mut sim::SimPool, id: u32, op: Op, offset: u64, len: u64) -> IoHead {
    let now = pool.now();
    let mut request = io(op, offset, len, now);
    request.head.volume.id = id;
    let mut head = request.head;
    match pool.offer(now, request) {
        Offered::Accepted(id) => head.id = id,
        Offered::Busy(f) => panic!("refused: {f:?}"),
    }
    head
}

fn over_watch() -> sim::SimPool {
    let mut pool = over_server(vec![Box::new(Watch::default())]);
    pool.with_layer(|f: &mut Front, _| {
        f.set_volume(VolumeKey { id: 2, ..VOL }, FrontVolume { size_bytes: 1 << 40, read_only: false });
        f.set_parts(1 << 20);
    });
    pool
}

/// Ends of requests: number in the order of ending, outcome.
type Ends = BTreeMap<IoId, (usize, Outcome)>;

fn take_ends(pool: &mut sim::SimPool, ends: &mut Ends) {
    while let Some(c) = pool.next_done() {
        let before = ends.insert(c.io.id, (ends.len(), c.outcome));
        assert!(before.is_none(), "{:?} ended twice", c.io.id);
    }
}

/// Carries the steps out and checks every end.
fn check(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut pool = over_watch();
    let (mut requests, mut withdrawn, mut ends) = (Vec::new(), BTreeSet::new(), Ends::new());
    for step in steps {
        match step {
            Step::Offer(id, op, offset, len) => requests.push(offer(&mut pool, id, op, offset, len)),
            Step::Withdraw(which) if !requests.is_empty() => {
                let (now, id) = (pool.now(), requests[which % requests.len()].id);
                withdrawn.insert(id);
                pool.stack().cancel(now, id);
            }
            Step::Withdraw(_) => {}
            Step::Pass(n) => {
                let until = pool.now() + us(n);
                while pool.next_event_at() <= until && pool.step().is_some() {
                    take_ends(&mut pool, &mut ends);
                }
                pool.run_until(until);
            }
        }
        take_ends(&mut pool, &mut ends);
    }
    loop {
        take_ends(&mut pool, &mut ends);
        if pool.step().is_none() {
            break;
        }
    }
    prop_assert_eq!(ends.len(), requests.len());
    prop_assert!(pool.stack().is_idle());
    prop_assert_eq!(pool.stack().layer::<Front>().unwrap().waiting(), 0);
    // Nothing of what was withdrawn is counted any more.
    let probe = io(Op::Read, 1 << 39, 4096, pool.now()).head;
    prop_assert_eq!(pool.stack().forecast(probe.arrived_at, &probe).wait, Span::ZERO);
    for (i, later) in requests.iter().enumerate() {
        let (at, outcome) = ends[&later.id];
        let cancelled = outcome == Outcome::Failed(IoError::Cancelled);
        prop_assert!(
            outcome == Outcome::Done || (cancelled && withdrawn.contains(&later.id)),
            "{:?} {:?}",
            later,
            outcome
        );
        if cancelled {
            continue;
        }
        for earlier in requests[..i].iter().filter(|earlier| conflict(earlier, later)) {
            prop_assert!(ends[&earlier.id].0 < at, "{:?} ended after {:?}", earlier, later);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, rng_seed: RngSeed::Fixed(3), ..ProptestConfig::default() })]

    #[test]
    fn requests_of_a_few_blocks_are_served_in_order(
        steps in prop::collection::vec(step((0u64..6, 1u64..4).prop_map(|(from, n)| (from * 4096, n * 4096))), 1..80)
    ) {
        check(steps)?;
    }

    /// Ranges that are passed on in parts, and that are too large to be noted in each granule, beside others.
    #[test]
    fn requests_of_any_size_are_served_in_order(
        steps in prop::collection::vec(step((0u64..12, prop_oneof![1u64..4, 14u64..18, 60u64..80])
            .prop_map(|(from, n)| (from << 18, n << 16))), 1..60)
    ) {
        check(steps)?;
    }

    /// With blocks that are written in part.
    #[test]
    fn odd_requests_are_served_in_order(
        steps in prop::collection::vec(step((0u64..3000, 1u64..3000)), 1..60)
    ) {
        check(steps)?;
    }
}

/// A write that is waited for ends, unserved, when those that it waits for have ended: the later one waits for these through it.
#[test]
fn a_withdrawn_request_between_others_ends_unserved_in_its_turn() {
    let mut pool = over_watch();
    let mut zeroes = |offset, len| offer(&mut pool, 1, Op::WriteZeroes, offset, len).id;
    let first = [zeroes(0, 4096), zeroes(4096, 4096)];
    let (both, last) = (zeroes(0, 8192), zeroes(0, 8192));
    for _ in 0..2 {
        pool.stack().cancel(Time::ZERO, both);
    }
    let mut ends = Vec::new();
    loop {
        while let Some(c) = pool.next_done() {
            ends.push((pool.now(), c.io.id, c.outcome));
        }
        if pool.step().is_none() {
            break;
        }
    }
    let done = Outcome::Done;
    assert_eq!(
        ends,
        [
            (at_us(104), first[0], done),
            (at_us(208), first[1], done),
            (at_us(208), both, Outcome::Failed(IoError::Cancelled)),
            (at_us(316), last, done)
        ]
    );
    let sent: Vec<IoId> = pool.stack().layer::<Watch>().unwrap().sent.iter().map(|h| h.id).collect();
    assert_eq!(sent, [first[0], first[1], last]);
}

/// One that nobody waits for ends at once, also if those that did were withdrawn before it.
#[test]
fn a_withdrawn_request_at_the_end_ends_at_once() {
    let mut pool = over_watch();
    let ids: Vec<IoId> = (0..3).map(|_| offer(&mut pool, 1, Op::Write, 0, 4096).id).collect();
    let mut ends = Ends::new();
    for id in [ids[2], ids[1]] {
        pool.stack().cancel(Time::ZERO, id);
        take_ends(&mut pool, &mut ends);
        assert!(ends.contains_key(&id));
    }
    assert_eq!(pool.stack().layer::<Front>().unwrap().waiting(), 0);
}
