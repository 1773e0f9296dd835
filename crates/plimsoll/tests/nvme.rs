//! NVMe/TCP hosts of our own on a running node. The kernel as host: tests/guest_nvme.sh.

mod common;
use common::busy::Metrics;
use common::client::Client;
use common::nvme::{BOTH, HOST, Host, NQN, PLAIN, serve, serving, start};
use common::{Server, config, ok};
use plimsoll_nvme::auth::Parties;
use plimsoll_nvme::auth::groups::Group;
use plimsoll_nvme::auth::secret::Secret;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command, Ear, Heard, connect_data, parameters, range};
use plimsoll_nvme::pdu::Digests;
use plimsoll_nvme::wire::DISCOVERY_NQN;
use plimsoll_testkit::resident_bytes;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = plimsoll_base::Rng::new(seed, "nvme");
    (0..bytes / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

#[test]
fn a_host_discovers_connects_writes_and_reads() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", "");
    let (mut discovery, _) = Host::admin(&address, PLAIN, DISCOVERY_NQN);
    let log = discovery.data(Command::log_page(1, 0x70, 2048)).expect("a log page");
    assert_eq!((log[8], &log[1024 + 256..1024 + 256 + NQN.len()]), (1, NQN.as_bytes()));
    let mut model = vec![0; 16 << 20];
    for (n, digests) in [PLAIN, BOTH, Digests { header: true, data: false }].into_iter().enumerate() {
        let (mut admin, controller) = Host::admin(&address, digests, NQN);
        assert_eq!(admin.ok(Command::set_feature(1, 7, 1 | 1 << 16), &[]), 1 | 1 << 16);
        let namespace = admin.data(Command::identify(2, 0, 1)).expect("the namespace");
        assert_eq!(namespace[..8], (16u64 << 20 >> 9).to_le_bytes());
        for queue in [1, 2] {
            let mut io = Host::io(&address, digests, controller, queue);
            let mut write = |io: &mut Host, start: u64, bytes: usize, piece: Option<usize>| {
                let data = pattern(start + n as u64, bytes);
                let done = match piece {
                    None => io.ask(Command::write(900, start, bytes as u32 / 512, true).durable(), &data),
                    Some(piece) => io.write_fetched(start, &data, piece),
                };
                done.unwrap_or_else(|status| panic!("{bytes} bytes at {start}: {status:?}"));
                model[start as usize * 512..][..bytes].copy_from_slice(&data);
            };
            write(&mut io, 0, 512, None);
            write(&mut io, 9, 32 << 10, None);
            write(&mut io, 1000, 4096, Some(1 << 20));
            write(&mut io, 2000, 128 << 10, Some(1 << 20));
            write(&mut io, 4000, 1 << 20, Some(1 << 20));
            write(&mut io, 8000, 1 << 20, Some(70_000));
            io.ok(Command::flush(901), &[]);
            io.ok(Command::write_zeroes(902, 4008, 64), &[]);
            model[4008 * 512..4072 * 512].fill(0);
            io.ok(Command::deallocate(903, 1), &range(8008, 128));
            model[8008 * 512..8136 * 512].fill(0);
            for (start, blocks) in [(0, 1), (0, 128), (990, 64), (2001, 300), (4000, 2048), (8000, 2048), (32767, 1)] {
                let got = io.read(start, blocks).expect("a read");
                let want = &model[start as usize * 512..][..blocks as usize * 512];
                assert!(got == want, "{blocks} blocks at {start} differ, queue {queue}, {digests:?}");
            }
            assert_eq!(io.read(32768, 1), Err(Status::OUT_OF_RANGE));
        }
    }
    // The same bytes over NBD.
    let back = dir.path().join("back");
    ok("nbdcopy", &[&server.uri("vol"), back.to_str().unwrap()]);
    assert!(std::fs::read(&back).unwrap() == model, "NBD reads other bytes");
    let connections = server.cli(&["connections"]);
    assert!(server.stop(), "{connections}");
}

/// Many commands at once: reads, writes in capsules, and fetched writes whose data come between the others' commands.
#[test]
fn commands_of_all_kinds_may_be_in_flight_together() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", "");
    let (_admin, controller) = Host::admin(&address, BOTH, NQN);
    let mut io = Host::io(&address, BOTH, controller, 1);
    let data: Vec<Vec<u8>> = (0..30).map(|id| pattern(id, if id % 3 == 1 { 4096 } else { 96 << 10 })).collect();
    let start = |id: usize| id as u64 * 256;
    for (id, bytes) in data.iter().enumerate() {
        match id % 3 {
            0 => io.send(&Command::write(id as u16, start(id), 192, false), &[]),
            1 => io.send(&Command::write(id as u16, start(id), 8, true), bytes),
            _ => io.send(&Command::read(id as u16, start(id), 8), &[]),
        }
    }
    let mut open = 30;
    while open > 0 {
        match io.hear() {
            Some(ready @ Heard::Ready { id, .. }) => {
                let mut out = Vec::new();
                ready.send_data(&mut out, BOTH, &data[usize::from(id)], 10_000);
                // In halves, with a command between them that isn't part of them.
                let first = out.len().div_ceil(2);
                io.stream.write_all(&out[..first]).unwrap();
                io.stream.write_all(&out[first..]).unwrap();
                io.send(&Command::flush(500), &[]);
                open += 1;
            }
            Some(Heard::Data { id, data, done: true, .. }) => {
                assert_eq!((id % 3, data), (2, vec![0; 4096]));
                open -= 1;
            }
            Some(Heard::Done { status: Status::OK, .. }) => open -= 1,
            other => panic!("{other:?}"),
        }
    }
    for id in (0..30).filter(|id| id % 3 != 2) {
        let data = &data[id];
        assert!(io.read(start(id), data.len() as u32 / 512).as_ref() == Ok(data), "write {id}");
    }
    assert!(server.stop());
}

