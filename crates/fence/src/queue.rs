//! A volume's requests for one device that wait for its slot (VF-M8).
//!
//! Two orders of arrival: what somebody waits for, and what a layer does of its own accord (writing back, filling). The second
//! goes when the first is empty, or when it has been passed over often enough.

use crate::predict::{Arm, Forming, Predictor};
use plimsoll_base::{Io, IoId, Op, Origin, OwnKind, Span, Time};
use std::collections::VecDeque;

/// Batches that may pass by work that nobody waits for before its first goes along.
const PASSED_OVER_MAX: u32 = 8;
/// Requests that nobody waits for, in a batch.
const LATER_BATCH_MAX: usize = 4;

/// See the module's documentation.
#[derive(Default)]
pub struct Lane {
    wanted: VecDeque<Waiting>,
    later: VecDeque<Waiting>,
    passed_over: u32,
    /// What all that waits takes by itself, as predicted when it came.
    cost: Span,
}

struct Waiting {
    io: Io,
    cost: Span,
    since: Time,
}

/// A request that leaves a lane, and since when it had waited.
pub type Leaving = (Io, Time);

/// Does nobody wait for it?
fn is_background(io: &Io) -> bool {
    matches!(io.origin, Origin::Own(OwnKind::WriteBack | OwnKind::Checkpoint | OwnKind::Fill | OwnKind::Zeroing))
        && io.op != Op::Flush
}

impl Lane {
    /// Adds a request that would take `cost` by itself.
    pub fn push(&mut self, io: Io, cost: Span, since: Time) {
        self.cost += cost;
        let lane = if is_background(&io) { &mut self.later } else { &mut self.wanted };
        lane.push_back(Waiting { io, cost, since });
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.wanted.len() + self.later.len()
    }

    /// Does none?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What those take that go before a newcomer.
    pub fn cost(&self) -> Span {
        self.cost
    }

    /// Removes a request.
    pub fn remove(&mut self, id: IoId) -> Option<Leaving> {
        for lane in [&mut self.wanted, &mut self.later] {
            if let Some(at) = lane.iter().position(|w| w.io.id == id) {
                let w = lane.remove(at).expect("just found");
                self.cost = self.cost.saturating_sub(w.cost);
                return Some((w.io, w.since));
            }
        }
        None
    }

    /// Removes everything, in order.
    pub fn take_all(&mut self) -> Vec<Leaving> {
        self.cost = Span::ZERO;
        self.wanted.drain(..).chain(self.later.drain(..)).map(|w| (w.io, w.since)).collect()
    }

