//! The other face of the gate: a TCP proxy, for servers that nothing can be preloaded into (static programs, other hosts). It
//! costs a hop, about 50 µs, and sees nothing inside TLS: such connections pass. Its gate is in a control segment as the shim's
//! is, so the same commands show it and change its settings. It has the same rules and users.

use crate::gate::{Answered, ConnId, Gate, USER_OTHERS, Verdict};
use crate::segment::{CONNS, FAILED_SHIM, Guard, Segment, monotonic};
use crate::tend::{LOOK, Tender};
use crate::users::{GroupBy, Peer, classify};
use crate::walk::{Came, Protocol, Walker};
use plimsoll_base::Time;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};
use tokio::task::LocalSet;

/// Configuration of the proxy.
pub struct ProxyConfig {
    /// Address for clients.
    pub listen: SocketAddr,
    /// Address of the server.
    pub server: SocketAddr,
    /// Their protocol.
    pub protocol: Protocol,
}

/// Bytes read at a time.
const CHUNK: usize = 16_384;
/// Connections at once; more wait to be accepted. A connection takes two descriptors, and some are kept for all else.
const CONNECTIONS_MAX: u64 = CONNS as u64;
/// Descriptors that connections don't get.
const DESCRIPTORS_KEPT: u64 = 32;
/// A connection to the server takes no longer.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// A peer that vanished without a word is noticed after this silence, ...
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// ... and this number of unanswered probes, ...
const KEEPALIVE_PROBES: u32 = 6;
/// ... so far apart: two minutes in all.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Out of descriptors: tried again after so long.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// The gate and who waits at it.
struct Shared {
    segment: Segment,
    tid: u32,
    waiting: Vec<Rc<Notify>>,
    /// The owner of the gate's lock was stopped: everything passes until the proxy's next start.
    off: Cell<bool>,
    /// Off, and connections are still in the gate.
    owing: Cell<bool>,
}

impl Shared {
    /// Calls `f` with the gate under its lock, and notifies the connections that were let in. Returns `None` once the proxy goes on
    /// without the gate.
    fn change<T>(&self, f: impl FnOnce(&mut Gate<'_>, Time) -> T) -> Option<T> {
        let now = monotonic();
        let mut guard = self.lock(now)?;
        let mut gate = guard.gate();
        let out = f(&mut gate, now);
        while let Some(id) = gate.take_grant() {
            self.tell(id);
        }
        Some(out)
    }

    fn lock(&self, now: Time) -> Option<Guard<'_>> {
        if self.off.get() {
            return None;
        }
        let guard = self.segment.lock_in_time(self.tid, now);
        if guard.is_none() {
            self.off.set(true);
            self.owing.set(true);
            self.segment.control().failed_open.fetch_or(FAILED_SHIM, Ordering::Relaxed);
            self.waiting.iter().for_each(|w| w.notify_one());
        }
        guard
    }

    /// Takes out of the gate what is still in there, if the lock can be had. False if it can't.
    fn pay_back(&self, now: Time) -> bool {
        if !self.owing.get() {
            return true;
        }
        let Some(mut guard) = self.segment.lock_now(self.tid, now) else { return false };
        let mut gate = guard.gate();
        gate.head.counters.stuck += 1;
        for i in 0..gate.conns.len() as u32 {
            // Connections of a proxy have no process. One that is free stays so.
            if gate.conns[i as usize].owner_pid == 0 {
                gate.close(now, ConnId(i));
            }
        }
        self.owing.set(false);
        true
    }

    fn tell(&self, id: ConnId) {
        self.waiting[id.0 as usize].notify_one();
    }
}

/// Serves for ever, on one thread, whose id is `tid`.
///
/// # Errors
/// If it can't listen.
pub async fn serve(config: ProxyConfig, segment: Segment, tid: u32, tender: Tender) -> io::Result<()> {
    let listener = TcpListener::bind(config.listen).await?;
    serve_on(listener, config, segment, tid, tender, connections_max()).await
}

