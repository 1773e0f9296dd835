//! The fuzz targets' functions over the committed seeds and seeded mutations of them: a fuzzing run that is
//! short, the same every time, and part of every test run.

use plimsoll_testkit::fuzz::smoke;

#[path = "fuzzing/auth.rs"]
mod auth;
#[path = "fuzzing/away.rs"]
mod away;
#[path = "fuzzing/controller.rs"]
mod controller;
#[path = "fuzzing/host.rs"]
mod host;
#[path = "fuzzing/opening.rs"]
mod opening;
#[path = "fuzzing/queue.rs"]
mod queue;

const MUTATIONS: u32 = 20_000;

#[test]
fn proofs_survive_mutated_seeds() {
    // Powers of large numbers take milliseconds.
    smoke("nvme_auth", MUTATIONS / 10, auth::fuzz_one);
}

#[test]
fn openings_survive_mutated_seeds() {
    smoke("nvme_opening", MUTATIONS, opening::fuzz_one);
}

#[test]
fn queues_survive_mutated_seeds() {
    smoke("nvme_queue", MUTATIONS, queue::fuzz_one);
}

#[test]
fn controllers_survive_mutated_seeds() {
    smoke("nvme_controller", MUTATIONS, controller::fuzz_one);
}

#[test]
fn hosts_survive_mutated_seeds() {
    smoke("nvme_host", MUTATIONS, host::fuzz_one);
}

#[test]
fn queues_of_inaccessible_namespaces_survive_mutated_seeds() {
    smoke("nvme_away", MUTATIONS, away::fuzz_one);
}
