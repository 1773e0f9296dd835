//! Modelled devices as what a profile is measured on.

use plimsoll_base::{Span, Time};
use plimsoll_device::{Disk, DiskOptions, DiskSpec, Model, Op, Request, SpecError};
use plimsoll_sched::Profile;
use plimsoll_sched::measure::{MeasureOptions, Target, measure_disk};
use std::convert::Infallible;

/// A modelled device with its own clock.
pub struct ModelTarget<M> {
    model: M,
    now: Time,
    tag: u64,
}

impl<M: Model> ModelTarget<M> {
    /// `model` at time zero.
    pub fn new(model: M) -> ModelTarget<M> {
        ModelTarget { model, now: Time::ZERO, tag: 0 }
    }

    /// Hands all in at once; their numbers in the order in which they ended.
    fn run(&mut self, requests: impl Iterator<Item = (Op, u64, u64)>) -> Vec<usize> {
        let mut done = Vec::new();
        self.model.advance(self.now, &mut done);
        done.clear();
        let first = self.tag;
        for (op, offset, len) in requests {
            self.model.submit(self.now, Request { tag: self.tag, op, offset, len });
            self.tag += 1;
        }
        while (done.len() as u64) < self.tag - first {
            self.now = self.model.next_event().max(self.now);
            self.model.advance(self.now, &mut done);
        }
        done.iter().map(|d| (d.tag - first) as usize).collect()
    }
}

impl<M: Model> Target for ModelTarget<M> {
    type Error = Infallible;

    fn size_bytes(&self) -> u64 {
        self.model.size_bytes()
    }

    fn one(&mut self, write: bool, offset: u64, len: u64) -> Result<Span, Infallible> {
        let began = self.now;
        let op = if write { Op::Write { fua: true } } else { Op::Read };
        self.run(std::iter::once((op, offset, len)));
        Ok(self.now.since(began))
    }

    fn together(&mut self, offsets: &[u64]) -> Result<Vec<usize>, Infallible> {
        let offsets = &offsets[..offsets.len().min(self.model.queue_max())];
        Ok(self.run(offsets.iter().map(|&o| (Op::Read, o, 4096))))
    }

    fn rest(&mut self, time: Span) {
        self.now += time;
    }
}

/// The profile of a modelled disk that keeps to its specification: what a predictor of another drive of the kind has.
///
/// # Errors
/// If there is no such disk.
pub fn profile_of(spec: &DiskSpec, seed: u64, tries: u32) -> Result<Profile, SpecError> {
    let disk = Disk::new(spec, DiskOptions { seed, mismatch: None })?;
    let options = MeasureOptions { seed, tries, writes: true };
    let measured = measure_disk(&mut ModelTarget::new(disk), &spec.name, options, &mut |_, _| {});
    Ok(measured.unwrap_or_else(|never| match never {}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{IoHead, Op as PoolOp, TenantId, VolumeKey};
    use plimsoll_device::profile;

    /// What was measured predicts what the drive then takes, on average, near and far; and a second measurement agrees.
    #[test]
    fn a_measured_profile_predicts_the_drive() {
        let spec = profile::by_name("hdd-160g-7200").expect("embedded");
        let p = profile_of(&spec, 1, 40).expect("a disk");
        let again = profile_of(&spec, 2, 40).expect("a disk");
        let drift = p.disk.as_ref().unwrap().drift_percent(again.disk.as_ref().unwrap());
        assert!(drift.abs() < 3.0, "{drift} % between two measurements of one drive");
        let d = p.disk.as_ref().unwrap();
        assert_eq!(d.discipline, "sstf");
        assert!(d.read_ahead_bytes >= 128 << 10, "{}", d.read_ahead_bytes);
        let model = p.disk_model().expect("costs");
        let mut target = ModelTarget::new(Disk::new(&spec, DiskOptions { seed: 9, mismatch: None }).unwrap());
        let size = target.size_bytes();
        let mut rng = plimsoll_base::Rng::new(3, "places");
        for distance in [1 << 26, 1 << 30, 20 << 30, 100 << 30] {
            let (mut predicted, mut actual) = (0.0, 0.0);
            for _ in 0..200 {
                let at = rng.below((size - distance / 16 * 18) / 4096) * 4096;
                target.one(false, at, 4096).unwrap();
                let to = at + 4096 + distance - distance / 16 + rng.below(distance / 8 / 4096) * 4096;
                let head = IoHead::new(PoolOp::Read, VolumeKey::POOL, TenantId(0), to, 4096, Time::ZERO);
                predicted += model.cost(Time::ZERO, at + 4096, &head).as_millis_f64();
                actual += target.one(false, to, 4096).unwrap().as_millis_f64();
            }
            assert!((predicted / actual - 1.0).abs() < 0.1, "{distance}: {predicted} against {actual}");
        }
    }
}
