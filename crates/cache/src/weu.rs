//! A write-evict unit, as the index knows it.

/// The state of a WEU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeuState {
    /// Holds nothing.
    Free,
    /// Being filled, perhaps partly written.
    Open,
    /// Filled; may still be on its way to the device.
    Full,
    /// Being evicted: its extents may be used until it is retired.
    Leaving,
    /// Evicted, not yet safe to write again.
    Retired,
}

/// One WEU.
#[derive(Clone, Debug)]
pub struct Weu {
    /// Its state.
    pub state: WeuState,
    /// Number of times that it was replaced, modulo 2^16 (NI-M4).
    pub generation: u16,
    /// Its number among all WEUs ever begun on this device; on the device it distinguishes the old content from the new.
    pub sequence: u64,
    /// Its partition, where each volume has its own.
    pub partition: u16,
    /// Slots given out.
    pub slots: u32,
    /// Dirty entries that point at it, duplicates included.
    pub dirty: u32,
    /// It takes dirty extents (they are kept apart, NI-M16).
    pub for_dirty: bool,
    /// Bytes of its headers on the device.
    pub header_bytes: u32,
    /// Slots whose base entry is no longer true, a bit each.
    pub dead: Vec<u64>,
    /// Dirty slots that the slow device has since.
    pub cleaned: Vec<u64>,
    /// Checksums of bare extents, by slot.
    pub(crate) sums: Vec<u32>,
    /// Slots whose headers are durable, of dirty extents.
    pub(crate) durable_slots: u32,
}

impl Weu {
    /// One that never held anything.
    pub(crate) fn free() -> Weu {
        Weu {
            state: WeuState::Free,
            generation: 0,
            sequence: 0,
            partition: 0,
            slots: 0,
            dirty: 0,
            for_dirty: false,
            header_bytes: 0,
            dead: Vec::new(),
            cleaned: Vec::new(),
            sums: Vec::new(),
            durable_slots: 0,
        }
    }

    /// The checksum of the bare extent in a slot.
    pub fn sum(&self, slot: u32) -> u32 {
        self.sums.get(slot as usize).copied().unwrap_or(0)
    }

    /// Stores a slot's sum; the WEU will have about `slots` slots.
    pub(crate) fn set_sum(&mut self, slot: u32, sum: u32, slots: u32) {
        if self.sums.len() <= slot as usize {
            self.sums.reserve_exact((slots as usize).saturating_sub(self.sums.len()));
            self.sums.resize(slot as usize + 1, 0);
        }
        self.sums[slot as usize] = sum;
    }

    /// True if a slot's base entry is no longer true.
    pub fn is_dead(&self, slot: u32) -> bool {
        bit(&self.dead, slot)
    }
}

/// The bit of `slot`.
pub fn bit(bits: &[u64], slot: u32) -> bool {
    bits.get(slot as usize / 64).is_some_and(|w| w >> (slot % 64) & 1 == 1)
}

/// Sets the bit of `slot`. Returns whether it was clear.
pub fn set_bit(bits: &mut Vec<u64>, slot: u32) -> bool {
    let at = slot as usize / 64;
    if bits.len() <= at {
        bits.resize(at + 1, 0);
    }
    let was = bit(bits, slot);
    bits[at] |= 1 << (slot % 64);
    !was
}
