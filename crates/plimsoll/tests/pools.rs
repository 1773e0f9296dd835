//! Pools that come and go on a serving node: added by a reload, removed by an order, each without a notice to the others' clients.

mod common;
use common::client::Client;
use common::mount::{Failing, await_unlocked, may_mount};
use common::shaped::until;
use common::{Server, config, run};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

const FILE: &str = r#"{ file = "p.img", size = "64MiB" }"#;

/// The section of a pool, and that of its volume.
fn sections(pool: &str, device: &str, more: &str, volume: &str) -> String {
    format!(
        "[[pool]]\nname = \"{pool}\"\ndevice = {device}\n{more}\n[[volume]]\nname = \"{volume}\"\npool = \"{pool}\"\nsize = \"8MiB\"\ntenant = \"t\"\n"
    )
}

fn file(name: &str) -> String {
    format!("{{ file = \"{name}.img\", size = \"64MiB\" }}")
}

fn write(dir: &Path, more: &str) {
    std::fs::write(dir.join("node.toml"), config(FILE, "8MiB") + more).unwrap();
}

/// The answer of a reload, whether or not all of it was done.
fn reload(server: &Server) -> Value {
    let socket = server.dir.join("control.sock");
    let arguments = ["reload", "--json", "--control", socket.to_str().unwrap()];
    let output = run(env!("CARGO_BIN_EXE_plimsoll"), &arguments);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said} {}", String::from_utf8_lossy(&output.stderr)))
}

fn pools(server: &Server) -> Vec<(String, String)> {
    let status = server.control("GET", "/v1/status").json();
    let text = |p: &Value, key: &str| p[key].as_str().unwrap().to_string();
    status["pools"].as_array().unwrap().iter().map(|p| (text(p, "name"), text(p, "state"))).collect()
}

fn problems(server: &Server) -> String {
    server.control("GET", "/v1/status").json()["node"]["problems"].to_string()
}

fn has_event(server: &Server, text: &str) -> bool {
    let events = server.control("GET", "/v1/events?kind=node").json();
    events["events"].as_array().unwrap().iter().any(|e| e["what"].as_str().unwrap().contains(text))
}

fn one(n: &str, state: &str) -> (String, String) {
    (n.to_string(), state.to_string())
}

