//! Tests of the operator's views and controls, over HTTP and the command line, against the built binary.

mod common;
use common::client::Client;
use common::http::{self, Answer};
use common::{Server, exposition, schema};
use plimsoll_nbd::wire::{Command as Nbd, CommandFlags};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const CONFIG: &str = r#"
[listen]
unix = "nbd.sock"
tcp = "127.0.0.1:0"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
token_file = "token"
trace_every = 1
[[pool]]
name = "main"
device = { file = "main.img", size = "256MiB" }
[[pool]]
name = "null"
device = { null = true, size = "64MiB" }
cores = 4
[[pool]]
name = "disk"
device = { file = "disk.img", size = "64MiB", model = "cheetah-15k5" }
[[tenant]]
name = "web"
class = "latency-critical"
objectives = [{ percentile = 50, within = "1ns" }, { percentile = 99.9, within = "1h" }]
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "vol"
pool = "main"
size = "16MiB"
tenant = "web"
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#;

struct Node {
    server: Server,
    socket: PathBuf,
    http: String,
    token: String,
}

impl Node {
    fn start(dir: &Path) -> Node {
        Node::start_as(dir, CONFIG)
    }

    fn start_as(dir: &Path, config: &str) -> Node {
        let server = Server::start(dir, config);
        let socket = dir.join("control.sock");
        let deadline = Instant::now() + Duration::from_secs(20);
        while http::unix(&socket, "GET", "/healthz", None).code != 200 {
            assert!(Instant::now() < deadline, "not healthy within 20 s");
        }
        let status = http::unix(&socket, "GET", "/v1/status", None).expect(200);
        let http = status["node"]["listens"]["control_http"].as_str().unwrap().to_string();
        let token = std::fs::read_to_string(dir.join("token")).unwrap().trim().to_string();
        Node { server, socket, http, token }
    }

    fn get(&self, path: &str) -> Value {
        self.call("GET", path, None).expect(200)
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        http::unix(&self.socket, method, path, body)
    }

    fn cli(&self, arguments: &[&str]) -> (i32, String, String) {
        cli(&[arguments, &["--control", self.socket.to_str().unwrap()]].concat())
    }

    fn connect(&self, export: &str) -> Client {
        Client::connect(&self.server.socket(), export).unwrap()
    }
}

