//! A node with a flash cache: what clients read, what the cache says of itself, restarts, crashes, damage, foreign devices.

mod common;
use common::client::Client;
use common::mount::{Failing, await_unlocked, may_mount};
use common::{Server, config};
use plimsoll_base::Rng;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const EXTENT: usize = 8192;
const EXTENTS: usize = 1024;

fn with_cache(mode: &str, fast: &str) -> String {
    let section = format!(
        "[pool.cache]\nfile = \"{fast}\"\ndevice_size = \"64MiB\"\nmode = \"{mode}\"\nweu = \"256KiB\"\n[[tenant]]"
    );
    config(r#"{ file = "slow.img", size = "64MiB" }"#, "16MiB").replace("[[tenant]]", &section)
}

/// Half of it compresses; every fourth extent is one of eight.
fn extent(n: usize, version: u64) -> Vec<u8> {
    let seed = if n.is_multiple_of(4) { n as u64 % 32 } else { (n as u64) << 20 | version };
    let mut rng = Rng::new(seed, "extent");
    (0..EXTENT).map(|i| if i < EXTENT / 2 { 7 } else { rng.below(256) as u8 }).collect()
}

fn write_all(c: &mut Client, version: u64) {
    for n in 0..EXTENTS {
        c.write((n * EXTENT) as u64, &extent(n, version)).unwrap().unwrap();
    }
}

fn check_all(c: &mut Client, version: u64) {
    for n in 0..EXTENTS {
        // Not in order, so that it isn't taken for a scan.
        let n = n * 389 % EXTENTS;
        assert_eq!(c.read((n * EXTENT) as u64, EXTENT as u32).unwrap().unwrap(), extent(n, version), "extent {n}");
    }
}

fn count(v: &Value, what: &str) -> u64 {
    v[what].as_u64().unwrap_or_else(|| panic!("{what} in {v}"))
}

#[test]
fn reads_hit_also_after_a_crash_and_damage_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    // Small enough that most of its WEUs are confirmed soon.
    let config = with_cache("through", "fast.img").replace("device_size = \"64MiB\"", "device_size = \"32MiB\"");
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    server.wait_for_cache("all is cached", |v| count(v, "inserted") >= EXTENTS as u64);
    check_all(&mut c, 1);
    let v = server.cache_status();
    assert_eq!((count(&v, "reads"), count(&v, "read_hits")), (EXTENTS as u64, EXTENTS as u64), "{v}");
    assert!(v["dedup_ratio"].as_f64().unwrap() > 1.2 && v["compression_ratio"].as_f64().unwrap() > 1.2, "{v}");
    c.flush().unwrap().unwrap();
    drop(c);
    server.kill();

    // What was in a WEU that was written is there again.
    let server = Server::start(dir.path(), &config);
    let v = server.cache_status();
    assert!(count(&v, "start_extents") > EXTENTS as u64 / 3, "{v}");
    let mut c = Client::once_served(&server.socket(), "vol");
    check_all(&mut c, 1);
    assert!(count(&server.cache_status(), "read_hits") > EXTENTS as u64 / 3);
    write_all(&mut c, 2);
    check_all(&mut c, 2);
    drop(c);
    assert!(server.stop());

    // Every byte of the cache is flipped at a few places per WEU: nothing of it is ever returned.
    let fast = std::fs::File::options().read(true).write(true).open(dir.path().join("fast.img")).unwrap();
    let len = fast.metadata().unwrap().len();
    for at in (len / 4..len).step_by(3001) {
        let mut b = [0];
        fast.read_exact_at(&mut b, at).unwrap();
        fast.write_all_at(&[!b[0]], at).unwrap();
    }
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    check_all(&mut c, 2);
    check_all(&mut c, 2);
    drop(c);
    assert!(server.stop());
}

