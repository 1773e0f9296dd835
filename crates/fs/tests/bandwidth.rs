//! Bandwidth of a sequential reader beside a writer that syncs, and the syncs' latency, in each mode on a modelled 15k disk in
//! virtual time (Manylogs Fig. 2a; ML-E2). `cargo test -p plimsoll-fs --test bandwidth -- --nocapture` prints the figures, which are
//! a model's.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use plimsoll_base::Time;
use plimsoll_device::{AnyModel, DeviceOptions, DeviceSpec, Done, Model, Op, Request};
use plimsoll_fs::{BLOCK, Disk, Format, Fs, MemDisk, Mode, Options, ROOT, Write, mkfs};

const FILE_BYTES: u64 = 2 << 30;
const FILES: usize = 20;
const READER: u64 = 1 << 40;

/// The host's way of giving requests to the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Feed {
    /// All at once: the disk orders them by its positioning times (32 tags).
    Tags,
    /// One at a time, first come, first served. A sync has this number of its writes in the queue, so that the reader has its turn
    /// between them.
    Fifo(usize),
}

/// A sync submits all its writes together.
const FIFO: Feed = Feed::Fifo(usize::MAX);
/// A sync submits a write when the one before has ended.
const ALTERNATE: Feed = Feed::Fifo(1);

/// The paper's host, as far as it is assumed.
#[derive(Clone, Copy, Debug)]
struct Host {
    feed: Feed,
    /// Read-ahead: requests of the reader in the disk at once, and bytes of one.
    reads: usize,
    read_bytes: u64,
    /// The writer goes on during a sync: the next one has all that came meanwhile.
    writes_during_syncs: bool,
    /// Each sync writes the files' inodes to their places as well, as `sync()` of Linux 3.4 writes the device's dirty buffers.
    inodes_home: bool,
    /// Seconds between checkpoints of a single journal.
    checkpoint_s: f64,
    /// Pages of a file that the writer changes, one after the other in the file.
    pages: u64,
}

impl Host {
    fn new(feed: Feed) -> Host {
        Host {
            feed,
            reads: 2,
            read_bytes: 128 << 10,
            writes_during_syncs: false,
            inodes_home: false,
            checkpoint_s: 5.0,
            pages: 1024,
        }
    }
}

struct Sim {
    host: Host,
    /// Requests that the disk doesn't have yet.
    waiting: VecDeque<Request>,
    model: AnyModel,
    now: Time,
    tag: u64,
    /// Runs of the reader's file: first byte and number of bytes.
    runs: Vec<(u64, u64)>,
    run: usize,
    at: u64,
    read_bytes: u64,
    head: u64,
    reading: usize,
    on: bool,
}

/// The modelled disk: whoever calls it waits in virtual time, while the reader goes on.
struct SimDisk {
    content: MemDisk,
    sim: Mutex<Sim>,
}

impl Sim {
    fn has_room(&self, kept: usize) -> bool {
        self.host.feed != Feed::Tags || self.model.outstanding() + kept < self.model.queue_max()
    }

    fn submit(&mut self, r: Request) {
        self.waiting.push_back(r);
        self.dispatch();
    }

    fn dispatch(&mut self) {
        while self.host.feed == Feed::Tags || self.model.outstanding() == 0 {
            let Some(r) = self.waiting.pop_front() else { break };
            self.model.submit(self.now, r);
        }
    }

    fn read_on(&mut self) {
        while !self.runs.is_empty() && self.reading < self.host.reads && self.has_room(0) {
            let (start, len) = self.runs[self.run];
            let bytes = self.host.read_bytes.min(len - self.at);
            self.tag += 1;
            self.submit(Request { tag: READER + self.tag, op: Op::Read, offset: start + self.at, len: bytes });
            self.reading += 1;
            self.head = (start + self.at) / BLOCK as u64;
            self.at += bytes;
            if self.at == len {
                (self.at, self.run) = (0, (self.run + 1) % self.runs.len());
            }
        }
    }

    /// The next event, but not beyond `until`; how many of the caller's requests it ended.
    fn step(&mut self, until: Time) -> usize {
        self.now = self.model.next_event().min(until).max(self.now);
        let mut done: Vec<Done> = Vec::new();
        self.model.advance(self.now, &mut done);
        let mine = done.iter().filter(|d| d.tag < READER).count();
        self.reading -= done.len() - mine;
        self.read_bytes += (done.len() - mine) as u64 * self.host.read_bytes;
        self.read_on();
        self.dispatch();
        mine
    }

