//! Permits: how many requests and bytes a tenant may have inside at once.
//!
//! Admission is permits first: a connection without one isn't read from, so the client feels backpressure on its socket
//! instead of filling a queue here. A request holds its permit from before it enters the stack until its answer has been
//! sent, so permits bound the memory that is held for a tenant, whether or not its clients read their answers.
//!
//! A write too large for its connection's buffer is *announced* first: room for its payload is kept beside the permits,
//! half as many bytes as those allow. What a client announces and doesn't send therefore keeps no permit from the tenant's
//! other clients. The write asks for its permit when all its bytes have come.
//!
//! A tenant's connections share its permits:
//!
//! * Requests in the stack never exceed the tenant's bound, whoever sent them.
//! * Each connection has [`OWN`]: this number of requests and bytes is its own. Only what it holds beyond that counts
//!   against the tenant's bound while it waits to be sent. Payloads of up to [`OWN`]'s bytes need no room either. So
//!   clients that don't read, or announce and don't send, can't stop a connection that holds little.
//! * Who waits is let in in the order of coming. A connection that holds more than the tenant's permits divided by its
//!   active connections yields to those that hold less.
//! * A request that needs nothing but its connection's own passes others only while those wait for answers to be sent. It
//!   doesn't while they wait for the stack, or large requests would wait for ever.
//!
//! Tenants take turns.

use crate::planted::{self, Mistake};
use plimsoll_base::TenantId;
use std::collections::{BTreeMap, VecDeque};

/// Requests and bytes of each connection that don't count against its tenant's bound once they have left the stack. A
/// depth of 16 and 64 KiB suit a database beside backups; a connection's receive buffer is larger.
pub const OWN: Held = Held { jobs: 16, bytes: 64 << 10 };

fn own() -> Held {
    if planted::is(Mistake::NothingOwn) { Held::NONE } else { OWN }
}

/// A tenant's bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitLimits {
    /// Requests inside at once, at least 1.
    pub jobs_max: u32,
    /// Bytes inside at once. A single larger request is let in alone.
    pub bytes_max: u64,
}

impl Default for PermitLimits {
    /// Four connections of depth 256, and four of the largest NBD requests.
    fn default() -> PermitLimits {
        PermitLimits { jobs_max: 1024, bytes_max: 128 << 20 }
    }
}

/// Permits of some requests together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Requests.
    pub jobs: u32,
    /// Their bytes.
    pub bytes: u64,
}

impl Held {
    const NONE: Held = Held { jobs: 0, bytes: 0 };

    /// The permit of one request of `bytes`.
    pub const fn one(bytes: u64) -> Held {
        Held { jobs: 1, bytes }
    }

    /// Adds another's.
    pub fn add(&mut self, other: Held) {
        self.jobs += other.jobs;
        self.bytes += other.bytes;
    }

    fn plus(mut self, other: Held) -> Held {
        self.add(other);
        self
    }

    /// Takes another's away.
    ///
    /// # Panics
    /// If it isn't there.
    fn subtract(&mut self, other: Held) {
        self.jobs = self.jobs.checked_sub(other.jobs).expect("a permit was given back twice");
        self.bytes = self.bytes.checked_sub(other.bytes).expect("a permit was given back twice");
    }

    /// The excess over `other`, by requests and bytes.
    const fn beyond(self, other: Held) -> Held {
        Held { jobs: self.jobs.saturating_sub(other.jobs), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

/// A resource that a connection waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitsFor {
    /// Room for a payload.
    Room,
    /// A permit.
    Permit,
    /// A permit, for a request whose payload has room already, which it then gives back.
    PermitForPayload,
}

/// Turn of a connection that waits for a permit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Turn {
    /// Its own suffices.
    Own,
    /// It holds no more than its share of the tenant's permits.
    Modest,
    /// It holds more, and yields.
    Greedy,
}

/// A connection's part of what its tenant has inside.
#[derive(Debug, Default)]
struct Part {
    held: Held,
    /// Its wait, if it waits for a permit.
    for_permit: Option<(Turn, u64)>,
    /// Its wait, if it waits for room.
    for_room: Option<u64>,
}

/// What one tenant has inside.
#[derive(Debug, Default)]
struct Permits {
    limits: PermitLimits,
    /// Requests in the stack.
    in_stack: Held,
    /// All that hold a permit, until their answers have been sent.
    held: Held,
    /// Requests and bytes that connections hold beyond [`OWN`], together.
    shared: Held,
    /// Bytes of payloads that have room and no permit yet.
    announced: u64,
    /// Of those, the ones that are larger than a connection's own.
    announced_shared: u64,
    /// Connections that hold something or wait, by their places.
    parts: BTreeMap<usize, Part>,
    /// Connections that wait for a permit, by turn and ticket.
    for_permits: BTreeMap<(Turn, u64), Waiting>,
    /// Connections that wait for room, by ticket.
    for_room: BTreeMap<u64, Waiting>,
    /// It is among those to be looked at.
    is_due: bool,
}

impl Permits {
    fn held_by(&self, conn: usize) -> Held {
        self.parts.get(&conn).map_or(Held::NONE, |p| p.held)
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
        self.parts.entry(conn).or_default().held.add(Held::one(bytes));
    }

