//! Measured profile of a device, as a file that predictors load (MT-M7, MT-M9, MT-M17).
//!
//! The file is TOML. Every figure has its unit in its key, and unknown keys are refused. `plimsoll profile` writes the file.

use crate::batches::BatchProfile;
#[cfg(test)]
use crate::batches::DiskBatches;
use crate::device::Discipline;
use crate::disk::{DiskModel, OpCosts, REGIONS};
use plimsoll_base::Span;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version that this program reads and writes.
pub const VERSION: u32 = 1;

/// A measured device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Of the format: [`VERSION`].
    pub version: u32,
    /// The measured device.
    pub device: DeviceId,
    /// Circumstances of the measurement.
    pub measured: Measured,
    /// Costs, if it has an arm (or anything else whose costs depend on distance).
    pub disk: Option<DiskProfile>,
    /// Delays, if it's flash whose inside is seen.
    pub flash: Option<FlashProfile>,
    /// Times of batches, for fences.
    pub batches: Option<BatchProfile>,
}

/// Identity of the device of a profile.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceId {
    /// Its kind, as the user named it: a model's name, or a file's.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
}

/// Circumstances of a profile's measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Requests that were timed.
    pub requests: u64,
    /// Device time that it took, in seconds.
    pub device_s: u64,
    /// Draws the places that were measured.
    pub seed: u64,
    /// Writes were measured too; otherwise they are taken for as dear as reads.
    pub writes: bool,
}

/// Costs by distance.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskProfile {
    /// Order in which the drive serves its queue: `fifo` or `sstf`.
    pub discipline: String,
    /// Bytes that the drive reads ahead; 0 for none.
    pub read_ahead_bytes: u64,
    /// Distances that were measured, rising, from 4096.
    pub distance_bytes: Vec<u64>,
    /// Reads.
    pub read: OpProfile,
    /// Writes.
    pub write: OpProfile,
}

/// Costs of one operation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpProfile {
    /// Directly behind the request before.
    pub sequential_us: f64,
    /// To the first byte, for each distance, onwards.
    pub onwards_us: Vec<f64>,
    /// The same, backwards.
    pub backwards_us: Vec<f64>,
    /// A KiB in each eighth of the device.
    pub transfer_ns_per_kib: Vec<u32>,
}

/// Delays of visible flash.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashProfile {
    /// Bytes of a page.
    pub page_bytes: u32,
    /// A lone page read, from submission to completion.
    pub read_us: f64,
    /// Time that each further read of the same chip adds.
    pub chip_us: f64,
    /// Time that each further read of other chips on the channel adds.
    pub channel_us: f64,
    /// A lone page write, by class of page.
    pub program_us: Vec<f64>,
    /// An erase: the vendor's figure, as it can't be measured from outside.
    pub erase_us: f64,
}

/// Mistake in a profile, with its remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadProfile(String);

impl fmt::Display for BadProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadProfile {}

/// Sizes that are chosen among; with the last one a swap takes seconds.
const LOG_GROUPS: [u64; 5] = [10 << 20, 32 << 20, 100 << 20, 320 << 20, 1000 << 20];
/// Manylogs §V-A1.
const LOGGED_WRITES_PER_S: f64 = 40.0;

const AGAIN: &str = "measure the device again with `plimsoll profile`";

#[derive(Deserialize)]
struct OnlyVersion {
    version: Option<u32>,
}

fn line_of(text: &str, at: Option<std::ops::Range<usize>>) -> usize {
    let until = at.map_or(text.len(), |r| r.start).min(text.len());
    1 + text.as_bytes()[..until].iter().filter(|&&b| b == b'\n').count()
}

impl Profile {
    /// Reads a profile; `file` names it in errors.
    ///
    /// # Errors
    /// If it isn't a profile, is of another version, is cut short, or has figures that no device has.
    pub fn parse(file: &str, text: &str) -> Result<Profile, BadProfile> {
        let bad = |e: &toml::de::Error| {
            let line = line_of(text, e.span());
            let cut = if e.span().is_none_or(|s| s.end + 2 >= text.len()) || e.message().contains("missing field") {
                "; the file may be cut short"
            } else {
                ""
            };
            BadProfile(format!("{file}:{line}: {}{cut}: {AGAIN}", e.message()))
        };
        let only: OnlyVersion = toml::from_str(text).map_err(|e| bad(&e))?;
        match only.version {
            Some(VERSION) => {}
            Some(v) => {
                let what = format!("{file}: is a profile of version {v}, and this program reads version {VERSION}");
                return Err(BadProfile(format!("{what}: {AGAIN}")));
            }
            None => return Err(BadProfile(format!("{file}: has no `version`, so it's no profile: {AGAIN}"))),
        }
        let profile: Profile = toml::from_str(text).map_err(|e| bad(&e))?;
        profile.check().map_err(|what| BadProfile(format!("{file}: {what}: {AGAIN}")))?;
        Ok(profile)
    }

