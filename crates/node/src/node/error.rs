//! Errors of the node, for the operator: what, where, what to do.

use crate::config::{BadConfig, ConfigErrors};
use plimsoll_store::MetaError;
use std::fmt;

/// An operation of the node that failed.
#[derive(Debug)]
pub enum NodeError {
    /// The request makes no sense, or names what isn't there.
    Refused(String),
    /// There is no such thing.
    NotFound(String),
    /// It exists already, or is in use.
    Conflict(String),
    /// Something below failed.
    Failed(String),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NodeError::Refused(what)
        | NodeError::NotFound(what)
        | NodeError::Conflict(what)
        | NodeError::Failed(what)) = self;
        f.write_str(what)
    }
}
impl std::error::Error for NodeError {}

impl From<BadConfig> for NodeError {
    fn from(e: BadConfig) -> NodeError {
        NodeError::Refused(e.to_string())
    }
}

impl From<ConfigErrors> for NodeError {
    fn from(e: ConfigErrors) -> NodeError {
        NodeError::Refused(e.to_string())
    }
}

impl NodeError {
    /// The same, saying first what it's about, unless it does.
    pub(super) fn about(self, subject: &str) -> NodeError {
        self.say(|what| if what.contains(subject) { what } else { format!("{subject}: {what}") })
    }

    /// The same, with the place in the configuration and the key with its value before it.
    pub(super) fn at(self, place: &str, key: &str) -> NodeError {
        self.say(|what| format!("{place}: {key}: {what}"))
    }

    /// The same, of a change of several keys: which of them were changed before, and which were being changed. A failure leaves open how far
    /// the latter came, a refusal doesn't.
    pub(super) fn after(self, done: &[&str], under_way: &[&str]) -> NodeError {
        let is_open = matches!(self, NodeError::Failed(_)) && !under_way.is_empty();
        self.say(|mut what| {
            if !done.is_empty() {
                what += &format!("; these keys were changed before: {}", done.join(", "));
            }
            if is_open {
                let keys = under_way.join(", ");
                what += &format!("; this one may have been changed: {keys} (`plimsoll volume show` after a restart)");
            }
            what
        })
    }

    /// The same, with what is to be known besides.
    pub(super) fn with(self, more: &str) -> NodeError {
        self.say(|what| format!("{what}; {more}"))
    }

    fn say(self, say: impl FnOnce(String) -> String) -> NodeError {
        match self {
            NodeError::Refused(what) => NodeError::Refused(say(what)),
            NodeError::NotFound(what) => NodeError::NotFound(say(what)),
            NodeError::Conflict(what) => NodeError::Conflict(say(what)),
            NodeError::Failed(what) => NodeError::Failed(say(what)),
        }
    }
}

pub(super) type Result<T> = std::result::Result<T, NodeError>;

pub(super) fn failed(e: impl fmt::Display) -> NodeError {
    NodeError::Failed(e.to_string())
}

/// Runs a change of the store where waiting for the device hurts nobody.
pub(super) async fn blocking<T: Send + 'static>(
    f: impl FnOnce() -> std::result::Result<T, MetaError> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(f).await.map_err(failed)?.map_err(of_store)
}

/// Converts a refusal of the store, by whose fault it is.
pub(super) fn of_store(e: MetaError) -> NodeError {
    let text = e.to_string();
    match e {
        MetaError::Shrink { .. } | MetaError::Record(_) => NodeError::Refused(text),
        MetaError::UnknownVolume { .. } | MetaError::UnknownTenant { .. } => NodeError::NotFound(text),
        MetaError::NameTaken { .. }
        | MetaError::TenantInUse { .. }
        | MetaError::NoSpace { .. }
        | MetaError::Fragmented { .. }
        | MetaError::Full { .. }
        | MetaError::TooMany { .. } => NodeError::Conflict(text),
        _ => NodeError::Failed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_keys_that_were_changed_before_it() {
        let failed = || NodeError::Failed("the device failed".into());
        assert_eq!(failed().after(&[], &[]).to_string(), "the device failed");
        let said = failed().after(&["rename", "cache"], &["size_bytes"]).to_string();
        let open = "this one may have been changed: size_bytes (`plimsoll volume show` after a restart)";
        assert_eq!(said, format!("the device failed; these keys were changed before: rename, cache; {open}"));
        assert!(matches!(failed().after(&["rename"], &[]), NodeError::Failed(_)));
        let refused = NodeError::Conflict("no space".into()).after(&[], &["size_bytes"]);
        assert_eq!(refused.to_string(), "no space", "nothing was changed");
    }
}
