//! Fingerprints after a start: they are read from the headers once more, while requests are already served. Until then a duplicate
//! of an extent whose fingerprint isn't known yet is stored again. Reading fingerprints before the first request would triple the
//! time of a start.

use crate::format::{Slot, headers};
use crate::index::{Loc, WeuState};
use crate::layer::{Cache, FAST};
use crate::request::Pending;
use plimsoll_base::{Completion, Data, Op, OwnKind, Time};
use plimsoll_stack::Actions;

/// Headers read at once.
const READS_MAX: usize = 4;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Relearn {
    /// WEUs with fingerprints, each under its number; the next one to read is the last.
    weus: Vec<(u64, u32)>,
    reading: usize,
}

impl Relearn {
    /// Of WEUs (number, which, how many fingerprints) those written last that have no more than `max` together.
    pub(crate) fn of(mut found: Vec<(u64, u32, u32)>, max: usize) -> Relearn {
        found.sort_unstable();
        let mut sum = 0;
        let within = |f: &&(u64, u32, u32)| {
            sum += f.2 as usize;
            sum <= max
        };
        let mut weus: Vec<(u64, u32)> = found.iter().rev().take_while(within).map(|f| (f.0, f.1)).collect();
        weus.reverse();
        Relearn { weus, reading: 0 }
    }
}

impl Cache {
    pub(crate) fn progress_relearning(&mut self, now: Time, out: &mut Actions) {
        while self.relearn.reading < READS_MAX
            && !self.stopping
            && let Some((sequence, weu)) = self.relearn.weus.pop()
        {
            if self.still_holds(weu, sequence) {
                self.relearn.reading += 1;
                let range = (self.layout.weu_at(weu), u64::from(self.residency.weu(weu).header_bytes));
                let (pending, whose) = (Pending::Relearn { weu, sequence }, self.owner_of_weu(weu));
                self.send_own(now, FAST, (Op::Read, OwnKind::Recovery), whose, range, Data::Absent, pending, out);
            }
        }
    }

    fn still_holds(&self, weu: u32, sequence: u64) -> bool {
        let w = self.residency.weu(weu);
        w.state == WeuState::Full && w.sequence == sequence
    }

    pub(crate) fn relearnt(&mut self, (weu, sequence): (u32, u64), c: &Completion) {
        self.relearn.reading -= 1;
        if !self.still_holds(weu, sequence) || !c.outcome.is_done() {
            return;
        }
        let mut bytes = vec![0; c.io.len as usize];
        c.io.data.copy_to(&mut bytes);
        let torn_is_dead = self.durability.is_suspect(weu);
        for h in headers(&bytes, self.layout.salt, self.layout.block_bytes, weu, Some(sequence), false) {
            for (slot, e) in (h.first_slot..self.residency.weu(weu).slots).zip(&h.entries) {
                if let Slot::Base(Some(fp)) = e.what
                    && !(torn_is_dead && self.residency.weu(weu).is_dead(slot))
                    && let Some(loc) = Loc::checked(weu, e.at_unit, e.len_units, slot)
                {
                    self.residency.learn_content(fp, loc);
                }
            }
        }
    }
}
