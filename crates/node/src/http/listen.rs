//! Serving HTTP/1.1 on TCP and unix sockets, with bounds: the number of connections, and a peer's time for each phase.
//!
//! | phase | limit |
//! |---|---|
//! | from the opening, or the last answer, to the end of a request's headers | `Times::headers` |
//! | a request's body | `Times::body` |
//! | taking an answer: without progress | `Times::write` |
//! | taking an answer: waiting for the peer, in all | `Times::writes` |
//!
//! Computing an answer has no limit of its own: deleting a volume takes as long as zeroing it does. A newcomer finds room
//! as long as others are idle, or ask or read slowly (see [`Crowd`]).

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

/// Time limits of a connection's phases.
#[derive(Clone, Copy, Debug)]
struct Times {
    /// From the opening of a connection, or the last answer, to the next request's headers.
    headers: Duration,
    /// For a request's body, of 64 KiB at most.
    body: Duration,
    /// Time after which a peer that takes nothing of an answer is disconnected.
    write: Duration,
    /// The same for all waits since the peer last sent something.
    writes: Duration,
}

/// The limits of all connections but those of tests.
const TIMES: Times = Times {
    headers: Duration::from_secs(30),
    body: Duration::from_secs(10),
    write: Duration::from_secs(10),
    writes: Duration::from_secs(60),
};

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
    let serve = |pulse| tokio::spawn(connection(stream, peer, router.clone(), pulse, TIMES)).abort_handle();
    if !crowd.admit(key, serve) {
        static NOTES: Seldom = Seldom::new();
        if NOTES.may() {
            tracing::warn!(?peer, "refused a control client: the limit of connections is reached; try again later");
        }
    }
}

async fn connection<S>(stream: S, peer: Peer, router: Router, pulse: Arc<Pulse>, times: Times)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let stream = Timed { stream, times, pulse: pulse.clone(), waiting: None, waited: Duration::ZERO };
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        crate::panics::point("http");
        let body =
            |body| axum::body::Body::new(TimedBody { body, end: Box::pin(sleep(times.body)), pulse: pulse.clone() });
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
        .header_read_timeout(times.headers)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a control connection ended badly");
    }
}

/// A stream whose peer must take what is written within the limits.
struct Timed<S> {
    stream: S,
    times: Times,
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
        let left = self.times.writes.saturating_sub(self.waited).min(self.times.write);
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

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::{get, post};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::task::JoinHandle;

    /// Long enough for no limit of this length to be the one that ends a connection.
    const NEVER: Duration = Duration::from_secs(3600);
    const SHORT: Duration = Duration::from_millis(200);
    const NONE: Times = Times { headers: NEVER, body: NEVER, write: NEVER, writes: NEVER };
    /// Far more than a connection buffers.
    const LARGE: usize = 4 << 20;
    /// Longest wait for an event that must come, on a busy machine, too.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A connection that is served, and its client's end.
    struct Scene {
        client: DuplexStream,
        served: JoinHandle<()>,
        began: Instant,
    }

    fn scene(times: Times) -> Scene {
        let router = Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/large", get(|| async { vec![b'x'; LARGE] }))
            .route("/slow", get(|| async { sleep(5 * SHORT).await }))
            .route("/take", post(|body: Bytes| async move { body.len().to_string() }));
        let (client, ours) = tokio::io::duplex(4096);
        let (pulse, peer) = (Arc::new(Pulse::new()), Peer::Unix(0));
        let served = tokio::spawn(connection(ours, peer, router, pulse, times));
        Scene { client, served, began: Instant::now() }
    }

    impl Scene {
        async fn ask(&mut self, text: &str) {
            self.client.write_all(text.as_bytes()).await.unwrap();
        }

        /// The next answer, up to the end of its body, which these words are.
        async fn answered(&mut self, body: &str) {
            let mut got = Vec::new();
            while !got.ends_with(body.as_bytes()) {
                let read = tokio::time::timeout(PATIENCE, self.client.read_buf(&mut got)).await;
                assert!(read.expect("it comes").unwrap() > 0, "ended after {:?}", String::from_utf8_lossy(&got));
            }
            assert!(got.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&got));
        }

