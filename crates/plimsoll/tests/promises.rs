//! Promises as they are shown: where each comes from, how it was kept, and when a broken one is a problem.

mod common;
use common::Server;
use common::client::Client;
use common::http::{self, Answer};
use common::promised::{CASES, Served};
use serde_json::{Value, json};
use std::fs::File;
use std::path::Path;
use std::process::Command;

/// A device of nothing accepts reads that are forecast within the failover's hop, and is later than a nanosecond. No room is left
/// for forecasts' errors: misses are wanted.
const CONFIG: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "null"
device = { null = true, size = "64MiB" }
miss_percent = 0
[[pool]]
name = "file"
device = { file = "file.img", size = "64MiB" }
[[tenant]]
name = "hurried"
class = "best-effort"
deadline = "1ns"
[[tenant]]
name = "patient"
class = "best-effort"
deadline = "1h"
busy = "error"
[[tenant]]
name = "critical"
class = "latency-critical"
objectives = [{ percentile = 99, within = "1ns" }]
[[volume]]
name = "late"
pool = "null"
size = "1MiB"
tenant = "hurried"
[[volume]]
name = "kept"
pool = "null"
size = "1MiB"
tenant = "hurried"
deadline = "30m"
[[volume]]
name = "torn"
pool = "file"
size = "16MiB"
tenant = "patient"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#;

struct Node(Server);

impl Node {
    fn start(dir: &Path) -> Node {
        Node(Server::start(dir, CONFIG))
    }

    fn ask(&self, path: &str) -> Answer {
        http::unix(&self.0.dir.join("control.sock"), "GET", path, None)
    }

    fn get(&self, path: &str) -> Value {
        self.ask(path).expect(200)
    }

    /// Reads a block `times` times. Returns the number of reads that were served.
    fn read(&self, export: &str, times: usize) -> usize {
        let mut client = Client::once_served(&self.0.socket(), export);
        (0..times).filter(|_| client.read(0, 4096).unwrap().is_ok()).count()
    }

    fn problems(&self) -> Vec<String> {
        let health = self.ask("/healthz");
        assert_eq!(health.code, 200, "a node that breaks a promise still serves");
        let said = |v: &Value| v.as_array().unwrap().iter().map(|p| p.as_str().unwrap().to_string()).collect();
        let problems: Vec<String> = said(&health.json()["problems"]);
        let status = self.get("/v1/status");
        assert_eq!(said(&status["node"]["problems"]), problems);
        assert_eq!(status["node"]["healthy"], problems.is_empty());
        problems
    }

    fn cli(&self, arguments: &[&str]) -> String {
        let control = self.0.dir.join("control.sock");
        let out = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(arguments)
            .args(["--control", control.to_str().unwrap()])
            .output()
            .unwrap();
        assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }
}

#[test]
fn each_deadline_is_shown_with_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let promise = |volume: &str| node.get(&format!("/v1/volumes/{volume}"))["promise"].clone();
    assert_eq!(promise("kept"), json!({"deadline_us": 1_800_000_000u64, "from": "volume", "busy": "wait"}));
    assert_eq!(promise("torn"), json!({"deadline_us": 3_600_000_000u64, "from": "tenant", "busy": "error"}));
    // Who was answered is attached.
    let _clients = ["kept?deadline=7ms", "kept?tenant=patient"].map(|export| {
        let mut client = Client::once_served(&node.0.socket(), export);
        client.read(0, 512).unwrap().unwrap();
        client
    });
    let all = node.get("/v1/connections?volume=kept");
    let from: Vec<&Value> = all["connections"].as_array().unwrap().iter().map(|c| &c["promise"]).collect();
    assert_eq!(all["total"], 2);
    assert!(from.contains(&&json!({"deadline_us": 7000, "from": "connection", "busy": "wait"})), "{all}");
    assert!(from.contains(&&json!({"deadline_us": 1_800_000_000u64, "from": "volume", "busy": "wait"})), "{all}");
    assert!(all["connections"][0]["peer"].as_str().unwrap().starts_with("uid:"), "{all}");
}

