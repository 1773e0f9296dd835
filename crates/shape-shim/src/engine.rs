//! The shim's actions around a read, a write and the end of a connection.

use crate::start::{self, Shim, shim};
use crate::sys::{self, Size, call, errno, set_errno};
use crate::table::{self, Held, Link, hold};
use plimsoll_base::Time;
use plimsoll_shape::gate::{Answered, ConnId, Gate, Knobs, USER_OTHERS, Verdict};
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::{FAILED_SHIM, FAILED_SILENT, Guard, HEARTBEAT_MAX_NS, monotonic};
use plimsoll_shape::users::{GroupBy, Peer, classify};
use plimsoll_shape::walk::{Came, Walker, Went};
use std::net::{IpAddr, Ipv6Addr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// Looks at the wait again at least so often: nobody depends on being woken.
const RECHECK_NS: u64 = 100_000_000;
/// Only the oldest waiter looks when something falls due; the others a little later, and find it done.
const OTHERS_LATER_NS: u64 = 10_000_000;

/// A process that owes something to the gate asks for the lock so often at most.
const PAY_BACK_NS: u64 = 10_000_000;

/// Unwinds out of the shim's part of a call: the gate's lock can't be had.
struct Stuck;

/// Runs the shim's own part of a call. A panic ends there: the shim is switched off and all waiting connections go on. The same
/// happens where the owner of the gate's lock was stopped: a stopped controller doesn't stop the server.
pub fn guarded<T>(shim: &Shim, f: impl FnOnce() -> T) -> Option<T> {
    let why = match catch_unwind(AssertUnwindSafe(f)) {
        Ok(v) => return Some(v),
        Err(why) => why,
    };
    start::switch_off();
    // A process of PostgreSQL's has one client: the others go on being shaped.
    if shim.profile != Profile::Postgres {
        shim.segment.control().failed_open.fetch_or(FAILED_SHIM, Ordering::Relaxed);
    }
    if why.is::<Stuck>() {
        start::set_owing(true);
    } else {
        // It fails again only if the memory is worse than a repair can mend: then the places stay taken until this process ends.
        let done = catch_unwind(AssertUnwindSafe(|| give_up(shim)));
        start::set_owing(done.is_err_and(|why| why.is::<Stuck>()));
    }
    let _ = catch_unwind(crate::epoll::show_all); // as above
    None
}

/// The gate's lock.
fn lock(shim: &Shim, now: Time) -> Guard<'_> {
    // Not `panic!`: the hook has nothing to say of it.
    shim.segment.lock_in_time(sys::tid(), now).unwrap_or_else(|| std::panic::resume_unwind(Box::new(Stuck)))
}

/// After a failure.
fn give_up(shim: &Shim) {
    let now = monotonic();
    let mut guard = lock(shim, now);
    // What the gate says may be what the shim failed over.
    guard.gate().repair(now);
    guard.gate().head.counters.panics += 1;
    leave_gate(shim, guard);
}

/// This process went on without the gate, and something of it is still in there: it is taken out as soon as the lock is free or its owner
/// has died.
#[cold]
pub fn pay_back(shim: &Shim) {
    static NEXT_NS: AtomicU64 = AtomicU64::new(0);
    let Some(_inside) = sys::enter() else { return };
    let now = monotonic();
    // Whether the owner has died takes three system calls.
    if now.as_nanos() < NEXT_NS.load(Ordering::Relaxed) {
        return;
    }
    NEXT_NS.store(now.as_nanos() + PAY_BACK_NS, Ordering::Relaxed);
    let saved = errno();
    // It fails only if the memory can't be used any more.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Some(mut guard) = shim.segment.lock_now(sys::tid(), now)
            // One thread does it.
            && start::set_owing(false)
        {
            guard.gate().head.counters.stuck += 1;
            leave_gate(shim, guard);
            // What a thread withheld that the gate answered before it was left.
            crate::epoll::show_all();
        }
    }));
    set_errno(saved);
}

/// Nothing of this process is in the gate any more, and nothing of it is held.
fn leave_gate(shim: &Shim, mut guard: Guard<'_>) {
    let now = monotonic();
    let mut g = guard.gate();
    for i in 0..g.conns.len() as u32 {
        if g.conns[i as usize].owner_pid == start::pid() {
            g.close(now, ConnId(i));
            shim.segment.wake(ConnId(i));
        }
    }
    let mut wakes = Wakes::new();
    loop {
        wakes.collect(&mut g);
        if !wakes.fire(shim) {
            break;
        }
    }
}

/// Connections to be woken once the lock is given back.
pub struct Wakes {
    list: [(ConnId, u64, u32); Wakes::MOST],
    n: usize,
}

