//! Compares the disk model with measured drives: `cargo run --release -p plimsoll-device --example validate`.
//!
//! The parameters come from DiskSim files, nothing is fitted. Options: `--data DIR` (default `../shared/data`),
//! `--seed N` (rotational phase, default 1), `--classes` (means by kind of request).

use std::process::ExitCode;

#[path = "../tests/drives/mod.rs"]
mod drives;

use plimsoll_device::measured::{Measured, demerit_millis, mean_millis, replay};
use plimsoll_device::{Disk, DiskOptions, Op};

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let (mut data, mut seed, mut classes) = (drives::default_data(), 1, false);
    while let Some(arg) = args.next() {
        match (arg.as_str(), args.next()) {
            ("--data", Some(dir)) => data = dir.into(),
            ("--seed", Some(n)) if n.parse::<u64>().is_ok() => seed = n.parse().unwrap_or(1),
            ("--classes", None) => classes = true,
            _ => {
                eprintln!("usage: validate [--data DIR] [--seed N] [--classes]");
                return ExitCode::from(2);
            }
        }
    }
    println!("drive        requests  mean ms measured  model   demerit ms  relative %");
    let mut relative = Vec::new();
    for drive in drives::measured(&data) {
        let result = drives::load(&data, drive).and_then(|(spec, requests)| {
            let mut disk = Disk::new(&spec, DiskOptions { seed, mismatch: None }).map_err(|e| e.to_string())?;
            let times = replay(&mut disk, &requests)?;
            Ok((requests, times))
        });
        let (requests, times) = match result {
            Ok(r) => r,
            Err(e) => {
                eprintln!("{}: {e}", drive.name);
                return ExitCode::FAILURE;
            }
        };
        let measured: Vec<_> = requests.iter().map(|m| m.service).collect();
        let demerit = demerit_millis(&measured, &times);
        let mean = mean_millis(&measured);
        relative.push(demerit / mean * 100.0);
        println!(
            "{:12} {:8}  {:16.3} {:6.3}   {demerit:10.3}  {:10.1}",
            drive.name,
            times.len(),
            mean,
            mean_millis(&times),
            demerit / mean * 100.0
        );
        if classes {
            print_classes(&requests, &times);
        }
    }
    if relative.is_empty() {
        eprintln!("no measurements in {}/disks/validate: give their place with --data", data.display());
        return ExitCode::FAILURE;
    }
    relative.sort_by(f64::total_cmp);
    println!("median relative demerit {:.1} %", drives::median(&relative));
    match drives::replay_hplajw(&data, seed) {
        Ok(w) => print_hplajw(&w),
        Err(e) => {
            eprintln!("hplajw: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn print_hplajw(w: &drives::Workstation) {
    for (what, measured, model) in
        [("service", &w.measured_service, &w.model_service), ("host wait", &w.measured_wait, &w.model_wait)]
    {
        let demerit = demerit_millis(measured, model);
        let (a, b) = (mean_millis(measured), mean_millis(model));
        println!(
            "hplajw disk 0, {} requests, {what}: mean ms measured {a:.3}, model {b:.3}; demerit {demerit:.3} ms, {:.1} %",
            measured.len(),
            demerit / a * 100.0
        );
    }
}

/// Means by operation, place relative to the predecessor, and the predecessor's operation.
fn print_classes(requests: &[Measured], times: &[plimsoll_base::Span]) {
    let mut groups = std::collections::BTreeMap::<_, Vec<usize>>::new();
    for i in 1..requests.len() {
        let (m, before) = (&requests[i], &requests[i - 1]);
        let end = before.lbn + before.blocks;
        let place = match m.lbn.abs_diff(end) {
            0 => "next",
            d if d < 2000 && m.lbn > end => "ahead",
            d if d < 2000 => "behind",
            _ => "far",
        };
        let kind = |m: &Measured| if m.op == Op::Read { "R" } else { "W" };
        groups.entry((kind(m), place, kind(before))).or_default().push(i);
    }
    for ((op, place, before), group) in groups {
        let pick = |f: &dyn Fn(usize) -> plimsoll_base::Span| {
            let mut v: Vec<_> = group.iter().map(|&i| f(i)).collect();
            v.sort_unstable();
            let at = |p: usize| v[(v.len() - 1) * p / 100].as_millis_f64();
            format!("mean {:6.2} p10 {:6.2} p50 {:6.2} p90 {:6.2}", mean_millis(&v), at(10), at(50), at(90))
        };
        println!(
            "    {op} {place:6} after {before} {:5}: measured {} | model {}",
            group.len(),
            pick(&|i| requests[i].service),
            pick(&|i| times[i])
        );
    }
}
