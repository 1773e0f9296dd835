//! Short fuzzing runs: a target's function over its committed seeds and over seeded mutations of them. The same every time.

use plimsoll_base::Rng;
use std::path::Path;

/// The seeds of a target, in the order of their names.
///
/// # Panics
/// If there are none.
pub fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut paths: Vec<_> = files.map(|f| f.expect("an entry of a folder").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}: no seeds", folder.display());
    paths.iter().map(|path| std::fs::read(path).expect("a seed")).collect()
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

/// Calls a target's function with each of its seeds, and with `mutations` others.
///
/// # Panics
/// If the function does, or the target has no seeds.
pub fn smoke(target: &str, mutations: u32, fuzz_one: fn(&[u8])) {
    let seeds = seeds(target);
    seeds.iter().for_each(|seed| fuzz_one(seed));
    let mut rng = Rng::new(1, target);
    (0..mutations).for_each(|_| fuzz_one(&mutate(&mut rng, &seeds)));
}
