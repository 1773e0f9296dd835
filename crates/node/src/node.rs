//! The node: its pools, volumes and tenants, and what can be done with them while clients are served.

use crate::config::{Config, PoolConfig, TenantConfig, VolumeConfig};
use crate::directory::{Directory, Promises, Volume};
use crate::engine::tape::TapeWriter;
use crate::engine::watchdog::Watchdog;
use crate::engine::{
    Command, Device, Devices, FileDevice, PermitLimits, Pool, PoolGone, PoolHandle, PoolOptions, Trace, VolatileFile,
};
use crate::predict::{self, Percentiles};
use crate::view::{ExportView, PoolView};
use plimsoll_base::{Class, IoError, TenantId};
use plimsoll_device::{AnyModel, DeviceOptions, DeviceSpec, Model, ModelLayer};
use plimsoll_sched::choice::UnknownScheduler;
use plimsoll_sched::promise::Budgets;
use plimsoll_sched::{Discipline, DiskModel, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Extent, Front, FrontVolume, Layer, LayerState, Map, Offer, Order, Stack, StackConfig, Target};
use plimsoll_store::{
    CreateOptions, DeviceError, DeviceErrorKind, DeviceFile, Expect, MetaError, MetaStore, NewVolume, TenantLimits,
    TenantRecord, Uuid, VolumeRecord,
};
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::{Arc, Mutex, RwLock};

/// Requests at a device at once where the configuration doesn't say: enough to keep an SSD busy.
const DEPTH_DEFAULT: u32 = 32;
/// Minutes at a full load, days at a light one.
const TAPE_BYTES_MAX_DEFAULT: u64 = 1 << 30;
/// How long clients have to take their last answers when the node ends.
const CLIENT_END: std::time::Duration = std::time::Duration::from_secs(10);
/// The role of a pool's only device so far.
const ROLE_MAIN: &str = "main";

/// What went wrong, for the operator: what, where, what to do.
#[derive(Debug)]
pub enum NodeError {
    /// The request makes no sense, or names what isn't there.
    Refused(String),
    /// There is no such thing.
    NotFound(String),
    /// It exists already, or is in use.
    Conflict(String),
    /// Something below failed.
    Failed(String),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NodeError::Refused(what)
        | NodeError::NotFound(what)
        | NodeError::Conflict(what)
        | NodeError::Failed(what)) = self;
        f.write_str(what)
    }
}
impl std::error::Error for NodeError {}

type Result<T> = std::result::Result<T, NodeError>;

/// A pool that runs.
pub struct RunningPool {
    /// Its name.
    pub name: String,
    /// What its device is, for people.
    pub device: String,
    /// Which one it is; a null device is none in particular.
    pub device_uuid: Option<Uuid>,
    /// Its thread's commands.
    pub handle: PoolHandle,
    /// Its metadata; a null device has none, and forgets its volumes when the node ends.
    store: Option<Arc<Mutex<MetaStore>>>,
    /// Where the home region begins on the device: extents in the store are device addresses, in the stack they count
    /// from here.
    home_start: u64,
    block_bytes: u32,
    rotational: bool,
    /// Volumes of a pool without a store.
    next_volatile_id: Mutex<(u32, u64)>,
    thread: Mutex<Option<std::thread::JoinHandle<std::io::Result<()>>>>,
    /// Keeps the device locked against another node as long as the pool is there.
    _lock: Option<DeviceFile>,
}

/// See the module's documentation.
pub struct Node {
    /// By number, as configured.
    pub pools: Vec<RunningPool>,
    /// Volumes, tenants, grants.
    pub directory: Arc<RwLock<Directory>>,
    /// Counts the host's pauses, where a pool's device is modelled in real time.
    pub watchdog: Option<Watchdog>,
    /// What was configured of tenants beside their classes.
    percentiles: Percentiles,
    /// One change of volumes or tenants at a time.
    changing: tokio::sync::Mutex<()>,
}

/// A pool's thread that hasn't answered for this long is as good as gone for who watches.
const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(2);

struct Opened {
    stack: Stack,
    devices: Devices,
    store: Option<MetaStore>,
    home_start: u64,
    block_bytes: u32,
    rotational: bool,
    options: PoolOptions,
    device: String,
    lock: Option<DeviceFile>,
}

