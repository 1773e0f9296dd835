//! What the cache costs: memory per extent, time to rebuild its index, time on one core for a hit of 8 KiB.
//!
//! `cargo run --release -p plimsoll-cache --example cache_cost [MILLIONS]`

use plimsoll_base::{Buf, Completion, Data, Io, IoHead, Op, Outcome, Rng, Span, TenantId, Time, VolumeKey};
use plimsoll_cache::format::{ChunkEntry, ChunkHeader, ExtentName, Slot};
use plimsoll_cache::index::{Index, Key, Loc};
use plimsoll_cache::{Cache, CacheConfig, Codec, Layout, Shape, format_device};
use plimsoll_stack::{CacheMode, Extent, Front, FrontVolume, Map, Offer, Stack, StackConfig, Target, VolumeTerms};
use std::time::Instant;

const PER_WEU: u64 = 256;
const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };

fn header(weu: u32) -> Vec<u8> {
    let entry = |slot: u64| ChunkEntry {
        name: ExtentName {
            volume: VOLUME,
            extent: (u64::from(weu) * PER_WEU + slot).wrapping_mul(0x9e37_79b9) & 0xffff_ffff,
        },
        dead: false,
        what: Slot::Base(Some([slot << 40 ^ u64::from(weu).wrapping_mul(0x9e37_79b9_7f4a_7c15), u64::from(weu)])),
        at_unit: slot as u16 * 100,
        len_units: 100,
    };
    let entries = (0..PER_WEU).map(entry).collect();
    ChunkHeader { salt: 1, weu, sequence: u64::from(weu), chunk: 1, dirty: false, first_slot: 0, entries }.encode(4096)
}

/// Headers are decoded, checked and put into both indexes, as the start does.
fn rebuild(millions: u64) {
    let weus = (millions * 1_000_000 / PER_WEU) as u32;
    let mut index = Index::new(weus, (millions * 1_000_000) as usize);
    index.add_partition(weus);
    let mut took = Span::ZERO;
    for first in (0..weus).step_by(1000) {
        let headers: Vec<Vec<u8>> = (first..weus.min(first + 1000)).map(header).collect();
        let began = Instant::now();
        for bytes in &headers {
            let h = ChunkHeader::decode(bytes, 1, 4096, false).expect("whole");
            for (slot, e) in h.entries.iter().enumerate() {
                let loc = Loc::new(h.weu, u32::from(e.at_unit), u32::from(e.len_units), slot as u32);
                if let Slot::Base(Some(fp)) = e.what {
                    index.set_content(fp, loc);
                }
                let key = Key::new(0, e.name.extent);
                if index.look(key).is_none() {
                    index.set(key, loc);
                }
            }
        }
        took += Span::from_nanos(began.elapsed().as_nanos() as u64);
    }
    let bytes = index.memory_bytes() as f64 / index.files() as f64;
    println!("{} extents with a fingerprint each: {bytes:.1} bytes of memory per extent, all indexes", index.files());
    println!("their headers put into the indexes in {:.2} s on one core", took.as_secs_f64());
}

/// Both devices in memory, no delay; workers' tasks on this core.
struct Machine {
    stack: Stack,
    memory: [Vec<u8>; 2],
    now: Time,
}

impl Machine {
    fn pump(&mut self) -> Option<Completion> {
        loop {
            self.now += Span::from_nanos(1);
            if let Some(c) = self.stack.next_done() {
                return Some(c);
            }
            if let Some((node, work)) = self.stack.next_work() {
                self.stack.worked(self.now, node, work.run());
            } else if let Some((d, mut io)) = self.stack.next_device_io() {
                let at = io.offset as usize..(io.offset + io.len) as usize;
                match io.op {
                    Op::Read => io.data = Data::Bytes(Buf::copy_of(&self.memory[d][at])),
                    Op::Write => io.data.copy_to(&mut self.memory[d][at]),
                    _ => {}
                }
                let c = Completion { io, outcome: Outcome::Done, dispatched_at: self.now };
                self.stack.device_done(self.now, d, c);
            } else {
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

fn hits(codec: Codec) {
    const FAST: u64 = 96 << 20;
    const EXTENTS: u64 = 4096;
    let offer = |size_bytes| Offer {
        size_bytes,
        block_bytes: 4096,
        io_bytes_max: 64 << 20,
        atomic_bytes: 4096,
        queue_max: 4096,
    };
    let layout = Layout::new(FAST, 4096, Shape::default(), 7).expect("it fits");
    let mut fast = vec![0; FAST as usize];
    for (at, bytes) in format_device(&layout, 0) {
        fast[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
    }
    let mut stack = Stack::new(StackConfig::default(), vec![offer(64 << 20), offer(FAST)]);
    stack.push(Box::new(Front::new()), vec![Target::Node(1)]);
    let config = CacheConfig { codec, ..CacheConfig::default() };
    stack.push(Box::new(Cache::new(layout, config)), vec![Target::Node(2), Target::Device(1)]);
    stack.push(Box::new(Map::new()), vec![Target::Device(0)]);
    let mut m = Machine { stack, memory: [vec![0; 64 << 20], fast], now: Time::ZERO };
    while m.stack.state() != plimsoll_stack::LayerState::Ready {
        m.stack.start(m.now);
        m.pump();
    }
    let size_bytes = EXTENTS * 8192;
    m.stack.with_layer(m.now, |f: &mut Front, _| f.set_volume(VOLUME, FrontVolume { size_bytes, read_only: false }));
    m.stack
        .with_layer(m.now, |map: &mut Map, _| map.set_volume(VOLUME, &[Extent { device_offset: 0, len: size_bytes }]));
    let terms = VolumeTerms { size_bytes, tenant: 1, domain: 1, cache: CacheMode::Through, cache_bytes: 0, slots: 0 };
    m.stack.set_volume(m.now, VOLUME, &terms);
    let mut rng = Rng::new(1, "cost");
    for n in 0..EXTENTS {
        let bytes: Vec<u8> = (0..8192).map(|i| if i % 2 == 0 { 7 } else { rng.below(256) as u8 }).collect();
        m.ask(Op::Write, n * 8192, Data::Bytes(Buf::copy_of(&bytes)));
    }
    let mut rounds = Vec::new();
    for _ in 0..9 {
        let began = Instant::now();
        for _ in 0..10_000 {
            m.ask(Op::Read, rng.below(EXTENTS) * 8192, Data::Absent);
        }
        rounds.push(began.elapsed().as_nanos() as f64 / 1e7);
    }
    rounds.sort_unstable_by(f64::total_cmp);
    let s = m.stack.layer::<Cache>().expect("there is one").status();
    println!(
        "{codec:?}: a hit of 8 KiB takes {:.2} us of one core (median of 9 rounds, {:.2} to {:.2}); hits {:.1} %, write amplification {:.3}",
        rounds[4],
        rounds[0],
        rounds[8],
        100.0 * s.hit_ratio().unwrap_or(0.0),
        s.write_amplification().unwrap_or(0.0)
    );
}

fn main() {
    let millions = std::env::args().nth(1).map_or(4, |n| n.parse().expect("millions of extents"));
    rebuild(millions);
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        hits(codec);
    }
}
