//! Pace of write-back where the slow device's flushes are dear. The device is a model, and so are the figures.

use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;
use std::collections::VecDeque;

const EXTENT: u64 = 8192;
const EXTENTS: u64 = 8192;
const CACHE_BYTES: u64 = 16 << 20;
const KEY: VolumeKey = VolumeKey { id: 1, generation: 1 };
const WRITES: u64 = 12_000;
const OUTSTANDING: usize = 16;

/// A device that serves one request after the other: `each` for a request, `kib` for each KiB, `flush` for a flush.
struct Arm {
    queue: VecDeque<Io>,
    free_at: Time,
    flushes: u64,
    each: Span,
    kib: Span,
    flush: Span,
}

impl Arm {
    fn new(each: Span, kib: Span, flush: Span) -> Arm {
        Arm { queue: VecDeque::new(), free_at: Time::ZERO, flushes: 0, each, kib, flush }
    }
}

impl Arm {
    fn go_on(&mut self, now: Time, out: &mut Actions) {
        while now >= self.free_at
            && let Some(io) = self.queue.pop_front()
        {
            let flush = io.op == Op::Flush;
            self.flushes += u64::from(flush);
            let transfer = Span::from_nanos(self.kib.as_nanos() * (io.len >> 10));
            self.free_at = now + if flush { self.flush } else { self.each + transfer };
            out.submit(0, io);
        }
        if !self.queue.is_empty() {
            out.wake_at(self.free_at);
        }
    }
}

impl Layer for Arm {
    fn name(&self) -> &'static str {
        "arm"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.queue.push_back(io);
        self.go_on(now, out);
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.go_on(now, out);
    }
    fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }
}

fn pool(config: CacheConfig, mode: Mode, slow_arm: Arm, fast_arm: Arm) -> SimPool {
    let layout = Layout::new(CACHE_BYTES, 512, Shape { extent_bytes: EXTENT as u32, weu_bytes: 256 << 10 }, 7).unwrap();
    let soon = (Span::from_micros(1), Span::from_micros(2));
    let slow = SimDisk::new(EXTENTS * EXTENT, soon, 1, DiskFaults::default());
    let mut fast = SimDisk::new(CACHE_BYTES, soon, 2, DiskFaults::default());
    for (at, bytes) in format_device(&layout, 0) {
        fast.write_durably(at, &bytes);
    }
    let mut p = SimPool::with_stack(vec![slow, fast], |offers| {
        let mut s = Stack::new(StackConfig::default(), offers);
        s.push(Box::new(Front::new()), vec![Target::Node(1)]);
        s.push(Box::new(Cache::new(layout, config)), vec![Target::Node(2), Target::Node(4)]);
        s.push(Box::new(Map::new()), vec![Target::Node(3)]);
        s.push(Box::new(slow_arm), vec![Target::Device(0)]);
        s.push(Box::new(fast_arm), vec![Target::Device(1)]);
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

fn us(n: u64) -> Span {
    Span::from_micros(n)
}

/// Requests a second of `OUTSTANDING` clients, of which so many percent write.
fn pace(p: &mut SimPool, requests: u64, writes_percent: u64) -> u64 {
    let (mut rng, mut asked, mut ended, began) = (Rng::new(1, "pace"), 0, 0, p.now());
    while ended < requests {
        while asked < requests && asked - ended < OUTSTANDING as u64 {
            let now = p.now();
            let op = if rng.below(100) < writes_percent { Op::Write } else { Op::Read };
            let at = rng.below(EXTENTS) * EXTENT;
            let bytes: Vec<u8> = asked.to_le_bytes().repeat(EXTENT as usize / 8);
            let data = if op == Op::Write { Data::Bytes(Buf::copy_of(&bytes)) } else { Data::Absent };
            p.offer(now, Io::new(IoHead::new(op, KEY, TenantId(1), at, EXTENT, now), data));
            asked += 1;
        }
        assert!(p.step().is_some(), "clients wait and nothing happens");
        while p.next_done().is_some() {
            ended += 1;
        }
    }
    requests * 1_000_000 / p.now().since(began).as_micros()
}

fn plain() -> CacheConfig {
    CacheConfig { codec: Codec::None, fingerprints_percent: 0, ..CacheConfig::default() }
}

/// Four times what fits is written, at random: the slow device decides. Its arm alone would do 4,000 a second; its flushes take
/// 20 ms.
#[test]
fn write_back_goes_nearly_as_fast_as_the_slow_device() {
    let run = || {
        let mut p = pool(plain(), Mode::Back, Arm::new(us(250), us(0), us(20_000)), Arm::new(us(50), us(1), us(500)));
        let iops = pace(&mut p, WRITES, 100);
        // Its arm, not the one of the fast device.
        let flushes = p.stack().layer::<Arm>().unwrap().flushes;
        (iops, flushes)
    };
    let (iops, flushes) = run();
    println!("{iops} writes a second, {flushes} flushes of the slow device");
    assert!(iops > 2_000, "{iops} writes a second");
    assert_eq!(run(), (iops, flushes), "the same run once more is the same");
}

/// Four requests in five are writes, and the fast device takes 16 MB/s, one request after the other: less than what it would have to
/// take if all of that were cached. Clients don't wait for it.
#[test]
fn write_through_over_a_fast_device_that_cannot_keep_up_costs_next_to_nothing() {
    let run = |mode| {
        let mut p = pool(plain(), mode, Arm::new(us(500), us(0), us(10_000)), Arm::new(us(50), us(60), us(500)));
        pace(&mut p, 4_000, 80);
        let iops = pace(&mut p, WRITES, 80);
        let status = p.stack().layer::<Cache>().unwrap().status();
        println!("{mode:?}: {iops} a second, {:?}", status.counters);
        iops
    };
    let (without, with) = (run(Mode::Off), run(Mode::Through));
    assert!(with * 100 >= without * 95, "{with} requests a second with a cache, {without} without");
}

/// Time that a client waits for a write and its flush, with write-back and alone. A write to the fast device takes 50 us, a flush
/// 500. The slow device's flush takes less, and isn't in the figure. The journal's record of the chunk is part of it.
#[test]
fn a_flush_waits_for_two_writes_more_than_its_chunk() {
    let mut p = pool(plain(), Mode::Back, Arm::new(us(50), us(0), us(50)), Arm::new(us(50), us(1), us(500)));
    let mut times: Vec<u64> = Vec::new();
    for n in 0..300u64 {
        let began = p.now();
        let data = Data::Bytes(Buf::copy_of(&n.to_le_bytes().repeat(EXTENT as usize / 8)));
        for (op, len, data) in [(Op::Write, EXTENT, data), (Op::Flush, 0, Data::Absent)] {
            let now = p.now();
            p.offer(now, Io::new(IoHead::new(op, KEY, TenantId(1), n * 17 % 500 * len, len, now), data));
            while p.next_done().is_none() {
                assert!(p.step().is_some(), "a client waits and nothing happens");
            }
        }
        times.push(p.now().since(began).as_micros());
    }
    times.sort_unstable();
    let (median, most) = (times[150], times[297]);
    println!("a write and its flush: {median} us, 99 % within {most} us");
    assert!(median < 1_000 && most < 3_000, "{median} us, 99 % within {most} us");
}
