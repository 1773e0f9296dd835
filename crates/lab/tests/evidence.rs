//! The quick form of the evidence: every experiment, shortened, under fixed seeds, against the list of known misses.
//!
//! Seeds and lengths are chosen so that all of it takes five minutes on two cores in the test profile; `tests/quick.toml` has the
//! measured times. Few seeds leave more rows undecided than a full run does: they are printed. `make evidence` is the full run.

use plimsoll_lab::evidence::misses::Misses;
use plimsoll_lab::experiment::{self, Experiment, ExperimentReport, Inputs, RunOptions, Verdict, data_folder};
use rayon::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Bound of the whole on one core.
const CORE_SECONDS_MAX: f64 = 600.0;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Quick {
    /// Seeds 1 to N; 0: it is left out.
    seeds: u64,
    /// Core seconds of one seed, measured.
    core_s: f64,
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
    let ids: Vec<&str> = all.iter().map(|e| e.id()).collect();
    let unlisted: Vec<_> = ids.iter().filter(|id| !quick.contains_key(**id)).collect();
    let unknown: Vec<_> = quick.keys().filter(|id| !ids.contains(&id.as_str())).collect();
    assert!(unlisted.is_empty() && unknown.is_empty(), "tests/quick.toml lacks {unlisted:?} and has {unknown:?}");
    let sum: f64 = quick.values().map(|q| q.seeds as f64 * q.core_s).sum();
    assert!(
        sum <= CORE_SECONDS_MAX,
        "tests/quick.toml: {sum:.0} core seconds are too many: fewer seeds, or shorter runs"
    );
}

#[test]
fn rows_fall_short_exactly_where_it_is_known() {
    let (misses, quick) = read();
    let inputs = inputs();
    let mut todo: Vec<(Box<dyn Experiment>, &Quick)> =
        experiment::all().into_iter().filter_map(|e| quick.get(e.id()).map(|q| (e, q))).collect();
    todo.retain(|(e, q)| {
        let in_it = q.seeds > 0 && !e.is_timed();
        if !in_it {
            println!("{}: left out: it takes {} core seconds a seed, or is wall-clock time", e.id(), q.core_s);
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
        let options = RunOptions { seeds, seeds_max: seeds, inputs: inputs.clone(), cache: None, program, commit };
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
