//! The clairvoyant oracle of replica choice, and how much of what it could gain a policy gains.
//!
//! An oracle knows what every replica would have answered. As gets, noise, devices and hops are the same in all runs of a seed,
//! runs can find that out. The first choices are: all gets at their first replica, at their second, and so on; by turns; and
//! each where it was answered soonest in those runs, which is good where gets are few. The best of them is improved in rounds.
//! A quarter of the gets, drawn anew each round, is tried elsewhere. Those that gained stay there, if the whole gained, too.
//! The result is a run that did happen, of a policy that sends each get once. It is no proof that no other choice is better.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_client::{Course, Orders, ReplicaPolicy};
use std::sync::Arc;

/// Sends each get to one replica, named beforehand, without a deadline.
#[derive(Clone, Debug)]
pub struct Foretold {
    /// By the get's number, an index into its replicas.
    choice: Arc<[u16]>,
}

impl ReplicaPolicy for Foretold {
    fn begin(&mut self, _: Time, course: &Course, out: &mut Orders) {
        let get = course.get();
        out.send(get.replicas[usize::from(self.choice[get.number as usize])], None);
    }
    fn refused(&mut self, _: Time, _: &Course, _: u32, _: &mut Orders) {}
}

/// Result of the oracle's run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Clairvoyant {
    /// By the get's number, its response; `None`: it failed.
    pub response: Vec<Option<Span>>,
    /// By the get's number, the replica that it was sent to.
    pub choice: Vec<u16>,
}

/// A failed get counts as slower than any.
fn nanos(response: Option<Span>) -> u64 {
    response.map_or(u64::MAX, Span::as_nanos)
}

/// Divisor of the gets that are moved together: with more at once they get into each other's way.
const PARTS: u64 = 4;

impl Clairvoyant {
    /// The oracle's run, found by `replicas` + 2 runs and `rounds` times two more; after 32 rounds little is left to be
    /// found. `run` plays all gets, each of which has `replicas` replicas, with this policy at every client,
    /// and gives the response of each by its number: under the same seed whatever is chosen.
    ///
    /// # Panics
    /// If there is no replica, or `run` doesn't give `gets` responses.
    pub fn of(
        gets: usize,
        replicas: u16,
        rounds: u32,
        mut run: impl FnMut(Foretold) -> Vec<Option<Span>>,
    ) -> Clairvoyant {
        let mut play = |choice: Vec<u16>| {
            let response = run(Foretold { choice: choice.as_slice().into() });
            assert_eq!(response.len(), gets, "one response for each get");
            Clairvoyant { response, choice }
        };
        let fixed: Vec<Clairvoyant> = (0..replicas).map(|r| play(vec![r; gets])).collect();
        let soonest = |g: usize| (0..replicas).min_by_key(|&r| nanos(fixed[usize::from(r)].response[g]));
        let soonest = (0..gets).map(|g| soonest(g).expect("there is a replica")).collect();
        let by_turns = (0..gets).map(|g| (g % usize::from(replicas)) as u16).collect();
        let others = [play(soonest), play(by_turns)];
        let mut best = fixed.into_iter().chain(others).min_by_key(Clairvoyant::sum).expect("there is a replica");
        for round in 0..if replicas > 1 { u64::from(rounds) } else { 0 } {
            let drawn = |g: usize| Rng::new((round << 32) | g as u64, "moved").below(PARTS) == 0;
            let parts: Vec<bool> = (0..gets).map(drawn).collect();
            let part = |g: usize| parts[g];
            let step = 1 + (round % u64::from(replicas - 1)) as u16;
            let moved = |g: usize| (best.choice[g] + step) % replicas;
            let tried = play((0..gets).map(|g| if part(g) { moved(g) } else { best.choice[g] }).collect());
            let gained = |g: usize| part(g) && nanos(tried.response[g]) < nanos(best.response[g]);
            let kept = play((0..gets).map(|g| if gained(g) { moved(g) } else { best.choice[g] }).collect());
            best = [tried, kept].into_iter().fold(best, |b, c| if c.sum() < b.sum() { c } else { b });
        }
        best
    }

    fn sum(&self) -> u128 {
        self.response.iter().map(|&r| u128::from(nanos(r))).sum()
    }
}

/// Returns the part of the oracle's gain over `base` that `ours` gains: 1 is all, 0 none, less than 0 a loss. All three are the
/// same figure of runs under one seed, smaller is better; `None` where the oracle gains nothing.
pub fn gap_closed(base: f64, ours: f64, oracle: f64) -> Option<f64> {
    (base > oracle).then(|| (base - ours) / (base - oracle))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two servers that serve one get after the other, of which one comes every 3 ms: get `g` takes `g % 7 + 1` ms at the first
    /// and 4 ms at the second.
    fn serve(policy: Foretold) -> Vec<Option<Span>> {
        let mut free = [0u64; 2];
        (0..60u64)
            .map(|g| {
                let (r, arrived) = (usize::from(policy.choice[g as usize]), 3 * g);
                free[r] = free[r].max(arrived) + if r == 0 { g % 7 + 1 } else { 4 };
                Some(Span::from_millis(free[r] - arrived))
            })
            .collect()
    }

    #[test]
    fn it_is_better_than_any_rule_and_repeats() {
        let oracle = Clairvoyant::of(60, 2, 32, serve);
        let of = |choice: Vec<u16>| {
            Clairvoyant { response: serve(Foretold { choice: choice.as_slice().into() }), choice }.sum()
        };
        let rules = [
            of(vec![0; 60]),
            of(vec![1; 60]),
            of((0..60).map(|g| g % 2).collect()),
            // Each to where it's served faster.
            of((0..60).map(|g| u16::from(g % 7 > 3)).collect()),
        ];
        let [knowing, guessing @ ..] = [rules[3], rules[0], rules[1], rules[2]];
        assert!(oracle.sum() <= knowing && guessing.iter().all(|&r| oracle.sum() < r), "{} {rules:?}", oracle.sum());
        assert!(oracle.sum() < Clairvoyant::of(60, 2, 0, serve).sum(), "moving gets gains something");
        assert_eq!(oracle.response, serve(Foretold { choice: oracle.choice.as_slice().into() }), "it is a run");
        assert_eq!(oracle, Clairvoyant::of(60, 2, 32, serve));
    }

    #[test]
    fn the_gap_closed_is_a_share_of_the_oracles_gain() {
        assert_eq!(gap_closed(10.0, 5.0, 4.0), Some(5.0 / 6.0));
        assert_eq!(gap_closed(10.0, 12.0, 5.0), Some(-0.4));
        assert_eq!(gap_closed(4.0, 4.0, 4.0), None);
    }
}
