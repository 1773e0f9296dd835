//! Dirty extents cost no allocation for each event that has nothing to do with them.

use plimsoll_base::*;
use plimsoll_cache::{Cache, CacheConfig, CacheTerms, Layout, Shape, format_device};
use plimsoll_stack::{LayerState, Offer, OwnTerms, Stack, StackConfig, Target, VolumeTerms};
use std::alloc::{GlobalAlloc, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the trait's contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout, by the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };
const EXTENT: u64 = 4096;
const SLOW_BYTES: u64 = 2 << 20;
/// Extents that are cached first. A debug build checks all after each event, which allocates, unless there are more than 256.
const CACHED: u64 = 300;
const FAST_BYTES: u64 = 4 << 20;
const WARM: u64 = 2000;
const COUNTED: u64 = 1000;

/// A cache over two devices in memory, without delay.
struct Machine {
    stack: Stack,
    devices: [Vec<u8>; 2],
    now: Time,
}

impl Machine {
    fn new() -> Machine {
        let offer = |size_bytes| Offer {
            size_bytes,
            block_bytes: 4096,
            io_bytes_max: 1 << 20,
            atomic_bytes: 4096,
            queue_max: 64,
        };
        let shape = Shape { extent_bytes: EXTENT as u32, weu_bytes: 64 << 10 };
        let layout = Layout::new(FAST_BYTES, 4096, shape, 1).unwrap();
        let mut fast = vec![0; FAST_BYTES as usize];
        for (at, bytes) in format_device(&layout, 0) {
            fast[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let slow = (0..SLOW_BYTES / 8).flat_map(u64::to_le_bytes).collect();
        let mut stack = Stack::new(StackConfig::default(), vec![offer(SLOW_BYTES), offer(FAST_BYTES)]);
        let config = CacheConfig { watermark_percent: 90, ..CacheConfig::default() };
        stack.push(Box::new(Cache::new(layout, config)), vec![Target::Device(0), Target::Device(1)]);
        let mut m = Machine { stack, devices: [slow, fast], now: Time::ZERO };
        while m.stack.state() != LayerState::Ready {
            m.stack.start(m.now);
            assert!(m.step(), "it starts");
        }
        let own = OwnTerms::of(&CacheTerms { mode: CacheMode::Back, domain: 1, bytes: 0 });
        m.stack.set_volume(m.now, VOLUME, &VolumeTerms { size_bytes: SLOW_BYTES, tenant: 1, own });
        m
    }

    /// Lets one thing happen, if there is one.
    fn step(&mut self) -> bool {
        self.now += Span::from_nanos(1);
        if let Some((node, work)) = self.stack.next_work() {
            self.stack.worked(self.now, node, work.run());
        } else if let Some((d, mut io)) = self.stack.next_device_io() {
            let device = &mut self.devices[d];
            match io.op {
                Op::Read => io.data = Data::Bytes(Buf::copy_of(&device[io.offset as usize..io.end() as usize])),
                Op::Write => io.data.copy_to(&mut device[io.offset as usize..io.head.end() as usize]),
                _ => {}
            }
            self.stack.device_done(self.now, d, Completion { io, outcome: Outcome::Done, dispatched_at: self.now });
        } else {
            return false;
        }
        true
    }

    /// One request, until nothing more happens.
    fn ask(&mut self, op: Op, extent: u64, data: Data) {
        self.now += Span::from_nanos(1);
        let head = IoHead::new(op, VOLUME, TenantId(1), extent * EXTENT, EXTENT, self.now);
        self.stack.offer(self.now, Io::new(head, data));
        while self.step() {}
        let done = self.stack.next_done().expect("no delay");
        assert!(done.outcome.is_done());
    }

    fn dirty(&self) -> u64 {
        self.stack.layer::<Cache>().unwrap().status().dirty
    }

    /// Allocations of some hits of a clean extent.
    fn hits(&mut self) -> u64 {
        (0..WARM).for_each(|_| self.ask(Op::Read, 5, Data::Absent));
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..COUNTED).for_each(|_| self.ask(Op::Read, 5, Data::Absent));
        ALLOCATIONS.load(Ordering::Relaxed) - before
    }
}

#[test]
fn a_hit_allocates_no_more_while_something_is_dirty() {
    let mut m = Machine::new();
    // Not one after the other: a scan isn't cached.
    (0..CACHED).for_each(|i| m.ask(Op::Read, 100 + i * 89 % CACHED, Data::Absent));
    assert!(m.stack.layer::<Cache>().unwrap().status().entries.0 >= CACHED);
    let clean = m.hits();
    assert_eq!(m.dirty(), 0);
    for extent in [9, 17] {
        m.ask(Op::Write, extent, Data::Bytes(Buf::copy_of(&[extent as u8; EXTENT as usize])));
    }
    let dirty = m.hits();
    assert_eq!(m.dirty(), 2);
    // Tables that grow now and then are no allocation for every event.
    assert!(dirty <= clean + COUNTED / 10, "{COUNTED} hits: {clean} allocations, {dirty} while two extents are dirty");
}
