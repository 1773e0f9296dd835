//! The contract's clauses, each with a test that fails when the clause is broken.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_stack::*;
use proptest::prelude::*;

fn accepted(o: Offered) -> IoId {
    match o {
        Offered::Accepted(id) => id,
        Offered::Busy(f) => panic!("refused: {f:?}"),
    }
}

/// Lets everything happen up to `until` and says what ended, and when.
fn ends_until(pool: &mut sim::SimPool, until: Time) -> Vec<(IoId, Outcome, Time)> {
    let mut all = Vec::new();
    loop {
        while let Some(c) = pool.next_done() {
            all.push((c.io.id, c.outcome, pool.now()));
        }
        if pool.next_event_at() > until || pool.step().is_none() {
            return all;
        }
    }
}

fn ends(pool: &mut sim::SimPool) -> Vec<(IoId, Outcome, Time)> {
    ends_until(pool, Time::NEVER)
}

proptest! {
    /// Forecast: wherever accepted requests wait (for an overlap in the front, in a gate, in the server's queue), each
    /// counts exactly once, so what is forecast for a new request is what then happens.
    #[test]
    fn each_accepted_request_counts_once(
        gate_us in 0u64..3000,
        requests in prop::collection::vec((0u64..2000, 0u64..40, any::<bool>()), 1..30),
    ) {
        let mut pool = over_server(vec![Box::new(Gate::new(at_us(gate_us)))]);
        let mut arrivals: Vec<u64> = requests.iter().map(|r| r.0).collect();
        arrivals.sort_unstable();
        let mut expected = std::collections::BTreeMap::new();
        let mut ended = Vec::new();
        for (i, arrival) in arrivals.into_iter().enumerate() {
            let (_, place, is_write) = requests[i];
            let op = if is_write { Op::Write } else { Op::Read };
            ended.extend(ends_until(&mut pool, at_us(arrival)));
            pool.run_until(at_us(arrival));
            let request = io(op, place * 4096, 4096, pool.now());
            let waits_for_overlap = pool.stack().layer::<Front>().unwrap().waiting() > 0;
            let f = pool.stack().forecast(at_us(arrival), &request.head);
            let id = accepted(pool.offer(at_us(arrival), request));
            // A request let go by another's end joins the queue's tail behind what came after it: an exact time can
            // be promised only while nothing waits for an overlap.
            if !waits_for_overlap && pool.stack().layer::<Front>().unwrap().waiting() == 0 {
                expected.insert(id, at_us(arrival) + f.total());
            }
            let total = pool.stack().inflight() as u64;
            let busy: Span = us(104) * total;
            let probe = pool.stack().forecast(at_us(arrival), &io(Op::Read, 1 << 30, 4096, at_us(arrival)).head);
            let gate = at_us(gate_us).since(at_us(arrival));
            prop_assert!(probe.wait <= gate + busy, "counted more than once: {:?} against {:?}", probe.wait, gate + busy);
            prop_assert!(probe.wait + us(104) > gate + busy || total == 0, "not counted: {:?} against {:?}", probe.wait, gate + busy);
            prop_assert_eq!(probe.parts.iter().copied().sum::<Span>(), probe.wait);
        }
        ended.extend(ends(&mut pool));
        for (id, outcome, at) in ended {
            prop_assert_eq!(outcome, Outcome::Done);
            if let Some(t) = expected.get(&id) {
                prop_assert_eq!(at, *t);
            }
        }
        prop_assert!(pool.stack().is_idle());
    }
}

/// Forecast changes nothing: asking any number of times leaves every decision as it was.
#[test]
fn forecasting_changes_nothing() {
    let run = |questions: usize| {
        let mut pool = over_server(vec![Box::new(Gate::new(at_us(500)))]);
        for i in 0..50u64 {
            pool.run_until(at_us(i * 37));
            for q in 0..questions {
                pool.stack().forecast(at_us(i * 37), &io(Op::Write, q as u64 * 4096, 8192, at_us(i * 37)).head);
            }
            pool.offer(at_us(i * 37), io(Op::Write, i % 5 * 4096, 4096, at_us(i * 37)));
        }
        ends(&mut pool)
    };
    assert_eq!(run(0), run(7));
}

