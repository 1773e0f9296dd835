//! VF-PLAN: what `plimsoll fence plan` says against what is measured.

use crate::experiment::fence::FENCE;
use crate::experiment::fence::machines::{
    ALL, Deviation, HETEROGENEOUS, Times, cache_bytes, compare, machine, name, run,
};
use crate::experiment::fence::system::{Devices, System};
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_fence::plan::{Wanted, predict};
use plimsoll_replay::workload::filebench::Personality;

/// The paper's slots for all three; VF-E8's numbers and VF-E9's lengths for Fileserver.
const POINTS: [(Personality, u16, u64); 9] = [
    (Personality::Fileserver, 4, 20),
    (Personality::Varmail, 4, 20),
    (Personality::Webserver, 4, 20),
    (Personality::Fileserver, 2, 20),
    (Personality::Fileserver, 6, 20),
    (Personality::Fileserver, 8, 20),
    (Personality::Fileserver, 4, 10),
    (Personality::Fileserver, 4, 40),
    (Personality::Fileserver, 4, 80),
];

/// Slots of this length are longer than one request on every drive that is drawn here.
const SHORTEST_OF_ALL_DRIVES: Span = Span::from_millis(20);

/// Rows of each of [`POINTS`].
const ROWS_OF_A_POINT: usize = 5;

/// Requests that wait for a slot behind a cache that writes back: reads and flushes, in thousandths of all in a flow.
const fn held_permille(p: Personality) -> u64 {
    match p {
        // Of create, write, append, read, delete.
        Personality::Fileserver => 1000 / 5,
        // Two reads and two flushes; delete, create, two appends, two inodes.
        Personality::Varmail => 4000 / 10,
        // Ten reads, one append.
        Personality::Webserver => 10_000 / 11,
    }
}

/// See the module's documentation.
pub const PLANNED: Study = Study {
    id: "VF-PLAN",
    title: "What `fence plan` predicts: a machine of 8 % (5 % where slots are 2, 6 and 8), alone and beside others",
    source: "ours; VirtualFence §4.7 proposes it",
    notes: &[
        "the plan is told the mean response time of the same machine alone on the plain disk, the share of its requests that aren't \
         writes done in the cache's memory, its hit ratio, and what the arm's way costs",
    ],
    rows,
    sample,
    ..FENCE
};

fn rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for (p, slots, ms) in POINTS {
        let row = |what: &str, unit| RowSpec::new(format!("{}, {slots} slots of {ms} ms: {what}", name(p)), unit);
        rows.push(row("planned", "ms"));
        rows.push(row("measured, alone", "ms"));
        rows.push(row("planned less measured", "%").goal(Check::Within(-19.0, 19.0)));
        rows.push(row("deviation, planned", "%"));
        rows.push(row("deviation, measured", "%"));
    }
    rows
}

fn sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let times = Times::of(inputs);
    let (mut values, mut notes) = (Vec::new(), Vec::new());
    debug_assert!(ALL.iter().all(|p| POINTS.iter().any(|point| point.0 == *p)), "each is planned for");
    for (p, slots, ms) in POINTS {
        let slot = Span::from_millis(ms);
        let percents = if slots == 4 { HETEROGENEOUS.to_vec() } else { vec![5; slots.into()] };
        let base = System::virtual_fence(cache_bytes(p, 50), seed).switched(inputs);
        let system = System { machines: slots, slots: slots.into(), slot, ..base };
        let c = match compare(&system, p, &percents, false, times) {
            Ok(c) => c,
            // The fence refuses slots shorter than one request; the other points have their figures.
            Err(e) if slot < SHORTEST_OF_ALL_DRIVES => {
                notes.push(format!("{}, {slots} slots of {ms} ms can't be run: {e}", name(p)));
                values.extend([None; ROWS_OF_A_POINT]);
                continue;
            }
            Err(e) => return Err(e),
        };
        // The same machine on the disk by itself.
        let plain = System { machines: slots, ..System::new(Devices::Hdd, false, 0, seed) };
        let mut only = vec![None; usize::from(slots)];
        only[0] = Some(machine(p, c.saturation, percents[0]));
        let best = run(&plain, &only, times)?.got[0].as_ref().expect("it ran").response.mean();
        let wanted = Wanted {
            tenants: slots.into(),
            best,
            worst: Span::from_secs(1),
            far: system.far()?,
            miss_permille: 1000 - (10.0 * c.shared.hit_percent) as u64,
            held_permille: held_permille(p),
            deviation_percent: 19.0,
            shortest: Span::ZERO,
        };
        let choice = predict(&wanted, slot);
        let (planned, measured): (f64, &Deviation) = (choice.response.as_millis_f64(), &c.low);
        let off = 100.0 * (planned - measured.alone_ms) / measured.alone_ms;
        let of_point: [f64; ROWS_OF_A_POINT] =
            [planned, measured.alone_ms, off, choice.deviation_percent, measured.response];
        values.extend(of_point.map(Some));
    }
    Ok(Sample { values, notes, ..Sample::default() })
}
