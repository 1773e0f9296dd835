//! Devices that are full, failing, read-only or corrupt, and clients that vanish: each a clear error; others notice nothing.

mod common;
use common::client::Client;
use common::mount::{Failing, Loop, Tmpfs, await_unlocked, may_mount};
use common::shaped::until;
use common::{Server, config};
use plimsoll_nbd::wire::{Command, CommandFlags};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn client(server: &Server) -> Client {
    Client::connect(&server.socket(), "vol").unwrap()
}

/// Adds a second pool, on a device of its own, with a volume `other`.
fn with_other(config: String) -> String {
    config.replace(
        "[[tenant]]",
        "[[pool]]\nname = \"o\"\ndevice = { file = \"other.img\", size = \"64MiB\" }\n[[tenant]]",
    ) + "[[volume]]\nname = \"other\"\npool = \"o\"\nsize = \"8MiB\"\ntenant = \"t\"\n"
}

#[test]
fn a_full_disk_is_no_space_to_who_fills_it_and_nothing_to_others() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _tmpfs = Tmpfs::at(dir.path().join("small"), "48m");
    let config = config(r#"{ file = "small/p.img", size = "256MiB" }"#, "128MiB");
    let server = Server::start(dir.path(), &with_other(config));
    let mut c = client(&server);
    let mut other = Client::connect(&server.socket(), "other").unwrap();
    let mut written = 0;
    let error = loop {
        match c.write((written * MIB) as u64, &vec![written as u8 + 1; MIB]).unwrap() {
            Ok(_) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 48, "48 MiB hold {written} MiB and a superblock");
    };
    assert!(error.contains("ENOSPC") && error.contains("no space left"), "{error}");
    assert!(written > 8, "only {written} MiB fitted");
    for n in [0, written / 2, written - 1] {
        assert!(c.read((n * MIB) as u64, 4096).unwrap().unwrap().iter().all(|&b| b == n as u8 + 1), "MiB {n} differs");
    }
    other.write(0, b"unharmed").unwrap().unwrap();
    other.flush().unwrap().unwrap();
    assert_eq!(other.read(0, 8).unwrap().unwrap(), b"unharmed");
    // What is given back can be used again.
    c.call(Command::Trim, CommandFlags::EMPTY, 0, 4 << 20, &[]).unwrap().unwrap();
    c.write((written * MIB) as u64, &[7; MIB]).unwrap().unwrap();
    c.flush().unwrap().unwrap();
    assert!(server.stop());
}

/// One tenant fills the file system under a sparse pool. The pool's own regions (metadata, the logs and their tables) were
/// allocated when it was made: the other tenants' writes and flushes where they wrote before, and changes of volumes, go on.
#[test]
fn a_full_disk_under_logs_is_only_its_tenants() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let _tmpfs = Tmpfs::at(dir.path().join("small"), "64m");
    let logs = "[pool.logs]\ngroup = \"4MiB\"\nlog = \"256KiB\"\nextents = 4096\nlogged_write = \"16KiB\"\nidle = \"5ms\"\nevery = \"300ms\"";
    let device = format!("{{ file = \"small/p.img\", size = \"256MiB\" }}\n{logs}");
    let config = config(&device, "128MiB")
        + "[[tenant]]\nname = \"other\"\nclass = \"best-effort\"\n"
        + "[[volume]]\nname = \"quiet\"\npool = \"p\"\nsize = \"16MiB\"\ntenant = \"other\"\n";
    let server = Server::start(dir.path(), &config);
    let mut filler = client(&server);
    let mut quiet = Client::connect(&server.socket(), "quiet").unwrap();
    quiet.write(0, &[1; 4 * MIB]).unwrap().unwrap();
    quiet.flush().unwrap().unwrap();
    let mut written = 0;
    let error = loop {
        match filler.write((written * MIB) as u64, &vec![written as u8 + 1; MIB]).unwrap() {
            Ok(_) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 64, "64 MiB hold {written} MiB and more");
    };
    assert!(error.contains("ENOSPC"), "{error}");
    let _ = filler.flush().unwrap();
    // Small writes are logged, so many that logs fill up, are checkpointed, and images are written.
    for round in 0..40u8 {
        for n in 0..64 {
            quiet.write(n * 65_536, &[round; 4096]).unwrap().unwrap_or_else(|e| panic!("round {round}: {e}"));
        }
        quiet.flush().unwrap().unwrap_or_else(|e| panic!("flush {round}: {e}"));
    }
    server.cli(&["logs", "checkpoint", "p"]);
    quiet.flush().unwrap().unwrap();
    for n in 0..64 {
        assert_eq!(quiet.read(n * 65_536, 4096).unwrap().unwrap(), [39; 4096]);
    }
    server.cli(&["volume", "create", "more", "--pool", "p", "--size", "4MiB", "--tenant", "other"]);
    server.cli(&["volume", "delete", "more", "--yes"]);
    let status = server.control("GET", "/v1/status").expect(200);
    assert_eq!(
        (&status["pools"][0]["state"], &status["pools"][0]["problem"]),
        (&"ready".into(), &serde_json::Value::Null)
    );
    server.control("GET", "/healthz").expect(200);
    // A write that is logged and has no room at its place: who asks for a checkpoint is told.
    filler.write(100 * MIB as u64, &[7; 4096]).unwrap().unwrap();
    filler.flush().unwrap().unwrap();
    let said = server.cli_fails(&["logs", "checkpoint", "p"]);
    assert!(said.contains("none of the logged data could be written to their place"), "{said}");
    assert_eq!(filler.read(100 * MIB as u64, 4096).unwrap().unwrap(), [7; 4096]);
    assert!(server.stop());
}

