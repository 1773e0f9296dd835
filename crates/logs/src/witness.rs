//! Witnesses: what a later record says of the records that were durable before it.
//!
//! A torn record and a corrupt one look alike: both fail their sum. Only the one that was torn was never durable. So each record
//! names the ends of the logs whose records have become durable since the last time, and a recovery that finds less of a log
//! than a witness names knows that it lost something. When no record follows for [`crate::LogsConfig::witness_after`], an empty
//! one is written for it: what becomes corrupt later than that is noticed, what becomes corrupt sooner and is followed by
//! a power loss at once isn't told from a torn write.
//!
//! A claim stays open until a witness of it is durable itself, or an image is in force that has the records.

use crate::format::Witness;
use crate::log::{Log, State};
use plimsoll_base::{Span, Time};
use std::collections::BTreeMap;

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

/// See the module's documentation. One claim per log at most.
#[derive(Default, Debug)]
pub(crate) struct Claims {
    open: BTreeMap<u32, Claim>,
}

impl Claims {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The records of `log` are durable up to `tail`.
    pub fn add(&mut self, now: Time, log: u32, epoch: u32, tail: u32) {
        let new = Claim { epoch, tail, since: now, carriers: [None; 2] };
        let claim = self.open.entry(log).or_insert(new);
        if claim.epoch == epoch {
            claim.tail = tail;
        } else {
            *claim = new;
        }
    }

    /// The log was emptied: an image has what it had.
    pub fn remove(&mut self, log: u32) {
        self.open.remove(&log);
    }

    /// Number of witnesses that an empty record would have.
    pub fn unwritten(&self) -> usize {
        self.open.values().filter(|c| c.carriers[1].is_none()).count()
    }

    /// Witnesses for a record with room for `room` of them that ends at `end` of `log`. `empty`: it was made for them.
    pub fn take(&mut self, now: Time, room: usize, (log, epoch, end): (u32, u32, u32), empty: bool) -> Vec<Witness> {
        let mut taken = Vec::new();
        for (&of, claim) in self.open.iter_mut().filter(|(_, c)| c.carriers[usize::from(empty)].is_none()).take(room) {
            let carrier = Carrier { log, epoch, end, tail: claim.tail, built_at: now };
            claim.carriers[usize::from(empty)] = Some(carrier);
            taken.push(Witness { log: of, epoch: claim.epoch, tail: claim.tail });
        }
        taken
    }

    /// Closes claims whose witnesses are durable, and forgets witnesses that never will be.
    pub fn confirm(&mut self, logs: &[Log]) {
        self.open.retain(|_, claim| {
            for i in 0..claim.carriers.len() {
                let Some(c) = claim.carriers[i] else { continue };
                let l = &logs[c.log as usize];
                let durable = l.epoch != c.epoch || l.flushed_tail >= c.end;
                if durable && c.tail >= claim.tail {
                    return false;
                }
                if durable {
                    // What became durable since came after it was built.
                    (claim.since, claim.carriers) = (claim.since.max(c.built_at), [None; 2]);
                } else if l.state == State::Bad {
                    claim.carriers[i] = None;
                }
            }
            true
        });
    }

    /// Claims that an image begun now will close.
    pub fn snapshot(&self) -> Vec<Witness> {
        self.open.iter().map(|(&log, c)| Witness { log, epoch: c.epoch, tail: c.tail }).collect()
    }

    /// An image is in force that was begun at `begun_at`, when these were open.
    pub fn close(&mut self, begun_at: Time, snapshot: &[Witness]) {
        for w in snapshot {
            let Some(claim) = self.open.get_mut(&w.log).filter(|c| c.epoch == w.epoch) else { continue };
            if claim.tail <= w.tail {
                self.open.remove(&w.log);
            } else {
                claim.since = claim.since.max(begun_at);
            }
        }
    }

    /// When an empty record is due.
    pub fn due_at(&self, after: Span) -> Time {
        let open = self.open.values().filter(|c| c.carriers[1].is_none());
        open.map(|c| c.since + after).min().unwrap_or(Time::NEVER)
    }
}