/// A refusal is a status of the path. The same read, sent again, is served, and so is one that overlaps it.
#[test]
fn a_read_is_not_refused_twice() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "64MiB", model = "cheetah-15k5" }"#;
    let (server, address) = serve(dir.path(), device, "vol?deadline=1us&busy=error", "");
    let (_admin, controller) = Host::admin(&address, PLAIN, NQN);
    let mut io = Host::io(&address, PLAIN, controller, 1);
    let mut other = Host::io(&address, PLAIN, controller, 2);
    // The pool learns from its first reads what reads take. Later ones elsewhere are refused.
    let refused = |io: &mut Host, from: u64| {
        let mut starts = (from..from + 4096).step_by(16);
        starts.find(|start| io.read(*start, 8) == Err(Status::INACCESSIBLE)).expect("a refusal")
    };
    for round in 0..200 {
        let start = refused(&mut io, round % 4 * 8192);
        let began = Instant::now();
        let (first, overlaps) = (other.read(start, 8), other.read(start + 4, 1));
        // A refusal is forgotten after 100 ms, which a slow machine may need for this much.
        if began.elapsed() < Duration::from_millis(90) {
            assert_eq!((first, overlaps), (Ok(vec![0; 4096]), Ok(vec![0; 512])), "sent again, on any queue");
            break;
        }
        assert!(round < 199, "the machine is too slow for this test");
    }
    refused(&mut io, 4096); // others still are
    let spared = server.control("GET", "/v1/volumes/vol").expect(200)["traffic"]["spared"].clone();
    let counts = ["again", "overlap", "too_many", "stranger"].map(|rule| spared[rule].as_u64().expect("a count"));
    assert!(counts[0] > 0 && counts[1] > 0 && counts[2..] == [0, 0], "{spared}");
    assert_eq!(spared["returned_after"]["samples"], counts[0]);
    assert_eq!(spared["response"]["samples"], counts[0] + counts[1]);
    let shown = server.cli(&["volume", "show", "vol"]);
    assert!(shown.contains(&format!("spared    {} came back after a refusal", counts[0])), "{shown}");
    assert_eq!(Metrics::of(&server).of_tenant("plimsoll_spared_total", "t", ("rule", "overlap")), counts[1] as f64);
    assert!(server.stop());
}

/// A host with one path has nowhere else to go: its late reads are served, and counted as such.
#[test]
fn late_reads_of_a_host_that_waits_are_served_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "64MiB", model = "cheetah-15k5" }"#;
    let (server, address) = serve(dir.path(), device, "vol?deadline=1us&busy=wait", "");
    let (_admin, controller) = Host::admin(&address, PLAIN, NQN);
    let mut io = Host::io(&address, PLAIN, controller, 1);
    let traffic = || server.control("GET", "/v1/volumes/vol").expect(200)["traffic"].clone();
    // The pool learns from its first reads what reads take; those are missed against the forecast.
    for start in (0..32_768).step_by(16) {
        assert_eq!(io.read(start, 8), Ok(vec![0; 4096]));
        if start % 512 == 0 && traffic()["deadlines_waited"].as_u64() > Some(10) {
            break;
        }
    }
    let traffic = traffic();
    let counts = (&traffic["deadlines_waited"], &traffic["busy_refused"], &traffic["failed"]);
    assert!(counts.0.as_u64() > Some(10) && counts.1 == 0 && counts.2 == 0, "{traffic}");
    assert!(server.stop());
}

