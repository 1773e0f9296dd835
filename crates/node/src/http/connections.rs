//! `GET /v1/connections`, `DELETE /v1/connections`

use super::api::{ConnectionStatus, Connections, Disconnected};
use super::status::promise_status;
use super::{ApiError, Shared};
use crate::node::Clients;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use serde::Deserialize;

/// Filter of connections.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    volume: Option<String>,
    tenant: Option<String>,
    peer: Option<String>,
}

impl Filter {
    fn of(uri: &Uri) -> Result<Filter, ApiError> {
        let Query(filter) = Query::try_from_uri(uri).map_err(|e| ApiError::bad(e.body_text()).at(uri.path()))?;
        Ok(filter)
    }

    fn clients(&self) -> Clients<'_> {
        Clients { volume: self.volume.as_deref(), tenant: self.tenant.as_deref(), peer: self.peer.as_deref() }
    }
}

/// Clients that are connected.
pub(super) async fn list(State(control): Shared, uri: Uri) -> Result<Json<Connections>, ApiError> {
    let (some, total) = control.node.connections(&Filter::of(&uri)?.clients()).await?;
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

/// Disconnects clients. All of them at once is no order that anybody gives by mistake: one filter must be named.
pub(super) async fn close(State(control): Shared, uri: Uri) -> Result<Json<Disconnected>, ApiError> {
    let filter = Filter::of(&uri)?;
    if let Filter { volume: None, tenant: None, peer: None } = filter {
        let what = "no volume, tenant or peer is named: this would disconnect every client";
        return Err(ApiError::bad(what).at(uri.path()).todo("name at least one of them"));
    }
    let node = control.node.clone();
    // It goes on if its client goes away.
    let closed = tokio::spawn(async move { node.disconnect(&filter.clients()).await }).await;
    let broken = |e| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the order broke off: {e}"));
    Ok(Json(Disconnected { closed: closed.map_err(broken)?? as u64 }))
}
