//! A volume's requests for one device that wait for its slot (VF-M8).
//!
//! Two orders of arrival: requests that a client waits for, and own work of the layers (write-back, fills). The second goes
//! when the first is empty, or when it has been passed over often enough.

use crate::predict::{Arm, Forming, Predictor};
use plimsoll_base::{Io, IoId, Op, Origin, OwnKind, Span, Time};
use std::collections::VecDeque;

/// Batches that may pass by work that nobody waits for before its first goes along.
const PASSED_OVER_MAX: u32 = 8;
/// Requests that nobody waits for, in a batch.
const LATER_BATCH_MAX: usize = 4;
/// Requests among which the nearest is looked for.
const LOOKED_AT_MAX: usize = 64;
/// Batches of the nearest that may pass by the oldest request before it goes first.
const OLDEST_WAITS_MAX: u32 = 32;

/// See the module's documentation.
#[derive(Default)]
pub struct Lane {
    wanted: VecDeque<Waiting>,
    later: VecDeque<Waiting>,
    passed_over: u32,
    /// Batches of the nearest that passed by the oldest.
    oldest_waits: u32,
    /// Sum of the waiting requests' own times, as predicted at arrival.
    cost: Span,
}

struct Waiting {
    io: Io,
    cost: Span,
    since: Time,
}

/// A request that leaves a lane, and since when it had waited.
pub type Leaving = (Io, Time);

/// True for a background request: no client waits for its end.
fn is_background(io: &Io) -> bool {
    use OwnKind::{Checkpoint, Fill, Recovery, WriteBack, Zeroing};
    // A header that is read before what it lists is evicted.
    let is_evicted = io.origin == Origin::Own(OwnKind::Metadata) && matches!(io.op, Op::Read | Op::Trim);
    is_evicted
        || matches!(io.origin, Origin::Own(WriteBack | Checkpoint | Fill | Recovery | Zeroing)) && io.op != Op::Flush
}

impl Lane {
    /// Adds a request that would take `cost` by itself.
    pub fn push(&mut self, io: Io, cost: Span, since: Time) {
        self.cost += cost;
        let lane = if is_background(&io) { &mut self.later } else { &mut self.wanted };
        lane.push_back(Waiting { io, cost, since });
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.wanted.len() + self.later.len()
    }

    /// True if no request waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the time of the requests that go before a newcomer.
    pub fn cost(&self) -> Span {
        self.cost
    }

    /// Since when the oldest has waited.
    pub fn oldest(&self) -> Option<Time> {
        let first = |lane: &VecDeque<Waiting>| lane.front().map(|w| w.since);
        first(&self.wanted).into_iter().chain(first(&self.later)).min()
    }

