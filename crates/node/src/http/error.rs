//! Errors as the API reports them: the fault, its place, the remedy.

use super::api::{ErrorBody, ErrorText};
use crate::config::BadConfig;
use crate::node::NodeError;
use axum::Json;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

/// See the module's documentation.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    text: ErrorText,
}

impl ApiError {
    pub fn new(status: StatusCode, what: impl Into<String>) -> ApiError {
        ApiError { status, text: ErrorText { what: what.into(), at: None, todo: None } }
    }

    /// The request is malformed or can't be satisfied.
    pub fn bad(what: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, what)
    }

    pub fn missing(what: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, what)
    }

    /// The fault, without place and remedy.
    pub fn what(&self) -> &str {
        &self.text.what
    }

    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> ApiError {
        let place = place.into();
        // Some errors begin with what they are about: it's said once.
        if let Some(rest) = self.text.what.strip_prefix(&place) {
            self.text.what = rest.trim_start_matches([':', ' ']).to_string();
        }
        self.text.at = Some(place);
        self
    }

    #[must_use]
    pub fn todo(mut self, what: impl Into<String>) -> ApiError {
        self.text.todo = Some(what.into());
        self
    }
}

impl From<NodeError> for ApiError {
    fn from(e: NodeError) -> ApiError {
        let status = match &e {
            NodeError::Refused(_) => StatusCode::BAD_REQUEST,
            NodeError::NotFound(_) => StatusCode::NOT_FOUND,
            NodeError::Conflict(_) => StatusCode::CONFLICT,
            NodeError::Failed(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        ApiError::new(status, e.to_string())
    }
}

impl From<BadConfig> for ApiError {
    fn from(e: BadConfig) -> ApiError {
        ApiError::bad(e.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(ErrorBody { error: self.text })).into_response()
    }
}

pub async fn no_route(uri: Uri) -> ApiError {
    ApiError::missing("there is nothing here").at(uri.path()).todo("see /v1/openapi.json for what there is")
}

pub async fn no_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} isn't possible here"))
        .at(uri.path())
        .todo("see /v1/openapi.json for what is")
}
