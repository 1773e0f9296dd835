//! A change of a volume, of one or several keys. All that can be refused is refused before anything is done.

use super::{Node, NodeError, Result, blocking};
use crate::config::check_deadline;
use crate::directory::{Volume, VolumePromise};
use crate::replica::Excluded;
use plimsoll_base::{CacheMode, OnBusy, Span};

/// A change of a volume; `None`: as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumePatch {
    /// Its new name.
    pub rename: Option<String>,
    /// Its step as one of several replicas.
    pub replica: Option<ReplicaStep>,
    /// Its cache mode.
    pub cache: Option<CacheMode>,
    /// The deadline of connections from then on that don't say their own; `Some(None)`: their tenant's. Also after later starts, until
    /// something else is configured.
    pub deadline: Option<Option<Span>>,
    /// Answer to a read that would miss that deadline.
    pub busy: Option<OnBusy>,
    /// Its new size. I/O goes on, and clients see the new size when they connect again.
    pub size_bytes: Option<u64>,
}

/// The keys of a change, as far as it has come.
#[derive(Default)]
struct Progress {
    done: Vec<&'static str>,
    under_way: Vec<&'static str>,
}

impl Progress {
    /// The keys before these are done.
    fn begin(&mut self, keys: impl IntoIterator<Item = &'static str>) {
        self.done.append(&mut self.under_way);
        self.under_way.extend(keys);
    }
}

/// A step of a volume as one of several replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplicaStep {
    /// [`crate::replica::Replica::catch_up`].
    CatchUp {
        /// Number of the attempt.
        attempt: u32,
        /// A peer's content is copied over the volume's.
        copies: bool,
    },
    /// [`crate::replica::Replica::caught_up`].
    CaughtUp {
        /// Number of the attempt.
        attempt: u32,
        /// By how much the peer's generation is larger.
        add: i64,
    },
}

impl VolumePatch {
    fn is_of_the_replica_alone(&self) -> bool {
        self.replica.is_some() && *self == VolumePatch { replica: self.replica, ..VolumePatch::default() }
    }
}

impl Node {
    /// Changes a volume, live.
    ///
    /// # Errors
    /// If a key can't be changed so: then none was. If the storage fails in the middle, the error names the keys that were changed.
    pub async fn change_volume(&self, name: &str, mut patch: VolumePatch) -> Result<()> {
        // A resync's step alone waits for no other volume's change: the device may be slow.
        let (_turn, volume) = match patch.is_of_the_replica_alone() {
            true => (None, self.volume_named(name)?),
            false => self.volume_turn(name).await.map(|(turn, volume)| (Some(turn), volume))?,
        };
        patch.rename = patch.rename.filter(|new| *new != name);
        let promise = self.check_patch(&volume, &patch)?;
        let _new_name = patch.rename.as_ref().map(|new| self.take_name(new, None)).transpose()?;
        let mut progress = Progress::default();
        let applied = self.apply_patch(volume, patch, promise, &mut progress).await;
        applied.map_err(|e| e.after(&progress.done, &progress.under_way))
    }

    /// Refuses what can't be done. Returns the volume's new promise, if it gets one.
    fn check_patch(&self, volume: &Volume, patch: &VolumePatch) -> Result<Option<Option<VolumePromise>>> {
        if let Some(new) = &patch.rename {
            self.check_rename(volume, new)?;
        }
        if let Some(ReplicaStep::CaughtUp { attempt, .. }) = patch.replica
            && !volume.replica.is_caught_up_by(attempt)
        {
            return Err(superseded());
        }
        if let Some(ReplicaStep::CatchUp { copies, .. }) = patch.replica {
            volume.replica.may_catch_up(copies).map_err(|e| excluded(&volume.name, e))?;
        }
        if patch.cache.is_some() {
            self.must_have_cache(volume)?;
        }
        let was = self.directory_ref(|d| d.promises.volumes.get(&volume.name).copied());
        let promise = match (patch.deadline, patch.busy) {
            (None, None) => None,
            (None, Some(busy)) => {
                let missing = "it has no deadline of its own, which `busy` is for: set that too";
                let was = was.ok_or_else(|| NodeError::Refused(missing.into()))?;
                Some(Some(VolumePromise { busy, ..was }))
            }
            (Some(None), Some(_)) => {
                let what = "`busy` is for a deadline, which `deadline_us` 0 takes away: send one of them";
                return Err(NodeError::Refused(what.into()));
            }
            (Some(deadline), busy) => {
                let busy = busy.or(was.map(|p| p.busy)).unwrap_or_default();
                Some(deadline.map(|deadline| VolumePromise { deadline, busy }))
            }
        };
        let deadline = promise.flatten().map(|p| p.deadline);
        deadline.map_or(Ok(()), check_deadline)?;
        if let Some(size_bytes) = patch.size_bytes {
            self.check_growth(volume, size_bytes)?;
        }
        Ok(promise)
    }

