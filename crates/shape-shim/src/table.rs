//! State of each file descriptor of this process: its connection in the gate and its walker.

use plimsoll_shape::gate::ConnId;
use plimsoll_shape::sync::{self, Hold};
use plimsoll_shape::users::Peer;
use plimsoll_shape::walk::{Protocol, Walker};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Descriptors from here on pass through.
pub const FDS: usize = 65_536;

/// State of a connection, for the thread that handles it.
pub struct Link {
    /// Its place in the gate.
    pub conn: Option<ConnId>,
    /// Follows its bytes.
    pub walker: Walker,
    /// Address of its client.
    pub peer: Peer,
    /// The gate counts a transaction of it as inside.
    pub inside: bool,
    /// Of that transaction a request runs.
    pub running: bool,
    /// Let in before its bytes were read.
    pub granted: bool,
    /// It was read from.
    pub seen: bool,
    /// Source of its events: epoll descriptor, event mask and data as given to `epoll_ctl`.
    pub watch: Option<(i32, u32, u64)>,
    /// Its event is withheld.
    pub withheld: bool,
    /// The socket is out of the set that the process waits for.
    pub hidden: bool,
}

struct Entry {
    /// Its mark is 1 + the connection's number for who needs it without the link (KILL), or [`NO_CONN`] while it has none yet. Its wish is
    /// 1 + the connection whose event is to come again.
    entry: sync::Entry<AtomicU32, AtomicBool, AtomicU32>,
    /// The data of its events, for who only has that.
    data: AtomicU64,
    link: UnsafeCell<MaybeUninit<Link>>,
}

// SAFETY: `link` is only reached by who took `entry`, and is written before its mark says that it's there.
unsafe impl Sync for Entry {}

const NO_CONN: u32 = u32::MAX;

static TABLE: [Entry; FDS] = [const {
    Entry { entry: sync::Entry::vacant(), data: AtomicU64::new(0), link: UnsafeCell::new(MaybeUninit::uninit()) }
}; FDS];

fn entry(fd: i32) -> Option<&'static Entry> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// Returns whether it is one of ours. The only cost for all other descriptors.
pub fn is_tracked(fd: i32) -> bool {
    entry(fd).is_some_and(|e| e.entry.mark() != 0)
}

/// The gate's connection of a descriptor, whoever handles it just now.
pub fn conn_of(fd: i32) -> Option<ConnId> {
    let n = entry(fd)?.entry.mark();
    (n != 0 && n != NO_CONN).then(|| ConnId(n - 1))
}

/// Notes the data of a descriptor's events.
pub fn set_data(fd: i32, data: u64) {
    if let Some(e) = entry(fd) {
        e.data.store(data, Ordering::Release);
    }
}

/// Returns whether it is one of ours, with this data.
pub fn has_data(fd: i32, data: u64) -> bool {
    entry(fd).is_some_and(|e| e.entry.mark() != 0 && e.data.load(Ordering::Acquire) == data)
}

/// A descriptor's link, held.
pub struct Held(&'static Entry, i32);

impl Held {
    /// The link.
    pub fn link(&mut self) -> &mut Link {
        // SAFETY: the entry is ours, and its mark was seen after that, so the link is written.
        unsafe { (*self.0.link.get()).assume_init_mut() }
    }

    /// Tells those who ask without the link.
    pub fn publish(&mut self) {
        let conn = self.link().conn;
        self.0.entry.publish(conn.map_or(NO_CONN, |c| c.0 + 1));
    }

    /// Forgets the descriptor.
    pub fn forget(self) {
        self.0.entry.forget();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // In one order with `want_event`: either that finds the link free, or this finds what it wants.
        if self.0.entry.give_back() {
            crate::epoll::rearm_wanted(self.1);
        }
    }
}

/// Orders the connection's event to come again. If a thread has the link, that thread delivers the event when it gives the link back.
pub fn want_event(fd: i32, conn: ConnId) {
    if let Some(e) = entry(fd) {
        e.entry.want(conn.0 + 1);
    }
}

impl Held {
    /// Returns whether this connection's event was wanted again, and clears that wish.
    pub fn take_wanted(&mut self) -> bool {
        let wanted = self.0.entry.take_wanted();
        // A grant may come after its connection was closed: the descriptor is another's by then.
        wanted != 0 && self.link().conn.is_some_and(|c| c.0 + 1 == wanted)
    }
}

/// Takes the link of a descriptor of ours; `None` if it isn't, or another thread has it (two threads on one connection: the second
/// passes through).
pub fn hold(fd: i32) -> Option<Held> {
    let e = entry(fd)?;
    match e.entry.hold() {
        Hold::Held => Some(Held(e, fd)),
        Hold::Forgotten => {
            drop(Held(e, fd));
            None
        }
        Hold::Not => None,
    }
}

/// Begins to follow a descriptor that was just accepted.
pub fn track(fd: i32, protocol: Protocol, peer: Peer) -> Option<Held> {
    let e = entry(fd)?;
    if !e.entry.take_to_fill() {
        return None;
    }
    let link = Link {
        conn: None,
        walker: Walker::new(protocol),
        peer,
        inside: false,
        running: false,
        granted: false,
        seen: false,
        watch: None,
        withheld: false,
        hidden: false,
    };
    // SAFETY: the entry is ours. What was there before has no destructor.
    unsafe { (*e.link.get()).write(link) };
    e.entry.fill(NO_CONN);
    Some(Held(e, fd))
}
