//! The volumes of a pool and their parts of its layers: time slots, shares of the cache.

use super::fit::Promised;
use super::{Node, NodeError, Result};
use crate::directory::{Directory, Volume};
use crate::parts::PARTS;
use crate::parts::fence::{Baseline, slots_of};
use crate::parts::settings::VolumePart;
use plimsoll_base::Class;
use plimsoll_fence::Fence;
use plimsoll_store::VolumeRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Node {
    /// A volume's service while it was alone, if it was measured.
    pub fn baseline(&self, volume: &str) -> Option<Arc<Baseline>> {
        self.configured().baselines.get(volume).cloned()
    }

    /// Parts of a volume whose tenant has this class.
    pub(super) fn part_of(&self, name: &str, class: Option<&Class>) -> VolumePart {
        let configured = self.configured();
        VolumePart {
            name: name.to_string(),
            slots: slots_of(configured.slots.get(name).copied(), class),
            cache_bytes: configured.cache_sizes.get(name).copied(),
            throttle: configured.throttles.get(name).copied().unwrap_or_default(),
        }
    }

    /// The volumes of a pool that are served or being made, with their parts. `class_of` returns a tenant's class.
    fn parts_by(&self, pool: usize, class_of: impl Fn(&Directory, &str) -> Option<Class>) -> Vec<VolumePart> {
        // Before the directory is read: each is in one of the two.
        let being_made = self.being_made(pool);
        self.directory_ref(|d| {
            let mine = d.volumes.values().filter(|v| v.pool == pool).map(|v| (&v.name, &v.tenant));
            let new = being_made.iter().filter(|(name, _)| !d.volumes.contains_key(name)).map(|(name, t)| (name, t));
            mine.chain(new).map(|(name, tenant)| self.part_of(name, class_of(d, tenant).as_ref())).collect()
        })
    }

    /// The volumes of a pool that are served, with their parts.
    pub(super) fn served_parts(&self, pool: usize) -> Vec<VolumePart> {
        self.parts_by(pool, class_of)
    }

    /// The volumes of a pool, stored or configured, whether or not they are served yet.
    pub(super) fn stored_parts(&self, pool: usize) -> Vec<VolumePart> {
        let p = self.pools.get(pool);
        let mut tenants: BTreeMap<String, String> = BTreeMap::new();
        if let Some(store) = &p.store {
            tenants.extend(store.view().volumes().map(|v| (v.name.clone(), v.tenant.clone())));
        }
        let configured = self.configured();
        let mine = configured.config.volume.iter().filter(|v| *v.pool.get_ref() == p.name);
        tenants.extend(mine.map(|v| (v.name.get_ref().clone(), v.tenant.get_ref().clone())));
        let part = |d: &Directory, name: &str, tenant: &str| self.part_of(name, class_of(d, tenant).as_ref());
        self.directory_ref(|d| tenants.iter().map(|(name, tenant)| part(d, name, tenant)).collect())
    }

    /// Refuses a volume that the pool's layers have no room for: no time slots, no part of the cache.
    pub(super) fn check_parts(&self, pool: usize, name: &str, tenant: &str) -> Result<()> {
        let class = self.directory_ref(|d| class_of(d, tenant));
        let mut volumes = self.served_parts(pool);
        volumes.retain(|v| v.name != name);
        volumes.push(self.part_of(name, class.as_ref()));
        self.check_volumes(pool, &volumes)
    }

    /// Refuses a class of a tenant that the pools of its volumes have no room for, beside the classes that are to be given with it.
    pub(super) fn check_class(&self, tenant: &str, class: &Class, planned: &Promised) -> Result<()> {
        let recording = self.being_promised();
        let changed = |d: &Directory, name: &str| match planned.get(name).or_else(|| recording.get(name)) {
            _ if name == tenant => Some(class.clone()),
            Some((class, _)) => Some(class.clone()),
            None => class_of(d, name),
        };
        let mine = |d: &Directory| {
            d.volumes.values().filter(|v| v.tenant == tenant).map(|v| v.pool).collect::<BTreeSet<usize>>()
        };
        let pools = self.directory_ref(mine);
        pools.into_iter().try_for_each(|pool| self.check_volumes(pool, &self.parts_by(pool, changed)))
    }

    fn check_volumes(&self, pool: usize, volumes: &[VolumePart]) -> Result<()> {
        let Some(live) = self.pools.get(pool).live() else { return Ok(()) };
        PARTS
            .iter()
            .try_for_each(|part| part.check_volumes(&live, volumes))
            .map_err(|e| NodeError::Conflict(e.to_string()))
    }

    /// Tells a fenced pool, whose turn the caller has, how many slots a tenant's volumes have by now.
    pub(super) async fn tell_slots_in(&self, pool: usize, tenant: &str) -> Result<()> {
        let p = self.pools.get(pool);
        let Some(store) = p.store.as_ref().filter(|_| p.is_fenced()) else { return Ok(()) };
        let records: Vec<VolumeRecord> = {
            let store = store.view();
            store.volumes().filter(|v| v.tenant == tenant).cloned().collect()
        };
        for record in records {
            self.publish(pool, &record).await?;
        }
        Ok(())
    }

    /// Refuses to remove a volume while it owns the slot that runs.
    pub(super) async fn check_not_running(&self, volume: &Volume) -> Result<()> {
        let p = self.pools.get(volume.pool);
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

fn class_of(d: &Directory, tenant: &str) -> Option<Class> {
    d.tenants.get(tenant).map(|t| t.class.clone())
}
