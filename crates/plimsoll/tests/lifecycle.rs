//! Operators' changes of a node that serves: volumes deleted and renamed, the configuration exported, metadata restored.

mod common;
use common::client::Client;
use common::mount::{Loop, may_mount};
use common::shaped::until;
use common::{Server, config};
use plimsoll_nbd::wire::{Command as Request, CommandFlags};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

const FILE: &str = r#"{ file = "p.img", size = "64MiB" }"#;

fn create(server: &Server, name: &str) {
    server.cli(&["volume", "create", name, "--pool", "p", "--size", "4MiB", "--tenant", "t"]);
}

fn volumes(server: &Server) -> Vec<String> {
    let all = server.control("GET", "/v1/volumes").json();
    all.as_array().unwrap().iter().map(|v| v["name"].as_str().unwrap().to_string()).collect()
}

/// Runs a command on a terminal of its own, and types a line: what it said, and whether it went well.
fn on_a_terminal(dir: &Path, arguments: &[&str], typed: &str) -> (String, bool) {
    while_asked(dir, arguments, || typed)
}

/// The same; the line is known once the command asks for it.
fn while_asked<'a>(dir: &Path, arguments: &[&str], typed: impl FnOnce() -> &'a str) -> (String, bool) {
    let mut command = format!("'{}'", env!("CARGO_BIN_EXE_plimsoll"));
    arguments.iter().for_each(|a| command += &format!(" '{a}'"));
    let mut child = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("`script` is in every Debian");
    let (mut said, mut out) = (Vec::new(), child.stdout.take().unwrap());
    let mut some = [0; 1024];
    while !String::from_utf8_lossy(&said).contains("to go on: ") {
        match out.read(&mut some).unwrap() {
            0 => break,
            n => said.extend(&some[..n]),
        }
    }
    child.stdin.take().unwrap().write_all(typed().as_bytes()).unwrap();
    out.read_to_end(&mut said).unwrap();
    (String::from_utf8_lossy(&said).into_owned(), child.wait().unwrap().success())
}

#[test]
fn a_deletion_asks_and_spares_what_is_used_or_declared() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(FILE, "4MiB"));
    create(&server, "spare");
    // Nobody to ask.
    let why = server.cli_fails(&["volume", "delete", "spare"]);
    assert!(why.contains("4.0 MiB of pool p") && why.contains("say --yes"), "{why}");
    let delete = ["volume", "delete", "spare", "--control", "control.sock"];
    let (said, done) = on_a_terminal(dir.path(), &delete, "spar\n");
    assert!(!done && said.contains("Type its name") && said.contains("nothing was done"), "{said}");
    assert_eq!(volumes(&server), ["spare", "vol"]);
    // Another has its name when the question is answered.
    let (said, done) = while_asked(dir.path(), &delete, || {
        server.cli(&["volume", "delete", "spare", "--yes"]);
        create(&server, "spare");
        "spare\n"
    });
    assert!(!done && said.contains("another volume has its name by now"), "{said}");
    assert_eq!(volumes(&server), ["spare", "vol"]);

    // A client has it: it is named, and goes on.
    let mut client = Client::connect(&server.socket(), "spare").unwrap();
    let why = server.cli_fails(&["volume", "delete", "spare", "--yes"]);
    let me = format!("uid:{}", rustix::process::geteuid().as_raw());
    assert!(why.contains("is in use: 1 connected") && why.contains(&me), "{why}");
    client.write(0, &[1; 512]).unwrap().unwrap();
    drop(client);
    let mut again = Client::connect(&server.socket(), "spare").expect("it is offered as before");
    assert_eq!(again.read(0, 512).unwrap().unwrap(), [1; 512]);
    let deleted = server.cli(&["volume", "delete", "spare", "--yes", "--disconnect", "--json"]);
    let deleted: Value = serde_json::from_str(&deleted).unwrap();
    assert_eq!(deleted, json!({"deleted": "spare", "pool": "p", "size_bytes": 4 << 20}));
    assert!(again.read(0, 512).is_err());

    // The file declares it: its line is named.
    let text = std::fs::read_to_string(dir.path().join("node.toml")).unwrap();
    let line = 1 + text.lines().position(|l| l == "name = \"vol\"").unwrap();
    let why = server.cli_fails(&["volume", "delete", "vol", "--yes"]);
    assert!(why.contains(&format!("node.toml:{line})")) && why.contains("reload"), "{why}");
    // Its line after a reload.
    std::fs::write(dir.path().join("node.toml"), format!("\n\n{text}")).unwrap();
    server.cli(&["reload"]);
    let why = server.cli_fails(&["volume", "delete", "vol", "--yes"]);
    assert!(why.contains(&format!("node.toml:{})", line + 2)), "{why}");
    // Once it isn't declared any more it is deleted, and stays deleted.
    let (before, rest) = text.split_once("[[volume]]").unwrap();
    let without = format!("{before}[[grant]]{}", rest.split_once("[[grant]]").unwrap().1);
    std::fs::write(dir.path().join("node.toml"), &without).unwrap();
    server.cli(&["reload"]);
    let delete = ["volume", "delete", "vol", "--control", "control.sock"];
    let (said, done) = on_a_terminal(dir.path(), &delete, "vol\n");
    assert!(done && said.contains("is deleted"), "{said}");
    assert!(server.stop());
    let server = Server::start(dir.path(), &without);
    assert!(volumes(&server).is_empty());
    assert!(server.stop());
}