/// Bytes that neither compress nor occur twice.
fn noise(seed: usize) -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15 ^ (seed as u64 + 1).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let words = (0..MIB / 8).flat_map(|_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    });
    words.collect()
}

/// The problem of a volume whose write-back fails, if there is one; it is no outage.
fn failing(server: &Server, volume: &str) -> Option<String> {
    let health = server.control("GET", "/healthz").expect(200);
    let problems = health["problems"].as_array().unwrap().iter().map(|p| p.as_str().unwrap().to_string());
    problems.into_iter().find(|p| p.contains(&format!("write-back of volume `{volume}` fails")))
}

/// One tenant fills the file system under a sparse pool, and then the pool's cache, which writes back: its writes end with the error, and
/// the node tells. Another tenant goes on where it has written before. When there is room again, write-back goes on by itself.
fn full_under_a_cache(sharing: &str) {
    let dir = tempfile::tempdir().unwrap();
    let small = Tmpfs::at(dir.path().join("small"), "48m");
    let cache =
        format!("[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\nsharing = \"{sharing}\"");
    let device = format!("{{ file = \"small/p.img\", size = \"256MiB\" }}\n{cache}");
    let config = config(&device, "160MiB")
        + "[[tenant]]\nname = \"other\"\nclass = \"best-effort\"\n"
        + "[[volume]]\nname = \"quiet\"\npool = \"p\"\nsize = \"16MiB\"\ntenant = \"other\"\n";
    let server = Server::start(dir.path(), &config);
    let mut filler = client(&server);
    let quiet = |server: &Server| Client::connect(&server.socket(), "quiet").unwrap();
    let mut other = quiet(&server);
    for n in 0..4 {
        other.write((n * MIB) as u64, &noise(1000 + n)).unwrap().unwrap();
    }
    other.flush().unwrap().unwrap();
    server.cli(&["cache", "flush", "p"]);
    let mut written = 0;
    let error = loop {
        match filler.write((written * MIB) as u64, &noise(written)).unwrap() {
            Ok(_) => written += 1,
            Err(e) => break e,
        }
        assert!(written < 48 + 64, "48 MiB and a cache of 64 MiB hold {written} MiB");
    };
    assert!(error.contains("ENOSPC"), "{sharing}: {error}");
    filler.flush().unwrap().unwrap();
    // It is told, as no outage.
    until("the problem isn't told", || failing(&server, "vol").is_some());
    let told = failing(&server, "vol").unwrap();
    assert!(told.contains("no space left") && told.contains("small/p.img"), "{told}");
    let status = server.control("GET", "/v1/status").expect(200);
    assert_eq!(status["pools"][0]["state"], "ready");
    assert!(server.cli(&["cache", "status", "p"]).contains("write-back of volume `vol` fails"));
    let metrics = |server: &Server| server.control("GET", "/metrics").body;
    assert!(metrics(&server).contains("plimsoll_cache_write_back_failing{pool=\"p\"} 1"), "{}", metrics(&server));
    let events = |server: &Server, what: &str| {
        let said = server.control("GET", "/v1/events?kind=problem").expect(200);
        said["events"].as_array().unwrap().iter().filter(|e| e["what"].as_str().unwrap().contains(what)).count()
    };
    until("it is no event", || events(&server, "write-back of volume `vol` fails") == 1);
    // The other tenant goes on, also where its extents are dirty: its range has space.
    for round in 0..3u8 {
        for n in 0..64 {
            let at = n * 65_536 + u64::from(round) * 16_384;
            other.write(at, &[round + 1; 8192]).unwrap().unwrap_or_else(|e| panic!("{sharing}, {round}: {e}"));
        }
        other.flush().unwrap().unwrap_or_else(|e| panic!("{sharing}, flush {round}: {e}"));
    }
    // What was acknowledged is there, at once and after an end that nothing was prepared for.
    let check = |server: &Server| {
        let (mut filler, mut other) = (client(server), quiet(server));
        for n in 0..written {
            let read = filler.read((n * MIB) as u64, MIB as u32).unwrap().unwrap();
            assert!(read == noise(n), "{sharing}: MiB {n} of {written} differs");
        }
        for n in 0..64 {
            for round in 0..3u8 {
                let at = n * 65_536 + u64::from(round) * 16_384;
                assert_eq!(other.read(at, 8192).unwrap().unwrap(), [round + 1; 8192], "{sharing}: {n}, {round}");
            }
        }
    };
    check(&server);
    drop((filler, other));
    server.kill();
    let server = Server::start(dir.path(), &config);
    check(&server);
    until("the problem isn't told after a restart", || failing(&server, "vol").is_some());
    until("it is no event after a restart", || events(&server, "write-back of volume `vol` fails") == 1);
    // Room is made.
    common::ok("mount", &["-o", "remount,size=320m", small.path.to_str().unwrap()]);
    until("the problem stays", || failing(&server, "vol").is_none());
    until("its end is no event", || events(&server, "write-back of volume `vol`: over after") == 1);
    let mut filler = client(&server);
    filler.write((written * MIB) as u64, &noise(written)).unwrap().unwrap();
    filler.flush().unwrap().unwrap();
    server.cli(&["cache", "flush", "p"]);
    check(&server);
    assert!(metrics(&server).contains("plimsoll_cache_write_back_failing{pool=\"p\"} 0"));
    assert!(server.stop());
}