fn cli(arguments: &[&str]) -> (i32, String, String) {
    let out =
        Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(arguments).env_remove("PLIMSOLL_CONTROL").output().unwrap();
    let text = |b: Vec<u8>| String::from_utf8(b).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

fn openapi(node: &Node) -> Value {
    node.get("/v1/openapi.json")
}

/// The answer, if it is what the description says for `method path`.
fn described(node: &Node, doc: &Value, method: &str, path: &str, template: &str, body: Option<&Value>) -> Answer {
    let answer = node.call(method, path, body);
    let responses = &doc["paths"][template][method.to_lowercase()]["responses"];
    let described = &responses[answer.code.to_string()];
    assert!(
        described.is_object(),
        "{method} {template} answers {}, which isn't described: {}",
        answer.code,
        answer.body
    );
    match &described["content"]["application/json"]["schema"] {
        Value::Null => {}
        schema => schema::check(doc, schema, &answer.json(), &format!("{method} {template}")),
    }
    answer
}

#[test]
fn volumes_and_tenants_live_and_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let doc = openapi(&node);
    let new = json!({"name": "a b/c", "pool": "main", "size_bytes": 1 << 20, "tenant": "t"});
    let bad_name = described(&node, &doc, "POST", "/v1/volumes", "/v1/volumes", Some(&new)).error(400);
    assert!(bad_name.contains("contains '/'"), "{bad_name}");
    let new = json!({"name": "a b", "pool": "main", "size_bytes": 1 << 20, "tenant": "t"});
    let post = |body: &Value| described(&node, &doc, "POST", "/v1/volumes", "/v1/volumes", Some(body));
    let made = post(&new).expect(201);
    assert_eq!((made["name"].as_str(), made["size_bytes"].as_u64()), (Some("a b"), Some(1 << 20)));
    post(&new).error(409);
    for (field, value, code) in [
        ("pool", json!("no such"), 404),
        ("tenant", json!("no such"), 404),
        ("size_bytes", json!(1000), 400),
        ("size_bytes", json!(1u64 << 40), 409),
        ("size_bytes", json!("1GiB"), 400),
        ("colour", json!("red"), 400),
    ] {
        let mut body = new.clone();
        body["name"] = json!("other");
        body[field] = value;
        post(&body).error(code);
    }
    let one = "/v1/volumes/{name}";
    let grow =
        |bytes: u64| described(&node, &doc, "PATCH", "/v1/volumes/a%20b", one, Some(&json!({"size_bytes": bytes})));
    assert_eq!(grow(2 << 20).expect(200)["size_bytes"], 2 << 20);
    grow(1 << 20).error(400);
    described(&node, &doc, "GET", "/v1/volumes/none", one, None).error(404);
    described(&node, &doc, "DELETE", "/v1/volumes/none", one, None).error(404);

    let tenant = "/v1/tenants/{name}";
    let put =
        |name: &str, spec: Value| described(&node, &doc, "PUT", &format!("/v1/tenants/{name}"), tenant, Some(&spec));
    let objectives = json!([{"percentile": 99.9, "within_us": 20_000}]);
    let now = put("gold", json!({"class": "latency-critical", "objectives": objectives, "jobs_max": 7})).expect(200);
    assert_eq!((now["permits"]["jobs_max"].as_u64(), now["enforced"].as_bool()), (Some(7), Some(true)));
    let patch = |name: &str, change: Value| {
        described(&node, &doc, "PATCH", &format!("/v1/tenants/{name}"), tenant, Some(&change)).expect(200)
    };
    assert_eq!(patch("gold", json!({"deadline_us": 30_000}))["permits"]["jobs_max"], 7, "what isn't named stays");
    patch("t", json!({"deadline_us": 40_000}));
    assert_eq!(patch("gold", json!({"busy": "error"}))["promise"]["deadline_us"], 30_000);
    assert_eq!(patch("gold", json!({"weight": 900}))["promise"]["busy"], "error");
    let busy_alone = json!({"class": "best-effort", "busy": "error"});
    put("late", busy_alone).error(400);
    put("gold", json!({"class": "latency-critical"})).error(400);
    put("gold", json!({"class": "royal"})).error(400);
    put("gold", json!({"class": "best-effort", "jobs_max": 0})).error(400);
    described(&node, &doc, "DELETE", "/v1/tenants/t", tenant, None).error(409);
    described(&node, &doc, "DELETE", "/v1/tenants/none", tenant, None).error(404);
    described(&node, &doc, "POST", "/v1/pools/none/recover", "/v1/pools/{name}/recover", None).error(404);
    // Nothing to recover: nothing is marked.
    let refused = described(&node, &doc, "POST", "/v1/pools/main/recover", "/v1/pools/{name}/recover", None).error(409);
    assert!(refused.contains("no flush has failed: there is nothing to recover"), "{refused}");
    assert_eq!(node.call("GET", "/v1/volumes/a%20b", None).json()["behind"], "no");

    node.connect("a b").write(4096, &[7; 4096]).unwrap().unwrap();
    assert!(node.server.stop());
    // Without the pool that the volumes are in: promises are kept in each.
    let main = CONFIG.find("[[pool]]").unwrap()..CONFIG.find("[[pool]]\nname = \"null\"").unwrap();
    let without = CONFIG.replace(&CONFIG[main], "").replace("pool = \"main\"", "pool = \"null\"");
    let node = Node::start_as(dir.path(), &without);
    assert_eq!(node.get("/v1/tenants/gold")["permits"]["jobs_max"], 7);
    assert!(node.server.stop());
    // What the configuration says of a volume that exists holds from the next start on.
    let ruled =
        CONFIG.replace("size = \"16MiB\"\ntenant = \"web\"", "size = \"16MiB\"\ntenant = \"t\"\nread_only = true");
    let node = Node::start_as(dir.path(), &ruled);
    let vol = node.get("/v1/volumes/vol");
    assert_eq!((vol["tenant"].as_str(), vol["read_only"].as_bool()), (Some("t"), Some(true)));
    assert!(node.server.stop());
    let moved = CONFIG.replace("name = \"vol\"\npool = \"main\"", "name = \"vol\"\npool = \"disk\"");
    let node = Node::start_as(dir.path(), &moved);
    let problems = node.get("/v1/status")["node"]["problems"].to_string();
    assert!(problems.contains("volume `vol` is in pool `main`"), "volumes don't move: {problems}");
    assert_eq!(node.get("/v1/volumes/vol")["pool"], "main");
    assert!(node.server.stop());
    let node = Node::start(dir.path());
    assert_eq!(node.get("/v1/volumes/a%20b")["size_bytes"], 2 << 20, "kept over a restart");
    let gold = node.get("/v1/tenants/gold");
    assert_eq!(
        (gold["objectives"][0]["within_us"].as_u64(), gold["permits"]["jobs_max"].as_u64()),
        (Some(20_000), Some(7))
    );
    let deadline =
        |node: &Node, name: &str| node.get(&format!("/v1/tenants/{name}"))["promise"]["deadline_us"].as_u64();
    assert_eq!((deadline(&node, "gold"), deadline(&node, "t")), (Some(30_000), Some(40_000)), "kept as well");
    let promise = json!({"deadline_us": 30_000, "from": "tenant", "busy": "error"});
    assert_eq!(gold["promise"], promise);
    assert_eq!(node.get("/v1/volumes/a%20b")["promise"]["from"], "tenant");
    assert_eq!(node.connect("a b").read(4096, 4096).unwrap().unwrap(), [7; 4096]);
    assert_eq!(described(&node, &doc, "DELETE", "/v1/volumes/a%20b", one, None).code, 204);
    assert_eq!(described(&node, &doc, "DELETE", "/v1/tenants/gold", tenant, None).code, 204);
    assert_eq!(node.call("GET", "/v1/volumes/a%20b", None).code, 404);
    assert!(node.server.stop());
    // Another value in the configuration is newer than the live change.
    let configured = CONFIG.replace("name = \"t\"\n", "name = \"t\"\ndeadline = \"50ms\"\n");
    let node = Node::start_as(dir.path(), &configured);
    assert_eq!(deadline(&node, "t"), Some(50_000));
    assert!(node.server.stop());
}

