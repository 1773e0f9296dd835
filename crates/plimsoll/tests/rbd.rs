//! Pools on RBD images of the fake of Ceph's libraries (`crates/rbd/examples/fake_ceph.rs`): looked at by `check`, and grown.

mod common;
use common::Server;
use common::busy::busy_wait_us;
use common::client::Client;
use common::images::{Fake, gateway, has_stopped};
use plimsoll_testkit::until;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn size(server: &Server) -> u64 {
    server.control("GET", "/v1/status").expect(200)["pools"][0]["size_bytes"].as_u64().unwrap()
}

/// As of a file: its volumes, unless somebody may be changing them.
#[test]
fn a_check_reads_the_metadata_of_an_image_that_nobody_has_locked() {
    let fake = Fake::new(64 * MIB);
    let [errors, warnings, notes] = fake.check(&fake.text(""));
    assert!(errors == "[]" && warnings.contains("zeroes ALL") && notes == "[]", "{errors} {warnings} {notes}");
    let server = fake.start();
    server.cli(&["volume", "create", "extra", "--pool", "p", "--size", "8MiB", "--tenant", "t"]);
    let [errors, _, notes] = fake.check(&fake.text(""));
    let note = "its metadata weren't read: a client has the image's exclusive lock";
    assert!(errors == "[]" && notes.contains(note), "{errors} {notes}");
    server.kill();

    let before = std::fs::read(fake.image()).unwrap();
    let granted = fake.text("") + "[[grant]]\npeer = \"uid:7\"\nvolumes = [\"extra\", \"none\"]\n";
    let [errors, warnings, notes] = fake.check(&granted);
    assert!(errors == "[]" && notes == "[]", "{errors} {notes}");
    assert!(warnings.contains("no volume `none`") && !warnings.contains("`extra`"), "{warnings}");
    let [errors, ..] = fake.check(&fake.text("").replace("size = \"4MiB\"", "size = \"60MiB\""));
    assert!(errors.contains("its volumes want 58720256 bytes more, but its device has 49283072 left"), "{errors}");
    let [errors, warnings, _] = fake.check(&fake.text("").replace("size = \"4MiB\"", "size = \"2MiB\""));
    assert!(errors == "[]" && warnings.contains("`size` is ignored: it has 4194304 bytes"), "{errors} {warnings}");
    fake.control("fail read 5\n");
    let [errors, ..] = fake.check(&fake.text(""));
    assert!(errors.contains("can't be read"), "{errors}");
    assert!(std::fs::read(fake.image()).unwrap() == before, "something was changed");
}

/// A pool takes on what its image has more at a start. One that fails to leaves it as it is.
#[test]
fn a_pool_grows_with_its_image() {
    let fake = Fake::new(64 * MIB);
    let server = fake.start();
    let was = size(&server);
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    drop(client);
    assert!(server.stop());

    // Remains of something else, between the places that are looked at.
    let image = File::options().read(true).write(true).open(fake.image()).unwrap();
    image.write_all_at(&[9; 4096], 67 * MIB + MIB / 2).unwrap();
    image.set_len(320 * MIB).unwrap();
    let [errors, _, notes] = fake.check(&fake.text(""));
    assert!(
        errors == "[]" && notes.contains("the next start grows it with its device, from 67108864 to 335544320 bytes"),
        "{errors} {notes}"
    );
    let grown = |server: &Server| server.cli(&["events", "--kind=node"]).contains("has grown with its device");

    // A start that is refused comes before the growth.
    std::fs::create_dir(fake.dir.path().join("tapes")).unwrap();
    let taped = fake.text("").replace("sched = \"noop\"", "sched = \"noop\"\ntape = \"tapes\"");
    let why = Server::try_start(fake.dir.path(), &taped).map(drop).unwrap_err();
    assert!(why.contains("tapes: Is a directory"), "{why}");
    let mut remains = [0; 4096];
    image.read_exact_at(&mut remains, 67 * MIB + MIB / 2).unwrap();
    assert_eq!(remains, [9; 4096]);

    // The cluster can't zero it.
    fake.control("fail zero 5\n");
    let server = fake.start();
    assert!(size(&server) == was && !grown(&server));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    drop(client);
    assert!(server.stop());
    fake.control("");
    let server = fake.start();
    assert!(size(&server) == was + 256 * MIB && grown(&server));
    server.cli(&["volume", "create", "new", "--pool", "p", "--size", "250MiB", "--tenant", "t"]);
    let mut new = Client::connect(&server.socket(), "new").unwrap();
    for at in (0..250).map(|mib| mib * MIB) {
        assert!(new.read(at, MIB as u32).unwrap().unwrap().iter().all(|b| *b == 0), "{at}");
    }
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    drop((client, new));
    assert!(server.stop());

    // One that was made smaller is refused.
    fake.control("size 209715200\n");
    let why = Server::try_start(fake.dir.path(), &fake.text("")).map(drop).unwrap_err();
    assert!(why.contains("has 209715200 bytes, 335544320 are needed"), "{why}");
}