#[test]
fn a_full_disk_under_a_shared_cache_is_only_its_tenants() {
    if may_mount() {
        full_under_a_cache("shared");
    }
}

#[test]
fn a_full_disk_under_a_cache_of_parts_is_only_its_tenants() {
    if may_mount() {
        full_under_a_cache("pervolume");
    }
}

/// Clients that connect and send nothing keep nobody out, even 600 of them.
#[test]
fn silent_clients_shut_nobody_out() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB"));
    let silent: Vec<UnixStream> = (0..600).map(|_| UnixStream::connect(server.socket()).unwrap()).collect();
    let begun = Instant::now();
    client(&server).write(0, &[5; 4096]).unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15), "as long as a handshake may take: {:?}", begun.elapsed());
    drop(silent);
    assert!(server.stop());
}

/// One pool's device is somebody else's: the other pool is served, and what is wrong is said wherever one would look.
#[test]
fn a_pool_that_cannot_be_opened_leaves_the_others_served() {
    let dir = tempfile::tempdir().unwrap();
    let config = with_other(config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB"));
    let strange = dir.path().join("other.img");
    std::fs::write(&strange, vec![0xAB; 64 * MIB]).unwrap();
    let server = Server::start(dir.path(), &config);
    client(&server).write(0, &[5; 4096]).unwrap().unwrap();
    assert!(Client::connect(&server.socket(), "other").is_err());
    let health = server.control("GET", "/healthz");
    assert!(
        health.code == 503 && health.body.contains("pool `o`") && health.body.contains("other.img"),
        "{}",
        health.body
    );
    let status = server.control("GET", "/v1/status").expect(200);
    assert_eq!((&status["pools"][0]["state"], &status["pools"][1]["state"]), (&"ready".into(), &"failed".into()));
    let socket = dir.path().join("control.sock");
    let create = ["volume", "create", "new", "--pool", "o", "--size", "4MiB", "--tenant", "t"];
    let create = [&create[..], &["--control", socket.to_str().unwrap()]].concat();
    let refused = common::run(env!("CARGO_BIN_EXE_plimsoll"), &create);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("other.img"), "{said}");
    server.cli(&["tenant", "set", "t", "--class", "best-effort", "--weight", "300"]);
    assert!(server.stop());
    std::fs::remove_file(&strange).unwrap();
    let server = Server::start(dir.path(), &config);
    assert!(Client::connect(&server.socket(), "other").is_ok());
    assert_eq!(client(&server).read(0, 4096).unwrap().unwrap(), [5; 4096]);
    server.control("GET", "/healthz").expect(200);
    // Pool `o` had no record of the tenant: what was changed without it holds.
    let tenants = server.control("GET", "/v1/tenants/t").expect(200);
    assert_eq!(tenants["weight"], 300, "{tenants}");
    assert!(server.stop());
}

