//! Bad media, foreign devices, and the layer's rules, each seen from outside.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::*;

/// Fails writes to a range of the device, and remembers where writes went.
struct BadSpot {
    from: u64,
    to: u64,
    writes: Vec<(u64, u64)>,
}

impl Layer for BadSpot {
    fn name(&self) -> &'static str {
        "bad spot"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        if io.op == Op::Write {
            self.writes.push((io.offset, io.len));
            if io.offset < self.to && self.from < io.end() {
                return out.end(io, Outcome::Failed(IoError::Device));
            }
        }
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

fn over(from: u64, to: u64, config: LogsConfig) -> SimPool {
    let mut front = Front::new();
    let mut map = Map::new();
    front.set_volume(key(0), FrontVolume { size_bytes: layout().home_bytes, read_only: false });
    map.set_volume(key(0), &[Extent { device_offset: 0, len: layout().home_bytes }]);
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(front),
        Box::new(map),
        Box::new(Logs::new(layout(), config)),
        Box::new(BadSpot { from, to, writes: Vec::new() }),
    ];
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![formatted(1, DiskFaults::default())]);
    assert_eq!(p.start(), LayerState::Ready);
    p
}

fn last_write(p: &mut SimPool) -> u64 {
    p.stack().layer::<BadSpot>().unwrap().writes.last().unwrap().0
}

#[test]
fn a_log_that_goes_bad_is_retired_and_its_writes_go_elsewhere() {
    let l = layout();
    let near = l.log_start(0);
    let mut p = over(near, near + l.shape.log_bytes, config());
    ask(&mut p, Op::Read, 0, 512, 0);
    assert!(ask(&mut p, Op::Write, 4096, 1024, 9).outcome.is_done(), "it found another log");
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [9; 1024]);
    let s = logs(&mut p);
    assert_eq!((s.counters.logs_retired, s.occupancy[0], s.counters.records_failed), (1, 255, 1));
    // Retired for good: after an image and a power loss too.
    let now = p.now();
    p.with_layer(|l: &mut Logs, out| l.drain(now, out));
    p.run();
    let (mut again, _) = recovered(p.lose_power().remove(0), config(), None).unwrap();
    assert_eq!(logs(&mut again).occupancy[0], 255);
}

#[test]
fn without_any_good_log_small_writes_go_home() {
    let mut p = over(layout().base, u64::MAX, config());
    assert_eq!(ask(&mut p, Op::Write, 0, 512, 1).outcome, Outcome::Failed(IoError::Device), "home is as bad");
    let s = logs(&mut p);
    assert_eq!(s.counters.logs_retired, u64::from(s.logs));
    let noted = p.now() + Span::from_millis(10);
    p.run_until(noted);
    assert!(p.stack().is_idle());
}

#[test]
fn the_nearest_log_to_the_last_unlogged_request_is_used() {
    let l = layout();
    let mut p = over(0, 0, config());
    for log in [5, 0, 3, l.logs - 1] {
        // A read near the middle of a group, then a small write to somewhere else.
        let home = u64::from(log) * (l.shape.group_bytes - l.shape.log_bytes) + 4096;
        ask(&mut p, Op::Read, home, 512, 0);
        ask(&mut p, Op::Write, 8192, 512, 1);
        let at = last_write(&mut p);
        assert_eq!(l.group_of(at), log, "near the read");
        assert!((l.log_start(log)..l.log_start(log) + l.shape.log_bytes).contains(&at));
    }
    // What is larger than LoggedWriteSize goes home.
    ask(&mut p, Op::Write, 8192, 4096, 1);
    assert_eq!(last_write(&mut p), l.to_device(8192).0);
}

#[test]
fn a_burst_becomes_few_records_and_a_checkpoint_few_ascending_writes() {
    let mut p = over(0, 0, config());
    for i in (0..16u64).rev() {
        let mut head = IoHead::new(Op::Write, key(0), TenantId(1), 8192 + i * 512, 512, p.now());
        head.tag = i;
        let now = p.now();
        p.offer(now, Io::new(head, Data::Bytes(Buf::copy_of(&[i as u8; 512]))));
    }
    p.run_until(Time::ZERO + us(3000));
    while p.next_done().is_some() {}
    let s = logs(&mut p);
    assert!(s.counters.logged == 16 && s.counters.records <= 3, "{:?}", s.counters);
    let now = p.now();
    p.with_layer(|l: &mut Logs, out| {
        plimsoll_stack::Layer::told(
            l,
            now,
            &plimsoll_stack::Message::encode(&plimsoll_logs::LogsControl::Checkpoint),
            out,
        )
    });
    p.run();
    let s = logs(&mut p);
    let report = s.counters.last_clean.unwrap();
    assert_eq!((report.writes, report.write_bytes, s.valid_bytes), (1, 16 * 512, 0), "neighbours merged: {report:?}");
    assert_eq!(bytes(&ask(&mut p, Op::Read, 8192, 8192, 0))[8 * 512], 8);
}

