//! Instants and spans, in integer nanoseconds.
//!
//! Policies never read a clock: every instant they see was handed to them. An instant counts from the
//! engine's own start (the live engine's monotonic clock, the simulator's virtual time zero), so two
//! engines' instants must not be mixed.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};
use std::time::Duration;

/// A point in time: nanoseconds since the engine started. Monotone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

/// A length of time in nanoseconds, never negative.
///
/// `std::time::Duration` splits seconds from nanoseconds; a single integer is half the size and is what the
/// hot paths and the event queue compare.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Time {
    /// The engine's start.
    pub const ZERO: Time = Time(0);
    /// Later than anything that happens: "no deadline", "no wake-up wanted".
    pub const NEVER: Time = Time(u64::MAX);

    /// The instant `ns` nanoseconds after the start.
    pub const fn from_nanos(ns: u64) -> Time {
        Time(ns)
    }

    /// Nanoseconds since the start.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds since the start, for printing only: decisions use integers.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    pub const fn since(self, earlier: Time) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }

    /// True unless this is [`Time::NEVER`].
    pub const fn is_set(self) -> bool {
        self.0 != u64::MAX
    }
}

impl Span {
    /// No time at all.
    pub const ZERO: Span = Span(0);
    /// Longer than anything: the wait of what will never be served.
    pub const MAX: Span = Span(u64::MAX);

    /// A span of `ns` nanoseconds.
    pub const fn from_nanos(ns: u64) -> Span {
        Span(ns)
    }
    /// A span of `us` microseconds.
    pub const fn from_micros(us: u64) -> Span {
        Span(us * 1_000)
    }
    /// A span of `ms` milliseconds.
    pub const fn from_millis(ms: u64) -> Span {
        Span(ms * 1_000_000)
    }
    /// A span of `s` seconds.
    pub const fn from_secs(s: u64) -> Span {
        Span(s * 1_000_000_000)
    }
    /// A span of `ms` milliseconds with a fraction, rounded to the nearest nanosecond; negative or NaN gives zero.
    pub fn from_millis_f64(ms: f64) -> Span {
        Span((ms * 1e6).round().max(0.0) as u64)
    }
    /// A span of `s` seconds with a fraction, rounded to the nearest nanosecond; negative or NaN gives zero.
    pub fn from_secs_f64(s: f64) -> Span {
        Span((s * 1e9).round().max(0.0) as u64)
    }
    /// Whole nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// Whole microseconds, rounded down.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }
    /// Milliseconds, for printing only.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// Seconds, for printing only.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
    /// This minus `other`, zero if `other` is longer.
    pub const fn saturating_sub(self, other: Span) -> Span {
        Span(self.0.saturating_sub(other.0))
    }
    /// `self * num / den` in 128-bit arithmetic, rounded down; saturates at [`Span::MAX`].
    ///
    /// # Panics
    /// If `den` is zero.
    pub const fn scale(self, num: u64, den: u64) -> Span {
        assert!(den != 0, "Span::scale: denominator is zero");
        let v = self.0 as u128 * num as u128 / den as u128;
        Span(if v > u64::MAX as u128 { u64::MAX } else { v as u64 })
    }
}

impl Add<Span> for Time {
    type Output = Time;
    fn add(self, s: Span) -> Time {
        Time(self.0.saturating_add(s.0))
    }
}
impl AddAssign<Span> for Time {
    fn add_assign(&mut self, s: Span) {
        *self = *self + s;
    }
}
impl Sub<Span> for Time {
    type Output = Time;
    fn sub(self, s: Span) -> Time {
        Time(self.0.saturating_sub(s.0))
    }
}
impl Add for Span {
    type Output = Span;
    fn add(self, s: Span) -> Span {
        Span(self.0.saturating_add(s.0))
    }
}
impl AddAssign for Span {
    fn add_assign(&mut self, s: Span) {
        *self = *self + s;
    }
}
impl Sub for Span {
    type Output = Span;
    /// # Panics
    /// If `s` is longer: a negative span is a mistake of ours (use [`Span::saturating_sub`] where it isn't).
    fn sub(self, s: Span) -> Span {
        Span(self.0.checked_sub(s.0).expect("negative span"))
    }
}
impl SubAssign for Span {
    fn sub_assign(&mut self, s: Span) {
        *self = *self - s;
    }
}
impl Mul<u64> for Span {
    type Output = Span;
    fn mul(self, n: u64) -> Span {
        Span(self.0.saturating_mul(n))
    }
}
impl Div<u64> for Span {
    type Output = Span;
    fn div(self, n: u64) -> Span {
        Span(self.0 / n)
    }
}
impl std::iter::Sum for Span {
    fn sum<I: Iterator<Item = Span>>(iter: I) -> Span {
        iter.fold(Span::ZERO, |a, b| a + b)
    }
}

