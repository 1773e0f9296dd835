//! A pool's settings and a volume's deadline, changed while they're in use.

use super::{Command, Node, NodeError, Result, RunningPool};
use crate::config::check_deadline;
use crate::knobs::{Knobs, Wanted};
use plimsoll_base::Span;
use plimsoll_stack::Addressed;
use plimsoll_store::{DeadlineRecord, KnobsRecord, VolumeRecord};

impl Node {
    /// A pool's settings as they are now.
    pub fn knobs(&self, name: &str) -> Result<Knobs> {
        let pool = self.pool_named(name)?;
        Ok(*self.pools[pool].knobs.lock().expect("no panic while held"))
    }

    /// What was set live in an earlier life of the node holds again, where the same is configured as then.
    pub(super) async fn settle_knobs(&self) -> Result<()> {
        for p in &self.pools {
            let record = p.store.as_ref().and_then(|s| s.view().knobs());
            let Some(record) = record else { continue };
            let configured = p.knobs_configured;
            match configured.changed(&configured.kept(&record)) {
                Ok((new, orders)) => p.turn(new, orders).await?,
                Err(what) => {
                    tracing::warn!(
                        pool = p.name,
                        what,
                        "what was set live doesn't fit any more: what is configured holds"
                    );
                }
            }
        }
        Ok(())
    }

    /// Changes a pool's settings, also for later starts, each until something else is configured for it.
    pub async fn change_knobs(&self, name: &str, wanted: Wanted) -> Result<()> {
        let _one = self.changing.lock().await;
        let p = &self.pools[self.pool_named(name)?];
        let now = *p.knobs.lock().expect("no panic while held");
        let (new, orders) = now.changed(&wanted).map_err(NodeError::Refused)?;
        if let Some(store) = p.store.clone() {
            let record = KnobsRecord { set: new.values(), configured: p.knobs_configured.values() };
            super::blocking(move || store.change().set_knobs(record)).await?;
        }
        p.turn(new, orders).await
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

impl RunningPool {
    /// Passes a message to one of the pool's layers.
    pub(super) async fn tell(&self, to: Addressed) -> Result<()> {
        self.handle.ask(|reply| Command::Tell { to, reply }).await.map(drop).map_err(|_| self.gone())
    }

    /// Tells the layers.
    async fn turn(&self, new: Knobs, messages: Vec<Addressed>) -> Result<()> {
        for to in messages {
            self.tell(to).await?;
        }
        *self.knobs.lock().expect("no panic while held") = new;
        Ok(())
    }
}
