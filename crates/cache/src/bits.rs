//! Bits of WEUs' slots that the journal records. They lie in the index, and durability sets them: the index is lent to it as this, so that
//! nothing else of it changes.

use crate::index::{Index, Loc, Weu, set_bit};

/// See the module's documentation.
pub(crate) struct Bits<'a>(&'a mut Index);

impl<'a> Bits<'a> {
    /// The bits of an index.
    pub(crate) fn of(index: &'a mut Index) -> Bits<'a> {
        Bits(index)
    }

    /// A WEU.
    pub(crate) fn weu(&self, weu: u32) -> &Weu {
        self.0.weu(weu)
    }

    /// The entry of a slot is no longer true. Returns the WEU's number, unless the bit was set before.
    pub(crate) fn set_dead(&mut self, place: Loc) -> Option<u64> {
        let w = self.0.weu_mut(place.weu());
        set_bit(&mut w.dead, place.slot()).then_some(w.sequence)
    }

    /// The slow device has the dirty extent of a slot. Returns the WEU's number, unless the bit was set before.
    pub(crate) fn set_cleaned(&mut self, place: Loc) -> Option<u64> {
        let w = self.0.weu_mut(place.weu());
        set_bit(&mut w.cleaned, place.slot()).then_some(w.sequence)
    }

    /// The headers of the first `slots` slots of a dirty WEU are durable. Returns whether that are more than before, and the WEU still
    /// has this number.
    pub(crate) fn set_durable(&mut self, weu: u32, sequence: u64, slots: u32) -> bool {
        let w = self.0.weu_mut(weu);
        let more = w.sequence == sequence && slots > w.durable_slots;
        if more {
            w.durable_slots = slots;
        }
        more
    }
}