#[test]
fn written_back_data_survive_a_crash_and_go_home_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let config = with_cache("back", "fast.img");
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    c.flush().unwrap().unwrap();
    let v = server.cache_status();
    assert!(count(&v, "dirty_extents") > 0, "{v}");
    drop(c);
    server.kill();

    let server = Server::start(dir.path(), &config);
    assert!(count(&server.cache_status(), "dirty_extents") > 0);
    let mut c = Client::once_served(&server.socket(), "vol");
    check_all(&mut c, 1);
    let shown = server.cli(&["cache", "flush", "p"]);
    assert!(shown.contains("only here    0 extents"), "{shown}");
    // Another mode, and another size, while it's in use.
    write_all(&mut c, 2);
    server.cli(&["volume", "cache", "vol", "through"]);
    let v = server.cache_status();
    assert_eq!(
        (count(&v, "dirty_extents"), &v["volumes"][0]["behind"]),
        (0, &false.into()),
        "it waits until all is home"
    );
    server.cli(&["cache", "resize", "p", "--size", "8MiB"]);
    let v = server.wait_for_cache("it gets smaller", |v| count(v, "weus_used") <= 32);
    assert_eq!(count(&v, "weus_max"), 32);
    check_all(&mut c, 2);
    server.cli(&["volume", "cache", "vol", "off"]);
    write_all(&mut c, 3);
    check_all(&mut c, 3);
    server.cli(&["volume", "cache", "vol", "back"]);
    write_all(&mut c, 4);
    check_all(&mut c, 4);
    c.flush().unwrap().unwrap();
    drop(c);
    assert!(server.stop());

    // The cache may not go while only it has something.
    let without = common::config(r#"{ file = "slow.img", size = "64MiB" }"#, "16MiB");
    let said = Server::try_start(dir.path(), &without).err().expect("refused");
    assert!(said.contains("vol") && said.contains("cache mode `back`"), "{said}");
    std::fs::rename(dir.path().join("fast.img"), dir.path().join("away.img")).unwrap();
    let said = Server::try_start(dir.path(), &config).err().expect("refused");
    assert!(said.contains("isn't here") && said.contains("vol"), "{said}");
    std::fs::rename(dir.path().join("away.img"), dir.path().join("fast.img")).unwrap();
    let server = Server::start(dir.path(), &config);
    check_all(&mut Client::once_served(&server.socket(), "vol"), 4);
}

#[test]
fn a_deleted_volume_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &with_cache("back", "fast.img"));
    server.cli(&["volume", "create", "two", "--pool", "p", "--size", "1MiB", "--tenant", "t", "--cache", "back"]);
    let mut c = Client::connect(&server.socket(), "two").unwrap();
    c.write(0, &[9; 65536]).unwrap().unwrap();
    c.flush().unwrap().unwrap();
    drop(c);
    server.cli(&["volume", "delete", "two", "--yes", "--disconnect"]);
    server.cli(&["volume", "create", "two", "--pool", "p", "--size", "1MiB", "--tenant", "t"]);
    let mut c = Client::connect(&server.socket(), "two").unwrap();
    assert!(c.read(0, 65536).unwrap().unwrap().iter().all(|&b| b == 0));
}

#[test]
fn a_device_of_another_pool_or_shape_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let config = with_cache("through", "fast.img");
    assert!(Server::start(dir.path(), &config).stop());
    let other = config.replace("name = \"p\"", "name = \"q\"").replace("pool = \"p\"", "pool = \"q\"");
    let said = Server::try_start(dir.path(), &other.replace("slow.img", "other.img")).err().expect("refused");
    assert!(said.contains("fast.img") && said.contains("belongs to pool"), "{said}");
    // The main device where the cache's should be.
    let said = Server::try_start(dir.path(), &config.replace("fast.img", "third.img").replace("slow.img", "fast.img"));
    let said = said.err().expect("refused");
    assert!(said.contains("\"fast\"") && said.contains("swapped"), "{said}");
    let bad = config.replace("weu = \"256KiB\"", "weu = \"300KiB\"");
    let said = Server::try_start(dir.path(), &bad).err().expect("refused");
    assert!(said.contains("a power of two"), "{said}");
}

