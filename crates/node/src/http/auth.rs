//! Access of peers to the control API.
//!
//! | peer | reads | changes |
//! |---|---|---|
//! | unix socket: root or the node's user | yes | yes |
//! | unix socket: other users | no | no |
//! | TCP from this host, asked for as `localhost` or by address | yes; with the token if `control.local_reads` is false | with the token |
//! | the same, the configuration, backups and images | with the token | with the token |
//! | TCP from elsewhere | with the token | with the token |
//!
//! The page, its description of the API and `/healthz` are open to all over TCP. They report nothing about tenants: a peer that may not
//! read gets outages by name, and the number of other problems.

use super::{ApiError, BODY_BYTES_MAX, Control, Token};
use crate::events::{Kind, Severity};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Peer of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    /// On the unix socket, with this user id.
    Unix(u32),
    /// Over TCP.
    Tcp(SocketAddr),
}

/// Returns whether a peer may read status, metrics and traces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MayRead(pub bool);

const OPEN: [&str; 3] = ["/", "/healthz", "/v1/openapi.json"];

/// Lets a request through or refuses it.
pub async fn check(State(control): State<Arc<Control>>, mut request: Request, next: Next) -> Response {
    let peer = *request.extensions().get::<Peer>().expect("every connection has its peer");
    let (token, local_reads) = (control.token.as_ref(), control.local_reads);
    let reads = may(token, local_reads, peer, &Method::GET, "/v1/status", request.headers()).is_ok();
    request.extensions_mut().insert(MayRead(reads));
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let asked = request.uri().path_and_query().map_or_else(|| path.clone(), ToString::to_string);
    let events = &control.node.events;
    match may(token, local_reads, peer, &method, &path, request.headers()) {
        Ok(()) if matches!(method, Method::GET | Method::HEAD) => next.run(request).await,
        Ok(()) if control.orders.is_ending() && path != "/v1/drain" => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the node is ending: nothing can be changed any more")
                .into_response()
        }
        Ok(()) => {
            // Bodies are at most as long as the router takes, and a change is rare.
            let (parts, body) = request.into_parts();
            let Ok(body) = axum::body::to_bytes(body, BODY_BYTES_MAX).await else {
                let what = format!("the body is longer than {BODY_BYTES_MAX} bytes, or broke off");
                return ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, what).at(path).into_response();
            };
            let said = String::from_utf8_lossy(&body).into_owned();
            let answer = next.run(Request::from_parts(parts, body.into())).await;
            let (severity, ended) = match answer.status() {
                code if code.is_success() => (Severity::Info, String::new()),
                code => (Severity::Warning, format!(": refused with {}", code.as_u16())),
            };
            let what = format!("{method} {asked} {said}").trim_end().to_string() + &ended;
            events.add(Kind::Change, severity, Some(peer.to_string()), what);
            answer
        }
        Err(e) => {
            let what = format!("{method} {path}: {}", e.what());
            events.add(Kind::Refusal, Severity::Warning, Some(peer.to_string()), what);
            e.into_response()
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unix(uid) => write!(f, "uid:{uid}"),
            Peer::Tcp(address) => write!(f, "{address}"),
        }
    }
}

fn may(
    token: Option<&Token>,
    local_reads: bool,
    peer: Peer,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
) -> Result<(), ApiError> {
    let reads = matches!(*method, Method::GET | Method::HEAD) && !is_private(path);
    let from = match peer {
        Peer::Unix(uid) if uid == 0 || uid == rustix::process::geteuid().as_raw() => return Ok(()),
        Peer::Unix(uid) => {
            let what = format!("the control socket is for root and the node's own user, not for uid {uid}");
            return Err(ApiError::new(StatusCode::FORBIDDEN, what));
        }
        Peer::Tcp(from) => from,
    };
    let is_local = || from.ip().to_canonical().is_loopback() && host_is_plain(headers);
    if reads && (OPEN.contains(&path) || (local_reads && is_local())) {
        return Ok(());
    }
    let shown = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()?.strip_prefix("Bearer "));
    match (token, shown) {
        (Some(token), Some(shown)) if token.is(shown.trim()) => Ok(()),
        (None, _) => Err(unauthorized("over TCP this takes a token, and the node has none")
            .todo("set control.token_file in the configuration, or use the control unix socket")),
        (Some(_), None) => Err(unauthorized("this takes the token")
            .todo("send `Authorization: Bearer TOKEN`, with the content of control.token_file")),
        (Some(_), Some(_)) => {
            Err(unauthorized("this isn't the token").todo("send the content of control.token_file as it is now"))
        }
    }
}

