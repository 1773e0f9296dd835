//! Errors.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Every error's body.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorText,
}

/// An error, for people.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorText {
    /// The fault.
    pub what: String,
    /// Place.
    #[serde(rename = "where", default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// The remedy.
    #[serde(rename = "do", default, skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}
