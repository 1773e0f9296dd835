//! A pool's fence: `GET` and `PATCH /v1/pools/{name}/fence`, and the metrics.

use super::change::{change, parse, span_of_us};
use super::prometheus::Page;
use super::status::Views;
use super::{ApiError, Control, Shared};
use crate::fence::Baseline;
use crate::parts::look::PoolView;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use plimsoll_base::Span;
use plimsoll_fence::FenceStatus;
use plimsoll_fence::status::{BatchCounters, SlotStatus, VolumeStatus};
use serde::{Deserialize, Serialize};

/// `GET /v1/pools/{name}/fence`: whose each slot is, and how it's used.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FenceView {
    /// A slot's length.
    pub slot_us: u64,
    /// The number of the slot that runs.
    pub running: u32,
    /// How long it still has.
    pub running_left_us: u64,
    /// Volumes without slots share what is left.
    pub hybrid: bool,
    /// Requests of such volumes that wait.
    pub waiting_without: u64,
    /// Idle time of the first device that such volumes could have used since the start.
    pub idle_us: u64,
    /// What they used of it.
    pub lent_us: u64,
    /// Every slot, in their order.
    pub slots: Vec<FenceSlotView>,
    /// Every volume.
    pub volumes: Vec<FenceVolumeView>,
    /// Every fenced device: the pool's, then the cache's.
    pub devices: Vec<FenceDeviceView>,
}

/// One slot.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FenceSlotView {
    /// Whose it is; absent if nobody's.
    pub volume: Option<String>,
    /// What its next turn is longer (or, below zero, shorter) by.
    pub balance_us: i64,
    /// Turns since the start.
    pub turns: u64,
    /// Turns in which something was sent.
    pub used: u64,
    /// Turns that ended early.
    pub early: u64,
    /// Time credited for them.
    pub credit_us: u64,
    /// Turns that overran.
    pub overruns: u64,
    /// Time debited for them.
    pub debit_us: u64,
}

/// One volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FenceVolumeView {
    /// Its name.
    pub volume: String,
    /// Its slots.
    pub slots: u32,
    /// Requests that wait for a slot.
    pub waiting: u64,
    /// Requests that ended since the start.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From when they came to the fence until they ended, summed.
    pub response_us: u64,
    /// What of that they waited for a slot.
    pub waited_us: u64,
    /// What they waited for requests that were lent idle time.
    pub imposed_us: u64,
    /// Reads answered busy as their deadline had passed while they waited.
    pub revoked: u64,
    /// Time that its batches had the first device in its slots.
    pub held_us: u64,
    /// Clients' requests that ended as asked since the start, wherever they were served.
    pub served: u64,
    /// From their arrival to their completion, summed.
    pub served_us: u64,
    /// By how much the mean response time of the last minute differs from the baseline's, in percent of that; absent without a
    /// baseline of these slots.
    pub deviation_percent: Option<f64>,
}

/// One device's batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FenceDeviceView {
    /// Batches of slots' owners since the start.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// What they were predicted to take.
    pub predicted_us: u64,
    /// What they took.
    pub took_us: u64,
    /// By how much predictions were wrong, summed.
    pub error_us: u64,
    /// Batches predicted to 5 ms (a disk) or 250 us (flash).
    pub within: u64,
}

/// `PATCH /v1/pools/{name}/fence`; what is absent stays.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceChange {
    /// Slots from the end of the running one on, 1 to 64.
    pub slots: Option<u32>,
    /// Their length.
    pub slot_us: Option<u64>,
}

fn us(s: Span) -> u64 {
    s.as_micros()
}

impl FenceView {
    /// Compares the pool's slots with those that `baseline` was measured with. Returns the difference, for the operator.
    pub fn differs_from(&self, baseline: &Baseline) -> Option<String> {
        let own = self.volumes.iter().find(|v| v.volume == baseline.volume).map_or(0, |v| v.slots);
        baseline.differs(self.slots.len() as u32, self.slot_us, own)
    }

