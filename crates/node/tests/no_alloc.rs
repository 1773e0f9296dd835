//! Requests of a warmed connection on their pool's thread: reads and writes from a connection's own buffers, and larger writes, allocate
//! nothing. A larger read and a flush allocate once each. NVMe/TCP costs what NBD costs.

use plimsoll_base::{OnBusy, Priority, TenantId, VolumeKey};
use plimsoll_nbd::request::Rules;
use plimsoll_nbd::wire::{MetaContexts, TransmissionFlags};
use plimsoll_node::engine::{
    Command, Device, Devices, ExportParams, FileDevice, HostId, Pool, PoolHandle, PoolOptions, QueueParams, Wire,
};
use plimsoll_node::replica::Replica;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command as HostCommand, Ear, Heard, connect_data, parameters};
use plimsoll_nvme::opening::Opening;
use plimsoll_nvme::pdu::Digests;
use plimsoll_nvme::queue::Namespace;
use plimsoll_sched::{DiskModel, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Extent, Front, FrontVolume, Map, OwnTerms, Stack, StackConfig, Target, VolumeTerms};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

const SIZE_BYTES: u64 = 64 << 20;
const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };
const SMALL: u32 = 4096;
/// Larger than what is received into, or sent from, a connection's own buffer.
const LARGE: u32 = 64 << 10;
/// Requests of a round.
const REQUESTS: u64 = 200;
/// Rounds of which the cheapest counts, at most: some have what happens at intervals, such as a table that grows, or on a busy machine, such as
/// data in more parts.
const ROUNDS: usize = 40;

/// The system's allocator, counting what a pool's thread allocates.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_POOL: Cell<bool> = const { Cell::new(false) };
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the trait's contract. The counting neither allocates nor
// unwinds: both statics are initialised by constants, and have no destructors.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_POOL.get() {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: `layout` has a size above zero, by the caller's contract.
        unsafe { System.alloc(layout) }
    }
    // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `alloc` above, so from `System`, with this layout: by the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

struct Running {
    handle: PoolHandle,
    thread: JoinHandle<std::io::Result<()>>,
    _file: tempfile::NamedTempFile,
}

/// A pool over a file.
fn start() -> Running {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE_BYTES).unwrap();
    let device = FileDevice {
        file: file.reopen().unwrap(),
        start: 0,
        len: SIZE_BYTES,
        block_bytes: 512,
        has_failed_sync: Default::default(),
    };
    let devices = Devices::new(vec![Device::File(device)]);
    let mut stack = Stack::new(StackConfig::default(), devices.offers());
    stack.push(Box::new(Front::new()), vec![Target::Node(1)]);
    stack.push(Box::new(Map::new()), vec![Target::Node(2)]);
    let queue = SchedulerOptions { depth: 32, ..SchedulerOptions::default() };
    stack.push(SchedulerKind::Noop.layer(&queue, DiskModel::unknown(SIZE_BYTES)), vec![Target::Device(0)]);
    let (handle, receiver) = PoolHandle::new().unwrap();
    let options = PoolOptions { trace_every: 0, ..PoolOptions::default() };
    let thread = std::thread::spawn(move || {
        IS_POOL.set(true);
        Pool::new(stack, None, devices, receiver, options).and_then(Pool::run)
    });
    let (reply, answer) = tokio::sync::oneshot::channel();
    let front = FrontVolume { size_bytes: SIZE_BYTES, read_only: false };
    let extents = vec![Extent { device_offset: 0, len: SIZE_BYTES }];
    let terms = VolumeTerms { size_bytes: SIZE_BYTES, tenant: 1, own: OwnTerms::default() };
    handle.send(Command::SetVolume { key: VOLUME, front, extents, terms, reply }).unwrap();
    answer.blocking_recv().unwrap();
    Running { handle, thread, _file: file }
}

impl Running {
    fn connect(&self, wire: Wire) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let params = ExportParams {
            peer: "test".into(),
            volume: VOLUME,
            tenant: TenantId(1),
            deadline: None,
            on_busy: OnBusy::Wait,
            auto: None,
            as_of: 0,
            priority: Priority::DEFAULT,
            wire,
            replica: Replica::new(SIZE_BYTES, Default::default(), None),
            used_as: None,
        };
        let attach = Command::Attach { fd: Arc::new(theirs.into()), params, early: Vec::new(), seat: None };
        self.handle.send(attach).unwrap();
        ours
    }

    fn end(self) {
        self.handle.send(Command::Shutdown).unwrap();
        self.thread.join().unwrap().unwrap();
    }
}

#[derive(Clone, Copy, Debug)]
enum Asks {
    Read(u32),
    Write(u32),
    Flush,
}

const ALL: [Asks; 5] = [Asks::Read(SMALL), Asks::Read(LARGE), Asks::Write(SMALL), Asks::Write(LARGE), Asks::Flush];

/// A client with one request at a time.
trait Client {
    fn ask(&mut self, asks: Asks, offset: u64);
}

struct Nbd(UnixStream);

