//! Permits: how many requests and bytes a tenant may have inside at once.
//!
//! Admission is permits first: a connection without one isn't read from, so the client feels backpressure on its
//! socket instead of filling a queue here. A write asks before its bytes are received. Whoever waits is let in in the order
//! of coming, per tenant.

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

/// What one tenant has inside.
#[derive(Clone, Copy, Debug, Default)]
struct Permits {
    limits: PermitLimits,
    jobs: u32,
    bytes: u64,
    /// Of its connections, so many wait.
    waiting: u32,
}

impl Permits {
    fn take(&mut self, bytes: u64) -> bool {
        let fits = self.jobs < self.limits.jobs_max && (self.bytes == 0 || self.bytes + bytes <= self.limits.bytes_max);
        if fits {
            self.jobs += 1;
            self.bytes += bytes;
        }
        fits
    }
}

/// A connection whose next request waits for a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Its place.
    pub conn: usize,
    /// Which of all waits it is: a connection waits again and again, others take its place.
    pub ticket: u64,
    /// Who pays.
    pub tenant: TenantId,
    /// What the request needs.
    pub bytes: u64,
}

/// All tenants' permits, and who waits for one.
#[derive(Debug, Default)]
pub struct Admission {
    tenants: BTreeMap<TenantId, Permits>,
    queue: VecDeque<Waiting>,
    next_ticket: u64,
}

impl Admission {
    /// Changes a tenant's bound; what is inside stays.
    pub fn set_limits(&mut self, tenant: TenantId, limits: PermitLimits) {
        self.tenants.entry(tenant).or_default().limits = limits;
    }

    /// Forgets a tenant that has nothing inside; whose connections waited have gone.
    pub fn forget(&mut self, tenant: TenantId) {
        self.queue.retain(|w| w.tenant != tenant);
        self.tenants.remove(&tenant);
    }

    /// Takes a permit for a request of `bytes`, if there is one and nobody of the tenant waits for one already.
    pub fn take(&mut self, tenant: TenantId, bytes: u64) -> bool {
        let p = self.tenants.entry(tenant).or_default();
        p.waiting == 0 && p.take(bytes)
    }

    /// Gives a request's permit back.
    ///
    /// # Panics
    /// If none is out: a request ended twice.
    pub fn give(&mut self, tenant: TenantId, bytes: u64) {
        let p = self.tenants.get_mut(&tenant).expect("taken before");
        p.jobs = p.jobs.checked_sub(1).expect("a permit was given back twice");
        p.bytes = p.bytes.checked_sub(bytes).expect("a permit was given back twice");
    }

    /// Lets a connection wait for its turn, for a request of `bytes`. The wait's ticket.
    pub fn wait(&mut self, conn: usize, tenant: TenantId, bytes: u64) -> u64 {
        self.tenants.entry(tenant).or_default().waiting += 1;
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.queue.push_back(Waiting { conn, ticket, tenant, bytes });
        ticket
    }

    /// The next whose turn has come, its permit taken. Those that `waits` says no longer wait are passed over.
    pub fn next_let_in(&mut self, waits: impl Fn(&Waiting) -> bool) -> Option<Waiting> {
        let mut blocked: Vec<TenantId> = Vec::new();
        let mut at = 0;
        while let Some(w) = self.queue.get(at).copied() {
            if blocked.contains(&w.tenant) {
                at += 1;
                continue;
            }
            let p = self.tenants.get_mut(&w.tenant).expect("counted");
            let gone = !waits(&w);
            if gone || p.take(w.bytes) {
                p.waiting -= 1;
                self.queue.remove(at);
                if !gone {
                    return Some(w);
                }
            } else {
                blocked.push(w.tenant);
                at += 1;
            }
        }
        None
    }

    /// Requests and bytes inside, by tenant.
    pub fn inside(&self) -> BTreeMap<TenantId, (u32, u64)> {
        self.tenants.iter().map(|(t, p)| (*t, (p.jobs, p.bytes))).collect()
    }

    /// Connections that wait, by tenant; none where nobody does.
    pub fn waiting(&self) -> BTreeMap<TenantId, u32> {
        self.tenants.iter().filter(|(_, p)| p.waiting > 0).map(|(t, p)| (*t, p.waiting)).collect()
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

    #[test]
    fn jobs_and_bytes_are_both_bounds() {
        let mut a = bounded(3, 100);
        assert!(a.take(T, 60) && a.take(T, 40) && !a.take(T, 1), "bytes");
        a.give(T, 60);
        assert!(a.take(T, 0) && a.take(T, 0) && !a.take(T, 0), "jobs");
        (0..2).for_each(|_| a.give(T, 0));
        a.give(T, 40);
        assert!(a.take(T, 1000), "a request larger than the bound passes alone");
        assert!(!a.take(T, 1));
        a.give(T, 1000);
        assert_eq!(a.inside()[&T], (0, 0));
    }

    #[test]
    fn who_waits_longest_goes_first_and_others_do_not_pass() {
        let mut a = bounded(10, 100);
        let other = TenantId(2);
        let w = |conn: usize, tenant, bytes| Waiting { conn, ticket: conn as u64, tenant, bytes };
        assert!(a.take(T, 100));
        assert_eq!([a.wait(1, T, 80), a.wait(2, T, 1), a.wait(3, other, 5)], [1, 2, 3]);
        assert!(!a.take(T, 0), "nobody passes who waits, however small");
        assert_eq!(a.next_let_in(|_| true), Some(w(3, other, 5)), "another tenant isn't held up");
        assert_eq!(a.next_let_in(|_| true), None);
        a.give(T, 100);
        assert_eq!(a.next_let_in(|_| true), Some(w(1, T, 80)));
        assert_eq!(a.next_let_in(|w| w.conn != 2), None, "who has gone is passed over");
        assert!(a.waiting().is_empty() && a.take(T, 20));
        a.wait(5, other, 1);
        a.give(other, 5);
        a.forget(other);
        assert_eq!(a.next_let_in(|_| true), None, "a tenant's waits go with it");
    }
}
