//! A pool on an RBD image that moves to another gateway: the image as this node sees it, and the write-back of a cache before the pool is
//! released.

use super::lifecycle::{RemovedPool, lost_here, not_on_an_image};
use super::pool::RunningPool;
use super::{Node, NodeError, Result, blocking};
use crate::config::{Config, PoolConfig};
use crate::directory::{ImagePath, NvmeName};
use crate::engine::{ClientFilter, Command};
use plimsoll_base::CacheMode;
use plimsoll_cache::{Cache, CacheControl};
use plimsoll_stack::Addressed;
use plimsoll_store::VolumeRecord;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval of checks whether a pool is written back. Its thread tells nobody.
const WRITTEN_BACK_INTERVAL: Duration = Duration::from_millis(50);
/// Time without progress after which the write-back before a release fails.
const STILL_TIME: Duration = Duration::from_secs(60);

/// A pool's RBD image as a node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ImageView {
    /// Description of the pool's device.
    pub device: String,
    /// True if the pool is served here.
    pub is_served: bool,
    /// Reason why it isn't served here, if the node knows one.
    pub why_not: Option<String>,
    /// UUID of the pool's device, from the image.
    pub device_uuid: Option<String>,
    /// Address of the client that has the image's exclusive lock.
    pub owner: Option<String>,
    /// Volumes of which only a cache may have the newest data: this node's if it serves the pool, otherwise one that isn't here. `None` if the
    /// metadata can't be read.
    pub needs_cache: Option<Vec<String>>,
    /// Connections to its volumes.
    pub connections: usize,
    /// Faults for which a start would refuse the pool. The lock isn't one of them.
    pub faults: Vec<String>,
    /// Subsystems of which this node is one of several paths.
    pub paths: Vec<PathView>,
}

/// A subsystem of a pool's volume with `path`, as it was configured at the node's start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathView {
    /// Its NQN.
    pub nqn: String,
    /// The node's number.
    pub path: u16,
    /// Its volume, with what hosts see of it.
    pub image: ImagePath,
}

impl ImageView {
    /// The client from which the lock may be taken by force; `None` if nobody has it. The lock of another image than the pool's, and of one
    /// that could not be served here then, stays: its owner would be blocked for nothing.
    ///
    /// # Errors
    /// The reason.
    pub(super) fn owner_to_block(&self, pool: &str, without_cache: bool) -> Result<Option<&str>> {
        let Some(owner) = self.owner.as_deref().filter(|_| self.faults.is_empty()) else {
            return match self.faults.join("; ") {
                none if none.is_empty() => Ok(None),
                faults => Err(NodeError::Conflict(format!(
                    "pool `{pool}` could not be served here, so no lock was taken, and nothing was changed: {faults}"
                ))),
            };
        };
        let device = &self.device;
        let refused = |why: String| {
            Err(NodeError::Conflict(format!(
                "pool `{pool}`: the lock of {device} isn't taken from client {owner}, and nothing was changed: {why}"
            )))
        };
        if self.device_uuid.is_none() {
            return refused("the image holds no pool. Compare `device` in both configurations".into());
        }
        let volumes = match &self.needs_cache {
            _ if without_cache => return Ok(Some(owner)),
            None => {
                return refused(
                    "its metadata can't be read, so nobody knows whether a cache has its newest data. Try again; to take it nevertheless, \
                     give `--without-cache`, too"
                        .into(),
                );
            }
            Some(volumes) => volumes.join(", "),
        };
        if volumes.is_empty() {
            return Ok(Some(owner));
        }
        refused(format!(
            "only a cache that isn't here may have the newest data of volumes {volumes}. Let the old gateway go on, and move the pool, or attach \
             its cache here. If that cache is lost: `--without-cache`, by the steps of \"A write-back cache whose gateway is gone\" in \
             docs/guides/ceph.md, which LOSE these data"
        ))
    }
}