impl Client for Nbd {
    fn ask(&mut self, asks: Asks, offset: u64) {
        let (command, length, sent, received) = match asks {
            Asks::Read(n) => (0, n, 0, n),
            Asks::Write(n) => (1, n, n, 0),
            Asks::Flush => (3, 0, 0, 0),
        };
        let mut b = 0x2560_9513_u32.to_be_bytes().to_vec();
        b.extend([0, 0, 0, command]);
        b.extend(offset.to_be_bytes());
        b.extend((if length == 0 { 0 } else { offset }).to_be_bytes());
        b.extend(length.to_be_bytes());
        b.resize(b.len() + sent as usize, 7);
        self.0.write_all(&b).unwrap();
        let mut reply = vec![0; 16 + received as usize];
        self.0.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a simple reply without an error");
    }
}

struct Host {
    stream: UnixStream,
    digests: Digests,
    ear: Ear,
    rest: Vec<u8>,
}

impl Host {
    fn hear(&mut self) -> Heard {
        let mut buffer = vec![0; 128 << 10];
        loop {
            let mut input = &self.rest[..];
            let heard = self.ear.take(&mut input).expect("the pool keeps to the protocol");
            self.rest = input.to_vec();
            if let Some(heard) = heard {
                return heard;
            }
            let n = self.stream.read(&mut buffer).unwrap();
            assert!(n > 0, "it has closed");
            self.rest.extend_from_slice(&buffer[..n]);
        }
    }
}

impl Client for Host {
    fn ask(&mut self, asks: Asks, offset: u64) {
        let (mut out, start) = (Vec::new(), offset / 512);
        match asks {
            Asks::Read(n) => HostCommand::read(1, start, n / 512).send(&mut out, self.digests, &[]),
            Asks::Write(SMALL) => {
                HostCommand::write(1, start, SMALL / 512, true).send(&mut out, self.digests, &[7; SMALL as usize]);
            }
            Asks::Write(n) => HostCommand::write(1, start, n / 512, false).send(&mut out, self.digests, &[]),
            Asks::Flush => HostCommand::flush(1).send(&mut out, self.digests, &[]),
        }
        self.stream.write_all(&out).unwrap();
        loop {
            match self.hear() {
                Heard::Done { status: Status::OK, .. } | Heard::Data { done: true, .. } => return,
                ready @ Heard::Ready { .. } => {
                    let mut out = Vec::new();
                    ready.send_data(&mut out, self.digests, &[7; LARGE as usize], LARGE as usize);
                    self.stream.write_all(&out).unwrap();
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn nbd(pool: &Running) -> Nbd {
    let rules = Rules {
        size_bytes: SIZE_BYTES,
        flags: TransmissionFlags::SEND_FLUSH,
        block_bytes_min: 1,
        payload_bytes_max: 32 << 20,
        structured_replies: false,
        block_status: false,
        promises: false,
    };
    Nbd(pool.connect(Wire::Nbd { rules, meta_contexts: MetaContexts::EMPTY }))
}

fn host(pool: &Running, has_digests: bool) -> Host {
    let digests = Digests { header: has_digests, data: has_digests };
    let mut bytes = parameters(digests).to_vec();
    HostCommand::connect(0, 1, 32, 0, false).send(&mut bytes, digests, &connect_data(1, [1; 16], "nqn.h", "nqn.s"));
    let mut opening = Opening::default();
    opening.take(&mut &bytes[..]).unwrap().expect("a Connect");
    let (terms, replies) = opening.accept(1);
    let namespace = Namespace { blocks: SIZE_BYTES / 512, read_only: false };
    let stream = pool.connect(Wire::Nvme(QueueParams { host: HostId([1; 16]), terms, namespace, replies }));
    let mut host = Host { stream, digests, ear: Ear::default(), rest: opening.output().clone() };
    assert!(matches!(host.hear(), Heard::Parameters(..)));
    assert!(matches!(host.hear(), Heard::Done { status: Status::OK, .. }));
    host
}

/// The fewest allocations of a round of these requests, on a connection that has sent some before.
fn allocations(client: &mut dyn Client, asks: Asks) -> u64 {
    let mut round = || {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..REQUESTS).for_each(|n| client.ask(asks, n * u64::from(LARGE)));
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    round();
    let mut fewest = u64::MAX;
    for _ in 0..ROUNDS {
        fewest = fewest.min(round());
        if fewest <= most(asks) * REQUESTS {
            break;
        }
    }
    fewest
}

/// Allocations of one request.
fn most(asks: Asks) -> u64 {
    match asks {
        Asks::Read(LARGE) | Asks::Flush => 1,
        Asks::Read(_) | Asks::Write(_) => 0,
    }
}

#[test]
fn requests_over_nvme_allocate_no_more_than_those_over_nbd() {
    let pool = start();
    let clients: [(&str, Box<dyn Client>); 3] = [
        ("NBD", Box::new(nbd(&pool))),
        ("NVMe/TCP", Box::new(host(&pool, false))),
        ("NVMe/TCP with digests", Box::new(host(&pool, true))),
    ];
    let mut seen = Vec::new();
    for (name, mut client) in clients {
        seen.extend(ALL.map(|asks| (name, asks, allocations(&mut *client, asks))));
    }
    pool.end();
    let others: Vec<_> = seen.iter().filter(|(_, asks, n)| *n != most(*asks) * REQUESTS).collect();
    assert!(others.is_empty(), "allocations of {REQUESTS} requests: {others:?}");
}