    /// As a file's text.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a profile is tables, numbers and strings")
    }

    /// Checks its figures.
    ///
    /// # Errors
    /// The figure that no device has, or the part that is missing.
    pub fn check(&self) -> Result<(), String> {
        if let Some(b) = &self.batches {
            b.check()?;
        }
        if self.disk.is_none() && self.flash.is_none() {
            return Err("has neither `disk` nor `flash`: it was cut short, or nothing was measured".into());
        }
        if let Some(d) = &self.disk {
            d.check()?;
        }
        if let Some(f) = &self.flash {
            let all = [f.read_us, f.chip_us, f.channel_us, f.erase_us];
            if f.page_bytes < 512 || f.program_us.is_empty() {
                return Err("flash: a page has at least 512 bytes, and there is at least one class of page".into());
            }
            all.iter().chain(&f.program_us).try_for_each(|us| plausible("flash", *us))?;
        }
        Ok(())
    }

    /// Checks that the profile is of a device of this size. A pool's device may be up to a sixteenth smaller than the measured one:
    /// its labels take space.
    ///
    /// # Errors
    /// If it isn't.
    pub fn check_device(&self, file: &str, size_bytes: u64) -> Result<(), BadProfile> {
        let measured = self.device.size_bytes;
        if size_bytes <= measured && size_bytes >= measured - measured / 16 {
            return Ok(());
        }
        let name = &self.device.name;
        Err(BadProfile(format!(
            "{file}: is the profile of another device: `{name}` with {measured} bytes, and this one has {size_bytes}: {AGAIN}"
        )))
    }

    /// Checks that the profile is of this model. The folder of the model's description and prefixes (`raid0:`) don't matter.
    ///
    /// # Errors
    /// If it isn't: two models may have one size.
    pub fn check_model(&self, file: &str, model: &str) -> Result<(), BadProfile> {
        let measured = &self.device.name;
        if kind_of(measured) == kind_of(model) {
            return Ok(());
        }
        Err(BadProfile(format!(
            "{file}: is the profile of another device: `{measured}`, and this one is a `{model}`: {AGAIN}"
        )))
    }

    /// Returns the largest drift of `now` from this profile, in percent and signed. Compared are the medians of each kind of cost
    /// that both measured. `None` if the profiles are of different kinds of devices.
    pub fn drift(&self, now: &Profile) -> Option<Drift> {
        let writes = self.measured.writes && now.measured.writes;
        let groups = match (&self.disk, &now.disk, &self.flash, &now.flash) {
            (Some(then), Some(now), ..) => then.drifts(now, writes),
            (_, _, Some(then), Some(now)) => then.drifts(now),
            _ => return None,
        };
        groups.into_iter().max_by(|a, b| a.percent.abs().total_cmp(&b.percent.abs()))
    }

    /// The model that it gives, if it has costs by distance.
    pub fn disk_model(&self) -> Option<DiskModel> {
        let d = self.disk.as_ref()?;
        let costs = [d.costs(&d.read), d.costs(&d.write)];
        Some(DiskModel::from_costs(self.device.size_bytes, &costs, d.read_ahead_bytes))
    }

    /// Returns the order in which the drive serves its queue.
    pub fn discipline(&self) -> Discipline {
        match &self.disk {
            Some(d) if d.discipline == "fifo" => Discipline::Fifo,
            _ => Discipline::Sstf,
        }
    }
}

/// Drift of a kind of cost.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Drift {
    /// The kind of cost that has become larger or smaller, in the plural.
    pub what: &'static str,
    /// Change in percent, signed.
    pub percent: f64,
}

impl Drift {
    /// The median of what each figure has drifted: a few that were disturbed while they were measured say nothing of the device.
    fn of(what: &'static str, pairs: impl IntoIterator<Item = (f64, f64)>) -> Drift {
        let mut ratios: Vec<f64> = pairs.into_iter().map(|(then, now)| now.max(0.1) / then.max(0.1)).collect();
        ratios.sort_by(f64::total_cmp);
        let n = ratios.len();
        let median = if n == 0 { 1.0 } else { (ratios[(n - 1) / 2] + ratios[n / 2]) / 2.0 };
        Drift { what, percent: 100.0 * (median - 1.0) }
    }

