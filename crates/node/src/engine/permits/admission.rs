//! The permits of all tenants.

use super::held::{Held, PermitLimits};
use super::queue::{Waiting, WaitsFor};
use super::tenant::Permits;
use plimsoll_base::TenantId;
use std::collections::{BTreeMap, VecDeque};

/// All tenants' permits, and who waits for one.
#[derive(Debug, Default)]
pub struct Admission {
    pub(super) tenants: BTreeMap<TenantId, Permits>,
    /// Tenants with connections that wait, of which something has changed since they were last looked at.
    due: VecDeque<TenantId>,
    next_ticket: u64,
    /// Tenants looked at so far, for tests of how much work that is.
    #[cfg(test)]
    pub(super) looks: u64,
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
        self.tenants.entry(tenant).or_default().announce(bytes)
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
        self.tenants.get_mut(&tenant).expect("taken before").answered(held);
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
            p.is_due = p.waiting() > 0 && (next.is_some() || (stack_is_full && p.waits_for_stack()));
            if p.is_due {
                self.due.push_back(tenant);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }

    /// True if a connection is to be looked at by [`Admission::next_let_in`].
    pub fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// True if a connection of the tenant other than `conn` waits for anything.
    pub fn others_wait(&self, tenant: TenantId, conn: usize) -> bool {
        self.tenants.get(&tenant).is_some_and(|p| p.others_wait(conn))
    }

    /// True if a connection holds more permits than its own.
    pub fn holds_shared(&self, tenant: TenantId, conn: usize) -> bool {
        self.tenants.get(&tenant).is_some_and(|p| p.holds_shared(conn))
    }

    /// Requests and bytes in flight, by tenant, with the bytes of announced payloads.
    pub fn inside(&self) -> BTreeMap<TenantId, (u32, u64)> {
        self.tenants.iter().map(|(t, p)| (*t, p.inside())).collect()
    }

    /// Requests that hold a permit and are in the stack.
    pub fn in_stack(&self) -> u64 {
        self.tenants.values().map(|p| u64::from(p.in_stack())).sum()
    }

    /// The first tenant of which something is out, or somebody waits.
    pub fn not_at_rest(&self) -> Option<(TenantId, &Permits)> {
        self.tenants.iter().find(|(_, p)| !p.is_at_rest()).map(|(t, p)| (*t, p))
    }

    /// Connections that wait, by tenant; none where nobody does.
    pub fn waiting(&self) -> BTreeMap<TenantId, u32> {
        self.tenants.iter().filter(|(_, p)| p.waiting() > 0).map(|(t, p)| (*t, p.waiting() as u32)).collect()
    }
}