#[test]
fn a_reload_serves_new_pools_and_names_those_that_cannot_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(FILE, "8MiB"));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    let absent = r#"{ file = "nowhere/bad.img", size = "64MiB" }"#;
    let both = sections("q", &file("q"), "", "w") + &sections("bad", absent, "", "x");
    write(dir.path(), &both);
    // What failed didn't take effect.
    for changed in [json!(["pool `q`", "volume `w`"]), json!([])] {
        let done = reload(&server);
        assert_eq!(done["changed"], changed, "{done}");
        let failed: Vec<&str> = done["failed"].as_array().unwrap().iter().map(|f| f.as_str().unwrap()).collect();
        let [pool, volume] = failed[..] else { panic!("{failed:?}") };
        assert!(pool.contains("pool `bad`: ") && pool.contains("nowhere/bad.img: its folder doesn't exist"), "{pool}");
        assert_eq!(volume, "volume `x`: its pool `bad` isn't served");
        assert_eq!((&done["restart"], &done["still_served"]), (&json!([]), &json!([])));
    }
    assert_eq!(pools(&server), [one("p", "ready"), one("q", "ready"), one("bad", "failed")]);
    assert!(problems(&server).contains("pool `bad`") && problems(&server).contains("then `plimsoll reload`"));
    let health = server.control("GET", "/healthz");
    assert!(health.code == 503 && health.body.contains("pool `bad`"), "{}", health.body);
    assert!(has_event(&server, "pool `q` is served: "));
    let metrics = server.control("GET", "/metrics").body;
    assert!(metrics.contains("plimsoll_pool_state{pool=\"q\",state=\"ready\"} 1"), "{metrics}");

    // Those who were there go on, and the new volume is attached.
    client.write(0, &[1; 4096]).unwrap().unwrap();
    let mut new = Client::once_served(&server.socket(), "w");
    new.write(0, &[2; 4096]).unwrap().unwrap();
    new.flush().unwrap().unwrap();
    server.cli(&["volume", "create", "more", "--pool", "q", "--size", "4MiB", "--tenant", "t"]);
    assert!(Client::connect(&server.socket(), "x").is_err());

    // One that is repaired is opened by the next reload, and one that is no longer wanted is forgotten.
    std::fs::create_dir(dir.path().join("nowhere")).unwrap();
    assert_eq!(reload(&server)["failed"], json!([]));
    assert_eq!(pools(&server)[2], one("bad", "ready"));
    assert_eq!(problems(&server), "[]");
    Client::once_served(&server.socket(), "x");
    assert_eq!(server.cli(&["reload"]), "nothing differs\n");
    write(dir.path(), &(both.clone() + &sections("worse", r#"{ file = "none/y.img", size = "64MiB" }"#, "", "y")));
    reload(&server);
    assert_eq!(pools(&server)[3], one("worse", "failed"));
    write(dir.path(), &both);
    reload(&server);
    assert_eq!(pools(&server).len(), 3);
    assert_eq!(new.read(0, 4096).unwrap().unwrap(), [2; 4096]);

    // As after any end.
    server.kill();
    let server = Server::start(dir.path(), &(config(FILE, "8MiB") + &both));
    assert_eq!(Client::once_served(&server.socket(), "w").read(0, 4096).unwrap().unwrap(), [2; 4096]);
    assert_eq!(server.control("GET", "/v1/volumes/more").json()["pool"], "q");
    assert!(server.stop());
}

/// A pool is removed and added again, with each kind of layer that keeps data: they are there.
#[test]
fn a_pool_that_left_the_file_is_removed_and_comes_back_with_its_data() {
    for (kind, more) in [
        ("plain", ""),
        ("logs", "[pool.logs]\nlogged_write = \"64KiB\"\nidle = \"10s\"\n"),
        (
            "cache",
            "[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\nwatermark_percent = 90\n",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let tape = dir.path().join("q.tape").display().to_string();
        let more = &format!("tape = \"{tape}\"\n{more}");
        let with = sections("q", r#"{ file = "q.img", size = "256MiB" }"#, more, "w");
        let server = Server::start(dir.path(), &(config(FILE, "8MiB") + &with));
        let mut other = Client::once_served(&server.socket(), "vol");
        let mut client = Client::once_served(&server.socket(), "w");
        client.write(8192, &[3; 65536]).unwrap().unwrap();
        server.cli(&["tenant", "set", "t", "--weight", "5"]);
        server.cli(&["volume", "deadline", "w", "7ms"]);

        // Its device and its tape are its own, whether or not the file still has it.
        for (n, file, more, what) in [
            (1, r#"{ file = "./q.img", size = "64MiB" }"#.to_string(), String::new(), "device"),
            (2, file("other"), format!("tape = \"{tape}\"\n"), "tape"),
        ] {
            write(dir.path(), &sections("other", &file, &more, "x"));
            let failed = reload(&server)["failed"][0].as_str().unwrap().to_string();
            assert!(failed.contains(&format!("its {what} ")) && failed.contains("of pool `q`"), "{n}: {failed}");
        }
        assert!(!dir.path().join("other.img").exists());
        write(dir.path(), &with);
        reload(&server);

        // The file declares it: its line is named.
        let text = std::fs::read_to_string(dir.path().join("node.toml")).unwrap();
        let line = 1 + text.lines().position(|l| l == "name = \"q\"").unwrap();
        let why = server.cli_fails(&["pool", "remove", "q"]);
        assert!(why.contains(&format!("node.toml:{line})")) && why.contains("reload"), "{kind}: {why}");
        write(dir.path(), "");
        for _ in 0..2 {
            let done = reload(&server);
            let still = json!(["pool `q` (no longer configured; `plimsoll pool remove q` ends it)"]);
            assert_eq!((&done["still_served"], &done["restart"]), (&still, &json!([])), "{done}");
        }
        client.read(0, 512).unwrap().unwrap();
        assert!(server.cli(&["config", "diff"]).contains("pool q"));
        let why = server.cli_fails(&["pool", "remove", "q"]);
        let me = format!("uid:{}", rustix::process::geteuid().as_raw());
        assert!(why.contains("is in use: 1 connected: ") && why.contains(&me), "{why}");
        client.write(0, &[4; 4096]).unwrap().unwrap();
        let removed: Value =
            serde_json::from_str(&server.cli(&["pool", "remove", "q", "--disconnect", "--json"])).unwrap();
        assert_eq!((&removed["removed"], &removed["volumes"]), (&json!("q"), &json!(["w"])), "{removed}");
        assert_eq!(removed["disconnected"], 1);
        assert!(removed["device"].as_str().unwrap().contains("q.img"), "{removed}");
        assert!(client.read(0, 512).is_err());

        // Its name, devices, volumes and metrics are gone, and the other pool's client goes on.
        await_unlocked(&dir.path().join("q.img"));
        assert_eq!(pools(&server), [one("p", "ready")]);
        assert!(!server.control("GET", "/metrics").body.contains("\"q\""));
        assert_eq!((problems(&server), server.control("GET", "/v1/volumes/w").code), ("[]".into(), 404));
        assert!(Client::connect(&server.socket(), "w").is_err());
        assert!(server.cli_fails(&["pool", "remove", "q"]).contains("there is no pool `q`; there are: p"));
        assert!(
            server
                .cli_fails(&["volume", "create", "y", "--pool", "q", "--size", "1MiB", "--tenant", "t"])
                .contains("`q`")
        );
        assert!(has_event(&server, "pool `q` was removed: its devices are closed"));
        let events = server.cli(&["events"]);
        assert!(events.contains("DELETE /v1/pools/q?disconnect=true"), "{events}");
        other.write(0, &[5; 512]).unwrap().unwrap();
        assert!(!server.cli(&["config", "diff"]).contains("pool q"));
        // A volume of the same name elsewhere has nothing of it.
        let deadline = || server.control("GET", "/v1/volumes/w").json()["promise"]["deadline_us"].clone();
        server.cli(&["volume", "create", "w", "--pool", "p", "--size", "1MiB", "--tenant", "t"]);
        assert_eq!(deadline(), Value::Null);
        server.cli(&["volume", "delete", "w", "--yes"]);
        server.cli(&["tenant", "set", "t", "--weight", "7"]);

        // Added again, it is as it was, and no older promise comes with it.
        write(dir.path(), &with);
        assert_eq!(reload(&server)["failed"], json!([]));
        assert_eq!(deadline(), 7000);
        let mut again = Client::once_served(&server.socket(), "w");
        assert_eq!(again.read(0, 4096).unwrap().unwrap(), [4; 4096], "{kind}");
        assert_eq!(again.read(8192, 65536).unwrap().unwrap(), [3; 65536], "{kind}");
        assert_eq!(server.control("GET", "/v1/tenants/t").json()["weight"], 7);
        assert_eq!(other.read(0, 512).unwrap().unwrap(), [5; 512]);
        drop(again);
        assert!(server.stop());
        let server = Server::start(dir.path(), &(config(FILE, "8MiB") + &with));
        assert_eq!(Client::once_served(&server.socket(), "w").read(0, 4096).unwrap().unwrap(), [4; 4096], "{kind}");
        assert!(server.stop());
    }
}

/// Data move to an added pool, and the old one goes: what was set live for tenants stays.
#[test]
fn live_settings_of_tenants_outlive_the_pool_in_which_they_were_stored() {
    let dir = tempfile::tempdir().unwrap();
    let head = config(FILE, "8MiB");
    let (head, _) = head.split_once("[[pool]]").unwrap();
    let tenant = "[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\n";
    let node = |more: &str| format!("{head}{tenant}{more}");
    let rewrite = |more: &str| std::fs::write(dir.path().join("node.toml"), node(more)).unwrap();
    let (old, new) = (sections("old", &file("old"), "", "v"), sections("new", &file("new"), "", "w"));
    let server = Server::start(dir.path(), &node(&old));
    server.cli(&["tenant", "set", "t", "--weight", "5"]);
    server.cli(&["tenant", "set", "live", "--class", "best-effort", "--weight", "6"]);
    let weights = |server: &Server| {
        ["t", "live"].map(|t| server.control("GET", &format!("/v1/tenants/{t}")).json()["weight"].clone())
    };
    rewrite(&(old.clone() + &new));
    assert_eq!(reload(&server)["failed"], json!([]));
    rewrite(&new);
    reload(&server);
    server.cli(&["pool", "remove", "old"]);
    reload(&server);
    assert_eq!(weights(&server), [5, 6]);
    server.cli(&["tenant", "set", "t", "--weight", "7"]);
    // The old one has an older promise.
    rewrite(&(old + &new));
    assert_eq!(reload(&server)["failed"], json!([]));
    rewrite(&new);
    reload(&server);
    server.cli(&["pool", "remove", "old"]);
    assert!(server.stop());
    let server = Server::start(dir.path(), &node(&new));
    assert_eq!(weights(&server), [7, 6]);
    assert!(server.stop());
    // A start, in place of the reload, has a pool beside it that was never told.
    let third = sections("third", &file("third"), "", "x");
    assert!(Server::start(dir.path(), &node(&(new + &third))).stop());
    let server = Server::start(dir.path(), &node(&third));
    assert_eq!(weights(&server), [7, 6]);
    assert!(server.stop());
}

/// A pool that is added tells of an end that wasn't orderly as a start does: of its volumes only, and not after an orderly removal.
#[test]
fn an_added_pool_tells_of_an_end_that_was_not_orderly() {
    let dir = tempfile::tempdir().unwrap();
    let with = sections("q", &file("q"), "", "w");
    let server = Server::start(dir.path(), &(config(FILE, "8MiB") + &with));
    Client::once_served(&server.socket(), "w").write(0, &[1; 4096]).unwrap().unwrap();
    write(dir.path(), "");
    reload(&server);
    server.cli(&["pool", "remove", "q", "--disconnect"]);
    write(dir.path(), &with);
    assert_eq!(reload(&server)["failed"], json!([]));
    assert!(!has_event(&server, "orderly"));
    Client::once_served(&server.socket(), "w").write(0, &[2; 4096]).unwrap().unwrap();
    Client::connect(&server.socket(), "vol").unwrap().write(0, &[2; 4096]).unwrap().unwrap();
    server.kill();

    let server = Server::start(dir.path(), &config(FILE, "8MiB"));
    let note = |volumes: &str| {
        format!("writes that were acknowledged and not flushed may be lost on volumes {volumes}: see \"After a restart")
    };
    assert!(has_event(&server, &note("vol")) && !has_event(&server, &note("w")));
    write(dir.path(), &with);
    assert_eq!(reload(&server)["failed"], json!([]));
    assert!(has_event(&server, &note("w")));
    let status = server.control("GET", "/v1/status").json();
    assert!(status["node"]["notes"][0].as_str().unwrap().contains("on volumes vol, w: "), "{status}");
    assert_eq!((problems(&server), server.control("GET", "/healthz").code), ("[]".into(), 200));
    assert!(server.stop());
}

/// A tenant that doesn't fit keeps no pool from being added. A live setting that a pool brings takes precedence, so that the file's value
/// isn't judged.
#[test]
fn a_tenant_that_does_not_fit_keeps_no_pool_out() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "256MiB", model = "cheetah-15k5" }"#;
    let text = config(device, "64MiB").replacen("[[tenant]]", "cores = 1\n[[tenant]]", 1);
    let (head, _) = text.split_once("[[pool]]").unwrap();
    let tenant = |name: &str, more: &str| format!("[[tenant]]\nname = \"{name}\"\n{more}\n");
    let (plain, q) = ("class = \"best-effort\"", sections("q", &file("q"), "", "w"));
    let other = Server::start(dir.path(), &(head.to_string() + &tenant("t", plain) + &tenant("u", plain) + &q));
    other.cli(&["tenant", "set", "u", "--weight", "5"]);
    assert!(other.stop());

    let server = Server::start(dir.path(), &(text.clone() + &tenant("u", plain)));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    (0..100).for_each(|n| drop(client.read(n * 7919 % 16000 * 4096, 4096).unwrap().unwrap()));
    let hard = tenant("u", "class = \"latency-critical\"\nobjectives = [{ percentile = 99, within = \"1500us\" }]");
    let r = sections("r", &file("r"), "", "x");
    std::fs::write(dir.path().join("node.toml"), text.clone() + &hard + &r).unwrap();
    let done = reload(&server);
    let failed = done["failed"].as_array().unwrap();
    assert!(
        failed.len() == 1 && failed[0].as_str().unwrap().contains("of tenant `u` in pool `p` doesn't fit"),
        "{done}"
    );
    assert_eq!(done["changed"], json!(["pool `r`", "volume `x`"]), "{done}");
    std::fs::write(dir.path().join("node.toml"), text + &hard + &r + &q).unwrap();
    let done = reload(&server);
    assert_eq!((&done["failed"], &done["changed"]), (&json!([]), &json!(["pool `q`", "tenant `u`", "volume `w`"])));
    let u = server.control("GET", "/v1/tenants/u").json();
    assert_eq!((&u["class"], &u["weight"]), (&json!("best-effort"), &json!(5)), "{u}");
    assert!(server.stop());
}

/// Number of threads, and of open files that are none of a client.
fn held(server: &Server) -> (usize, usize) {
    let of = |what: &str| std::fs::read_dir(format!("/proc/{}/{what}", server.pid())).unwrap().count();
    (of("task"), of("fd"))
}

#[test]
fn pools_that_come_and_go_leave_no_thread_and_no_descriptor() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(FILE, "8MiB"));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    let cache = "cores = 2\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\n";
    let mut start = (0, 0);
    for round in 0..21 {
        write(dir.path(), &sections("q", &file("q"), cache, "w"));
        assert_eq!(reload(&server)["failed"], json!([]), "{round}");
        let mut new = Client::once_served(&server.socket(), "w");
        new.write(0, &[round; 4096]).unwrap().unwrap();
        write(dir.path(), "");
        reload(&server);
        server.cli(&["pool", "remove", "q", "--disconnect"]);
        assert!(new.read(0, 512).is_err());
        assert_eq!(client.write(0, &[round; 512]).unwrap(), Ok(Vec::new()), "{round}");
        if round == 0 {
            // The node's own threads that come with the first use are there.
            until("what the removed pool had is gone", || {
                let now = held(&server);
                std::mem::replace(&mut start, now) == now && pools(&server).len() == 1
            });
        }
    }
    // Threads that run a change stay for a while.
    until("threads or descriptors are left", || {
        let now = held(&server);
        now.0 <= start.0 && now.1 <= start.1
    });
    assert!(server.stop());
}

/// Kills at every step of an addition and of a removal: each pool opens again, and has what was durable.
#[test]
fn a_kill_at_any_step_leaves_pools_that_open() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let removable = config(FILE, "8MiB").replacen("[control]", "[control]\ndrain = \"1s\"", 1);
    let mut server = Server::start(dir.path(), &removable);
    // Ended first, if the test fails: no process ends while the kernel waits for its flush.
    let failing = Failing::new(dir.path());
    let device = format!("{{ file = \"{}\", format = true }}", failing.device.path.display());
    let with = sections("q", &device, "", "w");
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    let rewrite = |more: &str| std::fs::write(dir.path().join("node.toml"), removable.clone() + more).unwrap();

    // A device that doesn't answer while it is made: nobody waits for it but who asked for the reload.
    failing.hold_flushes();
    rewrite(&with);
    server.signal(Signal::HUP);
    until("no flush of the new pool", || failing.is_holding());
    assert_eq!(pools(&server), [one("p", "ready")]);
    client.write(0, &[1; 512]).unwrap().unwrap();
    server.cli(&["volume", "create", "meanwhile", "--pool", "p", "--size", "1MiB", "--tenant", "t"]);
    // An order to end isn't kept waiting.
    server.signal(Signal::TERM);
    until("it doesn't end", || client.read(0, 512).is_err());
    until("its sockets are there", || !dir.path().join("control.sock").exists());
    failing.let_go();
    drop(server);
    await_unlocked(&failing.device.path);
    failing.not_held();

    // As after a kill: it is made anew.
    server = Server::start(dir.path(), &(removable.clone() + &with));
    let mut new = Client::once_served(&server.socket(), "w");
    new.write(0, &[7; 4096]).unwrap().unwrap();
    new.flush().unwrap().unwrap();
    let mut client = Client::connect(&server.socket(), "vol").unwrap();

    // A removal that waits for its last flush is bounded, goes on, and is told.
    rewrite("");
    reload(&server);
    failing.hold_flushes();
    let why = server.cli_fails(&["pool", "remove", "q", "--disconnect"]);
    assert!(why.contains("is removed and hasn't ended within 1 s (control.drain)"), "{why}");
    let why = server.cli_fails(&["pool", "remove", "q"]);
    assert!(why.contains("was removed ") && why.contains("its devices aren't closed yet"), "{why}");
    assert!(failing.is_holding());
    assert_eq!(pools(&server), [one("p", "ready")]);
    // One that is being removed isn't one that has ended.
    assert_eq!((problems(&server), server.control("GET", "/healthz").code), ("[]".into(), 200));
    client.write(0, &[2; 512]).unwrap().unwrap();
    rewrite(&with);
    let done = reload(&server);
    assert!(done["failed"][0].as_str().unwrap().contains("one of its name is still being removed"), "{done}");
    failing.let_go();
    until("it isn't closed", || has_event(&server, "pool `q` was removed: its devices are closed"));
    failing.not_held();
    assert_eq!(reload(&server)["failed"], json!([]));
    assert_eq!(Client::once_served(&server.socket(), "w").read(0, 4096).unwrap().unwrap(), [7; 4096]);

    // The same, cut by a kill.
    rewrite("");
    reload(&server);
    failing.hold_flushes();
    server.cli_fails(&["pool", "remove", "q", "--disconnect"]);
    assert!(failing.is_holding());
    server.signal(Signal::KILL);
    failing.let_go();
    server.kill();
    await_unlocked(&failing.device.path);
    server = Server::start(dir.path(), &(removable.clone() + &with));
    assert_eq!(Client::once_served(&server.socket(), "w").read(0, 4096).unwrap().unwrap(), [7; 4096]);
    assert_eq!(Client::connect(&server.socket(), "vol").unwrap().read(0, 512).unwrap().unwrap(), [2; 512]);
    assert!(server.stop());
}

