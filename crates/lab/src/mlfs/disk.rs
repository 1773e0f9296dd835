//! The disk below the file system: its content is in memory, its time a model's.

use plimsoll_base::Time;
use plimsoll_device::{AnyModel, DeviceOptions, DeviceSpec, Done, Model, Op, Raid0, Request};
use plimsoll_fs::{BLOCK, Disk, Write};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// The host between file system and disk, as far as it is assumed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Host {
    /// Requests in each disk at once. The disk orders them; those that wait outside are served as they came.
    pub depth: usize,
    /// Requests that a client has in the disks or waiting before them.
    pub window: usize,
    /// The stream's requests in flight, for each disk.
    pub stream_depth: usize,
    /// Bytes of one of the stream's requests.
    pub stream_bytes: u64,
}

impl Host {
    /// All requests are in the disk, which serves the nearest first. Room is left for the stream.
    pub const TAGS: Host = Host { depth: 32, window: 24, ..Host::ALTERNATE };
    /// One request is in the disk, the others follow in the order of their coming.
    pub const FIFO: Host = Host { window: 256, ..Host::ALTERNATE };
    /// As FIFO, but a client's next write comes when the one before has ended. So the stream has its turn between two.
    pub const ALTERNATE: Host = Host { depth: 1, window: 1, stream_depth: 2, stream_bytes: 128 << 10 };
}

/// A device with the host's queue before it.
struct Queue {
    model: AnyModel,
    depth: usize,
    waiting: VecDeque<Request>,
}

/// Far beyond what all clients' windows can hold.
const WAITING_MAX: usize = 8192;

impl Queue {
    fn feed(&mut self, now: Time) {
        while self.model.outstanding() < self.depth.min(self.model.queue_max()) {
            let Some(r) = self.waiting.pop_front() else { break };
            self.model.submit(now, r);
        }
    }
}

impl Model for Queue {
    fn size_bytes(&self) -> u64 {
        self.model.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.model.block_bytes()
    }
    fn submit(&mut self, now: Time, req: Request) {
        self.waiting.push_back(req);
        self.feed(now);
    }
    fn next_event(&self) -> Time {
        self.model.next_event()
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        self.model.advance(now, done);
        self.feed(now);
    }
    fn outstanding(&self) -> usize {
        self.model.outstanding() + self.waiting.len()
    }
    fn queue_max(&self) -> usize {
        WAITING_MAX
    }
}

/// Content of a block. Most are all of one byte: pages that no one reads.
enum Content {
    Same(u8),
    Bytes(Arc<[u8]>),
}

/// Requests of one client.
#[derive(Default)]
struct Held {
    /// Not in the queue yet.
    waiting: VecDeque<Request>,
    queued: usize,
}

/// A sequential stream that passes by the file system: its file's blocks are known.
#[derive(Default)]
struct Stream {
    op: Option<Op>,
    /// First byte and length of each run.
    runs: Vec<(u64, u64)>,
    run: usize,
    at: u64,
    in_flight: usize,
    bytes: u64,
}

struct Timing {
    model: Raid0<Queue>,
    members: usize,
    host: Host,
    now: Time,
    tag: u64,
    /// Client of each outstanding request, or the stream's bytes.
    owners: BTreeMap<u64, Owner>,
    clients: Vec<Held>,
    stream: Stream,
    /// Block of the stream's last request.
    head: u64,
    is_on: bool,
}

enum Owner {
    Client(usize),
    Stream(u64),
}

/// The client of calls that wait within the file system.
const CALLER: usize = 0;
/// Block layers cut writes into pieces of at most this number of bytes.
pub const PIECE: u64 = 512 << 10;

impl Timing {
    /// The next event, but not beyond `until`.
    fn step(&mut self, until: Time) {
        self.now = self.model.next_event().min(until).max(self.now);
        let mut done: Vec<Done> = Vec::new();
        self.model.advance(self.now, &mut done);
        for d in done {
            match self.owners.remove(&d.tag).expect("each request has an owner") {
                Owner::Client(c) => self.clients[c].queued -= 1,
                Owner::Stream(bytes) => {
                    self.stream.in_flight -= 1;
                    self.stream.bytes += bytes;
                }
            }
        }
        self.feed();
    }

    fn submit(&mut self, mut r: Request, owner: Owner) {
        self.tag += 1;
        r.tag = self.tag;
        self.owners.insert(r.tag, owner);
        self.model.submit(self.now, r);
    }

    /// The stream goes on, then clients that have room.
    fn feed(&mut self) {
        while let Some(op) = self.stream.op
            && self.stream.in_flight < self.host.stream_depth * self.members
        {
            let (start, len) = self.stream.runs[self.stream.run];
            let offset = start + self.stream.at;
            let bytes = self.host.stream_bytes.min(len - self.stream.at);
            self.stream.at += bytes;
            if self.stream.at == len {
                (self.stream.at, self.stream.run) = (0, (self.stream.run + 1) % self.stream.runs.len());
            }
            self.stream.in_flight += 1;
            self.head = offset / BLOCK as u64;
            self.submit(Request { tag: 0, op, offset, len: bytes }, Owner::Stream(bytes));
        }
        for c in 0..self.clients.len() {
            while self.clients[c].queued < self.host.window
                && let Some(r) = self.clients[c].waiting.pop_front()
            {
                self.clients[c].queued += 1;
                self.submit(r, Owner::Client(c));
            }
        }
    }

