//! Servers that wait in epoll: a connection is held by keeping its event from the server.
//!
//! * A *pool of threads* arms each connection for one event. A held one's event is dropped and armed again when it is let in; the end of
//!   a request is the server's own arming (any thread may serve any connection, so there is no next read to see it by).
//! * *PostgreSQL*'s process has one client. While it is held a read says that nothing came, and the socket is out of the set that
//!   the process waits for; its latch and the postmaster's death stay in, so terminate, timeouts and shutdown work.
//! * *Redis* is one loop. A turn of the loop is passed events of at most P connections; what is readable is reported again.

use crate::engine::{Before, Wakes, change, guarded as around_gate, settle};
use crate::start::{self, Shim, shim};
use crate::sys::{self, call, errno, set_errno};
use crate::table::{self, Link, hold};
use libc::{EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLERR, EPOLLHUP, EPOLLIN, EPOLLRDHUP, epoll_event, sigset_t};
use plimsoll_base::Time;
use plimsoll_shape::gate::{ConnId, Verdict};
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::monotonic;
use std::ffi::{c_int, c_void};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicI32, Ordering};

/// A waiting loop looks at the gate at least so often.
const LOOK_MS: c_int = 25;
/// A process that left something in the gate waits for no longer before it asks for the lock again.
const OWING_LOOK_MS: c_int = 100;
/// Bytes of a request that are looked at before they are read: at least a header and what a walker keeps of a packet.
const PEEK_BYTES: usize = 256;
const GONE: u32 = (EPOLLHUP | EPOLLERR | EPOLLRDHUP) as u32;

/// From an event's data to its descriptor: a cache, checked against what the descriptor's link says.
static BY_DATA: [AtomicI32; BY_DATA_SIZE] = [const { AtomicI32::new(0) }; BY_DATA_SIZE];
const BY_DATA_SIZE: usize = 1 << 16;
/// The largest descriptor that was ever watched.
static HIGHEST: AtomicI32 = AtomicI32::new(0);
/// The one client of this process (PostgreSQL).
static CLIENT: AtomicI32 = AtomicI32::new(-1);

fn slot(data: u64) -> &'static AtomicI32 {
    &BY_DATA[(data.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % BY_DATA_SIZE]
}

/// Data are pointers or numbers that the server chose; one process has one meaning for them, whatever the set.
fn fd_of(data: u64) -> Option<i32> {
    let cached = slot(data).load(Ordering::Relaxed);
    if table::has_data(cached, data) {
        return Some(cached);
    }
    let found = (0..=HIGHEST.load(Ordering::Relaxed)).find(|fd| table::has_data(*fd, data))?;
    slot(data).store(found, Ordering::Relaxed);
    Some(found)
}

fn raw_control(epfd: i32, op: c_int, fd: i32, event: *mut epoll_event) -> c_int {
    call!(SYS_epoll_ctl, epfd, op, fd, event) as c_int
}

fn set_mask(fd: i32, watch: (i32, u32, u64), mask: u32) {
    let mut event = epoll_event { events: mask, u64: watch.2 };
    raw_control(watch.0, EPOLL_CTL_MOD, fd, &raw mut event);
}

/// `epoll_ctl`.
pub fn control(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if table::is_tracked(fd)
        && let (Some(shim), Some(_inside)) = (shim(), sys::enter())
    {
        around_gate(shim, || {
            let Some(mut held) = hold(fd) else { return };
            let link = held.link();
            if op == EPOLL_CTL_DEL || event.is_null() {
                link.watch = None;
                return;
            }
            // SAFETY: the server's own struct.
            let (mask, data) = unsafe { ((*event).events, (*event).u64) };
            link.watch = Some((epfd, mask, data));
            link.hidden = false;
            table::set_data(fd, data);
            slot(data).store(fd, Ordering::Relaxed);
            HIGHEST.fetch_max(fd, Ordering::Relaxed);
            match shim.profile {
                Profile::MysqlPool if op == EPOLL_CTL_MOD => settle(shim, link),
                Profile::Postgres => CLIENT.store(fd, Ordering::Relaxed),
                _ => {}
            }
        });
    }
    raw_control(epfd, op, fd, event)
}

/// A held connection of a pool was let in (or is to end): its event comes again.
pub fn rearm(fd: i32, conn: ConnId) {
    table::want_event(fd, conn);
    rearm_wanted(fd);
}