#[test]
fn a_device_that_fails_reads_and_writes_fails_only_them() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let failing = Failing::new(dir.path());
    let device = format!("{{ file = \"{}\", format = true }}", failing.device.path.display());
    let server = Server::start(dir.path(), &with_other(config(&device, "16MiB")));
    let (mut a, mut b) = (client(&server), client(&server));
    let mut other = Client::connect(&server.socket(), "other").unwrap();
    a.write(0, &[1; 8192]).unwrap().unwrap();
    failing.fail("read", true);
    let error = a.read(0, 4096).unwrap().unwrap_err();
    assert!(error.contains("EIO") && error.contains("the device failed"), "{error}");
    b.write(8192, &[2; 4096]).unwrap().unwrap();
    failing.fail("write", true);
    let error = b.write(0, &[3; 4096]).unwrap().unwrap_err();
    assert!(error.contains("EIO"), "{error}");
    other.write(0, b"unharmed").unwrap().unwrap();
    other.flush().unwrap().unwrap();
    failing.fail("read", false);
    failing.fail("write", false);
    assert_eq!(a.read(8192, 4096).unwrap().unwrap(), [2; 4096]);
    a.write(0, &[4; 4096]).unwrap().unwrap();
    a.flush().unwrap().unwrap();
    assert_eq!(b.read(0, 4096).unwrap().unwrap(), [4; 4096]);
    assert!(server.stop());
}

/// The kernel tells of a write that it lost once, at one flush: whoever flushes next must not be told that all is well.
#[test]
fn after_a_failed_flush_none_is_believed_until_the_pool_is_recovered() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let failing = Failing::new(dir.path());
    let device = format!("{{ file = \"{}\", format = true }}", failing.device.path.display());
    let server = Server::start(dir.path(), &config(&device, "16MiB"));
    let (mut a, mut b) = (client(&server), client(&server));
    assert_eq!(server.control("GET", "/healthz").code, 200);
    a.write(0, &[1; 4096]).unwrap().unwrap();
    failing.fail("flush", true);
    assert!(a.flush().unwrap().unwrap_err().contains("EIO"));
    failing.fail("flush", false);
    for c in [&mut a, &mut b] {
        let error = c.flush().unwrap().unwrap_err();
        assert!(error.contains("an earlier flush failed"), "{error}");
    }
    let fua = b.call(Command::Write, CommandFlags::FUA, 0, 4096, &[9; 4096]).unwrap();
    assert!(fua.is_err(), "a durable write was promised");
    let health = server.control("GET", "/healthz");
    assert_eq!(health.code, 503);
    assert!(health.body.contains("pool recover p"), "it says what to do: {}", health.body);
    let state = server.control("GET", "/v1/status").expect(200)["volumes"][0]["state"].clone();
    assert_eq!(state, "degraded");
    assert!(Client::connect(&server.socket(), "v").is_err(), "exported to who hasn't heard of the failure");
    server.cli(&["pool", "recover", "p"]);
    assert_eq!(server.control("GET", "/healthz").code, 200);
    drop(client(&server));
    b.write(4096, &[2; 4096]).unwrap().unwrap();
    b.flush().unwrap().unwrap();
    failing.fail("flush", true);
    assert!(!server.stop(), "the last flush failed: the node must not end as if all were well");
}

/// The storage fails in the middle of a deletion: the next start may find it, and zero the volume. Nobody may write to it until then.
#[test]
fn a_volume_whose_deletion_may_be_durable_is_offered_to_nobody() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let failing = Failing::new(dir.path());
    let device = format!("{{ file = \"{}\", format = true }}", failing.device.path.display());
    let config = config(&device, "16MiB");
    let server = Server::start(dir.path(), &config);
    server.cli(&["volume", "create", "doomed", "--pool", "p", "--size", "8MiB", "--tenant", "t"]);
    let mut user = Client::connect(&server.socket(), "doomed").unwrap();
    user.write(0, &[7; 4096]).unwrap().unwrap();
    user.flush().unwrap().unwrap();
    failing.fail("flush", true);
    let error = server.cli_fails(&["volume", "delete", "doomed", "--disconnect", "--yes"]);
    assert!(error.contains("offered to nobody"), "{error}");
    assert!(user.read(0, 4096).is_err(), "its client is disconnected");
    assert!(Client::connect(&server.socket(), "doomed").is_err(), "it is offered again");
    failing.fail("flush", false);
    server.kill();
    let server = Server::start(dir.path(), &config);
    match Client::connect(&server.socket(), "doomed") {
        Ok(mut user) => assert_eq!(user.read(0, 4096).unwrap().unwrap(), [7; 4096]),
        Err(_) => assert!(!server.cli(&["volume", "list"]).contains("doomed")),
    }
    assert!(server.stop());
}

