//! Emptying logs: lazy checkpoints and log swaps (Manylogs §III-F, §III-G; ML-M6, ML-M7).
//!
//! ```text
//! close the logs ─► settle ─► flush ─► gather ─► read ─► write ─┐          ┌─► logs empty
//!                    (records under way end)        ▲           │  image ──┤
//!                                                   └───────────┘          └─► what was swapped is found in its new log
//! ```
//! Data that isn't durable yet is flushed first. A device that has lost it may not have reported that: the bytes read then would
//! be written over the last good copy.
//!
//! Only valid bytes move, in ascending order, neighbours merged. A checkpoint writes them home, a swap to the free end of the
//! coldest log. Data that was superseded meanwhile is dropped when it would be written. A range that a client is writing in place
//! at that moment is examined again afterwards.
//!
//! A swap moves one way (ML-A3): exchanging what the cold log holds would need a third place for it, or a crash between
//! the two writes would lose one; and being cold and nearly empty is why it was chosen.

use crate::format::{UNIT_BYTES, is_as_written, sum_of};
use crate::layer::{Life, Logs, Own, Pending};
use crate::log::{State, Tail};
use crate::mtl::{Mapped, Unit};
use crate::status::{CleanReport, Why};
use plimsoll_base::{Completion, Data, Io, IoFlags, Op, Outcome, OwnKind, Span, Time, VolumeKey};
use plimsoll_stack::Actions;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;

/// Own requests under way, and their size, where clients wait for it anyway or don't mind.
const INFLIGHT_MAX: usize = 4;
const IO_BYTES: u64 = 1 << 20;
/// The same in idle time: what a client that comes back may find before it, about 5 ms of a disk.
const GENTLE_IO_BYTES: u64 = 256 << 10;
/// Unneeded bytes between two pieces of a log that are read along: cheaper than another request.
const READ_THROUGH: u64 = 16 << 10;
/// Logs emptied by one idle-time job, so that it soon counts.
const IDLE_LOGS_MAX: usize = 8;
/// Idle time cleans a log that is fuller than this, in percent: an image for every few writes would cost more than it saves.
pub(crate) const CROWDED_PERCENT: u64 = 25;
/// A job that came to nothing isn't tried again sooner.
const RETRY_AFTER: Span = Span::from_secs(10);
/// Extents looked at in one go.
const LOOK_MAX: usize = 16_384;
/// The same where a job's logs are chosen, once for each job.
const LOOK_FOR_BANDS_MAX: usize = 262_144;
/// Bands that an idle-time job copies, beside those of its first log: each takes about a second.
const IDLE_BANDS_MAX: usize = 16;
/// Logs of such a job. Those whose bands are copied anyway cost nothing more.
const IDLE_LOGS_OF_BANDS_MAX: usize = 256;

#[derive(Clone, Debug)]
struct Piece {
    home: u64,
    len: u64,
    at: u64,
    key: VolumeKey,
    /// The checksum unit, and the range that must be read to verify it.
    unit: Option<Unit>,
    data: Data,
}

impl Piece {
    /// The part of it from its byte `from` on.
    fn part(&self, from: u64, len: u64) -> Piece {
        let unit = self.unit.map(|u| Unit { skip: u.skip + from as u32, ..u });
        let data = self.data.slice(self.len, from, len);
        Piece { home: self.home + from, len, at: self.at + from, key: self.key, unit, data }
    }

    /// The device range that must be read to check it.
    fn checked_range(&self) -> (u64, u64) {
        match self.unit {
            Some(u) => (self.at - u64::from(u.skip), u64::from(u.len.get())),
            None => (self.at, self.len),
        }
    }
}

/// Data that a swap has moved.
#[derive(Clone, Copy, Debug)]
struct Moved {
    home: u64,
    len: u64,
    from: u64,
    to: u64,
    /// Checksums of the data at the old place and at the new one.
    old: Option<Unit>,
    new: Option<Unit>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Settle,
    Flush,
    Gather,
    Read,
    Write,
    Image,
    Committing,
}

/// Outcomes of a job's requests of one kind.
#[derive(Clone, Copy, Default)]
struct Ended {
    some_done: bool,
    some_failed: bool,
}

impl Ended {
    fn add(&mut self, is_done: bool) {
        self.some_done |= is_done;
        self.some_failed |= !is_done;
    }

    /// The device works, but not everywhere.
    fn is_mixed(self) -> bool {
        self.some_done && self.some_failed
    }
}

/// A job that empties logs.
pub(crate) struct Clean {
    pub why: Why,
    logs: Vec<u32>,
    member: Vec<bool>,
    /// The log that a swap fills.
    target: Option<u32>,
    phase: Phase,
    /// Extents before it have been gathered.
    cursor: u64,
    /// Ranges to gather again.
    again: Vec<(u64, u64)>,
    batch: Vec<Piece>,
    /// Reads of the batch: place, length, pieces.
    reads: Vec<(u64, u64, Vec<usize>)>,
    next_read: usize,
    todo: VecDeque<Piece>,
    inflight: usize,
    /// Writes under way, by number.
    writes: Vec<Option<(u64, u64)>>,
    moved: Vec<Moved>,
    failed: bool,
    /// Somebody waits for what it does, so it doesn't wait for idle time.
    is_needed: bool,
    reads_ended: Ended,
    writes_ended: Ended,
    report: CleanReport,
    since: Time,
}

