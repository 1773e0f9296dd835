//! Volumes, tenants and pools: what can be asked of one, and what can be changed.
//!
//! A change that has begun goes on when its client goes away: it runs in a task of its own.

use super::api::{
    NewVolume, ObjectiveSpec, PoolReleased, PoolRemoved, ReplicaChange, TenantChange, TenantSpec, TenantStatus,
    VolumeChange, VolumeStatus,
};
use super::{ApiError, Shared, status};
use crate::config::{BadConfig, check_jobs_max, class_of};
use crate::node::{DeadlineChange, Deletion, Node, NodeError, ReplicaStep, VolumePatch};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use plimsoll_base::{Class, Span};
use plimsoll_store::{DeadlineRecord, TenantLimits, TenantRecord, Uuid};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

type Result<T> = std::result::Result<T, ApiError>;

pub async fn list_volumes(State(control): Shared) -> Json<Vec<VolumeStatus>> {
    let views = control.node.snapshots().await;
    Json(status::status(&control, &views).volumes)
}

pub async fn show_volume(control: Shared, Path(name): Path<String>) -> Result<Json<VolumeStatus>> {
    let Json(all) = list_volumes(control).await;
    let found = all.into_iter().find(|v| v.name == name);
    let missing = || {
        ApiError::missing(format!("there is no volume `{name}`"))
            .todo("`plimsoll volume list` (GET /v1/volumes) lists them")
    };
    found.map(Json).ok_or_else(missing)
}

pub async fn create_volume(State(control): Shared, uri: Uri, headers: HeaderMap, body: Bytes) -> Result<Response> {
    let new: NewVolume = parse(&uri, &headers, &body)?;
    let name = new.name.clone();
    let created = change(&control.node, |node| async move {
        let record = plimsoll_store::NewVolume {
            name: new.name,
            size_bytes: new.size_bytes,
            tenant: new.tenant,
            read_only: new.read_only,
            description: None,
            cache: new.cache,
        };
        node.create_volume(&new.pool, record).await
    });
    created.await.map_err(|e| e.at(format!("volume `{name}`")))?;
    let shown = show_volume(State(control), Path(name)).await?;
    Ok((StatusCode::CREATED, shown).into_response())
}

pub async fn change_volume(
    State(control): Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<VolumeStatus>> {
    let wanted: VolumeChange = parse(&uri, &headers, &body)?;
    let owned = name.clone();
    let renamed = wanted.rename.clone().unwrap_or_else(|| name.clone());
    let replica = wanted.replica.map(|change| match change {
        ReplicaChange::CatchUp { attempt, trust } => ReplicaStep::CatchUp { attempt, copies: !trust },
        ReplicaChange::CaughtUp { attempt, add } => ReplicaStep::CaughtUp { attempt, add },
    });
    let patch = VolumePatch {
        rename: wanted.rename,
        replica,
        cache: wanted.cache,
        deadline: wanted.deadline_us.map(deadline_of_us),
        busy: wanted.busy,
        size_bytes: wanted.size_bytes,
    };
    let changed = change(&control.node, |node| async move { node.change_volume(&owned, patch).await });
    changed.await.map_err(|e| e.at(format!("volume `{name}`")))?;
    show_volume(State(control), Path(renamed)).await
}

/// Query of a deletion.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct DeletionQuery {
    disconnect: bool,
    declared: bool,
    uuid: Option<Uuid>,
}

