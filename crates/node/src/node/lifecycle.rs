//! Pools that are added and removed while the node serves.

use super::pool::RunningPool;
use super::volumes::connected;
use super::{Node, NodeError, Pools, Result, interrupted_deletions};
use crate::config::{Config, PoolConfig};
use crate::directory::{Directory, NvmeName, Volume, check_export};
use crate::engine::watchdog::Watchdog;
use crate::engine::{ClientFilter, Command};
use crate::events::{Kind, Severity};
use crate::reload::pool_section;
use crate::store::PoolStore;
use plimsoll_stack::LayerState;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Time that a reload waits for the recovery of a pool that it added. Beyond it the pool's clients are refused until it has recovered.
const RECOVERY_TIME: Duration = Duration::from_secs(5);
/// Time that others may go on looking at a pool whose thread has ended, and interval of the looks whether they still do.
const LOOKERS_TIME: Duration = Duration::from_secs(10);
const LOOKERS_LOOK: Duration = Duration::from_millis(2);
/// Time that a start waits for pools on RBD images while others are served. The lock of a dead owner takes 30 s of it.
const IMAGES_TIME: Duration = Duration::from_secs(80);

/// A pool that was removed: its data stay on its devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemovedPool {
    /// Its name.
    pub name: String,
    /// Its device, for people.
    pub device: String,
    /// Its volumes.
    pub volumes: Vec<String>,
    /// Clients that were disconnected.
    pub disconnected: usize,
}

/// The way in which a pool leaves the node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaves {
    /// The configuration doesn't declare it any more.
    Removed,
    /// Another gateway is to have it. The configuration may go on declaring it.
    Released,
}

impl Leaves {
    /// For messages.
    fn done(self) -> &'static str {
        match self {
            Leaves::Removed => "removed",
            Leaves::Released => "released",
        }
    }

    /// The order that disconnects its clients, for messages.
    fn by_force(self, name: &str) -> String {
        match self {
            Leaves::Removed => "remove it with `--disconnect`".into(),
            Leaves::Released => format!("`plimsoll pool release {name} --disconnect`"),
        }
    }
}

/// A pool that is being opened.
type Opening = oneshot::Receiver<Result<OpenedPool>>;

/// A pool that was opened, and isn't served yet. It is closed when this is dropped before.
pub(super) struct OpenedPool {
    pool: Option<RunningPool>,
    pools: Arc<Pools>,
}

impl OpenedPool {
    /// Its metadata.
    pub(super) fn store(&self) -> Option<Arc<PoolStore>> {
        self.pool.as_ref()?.store.clone()
    }

    /// The pool, unless its thread has ended.
    fn take(mut self) -> Result<RunningPool> {
        let pool = self.pool.take().ok_or_else(|| NodeError::Failed("it is gone".into()))?;
        match pool.handle.health.has_changed() {
            Ok(_) => Ok(pool),
            Err(_) => Err(pool.join().err().unwrap_or_else(|| pool.gone())),
        }
    }
}

impl Drop for OpenedPool {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.take() {
            discard(self.pools.clone(), Arc::new(pool));
        }
    }
}

/// The one try to open a pool that may be under way. Another may begin once this is dropped.
struct Turn {
    name: String,
    pools: Arc<Pools>,
}

