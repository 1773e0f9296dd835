//! Whole pools in virtual time, drawn from seeds.

use plimsoll_chaos::Lies;
use plimsoll_chaos::sim::{Planted, Tally, run};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|n| n.parse().unwrap_or_else(|e| panic!("{name}={n}: {e}")))
}

/// Many more with `PLIMSOLL_CHAOS_SEEDS=5000`, from another first one with `PLIMSOLL_CHAOS_FROM=100000`, one of them with
/// `PLIMSOLL_CHAOS_SEED=7`.
#[test]
fn every_composition_keeps_what_it_acknowledged() {
    let from = number("PLIMSOLL_CHAOS_FROM").unwrap_or(0);
    let only = number("PLIMSOLL_CHAOS_SEED");
    let seeds = only.map_or(from..from + number("PLIMSOLL_CHAOS_SEEDS").unwrap_or(40), |n| n..n + 1);
    let (mut tally, mut wrong) = (Tally::default(), Vec::new());
    for seed in seeds.clone() {
        match std::panic::catch_unwind(|| run(seed, None)) {
            Ok(Ok(t)) => tally.add(t),
            Ok(Err(e)) => wrong.push(format!("seed {seed}: {e}")),
            Err(_) => wrong.push(format!("seed {seed}: a panic, see above")),
        }
    }
    println!("{seeds:?}: {tally:?}");
    let again =
        "PLIMSOLL_CHAOS_SEED=<seed> cargo test -p plimsoll-chaos --test simulated every_composition -- --nocapture";
    assert!(wrong.is_empty(), "{} seeds; repeat one with {again}\n{}", wrong.len(), wrong.join("\n"));
}

fn found(planted: Planted, seeds: u64) {
    let found = (0..seeds).find_map(|seed| Some((seed, run(seed, Some(planted)).err()?)));
    let (seed, why) = found.unwrap_or_else(|| panic!("not found: {planted:?}"));
    println!("{planted:?} found by seed {seed}: {why}");
}

/// The test of the test: disks that lie.
#[test]
fn lies_of_the_disks_are_found() {
    found(Planted::Lies(Lies { flush: true, fua: false }), 20);
    found(Planted::Lies(Lies { flush: false, fua: true }), 40);
}

/// An acknowledged WRITE_ZEROES that reads as old data: the page cache under the flash cache kept what was changed while it was read.
#[test]
fn pages_kept_though_they_were_changed_while_they_were_read_are_found() {
    found(Planted::KeepOverlapped, 200);
}
