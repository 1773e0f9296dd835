//! Limits of one volume in a whole pool: what they cost the volume itself, and what they mean for its neighbours.

use plimsoll_base::{Data, Io, IoError, IoHead, IoId, Op, Outcome, Span, TenantId, Time, VolumeKey};
use plimsoll_pool::{PoolPlan, build};
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::{Extent, Front, FrontVolume, LayerState, Map, Offered, OwnTerms, VolumeTerms};
use plimsoll_throttle::{Limit, Throttle, ThrottleTerms};

const LIMITED: VolumeKey = VolumeKey { id: 1, generation: 1 };
const FREE: VolumeKey = VolumeKey { id: 2, generation: 1 };
const VOLUME_BYTES: u64 = 64 << 20;
const DISK: Span = Span::from_millis(1);

/// Two volumes over a disk that takes a millisecond for each request; the first has a limit.
fn pool(per_s: u64) -> SimPool {
    let plan = PoolPlan { throttle: true, ..PoolPlan::new() };
    let disk = SimDisk::new(2 * VOLUME_BYTES, (DISK, DISK), 1, DiskFaults::default());
    let mut pool = SimPool::with_stack(vec![disk], |offers| build(&plan, offers).unwrap());
    assert_eq!(pool.start(), LayerState::Ready);
    for (n, volume) in [LIMITED, FREE].into_iter().enumerate() {
        let extent = Extent { device_offset: n as u64 * VOLUME_BYTES, len: VOLUME_BYTES };
        let front = FrontVolume { size_bytes: VOLUME_BYTES, read_only: false };
        let requests = (volume == LIMITED).then_some(Limit { per_s, burst: 0 });
        let own = OwnTerms::of(&ThrottleTerms { requests, bytes: None });
        pool.with_layer(|f: &mut Front, _| f.set_volume(volume, front));
        pool.with_layer(|m: &mut Map, _| m.set_volume(volume, &[extent]));
        let terms = VolumeTerms { size_bytes: VOLUME_BYTES, tenant: n as u16, own };
        pool.stack().set_volume(Time::ZERO, volume, &terms);
    }
    pool
}

fn head(op: Op, volume: VolumeKey, offset: u64, len: u64, now: Time) -> IoHead {
    IoHead::new(op, volume, TenantId(volume.id as u16), offset, len, now)
}

fn ask(pool: &mut SimPool, op: Op, volume: VolumeKey, offset: u64, len: u64) -> IoId {
    let now = pool.now();
    let data = if op == Op::Write { Data::Zeroes } else { Data::Absent };
    match pool.offer(now, Io::new(head(op, volume, offset, len, now), data)) {
        Offered::Accepted(id) => id,
        Offered::Busy(_) => unreachable!("without a deadline"),
    }
}

/// The pool has learned how long its disk takes.
fn learned(per_s: u64) -> SimPool {
    let mut pool = pool(per_s);
    for n in 0..100 {
        ask(&mut pool, Op::Read, FREE, n * 4096, 4096);
        pool.run();
    }
    while pool.next_done().is_some() {}
    pool
}

fn neighbours_wait(pool: &mut SimPool) -> Span {
    let now = pool.now();
    pool.stack().forecast(now, &head(Op::Read, FREE, 0, 4096, now)).wait
}

/// A thousand requests that wait for their volume's limit aren't in front of anybody else's; nor are those that also wait for an
/// overlapping one among them.
#[test]
fn what_waits_for_a_limit_is_in_no_neighbours_forecast() {
    for spread in [4096, 0] {
        let mut pool = learned(500);
        ask(&mut pool, Op::Write, LIMITED, 0, 4096);
        let before = neighbours_wait(&mut pool);
        for n in 1..=1000 {
            ask(&mut pool, Op::Write, LIMITED, n * spread, 4096);
        }
        assert_eq!(neighbours_wait(&mut pool), before, "spread over {spread}");
        let now = pool.now();
        let own = pool.stack().forecast(now, &head(Op::Read, LIMITED, VOLUME_BYTES / 2, 4096, now)).wait;
        assert_eq!(own, Span::from_millis(2) * 1001, "their own volume's");
        pool.run_until(now + Span::from_secs(1));
        assert!(neighbours_wait(&mut pool) <= DISK, "one at a time is at the disk");
        assert_eq!(std::iter::from_fn(|| pool.next_done()).count(), 500);
    }
}

/// A request that isn't a multiple of the block is several below the front: its limit knows one, which can be withdrawn.
#[test]
fn an_odd_write_costs_one_request() {
    let mut pool = learned(10);
    let at = pool.now();
    let ids: Vec<IoId> = [(Op::Write, 1), (Op::WriteZeroes, 3), (Op::Write, 5), (Op::Write, 7)]
        .map(|(op, n)| ask(&mut pool, op, LIMITED, n * (1 << 20) + 100, 10_000))
        .into();
    pool.stack().cancel(at, ids[2]);
    let withdrawn = pool.next_done().expect("at once");
    assert_eq!((withdrawn.io.id, withdrawn.outcome), (ids[2], Outcome::Failed(IoError::Cancelled)));
    let mut ended = Vec::new();
    while pool.step().is_some() {
        while let Some(c) = pool.next_done() {
            assert_eq!(c.outcome, Outcome::Done);
            ended.push((c.io.id, pool.now().since(at).as_nanos() / 100_000_000));
        }
    }
    assert_eq!(ended, [(ids[0], 0), (ids[1], 1), (ids[3], 2)], "one each tenth of a second");
}

/// Requests that wait for the limit of a volume that is deleted end at once, and aren't served.
#[test]
fn a_volume_that_is_deleted_waits_for_no_limit() {
    let mut pool = learned(1);
    let now = pool.now();
    for n in 0..1000 {
        ask(&mut pool, Op::Write, LIMITED, n * 4096, 4096);
    }
    pool.with_layer(|f: &mut Front, _| f.remove_volume(LIMITED));
    let inside = |pool: &mut SimPool| pool.stack().layer::<Front>().unwrap().inflight_of(LIMITED);
    while inside(&mut pool) > 0 {
        pool.step().expect("the first is at the disk");
    }
    let forgotten_at = pool.now();
    assert!(forgotten_at.since(now) <= DISK);
    pool.stack().forget_volume(forgotten_at, LIMITED);
    assert!(pool.stack().is_using(LIMITED), "many at a time");
    while pool.stack().is_using(LIMITED) {
        pool.step().expect("the rest is let go");
    }
    assert_eq!(pool.now(), forgotten_at);
    let outcomes: Vec<Outcome> = std::iter::from_fn(|| pool.next_done()).map(|c| c.outcome).collect();
    assert_eq!(outcomes[0], Outcome::Done);
    assert_eq!(outcomes[1..], [Outcome::Failed(IoError::Unavailable); 999]);
    assert!(pool.stack().is_idle());
    assert_eq!(pool.stack().layer::<Throttle>().unwrap().status().count(), 0);
}