#[test]
fn another_layout_version_or_device_is_refused() {
    let disk = formatted(1, DiskFaults::default());
    let says = |change: &dyn Fn(&mut plimsoll_stack::sim::SimDisk)| {
        let mut disk = disk.clone();
        change(&mut disk);
        recovered(disk, config(), None).map(|_| ()).unwrap_err()
    };
    let other = Shape { extents_max: 512, ..layout().shape };
    let other = Layout::new(DEVICE_BYTES, 512, other, 1).unwrap();
    let page = |l: &Layout| plimsoll_logs::format::encode_layout(l);
    type Disk = plimsoll_stack::sim::SimDisk;
    let both = |d: &mut Disk, b: &[u8]| plimsoll_logs::layout::LAYOUTS_AT.iter().for_each(|at| d.write_durably(*at, b));
    assert!(says(&|d| both(d, &page(&other))).contains("laid out otherwise"));
    assert!(says(&|d| both(d, &[0; 512])).contains("has no logs"));
    let torn = |d: &mut Disk| {
        let mut b = page(&layout());
        b[20] ^= 1;
        both(d, &b);
    };
    assert!(says(&torn).contains("torn or corrupt"));
    // One page is enough: a program that knows the version was converting the device.
    for at in plimsoll_logs::layout::LAYOUTS_AT {
        let newer = |d: &mut Disk| {
            let mut b = page(&layout());
            b[8] = 9;
            let sum = xxhash_rust::xxh3::xxh3_64(&b[..56]).to_le_bytes();
            b[56..64].copy_from_slice(&sum);
            d.write_durably(at, &b);
        };
        assert!(says(&newer).contains("of version 9"));
    }
    let no_images = |d: &mut Disk| {
        [0, 1].into_iter().for_each(|n| d.write_durably(layout().image_at(n), &[0; 512]));
    };
    assert!(says(&no_images).contains("image 1 of the MTL table"));
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = || {
        let mut life = Life { pool: pool(formatted(3, Default::default()), config(), Some(3)), oracle: Oracle::new() };
        life.pool.start();
        life.run(&some_acts(3, 200), &mut |_| Ok(true)).unwrap();
        (life.pool.events(), life.pool.now(), format!("{:?}", logs(&mut life.pool)))
    };
    assert_eq!(run(), run());
}

/// Logged data belong to a volume and its generation: a later one in the same place doesn't see them, though nobody zeroed it.
#[test]
fn what_a_deleted_volume_logged_does_not_come_back() {
    let mut p = over(0, 0, config());
    assert!(ask(&mut p, Op::Write, 4096, 1024, 9).outcome.is_done());
    let new = VolumeKey { generation: 2, ..key(0) };
    let size_bytes = layout().home_bytes;
    p.with_layer(|f: &mut Front, _| f.set_volume(new, FrontVolume { size_bytes, read_only: false }));
    p.with_layer(|m: &mut Map, _| m.set_volume(new, &[Extent { device_offset: 0, len: size_bytes }]));
    let mut of_new = |op, len: u64, byte: u8| {
        let mut head = IoHead::new(op, new, TenantId(1), 4096, len, p.now());
        head.tag = 8;
        let data = if op == Op::Write { Data::Bytes(Buf::copy_of(&vec![byte; len as usize])) } else { Data::Absent };
        let now = p.now();
        p.offer(now, Io::new(head, data));
        loop {
            if let Some(c) = p.next_done() {
                return (bytes(&c), logs(&mut p).counters.foreign_hidden);
            }
            p.step().expect("it ends");
        }
    };
    assert_eq!(of_new(Op::Read, 1024, 0), (vec![0; 1024], 1));
    of_new(Op::Write, 512, 5);
    assert_eq!(of_new(Op::Read, 1024, 0).0, [[5; 512], [0; 512]].concat());
}

/// A layer without space for changes of a range until a time.
struct NoSpace {
    range: (u64, u64),
    until: Time,
}

impl Layer for NoSpace {
    fn name(&self) -> &'static str {
        "no space"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if io.op.is_change() && io.offset < self.range.1 && self.range.0 < io.end() && now < self.until {
            return out.end(io, Outcome::Failed(IoError::NoSpace));
        }
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

fn without_space(range: (u64, u64)) -> SimPool {
    let until = Time::ZERO + Span::from_secs(3);
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(Front::new()),
        Box::new(Map::new()),
        Box::new(Logs::new(layout(), config())),
        Box::new(NoSpace { range, until }),
    ];
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![formatted(1, DiskFaults::default())]);
    let size_bytes = layout().home_bytes;
    p.with_layer(|f: &mut Front, _| f.set_volume(key(0), FrontVolume { size_bytes, read_only: false }));
    p.with_layer(|m: &mut Map, _| m.set_volume(key(0), &[Extent { device_offset: 0, len: size_bytes }]));
    assert_eq!(p.start(), LayerState::Ready);
    p
}

fn checkpoint(p: &mut SimPool) {
    let now = p.now();
    p.with_layer(|l: &mut Logs, out| {
        plimsoll_stack::Layer::told(
            l,
            now,
            &plimsoll_stack::Message::encode(&plimsoll_logs::LogsControl::Checkpoint),
            out,
        )
    });
}

/// A full file system under the table is no reason to give up: the table is written when there is room.
#[test]
fn a_table_that_finds_no_space_is_written_later() {
    let l = layout();
    let mut p = without_space((l.image_at(0), l.base));
    assert!(ask(&mut p, Op::Write, 4096, 1024, 9).outcome.is_done());
    checkpoint(&mut p);
    p.run_until(Time::ZERO + Span::from_secs(2));
    let s = logs(&mut p);
    assert!(s.problem.unwrap().contains("the MTL table can't be written"));
    assert!(s.counters.table_errors >= 1 && s.valid_bytes == 1024);
    // It goes on meanwhile.
    assert!(ask(&mut p, Op::Write, 16384, 1024, 7).outcome.is_done());
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [9; 1024]);
    p.run_until(Time::ZERO + Span::from_secs(60));
    checkpoint(&mut p);
    p.run_until(Time::ZERO + Span::from_secs(120));
    let s = logs(&mut p);
    assert_eq!((s.problem, s.valid_bytes), (None, 0));
    assert_eq!(bytes(&ask(&mut p, Op::Read, 16384, 1024, 0)), [7; 1024]);
}

