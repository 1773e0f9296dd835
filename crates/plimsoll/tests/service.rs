//! A node as a service: reloaded, drained, watched by its event log, told of by `check`.

mod common;
use common::client::Client;
use common::shaped::until;
use common::{Server, config, http, ok, run};
use plimsoll_pool::PoolPlan;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

const NULL: &str = r#"{ null = true, size = "1GiB" }"#;

fn events(server: &Server, query: &str) -> Vec<Value> {
    server.control("GET", &format!("/v1/events{query}")).json()["events"].as_array().unwrap().clone()
}

fn has_event(server: &Server, kind: &str, text: &str) -> bool {
    events(server, &format!("?kind={kind}")).iter().any(|e| e["what"].as_str().unwrap().contains(text))
}

/// A configuration that is changed while the node serves.
fn rewrite(dir: &Path, changes: &[(&str, &str)]) {
    let file = dir.join("node.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = changes.iter().fold(text, |text, (old, new)| {
        assert!(text.contains(old), "{old}");
        text.replacen(old, new, 1)
    });
    std::fs::write(file, text).unwrap();
}

#[test]
fn a_reload_applies_what_it_can_and_names_what_needs_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(r#"{ file = "p.img", size = "64MiB" }"#, "1MiB"));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    assert_eq!(server.cli(&["reload"]), "nothing differs\n");

    // A wrong one changes nothing, and says where it is wrong.
    rewrite(dir.path(), &[("[[tenant]]", "[[tenant]]\nwieght = 7")]);
    let said = server.cli_fails(&["reload"]);
    assert!(said.contains("node.toml:") && said.contains("did you mean `weight`?"), "{said}");
    client.read(0, 512).unwrap().unwrap();

    rewrite(dir.path(), &[("wieght = 7", "weight = 7\ndeadline = \"30ms\""), ("64MiB", "128MiB")]);
    let more = "[[volume]]\nname = \"more\"\npool = \"p\"\nsize = \"1MiB\"\ntenant = \"t\"\n[log]\nlevel = \"warn\"\n";
    let file = dir.path().join("node.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("peer = \"local\""), "{text}");
    std::fs::write(&file, text + more).unwrap();
    assert!(Client::connect(&server.socket(), "more").is_err());
    let done: Value = serde_json::from_str(&server.cli(&["reload", "--json"])).unwrap();
    assert_eq!(done["changed"], json!(["[log]", "tenant `t`", "volume `more`"]), "{done}");
    assert_eq!(done["restart"], json!(["pool `p`"]), "{done}");
    assert_eq!(server.control("GET", "/v1/tenants/t").json()["promise"]["deadline_us"], 30_000);
    assert_eq!(server.control("GET", "/v1/tenants/t").json()["weight"], 7);
    Client::connect(&server.socket(), "more").unwrap();
    client.read(0, 512).unwrap().unwrap();

    // Grants hold for connections from then on. SIGHUP does the same, and its result is an event.
    rewrite(dir.path(), &[("peer = \"local\"", "peer = \"uid:4294967294\"")]);
    server.signal(Signal::HUP);
    until("no event of the reload", || has_event(&server, "node", "SIGHUP: configuration reloaded: changed: grants"));
    assert!(Client::connect(&server.socket(), "vol").is_err());
    client.read(0, 512).unwrap().unwrap();
    drop(client);
    assert!(server.stop());
}

