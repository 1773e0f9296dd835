//! Tests of further options of `plimsoll tune`: screens, confirmation, other methods, plots, load levels, warm-ups, other sources,
//! and signals to end.
#![cfg(feature = "tools")]

#[path = "common/tuned.rs"]
mod tuned;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tuned::{applied, measure, plimsoll, system, text};

/// Fails with what it said unless it ended well.
fn done(out: Output) -> String {
    assert!(out.status.success(), "{}\n{}", text(&out.stderr), text(&out.stdout));
    text(&out.stdout)
}

fn at(dir: &Path, name: &str) -> String {
    dir.join(name).display().to_string()
}

/// A profile of [`system`] as it is.
fn profiled(dir: &Path) -> (String, String) {
    let (file, profile) = (system(dir, &measure(dir)), at(dir, "p.csv"));
    done(plimsoll(&["tune", "profile", &file, "--out", &profile]));
    (file, profile)
}

#[test]
fn a_screen_finds_what_moves_what_and_puts_the_system_back() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    // `a` slows x; `b` moves nothing; `c` has one value only.
    let text = format!(
        "[[parameter]]\nname = \"a\"\nvalues = [\"1\", \"2\"]\n[[parameter]]\nname = \"b\"\nvalues = [\"1\", \"2\"]\n\
         [[parameter]]\nname = \"c\"\nvalues = [\"1\"]\n\
         [graph]\nroot = \"r\"\ncomponents = [\"x\", \"y\"]\n[graph.node]\nr = {{ sequence = [\"x\", \"y\"] }}\n\
         [adapter]\napply = \"echo {{a}} {{b}} {{c}} >> {d}/applied\"\nprofile_time = \"10ms\"\n\
         measure = \"awk -v a=$(tail -1 {d}/applied | cut -c1) -v s=$(wc -l < {d}/applied) 'BEGIN {{ srand(s); for (i = 0; i < 300; i++) \
         {{ print i \\\",x,\\\" a * (1 + rand()); print i \\\",y,\\\" 1 + rand() }} }}'\"\n"
    );
    let file = at(dir.path(), "t.toml");
    fs::write(&file, text).unwrap();
    let current = ["--current", "a=2", "--current", "b=1", "--current", "c=1"];
    let out = done(plimsoll(&[&["tune", "profile", &file, "--screen"][..], &current].concat()));
    assert!(out.contains("a: moves = [\"x\"]") && out.contains("b: moves = []"), "{out}");
    assert_eq!(applied(dir.path()).last().unwrap(), "2 1 1", "the system is left as it was");
    let out = plimsoll(&["tune", "profile", &file, "--screen", "--false-discoveries", "1.5"]);
    assert!(!out.status.success() && tuned::text(&out.stderr).contains("above 0 and below 1"));
}

#[test]
fn what_is_chosen_is_measured_anew_and_the_system_put_back() {
    let dir = tempfile::tempdir().unwrap();
    let (file, profile) = profiled(dir.path());
    let args = ["tune", "solve", &file, "--profile", &profile, "--confirm", "2"];
    let out = plimsoll(&[&args[..], &["--current", "mode=steady"]].concat());
    assert!(text(&out.stderr).contains("measured 2 times anew"), "{}", text(&out.stderr));
    assert!(done(out).contains("proven"));
    assert_eq!(applied(dir.path()).last().unwrap(), "steady");
    assert!(applied(dir.path()).iter().filter(|a| *a == "quick").count() >= 2, "{:?}", applied(dir.path()));
    let out = plimsoll(&[&args[..], &["--method", "anneal"]].concat());
    assert!(!out.status.success() && text(&out.stderr).contains("cannot be used with"), "{}", text(&out.stderr));
}

