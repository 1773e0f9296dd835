//! Pools that are being opened, each on a thread of its own: a device may be slow, or hang.

use super::closing::discard;
use super::pool::RunningPool;
use super::{NodeError, Pools, Result};
use crate::config::{Config, PoolConfig};
use crate::directory::Directory;
use crate::reload::pool_section;
use crate::store::PoolStore;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, RwLock};
use std::task::Poll;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// Time that a start waits for pools on files and block devices while others are served.
pub(super) const DEVICES_TIME: Duration = Duration::from_secs(20);
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

    #[cfg(test)]
    pub(super) fn pool_mut(&mut self) -> &mut RunningPool {
        self.pool.as_mut().expect("nobody has taken it")
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

/// Opens a pool on a thread of its own, and gives its place among those that are opened at once back. If nobody waits for the answer any more, the pool is closed again.
pub(super) fn open_on_thread(
    p: PoolConfig,
    config: &Config,
    pools: Arc<Pools>,
    directory: Arc<RwLock<Directory>>,
    place: Option<OwnedSemaphorePermit>,
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
        drop(place);
        // Whoever hears of a failure may try again at once: then the turn is dropped here.
        let opened = opened.map(|pool| OpenedPool { pool: Some(pool), pools, turn: Some(turn) });
        let _ = reply.send(opened); // whoever wanted it may have gone
    };
    thread.spawn(open).map_err(|e| NodeError::Failed(format!("no thread to open it: {e}")))?;
    Ok(opened)
}

/// Pools on files that a start opens at once: each may wait for a lock, and for its device.
const OPENED_AT_ONCE: usize = 8;

/// The pools of a start.
pub(super) struct Opened {
    /// In the configuration's order.
    pub(super) pools: Vec<Result<RunningPool>>,
    /// Those whose devices haven't answered yet. They are among the others, with an error.
    pub(super) late: Vec<(PoolConfig, Opening)>,
}

/// Opens the pools of a start, each beside the others: a device, or a cluster, may not answer. As long as no pool is served, it waits for
/// all. Then it waits for `at_most`, and for [`IMAGES_TIME`] where pools are on RBD images.
pub(super) async fn open_all(
    config: &Config,
    pools: &Arc<Pools>,
    directory: &Arc<RwLock<Directory>>,
    at_most: Duration,
) -> Result<Opened> {
    let begun = Instant::now();
    let is_remote = |p: &PoolConfig| p.device.rbd.is_some();
    let open = |p, place| open_on_thread(p, config, pools.clone(), directory.clone(), place);
    let mut opening = Vec::new();
    for (at, p) in config.pool.iter().enumerate().filter(|(_, p)| is_remote(p)) {
        opening.push((at, open(p.clone(), None)?, IMAGES_TIME));
    }
    // A file that is named twice is the first one's, as if the pools were opened one after the other.
    let shares = |p: &PoolConfig, at: usize| {
        let earlier = config.pool[..at].iter().flat_map(files);
        let earlier: Vec<PathBuf> = earlier.map(|(_, path)| path).collect();
        files(p).iter().any(|(_, path)| earlier.iter().any(|theirs| is_same_file(theirs, path)))
    };
    let local = || config.pool.iter().enumerate().filter(|(_, p)| !is_remote(p));
    let (later, first): (Vec<_>, Vec<_>) = local().map(|(at, p)| (at, p.clone())).partition(|(at, p)| shares(p, *at));
    for (at, opened) in
        begin_each(first, OPENED_AT_ONCE, tokio::time::sleep(at_most / 2), |p, place| open(p, Some(place))).await
    {
        opening.push((at, opened?, at_most));
    }
    let (mut done, mut waiting) = opened_in_time(opening, begun, false).await;
    for (at, p) in later {
        let is_served = done.iter().any(|(_, opened)| opened.is_ok());
        let (also_done, also_waiting) = opened_in_time(vec![(at, open(p, None)?, at_most)], begun, is_served).await;
        done.extend(also_done);
        waiting.extend(also_waiting);
    }
    let mut all: Vec<Option<Result<RunningPool>>> = config.pool.iter().map(|_| None).collect();
    for (at, opened) in done {
        all[at] = Some(opened.and_then(OpenedPool::take).map(|(pool, _)| pool));
    }
    let error = |p: &PoolConfig| {
        let e = if is_remote(p) { hasnt_answered() } else { is_late() };
        e.about(&pool_section(p.name.get_ref()))
    };
    let opened = config.pool.iter().zip(all).map(|(p, opened)| opened.unwrap_or_else(|| Err(error(p)))).collect();
    let late = waiting.into_iter().map(|(at, opened)| (config.pool[at].clone(), opened));
    // An image's lock isn't taken behind the operator's back: another gateway may be about to serve it.
    Ok(Opened { pools: opened, late: late.filter(|(p, _)| !is_remote(p)).collect() })
}

