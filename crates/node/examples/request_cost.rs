//! Instructions of a pool's thread per request: `request_cost REQUESTS DEPTH [read | write]`. 4 KiB requests at random places of
//! a null device, `DEPTH` at a time, through front, map and the default scheduler, over a socket.
//!
//! The client is a process of its own and ends this one, so that `valgrind --tool=callgrind` counts the pool's thread only.
//! `bench/request_cost.py` divides the difference of two lengths.

use plimsoll_base::{Class, OnBusy, Priority, TenantId, VolumeKey};
use plimsoll_nbd::request::Rules;
use plimsoll_nbd::wire::{MetaContexts, TransmissionFlags};
use plimsoll_node::engine::{
    Command, Device, Devices, ExportParams, PermitLimits, Pool, PoolHandle, PoolOptions, Wire,
};
use plimsoll_node::replica::Replica;
use plimsoll_sched::{DiskModel, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Extent, Front, FrontVolume, Map, Stack, StackConfig, Target, Terms, VolumeTerms};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::Arc;

const SIZE_BYTES: u64 = 256 << 20;
const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };
const TENANT: TenantId = TenantId(1);
const BYTES: u32 = 4096;
const WRITE: u8 = 1;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("--client") => client(&args[1..]),
        _ => serve(&args),
    }
}

fn serve(args: &[String]) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let devices = Devices::new(vec![Device::Null { size_bytes: SIZE_BYTES }]);
    let mut stack = Stack::new(StackConfig::default(), devices.offers());
    stack.push(Box::new(Front::new()), vec![Target::Node(1)]);
    stack.push(Box::new(Map::new()), vec![Target::Node(2)]);
    let queue = SchedulerOptions { depth: 32, ..SchedulerOptions::default() };
    stack.push(SchedulerKind::Noop.layer(&queue, DiskModel::unknown(SIZE_BYTES)), vec![Target::Device(0)]);
    let (handle, receiver) = PoolHandle::new().unwrap();
    let options = PoolOptions { trace_every: 0, ..PoolOptions::default() };

    // Valgrind runs one thread at a time: commands are sent before the pool takes this thread, and nobody waits for answers.
    let (reply, _answer) = tokio::sync::oneshot::channel();
    let front = FrontVolume { size_bytes: SIZE_BYTES, read_only: false };
    let extents = vec![Extent { device_offset: 0, len: SIZE_BYTES }];
    let terms = VolumeTerms { size_bytes: SIZE_BYTES, tenant: 1, own: plimsoll_stack::OwnTerms::default() };
    handle.send(Command::SetVolume { key: VOLUME, front, extents, terms, reply }).unwrap();
    let limits = PermitLimits::default();
    let terms = Terms::of(Class::BestEffort { weight: 1 }, limits.jobs_max);
    handle.send(Command::SetTenant { tenant: TENANT, limits, terms }).unwrap();
    handle
        .send(Command::Attach { fd: Arc::new(ours.into()), params: export(), early: Vec::new(), seat: None })
        .unwrap();

    let program = std::env::current_exe().unwrap();
    let input = Stdio::from(OwnedFd::from(theirs));
    let mut client = std::process::Command::new(program).arg("--client").args(args).stdin(input).spawn().unwrap();
    Pool::new(stack, None, devices, receiver, options).and_then(Pool::run).unwrap();
    client.wait().unwrap();
}

fn export() -> ExportParams {
    let rules = Rules {
        size_bytes: SIZE_BYTES,
        flags: TransmissionFlags::SEND_FLUSH,
        block_bytes_min: 1,
        payload_bytes_max: 32 << 20,
        structured_replies: false,
        block_status: false,
        promises: false,
    };
    ExportParams {
        peer: "example".into(),
        volume: VOLUME,
        tenant: TENANT,
        deadline: None,
        on_busy: OnBusy::Wait,
        auto: None,
        as_of: 0,
        priority: Priority::DEFAULT,
        wire: Wire::Nbd { rules, meta_contexts: MetaContexts::EMPTY },
        replica: Replica::new(SIZE_BYTES, Default::default(), None),
        used_as: None,
    }
}

/// Sends `DEPTH` requests at once, waits for all their answers, and so on; then ends the server.
fn client(args: &[String]) {
    let number = |i: usize| args[i].parse::<u64>().expect("a number");
    let (requests, depth) = (number(0), number(1));
    let writes = args.get(2).is_some_and(|a| a == "write");
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().expect("a socket"));
    let mut place = 1u64;
    let mut answers = vec![0; (depth * u64::from(if writes { 16 } else { 16 + BYTES })) as usize];
    let mut burst = Vec::new();
    for _ in 0..requests / depth {
        burst.clear();
        for cookie in 0..depth {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (place >> 33) % (SIZE_BYTES / u64::from(BYTES)) * u64::from(BYTES);
            burst.extend(0x2560_9513_u32.to_be_bytes());
            burst.extend([0, 0, 0, if writes { WRITE } else { 0 }]);
            burst.extend(cookie.to_be_bytes());
            burst.extend(offset.to_be_bytes());
            burst.extend(BYTES.to_be_bytes());
            if writes {
                burst.resize(burst.len() + BYTES as usize, 7);
            }
        }
        socket.write_all(&burst).unwrap();
        socket.read_exact(&mut answers).unwrap();
    }
    let server = rustix::process::getppid().expect("a parent");
    rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
    // Valgrind takes a signal only between system calls, so the server is kept awake until it has ended.
    while socket.write_all(&burst).is_ok() && socket.read_exact(&mut answers).is_ok() {}
}
