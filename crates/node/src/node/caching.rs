//! The caches of a node's pools: modes of volumes, sizes, the record of which volumes are written back, and of failed devices.

use super::pool::RunningPool;
use super::{Node, NodeError, Result, blocking};
use crate::directory::Volume;
use crate::engine::{Command, PoolHandle, Report};
use crate::parts::{Part, cache};
use crate::store::PoolStore;
use plimsoll_base::CacheMode;
use plimsoll_cache::{Cache, CacheControl, CacheReport};
use plimsoll_stack::Addressed;
use plimsoll_store::{MetaView, VolumeRecord};
use std::io;
use std::sync::{Weak, mpsc};
use tokio::task::JoinSet;

/// Interval of checks whether volumes that left write-back mode are written back.
///
/// The state is polled, not waited for: a pool's thread doesn't write metadata, and no harm is done if a cache is free to go a
/// moment later.
const WRITTEN_BACK_INTERVAL: std::time::Duration = std::time::Duration::from_millis(300);
/// Time between two tries to note that a cache's device failed.
/// A store that can't be written tells nobody when it can be again; writes wait meanwhile.
const NOTE_AGAIN: std::time::Duration = std::time::Duration::from_secs(1);

impl Node {
    pub(super) fn must_have_cache(&self, volume: &Volume) -> Result<()> {
        let p = self.pools.get(volume.pool);
        let has = p.store.is_some() && p.cache_section().is_some();
        let what = || NodeError::Refused(format!("pool `{}` has no cache: configure [pool.cache]", p.name));
        has.then_some(()).ok_or_else(what)
    }

    /// Changes how a volume is cached, live: what only the cache has goes to the device first where that must be.
    pub(super) async fn put_cache(&self, pool: usize, name: &str, mode: CacheMode) -> Result<()> {
        let (store, name) = (self.pools.get(pool).store.clone().expect("it was checked"), name.to_string());
        let record = blocking(move || store.change().set_volume_cache(&name, Some(mode))).await?;
        self.publish(pool, &record).await
    }

    /// Records of each volume that left mode `back` that it is fully written back, as soon as it is: from then on the cache may be
    /// removed. The same of each volume that has nothing in a cache whose device failed. Runs as long as the node.
    pub async fn record_written_back_loop(&self) {
        // Dropped with the loop.
        let mut recording = JoinSet::new();
        loop {
            tokio::time::sleep(WRITTEN_BACK_INTERVAL).await;
            while recording.try_join_next().is_some() {}
            for (_, p) in self.pools.all() {
                recording.spawn(async move {
                    if let Err(error) = record_written_back(&p).await {
                        tracing::warn!(%error, "could not record that volumes are fully written back; retrying every second");
                    }
                });
            }
        }
    }

    /// Discards a volume's dirty cache data after the cache's device was lost (DATA LOSS). The volume continues with the older data
    /// of the pool's own device.
    pub async fn give_up(&self, pool: &str, name: &str) -> Result<()> {
        let n = self.pool_named(pool)?;
        let (_turn, volume) = self.volume_turn(name).await?;
        let p = self.pools.get(n);
        let (Some(store), true) = (p.store.clone(), p.cache_section().is_some() && volume.pool == n) else {
            let what = format!("pool `{pool}` has no cache, or volume `{name}` isn't in it");
            return Err(NodeError::Refused(what));
        };
        let cache = p.handle.look(cache::Cache::look).await.map_err(|_| p.gone())?;
        let state = cache.map_or("gone", |c| c.state);
        if !matches!(state, "broken" | "failed") {
            let what = format!(
                "the cache is {state}, and its device hasn't failed: have the volume written back with `plimsoll volume cache {name} \
                 through`"
            );
            return Err(NodeError::Conflict(what));
        }
        let owned = name.to_string();
        blocking(move || store.change().give_up(&owned)).await?;
        // As the store has it: other replicas have what this one lost, and clients must not read it before it's resynced.
        volume.replica.lost();
        let (id, generation) = (volume.key.id, volume.key.generation);
        p.tell(Addressed::new(&CacheControl::GiveUp { id, generation })).await
    }

