//! The tools against slow, obviously right answers, and against the figures the data's README states.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::stream::Held;
use plimsoll_trace::tools::convert;
use plimsoll_trace::tools::cut::{Cut, Piece};
use plimsoll_trace::tools::info::info;
use plimsoll_trace::tools::mix::{MANYLOGS_MIXES, Mix, MixInput, Placement};
use plimsoll_trace::tools::rerate::Speed;
use plimsoll_trace::tools::window::{Busy, busiest};
use plimsoll_trace::{Op, OutputFormat, ReadOptions, RecordStream, Tables, TraceReader, TraceRecord, TraceWriter};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn tables(devices: &[&str]) -> Tables {
    let mut t = Tables::new();
    for d in devices {
        t.devices.intern(d.as_bytes());
    }
    t
}

fn ms(t: u64) -> Time {
    Time::ZERO + Span::from_millis(t)
}

/// A trace on two devices.
fn random(seed: u64, n: u64) -> Vec<TraceRecord> {
    let mut rng = Rng::new(seed, "tools");
    let mut at = 0;
    let record = |_| {
        at += rng.below(50);
        let op = if rng.chance(0.7) { Op::Read } else { Op::Write };
        let (device, sector, sectors) = (rng.below(2) as u32, rng.below(1 << 12), 1 + rng.below(64));
        TraceRecord::new(ms(at), device, op, sector * 512, sectors * 512)
    };
    (0..n).map(record).collect()
}

fn all(stream: &mut impl RecordStream) -> Vec<TraceRecord> {
    stream.records().map(Result::unwrap).collect()
}

