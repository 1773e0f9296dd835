//! A blocking NVMe/TCP host over `plimsoll-nvme`'s host half, and a node that serves one.

use super::{Server, config};
use plimsoll_nvme::auth::Parties;
use plimsoll_nvme::auth::groups::Group;
use plimsoll_nvme::auth::prover::Prover;
use plimsoll_nvme::auth::secret::{Hash, Secret};
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command, Ear, Heard, connect_data, parameters};
use plimsoll_nvme::pdu::Digests;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

pub const NQN: &str = "nqn.2026-11.test:vol";
pub const HOST: &str = "nqn.2026-11.test:host";
pub const PLAIN: Digests = Digests { header: false, data: false };
pub const BOTH: Digests = Digests { header: true, data: true };

/// The configuration of a node that serves the volume `vol` as `export` to hosts, with more `keys` after the tables.
pub fn serving(device: &str, export: &str, keys: &str) -> String {
    let subsystem = format!("[[subsystem]]\nnqn = \"{NQN}\"\nexport = \"{export}\"\n{keys}");
    let listen = "unix = \"nbd.sock\"\nnvme_tcp = \"127.0.0.1:0\"\n";
    config(device, "16MiB").replace("unix = \"nbd.sock\"\n", listen) + &subsystem
}

/// A node with this configuration, and its address for hosts.
pub fn start(dir: &Path, config: &str) -> (Server, String) {
    start_with(dir, config, &[])
}

/// The same, with variables in its environment.
pub fn start_with(dir: &Path, config: &str, environment: &[(&str, &str)]) -> (Server, String) {
    let server = Server::try_start_with(dir, config, environment).expect("the node starts");
    let status = server.control("GET", "/v1/status").expect(200);
    let address = status["node"]["listens"]["nvme_tcp"].as_str().expect("it listens").to_string();
    (server, address)
}

/// The two together.
pub fn serve(dir: &Path, device: &str, export: &str, keys: &str) -> (Server, String) {
    start(dir, &serving(device, export, keys))
}

/// A queue's host side.
pub struct Host {
    pub stream: TcpStream,
    ear: Ear,
    digests: Digests,
    buffer: Vec<u8>,
    /// Not taken apart yet.
    rest: Vec<u8>,
    next_id: u16,
}

impl Host {
    pub fn open(address: &str, digests: Digests) -> Host {
        let stream = TcpStream::connect(address).expect("the node listens");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let buffer = vec![0; 64 << 10];
        let mut host = Host { stream, ear: Ear::default(), digests, buffer, rest: Vec::new(), next_id: 1 };
        host.stream.write_all(&parameters(digests)).unwrap();
        assert!(matches!(host.hear(), Some(Heard::Parameters(d, _)) if d == digests));
        host
    }

    /// Connects a queue; the controller, or why not.
    pub fn connect(&mut self, queue: u16, controller: u16, (host, subsystem): (&str, &str)) -> Result<u16, Status> {
        let command = Command::connect(0, queue, 32, 0, queue == 2);
        self.send(&command, &connect_data(controller, [9; 16], host, subsystem));
        self.done(0).map(|value| value as u16)
    }

    /// Claims the name of a host that has a secret, and lets the node calculate: its challenge isn't read.
    pub fn claim(&mut self, host: &str, group: Group) {
        self.send(&Command::connect(0, 0, 32, 0, true), &connect_data(0xffff, [9; 16], host, NQN));
        self.done(0).expect("it may connect");
        let secret = Secret::of(&[0; 32]).expect("a secret's length");
        let parties = Parties { host: host.into(), subsystem: NQN.into(), host_secret: secret, subsystem_secret: None };
        let message = Prover::new(parties, 77, [1; 64], [2; 64]).negotiate(&Hash::ALL, &[group]);
        self.send(&Command::authentication_send(1, message.len() as u32), &message);
        self.send(&Command::authentication_receive(2, 4096), &[]);
        assert_eq!(self.done(1), Ok(0));
    }

    /// True if the node has said something that wasn't read.
    pub fn has_heard(&mut self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let n = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        !self.rest.is_empty() || n.is_ok()
    }