/// Each FLUSH and FUA makes the kernel flush the device: acknowledging is not enough.
#[test]
fn flush_and_fua_reach_the_device() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    File::create(&file).unwrap().set_len(64 << 20).unwrap();
    let disk = Loop::over(&file, &[]);
    let server = Server::start(
        dir.path(),
        &config(&format!("{{ file = \"{}\", format = true }}", disk.path.display()), "16MiB"),
    );
    let mut c = client(&server);
    let mut count = |what: &mut dyn FnMut(&mut Client)| {
        let before = disk.flushes();
        (0..10).for_each(|_| what(&mut c));
        disk.flushes() - before
    };
    let plain = count(&mut |c| drop(c.write(0, &[1; 4096]).unwrap().unwrap()));
    assert_eq!(plain, 0, "a plain write isn't flushed");
    let flushed = count(&mut |c| {
        c.write(0, &[2; 4096]).unwrap().unwrap();
        c.flush().unwrap().unwrap();
    });
    assert!(flushed >= 10, "10 flushes made {flushed}");
    for (name, command, data) in
        [("write", Command::Write, &[3; 4096][..]), ("zeroes", Command::WriteZeroes, &[]), ("trim", Command::Trim, &[])]
    {
        let fua = count(&mut |c| drop(c.call(command, CommandFlags::FUA, 4096, 4096, data).unwrap().unwrap()));
        assert!(fua >= 10, "10 durable requests ({name}) made {fua} flushes");
    }
    assert!(server.stop());
}

#[test]
fn what_cannot_be_served_is_told_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let good = config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB");
    let server = Server::start(dir.path(), &good);
    client(&server).write(0, &[1; 4096]).unwrap().unwrap();
    assert!(server.stop());
    let image = dir.path().join("p.img");
    let refused = |config: &str| Server::try_start(dir.path(), config).err().expect("it starts");
    if may_mount() {
        let read_only = Loop::over(&image, &["--read-only"]);
        let said = refused(&good.replace("p.img", read_only.path.to_str().unwrap()).replace(", size = \"64MiB\"", ""));
        assert!(said.contains("pool `p`") && said.contains(read_only.path.to_str().unwrap()), "{said}");
    }
    let said = refused(&good.replace("[[tenant]]", "tape = \"p.img\"\n[[tenant]]"));
    assert!(said.contains("something else than a tape"), "{said}");
    let said = refused(&good.replace("p.img", "no/such/folder.img"));
    assert!(said.contains("no/such/folder.img") && said.contains("its folder doesn't exist"), "{said}");
    // The metadata store lies after the superblock: all but its copies of the superblock is overwritten.
    let file = File::options().write(true).open(&image).unwrap();
    file.write_all_at(&vec![0xa5; 8 * MIB], MIB as u64).unwrap();
    let said = refused(&good);
    assert!(said.contains("p.img") && said.to_lowercase().contains("corrupt"), "{said}");
    file.write_all_at(&vec![0xa5; MIB], 0).unwrap();
    let said = refused(&good);
    assert!(said.contains("p.img") && said.contains("Plimsoll"), "{said}");
}