/// A change that a reload can't make is tried by each later reload of the same file, and is named each time.
#[test]
fn a_reload_tries_again_what_an_earlier_one_could_not_do() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(r#"{ file = "p.img", size = "128MiB" }"#, "16MiB"));
    server.cli(&["volume", "create", "big", "--pool", "p", "--size", "64MiB", "--tenant", "t"]);
    rewrite(dir.path(), &[("size = \"16MiB\"", "size = \"96MiB\"")]);
    let reload = || {
        let done = http::unix(&server.dir.join("control.sock"), "POST", "/v1/reload", Some(&json!({}))).expect(200);
        let failed = done["failed"].as_array().unwrap().iter().map(Value::to_string).collect::<Vec<_>>();
        (done["changed"].clone(), failed)
    };
    let size = || server.control("GET", "/v1/volumes/vol").json()["size_bytes"].as_u64().unwrap();
    for _ in 0..2 {
        let (changed, failed) = reload();
        assert_eq!(changed, json!([]), "it didn't take effect");
        assert!(failed.len() == 1 && failed[0].contains("volume `vol`"), "{failed:?}");
        assert_eq!(size(), 16 << 20);
    }
    server.cli(&["volume", "delete", "big", "--yes"]);
    assert_eq!(reload(), (json!(["volume `vol`"]), vec![]));
    assert_eq!(size(), 96 << 20);
    assert_eq!(server.cli(&["reload"]), "nothing differs\n");
    assert!(server.stop());
}

#[test]
fn a_node_that_is_drained_is_watched_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &config(NULL, "1MiB"));
    let said = server.cli(&["drain"]);
    assert!(said.contains("ended after"), "{said}");
    until("it goes on", || server.has_ended().is_some());
    assert!(server.has_ended().unwrap().success());
    assert!(!dir.path().join("control.sock").exists());
}

/// A volume on a modelled disk that serves one request at a time.
fn slow(control: &str) -> String {
    let device = r#"{ file = "p.img", size = "1GiB", model = "constellation-es3-1tb" }"#;
    let text = config(device, "900MiB").replacen("[control]", &format!("[control]\n{control}"), 1);
    text.replacen("name = \"p\"", "name = \"p\"\ndepth = 1", 1)
}

/// Requests that take seconds: reads all over the disk.
fn hang(server: &Server) -> Client {
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    // Few enough to be sent although nobody takes the answers.
    for i in 0..1000u64 {
        let at = i * 7919 % 900 * (1 << 20);
        client.send(plimsoll_nbd::wire::Command::Read, plimsoll_nbd::wire::CommandFlags::EMPTY, at, 512, &[]).unwrap();
    }
    let inside = || server.control("GET", "/v1/status").json()["pools"][0]["inside"].as_u64().unwrap();
    until("nothing is inside", || inside() > 600);
    client
}

/// A service manager is told that the node is ready, and how it ends; a node that hangs ends after its bound.
#[test]
fn an_end_is_bounded_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let hear = || {
        let mut buffer = [0; 512];
        let n = manager.recv(&mut buffer).expect("the node says nothing");
        String::from_utf8_lossy(&buffer[..n]).into_owned()
    };
    let text = slow("drain = \"4s\"");
    let environment = [("NOTIFY_SOCKET", socket.to_str().unwrap())];
    let mut server = Server::try_start_with(dir.path(), &text, &environment).unwrap();
    assert_eq!(hear(), "READY=1\nSTATUS=serving; volumes: 1, pools: 1");
    assert_eq!(server.cli(&["reload"]), "nothing differs\n");
    assert!(hear().starts_with("RELOADING=1\nMONOTONIC_USEC="));
    assert!(hear().starts_with("READY=1\n"));
    let client = hang(&server);
    let began = Instant::now();
    server.signal(Signal::TERM);
    let ending = hear();
    assert!(ending.starts_with("STOPPING=1\nEXTEND_TIMEOUT_USEC="), "{ending}");
    assert!(ending.contains(" requests in flight in pool `p`; "), "{ending}");
    let status = server.control("GET", "/v1/status").json();
    assert_eq!(status["node"]["ending"], true, "it is watched while it ends");
    let refused = server.control("DELETE", "/v1/volumes/vol");
    assert_eq!(refused.code, 503, "{}", refused.body);
    until("it goes on", || server.has_ended().is_some());
    assert!(!server.has_ended().unwrap().success(), "not in order");
    assert!((2..30).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    drop(client);
}