impl Node {
    /// The image of a pool that is served here. `None` if the pool isn't served here.
    ///
    /// # Errors
    /// If the pool isn't on an RBD image.
    pub async fn served_image(&self, name: &str) -> Result<Option<ImageView>> {
        let Some((number, pool)) = self.pools.named(name) else { return Ok(None) };
        let Some(live) = pool.live() else { return Ok(None) };
        if live.config.device.rbd.is_none() {
            return Err(not_on_an_image(name));
        }
        if pool.has_lost_lock() {
            return Ok(None);
        }
        // One that doesn't answer can't be released either, which says so.
        let asked = pool.ask_soon(|reply| Command::Connections { of: ClientFilter::default(), reply }).await;
        Ok(Some(ImageView {
            device: pool.device.clone(),
            is_served: true,
            why_not: None,
            device_uuid: pool.device_uuid.map(|uuid| uuid.to_string()),
            owner: pool.own_address(),
            needs_cache: Some(self.volumes_behind(number)),
            connections: asked.map_or(0, |(_, n)| n),
            faults: Vec::new(),
            paths: self.paths_of(name),
        }))
    }

    /// The image of a pool that isn't served here, as `config` declares it. Nothing is changed.
    ///
    /// # Errors
    /// If nobody knows the pool here, or it isn't on an RBD image.
    pub async fn declared_image(&self, name: &str, config: &Config) -> Result<ImageView> {
        let known = self.pools.named(name).map(|(_, pool)| pool);
        let why_not = known.as_ref().and_then(|pool| match pool.has_lost_lock() {
            true => Some(lost_here(name)),
            false => pool.failed.clone(),
        });
        let declared = config.pool.iter().find(|p| p.name.get_ref() == name).cloned();
        let view = match (declared, &known) {
            (Some(p), _) if p.device.rbd.is_none() => return Err(not_on_an_image(name)),
            (Some(p), _) => {
                tokio::task::spawn_blocking(move || look_at_image(&p)).await.map_err(super::error::failed)?
            }
            (None, Some(pool)) => {
                let faults = vec![format!("the configuration has no pool `{name}`")];
                ImageView { device: pool.device.clone(), faults, ..ImageView::default() }
            }
            (None, None) => return Err(self.no_pool(name)),
        };
        // It could not be served before a restart.
        let lost = known.filter(|pool| pool.has_lost_lock()).map(|_| lost_here(name));
        let faults = view.faults.into_iter().chain(lost).collect();
        Ok(ImageView { why_not, faults, paths: self.paths_of(name), ..view })
    }

    /// The subsystems of a pool's volumes of which this node is one of several paths.
    fn paths_of(&self, pool: &str) -> Vec<PathView> {
        let path = |(nqn, s): (&String, &NvmeName)| {
            let image = s.image.clone().filter(|image| image.pool == pool)?;
            Some(PathView { nqn: nqn.clone(), path: s.path?, image })
        };
        self.directory_ref(|d| d.subsystems.iter().filter_map(path).collect())
    }

    /// Writes a pool's cache back while its clients go on, then releases it as [`Node::release_pool`] does.
    ///
    /// Volumes in mode `back` are written through from the beginning. If the pool isn't released, or this is dropped before, they are written
    /// back again. Their recorded modes don't change: they hold at the next gateway that has a cache.
    ///
    /// # Errors
    /// As of [`Node::release_pool`]; if the cache can't be written back.
    pub async fn write_back_and_release(self: &Arc<Self>, name: &str, disconnect: bool) -> Result<RemovedPool> {
        let writing_through = self.write_back(name).await?;
        // It goes on without whoever waits for it: the pool must not stay half released.
        let (node, name) = (self.clone(), name.to_string());
        let released = tokio::spawn(async move {
            let released = node.release_pool(&name, disconnect).await;
            drop(writing_through);
            released
        });
        released.await.map_err(super::error::failed)?
    }

