//! A cache's device that isn't there at a start, and one that failed: which pools are served without it, what the node says of that, and
//! who has flushes served again.

mod common;
use common::client::Client;
use common::mount::{Failing, may_mount};
use common::{Server, config};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const EXTENT: usize = 8192;
const EXTENTS: usize = 96;

fn with_cache(mode: &str, fast: &str, more: &str) -> String {
    let section = format!("[pool.cache]\nfile = \"{fast}\"\n{more}mode = \"{mode}\"\nweu = \"256KiB\"\n[[tenant]]");
    config(r#"{ file = "slow.img", size = "64MiB" }"#, "16MiB").replace("[[tenant]]", &section)
}

/// For a file that is made if it isn't there.
const SIZED: &str = "device_size = \"64MiB\"\n";

fn extent(n: usize, version: u8) -> Vec<u8> {
    (0..EXTENT).map(|i| if i % 2 == 0 { version } else { (n * 31 + i / 512) as u8 }).collect()
}

fn write_all(c: &mut Client, version: u8) {
    for n in 0..EXTENTS {
        c.write((n * EXTENT) as u64, &extent(n, version)).unwrap().unwrap();
    }
}

fn check_all(c: &mut Client, version: u8) {
    for n in 0..EXTENTS {
        // Not in order, so that it isn't taken for a scan.
        let n = n * 37 % EXTENTS;
        assert_eq!(c.read((n * EXTENT) as u64, EXTENT as u32).unwrap().unwrap(), extent(n, version), "extent {n}");
    }
}

/// Returns true if the pool has recorded that volume `name` needs its cache.
fn is_needed(s: &Server, name: &str) -> bool {
    let v = s.cache_status();
    let volumes = v["volumes"].as_array().unwrap();
    let volume = volumes.iter().find(|v| v["name"] == name).unwrap_or_else(|| panic!("{name} in {v}"));
    volume["behind"].as_bool().unwrap()
}

/// The node says of a pool that is served without its cache: one problem of its own, and no outage.
fn assert_without_cache(server: &Server, file: &str, why: &str) {
    let v = server.wait_for_cache("the start is over", |v| v["state"] != "recovering");
    let problem = v["problem"].as_str().unwrap_or_default();
    assert!(v["state"] == "broken" && problem.contains(why) && problem.contains("nothing is lost"), "{v}");
    assert!(v["failed_us"].is_u64() && v["weus_max"] == 0, "{v}");
    let health = server.control("GET", "/healthz");
    assert_eq!(health.code, 200, "{}", health.body);
    let said = server.cli(&["status"]);
    for text in [&health.body, &said] {
        let parts = ["cache device", file, "failed at 20", why, "restart the node", "add-a-cache.md"];
        parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    }
    assert_eq!(server.control("GET", "/v1/status").expect(200)["pools"][0]["state"], "ready");
    let metrics = server.control("GET", "/metrics").body;
    assert!(metrics.contains("plimsoll_cache_up{pool=\"p\"} 0\n"), "{metrics}");
}

fn assert_with_cache(server: &Server) {
    let v = server.wait_for_cache("the start is over", |v| v["state"] != "recovering");
    assert!(v["state"] == "ready" && v["problem"].is_null() && v["failed_us"].is_null(), "{v}");
    let health = server.control("GET", "/healthz");
    assert!(health.code == 200 && !health.body.contains("cache device"), "{}", health.body);
    let metrics = server.control("GET", "/metrics").body;
    assert!(metrics.contains("plimsoll_cache_up{pool=\"p\"} 1\n"), "{metrics}");
}

/// Volumes that have nothing in the cache are served without its device, however often the node is started. Contents of the device
/// don't count when it is back.
#[test]
fn a_start_without_the_cache_device_serves_volumes_that_do_not_need_it() {
    let dir = tempfile::tempdir().unwrap();
    let (fast, away) = (dir.path().join("fast.img"), dir.path().join("away.img"));
    let server = Server::start(dir.path(), &with_cache("through", "fast.img", SIZED));
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    check_all(&mut c, 1);
    c.flush().unwrap().unwrap();
    drop(c);
    assert!(server.stop());

    let missing = with_cache("through", "fast.img", "");
    std::fs::rename(&fast, &away).unwrap();
    for version in [2, 3] {
        let server = Server::start(dir.path(), &missing);
        assert_without_cache(&server, "fast.img", "the cache's file doesn't exist");
        let mut c = Client::once_served(&server.socket(), "vol");
        check_all(&mut c, version - 1);
        write_all(&mut c, version);
        c.flush().unwrap().unwrap();
        // Nothing can be written that only the cache has: neither of these volumes needs it at the next start.
        server.cli(&["volume", "cache", "vol", "back"]);
        let name = format!("new{version}");
        let create = ["volume", "create", &name, "--pool", "p", "--size", "1MiB", "--tenant", "t", "--cache", "back"];
        server.cli(&create);
        assert!(!is_needed(&server, "vol") && !is_needed(&server, &name));
        write_all(&mut c, version);
        let mut new = Client::connect(&server.socket(), &name).unwrap();
        new.write(0, &extent(0, version)).unwrap().unwrap();
        new.flush().unwrap().unwrap();
        drop((c, new));
        server.kill();
    }

    std::fs::rename(&away, &fast).unwrap();
    for _ in 0..2 {
        let server = Server::start(dir.path(), &missing);
        assert_with_cache(&server);
        assert!(is_needed(&server, "vol") && is_needed(&server, "new2"), "they are written back from now on");
        let mut c = Client::once_served(&server.socket(), "vol");
        check_all(&mut c, 3);
        check_all(&mut c, 3);
        let mut new = Client::connect(&server.socket(), "new3").unwrap();
        assert_eq!(new.read(0, EXTENT as u32).unwrap().unwrap(), extent(0, 3));
        drop((c, new));
        server.kill();
    }
}

/// The first start with a cache finds no device: the pool is served, and has its cache once the device is there.
#[test]
fn a_first_start_without_the_cache_device_serves_the_pool() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &with_cache("back", "missing/fast.img", SIZED));
    assert_without_cache(&server, "missing/fast.img", "its folder doesn't exist");
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    c.flush().unwrap().unwrap();
    assert!(!is_needed(&server, "vol"));
    drop(c);
    assert!(server.stop());
    std::fs::create_dir(dir.path().join("missing")).unwrap();
    let server = Server::start(dir.path(), &with_cache("back", "missing/fast.img", SIZED));
    assert_with_cache(&server);
    assert!(is_needed(&server, "vol"));
    check_all(&mut Client::once_served(&server.socket(), "vol"), 1);
}