/// A queue of an older controller that finds its volume writable: after a kill, the volume may lack writes.
#[test]
fn a_volume_that_became_writable_is_marked_before_a_queue_writes() {
    let dir = tempfile::tempdir().unwrap();
    let writable = serving(r#"{ file = "p.img", size = "64MiB" }"#, "vol", "");
    let read_only = writable.replace("size = \"16MiB\"\n", "size = \"16MiB\"\nread_only = true\n");
    let behind = |server: &Server| server.control("GET", "/v1/volumes/vol").expect(200)["behind"].clone();
    let (server, address) = start(dir.path(), &read_only);
    let (_admin, controller) = Host::admin(&address, PLAIN, NQN);
    let mut reads = Host::io(&address, PLAIN, controller, 1);
    assert_eq!(reads.read(0, 1), Ok(vec![0; 512]));
    server.kill();

    let (server, address) = start(dir.path(), &read_only);
    assert_eq!(behind(&server), "no", "nobody could write it");
    let (_admin, controller) = Host::admin(&address, PLAIN, NQN);
    let mut reads = Host::io(&address, PLAIN, controller, 1);
    assert_eq!(reads.write_fetched(0, &[1; 512], 512), Err(Status::WRITE_PROTECTED));
    std::fs::write(dir.path().join("node.toml"), &writable).unwrap();
    server.cli(&["reload"]);
    let mut writes = Host::io(&address, PLAIN, controller, 2);
    assert_eq!(writes.write_fetched(0, &[1; 512], 512), Ok(0));
    server.kill();

    let (server, _) = start(dir.path(), &writable);
    assert_eq!(behind(&server), "unclean stop");
    assert!(server.stop());
}

#[test]
fn hosts_that_break_rules_are_refused_or_let_go_and_others_notice_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let keys = "[limits]\npayload_idle = \"300ms\"\n";
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", keys);
    let (mut admin, controller) = Host::admin(&address, PLAIN, NQN);
    let mut good = Host::io(&address, PLAIN, controller, 1);
    let refused = |queue, controller, names| Host::open(&address, PLAIN).connect(queue, controller, names);
    assert_eq!(refused(0, 0xffff, (HOST, "nqn.2026-11.test:none")), Err(Status::CONNECT_PARAMETER));
    assert_eq!(refused(1, 99, (HOST, NQN)), Err(Status::CONNECT_PARAMETER), "no such controller");
    assert_eq!(refused(1, controller, (HOST, NQN)), Err(Status::CONNECT_BUSY), "the queue is in use");
    assert_eq!(refused(9, controller, (HOST, NQN)), Err(Status::CONNECT_PARAMETER), "more queues than allowed");
    let mut disabled = Host::open(&address, PLAIN);
    let id = disabled.connect(0, 0xffff, (HOST, NQN)).expect("it may connect");
    assert_eq!(refused(1, id, (HOST, NQN)), Err(Status::SEQUENCE), "its controller isn't enabled");

    // What isn't NVMe/TCP, on an admin queue, an I/O queue, and before there is one.
    let mut io = Host::io(&address, PLAIN, controller, 2);
    for stream in [&mut disabled, &mut io] {
        stream.stream.write_all(&[0xff; 200]).unwrap();
        assert!(matches!(stream.hear(), Some(Heard::Terminated(1))));
        assert_eq!(stream.hear(), None);
    }
    let mut stranger = TcpStream::connect(&address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).unwrap();
    assert_eq!(said[0], 3, "the connection is terminated");

    // Data that never come, and hosts that come and say nothing.
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let mut lazy = Host::io(&address, PLAIN, controller, 2);
    lazy.send(&Command::write(7, 0, 256, false), &[]);
    assert!(matches!(lazy.hear(), Some(Heard::Ready { .. })));
    assert_eq!(good.read(0, 8), Ok(vec![0; 4096]), "others are served");
    assert_eq!(lazy.hear(), None, "it is let go");
    assert_eq!(good.write_fetched(0, &[5; 4096], 4096), Ok(0));
    drop(silent);

    // The controller's queues end with it.
    admin.stream.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(admin.hear(), None);
    assert_eq!(good.hear(), None);
    assert!(server.stop());
}

#[test]
fn a_host_that_does_not_keep_alive_loses_its_queues() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", "");
    let mut admin = Host::open(&address, PLAIN);
    let command = Command::connect(0, 0, 32, 300, true);
    admin.send(&command, &connect_data(0xffff, [9; 16], HOST, NQN));
    let controller = admin.done(0).expect("it may connect") as u16;
    admin.ok(Command::property_set(0, 0x14, 0x46_0001), &[]);
    let mut io = Host::io(&address, PLAIN, controller, 1);
    assert_eq!(io.hear(), None);
    assert_eq!(admin.hear(), None);
    assert!(server.stop());
}

#[test]
fn a_grant_names_a_host() {
    let dir = tempfile::tempdir().unwrap();
    let listen = "unix = \"nbd.sock\"\nnvme_tcp = \"127.0.0.1:0\"\n";
    let config = config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB")
        .replace("unix = \"nbd.sock\"\n", listen)
        .replace("peer = \"local\"", &format!("peer = \"host:{HOST}\"\nwrite = false"));
    let subsystem = format!("[[subsystem]]\nnqn = \"{NQN}\"\nexport = \"vol\"\n");
    let server = Server::start(dir.path(), &(config + &subsystem));
    let status = server.control("GET", "/v1/status").expect(200);
    let address = status["node"]["listens"]["nvme_tcp"].as_str().expect("it listens").to_string();
    let stranger = Host::open(&address, PLAIN).connect(0, 0xffff, ("nqn.2026-11.test:stranger", NQN));
    assert_eq!(stranger, Err(Status::CONNECT_PARAMETER), "whether it exists isn't told");
    let (mut admin, controller) = Host::admin(&address, PLAIN, NQN);
    assert_eq!(admin.data(Command::identify(1, 0, 1)).expect("the namespace")[99], 1, "write-protected");
    let mut io = Host::io(&address, PLAIN, controller, 1);
    assert_eq!(io.write_fetched(0, &[1; 512], 512), Err(Status::WRITE_PROTECTED));
    assert_eq!(io.read(0, 1), Ok(vec![0; 512]));
    assert!(server.stop());
}

