//! Witnesses: what a later record says of the records that were durable before it.
//!
//! A torn record and a corrupt one look alike: both fail their sum. Only the one that was torn was never durable. So each record
//! names the ends of the logs whose records have become durable since the last time, and a recovery that finds less of a log
//! than a witness names knows that it lost something. When no record follows for [`crate::LogsConfig::witness_after`], an empty
//! one is written for it: what becomes corrupt later than that is noticed. A record that becomes corrupt sooner and is followed by
//! a power loss at once can't be distinguished from a torn one.
//!
//! A claim stays open until a witness of it is durable itself, or an image is in force that has the records.

use crate::format::Witness;
use crate::log::{Log, State};
use plimsoll_base::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A record that holds a witness.
#[derive(Clone, Copy, Debug)]
struct Carrier {
    log: u32,
    epoch: u32,
    end: u32,
    /// End of the claim's log that it names.
    tail: u32,
    built_at: Time,
}

/// Durable records of a log that no durable witness names.
#[derive(Clone, Copy, Debug)]
struct Claim {
    epoch: u32,
    tail: u32,
    since: Time,
    /// The first record that names them, and the empty one written for it.
    carriers: [Option<Carrier>; 2],
}

/// See the module's documentation. One claim per log at most. After a start each log with records has one: what is asked for with every
/// request is found by index.
#[derive(Default, Debug)]
pub(crate) struct Claims {
    open: BTreeMap<u32, Claim>,
    /// Claims that no record names, and those that no empty record does.
    bare: [BTreeSet<u32>; 2],
    /// The latter by their age.
    aging: BTreeSet<(Time, u32)>,
    /// Records that name claims, each by its log, that log's epoch, its end, and the claim.
    carried: BTreeSet<(u32, u32, u32, u32)>,
    /// Logs that became durable further, were emptied or retired since the last [`Claims::confirm`].
    moved: BTreeSet<u32>,
    /// Claims looked at.
    #[cfg(test)]
    looked: usize,
}

impl Claims {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Changes the claim of `log`, or makes or ends it, and keeps the indexes.
    fn change(&mut self, log: u32, change: impl FnOnce(Option<Claim>) -> Option<Claim>) {
        #[cfg(test)]
        {
            self.looked += 1;
        }
        let old = self.open.remove(&log);
        if let Some(c) = old {
            self.bare.iter_mut().for_each(|b| {
                b.remove(&log);
            });
            self.aging.remove(&(c.since, log));
            for r in c.carriers.iter().flatten() {
                self.carried.remove(&(r.log, r.epoch, r.end, log));
            }
        }
        let Some(c) = change(old) else { return };
        for (bare, carrier) in self.bare.iter_mut().zip(c.carriers) {
            match carrier {
                None => bare.insert(log),
                Some(r) => self.carried.insert((r.log, r.epoch, r.end, log)),
            };
        }
        if c.carriers[1].is_none() {
            self.aging.insert((c.since, log));
        }
        self.open.insert(log, c);
    }

    /// The records of `log` are durable up to `tail`.
    pub fn add(&mut self, now: Time, log: u32, epoch: u32, tail: u32) {
        let new = Claim { epoch, tail, since: now, carriers: [None; 2] };
        self.change(log, |old| Some(old.filter(|c| c.epoch == epoch).map_or(new, |c| Claim { tail, ..c })));
    }

    /// The log was emptied: an image has what it had.
    pub fn remove(&mut self, log: u32) {
        self.change(log, |_| None);
    }

    /// Number of witnesses that an empty record would have.
    pub fn unwritten(&self) -> usize {
        self.bare[1].len()
    }

    /// Witnesses for a record with room for `room` of them that ends at `end` of `log`. `empty`: it was made for them.
    pub fn take(&mut self, now: Time, room: usize, (log, epoch, end): (u32, u32, u32), empty: bool) -> Vec<Witness> {
        let which = usize::from(empty);
        let logs: Vec<u32> = self.bare[which].iter().take(room).copied().collect();
        let mut taken = Vec::with_capacity(logs.len());
        for of in logs {
            self.change(of, |claim| {
                let mut claim = claim?;
                claim.carriers[which] = Some(Carrier { log, epoch, end, tail: claim.tail, built_at: now });
                taken.push(Witness { log: of, epoch: claim.epoch, tail: claim.tail });
                Some(claim)
            });
        }
        taken
    }