/// Begins to open each of `all`, with `at_once` of them under way at a time until `patience` ends. After that those that are under way keep no
/// others waiting. Returns the items' numbers with their beginnings.
async fn begin_each<I, B>(
    all: Vec<(usize, I)>,
    at_once: usize,
    patience: impl Future<Output = ()>,
    begin: impl Fn(I, OwnedSemaphorePermit) -> B,
) -> Vec<(usize, B)> {
    let places = Arc::new(Semaphore::new(at_once));
    let (mut patience, mut is_over) = (std::pin::pin!(patience), false);
    let mut begun = Vec::new();
    for (at, item) in all {
        // In their order: the first ones don't wait for later ones.
        let place = match is_over {
            false => tokio::select! {
                biased;
                place = places.clone().acquire_owned() => Some(place),
                () = &mut patience => None,
            },
            true => places.clone().try_acquire_owned().ok().map(Ok),
        };
        let place = match place {
            Some(place) => place,
            None => {
                is_over = true;
                places.add_permits(at_once);
                places.clone().acquire_owned().await
            }
        };
        begun.push((at, begin(item, place.expect("nobody closes it"))));
    }
    begun
}

/// Pools of a start with their sections: those that were opened or have failed, and those that are late.
type Answered = (Vec<(PoolConfig, Result<RunningPool>)>, Vec<(PoolConfig, Opening)>);

/// Waits until one of the pools that are late is open, or all have failed.
pub(super) async fn first_of(late: Vec<(PoolConfig, Opening)>) -> Answered {
    let (mut sections, mut opening) = (Vec::new(), Vec::new());
    for (at, (section, opened)) in late.into_iter().enumerate() {
        sections.push(section);
        opening.push((at, opened, Duration::ZERO));
    }
    let (done, waiting) = opened_in_time(opening, Instant::now(), false).await;
    let taken = |opened: Result<OpenedPool>| opened.and_then(OpenedPool::take).map(|(pool, _)| pool);
    let done = done.into_iter().map(|(at, opened)| (sections[at].clone(), taken(opened))).collect();
    (done, waiting.into_iter().map(|(at, opened)| (sections[at].clone(), opened)).collect())
}

/// The error of a pool whose device took longer than a start waits.
pub(super) fn is_late() -> NodeError {
    NodeError::Failed("it is still being opened: its device hasn't answered yet".into())
}

/// The error of a pool whose section was changed while the device of the earlier one doesn't answer.
pub(super) fn is_late_elsewhere(section: &PoolConfig) -> NodeError {
    NodeError::Conflict(format!(
        "the earlier try to open it at {} hasn't ended: check that device; restart the node if it never answers",
        section.device.label()
    ))
}

/// The error of a pool whose image took longer than [`IMAGES_TIME`].
fn hasnt_answered() -> NodeError {
    let seconds = IMAGES_TIME.as_secs();
    NodeError::Failed(format!(
        "its RBD image hasn't answered for {seconds} s: check the cluster, then `plimsoll reload`"
    ))
}

/// Waits for a pool that is being opened, until `end` if it is given.
pub(super) async fn opened_until(opened: Opening, end: Option<Instant>) -> Result<OpenedPool> {
    let answer = match end {
        Some(end) => tokio::time::timeout_at(end, opened).await.map_err(|_| hasnt_answered())?,
        None => opened.await,
    };
    answered(answer)
}

/// The answer of the thread that opens a pool.
pub(super) fn answered<T>(answer: std::result::Result<Result<T>, oneshot::error::RecvError>) -> Result<T> {
    answer.unwrap_or_else(|_| Err(NodeError::Failed("its opening broke off".into())))
}

