//! What the cache costs: memory per extent, time of a warm start beside the device's, time on one core for a hit of 8 KiB.
//!
//! `cargo run --release -p plimsoll-cache --example cache_cost [MILLIONS]`; `cache_cost hits none|lz4|zstd [ROUNDS]` only hits, and
//! `cache_cost misses lz4`, for who counts their instructions.

use plimsoll_base::{Buf, Completion, Data, Io, IoHead, Op, Outcome, Rng, Span, TenantId, Time, VolumeKey};
use plimsoll_cache::format::{ChunkEntry, ChunkHeader, ExtentName, Slot};
use plimsoll_cache::{Cache, CacheConfig, Codec, Layout, Shape, format_device};
use plimsoll_stack::{CacheMode, Extent, Front, FrontVolume, Map, Offer, Stack, StackConfig, Target, VolumeTerms};
use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, Instant};

const PER_WEU: u64 = 256;
const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };
/// Of a volume that is all cached.
const EXTENTS: u64 = 4096;

/// Units of 64 bytes that an extent takes, compressed and as it is.
const PACKED: u16 = 100;
const BARE: u16 = 128;

/// The header of a full WEU, which names so many duplicates beside, of its own first extents, each of so many units.
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
    let written = format_device(&layout, 0);
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
    m.start();
    let size_bytes = 2 * EXTENTS * 8192;
    m.stack.with_layer(m.now, |f: &mut Front, _| f.set_volume(VOLUME, FrontVolume { size_bytes, read_only: false }));
    m.stack
        .with_layer(m.now, |map: &mut Map, _| map.set_volume(VOLUME, &[Extent { device_offset: 0, len: size_bytes }]));
    let terms = VolumeTerms { size_bytes, tenant: 1, domain: 1, cache: CacheMode::Through, cache_bytes: 0, slots: 0 };
    m.stack.set_volume(m.now, VOLUME, &terms);
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