#[test]
fn every_answer_is_as_described_and_nothing_else_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let doc = openapi(&node);
    let mut client = node.connect("vol?tenant=t&deadline=1h");
    client.write(0, &[1; 8192]).unwrap().unwrap();
    client.read(0, 8192).unwrap().unwrap();
    for path in ["/healthz", "/v1/status", "/v1/traces", "/v1/volumes", "/v1/tenants", "/v1/connections", "/v1/events"]
    {
        described(&node, &doc, "GET", path, path, None).expect(200);
    }
    let history = |kind: &str, name: &str, code: u16| {
        let template = format!("/v1/{kind}/{{name}}/history");
        let answer = described(&node, &doc, "GET", &format!("/v1/{kind}/{name}/history"), &template, None);
        assert_eq!(answer.code, code);
        answer.json()
    };
    let of_volume = history("volumes", "vol", 200);
    assert_eq!(["seconds", "minutes", "ten_minutes"].map(|of| of_volume[of].as_array().unwrap().len()), [60, 60, 144]);
    assert_eq!(of_volume["ten_minutes"][143]["done"], 2);
    assert_eq!(
        (of_volume["minutes"][59]["done"].as_u64(), of_volume["minutes"][59]["kept"].as_u64()),
        (Some(2), Some(1))
    );
    assert_eq!(history("tenants", "t", 200)["minutes"][59]["done"], 2);
    history("tenants", "none", 404);
    history("volumes", "none", 404);
    described(&node, &doc, "DELETE", "/v1/connections", "/v1/connections", None).error(400);
    described(&node, &doc, "DELETE", "/v1/connections?volume=none", "/v1/connections", None).error(404);
    assert_eq!(
        described(&node, &doc, "DELETE", "/v1/connections?peer=nobody", "/v1/connections", None).json()["closed"],
        0
    );
    assert!(node.call("GET", "/v1/connections?colour=red", None).error(400).contains("colour"));
    assert!(node.call("GET", "/v1/connections?volume=none", None).error(404).contains("no volume `none`"));
    assert_eq!(node.get("/v1/connections?volume=vol")["connections"][0]["tenant"], "t");
    let change = json!({"deadline_us": 7_000_000_000_000u64});
    assert!(
        described(&node, &doc, "PATCH", "/v1/tenants/t", "/v1/tenants/{name}", Some(&change))
            .error(400)
            .contains("hour")
    );
    described(&node, &doc, "PATCH", "/v1/tenants/none", "/v1/tenants/{name}", Some(&json!({}))).error(404);
    for (path, operations) in doc["paths"].as_object().unwrap() {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            if (method, path.as_str()) == ("POST", "/v1/drain") {
                continue; // it ends the node; tests/service.rs has it
            }
            let there = operations.get(method.to_lowercase()).is_some();
            let code = node.call(method, &path.replace("{name}", "nobody"), None).code;
            assert_eq!(code != 405, there, "{method} {path} answers {code}");
        }
    }
    assert!(node.call("GET", "/v2", None).error(404).contains("nothing here"));
    assert!(node.call("PUT", "/v1/volumes", None).error(405).contains("PUT"));
    let page = node.call("GET", "/", None);
    assert!(page.code == 200 && page.body.contains("<title>Plimsoll"));
    for outside in ["http://", "https://", "src=", "@import"] {
        let rest = page.body.replace("http://www.w3.org/2000/svg", "");
        assert!(!rest.contains(outside), "the page needs something from outside: {outside}");
    }
}

