//! Gateways of an RBD image as paths of one NVMe/TCP namespace: a pool moves, and a host goes on at the other gateway. On the fake of Ceph's
//! libraries.

mod common;
use common::Server;
use common::images::{Fake, gateway_text, has_stopped};
use common::nvme::{HOST, Host, INACCESSIBLE, Listener, NQN, OPTIMIZED, PLAIN, ana, identifiers, start_with};
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command, connect_data};
use plimsoll_testkit::until;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;

const MIB: u64 = 1 << 20;
const BLOCKS: u64 = 64;
/// Blocks of the namespace in one block of the load.
const SECTORS: u64 = 8;

/// The configuration of a gateway that is a path.
fn text(fake: &Fake, path: u16) -> String {
    let listen = "unix = \"nbd.sock\"\nnvme_tcp = \"127.0.0.1:0\"\n";
    let subsystem = format!("[[subsystem]]\nnqn = \"{NQN}\"\nexport = \"vol\"\npath = {path}\n");
    gateway_text(fake, "").replace("unix = \"nbd.sock\"\n", listen) + &subsystem
}

/// A cluster and two gateways of one image.
struct Two {
    fake: Fake,
    dirs: [tempfile::TempDir; 2],
}

impl Two {
    fn new() -> Two {
        Two { fake: Fake::new(64 * MIB), dirs: std::array::from_fn(|_| tempfile::tempdir().unwrap()) }
    }

    /// The gateways with their addresses for hosts. The first one has the pool.
    fn start(&self) -> [(Server, String); 2] {
        [0, 1].map(|n| self.start_one(n))
    }

    fn start_one(&self, n: usize) -> (Server, String) {
        // A take by force waits for the old owner's lease, which matters to pools with a cache only.
        start_with(self.dirs[n].path(), &text(&self.fake, n as u16 + 1), &[("PLIMSOLL_TEST_LEASE_MS", "2000")])
    }
}

fn moved(from: &Server, to: &Server, more: &[&str]) {
    let to = to.dir.join("control.sock").display().to_string();
    from.cli(&[&["pool", "move", "p", "--to", &to, "--disconnect"], more].concat());
}

fn not_moved(from: &Server, to: &Server) -> String {
    let to = to.dir.join("control.sock").display().to_string();
    from.cli_fails(&["pool", "move", "p", "--to", &to, "--disconnect"])
}

fn contents(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(SECTORS as usize * 64)
}

/// A host's controller at one gateway, with an I/O queue.
struct Path {
    address: String,
    admin: Host,
    controller: u16,
    queue: Option<Host>,
}

impl Path {
    fn new(address: &str) -> Path {
        let (admin, controller) = Host::admin(address, PLAIN, NQN);
        Path { address: address.into(), admin, controller, queue: None }
    }

    /// Sends a command. `None` if another path is to have it.
    fn try_ask(&mut self, command: &Command, data: &[u8]) -> Option<Vec<u8>> {
        if self.queue.is_none() {
            let mut queue = Host::open(&self.address, PLAIN);
            // The queue that has ended may still have its place.
            let connect = connect_data(self.controller, [9; 16], HOST, NQN);
            queue.try_ask(&Command::connect(0, 1, 32, 0, false), &connect)?.ok()?;
            self.queue = Some(queue);
        }
        match self.queue.as_mut()?.try_ask(command, data) {
            Some(Ok(data)) => Some(data),
            Some(Err(Status::INACCESSIBLE)) => None,
            Some(Err(other)) => panic!("an application would see {other:?}"),
            None => {
                self.queue = None;
                None
            }
        }
    }
}

/// A host with a path to each gateway: it sends a command to a path that is accessible, as often as it takes.
struct Multipath(Vec<Path>);

impl Multipath {
    fn new(addresses: &[&str]) -> Multipath {
        Multipath(addresses.iter().map(|a| Path::new(a)).collect())
    }

