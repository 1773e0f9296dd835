//! Seek curves: how long the arm takes over a distance in cylinders.

use serde::{Deserialize, Serialize};

use super::spec::SpecError;

/// A seek curve as it is written in a profile. Times are for reads, in milliseconds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum SeekCurve {
    /// Measured points, `[distance in cylinders, ms]`, distances ascending; linear in between, level beyond the last.
    Table {
        /// The points.
        points: Vec<(u32, f64)>,
    },
    /// `a·√(x−1) + b·(x−1) + c` through three data-sheet figures (E. K. Lee and R. Katz, SIGMETRICS '93):
    /// its mean over random pairs of cylinders is the average, exactly.
    ThreePoint {
        /// Seek to the next cylinder.
        single_ms: f64,
        /// Mean over random pairs.
        average_ms: f64,
        /// From the first to the last cylinder.
        full_ms: f64,
    },
    /// The form of C. Ruemmler and J. Wilkes (IEEE Computer 27(3), 1994): `short_ms + short_root_ms·√x` below
    /// `boundary` cylinders, `long_ms + long_slope_ms·x` from there on.
    Hpl {
        /// Distance from which the linear part holds.
        boundary: u32,
        /// Constant of the short part.
        short_ms: f64,
        /// Factor of the root in the short part.
        short_root_ms: f64,
        /// Constant of the long part.
        long_ms: f64,
        /// Slope of the long part, per cylinder.
        long_slope_ms: f64,
        /// Seek to the next cylinder, if it is off the curve.
        #[serde(default)]
        single_ms: Option<f64>,
        /// Measured times of distances 1, 2, …, which go before the form.
        #[serde(default)]
        first_ms: Vec<f64>,
    },
}

impl SeekCurve {
    /// Milliseconds for a seek over `distance` cylinders of a disk of `cylinders`.
    pub fn millis(&self, distance: u32, cylinders: u32) -> f64 {
        if distance == 0 {
            return 0.0;
        }
        let x = f64::from(distance);
        match self {
            SeekCurve::Table { points } => interpolate(points, distance),
            SeekCurve::ThreePoint { single_ms, average_ms, full_ms } => {
                let (root, slope) = three_point_factors(*single_ms, *average_ms, *full_ms, cylinders);
                single_ms + root * (x - 1.0).sqrt() + slope * (x - 1.0)
            }
            SeekCurve::Hpl { boundary, short_ms, short_root_ms, long_ms, long_slope_ms, single_ms, first_ms } => {
                if let Some(ms) = first_ms.get(distance as usize - 1) {
                    return *ms;
                }
                match single_ms {
                    Some(ms) if distance == 1 => *ms,
                    _ if distance < *boundary => short_ms + short_root_ms * x.sqrt(),
                    _ => long_ms + long_slope_ms * x,
                }
            }
        }
    }

    /// Mean seek in milliseconds over random pairs of cylinders, zero distances included.
    pub fn mean_millis(&self, cylinders: u32) -> f64 {
        // A pair of n cylinders is d apart in 2(n-d) of n² cases; 4096 distances are enough for a smooth curve.
        let n = f64::from(cylinders);
        let step = (cylinders / 4096).max(1);
        let (mut sum, mut weight) = (0.0, 0.0);
        for d in (0..cylinders).step_by(step as usize) {
            let w = if d == 0 { n } else { 2.0 * (n - f64::from(d)) };
            sum += w * self.millis(d, cylinders);
            weight += w;
        }
        sum / weight
    }

    /// Refuses curves that aren't ones: `key` names the curve in the message.
    pub(crate) fn check(&self, key: &str, cylinders: u32) -> Result<(), SpecError> {
        if let SeekCurve::Table { points } = self {
            if points.is_empty() {
                return Err(SpecError::new(key, "has no points: give at least one pair [cylinders, ms]"));
            }
            if let Some(w) = points.windows(2).find(|w| w[0].0 >= w[1].0) {
                return Err(SpecError::new(key, format!("distances must rise, but {} follows {}", w[1].0, w[0].0)));
            }
        }
        if let SeekCurve::ThreePoint { single_ms, average_ms, full_ms } = *self {
            let (root, slope) = three_point_factors(single_ms, average_ms, full_ms, cylinders);
            if root < 0.0 || slope < 0.0 {
                return Err(SpecError::new(key, "no rising curve of this form goes through these three; use a table"));
            }
        }
        let step = (cylinders / 512).max(1) as usize;
        for d in (1..cylinders.max(2)).step_by(step).chain([cylinders.max(2) - 1]) {
            let ms = self.millis(d, cylinders);
            if !(0.0..=1000.0).contains(&ms) {
                return Err(SpecError::new(
                    key,
                    format!("gives {ms} ms for {d} cylinders; a seek takes between 0 and 1000 ms"),
                ));
            }
        }
        Ok(())
    }
}

/// Factors of the root and of the distance in Lee and Katz's form.
fn three_point_factors(single_ms: f64, average_ms: f64, full_ms: f64, cylinders: u32) -> (f64, f64) {
    let span = f64::from(cylinders.max(2) - 1);
    let root = (-10.0 * single_ms + 15.0 * average_ms - 5.0 * full_ms) / (3.0 * span.sqrt());
    let slope = (7.0 * single_ms - 15.0 * average_ms + 8.0 * full_ms) / (3.0 * span);
    (root, slope)
}

