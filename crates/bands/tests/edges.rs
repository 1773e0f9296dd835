//! The layer's edges, alone over a disk: the end of a pool, places that can't be read or written, and what clients may cost.

use plimsoll_bands::*;
use plimsoll_base::*;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;

const ZONE: u64 = 64 << 10;
const DEVICE_BYTES: u64 = 64 * ZONE;
const PAGE: u64 = 4096;

fn us(n: u64) -> Span {
    Span::from_micros(n)
}

fn places() -> Places {
    let shape = Shape { zone_bytes: ZONE, free_every: 8, spares: 2, head_bytes: 8192, log_bytes: 8192, salt: 9 };
    Places::new(DEVICE_BYTES, 512, shape).unwrap()
}

fn config() -> BandsConfig {
    BandsConfig {
        buffer_bytes: 256 << 10,
        io_bytes: 16 << 10,
        run_bytes: 32 << 10,
        patience: us(100),
        copy_patience: us(100),
        quiet: us(50),
        ..BandsConfig::default()
    }
}

fn disk() -> SimDisk {
    let mut disk = SimDisk::new(DEVICE_BYTES, (us(1), us(200)), 5, DiskFaults::default());
    format_device(&places()).into_iter().for_each(|(at, bytes)| disk.write_durably(at, &bytes));
    disk
}

fn pool_on(disk: SimDisk) -> SimPool {
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(Bands::new(places(), config()))];
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![disk]).unchecked();
    assert_eq!(p.start(), LayerState::Ready);
    p
}

fn pool() -> SimPool {
    pool_on(disk())
}

fn bands(p: &mut SimPool) -> &Bands {
    p.stack().layer::<Bands>().expect("it's there")
}

/// Shown address of byte `at` of a band that isn't cut by a log there.
fn shown(band: u64, at: u64) -> u64 {
    (0..places().shown_bytes / PAGE)
        .map(|page| page * PAGE)
        .find(|page| matches!(places().place(*page), Place::Band { at: found, .. } if found == band * ZONE + at))
        .expect("it's shown")
}

fn head(op: Op, at: u64, len: u64, now: Time) -> IoHead {
    IoHead::new(op, VolumeKey { id: 1, generation: 1 }, TenantId(1), at, len, now)
}

fn bytes(fill: u8, len: u64) -> Data {
    Data::Bytes(Buf::copy_of(&vec![fill; len as usize]))
}

/// Offers a request; `of_copies`: as the logs' checkpoint does.
fn offer(p: &mut SimPool, op: Op, at: u64, len: u64, data: Data, of_copies: bool) {
    let now = p.now();
    let mut io = Io::new(head(op, at, len, now), data);
    if of_copies {
        io.head.origin = Origin::Own(OwnKind::Checkpoint);
    }
    p.offer(now, io);
}

/// The outcome of the next request that ends.
fn outcome(p: &mut SimPool) -> Outcome {
    loop {
        if let Some(c) = p.next_done() {
            return c.outcome;
        }
        p.step().expect("it ends");
    }
}

fn write(p: &mut SimPool, at: u64, fill: u8, len: u64) -> Outcome {
    offer(p, Op::Write, at, len, bytes(fill, len), false);
    outcome(p)
}

fn copy(p: &mut SimPool, at: u64, fill: u8, len: u64) -> Outcome {
    offer(p, Op::Write, at, len, bytes(fill, len), true);
    outcome(p)
}

fn flush(p: &mut SimPool, of_copies: bool) -> Outcome {
    offer(p, Op::Flush, 0, 0, Data::Absent, of_copies);
    outcome(p)
}

fn read(p: &mut SimPool, at: u64, len: u64) -> Vec<u8> {
    offer(p, Op::Read, at, len, Data::Absent, false);
    loop {
        if let Some(c) = p.next_done() {
            assert!(c.outcome.is_done(), "{:?}", c.outcome);
            let mut found = vec![0; len as usize];
            c.io.data.copy_to(&mut found);
            return found;
        }
        p.step().expect("it ends");
    }
}

/// The end of a pool as its thread makes it: everything ends, then all is written out.
fn ends(p: &mut SimPool) {
    p.run();
    assert!(p.stack().is_idle(), "it never stops");
    let now = p.now();
    p.stack().drain(now);
    p.with_layer(|_: &mut Bands, _| ());
    p.run();
    assert!(p.stack().is_idle(), "it never ends");
}

/// What is durable, by the next start.
fn after_power_loss(p: SimPool) -> SimPool {
    pool_on(p.lose_power().remove(0))
}

#[test]
fn an_end_takes_changes_that_no_flush_covered_to_their_zones() {
    for trims in [false, true] {
        let (mut p, at) = (pool(), shown(7, 0));
        assert!(write(&mut p, at, 3, ZONE / 2).is_done() && flush(&mut p, false).is_done());
        if trims {
            offer(&mut p, Op::Trim, at, PAGE, Data::Absent, false);
            assert!(outcome(&mut p).is_done());
        } else {
            assert!(write(&mut p, at, 4, PAGE).is_done());
        }
        ends(&mut p);
        let found = read(&mut after_power_loss(p), at, 2 * PAGE);
        assert_eq!((found[0], found[PAGE as usize]), (if trims { 0 } else { 4 }, 3));
    }
}

/// The layer above has their data, and an end may come in the middle of many.
#[test]
fn an_end_leaves_copies_alone() {
    let mut p = pool();
    for band in [3, 9, 20] {
        assert!(copy(&mut p, shown(band, 0), 5, PAGE).is_done());
    }
    assert!(write(&mut p, shown(12, 0), 6, PAGE).is_done());
    ends(&mut p);
    assert_eq!(bands(&mut p).counters().copied, 1, "only the band with a change of a client");
}

/// 60,000 runs are copied, and a flush waits: what ends meanwhile looks at few of them.
#[test]
fn what_ends_while_a_flush_waits_is_not_slowed_by_what_it_waits_for() {
    const LARGE: u64 = 64 << 20;
    let shape = Shape { zone_bytes: LARGE, free_every: 4, spares: 2, head_bytes: 8192, log_bytes: 8192, salt: 9 };
    let places = Places::new(16 * LARGE, 512, shape).unwrap();
    let mut disk = SimDisk::new(16 * LARGE, (us(1), us(200)), 5, DiskFaults::default());
    format_device(&places).into_iter().for_each(|(at, bytes)| disk.write_durably(at, &bytes));
    let config = BandsConfig { patience: Span::from_secs(1000), ..config() };
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(Bands::new(places, config))];
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![disk]).unchecked();
    assert_eq!(p.start(), LayerState::Ready);
    for k in 0..60_000 {
        offer(&mut p, Op::WriteZeroes, 8192 + k * 1024, 512, Data::Absent, false);
        assert!(outcome(&mut p).is_done());
    }
    // One read is always below, so that the copy waits.
    offer(&mut p, Op::Read, 0, 512, Data::Absent, false);
    offer(&mut p, Op::Flush, 0, 0, Data::Absent, false);
    let began = std::time::Instant::now();
    for _ in 0..1000 {
        offer(&mut p, Op::Read, 0, 512, Data::Absent, false);
        assert!(outcome(&mut p).is_done());
    }
    let took = began.elapsed();
    assert!(bands(&mut p).status().copying.is_some(), "the flush waits");
    assert!(took < std::time::Duration::from_secs(2), "{took:?} for 1000 reads");
}
