//! Measures the cache's cost: memory per extent, time of a warm start beside the device's, time on one core for a hit of 8 KiB.
//!
//! `cargo run --release -p plimsoll-cache --example cache_cost [MILLIONS]`; `cache_cost hits none|lz4|zstd [ROUNDS]` only hits, and
//! `cache_cost misses lz4`, for counting their instructions; `cache_cost dirty EXTENTS REQUESTS` hits and writes in a cache with
//! EXTENTS dirty extents.

#![expect(clippy::disallowed_methods, reason = "it measures")]

use plimsoll_base::CacheMode;
use plimsoll_base::{Buf, Completion, Data, Io, IoHead, Op, Outcome, Rng, Span, TenantId, Time, VolumeKey};
use plimsoll_cache::format::{ChunkEntry, ChunkHeader, ExtentName, JournalBlock, Record, Slot, records_per_block};
use plimsoll_cache::{Cache, CacheConfig, Codec, Layout, Shape, format_device};
use plimsoll_stack::pieces::Pieces;
use plimsoll_stack::{Extent, Front, FrontVolume, Map, Offer, Stack, StackConfig, Target, VolumeTerms};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

const PER_WEU: u64 = 256;
const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };
/// Of a volume that is all cached.
const EXTENTS: u64 = 4096;

/// Units of 64 bytes that an extent takes, compressed and as it is.
const PACKED: u16 = 100;
const BARE: u16 = 128;

/// The header of a full WEU of extents of `units` units each, which also names `duplicates` duplicates of its own first extents.
fn header(weu: u32, duplicates: u64, units: u16) -> Vec<u8> {
    let entry = |slot: u64| ChunkEntry {
        name: ExtentName {
            volume: VOLUME,
            extent: (u64::from(weu) * PER_WEU + slot).wrapping_mul(0x9e37_79b9) & 0xffff_ffff,
        },
        dead: false,
        what: Slot::Base(Some([slot << 40 ^ u64::from(weu).wrapping_mul(0x9e37_79b9_7f4a_7c15), u64::from(weu)])),
        at_unit: slot as u16 * units,
        len_units: units,
        sum: 0,
    };
    let duplicate = |slot: u64| {
        let base = entry(slot);
        let name = ExtentName { extent: base.name.extent | 1 << 40, ..base.name };
        ChunkEntry { name, what: Slot::Ref { weu, sequence: u64::from(weu), slot: slot as u32 }, ..base }
    };
    let entries = (0..PER_WEU).map(entry).chain((0..duplicates).map(duplicate)).collect();
    ChunkHeader { salt: 1, weu, sequence: u64::from(weu), chunk: 1, dirty: false, first_slot: 0, entries }.encode(4096)
}

/// The journal that confirms each of `weus` WEUs: its place on the device, and its bytes.
fn journal(layout: &Layout, weus: u32) -> (u64, Vec<u8>) {
    let confirmed = |weu| Record::Least { weu, sequence: u64::from(weu), suspect: false, confirmed: true };
    let records: Vec<Record> = (0..weus).map(confirmed).collect();
    let pieces: Vec<&[Record]> = records.chunks(records_per_block(layout.block_bytes)).collect();
    let last = pieces.len() - 1;
    let block = |(index, records): (usize, &&[Record])| {
        let snapshot = if index == last { 2 } else { 1 };
        let (salt, records, index) = (layout.salt, records.to_vec(), index as u32);
        let head = JournalBlock { salt, epoch: 2, index, since: index, snapshot, generation: 0, durable: 0, records };
        head.encode(layout.block_bytes)
    };
    (layout.copies_at(2)[0], pieces.iter().enumerate().flat_map(block).collect())
}

