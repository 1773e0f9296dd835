//! A pool's thread by itself, at its bounds: a stack that is full, a client that doesn't take its answers.

use plimsoll_base::{Priority, TenantId, VolumeKey};
use plimsoll_device::{DeviceOptions, DeviceSpec, ModelLayer};
use plimsoll_nbd::request::Rules;
use plimsoll_nbd::wire::{MetaContexts, TransmissionFlags};
use plimsoll_node::engine::{Command, Device, Devices, ExportParams, FileDevice, Pool, PoolHandle, PoolOptions};
use plimsoll_stack::{Extent, Front, FrontVolume, Map, Stack, StackConfig, Target};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::Duration;

const SIZE_BYTES: u64 = 64 << 20;
const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };

struct Running {
    handle: PoolHandle,
    thread: JoinHandle<std::io::Result<()>>,
    _file: tempfile::NamedTempFile,
}

/// A pool over a modelled disk of which `inflight_max` requests at most are inside.
fn start(inflight_max: usize, client_end: Duration) -> Running {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(SIZE_BYTES).unwrap();
    let device = FileDevice { file: file.reopen().unwrap(), start: 0, len: SIZE_BYTES, block_bytes: 512 };
    let devices = Devices::new(vec![Device::File(device)]);
    let model = DeviceSpec::named("cheetah-15k5").unwrap().at_most(SIZE_BYTES).build(DeviceOptions::default()).unwrap();
    let mut stack = Stack::new(StackConfig { inflight_max, ..StackConfig::default() }, devices.offers());
    stack.push(Box::new(Front::new()), vec![Target::Node(1)]);
    stack.push(Box::new(Map::new()), vec![Target::Node(2)]);
    stack.push(Box::new(ModelLayer::new(model)), vec![Target::Device(0)]);
    let (handle, ears) = PoolHandle::new().unwrap();
    let options = PoolOptions { precise_timers: false, trace_every: 0, client_end, workers_max: 1 };
    let thread = std::thread::spawn(move || Pool::new(stack, None, devices, ears, options).and_then(Pool::run));
    let (reply, answer) = tokio::sync::oneshot::channel();
    let front = FrontVolume { size_bytes: SIZE_BYTES, read_only: false };
    let extents = vec![Extent { device_offset: 0, len: SIZE_BYTES }];
    handle.send(Command::SetVolume { key: VOLUME, front, extents, reply }).unwrap();
    answer.blocking_recv().unwrap();
    Running { handle, thread, _file: file }
}

impl Running {
    fn connect(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let rules = Rules {
            size_bytes: SIZE_BYTES,
            flags: TransmissionFlags::SEND_FLUSH,
            block_bytes_min: 1,
            payload_bytes_max: 32 << 20,
            structured_replies: false,
            block_status: false,
        };
        let params = ExportParams {
            volume: VOLUME,
            tenant: TenantId(1),
            deadline: None,
            auto: None,
            priority: Priority::DEFAULT,
            rules,
            meta_contexts: MetaContexts::EMPTY,
        };
        self.handle.send(Command::Attach { fd: theirs.into(), params, early: Vec::new() }).unwrap();
        ours
    }

    fn end(self) {
        self.handle.send(Command::Shutdown).unwrap();
        self.thread.join().unwrap().unwrap();
    }
}

/// A READ's header as it goes over the wire.
fn read_request(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut b = 0x2560_9513_u32.to_be_bytes().to_vec();
    b.extend([0, 0, 0, 0]);
    b.extend(cookie.to_be_bytes());
    b.extend(offset.to_be_bytes());
    b.extend(length.to_be_bytes());
    b
}

#[test]
fn a_full_stack_takes_the_rest_later_and_answers_each_once() {
    const MANY: u64 = 40;
    let pool = start(2, Duration::from_secs(10));
    let mut clients: Vec<UnixStream> = (0..3).map(|_| pool.connect()).collect();
    for client in &mut clients {
        let requests: Vec<u8> = (0..MANY).flat_map(|n| read_request(n, n * (1 << 20), 512)).collect();
        client.write_all(&requests).unwrap();
    }
    for client in &mut clients {
        let mut seen = Vec::new();
        for _ in 0..MANY {
            let mut reply = [0; 16 + 512];
            client.read_exact(&mut reply).unwrap();
            assert_eq!(reply[..8], [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0], "a simple reply without an error");
            seen.push(u64::from_be_bytes(reply[8..16].try_into().unwrap()));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..MANY).collect::<Vec<_>>());
    }
    drop(clients);
    pool.end();
}

#[test]
fn a_client_that_takes_no_answers_does_not_keep_the_pool_from_ending() {
    let pool = start(100, Duration::from_millis(50));
    let mut deaf = pool.connect();
    let mut good = pool.connect();
    // More than a socket's buffers hold, so that answers are left over.
    let requests: Vec<u8> = (0..8).flat_map(|n| read_request(n, n * (4 << 20), 4 << 20)).collect();
    deaf.write_all(&requests).unwrap();
    deaf.read_exact(&mut [0; 16]).unwrap();
    good.write_all(&read_request(9, 0, 512)).unwrap();
    let mut answer = [0; 16 + 512];
    good.read_exact(&mut answer).unwrap();
    pool.end();
    assert_eq!(good.read(&mut answer).unwrap(), 0, "who listens hears the end");
    let mut rest = Vec::new();
    let _ = deaf.read_to_end(&mut rest); // with what was still under way, or an error
    assert!(rest.len() < 8 * (4 << 20), "the deaf one was let go");
}
