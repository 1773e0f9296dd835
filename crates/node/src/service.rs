//! Taking clients in: listening, the handshake, TLS; then the socket goes to its pool's thread.

mod nvme;

use crate::crowd::{Crowd, PeerKey, Pulse, Standing};
use crate::directory::{Directory, Identity, Shown};
use crate::engine::{Command, Wire, is_disconnect};
use crate::events::{Events, Kind, Severity};
use crate::node::Pools;
use crate::replica::{Granted, Replica, ReplicaUse};
use crate::seats::{Seat, Seats};
use nvme::Controllers;
use plimsoll_nbd::export::{Refusal, RefusalReason};
use plimsoll_nbd::handshake::{Event, Negotiated, ServerHandshake, TlsMode};
use plimsoll_nbd::wire::REQUEST_BYTES;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, Interest,
};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

/// Time limit of a client's handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(30);
/// Bytes of each direction of a TLS session that are on their way between it and its pool.
const RELAY_BYTES: usize = 256 << 10;
/// Bytes that a client which has left may have sent before, at most: more than a socket's buffer.
const LEFT_MAX: u64 = 16 << 20;
/// Time that a TLS client has to take its last answers after its pool has ended.
const TLS_END_TIME: Duration = Duration::from_secs(5);
/// A TLS session looks this often whether its pool has ended, which it doesn't hear while its client takes nothing.
const RELAY_LOOK: Duration = Duration::from_secs(1);
/// Time that the copier of an ended resync has to be gone from the volume when the next one connects.
const COPIER_LEAVES: Duration = Duration::from_secs(5);
/// Silence of a TCP client after which keepalive probes begin; [`KEEPALIVE_EVERY`] is their interval.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMES: u32 = 6;

/// State that all connections share.
pub struct Service {
    /// Volumes, tenants, grants.
    pub directory: Arc<RwLock<Directory>>,
    /// The pools, by number.
    pub pools: Arc<Pools>,
    /// The event log.
    pub events: Arc<Events>,
    /// TLS for TCP clients, and whether it's required. A reload replaces it.
    pub tls: RwLock<Option<(TlsAcceptor, bool)>>,
    /// The TLS sessions of clients that are served.
    pub tls_sessions: Mutex<JoinSet<()>>,
    /// Controllers of NVMe hosts.
    pub nvme: Controllers,
    /// Bounds on connections.
    pub seats: Arc<Seats>,
    /// Handshakes at once, per listener: of all, and of one peer.
    pub handshakes: (usize, usize),
}

/// A protocol that clients speak on a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Front {
    /// NBD.
    Nbd,
    /// NVMe/TCP.
    Nvme,
}

/// A client in its handshake.
struct Guest {
    who: Identity,
    seat: Seat,
    pulse: Arc<Pulse>,
}

enum Outcome {
    /// The handshake is over.
    Agreed(Box<Agreed>),
    /// The client wants TLS now.
    StartTls,
    /// Nothing more to do.
    Closed,
}

/// A client whose handshake is over, and that isn't attached yet.
struct Agreed {
    negotiated: Negotiated,
    /// Bytes that were received behind the handshake.
    early: Vec<u8>,
    shown: Shown,
    /// The grant of a writer of several replicas.
    granted: Option<Granted>,
}