impl Node {
    /// Opens every pool, brings back its volumes, and makes sure that the configured ones exist. Clients are not yet
    /// taken in.
    pub async fn start(config: &Config) -> Result<Node> {
        let percentiles = Percentiles::of(&config.tenant);
        let mut pools = Vec::new();
        for p in &config.pool {
            let pool = PoolConfig { budgets: !percentiles.is_empty(), ..p.clone() };
            pools.push(start_pool(&pool, config.control.trace_every)?);
        }
        let watchdog = match config.pool.iter().any(|p| p.device.model.is_some()) {
            true => Some(Watchdog::start().map_err(|e| NodeError::Failed(format!("watchdog: {e}")))?),
            false => None,
        };
        let node =
            Node { pools, directory: Arc::default(), watchdog, percentiles, changing: tokio::sync::Mutex::new(()) };
        node.directory_mut(|d| {
            d.grants = config.grant.clone();
            d.promises = Promises::of(config);
        });
        for t in &config.tenant {
            let class = t.class().map_err(NodeError::Refused)?;
            node.apply_tenant(t.name.get_ref(), class, permits_of(t))?;
        }
        for record in node.stored_tenants() {
            node.apply_tenant(&record.name, record.class.clone(), permits_of_record(&record.limits))?;
        }
        for pool in 0..node.pools.len() {
            node.bring_back(pool).await?;
        }
        for v in &config.volume {
            node.ensure_volume(v).await?;
        }
        Ok(node)
    }

    fn directory_mut<R>(&self, f: impl FnOnce(&mut Directory) -> R) -> R {
        f(&mut self.directory.write().expect("no panic while held"))
    }

    fn directory_ref<R>(&self, f: impl FnOnce(&Directory) -> R) -> R {
        f(&self.directory.read().expect("no panic while held"))
    }

    /// Makes the volumes of a pool's store known.
    async fn bring_back(&self, pool: usize) -> Result<()> {
        let Some(store) = self.pools[pool].store.clone() else { return Ok(()) };
        let records: Vec<VolumeRecord> = store.lock().expect("no panic while held").volumes().cloned().collect();
        for record in records {
            self.publish(pool, &record).await?;
        }
        Ok(())
    }

    /// Goes on with deletions that the last end of the node interrupted. Their space is free when this is done, which takes
    /// as long as zeroing it does; until then the node serves everything else.
    pub async fn resume_deletions(&self) {
        for pool in 0..self.pools.len() {
            let Some(store) = self.pools[pool].store.clone() else { continue };
            let deleting: Vec<VolumeRecord> = store.lock().expect("no panic while held").deleting().cloned().collect();
            for record in deleting {
                tracing::info!(volume = record.name, "going on with a deletion that was interrupted");
                if let Err(error) = self.finish_delete(pool, &record).await {
                    tracing::warn!(%error, "not deleted yet");
                }
            }
        }
    }

    /// Waits until no pool is recovering, or `at_most` has passed.
    pub async fn recovered(&self, at_most: std::time::Duration) {
        let all = async {
            for p in &self.pools {
                // The thread says that it has failed before it ends.
                let _ = p.handle.health.clone().wait_for(|h| h.state != LayerState::Recovering).await;
            }
        };
        let _ = tokio::time::timeout(at_most, all).await; // what is still recovering says so in its state
    }

    /// Tells the pool's thread and the directory of a volume.
    async fn publish(&self, pool: usize, record: &VolumeRecord) -> Result<()> {
        let p = &self.pools[pool];
        if self.directory_ref(|d| d.volumes.get(&record.name).is_some_and(|v| v.pool != pool)) {
            let what =
                format!("volume `{}` exists in pool `{}` and in another: rename or delete one", record.name, p.name);
            return Err(NodeError::Conflict(what));
        }
        self.ensure_tenant(&record.tenant)?;
        let extents = p.stack_extents(&record.visible_extents(p.block_bytes));
        let front = FrontVolume { size_bytes: record.size_bytes, read_only: record.read_only };
        let (key, sent) = (record.key, extents.clone());
        p.handle.ask(|reply| Command::SetVolume { key, front, extents: sent, reply }).await.map_err(|_| p.gone())?;
        let volume = Volume {
            name: record.name.clone(),
            key,
            pool,
            size_bytes: record.size_bytes,
            read_only: record.read_only,
            tenant: record.tenant.clone(),
            health: p.handle.health.clone(),
            extents,
            rotational: p.rotational,
        };
        self.directory_mut(|d| d.volumes.insert(record.name.clone(), volume));
        Ok(())
    }

