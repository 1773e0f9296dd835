//! The room that admission leaves between a forecast and a deadline, learned from the errors of earlier forecasts.
//!
//! A forecast is a mean: of the reads that are forecast to end just in time, half end late. So the errors are kept as a
//! distribution (took / forecast, by the size of the forecast). A read is accepted only if its chance to be late is tolerable. The
//! tolerable chance follows the misses of the tenant's accepted reads. Most of these reads have a small chance, so a few may have a large
//! one. The tolerable chance settles at a value with which the promised share is missed. Before errors were seen, a prior takes their
//! place, as a promise without it would be a guess. MittOS §4.1 accepts by the mean alone: this goes beyond the paper.

use plimsoll_base::{Span, Time};
use serde::{Deserialize, Serialize};

/// Settings of the room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoomConfig {
    /// Hundredths of a percent of a tenant's accepted reads that may end after their deadline, 1 to 5000. A tenant whose deadline is of
    /// a percentile has half of what its percentile leaves instead.
    pub miss_permyriad: u16,
}

impl RoomConfig {
    /// Half a percent: within 1 % with room for chance.
    pub const DEFAULT: RoomConfig = RoomConfig { miss_permyriad: 50 };

    /// # Errors
    /// If the share is out of its range.
    pub fn check(&self) -> Result<(), String> {
        if (1..=5000).contains(&self.miss_permyriad) {
            return Ok(());
        }
        Err(format!("a share of {} hundredths of a percent is not between 1 and 5000", self.miss_permyriad))
    }
}

/// Bins in an octave of took / forecast, as bits.
const BIN_BITS: u32 = 4;
/// Bins below a ratio of 1: two octaves. Reads that took less are in the first.
const BINS_BELOW: u32 = 2 << BIN_BITS;
/// Number of bins: from a quarter of the forecast to 16 times the forecast.
const BINS: usize = 6 << BIN_BITS;
/// Parts of a bin, as bits: within it, errors are taken to be spread evenly.
const PART_BITS: u32 = 4;
const PARTS: u64 = 1 << PART_BITS;
/// 1 in the fixed point of ratios, as bits.
const RATIO_BITS: u32 = 16;
/// Forecasts below 2^16 ns (66 us) are taken to be this long: a processor's own delays are as large.
const CLASS_FIRST: u32 = 16;
/// Classes of forecasts, two an octave: up to 68 s.
const CLASSES: usize = 2 * 20;
/// Errors of a class beyond which older ones count half.
const CLASS_READS_MAX: u32 = 1024;
/// Errors that each class is taken to have had before any was seen ([`prior_ppm`]).
const UNSEEN: u64 = 8;
/// The power of the ratio by which the chance of such an error falls.
const PRIOR_POWER: u64 = 5;
/// Errors after which the prior says nothing any more; until then it fades.
const PRIOR_READS: u64 = 256;
/// The first reads, which the predictor itself learns from where it has no profile.
const FIRST_READS: u32 = 16;
/// After this long all errors count half.
const HALF_LIFE: Span = Span::from_secs(60);
/// A chance of 1, in the unit of chances: millionths.
const CERTAIN: u64 = 1_000_000;

/// log2 of `x` with `bits` bits after the point, linear within an octave; `x` > 0.
fn log2(x: u64, bits: u32) -> u32 {
    let octave = x.ilog2();
    let part = (x << (63 - octave)) >> (63 - bits);
    (octave << bits) + (part as u32 & ((1 << bits) - 1))
}

/// Errors of forecasts of about one size.
#[derive(Clone, Debug)]
struct Class {
    bins: [u32; BINS],
    reads: u32,
}