/// Clients that stop in the middle of anything, and some that never read their answers.
#[test]
fn vanishing_and_deaf_clients_hurt_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(r#"{ file = "p.img", size = "256MiB" }"#, "64MiB"));
    let mut good = client(&server);
    for n in 0..8 {
        good.write(n * MIB as u64, &[n as u8 + 1; MIB]).unwrap().unwrap();
    }
    let header = |command: u16, length: u32| {
        let mut h = 0x2560_9513u32.to_be_bytes().to_vec();
        h.extend([0, 0]);
        h.extend(command.to_be_bytes());
        h.extend(7u64.to_be_bytes());
        h.extend(0u64.to_be_bytes());
        h.extend(length.to_be_bytes());
        h
    };
    for cut in 1..28 {
        client(&server).stream().write_all(&header(1, 4096)[..cut]).unwrap(); // gone in the header
    }
    let mut half = client(&server);
    half.stream().write_all(&[header(1, 1 << 20), vec![9; 1000]].concat()).unwrap(); // half open: the rest never comes
    let mut deaf: Vec<Client> = (0..4).map(|_| client(&server)).collect();
    for d in &mut deaf {
        d.stream().set_nonblocking(true).unwrap();
        // As many reads as it takes until the node takes no more: it must not gather answers without bound.
        let mut asked = 0;
        while d.stream().write_all(&header(0, MIB as u32)).is_ok() {
            asked += 1;
            assert!(asked < 1 << 20, "the node goes on reading from who doesn't");
        }
    }
    for junk in &mut [client(&server), client(&server)] {
        junk.stream().set_nonblocking(true).unwrap();
        // Requests that are refused at once, from somebody who doesn't read the answers.
        let many = header(99, 0).repeat(1000);
        while junk.stream().write_all(&many).is_ok() {}
        deaf.push(client(&server));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let resident = status.lines().find(|l| l.starts_with("VmRSS")).unwrap().split_whitespace().nth(1).unwrap();
    let resident_mib = resident.parse::<u64>().unwrap() >> 10;
    assert!(resident_mib < 400, "the node holds {resident_mib} MiB for clients that don't read");
    let mut handshaking = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    handshaking.read_exact(&mut [0; 18]).unwrap(); // and says nothing more
    for n in 0..8 {
        assert_eq!(good.read(n * MIB as u64, MIB as u32).unwrap().unwrap(), vec![n as u8 + 1; MIB]);
    }
    good.flush().unwrap().unwrap();
    drop((deaf, half, handshaking));
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.control("GET", "/v1/status").expect(200)["volumes"][0]["connections"] != 1 {
        assert!(Instant::now() < deadline, "connections stay: {}", server.control("GET", "/v1/status").body);
    }
    assert!(server.stop());
}

/// Requests of a vanished client that haven't begun are withdrawn. A FLUSH withdrawn in this way isn't a failure of the device.
#[test]
fn a_client_that_vanishes_before_its_flush_takes_nobodys_durability() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "256MiB", model = "constellation-es3-1tb" }"#;
    let server = Server::start(dir.path(), &config(device, "64MiB").replace("[[tenant]]", "depth = 1\n[[tenant]]"));
    let mut gone = client(&server);
    for n in 0..60 {
        gone.send(Command::Read, CommandFlags::EMPTY, n << 20, 4096, &[]).unwrap();
    }
    gone.send(Command::Flush, CommandFlags::EMPTY, 0, 0, &[]).unwrap();
    gone.receive().unwrap().1.unwrap();
    drop(gone);
    let mut c = client(&server);
    c.write(0, &[1; 4096]).unwrap().unwrap();
    c.flush().unwrap().unwrap();
    assert_eq!(server.control("GET", "/healthz").code, 200);
    assert!(server.stop());
}

/// Connections that wait for a permit when their volume is deleted, or the node ends.
#[test]
fn who_waits_for_a_permit_may_lose_its_volume() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "256MiB", model = "constellation-es3-1tb" }"#;
    let config = config(device, "16MiB").replace("class = \"best-effort\"", "class = \"best-effort\"\njobs_max = 1");
    let server = Server::start(dir.path(), &with_other(config).replace("pool = \"o\"", "pool = \"p\""));
    let busy = |export: &str| {
        let mut c = Client::connect(&server.socket(), export).unwrap();
        for n in 0..20 {
            c.send(Command::Read, CommandFlags::EMPTY, (n % 8) << 20, 4096, &[]).unwrap();
        }
        c
    };
    // One that has a promise is told at once that there is no place for it, as soon as the others have come.
    let mut promised = Client::connect(&server.socket(), "vol?deadline=1h&busy=error").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let mut waiting: Vec<Client> = Vec::new();
    while !promised.read(0, 4096).unwrap().is_err_and(|e| e.contains("busy")) {
        assert!(Instant::now() < end, "a promised read always waited for a permit");
        waiting.truncate(20);
        waiting.insert(0, busy("other"));
    }
    server.cli(&["volume", "delete", "other", "--yes", "--disconnect", "--declared"]);
    drop(waiting);
    let mut c = client(&server);
    c.write(0, &[1; 4096]).unwrap().unwrap();
    assert_eq!(c.read(0, 4096).unwrap().unwrap(), [1; 4096]);
    let _busy: Vec<Client> = (0..3).map(|_| busy("vol")).collect();
    assert!(server.stop());
}

