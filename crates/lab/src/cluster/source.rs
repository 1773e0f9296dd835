//! What comes at a cluster: gets and noise, the same whatever the policies do.

use crate::cluster::Get;
use crate::trace::record::Op;
use plimsoll_base::{Rng, Span, Time};

/// Gets in an open loop: Poisson arrivals, clients and objects evenly at random.
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
    /// Mean time between two gets of the whole cluster.
    pub gap: Span,
    /// How many.
    pub count: u64,
}

/// See [`GetsConfig`].
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
        let GetsConfig { nodes, clients, replicas, objects, object_bytes, .. } = config;
        assert!(replicas > 0 && replicas <= nodes && clients > 0, "{config:?}");
        assert!(objects > 0 && object_bytes > 0, "{config:?}");
        Gets { config, rng: Rng::new(seed, "gets"), next_number: 0, at: Time::ZERO }
    }
}

impl Iterator for Gets {
    type Item = Get;
    fn next(&mut self) -> Option<Get> {
        let c = &self.config;
        if self.next_number == c.count {
            return None;
        }
        self.at += Span::from_nanos((self.rng.exp1() * c.gap.as_nanos() as f64).round() as u64);
        let object = self.rng.below(c.objects);
        // Fibonacci hashing: neighbours in number are no neighbours on the ring of nodes.
        let home = (object.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % u64::from(c.nodes);
        let node = |i: u16| ((home + u64::from(i)) % u64::from(c.nodes)) as u16;
        self.next_number += 1;
        Some(Get {
            number: self.next_number - 1,
            arrived_at: self.at,
            client: self.rng.below(u64::from(c.clients)) as u16,
            replicas: (0..c.replicas).map(node).collect(),
            offset: object * c.object_bytes,
            len: c.object_bytes,
            draw: self.rng.next_u64(),
        })
    }
}

/// A request at one node that isn't a get's: another tenant's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Noise {
    /// When it arrives at the node.
    pub at: Time,
    /// Which node.
    pub node: u16,
    /// What it does.
    pub op: Op,
    /// Where.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}
