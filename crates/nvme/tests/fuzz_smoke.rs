//! The fuzz targets' functions over the committed seeds and seeded mutations of them: a fuzzing run that is
//! short, the same every time, and part of every test run.

use std::fs;
use std::path::Path;

use plimsoll_base::Rng;

#[path = "fuzzing/auth.rs"]
mod auth;
#[path = "fuzzing/controller.rs"]
mod controller;
#[path = "fuzzing/host.rs"]
mod host;
#[path = "fuzzing/opening.rs"]
mod opening;
#[path = "fuzzing/queue.rs"]
mod queue;

const MUTATIONS: u32 = 20_000;

/// The seeds of a target, in the order of their names.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut paths: Vec<_> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.expect("a directory entry").path())
        .collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

/// Flips, cuts, doubles and splices, as a fuzzer would without looking.
fn mutate(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let pick = |rng: &mut Rng| seeds[rng.below(seeds.len() as u64) as usize].clone();
    let mut bytes = pick(rng);
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(6) {
            0 => bytes[at] = rng.next_u64() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes.truncate(at.max(1)),
            3 => bytes.extend_from_within(at..),
            4 => {
                let other = pick(rng);
                bytes.extend_from_slice(&other[rng.below(other.len() as u64) as usize..]);
            }
            _ => drop(bytes.splice(at..at, rng.next_u64().to_be_bytes())),
        }
    }
    bytes
}

fn smoke(target: &str, mutations: u32, fuzz_one: fn(&[u8])) {
    let seeds = seeds(target);
    assert!(!seeds.is_empty());
    seeds.iter().for_each(|seed| fuzz_one(seed));
    let mut rng = Rng::new(1, target);
    for _ in 0..mutations {
        fuzz_one(&mutate(&mut rng, &seeds));
    }
}

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
