//! Time slots of a fenced pool: who is promised how many, and their change.

use super::{Node, NodeError, Result};
use crate::config::Config;
use crate::directory::Volume;
use crate::fence::Without;
use crate::open::PoolCache;
use plimsoll_base::{Class, Span};
use plimsoll_fence::{Fence, FenceControl};
use plimsoll_stack::Addressed;
use plimsoll_store::{FenceRecord, VolumeRecord};
use std::collections::{BTreeMap, BTreeSet};

impl Node {
    /// What a volume was measured to get alone, if that is known.
    pub fn baseline(&self, volume: &str) -> Option<&crate::fence::Baseline> {
        self.baselines.get(volume)
    }

    /// Time slots of a volume.
    pub(super) fn slots_of(&self, volume: &str, tenant: &str) -> u32 {
        let own = self.slots.get(volume).copied();
        self.directory_ref(|d| crate::fence::slots_of(own, d.tenants.get(tenant).map(|t| &t.class)))
    }

    /// The slots of a pool's volumes, but for `except`.
    pub(super) fn promised_slots(&self, pool: usize, except: &str) -> Vec<(String, u32)> {
        let mine: Vec<(String, String)> = self.directory_ref(|d| {
            let mine = d.volumes.values().filter(|v| v.pool == pool && v.name != except);
            mine.map(|v| (v.name.clone(), v.tenant.clone())).collect()
        });
        mine.into_iter()
            .map(|(name, tenant)| (self.slots_of(&name, &tenant), name))
            .map(|(n, name)| (name, n))
            .collect()
    }

    /// Slots that were set live may be too few for what is configured by now: then those hold that are configured.
    pub(super) async fn settle_slots(&self, config: &Config) -> Result<()> {
        for p in &self.pools {
            let Some(fence) = p.fence.lock().expect("no panic while held").clone() else { continue };
            let mut all: BTreeMap<String, u32> = BTreeMap::new();
            let mut add = |name: &str, tenant: &str| {
                all.insert(name.to_string(), self.slots_of(name, tenant));
            };
            if let Some(store) = &p.store {
                store.view().volumes().for_each(|v| add(&v.name, &v.tenant));
            }
            let mine = config.volume.iter().filter(|v| *v.pool.get_ref() == p.name);
            mine.for_each(|v| add(v.name.get_ref(), v.tenant.get_ref()));
            let all: Vec<(String, u32)> = all.into_iter().collect();
            let promised: u32 = all.iter().map(|v| v.1).sum();
            let (slots, slot_ns) = p.fence_configured.unwrap_or((fence.slots, fence.slot.as_nanos()));
            if promised <= fence.slots {
                continue;
            }
            let wrong = |what| NodeError::Conflict(format!("pool `{}`: {what}", p.name));
            crate::fence::check_promises(Without::Lent, slots, &all).map_err(wrong)?;
            let (pool, set) = (&p.name, fence.slots);
            tracing::warn!(
                pool,
                set,
                promised,
                slots,
                "fewer slots were set live than are promised now: those configured hold"
            );
            let slot = Span::from_nanos(slot_ns);
            p.tell(Addressed::new(&FenceControl::Slots { slots, slot })).await?;
            let fence = plimsoll_fence::FenceConfig { slots, slot: Span::from_nanos(slot_ns), ..fence };
            *p.fence.lock().expect("no panic while held") = Some(fence);
        }
        Ok(())
    }

    /// Refuses a volume that a fenced pool has no slots for, or more of the cache than its device has.
    pub(super) fn check_parts(&self, pool: usize, name: &str, tenant: &str) -> Result<()> {
        let p = &self.pools[pool];
        let own = self.cache_sizes.get(name).copied();
        if let (Some(bytes), Some(c)) = (own, &p.cache)
            && bytes > c.device_bytes
        {
            return Err(NodeError::Refused(crate::fence::cache_too_large(name, bytes, c.device_bytes)));
        }
        if let Some(c) = &p.cache {
            if let Some(bytes) = own {
                crate::fence::check_part(&c.section, name, bytes).map_err(NodeError::Refused)?;
            }
            let others: BTreeSet<String> = self.directory_ref(|d| {
                let mine = d.volumes.values().filter(|v| v.pool == pool && v.name != name);
                mine.map(|v| v.name.clone()).collect()
            });
            self.check_sum(c, others.into_iter().chain([name.to_string()])).map_err(NodeError::Refused)?;
        }
        let fence = p.fence.lock().expect("no panic while held").clone();
        let Some(fence) = fence else { return Ok(()) };
        let mut all = self.promised_slots(pool, name);
        all.push((name.to_string(), self.slots_of(name, tenant)));
        crate::fence::check_promises(Without::of(&fence), fence.slots, &all).map_err(NodeError::Conflict)
    }

