//! Messages that the cores understand.

use plimsoll_base::Span;
use plimsoll_stack::Message;
use serde::{Deserialize, Serialize};

/// A setting that changes while cores are handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CoresControl {
    /// QWin's thresholds of slack, the lower one not above the higher one.
    Slack {
        /// `THRESH_LOW`.
        low: Span,
        /// `THRESH_HIGH`.
        high: Span,
        /// `THRESH_WIN`: windows from one look to the next, at least 1.
        poll_windows: u64,
    },
}

impl Message for CoresControl {
    const LAYER: &'static str = "cores";
}

/// A tenant's part where a policy doesn't work it out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Allotment {
    /// Cores of its own under a static partition; 0: one.
    pub cores: u32,
    /// Requests a second that it has at least under mClock; 0: none is reserved.
    pub reservation: u64,
    /// Requests a second that it has at most under mClock; 0: no limit.
    pub limit: u64,
}

impl Message for Allotment {
    const LAYER: &'static str = "cores";
}

impl Allotment {
    /// Nothing is allotted.
    pub const NONE: Allotment = Allotment { cores: 0, reservation: 0, limit: 0 };
}
