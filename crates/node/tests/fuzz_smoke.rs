//! The fuzz targets' functions over the committed seeds and seeded mutations of them: short, the same every time, part of every test run.

#[path = "fuzzing/config.rs"]
mod config;
#[path = "fuzzing/http.rs"]
mod http;
#[path = "fuzzing/refusals.rs"]
mod refusals;
#[path = "fuzzing/tape.rs"]
mod tape;

use plimsoll_testkit::fuzz::{seeds, smoke};

#[test]
fn tapes_of_any_bytes_are_read_or_refused() {
    smoke("node_tape", 5000, tape::fuzz_one);
}

#[test]
fn late_reads_of_nvme_hosts_are_refused_once() {
    refusals::meets_each_rule(&seeds("node_refusals"));
    smoke("node_refusals", 300, refusals::fuzz_one);
}

#[test]
fn configurations_of_any_text_are_read_or_refused() {
    smoke("node_config", 1500, config::fuzz_one);
}

#[test]
fn any_bytes_to_the_control_socket_are_answered() {
    smoke("node_http", 1500, http::fuzz_one);
    http::answers();
}
