//! The gate: decides which transactions enter the database now, and which wait outside (AppleS §3.3, AP-M2 to AP-M4).
//!
//! At most P *transactions* are in the database. Further ones wait in their user's queue, first in first out. When a place falls free,
//! users take turns of ζ transactions. ζ is the gate's quota of a turn, φ the weight of a user. In a round each user has φ turns, which
//! are `L = φ·ζ` transactions. A started turn goes on before another begins. Among equals no user begins a second turn before all
//! waiting users had their first. A connection in a transaction is never held, so the owner of a row lock can go on and release it.
//!
//! More than P transactions are open in these cases, and each case has a counter:
//!
//! * Three kinds of requests never wait. A lender comes back, a session that holds a lock goes on (`Gate::come_back`), or a request
//!   continues a transaction ([`Gate::request_urgent`]). Each takes an ordinary place if one is free, else a place above P
//!   (`bypass`).
//! * Lending (`lent`): a transaction whose client is silent for `lend_ns` stays open, and gives its place to one that waits.
//! * A stall (`stall_escapes`) or a wait of `hold_max` (`hold_escapes`) admits a waiting transaction on a place above P (see `escape`).
//! * An opened gate admits all, on ordinary places, which P doesn't bound then. `opened` counts those that waited.
//!
//! Places above P are counted apart from the P ordinary ones.
//!
//! The gate reads no clock and allocates nothing, but for the list of [`Gate::owners`]. Its state is in slices, which may be shared
//! memory. Facts come in through [`Gate::request`], [`Gate::answered`], [`Gate::close`], [`Gate::tick`]; orders go out through
//! [`Gate::take_grant`].

mod check;
mod escape;
pub mod hist;
pub mod list;
pub mod names;
mod own;
mod rounds;
pub mod state;

pub use hist::LogHist;
pub use own::OwnGate;
pub use state::{Conn, Counters, Head, Knobs, NAME_BYTES, P_UNLIMITED, USERS_MAX, User, UserClass, WEIGHT_ONE_MILLI};

use list::{Link, List, NIL};
use plimsoll_base::{Span, Time};
use state::{phase, place};

/// A connection's place in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub struct ConnId(pub u32);

/// The answer to a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Go on.
    Go,
    /// Wait until [`Gate::take_grant`] names the connection.
    Wait,
}

/// State of the connection according to the database's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// No transaction is open: the place is free.
    Done,
    /// The same, but what was done is undone: a deadlock's victim, a rollback, an error. It is no throughput.
    Undone,
    /// A transaction is open: the place is kept.
    Open,
    /// Only a lock of the session is open: the place is free, and who holds the lock is never held for its next request.
    Pinned,
}

/// The user that all share who have none of their own.
pub const USER_OTHERS: u32 = 0;

/// The gate over its memory. See the module's documentation.
pub struct Gate<'a> {
    /// Knobs, counters, lists.
    pub head: &'a mut Head,
    /// Users; 0 is shared by all that have no entry.
    pub users: &'a mut [User],
    /// Connections.
    pub conns: &'a mut [Conn],
}