    /// Of a pool whose thread says this, if it's fenced.
    fn of(control: &Control, n: usize, view: &PoolView) -> Option<FenceView> {
        let named = |key| control.node.volume_name(n, key);
        let mut found = FenceView::of_layer(view.layers.fence.as_deref()?, &named);
        let mut means: Vec<Option<f64>> = Vec::new();
        for v in &mut found.volumes {
            let mine = || view.exports.iter().filter(|e| named(e.key) == v.volume);
            let all = || mine().flat_map(|e| &e.ops);
            (v.served, v.served_us) =
                (all().map(|o| o.response.count()).sum(), all().map(|o| us(o.response.sum())).sum());
            let (count, sum) =
                mine().fold((0, 0.0), |(n, s), e| (n + e.minute.count(), s + e.minute.sum().as_millis_f64()));
            means.push((count > 0).then(|| sum / count as f64));
        }
        let deviation = |(v, mean): (&FenceVolumeView, Option<f64>)| {
            let baseline = control.node.baseline(&v.volume).filter(|b| found.differs_from(b).is_none())?;
            Some(plimsoll_fence::plan::deviation_percent(baseline.response_ms, mean?))
        };
        let deviations: Vec<_> = found.volumes.iter().zip(means).map(deviation).collect();
        found.volumes.iter_mut().zip(deviations).for_each(|(v, d)| v.deviation_percent = d);
        Some(found)
    }

    fn of_layer(s: &FenceStatus, named: &dyn Fn(plimsoll_base::VolumeKey) -> String) -> FenceView {
        let slot = |s: &SlotStatus| FenceSlotView {
            volume: s.owner.map(named),
            balance_us: s.balance_ns / 1000,
            turns: s.counters.turns,
            used: s.counters.used,
            early: s.counters.early.0,
            credit_us: us(s.counters.early.1),
            overruns: s.counters.overruns.0,
            debit_us: us(s.counters.overruns.1),
        };
        let volume = |v: &VolumeStatus| FenceVolumeView {
            volume: named(v.volume),
            slots: v.slots,
            waiting: v.waiting,
            requests: v.counters.requests,
            bytes: v.counters.bytes,
            response_us: us(v.counters.response),
            waited_us: us(v.counters.waited),
            imposed_us: us(v.imposed),
            revoked: v.counters.revoked,
            held_us: us(v.counters.held),
            served: 0,
            served_us: 0,
            deviation_percent: None,
        };
        let device = |d: &BatchCounters| FenceDeviceView {
            batches: d.batches,
            requests: d.requests,
            predicted_us: us(d.predicted),
            took_us: us(d.took),
            error_us: us(d.error),
            within: d.within,
        };
        FenceView {
            slot_us: us(s.slot),
            running: s.running,
            running_left_us: us(s.running_left),
            hybrid: s.hybrid,
            waiting_without: s.waiting_without,
            idle_us: us(s.idle.0),
            lent_us: us(s.idle.1),
            slots: s.slots.iter().map(slot).collect(),
            volumes: s.volumes.iter().map(volume).collect(),
            devices: s.devices.iter().map(device).collect(),
        }
    }
}

pub(super) async fn show(State(control): Shared, Path(name): Path<String>) -> Result<Json<FenceView>, ApiError> {
    let missing = || ApiError::missing(format!("there is no pool `{name}`")).todo("GET /v1/status lists them");
    let n = control.node.pools.iter().position(|p| p.name == name).ok_or_else(missing)?;
    let views = control.node.snapshots().await;
    let gone = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("pool `{name}` doesn't answer"));
    let view = views[n].as_ref().ok_or_else(gone)?;
    let none = || ApiError::missing(format!("pool `{name}` has no fence")).todo("configure [pool.fence]");
    Ok(Json(FenceView::of(&control, n, view).ok_or_else(none)?))
}