    /// Notes that `log` became durable further, was emptied or retired: its records may count or be lost now.
    pub fn moved(&mut self, log: u32) {
        self.moved.insert(log);
    }

    /// Closes claims whose witnesses are durable, and forgets witnesses that never will be. Looks only at records in logs that moved,
    /// and of them only at those that are durable or lost now.
    pub fn confirm(&mut self, logs: &[Log]) {
        const MAX: u32 = u32::MAX;
        for of in std::mem::take(&mut self.moved) {
            let l = &logs[of as usize];
            let upto = if l.state == State::Bad { MAX } else { l.flushed_tail };
            let before = self.carried.range((of, 0, 0, 0)..(of, l.epoch, 0, 0));
            let durable = self.carried.range((of, l.epoch, 0, 0)..=(of, l.epoch, upto, MAX));
            let after = self.carried.range((of, l.epoch, MAX, MAX)..=(of, MAX, MAX, MAX));
            let claims: BTreeSet<u32> = before.chain(durable).chain(after).map(|c| c.3).collect();
            for log in claims {
                self.change(log, |claim| confirmed(claim?, logs));
            }
        }
    }

    /// Claims that an image begun now will close.
    pub fn snapshot(&self) -> Vec<Witness> {
        self.open.iter().map(|(&log, c)| Witness { log, epoch: c.epoch, tail: c.tail }).collect()
    }

    /// An image is in force that was begun at `begun_at`, when these were open.
    pub fn close(&mut self, begun_at: Time, snapshot: &[Witness]) {
        for w in snapshot {
            self.change(w.log, |claim| match claim {
                Some(c) if c.epoch == w.epoch && c.tail <= w.tail => None,
                Some(c) if c.epoch == w.epoch => Some(Claim { since: c.since.max(begun_at), ..c }),
                other => other,
            });
        }
    }

    /// Returns the time at which an empty record is due, or [`Time::NEVER`].
    pub fn due_at(&self, after: Span) -> Time {
        self.aging.first().map_or(Time::NEVER, |(since, _)| *since + after)
    }
}

