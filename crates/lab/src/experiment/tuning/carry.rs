//! OT-A5: what a system carries over from the configuration before, which OpTune doesn't discuss.

use super::{jobs, told, web, work};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_tune::adapter::{Adapter, Run};
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::profile::times;
use plimsoll_tune::space::Setting;

/// See the module's documentation.
pub struct CarryOver;

/// An epoch (§5.2.1).
const EPOCH: Span = Span::from_secs(120);
/// Which epochs after a switch are looked at.
const LOOKED_AT: [usize; 3] = [0, 1, 4];

/// The systems, each with two configurations whose state differs the most: what the cache holds, or who waits.
const SYSTEMS: [(&str, [u16; 2], [u16; 2]); 3] = [
    ("web, Size(f) from |f|^0.1 to |f|^2", [2, 0], [2, 3]),
    ("file system, eviction_prob from 0 to 1", [2, 0], [2, 5]),
    ("MapReduce, first come first served to shortest first and 0.8 dropped", [0, 0], [4, 3]),
];

fn system(which: usize, seed: u64, stream: u64, inputs: &Inputs) -> Result<Box<dyn Adapter>, LabError> {
    Ok(match which {
        0 => {
            let space = crate::system::web::space(&crate::system::web::IDLE_MS, &crate::system::web::EXPONENTS);
            let config = crate::system::web::WebConfig { stream, ..web::config(seed) };
            Box::new(crate::system::web::WebServer::new(config, space)?)
        }
        1 => Box::new(work::emulator(seed, stream)?),
        _ => Box::new(jobs::to_try(seed + 1_000 * stream, inputs)?),
    })
}

fn root(which: usize) -> &'static str {
    if which == 2 { "job" } else { "request" }
}

/// An epoch's distribution; `None` if nothing ended in it.
fn epoch(s: &mut dyn Adapter, which: usize) -> Result<Option<Cdf>, LabError> {
    // A job takes longer than an epoch: its epochs are as much longer.
    let time = if which == 2 { EPOCH * 30 } else { EPOCH };
    let run: Run = s.measure(time).map_err(told)?;
    run.get(root(which)).map(|o| times(root(which), o).map_err(told)).transpose()
}

impl Experiment for CarryOver {
    fn id(&self) -> &'static str {
        "OT-A5"
    }
    fn title(&self) -> &'static str {
        "What is carried over from the configuration before"
    }
    fn source(&self) -> &'static str {
        "no paper's figure: ours alone"
    }
    fn device(&self) -> &'static str {
        "hdd-160g-7200"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "an hour under the first configuration, then a switch; epochs of two minutes (MapReduce: an hour, as jobs take that long) against \
             what the second gives after an hour and more of it. Chance: settled epochs against the same. What an epoch after a switch \
             differs more than that is what `settle` records and a mix is charged for"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (name, ..) in SYSTEMS {
            for n in LOOKED_AT {
                rows.push(RowSpec::new(format!("{name}: KS of epoch {} after the switch", n + 1), "1"));
            }
            rows.push(RowSpec::new(format!("{name}: KS of a settled epoch, chance alone"), "1"));
            let over = RowSpec::new(format!("{name}: mean of the first epoch over the settled one"), "1");
            rows.push(over.check(Check::None));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        let rounds = if inputs.quick { 2 } else { 8 };
        for (which, (_, from, to)) in SYSTEMS.iter().enumerate() {
            let (from, to) = (Setting(from.to_vec()), Setting(to.to_vec()));
            let warm = if which == 2 { Span::from_secs(4 * 3_600) } else { Span::from_secs(3_600) };
            let (mut after, mut settled) = (vec![Vec::new(); 5], Vec::new());
            for round in 0..rounds {
                // Its own stream of requests each time: one epoch says little.
                let mut s = system(which, seed, 1 + round, inputs)?;
                s.apply(&from).map_err(told)?;
                s.measure(warm).map_err(told)?;
                s.apply(&to).map_err(told)?;
                for slot in &mut after {
                    slot.extend(epoch(s.as_mut(), which)?);
                }
                s.measure(warm).map_err(told)?;
                settled.extend(epoch(s.as_mut(), which)?);
                settled.extend(epoch(s.as_mut(), which)?);
            }
            let pooled = |all: &[Cdf]| Cdf::mix(&all.iter().map(|c| (1.0, c)).collect::<Vec<_>>());
            if after.iter().any(Vec::is_empty) || settled.len() < 2 {
                return Err(LabError("nothing ended in an epoch: it's too short".into()));
            }
            // Half of the settled epochs stand for what is settled, the other half for chance.
            let (even, odd): (Vec<_>, Vec<_>) = settled.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
            let [known, other] = [even, odd].map(|h| pooled(&h.into_iter().map(|c| c.1).collect::<Vec<_>>()));
            for n in LOOKED_AT {
                sample.values.push(Some(pooled(&after[n]).ks(&known)));
            }
            sample.values.push(Some(other.ks(&known)));
            sample.values.push(Some(pooled(&after[0]).mean_ms() / known.mean_ms()));
        }
        Ok(sample)
    }
}
