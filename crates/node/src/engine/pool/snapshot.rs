//! Copies of what a pool has counted, for whoever watches.

use super::Pool;
use crate::engine::clients::CLIENT;
use crate::engine::command::{CONNECTIONS_MAX, ClientFilter, Connection, PoolSnapshot};
use crate::engine::conn::Conn;
use crate::engine::exports::account_of;
use crate::engine::terms;
use crate::view::ExportView;
use plimsoll_base::{IoHead, Op, Time, VolumeKey};
use plimsoll_stack::Front;

/// The read whose wait is reported: the smallest that every volume has room for.
const NEXT_READ_BYTES: u64 = 512;

impl Pool {
    pub(super) fn snapshot(&mut self) -> PoolSnapshot {
        let now = self.now;
        let front = self.stack.layer::<Front>();
        let of_account = |(at, place, account)| Some((at, place, self.exports.key(usize::from(account))?));
        let inside = || self.stack.oldest().and_then(of_account).into_iter();
        let earlier = |(at, ..): &(Time, &'static str, VolumeKey)| *at;
        let oldest = inside().chain(self.clients.waits(now)).min_by_key(earlier);
        let served = self.clients.waits(now).filter(|(_, place, _)| *place != CLIENT);
        let oldest_served = inside().chain(served).min_by_key(earlier);
        let promises = self.exports.promises(now);
        PoolSnapshot {
            now,
            state: self.state(),
            flush_failed: front.is_some_and(Front::flush_failed),
            overlap_waiting: front.map_or(0, Front::waiting),
            oldest: oldest.map(|(at, place, _)| (at, place)),
            oldest_served,
            promises,
            layers: (0..self.stack.len())
                .map(|n| {
                    let (name, stats) = self.stack.node_stats(n);
                    (name, stats.clone())
                })
                .collect(),
            devices: (0..self.devices.offers().len()).map(|d| self.stack.device_stats(d).clone()).collect(),
            permits: self.clients.inside(),
            inflight: self.stack.inflight(),
            connections: self.clients.by_export(),
            permit_waiting: self.clients.waiting(),
            counts: self.stack.counts(),
            injections: self.injections.views(now),
        }
    }

    pub(super) fn snapshot_export(&mut self, at: usize) -> Option<(usize, Box<ExportView>)> {
        let (place, counted) = self.exports.view(at, self.now)?;
        let next_read = IoHead::new(Op::Read, counted.key, counted.tenant, 0, NEXT_READ_BYTES, self.now);
        let account = self.stack.account_stats(account_of(place));
        let named = |at| self.stack.place_name(at);
        let layers = (0..self.stack.len()).map(|n| (named(n), account.waited[n]));
        let recent = self.exports.waits(place, self.now, account.waited);
        let waits = (0..self.stack.len()).map(|n| (named(n), recent.by_layer[n]));
        let view = ExportView {
            waited: layers.collect(),
            waits: waits.chain([("device", recent.at_device)]).collect(),
            inside: account.inside.iter().map(|(at, n)| (named(*at), *n)).collect(),
            oldest: account.oldest.map(|(arrived_at, at)| (arrived_at, named(at))),
            next_read_wait: self.stack.forecast(self.now, &next_read).wait,
            ..counted
        };
        Some((place, Box::new(view)))
    }

    pub(super) fn connections(&self, of: &ClientFilter) -> (Vec<Connection>, usize) {
        let connection = |c: &Conn| Connection {
            peer: c.params.peer.clone(),
            volume: c.params.volume,
            tenant: c.params.tenant,
            deadline: terms::default_deadline(&c.params, &self.exports),
            on_busy: c.params.on_busy,
            promises: c.promises(),
            in_flight: c.in_flight(),
            waits: c.stalled_since().map(|since| self.now.since(since)),
            connected: self.now.since(c.attached_at),
        };
        let all = || self.clients.iter().filter(|c| of.is_meant(&c.params));
        (all().take(CONNECTIONS_MAX).map(connection).collect(), all().count())
    }
}
