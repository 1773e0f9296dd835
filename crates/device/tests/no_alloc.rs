//! A model that has warmed up allocates nothing: it runs in the live engine's loop.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_base::{Rng, Time};
use plimsoll_device::{
    Disk, DiskOptions, Done, Flash, FlashOptions, FlashSpec, History, Model, Op, Raid0, Request, profile,
};

/// The system's allocator, counting.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the trait's contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout, by the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Keeps the queue full of mixed requests.
fn run(model: &mut dyn Model, rng: &mut Rng, now: &mut Time, n: u64, done: &mut Vec<Done>) {
    let pages = model.size_bytes() / 4096;
    let (mut tag, mut finished) = (0, 0);
    while finished < n {
        while model.outstanding() < model.queue_max() {
            let op = match rng.below(10) {
                0..5 => Op::Read,
                5..8 => Op::Write { fua: false },
                8 => Op::Write { fua: true },
                _ => Op::Flush,
            };
            let page = rng.below(pages - 64);
            let len = 4096 * (1 + rng.below(64));
            model.submit(*now, Request { tag, op, offset: page * 4096, len });
            tag += 1;
        }
        *now = model.next_event();
        model.advance(*now, done);
        finished += done.len() as u64;
        done.clear();
    }
}

#[test]
fn nothing_is_allocated_in_steady_state() {
    let spec = profile::by_name("hdd-160g-7200").expect("embedded");
    let disk = |seed| Disk::new(&spec, DiskOptions { seed, mismatch: None }).expect("valid");
    let mut single = disk(1);
    let mut raid = Raid0::new(vec![disk(1), disk(2), disk(3)], 64 << 10).expect("stripes");
    let sata = FlashSpec::by_name("vf-sata-60g").expect("embedded");
    let history = History::Aged { overwrites_permille: 500 };
    let options = FlashOptions { history, bytes_max: Some(1 << 30), ..FlashOptions::default() };
    let mut flash = Flash::new(&sata, options).expect("valid");
    let models: [(&str, &mut dyn Model); 3] = [("disk", &mut single), ("RAID-0", &mut raid), ("flash", &mut flash)];
    for (name, model) in models {
        let (mut rng, mut now, mut done) = (Rng::new(1, "no alloc"), Time::ZERO, Vec::with_capacity(256));
        run(model, &mut rng, &mut now, 2000, &mut done);
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        run(model, &mut rng, &mut now, 5000, &mut done);
        let after = ALLOCATIONS.load(Ordering::Relaxed);
        assert_eq!(after - before, 0, "{name}");
    }
}
