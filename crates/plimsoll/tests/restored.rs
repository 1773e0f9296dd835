//! A pool with a cache whose metadata are restored from an older backup: the cache's device knows volumes that the metadata don't, and
//! the other way round. Nobody reads what was another tenant's, or older than what was written; nothing that only the cache had is lost.

mod common;
use common::client::Client;
use common::{Server, config};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: usize = 1 << 20;
const VOLUME_BYTES: usize = 8 * MIB;
const BLOCK: usize = 8192;

fn without_cache() -> String {
    let tenants = "[[tenant]]\nname = \"a\"\nclass = \"best-effort\"\n[[tenant]]\nname = \"b\"\nclass = \"best-effort\"\n[[volume]]";
    config(r#"{ file = "p.img", size = "128MiB" }"#, "8MiB").replace("[[volume]]", tenants)
}

fn with_cache(mode: &str) -> String {
    let section =
        format!("[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"{mode}\"\nweu = \"256KiB\"\n");
    without_cache().replacen("[[tenant]]", &format!("{section}[[tenant]]"), 1)
}

fn create(server: &Server, name: &str, tenant: &str) {
    server.cli(&["volume", "create", name, "--pool", "p", "--size", "8MiB", "--tenant", tenant]);
}

fn delete(server: &Server, name: &str) {
    server.cli(&["volume", "delete", name, "--yes", "--disconnect"]);
}

fn backup(server: &Server) {
    let file = server.dir.join("old.backup");
    server.cli(&["pool", "backup", "p", "--out", file.to_str().unwrap()]);
}

/// Restores the backup, which must be an older one.
fn restore(dir: &Path) {
    let (device, from) = (dir.join("p.img"), dir.join("old.backup"));
    let arguments = ["pool", "restore", device.to_str().unwrap(), "--from", from.to_str().unwrap(), "--older", "--yes"];
    let said = common::ok(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
    assert!(said.contains("the metadata were changed"), "{said}");
}

fn client(server: &Server, volume: &str) -> Client {
    Client::once_served(&server.socket(), volume)
}

/// Superblocks and the beginning of the metadata.
fn lose_metadata(dir: &Path) {
    let device = std::fs::File::options().write(true).open(dir.join("p.img")).unwrap();
    device.write_all_at(&vec![0; 2 * MIB], 0).unwrap();
}

/// Restores the backup after the metadata were lost.
fn restore_lost(dir: &Path, options: &[&str]) -> std::process::Output {
    let (device, from) = (dir.join("p.img"), dir.join("old.backup"));
    let arguments = ["pool", "restore", device.to_str().unwrap(), "--from", from.to_str().unwrap(), "--yes", "--blank"];
    common::run(env!("CARGO_BIN_EXE_plimsoll"), &[&arguments, options].concat())
}

fn refused(dir: &Path, text: &str) -> String {
    Server::try_start(dir, text).err().expect("the start is refused")
}

/// A block that no other tenant or version has.
fn block(n: usize, version: u8) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..BLOCK).map(|i| if i % 8 == 0 { (n + i / 8) as u8 | 1 } else { version }).collect();
    bytes[2..4].copy_from_slice(&(n as u16).to_le_bytes());
    bytes
}

fn write_all(c: &mut Client, version: u8) {
    for n in 0..VOLUME_BYTES / BLOCK {
        c.write((n * BLOCK) as u64, &block(n, version)).unwrap().unwrap();
    }
    c.flush().unwrap().unwrap();
}

/// Reads all, not in order, so that it isn't taken for a scan.
fn check_all(c: &mut Client, version: u8) {
    let count = VOLUME_BYTES / BLOCK;
    for n in (0..count).map(|n| n * 389 % count) {
        let found = c.read((n * BLOCK) as u64, BLOCK as u32).unwrap().unwrap();
        assert_eq!(found[1], version, "block {n} has another version");
        assert_eq!(found, block(n, version), "block {n}");
    }
}

/// Bytes that aren't zero.
fn bytes_of_others(c: &mut Client) -> usize {
    let read = |at: usize| c.read((at * MIB) as u64, MIB as u32).unwrap().unwrap();
    (0..VOLUME_BYTES / MIB).map(read).map(|bytes| bytes.iter().filter(|b| **b != 0).count()).sum()
}