impl Turn {
    /// `None` while an earlier try is under way.
    fn of(name: &str, pools: &Arc<Pools>) -> Option<Turn> {
        let is_first = pools.opening().insert(name.to_string());
        is_first.then(|| Turn { name: name.to_string(), pools: pools.clone() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pools.opening().remove(&self.name);
    }
}

/// Opens a pool on a thread of its own. If nobody waits for the answer any more, the pool is closed again.
fn open_on_thread(
    p: PoolConfig,
    config: &Config,
    pools: Arc<Pools>,
    directory: Arc<RwLock<Directory>>,
) -> Result<Opening> {
    let name = p.name.get_ref().clone();
    let turn = Turn::of(&name, &pools).ok_or_else(|| {
        NodeError::Conflict("it is still being opened since an earlier try: try again when its device answers".into())
    })?;
    let (reply, opened) = oneshot::channel();
    let (trace_every, limits) = (config.control.trace_every, config.limits.clone());
    let thread = std::thread::Builder::new().name(format!("open-{name}"));
    let open = move || {
        let opened = match shared_file(&pools, &p) {
            Some(what) => Err(NodeError::Conflict(what)),
            None => RunningPool::start(&p, trace_every, &limits, directory),
        };
        let opened = opened.map(|pool| OpenedPool { pool: Some(pool), pools });
        if reply.is_closed() {
            // Nobody wants it any more. It is in the list of those that leave before another try may begin.
            drop(opened);
            return drop(turn);
        }
        // Whoever hears of a failure may try again at once.
        drop(turn);
        let _ = reply.send(opened); // whoever wanted it may have gone
    };
    thread.spawn(open).map_err(|e| NodeError::Failed(format!("no thread to open it: {e}")))?;
    Ok(opened)
}

/// Opens the pools of a start, in their order. Those on RBD images are opened beside the others: a cluster may not answer. Then the node
/// serves its other pools.
pub(super) async fn open_all(
    config: &Config,
    pools: &Arc<Pools>,
    directory: &Arc<RwLock<Directory>>,
) -> Result<Vec<Result<RunningPool>>> {
    let is_remote = |p: &PoolConfig| p.device.rbd.is_some();
    let mut opening = Vec::new();
    for (at, p) in config.pool.iter().enumerate().filter(|(_, p)| is_remote(p)) {
        opening.push((at, open_on_thread(p.clone(), config, pools.clone(), directory.clone())?));
    }
    let start = |p: &PoolConfig| RunningPool::start(p, config.control.trace_every, &config.limits, directory.clone());
    let mut all: Vec<Option<Result<RunningPool>>> =
        config.pool.iter().map(|p| (!is_remote(p)).then(|| start(p))).collect();
    let is_served = all.iter().flatten().any(Result::is_ok);
    for (at, opened) in opened_in_time(opening, is_served, IMAGES_TIME).await {
        all[at] = Some(opened.and_then(OpenedPool::take));
    }
    let late = |p: &PoolConfig| hasnt_answered().about(&pool_section(p.name.get_ref()));
    Ok(config.pool.iter().zip(all).map(|(p, opened)| opened.unwrap_or_else(|| Err(late(p)))).collect())
}

/// The error of a pool whose image took longer than [`IMAGES_TIME`].
fn hasnt_answered() -> NodeError {
    let seconds = IMAGES_TIME.as_secs();
    NodeError::Failed(format!(
        "its RBD image hasn't answered for {seconds} s: check the cluster, then `plimsoll reload`"
    ))
}

/// Waits for a pool that is being opened, until `end` if it is given.
async fn opened_until(opened: Opening, end: Option<tokio::time::Instant>) -> Result<OpenedPool> {
    let answer = match end {
        Some(end) => tokio::time::timeout_at(end, opened).await.map_err(|_| hasnt_answered())?,
        None => opened.await,
    };
    answer.unwrap_or_else(|_| Err(NodeError::Failed("its opening broke off".into())))
}

/// Waits for pools that are being opened. Once any is served, it waits no longer than `at_most`.
async fn opened_in_time<T: Send + 'static>(
    opening: Vec<(usize, oneshot::Receiver<Result<T>>)>,
    mut is_served: bool,
    at_most: Duration,
) -> Vec<(usize, Result<T>)> {
    let end = tokio::time::Instant::now() + at_most;
    let mut waiting = JoinSet::new();
    for (at, opened) in opening {
        waiting.spawn(async move {
            (at, opened.await.unwrap_or_else(|_| Err(NodeError::Failed("its opening broke off".into()))))
        });
    }
    let mut all = Vec::new();
    loop {
        let next = match is_served {
            true => tokio::time::timeout_at(end, waiting.join_next()).await.unwrap_or(None),
            false => waiting.join_next().await,
        };
        let Some(Ok((at, opened))) = next else { return all };
        is_served |= opened.is_ok();
        all.push((at, opened));
    }
}

/// Closes a pool that was opened and isn't to be served. Its thread may be recovering and write: its devices stay locked until that has
/// ended, and nobody waits for it.
fn discard(pools: Arc<Pools>, pool: Arc<RunningPool>) {
    pools.leaves(pool.clone());
    let _ = pool.handle.send(Command::Shutdown); // a pool that is gone has ended already
    let name = pool.name.clone();
    let close = move || {
        for what in close(&pools, pool, Vec::new()) {
            tracing::error!(error = what, "a pool that was opened and isn't served didn't end in order");
        }
    };
    if let Err(error) = std::thread::Builder::new().name(format!("close-{name}")).spawn(close) {
        tracing::error!(pool = name, %error, "no thread to close it: it stays locked until the node ends");
    }
}

/// Waits for the end of a pool's thread, then closes its devices. Returns the faults. Blocks.
fn close(pools: &Pools, pool: Arc<RunningPool>, volumes: Vec<Volume>) -> Vec<String> {
    let faults = pool.end(volumes.iter());
    drop(volumes); // they have its metadata
    // A device is locked as long as anybody looks at its pool, which takes moments. Nothing tells of the last look's end, so this thread,
    // which only closes the pool, asks for it again and again.
    let began = Instant::now();
    while (Arc::strong_count(&pool) > 2 || pool.is_stored_elsewhere()) && began.elapsed() < LOOKERS_TIME {
        std::thread::sleep(LOOKERS_LOOK);
    }
    let (name, image) = (pool.name.clone(), pool.image());
    drop(pool);
    // The list has had it, too.
    pools.has_left(&name);
    // The threads that watch an image have it for moments; its lock is free when nobody has it.
    while image.strong_count() > 0 && began.elapsed() < LOOKERS_TIME {
        std::thread::sleep(LOOKERS_LOOK);
    }
    faults
}

/// Says which other pool, served or not closed yet, has a file that a new one would open. The file that is read checks only its own pools.
fn shared_file(pools: &Pools, new: &PoolConfig) -> Option<String> {
    let leaving: Vec<Arc<RunningPool>> = pools.leaving().iter().map(|(p, _)| p.clone()).collect();
    let all = pools.all().into_iter().map(|(_, p)| p).chain(leaving);
    for (other, live) in all.filter_map(|p| Some((p.name.clone(), p.live()?))) {
        for (key, path) in files(new) {
            let same = |(_, theirs): &(&str, PathBuf)| is_same_file(theirs, &path);
            if let Some((theirs, _)) = files(&live.config).iter().find(|f| same(f)) {
                let path = path.display();
                return Some(format!(
                    "its {key} {path} is the {theirs} of pool `{other}`, which isn't removed yet: name another, or remove that pool first"
                ));
            }
        }
    }
    None
}

/// The text for a pool whose image another client has taken while the pool was served here.
pub(crate) fn lost_here(name: &str) -> String {
    format!(
        "pool `{name}`: the lock of its RBD image was lost here, and it serves nobody: restart the node to have it again"
    )
}

/// The error of an order that is for pools on RBD images.
fn not_on_an_image(name: &str) -> NodeError {
    NodeError::Refused(format!("pool `{name}` isn't on an RBD image, which another gateway could serve"))
}

/// The files and block devices of a pool, by their keys.
fn files(p: &PoolConfig) -> Vec<(&'static str, PathBuf)> {
    let cache = p.cache.as_ref().map(|c| c.file.clone());
    let all = [("device", p.device.file.clone()), ("cache", cache), ("tape", p.tape.clone())];
    all.into_iter().filter_map(|(key, path)| Some((key, path?))).collect()
}

/// True if two paths lead to one file or block device.
fn is_same_file(a: &Path, b: &Path) -> bool {
    let found = |p: &Path| std::fs::canonicalize(p).ok();
    a == b || found(a).is_some_and(|a| found(b) == Some(a))
}

impl Node {
    /// Counts the host's pauses from now on, if a pool's device is modelled in real time.
    pub(super) fn watch_host(&self, pools: &[PoolConfig]) -> Result<()> {
        if self.watchdog.get().is_none() && pools.iter().any(|p| p.device.model.is_some()) {
            let watchdog = Watchdog::start().map_err(|e| NodeError::Failed(format!("watchdog: {e}")))?;
            let _ = self.watchdog.set(watchdog); // another thread's is as good
        }
        Ok(())
    }

