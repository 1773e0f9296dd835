//! Cores, live: who has them is told, a promise that doesn't fit is refused, and the tape of it all replays alike.

mod common;
use common::client::Client;
use common::{Server, exposition, ok, run, schema};
use plimsoll_nbd::wire::{Command, CommandFlags};
use serde_json::Value;

const CONFIG: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "p.img", size = "256MiB", model = "sized:256M:nvme-modern" }
tape = "p.tape"
cores = 4
[[tenant]]
name = "web"
class = "latency-critical"
objectives = [{ percentile = 99, within = "200ms" }, { percentile = 99.9, within = "1s" }]
jobs_max = 16
[[tenant]]
name = "batch"
class = "best-effort"
weight = 50
[[tenant]]
name = "secret"
class = "latency-critical"
objectives = [{ percentile = 99.9, within = "5s" }]
jobs_max = 1
[[volume]]
name = "vol"
pool = "p"
size = "64MiB"
tenant = "web"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["web", "batch"]
"#;

fn load(server: &Server, export: &str, rounds: u64) {
    let mut c = Client::connect(&server.socket(), export).unwrap();
    for round in 0..rounds {
        for n in 0..16 {
            let at = (round * 16 + n) % 1000 * 65_536;
            match n % 4 {
                0 => c.send(Command::Write, CommandFlags::EMPTY, at, 4096, &[1; 4096]).unwrap(),
                _ => c.send(Command::Read, CommandFlags::EMPTY, at, 16_384, &[]).unwrap(),
            };
        }
        (0..16).for_each(|_| drop(c.receive().unwrap().1.unwrap()));
    }
    c.flush().unwrap().unwrap();
}

#[test]
fn cores_are_given_told_of_and_promised_only_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), CONFIG);
    load(&server, "vol", 20);
    load(&server, "vol?tenant=batch", 20);

    // Who has them.
    let view: Value = serde_json::from_str(&server.cli(&["cores", "--json"])).unwrap();
    let doc = server.control("GET", "/v1/openapi.json").expect(200);
    schema::check(&doc, &doc["components"]["schemas"]["CoresView"], &view, "cores");
    assert_eq!((view["cores"].as_u64(), view["policy"].as_str()), (Some(4), Some("qwin")));
    let queue = |name: &str| {
        let all = view["queues"].as_array().unwrap();
        all.iter().find(|q| q["tenants"][0] == name).unwrap_or_else(|| panic!("no queue of {name}: {view}")).clone()
    };
    let web = queue("web");
    assert!(web["windows"].as_u64() > Some(20) && web["cores"].as_u64() > Some(0), "{web}");
    assert!(web["service_mean_us"].as_u64() > Some(0) && web["core_policy"].is_string(), "{web}");
    assert_eq!(queue("batch")["core_policy"], Value::Null);
    assert!(server.cli(&["cores", "p"]).contains("4 cores by qwin"));
    let page = exposition::parse(&server.control("GET", "/metrics").body);
    assert!(page.contains_key("plimsoll_cores_windows_total"), "metrics of cores");
    let tenants = server.cli(&["tenant", "list"]);
    assert!(tenants.lines().filter(|l| l.contains("enforced")).count() == 3, "{tenants}");

    // A promise that the cores can't keep is refused, and by how much is said; one that fits isn't.
    let socket = dir.path().join("control.sock");
    let set = |name: &str, within: &str, jobs: &str| {
        let objective = format!("99.9={within}");
        let args =
            ["tenant", "set", name, "--class", "latency-critical", "--objective", &objective, "--jobs-max", jobs];
        run(env!("CARGO_BIN_EXE_plimsoll"), &[&args[..], &["--control", socket.to_str().unwrap()]].concat())
    };
    let refused = set("hasty", "1us", "1");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    let (_, alone) = said.split_once("requests alone take ").unwrap_or_else(|| panic!("{said}"));
    // Three times of what they take alone, which depends on the machine: enough for each request, and not for all of these tenants.
    let (alone, _) = alone.split_once(" at p99.9, of ").unwrap();
    let (number, unit) = alone.split_at(alone.find(|c: char| c.is_ascii_alphabetic()).expect("a unit"));
    let within = format!("{}{unit}", (number.parse::<f64>().unwrap() * 3.0).ceil());
    let refused = set("greedy", &within, "65536");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("doesn't fit: it needs"), "{within}: {said}");
    assert!(said.contains("there are 4:") && said.contains("missing; --jobs-max "), "{said}");
    // The number that it names does fit.
    let (_, jobs) = said.split_once("--jobs-max ").unwrap();
    let (jobs, _) = jobs.split_once(' ').unwrap();
    let accepted = set("greedy", &within, jobs);
    assert!(accepted.status.success(), "{}", String::from_utf8_lossy(&accepted.stderr));
    server.cli(&["tenant", "remove", "greedy"]);
    let accepted = set("modest", "2s", "4");
    assert!(accepted.status.success(), "{}", String::from_utf8_lossy(&accepted.stderr));
    server.cli(&["tenant", "remove", "modest"]);

    // Who wasn't granted a tenant can't connect for it.
    assert!(Client::connect(&server.socket(), "vol?tenant=secret").is_err());
    load(&server, "vol?deadline=1s", 10);
    assert!(server.stop());

    let tape = dir.path().join("p.tape");
    let said = ok(env!("CARGO_BIN_EXE_plimsoll"), &["tape", "replay", tape.to_str().unwrap(), "--json"]);
    let replayed: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert_eq!(replayed["replayed"]["complete"], true, "{replayed}");
    assert!(replayed["replayed"]["accepted"].as_u64() > Some(800), "{replayed}");
}

