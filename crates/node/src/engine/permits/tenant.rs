//! The permits of one tenant, which its connections share.

use super::held::{Held, PermitLimits, own};
use super::queue::{Queue, Turn, Waiting, WaitsFor};
use super::room::Room;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Requests of one tenant in flight, and its connections that wait.
#[derive(Debug, Default)]
pub struct Permits {
    /// Its bound.
    pub limits: PermitLimits,
    /// Requests in the stack.
    in_stack: Held,
    /// All that hold a permit, until their answers have been sent.
    held: Held,
    /// Requests and bytes that connections hold beyond their own, together.
    shared: Held,
    /// Payloads that were announced.
    room: Room,
    /// Permits of each connection that holds some or waits, by place. A client with one request at a time enters and leaves
    /// with each of them, which would cost a tree an allocation.
    active: Places,
    /// Connections that wait.
    queue: Queue,
    /// It is among those to be looked at.
    pub is_due: bool,
}

/// The most connections whose permits [`Permits::check`] adds up.
const CHECKED_MAX: usize = 64;

type Places = HashMap<usize, Held, BuildHasherDefault<PlaceHasher>>;

/// Hash of a connection's place: a small number that no client chooses. Nothing depends on the order of places.
#[derive(Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_usize(usize::from(*b)));
    }

    fn write_usize(&mut self, place: usize) {
        self.0 = (self.0 ^ place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Permits {
    fn held_by(&self, conn: usize) -> Held {
        self.active.get(&conn).copied().unwrap_or(Held::NONE)
    }

    /// Shared permits that another request of a connection takes.
    fn needs(&self, conn: usize, bytes: u64) -> Held {
        let held = self.held_by(conn);
        held.plus(Held::one(bytes)).beyond(own()).beyond(held.beyond(own()))
    }

    fn fits_stack(&self, bytes: u64) -> bool {
        let Held { jobs, bytes: inside } = self.in_stack;
        jobs < self.limits.jobs_max && (inside == 0 || inside.saturating_add(bytes) <= self.limits.bytes_max)
    }

    fn fits_shared(&self, conn: usize, bytes: u64) -> bool {
        let (needs, shared) = (self.needs(conn, bytes), self.shared);
        let jobs = needs.jobs == 0 || shared.jobs < self.limits.jobs_max;
        let room = shared.bytes == 0 || shared.bytes.saturating_add(needs.bytes) <= self.limits.bytes_max;
        jobs && (needs.bytes == 0 || room)
    }

    fn fits(&self, conn: usize, bytes: u64) -> bool {
        self.fits_stack(bytes) && self.fits_shared(conn, bytes)
    }

    fn enter(&mut self, conn: usize, bytes: u64) {
        self.shared.add(self.needs(conn, bytes));
        self.in_stack.add(Held::one(bytes));
        self.held.add(Held::one(bytes));
        self.active.entry(conn).or_default().add(Held::one(bytes));
        self.check();
    }

    /// Asserts that permits are held by connections, and each once. The sums of all connections are only looked at while there are few:
    /// tests with thousands of them would take quadratic time.
    fn check(&self) {
        debug_assert_eq!(self.in_stack.beyond(self.held), Held::NONE, "a request in the stack has no permit");
        debug_assert_eq!(self.shared.beyond(self.held), Held::NONE, "more is shared than held");
        if !cfg!(debug_assertions) || self.active.len() > CHECKED_MAX {
            return;
        }
        let sum = |of: fn(&Held) -> Held| self.active.values().map(of).fold(Held::NONE, Held::plus);
        assert_eq!(sum(|h| *h), self.held, "a permit is held by no connection, or by two");
        assert_eq!(
            sum(|h| h.beyond(own())),
            self.shared,
            "a connection's own permits count as shared, or shared ones as its own"
        );
    }

    /// True if nothing is out, and nobody waits.
    pub fn is_at_rest(&self) -> bool {
        self.held == Held::NONE && self.in_stack == Held::NONE && self.room.bytes() == 0 && self.queue.len() == 0
    }

    /// Requests in the stack.
    pub fn in_stack(&self) -> u32 {
        self.in_stack.jobs
    }

    /// Requests have left the stack; their answers wait to be sent.
    ///
    /// # Panics
    /// If fewer are there.
    pub fn answered(&mut self, held: Held) {
        self.in_stack.subtract(held);
        self.check();
    }

    /// Gives permits of a connection back.
    ///
    /// # Panics
    /// If fewer are out.
    pub fn give(&mut self, conn: usize, held: Held) {
        let part = self.active.get_mut(&conn).expect("a permit was given back twice");
        let before = part.beyond(own());
        part.subtract(held);
        self.shared.subtract(before.beyond(part.beyond(own())));
        self.held.subtract(held);
        self.take_turn(conn);
        self.tidy(conn);
        self.check();
    }

    /// Turn of a request of a connection.
    fn turn_of(&self, conn: usize, bytes: u64) -> Turn {
        let (held, active) = (self.held_by(conn), self.active.len().max(1) as u64);
        if self.needs(conn, bytes) == Held::NONE {
            Turn::Own
        } else if u64::from(held.jobs) * active <= u64::from(self.limits.jobs_max)
            && held.bytes.saturating_mul(active) <= self.limits.bytes_max
        {
            Turn::Modest
        } else {
            Turn::Greedy
        }
    }

    /// Looks again at whose turn a waiting connection's request is. True if that has changed.
    fn take_turn(&mut self, conn: usize) -> bool {
        let Some((turn, bytes)) = self.queue.turn(conn) else { return false };
        let now = self.turn_of(conn, bytes);
        if now != turn {
            self.queue.set_turn(conn, now);
        }
        now != turn
    }

    /// Forgets a connection that holds nothing and doesn't wait.
    fn tidy(&mut self, conn: usize) {
        if self.active.get(&conn) == Some(&Held::NONE) && !self.queue.has(conn) {
            self.active.remove(&conn);
        }
    }

    /// Keeps room for a payload, if there is any and nobody waits for some already.
    pub fn announce(&mut self, bytes: u64) -> bool {
        (!self.queue.wants_room() || bytes <= super::OWN.bytes) && self.keep_room(bytes)
    }

    /// Payloads have half of the tenant's bytes.
    fn keep_room(&mut self, bytes: u64) -> bool {
        self.room.take(bytes, self.limits.bytes_max / 2)
    }

    /// Gives a payload's room back.
    ///
    /// # Panics
    /// If none is out.
    pub fn withdraw(&mut self, bytes: u64) {
        self.room.give(bytes);
    }

    /// Connections that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// True if a connection other than `conn` waits.
    pub fn others_wait(&self, conn: usize) -> bool {
        self.queue.len() > usize::from(self.queue.has(conn))
    }

    /// True if a connection holds more than its own.
    pub fn holds_shared(&self, conn: usize) -> bool {
        self.held_by(conn).beyond(own()) != Held::NONE
    }

    /// Requests and bytes that hold a permit, with the bytes of announced payloads.
    pub fn inside(&self) -> (u32, u64) {
        (self.held.jobs, self.held.bytes + self.room.bytes())
    }

    /// True if a request that needs only its connection's own permits may go before all that wait for shared ones.
    fn own_passes(&self) -> bool {
        self.queue.first_of_shared().is_none_or(|w| !self.fits_shared(w.conn, w.bytes))
    }

    /// Takes a permit without waiting.
    pub fn take(&mut self, conn: usize, bytes: u64) -> bool {
        let nobody_before = !self.queue.wants_permits();
        let passes =
            || self.needs(conn, bytes) == Held::NONE && self.queue.first_of_own().is_none() && self.own_passes();
        let takes = (nobody_before || passes()) && self.fits(conn, bytes);
        if takes {
            self.enter(conn, bytes);
        }
        takes
    }

    /// The next that can go on.
    pub fn next(&mut self, stack_is_full: bool) -> Option<Waiting> {
        if let Some(w) = self.queue.first_for_room()
            && self.keep_room(w.bytes)
        {
            self.leave(w.conn);
            return Some(w);
        }
        if stack_is_full {
            return None;
        }
        // More connections are active than when it began to wait: its share is smaller now.
        while let Some(w) = self.queue.first_of_shared()
            && self.take_turn(w.conn)
        {}
        let w = match (self.queue.first_of_own(), self.queue.first_of_shared()) {
            // Whichever came first isn't passed while it waits for the stack.
            (Some(own), Some(other)) if own.ticket < other.ticket => own,
            (Some(own), Some(_)) if self.own_passes() => own,
            (Some(own), None) => own,
            (_, other) => other?,
        };
        if !self.fits(w.conn, w.bytes) {
            return None;
        }
        self.enter(w.conn, w.bytes);
        self.leave(w.conn);
        if w.resource == WaitsFor::PermitForPayload {
            self.withdraw(w.bytes);
        }
        Some(w)
    }

    /// True if a connection that only the stack keeps waiting has to be looked at again.
    pub fn waits_for_stack(&self) -> bool {
        self.queue.wants_permits()
    }

    /// Lets a connection wait.
    ///
    /// # Panics
    /// If it waits already.
    pub fn wait(&mut self, w: Waiting) {
        self.active.entry(w.conn).or_default();
        self.queue.enter(w, self.turn_of(w.conn, w.bytes));
    }

    /// A connection no longer waits.
    pub fn leave(&mut self, conn: usize) {
        self.queue.leave(conn);
        self.tidy(conn);
    }

    /// Connections that hold something or wait, with what they hold.
    #[cfg(test)]
    pub fn active(&self) -> &HashMap<usize, Held, impl std::hash::BuildHasher> {
        &self.active
    }

    /// Requests and bytes beyond connections' own.
    #[cfg(test)]
    pub fn shared(&self) -> Held {
        self.shared
    }
}