    /// True if a pool is there and could be opened.
    pub fn serves_pool(&self, name: &str) -> bool {
        self.pools.named(name).is_some_and(|(_, p)| p.failed.is_none())
    }

    /// Opens the pools of a configuration that aren't served, each on a thread of its own: a device may be slow, or hang.
    pub(super) async fn open_new(&self, config: &Config) -> Vec<(PoolConfig, Result<OpenedPool>)> {
        let mut opening = Vec::new();
        // One that only the earlier file had was served a moment ago, and was removed since.
        let is_wanted = |p: &&PoolConfig| !config.undeclared.contains(p.name.get_ref());
        for p in config.pool.iter().filter(is_wanted).filter(|p| !self.serves_pool(p.name.get_ref())) {
            opening.push((p.clone(), self.open_aside(p.clone(), config)));
        }
        let end = tokio::time::Instant::now() + IMAGES_TIME;
        let mut all = Vec::new();
        for (p, opened) in opening {
            let opened = match opened {
                Ok(opened) => opened_until(opened, p.device.rbd.is_some().then_some(end)).await,
                Err(e) => Err(e),
            };
            all.push((p, opened));
        }
        all
    }

    fn open_aside(&self, p: PoolConfig, config: &Config) -> Result<Opening> {
        let name = p.name.get_ref().clone();
        if self.pools.leaving().iter().any(|(leaving, _)| leaving.name == name) {
            let what = "one of its name is still being removed: reload again when that is done";
            return Err(NodeError::Conflict(what.into()));
        }
        open_on_thread(p, config, self.pools.clone(), self.directory.clone())
    }

