//! Running a node: from a configuration to the last flush.

use crate::config::Config;
use crate::node::{Node, NodeError};
use crate::service::Service;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// Serves until SIGTERM or SIGINT: then clients are let go, what is inside finishes, and everything is flushed.
///
/// `ready` is called once when clients are taken in.
pub async fn serve(config: &Config, ready: impl FnOnce(&Node)) -> Result<(), NodeError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(failed("signals"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed("signals"))?;
    let tls = match &config.listen.tls {
        None => None,
        Some(t) => Some((crate::tls::acceptor(t).map_err(NodeError::Refused)?, t.required)),
    };
    let node = Arc::new(Node::start(config).await?);
    let pools = node.pools.iter().map(|p| p.handle.clone()).collect();
    let service = Arc::new(Service { directory: node.directory.clone(), pools, tls });
    let mut tasks = JoinSet::new();
    let mut sockets = Sockets(Vec::new());
    if let Some(path) = &config.listen.unix {
        let listener = bind_unix(path, "listen.unix")?;
        sockets.0.push(path.clone());
        tasks.spawn(service.clone().serve_unix(listener));
    }
    if let Some(address) = config.listen.tcp {
        let listener = TcpListener::bind(address).await.map_err(failed(&format!("listen.tcp {address}")))?;
        tasks.spawn(service.clone().serve_tcp(listener));
    }
    ready(&node);
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: finishing what is inside"),
        _ = interrupt.recv() => tracing::info!("SIGINT: finishing what is inside"),
    }
    tasks.shutdown().await;
    drop(sockets);
    let ended = tokio::task::spawn_blocking(move || node.shut_down()).await;
    ended.map_err(|e| NodeError::Failed(format!("shutting down: {e}")))
}

fn failed<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> NodeError {
    let what = what.to_string();
    move |e| NodeError::Failed(format!("{what}: {e}"))
}

/// Unix sockets that are removed at the end.
struct Sockets(Vec<PathBuf>);

impl Drop for Sockets {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path); // somebody may have removed it before
        }
    }
}

/// Binds a unix socket. One that a killed node left behind is taken over; one that somebody serves is not.
fn bind_unix(path: &Path, key: &str) -> Result<UnixListener, NodeError> {
    let what = format!("{key} {}", path.display());
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => return Err(NodeError::Failed(format!("{what}: another process serves this socket"))),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed(&what))?;
        }
        Err(_) => {} // there is none, or binding will say what is wrong
    }
    UnixListener::bind(path).map_err(failed(&what))
}
