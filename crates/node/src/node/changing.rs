//! The locks of changes, and the notes on changes that wait for a device.
//!
//! | lock | what it protects | held while |
//! | --- | --- | --- |
//! | a pool's turn ([`Turn`]) | the order of a pool's changes: its metadata, and the volumes, settings and terms that follow from them in the directory and in the pool's thread | the change is under way, also while it waits for the pool's device |
//! | the node's ([`Node::deciding`]) | what is judged together: the promises of tenants against slots and cores, the list of pools, the configuration | nothing waits for a device |
//!
//! So a device that hangs stops the changes of its own pool. A turn comes before the node's lock, and of several pools' turns the lower
//! number comes first. A tenant is kept in every pool: its change has all turns until it holds, so that nobody gives a volume to a tenant
//! that is being changed.
//!
//! Results of judgements that aren't in the directory yet are in [`Underway`], and all judgements count them: names of volumes that are
//! made, renamed or deleted, slots of new volumes, promises of tenants.

use super::fit::Promised;
use super::pool::RunningPool;
use super::{Node, NodeError, Result};
use crate::directory::Volume;
use crate::engine::PermitLimits;
use plimsoll_base::Class;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

/// Time that a change waits for those before it. A change takes milliseconds; one that takes longer than this waits for a device that hangs.
pub(super) const TURN_TIME: Duration = Duration::from_secs(5);

/// The turns of a pool's changes: one at a time.
#[derive(Default)]
pub(super) struct Turns {
    lock: Arc<tokio::sync::Mutex<()>>,
    /// Begin of the change that is under way.
    since: Arc<Mutex<Option<Instant>>>,
}

/// The turn to change a pool, until it is dropped.
pub(super) struct Turn {
    _lock: OwnedMutexGuard<()>,
    since: Arc<Mutex<Option<Instant>>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Before the lock: the next one's begin stays.
        *self.since.lock().expect("no panic while held") = None;
    }
}

impl Turns {
    fn begin(&self, lock: OwnedMutexGuard<()>) -> Turn {
        *self.since.lock().expect("no panic while held") = Some(Instant::now());
        Turn { _lock: lock, since: self.since.clone() }
    }

    /// The turn, unless a change is under way.
    pub(super) fn now(&self) -> Option<Turn> {
        Some(self.begin(self.lock.clone().try_lock_owned().ok()?))
    }

    /// Waits for the turn; `None` if those before take too long.
    async fn soon(&self) -> Option<Turn> {
        let lock = tokio::time::timeout(TURN_TIME, self.lock.clone().lock_owned()).await.ok()?;
        Some(self.begin(lock))
    }

    /// Time for which a change has been under way.
    pub(super) fn busy_for(&self) -> Option<Duration> {
        self.since.lock().expect("no panic while held").map(|since| since.elapsed())
    }
}

/// A pool with its number, and the turn to change it.
pub(super) type PoolTurn = (usize, Arc<RunningPool>, Turn);

/// The turn to change a volume, with the note of its name.
pub(super) type VolumeTurn = (Turn, Noted);

/// Results of judgements that aren't in the directory yet.
#[derive(Default)]
pub(super) struct Underway {
    /// Names of volumes that are made, changed or deleted; of a new volume its pool and its tenant.
    names: BTreeMap<String, Option<(usize, String)>>,
    /// Promises of tenants that are being recorded.
    promises: Promised,
}

/// A note, until it is dropped.
pub(super) struct Noted {
    all: Arc<Mutex<Underway>>,
    name: String,
    is_promise: bool,
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut all = self.all.lock().expect("no panic while held");
        match self.is_promise {
            true => drop(all.promises.remove(&self.name)),
            false => drop(all.names.remove(&self.name)),
        }
    }
}

impl Node {
    /// Waits for the turn to change a pool.
    ///
    /// # Errors
    /// If an earlier change of it takes too long, or it was removed meanwhile.
    pub(super) async fn turn_of(&self, number: usize) -> Result<Turn> {
        let pool = self.pools.get(number);
        let turn = pool.turns.soon().await.ok_or_else(|| is_changing(&pool))?;
        match Arc::ptr_eq(&pool, &self.pools.get(number)) {
            true => Ok(turn),
            false => Err(NodeError::NotFound(format!("pool `{}` was removed meanwhile", pool.name))),
        }
    }

    /// The refusal of a change of a pool whose change under way waits for a device that hangs.
    pub(super) fn hangs(&self, pool: &str) -> Option<NodeError> {
        let (_, pool) = self.pools.named(pool)?;
        let is_stuck = pool.turns.busy_for().is_some_and(|busy| busy >= TURN_TIME);
        is_stuck.then(|| is_changing(&pool))
    }

    /// The same for a change of the pool's metadata.
    ///
    /// # Errors
    /// Also if an earlier change of those failed half-way.
    pub(super) async fn turn_to_record(&self, number: usize) -> Result<Turn> {
        let turn = self.turn_of(number).await?;
        can_record(&self.pools.get(number))?;
        Ok(turn)
    }