/// Time that this thread has had of a core: others on the machine don't count.
fn cpu_time() -> Duration {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// A device: answers a request in its place.
type Device = Box<dyn FnMut(&mut Io)>;

/// A cache over two devices without delay; workers' tasks on this core.
struct Machine {
    stack: Stack,
    devices: [Device; 2],
    now: Time,
    /// Time spent in the devices.
    outside: Duration,
}

impl Machine {
    fn new(layout: Layout, config: CacheConfig, slow_bytes: u64, devices: [Device; 2]) -> Machine {
        let offer = |size_bytes| Offer {
            size_bytes,
            block_bytes: 4096,
            io_bytes_max: 64 << 20,
            atomic_bytes: 4096,
            queue_max: 4096,
        };
        let fast_bytes = layout.weu_at(layout.weus);
        let mut stack = Stack::new(StackConfig::default(), vec![offer(slow_bytes), offer(fast_bytes)]);
        stack.push(Box::new(Front::new()), vec![Target::Node(1)]);
        stack.push(Box::new(Cache::new(layout, config)), vec![Target::Node(2), Target::Device(1)]);
        stack.push(Box::new(Map::new()), vec![Target::Device(0)]);
        Machine { stack, devices, now: Time::ZERO, outside: Duration::ZERO }
    }

    /// Until it serves.
    fn start(&mut self) {
        loop {
            self.stack.start(self.now);
            if self.stack.state() == plimsoll_stack::LayerState::Ready {
                return;
            }
            assert!(self.step(), "it starts");
        }
    }

    /// Starts, and serves a volume.
    fn serve(&mut self, size_bytes: u64, cache: CacheMode) {
        self.start();
        let volume = FrontVolume { size_bytes, read_only: false };
        self.stack.with_layer(self.now, |f: &mut Front, _| f.set_volume(VOLUME, volume));
        let extents = [Extent { device_offset: 0, len: size_bytes }];
        self.stack.with_layer(self.now, |map: &mut Map, _| map.set_volume(VOLUME, &extents));
        let terms = VolumeTerms {
            size_bytes,
            tenant: 1,
            own: plimsoll_stack::OwnTerms::of(&plimsoll_cache::CacheTerms { mode: cache, domain: 1, bytes: 0 }),
        };
        self.stack.set_volume(self.now, VOLUME, &terms);
    }

    /// Lets one thing happen, if there is one.
    fn step(&mut self) -> bool {
        self.now += Span::from_nanos(1);
        if let Some((node, work)) = self.stack.next_work() {
            self.stack.worked(self.now, node, work.run());
        } else if let Some((d, mut io)) = self.stack.next_device_io() {
            let began = cpu_time();
            (self.devices[d])(&mut io);
            self.outside += cpu_time() - began;
            let c = Completion { io, outcome: Outcome::Done, dispatched_at: self.now };
            self.stack.device_done(self.now, d, c);
        } else {
            return false;
        }
        true
    }

    fn pump(&mut self) -> Option<Completion> {
        loop {
            if let Some(c) = self.stack.next_done() {
                return Some(c);
            }
            if !self.step() {
                return None;
            }
        }
    }

    fn ask(&mut self, op: Op, offset: u64, data: Data) {
        let mut io = Io::new(IoHead::new(op, VOLUME, TenantId(1), offset, 8192, self.now), data);
        io.head.tag = 0;
        self.stack.offer(self.now, io);
        while let Some(c) = self.pump() {
            assert!(c.outcome.is_done());
        }
    }
}

/// A start from a device whose WEUs are full: the real thing, but for the device's own time.
fn warm_start(millions: u64, duplicates: u64, units: u16) {
    let weus = millions * 1_000_000 / PER_WEU;
    let shape = Shape::default();
    let mut layout = Layout::new((weus + 4) * u64::from(shape.weu_bytes), 4096, shape, 1).expect("it fits");
    while u64::from(layout.weus) < weus {
        let more = layout.weu_at(layout.weus) + 8 * u64::from(shape.weu_bytes);
        layout = Layout::new(more, 4096, shape, 1).expect("it fits");
    }
    let mut written = format_device(&layout, 0);
    written[0] = journal(&layout, weus as u32);
    let first_weu = layout.weu_at(0);
    let fast = move |io: &mut Io| {
        if io.op != Op::Read {
            return;
        }
        let mut bytes = vec![0; io.len as usize];
        let mut put = |at: u64, piece: &[u8]| {
            let (from, to) = (at.max(io.offset), (at + piece.len() as u64).min(io.offset + io.len));
            if from < to {
                bytes[(from - io.offset) as usize..(to - io.offset) as usize]
                    .copy_from_slice(&piece[(from - at) as usize..(to - at) as usize]);
            }
        };
        written.iter().for_each(|(at, piece)| put(*at, piece));
        if io.offset >= first_weu {
            let weu = ((io.offset - first_weu) / u64::from(shape.weu_bytes)) as u32;
            if u64::from(weu) < weus {
                put(layout.weu_at(weu), &header(weu, duplicates, units));
            }
        }
        io.data = Data::Bytes(Buf::copy_of(&bytes));
    };
    let slow = |_: &mut Io| {};
    let mut m = Machine::new(layout, CacheConfig::default(), 64 << 20, [Box::new(slow), Box::new(fast)]);
    let began = (cpu_time(), Instant::now());
    m.start();
    let took = cpu_time() - began.0 - m.outside;
    let outside = m.outside;
    let ready = cpu_time();
    while m.pump().is_some() {}
    let learnt = cpu_time() - ready - (m.outside - outside);
    let s = m.stack.layer::<Cache>().expect("there is one").status();
    let bytes = s.memory_bytes as f64 / s.entries.0 as f64;
    println!(
        "{} extents{}, {} of them duplicates, {} fingerprints: {bytes:.1} bytes of memory per extent, all indexes",
        s.entries.0,
        if units == BARE { ", uncompressed" } else { "" },
        duplicates * weus,
        s.entries.1
    );
    println!(
        "warm again in {:.2} s on one core, beside the device's time; all fingerprints {:.2} s later, while it serves; {:.1} s by the clock, device included",
        took.as_secs_f64(),
        learnt.as_secs_f64(),
        began.1.elapsed().as_secs_f64()
    );
}

/// A cache over memory that holds all of a volume, and the machine around it.
fn filled(codec: Codec) -> (Machine, Rng) {
    const FAST: u64 = 96 << 20;
    let layout = Layout::new(FAST, 4096, Shape::default(), 7).expect("it fits");
    let mut fast = vec![0; FAST as usize];
    for (at, bytes) in format_device(&layout, 0) {
        fast[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
    }
    let in_memory = |mut memory: Vec<u8>| -> Device {
        Box::new(move |io: &mut Io| {
            let at = io.offset as usize..(io.offset + io.len) as usize;
            match io.op {
                Op::Read => io.data = Data::Bytes(Buf::copy_of(&memory[at])),
                Op::Write => io.data.copy_to(&mut memory[at]),
                _ => {}
            }
        })
    };
    let config = CacheConfig { codec, ..CacheConfig::default() };
    let mut rng = Rng::new(1, "cost");
    // What was never written is no duplicate either.
    let slow: Vec<u8> = (0..8 << 20).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    let mut m = Machine::new(layout, config, 64 << 20, [in_memory(slow), in_memory(fast)]);
    m.serve(2 * EXTENTS * 8192, CacheMode::Through);
    for n in 0..EXTENTS {
        let bytes: Vec<u8> = (0..8192).map(|i| if i / 64 % 2 == 0 { 7 } else { rng.below(256) as u8 }).collect();
        m.ask(Op::Write, n * 8192, Data::Bytes(Buf::copy_of(&bytes)));
    }
    (m, rng)
}

/// Hits, one after the other.
fn hits(codec: Codec, rounds_of_10_000: usize) {
    let (mut m, mut rng) = filled(codec);
    let mut rounds = Vec::new();
    for _ in 0..rounds_of_10_000 {
        let (began, outside) = (cpu_time(), m.outside);
        for _ in 0..10_000 {
            m.ask(Op::Read, rng.below(EXTENTS) * 8192, Data::Absent);
        }
        rounds.push((cpu_time() - began - (m.outside - outside)).as_nanos() as f64 / 1e7);
    }
    rounds.sort_unstable_by(f64::total_cmp);
    let s = m.stack.layer::<Cache>().expect("there is one").status();
    println!(
        "{codec:?}: a hit of 8 KiB takes {:.2} us of one core beside the device (median of {} rounds, {:.2} to {:.2}); hits {:.1} %, write amplification {:.3}",
        rounds[rounds.len() / 2],
        rounds.len(),
        rounds[0],
        rounds[rounds.len() - 1],
        100.0 * s.hit_ratio().unwrap_or(0.0),
        s.write_amplification().unwrap_or(0.0)
    );
}

/// Misses, one after the other: what is read is cached, which evicts something else.
fn misses(codec: Codec, count: u64) {
    let (mut m, _) = filled(codec);
    for n in 0..count {
        // Not in order: that would be a scan.
        m.ask(Op::Read, (EXTENTS + n * 1117 % EXTENTS) * 8192, Data::Absent);
    }
    let s = m.stack.layer::<Cache>().expect("there is one").status();
    println!("{codec:?}: {} misses", s.counters.reads - s.counters.read_hits);
}

/// Hits, and writes in write-back mode, in a cache with `extents` dirty extents; content names stand for bytes.
fn dirty(extents: u64, requests: u64) {
    let size_bytes = extents.max(1) * 8192;
    let layout = Layout::new(size_bytes * 2 + (256 << 20), 4096, Shape::default(), 7).expect("it fits");
    let mut held = Pieces::default();
    for (at, bytes) in format_device(&layout, 0) {
        held.put(at, bytes.len() as u64, &Data::Bytes(Buf::copy_of(&bytes)));
    }
    let fast = move |io: &mut Io| match io.op {
        Op::Read => io.data = held.over(io.offset, io.len, &Data::Zeroes),
        Op::Write => held.put(io.offset, io.len, &io.data),
        _ => {}
    };
    let config = CacheConfig { codec: Codec::None, watermark_percent: 90, ..CacheConfig::default() };
    let mut m = Machine::new(layout, config, size_bytes.next_multiple_of(1 << 20), [Box::new(|_| {}), Box::new(fast)]);
    m.serve(size_bytes, CacheMode::Back);
    let mut rng = Rng::new(1, "dirty");
    let mut content = 0;
    let mut write = |m: &mut Machine, n: u64| {
        content += 1;
        m.ask(Op::Write, n * 8192, Data::Content(vec![content].into()));
    };
    (0..extents).for_each(|n| write(&mut m, n));
    let mut timed = |what: &str, m: &mut Machine, f: &mut dyn FnMut(&mut Machine, u64)| {
        let (began, outside) = (cpu_time(), m.outside);
        (0..requests).for_each(|_| f(m, rng.below(extents)));
        let took = cpu_time() - began - (m.outside - outside);
        println!("{what}: {:.2} us each", took.as_nanos() as f64 / 1000.0 / requests.max(1) as f64);
    };
    timed("hits", &mut m, &mut |m, n| m.ask(Op::Read, n * 8192, Data::Absent));
    timed("writes", &mut m, &mut write);
    let s = m.stack.layer::<Cache>().expect("there is one").status();
    println!("{} extents that only the cache has, hits {:.1} %", s.dirty, 100.0 * s.hit_ratio().unwrap_or(0.0));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let codec = |name: &String| match name.as_str() {
        "none" => Codec::None,
        "zstd" => Codec::Zstd,
        _ => Codec::Lz4,
    };
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["hits", _] => hits(codec(&arguments[1]), 1),
        ["hits", _, rounds] => hits(codec(&arguments[1]), rounds.parse().expect("rounds")),
        ["dirty", extents, requests] => {
            dirty(extents.parse().expect("extents"), requests.parse().expect("requests"));
        }
        ["misses", _] => misses(codec(&arguments[1]), 4096),
        _ => {
            let millions = arguments.first().map_or(4, |n| n.parse().expect("millions of extents"));
            warm_start(millions, 0, PACKED);
            warm_start(millions, PER_WEU / 4, PACKED);
            warm_start(millions, 0, BARE);
            for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
                hits(codec, 9);
            }
        }
    }
}