    fn give(&mut self, conn: usize, held: Held) {
        let part = self.parts.get_mut(&conn).expect("a permit was given back twice");
        let before = part.held.beyond(own());
        part.held.subtract(held);
        self.shared.subtract(before.beyond(part.held.beyond(own())));
        self.held.subtract(held);
        self.take_turn(conn);
        self.tidy(conn);
    }

    /// Turn of a request of a connection.
    fn turn_of(&self, conn: usize, bytes: u64) -> Turn {
        let (held, active) = (self.held_by(conn), self.parts.len().max(1) as u64);
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
        let Some(key @ (turn, ticket)) = self.parts.get(&conn).and_then(|p| p.for_permit) else { return false };
        let now = self.turn_of(conn, self.for_permits[&key].bytes);
        if now != turn {
            let w = self.for_permits.remove(&key).expect("just seen");
            self.for_permits.insert((now, ticket), w);
            self.parts.get_mut(&conn).expect("just seen").for_permit = Some((now, ticket));
        }
        now != turn
    }

    /// Forgets a connection that holds nothing and doesn't wait.
    fn tidy(&mut self, conn: usize) {
        let idle = |p: &Part| p.held == Held::NONE && p.for_permit.is_none() && p.for_room.is_none();
        if self.parts.get(&conn).is_some_and(idle) {
            self.parts.remove(&conn);
        }
    }

    fn announce(&mut self, bytes: u64) -> bool {
        let room = self.limits.bytes_max / 2;
        let own = bytes <= OWN.bytes;
        let fits = own || self.announced_shared == 0 || self.announced_shared.saturating_add(bytes) <= room;
        if fits {
            self.announced += bytes;
            self.announced_shared += if own { 0 } else { bytes };
        }
        fits
    }

    fn withdraw(&mut self, bytes: u64) {
        let shared = if bytes <= OWN.bytes { 0 } else { bytes };
        for (of, bytes) in [(&mut self.announced, bytes), (&mut self.announced_shared, shared)] {
            *of = of.checked_sub(bytes).expect("a payload's room was given back twice");
        }
    }

    fn waiting(&self) -> usize {
        self.for_permits.len() + self.for_room.len()
    }

    /// The first who waits and needs shared permits.
    fn first_of_shared(&self) -> Option<&Waiting> {
        self.for_permits.range((Turn::Modest, 0)..).next().map(|(_, w)| w)
    }

    fn first_of_own(&self) -> Option<&Waiting> {
        self.for_permits.range(..(Turn::Modest, 0)).next().map(|(_, w)| w)
    }

    /// May a request that needs only its connection's own go before all who wait for shared permits?
    fn own_passes(&self) -> bool {
        self.first_of_shared().is_none_or(|w| !self.fits_shared(w.conn, w.bytes))
    }

    /// Takes a permit without waiting.
    fn take(&mut self, conn: usize, bytes: u64) -> bool {
        let nobody_before = self.for_permits.is_empty();
        let passes = || self.needs(conn, bytes) == Held::NONE && self.first_of_own().is_none() && self.own_passes();
        let takes = (nobody_before || passes()) && self.fits(conn, bytes);
        if takes {
            self.enter(conn, bytes);
        }
        takes
    }