pub async fn delete_volume(State(control): Shared, Path(name): Path<String>, uri: Uri) -> Result<StatusCode> {
    let query = Query::<DeletionQuery>::try_from_uri(&uri).map_err(|e| ApiError::bad(e.body_text()).at(uri.path()))?;
    let DeletionQuery { disconnect, declared, uuid } = query.0;
    let deletion = Deletion { disconnect, declared, uuid };
    let owned = name.clone();
    let deleted = change(&control.node, |node| async move { node.delete_volume(&owned, deletion).await });
    deleted.await.map_err(|e| e.at(format!("volume `{name}`")))?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn list_tenants(State(control): Shared) -> Json<Vec<TenantStatus>> {
    let views = control.node.snapshots().await;
    Json(status::status(&control, &views).tenants)
}

pub async fn show_tenant(control: Shared, Path(name): Path<String>) -> Result<Json<TenantStatus>> {
    let Json(all) = list_tenants(control).await;
    let found = all.into_iter().find(|t| t.name == name);
    let missing = || {
        ApiError::missing(format!("there is no tenant `{name}`"))
            .todo("`plimsoll tenant list` (GET /v1/tenants) lists them")
    };
    found.map(Json).ok_or_else(missing)
}

pub async fn set_tenant(
    State(control): Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<TenantStatus>> {
    let spec: TenantSpec = parse(&uri, &headers, &body)?;
    let place = format!("tenant `{name}`");
    let class = class_of(&spec.class, &percentiles(&spec.objectives), spec.weight, spec.slots)
        .map_err(|e| ApiError::from(e).at(place.clone()))?;
    check_jobs_max(spec.jobs_max).map_err(|e| ApiError::from(e).at(place.clone()))?;
    let limits = TenantLimits {
        in_flight_requests_max: spec.jobs_max,
        in_flight_bytes_max: spec.bytes_max,
        ..TenantLimits::default()
    };
    let wanted = DeadlineChange { deadline: spec.deadline_us.map(deadline_of_us), busy: spec.busy };
    let configured = control.node.promise_configured(&name);
    let deadline = control.node.tenant_deadline(&name, configured, wanted)?;
    let record = TenantRecord { name: name.clone(), class, limits, change: 0, deadline };
    change(&control.node, |node| async move { node.set_tenant(record).await }).await.map_err(|e| e.at(place))?;
    show_tenant(State(control), Path(name)).await
}

pub async fn change_tenant(
    State(control): Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<TenantStatus>> {
    let wanted: TenantChange = parse(&uri, &headers, &body)?;
    let owned = name.clone();
    let changed = change(&control.node, |node| async move {
        let deadline = |change| {
            let now = node.directory.read().expect("no panic while held").promises.tenant(&owned);
            node.tenant_deadline(&owned, now, change)
        };
        node.change_tenant(&owned, |record| with_change(record, &wanted, deadline)).await
    });
    changed.await.map_err(|e| e.at(format!("tenant `{name}`")))?;
    show_tenant(State(control), Path(name)).await
}

/// A tenant's record with a change of it.
fn with_change(
    now: TenantRecord,
    wanted: &TenantChange,
    deadline: impl Fn(DeadlineChange) -> std::result::Result<Option<DeadlineRecord>, BadConfig>,
) -> std::result::Result<TenantRecord, BadConfig> {
    check_jobs_max(wanted.jobs_max)?;
    let class = wanted.class.as_deref().unwrap_or(now.class.name());
    let same = class == now.class.name();
    // Objectives, weight and slots mean something in their own classes only.
    let (mut objectives, mut weight, mut slots) = (Vec::new(), None, None);
    match &now.class {
        Class::LatencyCritical { objectives: old, weight: w } if same => {
            objectives = old.iter().map(|o| (f64::from(o.percentile_bp) / 100.0, o.bound)).collect();
            weight = Some(*w);
        }
        Class::BestEffort { weight: w } if same => weight = Some(*w),
        Class::Fenced { slots: s } if same => slots = Some(*s),
        _ => {}
    }
    if let Some(new) = &wanted.objectives {
        objectives = percentiles(new);
    }
    Ok(TenantRecord {
        class: class_of(class, &objectives, wanted.weight.or(weight), wanted.slots.or(slots))?,
        limits: TenantLimits {
            in_flight_requests_max: wanted.jobs_max.or(now.limits.in_flight_requests_max),
            in_flight_bytes_max: wanted.bytes_max.or(now.limits.in_flight_bytes_max),
            ..now.limits
        },
        deadline: deadline(DeadlineChange { deadline: wanted.deadline_us.map(deadline_of_us), busy: wanted.busy })?
            .or(now.deadline),
        ..now
    })
}

fn percentiles(objectives: &[ObjectiveSpec]) -> Vec<(f64, Span)> {
    objectives.iter().map(|o| (o.percentile, span_of_us(o.within_us))).collect()
}

/// A deadline as it comes from outside; 0: none.
fn deadline_of_us(us: u64) -> Option<Span> {
    (us > 0).then(|| span_of_us(us))
}

/// Microseconds as they come from outside: however many, they don't overflow.
pub(super) fn span_of_us(us: u64) -> Span {
    Span::from_micros(1) * us
}

pub async fn remove_tenant(State(control): Shared, Path(name): Path<String>) -> Result<StatusCode> {
    let owned = name.clone();
    let removed = change(&control.node, |node| async move { node.remove_tenant(&owned).await });
    removed.await.map_err(|e| e.at(format!("tenant `{name}`")))?;
    Ok(StatusCode::NO_CONTENT)
}

pub async fn recover_pool(State(control): Shared, Path(name): Path<String>) -> Result<StatusCode> {
    let owned = name.clone();
    let recovered = change(&control.node, |node| async move { node.recover_pool(&owned).await });
    recovered.await.map_err(|e| e.at(format!("pool `{name}`")))?;
    tracing::warn!(pool = name, "the operator recovered the pool after a failed flush: flushes are served again");
    Ok(StatusCode::NO_CONTENT)
}

/// Query of a pool's removal.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RemovalQuery {
    disconnect: bool,
}

pub async fn remove_pool(State(control): Shared, Path(name): Path<String>, uri: Uri) -> Result<Json<PoolRemoved>> {
    let query = Query::<RemovalQuery>::try_from_uri(&uri).map_err(|e| ApiError::bad(e.body_text()).at(uri.path()))?;
    let (owned, disconnect) = (name.clone(), query.0.disconnect);
    let removed = change(&control.node, |node| async move { node.remove_pool(&owned, disconnect).await });
    let removed = removed.await.map_err(|e| e.at(format!("pool `{name}`")))?;
    Ok(Json(PoolRemoved {
        removed: removed.name,
        device: removed.device,
        volumes: removed.volumes,
        disconnected: removed.disconnected as u64,
    }))
}

/// Query of a pool's release.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct ReleaseQuery {
    disconnect: bool,
    write_back: bool,
}

/// `POST /v1/pools/{name}/release`. A write-back ends with its client; the release after it doesn't.
pub async fn release_pool(State(control): Shared, Path(name): Path<String>, uri: Uri) -> Result<Json<PoolReleased>> {
    let query = Query::<ReleaseQuery>::try_from_uri(&uri).map_err(|e| ApiError::bad(e.body_text()).at(uri.path()))?;
    let (owned, ReleaseQuery { disconnect, write_back }) = (name.clone(), query.0);
    let released = match write_back {
        true => control.node.write_back_and_release(&name, disconnect).await.map_err(ApiError::from),
        false => change(&control.node, |node| async move { node.release_pool(&owned, disconnect).await }).await,
    };
    let released = released.map_err(|e| e.at(format!("pool `{name}`")))?;
    Ok(Json(PoolReleased {
        released: released.name,
        device: released.device,
        volumes: released.volumes,
        disconnected: released.disconnected as u64,
        closed_in_us: released.closed_in.as_micros() as u64,
    }))
}

/// Carries out a change to its end, whether or not its client waits for it.
pub(super) async fn change<F, T: Send + 'static>(node: &Arc<Node>, f: impl FnOnce(Arc<Node>) -> F) -> Result<T>
where
    F: Future<Output = std::result::Result<T, NodeError>> + Send + 'static,
{
    let done = tokio::spawn(f(node.clone())).await;
    let broken = |e| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the change broke off: {e}"));
    done.map_err(broken)?.map_err(ApiError::from)
}

/// A JSON body; what is wrong with it, by line and column.
pub(super) fn parse<T: DeserializeOwned>(uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Result<T> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or("");
    if !kind.starts_with("application/json") {
        let what = format!("the body's content type is `{kind}`, not application/json");
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, what).at(uri.path()));
    }
    serde_json::from_slice(body).map_err(|e| {
        ApiError::bad(format!("the body isn't what is expected: {e}"))
            .at(uri.path())
            .todo("see /v1/openapi.json for its fields")
    })
}
