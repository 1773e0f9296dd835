//! Order of turns: weighted round robin in rounds (AP-M3, AP-M4), the turns of a round spread over it.
//!
//! A turn is ζ transactions. In a round a user of weight φ has φ turns, so `L = φ·ζ`. Its turns lie evenly in the round instead of
//! one after the other. A client in a closed loop asks for one transaction at a time. With all its user's turns in a row it would wait
//! for a whole round between two of them. No weight could keep a tail objective then (AP-M13).
//!
//! The next user follows from a virtual time (start-time fair queueing). A transaction advances its user's virtual time by 1/φ
//! of a step. Of the waiting users the one with the least virtual time goes. A started turn goes on before another begins. A user that
//! comes back after silence begins at the present, so its first turn is soon. If it stays, its next turns are moved once by a
//! part of a round, which differs between users. Otherwise users that began together would be equal for ever. They would go one after
//! the other while a heavier one waits.

use super::list::List;
use super::{Gate, Time};
use crate::gate::state::place;

pub(super) mod ring {
    pub const NONE: u32 = 0;
    /// It began a turn and may start more.
    pub const IN_TURN: u32 = 1;
    /// Its turn is to come.
    pub const LINED_UP: u32 = 2;
}

/// A start's price in thousandths.
const ONE: u64 = 1000;
/// Virtual time of one transaction at a weight of one.
const STEP: u64 = 1_000_000;
/// Multiples of the golden ratio lie far apart in the round, however many there are.
const GOLDEN: u64 = 40_503;
const PARTS: u64 = 1 << 16;
/// The mean is slow, or the turns of users of quick and slow statements would each be priced by their own.
const MEAN_OVER: u64 = 1024;
/// Limit of a user's debt in turns, when starts are charged by time: one very long statement must not shut it out.
const DEBT_TURNS_MAX: u64 = 128;