impl Clean {
    /// True if it writes any of this home range now.
    pub fn writes(&self, from: u64, to: u64) -> bool {
        self.target.is_none() && self.writes.iter().flatten().any(|&(a, b)| a < to && from < b)
    }

    /// It leaves the device to clients, and is over a part of the logs only.
    fn is_of_idle_time(&self) -> bool {
        matches!(self.why, Why::Idle | Why::Swap)
    }

    fn gentle(&self) -> bool {
        self.is_of_idle_time() && !self.is_needed
    }

    fn io_bytes(&self) -> u64 {
        if self.gentle() { GENTLE_IO_BYTES } else { IO_BYTES }
    }

    fn enter(&mut self, now: Time, phase: Phase) {
        let took = now.since(self.since);
        match self.phase {
            Phase::Read => self.report.read_time += took,
            Phase::Write => self.report.write_time += took,
            _ => {}
        }
        (self.phase, self.since) = (phase, now);
    }
}

impl Logs {
    /// Empties logs soon: what `why` says.
    pub(crate) fn ask_to_clean(&mut self, now: Time, why: Why, out: &mut Actions) {
        if self.life != Life::Ready || (self.stopping && !self.is_room_awaited()) {
            return;
        }
        if self.clean.is_some() {
            // Its end makes room, or lets the job that is asked for begin.
            self.need_clean();
            return self.step_clean(now, out);
        }
        let logs = self.logs_in_use();
        self.begin_clean(now, why, logs, None, out);
    }

    /// The job under way, if there is one, no longer waits for idle time.
    pub(crate) fn need_clean(&mut self) {
        if let Some(c) = &mut self.clean {
            c.is_needed = true;
        }
    }

    /// True if a flush waits for an image that the table is too large for.
    fn is_room_awaited(&self) -> bool {
        self.flush_waits_for_image() && self.mtl.len() > self.layout.shape.extents_max as usize
    }

    /// The pool ends: a job that hasn't come to its image is given up, nothing of it is lost.
    pub(crate) fn begin_stop(&mut self, now: Time) {
        self.stopping = true;
        self.retry_now(now);
        if self.clean.as_ref().is_some_and(|c| c.phase != Phase::Committing) {
            self.clean_failed(now);
        }
    }

    /// The logs that a job over all of them empties: without those at which the last one failed, if there are others.
    pub(crate) fn logs_in_use(&self) -> Vec<u32> {
        let used = |&log: &u32| match self.logs[log as usize].state {
            State::Open => self.logs[log as usize].tail > 0,
            State::Bad => (self.mtl.valid_in(log) > 0 || self.logs[log as usize].no_space) && !self.is_unreadable(log),
            State::Closed | State::Draining => false,
        };
        let all = (0..self.layout.logs).filter(used);
        let (failed, others): (Vec<u32>, Vec<u32>) = all.partition(|log| self.unwritten.contains(log));
        if others.is_empty() { failed } else { others }
    }

    /// True if a checkpoint would fail at this log again: what it couldn't read of it is still wanted.
    fn is_unreadable(&self, log: u32) -> bool {
        let is_wanted = |(home, piece): (&u64, &(u64, u64))| valid_bytes(&self.mtl, *home, *piece) == piece.1;
        self.unreadable.get(&log).is_some_and(|pieces| pieces.iter().all(is_wanted))
    }

    /// Number of logs with data that a checkpoint couldn't read and that are still valid.
    pub(crate) fn unreadable_logs(&self) -> usize {
        let is_valid = |(home, piece): (&u64, &(u64, u64))| valid_bytes(&self.mtl, *home, *piece) > 0;
        self.unreadable.values().filter(|pieces| pieces.iter().any(is_valid)).count()
    }

    pub(crate) fn begin_clean(&mut self, now: Time, why: Why, logs: Vec<u32>, target: Option<u32>, out: &mut Actions) {
        if logs.is_empty() {
            return;
        }
        let mut member = vec![false; self.layout.logs as usize];
        for &log in logs.iter().chain(&target) {
            self.open.remove(log);
            if self.logs[log as usize].state == State::Open {
                self.logs[log as usize].state = State::Closed;
            }
        }
        logs.iter().for_each(|log| member[*log as usize] = true);
        self.clean = Some(Clean {
            why,
            member,
            target,
            phase: Phase::Settle,
            cursor: 0,
            again: Vec::new(),
            batch: Vec::new(),
            reads: Vec::new(),
            next_read: 0,
            todo: VecDeque::new(),
            inflight: 0,
            writes: Vec::new(),
            moved: Vec::new(),
            failed: false,
            is_needed: false,
            reads_ended: Ended::default(),
            writes_ended: Ended::default(),
            report: CleanReport { why, logs: logs.len() as u32, begun_at: now, ..CleanReport::default() },
            since: now,
            logs,
        });
        self.step_clean(now, out);
    }

