//! Latency that a node reports when a client probes it (Prequal, NSDI 2024, §4).

use crate::Span;

/// Responses kept for each number of requests in flight.
const KEPT: usize = 16;
/// Beyond this many in flight all are alike.
const LEVELS: usize = 64;

/// Recent response times, grouped by the number of requests in flight at arrival.
#[derive(Clone, Debug)]
pub struct LatencyByLoad {
    /// By number in flight: the last ones, and how many there were in all.
    levels: Vec<(Vec<Span>, usize)>,
}

impl Default for LatencyByLoad {
    fn default() -> LatencyByLoad {
        LatencyByLoad { levels: vec![(Vec::new(), 0); LEVELS] }
    }
}

impl LatencyByLoad {
    /// A request that came when `in_flight` others were there took so long.
    pub fn saw(&mut self, in_flight: u32, took: Span) {
        let (kept, seen) = &mut self.levels[(in_flight as usize).min(LEVELS - 1)];
        if kept.len() < KEPT {
            kept.push(took);
        } else {
            kept[*seen % KEPT] = took;
        }
        *seen += 1;
    }

    /// Returns the median response time at `in_flight` requests, from the nearest number with samples. Of two numbers equally
    /// near it takes the larger. Zero without any sample.
    pub fn estimate(&self, in_flight: u32) -> Span {
        let at = (in_flight as usize).min(LEVELS - 1);
        let known = |l: &(usize, &(Vec<Span>, usize))| !l.1.0.is_empty();
        let nearest = self.levels.iter().enumerate().filter(known).min_by_key(|(i, _)| (i.abs_diff(at), LEVELS - i));
        let mut sorted = nearest.map_or(Vec::new(), |(_, (kept, _))| kept.clone());
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(Span::ZERO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_nearest_load() {
        let ms = Span::from_millis;
        let mut l = LatencyByLoad::default();
        assert_eq!(l.estimate(3), Span::ZERO);
        [5, 7, 6].into_iter().for_each(|t| l.saw(1, ms(t)));
        [50, 70, 60].into_iter().for_each(|t| l.saw(5, ms(t)));
        assert_eq!([0, 1, 2, 3, 9, 1000].map(|n| l.estimate(n)), [ms(6), ms(6), ms(6), ms(60), ms(60), ms(60)]);
        (0..16).for_each(|_| l.saw(1, ms(9)));
        assert_eq!(l.estimate(1), ms(9), "old ones are forgotten");
    }
}
