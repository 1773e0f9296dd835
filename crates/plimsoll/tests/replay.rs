//! `replay` and `trace` as a user sees them: what they print, where, and with which status.
#![cfg(feature = "tools")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// 200 requests on two devices, 70 % of them reads, made for these tests.
fn small() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces/small.csv")
}

fn plimsoll(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).args(args).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(args: &[&str]) -> serde_json::Value {
    let out = plimsoll(args);
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}\n{}", text(&out.stdout)))
}

#[test]
fn equal_replays_print_equal_bytes_and_other_seeds_do_not() {
    let trace = small();
    let run = |seed: &str| {
        let args = ["replay", "--trace", trace.to_str().unwrap(), "--device", "cheetah-15k5", "--json", "--seed", seed];
        plimsoll(&args)
    };
    let (a, b, other) = (run("1"), run("1"), run("2"));
    assert!(a.status.success(), "{}", text(&a.stderr));
    assert_eq!(a.stdout, b.stdout);
    assert_ne!(a.stdout, other.stdout, "a seed turns the platters");
    let v: serde_json::Value = serde_json::from_slice(&a.stdout).unwrap();
    assert_eq!((v["requests"].as_u64(), v["modelled"].as_bool()), (Some(200), Some(true)));
    assert_eq!(v["kinds"].as_array().unwrap().len(), 3);
    assert!(text(&a.stderr).contains("requests simulated in"), "the run's own time goes to stderr");
    assert!(!a.stdout.contains(&b'\r') && !text(&a.stderr).contains('\r'), "no progress bar off a terminal");
}

#[test]
fn a_deadline_refuses_and_a_config_sets() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("r.toml");
    fs::write(&config, "device = \"hdd-160g-7200\"\nsched = \"noop\"\ndepth = 1\ndeadline = \"30ms\"\n").unwrap();
    let config = config.to_str().unwrap();
    let args = ["replay", "--workload", "randread:iops=90", "--count", "3000", "--config", config, "--json"];
    let v = json(&args);
    assert_eq!((v["device"].as_str(), v["depth"].as_u64()), (Some("hdd-160g-7200"), Some(1)));
    let busy = v["busy"].as_u64().unwrap();
    assert!((100..2900).contains(&busy), "an overloaded disk refuses some: {busy}");
    fs::write(dir.path().join("bad.toml"), "\ndepht = 1\n").unwrap();
    let bad = dir.path().join("bad.toml");
    let out = plimsoll(&["replay", "--workload", "randread", "--config", bad.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("bad.toml:2: unknown field `depht`"), "{}", text(&out.stderr));
}

#[test]
fn flash_shingled_and_striped_devices_replay() {
    for device in ["aged:sized:1G:nvme-modern", "nitro-mlc", "seagate-archive-8tb", "raid0:3:64K:cheetah-15k5"] {
        let run = || json(&["replay", "--workload", "randrw:depth=8", "--device", device, "--count", "2000", "--json"]);
        let r = run();
        assert_eq!((r["requests"].as_u64(), r["failed"].as_u64()), (Some(2000), Some(0)), "{device}: {r}");
        assert_eq!(r, run(), "{device} twice");
    }
    let zoned =
        ["replay", "--workload", "randwrite", "--device", "zoned:256M:hdd-160g-7200", "--count", "500", "--json"];
    let failed = json(&zoned)["failed"].as_u64().unwrap();
    assert!(failed > 400, "random writes miss the zones' pointers, but for the conventional eighth: {failed}");
}

#[test]
fn threads_of_a_workload_can_be_several_tenants() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("d.csv").to_str().unwrap().to_string();
    let base =
        ["replay", "--workload", "randread:jobs=6", "--device", "cheetah-15k5", "--sched", "cfq", "--count", "900"];
    let out = plimsoll(&[&base[..], &["--tenants", "3", "--distributions", &file]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let table = fs::read_to_string(&file).unwrap();
    assert!((0..3).all(|t| table.contains(&format!("tenant {t}"))) && !table.contains("tenant 3"), "{table}");
    assert_eq!(plimsoll(&[&base[..], &["--tenants", "0"]].concat()).status.code(), Some(2));
}

#[test]
fn results_come_as_files_too() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let (plot, rows, all) = (at("cdf.svg"), at("rows.csv"), at("all.parquet"));
    let trace = small();
    let trace = trace.to_str().unwrap();
    let files = ["--plot", &plot, "--out", &rows, "--distributions", &all];
    let out = plimsoll(&[&["replay", "--trace", trace, "--device", "atlas-10k"][..], &files].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("wrapped around"), "the trace is larger than this disk: {}", text(&out.stdout));
    assert!(fs::read_to_string(&plot).unwrap().starts_with("<svg"));
    let rows = fs::read_to_string(&rows).unwrap();
    assert!(rows.starts_with("kind,count,iops") && rows.contains("\nall,200,"), "{rows}");
    assert_eq!(&fs::read(&all).unwrap()[..4], b"PAR1");
}