    /// The next that can go on.
    fn next(&mut self, stack_is_full: bool) -> Option<Waiting> {
        if let Some(w) = self.for_room.first_key_value().map(|(_, w)| *w)
            && self.announce(w.bytes)
        {
            self.leave(w.conn);
            return Some(w);
        }
        if stack_is_full {
            return None;
        }
        // More connections are active than when it began to wait: its share is smaller now.
        while let Some(w) = self.first_of_shared().map(|w| w.conn)
            && self.take_turn(w)
        {}
        let w = match (self.first_of_own(), self.first_of_shared()) {
            // Whichever came first isn't passed while it waits for the stack.
            (Some(own), Some(other)) if own.ticket < other.ticket => own,
            (Some(own), Some(_)) if self.own_passes() => own,
            (Some(own), None) => own,
            (_, other) => other?,
        };
        let w = *w;
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

    fn wait(&mut self, w: Waiting) {
        self.parts.entry(w.conn).or_default();
        let turn = self.turn_of(w.conn, w.bytes);
        let part = self.parts.get_mut(&w.conn).expect("just made");
        assert!(part.for_room.is_none() && part.for_permit.is_none(), "a connection waits for two things");
        match w.resource {
            WaitsFor::Room => {
                part.for_room = Some(w.ticket);
                self.for_room.insert(w.ticket, w);
            }
            WaitsFor::Permit | WaitsFor::PermitForPayload => {
                part.for_permit = Some((turn, w.ticket));
                self.for_permits.insert((turn, w.ticket), w);
            }
        }
    }

    /// A connection no longer waits.
    fn leave(&mut self, conn: usize) {
        let Some(part) = self.parts.get_mut(&conn) else { return };
        if let Some(key) = part.for_permit.take() {
            self.for_permits.remove(&key);
        }
        if let Some(ticket) = part.for_room.take() {
            self.for_room.remove(&ticket);
        }
        self.tidy(conn);
    }
}

/// A connection whose next request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Its place.
    pub conn: usize,
    /// Identifies the wait: a connection waits again and again, others take its place.
    pub ticket: u64,
    /// Who pays.
    pub tenant: TenantId,
    /// The resource.
    pub resource: WaitsFor,
    /// What the request needs.
    pub bytes: u64,
}

/// All tenants' permits, and who waits for one.
#[derive(Debug, Default)]
pub struct Admission {
    tenants: BTreeMap<TenantId, Permits>,
    /// Tenants with connections that wait, of which something has changed since they were last looked at.
    due: VecDeque<TenantId>,
    next_ticket: u64,
    /// Tenants looked at so far, for tests of how much work that is.
    #[cfg(test)]
    looks: u64,
}

impl Admission {
    /// Changes a tenant's bound; what is inside stays.
    pub fn set_limits(&mut self, tenant: TenantId, limits: PermitLimits) {
        self.tenants.entry(tenant).or_default().limits = limits;
        self.changed(tenant);
    }

    /// Forgets a tenant that has nothing inside; whose connections waited have gone.
    pub fn forget(&mut self, tenant: TenantId) {
        self.tenants.remove(&tenant);
        self.due.retain(|t| *t != tenant);
    }

    /// Takes a permit for a request of `bytes`, if there is one and nobody of the tenant is to have it first.
    pub fn take(&mut self, tenant: TenantId, conn: usize, bytes: u64) -> bool {
        self.tenants.entry(tenant).or_default().take(conn, bytes)
    }

    /// The same for a request whose payload has room, which is then given back.
    pub fn take_for_payload(&mut self, tenant: TenantId, conn: usize, bytes: u64) -> bool {
        let taken = self.take(tenant, conn, bytes);
        if taken {
            self.withdraw(tenant, bytes);
        }
        taken
    }

    /// Keeps room for a payload of `bytes`, if there is any and nobody of the tenant waits for some already. A payload that
    /// needs no room but its connection's own waits for nobody.
    pub fn announce(&mut self, tenant: TenantId, bytes: u64) -> bool {
        let p = self.tenants.entry(tenant).or_default();
        (p.for_room.is_empty() || bytes <= OWN.bytes) && p.announce(bytes)
    }

    /// Gives a payload's room back.
    ///
    /// # Panics
    /// If none is out.
    pub fn withdraw(&mut self, tenant: TenantId, bytes: u64) {
        self.tenants.get_mut(&tenant).expect("announced before").withdraw(bytes);
        self.changed(tenant);
    }

