//! The compiled BPF objects are those of their sources. `kernel.rs` has the agent's object beside a fresh compilation; here is the other one.

mod common;

use common::{Blocks, Loop, run};
use plimsoll_host::agent::Requests;
use plimsoll_host::blame::Ended;
use plimsoll_testkit::until;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf");
const THREADS: u64 = 4;
const EACH: u64 = 250;

/// A fresh compilation of both sources.
fn compiled(to: &Path) {
    run(&format!("{FOLDER}/build.sh"), &[to.to_str().unwrap()]);
}

/// Also where no clang is: a source that was changed without a compilation.
#[test]
fn each_object_has_the_digest_of_its_source() {
    for name in ["host", "top"] {
        let digest = run("sh", &["-c", &format!("cat {FOLDER}/{name}.bpf.c {FOLDER}/layout.h | sha256sum")]);
        let digest = digest.split_whitespace().next().unwrap();
        let object = std::fs::read(format!("{FOLDER}/{name}.bpf.o")).unwrap();
        let has = object.windows(digest.len()).any(|bytes| bytes == digest.as_bytes());
        assert!(has, "{name}.bpf.o isn't of {name}.bpf.c and layout.h: run crates/host/bpf/build.sh");
    }
}

#[test]
fn the_program_of_top_and_a_fresh_compilation_see_the_same_requests() {
    let dir = tempfile::tempdir().unwrap();
    compiled(dir.path());
    let fresh = std::fs::read(dir.path().join("top.bpf.o")).unwrap();
    let disk = Loop::new(dir.path(), 64 << 20);
    let number = std::fs::read_to_string(format!("/sys/block/{}/dev", disk.name())).unwrap();
    let (major, minor) = number.trim().split_once(':').unwrap();
    let dev = plimsoll_host::layout::dev_of(major.parse().unwrap(), minor.parse().unwrap());
    let mut both = [Requests::open().unwrap(), Requests::open_object(&fresh).unwrap()];
    std::thread::scope(|s| {
        for t in 0..THREADS {
            let file = disk.open();
            s.spawn(move || {
                let mut block = Box::new(Blocks([t as u8; 4096]));
                for i in 0..EACH {
                    let at = (t * EACH + i) * 4096;
                    if i % 5 == 0 { file.write_all_at(&block.0, at) } else { file.read_exact_at(&mut block.0, at) }
                        .unwrap();
                }
            });
        }
    });
    let mut seen: [Vec<Ended>; 2] = Default::default();
    until("both have reported each request", || {
        for (seen, requests) in seen.iter_mut().zip(&mut both) {
            seen.extend(requests.filter(|e| e.dev == dev && e.owner.process == std::process::id()));
        }
        seen.iter().all(|s| s.len() as u64 >= THREADS * EACH)
    });
    // By thread, as the command's name is a thread's.
    let by_owner = |seen: &[Ended]| {
        let mut found = BTreeMap::new();
        for e in seen {
            assert!(e.arrived_ns <= e.issued_ns && e.issued_ns < e.done_ns, "{e:?}");
            *found.entry((e.owner.clone(), e.bytes)).or_insert(0) += 1;
        }
        found
    };
    assert_eq!(by_owner(&seen[0]), by_owner(&seen[1]));
    assert_eq!(by_owner(&seen[0]).keys().map(|(_, bytes)| *bytes).collect::<Vec<_>>(), [4096]);
    assert_eq!((seen[0].len() as u64, both[0].lost(), both[1].lost()), (THREADS * EACH, 0, 0));
}