/// A deletion that a power loss cut is gone on with at the next start, and nobody gets the space before it is zeroes.
#[test]
fn a_deletion_that_was_cut_goes_on_at_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let both = config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB");
    let server = Server::start(dir.path(), &both);
    let data = vec![0xAA; 8 * MIB];
    client(&server).write(0, &data).unwrap().unwrap();
    assert!(server.stop());
    let image = dir.path().join("p.img");
    {
        let expect = plimsoll_store::Expect { pool_uuid: None, device_uuid: None, role: "main".into() };
        let device = plimsoll_store::DeviceFile::open(&image, &expect).unwrap();
        device.open_meta(u64::MAX).unwrap().begin_delete("vol").unwrap();
    }
    await_unlocked(&image);
    assert!(std::fs::read(&image).unwrap().windows(4096).any(|w| w == &data[..4096]), "the data is still there");
    // The same name is free for a new volume at once, elsewhere.
    let server = Server::start(dir.path(), &both);
    let zeroes = vec![0; 16 * MIB];
    assert!(client(&server).read(0, 16 << 20).unwrap().unwrap() == zeroes);
    let started = Instant::now();
    while server.control("GET", "/v1/status").expect(200)["pools"][0]["deleting"] != serde_json::json!([]) {
        assert!(started.elapsed() < Duration::from_secs(60), "still deleting");
    }
    let free = server.control("GET", "/v1/status").expect(200)["pools"][0]["free_bytes"].as_u64().unwrap();
    server.cli(&["volume", "create", "rest", "--pool", "p", "--tenant", "t", "--size", &free.to_string()]);
    let mut rest = Client::connect(&server.socket(), "rest").unwrap();
    for at in (0..free).step_by(8 * MIB) {
        let len = (free - at).min(8 << 20) as u32;
        assert!(rest.read(at, len).unwrap().unwrap().iter().all(|b| *b == 0), "what was deleted is read at {at}");
    }
    assert!(server.stop());
    assert!(!std::fs::read(&image).unwrap().windows(4096).any(|w| w == &data[..4096]), "the data is gone");
}

#[test]
fn nothing_is_overwritten_that_was_not_given() {
    let dir = tempfile::tempdir().unwrap();
    let precious = dir.path().join("precious");
    std::fs::write(&precious, b"data").unwrap();
    let config_ = config("{ null = true, size = \"64MiB\" }", "16MiB");
    for key in ["nbd.sock", "control.sock"] {
        let e = Server::try_start(dir.path(), &config_.replace(key, "precious")).err().expect("it's no socket");
        assert!(e.contains("precious"), "{e}");
        assert_eq!(std::fs::read(&precious).unwrap(), b"data", "{key}");
    }
    if !may_mount() {
        return;
    }
    // A device that begins with nothing, and has data later.
    let file = dir.path().join("disk");
    File::create(&file).unwrap().set_len(64 << 20).unwrap();
    File::options().write(true).open(&file).unwrap().write_all_at(b"data", 40 << 20).unwrap();
    let disk = Loop::over(&file, &[]);
    let device = |format| format!("{{ file = \"{}\"{format} }}", disk.path.display());
    let e = Server::try_start(dir.path(), &config(&device(""), "16MiB")).err().expect("it wasn't given");
    assert!(e.contains("format = true"), "{e}");
    let mut found = [0; 4];
    File::open(&file).unwrap().read_exact_at(&mut found, 40 << 20).unwrap();
    assert_eq!(&found, b"data");
    assert!(Server::start(dir.path(), &config(&device(", format = true"), "16MiB")).stop());
}

#[test]
fn no_command_writes_over_a_device_or_its_own_input() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("p.img");
    let trace = dir.path().join("a.csv");
    let lines = include_str!("traces/small.csv");
    std::fs::write(&trace, lines).unwrap();
    let (image_path, trace_path) = (image.to_str().unwrap(), trace.to_str().unwrap());
    let server = Server::start(dir.path(), &config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB"));
    client(&server).write(0, &[1; 4096]).unwrap().unwrap();
    let over = [
        &["profile", "hdd-160g-7200", "--out", image_path][..],
        &["replay", "--workload", "randread", "--device", "hdd-160g-7200", "--count", "10", "--out", image_path],
        &["profile", image_path, "--writes"],
        &["profile", image_path, "--writes", "--force"],
    ];
    let refused = |arguments: &[&str], why: &str| {
        let before = std::fs::read(&image).unwrap();
        let output = common::run(env!("CARGO_BIN_EXE_plimsoll"), arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(why), "{arguments:?}: {said}");
        assert!(std::fs::read(&image).unwrap() == before, "{arguments:?}");
    };
    refused(over[0], "a process has it locked");
    refused(over[1], "a process has it locked");
    refused(over[2], "is it mounted, or a node's");
    refused(over[3], "is it mounted, or a node's");
    assert!(server.stop());
    refused(over[0], "is a pool's device");
    refused(over[1], "is a pool's device");
    refused(over[2], "it isn't blank; add --force");
    refused(&["trace", "cut", trace_path, trace_path], "is read here");
    assert!(std::fs::read_to_string(&trace).unwrap() == lines);
}