/// The policies that QWin is compared with can be chosen live, too: fixed numbers of cores, and mClock's rates.
#[test]
fn a_static_partition_and_mclock_go_by_what_tenants_are_allotted() {
    for (policy, keys) in [("static", "cores = 3"), ("mclock", "limit_iops = 200\nweight = 50")] {
        let dir = tempfile::tempdir().unwrap();
        let pool = format!("cores = 4\ncore_policy = \"{policy}\"");
        let config = CONFIG.replace("cores = 4", &pool).replace("jobs_max = 16", &format!("jobs_max = 16\n{keys}"));
        let server = Server::start(dir.path(), &config);
        let began = std::time::Instant::now();
        load(&server, "vol", 10);
        let took = began.elapsed().as_secs_f64();
        let view: Value = serde_json::from_str(&server.cli(&["cores", "--json"])).unwrap();
        assert_eq!(view["policy"], policy);
        let web = view["queues"].as_array().unwrap().iter().find(|q| q["tenants"][0] == "web").unwrap();
        match policy {
            "static" => assert_eq!(web["cores"], 3, "{web}"),
            // 160 requests and a flush at 200 a second; what comes first waits for nothing.
            _ => assert!(took > 0.6, "{took} s"),
        }
    }
}

/// Keys that can only be set in the file take effect at a reload, also those of a tenant of whom something was set live.
#[test]
fn a_tenant_that_was_set_live_gets_the_files_other_keys_at_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let config = CONFIG.replace("cores = 4", "cores = 4\ncore_policy = \"static\"");
    let server = Server::start(dir.path(), &config);
    let cores = || {
        let view: Value = serde_json::from_str(&server.cli(&["cores", "--json"])).unwrap();
        let queues = view["queues"].as_array().unwrap().clone();
        queues.iter().find(|q| q["tenants"][0] == "web").unwrap()["cores"].as_u64().unwrap()
    };
    server.cli(&["tenant", "set", "web", "--deadline", "20ms"]);
    assert_eq!(cores(), 1);
    std::fs::write(dir.path().join("node.toml"), config.replace("jobs_max = 16", "jobs_max = 16\ncores = 3")).unwrap();
    server.cli(&["reload"]);
    assert_eq!(cores(), 3);
    let shown = server.cli(&["tenant", "show", "web"]);
    assert!(shown.contains("reads within 20.0ms"), "its deadline stays: {shown}");
}