    /// Requests have left the stack; their answers wait to be sent.
    ///
    /// # Panics
    /// If fewer are there: a request ended twice.
    pub fn answered(&mut self, tenant: TenantId, held: Held) {
        self.tenants.get_mut(&tenant).expect("taken before").in_stack.subtract(held);
        self.changed(tenant);
    }

    /// Gives a connection's permits back, whose answers have been sent, or never will be.
    ///
    /// # Panics
    /// If fewer are out: an answer was sent twice.
    pub fn give(&mut self, tenant: TenantId, conn: usize, held: Held) {
        self.tenants.get_mut(&tenant).expect("taken before").give(conn, held);
        self.changed(tenant);
    }

    /// Lets a connection wait for its turn, for a request of `bytes`. The wait's ticket.
    ///
    /// # Panics
    /// If it waits already.
    pub fn wait(&mut self, conn: usize, tenant: TenantId, resource: WaitsFor, bytes: u64) -> u64 {
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.tenants.entry(tenant).or_default().wait(Waiting { conn, ticket, tenant, resource, bytes });
        // It may wait for the stack, not for its tenant's permits: then nothing of those changes before its turn.
        self.changed(tenant);
        ticket
    }

    /// A connection no longer waits, if it did.
    pub fn leave(&mut self, tenant: TenantId, conn: usize) {
        let Some(p) = self.tenants.get_mut(&tenant) else { return };
        p.leave(conn);
        self.changed(tenant);
    }

    /// Something of a tenant has changed: those who wait are to be looked at.
    pub fn changed(&mut self, tenant: TenantId) {
        let Some(p) = self.tenants.get_mut(&tenant) else { return };
        if !p.is_due && p.waiting() > 0 {
            p.is_due = true;
            self.due.push_back(tenant);
        }
    }