/// Returns the claim without the carriers that failed; None once a durable record carries it.
fn confirmed(mut claim: Claim, logs: &[Log]) -> Option<Claim> {
    for i in 0..claim.carriers.len() {
        let Some(c) = claim.carriers[i] else { continue };
        let l = &logs[c.log as usize];
        let durable = l.epoch != c.epoch || l.flushed_tail >= c.end;
        if durable && c.tail >= claim.tail {
            return None;
        }
        if durable {
            // What became durable since came after it was built.
            (claim.since, claim.carriers) = (claim.since.max(c.built_at), [None; 2]);
        } else if l.state == State::Bad {
            claim.carriers[i] = None;
        }
    }
    Some(claim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    const LOGS: u32 = 10_000;

    fn log(epoch: u32) -> Log {
        Log::new(0, 0, epoch, false)
    }

    /// After a start every log has a claim. A request looks at as many as its record names, not at all.
    #[test]
    fn a_request_looks_at_few_of_many_claims() {
        let mut claims = Claims::default();
        let mut logs: Vec<Log> = (0..LOGS).map(|_| log(1)).collect();
        (0..LOGS).for_each(|log| claims.add(Time::from_nanos(5), log, 1, 100));
        claims.looked = 0;
        let (room, mut flushes) = (20, 0);
        for request in 0..2_000u32 {
            let now = Time::from_nanos(1000 + u64::from(request));
            let before = claims.looked;
            assert_eq!(claims.due_at(Span::ZERO).is_set(), claims.unwritten() > 0);
            let end = (request + 1) * 10;
            claims.take(now, room, (7, 1, end), request % 2 == 0);
            if request % 4 == 3 {
                logs[7].flushed_tail = end;
                claims.moved(7);
                claims.confirm(&logs);
                flushes += 1;
            }
            let looked = claims.looked - before;
            assert!(looked <= 5 * room, "request {request} looked at {looked} claims");
        }
        assert!(claims.is_empty() && flushes > 0, "all were discharged on the way");
    }

    /// Records of a log that isn't flushed name all claims. What becomes durable in another log doesn't look at them, however often.
    #[test]
    fn what_moves_in_another_log_looks_at_no_claim() {
        let mut claims = Claims::default();
        let mut logs: Vec<Log> = (0..LOGS).map(|_| log(1)).collect();
        (0..LOGS).for_each(|log| claims.add(Time::from_nanos(5), log, 1, 100));
        for n in 0..LOGS / 20 {
            claims.take(Time::from_nanos(6), 20, (7, 1, (n + 1) * 10), false);
        }
        assert_eq!(claims.carried.len(), LOGS as usize);
        claims.looked = 0;
        for fua in 0..1_000u32 {
            logs[9].flushed_tail += 10;
            claims.moved(9);
            claims.confirm(&logs);
            // Nor does what becomes durable before them in theirs.
            logs[7].flushed_tail = fua % 10;
            claims.moved(7);
            claims.confirm(&logs);
        }
        assert_eq!(claims.looked, 0);
        logs[7].flushed_tail = 15;
        claims.moved(7);
        claims.confirm(&logs);
        assert_eq!((claims.looked, claims.open.len()), (20, LOGS as usize - 20), "those of one record");
        // The log is emptied: an image has what it had.
        logs[7].epoch = 2;
        claims.moved(7);
        claims.confirm(&logs);
        assert!(claims.is_empty());
    }

    /// Indexes against claims looked through one by one.
    #[test]
    fn indexes_say_what_claims_do() {
        let (mut rng, mut claims) = (Rng::new(4, "claims"), Claims::default());
        let mut logs: Vec<Log> = (0..12).map(|_| log(1)).collect();
        let mut snapshot = Vec::new();
        for n in 0..5_000u64 {
            let (now, log) = (Time::from_nanos(n), rng.below(12) as u32);
            match rng.below(10) {
                0..3 => claims.add(now, log, logs[log as usize].epoch, rng.below(100) as u32),
                // No record goes to a retired log.
                3 if logs[log as usize].state == State::Bad => {}
                3 => {
                    claims.take(now, rng.below(5) as usize, (log, logs[log as usize].epoch, n as u32), rng.chance(0.5));
                }
                4 => {
                    logs[log as usize].flushed_tail = n as u32;
                    claims.moved(log);
                }
                5 => {
                    claims.confirm(&logs);
                    let says = |c: &Claim| confirmed(*c, &logs).map(|c| c.carriers.map(|c| c.is_some()));
                    let is = |c: &Claim| Some(c.carriers.map(|c| c.is_some()));
                    assert!(claims.open.values().all(|c| says(c) == is(c)), "nothing is left to confirm");
                }
                8 if rng.chance(0.2) => {
                    let l = &mut logs[log as usize];
                    (l.epoch, l.flushed_tail, l.state) = (l.epoch + 1, 0, State::Open);
                    claims.moved(log);
                }
                9 if rng.chance(0.2) => {
                    logs[log as usize].state = State::Bad;
                    claims.moved(log);
                }
                6 if rng.chance(0.5) => snapshot = claims.snapshot(),
                6 => claims.close(now, &snapshot),
                _ => claims.remove(log),
            }
            let open = || claims.open.values().filter(|c| c.carriers[1].is_none());
            assert_eq!(claims.unwritten(), open().count());
            assert_eq!(claims.due_at(Span::ZERO), open().map(|c| c.since).min().unwrap_or(Time::NEVER));
            let bare = |c: &Claim| c.carriers[0].is_none();
            assert_eq!(claims.bare[0].len(), claims.open.values().filter(|c| bare(c)).count());
            let carriers = claims.open.values().flat_map(|c| c.carriers).flatten().count();
            assert_eq!(claims.carried.len(), carriers);
        }
    }
}