/// Decision and reservation are one step; a refusal queues nothing, and every layer hears of it.
#[test]
fn a_late_read_is_refused_at_once_and_layers_hear_of_it() {
    let mut pool = over_server(vec![]);
    for i in 0..10 {
        accepted(pool.offer(at_us(0), io(Op::Read, i << 20, 4096, at_us(0))));
    }
    let mut late = io(Op::Read, 1 << 30, 4096, at_us(0));
    late.head.deadline = at_us(1143);
    let before = pool.stack().inflight();
    let Offered::Busy(f) = pool.offer(at_us(0), late.clone()) else { panic!("accepted") };
    assert_eq!((f.wait, f.service, f.parts[1]), (us(1040), us(104), us(1040)), "ten requests of 104 us are in front");
    assert_eq!(pool.stack().inflight(), before);
    assert_eq!(pool.stack().layer::<Server>().unwrap().heard_refusals.len(), 1);
    late.head.deadline = at_us(1144);
    accepted(pool.offer(at_us(0), late));
    // A write is never refused for its deadline.
    let mut w = io(Op::Write, 1 << 31, 4096, at_us(0));
    w.head.deadline = at_us(1);
    accepted(pool.offer(at_us(0), w));
}

/// A read whose client waits is accepted however late it will be, marked as late only if it would have been refused, and no
/// layer hears of a refusal.
#[test]
fn a_late_read_of_a_client_that_waits_is_accepted_and_marked() {
    let mut pool = over_server(vec![]);
    for i in 0..10 {
        accepted(pool.offer(at_us(0), io(Op::Read, i << 20, 4096, at_us(0))));
    }
    let mut waits = io(Op::Read, 1 << 30, 4096, at_us(0));
    waits.head.flags = IoFlags::WAITS;
    waits.head.deadline = at_us(1143);
    let late = accepted(pool.offer(at_us(0), waits.clone()));
    (waits.head.offset, waits.head.deadline) = (1 << 31, at_us(1248));
    let in_time = accepted(pool.offer(at_us(0), waits));
    assert!(pool.stack().layer::<Server>().unwrap().heard_refusals.is_empty());
    let mut ended = std::collections::BTreeMap::new();
    while pool.step().is_some() {
        while let Some(c) = pool.next_done() {
            assert_eq!(c.outcome, Outcome::Done);
            ended.insert(c.io.id, (c.io.flags, c.io.deadline));
        }
    }
    assert_eq!(ended[&late], (IoFlags::WAITS.with(IoFlags::LATE), at_us(1143)), "the deadline stays with it");
    assert_eq!(ended[&in_time], (IoFlags::WAITS, at_us(1248)), "the hop is within the promise");
}

/// Below the map a refusal names the device's address: who brings in its pages there must find the right ones.
#[test]
fn a_refusal_is_told_below_the_map_by_the_devices_address() {
    let mut stack = Stack::new(StackConfig::default(), vec![]);
    stack.push(Box::new(Front::new()), vec![Target::Node(1)]);
    stack.push(Box::new(Map::new()), vec![Target::Node(2)]);
    stack.push(Box::new(Server::default()), vec![]);
    stack.with_layer(Time::ZERO, |f: &mut Front, _| {
        f.set_volume(VOL, FrontVolume { size_bytes: 3 << 20, read_only: false });
    });
    stack.with_layer(Time::ZERO, |m: &mut Map, _| {
        let extent = |mib: u64, len| Extent { device_offset: mib << 20, len };
        m.set_volume(VOL, &[extent(7, 1 << 20), extent(3, 2 << 20)]);
    });
    stack.start(Time::ZERO);
    stack.offer(Time::ZERO, io(Op::Read, 0, 1 << 20, Time::ZERO));
    for (offset, len, want) in [(1 << 20, 4096, (3 << 20, 4096)), ((1 << 20) - 4096, 8192, ((8 << 20) - 4096, 4096))] {
        let mut late = io(Op::Read, offset, len, Time::ZERO);
        late.head.deadline = Time::ZERO;
        let Offered::Busy(_) = stack.offer(Time::ZERO, late) else { panic!("accepted") };
        let heard = stack.layer::<Server>().unwrap().heard_refusals.last().copied();
        assert_eq!(heard.map(|h| (h.offset, h.len)), Some(want), "of {offset}");
    }
}

