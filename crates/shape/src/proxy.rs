//! The other face of the gate: a TCP proxy, for servers that nothing can be preloaded into (static programs, other hosts). It costs a
//! hop, about 50 µs, and sees nothing inside TLS: such connections pass.

use crate::control::Controller;
use crate::gate::{Answered, ConnId, Gate, OwnGate, USER_OTHERS, Verdict};
use crate::segment::monotonic;
use crate::users::{GroupBy, Peer, Rule, classify};
use crate::walk::{Came, Protocol, Walker};
use plimsoll_base::Time;
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
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
    /// Who is whom.
    pub group_by: GroupBy,
    /// First match wins.
    pub rules: Vec<Rule>,
}

/// The controller looks so often; also how late an escape may be.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes read at a time.
const CHUNK: usize = 16_384;

/// The gate and who waits at it.
pub struct Shared {
    gate: OwnGate,
    waiting: Vec<Rc<Notify>>,
}

impl Shared {
    /// Over this gate, which has room for `conns` connections.
    pub fn new(gate: OwnGate, conns: usize) -> Shared {
        Shared { gate, waiting: (0..conns).map(|_| Rc::new(Notify::new())).collect() }
    }

    /// Does something to the gate and tells who was let in.
    pub fn change<T>(&mut self, f: impl FnOnce(&mut Gate<'_>, Time) -> T) -> T {
        let mut gate = self.gate.gate();
        let out = f(&mut gate, monotonic());
        while let Some(id) = gate.take_grant() {
            self.waiting[id.0 as usize].notify_one();
        }
        out
    }
}

/// Serves for ever, on one thread.
///
/// # Errors
/// If it can't listen.
pub async fn serve(config: ProxyConfig, shared: Rc<RefCell<Shared>>, mut control: Controller) -> io::Result<()> {
    let listener = TcpListener::bind(config.listen).await?;
    let config = Rc::new(config);
    let local = LocalSet::new();
    let looked = shared.clone();
    local.spawn_local(async move {
        loop {
            tokio::time::sleep(LOOK).await;
            looked.borrow_mut().change(|g, now| control.look(g, now));
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
                    // Out of descriptors: those that are open go on.
                    Err(_) => tokio::time::sleep(LOOK).await,
                }
            }
        })
        .await
}

struct Flow {
    shared: Rc<RefCell<Shared>>,
    walker: RefCell<Walker>,
    conn: ConnId,
    notify: Rc<Notify>,
    peer: Peer,
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.shared.borrow_mut().change(|g, now| g.close(now, self.conn));
    }
}

async fn connection(
    config: Rc<ProxyConfig>,
    shared: Rc<RefCell<Shared>>,
    client: TcpStream,
    peer: SocketAddr,
) -> io::Result<()> {
    let server = TcpStream::connect(config.server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let opened = shared.borrow_mut().change(|g, _| g.open(0));
    // No room in the table: it passes.
    let Some(conn) = opened else {
        tokio::select! {
            r = tokio::io::copy(&mut from_client, &mut to_server) => r?,
            r = tokio::io::copy(&mut from_server, &mut to_client) => r?,
        };
        return Ok(());
    };
    let notify = shared.borrow().waiting[conn.0 as usize].clone();
    let walker = RefCell::new(Walker::new(config.protocol));
    let flow = Flow { shared, walker, conn, notify, peer: Peer { ip: peer.ip(), port: peer.port() } };
    tokio::select! {
        r = async {
            let mut bytes = vec![0; CHUNK];
            loop {
                let n = from_client.read(&mut bytes).await?;
                if n == 0 { return Ok(()); }
                flow.came(&config, &bytes[..n]).await;
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

impl Flow {
    async fn came(&self, config: &ProxyConfig, bytes: &[u8]) {
        let came = {
            let mut w = self.walker.borrow_mut();
            if w.is_lost() || w.is_tls() { Came::default() } else { w.input(bytes) }
        };
        if came.login {
            self.identify(config);
        }
        if came.request {
            let conn = self.conn;
            let wait = self.shared.borrow_mut().change(|g, now| g.request(now, conn) == Verdict::Wait);
            if wait {
                // Told by whoever lets it in, at the latest by the controller's tick.
                self.notify.notified().await;
            }
        }
        self.give_up_if_lost();
    }

    fn went(&self, bytes: &[u8]) {
        let (done, open) = {
            let mut w = self.walker.borrow_mut();
            if w.is_lost() {
                return;
            }
            (w.output(bytes), w.is_open())
        };
        if done {
            let what = if open { Answered::Open } else { Answered::Done };
            self.shared.borrow_mut().change(|g, now| g.answered(now, self.conn, what));
        }
        self.give_up_if_lost();
    }

    /// What can't be followed passes, and holds nothing.
    fn give_up_if_lost(&self) {
        let w = self.walker.borrow();
        if w.is_lost() {
            self.shared.borrow_mut().change(|g, now| {
                g.cancel(now, self.conn);
                g.answered(now, self.conn, Answered::Done);
            });
        }
    }

    fn identify(&self, config: &ProxyConfig) {
        let (account, database) = self.walker.borrow().identity();
        let (name, rule) = classify(&config.rules, config.group_by, &account, &database, self.peer);
        self.shared.borrow_mut().change(|g, _| {
            let user = g.user_of_bytes(name.as_bytes()).unwrap_or(USER_OTHERS);
            if let (Some(rule), true) = (rule, g.users[user as usize].admitted == 0) {
                let u = &mut g.users[user as usize];
                u.weight_milli = rule.weight_milli;
                u.set_class(rule.class());
                u.objective_us = rule.objective_us;
            }
            g.identify(self.conn, user);
        });
    }
}