async fn serve_on(
    listener: TcpListener,
    config: ProxyConfig,
    segment: Segment,
    tid: u32,
    mut tender: Tender,
    connections: usize,
) -> io::Result<()> {
    let waiting = (0..CONNS).map(|_| Rc::new(Notify::new())).collect();
    let (config, shared) =
        (Rc::new(config), Rc::new(Shared { segment, tid, waiting, off: Cell::new(false), owing: Cell::new(false) }));
    let local = LocalSet::new();
    let looked = shared.clone();
    local.spawn_local(async move {
        loop {
            let now = monotonic();
            // A look waits for the lock, and all connections with it.
            if looked.pay_back(now) {
                let woken = tender.look(&looked.segment, tid, now);
                woken.iter().for_each(|w| looked.tell(w.conn));
            } else {
                tender.beat(&looked.segment, now);
            }
            // The gate tells nobody of stalls and windows: it is looked at.
            tokio::time::sleep(Duration::from_nanos(LOOK.as_nanos())).await;
        }
    });
    let places = Arc::new(Semaphore::new(connections));
    local
        .run_until(async move {
            loop {
                let place = places.clone().acquire_owned().await.expect("never closed");
                match listener.accept().await {
                    Ok((client, peer)) => {
                        let (config, shared) = (config.clone(), shared.clone());
                        // A connection that breaks is its client's to notice.
                        tokio::task::spawn_local(async move {
                            connection(config, shared, client, peer).await.ok();
                            drop(place);
                        });
                    }
                    // Those that are open go on; out of descriptors, an accept fails at once, again and again.
                    Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
                }
            }
        })
        .await
}

/// Returns the limit of connections: that of the gate's places and of descriptors.
fn connections_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let descriptors = limit.map_or(u64::MAX, |n| n.saturating_sub(DESCRIPTORS_KEPT) / 2);
    descriptors.clamp(1, CONNECTIONS_MAX) as usize
}

/// Notices a peer that vanished without a word: it must not hold a connection of the database for ever.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

struct Flow {
    shared: Rc<Shared>,
    walker: RefCell<Walker>,
    gave_up: Cell<bool>,
    identified: Cell<bool>,
    conn: ConnId,
    notify: Rc<Notify>,
    peer: Peer,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.shared.change(|g, now| g.close(now, self.conn));
    }
}

async fn connection(
    config: Rc<ProxyConfig>,
    shared: Rc<Shared>,
    client: TcpStream,
    peer: SocketAddr,
) -> io::Result<()> {
    let server = tokio::time::timeout(CONNECT_TIME, TcpStream::connect(config.server)).await??;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        keep_alive(stream)?;
    }
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let opened = shared.change(|g, _| g.open(0)).flatten();
    // No room in the table: it passes.
    let Some(conn) = opened else {
        tokio::select! {
            r = async {
                tokio::io::copy(&mut from_client, &mut to_server).await?;
                hang_up(&mut to_server).await
            } => r?,
            r = tokio::io::copy(&mut from_server, &mut to_client) => drop(r?),
        };
        return Ok(());
    };
    let notify = shared.waiting[conn.0 as usize].clone();
    let walker = RefCell::new(Walker::new(config.protocol));
    let peer = Peer { ip: peer.ip(), port: peer.port() };
    let flow = Flow { shared, walker, gave_up: Cell::new(false), identified: Cell::new(false), conn, notify, peer };
    tokio::select! {
        r = async {
            let mut bytes = vec![0; CHUNK];
            loop {
                let n = from_client.read(&mut bytes).await?;
                if n == 0 { return hang_up(&mut to_server).await; }
                if flow.came(&bytes[..n]) && !flow.let_in(config.protocol, &mut from_client).await { return Ok(()); }
                to_server.write_all(&bytes[..n]).await?;
            }
        } => r,
        r = async {
            let mut bytes = vec![0; CHUNK];
            loop {
                let n = from_server.read(&mut bytes).await?;
                if n == 0 { return Ok(()); }
                flow.went(&bytes[..n]);
                to_client.write_all(&bytes[..n]).await?;
            }
        } => r,
    }
}

/// The client says no more, and may well wait for answers: the connection is over when the server's side is.
async fn hang_up(to_server: &mut OwnedWriteHalf) -> io::Result<()> {
    to_server.shutdown().await?;
    std::future::pending().await
}