#[test]
fn reading_is_free_and_changing_takes_the_token() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    for path in ["/", "/healthz", "/metrics", "/v1/status", "/v1/volumes", "/v1/tenants", "/v1/traces"] {
        assert_eq!(http::tcp(&node.http, "GET", path, "", None).code, 200, "{path}");
    }
    let spec = json!({"class": "best-effort"});
    let put = |headers: &str| http::tcp(&node.http, "PUT", "/v1/tenants/new", headers, Some(&spec));
    assert!(put("").error(401).contains("takes the token"));
    let half = &node.token[..32];
    for wrong in [half, &"0".repeat(64)] {
        assert!(put(&format!("Authorization: Bearer {wrong}\r\n")).error(401).contains("isn't the token"), "{wrong}");
    }
    put(&format!("Authorization: Basic {}\r\n", node.token)).error(401);
    assert_eq!(node.call("GET", "/v1/tenants/new", None).code, 404, "nothing of that did anything");
    put(&format!("Authorization: Bearer {}\r\n", node.token)).expect(200);
    assert_eq!(node.call("GET", "/v1/tenants/new", None).code, 200);
    for (method, path) in [("POST", "/v1/volumes"), ("DELETE", "/v1/volumes/vol"), ("POST", "/v1/pools/main/recover")] {
        assert_eq!(http::tcp(&node.http, method, path, "", None).code, 401, "{method} {path}");
    }
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&node.socket).unwrap());
    assert_eq!(mode & 0o777, 0o600);
}

/// A refused change has not grown the volume: growth can't be undone.
#[test]
fn a_change_that_is_refused_has_not_grown_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let size = node.get("/v1/volumes/vol")["size_bytes"].clone();
    let refused =
        [json!({"rename": "a/b"}), json!({"deadline_us": 1u64 << 60}), json!({"deadline_us": 0, "busy": "wait"})];
    for mut change in refused {
        change["size_bytes"] = json!(32 << 20);
        node.call("PATCH", "/v1/volumes/vol", Some(&change)).error(400);
        assert_eq!(node.get("/v1/volumes/vol")["size_bytes"], size, "{change}");
    }
    node.call("PATCH", "/v1/volumes/vol", Some(&json!({"size_bytes": 32 << 20}))).expect(200);
    assert_eq!(node.get("/v1/volumes/vol")["size_bytes"], 32 << 20);
}

