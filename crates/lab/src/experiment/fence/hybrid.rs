//! The hybrid service of §4.7: fenced machines beside ones without a promise, which use what is left.

use crate::experiment::fence::common_notes;
use crate::experiment::fence::machines::{Deviation, Machine, Times, cache_bytes, machine, run, saturation};
use crate::experiment::fence::system::System;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::workload::filebench::Personality;

/// VF-HYBRID.
pub struct Lending;

const P: Personality = Personality::Fileserver;
/// Two fenced machines of four slots, two without slots.
const FENCED: u16 = 2;

impl Experiment for Lending {
    fn id(&self) -> &'static str {
        "VF-HYBRID"
    }
    fn title(&self) -> &'static str {
        "Two fenced Fileservers, two that use what is left"
    }
    fn source(&self) -> &'static str {
        "VirtualFence §4.7, proposed there and not built"
    }
    fn device(&self) -> &'static str {
        "hdd-160g-7200, vf-sata-60g"
    }
    fn notes(&self) -> Vec<String> {
        let mut notes = common_notes();
        notes.push(
            "four slots of 20 ms, two of them nobody's; the fenced machines make 8 and 16 % of saturation, the two others as much as \
             they can with 8 threads each; lending may cost 1 % of a fenced machine's response time"
                .into(),
        );
        notes
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        vec![
            RowSpec::new("fenced, 8 %: response deviation, no others without slots", "%"),
            RowSpec::new("fenced, 8 %: response deviation, beside two without slots", "%"),
            RowSpec::new("moved by the machines without slots", "%").check(Check::AtMost(1.0)).note("points"),
            RowSpec::new("idle time of the disk given away", "%").check(Check::AtLeast(90.0)),
            RowSpec::new("machines without slots, together", "1/s"),
            RowSpec::new("the same without lending: only slots that are nobody's", "1/s"),
        ]
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let times = Times::of(inputs.quick);
        let base = System::virtual_fence(cache_bytes(P, 50), seed);
        let full = saturation(&base, P, times)?;
        let system = System { hybrid: true, fenced_machines: FENCED, ..base };
        let busy = Some(Machine { personality: P, threads: 8, rate: 0 });
        let (a, b) = (Some(machine(P, full, 8)), Some(machine(P, full, 16)));
        let alone = run(&system, &[a, None, None, None], times)?;
        let fenced = run(&system, &[a, b, None, None], times)?;
        let all = run(&system, &[a, b, busy, busy], times)?;
        let got = |r: &crate::experiment::fence::machines::Run| {
            Deviation::of(alone.got[0].as_ref().expect("it ran"), r.got[0].as_ref().expect("it ran")).response
        };
        let (without, beside) = (got(&fenced), got(&all));
        let (idle, lent) = all.fence.as_ref().expect("it has one").idle;
        let given = 100.0 * lent.as_secs_f64() / idle.as_secs_f64().max(1e-9);
        let of_others = |r: &crate::experiment::fence::machines::Run| {
            r.got[usize::from(FENCED)..].iter().flatten().map(|g| g.per_second).sum::<f64>()
        };
        let kept = System { lend_permille: 0, ..system };
        let others_kept = of_others(&run(&kept, &[a, b, busy, busy], times)?);
        let values = [without, beside, beside - without, given, of_others(&all), others_kept];
        Ok(Sample { values: values.map(Some).to_vec(), ..Sample::default() })
    }
}
