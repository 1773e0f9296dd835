//! A volume's limits, as this layer gets them.

use plimsoll_stack::Message;
use serde::{Deserialize, Serialize};

/// Limits of one volume; `None`: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThrottleTerms {
    /// Reads, writes, trims and zeroings per second.
    pub requests: Option<Limit>,
    /// Bytes read and written per second.
    pub bytes: Option<Limit>,
}

impl Message for ThrottleTerms {
    const LAYER: &'static str = "throttle";
}

/// A rate with a burst.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Units per second, 1 to 10^12.
    pub per_s: u64,
    /// Units that may go on at once after an idle time, up to an hour's.
    pub burst: u64,
}

/// A tebibyte per second: more is a slip.
const PER_S_MAX: u64 = 1_000_000_000_000;
/// Bursts of more seconds than this are no limit.
const BURST_S_MAX: u64 = 3600;

impl Limit {
    /// A limit with a burst of a tenth of a second, QEMU's default.
    pub fn per_second(per_s: u64) -> Limit {
        Limit { per_s, burst: per_s / 10 }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// The value that is out of range.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=PER_S_MAX).contains(&self.per_s) {
            return Err(format!("{} per second is not between 1 and {PER_S_MAX}", self.per_s));
        }
        if self.burst / self.per_s >= BURST_S_MAX {
            return Err(format!("a burst of {} is more than an hour of {} per second", self.burst, self.per_s));
        }
        Ok(())
    }
}

impl ThrottleTerms {
    /// Checks both limits.
    ///
    /// # Errors
    /// The limit that is out of range, and the reason.
    pub fn check(&self) -> Result<(), String> {
        let named = |name: &'static str, limit: Option<Limit>| {
            limit.map_or(Ok(()), |l| l.check().map_err(|what| format!("{name}: {what}")))
        };
        named("requests", self.requests)?;
        named("bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_out_of_range_are_refused_with_the_reason() {
        let of = |per_s, burst| ThrottleTerms { requests: None, bytes: Some(Limit { per_s, burst }) }.check();
        assert_eq!(of(1, 0), Ok(()));
        assert_eq!(of(1000, 3_599_999), Ok(()));
        assert!(of(0, 0).unwrap_err().contains("bytes: 0 per second"));
        assert!(of(PER_S_MAX + 1, 0).unwrap_err().contains("not between"));
        assert!(of(1000, 3_600_000).unwrap_err().contains("an hour"));
        assert_eq!(Limit::per_second(1000), Limit { per_s: 1000, burst: 100 });
    }
}