/// A volume that may have dirty data in the cache keeps the pool from being served without it, whatever its mode is by now. With the device,
/// all of it is there.
#[test]
fn a_start_without_the_cache_device_is_refused_where_a_volume_needs_it() {
    let dir = tempfile::tempdir().unwrap();
    let (fast, away) = (dir.path().join("fast.img"), dir.path().join("away.img"));
    let server = Server::start(dir.path(), &with_cache("back", "fast.img", SIZED));
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    c.flush().unwrap().unwrap();
    drop(c);
    server.kill();
    std::fs::rename(&fast, &away).unwrap();
    for mode in ["back", "through", "off"] {
        let said = Server::try_start(dir.path(), &with_cache(mode, "fast.img", "")).err().expect("refused");
        let parts = ["only the cache may have what was written to vol", "isn't served", "give-up"];
        parts.iter().for_each(|part| assert!(said.contains(part), "{mode}: {said}"));
    }
    std::fs::rename(&away, &fast).unwrap();
    let server = Server::start(dir.path(), &with_cache("through", "fast.img", ""));
    check_all(&mut Client::once_served(&server.socket(), "vol"), 1);
    server.wait_for_cache("all is written back", |v| v["volumes"][0]["behind"] == false);
    assert!(server.stop());
    std::fs::rename(&fast, &away).unwrap();
    let server = Server::start(dir.path(), &with_cache("through", "fast.img", ""));
    assert_without_cache(&server, "fast.img", "the cache's file doesn't exist");
    check_all(&mut Client::once_served(&server.socket(), "vol"), 1);
}

