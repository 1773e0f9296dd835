//! A running pool as the node has it: its thread, its metadata, and its settings as they are served.

use super::caching;
use super::changing::Turns;
use super::error::{NodeError, Result, failed};
use crate::config::{Limits, PoolConfig};
use crate::directory::{Directory, Volume};
use crate::engine::tape::TapeWriter;
use crate::engine::{Command, Look, Pool, PoolGone, PoolHandle, PoolOptions, Reply, Report};
use crate::open::{CacheLocks, Held, open_pool};
use crate::parts::settings::{Changed, Live};
use crate::parts::{self, Layers, Part, PoolView};
use crate::plan::Facts;
use crate::rbd::steering::Steering;
use crate::store::PoolStore;
use plimsoll_base::{IoError, Time, VolumeKey};
use plimsoll_stack::{Addressed, Extent, Stack};
use plimsoll_store::{Backup, NewVolume, Uuid, VolumeRecord};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, RwLock};

/// Minutes at a full load, days at a light one.
const TAPE_BYTES_MAX_DEFAULT: u64 = 1 << 30;

/// A pool's thread that hasn't answered for this long is as good as gone for who watches.
pub(super) const ANSWER_TIME: std::time::Duration = std::time::Duration::from_secs(2);
/// After this many copies of what an export counts, the pool's thread has a rest from copying.
const COPIES_AT_ONCE: usize = 8;
const COPY_REST: std::time::Duration = std::time::Duration::from_millis(1);

/// A pool that runs, or couldn't be opened.
pub struct RunningPool {
    /// Name.
    pub name: String,
    /// Its device, for people.
    pub device: String,
    /// Reason why it couldn't be opened, if it couldn't: the node serves the others.
    pub failed: Option<String>,
    /// The device's UUID; a null device has none.
    pub device_uuid: Option<Uuid>,
    /// Bytes of the device before this start and since, if it had become larger.
    pub(super) grown: Option<(u64, u64)>,
    /// Its thread's commands.
    pub handle: PoolHandle,
    /// Its metadata; a null device has none, and forgets its volumes when the node ends.
    pub(super) store: Option<Arc<PoolStore>>,
    /// Beginning of the home region on the device: extents in the store are device addresses, in the stack they count
    /// from here.
    home_start: u64,
    pub(super) block_bytes: u32,
    pub(super) rotational: bool,
    /// Keep its cache's devices locked against another node.
    _cache_locks: Option<CacheLocks>,
    /// The pool as it is served; `None` if it couldn't be opened.
    live: Mutex<Option<Arc<Live>>>,
    /// Values of its settings in the configuration.
    pub(super) configured: BTreeMap<String, u64>,
    /// Space of a pool without a store.
    volatile: Mutex<VolatileSpace>,
    thread: Mutex<Option<std::thread::JoinHandle<std::io::Result<()>>>>,
    /// The thread has ended with an error.
    has_failed: Arc<AtomicBool>,
    /// Keeps the device locked against another node as long as the pool is there.
    lock: Option<Held>,
    /// Its thread didn't answer a question, or not soon.
    was_silent: AtomicBool,
    /// Its changes, one at a time.
    pub(super) turns: Turns,
    /// Volumes in mode `back` are written through: the pool's cache is emptied for a release.
    pub(super) writes_through: AtomicBool,
    /// Space below its file.
    pub(super) looks: Arc<super::beneath::Looks>,
}

/// Space of a pool that forgets its volumes when the node ends. Nothing is freed.
#[derive(Default)]
struct VolatileSpace {
    last_id: u32,
    left: u64,
}

impl VolatileSpace {
    fn new(bytes: u64) -> VolatileSpace {
        VolatileSpace { last_id: 0, left: bytes }
    }

