//! Alerts as an operator gets them: nodes, a Prometheus that scrapes them with the package's rules, and the faults themselves.

mod common;
use common::client::Client;
use common::mount::{Failing, may_mount};
use common::prometheus::Prometheus;
use common::shaped::{free_port, until};
use common::{Server, config};
use std::path::Path;

const DEVICE: &str = r#"{ file = "p.img", size = "64MiB" }"#;

/// A node with one pool `p` and one volume `vol`, and its control address.
struct Node {
    server: Server,
    address: String,
}

impl Node {
    fn start(dir: &Path, device: &str) -> Node {
        std::fs::create_dir(dir).unwrap();
        let port = free_port();
        let text = config(device, "16MiB").replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
        Node { server: Server::start(dir, &text), address: format!("127.0.0.1:{port}") }
    }

    fn client(&self, volume: &str) -> Client {
        Client::once_served(&self.server.socket(), volume)
    }

    /// Kills it, and runs `then` while it's away.
    fn killed(self, then: impl FnOnce()) -> Node {
        let dir = self.server.dir.clone();
        let text = std::fs::read_to_string(dir.join("node.toml")).unwrap();
        self.server.kill();
        then();
        Node { server: Server::start(&dir, &text), address: self.address }
    }
}

/// The package's rules, where nothing needs to hold for longer than a second.
fn impatient_rules(dir: &Path) -> std::path::PathBuf {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/plimsoll.rules.yml");
    let text = std::fs::read_to_string(rules).unwrap();
    let soon = |line: &str| match line.trim_start().strip_prefix("for: ") {
        Some(time) => line.replace(time, "1s"),
        None => line.to_string(),
    };
    let file = dir.join("rules.yml");
    std::fs::write(&file, text.lines().map(soon).collect::<Vec<_>>().join("\n")).unwrap();
    file
}

/// Each fault is the first one of its node, and each alert names the node and what has the fault.
#[test]
fn alerts_fire_at_the_first_fault() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let (full, mut killed) = (Node::start(&at("full"), DEVICE), Node::start(&at("killed"), DEVICE));
    let flushed = may_mount().then(|| {
        let failing = Failing::new(dir.path());
        let device = format!("{{ file = \"{}\", format = true }}", failing.device.path.display());
        (Node::start(&at("flushed"), &device), failing)
    });
    let mut addresses = vec![full.address.as_str(), killed.address.as_str()];
    addresses.extend(flushed.as_ref().map(|(node, _)| node.address.as_str()));
    let prometheus = Prometheus::start(dir.path(), &addresses, &impatient_rules(dir.path()));
    until("Prometheus scrapes all", || {
        let up = prometheus.ask("count(up == 1)");
        let scraped = up["data"]["result"][0]["value"][1].as_str().and_then(|n| n.parse().ok());
        scraped == Some(addresses.len())
    });
    assert_eq!(prometheus.firing(), Some(vec![]), "all is well");

    // Nothing was asked of the volume before: its counters are there all the same.
    let page = full.server.control("GET", "/metrics").body;
    for op in ["read", "write", "flush", "other"] {
        let sample = format!("plimsoll_failed_total{{tenant=\"t\",volume=\"vol\",op=\"{op}\"}} 0\n");
        assert!(page.contains(&sample), "{sample}: {page}");
    }
    for result in ["met", "missed", "waited"] {
        let sample = format!("plimsoll_deadlines_total{{tenant=\"t\",volume=\"vol\",result=\"{result}\"}} 0\n");
        assert!(page.contains(&sample), "{sample}: {page}");
    }
    full.server.cli(&["inject", "vol", "--errors"]);
    full.client("vol").read(0, 4096).unwrap().unwrap_err();
    let instance = ("instance", full.address.as_str());
    prometheus.await_alert("PlimsollFailing", &[instance, ("volume", "vol")]);
    // A volume that is made and fails between two scrapes.
    full.server.cli(&["volume", "create", "new", "--pool", "p", "--size", "4MiB", "--tenant", "t"]);
    full.server.cli(&["inject", "new", "--errors"]);
    full.client("new").write(0, &[1; 4096]).unwrap().unwrap_err();
    prometheus.await_alert("PlimsollFailing", &[instance, ("volume", "new")]);

    let free = full.server.control("GET", "/v1/status").expect(200)["pools"][0]["free_bytes"].to_string();
    full.server.cli(&["volume", "create", "rest", "--pool", "p", "--size", &free, "--tenant", "t"]);
    prometheus.await_alert("PlimsollPoolFull", &[instance, ("pool", "p")]);

    killed.client("vol").write(0, &[1; 4096]).unwrap().unwrap();
    let address = killed.address.clone();
    killed = killed.killed(|| prometheus.await_alert("PlimsollDown", &[("instance", &address)]));
    prometheus.await_alert("PlimsollUncleanStop", &[("instance", &address), ("pool", "p"), ("volume", "vol")]);

    if let Some((node, failing)) = &flushed {
        let mut client = node.client("vol");
        client.write(0, &[1; 4096]).unwrap().unwrap();
        failing.fail("flush", true);
        client.flush().unwrap().unwrap_err();
        failing.fail("flush", false);
        let instance = ("instance", node.address.as_str());
        prometheus.await_alert("PlimsollFlushFailed", &[instance, ("pool", "p")]);
        prometheus.await_alert("PlimsollPoolState", &[instance, ("pool", "p"), ("state", "degraded")]);
        prometheus.await_alert("PlimsollFailing", &[instance, ("volume", "vol")]);
    }
    // Of the others' faults nothing is said of the node that was killed.
    let all = prometheus.firing().unwrap();
    let of_killed = all.iter().filter(|l| l["instance"] == killed.address.as_str());
    let names: Vec<_> = of_killed.map(|l| l["alertname"].as_str().unwrap()).filter(|n| *n != "PlimsollDown").collect();
    assert_eq!(names, ["PlimsollUncleanStop"], "{all:?}");
    assert!(full.server.stop() && killed.server.stop());
}