/// A change of several keys that is refused for one of them has changed none, whichever it is.
#[test]
fn a_change_of_several_keys_that_is_refused_has_changed_none() {
    let dir = tempfile::tempdir().unwrap();
    let cache = "[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\n[[pool]]\nname = \"null\"";
    let node = Node::start_as(dir.path(), &CONFIG.replacen("[[pool]]\nname = \"null\"", cache, 1));
    for (name, pool) in [("free", "main"), ("fleeting", "null")] {
        let new = json!({"name": name, "pool": pool, "size_bytes": 4 << 20, "tenant": "t"});
        node.call("POST", "/v1/volumes", Some(&new)).expect(201);
    }
    let mode = || {
        let cache = node.get("/v1/pools/main/cache");
        let volumes = cache["volumes"].as_array().unwrap();
        volumes.iter().find(|v| v["name"] == "free").unwrap()["mode"].clone()
    };
    let look = |name: &str| {
        let v = node.get(&format!("/v1/volumes/{name}"));
        let of = ["name", "size_bytes", "promise", "behind"].map(|key| v[key].clone());
        (of, mode())
    };
    let huge = 1u64 << 40;
    let refused = |volume: &str, change: Value, code: u16| {
        let before = look(volume);
        let why = node.call("PATCH", &format!("/v1/volumes/{volume}"), Some(&change)).error(code);
        assert!(!why.contains("were changed"), "{change}: {why}");
        assert_eq!(look(volume), before, "{change}: {why}");
    };
    for (change, code) in [
        (json!({"deadline_us": 5000, "size_bytes": huge}), 409),
        (json!({"rename": "new", "size_bytes": huge}), 409),
        (json!({"rename": "new", "size_bytes": 1 << 20}), 400),
        (json!({"cache": "off", "size_bytes": 5_000_001}), 400),
        (json!({"replica": {"catch-up": {"attempt": 1}}, "size_bytes": huge}), 409),
        (json!({"replica": {"caught-up": {"attempt": 1, "add": 0}}, "deadline_us": 5000}), 409),
        (json!({"rename": "new", "deadline_us": 1u64 << 60}), 400),
        (json!({"rename": "new", "busy": "error"}), 400),
        (json!({"rename": "vol", "deadline_us": 5000, "cache": "off"}), 409),
        (json!({"rename": "a/b", "cache": "off"}), 400),
    ] {
        refused("free", change, code);
    }
    refused("fleeting", json!({"deadline_us": 5000, "size_bytes": 8 << 20}), 400);
    refused("fleeting", json!({"deadline_us": 5000, "cache": "off"}), 400);
    let client = node.connect("free");
    refused("free", json!({"rename": "new", "cache": "off", "deadline_us": 5000, "size_bytes": 8 << 20}), 409);
    drop(client);
    // All that is possible is done at once. The client's end takes a moment.
    let all = json!({"rename": "new", "cache": "off", "deadline_us": 5000, "busy": "error", "size_bytes": 8 << 20});
    let end = Instant::now() + Duration::from_secs(20);
    while node.get("/v1/volumes/free")["connections"] != 0 {
        assert!(Instant::now() < end, "the client is still connected");
    }
    let changed = node.call("PATCH", "/v1/volumes/free", Some(&all)).expect(200);
    assert_eq!((&changed["name"], &changed["size_bytes"]), (&json!("new"), &json!(8 << 20)));
    assert_eq!(changed["promise"], json!({"deadline_us": 5000, "from": "volume", "busy": "error"}));
    let modes = node.get("/v1/pools/main/cache")["volumes"].clone();
    assert!(modes.as_array().unwrap().iter().any(|v| v["name"] == "new" && v["mode"] == "off"), "{modes}");
    assert!(node.server.stop());
}

#[test]
fn connected_clients_outlive_growth_and_end_with_their_volume() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let mut client = node.connect("vol");
    client.write(0, &[5; 4096]).unwrap().unwrap();
    assert_eq!(node.get("/v1/volumes/vol")["connections"], 1);
    node.call("PATCH", "/v1/volumes/vol", Some(&json!({"size_bytes": 32 << 20}))).expect(200);
    assert_eq!(client.read(0, 4096).unwrap().unwrap(), [5; 4096], "goes on");
    let mut again = node.connect("vol");
    again.write((32 << 20) - 4096, &[6; 4096]).unwrap().unwrap();

    // Requests under way when the volume goes end in some way, then the connection does.
    for _ in 0..64 {
        client.send(Nbd::Read, CommandFlags::EMPTY, 0, 1 << 20, &[]).unwrap();
    }
    for query in ["", "?declared=true", "?disconnect=true"] {
        assert_eq!(node.call("DELETE", &format!("/v1/volumes/vol{query}"), None).code, 409, "{query}");
    }
    assert_eq!(again.read(0, 512).unwrap().unwrap(), [5; 512], "nobody was let go");
    assert_eq!(node.call("DELETE", "/v1/volumes/vol?disconnect=true&declared=true", None).code, 204);
    let ended = std::iter::from_fn(|| client.receive().ok()).count();
    assert!(ended <= 64, "{ended}");
    assert!(again.read(0, 512).is_err(), "let go");
    assert!(Client::connect(&node.server.socket(), "vol").is_err());
    let status = node.get("/v1/status");
    assert_eq!(status["pools"][0]["deleting"], json!([]));
    assert_eq!(exports(&node), 0.0, "its counters went with it");

    let new = json!({"name": "vol", "pool": "main", "size_bytes": 32 << 20, "tenant": "web"});
    node.call("POST", "/v1/volumes", Some(&new)).expect(201);
    assert_eq!(node.connect("vol").read(0, 4096).unwrap().unwrap(), [0; 4096], "its space was zeroed");
    assert!(node.server.stop());
}

