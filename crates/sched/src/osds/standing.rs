//! One OSD as a gateway sees it: a predictor, what is outstanding there, and whether it stands out.

use crate::blackbox::BlackBoxPredictor;
use plimsoll_base::{Confidence, IoHead, IoId, Span, Time};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A read that has waited for less is never taken for a stalled one.
const STALL_MIN: Span = Span::from_micros(3000);
/// A read has stalled once it has waited for this many times of the typical time.
const STALL_TIMES: u64 = 6;
/// An OSD's typical time rises towards a longer read's by 1/2 to the power of the first, and falls by that of the second. So it is high
/// in the distribution: of reads of two kinds, it follows the slower kind if that isn't rare.
const RISE_SHIFT: u32 = 3;
const FALL_SHIFT: u32 = 6;
/// A longer read counts as one of this time.
const TYPICAL_MAX: Span = Span::from_secs(1);
/// An OSD that has stalled is avoided for this long, doubled with each stall in a row up to the second.
const AVOID_MIN: Span = Span::from_secs(1);
const AVOID_MAX: Span = Span::from_secs(32);
/// A read that later ones have overtaken is given up after this time: it says nothing of the OSD any more.
const GIVEN_UP_AFTER: Span = Span::from_secs(10);
/// An OSD is forgiven once it has answered this many reads in a row in time, and was asked again for as long as it had been avoided: one
/// that stops again and again answers many reads between two stops.
const FORGIVEN_AFTER: u32 = 16;
/// Of a thousand reads in time, this many may be refused.
const NEEDLESS_PERMILLE: u32 = 10;

/// The limit of a read's time, by the typical time at the OSD in the middle. A slow minority of OSDs doesn't raise it.
pub(super) fn stall_limit(typical: Span) -> Span {
    STALL_MIN.max(typical * STALL_TIMES)
}

/// Counters of an OSD.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub reads: u64,
    pub late: u64,
    pub steered: u64,
    pub refused: u64,
    pub fresh: u64,
}

/// See the module's documentation.
pub(super) struct Standing {
    /// `None` before the first request: a cluster has many OSDs, and a map of them comes at once.
    pub(super) predictor: Option<Box<BlackBoxPredictor>>,
    outstanding: BTreeMap<IoId, Time>,
    /// Newest read that was answered. Ids grow: reads before it were overtaken.
    answered: IoId,
    /// Until then it isn't read from where there is another.
    avoided_until: Time,
    /// It isn't forgiven before.
    forgiven_at: Time,
    avoid: Span,
    in_time: u32,
    /// Typical time of its reads; `None` before the first.
    typical: Option<Span>,
    pub stands_out: bool,
    /// The cluster's map has it.
    pub is_in_map: bool,
    pub counts: Counts,
}

impl Standing {
    pub fn new() -> Standing {
        Standing {
            predictor: None,
            outstanding: BTreeMap::new(),
            answered: IoId(0),
            avoided_until: Time::ZERO,
            forgiven_at: Time::ZERO,
            avoid: AVOID_MIN,
            in_time: 0,
            typical: None,
            stands_out: false,
            is_in_map: true,
            counts: Counts::default(),
        }
    }

    /// Typical time of its reads: rather that of the slower ones. `None` before the first.
    pub fn typical(&self) -> Option<Span> {
        self.typical
    }

    /// Every read counts, however long it took: a limit that is too low must rise.
    fn learn_typical(&mut self, took: Span) {
        let (typical, took) = (self.typical.unwrap_or(Span::ZERO).as_nanos(), took.min(TYPICAL_MAX).as_nanos());
        let rise = took.saturating_sub(typical) >> RISE_SHIFT;
        let fall = typical.saturating_sub(took) >> FALL_SHIFT;
        self.typical = Some(Span::from_nanos(typical + rise - fall));
    }

    /// Time that the OSD has been silent: since the oldest read was sent that no later one has overtaken. An OSD that answers later reads
    /// is at work, whatever keeps an earlier one.
    fn waited(&self, now: Time) -> Span {
        let oldest = self.outstanding.range((Bound::Excluded(self.answered), Bound::Unbounded)).next();
        oldest.map_or(Span::ZERO, |(_, sent_at)| now.since(*sent_at))
    }

