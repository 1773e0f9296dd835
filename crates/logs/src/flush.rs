//! Duties of a flush: the records, and a record of each logged range that newer data at its home address supersedes.
//!
//! A large write over logged data goes to the home address. The record with the old data is still in its log, and a recovery would
//! take it for valid. So the kill is recorded too, but not before the data at the home address is durable: a crash between the two
//! would lose both (ML-A5: data durable, then the record of it). A flush with kills to record is: flush, record, flush. One such job
//! runs at a time, and flushes that come meanwhile share the next.

use crate::append::Queued;
use crate::config::Planted;
use crate::layer::{DURABILITY_LOST, Life, Logs, Own, Pending};
use crate::log::Tail;
use plimsoll_base::{Completion, Io, IoError, Op, Outcome, OwnKind, Time, VolumeKey};
use plimsoll_stack::Actions;

/// A home range with newer data than all logs hold of it up to `sequence`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kill {
    pub home: u64,
    pub len: u64,
    pub key: VolumeKey,
    pub sequence: u64,
    /// The next sequence number when it came to be wanted: flushes that began later record it.
    pub since: u64,
}

/// Kills that wait at most before an image is written for them.
const KILLS_MAX: usize = 4096;
/// A kill's length in a record is 32 bits.
const KILL_BYTES_MAX: u64 = 1 << 31;

/// A flush with more to do than to be passed on.
pub(crate) struct FlushJob {
    waiters: Vec<Completion>,
    /// Kills that were wanted before this sequence number are recorded with it.
    limit: u64,
    /// The kills that it records, until they are durable.
    kills: Vec<Kill>,
    /// Records of kills that it waits for.
    recording: usize,
    /// Its first flush is done.
    is_home_durable: bool,
    /// It waits for this image too, as no log has room for a record.
    image: Option<u64>,
    tails: Vec<Tail>,
}

impl Logs {
    /// A client's flush.
    pub(crate) fn flush(&mut self, now: Time, mut io: Io, out: &mut Actions) {
        // Nothing that waits was acknowledged, but whoever flushes waits for it soon.
        self.write_records(now, out);
        if self.has(Planted::FlushNotPassed) {
            let c = Completion { io, outcome: Outcome::Done, dispatched_at: Time::NEVER };
            return self.end_client(now, c, out);
        }
        if self.durability_lost {
            let c = Completion { io, outcome: Outcome::Failed(IoError::FlushFailed), dispatched_at: Time::NEVER };
            return self.end_client(now, c, out);
        }
        let nothing_to_record = self.kills.is_empty() || self.has(Planted::KillForgotten);
        if self.flush_job.is_none() && nothing_to_record {
            let tails = self.dirty_tails();
            io.head.tag = self.ops.insert(Pending::Flush { head: io.head, tails }) as u64;
            return out.submit(0, io);
        }
        let c = Completion { io, outcome: Outcome::Done, dispatched_at: Time::NEVER };
        self.flush_for(now, c, out);
    }

    /// `c` ends when all that is acknowledged now is durable, and all kills too.
    pub(crate) fn flush_for(&mut self, now: Time, c: Completion, out: &mut Actions) {
        self.flush_next.push(c);
        self.next_flush_job(now, out);
    }

    fn next_flush_job(&mut self, now: Time, out: &mut Actions) {
        if self.flush_job.is_some() || self.flush_next.is_empty() {
            return;
        }
        let job = FlushJob {
            waiters: std::mem::take(&mut self.flush_next),
            limit: self.next_sequence,
            kills: Vec::new(),
            recording: 0,
            is_home_durable: false,
            image: None,
            tails: self.dirty_tails(),
        };
        self.flush_job = Some(job);
        if self.has(Planted::KillTooEarly) {
            return self.record_kills(now, out);
        }
        let io = self.own(now, Op::Flush, 0, 0, OwnKind::Metadata, out);
        self.send_own(io, Own::JobFlush, out);
    }