    fn ask(&mut self, command: &Command, data: &[u8]) -> Vec<u8> {
        let mut done = None;
        until("a path serves it", || {
            let accessible = self.0.iter_mut().filter_map(|p| (ana(&mut p.admin).0 == OPTIMIZED).then_some(p));
            let mut tried = accessible.map(|p| p.try_ask(command, data));
            done = tried.find_map(|d| d);
            done.is_some()
        });
        done.unwrap()
    }

    fn write(&mut self, block: u64, number: u64) {
        self.ask(&Command::write(7, block * SECTORS, SECTORS as u32, true), &contents(number));
    }

    fn read(&mut self, block: u64) -> Vec<u8> {
        self.ask(&Command::read(8, block * SECTORS, SECTORS as u32), &[])
    }
}

/// Writes and reads without end. What was written last is what is read.
struct Load {
    over: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    thread: JoinHandle<Multipath>,
}

impl Load {
    fn start(mut host: Multipath) -> Load {
        let (over, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (is_over, counted) = (over.clone(), acknowledged.clone());
        let run = move || {
            let (mut model, mut next) = (BTreeMap::<u64, u64>::new(), 0);
            let check = |host: &mut Multipath, model: &BTreeMap<u64, u64>, block: u64| {
                let expected = contents(model.get(&block).copied().unwrap_or(0));
                assert!(host.read(block) == expected, "block {block}");
            };
            while !is_over.load(SeqCst) {
                next += 1;
                host.write(next * 29 % BLOCKS, next);
                model.insert(next * 29 % BLOCKS, next);
                counted.fetch_add(1, SeqCst);
                check(&mut host, &model, next * 13 % BLOCKS);
            }
            (0..BLOCKS).for_each(|block| check(&mut host, &model, block));
            host
        };
        Load { over, acknowledged, thread: std::thread::spawn(run) }
    }

    /// Waits for more acknowledged writes.
    fn more(&self, writes: u64) {
        let least = self.acknowledged.load(SeqCst) + writes;
        until("the load goes on", || self.acknowledged.load(SeqCst) >= least || self.thread.is_finished());
        assert!(!self.thread.is_finished(), "the load has failed");
    }

    fn end(self) {
        self.over.store(true, SeqCst);
        self.thread.join().unwrap();
    }
}

/// A controller's number, and the blocks of its namespace.
fn shown(address: &str) -> (u16, u64) {
    let (mut admin, controller) = Host::admin(address, PLAIN, NQN);
    let namespace = admin.data(Command::identify(1, 0, 1)).expect("the namespace");
    (controller, u64::from_le_bytes(namespace[..8].try_into().unwrap()))
}

#[test]
fn a_host_goes_on_at_the_other_gateway_when_the_pool_moves() {
    let two = Two::new();
    let [(old, first), (new, second)] = two.start();
    // One namespace, whoever serves it, and other controllers.
    assert_eq!(identifiers(&first), identifiers(&second));
    let [(one, blocks), (other, same)] = [&first, &second].map(|a| shown(a));
    assert!(one != other && blocks == 4 * MIB / 512 && blocks == same, "{one} {other} {blocks} {same}");

    let mut here = Listener::new(&first);
    let mut there = Listener::new(&second);
    assert_eq!((here.ana(), there.ana()), ((OPTIMIZED, 0), (INACCESSIBLE, 0)));
    // A queue that was connected before its volume came.
    let mut early = Host::io(&second, PLAIN, there.controller, 1);
    assert_eq!(early.read(0, 8), Err(Status::INACCESSIBLE));
    assert_eq!(early.write_fetched(0, &[1; 64 << 10], 64 << 10), Err(Status::INACCESSIBLE));
    let in_capsule = Command::write(9, 0, 1, false).data(512, true);
    assert_eq!(early.ask(in_capsule, &[1; 512]), Err(Status::INACCESSIBLE), "its data are skipped");
    assert_eq!(early.ask(Command::flush(10), &[]), Err(Status::INACCESSIBLE));

    let load = Load::start(Multipath::new(&[&first, &second]));
    load.more(50);
    moved(&old, &new, &[]);
    assert_eq!(here.changed(), (INACCESSIBLE, 1));
    assert_eq!(there.changed(), (OPTIMIZED, 1));
    load.more(50);
    until("the queue serves", || early.read(0, 8).is_ok());
    moved(&new, &old, &[]);
    assert_eq!(there.changed(), (INACCESSIBLE, 2));
    assert_eq!(here.changed(), (OPTIMIZED, 2));
    assert_eq!(early.hear(), None, "its volume's pool has ended");
    load.more(50);
    load.end();
    assert_eq!(identifiers(&first), identifiers(&second));
    assert!(old.stop() && new.stop());
}

/// Gateways with which a host could not go on are refused: by `plimsoll check`, or before a move ends anything.
#[test]
fn gateways_that_do_not_agree_are_refused() {
    let two = Two::new();
    let errors = |text: &str| two.fake.check(text)[0].clone();
    let good = text(&two.fake, 1);
    assert_eq!(errors(&good), "[]");
    let of_copy = good.replace("export = \"vol\"", "export = \"vol?replica=read\"");
    let why = errors(&of_copy);
    assert!(why.contains("`replica=read` is for a copy that each node has of its own"), "{why}");
    let on_own_pool = good.replace("name = \"vol\"\npool = \"p\"", "name = \"vol\"\npool = \"own\"");
    let why = errors(&on_own_pool);
    assert!(why.contains("or if its pool is on an RBD image"), "{why}");
    assert!(errors(&good.replace("path = 1", "path = 17")).contains("path 17 is not between 1 and 16"));

    let (old, first) = two.start_one(0);
    let other = text(&two.fake, 2).replace("size = \"4MiB\"", "size = \"8MiB\"");
    let (new, _) = start_with(two.dirs[1].path(), &other, &[]);
    let why = not_moved(&old, &new);
    assert!(why.contains("nothing was changed") && why.contains("of 4194304 bytes"), "{why}");
    assert!(new.stop());
    let (new, _) = start_with(two.dirs[1].path(), &text(&two.fake, 1), &[]);
    let why = not_moved(&old, &new);
    assert!(why.contains("both gateways have `path = 1`"), "{why}");
    assert_eq!(Listener::new(&first).ana(), (OPTIMIZED, 0));
    assert!(old.stop() && new.stop());
}

/// The old gateway hangs, and its lock is taken by force. When it goes on its path is inaccessible, and what it had is refused.
#[test]
fn a_host_goes_on_when_the_lock_is_taken_by_force() {
    let two = Two::new();
    let [(old, first), (new, second)] = two.start();
    let mut here = Listener::new(&first);
    let mut queue = Host::io(&first, PLAIN, here.controller, 1);
    // Beside the load's blocks.
    let apart = BLOCKS * SECTORS;
    assert_eq!(queue.write_fetched(apart, &contents(1), 4096), Ok(0));
    let load = Load::start(Multipath::new(&[&second]));
    old.signal(Signal::STOP);
    until("all threads have stopped", || has_stopped(&old));
    queue.send(&Command::write(11, apart, 8, true), &contents(u64::MAX));
    moved(&old, &new, &["--force"]);
    load.more(50);
    old.signal(Signal::CONT);
    assert_eq!(queue.done(11), Err(Status::INACCESSIBLE), "the write of before");
    assert_eq!(here.changed(), (INACCESSIBLE, 1));
    load.end();
    assert!(Multipath::new(&[&second]).read(BLOCKS) == contents(1), "what was refused isn't there");
    drop(old);
    // A new start has no lock: its path is there, inaccessible.
    let (old, first) = two.start_one(0);
    assert_eq!(Listener::new(&first).ana(), (INACCESSIBLE, 0));
    assert!(old.stop() && new.stop());
}
