//! Course of a transaction in the server: tickets, cores, row locks, the cache, disks.

use super::engine::{Event, Model, Step};
use super::{CoreOrder, DiskOrder};
use plimsoll_base::Span;

/// Pages are numbered by users' spaces of this size.
const SPACE: u64 = 1 << 24;
/// Part of a transaction's pages that are its user's own.
const OWN: f64 = 0.75;

impl Model {
    /// Draws the steps of a user's next transaction.
    pub fn plan(&mut self, u: u32) {
        let cfg = self.cfg;
        let user = &mut self.users[u as usize];
        user.steps.clear();
        (user.committing, user.in_slice) = (false, 0);
        // One of ten of its own pages is new from one transaction to the next.
        user.window += cfg.own_pages / 10;
        let own = SPACE * (u64::from(u) + 1) + user.window;
        let each: u64 = cfg.locks.iter().map(|l| l.each).sum();
        let mut first = user.home * each;
        // In one order: the model has no deadlocks.
        let mut locks = Vec::new();
        for kind in cfg.locks {
            if self.rng.chance(kind.share) {
                locks.push(first + self.rng.below(kind.each));
            }
            first += kind.each;
        }
        let every = cfg.reads.div_ceil(cfg.locks.len() + 1).max(1);
        let mut locks = locks.into_iter();
        for i in 0..cfg.reads {
            let page = if self.rng.chance(OWN) {
                own + self.rng.below(cfg.own_pages)
            } else {
                self.rng.below(cfg.shared_pages)
            };
            user.steps.push_back(Step::Page(page));
            if (i + 1) % every == 0 {
                user.steps.extend(locks.next().map(Step::Lock));
            }
        }
        user.steps.extend(locks.map(Step::Lock));
        if cfg.durable {
            user.steps.push_back(Step::Log);
        }
    }

    /// Begins at once, or sleeps until a ticket is given back.
    pub fn take_ticket(&mut self, u: u32) {
        if self.tickets == 0 {
            self.ticket_queue.push_back(u);
            return;
        }
        self.tickets -= 1;
        self.queue_for_core(u, false);
    }

    /// Somebody may have come first: then it sleeps again, behind all others.
    pub fn woken_for_ticket(&mut self, u: u32) {
        self.take_ticket(u);
    }

    fn give_ticket_back(&mut self) {
        self.tickets += 1;
        if let Some(u) = self.ticket_queue.pop_front() {
            self.at(self.now + self.cfg.wake, Event::Ticket(u));
        }
    }

    fn queue_for_core(&mut self, u: u32, goes_on: bool) {
        if goes_on {
            self.run_queue.push_front(u);
        } else {
            self.users[u as usize].in_slice = 0;
            self.run_queue.push_back(u);
        }
        self.run_cores();
    }

    fn run_cores(&mut self) {
        while self.cores_busy < self.cfg.cores && !self.run_queue.is_empty() {
            let at = match self.cfg.core_order {
                CoreOrder::Fifo => 0,
                CoreOrder::Fair => {
                    let used = |u: &u32| self.users[*u as usize].used_core;
                    (0..self.run_queue.len()).min_by_key(|i| used(&self.run_queue[*i])).unwrap_or(0)
                }
            };
            let u = self.run_queue.remove(at).expect("within the queue");
            self.cores_busy += 1;
            let plain = self.cfg.burst.as_nanos();
            // Who sleeps for a ticket crowds nobody.
            let inside = self.inside.min(self.cfg.tickets.unwrap_or(u32::MAX));
            let crowded = plain * self.cfg.crowded_milli(inside) / 1000;
            let took = (crowded as f64 * (0.5 + self.rng.unit())) as u64;
            self.sums.core_ns += crowded;
            self.sums.crowded_ns += crowded - plain;
            let user = &mut self.users[u as usize];
            user.used_core += took;
            user.in_slice += took;
            self.at(self.now + Span::from_nanos(took), Event::Burst(u));
        }
    }

    pub fn burst_done(&mut self, u: u32) {
        self.cores_busy -= 1;
        self.step(u);
        self.run_cores();
    }

    /// A thread that needn't wait goes on, until its slice is over.
    fn go_on(&mut self, u: u32) {
        let within = self.users[u as usize].in_slice < self.cfg.slice.as_nanos();
        self.queue_for_core(u, within);
    }

    fn step(&mut self, u: u32) {
        match self.users[u as usize].steps.pop_front() {
            Some(Step::Page(page)) => {
                self.sums.reads += 1;
                if self.cache.access(0, page, 1) {
                    self.sums.hits += 1;
                    self.go_on(u);
                } else {
                    self.queue_for_disk(u, page);
                }
            }
            Some(Step::Log) => {
                self.users[u as usize].committing = true;
                self.queue_for_disk(u, 0);
            }
            Some(Step::Lock(row)) => self.lock(u, row),
            None => self.commit(u),
        }
    }

    fn lock(&mut self, u: u32, row: u64) {
        let lock = &mut self.locks[row as usize];
        if lock.0.is_some() {
            lock.1.push_back(u);
            self.users[u as usize].wait_from = self.now;
            return;
        }
        lock.0 = Some(u);
        self.users[u as usize].held.push(row);
        self.go_on(u);
    }

    fn queue_for_disk(&mut self, u: u32, page: u64) {
        self.disk_queue.push_back((u, page));
        self.run_disks();
    }

    fn run_disks(&mut self) {
        while self.disks_busy < self.channels && !self.disk_queue.is_empty() {
            let q = &self.disk_queue;
            let at = match self.cfg.disk_order {
                DiskOrder::Fifo => 0,
                DiskOrder::Fair => (0..q.len()).min_by_key(|i| self.users[q[*i].0 as usize].used_disk).unwrap_or(0),
                DiskOrder::Elevator => (0..q.len()).min_by_key(|i| q[*i].1.wrapping_sub(self.arm)).unwrap_or(0),
            };
            let (u, page) = self.disk_queue.remove(at).expect("within the queue");
            self.arm = page;
            self.disks_busy += 1;
            self.users[u as usize].used_disk += 1;
            let took = Span::from_nanos((self.cfg.read.as_nanos() as f64 * (0.4 + 0.6 * self.rng.exp1())) as u64);
            self.at(self.now + took, Event::Disk(u));
        }
    }

    pub fn disk_done(&mut self, u: u32) {
        self.disks_busy -= 1;
        if self.users[u as usize].committing {
            self.commit(u);
        } else {
            self.queue_for_core(u, false);
        }
        self.run_disks();
    }

    fn commit(&mut self, u: u32) {
        for row in std::mem::take(&mut self.users[u as usize].held) {
            let lock = &mut self.locks[row as usize];
            lock.0 = lock.1.pop_front();
            if let Some(next) = lock.0 {
                let user = &mut self.users[next as usize];
                user.held.push(row);
                user.lock_wait += self.now.since(user.wait_from);
                self.queue_for_core(next, false);
            }
        }
        self.give_ticket_back();
        self.answered(u);
    }
}
