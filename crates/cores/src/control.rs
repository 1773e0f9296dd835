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

/// A report to the pool's owner.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CoresReport {
    /// Requests of these tenants, by number, miss an objective although best effort can't be to blame: it does nothing, or is at
    /// its least.
    Unkept {
        /// The tenants' numbers.
        tenants: Vec<u16>,
        /// The objective, and the time at its percentile.
        missed: Missed,
    },
    /// They no longer do.
    KeptAgain {
        /// The tenants' numbers.
        tenants: Vec<u16>,
    },
}

/// An objective that the device misses whatever best effort does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Missed {
    /// Its percentile, in hundredths of a percent.
    pub percentile_bp: u16,
    /// Its bound.
    pub within: Span,
    /// The response time at that percentile while best effort does nothing or is at its least.
    pub alone: Span,
}

impl Message for CoresReport {
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
