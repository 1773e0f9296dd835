//! Waits are counted for whoever's request waited, also where a layer splits or translates it.

use plimsoll_base::{CacheMode, Data, Io, IoHead, Op, Outcome, Span, TenantId, VolumeKey};
use plimsoll_cache::{CacheConfig, CacheTerms, Codec, Layout, Shape, format_device};
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::{DiskPredictor, FenceConfig, FenceTerms, FlashPredictor};
use plimsoll_pool::{CachePlan, PoolPlan, build};
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::{Extent, Front, FrontVolume, LayerState, Map, OwnTerms, VolumeTerms};

const SLOW_BYTES: u64 = 64 << 20;
const FAST_BYTES: u64 = 64 << 20;
const VOLUME_BYTES: u64 = 16 << 20;
const EXTENT: u64 = 8 << 10;
const EXTENTS: u64 = 128;
const IDLE: VolumeKey = VolumeKey { id: 1, generation: 1 };
const BUSY: VolumeKey = VolumeKey { id: 2, generation: 1 };
/// The number under which the engine accounts for the busy volume; the idle one's is 0.
const BUSY_ACCOUNT: u16 = 1;

/// A cache over flash and a disk, both behind a fence of two slots, one for each volume.
fn pool() -> SimPool {
    let shape = Shape { extent_bytes: EXTENT as u32, weu_bytes: 256 << 10 };
    let plan = PoolPlan {
        cache: Some(CachePlan {
            shape,
            // As they are, so that they fill write-evict units and are read from the device.
            config: CacheConfig {
                codec: Codec::None,
                fingerprints_percent: 0,
                prefetch_bytes_max: 0,
                ..CacheConfig::default()
            },
            size_bytes: None,
            known: None,
            given_up: Vec::new(),
            absent: None,
            nvram: None,
            model: None,
        }),
        fence: Some(FenceConfig::new(
            2,
            vec![DeviceKind::disk(DiskPredictor::typical(SLOW_BYTES)), DeviceKind::flash(FlashPredictor::TYPICAL)],
        )),
        ..PoolPlan::new()
    };
    let us = Span::from_micros;
    let slow = SimDisk::new(SLOW_BYTES, (us(4000), us(4000)), 1, DiskFaults::default());
    let mut fast = SimDisk::new(FAST_BYTES, (us(100), us(100)), 2, DiskFaults::default());
    for (at, page) in format_device(&Layout::new(FAST_BYTES, 512, shape, 1).unwrap(), 0) {
        fast.write_durably(at, &page);
    }
    let mut pool = SimPool::with_stack(vec![slow, fast], |offers| build(&plan, offers).unwrap());
    assert_eq!(pool.start(), LayerState::Ready);
    let now = pool.now();
    for (volume, at) in [(IDLE, 0), (BUSY, VOLUME_BYTES)] {
        pool.with_layer(|f: &mut Front, _| {
            f.set_volume(volume, FrontVolume { size_bytes: VOLUME_BYTES, read_only: false })
        });
        let extents = [Extent { device_offset: at, len: VOLUME_BYTES }];
        pool.with_layer(|m: &mut Map, _| m.set_volume(volume, &extents));
        let cache = CacheTerms { mode: CacheMode::Through, domain: 1, bytes: FAST_BYTES / 2 };
        let own = OwnTerms::of(&cache).with(&FenceTerms { slots: 1 });
        let terms = VolumeTerms { size_bytes: VOLUME_BYTES, tenant: volume.id as u16, own };
        pool.stack().set_volume(now, volume, &terms);
    }
    pool
}

/// Asks for the busy volume's first extents, several at once, and waits for the answers.
fn ask(pool: &mut SimPool, op: Op, len: u64) {
    for n in 0..EXTENTS {
        let now = pool.now();
        let mut head = IoHead::new(op, BUSY, TenantId(2), n * EXTENT, len, now);
        head.account = BUSY_ACCOUNT;
        let data = if op == Op::Write { Data::Zeroes } else { Data::Absent };
        pool.offer(now, Io::new(head, data));
    }
    while pool.stack().inflight() > 0 {
        assert!(pool.step().is_some(), "requests are under way");
        while let Some(c) = pool.next_done() {
            assert_eq!(c.outcome, Outcome::Done);
        }
    }
}

#[test]
fn an_idle_volume_waits_for_nothing_beside_anothers_hits_behind_a_fence() {
    let mut pool = pool();
    // Missed, hit, and the rest of an extent that is written in part: the cache asks both devices on the client's behalf.
    ask(&mut pool, Op::Read, EXTENT);
    let wait = pool.now() + Span::from_secs(1);
    pool.run_until(wait);
    let before = pool.stack().account_stats(BUSY_ACCOUNT).waited.into_iter().sum::<Span>();
    ask(&mut pool, Op::Read, EXTENT);
    let hits = pool.stack().account_stats(BUSY_ACCOUNT).waited.into_iter().sum::<Span>() - before;
    ask(&mut pool, Op::Write, 512);
    assert!(hits > Span::ZERO, "hits wait for the volume's slot");
    assert_eq!(pool.stack().account_stats(0).waited.into_iter().sum::<Span>(), Span::ZERO, "the idle volume's");
}