#[test]
fn an_older_tape_replaces_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let taped =
        config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB").replace("[[tenant]]", "tape = \"t\"\n[[tenant]]");
    assert!(Server::start(dir.path(), &taped).stop());
    let precious = dir.path().join("t.1");
    std::fs::write(&precious, b"precious data").unwrap();
    let said = Server::try_start(dir.path(), &taped).err().expect("it starts");
    assert!(said.contains("t.1, for the older tape: holds something else than a tape"), "{said}");
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious data");
}

#[test]
fn logs_whose_flush_failed_need_a_restart() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let failing = Failing::new(dir.path());
    let device = format!("{{ file = \"{}\", format = true }}", failing.device.path.display());
    let logged = config(&device, "16MiB").replace(
        "[[tenant]]",
        "[pool.logs]\ngroup = \"1MiB\"\nlog = \"64KiB\"\nextents = 4096\nlogged_write = \"4KiB\"\n[[tenant]]",
    );
    let server = Server::start(dir.path(), &logged);
    let mut c = client(&server);
    c.write(0, &[1; 4096]).unwrap().unwrap();
    c.flush().unwrap().unwrap();
    failing.fail("flush", true);
    c.write(4096, &[2; 4096]).unwrap().unwrap();
    c.flush().unwrap().unwrap_err();
    failing.fail("flush", false);
    let refused = server.control("POST", "/v1/pools/p/recover");
    assert!(refused.error(409).contains("restart the node"));
    assert!(Client::connect(&server.socket(), "vol").is_err(), "still not exported");
    server.kill();
    let server = Server::start(dir.path(), &logged);
    assert_eq!(client(&server).read(0, 4096).unwrap().unwrap(), [1; 4096]);
    client(&server).flush().unwrap().unwrap();
    assert!(server.stop());
}

/// The device refuses a change of the metadata: that is a problem with what to do, later changes are refused with it, other pools' changes go
/// on, and a restart ends it.
#[test]
fn metadata_that_failed_are_a_problem_until_a_restart() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let failing = Failing::new(dir.path());
    let device = format!("{{ file = \"{}\", format = true }}", failing.device.path.display());
    let config = with_other(config(&device, "16MiB"));
    let server = Server::start(dir.path(), &config);
    let create = |name, pool| ["volume", "create", name, "--pool", pool, "--size", "1MiB", "--tenant", "t"];
    failing.fail("flush", true);
    let said = server.cli_fails(&create("first", "p"));
    assert!(said.contains("the metadata store's storage failed"), "{said}");
    failing.fail("flush", false);
    let named = "pool `p`: an earlier change of its metadata failed (the metadata store's storage failed: ";
    let status = server.control("GET", "/v1/status").expect(200);
    let problems = status["node"]["problems"].as_array().unwrap();
    let is_named = |p: &serde_json::Value| p.as_str().unwrap().starts_with(named);
    assert_eq!(problems.iter().filter(|p| is_named(p)).count(), 1, "{problems:?}");
    for refused in [&create("second", "p")[..], &["volume", "grow", "vol", "--size", "32MiB"]] {
        let said = server.cli_fails(refused);
        assert!(
            said.contains("an earlier change of its metadata failed (") && said.contains("restart the node"),
            "{said}"
        );
    }
    let said = server.cli_fails(&["tenant", "set", "t", "--weight", "200"]);
    assert!(said.contains("tenants are kept in every pool: pool `p`: an earlier change"), "{said}");
    server.cli(&create("second", "o"));
    server.kill();
    let server = Server::start(dir.path(), &config);
    let status = server.control("GET", "/v1/status").expect(200);
    assert!(!status["node"]["problems"].to_string().contains("metadata"), "{status}");
    server.cli(&create("third", "p"));
    server.cli(&["tenant", "set", "t", "--weight", "200"]);
    assert!(server.stop());
}