impl Service {
    /// Accepts clients on a unix socket until dropped.
    pub async fn serve_unix(self: Arc<Self>, listener: UnixListener) {
        let handshakes = Crowd::new(self.handshakes.0, self.handshakes.1);
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    crate::panics::point("nbd");
                    let uid = stream.peer_cred().ok().map(|c| c.uid());
                    let who = Identity { local: true, uid, ..Identity::default() };
                    let service = self.clone();
                    let client = move |guest| async move { service.unix_client(stream, guest).await };
                    let peer = PeerKey::Uid(uid.unwrap_or(u32::MAX));
                    handshakes.make_room(peer).await;
                    self.take_in(&handshakes, peer, who, client);
                }
                Err(e) => accept_failed("a storage", &e).await,
            }
        }
    }

    /// Accepts clients on TCP until dropped.
    pub async fn serve_tcp(self: Arc<Self>, listener: TcpListener, front: Front) {
        let handshakes = Crowd::new(self.handshakes.0, self.handshakes.1);
        loop {
            match listener.accept().await {
                Ok((stream, from)) => {
                    crate::panics::point("nbd");
                    let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                    let who = Identity { local: from.ip().is_loopback(), address: Some(from), ..Identity::default() };
                    let service = self.clone();
                    let client = move |guest| async move {
                        match front {
                            Front::Nbd => service.tcp_client(stream, guest).await,
                            Front::Nvme => service.nvme_client(stream, guest).await,
                        }
                    };
                    let peer = PeerKey::host(from.ip());
                    handshakes.make_room(peer).await;
                    self.take_in(&handshakes, peer, who, client);
                }
                Err(e) => accept_failed("a storage", &e).await,
            }
        }
    }

    /// Says which bound keeps newcomers out.
    fn refused_for(&self, peer: PeerKey, limit: &str) {
        let who = match peer {
            PeerKey::Uid(uid) => format!("uid:{uid}"),
            PeerKey::Host(address) => address.to_string(),
        };
        let what = format!("an NBD client is refused: {limit} is reached; raise it if there are to be more");
        self.events.add(Kind::Refusal, Severity::Warning, Some(who), what);
    }

    /// Begins a client's handshake, if there is a seat for it. Without one its socket closes.
    fn take_in<F>(&self, handshakes: &Crowd, peer: PeerKey, who: Identity, client: impl FnOnce(Guest) -> F)
    where
        F: Future<Output = io::Result<()>> + Send + 'static,
    {
        let seat = match self.seats.take(peer) {
            Ok(seat) => seat,
            Err(limit) => return self.refused_for(peer, limit),
        };
        let begin = |pulse| {
            let handshake = client(Guest { who, seat, pulse });
            tokio::spawn(async { log_end(tokio::time::timeout(HANDSHAKE_TIME, handshake).await) }).abort_handle()
        };
        if !handshakes.admit(peer, begin) {
            self.refused_for(peer, "limits.handshakes or limits.handshakes_per_peer");
        }
    }

    async fn unix_client(&self, mut stream: UnixStream, guest: Guest) -> io::Result<()> {
        let mut handshake = ServerHandshake::new(TlsMode::Off);
        match self.negotiate(&mut stream, &mut handshake, &guest).await? {
            Outcome::Agreed(agreed) => {
                let std = stream.into_std()?;
                std.set_nonblocking(false)?;
                self.attach_nbd(std.into(), *agreed, guest).map(drop)
            }
            Outcome::StartTls | Outcome::Closed => Ok(()),
        }
    }

    async fn tcp_client(&self, mut stream: TcpStream, mut guest: Guest) -> io::Result<()> {
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let tls = self.tls.read().expect("no panic while held").clone();
        let mode = match &tls {
            None => TlsMode::Off,
            Some((_, true)) => TlsMode::Required,
            Some((_, false)) => TlsMode::Optional,
        };
        let mut handshake = ServerHandshake::new(mode);
        match self.negotiate(&mut stream, &mut handshake, &guest).await? {
            Outcome::Agreed(agreed) => {
                let std = stream.into_std()?;
                std.set_nonblocking(false)?;
                self.attach_nbd(std.into(), *agreed, guest).map(drop)
            }
            Outcome::Closed => Ok(()),
            Outcome::StartTls => {
                let (acceptor, _) = tls.expect("offered only where configured");
                let accepted = acceptor.accept(stream).await;
                let mut tls = accepted.inspect_err(|e| {
                    let what = format!("TLS handshake failed: {e}");
                    self.events.add(Kind::Tls, Severity::Warning, Some(guest.who.to_string()), what);
                })?;
                handshake.tls_established();
                guest.who.cert =
                    tls.get_ref().1.peer_certificates().and_then(|chain| crate::tls::common_name(chain.first()?));
                let Outcome::Agreed(agreed) = self.negotiate(&mut tls, &mut handshake, &guest).await? else {
                    return Ok(());
                };
                // The pool's thread speaks plain NBD: a pair of sockets carries it to and from the TLS session, which
                // stays here. Dearer than plain (two more copies), and the pool needs to know nothing of TLS.
                guest.seat.takes_descriptors(3).map_err(full)?;
                let socket = rustix::io::fcntl_dupfd_cloexec(tls.get_ref().0, 0)?;
                let socket = TcpStream::from_std(socket.into())?;
                let (ours, theirs) = UnixStream::pair()?;
                let std = theirs.into_std()?;
                std.set_nonblocking(false)?;
                let seat = self.attach_nbd(std.into(), *agreed, guest)?;
                let mut sessions = self.tls_sessions.lock().expect("no panic while held");
                while sessions.try_join_next().is_some() {} // those that have ended meanwhile
                sessions.spawn(async move {
                    // The pool's side has the other half of the seat until it ends. Here are the descriptors.
                    relay(tls, ours, has_left(socket), || Arc::strong_count(&seat) == 1).await;
                });
                Ok(())
            }
        }
    }

    /// Drives a handshake over `stream` to its end.
    async fn negotiate<S>(&self, stream: &mut S, handshake: &mut ServerHandshake, guest: &Guest) -> io::Result<Outcome>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let who = &guest.who;
        let mut buffer = vec![0; 8192];
        let mut have = 0..0;
        let mut opened = None;
        loop {
            while let Some(event) = handshake.poll_event() {
                match event {
                    Event::ListExports => {
                        let exports = self.directory.read().expect("no panic while held").list(who);
                        handshake.answer_list(Ok(&exports));
                    }
                    Event::LookUpExport { name, opens } => {
                        let mut answer = self.look_up(who, &name, opens);
                        if opens && let Ok(shown) = &answer {
                            match self.mark_open(who, &name, shown).await {
                                Ok(granted) => opened = Some((shown.clone(), granted)),
                                Err(refusal) => answer = Err(refusal),
                            }
                        }
                        if let Err(refusal) = &answer {
                            let what = format!("export `{name}` refused: {}", refusal.text);
                            self.events.add(Kind::Refusal, Severity::Warning, Some(who.to_string()), what);
                        }
                        handshake.answer_export(answer.map(|shown| shown.export));
                    }
                    Event::StartTls => {
                        send(stream, handshake).await?;
                        return Ok(if have.is_empty() { Outcome::StartTls } else { Outcome::Closed });
                    }
                    Event::Transmission(agreed) => {
                        send(stream, handshake).await?;
                        let (shown, granted) = opened.expect("an export that opens was looked up to be opened");
                        let early = buffer[have].to_vec();
                        return Ok(Outcome::Agreed(Box::new(Agreed { negotiated: *agreed, early, shown, granted })));
                    }
                    Event::Closed(why) => {
                        tracing::debug!(%why, "handshake ended");
                        send(stream, handshake).await?;
                        return Ok(Outcome::Closed);
                    }
                }
            }
            send(stream, handshake).await?;
            if have.is_empty() {
                let n = stream.read(&mut buffer).await?;
                if n == 0 {
                    return Ok(Outcome::Closed);
                }
                guest.pulse.beat(Standing::Speaking);
                have = 0..n;
            }
            have.start += handshake.handle(&buffer[have.clone()]);
        }
    }

    /// The export that a client asks for, if it may use it, and if its tenant may have another connection where it opens it.
    fn look_up(&self, who: &Identity, name: &str, opens: bool) -> Result<Shown, Refusal> {
        let directory = self.directory.read().expect("no panic while held");
        let found = directory.look_up(who, name).map_err(|refusal| match refusal.reason {
            // Whoever may use it is told, as its volume may come.
            RefusalReason::Unknown if directory.is_granted(who, name) && !self.pools.late_names().is_empty() => {
                let what = format!(
                    "volume `{name}` isn't served here now: a pool that may have it is still being opened. Connect again later; the operator \
                     sees the pool in `plimsoll status`"
                );
                Refusal::new(RefusalReason::Unavailable, what)
            }
            _ => refusal,
        })?;
        let (tenant, id) = directory.tenant(who, name)?;
        if opens && self.seats.is_full(id) {
            let what = format!("tenant `{tenant}` has reached limits.connections_per_tenant");
            return Err(Refusal::new(RefusalReason::Unavailable, what));
        }
        Ok(found)
    }

    /// Before anybody who could change a volume is let in, it's durable that only an orderly end is a clean one. Returns the grant of
    /// one who writes to several replicas. Does nothing for those who can't change it. Refuses those whom a resync excludes.
    async fn mark_open(&self, who: &Identity, name: &str, shown: &Shown) -> Result<Option<Granted>, Refusal> {
        if !shown.writes() {
            return Ok(None);
        }
        shown.replica.admits(shown.used_as, COPIER_LEAVES).await.map_err(|why| {
            Refusal::new(RefusalReason::Unavailable, format!("volume `{}` {why}", shown.export.canonical_name))
        })?;
        let granted = {
            let directory = self.directory.read().expect("no panic while held");
            let volume = directory.volume(who, name, &shown.replica)?;
            // Under the lock: whoever takes the volume out of the directory finds it.
            (shown.used_as == Some(ReplicaUse::Write)).then(|| Granted::of(volume.replica.clone()))
        };
        let opened = shown.replica.clone().open_for_client().await;
        opened.map_err(|e| Refusal::new(RefusalReason::Unavailable, e.to_string()))?;
        Ok(granted)
    }

    /// Waits until every TLS client has what its pool answered, or has had the time to take it.
    pub async fn end_tls_sessions(&self) {
        let sessions = std::mem::take(&mut *self.tls_sessions.lock().expect("no panic while held"));
        let all = sessions.join_all();
        if tokio::time::timeout(TLS_END_TIME, all).await.is_err() {
            tracing::warn!("TLS clients didn't take their last answers");
        }
    }

    fn attach_nbd(&self, fd: OwnedFd, agreed: Agreed, guest: Guest) -> io::Result<Arc<Seat>> {
        let Agreed { negotiated, early, shown, granted } = agreed;
        let wire = Wire::from(&negotiated);
        let attached = self.attach(Arc::new(fd), (&negotiated.export_name, wire, &shown.replica), guest, early);
        if attached.is_err() {
            granted.into_iter().for_each(Granted::lost);
        }
        attached
    }

    /// Gives a client to its pool. Its seat is the pool's, too.
    fn attach(
        &self,
        fd: Arc<OwnedFd>,
        (name, wire, shown): (&str, Wire, &Arc<Replica>),
        guest: Guest,
        early: Vec<u8>,
    ) -> io::Result<Arc<Seat>> {
        let Guest { who, mut seat, .. } = guest;
        // Looked up again: between the option and now the volume may have gone, and another have its name. The lock is held until the pool has the client: whoever
        // takes a volume out of the directory finds all of its clients in the pool.
        let directory = self.directory.read().expect("no panic while held");
        let (pool, params) = directory.open(&who, name, wire, shown).map_err(refused)?;
        seat.belongs_to(params.tenant).map_err(full)?;
        let by = Some(who.to_string());
        self.events.add_soon(Kind::Connection, Severity::Info, by.clone(), format!("opened `{name}`"));
        seat.notes_its_end(self.events.clone(), by, name);
        let ours = Arc::new(seat);
        let seat = Some(ours.clone());
        let gone = |_| refused(Refusal::new(RefusalReason::ShuttingDown, "the pool has ended"));
        let (replica, used_as) = (params.replica.clone(), params.used_as);
        self.pools.get(pool).handle.send(Command::Attach { fd, params, early, seat }).map_err(|e| {
            if used_as == Some(ReplicaUse::Write) {
                replica.lost(); // an NVMe host, too, may have been told that it's open, and write elsewhere
            }
            gone(e)
        })?;
        drop(directory);
        self.events.settle();
        Ok(ours)
    }
}

