//! VF-LIMITS: causes of the remaining deviation behind fences, and of the remaining errors of predictors.
//!
//! * Load: a machine that asks for 24 % of saturation asks for nearly all that its quarter of the time can do, and its queue
//!   makes a large difference of a small one. So the same is run at lower loads. The machines are also run alone against
//!   themselves alone, begun a part of a slot later. Where that deviates by the same amount, no neighbour is the cause.
//! * Drive: batches are predicted by their requests, and a drive collects garbage when it likes. So the same drive is run with
//!   no garbage to collect.

use crate::experiment::fence::FENCE;
use crate::experiment::fence::machines::{
    ALL, Deviation, Got, HETEROGENEOUS, Machine, Times, cache_bytes, machine, name, run, saturation,
};
use crate::experiment::fence::system::{DISCARDED, FLASH, System};
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample};
use plimsoll_replay::workload::filebench::Personality;

/// Load of each of three machines beside one of 8, % of saturation.
const LOADS: [u64; 4] = [12, 16, 20, 24];
const DRIVES: [(&str, &str); 2] = [("as it is", FLASH), ("discarded", DISCARDED)];

/// See the module's documentation.
pub const LIMITS: Study = Study {
    id: "VF-LIMITS",
    title: "Behind fences: deviation by load and against alone begun 7 ms later; flash batches on a drive with nothing to collect",
    source: "VF-E3's machines; the paper has 24 % only, and says nothing of its drive's state",
    rows,
    sample,
    ..FENCE
};

fn rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for load in LOADS {
        let row = |what| RowSpec::new(format!("Fileservers of {load} %: {what}"), "%");
        let beside = row("response deviation beside the others");
        rows.push(beside.goal(Check::AtMost(19.0)));
        rows.push(row("response deviation, alone against alone 7 ms later"));
        rows.push(row("response beside the others less alone").note("with its sign"));
        rows.push(row("of their slots' time in use"));
    }
    for (drive, _) in DRIVES {
        for p in ALL {
            let row = RowSpec::new(format!("drive {drive}: {}: flash batches within ±250 us", name(p)), "%");
            rows.push(row.goal(Check::AtLeast(83.0)));
        }
    }
    rows
}

fn sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let times = Times::of(inputs);
    let mut values = Vec::new();
    let p = Personality::Fileserver;
    let system = System::virtual_fence(cache_bytes(p, 50), seed).switched(inputs);
    let full = saturation(&system, p, times)?;
    for load in LOADS {
        let all: Vec<Option<Machine>> = [8, load, load, load].map(|n| Some(machine(p, full, n))).to_vec();
        let shared = run(&system, &all, times)?;
        let alone = |i: usize, times: Times| -> Result<Got, LabError> {
            let only: Vec<Option<Machine>> = all.iter().enumerate().map(|(j, m)| m.filter(|_| i == j)).collect();
            Ok(run(&system, &only, times)?.got[i].clone().expect("it ran"))
        };
        let (mut beside, mut later) = (Vec::new(), Vec::new());
        for i in 1..all.len() {
            let got = alone(i, times)?;
            beside.push(Deviation::of(&got, shared.got[i].as_ref().expect("it ran")));
            later.push(Deviation::of(&got, &alone(i, times.later())?));
        }
        let (beside, later) = (Deviation::mean(&beside), Deviation::mean(&later));
        values.extend([beside.response, later.response, beside.change, shared.used_percent(1..all.len())].map(Some));
    }
    for (_, flash) in DRIVES {
        for p in ALL {
            let system = System { flash, ..System::virtual_fence(cache_bytes(p, 50), seed).switched(inputs) };
            let full = saturation(&system, p, times)?;
            let all: Vec<Option<Machine>> = HETEROGENEOUS.map(|n| Some(machine(p, full, n))).to_vec();
            values.push(run(&system, &all, times)?.within_percent(1));
        }
    }
    Ok(Sample { values, ..Sample::default() })
}
