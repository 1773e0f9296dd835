//! Profiles of modelled devices, measured as a real device's is.
#![forbid(unsafe_code)]

use plimsoll_base::{Span, Time};
use plimsoll_device::{
    Disk, DiskOptions, DiskSpec, Flash, FlashOptions, FlashSpec, History, Model, Op, Request, SpecError,
};
use plimsoll_fence::{FlashPredictor, Line};
use plimsoll_sched::batches::{BatchProfile, DiskBatches, FlashBatches, measure_disk_batches, measure_flash_batches};
use plimsoll_sched::measure::{MeasureOptions, Target, measure_disk};
use plimsoll_sched::profile::{DeviceId, FlashProfile, Measured, VERSION};
use plimsoll_sched::{DiskModel, Profile};
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

    /// Hands in requests up to the device's limit, and the others as those end. Returns their numbers in the order in which
    /// they ended.
    fn run(&mut self, requests: impl Iterator<Item = (Op, u64, u64)>) -> Vec<usize> {
        let mut done = Vec::new();
        self.model.advance(self.now, &mut done);
        done.clear();
        let first = self.tag;
        let mut waiting = requests.peekable();
        while waiting.peek().is_some() || (done.len() as u64) < self.tag - first {
            while self.model.outstanding() < self.model.queue_max()
                && let Some((op, offset, len)) = waiting.next()
            {
                self.model.submit(self.now, Request { tag: self.tag, op, offset, len });
                self.tag += 1;
            }
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

    fn batch(&mut self, durable: bool, requests: &[(bool, u64, u64)]) -> Result<Span, Infallible> {
        let began = self.now;
        let op = |write| if write { Op::Write { fua: durable } } else { Op::Read };
        self.run(requests.iter().map(|&(write, offset, len)| (op(write), offset, len)));
        Ok(self.now.since(began))
    }

    fn rest(&mut self, time: Span) {
        self.now += time;
    }
}

/// Batches that are measured of a modelled device.
const BATCHES: usize = 3000;

/// Measures the times of batches on a modelled disk, if distances matter there.
pub fn disk_batches_of(disk: Disk, seed: u64) -> Option<DiskBatches> {
    let measured = measure_disk_batches(&mut ModelTarget::new(disk), BATCHES, true, seed);
    measured.unwrap_or_else(|never| match never {})
}

/// A fence's predictor by what was measured.
pub fn flash_predictor(f: &FlashBatches) -> FlashPredictor {
    let [reads, writes] = f.lines_ns().map(|[fixed_ns, each_ns, ns_per_kib]| Line { fixed_ns, each_ns, ns_per_kib });
    FlashPredictor { reads, writes, both_permille: f.both_permille.unwrap_or(1000).into() }
}

/// Measures the times of batches on modelled flash.
pub fn flash_batches_of(flash: impl Model, seed: u64) -> Option<FlashBatches> {
    let measured = measure_flash_batches(&mut ModelTarget::new(flash), BATCHES, true, seed);
    measured.unwrap_or_else(|never| match never {})
}

/// Measures the costs of requests on a modelled disk, on that very disk.
pub fn costs_of(disk: Disk, seed: u64, tries: u32) -> Option<DiskModel> {
    let options = MeasureOptions { seed, tries, writes: true };
    let measured = measure_disk(&mut ModelTarget::new(disk), "itself", options, &mut |_, _| {});
    measured.unwrap_or_else(|never| match never {}).disk_model()
}

/// The profile of a modelled disk that keeps to its specification: what a predictor of another drive of the kind has.
///
/// # Errors
/// If there is no such disk.
pub fn profile_of(spec: &DiskSpec, seed: u64, tries: u32) -> Result<Profile, SpecError> {
    let disk = Disk::new(spec, DiskOptions { seed, mismatch: None })?;
    let options = MeasureOptions { seed, tries, writes: true };
    let mut target = ModelTarget::new(disk.clone());
    let measured = measure_disk(&mut target, &spec.name, options, &mut |_, _| {});
    let profile = measured.unwrap_or_else(|never| match never {});
    let batches = BatchProfile { disk: disk_batches_of(disk, seed), flash: None };
    Ok(Profile { batches: Some(batches), ..profile })
}

/// Pages that are written one after the other to tell their classes: more than any pattern's period.
const PROGRAMS: usize = 64;
/// Reads that are sent together.
const TOGETHER: u64 = 8;

/// Measures the profile of modelled flash that keeps to its specification (MT-M17): lone reads, several of one chip, several of
/// chips on one channel, writes one by one. An erase isn't visible from outside: the specification's figure stands for the
/// vendor's.
///
/// # Errors
/// If there is no such drive.
pub fn flash_profile_of(spec: &FlashSpec, bytes_max: u64) -> Result<Profile, SpecError> {
    let options = FlashOptions { history: History::Filled, bytes_max: Some(bytes_max), ..FlashOptions::default() };
    let flash = Flash::new(spec, options)?;
    let page = u64::from(flash.spec().geometry.page_bytes);
    let (units, erase_us, size_bytes) = (u64::from(flash.spec().units()), spec.timing.erase_us, flash.size_bytes());
    let channels = u64::from(flash.spec().geometry.channels);
    let mut t = ModelTarget::new(flash);
    let mut took = |offsets: &[u64], op: Op| {
        let began = t.now;
        t.run(offsets.iter().map(|&o| (op, o, page)));
        let us = t.now.since(began).as_nanos() as f64 / 1e3;
        t.now += Span::from_millis(50);
        us
    };
    let read_us = took(&[0], Op::Read);
    // Pages of one unit lie a round of all units apart; the next unit on a channel lies `channels` on.
    let of_chip: Vec<u64> = (0..TOGETHER).map(|i| i * units * page).collect();
    let chip_us = (took(&of_chip, Op::Read) - read_us) / (TOGETHER - 1) as f64;
    let chips = (units / channels).clamp(1, TOGETHER);
    let on_channel: Vec<u64> = (0..chips).map(|i| i * channels * page).collect();
    let channel_us = (took(&on_channel, Op::Read) - read_us) / (chips - 1).max(1) as f64;
    let mut programs: Vec<f64> =
        (0..PROGRAMS as u64).map(|i| took(&[i * units * page], Op::Write { fua: true })).collect();
    programs.sort_by(f64::total_cmp);
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let middle = (programs[0] + programs[PROGRAMS - 1]) / 2.0;
    let (fast, slow) = programs.split_at(programs.partition_point(|us| *us <= middle));
    let program_us = if slow.is_empty() || mean(slow) < 1.2 * mean(fast) {
        vec![mean(&programs)]
    } else {
        vec![mean(fast), mean(slow)]
    };
    let aged = FlashOptions { history: History::Aged { overwrites_permille: 1000 }, ..options };
    let batches = flash_batches_of(Flash::new(spec, aged)?, 1);
    let requests = 2 + TOGETHER + chips + PROGRAMS as u64;
    let flash = FlashProfile { page_bytes: page as u32, read_us, chip_us, channel_us, program_us, erase_us };
    Ok(Profile {
        version: VERSION,
        device: DeviceId { name: spec.name.clone(), size_bytes },
        measured: Measured { requests, device_s: t.now.as_nanos() / 1_000_000_000, seed: 0, writes: true },
        disk: None,
        flash: Some(flash),
        batches: Some(BatchProfile { disk: None, flash: batches }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{IoHead, Op as PoolOp, TenantId, VolumeKey};
    use plimsoll_device::profile;

    /// A measured profile predicts the drive's times on average, near and far. A second measurement agrees with it.
    #[test]
    fn a_measured_profile_predicts_the_drive() {
        let spec = profile::by_name("hdd-160g-7200").expect("embedded");
        let p = profile_of(&spec, 1, 40).expect("a disk");
        let again = profile_of(&spec, 2, 40).expect("a disk");
        let drift = p.drift(&again).expect("both are of disks").percent;
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

    /// The paper's own figures come out of its drive (§4.3): 100 us a read, 100 more for each of the chip, 60 for each of the
    /// channel, programs of 1 and 2 ms with their transfer.
    #[test]
    fn flash_is_measured_as_the_paper_measures_it() {
        let spec = FlashSpec::by_name("mittos-openchannel").expect("embedded");
        let f = flash_profile_of(&spec, 1 << 30).expect("flash").flash.expect("flash");
        let near = |ours: f64, want: f64| assert!((ours / want - 1.0).abs() < 0.03, "{ours} {want}");
        near(f.read_us, 100.0);
        near(f.chip_us, 100.0);
        near(f.channel_us, 60.0);
        near(f.program_us[0], 1060.0);
        near(f.program_us[1], 2060.0);
    }
}
