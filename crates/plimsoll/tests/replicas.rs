//! A volume on three nodes: requests' own deadlines, replicas that have missed something, and what brings them up.

mod common;
#[path = "../../client/examples/two_replicas.rs"]
#[allow(dead_code)] // its `main` is cargo's
mod two_replicas;

use common::client::Client;
use common::noise::Noise;
use common::{Server, config};
use plimsoll_client::live::{Address, LinkState, Options, ReadError, Volume};
use plimsoll_client::{PolicyKind, PolicySettings, Preference};
use plimsoll_nbd::wire::{Command, CommandFlags};
use plimsoll_testkit::{block_on, eventually};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PLAIN: &str = r#"{ file = "disk.img", size = "64MiB" }"#;
const DISK: &str = r#"{ file = "disk.img", size = "64GiB", model = "hdd-160g-7200" }
depth = 4
profile = "disk.profile""#;

/// Three folders with a node each.
struct Three {
    dirs: [tempfile::TempDir; 3],
    config: String,
    nodes: [Option<Server>; 3],
}

impl Three {
    fn start(device: &str, size: &str) -> Three {
        let dirs: [tempfile::TempDir; 3] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
        if device.contains("profile") {
            dirs.iter().for_each(|d| common::write_profile(d.path(), "hdd-160g-7200", "disk.profile"));
        }
        let mut three = Three { dirs, config: config(device, size), nodes: [None, None, None] };
        (0..3).for_each(|i| three.restart(i));
        three
    }

    fn restart(&mut self, i: usize) {
        self.nodes[i] = Some(Server::start(self.dirs[i].path(), &self.config));
    }

    fn node(&self, i: usize) -> &Server {
        self.nodes[i].as_ref().unwrap()
    }

    fn kill(&mut self, i: usize) {
        self.nodes[i].take().unwrap().kill();
    }

    fn addresses(&self) -> Vec<Address> {
        let at = |d: &tempfile::TempDir| format!("nbd+unix:///vol?socket={}/nbd.sock", d.path().display());
        self.dirs.iter().map(|d| at(d).parse().unwrap()).collect()
    }

    /// `plimsoll volume resync` of one from another.
    fn resync(&self, to: usize, from: usize) -> String {
        let uri = self.addresses();
        let (to_uri, from_uri) = (uri[to].to_string(), uri[from].to_string());
        self.node(to).cli(&["volume", "resync", "vol", "--replica", &to_uri, "--from", &from_uri, "--yes"])
    }

    fn shown(&self, i: usize) -> serde_json::Value {
        serde_json::from_str(&self.node(i).cli(&["volume", "show", "vol", "--json"])).unwrap()
    }

    fn behind(&self, i: usize) -> String {
        let json = self.shown(i);
        format!("{} {}", json["generation"], json["behind"].as_str().unwrap())
    }

    /// Requests in flight of the clients that negotiated promises.
    fn asked_by_clients(&self, i: usize) -> u64 {
        let all = self.node(i).control("GET", "/v1/connections").expect(200);
        let ours: Vec<_> = all["connections"].as_array().unwrap().iter().filter(|c| c["negotiated"] == true).collect();
        assert!(!ours.is_empty(), "the client is connected: {all}");
        ours.iter().map(|c| c["in_flight"].as_u64().unwrap()).sum()
    }

    fn connections(&self, i: usize) -> u64 {
        self.shown(i)["connections"].as_u64().unwrap()
    }
}

fn options(policy: PolicyKind) -> Options {
    let settings = PolicySettings { order: Preference::Placement, ..PolicySettings::default() };
    Options { policy, settings, ..Options::default() }
}

fn writer(dir: &Path) -> Client {
    let mut client = Client::connect(&dir.join("nbd.sock"), "vol?replica=write").unwrap();
    drop(client.read(0, 512).unwrap()); // whatever it is answered, the pool knows it now
    client
}

/// Ends a session as NBD wants it.
fn farewell(mut client: Client) {
    client.send(Command::Disconnect, CommandFlags::EMPTY, 0, 0, &[]).unwrap();
}