/// Descriptors end at any step of an addition: the pool isn't served, and the node goes on.
#[test]
fn a_pool_without_descriptors_is_its_own_failure() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(FILE, "8MiB"));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    let pid = Pid::from_raw(server.pid());
    let limited = |most| {
        let limit = Rlimit { current: Some(most), maximum: getrlimit(Resource::Nofile).maximum };
        prlimit(pid, Resource::Nofile, limit).unwrap();
    };
    write(dir.path(), &sections("q", &file("q"), "", "w"));
    let (mut failures, mut last) = (0, String::new());
    // The order to reload takes one.
    for more in 1.. {
        let numbers = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
        let taken: BTreeSet<u64> = numbers.map(|n| n.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
        limited((0..).filter(|n| !taken.contains(n)).nth(more).unwrap());
        let socket = server.dir.join("control.sock");
        let said =
            run(env!("CARGO_BIN_EXE_plimsoll"), &["reload", "--json", "--control", socket.to_str().unwrap()]).stdout;
        limited(1024);
        client.write(0, &[more as u8; 512]).unwrap().unwrap();
        // The file can't be read either.
        let Ok(done) = serde_json::from_slice::<Value>(&said) else { continue };
        let Some(why) = done["failed"][0].as_str() else { break };
        assert!(why.contains("pool `q`"), "{more}: {done}");
        (failures, last) = (failures + 1, why.to_string());
        assert!(more < 60, "{done}");
    }
    assert!(failures > 2, "{failures}: {last}");
    Client::once_served(&server.socket(), "w");
    assert_eq!(pools(&server), [one("p", "ready"), one("q", "ready")]);
    assert!(server.stop());
}

