//! The fuzz targets' functions over the committed seeds and seeded mutations of them: a fuzzing run that is
//! short, the same every time, and part of every test run.

use plimsoll_testkit::fuzz::smoke;

#[path = "fuzzing/handshake.rs"]
mod handshake;
#[path = "fuzzing/transmission.rs"]
mod transmission;

const MUTATIONS: u32 = 20_000;

#[test]
fn handshakes_survive_mutated_seeds() {
    smoke("nbd_handshake", MUTATIONS, handshake::fuzz_one);
}

#[test]
fn transmissions_survive_mutated_seeds() {
    smoke("nbd_transmission", MUTATIONS, transmission::fuzz_one);
}
