//! Chunks of dirty extents that must be there at the next start. A chunk that is corrupt looks like one that a power loss tore, or that
//! was never written: without more it would be taken for one, and what was flushed would be missed without a word. So the journal says
//! of each chunk that it is durable (a `Held` record), and no flush or FUA write ends before that is durable, too.

use crate::config::Planted;
use crate::format::{ChunkHeader, Record};
use crate::index::{Weu, WeuState};
use crate::layer::Cache;
use crate::recover::Recovery;
use plimsoll_base::VolumeKey;
use std::collections::{BTreeSet, VecDeque};

/// Volumes that are named one by one: of more the journal says only that there are some.
const MISSED_MAX: usize = 16;

/// Dirty chunks that are durable and not yet in the journal, and the flushes that wait for that.
#[derive(Default)]
pub(crate) struct Unsaid {
    /// WEUs with more durable headers than was said.
    weus: BTreeSet<u32>,
    /// The journal's last record that says so of any.
    last: u64,
    /// Clients' requests, each with the record that it waits for, in order.
    waiting: VecDeque<(u64, usize)>,
}

impl Unsaid {
    /// Requests wait for what was said last, if the journal isn't that far; those that needn't.
    pub(crate) fn wait(&mut self, ops: Vec<usize>, durable: u64) -> Vec<usize> {
        if durable >= self.last {
            return ops;
        }
        self.waiting.extend(ops.into_iter().map(|op| (self.last, op)));
        Vec::new()
    }

    /// The journal is durable up to this record: who goes on.
    pub(crate) fn journaled(&mut self, durable: u64) -> Vec<usize> {
        let go = self.waiting.partition_point(|w| w.0 <= durable);
        self.waiting.drain(..go).map(|w| w.1).collect()
    }

    /// The journal gets no further: who waited.
    pub(crate) fn break_down(&mut self) -> Vec<usize> {
        self.waiting.drain(..).map(|w| w.1).collect()
    }
}

impl Weu {
    /// What the journal says of its durable headers of dirty extents, if it has any.
    pub(crate) fn held(&self, weu: u32) -> Option<Record> {
        let holds = !matches!(self.state, WeuState::Free | WeuState::Retired);
        let record = Record::Held { weu, sequence: self.sequence, slots: self.durable_slots };
        (holds && self.durable_slots > 0).then_some(record)
    }
}

impl Recovery {
    /// The newest data of a volume may be missing.
    pub(crate) fn miss(&mut self, key: VolumeKey) {
        self.missed.insert(key);
        if self.missed.len() > MISSED_MAX {
            self.missed = BTreeSet::from([VolumeKey::POOL]);
        }
    }
}

impl Cache {
    /// Headers of dirty extents are durable, of so many slots of a WEU under a number.
    pub(crate) fn header_durable(&mut self, weu: u32, sequence: u64, slots: u32) {
        let w = self.index.weu_mut(weu);
        if w.sequence == sequence && slots > w.durable_slots {
            w.durable_slots = slots;
            self.unsaid.weus.insert(weu);
        }
    }

    /// Has the journal say so.
    pub(crate) fn say_headers(&mut self) {
        for weu in std::mem::take(&mut self.unsaid.weus) {
            if let Some(record) = self.index.weu(weu).held(weu) {
                let number = self.journal.push(record);
                if !self.planted(Planted::FlushUnsaid) {
                    self.unsaid.last = number;
                }
            }
        }
    }

    /// May a power loss have torn a chunk? Not if the journal says that it was durable.
    pub(crate) fn is_doubtful(&self, h: &ChunkHeader) -> bool {
        let r = self.recovery.as_ref().expect("it is recovering");
        let held = r.held[h.weu as usize];
        let said = held.0 == h.sequence && h.first_slot + h.entries.len() as u32 <= held.1;
        h.dirty && h.chunk >= r.durable && (!said || self.planted(Planted::TornIfCorrupt))
    }

    /// Are headers of dirty extents missing that the journal says are there?
    pub(crate) fn lacks_headers(&self, weu: u32, found: &[ChunkHeader]) -> bool {
        let r = self.recovery.as_ref().expect("it is recovering");
        let (held, held_slots) = r.held[weu as usize];
        let sequence = found.first().map_or(0, |h| h.sequence);
        let slots = found.last().map_or(0, |h| h.first_slot + h.entries.len() as u32);
        held > 0 && held >= r.least[weu as usize] && (sequence != held || slots < held_slots)
    }

    /// Counts headers that the journal says are there, and aren't among those that were found. What a header named is gone with it, for
    /// good. `hides`: further headers may be in blocks that could not be read.
    pub(crate) fn miss_headers(&mut self, weu: u32, found: &[ChunkHeader], hides: bool) {
        let (may_miss, mut dirty) = (self.may_be_behind(), self.lacks_headers(weu, found));
        // The journal of a version 2 device does not say which headers there are.
        dirty |= self.r().old && hides && found.first().is_none_or(|h| h.dirty);
        let r = self.recovery.as_mut().expect("it is recovering");
        if dirty && may_miss {
            match &self.known {
                None => r.miss(VolumeKey::POOL),
                Some(known) => known.iter().filter(|(_, behind)| **behind).for_each(|(key, _)| r.miss(*key)),
            }
        }
        let sequence = found.first().map_or(0, |h| h.sequence);
        let counts = |s: u64| s > 0 && s >= r.least[weu as usize];
        let held = r.held[weu as usize].0;
        let confirmed = r.confirmed[weu as usize];
        let clean = counts(confirmed) && sequence != confirmed;
        r.report.damaged += u32::from(dirty || clean);
        r.report.damaged_dirty += u32::from(dirty && may_miss);
        // Counted once: what is missing is in `missed` from now on. What is left of it counts.
        if (dirty || clean) && found.is_empty() {
            r.least[weu as usize] = r.least[weu as usize].max(held.max(confirmed) + 1);
        }
        if found.is_empty() {
            self.seal_whole(weu);
        }
    }

    /// Is what was found missing of a volume, at this start or an earlier one, still to be named? Not once it was given up or deleted, or
    /// the slow device has all that is left of it.
    pub(crate) fn is_missed(&self, key: &VolumeKey) -> bool {
        if *key == VolumeKey::POOL {
            return self.may_be_behind();
        }
        let behind = self.known.as_ref().is_none_or(|known| known.get(key) == Some(&true));
        behind && !self.is_gone(key) && !self.is_given_up(key)
    }

    /// What is wrong with what was found at the start.
    pub(crate) fn damage(&self) -> Option<String> {
        if !self.missed.is_empty() {
            let when = match self.start_report.damaged_dirty {
                0 => "headers of what only the cache had were damaged when it was started earlier".to_string(),
                n => format!("{n} headers of what only the cache had were damaged when it was started"),
            };
            let names = self.missed.iter().map(|k| match *k == VolumeKey::POOL {
                true => self.behind(),
                false => format!("volume {}.{}", k.id, k.generation),
            });
            let whose = names.collect::<Vec<_>>().join(", ");
            return Some(format!("{when}: what was written last to {whose} may be missing there"));
        }
        self.start_report.journal_lost.then(|| {
            "its journal was corrupt when it was started: it began anew, with nothing in it; volumes have what is on the pool's own \
             device"
                .into()
        })
    }
}
