//! Messages that the logs understand.

use plimsoll_stack::Message;
use serde::{Deserialize, Serialize};

/// An operator's order, or a setting that changes while the logs serve.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum LogsControl {
    /// Write all logged data back to their places.
    Checkpoint,
    /// Log writes of up to this many bytes (Manylogs' LoggedWriteSize).
    LoggedWriteBytes(u64),
}

impl Message for LogsControl {
    const LAYER: &'static str = "logs";
}