/// Makes the kernel ask silent clients whether they are still there. A host that vanished without a word would hold its
/// connection, and what its tenant may have, for ever.
///
/// TCP_USER_TIMEOUT isn't set, although keepalive says nothing while answers are unacknowledged. It also ends connections
/// whose window is closed, however often the peer acknowledges probes: a client that pauses would be cut, which it may do as
/// long as nobody waits for what it holds. The kernel's own retransmissions end the others (`tcp_retries2`).
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TIMES)?;
    Ok(sockopt::set_socket_keepalive(stream, true)?)
}

fn full(limit: &str) -> io::Error {
    io::Error::other(format!("the limit of connections ({limit}) is reached"))
}

fn refused(r: Refusal) -> io::Error {
    io::Error::other(r.text)
}

/// Ends when the peer of a socket has closed it, though some of what it sent may be unread.
async fn has_left(socket: TcpStream) {
    // If it can't be waited for, the next read or write tells.
    while let Ok(ready) = socket.ready(Interest::READABLE).await {
        if ready.is_read_closed() {
            return;
        }
        // These bytes are somebody else's to read: waits for the next news.
        let _ = socket.try_io(Interest::READABLE, || Err::<(), _>(io::ErrorKind::WouldBlock.into()));
    }
    std::future::pending().await
}