#[test]
fn a_second_signal_ends_a_node_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &slow(""));
    let client = hang(&server);
    server.signal(Signal::TERM);
    until("it isn't ending", || server.control("GET", "/v1/status").json()["node"]["ending"] == true);
    assert_eq!(server.has_ended(), None);
    let began = Instant::now();
    server.signal(Signal::TERM);
    until("it goes on", || server.has_ended().is_some());
    assert!(!server.has_ended().unwrap().success() && began.elapsed() < Duration::from_secs(10));
    drop(client);
    let server = Server::start(dir.path(), &config(NULL, "1MiB"));
    assert!(server.stop());
}

#[test]
fn events_say_who_did_what_and_what_was_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(NULL, "1MiB"));
    let me = format!("uid:{}", rustix::process::geteuid().as_raw());
    drop(Client::connect(&server.socket(), "vol").unwrap());
    assert!(Client::connect(&server.socket(), "no such").is_err());
    server.cli(&["tenant", "set", "t", "--deadline", "20ms"]);
    assert_eq!(server.control("DELETE", "/v1/volumes/nothing").code, 404);
    let found = |kind: &str, text: &str| {
        events(&server, &format!("?kind={kind}"))
            .into_iter()
            .find(|e| e["what"].as_str().unwrap().contains(text) && e["who"] == me.as_str())
    };
    until("the client's end is no event", || found("connection", "left `vol` after 0 s").is_some());
    assert!(found("connection", "opened `vol`").is_some());
    assert!(found("refusal", "export `no such` refused").is_some());
    let change = found("change", "PATCH /v1/tenants/t").expect("a change is an event");
    assert!(change["what"].as_str().unwrap().contains("\"deadline_us\":20000"), "{change}");
    assert!(
        found("change", "DELETE /v1/volumes/nothing").unwrap()["what"].as_str().unwrap().contains("refused with 404")
    );
    let text = server.cli(&["events", "--kind", "change"]);
    assert!(text.lines().count() == 2 && text.contains(&format!("{me}: PATCH /v1/tenants/t")), "{text}");
    let all = server.cli(&["events", "--json"]);
    let numbers: Vec<u64> =
        all.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["number"].as_u64().unwrap()).collect();
    assert!(numbers.len() > 4 && numbers.is_sorted(), "{numbers:?}");
    assert!(server.cli_fails(&["events", "--kind", "chnage"]).contains("there is no kind `chnage`"));

    // A problem is an event, and so is its end.
    let body = json!({"fault": "errors", "share_permille": 1000, "for_us": 600_000_000u64});
    let socket = server.dir.join("control.sock");
    let answer = http::unix(&socket, "PUT", "/v1/volumes/vol/inject", Some(&body));
    assert!(answer.code < 300, "{}", answer.body);
    until("the problem is no event", || has_event(&server, "problem", "volume `vol`"));
    assert!(server.control("DELETE", "/v1/volumes/vol/inject").code < 300);
    until("its end is no event", || has_event(&server, "problem", "volume `vol`: injected faults: over after"));
    assert!(server.stop());
}

fn check(file: &Path) -> (bool, Value) {
    let output = run(env!("CARGO_BIN_EXE_plimsoll"), &["check", file.to_str().unwrap(), "--json"]);
    (output.status.success(), serde_json::from_slice(&output.stdout).expect("JSON in any case"))
}

