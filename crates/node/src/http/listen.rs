//! Serving HTTP/1.1 on TCP and unix sockets: how many at once, how long a peer may take to ask.

use super::auth::Peer;
use crate::service::accept_failed;
use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt;

/// Connections at once, per listener; more wait to be accepted.
const CONNECTIONS_MAX: usize = 128;
/// From the opening of a connection, or the last answer, to the next request's headers: an idle one makes room.
const HEADER_TIME: Duration = Duration::from_secs(30);

/// Serves `router` on TCP until dropped.
pub async fn serve_tcp(listener: TcpListener, router: Router) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = slots.clone().acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, from)) => drop(tokio::spawn(connection(stream, Peer::Tcp(from), router.clone(), slot))),
            Err(e) => accept_failed("a control", &e).await,
        }
    }
}

/// Serves `router` on a unix socket until dropped.
pub async fn serve_unix(listener: UnixListener, router: Router) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = slots.clone().acquire_owned().await.expect("never closed");
        match listener.accept().await {
            Ok((stream, _)) => match stream.peer_cred() {
                Ok(cred) => {
                    drop(tokio::spawn(connection(stream, Peer::Unix(cred.uid()), router.clone(), slot)));
                }
                Err(error) => tracing::warn!(%error, "a control client without credentials is let go"),
            },
            Err(e) => accept_failed("a control", &e).await,
        }
    }
}

async fn connection<S>(stream: S, peer: Peer, router: Router, _slot: OwnedSemaphorePermit)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(peer);
        router.clone().oneshot(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a control connection ended badly");
    }
}
