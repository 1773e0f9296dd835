//! Two volumes of a simulated pool send requests without a pause; one of them has a limit of 500 requests per second.
//!
//! README.md has the steps by which such a layer gets into the product.

use plimsoll_base::{Data, Io, IoHead, Op, Span, TenantId, Time, VolumeKey};
use plimsoll_pool::{PoolPlan, build};
use plimsoll_stack::map::Extent;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::{Forecast, Front, FrontVolume, LayerState, Map, Offered, OwnTerms, VolumeTerms};
use plimsoll_throttle::{Limit, ThrottleTerms};

const LIMITED: VolumeKey = VolumeKey { id: 1, generation: 1 };
const FREE: VolumeKey = VolumeKey { id: 2, generation: 1 };
const VOLUME_BYTES: u64 = 16 << 20;
const READ_BYTES: u64 = 4096;
/// Requests that each volume has inside at once.
const DEPTH: u32 = 8;

/// A pool with the layer, over a disk that takes 100 us for each request, one after the other.
fn pool() -> SimPool {
    let plan = PoolPlan { throttle: true, ..PoolPlan::new() };
    let latency = Span::from_micros(100);
    let disk = SimDisk::new(2 * VOLUME_BYTES, (latency, latency), 1, DiskFaults::default());
    let mut pool = SimPool::with_stack(vec![disk], |offers| build(&plan, offers).expect("the plan is complete"));
    assert_eq!(pool.start(), LayerState::Ready);
    for (n, volume) in [LIMITED, FREE].into_iter().enumerate() {
        let extent = Extent { device_offset: n as u64 * VOLUME_BYTES, len: VOLUME_BYTES };
        let front = FrontVolume { size_bytes: VOLUME_BYTES, read_only: false };
        let requests = (volume == LIMITED).then_some(Limit { per_s: 500, burst: 5 });
        let own = OwnTerms::of(&ThrottleTerms { requests, bytes: None });
        let terms = VolumeTerms { size_bytes: VOLUME_BYTES, tenant: 1, own };
        pool.with_layer(|f: &mut Front, _| f.set_volume(volume, front));
        pool.with_layer(|m: &mut Map, _| m.set_volume(volume, &[extent]));
        pool.stack().set_volume(Time::ZERO, volume, &terms);
    }
    pool
}

fn ask(pool: &mut SimPool, volume: VolumeKey, number: u64) {
    let (now, offset) = (pool.now(), number * READ_BYTES % VOLUME_BYTES);
    let head = IoHead::new(Op::Read, volume, TenantId(1), offset, READ_BYTES, now);
    let offered = pool.offer(now, Io::new(head, Data::Absent));
    assert!(matches!(offered, Offered::Accepted { .. }), "a read without deadline is never refused");
}

/// Reads that each volume has had after `lasts`.
fn served(pool: &mut SimPool, lasts: Span) -> [u64; 2] {
    let mut served = [0; 2];
    for n in 0..u64::from(DEPTH) {
        ask(pool, LIMITED, n);
        ask(pool, FREE, n);
    }
    while pool.now() < Time::ZERO + lasts && pool.step().is_some() {
        while let Some(done) = pool.next_done() {
            let n = &mut served[usize::from(done.io.volume == FREE)];
            *n += 1;
            ask(pool, done.io.volume, *n);
        }
    }
    served
}

/// Returns the forecast of a read of `volume`.
fn forecast(pool: &mut SimPool, volume: VolumeKey) -> Forecast {
    let now = pool.now();
    pool.stack().forecast(now, &IoHead::new(Op::Read, volume, TenantId(1), 0, READ_BYTES, now))
}

fn main() {
    let mut pool = pool();
    let lasts = Span::from_secs(2);
    let [limited, free] = served(&mut pool, lasts);
    println!("in {lasts}: {limited} reads of the limited volume, {free} of the other");
    for (name, volume) in [("limited", LIMITED), ("free", FREE)] {
        println!("a read of the {name} volume would wait {}", forecast(&mut pool, volume).wait);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_kept_and_forecast_and_the_neighbour_is_not_held_up() {
        let mut pool = pool();
        let [limited, free] = served(&mut pool, Span::from_secs(2));
        assert!((990..=1007).contains(&limited), "{limited}");
        assert!(free > 18_500, "the disk serves 20,000: {free}");
        // Eight reads wait before it, one of which may go on at any moment: 2 ms each.
        let wait = forecast(&mut pool, LIMITED).wait;
        assert!((Span::from_millis(14)..=Span::from_millis(18)).contains(&wait), "{wait}");
        assert!(forecast(&mut pool, FREE).wait < Span::from_millis(2));
    }
}