/// A host that has lost its connection must not take another volume of the same name for its own: its file system would go on in it.
#[test]
fn a_volume_made_anew_is_another_namespace() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "64MiB" }"#;
    let identifier = |address: &str| {
        let (mut admin, _) = Host::admin(address, PLAIN, NQN);
        let names = admin.data(Command::identify(1, 3, 1)).expect("its names");
        let namespace = admin.data(Command::identify(2, 0, 1)).expect("the namespace");
        assert_eq!((&names[4..20], &names[24..40]), (&namespace[104..120], &namespace[104..120]), "NGUID and UUID");
        namespace[104..120].to_vec()
    };
    let (server, address) = serve(dir.path(), device, "vol", "");
    let first = identifier(&address);
    assert_eq!(identifier(&address), first);
    assert!(server.stop());
    let (server, address) = serve(dir.path(), device, "vol", "");
    assert_eq!(identifier(&address), first, "after a restart");
    server.cli(&["volume", "delete", "vol", "--yes", "--disconnect", "--declared"]);
    server.cli(&["volume", "create", "vol", "--pool", "p", "--size", "16MiB", "--tenant", "t"]);
    let second = identifier(&address);
    assert_ne!(second, first, "made anew");
    assert!(server.stop());
    // On another device the key is that of the first volume.
    std::fs::remove_file(dir.path().join("p.img")).unwrap();
    let (server, address) = serve(dir.path(), device, "vol", "");
    assert!(![first, second].contains(&identifier(&address)), "of another device");
    assert!(server.stop());
}

/// A host with a secret is served once it has proved that it has it, on each queue; nobody else is served under its name.
#[test]
fn hosts_with_a_secret_prove_themselves() {
    use std::os::unix::fs::OpenOptionsExt;
    let dir = tempfile::tempdir().unwrap();
    let secret = |byte| Secret::of(&[byte; 32]).expect("a secret's length");
    let write = |name: &str, byte| {
        let path = dir.path().join(name);
        let _ = std::fs::remove_file(&path); // the first time there is none
        let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).unwrap();
        file.write_all(secret(byte).to_text().as_bytes()).unwrap();
    };
    write("host.key", 1);
    write("node.key", 2);
    let keys =
        format!("[[nvme_host]]\nnqn = \"{HOST}\"\nsecret_file = \"host.key\"\nsubsystem_secret_file = \"node.key\"\n");
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", &keys);
    let parties = |host_secret, subsystem_secret| Parties {
        host: HOST.into(),
        subsystem: NQN.into(),
        host_secret: secret(host_secret),
        subsystem_secret,
    };
    for mutual in [None, Some(secret(2))] {
        let mut admin = Host::open(&address, BOTH);
        let controller = admin.prove(0, 0xffff, parties(1, mutual.clone())).expect("it has the secret");
        admin.ok(Command::property_set(10, 0x14, 0x46_0001), &[]);
        let mut io = Host::open(&address, BOTH);
        assert_eq!(io.prove(1, controller, parties(1, mutual)), Some(controller));
        assert_eq!(io.write_fetched(8, &[7; 4096], 4096), Ok(0));
        assert_eq!(io.read(8, 8), Ok(vec![7; 4096]));
        // The controller is no way in for a queue without the secret.
        let mut thief = Host::open(&address, PLAIN);
        assert_eq!(thief.prove(2, controller, parties(3, None)), None);
        let mut thief = Host::open(&address, PLAIN);
        thief.send(&Command::connect(0, 2, 32, 0, true), &connect_data(controller, [9; 16], HOST, NQN));
        thief.done(0).expect("it may connect");
        assert_eq!(thief.read(8, 8), Err(Status::from_wire(0x4191)));
        assert_eq!(thief.hear(), None);
    }
    let mut wrong = Host::open(&address, PLAIN);
    assert_eq!(wrong.prove(0, 0xffff, parties(1, Some(secret(3)))), None, "the node isn't who the host thinks");
    let events = server.cli(&["events", "--kind", "refusal"]);
    assert!(events.contains(HOST) && events.contains("different secrets"), "{events}");
    assert!(!events.contains(&secret(1).to_text()[10..]), "a secret is shown");
    // A host without one is served as before.
    let mut admin = Host::open(&address, PLAIN);
    admin.connect(0, 0xffff, ("nqn.2026-11.test:other", NQN)).expect("it may connect");
    // A reload takes another secret.
    write("host.key", 9);
    server.cli(&["reload"]);
    let mut old = Host::open(&address, PLAIN);
    assert_eq!(old.prove(0, 0xffff, parties(1, None)), None);
    let mut new = Host::open(&address, PLAIN);
    assert!(new.prove(0, 0xffff, parties(9, None)).is_some());
    assert!(server.stop());
}

