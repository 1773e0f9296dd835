//! Status of a pool's layers, gathered on the pool's thread.

use crate::engine::PoolSnapshot;
use crate::view::ExportView;
use plimsoll_base::{LatencyHistogram, Time};
use plimsoll_cache::{Cache, CacheStatus, Nvram};
use plimsoll_cores::{Cores, CoresStatus};
use plimsoll_device::{AnyModel, CacheCounts, ModelLayer, PageCacheLayer};
use plimsoll_fence::{Fence, FenceStatus};
use plimsoll_logs::{Logs, LogsStatus};
use plimsoll_sched::SchedulerView;
use plimsoll_sched::budgets::{BudgetView, Budgets};
use plimsoll_stack::Stack;
use plimsoll_stack::inside::Knowledge;

/// All that a pool counts.
#[derive(Clone, Debug)]
pub struct PoolView {
    /// The pool's own.
    pub pool: PoolSnapshot,
    /// Its layers'.
    pub layers: Layers,
    /// Per volume and tenant.
    pub exports: Vec<ExportView>,
}

/// Status of every layer that a pool has.
#[derive(Clone, Debug)]
pub struct Layers {
    /// Requests waiting in the scheduler, and at the device.
    pub sched_depths: (usize, usize),
    /// The predictor of waits, and the base of its predictions.
    pub predictor: Option<(&'static str, Knowledge)>,
    /// Tenants' budgets of slow reads.
    pub budgets: Vec<BudgetView>,
    /// The page cache.
    pub memory: Option<CacheCounts>,
    /// The flash cache.
    pub cache: Option<Box<CacheStatus>>,
    /// Scattered logs.
    pub logs: Option<Box<LogsStatus>>,
    /// Cores.
    pub cores: Option<Box<CoresStatus>>,
    /// Time slots.
    pub fence: Option<Box<FenceStatus>>,
    /// Times of the modelled device.
    pub model: Option<ModelTimes>,
}

/// Times of a device that is modelled in real time.
#[derive(Clone, Debug)]
pub struct ModelTimes {
    /// Time from each completion's due time until it was noticed.
    pub lateness: LatencyHistogram,
    /// Completions that were due while the real bytes were still on their way.
    pub data_late: u64,
}

impl Layers {
    /// Looks at every layer of `stack`.
    pub fn of(stack: &Stack, now: Time) -> Layers {
        let sched = plimsoll_sched::choice::view(stack);
        let model = stack.layer::<ModelLayer<AnyModel>>();
        Layers {
            sched_depths: sched.map_or((0, 0), |s| (s.waiting, s.at_device)),
            predictor: sched.and_then(|s| predictor(s, model)),
            budgets: stack.layer::<Budgets>().map_or(Vec::new(), Budgets::views),
            memory: stack.layer::<PageCacheLayer>().map(PageCacheLayer::counts),
            cache: cache(stack).map(Box::new),
            logs: stack.layer::<Logs>().map(|l| Box::new(l.status(now))),
            cores: stack.layer::<Cores>().map(|c| Box::new(c.status(now))),
            fence: stack.layer::<Fence>().map(|f| Box::new(f.status(now))),
            model: model.map(|m| ModelTimes { lateness: m.lateness().clone(), data_late: m.data_late() }),
        }
    }
}

/// Looks at the flash cache of `stack`.
pub fn cache(stack: &Stack) -> Option<CacheStatus> {
    let mut status = stack.layer::<Cache>()?.status();
    // Without its NVRAM the cache never starts: its status says why.
    if let Some(why) = stack.layer::<Nvram>().and_then(Nvram::why) {
        (status.state, status.why) = ("failed", Some(why.to_string()));
    }
    Some(status)
}

/// Returns the predictor of waits: the scheduler, or the modelled device whose inside is seen.
fn predictor(sched: SchedulerView, model: Option<&ModelLayer<AnyModel>>) -> Option<(&'static str, Knowledge)> {
    let knowledge = sched.knowledge.or_else(|| model.and_then(ModelLayer::knowledge))?;
    Some((sched.name, knowledge))
}
