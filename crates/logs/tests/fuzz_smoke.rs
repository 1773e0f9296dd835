//! The fuzz target's seeds, and seeded mutations: see `fuzz/README.md`.

mod common;
#[path = "fuzzing/mount.rs"]
mod mount;
use plimsoll_base::Rng;

/// Many more with `PLIMSOLL_FUZZ_RUNS=100000`.
#[test]
fn any_change_of_a_device_is_survived() {
    let runs = std::env::var("PLIMSOLL_FUZZ_RUNS").map_or(1500, |n| n.parse().expect("a number"));
    for seed in [&include_bytes!("../../../fuzz/seeds/logs_mount/image_and_note")[..], b"", b"\0"] {
        mount::fuzz_one(seed);
    }
    let mut rng = Rng::new(21, "logs mount");
    for run in 0..runs {
        let data: Vec<u8> = (0..1 + 8 * (1 + run % 4)).map(|_| rng.next_u64() as u8).collect();
        let survived = std::panic::catch_unwind(|| mount::fuzz_one(&data));
        assert!(survived.is_ok(), "run {run}: {data:?}");
    }
}