#[test]
fn a_note_that_finds_no_space_is_written_later_and_writes_go_home_meanwhile() {
    let mut p = without_space((plimsoll_logs::layout::NOTES_AT[1], plimsoll_logs::layout::NOTES_AT[1] + 512));
    assert!(ask(&mut p, Op::Write, 4096, 1024, 9).outcome.is_done());
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    let s = logs(&mut p);
    assert!(s.problem.unwrap().contains("a note can't be written"));
    assert_eq!((s.valid_bytes, s.counters.logged), (0, 0), "it went home");
    p.run_until(Time::ZERO + Span::from_secs(60));
    assert!(ask(&mut p, Op::Write, 4096, 1024, 8).outcome.is_done());
    let s = logs(&mut p);
    assert_eq!((s.problem, s.counters.logged), (None, 1));
}

#[test]
fn a_log_that_finds_no_space_is_used_again_when_it_was_emptied() {
    let l = layout();
    let mut p = without_space((l.log_start(0), l.log_start(0) + l.shape.log_bytes));
    ask(&mut p, Op::Read, 0, 512, 0);
    assert!(ask(&mut p, Op::Write, 4096, 1024, 9).outcome.is_done(), "it found another log");
    assert_eq!(logs(&mut p).occupancy[0], 255);
    p.run_until(Time::ZERO + Span::from_secs(5));
    checkpoint(&mut p);
    p.run_until(Time::ZERO + Span::from_secs(60));
    assert_eq!(logs(&mut p).occupancy[0], 0);
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [9; 1024]);
}

/// With both notes corrupt all logs are looked at; with both images it fails and says so. With loss accepted, it serves and says what is
/// missing.
#[test]
fn where_both_copies_are_corrupt_it_looks_everywhere_or_says_so() {
    use plimsoll_stack::sim::Corruption;
    let mut p = over(0, 0, config());
    for i in 0..3 {
        assert!(ask(&mut p, Op::Write, 4096 * (i + 1), 1024, 9).outcome.is_done());
        assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    }
    let disk = p.lose_power().remove(0);
    let start = |change: &dyn Fn(&mut plimsoll_stack::sim::SimDisk), config: LogsConfig| {
        let mut disk = disk.clone();
        change(&mut disk);
        let (mut p, state, found) = started(disk, config).unwrap();
        (state, problem(&mut p), found)
    };
    let notes = plimsoll_logs::layout::NOTES_AT.map(|at| at / SECTOR);
    let (state, what, found) =
        start(&|d| notes.iter().for_each(|s| assert!(d.corrupt(*s, Corruption::Bit(3)))), config());
    assert_eq!((state, what), (LayerState::Ready, None));
    assert_eq!(found[0][8].as_deref(), Some(&[9; 512][..]));
    let images = [0, 1].map(|n| layout().image_at(n) / SECTOR);
    let (state, what, _) = start(&|d| images.iter().for_each(|s| assert!(d.corrupt(*s, Corruption::Bit(3)))), config());
    assert!(state == LayerState::Failed && what.unwrap().contains("corrupt in both places"));
    // The first record's header: the next one says that it was durable.
    let log = (0..layout().logs).find(|l| {
        !disk.written_sectors(layout().log_start(*l) / SECTOR, layout().log_start(*l) / SECTOR + 1).is_empty()
    });
    let first = layout().log_start(log.expect("one is used")) / SECTOR;
    let corrupt = |d: &mut plimsoll_stack::sim::SimDisk| assert!(d.corrupt(first, Corruption::Zeroes));
    let (state, what, _) = start(&corrupt, config());
    assert!(state == LayerState::Failed && what.unwrap().contains("durable records"));
    let (state, what, _) = start(&corrupt, LogsConfig { accept_loss: true, ..config() });
    assert!(state == LayerState::Degraded && what.unwrap().contains("durable records"));
}

