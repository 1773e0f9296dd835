//! A pool's settings and a volume's deadline, changed while they're in use.

use super::{Node, NodeError, Result};
use crate::config::check_deadline;
use crate::parts::PARTS;
use crate::parts::settings::{self, SettingView};
use plimsoll_base::Span;
use plimsoll_store::{DeadlineRecord, VolumeRecord};
use std::collections::BTreeMap;

impl Node {
    /// A pool's settings as they are now.
    pub fn settings(&self, name: &str) -> Result<Vec<SettingView>> {
        let p = &self.pools[self.pool_named(name)?];
        let live = p.live().ok_or_else(|| p.gone())?;
        Ok(settings::views(&live))
    }

    /// A layer's settings that were changed live may not fit the volumes that are there by now: then its configured ones hold. Refuses
    /// volumes, stored or configured, that don't fit those either.
    pub(super) async fn settle_settings(&self) -> Result<()> {
        for (pool, p) in self.pools.iter().enumerate() {
            let volumes = self.stored_parts(pool);
            for part in PARTS.iter().copied() {
                let Some(live) = p.live() else { continue };
                let Err(what) = settings::check(part, &live, &volumes) else { continue };
                let back = settings::as_configured(part, &live);
                settings::check(part, &back.live, &volumes)
                    .map_err(|what| NodeError::Refused(format!("pool `{}`: {what}", p.name)))?;
                crate::open::warn_of_settings(&live.config, &what);
                p.apply(back).await?;
            }
        }
        Ok(())
    }

    /// Changes a pool's settings, also for later starts, each until something else is configured for it.
    pub async fn change_settings(&self, name: &str, wanted: BTreeMap<String, u64>) -> Result<()> {
        let _one = self.changing.lock().await;
        let pool = self.pool_named(name)?;
        let p = &self.pools[pool];
        let live = p.live().ok_or_else(|| p.gone())?;
        let changed = settings::change(&live, &wanted, &self.served_parts(pool)).map_err(NodeError::Refused)?;
        let back = changed.back(&live);
        p.apply(changed).await?;
        let Some(store) = p.store.clone() else { return Ok(()) };
        let (now, configured) = (settings::values(&live.config), p.configured.clone());
        let recorded = super::blocking(move || {
            let mut store = store.change();
            let record = settings::recorded(store.settings(), &wanted, &now, &configured);
            store.set_settings(record)
        });
        let Err(e) = recorded.await else { return Ok(()) };
        p.apply(back).await?;
        Err(e)
    }

    /// Connections that ask for a volume from now on have this deadline unless they say their own; `None`: their tenant's. Also after
    /// later starts, until something else is configured.
    pub async fn set_volume_deadline(&self, name: &str, deadline: Option<Span>) -> Result<()> {
        let _one = self.changing.lock().await;
        let volume = self.volume_named(name)?;
        deadline.map_or(Ok(()), check_deadline).map_err(NodeError::Refused)?;
        if let Some(store) = self.pools[volume.pool].store.clone() {
            let configured_ns = self.deadlines.get(name).map(|d| d.as_nanos());
            let (name, record) =
                (name.to_string(), DeadlineRecord { deadline_ns: deadline.map(Span::as_nanos), configured_ns });
            super::blocking(move || store.change().set_volume_deadline(&name, record)).await?;
        }
        self.promise(name, deadline);
        Ok(())
    }

    /// A volume's deadline that was set live in an earlier life of the node, where the same is configured as then.
    pub(super) fn settle_deadline(&self, record: &VolumeRecord) {
        let configured_ns = self.deadlines.get(&record.name).map(|d| d.as_nanos());
        if let Some(kept) = record.deadline.filter(|k| k.configured_ns == configured_ns) {
            self.promise(&record.name, kept.deadline_ns.map(Span::from_nanos));
        }
    }

    pub(super) fn promise(&self, volume: &str, deadline: Option<Span>) {
        self.directory_mut(|d| match deadline {
            Some(deadline) => drop(d.promises.volumes.insert(volume.to_string(), deadline)),
            None => drop(d.promises.volumes.remove(volume)),
        });
    }
}