    /// A volume may name a tenant that is no longer declared: it's kept as best effort, and said so.
    fn ensure_tenant(&self, name: &str) -> Result<()> {
        if self.directory_ref(|d| d.tenants.contains_key(name)) {
            return Ok(());
        }
        tracing::warn!(tenant = name, "is not declared: taken as best-effort with weight 100");
        self.apply_tenant(name, Class::BestEffort { weight: 100 }, PermitLimits::default()).map(|_| ())
    }

    async fn ensure_volume(&self, v: &VolumeConfig) -> Result<()> {
        let name = v.name.get_ref();
        match self.directory_ref(|d| d.volumes.get(name).map(|v| v.size_bytes)) {
            None => self.create_volume(name, v.pool.get_ref(), v.size.0, v.tenant.get_ref(), v.read_only).await,
            Some(size) if size < v.size.0 => self.grow_volume(name, v.size.0).await,
            Some(size) if size > v.size.0 => {
                tracing::warn!(
                    volume = name,
                    size,
                    configured = v.size.0,
                    "is larger than configured; volumes never shrink"
                );
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    fn pool_named(&self, name: &str) -> Result<usize> {
        let known = || self.pools.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
        let missing = || NodeError::NotFound(format!("there is no pool `{name}`; there are: {}", known()));
        self.pools.iter().position(|p| p.name == name).ok_or_else(missing)
    }

    fn volume_named(&self, name: &str) -> Result<Volume> {
        let missing = || NodeError::NotFound(format!("there is no volume `{name}`"));
        self.directory_ref(|d| d.volumes.get(name).cloned()).ok_or_else(missing)
    }

    /// Makes a volume of `size_bytes` zeroes.
    pub async fn create_volume(
        &self,
        name: &str,
        pool: &str,
        size_bytes: u64,
        tenant: &str,
        read_only: bool,
    ) -> Result<()> {
        let _one = self.changing.lock().await;
        let pool = self.pool_named(pool)?;
        if self.directory_ref(|d| d.volumes.contains_key(name)) {
            return Err(NodeError::Conflict(format!("volume `{name}` exists already")));
        }
        if !self.directory_ref(|d| d.tenants.contains_key(tenant)) {
            return Err(NodeError::NotFound(format!("there is no tenant `{tenant}`: declare it first")));
        }
        let new = NewVolume { name: name.into(), size_bytes, tenant: tenant.into(), read_only, description: None };
        new.check().map_err(|e| NodeError::Refused(e.to_string()))?;
        let record = match self.pools[pool].store.clone() {
            Some(store) => blocking(move || store.lock().expect("no panic while held").create_volume(new)).await?,
            None => self.pools[pool].volatile_record(new)?,
        };
        self.publish(pool, &record).await
    }

    /// Makes a volume larger; I/O goes on, and clients see the new size when they connect again.
    pub async fn grow_volume(&self, name: &str, size_bytes: u64) -> Result<()> {
        let _one = self.changing.lock().await;
        let volume = self.volume_named(name)?;
        if size_bytes < volume.size_bytes {
            let what = format!("volume `{name}` has {} bytes; volumes never shrink", volume.size_bytes);
            return Err(NodeError::Refused(what));
        }
        let Some(store) = self.pools[volume.pool].store.clone() else {
            return Err(NodeError::Refused("a volume on a null device doesn't grow".into()));
        };
        let owned = name.to_string();
        let record =
            blocking(move || store.lock().expect("no panic while held").grow_volume(&owned, size_bytes)).await?;
        self.publish(volume.pool, &record).await
    }

    /// Deletes a volume: its clients are let go, its space is zeroed, and only then free. If the node ends in between,
    /// the next start goes on.
    pub async fn delete_volume(&self, name: &str) -> Result<()> {
        let one = self.changing.lock().await;
        let volume = self.volume_named(name)?;
        let Some(store) = self.pools[volume.pool].store.clone() else {
            self.directory_mut(|d| d.volumes.remove(name));
            return self.pools[volume.pool].forget(&volume).await;
        };
        let owned = name.to_string();
        let record = blocking(move || store.lock().expect("no panic while held").begin_delete(&owned)).await?;
        self.directory_mut(|d| d.volumes.remove(name));
        drop(one); // zeroing may take long, and what is zeroed is nobody's any more: other changes need not wait
        self.finish_delete(volume.pool, &record).await
    }

    async fn finish_delete(&self, pool: usize, record: &VolumeRecord) -> Result<()> {
        let p = &self.pools[pool];
        let extents = p.stack_extents(&record.extents);
        let key = record.key;
        let zeroed = p.handle.ask(|reply| Command::DeleteVolume { key, extents, reply }).await.map_err(|_| p.gone())?;
        zeroed.map_err(|e| p.zeroing_failed(&record.name, e))?;
        let store = p.store.clone().expect("a record comes from a store");
        let id = key.id;
        blocking(move || store.lock().expect("no panic while held").finish_delete(id)).await
    }

    fn apply_tenant(&self, name: &str, class: Class, permits: PermitLimits) -> Result<TenantId> {
        let id = self.directory_mut(|d| d.set_tenant(name, class.clone(), permits)).map_err(NodeError::Refused)?;
        let terms = self.percentiles.terms(name, &class, permits.jobs_max);
        for p in &self.pools {
            let terms = terms.clone();
            p.handle.send(Command::SetTenant { tenant: id, limits: permits, terms }).map_err(|_| p.gone())?;
        }
        Ok(id)
    }

    /// Where pools disagree (one wasn't there when a tenant was changed), the first that is configured is believed.
    fn stored_tenants(&self) -> Vec<TenantRecord> {
        let mut all: BTreeMap<String, TenantRecord> = BTreeMap::new();
        for store in self.stores() {
            for record in store.lock().expect("no panic while held").tenants() {
                let kept = all.entry(record.name.clone()).or_insert_with(|| record.clone());
                if kept != record {
                    tracing::warn!(tenant = record.name, "pools keep different promises: the first pool's holds");
                }
            }
        }
        all.into_values().collect()
    }

    /// Tenants that were changed live are kept in every pool that has a store: pools come and go.
    fn stores(&self) -> impl Iterator<Item = Arc<Mutex<MetaStore>>> + '_ {
        self.pools.iter().filter_map(|p| p.store.clone())
    }

    /// Declares a tenant or changes its promise, live; kept over a restart, where it goes before the configuration's.
    pub async fn set_tenant(&self, record: TenantRecord) -> Result<()> {
        let _one = self.changing.lock().await;
        record.check().map_err(|e| NodeError::Refused(e.to_string()))?;
        for store in self.stores() {
            let kept = record.clone();
            blocking(move || store.lock().expect("no panic while held").set_tenant(kept)).await?;
        }
        self.apply_tenant(&record.name, record.class, permits_of_record(&record.limits)).map(|_| ())
    }

    /// Takes a tenant away that owns no volume.
    pub async fn remove_tenant(&self, name: &str) -> Result<()> {
        let _one = self.changing.lock().await;
        if let Some(v) = self.directory_ref(|d| d.volumes.values().find(|v| v.tenant == name).map(|v| v.name.clone())) {
            return Err(NodeError::Conflict(format!("tenant `{name}` owns volume `{v}`")));
        }
        let Some(tenant) = self.directory_mut(|d| d.tenants.remove(name)).map(|t| t.id) else {
            return Err(NodeError::NotFound(format!("there is no tenant `{name}`")));
        };
        for p in &self.pools {
            let _ = p.handle.send(Command::ForgetTenant { tenant }); // a pool that has ended has forgotten it
        }
        for store in self.stores() {
            let owned = name.to_string();
            blocking(move || {
                let mut store = store.lock().expect("no panic while held");
                // One that only the configuration declares was never stored.
                if store.tenants().any(|t| t.name == owned) { store.remove_tenant(&owned) } else { Ok(()) }
            })
            .await?;
        }
        Ok(())
    }

    /// The operator has seen what a failed flush lost: flushes of the pool are believed again.
    pub async fn recover_pool(&self, name: &str) -> Result<()> {
        let p = &self.pools[self.pool_named(name)?];
        p.handle.ask(|reply| Command::Recovered { reply }).await.map_err(|_| p.gone())
    }

    /// Brings home what is logged in a pool. Answers when it has begun.
    pub async fn checkpoint_pool(&self, name: &str) -> Result<()> {
        let p = &self.pools[self.pool_named(name)?];
        let view = p.handle.ask(|reply| Command::Snapshot { reply }).await.map_err(|_| p.gone())?;
        if view.logs.is_none() {
            return Err(NodeError::Refused(format!("pool `{name}` has no logs: nothing waits to go home")));
        }
        let order = Order::Checkpoint;
        p.handle.ask(|reply| Command::Order { order, reply }).await.map_err(|_| p.gone())
    }

    /// Every pool's metrics; `None` for one whose thread has ended or doesn't answer.
    pub async fn snapshots(&self) -> Vec<Option<PoolView>> {
        let mut all = Vec::new();
        for p in &self.pools {
            all.push(tokio::time::timeout(ANSWER_TIME, p.view()).await.ok().and_then(|view| view.ok()));
        }
        all
    }

    /// Every pool's sampled traces, newest first; none of a pool that doesn't answer.
    pub async fn traces(&self) -> Vec<Vec<Trace>> {
        let mut all = Vec::new();
        for p in &self.pools {
            let asked = tokio::time::timeout(ANSWER_TIME, p.handle.ask(|reply| Command::Traces { reply }));
            all.push(asked.await.ok().and_then(|t| t.ok()).unwrap_or_default());
        }
        all
    }

    /// Names of a pool's volumes that are being deleted: their space isn't free yet.
    pub fn deleting(&self, pool: usize) -> Vec<String> {
        let Some(store) = &self.pools[pool].store else { return Vec::new() };
        store.lock().expect("no panic while held").deleting().map(|v| v.name.clone()).collect()
    }

    /// Free space of a pool in bytes, where it has any to give.
    pub fn free_bytes(&self, pool: usize) -> Option<u64> {
        self.pools[pool].store.as_ref().map(|s| s.lock().expect("no panic while held").free_bytes())
    }

    /// Ends every pool: requests inside finish, data is flushed. Blocks until done.
    ///
    /// # Errors
    /// The pools that didn't end in order, now or earlier: what was not flushed may be lost.
    pub fn shut_down(&self) -> Result<()> {
        for p in &self.pools {
            let _ = p.handle.send(Command::Shutdown); // a pool that is gone has ended already
        }
        let mut failed = Vec::new();
        for p in &self.pools {
            let thread = p.thread.lock().expect("no panic while held").take();
            match thread.map(std::thread::JoinHandle::join) {
                None | Some(Ok(Ok(()))) => {}
                Some(Ok(Err(e))) => failed.push(format!("pool `{}` ended with an error: {e}", p.name)),
                Some(Err(_)) => failed.push(format!("pool `{}` ended in a panic: please report what it said", p.name)),
            }
        }
        if failed.is_empty() { Ok(()) } else { Err(NodeError::Failed(failed.join("; "))) }
    }
}

impl RunningPool {
    fn gone(&self) -> NodeError {
        NodeError::Failed(format!("pool `{}` has ended; the log says why", self.name))
    }

    async fn view(&self) -> std::result::Result<PoolView, PoolGone> {
        let pool = *self.handle.ask(|reply| Command::Snapshot { reply }).await?;
        let mut exports = Vec::new();
        let mut at = 0;
        while let Some((place, export)) = self.handle.ask(|reply| Command::SnapshotExport { at, reply }).await? {
            exports.push(ExportView::from(*export));
            at = place + 1;
        }
        Ok(PoolView { pool, exports })
    }

    fn zeroing_failed(&self, volume: &str, e: IoError) -> NodeError {
        let what = format!(
            "volume `{volume}`: zeroing its space in pool `{}` failed: {e}; it is tried again at the next start",
            self.name
        );
        NodeError::Failed(what)
    }

    /// Device addresses to addresses in the stack.
    fn stack_extents(&self, extents: &[Extent]) -> Vec<Extent> {
        extents.iter().map(|e| Extent { device_offset: e.device_offset - self.home_start, len: e.len }).collect()
    }

    fn volatile_record(&self, new: NewVolume) -> Result<VolumeRecord> {
        let mut next = self.next_volatile_id.lock().expect("no panic while held");
        let len = new.size_bytes.next_multiple_of(4096);
        if len > next.1 {
            return Err(NodeError::Refused(format!("pool `{}` has {} bytes left", self.name, next.1)));
        }
        next.0 += 1;
        next.1 -= len;
        Ok(VolumeRecord {
            key: plimsoll_base::VolumeKey { id: next.0, generation: 1 },
            name: new.name,
            size_bytes: new.size_bytes,
            tenant: new.tenant,
            read_only: new.read_only,
            description: new.description,
            extents: vec![Extent { device_offset: next.1, len }],
            state: plimsoll_store::VolumeState::Ready,
        })
    }

    async fn forget(&self, volume: &Volume) -> Result<()> {
        let (key, extents) = (volume.key, volume.extents.clone());
        let zeroed = self.handle.ask(|reply| Command::DeleteVolume { key, extents, reply }).await;
        zeroed.map_err(|_| self.gone())?.map_err(|e| self.zeroing_failed(&volume.name, e))
    }
}

fn failed(e: impl fmt::Display) -> NodeError {
    NodeError::Failed(e.to_string())
}

/// Runs a change of the store where waiting for the device hurts nobody.
async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> std::result::Result<T, MetaError> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(f).await.map_err(failed)?.map_err(of_store)
}

/// Whose fault a refusal of the store is.
fn of_store(e: MetaError) -> NodeError {
    let text = e.to_string();
    match e {
        MetaError::Shrink { .. } | MetaError::Record(_) => NodeError::Refused(text),
        MetaError::UnknownVolume { .. } | MetaError::UnknownTenant { .. } => NodeError::NotFound(text),
        MetaError::NameTaken { .. }
        | MetaError::TenantInUse { .. }
        | MetaError::NoSpace { .. }
        | MetaError::Fragmented { .. }
        | MetaError::Full { .. }
        | MetaError::TooMany { .. } => NodeError::Conflict(text),
        _ => NodeError::Failed(text),
    }
}

fn permits_of(t: &TenantConfig) -> PermitLimits {
    let default = PermitLimits::default();
    PermitLimits {
        jobs_max: t.jobs_max.unwrap_or(default.jobs_max),
        bytes_max: t.bytes_max.map_or(default.bytes_max, |b| b.0),
    }
}

fn permits_of_record(limits: &TenantLimits) -> PermitLimits {
    let default = PermitLimits::default();
    PermitLimits {
        jobs_max: limits.in_flight_requests_max.unwrap_or(default.jobs_max),
        bytes_max: limits.in_flight_bytes_max.unwrap_or(default.bytes_max),
    }
}

/// As many as there are cores, but no more than one pool's thread can feed.
fn workers_max() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(8)
}

