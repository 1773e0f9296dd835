//! Caches of version 2, made by the code of an earlier commit (`fixtures/generate.sh`), with data that were flushed and that only the cache
//! has: they open, are converted, and a power loss at any instant of that leaves them whole, in one version or the other.

mod common;
use common::*;
use flate2::read::GzDecoder;
use plimsoll_cache::*;
use plimsoll_stack::LayerState;
use plimsoll_stack::sim::{DiskFaults, SimDisk};
use std::io::Read;

const PLAIN: [&[u8]; 3] = [
    include_bytes!("fixtures/v2/plain-slow.gz"),
    include_bytes!("fixtures/v2/plain-fast.gz"),
    include_bytes!("fixtures/v2/plain-nvram.gz"),
];
const WITH_NVRAM: [&[u8]; 3] = [
    include_bytes!("fixtures/v2/nvram-slow.gz"),
    include_bytes!("fixtures/v2/nvram-fast.gz"),
    include_bytes!("fixtures/v2/nvram-nvram.gz"),
];

fn disks(images: [&[u8]; 3], seed: u64) -> Vec<SimDisk> {
    let disk = |image: &[u8]| {
        let mut bytes = Vec::new();
        GzDecoder::new(image).read_to_end(&mut bytes).unwrap();
        let mut disk = SimDisk::new(bytes.len() as u64, (us(1), us(200)), seed, DiskFaults::default());
        disk.write_durably(0, &bytes);
        disk
    };
    images.map(disk).into()
}

fn setup(nvram: bool) -> Setup {
    let config = CacheConfig { weus_max: 20, watermark_percent: 90, ..config() };
    Setup { config, nvram, ..Setup::of([Mode::Back, Mode::Back]) }
}

/// The data that `generate.rs` wrote last, and flushed.
fn expected() -> Vec<Vec<u8>> {
    let version = |n: u64| match n {
        40.. => 0,
        _ if n.is_multiple_of(7) => 12,
        _ if n.is_multiple_of(3) => 26,
        _ => 15,
    };
    (0..VOLUMES).map(|v| (0..SECTORS).flat_map(|s| content(v, s, version(s / 8))).collect()).collect()
}

fn version_on(disk: &SimDisk) -> u32 {
    Layout::decode(disk.peek(0, 4096).as_slice()).unwrap().version
}

/// Starts, and reads all; then all is written back, and the slow disk alone has it.
fn check(disks: Vec<SimDisk>, setup: Setup, cut_after: u64) {
    let mut life = Life::start(disks, setup, oracle()).unwrap_or_else(|e| panic!("cut after {cut_after}: {e}"));
    assert_eq!(life.read_all().unwrap(), expected(), "cut after {cut_after}");
    assert!(life.cache().status().dirty > 20);
    // What was converted is found again.
    let disks = life.cut();
    if !setup.nvram {
        assert_eq!(version_on(&disks[1]), layout::VERSION);
    }
    let mut life = Life::start(disks, setup, oracle()).unwrap();
    assert!(!life.cache().status().start.converted);
    assert_eq!(life.read_all().unwrap(), expected(), "cut after {cut_after}, once more");
    life.order(plimsoll_cache::CacheControl::Flush);
    life.settle().unwrap();
    assert_eq!(life.cache().status().dirty, 0);
    for (v, expected) in (0..).zip(expected()) {
        assert_eq!(life.pool.disk(0).peek(extent_of(v).device_offset, SECTORS * SECTOR).as_slice(), expected);
    }
}

#[test]
fn caches_of_version_2_are_converted_at_their_first_start() {
    for (images, nvram) in [(PLAIN, false), (WITH_NVRAM, true)] {
        let setup = setup(nvram);
        let disks = disks(images, 1);
        assert_eq!(version_on(&disks[1]), layout::VERSION_2);
        let mut life = Life::start(disks.clone(), setup, oracle()).unwrap();
        assert!(life.cache().status().start.converted);
        assert_eq!(life.read_all().unwrap(), expected());
        check(disks, setup, 0);
    }
}

#[test]
fn a_power_loss_at_any_instant_of_the_conversion_harms_nothing() {
    for (images, nvram) in [(PLAIN, false), (WITH_NVRAM, true)] {
        let setup = setup(nvram);
        let (mut cuts, mut ready) = (0, 0);
        for events in 1..2000 {
            let mut p = pool(disks(images, events), &setup, &oracle());
            for _ in 0..events {
                let now = p.now();
                p.stack().start(now);
                p.with_layer(|_: &mut Cache, _| ());
                if p.step().is_none() {
                    break;
                }
            }
            let was_ready = p.stack().state() == LayerState::Ready;
            let left = p.lose_power();
            cuts += 1;
            ready += u32::from(was_ready);
            // Every one of the last, when something is written; of the reads before some.
            if was_ready || events % 5 == 0 || events > 20 {
                check(left, setup, events);
            }
            if ready > 3 {
                break;
            }
        }
        println!("{cuts} power losses");
        assert!(ready > 3 && cuts > 20);
    }
}

/// A device that an earlier program laid out has more WEUs and a smaller journal than this one would give it: it keeps both.
#[test]
fn a_device_with_a_small_journal_keeps_its_layout() {
    let earlier = Layout::earlier(FAST_BYTES, 512, shape(), 0x5a17).unwrap();
    assert_ne!((earlier.weus, earlier.half_bytes), (layout().weus, layout().half_bytes));
    let setup = Setup { config: CacheConfig { weus_max: u32::MAX, ..config() }, ..Setup::of([Mode::Back, Mode::Back]) };
    let mut disks = common::disks(5, 512);
    for (at, bytes) in format_device(&earlier, 0) {
        disks[1].write_durably(at, &bytes);
    }
    let mut life = Life::start(disks, setup, oracle()).unwrap();
    assert_eq!(life.cache().status().weus, (earlier.weus, earlier.weus, 0));
    life.run(&some_acts(5, 200), &mut |_| Ok(true)).unwrap();
    life.all_end(100_000).unwrap();
    life.ask_flush(0).unwrap();
    life.all_end(100_000).unwrap();
    let (disks, mut oracle) = (life.cut(), life.oracle.clone());
    oracle.power_lost();
    assert_eq!(Layout::decode(disks[1].peek(0, 4096).as_slice()), Ok(earlier));
    let mut life = Life::again(disks, setup, oracle).unwrap();
    assert_eq!(life.cache().status().weus.0, earlier.weus);
}