    /// Gives a pool that was opened its number. One that can't be served has a number, too, and answers nobody.
    pub(super) async fn put_pool(&self, config: &PoolConfig, opened: Result<OpenedPool>) -> Result<usize> {
        let opened = opened.and_then(|opened| {
            self.watch_host(std::slice::from_ref(config))?;
            opened.take()
        });
        let pool = match opened {
            Ok(pool) => pool,
            Err(e) => return Err(self.put_failed(config, e)),
        };
        self.introduce_tenants(&pool);
        let number = self.pools.put(pool);
        let Err(e) = self.settle_settings(number).await else { return Ok(number) };
        // In this order: its name is in one of the lists at any time.
        discard(self.pools.clone(), self.pools.get(number));
        Err(self.put_failed(config, e))
    }

    fn put_failed(&self, config: &PoolConfig, e: NodeError) -> NodeError {
        let e = e.about(&pool_section(config.name.get_ref()));
        let text = e.to_string();
        match RunningPool::failed(config, e) {
            Ok(failed) => {
                self.pools.put(failed);
                NodeError::Failed(text)
            }
            Err(e) => e,
        }
    }

    /// Tells a pool of all tenants.
    fn introduce_tenants(&self, pool: &RunningPool) {
        let configured = self.configured();
        self.directory_ref(|d| {
            for (name, t) in &d.tenants {
                let terms = configured.particulars.terms(name, &t.class, t.permits.jobs_max);
                // A pool that has ended serves nobody whom it could concern.
                let _ = pool.handle.send(Command::SetTenant { tenant: t.id, limits: t.permits, terms });
            }
        });
    }

    /// Makes the volumes of a pool that was added known. Returns the volumes that can't be served, with the reasons.
    pub(super) async fn serve_added(self: &Arc<Self>, number: usize) -> Vec<(String, NodeError)> {
        let mut unserved = Vec::new();
        for record in self.records(number) {
            self.settle_deadline(&record);
            if let Err(e) = self.publish(number, &record).await {
                unserved.push((record.name, e));
            }
        }
        let pool = self.pools.get(number);
        // To be asked before any other deletion can begin.
        let interrupted = interrupted_deletions(number, &pool);
        if !interrupted.is_empty() {
            let node = self.clone();
            tokio::spawn(async move { node.resume_deletions(interrupted).await });
        }
        self.tell_growth(&pool);
        let what = format!("{} is served: {}", pool_section(&pool.name), pool.device);
        self.events.add(Kind::Node, Severity::Info, None, what);
        unserved
    }

    /// Tells of a pool that was opened on a device that had become larger.
    pub(super) fn tell_growth(&self, pool: &RunningPool) {
        if let Some((from, to)) = pool.grown {
            let what = format!("{} has grown with its device, from {from} to {to} bytes", pool_section(&pool.name));
            self.events.add(Kind::Node, Severity::Info, None, what);
        }
    }

    /// Waits until a pool that was added has recovered, or has had the time to.
    pub(super) async fn added_recovered(&self, number: usize) {
        let mut health = self.pools.get(number).handle.health.clone();
        let ready = health.wait_for(|h| h.state != LayerState::Recovering);
        let _ = tokio::time::timeout(RECOVERY_TIME, ready).await; // one that is still recovering says so in its state
    }

