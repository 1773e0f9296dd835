//! The model against measured drives. Nothing in the model is fitted to these requests.

mod drives;

use plimsoll_device::measured::{self, demerit_millis, mean_millis, replay};
use plimsoll_device::{Disk, DiskOptions, DiskSpec, profile};

/// Relative demerit in percent of `spec` against `requests`.
fn relative_demerit(name: &str, spec: &DiskSpec, requests: &[measured::Measured], seed: u64) -> f64 {
    let mut disk = Disk::new(spec, DiskOptions { seed, mismatch: None }).expect("a valid specification");
    let times = replay(&mut disk, requests).expect("requests within the drive");
    let measured: Vec<_> = requests.iter().map(|m| m.service).collect();
    let relative = demerit_millis(&measured, &times) / mean_millis(&measured) * 100.0;
    println!(
        "{name}, seed {seed}, n {}: mean measured {:.3} ms, model {:.3} ms, relative demerit {relative:.1} %",
        requests.len(),
        mean_millis(&measured),
        mean_millis(&times)
    );
    relative
}

/// The first 1,500 measured requests of two drives come with the code, so that this runs everywhere.
#[test]
fn the_embedded_profiles_follow_their_drives() {
    let files =
        [("atlas-10k", include_str!("fixtures/atlas10k.csv")), ("hp-c2247a", include_str!("fixtures/hp_c2247a.csv"))];
    for (name, text) in files {
        let spec = profile::by_name(name).expect("embedded");
        let requests = measured::read(text.as_bytes()).expect("a measurement file");
        assert_eq!(requests.len(), 1500);
        for seed in 1..=3 {
            assert!(relative_demerit(name, &spec, &requests, seed) < 7.0, "{name} is further off than it was");
        }
    }
}

/// A model that is wrong must not pass: the other drive's parameters are far off.
#[test]
fn another_drive_does_not_follow() {
    let spec = profile::by_name("cheetah-15k5").expect("embedded");
    let requests = measured::read(include_str!("fixtures/atlas10k.csv").as_bytes()).expect("a measurement file");
    assert!(relative_demerit("15K.5 against Atlas 10K", &spec, &requests, 1) > 20.0);
}

/// All drives whose measurements are at hand (eight). The goal is 10 % at the median drive; the bounds hold what was reached.
#[test]
fn every_measured_drive_is_followed() {
    let data = drives::default_data();
    let present = drives::measured(&data);
    if present.is_empty() {
        eprintln!("ran without ../shared/data: the measured drives were NOT compared");
        return;
    }
    let mut all: Vec<f64> = present
        .into_iter()
        .map(|drive| {
            let (spec, requests) = drives::load(&data, drive).expect("readable files");
            relative_demerit(drive.name, &spec, &requests, 1)
        })
        .collect();
    all.sort_by(f64::total_cmp);
    let (median, worst) = (drives::median(&all), all[all.len() - 1]);
    println!("{} drives: median {median:.1} %, worst {worst:.1} %", all.len());
    assert!(median < 4.0 && worst < 10.0, "median {median} %, worst {worst} %");
}

/// A week of a 1992 workstation: service times, and the queueing that follows from them. The trace's header is all
/// that is known of its disks, and it leaves some milliseconds of each request unexplained (HP-IB's command and
/// report phases, perhaps): the bounds hold what was reached, and that is not 10 %.
#[test]
fn hplajw_is_followed_at_a_distance() {
    let data = drives::default_data();
    if !data.join("block/hplajw_workstation.csv.gz").is_file() {
        eprintln!("ran without ../shared/data: hplajw was NOT compared");
        return;
    }
    let w = drives::replay_hplajw(&data, 1).expect("a readable trace");
    let pairs =
        [("service", &w.measured_service, &w.model_service, 25.0), ("wait", &w.measured_wait, &w.model_wait, 50.0)];
    for (what, measured, model, bound) in pairs {
        let mean = mean_millis(measured);
        let relative = demerit_millis(measured, model) / mean * 100.0;
        println!("hplajw {what}: measured {mean:.3} ms, model {:.3} ms, demerit {relative:.1} %", mean_millis(model));
        assert!(relative < bound, "{what} is {relative} % off");
    }
}