    /// Allots space to a new volume, from the end.
    ///
    /// # Errors
    /// The bytes that are left, if those are too few.
    fn allot(&mut self, new: NewVolume) -> std::result::Result<VolumeRecord, u64> {
        let len = new.size_bytes.next_multiple_of(4096);
        if len > self.left {
            return Err(self.left);
        }
        self.last_id += 1;
        self.left -= len;
        Ok(VolumeRecord {
            key: VolumeKey { id: self.last_id, generation: 1 },
            name: new.name,
            size_bytes: new.size_bytes,
            tenant: new.tenant,
            read_only: new.read_only,
            description: new.description,
            cache: new.cache,
            extents: vec![Extent { device_offset: self.left, len }],
            state: plimsoll_store::VolumeState::Ready,
            replica: plimsoll_store::ReplicaRecord::default(),
            deadline: None,
            behind: None,
            given_up: None,
            birth: None,
        })
    }
}

impl RunningPool {
    /// Opens a pool and starts its thread.
    pub(super) fn start(
        config: &PoolConfig,
        trace_every: u32,
        limits: &Limits,
        directory: Arc<RwLock<Directory>>,
    ) -> Result<RunningPool> {
        let name = config.name.get_ref().clone();
        let in_pool = |e: &dyn fmt::Display| NodeError::Failed(format!("pool `{name}`: {e}"));
        if config.profile.is_none() {
            tracing::info!(pool = name, "no profile: waits are learned from completions");
        }
        let files = Facts::of_files(config).map_err(|e| in_pool(&e))?;
        let facts = Facts { started_s_of_day: parts::logs::seconds_of_day(), ..files };
        let configured = parts::settings::values(config);
        let opened = open_pool(config, facts, trace_every).map_err(|e| in_pool(&e))?;
        let (handle, receiver) = PoolHandle::new().map_err(|e| in_pool(&e))?;
        let volatile_bytes = opened.devices.offers()[0].size_bytes;
        let (stack, devices) = (opened.stack, opened.devices);
        let options = PoolOptions {
            payload_time: limits.payload_idle.0.into(),
            payload_rate: limits.payload_rate.0,
            payload_end: limits.payload_time.0.into(),
            ..opened.options
        };
        let tape = match &config.tape {
            None => None,
            Some(path) => {
                let bytes_max = config.tape_max.map_or(TAPE_BYTES_MAX_DEFAULT, |b| b.0);
                let opened = TapeWriter::create(path, bytes_max, &name, &opened.live.plan, &devices.offers());
                Some(opened.map_err(|e| in_pool(&crate::open::tape_fault(path, e)))?)
            }
        };
        let store = opened.store.map(|s| Arc::new(PoolStore::new(s)));
        let noted = store.as_ref().filter(|_| config.cache.is_some());
        let caching = noted.map(|store| caching::recorder(name.clone(), Arc::downgrade(store), handle.clone()));
        let caching = caching.transpose().map_err(|e| in_pool(&e))?;
        let sees_osds = stack.layer::<plimsoll_sched::osds::Osds>().is_some();
        if let Some(Held::Image(_, image)) = &opened.lock {
            crate::rbd::watch(name.clone(), &image.image, handle.clone()).map_err(|e| in_pool(&e))?;
            if sees_osds {
                let steering = Steering {
                    pool: name.clone(),
                    cluster: image.cluster.clone(),
                    image: Arc::downgrade(&image.image),
                    device: config.device.clone(),
                    home: (opened.home_start, volatile_bytes),
                    places: image.handles.clone(),
                };
                steering.follow(handle.clone()).map_err(|e| in_pool(&e))?;
            }
        }
        let log = config.cores.map(|_| parts::cores::logger(name.clone(), directory)).transpose();
        let log = log.map_err(|e| in_pool(&e))?;
        let report: Report = Box::new(move |report| match (report.get(), &log, &caching) {
            (Some(cores), Some(log), _) => log(cores),
            (None, _, Some(caching)) => caching(report),
            _ => {}
        });
        let (thread_name, has_failed) = (name.clone(), Arc::<AtomicBool>::default());
        let fails = has_failed.clone();
        let thread = std::thread::Builder::new()
            .name(format!("pool-{name}"))
            .spawn(move || {
                let pool = Pool::new(stack, tape, devices, receiver, options).map(|p| p.with_report(report));
                let ended = pool.and_then(Pool::run);
                match &ended {
                    Ok(()) => tracing::info!(pool = thread_name, "ended"),
                    Err(error) => {
                        fails.store(true, Relaxed);
                        tracing::error!(pool = thread_name, %error, "failed: its volumes are no longer served")
                    }
                }
                ended
            })
            .map_err(|e| in_pool(&e))?;
        let pool = RunningPool {
            name: name.clone(),
            failed: None,
            device: opened.device,
            device_uuid: opened.lock.as_ref().map(Held::uuid),
            grown: opened.grown,
            handle,
            store,
            _cache_locks: opened.cache_locks,
            live: Mutex::new(Some(Arc::new(opened.live))),
            configured,
            home_start: opened.home_start,
            block_bytes: opened.block_bytes,
            rotational: opened.rotational,
            volatile: Mutex::new(VolatileSpace::new(volatile_bytes)),
            thread: Mutex::new(Some(thread)),
            has_failed,
            lock: opened.lock,
            was_silent: AtomicBool::new(false),
            turns: Turns::default(),
            writes_through: AtomicBool::new(false),
            looks: Arc::default(),
        };
        pool.has_begun()?;
        Ok(pool)
    }

