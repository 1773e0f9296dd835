//! Questions to pools beside their counters: histories, connected clients.

use super::{Node, Result};
use crate::engine::{ClientFilter, Command, Connection};
use crate::view::History;
use plimsoll_base::{TenantId, VolumeKey};

/// Clients by names: those that match all that is given.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clients<'a> {
    /// The volume's name.
    pub volume: Option<&'a str>,
    /// The tenant's name.
    pub tenant: Option<&'a str>,
    /// The peer as the list of connections shows it.
    pub peer: Option<&'a str>,
}

impl Node {
    /// The last minute by seconds, the last hour by minutes, and the last day by ten minutes of a volume.
    pub async fn volume_history(&self, name: &str) -> Result<History> {
        let volume = self.volume_named(name)?;
        self.history([volume.pool], Some(volume.key), None).await
    }

    /// The same of a tenant, on all volumes.
    pub async fn tenant_history(&self, name: &str) -> Result<History> {
        let id = self.tenant_named(name)?;
        self.history(0..self.pools.numbers(), None, Some(id)).await
    }

    async fn history(
        &self,
        pools: impl IntoIterator<Item = usize>,
        volume: Option<VolumeKey>,
        tenant: Option<TenantId>,
    ) -> Result<History> {
        let mut sum = History::default();
        for pool in pools {
            let p = self.pools.get(pool);
            let asked = p.ask_soon(|reply| Command::History { volume, tenant, reply });
            // A pool that doesn't answer is a problem of its own.
            if let Ok(history) = asked.await {
                sum.add(&history);
            }
        }
        Ok(sum)
    }

    /// Some of the clients that are connected, with the numbers of their pools, and how many there are.
    pub async fn connections(&self, of: &Clients<'_>) -> Result<(Vec<(usize, Connection)>, usize)> {
        let (pools, of) = self.clients(of)?;
        let (mut all, mut total) = (Vec::new(), 0);
        for pool in pools {
            let p = self.pools.get(pool);
            let asked = p.ask_soon(|reply| Command::Connections { of: of.clone(), reply });
            if let Ok((some, n)) = asked.await {
                all.extend(some.into_iter().map(|c| (pool, c)));
                total += n;
            }
        }
        Ok((all, total))
    }

    /// Ends connections: no more is taken from their clients, and what they have inside finishes. Returns the number of connections.
    pub async fn disconnect(&self, of: &Clients<'_>) -> Result<usize> {
        let (pools, of) = self.clients(of)?;
        let mut ended = 0;
        for pool in pools {
            // The connections of a pool that has ended are closed already.
            ended +=
                self.pools.get(pool).ask_soon(|reply| Command::Disconnect { of: of.clone(), reply }).await.unwrap_or(0);
        }
        Ok(ended)
    }

    /// Numbers of the pools that may have these clients.
    fn clients(&self, of: &Clients<'_>) -> Result<(std::ops::Range<usize>, ClientFilter)> {
        let volume = of.volume.map(|name| self.volume_named(name)).transpose()?;
        let tenant = of.tenant.map(|name| self.tenant_named(name)).transpose()?;
        let pools = volume.as_ref().map_or(0..self.pools.numbers(), |v| v.pool..v.pool + 1);
        Ok((pools, ClientFilter { volume: volume.map(|v| v.key), tenant, peer: of.peer.map(Into::into) }))
    }

    fn tenant_named(&self, name: &str) -> Result<TenantId> {
        self.directory_ref(|d| d.tenants.get(name).map(|t| t.id)).ok_or_else(|| self.no_tenant(name))
    }
}