impl Class {
    fn halve(&mut self) {
        self.bins.iter_mut().for_each(|n| *n /= 2);
        self.reads = self.bins.iter().sum();
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Room {
    classes: Vec<Class>,
    halved_at: Time,
    /// Reads that were seen before anything was learned.
    skipped: u32,
    /// Errors that the prior still stands for, of [`PRIOR_READS`].
    unlearned: u64,
}

/// Errors of forecasts of about one size, as seen from outside.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RoomView {
    /// The forecasts are at least this long, and less than 1.5 times as long.
    pub forecast: Span,
    /// Reads that it was learned from; older ones count less.
    pub reads: u32,
    /// Ratios of the time taken to the forecast that half, 90 % and 99 % of them stayed within.
    pub ratios: [f64; 3],
}

impl Default for Room {
    fn default() -> Room {
        Room {
            classes: vec![Class { bins: [0; BINS], reads: 0 }; CLASSES],
            halved_at: Time::ZERO,
            skipped: 0,
            unlearned: PRIOR_READS,
        }
    }
}

/// A forecast as it is classed, and its class.
fn classed(forecast: Span) -> (u64, usize) {
    let ns = forecast.as_nanos().max(1 << CLASS_FIRST);
    let class = log2(ns, 1) - 2 * CLASS_FIRST;
    (ns, (class as usize).min(CLASSES - 1))
}

/// Parts of all bins below what took `ns` where `forecast_ns` was forecast.
fn place(ns: u64, forecast_ns: u64) -> u64 {
    let ratio = (u128::from(ns) << RATIO_BITS) / u128::from(forecast_ns);
    let log2 = log2(u64::try_from(ratio).unwrap_or(u64::MAX).max(1), BIN_BITS + PART_BITS);
    u64::from((log2 + (BINS_BELOW << PART_BITS)).saturating_sub(RATIO_BITS << (BIN_BITS + PART_BITS)))
}

/// The bin of a place, and where in the bin, in its [`PARTS`].
fn bin(place: u64) -> (usize, u64) {
    let bin = (place >> PART_BITS) as usize;
    if bin < BINS { (bin, place % PARTS) } else { (BINS - 1, PARTS) }
}

/// The chance, in millionths, that is assumed for a ratio beyond `place` before errors were seen: half of the reads take longer than
/// their forecast, and the share falls with the [`PRIOR_POWER`] of the ratio.
fn prior_ppm(place: u64) -> u64 {
    let octave = BIN_BITS + PART_BITS;
    let halvings =
        (place * PRIOR_POWER + (1 << octave)).saturating_sub((u64::from(BINS_BELOW) << PART_BITS) * PRIOR_POWER);
    let (whole, part) = (halvings >> octave, halvings & ((1 << octave) - 1));
    ((CERTAIN << octave) - CERTAIN * part / 2) >> (u64::from(octave) + whole).min(63)
}

/// The ratio at which a bin begins.
fn ratio(bin: usize) -> f64 {
    let (octave, part) = (bin as i32 >> BIN_BITS, bin as i32 & ((1 << BIN_BITS) - 1));
    2f64.powi(octave - (BINS_BELOW >> BIN_BITS) as i32) * (1.0 + f64::from(part) / f64::from(1 << BIN_BITS))
}

impl Room {
    /// A read for which `forecast` was forecast took `took`.
    pub fn note(&mut self, now: Time, forecast: Span, took: Span) {
        if now.since(self.halved_at) > HALF_LIFE {
            self.halved_at = now;
            self.classes.iter_mut().filter(|c| c.reads > 0).for_each(Class::halve);
        }
        if !self.is_learning() {
            self.skipped += 1;
            return;
        }
        self.unlearned = self.unlearned.saturating_sub(1);
        let (ns, class) = classed(forecast);
        let class = &mut self.classes[class];
        class.bins[bin(place(took.as_nanos(), ns)).0] += 1;
        class.reads += 1;
        if class.reads > CLASS_READS_MAX {
            class.halve();
        }
    }

    /// True if the predictor below has seen `FIRST_READS` reads, so that its errors are used.
    pub fn is_learning(&self) -> bool {
        self.skipped == FIRST_READS
    }

    /// True if the prior is still used.
    pub fn is_guessing(&self) -> bool {
        self.unlearned > 0
    }

    /// The prior's late reads beyond `place`, in millionths.
    fn guessed(&self, place: u64) -> u64 {
        UNSEEN * prior_ppm(place) * self.unlearned / PRIOR_READS
    }

    /// The class of a forecast and its neighbours.
    fn around(&self, class: usize) -> &[Class] {
        &self.classes[class.saturating_sub(1)..(class + 2).min(CLASSES)]
    }

