//! `plimsoll-lab` as a user sees it: what it prints, where, and with which status.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll-lab")).args(args).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(args: &[&str]) -> serde_json::Value {
    let out = lab(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", text(&out.stdout)))
}

#[test]
fn misuse_ends_with_status_2() {
    let out = lab(&["run", "XX-E1"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert!(out.stdout.is_empty());
}

#[test]
fn the_lab_lists_runs_keeps_and_reports() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let list = json(&["list", "--json"]);
    let ids: Vec<&str> = list.as_array().unwrap().iter().map(|e| e["id"].as_str().unwrap()).collect();
    assert!(["ML-E1", "MT-E2", "MT-E3", "MT-E4", "SCHED-CMP", "VF-E10"].iter().all(|id| ids.contains(id)), "{ids:?}");

    let (cache, data) = (at("cache"), at(""));
    let run = || {
        let args = ["run", "VF-E10", "--quick", "--json", "--cache", &cache, "--data", &data];
        let out = lab(&args);
        assert!(out.status.success(), "{}", text(&out.stderr));
        out.stdout
    };
    let first = run();
    let kept = fs::read_dir(&cache).unwrap().count();
    assert!(run() == first, "the same, unless the commit changed in between");
    assert_eq!((fs::read_dir(&cache).unwrap().count(), kept), (1, 1), "and kept");
    let v: serde_json::Value = serde_json::from_slice(&first).unwrap();
    // Scripts rely on exactly these; order doesn't matter to them.
    let keys = |v: &serde_json::Value| v.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    let set = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&v), set(&["id", "pass", "rows", "seeds", "commit", "decisions", "device", "notes"]));
    let of_row = set(&["name", "unit", "paper", "ours", "lo", "hi", "pass", "kind", "verdict", "n"]);
    assert!(v["rows"].as_array().unwrap().iter().all(|r| keys(r) == of_row));
    let noted = |start: &str| v["notes"].as_array().unwrap().iter().any(|n| n.as_str().unwrap().starts_with(start));
    assert!(noted("mean batch size: as asked for") && noted("a quick run"));
    let out = lab(&["run", "VF-E10", "--quick", "--trace", "small.csv"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(
        text(&out.stderr).contains(
            "--trace is for MT-E13, MT-E13-D4, MT-E13-MS, MT-E13-D4-MS, MT-E13-HELD-OUT, MT-E13-SSD, SCHED-CMP"
        ),
        "{}",
        text(&out.stderr)
    );
    let page = at("lab.html");
    let out = lab(&["report", "VF-E10", "--quick", "--cache", &cache, "--data", &data, "--out", &page]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let page = fs::read_to_string(&page).unwrap();
    assert!(page.contains("<svg") && page.contains("VF-E10") && page.ends_with("</html>\n"));
    assert!(!page.contains("src=") && !page.contains("<script") && !page.contains("@import"), "self-contained");
}