fn start_pool(config: &PoolConfig, trace_every: u32) -> Result<RunningPool> {
    let name = config.name.get_ref().clone();
    let in_pool = |e: &dyn fmt::Display| NodeError::Failed(format!("pool `{name}`: {e}"));
    let mut config = config.clone();
    if let Some(logs) = &mut config.logs {
        logs.started_s_of_day = Some(crate::logs::seconds_of_day());
    }
    let config = &config;
    let opened = open_pool(config, trace_every).map_err(|e| in_pool(&e))?;
    let (handle, ears) = PoolHandle::new().map_err(|e| in_pool(&e))?;
    let volatile_bytes = opened.devices.offers()[0].size_bytes;
    let (stack, devices, options) = (opened.stack, opened.devices, opened.options);
    let tape = match &config.tape {
        None => None,
        Some(path) => {
            let bytes_max = config.tape_max.map_or(TAPE_BYTES_MAX_DEFAULT, |b| b.0);
            let opened = TapeWriter::create(path, bytes_max, config, &devices.offers());
            Some(opened.map_err(|e| NodeError::Failed(format!("pool `{name}`: tape {}: {e}", path.display())))?)
        }
    };
    let thread_name = name.clone();
    let thread = std::thread::Builder::new()
        .name(format!("pool-{name}"))
        .spawn(move || {
            let ended = Pool::new(stack, tape, devices, ears, options).and_then(Pool::run);
            match &ended {
                Ok(()) => tracing::info!(pool = thread_name, "ended"),
                Err(error) => tracing::error!(pool = thread_name, %error, "failed: its volumes are no longer served"),
            }
            ended
        })
        .map_err(|e| in_pool(&e))?;
    Ok(RunningPool {
        name: name.clone(),
        device: opened.device,
        device_uuid: opened.lock.as_ref().map(|d| d.superblock().device_uuid),
        handle,
        store: opened.store.map(|s| Arc::new(Mutex::new(s))),
        home_start: opened.home_start,
        block_bytes: opened.block_bytes,
        rotational: opened.rotational,
        next_volatile_id: Mutex::new((0, volatile_bytes)),
        thread: Mutex::new(Some(thread)),
        _lock: opened.lock,
    })
}