/// Pairs of a tenant and a volume that pool `main` counts.
fn exports(node: &Node) -> f64 {
    let families = exposition::parse(&node.call("GET", "/metrics", None).body);
    let of_main = |s: &&(String, exposition::Labels, f64)| s.1[0].1 == "main";
    families["plimsoll_pool_exports"].samples.iter().find(of_main).unwrap().2
}

#[test]
fn a_removed_tenants_counters_go_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    for _ in 0..3 {
        node.call("PUT", "/v1/tenants/guest", Some(&json!({"class": "best-effort"}))).expect(200);
        let mut client = node.connect("vol?tenant=guest");
        client.read(0, 512).unwrap().unwrap();
        assert_eq!(exports(&node), 1.0);
        drop(client);
        let deadline = Instant::now() + Duration::from_secs(20);
        while node.get("/v1/volumes/vol")["connections"] != 0 {
            assert!(Instant::now() < deadline, "the connection stays");
        }
        assert_eq!(node.call("DELETE", "/v1/tenants/guest", None).code, 204);
        assert_eq!(exports(&node), 0.0);
    }
}

#[test]
fn metrics_count_what_happened_and_are_all_documented() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    // A name that must be escaped.
    let new = json!({"name": "a\"\\b", "pool": "main", "size_bytes": 1 << 20, "tenant": "web"});
    node.call("POST", "/v1/volumes", Some(&new)).expect(201);
    let mut client = node.connect("a\"\\b?deadline=1h");
    for i in 0..10 {
        client.write(i * 4096, &[1; 4096]).unwrap().unwrap();
    }
    for _ in 0..3 {
        client.read(0, 8192).unwrap().unwrap();
    }
    client.flush().unwrap().unwrap();
    let families = exposition::parse(&node.call("GET", "/metrics", None).body);
    let value = |family: &str, labels: &[(&str, &str)]| {
        let has = |all: &[(String, String)]| labels.iter().all(|(l, v)| all.iter().any(|(k, w)| k == l && w == v));
        let found: Vec<f64> = families[family].samples.iter().filter(|(_, all, _)| has(all)).map(|s| s.2).collect();
        assert_eq!(found.len(), 1, "{family} {labels:?}");
        found[0]
    };
    let me = [("tenant", "web"), ("volume", "a\"\\b")];
    for (op, requests, bytes) in
        [("read", 3.0, 24576.0), ("write", 10.0, 40960.0), ("flush", 1.0, 0.0), ("other", 0.0, 0.0)]
    {
        let labels = [me[0], me[1], ("op", op)];
        assert_eq!(value("plimsoll_requests_total", &labels), requests, "{op}");
        assert_eq!(value("plimsoll_bytes_total", &labels), bytes, "{op}");
        let inf = [labels[0], labels[1], labels[2], ("le", "+Inf")];
        assert_eq!(value("plimsoll_response_seconds", &inf), requests, "{op}");
    }
    assert_eq!(value("plimsoll_deadlines_total", &[me[0], me[1], ("result", "met")]), 3.0);
    assert_eq!(value("plimsoll_busy_total", &[me[0], me[1], ("how", "refused")]), 0.0);
    assert_eq!(value("plimsoll_connections", &me), 1.0);
    assert_eq!(value("plimsoll_slo_kept", &[("percentile", "50")]), 0.0, "1 ns can't be kept");
    assert_eq!(value("plimsoll_slo_kept", &[("percentile", "99.9")]), 1.0);
    assert_eq!(value("plimsoll_slo_samples", &[("percentile", "99.9")]), 14.0);
    assert_eq!(value("plimsoll_volume_state", &[me[1], ("state", "ready")]), 1.0);
    let web = node.get("/v1/tenants/web");
    assert_eq!((web["kept"].as_bool(), web["objectives"][1]["kept"].as_bool()), (Some(false), Some(true)));

    let documented: Vec<(String, String)> = include_str!("../../../docs/reference/metrics.md")
        .lines()
        .filter_map(|l| l.strip_prefix("| `"))
        // The shaper's own, which `plimsoll shape metrics` says.
        .filter(|l| !l.starts_with("plimsoll_shape_"))
        .map(|l| {
            let mut cells = l.split(" | ");
            (cells.next().unwrap().trim_end_matches('`').to_string(), cells.next().unwrap().to_string())
        })
        .collect();
    let mut documented_sorted = documented.clone();
    documented_sorted.sort();
    let said: Vec<(String, String)> = families.into_iter().map(|(name, f)| (name, f.kind)).collect();
    assert_eq!(documented_sorted, said, "docs/reference/metrics.md");
}