/// Carries a client's bytes to its pool until either ends, or the client leaves while the pool takes nothing. Then the pool must learn of it
/// at once: it drops the requests that waited, since their client may have repeated them on another connection. A client that has taken its
/// leave by a disconnect is heard out.
async fn carry(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    has_left: impl Future<Output = ()>,
) -> io::Result<()> {
    tokio::pin!(has_left);
    loop {
        let bytes = from.fill_buf().await?;
        if bytes.is_empty() {
            return Ok(());
        }
        let taken = tokio::select! {
            biased;
            taken = to.write(bytes) => taken?,
            () = &mut has_left => {
                let mut rest = bytes.to_vec();
                from.consume(rest.len());
                let _ = (&mut *from).take(LEFT_MAX).read_to_end(&mut rest).await; // it may end without TLS's own end
                if !is_disconnect(&rest[rest.len().saturating_sub(REQUEST_BYTES)..]) {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                return to.write_all(&rest).await;
            }
        };
        from.consume(taken);
    }
}

/// Carries bytes between a TLS client and its pool until the pool has sent its last, and the client has taken it or had
/// the time to.
async fn relay<S: AsyncRead + AsyncWrite>(
    tls: S,
    pool: UnixStream,
    has_left: impl Future<Output = ()>,
    pool_has_ended: impl Fn() -> bool,
) {
    let (from_client, mut to_client) = tokio::io::split(tls);
    let (from_pool, mut to_pool) = pool.into_split();
    let mut from_client = BufReader::with_capacity(RELAY_BYTES, from_client);
    let mut from_pool = BufReader::with_capacity(RELAY_BYTES, from_pool);
    let asks = async {
        let heard = carry(&mut from_client, &mut to_pool, has_left).await;
        // The pool hears that no more will come, and closes when it has answered the rest.
        drop(to_pool);
        if heard.is_err() {
            // One of the two is gone. If it's the pool that takes nothing more, its answers must still find a client that
            // isn't stuck in sending.
            let _ = tokio::io::copy_buf(&mut from_client, &mut tokio::io::sink()).await;
        }
        std::future::pending::<()>().await
    };
    let answers = async {
        let _ = tokio::io::copy_buf(&mut from_pool, &mut to_client).await; // how a client ends is its own business
        let _ = to_client.shutdown().await;
    };
    let end = async {
        while !pool_has_ended() {
            tokio::time::sleep(RELAY_LOOK).await;
        }
        tokio::time::sleep(TLS_END_TIME).await;
    };
    tokio::select! {
        () = asks => {}
        () = answers => {}
        () = end => tracing::debug!("a TLS client didn't take its last answers"),
    }
}

async fn send<S: AsyncWrite + Unpin>(stream: &mut S, handshake: &mut ServerHandshake) -> io::Result<()> {
    while !handshake.output().is_empty() {
        let n = stream.write(handshake.output()).await?;
        if n == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        handshake.output_sent(n);
    }
    stream.flush().await
}

fn log_end(result: Result<io::Result<()>, tokio::time::error::Elapsed>) {
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "handshake failed"),
        Err(_) => tracing::debug!("handshake took too long"),
    }
}