    /// The chance, in millionths, that a read for which `forecast` is forecast takes longer than `within`. Some 200 additions at most.
    pub fn chance_ppm(&self, forecast: Span, within: Span) -> u64 {
        let (ns, class) = classed(forecast);
        let place = place(within.as_nanos(), ns);
        let (edge, part) = bin(place);
        let (mut late_parts, mut reads) = (0, UNSEEN);
        for c in self.around(class) {
            let above: u32 = c.bins[edge + 1..].iter().sum();
            late_parts += u64::from(c.bins[edge]) * (PARTS - part) + u64::from(above) * PARTS;
            reads += u64::from(c.reads);
        }
        (late_parts * CERTAIN / PARTS + self.guessed(place)) / reads
    }

    /// The time within which a read for which `forecast` is forecast ends, but for a chance of `chance_ppm`.
    pub fn within(&self, forecast: Span, chance_ppm: u64) -> Span {
        let (ns, class) = classed(forecast);
        let around = self.around(class);
        let reads: u64 = UNSEEN + around.iter().map(|c| u64::from(c.reads)).sum::<u64>();
        let mut later = 0;
        for bin in (0..BINS).rev() {
            later += around.iter().map(|c| u64::from(c.bins[bin])).sum::<u64>();
            if later * CERTAIN + self.guessed((bin as u64) << PART_BITS) > reads * chance_ppm {
                return Span::from_nanos((ns as f64 * ratio(bin + 1)) as u64);
            }
        }
        forecast
    }

    /// The classes that anything is known of.
    pub fn views(&self) -> Vec<RoomView> {
        let view = |(i, c): (usize, &Class)| {
            let forecast = (1u64 << CLASS_FIRST << (i / 2)) as f64 * (1.0 + 0.5 * (i % 2) as f64);
            let at = |permille: u32| {
                let mut left = u64::from(c.reads) * u64::from(permille) / 1000;
                let within = |n: &u32| {
                    let is_past = u64::from(*n) > left;
                    left = left.saturating_sub(u64::from(*n));
                    is_past
                };
                ratio(c.bins.iter().position(within).unwrap_or(BINS - 1) + 1)
            };
            RoomView {
                forecast: Span::from_nanos(forecast as u64),
                reads: c.reads,
                ratios: [at(500), at(900), at(990)],
            }
        };
        self.classes.iter().enumerate().filter(|(_, c)| c.reads > 0).map(view).collect()
    }
}

/// The largest chance of being late with which a tenant's reads are accepted, in millionths: it follows the misses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tolerance {
    /// In 1/256 millionths.
    chance: u64,
    miss_permyriad: u64,
}

/// The largest tolerance and the first, in millionths: a coin that may fall either way is no promise. The least is half of the share
/// that may be missed: reads with a lower chance can't be too many.
const TOLERANCE_MOST: u64 = 500_000;
const TOLERANCE_START: u64 = 25_000;
/// Step of the accepted chance, as the natural logarithm of 2 in thousandths: a miss halves it, and the other reads together
/// raise it by the same step.
const STEP_UP: u64 = 693;

impl Tolerance {
    /// For this share of misses, in hundredths of a percent.
    pub fn new(miss_permyriad: u16) -> Tolerance {
        Tolerance { chance: TOLERANCE_START << 8, miss_permyriad: u64::from(miss_permyriad).clamp(1, 5000) }
    }

    /// The share of misses that it aims at, in hundredths of a percent.
    pub fn miss_permyriad(&self) -> u64 {
        self.miss_permyriad
    }

    /// The chance that is tolerable now, in millionths.
    pub fn chance_ppm(&self) -> u64 {
        self.chance >> 8
    }

