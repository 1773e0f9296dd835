//! Choice of slots to configure (VF-M14, §4.6.3, §4.7): one for each tenant, and as short as predictability allows.
//!
//! A request that arrives at a random time finds its volume's only slot of `n` running with probability `1/n`. Otherwise it waits for
//! half of the other slots' time on average. In its slot it is served as well as if it were alone. One effect of neighbours remains:
//! the arm has to come back once a turn. The longer the slot, the more requests share that cost.
//!
//! ```text
//!  response  = held · (n-1)²·L / 2n  +  best  +  best·(n-1)/n
//!  deviation = held · miss · far / (max(1, held·L/best) · response)
//! ```
//! `L` is the length of a slot. `held` is the share of requests that wait for a slot: all but writes that end in a cache's memory.
//! `best` is the measured mean over all requests. `best·(n-1)/n` is for requests that don't fit before their slot's end. `miss` is
//! the share of requests that need the disk. `far` is the additional cost of the arm's way back. `held·L/best` is the number of
//! requests in a turn.

use crate::predict::DiskPredictor;
use plimsoll_base::Span;

/// Slot lengths that are looked at, ms: the paper's, and half and twice.
pub const LENGTHS_MS: [u64; 5] = [5, 10, 20, 40, 80];

/// Requirements on the slots.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Wanted {
    /// Tenants, each with a slot; 1 to [`crate::SLOTS_MAX`].
    pub tenants: u32,
    /// The mean response time of one alone on the device, without fences (BestPerf).
    pub best: Span,
    /// The mean response time of one among all, without fences (WorstPerf): a fence that is slower isn't accepted.
    pub worst: Span,
    /// Additional cost of a request whose predecessor was another tenant's.
    pub far: Span,
    /// The share of requests that need the disk, in thousandths.
    pub miss_permille: u64,
    /// The share of requests that wait for a slot, in thousandths: not so writes to a cache that writes back.
    pub held_permille: u64,
    /// Permitted change of a response time, in percent, when the neighbours change.
    pub deviation_percent: f64,
    /// No slot is shorter: the longest that one request takes.
    pub shortest: Span,
}

/// One possibility.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Choice {
    /// Slots.
    pub slots: u32,
    /// Length of each.
    pub slot: Span,
    /// Predicted mean response time.
    pub response: Span,
    /// Predicted deviation of the mean response time, %.
    pub deviation_percent: f64,
    /// Long enough for one request, no slower than without fences, and no less predictable than wanted.
    pub fits: bool,
}

/// Every length, shortest first; the first that fits is the one to take.
pub fn plan(w: &Wanted) -> Vec<Choice> {
    LENGTHS_MS.map(|ms| predict(w, Span::from_millis(ms))).to_vec()
}

/// Predicts the effect of slots of this length.
pub fn predict(w: &Wanted, slot: Span) -> Choice {
    let n = w.tenants.max(1);
    let (nf, length, best) = (f64::from(n), slot.as_millis_f64(), w.best.as_millis_f64());
    let held = w.held_permille as f64 / 1000.0;
    let response = held * (nf - 1.0).powi(2) * length / (2.0 * nf) + best + best * (nf - 1.0) / nf;
    // A turn serves what fits in it; whoever comes first pays the arm's way.
    let a_turn = (length * held / best.max(0.01)).max(1.0);
    let far = held * w.far.as_millis_f64() * w.miss_permille as f64 / 1000.0;
    let neighbours = if n > 1 { 1.0 } else { 0.0 };
    let deviation_percent = 100.0 * neighbours * far / a_turn / response.max(0.01);
    let fits = slot >= w.shortest && response <= w.worst.as_millis_f64() && deviation_percent <= w.deviation_percent;
    Choice { slots: n, slot, response: Span::from_millis_f64(response), deviation_percent, fits }
}

/// Returns the additional cost of a request whose predecessor was another tenant's, on a disk of `size_bytes` with `tenants`
/// tenants. Two tenants' parts are a third of the disk apart on average; two places in one part are a third of the part apart.
pub fn far(disk: &DiskPredictor, size_bytes: u64, tenants: u64) -> Span {
    let cost = |distance| disk.cost(distance, crate::predict::BLOCK_BYTES);
    cost(size_bytes / 3).saturating_sub(cost(size_bytes / 3 / tenants.max(1)))
}

/// Performance deviation (VF-M1, §4.3.1): by how much what was measured beside others differs from what was measured alone, in
/// percent of the latter. Of response times it can be more than 100 % (VF-A5).
pub fn deviation_percent(alone: f64, beside: f64) -> f64 {
    100.0 * ((alone - beside) / alone).abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paper() -> Wanted {
        Wanted {
            tenants: 4,
            best: Span::from_millis(19),
            worst: Span::from_millis(98),
            far: Span::from_millis(6),
            miss_permille: 500,
            held_permille: 1000,
            deviation_percent: 19.0,
            shortest: Span::from_millis(18),
        }
    }

    /// §4.6.1: Fileserver's 19 ms alone become 59 ms behind four slots of 20 ms, which is below the 98 ms beside others.
    #[test]
    fn the_papers_case_takes_the_papers_slots() {
        let plan = plan(&paper());
        let first = plan.iter().find(|c| c.fits).expect("one fits");
        assert_eq!((first.slots, first.slot), (4, Span::from_millis(20)));
        let ms = first.response.as_millis_f64();
        assert!((50.0..68.0).contains(&ms), "{ms}");
    }

    /// §4.6.3: responses grow with slots and length, deviations shrink.
    #[test]
    fn longer_is_slower_and_more_predictable() {
        for w in plan(&paper()).windows(2) {
            assert!(w[0].response < w[1].response && w[0].deviation_percent > w[1].deviation_percent);
        }
        let more = plan(&Wanted { tenants: 8, ..paper() });
        for (few, many) in plan(&paper()).iter().zip(more) {
            assert!(few.response < many.response && few.deviation_percent > many.deviation_percent);
        }
        assert!(plan(&Wanted { worst: Span::from_millis(30), ..paper() }).iter().all(|c| !c.fits));
        assert_eq!(plan(&Wanted { tenants: 1, ..paper() })[2].deviation_percent, 0.0);
        let back = plan(&Wanted { held_permille: 200, best: Span::from_millis(4), ..paper() });
        assert_eq!(back[2].response, Span::from_micros(4500 + 4000 + 3000), "writes wait for no slot");
    }

    #[test]
    fn deviation_is_relative_to_being_alone() {
        assert_eq!(deviation_percent(20.0, 98.0), 390.0);
        assert_eq!(deviation_percent(100.0, 87.0), 13.0);
    }
}