/// A pool was made anew under the name of a former one, whose cache is attached: refused before anything is changed, whether the new pool
/// is just made, was served without a cache, or has one of its own. Without that each read returned the former pool's data.
#[test]
fn the_cache_of_a_former_pool_of_the_same_name_is_refused() {
    for mode in ["through", "back"] {
        let dir = tempfile::tempdir().unwrap();
        let [slow, fast, former] = ["slow.img", "fast.img", "former.img"].map(|name| dir.path().join(name));
        let with = with_cache(mode, "fast.img", SIZED);
        let without = config(r#"{ file = "slow.img", size = "64MiB" }"#, "16MiB");
        let fill = |config: &str, version: u8| {
            let server = Server::start(dir.path(), config);
            let mut c = Client::once_served(&server.socket(), "vol");
            write_all(&mut c, version);
            check_all(&mut c, version);
            c.flush().unwrap().unwrap();
            drop(c);
            assert!(server.stop());
        };
        fill(&with, 1);
        std::fs::rename(&fast, &former).unwrap();
        std::fs::remove_file(&slow).unwrap();
        let refused = |when: &str| {
            let _ = std::fs::remove_file(&fast);
            std::fs::copy(&former, &fast).unwrap();
            let before = std::fs::read(&slow).ok();
            let said = Server::try_start(dir.path(), &with).err().unwrap_or_else(|| panic!("{mode} {when}: served"));
            std::fs::write(dir.path().join("check.toml"), &with).unwrap();
            let checked = common::run(
                env!("CARGO_BIN_EXE_plimsoll"),
                &["check", dir.path().join("check.toml").to_str().unwrap()],
            );
            let says = match before {
                None => ["fast.img: holds a pool's cache", "the pool's own device isn't here"],
                Some(_) => [
                    "fast.img: holds the cache of another pool, or of a former one of this name",
                    "clear its first 2 MiB",
                ],
            };
            for said in [said, String::from_utf8_lossy(&checked.stdout).into_owned()] {
                let parts = says;
                parts.iter().for_each(|part| assert!(said.contains(part), "{mode} {when}: {said}"));
            }
            assert!(!checked.status.success());
            assert!(
                std::fs::read(&fast).unwrap() == std::fs::read(&former).unwrap(),
                "{mode} {when}: the cache was changed"
            );
            assert!(std::fs::read(&slow).ok() == before, "{mode} {when}: the pool's device was changed");
            std::fs::remove_file(&fast).unwrap();
        };
        refused("before the new pool is made");
        fill(&without, 2);
        refused("after the new pool was served without a cache");
        fill(&with, 3);
        std::fs::rename(&fast, dir.path().join("own.img")).unwrap();
        if mode == "through" {
            refused("beside a cache of its own");
            // It gets a new one. The former one comes back, is used, and what it had doesn't count. The same of the new one then.
            fill(&with, 4);
            let new = dir.path().join("new.img");
            std::fs::rename(&fast, &new).unwrap();
            std::fs::copy(dir.path().join("own.img"), &fast).unwrap();
            let server = Server::start(dir.path(), &with);
            let mut c = Client::once_served(&server.socket(), "vol");
            check_all(&mut c, 4);
            write_all(&mut c, 5);
            drop(c);
            assert!(server.stop());
            std::fs::rename(&new, &fast).unwrap();
        } else {
            // Only its own has what was written: no other one of this pool takes its place, made whole or not.
            let own = dir.path().join("own.img");
            std::fs::copy(&own, &fast).unwrap();
            let mut other = std::fs::read(&fast).unwrap();
            for copy in [0, 4096] {
                other[copy + 16] ^= 1;
                let sum = xxhash_rust::xxh3::xxh3_64(&other[copy..copy + 4088]).to_le_bytes();
                other[copy + 4088..copy + 4096].copy_from_slice(&sum);
            }
            std::fs::write(&fast, &other).unwrap();
            let said = Server::try_start(dir.path(), &with).err().expect("another device is served");
            assert!(said.contains("is another device than that of this pool's cache"), "{said}");
            // As a start leaves it that was cut short before it was formatted.
            let home = u64::from_le_bytes(other[64 + 2 * 24 + 8..][..8].try_into().unwrap()) as usize;
            other[home..home + 4096].fill(0);
            for copy in [0, 4096] {
                other[copy + 872] = 0;
                let sum = xxhash_rust::xxh3::xxh3_64(&other[copy..copy + 4088]).to_le_bytes();
                other[copy + 4088..copy + 4096].copy_from_slice(&sum);
            }
            std::fs::write(&fast, &other).unwrap();
            let said = Server::try_start(dir.path(), &with).err().expect("a device that was never formatted is served");
            assert!(said.contains("only it may have what was written to vol"), "{said}");
            std::fs::rename(&own, &fast).unwrap();
        }
        let server = Server::start(dir.path(), &with);
        check_all(&mut Client::once_served(&server.socket(), "vol"), if mode == "through" { 5 } else { 3 });
        assert!(server.stop());
    }
}

/// NVRAM that isn't there is as a device that isn't.
#[test]
fn a_start_without_the_nvram_serves_volumes_that_do_not_need_it() {
    let dir = tempfile::tempdir().unwrap();
    let nvram = format!("{SIZED}nvram = {{ file = \"nv.img\", size = \"8MiB\" }}\n");
    let config = with_cache("through", "fast.img", &nvram);
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    check_all(&mut c, 1);
    drop(c);
    assert!(server.stop());
    std::fs::rename(dir.path().join("nv.img"), dir.path().join("away.img")).unwrap();
    let server = Server::start(dir.path(), &config);
    assert_without_cache(&server, "fast.img", "NVRAM isn't here");
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 2);
    drop(c);
    assert!(server.stop());
    std::fs::rename(dir.path().join("away.img"), dir.path().join("nv.img")).unwrap();
    let server = Server::start(dir.path(), &config);
    assert_with_cache(&server);
    check_all(&mut Client::once_served(&server.socket(), "vol"), 2);
}

