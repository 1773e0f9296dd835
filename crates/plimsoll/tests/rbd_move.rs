//! `plimsoll pool move`: a pool on an RBD image goes from one gateway to another, on the fake of Ceph's libraries.

mod common;
use common::Server;
use common::client::Client;
use common::images::{Fake, cache, gateway, gateway_text, gateway_with, has_stopped};
use plimsoll_testkit::until;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;

/// A cluster, and the folders of two gateways.
struct Two {
    fake: Fake,
    here: tempfile::TempDir,
    there: tempfile::TempDir,
}

impl Two {
    fn new() -> Two {
        let folder = || tempfile::tempdir().unwrap();
        Two { fake: Fake::new(64 * MIB), here: folder(), there: folder() }
    }

    /// The old gateway, which has the pool, and the new one.
    fn start(&self) -> (Server, Server) {
        self.start_with("", "")
    }

    /// The same, with more lines for their pools.
    fn start_with(&self, old: &str, new: &str) -> (Server, Server) {
        let old = gateway_with(&self.fake, self.here.path(), old);
        (old, gateway_with(&self.fake, self.there.path(), new))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.fake.dir.path().join(name)
    }
}

/// True if an owner of the image's lock was blocked.
fn is_blocked(two: &Two) -> bool {
    ["blocklist-order", "blocklist"].iter().any(|name| two.file(name).exists())
}

/// True if the monitors were asked to block an owner for a year, and did.
fn is_blocked_for_long(two: &Two) -> bool {
    two.file("blocklist-order").exists()
}

fn socket(of: &Server) -> String {
    of.dir.join("control.sock").display().to_string()
}

/// `plimsoll pool move p` from one node to another must succeed.
fn moved(from: &Server, to: &Server, more: &[&str]) -> Value {
    let to = socket(to);
    let said = from.cli(&[&["pool", "move", "p", "--to", &to, "--json"], more].concat());
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"))
}

fn not_moved(from: &Server, to: &Server, more: &[&str]) -> String {
    let to = socket(to);
    from.cli_fails(&[&["pool", "move", "p", "--to", &to], more].concat())
}

fn contents(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK as usize / 8)
}

/// A MiB that fills units of a cache, drawn from a seed.
fn incompressible(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    };
    (0..MIB / 4).flat_map(|_| next().to_le_bytes()).collect()
}

#[track_caller]
fn reads(client: &mut Client, at: u64, expected: &[u8]) {
    let read = client.read(at, expected.len() as u32).unwrap().unwrap();
    assert!(read == expected, "other bytes at {at}");
}

/// Writes and reads without end, at whichever gateway serves, and knows what each block may have.
struct Load {
    over: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    thread: JoinHandle<BTreeMap<u64, Vec<u64>>>,
}

