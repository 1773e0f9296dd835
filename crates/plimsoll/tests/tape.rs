//! A live pool's tape, replayed in the simulator: the same layers must decide the same.

mod common;
use common::client::Client;
use common::nvme::{HOST, Host, PLAIN};
use common::{Server, config, ok, run};
use plimsoll_base::Rng;
use plimsoll_nbd::wire::{Command, CommandFlags};
use plimsoll_node::engine::tape::TapeReader;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command as NvmeCommand, range};
use plimsoll_stack::tape::{Decided, Entry, Input};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const BIN: &str = env!("CARGO_BIN_EXE_plimsoll");

/// A modelled disk in real time, so that reads with a promise are refused; its pool is recorded.
fn start(dir: &Path) -> Server {
    let device = "{ file = \"p.img\", size = \"256MiB\", model = \"cheetah-15k5\" }\ntape = \"p.tape\"\ndepth = 2";
    Server::start(dir, &config(device, "64MiB"))
}

/// Reads and writes of any alignment, flushes, trims; part of the reads with a promise that can't be kept for all.
fn load(server: &Server) {
    let mut rng = Rng::new(7, "tape");
    let mut plain = Client::connect(&server.socket(), "vol").unwrap();
    let mut promised = Client::connect(&server.socket(), "vol?deadline=15ms&busy=error").unwrap();
    let mut waiting = Client::connect(&server.socket(), "vol?deadline=15ms").unwrap();
    for round in 0..12 {
        for _ in 0..16 {
            let (at, len) = (rng.below(60 << 20), 1 + rng.below(20_000) as u32);
            let data = vec![round; len as usize];
            match rng.below(6) {
                0 => plain.send(Command::Read, CommandFlags::EMPTY, at, len, &[]).unwrap(),
                1 => plain.send(Command::Write, CommandFlags::FUA, at, len, &data).unwrap(),
                2 => plain.send(Command::Trim, CommandFlags::EMPTY, at, len, &[]).unwrap(),
                3 => plain.send(Command::BlockStatus, CommandFlags::EMPTY, at, len, &[]).unwrap(),
                _ => plain.send(Command::Write, CommandFlags::EMPTY, at, len, &data).unwrap(),
            };
            promised.send(Command::Read, CommandFlags::EMPTY, rng.below(60 << 20), 4096, &[]).unwrap();
        }
        waiting.send(Command::Read, CommandFlags::EMPTY, rng.below(60 << 20), 4096, &[]).unwrap();
        for _ in 0..16 {
            plain.receive().unwrap().1.ok();
            promised.receive().unwrap().1.ok();
        }
        assert!(waiting.receive().unwrap().1.is_ok(), "who waits is served, in time or not");
        plain.flush().unwrap().unwrap();
    }
    // A client that vanishes with requests inside: they are cancelled where they wait.
    for n in 0..40 {
        promised.send(Command::Read, CommandFlags::EMPTY, n << 20, 4096, &[]).unwrap();
    }
}

fn replayed(dir: &Path) -> Value {
    let said = ok(BIN, &["tape", "replay", dir.join("p.tape").to_str().unwrap(), "--json"]);
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

#[test]
fn a_live_pool_replays_to_the_same_decisions() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    server.cli(&["volume", "create", "second", "--pool", "p", "--size", "8MiB", "--tenant", "t"]);
    load(&server);
    server.cli(&["volume", "grow", "vol", "--size", "96MiB"]);
    Client::connect(&server.socket(), "second").unwrap().write(1000, &[1; 5000]).unwrap().unwrap();
    server.cli(&["volume", "delete", "second", "--yes", "--disconnect"]);
    assert!(server.stop());
    let first = replayed(dir.path());
    assert_eq!(first, replayed(dir.path()), "two replays of one tape");
    let seen = &first["replayed"];
    assert!(seen["refused"].as_u64() > Some(20) && seen["accepted"].as_u64() > Some(200), "{first}");
    assert_eq!(seen["complete"], true);
    // Another depth decides otherwise: the comparison can fail.
    let tape = dir.path().join("p.tape");
    let other = run(BIN, &["tape", "replay", tape.to_str().unwrap(), "--depth", "1"]);
    let said = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(other.status.code(), Some(1), "{said}");
    assert!(said.contains("recorded") && said.contains("now"), "{said}");
}