    /// Removes a pool: withdraws its volumes, ends it in order and closes its devices. Its data stay there.
    ///
    /// # Errors
    /// If the configuration declares it, if clients use its volumes and aren't to be disconnected, if it didn't end in order, or if it takes
    /// longer to end than a node may: then it goes on ending.
    pub async fn remove_pool(self: &Arc<Self>, name: &str, disconnect: bool) -> Result<RemovedPool> {
        self.end_pool(name, disconnect, Leaves::Removed).await
    }

    /// Ends a pool on an RBD image, for another gateway: as [`Node::remove_pool`], but the configuration may go on declaring it. It isn't
    /// served until a reload or a start.
    ///
    /// # Errors
    /// As of [`Node::remove_pool`]; if the pool isn't on an RBD image, or its cache may have data that the image lacks.
    pub async fn release_pool(self: &Arc<Self>, name: &str, disconnect: bool) -> Result<RemovedPool> {
        self.end_pool(name, disconnect, Leaves::Released).await
    }

    /// Takes the lock of an RBD image away from its owner, for a pool that is configured and isn't served. A reload then serves the pool.
    ///
    /// # Errors
    /// If the pool is served, `config` doesn't declare it on an image, or the lock can't be taken.
    pub async fn break_lock(&self, name: &str, config: &Config) -> Result<()> {
        if self.pools.named(name).is_some_and(|(_, p)| p.has_lost_lock()) {
            return Err(NodeError::Conflict(lost_here(name)));
        }
        if self.serves_pool(name) {
            return Err(NodeError::Conflict(format!("pool `{name}` is served here already")));
        }
        let declared = config.pool.iter().find(|p| p.name.get_ref() == name);
        let pool = declared.ok_or_else(|| self.no_pool(name))?.clone();
        if pool.device.rbd.is_none() {
            return Err(not_on_an_image(name));
        }
        let owned = name.to_string();
        let broken = tokio::task::spawn_blocking(move || crate::rbd::break_lock(&owned, &pool.device));
        let owner = broken.await.map_err(super::error::failed)?.map_err(super::error::failed)?;
        if let Some(owner) = owner {
            let what =
                format!("{}: the image's lock was taken from {owner} by order, which is blocked", pool_section(name));
            self.events.add(Kind::Node, Severity::Warning, None, what);
        }
        Ok(())
    }

    async fn end_pool(self: &Arc<Self>, name: &str, disconnect: bool, leaves: Leaves) -> Result<RemovedPool> {
        let one = self.changing.lock().await;
        let (number, pool) = self.pools.named(name).ok_or_else(|| self.no_pool(name))?;
        if leaves == Leaves::Released {
            self.may_be_released(number, &pool)?;
        } else if let Some(place) = self.configured().declares_pool(name) {
            let what = format!(
                "pool `{name}` is declared in the configuration ({place}): take it and its volumes out there and reload, then remove it"
            );
            return Err(NodeError::Conflict(what));
        }
        if pool.handle.health.borrow().flush_failed && !disconnect {
            let what = format!(
                "pool `{name}` had a failed flush: writes since the last good one may be lost; see \"After a failed flush\" in \
                 docs/guides/backup-and-recover.md, or {} all the same",
                leaves.by_force(name)
            );
            return Err(NodeError::Conflict(what));
        }
        // Whatever can fail comes before the pool is taken out.
        let absent = match leaves {
            Leaves::Removed => None,
            Leaves::Released => {
                let why = format!(
                    "pool `{name}` was released for another gateway: take its sections out of the configuration, or take it back with \
                     `plimsoll pool take {name}`"
                );
                Some(RunningPool::absent(name, pool.device.clone(), why)?)
            }
        };
        let volumes = self.withdraw_all(number);
        let asked = pool.ask_soon(|reply| Command::Connections { of: ClientFilter::default(), reply }).await;
        let disconnected = match asked {
            Ok((some, n)) if n > 0 && !disconnect => {
                self.offer_all_again(&volumes);
                let what = format!(
                    "pool `{name}` is in use: {}: let them disconnect, or {}",
                    connected(&some, n),
                    leaves.by_force(name)
                );
                return Err(NodeError::Conflict(what));
            }
            Ok((_, n)) => n,
            // It has ended, or hangs.
            Err(_) if disconnect || pool.failed.is_some() => 0,
            Err(_) => {
                self.offer_all_again(&volumes);
                let what = format!(
                    "pool `{name}` doesn't answer: nobody knows whether its volumes are used; {} all the same",
                    leaves.by_force(name)
                );
                return Err(NodeError::Conflict(what));
            }
        };
        // Live settings of tenants outlive any one pool.
        if let Err(e) = self.share_tenants(Some(number)).await {
            self.offer_all_again(&volumes);
            return Err(e.about(&format!("pool `{name}` isn't {}", leaves.done())));
        }
        self.pools.take(number);
        match absent {
            None => self.forget_section(name),
            Some(absent) => _ = self.pools.put(absent),
        }
        // Another pool's volume of that name has none of them. Added again, the pool brings its own.
        volumes.iter().for_each(|v| self.forget_promise(&v.name));
        let _ = pool.handle.send(Command::Shutdown); // a pool that is gone has ended already
        drop(one); // others' changes need not wait
        let removed = RemovedPool {
            name: name.to_string(),
            device: pool.device.clone(),
            volumes: volumes.iter().map(|v| v.name.clone()).collect(),
            disconnected,
        };
        for (nqn, volume) in self.serving(&removed.volumes) {
            let what = format!(
                "subsystem `{nqn}`: its volume `{volume}` went with pool `{name}`: its hosts are refused until the pool is added again"
            );
            self.events.add(Kind::Node, Severity::Warning, None, what);
        }
        let closed = tokio::spawn(self.clone().close_removed(pool, volumes, leaves));
        let at_most = Duration::from(self.configured().config.control.drain.0);
        match tokio::time::timeout(at_most, closed).await {
            Ok(closed) => closed.map_err(super::error::failed)?.map(|()| removed),
            Err(_) => Err(NodeError::Failed(format!(
                "pool `{name}` is {} and hasn't ended within {} s (control.drain): a long flush, a client that takes no answers, or a \
                 device that doesn't answer. Its volumes are withdrawn, and its devices are closed when it has ended: an event tells that",
                leaves.done(),
                at_most.as_secs()
            ))),
        }
    }

