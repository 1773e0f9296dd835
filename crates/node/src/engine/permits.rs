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
//! Who waits is let in in the order of coming, per tenant and resource. Tenants take turns.

use plimsoll_base::TenantId;
use std::collections::{BTreeMap, VecDeque};

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
    /// The permit of one request of `bytes`.
    pub const fn one(bytes: u64) -> Held {
        Held { jobs: 1, bytes }
    }

    /// Adds another's.
    pub fn add(&mut self, other: Held) {
        self.jobs += other.jobs;
        self.bytes += other.bytes;
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

/// What one tenant has inside.
#[derive(Debug, Default)]
struct Permits {
    limits: PermitLimits,
    held: Held,
    /// Bytes of payloads that have room and no permit yet.
    announced: u64,
    /// Connections that wait for a permit.
    for_permits: VecDeque<Waiting>,
    /// Connections that wait for room.
    for_room: VecDeque<Waiting>,
    /// It is among those to be looked at.
    is_due: bool,
}

impl Permits {
    fn take(&mut self, bytes: u64) -> bool {
        let Held { jobs, bytes: inside } = self.held;
        let fits =
            jobs < self.limits.jobs_max && (inside == 0 || inside.saturating_add(bytes) <= self.limits.bytes_max);
        if fits {
            self.held.add(Held::one(bytes));
        }
        fits
    }

    fn announce(&mut self, bytes: u64) -> bool {
        let room = self.limits.bytes_max / 2;
        let fits = self.announced == 0 || self.announced.saturating_add(bytes) <= room;
        if fits {
            self.announced += bytes;
        }
        fits
    }

    fn withdraw(&mut self, bytes: u64) {
        self.announced = self.announced.checked_sub(bytes).expect("a payload's room was given back twice");
    }

    fn waiting(&self) -> usize {
        self.for_permits.len() + self.for_room.len()
    }

    /// The next that can go on. Those that `waits` says no longer wait are dropped.
    fn next(&mut self, stack_is_full: bool, waits: &impl Fn(&Waiting) -> bool) -> Option<Waiting> {
        while let Some(w) = self.for_room.front().copied() {
            let gone = !waits(&w);
            if !gone && !self.announce(w.bytes) {
                break;
            }
            self.for_room.pop_front();
            if !gone {
                return Some(w);
            }
        }
        while let Some(w) = self.for_permits.front().copied() {
            let gone = !waits(&w);
            if !gone && (stack_is_full || !self.take(w.bytes)) {
                break;
            }
            self.for_permits.pop_front();
            if !gone {
                if w.resource == WaitsFor::PermitForPayload {
                    self.withdraw(w.bytes);
                }
                return Some(w);
            }
        }
        None
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

    /// Takes a permit for a request of `bytes`, if there is one and nobody of the tenant waits for one already.
    pub fn take(&mut self, tenant: TenantId, bytes: u64) -> bool {
        let p = self.tenants.entry(tenant).or_default();
        p.for_permits.is_empty() && p.take(bytes)
    }

    /// The same for a request whose payload has room, which is then given back.
    pub fn take_for_payload(&mut self, tenant: TenantId, bytes: u64) -> bool {
        let taken = self.take(tenant, bytes);
        if taken {
            self.withdraw(tenant, bytes);
        }
        taken
    }

    /// Keeps room for a payload of `bytes`, if there is any and nobody of the tenant waits for some already.
    pub fn announce(&mut self, tenant: TenantId, bytes: u64) -> bool {
        let p = self.tenants.entry(tenant).or_default();
        p.for_room.is_empty() && p.announce(bytes)
    }

    /// Gives a payload's room back.
    ///
    /// # Panics
    /// If none is out.
    pub fn withdraw(&mut self, tenant: TenantId, bytes: u64) {
        self.tenants.get_mut(&tenant).expect("announced before").withdraw(bytes);
        self.changed(tenant);
    }

    /// Gives permits back.
    ///
    /// # Panics
    /// If fewer are out: a request ended twice.
    pub fn give(&mut self, tenant: TenantId, held: Held) {
        let p = self.tenants.get_mut(&tenant).expect("taken before");
        p.held.jobs = p.held.jobs.checked_sub(held.jobs).expect("a permit was given back twice");
        p.held.bytes = p.held.bytes.checked_sub(held.bytes).expect("a permit was given back twice");
        self.changed(tenant);
    }

    /// Lets a connection wait for its turn, for a request of `bytes`. The wait's ticket.
    pub fn wait(&mut self, conn: usize, tenant: TenantId, resource: WaitsFor, bytes: u64) -> u64 {
        self.next_ticket += 1;
        let w = Waiting { conn, ticket: self.next_ticket, tenant, resource, bytes };
        let p = self.tenants.entry(tenant).or_default();
        match resource {
            WaitsFor::Room => p.for_room.push_back(w),
            WaitsFor::Permit | WaitsFor::PermitForPayload => p.for_permits.push_back(w),
        }
        // It may wait for the stack, not for its tenant's permits: then nothing of those changes before its turn.
        self.changed(tenant);
        w.ticket
    }

    /// Something of a tenant has changed: those who wait are to be looked at.
    pub fn changed(&mut self, tenant: TenantId) {
        let Some(p) = self.tenants.get_mut(&tenant) else { return };
        if !p.is_due && p.waiting() > 0 {
            p.is_due = true;
            self.due.push_back(tenant);
        }
    }

    /// The next whose turn has come, with what it waited for. Those that `waits` says no longer wait are passed over. Only
    /// tenants of which something has changed are looked at, each a constant number of times.
    pub fn next_let_in(&mut self, stack_is_full: bool, waits: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
        for _ in 0..self.due.len() {
            let tenant = self.due.pop_front()?;
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let p = self.tenants.get_mut(&tenant).expect("forgotten tenants aren't due");
            let next = p.next(stack_is_full, &waits);
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
        let others = |p: &Permits| p.for_permits.iter().chain(&p.for_room).any(|w| w.conn != conn);
        self.tenants.get(&tenant).is_some_and(others)
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

    const T: TenantId = TenantId(1);

    fn bounded(jobs_max: u32, bytes_max: u64) -> Admission {
        let mut a = Admission::default();
        a.set_limits(T, PermitLimits { jobs_max, bytes_max });
        a
    }

    fn permit(conn: usize, tenant: TenantId, bytes: u64) -> Waiting {
        Waiting { conn, ticket: conn as u64, tenant, resource: WaitsFor::Permit, bytes }
    }

    #[test]
    fn jobs_and_bytes_are_both_bounds() {
        let mut a = bounded(3, 100);
        assert!(a.take(T, 60) && a.take(T, 40) && !a.take(T, 1), "bytes");
        a.give(T, Held::one(60));
        assert!(a.take(T, 0) && a.take(T, 0) && !a.take(T, 0), "jobs");
        a.give(T, Held { jobs: 3, bytes: 40 });
        assert!(a.take(T, 1000), "a request larger than the bound passes alone");
        assert!(!a.take(T, 1));
        a.give(T, Held::one(1000));
        assert_eq!(a.inside()[&T], (0, 0));
    }

    #[test]
    fn who_waits_longest_goes_first_and_others_do_not_pass() {
        let mut a = bounded(10, 100);
        let other = TenantId(2);
        assert!(a.take(T, 100));
        let mut wait = |conn, tenant, bytes| a.wait(conn, tenant, WaitsFor::Permit, bytes);
        assert_eq!([wait(1, T, 80), wait(2, T, 1), wait(3, other, 5)], [1, 2, 3]);
        assert!(!a.take(T, 0), "nobody passes who waits, however small");
        assert!(a.others_wait(T, 1) && a.others_wait(other, 1));
        assert!(!a.others_wait(other, 3), "a connection isn't among its others");
        assert_eq!(a.next_let_in(false, |_| true), Some(permit(3, other, 5)), "another tenant isn't held up");
        assert_eq!(a.next_let_in(false, |_| true), None);
        a.give(T, Held::one(100));
        assert_eq!(a.next_let_in(false, |_| true), Some(permit(1, T, 80)));
        assert_eq!(a.next_let_in(false, |w| w.conn != 2), None, "who has gone is passed over");
        assert!(a.waiting().is_empty() && a.take(T, 20));
        a.wait(5, other, WaitsFor::Permit, 1);
        a.give(other, Held::one(5));
        a.forget(other);
        assert_eq!(a.next_let_in(false, |_| true), None, "a tenant's waits go with it");
    }

    #[test]
    fn payloads_that_are_only_announced_keep_nobody_from_a_permit() {
        let mut a = bounded(10, 100);
        assert!(a.announce(T, 30) && a.announce(T, 20) && !a.announce(T, 1), "room for half as many bytes");
        assert_eq!(a.wait(1, T, WaitsFor::Room, 25), 1);
        assert!(!a.announce(T, 0), "nobody passes who waits");
        assert!(a.take(T, 100), "all permits are there");
        assert!(!a.take_for_payload(T, 30));
        assert_eq!(a.wait(2, T, WaitsFor::PermitForPayload, 30), 2);
        assert_eq!(a.next_let_in(false, |_| true), None);
        a.give(T, Held::one(100));
        assert_eq!(a.next_let_in(true, |_| true), None, "the stack is full");
        assert_eq!(a.next_let_in(false, |_| true).map(|w| w.conn), Some(2), "of itself when it no longer is");
        assert_eq!(a.next_let_in(false, |_| true).map(|w| w.conn), Some(1), "with the room that became free");
        assert_eq!(a.inside()[&T], (1, 30 + 20 + 25));
        a.withdraw(T, 20);
        a.withdraw(T, 25);
        assert!(a.announce(T, 1000), "a payload larger than the room passes alone");
        a.withdraw(T, 1000);
        a.give(T, Held::one(30));
        assert_eq!(a.inside()[&T], (0, 0));
    }

    /// `next_let_in` is asked after each receive: thousands who wait must not be walked over.
    #[test]
    fn who_waits_is_looked_at_only_when_something_has_changed() {
        let mut a = bounded(1, 100);
        assert!(a.take(T, 1));
        let mut wait = |conn| _ = a.wait(conn, T, WaitsFor::Permit, 1);
        (0..10_000).for_each(&mut wait);
        (0..10_000).for_each(|_| assert_eq!(a.next_let_in(false, |_| true), None));
        assert_eq!(a.looks, 1);
        a.give(T, Held::one(1));
        assert_eq!(a.next_let_in(false, |_| true).map(|w| w.conn), Some(0));
        assert_eq!(a.next_let_in(false, |_| true), None);
        assert_eq!(a.looks, 3);
    }

    #[test]
    fn tenants_take_turns() {
        let mut a = bounded(100, 100);
        let other = TenantId(2);
        for (conn, tenant) in [(0, T), (1, T), (2, T), (10, other), (11, other)] {
            a.wait(conn, tenant, WaitsFor::Permit, 1);
        }
        let mut order = Vec::new();
        while let Some(w) = a.next_let_in(false, |_| true) {
            order.push(w.conn);
        }
        assert_eq!(order, [0, 10, 1, 11, 2]);
    }
}