/// Anybody who knows the name of a host with a secret may let the node calculate for it, before any proof. Others' handshakes go on.
#[test]
fn unproved_hosts_that_let_the_node_calculate_hold_up_nobody() {
    const THIEVES: usize = 150;
    use std::os::unix::fs::OpenOptionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mut file = std::fs::OpenOptions::new();
    let mut file = file.write(true).create_new(true).mode(0o600).open(dir.path().join("host.key")).unwrap();
    file.write_all(Secret::of(&[1; 32]).unwrap().to_text().as_bytes()).unwrap();
    let keys = format!("[[nvme_host]]\nnqn = \"{HOST}\"\nsecret_file = \"host.key\"\n");
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", &keys);
    let mut thieves: Vec<Host> = (0..THIEVES).map(|_| Host::open(&address, PLAIN)).collect();
    thieves.iter_mut().for_each(|thief| thief.claim(HOST, Group::Ffdhe4096));
    // A slow machine calculates many until all have claimed the name.
    let mut answered = || thieves.iter_mut().filter_map(|thief| thief.has_heard().then_some(())).count();
    let before = answered();
    for _ in 0..3 {
        let mut plain = Host::open(&address, PLAIN);
        let controller = plain.connect(0, 0xffff, ("nqn.2026-11.test:other", NQN)).expect("it may connect");
        plain.ok(Command::property_set(1, 0x14, 0x46_0001), &[]);
        let mut io = Host::open(&address, PLAIN);
        io.connect(1, controller, ("nqn.2026-11.test:other", NQN)).expect("it may connect");
        assert_eq!(io.read(0, 8), Ok(vec![0; 4096]));
        Client::connect(&server.socket(), "vol").expect("NBD clients, too");
    }
    let (meanwhile, left) = (answered() - before, THIEVES - before);
    println!("{meanwhile} of {left} powers were calculated before the others were served");
    assert!(left == 0 || meanwhile < left, "all {left} powers came first");
    // Each has its turn, as long as it is there.
    assert!(thieves[0].hear().is_some() && thieves[THIEVES - 1].hear().is_some());
    drop(thieves);
    // The host itself comes in meanwhile: those that have left wait for nothing.
    let parties = Parties {
        host: HOST.into(),
        subsystem: NQN.into(),
        host_secret: Secret::of(&[1; 32]).unwrap(),
        subsystem_secret: None,
    };
    assert!(Host::open(&address, PLAIN).prove(0, 0xffff, parties).is_some());
    assert!(server.stop());
}

/// A node with a tenant whose hosts attack, and one whose hosts behave.
const TENANTS: &str = r#"
[listen]
unix = "nbd.sock"
nvme_tcp = "127.0.0.1:0"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[limits]
payload_idle = "2s"
[[pool]]
name = "p"
device = { file = "p.img", size = "128MiB" }
[[tenant]]
name = "good"
class = "best-effort"
[[tenant]]
name = "bad"
class = "best-effort"
bytes_max = "32MiB"
[[volume]]
name = "good"
pool = "p"
size = "16MiB"
tenant = "good"
[[volume]]
name = "bad"
pool = "p"
size = "64MiB"
tenant = "bad"
[[subsystem]]
nqn = "nqn.2026-11.test:good"
export = "good"
[[subsystem]]
nqn = "nqn.2026-11.test:vol"
export = "bad"
queues = 64
[[grant]]
peer = "local"
volumes = ["*"]
"#;

const MIB: u64 = 1 << 20;

