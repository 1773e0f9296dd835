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
    pool_as(config(), disk)
}

fn pool_as(config: BandsConfig, disk: SimDisk) -> SimPool {
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(Bands::new(places(), config))];
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
    let later = p.now() + Span::from_secs(1);
    p.run_until(later);
    assert!(p.stack().is_idle(), "it never stops");
    // A pool's thread asks whenever it's idle, until nothing follows.
    for _ in 0..100 {
        let now = p.now();
        p.stack().drain(now);
        p.with_layer(|_: &mut Bands, _| ());
        if p.stack().is_idle() {
            return;
        }
        p.run();
        assert!(p.stack().is_idle(), "it never ends");
    }
    panic!("each end leads to another attempt");
}

/// A pool on what was durable.
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

/// Device address of the zone whose first byte is `fill`.
fn zone_of(p: &mut SimPool, fill: u8) -> u64 {
    let mut zones = (0..places().zones).map(|z| places().zone_at(z));
    zones.find(|at| p.disk(0).peek(*at, 512).as_slice()[0] == fill).expect("a zone has it")
}

const FAILED: Outcome = Outcome::Failed(IoError::Device);

/// A pool with data in bands 5 and 30, and a sector of band 5 that can't be read.
fn with_a_bad_place() -> SimPool {
    let mut p = pool();
    for (band, fill) in [(5, 0x51), (30, 0x52)] {
        assert!(write(&mut p, shown(band, 0), fill, ZONE / 2).is_done());
        assert!(write(&mut p, shown(band, ZONE / 2), fill, ZONE / 2).is_done());
    }
    assert!(flush(&mut p, false).is_done());
    let bad = zone_of(&mut p, 0x51) + ZONE / 2 + PAGE;
    p.disk(0).lose_sector(bad / 512 + 3);
    p
}

#[test]
fn a_place_that_can_not_be_read_concerns_its_band_only() {
    let mut p = with_a_bad_place();
    assert!(copy(&mut p, shown(5, 0), 0x53, PAGE).is_done());
    assert!(write(&mut p, shown(30, 0), 0x54, PAGE).is_done());
    assert!(flush(&mut p, false).is_done(), "it waits for no copy");
    assert_eq!(flush(&mut p, true), FAILED, "the band's copies aren't durable");
    let said = bands(&mut p).problem().unwrap_or_default();
    assert!(said.contains("band 5 can't be read at its byte 36864"), "{said}");
    // The next job leaves them out.
    assert_eq!(copy(&mut p, shown(5, PAGE), 0x55, PAGE), FAILED);
    assert!(copy(&mut p, shown(20, 0), 0x56, PAGE).is_done());
    assert!(flush(&mut p, true).is_done() && flush(&mut p, false).is_done());
    assert_eq!(p.stack().state(), LayerState::Ready);
    assert_eq!(read(&mut p, shown(5, 0), PAGE)[0], 0x51, "the layer above has the newer data");
    // A change of that place heals it.
    assert!(write(&mut p, shown(5, ZONE / 2 + PAGE), 0x57, PAGE).is_done());
    assert!(flush(&mut p, false).is_done());
    assert_eq!(bands(&mut p).problem(), None);
    assert!(copy(&mut p, shown(5, 0), 0x53, PAGE).is_done() && flush(&mut p, true).is_done());
    let mut p = after_power_loss(p);
    let found = read(&mut p, shown(5, ZONE / 2), ZONE / 2);
    let pages: Vec<u8> = found.chunks(PAGE as usize).map(|page| page[0]).collect();
    assert_eq!(pages, [0x51, 0x57, 0x51, 0x51, 0x51, 0x51, 0x51, 0x51]);
    assert_eq!((read(&mut p, shown(5, 0), PAGE)[0], read(&mut p, shown(30, 0), PAGE)[0]), (0x53, 0x54));
}

/// The buffer is full before the checkpoint's flush has come: that one must hear of the copies that are gone.
#[test]
fn copies_that_are_dropped_fail_the_flush_that_comes_later() {
    let mut p = with_a_bad_place();
    assert!(copy(&mut p, shown(5, 0), 0x53, ZONE / 2).is_done());
    assert!(copy(&mut p, shown(5, ZONE / 2), 0x53, PAGE).is_done());
    // Band 5 has most of what is in the buffer, so it is copied for room.
    for band in 17..24 {
        assert!(copy(&mut p, shown(band, 0), 0x54, ZONE / 2).is_done());
    }
    assert!(bands(&mut p).problem().is_some(), "the place was found");
    assert_eq!(flush(&mut p, true), FAILED, "band 5's copies aren't there any more");
    assert!(flush(&mut p, true).is_done(), "it was told once");
}

