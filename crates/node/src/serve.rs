//! Running a node: from a configuration to the last flush.

use crate::config::{Config, ConfigErrors, Log, Tls};
use crate::events::{Kind, Severity};
use crate::http::{self, Control, LastProblems, Order, Orders, Token};
use crate::node::{Node, NodeError, Prepared};
use crate::notify::Notify;
use crate::reload::{self, Reloaded};
use crate::seats::{Descriptors, Seats};
use crate::service::{Front, Service};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Addresses of a node's listeners, with the ports that the kernel chose where the configuration has port 0.
#[derive(Clone, Debug, Default)]
pub struct Bound {
    /// NBD.
    pub nbd_unix: Option<PathBuf>,
    /// NBD.
    pub nbd_tcp: Option<SocketAddr>,
    /// NVMe/TCP.
    pub nvme_tcp: Option<SocketAddr>,
    /// The control API.
    pub control_http: Option<SocketAddr>,
    /// The control API.
    pub control_unix: Option<PathBuf>,
}

/// Time that a start waits for recovery: beyond it the node reports that it serves, and the pool's clients are refused.
const RECOVERY_TIME: Duration = Duration::from_secs(5);

/// A node that hangs at its end is asked this often how it goes.
const LOOK: Duration = Duration::from_secs(1);

/// Source of a node's configuration, and its log.
pub struct Host<'a> {
    /// Reads the configuration anew.
    pub reread: &'a dyn Fn() -> Result<Config, ConfigErrors>,
    /// Sets the level of the log.
    pub log: &'a dyn Fn(Log),
}

