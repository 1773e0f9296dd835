//! Faults that an operator injects into a live volume's requests, to see how its clients take them.
//!
//! An error or a refusal comes before the stack: a failed change has changed nothing. Latency and stalls hold the answer back: the request
//! itself was carried out. A held request keeps its permit, as one on a slow device does. Nothing is kept for a later start.

use plimsoll_base::{Completion, IoHead, Op, Rng, Span, Time, VolumeKey};
use std::collections::BTreeMap;

/// Answers that a pool holds back at most; beyond that they go out.
pub const HELD_MAX: usize = 4096;

/// Fate of a request that is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It fails with an I/O error.
    Errors,
    /// A read that may be refused is refused, with this as the wait before it.
    Busy(Span),
    /// Its answer is held back for this long.
    Latency(Span),
    /// Its answer is held back until the injection ends.
    Stall,
}

/// Operations that an injection looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Only {
    /// Reads.
    Reads,
    /// Requests that change data or make it durable.
    Writes,
}

/// An injection as it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InjectTerms {
    /// The fault.
    pub fault: Fault,
    /// Share of the requests, in thousandths.
    pub share_permille: u16,
    /// Of these operations; all if `None`.
    pub only: Option<Only>,
    /// Its duration.
    pub lasts: Span,
    /// Draws which: the same requests in the same order are hit again under the same seed.
    pub seed: u64,
}

/// An injection as it is now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InjectView {
    /// The volume.
    pub key: VolumeKey,
    /// As it was asked for.
    pub terms: InjectTerms,
    /// Time until it ends.
    pub left: Span,
    /// Requests that it has looked at.
    pub seen: u64,
    /// Those that were hit.
    pub hit: u64,
    /// Answers that are held back now.
    pub held: u64,
}

/// Verdict over a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hit {
    /// It fails.
    Fails,
    /// It is refused, with this wait.
    Refused(Span),
    /// Its answer is to be held back, for the injection of this number.
    Holds(u32),
}

struct Injection {
    number: u32,
    terms: InjectTerms,
    until: Time,
    draws: Rng,
    seen: u64,
    hit: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Injections {
    all: BTreeMap<VolumeKey, Injection>,
    /// Answers by when they go out, and in the order in which they were held back.
    held: BTreeMap<(Time, u64), Completion>,
    last_number: u32,
    held_so_far: u64,
}

impl Injections {
    /// True if nothing is injected and no answer is held back.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty() && self.held.is_empty()
    }

    /// Injects from now on, instead of what was injected into the volume before.
    pub fn begin(&mut self, now: Time, key: VolumeKey, terms: InjectTerms) {
        self.end(key);
        // Zero is no injection's.
        self.last_number = self.last_number.wrapping_add(1).max(1);
        let draws = Rng::new(terms.seed, "inject");
        let injection = Injection { number: self.last_number, terms, until: now + terms.lasts, draws, seen: 0, hit: 0 };
        self.all.insert(key, injection);
    }

    /// Injects nothing more into a volume; its answers go out. False if nothing was injected.
    pub fn end(&mut self, key: VolumeKey) -> bool {
        self.let_go(|c| c.io.volume == key);
        self.all.remove(&key).is_some()
    }

    /// Injects nothing more anywhere; all answers go out.
    pub fn end_all(&mut self) {
        self.let_go(|_| true);
        self.all.clear();
    }

    /// Answers that are held back no longer.
    pub fn let_go(&mut self, which: impl Fn(&Completion) -> bool) {
        let going: Vec<(Time, u64)> = self.held.iter().filter(|(_, c)| which(c)).map(|(at, _)| *at).collect();
        for at in going {
            let c = self.held.remove(&at).expect("just seen");
            self.held.insert((Time::ZERO, at.1), c);
        }
    }