/// The plan is complete: it reads back as one, with what was configured and with defaults, and a stack can be built from it.
#[test]
fn check_prints_the_plan_of_each_pool() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    let pool = |name: &str, keys: &str| format!("[[pool]]\nname = \"{name}\"\ndevice = {NULL}\n{keys}");
    let text = pool("plain", "") + &pool("all", "depth = 7\ncores = 2\nthrottle = true\n[pool.fence]\nslots = 3\n");
    std::fs::write(&file, format!("listen.unix = \"nbd.sock\"\n{text}")).unwrap();
    let output = run(env!("CARGO_BIN_EXE_plimsoll"), &["check", file.to_str().unwrap(), "--resolved"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let plans: BTreeMap<String, PoolPlan> = serde_json::from_slice(&output.stdout).expect("plans");
    let (plain, all) = (&plans["plain"], &plans["all"]);
    assert_eq!((plain.scheduler.options.depth, all.scheduler.options.depth), (32, 7));
    assert_eq!((plain.throttle, all.throttle), (false, true));
    assert_eq!((plain.cores.as_ref().map(|c| c.cores), all.cores.as_ref().map(|c| c.cores)), (None, Some(2)));
    assert_eq!((plain.fence.as_ref().map(|f| f.slots), all.fence.as_ref().map(|f| f.slots)), (None, Some(3)));
    let layers = |plan: &PoolPlan| plimsoll_pool::build(plan, vec![plimsoll_pool::UNLIMITED]).expect("a stack").len();
    assert!(layers(all) > layers(plain));
}

fn texts(all: &Value) -> String {
    let text = |f: &Value| format!("{}: {}", f["line"], f["what"].as_str().unwrap());
    all.as_array().unwrap().iter().map(text).collect::<Vec<_>>().join("\n")
}

#[test]
fn check_tells_all_errors_with_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.toml");
    let text = "[listen]\ntcp = \"localhost:7711\"\n[[pool]]\nname = \"p\"\ndevice = { null = true, size = \"1GB\" }\ndpeth = 3\n\
                [[tenant]]\nname = \"t\"\nclass = \"best-effort\"\ndedline = \"5ms\"\n[grant]\npeer = \"local\"\n";
    std::fs::write(&file, text).unwrap();
    let (ok, report) = check(&file);
    let errors = texts(&report["errors"]);
    assert!(!ok && report["errors"].as_array().unwrap().len() >= 5, "{errors}");
    for part in [
        "2: `tcp` isn't IP:PORT",
        "5: ",
        "6: unknown field `dpeth`",
        "did you mean `depth`?",
        "10: unknown field",
        "`deadline`?",
        "write [[grant]]",
    ] {
        assert!(errors.contains(part), "{part} is missing in:\n{errors}");
    }
    let text = "[[pool]]\nname = \"main\"\ndevice = { null = true, size = \"1GiB\" }\ncores = 0\n[[tenant]]\nname = \"web\"\nclass = \"fast\"\n\
                [[volume]]\nname = \"v\"\npool = \"mian\"\nsize = \"1MiB\"\ntenant = \"wbe\"\n[[grant]]\npeer = \"all\"\nvolumes = []\n";
    std::fs::write(&file, text).unwrap();
    let errors = texts(&check(&file).1["errors"]);
    for part in [
        "2: pool `main`: cores = 0",
        "7: tenant `web`",
        "there is no pool `mian`: did you mean `main`?",
        "14: peer `all`",
    ] {
        assert!(errors.contains(part), "{part} is missing in:\n{errors}");
    }
}