/// Names of peers, paths, maps of devices, and questions to a cluster: for those who may change.
fn is_private(path: &str) -> bool {
    let of_pool = || path.ends_with("/backup") || path.ends_with("/image");
    path == "/v1/config" || (path.starts_with("/v1/pools/") && of_pool())
}

fn unauthorized(what: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, what)
}

/// True if the peer asked for this host by address or as `localhost`. A web page that gets a browser here under a name of its own
/// (DNS rebinding) is not a user on this host.
fn host_is_plain(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST) else { return true };
    let Ok(host) = host.to_str() else { return false };
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(""),
        None => host.split(':').next().unwrap_or(""),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCAL: &str = "127.0.0.1:1";
    const MAPPED: &str = "[::ffff:127.0.0.1]:1";
    const REMOTE: &str = "10.0.0.9:1";

    #[test]
    fn who_may_what() {
        let dir = tempfile::tempdir().unwrap();
        let token = Token::load_or_make(&dir.path().join("token")).unwrap();
        let allowed = |token: Option<&Token>, peer: Peer, method: Method, path: &str, shown: Option<&Token>| {
            let mut headers = HeaderMap::new();
            if let Some(shown) = shown {
                headers.insert(header::AUTHORIZATION, format!("Bearer {}", shown.as_str()).parse().unwrap());
            }
            let with = |local_reads| may(token, local_reads, peer, &method, path, &headers).is_ok();
            let open = OPEN.contains(&path) && matches!(method, Method::GET);
            assert!(
                with(false) == (with(true) && (open || shown.is_some() || matches!(peer, Peer::Unix(_)))),
                "without local reads all but the open pages take the token: {path}"
            );
            with(true)
        };
        let tcp = |from: &str| Peer::Tcp(from.parse().unwrap());
        let me = rustix::process::geteuid().as_raw();
        for peer in [Peer::Unix(0), Peer::Unix(me)] {
            assert!(allowed(None, peer, Method::DELETE, "/v1/volumes/x", None));
        }
        assert!(!allowed(Some(&token), Peer::Unix(me + 1), Method::GET, "/v1/status", Some(&token)));
        for (from, reads) in [(LOCAL, true), (MAPPED, true), (REMOTE, false)] {
            for path in ["/", "/healthz", "/v1/openapi.json"] {
                assert!(allowed(None, tcp(from), Method::GET, path, None), "{from} {path}");
            }
            for path in ["/metrics", "/v1/status", "/v1/traces", "/v1/nothing"] {
                assert_eq!(allowed(Some(&token), tcp(from), Method::GET, path, None), reads, "{from} {path}");
                assert!(allowed(Some(&token), tcp(from), Method::GET, path, Some(&token)), "{from} {path}");
            }
            for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
                assert!(!allowed(None, tcp(from), method.clone(), "/", None), "{from} {method}");
                assert!(!allowed(None, tcp(from), method.clone(), "/", Some(&token)), "{from} {method}");
                assert!(!allowed(Some(&token), tcp(from), method.clone(), "/", None), "{from} {method}");
                assert!(allowed(Some(&token), tcp(from), method.clone(), "/", Some(&token)), "{from} {method}");
            }
        }
    }

    #[test]
    fn only_addresses_and_localhost_are_plain() {
        let with = |host: &str| HeaderMap::from_iter([(header::HOST, host.parse().unwrap())]);
        for plain in ["127.0.0.1:7700", "localhost", "LocalHost:1", "[::1]:7700", "10.0.0.1"] {
            assert!(host_is_plain(&with(plain)), "{plain}");
        }
        for other in ["evil.example", "localhost.evil.example:7700", "127.0.0.1.evil.example", ""] {
            assert!(!host_is_plain(&with(other)), "{other}");
        }
        assert!(host_is_plain(&HeaderMap::new()));
    }
}
