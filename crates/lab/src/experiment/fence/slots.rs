//! VF-E8 and VF-E9: how many slots, and how long.

use crate::experiment::fence::FENCE;
use crate::experiment::fence::machines::{HETEROGENEOUS, Times, cache_bytes, compare};
use crate::experiment::fence::system::System;
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_replay::workload::filebench::Personality;

const P: Personality = Personality::Fileserver;
/// Of slots.
const SLOTS: [u16; 4] = [2, 4, 6, 8];
/// The paper's, and twice its longest.
const LENGTHS_MS: [u64; 4] = [10, 20, 40, 80];

/// VF-E8: the number of slots.
pub const NUMBERS: Study = Study {
    id: "VF-E8",
    title: "Fileserver's response time and deviation by the number of slots, a machine of 5 % in each",
    source: "VirtualFence §4.6.3.1, Fig 4.7",
    rows: numbers_rows,
    sample: numbers_sample,
    ..FENCE
};

fn numbers_rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for n in SLOTS {
        rows.push(RowSpec::new(format!("{n} slots: response time, alone"), "ms"));
        rows.push(RowSpec::new(format!("{n} slots: response deviation"), "%"));
    }
    rows.push(
        RowSpec::new("response time a slot more: from 4 to 8 over from 2 to 4", "x")
            .reproduces_range(0.8, 1.2)
            .note("paper: linear, so 1; ± 20 %"),
    );
    rows.push(
        RowSpec::new("response deviation: 8 slots less 2", "%")
            .paper_says(Check::AtMost(0.0), "Fig 4.7: deviation decreases slowly as the number of slots grows"),
    );
    rows
}

fn numbers_sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let (mut values, mut ms, mut deviations) = (Vec::new(), Vec::new(), Vec::new());
    for n in SLOTS {
        let system =
            System { machines: n, slots: n.into(), ..System::virtual_fence(cache_bytes(P, 50), seed).switched(inputs) };
        let c = compare(&system, P, &vec![5; n.into()], false, Times::of(inputs))?;
        values.extend([Some(c.low.alone_ms), Some(c.low.response)]);
        ms.push(c.low.alone_ms);
        deviations.push(c.low.response);
    }
    let slope = |a: usize, b: usize| (ms[b] - ms[a]) / f64::from(SLOTS[b] - SLOTS[a]);
    values.push(Some(slope(1, 3) / slope(0, 1)));
    values.push(Some(deviations[3] - deviations[0]));
    Ok(Sample { values, ..Sample::default() })
}

/// VF-E9: the slots' length.
pub const LENGTHS: Study = Study {
    id: "VF-E9",
    title: "Fileserver's response time and deviation by the slots' length, four machines of 8 and 24 %",
    source: "VirtualFence §4.6.3.2, Fig 4.7",
    rows: lengths_rows,
    sample: lengths_sample,
    ..FENCE
};

const LENGTHENED: &str = "lengthening the slots from 10ms to 20ms significantly reduces performance deviation. Further lengthening the \
                          slots to 40ms reduces deviation much more slowly";

fn lengths_rows() -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for ms in LENGTHS_MS {
        rows.push(RowSpec::new(format!("{ms} ms: response time, alone"), "ms"));
        rows.push(RowSpec::new(format!("{ms} ms: response deviation"), "%"));
    }
    rows.push(RowSpec::new("deviation: 10 ms less 20 ms", "%").paper_says(Check::AtLeast(0.0), LENGTHENED));
    rows.push(RowSpec::new("deviation: 20 ms less 40 ms", "%").paper_says(Check::AtLeast(0.0), LENGTHENED));
    rows.push(RowSpec::new("response time: 40 ms over 20 ms", "x").reproduces(2.0).note("paper: essentially linear"));
    rows
}

fn lengths_sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let (mut values, mut ms, mut deviations) = (Vec::new(), Vec::new(), Vec::new());
    let mut notes = Vec::new();
    for length in LENGTHS_MS {
        let system = System {
            slot: Span::from_millis(length),
            ..System::virtual_fence(cache_bytes(P, 50), seed).switched(inputs)
        };
        match compare(&system, P, &HETEROGENEOUS, false, Times::of(inputs)) {
            Ok(c) => {
                ms.push(Some(c.low.alone_ms));
                deviations.push(Some(c.low.response));
            }
            // The fence refuses slots shorter than one request; a longer one it takes.
            Err(e) if length < LENGTHS_MS[1] => {
                notes.push(format!("{length} ms can't be run: {e}"));
                ms.push(None);
                deviations.push(None);
            }
            Err(e) => return Err(e),
        }
        values.extend([ms[ms.len() - 1], deviations[ms.len() - 1]]);
    }
    let of = |v: &[Option<f64>], a: usize, b: usize| Some((v[a]?, v[b]?));
    values.push(of(&deviations, 0, 1).map(|(a, b)| a - b));
    values.push(of(&deviations, 1, 2).map(|(a, b)| a - b));
    values.push(of(&ms, 2, 1).map(|(a, b)| a / b));
    Ok(Sample { values, notes, ..Sample::default() })
}