    /// Names of a pool's volumes of which only the cache may have the latest.
    pub fn volumes_behind(&self, pool: usize) -> Vec<String> {
        let Some(store) = &self.pools.get(pool).store else { return Vec::new() };
        let store = store.view();
        store.volumes().filter(|v| store.may_be_behind(v)).map(|v| v.name.clone()).collect()
    }
}

/// Records that volumes of a pool are fully written back, if some are. Leaves it to the next time if the pool is being changed.
async fn record_written_back(p: &RunningPool) -> Result<()> {
    let (Some(store), Some(section)) = (p.store.clone(), p.cache_section()) else { return Ok(()) };
    let mode = section.mode;
    let leaving = move |store: &MetaView| -> Vec<plimsoll_base::VolumeKey> {
        // Without its cache a pool writes nothing back, whatever its volumes' modes are.
        let leaves = |v: &&VolumeRecord| {
            let is_back = v.cache.unwrap_or(mode) == CacheMode::Back && !store.cache().absent;
            !is_back && store.may_be_behind(v)
        };
        store.volumes().filter(leaves).map(|v| v.key).collect()
    };
    if store.failed().is_some() || leaving(&store.view()).is_empty() {
        return Ok(());
    }
    // As long as this is held no volume becomes write-back again. A pool whose device hangs isn't asked twice.
    let Some(_turn) = p.turns.now() else { return Ok(()) };
    let keys = leaving(&store.view());
    let volumes = p.look_soon(|stack, _| stack.layer::<Cache>().map_or(Vec::new(), |c| c.status().volumes)).await;
    let Ok(status) = volumes else { return Ok(()) };
    let is_home = |k: &&plimsoll_base::VolumeKey| status.iter().any(|v| v.key == **k && v.at_home);
    let home: Vec<u32> = keys.iter().filter(is_home).map(|k| k.id).collect();
    blocking(move || store.change().set_behind(&home, false)).await
}

/// Returns a recorder of the cache's reports. When the cache's device has failed, the pool's store records that the pool is served without
/// it and so the device's content is out of date ([`plimsoll_store::MetaStore::miss_cache`]), and the cache gets its answer. That waits for the device, so a thread does it, which ends with the pool.
///
/// # Errors
/// If there is no thread to be had: then the pool isn't served, as a failure could not be recorded.
pub(super) fn recorder(pool: String, store: Weak<PoolStore>, handle: PoolHandle) -> io::Result<Report> {
    // The answer to the first of several reports answers all.
    let (report, reports) = mpsc::sync_channel(1);
    let recording = move || {
        while reports.recv().is_ok() {
            let Some(answer) = recorded(&pool, &store, &handle) else { return };
            let (reply, _) = tokio::sync::oneshot::channel();
            let to = Addressed::new(&answer);
            let _ = handle.send(Command::Tell { to, reply }); // a pool that ended needs none
            tracing::error!(pool, "the cache's device failed; `plimsoll cache status` says what that means");
        }
    };
    std::thread::Builder::new().name("note".into()).spawn(recording)?;
    Ok(Box::new(move |to| {
        if let Some(CacheReport::DeviceFailed) = to.get() {
            let _ = report.try_send(()); // one that waits already is the same
        }
    }))
}

/// Records that the cache's device failed, and returns the answer to the cache; `None` if the pool has ended.
fn recorded(pool: &str, store: &Weak<PoolStore>, handle: &PoolHandle) -> Option<CacheControl> {
    loop {
        let store = store.upgrade()?; // none if the node has ended
        let Err(error) = store.change().miss_cache() else { return Some(CacheControl::FailureNoted) };
        if store.failed().is_some() {
            tracing::error!(pool, %error, "the cache device failed and the failure can't be recorded in the pool's metadata before a restart; writes fail until then");
            return Some(CacheControl::FailureUnrecordable);
        }
        drop(store);
        tracing::error!(pool, %error, "the cache device failed and the failure could not be recorded in the pool's metadata; writes wait, retrying every second");
        std::thread::sleep(NOTE_AGAIN);
        if handle.health.has_changed().is_err() {
            return None; // the pool has ended
        }
    }
}