impl Load {
    fn start(gateways: [PathBuf; 2]) -> Load {
        let (over, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (is_over, counted) = (over.clone(), acknowledged.clone());
        let run = move || {
            // By block: the write that was acknowledged last, then those whose answers were lost.
            let mut model: BTreeMap<u64, Vec<u64>> = (0..BLOCKS).map(|block| (block, vec![0])).collect();
            let (mut client, mut next) = (None::<Client>, 0);
            while !is_over.load(SeqCst) {
                let Some(served) = &mut client else {
                    client = gateways.iter().find_map(|socket| Client::connect(socket, "vol").ok());
                    continue;
                };
                next += 1;
                let block = next * 29 % BLOCKS;
                let known = model.get_mut(&block).unwrap();
                known.push(next);
                match served.write(block * BLOCK, &contents(next)) {
                    Ok(Ok(_)) => *known = vec![next],
                    _ => {
                        client = None;
                        continue;
                    }
                }
                counted.fetch_add(1, SeqCst);
                let block = next * 13 % BLOCKS;
                match served.read(block * BLOCK, BLOCK as u32) {
                    Ok(Ok(read)) => check(&mut model, block, &read),
                    _ => client = None,
                }
            }
            model
        };
        Load { over, acknowledged, thread: std::thread::spawn(run) }
    }

    /// Waits for more acknowledged writes.
    fn more(&self, writes: u64) {
        let least = self.acknowledged.load(SeqCst) + writes;
        until("the load goes on", || self.acknowledged.load(SeqCst) >= least || self.thread.is_finished());
        assert!(!self.thread.is_finished(), "the load has failed");
    }

    /// Ends it and looks at all blocks.
    fn end(self, at: &Path) {
        self.over.store(true, SeqCst);
        let mut model = self.thread.join().unwrap();
        let mut client = Client::connect(at, "vol").unwrap();
        for block in 0..BLOCKS {
            let read = client.read(block * BLOCK, BLOCK as u32).unwrap().unwrap();
            check(&mut model, block, &read);
        }
    }
}

/// A block has the last acknowledged write, or one of those after it whose answers were lost. What was read once stays.
fn check(model: &mut BTreeMap<u64, Vec<u64>>, block: u64, read: &[u8]) {
    let known = model.get_mut(&block).unwrap();
    let found = u64::from_le_bytes(read[..8].try_into().unwrap());
    assert!(read == contents(found), "block {block} is torn");
    assert!(known.contains(&found), "block {block} has {found} of {known:?}");
    *known = vec![found];
}

#[test]
fn a_pool_moves_under_load_and_back_and_loses_nothing() {
    let two = Two::new();
    let (old, new) = two.start();
    let load = Load::start([old.socket(), new.socket()]);
    load.more(100);
    let why = not_moved(&old, &new, &[]);
    assert!(why.contains("is in use") && why.contains("--disconnect"), "{why}");
    load.more(10);
    let said = moved(&old, &new, &["--disconnect"]);
    assert!(said["volumes"] == serde_json::json!(["vol"]) && said["by_force"] == false, "{said}");
    let (all, unserved) = (said["seconds"].as_f64().unwrap(), said["unserved_seconds"].as_f64().unwrap());
    assert!(0.0 < unserved && unserved < all, "{said}");
    assert!(Client::connect(&old.socket(), "vol").is_err(), "one gateway at a time");
    load.more(100);
    let why = not_moved(&old, &new, &[]);
    assert!(why.contains("already"), "{why}");
    // From the new gateway's side, for people.
    let to = socket(&old);
    let said = new.cli(&["pool", "move", "p", "--to", &to, "--disconnect"]);
    for part in ["moves from", "released at", "is served at", "with it came vol", "no gateway served it for"] {
        assert!(said.contains(part), "{part} is missing in: {said}");
    }
    load.more(100);
    load.end(&old.socket());
    assert!(old.stop() && new.stop());
}

/// Both have a cache of their own. What one wrote isn't in the other's, so a cache counts as warm only if no other gateway had the pool.
#[test]
fn a_cache_is_warm_only_if_no_other_gateway_had_the_pool() {
    let two = Two::new();
    let through = cache("through") + "weu = \"256KiB\"\n";
    let (old, new) = two.start_with(&through, &through);
    let write = |server: &Server, n: u64| {
        let mut client = Client::connect(&server.socket(), "vol").unwrap();
        client.write(0, &incompressible(n)).unwrap().unwrap();
        reads(&mut client, 0, &incompressible(n));
        server.wait_for_cache("it is cached", |v| v["inserted"].as_u64() >= Some(MIB / BLOCK / 8));
    };
    let read = |server: &Server, n: u64| {
        reads(&mut Client::connect(&server.socket(), "vol").unwrap(), 0, &incompressible(n));
    };
    let found = |server: &Server| server.cache_status()["start_extents"].as_u64().unwrap();
    write(&old, 1);
    moved(&old, &new, &[]);
    read(&new, 1);
    write(&new, 2);
    moved(&new, &old, &[]);
    assert_eq!(found(&old), 0, "the pool was elsewhere");
    read(&old, 2);
    write(&old, 3);
    assert!(old.stop());
    let old = gateway_with(&two.fake, two.here.path(), &through);
    assert!(found(&old) > 0, "nobody else had the pool");
    read(&old, 3);
    moved(&old, &new, &[]);
    assert_eq!(found(&new), 0);
    read(&new, 3);
}

fn mode(server: &Server) -> (String, bool) {
    let volume = &server.cache_status()["volumes"][0];
    (volume["mode"].as_str().unwrap().to_string(), volume["behind"].as_bool().unwrap())
}

fn back() -> (String, bool) {
    ("back".to_string(), true)
}

#[test]
fn a_write_back_cache_is_drained_by_a_move_and_is_one_again_at_the_next() {
    let two = Two::new();
    let (old, new) = two.start_with(&cache("back"), "");
    let load = Load::start([old.socket(), new.socket()]);
    load.more(100);
    assert_eq!(mode(&old), back());
    let to = socket(&new);
    let said = old.cli(&["pool", "move", "p", "--to", &to, "--disconnect"]);
    assert!(said.contains("first its cache is written back: vol"), "{said}");
    load.more(100);
    moved(&new, &old, &["--disconnect"]);
    load.more(100);
    assert_eq!(mode(&old), back(), "the mode is the configured one");
    load.end(&old.socket());
}

/// The write-back is taken back if the pool isn't released, or if nobody waits for it any more.
#[test]
fn a_release_that_comes_to_nothing_leaves_the_cache_as_it_was() {
    let two = Two::new();
    let (old, new) = two.start_with(&cache("back"), "");
    let mut client = Client::connect(&old.socket(), "vol").unwrap();
    client.write(0, &contents(1)).unwrap().unwrap();
    let why = old.cli_fails(&["pool", "release", "p", "--write-back"]);
    assert!(why.contains("is in use"), "{why}");
    until("it is written back again", || mode(&old) == back());
    client.write(0, &contents(2)).unwrap().unwrap();

    // It can't be written back, and the operator ends the command.
    two.fake.control("fail write 5\n");
    let mut moving = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    moving.args(["pool", "move", "p", "--disconnect", "--control", &socket(&old), "--to", &socket(&new)]);
    let mut moving = moving.stdout(Stdio::null()).spawn().unwrap();
    until("it is written through", || mode(&old).0 == "through");
    let why = not_moved(&old, &new, &["--disconnect"]);
    assert!(why.contains("is being written back for another release"), "{why}");
    moving.kill().unwrap();
    moving.wait().unwrap();
    until("it is written back again", || mode(&old) == back());
    two.fake.control("");
    client.write(BLOCK, &contents(3)).unwrap().unwrap();
    moved(&old, &new, &["--disconnect"]);
    let mut client = Client::connect(&new.socket(), "vol").unwrap();
    reads(&mut client, 0, &contents(2));
    reads(&mut client, BLOCK, &contents(3));
}

#[test]
fn a_pool_whose_cache_is_needed_does_not_fail_over_until_it_is_given_up() {
    let two = Two::new();
    let (old, new) = two.start_with(&cache("back"), "");
    let mut client = Client::connect(&old.socket(), "vol").unwrap();
    client.write(0, &contents(1)).unwrap().unwrap();
    old.signal(Signal::STOP);
    until("all threads have stopped", || has_stopped(&old));
    let why = not_moved(&old, &new, &["--force"]);
    assert!(why.contains("newest data of volumes vol"), "{why}");
    assert!(!is_blocked(&two), "the owner isn't blocked by a move that is refused");
    let why = new.cli_fails(&["pool", "take", "p", "--force"]);
    assert!(why.contains("newest data of volumes vol") && why.contains("--without-cache"), "{why}");
    assert!(!is_blocked(&two), "the owner isn't blocked by a take that is refused");
    old.signal(Signal::CONT);
    client.write(0, &contents(2)).unwrap().unwrap();
    reads(&mut client, 0, &contents(2));
    old.kill();

    // A cluster forgets the lock of a dead owner.
    let (dead, to) = (two.here.path().join("control.sock").display().to_string(), socket(&new));
    let arguments = ["pool", "move", "p", "--control", &dead, "--to", &to, "--force"];
    let refused = common::run(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("newest data of volumes vol"), "{why}");
    let why = new.cli_fails(&["pool", "take", "p"]);
    assert!(why.contains("volumes vol") && why.contains("plimsoll cache give-up"), "{why}");
    let config = two.there.path().join("node.toml").display().to_string();
    let give_up = ["cache", "give-up", "vol", "--pool", "p", "--lose-data", "--config", &config];
    common::ok(env!("CARGO_BIN_EXE_plimsoll"), &give_up);
    common::ok(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
    Client::connect(&new.socket(), "vol").unwrap().write(0, &contents(3)).unwrap().unwrap();
}

/// A way to a node's control socket, which can be broken off.
struct Way {
    path: PathBuf,
    ends: Arc<Mutex<Vec<UnixStream>>>,
}

impl Way {
    fn to(server: &Server) -> Way {
        let (path, node) = (server.dir.join("way.sock"), socket(server));
        let ends = Arc::<Mutex<Vec<UnixStream>>>::default();
        let (listener, known) = (UnixListener::bind(&path).unwrap(), ends.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (client, node) = (client.unwrap(), UnixStream::connect(&node).unwrap());
                for (from, to) in [(&client, &node), (&node, &client)] {
                    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to); // one of the two has left
                        let _ = to.shutdown(Shutdown::Write);
                    });
                }
                known.lock().unwrap().extend([client, node]);
            }
        });
        Way { path, ends }
    }

    fn break_off(&self) {
        std::fs::remove_file(&self.path).unwrap();
        for end in self.ends.lock().unwrap().iter() {
            let _ = end.shutdown(Shutdown::Both); // it may have ended
        }
    }
}

