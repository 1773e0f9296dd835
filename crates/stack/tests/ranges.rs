//! Long ranges: trims, zeroes and prefetches that the front passes on in parts.

mod common;
use common::{PART, VOL, at_us, io, over_server, us, write};
use plimsoll_base::*;
use plimsoll_stack::ranges::RANGE_EVERY;
use plimsoll_stack::*;

const MIB: u64 = 1 << 20;

/// Passes everything on, and remembers what and when.
#[derive(Default)]
struct Seen {
    passed: Vec<(Time, IoHead)>,
    /// Bytes of ranges below, and the most at once.
    below: u64,
    most: u64,
}

impl Layer for Seen {
    fn name(&self) -> &'static str {
        "seen"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.passed.push((now, io.head));
        if io.op.is_range() {
            self.below += io.len;
            self.most = self.most.max(self.below);
        }
        out.submit(0, io);
    }
    fn completed(&mut self, _now: Time, c: Completion, out: &mut Actions) {
        if c.io.op.is_range() {
            self.below -= c.io.len;
        }
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        self.below == 0
    }
}

fn passed(pool: &mut sim::SimPool) -> Vec<(Time, IoHead)> {
    pool.stack().layer::<Seen>().expect("it is there").passed.clone()
}

fn ranges(pool: &mut sim::SimPool) -> Vec<(u64, u64)> {
    passed(pool).iter().filter(|(_, h)| h.op.is_range()).map(|(_, h)| (h.offset, h.len)).collect()
}

fn accepted(o: Offered) -> IoId {
    match o {
        Offered::Accepted(id) => id,
        Offered::Busy(f) => panic!("refused: {f:?}"),
    }
}

fn ends(pool: &mut sim::SimPool) -> Vec<(IoId, Outcome)> {
    std::iter::from_fn(|| pool.next_done()).map(|c| (c.io.id, c.outcome)).collect()
}

/// A front with parts of 4 KiB over a disk whose volume is full of ones, which has passed nothing on yet.
fn over_ones(faults: sim::DiskFaults) -> sim::SimPool {
    let disk = sim::SimDisk::new(MIB, (us(50), us(90)), 7, faults);
    let front = Front::new().with_parts(4096);
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(front), Box::new(Seen::default()), Box::new(Map::new())];
    let mut pool = sim::SimPool::chain(StackConfig::default(), layers, vec![disk]);
    pool.with_layer(|f: &mut Front, _| {
        f.set_volume(VOL, FrontVolume { size_bytes: 64 << 10, read_only: false });
    });
    pool.with_layer(|m: &mut Map, _| m.set_volume(VOL, &[Extent { device_offset: 0, len: 64 << 10 }]));
    assert_eq!(pool.start(), LayerState::Ready);
    pool.disk(0).write_durably(0, &[1; 64 << 10]);
    pool
}

fn bytes(pool: &mut sim::SimPool) -> Vec<u8> {
    pool.disk(0).peek(0, 64 << 10).as_slice().to_vec()
}

#[test]
fn a_long_range_goes_in_parts_one_after_the_other() {
    let flags = IoFlags::FUA.with(IoFlags::NO_HOLE).with(IoFlags::FAST_ZERO);
    for op in [Op::WriteZeroes, Op::Trim, Op::Cache] {
        let mut pool = over_server(vec![Box::new(Seen::default())]);
        let mut range = io(op, 8 * MIB, 42 * MIB, at_us(0));
        range.head.flags = flags;
        let id = accepted(pool.offer(at_us(0), range));
        pool.run();
        let c = pool.next_done().expect("it has ended");
        assert_eq!((c.io.id, c.outcome, c.io.offset, c.io.len), (id, Outcome::Done, 8 * MIB, 42 * MIB));
        assert!(c.dispatched_at.is_set() && pool.next_done().is_none() && pool.stack().is_idle());
        let parts = [(8 * MIB, 8 * MIB), (16 * MIB, 16 * MIB), (32 * MIB, 16 * MIB), (48 * MIB, 2 * MIB)];
        assert_eq!(ranges(&mut pool), parts, "{op:?}");
        for (_, head) in passed(&mut pool) {
            assert_eq!((head.op, head.flags, head.tenant), (op, flags, TenantId(1)), "each part is as the whole");
            assert!(head.is_of_client() && head.root == c.io.root);
        }
        assert_eq!(pool.stack().layer::<Seen>().unwrap().most, 16 * MIB, "one at a time");
    }
    // What fits one part goes as it is.
    let mut pool = over_server(vec![Box::new(Seen::default())]);
    let id = accepted(pool.offer(at_us(0), io(Op::WriteZeroes, 16 * MIB, 16 * MIB, at_us(0))));
    assert_eq!(passed(&mut pool).iter().map(|(_, h)| (h.id, h.len)).collect::<Vec<_>>(), [(id, 16 * MIB)]);
}

