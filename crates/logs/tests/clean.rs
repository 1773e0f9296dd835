//! Tests of checkpoints that begin by themselves: in the off-hours, at intervals, in idle time. Tests of swaps.

mod common;
use common::*;
use plimsoll_base::*;
use plimsoll_logs::*;
use plimsoll_stack::sim::SimPool;
use plimsoll_stack::*;

const HOUR: Span = Span::from_secs(3600);

fn hours(n: u64) -> Time {
    Time::ZERO + HOUR * n
}

/// Nothing but what is set goes home, and the table is written as rarely as by default.
fn with(clean: CleanConfig) -> LogsConfig {
    let default = LogsConfig::default();
    LogsConfig { clean: CleanConfig { when_idle: false, ..clean }, image_every: default.image_every, ..config() }
}

fn never() -> CleanConfig {
    CleanConfig { idle_after: None, ..config().clean }
}

fn started(config: LogsConfig) -> SimPool {
    let mut p = pool(formatted(1, Default::default()), config, None);
    assert_eq!(p.start(), LayerState::Ready);
    p
}

/// Returns the reason of the last job, the number of checkpoints, and the bytes that are still in logs.
fn state(p: &mut SimPool) -> (Option<Why>, u64, u64) {
    let s = logs(p);
    (s.counters.last_clean.map(|c| c.why), s.counters.checkpoints, s.valid_bytes)
}

fn write(p: &mut SimPool, at: Time, sector: u64) {
    p.run_until(at);
    assert!(ask(p, Op::Write, sector * SECTOR, 1024, 7).outcome.is_done());
}

fn write_now(p: &mut SimPool, sector: u64) {
    write(p, p.now(), sector);
}

#[test]
fn in_the_off_hours_everything_goes_home_once_a_day() {
    let off_hours = OffHours { first: hours(1), lasts: HOUR * 2 };
    let mut p = started(with(CleanConfig { off_hours: Some(off_hours), ..never() }));
    write(&mut p, hours(0), 8);
    p.run_until(hours(1) - Span::from_secs(1));
    assert_eq!(state(&mut p), (None, 0, 1024), "not before");
    p.run_until(hours(1) + Span::from_secs(1));
    assert_eq!(state(&mut p), (Some(Why::OffHours), 1, 0), "at its beginning, without any request");
    assert_eq!(bytes(&ask(&mut p, Op::Read, 8 * SECTOR, 1024, 0)), [7; 1024]);
    // What comes later in the window waits for the next.
    write(&mut p, hours(2), 16);
    p.run_until(hours(24));
    assert_eq!(state(&mut p), (Some(Why::OffHours), 1, 1024));
    p.run_until(hours(25) + Span::from_secs(1));
    assert_eq!(state(&mut p), (Some(Why::OffHours), 2, 0));
    // A window without anything logged does nothing.
    p.run_until(hours(50));
    assert_eq!(state(&mut p), (Some(Why::OffHours), 2, 0));
}

#[test]
fn a_pool_that_starts_within_the_off_hours_uses_them() {
    let mut p = started(with(never()));
    write(&mut p, hours(0), 8);
    assert!(ask(&mut p, Op::Flush, 0, 0, 0).outcome.is_done());
    let disk = p.lose_power().remove(0);
    let off_hours = OffHours { first: Time::ZERO, lasts: HOUR };
    let mut p = pool(disk, with(CleanConfig { off_hours: Some(off_hours), ..never() }), None);
    assert_eq!(p.start(), LayerState::Ready);
    p.run_until(hours(0) + Span::from_secs(1));
    assert_eq!(state(&mut p), (Some(Why::OffHours), 1, 0));
}

#[test]
fn every_so_often_everything_goes_home_under_load() {
    let every = Span::from_secs(10);
    let mut p = started(with(CleanConfig { every: Some(every), ..never() }));
    for second in 0..35 {
        write(&mut p, Time::ZERO + Span::from_secs(second), 8 * (second % 20));
    }
    let (why, count, _) = state(&mut p);
    assert_eq!((why, count), (Some(Why::Periodic), 3), "after 10, 20 and 30 s");
    p.run_until(Time::ZERO + Span::from_secs(60));
    assert_eq!(state(&mut p), (Some(Why::Periodic), 4, 0), "and once more what came after, then there is nothing");
}