/// A queue that another connection may just have been, and may not have been missed yet.
fn io_again(address: &str, controller: u16, queue: u16) -> Host {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let mut host = Host::open(address, PLAIN);
        match host.connect(queue, controller, (HOST, NQN)) {
            Ok(_) => return host,
            Err(status) => assert!(Instant::now() < end, "queue {queue}: {status:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Hosts that don't take their answers, announce data that never come or come one byte at a time, and silent connections:
/// memory stays bounded and returns, and a host of another tenant is served meanwhile.
#[test]
fn hosts_that_attack_take_a_bounded_share() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), TENANTS);
    let status = server.control("GET", "/v1/status").expect(200);
    let address = status["node"]["listens"]["nvme_tcp"].as_str().expect("it listens").to_string();
    let mut good_admin = Host::open(&address, PLAIN);
    let good_controller = good_admin.connect(0, 0xffff, (HOST, "nqn.2026-11.test:good")).expect("it may connect");
    good_admin.ok(Command::property_set(0, 0x14, 0x46_0001), &[]);
    let mut good = Host::open(&address, PLAIN);
    good.connect(1, good_controller, (HOST, "nqn.2026-11.test:good")).expect("it may connect");
    let mut serves_others = |what: &str| {
        for n in 0..20u8 {
            // Each has the reading deadline of `Host::open` to be answered in.
            assert_eq!(good.write_fetched(8, &[n; 65536], 65536), Ok(0), "{what}");
            assert!(good.read(8, 128).as_deref() == Ok(&[n; 65536][..]), "{what}");
        }
    };
    serves_others("before");
    let start = resident_bytes(server.pid() as u32);
    let (_admin, controller) = Host::admin(&address, PLAIN, NQN);
    let bounded = |what: &str| {
        let now = resident_bytes(server.pid() as u32);
        println!("{what}: {} MiB resident, {} at the start", now / MIB, start / MIB);
        assert!(now < start + 96 * MIB, "{what}: {} MiB resident", now / MIB);
    };

    // 24 queues ask for 31 MiB each and take nothing.
    let mut slow: Vec<Host> = (1..=24).map(|queue| Host::io(&address, PLAIN, controller, queue)).collect();
    for host in &mut slow {
        for id in 0..31 {
            host.send(&Command::read(id, u64::from(id) * 2048, 2048), &[]);
        }
    }
    serves_others("beside slow readers");
    bounded("slow readers");
    drop(slow);

    // Data that are announced, and of which nothing, a page or all but a little comes before their hosts leave.
    let mut announced = 0;
    for round in 0..120 {
        let bytes = [64 << 10, 256 << 10, 1 << 20][round % 3];
        let mut queues: Vec<Host> = (30..=45).map(|queue| io_again(&address, controller, queue)).collect();
        for (n, host) in queues.iter_mut().enumerate() {
            host.send(&Command::write(1, 0, bytes / 512, false), &[]);
            let Some(ready @ Heard::Ready { .. }) = host.hear() else { panic!("queue {n} in round {round}") };
            let mut out = Vec::new();
            ready.send_data(&mut out, PLAIN, &vec![1; bytes as usize], bytes as usize);
            host.stream.write_all(&out[..[0, 4096, 60_000][(n + round) % 3]]).unwrap();
        }
        announced += queues.len();
    }
    serves_others("beside abandoned writes");
    bounded(&format!("{announced} abandoned writes"));

    // All room of the tenant in writes whose data come one byte at a time: they are let go, and its next host is served.
    let mut dribbling: Vec<Host> = (30..=45).map(|queue| io_again(&address, controller, queue)).collect();
    let mut pieces = Vec::new();
    for host in &mut dribbling {
        host.send(&Command::write(1, 0, 2048, false), &[]);
        let Some(ready @ Heard::Ready { .. }) = host.hear() else { panic!("16 MiB is half of the tenant's bytes") };
        let mut out = Vec::new();
        ready.send_data(&mut out, PLAIN, &vec![1; 1 << 20], 1 << 20);
        pieces.push(out);
    }
    let mut next = Host::io(&address, PLAIN, controller, 55);
    next.send(&Command::write(1, 0, 2048, false), &[]);
    let began = Instant::now();
    for at in 0.. {
        let open =
            dribbling.iter_mut().zip(&pieces).filter_map(|(host, bytes)| host.stream.write_all(&bytes[at..=at]).ok());
        if open.count() == 0 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "a payload has a least rate");
        std::thread::sleep(Duration::from_millis(50));
    }
    serves_others("beside dribbling writers");
    let Some(ready @ Heard::Ready { .. }) = next.hear() else { panic!("the tenant's other hosts are served") };
    let mut out = Vec::new();
    ready.send_data(&mut out, PLAIN, &vec![5; 1 << 20], 1 << 20);
    next.stream.write_all(&out).unwrap();
    assert_eq!(next.done(1), Ok(0));

    // Silent connections keep nobody out who speaks.
    let silent: Vec<TcpStream> = (0..600).map_while(|_| TcpStream::connect(&address).ok()).collect();
    for _ in 0..10 {
        let mut admin = Host::open(&address, PLAIN);
        admin.connect(0, 0xffff, (HOST, "nqn.2026-11.test:good")).expect("it may connect");
    }
    serves_others("beside silent connections");
    drop(silent);

    // Nor do those that stop in the middle of their Connect.
    let mut connect = parameters(PLAIN).to_vec();
    let data = connect_data(0xffff, [9; 16], HOST, NQN);
    Command::connect(0, 0, 32, 0, true).send(&mut connect, PLAIN, &data);
    let half: Vec<TcpStream> = (0..600)
        .map_while(|n| {
            let mut stream = TcpStream::connect(&address).ok()?;
            // It may have made room for later ones already.
            let _ = stream.write_all(&connect[..1 + n * 7 % (connect.len() - 1)]);
            Some(stream)
        })
        .collect();
    for _ in 0..10 {
        let mut admin = Host::open(&address, PLAIN);
        admin.connect(0, 0xffff, (HOST, "nqn.2026-11.test:good")).expect("it may connect");
    }
    serves_others("beside half of a Connect");
    bounded(&format!("{} connections that stop in the middle", half.len()));
    drop(half);

    // Discovery needs no grant. Who asks for more than a few hundred controllers loses the oldest, and others still have theirs.
    let mut strangers: Vec<Host> = (0..300)
        .map(|_| {
            let mut host = Host::open(&address, PLAIN);
            let id = host.connect(0, 0xffff, ("nqn.2026-11.test:stranger", DISCOVERY_NQN)).expect("anybody may");
            assert!(id > 64_000, "{id}: no number of a subsystem's controllers");
            host
        })
        .collect();
    assert_eq!(strangers[0].hear(), None, "it made room");
    Host::admin(&address, PLAIN, DISCOVERY_NQN);
    Host::admin(&address, PLAIN, NQN);
    serves_others("beside discovery controllers");
    drop(strangers);
    bounded("at the end");
    assert!(server.stop());
}