    /// Of the job under way: why, bytes moved, bytes that are left, and when it began.
    pub(crate) fn clean_progress(&self) -> Option<(Why, u64, u64, Time)> {
        let c = self.clean.as_ref()?;
        let all: u64 = c.logs.iter().map(|log| self.mtl.valid_in(*log)).sum();
        Some((c.why, c.report.write_bytes, all.saturating_sub(c.report.write_bytes), c.report.begun_at))
    }

    /// Begins to empty the logs whose turn it is, if there are any. A job that waits for idle time doesn't keep the others from their turn.
    fn choose_clean(&mut self, now: Time, out: &mut Actions) {
        if self.life != Life::Ready || self.stopping {
            return;
        }
        let due = self.due(now);
        if let Some(c) = &self.clean {
            // A write that finds no log with room says so itself: the job's logs are closed.
            if c.gentle() && due.is_some() {
                self.need_clean();
                self.step_clean(now, out);
            }
            return;
        }
        if now < self.clean_retry_at {
            return;
        }
        let is_full = self.mtl.len() >= self.extents_high() || self.open.len() == 0;
        let why = if is_full && !self.clean_asked { Some(Why::Full) } else { due };
        if let Some(why) = why {
            self.clean_asked &= why != Why::Asked;
            return self.ask_to_clean(now, why, out);
        }
        if (!self.crowded.is_empty() || self.is_table_used()) && self.is_idle_time(now) {
            self.use_idle_time(now, out);
        }
    }

    /// The job over all logs that is due by an order or by the time.
    fn due(&self, now: Time) -> Option<Why> {
        if self.clean_asked {
            return Some(Why::Asked);
        }
        if self.mtl.is_empty() && self.crowded.is_empty() {
            return None;
        }
        let c = self.config.clean;
        if c.off_hours.is_some_and(|o| o.contains(now) && self.window_done != o.begun(now)) {
            return Some(Why::OffHours);
        }
        c.every.is_some_and(|every| now >= self.cleaned_at + every).then_some(Why::Periodic)
    }

    /// True if the table is so full that idle time empties logs over bands, however little is in each log: the writes of a shingled drive are
    /// all logged, so the table may be full first.
    fn is_table_used(&self) -> bool {
        let most = self.extents_high() as u64 * u64::from(self.config.clean.when_used_percent);
        self.band_bytes > 0 && self.config.clean.when_idle && self.mtl.len() as u64 * 100 > most
    }

    fn is_idle_time(&self, now: Time) -> bool {
        let quiet = |after: Span| self.clients_inside == 0 && now >= self.client_at + after;
        self.config.clean.idle_after.is_some_and(quiet)
    }

    fn use_idle_time(&mut self, now: Time, out: &mut Actions) {
        if let Some((full, cold)) = self.choose_swap() {
            return self.begin_clean(now, Why::Swap, vec![full], Some(cold), out);
        }
        let used = self.crowded.len() as u64 * 100
            > u64::from(self.layout.logs) * u64::from(self.config.clean.when_used_percent);
        if self.is_table_used() {
            let logs = self.convenient(self.logs_in_use());
            self.begin_clean(now, Why::Idle, logs, None, out);
        } else if self.config.clean.when_idle && used {
            let is_open = |l: &u32| self.logs[*l as usize].state == State::Open && !self.unwritten.contains(l);
            let mut fullest: Vec<u32> = self.crowded.iter().copied().filter(is_open).collect();
            fullest.sort_by_key(|l| (std::cmp::Reverse(self.logs[*l as usize].tail), *l));
            if self.band_bytes > 0 {
                fullest = self.convenient(fullest);
            }
            fullest.truncate(if self.band_bytes > 0 { IDLE_LOGS_OF_BANDS_MAX } else { IDLE_LOGS_MAX });
            self.begin_clean(now, Why::Idle, fullest, None, out);
        }
    }

    /// Of `logs` those that free most for each band that is copied: the cost of a checkpoint is bands, whatever it writes to each. Then those whose
    /// bands are copied anyway.
    fn convenient(&self, logs: Vec<u32>) -> Vec<u32> {
        let mut left: BTreeMap<u32, BTreeSet<u64>> = logs.into_iter().map(|l| (l, BTreeSet::new())).collect();
        for (home, m) in self.mtl.from(0).take(LOOK_FOR_BANDS_MAX) {
            if let Some(bands) = left.get_mut(&m.log) {
                bands.extend(home / self.band_bytes..=(home + u64::from(m.len) - 1) / self.band_bytes);
            }
        }
        let (mut chosen, mut copied) = (Vec::new(), BTreeSet::new());
        while chosen.len() < IDLE_LOGS_OF_BANDS_MAX {
            let more = |bands: &BTreeSet<u64>| bands.difference(&copied).count() as u64;
            let gain = |log: u32, n: u64| (n == 0, u64::from(self.logs[log as usize].tail) / n.max(1));
            let found = left.iter().map(|(log, bands)| (*log, more(bands)));
            let Some((log, n)) = found.max_by_key(|&(log, n)| (gain(log, n), std::cmp::Reverse(log))) else { break };
            if n > 0 && !chosen.is_empty() && copied.len() + n as usize > IDLE_BANDS_MAX {
                break;
            }
            copied.extend(left.remove(&log).expect("just found"));
            chosen.push(log);
        }
        chosen
    }

