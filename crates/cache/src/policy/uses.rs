//! Uses of WEUs: how many extents live in each, and which of its slots were used since they were written, or since the policy forgot it.

use crate::weu::{bit, set_bit};

#[derive(Clone, Default)]
struct Use {
    live: u32,
    /// Extents that came since the WEU was empty.
    came: u32,
    /// Bits that are set.
    used: u32,
    /// A bit for each slot that was used; empty if the policy doesn't need them.
    slots: Vec<u64>,
}

/// The uses of all WEUs.
pub(super) struct Uses {
    weus: Vec<Use>,
    by_slot: bool,
}

impl Uses {
    /// Uses of `weus` WEUs, of each slot if that is wanted.
    pub(super) fn new(weus: u32, by_slot: bool) -> Uses {
        Uses { weus: vec![Use::default(); weus as usize], by_slot }
    }

    fn at(&mut self, weu: u32) -> &mut Use {
        &mut self.weus[weu as usize]
    }

    /// Extents that live in a WEU, duplicates of what is there included.
    pub(super) fn live(&self, weu: u32) -> u32 {
        self.weus[weu as usize].live
    }

    /// Extents that came into a WEU since it was empty.
    pub(super) fn came(&self, weu: u32) -> u32 {
        self.weus[weu as usize].came
    }

    /// Slots of a WEU that were used.
    pub(super) fn used(&self, weu: u32) -> u32 {
        self.weus[weu as usize].used
    }

    /// True if a slot was used.
    pub(super) fn is_used(&self, weu: u32, slot: u32) -> bool {
        bit(&self.weus[weu as usize].slots, slot)
    }

    /// `count` more extents live in a WEU.
    pub(super) fn add(&mut self, weu: u32, count: u32) {
        let u = self.at(weu);
        (u.live, u.came) = (u.live + count, u.came + count);
    }

    /// An extent is no longer in a WEU, and its slot isn't its own any more unless `is_dup`.
    pub(super) fn leave(&mut self, weu: u32, slot: u32, is_dup: bool) {
        let u = self.at(weu);
        u.live = u.live.checked_sub(1).expect("live extents are counted in and out");
        if !is_dup && bit(&u.slots, slot) {
            u.slots[slot as usize / 64] &= !(1 << (slot % 64));
            u.used -= 1;
        }
    }

    /// A slot was used.
    pub(super) fn mark(&mut self, weu: u32, slot: u32) {
        if self.by_slot {
            let u = self.at(weu);
            u.used += u32::from(set_bit(&mut u.slots, slot));
        }
    }

    /// As if nothing of a WEU had been used.
    pub(super) fn forget(&mut self, weu: u32) {
        let u = self.at(weu);
        u.used = 0;
        u.slots.clear();
    }

    /// Nothing is in a WEU any more.
    pub(super) fn empty(&mut self, weu: u32) {
        self.forget(weu);
        let u = self.at(weu);
        (u.live, u.came) = (0, 0);
    }

    /// Bytes of memory.
    pub(super) fn memory_bytes(&self) -> u64 {
        let slots: usize = self.weus.iter().map(|u| u.slots.capacity() * 8).sum();
        (self.weus.capacity() * size_of::<Use>() + slots) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn counts_and_bits_are_those_of_a_list_of_extents() {
        for by_slot in [true, false] {
            let (mut rng, mut uses) = (Rng::new(1, "uses"), Uses::new(3, by_slot));
            // (WEU, slot, is a duplicate), and the slots that were used.
            let (mut live, mut used, mut came) = (Vec::<(u32, u32, bool)>::new(), BTreeSet::new(), [0; 3]);
            for _ in 0..20_000 {
                let (weu, slot) = (rng.below(3) as u32, rng.below(150) as u32);
                match rng.below(100) {
                    0 => {
                        uses.empty(weu);
                        came[weu as usize] = 0;
                        live.retain(|l| l.0 != weu);
                        used.retain(|u: &(u32, u32)| u.0 != weu);
                    }
                    1..3 => {
                        uses.forget(weu);
                        used.retain(|u| u.0 != weu);
                    }
                    3..40 => {
                        uses.add(weu, 1);
                        came[weu as usize] += 1;
                        live.push((weu, slot, rng.chance(0.3)));
                    }
                    40..70 if !live.is_empty() => {
                        let (weu, slot, is_dup) = live.swap_remove(rng.below(live.len() as u64) as usize);
                        uses.leave(weu, slot, is_dup);
                        if !is_dup {
                            used.remove(&(weu, slot));
                        }
                    }
                    _ => {
                        uses.mark(weu, slot);
                        used.extend(by_slot.then_some((weu, slot)));
                    }
                }
                assert!((0..150).all(|slot| uses.is_used(weu, slot) == used.contains(&(weu, slot))));
                assert_eq!(uses.live(weu) as usize, live.iter().filter(|l| l.0 == weu).count());
                assert_eq!(uses.came(weu), came[weu as usize]);
                assert_eq!(uses.used(weu) as usize, used.iter().filter(|u| u.0 == weu).count());
            }
            assert_eq!(used.is_empty(), !by_slot);
        }
    }
}