#[test]
fn idle_time_is_used_when_logs_are_crowded_and_given_back_when_a_client_comes() {
    let idle = Span::from_millis(50);
    let clean = CleanConfig { idle_after: Some(idle), when_used_percent: 0, ..config().clean };
    let mut p = started(LogsConfig { clean, swap_reach_groups: 100, ..config() });
    // A quarter of a log of 16 KiB and more.
    for i in 0..6 {
        write_now(&mut p, i * 8);
    }
    let quiet_since = p.now();
    p.run_until(quiet_since + idle - us(1));
    assert_eq!(state(&mut p).1, 0, "not yet");
    // Its first request is under way when a client comes: nothing more is sent until it's quiet again.
    p.run_until(quiet_since + idle);
    ask(&mut p, Op::Read, 100 * SECTOR, 512, 0);
    let quiet_since = p.now();
    p.run_until(quiet_since + idle - us(1));
    assert_eq!(state(&mut p).1, 0, "it waits");
    p.run_until(quiet_since + Span::from_secs(1));
    assert_eq!(state(&mut p), (Some(Why::Idle), 1, 0));
}

/// A full log is moved to a cold one in idle time; it's empty then, and what it held is read from there.
#[test]
fn a_full_log_is_swapped_and_found_again_after_a_power_loss() {
    let clean = CleanConfig { idle_after: Some(us(500)), when_idle: false, ..config().clean };
    let witness_after = Span::from_secs(10);
    let config = LogsConfig { clean, swap_above_percent: 60, witness_after, ..config() };
    let mut p = started(config);
    let writes = 8;
    for i in 0..writes {
        write_now(&mut p, i * 8);
    }
    let used = |p: &mut SimPool| logs(p).occupancy.iter().filter(|o| **o > 0).count();
    assert_eq!(used(&mut p), 1);
    let before = logs(&mut p).occupancy;
    p.run_until(p.now() + Span::from_secs(1));
    let after = logs(&mut p);
    assert_eq!((after.counters.swaps, after.counters.checkpoints), (1, 0), "{:?}", after.counters);
    assert_eq!(after.valid_bytes, writes * 1024, "everything is still in a log");
    let full = before.iter().position(|o| *o > 60).expect("one is full");
    assert!(after.occupancy[full] == 0 && used(&mut p) == 1, "another: {:?}", after.occupancy);
    let mut p = pool(p.lose_power().remove(0), config, None);
    assert_eq!(p.start(), LayerState::Ready);
    for i in 0..writes {
        assert_eq!(bytes(&ask(&mut p, Op::Read, i * 8 * SECTOR, 1024, 0)), [7; 1024], "{i}");
    }
}

/// Without room anywhere small writes go home at once, and the logs are emptied.
#[test]
fn when_all_logs_are_full_everything_goes_home() {
    let mut p = started(with(never()));
    let mut spilled = 0;
    for i in 0..400 {
        write_now(&mut p, i % 100 * 4);
        spilled = logs(&mut p).counters.spilled;
        if spilled > 0 {
            break;
        }
    }
    assert!(spilled > 0, "{} logs of 16 KiB never fill", logs(&mut p).logs);
    p.run();
    assert_eq!(state(&mut p), (Some(Why::Full), 1, 0));
    assert_eq!(bytes(&ask(&mut p, Op::Read, 0, 1024, 0)), [7; 1024]);
}

