//! `plimsoll tune` as a user sees it: from a tune file to periods that are watched, and what happens when things fail.
#![cfg(feature = "tools")]

#[path = "common/tuned.rs"]
mod tuned;

use std::fmt::Write as _;
use std::fs;
use tuned::{applied, measure, plimsoll, system, text};

#[test]
fn profile_solve_and_run() {
    let dir = tempfile::tempdir().unwrap();
    let file = system(dir.path(), &measure(dir.path()));
    let profile = dir.path().join("p.parquet").display().to_string();
    let out = plimsoll(&["tune", "profile", &file, "--out", &profile]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(text(&out.stdout).contains("800 observations under 2 of 2 settings"), "{}", text(&out.stdout));
    // A median of 5 ms needs at least half of the requests done by then: of the quick ones 19 of 20 are.
    let svg = dir.path().join("cdf.svg").display().to_string();
    let out = plimsoll(&["tune", "solve", &file, "--profile", &profile, "--json", "--plot", &svg]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((v["proven"].as_bool(), v["value"].as_f64().map(f64::round)), (Some(true), Some(100.0)), "{v}");
    assert!(fs::read_to_string(&svg).unwrap().contains("predicted"));
    let out = plimsoll(&["tune", "solve", &file, "--profile", &profile, "--minimise", "p96", "--bound", "p25 <= 5ms"]);
    let table = text(&out.stdout);
    assert!(table.contains("mode=quick") && table.contains("mode=steady") && table.contains("of 4"), "{table}");
    assert!(table.contains("proven: nothing is better"), "{table}");
    let out = plimsoll(&["tune", "run", &file, "--profile", &profile, "--periods", "2"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert_eq!(text(&out.stdout).matches("KS 0.0").count(), 2, "{}", text(&out.stdout));
}

#[test]
fn what_cannot_be_had_is_explained() {
    let dir = tempfile::tempdir().unwrap();
    let file = system(dir.path(), &measure(dir.path()));
    let mut csv = String::from("request,node,value,mode\n");
    for i in 0..200 {
        writeln!(csv, "{i},request,{},quick\n{i},request,{},steady", 1 + i % 40, 8 + i % 5).unwrap();
    }
    let profile = dir.path().join("p.csv");
    fs::write(&profile, &csv).unwrap();
    let p = profile.display().to_string();
    let out = plimsoll(&["tune", "solve", &file, "--profile", &p, "--minimise", "mean", "--bound", "p99 <= 2ms"]);
    assert_eq!(out.status.code(), Some(1));
    let e = text(&out.stderr);
    assert!(e.contains("p99 <= 2ms can't be kept at all") && e.contains("nearest: mode=steady"), "{e}");
    // A truncated profile, and one that lacks a setting.
    fs::write(&profile, &csv[..csv.len() - 3]).unwrap();
    let out = plimsoll(&["tune", "solve", &file, "--profile", &p]);
    assert!(text(&out.stderr).contains("p.csv:401: the last line has no end"), "{}", text(&out.stderr));
    fs::write(&profile, csv.replace("steady", "quick")).unwrap();
    let out = plimsoll(&["tune", "solve", &file, "--profile", &p]);
    assert!(text(&out.stderr).contains("nothing was recorded under mode=steady"), "{}", text(&out.stderr));
    let target = dir.path().join("target.csv");
    fs::write(&target, "50,9\n90,3\n").unwrap();
    let out = plimsoll(&["tune", "solve", &file, "--profile", &p, "--target", target.to_str().unwrap()]);
    assert!(text(&out.stderr).contains("target.csv:2: an impossible target"), "{}", text(&out.stderr));
}

#[test]
fn a_failing_or_hanging_command_ends_at_the_last_good_setting() {
    let dir = tempfile::tempdir().unwrap();
    // Measuring the second setting hangs.
    let hangs =
        format!("test $(tail -1 {0}/applied) = quick || sleep 60; {1}", dir.path().display(), measure(dir.path()));
    let file = system(dir.path(), &hangs);
    let out = plimsoll(&["tune", "profile", &file, "--out", "/dev/null"]);
    assert_eq!(out.status.code(), Some(1));
    let e = text(&out.stderr);
    assert!(e.contains("it hangs: stopped after") && e.contains("put back to mode=quick"), "{e}");
    assert_eq!(applied(dir.path()), ["quick", "steady", "quick"]);
    fs::write(dir.path().join("broken"), "").unwrap();
    let out = plimsoll(&["tune", "profile", &file, "--out", "/dev/null", "--current", "mode=steady"]);
    let e = text(&out.stderr);
    assert!(
        e.contains("applying mode=quick")
            && e.contains("failed with status 1")
            && e.contains("putting back mode=steady"),
        "{e}"
    );
    let out = plimsoll(&["tune", "check", "/nowhere.toml"]);
    assert!(text(&out.stderr).contains("cannot read /nowhere.toml"));
}

#[test]
fn an_alarm_is_raised_when_the_system_changes_and_tuned_away() {
    let dir = tempfile::tempdir().unwrap();
    let file = system(dir.path(), &measure(dir.path()));
    let profile = dir.path().join("p.csv").display().to_string();
    assert!(plimsoll(&["tune", "profile", &file, "--out", &profile]).status.success());
    let slower = system(
        dir.path(),
        &measure(dir.path()).replace(": 100)", ": 300)").replace("? 1 ", "? 3 ").replace("1 : 300", "3 : 300"),
    );
    let out = plimsoll(&["tune", "run", &slower, "--profile", &profile, "--periods", "2"]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("apart (alarm above"), "{}", text(&out.stderr));
    let out = plimsoll(&["tune", "run", &slower, "--profile", &profile, "--periods", "3", "--retune"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    assert!(
        text(&out.stderr).contains("tuning anew") && text(&out.stdout).contains("period 3"),
        "{}",
        text(&out.stderr)
    );
}