    /// Returns the drift of the sum, without the two figures that have drifted most up and most down. The slope of one region is
    /// known to a sixth only.
    fn of_sum(what: &'static str, then: &[u32], now: &[u32]) -> Drift {
        let ns = |ns: &u32| f64::from(*ns).max(1.0);
        let mut pairs: Vec<(f64, f64)> = then.iter().map(ns).zip(now.iter().map(ns)).collect();
        pairs.sort_by(|a, b| (a.1 / a.0).total_cmp(&(b.1 / b.0)));
        let kept = &pairs[1..pairs.len() - 1];
        let (then, now) = kept.iter().fold((0.0, 0.0), |sum, p| (sum.0 + p.0, sum.1 + p.1));
        Drift { what, percent: 100.0 * (now / then - 1.0) }
    }
}

fn kind_of(name: &str) -> &str {
    let last = name.rsplit([':', '/']).next().unwrap_or(name);
    last.strip_suffix(".toml").unwrap_or(last)
}

/// No single figure of a device is beyond ten seconds.
fn plausible(key: &str, us: f64) -> Result<(), String> {
    if (0.0..=1e7).contains(&us) { Ok(()) } else { Err(format!("{key}: {us} us is no time that a device takes")) }
}

impl DiskProfile {
    fn check(&self) -> Result<(), String> {
        if !matches!(self.discipline.as_str(), "fifo" | "sstf") {
            return Err(format!("disk.discipline: `{}` is unknown: fifo or sstf", self.discipline));
        }
        let rises = self.distance_bytes.windows(2).all(|w| w[0] < w[1]);
        if self.distance_bytes.first().is_none_or(|d| *d < 4096) || !rises {
            return Err("disk.distance_bytes: must rise from 4096 or more".into());
        }
        for (key, op) in [("disk.read", &self.read), ("disk.write", &self.write)] {
            let n = self.distance_bytes.len();
            if op.onwards_us.len() != n || op.backwards_us.len() != n {
                let (a, b) = (op.onwards_us.len(), op.backwards_us.len());
                return Err(format!("{key}: {a} and {b} costs for {n} distances"));
            }
            if op.transfer_ns_per_kib.len() != REGIONS {
                return Err(format!("{key}.transfer_ns_per_kib: {REGIONS} are needed"));
            }
            plausible(key, op.sequential_us)?;
            op.onwards_us.iter().chain(&op.backwards_us).try_for_each(|us| plausible(key, *us))?;
        }
        Ok(())
    }

    fn costs(&self, op: &OpProfile) -> OpCosts {
        let span = |us: &f64| Span::from_nanos((us * 1e3).round() as u64);
        let points = |us: &[f64]| self.distance_bytes.iter().copied().zip(us.iter().map(span)).collect();
        let mut transfer_ns_per_kib = [0; REGIONS];
        transfer_ns_per_kib.copy_from_slice(&op.transfer_ns_per_kib);
        OpCosts {
            sequential: span(&op.sequential_us),
            distances: [points(&op.onwards_us), points(&op.backwards_us)],
            transfer_ns_per_kib,
        }
    }

    /// GroupSize for scattered logs, bytes (Manylogs §VI: to be found by profiling): of a few, the one with which a stream at the
    /// drive's full rate and the paper's lightest load of logged writes keep the arm from its work least. Larger groups have logs
    /// farther away: half of a group's places are within a quarter of it. Smaller ones make a stream pass logs more often.
    pub fn log_group_bytes(&self) -> u64 {
        let kib = &self.read.transfer_ns_per_kib;
        let ns_per_kib = kib.iter().map(|ns| f64::from(*ns)).sum::<f64>() / kib.len() as f64;
        let stream_bytes_per_s = 1024e9 / ns_per_kib.max(1.0);
        let lost_us = |group: u64| {
            let passed_per_s = stream_bytes_per_s / (group - group / 10) as f64;
            let far = (self.cost_us(&self.write.onwards_us, group / 4)
                + self.cost_us(&self.write.backwards_us, group / 4))
                / 2.0;
            LOGGED_WRITES_PER_S * far + passed_per_s * self.cost_us(&self.read.onwards_us, group / 10)
        };
        let less = |a: &u64, b: &u64| lost_us(*a).total_cmp(&lost_us(*b));
        LOG_GROUPS.into_iter().min_by(less).expect("there are some")
    }

