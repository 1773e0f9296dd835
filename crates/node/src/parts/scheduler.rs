//! The scheduler of a pool's device, and the predictor of its waits.

use super::page::{Family, Page};
use super::settings::{Setting, Unit};
use super::{About, Part, Shown};
use crate::config::{BadConfig, PoolConfig, SpanText};
use crate::plan::kind;
use plimsoll_base::{Span, Time};
use plimsoll_device::{AnyModel, ModelLayer};
use plimsoll_sched::cfq::CfqControl;
use plimsoll_sched::{SchedulerKind, SchedulerOptions};
use plimsoll_stack::inside::Knowledge;
use plimsoll_stack::{Addressed, Stack};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// CFQ keeps the device for one client's next request for no longer than this.
const IDLE_MAX: Span = Span::from_secs(1);

/// State of a scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The scheduler's name.
    pub name: &'static str,
    /// Requests that wait in it.
    pub waiting: usize,
    /// Requests at the device.
    pub at_device: usize,
    /// The base of the predictions, the scheduler's or a modelled device's whose inside is seen.
    pub knowledge: Option<Knowledge>,
}

/// `GET /v1/pools/{name}/scheduler`: the queue of a pool's device, and the predictor of its waits.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SchedulerView {
    /// `noop`, `auto`, `deadline`, `cfq`, `blackbox`, `ssd` or `osds`.
    pub name: String,
    /// Requests that wait in it.
    pub waiting: u64,
    /// Requests at the device.
    pub at_device: u64,
    /// The predictor, if waits are predicted.
    pub predictor: Option<PredictorView>,
}

/// The predictor of a pool's waits.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PredictorView {
    /// Predictions are from a measured profile; else they are learned from conservative defaults.
    pub profiled: bool,
    /// Completions that it has learned from.
    pub learned: u64,
    /// Confidence of the predictions, 0 to 1.
    pub confidence: f64,
}

fn idle(pool: &PoolConfig) -> Option<Span> {
    let is_cfq = kind(pool).is_ok_and(|k| k == SchedulerKind::Cfq);
    is_cfq.then(|| pool.idle_time.map_or(SchedulerOptions::default().slice_idle, |t| t.0))
}

/// The part.
pub struct Scheduler;

impl Part for Scheduler {
    type Seen = Queue;
    type View = SchedulerView;
    const NAME: &'static str = "scheduler";
    const SUMMARY: &'static str = "The queue of a pool's device, and the predictor of its waits";
    const HOW: &'static str = "every pool has one: `sched` chooses it";

    fn look(stack: &Stack, _: Time) -> Option<Queue> {
        let view = plimsoll_sched::choice::view(stack)?;
        let inside = || stack.layer::<ModelLayer<AnyModel>>().and_then(ModelLayer::knowledge);
        let knowledge = view.knowledge.or_else(inside);
        Some(Queue { name: view.name, waiting: view.waiting, at_device: view.at_device, knowledge })
    }

    fn view(q: &Queue, _: &About) -> SchedulerView {
        let predictor = |k: Knowledge| PredictorView {
            profiled: k.profiled,
            learned: k.learned,
            confidence: f64::from(k.confidence.0) / 1000.0,
        };
        SchedulerView {
            name: q.name.to_string(),
            waiting: q.waiting as u64,
            at_device: q.at_device as u64,
            predictor: q.knowledge.map(predictor),
        }
    }

    fn shown(v: &SchedulerView) -> Shown {
        let mut shown = Shown::new(format!("{}, {} waiting, {} at the device", v.name, v.waiting, v.at_device));
        if let Some(p) = &v.predictor {
            let from = if p.profiled { "a measured profile" } else { "completions alone, without a profile" };
            let (learned, sure) = (p.learned, p.confidence * 100.0);
            shown.line("predicts", format!("from {from}; learned from {learned} completions, {sure:.0} % sure"));
        }
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, SchedulerView)]) {
        let of = pools
            .iter()
            .filter_map(|(pool, v)| Some((vec![("pool", *pool), ("predictor", &*v.name)], v.predictor.as_ref()?)));
        page.families(PREDICTORS, &of.collect::<Vec<_>>());
    }

    fn check(pool: &PoolConfig) -> Result<(), BadConfig> {
        let place = pool.sched.as_ref().map(|s| s.span().start);
        let kind = kind(pool).map_err(|e| e.at(place))?;
        if kind == SchedulerKind::Osds && pool.device.rbd.is_none() {
            let what = "sched `osds` is for an RBD image's OSDs: this device has none";
            return Err(BadConfig::new(what).at(place));
        }
        match pool.depth {
            Some(0) => Err(BadConfig::new("depth 0 would serve nothing")),
            _ => Ok(()),
        }
    }

    const SETTINGS: &'static [Setting] = &[Setting {
        key: "idle_us",
        unit: Unit::Us,
        help: "Time that cfq keeps the device for a client's next request.",
        get: |pool| idle(pool).map(Span::as_micros),
        put: |pool, us| pool.idle_time = Some(SpanText(Span::from_micros(us))),
        range: |_| 0..=IDLE_MAX.as_micros(),
        message: |pool| Addressed::new(&CfqControl::SliceIdle(idle(pool).unwrap_or_default())),
    }];
}

/// Metrics of a pool's predictor.
const PREDICTORS: &[Family<PredictorView>] = &[
    (
        "plimsoll_predictor_profiled",
        "1 if waits are predicted from a measured profile, 0 if they are learned from conservative defaults.",
        |p| f64::from(u8::from(p.profiled)),
    ),
    ("plimsoll_predictor_learned_total", "Completions that the predictor has learned from.", |p| p.learned as f64),
    ("plimsoll_predictor_confidence", "Confidence of predictions, 0 to 1.", |p| p.confidence),
];