/// Connections that an operator closes: what they have inside is answered, others go on, and the order is in the log.
#[test]
fn connections_are_closed_by_volume_tenant_and_peer() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(FILE, "4MiB"));
    create(&server, "other");
    let (socket, me) = (server.socket(), format!("uid:{}", rustix::process::geteuid().as_raw()));
    let connections = |query: &str| server.control("GET", &format!("/v1/connections?{query}")).json();
    let mut client = Client::connect(&socket, "vol").unwrap();
    let mut other = Client::connect(&socket, "other").unwrap();
    client.write(0, &[7; 512]).unwrap().unwrap();
    server.cli(&["inject", "vol", "--stall", "--for", "10m"]);
    let read = client.send(Request::Read, CommandFlags::EMPTY, 0, 512, &[]).unwrap();
    until("the read is inside", || connections("volume=vol")["connections"][0]["in_flight"] == 1);
    let why = server.cli_fails(&["connections", "close"]);
    assert!(why.contains("would disconnect every client") && why.contains("name at least one"), "{why}");
    assert_eq!(
        server.cli(&["connections", "close", "--volume", "vol", "--peer", "uid:4000000"]),
        "no such client is connected\n"
    );
    let closed = server.cli(&["connections", "close", "--volume", "vol", "--peer", &me, "--json"]);
    assert_eq!(serde_json::from_str::<Value>(&closed).unwrap(), json!({"closed": 1}));
    // A held answer goes out at once: its client sends nothing more.
    let (answered, ended) = client.receive().unwrap();
    assert_eq!((answered, ended.unwrap()), (read, vec![7; 512]));
    assert!(client.receive().is_err(), "the connection closes");
    assert!(other.read(0, 512).unwrap().is_ok(), "it isn't meant");
    until("it is gone", || connections("volume=vol")["total"] == 0);
    // It may come again, as it is still granted the volume.
    let _again = Client::connect(&socket, "vol").unwrap();
    assert_eq!(connections("tenant=t&peer=uid:4000000")["total"], 0);
    assert_eq!(connections(&format!("tenant=t&peer={me}"))["total"], 2);
    assert_eq!(server.cli(&["connections", "close", "--tenant", "t"]), "2 connections close\n");
    assert!(other.read(0, 512).is_err());
    until("all are gone", || connections("")["total"] == 0);
    let events = server.cli(&["events"]);
    assert!(events.contains("DELETE /v1/connections?volume=vol"), "{events}");
    assert!(server.stop());
}

/// A client that takes no answers, and holds nothing that others wait for, is cut off once its connection is to be closed.
#[test]
fn a_client_that_takes_no_answers_can_be_closed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &format!("{}\n[limits]\npayload_idle = \"1s\"\n", config(FILE, "4MiB")));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    for _ in 0..64 {
        client.send(Request::Read, CommandFlags::EMPTY, 0, 1 << 20, &[]).unwrap();
    }
    let connections = || server.control("GET", "/v1/connections").json()["total"].clone();
    until("it is known", || connections() == 1);
    assert_eq!(server.cli(&["connections", "close", "--tenant", "t"]), "1 connection closes\n");
    until("it is gone", || connections() == 0);
    drop(client);
    assert!(server.stop());
}