/// The old gateway is lost in the middle of the write-back: a move by force doesn't block it, as its cache is needed.
#[test]
fn a_gateway_that_is_lost_while_its_cache_is_written_back_is_not_blocked() {
    let two = Two::new();
    let (old, new) = two.start_with(&cache("back"), "");
    let mut client = Client::connect(&old.socket(), "vol").unwrap();
    client.write(0, &contents(1)).unwrap().unwrap();
    let way = Way::to(&old);
    two.fake.control("fail write 5\n");
    let mut moving = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    moving.args(["pool", "move", "p", "--disconnect", "--force", "--control"]).arg(&way.path);
    let moving = moving.args(["--to", &socket(&new)]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    until("it is written through", || mode(&old).0 == "through");
    way.break_off();
    let ended = moving.wait_with_output().unwrap();
    let why = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && why.contains("newest data of volumes vol"), "{why}");
    assert!(!is_blocked(&two), "{why}");
    two.fake.control("");
    until("it is written back again", || mode(&old) == back());
    reads(&mut client, 0, &contents(1));
}

/// The old gateway hangs for ever, and its cache is lost: the lock is taken, then the data are given up.
#[test]
fn a_cache_that_is_given_up_does_not_keep_the_lock_of_an_owner_that_hangs() {
    let two = Two::new();
    let (old, new) = two.start_with(&cache("back"), "");
    Client::connect(&old.socket(), "vol").unwrap().write(0, &contents(1)).unwrap().unwrap();
    old.signal(Signal::STOP);
    until("all threads have stopped", || has_stopped(&old));
    let why = new.cli_fails(&["pool", "take", "p", "--without-cache"]);
    assert!(why.contains("--force"), "{why}");
    let why = new.cli_fails(&["pool", "take", "p", "--force", "--without-cache"]);
    assert!(why.contains("volumes vol") && why.contains("plimsoll cache give-up"), "{why}");
    assert!(is_blocked(&two));
    let config = two.there.path().join("node.toml").display().to_string();
    let give_up = ["cache", "give-up", "vol", "--pool", "p", "--lose-data", "--config", &config];
    common::ok(env!("CARGO_BIN_EXE_plimsoll"), &give_up);
    new.cli(&["pool", "take", "p"]);
    Client::connect(&new.socket(), "vol").unwrap().write(0, &contents(2)).unwrap().unwrap();
}