    /// The fullest log above the threshold, and the coldest with room for its valid bytes: the one that least recently took
    /// a record, then the emptiest, then the nearest (ML-A3): what was written lately is read again where the head is.
    fn choose_swap(&self) -> Option<(u32, u32)> {
        let size = self.layout.shape.log_bytes;
        let above = u64::from(self.config.swap_above_percent);
        let tail = |log: u32| u64::from(self.logs[log as usize].tail);
        let is_open = |log: u32| self.logs[log as usize].state == State::Open;
        let is_hot = |l: &u32| {
            is_open(*l)
                && tail(*l) * 100 > above * size
                && !self.logs[*l as usize].swapped_in
                && self.open.groups_to_next(*l) > self.config.swap_reach_groups
        };
        let full = self.crowded.iter().copied().filter(is_hot);
        let full = full.max_by_key(|l| (tail(*l), std::cmp::Reverse(*l)))?;
        let need = self.mtl.valid_in(full);
        let has_room = |l: &u32| is_open(*l) && *l != full && tail(*l) * 100 <= size * CROWDED_PERCENT;
        let cold = (0..self.layout.logs)
            .filter(has_room)
            .filter(|l| size - tail(*l) >= need)
            .min_by_key(|l| (self.logs[*l as usize].used_at_sequence, tail(*l), l.abs_diff(full)))?;
        Some((full, cold))
    }

    /// Performs the layer's work beside clients' requests: checkpoints, witnesses, images of the table.
    pub(crate) fn work(&mut self, now: Time, out: &mut Actions) {
        self.step_clean(now, out);
        self.choose_clean(now, out);
        self.write_witnesses(now, out);
        self.retry_note(now, out);
        match self.life {
            Life::Ready if !self.is_image_busy() && self.trouble.is_none_or(|t| now >= t.retry_at) => {
                let due = self.changed > 0 && now >= self.image_at + self.config.image_every;
                if (self.image_wanted || due) && !self.begin_image(now, Vec::new(), out) {
                    self.image_at = now;
                    self.ask_to_clean(now, Why::Full, out);
                }
            }
            Life::Degraded(_) => {
                self.give_up_image(now, out);
                self.no_image_comes(now, out);
            }
            Life::Recovering if !self.is_image_busy() => self.image_at_start(now, out),
            _ => {}
        }
        self.arm(now, out);
    }

    /// Asks to be woken when there will be something to do.
    pub(crate) fn arm(&self, now: Time, out: &mut Actions) {
        // What is due already waits for something else, whose end is heard: it must not hide what isn't yet.
        let mut wish = Time::NEVER;
        let mut add = |at: Time| wish = if at > now { wish.min(at) } else { wish };
        if let Some(t) = self.trouble {
            add(t.retry_at);
        }
        if self.life == Life::Ready && !self.stopping {
            if self.changed > 0 && !self.is_image_busy() {
                add(self.image_at + self.config.image_every);
            }
            add(self.claims.due_at(self.config.witness_after));
            let idle = self.config.clean.idle_after.filter(|_| self.clients_inside == 0);
            match &self.clean {
                Some(c) if c.gentle() && c.inflight == 0 && c.phase != Phase::Committing => {
                    add(idle.map_or(Time::NEVER, |after| self.client_at + after));
                    // Others that come due meanwhile need it.
                    self.next_clean(now, None).into_iter().for_each(add);
                }
                Some(_) => {}
                None => self.next_clean(now, idle).into_iter().for_each(add),
            }
        }
        let wish = wish.min(if self.gather_until.is_set() { self.gather_until.max(now) } else { Time::NEVER });
        if wish.is_set() {
            out.wake_at(wish);
        }
    }

    /// The earliest time at which logs may be emptied next, by each of the rules.
    fn next_clean(&self, now: Time, idle: Option<Span>) -> [Time; 4] {
        let (c, never) = (&self.config.clean, Time::NEVER);
        let (mut retry, mut window, mut every, mut quiet) = (never, never, never, never);
        if !self.mtl.is_empty() {
            retry = self.clean_retry_at;
            window = c.off_hours.map_or(never, |o| o.next(now));
            every = c.every.map_or(never, |every| self.cleaned_at + every);
        }
        if !self.crowded.is_empty() || self.is_table_used() {
            quiet = idle.map_or(never, |after| self.client_at + after);
        }
        [retry, window, every, quiet]
    }

    fn step_clean(&mut self, now: Time, out: &mut Actions) {
        while self.clean.is_some() && self.step_clean_once(now, out) {}
    }

