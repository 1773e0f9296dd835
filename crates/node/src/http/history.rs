//! `GET /v1/tenants/{name}/history`, `GET /v1/volumes/{name}/history`

use super::api::{History, HistoryPoint};
use super::status::shares;
use super::{ApiError, Shared};
use crate::engine::recent::Tally;
use crate::view;
use axum::Json;
use axum::extract::{Path, State};
use plimsoll_base::Span;

pub(super) async fn of_volume(State(control): Shared, Path(name): Path<String>) -> Result<Json<History>, ApiError> {
    Ok(Json(history(&control.node.volume_history(&name).await?)))
}

pub(super) async fn of_tenant(State(control): Shared, Path(name): Path<String>) -> Result<Json<History>, ApiError> {
    Ok(Json(history(&control.node.tenant_history(&name).await?)))
}

fn history(h: &view::History) -> History {
    let point = |(t, p99): &(Tally, Span)| HistoryPoint {
        done: t.done,
        reads: shares(t),
        p99_us: (*p99 > Span::ZERO).then(|| p99.as_micros()),
    };
    let points = |of: &[(Tally, Span)]| of.iter().map(point).collect();
    History { seconds: points(&h.seconds), minutes: points(&h.minutes), ten_minutes: points(&h.ten_minutes) }
}
