//! Pools that are being opened, each on a thread of its own: a device may be slow, or hang.

use super::closing::discard;
use super::pool::RunningPool;
use super::{NodeError, Pools, Result};
use crate::config::{Config, PoolConfig};
use crate::directory::Directory;
use crate::reload::pool_section;
use crate::store::PoolStore;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

/// Time that a start waits for pools on RBD images while others are served. The lock of a dead owner takes 30 s of it.
pub(super) const IMAGES_TIME: Duration = Duration::from_secs(80);

/// A pool that is being opened.
pub(super) type Opening = oneshot::Receiver<Result<OpenedPool>>;

/// A pool that was opened, and isn't served yet. It is closed when this is dropped before.
pub(super) struct OpenedPool {
    pool: Option<RunningPool>,
    pools: Arc<Pools>,
    /// Until the pool is in a list of served or leaving ones, its name is in that of those that are being opened.
    turn: Option<OpeningTurn>,
}

impl OpenedPool {
    /// Its metadata.
    pub(super) fn store(&self) -> Option<Arc<PoolStore>> {
        self.pool.as_ref()?.store.clone()
    }

    /// The pool, unless its thread has ended, with the turn, which is to be kept until the pool is in a list.
    pub(super) fn take(mut self) -> Result<(RunningPool, Option<OpeningTurn>)> {
        let pool = self.pool.take().ok_or_else(|| NodeError::Failed("it is gone".into()))?;
        match pool.handle.health.has_changed() {
            Ok(_) => Ok((pool, self.turn.take())),
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

/// The one try to open a pool, or to take its image's lock away, that may be under way. Another may begin once this is dropped.
pub(super) struct OpeningTurn {
    name: String,
    pools: Arc<Pools>,
}

impl OpeningTurn {
    /// `None` while an earlier try is under way.
    pub(super) fn of(name: &str, pools: &Arc<Pools>) -> Option<OpeningTurn> {
        let is_first = pools.opening().insert(name.to_string());
        is_first.then(|| OpeningTurn { name: name.to_string(), pools: pools.clone() })
    }
}

impl Drop for OpeningTurn {
    fn drop(&mut self) {
        self.pools.opening().remove(&self.name);
    }
}

/// Opens a pool on a thread of its own. If nobody waits for the answer any more, the pool is closed again.
pub(super) fn open_on_thread(
    p: PoolConfig,
    config: &Config,
    pools: Arc<Pools>,
    directory: Arc<RwLock<Directory>>,
) -> Result<Opening> {
    let name = p.name.get_ref().clone();
    let turn = OpeningTurn::of(&name, &pools).ok_or_else(|| {
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
        // Whoever hears of a failure may try again at once: then the turn is dropped here.
        let opened = opened.map(|pool| OpenedPool { pool: Some(pool), pools, turn: Some(turn) });
        let _ = reply.send(opened); // whoever wanted it may have gone
    };
    thread.spawn(open).map_err(|e| NodeError::Failed(format!("no thread to open it: {e}")))?;
    Ok(opened)
}

/// Pools on files that a start opens at once: each may wait for a lock, and for its device.
const OPENED_AT_ONCE: usize = 8;

/// Opens the pools of a start, and returns them in the configuration's order, with each one's error. Those on RBD images are opened beside
/// the others: a cluster may not answer. Then the node serves its other pools.
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
    let mut all: Vec<Option<Result<RunningPool>>> = config.pool.iter().map(|_| None).collect();
    // A file that is named twice is the first one's, as if the pools were opened one after the other.
    let shares = |p: &PoolConfig, at: usize| {
        let earlier = config.pool[..at].iter().flat_map(files);
        let earlier: Vec<PathBuf> = earlier.map(|(_, path)| path).collect();
        files(p).iter().any(|(_, path)| earlier.iter().any(|theirs| is_same_file(theirs, path)))
    };
    let local = || config.pool.iter().enumerate().filter(|(_, p)| !is_remote(p));
    let (later, first): (Vec<_>, Vec<_>) = local().map(|(at, p)| (at, p.clone())).partition(|(at, p)| shares(p, *at));
    for (pools, at_once) in [(first, OPENED_AT_ONCE), (later, 1)] {
        let (trace_every, limits, directory) = (config.control.trace_every, config.limits.clone(), directory.clone());
        let open = move |p: PoolConfig| RunningPool::start(&p, trace_every, &limits, directory.clone());
        for (at, opened) in each_at_once(pools, at_once, open).await {
            all[at] = Some(opened);
        }
    }
    let is_served = all.iter().flatten().any(Result::is_ok);
    for (at, opened) in opened_in_time(opening, is_served, IMAGES_TIME).await {
        all[at] = Some(opened.and_then(OpenedPool::take).map(|(pool, _)| pool));
    }
    let late = |p: &PoolConfig| hasnt_answered().about(&pool_section(p.name.get_ref()));
    Ok(config.pool.iter().zip(all).map(|(p, opened)| opened.unwrap_or_else(|| Err(late(p)))).collect())
}

/// Calls `act` with each of `all` on a thread of its own, with `at_once` of them at a time. Returns the results with the items' numbers.
async fn each_at_once<I: Send + 'static, T: Send + 'static>(
    all: Vec<(usize, I)>,
    at_once: usize,
    act: impl Fn(I) -> T + Send + Sync + 'static,
) -> Vec<(usize, T)> {
    let (act, places) = (Arc::new(act), Arc::new(Semaphore::new(at_once)));
    let mut under_way = JoinSet::new();
    for (at, item) in all {
        // In their order: the first ones don't wait for later ones.
        let place = places.clone().acquire_owned().await.expect("nobody closes it");
        let act = act.clone();
        under_way.spawn_blocking(move || {
            let done = act(item);
            drop(place);
            (at, done)
        });
    }
    let mut done = Vec::new();
    while let Some(one) = under_way.join_next().await {
        done.push(one.expect("a panic ends the process"));
    }
    done
}

/// The error of a pool whose image took longer than [`IMAGES_TIME`].
fn hasnt_answered() -> NodeError {
    let seconds = IMAGES_TIME.as_secs();
    NodeError::Failed(format!(
        "its RBD image hasn't answered for {seconds} s: check the cluster, then `plimsoll reload`"
    ))
}

/// Waits for a pool that is being opened, until `end` if it is given.
pub(super) async fn opened_until(opened: Opening, end: Option<tokio::time::Instant>) -> Result<OpenedPool> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Command, Look};
    use crate::node::Node;
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

    /// Three of four are at work at once, which each of them waits for; the last one's place is free then. The results are each one's own.
    #[tokio::test]
    async fn a_start_opens_several_pools_at_once_and_no_more() {
        let (state, changed) = (std::sync::Mutex::new((0, 0)), std::sync::Condvar::new());
        let act = move |n: usize| {
            let mut now = state.lock().unwrap();
            now.0 += 1;
            now.1 = now.1.max(now.0);
            changed.notify_all();
            let (mut now, late) = changed.wait_timeout_while(now, Duration::from_secs(60), |now| now.1 < 3).unwrap();
            assert!(!late.timed_out(), "they are opened one after the other");
            now.0 -= 1;
            (n * 10, now.1)
        };
        let mut done = each_at_once((0..7).map(|n| (n, n)).collect(), 3, act).await;
        done.sort_by_key(|(at, _)| *at);
        for (n, (at, result)) in done.into_iter().enumerate() {
            assert_eq!((at, result), (n, (n * 10, 3)));
        }
    }

    /// A reload doesn't wait without end, and an earlier try doesn't compete with a later one.
    #[tokio::test]
    async fn an_image_that_does_not_answer_is_waited_for_so_long_and_opened_once() {
        let (_hangs, opened) = oneshot::channel();
        let why = opened_until(opened, Some(tokio::time::Instant::now())).await.err().unwrap().to_string();
        assert!(why.contains("hasn't answered"), "{why}");
        let pools = Arc::new(Pools::new().unwrap());
        let first = OpeningTurn::of("p", &pools).unwrap();
        assert!(OpeningTurn::of("p", &pools).is_none());
        let _other = OpeningTurn::of("q", &pools).unwrap();
        drop(first);
        assert!(OpeningTurn::of("p", &pools).is_some());
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