/// A name that is mistyped in `device` may be that of an image that a virtual machine has, or another pool.
#[test]
fn the_lock_of_an_image_that_is_not_the_pools_is_not_taken() {
    let two = Two::new();
    let other = gateway_text(&two.fake, "").replace("\"p\"", "\"q\"");
    let old = Server::start(two.here.path(), &other);
    let new = gateway(&two.fake, two.there.path());
    let refused = || {
        let why = new.cli_fails(&["pool", "take", "p", "--force"]);
        assert!(why.contains("nothing was changed"), "{why}");
        assert!(!is_blocked(&two), "{why}");
    };
    refused();
    Client::connect(&old.socket(), "vol").unwrap().write(0, &contents(1)).unwrap().unwrap();
    assert!(old.stop());
    for first_byte in [0xEB, 0] {
        // Of a virtual machine's disk that has data, and of one that has none yet.
        let image = std::fs::File::create(two.file("pool.image")).unwrap();
        image.set_len(64 * MIB).unwrap();
        image.write_all_at(&[first_byte; 4096], 0).unwrap();
        let lock = std::fs::File::create(two.file("pool.image.lock")).unwrap();
        lock.write_all_at(b"127.0.0.1:0/7", 0).unwrap();
        lock.lock().unwrap();
        refused();
    }
}