impl Flow {
    /// Bytes of the client. True if they must wait.
    fn came(&self, bytes: &[u8]) -> bool {
        let came = {
            let mut w = self.walker.borrow_mut();
            if w.is_lost() || w.is_tls() { Came::default() } else { w.input(bytes) }
        };
        // Who never logs in is known by its address and connection.
        if came.request && !self.identified.get() {
            self.identify();
        }
        let ask = |g: &mut Gate<'_>, now| {
            if came.moved_on {
                g.answered(now, self.conn, Answered::Done);
            }
            if came.urgent {
                g.request_urgent(now, self.conn);
            }
            !came.urgent && g.request(now, self.conn) == Verdict::Wait
        };
        let waits = came.request && self.shared.change(ask) == Some(true);
        self.give_up_if_lost();
        waits
    }

    /// Waits for admission; the admitting task notifies it, or the controller's next look does. False if the client went away
    /// meanwhile.
    async fn let_in(&self, protocol: Protocol, client: &mut OwnedReadHalf) -> bool {
        let mut byte = [0];
        // Once it has sent more, whether it's still there can't be seen behind that.
        let mut quiet = true;
        // A late word may be for the place's last connection.
        while self.shared.change(|g, _| g.is_waiting(self.conn)) == Some(true) {
            tokio::select! {
                () = self.notify.notified() => {}
                more = client.peek(&mut byte), if quiet => match more {
                    Ok(1) => quiet = false,
                    // No more comes. No client of a known protocol says so before it has its answer: it is gone.
                    Ok(_) if protocol == Protocol::Generic => quiet = false,
                    _ => return false,
                },
            }
        }
        true
    }

    fn went(&self, bytes: &[u8]) {
        let (went, what) = {
            let mut w = self.walker.borrow_mut();
            if w.is_lost() {
                return;
            }
            (w.output(bytes), w.stands())
        };
        if went.done {
            self.shared.change(|g, now| g.answered(now, self.conn, what));
        }
        if went.login {
            self.identify();
        }
        self.give_up_if_lost();
    }

    /// Lets a connection pass that can't be followed; it holds no place.
    fn give_up_if_lost(&self) {
        if self.walker.borrow().is_lost() && !self.gave_up.replace(true) {
            self.shared.change(|g, now| {
                g.head.counters.unparsed += 1;
                g.cancel(now, self.conn);
                g.answered(now, self.conn, Answered::Done);
            });
            self.notify.notify_one();
        }
    }

    fn identify(&self) {
        self.identified.set(true);
        let (account, database) = self.walker.borrow().identity();
        let segment = &self.shared.segment;
        let by = GroupBy::of_code(segment.control().group_by.load(Ordering::Relaxed));
        let (name, rule) = {
            let Some(guard) = self.shared.lock(monotonic()) else { return };
            let (name, rule) = classify(guard.rules(), by, &account, &database, self.peer);
            (name, rule.copied())
        };
        self.shared.change(|g, now| {
            let user = g.user_of_bytes(now, name.as_bytes()).unwrap_or(USER_OTHERS);
            // `others` are everybody's: no rule of one of them is theirs.
            if let (Some(rule), true) = (rule, user != USER_OTHERS && g.users[user as usize].admitted == 0) {
                rule.apply(&mut g.users[user as usize]);
            }
            g.identify(self.conn, user);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn both_sides_are_probed_when_they_are_silent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        keep_alive(&stream).unwrap();
        use rustix::net::sockopt;
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&stream).unwrap(), KEEPALIVE_IDLE);
        assert_eq!(sockopt::tcp_keepcnt(&stream).unwrap(), KEEPALIVE_PROBES);
        assert!((1..=CONNS).contains(&connections_max()));
    }

    #[tokio::test]
    async fn who_finds_it_full_waits_until_one_leaves() {
        use crate::control::{ControlConfig, Controller, PMode};
        let dir = tempfile::tempdir().unwrap();
        let segment = Segment::create(&dir.path().join("s"), Default::default(), monotonic()).unwrap();
        let tender = Tender::new(&segment, Controller::new(ControlConfig::new(PMode::Fixed(8)), 4));
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listen = proxy.local_addr().unwrap();
        let config = ProxyConfig { listen, server: server.local_addr().unwrap(), protocol: Protocol::Generic };
        let accepted = Cell::new(0);
        let echoes = async {
            let mut all = tokio::task::JoinSet::new();
            loop {
                let (mut stream, _) = server.accept().await.unwrap();
                accepted.set(accepted.get() + 1);
                all.spawn(async move {
                    let (mut from, mut to) = stream.split();
                    tokio::io::copy(&mut from, &mut to).await.ok()
                });
            }
        };
        async fn echo(c: &mut TcpStream) {
            c.write_all(b"?").await.unwrap();
            assert_eq!(c.read_u8().await.unwrap(), b'?');
        }
        let clients = async {
            let mut inside = [TcpStream::connect(listen).await.unwrap(), TcpStream::connect(listen).await.unwrap()];
            for c in &mut inside {
                echo(c).await;
            }
            let mut waits = TcpStream::connect(listen).await.unwrap();
            for _ in 0..200 {
                echo(&mut inside[0]).await;
            }
            assert_eq!(accepted.get(), 2, "the third is not taken in");
            drop(inside);
            echo(&mut waits).await;
            assert_eq!(accepted.get(), 3);
        };
        tokio::select! {
            r = serve_on(proxy, config, segment, 1, tender, 2) => panic!("{r:?}"),
            () = echoes => {}
            () = clients => {}
        }
    }
}
