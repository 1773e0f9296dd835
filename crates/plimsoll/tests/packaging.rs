//! The files of the packages: the unit, the default configuration, alert rules, the dashboard. `packaging/test.sh` installs them.

mod common;
use common::client::Client;
use common::prometheus::Prometheus;
use common::{Server, config, ok, run};
use plimsoll_node::config::Config;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn packaging(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(file)
}

#[test]
fn the_unit_is_sound() {
    let dir = tempfile::tempdir().unwrap();
    let unit = std::fs::read_to_string(packaging("plimsoll.service")).unwrap();
    // It isn't installed here.
    let here = unit.replace("/usr/bin/plimsoll", env!("CARGO_BIN_EXE_plimsoll"));
    let file = dir.path().join("plimsoll.service");
    std::fs::write(&file, here).unwrap();
    let output = run("systemd-analyze", &["verify", "--man=no", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr);
    let about: Vec<&str> = said.lines().filter(|l| l.contains("plimsoll")).collect();
    assert!(output.status.success() && about.is_empty(), "{said}");
}

#[test]
fn the_default_configuration_grants_nothing() {
    let config = Config::load(&packaging("plimsoll.toml")).unwrap();
    assert!(config.grant.is_empty() && config.volume.is_empty() && !config.control.local_reads);
    assert!(config.listen.tcp.is_none() && config.control.http.unwrap().ip().is_loopback());
}

#[test]
fn every_alert_fires_when_it_should() {
    ok("promtool", &["check", "rules", packaging("plimsoll.rules.yml").to_str().unwrap()]);
    ok("promtool", &["test", "rules", packaging("rules_test.yml").to_str().unwrap()]);
    let (rules, tests) =
        ["plimsoll.rules.yml", "rules_test.yml"].map(|f| std::fs::read_to_string(packaging(f)).unwrap()).into();
    for name in rules.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")) {
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} has no test");
    }
}

/// A real Prometheus scrapes a node with a cache, logs and cores: each panel's expression has an answer, and each alert's is evaluated.
#[test]
fn the_dashboard_and_the_alerts_are_of_metrics_that_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let text = config(r#"{ file = "p.img", size = "256MiB" }"#, "16MiB").replacen(
        "[[tenant]]",
        "cores = 2\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\n[[pool]]\nname = \"logged\"\ndevice = { file = \"l.img\", size = \
         \"512MiB\" }\n[pool.logs]\n[[tenant]]\nname = \"web\"\nclass = \"latency-critical\"\nobjectives = [{ percentile = 99, within = \
         \"1s\" }]\ndeadline = \"1s\"\n[[tenant]]",
        1,
    );
    let text = text.replace("tenant = \"t\"", "tenant = \"web\"");
    let server = Server::start(dir.path(), &text);
    // promtool reads its standard input.
    let page = server.control("GET", "/metrics").body;
    std::fs::write(dir.path().join("metrics"), &page).unwrap();
    let checked = run("sh", &["-c", &format!("promtool check metrics < {}/metrics", dir.path().display())]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));

    let http =
        server.control("GET", "/v1/status").json()["node"]["listens"]["control_http"].as_str().unwrap().to_string();
    let rules = packaging("plimsoll.rules.yml").canonicalize().unwrap();
    let prometheus = Prometheus::start(dir.path(), &[&http], &rules);

    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    let mut ask = |expression: &str| -> Value {
        // Rates need requests that go on.
        for i in 0..8 {
            client.write(i * 8192, &[1; 4096]).unwrap().unwrap();
            client.read(i * 8192, 4096).unwrap().unwrap();
        }
        prometheus.ask(expression)
    };
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(packaging("grafana.json")).unwrap()).unwrap();
    let end = Instant::now() + Duration::from_secs(120);
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 15);
    // Empty as long as all is well.
    let quiet = ["Pools that don't serve as they should", "Failed requests"];
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        let expression = panel["targets"][0]["expr"].as_str().unwrap();
        let expression = expression.replace("$instance", ".*").replace("$__rate_interval", "10s");
        loop {
            let answer = ask(&expression);
            assert_ne!(answer["status"], "error", "{title}: {answer}");
            let results = answer["data"]["result"].as_array().map_or(0, Vec::len);
            if results > 0 || (answer["status"] == "success" && quiet.contains(&title)) {
                break;
            }
            assert!(Instant::now() < end, "{title}: no answer to {expression}: {answer}");
        }
    }
    // The alerts' metrics are there, whether or not they fire.
    let rules = std::fs::read_to_string(packaging("plimsoll.rules.yml")).unwrap();
    let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names: std::collections::BTreeSet<&str> = words.filter(|w| w.starts_with("plimsoll_")).collect();
    assert!(names.len() >= 12, "{names:?}");
    for name in names {
        assert!(page.contains(&format!("# TYPE {name} ")), "there is no metric {name}");
    }
    drop(client);
    assert!(server.stop());
}