    /// Checks that another gateway may have a pool.
    fn may_be_released(&self, number: usize, pool: &RunningPool) -> Result<()> {
        let name = &pool.name;
        if let Some(why) = &pool.failed {
            return Err(NodeError::Conflict(format!("pool `{name}` isn't served here: {why}")));
        }
        if pool.live().is_none_or(|live| live.config.device.rbd.is_none()) {
            return Err(not_on_an_image(name));
        }
        let behind = self.volumes_behind(number);
        if !behind.is_empty() {
            let what = format!(
                "pool `{name}`: only its cache may have the newest data of volumes {}: write them back first: `plimsoll volume cache NAME \
                 through` for each, `plimsoll cache flush {name}`, and wait until `plimsoll cache status` shows `may go`",
                behind.join(", ")
            );
            return Err(NodeError::Conflict(what));
        }
        Ok(())
    }

    /// Takes a pool's volumes out of the directory, so that no further client gets one.
    fn withdraw_all(&self, pool: usize) -> Vec<Volume> {
        self.directory_mut(|d| {
            let all: Vec<Volume> = d.volumes.values().filter(|v| v.pool == pool).cloned().collect();
            all.iter().for_each(|v| _ = d.volumes.remove(&v.name));
            all
        })
    }

    /// The subsystems of volumes, each with its volume.
    fn serving(&self, volumes: &[String]) -> Vec<(String, String)> {
        let of = |(nqn, s): (&String, &NvmeName)| {
            let volume = check_export(&s.export).ok()?;
            volumes.iter().any(|v| v == volume).then(|| (nqn.clone(), volume.to_string()))
        };
        self.directory_ref(|d| d.subsystems.iter().filter_map(of).collect())
    }

    fn offer_all_again(&self, volumes: &[Volume]) {
        self.directory_mut(|d| volumes.iter().for_each(|v| _ = d.volumes.insert(v.name.clone(), v.clone())));
    }

    /// Forgets the section of a removed pool, which the file hasn't any more.
    pub(super) fn forget_section(&self, name: &str) {
        let mut configured = (*self.configured()).clone();
        configured.config.pool.retain(|p| p.name.get_ref() != name);
        configured.config.undeclared.remove(name);
        *self.configured.write().expect("no panic while held") = Arc::new(configured);
    }