#[test]
fn a_requests_own_deadline_sends_it_where_there_is_no_queue() {
    let three = Three::start(DISK, "16GiB");
    block_on(async {
        // Deadlines far above what a free disk takes, and far below the queue: a pause of this machine makes no other refusal.
        let limit = plimsoll_base::Span::from_millis(400);
        let settings = PolicySettings { limit, ..options(PolicyKind::MittWait).settings };
        let asked = Options { settings, ..options(PolicyKind::MittWait) };
        let volume = Volume::open(&three.addresses(), &asked).await.unwrap();
        let noise = Noise::start(three.node(0), 200); // about two seconds' work
        let data = volume.read(1 << 20..(1 << 20) + 4096, Some(Duration::from_millis(200))).await.unwrap();
        assert_eq!(data, [0; 4096]);
        let counts = volume.counts();
        assert_eq!((counts.tries, counts.busy), (2, 1), "the first refused it, the second had it");
        // Without one of its own, the policy's is taken; without any, the queue is waited for.
        volume.read(0..4096, None).await.unwrap();
        assert_eq!(volume.counts().busy, 2);
        drop(noise); // what is inside stays
        let base = Volume::open(&three.addresses(), &options(PolicyKind::Base)).await.unwrap();
        base.read(2 << 20..(2 << 20) + 4096, None).await.unwrap();
        assert_eq!(base.counts().busy, 0);
    });
}