/// Waits for pools that are being opened. Once any is served, it waits no longer than the times that they have since `begun`. Returns those
/// that were opened, and those that weren't.
async fn opened_in_time<T>(
    mut waiting: Vec<(usize, oneshot::Receiver<Result<T>>, Duration)>,
    begun: Instant,
    mut is_served: bool,
) -> (Vec<(usize, Result<T>)>, Vec<(usize, oneshot::Receiver<Result<T>>)>) {
    let mut done = Vec::new();
    while let Some(at_most) = waiting.iter().map(|(_, _, at_most)| *at_most).max() {
        let next = std::future::poll_fn(|cx| {
            let answer =
                |(at, (_, opened, _)): (usize, &mut (usize, oneshot::Receiver<_>, Duration))| match Pin::new(opened)
                    .poll(cx)
                {
                    Poll::Ready(opened) => Some((at, opened)),
                    Poll::Pending => None,
                };
            waiting.iter_mut().enumerate().find_map(answer).map_or(Poll::Pending, Poll::Ready)
        });
        let next = match is_served {
            true => tokio::time::timeout_at(begun + at_most, next).await.ok(),
            false => Some(next.await),
        };
        let Some((at, opened)) = next else { break };
        let opened = answered(opened);
        is_served |= opened.is_ok();
        done.push((waiting.remove(at).0, opened));
    }
    (done, waiting.into_iter().map(|(at, opened, _)| (at, opened)).collect())
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
    use plimsoll_testkit::HeldOpen;
    use rustix::fs::{FlockOperation, flock};

    /// A device that doesn't answer keeps no other pool from being served.
    #[tokio::test]
    async fn a_start_waits_for_devices_as_long_as_it_serves_nothing() {
        let (hangs, first) = oneshot::channel::<Result<u32>>();
        let (answers, second) = oneshot::channel();
        answers.send(Ok(7)).unwrap();
        let opening = vec![(0, first, Duration::ZERO), (1, second, Duration::ZERO)];
        let (done, mut late) = opened_in_time(opening, Instant::now(), false).await;
        assert!(matches!(done[..], [(1, Ok(7))]) && late.len() == 1 && late[0].0 == 0);
        // Its answer is still heard.
        hangs.send(Ok(6)).unwrap();
        assert!(matches!(late.pop().unwrap().1.await, Ok(Ok(6))));
        // The only one may take as long as it wants.
        let (answers, only) = oneshot::channel();
        let opening = tokio::spawn(opened_in_time(vec![(0, only, Duration::ZERO)], Instant::now(), false));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        answers.send(Ok(8)).unwrap();
        let (done, late) = opening.await.unwrap();
        assert!(matches!(done[..], [(0, Ok(8))]) && late.is_empty());
    }

    /// Three of seven are at work at once, which each of them waits for; the last one's place is free then. The results are each one's own.
    #[tokio::test]
    async fn a_start_opens_several_pools_at_once_and_no_more() {
        let shared = Arc::new((std::sync::Mutex::new((0, 0)), std::sync::Condvar::new()));
        let begin = |n: usize, place: OwnedSemaphorePermit| {
            let (shared, (reply, done)) = (shared.clone(), oneshot::channel());
            std::thread::spawn(move || {
                let (state, changed) = &*shared;
                let mut now = state.lock().unwrap();
                now.0 += 1;
                now.1 = now.1.max(now.0);
                changed.notify_all();
                let waited = changed.wait_timeout_while(now, Duration::from_secs(60), |now| now.1 < 3);
                let (mut now, late) = waited.unwrap();
                assert!(!late.timed_out(), "they are opened one after the other");
                now.0 -= 1;
                drop(place);
                reply.send((n * 10, now.1)).unwrap();
            });
            done
        };
        let begun = begin_each((0..7).map(|n| (n, n)).collect(), 3, std::future::pending(), begin).await;
        for (n, (at, done)) in begun.into_iter().enumerate() {
            assert_eq!((at, done.await.unwrap()), (n, (n * 10, 3)));
        }
    }

    /// Devices that don't answer keep their places, and others get new ones.
    #[tokio::test]
    async fn devices_that_hang_take_no_places_from_others() {
        let begun = begin_each((0..7).map(|n| (n, ())).collect(), 3, std::future::ready(()), |(), place| place).await;
        assert!(begun.iter().map(|(at, _)| *at).eq(0..7));
    }

    /// A pool whose device hangs when it is opened, beside one that is served, and is served when the device answers, as one that a reload adds.
    #[tokio::test]
    async fn a_pool_whose_device_answers_late_is_served_then() {
        let dir = tempfile::tempdir().unwrap();
        let section = |name: &str| {
            format!(
                "[[pool]]\nname = \"{name}\"\ndevice = {{ file = \"{name}.img\", size = \"64MiB\" }}\n\
                 [[volume]]\nname = \"of-{name}\"\npool = \"{name}\"\nsize = \"1MiB\"\ntenant = \"t\"\n"
            )
        };
        let head = "[listen]\nunix = \"nbd.sock\"\n[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\n";
        let parse = |pools: &[&str]| {
            let text = head.to_string() + &pools.iter().map(|p| section(p)).collect::<String>();
            Config::parse(&text, &dir.path().join("node.toml")).unwrap()
        };
        let all = ["late", "p", "changed"];
        // Its volume is there already.
        Node::start(&parse(&all)).await.unwrap().shut_down().unwrap();
        let held = ["late", "changed"].map(|name| HeldOpen::of(&dir.path().join(format!("{name}.img"))));
        let node = Arc::new(Node::start_within(&parse(&all), Duration::ZERO).await.unwrap());
        let serving = tokio::spawn({
            let node = node.clone();
            async move { node.serve_late_pools().await }
        });
        let served =
            || node.pools.all().into_iter().filter(|(_, p)| p.failed.is_none()).map(|(n, _)| n).collect::<Vec<_>>();
        let volumes = || node.directory_ref(|d| d.volumes.keys().cloned().collect::<Vec<_>>());
        assert_eq!((served(), volumes()), (vec![1], vec!["of-p".to_string()]));
        assert!(node.pools.late("late").is_some() && node.pools.late("p").is_none());
        // A reload doesn't wait for it, and one that changes a section, or takes it out, gives that one up.
        let new = crate::reload::served(node.configured().config.clone(), parse(&["late", "p"]));
        let why = node.reconfigure(crate::node::Prepared::of(&new).unwrap()).await;
        assert!(why.iter().any(|why| why.contains("its device hasn't answered yet")), "{why:?}");
        drop(held);
        serving.await.unwrap();
        assert_eq!((served(), volumes()), (vec![0, 1], vec!["of-late".to_string(), "of-p".to_string()]));
        assert!(node.pools.late("late").is_none() && node.unmade().is_empty(), "{:?}", node.unmade());
        node.shut_down().unwrap();
        let file = std::fs::File::open(dir.path().join("changed.img")).unwrap();
        flock(&file, FlockOperation::NonBlockingLockShared).expect("it was closed again");
    }

    const HEAD: &str = "[listen]\nunix = \"nbd.sock\"\n";

    fn section(name: &str, file: &str) -> String {
        format!("[[pool]]\nname = \"{name}\"\ndevice = {{ file = \"{file}.img\", size = \"64MiB\" }}\n")
    }

    fn parsed(dir: &Path, text: &str) -> Config {
        Config::parse(&format!("{HEAD}{text}"), &dir.join("node.toml")).unwrap()
    }

    /// A node that serves `p`, and waits for the device of `late`.
    async fn with_a_late_pool(dir: &Path) -> (Arc<Node>, Config, HeldOpen) {
        let config = parsed(dir, &(section("p", "p") + &section("late", "late")));
        Node::start(&config).await.unwrap().shut_down().unwrap();
        let held = HeldOpen::of(&dir.join("late.img"));
        (Arc::new(Node::start_within(&config, Duration::ZERO).await.unwrap()), config, held)
    }

    async fn reload(node: &Arc<Node>, config: Config) -> Vec<String> {
        node.reconfigure(crate::node::Prepared::of(&config).unwrap()).await
    }

    /// The device that hangs is the earlier section's, and a reload can't open another one meanwhile.
    #[tokio::test]
    async fn a_late_pool_whose_section_was_changed_is_named_with_the_device_that_hangs() {
        let dir = tempfile::tempdir().unwrap();
        let (node, _, held) = with_a_late_pool(dir.path()).await;
        let other = parsed(dir.path(), &(section("p", "p") + &section("late", "other")));
        let why = reload(&node, other.clone()).await;
        assert!(
            why.len() == 1 && why[0].contains("the earlier try to open it at") && why[0].contains("late.img"),
            "{why:?}"
        );
        let (late, _, is_wanted) = node.late_pool("late").unwrap();
        assert!(late.device.label().contains("late.img") && !is_wanted);
        // Out of the file and in it again: it has a number and a problem all the same.
        reload(&node, parsed(dir.path(), &section("p", "p"))).await;
        assert!(node.pools.named("late").is_none());
        reload(&node, other.clone()).await;
        assert!(node.pools.named("late").is_some());
        drop(held);
        node.serve_late_pools().await;
        assert!(node.late_pool("late").is_none() && !node.serves_pool("late"));
        let failed = node.pools.named("late").unwrap().1.failed.clone().unwrap();
        assert!(failed.contains("its section was changed before its device answered"), "{failed}");
        node.pools.wait_for_leaving();
        assert_eq!(reload(&node, other).await, [""; 0]);
        assert!(node.serves_pool("late"));
        node.shut_down().unwrap();
    }

    /// The device answers, with an error, after a reload has looked and before it is applied.
    #[tokio::test]
    async fn a_reload_keeps_the_reason_for_which_a_late_pool_could_not_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (node, config, held) = with_a_late_pool(dir.path()).await;
        let (answers, answer) = oneshot::channel();
        let section = node.late.lock().unwrap().pop().unwrap().0;
        node.late.lock().unwrap().push((section, answer));
        let (opened, _) = node.open_new(&config, DEVICES_TIME).await;
        let _ = answers.send(Err(NodeError::Failed("it is broken".into())));
        node.serve_late_pools().await;
        let new = crate::node::Configured::of(&config).unwrap();
        let why = node.apply(new, opened, crate::node::reconfigure::Applies::Reloaded).await.why;
        assert!(why.len() == 1 && why[0].contains("it is broken"), "{why:?}");
        let failed = node.pools.named("late").unwrap().1.failed.clone().unwrap();
        assert!(failed.contains("it is broken"), "{failed}");
        drop(held);
        node.shut_down().unwrap();
    }

    /// The pool that was opened in time has promised more slots than it has now.
    #[tokio::test]
    async fn a_start_waits_for_late_pools_if_none_of_the_others_can_be_served() {
        let dir = tempfile::tempdir().unwrap();
        let with = |slots: u32| {
            let fence = format!("model = \"hdd-160g-7200\" }}\n[pool.fence]\nslots = {slots}\nslot = \"20ms\"\n");
            let unfit =
                section("unfit", "unfit").replace("size = \"64MiB\" }\n", &format!("size = \"64MiB\", {fence}"));
            let tenant = "[[tenant]]\nname = \"t\"\nclass = \"fenced\"\nslots = 3\n";
            parsed(dir.path(), &(unfit + &section("late", "late") + tenant))
        };
        let node = Node::start(&with(4)).await.unwrap();
        let (name, tenant) = ("v".to_string(), "t".to_string());
        let new = plimsoll_store::NewVolume {
            name,
            size_bytes: 1 << 20,
            tenant,
            read_only: false,
            description: None,
            cache: None,
        };
        node.create_volume("unfit", new).await.unwrap();
        node.shut_down().unwrap();
        drop(node);
        let changed = || std::fs::metadata(dir.path().join("unfit.img")).unwrap().modified().unwrap();
        let (held, before) = (HeldOpen::of(&dir.path().join("late.img")), changed());
        let config = with(2);
        let is_done = std::cell::Cell::new(false);
        let start = async {
            let started = Node::start_within(&config, Duration::ZERO).await;
            is_done.set(true);
            started
        };
        // The unfit pool has been closed again.
        let is_closed = || {
            let file = std::fs::File::open(dir.path().join("unfit.img")).unwrap();
            changed() != before && flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
        };
        let answer = async {
            while !is_closed() && !is_done.get() {
                tokio::task::yield_now().await;
            }
            drop(held);
        };
        let (started, ()) = tokio::join!(start, answer);
        let node = started.map_err(|e| e.to_string()).expect("it waits");
        assert!(node.serves_pool("late") && !node.serves_pool("unfit") && node.pools.late("late").is_none());
        node.shut_down().unwrap();
    }

    /// A reload doesn't wait without end, and an earlier try doesn't compete with a later one.
    #[tokio::test]
    async fn an_image_that_does_not_answer_is_waited_for_so_long_and_opened_once() {
        let (_hangs, opened) = oneshot::channel();
        let why = opened_until(opened, Some(Instant::now())).await.err().unwrap().to_string();
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
        let new = async || node.open_new(&both, DEVICES_TIME).await.0.pop().unwrap().1;
        let opened = new().await.unwrap();
        let (let_go, held) = std::sync::mpsc::channel::<()>();
        let look: Look = Box::new(move |_, _| _ = held.recv());
        opened.pool.as_ref().unwrap().handle.send(Command::Look(look)).unwrap();
        drop(opened);
        let is_locked = || {
            let file = std::fs::File::open(dir.path().join("q.img")).unwrap();
            flock(&file, FlockOperation::NonBlockingLockShared).is_err()
        };
        assert!(is_locked());
        let why = new().await.err().unwrap().to_string();
        assert!(why.contains("is still being removed"), "{why}");
        let_go.send(()).unwrap();
        node.pools.wait_for_leaving();
        assert!(!is_locked());
        drop(new().await.unwrap());
        node.shut_down().unwrap();
        assert!(!is_locked());
    }
}
