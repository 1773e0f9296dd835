//! Deadlines that set themselves: a promise that the engine makes for a tenant that named none.
//!
//! MittOS §8.1 leaves open how a deadline is found, between too many refusals and too few.

use plimsoll_base::Span;

/// A deadline that sets itself: a share of reads that may be refused is aimed at.
///
/// It follows the quantile of what reads take that leaves that share beyond it: up by a large step when one took longer
/// (or was refused), down by a small one when not, the two in the proportion of the shares. So it settles where the share is
/// met, and follows drift; a refusal counts as a read beyond it, so refusing more makes it looser, never tighter.
#[derive(Clone, Debug)]
pub struct AutoDeadline {
    deadline_ns: u64,
    refuse_permille: u64,
    bounds_ns: (u64, u64),
}

/// Bounds of a deadline that sets itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AutoTerms {
    /// Thousandths of reads that may be refused, 1..=500.
    pub refuse_permille: u64,
    /// Shortest deadline.
    pub least: Span,
    /// It's never longer, and this at first: nothing is refused before something was seen.
    pub most: Span,
}

impl AutoTerms {
    /// A deadline that is `deadline` now, or the nearest within these terms. One that nothing has taught begins with the longest.
    ///
    /// # Panics
    /// As [`AutoDeadline::new`].
    pub fn go_on_from(&self, deadline: Span) -> AutoDeadline {
        AutoDeadline::new(deadline, self.refuse_permille, self.least, self.most)
    }
}

impl AutoDeadline {
    /// Starts at `first`, aims at `refuse_permille` thousandths of reads refused, and stays within `least..=most`.
    ///
    /// # Panics
    /// If the share isn't within 1..=500, or the bounds are crossed.
    pub fn new(first: Span, refuse_permille: u64, least: Span, most: Span) -> AutoDeadline {
        assert!((1..=500).contains(&refuse_permille) && least <= most && least > Span::ZERO, "a share and a range");
        let bounds_ns = (least.as_nanos(), most.as_nanos());
        AutoDeadline { deadline_ns: first.as_nanos().clamp(bounds_ns.0, bounds_ns.1), refuse_permille, bounds_ns }
    }

    /// The deadline now.
    pub fn deadline(&self) -> Span {
        Span::from_nanos(self.deadline_ns)
    }

    /// A read took so long, or was refused.
    pub fn ended(&mut self, took: Option<Span>) {
        let step = (self.deadline_ns / 10_000).max(1);
        let beyond = took.is_none_or(|t| t.as_nanos() > self.deadline_ns);
        let ns = if beyond {
            self.deadline_ns.saturating_add(step * (1000 - self.refuse_permille) / 10)
        } else {
            self.deadline_ns.saturating_sub(step * self.refuse_permille / 10)
        };
        self.deadline_ns = ns.clamp(self.bounds_ns.0, self.bounds_ns.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    #[test]
    fn a_deadline_finds_its_share_and_follows_drift() {
        let mut rng = Rng::new(1, "auto deadline");
        let mut a = AutoDeadline::new(Span::from_millis(1), 50, Span::from_micros(100), Span::from_secs(10));
        for scale_ms in [10.0, 30.0, 5.0] {
            let mut refused = 0;
            for i in 0..40_000 {
                let took = Span::from_millis_f64(scale_ms * rng.exp1());
                let busy = took > a.deadline();
                a.ended((!busy).then_some(took));
                refused += u32::from(busy && i >= 20_000);
            }
            let share = f64::from(refused) / 200.0;
            assert!((4.0..6.0).contains(&share), "{share} % refused at {scale_ms} ms");
            let p95 = scale_ms * 20f64.ln();
            assert!((a.deadline().as_millis_f64() / p95 - 1.0).abs() < 0.15, "{:?} for {p95} ms", a.deadline());
        }
    }
}