        /// The connection is ended by the node, not before the limit. Returns what the client had not read.
        async fn ends_after(mut self, limit: Duration) -> String {
            tokio::time::timeout(PATIENCE, &mut self.served).await.expect("the connection ends").unwrap();
            assert!(self.began.elapsed() >= limit, "ended after {:?}", self.began.elapsed());
            let mut rest = Vec::new();
            self.client.read_to_end(&mut rest).await.unwrap();
            String::from_utf8_lossy(&rest).into_owned()
        }
    }

    #[tokio::test]
    async fn a_peer_that_asks_nothing_is_let_go() {
        let s = scene(Times { headers: SHORT, ..NONE });
        assert_eq!(s.ends_after(SHORT).await, "");
    }

    #[tokio::test]
    async fn headers_that_go_on_coming_end_at_the_limit() {
        let mut s = scene(Times { headers: SHORT, ..NONE });
        s.ask("GET / HTTP/1.1\r\n").await;
        // Each has its newline; the empty line that would end them never comes.
        while s.client.write_all(b"X: y\r\n").await.is_ok() {
            assert!(s.began.elapsed() < PATIENCE, "headers may come for ever");
            sleep(SHORT / 10).await;
        }
        s.ends_after(SHORT).await;
    }

    #[tokio::test]
    async fn a_peer_that_is_idle_after_an_answer_is_let_go() {
        let mut s = scene(Times { headers: SHORT, ..NONE });
        s.ask("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        s.answered("hello").await;
        assert_eq!(s.ends_after(SHORT).await, "");
    }

    #[tokio::test]
    async fn a_body_that_goes_on_coming_ends_at_the_limit() {
        let mut s = scene(Times { body: SHORT, ..NONE });
        s.ask("POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n").await;
        while s.client.write_all(b"y").await.is_ok() {
            assert!(s.began.elapsed() < PATIENCE, "a body may come for ever");
            sleep(SHORT / 10).await;
        }
        let said = s.ends_after(SHORT).await;
        assert!(said.starts_with("HTTP/1.1 400") && said.contains("took too long"), "{said}");
    }

    #[tokio::test]
    async fn an_answer_of_which_nothing_is_taken_ends_at_the_limit() {
        let mut s = scene(Times { write: SHORT, ..NONE });
        s.ask("GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let rest = s.ends_after(SHORT).await;
        assert!(rest.len() < LARGE, "all of it was taken");
    }

    /// Each byte that is taken is progress; all waits together have a limit, too.
    #[tokio::test]
    async fn an_answer_that_is_taken_slowly_ends_at_the_limit_of_all_waits() {
        let mut s = scene(Times { writes: SHORT, ..NONE });
        s.ask("GET /large HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let mut taken = 0;
        while !s.served.is_finished() {
            assert!(s.began.elapsed() < PATIENCE, "an answer may be taken for ever");
            taken += s.client.read(&mut [0; 64]).await.unwrap();
            sleep(SHORT / 100).await;
        }
        assert!(taken < LARGE, "all of it was taken");
        s.ends_after(SHORT).await;
    }

    /// The time that the node takes for an answer is none of the peer's.
    #[tokio::test]
    async fn an_answer_may_take_longer_than_any_limit() {
        let mut s = scene(Times { headers: SHORT, body: SHORT, write: SHORT, writes: SHORT });
        s.ask("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let mut got = Vec::new();
        while !got.ends_with(b"\r\n\r\n") {
            let read = tokio::time::timeout(PATIENCE, s.client.read_buf(&mut got)).await;
            assert!(read.expect("it comes").unwrap() > 0, "ended without an answer");
        }
        assert!(got.starts_with(b"HTTP/1.1 200"), "{:?}", String::from_utf8_lossy(&got));
    }
}
