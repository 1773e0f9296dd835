//! Pools of older versions, with flushed data that only the logs, the cache or its NVRAM hold: they open, nothing is lost.
//!
//! Also when power is lost while they are converted: what reached their devices is recorded, in order, and put together as it may lie there
//! after a loss of power.
//!
//! `upgrade/make_pools.py` made the archives, with the commit that their folder is named after, and says what they hold.

mod common;
use common::Server;
use common::client::Client;
use common::mount::{Recorded, Recorder, may_mount};
use plimsoll_base::Rng;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SECTOR: usize = 512;

fn content(sector: usize, version: u64) -> Vec<u8> {
    match version {
        0 => vec![0; SECTOR],
        _ => [(sector as u64).to_le_bytes(), version.to_le_bytes()].concat().repeat(SECTOR / 16),
    }
}

/// A pool as its old node left it, and the version of each sector of its volumes `a` and `b`.
struct Old {
    dir: tempfile::TempDir,
    config: String,
    expected: [Vec<u64>; 2],
}

fn unpack(archive: &Path) -> Old {
    let dir = tempfile::tempdir().unwrap();
    common::ok("tar", &["-C", dir.path().to_str().unwrap(), "-xzf", archive.to_str().unwrap()]);
    let config = std::fs::read_to_string(dir.path().join("plimsoll.toml")).unwrap();
    let expected = std::fs::read_to_string(dir.path().join("expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    let of = |volume: &str| expected[volume].as_array().unwrap().iter().map(|v| v.as_u64().unwrap()).collect();
    Old { dir, config, expected: [of("a"), of("b")] }
}

fn client(server: &Server, volume: &str) -> Client {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match Client::connect(&server.socket(), volume) {
            Ok(client) => return client,
            Err(e) => assert!(Instant::now() < end, "{volume} is not served: {e}"),
        }
        std::thread::sleep(Duration::from_millis(20)); // until the pool has recovered
    }
}

fn check(server: &Server, expected: &[Vec<u64>; 2], when: &str) {
    for (volume, versions) in ["a", "b"].iter().zip(expected) {
        let bytes = client(server, volume).read(0, (versions.len() * SECTOR) as u32).unwrap().unwrap();
        for (sector, version) in versions.iter().enumerate() {
            let got = &bytes[sector * SECTOR..][..SECTOR];
            assert!(
                got == content(sector, *version),
                "{when}: volume {volume} sector {sector} isn't version {version}"
            );
        }
    }
}

/// Writes a tenth of all sectors anew, and flushes.
fn write_some(server: &Server, expected: &mut [Vec<u64>; 2], version: u64) {
    for (volume, versions) in ["a", "b"].iter().zip(expected) {
        let mut c = client(server, volume);
        for first in (version as usize % 10 * 8..versions.len()).step_by(80) {
            let bytes: Vec<u8> = (first..first + 8).flat_map(|s| content(s, version)).collect();
            c.write((first * SECTOR) as u64, &bytes).unwrap().unwrap();
            versions[first..first + 8].fill(version);
        }
        c.flush().unwrap().unwrap();
    }
}

fn upgrade(archive: &Path) {
    let Old { dir, config, mut expected } = unpack(archive);
    let server = Server::start(dir.path(), &config);
    check(&server, &expected, "opened");
    server.kill();
    let server = Server::start(dir.path(), &config);
    check(&server, &expected, "killed before anything was written");
    write_some(&server, &mut expected, 1001);
    server.kill();
    let server = Server::start(dir.path(), &config);
    check(&server, &expected, "killed after writing");
    write_some(&server, &mut expected, 1002);
    assert!(server.stop());
    let server = Server::start(dir.path(), &config);
    check(&server, &expected, "stopped in order");
    assert!(server.stop());
}

/// The archives of an older version's pools.
fn archives(commit: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade").join(commit);
    let mut archives: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    archives.sort();
    archives
}

#[test]
fn pools_of_older_versions_keep_what_was_flushed() {
    let versions = [("7b1e008", 7)];
    for (commit, pools) in versions {
        let archives = archives(commit);
        assert_eq!(archives.len(), pools, "{archives:?}");
        for archive in archives {
            println!("{}", archive.display());
            upgrade(&archive);
        }
    }
}

/// In a superblock: the offset of the third region, which is home, or the tables of logs before it; and the main device's UUID.
const THIRD_REGION_AT: usize = 64 + 2 * 24 + 8;
const MAIN_AT: usize = 880;

fn number(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().unwrap())
}