pub(super) async fn patch(
    State(control): Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<FenceView>, ApiError> {
    let wanted: FenceChange = parse(&uri, &headers, &body)?;
    let owned = name.clone();
    let slot = wanted.slot_us.map(span_of_us);
    let changed = change(&control.node, |node| async move { node.change_fence(&owned, wanted.slots, slot).await });
    changed.await.map_err(|e| e.at(format!("pool `{name}`")))?;
    show(State(control), Path(name)).await
}

/// A number of one slot, volume or device, for a metric.
type Family<T> = (&'static str, &'static str, fn(&T) -> f64);

const SLOTS: [Family<FenceSlotView>; 6] = [
    ("plimsoll_fence_turns_total", "Turns of a slot.", |s| s.turns as f64),
    ("plimsoll_fence_used_turns_total", "Turns of a slot in which something was sent.", |s| s.used as f64),
    ("plimsoll_fence_early_turns_total", "Turns of a slot that ended early.", |s| s.early as f64),
    ("plimsoll_fence_credit_seconds_total", "Time credited to a slot for early ends.", |s| s.credit_us as f64 / 1e6),
    ("plimsoll_fence_overruns_total", "Turns of a slot that overran.", |s| s.overruns as f64),
    ("plimsoll_fence_debit_seconds_total", "Time debited from a slot for overruns.", |s| s.debit_us as f64 / 1e6),
];

const VOLUMES: [Family<FenceVolumeView>; 7] = [
    ("plimsoll_fence_slots", "Slots of a volume.", |v| f64::from(v.slots)),
    ("plimsoll_fence_waiting", "Requests of a volume that wait for a slot.", |v| v.waiting as f64),
    ("plimsoll_fence_requests_total", "Requests of a volume that ended.", |v| v.requests as f64),
    ("plimsoll_fence_response_seconds_total", "Their time at the fence and below.", |v| v.response_us as f64 / 1e6),
    ("plimsoll_fence_wait_seconds_total", "What of that they waited for a slot.", |v| v.waited_us as f64 / 1e6),
    ("plimsoll_fence_imposed_seconds_total", "What they waited for requests that were lent idle time.", |v| {
        v.imposed_us as f64 / 1e6
    }),
    ("plimsoll_fence_held_seconds_total", "Time that a volume's batches had the first device.", |v| {
        v.held_us as f64 / 1e6
    }),
];

const DEVICES: [Family<FenceDeviceView>; 4] = [
    ("plimsoll_fence_batches_total", "Batches of slots' owners on a device.", |d| d.batches as f64),
    ("plimsoll_fence_batches_within_total", "Batches predicted to 5 ms (a disk) or 250 us (flash).", |d| {
        d.within as f64
    }),
    ("plimsoll_fence_batch_seconds_total", "What batches took.", |d| d.took_us as f64 / 1e6),
    ("plimsoll_fence_batch_error_seconds_total", "By how much their predictions were wrong.", |d| {
        d.error_us as f64 / 1e6
    }),
];
const DEVIATION: &str = "By how much the last minute's mean response differs from a volume's baseline, over that.";

/// The metrics of all fenced pools.
pub(super) fn metrics(page: &mut Page, control: &Control, views: &Views) {
    let mut all: Vec<(&str, FenceView)> = Vec::new();
    for (n, (p, v)) in control.node.pools.iter().zip(views).enumerate() {
        all.extend(v.as_ref().and_then(|v| FenceView::of(control, n, v)).map(|view| (p.name.as_str(), view)));
    }
    let kind = |name: &str| if name.ends_with("_total") { "counter" } else { "gauge" };
    for (name, help, value) in SLOTS {
        page.family(name, kind(name), help);
        for (pool, v) in &all {
            for (i, s) in v.slots.iter().enumerate() {
                let volume = s.volume.as_deref().unwrap_or("");
                page.sample(name, &[("pool", pool), ("slot", &i.to_string()), ("volume", volume)], value(s));
            }
        }
    }
    for (name, help, value) in VOLUMES {
        page.family(name, kind(name), help);
        for (pool, v) in &all {
            for volume in &v.volumes {
                page.sample(name, &[("pool", pool), ("volume", &volume.volume)], value(volume));
            }
        }
    }
    for (name, help, value) in DEVICES {
        page.family(name, kind(name), help);
        for (pool, v) in &all {
            for (device, d) in ["pool", "cache"].iter().zip(&v.devices) {
                page.sample(name, &[("pool", pool), ("device", device)], value(d));
            }
        }
    }
    page.family("plimsoll_fence_deviation_ratio", "gauge", DEVIATION);
    for (pool, v) in &all {
        for volume in &v.volumes {
            if let Some(percent) = volume.deviation_percent {
                let labels = [("pool", *pool), ("volume", volume.volume.as_str())];
                page.sample("plimsoll_fence_deviation_ratio", &labels, percent / 100.0);
            }
        }
    }
    page.family(
        "plimsoll_fence_idle_seconds_total",
        "counter",
        "Idle time that volumes without slots could have used.",
    );
    for (pool, v) in &all {
        page.sample("plimsoll_fence_idle_seconds_total", &[("pool", pool)], v.idle_us as f64 / 1e6);
    }
    page.family("plimsoll_fence_lent_seconds_total", "counter", "What of it they used.");
    for (pool, v) in &all {
        page.sample("plimsoll_fence_lent_seconds_total", &[("pool", pool)], v.lent_us as f64 / 1e6);
    }
}
