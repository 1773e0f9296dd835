//! A tenant's connections that wait, in the order in which they are let in.

use plimsoll_base::TenantId;
use std::collections::BTreeMap;

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
pub enum Turn {
    /// Its own suffices.
    Own,
    /// It holds no more than its share of the tenant's permits.
    Modest,
    /// It holds more, and yields.
    Greedy,
}

/// A connection whose next request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Its place.
    pub conn: usize,
    /// Identifies the wait: a connection waits again and again, others take its place.
    pub ticket: u64,
    /// Tenant of its requests.
    pub tenant: TenantId,
    /// The resource.
    pub resource: WaitsFor,
    /// Bytes of its request.
    pub bytes: u64,
}

/// Place of a wait in its queue.
#[derive(Clone, Copy, Debug)]
enum Place {
    Permit(Turn, u64),
    Room(u64),
}

/// Connections that wait. Each waits for one thing at a time.
#[derive(Debug, Default)]
pub struct Queue {
    /// Waits for a permit, by turn and ticket.
    permits: BTreeMap<(Turn, u64), Waiting>,
    /// Waits for room, by ticket.
    room: BTreeMap<u64, Waiting>,
    /// Places of all waits, by connection.
    places: BTreeMap<usize, Place>,
}

impl Queue {
    /// Connections that wait.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// True if this connection waits.
    pub fn has(&self, conn: usize) -> bool {
        self.places.contains_key(&conn)
    }

    /// True if any connection waits for a permit.
    pub fn wants_permits(&self) -> bool {
        !self.permits.is_empty()
    }

    /// True if any connection waits for room.
    pub fn wants_room(&self) -> bool {
        !self.room.is_empty()
    }

    /// Adds a wait; `turn` matters to those for a permit.
    ///
    /// # Panics
    /// If the connection waits already.
    pub fn enter(&mut self, w: Waiting, turn: Turn) {
        let place = match w.resource {
            WaitsFor::Room => {
                self.room.insert(w.ticket, w);
                Place::Room(w.ticket)
            }
            WaitsFor::Permit | WaitsFor::PermitForPayload => {
                self.permits.insert((turn, w.ticket), w);
                Place::Permit(turn, w.ticket)
            }
        };
        assert!(self.places.insert(w.conn, place).is_none(), "a connection waits for two things");
    }

    /// Takes a connection's wait away, if it has one.
    pub fn leave(&mut self, conn: usize) {
        match self.places.remove(&conn) {
            Some(Place::Permit(turn, ticket)) => _ = self.permits.remove(&(turn, ticket)),
            Some(Place::Room(ticket)) => _ = self.room.remove(&ticket),
            None => {}
        }
    }

    /// Turn and bytes of a connection's wait for a permit.
    pub fn turn(&self, conn: usize) -> Option<(Turn, u64)> {
        match self.places.get(&conn) {
            Some(Place::Permit(turn, ticket)) => Some((*turn, self.permits[&(*turn, *ticket)].bytes)),
            _ => None,
        }
    }

    /// Gives a connection that waits for a permit another turn; its ticket stays.
    pub fn set_turn(&mut self, conn: usize, turn: Turn) {
        let Some(Place::Permit(before, ticket)) = self.places.get(&conn).copied() else { return };
        let w = self.permits.remove(&(before, ticket)).expect("each place has its wait");
        self.permits.insert((turn, ticket), w);
        self.places.insert(conn, Place::Permit(turn, ticket));
    }

    /// The first that waits for room.
    pub fn first_for_room(&self) -> Option<Waiting> {
        self.room.first_key_value().map(|(_, w)| *w)
    }

    /// The first that waits for a permit and needs only its connection's own.
    pub fn first_of_own(&self) -> Option<Waiting> {
        self.permits.range(..(Turn::Modest, 0)).next().map(|(_, w)| *w)
    }

    /// The first that waits for shared permits.
    pub fn first_of_shared(&self) -> Option<Waiting> {
        self.permits.range((Turn::Modest, 0)..).next().map(|(_, w)| *w)
    }
}