    /// Waits for the first answer of the pool's thread. Blocks.
    ///
    /// # Errors
    /// If the thread ended at its begin, as without a descriptor or memory for its ring: the pool's fault, not the node's end.
    fn has_begun(&self) -> Result<()> {
        let (begun, hears) = std::sync::mpsc::channel();
        let look: Look = Box::new(move |_, _| _ = begun.send(()));
        if self.handle.send(Command::Look(look)).is_ok() && hears.recv().is_ok() {
            return Ok(());
        }
        Err(self.join().err().unwrap_or_else(|| self.gone()))
    }

    /// A pool that couldn't be opened, in its place: it answers nobody.
    pub(super) fn failed(config: &PoolConfig, why: NodeError) -> Result<RunningPool> {
        let why = why.to_string();
        tracing::error!(error = why, "a pool isn't served");
        RunningPool::absent(config.name.get_ref(), config.device.label(), why)
    }

    /// A pool that answers nobody.
    pub(super) fn absent(name: &str, device: String, why: String) -> Result<RunningPool> {
        Ok(RunningPool {
            name: name.to_string(),
            device,
            failed: Some(why),
            device_uuid: None,
            grown: None,
            handle: PoolHandle::new().map_err(failed)?.0,
            store: None,
            home_start: 0,
            block_bytes: 512,
            rotational: false,
            _cache_locks: None,
            live: Mutex::new(None),
            configured: BTreeMap::new(),
            volatile: Mutex::default(),
            thread: Mutex::new(None),
            has_failed: Arc::default(),
            lock: None,
            was_silent: AtomicBool::new(false),
            turns: Turns::default(),
            writes_through: AtomicBool::new(false),
            looks: Arc::default(),
        })
    }

    /// The reason for which its metadata can't be changed until it is opened again, if there is one.
    pub fn metadata_failed(&self) -> Option<&str> {
        self.store.as_ref()?.failed()
    }

    /// Time for which a change of its volumes, tenants or settings has been under way.
    pub fn changes_for(&self) -> Option<std::time::Duration> {
        self.turns.busy_for()
    }

    /// True if it is on an RBD image whose lock another client has taken.
    pub fn has_lost_lock(&self) -> bool {
        matches!(&self.lock, Some(Held::Image(_, held)) if held.image.known_lock_state() == plimsoll_rbd::LockState::Lost)
    }

    /// Address of this node as the owner of the pool's image.
    pub(super) fn own_address(&self) -> Option<String> {
        match &self.lock {
            Some(Held::Image(_, held)) => held.image.own_address().map(str::to_string),
            _ => None,
        }
    }

