//! Making what only the cache has durable: open chunks are written, then the device is flushed. One at a time; who comes
//! meanwhile waits for the next.

use crate::config::Planted;
use crate::layer::Cache;
use crate::request::Pending;
use plimsoll_base::{Data, Op, OwnKind, Time};
use plimsoll_stack::Actions;

/// Chunks that may wait for a flush before the cache makes one of its own.
const UNDURABLE_MAX: usize = 16;
/// Of all WEUs, this many (and at most so many) may be clean ones that no flush has covered: what a power loss makes cold.
const COLD_SHARE: u32 = 64;
const COLD_MAX: u32 = 32;

/// A flush under way.
pub(crate) struct FlushJob {
    /// Which one it is, from 1.
    number: u64,
    /// Dirty chunks below this are durable when it's done, ...
    upto: u64,
    /// ... and of all chunks those below this.
    all_upto: u64,
    /// Chunks that must be written first: WEU and first slot.
    waits: Vec<(u32, u32)>,
    sent: bool,
    /// Clean chunks that it makes durable.
    clean: u32,
    /// Client requests that wait for it.
    pub ops: Vec<usize>,
}

impl Cache {
    pub(crate) fn progress_flush(&mut self, now: Time, out: &mut Actions) {
        if !self.is_ready() {
            return;
        }
        let cold_max = (self.layout.weus / COLD_SHARE).clamp(1, COLD_MAX);
        self.flush_wanted |= self.undurable.len() > UNDURABLE_MAX || self.unflushed_clean > cold_max;
        if self.flush_job.is_none() && (self.flush_wanted || !self.flush_next.is_empty()) {
            self.flush_wanted = false;
            self.flushes += 1;
            let ops = std::mem::take(&mut self.flush_next);
            // Only for whom it is: others' chunks would be cut short by it.
            let mut parts = std::mem::take(&mut self.flush_parts);
            let part =
                |op: &usize| self.by_key.get(&self.ops[*op].head.volume).map(|s| self.volumes[*s as usize].partition);
            parts.extend(ops.iter().filter_map(part));
            if !self.planted(Planted::FlushWithoutChunk) {
                self.close_open(now, Some(&parts), out);
            }
            let waits = self.chunks.iter().filter(|c| c.closed && c.dirty).map(|c| (c.weu, c.first_slot)).collect();
            let (number, upto) = (self.flushes, self.next_chunk);
            self.flush_job = Some(FlushJob { number, upto, all_upto: 0, waits, sent: false, clean: 0, ops });
        }
        let Some(job) = &mut self.flush_job else { return };
        if job.sent {
            return;
        }
        let written = |w: &(u32, u32)| !self.chunks.iter().any(|c| c.closed && (c.weu, c.first_slot) == *w);
        if job.waits.iter().all(written) {
            let on_their_way = self.chunks.iter().filter(|c| c.closed).map(|c| c.number).min();
            job.all_upto = on_their_way.unwrap_or(job.upto).min(job.upto);
            (job.sent, job.clean) = (true, self.unflushed_clean);
            match self.planted(Planted::FlushWithoutBarrier) {
                true => self.fast_flushed(now, out),
                false => {
                    self.send_fast(now, (Op::Flush, OwnKind::Metadata), (0, 0), Data::Absent, Pending::FastFlush, out);
                }
            }
        }
    }

    /// All that was on the device is durable: what it supersedes is dead.
    pub(crate) fn fast_flushed(&mut self, now: Time, out: &mut Actions) {
        let Some(job) = self.flush_job.take() else { return };
        self.durable_chunks = self.durable_chunks.max(job.all_upto);
        self.unflushed_clean -= job.clean;
        let (done, wait): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.undurable).into_iter().partition(|u| u.0 < job.upto);
        self.undurable = wait;
        for s in done.into_iter().flat_map(|(_, _, _, supersedes)| supersedes) {
            self.unpin(s.place.weu());
            self.unpin(s.bytes_in);
            self.kill(s.place);
        }
        for op in job.ops {
            self.part_done(now, op, out);
        }
        self.destage_after_flush(now, job.number, out);
    }
}
