//! A table that a power loss left too full for an image, which the start must write first: logged blocks are written back, and the start succeeds.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::{Corruption, DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;

const EXTENTS_MAX: u32 = 64;
/// Logged writes: as many as are logged before the table counts as full.
const WRITES: u64 = EXTENTS_MAX as u64 / 4 * 3 - 1;
const LEN: u64 = 2048;

fn layout() -> Layout {
    let shape = layout::Shape { group_bytes: 1 << 20, log_bytes: 128 << 10, extents_max: EXTENTS_MAX };
    Layout::new(8 << 20, 512, shape, 0x5eed).expect("it fits")
}

fn pool(disk: SimDisk) -> SimPool {
    let layout = layout();
    let (mut front, mut map) = (Front::new(), Map::new());
    front.set_volume(key(0), FrontVolume { size_bytes: layout.home_bytes, read_only: false });
    map.set_volume(key(0), &[Extent { device_offset: 0, len: layout.home_bytes }]);
    // It makes room slowly, and an image comes for nothing else.
    let clean = CleanConfig { idle_after: None, batch_bytes: LEN, ..config().clean };
    let config = LogsConfig { clean, image_every: Span::from_secs(100), ..config() };
    SimPool::chain(
        StackConfig::default(),
        vec![Box::new(front), Box::new(map), Box::new(Logs::new(layout, config))],
        vec![disk],
    )
}

/// Expected content of the volume's beginning: each write's sectors but for its second, which was trimmed.
fn expected() -> Vec<u8> {
    (0..WRITES)
        .flat_map(|n| {
            let mut bytes = vec![n as u8 + 1; LEN as usize];
            bytes[SECTOR as usize..2 * SECTOR as usize].fill(0);
            bytes.resize(2 * LEN as usize, 0);
            bytes
        })
        .collect()
}

fn read_all(p: &mut SimPool) -> Vec<u8> {
    let c = ask(p, Op::Read, 0, WRITES * 2 * LEN, 0);
    assert!(c.outcome.is_done(), "{:?}", c.outcome);
    bytes(&c)
}

/// A layout page is corrupt: the start must write an image before it serves.
fn spoiled(mut disk: SimDisk) -> SimDisk {
    disk.lose_power();
    assert!(disk.corrupt(0, Corruption::Zeroes));
    disk
}

/// A pool that has written and trimmed so much that its table has no room for an image.
fn crowded() -> SimPool {
    let l = layout();
    let mut disk = SimDisk::new(l.device_bytes, (us(1), us(200)), 3, DiskFaults::default()).with_history();
    for (at, bytes) in format_device(&l) {
        disk.write_durably(at, &bytes);
    }
    let mut p = pool(disk);
    assert_eq!(p.start(), LayerState::Ready);
    for n in 0..WRITES {
        assert!(ask(&mut p, Op::Write, n * 2 * LEN, LEN, n as u8 + 1).outcome.is_done());
    }
    ask(&mut p, Op::Flush, 0, 0, 0);
    // Trims cut each of them in two, all at once.
    for n in 0..WRITES {
        let mut head = IoHead::new(Op::Trim, key(0), TenantId(1), n * 2 * LEN + SECTOR, SECTOR, p.now());
        head.tag = n;
        let now = p.now();
        p.offer(now, Io::new(head, Data::Absent));
    }
    let mut ended = 0;
    while ended < WRITES {
        match p.next_done() {
            Some(_) => ended += 1,
            None => drop(p.step().expect("they end")),
        }
    }
    ask(&mut p, Op::Flush, 0, 0, 0);
    p
}

#[test]
fn a_table_too_full_for_an_image_is_emptied_at_the_start() {
    let mut p = crowded();
    let (mut starts, mut emptied, mut cuts) = (0, 0, 0);
    loop {
        let disk = spoiled(p.disk(0).clone());
        let mut next = pool(disk.clone());
        assert_eq!(next.start(), LayerState::Ready, "{:?}", problem(&mut next));
        assert_eq!(read_all(&mut next), expected());
        starts += 1;
        let status = logs(&mut next);
        if status.counters.checkpoints > 0 {
            emptied += 1;
            assert!(status.counters.last_clean.is_some_and(|c| c.why == Why::Full));
            // A power loss at any instant of that changes nothing.
            let all = if emptied == 1 || emptied % 20 == 0 { usize::MAX } else { 0 };
            for events in (0..).step_by(if emptied == 1 { 1 } else { 13 }).take(all) {
                let mut p = pool(disk.clone());
                let now = p.now();
                p.stack().start(now);
                p.with_layer(|_: &mut Logs, _| ());
                let over = (0..events).any(|_| p.step().is_none()) || p.stack().state() == LayerState::Ready;
                let mut left = p.disk(0).clone();
                left.lose_power();
                let mut again = pool(left);
                assert_eq!(again.start(), LayerState::Ready, "after {events} events: {:?}", problem(&mut again));
                assert_eq!(read_all(&mut again), expected(), "after {events} events");
                cuts += 1;
                if over {
                    break;
                }
            }
        }
        if p.step().is_none() {
            break;
        }
    }
    println!("{starts} starts, {emptied} of them made room; {cuts} power losses meanwhile");
    assert!(emptied > 2 && cuts > 20, "{emptied} of {starts} starts made room, {cuts} power losses meanwhile");
}

/// Stopped at any instant of that, the start ends soon. The next one finds what this one did.
#[test]
fn a_start_that_is_stopped_while_it_makes_room_ends() {
    let mut p = crowded();
    let disk = loop {
        let disk = spoiled(p.disk(0).clone());
        let mut next = pool(disk.clone());
        assert_eq!(next.start(), LayerState::Ready);
        if logs(&mut next).counters.checkpoints > 0 {
            break disk;
        }
        p.step().expect("some start makes room");
    };
    let mut ended = 0;
    for events in 0.. {
        let mut p = pool(disk.clone());
        let now = p.now();
        p.stack().start(now);
        p.with_layer(|_: &mut Logs, _| ());
        let over = (0..events).any(|_| p.step().is_none()) || p.stack().state() == LayerState::Ready;
        if over {
            break;
        }
        // Somebody waits for the start.
        let now = p.now();
        p.offer(now, Io::new(IoHead::new(Op::Read, key(0), TenantId(1), 0, SECTOR, now), Data::Absent));
        p.with_layer(|l: &mut Logs, out| Layer::stop(l, now, out));
        let begun = logs(&mut p).counters.cleans_failed;
        p.run();
        assert!(p.next_done().is_some(), "after {events} events");
        let again = logs(&mut p).counters.cleans_failed - begun;
        assert!(again <= 1, "after {events} events {again} jobs were begun in vain");
        match p.start() {
            LayerState::Ready => {}
            state => {
                let why = problem(&mut p).unwrap_or_default();
                assert!(
                    state == LayerState::Failed && why.contains("start again"),
                    "after {events} events {state:?}: {why}"
                );
                ended += 1;
            }
        }
        let mut again = pool(p.disk(0).clone());
        assert_eq!(again.start(), LayerState::Ready, "after {events} events: {:?}", problem(&mut again));
        assert_eq!(read_all(&mut again), expected(), "after {events} events");
    }
    assert!(ended > 5, "{ended} starts ended");
}