    /// Waits for the turns of all pools, for a change that each of them keeps.
    ///
    /// # Errors
    /// If an earlier change of one of them takes too long.
    pub(super) async fn turns_of_all(&self) -> Result<Vec<PoolTurn>> {
        loop {
            let mut all = Vec::new();
            for (number, pool) in self.pools.all() {
                let turn = pool.turns.soon().await.ok_or_else(|| of_tenants(is_changing(&pool)))?;
                can_record(&pool).map_err(of_tenants)?;
                all.push((number, pool, turn));
            }
            // Pools come and go while this waits.
            let now = self.pools.all();
            let are_all = now.len() == all.len() && now.iter().zip(&all).all(|((_, a), (_, b, _))| Arc::ptr_eq(a, b));
            if are_all {
                return Ok(all);
            }
        }
    }

    /// Waits for the turn to change a volume, and notes its name: nobody else gets it before the change has ended.
    ///
    /// # Errors
    /// If there is no such volume, or as of [`Node::turn_of`].
    pub(super) async fn volume_turn(&self, name: &str) -> Result<(VolumeTurn, Volume)> {
        loop {
            let pool = self.volume_named(name)?.pool;
            let turn = self.turn_to_record(pool).await?;
            // It may have been deleted, and made anew elsewhere.
            let volume = self.volume_named(name)?;
            if volume.pool == pool {
                let noted = self.note_name(name, None).ok_or_else(|| is_underway(name))?;
                return Ok(((turn, noted), volume));
            }
        }
    }

    /// Notes the name of a volume that is to be made in a pool for a tenant, or the new name of one.
    ///
    /// # Errors
    /// If there is such a volume, or it is just made, renamed or deleted; or if a late pool may have one.
    pub(super) fn take_name(&self, name: &str, of_new: Option<(usize, &str)>) -> Result<Noted> {
        // Before the pools are asked: one that isn't late any more is among them.
        self.must_be_free_of_late_pools(name, of_new.map(|(pool, _)| pool))?;
        let of_new = of_new.map(|(pool, tenant)| (pool, tenant.to_string()));
        let noted = self.note_name(name, of_new).ok_or_else(|| is_underway(name))?;
        // In this order: the name is in one of the two as long as the other change goes on.
        if self.directory_ref(|d| d.volumes.contains_key(name)) {
            return Err(NodeError::Conflict(format!("volume `{name}` exists already")));
        }
        match self.pools_with(name).first() {
            Some(pool) => Err(NodeError::Conflict(format!(
                "volume `{name}` exists already in pool `{}`, where it isn't served: `plimsoll status` tells why",
                self.pools.get(*pool).name
            ))),
            None => Ok(noted),
        }
    }

    fn note_name(&self, name: &str, of_new: Option<(usize, String)>) -> Option<Noted> {
        let mut all = self.underway.lock().expect("no panic while held");
        if all.names.contains_key(name) {
            return None;
        }
        all.names.insert(name.to_string(), of_new);
        Some(Noted { all: self.underway.clone(), name: name.to_string(), is_promise: false })
    }

    /// Names and tenants of the volumes that are being made in a pool.
    pub(super) fn being_made(&self, pool: usize) -> Vec<(String, String)> {
        let all = self.underway.lock().expect("no panic while held");
        let mine = all.names.iter().filter_map(|(name, new)| Some((name, new.as_ref()?)));
        mine.filter(|(_, (p, _))| *p == pool).map(|(name, (_, tenant))| (name.clone(), tenant.clone())).collect()
    }

    /// Notes a tenant's promise that is being recorded.
    pub(super) fn note_promise(&self, tenant: &str, class: Class, permits: PermitLimits) -> Noted {
        let mut all = self.underway.lock().expect("no panic while held");
        all.promises.insert(tenant.to_string(), (class, permits));
        Noted { all: self.underway.clone(), name: tenant.to_string(), is_promise: true }
    }

    /// Promises of tenants that are being recorded.
    pub(super) fn being_promised(&self) -> Promised {
        self.underway.lock().expect("no panic while held").promises.clone()
    }
}

/// Refuses a change of a pool whose metadata can't be changed.
fn can_record(pool: &RunningPool) -> Result<()> {
    match pool.metadata_failed() {
        None => Ok(()),
        Some(why) => Err(NodeError::Failed(metadata_failed(&pool.name, why))),
    }
}

/// The text for a pool whose metadata can't be changed until it is opened again.
pub(crate) fn metadata_failed(pool: &str, why: &str) -> String {
    format!(
        "pool `{pool}`: an earlier change of its metadata failed ({why}): connected clients are served; new ones may be refused, and changes \
         of its volumes, of its settings and of tenants are. Check the device and the kernel's log, then restart the node, which opens the metadata anew"
    )
}

/// The refusal of a change of a tenant, which each pool records, with the way that needs none of them.
fn of_tenants(e: NodeError) -> NodeError {
    e.about("tenants are kept in every pool").with(
        "meanwhile a tenant that was never changed live can be changed by its section of the configuration and `plimsoll reload`, for all pools",
    )
}

/// The refusal of a change whose pool has one that doesn't end.
fn is_changing(pool: &RunningPool) -> NodeError {
    let since = pool.turns.busy_for().map_or(TURN_TIME.as_secs(), |busy| busy.as_secs());
    NodeError::Conflict(format!(
        "an earlier change of pool `{}` hasn't ended for {since} s: its device may hang. Nothing was changed. Check the device and the \
         kernel's log, then try again",
        pool.name
    ))
}

fn is_underway(name: &str) -> NodeError {
    NodeError::Conflict(format!(
        "volume `{name}` is just being made, changed or deleted: try again when that has ended"
    ))
}