    /// Ends of the logs' acknowledged records that no flush has covered yet.
    pub(crate) fn dirty_tails(&self) -> Vec<Tail> {
        self.dirty.iter().map(|&log| self.logs[log as usize].done(log)).collect()
    }

    /// A flush that was sent when the logs ended there has ended; how, with all that's known. After one failed another says
    /// nothing: what it would have covered may be gone, and with it the way to what follows.
    pub(crate) fn flushed(&mut self, now: Time, outcome: Outcome, tails: Vec<Tail>) -> Outcome {
        // Bands below fail one that waits for a place that can't be copied, before the device is asked. The device has lost nothing then, and
        // the next flush says all. It tells of a loss of its own itself.
        let waited_in_vain = self.band_bytes > 0 && outcome != Outcome::Failed(IoError::FlushFailed);
        if !outcome.is_done() && waited_in_vain && !self.durability_lost {
            return outcome;
        }
        if !outcome.is_done() {
            self.durability_lost = true;
            self.degrade(DURABILITY_LOST);
        }
        if self.durability_lost {
            return Outcome::Failed(IoError::FlushFailed);
        }
        for tail in tails {
            if self.logs[tail.log as usize].flushed(tail) {
                self.dirty.remove(&tail.log);
            }
            self.claims.moved(tail.log);
            self.claim_durable(now, tail.log);
        }
        self.claims.confirm(&self.logs);
        outcome
    }

    /// A witness is wanted of what became durable in `log`.
    pub(crate) fn claim_durable(&mut self, now: Time, log: u32) {
        let l = &mut self.logs[log as usize];
        let durable = l.flushed_tail.min(l.record_tail);
        if durable > l.claimed_tail {
            l.claimed_tail = durable;
            self.claims.add(now, log, l.epoch, durable);
        }
    }

    /// Flushes what is acknowledged, for the layer itself.
    pub(crate) fn flush_own(&mut self, now: Time, out: &mut Actions) {
        let tails = self.dirty_tails();
        let mut io = self.own(now, Op::Flush, 0, 0, OwnKind::Metadata, out);
        io.head.tag = self.ops.insert(Pending::OwnFlush { tails }) as u64;
        out.submit(0, io);
    }

    /// Nothing is moved any more: what is where it is stays there.
    pub(crate) fn degrade(&mut self, why: &'static str) {
        if self.life == Life::Ready {
            self.life = Life::Degraded(why);
            self.give_up_cleaning();
        }
    }

    /// Ends the validity of a range's logged data: the home address has newer data. True if there was any.
    pub(crate) fn kill(&mut self, home: u64, len: u64, key: VolumeKey) -> bool {
        let is_stale = self.stale.superseded(home, home + len);
        let killed = self.mtl.kill(home, home + len) || is_stale;
        if killed {
            self.add_kill(home, len, key);
        }
        killed
    }

    /// That nothing older than now is valid of a range must be recorded.
    pub(crate) fn add_kill(&mut self, home: u64, len: u64, key: VolumeKey) {
        self.add_kill_of(home, len, key, self.next_sequence);
    }

    /// That nothing older than `sequence` is valid of a range must be recorded.
    pub(crate) fn add_kill_of(&mut self, mut home: u64, mut len: u64, key: VolumeKey, sequence: u64) {
        while len > 0 {
            let n = len.min(KILL_BYTES_MAX);
            self.kills.push(Kill { home, len: n, key, sequence, since: self.next_sequence });
            (home, len) = (home + n, len - n);
        }
        self.next_sequence += 1;
        self.changed += 1;
        self.counters.kills += 1;
        self.image_wanted |= self.kills.len() > KILLS_MAX;
    }

    /// True if there is a kill within the range that isn't durable yet (or may not be).
    pub(crate) fn has_unrecorded_kill(&self, from: u64, to: u64) -> bool {
        self.flush_job.is_some() || self.kills.iter().any(|k| k.home < to && from < k.home + k.len)
    }