/// The flood: 256 ranges at once, of two tenants. In each millisecond one part's bytes are passed on, and a read of a third
/// tenant is never kept waiting.
#[test]
fn a_flood_of_ranges_keeps_the_pace_and_nobody_waiting() {
    let mut pool = over_server(vec![Box::new(Seen::default())]);
    for n in 0..256u64 {
        // Long ones, and as many short ones.
        let len = if n % 2 == 0 { 256 * MIB } else { 4096 };
        let mut range = io(Op::Trim, n << 30, len, at_us(0));
        range.head.tenant = TenantId(1 + (n / 128) as u16);
        accepted(pool.offer(at_us(0), range));
    }
    for n in 0..200 {
        pool.run_until(at_us(500 * n));
        let mut read = io(Op::Read, 1 << 39 | n << 12, 4096, at_us(500 * n));
        read.head.tenant = TenantId(3);
        accepted(pool.offer(at_us(500 * n), read));
    }
    pool.run();
    assert_eq!(ends(&mut pool).iter().filter(|(_, outcome)| outcome.is_done()).count(), 456);
    let passed = passed(&mut pool);
    let all: u64 = passed.iter().filter(|(_, h)| h.op == Op::Trim).map(|(_, h)| h.len).sum();
    assert_eq!(all, 128 * 256 * MIB + 128 * 4096, "everything was passed on once");
    let mut first = 0;
    for (at, head) in passed.iter().filter(|(_, h)| h.op == Op::Trim) {
        first += passed[first..].iter().take_while(|(t, _)| *t + RANGE_EVERY <= *at).count();
        let lately = passed[first..].iter().filter(|(t, h)| h.op == Op::Trim && t <= at);
        let lately: u64 = lately.map(|(_, h)| h.len).sum();
        // A window may begin anywhere: a millisecond touches two.
        assert!(lately <= 2 * PART, "{lately} bytes in a millisecond, at {at:?}");
        assert!(head.len <= PART);
    }
    let reads: Vec<_> = passed.iter().filter(|(_, h)| h.op == Op::Read).collect();
    assert!(reads.len() == 200 && reads.iter().all(|(at, h)| *at == h.arrived_at), "a read waited");
    assert!(pool.stack().layer::<Seen>().unwrap().most <= 2 * PART, "of each tenant one part's bytes");
    // Tenants take turns: neither is done long before the other.
    let last = |tenant| passed.iter().rposition(|(_, h)| h.tenant == TenantId(tenant)).unwrap();
    assert!(last(1).abs_diff(last(2)) <= 2, "{} and {}", last(1), last(2));
}

/// The whole range is ordered until its last part has ended; what doesn't touch it passes.
#[test]
fn what_overlaps_waits_for_the_last_part() {
    let mut pool = over_server(vec![Box::new(Seen::default())]);
    let zeroes = accepted(pool.offer(at_us(0), io(Op::WriteZeroes, 0, 64 * MIB, at_us(0))));
    let last = accepted(pool.offer(at_us(0), io(Op::Read, 63 * MIB, 4096, at_us(0))));
    let first = accepted(pool.offer(at_us(0), io(Op::Write, 0, 4096, at_us(0))));
    let beside = accepted(pool.offer(at_us(0), io(Op::Write, 64 * MIB, 4096, at_us(0))));
    let behind = accepted(pool.offer(at_us(0), io(Op::Trim, 32 * MIB, 64 * MIB, at_us(0))));
    pool.run();
    let order: Vec<IoId> = ends(&mut pool).iter().map(|(id, _)| *id).collect();
    let place = |id| order.iter().position(|o| *o == id).unwrap();
    assert!(place(beside) < place(zeroes), "{order:?}");
    assert!(place(zeroes) < place(last) && place(zeroes) < place(first) && place(last) < place(behind), "{order:?}");
    assert!(place(beside) < place(behind), "the trim waits for it, too");
    assert_eq!(order.len(), 5);
}

/// Odd ranges: the blocks at both ends are merged, with the parts between them.
#[test]
fn odd_ranges_are_zeroed_to_the_byte() {
    for (offset, len) in [(100, 20_000), (0, 4097), (4095, 2), (5000, 3000), (8000, 8192), (12_288, 30_001)] {
        let mut pool = over_ones(sim::DiskFaults::default());
        accepted(pool.offer(at_us(0), io(Op::WriteZeroes, offset, len, at_us(0))));
        pool.run();
        assert_eq!(ends(&mut pool).first().map(|e| e.1), Some(Outcome::Done));
        let zeroes = offset..offset + len;
        let now = bytes(&mut pool);
        let wrong = now.iter().zip(0..).find(|&(b, at)| u64::from(*b) != u64::from(!zeroes.contains(&at)));
        assert_eq!(wrong, None, "{offset}+{len}");
    }
}

/// The part that fails ends the request with its error, and the rest is as it was.
#[test]
fn an_error_in_the_middle_ends_it() {
    let faults = sim::DiskFaults { unwritable: Some((8192, 12_288)), ..sim::DiskFaults::default() };
    let mut pool = over_ones(faults);
    let id = accepted(pool.offer(at_us(0), io(Op::WriteZeroes, 0, 32 << 10, at_us(0))));
    let behind = accepted(pool.offer(at_us(0), write(20 << 10, &[2; 4096], at_us(0))));
    pool.run();
    assert_eq!(ends(&mut pool), [(id, Outcome::Failed(IoError::Device)), (behind, Outcome::Done)]);
    assert_eq!(ranges(&mut pool), [(0, 4096), (4096, 4096), (8192, 4096)]);
    let bytes = bytes(&mut pool);
    assert!(bytes[..8192].iter().all(|b| *b == 0) && bytes[8192..20 << 10].iter().all(|b| *b == 1));
    assert!(pool.stack().is_idle());
}

