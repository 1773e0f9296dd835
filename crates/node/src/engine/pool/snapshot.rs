//! Copies of what a pool has counted, for whoever watches.

use super::{Pool, account_of};
use crate::engine::command::{ModelTimes, PoolSnapshot};
use crate::view::ExportView;
use plimsoll_base::{IoHead, Op};
use plimsoll_cache::{Cache, Nvram};
use plimsoll_cores::Cores;
use plimsoll_device::{AnyModel, ModelLayer, PageCacheLayer};
use plimsoll_fence::Fence;
use plimsoll_logs::Logs;
use plimsoll_sched::SchedulerView;
use plimsoll_sched::promise::{AutoDeadline, Budgets};
use plimsoll_stack::Front;
use plimsoll_stack::inside::Knowledge;
use std::collections::BTreeMap;

/// The read whose wait is told: the smallest that every volume has room for.
const NEXT_READ_BYTES: u64 = 512;

impl Pool {
    pub(super) fn snapshot(&mut self) -> PoolSnapshot {
        let now = self.now;
        let front = self.stack.layer::<Front>();
        let sched = plimsoll_sched::choice::view(&self.stack);
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
            sched_depths: sched.map_or((0, 0), |s| (s.waiting, s.at_device)),
            connections,
            permit_waiting: self.admission.waiting(),
            counts: self.stack.counts(),
            predictor: self.predictor(sched),
            budgets: self.stack.layer::<Budgets>().map_or(Vec::new(), Budgets::views),
            memory: self.stack.layer::<PageCacheLayer>().map(PageCacheLayer::counts),
            cache: self.stack.layer::<Cache>().map(|c| {
                let mut status = c.status();
                // Without its NVRAM the cache never starts: it is the one to say why.
                if let Some(why) = self.stack.layer::<Nvram>().and_then(Nvram::why) {
                    (status.state, status.why) = ("failed", Some(why.to_string()));
                }
                Box::new(status)
            }),
            logs: self.stack.layer::<Logs>().map(|l| Box::new(l.status(now))),
            cores: self.stack.layer::<Cores>().map(|c| Box::new(c.status(now))),
            fence: self.stack.layer::<Fence>().map(|f| Box::new(f.status(now))),
            model: self
                .stack
                .layer::<ModelLayer<AnyModel>>()
                .map(|m| ModelTimes { lateness: m.lateness().clone(), data_late: m.data_late() }),
        }
    }

    /// Who predicts waits, and what that rests on: the scheduler, or the modelled device whose inside is seen.
    fn predictor(&self, sched: Option<SchedulerView>) -> Option<(&'static str, Knowledge)> {
        let sched = sched?;
        let inside = || self.stack.layer::<ModelLayer<AnyModel>>().and_then(ModelLayer::knowledge);
        Some((sched.name, sched.knowledge.or_else(inside)?))
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
