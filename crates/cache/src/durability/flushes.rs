//! Flushes of the fast device: open dirty chunks are written, the device is flushed, and the journal records that they are there
//! ([`super::unjournaled`]). Each partition has one flush at a time, as a fence writes each partition's chunks in that partition's
//! slot. Requests that arrive meanwhile wait for the next flush.
//!
//! [`Flushes`] decides when the device is flushed, which chunks that covers, and which requests waited for it. It receives events of
//! chunks and of the device, and doesn't know what a chunk holds.

use crate::config::Planted;
use crate::place::Superseded;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Chunks that may wait for a flush before the cache makes one of its own.
const UNDURABLE_MAX: usize = 16;

/// A dirty chunk on the device that no flush has covered.
pub(crate) struct Undurable {
    pub weu: u32,
    /// The WEU's number. A WEU whose extents all died is filled anew with another, also while a chunk of the old one waits here.
    pub sequence: u64,
    /// The partition that the WEU had.
    pub part: u16,
    /// Its own; no other chunk ever has it.
    pub number: u64,
    pub slots: Range<u32>,
    pub supersedes: Vec<Superseded>,
}

/// A closed chunk that is being written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnItsWay {
    /// Of its WEU.
    pub sequence: u64,
    pub first_slot: u32,
    pub number: u64,
    pub dirty: bool,
    pub part: u16,
}

/// A flush under way.
struct FlushJob {
    /// Its number, from 1.
    number: u64,
    /// For whom it is; `None` for what nobody in particular wants.
    part: Option<u16>,
    /// Dirty chunks of its partition below this are durable when it's done, ...
    upto: u64,
    /// ... and of all chunks those below this.
    all_upto: u64,
    /// Numbers of the chunks that must be written first.
    waits: Vec<u64>,
    sent: bool,
    /// Numbers of the dirty chunks that it makes durable.
    covers: BTreeSet<u64>,
    /// Client requests that wait for it.
    ops: Vec<usize>,
}

/// A flush that is over.
pub(super) struct Flushed {
    pub number: u64,
    pub part: Option<u16>,
    /// Dirty chunks that are durable now.
    pub durable: Vec<Undurable>,
    /// Client requests that waited for it.
    pub ops: Vec<usize>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Flushes {
    planted: Option<Planted>,
    jobs: Vec<FlushJob>,
    /// Client requests that wait for the next one.
    next: Vec<usize>,
    wanted: bool,
    /// Partitions whose open chunks it closes.
    parts: BTreeSet<u16>,
    /// Flushes that were begun.
    begun: u64,
    undurable: Vec<Undurable>,
    /// Chunks below this are durable.
    durable_chunks: u64,
}

impl Flushes {
    /// Nothing is under way; chunks below `durable_chunks` are durable.
    pub(super) fn new(planted: Option<Planted>, durable_chunks: u64) -> Flushes {
        Flushes { planted, durable_chunks, ..Flushes::default() }
    }

    /// A client's request wants one.
    pub(super) fn want_for(&mut self, op: usize) {
        self.next.push(op);
    }

    /// One is wanted that closes the open chunks of these partitions; its number, or that of the next.
    pub(super) fn want(&mut self, parts: impl IntoIterator<Item = u16>) -> u64 {
        self.wanted = true;
        self.parts.extend(parts);
        self.begun + 1
    }

    /// Chunks below this number are durable.
    pub(super) fn durable_chunks(&self) -> u64 {
        self.durable_chunks
    }

    pub(super) fn is_busy(&self) -> bool {
        !self.jobs.is_empty()
    }

    /// Dirty chunks on the device that no flush has covered, oldest first.
    pub(super) fn undurable(&self) -> &[Undurable] {
        &self.undurable
    }

    /// A dirty chunk is on the device.
    pub(super) fn written(&mut self, chunk: Undurable) {
        debug_assert!(chunk.number >= self.durable_chunks, "no flush has covered it");
        self.undurable.push(chunk);
    }

    /// Flushes to begin now, each for a partition and with the requests that wait for it: one for each partition that wants one and has
    /// none under way. The others want it still.
    pub(super) fn due(&mut self, part_of: impl Fn(usize) -> Option<u16>) -> Vec<(Option<u16>, Vec<usize>)> {
        self.wanted |= self.undurable.len() > UNDURABLE_MAX;
        if !self.wanted && self.next.is_empty() {
            return Vec::new();
        }
        let (ops, parts) = (std::mem::take(&mut self.next), std::mem::take(&mut self.parts));
        let mut groups: BTreeMap<Option<u16>, Vec<usize>> = parts.iter().map(|p| (Some(*p), Vec::new())).collect();
        for op in ops {
            groups.entry(part_of(op)).or_default().push(op);
        }
        if groups.is_empty() && self.wanted {
            groups.insert(None, Vec::new());
        }
        let for_all = groups.contains_key(&None);
        self.wanted = false;
        let mut due = Vec::new();
        for (part, ops) in groups {
            let waits = match part {
                None => !self.jobs.is_empty(),
                Some(_) => self.jobs.iter().any(|j| j.part == part),
            };
            if waits {
                self.wanted |= for_all || part.is_some_and(|p| parts.contains(&p));
                self.parts.extend(part.filter(|p| parts.contains(p)));
                self.next.extend(ops);
            } else {
                due.push((part, ops));
            }
        }
        due
    }