/// Serves until SIGTERM, SIGINT or an order to end. Then it disconnects clients, finishes requests in flight and flushes data. SIGHUP
/// reloads the configuration.
///
/// `ready` is called once when clients are taken in.
///
/// # Errors
/// If the node can't start, or didn't end in order.
pub async fn serve(mut config: Config, host: Host<'_>, ready: impl FnOnce(&Node, &Bound)) -> Result<(), NodeError> {
    let notify = Notify::of_environment();
    (host.log)(config.log);
    allow_many_descriptors();
    crate::memory::keep_large_allocations_apart();
    let tls = acceptor(&config)?;
    let token = config.control.token_file.as_deref().map(Token::load_or_make).transpose()?;
    // Before any device is opened, made or grown: whatever keeps the node from serving must be told at once, and harm nothing.
    crate::engine::check_io_uring().map_err(|e| NodeError::Failed(e.to_string()))?;
    let listeners = Listeners::bind(&config).await?;
    let node = Arc::new(Node::start(&config).await?);
    let events = node.events.clone();
    // From here on. While devices are opened, formatted and recovered, which may take long, a signal ends the process as
    // ever: nobody has been promised anything yet, and every step of the start survives being cut.
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("signals"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed("signals"))?;
    // Handshakes (an RSA signature takes a millisecond) and TLS sessions have threads of their own, and so has HTTP: none
    // waits for another, nor for changes of the node, which stay on this thread.
    let (nbd, http) = (Threads::start("nbd", nbd_threads())?, Threads::start("http", 1)?);
    let limits = &config.limits;
    let descriptors = Descriptors::of_process();
    if descriptors.nbd < limits.connections {
        let (nbd, wanted) = (descriptors.nbd, limits.connections);
        tracing::info!(nbd, wanted, "the limit of open files allows fewer NBD connections than limits.connections");
    }
    // What one peer or tenant takes leaves room for others, however few descriptors there are.
    let half = descriptors.nbd.div_ceil(2);
    let mut seats = limits.clone();
    seats.connections_per_tenant = seats.connections_per_tenant.min(half);
    seats.connections_per_peer = seats.connections_per_peer.min(half);
    let service = Arc::new(Service {
        directory: node.directory.clone(),
        pools: node.pools.clone(),
        events: events.clone(),
        tls: RwLock::new(tls),
        tls_sessions: Default::default(),
        nvme: Default::default(),
        seats: Seats::new(seats, descriptors.nbd),
        handshakes: (limits.handshakes.min(half), limits.handshakes_per_peer),
    });
    let bound = listeners.bound.clone();
    let started = Instant::now();
    let local_reads = config.control.local_reads;
    let (orders, mut ordered) = Orders::new();
    let last_problems = LastProblems::default();
    let control = Arc::new(Control {
        node: node.clone(),
        bound: bound.clone(),
        token,
        local_reads,
        started,
        last_problems,
        orders,
    });
    let api = http::router(control.clone());
    let (mut clients, mut watchers) = (JoinSet::new(), JoinSet::new());
    let interrupted = node.interrupted_deletions();
    let watched = (&http, api, descriptors.control);
    let sockets = listeners.serve((&mut clients, &nbd, service.clone()), (&mut watchers, watched))?;
    let deletions = node.clone();
    clients.spawn(async move { deletions.resume_deletions(interrupted).await });
    let late = node.clone();
    clients.spawn(async move { late.serve_late_loop().await });
    let homecomings = node.clone();
    clients.spawn(async move { homecomings.record_written_back_loop().await });
    clients.spawn(http::watch_problems(node.clone()));
    node.recovered(RECOVERY_TIME).await;
    node.note_unclean(None);
    ready(&node, &bound);
    let volumes = node.directory.read().expect("no panic while held").volumes.len();
    let serving = format!("serving; volumes: {volumes}, pools: {}", node.pools.all().len());
    events.add(Kind::Node, Severity::Info, None, format!("version {}, {serving}", env!("CARGO_PKG_VERSION")));
    notify.ready(&serving);
    let reload = async |old: Config| {
        notify.reloading();
        let done = apply_new(old, &host, &node, &service.tls).await;
        notify.ready(&serving);
        done
    };
    let drain = |reply: oneshot::Sender<Duration>, at_most: Duration| {
        // Whoever reads the answer finds a node that is ending.
        node.begin_end(None);
        control.orders.end();
        let _ = reply.send(at_most); // whoever asked may have gone
        "drain".to_string()
    };
    let mut lost = None;
    let mut reloads = VecDeque::new();
    let reason = 'serving: loop {
        // Of those that asked for a reload while one was carried out.
        let mut asked: Option<Asked> = reloads.pop_front().map(Some);
        if asked.is_none() {
            asked = tokio::select! {
                _ = terminate.recv() => break "SIGTERM".to_string(),
                _ = interrupt.recv() => break "SIGINT".to_string(),
                _ = hangup.recv() => {
                    crate::panics::point("control");
                    Some(None)
                }
                Some(order) = ordered.recv() => match order {
                    Order::Reload(reply) => Some(Some(reply)),
                    Order::Check(reply) => {
                        let _ = reply.send(checked(&config, &host)); // whoever asked may have gone
                        None
                    }
                    Order::Drain(reply) => break drain(reply, config.control.drain.0.into()),
                },
                pool = node.a_pool_ended() => {
                    lost = Some(pool.clone());
                    break has_ended(&pool);
                }
            };
        }
        let Some(reply) = asked else { continue };
        // A device that a reload opens may hang: the node ends nevertheless.
        let reloading = reload(config.clone());
        tokio::pin!(reloading);
        let (served, done) = loop {
            tokio::select! {
                done = &mut reloading => break done,
                _ = terminate.recv() => break 'serving "SIGTERM".to_string(),
                _ = interrupt.recv() => break 'serving "SIGINT".to_string(),
                Some(order) = ordered.recv() => match order {
                    Order::Reload(reply) => reloads.push_back(reply),
                    Order::Check(reply) => _ = reply.send(checked(&config, &host)),
                    Order::Drain(reply) => break 'serving drain(reply, config.control.drain.0.into()),
                },
                pool = node.a_pool_ended() => {
                    lost = Some(pool.clone());
                    break 'serving has_ended(&pool);
                }
            }
        };
        config = served;
        match reply {
            // Whoever asked may have gone.
            Some(reply) => _ = reply.send(done),
            None => {
                let (severity, text) = match done {
                    Ok(done) if done.failed.is_empty() => (Severity::Info, done.text()),
                    Ok(done) => (Severity::Warning, done.text()),
                    Err(e) => (Severity::Error, format!("nothing was changed: {e}")),
                };
                events.add(Kind::Node, severity, None, format!("SIGHUP: configuration reloaded: {text}"));
            }
        }
    };
    node.begin_end(lost.clone());
    control.orders.end();
    events.add(Kind::Node, Severity::Info, None, format!("{reason}: stopping: finishing requests in flight"));
    clients.shutdown().await;
    let end = Instant::now() + Duration::from(config.control.drain.0);
    let shutting = node.clone();
    let mut ended = tokio::task::spawn_blocking(move || shutting.shut_down());
    let ended = loop {
        tokio::select! {
            ended = &mut ended => break ended,
            _ = terminate.recv() => return Err(cut(&node, "a second signal").await),
            _ = interrupt.recv() => return Err(cut(&node, "a second signal").await),
            // Whoever drains a node that is ending hears how long it takes.
            Some(order) = ordered.recv() => if let Order::Drain(reply) = order {
                let _ = reply.send(end.saturating_duration_since(Instant::now()));
            },
            () = tokio::time::sleep(LOOK) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(cut(&node, "control.drain").await);
                }
                notify.ending(left, &format!("ending: {}; {} s left", inside(&node).await, left.as_secs()));
            }
        }
    };
    // The pools have answered everything; answers to TLS clients still have to go through their sessions.
    service.end_tls_sessions().await;
    service.nvme.end().await;
    watchers.shutdown().await;
    drop(sockets);
    ended.map_err(|e| NodeError::Failed(format!("shutting down: {e}")))??;
    match lost {
        Some(pool) => Err(NodeError::Failed(format!("pool `{pool}` ended while it served; the log says why"))),
        None => Ok(()),
    }
}

