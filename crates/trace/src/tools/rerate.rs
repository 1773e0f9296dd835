//! The same requests at another pace.

use crate::error::TraceError;
use crate::record::{Tables, TraceRecord};
use crate::stream::RecordStream;
use plimsoll_base::{Span, Time};

/// Factor of speed, as a fraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speed {
    num: u64,
    den: u64,
}

impl Speed {
    /// As recorded.
    pub const RECORDED: Speed = Speed { num: 1, den: 1 };

    /// `num / den` times as fast: 128/1 is MittOS §7.6's 128-fold, 1/2 is half speed. `None` if either is zero.
    pub const fn new(num: u64, den: u64) -> Option<Speed> {
        if num == 0 || den == 0 { None } else { Some(Speed { num, den }) }
    }

    /// From text: `2`, `0.5`, `1/8`; `None` for anything else, zero included.
    pub fn parse(text: &str) -> Option<Speed> {
        if let Some((num, den)) = text.split_once('/') {
            return Speed::new(num.trim().parse().ok()?, den.trim().parse().ok()?);
        }
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        if fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let den = 10u64.pow(fraction.len() as u32);
        let parts = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
        Speed::new(whole.parse::<u64>().ok()?.checked_mul(den)?.checked_add(parts)?, den)
    }

    /// The speed at which `requests` that took `duration` come at `iops` requests per second on average. `None` where
    /// that is undefined: no duration, no requests or no rate.
    pub fn to_rate(requests: u64, duration: Span, iops: u64) -> Option<Speed> {
        // New duration = requests / iops seconds.
        let num = u128::from(duration.as_nanos()) * u128::from(iops);
        let mut den = u128::from(requests) * 1_000_000_000;
        let mut num = num;
        // Both fit in 64 bits after dropping low bits they don't need.
        while num > u128::from(u64::MAX) || den > u128::from(u64::MAX) {
            num >>= 1;
            den >>= 1;
        }
        Speed::new(num as u64, den as u64)
    }

    /// As a number, for printing.
    pub fn factor(self) -> f64 {
        self.num as f64 / self.den as f64
    }

    /// A time of the original, at this speed.
    pub fn apply(self, at: Time) -> Time {
        Time::ZERO + at.since(Time::ZERO).scale(self.den, self.num)
    }
}

/// A stream at another speed, with idle gaps cut short first if asked to.
pub struct Rerate<S> {
    stream: S,
    speed: Speed,
    gap_max: Span,
    last: Time,
    removed: Span,
}

impl<S: RecordStream> Rerate<S> {
    /// `stream` at `speed`; of a gap between two arrivals longer than `gap_max` (in the original's time), the excess
    /// is left out. [`Span::MAX`] leaves gaps alone.
    pub fn new(stream: S, speed: Speed, gap_max: Span) -> Rerate<S> {
        Rerate { stream, speed, gap_max, last: Time::ZERO, removed: Span::ZERO }
    }

    /// Idle time left out so far, in the original's time.
    pub fn removed(&self) -> Span {
        self.removed
    }
}

impl<S: RecordStream> RecordStream for Rerate<S> {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        let mut r = match self.stream.next_record()? {
            Ok(r) => r,
            Err(e) => return Some(Err(e)),
        };
        let gap = r.arrived_at.since(self.last);
        self.last = r.arrived_at;
        self.removed += gap.saturating_sub(self.gap_max);
        r.arrived_at = self.speed.apply(r.arrived_at - self.removed);
        Some(Ok(r))
    }

    fn tables(&self) -> &Tables {
        self.stream.tables()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Op;
    use crate::stream::Held;

    fn times(ms: &[u64], speed: Speed, gap_max: Span) -> Vec<u64> {
        let records =
            ms.iter().map(|&t| TraceRecord::new(Time::ZERO + Span::from_millis(t), 0, Op::Read, 0, 1)).collect();
        let mut s = Rerate::new(Held::new(records, Tables::new()), speed, gap_max);
        s.records().map(|r| r.unwrap().arrived_at.as_nanos() / 1_000_000).collect()
    }

    #[test]
    fn gaps_are_capped_before_the_speed_changes() {
        let half = Speed::new(1, 2).unwrap();
        assert_eq!(times(&[0, 10, 1_000, 1_010], half, Span::from_millis(100)), [0, 20, 220, 240]);
        assert_eq!(times(&[0, 10, 1_000], Speed::new(10, 1).unwrap(), Span::MAX), [0, 1, 100]);
    }

    #[test]
    fn speeds_are_read_from_text() {
        let ten = Time::ZERO + Span::from_secs(10);
        for (text, secs) in [("2", 5), ("0.5", 20), ("1/8", 80), ("1.25", 8)] {
            assert_eq!(Speed::parse(text).unwrap().apply(ten), Time::ZERO + Span::from_secs(secs), "{text}");
        }
        for text in ["", "0", "0.0", "-1", "1/0", "x", "1.x", "1e3", "+2.5.1"] {
            assert!(Speed::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_target_rate_gives_that_rate() {
        let speed = Speed::to_rate(1_000, Span::from_secs(500), 20).unwrap();
        assert_eq!(speed.apply(Time::ZERO + Span::from_secs(500)), Time::ZERO + Span::from_secs(50));
        let week = Speed::to_rate(u64::MAX >> 20, Span::from_secs(604_800), 1 << 40).unwrap();
        let secs = week.apply(Time::ZERO + Span::from_secs(604_800)).as_secs_f64();
        assert!((secs - 16.0).abs() < 1e-3, "{secs}");
        assert_eq!(Speed::to_rate(0, Span::from_secs(1), 5), None);
        assert_eq!(Speed::to_rate(5, Span::ZERO, 5), None);
    }
}
