//! Bounds on NBD connections: of the node, of a tenant, of a peer; and on the descriptors that they take.
//!
//! A connection has a seat from its acceptance to its end, on whatever thread that is. Descriptors are kept for the
//! control API: at the process's limit, NBD clients are refused first.

use crate::config::Limits;
use crate::crowd::PeerKey;
use crate::events::{Events, Kind, Severity};
use plimsoll_base::TenantId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

#[derive(Debug, Default)]
struct Taken {
    connections: usize,
    descriptors: usize,
    by_peer: BTreeMap<PeerKey, usize>,
    by_tenant: BTreeMap<TenantId, usize>,
    #[cfg(test)]
    refused: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Seats {
    limits: Limits,
    descriptors_max: usize,
    taken: Mutex<Taken>,
}

/// A connection's seat.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    peer: PeerKey,
    tenant: Option<TenantId>,
    descriptors: usize,
    leaving: Option<Leaving>,
}

/// The event of a client's end.
#[derive(Debug)]
struct Leaving {
    events: Arc<Events>,
    who: Option<String>,
    export: String,
    since: Instant,
}

impl Seats {
    /// Seats bounded by `limits` and by `descriptors_max`.
    pub fn new(limits: Limits, descriptors_max: usize) -> Arc<Seats> {
        Arc::new(Seats { limits, descriptors_max, taken: Mutex::default() })
    }

    fn with<R>(&self, f: impl FnOnce(&mut Taken) -> R) -> R {
        f(&mut self.taken.lock().expect("no panic while held"))
    }

    /// A seat for a newcomer, which takes one descriptor.
    ///
    /// # Errors
    /// The bound that is reached.
    pub fn take(self: &Arc<Seats>, peer: PeerKey) -> Result<Seat, &'static str> {
        self.with(|t| {
            let full = if t.descriptors >= self.descriptors_max {
                Some("open files")
            } else if t.connections >= self.limits.connections {
                Some("limits.connections")
            } else if t.by_peer.get(&peer).is_some_and(|n| *n >= self.limits.connections_per_peer) {
                Some("limits.connections_per_peer")
            } else {
                None
            };
            if let Some(what) = full {
                #[cfg(test)]
                {
                    t.refused += 1;
                }
                return Err(what);
            }
            t.connections += 1;
            t.descriptors += 1;
            *t.by_peer.entry(peer).or_default() += 1;
            Ok(())
        })?;
        Ok(Seat { seats: self.clone(), peer, tenant: None, descriptors: 1, leaving: None })
    }

    /// True if a tenant has the most connections that it may have.
    pub fn is_full(&self, tenant: TenantId) -> bool {
        self.with(|t| t.by_tenant.get(&tenant).is_some_and(|n| *n >= self.limits.connections_per_tenant))
    }

    /// Connections now, and newcomers refused since the start.
    #[cfg(test)]
    fn counts(&self) -> (usize, u64) {
        self.with(|t| (t.connections, t.refused))
    }
}

impl Seat {
    /// The connection is `tenant`'s.
    ///
    /// # Errors
    /// The bound that is reached.
    pub fn belongs_to(&mut self, tenant: TenantId) -> Result<(), &'static str> {
        if self.seats.is_full(tenant) {
            return Err("limits.connections_per_tenant");
        }
        self.seats.with(|t| *t.by_tenant.entry(tenant).or_default() += 1);
        self.tenant = Some(tenant);
        Ok(())
    }

    /// Records an event when the connection ends.
    pub fn notes_its_end(&mut self, events: Arc<Events>, who: Option<String>, export: &str) {
        self.leaving = Some(Leaving { events, who, export: export.to_string(), since: Instant::now() });
    }

    /// The connection takes `more` descriptors beside its own.
    ///
    /// # Errors
    /// The bound that is reached.
    pub fn takes_descriptors(&mut self, more: usize) -> Result<(), &'static str> {
        let max = self.seats.descriptors_max;
        let fits = self.seats.with(|t| {
            let fits = t.descriptors + more <= max;
            t.descriptors += if fits { more } else { 0 };
            fits
        });
        self.descriptors += if fits { more } else { 0 };
        if fits { Ok(()) } else { Err("open files") }
    }
}

