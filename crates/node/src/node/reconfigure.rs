//! A changed configuration, applied while the node serves.

use super::{Configured, Node, NodeError, Result, permits_of};
use crate::config::{Config, VolumeConfig};
use crate::directory::Directory;
use std::sync::Arc;

impl Node {
    /// Applies what a changed configuration says of grants, tenants and volumes; [`crate::reload`] says which of their keys. Returns the
    /// changes that could not be carried out: the others were.
    ///
    /// # Errors
    /// If tenants have no room: then nothing was changed.
    pub async fn reconfigure(&self, config: &Config) -> Result<Vec<String>> {
        let changing = self.changing.lock().await;
        let secrets = crate::secrets::load(&config.nvme_host).map_err(NodeError::Refused)?;
        let new = Arc::new(Configured::of(config).map_err(NodeError::Refused)?);
        let was = std::mem::replace(&mut *self.configured.write().expect("no panic while held"), new.clone());
        if let Err(e) = self.check_tenants(config).await {
            *self.configured.write().expect("no panic while held") = was;
            return Err(e);
        }
        self.directory_mut(|d| {
            d.grants = config.grant.clone();
            d.secrets = secrets;
            // Promises of volumes and tenants that the configuration doesn't name are live ones.
            for (name, promise) in &new.promised.tenants {
                d.promises.tenants.insert(name.clone(), *promise);
            }
            for name in was.promised.volumes.keys().chain(new.promised.volumes.keys()) {
                match new.promised.volumes.get(name) {
                    Some(promise) => drop(d.promises.volumes.insert(name.clone(), *promise)),
                    None => drop(d.promises.volumes.remove(name)),
                }
            }
        });
        let stored = self.stored_tenants();
        for t in config.tenant.iter().filter(|t| !stored.iter().any(|s| s.name == *t.name.get_ref())) {
            let class = t.class().map_err(NodeError::Refused)?;
            self.apply_tenant(t.name.get_ref(), class, permits_of(t))?;
            self.tell_slots(t.name.get_ref()).await?;
        }
        for record in &stored {
            self.settle_tenant_deadline(record);
        }
        for pool in 0..self.pools.len() {
            let Some(store) = self.pools[pool].store.clone() else { continue };
            let records: Vec<_> = store.view().volumes().cloned().collect();
            for record in records {
                self.settle_deadline(&record);
                if was.throttles.get(&record.name) != new.throttles.get(&record.name) {
                    self.publish(pool, &record).await?;
                }
            }
        }
        drop(changing);
        let mut failed = Vec::new();
        for v in &config.volume {
            let differs = was.config.volume.iter().find(|o| o.name == v.name) != Some(v);
            if differs && self.is_served_pool(v) {
                let done = match self.owner_must_fit(v).await {
                    Ok(()) => self.ensure_volume(v).await,
                    Err(e) => Err(e.about(&format!("volume `{}`", v.name.get_ref()))),
                };
                failed.extend(done.err().map(|e| e.to_string()));
            }
        }
        Ok(failed)
    }

    /// Refuses to give a volume to a tenant whose objective doesn't fit into its pool, as a volume that is created for it would be. A start
    /// doesn't ask: it serves what it can.
    async fn owner_must_fit(&self, v: &VolumeConfig) -> Result<()> {
        let found = self.directory_ref(|d| d.volumes.get(v.name.get_ref()).cloned());
        match found.filter(|found| found.tenant != *v.tenant.get_ref()) {
            Some(found) => self.must_fit_in(found.pool, v.tenant.get_ref()).await,
            None => Ok(()),
        }
    }

    /// A pool that is new in the configuration needs a restart first.
    fn is_served_pool(&self, v: &VolumeConfig) -> bool {
        self.pools.iter().any(|p| p.name == *v.pool.get_ref() && p.failed.is_none())
    }

    async fn check_tenants(&self, config: &Config) -> Result<()> {
        for t in &config.tenant {
            let (name, class, permits) = (t.name.get_ref(), t.class().map_err(NodeError::Refused)?, permits_of(t));
            // A promise that stands isn't in another change's way, though requests may have turned out to take longer than it has room for.
            let stands = |d: &Directory| d.tenants.get(name).is_some_and(|t| t.class == class && t.permits == permits);
            if self.directory_ref(stands) {
                continue;
            }
            self.must_fit(name, &class, permits).await?;
            self.check_class(name, &class)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A volume that is deleted while its configured owner is to be set isn't served again: its space is another's soon.
    #[tokio::test]
    async fn a_volume_that_is_deleted_meanwhile_is_not_published_again() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"
            [listen]
            unix = "nbd.sock"
            [[pool]]
            name = "p"
            device = { file = "p.img", size = "64MiB" }
            [[tenant]]
            name = "a"
            class = "best-effort"
            [[tenant]]
            name = "b"
            class = "best-effort"
            [[volume]]
            name = "v"
            pool = "p"
            size = "1MiB"
            tenant = "a"
        "#;
        let node = Node::start(&Config::parse(text, &dir.path().join("node.toml")).unwrap()).await.unwrap();
        let deletion = node.changing.lock().await;
        let mut owned = Box::pin(node.set_volume_owner("v", "b", false));
        let early = tokio::time::timeout(Duration::from_millis(200), &mut owned).await;
        assert!(early.is_err(), "it waits until the other change has ended");
        node.directory_mut(|d| d.volumes.remove("v"));
        drop(deletion);
        assert!(matches!(owned.await, Err(NodeError::NotFound(_))));
        assert!(node.directory_ref(|d| d.volumes.is_empty()));
        node.shut_down().unwrap();
    }
}
