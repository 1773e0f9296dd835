//! The shingled-disk model against what was measured on a drive of its kind. Each test prints both figures.

use std::path::{Path, PathBuf};

use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_device::disk::SeekCurve;
use plimsoll_device::smr::{SmrDisk, SmrSpec, SmrStats};
use plimsoll_device::{Disk, DiskOptions, Model, Op, Request};

const WRITE: Op = Op::Write { fua: false };

fn spec() -> SmrSpec {
    SmrSpec::by_name("seagate-archive-8tb").expect("embedded")
}

fn drive(seed: u64) -> SmrDisk {
    SmrDisk::new(&spec(), DiskOptions { seed, mismatch: None }).expect("valid")
}

/// One request at a time, from `now` on; the instant of its completion.
fn one(disk: &mut impl Model, now: Time, op: Op, offset: u64, len: u64) -> Time {
    disk.submit(now, Request { tag: 0, op, offset, len });
    let mut done = Vec::new();
    while done.is_empty() {
        disk.advance(disk.next_event(), &mut done);
    }
    done[0].at
}

/// Progress of synchronous random 4 KiB writes over a span.
struct Progress {
    /// Seconds at every 50,000 writes.
    at_s: Vec<f64>,
    /// Writes before the first that took longer than 200 ms, and writes a second from there on.
    before_cliff: u64,
    behind_per_s: f64,
    latency: LatencyHistogram,
    stats: SmrStats,
}

fn random_writes(span: u64, writes: u64, seed: u64) -> Progress {
    let mut disk = drive(seed);
    let mut rng = Rng::new(seed, "writes");
    let mut p = Progress {
        at_s: vec![],
        before_cliff: 0,
        behind_per_s: 0.0,
        latency: LatencyHistogram::new(),
        stats: SmrStats::default(),
    };
    let (mut now, mut cliff, mut cliff_at) = (Time::ZERO, false, Time::ZERO);
    for i in 1..=writes {
        let at = one(&mut disk, now, WRITE, rng.below(span / 4096) * 4096, 4096);
        let took = at.since(now);
        p.latency.record(took);
        cliff |= took > Span::from_millis(200);
        if !cliff {
            p.before_cliff += 1;
            cliff_at = at;
        }
        now = at;
        if i.is_multiple_of(50_000) {
            p.at_s.push(now.as_secs_f64());
        }
    }
    p.behind_per_s = (writes - p.before_cliff) as f64 / now.since(cliff_at).as_secs_f64().max(1e-9);
    p.stats = disk.stats();
    p
}

/// Writes a second over the first 100,000 and the last 50,000 of 500,000, from the file if it's there.
fn measured(span: &str) -> Option<(f64, f64)> {
    let data: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let text = std::fs::read_to_string(data.join("latency/smr_st8000as0002_progress.csv")).ok()?;
    let row = |l: &str| l.strip_prefix(&format!("{span},"))?.split_once(',')?.1.parse().ok();
    let at_s: Vec<f64> = text.lines().filter_map(row).collect();
    Some((100_000.0 / at_s.get(1)?, 50_000.0 / (at_s.get(9)? - at_s.get(8)?)))
}

/// A rate before the cliff of thousands a second, one of a hundred or less behind it, none at all for spans that
/// fit into the map of the cache: the shape of what was measured. Nothing of the model was fitted to it.
#[test]
fn random_writes_run_into_the_cliff() {
    println!("synchronous random 4 KiB writes, a second: measured on an ST8000AS0002 | model (seed 1)");
    for (name, span, writes, before_s, behind_s) in [
        ("512M", 512u64 << 20, 300_000, 3125.0, 3125.0),
        ("2G", 2 << 30, 250_000, 3448.0, 109.6),
        ("512G", 512 << 30, 200_000, 3333.0, 35.4),
    ] {
        match measured(name) {
            Some(m) => assert!((m.0 - before_s).abs() < 1.0 && (m.1 - behind_s).abs() < 1.0, "the file says {m:?}"),
            None => println!("  ran without ../shared/data: measured figures as noted here"),
        }
        let p = random_writes(span, writes, 1);
        let before = 100_000.0 / p.at_s[1];
        let behind = 50_000.0 / (p.at_s[p.at_s.len() - 1] - p.at_s[p.at_s.len() - 2]);
        println!("  {name:>5}: at first {before_s:6.0} | {before:6.0}   at last {behind_s:6.1} | {behind:6.1}");
        println!("         cliff after {} writes (measured: 150,000 to 200,000), {:?}", p.before_cliff, p.latency);
        println!("         {:?}", p.stats);
        assert!((1_000.0..10_000.0).contains(&before), "{before}");
        if name == "512M" {
            assert_eq!(p.stats.stalled_writes, 0, "131,072 blocks fit into the map");
            assert!(behind > 1_000.0);
        } else {
            assert!((140_000..210_000).contains(&p.before_cliff), "{}", p.before_cliff);
            assert!(behind < before / 10.0, "{behind} at last, {before} at first");
        }
    }
}

