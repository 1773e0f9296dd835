//! Alerts as an operator gets them: nodes, a Prometheus that scrapes them with the package's rules, and the faults themselves.

mod common;
use common::client::Client;
use common::mount::{Failing, Tmpfs, may_mount};
use common::prometheus::Prometheus;
use common::shaped::{free_port, until};
use common::{Server, config};
use plimsoll_nbd::wire::{Command as Request, CommandFlags};
use std::path::Path;

const DEVICE: &str = r#"{ file = "p.img", size = "64MiB" }"#;

/// A node with one pool `p` and one volume `vol`, and its control address.
struct Node {
    server: Server,
    address: String,
}

impl Node {
    fn start(dir: &Path, device: &str) -> Node {
        Node::start_as(dir, &config(device, "16MiB"))
    }

    fn start_as(dir: &Path, config: &str) -> Node {
        std::fs::create_dir(dir).unwrap();
        Node::start_in(dir, config)
    }

    /// The same in a folder that is there.
    fn start_in(dir: &Path, config: &str) -> Node {
        let port = free_port();
        let text = config.replace("127.0.0.1:0", &format!("127.0.0.1:{port}"));
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

/// The package's rules, where nothing needs to hold for longer than a second, and a quarter of an hour is a quarter of a minute.
fn impatient_rules(dir: &Path) -> std::path::PathBuf {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/plimsoll.rules.yml");
    let text = std::fs::read_to_string(rules).unwrap();
    let soon = |line: &str| match line.trim_start().strip_prefix("for: ") {
        Some(time) => line.replace(time, "1s"),
        None => line.to_string(),
    };
    let file = dir.join("rules.yml");
    let text = text.lines().map(soon).collect::<Vec<_>>().join("\n");
    std::fs::write(&file, text.replace("[15m]", "[15s]")).unwrap();
    file
}

/// Waits until all of these are scraped.
fn await_scrapes(prometheus: &Prometheus, addresses: &[&str]) {
    until("Prometheus scrapes all", || {
        let up = prometheus.ask("count(up == 1)");
        let scraped = up["data"]["result"][0]["value"][1].as_str().and_then(|n| n.parse().ok());
        scraped == Some(addresses.len())
    });
    assert_eq!(prometheus.firing(), Some(vec![]), "all is well");
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
        // In this order: the first is dropped first, and no process ends while the kernel waits for its flush.
        let node = Node::start(&at("flushed"), &device);
        (failing, node)
    });
    let mut addresses = vec![full.address.as_str(), killed.address.as_str()];
    addresses.extend(flushed.as_ref().map(|(_, node)| node.address.as_str()));
    let prometheus = Prometheus::start(dir.path(), &addresses, &impatient_rules(dir.path()));
    await_scrapes(&prometheus, &addresses);
    // Now, as it is stuck in half a minute only.
    let held = flushed.as_ref().map(|(failing, node)| {
        let mut client = node.client("vol");
        client.write(0, &[1; 4096]).unwrap().unwrap();
        failing.hold_flushes();
        client.send(Request::Flush, CommandFlags::EMPTY, 0, 0, &[]).unwrap();
        client
    });

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

    if let (Some((failing, node)), Some(mut client)) = (&flushed, held) {
        let stuck = [("instance", node.address.as_str()), ("pool", "p"), ("at", "device")];
        prometheus.await_alert("PlimsollStuck", &stuck);
        failing.let_go();
        client.receive().unwrap().1.unwrap();
        failing.fail("flush", true);
        client.flush().unwrap().unwrap_err();
        failing.fail("flush", false);
        let instance = ("instance", node.address.as_str());
        prometheus.await_alert("PlimsollFlushFailed", &[instance, ("pool", "p")]);
        prometheus.await_alert("PlimsollPoolState", &[instance, ("pool", "p"), ("state", "degraded")]);
        prometheus.await_alert("PlimsollFailing", &[instance, ("volume", "vol")]);
        let behind = [instance, ("pool", "p"), ("volume", "vol"), ("reason", "writer lost")];
        prometheus.await_alert("PlimsollReplicaBehind", &behind);
    }
    // Of the others' faults nothing is said of the node that was killed.
    let all = prometheus.firing().unwrap();
    let of_killed = all.iter().filter(|l| l["instance"] == killed.address.as_str());
    let names: Vec<_> = of_killed.map(|l| l["alertname"].as_str().unwrap()).filter(|n| *n != "PlimsollDown").collect();
    assert_eq!(names, ["PlimsollUncleanStop"], "{all:?}");
    assert!(full.server.stop() && killed.server.stop());
}

