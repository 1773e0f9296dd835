//! The hybrid service of §4.7: fenced machines beside ones without a promise, which use what is left.

use crate::experiment::fence::FENCE;
use crate::experiment::fence::machines::{Deviation, Machine, Run, Times, cache_bytes, machine, run, saturation};
use crate::experiment::fence::system::System;
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample};
use crate::workload::filebench::Personality;

const P: Personality = Personality::Fileserver;
/// Two fenced machines of four slots, two without slots.
const FENCED: u16 = 2;

/// VF-HYBRID.
pub const LENDING: Study = Study {
    id: "VF-HYBRID",
    title: "Two fenced Fileservers, two that use what is left",
    source: "VirtualFence §4.7, proposed there and not built",
    notes: &[
        "four slots of 20 ms, two of them nobody's; the fenced machines make 8 and 16 % of saturation, the two others as much as they \
         can with 8 threads each; lending may cost 1 % of a fenced machine's response time; kept: those two have only the slots that \
         are nobody's",
    ],
    rows,
    sample,
    ..FENCE
};

fn rows() -> Vec<RowSpec> {
    vec![
        RowSpec::new("fenced, 8 %: response deviation beside the other fenced one", "%"),
        RowSpec::new("fenced, 8 %: response deviation beside two more in nobody's slots", "%"),
        RowSpec::new("fenced, 8 %: response deviation beside two more who are lent idle time", "%"),
        RowSpec::new("moved by lending", "%").check(Check::AtMost(1.0)).note("points"),
        RowSpec::new("moved by lending and by others in nobody's slots", "%").note("points"),
        RowSpec::new("idle time of the disk given away", "%").check(Check::AtLeast(90.0)),
        RowSpec::new("machines without slots, together", "1/s"),
        RowSpec::new("the same without lending: only slots that are nobody's", "1/s"),
    ]
}

fn sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let times = Times::of(inputs.quick);
    let base = System::virtual_fence(cache_bytes(P, 50), seed);
    let full = saturation(&base, P, times)?;
    let system = System { hybrid: true, fenced_machines: FENCED, ..base };
    let kept = System { lend_permille: 0, ..system };
    let busy = Some(Machine { personality: P, threads: 8, rate: 0 });
    let (a, b) = (Some(machine(P, full, 8)), Some(machine(P, full, 16)));
    let alone = run(&system, &[a, None, None, None], times)?;
    let beside = run(&system, &[a, b, None, None], times)?;
    let without = run(&kept, &[a, b, busy, busy], times)?;
    let lent = run(&system, &[a, b, busy, busy], times)?;
    let got =
        |r: &Run| Deviation::of(alone.got[0].as_ref().expect("it ran"), r.got[0].as_ref().expect("it ran")).response;
    let (d_beside, d_without, d_lent) = (got(&beside), got(&without), got(&lent));
    let (idle, given) = lent.fence.as_ref().expect("it has one").idle;
    let given = 100.0 * given.as_secs_f64() / idle.as_secs_f64().max(1e-9);
    let others = |r: &Run| r.got[usize::from(FENCED)..].iter().flatten().map(|g| g.per_second).sum::<f64>();
    let moved = [(d_lent - d_without).abs(), (d_lent - d_beside).abs()];
    let values = [d_beside, d_without, d_lent, moved[0], moved[1], given, others(&lent), others(&without)];
    Ok(Sample { values: values.map(Some).to_vec(), ..Sample::default() })
}