/// Handles a listener's failure to accept `whose` client: logs it, and waits a moment.
pub async fn accept_failed(whose: &str, error: &io::Error) {
    tracing::warn!(%error, "accepting {whose} client failed");
    // Out of descriptors, most likely: without a pause this would spin until some close.
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Node;
    use plimsoll_nbd::wire::REQUEST_MAGIC;
    use plimsoll_testkit::HeldOpen;
    use std::io::{Read, Write};

    /// It may come, which only those hear whom a grant lets use it.
    #[tokio::test]
    async fn a_client_of_a_late_pools_volume_gets_another_error_than_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let pool = |name: &str| {
            format!("[[pool]]\nname = \"{name}\"\ndevice = {{ file = \"{name}.img\", size = \"64MiB\" }}\n")
        };
        let grant = "[[grant]]\npeer = \"local\"\nvolumes = [\"mine\"]\n";
        let text = format!("[listen]\nunix = \"nbd.sock\"\n{}{}{grant}", pool("p"), pool("late"));
        let config = crate::config::Config::parse(&text, &dir.path().join("node.toml")).unwrap();
        Node::start(&config).await.unwrap().shut_down().unwrap();
        let held = HeldOpen::of(&dir.path().join("late.img"));
        let node = Arc::new(Node::start_within(&config, Duration::ZERO).await.unwrap());
        let service = Service {
            directory: node.directory.clone(),
            pools: node.pools.clone(),
            events: node.events.clone(),
            tls: RwLock::default(),
            tls_sessions: Default::default(),
            nvme: Default::default(),
            seats: Seats::new(config.limits.clone(), 100),
            handshakes: (100, 100),
        };
        let who = Identity { local: true, ..Identity::default() };
        let refused = |name| service.look_up(&who, name, true).expect_err("there is none");
        let late = refused("mine");
        assert!(
            late.reason == RefusalReason::Unavailable && late.text.contains("is still being opened"),
            "{}",
            late.text
        );
        assert_eq!(refused("others").reason, RefusalReason::Unknown);
        drop(held);
        node.serve_late_pools().await;
        assert_eq!(refused("mine").reason, RefusalReason::Unknown);
        node.shut_down().unwrap();
    }

    /// A client that takes nothing holds its session only for a while after its pool has ended.
    #[tokio::test]
    async fn a_session_ends_though_its_client_takes_nothing() {
        let (_client, session) = tokio::io::duplex(4096);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pool = theirs.into_std().unwrap();
        (&pool).write_all(&[9; 100_000]).unwrap();
        drop(pool);
        tokio::time::timeout(4 * TLS_END_TIME, relay(session, ours, std::future::pending(), || true))
            .await
            .expect("it ends");
    }

    /// A client leaves while its pool takes nothing: the pool learns of it though bytes are left to carry. One that has taken its leave is
    /// heard out, and so is one whose pool takes all.
    #[tokio::test]
    async fn a_pool_that_takes_nothing_learns_that_its_client_has_left() {
        let disconnect = [&REQUEST_MAGIC.to_be_bytes()[..], &[0, 0, 0, 2], &[0; 20]].concat();
        for (sent, end, is_cut) in [(1 << 20, &[][..], true), (1 << 20, &disconnect, false), (1000, &[], false)] {
            let (mut client, session) = tokio::io::duplex(2 << 20);
            let (ours, theirs) = UnixStream::pair().unwrap();
            let sent = [&vec![7; sent], end].concat();
            client.write_all(&sent).await.unwrap();
            drop(client);
            let relayed = tokio::spawn(relay(session, ours, async {}, || false));
            let mut pool = theirs.into_std().unwrap();
            pool.set_nonblocking(false).unwrap();
            let taken = tokio::task::spawn_blocking(move || {
                if is_cut {
                    let mut fds = [rustix::event::PollFd::new(&pool, rustix::event::PollFlags::RDHUP)];
                    assert_eq!(rustix::event::poll(&mut fds, None).unwrap(), 1);
                }
                let mut taken = Vec::new();
                pool.read_to_end(&mut taken).unwrap();
                taken
            });
            let taken = taken.await.unwrap();
            assert!(
                sent.starts_with(&taken) && (taken.len() < sent.len()) == is_cut,
                "{} of {}",
                taken.len(),
                sent.len()
            );
            relayed.abort();
        }
    }

    /// A socket's peer closes it, or only its sending side, with bytes that nobody has read.
    #[tokio::test]
    async fn who_has_left_is_noticed_behind_unread_bytes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for half in [false, true] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (socket, _) = listener.accept().await.unwrap();
            let gone = tokio::spawn(has_left(socket));
            client.write_all(&[7; 10_000]).await.unwrap();
            tokio::task::yield_now().await;
            assert!(!gone.is_finished(), "it is there");
            if half {
                client.shutdown().await.unwrap();
            } else {
                drop(client);
            }
            tokio::time::timeout(Duration::from_secs(30), gone).await.expect("noticed").unwrap();
        }
    }

    /// A pool that ends takes no more, answers what it has, and closes; the client goes on asking meanwhile.
    #[tokio::test]
    async fn a_session_carries_every_answer_to_a_client_that_goes_on_asking() {
        let (mut client, session) = tokio::io::duplex(4096);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut pool = theirs.into_std().unwrap();
        pool.set_nonblocking(false).unwrap();
        let relayed = tokio::spawn(relay(session, ours, std::future::pending(), || false));
        client.write_all(b"first").await.unwrap();
        let pool = tokio::task::spawn_blocking(move || {
            pool.read_exact(&mut [0; 5]).unwrap();
            pool.shutdown(std::net::Shutdown::Read).unwrap();
            pool
        });
        let mut pool = pool.await.unwrap();
        client.write_all(&[7; 100_000]).await.unwrap(); // more than fits anywhere on the way
        let answering = tokio::task::spawn_blocking(move || pool.write_all(&[9; 300_000]).unwrap());
        let mut answers = Vec::new();
        client.read_to_end(&mut answers).await.unwrap();
        assert_eq!(answers, [9; 300_000]);
        answering.await.unwrap();
        relayed.await.unwrap();
    }
}
