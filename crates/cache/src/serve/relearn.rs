//! Headers read once more after a start, for their fingerprints.

use crate::format::{Slot, headers};
use crate::index::{Loc, WeuState};
use crate::request::Pending;
use crate::serve::{Cache, FAST};
use plimsoll_base::{Completion, Data, Op, OwnKind, Time};
use plimsoll_stack::Actions;

impl Cache {
    pub(crate) fn progress_relearning(&mut self, now: Time, out: &mut Actions) {
        while !self.stopping
            && let Some((sequence, weu)) = self.relearn.next()
        {
            if self.still_holds(weu, sequence) {
                self.relearn.begin();
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
        self.relearn.end();
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