/// Behind an empty record under way, a client's write is under way, too. Power is lost; the write reached the disk, the empty record didn't.
/// The next start writes an empty record in the same place. Returns what is read of the write's range by that start and by the next.
fn behind_an_empty_record(planted: Option<Planted>) -> (u8, u8) {
    let quiet = CleanConfig { idle_after: None, ..config().clean };
    let config =
        LogsConfig { planted, clean: quiet, gather: Span::ZERO, image_every: Span::from_secs(3600), ..config() };
    let mut p = pool(formatted(1, DiskFaults::default()), config, None);
    assert_eq!(p.start(), LayerState::Ready);
    let write = |p: &mut SimPool, offset, byte: u8| {
        let mut head = IoHead::new(Op::Write, key(0), TenantId(1), offset, SECTOR, p.now());
        head.flags = IoFlags::FUA;
        let now = p.now();
        p.offer(now, Io::new(head, Data::Bytes(Buf::copy_of(&[byte; SECTOR as usize]))));
    };
    write(&mut p, 0, 1);
    while p.stack().inflight() > 0 {
        p.step().expect("it ends");
    }
    // Until the empty record that says so is on its way.
    let records = logs(&mut p).counters.witness_records;
    while logs(&mut p).counters.witness_records == records {
        p.step().expect("a witness is written");
    }
    let before = p.disk(0).written_sectors(0, DEVICE_BYTES / SECTOR);
    write(&mut p, 8 * SECTOR, 2);
    let after = p.disk(0).written_sectors(0, DEVICE_BYTES / SECTOR);
    let new: Vec<u64> = after.iter().copied().filter(|s| !before.contains(s)).collect();
    assert_eq!(new.len(), 2, "a header and its data, right behind the empty record: {new:?}");
    let empty = new[0] - 1;
    // One of the ways in which the power may be lost now.
    let lost = (0..500).find_map(|draws| {
        let mut disk = p.disk(0).clone();
        (0..draws).for_each(|_| _ = disk.draw_latency());
        disk.lose_power();
        let there = |s: u64| !disk.written_sectors(s, s + 1).is_empty();
        (!there(empty) && there(new[0]) && there(new[1])).then_some(disk)
    });
    let mut p = pool(lost.expect("it is one of eight"), config, None);
    assert_eq!(p.start(), LayerState::Ready);
    // The arm is where it was at the first start, before a witness is due: the same log is the nearest.
    let first = bytes(&ask(&mut p, Op::Read, 8 * SECTOR, SECTOR, 0))[0];
    let until = p.now() + Span::from_secs(1);
    p.run_until(until);
    assert!(!p.disk(0).written_sectors(empty, empty + 1).is_empty(), "the second start's empty record");
    let (mut p, _) = recovered(p.lose_power().remove(0), config, None).expect("it starts");
    (first, bytes(&ask(&mut p, Op::Read, 8 * SECTOR, SECTOR, 0))[0])
}

#[test]
fn what_a_start_left_out_does_not_follow_the_next_ones_record() {
    assert_eq!(behind_an_empty_record(None), (0, 0));
    assert_eq!(behind_an_empty_record(Some(Planted::StartsAlike)), (0, 2), "the test can fail");
}

/// All that a disk holds, on another one.
fn copied(seed: u64, block: u64, bytes: &[u8]) -> SimDisk {
    let mut disk = formatted_with(seed, block);
    disk.write_durably(0, bytes);
    disk
}

/// Two records go to a log, one after the other, and the power is lost when one sector of the first one is still as it was before. The
/// next start passes over both. The same writes come again; of the first one's record that sector alone reaches the device before the
/// power is lost again. Returns the second one's byte as the first of these starts and as the next one reads it.
fn completed_by_another(block: u64, torn: u64, planted: Option<Planted>) -> (u8, u8) {
    let config = LogsConfig {
        planted,
        gather: Span::ZERO,
        clean: CleanConfig { idle_after: None, ..config().clean },
        ..config_for(block)
    };
    let layout = layout_of(block);
    let mut disk = formatted_with(7, block);
    // Behind a log's end there may be anything.
    for log in 0..layout.logs {
        disk.write_durably(layout.log_start(log), &vec![0xa5; layout.shape.log_bytes as usize]);
    }
    let all = |p: &mut SimPool| p.disk(0).peek(0, DEVICE_BYTES).as_slice().to_vec();
    let write = |p: &mut SimPool, place: u64, byte: u8| {
        let (now, len) = (p.now(), 2 * SECTOR.max(block / 2));
        let head = IoHead::new(Op::Write, key(0), TenantId(1), place * 8192, len, now);
        p.offer(now, Io::new(head, Data::Bytes(Buf::copy_of(&vec![byte; len as usize]))));
    };
    let mut p = pool(disk, config, None);
    assert_eq!(p.start(), LayerState::Ready);
    let now = p.now();
    p.run_until(now + us(1000));
    // The note that names the log goes first; then both records, and no flush.
    write(&mut p, 0, 1);
    while p.stack().inflight() > 0 {
        p.step().expect("it ends");
    }
    let (records, written) = (logs(&mut p).counters.records, all(&mut p));
    let header = (0..layout.logs).map(|log| layout.log_start(log)).find(|at| written[*at as usize] != 0xa5);
    let torn = header.expect("a log has the record") + torn * SECTOR;
    write(&mut p, 1, 2);
    while p.stack().inflight() > 0 {
        p.step().expect("it ends");
    }
    assert_eq!(logs(&mut p).counters.records, records + 1);
    let mut left = copied(8, block, &all(&mut p));
    left.write_durably(torn, &[0xa5; SECTOR as usize]);
    let (mut p, _) = recovered(left, config, None).expect("it starts");
    let now = p.now();
    p.run_until(now + us(5000));
    let first = bytes(&ask(&mut p, Op::Read, 8192, SECTOR, 0))[0];
    let mut before = all(&mut p);
    write(&mut p, 0, 1);
    while p.stack().inflight() > 0 {
        p.step().expect("it ends");
    }
    let after = all(&mut p);
    assert_ne!(before, after);
    let sector = torn as usize..(torn + SECTOR) as usize;
    before[sector.clone()].copy_from_slice(&after[sector]);
    let (mut p, _) = recovered(copied(9, block, &before), config, None).expect("it starts");
    (first, bytes(&ask(&mut p, Op::Read, 8192, SECTOR, 0))[0])
}