    /// Begins one, that waits for the closed dirty chunks of its partition. Chunks from number `upto` on aren't closed yet.
    pub(super) fn begin(&mut self, part: Option<u16>, ops: Vec<usize>, upto: u64, on_their_way: &[OnItsWay]) {
        self.begun += 1;
        let mine = |c: &&OnItsWay| c.dirty && part.is_none_or(|p| c.part == p);
        let waits = on_their_way.iter().filter(mine).map(|c| c.number).collect();
        let number = self.begun;
        self.jobs.push(FlushJob { number, part, upto, all_upto: 0, waits, sent: false, covers: BTreeSet::new(), ops });
    }

    /// True if a flush waits to be sent and may be. The device is flushed once at a time.
    pub(super) fn has_unsent(&self) -> bool {
        !self.jobs.is_empty() && !self.jobs.iter().any(|j| j.sent)
    }

    /// True if the device is to be flushed now. It is flushed once at a time: a flush covers the writes that ended before.
    pub(super) fn poll(&mut self, on_their_way: &[OnItsWay]) -> bool {
        if !self.has_unsent() {
            return false;
        }
        let is_closed = |number: &u64| on_their_way.iter().any(|c| c.number == *number);
        let Some(i) = self.jobs.iter().position(|j| !j.waits.iter().any(is_closed)) else { return false };
        // A chunk isn't found as long as one before it in its WEU isn't there: another part's may be on its way still.
        let is_found =
            |u: &Undurable| !on_their_way.iter().any(|c| c.sequence == u.sequence && c.first_slot < u.slots.start);
        // Nor is what it relies on there as long as one before it in its part isn't.
        let relies = |u: &Undurable| !on_their_way.iter().any(|c| c.dirty && c.number < u.number && c.part == u.part);
        let any = Planted::FlushOutOfOrder.is_in(self.planted);
        let covers = self.undurable.iter().filter(|u| any || (is_found(u) && relies(u)));
        let covers = covers.map(|u| u.number).collect();
        let job = &mut self.jobs[i];
        job.all_upto = on_their_way.iter().map(|c| c.number).min().unwrap_or(job.upto).min(job.upto);
        (job.sent, job.covers) = (true, covers);
        true
    }

    /// The device was flushed.
    pub(super) fn flushed(&mut self) -> Option<Flushed> {
        let i = self.jobs.iter().position(|j| j.sent)?;
        let job = self.jobs.remove(i);
        self.durable_chunks = self.durable_chunks.max(job.all_upto);
        let (durable, left) =
            std::mem::take(&mut self.undurable).into_iter().partition(|u| job.covers.contains(&u.number));
        self.undurable = left;
        self.check();
        Some(Flushed { number: job.number, part: job.part, durable, ops: job.ops })
    }

    /// The fast device is gone: the requests that waited.
    pub(super) fn break_down(&mut self) -> Vec<usize> {
        let next = std::mem::take(&mut self.next);
        next.into_iter().chain(std::mem::take(&mut self.jobs).into_iter().flat_map(|j| j.ops)).collect()
    }