fn leave<K: Ord>(counts: &mut BTreeMap<K, usize>, key: &K) {
    if let Some(n) = counts.get_mut(key) {
        *n -= 1;
        if *n == 0 {
            counts.remove(key);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if let Some(Leaving { events, who, export, since }) = self.leaving.take() {
            let what = format!("left `{export}` after {} s", since.elapsed().as_secs());
            events.add_soon(Kind::Connection, Severity::Info, who, what);
        }
        self.seats.with(|t| {
            t.connections -= 1;
            t.descriptors -= self.descriptors;
            leave(&mut t.by_peer, &self.peer);
            if let Some(tenant) = &self.tenant {
                leave(&mut t.by_tenant, tenant);
            }
        });
    }
}

/// Shares of the process's descriptors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptors {
    /// For NBD clients.
    pub nbd: usize,
    /// For clients of each of the two listeners of the control API.
    pub control: usize,
}

/// Connections of the control API at once, per listener, where descriptors aren't short.
const CONTROL_MAX: usize = 128;

impl Descriptors {
    /// Of `limit` in all, of which `used` are open.
    pub fn deal(limit: usize, used: usize) -> Descriptors {
        let left = limit.saturating_sub(used);
        let control = (left / 8).clamp(2, CONTROL_MAX);
        // The node's own: files that are opened for a moment, a tape's next file, the thread for block status.
        let own = (left / 8).clamp(4, 64);
        Descriptors { nbd: left.saturating_sub(2 * control + own).max(1), control }
    }

    /// Of this process, now.
    pub fn of_process() -> Descriptors {
        use rustix::process::{Resource, getrlimit};
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let used = std::fs::read_dir("/proc/self/fd").map_or(64, Iterator::count);
        Descriptors::deal(usize::try_from(limit).unwrap_or(usize::MAX), used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerKey = PeerKey::Uid(7);

    #[test]
    fn each_bound_is_kept_and_seats_come_back() {
        let limits = Limits { connections: 5, connections_per_tenant: 2, connections_per_peer: 3, ..Limits::default() };
        let seats = Seats::new(limits, 6);
        let mut mine: Vec<Seat> = (0..3).map(|_| seats.take(PEER).unwrap()).collect();
        assert_eq!(seats.take(PEER).unwrap_err(), "limits.connections_per_peer");
        let others: Vec<Seat> = (0..2).map(|n| seats.take(PeerKey::Uid(n)).unwrap()).collect();
        assert_eq!(seats.take(PeerKey::Uid(99)).unwrap_err(), "limits.connections");
        let tenant = TenantId(1);
        assert!(mine[0].belongs_to(tenant).is_ok() && mine[1].belongs_to(tenant).is_ok());
        assert_eq!(mine[2].belongs_to(tenant).unwrap_err(), "limits.connections_per_tenant");
        assert!(mine[0].takes_descriptors(1).is_ok());
        assert_eq!(mine[1].takes_descriptors(1).unwrap_err(), "open files");
        drop(others);
        assert_eq!(seats.counts(), (3, 2));
        drop(mine);
        assert_eq!(seats.counts().0, 0);
        assert!(seats.with(|t| t.by_peer.is_empty() && t.by_tenant.is_empty() && t.descriptors == 0));
    }

    #[test]
    fn some_descriptors_are_kept_for_the_operator() {
        for (limit, used) in [(64, 30), (256, 40), (1024, 60), (20_000, 70), (usize::MAX, 70), (10, 30)] {
            let d = Descriptors::deal(limit, used);
            assert!(d.nbd >= 1 && d.control >= 2, "{d:?}");
            assert!(limit < used + 10 || d.nbd + 2 * d.control + used < limit, "{limit}: {d:?}");
        }
        assert_eq!(Descriptors::deal(20_000, 70).control, CONTROL_MAX);
    }
}
