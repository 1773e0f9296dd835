//! Each part's quota of WEUs, from what volumes may have.

use crate::config::Sharing;
use crate::parts::{WEUS_MIN, shares};
use crate::serve::Cache;
use plimsoll_base::Time;
use plimsoll_stack::Actions;

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
        self.set_quotas();
        for part in 0..self.residency.partitions() {
            self.admissions.set_extents(part, self.extents_that_fit(part));
        }
    }

    fn set_quotas(&mut self) {
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
