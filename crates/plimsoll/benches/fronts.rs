//! The two fronts on one volume: requests per second and the node's processor time per request, NBD and NVMe/TCP in turn. Both over TCP, with
//! one load generator: `make fronts`.
//!
//! `fronts load nbd|nvme ADDRESS NAME read|write DEPTH SECONDS` is the generator alone, for other targets (`make nvmet`). It uses the first
//! `PLIMSOLL_FRONTS_MIB` of the volume, and prints its own processor time, too.

#[path = "../tests/common/mod.rs"]
mod common;

use common::Server;
use plimsoll_base::Rng;
use plimsoll_nbd::client::{ClientEvent, ClientHandshake, Wishes};
use plimsoll_nbd::request::Request;
use plimsoll_nbd::transactions::{Reply, Transactions};
use plimsoll_nbd::wire::{Command, CommandFlags};
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{self, Ear, Heard, connect_data, parameters};
use plimsoll_nvme::pdu::Digests;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const NQN: &str = "nqn.2026-11.test:fronts";
const HOST: &str = "nqn.2026-11.test:load";
const BLOCK: u32 = 4096;
/// The part of the volume that is used, in MiB.
const SPAN_MIB: u64 = 256;
const ROUNDS: usize = 5;
const SECONDS: u64 = 3;
/// Time that isn't counted, until caches are warm.
const WARM: Duration = Duration::from_millis(300);

/// One connection's requests.
trait Front {
    /// Appends request `id` to what is sent.
    fn ask(&mut self, out: &mut Vec<u8>, id: u16, write: bool, offset: u64);
    /// Takes `input` apart; the requests that ended.
    fn ended(&mut self, input: &mut &[u8], done: &mut Vec<u16>);
    fn stream(&mut self) -> &mut TcpStream;
}

struct Nbd {
    stream: TcpStream,
    transactions: Transactions,
}

