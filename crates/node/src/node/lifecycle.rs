//! Pools that are added and removed while the node serves.

use super::changing::Turn;
use super::closing::{close, discard};
use super::moving::look_at_image;
use super::opening::{IMAGES_TIME, OpenedPool, Opening, OpeningTurn, answered, open_on_thread, opened_until};
use super::pool::RunningPool;
use super::volumes::connected;
use super::{Node, NodeError, Result, interrupted_deletions};
use crate::config::{Config, PoolConfig};
use crate::directory::{NvmeName, Volume, check_export};
use crate::engine::watchdog::Watchdog;
use crate::engine::{ClientFilter, Command};
use crate::events::{Kind, Severity};
use crate::reload::pool_section;
use plimsoll_stack::LayerState;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that a reload waits for the recovery of a pool that it added. Beyond it the pool's clients are refused until it has recovered.
const RECOVERY_TIME: Duration = Duration::from_secs(5);

/// New pools: those that were opened or have failed, and those that are late.
pub(super) type OpenedNew = (Vec<(PoolConfig, Result<OpenedPool>)>, Vec<(PoolConfig, Opening)>);

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
    /// Time from the withdrawal of its volumes until its devices were closed.
    pub closed_in: Duration,
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

/// The text for a pool whose image another client has taken while the pool was served here.
pub(crate) fn lost_here(name: &str) -> String {
    format!(
        "pool `{name}`: the lock of its RBD image was lost here, and it serves nobody: restart the node to have it again"
    )
}

