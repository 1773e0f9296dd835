//! Serving HTTP/1.1 on TCP and unix sockets: how many at once, how long a peer may take for each phase.
//!
//! | phase | limit |
//! |---|---|
//! | from the opening, or the last answer, to the end of a request's headers | [`HEADER_TIME`] |
//! | a request's body | [`BODY_TIME`] |
//! | taking an answer: without progress | [`WRITE_TIME`] |
//! | taking an answer: waiting for the peer, in all | [`WRITES_TIME`] |
//!
//! Computing an answer has no limit of its own: deleting a volume takes as long as zeroing it does. A newcomer finds room
//! as long as others are idle, or ask or listen slowly (see [`Crowd`]).

use super::auth::Peer;
use crate::crowd::{Crowd, PeerKey, Pulse, Seldom, Standing};
use crate::service::accept_failed;
use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::time::{Instant, Sleep, sleep};
use tower::ServiceExt;

/// From the opening of a connection, or the last answer, to the next request's headers.
const HEADER_TIME: Duration = Duration::from_secs(30);
/// For a request's body, of 64 KiB at most.
const BODY_TIME: Duration = Duration::from_secs(10);
/// Time after which a peer that takes nothing of an answer is disconnected.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// The same for all waits since the peer last sent something.
const WRITES_TIME: Duration = Duration::from_secs(60);

/// Serves `router` on TCP until dropped, `connections_max` at once.
pub async fn serve_tcp(listener: TcpListener, router: Router, connections_max: usize) {
    let crowd = Crowd::new(connections_max, connections_max / 2);
    loop {
        match listener.accept().await {
            Ok((stream, from)) => admit(&crowd, stream, Peer::Tcp(from), PeerKey::host(from.ip()), &router).await,
            Err(e) => accept_failed("a control", &e).await,
        }
    }
}

/// Serves `router` on a unix socket until dropped, `connections_max` at once.
pub async fn serve_unix(listener: UnixListener, router: Router, connections_max: usize) {
    let crowd = Crowd::new(connections_max, connections_max);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.peer_cred() {
                Ok(cred) => admit(&crowd, stream, Peer::Unix(cred.uid()), PeerKey::Uid(cred.uid()), &router).await,
                Err(error) => tracing::warn!(%error, "disconnected a control client: could not read its credentials"),
            },
            Err(e) => accept_failed("a control", &e).await,
        }
    }
}

async fn admit<S>(crowd: &Crowd, stream: S, peer: Peer, key: PeerKey, router: &Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    crowd.make_room(key).await;
    let serve = |pulse| tokio::spawn(connection(stream, peer, router.clone(), pulse)).abort_handle();
    if !crowd.admit(key, serve) {
        static NOTES: Seldom = Seldom::new();
        if NOTES.may() {
            tracing::warn!(?peer, "refused a control client: the limit of connections is reached; try again later");
        }
    }
}

async fn connection<S>(stream: S, peer: Peer, router: Router, pulse: Arc<Pulse>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = Timed { stream, pulse: pulse.clone(), waiting: None, waited: Duration::ZERO };
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        crate::panics::point("http");
        let body =
            |body| axum::body::Body::new(TimedBody { body, end: Box::pin(sleep(BODY_TIME)), pulse: pulse.clone() });
        let mut request: Request = request.map(body);
        request.extensions_mut().insert(peer);
        let (router, pulse) = (router.clone(), pulse.clone());
        pulse.beat(Standing::Served);
        async move {
            let answered = router.oneshot(request).await;
            pulse.beat(Standing::Speaking);
            answered
        }
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

/// A stream whose peer must take what is written within the limits.
struct Timed<S> {
    stream: S,
    pulse: Arc<Pulse>,
    /// While a write waits for the peer: since when, and until when at most.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Time that writes have waited since the peer last sent something.
    waited: Duration,
}

impl<S> Timed<S> {
    /// A write was tried: passes its result on, or the end of the peer's time.
    fn wrote<T>(&mut self, cx: &mut Context<'_>, tried: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if tried.is_ready() {
            self.waited += self.waiting.take().map_or(Duration::ZERO, |(since, _)| since.elapsed());
            return tried;
        }
        let left = WRITES_TIME.saturating_sub(self.waited).min(WRITE_TIME);
        let (_, end) = self.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(sleep(left))));
        ready!(end.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer takes its answer too slowly")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            self.waited = Duration::ZERO;
            self.pulse.beat(Standing::Speaking);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.wrote(cx, tried)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tried = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.wrote(cx, tried)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tried = Pin::new(&mut self.stream).poll_flush(cx);
        let flushed = self.wrote(cx, tried);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            // All that was answered has gone: it's idle until it asks again.
            self.pulse.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tried = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.wrote(cx, tried)
    }
}

/// A request's body that must have come by some time.
struct TimedBody {
    body: Incoming,
    end: Pin<Box<Sleep>>,
    pulse: Arc<Pulse>,
}

type BodyError = Box<dyn std::error::Error + Send + Sync>;

impl Body for TimedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            self.pulse.beat(Standing::Served);
            return Poll::Ready(frame.map(|f| f.map_err(Into::into)));
        }
        // Until the rest has come, the server does nothing for it.
        self.pulse.stands(Standing::Speaking);
        ready!(self.end.as_mut().poll(cx));
        Poll::Ready(Some(Err("the request's body took too long".into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
