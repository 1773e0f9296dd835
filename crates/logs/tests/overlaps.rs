//! The contract of overlaps: reads that a layer above has widened overlap clients' changes on their way to the logs, and the logs' own reads
//! of whole units and their jobs' reads overlap changes below. What they share is never moved or answered with, whatever it is.

mod common;
#[path = "../../cache/tests/common/overlapping.rs"]
mod overlapping;
use common::*;
use overlapping::{Poisons, Widens, pipelined};
use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::{DiskFaults, SimPool};
use plimsoll_stack::*;

const BYTES: u64 = SECTORS * SECTOR / 10 * 10;

/// Requests of one seed; the first that is wrong, and how many reads overlapped a change.
fn run(seed: u64, planted: Option<Planted>) -> (Option<String>, u64) {
    let mut rng = Rng::new(seed, "overlaps");
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(Front::new()),
        Box::new(Widens::new(SECTORS * SECTOR)),
        Box::new(Map::new()),
        Box::new(Logs::new(layout(), LogsConfig { planted, ..config() })),
        Box::<Poisons>::default(),
    ];
    let mut pool = SimPool::chain(StackConfig::default(), layers, vec![formatted(seed, DiskFaults::default())]);
    pool.with_layer(|f: &mut Front, _| {
        f.set_volume(key(0), FrontVolume { size_bytes: SECTORS * SECTOR, read_only: false });
    });
    let whole = Extent { device_offset: 0, len: SECTORS * SECTOR };
    pool.with_layer(|m: &mut Map, _| m.set_volume(key(0), &[whole]));
    assert_eq!(pool.start(), LayerState::Ready);
    let checkpoint = |p: &mut SimPool| {
        let now = p.now();
        p.with_layer(|l: &mut Logs, out| {
            plimsoll_stack::Layer::told(
                l,
                now,
                &plimsoll_stack::Message::encode(&plimsoll_logs::LogsControl::Checkpoint),
                out,
            )
        });
    };
    let wrong = pipelined(&mut pool, key(0), BYTES, &mut rng, checkpoint);
    (wrong, pool.stack().layer::<Poisons>().unwrap().poisoned)
}

#[test]
fn what_a_read_shares_with_a_change_is_not_moved() {
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
fn writing_home_what_was_changed_meanwhile_is_found() {
    let found = (0..100).find_map(|seed| run(seed, Some(Planted::StaleWrittenHome)).0);
    println!("{}", found.expect("the planted mistake is not found"));
}