    /// Connects a queue of a host that has a secret, and proves it. The controller, or `None` if the node isn't convinced.
    pub fn prove(&mut self, queue: u16, controller: u16, parties: Parties) -> Option<u16> {
        let data = connect_data(controller, [9; 16], &parties.host, &parties.subsystem);
        self.send(&Command::connect(0, queue, 32, 0, true), &data);
        let value = self.done(0).expect("it may connect");
        assert_eq!(value >> 16, 2, "authentication is required");
        let is_mutual = parties.subsystem_secret.is_some();
        let mut prover = Prover::new(parties, 77, [1; 64], [2; 64]);
        let message = prover.negotiate(&Hash::ALL, &[Group::Null, Group::Ffdhe2048]);
        self.ok(Command::authentication_send(1, message.len() as u32), &message);
        let challenge = self.data(Command::authentication_receive(2, 4096)).expect("a challenge");
        let message = prover.reply(&challenge).expect("a challenge");
        self.ok(Command::authentication_send(3, message.len() as u32), &message);
        let success = self.data(Command::authentication_receive(4, 4096)).expect("the result");
        if !prover.accepts(&success) {
            if success[1] == 3 {
                let message = prover.verdict(false);
                self.ok(Command::authentication_send(5, message.len() as u32), &message);
            }
            assert_eq!(self.hear(), None, "it closes");
            return None;
        }
        if is_mutual {
            self.ok(Command::authentication_send(5, 16), &prover.verdict(true));
        }
        Some(value as u16)
    }

    /// An admin queue with an enabled controller.
    pub fn admin(address: &str, digests: Digests, subsystem: &str) -> (Host, u16) {
        let mut host = Host::open(address, digests);
        let controller = host.connect(0, 0xffff, (HOST, subsystem)).expect("it may connect");
        host.ok(Command::property_set(0, 0x14, 0x46_0001), &[]);
        (host, controller)
    }

    pub fn io(address: &str, digests: Digests, controller: u16, queue: u16) -> Host {
        let mut host = Host::open(address, digests);
        host.connect(queue, controller, (HOST, NQN)).expect("it may connect");
        host
    }

    pub fn send(&mut self, command: &Command, data: &[u8]) {
        let mut out = Vec::new();
        command.send(&mut out, self.digests, data);
        self.stream.write_all(&out).unwrap();
    }

    /// Sends a command, and hears its end with the data of a read; `None` if the node has closed.
    pub fn try_ask(&mut self, command: &Command, data: &[u8]) -> Option<Result<Vec<u8>, Status>> {
        let mut out = Vec::new();
        command.send(&mut out, self.digests, data);
        self.stream.write_all(&out).ok()?;
        match self.hear()? {
            Heard::Data { id, data, done: true, .. } if id == self.id(command) => Some(Ok(data)),
            Heard::Done { id, status, .. } if id == self.id(command) => {
                Some(if status == Status::OK { Ok(Vec::new()) } else { Err(status) })
            }
            other => panic!("{other:?}"),
        }
    }

    /// The next thing that the node says; `None` once it has closed.
    pub fn hear(&mut self) -> Option<Heard> {
        loop {
            let mut input = &self.rest[..];
            let heard = self.ear.take(&mut input).expect("the node keeps to the protocol");
            self.rest = input.to_vec();
            if heard.is_some() {
                return heard;
            }
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return None,
                Ok(n) => self.rest.extend_from_slice(&self.buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("the node says nothing: {e}"),
            }
        }
    }

    /// A command's end.
    pub fn done(&mut self, id: u16) -> Result<u64, Status> {
        match self.hear() {
            Some(Heard::Done { id: i, status: Status::OK, value, .. }) if i == id => Ok(value),
            Some(Heard::Done { id: i, status, .. }) if i == id => Err(status),
            other => panic!("command {id}: {other:?}"),
        }
    }

    pub fn ask(&mut self, command: Command, data: &[u8]) -> Result<u64, Status> {
        self.send(&command, data);
        self.done(u16::from_le_bytes([command.0[2], command.0[3]]))
    }

    pub fn ok(&mut self, command: Command, data: &[u8]) -> u64 {
        self.ask(command, data).unwrap_or_else(|status| panic!("{command:?}: {status:?}"))
    }

