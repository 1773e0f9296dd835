//! Layers of a pool: `GET /v1/pools/{name}/{part}` and `POST /v1/pools/{name}/{part}/{action}`.

use super::change::{change, parse};
use super::{ApiError, Shared};
use crate::parts::{About, Action, AnyPart};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use serde_json::Value;

/// Shows a layer.
pub(super) async fn show(
    part: &'static dyn AnyPart,
    State(control): Shared,
    Path(name): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let missing = || {
        ApiError::missing(format!("there is no pool `{name}`")).todo("`plimsoll pool list` (GET /v1/status) lists them")
    };
    let (pool, _) = control.node.pools.named(&name).ok_or_else(missing)?;
    let views = control.node.snapshots().await;
    let gone = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("pool `{name}` doesn't answer"));
    let pool_view = views.get(pool).and_then(Option::as_ref).ok_or_else(gone)?;
    let directory = control.node.directory.read().expect("no panic while held");
    let about = About::new(&control.node, &directory, pool, pool_view);
    let none = || ApiError::missing(format!("pool `{name}` has no {}", part.name())).todo(part.how());
    Ok(Json(part.json(&about).ok_or_else(none)?))
}

/// Gives a layer an order. Answers when it has begun.
pub(super) async fn act(
    action: &'static Action,
    State(control): Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<StatusCode, ApiError> {
    let wanted: Value = match action.body {
        Some(_) => parse(&uri, &headers, &body)?,
        None => Value::Null,
    };
    let owned = name.clone();
    let done = change(&control.node, |node| async move { (action.act)(node, owned, wanted).await });
    done.await.map_err(|e| e.at(format!("pool `{name}`")))?;
    Ok(StatusCode::ACCEPTED)
}