/// Rearms the connection's event if it is wanted again, unless another thread has the link. That thread still withholds the event that
/// is to come again, and rearms it when it has finished. (To give up here instead lost the event, and the connection hung.)
pub fn rearm_wanted(fd: i32) {
    // The link is given back first: the event comes at once, to another thread.
    let watch = hold(fd).and_then(|mut h| {
        // A grant that comes late, or twice (a repaired gate tells all again), must not hand a connection that is being served to a second thread.
        let again = h.take_wanted() && std::mem::take(&mut h.link().withheld);
        again.then(|| h.link().watch).flatten()
    });
    if let Some(watch) = watch {
        set_mask(fd, watch, watch.1);
    }
}

/// Nothing is held any more: what was kept from the server comes.
pub fn show_all() {
    for fd in 0..=HIGHEST.load(Ordering::Relaxed) {
        // Who handles it just now is past being held.
        let Some(mut held) = hold(fd) else { continue };
        let link = held.link();
        let kept = std::mem::take(&mut link.withheld) | std::mem::take(&mut link.hidden);
        if let (true, Some(watch)) = (kept, link.watch) {
            drop(held);
            set_mask(fd, watch, watch.1);
        }
    }
}

fn raw_wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
    // The kernel's signal set has 8 bytes.
    call!(SYS_epoll_pwait, epfd, events, max, timeout, mask, 8usize) as c_int
}

/// Milliseconds until `end`; [`c_int::MAX`] for no end.
fn ms_until(end: Option<u64>) -> c_int {
    end.map_or(c_int::MAX, |e| {
        e.saturating_sub(monotonic().as_nanos()).div_ceil(1_000_000).min(c_int::MAX as u64) as c_int
    })
}

/// As `epoll_wait` has it.
fn timeout_of(ms: c_int) -> c_int {
    if ms == c_int::MAX { -1 } else { ms }
}

/// `epoll_wait` and `epoll_pwait`.
pub fn wait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int {
    let shaped = shim().filter(|s| !s.profile.holds_in_read() && max > 0);
    if shaped.is_none() && !start::is_owing() {
        return raw_wait(epfd, events, max, timeout, mask);
    }
    let end = (timeout >= 0).then(|| monotonic().as_nanos() + timeout as u64 * 1_000_000);
    let shaped = shaped.and_then(|shim| shaped_wait(shim, epfd, events, max, end, mask));
    shaped.unwrap_or_else(|| unshaped_wait(epfd, events, max, end, mask))
}

/// Without the gate. As long as something of this process is still in there, the lock is asked for from time to time: an idle process
/// makes no other call that would.
fn unshaped_wait(epfd: c_int, events: *mut epoll_event, max: c_int, end: Option<u64>, mask: *const sigset_t) -> c_int {
    loop {
        shim(); // which gives back what is owed, if it can
        let left = ms_until(end);
        if !start::is_owing() {
            return raw_wait(epfd, events, max, timeout_of(left), mask);
        }
        let n = raw_wait(epfd, events, max, left.min(OWING_LOOK_MS), mask);
        if n != 0 || left <= OWING_LOOK_MS {
            return n;
        }
    }
}

/// `None` if the shim is off, or this thread is in it already.
fn shaped_wait(
    shim: &Shim,
    epfd: c_int,
    events: *mut epoll_event,
    max: c_int,
    end: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    let _inside = sys::enter()?;
    let mut first = true;
    loop {
        let left = ms_until(end);
        if left == 0 && !std::mem::take(&mut first) {
            return Some(0);
        }
        first = false;
        let ms = match shim.profile {
            Profile::Postgres => around_gate(shim, || hide_while_held(shim, left)),
            Profile::Redis => around_gate(shim, || end_turn(shim, left)),
            _ => Some(left.min(LOOK_MS)),
        };
        // Switched off, here or by another thread: as without it.
        let ms = ms.filter(|_| start::is_on())?;
        let n = raw_wait(epfd, events, max, timeout_of(ms), mask);
        let saved = errno();
        if n <= 0 && (n < 0 || ms == left) {
            return Some(n);
        }
        // SAFETY: the call wrote so many.
        let list = unsafe { std::slice::from_raw_parts_mut(events, n as usize) };
        let kept = match shim.profile {
            Profile::MysqlPool => filter(shim, list, pool_event),
            Profile::Redis => filter(shim, list, turn_event),
            _ => {
                around_gate(shim, || client_gone(shim, epfd, list));
                list.len()
            }
        };
        let on = start::is_on();
        if !on {
            // What this thread withheld after all was shown: nobody else shows that.
            let _ = catch_unwind(show_all); // fails only if the memory can't be used any more
        }
        set_errno(saved);
        match kept {
            0 if !on => return None,
            0 if n > 0 && shim.profile == Profile::Redis => pause(),
            0 => {}
            kept => return Some(kept as c_int),
        }
        tick(shim);
    }
}

