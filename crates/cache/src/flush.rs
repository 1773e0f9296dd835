//! Making what only the cache has durable: open chunks are written, the device is flushed, and the journal says that they are there
//! (`held.rs`). One at a time for each partition, as
//! where volumes have their own a fence writes one's chunks in its slot; who comes meanwhile waits for the next.

use crate::chunk::Superseded;
use crate::config::Planted;
use crate::layer::Cache;
use crate::request::Pending;
use plimsoll_base::{Data, Op, OwnKind, Time};
use plimsoll_stack::Actions;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Chunks that may wait for a flush before the cache makes one of its own.
const UNDURABLE_MAX: usize = 16;
/// A dirty chunk on the device that no flush has covered.
pub(crate) struct Undurable {
    pub weu: u32,
    /// The WEU's number.
    pub sequence: u64,
    /// Its own.
    pub number: u64,
    pub slots: Range<u32>,
    pub supersedes: Vec<Superseded>,
}

/// A flush under way.
pub(crate) struct FlushJob {
    /// Which one it is, from 1.
    number: u64,
    /// For whom it is; `None` for what nobody in particular wants.
    part: Option<u16>,
    /// Dirty chunks of its partition below this are durable when it's done, ...
    upto: u64,
    /// ... and of all chunks those below this.
    all_upto: u64,
    /// Chunks that must be written first: WEU and first slot.
    waits: Vec<(u32, u32)>,
    sent: bool,
    /// The dirty chunks that it makes durable: WEU and first slot.
    covers: BTreeSet<(u32, u32)>,
    /// Client requests that wait for it.
    pub ops: Vec<usize>,
}

impl Cache {
    pub(crate) fn progress_flush(&mut self, now: Time, out: &mut Actions) {
        if !self.is_ready() {
            return;
        }
        self.flush_wanted |= self.undurable.len() > UNDURABLE_MAX;
        if self.flush_wanted || !self.flush_next.is_empty() {
            self.begin_flushes(now, out);
        }
        // The device is flushed once at a time: what that covers is what was written before.
        if self.flush_jobs.iter().any(|j| j.sent) {
            return;
        }
        let is_closed = |w: &(u32, u32)| self.chunks.iter().any(|c| c.closed && (c.weu, c.first_slot) == *w);
        let Some(i) = self.flush_jobs.iter().position(|j| !j.waits.iter().any(is_closed)) else { return };
        let on_their_way = self.chunks.iter().filter(|c| c.closed).map(|c| c.number).min();
        // A chunk isn't found as long as one before it in its WEU isn't there: another part's may be on its way still.
        let is_found =
            |weu: u32, slot: u32| !self.chunks.iter().any(|c| c.closed && c.weu == weu && c.first_slot < slot);
        // Nor is what it relies on there as long as one before it in its part isn't.
        let relies = |u: &Undurable| {
            let part = |weu: u32| self.index.weu(weu).partition;
            !self.chunks.iter().any(|c| c.closed && c.dirty && c.number < u.number && part(c.weu) == part(u.weu))
        };
        let any = self.planted(Planted::FlushOutOfOrder);
        let covers = self.undurable.iter().filter(|u| any || (is_found(u.weu, u.slots.start) && relies(u)));
        let covers = covers.map(|u| (u.weu, u.slots.start)).collect();
        let job = &mut self.flush_jobs[i];
        job.all_upto = on_their_way.unwrap_or(job.upto).min(job.upto);
        (job.sent, job.covers) = (true, covers);
        match self.planted(Planted::FlushWithoutBarrier) {
            true => self.fast_flushed(now, out),
            false => self.send_fast(now, (Op::Flush, OwnKind::Metadata), (0, 0), Data::Absent, Pending::FastFlush, out),
        }
    }

    /// Begins a flush for each partition that wants one and has none under way; the others want it still.
    fn begin_flushes(&mut self, now: Time, out: &mut Actions) {
        let (ops, parts) = (std::mem::take(&mut self.flush_next), std::mem::take(&mut self.flush_parts));
        let mut groups: BTreeMap<Option<u16>, Vec<usize>> = parts.iter().map(|p| (Some(*p), Vec::new())).collect();
        let part =
            |op: &usize| self.by_key.get(&self.ops[*op].head.volume).map(|s| self.volumes[*s as usize].partition);
        for op in ops {
            groups.entry(part(&op)).or_default().push(op);
        }
        if groups.is_empty() && self.flush_wanted {
            groups.insert(None, Vec::new());
        }
        let for_all = groups.contains_key(&None);
        self.flush_wanted = false;
        for (part, ops) in groups {
            let waits = match part {
                None => !self.flush_jobs.is_empty(),
                Some(_) => self.flush_jobs.iter().any(|j| j.part == part),
            };
            if waits {
                self.flush_wanted |= for_all || part.is_some_and(|p| parts.contains(&p));
                self.flush_parts.extend(part.filter(|p| parts.contains(p)));
                self.flush_next.extend(ops);
            } else {
                self.begin_flush(now, part, ops, out);
            }
        }
    }

    fn begin_flush(&mut self, now: Time, part: Option<u16>, ops: Vec<usize>, out: &mut Actions) {
        self.flushes += 1;
        if !self.planted(Planted::FlushWithoutChunk) {
            // Only for whom it is: others' chunks would be cut short by it.
            self.close_open(now, Some(&part.into_iter().collect()), out);
        }
        let mine = |weu: u32| part.is_none_or(|p| self.index.weu(weu).partition == p);
        let waits = self.chunks.iter().filter(|c| c.closed && c.dirty && mine(c.weu)).map(|c| (c.weu, c.first_slot));
        let (number, upto, waits) = (self.flushes, self.next_chunk, waits.collect());
        let job = FlushJob { number, part, upto, all_upto: 0, waits, sent: false, covers: BTreeSet::new(), ops };
        self.flush_jobs.push(job);
    }

    /// All that was on the device is durable: what it supersedes is dead.
    pub(crate) fn fast_flushed(&mut self, now: Time, out: &mut Actions) {
        let Some(i) = self.flush_jobs.iter().position(|j| j.sent) else { return };
        let job = self.flush_jobs.remove(i);
        self.durable_chunks = self.durable_chunks.max(job.all_upto);
        let (done, left): (Vec<Undurable>, Vec<Undurable>) =
            std::mem::take(&mut self.undurable).into_iter().partition(|u| job.covers.contains(&(u.weu, u.slots.start)));
        self.undurable = left;
        for u in &done {
            self.header_durable(u.weu, u.sequence, u.slots.end);
        }
        self.say_headers();
        if self.stopping && self.journal.said() < self.durable_chunks {
            self.journal.want_block();
        }
        for s in done.into_iter().flat_map(|u| u.supersedes) {
            self.unpin(s.place.weu());
            self.unpin(s.bytes_in);
            self.kill(s.key, s.place);
        }
        let ended = self.unsaid.wait(job.ops, self.journal.durable());
        for op in ended {
            self.part_done(now, op, out);
        }
        self.destage_after_flush(now, job.number, job.part, out);
    }
}
