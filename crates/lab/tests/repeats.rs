//! An experiment, run twice.

use plimsoll_lab::experiment::{self, Inputs, RunOptions};

#[test]
fn an_experiment_repeats_to_the_bit() {
    let run = |seeds| {
        let options = RunOptions {
            seeds,
            seeds_max: seeds,
            inputs: Inputs { quick: true, ..Inputs::default() },
            cache: None,
            program: "test".into(),
            commit: "test".into(),
        };
        let e = experiment::by_id("ML-E1").unwrap();
        let report = experiment::run(e.as_ref(), &options, &|| {}).unwrap();
        (report.to_json(), report)
    };
    let (three, four) = (run(3), run(4));
    assert_eq!(three, run(3));
    assert_ne!(three.1.decisions, four.1.decisions, "the hash is of what was decided");
}