    /// An accepted read has ended, late or not. In balance, the steps of all misses equal those of all others.
    pub fn ended(&mut self, late: bool) {
        let next = if late {
            self.chance / 2
        } else {
            self.chance + (self.chance * self.miss_permyriad * STEP_UP / (10_000 - self.miss_permyriad) / 1000).max(1)
        };
        self.chance = next.clamp((self.miss_permyriad * 50) << 8, TOLERANCE_MOST << 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    fn ms(n: u64) -> Span {
        Span::from_millis(n)
    }

    #[test]
    fn logarithms_and_ratios_are_each_others_inverse() {
        for b in 0..BINS - 1 {
            let ns = (ratio(b) * 1e9 * 1.001) as u64;
            assert_eq!(bin(place(ns, 1_000_000_000)).0, b, "ratio {}", ratio(b));
        }
        assert_eq!(bin(place(0, 1)), (0, 0));
        assert_eq!(bin(place(u64::MAX, 1)), (BINS - 1, PARTS));
        assert_eq!(classed(Span::MAX).1, CLASSES - 1);
        assert_eq!(classed(Span::ZERO), (1 << CLASS_FIRST, 0));
    }

    /// Against the obvious way: all errors, sorted.
    #[test]
    fn a_chance_is_the_share_of_those_that_took_longer() {
        let mut rng = Rng::new(1, "room");
        let mut room = Room::default();
        let forecast = ms(10);
        (0..FIRST_READS).for_each(|_| room.note(Time::ZERO, forecast, ms(1000)));
        let took: Vec<Span> = (0..1000).map(|_| ms(6) + Span::from_micros(rng.below(10_000))).collect();
        took.iter().for_each(|t| room.note(Time::ZERO, forecast, *t));
        for within in 5..18 {
            let share = took.iter().filter(|t| **t > ms(within)).count() as f64 / took.len() as f64;
            let chance = room.chance_ppm(forecast, ms(within)) as f64 / CERTAIN as f64;
            assert!((share - chance).abs() < 0.03, "within {within} ms: {share} and {chance}");
        }
        let p90 = room.within(forecast, 100_000).as_millis_f64();
        assert!((14.5..16.0).contains(&p90), "{p90}");
        let [half, nine, most] = room.views()[0].ratios;
        assert!((1.0..1.2).contains(&half) && (1.45..1.6).contains(&nine) && most < 1.7, "{half} {nine} {most}");
    }

    #[test]
    fn the_prior_falls_with_a_power_of_the_ratio() {
        let of = |percent: u64| prior_ppm(place(percent * 10, 1000));
        for octave in 0..4 {
            let want = (CERTAIN / 2) >> (PRIOR_POWER * octave);
            assert_eq!(of(100 << octave), want);
        }
        for percent in 1..2_000 {
            assert!(of(percent) >= of(percent + 1) && of(percent) <= CERTAIN, "{percent}");
        }
        assert_eq!((of(25), of(0), prior_ppm(place(u64::MAX, 1))), (CERTAIN, CERTAIN, 0));
    }

    #[test]
    fn a_guess_needs_ample_time_and_old_errors_fade() {
        let mut room = Room::default();
        assert_eq!(room.chance_ppm(ms(10), ms(1)), CERTAIN);
        assert!((450_000..550_000).contains(&room.chance_ppm(ms(10), ms(10))));
        assert!(room.chance_ppm(ms(10), ms(30)) < 10_000);
        (0..FIRST_READS).for_each(|_| room.note(Time::ZERO, ms(10), ms(100)));
        assert!(room.chance_ppm(ms(10), ms(30)) < 10_000, "the first reads teach the predictor only");
        room.note(Time::ZERO, ms(10), ms(100));
        assert!(room.chance_ppm(ms(10), ms(20)) < 150_000);
        (0..200).for_each(|_| room.note(Time::ZERO, ms(10), ms(100)));
        assert!(room.chance_ppm(ms(10), ms(20)) > 900_000);
        let mut now = Time::ZERO;
        for _ in 0..20 {
            now += HALF_LIFE + ms(1);
            room.note(now, ms(10), ms(10));
        }
        assert!(room.chance_ppm(ms(10), ms(20)) < 30_000);
        let within = room.within(ms(10), 10_000);
        assert!(room.chance_ppm(ms(10), within) <= 10_000, "{within} is long enough");
    }

    /// Reads whose chances are known: the share of misses settles where it was asked for.
    #[test]
    fn tolerance_settles_at_the_share_that_may_be_missed() {
        for (permyriad, seed) in [(50, 1), (100, 2), (500, 3)] {
            let mut rng = Rng::new(seed, "tolerance");
            let mut t = Tolerance::new(permyriad);
            let (mut accepted, mut missed) = (0u64, 0u64);
            for _ in 0..1_000_000 {
                let chance = rng.below(CERTAIN / 10);
                if chance <= t.chance_ppm() {
                    let late = rng.below(CERTAIN) < chance;
                    t.ended(late);
                    accepted += 1;
                    missed += u64::from(late);
                }
            }
            let share = 10_000.0 * missed as f64 / accepted as f64;
            assert!((share / f64::from(permyriad) - 1.0).abs() < 0.15, "{share} of {permyriad}");
        }
    }
}