/// Answers every read itself.
struct Answers;
impl Layer for Answers {
    fn name(&self) -> &'static str {
        "answers"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
        if io.op == Op::Read { out.done(io, Data::Zeroes) } else { out.submit(0, io) }
    }
    fn is_idle(&self) -> bool {
        true
    }
}

/// A declared request that is answered above is no longer expected below.
#[test]
fn a_declaration_ends_with_its_request_wherever_that_is_answered() {
    let mut pool = over_server(vec![Box::new(Answers)]);
    accepted(pool.offer(at_us(0), write(0, &[1; 4096], at_us(0))));
    for _ in 0..5 {
        accepted(pool.offer(at_us(0), io(Op::Read, 0, 4096, at_us(0))));
    }
    assert_eq!(pool.stack().layer::<Front>().unwrap().waiting(), 5, "behind the write");
    assert_eq!(ends(&mut pool).len(), 6);
    let far = io(Op::Write, 1 << 30, 4096, pool.now());
    assert_eq!(pool.stack().forecast(at_us(104), &far.head).wait, Span::ZERO, "nothing is left in front");
    assert!(pool.stack().is_idle());
}

/// The failover hop: a read late by no more than the hop is served here (MT-M3).
#[test]
fn a_read_late_by_less_than_a_hop_is_served() {
    let mut stack = Stack::new(StackConfig::default(), vec![]);
    stack.push(Box::new(Front::new()), vec![Target::Node(1)]);
    stack.push(Box::new(Server::default()), vec![]);
    stack.with_layer(Time::ZERO, |f: &mut Front, _| {
        f.set_volume(VOL, FrontVolume { size_bytes: 1 << 30, read_only: false });
    });
    stack.start(Time::ZERO);
    let mut read = |deadline| {
        let mut r = io(Op::Read, 0, 4096, Time::ZERO);
        r.head.deadline = deadline;
        matches!(stack.offer(Time::ZERO, r), Offered::Accepted(_))
    };
    assert!(read(Time::ZERO) && read(Time::ZERO), "done after 104 and 208 us: late by less than 300 us");
    assert!(!read(Time::ZERO), "done after 312 us");
    assert!(read(at_us(12)));
}

#[test]
#[should_panic(expected = "only a client's read that doesn't wait may end Busy")]
fn own_io_is_never_busy() {
    let mut pool = over_server(vec![Box::new(Breaker { after_dispatch: false, own: true })]);
    pool.offer(at_us(0), io(Op::Read, 0, 4096, at_us(0)));
}

#[test]
#[should_panic(expected = "only a client's read that doesn't wait may end Busy")]
fn an_accepted_write_is_never_busy() {
    let mut pool = over_server(vec![Box::new(Breaker { after_dispatch: false, own: false })]);
    pool.offer(at_us(0), io(Op::Write, 0, 4096, at_us(0)));
}

#[test]
#[should_panic(expected = "reached a device ended Busy")]
fn what_reached_a_device_is_never_busy() {
    let mut pool = over_server(vec![Box::new(Breaker { after_dispatch: true, own: false })]);
    pool.offer(at_us(0), io(Op::Read, 0, 4096, at_us(0)));
}

/// Counts what it has below, and forgets one that ends.
#[derive(Default)]
struct Miscounts {
    below: u32,
    counted: u32,
    fails_at: Option<u32>,
}

impl Layer for Miscounts {
    fn name(&self) -> &'static str {
        "miscounts"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        (self.below, self.counted) = (self.below + 1, self.counted + 1);
        out.submit(0, io);
    }
    fn completed(&mut self, _now: Time, c: Completion, out: &mut Actions) {
        self.below -= 1;
        self.counted -= u32::from(self.fails_at != Some(self.below));
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        self.below == 0
    }
    fn check(&self) {
        assert_eq!(self.below, self.counted, "a request is counted after it has ended");
    }
}