    /// One step; false if it must wait.
    fn step_clean_once(&mut self, now: Time, out: &mut Actions) -> bool {
        let idle = self.is_idle_time(now);
        let c = self.clean.as_mut().expect("a job runs");
        if c.failed && c.inflight == 0 && c.phase != Phase::Committing {
            self.clean_failed(now);
            return false;
        }
        let has_turn = if c.gentle() { idle && c.inflight == 0 } else { c.inflight < INFLIGHT_MAX };
        let may_send = has_turn && !c.failed;
        match c.phase {
            Phase::Settle => {
                let busy = c.logs.iter().chain(&c.target).any(|l| !self.logs[*l as usize].order.is_empty());
                if !busy {
                    c.enter(now, Phase::Flush);
                }
                !busy
            }
            Phase::Flush if c.logs.iter().all(|l| !self.dirty.contains(l)) => {
                c.enter(now, Phase::Gather);
                true
            }
            Phase::Flush => {
                if !may_send || c.inflight > 0 {
                    return false;
                }
                c.inflight += 1;
                let tails = self.dirty_tails();
                let io = self.own(now, Op::Flush, 0, 0, OwnKind::Metadata, out);
                self.send_flush(io, tails, out);
                false
            }
            Phase::Gather => self.gather(now),
            Phase::Read if c.next_read < c.reads.len() => may_send && self.read_next(now, out),
            Phase::Read => {
                if c.inflight > 0 {
                    return false;
                }
                c.todo = c.batch.drain(..).collect();
                c.enter(now, Phase::Write);
                true
            }
            Phase::Write if !c.todo.is_empty() => may_send && self.write_next(now, out),
            Phase::Write => {
                if c.inflight > 0 {
                    return false;
                }
                c.enter(now, Phase::Gather);
                true
            }
            Phase::Image => {
                if self.image.is_some() || self.copy.is_some() || (c.gentle() && !idle) {
                    return false;
                }
                self.finish_clean(now, out);
                false
            }
            Phase::Committing => false,
        }
    }

    /// Collects the next batch, in home order for a checkpoint and in log order for a swap.
    fn gather(&mut self, now: Time) -> bool {
        let c = self.clean.as_mut().expect("a job runs");
        let io_bytes = c.io_bytes();
        let (mut bytes, mut looked) = (0, 0);
        let take = |home: u64, m: &Mapped, batch: &mut Vec<Piece>| {
            let mut done = 0;
            while done < u64::from(m.len) {
                // What has a unit is never longer than one request.
                let len = io_bytes.min(u64::from(m.len) - done);
                batch.push(Piece {
                    home: home + done,
                    len,
                    at: m.at + done,
                    key: m.key,
                    unit: m.unit,
                    data: Data::Absent,
                });
                done += len;
            }
            u64::from(m.len)
        };
        let mut more = false;
        for (home, m) in self.mtl.from(c.cursor) {
            if bytes >= self.config.clean.batch_bytes || looked == LOOK_MAX {
                more = true;
                break;
            }
            looked += 1;
            // Not where the next one may begin: what is left of this one when it is cut is in the batch.
            c.cursor = home + u64::from(m.len);
            if !m.is_lost() && c.member[m.log as usize] {
                bytes += take(home, &m, &mut c.batch);
            }
        }
        if !more {
            // The last time round: what a client was writing home meanwhile.
            let again = std::mem::take(&mut c.again);
            for (from, to) in again {
                let is_member = |m: &Mapped| !m.is_lost() && c.member[m.log as usize];
                let found: Vec<_> = self.mtl.lookup(from, to).filter(|(_, m)| is_member(m)).collect();
                let blocked = !found.is_empty() && self.ops.iter().any(|(_, p)| p.changes(from, to));
                // Logged anew since it was put off, and found above: two writes of it would be in flight together.
                let in_batch = |home: u64, m: &Mapped| {
                    c.batch.iter().any(|p| p.home < home + u64::from(m.len) && home < p.home + p.len)
                };
                if blocked || found.iter().any(|(home, m)| in_batch(*home, m)) {
                    c.again.push((from, to));
                    continue;
                }
                found.iter().for_each(|(home, m)| bytes += take(*home, m, &mut c.batch));
            }
        }
        if c.batch.is_empty() {
            match (more, c.again.is_empty()) {
                (true, _) => return true,
                (false, true) => c.enter(now, Phase::Image),
                (false, false) => return false, // until those clients' writes end
            }
            return true;
        }
        once(&mut c.batch);
        c.report.extents += c.batch.len() as u64;
        c.reads = plan_reads(&c.batch, io_bytes);
        if c.target.is_some() {
            c.batch.sort_by_key(|p| p.at);
            c.reads = plan_reads(&c.batch, io_bytes);
        }
        c.next_read = 0;
        c.enter(now, Phase::Read);
        true
    }