    /// Checks what must hold after each event.
    pub(super) fn check(&self) {
        assert!(self.jobs.iter().filter(|j| j.sent).count() <= 1, "the device is flushed once at a time");
        debug_assert!(
            self.planted.is_some() || self.undurable.iter().all(|u| u.number >= self.durable_chunks),
            "a chunk below the durable ones waits for a flush"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of WEUs that were filled once, so that a WEU's place is its number, too.
    fn on_its_way(weu: u32, first_slot: u32, number: u64) -> OnItsWay {
        OnItsWay { sequence: weu.into(), first_slot, number, dirty: true, part: 0 }
    }

    fn written(weu: u32, slots: Range<u32>, number: u64) -> Undurable {
        Undurable { weu, sequence: weu.into(), part: 0, number, slots, supersedes: Vec::new() }
    }

    fn numbers(flushed: &Flushed) -> Vec<u64> {
        flushed.durable.iter().map(|u| u.number).collect()
    }

    #[test]
    fn a_flush_waits_for_the_chunks_that_were_closed_before_and_ends_its_requests_once() {
        let mut f = Flushes::new(None, 10);
        f.want_for(7);
        let due = f.due(|_| Some(0));
        assert_eq!(due, [(Some(0), vec![7])]);
        let chunk = on_its_way(3, 0, 10);
        f.begin(Some(0), vec![7], 11, &[chunk]);
        assert!(!f.poll(&[chunk]), "the chunk isn't written");
        f.written(written(3, 0..5, 10));
        assert!(f.poll(&[]) && !f.poll(&[]), "one at a time");
        let flushed = f.flushed().unwrap();
        assert_eq!((numbers(&flushed), flushed.ops, f.durable_chunks()), (vec![10], vec![7], 11));
        assert!(f.flushed().is_none() && f.break_down().is_empty());
    }

    /// Writes that came after a flush was sent aren't durable by it.
    #[test]
    fn a_chunk_that_is_written_after_the_flush_was_sent_waits_for_the_next() {
        let mut f = Flushes::new(None, 1);
        f.begin(None, vec![], 1, &[]);
        assert!(f.poll(&[]));
        f.written(written(3, 0..5, 1));
        assert!(numbers(&f.flushed().unwrap()).is_empty());
        assert_eq!((f.undurable().len(), f.durable_chunks()), (1, 1));
    }

    /// Another part's chunk may be on its way still: what lies behind it in its WEU, or relies on it, isn't durable without it. A former
    /// mistake, `FlushOutOfOrder`.
    fn covered_behind_a_chunk_that_is_missing(planted: Option<Planted>) -> Vec<u64> {
        let mut f = Flushes::new(planted, 1);
        f.written(written(3, 5..9, 2));
        f.written(written(4, 0..2, 3));
        f.begin(Some(1), vec![], 4, &[]);
        assert!(f.poll(&[on_its_way(3, 0, 1)]));
        let flushed = f.flushed().unwrap();
        assert_eq!(f.durable_chunks(), 1, "the chunk on its way is the first");
        numbers(&flushed)
    }

    #[test]
    fn nothing_is_durable_behind_a_chunk_that_is_not_and_the_mistake_is_found() {
        assert!(covered_behind_a_chunk_that_is_missing(None).is_empty());
        assert_eq!(covered_behind_a_chunk_that_is_missing(Some(Planted::FlushOutOfOrder)), [2, 3], "it is found");
    }

    /// All extents of WEU 3 died while its chunk waited, and the WEU was filled anew. Each chunk is durable by the flushes that it was written
    /// before, and by no other.
    #[test]
    fn a_weu_that_is_filled_anew_while_its_old_chunk_waits_is_not_taken_for_it() {
        let mut f = Flushes::new(None, 1);
        f.written(written(3, 5..9, 1));
        let anew = OnItsWay { sequence: 8, first_slot: 0, number: 2, dirty: true, part: 1 };
        f.begin(None, vec![], 2, &[]);
        assert!(f.poll(&[anew]));
        assert_eq!(
            (numbers(&f.flushed().unwrap()), f.durable_chunks()),
            (vec![1], 2),
            "the old one has no chunk before it"
        );

        let mut f = Flushes::new(None, 1);
        f.written(written(3, 0..5, 1));
        f.begin(None, vec![], 2, &[]);
        assert!(f.poll(&[]));
        f.written(Undurable { sequence: 8, ..written(3, 0..7, 2) });
        assert_eq!(numbers(&f.flushed().unwrap()), [1], "the new one was written after the flush was sent");
        assert_eq!(f.undurable().iter().map(|u| u.number).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn a_partition_has_one_flush_under_way_and_who_comes_meanwhile_waits_for_the_next() {
        let mut f = Flushes::new(None, 1);
        f.want([2]);
        assert_eq!(f.due(|_| None), [(Some(2), vec![])]);
        f.begin(Some(2), vec![], 1, &[]);
        f.want_for(1);
        f.want_for(9);
        let part = |op| if op == 1 { Some(2) } else { Some(3) };
        assert_eq!(f.due(part), [(Some(3), vec![9])], "that of partition 2 waits");
        f.begin(Some(3), vec![9], 1, &[]);
        assert!(f.poll(&[]));
        assert_eq!(f.flushed().map(|f| f.part), Some(Some(2)));
        assert_eq!(f.due(part), [(Some(2), vec![1])]);
        f.begin(Some(2), vec![1], 1, &[]);
        let mut failed = f.break_down();
        failed.sort_unstable();
        assert_eq!(failed, [1, 9], "each ends once when the device fails");
    }

    #[test]
    fn many_chunks_that_wait_have_the_device_flushed() {
        let mut f = Flushes::new(None, 1);
        for n in 0..=UNDURABLE_MAX as u64 {
            assert!(f.due(|_| None).is_empty());
            f.written(written(n as u32, 0..1, 1 + n));
        }
        assert_eq!(f.due(|_| None), [(None, vec![])]);
    }
}
