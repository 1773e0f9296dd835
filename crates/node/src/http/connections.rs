//! `GET /v1/connections`

use super::api::{ConnectionStatus, Connections};
use super::status::promise_status;
use super::{ApiError, Shared};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::Uri;
use serde::Deserialize;

/// Filter of connections.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    volume: Option<String>,
    tenant: Option<String>,
}

/// Clients that are connected.
pub(super) async fn list(State(control): Shared, uri: Uri) -> Result<Json<Connections>, ApiError> {
    let Query(filter) = Query::<Filter>::try_from_uri(&uri).map_err(|e| ApiError::bad(e.body_text()).at(uri.path()))?;
    let (some, total) = control.node.connections(filter.volume.as_deref(), filter.tenant.as_deref()).await?;
    let directory = control.node.directory.read().expect("no panic while held");
    let shown = |(pool, c): (usize, crate::engine::Connection)| {
        let volume = directory.volumes.values().find(|v| v.pool == pool && v.key == c.volume);
        let tenant = directory.tenants.iter().find(|(_, t)| t.id == c.tenant);
        ConnectionStatus {
            peer: c.peer.to_string(),
            volume: volume.map(|v| v.name.clone()),
            tenant: tenant.map(|(name, _)| name.clone()),
            promise: c.deadline.map(|(deadline, from)| promise_status((deadline, from, c.on_busy))),
            negotiated: c.promises,
            in_flight: c.in_flight,
            permit_wait_us: c.waits.map(|waited| waited.as_micros()),
            connected_us: c.connected.as_micros(),
        }
    };
    Ok(Json(Connections { connections: some.into_iter().map(shown).collect(), total: total as u64 }))
}
