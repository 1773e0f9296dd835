//! `plimsoll shape` as an operator uses it: a real server under it, its commands, its errors, and the database's storage on a node of ours.

mod common;

use common::database::installed;
use common::mount::{Mounted, may_mount};
use common::shaped::{Ended, PLIMSOLL, Shaped, free_port, ping, refused, said, shim, until};
use common::{Server, run};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

#[test]
fn a_server_is_shaped_watched_steered_and_ended() {
    assert!(Path::new("/usr/bin/redis-server").exists(), "redis-server is missing: `make test-deps` installs it");
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    let server = ["redis-server", "--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""].map(str::to_string);
    let server: Vec<&str> = server.iter().map(String::as_str).collect();
    let s = Shaped::start(dir.path(), &["--profile", "redis", "--p", "4"], &server);
    until("the server is up", || ping(port, 1).is_ok());
    // A connection's first request only says whose it is.
    ping(port, 60).unwrap();
    until("its requests are counted", || s.top()["finished"].as_u64().unwrap() >= 50);
    assert_eq!((s.top()["p"].as_u64(), s.top()["state"].as_str()), (Some(4), Some("shaping")));
    s.command("set", &["p=7", "zeta=3", "weight:others=2"]);
    until("P is 7", || s.top()["p"] == 7 && s.top()["zeta"] == 3);
    s.command("set", &["p=20", "pressure=500"]);
    until("pressure halves P", || s.top()["p"] == 10);
    // Started with a number, it can be handed to the tuner and back.
    s.command("set", &["p=auto"]);
    until("the tuner has P, which has nothing to learn from yet", || {
        s.command("metrics", &[]).contains("plimsoll_shape_p +Inf")
    });
    s.command("set", &["p=20"]);
    until("pressure halves P again", || s.top()["p"] == 10);
    s.command("freeze", &[]);
    s.command("set", &["p=30", "pressure=1000"]);
    until("it is frozen", || s.top()["state"] == "frozen" && s.top()["p"] == 10);
    s.command("freeze", &["--undo"]);
    until("P follows again", || s.top()["p"] == 30);
    s.command("off", &[]);
    until("it is off", || {
        s.top()["state"] == "off: all pass" && s.command("metrics", &[]).contains("plimsoll_shape_open 1")
    });
    s.command("off", &["--undo"]);
    until("it shapes again", || s.command("metrics", &[]).contains("plimsoll_shape_open 0"));
    let metrics = s.command("metrics", &[]);
    for line in ["plimsoll_shape_p 30", "plimsoll_shape_pressure_ratio 1", "plimsoll_shape_panics_total 0"] {
        assert!(metrics.lines().any(|l| l == line), "{line} is missing:\n{metrics}");
    }
    assert!(s.command("top", &["--once"]).contains("USER"));
    let again = refused(&[
        "--profile",
        "redis",
        "--control",
        &s.control,
        "--shim",
        &shim().display().to_string(),
        "--",
        "redis-server",
    ]);
    assert!(again.contains("give this server another file with --control"), "{again}");
    assert!(s.stop());
    assert!(ping(port, 1).is_err(), "the server ended too");
}

/// A server's allocator is often preloaded by its unit. What the server starts has neither the shim nor its settings, and keeps the rest.
#[test]
fn the_operators_own_preload_stays() {
    let dir = tempfile::tempdir().unwrap();
    let own = dir.path().join("libown.so");
    let compiled = run("cc", &["-shared", "-fPIC", "-xc", "/dev/null", "-o", own.to_str().unwrap()]);
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let (control, shim) = (dir.path().join("segment"), shim());
    let out = Command::new(PLIMSOLL)
        .args(["shape", "--profile", "generic", "--p", "4", "--control", control.to_str().unwrap()])
        .args(["--shim", shim.to_str().unwrap(), "--", "sh", "-c", "grep -c libown.so /proc/self/maps; env"])
        .env("LD_PRELOAD", &own)
        .output()
        .unwrap();
    let (said, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    let mapped: u32 = said.lines().next().and_then(|line| line.parse().ok()).unwrap_or(0);
    assert!(mapped > 0, "it isn't loaded: {said}{errors}");
    assert!(said.lines().any(|line| line == format!("LD_PRELOAD={}", own.display())), "{said}");
    assert!(!said.contains("PLIMSOLL_SHAPE_"), "{said}");
}

#[test]
fn what_is_wrong_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let control = dir.path().join("segment").display().to_string();
    let shim = shim().display().to_string();
    let with = |more: &[&str]| refused(&[&["--control", &control, "--shim", &shim], more].concat());
    for (arguments, want) in [
        (vec!["--profile", "oracle", "--", "true"], "there is no profile `oracle`"),
        (vec!["--profile", "redis", "--", "no-such-server"], "no-such-server: there is no such program"),
        (
            vec!["--profile", "redis", "--user", "no-such-account", "--", "true"],
            "there is no account `no-such-account`",
        ),
        (vec!["--profile", "redis", "--p", "many", "--", "true"], "`many` is neither auto, unlimited nor a number"),
        (vec!["--profile", "redis", "--rules", "no-such-file", "--", "true"], "cannot read no-such-file"),
        (vec!["--profile", "redis", "--", "false"], "the server ended"),
        (
            vec!["--profile", "redis", "--storage-node", "/no/such/socket", "--storage-volume", "v", "--", "true"],
            "cannot ask for the storage's forecast",
        ),
        (vec!["--profile", "redis", "--storage-node", "/x", "--", "true"], "--storage-volume"),
    ] {
        let e = with(&arguments);
        assert!(e.contains(want), "{arguments:?}: {e}");
    }
    let e = refused(&["--control", &control, "--shim", "/no/such/shim", "--profile", "redis", "--", "true"]);
    assert!(e.contains("cargo build --release -p plimsoll-shape-shim"), "{e}");
    let e = refused(&["top", "--once", "--control", "/no/such/segment"]);
    assert!(e.contains("is a server running under `plimsoll shape`?"), "{e}");
}

#[test]
fn a_storage_node_may_ask_for_its_token() {
    let dir = tempfile::tempdir().unwrap();
    let node = Server::start(dir.path(), TAKES_A_TOKEN);
    let status = common::http::unix(&dir.path().join("control.sock"), "GET", "/v1/status", None).expect(200);
    let url = format!("http://{}", status["node"]["listens"]["control_http"].as_str().unwrap());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (control, shim, token) = (path("segment"), shim().display().to_string(), path("token"));
    let shape = |more: &[&str]| {
        let storage = ["--profile", "redis", "--storage-node", &url, "--storage-volume", "v"];
        refused(&[&["--control", &control, "--shim", &shim], &storage[..], more, &["--", "false"]].concat())
    };
    let without = shape(&[]);
    assert!(without.contains("name its file with --token-file"), "{without}");
    let with = shape(&["--token-file", &token]);
    assert!(with.contains("the server ended"), "it came as far as to start the server: {with}");
    assert!(node.stop());
}

#[test]
fn a_proxy_is_watched_and_steered_too() {
    assert!(Path::new("/usr/bin/redis-server").exists(), "redis-server is missing: `make test-deps` installs it");
    let dir = tempfile::tempdir().unwrap();
    let (server_port, port) = (free_port(), free_port());
    let control = dir.path().join("segment").display().to_string();
    let spawn = |program: &str, arguments: &[&str]| {
        let mut c = Command::new(program);
        c.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ended(c.spawn().unwrap())
    };
    let server = spawn("redis-server", &["--port", &server_port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    let (listen, to) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{server_port}"));
    let proxy = spawn(
        PLIMSOLL,
        &[
            "shape",
            "proxy",
            "--profile",
            "generic",
            "--listen",
            &listen,
            "--server",
            &to,
            "--p",
            "3",
            "--control",
            &control,
        ],
    );
    let top = || {
        serde_json::from_str::<serde_json::Value>(&said(&["top", "--once", "--json", "--control", &control])).unwrap()
    };
    until("the proxy serves", || ping(port, 1).is_ok());
    ping(port, 30).unwrap();
    until("its requests are counted", || top()["finished"].as_u64().unwrap() >= 30);
    said(&["set", "--control", &control, "p=9"]);
    until("P is 9", || top()["p"] == 9);
    drop(proxy);
    drop(server);
    assert!(ping(port, 1).is_err());
}

const TAKES_A_TOKEN: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
token_file = "token"
local_reads = false
[[pool]]
name = "p"
device = { null = true, size = "64MiB" }
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "v"
pool = "p"
size = "16MiB"
tenant = "t"
"#;

const NODE: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "p.img", size = "1GiB", model = "constellation-es3-1tb" }
depth = 4
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "db"
pool = "p"
size = "384MiB"
tenant = "t"
[[volume]]
name = "noise"
pool = "p"
size = "512MiB"
tenant = "t"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#;

/// 48 reads of a neighbouring volume at a time, for as long as it's left alone.
fn noise(uri: &str) -> Ended {
    let script = format!(
        "import random\nh = nbd.NBD(); h.connect_uri('{uri}')\nwhile True:\n  c = [h.aio_pread(nbd.Buffer(4096), random.randrange(1 << 17) * 4096) for i in range(48)]\n  while c:\n    h.poll(1000); c = [x for x in c if not h.aio_command_completed(x)]\n"
    );
    let path = format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default());
    let mut c = Command::new("nbdsh");
    c.env("PATH", path).args(["-c", &script]).stdout(Stdio::null());
    Ended(c.spawn().expect("nbdsh (`make test` installs it)"))
}

/// The joint system: a database whose data lie on a volume of a node lets fewer transactions in while the node forecasts long waits.
#[test]
fn the_storages_forecast_lowers_p_and_gives_it_back() {
    if !may_mount() {
        return;
    }
    assert!(Path::new("/usr/sbin/mariadbd").exists(), "mariadbd is missing: `make test-deps` installs it");
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let node = Server::start(dir.path(), NODE);
    let volume = Mounted::new(dir.path(), &node.uri("db"), "ext4");
    let data = installed(dir.path(), &volume);
    let port = free_port();
    let socket = format!("--socket={data}/sock");
    let options = [
        format!("--datadir={data}"),
        format!("--port={port}"),
        socket.clone(),
        "--no-defaults".into(),
        "--bind-address=127.0.0.1".into(),
        "--innodb-log-file-size=4M".into(),
        "--innodb-buffer-pool-size=8M".into(),
        "--innodb-flush-method=O_DIRECT".into(),
        "--innodb-flush-log-at-trx-commit=2".into(),
        "--skip-name-resolve".into(),
    ];
    // MariaDB wants --no-defaults first.
    let mut server = vec!["mariadbd", "--no-defaults"];
    server.extend(options.iter().map(String::as_str).filter(|o| *o != "--no-defaults"));
    let node_control = dir.path().join("control.sock").display().to_string();
    let run_with = ["--profile", "mysql-thread", "--p", "20", "--user", "mysql", "--storage-node", &node_control];
    let s = Shaped::start(
        dir.path(),
        &[&run_with[..], &["--storage-volume", "db", "--storage-wait-ms", "30"]].concat(),
        &server,
    );
    let sql = |text: &str| run("mariadb", &["--no-defaults", "-uroot", &socket, "-e", text]);
    until("MariaDB is up", || sql("SELECT 1").status.success());
    assert!(sql("CREATE DATABASE t; CREATE USER b@'127.0.0.1'; GRANT ALL ON *.* TO b@'127.0.0.1'").status.success());
    let port = port.to_string();
    let drive = [
        "drive",
        "ycsb-like",
        "--port",
        &port,
        "--account",
        "b",
        "--database",
        "t",
        "--scale",
        "8",
        "--clients",
        "6",
        "--json",
    ];
    let without_tables = refused(&[&drive[..], &["--seconds", "1"]].concat());
    assert!(without_tables.contains("no transaction succeeded"), "{without_tables}");
    let first = said(&[&drive[..], &["--seconds", "2", "--prepare"]].concat());
    assert!(first.contains("\"errors\": 0"), "{first}");
    until("P is whole while the storage is quiet", || s.top()["p"] == 20);
    let neighbour = noise(&node.uri("noise"));
    let begun = Instant::now();
    until("the forecast lowers P", || s.top()["p"].as_u64().unwrap() <= 10);
    println!("P is {} after {:?} of noise", s.top()["p"], begun.elapsed());
    let during = said(&[&drive[..], &["--seconds", "3"]].concat());
    assert!(during.contains("\"errors\": 0"), "{during}");
    drop(neighbour);
    let begun = Instant::now();
    until("P comes back", || s.top()["p"] == 20);
    println!("P is whole again {:?} after it", begun.elapsed());
    // Without the node P stands alone; the database's own volume goes with it, so only the gate is looked at.
    assert!(s.stop());
    drop(volume);
    assert!(node.stop());
}