/// The reply to whoever asked for a reload; `None` for SIGHUP.
type Asked = Option<oneshot::Sender<Result<Reloaded, NodeError>>>;

fn has_ended(pool: &str) -> String {
    format!("the thread of pool `{pool}` has ended; the other pools are flushed")
}

/// TLS as configured, and whether it's required.
fn acceptor(config: &Config) -> Result<Option<(TlsAcceptor, bool)>, NodeError> {
    let of = |t: &Tls| Ok((crate::tls::acceptor(t)?, t.required));
    config.listen.tls.as_ref().map(of).transpose()
}

/// The configuration as it is written now, if a reload would accept it.
fn checked(old: &Config, host: &Host<'_>) -> Result<Box<Config>, NodeError> {
    let new = (host.reread)()?;
    let served = reload::served(old.clone(), new.clone());
    acceptor(&served)?;
    Prepared::of(&served)?;
    Ok(Box::new(new))
}

/// Applies the configuration as it is written now. Returns what is served from now on, and the result.
async fn apply_new(
    was: Config,
    host: &Host<'_>,
    node: &Arc<Node>,
    tls: &RwLock<Option<(TlsAcceptor, bool)>>,
) -> (Config, Result<Reloaded, NodeError>) {
    // Pools may have been removed since, and some couldn't be opened.
    let mut old = was.clone();
    old.pool.retain(|p| node.serves_pool(p.name.get_ref()));
    let apply = async {
        let new = (host.reread)()?;
        let mut done = reload::differences(&old, &new, &node.unmade());
        let mut served = reload::served(old, new);
        let accepts = acceptor(&served)?;
        let prepared = Prepared::of(&served)?;
        // From here on each change is carried out as far as it can be.
        *tls.write().expect("no panic while held") = accepts;
        done.failed = node.reconfigure(prepared).await;
        reload::keep_pools(&mut served, &mut done, &node.configured().config);
        let unmade = node.unmade();
        done.changed.retain(|section| !unmade.contains(section));
        (host.log)(served.log);
        Ok((served, done))
    };
    match apply.await {
        Ok((served, done)) => (served, Ok(done)),
        // Also with pools that aren't served yet: a device may answer before the next reload.
        Err(e) => (was, Err(e)),
    }
}