    /// To the first byte so far away, by costs at the distances that were measured; between them, on a line.
    fn cost_us(&self, costs_us: &[f64], distance: u64) -> f64 {
        let d = &self.distance_bytes;
        let after = d.partition_point(|x| *x < distance).min(d.len() - 1);
        let before = after.saturating_sub(1);
        let span = (d[after] - d[before]).max(1) as f64;
        let share = (distance.saturating_sub(d[before]) as f64 / span).min(1.0);
        costs_us[before] + (costs_us[after] - costs_us[before]) * share
    }

    fn drifts(&self, now: &DiskProfile, writes: bool) -> Vec<Drift> {
        let positions = |op: &OpProfile| [op.onwards_us.clone(), op.backwards_us.clone()].concat();
        let transfers = |what, then: &OpProfile, now: &OpProfile| {
            Drift::of_sum(what, &then.transfer_ns_per_kib, &now.transfer_ns_per_kib)
        };
        let both = |then: Vec<f64>, now: Vec<f64>| then.into_iter().zip(now);
        let mut all = vec![
            Drift::of("reads", both(positions(&self.read), positions(&now.read))),
            transfers("transfers", &self.read, &now.read),
        ];
        if writes {
            all.push(Drift::of("writes", both(positions(&self.write), positions(&now.write))));
            all.push(transfers("transfers of writes", &self.write, &now.write));
        }
        all
    }
}