/// The maps are for steering only. A user without rights to them has a pool nevertheless.
#[test]
fn a_pool_is_served_without_its_clusters_maps() {
    let fake = Fake::new(64 * MIB);
    let text = fake.text("").replace("sched = \"noop\"\n", "");
    let server = Server::start(fake.dir.path(), &text);
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
}

/// A gateway that is cut off gets no answer to its question for the lock. With a cache it serves nothing once the lease has ended (20 s), since
/// another client may have written; it goes on when the lock is confirmed, as if nothing had been.
#[test]
fn a_gateway_that_is_cut_off_serves_nothing_after_its_lease() {
    let fake = Fake::new(64 * MIB);
    let cache = "[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"through\"\n[[tenant]]";
    let server = Server::start(fake.dir.path(), &fake.text("").replace("[[tenant]]", cache));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    fake.control("lock-hangs\n");
    let reads_are = |client: &mut Client, served: bool| {
        until("reads are answered otherwise", || client.read(0, 4096).unwrap().is_ok() == served);
    };
    reads_are(&mut client, false);
    assert!(server.cli(&["status"]).contains("failed"));
    assert!(Client::connect(&server.socket(), "vol").is_err(), "a client that comes now is refused");
    client.flush().unwrap().unwrap_err();
    fake.control("");
    reads_are(&mut client, true);
    client.flush().unwrap().expect("nothing was lost");
    let mut later = Client::connect(&server.socket(), "vol").unwrap();
    assert_eq!(later.read(0, 4096).unwrap().unwrap(), [7; 4096]);
}

/// Without a cache each answer is the cluster's own, which refuses an old owner: the lease isn't needed.
#[test]
fn a_pool_without_a_cache_needs_no_lease() {
    let fake = Fake::new(64 * MIB);
    let server = fake.start();
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    fake.control("lock-hangs\n");
    // Beyond the lease.
    let (begun, lease) = (Instant::now(), Duration::from_secs(20));
    while begun.elapsed() < lease + Duration::from_secs(3) {
        client.write(0, &[7; 4096]).unwrap().unwrap();
        client.flush().unwrap().unwrap();
        assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
        std::thread::sleep(Duration::from_millis(20));
    }
    fake.control("");
}

