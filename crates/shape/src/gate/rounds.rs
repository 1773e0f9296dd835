//! Whose turn it is: weighted round robin in rounds (AP-M3, AP-M4).
//!
//! A user that waits is in one of three rings: *in turn* (it began its turn in this round and may start more), *ready* (its
//! turn of this round is to come), *spent* (it had its turn). When nobody is in turn or ready, the spent become ready and a new
//! round begins. A turn adds `L = φ·ζ` to the user's credit; a start takes one from it. A credit left over is
//! forfeited, a debt is carried, so shares are exact over rounds even where L isn't whole.

use super::list::List;
use super::{Gate, Time};
use crate::gate::state::place;

pub(super) mod ring {
    pub const NONE: u32 = 0;
    pub const IN_TURN: u32 = 1;
    pub const READY: u32 = 2;
    pub const SPENT: u32 = 3;
}

/// A start's price.
const ONE: i64 = 1000;
/// The mean is slow, or the turns of users of quick and slow statements would each be priced by their own.
const MEAN_OVER: u64 = 1024;
/// With starts charged by time, a user owes at most so many turns: one monstrous statement must not shut it out.
const DEBT_TURNS_MAX: i64 = 128;

impl Gate<'_> {
    fn ring(&mut self, ring: u32) -> &mut List {
        match ring {
            ring::IN_TURN => &mut self.head.in_turn,
            ring::READY => &mut self.head.ready,
            _ => &mut self.head.spent,
        }
    }

    fn put(&mut self, u: u32, ring: u32) {
        self.users[u as usize].ring = ring;
        let mut list = *self.ring(ring);
        list.push::<0, _>(self.users, u);
        *self.ring(ring) = list;
    }

    /// The user's first connection begins to wait.
    pub(super) fn join_ring(&mut self, u: u32) {
        let user = &self.users[u as usize];
        let ring = match (user.turn_round == self.head.round, user.credit_milli > 0) {
            (false, _) => ring::READY,
            (true, true) => ring::IN_TURN,
            (true, false) => ring::SPENT,
        };
        self.put(u, ring);
    }

    /// The user's last waiting connection is gone.
    pub(super) fn leave_ring(&mut self, u: u32) {
        let ring = std::mem::replace(&mut self.users[u as usize].ring, ring::NONE);
        if ring != ring::NONE {
            let mut list = *self.ring(ring);
            list.remove::<0, _>(self.users, u);
            *self.ring(ring) = list;
        }
    }

    /// Thousandths of transactions a turn gives (AP-M3).
    fn turn_milli(&self, u: u32) -> i64 {
        i64::from(self.users[u as usize].weight_milli.max(ONE as u32)) * i64::from(self.head.knobs.zeta.max(1))
    }

    fn begin_turn(&mut self, u: u32) {
        let turn = self.turn_milli(u);
        let round = self.head.round;
        let user = &mut self.users[u as usize];
        user.turn_round = round;
        user.credit_milli = user.credit_milli.min(0).max(-DEBT_TURNS_MAX * turn) + turn;
    }

    /// The connection that goes in next. Somebody must wait.
    pub(super) fn next_in_turn(&mut self) -> u32 {
        loop {
            if let Some(u) = self.head.in_turn.first() {
                return self.users[u as usize].queue.first().expect("a user in a ring has somebody waiting");
            }
            if let Some(u) = self.head.ready.first() {
                self.leave_ring(u);
                self.begin_turn(u);
                let ring = if self.users[u as usize].credit_milli > 0 { ring::IN_TURN } else { ring::SPENT };
                self.put(u, ring);
                continue;
            }
            assert!(self.head.spent.first().is_some(), "somebody waits, so some ring has a user");
            self.head.round += 1;
            while let Some(u) = self.head.spent.first() {
                self.leave_ring(u);
                self.put(u, ring::READY);
            }
        }
    }

    /// One of the user's waiting connections goes in.
    pub(super) fn charge(&mut self, u: u32) {
        self.users[u as usize].credit_milli -= ONE;
        self.spend(u);
    }

    fn spend(&mut self, u: u32) {
        let user = &self.users[u as usize];
        if user.ring == ring::IN_TURN && user.credit_milli <= 0 {
            self.leave_ring(u);
            self.put(u, ring::SPENT);
        }
    }

    /// A transaction ends: where time is charged, the difference to the flat price is settled.
    pub(super) fn settle(&mut self, now: Time, i: u32) {
        let c = &self.conns[i as usize];
        if self.head.knobs.charge_time == 0 || c.place == place::NONE {
            return;
        }
        let took = now.as_nanos().saturating_sub(c.admitted_at);
        let mean = &mut self.head.mean_service_ns;
        *mean = if *mean == 0 { took } else { *mean - *mean / MEAN_OVER + took / MEAN_OVER }.max(1);
        let price = (u128::from(took) * ONE as u128 / u128::from(*mean)).min(1 << 40) as i64;
        let u = c.user;
        let floor = -DEBT_TURNS_MAX * self.turn_milli(u);
        let user = &mut self.users[u as usize];
        user.credit_milli = (user.credit_milli - (price - ONE)).max(floor);
        if user.ring == ring::SPENT && user.credit_milli > 0 && user.turn_round == self.head.round {
            // Cheaper than thought: its turn goes on.
            self.leave_ring(u);
            self.put(u, ring::IN_TURN);
        }
        self.spend(u);
    }
}