    /// The oldest goes first the next time.
    pub fn favour_oldest(&mut self) {
        self.oldest_waits = OLDEST_WAITS_MAX;
        let oldest = self.oldest();
        self.passed_over = if self.later.front().map(|w| w.since) == oldest { PASSED_OVER_MAX } else { 0 };
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

    /// Removes reads whose deadline is over and whose clients are to hear of it.
    pub fn take_late(&mut self, now: Time) -> Vec<Leaving> {
        let late = |w: &Waiting| w.io.may_be_refused() && now > w.io.deadline;
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

    /// True if a client waits for one of the lane's requests.
    pub fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Removes and returns the largest batch, in order of arrival, that is predicted to take no longer than `rest` (VF-M9), with
    /// its predicted time. A batch has at most `most` requests. It is empty if not even the first request fits, unless that one
    /// takes no longer than `anyway`: then the batch is that request. Background requests form batches of their own, of up to four,
    /// so that a newcomer doesn't wait long.
    pub fn take_batch(
        &mut self,
        predictor: &Predictor,
        arm: Arm,
        rest: Span,
        most: usize,
        anyway: Span,
    ) -> (Vec<Leaving>, Span) {
        let later = self.is_laters_turn();
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
        (self.leave(batch, later), predicted)
    }

    /// Of those who have no promise: removes what is nearest from `end` on, one after the other, as long as all are predicted to take
    /// no longer than `rest`, at most `most`; the oldest first where it was passed by often enough. If not even one fits, nothing,
    /// unless the first takes no longer than `anyway`.
    pub fn take_nearest(
        &mut self,
        predictor: &Predictor,
        mut end: u64,
        rest: Span,
        most: usize,
        anyway: Span,
    ) -> (Vec<Leaving>, Span) {
        let later = self.is_laters_turn();
        let lane = if later { &mut self.later } else { &mut self.wanted };
        let (mut predicted, mut chosen, mut oldest) = (Span::ZERO, Vec::new(), false);
        while chosen.len() < most {
            let cost = |i: usize| match chosen.is_empty() {
                true => (predictor.one(Arm::At(end), &lane[i].io), i),
                false => (predictor.next(end, &lane[i].io), i),
            };
            let oldest_first = chosen.is_empty() && self.oldest_waits >= OLDEST_WAITS_MAX && !lane.is_empty();
            let nearest = || (0..lane.len().min(LOOKED_AT_MAX)).map(cost).min();
            let Some((takes, i)) = (if oldest_first { Some(cost(0)) } else { nearest() }) else { break };
            let with = predicted + takes;
            if with > rest && !(chosen.is_empty() && with <= anyway) {
                break;
            }
            let w = lane.remove(i).expect("it was looked at");
            end = if w.io.len > 0 { w.io.end() } else { end };
            oldest |= i == 0;
            predicted = with;
            chosen.push(w);
            if with > rest {
                break;
            }
        }
        if !chosen.is_empty() {
            self.oldest_waits = if oldest { 0 } else { self.oldest_waits + 1 };
        }
        (self.leave(chosen, later), predicted)
    }

    /// True if a background request goes next: nothing else waits, or background was passed over `PASSED_OVER_MAX` times.
    fn is_laters_turn(&self) -> bool {
        self.wanted.is_empty() || (self.passed_over >= PASSED_OVER_MAX && !self.later.is_empty())
    }

    fn leave(&mut self, batch: Vec<Waiting>, later: bool) -> Vec<Leaving> {
        if !batch.is_empty() {
            self.passed_over = if later || self.later.is_empty() { 0 } else { self.passed_over + 1 };
        }
        for w in &batch {
            self.cost = self.cost.saturating_sub(w.cost);
        }
        batch.into_iter().map(|w| (w.io, w.since)).collect()
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
        let p = Predictor::Flash(FlashPredictor::by_number(10, 10));
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

    /// Volumes without slots are served nearest request first, so that little of a stretch is lost. The oldest request isn't passed
    /// over for ever.
    #[test]
    fn the_nearest_that_fits_goes_first_and_the_oldest_is_not_forgotten() {
        let p = Predictor::Disk(DiskPredictor::new(vec![(0, 100), (1 << 20, 1100)], 0).unwrap());
        let ns = Span::from_nanos;
        let mut lane = Lane::default();
        for (id, offset) in [(1, 1 << 20), (2, 1 << 19), (3, 4096)] {
            lane.push(io(id, offset, None), ns(1), Time::ZERO);
        }
        let (batch, predicted) = lane.take_nearest(&p, 0, ns(750), 9, Span::ZERO);
        assert_eq!(ids(&batch), [3, 2], "by turns from where the last one ends");
        assert!(predicted <= ns(750) && lane.len() == 1 && lane.cost() == ns(1));
        assert!(lane.take_nearest(&p, 0, ns(1000), 9, Span::ZERO).0.is_empty());
        assert_eq!(ids(&lane.take_nearest(&p, 0, ns(1000), 9, ns(1100)).0), [1], "anyway");
        lane.push(io(0, 1 << 20, None), ns(1), Time::ZERO);
        let mut gone = Vec::new();
        for id in 1..=u64::from(OLDEST_WAITS_MAX) + 1 {
            lane.push(io(id, 0, None), ns(1), Time::ZERO);
            gone.extend(ids(&lane.take_nearest(&p, 0, ns(5000), 1, Span::ZERO).0));
        }
        assert_eq!(gone.iter().position(|id| *id == 0), Some(OLDEST_WAITS_MAX as usize));
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