fn pool_options(precise_timers: bool, trace_every: u32) -> PoolOptions {
    PoolOptions { precise_timers, trace_every, client_end: CLIENT_END, workers_max: workers_max() }
}

fn open_pool(config: &PoolConfig, trace_every: u32) -> std::result::Result<Opened, String> {
    let d = &config.device;
    if d.null {
        let size_bytes = d.size.expect("checked with the configuration").0;
        let devices = Devices::new(vec![Device::Null { size_bytes }]);
        let stack = build_stack(config, devices.offers())?;
        let device = format!("null, {size_bytes} bytes");
        let options = pool_options(false, trace_every);
        return Ok(Opened {
            stack,
            devices,
            store: None,
            home_start: 0,
            block_bytes: 512,
            rotational: false,
            options,
            device,
            lock: None,
        });
    }
    let path = d.file.as_deref().expect("checked with the configuration");
    let (device_file, store) = open_device(config, path)?;
    if !device_file.is_direct() {
        tracing::warn!(path = %path.display(), "the file system refuses direct I/O: the page cache lies between");
    }
    let home = device_file.home();
    let block_bytes = device_file.block_bytes();
    let model = d.model.as_deref().map(DeviceSpec::named).transpose().map_err(|e| e.to_string())?;
    let rotational = model.is_some_and(|m| m.is_rotational());
    let data = match &d.volatile_cache {
        None => std::fs::File::from(device_file.data_fd().try_clone_to_owned().map_err(|e| e.to_string())?),
        // It writes sector by sector, which direct I/O may refuse.
        Some(_) => std::fs::File::options().read(true).write(true).open(path).map_err(|e| e.to_string())?,
    };
    // With logs, their tables come before home, and the logs lie in it.
    let region = device_file.logs().map_or(home, |tables| crate::logs::device_of(tables, home));
    let file = FileDevice { file: data, start: region.offset, len: region.len, block_bytes };
    let kind = d.model.as_ref().map_or("file".to_string(), |m| format!("modelled {m} over"));
    let description = format!("{kind} {}", path.display());
    let device = match &d.volatile_cache {
        None => Device::File(file),
        Some(v) => {
            let mut volatile = VolatileFile::new(file, v.seed);
            (volatile.flush_lies, volatile.fua_lies) = (v.flush_lies, v.fua_lies);
            Device::Volatile(volatile)
        }
    };
    let devices = Devices::new(vec![device]);
    let options = pool_options(d.model.is_some(), trace_every);
    let stack = build_stack(config, devices.offers())?;
    Ok(Opened {
        stack,
        devices,
        store: Some(store),
        home_start: home.offset,
        block_bytes,
        rotational,
        options,
        device: description,
        lock: Some(device_file),
    })
}

