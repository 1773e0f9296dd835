//! `GET /v1/events`, and the problems that become events.

use super::api::{EventStatus, EventsStatus};
use super::problems::problems;
use super::{ApiError, Shared};
use crate::events::{Event, KINDS, Kind, Severity};
use crate::node::Node;
use crate::parts::{PoolView, logs};
use axum::Json;
use axum::extract::{Query, State};
use axum::http::Uri;
use plimsoll_base::{Time, bytes_text};
use plimsoll_logs::{CleanReport, Why};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Problems are looked for this often: promises are judged by minutes.
const LOOK: Duration = Duration::from_secs(2);
/// Events of one answer.
const ANSWER_MOST: usize = 1000;

/// The events that are wanted.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    #[serde(default)]
    after: u64,
    kind: Option<String>,
}

pub(super) async fn list(State(control): Shared, uri: Uri) -> Result<Json<EventsStatus>, ApiError> {
    let Query(filter) = Query::<Filter>::try_from_uri(&uri).map_err(|e| ApiError::bad(e.body_text()).at(uri.path()))?;
    let kind = filter.kind.as_deref();
    if let Some(kind) = kind.filter(|k| !KINDS.contains(k)) {
        return Err(ApiError::bad(format!("there is no kind `{kind}`; there are: {}", KINDS.join(", "))).at(uri.path()));
    }
    let (events, last) = control.node.events.after(filter.after, kind, ANSWER_MOST);
    let shown = |e: Event| EventStatus {
        number: e.number,
        unix_us: e.unix_us,
        kind: e.kind.name().into(),
        severity: e.severity.name().into(),
        who: e.who,
        what: e.what,
    };
    Ok(Json(EventsStatus { events: events.into_iter().map(shown).collect(), last }))
}

/// The event of an emptying of a pool's logs.
fn cleaned(pool: &str, r: &CleanReport) -> (Severity, String) {
    let (logs, why, bytes) = (r.logs, r.why.name(), bytes_text(r.write_bytes));
    let what = format!("pool `{pool}`: {logs} logs were emptied ({why}) in {}, {bytes} moved", r.took);
    // Clients' writes had to wait, or went to their places.
    (if r.why == Why::Full { Severity::Warning } else { Severity::Info }, what)
}

/// Makes events of problems that begin and end, and of logs that were emptied. Runs as long as the node.
pub async fn watch_problems(node: Arc<Node>) {
    let mut there: BTreeMap<String, Instant> = BTreeMap::new();
    let mut cleanings: BTreeMap<String, Time> = BTreeMap::new();
    loop {
        let views = node.pool_snapshots().await;
        let found = {
            let directory = node.directory.read().expect("no panic while held");
            problems(&node, &directory, &views)
        };
        let keys: BTreeSet<&String> = found.iter().map(|p| &p.key).collect();
        there.retain(|key, since| {
            let stays = keys.contains(key);
            if !stays {
                let what = format!("{key}: over after {} s", since.elapsed().as_secs());
                node.events.add(Kind::Problem, Severity::Info, None, what);
            }
            stays
        });
        for p in &found {
            if !there.contains_key(&p.key) {
                there.insert(p.key.clone(), Instant::now());
                let severity = if p.is_outage { Severity::Error } else { Severity::Warning };
                node.events.add(Kind::Problem, severity, None, p.text.clone());
            }
        }
        cleanings.retain(|name, _| node.serves_pool(name));
        for (_, p, view) in node.pools.with(&views) {
            let seen = view.and_then(|view: &PoolView| view.layers.of::<logs::Logs>());
            let Some(last) = seen.and_then(|seen| seen.counters.last_clean) else { continue };
            if cleanings.insert(p.name.clone(), last.begun_at) != Some(last.begun_at) {
                let (severity, what) = cleaned(&p.name, &last);
                node.events.add(Kind::Cleaning, severity, None, what);
            }
        }
        node.events.settle();
        tokio::time::sleep(LOOK).await;
    }
}