/// Over 4 TB nearly every cached block is in a band of its own, so behind the cliff a write costs a cleaning: 4.4 a
/// second were measured (median 243 ms a write).
#[test]
fn over_the_whole_drive_each_write_costs_a_cleaning() {
    let p = random_writes(4 << 40, 152_000, 1);
    println!("4 TB span, behind the cliff: measured 4.4 writes/s, model {:.1}; {:?}", p.behind_per_s, p.stats);
    assert!((0.5..10.0).contains(&p.behind_per_s), "{}", p.behind_per_s);
    let runs_a_band = p.stats.merged_runs as f64 / p.stats.cleaned_bands as f64;
    assert!(runs_a_band < 3.0, "{runs_a_band}");
}

/// Manylogs §VI (citing Skylight): cleaning a band takes 0.6 to 1.6 s. It depends on how many cached runs it has.
#[test]
fn a_band_is_cleaned_in_about_a_second() {
    println!("cleaning one band: paper 0.6 to 1.6 s");
    for runs in [1u64, 20, 100, 1000] {
        let mut disk = drive(1);
        let mut rng = Rng::new(runs, "runs");
        let band = disk.band_of(4 << 40);
        let mut now = Time::ZERO;
        for _ in 0..runs {
            let block = rng.below((band.end - band.start) / 4096 - 1);
            now = one(&mut disk, now, WRITE, band.start.next_multiple_of(4096) + block * 4096, 4096);
        }
        // The host falls silent; cleaning follows.
        let mut done = Vec::new();
        while disk.cached_runs() > 0 {
            disk.advance(disk.next_event(), &mut done);
        }
        let s = disk.stats();
        println!(
            "  {:>5} runs of 4 KiB in a band of {} MiB: model {}",
            s.merged_runs,
            (band.end - band.start) >> 20,
            s.clean_longest
        );
        assert_eq!(s.cleaned_bands, 1);
        assert!(s.clean_longest > Span::from_millis(200), "a band is read and written");
        if runs == 100 {
            assert!((0.4..2.5).contains(&s.clean_longest.as_secs_f64()), "{}", s.clean_longest);
        }
    }
}

/// Bands of 15 to 40 MB (Manylogs §III-I3), an 8 TB drive, 190 MB/s outside.
#[test]
fn geometry_is_that_of_the_drive() {
    let disk = drive(1);
    let (outer, inner) = (disk.band_of(0), disk.band_of(disk.size_bytes() - 1));
    let mb = |r: std::ops::Range<u64>| (r.end - r.start) as f64 / 1e6;
    let (outer, inner, tb) = (mb(outer), mb(inner), disk.size_bytes() as f64 / 1e12);
    println!("bands: paper 15 to 40 MB, model {inner:.1} to {outer:.1} MB, {} of them", disk.bands());
    println!("capacity: 8.00 TB, model {tb:.3} TB");
    assert!((15.0..25.0).contains(&inner) && (30.0..=40.0).contains(&outer) && (tb - 8.0).abs() < 0.05);
    // A long read at the outer edge runs at the media's rate.
    let mut disk = drive(1);
    let took = one(&mut disk, Time::ZERO, Op::Read, 0, 1 << 30).as_secs_f64();
    let rate = (1u64 << 30) as f64 / 1e6 / took;
    println!("sequential read, outer edge: 190 MB/s assumed, model {rate:.0} MB/s");
    assert!((140.0..195.0).contains(&rate));
}

/// Reads see what is cached: near the log while it is there, at home once it was cleaned.
#[test]
fn reads_look_through_the_cache() {
    let mut disk = drive(3);
    let far = disk.size_bytes() - (1 << 30);
    let mut now = one(&mut disk, Time::ZERO, Op::Write { fua: true }, far, 4096);
    // The arm is at the log, the block too: no seek across the disk.
    let at = one(&mut disk, now, Op::Read, far, 4096);
    let cached = at.since(now);
    now = at;
    now += Span::from_secs(1000);
    disk.advance(now, &mut Vec::new());
    assert_eq!(disk.cached_runs(), 0, "the host was silent, so the band was cleaned");
    // First something at the outer edge, then the block: now it's far away.
    now = one(&mut disk, now, Op::Read, 0, 4096);
    let home = one(&mut disk, now, Op::Read, far, 4096).since(now);
    println!("read of a cached block {cached}, of the same block at home {home}");
    assert!(home > cached && home > Span::from_millis(10), "{home} against {cached}");
}