    /// The answer of a command with data.
    pub fn data(&mut self, command: Command) -> Result<Vec<u8>, Status> {
        self.send(&command, &[]);
        match self.hear() {
            Some(Heard::Data { id, data, done: true, .. }) if id == self.id(&command) => Ok(data),
            Some(Heard::Data { id, data, done: false, .. }) => self.done(id).map(|_| data),
            Some(Heard::Done { status, .. }) => Err(status),
            other => panic!("{other:?}"),
        }
    }

    pub fn id(&self, command: &Command) -> u16 {
        u16::from_le_bytes([command.0[2], command.0[3]])
    }

    pub fn read(&mut self, start: u64, blocks: u32) -> Result<Vec<u8>, Status> {
        self.next_id += 1;
        self.data(Command::read(self.next_id, start, blocks))
    }

    /// Writes, with the data fetched in PDUs of at most `piece` bytes.
    pub fn write_fetched(&mut self, start: u64, data: &[u8], piece: usize) -> Result<u64, Status> {
        self.next_id += 1;
        let command = Command::write(self.next_id, start, data.len() as u32 / 512, false);
        self.send(&command, &[]);
        let ready = match self.hear() {
            Some(ready @ Heard::Ready { .. }) => ready,
            Some(Heard::Done { status, .. }) => return Err(status),
            other => panic!("{other:?}"),
        };
        let mut out = Vec::new();
        ready.send_data(&mut out, self.digests, data, piece);
        self.stream.write_all(&out).unwrap();
        self.done(self.next_id)
    }
}

pub const OPTIMIZED: u8 = 1;
pub const NON_OPTIMIZED: u8 = 2;
pub const INACCESSIBLE: u8 = 3;
const ANA_LOG: u8 = 0xc;
/// A notice of an ANA change, with the log page to read.
const ANA_EVENT: u64 = 2 | 3 << 8 | (ANA_LOG as u64) << 16;

/// The state in the ANA log page of a controller that has no event to tell, and the number of its changes.
pub fn ana(admin: &mut Host) -> (u8, u64) {
    let log = admin.data(Command::log_page(2, ANA_LOG, 52)).expect("a log page");
    let number = |at: usize| u64::from_le_bytes(log[at..at + 8].try_into().unwrap());
    assert_eq!((log[8], log[20], number(0)), (1, 1, number(24)), "one group of one namespace");
    (log[32], number(0))
}

/// An admin queue of a host that hears of ANA changes.
pub struct Listener {
    admin: Host,
    pub controller: u16,
    /// The event request that is outstanding.
    request: u16,
}

impl Listener {
    pub fn new(address: &str) -> Listener {
        let (mut admin, controller) = Host::admin(address, PLAIN, NQN);
        admin.ok(Command::set_feature(1, 0xb, 1 << 11), &[]);
        admin.send(&Command::event_request(100), &[]);
        Listener { admin, controller, request: 100 }
    }

    /// The state in the ANA log page, and the number of its changes.
    pub fn ana(&mut self) -> (u8, u64) {
        ana(&mut self.admin)
    }

    /// Waits for an event, and reads the ANA log page, as Linux does.
    pub fn changed(&mut self) -> (u8, u64) {
        assert_eq!(self.admin.done(self.request), Ok(ANA_EVENT), "an event");
        self.request += 1;
        self.admin.send(&Command::event_request(self.request), &[]);
        self.ana()
    }
}

/// The identifiers by which Linux joins paths: the namespace's descriptors; and the subsystem's serial number.
pub fn identifiers(address: &str) -> (Vec<u8>, Vec<u8>) {
    let (mut admin, _) = Host::admin(address, PLAIN, NQN);
    let descriptors = admin.data(Command::identify(1, 3, 1)).expect("descriptors");
    let namespace = admin.data(Command::identify(2, 0, 1)).expect("the namespace");
    assert_eq!(namespace[104..120], descriptors[4..20], "the NGUID");
    assert_eq!(descriptors[4..20], descriptors[24..40], "the UUID");
    let controller = admin.data(Command::identify(3, 1, 0)).expect("the controller");
    (descriptors[..40].to_vec(), controller[4..24].to_vec())
}
