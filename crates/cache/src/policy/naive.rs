//! Random events for an order and for a naive model of it.

use super::Orders;
use crate::config::Eviction;
use plimsoll_base::Rng;
use std::collections::BTreeMap;

/// The extents of each WEU: by slot, whether each was used since the policy forgot it.
pub(super) type Extents = BTreeMap<u32, BTreeMap<u32, bool>>;

/// A policy over plain collections.
pub(super) trait Naive {
    /// A WEU is full.
    fn enter(&mut self, weu: u32);

    /// An extent of a full WEU was used.
    fn used(&mut self, weu: u32);

    /// The WEU that is to leave.
    fn victim(&mut self, extents: &mut Extents) -> Option<u32>;

    /// True if an extent of a WEU that leaves is put in again, of which `live` are left of the `came` that came.
    fn reinserts(&self, is_used: bool, live: usize, came: usize) -> bool;

    /// A WEU leaves, whether it was the next or not.
    fn remove(&mut self, weu: u32);
}

const WEUS: u32 = 40;
const SLOTS: u64 = 6;

/// Both see the same events, and choose the same victims. Returns the number of victims, and of extents that were to be put in again.
pub(super) fn compare(eviction: Eviction, naive: &mut dyn Naive, seed: u64) -> (u32, u32) {
    let mut rng = Rng::new(seed, "policy");
    let mut orders = Orders::new(WEUS, eviction);
    orders.add_partition();
    let (mut extents, mut victims, mut again) = (Extents::new(), 0, 0);
    let mut came = BTreeMap::new();
    for step in 0..20_000 {
        let some = |rng: &mut Rng, extents: &Extents| {
            extents.keys().nth(rng.below(extents.len().max(1) as u64) as usize).copied()
        };
        match rng.below(40) {
            0 => {
                let Some(weu) = some(&mut rng, &extents) else { continue };
                orders.remove(0, weu);
                orders.emptied(weu);
                naive.remove(weu);
                extents.remove(&weu);
            }
            1..4 => {
                let victim = orders.victim(0);
                assert_eq!(victim, naive.victim(&mut extents), "step {step}, seed {seed}");
                let Some(weu) = victim else { continue };
                let left = extents.remove(&weu).expect("it is full");
                for slot in 0..SLOTS as u32 {
                    let Some(is_used) = left.get(&slot) else { continue };
                    let expected = naive.reinserts(*is_used, left.len(), came[&weu]);
                    assert_eq!(orders.must_reinsert(weu, slot), expected, "step {step}, seed {seed}");
                    again += u32::from(expected);
                }
                orders.remove(0, weu);
                orders.emptied(weu);
                naive.remove(weu);
                victims += 1;
            }
            4..9 => {
                let Some(weu) = (0..WEUS).find(|weu| !extents.contains_key(weu)) else { continue };
                let slots = 1 + rng.below(SLOTS) as u32;
                (0..slots).for_each(|_| orders.added(weu));
                orders.enter(0, weu);
                naive.enter(weu);
                came.insert(weu, slots as usize);
                extents.insert(weu, (0..slots).map(|slot| (slot, false)).collect());
            }
            9..18 => {
                let Some(weu) = some(&mut rng, &extents) else { continue };
                let slot = rng.below(SLOTS) as u32;
                if extents.get_mut(&weu).expect("it is full").remove(&slot).is_some() {
                    orders.left(weu, slot, false);
                }
            }
            _ => {
                // Some WEUs are used more than others.
                let Some(weu) = some(&mut rng, &extents).filter(|weu| weu % 3 != 0 || rng.chance(0.2)) else {
                    continue;
                };
                let slot = rng.below(SLOTS) as u32;
                if let Some(is_used) = extents.get_mut(&weu).expect("it is full").get_mut(&slot) {
                    *is_used = true;
                    orders.used(0, weu, slot, true);
                    naive.used(weu);
                }
            }
        }
        let mut members = orders.members(0).expect("its links are right");
        members.sort_unstable();
        assert!(members.iter().eq(extents.keys()), "step {step}, seed {seed}");
        assert!(extents.iter().all(|(weu, slots)| orders.live(*weu) as usize == slots.len()));
    }
    (victims, again)
}