/// Checks: what a layer asserts of itself is asserted after the event that broke it, not at the end.
#[test]
#[should_panic(expected = "a request is counted after it has ended")]
fn a_layer_is_checked_after_each_event() {
    let mut pool = over_server(vec![Box::new(Miscounts { fails_at: Some(2), ..Miscounts::default() })]);
    for offset in 0..4 {
        pool.offer(at_us(0), io(Op::Read, offset * 4096, 4096, at_us(0)));
    }
    ends_until(&mut pool, Time::NEVER);
}

/// Sends each write twice, and reads what it writes.
#[derive(Default)]
struct Doubles {
    writes: bool,
    own: u32,
}

impl Layer for Doubles {
    fn name(&self) -> &'static str {
        "doubles"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        let op = if self.writes { Op::Trim } else { Op::Read };
        let mut own = out.child(&io.head, op, io.offset, io.len, u64::MAX);
        own.head.origin = Origin::Own(OwnKind::Fill);
        self.own += 1;
        out.submit(0, own);
        out.submit(0, io);
    }
    fn completed(&mut self, _now: Time, c: Completion, out: &mut Actions) {
        if c.io.is_client() {
            return out.complete(c);
        }
        self.own -= 1;
    }
    fn is_idle(&self) -> bool {
        self.own == 0
    }
}

/// Overlaps: two changes that overlap are never in flight at one target.
#[test]
#[should_panic(expected = "a change was sent to server while one that overlaps it is in flight")]
fn changes_that_overlap_are_never_in_flight_together() {
    let mut pool = over_server(vec![Box::new(Doubles { writes: true, own: 0 })]);
    pool.offer(at_us(0), io(Op::Write, 4096, 4096, at_us(0)));
}

/// Overlaps: a read may overlap a change, and changes side by side, or one after the other, are none.
#[test]
fn a_read_may_overlap_a_change() {
    let mut pool = over_server(vec![Box::new(Doubles::default())]);
    for offset in [4096, 0, 8192, 4096] {
        pool.offer(at_us(0), io(Op::Write, offset, 4096, at_us(0)));
    }
    assert_eq!(ends(&mut pool).len(), 4);
    assert!(pool.stack().is_idle());
}

/// Cancel: what waits ends Cancelled wherever it waits; what has begun ends as it would have. Each ends once.
#[test]
fn only_what_waits_can_be_cancelled() {
    let mut pool = over_server(vec![Box::new(Gate::new(at_us(50)))]);
    pool.run_until(at_us(50));
    let begun = accepted(pool.offer(at_us(50), io(Op::Write, 0, 4096, at_us(50))));
    let queued = accepted(pool.offer(at_us(50), io(Op::Read, 1 << 20, 4096, at_us(50))));
    let overlapping = accepted(pool.offer(at_us(50), io(Op::Read, 0, 4096, at_us(50))));
    let behind = accepted(pool.offer(at_us(50), io(Op::Write, 0, 4096, at_us(50))));
    for id in [begun, queued, overlapping, IoId(999)] {
        pool.stack().cancel(at_us(50), id);
    }
    let cancelled = Outcome::Failed(IoError::Cancelled);
    let mut all = ends(&mut pool);
    all.sort_by_key(|e| e.0);
    assert_eq!(
        all,
        [
            (begun, Outcome::Done, at_us(154)),
            (queued, cancelled, at_us(50)),
            (overlapping, cancelled, at_us(50)),
            (behind, Outcome::Done, at_us(258))
        ]
    );
    assert!(pool.stack().is_idle());
}