/// All that is readable is held: a level-triggered set would report it at once, again and again.
fn pause() {
    let millisecond = libc::timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    call!(SYS_nanosleep, &raw const millisecond, 0usize);
}

fn tick(shim: &Shim) {
    around_gate(shim, || change(shim, &mut Wakes::new(), |g, now| g.tick(now)));
}

/// Keeps the events for which `keep` leaves something, in place. From the one on over which it fails, or once the shim is off, all are
/// kept: none is lost, and none comes twice.
fn filter(shim: &Shim, list: &mut [epoll_event], keep: fn(&Shim, i32, &mut Link, u32) -> u32) -> usize {
    let (mut kept, mut seen) = (0, 0);
    around_gate(shim, || {
        while seen < list.len() && start::is_on() {
            let (mask, data) = (list[seen].events, list[seen].u64);
            let left = match fd_of(data).and_then(|fd| hold(fd).map(|h| (fd, h))) {
                Some((fd, mut held)) => keep(shim, fd, held.link(), mask),
                None => mask,
            };
            seen += 1;
            if left != 0 {
                list[kept] = epoll_event { events: left, u64: data };
                kept += 1;
            }
        }
    });
    list.copy_within(seen.., kept);
    kept + list.len() - seen
}

/// An event of a pooled connection: what of it the server sees.
fn pool_event(shim: &Shim, fd: i32, link: &mut Link, mask: u32) -> u32 {
    // It is here: nobody is to arm it again before the server does.
    link.withheld = false;
    let (Some(conn), true) = (link.conn, link.walker.at_rest()) else { return mask };
    if mask & GONE != 0 {
        return mask;
    }
    let go = change(shim, &mut Wakes::new(), |g, now| {
        g.tick(now);
        // The grant of one that was withheld is what this event is.
        g.request(now, conn) == Verdict::Go
    });
    if go || is_exempt(fd, link) {
        if !go {
            change(shim, &mut Wakes::new(), |g, now| g.cancel(now, conn));
        }
        (link.inside, link.running, link.withheld) = (go, go, false);
        return mask;
    }
    link.withheld = true;
    0
}

/// Returns whether the bytes that wait to be read never count (a KILL, a ping).
fn is_exempt(fd: i32, link: &Link) -> bool {
    let mut bytes = [0u8; PEEK_BYTES];
    let n = peek(fd, &mut bytes);
    let mut walker = link.walker;
    let came = walker.input(&bytes[..n.max(0) as usize]);
    n > 0 && came.exempt && !came.request
}

fn peek(fd: i32, to: &mut [u8]) -> isize {
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    call!(SYS_recvfrom, fd, to.as_mut_ptr().cast::<c_void>(), to.len(), flags, 0usize, 0usize)
}

/// Bytes that could be read.
fn available(fd: i32) -> u64 {
    let mut n: c_int = 0;
    call!(SYS_ioctl, fd, libc::FIONREAD, &raw mut n);
    n.max(0) as u64
}

/// Connections whose events were passed in this turn of the loop.
struct Turn {
    fds: [i32; Turn::MOST],
    n: usize,
}
impl Turn {
    const MOST: usize = 4096;
}
struct OneThread(std::cell::UnsafeCell<Turn>);
// SAFETY: only the loop's thread waits for events; see `turn`.
unsafe impl Sync for OneThread {}
static TURN: OneThread = OneThread(std::cell::UnsafeCell::new(Turn { fds: [0; Turn::MOST], n: 0 }));
static LOOP_THREAD: AtomicI32 = AtomicI32::new(0);

/// The turn, for the thread that waited first; no other gets it.
fn turn() -> Option<&'static mut Turn> {
    let me = sys::tid() as i32;
    let owner = LOOP_THREAD.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|o| o);
    // SAFETY: one thread only, and no two references of it live at a time: each use ends within its function.
    (owner == 0 || owner == me).then(|| unsafe { &mut *TURN.0.get() })
}

/// The loop waits again: what it was passed is done.
fn end_turn(shim: &Shim, left: c_int) -> c_int {
    let Some(turn) = turn() else { return left };
    let n = std::mem::replace(&mut turn.n, 0);
    for fd in turn.fds[..n].iter().copied() {
        if let Some(mut held) = hold(fd) {
            settle(shim, held.link());
        }
    }
    // Who waits is readable: the kernel says so at once.
    left
}

