//! The other face of the gate: a TCP proxy, for servers that nothing can be preloaded into (static programs, other hosts). It costs a
//! hop, about 50 µs, and sees nothing inside TLS: such connections pass. Its gate lies in a control segment as the shim's does, so that
//! the same commands look at it and turn its knobs; so do rules, and what makes a user.

use crate::gate::{Answered, ConnId, Gate, USER_OTHERS, Verdict};
use crate::segment::{CONNS, Segment, monotonic};
use crate::tend::{LOOK, Tender};
use crate::users::{GroupBy, Peer, classify};
use crate::walk::{Came, Protocol, Walker};
use plimsoll_base::Time;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;

/// What the proxy does.
pub struct ProxyConfig {
    /// Where clients come.
    pub listen: SocketAddr,
    /// Where the server is.
    pub server: SocketAddr,
    /// What they speak.
    pub protocol: Protocol,
}

/// Bytes read at a time.
const CHUNK: usize = 16_384;
/// Out of descriptors: tried again after so long.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// The gate and who waits at it.
struct Shared {
    segment: Segment,
    tid: u32,
    waiting: Vec<Rc<Notify>>,
}

impl Shared {
    /// Does something to the gate and tells who was let in.
    fn change<T>(&self, f: impl FnOnce(&mut Gate<'_>, Time) -> T) -> T {
        let now = monotonic();
        let mut guard = self.segment.lock(self.tid, now);
        let mut gate = guard.gate();
        let out = f(&mut gate, now);
        while let Some(id) = gate.take_grant() {
            self.tell(id);
        }
        out
    }

    fn tell(&self, id: ConnId) {
        self.waiting[id.0 as usize].notify_one();
    }
}

/// Serves for ever, on one thread, whose id is `tid`.
///
/// # Errors
/// If it can't listen.
pub async fn serve(config: ProxyConfig, segment: Segment, tid: u32, mut tender: Tender) -> io::Result<()> {
    let listener = TcpListener::bind(config.listen).await?;
    let waiting = (0..CONNS).map(|_| Rc::new(Notify::new())).collect();
    let (config, shared) = (Rc::new(config), Rc::new(Shared { segment, tid, waiting }));
    let local = LocalSet::new();
    let looked = shared.clone();
    local.spawn_local(async move {
        loop {
            let woken = tender.look(&looked.segment, tid, monotonic());
            woken.iter().for_each(|w| looked.tell(w.conn));
            // The gate tells nobody of stalls and windows: it is looked at.
            tokio::time::sleep(Duration::from_nanos(LOOK.as_nanos())).await;
        }
    });
    local
        .run_until(async move {
            loop {
                match listener.accept().await {
                    Ok((client, peer)) => {
                        let (config, shared) = (config.clone(), shared.clone());
                        // A connection that breaks is its client's to notice.
                        tokio::task::spawn_local(async move { connection(config, shared, client, peer).await.ok() });
                    }
                    // Those that are open go on; out of descriptors, an accept fails at once, again and again.
                    Err(_) => tokio::time::sleep(ACCEPT_AGAIN).await,
                }
            }
        })
        .await
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
    let server = TcpStream::connect(config.server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let opened = shared.change(|g, _| g.open(0));
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
        let waits = came.request && self.shared.change(ask);
        self.give_up_if_lost();
        waits
    }

    /// Told by whoever lets it in, at the latest by the controller's look. False if the client went away meanwhile.
    async fn let_in(&self, protocol: Protocol, client: &mut OwnedReadHalf) -> bool {
        let mut byte = [0];
        // Once it has sent more, whether it's still there can't be seen behind that.
        let mut quiet = true;
        // A late word may be for the place's last connection.
        while self.shared.change(|g, _| g.is_waiting(self.conn)) {
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

    /// What can't be followed passes, and holds nothing.
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
            let guard = segment.lock(self.shared.tid, monotonic());
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