impl Wakes {
    const MOST: usize = 16;

    /// Nobody.
    pub fn new() -> Wakes {
        Wakes { list: [(ConnId(0), 0, 0); Wakes::MOST], n: 0 }
    }

    fn collect(&mut self, g: &mut Gate<'_>) {
        while self.n < Wakes::MOST
            && let Some(id) = g.take_grant()
        {
            let c = &g.conns[id.0 as usize];
            self.list[self.n] = (id, c.wake_hint, c.owner_pid);
            self.n += 1;
        }
    }

    /// Wakes them. True if the list was full: there may be more.
    fn fire(&mut self, shim: &Shim) -> bool {
        for &(id, hint, pid) in &self.list[..self.n] {
            match shim.profile {
                Profile::MysqlPool => crate::epoll::rearm(hint as i32, id),
                // Its latch is a signal descriptor on SIGURG in the set that it waits for.
                Profile::Postgres => drop(call!(SYS_kill, pid, libc::SIGURG)),
                Profile::Redis => {}
                _ => shim.segment.wake(id),
            }
        }
        std::mem::replace(&mut self.n, 0) == Wakes::MOST
    }
}

/// Calls `f` with the gate under its lock. Then wakes the connections that were let in.
pub fn change<T>(shim: &Shim, wakes: &mut Wakes, f: impl FnOnce(&mut Gate<'_>, Time) -> T) -> T {
    let now = monotonic();
    let mut guard = lock(shim, now);
    let mut gate = guard.gate();
    watch_controller(shim, &mut gate, now);
    let out = f(&mut gate, now);
    wakes.collect(&mut gate);
    drop(guard);
    while wakes.fire(shim) {
        let mut guard = lock(shim, now);
        wakes.collect(&mut guard.gate());
    }
    out
}

/// A silent controller means nobody looks after the gate: everybody passes until it is back (it closes the gate itself).
fn watch_controller(shim: &Shim, gate: &mut Gate<'_>, now: Time) {
    let control = shim.segment.control();
    let beat = control.heartbeat_ns.load(Ordering::Relaxed);
    if now.as_nanos().saturating_sub(beat) > HEARTBEAT_MAX_NS && gate.head.knobs.open == 0 {
        control.failed_open.fetch_or(FAILED_SILENT, Ordering::Relaxed);
        let knobs = Knobs { open: 1, ..gate.head.knobs };
        gate.set_knobs(now, knobs);
    }
}

/// A descriptor came out of `accept`.
pub fn accepted(fd: i32) {
    // A connection of this number that is still known was closed unseen: by `close_range`, `closefrom`, `fclose`. It gives its place back.
    closing(fd);
    let Some(shim) = shim() else { return };
    let saved = errno();
    guarded(shim, || {
        // Over a unix socket comes who looks after the server: never held.
        let Some(peer) = peer_of(fd) else { return };
        shim.segment.control().accepted.fetch_add(1, Ordering::Relaxed);
        table::track(fd, shim.profile.protocol(), peer);
    });
    set_errno(saved);
}

fn peer_of(fd: i32) -> Option<Peer> {
    // SAFETY: zeroes are a valid address of no family.
    let mut addr: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    if call!(SYS_getpeername, fd, &raw mut addr, &raw mut len) != 0 {
        return None;
    }
    match i32::from(addr.ss_family) {
        libc::AF_INET => {
            // SAFETY: the family says which struct it is, and the storage is large enough for all.
            let a = unsafe { *(&raw const addr).cast::<libc::sockaddr_in>() };
            Some(Peer { ip: IpAddr::V4(u32::from_be(a.sin_addr.s_addr).into()), port: u16::from_be(a.sin_port) })
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let a = unsafe { *(&raw const addr).cast::<libc::sockaddr_in6>() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            let ip = ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4);
            Some(Peer { ip, port: u16::from_be(a.sin6_port) })
        }
        _ => None,
    }
}

/// Permission of a read now.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Before {
    /// Yes, up to this number of bytes.
    Read(usize),
    /// As if nothing had come.
    NotYet,
}

/// Bytes that a call moves between the stream and the server's memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// The returned number of bytes of the stream, in the server's memory.
    Bytes,
    /// The returned number of bytes of the stream, without a copy in the server's memory.
    Unseen,
    /// Nothing of the stream.
    Nothing,
}