/// A write that covers a band goes there, as fast as the media; trimmed runs needn't be cleaned.
#[test]
fn whole_bands_and_trims_need_no_cleaning() {
    let mut disk = drive(1);
    let band = disk.band_of(1 << 40);
    let mut now = one(&mut disk, Time::ZERO, WRITE, band.start, 4096);
    assert_eq!(disk.cached_runs(), 1);
    let began = now;
    now = one(&mut disk, now, WRITE, band.start, band.end - band.start);
    assert_eq!((disk.cached_runs(), disk.stats().whole_bands), (0, 1));
    assert!(now.since(began) < Span::from_millis(500));
    now = one(&mut disk, now, WRITE, band.start, 8192);
    now = one(&mut disk, now, Op::Trim, band.start, 8192);
    assert_eq!(disk.cached_runs(), 0);
    disk.advance(now + Span::from_secs(60), &mut Vec::new());
    assert_eq!(disk.stats().cleaned_bands, 0);
}

/// Manylogs §III-I3: one surface of six platters isn't shingled (1/8 to 1/12 of the space); the track near the
/// head can be written at will, without a seek and without ever cleaning.
#[test]
fn the_unshingled_track_near_the_head_costs_no_seek() {
    let mut s = spec();
    s.unshingled_surface = true;
    let mut disk = SmrDisk::new(&s, DiskOptions::default()).expect("valid");
    let free = disk.unshingled();
    let share = (free.end - free.start) as f64 / disk.size_bytes() as f64;
    println!("unshingled: paper 1/12 of the space for 6 platters, model 1/{:.1}", 1.0 / share);
    assert!((1.0 / share - 12.0).abs() < 0.2);
    let mut rng = Rng::new(1, "near");
    let (mut near_ms, mut far_ms, mut now) = (0.0, 0.0, Time::ZERO);
    let n = 200;
    for i in 0..2 * n {
        let home = rng.below(free.start / 4096) * 4096;
        now = one(&mut disk, now, Op::Read, home, 4096) + Span::from_millis(50);
        let near = i % 2 == 0;
        let log = disk.unshingled_near(if near { home } else { 0 }).expect("there is such a surface");
        let took = one(&mut disk, now, Op::Write { fua: true }, log.start, 4096).since(now).as_millis_f64();
        *(if near { &mut near_ms } else { &mut far_ms }) += took / f64::from(n);
        now += Span::from_secs(1);
    }
    println!(
        "4 KiB write after a random read: near-head log {near_ms:.2} ms, log at the outer edge {far_ms:.2} ms (model)"
    );
    assert!(near_ms + 3.0 < far_ms);
    assert_eq!(disk.stats(), SmrStats::default(), "the cache had no part in it");
}