/// After a failed flush every later flush fails, until recovery.
#[test]
fn a_failed_flush_is_not_forgotten() {
    let faults = sim::DiskFaults { flush_fails_at: Some(2), ..Default::default() };
    let mut pool = over_disk(1 << 20, sim::SimDisk::new(4 << 20, (us(1), us(50)), 1, faults));
    let flush = |pool: &mut sim::SimPool| {
        let now = pool.now();
        pool.offer(now, io(Op::Flush, 0, 0, now));
        ends(pool)[0].1
    };
    assert_eq!(flush(&mut pool), Outcome::Done);
    assert_eq!(flush(&mut pool), Outcome::Failed(IoError::Device));
    assert_eq!(flush(&mut pool), Outcome::Failed(IoError::FlushFailed));
    let now = pool.now();
    let mut durable = io(Op::Write, 0, 4096, now);
    durable.head.flags = IoFlags::FUA;
    pool.offer(now, durable);
    assert_eq!(ends(&mut pool)[0].1, Outcome::Failed(IoError::FlushFailed), "nor is a durable write believed");
    pool.with_layer(|f: &mut Front, _| f.recovered());
    assert_eq!(flush(&mut pool), Outcome::Done);
}

/// A flush that is under way when another fails isn't believed either: the device may have told the other of what this one owes.
#[test]
fn a_flush_under_way_when_another_fails_fails_too() {
    /// Holds back every request but the first.
    struct Later(bool, Vec<Io>);
    impl Layer for Later {
        fn name(&self) -> &'static str {
            "later"
        }
        fn offer(&self, below: &[Offer]) -> Offer {
            below[0]
        }
        fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
            if std::mem::replace(&mut self.0, true) {
                self.1.push(io);
                out.wake_at(now + us(500));
            } else {
                out.submit(0, io);
            }
        }
        fn wake(&mut self, _now: Time, out: &mut Actions) {
            self.1.drain(..).for_each(|io| out.submit(0, io));
        }
        fn is_idle(&self) -> bool {
            self.1.is_empty()
        }
    }
    for is_recovered_meanwhile in [false, true] {
        let faults = sim::DiskFaults { flush_fails_at: Some(1), ..Default::default() };
        let disk = sim::SimDisk::new(4 << 20, (us(1), us(50)), 1, faults);
        let layers: Vec<Box<dyn Layer>> = vec![Box::new(Front::new()), Box::new(Later(false, Vec::new()))];
        let mut pool = sim::SimPool::chain(StackConfig::default(), layers, vec![disk]);
        pool.with_layer(|f: &mut Front, _| f.set_volume(VOL, FrontVolume { size_bytes: 1 << 20, read_only: false }));
        assert_eq!(pool.start(), LayerState::Ready);
        let mut durable = io(Op::Write, 0, 4096, at_us(0));
        durable.head.flags = IoFlags::FUA;
        let plain = io(Op::Write, 8192, 4096, at_us(0));
        for request in [io(Op::Flush, 0, 0, at_us(0)), io(Op::Flush, 0, 0, at_us(0)), durable, plain] {
            pool.offer(at_us(0), request);
        }
        pool.run_until(at_us(400));
        assert!(pool.stack().layer::<Front>().unwrap().flush_failed());
        if is_recovered_meanwhile {
            pool.with_layer(|f: &mut Front, _| f.recovered());
        }
        let by_id: std::collections::BTreeMap<IoId, Outcome> =
            ends(&mut pool).into_iter().map(|e| (e.0, e.1)).collect();
        let outcomes: Vec<Outcome> = by_id.into_values().collect();
        let [failed, doubtful] = [IoError::Device, IoError::FlushFailed].map(Outcome::Failed);
        assert_eq!(outcomes, [failed, doubtful, doubtful, Outcome::Done], "recovered: {is_recovered_meanwhile}");
        let now = pool.now();
        pool.offer(now, io(Op::Flush, 0, 0, now));
        let after = ends(&mut pool)[0].1;
        assert_eq!(after, if is_recovered_meanwhile { Outcome::Done } else { doubtful });
    }
}

/// Layers start bottom up: nothing above starts while something below still recovers.
#[test]
fn layers_start_bottom_up() {
    struct Slow(bool);
    impl Layer for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }
        fn offer(&self, below: &[Offer]) -> Offer {
            below[0]
        }
        fn start(&mut self, now: Time, _below: &[Offer], out: &mut Actions) {
            out.wake_at(now + us(700));
        }
        fn state(&self) -> LayerState {
            if self.0 { LayerState::Ready } else { LayerState::Recovering }
        }
        fn wake(&mut self, _now: Time, _out: &mut Actions) {
            self.0 = true;
        }
        fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
            out.submit(0, io);
        }
        fn is_idle(&self) -> bool {
            true
        }
    }
    let disk = sim::SimDisk::new(1 << 20, (us(1), us(2)), 1, Default::default());
    let mut pool =
        sim::SimPool::chain(StackConfig::default(), vec![Box::new(Front::new()), Box::new(Slow(false))], vec![disk]);
    pool.stack().start(Time::ZERO);
    assert_eq!(pool.stack().state(), LayerState::Recovering);
    assert_eq!(pool.start(), LayerState::Ready);
    assert_eq!(pool.now(), at_us(700));
}

