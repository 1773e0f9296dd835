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
