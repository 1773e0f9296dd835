//! A restart after a crash finds the cache warm: reads hit as often as if nothing had happened. What makes it so for duplicates, their
//! names in headers, is bounded.

use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;

const EXTENT: u64 = 8192;
const EXTENTS: u64 = 2048;
const KEY: VolumeKey = VolumeKey { id: 1, generation: 1 };

fn layout() -> Layout {
    Layout::new(10 << 20, 512, Shape { extent_bytes: EXTENT as u32, weu_bytes: 128 << 10 }, 7).unwrap()
}

fn disk(bytes: u64, most_us: u64, seed: u64) -> SimDisk {
    let latency = (Span::from_micros(1), Span::from_micros(most_us));
    SimDisk::new(bytes, latency, seed, DiskFaults::default())
}

fn pool(disks: Vec<SimDisk>, config: CacheConfig, mode: Mode) -> SimPool {
    let mut p = SimPool::with_stack(disks, |offers| {
        let mut s = Stack::new(StackConfig::default(), offers);
        s.push(Box::new(Front::new()), vec![Target::Node(1)]);
        s.push(Box::new(Cache::new(layout(), config)), vec![Target::Node(2), Target::Device(1)]);
        s.push(Box::new(Map::new()), vec![Target::Device(0)]);
        s
    });
    let size_bytes = EXTENTS * EXTENT;
    p.with_layer(|f: &mut Front, _| f.set_volume(KEY, FrontVolume { size_bytes, read_only: false }));
    p.with_layer(|m: &mut Map, _| m.set_volume(KEY, &[Extent { device_offset: 0, len: size_bytes }]));
    let now = p.now();
    let volume = CacheVolume { size_bytes, mode, tenant: TenantId(1), domain: 1, weus_max: 0 };
    p.with_layer(|c: &mut Cache, out| c.announce(now, KEY, volume, out)).unwrap().unwrap();
    assert_eq!(p.start(), LayerState::Ready);
    p
}

fn ask(p: &mut SimPool, op: Op, extent: u64, data: Data) {
    let now = p.now();
    let len = if op == Op::Flush { 0 } else { EXTENT };
    p.offer(now, Io::new(IoHead::new(op, KEY, TenantId(1), extent * EXTENT, len, now), data));
    while p.next_done().is_none() {
        assert!(p.step().is_some(), "it never ends");
    }
}

/// Extents as popular as in life: the square root of a uniform draw, mirrored.
fn popular(rng: &mut Rng) -> u64 {
    let u = rng.unit();
    ((1.0 - u.sqrt()) * EXTENTS as f64) as u64
}

/// `shared` of the contents are one of eight.
fn content(rng: &mut Rng, shared: f64) -> Data {
    let mut own = if rng.chance(shared) { Rng::new(rng.below(8), "shared") } else { Rng::new(rng.next_u64(), "own") };
    let bytes: Vec<u8> = (0..EXTENT / 8).flat_map(|_| own.next_u64().to_le_bytes()).collect();
    Data::Bytes(Buf::copy_of(&bytes))
}

/// Hits of so many reads, in percent.
fn hit_percent(p: &mut SimPool, seed: u64) -> f64 {
    let counts = |p: &mut SimPool| {
        let c = p.stack().layer::<Cache>().unwrap().status().counters;
        (c.reads, c.read_hits)
    };
    let before = counts(p);
    let mut rng = Rng::new(seed, "reads");
    for _ in 0..4000 {
        let extent = popular(&mut rng);
        ask(p, Op::Read, extent, Data::Absent);
    }
    let after = counts(p);
    100.0 * (after.1 - before.1) as f64 / (after.0 - before.0) as f64
}

/// A pool with nothing in it.
fn empty(config: CacheConfig, mode: Mode) -> SimPool {
    let mut fast = disk(10 << 20, 200, 2);
    for (at, bytes) in format_device(&layout(), 0) {
        fast.write_durably(at, &bytes);
    }
    pool(vec![disk(EXTENTS * EXTENT, 900, 1), fast], config, mode)
}

/// Hit ratios of the same reads: without a crash, and after one; on average of some workloads.
fn with_and_without_crash(config: CacheConfig, mode: Mode, shared: f64) -> (f64, f64) {
    let all = [3, 4, 5].map(|seed| one_with_and_without_crash(config, mode, shared, seed));
    let mean = |of: fn(&(f64, f64)) -> f64| all.iter().map(of).sum::<f64>() / all.len() as f64;
    (mean(|a| a.0), mean(|a| a.1))
}