#[test]
fn other_methods_find_the_same_and_say_what_they_prove() {
    let dir = tempfile::tempdir().unwrap();
    let (file, profile) = profiled(dir.path());
    let solve = |more: &[&str]| -> serde_json::Value {
        let args = [&["tune", "solve", &file, "--profile", &profile, "--json"][..], more].concat();
        serde_json::from_str(&done(plimsoll(&args))).unwrap()
    };
    let exact = solve(&[]);
    for method in ["brute", "random"] {
        let found = solve(&["--method", method]);
        assert_eq!((&found["value"], found["proven"] == true), (&exact["value"], method == "brute"), "{method}");
    }
    let args = ["tune", "solve", &file, "--profile", &profile, "--method", "anneal", "--minimise", "mean"];
    let out = done(plimsoll(&args));
    assert!(out.contains("not proven: no bound is known"), "{out}");
    // Where switching costs, the searches don't know mixes exactly, however many they look at.
    let text = fs::read_to_string(&file).unwrap().replace("epoch = \"10ms\"", "epoch = \"10ms\"\nsettle = \"2ms\"");
    fs::write(&file, text).unwrap();
    done(plimsoll(&["tune", "profile", &file, "--out", &profile]));
    assert_eq!(
        (solve(&["--method", "brute"])["proven"].clone(), solve(&[])["proven"].clone()),
        (false.into(), true.into())
    );
}

#[test]
fn plots_are_written_of_targets_of_what_if_and_of_what_cannot_be_had() {
    let dir = tempfile::tempdir().unwrap();
    let (file, profile) = profiled(dir.path());
    let (target, svg) = (at(dir.path(), "target.csv"), at(dir.path(), "cdf.svg"));
    fs::write(&target, "percent,ms\n25,1\n50,1\n75,9\n90,12\n").unwrap();
    let solve = |more: &[&str]| {
        let _ = fs::remove_file(&svg); // it may not be there
        let out = plimsoll(&[&["tune", "solve", &file, "--profile", &profile, "--plot", &svg][..], more].concat());
        (out, fs::read_to_string(&svg).unwrap_or_default())
    };
    let (out, plot) = solve(&["--target", &target]);
    assert!(
        done(out).contains("mean squared error") && plot.contains("target") && plot.contains("predicted"),
        "{plot}"
    );
    let (out, plot) = solve(&["--minimise", "mean", "--what-if", "p99 <= 50ms", "--what-if", "p50 <= 1us"]);
    let out = done(out);
    assert!(out.contains("p50 <= 0.001ms") && out.contains("can't be kept at all"), "{out}");
    for curve in ["as it is", "p99 &lt;= 50ms", "nearest to p50 &lt;= 0.001ms"] {
        assert!(plot.contains(curve), "{curve}: {plot}");
    }
    let (out, plot) = solve(&["--minimise", "mean", "--bound", "p50 <= 1us"]);
    assert!(!out.status.success() && plot.contains("nearest that can be had"), "{plot}");
}

#[test]
fn a_percentile_beyond_what_was_recorded_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let (file, profile) = profiled(dir.path());
    let out = plimsoll(&["tune", "solve", &file, "--profile", &profile, "--minimise", "p99.9"]);
    let said = text(&out.stderr);
    assert!(
        said.contains("warning: p99.9 is beyond") && said.contains("400 requests") && said.contains("record 10000"),
        "{said}"
    );
    let out = plimsoll(&["tune", "solve", &file, "--profile", &profile, "--minimise", "p90"]);
    assert!(!text(&out.stderr).contains("p90 is beyond"), "{}", text(&out.stderr));
}