#[test]
fn traces_tell_forecast_decision_and_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let mut client = node.connect("vol?deadline=1h&tenant=t");
    client.write(8192, &[1; 4096]).unwrap().unwrap();
    let mut hurried = node.connect("vol?deadline=1ns&busy=error");
    // Until the forecast knows better it takes everything in.
    let refused = (0..1000).any(|_| {
        let ended = hurried.read(1 << 20, 1 << 20).unwrap();
        ended.is_err_and(|why| why.contains("busy"))
    });
    let traces = node.get("/v1/traces");
    let all = traces.as_array().unwrap();
    let of = |op: &str| all.iter().find(|t| t["op"] == op).unwrap_or_else(|| panic!("no {op} in {traces}"));
    let write = of("write");
    assert_eq!(write["volume"], "vol");
    assert_eq!(
        (write["tenant"].as_str(), write["offset"].as_u64(), write["len_bytes"].as_u64()),
        (Some("t"), Some(8192), Some(4096))
    );
    assert_eq!((write["decision"].as_str(), write["outcome"].as_str()), (Some("accepted"), Some("done")));
    assert_eq!(write["deadline_us"], 3_600_000_000u64);
    assert!(write["dispatched_us"].as_u64() <= write["ended_us"].as_u64());
    let layers: Vec<&str> =
        write["forecast_parts"].as_array().unwrap().iter().map(|p| p["layer"].as_str().unwrap()).collect();
    assert_eq!(layers, ["admission", "front", "map", "noop"]);
    assert_eq!(refused, all.iter().any(|t| t["decision"] == "refused" && t["outcome"] == "busy"));
}