fn on_failing_device(dir: &Path, mode: &str) -> Option<(Failing, String)> {
    if !may_mount() {
        println!("ran without a device that can fail: needs the right to set one up");
        return None;
    }
    let failing = Failing::new(dir);
    let path = failing.device.path.display().to_string();
    let config = with_cache(mode, &path, "");
    Some((failing, config))
}

/// A device that is there and can't be read, at the start or while the pool serves.
#[test]
fn a_device_that_cannot_be_read_is_a_problem_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let Some((failing, config)) = on_failing_device(dir.path(), "through") else { return };
    let device = failing.device.path.display().to_string();
    let server = Server::start(dir.path(), &config);
    let mut c = Client::once_served(&server.socket(), "vol");
    write_all(&mut c, 1);
    check_all(&mut c, 1);
    drop(c);
    assert!(server.stop());
    failing.fail("read", true);
    failing.fail("write", true);
    let server = Server::start(dir.path(), &config);
    assert_without_cache(&server, &device, "the fast device failed");
    let mut c = Client::once_served(&server.socket(), "vol");
    check_all(&mut c, 1);
    write_all(&mut c, 2);
    c.flush().unwrap().unwrap();
    drop(c);
    server.kill();
    failing.fail("read", false);
    failing.fail("write", false);
    let server = Server::start(dir.path(), &config);
    assert_with_cache(&server);
    let mut c = Client::once_served(&server.socket(), "vol");
    check_all(&mut c, 2);
    // It fails while the pool serves: said in the same way.
    failing.fail("read", true);
    failing.fail("write", true);
    let end = Instant::now() + Duration::from_secs(60);
    while server.cache_status()["state"] != "broken" {
        assert!(Instant::now() < end, "it isn't noticed");
        write_all(&mut c, 3);
    }
    assert_without_cache(&server, &device, "the fast device failed");
    write_all(&mut c, 4);
    check_all(&mut c, 4);
    drop(c);
    server.kill();
    failing.fail("read", false);
    failing.fail("write", false);
}

