//! Tenants' deadlines, and changes of a tenant that leave the rest as it is.

use super::{Node, Result};
use crate::config::{BadConfig, check_deadline};
use crate::directory::{Promise, Tenant};
use crate::engine::PermitLimits;
use plimsoll_base::{Class, OnBusy, Span};
use plimsoll_store::{DeadlineRecord, TenantLimits, TenantRecord};

/// A live change of a tenant's deadline; `None`: as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeadlineChange {
    /// Deadline of its reads, if any.
    pub deadline: Option<Option<Span>>,
    /// Answer to a read that would miss the deadline.
    pub busy: Option<OnBusy>,
}

impl Node {
    /// Changes a tenant, live, as [`Node::set_tenant`] does. `change` is given the tenant's record as it is now.
    pub async fn change_tenant(
        &self,
        name: &str,
        change: impl FnOnce(TenantRecord) -> std::result::Result<TenantRecord, BadConfig>,
    ) -> Result<()> {
        let _one = self.changing.lock().await;
        let now = self.directory_ref(|d| d.tenants.get(name).cloned()).ok_or_else(|| self.no_tenant(name))?;
        let wanted = change(self.tenant_record(name, &now))?;
        self.put_tenant(wanted).await
    }

    /// A tenant's record as it would be stored. Limits that are the default stay the default.
    fn tenant_record(&self, name: &str, now: &Tenant) -> TenantRecord {
        let stored = self.stored_tenants().into_iter().find(|t| t.name == name);
        let (default, Tenant { class, permits, .. }) = (PermitLimits::default(), now);
        let limits = TenantLimits {
            in_flight_requests_max: (permits.jobs_max != default.jobs_max).then_some(permits.jobs_max),
            in_flight_bytes_max: (permits.bytes_max != default.bytes_max).then_some(permits.bytes_max),
            ..TenantLimits::default()
        };
        let class: Class = class.clone();
        TenantRecord { name: name.to_string(), class, limits, change: 0, deadline: stored.and_then(|t| t.deadline) }
    }

    /// The record of a live change of a tenant's deadline, or of what becomes of reads that would miss it. The one that isn't named
    /// stays as it is in `was`. `None` if neither is named.
    ///
    /// # Errors
    /// If it can't be kept.
    pub fn tenant_deadline(
        &self,
        name: &str,
        was: Promise,
        change: DeadlineChange,
    ) -> std::result::Result<Option<DeadlineRecord>, BadConfig> {
        if change == DeadlineChange::default() {
            return Ok(None);
        }
        let deadline = change.deadline.unwrap_or(was.deadline);
        deadline.map_or(Ok(()), check_deadline)?;
        let busy = match (change.busy, deadline.is_some() || was.auto.is_some()) {
            (Some(_), false) => return Err(BadConfig::new("`busy` is for reads with a deadline: set that too")),
            (None, false) => OnBusy::Wait,
            (busy, true) => busy.unwrap_or(was.busy),
        };
        let (configured_ns, configured_busy) = recorded(&self.configured().promised.tenant(name));
        Ok(Some(DeadlineRecord { deadline_ns: deadline.map(Span::as_nanos), configured_ns, busy, configured_busy }))
    }

    /// A tenant's promise as configured.
    pub fn promise_configured(&self, name: &str) -> Promise {
        self.configured().promised.tenant(name)
    }

    /// Thousandths of a tenant's accepted reads in a pool that may miss their deadlines, by its percentile or the pool's share.
    pub fn late_permille(&self, pool: usize, tenant: &str) -> u64 {
        let share = self.pools.get(pool).live().and_then(|live| live.config.miss_percent);
        let of_pool = share.map_or(0, |percent| (percent * 10.0).ceil() as u64);
        self.configured().particulars.late_permille(tenant).max(of_pool)
    }

    /// A tenant's deadline that was set live holds as long as the same is configured as then.
    pub(super) fn settle_tenant_deadline(&self, record: &TenantRecord) {
        let configured = self.configured().promised.tenant(&record.name);
        let kept = record.deadline.filter(|k| (k.configured_ns, k.configured_busy) == recorded(&configured));
        let promise = kept.map_or(configured, |k| Promise {
            deadline: k.deadline_ns.map(Span::from_nanos),
            busy: k.busy,
            ..configured
        });
        self.promise_tenant(&record.name, promise);
    }

    pub(super) fn promise_tenant(&self, name: &str, promise: Promise) {
        self.directory_mut(|d| {
            if promise == Promise::NONE {
                d.promises.tenants.remove(name); // names come and go as long as the node runs
            } else {
                d.promises.tenants.insert(name.to_string(), promise);
            }
        });
    }
}

/// A tenant's promise as its record has it.
fn recorded(promise: &Promise) -> (Option<u64>, OnBusy) {
    (promise.deadline.map(Span::as_nanos), promise.busy)
}