    /// Waits for the end of a removed pool, and closes its devices.
    async fn close_removed(
        self: Arc<Self>,
        pool: Arc<RunningPool>,
        volumes: Vec<Volume>,
        leaves: Leaves,
    ) -> Result<()> {
        let mut health = pool.handle.health.clone();
        while health.changed().await.is_ok() {}
        let (pools, section) = (self.pools.clone(), pool_section(&pool.name));
        // The thread's last flush doesn't tell: the kernel reports lost writes once.
        let lost = health.borrow().flush_failed.then(|| {
            "a flush failed: writes since the last good one may be lost; see \"After a failed flush\" in \
             docs/guides/backup-and-recover.md before you add it again"
                .to_string()
        });
        let closed = tokio::task::spawn_blocking(move || close(&pools, pool, volumes));
        let faults: Vec<String> = closed.await.map_err(super::error::failed)?.into_iter().chain(lost).collect();
        let what = match faults.join("; ") {
            none if none.is_empty() => {
                self.events.add(
                    Kind::Node,
                    Severity::Info,
                    None,
                    format!("{section} was {}: its devices are closed", leaves.done()),
                );
                return Ok(());
            }
            what => format!("{section} was {}, and didn't end in order: {what}", leaves.done()),
        };
        self.events.add(Kind::Node, Severity::Error, None, what.clone());
        Err(NodeError::Failed(what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Look;
    use rustix::fs::{FlockOperation, flock};

    /// An image that doesn't answer keeps no other pool from being served.
    #[tokio::test]
    async fn a_start_waits_for_images_as_long_as_it_serves_nothing() {
        let (_hangs, first) = oneshot::channel::<Result<u32>>();
        let (answers, second) = oneshot::channel();
        answers.send(Ok(7)).unwrap();
        let opened = opened_in_time(vec![(0, first), (1, second)], false, Duration::ZERO).await;
        assert!(matches!(opened[..], [(1, Ok(7))]));
        // The only one may take as long as it wants.
        let (late, only) = oneshot::channel();
        let opening = tokio::spawn(opened_in_time(vec![(0, only)], false, Duration::ZERO));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        late.send(Ok(8)).unwrap();
        assert!(matches!(opening.await.unwrap()[..], [(0, Ok(8))]));
    }

    /// A reload doesn't wait without end, and an earlier try doesn't compete with a later one.
    #[tokio::test]
    async fn an_image_that_does_not_answer_is_waited_for_so_long_and_opened_once() {
        let (_hangs, opened) = oneshot::channel();
        let why = opened_until(opened, Some(tokio::time::Instant::now())).await.err().unwrap().to_string();
        assert!(why.contains("hasn't answered"), "{why}");
        let pools = Arc::new(Pools::new().unwrap());
        let first = Turn::of("p", &pools).unwrap();
        assert!(Turn::of("p", &pools).is_none());
        let _other = Turn::of("q", &pools).unwrap();
        drop(first);
        assert!(Turn::of("p", &pools).is_some());
    }

    /// Its thread may be recovering, and writes.
    #[tokio::test]
    async fn a_pool_that_is_not_wanted_stays_locked_until_its_thread_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let section =
            |name| format!("[[pool]]\nname = \"{name}\"\ndevice = {{ file = \"{name}.img\", size = \"64MiB\" }}\n");
        let parse = |pools: &str| {
            let text = format!("[listen]\nunix = \"nbd.sock\"\n{pools}");
            Config::parse(&text, &dir.path().join("node.toml")).unwrap()
        };
        let node = Node::start(&parse(&section("p"))).await.unwrap();
        let both = parse(&(section("p") + &section("q")));
        let opened = node.open_new(&both).await.pop().unwrap().1.unwrap();
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let look: Look = Box::new(move |_, _| _ = held.recv());
        opened.pool.as_ref().unwrap().handle.send(Command::Look(look)).unwrap();
        drop(opened);
        let is_locked = || {
            let file = std::fs::File::open(dir.path().join("q.img")).unwrap();
            flock(&file, FlockOperation::NonBlockingLockShared).is_err()
        };
        assert!(is_locked());
        let why = node.open_new(&both).await.pop().unwrap().1.err().unwrap().to_string();
        assert!(why.contains("is still being removed"), "{why}");
        let_go.send(()).unwrap();
        node.pools.wait_for_leaving();
        assert!(!is_locked());
        drop(node.open_new(&both).await.pop().unwrap().1.unwrap());
        node.shut_down().unwrap();
        assert!(!is_locked());
    }
}