#[test]
fn missed_deadlines_are_shares_and_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    assert_eq!(node.read("kept", 300), 300);
    assert_eq!(node.problems(), [""; 0]);
    let shares = |kept: u64, missed: u64| json!({"kept": kept, "missed": missed, "waited": 0, "refused": 0});
    let volume = |name: &str| node.get(&format!("/v1/volumes/{name}"))["traffic"].clone();
    for window in ["last_minute", "last_hour", "last_day"] {
        assert_eq!(volume("kept")["promised"][window], shares(300, 0), "{window}");
    }
    let served = node.read("late", 150) as u64;
    assert_eq!(volume("late")["promised"]["last_hour"], shares(0, served));
    assert_eq!(served, 150);
    let forecast = volume("late")["forecast"].clone();
    assert_eq!(forecast["samples"], 150);
    assert!(forecast["p10_us"].as_i64() <= forecast["p90_us"].as_i64(), "{forecast}");
    let problems = node.problems();
    assert!(
        problems[0].starts_with("volume `late`, tenant `hurried`: 100.0 % of 150 accepted reads missed"),
        "{problems:?}"
    );
    assert_eq!(problems.len(), 1, "the tenant's other volume is fine: {problems:?}");
    // Both volumes together are the tenant's and the pool's.
    assert_eq!(node.get("/v1/tenants/hurried")["traffic"]["promised"]["last_hour"], shares(300, 150));
    assert_eq!(node.get("/v1/status")["pools"][0]["promises"]["reads"]["last_hour"], shares(300, 150));
    let waits = node.get("/v1/volumes/late")["waits"]["by_layer_us"].clone();
    assert!(waits.as_object().unwrap().keys().all(|layer| layer != "cores"), "{waits}");
    let shown = node.cli(&["volume", "show", "late"]);
    assert!(shown.contains("100.0 % missed, 0.0 % waited, 0.0 % refused, of 150 reads in the last day"), "{shown}");
    assert!(shown.contains("actual - forecast"), "{shown}");
    assert!(node.cli(&["tenant", "show", "hurried"]).contains("66.7 % kept, 33.3 % missed"));
    assert!(node.cli(&["status"]).contains("NOT HEALTHY"));
    let top = node.cli(&["top", "--once"]);
    let line = |name: &str| top.lines().position(|l| l.starts_with(name)).unwrap_or_else(|| panic!("{top}"));
    assert!(line("late ") < line("kept "), "the broken come first: {top}");
    let minutes = node.get("/v1/tenants/hurried/history")["minutes"].clone();
    let sum = |key: &str| minutes.as_array().unwrap().iter().map(|p| p[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("done"), sum("kept"), sum("missed"), sum("refused")), (450, 300, 150, 0));
}

#[test]
fn a_broken_objective_is_a_problem_that_says_what_enforces_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    assert_eq!(node.read("late?tenant=critical&deadline=1h", 9), 9);
    assert_eq!(node.problems(), [""; 0], "so few may be chance");
    let critical = || node.get("/v1/tenants/critical");
    assert_eq!(critical()["kept"], false);
    node.read("late?tenant=critical&deadline=1h", 1);
    let problems = node.problems();
    assert!(problems[0].starts_with("tenant `critical`: p99 ≤ 1ns is broken: 10 of 10 requests"), "{problems:?}");
    assert!(problems[0].contains("set `cores`"), "{problems:?}");
    assert_eq!(critical()["enforced"], false);
    assert_eq!(critical()["objectives"][0]["last_day"], json!({"requests": 10, "within": 0, "kept": false}));
    assert!(node.cli(&["tenant", "list"]).contains("BROKEN"));
}