/// The alarm shows another load level, of which a profile is there: its plan is used from then on, without tuning anew.
#[test]
fn a_remembered_load_level_is_used_when_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    let (file, profile) = profiled(dir.path());
    // More requests, each slower.
    let busy = measure(dir.path())
        .replace("400", "1000")
        .replace("i % 20 ? 1 : 100", "i % 20 ? 4 : 300")
        .replace("? 8 +", "? 20 +");
    let busy = busy.replace(": 8 + i % 5", ": 40 + i % 5");
    let file = {
        system(dir.path(), &busy);
        file
    };
    let known = dir.path().join("known");
    fs::create_dir(&known).unwrap();
    done(plimsoll(&["tune", "profile", &file, "--out", &at(&known, "level-1.parquet")]));
    // 400 requests in 10 ms are 40,000 a second, 1000 are 100,000.
    let known = known.display().to_string();
    let more = ["--levels", "70000", "--remember", &known, "--periods", "3"];
    let out = plimsoll(&[&["tune", "run", &file, "--profile", &profile][..], &more].concat());
    assert!(text(&out.stderr).contains("load level 1, which is known"), "{}", text(&out.stderr));
    let out = done(out);
    assert!(out.matches("KS 0.0").count() == 2 && out.contains("period 3"), "{out}");
    for levels in ["nan", "-1", "2,inf"] {
        let out = plimsoll(&["tune", "run", &file, "--profile", &profile, &format!("--levels={levels}")]);
        assert!(!out.status.success() && text(&out.stderr).contains("a number above 0"), "{}", text(&out.stderr));
    }
}

#[test]
fn a_warm_up_comes_before_each_setting_and_before_the_first_period() {
    let dir = tempfile::tempdir().unwrap();
    let log = at(dir.path(), "seconds");
    let file = system(dir.path(), &format!("echo {{seconds}} >> {log}; {}", measure(dir.path())));
    let text = fs::read_to_string(&file).unwrap().replace("timeout = ", "warm = \"30ms\"\ntimeout = ");
    fs::write(&file, text).unwrap();
    let profile = at(dir.path(), "p.csv");
    let out = done(plimsoll(&["tune", "profile", &file, "--out", &profile]));
    assert!(out.contains("800 observations"), "the warm-up isn't recorded: {out}");
    let measured = || fs::read_to_string(&log).unwrap().lines().map(String::from).collect::<Vec<_>>();
    assert_eq!(measured(), ["0.03", "0.01", "0.03", "0.01"]);
    done(plimsoll(&["tune", "run", &file, "--profile", &profile, "--periods", "2"]));
    assert_eq!(measured().iter().filter(|s| *s == "0.03").count(), 3, "{:?}", measured());
}

/// A node of the graph is what a service exports: traces in a collector's file, or histograms of a metrics endpoint.
#[test]
fn an_opentelemetry_export_and_prometheus_histograms_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    let span = |i: u32, name: &str, ms: u32| {
        format!(
            "{{\"traceId\":\"{i}\",\"name\":\"{name}\",\"startTimeUnixNano\":\"0\",\"endTimeUnixNano\":\"{}\"}}",
            ms * 1_000_000
        )
    };
    for (mode, factor) in [("quick", 1), ("steady", 3)] {
        let spans: Vec<String> =
            (0..200).flat_map(|i| [span(i, "request", factor * (1 + i % 10)), span(i, "GET /health", 1)]).collect();
        let export = format!(
            "{{\"resourceSpans\":[{{\"scopeSpans\":[{{\"spans\":[{}]}}]}}]}}\n\
             {{\"resourceMetrics\":[{{\"scopeMetrics\":[{{\"metrics\":[{{\"name\":\"http.request.body.size\",\"unit\":\"By\",\
             \"histogram\":{{\"aggregationTemporality\":2,\"dataPoints\":[]}}}}]}}]}}]}}\n",
            spans.join(",")
        );
        fs::write(dir.path().join(format!("{mode}.json")), export).unwrap();
    }
    let file = system(dir.path(), &format!("cat {d}/$(tail -1 {d}/applied).json"));
    let profile = at(dir.path(), "p.csv");
    assert!(done(plimsoll(&["tune", "profile", &file, "--out", &profile])).contains("400 observations"));
    let best = |file: &str| done(plimsoll(&["tune", "solve", file, "--profile", &profile, "--minimise", "p50"]));
    assert!(best(&file).contains("mode=quick"), "{}", best(&file));
    // The same as histograms: each reading has counted 500 more.
    let series = |le: &str, n: &str| format!("echo 'x_bucket{{op=\\\"read\\\",le=\\\"{le}\\\"}}' {n}");
    let script = format!(
        "n=$(($(cat {d}/n 2>/dev/null || echo 0) + 500))\necho $n > {d}/n\ncase $(tail -1 {d}/applied) in quick) q=$n ;; *) q=0 ;; esac\n{}\n{}\n{}\n",
        series("0.01", "$q"),
        series("0.1", "$n"),
        series("+Inf", "$n")
    )
    .replace("\\\"", "\"");
    fs::write(dir.path().join("scrape"), script).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let measured = text.lines().find(|l| l.starts_with("measure")).unwrap();
    let scraped = format!(
        "prometheus = {{ command = \"sh {d}/scrape\", node.request = {{ metric = \"x\", labels = {{ op = \"read\" }} }} }}"
    );
    fs::write(&file, text.replace(measured, &scraped)).unwrap();
    done(plimsoll(&["tune", "profile", &file, "--out", &profile]));
    assert!(best(&file).contains("mode=quick"), "{}", best(&file));
}

