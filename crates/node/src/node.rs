//! The node: its pools, volumes and tenants, and what can be done with them while clients are served.

mod backup;
mod beneath;
mod caching;
mod changing;
mod closing;
mod effective;
mod ending;
mod error;
mod fit;
mod late;
mod lifecycle;
mod moving;
mod namesakes;
mod opening;
mod patch;
mod pool;
mod pools;
mod reconfigure;
mod settings;
mod slots;
mod tenants;
mod volumes;
mod watch;

pub use beneath::Beneath;
pub(crate) use changing::metadata_failed;
pub use effective::{Drift, Effective};
pub use ending::{Ending, unclean_note};
pub use error::NodeError;
pub use lifecycle::RemovedPool;
pub(crate) use lifecycle::lost_here;
pub use moving::{ImageView, PathView};
pub use patch::{ReplicaStep, VolumePatch};
pub use pool::RunningPool;
pub use pools::Pools;
pub use reconfigure::Prepared;
pub use tenants::DeadlineChange;
pub use volumes::Deletion;
pub use watch::Clients;

use crate::config::{BadConfig, Config, PoolConfig, TenantConfig, VolumeConfig, there_is_no};
use crate::directory::{Directory, NvmeName, Promises, Volume};
use crate::engine::watchdog::Watchdog;
use crate::engine::{Command, PermitLimits, Recovered, Trace};
use crate::events::Events;
use crate::parts::{self, PARTS, Part, PoolView};
use crate::predict::Particulars;
use crate::reload::volume_section;
use crate::replica::Replica;
use crate::store::PoolStore;
use changing::TURN_TIME;
use error::{Result, blocking};
use opening::{Opened, Opening};
use plimsoll_base::{CacheMode, Class, TenantId};
use plimsoll_stack::{Addressed, FrontVolume, LayerState, Message, OwnTerms, VolumeTerms};
use plimsoll_store::{MetaError, NewVolume, TenantLimits, TenantRecord, VolumeRecord};
use plimsoll_throttle::ThrottleTerms;
use pool::ANSWER_TIME;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Everything that the configuration says of tenants and volumes; replaced as a whole by a reload.
#[derive(Clone)]
pub(crate) struct Configured {
    /// The volumes' parts of the cache, by name.
    cache_sizes: BTreeMap<String, u64>,
    /// Measured performance of volumes alone.
    baselines: BTreeMap<String, Arc<parts::fence::Baseline>>,
    /// Promises.
    promised: Promises,
    /// Slots of volumes, by name.
    slots: BTreeMap<String, u32>,
    /// Limits of volumes, by name.
    throttles: BTreeMap<String, ThrottleTerms>,
    /// Tenants beside their classes.
    particulars: Particulars,
    /// The configuration as it was read, but for what needs a restart.
    pub(crate) config: Config,
}

impl Configured {
    fn of(config: &Config) -> std::result::Result<Configured, BadConfig> {
        let baselines = parts::fence::baselines(&config.volume)?;
        Ok(Configured::with(config, baselines.into_iter().map(|(name, b)| (name, Arc::new(b))).collect()))
    }

    fn with(config: &Config, baselines: BTreeMap<String, Arc<parts::fence::Baseline>>) -> Configured {
        let sized = |v: &VolumeConfig| Some((v.name.get_ref().clone(), v.cache_size?.0));
        Configured {
            cache_sizes: config.volume.iter().filter_map(sized).collect(),
            baselines,
            promised: Promises::of(config),
            slots: config.volume.iter().filter_map(|v| Some((v.name.get_ref().clone(), v.slots?))).collect(),
            throttles: config.volume.iter().filter_map(throttled).collect(),
            particulars: Particulars::of(&config.tenant),
            config: config.clone(),
        }
    }

    /// Returns the place in the file that declares a pool.
    fn declares_pool(&self, pool: &str) -> Option<String> {
        let declared = self.config.pool.iter().find(|p| p.name.get_ref() == pool);
        let declared = declared.filter(|_| !self.config.undeclared.contains(pool))?;
        Some(self.config.source.place(declared.name.span().start))
    }

    /// Returns the place in the file that declares a volume.
    fn declares(&self, volume: &str) -> Option<String> {
        let declared = self.config.volume.iter().find(|v| v.name.get_ref() == volume)?;
        Some(self.config.source.place(declared.name.span().start))
    }
}

