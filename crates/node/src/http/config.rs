//! `GET /v1/config`, `GET /v1/pools/{name}/backup`: what an operator keeps outside of the node. Only those who may change read them.

use super::api::{ConfigStatus, DriftStatus};
use super::{ApiError, Shared};
use crate::node::Drift;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The configuration as it is served, and its drift from the file.
pub(super) async fn show(State(control): Shared) -> Result<Json<ConfigStatus>, ApiError> {
    let failed = |e: &dyn std::fmt::Display| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, e.to_string());
    let node = control.node.clone();
    let effective = tokio::task::spawn_blocking(move || node.effective()).await.map_err(|e| failed(&e))?;
    let effective = effective.map_err(|e| failed(&e))?;
    let shown = |d: Drift| {
        let why = if d.unread { "unread" } else { "live" };
        DriftStatus { section: d.section, key: d.key, file: d.file, served: d.served, why: why.into() }
    };
    Ok(Json(ConfigStatus {
        file: effective.file.display().to_string(),
        toml: effective.toml,
        drift: effective.drift.into_iter().map(shown).collect(),
        fault: effective.fault,
    }))
}

/// A backup of a pool's metadata.
pub(super) async fn backup(State(control): Shared, Path(name): Path<String>) -> Result<Response, ApiError> {
    let text = control.node.backup(&name).await.map_err(|e| ApiError::from(e).at(format!("pool `{name}`")))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], text).into_response())
}