/// Surrounds a read. `call` makes the read, with a limit in bytes where it can take one; `feed` shows the walker the bytes that came.
pub fn around_read(
    fd: i32,
    takes: Takes,
    call: &mut dyn FnMut(usize) -> Size,
    feed: &mut dyn FnMut(&mut Walker, usize) -> Came,
) -> Size {
    if !table::is_tracked(fd) || takes == Takes::Nothing {
        return call(usize::MAX);
    }
    let (Some(shim), Some(_inside)) = (shim(), sys::enter()) else { return call(usize::MAX) };
    let most = match guarded(shim, || before_read(shim, fd)) {
        Some(Before::NotYet) => {
            set_errno(libc::EAGAIN);
            return -1;
        }
        Some(Before::Read(most)) => most,
        None => usize::MAX,
    };
    let n = call(most);
    if n > 0 {
        let saved = errno();
        guarded(shim, || {
            if let Some(mut held) = hold(fd)
                && !held.link().walker.is_tls()
            {
                let mut unseen = |w: &mut Walker, _| {
                    w.pass_unseen();
                    w.input(&[0])
                };
                let feed = if takes == Takes::Bytes { feed } else { &mut unseen };
                after_read(shim, fd, &mut held, n as usize, feed);
            }
        });
        set_errno(saved);
    }
    n
}

/// Inside TLS: as [`around_read`] for the bytes that were decrypted. The library's own reads of records happen within `call`.
pub fn around_tls_read(
    fd: i32,
    call: &mut dyn FnMut() -> Size,
    feed: &mut dyn FnMut(&mut Walker, usize) -> Came,
) -> Size {
    if !table::is_tracked(fd) {
        return call();
    }
    let Some(shim) = shim() else { return call() };
    // PostgreSQL is held at the records below, where it can wait for them; the others here.
    let inside = if shim.profile == Profile::Postgres { None } else { sys::enter() };
    if inside.is_some() {
        guarded(shim, || before_read(shim, fd));
    }
    let n = call();
    if n > 0 {
        let saved = errno();
        guarded(shim, || {
            if let Some(mut held) = hold(fd) {
                after_read(shim, fd, &mut held, n as usize, feed);
            }
        });
        set_errno(saved);
    }
    n
}

fn before_read(shim: &Shim, fd: i32) -> Before {
    const ALL: Before = Before::Read(usize::MAX);
    let Some(mut held) = hold(fd) else { return ALL };
    match shim.profile {
        Profile::Postgres => return crate::epoll::may_read(shim, fd, held.link()),
        p if p.holds_in_read() => {
            let link = held.link();
            if link.walker.at_rest() {
                settle(shim, link);
            }
        }
        _ => {}
    }
    ALL
}

fn after_read(shim: &Shim, fd: i32, held: &mut Held, n: usize, feed: &mut dyn FnMut(&mut Walker, usize) -> Came) {
    let link = held.link();
    if !std::mem::replace(&mut link.seen, true) {
        shim.segment.control().reads_seen.fetch_add(1, Ordering::Relaxed);
    }
    if link.walker.is_lost() {
        return;
    }
    let came = feed(&mut link.walker, n);
    if link.walker.is_lost() {
        lost(shim, link);
        return;
    }
    // Who never logs in is known by its address and connection.
    if came.request && link.conn.is_none() {
        identify(shim, fd, held);
    }
    if came.request {
        match shim.profile {
            p if p.holds_in_read() => pass_or_wait(shim, held.link(), came),
            Profile::Postgres => crate::epoll::request_read(shim, held.link()),
            // Event loops count a request when its event is passed on.
            _ => {}
        }
    }
}

/// A walker that lost its way concludes nothing: the connection passes from now on.
fn lost(shim: &Shim, link: &mut Link) {
    change(shim, &mut Wakes::new(), |g, now| {
        g.head.counters.unparsed += 1;
        if let Some(conn) = link.conn {
            g.close(now, conn);
        }
    });
    (link.conn, link.inside, link.running) = (None, false, false);
}

/// A place in the gate, for the user that the server took the client for.
fn identify(shim: &Shim, fd: i32, held: &mut Held) {
    let link = held.link();
    let (account, database) = link.walker.identity();
    let now = monotonic();
    let mut guard: Guard<'_> = lock(shim, now);
    let by = GroupBy::of_code(shim.segment.control().group_by.load(Ordering::Relaxed));
    let (name, rule) = classify(guard.rules(), by, &account, &database, link.peer);
    let rule = rule.copied();
    let mut g = guard.gate();
    if link.conn.is_none() {
        link.conn = g.open(start::pid());
        if let Some(conn) = link.conn {
            g.conns[conn.0 as usize].wake_hint = fd as u64;
        }
    }
    let user = g.user_of_bytes(now, name.as_bytes()).unwrap_or(USER_OTHERS);
    if let Some(rule) = rule.filter(|_| user != USER_OTHERS) {
        let u = &mut g.users[user as usize];
        // What an operator or the controller set since stands.
        if u.conns == 0 && u.admitted == 0 {
            rule.apply(u);
        }
    }
    if let Some(conn) = link.conn {
        g.identify(conn, user);
    }
    drop(guard);
    held.publish();
}