/// A page of a later version in the place of one at `page`, of which `sum_at` is the checksum's place.
fn make_newer(b: &mut [u8], page: usize, sum_at: usize) {
    b[page + 8..page + 12].copy_from_slice(&77u32.to_le_bytes());
    let sum = xxhash_rust::xxh3::xxh3_64(&b[page..page + sum_at]);
    b[page + sum_at..page + sum_at + 8].copy_from_slice(&sum.to_le_bytes());
}

/// Logs or a cache of a version that this program doesn't know, and the cache of another pool: each refused, and nothing is converted before.
#[test]
fn a_start_that_is_refused_converts_nothing() {
    let (mut caches, mut logs) = (0, 0);
    for archive in archives("7b1e008") {
        let old = unpack(&archive);
        let [slow, fast] = ["slow.img", "fast.img"].map(|name| old.dir.path().join(name));
        let refused_with = |config: &str, why: &str| {
            let images = images(&old);
            let bytes = || images.iter().map(|name| std::fs::read(old.dir.path().join(name)).ok()).collect::<Vec<_>>();
            let before = bytes();
            let said = Server::try_start(old.dir.path(), config).err().unwrap_or_else(|| panic!("served: {why}"));
            assert!(said.contains(why), "{said}");
            assert!(bytes() == before, "{}: {why}: something was changed", archive.display());
        };
        let refused = |why: &str| refused_with(&old.config, why);
        let main = std::fs::read(&slow).unwrap();
        if old.config.contains("[pool.logs]") {
            logs += 1;
            let tables = number(&main, THIRD_REGION_AT) as usize;
            // Version 1 has one page; a later one has it in both places, one of which is enough.
            for at in [0, 3 * 4096] {
                let mut newer = main.clone();
                newer.copy_within(tables..tables + 4096, tables + at);
                make_newer(&mut newer, tables + at, 56);
                std::fs::write(&slow, newer).unwrap();
                refused("the logs are of version 77");
            }
            std::fs::write(&slow, &main).unwrap();
        }
        if old.config.contains("fast.img") {
            caches += 1;
            let cache = std::fs::read(&fast).unwrap();
            let mut newer = cache.clone();
            make_newer(&mut newer, number(&cache, THIRD_REGION_AT) as usize, 504);
            std::fs::write(&fast, newer).unwrap();
            refused("its cache is of version 77");
            std::fs::write(&fast, &cache).unwrap();
            refused_with(&without_cache(&old.config), "starting without [pool.cache] would lose their dirty data");
            std::fs::remove_file(&slow).unwrap();
            refused("holds a pool's cache, but the pool's own device isn't here");
            // A new pool of that name is served without a cache first.
            let server = Server::start(old.dir.path(), &without_cache(&old.config));
            assert!(server.stop());
            let said = Server::try_start(old.dir.path(), &old.config).err().expect("refused");
            assert!(said.contains("it names no pool's device, and this pool has known no such cache"), "{said}");
            assert!(std::fs::read(&fast).unwrap() == cache, "{}: the cache was changed", archive.display());
            std::fs::write(&slow, &main).unwrap();
        }
        let server = Server::start(old.dir.path(), &old.config);
        check(&server, &old.expected, "after the refusals");
        server.kill();
        if old.config.contains("fast.img") {
            let named = std::fs::read(&fast).unwrap()[MAIN_AT..MAIN_AT + 16].to_vec();
            assert_eq!(named, std::fs::read(&slow).unwrap()[16..32], "the cache's device names the pool's");
        }
    }
    assert!(caches > 0 && logs > 0);
}