/// A client's change that was acknowledged before the place was found: its flush fails, and goes on failing.
#[test]
fn a_flush_of_what_can_not_be_written_fails() {
    let mut p = with_a_bad_place();
    assert!(write(&mut p, shown(5, 0), 0x53, PAGE).is_done());
    for _ in 0..3 {
        assert_eq!(flush(&mut p, false), FAILED);
    }
    assert_eq!(bands(&mut p).counters().failed, 1, "it isn't tried at each flush");
    assert_eq!(p.stack().state(), LayerState::Degraded);
    assert_eq!(read(&mut p, shown(5, 0), PAGE)[0], 0x53);
    // The device was away for a moment.
    p.disk(0).heal_sectors();
    let later = p.now() + Span::from_secs(61);
    p.run_until(later);
    assert!(flush(&mut p, false).is_done());
    assert_eq!((p.stack().state(), bands(&mut p).problem()), (LayerState::Ready, None));
    assert_eq!(read(&mut after_power_loss(p), shown(5, 0), PAGE)[0], 0x53);
}

/// The device was away for a moment, and nobody flushes after it.
#[test]
fn changes_of_a_band_are_tried_again_without_a_flush() {
    let mut p = with_a_bad_place();
    assert!(write(&mut p, shown(5, 0), 0x53, PAGE).is_done());
    assert_eq!(flush(&mut p, false), FAILED);
    // It fails once more, so the next try is two minutes later.
    for (secs, failed) in [(59, 1), (2, 2), (118, 2)] {
        let later = p.now() + Span::from_secs(secs);
        p.run_until(later);
        assert_eq!(bands(&mut p).counters().failed, failed);
    }
    assert_eq!(p.stack().state(), LayerState::Degraded);
    p.disk(0).heal_sectors();
    let later = p.now() + Span::from_secs(3);
    p.run_until(later);
    assert_eq!((p.stack().state(), bands(&mut p).problem()), (LayerState::Ready, None));
    assert_eq!(read(&mut after_power_loss(p), shown(5, 0), PAGE)[0], 0x53, "it was copied");
}

/// The time of its next try hasn't come.
#[test]
fn an_end_tries_each_band_once_more() {
    for is_healed in [true, false] {
        let mut p = with_a_bad_place();
        assert!(write(&mut p, shown(5, 0), 0x53, PAGE).is_done());
        assert_eq!(flush(&mut p, false), FAILED);
        if is_healed {
            p.disk(0).heal_sectors();
        }
        ends(&mut p);
        assert_eq!(p.stack().left_behind().is_none(), is_healed);
        assert_eq!(bands(&mut p).counters().failed, if is_healed { 1 } else { 2 });
        let found = read(&mut after_power_loss(p), shown(5, 0), PAGE)[0];
        assert_eq!(found, if is_healed { 0x53 } else { 0x51 });
    }
}

#[test]
fn a_buffer_full_of_what_can_not_be_written_refuses_others() {
    let mut p = with_a_bad_place();
    let other = |p: &mut SimPool, band: u64| write(p, shown(band, 0), 0x58, ZONE / 2);
    assert!(write(&mut p, shown(5, 0), 0x53, ZONE / 2).is_done());
    assert!((8..15).all(|band| other(&mut p, band).is_done()));
    assert!(other(&mut p, 15).is_done(), "another band makes room");
    assert_eq!(flush(&mut p, false), FAILED);
    assert!((8..15).all(|band| other(&mut p, band).is_done()));
}

#[test]
fn a_zone_that_can_not_be_written_is_left_out() {
    let mut p = pool();
    let at = places().zone_at(5);
    p.disk(0).set_faults(DiskFaults { unwritable: Some((at + ZONE - 512, at + ZONE)), ..DiskFaults::default() });
    assert!(write(&mut p, shown(5, 0), 0x51, PAGE).is_done());
    assert!(flush(&mut p, false).is_done());
    let said = bands(&mut p).problem().unwrap_or_default();
    assert!(said.contains("1 spare zones couldn't be written"), "{said}");
    for band in [4, 5, 6] {
        assert!(write(&mut p, shown(band, 0), 0x52, PAGE).is_done() && flush(&mut p, false).is_done());
    }
    assert_eq!(bands(&mut p).counters().failed, 1, "it was taken again");
}

