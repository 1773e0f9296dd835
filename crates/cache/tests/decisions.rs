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
    0x53a5_4932_d16c_67a4,
    0x5cbb_8ae4_ce70_480a,
    0xd51d_3772_f27e_eaa3,
    0x995d_5c92_1239_8ca5,
    0x6324_4007_632a_63b3,
    0x58c7_93cc_5cee_05a0,
    0xf503_4efb_9b6b_2a13,
    0xf354_6653_bccd_88a8,
    0xa379_ff89_09a7_bf7e,
    0x0dd9_06e2_b305_017c,
    0xbcee_3e7b_cf60_e558,
    0xff1d_c30a_e72d_75d3,
];
