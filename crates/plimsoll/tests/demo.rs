//! `plimsoll demo` in a few seconds: what it prints and writes, and that nothing of it is left. Figures are a busy machine's: none is judged.

mod common;
use common::shaped::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The demonstration, with its temporary files in `dir`.
fn demo(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command
        .arg("demo")
        .args(arguments)
        .env("TMPDIR", dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Command lines of processes that were started with `dir` in their arguments: nodes and proxies of the demonstration.
fn left(dir: &Path) -> Vec<String> {
    let of = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("cmdline")).ok();
    let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(of);
    all.filter(|line| line.contains(dir.to_str().unwrap())).collect()
}

fn nothing_is_left(dir: &Path) {
    assert_eq!(left(dir), [""; 0], "a node still runs");
    let files: Vec<_> = std::fs::read_dir(dir).unwrap().flatten().map(|e| e.path()).collect();
    assert!(files.is_empty(), "left: {files:?}");
}

#[test]
fn both_sides_are_measured_and_nothing_is_left() {
    let (dir, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = results.path().join("demo.json");
    let out = demo(dir.path(), &["--seconds", "4", "--seed", "7", "--json", file.to_str().unwrap()]).output().unwrap();
    let (text, log) = (String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap());
    assert!(out.status.success() && log.is_empty(), "{log}\n{text}");
    nothing_is_left(dir.path());

    // A line for each second, the table, the sentence, the conditions.
    let seconds = text.lines().filter(|l| l.contains("ms ") && l.matches(" | ").count() == 3).count();
    assert_eq!(seconds, 4, "{text}");
    for part in [
        "http://127.0.0.1:",
        "TENANT",
        "later than",
        "With promises the database's p99 is",
        "modelled drives",
        "seed 7",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }

    let json: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((json["seed"].as_u64(), json["wanted_s"].as_u64()), (Some(7), Some(4)));
    for side in ["without", "with"] {
        for tenant in ["database", "web", "neighbour"] {
            let of = &json["sides"][side][tenant];
            assert!(of["requests"].as_u64() > Some(0) && of["failed"].as_u64() == Some(0), "{side}, {tenant}: {of}");
            let shares: Vec<f64> =
                of["distribution"].as_array().unwrap().iter().map(|p| p[1].as_f64().unwrap()).collect();
            assert!(shares.len() == 100 && shares.is_sorted(), "{side}, {tenant}: {shares:?}");
        }
        assert_eq!(json["over_time"][side].as_array().unwrap().len(), 4);
    }
    assert_eq!(json["sides"]["without"]["web"]["busy"], 0, "without promises nobody is refused");
}

/// Nodes and proxies end with a demonstration that is killed. Its folder stays: nobody is left to remove it.
#[test]
fn a_demonstration_that_is_killed_leaves_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = demo(dir.path(), &["--seconds", "60", "--without", "nbdkit"]).spawn().unwrap();
    let mine = |program: &str| left(dir.path()).iter().filter(|line| line.starts_with(program)).count();
    until("the nodes and nbdkit run", || mine(env!("CARGO_BIN_EXE_plimsoll")) == 4 && mine("nbdkit") == 2);
    // nbdkit looks after its parent from some time before it has its socket on: killed earlier, it would stay.
    let served = || {
        let demos = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
        let sides = demos.filter_map(|demo| std::fs::read_dir(demo).ok()).flatten();
        sides.filter(|side| side.as_ref().is_ok_and(|side| side.path().join("front.sock").exists())).count()
    };
    until("nbdkit serves", || served() == 2);
    running.kill().unwrap();
    running.wait().unwrap();
    until("they have ended", || left(dir.path()).is_empty());
}

#[test]
fn nbdkit_serves_the_side_without_promises() {
    let (dir, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = results.path().join("demo.json");
    let out = demo(dir.path(), &["--seconds", "4", "--without", "nbdkit", "--json", file.to_str().unwrap()])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    nothing_is_left(dir.path());
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let web = &json["sides"]["without"]["web"];
    assert!(json["without"] == "nbdkit" && web["requests"].as_u64() > Some(0), "{web}");
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it has ended, unless the test failed
        let _ = self.0.wait();
    }
}

#[test]
fn a_signal_ends_it_with_what_was_measured() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running(demo(dir.path(), &["--seconds", "600"]).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines().map_while(Result::ok);
    let third = lines.by_ref().find(|l| l.trim_start().starts_with("3 "));
    assert!(third.is_some() && left(dir.path()).len() == 4, "four nodes serve: {:?}", left(dir.path()));
    kill_process(Pid::from_child(&running.0), Signal::INT).unwrap();
    let rest: Vec<String> = lines.collect();
    assert!(running.0.wait().unwrap().success());
    assert!(rest.iter().any(|l| l.contains("ended early, 600 s were wanted")), "{rest:#?}");
    until("its nodes have ended", || left(dir.path()).is_empty());
    nothing_is_left(dir.path());
}

#[test]
fn an_unwritable_result_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let out = demo(dir.path(), &["--json", "/nonexistent/demo.json"]).output().unwrap();
    let log = String::from_utf8(out.stderr).unwrap();
    assert!(!out.status.success() && log.contains("cannot write /nonexistent/demo.json"), "{log}");
    nothing_is_left(dir.path());
}