#[test]
fn a_pool_moves_to_another_gateway_and_back() {
    let fake = Fake::new(64 * MIB);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let old = gateway(&fake, here.path());
    let mut client = Client::connect(&old.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    let new = gateway(&fake, there.path());
    let why = new.cli_fails(&["pool", "take", "p"]);
    assert!(why.contains("another client has it") && why.contains("--force"), "{why}");
    let why = old.cli_fails(&["pool", "release", "p"]);
    assert!(why.contains("is in use"), "{why}");
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    let why = old.cli_fails(&["pool", "release", "own", "--disconnect"]);
    assert!(why.contains("isn't on an RBD image"), "{why}");

    let said = old.cli(&["pool", "release", "p", "--disconnect"]);
    assert!(said.contains("another gateway can take rbd pool/image") && said.contains("vol"), "{said}");
    assert!(Client::connect(&old.socket(), "vol").is_err());
    assert!(old.cli(&["status"]).contains("was released for another gateway"));
    let said = new.cli(&["pool", "take", "p"]);
    assert!(said.contains("is served") && said.contains("vol"), "{said}");
    let mut moved = Client::connect(&new.socket(), "vol").unwrap();
    assert_eq!(moved.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    moved.write(4096, &[8; 4096]).unwrap().unwrap();
    drop(moved);
    let why = old.cli_fails(&["pool", "take", "p"]);
    assert!(why.contains("another client has it"), "{why}");
    let why = new.cli_fails(&["pool", "take", "p", "--force"]);
    assert!(why.contains("is served here already"), "{why}");

    new.cli(&["pool", "release", "p", "--disconnect"]);
    old.cli(&["pool", "take", "p"]);
    let mut back = Client::connect(&old.socket(), "vol").unwrap();
    assert_eq!(back.read(4096, 4096).unwrap().unwrap(), [8; 4096]);
    drop((client, back));
    assert!(new.stop() && old.stop());
}

/// A gateway that hangs doesn't know that it isn't the owner any more. The cluster refuses what it sends.
#[test]
fn a_gateway_that_hung_writes_nothing_after_its_pool_was_taken() {
    let fake = Fake::new(64 * MIB);
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let old = gateway(&fake, here.path());
    let mut client = Client::connect(&old.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    let new = gateway(&fake, there.path());
    old.signal(rustix::process::Signal::STOP);
    until("all threads have stopped", || has_stopped(&old));
    let writing = std::thread::spawn(move || (0..16).map(|n| client.write(n * 4096, &[9; 4096])).collect::<Vec<_>>());
    new.cli(&["pool", "take", "p", "--force"]);
    let mut moved = Client::connect(&new.socket(), "vol").unwrap();
    assert_eq!(moved.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    moved.write(0, &[8; 4096]).unwrap().unwrap();
    old.signal(rustix::process::Signal::CONT);
    let written = writing.join().unwrap();
    assert!(written.iter().all(|w| !matches!(w, Ok(Ok(_)))), "{written:?}");
    until("the old gateway notices", || old.cli(&["status"]).contains("failed"));
    assert_eq!(moved.read(0, 4096).unwrap().unwrap(), [8; 4096]);
    assert!(moved.read(4096, 15 * 4096).unwrap().unwrap().iter().all(|b| *b == 0));
    let blocked = std::fs::read_to_string(fake.dir.path().join("blocklist-order")).unwrap();
    assert!(blocked.contains(r#""blocklistop":"add""#) && blocked.contains(r#""expire":31536000.0"#), "{blocked}");
}

#[test]
fn volumes_that_need_their_cache_are_not_released() {
    let fake = Fake::new(64 * MIB);
    let cache = "[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\n[[tenant]]";
    let server = Server::start(fake.dir.path(), &fake.text("").replace("[[tenant]]", cache));
    let why = server.cli_fails(&["pool", "release", "p"]);
    assert!(
        why.contains("newest data of volumes vol") && why.contains("plimsoll pool release p --write-back"),
        "{why}"
    );
    server.cli(&["volume", "cache", "vol", "through"]);
    server.cli(&["cache", "flush"]);
    server.wait_for_cache("all is written back", |s| s["volumes"][0]["behind"] == false);
    server.cli(&["pool", "release", "p"]);
}

/// Cores and a fence lie above an image as above a disk.
#[test]
fn a_pool_on_an_image_has_cores_and_a_fence() {
    let served = |text: &str, shown: [&str; 3], part: &str| {
        let fake = Fake::new(64 * MIB);
        give_maps(&fake);
        let server =
            Server::start(fake.dir.path(), text.replace("FOLDER", &fake.dir.path().display().to_string()).as_str());
        let mut client = Client::connect(&server.socket(), "vol").unwrap();
        for n in 0..16 {
            client.write(n * 4096, &[n as u8; 4096]).unwrap().unwrap();
        }
        client.flush().unwrap().unwrap();
        for n in 0..16 {
            assert_eq!(client.read(n * 4096, 4096).unwrap().unwrap(), [n as u8; 4096]);
        }
        let said = server.cli(&shown);
        assert!(said.contains(part), "{said}");
    };
    let fake = Fake::new(64 * MIB);
    let text = fake.text("").replace(&fake.dir.path().display().to_string(), "FOLDER");
    served(&text.replace("sched = \"noop\"", "cores = 2"), ["cores", "p", "--json"], "\"cores\": 2");
    let fenced = text
        .replace("sched = \"noop\"\n", "[pool.fence]\nslots = 4\nslot = \"20ms\"\n")
        .replace("[[grant]]", "slots = 2\n[[grant]]");
    served(&fenced, ["fence", "status", "p"], "vol");
}

/// Handles were opened for hosts that have nothing of the image any more. There are no places for more of them.
#[test]
fn handles_for_hosts_that_are_gone_are_named() {
    let fake = Fake::new(64 * MIB);
    let give = |epoch: u32, first: u32| {
        let write = |name: &str, text: &str| std::fs::write(fake.dir.path().join(name), text).unwrap();
        let groups: Vec<String> = (0..8)
            .map(|n| {
                let of = |more: u32| first + (n + more) % 8;
                let (a, b, c) = (of(0), of(1), of(2));
                format!(r#"{{"pgid":"2.{n:x}","acting":[{a},{b},{c}],"acting_primary":{a}}}"#)
            })
            .collect();
        let host = |n| format!(r#"{{"id":-{},"name":"h{n}","type":"host","type_id":1,"children":[{n}]}}"#, n + 2);
        let hosts: Vec<String> = (first..first + 8).map(host).collect();
        write("osd_tree.json", &format!(r#"{{"nodes":[{}]}}"#, hosts.join(",")));
        write("pg_dump.json", &format!(r#"{{"pg_stats":[{}]}}"#, groups.join(",")));
        let pool = r#"{"pool":2,"type":1,"pg_num":8,"object_hash":2}"#;
        write("osd_dump.json", &format!(r#"{{"epoch":{epoch},"pools":[{pool}]}}"#));
        write("osd_stat.json", &format!(r#"{{"epoch":{epoch}}}"#));
    };
    give(5, 0);
    let server = Server::start(fake.dir.path(), &fake.text("").replace("sched = \"noop\"\n", ""));
    let shown = || server.cli(&["pool", "show", "p"]);
    until("reads are steered", || shown().contains("8 OSDs (map 5)") && !shown().contains("not steered"));
    // Most changes of the cluster's map concern other images.
    give(6, 0);
    until("the epoch is shown", || shown().contains("8 OSDs (map 6)") && !shown().contains("not steered"));
    give(7, 8);
    until("the reason is shown", || shown().contains("8 OSDs (map 7)") && shown().contains("restart the node"));
}

/// A read with a deadline goes to a replica where its primary is slow.
#[test]
fn a_read_with_a_deadline_is_steered() {
    let fake = Fake::new(64 * MIB);
    give_maps(&fake);
    let server = steered(&fake);
    let mut patient = Client::connect(&server.socket(), "vol").unwrap();
    (0..50).for_each(|_| drop(patient.read(0, 4096).unwrap().unwrap()));
    let primary = || server.control("GET", "/v1/pools/p/osds").expect(200)["osds"][0].clone();
    assert!(primary()["osd"] == 0 && primary()["refused"] == 0, "{}", primary());
    fake.control("slow 0 4000000\n");
    let mut web = Client::connect(&server.socket(), "vol?deadline=2s&busy=error").unwrap();
    for _ in 0..20 {
        let ended = web.read(0, 4096).unwrap();
        assert!(ended.is_ok(), "a replica has it: {:?}", ended.err());
    }
    assert!(primary()["steered"].as_u64() >= Some(19) && primary()["refused"] == 0, "{}", primary());
}

/// A read with a deadline is refused where all that have it are slow, with the time for which it would have waited.
#[test]
fn a_read_with_a_deadline_is_refused_with_its_wait() {
    let fake = Fake::new(64 * MIB);
    give_maps(&fake);
    fake.control("slow 0 40000\nslow 1 40000\nslow 2 40000\n");
    let server = steered(&fake);
    let mut web = Client::connect(&server.socket(), "vol?deadline=10ms&busy=error").unwrap();
    let refused = || server.control("GET", "/v1/pools/p/osds").expect(200)["osds"][0]["refused"].as_u64();
    // Until each OSD has answered enough reads for a forecast, reads are accepted, and end late.
    // By the forecast of an OSD: the room for those that are too likely late adds no more than is left.
    until("it is refused with its wait", || busy_wait_us(&web.read(0, 4096).unwrap()) > Some(10_000));
    assert!(refused() >= Some(1));
}

/// A node on an image whose cluster's maps are there, once it steers reads.
fn steered(fake: &Fake) -> Server {
    let server = Server::start(fake.dir.path(), &fake.text("").replace("sched = \"noop\"\n", ""));
    until("reads are steered", || {
        let shown = server.cli(&["pool", "show", "p"]);
        shown.contains("3 OSDs (map 5)") && !shown.contains("not steered")
    });
    server
}

/// Three OSDs on a host each: osd.0 is the primary of all objects, whose only group has the other two as replicas.
fn give_maps(fake: &Fake) {
    let write = |name: &str, text: &str| std::fs::write(fake.dir.path().join(name), text).unwrap();
    write("acting", &"0 1 2\n".repeat(16));
    write("osd_dump.json", r#"{"epoch":5,"pools":[{"pool":2,"type":1,"pg_num":1,"object_hash":2}]}"#);
    write("pg_dump.json", r#"{"pg_stats":[{"pgid":"2.0","acting":[0,1,2],"acting_primary":0}]}"#);
    let host = |n| format!(r#"{{"id":-{},"name":"h{n}","type":"host","type_id":1,"children":[{n}]}}"#, n + 2);
    let hosts: Vec<String> = (0..3).map(host).collect();
    write("osd_tree.json", &format!(r#"{{"nodes":[{}]}}"#, hosts.join(",")));
}

/// The cluster's maps may not be had at the start. Reads are steered once they are.
#[test]
fn reads_are_steered_once_the_clusters_maps_are_there() {
    let fake = Fake::new(64 * MIB);
    let text = fake.text("").replace("sched = \"noop\"\n", "");
    let server = Server::start(fake.dir.path(), &text);
    let shown = || server.cli(&["pool", "show", "p"]);
    until("the reason is shown", || shown().contains("osd dump"));
    give_maps(&fake);
    // A handle isn't opened at once, either.
    std::fs::write(fake.dir.path().join("down"), "").unwrap();
    until("the handle is named", || shown().contains("the handle for host h1 can't be opened"));
    std::fs::remove_file(fake.dir.path().join("down")).unwrap();
    until("reads are steered", || shown().contains("3 OSDs (map 5)") && !shown().contains("not steered"));
    fake.control("slow 0 200000\n");
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    client.read(0, 4096).unwrap().unwrap();
    let served = std::fs::read_to_string(fake.dir.path().join("served")).unwrap();
    assert!(served.lines().any(|l| l == "host=h1 1" || l == "host=h2 2"), "{served}");
}

/// An OSD is taken out and comes back while clients write and read: each request goes by one map or the next, and none fails.
#[test]
fn an_acting_set_may_change_under_reads() {
    let fake = Fake::new(64 * MIB);
    give_maps(&fake);
    let give = |epoch: u32, acting: &[u32]| {
        let write = |name: &str, text: &str| std::fs::write(fake.dir.path().join(name), text).unwrap();
        let words: Vec<String> = acting.iter().map(u32::to_string).collect();
        write("acting", &format!("{}\n", words.join(" ")).repeat(16));
        let group = format!(r#"{{"pgid":"2.0","acting":[{}],"acting_primary":{}}}"#, words.join(","), acting[0]);
        write("pg_dump.json", &format!(r#"{{"pg_stats":[{group}]}}"#));
        let pool = r#"{"pool":2,"type":1,"pg_num":1,"object_hash":2}"#;
        write("osd_dump.json", &format!(r#"{{"epoch":{epoch},"pools":[{pool}]}}"#));
        write("osd_stat.json", &format!(r#"{{"epoch":{epoch}}}"#));
    };
    give(5, &[0, 1, 2]);
    // Requests take some time, so that clients wait and don't keep processors busy.
    fake.control("slow 0 2000\nslow 1 2000\nslow 2 2000\n");
    let server = Server::start(fake.dir.path(), &fake.text("").replace("sched = \"noop\"\n", ""));
    let shown = || server.cli(&["pool", "show", "p"]);
    until("reads are steered", || shown().contains("3 OSDs (map 5)") && !shown().contains("not steered"));
    let (over, socket) = (AtomicBool::new(false), server.socket());
    let load = || {
        let mut client = Client::connect(&socket, "vol").unwrap();
        let mut n = 0u64;
        while !over.load(SeqCst) {
            n += 1;
            let data = n.to_le_bytes().repeat(512);
            client.write(n % 64 * 4096, &data).unwrap().unwrap();
            assert!(client.read(n % 64 * 4096, 4096).unwrap().unwrap() == data, "request {n}");
        }
    };
    std::thread::scope(|scope| {
        let load = scope.spawn(load);
        for (epoch, acting) in [(6, &[1, 2][..]), (7, &[2, 1][..]), (8, &[0, 1, 2][..])] {
            give(epoch, acting);
            let of = format!("{} OSDs (map {epoch})", acting.len());
            until("the map is read", || shown().contains(&of) || load.is_finished());
            let reads = || {
                let seen = server.control("GET", "/v1/pools/p/osds").expect(200);
                let osds = seen["osds"].as_array().unwrap();
                osds.iter().find(|o| o["osd"] == acting[0]).map_or(0, |o| o["reads"].as_u64().unwrap())
            };
            let before = reads();
            until("the new primary is read from", || reads() > before + 10 || load.is_finished());
        }
        over.store(true, SeqCst);
        load.join().unwrap();
    });
}

/// Of a large cluster only the groups of the image's pool are asked for. If that fails, all are.
#[test]
fn the_groups_of_a_small_pool_are_asked_for_alone() {
    let fake = Fake::new(64 * MIB);
    give_maps(&fake);
    let file = |name: &str| fake.dir.path().join(name);
    let own = r#"{"pool":2,"pool_name":"pool","type":1,"pg_num":1,"object_hash":2}"#;
    let give = |epoch: u32| {
        let pools = format!(r#"{{"epoch":{epoch},"pools":[{own},{{"pool":3,"pool_name":"b","pg_num":64}}]}}"#);
        std::fs::write(file("osd_dump.json"), pools).unwrap();
        std::fs::write(file("osd_stat.json"), format!(r#"{{"epoch":{epoch}}}"#)).unwrap();
    };
    give(5);
    std::fs::rename(file("pg_dump.json"), file("pg_ls-by-pool.json")).unwrap();
    let server = Server::start(fake.dir.path(), &fake.text("").replace("sched = \"noop\"\n", ""));
    let shown = || server.cli(&["pool", "show", "p"]);
    until("reads are steered", || shown().contains("3 OSDs (map 5)") && !shown().contains("not steered"));
    std::fs::rename(file("pg_ls-by-pool.json"), file("pg_dump.json")).unwrap();
    give(6);
    until("the map is read", || shown().contains("3 OSDs (map 6)"));
}

/// An OSD that stalls is shown as one that stands out: by `pool show`, metrics, events and problems; then no more, once it answers in time.
#[test]
fn an_osd_that_stands_out_is_shown_until_it_answers_in_time() {
    let fake = Fake::new(64 * MIB);
    give_maps(&fake);
    let server = steered(&fake);
    let shown = || server.cli(&["pool", "show", "p"]);
    let view = || server.control("GET", "/v1/pools/p/osds").expect(200);
    let metric = |name: &str, osd: u32| {
        let page = server.control("GET", "/metrics").body;
        let line = page.lines().find(|l| l.starts_with(&format!("{name}{{")) && l.contains(&format!("osd=\"{osd}\"")));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or_else(|| panic!("{name} of osd.{osd}"))
    };
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    // A machine that pauses may make one stand out for a moment.
    until("none stands out", || {
        (0..50).for_each(|_| drop(client.read(0, 4096).unwrap().unwrap()));
        shown().contains("0 of them stand out")
    });
    assert!(metric("plimsoll_osd_stands_out", 0) == 0.0, "{}", shown());

    fake.control("slow 0 200000\n");
    client.read(0, 4096).unwrap().unwrap();
    let seen = view();
    let osd = |seen: &serde_json::Value, number: u64| {
        let osds = seen["osds"].as_array().unwrap();
        osds.iter().find(|o| o["osd"] == number).unwrap_or_else(|| panic!("no osd.{number} in {seen}")).clone()
    };
    let slow = osd(&seen, 0);
    assert!(slow["stands_out"] == true && slow["host"] == "h0", "{seen}");
    assert!(slow["late"].as_u64() >= Some(1) && slow["steered"].as_u64() >= Some(1), "{seen}");
    assert!((1..3).all(|n| osd(&seen, n)["stands_out"] == false), "{seen}");
    let replicas: u64 = (1..3).map(|n| osd(&seen, n)["reads"].as_u64().unwrap()).sum();
    assert!(replicas >= 1, "{seen}");
    let text = shown();
    assert!(
        text.contains("1 of them stand out") && text.contains("osd.0 (!)") && text.contains("osd.0: reads stall there"),
        "{text}"
    );
    assert_eq!((0..3).map(|n| metric("plimsoll_osd_stands_out", n)).collect::<Vec<_>>(), [1.0, 0.0, 0.0]);
    assert!(metric("plimsoll_osd_late_total", 0) >= 1.0 && metric("plimsoll_osd_steered_total", 0) >= 1.0);
    let said = "pool `p`: osd.0 (host h0) stands out";
    until("it is a problem", || {
        server.control("GET", "/v1/status").expect(200)["node"]["problems"].to_string().contains(said)
    });
    until("it is an event", || server.control("GET", "/v1/events?kind=problem").expect(200).to_string().contains(said));

    fake.control("");
    until("it doesn't stand out any more", || {
        (0..20).for_each(|_| drop(client.read(0, 4096).unwrap().unwrap()));
        view()["osds"].as_array().unwrap().iter().all(|o| o["stands_out"] == false)
    });
    assert!(!shown().contains("(!)") && metric("plimsoll_osd_stands_out", 0) == 0.0, "{}", shown());
}