/// Requests in flight, in words.
async fn inside(node: &Node) -> String {
    let views = node.pool_snapshots().await;
    let of = node.pools.with(&views).into_iter().filter_map(|(_, p, view)| match view.map(|v| v.pool.inflight) {
        Some(0) | None => None,
        Some(n) => Some(format!("{n} requests in flight in pool `{}`", p.name)),
    });
    let all: Vec<String> = of.collect();
    if all.is_empty() { "data is flushed".into() } else { all.join(", ") }
}

/// The node ends before it is done: as safe as a kill, which recovery is for.
async fn cut(node: &Node, why: &str) -> NodeError {
    NodeError::Failed(format!(
        "{why} ended the node at once: {}. Whatever was acknowledged as durable is there at the next start, which recovers; other \
         writes may be lost",
        inside(node).await
    ))
}

/// Handshakes and TLS sessions.
fn nbd_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |n| n.get()).clamp(2, 4)
}

/// Threads for one kind of clients.
struct Threads(Option<tokio::runtime::Runtime>);

impl Threads {
    fn start(name: &str, threads: usize) -> Result<Threads, NodeError> {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let built = builder.worker_threads(threads).thread_name(name).enable_all().build();
        Ok(Threads(Some(built.map_err(failed("threads"))?)))
    }

    fn handle(&self) -> &tokio::runtime::Handle {
        self.0.as_ref().expect("until it's dropped").handle()
    }
}

impl Drop for Threads {
    /// Shuts the runtime down without waiting: an async thread, which must not wait, may drop it.
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A client takes a descriptor or two; the usual soft limit of 1024 is for programs that use select().
fn allow_many_descriptors() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files can't be raised: some clients may not find room");
    }
}

/// All that a node listens on, before anybody is taken in.
#[derive(Default)]
struct Listeners {
    bound: Bound,
    sockets: Sockets,
    nbd_unix: Option<UnixListener>,
    nbd_tcp: Option<TcpListener>,
    nvme_tcp: Option<TcpListener>,
    control_unix: Option<UnixListener>,
    control_http: Option<TcpListener>,
}

impl Listeners {
    async fn bind(config: &Config) -> Result<Listeners, NodeError> {
        let mut all = Listeners::default();
        if let Some(path) = &config.listen.unix {
            all.nbd_unix = Some(bind_unix(path, "listen.unix")?);
            // Any local user may connect: what each may use is for the grants to say, by user id.
            let mode = std::fs::Permissions::from_mode(0o666);
            std::fs::set_permissions(path, mode).map_err(failed("listen.unix"))?;
            all.sockets.0.push(path.clone());
            all.bound.nbd_unix = Some(path.clone());
        }
        if let Some(address) = config.listen.tcp {
            let (listener, address) = bind_tcp(address, "listen.tcp", config.takes_free_ports).await?;
            (all.nbd_tcp, all.bound.nbd_tcp) = (Some(listener), Some(address));
        }
        if let Some(address) = config.listen.nvme_tcp {
            let (listener, address) = bind_tcp(address, "listen.nvme_tcp", config.takes_free_ports).await?;
            (all.nvme_tcp, all.bound.nvme_tcp) = (Some(listener), Some(address));
        }
        if let Some(path) = &config.control.unix {
            let listener = bind_unix(path, "control.unix")?;
            all.sockets.0.push(path.clone());
            // Between binding and this anybody may connect; each peer's user is checked all the same.
            let private = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(path, private).map_err(failed(&format!("control.unix {}", path.display())))?;
            (all.control_unix, all.bound.control_unix) = (Some(listener), Some(path.clone()));
        }
        if let Some(address) = config.control.http {
            let (listener, address) = bind_tcp(address, "control.http", config.takes_free_ports).await?;
            (all.control_http, all.bound.control_http) = (Some(listener), Some(address));
        }
        Ok(all)
    }