    /// Gives up the oldest read if it was overtaken long ago.
    fn give_up(&mut self, now: Time) {
        let oldest = self.outstanding.first_key_value().map(|(id, sent_at)| (*id, *sent_at));
        if let Some((id, sent_at)) = oldest
            && id < self.answered
            && now.since(sent_at) >= GIVEN_UP_AFTER
        {
            self.outstanding.remove(&id);
            self.withdraw(id);
        }
    }

    /// Asserts that every read that it waits for is in the predictor's forecasts, too.
    pub fn check(&self) {
        match &self.predictor {
            Some(predictor) => predictor.check(),
            None => assert!(self.outstanding.is_empty(), "a request without a predictor"),
        }
    }

    fn withdraw(&mut self, id: IoId) {
        if let Some(predictor) = &mut self.predictor {
            predictor.withdrawn(id);
        }
    }

    /// Returns whether it is to be avoided at `now`.
    pub fn is_avoided(&self, now: Time, limit: Span) -> bool {
        // A read that was lost, and that no later one overtakes as none is sent, is no reason for ever.
        now < self.avoided_until || (self.waited(now) >= limit && !self.is_forgotten(now))
    }

    /// Forecast of a read. An OSD that stalls is expected to go on for as long as it has.
    pub fn forecast(&self, now: Time, head: &IoHead, limit: Span) -> (Span, Confidence) {
        let Some(predictor) = &self.predictor else { return (Span::ZERO, Confidence::NONE) };
        let (took, confidence) = predictor.predict(now, head);
        let waited = self.waited(now);
        if waited < limit { (took, confidence) } else { (took.max(waited * 2), confidence) }
    }

    /// True if nothing was learned of it for long: no read was seen, or the one that was sent last isn't answered. The next read is then sent
    /// whatever its forecast. The answer may never come though the OSD is at work: the object can't be read, or its placement group.
    pub fn is_forgotten(&self, now: Time) -> bool {
        match self.outstanding.last_key_value() {
            Some((_, sent_at)) => now.since(*sent_at) >= AVOID_MAX,
            None => self.predictor.as_ref().is_none_or(|p| p.is_forgotten(now)),
        }
    }

    pub fn judged(&mut self, now: Time, head: &IoHead) {
        // If all reads are refused, none is sent that would give it up.
        self.give_up(now);
        if let Some(predictor) = &mut self.predictor {
            predictor.judged(now, head);
        }
    }

    pub fn sent(&mut self, now: Time, head: &IoHead, is_read: bool) {
        self.give_up(now);
        // Parts of an OSD's device don't show in the addresses of an image.
        let new = || Box::new(BlackBoxPredictor::of_one_part(NEEDLESS_PERMILLE));
        self.predictor.get_or_insert_with(new).sent(now, head);
        if is_read {
            self.counts.reads += 1;
            self.outstanding.insert(head.id, now);
        }
    }

    /// A read has stalled. The OSD stands out by it, unless it has answered a later one: then it is at work.
    pub fn stalled(&mut self, now: Time, id: IoId) {
        self.counts.late += 1;
        if id > self.answered {
            self.avoid(now);
        }
    }

    /// A read has failed there: nothing is learned of its time. The OSD is avoided if it failed `by_osd`.
    pub fn failed(&mut self, now: Time, id: IoId, by_osd: bool) {
        self.withdraw(id);
        if self.outstanding.remove(&id).is_some() && by_osd {
            self.avoid(now);
        }
    }

    fn avoid(&mut self, now: Time) {
        self.in_time = 0;
        if now >= self.avoided_until {
            self.avoided_until = now + self.avoid;
            self.forgiven_at = self.avoided_until + self.avoid;
            self.avoid = (self.avoid * 2).min(AVOID_MAX);
        }
        self.stands_out = true;
    }

    /// A request has ended. An OSD that has answered enough reads in time is forgiven.
    pub fn ended(&mut self, now: Time, id: IoId, limit: Span) {
        if let Some(predictor) = &mut self.predictor {
            predictor.ended(now, id);
        }
        let Some(sent_at) = self.outstanding.remove(&id) else { return };
        self.answered = self.answered.max(id);
        self.learn_typical(now.since(sent_at));
        if now.since(sent_at) >= limit {
            self.in_time = 0;
            return;
        }
        self.in_time += 1;
        if self.in_time >= FORGIVEN_AFTER && now >= self.forgiven_at {
            self.avoid = AVOID_MIN;
            self.stands_out = false;
        }
    }
}
