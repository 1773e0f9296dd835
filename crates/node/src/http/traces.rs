//! `GET /v1/traces`

use super::Shared;
use super::api::{Trace, TracePart};
use crate::directory::Directory;
use axum::Json;
use axum::extract::State;
use plimsoll_base::{Outcome, Span, Time};

/// The newest traces of every pool.
pub async fn list(State(control): Shared) -> Json<Vec<Trace>> {
    let views = control.node.snapshots().await;
    let traces = control.node.traces().await;
    let directory = control.node.directory.read().expect("no panic while held");
    let mut all = Vec::new();
    for (number, pool, view) in control.node.pools.with(&views) {
        let Some(traces) = traces.get(number) else { continue };
        let layers: Vec<&'static str> = view.iter().flat_map(|v| v.pool.layers.iter().map(|(name, _)| *name)).collect();
        all.extend(traces.iter().map(|t| describe(t, (number, &pool.name), &layers, &directory)));
    }
    Json(all)
}

fn describe(
    t: &crate::engine::Trace,
    (number, pool): (usize, &str),
    layers: &[&'static str],
    directory: &Directory,
) -> Trace {
    let volume = directory.volumes.values().find(|v| v.pool == number && v.key == t.volume);
    let tenant = directory.tenants.iter().find(|(_, known)| known.id == t.tenant);
    let after = |at: Time| at.is_set().then(|| at.since(t.arrived_at).as_micros());
    let (outcome, error) = match t.outcome {
        None => ("under way", None),
        Some(Outcome::Done) => ("done", None),
        Some(Outcome::Busy { .. }) => ("busy", None),
        Some(Outcome::Failed(e)) => ("failed", Some(e.to_string())),
    };
    let part =
        |(layer, wait): (&&'static str, &Span)| TracePart { layer: layer.to_string(), wait_us: wait.as_micros() };
    Trace {
        pool: pool.to_string(),
        number: t.number,
        volume: volume.map(|v| v.name.clone()),
        tenant: tenant.map(|(name, _)| name.clone()),
        op: t.op.name().to_string(),
        offset: t.offset,
        len_bytes: t.len,
        arrived_us: t.arrived_at.as_nanos() / 1000,
        deadline_us: after(t.deadline),
        forecast_wait_us: t.forecast.wait.as_micros(),
        forecast_service_us: t.forecast.service.as_micros(),
        forecast_confidence: f64::from(t.forecast.confidence.0) / 1000.0,
        forecast_parts: layers.iter().zip(&t.forecast.parts).map(part).collect(),
        decision: if t.refused { "refused" } else { "accepted" }.to_string(),
        dispatched_us: after(t.dispatched_at),
        ended_us: after(t.ended_at),
        outcome: outcome.to_string(),
        error,
    }
}