    fn read_next(&mut self, now: Time, out: &mut Actions) -> bool {
        let c = self.clean.as_mut().expect("a job runs");
        let i = c.next_read;
        let (at, len, _) = c.reads[i];
        c.next_read += 1;
        c.inflight += 1;
        c.report.reads += 1;
        c.report.read_bytes += len;
        self.head_at = at;
        let io = self.own(now, Op::Read, at, len, OwnKind::Checkpoint, out);
        self.send_own(io, Own::CleanRead(i), out);
        true
    }

    fn send_flush(&mut self, mut io: Io, tails: Vec<Tail>, out: &mut Actions) {
        io.head.tag = self.ops.insert(Pending::CleanFlush { tails }) as u64;
        out.submit(0, io);
    }

    pub(crate) fn clean_flushed(&mut self, now: Time, outcome: Outcome, tails: Vec<Tail>) {
        let outcome = self.flushed(now, outcome, tails);
        let job = self.clean.as_mut().expect("a job runs");
        job.inflight -= 1;
        // It isn't asked again at once.
        job.failed |= !outcome.is_done();
    }

    pub(crate) fn clean_read(&mut self, i: usize, c: Completion) {
        let job = self.clean.as_mut().expect("a job runs");
        job.inflight -= 1;
        job.reads_ended.add(c.outcome.is_done());
        let (at, len, pieces) = &job.reads[i];
        if !c.outcome.is_done() {
            // Its valid bytes can't be had: the log isn't emptied, and whoever reads them hears of it. The next job leaves it out.
            job.failed = true;
            let log = self.layout.group_of(*at);
            let pieces = pieces.iter().map(|p| &job.batch[*p]).map(|p| (p.home, (p.at, p.len)));
            let unreadable = self.unreadable.entry(log).or_default();
            unreadable.extend(pieces);
            unreadable.retain(|home, piece| valid_bytes(&self.mtl, *home, *piece) == piece.1);
            self.counters.clean_errors += 1;
            return self.retire(log);
        }
        let unchecked = self.config.planted == Some(crate::config::Planted::CleanUnchecked);
        let mut corrupt = Vec::new();
        for &p in pieces {
            let piece = &mut job.batch[p];
            piece.data = c.io.data.slice(*len, piece.at - at, piece.len);
            let Some(unit) = piece.unit.filter(|_| !unchecked) else { continue };
            let (from, n) = piece.checked_range();
            if !is_as_written(&self.layout, n, &c.io.data.slice(*len, from - at, n), unit.sum) {
                corrupt.push(piece.clone());
            }
        }
        corrupt.iter().for_each(|p| self.lose(p));
    }

    /// A piece isn't what was written there. Its still valid bytes are lost. Reads of them fail from now on, and they don't keep
    /// their log from being emptied.
    fn lose(&mut self, p: &Piece) {
        for v in still_valid(&self.mtl, p) {
            self.mtl.put(v.home, Mapped::lost(v.home, v.len as u32, p.key));
            self.changed += 1;
        }
        self.counters.clean_errors += 1;
        let log = self.layout.group_of(p.at);
        self.is_corrupt(log, p.key, p.home);
        self.retire(log);
    }

    /// Sends the next write of the batch, as large as it gets. True also if nothing was left to write of a piece.
    fn write_next(&mut self, now: Time, out: &mut Actions) -> bool {
        if self.clean.as_ref().is_some_and(|c| c.target.is_some()) {
            return self.write_to_log(now, out);
        }
        let c = self.clean.as_mut().expect("a job runs");
        let io_bytes = c.io_bytes();
        let (mut parts, mut from, mut to, mut run_end) = (Vec::new(), 0, 0, 0);
        while let Some(p) = c.todo.pop_front() {
            let valid: Vec<Piece> = if self.config.planted == Some(crate::config::Planted::StaleWrittenHome) {
                vec![p.clone()]
            } else {
                still_valid(&self.mtl, &p)
            };
            let mut left = Vec::new();
            for v in valid {
                let end = v.home + v.len;
                let joins = parts.is_empty() || (v.home == to && end - from <= io_bytes && v.home < run_end);
                if !left.is_empty() || !joins {
                    left.push(v);
                } else if self.ops.iter().any(|(_, p)| p.changes(v.home, end)) {
                    c.again.push((v.home, end));
                } else {
                    if parts.is_empty() {
                        from = v.home;
                        run_end = v.home + self.layout.to_device(v.home).1;
                    }
                    let cut = v.len.min(run_end - v.home);
                    parts.push((cut, v.data.slice(v.len, 0, cut)));
                    to = v.home + cut;
                    if cut < v.len {
                        left.push(v.part(cut, v.len - cut));
                    }
                }
            }
            let stop = !left.is_empty();
            left.into_iter().rev().for_each(|p| c.todo.push_front(p));
            if stop {
                break;
            }
        }
        if parts.is_empty() {
            return true;
        }
        let (at, _) = self.layout.to_device(from);
        self.send_clean_write(now, at, (from, to), parts, out);
        true
    }

