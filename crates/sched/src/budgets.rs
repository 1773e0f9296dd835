//! Promises over many requests: "p99 within d" as a sliding budget of slow requests (MittOS §7.2).
//!
//! A deadline by itself refuses every read that would miss it. A tenant with a percentile may have some slow reads, and prefers
//! them served to refused. As long as its budget lasts, a read that would be late is accepted after all.

/// Number of parts of a window; the oldest part expires as a whole.
const PARTS: usize = 16;

/// Number of a tenant's last reads that may be slow.
#[derive(Clone, Debug)]
pub struct SlowBudget {
    slow_permyriad: u64,
    part_len: u64,
    /// Reads and slow reads of each part.
    parts: [(u64, u64); PARTS],
    at: usize,
}

impl SlowBudget {
    /// `percentile_bp` hundredths of a percent (9900 is p99) of each `window` reads must be in time.
    ///
    /// # Panics
    /// If the percentile isn't within 1..=9999 or the window is zero.
    pub fn new(percentile_bp: u16, window: u64) -> SlowBudget {
        assert!((1..=9999).contains(&percentile_bp) && window > 0, "a share of some reads");
        let slow_permyriad = 10_000 - u64::from(percentile_bp);
        SlowBudget { slow_permyriad, part_len: window.div_ceil(PARTS as u64), parts: [(0, 0); PARTS], at: 0 }
    }

    /// Hundredths of a percent of the reads that may be slow.
    pub fn slow_permyriad(&self) -> u64 {
        self.slow_permyriad
    }

    pub(crate) fn promises_as(&self, other: &SlowBudget) -> bool {
        (self.slow_permyriad, self.part_len) == (other.slow_permyriad, other.part_len)
    }

    /// A read ended.
    pub fn ended(&mut self, slow: bool) {
        if self.parts[self.at].0 == self.part_len {
            self.at = (self.at + 1) % PARTS;
            self.parts[self.at] = (0, 0);
        }
        self.parts[self.at].0 += 1;
        self.parts[self.at].1 += u64::from(slow);
    }

    /// Reads in the window, and those of them that were slow.
    pub fn spent(&self) -> (u64, u64) {
        self.parts.iter().fold((0, 0), |a, p| (a.0 + p.0, a.1 + p.1))
    }

    /// Returns whether one more may be slow, with `accepted` already accepted as slow.
    pub fn allows(&self, accepted: u64) -> bool {
        let (reads, slow) = self.spent();
        (slow + accepted + 1) * 10_000 <= (reads + 1) * self.slow_permyriad
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_slides() {
        let mut b = SlowBudget::new(9000, 160);
        assert!(!b.allows(0), "nothing was in time yet");
        (0..160).for_each(|_| b.ended(false));
        assert!(b.allows(0) && b.allows(14) && !b.allows(16), "a tenth of 160");
        (0..16).for_each(|_| b.ended(true));
        assert!(!b.allows(0));
        (0..160).for_each(|_| b.ended(false));
        assert!(b.allows(0), "the slow ones have slid out");
    }
}