#[test]
fn a_renamed_volume_keeps_its_data_and_settings_and_whoever_uses_it_keeps_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(FILE, "4MiB"));
    create(&server, "old");
    server.cli(&["volume", "deadline", "old", "30ms"]);
    let mut client = Client::connect(&server.socket(), "old").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    let why = server.cli_fails(&["volume", "rename", "old", "new"]);
    assert!(why.contains("is in use: 1 connected"), "{why}");
    drop(client);
    until("the client's end", || server.control("GET", "/v1/volumes/old").json()["connections"] == 0);
    for (arguments, what) in [
        (["old", "vol"], "node.toml:"),
        (["vol", "new"], "node.toml:"),
        (["old", "a/b"], "'/'"),
        (["none", "new"], "there is no volume `none`"),
    ] {
        let why = server.cli_fails(&["volume", "rename", arguments[0], arguments[1]]);
        assert!(why.contains(what), "{arguments:?}: {why}");
    }
    create(&server, "taken");
    assert!(server.cli_fails(&["volume", "rename", "old", "taken"]).contains("exists already"));
    let renamed = server.cli(&["volume", "rename", "old", "new", "--json"]);
    let renamed: Value = serde_json::from_str(&renamed).unwrap();
    assert_eq!((&renamed["name"], &renamed["promise"]["deadline_us"]), (&json!("new"), &json!(30_000)), "{renamed}");
    assert!(Client::connect(&server.socket(), "old").is_err());
    let mut client = Client::connect(&server.socket(), "new").unwrap();
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    client.write(4096, &[8; 4096]).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    let events = server.control("GET", "/v1/events?kind=change").json().to_string();
    assert!(events.contains("PATCH /v1/volumes/old") && events.contains("rename"), "{events}");
    // Its durable mark follows it: after a kill it may lack other replicas' writes.
    server.kill();
    let server = Server::start(dir.path(), &config(FILE, "4MiB"));
    assert_eq!(volumes(&server), ["new", "taken", "vol"]);
    let shown = server.control("GET", "/v1/volumes/new").json();
    assert_eq!((&shown["behind"], &shown["promise"]["deadline_us"]), (&json!("unclean stop"), &json!(30_000)));
    // The alert for an end that wasn't orderly goes by this metric.
    let metrics = server.control("GET", "/metrics").body;
    for (volume, behind) in [("new", 1), ("taken", 0)] {
        let sample = format!("volume=\"{volume}\",reason=\"unclean stop\"}} {behind}\n");
        assert!(metrics.contains(&sample), "{sample}: {metrics}");
    }
    let mut client = Client::connect(&server.socket(), "new").unwrap();
    assert_eq!(client.read(0, 8192).unwrap().unwrap(), [[7; 4096], [8; 4096]].concat());
    drop(client);
    // The old name is another volume's.
    create(&server, "old");
    let mut other = Client::connect(&server.socket(), "old").unwrap();
    assert_eq!(other.read(0, 4096).unwrap().unwrap(), [0; 4096]);
    assert!(server.stop());
}

fn diff(server: &Server) -> Vec<String> {
    let shown: Value = serde_json::from_str(&server.cli(&["config", "diff", "--json"])).unwrap();
    assert_eq!(shown["fault"], Value::Null, "{shown}");
    let word = |d: &Value, key: &str| d[key].as_str().unwrap_or("-").to_string();
    let line = |d: &Value| ["section", "key", "file", "served", "why"].map(|key| word(d, key)).join("|");
    shown["drift"].as_array().unwrap().iter().map(line).collect()
}

