//! Copies of what a pool has counted, for whoever watches.

use super::{Pool, account_of};
use crate::engine::auto_deadline::AutoDeadline;
use crate::engine::command::PoolSnapshot;
use crate::view::ExportView;
use plimsoll_base::{IoHead, Op};
use plimsoll_stack::Front;
use std::collections::BTreeMap;

/// The read whose wait is told: the smallest that every volume has room for.
const NEXT_READ_BYTES: u64 = 512;

impl Pool {
    pub(super) fn snapshot(&mut self) -> PoolSnapshot {
        let now = self.now;
        let front = self.stack.layer::<Front>();
        let outside =
            self.conns.iter().filter_map(|(_, (_, c))| match (&c.stalled, c.receives(self.patience.at(now))) {
                (Some(s), _) => Some((s.since, "permit")),
                (None, Some(t)) => Some((now - t.silent, "client")),
                (None, None) => None,
            });
        let oldest = self.stack.oldest().into_iter().chain(outside).min_by_key(|(at, _)| *at);
        let mut connections = BTreeMap::new();
        for (_, (_, c)) in &self.conns {
            *connections.entry((c.params.volume, c.params.tenant)).or_default() += 1;
        }
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
            permits: self.admission.inside(),
            inflight: self.stack.inflight(),
            connections,
            permit_waiting: self.admission.waiting(),
            counts: self.stack.counts(),
        }
    }

    pub(super) fn snapshot_export(&mut self, at: usize) -> Option<(usize, Box<ExportView>)> {
        let (place, e) = self.exports.iter_mut().find(|(place, _)| *place >= at)?;
        let next_read = IoHead::new(Op::Read, e.key, e.tenant, 0, NEXT_READ_BYTES, self.now);
        e.metrics.minutes.turn(self.now);
        e.metrics.seconds.turn(self.now);
        let account = self.stack.account_stats(account_of(place));
        let named = |at| self.stack.place_name(at);
        let layers = (0..self.stack.len()).map(|n| (named(n), account.waited[n]));
        let view = ExportView {
            auto_deadline: e.auto.as_ref().map(AutoDeadline::deadline),
            waited: layers.collect(),
            inside: account.inside.iter().map(|(at, n)| (named(*at), *n)).collect(),
            oldest: account.oldest.map(|(arrived_at, at)| (arrived_at, named(at))),
            next_read_wait: self.stack.forecast(self.now, &next_read).wait,
            ..ExportView::of(e.key, e.tenant, &e.metrics)
        };
        Some((place, Box::new(view)))
    }
}