/// With scattered logs: what the layer reads of its own at a start and when logs are emptied is on the tape, clients' bytes aren't.
#[test]
fn a_live_pool_with_logs_replays_to_the_same_decisions() {
    let dir = tempfile::tempdir().unwrap();
    let logs = "[pool.logs]\ngroup = \"4MiB\"\nlog = \"256KiB\"\nextents = 4096\nlogged_write = \"16KiB\"\nidle = \"5ms\"\nevery = \"300ms\"";
    let device = format!("{{ file = \"p.img\", size = \"256MiB\" }}\ntape = \"p.tape\"\n{logs}");
    let config = config(&device, "64MiB");
    let server = Server::start(dir.path(), &config);
    load(&server);
    load(&server);
    server.cli(&["logs", "checkpoint", "p"]);
    load(&server);
    let view = |s: &Server| -> Value { serde_json::from_str(&s.cli(&["logs", "status", "p", "--json"])).unwrap() };
    let seen = view(&server);
    assert!(seen["logged"].as_u64() > Some(100) && seen["checkpoints"].as_u64() > Some(0), "{seen}");
    plimsoll_testkit::until("an event of emptied logs", || {
        let events = server.cli(&["events", "--kind", "cleaning"]);
        events.contains("pool `p`: ") && events.contains(" logs were emptied (")
    });
    assert!(server.stop());
    // From here on nothing is checkpointed by itself: what is logged is there at the kill, however late that comes.
    let config = config.replace("idle = \"5ms\"\nevery = \"300ms\"", "idle = \"1h\"\nevery = \"1h\"");
    let server = Server::start(dir.path(), &config);
    drop(Client::once_served(&server.socket(), "vol"));
    // The tape's thread writes when it has its turn: until then there is nothing for the kill to leave.
    let written = || std::fs::metadata(dir.path().join("p.tape")).unwrap().len();
    let (before, end) = (written(), Instant::now() + Duration::from_secs(60));
    while written() < before + (64 << 10) {
        assert!(Instant::now() < end, "the tape isn't written");
        load(&server);
    }
    server.kill();
    // How much more of it was written before the kill is the machine's affair.
    let cut = replayed(dir.path());
    assert!(cut["replayed"]["accepted"].as_u64() > Some(200), "{cut}");
    // The next start finds records, and its tape has what it found.
    let server = Server::start(dir.path(), &config);
    drop(Client::once_served(&server.socket(), "vol")); // once the logs are read
    let seen = view(&server);
    assert!(seen["recovery_records"].as_u64() > Some(0), "{seen}");
    load(&server);
    assert!(server.stop());
    let second = replayed(dir.path());
    assert_eq!(second["replayed"]["complete"], true, "{second}");
    assert_eq!(second, replayed(dir.path()), "two replays of one tape");
}

/// With a write-back cache and NVRAM: which volumes there were, which generation the cache has and which records are its NVRAM's are in
/// the tape's plan, and records are as long as they were although the clients' bytes in them are left out.
#[test]
fn a_live_pool_with_a_cache_and_nvram_replays_to_the_same_decisions() {
    let dir = tempfile::tempdir().unwrap();
    let cache = "[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\nextent = \"8KiB\"\nweu = \"256KiB\"\n\
                 nvram = { file = \"nvram.img\", size = \"16MiB\" }";
    let device = format!("{{ file = \"p.img\", size = \"256MiB\" }}\ntape = \"p.tape\"\n{cache}");
    let config = config(&device, "64MiB");
    let server = Server::start(dir.path(), &config);
    load(&server);
    load(&server);
    server.kill();
    // How much of it was written before the kill is the machine's affair.
    assert_eq!(replayed(dir.path())["replayed"]["complete"], false);
    // The next start reads records that the NVRAM kept.
    let server = Server::start(dir.path(), &config);
    load(&server);
    server.cli(&["cache", "flush", "p"]);
    load(&server);
    assert!(server.stop());
    let second = replayed(dir.path());
    assert_eq!(second["replayed"]["complete"], true, "{second}");
    assert_eq!(second, replayed(dir.path()), "two replays of one tape");
}