/// A command's number is its host's own affair, and so is the length of its queue: no place here depends on either.
#[test]
fn commands_beyond_the_queues_entries_are_answered_under_any_number() {
    const READS: u16 = 200;
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", "");
    let (_admin, controller) = Host::admin(&address, PLAIN, NQN);
    let mut io = Host::io(&address, PLAIN, controller, 1);
    // The queue has 32 entries.
    for n in 0..READS {
        io.send(&Command::read(u16::MAX - n, u64::from(n) * 8, 8), &[]);
    }
    let mut numbers: Vec<u16> = (0..READS)
        .map(|_| match io.hear() {
            Some(Heard::Data { id, done: true, .. }) => id,
            other => panic!("{other:?}"),
        })
        .collect();
    numbers.sort_unstable();
    assert!(numbers.iter().copied().eq(u16::MAX - READS + 1..=u16::MAX), "{numbers:?}");
    assert_eq!(io.write_fetched(0, &[5; 4096], 4096), Ok(0));
    assert!(server.stop());
}

/// Damaged data cost their command. A damaged header costs the connection, as nobody knows where the next one begins.
#[test]
fn digests_that_fail_cost_their_command_or_their_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", "");
    let (mut admin, controller) = Host::admin(&address, BOTH, NQN);
    let [mut io, mut other] = [1, 3].map(|queue| Host::io(&address, BOTH, controller, queue));
    let damaged = |command: &Command, data: &[u8], at: usize| {
        let mut bytes = Vec::new();
        command.send(&mut bytes, BOTH, data);
        let at = if at < bytes.len() { at } else { bytes.len() - 1 };
        bytes[at] ^= 1;
        bytes
    };
    assert_eq!(io.ask(Command::write(1, 0, 8, true), &[7; 4096]), Ok(0));
    for at in [100, usize::MAX] {
        io.stream.write_all(&damaged(&Command::write(2, 0, 8, true), &[8; 4096], at)).unwrap();
        assert_eq!(io.done(2), Err(Status::TRANSPORT), "its data or their digest");
        assert_eq!(io.read(0, 8), Ok(vec![7; 4096]), "nothing was written, and the queue goes on");
    }
    for (at, queue) in [(20, 5), (72, 6)] {
        let mut queue = Host::io(&address, BOTH, controller, queue);
        queue.stream.write_all(&damaged(&Command::read(3, 0, 8), &[], at)).unwrap();
        assert_eq!(queue.hear(), Some(Heard::Terminated(3)), "a header or its digest");
        assert_eq!(queue.hear(), None);
    }
    assert_eq!(other.read(0, 8), Ok(vec![7; 4096]));
    // The admin queue's end is the controller's.
    admin.ok(Command::keep_alive(1), &[]);
    admin.stream.write_all(&damaged(&Command::keep_alive(2), &[], 20)).unwrap();
    assert_eq!((admin.hear(), admin.hear()), (Some(Heard::Terminated(3)), None));
    assert_eq!((io.hear(), other.hear()), (None, None));
    let mut stranger = Host::open(&address, BOTH);
    let connect = connect_data(0xffff, [9; 16], HOST, NQN);
    stranger.stream.write_all(&damaged(&Command::connect(0, 0, 32, 0, true), &connect, usize::MAX)).unwrap();
    assert_eq!(stranger.done(0), Err(Status::TRANSPORT));
    Host::admin(&address, BOTH, NQN);
    assert!(server.stop());
}

