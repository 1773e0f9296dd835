//! BLOCK_STATUS of a cached volume: what only the cache has is data; what the slow device has is what that says.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_cache::*;

/// The runs of an answer: length in extents, and whether it's called zero.
fn status(life: &mut Life, volume: u32) -> Vec<(u64, bool)> {
    let now = life.pool.now();
    let head = IoHead::new(Op::BlockStatus, life.oracle.key(volume), TenantId(1), 0, 40 * EXTENT, now);
    life.pool.offer(now, Io::new(head, Data::Absent));
    let c = loop {
        match life.pool.next_done() {
            Some(c) => break c,
            None => assert!(life.pool.step().is_some(), "it never ends"),
        }
    };
    let Data::Status(all) = &c.io.data else { panic!("{c:?}") };
    all.iter().map(|e| (e.len / EXTENT, e.zero)).collect()
}

#[test]
fn dirty_extents_are_data_and_the_rest_is_what_the_slow_device_says() {
    for nvram in [false, true] {
        let config = CacheConfig { watermark_percent: 90, weus_max: 20, ..config() };
        let setup = Setup { config, nvram, ..Setup::of([Mode::Back, Mode::Through]) };
        let mut life = Life::begin(1, setup);
        assert_eq!(status(&mut life, 0), [(40, true)]);
        life.ask_extents(Op::Write, 0, 3..7).unwrap();
        life.ask_extents(Op::Write, 0, 9..10).unwrap();
        life.settle().unwrap();
        life.ask_flush(0).unwrap();
        life.settle().unwrap();
        assert!(life.cache().status().dirty > 0);
        let expected = [(3, true), (4, false), (2, true), (1, false), (30, true)];
        assert_eq!(status(&mut life, 0), expected);
        // After a power loss, too; and when all of it is written back.
        let mut life = Life::again(life.cut(), setup, life.oracle.clone()).unwrap();
        assert_eq!(status(&mut life, 0), expected);
        life.order(plimsoll_cache::CacheControl::Flush);
        life.settle().unwrap();
        assert_eq!(life.cache().status().dirty, 0);
        assert_eq!(status(&mut life, 0), expected, "the slow device's own answer");
        // Zeroes that only the cache has are data: that is always right.
        life.ask_extents(Op::Write, 0, 20..40).unwrap();
        life.settle().unwrap();
        assert_eq!(status(&mut life, 0)[4..], [(10, true), (20, false)]);
        // All of it only here: nobody is asked.
        life.ask_extents(Op::Write, 0, 0..20).unwrap();
        life.settle().unwrap();
        let before = life.pool.now();
        assert_eq!(status(&mut life, 0), [(40, false)]);
        assert!(life.pool.now().since(before) < us(50), "answered from memory");
        // Written through and clean in the cache.
        life.ask_extents(Op::Write, 1, 5..6).unwrap();
        life.settle().unwrap();
        assert_eq!(status(&mut life, 1), [(5, true), (1, false), (34, true)]);
    }
}