/// Opens a pool's device and its metadata; makes them at the first use.
fn open_device(config: &PoolConfig, path: &Path) -> std::result::Result<(DeviceFile, MetaStore), String> {
    let (pool, d) = (config.name.get_ref(), &config.device);
    // Derived from the pool's name, so that two pools' devices can't be taken for each other.
    let pool_uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, pool.as_bytes());
    let expect = Expect { pool_uuid: Some(pool_uuid), device_uuid: d.uuid, role: ROLE_MAIN.into() };
    let create = |size_bytes| {
        if let Some(uuid) = d.uuid {
            // A mount that failed, most likely: an empty device in the place of one with data would be found too late.
            return Err(format!(
                "{}: the device {uuid} isn't here: attach it, or take `uuid` out to make a new one",
                path.display()
            ));
        }
        let logs_bytes = match &config.logs {
            Some(logs) => {
                crate::logs::table_bytes(logs, if size_bytes == 0 { device_bytes(path) } else { size_bytes })?
            }
            None => 0,
        };
        let options = CreateOptions { size_bytes, pool_uuid, role: ROLE_MAIN.into(), logs_bytes };
        DeviceFile::create(path, &options).map_err(|e| e.to_string())
    };
    let kind = std::fs::metadata(path).map(|m| (m.file_type().is_block_device(), m.len()));
    let device = match kind {
        Err(_) | Ok((false, 0)) => {
            create(d.size.ok_or("the file doesn't exist: say how large to make it with `size`")?.0)?
        }
        Ok((is_block_device, _)) => match DeviceFile::open(path, &expect) {
            // Nothing of anybody's is there: the store made sure of that.
            Err(DeviceError { kind: DeviceErrorKind::Blank, .. }) if is_block_device => {
                create(d.size.map_or(0, |size| size.0))?
            }
            Err(DeviceError { kind: DeviceErrorKind::CreationInterrupted, .. })
                if is_block_device || d.size.is_some() =>
            {
                create(d.size.map_or(0, |size| size.0))?
            }
            opened => opened.map_err(|e| e.to_string())?,
        },
    };
    let home_bytes = match (&config.logs, device.logs()) {
        (None, None) => u64::MAX,
        (None, Some(_)) => {
            return Err(format!("{}: the device has logs, which hold data: configure [pool.logs]", path.display()));
        }
        (Some(_), None) => {
            let what = "the device was made without logs: take [pool.logs] out, or make a new device";
            return Err(format!("{}: {what}", path.display()));
        }
        (Some(logs), Some(tables)) => {
            let mut region = crate::logs::device_of(tables, device.home());
            // A modelled disk may be smaller than the file behind it.
            region.len = region.len.min(model_of(config, region.len)?.map_or(u64::MAX, |m| m.offer(&[]).size_bytes));
            let file = std::fs::File::options().read(true).write(true).open(path).map_err(|e| e.to_string())?;
            let salt = Uuid::new_v4().as_u64_pair().0;
            crate::logs::format_if_blank(logs, &file, region, device.block_bytes(), salt)?;
            crate::logs::home_bytes(logs, region.len, device.block_bytes())?
        }
    };
    let store = device.open_meta(home_bytes).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok((device, store))
}