/// The configuration without its section of a cache.
fn without_cache(config: &str) -> String {
    let mut lines = config.lines().collect::<Vec<_>>();
    let begin = lines.iter().position(|l| l.starts_with("[pool.cache]")).unwrap();
    let len = lines[begin + 1..].iter().position(|l| l.starts_with('[')).unwrap();
    lines.drain(begin..begin + 1 + len);
    lines.join("\n")
}

/// The pool's devices, as its configuration names them.
fn images(old: &Old) -> Vec<&'static str> {
    ["slow.img", "fast.img", "nvram.img"].into_iter().filter(|name| old.config.contains(name)).collect()
}

/// Converts the pool on devices that record what reaches them, up to when it is served.
fn convert_and_record(old: &Old) -> Vec<Recorded> {
    let images = images(old);
    let recorder = Recorder::over(old.dir.path(), &images);
    let mut config = old.config.clone();
    for (device, name) in recorder.devices.iter().zip(&images) {
        config = config.replace(name, device.path.to_str().unwrap());
    }
    for size in [", size = \"16MiB\"", ", size = \"8MiB\"", "device_size = \"8MiB\"\n", "device_size = \"16MiB\"\n"] {
        config = config.replace(size, "");
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config);
    check(&server, &old.expected, "while it is recorded");
    server.kill();
    recorder.recorded()
}

/// Power is lost after the first `cut` of what was recorded. What a device has flushed is there; of the rest each sector, or a part of one.
fn lose_power(old: &Old, recorded: &[Recorded], cut: usize, rng: &mut Rng) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in images(old) {
        let mut bytes = std::fs::read(old.dir.path().join(name)).unwrap();
        let until = &recorded[..cut];
        let flushed = until.iter().rposition(|r| r.device == name && r.written.is_none()).unwrap_or(0);
        for (n, write) in until.iter().enumerate().filter(|(_, r)| r.device == name) {
            let Some((offset, data)) = &write.written else { continue };
            for (sector, data) in data.chunks(SECTOR).enumerate() {
                let kept = match rng.below(3) {
                    _ if n < flushed => data.len(),
                    0 => 0,
                    1 => data.len(),
                    _ => rng.below(data.len() as u64) as usize,
                };
                bytes[*offset as usize + sector * SECTOR..][..kept].copy_from_slice(&data[..kept]);
            }
        }
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// `PLIMSOLL_UPGRADE_CUTS` says how often power is lost in each conversion.
#[test]
fn power_lost_while_a_pool_is_converted_loses_nothing_that_was_flushed() {
    if !may_mount() {
        return;
    }
    let cuts = std::env::var("PLIMSOLL_UPGRADE_CUTS").map_or(3, |n| n.parse().expect("a number"));
    for archive in archives("7b1e008") {
        let old = unpack(&archive);
        let recorded = convert_and_record(&old);
        let writes = recorded.iter().filter(|r| r.written.is_some()).count();
        let name = archive.file_name().unwrap().to_string_lossy().into_owned();
        println!("{name}: {writes} writes and {} flushes", recorded.len() - writes);
        assert!(writes >= 4 && writes < recorded.len(), "{name}: nothing was converted, or it wasn't flushed");
        let mut rng = Rng::new(1, &name);
        for n in 0..cuts {
            // In the first half of the tries anywhere, then just before a flush: most is under way there.
            let mut cut = rng.below(recorded.len() as u64) as usize;
            if n % 2 == 1 {
                cut += recorded[cut..].iter().position(|r| r.written.is_none()).unwrap_or(0);
            }
            let dir = lose_power(&old, &recorded, cut, &mut rng);
            let when = format!("{name}: power lost after {cut} of {}", recorded.len());
            let server = Server::try_start(dir.path(), &old.config).unwrap_or_else(|e| panic!("{when}: {e}"));
            check(&server, &old.expected, &when);
            assert!(server.stop(), "{when}");
            let server = Server::start(dir.path(), &old.config);
            check(&server, &old.expected, &format!("{when}, and stopped in order"));
        }
    }
}