fn interpolate(points: &[(u32, f64)], distance: u32) -> f64 {
    let after = points.partition_point(|p| p.0 < distance);
    let Some(&(d1, ms1)) = points.get(after) else {
        return points.last().map_or(0.0, |p| p.1);
    };
    if d1 == distance || after == 0 {
        return ms1;
    }
    let (d0, ms0) = points[after - 1];
    ms0 + (ms1 - ms0) * f64::from(distance - d0) / f64::from(d1 - d0)
}

/// A curve compiled for the hot path: exact for short distances, interpolated between equidistant knots beyond.
#[derive(Clone, Debug)]
pub(crate) struct SeekTable {
    near_ns: Box<[u32]>,
    far_ns: Box<[u32]>,
    shift: u32,
}

/// Distance below which each is tabulated: the curve bends there, and sequential work is in this range.
const NEAR: u32 = 2048;
/// Upper bound of knots for the rest; 32 KiB with the near part, which stays in a core's first-level cache.
const KNOTS: u32 = 4096;

impl SeekTable {
    /// Tabulates `millis(distance)` for distances below `cylinders`.
    pub(crate) fn new(cylinders: u32, millis: impl Fn(u32) -> f64) -> SeekTable {
        let ns = |d: u32| (millis(d) * 1e6).round().clamp(0.0, 1e9) as u32;
        let mut shift = 0;
        while (cylinders >> shift) >= KNOTS {
            shift += 1;
        }
        SeekTable {
            near_ns: (0..NEAR.min(cylinders)).map(|d| if d == 0 { 0 } else { ns(d) }).collect(),
            // Two knots more than distances, so that interpolation never asks whether there is a next one.
            far_ns: (0..=(cylinders >> shift) + 1).map(|k| ns((k << shift).min(cylinders - 1).max(1))).collect(),
            shift,
        }
    }

    /// Nanoseconds for the longest distance.
    pub(crate) fn last_nanos(&self) -> u64 {
        self.far_ns.last().map_or(0, |&ns| u64::from(ns))
    }

    /// Nanoseconds for a distance below `cylinders`.
    pub(crate) fn nanos(&self, distance: u32) -> u64 {
        if let Some(&ns) = self.near_ns.get(distance as usize) {
            return u64::from(ns);
        }
        let knot = (distance >> self.shift) as usize;
        let (lo, hi) = (i64::from(self.far_ns[knot]), i64::from(self.far_ns[knot + 1]));
        let part = i64::from(distance & ((1 << self.shift) - 1));
        (lo + (((hi - lo) * part) >> self.shift)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_points_are_met() {
        let c = SeekCurve::ThreePoint { single_ms: 2.0, average_ms: 11.0, full_ms: 22.0 };
        assert!((c.millis(1, 50_000) - 2.0).abs() < 1e-9);
        assert!((c.millis(49_999, 50_000) - 22.0).abs() < 1e-3);
        assert!((c.mean_millis(50_000) - 11.0).abs() < 0.02, "{}", c.mean_millis(50_000));
    }

    #[test]
    fn a_table_interpolates_and_stays_level_beyond_its_end() {
        let c = SeekCurve::Table { points: vec![(1, 1.0), (11, 2.0), (100, 3.0)] };
        assert_eq!(c.millis(0, 1000), 0.0);
        assert_eq!(c.millis(6, 1000), 1.5);
        assert_eq!(c.millis(500, 1000), 3.0);
    }

    #[test]
    fn hpl_has_two_parts_and_measured_short_seeks() {
        let c = SeekCurve::Hpl {
            boundary: 300,
            short_ms: 3.81,
            short_root_ms: 0.33,
            long_ms: 7.75,
            long_slope_ms: 0.0059,
            single_ms: None,
            first_ms: vec![2.89, 3.68],
        };
        assert_eq!(c.millis(2, 2051), 3.68);
        assert!((c.millis(100, 2051) - 7.11).abs() < 1e-9);
        assert!((c.millis(1000, 2051) - 13.65).abs() < 1e-9);
    }

    #[test]
    fn the_compiled_table_follows_the_curve() {
        for cylinders in [2, 1449, 10_042, 72_170, 320_800] {
            let c = SeekCurve::ThreePoint { single_ms: 0.5, average_ms: 4.0, full_ms: 8.0 };
            let t = SeekTable::new(cylinders, |d| c.millis(d, cylinders));
            for d in (0..cylinders).step_by(7).chain([cylinders - 1]) {
                let exact = (c.millis(d, cylinders) * 1e6).round() as i64;
                assert!((t.nanos(d) as i64 - exact).abs() <= 2_000, "{cylinders} cylinders, distance {d}");
            }
        }
    }

    #[test]
    fn nonsense_is_refused() {
        let bad = SeekCurve::Table { points: vec![(5, 1.0), (5, 2.0)] };
        assert!(bad.check("seek", 100).unwrap_err().to_string().contains("rise"));
        let negative = SeekCurve::ThreePoint { single_ms: 5.0, average_ms: 1.0, full_ms: 2.0 };
        assert!(negative.check("seek", 100).is_err());
    }
}