/// A volume of the backup was deleted since, and its number used again for another tenant's, which the cache has much of. The restored
/// volume shows nothing of that; nor does one that gets the number next, whatever starts and ends come between.
fn nobody_reads_what_was_anothers(mode: &str) {
    let dir = tempfile::tempdir().unwrap();
    let text = with_cache(mode);
    let server = Server::start(dir.path(), &text);
    server.wait_for_cache("it serves", |v| v["state"] == "ready");
    create(&server, "x", "b");
    backup(&server);
    delete(&server, "x");
    create(&server, "a1", "a");
    let mut a = client(&server, "a1");
    write_all(&mut a, 7);
    check_all(&mut a, 7);
    // What is written to others confirms the first's units.
    let mut other = client(&server, "vol");
    write_all(&mut other, 9);
    server.wait_for_cache("most is cached", |v| v["extents"].as_u64() > Some(VOLUME_BYTES as u64 / BLOCK as u64));
    check_all(&mut a, 7);
    drop((a, other));
    assert!(server.stop());
    restore(dir.path());

    let server = Server::start(dir.path(), &text);
    assert_eq!(bytes_of_others(&mut client(&server, "x")), 0, "{mode}: of the restored volume");
    delete(&server, "x");
    create(&server, "b1", "b");
    assert_eq!(bytes_of_others(&mut client(&server, "b1")), 0, "{mode}: before a restart");
    assert!(server.stop());
    for end in ["a restart", "a kill"] {
        let server = Server::start(dir.path(), &text);
        assert_eq!(bytes_of_others(&mut client(&server, "b1")), 0, "{mode}: after {end}");
        check_all(&mut client(&server, "vol"), 9);
        server.kill();
    }
    // Restored once more, and its number used once more.
    restore(dir.path());
    let server = Server::start(dir.path(), &text);
    delete(&server, "x");
    create(&server, "b2", "b");
    assert!(server.stop());
    let server = Server::start(dir.path(), &text);
    assert_eq!(bytes_of_others(&mut client(&server, "b2")), 0, "{mode}: after a second restore");
    check_all(&mut client(&server, "vol"), 9);
}

#[test]
fn nobody_reads_what_was_anothers_in_a_cache_that_writes_through() {
    nobody_reads_what_was_anothers("through");
}

#[test]
fn nobody_reads_what_was_anothers_in_a_cache_that_writes_back() {
    nobody_reads_what_was_anothers("back");
}

/// The pool was served without its cache since the backup. The restored metadata know nothing of that: what the cache has is old all the
/// same.
#[test]
fn a_cache_that_was_away_since_the_backup_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let text = with_cache("through");
    let server = Server::start(dir.path(), &text);
    let mut c = client(&server, "vol");
    write_all(&mut c, 1);
    check_all(&mut c, 1);
    backup(&server);
    drop(c);
    assert!(server.stop());
    let server = Server::start(dir.path(), &without_cache());
    write_all(&mut client(&server, "vol"), 2);
    assert!(server.stop());
    restore(dir.path());
    let server = Server::start(dir.path(), &text);
    check_all(&mut client(&server, "vol"), 2);
    assert!(server.stop());
}

/// The pool got its cache after the backup, and its metadata are lost. What the cache has is newer than the pool's own device: the pool isn't
/// served without it, whatever the operator says first, and shows the newest data once the cache is there.
#[test]
fn a_pool_that_does_not_know_of_its_cache_is_not_served_beside_it() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &without_cache());
    write_all(&mut client(&server, "vol"), 1);
    backup(&server);
    assert!(server.stop());
    let text = with_cache("back");
    let server = Server::start(dir.path(), &text);
    write_all(&mut client(&server, "vol"), 2);
    assert!(server.cache_status()["dirty_extents"].as_u64() > Some(0), "{}", server.cache_status());
    server.kill();
    lose_metadata(dir.path());

    let asked = restore_lost(dir.path(), &["--older"]);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(!asked.status.success() && said.contains("--never-cached") && said.contains("--had-cache"), "{said}");
    assert!(restore_lost(dir.path(), &["--older", "--never-cached"]).status.success());
    let said = refused(dir.path(), &text);
    assert!(said.contains("is the device of this pool's cache") && said.contains("--had-cache"), "{said}");

    assert!(restore_lost(dir.path(), &["--had-cache"]).status.success(), "it is the same backup");
    let said = refused(dir.path(), &without_cache());
    assert!(said.contains("starting without [pool.cache] would lose"), "{said}");
    for _ in 0..2 {
        let server = Server::start(dir.path(), &text);
        check_all(&mut client(&server, "vol"), 2);
        server.kill();
    }
}