    /// The job's flush has ended: the first, or the one after its record.
    pub(crate) fn job_flushed(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        let job = self.flush_job.as_mut().expect("it was the job's flush");
        let tails = std::mem::take(&mut job.tails);
        let first = !job.is_home_durable;
        job.is_home_durable = true;
        let outcome = self.flushed(now, c.outcome, tails);
        if first && outcome.is_done() {
            return self.record_kills(now, out);
        }
        self.end_flush_job(now, outcome, out);
    }

    fn record_kills(&mut self, now: Time, out: &mut Actions) {
        let forgotten = self.has(Planted::KillForgotten);
        let job = self.flush_job.as_mut().expect("a job runs");
        job.is_home_durable = true;
        let limit = job.limit;
        let (ready, later): (Vec<Kill>, Vec<Kill>) = self.kills.iter().partition(|k| k.since < limit);
        if ready.is_empty() || forgotten {
            return self.end_flush_job(now, Outcome::Done, out);
        }
        job.recording = ready.len();
        job.kills.clone_from(&ready);
        self.kills = later;
        for Kill { home, len, key, sequence, .. } in ready {
            self.queue.push_back(Queued::Kill { home, len: len as u32, key, sequence });
        }
        self.write_records(now, out);
    }

    /// One of the job's kills is in an acknowledged record.
    pub(crate) fn kill_recorded(&mut self, now: Time, out: &mut Actions) {
        let job = self.flush_job.as_mut().expect("a job waits for the records of its kills");
        job.recording -= 1;
        self.kills_recorded(now, out);
    }

    /// Flushes the job's kills once all of them are in records.
    fn kills_recorded(&mut self, now: Time, out: &mut Actions) {
        let tails = self.dirty_tails();
        let Some(job) = self.flush_job.as_mut().filter(|j| j.recording == 0 && j.image.is_none()) else { return };
        job.tails = tails;
        let io = self.own(now, Op::Flush, 0, 0, OwnKind::Metadata, out);
        self.send_own(io, Own::JobFlush, out);
    }

    /// No log has room for a kill: an image that doesn't hold what it kills does as well.
    pub(crate) fn kill_needs_image(&mut self) {
        self.image_wanted = true;
        // One that is being written was begun before; only the next is sure to know of it.
        let next = self.image_number + 1 + u64::from(self.image.is_some());
        let job = self.flush_job.as_mut().expect("kills are recorded for a job");
        job.recording -= 1;
        job.image = Some(next);
    }

    /// Image `number` holds, and all changes before `sequence` with it.
    pub(crate) fn image_discharges(&mut self, now: Time, number: u64, sequence: u64, out: &mut Actions) {
        self.kills.retain(|k| k.since >= sequence);
        self.stale.discharged(sequence);
        let Some(job) = self.flush_job.as_mut().filter(|j| j.image.is_some_and(|n| n <= number)) else { return };
        job.image = None;
        self.kills_recorded(now, out);
    }

    /// True if a flush can't end before an image has its kills.
    pub(crate) fn flush_waits_for_image(&self) -> bool {
        self.flush_job.as_ref().is_some_and(|j| j.image.is_some())
    }

    /// No image is under way any more: the next one knows of all that waits for one.
    pub(crate) fn image_abandoned(&mut self) {
        let next = self.image_number + 1;
        if let Some(number) = self.flush_job.as_mut().and_then(|j| j.image.as_mut()) {
            *number = next;
        }
    }

    /// No image will come: who waits for one hears so.
    pub(crate) fn no_image_comes(&mut self, now: Time, out: &mut Actions) {
        if self.flush_job.as_ref().is_some_and(|j| j.image.is_some() && j.recording == 0) {
            self.end_flush_job(now, Outcome::Failed(IoError::FlushFailed), out);
        }
    }

    fn end_flush_job(&mut self, now: Time, outcome: Outcome, out: &mut Actions) {
        let job = self.flush_job.take().expect("a job runs");
        if !outcome.is_done() {
            self.kills.extend(job.kills);
        }
        for mut c in job.waiters {
            c.outcome = outcome;
            self.end_client(now, c, out);
        }
        self.next_flush_job(now, out);
    }
}
