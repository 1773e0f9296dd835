//! Live volumes on modelled devices of every kind: the bytes are the file's, the times the model's.

mod common;
use common::client::Client;
use common::{Server, config};

const VOLUME: u64 = 64 << 20;

/// The node's status and the model's.
fn served(model: &str) -> [serde_json::Value; 2] {
    let dir = tempfile::tempdir().unwrap();
    let device = format!(r#"{{ model = "{model}", file = "disk.img", size = "128MiB" }}"#);
    let server = Server::start(dir.path(), &config(&device, "64MiB"));
    let mut c = Client::connect(&server.socket(), "vol").unwrap();
    for n in 0..12u64 {
        let offset = n * 5_000_000 / 4096 * 4096 % (VOLUME - 65_536);
        let bytes: Vec<u8> = (0..8192u64).map(|i| (i * 7 + n) as u8).collect();
        c.write(offset, &bytes).unwrap().unwrap();
        assert!(c.read(offset, 8192).unwrap().unwrap() == bytes, "{model}: bytes differ at {offset}");
    }
    let status = serde_json::from_str(&server.cli(&["status", "--json"])).unwrap();
    [status, server.control("GET", "/v1/pools/p/model").expect(200)]
}

#[test]
fn every_kind_of_model_serves_a_live_volume() {
    for model in ["cheetah-15k5", "seagate-archive-8tb", "nvme-modern", "nitro-mlc", "raid0:2:64K:hdd-160g-7200"] {
        let [status, m] = served(model);
        assert!(m["completions"].as_u64() >= Some(24), "{model}: {m}");
        // How late, the machine decides; that it's a distribution, we do.
        let late = |p: &str| m[p].as_u64().unwrap();
        assert!(late("late_p50_us") <= late("late_p95_us") && late("late_p95_us") <= late("late_p99_us"), "{m}");
        assert!(status["node"]["host_pauses"]["count"].is_u64());
        let device = status["pools"][0]["device"].as_str().unwrap();
        assert!(device.contains(&format!("modelled {model} over")), "{device}");
    }
}

#[test]
fn a_model_that_is_none_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ model = "floppy", file = "disk.img", size = "128MiB" }"#;
    let Err(error) = Server::try_start(dir.path(), &config(device, "64MiB")) else { panic!("it started") };
    assert!(error.contains("`floppy` is unknown; there are cheetah-15k5"), "{error}");
}

/// A pool whose volumes lie beyond the end of the modelled drive isn't corrupt: the key is named, by a start and by `check`.
#[test]
fn a_model_that_is_smaller_than_its_pool_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let of = |model: &str| config(&format!(r#"{{ model = "{model}", file = "disk.img", size = "4GiB" }}"#), "2GiB");
    assert!(Server::start(dir.path(), &of("sized:4G:nvme-modern")).stop());
    let smaller = of("sized:256M:nvme-modern");
    let Err(error) = Server::try_start(dir.path(), &smaller) else { panic!("it started") };
    let named = "the modelled device `sized:256M:nvme-modern` (`device.model`) is smaller than its pool: it leaves ";
    assert!(error.contains(named) && error.contains("lie in the first 2147483648"), "{error}");
    assert!(!error.contains("corrupt"), "{error}");
    std::fs::write(dir.path().join("node.toml"), &smaller).unwrap();
    let checked =
        common::run(env!("CARGO_BIN_EXE_plimsoll"), &["check", dir.path().join("node.toml").to_str().unwrap()]);
    let said = String::from_utf8_lossy(&checked.stdout) + String::from_utf8_lossy(&checked.stderr);
    assert!(!checked.status.success() && said.contains(named), "{said}");
    assert!(Server::start(dir.path(), &of("sized:4G:nvme-modern")).stop(), "nothing was changed");
}