impl Gate<'_> {
    /// The user's first connection begins to wait.
    pub(super) fn join_ring(&mut self, u: u32) {
        let user = &self.users[u as usize];
        if user.left > 0 && self.head.virtual_now < user.turn_ends {
            self.go_on(u);
        } else {
            self.line_up(u);
        }
    }

    /// The user's last waiting connection is gone.
    pub(super) fn leave_ring(&mut self, u: u32) {
        match std::mem::replace(&mut self.users[u as usize].ring, ring::NONE) {
            ring::IN_TURN => {
                let mut list: List = self.head.in_turn;
                list.remove::<0, _>(self.users, u);
                self.head.in_turn = list;
            }
            ring::LINED_UP => self.step_out(u),
            _ => {}
        }
    }

    /// The connection that goes in next. Somebody must wait.
    pub(super) fn next_in_turn(&mut self) -> u32 {
        if let Some(u) = self.head.in_turn.first() {
            return self.users[u as usize].queue.first().expect("a user in its turn has somebody waiting");
        }
        assert!(self.head.line_len > 0, "somebody waits, so some user is lined up");
        let u = self.head.line[0];
        self.leave_ring(u);
        let begins = self.users[u as usize].virtual_at;
        self.advance(begins);
        let zeta = self.head.knobs.zeta.max(1);
        let user = &mut self.users[u as usize];
        user.left = zeta;
        user.turn_ends = begins.saturating_add(user.virtual_time(u64::from(zeta) * ONE));
        self.go_on(u);
        self.users[u as usize].queue.first().expect("a user in line has somebody waiting")
    }

    /// One of the user's waiting connections goes in.
    pub(super) fn charge(&mut self, u: u32) {
        let user = &mut self.users[u as usize];
        user.virtual_at = user.virtual_at.saturating_add(user.virtual_time(ONE));
        user.left = user.left.saturating_sub(1);
        if user.ring == ring::IN_TURN && user.left == 0 {
            self.leave_ring(u);
            self.line_up(u);
        }
    }

    /// One of the user's connections goes in that didn't wait in its queue.
    pub(super) fn pay(&mut self, u: u32) {
        let lined_up = self.users[u as usize].ring == ring::LINED_UP;
        if lined_up {
            self.leave_ring(u);
        }
        let user = &mut self.users[u as usize];
        user.virtual_at = user.virtual_at.saturating_add(user.virtual_time(ONE));
        if lined_up {
            self.line_up(u);
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
        let price = (u128::from(took) * u128::from(ONE) / u128::from(*mean)).min(1 << 32) as u64;
        let u = c.user;
        let lined_up = self.users[u as usize].ring == ring::LINED_UP;
        if lined_up {
            self.leave_ring(u);
        }
        let (now, zeta) = (self.head.virtual_now, u64::from(self.head.knobs.zeta.max(1)));
        let user = &mut self.users[u as usize];
        let most = now.saturating_add(user.virtual_time(DEBT_TURNS_MAX * zeta * ONE));
        user.virtual_at = match price.checked_sub(ONE) {
            Some(more) => user.virtual_at.saturating_add(user.virtual_time(more)).min(most.max(user.virtual_at)),
            None => user.virtual_at.saturating_sub(user.virtual_time(ONE - price)),
        };
        if lined_up {
            self.line_up(u);
        }
    }

    fn go_on(&mut self, u: u32) {
        self.users[u as usize].ring = ring::IN_TURN;
        let mut list: List = self.head.in_turn;
        list.push::<0, _>(self.users, u);
        self.head.in_turn = list;
    }

    /// Virtual time goes on to the beginning of a turn; rounds are counted by it.
    fn advance(&mut self, to: u64) {
        let h = &mut *self.head;
        h.virtual_now = h.virtual_now.max(to);
        let round = STEP * u64::from(h.knobs.zeta.max(1));
        let passed = (h.virtual_now - h.round_began) / round;
        h.round += passed;
        h.round_began += passed * round;
    }

    fn line_up(&mut self, u: u32) {
        let (now, order) = (self.head.virtual_now, self.head.lined_up);
        self.head.lined_up += 1;
        let at = self.head.line_len;
        self.head.line_len += 1;
        let turn = u64::from(self.head.knobs.zeta.max(1)) * ONE;
        let user = &mut self.users[u as usize];
        (user.ring, user.left) = (ring::LINED_UP, 0);
        if user.virtual_at <= now {
            (user.virtual_at, user.is_new) = (now, 1);
        } else if std::mem::take(&mut user.is_new) == 1 {
            let part = order.wrapping_mul(GOLDEN) % PARTS;
            user.virtual_at = user.virtual_at.saturating_add(user.virtual_time(turn) / PARTS * part);
        }
        user.order = order;
        self.put_at(at, u);
        self.move_up(at);
    }

    fn step_out(&mut self, u: u32) {
        let at = self.users[u as usize].line_at;
        self.head.line_len -= 1;
        let last = self.head.line[self.head.line_len as usize];
        if last != u {
            self.put_at(at, last);
            self.move_up(at);
            self.move_down(self.users[last as usize].line_at);
        }
    }

    fn put_at(&mut self, at: u32, u: u32) {
        self.head.line[at as usize] = u;
        self.users[u as usize].line_at = at;
    }

    /// Of two in line the one that is less far goes first, or came first.
    pub(super) fn is_before(&self, a: u32, b: u32) -> bool {
        let key = |at: u32| {
            let user = &self.users[self.head.line[at as usize] as usize];
            (user.virtual_at, user.order)
        };
        key(a) < key(b)
    }

    fn swap(&mut self, a: u32, b: u32) {
        let (x, y) = (self.head.line[a as usize], self.head.line[b as usize]);
        self.put_at(a, y);
        self.put_at(b, x);
    }

    fn move_up(&mut self, mut at: u32) {
        while at > 0 && self.is_before(at, (at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn move_down(&mut self, mut at: u32) {
        loop {
            let below = (2 * at + 1..(2 * at + 3).min(self.head.line_len))
                .reduce(|a, b| if self.is_before(b, a) { b } else { a });
            let Some(least) = below.filter(|b| self.is_before(*b, at)) else { return };
            self.swap(at, least);
            at = least;
        }
    }
}

impl super::User {
    /// Returns the virtual time of `milli` thousandths of a transaction.
    fn virtual_time(&self, milli: u64) -> u64 {
        STEP.saturating_mul(milli) / u64::from(self.weight_milli.max(ONE as u32))
    }
}
