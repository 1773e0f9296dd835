//! Which headers of dirty extents must be there at the next start: one that rotted would otherwise be taken for one that was never
//! written, and what only it named would be missed without a word. The journal says so with every few chunks that became durable.

use crate::format::{ChunkHeader, Record};
use crate::index::{Weu, WeuState};
use crate::layer::Cache;

impl Weu {
    /// What the journal says of its durable headers of dirty extents, if it has any.
    pub(crate) fn held(&self, weu: u32) -> Option<Record> {
        let holds = !matches!(self.state, WeuState::Free | WeuState::Retired);
        let record = Record::Held { weu, sequence: self.sequence, slots: self.durable_slots };
        (holds && self.durable_slots > 0).then_some(record)
    }
}

impl Cache {
    /// Headers of dirty extents are durable, of so many slots of a WEU under a number.
    pub(crate) fn header_durable(&mut self, weu: u32, sequence: u64, slots: u32) {
        let w = self.index.weu_mut(weu);
        if w.sequence == sequence && slots > w.durable_slots {
            w.durable_slots = slots;
            self.unsaid_headers.insert(weu);
        }
    }

    /// Has the journal say so.
    pub(crate) fn say_headers(&mut self) {
        for weu in std::mem::take(&mut self.unsaid_headers) {
            if let Some(record) = self.index.weu(weu).held(weu) {
                self.journal.push(record);
            }
        }
    }

    /// Counts headers that the journal says are there, and aren't among those that were found. What a header named is gone with it, for
    /// good.
    pub(crate) fn miss_headers(&mut self, weu: u32, found: &[ChunkHeader]) {
        let r = self.recovery.as_mut().expect("it is recovering");
        let sequence = found.first().map_or(0, |h| h.sequence);
        let slots = found.last().map_or(0, |h| h.first_slot + h.entries.len() as u32);
        let counts = |s: u64| s > 0 && s >= r.least[weu as usize];
        let (held, held_slots) = r.held[weu as usize];
        let dirty = counts(held) && (sequence != held || slots < held_slots);
        let confirmed = r.confirmed[weu as usize];
        let clean = counts(confirmed) && sequence != confirmed;
        r.report.damaged += u32::from(dirty || clean);
        r.report.damaged_dirty += u32::from(dirty);
        // Reported once. What is left of it counts.
        if (dirty || clean) && found.is_empty() {
            r.least[weu as usize] = held.max(confirmed) + 1;
        }
    }

    /// What is wrong with what was found at the start.
    pub(crate) fn damage(&self) -> Option<String> {
        let n = self.start_report.damaged_dirty;
        (n > 0).then(|| {
            format!(
                "{n} headers of what only the cache had were damaged when it was started: what was written last to {} may be missing \
                 there",
                self.behind()
            )
        })
    }
}