/// The device's file is cut short while it is served: what fails below the node is a problem that names the volume.
#[test]
fn failing_requests_are_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    assert_eq!(node.read("torn", 1), 1);
    File::options().write(true).open(dir.path().join("file.img")).unwrap().set_len(4096).unwrap();
    assert_eq!(node.read("torn", 3), 0);
    let problems = node.problems();
    let text =
        "volume `torn`: 3 requests failed in the last 10 minutes in pool `file`, the last one: the device failed";
    assert!(problems[0].starts_with(text), "{problems:?}");
    let status = node.cli(&["status"]);
    assert!(status.contains("FAILED"), "{status}");
}

/// `plimsoll read` prints each answer with its forecast, and ends with a summary.
#[test]
fn reads_are_shown_with_their_forecasts() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let uri = format!("nbd+unix:///kept?socket={}", node.0.socket().display());
    let read = |more: &[&str]| {
        let arguments = [&["read", &uri, "--count", "20", "--rate", "1000"], more].concat();
        let out = Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(arguments).output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, out, err) = read(&["--deadline", "1h"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.ends_with("20 reads of 4096 bytes with a deadline of 3600s: 20 in time, 0 late, 0 busy\n"), "{out}");
    assert_eq!(out.lines().filter(|l| l.contains("read in ") && l.contains("(forecast ")).count(), 20, "{out}");
    let answers: Value = serde_json::from_str(&read(&["--json"]).1).unwrap();
    assert!(answers.as_array().unwrap().iter().all(|a| a["forecast_us"].is_u64()), "{answers}");
    assert_eq!(node.get("/v1/volumes/kept")["traffic"]["promised"]["last_hour"]["kept"], 40);
    let (code, _, err) = read(&["--size", "64MiB"]);
    assert!(code == Some(1) && err.contains("make sense"), "{err}");
}

/// The pools of `make promises` in short: each starts, serves, and keeps a promise that is easily kept.
#[test]
fn every_pool_of_the_long_form_keeps_an_hour() {
    for case in &CASES {
        let dir = tempfile::tempdir().unwrap();
        let Some(prepared) = case.prepared(dir.path()) else { continue };
        let server = Server::start(dir.path(), &common::busy::config(&prepared.pool, "", "64MiB"));
        let mut writer = Client::connect(&server.socket(), "vol").unwrap();
        writer.write(0, &[7; 64 << 10]).unwrap().unwrap();
        writer.flush().unwrap().unwrap();
        let mut hour = Client::connect(&server.socket(), "vol?deadline=1h&busy=error").unwrap();
        (0..20u64).for_each(|n| drop(hour.read((n * 37 + 100) << 12, 4096).unwrap().expect(case.name)));
        let promised = server.control("GET", "/v1/volumes/vol").expect(200)["traffic"]["promised"]["last_hour"].clone();
        assert_eq!(promised, json!({"kept": 20, "missed": 0, "waited": 0, "refused": 0}), "{}", case.name);
        drop((writer, hour));
        assert!(server.stop(), "{}", case.name);
    }
}

/// The server of needed refusals, against what can be said by hand: below its throughput nothing must be refused, and at three times of it
/// two thirds must.
#[test]
fn needed_refusals_follow_from_throughput_and_deadline() {
    for (per_s, slots) in [(100.0, 1), (400.0, 4), (250.0, 3)] {
        let served = Served::new(vec![10.0; 50], per_s);
        let at = |load: f64| (0..3000).map(|n| f64::from(n) * 1e3 / (per_s * load)).collect::<Vec<_>>();
        assert_eq!(served.needed_percent(&at(0.9), 0, 20.0, 1), 0.0, "{slots}");
        let thrice = served.needed_percent(&at(3.0), 750, 20.0, 1);
        assert!((65.0..68.0).contains(&thrice), "{slots}: {thrice}");
        assert_eq!(served.needed_percent(&at(0.5), 0, 9.0, 1), 100.0, "{slots}: no read is as short");
    }
}