    /// The next whose turn has come, with what it waited for. Only tenants of which something has changed are looked at,
    /// each a constant number of times.
    pub fn next_let_in(&mut self, stack_is_full: bool) -> Option<Waiting> {
        for _ in 0..self.due.len() {
            let tenant = self.due.pop_front()?;
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let p = self.tenants.get_mut(&tenant).expect("forgotten tenants aren't due");
            let next = p.next(stack_is_full);
            // Whom the stack keeps waiting isn't told when it no longer does.
            p.is_due = p.waiting() > 0 && (next.is_some() || (stack_is_full && !p.for_permits.is_empty()));
            if p.is_due {
                self.due.push_back(tenant);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// Is there anybody to be looked at by [`Admission::next_let_in`]?
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Does a connection of the tenant other than `conn` wait for anything?
    pub fn others_wait(&self, tenant: TenantId, conn: usize) -> bool {
        let own = |p: &Permits| {
            usize::from(p.parts.get(&conn).is_some_and(|p| p.for_permit.is_some() || p.for_room.is_some()))
        };
        self.tenants.get(&tenant).is_some_and(|p| p.waiting() > own(p))
    }

    /// Does a connection hold more permits than its own?
    pub fn holds_shared(&self, tenant: TenantId, conn: usize) -> bool {
        self.tenants.get(&tenant).is_some_and(|p| p.held_by(conn).beyond(own()) != Held::NONE)
    }

    /// Requests and bytes inside, by tenant, with the bytes of announced payloads.
    pub fn inside(&self) -> BTreeMap<TenantId, (u32, u64)> {
        self.tenants.iter().map(|(t, p)| (*t, (p.held.jobs, p.held.bytes + p.announced))).collect()
    }

    /// Connections that wait, by tenant; none where nobody does.
    pub fn waiting(&self) -> BTreeMap<TenantId, u32> {
        self.tenants.iter().filter(|(_, p)| p.waiting() > 0).map(|(t, p)| (*t, p.waiting() as u32)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const T: TenantId = TenantId(1);
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    fn bounded(jobs_max: u32, bytes_max: u64) -> Admission {
        let mut a = Admission::default();
        a.set_limits(T, PermitLimits { jobs_max, bytes_max });
        a
    }

    fn permit(conn: usize, tenant: TenantId, bytes: u64) -> Waiting {
        Waiting { conn, ticket: conn as u64, tenant, resource: WaitsFor::Permit, bytes }
    }

    /// A request of a connection ends, and its answer is sent.
    fn end(a: &mut Admission, conn: usize, held: Held) {
        a.answered(T, held);
        a.give(T, conn, held);
    }

    fn let_in(a: &mut Admission) -> Vec<usize> {
        std::iter::from_fn(|| a.next_let_in(false)).map(|w| w.conn).collect()
    }

    #[track_caller]
    fn nobody_gets_in(a: &mut Admission) {
        assert_eq!(a.next_let_in(false), None);
    }

    #[test]
    fn jobs_and_bytes_are_both_bounds() {
        let mut a = bounded(3, 100);
        assert!(a.take(T, 1, 60) && a.take(T, 1, 40) && !a.take(T, 1, 1), "bytes");
        end(&mut a, 1, Held::one(60));
        assert!(a.take(T, 1, 0) && a.take(T, 2, 0) && !a.take(T, 3, 0), "jobs");
        end(&mut a, 2, Held::one(0));
        end(&mut a, 1, Held { jobs: 2, bytes: 40 });
        assert!(a.take(T, 1, 1000), "a request larger than the bound passes alone");
        assert!(!a.take(T, 1, 1));
        end(&mut a, 1, Held::one(1000));
        assert_eq!(a.inside()[&T], (0, 0));
        assert!(a.tenants[&T].parts.is_empty(), "who holds nothing isn't kept");
    }

    #[test]
    fn who_waits_longest_goes_first_and_others_do_not_pass() {
        let mut a = bounded(10, 100);
        let other = TenantId(2);
        assert!(a.take(T, 9, 100));
        let mut wait = |conn, tenant, bytes| a.wait(conn, tenant, WaitsFor::Permit, bytes);
        assert_eq!([wait(1, T, 80), wait(2, T, 1), wait(3, other, 5)], [1, 2, 3]);
        assert!(!a.take(T, 4, 0), "nobody passes who waits for the stack, however small");
        assert!(a.others_wait(T, 1) && a.others_wait(other, 1));
        assert!(!a.others_wait(other, 3), "a connection isn't among its others");
        assert_eq!(a.next_let_in(false), Some(permit(3, other, 5)), "another tenant isn't held up");
        assert_eq!(a.next_let_in(false), None);
        end(&mut a, 9, Held::one(100));
        assert_eq!(a.next_let_in(false), Some(permit(1, T, 80)));
        a.leave(T, 2);
        assert_eq!(a.next_let_in(false), None, "who has gone is passed over");
        assert!(a.waiting().is_empty() && a.take(T, 4, 20));
        a.wait(5, other, WaitsFor::Permit, 1);
        a.answered(other, Held::one(5));
        a.give(other, 3, Held::one(5));
        a.forget(other);
        assert_eq!(a.next_let_in(false), None, "a tenant's waits go with it");
    }

    #[test]
    fn payloads_that_are_only_announced_keep_nobody_from_a_permit() {
        let mut a = bounded(10, 10 * MIB);
        assert!(a.announce(T, 3 * MIB) && a.announce(T, 2 * MIB) && !a.announce(T, MIB), "room for half as many bytes");
        assert_eq!(a.wait(1, T, WaitsFor::Room, 2 * MIB + 1), 1);
        assert!(!a.announce(T, OWN.bytes + 1), "nobody passes who waits");
        assert!(a.announce(T, OWN.bytes), "a connection's own payload waits for nobody");
        a.withdraw(T, OWN.bytes);
        assert!(a.take(T, 9, 10 * MIB), "all permits are there");
        assert!(!a.take_for_payload(T, 2, 3 * MIB));
        assert_eq!(a.wait(2, T, WaitsFor::PermitForPayload, 3 * MIB), 2);
        assert_eq!(a.next_let_in(false), None);
        end(&mut a, 9, Held::one(10 * MIB));
        assert_eq!(a.next_let_in(true), None, "the stack is full");
        assert_eq!(a.next_let_in(false).map(|w| w.conn), Some(2), "of itself when it no longer is");
        assert_eq!(a.next_let_in(false).map(|w| w.conn), Some(1), "with the room that became free");
        assert_eq!(a.inside()[&T], (1, 7 * MIB + 1));
        a.withdraw(T, 2 * MIB);
        a.withdraw(T, 2 * MIB + 1);
        assert!(a.announce(T, 100 * MIB), "a payload larger than the room passes alone");
        a.withdraw(T, 100 * MIB);
        end(&mut a, 2, Held::one(3 * MIB));
        assert_eq!(a.inside()[&T], (0, 0));
    }

    /// `next_let_in` is asked after each receive: thousands who wait must not be walked over.
    #[test]
    fn who_waits_is_looked_at_only_when_something_has_changed() {
        let mut a = bounded(1, 100);
        assert!(a.take(T, 10_000, 1));
        let mut wait = |conn| _ = a.wait(conn, T, WaitsFor::Permit, 1);
        (0..10_000).for_each(&mut wait);
        (0..10_000).for_each(|_| assert_eq!(a.next_let_in(false), None));
        assert_eq!(a.looks, 1);
        end(&mut a, 10_000, Held::one(1));
        assert_eq!(a.next_let_in(false).map(|w| w.conn), Some(0));
        assert_eq!(a.next_let_in(false), None);
        assert_eq!(a.looks, 3);
    }

    #[test]
    fn tenants_take_turns() {
        let mut a = bounded(100, 100);
        let other = TenantId(2);
        for (conn, tenant) in [(0, T), (1, T), (2, T), (10, other), (11, other)] {
            a.wait(conn, tenant, WaitsFor::Permit, 1);
        }
        assert_eq!(let_in(&mut a), [0, 10, 1, 11, 2]);
    }

    /// Connections 100.. ask for `bytes` at a time until they wait; what they get is answered, and never sent.
    fn deaf(a: &mut Admission, conns: usize, bytes: u64) {
        for conn in 100..100 + conns {
            while a.take(T, conn, bytes) {
                a.answered(T, Held::one(bytes));
            }
            a.wait(conn, T, WaitsFor::Permit, bytes);
        }
        nobody_gets_in(a);
    }

    #[test]
    fn clients_that_do_not_read_keep_no_connection_from_its_own() {
        let mut a = bounded(64, 8 * MIB);
        deaf(&mut a, 200, MIB);
        for _ in 0..1000 {
            assert!((0..16).all(|_| a.take(T, 1, 4 * KIB)), "a depth of 16 is served at once");
            assert!(!a.take(T, 1, 4 * KIB), "and no more, as others wait");
            end(&mut a, 1, Held { jobs: 16, bytes: 64 * KIB });
        }
        // A wait behind them turns into one for its own as soon as its answers have been sent.
        assert!((0..16).all(|_| a.take(T, 1, 4 * KIB)));
        a.wait(1, T, WaitsFor::Permit, 4 * KIB);
        nobody_gets_in(&mut a);
        a.answered(T, Held::one(4 * KIB));
        nobody_gets_in(&mut a);
        a.give(T, 1, Held::one(4 * KIB));
        assert_eq!(let_in(&mut a), [1]);
        let beyond: u64 = a.tenants[&T].parts.values().map(|p| p.held.beyond(OWN).bytes).sum();
        assert!(beyond <= 8 * MIB && a.inside()[&T].1 <= 8 * MIB + 201 * OWN.bytes);
    }

    #[test]
    fn a_bound_of_one_request_is_kept_and_shared() {
        let mut a = bounded(1, 8 * MIB);
        deaf(&mut a, 200, MIB);
        assert!(a.take(T, 1, 4096) && !a.take(T, 2, 4096), "one request is in the stack");
        a.wait(2, T, WaitsFor::Permit, 4096);
        nobody_gets_in(&mut a);
        a.answered(T, Held::one(4096));
        assert_eq!(let_in(&mut a), [2], "before those who wait for answers to be sent");
    }

    #[test]
    fn who_holds_more_than_its_share_yields() {
        let mut a = bounded(1000, 8 * MIB);
        assert!((0..8).all(|_| a.take(T, 1, MIB)), "alone it may have everything");
        a.wait(1, T, WaitsFor::Permit, MIB);
        a.wait(2, T, WaitsFor::Permit, 2 * MIB);
        a.wait(3, T, WaitsFor::Permit, 2 * MIB);
        end(&mut a, 1, Held { jobs: 2, bytes: 2 * MIB });
        assert_eq!(let_in(&mut a), [2], "the first in line holds six of eight");
        end(&mut a, 1, Held { jobs: 2, bytes: 2 * MIB });
        assert_eq!(let_in(&mut a), [3]);
        end(&mut a, 1, Held { jobs: 2, bytes: 2 * MIB });
        assert_eq!(let_in(&mut a), [1]);
    }

    /// Small requests that never end coming don't starve a large one: what is in the stack when the large one waits is all
    /// that it waits for.
    #[test]
    fn large_requests_are_not_starved_by_small_ones() {
        let mut a = bounded(1000, 8 * MIB);
        assert!((0..100).all(|conn| a.take(T, conn, 64 * KIB)));
        a.wait(1000, T, WaitsFor::Permit, 8 * MIB);
        for conn in 0..100 {
            assert!(!a.take(T, 500 + conn, 64 * KIB));
            nobody_gets_in(&mut a);
            a.answered(T, Held::one(64 * KIB));
        }
        assert_eq!(let_in(&mut a), [1000], "answers that small ones haven't taken yet are their own");
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Ask(usize, u64),
        Answered(usize),
        Sent(usize),
        Leaves(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let conn = 0usize..6;
        let bytes = prop_oneof![Just(0), Just(4 * KIB), Just(40 * KIB), Just(MIB), Just(3 * MIB)];
        prop_oneof![
            4 => (conn.clone(), bytes).prop_map(|(c, b)| Step::Ask(c, b)),
            3 => conn.clone().prop_map(Step::Answered),
            3 => conn.clone().prop_map(Step::Sent),
            1 => conn.prop_map(Step::Leaves),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        /// Whatever happens: bounds hold, what is given back comes back, and who waits is let in once all is sent.
        #[test]
        fn bounds_hold_and_nobody_waits_for_nothing(steps in prop::collection::vec(step(), 0..200), jobs_max in 1u32..8) {
            let mut a = bounded(jobs_max, 2 * MIB);
            let mut inside: Vec<Vec<u64>> = vec![Vec::new(); 6];
            let mut unsent = [Held::NONE; 6];
            let mut waits = [None::<u64>; 6];
            let look = |a: &mut Admission, inside: &mut Vec<Vec<u64>>, waits: &mut [Option<u64>; 6]| {
                while let Some(w) = a.next_let_in(false) {
                    assert_eq!(waits[w.conn].take(), Some(w.bytes));
                    inside[w.conn].push(w.bytes);
                }
            };
            for s in steps {
                match s {
                    Step::Ask(c, bytes) if waits[c].is_none() => match a.take(T, c, bytes) {
                        true => inside[c].push(bytes),
                        false => {
                            a.wait(c, T, WaitsFor::Permit, bytes);
                            waits[c] = Some(bytes);
                        }
                    },
                    Step::Answered(c) => if let Some(bytes) = inside[c].pop() {
                        a.answered(T, Held::one(bytes));
                        unsent[c].add(Held::one(bytes));
                    },
                    Step::Sent(c) => a.give_some(c, std::mem::take(&mut unsent[c])),
                    Step::Leaves(c) => {
                        a.leave(T, c);
                        waits[c] = None;
                    }
                    Step::Ask(..) => {}
                }
                look(&mut a, &mut inside, &mut waits);
                let stack: Vec<u64> = inside.iter().flatten().copied().collect();
                prop_assert!(stack.len() <= jobs_max as usize);
                prop_assert!(stack.iter().sum::<u64>() <= 2 * MIB || stack.iter().filter(|b| **b > 0).count() == 1);
            }
            for (c, unsent) in unsent.iter_mut().enumerate() {
                a.give_some(c, std::mem::take(unsent));
            }
            look(&mut a, &mut inside, &mut waits);
            while let Some(c) = (0..6).find(|c| !inside[*c].is_empty()) {
                let bytes = inside[c].pop().unwrap();
                a.answered(T, Held::one(bytes));
                a.give(T, c, Held::one(bytes));
                look(&mut a, &mut inside, &mut waits);
            }
            prop_assert_eq!(waits, [None; 6]);
            prop_assert_eq!(a.inside()[&T], (0, 0));
            prop_assert!(a.tenants[&T].parts.is_empty() && a.tenants[&T].shared == Held::NONE);
        }
    }

    impl Admission {
        fn give_some(&mut self, conn: usize, held: Held) {
            if held != Held::NONE {
                self.give(T, conn, held);
            }
        }
    }
}