/// An exported configuration is served as it is written, by this node and by another one.
#[test]
fn the_served_configuration_is_exported_and_its_drift_is_shown() {
    let dir = tempfile::tempdir().unwrap();
    let text = config(FILE, "4MiB").replace("name = \"p\"", "name = \"p\"\nsched = \"cfq\"\ncores = 4");
    let server = Server::start(dir.path(), &text);
    assert_eq!(diff(&server), Vec::<String>::new());
    assert!(server.cli(&["config", "diff"]).contains("served as written"));
    create(&server, "live");
    server.cli(&["volume", "grow", "vol", "--size", "8MiB"]);
    server.cli(&["volume", "deadline", "vol", "30ms", "--busy", "error"]);
    server.cli(&["tenant", "set", "t", "--weight", "7"]);
    server.cli(&[
        "tenant",
        "set",
        "gold",
        "--class",
        "latency-critical",
        "--objective",
        "99.9=20ms",
        "--deadline",
        "1500us",
    ]);
    server.cli(&["pool", "set", "p", "idle=16ms"]);
    let live = [
        "pool p|idle_time|-|\"16ms\"|live",
        "tenant gold||-|declared|live",
        "tenant t|weight|-|7|live",
        "volume live||-|declared|live",
        "volume vol|busy|-|\"error\"|live",
        "volume vol|deadline|-|\"30ms\"|live",
        "volume vol|size|\"4MiB\"|\"8MiB\"|live",
    ];
    assert_eq!(diff(&server), live);
    // A file that was changed and isn't read yet.
    let file = dir.path().join("node.toml");
    std::fs::write(&file, text.replace("[control]", "[control]\ndrain = \"5s\"")).unwrap();
    assert!(diff(&server).contains(&"control|drain|\"5s\"|\"60s\"|unread".to_string()), "{:?}", diff(&server));
    let out = dir.path().join("served.toml");
    server.cli(&["config", "export", "--out", out.to_str().unwrap()]);
    let why = server.cli_fails(&["config", "export", "--out", out.to_str().unwrap()]);
    assert!(why.contains("exists"), "{why}");
    let exported = std::fs::read_to_string(&out).unwrap();
    assert!(server.cli(&["config", "export"]) == exported);
    // The same node with it, then another one.
    std::fs::write(&file, &exported).unwrap();
    server.cli(&["reload"]);
    assert_eq!(diff(&server), Vec::<String>::new());
    assert!(server.stop());
    std::fs::remove_file(dir.path().join("p.img")).unwrap();
    let server = Server::start(dir.path(), &exported);
    assert_eq!(diff(&server), Vec::<String>::new());
    assert_eq!(volumes(&server), ["live", "vol"]);
    let vol = server.control("GET", "/v1/volumes/vol").json();
    assert_eq!(vol["promise"], json!({"deadline_us": 30_000, "from": "volume", "busy": "error"}));
    // Reading it over TCP takes the token: it names peers and paths.
    let http =
        server.control("GET", "/v1/status").json()["node"]["listens"]["control_http"].as_str().unwrap().to_string();
    for path in ["/v1/config", "/v1/pools/p/backup"] {
        assert_eq!(common::http::tcp(&http, "GET", path, "", None).code, 401, "{path}");
    }
    assert!(server.stop());
}

#[test]
fn metadata_that_are_lost_come_back_with_all_data() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("p.img");
    let text = config(FILE, "4MiB");
    let server = Server::start(dir.path(), &text);
    create(&server, "live");
    let write = |name: &str, byte: u8| {
        let mut client = Client::connect(&server.socket(), name).unwrap();
        client.write(8192, &vec![byte; 65536]).unwrap().unwrap();
        client.flush().unwrap().unwrap();
    };
    write("vol", 3);
    write("live", 4);
    let backup = dir.path().join("p.backup");
    server.cli(&["pool", "backup", "p", "--out", backup.to_str().unwrap()]);
    let restore = |more: &[&str]| {
        let arguments = ["pool", "restore", image.to_str().unwrap(), "--from", backup.to_str().unwrap()];
        let output = common::run(env!("CARGO_BIN_EXE_plimsoll"), &[&arguments, more].concat());
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    };
    let (done, said) = restore(&["--yes"]);
    assert!(!done && said.contains(&format!("process {} uses this device", server.pid())), "{said}");
    assert!(server.stop());
    let (done, said) = restore(&[]);
    assert!(!done && said.contains("say --yes"), "{said}");
    // The store's pages and both superblocks are lost.
    let file = std::fs::File::options().write(true).open(&image).unwrap();
    use std::os::unix::fs::FileExt;
    for at in [0, (1 << 20) + 8192] {
        file.write_all_at(&[0; 65536], at).unwrap();
    }
    drop(file);
    let why = Server::try_start(dir.path(), &text).err().expect("nothing is left");
    assert!(why.contains("superblocks are zero") && why.contains("pool restore"), "{why}");
    // An orderly end is a change of the metadata, too.
    let (done, said) = restore(&["--yes"]);
    assert!(!done && said.contains("changed 2 times since") && said.contains("--older"), "{said}");
    // Nobody but the operator knows whether it had a cache since.
    let (done, said) = restore(&["--yes", "--older"]);
    assert!(!done && said.contains("Say --never-cached if the pool never had a cache"), "{said}");
    let (done, said) = restore(&["--yes", "--older", "--never-cached", "--json"]);
    assert!(done, "{said}");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&said["volumes"], said["zeroed_bytes"].as_u64() > Some(0)), (&json!(2), true), "{said}");
    let server = Server::start(dir.path(), &text);
    assert_eq!(volumes(&server), ["live", "vol"]);
    for (name, byte) in [("vol", 3), ("live", 4)] {
        let mut client = Client::connect(&server.socket(), name).unwrap();
        assert_eq!(client.read(8192, 65536).unwrap().unwrap(), vec![byte; 65536], "{name}");
        assert_eq!(client.read(0, 8192).unwrap().unwrap(), [0; 8192]);
    }
    assert!(server.stop());
}