/// An objective that the pool can't keep is a problem before a request misses it, also right after a start: by the profile of its device.
#[test]
fn an_objective_that_cannot_be_kept_is_a_problem_before_it_is_broken() {
    let dir = tempfile::tempdir().unwrap();
    common::write_profile(dir.path(), "cheetah-15k5", "d.profile");
    let device = r#"{ file = "p.img", size = "256MiB", model = "cheetah-15k5" }"#;
    let objective =
        "class = \"latency-critical\"\nobjectives = [{ percentile = 99, within = \"60ms\" }]\njobs_max = 1000";
    let text = common::config(device, "64MiB")
        .replace("[[tenant]]", "cores = 2\nprofile = \"d.profile\"\n[[tenant]]")
        .replace("class = \"best-effort\"", objective);
    let server = Server::start(dir.path(), &text);
    let problems = || {
        let health = server.control("GET", "/healthz");
        assert_eq!(health.code, 200, "it serves: {}", health.body);
        let all = health.json()["problems"].as_array().unwrap().clone();
        all.iter().map(|p| p.as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let [problem] = &problems()[..] else { panic!("{:?}", problems()) };
    let begins = "pool `p`: the objective of tenant `t` (p99 ≤ 60.0ms) doesn't fit, by the profile of its device, with random reads of 4 KiB: it needs ";
    assert!(problem.starts_with(begins) && problem.contains(" missing; --jobs-max "), "{problem}");
    let status = server.cli(&["status"]);
    assert!(status.contains("NOT HEALTHY") && status.contains("doesn't fit, by the profile"), "{status}");
    assert_eq!(server.control("GET", "/v1/tenants/t").json()["kept"], Value::Null, "nothing is broken");
    plimsoll_testkit::until("it is an event", || server.cli(&["events"]).contains("(p99 ≤ 60.0ms) doesn't fit"));
    // The number that it names does fit.
    let (_, jobs) = problem.split_once("--jobs-max ").unwrap();
    let said = server.cli(&["tenant", "set", "t", "--jobs-max", jobs.split_once(' ').unwrap().0]);
    assert!(said.contains("enforced  yes") && !said.contains("doesn't fit"), "{said}");
    assert_eq!(problems(), [""; 0]);
    // Before anything is measured nothing is refused, but it is said.
    let said = server.cli(&["tenant", "set", "t", "--objective", "99=1ms"]);
    assert!(said.contains("in pool `p` the objective doesn't fit, by the profile of its device"), "{said}");
    assert!(problems()[0].contains("(p99 ≤ 1.00ms) doesn't fit, by the profile"), "{:?}", problems());
    // From some of its requests on they decide: the device alone takes longer.
    let mut c = Client::connect(&server.socket(), "vol").unwrap();
    (0..80u64).for_each(|n| drop(c.read(n * 7919 % 16_000 * 4096, 4096).unwrap().unwrap()));
    let measured = problems();
    let of_it = |p: &&String| {
        p.starts_with("pool `p`: the objective of tenant `t` (p99 ≤ 1.00ms) doesn't fit: requests alone take ")
    };
    assert_eq!(measured.iter().filter(of_it).count(), 1, "{measured:?}");
    drop(c);
    assert!(server.stop());
}

/// An objective of a tenant whose `jobs_max` nobody set is no problem as long as its few requests are kept.
#[test]
fn an_objective_with_the_default_jobs_max_is_healthy() {
    let dir = tempfile::tempdir().unwrap();
    common::write_profile(dir.path(), "cheetah-15k5", "d.profile");
    let device = r#"{ file = "p.img", size = "256MiB", model = "cheetah-15k5" }"#;
    let objective = "class = \"latency-critical\"\nobjectives = [{ percentile = 99, within = \"100ms\" }]";
    let text = common::config(device, "64MiB")
        .replace("[[tenant]]", "cores = 2\nprofile = \"d.profile\"\n[[tenant]]")
        .replace("class = \"best-effort\"", objective);
    let server = Server::start(dir.path(), &text);
    let is_healthy = || server.control("GET", "/healthz").json()["problems"] == serde_json::json!([]);
    assert!(is_healthy(), "by the profile");
    let mut c = Client::connect(&server.socket(), "vol").unwrap();
    (0..80u64).for_each(|n| drop(c.read(n * 7919 % 16_000 * 4096, 4096).unwrap().unwrap()));
    assert!(is_healthy(), "by its own requests, of which one was in flight: {}", server.cli(&["cores"]));
    let shown = server.cli(&["cores"]);
    assert!(shown.contains("at worst") && shown.contains("with all requests that `jobs_max` allows"), "{shown}");
    drop(c);
    assert!(server.stop());
}

/// The steps of docs/guides/promises.md, "Choose an objective", on a modelled disk with a client that keeps two requests in flight.
#[test]
fn the_pages_steps_to_an_objective_work_on_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "1GiB", model = "hdd-160g-7200" }"#;
    let text = common::config(device, "512MiB").replace("[[tenant]]", "cores = 2\n[[tenant]]");
    let server = Server::start(dir.path(), &text);
    let mut c = Client::connect(&server.socket(), "vol").unwrap();
    // Step 2: the percentile, alone.
    let mut sent = 0;
    let mut send = |c: &mut Client| {
        c.send(Command::Read, CommandFlags::EMPTY, sent * 7919 % 130_000 * 4096, 4096, &[]).unwrap();
        sent += 1;
    };
    (0..2).for_each(|_| send(&mut c));
    (0..300).for_each(|_| {
        c.receive().unwrap().1.unwrap();
        send(&mut c);
    });
    let shown: Value = serde_json::from_str(&server.cli(&["tenant", "show", "t", "--json"])).unwrap();
    let p99_us = shown["traffic"]["last_minute"]["p99_us"].as_u64().unwrap_or_else(|| panic!("{shown}"));
    // Steps 1 and 3: the requests that it sends at once, and one and a half times that.
    let objective = format!("99={}us", p99_us * 3 / 2);
    let set = ["tenant", "set", "t", "--class", "latency-critical", "--objective", &objective];
    let refused = server.cli_fails(&set);
    assert!(refused.contains("--jobs-max ") && refused.contains(" would fit, or within "), "{refused}");
    server.cli(&[&set[..], &["--jobs-max", "2"]].concat());
    let shown = server.cli(&["tenant", "show", "t"]);
    assert!(shown.contains("enforced  yes") && !shown.contains("doesn't fit"), "{shown}");
    drop(c);
    assert!(server.stop());
}
