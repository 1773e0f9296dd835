//! Tenants that are declared, changed and removed live, in the metadata of all pools; their deadlines.

use super::changing::PoolTurn;
use super::error::{blocking, failed};
use super::fit::Promised;
use super::{Node, NodeError, Result, permits_of_record};
use crate::config::{BadConfig, check_deadline};
use crate::directory::{Promise, Tenant};
use crate::engine::{Command, PermitLimits};
use plimsoll_base::{Class, OnBusy, Span};
use plimsoll_store::{DeadlineRecord, MetaError, MetaStore, TenantLimits, TenantRecord};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;

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
        let turns = self.turns_of_all().await?;
        let now = self.directory_ref(|d| d.tenants.get(name).cloned()).ok_or_else(|| self.no_tenant(name))?;
        let wanted = change(self.tenant_record(name, &now))?;
        self.put_tenant(turns, wanted).await
    }

    /// Declares a tenant or changes its promise, live; kept over a restart, where it goes before the configuration's.
    pub async fn set_tenant(&self, record: TenantRecord) -> Result<()> {
        self.put_tenant(self.turns_of_all().await?, record).await
    }

    async fn put_tenant(&self, turns: Vec<PoolTurn>, mut record: TenantRecord) -> Result<()> {
        record.check().map_err(|e| NodeError::Refused(e.to_string()))?;
        let (name, permits) = (record.name.clone(), permits_of_record(&record.limits));
        let noted = {
            let _deciding = self.deciding.lock().await;
            self.must_fit(&name, &record.class, permits).await?;
            self.check_class(&name, &record.class, &Promised::new())?;
            self.note_promise(&name, record.class.clone(), permits)
        };
        // A pool that is away may have a later change than those that are served: the time of day is above all of them.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        record.change = since_1970.max(1 + self.stored_tenants().iter().map(|t| t.change).max().unwrap_or(0));
        let kept = record.clone();
        let hold = || {
            self.settle_tenant_deadline(&record);
            self.apply_tenant(&record.name, record.class.clone(), permits)?;
            drop(noted);
            Ok(())
        };
        self.record_in_all(&name, turns, move |store| store.set_tenant(kept.clone()), hold).await
    }

    /// Takes a tenant away that owns no volume.
    pub async fn remove_tenant(&self, name: &str) -> Result<()> {
        // Before the pools' turns: one that isn't late any more is among them.
        self.must_own_nothing_late(name)?;
        // None of the pools makes a volume for the tenant meanwhile.
        let turns = self.turns_of_all().await?;
        if let Some(v) = self.directory_ref(|d| d.volumes.values().find(|v| v.tenant == name).map(|v| v.name.clone())) {
            return Err(NodeError::Conflict(format!("tenant `{name}` owns volume `{v}`")));
        }
        if !self.directory_ref(|d| d.tenants.contains_key(name)) {
            return Err(self.no_tenant(name));
        }
        let owned = name.to_string();
        let remove = move |store: &mut MetaStore| {
            // One that only the configuration declares was never stored.
            if store.tenants().any(|t| t.name == owned) { store.remove_tenant(&owned) } else { Ok(()) }
        };
        let hold = || {
            self.promise_tenant(name, self.configured().promised.tenant(name));
            if let Some(tenant) = self.directory_mut(|d| d.tenants.remove(name)).map(|t| t.id) {
                for (_, p) in self.pools.all() {
                    let _ = p.handle.send(Command::ForgetTenant { tenant }); // a pool that has ended has forgotten it
                }
            }
            Ok(())
        };
        self.record_in_all(name, turns, remove, hold).await
    }

    /// Makes a change of a tenant in the metadata of all pools at once. The change holds, by `hold`, as soon as one of them has recorded it:
    /// a start goes by the newest record. From then on a pool's turn ends when the pool has recorded the change, so one whose device hangs
    /// keeps no other pool's changes waiting.
    ///
    /// # Errors
    /// The first pool that couldn't record it. If another one could, the change holds.
    async fn record_in_all(
        &self,
        tenant: &str,
        turns: Vec<PoolTurn>,
        record: impl Fn(&mut MetaStore) -> std::result::Result<(), MetaError> + Clone + Send + 'static,
        hold: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let (mut recording, mut waiting) = (JoinSet::new(), Vec::new());
        for (number, pool, turn) in turns {
            let Some(store) = pool.store.clone() else {
                waiting.push((number, turn));
                continue;
            };
            let record = record.clone();
            recording.spawn(async move {
                let recorded = blocking(move || record(&mut store.change())).await;
                (number, turn, recorded.map_err(|e| e.about(&format!("pool `{}`", pool.name))))
            });
        }
        let (mut hold, mut failure) = (Some(hold), None);
        let mut keep = |done: Result<()>| failure = failure.take().or(done.err());
        if recording.is_empty() {
            let _deciding = self.deciding.lock().await;
            keep(hold.take().map_or(Ok(()), |hold| hold()));
        }
        loop {
            for (number, turn) in waiting.drain(..).filter(|_| hold.is_none()).collect::<Vec<_>>() {
                keep(self.tell_slots_in(number, tenant).await);
                drop(turn);
            }
            let Some(done) = recording.join_next().await else { break };
            let (number, turn, recorded) = done.map_err(failed)?;
            if recorded.is_ok()
                && let Some(hold) = hold.take()
            {
                let _deciding = self.deciding.lock().await;
                keep(hold());
            }
            keep(recorded);
            waiting.push((number, turn));
        }
        match failure {
            None => Ok(()),
            Some(e) if hold.is_none() => {
                tracing::warn!(tenant, error = %e, "a change of a tenant holds, and not every pool has it");
                Err(e.with("other pools have recorded the change: it holds"))
            }
            Some(e) => Err(e),
        }
    }

    /// Stores the newest record of each tenant in every pool that has a store, but `except`: pools that were elsewhere when one was changed
    /// have older ones, or none.
    pub(super) async fn share_tenants(&self, except: Option<usize>) -> Result<()> {
        for (number, pool) in self.pools.all().into_iter().filter(|(number, _)| Some(*number) != except) {
            let Some(store) = pool.store.clone() else { continue };
            let lacking = || -> Vec<TenantRecord> {
                let newest = self.stored_tenants();
                let known: Vec<TenantRecord> = store.view().tenants().cloned().collect();
                newest.into_iter().filter(|t| !known.contains(t)).collect()
            };
            if lacking().is_empty() {
                continue;
            }
            let _turn = self.turn_to_record(number).await?;
            // Nobody changes a tenant from here on.
            for record in lacking() {
                let (store, kept) = (store.clone(), record.clone());
                let stored = blocking(move || store.change().set_tenant(kept)).await;
                stored.map_err(|e| {
                    e.about(&format!("pool `{}`: live settings of tenant `{}`", pool.name, record.name))
                })?;
            }
        }
        Ok(())
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
        self.promise_tenant(&record.name, tenant_promise(record, configured));
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

/// A tenant's promise: the one that was set live, if the same is configured as then.
pub(super) fn tenant_promise(record: &TenantRecord, configured: Promise) -> Promise {
    let kept = record.deadline.filter(|k| (k.configured_ns, k.configured_busy) == recorded(&configured));
    kept.map_or(configured, |k| Promise { deadline: k.deadline_ns.map(Span::from_nanos), busy: k.busy, ..configured })
}

/// A tenant's promise as its record has it.
fn recorded(promise: &Promise) -> (Option<u64>, OnBusy) {
    (promise.deadline.map(Span::as_nanos), promise.busy)
}