fn one_with_and_without_crash(config: CacheConfig, mode: Mode, shared: f64, seed: u64) -> (f64, f64) {
    let mut p = empty(config, mode);
    let mut rng = Rng::new(seed, "work");
    for _ in 0..12_000 {
        let extent = popular(&mut rng);
        match rng.chance(0.3) {
            true => {
                let data = content(&mut rng, shared);
                ask(&mut p, Op::Write, extent, data);
            }
            false => ask(&mut p, Op::Read, extent, Data::Absent),
        }
    }
    ask(&mut p, Op::Flush, 0, Data::Absent);
    let disks = [0, 1].map(|d| {
        let mut disk = p.disk(d).clone();
        disk.lose_power();
        disk
    });
    let without = hit_percent(&mut p, 4);
    let mut again = pool(disks.into(), config, mode);
    let start = again.stack().layer::<Cache>().unwrap().status().start;
    let after = hit_percent(&mut again, 4);
    println!("{mode:?}, workload {seed}: {without:.1}, {after:.1}, {start:?}");
    (without, after)
}

#[test]
fn a_crash_costs_hardly_a_hit() {
    let plain = CacheConfig { codec: Codec::None, fingerprints_percent: 0, ..CacheConfig::default() };
    let deduplicated = CacheConfig { codec: Codec::None, ..CacheConfig::default() };
    for (name, config, mode, shared) in [
        ("write-through", plain, Mode::Through, 0.0),
        ("write-back", plain, Mode::Back, 0.0),
        ("write-back, deduplicated", deduplicated, Mode::Back, 0.2),
        ("write-through, deduplicated", deduplicated, Mode::Through, 0.2),
    ] {
        let (without, after) = with_and_without_crash(config, mode, shared);
        println!("{name}: {without:.1} % of reads hit without a crash, {after:.1} % after one");
        assert!(without > 40.0 && without < 95.0, "a cache that has some of it: {without}");
        assert!(after > without * 0.95, "{name}: {after} after {without}");
    }
}

/// Twelve thousand writes of two contents all over the volume, beside 500 extents that were read before: these stay. Names of clean
/// duplicates take no more than an eighth of the cache; that of one that only the cache has takes a slot, a quarter of what an
/// extent takes, until it's evicted like any other.
#[test]
fn a_flood_of_duplicates_evicts_hardly_anything() {
    const HOT: u64 = 500;
    let config = CacheConfig { codec: Codec::None, watermark_percent: 90, ..CacheConfig::default() };
    for mode in [Mode::Through, Mode::Back] {
        let mut p = empty(config, mode);
        let mut rng = Rng::new(5, "flood");
        for extent in 0..HOT {
            let data = content(&mut rng, 0.0);
            ask(&mut p, Op::Write, extent, data);
        }
        let two = [content(&mut rng, 0.0), content(&mut rng, 0.0)];
        let counters = |p: &mut SimPool| p.stack().layer::<Cache>().unwrap().status().counters;
        let before = counters(&mut p);
        for n in 0..12_000 {
            ask(&mut p, Op::Write, HOT + rng.below(EXTENTS - HOT), two[n % 2].clone());
            // In use, but for write-through, where nothing may go whether it's used or not.
            if mode == Mode::Back {
                ask(&mut p, Op::Read, n as u64 % HOT, Data::Absent);
            }
        }
        let flooded = counters(&mut p);
        for extent in 0..HOT {
            ask(&mut p, Op::Read, extent, Data::Absent);
        }
        let after = counters(&mut p);
        let (hits, bytes) = (after.read_hits - flooded.read_hits, flooded.weu_bytes - before.weu_bytes);
        println!("{mode:?}: {hits} of {HOT} hit after the flood, {bytes} bytes written for it");
        assert!(flooded.duplicates > before.duplicates + 11_000);
        assert!(hits >= HOT * 95 / 100, "{mode:?}: {hits}");
        let most = if mode == Mode::Through { (10 << 20) / 8 } else { 12_000 * EXTENT * 3 / 10 };
        assert!(bytes < most, "{mode:?}: {bytes} bytes for names");
    }
}