#[test]
fn a_node_tells_when_it_begins_and_takes_back_what_it_has_not_begun() {
    let three = Three::start(DISK, "16GiB");
    block_on(async {
        // The second goes out after three of these.
        let tied = |hop| {
            let hop = plimsoll_base::Span::from_millis(hop);
            let settings = PolicySettings { hop, ..options(PolicyKind::Tied).settings };
            Options { settings, ..options(PolicyKind::Tied) }
        };
        // A free disk has begun and answered long before.
        let volume = Volume::open(&three.addresses(), &tied(2000)).await.unwrap();
        for i in 0..5u64 {
            volume.read(i << 30..(i << 30) + 4096, None).await.unwrap();
        }
        assert_eq!(volume.counts().tries, 5);
        let volume = Volume::open(&three.addresses(), &tied(100)).await.unwrap();
        let _noise = Noise::start(three.node(0), 200);
        let began = Instant::now();
        volume.read(5 << 30..(5 << 30) + 4096, None).await.unwrap();
        let counts = volume.counts();
        assert!(counts.tries >= 2, "the first hadn't begun in time");
        assert_eq!(counts.cancels, counts.tries - 1, "another began, so the first was called off");
        // Its answer comes long before its turn would have: a second's queue is before it.
        eventually("the first's end", || three.asked_by_clients(0) == 0).await;
        assert_eq!(volume.counts().errors, 0, "what was withdrawn is no error");
        assert!(began.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn every_policy_reads_from_real_nodes() {
    let three = Three::start(PLAIN, "16MiB");
    for i in 0..3 {
        let mut w = writer(three.dirs[i].path());
        w.write(4096, &[7; 4096]).unwrap().unwrap();
        farewell(w);
    }
    block_on(async {
        for policy in PolicyKind::ALL {
            let volume = Volume::open(&three.addresses(), &options(policy)).await.unwrap();
            for _ in 0..10 {
                assert_eq!(volume.read(4096..8192, None).await.unwrap(), [7; 4096], "{policy}");
            }
            let counts = volume.counts();
            assert!(counts.failed == 0 && counts.errors == 0, "what was withdrawn is no error: {policy}");
        }
    });
}

#[test]
fn the_count_of_changes_and_the_marks_survive_what_they_should() {
    let mut three = Three::start(PLAIN, "16MiB");
    assert_eq!(three.behind(0), "0 no");
    let mut w = writer(three.dirs[0].path());
    for i in 0..5u64 {
        w.write(i * 4096, &[1; 4096]).unwrap().unwrap();
    }
    farewell(w);
    assert!(three.nodes[0].take().unwrap().stop());
    three.restart(0);
    assert_eq!(three.behind(0), "5 no", "after an orderly end");
    // Killed while somebody could write.
    let mut w = writer(three.dirs[0].path());
    w.write(0, &[2; 512]).unwrap().unwrap();
    three.kill(0);
    three.restart(0);
    assert_eq!(three.behind(0), "5 unclean stop");
    // A writer that is lost, one that is there twice, and our own end while one is connected.
    drop(writer(three.dirs[1].path()));
    block_on(eventually("the loss to be seen", || three.behind(1).ends_with("writer lost")));
    let twice = [writer(three.dirs[2].path()), writer(three.dirs[2].path())];
    block_on(eventually("the second to be seen", || three.behind(2).ends_with("writer lost")));
    drop(twice);
    // Each of their ends is a loss, too.
    block_on(eventually("their ends", || three.connections(2) == 0));
    three.node(2).cli(&["volume", "resync", "vol", "--trust"]);
    assert_eq!(three.behind(2), "0 no");
    let w = writer(three.dirs[2].path());
    assert!(three.nodes[2].take().unwrap().stop());
    three.restart(2);
    assert_eq!(three.behind(2), "0 writer lost", "it would have missed what was written since");
    drop(w);
    // Those that may lack something aren't read as replicas, and are otherwise.
    for (export, served) in [("vol", true), ("vol?replica=read", false), ("vol?replica=write", false)] {
        let mut c = Client::connect(&three.node(0).socket(), export).unwrap();
        let read = c.read(0, 512).unwrap();
        assert_eq!(read.is_ok(), served, "{export}: {read:?}");
        assert!(read.is_ok() || read.unwrap_err().contains("plimsoll volume resync"));
        if export.ends_with("write") {
            farewell(c);
        }
    }
    let e = block_on(Volume::open(&three.addresses(), &options(PolicyKind::Mitt))).err().unwrap();
    assert!(e.to_string().contains("no replica can be read"), "{e}");
}

/// A relay that can be cut: bytes go nowhere, and nobody hears of it.
struct Link {
    cut: Arc<AtomicBool>,
    path: std::path::PathBuf,
}

impl Link {
    fn to(socket: &Path, path: std::path::PathBuf) -> Link {
        use std::io::{Read, Write};
        use std::os::unix::net::{UnixListener, UnixStream};
        let listener = UnixListener::bind(&path).unwrap();
        let (cut, target) = (Arc::new(AtomicBool::new(false)), socket.to_path_buf());
        let is_cut = cut.clone();
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let Ok(far) = UnixStream::connect(&target) else { continue };
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)] {
                    let is_cut = is_cut.clone();
                    std::thread::spawn(move || {
                        let mut some = [0; 65536];
                        while let Ok(n) = from.read(&mut some) {
                            while is_cut.load(Ordering::Relaxed) {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            if n == 0 || to.write_all(&some[..n]).is_err() {
                                let _ = to.shutdown(std::net::Shutdown::Both); // the other side may have done it
                                return;
                            }
                        }
                    });
                }
            }
        });
        Link { cut, path }
    }
}

/// One that writes a counter to all replicas it can reach, one change after another, as a replicating client does.
struct Counter {
    to: [Option<Client>; 3],
    acknowledged: Arc<AtomicU64>,
}

impl Counter {
    fn write_next(&mut self) {
        let next = self.acknowledged.load(Ordering::SeqCst) + 1;
        let block: Vec<u8> = next.to_le_bytes().repeat(64);
        for to in &mut self.to {
            if to.as_mut().is_some_and(|c| !matches!(c.write(8192, &block), Ok(Ok(_)))) {
                *to = None; // it goes on with the others, as QEMU's quorum does
            }
        }
        self.acknowledged.store(next, Ordering::SeqCst);
    }
}

