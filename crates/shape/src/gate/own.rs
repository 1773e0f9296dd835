//! A gate in memory of one process: for the simulator and for tests.

use super::{Conn, Gate, Head, Knobs, Time, User};

/// A gate with memory of its own.
pub struct OwnGate {
    head: Box<Head>,
    users: Vec<User>,
    conns: Vec<Conn>,
}

impl OwnGate {
    /// Creates a gate with room for `users` users (one is `others`) and `conns` connections.
    pub fn new(users: usize, conns: usize, knobs: Knobs, now: Time) -> OwnGate {
        let zeroed = bytemuck::Zeroable::zeroed;
        let mut own = OwnGate {
            head: Box::new(zeroed()),
            users: vec![bytemuck::Zeroable::zeroed(); users],
            conns: vec![bytemuck::Zeroable::zeroed(); conns],
        };
        own.gate().init(knobs, now);
        own
    }

    /// The gate.
    pub fn gate(&mut self) -> Gate<'_> {
        Gate { head: &mut self.head, users: &mut self.users, conns: &mut self.conns }
    }
}