/// Asks the gate, and waits on this thread for as long as it says.
fn pass_or_wait(shim: &Shim, link: &mut Link, came: Came) {
    let Some(conn) = link.conn else { return };
    (link.inside, link.running) = (true, true);
    let mut wakes = Wakes::new();
    let mut wait = change(shim, &mut wakes, |g, now| {
        if came.moved_on {
            g.answered(now, conn, Answered::Done);
        }
        if came.urgent {
            g.request_urgent(now, conn);
            return None;
        }
        match g.request(now, conn) {
            Verdict::Go => None,
            Verdict::Wait => Some(patience(g, now, conn)),
        }
    });
    while let Some((epoch, timeout)) = wait {
        shim.segment.wait(conn, epoch, timeout);
        wait = change(shim, &mut wakes, |g, now| {
            g.tick(now);
            g.is_waiting(conn).then(|| patience(g, now, conn))
        });
        if wait.is_none() {
            link.inside = change(shim, &mut wakes, |g, _| g.is_inside(conn));
            link.running = link.inside;
        }
    }
}

/// For how long to sleep, and on which value of the epoch.
pub fn patience(g: &Gate<'_>, now: Time, conn: ConnId) -> (u32, u64) {
    let due = g.next_wake().map_or(RECHECK_NS, |t| t.since(now).as_nanos());
    let due = if g.is_oldest(conn) { due } else { due.saturating_add(OTHERS_LATER_NS) };
    (g.conns[conn.0 as usize].epoch, due.clamp(50_000, RECHECK_NS))
}

/// The server is done with what it had read: the place is given back, or kept while a transaction is open.
pub fn settle(shim: &Shim, link: &mut Link) {
    let Some(conn) = link.conn else { return };
    let (open, what) = (link.walker.is_open(), link.walker.stands());
    if link.running || (link.inside && !open) {
        (link.inside, link.running) = (open, false);
        change(shim, &mut Wakes::new(), |g, now| g.answered(now, conn, what));
    }
}

/// Around a write: `feed` shows the walker what went out.
pub fn around_write(
    fd: i32,
    tls: bool,
    gives: Takes,
    call: &mut dyn FnMut() -> Size,
    feed: &mut dyn FnMut(&mut Walker, usize) -> Went,
) -> Size {
    if !table::is_tracked(fd) {
        return call();
    }
    let (Some(shim), Some(_inside)) = (shim(), sys::enter()) else { return call() };
    let n = call();
    if n > 0 {
        let saved = errno();
        guarded(shim, || {
            let Some(mut held) = hold(fd) else { return };
            let link = held.link();
            if link.walker.is_lost() || link.walker.is_tls() != tls {
                return;
            }
            let went = match gives {
                Takes::Bytes => feed(&mut link.walker, n as usize),
                _ => {
                    link.walker.pass_unseen();
                    link.walker.output(&[0])
                }
            };
            if link.walker.is_lost() {
                lost(shim, link);
                return;
            }
            if went.done && shim.profile == Profile::Postgres {
                settle(shim, link);
            }
            if went.login {
                identify(shim, fd, &mut held);
            }
        });
        set_errno(saved);
    }
    n
}

/// A descriptor is about to be closed.
pub fn closing(fd: i32) {
    if !table::is_tracked(fd) {
        return;
    }
    let (Some(shim), Some(_inside)) = (shim(), sys::enter()) else { return };
    let saved = errno();
    guarded(shim, || {
        let Some(mut held) = hold(fd) else { return };
        if let Some(conn) = held.link().conn {
            change(shim, &mut Wakes::new(), |g, now| g.close(now, conn));
        }
        held.forget();
    });
    set_errno(saved);
}

/// A descriptor is about to be shut down, by KILL or at the server's end: its wait ends.
pub fn shutting_down(fd: i32) {
    let (Some(shim), Some(conn)) = (shim(), table::conn_of(fd)) else { return };
    let Some(_inside) = sys::enter() else { return };
    let saved = errno();
    guarded(shim, || {
        if change(shim, &mut Wakes::new(), |g, now| g.cancel(now, conn)) {
            match shim.profile {
                Profile::MysqlPool => crate::epoll::rearm(fd, conn),
                _ => shim.segment.wake(conn),
            }
        }
    });
    set_errno(saved);
}
