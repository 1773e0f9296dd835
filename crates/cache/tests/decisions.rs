//! Decisions of fixed workloads, through several power losses: moving code must not change them. A change of behaviour records new values
//! and says why in its commit.

mod common;
use common::*;
use plimsoll_cache::*;
use xxhash_rust::xxh3::Xxh3;

/// One seed's run of several lives: all decisions of the stack, and what both devices hold after each life.
fn decided(seed: u64) -> u64 {
    use Mode::{Back, Through};
    let mut setup = Setup::of([[Back, Through], [Back, Back], [Through, Back]][seed as usize % 3]);
    setup.nvram = seed % 4 == 1;
    setup.shuffle = (seed % 4 == 2).then_some(seed);
    setup.block = if seed.is_multiple_of(2) { 512 } else { 4096 };
    if seed % 5 == 3 {
        setup.config = CacheConfig { sharing: Sharing::PerVolume, watermark_percent: 10, ..setup.config };
    }
    let mut hash = Xxh3::new();
    let mut life = Life::begin(seed, setup);
    for lives in 0..3 {
        life.run(&some_acts(seed * 100 + lives, 160), &mut |_| Ok(true)).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        hash.update(&life.pool.stack().decisions().to_le_bytes());
        let disks = life.cut();
        disks.iter().zip([SLOW_BYTES, FAST_BYTES]).for_each(|(d, len)| hash.update(d.peek(0, len).as_slice()));
        let setup = life.setup;
        life = Life::again(disks, setup, life.oracle.clone()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    hash.update(&life.pool.stack().decisions().to_le_bytes());
    hash.digest()
}

#[test]
fn decisions_of_fixed_workloads_are_those_recorded() {
    let found: Vec<u64> = (0..RECORDED.len() as u64).map(decided).collect();
    assert_eq!(found, RECORDED, "now {found:#018x?}");
}

const RECORDED: [u64; 12] = [
    0xda48_ea7f_7a90_84d0,
    0xbf6f_03c3_ec63_e09a,
    0xd51d_3772_f27e_eaa3,
    0xf93c_d921_ead9_a3fe,
    0x6eff_adf5_55c1_254a,
    0x635c_9f1d_e15e_dd5e,
    0xe3b2_bd54_2d9a_102a,
    0xdf0a_dd65_f598_50a2,
    0x95f1_2b09_9c32_3a88,
    0xb9e4_a92c_ab0e_f795,
    0xa0c7_fcbf_2236_87e5,
    0x395e_e5bd_69cc_e89b,
];
