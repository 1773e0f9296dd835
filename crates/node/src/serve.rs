//! Running a node: from a configuration to the last flush.

use crate::config::Config;
use crate::http::{self, Control, Token, Told};
use crate::node::{Node, NodeError};
use crate::seats::{Descriptors, Seats};
use crate::service::{Front, Service};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// Where a node listens, with the ports that it was given where the configuration left the choice (port 0).
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

/// A pool that needs longer to recover isn't waited for before the node says that it serves: its clients are told.
const RECOVERY_TIME: Duration = Duration::from_secs(5);

/// Serves until SIGTERM or SIGINT: then clients are let go, what is inside finishes, and everything is flushed.
///
/// `ready` is called once when clients are taken in.
pub async fn serve(config: &Config, ready: impl FnOnce(&Node, &Bound)) -> Result<(), NodeError> {
    allow_many_descriptors();
    crate::memory::keep_large_allocations_apart();
    let tls = match &config.listen.tls {
        None => None,
        Some(t) => Some((crate::tls::acceptor(t).map_err(NodeError::Refused)?, t.required)),
    };
    let token =
        config.control.token_file.as_deref().map(Token::load_or_make).transpose().map_err(NodeError::Refused)?;
    // Before any device is opened: a port in use must be told at once, and harm nothing.
    let listeners = Listeners::bind(config).await?;
    let node = Arc::new(Node::start(config).await?);
    // From here on. While devices are opened, formatted and recovered, which may take long, a signal ends the process as
    // ever: nobody has been promised anything yet, and every step of the start survives being cut.
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("signals"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed("signals"))?;
    let pools = node.pools.iter().map(|p| p.handle.clone()).collect();
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
        pools,
        tls,
        tls_sessions: Default::default(),
        nvme: Default::default(),
        seats: Seats::new(seats, descriptors.nbd),
        handshakes: (limits.handshakes.min(half), limits.handshakes_per_peer),
    });
    let bound = listeners.bound.clone();
    let started = std::time::Instant::now();
    let local_reads = config.control.local_reads;
    let control =
        Control { node: node.clone(), bound: bound.clone(), token, local_reads, started, told: Told::default() };
    let api = http::router(Arc::new(control));
    let mut tasks = JoinSet::new();
    let interrupted = node.interrupted_deletions();
    let sockets = listeners.serve(&mut tasks, (&nbd, service.clone()), (&http, api, descriptors.control))?;
    let deletions = node.clone();
    tasks.spawn(async move { deletions.resume_deletions(interrupted).await });
    let homecomings = node.clone();
    tasks.spawn(async move { homecomings.note_homecomings().await });
    node.recovered(RECOVERY_TIME).await;
    ready(&node, &bound);
    let mut lost = None;
    loop {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: finishing what is inside"),
            _ = interrupt.recv() => tracing::info!("SIGINT: finishing what is inside"),
            _ = hangup.recv() => {
                crate::panics::point("control");
                tracing::warn!("SIGHUP: nothing is reloaded; restart the node for a changed configuration");
                continue;
            }
            pool = node.a_pool_ended() => {
                tracing::error!(pool, "its thread has ended: the node ends, too, after its other pools are flushed");
                lost = Some(pool);
            }
        }
        break;
    }
    tasks.shutdown().await;
    drop(sockets);
    let ended = tokio::task::spawn_blocking(move || node.shut_down()).await;
    // The pools have answered everything; answers to TLS clients still have to go through their sessions.
    service.end_tls_sessions().await;
    service.nvme.end().await;
    ended.map_err(|e| NodeError::Failed(format!("shutting down: {e}")))??;
    match lost {
        Some(pool) => Err(NodeError::Failed(format!("pool `{pool}` ended while it served; the log says why"))),
        None => Ok(()),
    }
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
    /// Whoever drops it may be an async thread, which must not wait.
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
            let (listener, address) = bind_tcp(address, "listen.tcp").await?;
            (all.nbd_tcp, all.bound.nbd_tcp) = (Some(listener), Some(address));
        }
        if let Some(address) = config.listen.nvme_tcp {
            let (listener, address) = bind_tcp(address, "listen.nvme_tcp").await?;
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
            let (listener, address) = bind_tcp(address, "control.http").await?;
            (all.control_http, all.bound.control_http) = (Some(listener), Some(address));
        }
        Ok(all)
    }

    /// Takes clients in; the sockets' files are removed when what is returned is dropped.
    fn serve(
        self,
        tasks: &mut JoinSet<()>,
        (nbd, service): (&Threads, Arc<Service>),
        (http, api, control_max): (&Threads, axum::Router, usize),
    ) -> Result<Sockets, NodeError> {
        if let Some(listener) = self.nbd_unix {
            let listener = moved(nbd, listener, UnixListener::into_std, UnixListener::from_std)?;
            tasks.spawn_on(service.clone().serve_unix(listener), nbd.handle());
        }
        if let Some(listener) = self.nbd_tcp {
            let listener = moved(nbd, listener, TcpListener::into_std, TcpListener::from_std)?;
            tasks.spawn_on(service.clone().serve_tcp(listener, Front::Nbd), nbd.handle());
        }
        if let Some(listener) = self.nvme_tcp {
            let listener = moved(nbd, listener, TcpListener::into_std, TcpListener::from_std)?;
            tasks.spawn_on(service.serve_tcp(listener, Front::Nvme), nbd.handle());
        }
        if let Some(listener) = self.control_unix {
            let listener = moved(http, listener, UnixListener::into_std, UnixListener::from_std)?;
            tasks.spawn_on(crate::http::serve_unix(listener, api.clone(), control_max), http.handle());
        }
        if let Some(listener) = self.control_http {
            let listener = moved(http, listener, TcpListener::into_std, TcpListener::from_std)?;
            tasks.spawn_on(crate::http::serve_tcp(listener, api, control_max), http.handle());
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

async fn bind_tcp(address: SocketAddr, key: &str) -> Result<(TcpListener, SocketAddr), NodeError> {
    let what = format!("{key} {address}");
    let listener = TcpListener::bind(address).await.map_err(|e| match e.kind() {
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

/// Binds a unix socket. One that a killed node left behind is taken over; one that somebody serves is not.
fn bind_unix(path: &Path, key: &str) -> Result<UnixListener, NodeError> {
    let what = format!("{key} {}", path.display());
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(NodeError::Failed(format!("{what}: another process serves this socket"))),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused && is_socket(path) => {
            std::fs::remove_file(path).map_err(failed(&what))?;
        }
        Err(_) => {} // there is none, or binding will say what is wrong
    }
    UnixListener::bind(path).map_err(failed(&what))
}