    /// Removes client reads whose deadline is over.
    pub fn take_late(&mut self, now: Time) -> Vec<Leaving> {
        let late =
            |w: &Waiting| w.io.op == Op::Read && w.io.is_client() && w.io.deadline.is_set() && now > w.io.deadline;
        if !self.wanted.iter().any(late) {
            return Vec::new();
        }
        let (gone, stay): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.wanted).into_iter().partition(late);
        self.wanted = stay;
        gone.into_iter()
            .map(|w| {
                self.cost = self.cost.saturating_sub(w.cost);
                (w.io, w.since)
            })
            .collect()
    }

    /// Does somebody wait for one of them?
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Removes the largest batch, in order of arrival, that is predicted to take no longer than `rest` (VF-M9), at most `most`
    /// requests; and what it is predicted to take. Empty if not even the first fits, unless it takes no longer than `anyway`:
    /// then that one. What nobody waits for goes by itself, a few at a time, so that who comes meanwhile doesn't wait long.
    pub fn take_batch(
        &mut self,
        predictor: &Predictor,
        arm: Arm,
        rest: Span,
        most: usize,
        anyway: Span,
    ) -> (Vec<Leaving>, Span) {
        let later = self.wanted.is_empty() || (self.passed_over >= PASSED_OVER_MAX && !self.later.is_empty());
        let (lane, most) = if later { (&mut self.later, most.min(LATER_BATCH_MAX)) } else { (&mut self.wanted, most) };
        let mut forming = Forming::new(predictor, arm);
        let (mut predicted, mut n) = (Span::ZERO, 0);
        for w in lane.iter().take(most) {
            let with = forming.add(&w.io);
            if with > rest && !(n == 0 && with <= anyway) {
                break;
            }
            (predicted, n) = (with, n + 1);
            if with > rest {
                break;
            }
        }
        let batch: Vec<Waiting> = lane.drain(..n).collect();
        if n > 0 {
            self.passed_over = if later || self.later.is_empty() { 0 } else { self.passed_over + 1 };
        }
        for w in &batch {
            self.cost = self.cost.saturating_sub(w.cost);
        }
        (batch.into_iter().map(|w| (w.io, w.since)).collect(), predicted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::{DiskPredictor, FlashPredictor};
    use plimsoll_base::{Data, IoHead, TenantId, VolumeKey};
    use proptest::prelude::*;

    fn io(id: u64, offset: u64, own: Option<OwnKind>) -> Io {
        let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), offset, 4096, Time::ZERO);
        head.id = IoId(id);
        if let Some(kind) = own {
            head.origin = Origin::Own(kind);
        }
        Io::new(head, Data::Absent)
    }

    fn ids(batch: &[Leaving]) -> Vec<u64> {
        batch.iter().map(|(io, _)| io.id.0).collect()
    }

    #[test]
    fn what_nobody_waits_for_goes_last_but_goes() {
        let p = Predictor::Flash(FlashPredictor { fixed_ns: 0, read_ns: 10, write_ns: 10, ns_per_kib: 0 });
        let mut lane = Lane::default();
        let one = Span::from_nanos(10);
        lane.push(io(100, 0, Some(OwnKind::WriteBack)), one, Time::ZERO);
        for id in 0..20 {
            lane.push(io(id, 0, None), one, Time::ZERO);
        }
        assert_eq!(lane.cost().as_nanos(), 210);
        let mut seen = Vec::new();
        for _ in 0..10 {
            seen.extend(ids(&lane.take_batch(&p, Arm::At(0), one, 4, Span::ZERO).0));
        }
        assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6, 7, 100, 8], "after eight batches that passed it by");
        let rest = lane.take_batch(&p, Arm::At(0), Span::from_secs(1), 100, Span::ZERO).0;
        assert_eq!((rest.len(), lane.len(), lane.cost()), (11, 0, Span::ZERO));
    }

    #[test]
    fn a_first_that_never_fits_goes_alone_when_it_must() {
        let p = Predictor::Disk(DiskPredictor::new(vec![(0, 5000)], 0).unwrap());
        let mut lane = Lane::default();
        lane.push(io(1, 0, None), Span::from_nanos(5000), Time::ZERO);
        lane.push(io(2, 0, None), Span::from_nanos(5000), Time::ZERO);
        let ns = Span::from_nanos;
        assert!(lane.take_batch(&p, Arm::At(0), ns(4999), 9, Span::ZERO).0.is_empty());
        assert!(lane.take_batch(&p, Arm::At(0), ns(4000), 9, ns(4999)).0.is_empty());
        let (batch, predicted) = lane.take_batch(&p, Arm::At(0), ns(4999), 9, ns(5000));
        assert_eq!((ids(&batch), predicted.as_nanos()), (vec![1], 5000));
    }

    proptest! {
        /// VF-M9: no larger batch in order of arrival would fit: against trying every size.
        #[test]
        fn the_largest_batch_that_fits(offsets in proptest::collection::vec(0u64..1000, 1..20), rest in 0u64..20_000, most in 1usize..25) {
            let d = DiskPredictor::new(vec![(0, 300), (400 * 4096, 900), (1000 * 4096, 2000)], 0).unwrap();
            let p = Predictor::Disk(d.clone());
            let heads: Vec<u64> = offsets.iter().map(|o| o * 4096).collect();
            let takes = |n: usize| {
                let mut sorted = heads[..n].to_vec();
                sorted.sort_unstable();
                let mut from = 77_000;
                sorted.iter().fold(0, |sum, o| {
                    let cost = d.cost(o.abs_diff(from), 4096).as_nanos();
                    from = o + 4096;
                    sum + cost
                })
            };
            // The first size that doesn't fit ends the batch, as sorting makes a larger one cheaper only by luck.
            let want = (1..=heads.len().min(most)).take_while(|n| takes(*n) <= rest).count();
            let mut lane = Lane::default();
            for (i, o) in heads.iter().enumerate() {
                lane.push(io(i as u64, *o, None), Span::ZERO, Time::ZERO);
            }
            let (batch, predicted) = lane.take_batch(&p, Arm::At(77_000), Span::from_nanos(rest), most, Span::ZERO);
            prop_assert_eq!(ids(&batch), (0..want as u64).collect::<Vec<_>>());
            prop_assert_eq!(predicted.as_nanos(), if want > 0 { takes(want) } else { 0 });
            prop_assert_eq!(lane.len(), heads.len() - want);
        }
    }
}
