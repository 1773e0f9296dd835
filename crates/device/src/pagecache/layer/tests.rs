use super::*;
use crate::disk::{Disk, DiskOptions};
use crate::layer::ModelLayer;
use plimsoll_base::{TenantId, VolumeKey};
use plimsoll_stack::{Offered, Stack, StackConfig, Target};

const US: fn(u64) -> Span = Span::from_micros;

/// A disk that says that it takes 5 ms, under a cache of 64 pages.
struct Says(Span);
impl Layer for Says {
    fn name(&self) -> &'static str {
        "says"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn forecast(&self, _: Time, _: &IoHead, below: Ports<'_>) -> Forecast {
        below.serve(Span::ZERO, self.0, Confidence::CERTAIN)
    }
    fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

fn stack() -> Stack {
    let spec = crate::profile::by_name("hdd-160g-7200").unwrap();
    let disk = Disk::new(&spec, DiskOptions::default()).unwrap();
    let cache: PageCache = PageCache::new(64, 1 << 20, US(2));
    let mut s = Stack::new(StackConfig::default(), vec![]);
    s.push(Box::new(PageCacheLayer::new(cache)), vec![Target::Node(1)]);
    s.push(Box::new(Says(US(5000))), vec![Target::Node(2)]);
    s.push(Box::new(ModelLayer::new(disk)), vec![]);
    s.start(Time::ZERO);
    s
}

fn offer(s: &mut Stack, now: Time, page: u64, deadline_us: u64) -> bool {
    let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), page * PAGE, PAGE, now);
    head.deadline = now + US(deadline_us);
    matches!(s.offer(now, Io::new(head, Data::Absent)), Offered::Accepted(_))
}

fn settle(s: &mut Stack, mut now: Time) -> Time {
    while s.next_wake().is_set() && !s.is_idle() {
        now = s.next_wake();
        s.wake(now);
        while s.next_done().is_some() {}
    }
    now
}

#[test]
fn busy_is_said_of_swapped_out_pages_only_and_brings_them_in() {
    let mut s = stack();
    assert!(offer(&mut s, Time::ZERO, 7, 100), "a first read is never refused, however short its deadline");
    let now = settle(&mut s, Time::ZERO);
    assert!(offer(&mut s, now, 7, 100), "it's in memory now");
    let now = settle(&mut s, now);
    s.with_layer(now, |l: &mut PageCacheLayer, _| l.cache().drop_page(7)).unwrap();
    assert!(offer(&mut s, now, 8, 100), "another first read");
    let now = settle(&mut s, now);
    assert!(!offer(&mut s, now, 7, 100), "swapped out, and the disk takes 5 ms at least");
    let now = settle(&mut s, now);
    assert!(offer(&mut s, now, 7, 100), "it was brought in in the background");
    let (_, stats) = s.node_stats(0);
    assert_eq!(stats.own_ios, 1, "tagged as the layer's own");
    settle(&mut s, now);
    assert!(s.is_idle());
}

/// Takes a read of a page in memory, has other pages evict it while it's being copied, and returns the time that the read took.
fn read_while_evicted(mistake: Option<Planted>) -> Span {
    let mut s = stack();
    s.with_layer(Time::ZERO, |l: &mut PageCacheLayer, _| {
        l.cache().insert(7);
        mistake.into_iter().for_each(|m| l.plant(m));
    });
    assert!(offer(&mut s, Time::ZERO, 7, 100), "it's in memory, so it's never refused");
    s.with_layer(Time::ZERO, |l: &mut PageCacheLayer, _| {
        (100..164).for_each(|page| {
            l.cache().insert(page);
        });
        assert_ne!(l.cache().residency(7), Residency::Resident, "64 others took its place");
    });
    loop {
        let now = s.next_wake();
        s.wake(now);
        if let Some(c) = s.next_done() {
            assert!(c.outcome.is_done(), "{:?}", c.outcome);
            return now.since(Time::ZERO);
        }
    }
}

/// Pages that were told to be in memory are read from there, whatever is evicted meanwhile (MT-M22).
#[test]
fn what_was_found_is_not_lost_before_it_is_read() {
    assert!(read_while_evicted(None) <= US(100), "within its deadline");
    assert!(read_while_evicted(Some(Planted::LookTwice)) > US(100), "the test finds the mistake");
}

const VOL: VolumeKey = VolumeKey { id: 1, generation: 1 };