/// A sparse file in a full file system: there may be room later.
#[test]
fn a_device_without_space_is_tried_again() {
    let mut p = pool_as(BandsConfig { resets: false, ..config() }, disk());
    p.disk(0).set_faults(DiskFaults { full: true, ..DiskFaults::default() });
    assert!(write(&mut p, shown(5, 0), 0x51, PAGE).is_done());
    assert_eq!(flush(&mut p, false), Outcome::Failed(IoError::NoSpace));
    p.disk(0).set_faults(DiskFaults::default());
    assert!(flush(&mut p, false).is_done());
    assert_eq!(read(&mut after_power_loss(p), shown(5, 0), PAGE)[0], 0x51);
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
    // The fastest of ten rounds: this machine may pause in some.
    let round = |p: &mut SimPool| {
        #[allow(clippy::disallowed_methods)] // it is the work of a call that is asked for
        let began = std::time::Instant::now();
        for _ in 0..100 {
            offer(p, Op::Read, 0, 512, Data::Absent, false);
            assert!(outcome(p).is_done());
        }
        began.elapsed()
    };
    let took = (0..10).map(|_| round(&mut p)).min().expect("ten");
    assert!(bands(&mut p).status().copying.is_some(), "the flush waits");
    assert!(took < std::time::Duration::from_millis(200), "{took:?} for 100 reads");
}

/// An end isn't silent on changes that are lost by it.
#[test]
fn an_end_names_what_it_leaves_behind() {
    let mut p = with_a_bad_place();
    assert!(write(&mut p, shown(5, 0), 0x53, PAGE).is_done());
    assert!(write(&mut p, shown(12, 0), 0x54, PAGE).is_done());
    ends(&mut p);
    let said = p.stack().left_behind().expect("a change is lost");
    assert!(said.contains("band 5") && said.contains("changes of clients"), "{said}");
    assert_eq!(read(&mut after_power_loss(p), shown(12, 0), PAGE)[0], 0x54, "the others are written");
    let mut p = with_a_bad_place();
    assert!(copy(&mut p, shown(5, 0), 0x53, PAGE).is_done());
    assert!(write(&mut p, shown(12, 0), 0x54, PAGE).is_done());
    ends(&mut p);
    assert_eq!(p.stack().left_behind(), None);
}

/// Counts trims, and says of each request that it takes a millisecond for each page.
#[derive(Default)]
struct Watch {
    trims: u64,
}

impl Layer for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn forecast(&self, _: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        below.serve(Span::ZERO, Span::from_millis(head.len / PAGE), Confidence::CERTAIN)
    }
    fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
        self.trims += u64::from(io.op == Op::Trim);
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

fn watched(config: BandsConfig) -> SimPool {
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(Bands::new(places(), config)), Box::<Watch>::default()];
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![disk()]).unchecked();
    assert_eq!(p.start(), LayerState::Ready);
    p
}

/// A kernel writes a zone of zeroes for a reset, where the drive knows none.
#[test]
fn only_a_drive_with_zones_is_reset() {
    for resets in [true, false] {
        let mut p = watched(BandsConfig { resets, ..config() });
        for fill in 1..4 {
            assert!(write(&mut p, shown(5, 0), fill, PAGE).is_done() && flush(&mut p, false).is_done());
        }
        assert_eq!(p.stack().layer::<Watch>().unwrap().trims, if resets { 3 } else { 0 });
        let found = read(&mut after_power_loss(p), shown(5, 0), 2 * PAGE);
        assert_eq!((found[0], found[PAGE as usize]), (3, 0));
    }
}

#[test]
fn a_forecast_is_of_what_the_device_is_asked() {
    let mut p = watched(config());
    let ms = |p: &mut SimPool, at: u64, pages: u64| {
        let now = p.now();
        p.stack().forecast(now, &head(Op::Read, at, pages * PAGE, now)).total().as_micros() / 1000
    };
    let at = shown(5, 0);
    assert_eq!(ms(&mut p, at, 4), 0, "no zone has it");
    assert!(write(&mut p, at, 1, PAGE).is_done());
    assert_eq!(ms(&mut p, at, 1), 0, "it's in memory");
    assert!(flush(&mut p, false).is_done());
    assert_eq!(ms(&mut p, at, 4), 4);
    assert!(write(&mut p, at + PAGE, 1, PAGE).is_done());
    assert_eq!(ms(&mut p, at, 4), 3, "a page of four is in memory");
    assert!(write(&mut p, shown(6, 0), 1, PAGE).is_done() && flush(&mut p, false).is_done());
    assert_eq!(ms(&mut p, shown(6, 0) - 2 * PAGE, 4), 4, "of two bands");
}