/// A device of nothing is later than a nanosecond, and a volume of one request a second refuses the second one. No room is left for
/// forecasts' errors: misses are wanted.
const PROMISES: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { null = true, size = "64MiB" }
miss_percent = 0
throttle = true
[[tenant]]
name = "critical"
class = "latency-critical"
objectives = [{ percentile = 99, within = "1ns" }]
[[tenant]]
name = "hurried"
class = "best-effort"
deadline = "1ns"
[[tenant]]
name = "t"
class = "best-effort"
[[volume]]
name = "broken"
pool = "p"
size = "1MiB"
tenant = "critical"
[[volume]]
name = "missed"
pool = "p"
size = "1MiB"
tenant = "hurried"
[[volume]]
name = "refused"
pool = "p"
size = "1MiB"
tenant = "t"
deadline = "1ms"
busy = "error"
throttle = { iops = 1 }
[[volume]]
name = "limited"
pool = "p"
size = "1MiB"
tenant = "t"
throttle = { iops = 10, iops_burst = 1 }
[[grant]]
peer = "local"
volumes = ["*"]
tenants = ["*"]
"#;

/// The same of promises, and of a pool that a reload can't open.
#[test]
fn alerts_of_promises_fire_with_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let node = Node::start_as(&dir.path().join("node"), PROMISES);
    let prometheus = Prometheus::start(dir.path(), &[&node.address], &impatient_rules(dir.path()));
    await_scrapes(&prometheus, &[&node.address]);
    let instance = ("instance", node.address.as_str());

    let reads = |volume: &str, n: usize| {
        let mut client = node.client(volume);
        (0..n).filter(|_| client.read(0, 512).unwrap().is_ok()).count()
    };
    assert_eq!(reads("missed", 100), 100);
    prometheus.await_alert("PlimsollDeadlinesMissed", &[instance, ("tenant", "hurried"), ("volume", "missed")]);
    assert!(reads("refused", 50) < 25, "they wait longer than their deadline");
    prometheus.await_alert("PlimsollBusy", &[instance, ("tenant", "t"), ("volume", "refused")]);
    assert_eq!(reads("limited", 60), 60);
    prometheus.await_alert("PlimsollVolumeAtLimit", &[instance, ("pool", "p"), ("volume", "limited")]);
    assert_eq!(reads("broken", 1100), 1100);
    prometheus.await_alert("PlimsollPromiseBroken", &[instance, ("tenant", "critical")]);

    let file = node.server.dir.join("node.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + "[[pool]]\nname = \"q\"\ndevice = { file = \"none/q.img\", size = \"64MiB\" }\n")
        .unwrap();
    assert!(node.server.cli_fails(&["reload"]).contains("1 changes could not be carried out"));
    prometheus.await_alert("PlimsollPoolState", &[instance, ("pool", "q"), ("state", "failed")]);
    assert!(node.server.stop());
}

/// A pool whose file is on a small file system of its own, with a cache that writes back.
const SMALL: &str = "{ file = \"small/p.img\", size = \"256MiB\" }\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"";