impl From<Duration> for Span {
    /// Saturates at [`Span::MAX`] (584 years).
    fn from(d: Duration) -> Span {
        Span(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}
impl From<Span> for Duration {
    fn from(s: Span) -> Duration {
        Duration::from_nanos(s.0)
    }
}

impl fmt::Display for Span {
    /// Three significant digits with a unit: `412ns`, `6.10ms`, `1.50s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0 as f64;
        let (v, unit) = match self.0 {
            u64::MAX => return f.write_str("forever"),
            0..1_000 => return write!(f, "{}ns", self.0),
            1_000..1_000_000 => (ns / 1e3, "us"),
            1_000_000..1_000_000_000 => (ns / 1e6, "ms"),
            _ => (ns / 1e9, "s"),
        };
        let digits = if v < 10.0 {
            2
        } else if v < 100.0 {
            1
        } else {
            0
        };
        write!(f, "{v:.digits$}{unit}")
    }
}
impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_set() { write!(f, "t+{}", Span(self.0)) } else { f.write_str("never") }
    }
}

/// Reason why a text is not a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSpan(String);

impl fmt::Display for BadSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a time: write a number and a unit, such as 20ms, 1.5s or 300us", self.0)
    }
}
impl std::error::Error for BadSpan {}

impl std::str::FromStr for Span {
    type Err = BadSpan;
    /// `20ms`, `1.5s`, `300us`, `15m`, `12h`, `0`; a bare non-zero number is refused, as its unit would be a guess.
    fn from_str(text: &str) -> Result<Span, BadSpan> {
        let bad = || BadSpan(text.to_string());
        let t = text.trim();
        if t == "0" {
            return Ok(Span::ZERO);
        }
        let split = t.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?;
        let value: f64 = t[..split].trim().parse().map_err(|_| bad())?;
        let unit_ns = match &t[split..] {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            _ => return Err(bad()),
        };
        let ns = value * unit_ns;
        // The largest span we take is 2^63 ns (292 years); beyond it is surely a slip, as is anything negative.
        if !(0.0..9.2e18).contains(&ns) {
            return Err(bad());
        }
        Ok(Span(ns.round() as u64))
    }
}

impl Serialize for Span {
    /// A text without loss: `20ms`, `1500us`, `forever`.
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
        let (unit_ns, unit) = units.into_iter().find(|(ns, _)| self.0.is_multiple_of(*ns)).expect("the last fits all");
        match *self {
            Span::MAX => s.serialize_str("forever"),
            _ => s.collect_str(&format_args!("{}{unit}", self.0 / unit_ns)),
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Span, D::Error> {
        let text = String::deserialize(d)?;
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let unit_ns = match &text[split..] {
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" => 1_000,
            "ns" => 1,
            "forever" if split == 0 => return Ok(Span::MAX),
            _ => return text.parse().map_err(de::Error::custom),
        };
        // Whole numbers exactly: a float has 53 bits.
        let ns = text[..split].parse::<u64>().ok().and_then(|n| n.checked_mul(unit_ns));
        ns.map(Span).ok_or_else(|| de::Error::custom(BadSpan(text)))
    }
}

impl Serialize for Time {
    /// As the span since the engine's start.
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        Span(self.0).serialize(s)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Time, D::Error> {
        Span::deserialize(d).map(|s| Time(s.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_print_and_parse() {
        for (text, ns) in [
            ("20ms", 20_000_000),
            ("1.5s", 1_500_000_000),
            ("300us", 300_000),
            ("7ns", 7),
            ("0", 0),
            ("2h", 7_200_000_000_000),
        ] {
            assert_eq!(text.parse::<Span>(), Ok(Span::from_nanos(ns)));
        }
        for text in ["", "20", "ms", "-1ms", "1e30s", "5 parsec", "NaNms"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
        assert_eq!(Span::from_micros(6100).to_string(), "6.10ms");
        assert_eq!(Span::MAX.to_string(), "forever");
    }

    #[test]
    fn spans_are_kept_as_texts_without_loss() {
        use serde::de::IntoDeserializer;
        use serde::de::value::{Error, StrDeserializer};
        let read = |text: &'static str| {
            let d: StrDeserializer<'_, Error> = text.into_deserializer();
            Span::deserialize(d)
        };
        for (text, ns) in [("20ms", 20_000_000), ("9007199254740993ns", (1 << 53) + 1), ("1.5s", 1_500_000_000)] {
            assert_eq!(read(text), Ok(Span(ns)), "{text}");
        }
        assert_eq!(read("forever"), Ok(Span::MAX));
        for text in ["20", "99999999999999s", "", "s"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Time::NEVER + Span::from_secs(1), Time::NEVER);
        assert_eq!(Time::ZERO.since(Time::from_nanos(5)), Span::ZERO);
        assert_eq!(Span::MAX.scale(3, 2), Span::MAX);
        assert_eq!(Span::from_millis(10).scale(3, 2), Span::from_millis(15));
    }

    #[test]
    #[should_panic(expected = "negative span")]
    fn a_negative_span_is_our_mistake() {
        let _ = Span::from_nanos(1) - Span::from_nanos(2);
    }
}