fn recover(server: &Server) {
    let pool: Value = serde_json::from_str(&server.cli(&["pool", "recover", "p", "--json"])).unwrap();
    assert!(pool["name"] == "p" && pool["flush_failed"] == false, "{pool}");
}

/// A flush failed with the fast device. Flushes are served again by the operator's command and by nothing else, for volumes with dirty
/// extents only once these are given up, and what they promise is kept.
#[test]
fn flushes_are_served_again_by_the_operator_alone() {
    for gives_up_first in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let Some((failing, config)) = on_failing_device(dir.path(), "back") else { return };
        let server = Server::start(dir.path(), &config);
        let create =
            ["volume", "create", "other", "--pool", "p", "--size", "1MiB", "--tenant", "t", "--cache", "through"];
        server.cli(&create);
        let mut c = Client::once_served(&server.socket(), "vol");
        let mut other = Client::connect(&server.socket(), "other").unwrap();
        write_all(&mut c, 1);
        c.flush().unwrap().unwrap();
        for n in 0..8 {
            c.write((n * EXTENT) as u64, &extent(n, 2)).unwrap().unwrap();
        }
        failing.fail("flush", true);
        c.flush().unwrap().unwrap_err();
        server.wait_for_cache("it is noticed", |v| v["state"] == "broken");
        // The device works again: that alone has no flush served.
        failing.fail("flush", false);
        let refused = |c: &mut Client| {
            let error = c.flush().unwrap().unwrap_err();
            assert!(error.contains("an earlier flush failed"), "{error}");
        };
        refused(&mut c);
        refused(&mut other);
        let health = server.control("GET", "/healthz");
        let parts = ["had a failed flush", "cache device", "only the cache has"];
        assert!(health.code == 503 && parts.iter().all(|part| health.body.contains(part)), "{}", health.body);
        let give_up = || server.cli(&["cache", "give-up", "vol", "--lose-data"]);
        if gives_up_first {
            give_up();
            refused(&mut c);
        }
        recover(&server);
        other.write(0, &extent(0, 7)).unwrap().unwrap();
        other.flush().unwrap().unwrap();
        if !gives_up_first {
            let error = c.flush().unwrap().unwrap_err();
            assert!(!error.contains("an earlier flush failed"), "its dirty extents are nowhere else: {error}");
            give_up();
        }
        write_all(&mut c, 3);
        c.flush().unwrap().unwrap();
        check_all(&mut c, 3);
        drop((c, other));
        match gives_up_first {
            true => server.kill(),
            // What fails to be flushed at the end has nothing that isn't on the pool's own device.
            false => {
                failing.fail("flush", true);
                assert!(server.stop());
                failing.fail("flush", false);
            }
        }
        // Data that were given up don't count, and flushed ones are there.
        let server = Server::start(dir.path(), &config);
        let mut c = Client::once_served(&server.socket(), "vol");
        check_all(&mut c, 3);
        check_all(&mut c, 3);
        let mut other = Client::once_served(&server.socket(), "other");
        assert_eq!(other.read(0, EXTENT as u32).unwrap().unwrap(), extent(0, 7));
        drop((c, other));
        assert!(server.stop());
    }
}