impl FlashProfile {
    fn drifts(&self, now: &FlashProfile) -> Vec<Drift> {
        vec![
            Drift::of("reads", [(self.read_us, now.read_us)]),
            Drift::of("reads of one chip", [(self.chip_us, now.chip_us)]),
            Drift::of("transfers", [(self.channel_us, now.channel_us)]),
            Drift::of("programs", self.program_us.iter().copied().zip(now.program_us.iter().copied())),
            Drift::of("erasures", [(self.erase_us, now.erase_us)]),
        ]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample() -> Profile {
        let op = OpProfile {
            sequential_us: 100.0,
            onwards_us: vec![4000.0, 5000.0, 9000.0],
            backwards_us: vec![4100.0, 5100.0, 9100.0],
            transfer_ns_per_kib: vec![8000; REGIONS],
        };
        Profile {
            version: VERSION,
            device: DeviceId { name: "drive".into(), size_bytes: 1 << 40 },
            measured: Measured { requests: 1000, device_s: 10, seed: 1, writes: true },
            disk: Some(DiskProfile {
                discipline: "sstf".into(),
                read_ahead_bytes: 1 << 19,
                distance_bytes: vec![4096, 1 << 30, 1 << 40],
                read: op.clone(),
                write: op,
            }),
            flash: None,
            batches: None,
        }
    }

    #[test]
    fn it_comes_back_as_it_was_written() {
        let disk = DiskBatches {
            distance_bytes: vec![0, 1 << 30],
            cost_us: vec![800.0, 9000.0],
            transfer_ns_per_kib: 14_000,
            first_cost_us: vec![1800.0, 9900.5],
        };
        let with_batches = Profile { batches: Some(BatchProfile { disk: Some(disk), flash: None }), ..sample() };
        assert_eq!(Profile::parse("p", &with_batches.to_toml()), Ok(with_batches));
        let p = sample();
        assert_eq!(Profile::parse("p", &p.to_toml()), Ok(p.clone()));
        assert!(p.disk_model().expect("it has costs").is_profiled());
        assert!(p.check_device("p", (1 << 40) - (1 << 20)).is_ok());
    }

    #[test]
    fn what_is_no_profile_is_refused_with_a_reason() {
        let text = sample().to_toml();
        for cut in (1..text.len()).step_by(7) {
            // Cut right behind a whole profile's last figure it's still one.
            if let Err(e) = Profile::parse("drive.toml", &text[..cut]) {
                assert!(e.to_string().starts_with("drive.toml"), "{e}");
                assert!(e.to_string().contains("plimsoll profile"), "{e}");
            } else {
                panic!("cut at {cut} of {} it was taken for a whole one", text.len());
            }
        }
        let says = |text: &str, what: &str| {
            let e = Profile::parse("drive.toml", text).expect_err(what).to_string();
            assert!(e.contains(what), "{e}");
        };
        says(&text.replace("version = 1", "version = 7"), "version 7, and this program reads version 1");
        says(&text.replace("\"sstf\"", "\"magic\""), "`magic` is unknown");
        says(&text.replacen("4000.0", "-3.0", 1), "no time that a device takes");
        says(&text.replacen("[4096,", "[1,", 1), "must rise from 4096");
        says("colour = 3", "no `version`");
        let other = sample().check_device("drive.toml", 1 << 30).expect_err("another size").to_string();
        assert!(other.contains("another device: `drive`"), "{other}");
    }

    #[test]
    fn logs_lie_neither_far_away_nor_in_every_streams_way() {
        let mut d = sample().disk.unwrap();
        let mut group = |distances: Vec<u64>, us: Vec<f64>| {
            d.distance_bytes = distances;
            for op in [&mut d.read, &mut d.write] {
                (op.onwards_us, op.backwards_us) = (us.clone(), us.clone());
            }
            d.log_group_bytes()
        };
        assert_eq!(group(vec![4096, 1 << 40], vec![6000.0, 6000.0]), 1000 << 20, "no seeks at all");
        // Flat up to 32 MiB, then far longer.
        assert_eq!(group(vec![4096, 32 << 20, 256 << 20], vec![6000.0, 6000.0, 12_000.0]), 100 << 20);
        // Every MiB costs much.
        assert_eq!(group(vec![4096, 64 << 20], vec![2000.0, 90_000.0]), 10 << 20);
    }

    fn drift(then: &Profile, now: &Profile) -> (&'static str, f64) {
        let d = then.drift(now).expect("of one kind");
        (d.what, (d.percent * 1e6).round() / 1e6)
    }

    #[test]
    fn drift_is_relative() {
        let (old, mut new) = (sample(), sample());
        assert_eq!(drift(&old, &new).1, 0.0);
        let read = &mut new.disk.as_mut().unwrap().read;
        read.onwards_us.iter_mut().chain(&mut read.backwards_us).for_each(|us| *us *= 1.2);
        assert_eq!(drift(&old, &new), ("reads", 20.0));
        new.disk.as_mut().unwrap().read.onwards_us[1] *= 100.0;
        assert_eq!(drift(&old, &new), ("reads", 20.0), "one of them was disturbed");
    }

    /// Each kind of cost is looked at, and writes only if they were measured.
    #[test]
    fn whatever_drifts_is_told() {
        let old = sample();
        let slower = |change: fn(&mut DiskProfile)| {
            let mut new = sample();
            change(new.disk.as_mut().unwrap());
            new
        };
        let writes =
            slower(|d| d.write.onwards_us.iter_mut().chain(&mut d.write.backwards_us).for_each(|us| *us *= 0.5));
        assert_eq!(drift(&old, &writes), ("writes", -50.0));
        let unmeasured = Profile { measured: Measured { writes: false, ..old.measured.clone() }, ..writes };
        assert_eq!(drift(&old, &unmeasured).1, 0.0);
        let transfers = slower(|d| d.read.transfer_ns_per_kib.iter_mut().for_each(|ns| *ns *= 2));
        assert_eq!(drift(&old, &transfers), ("transfers", 100.0));
        let of_flash = |change: fn(&mut FlashProfile)| {
            let mut flash = FlashProfile {
                page_bytes: 16_384,
                read_us: 100.0,
                chip_us: 100.0,
                channel_us: 60.0,
                program_us: vec![1000.0, 2000.0],
                erase_us: 6000.0,
            };
            change(&mut flash);
            Profile { disk: None, flash: Some(flash), ..sample() }
        };
        let flash = of_flash(|_| {});
        assert_eq!(drift(&flash, &of_flash(|f| f.program_us = vec![1500.0, 3000.0])), ("programs", 50.0));
        assert_eq!(drift(&flash, &of_flash(|f| f.erase_us = 3000.0)), ("erasures", -50.0));
        assert_eq!(flash.drift(&old), None);
    }

    #[test]
    fn a_model_of_the_same_size_is_another_device() {
        let p = sample();
        for same in ["drive", "raid0:4:drive", "models/drive.toml"] {
            assert_eq!(p.check_model("p", same), Ok(()));
        }
        let other = p.check_model("p", "drive-2").expect_err("another").to_string();
        assert!(other.contains("another device: `drive`, and this one is a `drive-2`"), "{other}");
    }
}