    fn send_clean_write(&mut self, now: Time, at: u64, range: (u64, u64), parts: Vec<(u64, Data)>, out: &mut Actions) {
        let c = self.clean.as_mut().expect("a job runs");
        let len = range.1 - range.0;
        let i = c.writes.iter().position(Option::is_none).unwrap_or_else(|| {
            c.writes.push(None);
            c.writes.len() - 1
        });
        c.writes[i] = Some(range);
        c.inflight += 1;
        c.report.writes += 1;
        c.report.write_bytes += len;
        self.head_at = at;
        let mut io = self.own(now, Op::Write, at, len, OwnKind::Checkpoint, out);
        if self.config.capacitor.is_some() {
            // What the capacitor's table says of it must hold at once.
            io.head.flags = IoFlags::FUA;
        }
        let absent = parts.iter().all(|(_, d)| matches!(d, Data::Absent));
        io.data = if absent { Data::Absent } else { Data::Parts(parts.into()) };
        self.send_own(io, Own::CleanWrite(i), out);
    }

    /// Appends to the cold log what follows on each other there.
    fn write_to_log(&mut self, now: Time, out: &mut Actions) -> bool {
        let c = self.clean.as_mut().expect("a job runs");
        let target = c.target.expect("a swap");
        let log = &mut self.logs[target as usize];
        let at = self.layout.log_start(target) + u64::from(log.tail);
        let room = self.layout.shape.log_bytes - u64::from(log.tail);
        let (mut parts, mut len) = (Vec::new(), 0);
        while let Some(p) = c.todo.pop_front() {
            if len + p.len > room {
                // It was chosen because all fits: a mistake, which costs this swap and not the process.
                c.failed = true;
                self.counters.clean_errors += 1;
                return true;
            }
            if len + p.len > c.io_bytes() && len > 0 {
                c.todo.push_front(p);
                break;
            }
            let new = NonZeroU32::new(p.len as u32).filter(|_| p.unit.is_some() && p.len <= UNIT_BYTES).map(|n| Unit {
                sum: sum_of(&self.layout, p.len, &p.data),
                skip: 0,
                len: n,
            });
            c.moved.push(Moved { home: p.home, len: p.len, from: p.at, to: at + len, old: p.unit, new });
            parts.push((p.len, p.data));
            len += p.len;
        }
        log.tail += len as u32;
        self.send_clean_write(now, at, (at, at + len), parts, out);
        true
    }

    pub(crate) fn clean_written(&mut self, i: usize, c: &Completion, out: &mut Actions) {
        let job = self.clean.as_mut().expect("a job runs");
        job.inflight -= 1;
        job.writes_ended.add(c.outcome.is_done());
        let (from, to) = job.writes[i].take().expect("it was under way");
        if !c.outcome.is_done() {
            job.failed = true;
            self.counters.clean_errors += 1;
            if let Some(target) = job.target {
                self.retire(target);
            } else {
                let logs = self.mtl.lookup(from, to).map(|(_, m)| m.log);
                self.unwritten.extend(logs.filter(|log| job.member.get(*log as usize) == Some(&true)));
            }
        }
        self.release_held(out);
    }

    /// Everything has moved: an image makes it count.
    fn finish_clean(&mut self, now: Time, out: &mut Actions) {
        let c = self.clean.as_mut().expect("a job runs");
        c.enter(now, Phase::Committing);
        let (logs, target, moved) = (c.logs.clone(), c.target, c.moved.clone());
        // What moves may be cut finer than it was.
        if target.is_some() && self.mtl.len() + moved.len() > self.layout.shape.extents_max as usize {
            return self.clean_failed(now);
        }
        if let Some(target) = target {
            moved.iter().for_each(|m| self.remap((m.home, m.len), (m.from, m.old), (m.to, m.new), target));
            // Beyond what was moved, its next record follows on its last.
            let l = &mut self.logs[target as usize];
            l.done_tail = l.tail;
            l.swapped_in = true;
            self.dirty.insert(target);
        }
        if !self.begin_image(now, logs, out) {
            return self.clean_failed(now);
        }
        self.making_room = None;
    }

    /// Maps the parts of a home range that are still at `from` to `to`, in `log`.
    fn remap(
        &mut self,
        (home, len): (u64, u64),
        (from, old): (u64, Option<Unit>),
        (to, unit): (u64, Option<Unit>),
        log: u32,
    ) {
        let moved = Piece { home, len, at: from, key: VolumeKey::POOL, unit: old, data: Data::Absent };
        for v in still_valid(&self.mtl, &moved) {
            let key = self.mtl.lookup(v.home, v.home + 1).next().expect("just seen").1.key;
            let part = v.at - from;
            let unit = unit.map(|u| Unit { skip: u.skip + part as u32, ..u });
            self.mtl.put(v.home, Mapped { at: to + part, len: v.len as u32, log, key, unit });
        }
    }