/// See the module's documentation.
pub struct Node {
    configured: RwLock<Arc<Configured>>,
    /// By number.
    pub pools: Arc<Pools>,
    /// Volumes, tenants, grants.
    pub directory: Arc<RwLock<Directory>>,
    /// The event log.
    pub events: Arc<Events>,
    /// Counts the host's pauses, where a pool's device is modelled in real time.
    pub watchdog: OnceLock<Watchdog>,
    /// One copy of all that is counted at a time.
    watching: tokio::sync::Mutex<()>,
    /// One judgement at a time of what concerns several pools; see [`changing`].
    deciding: tokio::sync::Mutex<()>,
    /// Results of judgements that aren't in the directory yet.
    underway: Arc<Mutex<changing::Underway>>,
    /// Sections of the configuration that the start or the last reload couldn't carry out, and why: the next reload tries them again.
    unmade: Mutex<BTreeMap<String, String>>,
    /// Pools whose devices hadn't answered when the start or a reload stopped waiting for them.
    late: Mutex<Vec<(PoolConfig, Opening)>>,
    /// Tells of such pools.
    late_came: tokio::sync::Notify,
    /// One configuration is applied at a time. Comes before pools' turns.
    reconfiguring: tokio::sync::Mutex<()>,
    /// Set once, when the node's end begins.
    ending: OnceLock<Ending>,
}

impl Node {
    /// Opens the pools, brings back their volumes, and makes sure that the configured ones exist. Clients are not yet taken in. Once a pool is
    /// served, pools whose devices don't answer are left to [`Node::serve_late_loop`].
    pub async fn start(config: &Config) -> Result<Node> {
        Node::start_within(config, opening::DEVICES_TIME).await
    }

    /// The same, with the time for which it waits for devices while a pool is served.
    pub(crate) async fn start_within(config: &Config, at_most: Duration) -> Result<Node> {
        let begun = Instant::now();
        let configured = Configured::of(config).map_err(error::failed)?;
        let secrets = crate::secrets::load(&config.nvme_host)?;
        let directory = Arc::<RwLock<Directory>>::default();
        let pools = Arc::new(Pools::new()?);
        let Opened { pools: all, mut late } = opening::open_all(config, &pools, &directory, at_most).await?;
        for (p, opened) in config.pool.iter().zip(all) {
            pools.put(opened.or_else(|e| RunningPool::failed(p, e))?);
        }
        late.iter().for_each(|(p, _)| pools.is_late(p, begun));
        let promises = configured.promised.clone();
        let node = Node {
            configured: RwLock::new(Arc::new(configured)),
            pools,
            directory,
            events: Arc::default(),
            watchdog: OnceLock::new(),
            watching: tokio::sync::Mutex::new(()),
            deciding: tokio::sync::Mutex::new(()),
            underway: Arc::default(),
            unmade: Mutex::default(),
            late: Mutex::default(),
            late_came: tokio::sync::Notify::new(),
            reconfiguring: tokio::sync::Mutex::new(()),
            ending: OnceLock::new(),
        };
        node.watch_host(&config.pool)?;
        node.directory_mut(|d| {
            d.grants = config.grant.clone();
            d.promises = promises;
            d.subsystems = NvmeName::all(config);
            d.secrets = secrets;
        });
        node.settle(config).await?;
        // A pool that was opened in time may not be fit to be served. The others are waited for then, as if they were the only ones.
        while node.some_pool_serves().is_err() && !late.is_empty() {
            let (answered, waiting) = opening::first_of(std::mem::take(&mut late)).await;
            for (p, opened) in answered {
                node.pools.has_answered(p.name.get_ref());
                node.pools.put(opened.or_else(|e| RunningPool::failed(&p, e))?);
            }
            late = waiting;
            node.settle(config).await?;
        }
        *node.late.lock().expect("no panic while held") = late;
        node.some_pool_serves()?;
        // One volume that can't be served, or isn't as configured, keeps nobody from the others: what repairs it may need a node that serves.
        let mut unmade = BTreeMap::new();
        let mut note = |name: &str, e: NodeError| {
            tracing::error!(volume = name, error = %e, "isn't as configured; the node serves everything else");
            unmade.insert(volume_section(name), e.to_string());
        };
        for (pool, p) in node.pools.all() {
            node.tell_growth(&p);
            node.bring_back(pool).await.into_iter().for_each(|(name, e)| note(&name, e));
        }
        for v in &config.volume {
            match node.is_served_pool(v) {
                true => _ = node.ensure_volume(v).await.map_err(|e| note(v.name.get_ref(), e)),
                false => tracing::error!(volume = v.name.get_ref(), "isn't served: its pool couldn't be opened"),
            }
        }
        *node.unmade.lock().expect("no panic while held") = unmade;
        if let Err(error) = node.share_tenants(None).await {
            // The pool that has them goes on holding; the next start or reload that adds a pool tries it again.
            tracing::warn!(%error, "live settings of tenants aren't in all pools");
        }
        Ok(node)
    }

