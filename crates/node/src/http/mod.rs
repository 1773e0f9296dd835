//! The control API, metrics and the dashboard, over HTTP.
//!
//! Reading is free to peers on this host. Changing anything takes the token, or the control unix socket, whose peers
//! are root and the node's own user. See `auth.rs` for who is let in, [`api`] for the words, `openapi.rs` for the
//! description of all of it.

pub mod api;
mod auth;
mod change;
mod config;
mod connections;
mod error;
mod events;
mod history;
mod inject;
mod listen;
mod openapi;
mod orders;
mod parts;
mod problems;
mod prometheus;
mod settings;
mod status;
mod token;
mod traces;

pub use events::watch_problems;
pub use listen::{serve_tcp, serve_unix};
pub use orders::{Order, Orders};
pub use token::Token;

use crate::node::Node;
use crate::parts::PARTS;
use crate::serve::Bound;
use auth::MayRead;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Extension, Json, Router};
use error::ApiError;
use problems::Problem;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Longer bodies are refused: the longest lawful one, a tenant with 16 objectives, has about 1 KiB.
const BODY_BYTES_MAX: usize = 64 << 10;

/// State that handlers share.
pub struct Control {
    /// The node.
    pub node: Arc<Node>,
    /// Address to listen on.
    pub bound: Bound,
    /// Token that changes over TCP need; without one they are refused.
    pub token: Option<Token>,
    /// Peers on this host read over TCP without it.
    pub local_reads: bool,
    /// Instant at which the node began to serve.
    pub started: Instant,
    /// The health that was last found out.
    pub last_problems: LastProblems,
    /// Takes orders that concern the whole process.
    pub orders: Orders,
}

/// Time for which unauthenticated peers get the same health: computing it takes the pools' time.
const PROBLEMS_KEPT_FOR: Duration = Duration::from_secs(1);

/// The problems that were last found, and when looking for them began.
#[derive(Debug, Default)]
pub struct LastProblems(tokio::sync::Mutex<Option<(Instant, Vec<Problem>)>>);

type Shared = State<Arc<Control>>;

/// Each route with its handlers. The API's description has the same ones; a test compares.
fn routes() -> Vec<(String, MethodRouter<Arc<Control>>)> {
    let fixed = [
        ("/", get(dashboard)),
        ("/healthz", get(healthz)),
        ("/metrics", get(metrics)),
        ("/v1/openapi.json", get(openapi)),
        ("/v1/status", get(status)),
        ("/v1/traces", get(traces::list)),
        ("/v1/volumes", get(change::list_volumes).post(change::create_volume)),
        ("/v1/volumes/{name}", get(change::show_volume).patch(change::change_volume).delete(change::delete_volume)),
        ("/v1/volumes/{name}/inject", get(inject::show).put(inject::begin).delete(inject::end)),
        ("/v1/tenants", get(change::list_tenants)),
        ("/v1/volumes/{name}/history", get(history::of_volume)),
        (
            "/v1/tenants/{name}",
            get(change::show_tenant).put(change::set_tenant).patch(change::change_tenant).delete(change::remove_tenant),
        ),
        ("/v1/tenants/{name}/history", get(history::of_tenant)),
        ("/v1/connections", get(connections::list).delete(connections::close)),
        ("/v1/events", get(events::list)),
        ("/v1/config", get(config::show)),
        ("/v1/pools/{name}/backup", get(config::backup)),
        ("/v1/reload", post(orders::reload)),
        ("/v1/drain", post(orders::drain)),
        ("/v1/pools/{name}", delete(change::remove_pool)),
        ("/v1/pools/{name}/release", post(change::release_pool)),
        ("/v1/pools/{name}/take", post(orders::take_pool)),
        ("/v1/pools/{name}/image", get(orders::pool_image)),
        ("/v1/pools/{name}/recover", post(change::recover_pool)),
        ("/v1/pools/{name}/settings", get(settings::show).patch(settings::patch)),
    ];
    let mut routes: Vec<_> = fixed.into_iter().map(|(path, answers)| (path.to_string(), answers)).collect();
    for part in PARTS.iter().copied() {
        let show = get(move |control: Shared, name: Path<String>| parts::show(part, control, name));
        routes.push((format!("/v1/pools/{{name}}/{}", part.name()), show));
        for action in part.actions() {
            let act = move |control: Shared, name: Path<String>, uri: Uri, headers: HeaderMap, body: Bytes| {
                parts::act(action, control, name, uri, headers, body)
            };
            routes.push((format!("/v1/pools/{{name}}/{}/{}", part.name(), action.name), post(act)));
        }
    }
    routes
}

/// The whole API.
pub fn router(control: Arc<Control>) -> Router {
    let mut router = Router::new();
    for (path, answers) in routes() {
        router = router.route(&path, answers);
    }
    router
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::no_method)
        .layer(axum::middleware::from_fn_with_state(control.clone(), auth::check))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(control)
}

async fn dashboard() -> Response {
    // Nothing from elsewhere: the page can't be made to load or send anything but this node's own.
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'";
    let headers = [(header::CONTENT_TYPE, "text/html; charset=utf-8"), (header::CONTENT_SECURITY_POLICY, policy)];
    (headers, include_str!("dashboard.html")).into_response()
}

async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], openapi::document().to_string()).into_response()
}

/// Finding problems out walks all exports on the pools' threads. So one request at a time does, and all that came meanwhile are
/// answered by the next one's findings.
async fn healthz(State(control): Shared, Extension(MayRead(may_read)): Extension<MayRead>) -> Response {
    let came = Instant::now();
    let mut last_problems = control.last_problems.0.lock().await;
    let is_new = |at: &Instant| if may_read { *at >= came } else { at.elapsed() < PROBLEMS_KEPT_FOR };
    if !last_problems.as_ref().is_some_and(|(at, _)| is_new(at)) {
        let at = Instant::now();
        *last_problems = Some((at, find_problems(&control).await));
    }
    let (_, problems) = last_problems.as_ref().expect("just found out");
    let (code, health) = health(problems, may_read);
    (code, Json(health)).into_response()
}

async fn find_problems(control: &Control) -> Vec<Problem> {
    let views = control.node.pool_snapshots().await;
    let directory = control.node.directory.read().expect("no panic while held");
    problems::problems(&control.node, &directory, &views)
}

/// The health of the node. Problems that aren't outages are listed for peers that may read, and counted for others.
fn health(problems: &[Problem], may_read: bool) -> (StatusCode, api::Health) {
    let is_out = problems.iter().any(|p| p.is_outage);
    let code = if is_out { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let (shown, kept_back): (Vec<_>, Vec<_>) = problems.iter().partition(|p| p.is_outage || may_read);
    let mut problems: Vec<String> = shown.into_iter().map(|p| p.text.clone()).collect();
    if !kept_back.is_empty() {
        problems.push(format!("{} further problems: `/v1/status` names them to those who may read", kept_back.len()));
    }
    (code, api::Health { healthy: problems.is_empty(), problems })
}

async fn metrics(State(control): Shared) -> Response {
    let views = control.node.snapshots().await;
    control.node.look_beneath().await;
    let text = prometheus::exposition(&control, &views);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

async fn status(State(control): Shared) -> Json<api::Status> {
    let views = control.node.snapshots().await;
    Json(status::status(&control, &views))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The methods of each path are compared against a running node.
    #[test]
    fn the_description_has_the_paths_that_there_are() {
        let doc = openapi::document();
        let described: BTreeSet<&str> = doc["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let routes = routes();
        let there: BTreeSet<&str> = routes.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(described, there);
    }
}