/// `-` is standard input, whose relative paths are the current folder's.
#[test]
fn check_reads_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    let ask = |text: &str| {
        let mut program = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let mut child = program
            .args(["check", "-"])
            .current_dir(dir.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let text = config(r#"{ file = "here/p.img", size = "64MiB" }"#, "8MiB");
    let (is_fine, said) = ask(&text);
    assert!(!is_fine && said.contains("here/p.img: its folder doesn't exist"), "{said}");
    std::fs::create_dir(dir.path().join("here")).unwrap();
    let (is_fine, said) = ask(&text);
    assert!(is_fine && said.starts_with("stdin: 1 pool"), "{said}");
    let (is_fine, said) = ask(&text.replace("[[volume]]", "[[volume]]\nsise = 1"));
    assert!(!is_fine && said.contains("stdin:") && said.contains("sise"), "{said}");
}

#[test]
fn check_looks_at_devices_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("check.toml");
    let checked = |device: &str| {
        std::fs::write(&file, config(device, "1MiB")).unwrap();
        check(&file)
    };
    let errors = |device: &str| texts(&checked(device).1["errors"]);
    let warnings = |device: &str| texts(&checked(device).1["warnings"]);
    assert!(errors(r#"{ file = "/dev/sdzz", size = "64MiB" }"#).contains("a file in /dev would be in memory"));
    std::fs::write(dir.path().join("foreign.img"), [7; 1 << 20]).unwrap();
    assert!(errors(r#"{ file = "foreign.img", size = "64MiB" }"#).contains("holds data that Plimsoll didn't write"));
    assert!(warnings(r#"{ file = "huge.img", size = "900TiB" }"#).contains("their file system has"));
    assert!(!dir.path().join("huge.img").exists());

    let server = Server::start(dir.path(), &config(r#"{ file = "p.img", size = "64MiB" }"#, "1MiB"));
    let before = std::fs::metadata(dir.path().join("p.img")).unwrap().modified().unwrap();
    let (_, report) = checked(r#"{ file = "p.img", size = "128MiB" }"#);
    let [warned, noted] = ["warnings", "notes"].map(|kind| texts(&report[kind]));
    assert!(warned.contains(&format!("process {} has it open now", server.pid())), "{warned}");
    assert!(noted.contains("the next start grows it with its device, from 67108864 to 134217728 bytes"), "{noted}");
    assert!(warnings(r#"{ file = "p.img", size = "32MiB" }"#).contains("pools don't shrink"));
    assert_eq!(std::fs::metadata(dir.path().join("p.img")).unwrap().modified().unwrap(), before);
    assert!(server.stop());
    let (ok, report) = checked(r#"{ file = "p.img", size = "64MiB" }"#);
    assert!(ok && report["errors"] == json!([]), "{report}");
    let other = errors(r#"{ file = "p.img", uuid = "00000000-0000-4000-8000-000000000000" }"#);
    assert!(other.contains("is the device"), "{other}");
}

/// The embedded default takes other ports when its own are taken, and those that it is given.
#[test]
fn a_folder_is_enough_however_many_nodes_there_are() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let start = |dir: &Path, more: &[&str]| {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["serve", "--data", dir.to_str().unwrap()])
            .args(more)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        assert!(line.contains("serves"), "{line}");
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        child
    };
    let mut nodes: Vec<_> = dirs.iter().map(|dir| start(dir.path(), &[])).collect();
    let at = |dir: &Path| {
        let status = http::unix(&dir.join("control.sock"), "GET", "/v1/status", None).json();
        (status["node"]["listens"]["nbd_tcp"].clone(), status["node"]["listens"]["control_http"].clone())
    };
    let (a, b) = (at(dirs[0].path()), at(dirs[1].path()));
    assert!(a.0 != b.0 && a.1 != b.1, "{a:?} {b:?}");
    // There is no file to differ from, and nothing to warn about; a live change differs from the default.
    let diff = |expected: &str| {
        let control = dirs[0].path().join("control.sock").display().to_string();
        let output = run(env!("CARGO_BIN_EXE_plimsoll"), &["config", "diff", "--control", &control]);
        let [out, err] = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said).into_owned());
        assert!(output.status.success() && err.is_empty() && out.contains(expected), "{out}{err}");
    };
    diff("(embedded default): served as written");
    let control = dirs[0].path().join("control.sock").display().to_string();
    ok(env!("CARGO_BIN_EXE_plimsoll"), &["volume", "deadline", "archive", "30ms", "--control", &control]);
    diff("volume archive  deadline");
    for node in &mut nodes {
        let pid = rustix::process::Pid::from_raw(node.id() as i32).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        assert!(node.wait().unwrap().success());
    }
}

/// A reader that goes early ends a command quietly.
#[test]
fn a_pipe_that_closes_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(NULL, "1MiB"));
    let (binary, socket) = (env!("CARGO_BIN_EXE_plimsoll"), dir.path().join("control.sock").display().to_string());
    for command in
        ["status", "status --json", "tenant list", "volume list", "pool show p", "connections", "events --follow"]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut program = std::process::Command::new(binary);
        let output = program.args(command.split(' ')).args(["--control", &socket]).stdout(writer).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), said.as_ref()), (Some(141), ""), "{command}");
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let arguments = command.trim_end_matches(" --follow").split(' ');
        let mut program = std::process::Command::new(binary);
        let output = program.args(arguments).args(["--control", &socket]).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let want = "plimsoll: cannot write to standard output: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), said.as_ref()), (Some(1), want), "{command}");
    }
    assert!(server.stop());
}

#[test]
fn a_socket_whose_path_is_too_long_is_refused_with_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().join("a".repeat(100));
    std::fs::create_dir(&deep).unwrap();
    let refused = Server::try_start(&deep, &config(NULL, "1MiB")).err().expect("no socket has such a path");
    assert!(refused.contains("a socket's path has at most 107 bytes"), "{refused}");
}

/// A node that closes a command's connection is an error of the command, and isn't taken for a reader of its output that has gone.
#[test]
fn a_connection_that_is_closed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(NULL, "1MiB"));
    let mut read = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    read.args(["read", &server.uri("vol"), "--rate", "50", "--count", "100000", "--connections", "1"]);
    let read = read.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    let connections = || server.control("GET", "/v1/connections").json()["connections"].as_array().unwrap().len();
    until("it reads", || connections() == 1);
    server.cli(&["connections", "close", "--volume", "vol"]);
    let output = read.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.starts_with("plimsoll: "), "{:?}: {said}", output.status);
    assert!(server.stop());
}

