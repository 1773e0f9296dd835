//! Questions to pools beside their counters: histories, connected clients.

use super::{Node, NodeError, Result};
use crate::engine::{Command, Connection};
use crate::view::History;
use plimsoll_base::{TenantId, VolumeKey};

impl Node {
    /// The last minute by seconds, the last hour by minutes, and the last day by ten minutes of a volume.
    pub async fn volume_history(&self, name: &str) -> Result<History> {
        let volume = self.volume_named(name)?;
        self.history([volume.pool], Some(volume.key), None).await
    }

    /// The same of a tenant, on all volumes.
    pub async fn tenant_history(&self, name: &str) -> Result<History> {
        let id = self.tenant_named(name)?;
        self.history(0..self.pools.len(), None, Some(id)).await
    }

    async fn history(
        &self,
        pools: impl IntoIterator<Item = usize>,
        volume: Option<VolumeKey>,
        tenant: Option<TenantId>,
    ) -> Result<History> {
        let mut sum = History::default();
        for pool in pools {
            let asked = self.pools[pool].ask_soon(|reply| Command::History { volume, tenant, reply });
            // A pool that doesn't answer is a problem of its own.
            if let Ok(history) = asked.await {
                sum.add(&history);
            }
        }
        Ok(sum)
    }

    /// Some of the clients that are connected, with the numbers of their pools, and how many there are.
    pub async fn connections(
        &self,
        volume: Option<&str>,
        tenant: Option<&str>,
    ) -> Result<(Vec<(usize, Connection)>, usize)> {
        let volume = volume.map(|name| self.volume_named(name)).transpose()?;
        let tenant = tenant.map(|name| self.tenant_named(name)).transpose()?;
        let (mut all, mut total) = (Vec::new(), 0);
        for (pool, p) in self.pools.iter().enumerate() {
            if volume.as_ref().is_some_and(|v| v.pool != pool) {
                continue;
            }
            let key = volume.as_ref().map(|v| v.key);
            let asked = p.ask_soon(|reply| Command::Connections { volume: key, tenant, reply });
            if let Ok((some, n)) = asked.await {
                all.extend(some.into_iter().map(|c| (pool, c)));
                total += n;
            }
        }
        Ok((all, total))
    }

    fn tenant_named(&self, name: &str) -> Result<TenantId> {
        let missing = || NodeError::NotFound(format!("there is no tenant `{name}`"));
        self.directory_ref(|d| d.tenants.get(name).map(|t| t.id)).ok_or_else(missing)
    }
}