/// A pool takes on what its device has more, when it is opened: at a start, and at a reload that adds it again.
#[test]
fn a_pool_grows_with_its_device() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("p.img");
    let server = Server::start(dir.path(), &config(FILE, "4MiB"));
    let pool = |server: &Server| {
        let status = server.control("GET", "/v1/status").expect(200);
        status["pools"].as_array().unwrap().iter().find(|p| p["name"] == "p").unwrap().clone()
    };
    let size = |server: &Server| pool(server)["size_bytes"].as_u64().unwrap();
    let metric = |server: &Server| {
        let page = server.control("GET", "/metrics").body;
        page.lines().find_map(|l| l.strip_prefix("plimsoll_pool_size_bytes{pool=\"p\"} ")?.parse::<u64>().ok()).unwrap()
    };
    let was = size(&server);
    assert_eq!((was, metric(&server)), (59 * MIB, 59 * MIB));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    drop(client);
    assert!(server.stop());

    // `size` says how much of the file is the pool's: a longer file alone changes nothing, and `check` says why.
    let check = |text: &str| {
        let file = dir.path().join("checked.toml");
        std::fs::write(&file, text).unwrap();
        let checked =
            Command::new(env!("CARGO_BIN_EXE_plimsoll")).arg("check").arg(&file).arg("--json").output().unwrap();
        serde_json::from_slice::<Value>(&checked.stdout).unwrap().to_string()
    };
    std::fs::File::options().write(true).open(&image).unwrap().set_len(96 * MIB).unwrap();
    let checked = check(&config(FILE, "4MiB"));
    assert!(checked.contains("its last 33554432 bytes aren't used: `size` leaves them out"), "{checked}");
    let server = Server::start(dir.path(), &config(FILE, "4MiB"));
    assert_eq!(size(&server), was);
    assert!(server.stop());

    // A larger `size` makes the file longer.
    let larger = config(&FILE.replace("64MiB", "1GiB"), "4MiB");
    let checked = check(&larger);
    assert!(
        checked.contains("the next start grows it with its device, from 67108864 to 1073741824 bytes"),
        "{checked}"
    );
    let server = Server::start(dir.path(), &larger);
    assert_eq!(size(&server), was + 960 * MIB);
    assert_eq!((metric(&server), pool(&server)["free_bytes"].as_u64().unwrap()), (was + 960 * MIB, was + 956 * MIB));
    let events = server.cli(&["events", "--kind=node"]);
    assert!(events.contains("pool `p` has grown with its device, from 67108864 to 1073741824 bytes"), "{events}");
    server.cli(&["volume", "create", "new", "--pool", "p", "--size", "900MiB", "--tenant", "t"]);
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    let mut new = Client::connect(&server.socket(), "new").unwrap();
    for at in [0, 70 * MIB, 900 * MIB - 4096] {
        assert_eq!(new.read(at, 4096).unwrap().unwrap(), [0; 4096]);
        new.write(at, &[9; 4096]).unwrap().unwrap();
    }
    new.flush().unwrap().unwrap();
    drop((client, new));
    // Without `size` it is all of the file. A pool that is added again is opened again.
    let without_pool = r#"
        [listen]
        unix = "nbd.sock"
        [control]
        unix = "control.sock"
        [[pool]]
        name = "other"
        device = { null = true, size = "1MiB" }
    "#;
    std::fs::write(dir.path().join("node.toml"), without_pool).unwrap();
    server.cli(&["reload"]);
    server.cli(&["pool", "remove", "p", "--disconnect"]);
    std::fs::File::options().write(true).open(&image).unwrap().set_len(1025 * MIB + 5).unwrap();
    std::fs::write(dir.path().join("node.toml"), config(r#"{ file = "p.img" }"#, "4MiB")).unwrap();
    server.cli(&["reload"]);
    assert_eq!(size(&server), was + 961 * MIB);
    let events = server.cli(&["events", "--kind=node"]);
    assert!(events.contains("from 1073741824 to 1074790400 bytes"), "{events}");
    let mut new = Client::once_served(&server.socket(), "new");
    assert_eq!(new.read(70 * MIB, 4096).unwrap().unwrap(), [9; 4096]);
    drop(new);
    assert!(server.stop());

    // It never shrinks: a smaller `size` is ignored, and a shorter file is refused.
    let server = Server::start(dir.path(), &config(FILE, "4MiB"));
    assert_eq!(size(&server), was + 961 * MIB);
    assert!(server.stop());
    std::fs::File::options().write(true).open(&image).unwrap().set_len(1024 * MIB).unwrap();
    let why = Server::try_start(dir.path(), &config(FILE, "4MiB")).map(drop).unwrap_err();
    assert!(why.contains("p.img: has 1073741824 bytes, 1074790400 are needed"), "{why}");
}

/// `check` reads a pool's metadata where nobody serves it, and changes nothing.
#[test]
fn a_check_reads_the_metadata_of_a_pool_that_nobody_serves() {
    let dir = tempfile::tempdir().unwrap();
    let cache = "\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"";
    let cached = config(&format!("{FILE}{cache}"), "4MiB");
    let server = Server::start(dir.path(), &cached);
    create(&server, "extra");
    server.cli(&["tenant", "set", "gold", "--class", "best-effort", "--weight", "7"]);
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    let check = |text: &str| {
        let file = dir.path().join("checked.toml");
        std::fs::write(&file, text).unwrap();
        let checked =
            Command::new(env!("CARGO_BIN_EXE_plimsoll")).arg("check").arg(&file).arg("--json").output().unwrap();
        let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
        ["errors", "warnings", "notes"].map(|kind| checked[kind].to_string())
    };
    let [errors, _, notes] = check(&cached);
    assert!(errors == "[]" && notes.contains("its metadata weren't read: process "), "{errors} {notes}");
    drop(client);
    server.kill();

    let images = || ["p.img", "fast.img"].map(|name| std::fs::read(dir.path().join(name)).unwrap());
    let before = images();
    let granted =
        cached.clone() + "[[grant]]\npeer = \"uid:7\"\nvolumes = [\"extra\", \"none\"]\ntenants = [\"gold\"]\n";
    let [errors, warnings, notes] = check(&granted);
    assert!(errors == "[]" && notes == "[]", "{errors} {notes}");
    assert!(
        warnings.contains("no volume `none`") && !warnings.contains("`extra`") && !warnings.contains("`gold`"),
        "{warnings}"
    );
    let [errors, ..] = check(&config(FILE, "4MiB"));
    assert!(
        errors.contains("volumes vol, extra have or had cache mode `back`: starting without [pool.cache]"),
        "{errors}"
    );
    let [errors, ..] = check(&cached.replace("size = \"4MiB\"", "size = \"60MiB\""));
    assert!(errors.contains("its volumes want 58720256 bytes more, but its device has 53477376 left"), "{errors}");
    let [errors, warnings, _] = check(&cached.replace("size = \"4MiB\"", "size = \"2MiB\""));
    assert!(errors == "[]" && warnings.contains("`size` is ignored: it has 4194304 bytes"), "{errors} {warnings}");
    let other = "[[pool]]\nname = \"q\"\ndevice = { null = true, size = \"64MiB\" }\n[[volume]]\nname = \"extra\"\npool = \"q\"\nsize = \"1MiB\"\ntenant = \"t\"\n";
    let [errors, ..] = check(&(cached.clone() + other));
    assert!(errors.contains("volume `extra` is in pool `p`, and is configured in `q`"), "{errors}");
    assert!(images() == before, "something was changed");
    std::fs::rename(dir.path().join("fast.img"), dir.path().join("away.img")).unwrap();
    let without = cached.replace("device_size = \"64MiB\"\n", "");
    let [errors, ..] = check(&without);
    assert!(errors.contains("only the cache may have what was written to vol, extra"), "{errors}");
    // A start that is refused for that doesn't let the pool grow before.
    let larger = without.replace("size = \"64MiB\"", "size = \"1GiB\"");
    let why = Server::try_start(dir.path(), &larger).map(drop).unwrap_err();
    let bytes = std::fs::metadata(dir.path().join("p.img")).unwrap().len();
    assert!(why.contains("only the cache may have") && bytes == 64 << 20, "{bytes}: {why}");
}

/// `check` and a start agree where the new space cannot be taken on: the pool is served in its old size.
#[test]
fn a_pool_that_cannot_grow_is_served_as_it_is() {
    const MIB: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("p.img");
    let made = |rest: &str| config(&format!("{{ file = \"p.img\"{rest}"), "4MiB");
    let size = |server: &Server| server.control("GET", "/v1/status").expect(200)["pools"][0]["size_bytes"].as_u64();
    let server = Server::start(dir.path(), &made(", size = \"256MiB\" }"));
    let was = size(&server);
    assert!(server.stop());
    common::write_profile(dir.path(), image.to_str().unwrap(), "d.profile");
    let stays = |text: &str, why: &str| {
        let file = dir.path().join("checked.toml");
        std::fs::write(&file, text).unwrap();
        let checked =
            Command::new(env!("CARGO_BIN_EXE_plimsoll")).arg("check").arg(&file).arg("--json").output().unwrap();
        let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
        assert_eq!((&checked["errors"], &checked["notes"]), (&json!([]), &json!([])), "{checked}");
        assert!(checked["warnings"].to_string().contains(why), "{checked}");
        let server = Server::start(dir.path(), text);
        assert_eq!(size(&server), was);
        assert!(server.stop());
    };
    // A profile of the smaller device.
    stays(&made(", size = \"1GiB\" }\nprofile = \"d.profile\""), "is the profile of another device");
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 256 * MIB);
    // Data of somebody else.
    let file = std::fs::File::options().read(true).write(true).open(&image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 270 * MIB).unwrap();
    file.set_len(300 * MIB).unwrap();
    stays(&made(" }"), "its bytes from 268435456 to 314572800 hold data, as at 283115520");
    let mut b = [0; 4096];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut b, 270 * MIB).unwrap();
    assert_eq!((b, file.metadata().unwrap().len()), ([7; 4096], 300 * MIB));
    // What `size` leaves out doesn't matter.
    let server = Server::start(dir.path(), &made(", size = \"266MiB\" }"));
    assert_eq!(size(&server), was.map(|was| was + 10 * MIB));
    assert!(server.stop());
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut b, 270 * MIB).unwrap();
    assert_eq!(b, [7; 4096]);
}