    /// Returns the fault for a request that comes, if one hits it.
    pub fn hit(&mut self, now: Time, head: &IoHead) -> Option<Hit> {
        let injection = self.all.get_mut(&head.volume)?;
        let is_meant = match injection.terms.only {
            None => true,
            Some(Only::Reads) => head.op == Op::Read,
            Some(Only::Writes) => head.op.is_change() || head.op == Op::Flush,
        };
        let can_be_hit = !matches!(injection.terms.fault, Fault::Busy(_)) || head.may_be_refused();
        if now >= injection.until || !is_meant || !can_be_hit {
            return None;
        }
        injection.seen += 1;
        if injection.draws.below(1000) >= u64::from(injection.terms.share_permille) {
            return None;
        }
        injection.hit += 1;
        Some(match injection.terms.fault {
            Fault::Errors => Hit::Fails,
            Fault::Busy(wait) => Hit::Refused(wait),
            Fault::Latency(_) | Fault::Stall => Hit::Holds(injection.number),
        })
    }

    /// A request that was hit has ended: holds its answer back, unless its injection has ended or too many are held. Then the
    /// completion comes back.
    ///
    /// # Errors
    /// See above.
    pub fn hold(&mut self, now: Time, number: u32, c: Completion) -> Result<(), Completion> {
        let injection = self.all.get(&c.io.volume).filter(|i| i.number == number && now < i.until);
        let Some(injection) = injection.filter(|_| self.held.len() < HELD_MAX) else { return Err(c) };
        let due = match injection.terms.fault {
            Fault::Latency(span) => now + span,
            Fault::Errors | Fault::Busy(_) | Fault::Stall => injection.until,
        };
        self.held_so_far += 1;
        self.held.insert((due.min(injection.until), self.held_so_far), c);
        Ok(())
    }

    /// The time at which something is next to be done; [`Time::NEVER`] if nothing is.
    pub fn next_due(&self) -> Time {
        let ends = self.all.values().map(|i| i.until).min().unwrap_or(Time::NEVER);
        self.held.first_key_value().map_or(ends, |((at, _), _)| ends.min(*at))
    }

    /// The next answer that goes out now.
    pub fn next_released(&mut self, now: Time) -> Option<Completion> {
        self.held.first_entry().filter(|first| first.key().0 <= now).map(|first| first.remove())
    }

    /// The next injection that is over.
    pub fn next_over(&mut self, now: Time) -> Option<InjectView> {
        let key = *self.all.iter().find(|(_, i)| i.until <= now)?.0;
        let view = self.view(now, key);
        self.all.remove(&key);
        view
    }

    /// All of them.
    pub fn views(&self, now: Time) -> Vec<InjectView> {
        self.all.keys().filter_map(|key| self.view(now, *key)).collect()
    }