    /// The image holds.
    pub(crate) fn clean_committed(&mut self, now: Time, out: &mut Actions) {
        // An image for another reason may have come first.
        if self.clean.as_ref().is_none_or(|c| c.phase != Phase::Committing) {
            return;
        }
        let mut c = self.clean.take().expect("just seen");
        self.reopen(&c);
        c.report.took = now.since(c.report.begun_at);
        match c.why {
            Why::Swap => self.counters.swaps += 1,
            _ => {
                self.counters.checkpoints += 1;
                self.unwritten.clear();
            }
        }
        if !c.is_of_idle_time() {
            self.cleaned_at = now;
            let begun_at = c.report.begun_at;
            let window = self.config.clean.off_hours.filter(|o| o.contains(begun_at));
            self.window_done = window.map_or(self.window_done, |o| o.begun(begun_at));
        }
        self.counters.cleaned_bytes += c.report.write_bytes;
        self.counters.last_clean = Some(c.report);
        self.write_records(now, out);
    }

    /// A job that hasn't come to its image is not to come to one.
    pub(crate) fn give_up_cleaning(&mut self) {
        if let Some(c) = &mut self.clean {
            c.failed = true;
        }
    }

    /// The job comes to nothing: what it closed is open again, and everything is where it was.
    pub(crate) fn clean_failed(&mut self, now: Time) {
        let Some(c) = &mut self.clean else { return };
        if c.inflight > 0 {
            c.failed = true;
            return;
        }
        let c = self.clean.take().expect("just seen");
        self.counters.cleans_failed += 1;
        self.clean_retry_at = now + RETRY_AFTER;
        if let Some(target) = c.target {
            // A record behind what was moved in vain would not be found.
            let l = &mut self.logs[target as usize];
            l.tail = l.done_tail;
            if c.phase == Phase::Committing {
                // Nobody knows whether it's there, but it still is where it was. A record behind it would not be found.
                for m in &c.moved {
                    self.remap((m.home, m.len), (m.to, m.new), (m.from, m.old), c.logs[0]);
                }
                self.closed_until_image.push(target);
            }
        }
        self.reopen(&c);
        // An order goes on at once without the logs at which it failed. Where nothing succeeds the device is away.
        let is_partial = c.reads_ended.is_mixed() || c.writes_ended.is_mixed();
        if c.why == Why::Asked && is_partial && self.logs_in_use().iter().any(|log| !self.unwritten.contains(log)) {
            (self.clean_asked, self.clean_retry_at) = (true, now);
        }
    }

    fn reopen(&mut self, c: &Clean) {
        for &log in c.logs.iter().chain(&c.target) {
            let l = &self.logs[log as usize];
            let crowded = u64::from(l.tail) * 100 > self.layout.shape.log_bytes * CROWDED_PERCENT;
            if crowded && l.state != State::Bad {
                self.crowded.insert(log);
            } else {
                self.crowded.remove(&log);
            }
            let l = &mut self.logs[log as usize];
            if l.state == State::Closed && !self.closed_until_image.contains(&log) {
                l.state = State::Open;
                if u64::from(l.tail) < self.layout.shape.log_bytes {
                    self.open.insert(log);
                }
            }
        }
    }
}

/// Bytes of a piece, by its home, place and length, that are still mapped to that place.
fn valid_bytes(mtl: &crate::mtl::Mtl, home: u64, (at, len): (u64, u64)) -> u64 {
    let there = |(h, m): &(u64, Mapped)| !m.is_lost() && m.at == at + (h - home);
    mtl.lookup(home, home + len).filter(there).map(|(_, m)| u64::from(m.len)).sum()
}

/// The parts of a piece that are still mapped to the place from which it was read.
fn still_valid(mtl: &crate::mtl::Mtl, p: &Piece) -> Vec<Piece> {
    let same = |(home, m): &(u64, Mapped)| !m.is_lost() && m.at == p.at + (home - p.home);
    mtl.lookup(p.home, p.home + p.len).filter(same).map(|(home, m)| p.part(home - p.home, u64::from(m.len))).collect()
}

/// Orders pieces by their homes, and cuts off what another one has too: an extent that was cut since it was gathered, and is to be
/// gathered again, is found twice.
fn once(batch: &mut Vec<Piece>) {
    batch.sort_by_key(|p| p.home);
    let mut end = 0;
    batch.retain_mut(|p| {
        let (from, to) = (p.home.max(end), p.home + p.len);
        if from > p.home && from < to {
            *p = p.part(from - p.home, to - from);
        }
        end = end.max(to);
        from < to
    });
}

/// Reads that bring all pieces and what checks them, in the order of their places, with small gaps read along.
fn plan_reads(batch: &[Piece], io_bytes: u64) -> Vec<(u64, u64, Vec<usize>)> {
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by_key(|i| batch[*i].checked_range());
    let mut reads: Vec<(u64, u64, Vec<usize>)> = Vec::new();
    for i in order {
        let (at, len) = batch[i].checked_range();
        let end = at + len;
        match reads.last_mut() {
            Some((from, len, pieces)) if at <= *from + *len + READ_THROUGH && end - *from <= io_bytes => {
                *len = (*len).max(end - *from);
                pieces.push(i);
            }
            _ => reads.push((at, end - at, vec![i])),
        }
    }
    reads
}