/// Until the node has noticed.
fn broken(server: &Server) -> Value {
    server.wait_for_cache("it's noticed that the device fails", |v| v["state"] == "broken")
}

fn on_failing_device(dir: &Path, mode: &str) -> Option<(Failing, String)> {
    if !may_mount() {
        println!("ran without a device that can fail: needs the right to set one up");
        return None;
    }
    let failing = Failing::new(dir);
    let path = failing.device.path.display().to_string();
    let config = with_cache(mode, &path);
    Some((failing, config))
}

#[test]
fn a_write_through_volume_goes_on_without_its_cache() {
    let dir = tempfile::tempdir().unwrap();
    let Some((failing, config)) = on_failing_device(dir.path(), "through") else { return };
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    failing.fail("read", true);
    failing.fail("write", true);
    check_all(&mut c, 1);
    write_all(&mut c, 2);
    check_all(&mut c, 2);
    let v = broken(&server);
    assert!(v["problem"].as_str().unwrap().contains("nothing is lost"), "{v}");
    c.flush().unwrap().unwrap();
    drop(c);
    server.kill();
    // It's back: what it held before is not believed.
    failing.fail("read", false);
    failing.fail("write", false);
    let server = Server::start(dir.path(), &config);
    check_all(&mut Client::once_served(&server.socket(), "vol"), 2);
}

/// Served by the same pool without its cache.
fn without() -> String {
    config(r#"{ file = "slow.img", size = "64MiB" }"#, "16MiB")
}

/// A volume that isn't write-back any more needs its cache until all is written back, whatever the configuration says, and that is
/// noted; after that the cache may go, and what it has isn't believed when it comes back.
#[test]
fn a_cache_may_go_when_nothing_is_only_there_and_is_out_of_date_when_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (back, through) = (with_cache("back", "fast.img"), with_cache("through", "fast.img"));
    let server = Server::start(dir.path(), &back);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    c.flush().unwrap().unwrap();
    drop(c);
    server.kill();
    // The volume has no mode of its own: it is the section that said so.
    let said = Server::try_start(dir.path(), &without()).err().expect("refused");
    assert!(said.contains("vol") && said.contains("cache mode `back`"), "{said}");
    // Configured otherwise, and gone before anything could be written back: missing it is still noticed.
    std::fs::rename(dir.path().join("fast.img"), dir.path().join("away.img")).unwrap();
    let said = Server::try_start(dir.path(), &through).err().expect("refused");
    assert!(said.contains("isn't here") && said.contains("vol"), "{said}");
    std::fs::rename(dir.path().join("away.img"), dir.path().join("fast.img")).unwrap();
    let server = Server::start(dir.path(), &through);
    server.wait_for_cache("the pool knows that all is home", |v| v["volumes"][0]["behind"] == false);
    let mut c = Client::once_served(&server.socket(), "vol");
    check_all(&mut c, 1);
    check_all(&mut c, 1);
    drop(c);
    assert!(server.stop());
    let server = Server::start(dir.path(), &without());
    let mut c = Client::once_served(&server.socket(), "vol");
    check_all(&mut c, 1);
    write_all(&mut c, 2);
    drop(c);
    assert!(server.stop());
    let server = Server::start(dir.path(), &through);
    check_all(&mut Client::once_served(&server.socket(), "vol"), 2);
}

