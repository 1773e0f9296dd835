//! Checks whether a promise can be given. Only pools in which the tenant has a volume, or may use one, are asked. A pool that the tenant
//! doesn't use is no reason to refuse. A tenant without volumes might use any pool.

use super::{Node, NodeError, Result};
use crate::engine::PermitLimits;
use plimsoll_base::Class;
use plimsoll_cores::Cores;

impl Node {
    /// Refuses a promise that cores couldn't keep beside those given already.
    pub(super) async fn must_fit(&self, name: &str, class: &Class, permits: PermitLimits) -> Result<()> {
        let used = self.directory_ref(|d| d.pools_of(name));
        for (pool, _) in self.pools.all().into_iter().filter(|(pool, _)| used.is_empty() || used.contains(pool)) {
            self.ask_fit(pool, name, class, permits).await?;
        }
        Ok(())
    }

    /// Refuses a tenant's first volume in a pool whose cores couldn't keep what it was promised.
    pub(super) async fn must_fit_in(&self, pool: usize, name: &str) -> Result<()> {
        let tenant = self.directory_ref(|d| d.tenants.get(name).filter(|_| !d.pools_of(name).contains(&pool)).cloned());
        match tenant {
            Some(t) => self.ask_fit(pool, name, &t.class, t.permits).await,
            None => Ok(()),
        }
    }

    async fn ask_fit(&self, pool: usize, name: &str, class: &Class, permits: PermitLimits) -> Result<()> {
        let terms = self.configured().particulars.terms(name, class, permits.jobs_max);
        let except = self.directory_ref(|d| d.tenants.get(name).map(|t| t.id));
        let p = self.pools.get(pool);
        // A pool that has ended keeps no promise anyway.
        let fit =
            p.handle.look(move |stack, _| Some(stack.layer::<Cores>()?.fit(&terms, except))).await.unwrap_or(None);
        match fit.filter(|fit| !fit.is_accepted()) {
            Some(fit) => {
                Err(NodeError::Conflict(format!("the objective of tenant `{name}` in pool `{}` {fit}", p.name)))
            }
            None => Ok(()),
        }
    }
}