    fn request(&mut self, client: usize, op: Op, offset: u64, len: u64) {
        self.clients[client].waiting.push_back(Request { tag: 0, op, offset, len });
    }

    fn is_idle(&self, client: usize) -> bool {
        let c = &self.clients[client];
        c.queued == 0 && c.waiting.is_empty()
    }

    /// A caller within the file system waits, while all else goes on.
    fn wait(&mut self) {
        self.feed();
        while !self.is_idle(CALLER) {
            self.step(Time::NEVER);
        }
    }
}

/// The modelled disk, or several striped. A call of [`Disk`] waits in virtual time, while the stream and other clients' requests go on.
pub struct SimDisk {
    content: Mutex<BTreeMap<u64, Content>>,
    timing: Mutex<Timing>,
    blocks: u64,
}

impl SimDisk {
    /// Disks of one kind under `host`, striped by chunks of 64 KiB (Manylogs §V-A), for that number of clients. The first minutes, in which a
    /// file system is prepared, take no time: see [`SimDisk::turn_on`].
    ///
    /// # Errors
    /// If there is no such device.
    pub fn new(device: &str, disks: usize, host: Host, clients: usize, seed: u64) -> Result<SimDisk, String> {
        let spec = DeviceSpec::named(device).map_err(|e| e.to_string())?;
        let member = |i: usize| {
            let options = DeviceOptions { seed: seed.wrapping_mul(64) + i as u64, mismatch: 0.15 };
            let model = spec.build(options).map_err(|e| e.to_string())?;
            Ok(Queue { model, depth: host.depth, waiting: VecDeque::new() })
        };
        let members = (0..disks).map(member).collect::<Result<Vec<Queue>, String>>()?;
        let model = Raid0::new(members, 64 << 10).map_err(|e| e.to_string())?;
        let blocks = model.size_bytes() / BLOCK as u64;
        let timing = Timing {
            model,
            members: disks,
            host,
            now: Time::ZERO,
            tag: 0,
            owners: BTreeMap::new(),
            clients: (0..=clients).map(|_| Held::default()).collect(),
            stream: Stream::default(),
            head: 0,
            is_on: false,
        };
        Ok(SimDisk { content: Mutex::default(), timing: Mutex::new(timing), blocks })
    }

    fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().expect("no panic under the lock")
    }

    /// From now on requests take time.
    pub fn turn_on(&self) {
        self.timing().is_on = true;
    }

    /// Begins a stream through the runs of a file, each a first block and a number of blocks, again and again.
    pub fn stream(&self, op: Op, runs: &[(u64, u64)]) {
        let mut t = self.timing();
        let bytes = |n: u64| n * BLOCK as u64;
        t.stream.runs = runs.iter().map(|&(at, len)| (bytes(at), bytes(len))).collect();
        t.stream.op = Some(op);
        t.feed();
    }

    /// Bytes of the stream that have been moved.
    pub fn stream_bytes(&self) -> u64 {
        self.timing().stream.bytes
    }

    /// The stream's last block, if there is a stream.
    pub fn head(&self) -> Option<u64> {
        let t = self.timing();
        t.stream.op.map(|_| t.head)
    }

    /// The virtual time.
    pub fn now(&self) -> Time {
        self.timing().now
    }

    /// The next event, but not beyond `until`.
    pub fn step(&self, until: Time) {
        self.timing().step(until);
    }

    /// Begins a client's writes, or its flush if there are none.
    pub fn begin(&self, client: usize, writes: &[Write]) {
        self.store(writes);
        let mut t = self.timing();
        t.requests(client + 1, writes);
        t.feed();
    }

    /// True if all requests of a client have ended.
    pub fn is_idle(&self, client: usize) -> bool {
        self.timing().is_idle(client + 1)
    }

    fn store(&self, writes: &[Write]) {
        let mut content = self.content.lock().expect("no panic under the lock");
        for w in writes {
            for (at, data) in (w.block..).zip(&w.data) {
                let is_same = data[1..] == data[..BLOCK - 1];
                content.insert(at, if is_same { Content::Same(data[0]) } else { Content::Bytes(data.clone()) });
            }
        }
    }
}

impl Timing {
    fn requests(&mut self, client: usize, writes: &[Write]) {
        if writes.is_empty() {
            self.request(client, Op::Flush, 0, 0);
        }
        for w in writes {
            let (from, len) = (w.block * BLOCK as u64, (w.data.len() * BLOCK) as u64);
            for at in (0..len).step_by(PIECE as usize) {
                self.request(client, Op::Write { fua: false }, from + at, PIECE.min(len - at));
            }
        }
    }
}

impl Disk for SimDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        let mut t = self.timing();
        if t.is_on {
            t.request(CALLER, Op::Read, block * BLOCK as u64, into.len() as u64);
            t.wait();
        }
        let content = self.content.lock().expect("no panic under the lock");
        for (i, part) in into.chunks_mut(BLOCK).enumerate() {
            match content.get(&(block + i as u64)) {
                Some(Content::Bytes(data)) => part.copy_from_slice(data),
                Some(Content::Same(byte)) => part.fill(*byte),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[Write]) -> io::Result<()> {
        self.store(writes);
        let mut t = self.timing();
        if t.is_on && !writes.is_empty() {
            t.requests(CALLER, writes);
            t.wait();
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut t = self.timing();
        if t.is_on {
            t.requests(CALLER, &[]);
            t.wait();
        }
        Ok(())
    }
}
