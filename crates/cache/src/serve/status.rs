//! The status of a cache, from what its parts know.

use crate::batch::WriteBack;
use crate::serve::Cache;
use crate::state::{Bypassed, State};
use crate::status::{Activity, AtRisk, CacheStatus, VolumeStatus};
use crate::volumes::Volume;
use std::sync::{Arc, PoisonError};

/// Ranges at risk that are listed of a volume.
const RANGES_MAX: u64 = 1000;

impl Cache {
    /// Returns the status.
    pub fn status(&self) -> CacheStatus {
        let (state, why) = match &self.state {
            State::Recovering(_) | State::Starting(_) => ("recovering", None),
            State::Serving => ("ready", self.damage()),
            State::Bypassed(b) => ("broken", Some(self.at_risk(b.why()))),
            State::Failed(why) => ("failed", Some(why.clone())),
        };
        let weus = match &self.state {
            State::Bypassed(_) => (0, 0, 0),
            _ => {
                let used = self.layout.weus - self.residency.index().free_weus();
                (self.layout.weus, self.config.weus_max.min(self.layout.weus), used)
            }
        };
        let mut counters = self.counters;
        counters.journal_bytes = self.durability.journal_bytes();
        let volume = |v: &Volume| {
            let config = v.config?;
            Some(VolumeStatus {
                key: v.key,
                mode: config.mode,
                dirty: v.dirty,
                at_home: self.is_written_back(v.key) || self.is_whole_without(v.key),
                reads: v.reads,
                read_hits: v.read_hits,
            })
        };
        CacheStatus {
            state,
            why,
            failed_at: self.state.bypassed().map(Bypassed::since),
            extent_bytes: self.layout.shape.extent_bytes,
            weu_bytes: self.layout.shape.weu_bytes,
            codec: self.config.codec,
            dedup: self.config.fingerprints_percent > 0,
            sharing: self.config.sharing,
            eviction: self.config.eviction,
            admission: self.config.admission,
            weus,
            entries: (self.residency.index().files() as u64, self.residency.index().fingerprints() as u64),
            dirty: self.dirty.len() as u64,
            flush_left: self.dirty.wanted() as u64,
            memory_bytes: self.residency.memory_bytes()
                + self.admissions.memory_bytes()
                + self.recipes.memory_bytes()
                + self.dirty.memory_bytes()
                + self.durability.memory_bytes(),
            counters,
            index: self.residency.counters(),
            start: self.start_report,
            volumes: self.volumes.iter().filter(|v| self.volumes.slot(&v.key).is_some()).filter_map(volume).collect(),
            write_back_fails: self.write_back_fails(),
            lost: self.lost.clone(),
            at_risk: if self.state.bypassed().is_some() { self.risks() } else { Arc::default() },
            missed: self.durability.missed().iter().copied().collect(),
        }
    }

    /// The dirty extents of each volume, in runs. Gone through once while nothing changes: there may be millions.
    fn risks(&self) -> Arc<Vec<AtRisk>> {
        // Nothing panics while it is held.
        let mut known = self.risks.lock().unwrap_or_else(PoisonError::into_inner);
        if known.0 != self.dirty.changes() {
            *known = (self.dirty.changes(), Arc::new(self.find_risks()));
        }
        known.1.clone()
    }

    fn find_risks(&self) -> Vec<AtRisk> {
        let extent_bytes = self.extent_bytes();
        let of = |slot: u16| {
            let volume = self.volumes[usize::from(slot)].key;
            let mut all = AtRisk { volume, bytes: 0, ranges: Vec::new(), runs: 0 };
            let mut end = None;
            for key in self.dirty.risks_of(slot) {
                let offset = key.extent() * extent_bytes;
                all.bytes += extent_bytes;
                if end != Some(offset) {
                    all.runs += 1;
                    if all.runs <= RANGES_MAX {
                        all.ranges.push((offset, 0));
                    }
                }
                if all.runs <= RANGES_MAX {
                    all.ranges.last_mut().expect("it was just put there").1 += extent_bytes;
                }
                end = Some(offset + extent_bytes);
            }
            (all.bytes > 0).then_some(all)
        };
        (0..self.volumes.len() as u16).filter_map(of).collect()
    }

    /// Describes the data that is lost if the fast device doesn't come back.
    fn at_risk(&self, why: &str) -> String {
        let of = |r: &AtRisk| {
            let (n, key) = (r.bytes / self.extent_bytes(), r.volume);
            format!("{n} extents of volume {}.{}", key.id, key.generation)
        };
        let at_risk: Vec<String> = self.risks().iter().map(of).collect();
        if at_risk.is_empty() {
            return format!("{why}; nothing is lost: volumes go on without a cache");
        }
        format!("{why}; only the cache has {}: those volumes stop until it is back", at_risk.join(", "))
    }

    /// Returns the work in flight, for close monitoring.
    pub fn activity(&self) -> Activity {
        Activity {
            recovering: self.state.is_starting(),
            snapshot: self.durability.in_snapshot(),
            journal: self.durability.is_journaling(),
            chunks: self.packing.closed().count(),
            flushing: self.durability.is_flushing(),
            confirming: self.durability.is_confirming(),
            destaging: self.write_backs.iter().any(WriteBack::is_busy),
            evicting: self.residency.leaving_len() > 0,
            dirty: self.dirty.len(),
        }
    }
}