/// An objective that doesn't fit any more, by what requests turned out to take, isn't in the way of another change. Changing it is refused,
/// and so is a volume for another tenant with one.
#[test]
fn an_objective_that_stands_is_in_no_reloads_way() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "256MiB", model = "cheetah-15k5" }"#;
    let text = config(device, "64MiB")
        .replace("[[tenant]]", "cores = 1\nthrottle = true\n[[tenant]]")
        .replace(
            "class = \"best-effort\"",
            "class = \"latency-critical\"\nobjectives = [{ percentile = 99, within = \"1ms\" }]",
        )
        .replace("size = \"64MiB\"\ntenant", "size = \"64MiB\"\nthrottle = { iops = 10000 }\ntenant")
        .replace(
            "[[grant]]",
            "[[tenant]]\nname = \"u\"\nclass = \"latency-critical\"\nobjectives = [{ percentile = 99, within = \"1500us\" }]\n\
             [[tenant]]\nname = \"b\"\nclass = \"best-effort\"\n[[volume]]\nname = \"other\"\npool = \"p\"\nsize = \"1MiB\"\ntenant = \"b\"\n[[grant]]",
        );
    let server = Server::start(dir.path(), &text);
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    let mut reads = 0;
    // The pool learns from its requests what they take.
    until("an objective is refused", || {
        (reads..reads + 20).for_each(|n| drop(client.read(n * 7919 % 16000 * 4096, 4096).unwrap().unwrap()));
        reads += 20;
        rewrite(dir.path(), &[("within = \"1ms\"", "within = \"2ms\"")]);
        let answer = http::unix(&server.dir.join("control.sock"), "POST", "/v1/reload", Some(&json!({})));
        let refused = answer.body.contains("of tenant `t` in pool `p` doesn't fit");
        assert_eq!(answer.code, 200, "{}", answer.body);
        rewrite(dir.path(), &[("within = \"2ms\"", "within = \"1ms\"")]);
        // If the change was taken, back to what it was.
        refused || {
            server.control("POST", "/v1/reload");
            false
        }
    });
    // It is told before anybody misses anything: by how much, and in which pool.
    let shown = server.cli(&["tenant", "show", "t"]);
    assert!(shown.contains("in pool `p` the objective doesn't fit: "), "{shown}");
    let shown = server.cli(&["cores"]);
    assert!(shown.contains("at worst") && shown.contains("the objective of t doesn't fit: "), "{shown}");
    rewrite(dir.path(), &[("iops = 10000", "iops = 5000")]);
    server.cli(&["reload"]);
    let limits = server.control("GET", "/v1/pools/p/throttle").expect(200);
    assert_eq!(limits["volumes"][0]["iops"], 5000, "{limits}");
    rewrite(dir.path(), &[("tenant = \"b\"", "tenant = \"u\"")]);
    let answer = http::unix(&server.dir.join("control.sock"), "POST", "/v1/reload", Some(&json!({})));
    assert!(answer.body.contains("of tenant `u` in pool `p` doesn't fit"), "{} {}", answer.code, answer.body);
    assert_eq!(server.control("GET", "/v1/volumes/other").json()["tenant"], "b");
    drop(client);
    assert!(server.stop());
}

