//! A fenced node: real clients on a disk modelled in real time, the configuration's mistakes, slots that change live.

mod common;
use common::Server;
use common::client::Client;
use common::fenced::{fenced, of, view};
use serde_json::Value;
use std::time::{Duration, Instant};

#[test]
fn clients_are_served_in_their_slots_and_slots_change_live() {
    let dir = tempfile::tempdir().unwrap();
    let text = fenced("slots = 4\nslot = \"20ms\"", &[("a", "slots = 1"), ("b", "slots = 2")]);
    let server = Server::start(dir.path(), &text);
    let mut a = Client::connect(&server.socket(), "a").unwrap();
    let mut b = Client::connect(&server.socket(), "b").unwrap();
    for n in 0..10u64 {
        a.write(n << 16, &[n as u8; 4096]).unwrap().unwrap();
        b.write(n << 16, &[100 + n as u8; 4096]).unwrap().unwrap();
    }
    a.flush().unwrap().unwrap();
    for n in 0..10u64 {
        assert_eq!(a.read(n << 16, 4096).unwrap().unwrap(), [n as u8; 4096], "each has its own bytes");
        assert_eq!(b.read(n << 16, 4096).unwrap().unwrap(), [100 + n as u8; 4096]);
    }
    let v = view(&server);
    assert_eq!((v["slot_us"].as_u64(), v["slots"].as_array().unwrap().len()), (Some(20_000), 4), "{v}");
    assert_eq!((of(&v, "a", "slots"), of(&v, "b", "slots")), (1, 2));
    assert!(of(&v, "a", "requests") >= 20 && of(&v, "a", "waited_us") > 0, "{v}");
    // Sequential requests of one client come at least a rotation's rest apart, whatever the machine does.
    let began = Instant::now();
    for n in 0..6u64 {
        a.read(n << 20, 4096).unwrap().unwrap();
        // Longer than a slot: what is measured is the way to the next one, so nothing is waited for here.
        std::thread::sleep(Duration::from_millis(25));
    }
    assert!(began.elapsed() >= Duration::from_millis(5 * 60), "a slot comes every 80 ms: {:?}", began.elapsed());

    server.cli(&["fence", "set", "p", "--slots", "8", "--slot", "16ms"]);
    let until = Instant::now() + Duration::from_secs(20);
    while view(&server)["slots"].as_array().unwrap().len() != 8 {
        assert!(Instant::now() < until, "{}", view(&server));
        std::thread::sleep(Duration::from_millis(10));
    }
    a.read(0, 4096).unwrap().unwrap();
    let v = view(&server);
    assert_eq!((of(&v, "a", "slots"), of(&v, "b", "slots")), (1, 2), "who has slots keeps them");
    for (args, needle) in [
        (["--slots", "2"], "3 slots are promised (a 1, b 2), and there are 2"),
        (["--slots", "65"], "between 1 and 64"),
        (["--slot", "1ms"], "shorter than one request"),
        (["--slot", "10ms"], "at the beginning of a turn"),
    ] {
        let why = server.cli_fails(&["fence", "set", "p", args[0], args[1]]);
        assert!(why.contains(needle), "{why}");
    }
    let metrics = server.control("GET", "/metrics").body;
    assert!(metrics.contains("plimsoll_fence_slots{pool=\"p\",volume=\"b\"} 2"), "{metrics}");
    drop((a, b));
    server.kill();

    // They survive a crash, until other ones are configured.
    let slots = |text: &str| {
        let server = Server::start(dir.path(), text);
        let v = view(&server);
        assert!(server.stop());
        (v["slot_us"].as_u64().unwrap(), v["slots"].as_array().unwrap().len())
    };
    assert_eq!(slots(&text), (16_000, 8));
    assert_eq!(slots(&text.replace("slots = 4", "slots = 5")), (16_000, 5), "each setting for itself");
    assert_eq!(slots(&text), (16_000, 8), "what was set is still meant where the configuration is as it was then");

    // Fewer than are promised by now don't hold.
    let server = Server::start(dir.path(), &text);
    server.cli(&["fence", "set", "p", "--slots", "3"]);
    server.kill();
    assert_eq!(slots(&text), (16_000, 3));
    assert_eq!(slots(&text.replace("slots = 2\n", "slots = 3\n")), (20_000, 4));
}