    /// Serves a pool's volumes without write-back, and waits until its image has all that was written.
    async fn write_back(self: &Arc<Self>, name: &str) -> Result<Option<WritingThrough>> {
        let Some((number, pool)) = self.pools.named(name) else { return Err(self.no_pool(name)) };
        let (Some(store), true) = (pool.store.clone(), !self.volumes_behind(number).is_empty()) else {
            return Ok(None);
        };
        let one = self.turn_to_record(number).await?;
        if pool.writes_through.swap(true, Relaxed) {
            return Err(NodeError::Conflict(format!("pool `{name}` is being written back for another release")));
        }
        let guard = WritingThrough { node: self.clone(), pool: Arc::downgrade(&pool) };
        for record in self.records(number) {
            self.publish(number, &record).await?;
        }
        drop(one);
        pool.tell(Addressed::new(&CacheControl::Flush)).await?;
        let (mut left, mut moved_at) = (u64::MAX, Instant::now());
        loop {
            let behind: Vec<VolumeRecord> = {
                let view = store.view();
                view.volumes().filter(|v| view.may_be_behind(v)).cloned().collect()
            };
            let status = pool.look_soon(|stack, _| stack.layer::<Cache>().map(Cache::status)).await;
            let status = status.map_err(|_| pool.gone())?;
            let Some(status) = status.filter(|s| s.state == "ready") else {
                let what =
                    format!("pool `{name}`: its cache has failed, and can't be written back: `plimsoll cache status`");
                return Err(NodeError::Conflict(what));
            };
            let is_home = |v: &VolumeRecord| status.volumes.iter().any(|s| s.key == v.key && s.at_home);
            if behind.iter().all(is_home) {
                let ids: Vec<u32> = behind.iter().map(|v| v.key.id).collect();
                blocking(move || store.change().set_behind(&ids, false)).await?;
                return Ok(Some(guard));
            }
            if status.dirty < left {
                (left, moved_at) = (status.dirty, Instant::now());
            } else if moved_at.elapsed() > STILL_TIME {
                let what = format!(
                    "pool `{name}`: {left} extents of its cache can't be written back, and it isn't released: `plimsoll cache status {name}` \
                     has the reason"
                );
                return Err(NodeError::Failed(what));
            }
            tokio::time::sleep(WRITTEN_BACK_INTERVAL).await;
        }
    }

    /// Serves a pool's volumes with write-back again, after a release that came to nothing.
    async fn write_back_again(self: &Arc<Self>, pool: &RunningPool) -> Result<()> {
        let is_it = |node: &Node| node.pools.named(&pool.name).filter(|(_, now)| std::ptr::eq(&**now, pool));
        let (Some(store), Some((number, _))) = (pool.store.clone(), is_it(self)) else {
            return Ok(()); // it was released
        };
        let _turn = self.turn_to_record(number).await?;
        let records = self.records(number);
        // Before the first write that only the cache has.
        let ids: Vec<u32> =
            records.iter().filter(|r| pool.mode_of(r) == Some(CacheMode::Back)).map(|r| r.key.id).collect();
        blocking(move || store.change().set_behind(&ids, true)).await?;
        pool.writes_through.store(false, Relaxed);
        for record in records {
            self.publish(number, &record).await?;
        }
        Ok(())
    }
}

/// A pool whose volumes are written through, whatever their modes are, until this is dropped.
struct WritingThrough {
    node: Arc<Node>,
    pool: Weak<RunningPool>,
}

impl Drop for WritingThrough {
    fn drop(&mut self) {
        let (node, pool) = (self.node.clone(), self.pool.clone());
        // A node that ends serves nothing any more.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let Some(pool) = pool.upgrade() else { return };
            if let Err(error) = node.write_back_again(&pool).await {
                let pool = &pool.name;
                tracing::warn!(pool, %error, "volumes in mode `back` stay written through until the node is restarted");
            }
        });
    }
}

impl RunningPool {
    /// A volume's recorded cache mode, or the pool's. `None` without a cache.
    fn mode_of(&self, record: &VolumeRecord) -> Option<CacheMode> {
        Some(record.cache.unwrap_or(self.cache_section()?.mode))
    }

    /// A volume's record by which its requests are served: without write-back while the pool's cache is emptied for a release.
    pub(super) fn as_served(&self, record: &VolumeRecord) -> VolumeRecord {
        let is_back = self.mode_of(record) == Some(CacheMode::Back);
        let cache = if is_back && self.writes_through.load(Relaxed) { Some(CacheMode::Through) } else { record.cache };
        VolumeRecord { cache, ..record.clone() }
    }
}

/// Looks at an image that another client may have locked. Blocks, for as long as the cluster takes.
pub(super) fn look_at_image(config: &PoolConfig) -> ImageView {
    let seen = crate::look::look(config);
    let mut faults: Vec<String> = seen.errors.iter().map(ToString::to_string).collect();
    let found = crate::rbd::survey(config, &crate::look::expect(config));
    if let Err(e) = &found
        && faults.is_empty()
    {
        faults.push(e.to_string());
    }
    let found = found.unwrap_or_default();
    ImageView {
        device: config.device.label(),
        device_uuid: found.device_uuid.map(|uuid| uuid.to_string()),
        owner: found.owner,
        needs_cache: found.behind.map(|volumes| if found.has_its_cache { Vec::new() } else { volumes }),
        faults,
        ..ImageView::default()
    }
}