/// The modelled device over a file of `file_bytes`, if it is to be one.
fn model_of(config: &PoolConfig, file_bytes: u64) -> std::result::Result<Option<ModelLayer<AnyModel>>, String> {
    let Some(name) = &config.device.model else { return Ok(None) };
    // A flash drive's maps take memory by capacity: no more of it than the file behind it.
    let spec = DeviceSpec::named(name).map_err(|e| e.to_string())?.at_most(file_bytes);
    let model = spec.build(DeviceOptions::default()).map_err(|e| e.to_string())?;
    Ok(Some(ModelLayer::new(model)))
}

fn device_bytes(path: &Path) -> u64 {
    use std::io::{Seek, SeekFrom};
    std::fs::File::open(path).and_then(|mut f| f.seek(SeekFrom::End(0))).unwrap_or(0)
}

/// A pool's layers, as configured, over devices that offer `offers`: budgets if tenants have any, front, map, a page cache
/// and logs if it has any, scheduler, and a model if the device is modelled.
///
/// # Errors
/// What is wrong with the configuration.
pub fn build_stack(config: &PoolConfig, offers: Vec<Offer>) -> std::result::Result<Stack, String> {
    let depth = config.depth.unwrap_or(DEPTH_DEFAULT);
    let model = model_of(config, offers[0].size_bytes)?;
    let below = model.as_ref().map_or(offers[0], |m| m.offer(&offers));
    let mut layers: Vec<Box<dyn Layer>> = Vec::new();
    if config.budgets {
        layers.push(Box::new(Budgets::new(StackConfig::default().failover_hop)));
    }
    layers.push(Box::new(Front::new()));
    layers.push(Box::new(Map::new()));
    layers.extend(predict::page_cache(config, below.size_bytes)?);
    if let Some(logs) = &config.logs {
        layers.push(Box::new(crate::logs::layer(logs, &below)?));
    }
    let kind: SchedulerKind = match &config.sched {
        Some(name) => name.get_ref().parse().map_err(|e: UnknownScheduler| e.to_string())?,
        None => SchedulerKind::default(),
    };
    let (costs, discipline, model) = match kind {
        SchedulerKind::Ssd => (DiskModel::unknown(0), Discipline::Fifo, predict::from_inside(config, model)?),
        _ => {
            // A modelled disk's profile is of all of it, however small the file behind it.
            let size_bytes = model.as_ref().map_or(below.size_bytes, |m| m.model().size_bytes());
            let (costs, discipline) = predict::device_costs(config, size_bytes)?;
            (costs, discipline, model)
        }
    };
    layers.push(kind.layer(&SchedulerOptions { depth, discipline, ..SchedulerOptions::default() }, costs));
    layers.extend(model.map(|m| Box::new(m) as Box<dyn Layer>));
    let mut stack = Stack::new(StackConfig::default(), offers);
    let last = layers.len() - 1;
    for (i, layer) in layers.into_iter().enumerate() {
        stack.push(layer, vec![if i < last { Target::Node(i + 1) } else { Target::Device(0) }]);
    }
    Ok(stack)
}