/// A gateway that is cut off from the cluster, and not from its clients, has a lease: until it ends the gateway answers from its cache.
#[test]
fn an_old_owner_answers_nothing_from_its_cache_once_the_new_one_serves() {
    let two = Two::new();
    let lease = [("PLIMSOLL_TEST_LEASE_MS", "8000")];
    let old = Server::try_start_with(two.here.path(), &gateway_text(&two.fake, &cache("through")), &lease).unwrap();
    let (_view, text) = other_view(&two);
    let new = Server::try_start_with(two.there.path(), &text, &lease).unwrap();
    let mut client = Client::connect(&old.socket(), "vol").unwrap();
    client.write(0, &contents(1)).unwrap().unwrap();
    reads(&mut client, 0, &contents(1));
    two.fake.control("lock-hangs\n");
    until("the lock is being asked for", || two.file("lock-asked").exists());
    reads(&mut client, 0, &contents(1));
    let said = new.cli(&["pool", "take", "p", "--force"]);
    assert!(said.contains("may answer from its caches"), "{said}");
    Client::connect(&new.socket(), "vol").unwrap().write(0, &contents(2)).unwrap().unwrap();
    let read = client.read(0, BLOCK as u32);
    assert!(!matches!(read, Ok(Ok(_))), "the old owner answers");
    two.fake.control("");
}

/// Also where the monitors refuse to block the owner for a year: the gateway that breaks its lock has the lock meanwhile.
#[test]
fn a_third_gateway_does_not_get_the_lock_before_the_old_lease_is_over() {
    let two = Two::new();
    let third = tempfile::tempdir().unwrap();
    for control in ["", "block-fails 1\n"] {
        let old = gateway(&two.fake, two.here.path());
        let new = gateway(&two.fake, two.there.path());
        let third = gateway(&two.fake, third.path());
        old.signal(Signal::STOP);
        until("all threads have stopped", || has_stopped(&old));
        let owner = || std::fs::read_to_string(two.file("pool.image.lock")).ok().filter(|owner| !owner.is_empty());
        let first = owner();
        two.fake.control(control);
        let socket = socket(&new);
        let taking = std::thread::spawn(move || {
            let take = ["pool", "take", "p", "--force", "--control", &socket];
            common::ok(env!("CARGO_BIN_EXE_plimsoll"), &take);
        });
        until("the lock has another owner", || owner().is_some_and(|now| Some(now) != first));
        let second = owner();
        let why = third.cli_fails(&["pool", "take", "p"]);
        assert!(why.contains("another client has it"), "{why}");
        taking.join().unwrap();
        assert!(owner() != second, "nobody had the lock before the pool was opened");
        assert_eq!(is_blocked_for_long(&two), control.is_empty());
        Client::connect(&new.socket(), "vol").unwrap().write(0, &contents(1)).unwrap().unwrap();
        assert!(new.cli(&["events", "--kind=node"]).contains("the image's lock was taken from"));
        two.fake.control("");
        drop(old);
        assert!(new.stop() && third.stop());
        let _ = std::fs::remove_file(two.file("blocklist-order")); // one of the two has none
    }
}

/// The cluster's list keeps the owner out, whatever became of the lock: an operator who wants the old gateway back must hear of it.
#[test]
fn an_owner_that_was_blocked_for_nothing_is_named() {
    let two = Two::new();
    let (old, new) = two.start();
    let owner = std::fs::read_to_string(two.file("pool.image.lock")).unwrap();
    let events = || new.cli(&["events", "--kind=node"]);
    let blocked = format!("client {owner} is blocked by order");
    two.fake.control("break-fails 5\n");
    let why = new.cli_fails(&["pool", "take", "p", "--force"]);
    assert!(why.contains(&blocked) && why.contains("the lock could not be taken"), "{why}");
    assert!(events().contains(&blocked), "{}", events());
    // The owner gave the lock back in between, and has it again.
    two.fake.control("break-fails 2\n");
    let why = new.cli_fails(&["pool", "take", "p", "--force"]);
    assert!(why.contains(&blocked) && why.contains("another client has it"), "{why}");
    assert!(events().matches(&blocked).count() >= 2, "{}", events());
    // Nothing was done: nothing is told.
    let before = events();
    two.fake.control("break-fails 5\nblock-fails 1\n");
    let why = new.cli_fails(&["pool", "take", "p", "--force"]);
    assert!(why.contains("can't be taken from") && !why.contains("is blocked"), "{why}");
    assert_eq!(events(), before);
    drop(old);
}

