//! The configuration as it is served.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/config`: the configuration as it is served.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ConfigStatus {
    /// The configuration's file; `(embedded default)` if the node was started with `--data`.
    pub file: String,
    /// The configuration as it is served, with live changes and absolute paths.
    pub toml: String,
    /// Its differences from the file.
    pub drift: Vec<DriftStatus>,
    /// Reason for which the file can't be compared with; `drift` is then from what was last read of it.
    pub fault: Option<String>,
}

/// A key that isn't served as the file has it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DriftStatus {
    /// Section: `tenant web`, `listen`.
    pub section: String,
    /// Key within the section; empty for the whole section.
    pub key: String,
    /// Its value in the file, if it's there.
    pub file: Option<String>,
    /// Its value as it is served, if it has one.
    pub served: Option<String>,
    /// `live`: it was changed live. `unread`: the file was changed since it was read.
    pub why: String,
}
