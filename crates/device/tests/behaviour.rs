//! Properties that every user of the disk model relies on.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_device::disk::Discipline;
use plimsoll_device::{Disk, DiskOptions, DiskSpec, Done, Mismatch, Model, Op, Request, profile};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

const SEED: DiskOptions = DiskOptions { seed: 1, mismatch: None };

fn disk(name: &str) -> Disk {
    Disk::new(&profile::by_name(name).expect("embedded"), SEED).expect("valid")
}

fn altered(name: &str, change: impl Fn(&mut DiskSpec)) -> Disk {
    let mut spec = profile::by_name(name).expect("embedded");
    change(&mut spec);
    Disk::new(&spec, SEED).expect("valid")
}

fn at_us(us: u64) -> Time {
    Time::ZERO + Span::from_micros(us)
}

/// Runs the model dry.
fn finish(model: &mut dyn Model) -> Vec<Done> {
    let mut done = Vec::new();
    while model.outstanding() > 0 {
        model.advance(model.next_event(), &mut done);
    }
    done
}

#[derive(Clone, Copy, Debug)]
struct Step {
    gap_us: u64,
    kind: u8,
    place: u64,
    blocks: u64,
}

fn step() -> impl Strategy<Value = Step> {
    (0u64..30_000, 0u8..20, any::<u64>(), 1u64..64).prop_map(|(gap_us, kind, place, blocks)| Step {
        gap_us,
        kind,
        place,
        blocks,
    })
}

fn request(disk: &dyn Model, tag: u64, s: &Step, last_end: u64) -> Request {
    let block = u64::from(disk.block_bytes());
    let blocks_max = disk.size_bytes() / block;
    let op = match s.kind % 10 {
        0..=3 => Op::Read,
        4..=6 => Op::Write { fua: false },
        7 => Op::Write { fua: true },
        8 if s.place.is_multiple_of(2) => Op::Trim,
        8 => Op::WriteZeroes,
        _ => Op::Flush,
    };
    // Half of them continue where the last one ended.
    let first = if s.kind < 10 { s.place % blocks_max } else { last_end % blocks_max };
    let n = s.blocks.min(blocks_max - first);
    Request { tag, op, offset: first * block, len: n * block }
}

/// Submits `steps`, asking the model to advance at the times that `late_by` says after each event is due.
fn drive(model: &mut dyn Model, steps: &[Step], late_by: impl Fn(u64) -> u64) -> Vec<Done> {
    let mut done = Vec::new();
    let (mut now_us, mut last_end) = (0, 0);
    for (tag, s) in steps.iter().enumerate() {
        while model.outstanding() == model.queue_max() {
            let due = model.next_event().as_nanos();
            model.advance(Time::from_nanos(due), &mut done);
            now_us = now_us.max(due.div_ceil(1000));
        }
        let req = request(model, tag as u64, s, last_end);
        last_end = (req.offset + req.len) / u64::from(model.block_bytes());
        now_us += s.gap_us;
        loop {
            let ask = model.next_event().as_nanos().saturating_add(late_by(tag as u64));
            if ask > now_us * 1000 {
                break;
            }
            model.advance(Time::from_nanos(ask), &mut done);
        }
        model.submit(at_us(now_us), req);
    }
    done.extend(finish(model));
    done
}

/// Failures found are kept beside this file.
fn config() -> ProptestConfig {
    let failure_persistence = Some(Box::new(FileFailurePersistence::WithSource("regressions")) as _);
    ProptestConfig { cases: 256, failure_persistence, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]
    #[test]
    fn every_request_ends_once_in_order_of_time(
        steps in prop::collection::vec(step(), 1..80),
        name in prop::sample::select(profile::names().collect::<Vec<_>>()),
        actuators in 1u32..=2,
        write_cache_level in 0u8..=2,
        discipline in prop::sample::select(vec![Discipline::Fifo, Discipline::Sstf, Discipline::Sptf]),
    ) {
        let mut d = altered(name, |s| {
            if s.geometry.surfaces.is_multiple_of(2) {
                s.mechanics.actuators = actuators;
            }
            s.buffer.write_cache_level = write_cache_level;
            s.queue.discipline = discipline;
        });
        let done = drive(&mut d, &steps, |_| 0);
        let mut tags: Vec<u64> = done.iter().map(|d| d.tag).collect();
        prop_assert!(done.windows(2).all(|w| w[0].at <= w[1].at));
        prop_assert!(done.iter().all(|d| d.started_at <= d.at));
        tags.sort_unstable();
        prop_assert_eq!(tags, (0..steps.len() as u64).collect::<Vec<_>>());
        prop_assert_eq!(d.outstanding(), 0);
    }

    #[test]
    fn a_late_caller_changes_nothing(steps in prop::collection::vec(step(), 1..60), late in 0u64..50_000_000) {
        // One at a time: what is handed in doesn't depend on when completions were heard of.
        let steps: Vec<Step> = steps.iter().map(|s| Step { gap_us: s.gap_us * 10, ..*s }).collect();
        let exact = drive(&mut disk("hdd-160g-7200"), &steps, |_| 0);
        let delayed = drive(&mut disk("hdd-160g-7200"), &steps, |tag| late.wrapping_mul(tag + 1) % 40_000_000);
        prop_assert_eq!(exact, delayed);
    }
}

