//! The contract of overlaps: the cache's own reads of whole extents, and those that a layer above has widened, overlap clients' changes. What the two
//! share is never kept, and never answered with, whatever it is.

mod common;
#[path = "common/overlapping.rs"]
mod overlapping;
use common::*;
use overlapping::{Poisons, Widens, pipelined};
use plimsoll_base::*;
use plimsoll_cache::*;
use plimsoll_stack::sim::SimPool;
use plimsoll_stack::*;

const BYTES: u64 = SECTORS * SECTOR / 10 * 10;

/// Requests of one seed; the first that is wrong, and how many reads overlapped a change.
fn run(seed: u64, planted: Option<Planted>) -> (Option<String>, u64) {
    let mut rng = Rng::new(seed, "overlaps");
    let config = CacheConfig { planted, ..config() };
    let mode = [Mode::Through, Mode::Back][seed as usize % 2];
    let key = VolumeKey { id: 1, generation: 1 };
    let mut pool = SimPool::with_stack(disks(seed, 512), |offers| {
        let mut s = Stack::new(StackConfig::default(), offers);
        s.push(Box::new(Front::new()), vec![Target::Node(1)]);
        s.push(Box::new(Widens::new(SECTORS * SECTOR)), vec![Target::Node(2)]);
        s.push(Box::new(Cache::new(layout(), config)), vec![Target::Node(3), Target::Node(5)]);
        s.push(Box::new(Map::new()), vec![Target::Node(4)]);
        s.push(Box::<Poisons>::default(), vec![Target::Device(0)]);
        s.push(Box::<Poisons>::default(), vec![Target::Device(1)]);
        s
    });
    announce(&mut pool, key, mode);
    assert_eq!(pool.start(), LayerState::Ready);
    let checkpoint = |p: &mut SimPool| {
        let now = p.now();
        p.with_layer(|c: &mut Cache, out| {
            plimsoll_stack::Layer::told(
                c,
                now,
                &plimsoll_stack::Message::encode(&plimsoll_cache::CacheControl::Flush),
                out,
            )
        });
    };
    let wrong = pipelined(&mut pool, key, BYTES, &mut rng, checkpoint);
    (wrong, pool.stack().layer::<Poisons>().unwrap().poisoned)
}

#[test]
fn what_a_read_shares_with_a_change_is_not_kept() {
    let mut poisoned = 0;
    for seed in 0..100 {
        let (wrong, n) = run(seed, None);
        assert_eq!(wrong, None, "seed {seed}");
        poisoned += n;
    }
    println!("{poisoned} reads overlapped a change");
    assert!(poisoned > 100, "{poisoned}");
}

#[test]
fn keeping_what_a_read_shares_with_a_change_is_found() {
    let found = (0..100).find_map(|seed| run(seed, Some(Planted::StaleFill)).0);
    println!("{}", found.expect("the planted mistake is not found"));
}
