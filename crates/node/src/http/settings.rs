//! A pool's live settings: `GET` and `PATCH /v1/pools/{name}/settings`.

use super::change::{change, parse};
use super::{ApiError, Shared};
use crate::parts::settings::SettingView;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use std::collections::BTreeMap;

pub(super) async fn show(State(control): Shared, Path(name): Path<String>) -> Result<Json<Vec<SettingView>>, ApiError> {
    let settings = control.node.settings(&name).map_err(|e| ApiError::from(e).at(format!("pool `{name}`")))?;
    Ok(Json(settings))
}

/// The body has values by key; a setting that is absent stays.
pub(super) async fn patch(
    State(control): Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<Vec<SettingView>>, ApiError> {
    let wanted: BTreeMap<String, u64> = parse(&uri, &headers, &body)?;
    let owned = name.clone();
    let changed = change(&control.node, |node| async move { node.change_settings(&owned, wanted).await });
    changed.await.map_err(|e| e.at(format!("pool `{name}`")))?;
    show(State(control), Path(name)).await
}