/// A file that can't be made longer, and a start that is refused for its tape: the pool stays as it is.
#[test]
fn a_growth_that_fails_or_comes_too_early_leaves_the_size() {
    const EFBIG: u32 = 27;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("p.img");
    let bytes = || std::fs::metadata(&image).unwrap().len() >> 20;
    let size = |server: &Server| server.control("GET", "/v1/status").expect(200)["pools"][0]["size_bytes"].as_u64();
    let server = Server::start(dir.path(), &config(FILE, "4MiB"));
    let was = size(&server);
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    drop(client);
    assert!(server.stop());
    let larger = config(&FILE.replace("64MiB", "128MiB"), "4MiB");

    let tape = dir.path().join("tapes");
    std::fs::create_dir(&tape).unwrap();
    let taped = larger.replace("[[tenant]]", "tape = \"tapes\"\n[[tenant]]");
    let file = dir.path().join("checked.toml");
    std::fs::write(&file, &taped).unwrap();
    let checked = common::run(env!("CARGO_BIN_EXE_plimsoll"), &["check", file.to_str().unwrap(), "--json"]);
    let checked = String::from_utf8_lossy(&checked.stdout).into_owned();
    let why = Server::try_start(dir.path(), &taped).map(drop).unwrap_err();
    assert!(why.contains("tapes: Is a directory") && checked.contains("tapes: Is a directory"), "{why} {checked}");
    assert_eq!(bytes(), 64);

    let server = Server::try_start_refused(dir.path(), &larger, &[(common::FTRUNCATE, EFBIG)]).unwrap();
    assert_eq!((size(&server), bytes()), (was, 64));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    client.write(4096, &[8; 4096]).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    drop(client);
    assert!(server.stop());

    let server = Server::start(dir.path(), &larger);
    assert_eq!((size(&server), bytes()), (was.map(|was| was + (64 << 20)), 128));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    assert_eq!(client.read(4096, 4096).unwrap().unwrap(), [8; 4096]);
    drop(client);
    assert!(server.stop());
}

