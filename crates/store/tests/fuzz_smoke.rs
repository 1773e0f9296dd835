//! The fuzz targets' functions over the committed seeds and seeded bytes: a fuzzing run that is short, the same every time, and part of
//! every test run.

mod fuzzing;

use plimsoll_base::Rng;
use plimsoll_testkit::fuzz::seeds;

fn bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    (0..rng.below(most)).map(|_| rng.next_u64() as u8).collect()
}

#[test]
fn corrupt_stores_are_right_or_refused() {
    seeds("store_mount").iter().for_each(|seed| fuzzing::mount(seed));
    let mut rng = Rng::new(1, "store mount");
    for _ in 0..400 {
        fuzzing::mount(&bytes(&mut rng, 30));
    }
}

#[test]
fn corrupt_superblocks_are_right_or_refused() {
    seeds("store_superblock").iter().for_each(|seed| fuzzing::superblock(seed));
    let mut rng = Rng::new(1, "superblock");
    for _ in 0..20_000 {
        fuzzing::superblock(&bytes(&mut rng, 40));
    }
}
