//! Systems to tune, in virtual time: OpTune's web server and file-system emulator over a modelled disk, and its MapReduce
//! scheduler (§5.3). Each is a [`plimsoll_tune::adapter::Adapter`], as a live one is.

pub mod fs_emulator;
pub mod map_reduce;
pub mod node;
pub mod web;

use plimsoll_tune::adapter::{AdapterError, Run};
use plimsoll_tune::profile::Observation;
use plimsoll_tune::space::{Setting, Space};

/// Records what a node of the service graph took for a request, or did for it.
fn record(run: &mut Run, node: &str, request: u64, value: f64) {
    let o = Observation { request, value, weight: 1.0 };
    match run.get_mut(node) {
        Some(all) => all.push(o),
        None => {
            run.insert(node.to_string(), vec![o]);
        }
    }
}

/// Sets each parameter of `setting` by `set`, which gives `None` for a name or a value that `system` can't be set to.
fn set_each(
    space: &Space,
    setting: &Setting,
    system: &str,
    mut set: impl FnMut(&str, &str) -> Option<()>,
) -> Result<(), AdapterError> {
    space.values(setting).try_for_each(|(name, value)| {
        set(name, value).ok_or_else(|| AdapterError(format!("{name}={value} is nothing that {system} can be set to")))
    })
}