    /// Tells the pools of a start of all tenants, and takes those out whose settings can't be as configured.
    async fn settle(&self, config: &Config) -> Result<()> {
        for t in &config.tenant {
            let class = t.class()?;
            self.apply_tenant(t.name.get_ref(), class, permits_of(t))?;
        }
        for record in self.stored_tenants() {
            self.apply_tenant(&record.name, record.class.clone(), permits_of_record(&record.limits))?;
            self.settle_tenant_deadline(&record);
        }
        for (pool, unfit) in self.pools.all() {
            if let Err(why) = self.settle_settings(pool).await {
                // It isn't served; the others are.
                self.pools.put(RunningPool::absent(&unfit.name, unfit.device.clone(), why.to_string())?);
                tracing::error!(error = %why, "a pool isn't served");
                unfit.shut_down()?;
            }
        }
        Ok(())
    }

    /// Fails if no pool is served, with the first one's reason.
    fn some_pool_serves(&self) -> Result<()> {
        let all = self.pools.all();
        let none = all.iter().all(|(_, p)| p.failed.is_some());
        let why = all.first().filter(|_| none).and_then(|(_, p)| p.failed.clone());
        why.map_or(Ok(()), |why| Err(NodeError::Failed(why)))
    }

    pub(crate) fn configured(&self) -> Arc<Configured> {
        self.configured.read().expect("no panic while held").clone()
    }

    fn directory_mut<R>(&self, f: impl FnOnce(&mut Directory) -> R) -> R {
        let mut directory = self.directory.write().expect("no panic while held");
        let done = f(&mut directory);
        directory.changes.send_modify(|n| *n += 1);
        done
    }

    fn directory_ref<R>(&self, f: impl FnOnce(&Directory) -> R) -> R {
        f(&self.directory.read().expect("no panic while held"))
    }

    /// The records of a pool's volumes. A fence deals slots to volumes in the order of their places.
    fn records(&self, pool: usize) -> Vec<VolumeRecord> {
        let Some(store) = self.pools.get(pool).store.clone() else { return Vec::new() };
        let mut records: Vec<VolumeRecord> = store.view().volumes().cloned().collect();
        records.sort_by_key(|r| r.extents.first().map(|e| e.device_offset));
        records
    }

    /// Makes the volumes of a pool's store known. Returns those that can't be served, with the reasons.
    async fn bring_back(&self, pool: usize) -> Vec<(String, NodeError)> {
        let mut unserved = Vec::new();
        // A thread that hangs is waited for once.
        let mut patience = TURN_TIME;
        for record in self.records(pool) {
            let published = match self.must_be_meant(pool, &record.name) {
                Ok(()) => {
                    self.settle_deadline(&record);
                    self.publish_within(pool, &record, &mut patience).await
                }
                Err(e) => Err(e),
            };
            if let Err(e) = published {
                unserved.push((record.name, e));
            }
        }
        unserved
    }

    /// Makes or grows configured volumes for which there was no space while deletions weren't done.
    async fn make_unmade(&self) {
        let (configured, unmade) = (self.configured(), self.unmade());
        let is_small = |v: &VolumeConfig| {
            self.directory_ref(|d| d.volumes.get(v.name.get_ref()).is_none_or(|known| known.size_bytes < v.size.0))
        };
        let is_left = |v: &&VolumeConfig| {
            unmade.contains(&volume_section(v.name.get_ref())) && self.is_served_pool(v) && is_small(v)
        };
        for v in configured.config.volume.iter().filter(is_left) {
            let (name, section) = (v.name.get_ref(), volume_section(v.name.get_ref()));
            match self.ensure_volume(v).await {
                Ok(()) => {
                    tracing::info!(volume = name, "is as configured from now on: deletions have made room");
                    self.unmade.lock().expect("no panic while held").remove(&section);
                }
                Err(error) => tracing::warn!(volume = name, %error, "isn't as configured yet"),
            }
        }
    }

    /// Deletions that the last end of the node interrupted: the pool and the volume of each. To be asked before any other
    /// can begin: a space that is zeroed twice may be another's the second time.
    pub fn interrupted_deletions(&self) -> Vec<(usize, VolumeRecord)> {
        self.pools.all().into_iter().flat_map(|(pool, p)| interrupted_deletions(pool, &p)).collect()
    }

    /// Goes on with deletions, each pool's by itself: one that hangs keeps no other's waiting. Their space is free when this is done, which
    /// takes as long as zeroing it does; until then the node serves everything else.
    pub async fn resume_deletions(self: &Arc<Self>, interrupted: Vec<(usize, VolumeRecord)>) {
        let mut by_pool: BTreeMap<usize, Vec<VolumeRecord>> = BTreeMap::new();
        for (pool, record) in interrupted {
            by_pool.entry(pool).or_default().push(record);
        }
        let mut deleting = JoinSet::new();
        for (pool, records) in by_pool {
            let node = self.clone();
            deleting.spawn(async move {
                for record in records {
                    tracing::info!(volume = record.name, "going on with a deletion that was interrupted");
                    if let Err(error) = node.finish_delete(pool, &record).await {
                        tracing::warn!(%error, "not deleted yet");
                    }
                }
            });
        }
        deleting.join_all().await;
        self.make_unmade().await;
    }

