//! The fuzz targets' functions over the committed seeds and seeded mutations of them: short, the same every time, part of every test run.

#[path = "fuzzing/config.rs"]
mod config;
#[path = "fuzzing/http.rs"]
mod http;
#[path = "fuzzing/tape.rs"]
mod tape;

use plimsoll_base::Rng;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder).expect("seeds").map(|f| f.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a seed")).collect()
}

/// Flips, cuts, doubles and splices.
fn mutate(rng: &mut Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = seeds[rng.below(seeds.len() as u64) as usize].clone();
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(5) {
            0 => bytes[at] = rng.next_u64() as u8,
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => bytes.truncate(at.max(1)),
            3 => bytes.extend_from_within(at..),
            _ => drop(bytes.splice(at..at, rng.next_u64().to_be_bytes())),
        }
    }
    bytes
}

fn smoke(target: &str, mutations: u32, fuzz_one: fn(&[u8])) {
    let seeds = seeds(target);
    seeds.iter().for_each(|seed| fuzz_one(seed));
    let mut rng = Rng::new(1, target);
    (0..mutations).for_each(|_| fuzz_one(&mutate(&mut rng, &seeds)));
}

#[test]
fn tapes_of_any_bytes_are_read_or_refused() {
    smoke("node_tape", 5000, tape::fuzz_one);
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