    fn requests(&mut self, all: impl Iterator<Item = (Op, u64, u64)>) {
        let mut left = 0;
        let window = if let Feed::Fifo(n) = self.host.feed { n } else { usize::MAX };
        for (op, offset, len) in all {
            // The reader keeps its place in the queue.
            while !self.has_room(self.host.reads - 1) || left >= window {
                left -= self.step(Time::NEVER);
            }
            self.tag += 1;
            self.submit(Request { tag: self.tag, op, offset, len });
            left += 1;
        }
        while left > 0 {
            left -= self.step(Time::NEVER);
        }
    }
}

impl Disk for SimDisk {
    fn blocks(&self) -> u64 {
        self.content.blocks()
    }

    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        let mut sim = self.sim.lock().unwrap();
        if sim.on {
            sim.requests([(Op::Read, block * BLOCK as u64, into.len() as u64)].into_iter());
        }
        self.content.read(block, into)
    }

    fn write(&self, writes: &[Write]) -> io::Result<()> {
        let mut sim = self.sim.lock().unwrap();
        if sim.on {
            // In pieces of at most 512 KiB, as block layers make them.
            let piece = 512 << 10;
            sim.requests(writes.iter().flat_map(|w| {
                let (from, len) = (w.block * BLOCK as u64, w.data.len() as u64);
                (0..len)
                    .step_by(piece as usize)
                    .map(move |at| (Op::Write { fua: false }, from + at, piece.min(len - at)))
            }));
        }
        self.content.write(writes)
    }

    fn flush(&self) -> io::Result<()> {
        let mut sim = self.sim.lock().unwrap();
        if sim.on {
            sim.requests([(Op::Flush, 0, 0)].into_iter());
        }
        Ok(())
    }
}

