//! Dirty chunks that recovery must find. A corrupt chunk looks like one that a power loss tore, or that was never written. Recovery would
//! take it for such a chunk, and flushed extents would be missing without notice. So the journal has a record of each durable chunk
//! (`Held`). No flush or FUA write ends before that record is durable, too. Nor is an extent written back before: if its header were corrupt,
//! a start would take an older clean copy for the slow device's content.

use crate::bits::Bits;
use crate::config::Planted;
use crate::format::Record;
use crate::index::{Loc, Weu, WeuState};
use crate::journal::Journal;
use std::collections::{BTreeMap, VecDeque};

/// Dirty chunks that are durable and not yet in the journal, and the flushes that wait for that.
#[derive(Default)]
pub(super) struct Unjournaled {
    /// WEUs with more durable headers than the journal has recorded, and the first slot of those.
    weus: BTreeMap<u32, u32>,
    /// The same of those that the journal has recorded and not durably yet: the record, the WEU and the slot, in order.
    saying: VecDeque<(u64, u32, u32)>,
    /// The journal's last record that says so of any.
    last: u64,
    /// Clients' requests, each with the record that it waits for, in order.
    waiting: VecDeque<(u64, usize)>,
}

impl Unjournaled {
    /// Headers of dirty extents are durable, of this many slots of a WEU under a number.
    pub(super) fn header_durable(&mut self, bits: &mut Bits, weu: u32, sequence: u64, slots: u32) {
        let first = bits.weu(weu).durable_slots;
        if bits.set_durable(weu, sequence, slots) {
            self.weus.entry(weu).or_insert(first);
        }
    }

    /// Adds to the journal a record of each WEU whose headers became durable.
    pub(super) fn say(&mut self, bits: &Bits, journal: &mut Journal, planted: Option<Planted>) {
        for (weu, first) in std::mem::take(&mut self.weus) {
            if let Some(record) = bits.weu(weu).held(weu) {
                let number = journal.push(record);
                self.saying.push_back((number, weu, first));
                if !Planted::FlushUnsaid.is_in(planted) {
                    self.last = number;
                }
            }
        }
    }

    /// True if the journal has a durable record of the header of a durable entry at `place`.
    pub(super) fn is_said(&self, place: Loc) -> bool {
        !self.saying.iter().any(|s| s.1 == place.weu() && s.2 <= place.slot())
    }

    /// The last record that isn't durable yet, if there is one.
    pub(super) fn saying(&self) -> Option<u64> {
        self.saying.back().map(|s| s.0)
    }

    /// Requests wait for the last record, if it isn't durable. Returns those that needn't wait.
    pub(super) fn wait(&mut self, ops: Vec<usize>, durable: u64) -> Vec<usize> {
        if durable >= self.last {
            return ops;
        }
        self.waiting.extend(ops.into_iter().map(|op| (self.last, op)));
        Vec::new()
    }

    /// The journal is durable up to this record: who goes on.
    pub(super) fn journaled(&mut self, durable: u64) -> Vec<usize> {
        self.saying.drain(..self.saying.partition_point(|s| s.0 <= durable));
        let go = self.waiting.partition_point(|w| w.0 <= durable);
        self.waiting.drain(..go).map(|w| w.1).collect()
    }

    /// Checks what must hold after each event: requests wait in order, for records that were pushed and aren't durable.
    pub(super) fn check(&self, durable: u64, pushed: u64) {
        debug_assert!(self.last <= pushed && self.waiting.iter().all(|w| durable < w.0 && w.0 <= self.last));
        debug_assert!(self.waiting.iter().is_sorted_by_key(|w| w.0), "requests end in order");
        debug_assert!(self.saying.iter().all(|s| durable < s.0 && s.0 <= pushed));
    }

    /// The journal gets no further: who waited.
    pub(super) fn break_down(&mut self) -> Vec<usize> {
        self.waiting.drain(..).map(|w| w.1).collect()
    }
}

impl Weu {
    /// The journal's record of its durable headers of dirty extents, if it has any.
    pub(super) fn held(&self, weu: u32) -> Option<Record> {
        let holds = !matches!(self.state, WeuState::Free | WeuState::Retired);
        let record = Record::Held { weu, sequence: self.sequence, slots: self.durable_slots };
        (holds && self.durable_slots > 0).then_some(record)
    }
}