fn turn_event(shim: &Shim, fd: i32, link: &mut Link, mask: u32) -> u32 {
    let Some(conn) = link.conn else { return mask };
    if mask & EPOLLIN as u32 == 0 || mask & GONE != 0 {
        return mask;
    }
    let Some(turn) = turn().filter(|t| t.n < Turn::MOST) else { return mask };
    let go = change(shim, &mut Wakes::new(), |g, now| {
        g.tick(now);
        g.request(now, conn) == Verdict::Go
    });
    if !go {
        return mask & !(EPOLLIN as u32);
    }
    (link.inside, link.running) = (true, true);
    turn.fds[turn.n] = fd;
    turn.n += 1;
    mask
}

/// Decides on a read that PostgreSQL is about to make. It may read no more bytes than were examined here, as a request that came
/// since has no place yet.
pub fn may_read(shim: &Shim, fd: i32, link: &mut Link) -> Before {
    const ALL: Before = Before::Read(usize::MAX);
    if !link.walker.at_rest() || link.inside || link.granted {
        return ALL;
    }
    let Some(conn) = link.conn else { return ALL };
    let mut bytes = [0u8; PEEK_BYTES];
    let n = peek(fd, &mut bytes);
    if n < 0 && errno() == libc::EAGAIN && is_nonblocking(fd) {
        return Before::NotYet;
    }
    if n <= 0 {
        return ALL;
    }
    if !link.walker.is_tls() {
        let mut walker = link.walker;
        let came = walker.input(&bytes[..n as usize]);
        let (seen, there) = (n as u64, available(fd).max(n as u64));
        // Half of a request takes no place: it is asked for when the read would complete it. What is none (the rest of a COPY) takes none at all.
        match walker.lacks() {
            _ if came.request => {}
            None => return Before::Read(seen as usize),
            Some(bytes) if bytes > there - seen => return Before::Read(there as usize),
            Some(_) => {}
        }
    }
    let go = change(shim, &mut Wakes::new(), |g, now| g.request(now, conn) == Verdict::Go);
    (link.withheld, link.granted) = (!go, go);
    if !go {
        return Before::NotYet;
    }
    link.inside = true;
    show(fd, link);
    ALL
}

/// A read that finds nothing returns at once.
fn is_nonblocking(fd: i32) -> bool {
    call!(SYS_fcntl, fd, libc::F_GETFL) & libc::O_NONBLOCK as isize != 0
}

/// The bytes of a request of PostgreSQL's were read.
pub fn request_read(shim: &Shim, link: &mut Link) {
    if let (false, Some(conn)) = (std::mem::take(&mut link.granted), link.conn) {
        // Within a transaction: goes on at once, and its place counts as used again. Or its last bytes came just when half of it was being
        // read: it can't be held any more, and is counted.
        change(shim, &mut Wakes::new(), |g, now| g.request_urgent(now, conn));
        link.inside = true;
    }
    link.running = link.inside;
}

fn show(fd: i32, link: &mut Link) {
    if let (true, Some(watch)) = (std::mem::take(&mut link.hidden), link.watch) {
        set_mask(fd, watch, watch.1);
    }
}

/// Takes the client's socket out of the set while it is held. Returns for how long to wait.
fn hide_while_held(shim: &Shim, left: c_int) -> c_int {
    let fd = CLIENT.load(Ordering::Relaxed);
    let Some(mut held) = hold(fd) else { return left };
    let link = held.link();
    let (true, Some(conn), Some(watch)) = (link.withheld, link.conn, link.watch) else { return left };
    let wait = change(shim, &mut Wakes::new(), |g, now: Time| {
        g.tick(now);
        g.is_waiting(conn).then(|| crate::engine::patience(g, now, conn).1)
    });
    let Some(ns) = wait else {
        // Let in, or cancelled: it reads now.
        (link.withheld, link.granted) = (false, true);
        link.inside = change(shim, &mut Wakes::new(), |g, _| g.is_inside(conn));
        show(fd, link);
        return left;
    };
    if !std::mem::replace(&mut link.hidden, true) {
        set_mask(fd, watch, EPOLLRDHUP as u32);
    }
    left.min((ns / 1_000_000).max(1) as c_int)
}

/// A held client that went away: no longer held, so that its process finds out.
fn client_gone(shim: &Shim, epfd: i32, list: &mut [epoll_event]) -> usize {
    let fd = CLIENT.load(Ordering::Relaxed);
    if let Some(mut held) = hold(fd)
        && let link = held.link()
        && link.hidden
        && let (Some(conn), Some(watch)) = (link.conn, link.watch)
        && watch.0 == epfd
        && let Some(event) = list.iter_mut().find(|e| e.u64 == watch.2)
    {
        change(shim, &mut Wakes::new(), |g, now| g.cancel(now, conn));
        (link.withheld, link.granted) = (false, true);
        show(fd, link);
        event.events = EPOLLIN as u32;
    }
    list.len()
}