proptest! {
    #![proptest_config(config())]
    /// Any number in a profile is either refused, with the key's name, or makes a disk that serves.
    #[test]
    fn any_figure_is_refused_or_serves(
        name in prop::sample::select(profile::names().collect::<Vec<_>>()),
        at in any::<prop::sample::Index>(),
        put in prop::sample::select(vec!["0", "1", "2", "3", "7.5", "-1", "511", "65536", "1e9", "4294967295", "1e300", "nan"]),
        arms in 1u32..=2,
    ) {
        let text = profile::by_name(name).expect("embedded").to_toml();
        let text = text.replace("actuators = 1", &format!("actuators = {arms}"));
        let starts: Vec<usize> = text.match_indices(" = ").map(|(i, _)| i + 3)
            .filter(|&i| text[i..].starts_with(|c: char| c.is_ascii_digit())).collect();
        let begin = starts[at.index(starts.len())];
        let end = begin + text[begin..].find('\n').expect("a line's end");
        let text = format!("{}{put}{}", &text[..begin], &text[end..]);
        let spec = DiskSpec::from_toml(&text);
        if let Ok(mut d) = spec.and_then(|s| Disk::new(&s, SEED)) {
            let block = u64::from(d.block_bytes());
            let mut now = Time::ZERO;
            for (tag, offset) in [(0, d.size_bytes() - block), (1, d.size_bytes() / block / 2 * block), (2, 0)] {
                let op = if tag == 1 { Op::Read } else { Op::Write { fua: true } };
                d.submit(now, Request { tag, op, offset, len: block });
                let done = finish(&mut d);
                prop_assert_eq!(done.len(), 1);
                now = done[0].at;
            }
        }
    }
}

#[test]
fn the_seed_turns_the_platters_and_nothing_else() {
    let spec = profile::by_name("cheetah-15k5").expect("embedded");
    let first = |seed| {
        let mut d = Disk::new(&spec, DiskOptions { seed, mismatch: None }).expect("valid");
        d.submit(Time::ZERO, Request { tag: 0, op: Op::Read, offset: 1 << 30, len: 4096 });
        finish(&mut d)[0].at
    };
    assert_eq!(first(7), first(7));
    let times: Vec<u64> = (0..8).map(|s| first(s).as_nanos()).collect();
    let (lo, hi) = (times.iter().min().expect("some"), times.iter().max().expect("some"));
    assert!(hi > lo && hi - lo <= 4_000_000, "at most one turn apart: {times:?}");
}

#[test]
fn a_mismatch_changes_service_times_but_not_the_map() {
    let spec = profile::by_name("cheetah-15k5").expect("embedded");
    let mean = |mismatch| {
        let mut d = Disk::new(&spec, DiskOptions { seed: 1, mismatch }).expect("valid");
        let mut rng = Rng::new(1, "mismatch test");
        let pages = d.size_bytes() / 4096;
        let mut now = Time::ZERO;
        for tag in 0..2000 {
            d.submit(now, Request { tag, op: Op::Read, offset: rng.below(pages) * 4096, len: 4096 });
            now = finish(&mut d)[0].at;
        }
        (d.size_bytes(), now.as_secs_f64() / 2.0)
    };
    let (size, plain) = mean(None);
    let others: Vec<_> = (0..5).map(|seed| mean(Some(Mismatch { seed, spread: 0.2 }))).collect();
    println!("mean random read {plain:.3} ms; with mismatch of 20 %: {others:.3?}");
    assert!(others.iter().all(|o| o.0 == size));
    assert!(others.iter().all(|o| (0.75..1.25).contains(&(o.1 / plain))));
    assert!(others.iter().any(|o| (o.1 / plain - 1.0).abs() > 0.02));
}

#[test]
fn a_cached_write_is_fast_and_a_flush_waits_for_it() {
    let mut d = altered("hdd-160g-7200", |s| s.buffer.write_cache_level = 2);
    let far = d.size_bytes() - (1 << 20);
    d.submit(Time::ZERO, Request { tag: 0, op: Op::Write { fua: false }, offset: far, len: 8192 });
    d.submit(at_us(1), Request { tag: 1, op: Op::Flush, offset: 0, len: 0 });
    let done = finish(&mut d);
    assert_eq!((done[0].tag, done[1].tag), (0, 1));
    assert!(done[0].at < at_us(1000), "from the buffer: {:?}", done[0]);
    assert!(done[1].at > at_us(5000), "a full stroke and more: {:?}", done[1]);
    d.submit(at_us(100_000), Request { tag: 2, op: Op::Flush, offset: 0, len: 0 });
    assert!(finish(&mut d)[0].at < at_us(101_000), "nothing to wait for");
}

