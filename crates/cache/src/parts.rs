//! Shares of the WEUs. Where space is shared, all of it is one part. Otherwise each volume has a part of its own, and the parts together
//! are never more than the whole. So a part that may grow always finds a free WEU, or another part that must shrink.

use crate::config::Sharing;
use crate::layer::Cache;
use plimsoll_base::Time;
use plimsoll_stack::Actions;

/// The least WEUs of a part that takes writes: two are open, for dirty and for clean extents, one is leaving, one is free.
pub const WEUS_MIN: u32 = 4;

impl Cache {
    /// Limits the cache to `weus_max` WEUs from now on: a live resize. The limit is never below the minimum of all parts together.
    pub fn set_weus_max(&mut self, now: Time, weus_max: u32, out: &mut Actions) {
        let parts = (0..self.residency.partitions()).filter(|p| self.residency.use_of(*p).1 >= WEUS_MIN).count() as u32;
        self.config.weus_max = weus_max.max(WEUS_MIN * parts.max(1));
        self.share_out();
        self.progress(now, out);
    }

    /// Tells each part how much it may have.
    pub(crate) fn share_out(&mut self) {
        self.may_have_room();
        let total = self.config.weus_max.min(self.layout.weus);
        if self.config.sharing == Sharing::Shared {
            return self.residency.set_quota(0, total);
        }
        let mut left = total;
        let mut wants: Vec<(u16, u32)> = Vec::new();
        for v in self.volumes.iter() {
            let is_gone = self.volumes.slot(&v.key).is_none();
            let want = match v.config {
                _ if is_gone => {
                    self.residency.set_quota(v.partition, 0);
                    continue;
                }
                // Until it's announced it may keep what it has, and take no more.
                None => {
                    let used = self.residency.use_of(v.partition).0;
                    left = left.saturating_sub(used);
                    self.residency.set_quota(v.partition, used);
                    continue;
                }
                Some(c) if c.weus_max == 0 => 0,
                Some(c) => c.weus_max.clamp(WEUS_MIN, self.layout.weus),
            };
            wants.push((v.partition, want));
        }
        // Who has no part may have something dirty from when it had one: what changes that needs room for a while.
        let without =
            wants.iter().filter(|w| w.1 == 0).count() > 0 || wants.len() as u64 * u64::from(WEUS_MIN) > u64::from(left);
        left = left.saturating_sub(if without { WEUS_MIN } else { 0 });
        for (part, quota) in shares(&wants, left) {
            self.residency.set_quota(part, quota);
        }
    }
}

/// Each part's share of `left`: its wish if there is enough for all. Otherwise at least [`WEUS_MIN`], the first parts first, and a
/// share of the rest in proportion to its wish beyond that.
fn shares(wants: &[(u16, u32)], mut left: u32) -> Vec<(u16, u32)> {
    let all: u64 = wants.iter().map(|w| u64::from(w.1)).sum();
    if all <= u64::from(left) {
        return wants.to_vec();
    }
    let mut shares: Vec<(u16, u32)> = Vec::with_capacity(wants.len());
    let mut more = 0;
    for (part, want) in wants {
        let least = if *want > 0 && left >= WEUS_MIN { WEUS_MIN } else { 0 };
        left -= least;
        more += if least > 0 { u64::from(want - least) } else { 0 };
        shares.push((*part, least));
    }
    for ((_, share), (_, want)) in shares.iter_mut().zip(wants).filter(|(s, _)| s.1 > 0) {
        *share += (u64::from(want - WEUS_MIN) * u64::from(left) / more.max(1)) as u32;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_never_more_than_there_is_and_never_too_small_to_work() {
        let of = |wants: &[u32], left| -> Vec<u32> {
            let wants: Vec<(u16, u32)> = (0..).zip(wants.iter().copied()).collect();
            shares(&wants, left).into_iter().map(|s| s.1).collect()
        };
        assert_eq!(of(&[8, 0, 20], 30), [8, 0, 20]);
        assert_eq!(of(&[24, 24, 0, 4], 24), [10, 10, 0, 4]);
        assert_eq!(of(&[100, 100, 100], 10), [5, 5, 0], "the last of them has none");
        for n in 1..40u32 {
            let wants = vec![64; n as usize];
            let got = of(&wants, 64);
            assert!(got.iter().sum::<u32>() <= 64 && got.iter().all(|g| *g == 0 || *g >= WEUS_MIN), "{got:?}");
            assert_eq!(got.iter().filter(|g| **g > 0).count() as u32, n.min(16));
        }
    }
}