/// Bytes come from memory as they were written last, whatever overlaps: a plain array is the judge.
#[test]
fn bytes_are_those_written_last() {
    use plimsoll_base::Rng;
    use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
    use plimsoll_stack::{Extent, Front, FrontVolume, Map};
    const BYTES: u64 = 1 << 20;
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(Front::new()),
        Box::new(Map::new()),
        Box::new(PageCacheLayer::new(PageCache::<Lru>::new(32, BYTES / PAGE, Span::ZERO))),
        // Refuses what isn't in memory and has a deadline, so that reads are brought in in the background.
        Box::new(Says(US(5000))),
    ];
    let disk = SimDisk::new(BYTES, (US(10), US(3000)), 5, DiskFaults::default());
    let mut pool = SimPool::chain(StackConfig::default(), layers, vec![disk]);
    pool.start();
    let extents = [Extent { device_offset: BYTES / 2, len: BYTES / 2 }, Extent { device_offset: 0, len: BYTES / 4 }];
    pool.with_layer(|f: &mut Front, _| {
        f.set_volume(VOL, FrontVolume { size_bytes: 3 * BYTES / 4, read_only: false });
    });
    pool.with_layer(|m: &mut Map, _| m.set_volume(VOL, &extents));
    let mut rng = Rng::new(11, "page cache bytes");
    let mut truth = vec![0u8; (3 * BYTES / 4) as usize];
    let (mut busy, mut checked) = (0, 0);
    for round in 0..4000u64 {
        // Mostly a few pages, so that reads find them again.
        let len = 1 + rng.below(3 * PAGE);
        let offset = if rng.chance(0.9) { rng.below(20 * PAGE) } else { rng.below(3 * BYTES / 4 - len) };
        let (from, to) = (offset as usize, (offset + len) as usize);
        let op = [Op::Read, Op::Read, Op::Write, Op::WriteZeroes][rng.below(4) as usize];
        let mut io = Io::new(IoHead::new(op, VOL, TenantId(0), offset, len, pool.now()), Data::Absent);
        match op {
            Op::Write => {
                truth[from..to].fill(round as u8);
                io.data = Data::Bytes(Buf::copy_of(&truth[from..to]));
            }
            Op::WriteZeroes => truth[from..to].fill(0),
            _ => io.head.deadline = pool.now() + US(1),
        }
        let now = pool.now();
        let refused = matches!(pool.offer(now, io), Offered::Busy(_));
        busy += u32::from(refused);
        // Changes and background reads run beside what comes next; a read ends before.
        if (refused || op != Op::Read) && rng.chance(0.5) {
            continue;
        }
        loop {
            while let Some(c) = pool.next_done() {
                if c.io.op == Op::Read {
                    let mut got = vec![1; c.io.len as usize];
                    c.io.data.copy_to(&mut got);
                    let (from, to) = (c.io.offset as usize, c.io.end() as usize);
                    assert!(got == truth[from..to], "round {round}: {from}..{to}");
                    checked += 1;
                }
            }
            if pool.step().is_none() {
                break;
            }
        }
    }
    let counts = pool.stack().layer::<PageCacheLayer>().expect("it's there").counts();
    assert!(busy > 100 && checked > 500, "{busy} refused, {checked} compared");
    assert!(counts.hits > 200 && counts.fills > 50, "{counts:?}");
}

/// A first read is not given back later either, when something better comes in front of it (MT-M21).
#[test]
fn a_first_read_has_no_deadline_below() {
    let mut s = stack();
    assert!(offer(&mut s, Time::ZERO, 7, 100));
    let mut deadlines = Vec::new();
    let mut now = Time::ZERO;
    while deadlines.is_empty() {
        now = s.next_wake();
        s.wake(now);
        while let Some(c) = s.next_done() {
            deadlines.push(c.io.deadline);
        }
    }
    assert_eq!(deadlines, [Time::ZERO + US(100)], "it comes back as it was");
    assert!(s.is_idle() && now > Time::ZERO);
}

#[test]
fn a_deadline_that_the_disk_can_meet_goes_down() {
    let mut s = stack();
    assert!(offer(&mut s, Time::ZERO, 7, 100));
    let now = settle(&mut s, Time::ZERO);
    s.with_layer(now, |l: &mut PageCacheLayer, _| l.cache().drop_page(7)).unwrap();
    assert!(offer(&mut s, now, 7, 8000), "swapped out, but 5 ms are within 8");
}

/// Brings pages into memory and drops them again.
fn swap_out(s: &mut Stack, now: Time, pages: std::ops::Range<u64>) {
    s.with_layer(now, |l: &mut PageCacheLayer, _| {
        for page in pages {
            l.cache().insert(page);
            l.cache().drop_page(page);
        }
    });
}

