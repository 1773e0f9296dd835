//! VF-E8 and VF-E9: how many slots, and how long.

use crate::experiment::fence::common_notes;
use crate::experiment::fence::machines::{HETEROGENEOUS, Times, cache_bytes, compare};
use crate::experiment::fence::system::System;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::workload::filebench::Personality;
use plimsoll_base::Span;

const DEVICES: &str = "hdd-160g-7200, vf-sata-60g";
const P: Personality = Personality::Fileserver;

/// VF-E8: the number of slots.
pub struct Numbers;

const NUMBERS: [u16; 4] = [2, 4, 6, 8];

impl Experiment for Numbers {
    fn id(&self) -> &'static str {
        "VF-E8"
    }
    fn title(&self) -> &'static str {
        "Fileserver's response time and deviation by the number of slots, a machine of 5 % in each"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.6.3.1, Fig 4.7"
    }
    fn device(&self) -> &'static str {
        DEVICES
    }
    fn notes(&self) -> Vec<String> {
        common_notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for n in NUMBERS {
            rows.push(RowSpec::new(format!("{n} slots: response time, alone"), "ms"));
            rows.push(RowSpec::new(format!("{n} slots: response deviation"), "%"));
        }
        rows.push(
            RowSpec::new("response time a slot more: from 4 to 8 over from 2 to 4", "x")
                .check(Check::Within(0.7, 1.4))
                .note("paper: linear"),
        );
        rows.push(
            RowSpec::new("response deviation: 8 slots less 2", "%")
                .check(Check::AtMost(0.0))
                .note("paper: decreases slowly"),
        );
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let (mut values, mut ms, mut deviations) = (Vec::new(), Vec::new(), Vec::new());
        for n in NUMBERS {
            let system = System { machines: n, slots: n.into(), ..System::virtual_fence(cache_bytes(P, 50), seed) };
            let c = compare(&system, P, &vec![5; n.into()], false, Times::of(inputs.quick))?;
            values.extend([Some(c.low.alone_ms), Some(c.low.response)]);
            ms.push(c.low.alone_ms);
            deviations.push(c.low.response);
        }
        let slope = |a: usize, b: usize| (ms[b] - ms[a]) / f64::from(NUMBERS[b] - NUMBERS[a]);
        values.push(Some(slope(1, 3) / slope(0, 1)));
        values.push(Some(deviations[3] - deviations[0]));
        Ok(Sample { values, ..Sample::default() })
    }
}

/// VF-E9: the slots' length.
pub struct Lengths;

/// The paper's, and twice its longest.
const LENGTHS_MS: [u64; 4] = [10, 20, 40, 80];

impl Experiment for Lengths {
    fn id(&self) -> &'static str {
        "VF-E9"
    }
    fn title(&self) -> &'static str {
        "Fileserver's response time and deviation by the slots' length, four machines of 8 and 24 %"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.6.3.2, Fig 4.7"
    }
    fn device(&self) -> &'static str {
        DEVICES
    }
    fn notes(&self) -> Vec<String> {
        common_notes()
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for ms in LENGTHS_MS {
            rows.push(RowSpec::new(format!("{ms} ms: response time, alone"), "ms"));
            rows.push(RowSpec::new(format!("{ms} ms: response deviation"), "%"));
        }
        rows.push(
            RowSpec::new("deviation: 10 ms less 20 ms", "%").check(Check::AtLeast(0.0)).note("paper: a large drop"),
        );
        rows.push(
            RowSpec::new("deviation: 20 ms less 40 ms", "%").check(Check::AtLeast(0.0)).note("paper: a small drop"),
        );
        rows.push(
            RowSpec::new("response time: 40 ms over 20 ms", "x")
                .check(Check::Within(1.3, 2.2))
                .note("paper: essentially linear"),
        );
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let (mut values, mut ms, mut deviations) = (Vec::new(), Vec::new(), Vec::new());
        for length in LENGTHS_MS {
            let system = System { slot: Span::from_millis(length), ..System::virtual_fence(cache_bytes(P, 50), seed) };
            let c = compare(&system, P, &HETEROGENEOUS, false, Times::of(inputs.quick))?;
            values.extend([Some(c.low.alone_ms), Some(c.low.response)]);
            ms.push(c.low.alone_ms);
            deviations.push(c.low.response);
        }
        values.push(Some(deviations[0] - deviations[1]));
        values.push(Some(deviations[1] - deviations[2]));
        values.push(Some(ms[2] / ms[1]));
        Ok(Sample { values, ..Sample::default() })
    }
}