    /// Takes clients in; the sockets' files are removed when what is returned is dropped.
    fn serve(
        self,
        (clients, nbd, service): (&mut JoinSet<()>, &Threads, Arc<Service>),
        (watchers, (http, api, control_max)): (&mut JoinSet<()>, (&Threads, axum::Router, usize)),
    ) -> Result<Sockets, NodeError> {
        if let Some(listener) = self.nbd_unix {
            let listener = moved(nbd, listener, UnixListener::into_std, UnixListener::from_std)?;
            clients.spawn_on(service.clone().serve_unix(listener), nbd.handle());
        }
        if let Some(listener) = self.nbd_tcp {
            let listener = moved(nbd, listener, TcpListener::into_std, TcpListener::from_std)?;
            clients.spawn_on(service.clone().serve_tcp(listener, Front::Nbd), nbd.handle());
        }
        if let Some(listener) = self.nvme_tcp {
            let listener = moved(nbd, listener, TcpListener::into_std, TcpListener::from_std)?;
            clients.spawn_on(service.serve_tcp(listener, Front::Nvme), nbd.handle());
        }
        if let Some(listener) = self.control_unix {
            let listener = moved(http, listener, UnixListener::into_std, UnixListener::from_std)?;
            watchers.spawn_on(crate::http::serve_unix(listener, api.clone(), control_max), http.handle());
        }
        if let Some(listener) = self.control_http {
            let listener = moved(http, listener, TcpListener::into_std, TcpListener::from_std)?;
            watchers.spawn_on(crate::http::serve_tcp(listener, api, control_max), http.handle());
        }
        Ok(self.sockets)
    }
}

/// A listener is woken by the threads that it's registered with.
fn moved<L, S>(
    threads: &Threads,
    listener: L,
    out: impl FnOnce(L) -> std::io::Result<S>,
    back: impl FnOnce(S) -> std::io::Result<L>,
) -> Result<L, NodeError> {
    let _these = threads.handle().enter();
    out(listener).and_then(back).map_err(failed("a listener"))
}

async fn bind_tcp(address: SocketAddr, key: &str, or_free: bool) -> Result<(TcpListener, SocketAddr), NodeError> {
    let what = format!("{key} {address}");
    let mut bound = TcpListener::bind(address).await;
    if or_free && bound.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::AddrInUse) {
        bound = TcpListener::bind(SocketAddr::new(address.ip(), 0)).await;
    }
    let listener = bound.map_err(|e| match e.kind() {
        std::io::ErrorKind::AddrInUse => NodeError::Failed(format!(
            "{what}: another process listens there: end it, or choose another port in the configuration"
        )),
        _ => NodeError::Failed(format!("{what}: {e}")),
    })?;
    let bound = listener.local_addr().map_err(failed(&what))?;
    Ok((listener, bound))
}

fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> NodeError {
    let what = what.to_string();
    move |e| NodeError::Failed(format!("{what}: {e}"))
}

/// Unix sockets that are removed at the end.
#[derive(Default)]
struct Sockets(Vec<PathBuf>);

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path); // somebody may have removed it before
        }
    }
}

/// Connecting to a file that is none is refused, too.
fn is_socket(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
}