    /// Waits until no pool is recovering, or `at_most` has passed.
    pub async fn recovered(&self, at_most: Duration) {
        let all = async {
            for (_, p) in self.pools.all() {
                // The thread says that it has failed before it ends.
                let _ = p.handle.health.clone().wait_for(|h| h.state != LayerState::Recovering).await;
            }
        };
        let _ = tokio::time::timeout(at_most, all).await; // what is still recovering says so in its state
    }

    /// Tells the pool's thread and the directory of a volume, unless another one has its name.
    async fn publish(&self, pool: usize, record: &VolumeRecord) -> Result<()> {
        self.must_be_meant(pool, &record.name)?;
        self.publish_meant(pool, record).await
    }

    /// The same of a volume that is the one to serve under its name, unless the pool's thread doesn't answer for `patience`. Then no time is
    /// left for the pool's later volumes. The thread gets the message nevertheless, before those of later changes.
    async fn publish_within(&self, pool: usize, record: &VolumeRecord, patience: &mut Duration) -> Result<()> {
        let told = tokio::time::timeout(*patience, self.publish_meant(pool, record)).await;
        told.unwrap_or_else(|_| {
            *patience = Duration::ZERO;
            Err(self.pools.get(pool).gone())
        })
    }

    async fn publish_meant(&self, pool: usize, record: &VolumeRecord) -> Result<()> {
        let p = self.pools.get(pool);
        self.ensure_tenant(&record.tenant)?;
        let extents = p.stack_extents(&record.visible_extents(p.block_bytes));
        let front = FrontVolume { size_bytes: record.size_bytes, read_only: record.read_only };
        let (key, sent, terms) = (record.key, extents.clone(), self.terms_of(pool, record));
        p.handle
            .ask(|reply| Command::SetVolume { key, front, extents: sent, terms, reply })
            .await
            .map_err(|_| p.gone())?;
        let volume = Volume {
            name: record.name.clone(),
            key,
            pool,
            size_bytes: record.size_bytes,
            read_only: record.read_only,
            tenant: record.tenant.clone(),
            health: p.handle.health.clone(),
            extents,
            device_uuid: p.device_uuid,
            rotational: p.rotational,
            replica: self.replica_of(pool, record),
        };
        self.directory_mut(|d| {
            // Another pool's may have come while the thread was asked.
            if let Some(other) = d.volumes.get(&record.name).filter(|other| other.pool != pool) {
                return Err(self.is_shadowed(pool, other));
            }
            d.volumes.insert(record.name.clone(), volume);
            Ok(())
        })
    }

    /// Returns a volume's replica state: its earlier one when the volume is published again.
    fn replica_of(&self, pool: usize, record: &VolumeRecord) -> Arc<Replica> {
        let known = self
            .directory_ref(|d| d.volumes.get(&record.name).filter(|v| v.key == record.key).map(|v| v.replica.clone()));
        let kept = self.pools.get(pool).store.clone().map(|store| (store, record.key));
        known.unwrap_or_else(|| Replica::new(record.size_bytes, record.replica, kept))
    }

    /// Returns a volume's replica state.
    pub fn replica(&self, name: &str) -> Result<Arc<Replica>> {
        Ok(self.volume_named(name)?.replica)
    }

