//! The quick form of the evidence: every experiment, shortened, under fixed seeds, against the list of known misses.
//!
//! Seeds and lengths are chosen so that all of it takes five minutes on two cores in the test profile; `tests/quick.toml` has the
//! measured times. Few seeds leave more rows undecided than a full run does: they are printed. `make evidence` is the full run.

use plimsoll_lab::evidence::Evidence;
use plimsoll_lab::evidence::audit::Audit;
use plimsoll_lab::evidence::misses::Misses;
use plimsoll_lab::evidence::switches::Switches;
use plimsoll_lab::experiment::{self, Experiment, ExperimentReport, Inputs, RunOptions, Verdict, data_folder};
use rayon::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Bound of the whole on one core, with the longest of the parts that take turns.
const CORE_SECONDS_MAX: f64 = 302.0;
/// Number of parts that take turns.
const PARTS: u64 = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    /// Seeds 1 to N; 0: it is left out.
    seeds: u64,
    /// Core seconds of one seed, measured.
    core_s: f64,
    /// In its shortest form: a quick one takes too long.
    #[serde(default)]
    brief: bool,
    /// It runs in one of [`PARTS`] runs only.
    part: Option<u64>,
}

fn read() -> (Misses, BTreeMap<String, Quick>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let misses = Misses::read(&folder.join("known-misses.toml")).expect("a list");
    let quick = std::fs::read_to_string(folder.join("tests/quick.toml")).expect("it's there");
    (misses, toml::from_str(&quick).expect("a list"))
}

/// The recorded data beside the repository, or where PLIMSOLL_DATA says: without them, experiments that use them are left out.
fn inputs() -> Inputs {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let named = std::env::var_os("PLIMSOLL_DATA").map_or(beside, std::path::PathBuf::from);
    Inputs { data: data_folder(Some(&named)), quick: true, ..Inputs::default() }
}

#[test]
fn the_lists_are_of_rows_and_experiments_that_exist() {
    let (misses, quick) = read();
    let all = experiment::all();
    assert_eq!(misses.stale(&all, &inputs()), Vec::<String>::new(), "in known-misses.toml");
    let of = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let audit = Audit::read(&of("audit.toml")).expect("a list");
    assert_eq!(audit.faults(&all), Vec::<String>::new(), "in audit.toml");
    let switches = Switches::read(&of("switches.toml")).expect("a list");
    assert_eq!(switches.faults(&inputs()), Vec::<String>::new(), "in switches.toml");
    let ids: Vec<&str> = all.iter().map(|e| e.id()).collect();
    let unlisted: Vec<_> = ids.iter().filter(|id| !quick.contains_key(**id)).collect();
    let unknown: Vec<_> = quick.keys().filter(|id| !ids.contains(&id.as_str())).collect();
    assert!(unlisted.is_empty() && unknown.is_empty(), "tests/quick.toml lacks {unlisted:?} and has {unknown:?}");
    let of_part = |part: Option<u64>| -> f64 {
        quick.values().filter(|q| q.part == part).map(|q| q.seeds as f64 * q.core_s).sum()
    };
    assert!(quick.values().all(|q| q.part.is_none_or(|p| p < PARTS)), "tests/quick.toml: parts are 0 to {}", PARTS - 1);
    let sum = of_part(None) + (0..PARTS).map(|p| of_part(Some(p))).fold(0.0, f64::max);
    assert!(
        sum <= CORE_SECONDS_MAX,
        "tests/quick.toml: {sum:.0} core seconds are too many: fewer seeds, or shorter runs"
    );
}

/// The part that runs: what PLIMSOLL_EVIDENCE_PART says (`all`: every one), else by the commit, so that a commit's runs are alike; 0 outside of a
/// repository.
fn part() -> Option<u64> {
    if let Ok(named) = std::env::var("PLIMSOLL_EVIDENCE_PART") {
        return if named == "all" { None } else { Some(named.parse().expect("a part's number, or all")) };
    }
    let head = std::process::Command::new("git").args(["rev-parse", "--short=7", "HEAD"]).output();
    let commit = head.ok().and_then(|o| u64::from_str_radix(String::from_utf8_lossy(&o.stdout).trim(), 16).ok());
    Some(commit.unwrap_or(0) % PARTS)
}

/// The kept results of full runs, as far as their rows are still judged so, and the list.
#[test]
fn kept_results_fall_short_exactly_where_it_is_known() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results");
    let (misses, _) = read();
    let mut wrong = Vec::new();
    let mut kept = 0;
    for e in experiment::all() {
        let Some(mut found) = Evidence::read(&folder, e.id()).expect("a result") else { continue };
        let rows = e.rows(&inputs());
        let is_as_then = |name: &str, check: &str| rows.iter().any(|r| r.name == name && r.check.to_string() == check);
        found.report.rows.retain(|r| is_as_then(&r.name, &r.check));
        kept += found.report.rows.len();
        wrong.extend(misses.disagreements(&found.report));
    }
    assert!(kept > 0, "there are no results in {}", folder.display());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rows_fall_short_exactly_where_it_is_known() {
    let (misses, quick) = read();
    let (inputs, part) = (inputs(), part());
    let mut todo: Vec<(Box<dyn Experiment>, &Quick)> =
        experiment::all().into_iter().filter_map(|e| quick.get(e.id()).map(|q| (e, q))).collect();
    todo.retain(|(e, q)| {
        let in_it = q.seeds > 0 && !e.is_timed();
        if !in_it {
            println!("{}: left out: it takes {} core seconds a seed, or is wall-clock time", e.id(), q.core_s);
        }
        if let (Some(its), Some(now)) = (q.part, part)
            && its != now
        {
            println!("{}: not in this run: part {its}, this is part {now} of {PARTS}", e.id());
            return false;
        }
        let lacks_data = inputs.data.is_none() && !e.files().is_empty();
        if lacks_data {
            println!("{}: left out: the list is of recorded data, which isn't here (PLIMSOLL_DATA)", e.id());
        }
        in_it && !lacks_data
    });
    // The longest first, so that no core is idle at the end.
    todo.sort_by(|a, b| (b.1.core_s * b.1.seeds as f64).total_cmp(&(a.1.core_s * a.1.seeds as f64)));
    let run = |(e, q): &(Box<dyn Experiment>, &Quick)| {
        let (seeds, program) = (q.seeds, String::from("test"));
        let commit = program.clone();
        let inputs = Inputs { brief: q.brief, ..inputs.clone() };
        let options = RunOptions { seeds, seeds_max: seeds, inputs, cache: None, program, commit };
        experiment::run(e.as_ref(), &options, &|| {}).unwrap_or_else(|err| panic!("{}: {err}", e.id()))
    };
    let reports: Vec<ExperimentReport> = todo.par_iter().with_max_len(1).map(run).collect();
    let of = |v: Verdict| reports.iter().flat_map(|r| &r.rows).filter(|row| row.judged() == Some(v)).count();
    println!("{} met, {} missed, {} undecided", of(Verdict::Met), of(Verdict::Missed), of(Verdict::Undecided));
    for r in &reports {
        for row in r.rows.iter().filter(|row| row.judged() == Some(Verdict::Undecided)) {
            let [low, high] = [row.lo, row.hi].map(|v| v.map_or(String::new(), plimsoll_lab::report::figure));
            println!("undecided: {}: {}: {low} … {high}, {}", r.id, row.name, row.check);
        }
    }
    let found: Vec<String> = reports.iter().flat_map(|r| misses.disagreements(r)).collect();
    assert!(found.is_empty(), "known-misses.toml disagrees:\n{}", found.join("\n"));
}
