//! DiskSim parameter sets: what is read, and what is said of files that are wrong.

mod drives;

use plimsoll_device::diskspec::{self, Texts};
use plimsoll_device::{Disk, DiskOptions, DiskSpec, Model};
use proptest::prelude::*;

/// A made-up drive with every key of the format.
const SPECS: &str = include_str!("fixtures/tiny.diskspecs");
const MODEL: &str = include_str!("fixtures/tiny.model");
const SEEK: &str = "Seek distances measured: 3\n1, 1.5\n10, 2.5\n98, 9.0\n";

fn parse(specs: &str, model: &str, seek: &str) -> Result<DiskSpec, String> {
    diskspec::parse(Texts {
        specs: ("tiny.diskspecs", specs),
        model: ("tiny.model", model),
        seek: Some(("tiny.seek", seek)),
    })
    .map_err(|e| e.to_string())
}

#[test]
fn a_set_becomes_a_disk() {
    let spec = parse(SPECS, MODEL, SEEK).expect("a valid set");
    assert_eq!(diskspec::model_file("s", SPECS).unwrap(), "tiny.model");
    assert_eq!(diskspec::seek_file("m", MODEL).unwrap().as_deref(), Some("tiny.seek"));
    assert_eq!(spec.name, "TINY");
    assert_eq!(spec.mechanics.seek.millis(10, 100), 2.5);
    assert_eq!(spec.overheads.read_miss_after_write_ms, 0.75);
    assert_eq!(spec.bus.read_us_per_sector, 105.0);
    assert_eq!(spec.geometry.zones[1].slips, [3, 17]);
    let disk = Disk::new(&spec, DiskOptions::default()).expect("a valid disk");
    // Two zones of 50 cylinders, 2 surfaces: 60 and 40 sectors a track, less 5 spares each.
    assert_eq!(disk.size_bytes(), 512 * (50 * 2 * (60 + 40) - 10));
    // As a profile and back, it is the same disk.
    assert_eq!(DiskSpec::from_toml(&spec.to_toml()).expect("its own TOML"), spec);
}

#[test]
fn errors_say_where_and_what() {
    let line_of = |text: &str, part: &str| text.lines().position(|l| l.contains(part)).expect("there") + 1;
    let cases = [
        (SPECS.replace("Max queue length = 4", "Max queue length = four"), MODEL.into(), "`Max queue length` must be"),
        (SPECS.replace("Max queue length", "Max queue lentgh"), MODEL.into(), "unknown key `Max queue lentgh`"),
        (SPECS.replace("Fast write level = 2", "Fast write level = 7"), MODEL.into(), "buffer.write_cache_level"),
        (SPECS.into(), MODEL.replace("dm_layout_g1 {", "dm_layout_g4 {"), "`dm_layout_g1 { … }`"),
        (SPECS.into(), MODEL.replace("Blocks per track = 40", "Blocks per track = 0"), "zones[1].sectors_per_track"),
        (SPECS.into(), MODEL.replace("Head switch time = 0.5,", ""), "lacks `Head switch time`"),
        (SPECS.into(), MODEL.replace("slips = [ 3, 17 ]", "slips = [ 3, x ]"), "expected a number"),
        (SPECS[..SPECS.len() / 2].into(), MODEL.into(), "the file ends before"),
        (String::new(), MODEL.into(), "has no `disksim_disk` block"),
    ];
    for (specs, model, expected) in cases {
        let error = parse(&specs, &model, SEEK).expect_err(expected);
        assert!(error.contains(expected), "{error}");
        assert!(error.starts_with("tiny."), "{error} names no file");
    }
    let specs = SPECS.replace("Max queue length = 4", "Max queue length = four");
    let expected = format!("tiny.diskspecs:{}:", line_of(&specs, "four"));
    assert!(parse(&specs, MODEL, SEEK).unwrap_err().starts_with(&expected));
    for (seek, expected) in [
        ("Seek distances measured: 2\n1, 1.0\n", "announces 2 distances and has 1"),
        ("1, 1.0\n1, 2.0\n", "tiny.seek:2: distance 1 must be"),
        ("1; 1.0\n", "tiny.seek:1: `1; 1.0` is no number"),
        ("", "announces 0"),
    ] {
        let error = parse(SPECS, MODEL, seek).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn bottomless_nesting_is_refused() {
    let deep = format!("disksim_disk X {{ Model = {} }}", "[".repeat(100_000));
    assert!(parse(&deep, MODEL, SEEK).unwrap_err().contains("nested deeper"));
}

/// The published sets, where they are at hand: each loads, or says why not.
#[test]
fn published_sets_load() {
    let dir = drives::default_data().join("disks/model");
    if !dir.is_dir() {
        eprintln!("ran without ../shared/data: the published parameter sets were NOT loaded");
        return;
    }
    for (name, sectors) in [("atlas_III", 17_783_250), ("ibm18es", 17_916_240), ("hp_c2490a", 4_165_272)] {
        let spec = diskspec::load(&dir.join(format!("{name}.diskspecs")), None).expect("a valid set");
        let disk = Disk::new(&spec, DiskOptions::default()).expect("a valid disk");
        let model = disk.size_bytes() / 512;
        println!("{name}: {model} sectors by its zones, {sectors} by its block count");
        assert!(model.abs_diff(sectors) < sectors / 100);
    }
    for (name, expected) in [("wd_4tb_7200", "can't be read"), ("maxtor300g", "Layout Model")] {
        let error = diskspec::load(&dir.join(format!("{name}.diskspecs")), None).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]
    /// A damaged file is a disk or an error, never a panic.
    #[test]
    fn damaged_files_are_errors_or_disks(
        which in 0usize..3, at in any::<prop::sample::Index>(), cut in 0usize..40, put in "[ -~\n]{0,12}",
    ) {
        let mut texts = [SPECS.to_string(), MODEL.to_string(), SEEK.to_string()];
        let text = &mut texts[which];
        let begin = at.index(text.len());
        let end = (begin + cut).min(text.len());
        text.replace_range(begin..end, &put);
        if let Ok(spec) = parse(&texts[0], &texts[1], &texts[2]) {
            let _ = Disk::new(&spec, DiskOptions::default());
        }
    }

    #[test]
    fn any_text_is_an_error_or_a_disk(text in "[ -~\n]{0,400}") {
        let _ = parse(&text, MODEL, SEEK);
        let _ = parse(SPECS, &text, SEEK);
        let _ = DiskSpec::from_toml(&text);
    }
}