#[test]
fn what_cannot_be_fenced_is_refused_with_the_reason() {
    let refused = |fence: &str, volumes: &[(&str, &str)], needle: &str| {
        let text = fenced(fence, volumes);
        let why =
            plimsoll_node::config::Config::parse(&text, std::path::Path::new("node.toml")).unwrap_err().to_string();
        assert!(why.starts_with("node.toml:") && why.contains(needle), "{why}");
    };
    refused("slots = 2", &[("a", "slots = 1"), ("b", "slots = 2")], "3 slots are promised (a 1, b 2), and there are 2");
    refused("slots = 4\nslot = \"2ms\"", &[("a", "slots = 1")], "shorter than one request");
    refused("slots = 0", &[("a", "slots = 1")], "between 1 and 64");
    refused("slots = 4", &[("a", "")], "has no slots: give it some");
    refused("slots = 4\ndevice = \"tape\"", &[("a", "slots = 1")], "`disk` or `flash`");
    let cache = "slots = 4\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nsharing = \"pervolume\"";
    refused(cache, &[("a", "slots = 1\ncache_size = \"65MiB\"")], "is more than the cache's device has: 67108864");
    refused(cache, &[("a", "slots = 1\ncache_size = \"7MiB\"")], "is less than 4 write-evict units: 8388608");
    // Parts add up, those of volumes that say nothing, too: an eighth each.
    let two = [("a", "slots = 1\ncache_size = \"40MiB\""), ("b", "slots = 1\ncache_size = \"24MiB\"")];
    refused(cache, &two, "of 2 volumes add up to 67108864 bytes, and there are");
    let nine: Vec<(String, &str)> = (0..9).map(|i| (format!("v{i}"), "slots = 1")).collect();
    let nine: Vec<(&str, &str)> = nine.iter().map(|(name, more)| (name.as_str(), *more)).collect();
    refused(&cache.replace("slots = 4", "slots = 9"), &nine, "9 say nothing and have an eighth");
    refused(&format!("{cache}\nfree_percent = 51"), &[("a", "slots = 1")], "free_percent 51 is more than 50");
    let kept = "slots = 1\nhybrid = true\nlend_permille = 0";
    refused(kept, &[("a", "slots = 1"), ("b", "")], "nothing is left for volume `b`");
    // How long a request takes is known when the profile is read.
    let profiled = fenced("slots = 4\nslot = \"2ms\"", &[("a", "slots = 1")])
        .replace("[pool.fence]", "profile = \"none\"\n[pool.fence]");
    plimsoll_node::config::Config::parse(&profiled, std::path::Path::new("node.toml")).expect("the start will tell");
    let hybrid = fenced("slots = 4\nhybrid = true", &[("a", "")]);
    plimsoll_node::config::Config::parse(&hybrid, std::path::Path::new("node.toml")).expect("it shares what is left");
}

/// A part that the cache's existing device can't hold is refused at the start, as the configuration alone doesn't show it. A live
/// request for slots that don't exist is refused, too.
#[test]
fn what_only_the_node_can_tell_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let cache = "slots = 2\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"32MiB\"\nsharing = \"pervolume\"";
    let text = |size: &str| fenced(cache, &[("a", &format!("slots = 2\ncache_size = \"{size}\""))]);
    let server = Server::start(dir.path(), &text("16MiB"));
    let why = server.cli_fails(&["volume", "create", "b", "--pool", "p", "--size", "1MiB", "--tenant", "t"]);
    assert!(why.contains("has no slots"), "{why}");
    server.cli(&["tenant", "set", "two", "--class", "fenced", "--slots", "2"]);
    let why = server.cli_fails(&["volume", "create", "b", "--pool", "p", "--size", "1MiB", "--tenant", "two"]);
    assert!(why.contains("4 slots are promised (a 2, b 2), and there are 2"), "{why}");
    assert!(server.stop());
    let late = text("33MiB").replace("device_size = \"32MiB\"\n", "");
    let why = Server::try_start(dir.path(), &late).err().expect("it can't be served");
    assert!(why.contains("cache_size 34603008 is more than the cache's device has"), "{why}");
}