#[test]
fn nothing_older_is_ever_read_through_kills_and_cut_links() {
    let mut three = Three::start(PLAIN, "16MiB");
    let links: Vec<Link> =
        (0..3).map(|i| Link::to(&three.node(i).socket(), three.dirs[i].path().join("link.sock"))).collect();
    let addresses: Vec<Address> =
        links.iter().map(|l| format!("nbd+unix:///vol?socket={}", l.path.display()).parse().unwrap()).collect();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut counter =
        Counter { to: std::array::from_fn(|i| Some(writer(three.dirs[i].path()))), acknowledged: acknowledged.clone() };
    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let reader = {
        let (stop, reads, acknowledged) = (stop.clone(), reads.clone(), acknowledged.clone());
        std::thread::spawn(move || {
            block_on(async {
                // Drawn replicas: one read after another goes elsewhere.
                let settings = PolicySettings::default();
                let drawn = Options { settings, stall: Duration::from_secs(2), ..options(PolicyKind::Base) };
                let volume = Volume::open(&addresses, &drawn).await.unwrap();
                let (mut last, mut failed) = (0, 0);
                while !stop.load(Ordering::Relaxed) {
                    let known = acknowledged.load(Ordering::SeqCst);
                    match volume.read(8192..8704, None).await {
                        Ok(data) => {
                            let seen = u64::from_le_bytes(data[..8].try_into().unwrap());
                            assert!(data.chunks(8).all(|c| c == &data[..8]), "a torn block");
                            assert!(seen >= last, "{seen} was read after {last}");
                            assert!(seen >= known, "{seen} after {known} was acknowledged");
                            last = seen;
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(ReadError::Failed(_)) => {
                            failed += 1;
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        Err(other) => panic!("{other}"),
                    }
                }
                (last, failed, volume.replicas())
            })
        })
    };
    let go_on = |counter: &mut Counter, n: u64| {
        let read = reads.load(Ordering::Relaxed);
        let began = Instant::now();
        (0..n).for_each(|_| counter.write_next());
        while reads.load(Ordering::Relaxed) < read + 20 {
            assert!(began.elapsed() < Duration::from_secs(30), "the reader is stuck");
            counter.write_next();
        }
    };
    go_on(&mut counter, 50);
    // A node dies, misses writes, comes back, is written to again and only read when it was brought up.
    three.kill(1);
    go_on(&mut counter, 50);
    three.restart(1);
    counter.to[1] = Some(writer(three.dirs[1].path()));
    go_on(&mut counter, 50);
    assert!(three.behind(1).ends_with("unclean stop"));
    three.resync(1, 0);
    go_on(&mut counter, 50);
    assert_eq!((three.behind(1), three.behind(2)), (three.behind(0), three.behind(0)));
    // The writer's link to another is cut; it goes on without it and comes back later.
    counter.to[2] = None;
    // Before the node has seen that, it has what was acknowledged and takes it for all there is.
    block_on(eventually("the loss to be seen", || three.behind(2).ends_with("writer lost")));
    go_on(&mut counter, 50);
    counter.to[2] = Some(writer(three.dirs[2].path()));
    go_on(&mut counter, 50);
    assert!(three.behind(2).ends_with("writer lost"));
    three.resync(2, 1);
    // The reader's link to the first is cut for longer than it is patient.
    links[0].cut.store(true, Ordering::Relaxed);
    go_on(&mut counter, 200);
    links[0].cut.store(false, Ordering::Relaxed);
    go_on(&mut counter, 50);
    stop.store(true, Ordering::Relaxed);
    let (last, failed, replicas) = reader.join().unwrap();
    let (reads, acknowledged) = (reads.load(Ordering::Relaxed), acknowledged.load(Ordering::SeqCst));
    println!("{reads} reads up to {last} of {acknowledged} changes; {failed} times no replica was new enough");
    assert!(last > 300 && replicas.iter().filter(|r| r.state == LinkState::Up).count() >= 2, "{replicas:?}");
    // All have the same in the end.
    let last = acknowledged.to_le_bytes().repeat(64);
    for dir in &three.dirs {
        let mut c = Client::connect(&dir.path().join("nbd.sock"), "vol?replica=read").unwrap();
        assert_eq!(c.read(8192, 512).unwrap().unwrap(), last);
    }
}

#[test]
fn resync_copies_what_differs_and_refuses_what_makes_no_sense() {
    let mut three = Three::start(PLAIN, "16MiB");
    let mut writers: Vec<Client> = three.dirs.iter().map(|d| writer(d.path())).collect();
    for i in 0..16u64 {
        for w in &mut writers {
            w.write(i << 20, &[i as u8 + 1; 1 << 20]).unwrap().unwrap();
        }
    }
    three.kill(1);
    for w in [0, 2] {
        writers[w].write(5 << 20, &[99; 4096]).unwrap().unwrap();
        writers[w].write((9 << 20) + 512, &[98; 512]).unwrap().unwrap();
    }
    three.restart(1);
    let uris: Vec<String> = three.addresses().iter().map(Address::to_string).collect();
    let failing_at = |node: usize, to: &str, from: &str| {
        let socket = three.dirs[node].path().join("control.sock");
        let arguments = [
            "volume",
            "resync",
            "vol",
            "--replica",
            to,
            "--from",
            from,
            "--yes",
            "--control",
            socket.to_str().unwrap(),
        ];
        let output = common::run(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let failing = |to: &str, from: &str| failing_at(1, to, from);
    // Its writer isn't back: what is written meanwhile would be lacking at once.
    let said = failing(&uris[1], &uris[0]);
    assert!(said.contains("let it connect"), "{said}");
    let said = failing(&uris[0], &uris[1]);
    assert!(said.contains("may lack acknowledged writes"), "a peer that is behind itself: {said}");
    let said = failing(&uris[1], &uris[1]);
    assert!(said.contains("name another replica"), "{said}");
    assert!(three.behind(1).ends_with("unclean stop"), "nothing was begun");
    // One volume is said to be brought up, to another is copied: neither is cleared nor spoilt.
    let said = failing_at(2, &uris[0], &uris[2]);
    assert!(said.contains("isn't the volume that --control and NAME say"), "{said}");
    let said = failing(&uris[0], &uris[2]);
    assert!(said.contains("isn't the volume that --control and NAME say"), "{said}");
    assert_eq!([0, 1, 2].map(|i| three.behind(i).split_once(' ').unwrap().1.to_string()), ["no", "resync", "no"]);
    writers[1] = writer(three.dirs[1].path());
    let output = three.resync(1, 2);
    assert!(output.contains("changes   18"), "{output}");
    let mut c = Client::connect(&three.node(1).socket(), "vol?replica=read").unwrap();
    assert_eq!(c.read(5 << 20, 4096).unwrap().unwrap(), [99; 4096]);
    assert_eq!(c.read((9 << 20) + 512, 512).unwrap().unwrap(), [98; 512]);
    assert_eq!(c.read(9 << 20, 512).unwrap().unwrap(), [10; 512]);
    // A change that only one has, whose writer was lost then, is given up only if that is said.
    let mut last = writers.remove(1);
    last.write(0, &[77; 512]).unwrap().unwrap();
    drop(last);
    block_on(eventually("the loss to be seen", || three.behind(1).ends_with("writer lost")));
    writers.into_iter().for_each(farewell);
    block_on(eventually("the others' ends", || three.connections(0) == 0));
    let said = failing(&uris[1], &uris[0]);
    assert!(said.contains("--discard") && three.behind(1) == "19 writer lost", "{said}");
    let output =
        three.node(1).cli(&["volume", "resync", "vol", "--replica", &uris[1], "--from", &uris[0], "--discard"]);
    assert!(output.contains("changes   18\n"), "{output}");
    assert_eq!(c.read(0, 512).unwrap().unwrap(), [1; 512]);
}

#[test]
fn a_write_that_comes_to_the_peer_late_is_waited_for() {
    let mut three = Three::start(PLAIN, "16MiB");
    three.kill(1);
    let mut to: Vec<Client> = [0, 2].map(|i| writer(three.dirs[i].path())).into();
    (0..16u64).for_each(|i| to.iter_mut().for_each(|w| drop(w.write(i << 20, &[5; 1 << 20]).unwrap().unwrap())));
    three.restart(1);
    // Nothing could change it when it was killed; now it may have missed something.
    drop(writer(three.dirs[1].path()));
    block_on(eventually("the loss to be seen", || three.behind(1).ends_with("writer lost")));
    to.insert(1, writer(three.dirs[1].path()));
    std::thread::scope(|s| {
        let writes = s.spawn(|| {
            block_on(eventually("the resync", || three.behind(1).ends_with("resync")));
            for n in 1..=3u8 {
                let block = [100 + n; 4096];
                to[1].write(u64::from(n) << 20, &block).unwrap().unwrap();
                // Shorter than twice the time for which nothing may change: at most one of both ends of a look is in it.
                std::thread::sleep(Duration::from_millis(300));
                [0, 2].iter().for_each(|i: &usize| drop(to[*i].write(u64::from(n) << 20, &block).unwrap().unwrap()));
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        three.resync(1, 0);
        writes.join().unwrap();
    });
    assert_eq!(three.behind(2), "19 no");
    if three.behind(1) != "19 no" {
        // Twice within one slow write is nothing seen of it, on a machine that pauses: then its count must keep it from being read.
        assert_eq!(three.behind(1), "18 no");
        three.resync(1, 0);
    }
    assert_eq!(three.behind(1), "19 no");
    let mut c = Client::connect(&three.node(1).socket(), "vol?replica=read").unwrap();
    (1..=3u8).for_each(|n| assert_eq!(c.read(u64::from(n) << 20, 4096).unwrap().unwrap(), [100 + n; 4096]));
    to.into_iter().for_each(farewell);
}

/// The example of docs/guides/two-replicas.md: what a deadline does to p99 when one of two replicas is slow.
#[test]
fn the_example_shows_that_a_slow_replica_isnt_waited_for() {
    let dirs: [tempfile::TempDir; 2] = std::array::from_fn(|_| tempfile::tempdir().unwrap());
    common::write_profile(dirs[0].path(), "hdd-160g-7200", "disk.profile");
    let slow = Server::start(dirs[0].path(), &config(DISK, "16GiB"));
    let fast = Server::start(dirs[1].path(), &config(r#"{ file = "disk.img", size = "64GiB" }"#, "16GiB"));
    let replicas = [&slow, &fast].map(|node| node.uri("vol").parse::<Address>().unwrap());
    let _noise = Noise::start(&slow, 16);
    let p99 = |policy| block_on(two_replicas::p99(&replicas, policy)).unwrap();
    let (base, mitt) = (p99(PolicyKind::Base), p99(PolicyKind::MittWait));
    assert!(mitt < base, "with a deadline {mitt:?}, without {base:?}");
    assert!(base > Duration::from_millis(20), "sixteen reads of a disk are ahead: {base:?}");
}

/// The guide shows the examples as they are.
#[test]
fn the_examples_page_has_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/guides/two-replicas.md")).unwrap();
    for example in [
        "client/examples/two_replicas.rs",
        "client-c/examples/two_replicas.c",
        "../bindings/python/examples/two_replicas.py",
    ] {
        let text = std::fs::read_to_string(root.join("crates").join(example)).unwrap();
        assert!(page.contains(&text), "{example} isn't in docs/guides/two-replicas.md as it is");
    }
}

/// Nothing is begun, so the volume isn't marked as being caught up.
#[test]
fn a_read_only_replica_is_refused_before_a_copy_begins() {
    let mut three = Three::start(PLAIN, "1MiB");
    three.nodes[1] = None;
    three.config = three.config.replace("size = \"1MiB\"\n", "size = \"1MiB\"\nread_only = true\n");
    three.restart(1);
    let before = three.behind(1);
    let [from, to] = [0, 1].map(|i| three.addresses()[i].to_string());
    let said = three.node(1).cli_fails(&["volume", "resync", "vol", "--replica", &to, "--from", &from]);
    assert!(said.contains("volume `vol` is read-only"), "{said}");
    assert_eq!(three.behind(1), before);
}

/// The peer gets none of what a client writes that knows one replica only: it is neither overwritten nor hidden behind an end of the mark.
#[test]
fn a_resync_overwrites_nothing_that_others_write() {
    let three = Three::start(PLAIN, "16MiB");
    let uris: Vec<String> = three.addresses().iter().map(Address::to_string).collect();
    let resync = |to: usize| ["volume", "resync", "vol", "--replica", &uris[to], "--from", &uris[0]].map(String::from);
    let fails = |to: usize, more: &[&str]| {
        let arguments = resync(to);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).chain(more.iter().copied()).collect();
        three.node(to).cli_fails(&arguments)
    };
    let mut peer = Client::connect(&three.node(0).socket(), "vol").unwrap();
    (0..16u64).for_each(|i| drop(peer.write(i << 20, &[7; 4096]).unwrap().unwrap()));
    drop(writer(three.dirs[1].path()));
    block_on(eventually("the loss to be seen", || three.behind(1).ends_with("writer lost")));
    // It is connected when the resync begins.
    let mut plain = Client::connect(&three.node(1).socket(), "vol").unwrap();
    drop(plain.read(0, 512).unwrap()); // whatever it is answered, the pool knows it now
    let said = fails(1, &[]);
    assert!(said.contains("clients that may change it") && three.behind(1).ends_with("writer lost"), "{said}");
    farewell(plain);
    block_on(eventually("its end", || three.connections(1) == 0));
    // It comes while the volume is compared: it is refused, and so is a trust in what is half a copy.
    let inject = ["inject", "vol", "--latency", "50ms", "--only", "reads", "--for", "1h"];
    three.node(1).cli(&inject);
    let came = |export: &str| Client::connect(&three.node(1).socket(), export);
    std::thread::scope(|s| {
        let resync = s.spawn(|| three.resync(1, 0));
        block_on(eventually("the resync", || three.behind(1).ends_with("resync")));
        let said = came("vol").err().unwrap().to_string();
        assert!(said.contains("is being overwritten by a resync"), "{said}");
        let said = three.node(1).cli_fails(&["volume", "resync", "vol", "--trust"]);
        assert!(said.contains("has the connection of another"), "{said}");
        assert!(resync.join().unwrap().contains("changes   16\n"));
    });
    block_on(eventually("its end", || three.connections(1) == 0));
    // One that was killed keeps nobody out. Whatever was copied, the mark stays.
    drop(writer(three.dirs[1].path()));
    block_on(eventually("the loss to be seen", || three.behind(1).ends_with("writer lost")));
    let socket = three.dirs[1].path().join("control.sock");
    let mut killed = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(resync(1))
        .args(["--control", socket.to_str().unwrap()])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    block_on(eventually("the resync", || three.behind(1).ends_with("resync")));
    killed.kill().unwrap();
    killed.wait().unwrap();
    block_on(eventually("its end", || three.connections(1) == 0));
    assert!(three.behind(1).ends_with("resync"));
    let mut plain = came("vol").unwrap();
    plain.write(15 << 20, &[9; 4096]).unwrap().unwrap();
    plain.flush().unwrap().unwrap();
    assert_eq!(three.behind(1), "17 writer lost");
    assert_eq!(plain.read(15 << 20, 4096).unwrap().unwrap(), [9; 4096]);
    farewell(plain);
    // A volume that lacks nothing is the wrong one, perhaps; and a writer that only the replica has is overwritten.
    let said = fails(2, &[]);
    assert!(said.contains("say --yes") && three.behind(2) == "0 no", "{said}");
    let w = writer(three.dirs[2].path());
    let said = fails(2, &["--yes"]);
    assert!(said.contains("is overwritten here") && three.behind(2) == "0 no", "{said}");
    farewell(w);
    block_on(eventually("its end", || three.connections(2) == 0));
    three.resync(2, 0);
    assert_eq!(three.behind(2), "16 no");
}
