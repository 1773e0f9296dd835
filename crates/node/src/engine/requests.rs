//! Clients' requests in the stack, and those of clients that are gone, which are to be withdrawn.
//!
//! Each connection's requests are a list, in the order of arrival, through the table of all requests. So the cost of a client's
//! departure is proportional to its own requests in the stack, not to those of others.

use plimsoll_base::{Data, Io, IoHead, IoId};
use plimsoll_nbd::request::Request;
use slab::Slab;
use std::collections::VecDeque;
use std::ops::Index;

/// A client's request inside the stack.
pub struct InFlight {
    /// Its connection's place.
    pub conn: usize,
    /// Serial number of the place's user: connections come and go.
    pub serial: u64,
    /// The request.
    pub request: Request,
    /// Index of the export that counts it.
    pub export: usize,
    /// Its number in the stack.
    pub id: IoId,
    /// Its trace's number; 0 if it isn't traced.
    pub trace: u64,
    /// The number of the injection that holds its answer back; 0 if none does.
    pub injected: u32,
    /// No forecast could refuse it, as its host was refused reads before.
    pub is_spared: bool,
}

struct Linked {
    inside: InFlight,
    older: Option<usize>,
    newer: Option<usize>,
}

/// One connection's list.
#[derive(Clone, Copy, Default)]
struct List {
    oldest: Option<usize>,
    newest: Option<usize>,
    /// The next to be withdrawn, if its client is gone.
    withdraws: Option<usize>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Requests {
    all: Slab<Linked>,
    /// By connection's place.
    lists: Vec<List>,
    /// Connections whose requests are to be withdrawn.
    leaving: VecDeque<usize>,
    /// Requests that have ended, to be made again: a new one costs an allocation.
    spare: Vec<Io>,
    /// Requests touched so far, for tests of how much work that is.
    #[cfg(test)]
    steps: u64,
}

/// Most that are kept to be made again: with more in flight their allocation is the smaller part of the costs.
const SPARE_MAX: usize = 64;

impl Requests {
    /// Makes a request for the stack.
    pub fn make(&mut self, head: IoHead, data: Data) -> Io {
        let Some(mut io) = self.spare.pop() else { return Io::new(head, data) };
        (io.head, io.data) = (head, data);
        io
    }

    /// Takes back a request that the stack has ended. Returns its data.
    pub fn give_back(&mut self, mut io: Io) -> Data {
        let data = std::mem::take(&mut io.data);
        if self.spare.len() < SPARE_MAX {
            self.spare.push(io);
        }
        data
    }

    /// The place that the next request gets.
    pub fn next_place(&self) -> usize {
        self.all.vacant_key()
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// True if none is in flight.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All requests.
    pub fn iter(&self) -> impl Iterator<Item = &InFlight> {
        self.all.iter().map(|(_, l)| &l.inside)
    }

    /// A request got in.
    pub fn insert(&mut self, inside: InFlight) {
        let conn = inside.conn;
        if self.lists.len() <= conn {
            self.lists.resize(conn + 1, List::default());
        }
        let older = self.lists[conn].newest;
        let at = self.all.insert(Linked { inside, older, newer: None });
        match older {
            Some(older) => self.all[older].newer = Some(at),
            None => self.lists[conn].oldest = Some(at),
        }
        self.lists[conn].newest = Some(at);
    }

    /// A request has ended.
    ///
    /// # Panics
    /// If it isn't there.
    pub fn remove(&mut self, at: usize) -> InFlight {
        let Linked { inside, older, newer } = self.all.remove(at);
        let list = &mut self.lists[inside.conn];
        if list.withdraws == Some(at) {
            list.withdraws = newer;
        }
        match older {
            Some(older) => self.all[older].newer = newer,
            None => list.oldest = newer,
        }
        match newer {
            Some(newer) => self.all[newer].older = older,
            None => list.newest = older,
        }
        inside
    }

    /// A connection's client is gone: its requests are to be withdrawn.
    pub fn withdraw(&mut self, conn: usize) {
        if let Some(list) = self.lists.get_mut(conn) {
            list.withdraws = list.oldest;
            self.leaving.push_back(conn);
        }
    }

    /// True if a request is to be withdrawn.
    pub fn withdraws(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// The next request to be withdrawn: of each connection the oldest first, as layers find those soonest.
    pub fn next_withdrawn(&mut self) -> Option<IoId> {
        while let Some(conn) = self.leaving.front() {
            let list = &mut self.lists[*conn];
            let Some(at) = list.withdraws else {
                self.leaving.pop_front();
                continue;
            };
            #[cfg(test)]
            {
                self.steps += 1;
            }
            list.withdraws = self.all[at].newer;
            return Some(self.all[at].inside.id);
        }
        None
    }
}

impl Index<usize> for Requests {
    type Output = InFlight;

    fn index(&self, at: usize) -> &InFlight {
        &self.all[at].inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_nbd::wire::{Command, CommandFlags};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn of(conn: usize, id: u64) -> InFlight {
        let request =
            Request { flags: CommandFlags::EMPTY, command: Command::Read, cookie: id, offset: 0, length: 512 };
        InFlight { conn, serial: 1, request, export: 0, id: IoId(id), trace: 0, injected: 0, is_spared: false }
    }

    /// 64 connections with 1,000 requests each: one of them leaves, and costs what it has inside.
    #[test]
    fn a_client_that_leaves_costs_what_it_has_inside() {
        let mut all = Requests::default();
        (0..64_000).for_each(|n| all.insert(of(n % 64, n as u64)));
        all.withdraw(7);
        assert!(all.withdraws());
        let withdrawn: Vec<u64> = std::iter::from_fn(|| all.next_withdrawn()).map(|id| id.0).collect();
        assert_eq!(withdrawn, (0..1000).map(|n| n * 64 + 7).collect::<Vec<_>>(), "the oldest first");
        assert_eq!(all.steps, 1000);
        assert!(!all.withdraws());
        (64..128).for_each(|conn| all.withdraw(conn));
        assert_eq!((all.next_withdrawn(), all.steps), (None, 1000), "connections without requests cost nothing");
    }

    proptest! {
        #[test]
        fn lists_are_those_of_their_connections(steps in prop::collection::vec((0u8..4, 0usize..4, 0usize..50), 0..300)) {
            let (mut all, mut model, mut next) = (Requests::default(), BTreeMap::new(), 0);
            let (mut due, mut leaving) = (Vec::new(), 0);
            for (what, conn, n) in steps {
                match what {
                    0 | 1 => {
                        next += 1;
                        model.insert(next, (all.next_place(), conn));
                        all.insert(of(conn, next));
                        if !due.is_empty() && conn == leaving {
                            due.push(next);
                        }
                    }
                    2 => if let Some((id, (at, conn))) = model.iter().nth(n).map(|(id, at)| (*id, *at)) {
                        model.remove(&id);
                        due.retain(|d| *d != id);
                        let gone = all.remove(at);
                        prop_assert_eq!((gone.id.0, gone.conn), (id, conn));
                    }
                    _ if due.is_empty() => {
                        all.withdraw(conn);
                        leaving = conn;
                        due.extend(model.iter().filter(|(_, (_, of))| *of == conn).map(|(id, _)| *id));
                    }
                    _ => prop_assert_eq!(all.next_withdrawn().map(|id| id.0), Some(due.remove(0))),
                }
            }
            let rest: Vec<u64> = std::iter::from_fn(|| all.next_withdrawn()).map(|id| id.0).collect();
            prop_assert_eq!(rest, due);
            prop_assert_eq!(all.iter().count(), model.len());
        }
    }
}