    /// Changes a volume's replica state, on a thread where waiting for the device delays no request.
    pub async fn change_replica<T: Send + 'static>(
        &self,
        name: &str,
        change: impl FnOnce(&Replica) -> std::result::Result<T, MetaError> + Send + 'static,
    ) -> Result<T> {
        let replica = self.replica(name)?;
        blocking(move || change(&replica)).await
    }

    /// The terms of a volume, for the layers.
    fn terms_of(&self, pool: usize, record: &VolumeRecord) -> VolumeTerms {
        let tenant = self.directory_ref(|d| d.tenants.get(&record.tenant).map(|t| (t.id.0, t.class.clone())));
        let part = self.part_of(&record.name, tenant.as_ref().map(|t| &t.1));
        let p = self.pools.get(pool);
        let (live, served) = (p.live(), p.as_served(record));
        let own = live.iter().fold(OwnTerms::default(), |own, live| {
            PARTS.iter().fold(own, |own, p| p.add_terms(live, &served, &part, own))
        });
        VolumeTerms { size_bytes: record.size_bytes, tenant: tenant.map_or(0, |t| t.0), own }
    }

    /// Keeps a tenant that a volume names and that is no longer declared, as best effort, and logs it.
    fn ensure_tenant(&self, name: &str) -> Result<()> {
        if self.directory_ref(|d| d.tenants.contains_key(name)) {
            return Ok(());
        }
        tracing::warn!(tenant = name, "is not declared: taken as best-effort with weight 100");
        self.apply_tenant(name, Class::BestEffort { weight: 100 }, PermitLimits::default()).map(|_| ())
    }

    async fn ensure_volume(&self, v: &VolumeConfig) -> Result<()> {
        let name = v.name.get_ref();
        let in_volume = |e: NodeError| e.about(&format!("volume `{name}`"));
        let Some(found) = self.directory_ref(|d| d.volumes.get(name).cloned()) else {
            let new = NewVolume {
                name: name.clone(),
                size_bytes: v.size.0,
                tenant: v.tenant.get_ref().clone(),
                read_only: v.read_only,
                description: None,
                cache: v.cache,
            };
            return self.create_volume(v.pool.get_ref(), new).await.map_err(in_volume);
        };
        if v.read_only && !found.read_only {
            // Whatever else of its section can't be had: it isn't served for writing.
            self.set_volume_owner(name, &found.tenant, true).await.map_err(in_volume)?;
        }
        let pool = &self.pools.get(found.pool).name;
        if pool != v.pool.get_ref() {
            let what = format!("volume `{name}` is in pool `{pool}`, and is configured in `{}`", v.pool.get_ref());
            return Err(NodeError::Conflict(what));
        }
        self.check_parts(found.pool, name, v.tenant.get_ref())?;
        if (&found.tenant, found.read_only) != (v.tenant.get_ref(), v.read_only) {
            self.set_volume_owner(name, v.tenant.get_ref(), v.read_only).await.map_err(in_volume)?;
        }
        match found.size_bytes {
            size if size < v.size.0 => {
                let growth = VolumePatch { size_bytes: Some(v.size.0), ..VolumePatch::default() };
                self.change_volume(name, growth).await.map_err(in_volume)
            }
            size if size > v.size.0 => {
                let configured = v.size.0;
                tracing::warn!(volume = name, size, configured, "is larger than configured; volumes never shrink");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Sets a volume's owner and whether it may be changed, as now configured.
    ///
    /// # Errors
    /// If the volume was deleted meanwhile, among others: what is deleted must not be published again, as its space is another's soon.
    async fn set_volume_owner(&self, name: &str, tenant: &str, read_only: bool) -> Result<()> {
        let (_turn, volume) = self.volume_turn(name).await?;
        let Some(store) = self.pools.get(volume.pool).store.clone() else { return Ok(()) };
        let (name, tenant) = (name.to_string(), tenant.to_string());
        let ruled = move || store.change().set_volume_owner(&name, tenant, read_only);
        self.publish(volume.pool, &blocking(ruled).await?).await
    }

    fn pool_named(&self, name: &str) -> Result<usize> {
        let (number, pool) = self.pools.named(name).ok_or_else(|| self.no_pool(name))?;
        if pool.failed.is_some() { Err(pool.gone()) } else { Ok(number) }
    }

    /// The error that names the pools that there are.
    fn no_pool(&self, name: &str) -> NodeError {
        let leaving = self.pools.leaving().iter().find(|(p, _)| p.name == name).map(|(_, since)| since.elapsed());
        if let Some(since) = leaving {
            let what =
                format!("pool `{name}` was removed {} s ago, and its devices aren't closed yet", since.as_secs());
            return NodeError::NotFound(what);
        }
        let known = self.pools.all();
        NodeError::NotFound(there_is_no("pool", name, known.iter().map(|(_, p)| p.name.as_str())))
    }

    fn volume_named(&self, name: &str) -> Result<Volume> {
        self.directory_ref(|d| {
            let missing = || {
                let missing = NodeError::NotFound(there_is_no("volume", name, d.volumes.keys().map(String::as_str)));
                match self.late_in_words() {
                    Some(late) => missing.with(&format!("{late}, and it may have one")),
                    None => missing,
                }
            };
            d.volumes.get(name).cloned().ok_or_else(missing)
        })
    }

    /// The error that names the tenants that there are.
    fn no_tenant(&self, name: &str) -> NodeError {
        let what = self.directory_ref(|d| there_is_no("tenant", name, d.tenants.keys().map(String::as_str)));
        NodeError::NotFound(what)
    }

    /// Makes a volume of zeroes.
    pub async fn create_volume(&self, pool: &str, new: NewVolume) -> Result<()> {
        let pool = self.pool_named(pool)?;
        let _turn = self.turn_to_record(pool).await?;
        let _noted = self.check_new(pool, &new).await?;
        let record = match self.pools.get(pool).store.clone() {
            Some(store) => {
                let mode = self.pools.get(pool).cache_section().map(|c| new.cache.unwrap_or(c.mode));
                let create = move || {
                    let mut store = store.change();
                    let record = store.create_volume(new)?;
                    // Before anything can be written to it.
                    let is_cached = mode == Some(CacheMode::Back) && !store.cache().absent;
                    store.set_behind(&[record.key.id], is_cached)?;
                    Ok(record)
                };
                blocking(create).await?
            }
            None => self.pools.get(pool).volatile_record(new)?,
        };
        self.publish(pool, &record).await
    }

    /// Checks whether a volume can be made, and notes it: it counts from then on.
    async fn check_new(&self, pool: usize, new: &NewVolume) -> Result<changing::Noted> {
        let _deciding = self.deciding.lock().await;
        let (name, tenant) = (new.name.as_str(), new.tenant.as_str());
        if new.cache.is_some_and(|m| m != CacheMode::Off) && self.pools.get(pool).cache_section().is_none() {
            let what = format!("pool `{}` has no cache: configure [pool.cache]", self.pools.get(pool).name);
            return Err(NodeError::Refused(what));
        }
        let noted = self.take_name(name, Some((pool, tenant)))?;
        self.must_not_be_declared_away(name)?;
        if !self.directory_ref(|d| d.tenants.contains_key(tenant)) {
            let declare = format!("`plimsoll tenant set {tenant} --class …` declares one");
            return Err(NodeError::NotFound(format!("{}; {declare}", self.no_tenant(tenant))));
        }
        self.check_parts(pool, name, tenant)?;
        new.check().map_err(|e| NodeError::Refused(e.to_string()))?;
        self.must_fit_in(pool, tenant).await?;
        Ok(noted)
    }

    fn apply_tenant(&self, name: &str, class: Class, permits: PermitLimits) -> Result<TenantId> {
        let id = self.directory_mut(|d| d.set_tenant(name, class.clone(), permits))?;
        let terms = self.configured().particulars.terms(name, &class, permits.jobs_max);
        for (_, p) in self.pools.all() {
            let terms = terms.clone();
            // A pool that has ended serves nobody whom it could concern.
            let _ = p.handle.send(Command::SetTenant { tenant: id, limits: permits, terms });
        }
        Ok(id)
    }

    /// If pools disagree (one was absent when a tenant was changed), the last change is used.
    fn stored_tenants(&self) -> Vec<TenantRecord> {
        newest_tenants(self.stores())
    }

    /// Tenants that were changed live are kept in every pool that has a store: pools come and go.
    fn stores(&self) -> impl Iterator<Item = Arc<PoolStore>> + '_ {
        self.pools.all().into_iter().filter_map(|(_, p)| p.store.clone())
    }

    /// Serves flushes of the pool again: the operator has checked what a failed flush lost.
    ///
    /// # Errors
    /// If no flush has failed, or its loss is only known after a restart: then nothing was changed.
    pub async fn recover_pool(&self, name: &str) -> Result<()> {
        let p = self.pools.get(self.pool_named(name)?);
        let recovered = p.handle.ask(|reply| Command::Recovered { reply }).await.map_err(|_| p.gone())?;
        let refused = match recovered {
            Recovered::Done => None,
            Recovered::NothingFailed => Some(format!(
                "pool `{name}`: no flush has failed: there is nothing to recover, and nothing was changed"
            )),
            Recovered::NeedsRestart => Some(format!(
                "pool `{name}` has logs: what a failed flush lost of them is only known after a recovery from the device: \
                 restart the node"
            )),
        };
        if let Some(what) = refused {
            return Err(NodeError::Conflict(what));
        }
        // Believed again is not complete again: other replicas may have what was lost here.
        let pool = self.pool_named(name)?;
        self.directory_ref(|d| d.volumes.values().filter(|v| v.pool == pool).for_each(|v| v.replica.lost()));
        Ok(())
    }

    /// Passes a message to `P`'s layer of a pool.
    pub async fn tell_layer<P: Part>(&self, name: &str, message: &impl Message) -> Result<()> {
        let p = self.pools.get(self.pool_named(name)?);
        let to = Addressed::new(message);
        match p.handle.ask(|reply| Command::Tell { to, reply }).await.map_err(|_| p.gone())? {
            true => Ok(()),
            false => Err(NodeError::Refused(format!("pool `{name}` has no {}: {}", P::NAME, P::HOW))),
        }
    }

    /// Every pool's metrics; `None` for one whose thread has ended or doesn't answer.
    pub async fn snapshots(&self) -> Vec<Option<PoolView>> {
        // One at a time: many who watch cost the pools no more than one does.
        let _one = self.watching.lock().await;
        let mut all = Vec::new();
        for pool in 0..self.pools.numbers() {
            all.push(self.pools.get(pool).view().await.ok());
        }
        all
    }

    /// The same without what is counted per volume and tenant.
    pub async fn pool_snapshots(&self) -> Vec<Option<PoolView>> {
        let mut all = Vec::new();
        for pool in 0..self.pools.numbers() {
            all.push(self.pools.get(pool).view_of_pool().await.ok());
        }
        all
    }

    /// Waits until a pool's thread has ended that once began; its name. While the node isn't ending, that is a failure.
    pub async fn a_pool_ended(&self) -> String {
        let mut changes = self.pools.changes();
        loop {
            changes.mark_unchanged();
            let mut ends: JoinSet<(usize, String)> = JoinSet::new();
            for (number, p) in self.pools.all().into_iter().filter(|(_, p)| p.failed.is_none()) {
                let (mut health, name) = (p.handle.health.clone(), p.name.clone());
                ends.spawn(async move {
                    while health.changed().await.is_ok() {}
                    (number, name)
                });
            }
            tokio::select! {
                // One that was removed may end.
                Some(Ok((number, name))) = ends.join_next() => {
                    let there = self.pools.get(number);
                    if there.name == name && there.failed.is_none() {
                        return name;
                    }
                }
                _ = changes.changed() => {}
            }
        }
    }

    /// Every pool's sampled traces, newest first; none of a pool that doesn't answer.
    pub async fn traces(&self) -> Vec<Vec<Trace>> {
        let mut all = Vec::new();
        for pool in 0..self.pools.numbers() {
            let p = self.pools.get(pool);
            let asked = tokio::time::timeout(ANSWER_TIME, p.handle.ask(|reply| Command::Traces { reply }));
            all.push(asked.await.ok().and_then(|t| t.ok()).unwrap_or_default());
        }
        all
    }

    /// Names of a pool's volumes that are being deleted: their space isn't free yet.
    pub fn deleting(&self, pool: usize) -> Vec<String> {
        let Some(store) = &self.pools.get(pool).store else { return Vec::new() };
        store.view().deleting().map(|v| v.name.clone()).collect()
    }

    /// Free space of a pool in bytes, where it has any to give.
    pub fn free_bytes(&self, pool: usize) -> Option<u64> {
        self.pools.get(pool).store.as_ref().map(|s| s.view().free_bytes())
    }

    /// A pool's space for volumes, free or not; a null device has none that lasts.
    pub fn home_bytes(&self, pool: usize) -> Option<u64> {
        self.pools.get(pool).store.as_ref().map(|s| s.view().home_bytes())
    }

    /// Ends every pool: finishes requests in flight and flushes data. Blocks until done.
    ///
    /// # Errors
    /// The pools that didn't end in order, now or earlier: what was not flushed may be lost.
    pub fn shut_down(&self) -> Result<()> {
        let pools = self.pools.all();
        for (_, p) in &pools {
            let _ = p.handle.send(Command::Shutdown); // a pool that is gone has ended already
        }
        let volumes: Vec<Volume> = self.directory_ref(|d| d.volumes.values().cloned().collect());
        let mut failed = Vec::new();
        for (number, p) in &pools {
            failed.extend(p.end(volumes.iter().filter(|v| v.pool == *number)));
        }
        // One that is removed meanwhile isn't closed while it is held here.
        drop((pools, volumes));
        self.pools.wait_for_leaving();
        if failed.is_empty() { Ok(()) } else { Err(NodeError::Failed(failed.join("; "))) }
    }
}

/// The tenants that stores keep, each as it was changed last.
fn newest_tenants(stores: impl Iterator<Item = Arc<PoolStore>>) -> Vec<TenantRecord> {
    let mut all: BTreeMap<String, TenantRecord> = BTreeMap::new();
    for store in stores {
        for record in store.view().tenants() {
            let kept = all.entry(record.name.clone()).or_insert_with(|| record.clone());
            if kept != record {
                tracing::warn!(tenant = record.name, "pools keep different promises: the one changed last holds");
            }
            if record.change > kept.change {
                *kept = record.clone();
            }
        }
    }
    all.into_values().collect()
}

/// Deletions in a pool that its last end interrupted.
fn interrupted_deletions(number: usize, pool: &RunningPool) -> Vec<(usize, VolumeRecord)> {
    let Some(store) = &pool.store else { return Vec::new() };
    store.view().deleting().map(|record| (number, record.clone())).collect()
}

/// The limits of a volume whose configuration was checked.
fn throttled(v: &VolumeConfig) -> Option<(String, ThrottleTerms)> {
    Some((v.name.get_ref().clone(), parts::throttle::terms(v.throttle.as_ref()?).ok()?))
}

pub(crate) fn permits_of(t: &TenantConfig) -> PermitLimits {
    let default = PermitLimits::default();
    PermitLimits {
        jobs_max: t.jobs_max.unwrap_or(default.jobs_max),
        bytes_max: t.bytes_max.map_or(default.bytes_max, |b| b.0),
    }
}

pub(crate) fn permits_of_record(limits: &TenantLimits) -> PermitLimits {
    let default = PermitLimits::default();
    PermitLimits {
        jobs_max: limits.in_flight_requests_max.unwrap_or(default.jobs_max),
        bytes_max: limits.in_flight_bytes_max.unwrap_or(default.bytes_max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Look;
    use plimsoll_testkit::eventually;

    const TEXT: &str = r#"
        [listen]
        unix = "nbd.sock"
        [[pool]]
        name = "p"
        device = { file = "p.img", size = "64MiB" }
        [[pool]]
        name = "q"
        device = { file = "q.img", size = "64MiB" }
        [[tenant]]
        name = "t"
        class = "best-effort"
    "#;

    /// A volume `name` in a pool's store.
    fn put(node: &Node, pool: usize, name: &str, mib: u64) {
        let new = NewVolume {
            name: name.to_string(),
            size_bytes: mib << 20,
            tenant: "t".into(),
            read_only: false,
            description: None,
            cache: None,
        };
        node.pools.get(pool).store.clone().unwrap().change().create_volume(new).unwrap();
    }

    fn section(name: &str, pool: &str, mib: u64) -> String {
        format!("[[volume]]\nname = \"{name}\"\npool = \"{pool}\"\nsize = \"{mib}MiB\"\ntenant = \"t\"\n")
    }

    /// Everything else is served while a volume can't be made, grown or published.
    #[tokio::test]
    async fn a_volume_that_cannot_be_made_stops_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let start = async |more: &str| {
            let config = Config::parse(&format!("{TEXT}{more}"), &dir.path().join("node.toml")).unwrap();
            Arc::new(Node::start(&config).await.unwrap())
        };
        // Its device is closed when nobody has it any more.
        let end = |node: Arc<Node>| node.shut_down().unwrap();
        let sizes = |node: &Node| {
            node.directory_ref(|d| d.volumes.values().map(|v| (v.name.clone(), v.pool, v.size_bytes >> 20)).collect())
        };
        let expect = |node: &Node, expected: &[(&str, usize, u64)], unmade: &[&str]| {
            let mut served: Vec<(String, usize, u64)> = sizes(node);
            served.sort();
            let expected: Vec<_> = expected.iter().map(|(n, p, s)| (n.to_string(), *p, *s)).collect();
            let sections: Vec<String> = unmade.iter().map(|n| volume_section(n)).collect();
            assert_eq!((served, node.unmade().into_iter().collect()), (expected, sections));
        };
        // A deletion was broken off, and the volume that is declared needs its space.
        let node = start("").await;
        put(&node, 0, "v", 40);
        node.pools.get(0).store.clone().unwrap().change().begin_delete("v").unwrap();
        end(node);
        let both = section("v", "p", 40) + &section("w", "q", 8);
        let node = start(&both).await;
        expect(&node, &[("w", 1, 8)], &["v"]);
        node.resume_deletions(node.interrupted_deletions()).await;
        expect(&node, &[("v", 0, 40), ("w", 1, 8)], &[]);
        end(node);
        // A growth without room, and a volume that the file has moved to another pool.
        let node = start(&(section("v", "p", 60) + &section("w", "p", 8))).await;
        expect(&node, &[("v", 0, 40), ("w", 1, 8)], &["v", "w"]);
        assert!(node.unmade_volumes()[1].1.contains("is in pool `q`, and is configured in `p`"));
        // Two pools have one: each was made while the other pool was away.
        put(&node, 0, "w", 1);
        end(node);
        let node = start(&both).await;
        node.resume_deletions(node.interrupted_deletions()).await;
        expect(&node, &[("v", 0, 40), ("w", 1, 8)], &["w"]);
        assert!(node.unmade_volumes()[0].1.contains("exists in pool `p` and in pool `q`, where it is declared"));
        end(node);
    }

    #[tokio::test]
    async fn a_deletion_that_hangs_keeps_no_other_pools_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let node = Arc::new(Node::start(&Config::parse(TEXT, &dir.path().join("node.toml")).unwrap()).await.unwrap());
        for (number, name) in [(0, "v"), (1, "w")] {
            let store = node.pools.get(number).store.clone().unwrap();
            let (name, tenant) = (name.to_string(), "t".to_string());
            let new = NewVolume {
                name: name.clone(),
                size_bytes: 1 << 20,
                tenant,
                read_only: false,
                description: None,
                cache: None,
            };
            store.change().create_volume(new).unwrap();
            store.change().begin_delete(&name).unwrap();
        }
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let look: Look = Box::new(move |_, _| _ = held.recv());
        node.pools.get(0).handle.send(Command::Look(look)).unwrap();
        let (interrupted, resuming) = (node.interrupted_deletions(), node.clone());
        assert_eq!(interrupted.len(), 2);
        let resumed = tokio::spawn(async move { resuming.resume_deletions(interrupted).await });
        eventually("the other pool's is finished", || node.deleting(1).is_empty()).await;
        assert_eq!(node.deleting(0), ["v"]);
        let_go.send(()).unwrap();
        resumed.await.unwrap();
        assert_eq!(node.deleting(0), [""; 0]);
        node.shut_down().unwrap();
    }
}