/// The rest of a torn record isn't completed by a torn one that is written over it: neither its header, by a block's zeroes, nor its
/// data, by a client's that repeats a write.
#[test]
fn a_torn_record_is_not_completed_by_another() {
    for (block, torn) in [(4096, 1), (4096, 8), (512, 1), (512, 2)] {
        assert_eq!(completed_by_another(block, torn, None), (0, 0), "block {block}, sector {torn}");
        let planted = Some(Planted::TornRevived);
        assert_eq!(completed_by_another(block, torn, planted), (0, 2), "the test can fail: {block}, {torn}");
    }
}

/// Fails the next write after it had its effect, and keeps the one after that from the device for ever.
#[derive(Default)]
struct Stubborn {
    fails: bool,
    holds: bool,
    failing: Option<IoId>,
}

impl Layer for Stubborn {
    fn name(&self) -> &'static str {
        "stubborn"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        if io.op != Op::Write || io.origin == Origin::Own(OwnKind::Metadata) {
            return out.submit(0, io);
        }
        if std::mem::take(&mut self.fails) {
            (self.failing, self.holds) = (Some(io.id), true);
        } else if std::mem::take(&mut self.holds) {
            return;
        }
        out.submit(0, io);
    }
    fn completed(&mut self, _now: Time, mut c: Completion, out: &mut Actions) {
        if self.failing.take_if(|id| *id == c.io.id).is_some() {
            c.outcome = Outcome::Failed(IoError::Device);
        }
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

/// A range has a durable copy in a log. A newer write's record fails after it reached the disk, and is on its way to another log when
/// somebody flushes and the power is lost. Returns what is read then.
fn beside_a_failed_record(planted: Option<Planted>) -> u8 {
    let quiet = CleanConfig { idle_after: None, ..config().clean };
    let config =
        LogsConfig { planted, clean: quiet, gather: Span::ZERO, image_every: Span::from_secs(3600), ..config() };
    let (mut front, mut map) = (Front::new(), Map::new());
    let size_bytes = SECTORS * SECTOR;
    front.set_volume(key(0), FrontVolume { size_bytes, read_only: false });
    map.set_volume(key(0), &[Extent { device_offset: 0, len: size_bytes }]);
    let layers: Vec<Box<dyn Layer>> =
        vec![Box::new(front), Box::new(map), Box::new(Logs::new(layout(), config)), Box::new(Stubborn::default())];
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![formatted(1, DiskFaults::default())]);
    assert_eq!(p.start(), LayerState::Ready);
    ask(&mut p, Op::Write, 4096, SECTOR, 1);
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    p.with_layer(|s: &mut Stubborn, _| s.fails = true);
    // The read brings the arm to the other end, so that kills go to a log there.
    let far = size_bytes - SECTOR;
    for (op, offset, len) in [(Op::Write, 4096, SECTOR), (Op::Read, far, SECTOR), (Op::Flush, 0, 0)] {
        let (head, now) = (IoHead::new(op, key(0), TenantId(1), offset, len, p.now()), p.now());
        p.offer(now, Io::new(head, Data::Bytes(Buf::copy_of(&vec![2; len as usize]))));
        let until = p.now() + Span::from_millis(20);
        p.run_until(until);
    }
    assert_eq!(logs(&mut p).counters.records_failed, 1);
    let (mut p, _) = recovered(p.lose_power().remove(0), config, None).expect("it starts");
    bytes(&ask(&mut p, Op::Read, 4096, SECTOR, 0))[0]
}

/// The failed record's copy is newer than the durable one, and was never acknowledged: either may be read.
#[test]
fn a_durable_copy_outlives_the_kill_of_a_failed_one() {
    assert_ne!(beside_a_failed_record(None), 0);
    assert_eq!(beside_a_failed_record(Some(Planted::OF_ERRORS)), 0, "the test can fail");
}

/// Runs until the logs have nothing to do any more, or for a minute.
fn settle(p: &mut SimPool) {
    let until = p.now() + Span::from_secs(60);
    p.run_until(until);
}

/// A pool that empties no log by itself, with a durable write near each end of the device, and the first sector of data that each log in use has.
fn in_two_logs() -> (SimPool, Vec<u64>) {
    let clean = CleanConfig { idle_after: None, ..config().clean };
    let mut p = over(0, 0, LogsConfig { clean, ..config() });
    let far = layout().home_bytes - 8192;
    for (arm, offset, byte) in [(0, 4096, 9), (far, 20480, 7)] {
        ask(&mut p, Op::Read, arm, 512, 0);
        assert!(ask(&mut p, Op::Write, offset, 1024, byte).outcome.is_done());
    }
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    let l = layout();
    let used = logs(&mut p)
        .occupancy
        .iter()
        .enumerate()
        .filter(|(_, o)| **o > 0)
        .map(|(log, _)| log as u32)
        .collect::<Vec<_>>();
    assert_eq!(used.len(), 2, "each arm has its log");
    (p, used.iter().map(|log| l.log_start(*log) / SECTOR + 1).collect())
}