#[test]
fn the_command_line_does_it_all() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let ok = |arguments: &[&str]| {
        let (code, out, err) = node.cli(arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        out
    };
    let json = |arguments: &[&str]| -> Value { serde_json::from_str(&ok(&[arguments, &["--json"]].concat())).unwrap() };
    let gold =
        ["tenant", "set", "gold", "--class", "latency-critical", "--objective", "99.9=20ms", "--bytes-max", "1MiB"];
    let set = json(&gold);
    assert_eq!(
        (set["objectives"][0]["within_us"].as_u64(), set["permits"]["bytes_max"].as_u64()),
        (Some(20_000), Some(1 << 20))
    );
    let made = json(&["volume", "create", "x y", "--pool", "main", "--size", "4MiB", "--tenant", "gold"]);
    assert_eq!(made["size_bytes"], 4 << 20);
    assert!(ok(&["volume", "grow", "x y", "--size", "8MiB"]).contains("8.0 MiB (8388608 bytes)"));
    assert!(ok(&["volume", "list"]).contains("x y"));
    let (code, out, err) = cli(&["volume", "deadline", "x y", "20ms", "--control", &node.http, "--json"]);
    let shown: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{code}: {err}"));
    assert_eq!(
        shown["promise"],
        json!({"deadline_us": 20_000, "from": "volume", "busy": "wait"}),
        "over TCP without naming a token"
    );
    assert!(ok(&["volume", "show", "x y"]).contains("reads within 20.0ms: the volume's deadline"));
    assert!(ok(&["volume", "list"]).contains("20.0ms (volume)"));
    // What isn't named stays.
    assert_eq!(json(&["tenant", "set", "gold", "--deadline", "30ms", "--busy", "error"])["promise"]["from"], "tenant");
    let kept = json(&["tenant", "set", "gold", "--jobs-max", "9"]);
    assert_eq!(
        (kept["objectives"][0]["within_us"].as_u64(), kept["permits"]["bytes_max"].as_u64()),
        (Some(20_000), Some(1 << 20))
    );
    assert_eq!(
        (kept["permits"]["jobs_max"].as_u64(), kept["promise"]["deadline_us"].as_u64()),
        (Some(9), Some(30_000))
    );
    assert!(ok(&["tenant", "show", "gold"]).contains("reads within 30.0ms, unless the volume"));
    assert!(
        ok(&["volume", "deadline", "x y", "none"])
            .contains("reads within 30.0ms: tenant gold's deadline; late reads fail at once")
    );
    assert_eq!(json(&["tenant", "set", "gold", "--deadline", "none"])["promise"], Value::Null);
    let mut held = node.connect("x y?deadline=5ms");
    held.read(0, 512).unwrap().unwrap();
    let connections = json(&["connections", "--volume", "x y"]);
    assert_eq!(
        (connections["total"].as_u64(), connections["connections"][0]["in_flight"].as_u64()),
        (Some(1), Some(0))
    );
    assert_eq!(
        connections["connections"][0]["promise"],
        json!({"deadline_us": 5000, "from": "connection", "busy": "wait"})
    );
    assert!(ok(&["connections", "--tenant", "gold"]).contains("5.00ms (connection)"));
    drop(held);
    assert_eq!(json(&["volume", "show", "x y"])["tenant"], "gold");
    assert!(ok(&["tenant", "list"]).contains("p99.9 ≤ 20.0ms"));
    assert!(ok(&["status"]).contains("healthy"));
    assert_eq!(json(&["status"])["volumes"].as_array().unwrap().len(), 2);
    let top = json(&["top", "--once"]);
    assert_eq!(top["tenants"][0]["name"], "gold");
    assert!(top["tenants"][0]["iops"].is_number());
    assert!(ok(&["top", "--once"]).contains("OWN I/O"));
    ok(&["volume", "delete", "x y", "--yes"]);
    ok(&["tenant", "remove", "gold"]);

    let fails = |arguments: &[&str], code: i32, part: &str| {
        let (is, out, err) = node.cli(arguments);
        assert_eq!((is, out.as_str()), (code, ""), "{arguments:?}: {err}");
        assert!(err.contains(part), "{arguments:?}: {err}");
    };
    fails(&["volume", "show", "x y"], 1, "there is no volume `x y`");
    fails(&["volume", "grow", "zzzzzz", "--size", "1GiB"], 1, "there is no volume `zzzzzz`; there are: ");
    fails(&["volume", "create", "n", "--pool", "p", "--size", "1MiB", "--tenant", "t"], 1, "there are: main, null");
    fails(&["volume", "create", "n", "--pool", "main", "--size", "1 apple", "--tenant", "t"], 2, "is not a size");
    fails(&["tenant", "set", "t", "--class", "royal"], 2, "best-effort");
    fails(&["pool", "recover", "p"], 1, "there is no pool `p`");
    fails(&["pool", "recover", "main"], 1, "pool `main`: no flush has failed: there is nothing to recover");
    fails(&["volume", "resync", "n"], 2, "for a volume without replicas, check its data, then say --trust");
    fails(&["top", "--json"], 1, "top --once --json");

    let url = format!("http://{}", node.http);
    let over_tcp = |more: &[&str]| cli(&[&["tenant", "remove", "none", "--control", &url], more].concat());
    assert!(over_tcp(&[]).2.contains("there is no tenant `none`"), "through the node's control socket");
    let token = dir.path().join("token");
    assert!(over_tcp(&["--token-file", token.to_str().unwrap()]).2.contains("there is no tenant `none`"));
    let (code, _, err) = cli(&["status", "--control", "/nowhere/control.sock"]);
    assert!(code == 1 && err.contains("/nowhere/control.sock: ") && err.contains("is the node running"), "{err}");
}

#[test]
fn what_is_in_use_is_told_at_start() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start(dir.path());
    let other = tempfile::tempdir().unwrap();
    for (from, to, part) in [
        ("http = \"127.0.0.1:0\"", format!("http = \"{}\"", node.http), "control.http 127.0.0.1:"),
        ("unix = \"control.sock\"", format!("unix = \"{}\"", node.socket.display()), "control.unix "),
    ] {
        let error = Server::try_start(other.path(), &CONFIG.replace(from, &to)).err().expect("it's in use");
        assert!(error.contains(part) && error.contains("another process"), "{error}");
        assert!(!other.path().join("main.img").exists(), "before any device is made");
    }
    assert_eq!(node.call("GET", "/healthz", None).code, 200, "the first goes on");
}