#[test]
fn a_description_counts_what_is_there() {
    let r = |t, device, op, offset, len| TraceRecord::new(ms(t), device, op, offset, len);
    let records = vec![
        r(0, 0, Op::Read, 0, 4096),
        r(1, 0, Op::Read, 4096, 4096),
        r(2, 1, Op::Read, 8192, 512),
        r(3, 0, Op::Write, 1 << 20, 8192),
        r(4, 0, Op::Read, 8192, 1),
        r(1_500, 0, Op::Trim, 0, 1 << 40),
        r(100_000, 0, Op::Flush, 0, 0),
    ];
    let i = info(&mut Held::new(records, tables(&["a", "b"])), Span::from_secs(60)).unwrap();
    assert_eq!((i.requests(), i.op(Op::Read).requests, i.op(Op::Write).bytes), (7, 4, 8192));
    assert_eq!((i.devices, i.duration, i.end_max), (2, Span::from_secs(100), 1 << 40));
    // Device 0: blocks 0, 1, 2, and 256, 257; device 1: block 2.
    assert_eq!((i.footprint_bytes, i.is_footprint_exact), (6 * 4096, true));
    assert_eq!((i.sequential, i.sequential_of_8), (1, 2));
    assert_eq!((i.sizes.percentile(50.0), i.sizes.percentile(90.0)), (4096, 8192));
    assert_eq!((i.peak_per_second, i.idle), (5, (1, Span::from_millis(98_500))));
    assert_eq!((i.busiest.from, i.busiest.amount), (Time::ZERO, 6));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn a_cut_is_the_filtered_list(seed: u64, from in 0u64..3_000, len in 0u64..3_000, skip in 0u64..20, count_max in 0u64..60) {
        let records = random(seed, 100);
        let piece = Piece { from: ms(from), to: ms(from + len), skip, count_max };
        let found = all(&mut Cut::new(Held::new(records.clone(), Tables::new()), piece));
        let wanted: Vec<_> = records
            .iter()
            .filter(|r| r.arrived_at >= ms(from) && r.arrived_at < ms(from + len))
            .skip(skip as usize)
            .take(count_max as usize)
            .collect();
        let base = if skip == 0 { ms(from) } else { wanted.first().map_or(ms(0), |r| r.arrived_at) };
        prop_assert_eq!(found.len(), wanted.len());
        for (f, w) in found.iter().zip(wanted) {
            prop_assert_eq!(f.arrived_at, Time::ZERO + w.arrived_at.since(base));
            prop_assert_eq!((f.offset, f.len, f.op), (w.offset, w.len, w.op));
        }
    }

    #[test]
    fn a_mix_is_the_sorted_whole(seeds in proptest::collection::vec(any::<u64>(), 1..5), num in 1u64..5) {
        let speed = Speed::new(num, 2).unwrap();
        let inputs = seeds.iter().enumerate().map(|(i, &s)| MixInput {
            stream: Held::new(random(s, 50), tables(&["x", "y"])),
            speed,
            starts_at: ms(7 * i as u64),
            placement: Placement::Apart { label: format!("t{i}") },
        });
        let mut mix = Mix::new(inputs.collect());
        let found: Vec<_> = all(&mut mix)
            .iter()
            .map(|r| (r.arrived_at, mix.tables().devices.get(r.device).unwrap().to_string(), r.offset))
            .collect();
        let mut wanted: Vec<_> = seeds
            .iter()
            .enumerate()
            .flat_map(|(i, &s)| {
                random(s, 50).into_iter().map(move |r| {
                    let at = Time::from_nanos(r.arrived_at.as_nanos() * 2 / num + 7_000_000 * i as u64);
                    (at, format!("t{i}:{}", ["x", "y"][r.device as usize]), r.offset)
                })
            })
            .collect();
        // Stable: at one instant the inputs' order, and each input's own.
        wanted.sort_by_key(|w| w.0);
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn a_region_holds_all_that_is_placed_in_it(seed: u64, start in 0u64..1 << 40, bytes in 1u64..1 << 21) {
        let placement = Placement::Onto { device: "disk".into(), start, bytes };
        let stream = Held::new(random(seed, 100), tables(&["x", "y"]));
        let mut mix = Mix::new(vec![MixInput { stream, speed: Speed::RECORDED, starts_at: Time::ZERO, placement }]);
        for r in all(&mut mix) {
            prop_assert!(r.offset >= start && r.end() <= start + bytes && r.len > 0);
            prop_assert_eq!(mix.tables().devices.get(r.device), Some("disk"));
        }
    }
}

#[test]
fn an_error_in_one_input_ends_the_mix() {
    let bad = "0,1,512,r,0.1\n0,1,512,r,x\n";
    let options = ReadOptions { window_records: Some(0), ..ReadOptions::default() };
    let stream = TraceReader::from_read("bad.spc", Box::new(bad.as_bytes()), &options).unwrap();
    let placement = Placement::Apart { label: "a".into() };
    let mut mix = Mix::new(vec![MixInput { stream, speed: Speed::RECORDED, starts_at: Time::ZERO, placement }]);
    let found: Vec<_> = mix.records().collect();
    assert!(found.last().unwrap().as_ref().unwrap_err().to_string().starts_with("bad.spc:2: timestamp"));
}

#[test]
fn manylogs_mixes_are_as_printed() {
    let sizes: Vec<_> = MANYLOGS_MIXES.iter().map(|m| (m.name, m.parts.len())).collect();
    assert_eq!(sizes, [("W1", 6), ("W2", 5), ("W3", 5), ("W4", 5), ("W5", 5)]);
    assert!(MANYLOGS_MIXES.iter().all(|m| m.parts.iter().all(|&(_, t)| (1..=10).contains(&t))));
}

#[test]
fn any_format_converts_to_ours() {
    let dir = tempfile::tempdir().unwrap();
    let text = "128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,1,Write,310983168,24576,1251\n";
    let mut from = TraceReader::from_read("hm.csv", Box::new(text.as_bytes()), &ReadOptions::default()).unwrap();
    let path = dir.path().join("hm.csv");
    let written = convert(&mut from, TraceWriter::create(&path, OutputFormat::Csv).unwrap()).unwrap();
    assert_eq!((written.records, written.left_out), (2, 0));
    assert_eq!(
        std::fs::read_to_string(path).unwrap(),
        "t_us,dev,op,offset,size,q_us,svc_us,ctx\n0,hm1,R,383496192,32768,,41.300,\n1332052.600,hm1,W,310983168,24576,,125.100,\n"
    );
}

/// File, requests, seconds, GiB read, GiB written, footprint GiB, size p50 and p90 in KiB, most in a second: the
/// README's table.
type Row = (&'static str, u64, f64, f64, f64, f64, u64, u64, u64);
const STATED: [Row; 6] = [
    ("cloudphysics_vm", 113_872, 7_200.0, 1.67, 2.24, 1.03, 52, 64, 2_204),
    ("hplajw_workstation", 44_519, 603_065.0, 0.06, 0.19, 0.03, 8, 8, 106),
    ("hadoop_node10", 137_358, 169.3, 37.8, 0.02, 37.8, 256, 640, 2_006),
    ("mobile_slideshow_install", 332_321, 4_963.0, 0.0, 62.5, 61.6, 172, 356, 1_173),
    ("websearch_small", 24_783, 60.1, 0.36, 0.0, 0.36, 8, 32, 522),
    ("ycsb_ext4", 9_886, 810.0, 0.98, 0.24, 1.21, 128, 128, 738),
];

#[test]
fn descriptions_agree_with_the_datas_readme() {
    let default = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data");
    let dir = std::path::PathBuf::from(std::env::var_os("PLIMSOLL_DATA").unwrap_or_else(|| default.into()));
    if !dir.join("block").is_dir() {
        println!("ran without ../shared/data: {} isn't there", dir.display());
        return;
    }
    let near = |a: f64, b: f64, unit: f64| (a - b).abs() <= unit;
    for (name, n, seconds, read, written, footprint, p50, p90, peak) in STATED {
        let path = dir.join(format!("block/{name}.csv.gz"));
        let mut r = TraceReader::open(&path, &ReadOptions::default()).unwrap();
        let i = info(&mut r, Span::from_secs(60)).unwrap();
        let gib = |b: u64| b as f64 / f64::from(1 << 30);
        println!(
            "{name}: {} requests, {:.1} s, {:.3} / {:.3} GiB, footprint {:.3}, p50 {} p90 {}, peak {}, idle {:?}",
            i.requests(),
            i.duration.as_secs_f64(),
            gib(i.op(Op::Read).bytes),
            gib(i.op(Op::Write).bytes),
            gib(i.footprint_bytes),
            i.sizes.percentile(50.0),
            i.sizes.percentile(90.0),
            i.peak_per_second,
            i.idle
        );
        assert_eq!((i.requests(), i.sizes.percentile(50.0) >> 10, i.sizes.percentile(90.0) >> 10), (n, p50, p90));
        assert!(near(i.duration.as_secs_f64(), seconds, 0.5), "{name}: {}", i.duration);
        assert!(
            near(gib(i.op(Op::Read).bytes), read, 0.05) && near(gib(i.op(Op::Write).bytes), written, 0.05),
            "{name}"
        );
        assert!(near(gib(i.footprint_bytes), footprint, 0.05), "{name}");
        assert_eq!(i.peak_per_second, peak, "{name}");
        if name == "hplajw_workstation" {
            assert_eq!((i.idle.0, i.idle.1.as_nanos() / 1_000_000_000), (570, 551_883));
        }
    }
    let path = dir.join("block/cloudphysics_vm.csv.gz");
    let mut r = TraceReader::open(&path, &ReadOptions::default()).unwrap();
    let w = busiest(&mut r, Span::from_secs(60), Busy::Writes).unwrap();
    let piece = Piece { from: w.from, to: w.from + w.len, ..Piece::default() };
    let mut r = Cut::new(TraceReader::open(&path, &ReadOptions::default()).unwrap(), piece);
    let writes = all(&mut r).iter().filter(|r| r.op == Op::Write).count();
    assert_eq!(writes as u64, w.amount, "the window found holds what the finder says");
}
