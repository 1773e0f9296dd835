//! Weights for tail objectives (AP-M13, AppleS §5.3). The measured percentile of each latency-sensitive user is fed back into its weight.
//! So the user gets the share that its objective needs, and best-effort users get the rest. The law is ours: the paper names none (AP-A4).

/// Weight of best-effort users, which those of others are relative to.
pub const WEIGHT_MIN_MILLI: u32 = 1000;
/// Highest weight.
pub const WEIGHT_MAX_MILLI: u32 = 64_000;
/// Samples that a percentile of 99.9 needs before anything is concluded.
pub const SAMPLES_MIN: u64 = 1000;
/// Below this part of its objective, in thousandths, a user has more than it needs.
const SLACK_MILLI: u64 = 800;
/// Weight is taken away half as far as the slack says, and never by more than this: a missed objective costs more than a late gift.
const DOWN_MOST_MILLI: u64 = 700;
/// A step up: at most doubled, in proportion to the miss.
const UP_MAX_MILLI: u64 = 2000;

/// One user's controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pslo {
    objective_us: u64,
    weight_milli: u32,
}

impl Pslo {
    /// For an objective on p99.9, from a weight to begin with.
    pub fn new(objective_us: u64, weight_milli: u32) -> Pslo {
        Pslo { objective_us: objective_us.max(1), weight_milli: weight_milli.clamp(WEIGHT_MIN_MILLI, WEIGHT_MAX_MILLI) }
    }

    /// φ in thousandths.
    pub fn weight_milli(&self) -> u32 {
        self.weight_milli
    }

    /// Takes a window in: its p99.9 and how many transactions that rests on. The weight from now on.
    pub fn window(&mut self, p999_us: u64, samples: u64) -> u32 {
        if samples < SAMPLES_MIN {
            return self.weight_milli;
        }
        let ratio_milli = p999_us.saturating_mul(1000) / self.objective_us;
        let factor_milli = match ratio_milli {
            r if r > 1000 => r.min(UP_MAX_MILLI),
            r if r < SLACK_MILLI => ((1000 + r * 1000 / SLACK_MILLI) / 2).max(DOWN_MOST_MILLI),
            _ => 1000,
        };
        let weight = u64::from(self.weight_milli) * factor_milli / 1000;
        self.weight_milli = (weight as u32).clamp(WEIGHT_MIN_MILLI, WEIGHT_MAX_MILLI);
        self.weight_milli
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tail that is the longer the smaller the user's share is, plus noise by the step.
    #[test]
    fn it_finds_the_weight_that_an_objective_needs() {
        for need in [1500u64, 4000, 20_000] {
            let mut c = Pslo::new(60_000, WEIGHT_MIN_MILLI);
            let mut met = 0;
            for i in 0..400u64 {
                let noise = 900 + (i * 7919) % 100;
                let tail = 60_000 * need / u64::from(c.weight_milli()) * noise / 1000;
                met += u64::from(i >= 100 && tail <= 60_000);
                c.window(tail, 5000);
            }
            assert!(met >= 290, "{met} of 300 windows met");
            assert!(u64::from(c.weight_milli()) < need * 3 / 2, "no more than needed: {c:?} for {need}");
        }
    }

    #[test]
    fn few_samples_say_nothing() {
        let mut c = Pslo::new(60_000, 3000);
        assert_eq!(c.window(1_000_000, SAMPLES_MIN - 1), 3000);
    }
}
