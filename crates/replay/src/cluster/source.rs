//! Load of a cluster: gets and noise, the same whatever the policies do.
//!
//! Open loop ([`Gets`]): gets arrive at their own times. Closed loop ([`Users`]): each user waits for its answer, thinks, and
//! asks again. Each get, and each thought, is drawn from its user's own stream. So a user's n-th get is the same under every
//! policy, only at another time.

use plimsoll_base::{Priority, Rng, Span, TenantId, Time};
use plimsoll_client::Get;
use plimsoll_trace::record::Op;
use std::collections::VecDeque;

/// Source of a cluster's gets.
pub trait GetSource {
    /// A get of which is known when it arrives and that wasn't given yet; `None`: there is none before another one ends.
    fn next_get(&mut self) -> Option<Get>;

    /// Returns the number of gets to be drawn beforehand: one where they come in order of their arrivals.
    fn ahead(&self) -> usize {
        1
    }

    /// A get has ended, however.
    fn ended(&mut self, now: Time, get: &Get) {
        let _ = (now, get);
    }
}

/// Any gets in order of their arrivals: an open loop.
pub(super) struct InOrder<I>(pub I);

impl<I: Iterator<Item = Get>> GetSource for InOrder<I> {
    fn next_get(&mut self) -> Option<Get> {
        self.0.next()
    }
}

/// Configuration of gets: clients and objects evenly at random.
#[derive(Clone, Copy, Debug)]
pub struct GetsConfig {
    /// Nodes of the cluster.
    pub nodes: u16,
    /// Clients.
    pub clients: u16,
    /// Replicas of each object, on consecutive nodes.
    pub replicas: u16,
    /// Objects.
    pub objects: u64,
    /// Bytes of each.
    pub object_bytes: u64,
    /// Exponential with this mean: the time between two gets of the whole cluster in an open loop, a user's thought in a
    /// closed one.
    pub gap: Span,
    /// Number in all; in a closed loop each user has an equal part, rounded up.
    pub count: u64,
}

impl GetsConfig {
    /// # Panics
    /// If there are more replicas than nodes, or none of anything.
    fn check(&self) {
        assert!(self.replicas > 0 && self.replicas <= self.nodes && self.clients > 0, "{self:?}");
        assert!(self.objects > 0 && self.object_bytes > 0, "{self:?}");
    }

    fn gap(&self, rng: &mut Rng) -> Span {
        Span::from_nanos((rng.exp1() * self.gap.as_nanos() as f64).round() as u64)
    }

    /// A get of an object drawn from `rng`; `client` `None`: of a client drawn, too.
    fn draw(&self, rng: &mut Rng, number: u64, arrived_at: Time, client: Option<u16>) -> Get {
        let object = rng.below(self.objects);
        // Fibonacci hashing: neighbours in number are no neighbours on the ring of nodes.
        let home = (object.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % u64::from(self.nodes);
        let node = |i: u16| ((home + u64::from(i)) % u64::from(self.nodes)) as u16;
        Get {
            number,
            arrived_at,
            until: Time::NEVER,
            client: client.unwrap_or_else(|| rng.below(u64::from(self.clients)) as u16),
            replicas: (0..self.replicas).map(node).collect(),
            offset: object * self.object_bytes,
            len: self.object_bytes,
            draw: rng.next_u64(),
            limit: None,
            refusable: false,
        }
    }
}

/// Gets in an open loop with Poisson arrivals.
#[derive(Clone, Debug)]
pub struct Gets {
    config: GetsConfig,
    rng: Rng,
    next_number: u64,
    at: Time,
}

impl Gets {
    /// The gets of `config`, drawn by `seed`.
    ///
    /// # Panics
    /// If there are more replicas than nodes, or none of anything.
    pub fn new(config: GetsConfig, seed: u64) -> Gets {
        config.check();
        Gets { config, rng: Rng::new(seed, "gets"), next_number: 0, at: Time::ZERO }
    }
}

impl Iterator for Gets {
    type Item = Get;
    fn next(&mut self) -> Option<Get> {
        if self.next_number == self.config.count {
            return None;
        }
        self.at += self.config.gap(&mut self.rng);
        self.next_number += 1;
        Some(self.config.draw(&mut self.rng, self.next_number - 1, self.at, None))
    }
}

/// Gets in a closed loop: users that wait for their answers and think before they ask again.
#[derive(Clone, Debug)]
pub struct Users {
    config: GetsConfig,
    each: u64,
    /// By user: its stream, and how many gets it has made.
    users: Vec<(Rng, u64)>,
    /// Users that have thought enough at a time, each to make its next get.
    ready: VecDeque<(Time, usize)>,
}

impl Users {
    /// `users` users, dealt out to the clients in turn, each of which thinks before its first get, too. Get `n` of user `u` has
    /// the number `n · users + u`.
    ///
    /// # Panics
    /// As [`Gets::new`], or if there is no user.
    pub fn new(config: GetsConfig, users: u32, seed: u64) -> Users {
        config.check();
        assert!(users > 0, "a closed loop without a user does nothing");
        let stream = |u| (Rng::new(seed, &format!("user {u}")), 0);
        let each = config.count.div_ceil(u64::from(users));
        let mut all = Users { config, each, users: (0..users).map(stream).collect(), ready: VecDeque::new() };
        (0..users as usize).for_each(|u| all.think(u, Time::ZERO));
        all
    }

    fn think(&mut self, user: usize, now: Time) {
        let (rng, made) = &mut self.users[user];
        if *made < self.each {
            let at = now + self.config.gap(rng);
            self.ready.push_back((at, user));
        }
    }
}

impl GetSource for Users {
    fn next_get(&mut self) -> Option<Get> {
        let (at, user) = self.ready.pop_front()?;
        let users = self.users.len() as u64;
        let (rng, made) = &mut self.users[user];
        let number = *made * users + user as u64;
        *made += 1;
        let client = (user % usize::from(self.config.clients)) as u16;
        Some(self.config.draw(rng, number, at, Some(client)))
    }

    fn ahead(&self) -> usize {
        usize::MAX
    }

    fn ended(&mut self, now: Time, get: &Get) {
        self.think((get.number % self.users.len() as u64) as usize, now);
    }
}

/// A request at one node that isn't a get's: another tenant's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noise {
    /// Time of arrival at the node.
    pub at: Time,
    /// Node.
    pub node: u16,
    /// Operation.
    pub op: Op,
    /// Offset.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Tenant; gets are tenant 0's.
    pub tenant: TenantId,
    /// For schedulers that know priorities.
    pub priority: Priority,
}

impl Noise {
    /// A read of another tenant, of the usual priority.
    pub fn read(at: Time, node: u16, offset: u64, len: u64) -> Noise {
        Noise { at, node, op: Op::Read, offset, len, tenant: TenantId(1), priority: Priority::DEFAULT }
    }
}