#[test]
fn requests_outside_the_volume_or_to_none_are_refused_clearly() {
    let mut pool = over_server(vec![]);
    let mut outcome = |mut request: Io, volume| {
        request.head.volume = volume;
        let now = pool.now();
        pool.offer(now, request);
        ends(&mut pool)[0].1
    };
    let failed = Outcome::Failed;
    assert_eq!(outcome(io(Op::Read, 1 << 40, 1, at_us(0)), VOL), failed(IoError::Invalid));
    assert_eq!(outcome(io(Op::Read, u64::MAX, 2, at_us(0)), VOL), failed(IoError::Invalid));
    assert_eq!(outcome(io(Op::Write, (1 << 40) - 1, 2, at_us(0)), VOL), failed(IoError::NoSpace));
    assert_eq!(outcome(io(Op::Read, 0, 1, at_us(0)), VolumeKey { id: 1, generation: 2 }), failed(IoError::Unavailable));
}

/// Sums each write's bytes on a worker before it passes the write on.
#[derive(Default)]
struct Summing {
    held: std::collections::BTreeMap<u64, Io>,
    sums: Vec<u64>,
}

struct Sum(Data, u64);

impl Task for Sum {
    fn name(&self) -> &'static str {
        "sum"
    }
    fn cost(&self) -> Span {
        us(self.1 / 1024)
    }
    fn run(self: Box<Self>) -> Answer {
        let mut bytes = vec![0; self.1 as usize];
        self.0.copy_to(&mut bytes);
        Answer { words: [bytes.iter().map(|&b| u64::from(b)).sum(), 0, 0, 0], data: self.0 }
    }
}

impl Layer for Summing {
    fn name(&self) -> &'static str {
        "summing"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, mut io: Io, out: &mut Actions) {
        let (tag, tenant, priority, len) = (io.id.0, io.tenant, io.priority, io.len);
        let data = std::mem::take(&mut io.data);
        self.held.insert(tag, io);
        out.work(Work { tag, tenant, priority, task: Box::new(Sum(data, len)) });
    }
    fn worked(&mut self, _now: Time, done: Worked, out: &mut Actions) {
        assert_eq!(done.tenant, TenantId(1));
        let mut io = self.held.remove(&done.tag).expect("answered once");
        self.sums.push(done.answer.words[0]);
        io.data = done.answer.data;
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

#[test]
fn work_is_answered_once_after_its_cost_and_keeps_the_stack_busy() {
    let disk = sim::SimDisk::new(1 << 20, (us(0), us(0)), 1, sim::DiskFaults::default());
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(Summing::default())];
    let mut pool = sim::SimPool::chain(StackConfig::default(), layers, vec![disk]);
    pool.start();
    accepted(pool.offer(at_us(10), write(0, &[2; 4096], at_us(10))));
    accepted(pool.offer(at_us(10), write(4096, &[3; 512], at_us(10))));
    assert!(!pool.stack().is_idle(), "work under way is something to wait for");
    let ended: Vec<u64> = ends(&mut pool).iter().map(|(_, _, at)| at.since(at_us(10)).as_micros()).collect();
    assert_eq!(ended, [0, 4], "each after its own cost, on a core of its own");
    let mut sums = pool.stack().layer::<Summing>().unwrap().sums.clone();
    sums.sort_unstable();
    assert_eq!(sums, [3 * 512, 2 * 4096]);
    assert!(pool.stack().is_idle());
    assert_eq!(pool.disk(0).peek(4096, 512).as_slice(), [3; 512]);
}
