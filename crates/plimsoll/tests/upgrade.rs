//! Pools of older versions, with flushed data that only the logs, the cache or its NVRAM hold: they open, nothing is lost.
//!
//! `upgrade/make_pools.py` made the archives, with the commit that their folder is named after, and says what they hold.

mod common;
use common::Server;
use common::client::Client;
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

#[test]
fn pools_of_older_versions_keep_what_was_flushed() {
    let versions = [("7b1e008", 7)];
    for (commit, pools) in versions {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/upgrade").join(commit);
        let mut archives: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
        archives.sort();
        assert_eq!(archives.len(), pools, "{archives:?}");
        for archive in archives {
            println!("{}", archive.display());
            upgrade(&archive);
        }
    }
}