/// Writes that a failed flush lost make no end in order, although the last flush succeeds.
#[test]
fn a_removal_after_a_failed_flush_is_refused_and_then_a_fault() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config(FILE, "8MiB"));
    let failing = Failing::new(dir.path());
    let device = format!("{{ file = \"{}\", format = true }}", failing.device.path.display());
    write(dir.path(), &sections("q", &device, "", "w"));
    assert_eq!(reload(&server)["failed"], json!([]));
    let mut client = Client::once_served(&server.socket(), "w");
    client.write(0, &[1; 4096]).unwrap().unwrap();
    failing.fail("flush", true);
    client.flush().unwrap().unwrap_err();
    failing.fail("flush", false);
    drop(client);
    write(dir.path(), "");
    reload(&server);
    let why = server.cli_fails(&["pool", "remove", "q"]);
    assert!(why.contains("had a failed flush") && why.contains("`--disconnect`"), "{why}");
    assert_eq!(pools(&server), [one("p", "ready"), one("q", "degraded")]);
    let why = server.cli_fails(&["pool", "remove", "q", "--disconnect"]);
    assert!(why.contains("was removed, and didn't end in order: a flush failed: "), "{why}");
    assert_eq!(pools(&server), [one("p", "ready")]);
    assert!(has_event(&server, "pool `q` was removed, and didn't end in order: a flush failed: "));
    assert!(!has_event(&server, "its devices are closed"));
    await_unlocked(&failing.device.path);
    assert!(server.stop());
}