/// An objective in the file that doesn't fit is in no other change's way: a removed grant is gone. Of a tenant that was changed live the
/// file's value isn't judged.
#[test]
fn an_objective_that_does_not_fit_leaves_a_reload_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "256MiB", model = "cheetah-15k5" }"#;
    let text = config(device, "64MiB")
        .replace("[[tenant]]", "cores = 1\n[[tenant]]")
        .replace(
            "class = \"best-effort\"",
            "class = \"latency-critical\"\nobjectives = [{ percentile = 99, within = \"1ms\" }]",
        )
        .replace("[[grant]]", "[[tenant]]\nname = \"u\"\nclass = \"best-effort\"\n[[grant]]");
    let server = Server::start(dir.path(), &text);
    server.cli(&["tenant", "set", "t", "--objective", "99=1s", "--jobs-max", "4"]);
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    (0..100).for_each(|n| drop(client.read(n * 7919 % 16000 * 4096, 4096).unwrap().unwrap()));
    drop(client);
    rewrite(
        dir.path(),
        &[
            ("within = \"1ms\"", "within = \"2ms\""),
            (
                "name = \"u\"\nclass = \"best-effort\"",
                "name = \"u\"\nclass = \"latency-critical\"\nobjectives = [\n{ percentile = 99, within = \"1500us\" }]",
            ),
            ("peer = \"local\"", "peer = \"uid:12345\""),
        ],
    );
    let file = std::fs::read_to_string(dir.path().join("node.toml")).unwrap();
    let line = 1 + file.lines().position(|l| l.contains("1500us")).unwrap();
    for round in 0..2 {
        let done = server.control("POST", "/v1/reload").expect(200);
        let failed: Vec<&str> = done["failed"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
        let [failed] = failed[..] else { panic!("{round}: {done}") };
        let at = format!(
            "node.toml:{line}: objectives: p99 within 1.50ms, jobs_max = 1024: the objective of tenant `u` in pool `p`"
        );
        assert!(failed.contains(&at) && failed.contains("doesn't fit: requests alone take "), "{at}: {failed}");
        let changed = if round == 0 { json!(["grants", "tenant `t`"]) } else { json!([]) };
        assert_eq!(done["changed"], changed, "{round}: {done}");
        assert!(Client::connect(&server.socket(), "vol").is_err(), "{round}: the grant is gone");
        assert_eq!(server.control("GET", "/v1/tenants/u").json()["class"], "best-effort", "{round}");
    }
    let shown = server.cli(&["tenant", "show", "t"]);
    assert!(shown.contains("1.00s"), "{shown}");
    assert!(server.cli_fails(&["reload"]).contains("1 changes could not be carried out; the others were"));
    server.signal(Signal::HUP);
    until("SIGHUP's event names it", || has_event(&server, "node", &format!("node.toml:{line}: objectives")));
    let objective = "class = \"latency-critical\"\nobjectives = [\n{ percentile = 99, within = \"1500us\" }]";
    rewrite(dir.path(), &[(objective, "class = \"best-effort\"")]);
    let done = server.control("POST", "/v1/reload").expect(200);
    assert_eq!((&done["failed"], &done["changed"]), (&json!([]), &json!(["tenant `u`"])), "{done}");
    assert!(server.stop());
}