/// The dirty data come along with the cache's device.
#[test]
fn a_cache_that_is_attached_to_the_new_gateway_is_no_reason_to_refuse() {
    let two = Two::new();
    let (old, new) = two.start_with(&cache("back"), &cache("back"));
    let mut client = Client::connect(&old.socket(), "vol").unwrap();
    client.write(0, &contents(1)).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    old.kill();
    let arguments = ["pool", "move", "p", "--control", "none.sock", "--to", &socket(&new)];
    let refused = common::run(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("newest data of volumes vol"), "{why}");
    std::fs::rename(two.here.path().join("fast.img"), two.there.path().join("fast.img")).unwrap();
    common::ok(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
    reads(&mut Client::connect(&new.socket(), "vol").unwrap(), 0, &contents(1));
}

/// Another gateway's libraries see the same image, and its own faults.
fn other_view(two: &Two) -> (tempfile::TempDir, String) {
    let view = tempfile::tempdir().unwrap();
    for name in ["librados.so.2", "librbd.so.1", "pool.image", "pool.image.lock"] {
        std::os::unix::fs::symlink(two.file(name), view.path().join(name)).unwrap();
    }
    std::fs::write(view.path().join("ceph.conf"), "").unwrap();
    let (from, to) = (two.fake.dir.path().display().to_string(), view.path().display().to_string());
    let text = gateway_text(&two.fake, "").replace(&from, &to);
    (view, text)
}

#[test]
fn a_pool_that_the_new_gateway_cannot_take_is_given_back() {
    let two = Two::new();
    let old = gateway(&two.fake, two.here.path());
    let (view, text) = other_view(&two);
    let new = Server::start(two.there.path(), &text);
    let load = Load::start([old.socket(), new.socket()]);
    load.more(50);
    // Nothing is ended before it is known that the new gateway reaches the cluster.
    std::fs::write(view.path().join("down"), "").unwrap();
    let why = not_moved(&old, &new, &["--disconnect"]);
    assert!(why.contains("can't be served at") && why.contains("cannot connect to the cluster"), "{why}");
    load.more(10);
    std::fs::remove_file(view.path().join("down")).unwrap();
    // A look doesn't take the lock.
    std::fs::write(view.path().join("control"), "lock-fails 1\n").unwrap();
    let why = not_moved(&old, &new, &["--disconnect"]);
    let parts = ["isn't moved, and is served at", "again", "couldn't take it", "profile rbd"];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    load.more(50);
    std::fs::remove_file(view.path().join("control")).unwrap();
    moved(&old, &new, &["--disconnect"]);
    load.more(50);
    load.end(&new.socket());
}

/// The old gateway hangs: it is blocked before the new one serves. What it had in flight is refused when it goes on.
#[test]
fn a_gateway_that_hangs_is_blocked_before_the_new_one_serves() {
    let two = Two::new();
    let (old, new) = two.start();
    let mut client = Client::connect(&old.socket(), "vol").unwrap();
    client.write(0, &contents(1)).unwrap().unwrap();
    old.signal(Signal::STOP);
    until("all threads have stopped", || has_stopped(&old));
    let why = not_moved(&old, &new, &["--disconnect"]);
    assert!(why.contains("doesn't answer") && why.contains("--force"), "{why}");
    let to = socket(&new);
    let why = old.cli_fails(&["volume", "move", "vol", "--to", &to, "--force"]);
    assert!(why.contains("the volume's pool isn't known"), "{why}");
    let writing =
        std::thread::spawn(move || (0..16).map(|n| client.write(n * BLOCK, &contents(2))).collect::<Vec<_>>());
    let said = moved(&old, &new, &["--force"]);
    assert!(said["by_force"] == true && said["unserved_seconds"] == Value::Null, "{said}");
    let blocked = std::fs::read_to_string(two.file("blocklist-order")).unwrap();
    assert!(blocked.contains(r#""blocklistop":"add""#), "{blocked}");
    let mut moved_on = Client::connect(&new.socket(), "vol").unwrap();
    reads(&mut moved_on, 0, &contents(1));
    moved_on.write(0, &contents(3)).unwrap().unwrap();
    old.signal(Signal::CONT);
    let written = writing.join().unwrap();
    assert!(written.iter().all(|w| !matches!(w, Ok(Ok(_)))), "{written:?}");
    until("the old gateway serves nothing", || Client::connect(&old.socket(), "vol").is_err());
    reads(&mut moved_on, 0, &contents(3));
    reads(&mut moved_on, BLOCK, &contents(0));
    drop(moved_on);

    // It can't have the pool again before a restart, which is known before anything is ended.
    let why = not_moved(&new, &old, &[]);
    assert!(why.contains("nothing was changed") && why.contains("restart the node"), "{why}");
    drop(old);
    let old = gateway(&two.fake, two.here.path());
    moved(&new, &old, &[]);
    reads(&mut Client::connect(&old.socket(), "vol").unwrap(), 0, &contents(3));
}

#[test]
fn what_cannot_be_moved_is_refused_with_the_reason() {
    let two = Two::new();
    let old = gateway(&two.fake, two.here.path());
    // Its image is another one, of the same name in another cluster.
    let elsewhere = Fake::new(64 * MIB);
    let new = gateway_with(&elsewhere, two.there.path(), "");
    new.cli(&["pool", "release", "p"]);
    let why = not_moved(&old, &new, &[]);
    assert!(why.contains("is on another image"), "{why}");
    let to = socket(&new);
    for (name, part) in [("own", "isn't on an RBD image"), ("none", "no pool `none`")] {
        let why = old.cli_fails(&["pool", "move", name, "--to", &to]);
        assert!(why.contains(part), "{why}");
    }
    let why = old.cli_fails(&["volume", "move", "none", "--to", &to]);
    assert!(why.contains("no volume `none`"), "{why}");
    // The new gateway hasn't the pool's section.
    let text =
        gateway_text(&elsewhere, "").replace("name = \"p\"", "name = \"q\"").replace("pool = \"p\"", "pool = \"q\"");
    std::fs::write(two.there.path().join("node.toml"), text).unwrap();
    let why = not_moved(&old, &new, &[]);
    assert!(why.contains("the configuration has no pool `p`"), "{why}");
    drop(Client::connect(&old.socket(), "vol").unwrap());
}

/// A move whose command was ended between its two halves goes on when it is given again.
#[test]
fn a_move_that_broke_off_goes_on() {
    let two = Two::new();
    let (old, new) = two.start();
    old.cli(&["pool", "release", "p"]);
    let said = moved(&old, &new, &[]);
    assert_eq!(said["unserved_seconds"], Value::Null, "{said}");
    drop(Client::connect(&new.socket(), "vol").unwrap());
}

#[test]
fn a_volume_moves_with_its_pool() {
    let two = Two::new();
    let (old, new) = two.start();
    let to = socket(&new);
    old.cli(&["volume", "move", "vol", "--to", &to]);
    new.cli(&["volume", "create", "more", "--pool", "p", "--size", "1MiB", "--tenant", "t"]);
    let to = socket(&old);
    let why = new.cli_fails(&["volume", "move", "vol", "--to", &to]);
    assert!(why.contains("in pool `p` with more") && why.contains("--whole-pool"), "{why}");
    let said = new.cli(&["volume", "move", "vol", "--to", &to, "--whole-pool", "--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["volumes"], serde_json::json!(["more", "vol"]), "{said}");
}

/// librbd takes its time to close an image, and the thread that closes it may be the one that watches its lock.
#[test]
fn a_release_waits_until_the_lock_is_free() {
    let two = Two::new();
    let (old, new) = two.start();
    two.fake.control("lock-hangs\nslow-close 500000\n");
    until("the lock is being asked for", || two.file("lock-asked").exists());
    let control = socket(&old);
    let release = std::thread::spawn(move || {
        common::ok(env!("CARGO_BIN_EXE_plimsoll"), &["pool", "release", "p", "--control", &control])
    });
    until("the pool is withdrawn", || old.cli(&["status"]).contains("was released for another gateway"));
    two.fake.control("slow-close 500000\n");
    release.join().unwrap();
    new.cli(&["pool", "take", "p"]);
}
