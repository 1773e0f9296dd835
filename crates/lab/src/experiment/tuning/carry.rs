//! OT-A5: what a system carries over from the configuration before, which OpTune doesn't discuss.

use super::{jobs, told, web, work};
use crate::experiment::{Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_tune::adapter::{Adapter, Run};
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::profile::times;
use plimsoll_tune::space::Setting;

/// See the module's documentation.
pub struct CarryOver;

/// An epoch (§5.2.1).
const EPOCH: Span = Span::from_secs(120);
/// Epochs after a switch that are examined.
const LOOKED_AT: [usize; 3] = [0, 1, 4];
const EPOCHS_AFTER: usize = 5;

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
            "an hour under the first configuration (MapReduce: four), then a switch; beside it the same system with the same requests that \
             had the second one from the start: what differs is what was carried over, which `settle` records and a mix is charged for. Epochs of \
             two minutes (MapReduce: an hour, as jobs take longer than an epoch)"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (name, ..) in SYSTEMS {
            for n in LOOKED_AT {
                rows.push(RowSpec::new(format!("{name}: KS of epoch {} after the switch", n + 1), "1"));
            }
            rows.push(RowSpec::new(format!("{name}: KS as long after the switch as before it"), "1"));
            rows.push(RowSpec::new(format!("{name}: mean of the first epoch over that of the other"), "1"));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        for (which, (_, from, to)) in SYSTEMS.iter().enumerate() {
            let (mut switched, mut other) = (Vec::new(), Vec::new());
            for stream in 1..=inputs.length(8, 2, 1) {
                // One epoch says little: it's had again with other requests.
                let run = |first: [u16; 2]| -> Result<Vec<Option<Cdf>>, LabError> {
                    after(system(which, seed, stream, inputs)?.as_mut(), which, (first, *to))
                };
                switched.push(run(*from)?);
                other.push(run(*to)?);
            }
            let pooled = |all: &[Vec<Option<Cdf>>], n: usize| -> Result<Cdf, LabError> {
                let parts: Vec<(f64, &Cdf)> = all.iter().filter_map(|e| Some((1.0, e[n].as_ref()?))).collect();
                if parts.is_empty() {
                    return Err(LabError("nothing ended in an epoch: it's too short".into()));
                }
                Ok(Cdf::mix(&parts))
            };
            for n in LOOKED_AT.into_iter().chain([EPOCHS_AFTER]) {
                sample.values.push(Some(pooled(&switched, n)?.ks(&pooled(&other, n)?)));
            }
            sample.values.push(Some(pooled(&switched, 0)?.mean_ms() / pooled(&other, 0)?.mean_ms()));
        }
        Ok(sample)
    }
}

/// An hour or more under `first`, then a switch to `to`: the epochs after it, and one as long after it as it was before.
fn after(s: &mut dyn Adapter, which: usize, (first, to): ([u16; 2], [u16; 2])) -> Result<Vec<Option<Cdf>>, LabError> {
    let warm = if which == 2 { Span::from_secs(4 * 3_600) } else { Span::from_secs(3_600) };
    s.apply(&Setting(first.to_vec())).map_err(told)?;
    s.measure(warm).map_err(told)?;
    s.apply(&Setting(to.to_vec())).map_err(told)?;
    let mut epochs: Vec<Option<Cdf>> = (0..EPOCHS_AFTER).map(|_| epoch(s, which)).collect::<Result<_, _>>()?;
    s.measure(warm).map_err(told)?;
    epochs.push(epoch(s, which)?);
    Ok(epochs)
}