/// A client that leaves: the part in flight ends, the rest isn't begun, and what waited goes on.
#[test]
fn a_withdrawn_range_ends_after_its_part() {
    for events in 0..8 {
        let mut pool = over_ones(sim::DiskFaults::default());
        let id = accepted(pool.offer(at_us(0), io(Op::WriteZeroes, 0, 32 << 10, at_us(0))));
        let behind = accepted(pool.offer(at_us(0), write(28 << 10, &[2; 4096], at_us(0))));
        for _ in 0..events {
            pool.step();
        }
        let (now, before) = (pool.now(), ranges(&mut pool).len());
        pool.stack().cancel(now, id);
        pool.with_layer(|_: &mut Front, _| ()); // sends on what that ordered
        pool.run();
        assert_eq!(ranges(&mut pool).len(), before, "nothing more was passed on after {events} events");
        let expected = [(id, Outcome::Failed(IoError::Cancelled)), (behind, Outcome::Done)];
        assert_eq!(ends(&mut pool), expected, "after {events} events");
        let bytes = bytes(&mut pool);
        assert!(bytes[..4096 * before].iter().all(|b| *b == 0));
        assert!(bytes[4096 * before..28 << 10].iter().all(|b| *b == 1));
        assert!(pool.stack().is_idle());
    }
}

/// A pool that ends doesn't begin the rest of a range, nor one that would have several parts.
#[test]
fn a_pool_that_ends_begins_no_more_parts() {
    let mut pool = over_ones(sim::DiskFaults::default());
    let long = accepted(pool.offer(at_us(0), io(Op::WriteZeroes, 0, 16 << 10, at_us(0))));
    let waits = accepted(pool.offer(at_us(0), io(Op::Trim, 8192, 16 << 10, at_us(0))));
    let short = accepted(pool.offer(at_us(0), io(Op::Trim, 12 << 10, 4096, at_us(0))));
    pool.stack().stop(at_us(0));
    pool.run();
    let unavailable = Outcome::Failed(IoError::Unavailable);
    assert_eq!(ends(&mut pool), [(long, unavailable), (waits, unavailable), (short, Outcome::Done)]);
    assert_eq!(ranges(&mut pool), [(0, 4096), (12 << 10, 4096)]);
    assert!(pool.stack().is_idle());
}

/// A volume that is deleted meanwhile takes no more parts; neither does a durable range after a flush has failed.
#[test]
fn parts_are_asked_for_anew() {
    let mut pool = over_ones(sim::DiskFaults::default());
    let id = accepted(pool.offer(at_us(0), io(Op::WriteZeroes, 0, 16 << 10, at_us(0))));
    pool.with_layer(|f: &mut Front, _| f.remove_volume(VOL));
    pool.run();
    assert_eq!(ends(&mut pool), [(id, Outcome::Failed(IoError::Unavailable))]);

    let faults = sim::DiskFaults { flush_fails_at: Some(1), ..sim::DiskFaults::default() };
    let mut pool = over_ones(faults);
    let mut durable = io(Op::WriteZeroes, 0, 16 << 10, at_us(0));
    durable.head.flags = IoFlags::FUA;
    let id = accepted(pool.offer(at_us(0), durable));
    accepted(pool.offer(at_us(0), io(Op::Flush, 0, 0, at_us(0))));
    pool.run();
    assert!(pool.stack().layer::<Front>().unwrap().flush_failed());
    assert!(ends(&mut pool).contains(&(id, Outcome::Failed(IoError::FlushFailed))));
    assert_eq!(ranges(&mut pool), [(0, 4096)]);
}

/// A range that waits for another is counted below by its first part: what comes later reaches the device before the others.
#[test]
fn forecasts_count_a_ranges_first_part() {
    let wait =
        |pool: &mut sim::SimPool| pool.stack().forecast(at_us(0), &io(Op::Read, 1 << 39, 4096, at_us(0)).head).wait;
    let mut pool = over_server(vec![]);
    accepted(pool.offer(at_us(0), io(Op::WriteZeroes, 0, 64 * MIB, at_us(0))));
    let part = common::service(&io(Op::WriteZeroes, 0, 16 * MIB, at_us(0)).head);
    assert_eq!(wait(&mut pool), part);
    accepted(pool.offer(at_us(0), io(Op::WriteZeroes, 8 * MIB, 64 * MIB, at_us(0))));
    assert_eq!(wait(&mut pool), part + common::service(&io(Op::WriteZeroes, 0, 8 * MIB, at_us(0)).head));
    pool.run();
    assert_eq!(ends(&mut pool).len(), 2);
    assert_eq!(wait(&mut pool), Span::ZERO);
}
