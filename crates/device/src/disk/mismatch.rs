//! Drives that differ from their specification.

use plimsoll_base::Rng;

use super::seek::SeekCurve;
use super::spec::{DiskSpec, SpecError};

/// Perturbs each component of a specification by a seeded factor, so that a predictor and the device it
/// predicts are never the same thing with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mismatch {
    /// Draws the factors.
    pub seed: u64,
    /// Half width of each factor's uniform range, 0 to 0.5: 0.2 for ±20 %.
    pub spread: f64,
}

/// Rotation speed varies by this share of the spread: spindles are locked to a crystal, so a drive that is 20 %
/// off doesn't exist, but a permille already loses the phase within some turns.
const SPINDLE_SHARE: f64 = 0.02;

impl Mismatch {
    /// The altered specification: seek curve (scale and shape), head switch, settling, overheads, bus, skews,
    /// read-ahead and spindle speed, each with a factor of its own. Capacity and LBN map stay.
    pub fn apply(&self, spec: &DiskSpec) -> Result<DiskSpec, SpecError> {
        if !(0.0..=0.5).contains(&self.spread) {
            return Err(SpecError::new(
                "mismatch.spread",
                format!("is {}; it must lie between 0 and 0.5", self.spread),
            ));
        }
        let draw = |part: &str| 1.0 + self.spread * (2.0 * Rng::new(self.seed, part).unit() - 1.0);
        let mut s = spec.clone();
        let cylinders = s.geometry.cylinders;
        let (scale, tilt) = (draw("seek scale"), draw("seek shape") - 1.0);
        s.mechanics.seek = bend(&s.mechanics.seek, cylinders, scale, tilt);
        s.mechanics.write_seek = s.mechanics.write_seek.as_ref().map(|c| bend(c, cylinders, scale, tilt));
        s.mechanics.rpm *= 1.0 + SPINDLE_SHARE * (draw("spindle") - 1.0);
        s.mechanics.head_switch_ms *= draw("head switch");
        s.mechanics.write_settle_ms *= draw("settle");
        let bus = draw("bus");
        s.bus.read_us_per_sector *= bus;
        s.bus.write_us_per_sector *= bus;
        let (reads, writes) = (draw("read overheads"), draw("write overheads"));
        let o = &mut s.overheads;
        for ms in [
            &mut o.read_hit_after_read_ms,
            &mut o.read_hit_after_write_ms,
            &mut o.read_miss_after_read_ms,
            &mut o.read_miss_after_write_ms,
            &mut o.read_completion_ms,
        ] {
            *ms *= reads;
        }
        for ms in [
            &mut o.write_hit_after_read_ms,
            &mut o.write_hit_after_write_ms,
            &mut o.write_miss_after_read_ms,
            &mut o.write_miss_after_write_ms,
            &mut o.write_completion_ms,
        ] {
            *ms *= writes;
        }
        let skew = draw("skew");
        for z in &mut s.geometry.zones {
            // Never less than given: too small a skew costs a turn on every track, which is a fault, not a spread.
            let more = skew.max(2.0 - skew);
            z.track_skew_sectors = z.track_skew_sectors.map(|k| (k * more).round());
            z.cylinder_skew_sectors = z.cylinder_skew_sectors.map(|k| (k * more).round());
        }
        let ahead = f64::from(s.buffer.read_ahead_max_sectors) * draw("read-ahead");
        s.buffer.read_ahead_max_sectors = ahead.round() as u32;
        Ok(s)
    }
}

/// Scales a curve by `scale`, and by ±`tilt`/2 more from its short to its long end.
fn bend(curve: &SeekCurve, cylinders: u32, scale: f64, tilt: f64) -> SeekCurve {
    let longest = f64::from(cylinders - 1);
    let mut points: Vec<(u32, f64)> = Vec::new();
    let mut distance = 1.0;
    while distance < longest * 1.01 {
        let d = (distance as u32).min(cylinders - 1);
        let factor = scale * (1.0 + tilt * (f64::from(d) / longest - 0.5));
        if points.last().is_none_or(|p| p.0 < d) {
            points.push((d, curve.millis(d, cylinders) * factor));
        }
        distance = (distance * 1.04).max(distance + 1.0);
    }
    let factor = scale * (1.0 + tilt * 0.5);
    if points.last().is_none_or(|p| p.0 < cylinders - 1) {
        points.push((cylinders - 1, curve.millis(cylinders - 1, cylinders) * factor));
    }
    SeekCurve::Table { points }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_component_differs_and_the_seed_repeats() {
        let spec = crate::profile::by_name("cheetah-15k5").expect("embedded");
        let m = Mismatch { seed: 3, spread: 0.2 };
        let a = m.apply(&spec).expect("valid");
        assert_eq!(a, m.apply(&spec).expect("valid"));
        assert_ne!(a, Mismatch { seed: 4, ..m }.apply(&spec).expect("valid"));
        let ratio = a.mechanics.seek.mean_millis(72_170) / spec.mechanics.seek.mean_millis(72_170);
        assert!((0.7..1.3).contains(&ratio) && (ratio - 1.0).abs() > 0.001, "{ratio}");
        assert_ne!(a.mechanics.head_switch_ms, spec.mechanics.head_switch_ms);
        assert!((a.mechanics.rpm / spec.mechanics.rpm - 1.0).abs() <= 0.004);
        a.check().expect("still a disk");
    }

    #[test]
    fn no_spread_changes_nothing_that_matters() {
        let spec = crate::profile::by_name("atlas-10k").expect("embedded");
        let a = Mismatch { seed: 1, spread: 0.0 }.apply(&spec).expect("valid");
        let n = spec.geometry.cylinders;
        for d in [1, 2, 10, 100, 1000, n - 1] {
            assert!((a.mechanics.seek.millis(d, n) - spec.mechanics.seek.millis(d, n)).abs() < 0.05);
        }
        assert!(Mismatch { seed: 1, spread: 0.7 }.apply(&spec).is_err());
    }
}