#[test]
fn a_malformed_trace_is_told_by_line_with_status_1() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.csv");
    let good = fs::read_to_string(small()).unwrap();
    let mut lines: Vec<&str> = good.lines().collect();
    lines[16] = "77,a,X,0,4096,,,";
    fs::write(&bad, lines.join("\n")).unwrap();
    let bad = bad.to_str().unwrap();
    let to = dir.path().join("out.csv");
    for args in [
        &["replay", "--trace", bad, "--device", "cheetah-15k5"][..],
        &["trace", "info", bad],
        &["trace", "convert", bad, to.to_str().unwrap()],
    ] {
        let out = plimsoll(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        assert!(text(&out.stderr).contains("bad.csv:17: op: expected"), "{args:?}: {}", text(&out.stderr));
    }
}

#[test]
fn misuse_ends_with_status_2() {
    let trace = small();
    let trace = trace.to_str().unwrap();
    for args in [
        &["replay", "--device", "cheetah-15k5"][..],
        &["replay", "--trace", trace],
        &["replay", "--trace", trace, "--device", "no-such-disk"],
        &["replay", "--trace", trace, "--device", "cheetah-15k5", "--rate", "0"],
        &["replay", "--trace", trace, "--device", "cheetah-15k5", "--deadline", "20"],
        &["replay", "--trace", trace, "--workload", "randread", "--device", "cheetah-15k5"],
        &["replay", "--workload", "randread:bs=0", "--device", "cheetah-15k5"],
        &["replay", "--workload", "randread", "--device", "cheetah-15k5", "--sched", "lottery"],
        &["trace", "rerate", trace, "x.csv", "--iops", "0"],
    ] {
        let out = plimsoll(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", text(&out.stderr));
        assert!(out.stdout.is_empty(), "{args:?}");
    }
    let out = plimsoll(&["replay", "--trace", "nowhere.csv", "--device", "cheetah-15k5"]);
    assert_eq!(out.status.code(), Some(1), "a file that isn't there is a failure");
}

#[test]
fn trace_tools_describe_and_change() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let trace = small();
    let trace = trace.to_str().unwrap();
    let info = |file: &str| json(&["trace", "info", file, "--json"]);
    let whole = info(trace);
    assert_eq!((whole["requests"].as_u64(), whole["devices"].as_u64()), (Some(200), Some(2)));
    assert_eq!((whole["size_bytes_p50"].as_u64(), whole["footprint_exact"].as_bool()), (Some(8192), Some(true)));
    let duration = whole["duration_s"].as_f64().unwrap();

    let ok = |args: &[&str]| {
        let out = plimsoll(args);
        assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    };
    let (parquet, fast, cut, mix) = (at("t.parquet"), at("fast.csv.gz"), at("cut.csv"), at("mix.csv"));
    ok(&["trace", "convert", trace, &parquet]);
    let mut converted = info(&parquet);
    (converted["format"], converted["skipped"]) = (whole["format"].clone(), whole["skipped"].clone());
    assert_eq!(converted, whole, "nothing is lost on the way");
    ok(&["trace", "rerate", trace, &fast, "--rate", "2"]);
    assert!((info(&fast)["duration_s"].as_f64().unwrap() - duration / 2.0).abs() < 1e-3);
    ok(&["trace", "cut", trace, &cut, "--count", "50"]);
    ok(&["trace", "mix", trace, &cut, "--rate", "1", "--rate", "1/2", "--out", &mix]);
    let mixed = info(&mix);
    assert_eq!((mixed["requests"].as_u64(), mixed["devices"].as_u64()), (Some(250), Some(4)));
    ok(&["trace", "cut", trace, &cut, "--busiest", "reads", "--window", "200ms"]);
    let text = text(&plimsoll(&["trace", "info", trace]).stdout);
    assert!(text.contains("requests          200 in") && text.contains("busiest window"), "{text}");
    let out = plimsoll(&["trace", "convert", trace, &at("t.doc")]);
    assert_eq!(out.status.code(), Some(1), "a name that says no format");
}