/// The logged data that can't be read stay where they are, and everything else goes home.
#[test]
fn a_log_that_cannot_be_read_does_not_keep_the_others_from_being_emptied() {
    let (mut p, data) = in_two_logs();
    p.disk(0).lose_sector(data[0]);
    checkpoint(&mut p);
    settle(&mut p);
    let s = logs(&mut p);
    assert_eq!((s.counters.checkpoints, s.valid_bytes), (1, 1024), "the other log is empty: {:?}", s.counters);
    assert!(s.problem.expect("it says so").contains("logged data of 1 logs can't be read"));
    assert_eq!(ask(&mut p, Op::Read, 4096, 1024, 0).outcome, Outcome::Failed(IoError::Device));
    assert_eq!(bytes(&ask(&mut p, Op::Read, 20480, 1024, 0)), [7; 1024]);
    // It isn't read over and over: the next ones leave it out.
    assert!(ask(&mut p, Op::Write, 32768, 1024, 5).outcome.is_done());
    let errors = logs(&mut p).counters.clean_errors;
    fill(&mut p);
    settle(&mut p);
    let s = logs(&mut p);
    assert_eq!((s.valid_bytes, s.counters.clean_errors), (1024, errors), "{:?}", s.counters);
    // Nothing of it is given up: where it can be read again, a power loss later, it's there.
    let mut disk = p.lose_power().remove(0);
    disk.heal_sectors();
    let mut p = again(disk);
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [9; 1024]);
    checkpoint(&mut p);
    settle(&mut p);
    assert_eq!((logs(&mut p).valid_bytes, problem(&mut p)), (0, None));
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [9; 1024]);
}

/// Small writes until no log has room, so that all are emptied.
fn fill(p: &mut SimPool) {
    let spilled = logs(p).counters.spilled;
    for n in 0..400 {
        assert!(ask(p, Op::Write, 40960 + n % 100 * 512, 512, 3).outcome.is_done());
        if logs(p).counters.spilled > spilled {
            return;
        }
    }
    panic!("the logs never fill");
}

/// The same pool over this disk.
fn again(disk: SimDisk) -> SimPool {
    let mut front = Front::new();
    let mut map = Map::new();
    front.set_volume(key(0), FrontVolume { size_bytes: layout().home_bytes, read_only: false });
    map.set_volume(key(0), &[Extent { device_offset: 0, len: layout().home_bytes }]);
    let clean = CleanConfig { idle_after: None, ..config().clean };
    let logs = Logs::new(layout(), LogsConfig { clean, ..config() });
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(front), Box::new(map), Box::new(logs)];
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![disk]);
    assert_eq!(p.start(), LayerState::Ready);
    p
}

/// An order tries it again, as a device may have read the sector at last.
#[test]
fn a_log_that_can_be_read_again_is_emptied_when_somebody_asks() {
    let (mut p, data) = in_two_logs();
    p.disk(0).lose_sector(data[0]);
    for left in [1024, 1024] {
        checkpoint(&mut p);
        settle(&mut p);
        assert_eq!(logs(&mut p).valid_bytes, left);
    }
    assert_eq!(logs(&mut p).counters.checkpoints, 1, "the second order found nothing else to do");
    assert_eq!(logs(&mut p).counters.cleans_failed, 2, "each tried it once");
    p.disk(0).heal_sectors();
    checkpoint(&mut p);
    settle(&mut p);
    assert_eq!((logs(&mut p).valid_bytes, problem(&mut p)), (0, None));
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [9; 1024]);
}

/// Somebody writes the range again: what else the log has goes home with the next checkpoint.
#[test]
fn a_log_whose_unreadable_data_are_superseded_is_emptied_of_the_rest() {
    let (mut p, data) = in_two_logs();
    // Another record of the first log, in one read with what can't be read.
    ask(&mut p, Op::Read, 0, 512, 0);
    assert!(ask(&mut p, Op::Write, 12288, 1024, 4).outcome.is_done());
    p.disk(0).lose_sector(data[0]);
    checkpoint(&mut p);
    settle(&mut p);
    assert_eq!(logs(&mut p).valid_bytes, 2048);
    assert_eq!(bytes(&ask(&mut p, Op::Read, 12288, 1024, 0)), [4; 1024]);
    assert!(ask(&mut p, Op::WriteZeroes, 4096, 1024, 0).outcome.is_done());
    fill(&mut p);
    settle(&mut p);
    assert_eq!((logs(&mut p).valid_bytes, problem(&mut p)), (0, None));
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [0; 1024]);
    assert_eq!(bytes(&ask(&mut p, Op::Read, 12288, 1024, 0)), [4; 1024]);
}

/// The layout of a device with one log: when it is closed, there is no other.
fn one_log() -> Layout {
    let shape = Shape { group_bytes: 512 << 10, log_bytes: 128 << 10, extents_max: 64 };
    let layout = Layout::new(640 << 10, 512, shape, 0x5eed).expect("it fits");
    assert_eq!(layout.logs, 1);
    layout
}

/// Keeps writes to some ranges from the device until it is told what becomes of them.
#[derive(Default)]
struct Gate {
    closed: Vec<(u64, u64)>,
    held: Vec<Io>,
}

impl Gate {
    /// Lets what waits pass, and all that comes; or fails what waits.
    fn open(&mut self, range: (u64, u64), passes: bool, out: &mut Actions) {
        self.closed.retain(|r| *r != range);
        let (mine, others) = self.held.drain(..).partition(|io| is_in(io, range));
        self.held = others;
        let mine: Vec<Io> = mine;
        for io in mine {
            if passes {
                out.submit(0, io);
            } else {
                out.end(io, Outcome::Failed(IoError::NoSpace));
            }
        }
    }
}

fn is_in(io: &Io, range: (u64, u64)) -> bool {
    io.op == Op::Write && io.offset < range.1 && range.0 < io.end()
}

impl Layer for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        if self.closed.iter().any(|range| is_in(&io, *range)) {
            return self.held.push(io);
        }
        out.submit(0, io);
    }
    fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