/// NVMe forbids a host to give two commands in flight one number. A node keeps none of its own by it: each is carried out and answered.
#[test]
fn commands_that_share_a_number_are_each_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (server, address) = serve(dir.path(), r#"{ file = "p.img", size = "64MiB" }"#, "vol", "");
    let (_admin, controller) = Host::admin(&address, PLAIN, NQN);
    let mut io = Host::io(&address, PLAIN, controller, 1);
    let (first, second) = (pattern(1, 256 << 10), pattern(2, 256 << 10));
    // Two writes whose data are fetched, and two in capsules.
    io.send(&Command::write(7, 0, 512, false), &[]);
    io.send(&Command::write(7, 1000, 512, false), &[]);
    io.send(&Command::write(7, 2000, 8, true), &first[..4096]);
    io.send(&Command::write(7, 3000, 8, true), &second[..4096]);
    let mut data = [&first, &second].into_iter();
    let mut ended = 0;
    while ended < 4 {
        match io.hear() {
            Some(ready @ Heard::Ready { .. }) => {
                let mut out = Vec::new();
                ready.send_data(&mut out, PLAIN, data.next().expect("two are fetched"), 256 << 10);
                io.stream.write_all(&out).unwrap();
            }
            Some(Heard::Done { id: 7, status: Status::OK, .. }) => ended += 1,
            other => panic!("{other:?}"),
        }
    }
    for (start, blocks, want) in
        [(0, 512, &first[..]), (1000, 512, &second), (2000, 8, &first[..4096]), (3000, 8, &second[..4096])]
    {
        assert!(io.read(start, blocks).expect("a read") == want, "at block {start}");
    }
    // Four reads with one number: four answers, each with the bytes of one of them.
    for start in [0, 1000, 2000, 3000] {
        io.send(&Command::read(9, start, 8), &[]);
    }
    let mut heard: Vec<Vec<u8>> = Vec::new();
    while heard.len() < 4 {
        match io.hear() {
            Some(Heard::Data { id: 9, data, .. }) => heard.push(data),
            Some(Heard::Done { id: 9, status: Status::OK, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut want =
        vec![first[..4096].to_vec(), second[..4096].to_vec(), first[..4096].to_vec(), second[..4096].to_vec()];
    heard.sort_unstable();
    want.sort_unstable();
    assert!(heard == want, "each read's bytes once");
    assert!(server.stop());
}

/// Connects a controller with an I/O queue, asks for 2 MiB and leaves without taking them.
fn come_and_go(address: &str) -> std::io::Result<()> {
    let connect = |queue, controller| {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut out = parameters(PLAIN).to_vec();
        let data = connect_data(controller, [9; 16], HOST, NQN);
        Command::connect(0, queue, 32, 0, true).send(&mut out, PLAIN, &data);
        stream.write_all(&out)?;
        let (mut ear, mut have, mut piece) = (Ear::default(), Vec::new(), [0; 4096]);
        loop {
            let mut rest = &have[..];
            match ear.take(&mut rest).expect("the node keeps to the protocol") {
                Some(Heard::Done { value, status: Status::OK, .. }) => return Ok((stream, value as u16)),
                Some(Heard::Parameters(..)) => {}
                Some(other) => return Err(std::io::Error::other(format!("{other:?}"))),
                None => match stream.read(&mut piece)? {
                    0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                    n => {
                        let mut more = rest.to_vec();
                        more.extend_from_slice(&piece[..n]);
                        have = more;
                        continue;
                    }
                },
            }
            have = rest.to_vec();
        }
    };
    let (mut admin, controller) = connect(0, 0xffff)?;
    let mut out = Vec::new();
    Command::property_set(0, 0x14, 0x46_0001).send(&mut out, PLAIN, &[]);
    admin.write_all(&out)?;
    admin.read_exact(&mut [0; 24])?;
    let (mut io, _) = connect(1, controller)?;
    let mut out = Vec::new();
    for id in 0..8 {
        Command::read(id, u64::from(id) * 512, 512).send(&mut out, PLAIN, &[]);
    }
    io.write_all(&out)
}

/// H6, and hosts that connect anew as fast as they can: newcomers of another tenant get in, and memory returns.
#[test]
fn a_storm_of_hosts_that_come_and_go_keeps_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), TENANTS);
    let status = server.control("GET", "/v1/status").expect(200);
    let address = status["node"]["listens"]["nvme_tcp"].as_str().expect("it listens").to_string();
    let (_admin, _) = Host::admin(&address, PLAIN, NQN);
    let before = resident_bytes(server.pid() as u32);
    let (stop, storms, silent) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    // A newcomer that doesn't get the processor for long is among the longest silent ones, which make room.
    let come_in = |queue, controller| {
        let once = || {
            let mut host = Host::open(&address, PLAIN);
            let controller = host.connect(queue, controller, (HOST, "nqn.2026-11.test:good")).expect("it may connect");
            (host, controller)
        };
        (0..5).find_map(|_| std::panic::catch_unwind(once).ok()).expect("a newcomer gets in")
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    storms.fetch_add(usize::from(come_and_go(&address).is_ok()), Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut kept = std::collections::VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                let stream = TcpStream::connect(&address);
                silent.fetch_add(usize::from(stream.is_ok()), Ordering::Relaxed);
                kept.extend(stream);
                if kept.len() > 300 {
                    kept.pop_front();
                }
                std::thread::yield_now();
            }
        });
        let ended = std::panic::catch_unwind(|| {
            plimsoll_testkit::until("a storm", || storms.load(Ordering::Relaxed) >= 100);
            plimsoll_testkit::until("a flood", || silent.load(Ordering::Relaxed) >= 1000);
            for n in 0..20 {
                // Each answer has the reading deadline of `Host::open`.
                let (mut admin, controller) = come_in(0, 0xffff);
                admin.ok(Command::property_set(0, 0x14, 0x46_0001), &[]);
                let (mut io, _) = come_in(1, controller);
                assert_eq!(io.write_fetched(8, &[n; 65536], 65536), Ok(0));
                assert!(io.read(8, 128).as_deref() == Ok(&[n; 65536][..]));
            }
        });
        stop.store(true, Ordering::Relaxed);
        println!("{} storms, {} silent connections", storms.load(Ordering::Relaxed), silent.load(Ordering::Relaxed));
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    plimsoll_testkit::until("its memory returns", || resident_bytes(server.pid() as u32) < before + 64 * MIB);
    Host::admin(&address, PLAIN, NQN);
    assert!(server.stop());
}
