//! A cache whose journal is corrupt in all copies: its pool fails by name, and the operator can go on.

mod common;
use common::client::Client;
use common::{Server, config};
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const LEN: u32 = 8192;
const PAGE_BYTES: u64 = 4096;

fn with_cache() -> String {
    let section =
        "[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\nweu = \"256KiB\"\n[[tenant]]";
    config(r#"{ file = "slow.img", size = "64MiB" }"#, "16MiB").replace("[[tenant]]", section)
}

/// The cache's status, as soon as the start is over.
fn status(s: &Server) -> Value {
    let began = Instant::now();
    loop {
        let v: Value = serde_json::from_str(&s.cli(&["cache", "status", "p", "--json"])).unwrap();
        if v["state"] != "recovering" {
            return v;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{v}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Zeroes the journal, all copies of it.
fn lose_journal(fast: &Path) {
    let file = std::fs::File::options().read(true).write(true).open(fast).unwrap();
    let mut page = [0; PAGE_BYTES as usize];
    let at = (0..file.metadata().unwrap().len() / PAGE_BYTES).map(|n| n * PAGE_BYTES).find(|at| {
        file.read_exact_at(&mut page, *at).unwrap();
        page.starts_with(b"PLIMNTRO")
    });
    // As `plimsoll_cache::Layout` has it: two halves follow on the page.
    let half_bytes = u64::from_le_bytes(page[32..40].try_into().unwrap());
    let journal = vec![0; 2 * half_bytes as usize];
    file.write_all_at(&journal, at.expect("there is a cache on it") + PAGE_BYTES).unwrap();
}

#[test]
fn a_lost_journal_fails_the_pool_until_what_only_the_cache_has_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    for offline in [false, true] {
        let dir = dir.path().join(if offline { "offline" } else { "served" });
        std::fs::create_dir(&dir).unwrap();
        let server = Server::start(&dir, &with_cache());
        let mut c = Client::once_served(&server.socket(), "vol");
        c.write(0, &[1; LEN as usize]).unwrap().unwrap();
        c.flush().unwrap().unwrap();
        server.cli(&["cache", "flush", "p"]);
        c.write(0, &[2; LEN as usize]).unwrap().unwrap();
        c.flush().unwrap().unwrap();
        drop(c);
        server.kill();
        lose_journal(&dir.join("fast.img"));
        let server = Server::start(&dir, &with_cache());
        let v = status(&server);
        let problem = v["problem"].as_str().unwrap();
        assert_eq!(v["state"], "failed", "{v}");
        assert!(problem.contains("volume 1.") && problem.contains("cache give-up VOLUME --lose-data"), "{v}");
        if offline {
            server.kill();
            let file = dir.join("node.toml");
            std::fs::write(&file, with_cache()).unwrap();
            let out = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"))
                .args(["cache", "give-up", "vol", "--lose-data", "--config"])
                .arg(&file)
                .current_dir(&dir)
                .output()
                .unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        } else {
            server.cli(&["cache", "give-up", "vol", "--lose-data"]);
            server.kill();
        }
        let server = Server::start(&dir, &with_cache());
        let v = status(&server);
        assert!(v["state"] == "ready" && v["problem"].as_str().unwrap().contains("journal was corrupt"), "{v}");
        let mut c = Client::once_served(&server.socket(), "vol");
        assert!(c.read(0, LEN).unwrap().unwrap().iter().all(|b| *b == 1), "what the slow device has");
        c.write(0, &[3; LEN as usize]).unwrap().unwrap();
        c.flush().unwrap().unwrap();
        drop(c);
        server.kill();
        let server = Server::start(&dir, &with_cache());
        assert!(
            Client::once_served(&server.socket(), "vol").read(0, LEN).unwrap().unwrap().iter().all(|b| *b == 3),
            "and it goes on"
        );
        assert!(status(&server)["problem"].is_null(), "said once");
        assert!(server.stop());
    }
}