/// A pool with one log, over a gate.
fn with_one_log(config: LogsConfig) -> SimPool {
    let l = one_log();
    let (mut front, mut map) = (Front::new(), Map::new());
    front.set_volume(key(0), FrontVolume { size_bytes: l.home_bytes, read_only: false });
    map.set_volume(key(0), &[Extent { device_offset: 0, len: l.home_bytes }]);
    let hour = Span::from_secs(3600);
    let config = LogsConfig { image_every: hour, witness_after: hour * 2, ..config };
    let layers: Vec<Box<dyn Layer>> =
        vec![Box::new(front), Box::new(map), Box::new(Logs::new(l, config)), Box::new(Gate::default())];
    let mut disk = SimDisk::new(l.device_bytes, (us(1), us(200)), 3, DiskFaults::default());
    format_device(&l).into_iter().for_each(|(at, bytes)| disk.write_durably(at, &bytes));
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![disk]);
    assert_eq!(p.start(), LayerState::Ready);
    p
}

/// Offers a request and doesn't wait for it.
fn begin(p: &mut SimPool, op: Op, offset: u64, len: u64) {
    let now = p.now();
    p.offer(now, Io::new(IoHead::new(op, key(0), TenantId(1), offset, len, now), Data::Absent));
}

/// Lets things happen until `n` requests have ended; panics if they don't within ten seconds.
fn ended(p: &mut SimPool, n: usize) {
    let until = p.now() + Span::from_secs(10);
    let mut left = n;
    while left > 0 {
        match p.next_done() {
            Some(c) => {
                assert!(c.outcome.is_done(), "{c:?}");
                left -= 1;
            }
            None => assert!(p.step().is_some() && p.now() < until, "{left} of {n} requests don't end"),
        }
    }
}

/// Trims cut the table's extents in two, so that it doesn't fit into an image before some are checkpointed. The job that could do so was
/// begun in idle time and waits for the next; and a flush waits for the image.
fn flushed_with_a_full_table(stops: bool) -> SimPool {
    let idle = Span::from_millis(50);
    let mut p =
        with_one_log(LogsConfig { clean: CleanConfig { idle_after: Some(idle), ..config().clean }, ..config() });
    let writes = 47;
    // All but the last sector of the log, in records of five.
    for n in 0..51 {
        assert!(ask(&mut p, Op::Write, n % writes * 4096, 2048, 7).outcome.is_done());
    }
    while logs(&mut p).cleaning.is_none() {
        p.step().expect("idle time comes");
    }
    (0..writes).for_each(|n| begin(&mut p, Op::Trim, n * 4096 + 512, 512));
    ended(&mut p, writes as usize);
    let s = logs(&mut p);
    assert!(s.extents > s.extents_max && s.cleaning.is_some_and(|(why, _)| why == Why::Idle), "{s:?}");
    begin(&mut p, Op::Flush, 0, 0);
    if stops {
        let now = p.now();
        p.with_layer(|l: &mut Logs, out| Layer::stop(l, now, out));
        p.with_layer(|l: &mut Logs, out| Layer::drain(l, now, out));
    }
    ended(&mut p, 1);
    p
}

#[test]
fn a_flush_that_needs_an_image_does_not_wait_for_idle_time() {
    let mut p = flushed_with_a_full_table(false);
    assert_eq!(bytes(&ask(&mut p, Op::Read, 0, 2048, 0)), [[7; 512], [0; 512], [7; 512], [7; 512]].concat());
}

/// The end of the pool begins no work that can wait for the next start, but a client waits for this.
#[test]
fn a_flush_that_needs_an_image_ends_when_the_pool_does() {
    let mut p = flushed_with_a_full_table(true);
    p.run();
    assert!(p.stack().is_idle());
    assert_eq!(bytes(&ask(&mut p, Op::Read, 0, 2048, 0)), [[7; 512], [0; 512], [7; 512], [7; 512]].concat());
}

/// Of many kills a log takes some in a record, and the others wait for an image after the one under way, which may not know of them. That one
/// fails: the next one has its number.
#[test]
fn a_flush_does_not_wait_for_an_image_after_the_one_that_has_its_kills() {
    let quiet = CleanConfig { idle_after: None, ..config().clean };
    let mut p = with_one_log(LogsConfig { clean: quiet, ..config() });
    let l = one_log();
    // All but the last sector of the log, in records of five.
    for n in 0..51 {
        assert!(ask(&mut p, Op::Write, n % 12 * 4096, 2048, 7).outcome.is_done());
    }
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    let (images, log) = ((l.image_at(0), l.base), (l.log_start(0), l.log_start(0) + l.shape.log_bytes));
    p.with_layer(|g: &mut Gate, _| g.closed = vec![images, log]);
    let held = |p: &mut SimPool, range| {
        let gate = p.stack().layer::<Gate>().expect("it is there");
        gate.held.iter().filter(|io| is_in(io, range)).count()
    };
    while held(&mut p, images) == 0 {
        p.step().expect("an image comes every hour");
    }
    (0..12).for_each(|n| begin(&mut p, Op::Trim, n * 4096, 2048));
    ended(&mut p, 12);
    begin(&mut p, Op::Flush, 0, 0);
    while held(&mut p, log) == 0 {
        p.step().expect("some kills are recorded");
    }
    assert_eq!(logs(&mut p).counters.images, 0);
    p.with_layer(|g: &mut Gate, out| g.open(images, false, out));
    p.with_layer(|g: &mut Gate, out| g.open(log, true, out));
    ended(&mut p, 1);
    assert_eq!(logs(&mut p).counters.images, 1);
}