/// A tape is for its operator: no other user may read it, and what clients wrote isn't on it, though checkpoints read all of that.
#[test]
fn a_tape_has_no_bytes_of_clients_and_is_nobodys_else() {
    let dir = tempfile::tempdir().unwrap();
    let logs = "[pool.logs]\ngroup = \"4MiB\"\nlog = \"256KiB\"\nextents = 4096\nlogged_write = \"16KiB\"\nidle = \"5ms\"\nevery = \"300ms\"";
    let device = format!("{{ file = \"p.img\", size = \"256MiB\" }}\ntape = \"p.tape\"\n{logs}");
    // As an earlier version left one.
    let tape = dir.path().join("p.tape");
    std::fs::write(&tape, b"PLIMTAPE and more").unwrap();
    std::fs::set_permissions(&tape, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let server = Server::start(dir.path(), &config(&device, "64MiB"));
    let mut c = Client::connect(&server.socket(), "vol").unwrap();
    for n in 0..64 {
        c.write(n << 16, &b"a secret of tenant t".repeat(200)).unwrap().unwrap();
    }
    c.flush().unwrap().unwrap();
    server.cli(&["logs", "checkpoint", "p"]);
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let seen: Value = serde_json::from_str(&server.cli(&["logs", "status", "p", "--json"])).unwrap();
        if seen["checkpoints"].as_u64() > Some(0) {
            break;
        }
        assert!(std::time::Instant::now() < end, "{seen}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(c.read(0, 4000).unwrap().unwrap().starts_with(b"a secret"));
    assert!(server.stop());
    let bytes = std::fs::read(&tape).unwrap();
    assert!(!bytes.windows(8).any(|w| w == b"a secret"), "{} bytes of tape have what a client wrote", bytes.len());
    for name in ["p.tape", "p.tape.1"] {
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(dir.path().join(name)).unwrap());
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    assert_eq!(replayed(dir.path())["replayed"]["complete"], true);
}

#[test]
fn a_tape_is_good_up_to_where_it_was_cut_or_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    load(&server);
    server.kill();
    let seen = replayed(dir.path());
    assert_eq!(seen["replayed"]["complete"], false);
    assert!(seen["replayed"]["accepted"].as_u64() > Some(100), "{seen}");

    let tape = dir.path().join("p.tape");
    let good = std::fs::read(&tape).unwrap();
    let refused = |bytes: &[u8]| {
        std::fs::write(&tape, bytes).unwrap();
        let out = run(BIN, &["tape", "replay", tape.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    // A frame that is missing, however well the others are.
    let mut frames = vec![12];
    while let Some(len) = good.get(frames[frames.len() - 1]..).and_then(|rest| rest.first_chunk::<4>()) {
        frames.push(frames[frames.len() - 1] + 8 + u32::from_le_bytes(*len) as usize);
    }
    assert!(frames.len() > 4 && frames.last() == Some(&good.len()), "{frames:?} of {}", good.len());
    for missing in 1..frames.len() - 2 {
        let said = refused(&[&good[..frames[missing]], &good[frames[missing + 1]..]].concat());
        assert!(
            said.contains(&format!("checksum of frame {missing} is wrong, or a frame before it")),
            "{missing}: {said}"
        );
    }
    let mut damaged = good.clone();
    let middle = good.len() / 2;
    damaged[middle] ^= 1;
    assert!(refused(&damaged).contains("damaged"), "one bit");
    for other in (0..=9).filter(|v| *v != good[8]) {
        let mut tape = good.clone();
        tape[8] = other;
        let (said, own) = (refused(&tape), good[8]);
        assert!(said.contains(&format!("is a tape of version {other}; this program reads version {own}")), "{said}");
    }
    assert!(refused(b"something else").contains("is not a tape"));
    assert!(refused(&good[..20]).contains("header was cut"));
}

/// Requests of clients on a tape, in order: as they were offered, and how they ended.
fn requests(tape: &Path) -> Vec<Value> {
    let (mut tape, mut all, mut last) = (TapeReader::open(tape).unwrap(), Vec::<Value>::new(), 0);
    let mut inside = std::collections::BTreeMap::new();
    while let Some(entries) = tape.next_frame().unwrap() {
        for entry in &entries {
            match entry {
                Entry::Input(_, Input::Offer(request, data)) => {
                    let mut request = serde_json::to_value(request).unwrap();
                    // Two requests of different times have the same promise if it ends as long after their arrival.
                    let arrived = request["arrived_ns"].take().as_u64().unwrap();
                    let deadline = request["deadline_ns"].as_u64().map(|at| at - arrived);
                    request["deadline_ns"] = serde_json::json!(deadline);
                    request["data"] = serde_json::to_value(data).unwrap();
                    last = all.len();
                    all.push(request);
                }
                Entry::Decided(Decided::Accepted(id)) => _ = inside.insert(*id, last),
                Entry::Decided(Decided::Busy(..)) => all[last]["end"] = "busy".into(),
                Entry::Decided(Decided::Ended(id, ended)) => {
                    all[inside[id]]["end"] = serde_json::to_value(ended).unwrap();
                }
                _ => {}
            }
        }
    }
    all
}

/// A request has the same fields on the tape, whichever protocol its client speaks: operation, place, tenant, priority, promise, end.
#[test]
fn requests_over_nvme_are_recorded_as_those_over_nbd() {
    const EXPORTS: [&str; 3] =
        ["vol?tenant=u&priority=rt:2", "vol?deadline=20us&busy=error", "vol?deadline=10s&busy=error&tenant=u"];
    let dir = tempfile::tempdir().unwrap();
    let device = "{ file = \"p.img\", size = \"256MiB\", model = \"cheetah-15k5\" }\ntape = \"p.tape\"";
    let listen = "unix = \"nbd.sock\"\nnvme_tcp = \"127.0.0.1:0\"\n";
    let more = "[[tenant]]\nname = \"u\"\nclass = \"best-effort\"\nweight = 300\n";
    let nqn = |n: usize| format!("nqn.2026-11.test:{n}");
    let subsystems: String = (0..EXPORTS.len())
        .map(|n| format!("[[subsystem]]\nnqn = \"{}\"\nexport = \"{}\"\n", nqn(n), EXPORTS[n]))
        .collect();
    let text = config(device, "64MiB").replace("unix = \"nbd.sock\"\n", listen) + more + &subsystems;
    let (server, address) = common::nvme::start(dir.path(), &text);

    let mut nbd = EXPORTS.map(|export| Client::connect(&server.socket(), export).unwrap());
    let plain = &mut nbd[0];
    for (command, flags, at, len) in [
        (Command::Write, CommandFlags::EMPTY, 8192, 4096),
        (Command::Write, CommandFlags::FUA, 65536, 65536),
        (Command::Read, CommandFlags::EMPTY, 8192, 4096),
        (Command::Flush, CommandFlags::EMPTY, 0, 0),
        (Command::WriteZeroes, CommandFlags::NO_HOLE, 16384, 4096),
        (Command::Trim, CommandFlags::EMPTY, 32768, 4096),
    ] {
        let data = vec![7; if command == Command::Write { len as usize } else { 0 }];
        plain.send(command, flags, at, len, &data).unwrap();
        assert!(plain.receive().unwrap().1.is_ok(), "{command:?}");
    }
    assert!(nbd[1].read(1 << 20, 4096).unwrap().is_err(), "no disk is that fast");
    assert!(nbd[2].read(2 << 20, 8192).unwrap().is_ok());

    let mut hosts = [0, 1, 2].map(|n| {
        let (admin, controller) = Host::admin(&address, PLAIN, &nqn(n));
        let mut queue = Host::open(&address, PLAIN);
        queue.connect(1, controller, (HOST, &nqn(n))).unwrap();
        (admin, queue)
    });
    let plain = &mut hosts[0].1;
    assert_eq!(plain.ask(NvmeCommand::write(1, 16, 8, true), &[7; 4096]), Ok(0));
    plain.send(&NvmeCommand::write(2, 128, 128, false).durable(), &[]);
    let ready = plain.hear().expect("it asks for the data");
    let mut data = Vec::new();
    ready.send_data(&mut data, PLAIN, &[7; 65536], 65536);
    std::io::Write::write_all(&mut plain.stream, &data).unwrap();
    assert_eq!(plain.done(2), Ok(0));
    assert_eq!(plain.read(16, 8), Ok(vec![7; 4096]));
    assert_eq!(plain.ask(NvmeCommand::flush(3), &[]), Ok(0));
    assert_eq!(plain.ask(NvmeCommand::write_zeroes(4, 32, 8), &[]), Ok(0));
    assert_eq!(plain.ask(NvmeCommand::deallocate(5, 1), &range(64, 8)), Ok(0));
    assert_eq!(hosts[1].1.read(2048, 8), Err(Status::INACCESSIBLE));
    assert!(hosts[2].1.read(4096, 16).is_ok());
    drop((nbd, hosts));
    assert!(server.stop());

    let all = requests(&dir.path().join("p.tape"));
    assert_eq!(all.len(), 16, "{all:#?}");
    let (over_nbd, over_nvme) = all.split_at(8);
    for (one, other) in over_nbd.iter().zip(over_nvme) {
        assert_eq!(one, other);
    }
    // And they tell requests apart.
    let of = |n: usize, field: &str| over_nvme[n][field].clone();
    let field = |field: &str| [0, 6, 7].map(|n| of(n, field));
    assert_eq!(field("deadline_ns"), [Value::Null, 20_000.into(), 10_000_000_000_u64.into()]);
    assert_eq!(field("end"), ["Done", "busy", "Done"].map(Value::from));
    let [u, t, also_u] = field("tenant");
    assert!(u == also_u && u != t, "{u} {t} {also_u}");
    assert_ne!(of(0, "priority"), of(7, "priority"));
    assert_ne!(of(0, "flags"), of(1, "flags"), "FUA");
    assert_eq!(replayed(dir.path())["replayed"]["complete"], true);
}