/// The error of an order that is for pools on RBD images.
pub(super) fn not_on_an_image(name: &str) -> NodeError {
    NodeError::Refused(format!("pool `{name}` isn't on an RBD image, which another gateway could serve"))
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

    /// Opens the pools of a configuration that aren't served, each on a thread of its own: a device may be slow, or hang. Returns those that
    /// were opened or have failed, and those whose devices haven't answered after `at_most`, which are late from now on.
    pub(super) async fn open_new(&self, config: &Config, at_most: Duration) -> OpenedNew {
        let (begun, mut opening) = (Instant::now(), Vec::new());
        // One that only the earlier file had was served a moment ago, and was removed since.
        let is_wanted = |p: &&PoolConfig| !config.undeclared.contains(p.name.get_ref());
        // Another try at the device of one that is late would only hang, too.
        let is_free =
            |p: &&PoolConfig| !self.serves_pool(p.name.get_ref()) && self.pools.late(p.name.get_ref()).is_none();
        for p in config.pool.iter().filter(is_wanted).filter(is_free) {
            opening.push((p.clone(), self.open_aside(p.clone(), config)));
        }
        let (mut done, mut late) = (Vec::new(), Vec::new());
        for (p, opened) in opening {
            let opened = match opened {
                // An image's lock isn't taken behind the operator's back: another gateway may be about to serve it.
                Ok(opened) if p.device.rbd.is_some() => opened_until(opened, Some((begun + IMAGES_TIME).into())).await,
                Ok(mut opened) => match tokio::time::timeout_at((begun + at_most).into(), &mut opened).await {
                    Ok(opened) => answered(opened),
                    Err(_) => {
                        self.pools.is_late(&p, begun);
                        late.push((p, opened));
                        continue;
                    }
                },
                Err(e) => Err(e),
            };
            done.push((p, opened));
        }
        (done, late)
    }

    fn open_aside(&self, p: PoolConfig, config: &Config) -> Result<Opening> {
        let name = p.name.get_ref().clone();
        if self.pools.leaving().iter().any(|(leaving, _)| leaving.name == name) {
            let what = "one of its name is still being removed: reload again when that is done";
            return Err(NodeError::Conflict(what.into()));
        }
        open_on_thread(p, config, self.pools.clone(), self.directory.clone(), None)
    }

    /// Gives a pool that was opened its number, and returns the turn to change it: nobody else has it before its volumes are served. One that
    /// can't be served has a number, too, and answers nobody.
    pub(super) async fn put_pool(&self, config: &PoolConfig, opened: Result<OpenedPool>) -> Result<(usize, Turn)> {
        let opened = opened.and_then(|opened| {
            self.watch_host(std::slice::from_ref(config))?;
            opened.take()
        });
        let (pool, _opening) = match opened {
            Ok(taken) => taken,
            Err(e) => return Err(self.put_failed(config, e)),
        };
        self.introduce_tenants(&pool);
        let turn = pool.turns.now().expect("nobody knows the pool yet");
        let number = self.pools.put(pool);
        let Err(e) = self.settle_settings(number).await else { return Ok((number, turn)) };
        // In this order: its name is in one of the lists at any time.
        discard(self.pools.clone(), self.pools.get(number));
        Err(self.put_failed(config, e))
    }

    pub(super) fn put_failed(&self, config: &PoolConfig, e: NodeError) -> NodeError {
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
    pub(super) async fn serve_added(self: &Arc<Self>, number: usize, _turn: Turn) -> Vec<(String, NodeError)> {
        let unserved = self.bring_back(number).await;
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

    /// Waits until pools that were added have recovered, or have had the time to, and tells of their volumes that an end left in doubt.
    pub(super) async fn added_recovered(&self, added: &[usize]) {
        let end = tokio::time::Instant::now() + RECOVERY_TIME;
        for number in added {
            let mut health = self.pools.get(*number).handle.health.clone();
            let ready = health.wait_for(|h| h.state != LayerState::Recovering);
            let _ = tokio::time::timeout_at(end, ready).await; // one that is still recovering says so in its state
            self.note_unclean(Some(*number));
        }
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

    /// Takes the lock of an RBD image away from its owner, for a pool that is configured and isn't served. A reload then serves the pool, unless
    /// it needs a cache that isn't here: `without_cache` takes the lock of such a pool, too. Returns the former owner, if one was blocked.
    ///
    /// # Errors
    /// If the pool is served, `config` doesn't declare it on an image, the image isn't the pool's or couldn't be served, or the lock can't be taken.
    pub async fn break_lock(&self, name: &str, config: &Config, without_cache: bool) -> Result<Option<String>> {
        if self.pools.named(name).is_some_and(|(_, p)| p.has_lost_lock()) {
            return Err(NodeError::Conflict(lost_here(name)));
        }
        // No try of this node to open it is under way, and none begins: Ceph would block this node's own client.
        let opening = OpeningTurn::of(name, &self.pools).ok_or_else(|| {
            NodeError::Conflict(format!(
                "pool `{name}` is just being opened here, which may take its lock: wait until that has ended, then see `plimsoll status`"
            ))
        })?;
        if self.serves_pool(name) {
            return Err(NodeError::Conflict(format!("pool `{name}` is served here already")));
        }
        if self.pools.leaving().iter().any(|(leaving, _)| leaving.name == name) {
            let what = format!("pool `{name}` still has the lock here until its removal has ended: try again then");
            return Err(NodeError::Conflict(what));
        }
        let declared = config.pool.iter().find(|p| p.name.get_ref() == name);
        let pool = declared.ok_or_else(|| self.no_pool(name))?.clone();
        if pool.device.rbd.is_none() {
            return Err(not_on_an_image(name));
        }
        let owned = name.to_string();
        let broken = tokio::task::spawn_blocking(move || -> Result<Option<(String, crate::rbd::Break)>> {
            let _opening = opening;
            let view = look_at_image(&pool);
            let Some(owner) = view.owner_to_block(&owned, without_cache)? else { return Ok(None) };
            let broken = crate::rbd::break_lock(&owned, &pool.device, owner).map_err(super::error::failed)?;
            Ok(Some((owner.to_string(), broken)))
        });
        let Some((owner, crate::rbd::Break { is_blocked, taken })) = broken.await.map_err(super::error::failed)??
        else {
            return Ok(None);
        };
        let (section, blocked) = (pool_section(name), format!("client {owner} is blocked by order"));
        let what = match &taken {
            Ok(true) => format!("{section}: the image's lock was taken from {owner} by order, which is blocked"),
            Ok(false) => format!("{section}: {blocked}; nobody had the image's lock any more"),
            Err(e) => format!("{section}: {blocked}, but the image's lock could not be taken: {e}"),
        };
        if is_blocked {
            self.events.add(Kind::Node, Severity::Warning, None, what);
        }
        match taken {
            Ok(_) => Ok(is_blocked.then_some(owner)),
            Err(e) if is_blocked => Err(NodeError::Failed(format!("{blocked}, but the lock could not be taken: {e}"))),
            Err(e) => Err(super::error::failed(e)),
        }
    }

    async fn end_pool(self: &Arc<Self>, name: &str, disconnect: bool, leaves: Leaves) -> Result<RemovedPool> {
        // Live settings of tenants outlive any one pool. From its turn on, each change of a tenant is in all pools.
        let (number, _) = self.pools.named(name).ok_or_else(|| self.no_pool(name))?;
        let isnt = |e: NodeError| e.about(&format!("pool `{name}` isn't {}", leaves.done()));
        self.share_tenants(Some(number)).await.map_err(isnt)?;
        let one = (self.turn_of(number).await?, self.deciding.lock().await);
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
        let (began, volumes) = (Instant::now(), self.withdraw_all(number));
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
            closed_in: Duration::ZERO,
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
            Ok(closed) => {
                closed.map_err(super::error::failed)?.map(|()| RemovedPool { closed_in: began.elapsed(), ..removed })
            }
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
                "pool `{name}`: only its cache may have the newest data of volumes {}: `plimsoll pool release {name} \
                 --write-back` writes them back first",
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

    /// This node's own client may have the lock, or be about to take it: whoever breaks it then has Ceph block this node.
    #[tokio::test]
    async fn a_lock_is_not_taken_from_this_node_itself() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            "[listen]\nunix = \"nbd.sock\"\n[[pool]]\nname = \"p\"\ndevice = { null = true, size = \"64MiB\" }\n";
        let with = text.to_string()
            + "[[pool]]\nname = \"image\"\ndevice = { rbd = \"rbd/image\", libraries = \"/nonexistent\" }\n";
        let parse = |text: &str| Config::parse(text, &dir.path().join("node.toml")).unwrap();
        let (node, config) = (Node::start(&parse(text)).await.unwrap(), parse(&with));
        let said = async || node.break_lock("image", &config, false).await.unwrap_err().to_string();
        let opening = OpeningTurn::of("image", &node.pools).unwrap();
        assert!(said().await.contains("pool `image` is just being opened here"), "{}", said().await);
        drop(opening);
        node.pools.leaves(Arc::new(RunningPool::absent("image", "-".into(), "removed".into()).unwrap()));
        assert!(said().await.contains("until its removal has ended"), "{}", said().await);
        node.pools.has_left("image");
        let broken = said().await;
        assert!(!broken.contains("being opened") && !broken.contains("removal"), "it is tried: {broken}");
        assert!(node.pools.opening().is_empty(), "a reload may open it now");
        node.shut_down().unwrap();
    }
}