/// The note of an image finds no space, and waits to be tried again. Then a flush fails: nothing is tried any more, and the pool can end.
#[test]
fn a_note_that_waits_when_the_device_fails_does_not_keep_the_pool_from_ending() {
    let quiet = CleanConfig { idle_after: None, ..config().clean };
    let mut p = with_one_log(LogsConfig { clean: quiet, ..config() });
    assert!(ask(&mut p, Op::Write, 4096, 1024, 9).outcome.is_done());
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    // The notes of the start have ended.
    let until = p.now() + Span::from_secs(1);
    p.run_until(until);
    let second = plimsoll_logs::layout::NOTES_AT[1];
    let second = (second, second + 512);
    p.with_layer(|g: &mut Gate, _| g.closed = vec![second]);
    checkpoint(&mut p);
    while p.stack().layer::<Gate>().expect("it is there").held.is_empty() {
        p.step().expect("the note is written");
    }
    p.with_layer(|g: &mut Gate, out| g.open(second, false, out));
    assert!(problem(&mut p).expect("it failed").contains("a note can't be written"));
    let flushes = p.disk(0).counts().0;
    p.disk(0).set_faults(DiskFaults { flush_fails_at: Some(flushes + 1), ..DiskFaults::default() });
    assert_eq!(ask(&mut p, Op::Flush, 0, 0, 0).outcome, Outcome::Failed(IoError::FlushFailed));
    let now = p.now();
    p.with_layer(|l: &mut Logs, out| Layer::stop(l, now, out));
    p.with_layer(|l: &mut Logs, out| Layer::drain(l, now, out));
    p.run();
    assert!(p.stack().is_idle(), "{:?}", problem(&mut p));
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [9; 1024]);
}

/// The note of an image has found no space several times, so the next try is 16 s away. A pool that ends doesn't wait so long.
#[test]
fn a_note_that_waits_is_written_at_once_when_the_pool_ends() {
    let quiet = CleanConfig { idle_after: None, ..config().clean };
    let mut p = with_one_log(LogsConfig { clean: quiet, ..config() });
    assert!(ask(&mut p, Op::Write, 4096, 1024, 9).outcome.is_done());
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    // The notes of the start have ended.
    let until = p.now() + Span::from_secs(1);
    p.run_until(until);
    let second = plimsoll_logs::layout::NOTES_AT[1];
    let second = (second, second + 512);
    p.with_layer(|g: &mut Gate, _| g.closed = vec![second]);
    checkpoint(&mut p);
    for _ in 0..5 {
        p.with_layer(|g: &mut Gate, _| g.closed = vec![second]);
        while p.stack().layer::<Gate>().expect("it is there").held.is_empty() {
            p.step().expect("the note is written");
        }
        p.with_layer(|g: &mut Gate, out| g.open(second, false, out));
    }
    let now = p.now();
    p.with_layer(|l: &mut Logs, out| Layer::stop(l, now, out));
    p.with_layer(|l: &mut Logs, out| Layer::drain(l, now, out));
    while !p.stack().is_idle() {
        p.step().expect("the note is written");
    }
    assert!(p.now() < now + Span::from_secs(1), "it ended after {:?}", p.now().since(now));
    assert_eq!((problem(&mut p), logs(&mut p).valid_bytes), (None, 0));
}

/// Logged data whose place can't be written stay logged, and everything else goes home.
#[test]
fn a_place_that_cannot_be_written_does_not_keep_other_logs_from_being_emptied() {
    let clean = CleanConfig { idle_after: None, ..config().clean };
    let l = layout();
    let place = l.to_device(4096).0;
    let mut p = over(place, place + 512, LogsConfig { clean, ..config() });
    for (arm, offset, byte) in [(0, 4096, 9), (l.home_bytes - 8192, 20480, 7)] {
        ask(&mut p, Op::Read, arm, 512, 0);
        assert!(ask(&mut p, Op::Write, offset, 1024, byte).outcome.is_done());
    }
    assert_eq!(logs(&mut p).occupancy.iter().filter(|o| **o > 0).count(), 2, "each arm has its log");
    // Of two orders each is carried out as far as it can be.
    for n in 1..=2 {
        checkpoint(&mut p);
        settle(&mut p);
        let s = logs(&mut p);
        assert_eq!((s.counters.checkpoints, s.valid_bytes), (n, 1024), "{:?}", s.counters);
        ask(&mut p, Op::Read, l.home_bytes - 8192, 512, 0);
        assert!(ask(&mut p, Op::Write, 20480, 1024, 7).outcome.is_done());
    }
    // Full logs, too: the first job fails, and the next leaves out that log.
    for _ in 0..2 {
        fill(&mut p);
        settle(&mut p);
    }
    assert!(logs(&mut p).counters.checkpoints > 2, "{:?}", logs(&mut p).counters);
    // Nothing is left out for good.
    p.with_layer(|b: &mut BadSpot, _| b.to = b.from);
    checkpoint(&mut p);
    settle(&mut p);
    assert_eq!(logs(&mut p).valid_bytes, 0);
    assert_eq!(bytes(&ask(&mut p, Op::Read, 4096, 1024, 0)), [9; 1024]);
    assert_eq!(bytes(&ask(&mut p, Op::Read, 20480, 1024, 0)), [7; 1024]);
}
