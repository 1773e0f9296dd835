//! The experiments on replica choice, shortened: every row is filled, and the same seed gives the same figures.

use plimsoll_lab::experiment::{self, Inputs, Sample, data_folder};

fn quick(id: &str) -> (Vec<String>, Sample) {
    let data = std::env::var_os("PLIMSOLL_DATA").map(std::path::PathBuf::from);
    let inputs = Inputs { data: data_folder(data.as_deref()), quick: true, ..Inputs::default() };
    if inputs.data.is_none() {
        println!("{id}: ran without ../shared/data: rows of the published noise stay empty");
    }
    let e = experiment::by_id(id).expect("it's in the list");
    let names: Vec<String> = e.rows(&inputs).into_iter().map(|r| r.name).collect();
    let sample = e.sample(3, &inputs).expect("it runs");
    assert_eq!(names.len(), sample.values.len(), "{id}");
    let mut unique = names.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), names.len(), "{id}: two rows of one name");
    (names, sample)
}

/// The value of the row of this name.
fn value((names, sample): &(Vec<String>, Sample), name: &str) -> f64 {
    let at = names.iter().position(|n| n == name).unwrap_or_else(|| panic!("no row `{name}`"));
    sample.values[at].unwrap_or_else(|| panic!("`{name}` is empty"))
}

#[test]
fn twelve_policies_and_a_clairvoyant() {
    let run = quick("MT-E9");
    let of = |what: &str| value(&run, &format!("§6's noise: {what}"));
    assert_eq!(of("gets that failed, all policies"), 0.0);
    assert_eq!(of("base: executed beyond one a get"), 0.0);
    assert!(of("clone: executed beyond one a get") > 99.0);
    assert!(of("clairvoyant, p99") < of("base, p99"));
    assert!(of("mitt, p99") < of("base, p99") && of("hedged, p99") < of("base, p99"));
}

#[test]
fn a_noisy_first_replica_is_left() {
    for id in ["MT-E5", "MT-E6"] {
        let run = quick(id);
        assert!(value(&run, "mitt, p95") < value(&run, "base, p95"), "{id}");
        assert!(value(&run, "no noise, p95") < value(&run, "base, p95"), "{id}");
    }
}

#[test]
fn a_drive_that_writes_is_left() {
    let run = quick("MT-E7");
    assert!(value(&run, "mitt: gets above the deadline") < value(&run, "base: gets above the deadline"));
}

#[test]
fn requests_of_many_gets_wait_for_the_slowest() {
    let run = quick("MT-E10");
    for kind in ["base", "hedged", "mitt"] {
        let mean = |sf: u32| value(&run, &format!("§6's noise: SF {sf}: {kind}, mean"));
        assert!(mean(1) < mean(2) && mean(2) < mean(5) && mean(5) < mean(10), "{kind}");
    }
}

#[test]
fn a_nodes_refusals_cut_the_tail() {
    let run = quick("MT-E17");
    assert!(value(&run, "one node: tries refused") > 0.0);
    assert!(value(&run, "mitt, p99") < value(&run, "base, p99"));
    assert!(value(&run, "one node: taken, and answered after the deadline") < 10.0);
}

#[test]
fn databases_that_dont_fail_over_give_errors() {
    let run = quick("MT-E1");
    assert!(value(&run, "MongoDB, 100 ms: users' read errors") > 0.0);
    assert_eq!(value(&run, "HBase, 100 ms: users' read errors"), 0.0);
    assert_eq!(quick("MT-E1").1, run.1, "the same seed, the same figures");
}

#[test]
fn adaptive_policies_run_in_all_scenes() {
    let run = quick("MT-E16");
    assert!(value(&run, "1B2F-1sec: c3, p90") > value(&run, "NoBusy: c3, p90"));
}

#[test]
fn buffered_writes_feel_less_of_the_noise() {
    let run = quick("MT-E19");
    let ratio = |what: &str| value(&run, &format!("{what}: base over no noise, p99"));
    assert!(ratio("buffered") < ratio("unbuffered"));
}