/// A MiB that is no other one, and that doesn't compress.
fn noise(n: u64) -> Vec<u8> {
    let mut rng = plimsoll_base::Rng::new(n, "noise");
    (0..(1 << 17)).flat_map(|_| rng.below(u64::MAX).to_le_bytes()).collect()
}

/// The same of a cache whose device hangs, fails and is given up; of a file system that is full below a pool; and of a device whose times
/// nobody can forecast.
#[test]
fn alerts_of_caches_and_devices_fire() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // Devices first: they are dropped last, and no process ends while the kernel waits for them.
    for name in ["fast", "uneven", "full"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let (fast, uneven_device) = (Failing::new(&at("fast")), Failing::new(&at("uneven")));
    let _small = Tmpfs::at(at("full").join("small"), "48m");
    let on = |device: &Failing| device.device.path.display().to_string();
    let cached_config = config(&format!("{DEVICE}\n[pool.cache]\nfile = \"{}\"\nmode = \"back\"", on(&fast)), "16MiB");
    let cached = Node::start_in(&at("fast"), &cached_config);
    let uneven_config = config(&format!("{{ file = \"{}\", format = true }}", on(&uneven_device)), "16MiB");
    let uneven = Node::start_in(&at("uneven"), &uneven_config);
    let full = Node::start_in(&at("full"), &config(SMALL, "160MiB"));
    let addresses = [&cached, &uneven, &full].map(|n| n.address.clone());
    let addresses = addresses.each_ref().map(String::as_str);
    let prometheus = Prometheus::start(dir.path(), &addresses, &impatient_rules(dir.path()));
    await_scrapes(&prometheus, &addresses);

    // Every second request takes five times as long as the others.
    uneven_device.fail("evenly", true);
    let mut client = uneven.client("vol");
    let mut n = 0;
    until("forecasts are unsure", || {
        for _ in 0..10 {
            client.read(n * 4096 % (16 << 20), 4096).unwrap().unwrap();
            n += 1;
        }
        let instance = ("instance", uneven.address.as_str());
        n > 100 && prometheus.has_alert("PlimsollUnsureForecasts", &[instance, ("pool", "p")])
    });

    // The file system is full before the pool is.
    let mut client = full.client("vol");
    let instance = ("instance", full.address.as_str());
    let mut written = 0;
    while client.write(written << 20, &noise(written)).unwrap().is_ok() {
        written += 1;
    }
    prometheus.await_alert("PlimsollFileSystemFull", &[instance, ("pool", "p")]);
    prometheus.await_alert("PlimsollWriteBackFailing", &[instance, ("pool", "p")]);

    // Dirty extents on a device that fails.
    let mut client = cached.client("vol");
    let instance = ("instance", cached.address.as_str());
    for n in 0..64 {
        client.write(n * 65_536, &[1; 65_536]).unwrap().unwrap();
    }
    client.flush().unwrap().unwrap();
    for what in ["read", "write"] {
        fast.fail(what, true);
    }
    until("the cache fails", || {
        let _ = client.write(0, &[2; 65_536]).unwrap(); // refused from some time on
        cached.server.cache_status()["state"] == "broken"
    });
    prometheus.await_alert("PlimsollCacheDown", &[instance, ("pool", "p")]);
    cached.server.cli(&["cache", "give-up", "vol", "--lose-data"]);
    prometheus.await_alert("PlimsollCacheLost", &[instance, ("pool", "p")]);
    drop(client);
    for what in ["read", "write"] {
        fast.fail(what, false);
    }
    // A start that the device keeps waiting.
    let cached = cached.killed(|| fast.hold_flushes());
    let instance = ("instance", cached.address.as_str());
    prometheus.await_alert("PlimsollRecovering", &[instance, ("pool", "p")]);
    fast.let_go();
    until("it recovers", || cached.server.control("GET", "/v1/status").json()["pools"][0]["state"] == "ready");
    assert!(cached.server.stop() && uneven.server.stop());
    full.server.kill();
}
