//! Service of volumes while they were alone, to compare with later.

use super::FenceView;
use crate::config::{BadConfig, VolumeConfig};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Service of a volume while it was alone, as `plimsoll fence baseline` writes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// The volume.
    pub volume: String,
    /// Mean response time of its clients' requests.
    pub response_ms: f64,
    /// Number of requests per second.
    pub per_second: f64,
    /// Requests that the figures rest on.
    pub requests: u64,
    /// Duration of the measurement.
    pub seconds: f64,
    /// Slots of the pool.
    pub slots: u32,
    /// Their length.
    pub slot_us: u64,
    /// Slots of the volume.
    pub own_slots: u32,
}

impl Baseline {
    /// The baseline in a file.
    ///
    /// # Errors
    /// If it can't be read or is no baseline.
    pub fn read(path: &std::path::Path) -> Result<Baseline, BadConfig> {
        let wrong = |what: String| BadConfig::of_file(path, what);
        let text = std::fs::read_to_string(path).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        serde_json::from_str(&text)
            .map_err(|e| wrong(format!("is no baseline ({e}): write one with `plimsoll fence baseline`")))
    }

    /// The slots that it was measured with, if they are others now.
    pub fn differs(&self, now: &FenceView) -> Option<String> {
        let own = now.volumes.iter().find(|v| v.volume == self.volume).map_or(0, |v| v.slots);
        let (then, is) = ((self.slots, self.slot_us, self.own_slots), (now.slots.len() as u32, now.slot_us, own));
        (then != is).then(|| {
            format!(
                "`{}` was measured with {} of {} slots of {} us, and has {} of {} of {} us now: measure it anew",
                self.volume, then.2, then.0, then.1, is.2, is.0, is.1
            )
        })
    }
}

/// The baselines of volumes, as far as their files are named.
///
/// # Errors
/// If one can't be read or is none.
pub fn baselines(volumes: &[VolumeConfig]) -> Result<BTreeMap<String, Baseline>, BadConfig> {
    let named = volumes.iter().filter_map(|v| Some((v.name.get_ref(), v.baseline.as_ref()?)));
    let read = |(name, path): (&String, &PathBuf)| {
        let baseline = Baseline::read(path)?;
        match baseline.volume == *name {
            true => Ok((name.clone(), baseline)),
            false => Err(BadConfig::of_file(path, format!("is of volume `{}`, not `{name}`", baseline.volume))),
        }
    };
    named.map(read).collect()
}
