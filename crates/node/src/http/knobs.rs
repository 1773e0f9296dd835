//! A pool's settings: `GET` and `PATCH /v1/pools/{name}/knobs`.

use super::change::{change, parse, span_of_us};
use super::{ApiError, Shared};
use crate::knobs::{Knobs, Wanted};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use plimsoll_base::Span;
use serde::{Deserialize, Serialize};

/// `GET /v1/pools/{name}/knobs`: what can be tuned while the pool serves, as it is now; null where the pool has no such layer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct KnobsView {
    /// How long CFQ keeps the device for a client's next request.
    pub idle_us: Option<u64>,
    /// Writes up to this are logged, as set; the logs may choose less while they fill too fast.
    pub logged_write_bytes: Option<u64>,
    /// The most that it may be.
    pub logged_write_bytes_max: Option<u64>,
    /// Fingerprints kept, in percent of the cache's extents.
    pub fingerprints_percent: Option<u32>,
    /// QWin: with less slack a tenant gets cores aggressively.
    pub core_slack_low_us: Option<u64>,
    /// QWin: with more, conservatively.
    pub core_slack_high_us: Option<u64>,
    /// QWin: windows from one look at the slack to the next.
    pub core_poll_windows: Option<u64>,
}

/// `PATCH /v1/pools/{name}/knobs`; what is absent stays.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnobsChange {
    /// How long CFQ keeps the device for a client's next request, at most a second.
    pub idle_us: Option<u64>,
    /// Writes up to this are logged.
    pub logged_write_bytes: Option<u64>,
    /// Fingerprints kept, 1 to 100 % of the cache's extents.
    pub fingerprints_percent: Option<u32>,
    /// QWin's lower threshold of slack.
    pub core_slack_low_us: Option<u64>,
    /// QWin's upper threshold of slack, at most 10 s.
    pub core_slack_high_us: Option<u64>,
    /// QWin: windows from one look at the slack to the next.
    pub core_poll_windows: Option<u64>,
}

impl KnobsView {
    fn of(k: &Knobs) -> KnobsView {
        let us = Span::as_micros;
        KnobsView {
            idle_us: k.idle.map(us),
            logged_write_bytes: k.logged_write.map(|l| l.0),
            logged_write_bytes_max: k.logged_write.map(|l| l.1),
            fingerprints_percent: k.fingerprints_percent,
            core_slack_low_us: k.core_slack.map(|s| us(s.low)),
            core_slack_high_us: k.core_slack.map(|s| us(s.high)),
            core_poll_windows: k.core_slack.map(|s| s.poll_windows),
        }
    }
}

pub(super) async fn show(State(control): Shared, Path(name): Path<String>) -> Result<Json<KnobsView>, ApiError> {
    let knobs = control.node.knobs(&name).map_err(|e| ApiError::from(e).at(format!("pool `{name}`")))?;
    Ok(Json(KnobsView::of(&knobs)))
}

pub(super) async fn patch(
    State(control): Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<KnobsView>, ApiError> {
    let c: KnobsChange = parse(&uri, &headers, &body)?;
    let span = |us: Option<u64>| us.map(span_of_us);
    let wanted = Wanted {
        idle: span(c.idle_us),
        logged_write: c.logged_write_bytes,
        fingerprints_percent: c.fingerprints_percent,
        core_slack_low: span(c.core_slack_low_us),
        core_slack_high: span(c.core_slack_high_us),
        core_poll_windows: c.core_poll_windows,
    };
    let owned = name.clone();
    let changed = change(&control.node, |node| async move { node.change_knobs(&owned, wanted).await });
    changed.await.map_err(|e| e.at(format!("pool `{name}`")))?;
    show(State(control), Path(name)).await
}