/// The operator said that there was no cache, and the pool was served without it: then its data are old, and don't come back.
#[test]
fn a_cache_that_its_pool_was_served_without_unknowingly_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &without_cache());
    backup(&server);
    assert!(server.stop());
    let text = with_cache("through");
    let server = Server::start(dir.path(), &text);
    write_all(&mut client(&server, "vol"), 1);
    check_all(&mut client(&server, "vol"), 1);
    assert!(server.stop());
    lose_metadata(dir.path());
    assert!(restore_lost(dir.path(), &["--older", "--never-cached"]).status.success());
    let server = Server::start(dir.path(), &without_cache());
    write_all(&mut client(&server, "vol"), 2);
    assert!(server.stop());
    let said = refused(dir.path(), &text);
    assert!(said.contains("is the device of this pool's cache"), "{said}");
    std::fs::remove_file(dir.path().join("fast.img")).unwrap();
    let server = Server::start(dir.path(), &text);
    check_all(&mut client(&server, "vol"), 2);
    assert!(server.stop());
}

/// The volume grew after the backup, and the restored one is smaller than what only the cache has of it. Everything that tells of write-back
/// says so, and nothing is lost: grown again, the volume has all.
#[test]
fn dirty_data_beyond_the_end_of_a_restored_volume_are_named_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let text = with_cache("back");
    let server = Server::start(dir.path(), &text);
    server.cli(&["volume", "create", "x", "--pool", "p", "--size", "4MiB", "--tenant", "b"]);
    backup(&server);
    server.cli(&["volume", "grow", "x", "--size", "8MiB"]);
    write_all(&mut client(&server, "x"), 2);
    server.kill();
    restore(dir.path());

    let server = Server::start(dir.path(), &text);
    let said = server.cli_fails(&["cache", "flush", "p"]);
    let named = "volume `x` has dirty data beyond its end, as it was restored smaller than it was";
    assert!(said.contains(named) && said.contains("volume grow"), "{said}");
    for told in [&["status"][..], &["cache", "status", "p"]] {
        let said = server.cli(told);
        assert!(said.contains(named) && !said.contains("check the device"), "{told:?}: {said}");
    }
    server.cli(&["volume", "grow", "x", "--size", "8MiB"]);
    check_all(&mut client(&server, "x"), 2);
    server.cli(&["cache", "flush", "p"]);
    assert!(!server.cli(&["status"]).contains("beyond its end"));
    check_all(&mut client(&server, "x"), 2);
    assert!(server.stop());
}

/// Data that only the cache has stay, and those of a volume that was deleted since the backup are its own from its restore on.
#[test]
fn what_only_the_cache_has_is_there_after_a_restore() {
    let dir = tempfile::tempdir().unwrap();
    let text = with_cache("back");
    let server = Server::start(dir.path(), &text);
    create(&server, "x", "b");
    write_all(&mut client(&server, "vol"), 1);
    write_all(&mut client(&server, "x"), 2);
    backup(&server);
    delete(&server, "x");
    assert!(server.cache_status()["dirty_extents"].as_u64() > Some(0), "{}", server.cache_status());
    server.kill();
    restore(dir.path());

    let server = Server::start(dir.path(), &text);
    check_all(&mut client(&server, "vol"), 1);
    assert_eq!(bytes_of_others(&mut client(&server, "x")), 0, "it was deleted");
    write_all(&mut client(&server, "x"), 3);
    server.kill();
    for _ in 0..2 {
        let server = Server::start(dir.path(), &text);
        check_all(&mut client(&server, "x"), 3);
        check_all(&mut client(&server, "vol"), 1);
        server.kill();
    }
}

