//! Checks whether a promise can be given. Only pools in which the tenant has a volume, or may use one, are asked. A pool that the tenant
//! doesn't use is no reason to refuse. A tenant without volumes might use any pool.

use super::{Node, NodeError, Result};
use crate::engine::PermitLimits;
use crate::predict::Particulars;
use plimsoll_base::Class;
use plimsoll_cores::Cores;
use plimsoll_cores::admission::{Fit, Planned};
use plimsoll_stack::Stack;
use std::collections::BTreeMap;

/// Promises of tenants that are to be given together, by the tenants' names. Each is judged beside those before it.
pub(super) type Promised = BTreeMap<String, (Class, PermitLimits)>;

/// A pool whose cores can't keep a promise.
pub(super) struct Unfit {
    /// Cores and times that the answer rests on.
    pub fit: Fit,
    /// Refusal in words.
    pub error: NodeError,
}

impl Node {
    /// Refuses a promise that cores couldn't keep beside those given already.
    pub(super) async fn must_fit(&self, name: &str, class: &Class, permits: PermitLimits) -> Result<()> {
        let particulars = &self.configured().particulars;
        let none = Promised::new();
        let unfit = self.unfit(particulars, name, class, permits, &none);
        unfit.await.map_or(Ok(()), |unfit| Err(unfit.error))
    }

    /// The first pool whose cores couldn't keep a promise beside those given already, and those that are to be given with it.
    pub(super) async fn unfit(
        &self,
        particulars: &Particulars,
        name: &str,
        class: &Class,
        permits: PermitLimits,
        planned: &Promised,
    ) -> Option<Unfit> {
        let planned = self.directory_ref(|d| {
            let of = |(name, (class, permits)): (&String, &(Class, PermitLimits))| Planned {
                tenant: d.tenants.get(name).map(|t| t.id),
                terms: particulars.terms(name, class, permits.jobs_max),
            };
            let recording = self.being_promised();
            // The tenant's own is what is judged.
            let others = recording.iter().filter(|(other, _)| !planned.contains_key(*other)).chain(planned);
            others.filter(|(other, _)| *other != name).map(of).collect::<Vec<_>>()
        });
        let used = self.directory_ref(|d| d.pools_of(name));
        for (pool, _) in self.pools.all().into_iter().filter(|(pool, _)| used.is_empty() || used.contains(pool)) {
            let unfit = self.ask_fit(particulars, pool, name, class, permits, planned.clone()).await;
            if unfit.is_some() {
                return unfit;
            }
        }
        None
    }

    /// Refuses a tenant's first volume in a pool whose cores couldn't keep what it was promised.
    pub(super) async fn must_fit_in(&self, pool: usize, name: &str) -> Result<()> {
        let tenant = self.directory_ref(|d| d.tenants.get(name).filter(|_| !d.pools_of(name).contains(&pool)).cloned());
        match tenant {
            Some(t) => {
                let particulars = &self.configured().particulars;
                let unfit = self.ask_fit(particulars, pool, name, &t.class, t.permits, Vec::new()).await;
                unfit.map_or(Ok(()), |unfit| Err(unfit.error))
            }
            None => Ok(()),
        }
    }

    async fn ask_fit(
        &self,
        particulars: &Particulars,
        pool: usize,
        name: &str,
        class: &Class,
        permits: PermitLimits,
        planned: Vec<Planned>,
    ) -> Option<Unfit> {
        let terms = particulars.terms(name, class, permits.jobs_max);
        let except = self.directory_ref(|d| d.tenants.get(name).map(|t| t.id));
        let p = self.pools.get(pool);
        // A pool that has ended keeps no promise anyway.
        let look = move |stack: &Stack, _| Some(stack.layer::<Cores>()?.fit(&terms, except, &planned));
        // Others' changes wait for this: a pool that doesn't answer soon is as good as gone.
        let fit = p.look_soon(look).await.unwrap_or(None);
        let fit = fit.filter(|fit| !fit.is_accepted())?;
        let error = NodeError::Conflict(format!("the objective of tenant `{name}` in pool `{}` {fit}", p.name));
        Some(Unfit { fit, error })
    }
}