/// A load whose every byte would be written twice within minutes is written in place (Manylogs §VIII), until it calms.
#[test]
fn a_load_that_fills_all_logs_in_no_time_is_not_logged_until_it_calms() {
    let mut p = started(LogsConfig { off_below: Span::from_secs(600), ..with(never()) });
    let seconds = |n| Time::ZERO + Span::from_secs(n);
    for second in 0..62 {
        write(&mut p, seconds(second), second % 20 * 8);
    }
    let s = logs(&mut p);
    assert!(s.switched_off && s.logged_write_bytes == 0, "a kilobyte a second, and logs of 16 KiB");
    let logged = s.counters.logged;
    write(&mut p, seconds(63), 0);
    assert_eq!(logs(&mut p).counters.logged, logged, "it went home");
    write(&mut p, seconds(3600), 0);
    let s = logs(&mut p);
    assert!(!s.switched_off && s.counters.logged == logged + 1);
}

/// Logs that would fill before the off-hours take smaller writes only (§VI, ML-M17).
#[test]
fn logged_write_size_follows_how_fast_the_logs_fill() {
    let off_hours = OffHours { first: hours(4), lasts: HOUR };
    let clean = CleanConfig { off_hours: Some(off_hours), ..never() };
    let mut p = started(LogsConfig { adaptive: true, logged_write_bytes: 8192, ..with(clean) });
    for second in 0..62 {
        p.run_until(Time::ZERO + Span::from_secs(second));
        assert!(ask(&mut p, Op::Write, second % 20 * 4096, 8192, 7).outcome.is_done());
    }
    let s = logs(&mut p);
    assert_eq!(
        (s.logged_write_bytes, s.logged_write_bytes_configured),
        (4096, 8192),
        "ten logs of 16 KiB for four hours"
    );
}

/// Bytes of a band, counted from home address 0.
const BAND: u64 = 4096;

/// Over bands a checkpoint costs what it copies of them. A log whose few bands free most goes first; the fullest one, whose writes lie in a band
/// each, waits.
#[test]
fn over_bands_idle_time_empties_the_log_that_costs_the_fewest_of_them() {
    let mut front = Front::new();
    let mut map = Map::new();
    let size_bytes = SECTORS * SECTOR;
    front.set_volume(key(0), FrontVolume { size_bytes, read_only: false });
    map.set_volume(key(0), &[Extent { device_offset: 0, len: size_bytes }]);
    let config = LogsConfig { image_every: LogsConfig::default().image_every, ..config() };
    let logs_over = Logs::new(layout(), config).over_bands(BAND);
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(front), Box::new(map), Box::new(logs_over)];
    let mut p = SimPool::chain(StackConfig::default(), layers, vec![formatted(1, Default::default())]);
    assert_eq!(p.start(), LayerState::Ready);
    // The arm is at one log for writes to 14 bands, then at another one for eight writes to four bands.
    let far = size_bytes - 8 * BAND;
    for (arm, writes, apart) in [(0, 14, BAND), (far, 8, BAND / 2)] {
        ask(&mut p, Op::Read, arm, SECTOR, 0);
        for n in 0..writes {
            assert!(ask(&mut p, Op::Write, arm + n * apart, SECTOR, 7).outcome.is_done());
        }
    }
    assert_eq!(logs(&mut p).counters.logged, 22);
    while logs(&mut p).counters.checkpoints == 0 {
        p.step().expect("idle time comes");
    }
    let first = logs(&mut p).counters.last_clean.expect("just done");
    assert_eq!((first.why, first.logs, first.write_bytes), (Why::Idle, 1, 8 * SECTOR));
    while p.step().is_some() {}
    assert_eq!(logs(&mut p).valid_bytes, 0, "then the other one");
}

/// Reads without a rest until `until`.
fn load(p: &mut SimPool, until: Time) {
    while p.now() < until {
        ask(p, Op::Read, 100 * SECTOR, 512, 0);
        p.run_until(p.now() + us(1000));
    }
}

/// A pool with a job that was begun in idle time and waits for the next, as clients have come back.
fn paused(clean: CleanConfig) -> SimPool {
    let clean = CleanConfig { idle_after: Some(Span::from_millis(50)), when_used_percent: 0, when_idle: true, ..clean };
    let image_every = LogsConfig::default().image_every;
    let mut p = started(LogsConfig { clean, swap_reach_groups: 100, image_every, ..config() });
    for i in 0..6 {
        write_now(&mut p, i * 8);
    }
    while logs(&mut p).cleaning.is_none() {
        p.step().expect("idle time comes");
    }
    let until = p.now() + Span::from_millis(500);
    load(&mut p, until);
    let s = logs(&mut p);
    assert_eq!((s.counters.checkpoints, s.cleaning.map(|(why, _)| why)), (0, Some(Why::Idle)), "it waits");
    p
}