/// A pool with logs lost its metadata, and a record of their length. What its logs have of the backup's volumes is kept. Free space is
/// zeroed by the serving pool, as logs lie in its midst, and nobody reads there what a lost volume had.
#[test]
fn an_older_backup_of_a_pool_with_logs_is_restored_and_free_space_is_zeroed_after_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let logs = "[pool.logs]\ngroup = \"16MiB\"\nlog = \"1MiB\"\nlogged_write = \"64KiB\"\nidle = \"1h\"\n";
    let text = without_cache().replacen("[[tenant]]", &format!("{logs}[[tenant]]"), 1);
    let server = Server::start(dir.path(), &text);
    let mut kept = client(&server, "vol");
    kept.write(0, &block(0, 1)).unwrap().unwrap();
    backup(&server);
    create(&server, "lost", "a");
    let mut lost = client(&server, "lost");
    for n in 0..VOLUME_BYTES / BLOCK {
        // Some of it in logs, some of it where it belongs.
        lost.write((n * BLOCK) as u64, &block(n, 7)).unwrap().unwrap();
    }
    lost.flush().unwrap().unwrap();
    kept.write(BLOCK as u64, &block(1, 2)).unwrap().unwrap();
    kept.flush().unwrap().unwrap();
    drop((kept, lost));
    server.kill();
    lose_metadata(dir.path());

    let said = restore_lost(dir.path(), &["--never-cached"]);
    assert!(!said.status.success());
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(why.contains("--older restores it nevertheless"), "{why}");
    let said = restore_lost(dir.path(), &["--never-cached", "--older"]);
    let shown = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success() && shown.contains("of free space are zeroed after the pool's start"), "{shown}");
    // Killed in the middle, it goes on.
    Server::start(dir.path(), &text).kill();
    let server = Server::start(dir.path(), &text);
    let mut kept = client(&server, "vol");
    assert_eq!(kept.read(0, BLOCK as u32).unwrap().unwrap(), block(0, 1));
    assert_eq!(kept.read(BLOCK as u64, BLOCK as u32).unwrap().unwrap(), block(1, 2));
    let pool = || server.control("GET", "/v1/status").json()["pools"][0].clone();
    common::shaped::until("the free space isn't zeroed", || pool()["deleting"].as_array().unwrap().is_empty());
    let volumes = pool()["free_bytes"].as_u64().unwrap() / VOLUME_BYTES as u64;
    assert!(volumes > 2, "{volumes}");
    for n in 0..volumes {
        create(&server, &format!("new{n}"), "b");
        let mut new = client(&server, &format!("new{n}"));
        for at in (0..VOLUME_BYTES).step_by(MIB) {
            assert!(new.read(at as u64, MIB as u32).unwrap().unwrap().iter().all(|b| *b == 0), "volume {n} at {at}");
        }
    }
    assert!(server.cli(&["volume", "list"]).contains("new0") && !server.cli(&["volume", "list"]).contains("lost"));
    drop(kept);
    assert!(server.stop());
}

/// The space that logs leave depends on their settings: metadata that address space beyond it aren't corrupt.
#[test]
fn other_logs_than_the_devices_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let logs = "[pool.logs]\ngroup = \"16MiB\"\nlog = \"1MiB\"\nextents = 512\n";
    let text = without_cache().replacen("[[tenant]]", &format!("{logs}[[tenant]]"), 1);
    let server = Server::start(dir.path(), &text);
    let free = server.control("GET", "/v1/status").json()["pools"][0]["free_bytes"].as_u64().unwrap();
    server.cli(&["volume", "create", "all", "--pool", "p", "--size", &free.to_string(), "--tenant", "a"]);
    assert!(server.stop());
    for (was, is) in [("\"16MiB\"", "\"8MiB\""), ("log = \"1MiB\"", "log = \"2MiB\""), ("= 512", "= 256")] {
        let other = text.replace(was, is);
        assert_ne!(other, text);
        let said = refused(dir.path(), &other);
        assert!(said.contains("made with group = ") && said.contains("[pool.logs]"), "{is}: {said}");
        assert!(!said.contains("corrupt") && !said.contains("restore"), "{is}: {said}");
        std::fs::write(dir.path().join("check.toml"), &other).unwrap();
        let file = dir.path().join("check.toml");
        let checked = common::run(env!("CARGO_BIN_EXE_plimsoll"), &["check", file.to_str().unwrap()]);
        let said = format!("{checked:?}");
        assert!(!checked.status.success() && said.contains("made with group = "), "{is}: {said}");
    }
    assert!(Server::start(dir.path(), &text).stop());
}