    fn view(&self, now: Time, key: VolumeKey) -> Option<InjectView> {
        let i = self.all.get(&key)?;
        let held = self.held.values().filter(|c| c.io.volume == key).count() as u64;
        Some(InjectView { key, terms: i.terms, left: i.until.since(now), seen: i.seen, hit: i.hit, held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Data, Io, IoFlags, Outcome, TenantId};

    const ONE: VolumeKey = VolumeKey { id: 1, generation: 1 };
    const OTHER: VolumeKey = VolumeKey { id: 2, generation: 1 };

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    fn head(volume: VolumeKey, op: Op) -> IoHead {
        IoHead::new(op, volume, TenantId(1), 0, 4096, Time::ZERO)
    }

    fn done(volume: VolumeKey, tag: u64) -> Completion {
        let mut io = Io::new(head(volume, Op::Read), Data::Absent);
        io.head.tag = tag;
        Completion { io, outcome: Outcome::Done, dispatched_at: Time::NEVER }
    }

    fn terms(fault: Fault, share_permille: u16) -> InjectTerms {
        InjectTerms { fault, share_permille, only: None, lasts: Span::from_secs(10), seed: 7 }
    }

    fn released(all: &mut Injections, now: Time) -> Vec<u64> {
        std::iter::from_fn(|| all.next_released(now)).map(|c| c.io.tag).collect()
    }

    #[test]
    fn the_share_is_hit_and_the_same_requests_under_the_same_seed() {
        let run = |seed: u64| {
            let mut all = Injections::default();
            all.begin(at(0), ONE, InjectTerms { seed, ..terms(Fault::Errors, 100) });
            (0..10_000).map(|_| all.hit(at(1), &head(ONE, Op::Read)).is_some()).collect::<Vec<bool>>()
        };
        let hits = run(7);
        assert!((900..1100).contains(&hits.iter().filter(|h| **h).count()));
        assert!(hits == run(7) && hits != run(8));
    }

    #[test]
    fn only_the_volume_the_operations_and_the_time_that_were_asked_for() {
        let mut all = Injections::default();
        all.begin(at(0), ONE, InjectTerms { only: Some(Only::Writes), ..terms(Fault::Errors, 1000) });
        for op in [Op::Write, Op::Trim, Op::WriteZeroes, Op::Flush] {
            assert_eq!(all.hit(at(9_999), &head(ONE, op)), Some(Hit::Fails), "{op:?}");
        }
        assert_eq!(all.hit(at(1), &head(ONE, Op::Read)), None);
        assert_eq!(all.hit(at(1), &head(OTHER, Op::Write)), None);
        assert_eq!(all.hit(at(10_000), &head(ONE, Op::Write)), None, "it is over");
        assert_eq!((all.next_due(), all.next_over(at(9_999)).is_some()), (at(10_000), false));
        assert_eq!(all.next_over(at(10_000)).map(|v| (v.key, v.seen, v.hit)), Some((ONE, 4, 4)));
        assert!(all.is_empty());
    }

    #[test]
    fn only_reads_that_may_be_refused_are() {
        let mut all = Injections::default();
        let wait = Span::from_millis(40);
        all.begin(at(0), ONE, terms(Fault::Busy(wait), 1000));
        let read = IoHead { deadline: at(20), ..head(ONE, Op::Read) };
        assert_eq!(all.hit(at(1), &read), Some(Hit::Refused(wait)));
        let waits = IoHead { flags: read.flags.with(IoFlags::WAITS), ..read };
        let write = IoHead { deadline: at(20), ..head(ONE, Op::Write) };
        for other in [head(ONE, Op::Read), waits, write] {
            assert_eq!(all.hit(at(1), &other), None, "{other:?}");
        }
        assert_eq!(all.views(at(1)).first().map(|v| (v.seen, v.hit)), Some((1, 1)));
    }

    #[test]
    fn answers_are_held_until_their_time_or_the_end() {
        let mut all = Injections::default();
        all.begin(at(0), ONE, terms(Fault::Latency(Span::from_millis(50)), 1000));
        let Some(Hit::Holds(first)) = all.hit(at(0), &head(ONE, Op::Read)) else { panic!("all are hit") };
        for (tag, ms) in [(1, 10), (2, 5), (3, 9_990)] {
            all.hold(at(ms), first, done(ONE, tag)).unwrap();
        }
        assert_eq!(released(&mut all, at(54)), [0; 0]);
        assert_eq!(all.next_due(), at(55));
        assert_eq!(released(&mut all, at(60)), [2, 1]);
        assert_eq!(released(&mut all, at(10_000)), [3], "none is held beyond the injection");
        // Another one replaces it; what was meant for the first goes out.
        all.hold(at(100), first, done(ONE, 4)).unwrap();
        all.begin(at(100), ONE, terms(Fault::Stall, 1000));
        assert_eq!(released(&mut all, at(100)), [4]);
        assert!(all.hold(at(100), first, done(ONE, 5)).is_err());
        let Some(Hit::Holds(second)) = all.hit(at(100), &head(ONE, Op::Read)) else { panic!("all are hit") };
        all.hold(at(100), second, done(ONE, 6)).unwrap();
        assert_eq!((all.views(at(200))[0].held, released(&mut all, at(10_099))), (1, vec![]));
        assert!(all.end(ONE) && !all.end(ONE));
        assert_eq!(released(&mut all, at(200)), [6]);
        assert!(all.is_empty());
    }

    #[test]
    fn no_more_than_the_bound_are_held() {
        let mut all = Injections::default();
        all.begin(at(0), ONE, terms(Fault::Stall, 1000));
        let Some(Hit::Holds(number)) = all.hit(at(0), &head(ONE, Op::Read)) else { panic!("all are hit") };
        let held = (0..5000).filter(|tag| all.hold(at(0), number, done(ONE, *tag)).is_ok()).count();
        assert_eq!(held, HELD_MAX);
        all.end_all();
        assert_eq!(released(&mut all, at(0)).len(), HELD_MAX);
    }
}