/// The cache's drive can be modelled, too: hits take what the model says, in their slots.
#[test]
fn the_caches_drive_can_be_modelled() {
    let dir = tempfile::tempdir().unwrap();
    let cache = "slots = 2\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nsharing = \"pervolume\"\n\
                 mode = \"back\"\nextent = \"4KiB\"\nweu = \"128KiB\"\ndedup = \"off\"\ncodec = \"none\"\nmodel = \"vf-sata-60g\"";
    let text = fenced(cache, &[("a", "slots = 1\ncache_size = \"16MiB\""), ("b", "slots = 1\ncache_size = \"16MiB\"")]);
    let server = Server::start(dir.path(), &text);
    let mut a = Client::connect(&server.socket(), "a").unwrap();
    for n in 0..200u64 {
        a.write(n << 13, &[n as u8; 4096]).unwrap().unwrap();
    }
    a.flush().unwrap().unwrap();
    for n in 0..200u64 {
        assert_eq!(a.read(n << 13, 4096).unwrap().unwrap(), [n as u8; 4096]);
    }
    let v = view(&server);
    let flash = &v["devices"][1];
    assert!(flash["batches"].as_u64().unwrap() > 0 && flash["took_us"].as_u64().unwrap() > 0, "{v}");
    drop(a);
    server.kill();
    let server = Server::start(dir.path(), &text);
    let mut a = Client::connect(&server.socket(), "a").unwrap();
    for n in 0..200u64 {
        assert_eq!(a.read(n << 13, 4096).unwrap().unwrap(), [n as u8; 4096], "after a crash");
    }
    drop(a);
    assert!(server.stop());
}

/// A fenced tenant's volumes have as many slots as its class says, from when it is changed; more than there are is refused.
#[test]
fn a_tenants_new_number_of_slots_holds_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &fenced("slots = 4", &[("a", "slots = 1")]));
    server.cli(&["tenant", "set", "two", "--class", "fenced", "--slots", "1"]);
    let shown = server.cli(&["tenant", "show", "two"]);
    assert!(shown.contains("enforced  yes") && shown.contains("by the fence"), "{shown}");
    server.cli(&["volume", "create", "b", "--pool", "p", "--size", "1MiB", "--tenant", "two"]);
    assert_eq!(of(&view(&server), "b", "slots"), 1);
    server.cli(&["tenant", "set", "two", "--class", "fenced", "--slots", "3"]);
    let v = view(&server);
    assert_eq!((of(&v, "a", "slots"), of(&v, "b", "slots")), (1, 3), "{v}");
    let why = server.cli_fails(&["tenant", "set", "two", "--class", "fenced", "--slots", "4"]);
    assert!(why.contains("5 slots are promised (a 1, b 4), and there are 4"), "{why}");
    let why = server.cli_fails(&["tenant", "set", "two", "--class", "best-effort"]);
    assert!(why.contains("volume `b` has no slots"), "{why}");
    assert_eq!(of(&view(&server), "b", "slots"), 3);
    assert!(server.stop());
}

