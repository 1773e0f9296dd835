//! Invariants of the gate, and the repair of the lists after a process died in the middle of changing them.

use super::list::{Link, List};
use super::rounds::ring;
use super::state::{phase, place};
use super::{Gate, Time, WEIGHT_ONE_MILLI};

impl Gate<'_> {
    /// Asserts all invariants: costs a walk over everything, for tests.
    ///
    /// # Panics
    /// If one is broken.
    pub fn check(&mut self) {
        let count = |want: u32| self.conns.iter().filter(|c| c.place == want).count() as u32;
        assert_eq!(self.head.normal, count(place::NORMAL));
        assert_eq!(self.head.over, count(place::OVER));
        assert_eq!(self.head.lent, count(place::LENT));
        let waiting = self.conns.iter().filter(|c| c.phase == phase::WAITING).count() as u32;
        assert_eq!(self.head.waiting, waiting);
        assert_eq!(self.users.iter().map(|u| u.waiting).sum::<u32>(), waiting);
        let inside = self.users.iter().map(|u| u.inside).sum::<u32>();
        assert_eq!(inside, self.head.normal + self.head.over + self.head.lent);
        for u in 0..self.users.len() {
            assert_eq!(self.users[u].waiting > 0, self.users[u].ring != ring::NONE, "user {u}");
        }
        for at in 1..self.head.line_len {
            assert!(self.is_before((at - 1) / 2, at), "the line is a heap");
        }
        let lined_up = self.users.iter().filter(|u| u.ring == ring::LINED_UP).count();
        assert_eq!(lined_up, self.head.line_len as usize);
        let (mut conns, mut promised) = (vec![0; self.users.len()], vec![0; self.users.len()]);
        for c in self.conns.iter().filter(|c| c.phase != phase::FREE) {
            conns[c.user as usize] += 1;
            c.next_user.checked_sub(1).into_iter().for_each(|u| promised[u as usize] += 1);
        }
        assert!(self.users.iter().map(|u| u.conns).eq(conns), "each connection is one user's");
        assert!(self.users.iter().map(|u| u.promised).eq(promised));
        let (idle, age) = (self.head.idle, self.head.by_age);
        let idle_now = self.conns.iter().filter(|c| c.phase == phase::IDLE && c.place == place::NORMAL).count();
        assert_eq!(length::<0>(idle, self.conns), idle_now);
        assert_eq!(length::<1>(age, self.conns), waiting as usize);
        assert!(
            waiting == 0 || !(self.head.knobs.open != 0 || self.head.normal < self.head.knobs.p),
            "a place is free"
        );
    }

    /// Rebuilds lists and counts from what each connection says of itself.
    pub fn repair(&mut self, now: Time) {
        self.clear_lists();
        let h = &mut *self.head;
        (h.normal, h.over, h.lent, h.waiting, h.level) = (0, 0, 0, 0, 0);
        h.conns_used = self.conns.len() as u32;
        h.counters.repairs += 1;
        h.users_used = h.users_used.clamp(1, self.users.len() as u32);
        for u in self.users.iter_mut() {
            (u.queue, u.link, u.ring) = (List::EMPTY, Link::NONE, ring::NONE);
            (u.waiting, u.inside, u.conns, u.promised) = (0, 0, 0, 0);
            // An entry that somebody died over is nobody's: given back like others.
            u.weight_milli = u.weight_milli.max(WEIGHT_ONE_MILLI);
        }
        for i in 0..self.conns.len() as u32 {
            self.repair_conn(now, i);
        }
        self.repair_names();
    }

    fn repair_conn(&mut self, now: Time, i: u32) {
        let c = &mut self.conns[i as usize];
        (c.link, c.age, c.granted) = (Link::NONE, Link::NONE, 0);
        if c.user as usize >= self.users.len() {
            c.user = 0;
        }
        c.next_user = 0;
        let u = c.user as usize;
        if c.phase == phase::FREE || c.phase > phase::PINNED {
            (c.phase, c.place) = (phase::FREE, place::NONE);
            self.head.free_conns.push::<0, _>(self.conns, i);
            return;
        }
        self.users[u].conns += 1;
        match (c.phase, c.place) {
            (phase::WAITING, _) => {
                c.place = place::NONE;
                self.enqueue(now, i);
            }
            (phase::PINNED, _) => {
                c.place = place::LENT;
                self.users[u].inside += 1;
                self.head.lent += 1;
            }
            (phase::REST, _) | (_, place::NONE) => (c.phase, c.place) = (phase::REST, place::NONE),
            (phase, which) => {
                self.users[u].inside += 1;
                match which {
                    place::NORMAL => self.head.normal += 1,
                    place::LENT => self.head.lent += 1,
                    _ => {
                        c.place = place::OVER;
                        self.head.over += 1;
                    }
                }
                if phase == phase::IDLE && which == place::NORMAL {
                    self.head.idle.push::<0, _>(self.conns, i);
                } else if phase == phase::RUNNING {
                    // It may have been let in without being told.
                    self.conns[i as usize].granted = 1;
                    self.head.granted.push::<0, _>(self.conns, i);
                }
            }
        }
    }
}

fn length<const K: usize>(list: List, conns: &mut [super::Conn]) -> usize
where
    super::Conn: super::list::Linked<K>,
{
    let mut n = 0;
    let mut at = list.first();
    while let Some(i) = at {
        n += 1;
        at = list.after::<K, _>(conns, i);
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Knobs, OwnGate, Verdict};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// A list of one element, which is its own neighbour on both sides: as zeroes are for connection 0.
    fn ring(i: u32) -> (List, Link) {
        (bytemuck::cast([i, i]), bytemuck::cast([i, i]))
    }

    #[test]
    fn a_list_that_others_bent_into_a_ring_ends() {
        let knobs = Knobs { p: 1, ..Knobs::default() };
        let mut own = OwnGate::new(2, 4, knobs, Time::ZERO);
        let mut g = own.gate();
        let ids: Vec<_> = (0..2).map(|_| g.open(0).expect("room")).collect();
        assert_eq!((g.request(Time::ZERO, ids[0]), g.request(Time::ZERO, ids[1])), (Verdict::Go, Verdict::Wait));
        (g.head.granted, g.conns[0].link) = ring(0);
        g.conns[0].granted = 1;
        assert!(catch_unwind(AssertUnwindSafe(|| while g.take_grant().is_some() {})).is_err());
        // Without debug assertions, too, each is let in once.
        let waits = ids[1].0;
        (g.users[0].queue, g.conns[waits as usize].link) = ring(waits);
        (g.head.waiting, g.users[0].waiting) = (u32::MAX, u32::MAX);
        let open = Knobs { p: u32::MAX, ..knobs };
        assert!(catch_unwind(AssertUnwindSafe(|| g.set_knobs(Time::ZERO, open))).is_err());
    }
}
