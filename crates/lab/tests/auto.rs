//! The predictor that chooses itself, shortened: on a disk that serves one request at a time, with and without a profile.

use plimsoll_lab::experiment::{self, Inputs};

#[test]
fn late_reads_of_a_disk_are_found_within_the_budget() {
    let inputs = Inputs { quick: true, ..Inputs::default() };
    let e = experiment::by_id("AUTO").expect("it's in the list");
    let rows = e.rows(&inputs);
    let sample = e.sample(1, &inputs).expect("it runs");
    let value = |name: &str| rows.iter().position(|r| r.name == name).and_then(|at| sample.values[at]).expect(name);
    for case in ["disk, one at a time", "disk, one at a time, profile"] {
        let of = |who: &str, what: &str| value(&format!("{case}: {who}, {what}"));
        let (missed, needless) = ("missed of the late", "needless refusals of the others");
        assert!(of("auto", missed) <= 20.0, "{case}: {} % missed", of("auto", missed));
        // A short run: a few reads more or less are half a percent.
        assert!(of("auto", needless) <= 1.5, "{case}: {} % needless", of("auto", needless));
        let late = value(&format!("{case}: late reads, all accepted"));
        let wrong = |who| (late * of(who, missed) + (100.0 - late) * of(who, needless)) / 100.0;
        let (auto, noop) = (wrong("auto"), wrong("noop"));
        assert!(auto <= noop + 0.5, "{case}: auto is wrong about {auto} % of the reads, noop about {noop} %");
    }
}