impl Gate<'_> {
    /// Forgets all and begins.
    ///
    /// # Panics
    /// If there is no room for a user or a connection, or for more users than [`USERS_MAX`].
    pub fn init(&mut self, knobs: Knobs, now: Time) {
        assert!(!self.users.is_empty() && !self.conns.is_empty(), "a gate needs room");
        assert!(self.users.len() <= USERS_MAX, "a gate has room for at most USERS_MAX users");
        *self.head = bytemuck::Zeroable::zeroed();
        self.head.knobs = knobs;
        (self.head.answer_at, self.head.place_at) = (now.as_nanos(), now.as_nanos());
        (self.head.escape_burst, self.head.round) = (1, 1);
        self.clear_lists();
        for i in 0..self.conns.len() as u32 {
            self.conns[i as usize] = bytemuck::Zeroable::zeroed();
            self.conns[i as usize].age = Link::NONE;
            self.head.free_conns.push::<0, _>(self.conns, i);
        }
        self.users.fill(bytemuck::Zeroable::zeroed());
        (self.head.users_used, self.head.conns_used) = (0, 0);
        self.user(now, "others").expect("there is room for one");
    }

    fn clear_lists(&mut self) {
        let h = &mut *self.head;
        h.line_len = 0;
        for list in [&mut h.idle, &mut h.by_age, &mut h.granted, &mut h.in_turn] {
            *list = List::EMPTY;
        }
        h.free_conns = List::EMPTY;
    }

    /// Takes a connection in, for the user `others` until [`Gate::identify`] says more; `None` if the table is full.
    pub fn open(&mut self, owner_pid: u32) -> Option<ConnId> {
        let Some(i) = self.head.free_conns.pop::<0, _>(self.conns) else {
            self.head.counters.overflow += 1;
            return None;
        };
        self.head.conns_used = self.head.conns_used.max(i + 1);
        let c = &mut self.conns[i as usize];
        let epoch = c.epoch;
        *c = bytemuck::Zeroable::zeroed();
        (c.link, c.age, c.epoch) = (Link::NONE, Link::NONE, epoch);
        (c.phase, c.owner_pid, c.user) = (phase::REST, owner_pid, USER_OTHERS);
        self.users[USER_OTHERS as usize].conns += 1;
        Some(ConnId(i))
    }

    /// The user of a connection.
    pub fn user_of(&self, conn: ConnId) -> u32 {
        self.conns[conn.0 as usize].user
    }

    /// A request that counts came in on `conn`.
    pub fn request(&mut self, now: Time, conn: ConnId) -> Verdict {
        let c = &mut self.conns[conn.0 as usize];
        match c.phase {
            phase::REST => self.begin(now, conn.0),
            phase::IDLE => {
                self.resume(now, conn.0);
                Verdict::Go
            }
            // A pipelined request: its transaction's place covers it.
            phase::RUNNING => Verdict::Go,
            phase::WAITING => Verdict::Wait,
            phase::PINNED => {
                self.come_back(now, conn.0);
                Verdict::Go
            }
            _ => Verdict::Go,
        }
    }

    /// A request that must not be held, as the transaction that it goes on with has its locks already.
    pub fn request_urgent(&mut self, now: Time, conn: ConnId) {
        if self.conns[conn.0 as usize].phase != phase::REST {
            self.request(now, conn);
            return;
        }
        self.conns[conn.0 as usize].arrived_at = now.as_nanos();
        let place = self.place_beyond();
        self.admit(now, conn.0, place);
        self.pay(self.conns[conn.0 as usize].user);
    }

    /// The place of one that goes in in any case.
    fn place_beyond(&mut self) -> u32 {
        if self.has_room() {
            return place::NORMAL;
        }
        self.head.counters.bypass += 1;
        place::OVER
    }

    fn begin(&mut self, now: Time, i: u32) -> Verdict {
        self.conns[i as usize].arrived_at = now.as_nanos();
        if self.head.waiting == 0 && self.has_room() {
            self.admit(now, i, place::NORMAL);
            return Verdict::Go;
        }
        self.enqueue(now, i);
        self.pump(now);
        if self.conns[i as usize].phase == phase::WAITING {
            return Verdict::Wait;
        }
        // Let in by its own arrival (somebody's place could be lent): no need to tell.
        self.untell(i);
        Verdict::Go
    }

    fn has_room(&self) -> bool {
        self.head.knobs.open != 0 || self.head.normal < self.head.knobs.p
    }

    fn admit(&mut self, now: Time, i: u32, place: u32) {
        let c = &mut self.conns[i as usize];
        debug_assert!(c.place == place::NONE);
        (c.phase, c.place) = (phase::RUNNING, place);
        (c.admitted_at, c.since) = (now.as_nanos(), now.as_nanos());
        let wait = Span::from_nanos(now.as_nanos().saturating_sub(c.arrived_at));
        let user = &mut self.users[c.user as usize];
        user.inside += 1;
        user.admitted += 1;
        user.wait_hist.record(wait);
        self.head.counters.admitted += 1;
        match place {
            place::NORMAL => (self.head.normal, self.head.place_at) = (self.head.normal + 1, now.as_nanos()),
            _ => self.head.over += 1,
        }
    }

    fn resume(&mut self, now: Time, i: u32) {
        let c = &mut self.conns[i as usize];
        (c.phase, c.since) = (phase::RUNNING, now.as_nanos());
        match c.place {
            place::NORMAL => self.head.idle.remove::<0, _>(self.conns, i),
            place::LENT => {
                self.head.lent -= 1;
                self.conns[i as usize].place = self.place_beyond();
                match self.conns[i as usize].place {
                    place::NORMAL => self.head.normal += 1,
                    _ => self.head.over += 1,
                }
            }
            _ => {}
        }
    }

    /// Lets the holder of a session's lock in for its next request, which is a transaction of its own.
    fn come_back(&mut self, now: Time, i: u32) {
        let c = &mut self.conns[i as usize];
        (c.place, c.arrived_at) = (place::NONE, now.as_nanos());
        self.head.lent -= 1;
        let u = c.user;
        self.users[u as usize].inside -= 1;
        let place = self.place_beyond();
        self.admit(now, i, place);
        self.pay(u);
    }

    /// The request that ran on `conn` was answered.
    pub fn answered(&mut self, now: Time, conn: ConnId, what: Answered) {
        let i = conn.0;
        let c = &mut self.conns[i as usize];
        let ended = matches!(what, Answered::Done | Answered::Undone);
        match c.phase {
            phase::RUNNING => {}
            // Between two statements of a transaction it may end without a request that counts, …
            phase::IDLE if ended => {
                self.resume(now, i);
                self.finish(now, i, what);
                self.pump(now);
                return;
            }
            // … and a session's lock may be given back so.
            phase::PINNED if ended => {
                self.leave(now, i);
                return;
            }
            _ => return,
        }
        let service = Span::from_nanos(now.as_nanos().saturating_sub(c.since));
        c.since = now.as_nanos();
        self.progressed(now, service);
        match what {
            Answered::Done | Answered::Undone => self.finish(now, i, what),
            Answered::Pinned => self.pin(now, i),
            Answered::Open => {
                self.conns[i as usize].phase = phase::IDLE;
                if self.conns[i as usize].place == place::NORMAL {
                    self.head.idle.push::<0, _>(self.conns, i);
                }
            }
        }
        self.pump(now);
    }

    fn finish(&mut self, now: Time, i: u32, how: Answered) {
        self.ended(now, i, how);
        self.leave(now, i);
    }

    /// A transaction ended.
    fn ended(&mut self, now: Time, i: u32, how: Answered) {
        let c = &self.conns[i as usize];
        let total = Span::from_nanos(now.as_nanos().saturating_sub(c.arrived_at));
        let held = Span::from_nanos(now.as_nanos().saturating_sub(c.admitted_at));
        let user = &mut self.users[c.user as usize];
        let us = total.as_micros();
        user.finished += 1;
        user.total_us = user.total_us.wrapping_add(us);
        user.total_us2 = user.total_us2.wrapping_add(us.wrapping_mul(us));
        user.total_hist.record(total);
        self.head.counters.finished += 1;
        self.head.counters.undone += u64::from(how == Answered::Undone);
        self.head.holding.record(held);
        self.settle(now, i);
    }

    /// Its transaction is over, a lock of its session isn't: the place is free, as if it were lent.
    fn pin(&mut self, now: Time, i: u32) {
        self.ended(now, i, Answered::Done);
        let c = &mut self.conns[i as usize];
        (c.phase, c.arrived_at) = (phase::PINNED, now.as_nanos());
        let before = std::mem::replace(&mut c.place, place::LENT);
        self.head.lent += 1;
        self.place_is_free(now, before);
    }

    /// Gives the place back.
    fn leave(&mut self, now: Time, i: u32) {
        let c = &mut self.conns[i as usize];
        let before = c.place;
        match before {
            place::NONE => return,
            place::LENT => self.head.lent -= 1,
            _ => self.place_is_free(now, before),
        }
        let c = &mut self.conns[i as usize];
        if before == place::NORMAL && c.phase == phase::IDLE {
            self.head.idle.remove::<0, _>(self.conns, i);
        }
        let c = &mut self.conns[i as usize];
        (c.phase, c.place) = (phase::REST, place::NONE);
        self.users[c.user as usize].inside -= 1;
        self.become_next(i);
    }

    fn place_is_free(&mut self, now: Time, which: u32) {
        let h = &mut *self.head;
        match which {
            place::NORMAL => (h.normal, h.place_at, h.level) = (h.normal - 1, now.as_nanos(), 0),
            _ => h.over -= 1,
        }
    }

    fn enqueue(&mut self, now: Time, i: u32) {
        let c = &mut self.conns[i as usize];
        c.phase = phase::WAITING;
        let u = c.user;
        if self.head.waiting == 0 {
            // A stall is counted from when somebody waits for it to end.
            self.head.answer_at = now.as_nanos();
        }
        self.head.waiting += 1;
        self.head.by_age.push::<1, _>(self.conns, i);
        let user = &mut self.users[u as usize];
        user.queue.push::<0, _>(self.conns, i);
        user.waiting += 1;
        if user.waiting == 1 {
            user.backlog_since = now.as_nanos();
            self.join_ring(u);
        }
    }

    /// Takes a waiting connection out of its queue.
    fn dequeue(&mut self, now: Time, i: u32) {
        // In memory that others write to a queue may be a ring: each is let in once, so letting in comes to an end.
        assert!(self.conns[i as usize].phase == phase::WAITING, "only who waits is in a queue");
        let u = self.conns[i as usize].user;
        self.head.waiting -= 1;
        self.head.by_age.remove::<1, _>(self.conns, i);
        let user = &mut self.users[u as usize];
        user.queue.remove::<0, _>(self.conns, i);
        user.waiting -= 1;
        if user.waiting == 0 {
            user.backlogged_ns += now.as_nanos().saturating_sub(user.backlog_since);
            self.leave_ring(u);
        }
        let c = &mut self.conns[i as usize];
        c.phase = phase::REST;
        c.epoch = c.epoch.wrapping_add(1);
    }

    /// Lets a waiting connection in and records that its driver must be notified.
    fn grant(&mut self, now: Time, i: u32, place: u32) {
        self.dequeue(now, i);
        if place == place::NORMAL {
            self.charge(self.conns[i as usize].user);
        }
        self.admit(now, i, place);
        self.head.counters.held += 1;
        self.conns[i as usize].granted = 1;
        self.head.granted.push::<0, _>(self.conns, i);
    }

    fn untell(&mut self, i: u32) {
        if std::mem::take(&mut self.conns[i as usize].granted) == 1 {
            self.head.granted.remove::<0, _>(self.conns, i);
        }
    }

    /// Returns the next connection that was let in while it waited, and whose driver must be notified.
    pub fn take_grant(&mut self) -> Option<ConnId> {
        let i = self.head.granted.pop::<0, _>(self.conns)?;
        // In memory that others write to a list may be a ring, which would never end.
        assert!(std::mem::take(&mut self.conns[i as usize].granted) == 1, "only granted connections are in the list");
        Some(ConnId(i))
    }

    /// Lets in waiting transactions while there is room.
    fn pump(&mut self, now: Time) {
        while self.head.waiting > 0 && (self.has_room() || self.lend(now)) {
            let open = self.head.knobs.open != 0;
            let next = self.next_in_turn();
            self.grant(now, next, place::NORMAL);
            self.head.counters.opened += u64::from(open);
        }
        self.hand_on(now);
    }

    /// Changes the knobs; whoever may go in now is let in.
    pub fn set_knobs(&mut self, now: Time, knobs: Knobs) {
        self.head.knobs = Knobs { zeta: knobs.zeta.max(1), ..knobs };
        self.pump(now);
    }

    /// The client gave up waiting, or the database did: out of the queue. False if it didn't wait.
    pub fn cancel(&mut self, now: Time, conn: ConnId) -> bool {
        let waits = self.conns[conn.0 as usize].phase == phase::WAITING;
        if waits {
            self.dequeue(now, conn.0);
            self.become_next(conn.0);
        }
        waits
    }

    /// The connection is gone, whatever it was doing.
    pub fn close(&mut self, now: Time, conn: ConnId) {
        if self.conns[conn.0 as usize].phase == phase::FREE {
            return;
        }
        self.cancel(now, conn);
        self.untell(conn.0);
        self.leave(now, conn.0);
        let c = &mut self.conns[conn.0 as usize];
        c.phase = phase::FREE;
        c.epoch = c.epoch.wrapping_add(1);
        let user = &mut self.users[c.user as usize];
        user.conns -= 1;
        user.used_at = now.as_nanos();
        self.head.free_conns.push_front::<0, _>(self.conns, conn.0);
        self.pump(now);
    }

    /// Closes the connections of processes that `is_dead` says are gone.
    pub fn reap(&mut self, now: Time, is_dead: &mut dyn FnMut(u32) -> bool) {
        let mut last = (0, false);
        for i in 0..self.head.conns_used {
            let c = &self.conns[i as usize];
            if c.phase == phase::FREE || c.owner_pid == 0 {
                continue;
            }
            if last.0 != c.owner_pid {
                last = (c.owner_pid, is_dead(c.owner_pid));
            }
            if last.1 {
                self.close(now, ConnId(i));
                self.head.counters.reaped += 1;
            }
        }
    }

    /// Processes that own connections, each once.
    pub fn owners(&self) -> Vec<u32> {
        let used = &self.conns[..self.head.conns_used as usize];
        let mut pids: Vec<u32> = used.iter().filter(|c| c.phase != phase::FREE).map(|c| c.owner_pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids.retain(|p| *p != 0);
        pids
    }

    /// True if the connection waits.
    pub fn is_waiting(&self, conn: ConnId) -> bool {
        self.conns[conn.0 as usize].phase == phase::WAITING
    }

    /// Returns whether it has waited for longest.
    pub fn is_oldest(&self, conn: ConnId) -> bool {
        self.head.by_age.first() == Some(conn.0)
    }

    /// True if the connection holds a place, or has lent its place.
    pub fn is_inside(&self, conn: ConnId) -> bool {
        self.conns[conn.0 as usize].place != place::NONE
    }
}

const _: () = assert!(NIL == u32::MAX);