    /// Tells when the RBD image that it is on has been closed. `None` if it isn't on one.
    pub(super) fn image_closed(&self) -> Option<plimsoll_rbd::Closed> {
        match &self.lock {
            Some(Held::Image(_, held)) => Some(held.image.closed()),
            _ => None,
        }
    }

    /// True if the pool's thread has ended with an error.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// True if others than the pool hold its metadata.
    pub(super) fn is_stored_elsewhere(&self) -> bool {
        self.store.as_ref().is_some_and(|store| Arc::strong_count(store) > 1)
    }

    pub(super) fn gone(&self) -> NodeError {
        let ended = || match self.handle.health.has_changed() {
            Ok(_) => format!("pool `{}` doesn't answer: check its device and the kernel's log", self.name),
            Err(_) => format!("pool `{}` has ended; the log says why", self.name),
        };
        NodeError::Failed(self.failed.clone().unwrap_or_else(ended))
    }

    /// Asks the pool's thread; one that doesn't answer soon is as good as gone.
    pub(super) async fn ask_soon<T>(&self, make: impl FnOnce(Reply<T>) -> Command) -> std::result::Result<T, PoolGone> {
        self.answer_soon(self.handle.ask(make)).await
    }

    async fn answer_soon<T>(
        &self,
        asked: impl Future<Output = std::result::Result<T, PoolGone>>,
    ) -> std::result::Result<T, PoolGone> {
        let answer = tokio::time::timeout(ANSWER_TIME, asked).await.unwrap_or(Err(PoolGone));
        if answer.is_err() {
            self.was_silent.store(true, Relaxed);
        }
        answer
    }

    /// True if a view of the pool may be missing because its thread didn't answer, and not because nobody has asked it yet.
    pub(super) fn may_be_silent(&self) -> bool {
        self.failed.is_some() || self.was_silent.load(Relaxed)
    }