/// VF-M16: memory in front of the fence isn't divided, and what it has needs no slot; what it hasn't does.
#[test]
fn what_memory_has_needs_no_slot() {
    let requests = |memory: &str| {
        let dir = tempfile::tempdir().unwrap();
        let text = fenced("slots = 2", &[("a", "slots = 1"), ("b", "slots = 1")]);
        let server = Server::start(dir.path(), &text.replace("[pool.fence]", &format!("{memory}\n[pool.fence]")));
        let mut a = Client::connect(&server.socket(), "a").unwrap();
        a.write(0, &[7; 4096]).unwrap().unwrap();
        let before = of(&view(&server), "a", "requests");
        for _ in 0..10 {
            assert_eq!(a.read(0, 4096).unwrap().unwrap(), [7; 4096]);
        }
        let reads = of(&view(&server), "a", "requests") - before;
        drop(a);
        assert!(server.stop());
        reads
    };
    assert_eq!((requests(""), requests("memory = \"1MiB\"")), (10, 0));
}

/// A volume isn't removed while its slot runs; one that has every slot may be, as its slot always runs.
#[test]
fn the_owner_of_the_running_slot_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let both = [("a", "slots = 1"), ("b", "slots = 1")];
    let server = Server::start(dir.path(), &fenced("slots = 2\nslot = \"10s\"", &both));
    let view = view(&server);
    let (running, slots) = (view["running"].as_u64().unwrap() as usize, view["slots"].as_array().unwrap());
    let (its, other) = (slots[running]["volume"].as_str().unwrap(), slots[1 - running]["volume"].as_str().unwrap());
    let why = server.cli_fails(&["volume", "delete", its, "--yes", "--declared"]);
    assert!(why.contains("owns the time slot that runs"), "{why}");
    server.cli(&["volume", "delete", other, "--yes", "--declared"]);
    let why = server.cli_fails(&["fence", "baseline", its, "--seconds", "1"]);
    assert!(why.contains("too few to rest on"), "{why}");
    server.cli(&["fence", "set", "p", "--slots", "1", "--slot", "50ms"]);
    let until = Instant::now() + Duration::from_secs(60);
    while self::view(&server)["slots"].as_array().unwrap().len() != 1 {
        assert!(Instant::now() < until, "slots change when the running one has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    server.cli(&["volume", "delete", its, "--yes", "--declared"]);
    assert!(server.stop());
}

/// A volume's baseline is measured at the clients' side of the pool, even if memory answers. It is compared with the same slots only.
#[test]
fn a_baseline_is_of_clients_requests_and_of_its_slots() {
    let dir = tempfile::tempdir().unwrap();
    // Who needs a slot waits for half a second on the average: a hundred times what a busy machine makes of memory's answers.
    let text = fenced("slots = 2\nslot = \"1s\"", &[("a", "slots = 1"), ("b", "slots = 1")]);
    let text = text.replace("[pool.fence]", "memory = \"1MiB\"\n[pool.fence]");
    let server = Server::start(dir.path(), &text);
    let file = dir.path().join("a.json");
    let file = file.to_str().unwrap();
    let socket = server.socket();
    let over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ended = over.clone();
    let reads = std::thread::spawn(move || {
        let mut a = Client::connect(&socket, "a").unwrap();
        a.write(0, &[7; 4096]).unwrap().unwrap();
        // The pool's memory has it: the fence sees none of these.
        while !ended.load(std::sync::atomic::Ordering::Relaxed) {
            assert_eq!(a.read(0, 4096).unwrap().unwrap(), [7; 4096]);
        }
    });
    server.cli(&["fence", "baseline", "a", "--pool", "p", "--seconds", "3", "--out", file]);
    let compared = server.cli(&["fence", "status", "p", "--baseline", file, "--seconds", "3", "--json"]);
    over.store(true, std::sync::atomic::Ordering::Relaxed);
    reads.join().unwrap();
    let compared: Value = serde_json::from_str(&compared).unwrap();
    assert!(compared[0]["now"]["requests"].as_u64().unwrap() >= 20, "{compared}");
    assert!(compared[0]["alone"]["response_ms"].as_f64().unwrap() < 200.0, "memory needs no slot: {compared}");
    assert!(server.stop());
    let named = text.replacen("slots = 1\n", &format!("slots = 1\nbaseline = {file:?}\n"), 1);
    let server = Server::start(dir.path(), &named);
    let mut a = Client::connect(&server.socket(), "a").unwrap();
    for _ in 0..3 {
        a.read(0, 4096).unwrap().unwrap();
    }
    let metric = "plimsoll_fence_deviation_ratio{pool=\"p\",volume=\"a\"}";
    assert!(server.control("GET", "/metrics").body.contains(metric));
    server.cli(&["fence", "set", "p", "--slots", "3"]);
    let until = Instant::now() + Duration::from_secs(20);
    while view(&server)["slots"].as_array().unwrap().len() != 3 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!server.control("GET", "/metrics").body.contains(metric), "it isn't comparable");
    let why = server.cli_fails(&["fence", "status", "p", "--baseline", file, "--seconds", "1"]);
    assert!(why.contains("was measured with 1 of 2 slots"), "{why}");
    drop(a);
    assert!(server.stop());
    let why =
        Server::try_start(dir.path(), &named.replacen("a.json", "none.json", 1)).err().expect("it can't be served");
    assert!(why.contains("none.json: cannot be read"), "{why}");
}