/// However often a page is refused it comes in once, and keeps no other from coming in.
#[test]
fn what_is_refused_often_is_brought_in_once() {
    let mut s = stack();
    swap_out(&mut s, Time::ZERO, 0..2000);
    // As many as are read at once, so that what follows waits.
    (0..16).for_each(|page| assert!(!offer(&mut s, Time::ZERO, page, 100)));
    (0..3000).for_each(|_| assert!(!offer(&mut s, Time::ZERO, 20, 100)));
    assert!(!offer(&mut s, Time::ZERO, 21, 100));
    let now = settle(&mut s, Time::ZERO);
    assert!(offer(&mut s, now, 20, 100) && offer(&mut s, now, 21, 100), "both are in memory");
    let now = settle(&mut s, now);
    let counts = s.layer::<PageCacheLayer>().unwrap().counts();
    assert_eq!((counts.fills, counts.fills_dropped), (18, 0));
    // What is too much is counted.
    (100..100 + 16 + 1024 + 5).for_each(|page| assert!(!offer(&mut s, now, page, 100)));
    assert_eq!(s.layer::<PageCacheLayer>().unwrap().counts().fills_dropped, 5);
}

/// A first read isn't refused because of requests that wait above the memory either.
#[test]
fn a_first_read_is_not_refused_for_what_is_above() {
    struct Holds;
    impl Layer for Holds {
        fn name(&self) -> &'static str {
            "holds"
        }
        fn offer(&self, below: &[Offer]) -> Offer {
            below[0]
        }
        fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
            below.after(US(50_000), below.ask(0, at, head))
        }
        fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
            out.submit(0, io);
        }
        fn is_idle(&self) -> bool {
            true
        }
    }
    let spec = crate::profile::by_name("hdd-160g-7200").unwrap();
    let mut s = Stack::new(StackConfig::default(), vec![]);
    s.push(Box::new(Holds), vec![Target::Node(1)]);
    s.push(Box::new(PageCacheLayer::new(PageCache::<Lru>::new(64, 1 << 20, US(2)))), vec![Target::Node(2)]);
    s.push(Box::new(ModelLayer::new(Disk::new(&spec, DiskOptions::default()).unwrap())), vec![]);
    s.start(Time::ZERO);
    assert!(offer(&mut s, Time::ZERO, 7, 100), "a first read");
    let now = settle(&mut s, Time::ZERO);
    swap_out(&mut s, now, 7..8);
    assert!(!offer(&mut s, now, 7, 100), "swapped out, and 50 ms are before it");
    settle(&mut s, now);
}

/// A client that reads and writes less than pages has them in memory all the same, whatever the device's blocks.
#[test]
fn parts_of_pages_are_kept_in_memory() {
    use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
    use plimsoll_stack::{Extent, Front, FrontVolume, Map};
    const BYTES: u64 = 1 << 20;
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(Front::new()),
        Box::new(Map::new()),
        Box::new(PageCacheLayer::new(PageCache::<Lru>::new(32, BYTES / PAGE, Span::ZERO))),
        Box::new(Says(US(5000))),
    ];
    let disk = SimDisk::new(BYTES, (US(10), US(3000)), 5, DiskFaults::default());
    let mut pool = SimPool::chain(StackConfig::default(), layers, vec![disk]);
    pool.start();
    pool.with_layer(|f: &mut Front, _| f.set_volume(VOL, FrontVolume { size_bytes: BYTES, read_only: false }));
    pool.with_layer(|m: &mut Map, _| m.set_volume(VOL, &[Extent { device_offset: 0, len: BYTES }]));
    let mut one = |op: Op, offset: u64, len: u64| {
        let mut io = Io::new(IoHead::new(op, VOL, TenantId(0), offset, len, pool.now()), Data::Absent);
        match op {
            Op::Write => io.data = Data::Bytes(Buf::copy_of(&vec![9; len as usize])),
            _ => io.head.deadline = pool.now() + US(1),
        }
        let accepted = matches!(pool.offer(pool.now(), io), Offered::Accepted(_));
        while pool.step().is_some() {}
        while pool.next_done().is_some() {}
        let counts = pool.stack().layer::<PageCacheLayer>().expect("it's there").counts();
        (accepted, counts.hits, counts.misses)
    };
    assert_eq!(one(Op::Read, 8192, 2048), (true, 0, 1), "a first read");
    assert_eq!(one(Op::Read, 8192, 2048), (true, 1, 1), "it's in memory");
    assert_eq!(one(Op::Read, 8192 + 2048, 2048), (true, 2, 1), "with the rest of its page");
    let (_, hits, misses) = one(Op::Write, 8192 + 512, 512);
    assert_eq!((hits, misses), (3, 1), "the rest of the page came from memory");
    assert_eq!(one(Op::Read, 8192, 4096), (true, 4, 1), "and is there as it was written");
}