/// The same inputs give the same completions, whoever asks when; another seed gives others.
#[test]
fn one_seed_one_history() {
    let run = |seed| {
        let mut s = spec();
        (s.cache.entries_max, s.clean.idle_ms) = (300, 30.0);
        let mut disk = SmrDisk::new(&s, DiskOptions { seed, mismatch: None }).expect("valid");
        let mut rng = Rng::new(seed, "mix");
        let (mut done, mut hash, mut sent, mut now) = (Vec::new(), 0u64, 0, Time::ZERO);
        for i in 0..4000u64 {
            now += Span::from_micros(if i % 200 == 0 { 2_000_000 } else { rng.below(20_000) });
            disk.advance(now, &mut done);
            let op = [Op::Read, WRITE, WRITE, Op::Write { fua: true }, Op::Trim][rng.below(5) as usize];
            let offset = rng.below(1 << 18) * 4096;
            let op = if i % 100 == 99 { Op::Flush } else { op };
            if disk.outstanding() < disk.queue_max() {
                disk.submit(now, Request { tag: i, op, offset, len: 4096 * (1 + rng.below(30)) });
                sent += 1;
            }
        }
        while disk.outstanding() > 0 {
            disk.advance(disk.next_event(), &mut done);
        }
        assert_eq!(done.len(), sent, "every request ends once");
        assert!(disk.stats().cleaned_bands > 0 && disk.stats().stalled_writes > 0, "{:?}", disk.stats());
        for d in &done {
            hash = (hash ^ d.tag ^ d.at.as_nanos().rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(5);
        }
        (hash, disk.stats())
    };
    let (a, b) = (run(1), run(1));
    assert_eq!(a, b);
    assert_ne!(a.0, run(2).0);
    println!("event hash {:016x}, {:?}", a.0, a.1);
}

/// Tiny bands, a tiny cache, requests over everything: all of them end, in order of time, and the map keeps its bound.
#[test]
fn no_mix_of_requests_gets_stuck() {
    for seed in 0..40u64 {
        let mut rng = Rng::new(seed, "options");
        let mut s = spec();
        let g = &mut s.disk.geometry;
        (g.surfaces, g.cylinders) = (4, 60);
        g.zones.truncate(2);
        for (i, z) in (0u32..).zip(&mut g.zones) {
            (z.first_cylinder, z.last_cylinder, z.sectors_per_track) = (30 * i, 30 * i + 29, 64 - 16 * i);
        }
        s.disk.mechanics.seek = SeekCurve::Table { points: vec![(1, 1.0), (59, 10.0)] };
        (s.band_tracks, s.unshingled_surface, s.cache.mib) = (7, rng.chance(0.5), 1);
        s.cache.entries_max = 1 + rng.below(30) as u32;
        (s.clean.aside_first, s.clean.io_kib) = (rng.chance(0.5), 4 + rng.below(200) as u32);
        s.clean.idle_ms = if rng.chance(0.3) { 0.0 } else { 5.0 };
        let mut disk = SmrDisk::new(&s, DiskOptions { seed, mismatch: None }).expect("valid");
        let (mut now, mut done, mut sent) = (Time::ZERO, Vec::new(), 0);
        for tag in 0..400 {
            now += Span::from_micros(rng.below(30_000));
            disk.advance(now, &mut done);
            if disk.outstanding() == disk.queue_max() {
                continue;
            }
            let op = [Op::Read, WRITE, WRITE, Op::Write { fua: true }, Op::WriteZeroes, Op::Trim, Op::Flush];
            let blocks = disk.size_bytes() / 512;
            let first = rng.below(blocks);
            let most = if rng.chance(0.2) { 1000 } else { 20 };
            let len = 512 * (1 + rng.below(most)).min(blocks - first);
            disk.submit(now, Request { tag, op: op[rng.below(7) as usize], offset: first * 512, len });
            sent += 1;
            // Entries for a single write are always granted, and cutting one adds one.
            assert!(disk.cached_runs() <= s.cache.entries_max as usize + 6, "{}", disk.cached_runs());
        }
        while disk.outstanding() > 0 {
            assert!(disk.next_event().is_set(), "seed {seed}: {} requests are stuck", disk.outstanding());
            disk.advance(disk.next_event(), &mut done);
        }
        assert_eq!(done.len(), sent, "every request ends once");
        assert!(done.windows(2).all(|w| w[0].at <= w[1].at), "in order of time");
        assert!(done.iter().all(|d| d.started_at <= d.at));
    }
}

/// The mechanics are those of the disk model: nothing shingled in the way, a read takes what the disk takes.
#[test]
fn reads_cost_what_the_mechanics_cost() {
    let s = spec();
    let mut plain = Disk::new(&s.disk, DiskOptions::default()).expect("valid");
    let mut disk = SmrDisk::new(&s, DiskOptions::default()).expect("valid");
    let mut rng = Rng::new(1, "reads");
    let (mut a, mut b, mut sums) = (Time::ZERO, Time::ZERO, (0.0, 0.0));
    let n = 2000;
    for _ in 0..n {
        let offset = rng.below(disk.size_bytes() / 4096) * 4096;
        let (x, y) = (one(&mut plain, a, Op::Read, offset, 4096), one(&mut disk, b, Op::Read, offset, 4096));
        sums = (sums.0 + x.since(a).as_millis_f64(), sums.1 + y.since(b).as_millis_f64());
        (a, b) = (x, y);
    }
    let (plain_ms, smr_ms) = (sums.0 / f64::from(n), sums.1 / f64::from(n));
    println!("random 4 KiB read: disk alone {plain_ms:.2} ms, shingled {smr_ms:.2} ms (model)");
    assert!((plain_ms / smr_ms - 1.0).abs() < 0.03);
}