/// A pool takes on what its block device has more, zeroed, whatever was there where nobody looks.
#[test]
fn a_pool_grows_with_its_block_device() {
    const MIB: u64 = 1 << 20;
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let backing = dir.path().join("backing");
    std::fs::File::create(&backing).unwrap().set_len(64 * MIB).unwrap();
    let device = Loop::over(&backing, &[]);
    let path = device.path.to_str().unwrap();
    let text = config(&format!("{{ file = \"{path}\", format = true }}"), "4MiB");
    let size = |server: &Server| server.control("GET", "/v1/status").expect(200)["pools"][0]["size_bytes"].as_u64();
    let server = Server::start(dir.path(), &text);
    let was = size(&server);
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    client.write(0, &[7; 4096]).unwrap().unwrap();
    client.flush().unwrap().unwrap();
    drop(client);
    assert!(server.stop());

    // Remains of something else, between the places that are looked at.
    let file = std::fs::File::options().write(true).open(&backing).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[9; 4096], 97 * MIB + MIB / 2).unwrap();
    file.set_len(320 * MIB).unwrap();
    common::ok("losetup", &["--set-capacity", path]);
    let check = |text: &str| {
        let file = dir.path().join("checked.toml");
        std::fs::write(&file, text).unwrap();
        let checked = common::run(env!("CARGO_BIN_EXE_plimsoll"), &["check", file.to_str().unwrap(), "--json"]);
        String::from_utf8_lossy(&checked.stdout).into_owned()
    };
    let checked = check(&text);
    assert!(checked.contains("the next start grows it with its device, from 67108864 to 335544320 bytes"), "{checked}");
    // `size` says how much of it is the pool's, and more than there is can't be had.
    let limited = text.replace("format = true", "size = \"96MiB\"");
    let server = Server::start(dir.path(), &limited);
    assert_eq!(size(&server), was.map(|was| was + 32 * MIB));
    assert!(server.stop());
    let checked = check(&text.replace("format = true", "size = \"1GiB\""));
    assert!(checked.contains("from 100663296 to 335544320 bytes"), "{checked}");
    let server = Server::start(dir.path(), &text);
    assert_eq!(size(&server), was.map(|was| was + 256 * MIB));
    let events = server.cli(&["events", "--kind=node"]);
    assert!(events.contains("pool `p` has grown with its device, from 100663296 to 335544320 bytes"), "{events}");
    server.cli(&["volume", "create", "new", "--pool", "p", "--size", "250MiB", "--tenant", "t"]);
    let mut new = Client::connect(&server.socket(), "new").unwrap();
    for at in (0..250).map(|mib| mib * MIB) {
        assert!(new.read(at, MIB as u32).unwrap().unwrap().iter().all(|b| *b == 0), "{at}");
    }
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    drop((client, new));
    assert!(server.stop());

    // One that was made smaller is refused.
    file.set_len(200 * MIB).unwrap();
    common::ok("losetup", &["--set-capacity", path]);
    let why = Server::try_start(dir.path(), &text).map(drop).unwrap_err();
    assert!(why.contains("has 209715200 bytes, 335544320 are needed"), "{why}");
}