#[test]
fn a_profile_that_cannot_be_written_is_told_before_anything_runs_and_a_broken_one_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().display();
    let file = system(dir.path(), &format!("test $(tail -1 {d}/applied) = quick && {}", measure(dir.path())));
    let out = plimsoll(&["tune", "profile", &file, "--out", "/nowhere/p.csv"]);
    assert!(text(&out.stderr).contains("cannot write /nowhere/p.csv") && applied(dir.path()).is_empty());
    let profile = at(dir.path(), "p.csv");
    let out = plimsoll(&["tune", "profile", &file, "--out", &profile]);
    assert!(text(&out.stderr).contains("only what was recorded until then"), "{}", text(&out.stderr));
    assert_eq!(fs::read_to_string(&profile).unwrap().lines().count(), 401);
    let none = at(dir.path(), "none.csv");
    fs::write(&file, fs::read_to_string(&file).unwrap().replace("echo {mode}", "false; exit 7; echo {mode}")).unwrap();
    assert!(!plimsoll(&["tune", "profile", &file, "--out", &none]).status.success() && !Path::new(&none).exists());
}

/// A signal in the middle of a profile: the load that runs ends, and the system is as before.
#[test]
fn a_signal_ends_what_runs_and_puts_the_system_back() {
    for signal in ["INT", "TERM", "HUP"] {
        let dir = tempfile::tempdir().unwrap();
        let d = dir.path().display();
        let file = system(
            dir.path(),
            &format!(
                "test $(tail -1 {d}/applied) = quick || {{ echo $$ > {d}/pid; sleep 100; }}; {}",
                measure(dir.path())
            ),
        );
        let text = fs::read_to_string(&file).unwrap().replace("timeout = \"2s\"", "timeout = \"100s\"");
        fs::write(&file, text.replace("[\\\"quick", "[\"quick")).unwrap();
        // `quick` is measured, then `steady` hangs.
        // A program started in the background, or by nohup, inherits signals that are ignored, and rightly goes on.
        let child = Command::new("env")
            .args(["--default-signal=INT,TERM,HUP", env!("CARGO_BIN_EXE_plimsoll")])
            .args(["tune", "profile", &file, "--out", &at(dir.path(), "p.csv"), "--current", "mode=quick"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let started = Instant::now();
        let pid = loop {
            match fs::read_to_string(dir.path().join("pid")) {
                Ok(p) if p.ends_with('\n') => break p.trim().to_string(),
                _ => std::thread::sleep(Duration::from_millis(10)),
            }
            assert!(started.elapsed() < Duration::from_secs(60), "the load never began");
        };
        assert!(Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap().success());
        let out = child.wait_with_output().unwrap();
        let said = tuned::text(&out.stderr);
        assert_eq!(out.status.code(), Some(130), "{signal}: {said}");
        assert!(said.contains("interrupted") && said.contains("put back to mode=quick"), "{said}");
        assert_eq!(applied(dir.path()).last().unwrap(), "quick");
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z"), "{signal}: the load goes on: {state}");
    }
}