struct Outcome {
    kept_percent: f64,
    sync_ms: f64,
    writes_per_s: f64,
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A file system with 20 files in each twentieth of the disk and a file of 2 GiB in the middle.
fn prepare(mode: Mode, host: Host, seed: u64) -> (Arc<SimDisk>, Fs, Vec<u64>) {
    let spec = DeviceSpec::named("cheetah-15k5").unwrap();
    let model = spec.build(DeviceOptions { seed, mismatch: 0.0 }).unwrap();
    let blocks = model.size_bytes() / BLOCK as u64;
    let sim = Sim {
        host,
        waiting: VecDeque::new(),
        model,
        now: Time::ZERO,
        tag: 0,
        runs: Vec::new(),
        run: 0,
        at: 0,
        read_bytes: 0,
        head: 0,
        reading: 0,
        on: false,
    };
    let disk = Arc::new(SimDisk { content: MemDisk::new(blocks), sim: Mutex::new(sim) });
    // The paper's journal has 5 GB; logs of 10 MB in 100 MB, writes up to 32 KB in logs.
    let format = Format { journal_blocks: (5 << 30) / BLOCK as u64, ..Format::new(1, mode, blocks) };
    mkfs(disk.clone(), format, (0, 0)).unwrap();
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    // Each directory is in a group of its own, one after the other.
    let groups = fs.info().groups as usize;
    let dirs: Vec<u64> = (0..groups - 4)
        .map(|i| {
            if fs.must_commit() {
                fs.sync(None).unwrap();
            }
            fs.create(ROOT, format!("d{i}").as_bytes(), 0o040_755, (0, 0), 0).unwrap().ino
        })
        .collect();
    let big = fs.create(dirs[groups / 2], b"big", 0o100_644, (0, 0), 0).unwrap().ino;
    fs.fallocate(big, plimsoll_fs::Fallocate::Allocate, 0, FILE_BYTES, false).unwrap();
    let files: Vec<u64> = (0..FILES)
        .map(|i| {
            let ino = fs.create(dirs[i * (groups - 8) / FILES + 2], b"f", 0o100_644, (0, 0), 0).unwrap().ino;
            fs.write(ino, 0, &vec![1; 4 << 20]).unwrap();
            fs.sync(Some(ino)).unwrap();
            ino
        })
        .collect();
    fs.sync(None).unwrap();
    fs.checkpoint().unwrap();
    let runs = fs.map(big).unwrap().into_iter().map(|(_, at, len)| (at * BLOCK as u64, len * BLOCK as u64)).collect();
    disk.sim.lock().unwrap().runs = runs;
    (disk, fs, files)
}

fn run(mode: Mode, host: Host, writes_per_s: u64, seconds: u64, seed: u64) -> Outcome {
    let (disk, mut fs, files) = prepare(mode, host, seed);
    let at = |s: f64| Time::from_nanos((s * 1e9) as u64);
    let wait = |until: Time| {
        let mut sim = disk.sim.lock().unwrap();
        while sim.now < until {
            sim.step(until);
        }
    };
    {
        let mut sim = disk.sim.lock().unwrap();
        sim.on = true;
        sim.read_on();
    }
    let alone = 3.0;
    wait(at(alone));
    let base = disk.sim.lock().unwrap().read_bytes as f64 / alone;
    let (mut rng, mut due, mut syncs, mut written, mut spent) = (Rng(seed), at(alone), 0u64, 0, 0.0);
    let end = at(alone + seconds as f64);
    let (from, before) = {
        let sim = disk.sim.lock().unwrap();
        (sim.now, sim.read_bytes)
    };
    let mut checkpoint = at(alone + host.checkpoint_s);
    // Their groups' tables are before the files.
    let inodes: Vec<u64> = files.iter().map(|&f| fs.map(f).unwrap()[0].1 - 1000).collect();
    let (mut last, mut carried) = (at(alone), FILES as f64);
    let period = FILES as f64 / writes_per_s as f64;
    loop {
        wait(due);
        let began = disk.sim.lock().unwrap().now;
        if began >= end {
            break;
        }
        due = at(began.max(due).as_secs_f64() + period);
        fs.set_now((began.as_secs_f64() as i64, 0));
        if host.writes_during_syncs {
            carried += began.since(last).as_secs_f64() * writes_per_s as f64 - FILES as f64;
            last = began;
        }
        let count = if host.writes_during_syncs { FILES + carried.max(0.0) as usize } else { FILES };
        carried -= (count - FILES) as f64;
        for &ino in files.iter().cycle().take(count) {
            fs.write(ino, rng.below(host.pages) * BLOCK as u64, &[7; BLOCK]).unwrap();
        }
        let head = disk.sim.lock().unwrap().head;
        fs.set_head(head);
        fs.sync(None).unwrap();
        if host.inodes_home {
            let write = Op::Write { fua: false };
            disk.sim.lock().unwrap().requests(inodes.iter().map(|&b| (write, b * BLOCK as u64, BLOCK as u64)));
        }
        let now = disk.sim.lock().unwrap().now;
        spent += now.since(began).as_millis_f64();
        syncs += 1;
        written += count;
        // Single journals are checkpointed every five seconds, scattered logs not in the time of a run.
        if mode != Mode::Manylogs && now >= checkpoint {
            fs.checkpoint().unwrap();
            checkpoint = at(now.as_secs_f64() + host.checkpoint_s);
        }
    }
    let sim = disk.sim.lock().unwrap();
    let took = sim.now.since(from).as_secs_f64();
    Outcome {
        kept_percent: (sim.read_bytes - before) as f64 / took / base * 100.0,
        sync_ms: spent / syncs as f64,
        writes_per_s: written as f64 / took,
    }
}

/// Kept bandwidth and syncs of all modes at 40 and 320 writes a second.
fn figures(feed: Feed) -> BTreeMap<(u64, &'static str), Outcome> {
    let seconds = std::env::var("PLIMSOLL_FS_SECONDS").map_or(6, |v| v.parse().expect("seconds"));
    let mut kept = BTreeMap::new();
    println!("{feed:?}\nmode       asked  done writes/s  kept %  sync ms   (a model's)");
    for rate in [40, 320] {
        for mode in Mode::ALL {
            let o = run(mode, Host::new(feed), rate, seconds, 1);
            println!(
                "{:<10} {rate:>5} {:>14.0} {:>7.1} {:>8.1}",
                mode.name(),
                o.writes_per_s,
                o.kept_percent,
                o.sync_ms
            );
            kept.insert((rate, mode.name()), o);
        }
    }
    kept
}

#[test]
fn manylogs_keeps_most() {
    for feed in [Feed::Tags, FIFO, ALTERNATE] {
        let kept = figures(feed);
        for rate in [40, 320] {
            let of = |m: Mode| &kept[&(rate, m.name())];
            let percent = |m: Mode| of(m).kept_percent;
            assert!(percent(Mode::Manylogs) > percent(Mode::Adaptive), "scattered logs keep more than one at {rate}/s");
            assert!(percent(Mode::Adaptive) > percent(Mode::Ordered), "one journal keeps more than none at {rate}/s");
            assert!(of(Mode::Manylogs).sync_ms < of(Mode::Ordered).sync_ms, "syncs are shorter at {rate}/s");
            // Below the figures of docs/results/notes/fs.md, so that a log that costs the reader more is noticed.
            let (kept, sync) = (percent(Mode::Manylogs), of(Mode::Manylogs).sync_ms);
            let least = if rate == 40 { 97.0 } else { 64.0 };
            assert!(kept >= least, "{feed:?} at {rate}/s: {kept} % kept");
            assert!(sync <= 40.0, "{feed:?} at {rate}/s: syncs take {sync} ms");
        }
        if feed == ALTERNATE {
            // The paper has 57 % and 209 ms: at this rate a host that alternates explains its figures.
            let ordered = &kept[&(40, "ordered")];
            assert!((57.0 * 0.8..57.0 * 1.2).contains(&ordered.kept_percent), "{}", ordered.kept_percent);
            assert!((209.0 * 0.8..209.0 * 1.2).contains(&ordered.sync_ms), "{}", ordered.sync_ms);
        }
    }
}

/// Suspects of the difference from the paper's figures at 320 writes a second, one by one and together.
#[test]
fn suspects_of_the_difference_at_320_writes() {
    type Change = fn(&mut Host);
    let during: Change = |h| h.writes_during_syncs = true;
    let small: Change = |h| h.pages = 32;
    let read: Change = |h| (h.reads, h.read_bytes) = (1, 64 << 10);
    let inodes: Change = |h| (h.inodes_home, h.feed) = (true, Feed::Fifo(2));
    let alone: [(&str, &[Change]); 5] = [
        ("none", &[]),
        ("small files", &[small]),
        ("one read of 64 KiB", &[read]),
        ("checkpoint each second", &[|h| h.checkpoint_s = 1.0]),
        ("inodes home, 2 writes a turn", &[inodes]),
    ];
    let together: [(&str, &[Change]); 4] = [
        ("writes during syncs", &[during]),
        ("and small files", &[during, small]),
        ("and one read of 64 KiB", &[during, small, read]),
        ("and inodes home, 2 writes a turn", &[during, small, read, inodes]),
    ];
    let both = |mode: Mode, what: &str, changes: &[Change]| {
        let mut host = Host::new(ALTERNATE);
        changes.iter().for_each(|c| c(&mut host));
        let all = [40, 320].map(|rate| run(mode, host, rate, 12, 1));
        let text = |o: &Outcome| format!("{:5.1} {:5.0} {:4.0}", o.kept_percent, o.sync_ms, o.writes_per_s);
        println!("{:<9} {what:<33} {} | {}", mode.name(), text(&all[0]), text(&all[1]));
        all
    };
    println!("kept %, sync ms, writes/s: at 40 | at 320 (a model's)");
    for (what, changes) in alone {
        let [_, o] = both(Mode::Ordered, what, changes);
        assert!(o.sync_ms < 919.0 / 2.0, "without writes during syncs {what} explains the paper's: {} ms", o.sync_ms);
    }
    let [.., last] = together.map(|(what, changes)| both(Mode::Ordered, what, changes));
    for mode in [Mode::Adaptive, Mode::Manylogs] {
        for (what, changes) in &together[2..] {
            let _ = both(mode, what, changes);
        }
    }
    for (o, paper) in last.iter().zip([(57.0, 209.0), (5.0, 919.0)]) {
        for (ours, paper) in [(o.kept_percent, paper.0), (o.sync_ms, paper.1)] {
            assert!((paper * 0.8..paper * 1.2).contains(&ours), "{ours}, the paper's {paper}");
        }
    }
}
