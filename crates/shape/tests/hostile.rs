//! The fuzz target's function over its committed seeds and seeded bytes.

#[path = "fuzzing/segment.rs"]
mod segment;

use plimsoll_base::Rng;

#[test]
fn a_segment_of_any_bytes_holds_nobody_for_ever() {
    std::panic::set_hook(Box::new(|_| {})); // as the shim's: what fails is caught
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/shape_segment");
    let mut paths: Vec<_> = std::fs::read_dir(folder).expect("seeds").map(|f| f.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths.iter().for_each(|path| segment::fuzz_one(&std::fs::read(path).expect("a seed")));
    let mut rng = Rng::new(1, "hostile segment");
    for _ in 0..300 {
        let bytes: Vec<u8> = (0..rng.below(60) * 3).map(|_| rng.next_u64() as u8).collect();
        segment::fuzz_one(&bytes);
    }
}
