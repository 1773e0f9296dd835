//! Accepted means kept, shortened: the room keeps misses within a percent where the forecast alone doesn't.

use plimsoll_lab::experiment::{self, Inputs};

#[test]
fn accepted_reads_are_in_time_but_for_a_percent() {
    let inputs = Inputs { quick: true, ..Inputs::default() };
    let e = experiment::by_id("KEPT").expect("it's in the list");
    let rows = e.rows(&inputs);
    let sample = e.sample(3, &inputs).expect("it runs");
    let mut judged = 0;
    for (row, value) in rows.iter().zip(&sample.values) {
        // There nearly all must be refused: the few that are accepted ask whether the pool has become faster.
        if !row.name.ends_with(": missed") || row.name.contains("30 % writes, load 300 %") {
            continue;
        }
        let missed = value.unwrap_or_else(|| panic!("{}: nothing was accepted", row.name));
        assert!(missed <= 1.0, "{}: {missed} %", row.name);
        judged += 1;
    }
    assert_eq!(judged, 9 * 4 - 1);
    let alone = |name: &str| rows.iter().position(|r| r.name == name).and_then(|at| sample.values[at]).expect(name);
    assert!(alone("noop, depth 1, load 200 %: missed, by the forecast alone") > 10.0, "the room isn't needed");
}