/// Longest path of a unix socket: `sun_path` has 108 bytes, the last of which is zero.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Binds a unix socket. One that a killed node left behind is taken over; one that somebody serves is not.
fn bind_unix(path: &Path, key: &str) -> Result<UnixListener, NodeError> {
    let what = format!("{key} {}", path.display());
    if path.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
        return Err(NodeError::Failed(format!(
            "{what}: a socket's path has at most {SOCKET_PATH_BYTES_MAX} bytes, and this one has {}: choose a shorter one",
            path.as_os_str().len()
        )));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => {
            return Err(NodeError::Failed(format!(
                "{what}: another process serves this socket: end it, or choose another path"
            )));
        }
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused && is_socket(path) => {
            std::fs::remove_file(path).map_err(failed(&what))?;
        }
        Err(_) => {} // there is none, or binding will say what is wrong
    }
    UnixListener::bind(path).map_err(failed(&what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_testkit::HeldOpen;

    const HEAD: &str =
        "[listen]\nunix = \"nbd.sock\"\n[[pool]]\nname = \"q\"\ndevice = { null = true, size = \"64MiB\" }\n";

    fn parse(dir: &Path, pools: &str) -> Result<Config, ConfigErrors> {
        Config::parse(&format!("{HEAD}{pools}"), &dir.join("node.toml"))
    }

    fn late(size: &str) -> String {
        format!("[[pool]]\nname = \"late\"\ndevice = {{ file = \"late.img\", size = \"{size}\" }}\n")
    }

    async fn started(dir: &Path) -> (Arc<Node>, Config, HeldOpen) {
        let config = parse(dir, &late("64MiB")).unwrap();
        Node::start(&config).await.unwrap().shut_down().unwrap();
        let held = HeldOpen::of(&dir.join("late.img"));
        let node = Arc::new(Node::start_within(&config, Duration::ZERO).await.unwrap());
        assert!(!node.serves_pool("late"));
        (node, config, held)
    }

    async fn reload(
        node: &Arc<Node>,
        config: Config,
        reread: &dyn Fn() -> Result<Config, ConfigErrors>,
    ) -> (Config, Result<Reloaded, NodeError>) {
        apply_new(config, &Host { reread, log: &|_| {} }, node, &RwLock::default()).await
    }

    /// A pool whose device answers after a reload that changed nothing: the next one that doesn't find its section says that it is served.
    #[tokio::test]
    async fn a_reload_that_fails_forgets_no_pool_that_is_still_being_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (node, config, held) = started(dir.path()).await;
        let (config, done) = reload(&node, config, &|| parse(dir.path(), "a typo")).await;
        done.unwrap_err();
        drop(held);
        node.serve_late_pools().await;
        assert!(node.serves_pool("late"));
        let (config, done) = reload(&node, config, &|| parse(dir.path(), &late("128MiB"))).await;
        let done = done.unwrap();
        assert_eq!((done.changed, done.restart), (vec![], vec!["pool `late`".to_string()]));
        let (config, done) = reload(&node, config, &|| parse(dir.path(), "")).await;
        assert!(done.as_ref().unwrap().text().starts_with("still served: pool `late`"), "{done:?}");
        assert!(config.undeclared.contains("late"));
        node.shut_down().unwrap();
    }

    /// A device answers after a reload has looked which pools are served, and before it is applied.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_pool_that_is_served_during_a_reload_keeps_its_section() {
        for (text, then) in
            [(String::new(), "still served: pool `late` (no"), (late("128MiB"), "needs a restart: pool `late`")]
        {
            let dir = tempfile::tempdir().unwrap();
            let (node, config, held) = started(dir.path()).await;
            let (held, serving) = (std::sync::Mutex::new(Some(held)), node.clone());
            let serving = tokio::spawn(async move { serving.serve_late_pools().await });
            let reread = || {
                drop(held.lock().unwrap().take());
                while !node.serves_pool("late") {
                    std::thread::yield_now();
                }
                parse(dir.path(), &text)
            };
            let (config, done) = reload(&node, config.clone(), &reread).await;
            serving.await.unwrap();
            assert!(done.as_ref().unwrap().text().starts_with(then), "{done:?}");
            let is_kept = |p: &crate::config::PoolConfig| {
                p.name.get_ref() == "late"
                    && p.device.size == parse(dir.path(), &late("64MiB")).unwrap().pool[1].device.size
            };
            assert!(config.pool.iter().any(is_kept));
            let (_, again) = reload(&node, config, &|| parse(dir.path(), &text)).await;
            assert!(again.as_ref().unwrap().text().starts_with(then), "{again:?}");
            node.shut_down().unwrap();
        }
    }
}