/// The cache's size is kept over a restart. A size that is too small to work with is refused.
#[test]
fn a_cache_that_was_resized_stays_so_and_is_never_too_small() {
    let dir = tempfile::tempdir().unwrap();
    let config = with_cache("back", "fast.img");
    let server = Server::start(dir.path(), &config);
    for size in ["0", "768KiB"] {
        let said = server.cli_fails(&["cache", "resize", "p", "--size", size]);
        assert!(said.contains("is not between 1.0 MiB and"), "{said}");
    }
    server.cli(&["cache", "resize", "p", "--size", "1MiB"]);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    drop(c);
    assert!(server.stop());
    let server = Server::start(dir.path(), &config);
    assert_eq!(count(&server.cache_status(), "weus_max"), 4);
    check_all(&mut Client::once_served(&server.socket(), "vol"), 1);
    assert!(server.stop());
    // What is configured otherwise since is meant.
    let server = Server::start(dir.path(), &config.replace("weu = \"256KiB\"", "weu = \"256KiB\"\nsize = \"4MiB\""));
    assert_eq!(count(&server.cache_status(), "weus_max"), 16);
    assert!(server.stop());
    let said =
        Server::try_start(dir.path(), &config.replace("weu = \"256KiB\"", "weu = \"256KiB\"\nsize = \"512KiB\""));
    assert!(said.err().expect("refused").contains("too small"));
}

/// The fast device vanishes, and only it has something: those volumes stop, what is at risk is named, and when it is back nothing is
/// missing.
#[test]
fn a_write_back_volume_stops_without_its_cache_and_says_what_is_at_risk() {
    let dir = tempfile::tempdir().unwrap();
    let Some((failing, config)) = on_failing_device(dir.path(), "back") else { return };
    let server = Server::start(dir.path(), &config);
    server.cli(&["volume", "create", "other", "--pool", "p", "--size", "1MiB", "--tenant", "t", "--cache", "through"]);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    c.flush().unwrap().unwrap();
    let dirty = count(&server.cache_status(), "dirty_extents");
    assert!(dirty > 0);
    failing.fail("read", true);
    failing.fail("write", true);
    // What is written before the cache has noticed is accepted: on a busy machine that may be everything of one round.
    let (mut refused, end) = (0, Instant::now() + Duration::from_secs(60));
    while refused == 0 {
        assert!(Instant::now() < end, "no write is refused");
        for n in 0..EXTENTS {
            refused += u32::from(c.write((n * EXTENT) as u64, &extent(n, 2)).unwrap().is_err());
        }
    }
    let v = broken(&server);
    let problem = v["problem"].as_str().unwrap();
    assert!(refused > 0 && problem.contains("only the cache has") && problem.contains("extents of volume 1."), "{v}");
    // The other one has nothing there, and goes on.
    let mut other = Client::connect(&server.socket(), "other").unwrap();
    other.write(0, &extent(1, 7)).unwrap().unwrap();
    assert_eq!(other.read(0, EXTENT as u32).unwrap().unwrap(), extent(1, 7));
    drop((c, other));
    server.kill();
    failing.fail("read", false);
    failing.fail("write", false);
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    for n in 0..EXTENTS {
        let read = c.read((n * EXTENT) as u64, EXTENT as u32).unwrap().unwrap();
        assert!(read == extent(n, 1) || read == extent(n, 2), "extent {n} is what was flushed, or newer");
    }
}