    /// Carries out a checked change, and notes each key before it is changed. A key's change may be stored and its pool end before the rest of
    /// it is done.
    async fn apply_patch(
        &self,
        volume: Volume,
        patch: VolumePatch,
        promise: Option<Option<VolumePromise>>,
        progress: &mut Progress,
    ) -> Result<()> {
        let (pool, mut name) = (volume.pool, volume.name.clone());
        // First: a client that uses the volume, which nobody knows before it's withdrawn, is in the way of its new name only.
        if let Some(new) = patch.rename {
            progress.begin(["rename"]);
            self.put_name(volume, &new).await?;
            name = new;
        }
        progress.begin(patch.replica.map(|_| "replica"));
        match patch.replica {
            None => {}
            Some(ReplicaStep::CatchUp { attempt, copies }) => {
                // Again, under the lock: a client may have come since the check.
                let begun = self.change_replica(&name, move |r| r.catch_up(attempt, copies)).await?;
                begun.map_err(|e| excluded(&name, e))?;
            }
            Some(ReplicaStep::CaughtUp { attempt, add }) => {
                let caught_up = self.change_replica(&name, move |r| r.caught_up(attempt, add)).await?;
                caught_up.then_some(()).ok_or_else(superseded)?;
            }
        }
        if let Some(mode) = patch.cache {
            progress.begin(["cache"]);
            self.put_cache(pool, &name, mode).await?;
        }
        if let Some(promise) = promise {
            progress.begin(patch.deadline.map(|_| "deadline_us").into_iter().chain(patch.busy.map(|_| "busy")));
            self.put_promise(pool, &name, promise).await?;
        }
        // Last: it can't be undone.
        if let Some(size_bytes) = patch.size_bytes {
            progress.begin(["size_bytes"]);
            self.put_size(pool, &name, size_bytes).await?;
        }
        Ok(())
    }

    fn check_growth(&self, volume: &Volume, size_bytes: u64) -> Result<()> {
        if size_bytes < volume.size_bytes {
            let what = format!("volume `{}` has {} bytes; volumes never shrink", volume.name, volume.size_bytes);
            return Err(NodeError::Refused(what));
        }
        match &self.pools.get(volume.pool).store {
            Some(store) => store.view().grown(&volume.name, size_bytes).map(drop).map_err(super::error::of_store),
            None => Err(NodeError::Refused("a volume on a null device doesn't grow".into())),
        }
    }

    async fn put_size(&self, pool: usize, name: &str, size_bytes: u64) -> Result<()> {
        let (store, name) = (self.pools.get(pool).store.clone().expect("it was checked"), name.to_string());
        let record = blocking(move || store.change().grow_volume(&name, size_bytes)).await?;
        self.publish(pool, &record).await
    }
}

fn excluded(name: &str, why: Excluded) -> NodeError {
    NodeError::Conflict(format!("volume `{name}` {why}"))
}

fn superseded() -> NodeError {
    NodeError::Conflict("it isn't being caught up by this attempt, or a writer was lost meanwhile: begin anew".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::Command;

    const TEXT: &str = r#"
        [listen]
        unix = "nbd.sock"
        [[pool]]
        name = "p"
        device = { file = "p.img", size = "64MiB" }
        [[tenant]]
        name = "a"
        class = "best-effort"
        [[volume]]
        name = "v"
        pool = "p"
        size = "1MiB"
        tenant = "a"
    "#;

    /// The size is stored when the pool turns out to have ended: the error names it, after the key that was changed before.
    #[tokio::test]
    async fn a_key_that_was_being_changed_when_its_pool_ended_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(&Config::parse(TEXT, &dir.path().join("node.toml")).unwrap()).await.unwrap();
        let pool = node.pools.get(0);
        pool.handle.send(Command::Shutdown).unwrap();
        pool.join().unwrap();
        let deadline = Some(Some(Span::from_millis(5)));
        let patch = VolumePatch { deadline, size_bytes: Some(2 << 20), ..VolumePatch::default() };
        let said = node.change_volume("v", patch).await.unwrap_err().to_string();
        let named = "these keys were changed before: deadline_us; this one may have been changed: size_bytes";
        assert!(said.contains(named), "{said}");
        assert_eq!(pool.store.as_ref().unwrap().view().volume("v").unwrap().size_bytes, 2 << 20, "it was stored");
    }
}
