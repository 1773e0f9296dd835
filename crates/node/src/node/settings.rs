//! A pool's settings and a volume's deadline, changed while they're in use.

use super::{Node, NodeError, Result};
use crate::directory::VolumePromise;
use crate::engine::{Command, InjectTerms};
use crate::parts::PARTS;
use crate::parts::settings::{self, SettingView};
use crate::reload::pool_section;
use plimsoll_base::{OnBusy, Span};
use plimsoll_store::{DeadlineRecord, VolumeRecord};
use std::collections::BTreeMap;

impl Node {
    /// A pool's settings as they are now.
    pub fn settings(&self, name: &str) -> Result<Vec<SettingView>> {
        let p = self.pools.get(self.pool_named(name)?);
        let live = p.live().ok_or_else(|| p.gone())?;
        Ok(settings::views(&live))
    }

    /// A layer's settings that were changed live may not fit a pool's volumes as they are by now: then its configured ones hold. Refuses
    /// volumes, stored or configured, that don't fit those either.
    pub(super) async fn settle_settings(&self, pool: usize) -> Result<()> {
        let p = self.pools.get(pool);
        let volumes = self.stored_parts(pool);
        for part in PARTS.iter().copied() {
            let Some(live) = p.live() else { continue };
            let Err(unfit) = settings::check(part, &live, &volumes) else { continue };
            let back = settings::as_configured(part, &live);
            settings::check(part, &back.live, &volumes).map_err(|e| e.about(pool_section(&p.name)))?;
            crate::open::warn_of_settings(&live.config, &unfit);
            p.apply(back).await?;
        }
        Ok(())
    }

    /// Changes a pool's settings, also for later starts, each until something else is configured for it.
    pub async fn change_settings(&self, name: &str, wanted: BTreeMap<String, u64>) -> Result<()> {
        let pool = self.pool_named(name)?;
        let _turn = self.turn_to_record(pool).await?;
        let p = self.pools.get(pool);
        // Slots are promised to tenants' volumes meanwhile, but not between the check and the change.
        let deciding = self.deciding.lock().await;
        let live = p.live().ok_or_else(|| p.gone())?;
        let changed = settings::change(&live, &wanted, &self.served_parts(pool))?;
        let back = changed.back(&live);
        p.apply(changed).await?;
        drop(deciding);
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

    /// Injects faults into a volume's requests from now on, instead of those before; `None`: no more. Nothing is kept.
    pub async fn inject(&self, name: &str, terms: Option<InjectTerms>) -> Result<()> {
        let volume = self.volume_named(name)?;
        let (p, key) = (self.pools.get(volume.pool), volume.key);
        match p.handle.ask(|reply| Command::Inject { key, terms, reply }).await.map_err(|_| p.gone())? {
            true => {
                match terms {
                    Some(terms) => tracing::warn!(volume = name, ?terms, "faults are injected into its requests"),
                    None => tracing::warn!(volume = name, "no more faults are injected into its requests"),
                }
                Ok(())
            }
            false => Err(NodeError::Conflict("nothing is injected into it, or it isn't served any more".into())),
        }
    }

    /// Keeps a volume's promise that was set live, and makes it so for connections from now on.
    pub(super) async fn put_promise(&self, pool: usize, name: &str, promise: Option<VolumePromise>) -> Result<()> {
        if let Some(store) = self.pools.get(pool).store.clone() {
            let (configured_ns, configured_busy) = recorded(self.configured().promised.volumes.get(name));
            let (deadline_ns, busy) = recorded(promise.as_ref());
            let record = DeadlineRecord { deadline_ns, configured_ns, busy, configured_busy };
            let name = name.to_string();
            super::blocking(move || store.change().set_volume_deadline(&name, record)).await?;
        }
        self.promise(name, promise);
        Ok(())
    }

    /// A volume's deadline that was set live in an earlier life of the node, where the same is configured as then.
    pub(super) fn settle_deadline(&self, record: &VolumeRecord) {
        let configured = self.configured().promised.volumes.get(&record.name).copied();
        if let Some(kept) = volume_promise(record, configured.as_ref()) {
            self.promise(&record.name, kept);
        }
    }

    pub(super) fn promise(&self, volume: &str, promise: Option<VolumePromise>) {
        self.directory_mut(|d| match promise {
            Some(promise) => drop(d.promises.volumes.insert(volume.to_string(), promise)),
            None => drop(d.promises.volumes.remove(volume)),
        });
    }
}

/// A volume's promise that was set live, if it holds: if the same is configured as then.
pub(super) fn volume_promise(
    record: &VolumeRecord,
    configured: Option<&VolumePromise>,
) -> Option<Option<VolumePromise>> {
    let kept = record.deadline.filter(|k| (k.configured_ns, k.configured_busy) == recorded(configured))?;
    Some(kept.deadline_ns.map(|ns| VolumePromise { deadline: Span::from_nanos(ns), busy: kept.busy }))
}

/// A volume's promise as its record has it.
fn recorded(promise: Option<&VolumePromise>) -> (Option<u64>, OnBusy) {
    promise.map_or((None, OnBusy::Wait), |p| (Some(p.deadline.as_nanos()), p.busy))
}
