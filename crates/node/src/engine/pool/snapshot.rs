//! Copies of what a pool has counted, for whoever watches.

use super::{Pool, account_of};
use crate::engine::command::PoolSnapshot;
use crate::view::ExportView;
use plimsoll_base::{IoHead, Op};
use plimsoll_stack::Front;

/// The read whose wait is told: the smallest that every volume has room for.
const NEXT_READ_BYTES: u64 = 512;

impl Pool {
    pub(super) fn snapshot(&mut self) -> PoolSnapshot {
        let now = self.now;
        let front = self.stack.layer::<Front>();
        let oldest = self.stack.oldest().into_iter().chain(self.clients.waits(now)).min_by_key(|(at, _)| *at);
        PoolSnapshot {
            now,
            state: self.stack.state(),
            flush_failed: front.is_some_and(Front::flush_failed),
            overlap_waiting: front.map_or(0, Front::waiting),
            oldest,
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
        let view = ExportView {
            waited: layers.collect(),
            inside: account.inside.iter().map(|(at, n)| (named(*at), *n)).collect(),
            oldest: account.oldest.map(|(arrived_at, at)| (arrived_at, named(at))),
            next_read_wait: self.stack.forecast(self.now, &next_read).wait,
            ..counted
        };
        Some((place, Box::new(view)))
    }
}