/// The fast device failed for good: what only it had is given up, listed, and never comes back; the volume goes on.
#[test]
fn what_a_failed_device_had_can_be_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let Some((failing, config)) = on_failing_device(dir.path(), "back") else { return };
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    c.flush().unwrap().unwrap();
    server.cli(&["cache", "flush", "p"]);
    // The last ones are only there.
    for n in 1000..EXTENTS {
        c.write((n * EXTENT) as u64, &extent(n, 2)).unwrap().unwrap();
    }
    c.flush().unwrap().unwrap();
    let said = server.cli_fails(&["cache", "give-up", "vol", "--lose-data"]);
    assert!(said.contains("hasn't failed"), "{said}");
    failing.fail("read", true);
    failing.fail("write", true);
    for n in 0..EXTENTS {
        let _ = c.write((n * EXTENT) as u64, &extent(n, 3)).unwrap(); // refused from some time on
    }
    broken(&server);
    let said = server.cli_fails(&["cache", "give-up", "vol"]);
    assert!(said.contains("--lose-data"), "{said}");
    // Its extent is known before: as many bytes as are lost then.
    let v = server.cache_status();
    let risk = &v["at_risk"][0];
    let ranges = risk["ranges"].as_array().unwrap();
    let sum: u64 = ranges.iter().map(|r| r[1].as_u64().unwrap()).sum();
    assert!(risk["volume"] == "vol" && risk["runs"] == ranges.len() && risk["bytes"] == sum, "{v}");
    assert!(sum >= count(&v, "dirty_extents") * EXTENT as u64 && sum > 0, "{v}");
    assert!(server.cli(&["cache", "status", "p"]).contains(&format!("at risk      vol: {sum} bytes in ")));
    let shown = server.cli(&["cache", "give-up", "vol", "--lose-data"]);
    assert!(shown.contains("nothing is lost: volumes go on") && shown.contains("lost         vol: "), "{shown}");
    assert_lacks_changes(&server);
    let v = server.cache_status();
    assert_eq!((count(&v, "dirty_extents"), &v["volumes"][0]["behind"]), (0, &false.into()), "{v}");
    assert_eq!((count(&v, "lost") * EXTENT as u64, &v["at_risk"]), (sum, &serde_json::json!([])), "{v}");
    for n in 0..EXTENTS {
        let read = c.read((n * EXTENT) as u64, EXTENT as u32).unwrap().unwrap();
        assert!((1..=3).any(|version| read == extent(n, version)), "extent {n}: what the slow device has");
    }
    write_all(&mut c, 4);
    check_all(&mut c, 4);
    // A flush may have failed with the device, and none is believed before the next start; a process that ends loses nothing.
    drop(c);
    server.kill();
    // The device comes back, with what was given up: that isn't believed, now or later.
    failing.fail("read", false);
    failing.fail("write", false);
    for _ in 0..2 {
        let server = Server::start(dir.path(), &config);
        let mut c = Client::once_served(&server.socket(), "vol");
        check_all(&mut c, 4);
        check_all(&mut c, 4);
        drop(c);
        assert!(server.stop());
    }
}

/// Other replicas may have what was given up: clients must not read this one until it is resynced.
fn assert_lacks_changes(server: &Server) {
    let shown = server.cli(&["volume", "show", "vol"]);
    assert!(shown.contains("may lack changes of other replicas (writer lost)"), "{shown}");
}

/// The device is gone when the node is to start.
#[test]
fn what_a_missing_device_had_can_be_given_up_while_nothing_is_served() {
    give_up_before_a_start(|server| server.kill());
}

/// The same after an orderly end, by which the volume counts as complete.
#[test]
fn what_is_given_up_after_an_orderly_end_is_lacking() {
    give_up_before_a_start(|server| assert!(server.stop()));
}

fn give_up_before_a_start(end: impl Fn(Server)) {
    let dir = tempfile::tempdir().unwrap();
    let config = with_cache("back", "fast.img");
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    c.flush().unwrap().unwrap();
    drop(c);
    end(server);
    std::fs::rename(dir.path().join("fast.img"), dir.path().join("away.img")).unwrap();
    let said = Server::try_start(dir.path(), &config).err().expect("refused");
    assert!(said.contains("give-up"), "{said}");
    let file = dir.path().join("given-up.toml");
    std::fs::write(&file, &config).unwrap();
    let give_up = |more: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let out = command
            .args(["cache", "give-up", "vol", "--config"])
            .arg(&file)
            .args(more)
            .current_dir(dir.path())
            .output();
        let out = out.unwrap();
        (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    };
    let (done, said) = give_up(&[]);
    assert!(!done && said.contains("--lose-data"), "{said}");
    let (done, said) = give_up(&["--lose-data"]);
    assert!(done && said.contains("isn't known"), "{said}");
    let (done, said) = give_up(&["--lose-data"]);
    assert!(!done && said.contains("has nothing of volume"), "only once: {said}");
    // Without its cache it may be served now; what is written then is not undone when the device turns up again.
    let server = Server::start(dir.path(), &without());
    let mut c = Client::once_served(&server.socket(), "vol");
    assert_lacks_changes(&server);
    write_all(&mut c, 2);
    c.flush().unwrap().unwrap();
    drop(c);
    assert!(server.stop());
    std::fs::rename(dir.path().join("away.img"), dir.path().join("fast.img")).unwrap();
    let server = Server::start(dir.path(), &config);
    check_all(&mut Client::once_served(&server.socket(), "vol"), 2);
}