    fn check_sum(&self, c: &PoolCache, volumes: impl Iterator<Item = String>) -> std::result::Result<(), String> {
        let part = |name: String| (self.cache_sizes.get(&name).copied(), name);
        let all: Vec<_> = volumes.map(part).map(|(own, name)| (name, own)).collect();
        crate::fence::check_parts(&c.section, c.weus, c.device_bytes, &all)
    }

    /// Refuses volumes, stored or configured, whose parts of a cache are more than it has.
    pub(super) fn check_stored_parts(&self, config: &Config) -> Result<()> {
        for p in &self.pools {
            let (Some(c), Some(store)) = (&p.cache, &p.store) else { continue };
            let stored = store.view().volumes().map(|v| v.name.clone()).collect();
            let mut all: BTreeSet<String> = stored;
            let mine = config.volume.iter().filter(|v| *v.pool.get_ref() == p.name);
            all.extend(mine.map(|v| v.name.get_ref().clone()));
            let refused = |what| NodeError::Refused(format!("pool `{}`: {what}", p.name));
            self.check_sum(c, all.into_iter()).map_err(refused)?;
        }
        Ok(())
    }

    /// Refuses a class of a tenant whose slots the fenced pools of its volumes haven't.
    pub(super) fn check_class(&self, tenant: &str, class: &Class) -> Result<()> {
        for (pool, p) in self.pools.iter().enumerate() {
            let Some(fence) = p.fence.lock().expect("no panic while held").clone() else { continue };
            let volumes: Vec<(String, u32)> = self.directory_ref(|d| {
                let mine = d.volumes.values().filter(|v| v.pool == pool);
                let slots = mine.map(|v| {
                    let class =
                        if v.tenant == tenant { Some(class) } else { d.tenants.get(&v.tenant).map(|t| &t.class) };
                    (v.name.clone(), crate::fence::slots_of(self.slots.get(&v.name).copied(), class))
                });
                slots.collect()
            });
            crate::fence::check_promises(Without::of(&fence), fence.slots, &volumes).map_err(NodeError::Conflict)?;
        }
        Ok(())
    }

    /// Tells the fenced pools of a tenant's volumes how many slots those have by now.
    pub(super) async fn tell_slots(&self, tenant: &str) -> Result<()> {
        for (pool, p) in self.pools.iter().enumerate().filter(|p| p.1.is_fenced()) {
            let Some(store) = &p.store else { continue };
            let records: Vec<VolumeRecord> = {
                let store = store.view();
                store.volumes().filter(|v| v.tenant == tenant).cloned().collect()
            };
            for record in records {
                self.publish(pool, &record).await?;
            }
        }
        Ok(())
    }

    /// Changes a pool's slots from the end of the running one on, also for later starts, until other ones are configured.
    pub async fn change_fence(&self, name: &str, slots: Option<u32>, slot: Option<Span>) -> Result<()> {
        let _one = self.changing.lock().await;
        let pool = self.pool_named(name)?;
        let p = &self.pools[pool];
        let none = || NodeError::Refused(format!("pool `{name}` has no fence: configure [pool.fence]"));
        let fence = p.fence.lock().expect("no panic while held").clone().ok_or_else(none)?;
        let (slots, slot) = (slots.unwrap_or(fence.slots), slot.unwrap_or(fence.slot));
        let promised = self.promised_slots(pool, "");
        crate::fence::check_change(&fence, (slots, slot), &promised).map_err(NodeError::Refused)?;
        if let (Some(store), Some(configured)) = (p.store.clone(), p.fence_configured) {
            let record = FenceRecord { slots, slot_ns: slot.as_nanos(), configured };
            super::blocking(move || store.change().set_fence(record)).await?;
        }
        p.tell(Addressed::new(&FenceControl::Slots { slots, slot })).await?;
        *p.fence.lock().expect("no panic while held") = Some(plimsoll_fence::FenceConfig { slots, slot, ..fence });
        Ok(())
    }

    /// Refuses to remove a volume while it owns the slot that runs.
    pub(super) async fn check_not_running(&self, volume: &Volume) -> Result<()> {
        let p = &self.pools[volume.pool];
        let key = volume.key;
        let asked = p.look_soon(move |stack, now| stack.layer::<Fence>().map(|f| f.status(now).may_remove(key))).await;
        let Ok(Some(may)) = asked else { return Ok(()) };
        let refused = |left| {
            let what =
                format!("volume `{}` owns the time slot that runs, for {left} more: try again then", volume.name);
            NodeError::Conflict(what)
        };
        may.map_err(refused)
    }
}