#[test]
fn fua_and_write_through_go_to_the_media() {
    for (level, fua) in [(2, true), (0, false)] {
        let mut d = altered("hdd-160g-7200", |s| s.buffer.write_cache_level = level);
        let far = d.size_bytes() - (1 << 20);
        d.submit(Time::ZERO, Request { tag: 0, op: Op::Write { fua }, offset: far, len: 8192 });
        assert!(finish(&mut d)[0].at > at_us(5000));
    }
}

#[test]
fn a_full_write_cache_waits_for_the_media() {
    let mut d = altered("hdd-160g-7200", |s| s.buffer.write_segments = 2);
    let mut rng = Rng::new(2, "full cache");
    let pages = d.size_bytes() / 4096;
    for tag in 0..20 {
        let offset = rng.below(pages) * 4096;
        d.submit(Time::ZERO, Request { tag, op: Op::Write { fua: false }, offset, len: 4096 });
    }
    let done = finish(&mut d);
    assert!(done[1].at < at_us(2000), "two fit");
    assert!(done[19].at > at_us(40_000), "the rest goes at the media's pace: {:?}", done[19]);
}

#[test]
fn a_sequential_reader_is_served_from_read_ahead() {
    let mut d = disk("cheetah-15k5");
    let mut now = Time::ZERO;
    let mut slow = 0;
    for tag in 0..400 {
        let started = now;
        d.submit(now, Request { tag, op: Op::Read, offset: tag * 65_536, len: 65_536 });
        now = finish(&mut d)[0].at;
        slow += u32::from(now.since(started) > Span::from_millis(2));
        now += Span::from_micros(100);
    }
    let rate = 400.0 * 65_536.0 / now.as_secs_f64() / 1e6;
    println!("64 KiB reads one after the other, 100 us apart: {rate:.0} MB/s, {slow} of 400 over 2 ms");
    assert!(rate > 100.0 && slow < 10);
}

#[test]
fn a_second_reader_of_the_same_block_waits_for_the_first() {
    let mut d = disk("cheetah-15k5");
    d.submit(Time::ZERO, Request { tag: 0, op: Op::Read, offset: 1 << 30, len: 4096 });
    d.submit(at_us(1), Request { tag: 1, op: Op::Read, offset: 1 << 30, len: 4096 });
    let done = finish(&mut d);
    assert_eq!((done[0].tag, done[1].tag), (0, 1), "data can't be had before they are read");
    assert!(done[1].at.since(done[0].at) < Span::from_millis(1), "but then they are in the buffer");
}

#[test]
fn two_arms_serve_more_than_one_and_keep_their_halves() {
    let rate = |actuators| {
        let mut d = altered("cheetah-15k5", |s| s.mechanics.actuators = actuators);
        let mut rng = Rng::new(3, "arms");
        let pages = d.size_bytes() / 4096;
        let (mut tag, mut done, mut now) = (0, Vec::new(), Time::ZERO);
        while done.len() < 4000 {
            while d.outstanding() < 16 {
                d.submit(now, Request { tag, op: Op::Read, offset: rng.below(pages) * 4096, len: 4096 });
                tag += 1;
            }
            now = d.next_event();
            d.advance(now, &mut done);
        }
        (d.size_bytes(), 4000.0 / now.as_secs_f64())
    };
    let ((size1, one), (size2, two)) = (rate(1), rate(2));
    println!("random 4 KiB reads at depth 16: {one:.0}/s with one arm, {two:.0}/s with two");
    // Spares of the last zone count for each arm.
    assert!(size1.abs_diff(size2) < size1 / 500);
    assert!((1.5..2.2).contains(&(two / one)));
}

#[test]
fn nobody_starves_in_the_queue() {
    let mut d = disk("cheetah-15k5");
    // A stream of near requests, and one far away that any greedy discipline would leave alone.
    d.submit(Time::ZERO, Request { tag: u64::MAX, op: Op::Read, offset: d.size_bytes() - 4096, len: 4096 });
    let mut rng = Rng::new(4, "starve");
    let (mut tag, mut done, mut now) = (0, Vec::new(), Time::ZERO);
    while !done.iter().any(|d: &Done| d.tag == u64::MAX) {
        assert!(now < at_us(3_000_000), "still waiting after three seconds");
        while d.outstanding() < 31 {
            d.submit(now, Request { tag, op: Op::Read, offset: rng.below(2000) * 4096, len: 4096 });
            tag += 1;
        }
        now = d.next_event();
        d.advance(now, &mut done);
    }
}

#[test]
#[should_panic(expected = "ends beyond")]
fn a_request_beyond_the_end_is_the_callers_mistake() {
    let mut d = disk("cheetah-15k5");
    let offset = d.size_bytes();
    d.submit(Time::ZERO, Request { tag: 0, op: Op::Read, offset, len: 512 });
}
