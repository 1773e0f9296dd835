//! `/v1/volumes/{name}/inject`: faults in a live volume's requests, for users who test how their clients take them.

use super::api::{InjectFault, InjectOnly, InjectSpec, InjectStatus};
use super::change::{change, parse, span_of_us};
use super::{ApiError, Shared};
use crate::config::BadConfig;
use crate::directory::Directory;
use crate::engine::{Fault, InjectTerms, InjectView, Only};
use crate::parts::PoolView;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use plimsoll_base::Span;

/// An injection lasts an hour at most: whoever forgets it isn't hurt for longer.
const LASTS_MAX: Span = Span::from_secs(3600);
/// Longer than any client's patience.
const TIME_MAX: Span = Span::from_secs(60);

/// The terms of an injection, if they make sense.
fn terms(spec: &InjectSpec) -> Result<InjectTerms, BadConfig> {
    let time = |name: &str, us: Option<u64>| match us.map(span_of_us) {
        None => Err(BadConfig::new(format!("this fault needs `{name}`"))),
        Some(time) if time > Span::ZERO && time <= TIME_MAX => Ok(time),
        Some(time) => Err(BadConfig::new(format!("`{name}` of {time} is not between 1 us and {TIME_MAX}"))),
    };
    let fault = match spec.fault {
        InjectFault::Latency => Fault::Latency(time("latency_us", spec.latency_us)?),
        InjectFault::Busy => Fault::Busy(time("wait_us", spec.wait_us)?),
        InjectFault::Errors => Fault::Errors,
        InjectFault::Stall => Fault::Stall,
    };
    if spec.latency_us.is_some() && !matches!(fault, Fault::Latency(_)) {
        return Err(BadConfig::new("`latency_us` is for the fault `latency`: take it out"));
    }
    if spec.wait_us.is_some() && !matches!(fault, Fault::Busy(_)) {
        return Err(BadConfig::new("`wait_us` is for the fault `busy`: take it out"));
    }
    if matches!(fault, Fault::Busy(_)) && spec.only == Some(InjectOnly::Writes) {
        return Err(BadConfig::new("writes aren't refused: `busy` is for reads"));
    }
    if !(1..=1000).contains(&spec.share_permille) {
        return Err(BadConfig::new(format!("share_permille {} is not between 1 and 1000", spec.share_permille)));
    }
    let lasts = span_of_us(spec.for_us);
    if lasts == Span::ZERO || lasts > LASTS_MAX {
        return Err(BadConfig::new(format!("{lasts} is not between 1 us and an hour: injecting ends by itself")));
    }
    let only = spec.only.map(|only| match only {
        InjectOnly::Reads => Only::Reads,
        InjectOnly::Writes => Only::Writes,
    });
    Ok(InjectTerms { fault, share_permille: spec.share_permille, only, lasts, seed: spec.seed })
}

/// Faults that are injected now.
pub fn injections(directory: &Directory, views: &[Option<PoolView>]) -> Vec<InjectStatus> {
    let of = |(n, view): (usize, &Option<PoolView>)| {
        let injections = view.as_ref().map_or(Vec::new(), |v| v.pool.injections.clone());
        injections.into_iter().map(move |i| status(directory.volume_name(n, i.key), &i))
    };
    views.iter().enumerate().flat_map(of).collect()
}

fn status(volume: String, i: &InjectView) -> InjectStatus {
    let (fault, latency, wait) = match i.terms.fault {
        Fault::Errors => (InjectFault::Errors, None, None),
        Fault::Busy(wait) => (InjectFault::Busy, None, Some(wait)),
        Fault::Latency(latency) => (InjectFault::Latency, Some(latency), None),
        Fault::Stall => (InjectFault::Stall, None, None),
    };
    let only = i.terms.only.map(|only| match only {
        Only::Reads => InjectOnly::Reads,
        Only::Writes => InjectOnly::Writes,
    });
    InjectStatus {
        volume,
        fault,
        latency_us: latency.map(Span::as_micros),
        wait_us: wait.map(Span::as_micros),
        share_permille: i.terms.share_permille,
        only,
        seed: i.terms.seed,
        left_us: i.left.as_micros(),
        seen: i.seen,
        hit: i.hit,
        held: i.held,
    }
}

/// An injection as a problem of the node's health: whoever looks for the reason of a fault finds it there.
pub fn problem(i: &InjectStatus) -> String {
    let ops = match (i.fault, i.only) {
        (InjectFault::Busy, _) => "reads with a deadline",
        (_, None) => "requests",
        (_, Some(InjectOnly::Reads)) => "reads",
        (_, Some(InjectOnly::Writes)) => "writes and flushes",
    };
    let what = match (i.fault, i.latency_us) {
        (InjectFault::Errors, _) => "fail".to_string(),
        (InjectFault::Busy, _) => "are refused".to_string(),
        (InjectFault::Latency, us) => format!("are answered {} later", span_of_us(us.unwrap_or(0))),
        (InjectFault::Stall, _) => "aren't answered".to_string(),
    };
    let (share, left) = (f64::from(i.share_permille) / 10.0, i.left_us.div_ceil(1_000_000));
    let stop = format!("`plimsoll inject {} --stop` ends it", i.volume);
    format!("volume `{}`: {share} % of its {ops} {what}, on purpose, for {left} s more: {stop}", i.volume)
}

pub(super) async fn show(State(control): Shared, Path(name): Path<String>) -> Result<Json<InjectStatus>, ApiError> {
    let views = control.node.pool_snapshots().await;
    let directory = control.node.directory.read().expect("no panic while held");
    let found = injections(&directory, &views).into_iter().find(|i| i.volume == name);
    let missing = || ApiError::missing("nothing is injected into it").at(format!("volume `{name}`"));
    found.map(Json).ok_or_else(missing)
}

pub(super) async fn begin(
    control: Shared,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Json<InjectStatus>, ApiError> {
    let spec: InjectSpec = parse(&uri, &headers, &body)?;
    let terms = terms(&spec).map_err(|e| ApiError::from(e).at(format!("volume `{name}`")))?;
    inject(&control, &name, Some(terms)).await?;
    show(control, Path(name)).await
}

pub(super) async fn end(control: Shared, Path(name): Path<String>) -> Result<StatusCode, ApiError> {
    inject(&control, &name, None).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn inject(State(control): &Shared, name: &str, terms: Option<InjectTerms>) -> Result<(), ApiError> {
    let owned = name.to_string();
    let changed = change(&control.node, |node| async move { node.inject(&owned, terms).await });
    changed.await.map_err(|e| e.at(format!("volume `{name}`")))
}