    /// Looks at the stack on the pool's thread; a thread that doesn't answer soon is as good as gone.
    pub(super) async fn look_soon<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Stack, Time) -> T + Send + 'static,
    ) -> std::result::Result<T, PoolGone> {
        self.answer_soon(self.handle.look(look)).await
    }

    /// The pool's metrics and its layers' status, without what is counted per volume and tenant.
    pub(super) async fn view_of_pool(&self) -> std::result::Result<PoolView, PoolGone> {
        let pool = self.ask_soon(|reply| Command::Snapshot { reply });
        let (pool, layers) = tokio::join!(pool, self.look_soon(Layers::look));
        Ok(PoolView { pool: *pool?, layers: layers?, exports: Vec::new() })
    }

    pub(super) async fn view(&self) -> std::result::Result<PoolView, PoolGone> {
        let mut view = self.view_of_pool().await?;
        let mut at = 0;
        while let Some((place, export)) = self.ask_soon(|reply| Command::SnapshotExport { at, reply }).await? {
            view.exports.push(*export);
            if view.exports.len().is_multiple_of(COPIES_AT_ONCE) {
                // Others' requests come first: a pool of many volumes would be busy with copies alone.
                tokio::time::sleep(COPY_REST).await;
            }
            at = place + 1;
        }
        view.exports.sort_by_key(|e| e.key);
        Ok(view)
    }

    pub(super) fn zeroing_failed(&self, volume: &str, e: IoError) -> NodeError {
        let what = format!(
            "volume `{volume}`: zeroing its space in pool `{}` failed: {e}; it is tried again at the next start",
            self.name
        );
        NodeError::Failed(what)
    }

    /// Device addresses to addresses in the stack.
    pub(super) fn stack_extents(&self, extents: &[Extent]) -> Vec<Extent> {
        extents.iter().map(|e| Extent { device_offset: e.device_offset - self.home_start, len: e.len }).collect()
    }

    /// The record of a new volume in a pool without a store.
    pub(super) fn volatile_record(&self, new: NewVolume) -> Result<VolumeRecord> {
        let record = self.volatile.lock().expect("no panic while held").allot(new);
        record.map_err(|left| NodeError::Refused(format!("pool `{}` has {left} bytes left", self.name)))
    }

    /// The pool as it is served.
    pub(super) fn live(&self) -> Option<Arc<Live>> {
        self.live.lock().expect("no panic while held").clone()
    }

    /// A backup of its metadata as they are.
    pub(super) fn backup(&self) -> Option<Backup> {
        let (store, held) = (self.store.as_ref()?, self.lock.as_ref()?);
        Some(Backup::of(held.superblock(), &store.view()))
    }

    /// True if it has a cache whose start failed: it can't record anything.
    pub(super) async fn has_failed_cache(&self) -> bool {
        let state = async || self.handle.look(parts::cache::Cache::look).await.ok().flatten().map(|cache| cache.state);
        self.cache_section().is_some() && state().await == Some("failed")
    }

    /// The section of its cache, as it is served.
    pub(super) fn cache_section(&self) -> Option<crate::config::CacheConfig> {
        self.live.lock().expect("no panic while held").as_ref()?.config.cache.clone()
    }

    /// The path of its cache's device, if it has a cache.
    pub fn cache_file(&self) -> Option<PathBuf> {
        Some(self.cache_section()?.file)
    }

    /// The regular file that is its device.
    pub(super) fn file(&self) -> Option<PathBuf> {
        match &self.lock {
            Some(Held::File(device)) if !device.is_block_device() => Some(device.path().to_owned()),
            _ => None,
        }
    }

    pub(super) fn is_fenced(&self) -> bool {
        self.live.lock().expect("no panic while held").as_ref().is_some_and(|live| live.config.fence.is_some())
    }

    pub(super) async fn forget(&self, volume: &Volume) -> Result<()> {
        let (key, extents) = (volume.key, volume.extents.clone());
        let zeroed = self.handle.ask(|reply| Command::DeleteVolume { key, extents, reply }).await;
        zeroed.map_err(|_| self.gone())?.map_err(|e| self.zeroing_failed(&volume.name, e))
    }

    /// Passes a message to one of the pool's layers.
    ///
    /// # Errors
    /// If there is no such layer, or it doesn't understand the message: then nothing has changed.
    pub(super) async fn tell(&self, to: Addressed) -> Result<()> {
        let layer = to.layer.clone();
        match self.ask_soon(|reply| Command::Tell { to, reply }).await.map_err(|_| self.gone())? {
            true => Ok(()),
            false => {
                let name = &self.name;
                let what =
                    format!("pool `{name}`: its layer `{layer}` doesn't understand a change: please report this");
                Err(NodeError::Failed(what))
            }
        }
    }

    /// Makes a change so, or none of it.
    pub(super) async fn apply(&self, changed: Changed) -> Result<()> {
        for (n, (to, _)) in changed.messages.iter().enumerate() {
            let Err(e) = self.tell(to.clone()).await else { continue };
            for (_, back) in changed.messages[..n].iter().rev() {
                self.tell(back.clone()).await?;
            }
            return Err(e);
        }
        *self.live.lock().expect("no panic while held") = Some(Arc::new(changed.live));
        Ok(())
    }

    /// Ends the pool in order. Blocks until done.
    ///
    /// # Errors
    /// As of [`RunningPool::join`].
    pub(super) fn shut_down(&self) -> Result<()> {
        let _ = self.handle.send(Command::Shutdown); // a pool that is gone has ended already
        self.join()
    }

    /// Waits until the pool's thread has ended, and records of its volumes that they ended in order. Returns the faults.
    pub(super) fn end<'a>(&self, volumes: impl Iterator<Item = &'a Volume>) -> Vec<String> {
        if let Err(e) = self.join() {
            return vec![e.to_string()];
        }
        // Where a flush failed, the volumes didn't end in order either.
        let in_order = !self.handle.health.borrow().flush_failed;
        let fault = |v: &Volume| {
            let e = v.replica.close().err()?;
            let name = &v.name;
            Some(format!(
                "volume `{name}`: could not record its orderly stop; it may be taken for unclean at the next start: {e}"
            ))
        };
        volumes.filter(|_| in_order).filter_map(fault).collect()
    }

    /// Waits until the pool's thread has ended.
    ///
    /// # Errors
    /// If it didn't end in order, now or earlier: what was not flushed may be lost.
    pub(super) fn join(&self) -> Result<()> {
        let thread = self.thread.lock().expect("no panic while held").take();
        match thread.map(std::thread::JoinHandle::join) {
            None | Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e))) => Err(NodeError::Failed(format!("pool `{}` ended with an error: {e}", self.name))),
            Some(Err(_)) => Err(NodeError::Failed(format!(
                "pool `{}` ended in a panic: the node stops and its supervisor restarts it; please report the panic message in the log",
                self.name
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::PoolReceiver;
    use crate::parts::settings;

    /// A pool whose thread is the test's own: it does what `thread` does with the messages to its layers.
    fn played(more: &str, thread: impl FnOnce(PoolReceiver) + Send + 'static) -> RunningPool {
        let text = format!("[[pool]]\nname = \"p\"\ndevice = {{ null = true, size = \"1GiB\" }}\n{more}");
        let config: Config = toml::from_str(&text).expect("it is a configuration");
        let config = config.pool.into_iter().next().expect("it has a pool");
        let (handle, receiver) = PoolHandle::new().unwrap();
        std::thread::spawn(move || thread(receiver));
        let live = Live {
            configured: config.clone(),
            config: config.clone(),
            plan: plimsoll_pool::PoolPlan::new(),
            cache_device: None,
        };
        let none = RunningPool::failed(&config, NodeError::Failed("not opened".into())).unwrap();
        RunningPool { handle, failed: None, live: Mutex::new(Some(Arc::new(live))), ..none }
    }

    /// Two layers get a message each, and the second doesn't understand it.
    #[tokio::test]
    async fn a_change_that_a_layer_does_not_understand_is_undone() {
        let (tell, told) = std::sync::mpsc::channel();
        let pool = played("sched = \"cfq\"\ncores = 4\n", move |receiver| {
            let mut known = [true, false, true].into_iter();
            while let Ok(Command::Tell { to, reply }) = receiver.commands.recv() {
                tell.send(to).unwrap();
                reply.send(known.next().expect("three messages")).unwrap();
            }
        });
        let before = pool.live().unwrap();
        let wanted = BTreeMap::from([("core_poll_windows".to_string(), 500), ("idle_us".to_string(), 0)]);
        let changed = settings::change(&before, &wanted, &[]).unwrap();
        let messages = changed.messages.clone();
        let why = pool.apply(changed).await.unwrap_err().to_string();
        assert!(why.contains("`cfq` doesn't understand"), "{why}");
        assert_eq!(settings::values(&pool.live().unwrap().config), settings::values(&before.config));
        drop(pool);
        assert_eq!(told.iter().collect::<Vec<_>>(), [&messages[0].0, &messages[1].0, &messages[0].1].map(Clone::clone));
    }

    fn volume(size_bytes: u64) -> NewVolume {
        let (name, tenant) = ("v".to_string(), "t".to_string());
        NewVolume { name, size_bytes, tenant, read_only: false, description: None, cache: None }
    }

    #[test]
    fn volatile_volumes_never_overlap() {
        let mut space = VolatileSpace::new(5 * 4096);
        let mut allot =
            |bytes| space.allot(volume(bytes)).map(|r| (r.key.id, r.extents[0].device_offset, r.extents[0].len));
        assert_eq!(allot(4097), Ok((1, 3 * 4096, 2 * 4096)));
        assert_eq!(allot(4 * 4096), Err(3 * 4096));
        assert_eq!(allot(3 * 4096), Ok((2, 0, 3 * 4096)));
        assert_eq!(allot(1), Err(0));
    }
}
