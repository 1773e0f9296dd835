//! `GET /v1/events`, and the problems that become events.

use super::api::{EventStatus, EventsStatus};
use super::problems::problems;
use super::{ApiError, Shared};
use crate::events::{Event, KINDS, Kind, Severity};
use crate::node::Node;
use axum::Json;
use axum::extract::{Query, State};
use axum::http::Uri;
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

/// Makes events of problems that begin and end. Runs as long as the node.
pub async fn watch_problems(node: Arc<Node>) {
    let mut there: BTreeMap<String, Instant> = BTreeMap::new();
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
        node.events.settle();
        tokio::time::sleep(LOOK).await;
    }
}
