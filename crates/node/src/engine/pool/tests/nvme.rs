//! NVMe/TCP hosts on a pool: writes whose data are fetched.

use super::*;
use crate::engine::nvme::fixture;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command as HostCommand, Ear, Heard};
use plimsoll_nvme::pdu::Digests;

/// A host on its only queue.
struct Host {
    stream: UnixStream,
    ear: Ear,
    digests: Digests,
    /// Not taken apart yet.
    rest: Vec<u8>,
}

impl Host {
    fn connect(s: &mut Scene, digests: bool, change: impl FnOnce(&mut ExportParams)) -> Host {
        let (queue, said) = fixture::connected(digests);
        let mut params = params_of(1, Wire::Nvme(queue));
        change(&mut params);
        let stream = s.attach(params);
        stream.set_nonblocking(true).unwrap();
        let digests = Digests { header: digests, data: digests };
        let mut host = Host { stream, ear: Ear::default(), digests, rest: said };
        assert!(matches!(host.next(), Some(Heard::Parameters(..))));
        assert!(matches!(host.next(), Some(Heard::Done { status: Status::OK, .. })));
        host
    }

    fn send(&mut self, command: HostCommand, data: &[u8]) {
        let mut out = Vec::new();
        command.send(&mut out, self.digests, data);
        self.stream.write_all(&out).unwrap();
    }

    fn next(&mut self) -> Option<Heard> {
        let mut input = &self.rest[..];
        let heard = self.ear.take(&mut input).expect("the node keeps to the protocol");
        self.rest = input.to_vec();
        heard
    }

    /// The next thing that the pool says; `None` if it closes.
    fn hear(&mut self, s: &mut Scene) -> Option<Heard> {
        let (begun, mut buffer) = (Instant::now(), vec![0; 1 << 20]);
        loop {
            if let Some(heard) = self.next() {
                return Some(heard);
            }
            s.round();
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.rest.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(_) => assert!(begun.elapsed() < Duration::from_secs(60), "the pool says nothing"),
            }
        }
    }

    /// The status of the next command to end.
    fn status(&mut self, s: &mut Scene) -> Status {
        match self.hear(s) {
            Some(Heard::Done { status, .. }) => status,
            Some(Heard::Data { done: true, .. }) => Status::OK,
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, s: &mut Scene, command: HostCommand, data: &[u8]) -> Status {
        self.send(command, data);
        self.status(s)
    }
}

fn volatile_scene(limits: PermitLimits) -> Scene {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&vec![0; 4 * SIZE_BYTES as usize]).unwrap();
    let device = FileDevice { file, start: 0, len: 4 * SIZE_BYTES, block_bytes: 512 };
    let mut s = flat_scene(Device::File(device), limits);
    s.set_volume(1);
    s
}

/// Data that were asked for and damaged on their way: the host sends the write again, and nothing of it was written. The connection,
/// and what else is on it, goes on.
#[test]
fn fetched_data_that_are_damaged_change_nothing() {
    const BYTES: usize = 128 << 10;
    let mut s = volatile_scene(PermitLimits { jobs_max: 8, bytes_max: 1 << 20 });
    let mut host = Host::connect(&mut s, true, |_| ());
    let data = vec![7; BYTES];
    // More rounds than the tenant has room for payloads: each gives its room back.
    for n in 0..20u16 {
        host.send(HostCommand::write(n, 0, BYTES as u32 / 512, false), &[]);
        let ready = host.hear(&mut s).expect("it is asked for the data");
        let mut out = Vec::new();
        // In one PDU, or in several of which the first or another is damaged.
        ready.send_data(&mut out, host.digests, &data, [BYTES, 10_000, 50_000][usize::from(n) % 3]);
        out[[100, 5000, 100_000][usize::from(n) % 3]] ^= 1;
        host.send(HostCommand::flush(100), &[]);
        host.stream.write_all(&out).unwrap();
        let mut ended = [host.hear(&mut s), host.hear(&mut s)].map(|heard| match heard {
            Some(Heard::Done { id, status, .. }) => (id, status),
            other => panic!("{other:?}"),
        });
        ended.sort_by_key(|(id, _)| *id);
        assert_eq!(ended, [(n, Status::TRANSPORT), (100, Status::OK)]);
        let read = host.ask_data(&mut s, HostCommand::read(200, 0, BYTES as u32 / 512));
        assert!(read.iter().all(|b| *b == 0), "damaged data were written");
    }
    host.send(HostCommand::write(1, 0, BYTES as u32 / 512, false), &[]);
    let ready = host.hear(&mut s).expect("it is asked for the data");
    let mut out = Vec::new();
    ready.send_data(&mut out, host.digests, &data, BYTES);
    host.stream.write_all(&out).unwrap();
    assert_eq!(host.status(&mut s), Status::OK, "sent again");
    assert!(host.ask_data(&mut s, HostCommand::read(200, 0, BYTES as u32 / 512)) == data);
    drop(host);
    s.end();
}

impl Host {
    fn ask_data(&mut self, s: &mut Scene, command: HostCommand) -> Vec<u8> {
        self.send(command, &[]);
        match self.hear(s) {
            Some(Heard::Data { data, .. }) => data,
            other => panic!("{other:?}"),
        }
    }
}

/// A host that has more long writes waiting than its queue has entries breaks the protocol.
#[test]
fn more_waiting_writes_than_entries_end_the_connection() {
    const ENTRIES: u16 = 32;
    let mut s = volatile_scene(PermitLimits::default());
    let mut host = Host::connect(&mut s, false, |_| ());
    // One whose data are asked for, and one for each entry that waits.
    (0..=ENTRIES).for_each(|n| host.send(HostCommand::write(n, 0, 128, false), &[]));
    assert!(matches!(host.hear(&mut s), Some(Heard::Ready { id: 0, .. })));
    assert_eq!(host.ask(&mut s, HostCommand::read(100, 0, 8), &[]), Status::OK, "others are served meanwhile");
    host.send(HostCommand::write(101, 0, 128, false), &[]);
    assert_eq!(host.hear(&mut s), Some(Heard::Terminated(2)), "out of sequence");
    assert_eq!(host.hear(&mut s), None);
    s.end();
}
