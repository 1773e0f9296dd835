//! A device that is modelled in real time.

use super::page::{Family, Page};
use super::{About, Part, Shown};
use crate::view::Summary;
use plimsoll_base::{LatencyHistogram, Span, Time};
use plimsoll_device::{AnyModel, ModelLayer};
use plimsoll_stack::Stack;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Times of a modelled device.
#[derive(Clone, Debug)]
pub struct ModelTimes {
    /// Time from each completion's due time until it was noticed.
    pub lateness: LatencyHistogram,
    /// Completions that were due while the real bytes were still on their way.
    pub data_late: u64,
}

/// `GET /v1/pools/{name}/model`: how a device that is modelled in real time keeps to its model.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ModelStatus {
    /// Completions.
    pub completions: u64,
    /// Half of them were at most this late.
    pub late_p50_us: u64,
    /// 95 % of them.
    pub late_p95_us: u64,
    /// 99 % of them.
    pub late_p99_us: u64,
    /// The latest.
    pub late_max_us: u64,
    /// Completions that the real bytes weren't there for in time: the file is slower than the modelled device.
    pub data_late: u64,
    /// The distribution of the lateness, for the metrics.
    #[serde(skip)]
    #[schemars(skip)]
    lateness: Summary,
}

/// The part.
pub struct Model;

impl Part for Model {
    type Seen = ModelTimes;
    type View = ModelStatus;
    const NAME: &'static str = "model";
    const SUMMARY: &'static str = "How a modelled device keeps to its model";
    const HOW: &'static str = "say `model` in the pool's device";

    fn look(stack: &Stack, _: Time) -> Option<ModelTimes> {
        let model = stack.layer::<ModelLayer<AnyModel>>()?;
        Some(ModelTimes { lateness: model.lateness().clone(), data_late: model.data_late() })
    }

    fn view(m: &ModelTimes, _: &About) -> ModelStatus {
        let late = |percent| m.lateness.percentile(percent).as_micros();
        ModelStatus {
            completions: m.lateness.count(),
            late_p50_us: late(50.0),
            late_p95_us: late(95.0),
            late_p99_us: late(99.0),
            late_max_us: m.lateness.max().as_micros(),
            data_late: m.data_late,
            lateness: Summary::from(&m.lateness),
        }
    }

    fn shown(v: &ModelStatus) -> Shown {
        let [p50, p95, max] = [v.late_p50_us, v.late_p95_us, v.late_max_us].map(Span::from_micros);
        let late = format!("late by {p50} (p50), {p95} (p95), {max} at most");
        let mut shown = Shown::new(format!("{} completions, {late}", v.completions));
        shown.line("data late", format!("{} completions: the file was slower than the modelled device", v.data_late));
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, ModelStatus)]) {
        let name = "plimsoll_model_lateness_seconds";
        page.family(name, "histogram", "How long after its due time a modelled device's completion came.");
        for (pool, v) in pools {
            page.histogram(name, &[("pool", pool)], &v.lateness, 0);
        }
        let of: Vec<_> = pools.iter().map(|(pool, v)| (vec![("pool", *pool)], v)).collect();
        page.families(POOLS, &of);
    }
}

/// Metrics of a pool's modelled device.
const POOLS: &[Family<ModelStatus>] = &[(
    "plimsoll_model_data_late_total",
    "Completions whose data came from the file later than the model's due time.",
    |v| v.data_late as f64,
)];