/// `check` says of objectives what `tenant show` says once requests are measured: here from the profile, before anything is served.
#[test]
fn check_judges_objectives_by_the_profile() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("checked.toml");
    let critical = |name: &str, within: &str, jobs: u32| {
        format!(
            "[[tenant]]\nname = \"{name}\"\nclass = \"latency-critical\"\nobjectives = [{{ percentile = 99, within = \"{within}\" }}]\n\
             jobs_max = {jobs}\n[[volume]]\nname = \"{name}\"\npool = \"p\"\nsize = \"1MiB\"\ntenant = \"{name}\"\n"
        )
    };
    let with = |pool: &str, tenants: &str| {
        let device = r#"{ file = "p.img", size = "256MiB", model = "cheetah-15k5" }"#;
        let text = config(device, "8MiB").replace("[[tenant]]", &format!("{pool}\n[[tenant]]"));
        std::fs::write(&file, text.replace("[[grant]]", &format!("{tenants}[[grant]]"))).unwrap();
        let (_, checked) = check(&file);
        assert_eq!(texts(&checked["errors"]), "", "{checked}");
        (texts(&checked["warnings"]), texts(&checked["notes"]))
    };
    common::write_profile(dir.path(), "cheetah-15k5", "d.profile");
    let profiled = "cores = 2\nprofile = \"d.profile\"";
    // One that fits, one that needs fewer requests in flight, and one that the device alone misses.
    let (warnings, notes) = with(profiled, &critical("fits", "100ms", 2));
    assert_eq!((warnings.as_str(), notes.as_str()), ("", ""));
    let (warnings, _) = with(profiled, &critical("many", "60ms", 1000));
    assert!(
        warnings.contains("tenant `many`: in pool `p`, the objective doesn't fit, by the profile of its device, with random reads of 4 KiB: it needs ")
            && warnings.contains("--jobs-max "),
        "{warnings}"
    );
    let (warnings, _) = with(profiled, &critical("short", "1ms", 1));
    assert!(warnings.contains("tenant `short`") && warnings.contains("requests alone take "), "{warnings}");
    // Each alone has its core, three together don't.
    let three: String = ["40ms", "50ms", "60ms"].map(|within| critical(&format!("t{within}"), within, 1)).concat();
    let (warnings, _) = with(profiled, &three);
    assert_eq!(warnings.matches("1 missing").count(), 3, "{warnings}");
    // Nothing is guessed where nothing is known, and nobody is without an objective.
    let (warnings, notes) = with("cores = 2", &critical("db", "60ms", 1000));
    assert_eq!(warnings, "");
    assert!(notes.contains("pool `p`: the objectives of db aren't judged: without a `profile`"), "{notes}");
    let (warnings, notes) = with("", &critical("db", "60ms", 1000));
    assert!(
        warnings.is_empty() && notes.contains("of db: objectives are measured, not enforced: set `cores` for pool `p`"),
        "{notes}"
    );
    assert_eq!(with(profiled, ""), (String::new(), String::new()));
    // A live change goes before the file.
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("[[grant]]", &format!("{}[[grant]]", critical("db", "100ms", 2)));
    let server = Server::start(dir.path(), &text);
    server.cli(&["tenant", "set", "db", "--objective", "99=1ms"]);
    server.kill();
    std::fs::write(&file, text).unwrap();
    let warnings = texts(&check(&file).1["warnings"]);
    assert!(warnings.contains("tenant `db`") && warnings.contains("requests alone take "), "{warnings}");
}

/// The kernel refuses io_uring, as in most containers: that is told with the remedy before any device is made. `check`
/// warns: the service may be allowed to use it where the command isn't.
#[test]
fn a_kernel_that_refuses_io_uring_is_told_with_the_remedy() {
    const EPERM: u32 = 1;
    let dir = tempfile::tempdir().unwrap();
    let text = config(r#"{ file = "p.img", size = "64MiB" }"#, "8MiB");
    let refused = [(common::IO_URING_SETUP, EPERM)];
    let why = Server::try_start_refused(dir.path(), &text, &refused).map(drop).unwrap_err();
    for part in ["the kernel refuses io_uring", "(os error 1)", "`--security-opt seccomp=unconfined`"] {
        assert!(why.contains(part), "{why}");
    }
    let mut check = common::refusing(&refused);
    let checked = check.arg("check").arg(dir.path().join("node.toml")).arg("--json").output().unwrap();
    let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert!(texts(&checked["warnings"]).contains("the kernel refuses io_uring"), "{checked}");
    assert!(!dir.path().join("p.img").exists());
    assert!(Server::start(dir.path(), &text).stop());
}
