//! Unfairness and latency variability of a window (AP-M5, AP-M6), in integers.

#[cfg(doc)]
use crate::gate::User;

/// Activity of one user in a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UserWindow {
    /// Transactions that ended.
    pub finished: u64,
    /// φ in thousandths.
    pub weight_milli: u64,
    /// Sum of their times in µs.
    pub total_us: u64,
    /// Sum of the squares in µs².
    pub total_us2: u64,
    /// It had somebody waiting for most of the window: only such users can be treated unfairly.
    pub backlogged: bool,
}

/// A user's figures at one moment: what windows are made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// Entries are given to others: of which user these are.
    pub generation: u32,
    /// φ in thousandths.
    pub weight_milli: u32,
    /// See [`User::finished`].
    pub finished: u64,
    /// See [`User::total_us`].
    pub total_us: u64,
    /// See [`User::total_us2`].
    pub total_us2: u64,
    /// Nanoseconds with somebody waiting, up to that moment.
    pub backlogged_ns: u64,
}

impl Seen {
    /// The same user's entry among those of some time ago; itself if it wasn't there.
    pub fn earlier<'a>(&'a self, all: &'a [Seen], at: usize) -> &'a Seen {
        all.get(at).filter(|s| s.generation == self.generation).unwrap_or(self)
    }
}

impl UserWindow {
    /// Returns the difference of `now` and `before`; the user is backlogged if it waited for half of `window_ns` at least.
    pub fn between(before: &Seen, now: &Seen, window_ns: u64) -> UserWindow {
        UserWindow {
            finished: now.finished.wrapping_sub(before.finished),
            weight_milli: u64::from(now.weight_milli),
            total_us: now.total_us.wrapping_sub(before.total_us),
            total_us2: now.total_us2.wrapping_sub(before.total_us2),
            backlogged: now.backlogged_ns.saturating_sub(before.backlogged_ns) * 2 >= window_ns,
        }
    }
}

/// U_f in thousandths: the largest deviation of a backlogged user's weighted share from their mean. `None` for fewer than two of them.
pub fn unfairness_milli(users: &[UserWindow]) -> Option<u64> {
    let shares: Vec<u64> =
        users.iter().filter(|u| u.backlogged).map(|u| u.finished * 1_000_000 / u.weight_milli.max(1)).collect();
    let mean = shares.iter().sum::<u64>() / shares.len().max(1) as u64;
    if shares.len() < 2 || mean == 0 {
        return None;
    }
    shares.iter().map(|s| s.abs_diff(mean) * 1000 / mean).max()
}

/// V_l in thousandths: the coefficient of variation of latency, averaged over users that finished two transactions at least.
pub fn variability_milli(users: &[UserWindow]) -> Option<u64> {
    let cv = |u: &UserWindow| {
        let (n, sum, squares) = (u128::from(u.finished), u128::from(u.total_us), u128::from(u.total_us2));
        let variance = (squares * n).saturating_sub(sum * sum);
        (n >= 2 && sum > 0).then(|| (variance.isqrt() * 1000 / sum) as u64)
    };
    let all: Vec<u64> = users.iter().filter_map(cv).collect();
    (!all.is_empty()).then(|| all.iter().sum::<u64>() / all.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(finished: u64, weight: u64, backlogged: bool) -> UserWindow {
        UserWindow { finished, weight_milli: weight * 1000, backlogged, ..UserWindow::default() }
    }

    #[test]
    fn unfairness_is_the_largest_deviation_of_who_waited() {
        assert_eq!(unfairness_milli(&[user(90, 1, true), user(110, 1, true)]), Some(100));
        assert_eq!(unfairness_milli(&[user(100, 1, true), user(300, 3, true), user(5, 1, false)]), Some(0));
        assert_eq!(unfairness_milli(&[user(100, 1, true), user(5, 1, false)]), None);
    }

    #[test]
    fn variability_is_the_mean_cv() {
        let of = |times: &[u64]| UserWindow {
            finished: times.len() as u64,
            total_us: times.iter().sum(),
            total_us2: times.iter().map(|t| t * t).sum(),
            ..UserWindow::default()
        };
        // Deviation 10 around 20 in both.
        assert_eq!(variability_milli(&[of(&[10, 30]), of(&[20, 20])]), Some(250));
        assert_eq!(variability_milli(&[of(&[10])]), None);
    }
}