/// Reads whole units of 32 KiB, as a cache above does: its reads overlap changes of other clients, which the front lets pass.
struct Widens {
    size_bytes: u64,
    reads: BTreeMap<IoId, (u64, u64)>,
}
impl Layer for Widens {
    fn name(&self) -> &'static str {
        "widens"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _: Time, mut io: Io, out: &mut Actions) {
        if io.op == Op::Read {
            self.reads.insert(io.id, (io.offset, io.len));
            let (from, to) = (io.offset / (8 * PAGE) * 8 * PAGE, io.end().next_multiple_of(8 * PAGE));
            (io.head.offset, io.head.len) = (from, to.min(self.size_bytes) - from);
        }
        out.submit(0, io);
    }
    fn completed(&mut self, _: Time, mut c: Completion, out: &mut Actions) {
        if let Some((offset, len)) = self.reads.remove(&c.io.id) {
            c.io.data = c.io.data.slice(c.io.len, offset - c.io.offset, len);
            (c.io.head.offset, c.io.head.len) = (offset, len);
        }
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }
}

/// Runs pipelined requests below a layer that widens reads; the first read that isn't what was asked for before it.
fn widened(seed: u64, planted: Option<Planted>) -> Option<String> {
    use plimsoll_base::Rng;
    use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
    use plimsoll_stack::{Extent, Front, FrontVolume, Map};
    const BYTES: u64 = 24 * PAGE;
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(Front::new()),
        Box::new(Widens { size_bytes: BYTES, reads: BTreeMap::new() }),
        Box::new(Map::new()),
        Box::new(PageCacheLayer::new(PageCache::<Lru>::new(12, BYTES / PAGE, Span::ZERO))),
    ];
    let disk = SimDisk::new(BYTES, (US(10), US(3000)), seed, DiskFaults::default());
    let mut pool = SimPool::chain(StackConfig::default(), layers, vec![disk]);
    pool.start();
    pool.with_layer(|f: &mut Front, _| f.set_volume(VOL, FrontVolume { size_bytes: BYTES, read_only: false }));
    pool.with_layer(|m: &mut Map, _| m.set_volume(VOL, &[Extent { device_offset: 0, len: BYTES }]));
    pool.with_layer(|c: &mut PageCacheLayer, _| planted.map(|p| c.plant(p)));
    let mut rng = Rng::new(seed, "widened reads");
    let (mut truth, mut expected) = (vec![0u8; BYTES as usize], BTreeMap::new());
    for round in 1..200u64 {
        let len = 1 + rng.below(2 * PAGE);
        let offset = rng.below(BYTES - len);
        let (from, to) = (offset as usize, (offset + len) as usize);
        let op = [Op::Read, Op::Read, Op::Write, Op::WriteZeroes, Op::Trim][rng.below(5) as usize];
        let mut io = Io::new(IoHead::new(op, VOL, TenantId(0), offset, len, pool.now()), Data::Absent);
        io.head.tag = round;
        match op {
            Op::Write => {
                truth[from..to].fill(round as u8);
                io.data = Data::Bytes(Buf::copy_of(&truth[from..to]));
            }
            Op::WriteZeroes => truth[from..to].fill(0),
            Op::Trim => {
                let (from, to) = (from.next_multiple_of(PAGE as usize), to / PAGE as usize * PAGE as usize);
                truth[from..to.max(from)].fill(0);
            }
            _ => drop(expected.insert(round, truth[from..to].to_vec())),
        }
        let now = pool.now();
        pool.offer(now, io);
        for _ in 0..rng.below(4) {
            pool.step();
        }
    }
    pool.run();
    while let Some(c) = pool.next_done() {
        if let Some(want) = expected.remove(&c.io.tag) {
            let mut got = vec![1; c.io.len as usize];
            c.io.data.copy_to(&mut got);
            if got != want {
                return Some(format!("read {}: {:?} isn't what was written last", c.io.tag, c.io.head));
            }
        }
    }
    assert!(expected.is_empty() && pool.stack().is_idle());
    None
}

/// A layer above reads more than its client asked for, beside changes of the rest: no page of theirs is kept as it was before.
#[test]
fn what_was_changed_while_it_was_read_is_not_kept() {
    (0..100).for_each(|seed| assert_eq!(widened(seed, None), None, "seed {seed}"));
}

#[test]
fn keeping_what_was_changed_while_it_was_read_is_found() {
    let found = (0..100).find_map(|seed| widened(seed, Some(Planted::KeepOverlapped)));
    println!("{}", found.expect("the planted mistake is not found"));
}