/// A load that never rests keeps a job of idle time waiting. It goes on when somebody needs the logs, or it would be in the way of each
/// other kind of job.
#[test]
fn a_job_of_idle_time_does_not_wait_when_somebody_needs_it() {
    let second = Span::from_secs(1);
    let mut p = paused(never());
    let now = p.now();
    p.with_layer(|l: &mut Logs, out| Layer::told(l, now, &Message::encode(&LogsControl::Checkpoint), out));
    load(&mut p, now + second);
    assert_eq!(state(&mut p).2, 0, "everything went home: {:?}", state(&mut p));

    let off_hours = OffHours { first: Time::ZERO + second, lasts: HOUR };
    let mut p = paused(CleanConfig { off_hours: Some(off_hours), ..never() });
    write_now(&mut p, 80);
    load(&mut p, Time::ZERO + second * 2);
    assert_eq!((state(&mut p).0, state(&mut p).2), (Some(Why::OffHours), 0));

    let mut p = paused(CleanConfig { every: Some(second), ..never() });
    write_now(&mut p, 80);
    load(&mut p, Time::ZERO + second * 2);
    assert_eq!((state(&mut p).0, state(&mut p).2), (Some(Why::Periodic), 0));

    let mut p = paused(never());
    for n in 0.. {
        assert!(n < 400, "the logs never fill");
        write_now(&mut p, 80 + n % 20 * 4);
        if logs(&mut p).counters.spilled > 0 {
            break;
        }
    }
    let until = p.now() + second;
    load(&mut p, until);
    assert!(state(&mut p).1 >= 1, "the log that it holds is empty: {:?}", state(&mut p));
    assert_eq!(bytes(&ask(&mut p, Op::Read, 8 * SECTOR, 1024, 0)), [7; 1024]);
}

/// A swap of several batches, between which a client writes over what is being moved, sector by sector: what is left of an extent isn't moved
/// once more. The log that it goes to has no room for that.
#[test]
fn a_swap_moves_nothing_twice() {
    let clean = CleanConfig { idle_after: Some(us(500)), when_idle: false, batch_bytes: 1, ..config().clean };
    let image_every = LogsConfig::default().image_every;
    let mut p = started(LogsConfig { clean, swap_above_percent: 60, image_every, ..config() });
    // Six records fill a log.
    for n in 0..6 {
        assert!(ask(&mut p, Op::Write, n * 8 * SECTOR, 2048, 7).outcome.is_done());
    }
    let left = |p: &mut SimPool| logs(p).cleaning.map(|(_, left)| left);
    while left(&mut p).is_none() {
        p.step().expect("idle time comes");
    }
    // The one after the first is already read when the first has been moved.
    let sector = |n: u64| (n / 4 + 1) * 8 + n % 4;
    let mut over = 0;
    while let Some(before) = left(&mut p) {
        p.step().expect("it goes on");
        if over < 20 && left(&mut p).is_some_and(|now| now < before) {
            assert!(ask(&mut p, Op::Write, sector(over) * SECTOR, SECTOR, 5).outcome.is_done());
            over += 1;
        }
    }
    let s = logs(&mut p);
    let moved = s.counters.last_clean.expect("it ended").write_bytes;
    assert_eq!((s.counters.swaps, s.counters.cleans_failed, moved), (1, 0, 6 * 2048), "{:?}", s.counters);
    assert!(over >= 4, "{over} sectors were written meanwhile");
    for n in 0..20 {
        let expected = if n < over { 5 } else { 7 };
        assert_eq!(bytes(&ask(&mut p, Op::Read, sector(n) * SECTOR, SECTOR, 0)), [expected; 512], "{n} of {over}");
    }
}
