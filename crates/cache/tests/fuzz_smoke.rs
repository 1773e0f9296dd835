//! The fuzz target's function over seeded mutations: a fuzzing run that is short, the same every time, and part of every test run.

mod common;
#[path = "fuzzing/mount.rs"]
mod mount;

use plimsoll_base::Rng;

/// A header named an extent of no bytes, with a checksum that was right: reading it panicked.
#[test]
fn an_extent_of_no_bytes_is_none() {
    mount::fuzz_one(&[252, 108, 219, 75, 221, 175, 162, 147, 171, 113, 184, 11, 195, 226, 209, 225, 199, 83, 166]);
}

/// An NVRAM record named the largest number there is, with a checksum that was right: counting on from it panicked.
#[test]
fn a_record_of_an_impossible_number_is_refused() {
    mount::fuzz_one(&[7, 16, 196, 0, 1, 0, 8, 255, 255, 0, 8, 255, 255]);
    for which in 0..16 {
        for kind in [244, 245, 247] {
            for at in 0..32 {
                mount::fuzz_one(&[which, kind, 0, 0, at, 255, 255]);
            }
        }
    }
}

/// NVRAM records left no block for the record that the ring begins later: a start panicked.
#[test]
fn a_ring_of_nvram_that_is_full_is_refused() {
    mount::fuzz_one(&[
        239, 21, 20, 81, 28, 148, 201, 126, 102, 94, 88, 220, 62, 43, 144, 223, 74, 222, 157, 189, 38, 61, 90, 59, 94,
        45, 148, 83, 148, 59, 212, 23, 37, 206, 0, 195, 5, 36, 203, 241, 23, 228, 250, 72, 124, 161, 69, 230, 54, 179,
        86, 207, 226, 177, 47, 185, 34, 79, 147, 54, 163, 113, 117, 69, 128, 8, 11, 187, 152, 205, 199, 19, 247, 193,
        252, 37, 41, 220, 107, 251, 43, 174, 242, 26, 151, 197, 29, 108, 15, 70, 172, 211, 88, 69, 138, 101, 214, 212,
        30, 76, 158, 176, 79, 69, 153, 250, 255, 149, 106, 191, 240, 194, 121, 153, 73, 253, 156, 81, 74, 118, 196, 89,
        160, 101, 8, 251, 101,
    ]);
}

/// Many more with `PLIMSOLL_FUZZ_MOUNTS=1000000`.
#[test]
fn a_mutated_cache_starts_or_says_why_not() {
    let mounts = std::env::var("PLIMSOLL_FUZZ_MOUNTS").map_or(1500, |n| n.parse().expect("a number"));
    let only: Option<u64> = std::env::var("PLIMSOLL_FUZZ_MOUNT").ok().map(|n| n.parse().expect("a number"));
    for n in only.map_or(0..mounts, |n| n..n + 1) {
        let mut rng = Rng::new(n, "mount");
        let most = if rng.chance(0.8) { 3 } else { 30 };
        let len = 1 + 6 * (1 + rng.below(most));
        let data: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        let tried = std::panic::catch_unwind(|| mount::fuzz_one(&data));
        assert!(tried.is_ok(), "mount {n} of {data:?}");
    }
}