impl Nbd {
    fn open(address: &str, name: &str) -> Nbd {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let mut handshake = ClientHandshake::new(Wishes::open(name));
        let (mut buffer, mut some) = (Vec::new(), [0; 4096]);
        loop {
            stream.write_all(handshake.output()).expect("the server reads");
            handshake.output_sent(handshake.output().len());
            match handshake.poll_event() {
                Some(ClientEvent::Transmission(opened)) => {
                    let ids = opened.meta_contexts.iter().map(|c| c.0).collect();
                    return Nbd { stream, transactions: Transactions::new(opened.structured_replies, ids) };
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            if buffer.is_empty() {
                let n = stream.read(&mut some).expect("the server answers");
                buffer.extend_from_slice(&some[..n]);
            }
            let taken = handshake.handle(&buffer);
            buffer.drain(..taken);
        }
    }
}

impl Front for Nbd {
    fn ask(&mut self, out: &mut Vec<u8>, id: u16, write: bool, offset: u64) {
        let command = if write { Command::Write } else { Command::Read };
        // Undivided: else a read of zeroes, as the null device has, is answered as a hole, without the data that NVMe/TCP must send.
        let flags = if write { CommandFlags::EMPTY } else { CommandFlags::DF };
        let cookie = u64::from(id);
        let request = Request { command, flags, cookie, offset, length: BLOCK };
        self.transactions.submit(out, request).expect("a request");
        if write {
            out.extend_from_slice(&[7; BLOCK as usize]);
        }
    }

    fn ended(&mut self, input: &mut &[u8], done: &mut Vec<u16>) {
        while let Some(reply) = self.transactions.poll(input).expect("the server keeps to the protocol") {
            match reply {
                Reply::Done { cookie } => done.push(cookie as u16),
                Reply::Error { code, message, .. } => panic!("{code}: {message}"),
                _ => {}
            }
        }
    }

    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

struct Nvme {
    stream: TcpStream,
    ear: Ear,
    /// Of the namespace.
    block_bytes: u64,
    /// Its controller's connection.
    _admin: Option<Box<Nvme>>,
}

impl Nvme {
    fn connect(address: &str, nqn: &str, queue: u16, controller: u16, entries: u16) -> (Nvme, u16) {
        let stream = TcpStream::connect(address).expect("the target listens");
        stream.set_nodelay(true).expect("a TCP socket");
        let mut nvme = Nvme { stream, ear: Ear::default(), block_bytes: 512, _admin: None };
        nvme.stream.write_all(&parameters(Digests::default())).expect("the target reads");
        assert!(matches!(nvme.hear(), Heard::Parameters(..)));
        let command = host::Command::connect(0, queue, entries, 0, false);
        let value = nvme.command(command, &connect_data(controller, [3; 16], HOST, nqn));
        (nvme, value as u16)
    }

    fn open(address: &str, nqn: &str) -> Nvme {
        let (mut admin, controller) = Nvme::connect(address, nqn, 0, 0xffff, 32);
        admin.command(host::Command::property_set(0, 0x14, 0x46_0001), &[]);
        while admin.command(host::Command::property_get(0, 0x1c, false), &[]) & 1 == 0 {}
        admin.command(host::Command::set_feature(0, 7, 0), &[]);
        let namespace = admin.data(host::Command::identify(0, 0, 1));
        let format = usize::from(namespace[26] & 15);
        let (mut queue, _) = Nvme::connect(address, nqn, 1, controller, 128);
        queue.block_bytes = 1 << namespace[128 + 4 * format + 2];
        queue._admin = Some(Box::new(admin));
        queue
    }

    fn hear(&mut self) -> Heard {
        // A byte at a time: what follows is for the next call. Only before the load begins.
        loop {
            let mut one = [0];
            self.stream.read_exact(&mut one).expect("the target answers");
            if let Some(heard) = self.ear.take(&mut &one[..]).expect("the target keeps to the protocol") {
                return heard;
            }
        }
    }

    /// The answer of a command with data.
    fn data(&mut self, command: host::Command) -> Vec<u8> {
        let mut out = Vec::new();
        command.send(&mut out, Digests::default(), &[]);
        self.stream.write_all(&out).expect("the target reads");
        match self.hear() {
            Heard::Data { data, done: true, .. } => data,
            Heard::Data { data, done: false, .. } => match self.hear() {
                Heard::Done { status: Status::OK, .. } => data,
                other => panic!("{command:?}: {other:?}"),
            },
            other => panic!("{command:?}: {other:?}"),
        }
    }

    fn command(&mut self, command: host::Command, data: &[u8]) -> u64 {
        let mut out = Vec::new();
        command.send(&mut out, Digests::default(), data);
        self.stream.write_all(&out).expect("the target reads");
        match self.hear() {
            Heard::Done { status: Status::OK, value, .. } => value,
            other => panic!("{command:?}: {other:?}"),
        }
    }
}

impl Front for Nvme {
    fn ask(&mut self, out: &mut Vec<u8>, id: u16, write: bool, offset: u64) {
        let (start, blocks) = (offset / self.block_bytes, BLOCK / self.block_bytes as u32);
        // The lengths of data are those of the command's blocks, which have another size than the generator's commands think.
        match write {
            true => host::Command::write(id, start, blocks, true).data(BLOCK, true).send(
                out,
                Digests::default(),
                &[7; BLOCK as usize],
            ),
            false => host::Command::read(id, start, blocks).data(BLOCK, false).send(out, Digests::default(), &[]),
        }
    }

    fn ended(&mut self, input: &mut &[u8], done: &mut Vec<u16>) {
        while let Some(heard) = self.ear.take(input).expect("the target keeps to the protocol") {
            match heard {
                Heard::Data { id, done: true, .. } | Heard::Done { id, status: Status::OK, .. } => done.push(id),
                Heard::Data { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

struct Load {
    requests: u64,
    seconds: f64,
    /// Microseconds of each.
    took: Vec<u32>,
}

/// A closed loop of `depth` requests at random places.
fn load(front: &mut dyn Front, span: u64, write: bool, depth: u16, length: Duration) -> Load {
    let mut rng = Rng::new(1, "fronts");
    let (mut began, mut took) = (vec![Instant::now(); depth.into()], Vec::with_capacity(1 << 20));
    let (mut out, mut done, mut received) = (Vec::new(), (0..depth).collect::<Vec<u16>>(), vec![0; 256 << 10]);
    let start = Instant::now();
    let (mut requests, mut asks) = (0, true);
    let mut open = 0usize;
    loop {
        let now = Instant::now();
        asks &= now - start < length;
        for id in done.drain(..) {
            if began[usize::from(id)] > start {
                took.push((now - began[usize::from(id)]).as_micros() as u32);
            }
            if asks {
                began[usize::from(id)] = now;
                front.ask(&mut out, id, write, rng.below(span / u64::from(BLOCK)) * u64::from(BLOCK));
                requests += 1;
                open += 1;
            }
        }
        if open == 0 {
            return Load { requests, seconds: start.elapsed().as_secs_f64(), took };
        }
        if !out.is_empty() {
            front.stream().write_all(&out).expect("the server reads");
            out.clear();
        }
        let n = front.stream().read(&mut received).expect("the server answers");
        assert!(n > 0, "the server closes");
        front.ended(&mut &received[..n], &mut done);
        open -= done.len();
    }
}

fn open(protocol: &str, address: &str, name: &str) -> Box<dyn Front> {
    match protocol {
        "nbd" => Box::new(Nbd::open(address, name)),
        "nvme" => Box::new(Nvme::open(address, name)),
        other => panic!("`{other}` is neither nbd nor nvme"),
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Processor seconds of a process so far.
fn cpu_s(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks = fields[11].parse::<u64>().expect("ticks") + fields[12].parse::<u64>().expect("ticks");
    ticks as f64 / 100.0
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    if let [mode, protocol, address, name, op, depth, seconds] = &words[..]
        && mode == "load"
    {
        let (depth, seconds) = (depth.parse().expect("a depth"), seconds.parse().expect("seconds"));
        let mut front = open(protocol, address, name);
        let mib = std::env::var("PLIMSOLL_FRONTS_MIB").map_or(SPAN_MIB, |mib| mib.parse().expect("a number of MiB"));
        let before = cpu_s("self");
        let mut load = load(&mut *front, mib << 20, op == "write", depth, Duration::from_secs(seconds));
        let cpu_us = (cpu_s("self") - before) * 1e6;
        load.took.sort_unstable();
        let at = |share: f64| load.took[((load.took.len() - 1) as f64 * share) as usize];
        let iops = load.requests as f64 / load.seconds;
        let (p50, p95, p99) = (at(0.5), at(0.95), at(0.99));
        println!("iops {iops:.0} p50_us {p50} p95_us {p95} p99_us {p99} requests {} cpu_us {cpu_us:.0}", load.requests);
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    let listen = "unix = \"nbd.sock\"\ntcp = \"127.0.0.1:0\"\nnvme_tcp = \"127.0.0.1:0\"\n";
    let config =
        common::config(r#"{ null = true, size = "512MiB" }"#, "256MiB").replace("unix = \"nbd.sock\"\n", listen);
    let subsystem = format!("[[subsystem]]\nnqn = \"{NQN}\"\nexport = \"vol\"\n");
    let server = Server::start(dir.path(), &(config + &subsystem));
    let pin = |cpu: &str, pid: i32| common::ok("taskset", &["-a", "-c", "-p", cpu, &pid.to_string()]);
    pin("0", server.pid());
    pin("1", std::process::id() as i32);
    let status = server.control("GET", "/v1/status").expect(200);
    let address = |front: &str| status["node"]["listens"][front].as_str().expect("it listens").to_string();
    let fronts = [("nbd", address("nbd_tcp"), "vol"), ("nvme", address("nvme_tcp"), NQN)];
    println!(
        "{ROUNDS} rounds of {SECONDS} s in turn, 4 KiB, a null device, TCP; node on processor 0, load on 1; medians"
    );
    println!(
        "{:<14} {:>12} {:>12} {:>8} {:>16} {:>16} {:>8}",
        "load", "nbd IOPS", "nvme IOPS", "ratio", "nbd us/request", "nvme us/request", "ratio"
    );
    for (op, depth) in [("read", 1), ("read", 32), ("write", 1), ("write", 32)] {
        let mut of = [[Vec::new(), Vec::new()], [Vec::new(), Vec::new()]];
        for _ in 0..ROUNDS {
            for ((protocol, address, name), of) in fronts.iter().zip(&mut of) {
                let mut front = open(protocol, address, name);
                load(&mut *front, SPAN_MIB << 20, op == "write", depth, WARM);
                let before = cpu_s(&server.pid().to_string());
                let load = load(&mut *front, SPAN_MIB << 20, op == "write", depth, Duration::from_secs(SECONDS));
                let used = cpu_s(&server.pid().to_string()) - before;
                of[0].push(load.requests as f64 / load.seconds);
                of[1].push(used * 1e6 / load.requests as f64);
            }
        }
        let ratio = |k: usize| -> f64 {
            let mut all: Vec<f64> = of[1][k].iter().zip(&of[0][k]).map(|(nvme, nbd)| nvme / nbd).collect();
            median(&mut all)
        };
        let (iops, cost) = (ratio(0), ratio(1));
        let [[nbd_iops, nbd_cost], [nvme_iops, nvme_cost]] = of.map(|front| front.map(|mut all| median(&mut all)));
        println!(
            "{:<14} {nbd_iops:>12.0} {nvme_iops:>12.0} {iops:>8.2} {nbd_cost:>16.2} {nvme_cost:>16.2} {cost:>8.2}",
            format!("{op}, depth {depth}")
        );
    }
    assert!(server.stop());
}
