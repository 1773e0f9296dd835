//! The hybrid service of §4.7: fenced machines beside ones without a promise, which use what is left.

use crate::experiment::fence::FENCE;
use crate::experiment::fence::machines::{Deviation, Machine, Run, Times, cache_bytes, machine, run, saturation};
use crate::experiment::fence::system::System;
use crate::experiment::study::Study;
use crate::experiment::{Check, Inputs, LabError, RowSpec, Sample};
use plimsoll_replay::workload::filebench::Personality;

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
         can with 8 threads each; lending may cost 1 % of a fenced machine's response time. Deviation is against the first machine \
         alone in the same service; kept: nothing is lent, those two have only the slots that are nobody's",
    ],
    rows,
    sample,
    ..FENCE
};

fn rows() -> Vec<RowSpec> {
    let lent = |what| RowSpec::new(format!("lent, fenced, 8 %: {what}"), "%");
    vec![
        lent("response deviation beside the other fenced one"),
        lent("response deviation beside it and two who are lent idle time"),
        lent("moved by those two").goal(Check::AtMost(1.0)).note("points"),
        lent("throughput deviation beside all"),
        RowSpec::new("lent, fenced, 8 %: response, alone", "ms"),
        RowSpec::new("kept, fenced, 8 %: response, alone", "ms").note("what giving late requests' turns away costs"),
        RowSpec::new("kept, fenced, 8 %: response deviation beside all", "%"),
        RowSpec::new("idle time of the disk given away", "%").goal(Check::AtLeast(90.0)),
        RowSpec::new("machines without slots, together", "1/s"),
        RowSpec::new("kept: machines without slots, together", "1/s"),
        lent("response beside all less beside the fenced one")
            .goal(Check::AtMost(1.0))
            .note("points of alone, with its sign"),
        lent("response deviation, alone against alone 7 ms later")
            .note("no neighbour is there in either: what such a run can tell"),
    ]
}

fn sample(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let times = Times::of(inputs);
    let base = System::virtual_fence(cache_bytes(P, 50), seed).switched(inputs);
    let full = saturation(&base, P, times)?;
    let system = System { hybrid: true, fenced_machines: FENCED, ..base };
    let kept = System { lend_permille: 0, ..system };
    let busy = Some(Machine { personality: P, threads: 8, rate: 0 });
    let (a, b) = (Some(machine(P, full, 8)), Some(machine(P, full, 16)));
    let first = |r: &Run| r.got[0].clone().expect("it ran");
    let alone = first(&run(&system, &[a, None, None, None], times)?);
    let later = first(&run(&system, &[a, None, None, None], times.later())?);
    let beside = first(&run(&system, &[a, b, None, None], times)?);
    let lent = run(&system, &[a, b, busy, busy], times)?;
    let kept_alone = first(&run(&kept, &[a, None, None, None], times)?);
    let kept = run(&kept, &[a, b, busy, busy], times)?;
    let (d_beside, d_lent) = (Deviation::of(&alone, &beside), Deviation::of(&alone, &first(&lent)));
    let d_kept = Deviation::of(&kept_alone, &first(&kept));
    let (idle, given) = lent.fence.as_ref().expect("it has one").1.idle;
    let given = 100.0 * given.as_secs_f64() / idle.as_secs_f64().max(1e-9);
    let others = |r: &Run| r.got[usize::from(FENCED)..].iter().flatten().map(|g| g.per_second).sum::<f64>();
    let moved = (d_lent.response - d_beside.response).abs();
    let deviations = [d_beside.response, d_lent.response, moved, d_lent.throughput, d_lent.alone_ms];
    let rest = [d_kept.alone_ms, d_kept.response, given, others(&lent), others(&kept)];
    let moved = [d_lent.change - d_beside.change, Deviation::of(&alone, &later).response];
    let values = deviations.into_iter().chain(rest).chain(moved).map(Some).collect();
    Ok(Sample { values, ..Sample::default() })
}