/// The same with NVRAM: a flush waits for nothing else, a crash loses nothing, and the cache doesn't work without it.
#[test]
fn nvram_keeps_what_was_flushed_and_is_missed_if_it_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let with = with_cache("back", "fast.img")
        .replace("weu = \"256KiB\"", "weu = \"256KiB\"\nnvram = { file = \"nv.img\", size = \"8MiB\" }");
    let check = |c: &mut Client| {
        for n in 0..64 {
            assert_eq!(c.read((n * EXTENT) as u64, EXTENT as u32).unwrap().unwrap(), extent(n, 1), "extent {n}");
        }
    };
    let server = Server::start(dir.path(), &with);
    let mut c = Client::once_served(&server.socket(), "vol");
    for n in 0..64 {
        c.write((n * EXTENT) as u64, &extent(n, 1)).unwrap().unwrap();
        c.flush().unwrap().unwrap();
    }
    drop(c);
    server.kill();
    let server = Server::start(dir.path(), &with);
    let mut c = Client::once_served(&server.socket(), "vol");
    check(&mut c);
    drop(c);
    server.kill();

    let said = Server::try_start(dir.path(), &with_cache("back", "fast.img")).err().expect("refused");
    assert!(said.contains("made with NVRAM"), "{said}");
    std::fs::rename(dir.path().join("nv.img"), dir.path().join("away.img")).unwrap();
    let said = Server::try_start(dir.path(), &with).err().expect("refused");
    assert!(said.contains("NVRAM isn't here"), "{said}");
    std::fs::rename(dir.path().join("away.img"), dir.path().join("nv.img")).unwrap();
    let server = Server::start(dir.path(), &with);
    let mut c = Client::once_served(&server.socket(), "vol");
    check(&mut c);
    drop(c);
    assert!(server.stop());
}

/// The pool's NVRAM was replaced together with its cache, and the earlier one is configured again. It lacks what was flushed last, so it is refused by
/// name; also where the pool's metadata name no NVRAM, as earlier programs left them.
#[test]
fn nvram_of_an_earlier_cache_of_the_pool_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let with = |mode: &str, nvram: &str| {
        let nvram = format!("weu = \"256KiB\"\nnvram = {{ file = \"{nvram}\", size = \"8MiB\" }}");
        with_cache(mode, "fast.img").replace("weu = \"256KiB\"", &nvram)
    };
    let server = Server::start(dir.path(), &with("through", "first.img"));
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    drop(c);
    assert!(server.stop());
    std::fs::remove_file(dir.path().join("fast.img")).unwrap();
    let own = with("back", "second.img");
    let server = Server::start(dir.path(), &own);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 2);
    c.flush().unwrap().unwrap();
    drop(c);
    server.kill();

    let refused = |nvram: &str| Server::try_start(dir.path(), &with("back", nvram)).err().expect("refused");
    let said = refused("first.img");
    assert!(said.contains("is another NVRAM than that of this pool's cache"), "{said}");
    let forget = || {
        let main = dir.path().join("slow.img");
        await_unlocked(&main);
        let expect = plimsoll_store::Expect { pool_uuid: None, device_uuid: None, role: "main".into() };
        let device = plimsoll_store::DeviceFile::open(&main, &expect).unwrap();
        let mut store = device.open_meta(u64::MAX).unwrap();
        let named = store.cache();
        assert!(named.nvram.is_some());
        store.set_cache_devices(named.device.unwrap(), None).unwrap();
        drop((store, device));
        await_unlocked(&main);
    };
    forget();
    let said = refused("first.img");
    assert!(said.contains("has records of another cache only"), "{said}");
    std::fs::copy(dir.path().join("first.img"), dir.path().join("blank.img")).unwrap();
    let blank = std::fs::File::options().write(true).open(dir.path().join("blank.img")).unwrap();
    let len = blank.metadata().unwrap().len();
    blank.write_all_at(&vec![0; (len - (2 << 20)) as usize], 2 << 20).unwrap();
    let said = refused("blank.img");
    assert!(said.contains("has no records, and only the cache's NVRAM may have"), "{said}");

    let server = Server::start(dir.path(), &own);
    check_all(&mut Client::once_served(&server.socket(), "vol"), 2);
    server.kill();
    let said = refused("first.img");
    assert!(said.contains("is another NVRAM than that of this pool's cache"), "named again: {said}");
    let server = Server::start(dir.path(), &own);
    check_all(&mut Client::once_served(&server.socket(), "vol"), 2);
    assert!(server.stop());
}

