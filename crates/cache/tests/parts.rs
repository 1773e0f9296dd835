//! Volumes with parts of their own, and one part for all: nobody is stuck while they are full.

mod common;
use common::{Act, EXTENT, Life, SECTORS, Setup};
use plimsoll_base::{Op, Rng};
use plimsoll_cache::{CacheConfig, Codec, Mode, Sharing};
use plimsoll_stack::sim::oracle::Ask;

fn setup(trim: bool, sharing: Sharing) -> Setup {
    let plain = CacheConfig { codec: Codec::None, fingerprints_percent: 0, ..common::config() };
    let config = CacheConfig { trim, sharing, watermark_percent: 10, ..plain };
    Setup { config, ..Setup::of([Mode::Back, Mode::Back]) }
}

fn write(volume: u32, extent: u64, extents: u64) -> Act {
    let per = EXTENT / common::SECTOR;
    Act::Ask(Ask { op: Op::Write, volume, first: extent * per, len: extents * per, fua: false })
}

/// Writers that fill their parts faster than the slow device takes it, and nothing else happens: whatever was held up for want
/// of a free WEU goes on as soon as there is one, also if nothing but that happens.
#[test]
fn writers_that_wait_for_room_go_on() {
    let extents = SECTORS * common::SECTOR / EXTENT;
    for trim in [true, false] {
        for sharing in [Sharing::PerVolume, Sharing::Shared] {
            for seed in 0..20 {
                let mut rng = Rng::new(seed, "writers");
                let acts: Vec<Act> = (0..300)
                    .flat_map(|_| {
                        let pause = rng.chance(0.5).then_some(Act::Pause(1 + rng.below(4) as u8));
                        let w = write(rng.below(2) as u32, rng.below(extents), 1);
                        std::iter::once(w).chain(pause)
                    })
                    .collect();
                let mut life = Life::begin(seed, setup(trim, sharing));
                life.run(&acts, &mut |_| Ok(true)).unwrap();
                life.settle().unwrap_or_else(|why| panic!("trim {trim}, {sharing:?}, seed {seed}: {why}"));
                life.judge().unwrap();
            }
        }
    }
}

/// Extents written while space was shared lie in WEUs that are one volume's part from now on. Volume 0 needs those WEUs. The other
/// volume has extents in them and sends no request; its extents are written back all the same. In the second turn volume 1 has
/// written its extents again, into its own part, and nobody flushes. Its older extents must stay until a flush.
#[test]
fn who_shared_space_before_is_not_stuck_in_parts_of_its_own() {
    let extents = SECTORS * common::SECTOR / EXTENT;
    for seed in 0..40 {
        let mut rng = Rng::new(seed, "sharers");
        // Nothing is written back but what evictions wait for.
        let quiet = |sharing| {
            let s = setup(seed % 2 == 0, sharing);
            Setup { config: CacheConfig { watermark_percent: 90, ..s.config }, ..s }
        };
        let flush = |volume| Act::Ask(Ask { op: Op::Flush, volume, first: 0, len: 0, fua: false });
        let mut shared: Vec<Act> = (0..30).map(|_| write(rng.below(2) as u32, rng.below(extents), 1)).collect();
        shared.extend([Act::Rest, flush(0), flush(1)]);
        let mut life = Life::begin(seed, quiet(Sharing::Shared));
        life.run(&shared, &mut |_| Ok(true)).unwrap();
        life.settle().unwrap();
        let (disks, oracle) = (life.cut(), life.oracle.clone());
        let mut life = Life::again(disks, quiet(Sharing::PerVolume), oracle).unwrap();
        let mut apart = Vec::new();
        for turn in 0..2 {
            if turn == 1 {
                apart.extend((0..extents).filter(|_| rng.chance(0.5)).map(|n| write(1, n, 1)));
            }
            apart.extend((0..150).map(|_| write(0, rng.below(extents), 1)));
        }
        life.run(&apart, &mut |_| Ok(true)).unwrap();
        life.settle().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        life.judge().unwrap();
    }
}