/// A volume that is stored and not configured any more has no slots, and its fence has become strict: its pool isn't served. The others
/// are, and what it has is there once the fence has room for it again.
#[test]
fn a_volume_without_slots_takes_only_its_own_pool_out() {
    let dir = tempfile::tempdir().unwrap();
    let other = "[[pool]]\nname = \"other\"\ndevice = { file = \"other.img\", size = \"64MiB\" }\n[[volume]]\nname = \"o\"\npool = \"other\"\n\
                 size = \"1MiB\"\ntenant = \"t\"\n";
    let text = |fence: &str, volumes: &[(&str, &str)]| fenced(fence, volumes) + other;
    let hybrid = text("slots = 2\nhybrid = true", &[("a", "")]);
    let server = Server::start(dir.path(), &hybrid);
    for volume in ["a", "o"] {
        let mut c = Client::connect(&server.socket(), volume).unwrap();
        c.write(0, &[7; 4096]).unwrap().unwrap();
        c.flush().unwrap().unwrap();
    }
    assert!(server.stop());

    let server = Server::start(dir.path(), &text("slots = 2", &[("b", "slots = 1")]));
    let mut o = Client::connect(&server.socket(), "o").unwrap();
    assert_eq!(o.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    for gone in ["a", "b"] {
        assert!(Client::connect(&server.socket(), gone).is_err(), "{gone}");
    }
    let health = server.control("GET", "/healthz");
    assert_eq!(health.code, 503);
    assert!(health.body.contains("pool `p`: volume `a` has no slots: give it some"), "{}", health.body);
    let status = server.control("GET", "/v1/status").expect(200);
    let states: Vec<_> = status["pools"].as_array().unwrap().iter().map(|p| (&p["name"], &p["state"])).collect();
    assert_eq!(states, [(&"p".into(), &"failed".into()), (&"other".into(), &"ready".into())]);
    drop(o);
    assert!(server.stop());

    let server = Server::start(dir.path(), &hybrid);
    let mut a = Client::connect(&server.socket(), "a").unwrap();
    assert_eq!(a.read(0, 4096).unwrap().unwrap(), [7; 4096]);
    drop(a);
    assert!(server.stop());

    // Where it is the node's only pool, the node says why it can't start.
    let alone = tempfile::tempdir().unwrap();
    assert!(Server::start(alone.path(), &fenced("slots = 2\nhybrid = true", &[("a", "")])).stop());
    let why =
        Server::try_start(alone.path(), &fenced("slots = 2", &[("b", "slots = 1")])).err().expect("it can't start");
    assert!(why.contains("volume `a` has no slots"), "{why}");
}