/// NVRAM that is too small is refused before anything is made, and what an attempt left behind doesn't keep the corrected one out.
#[test]
fn nvram_that_is_too_small_is_refused_before_a_file_is_made() {
    let dir = tempfile::tempdir().unwrap();
    let with = |size: &str| {
        let nvram = format!("weu = \"256KiB\"\nnvram = {{ file = \"nv.img\", size = \"{size}\" }}");
        with_cache("back", "fast.img").replace("weu = \"256KiB\"", &nvram)
    };
    let said = Server::try_start(dir.path(), &with("1MiB")).err().expect("refused");
    assert!(said.contains("nvram size 1048576 is too small") && said.contains("8388608"), "{said}");
    assert!(!dir.path().join("nv.img").exists() && !dir.path().join("fast.img").exists());
    // As an attempt would leave it that ended while it made the file.
    std::fs::write(dir.path().join("nv.img"), b"").unwrap();
    let server = Server::start(dir.path(), &with("8MiB"));
    let mut c = Client::once_served(&server.socket(), "vol");
    c.write(0, &extent(0, 1)).unwrap().unwrap();
    c.flush().unwrap().unwrap();
    drop(c);
    assert!(server.stop());
}

/// A pool with data gets a cache, and the first start with it is cut short after it was noted that there is one.
#[test]
fn a_first_start_that_was_cut_short_does_not_stop_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let without = config(r#"{ file = "slow.img", size = "64MiB" }"#, "16MiB");
    let server = Server::start(dir.path(), &without);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    drop(c);
    assert!(server.stop());

    let with = with_cache("back", "fast.img");
    let nvram = |file: &str| with.replace("weu =", &format!("nvram = {{ file = \"{file}\", size = \"8MiB\" }}\nweu ="));
    std::fs::write(dir.path().join("foreign"), vec![7; 1 << 20]).unwrap();
    // Either the node ends, or it says that its only pool can't be opened.
    if let Ok(server) = Server::try_start(dir.path(), &nvram("foreign")) {
        assert!(Client::connect(&server.socket(), "vol").is_err());
        server.kill();
    }
    assert!(dir.path().join("fast.img").exists(), "the cache's device was made before the mistake was met");

    let server = Server::start(dir.path(), &nvram("nvram.img"));
    let mut c = Client::once_served(&server.socket(), "vol");
    check_all(&mut c, 1);
    write_all(&mut c, 2);
    c.flush().unwrap().unwrap();
    drop(c);
    server.kill();
    let server = Server::start(dir.path(), &nvram("nvram.img"));
    check_all(&mut Client::once_served(&server.socket(), "vol"), 2);
    assert!(server.stop());
}
