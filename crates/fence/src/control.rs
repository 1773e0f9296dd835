//! Messages that the fence understands.

use plimsoll_base::Span;
use plimsoll_stack::Message;
use serde::{Deserialize, Serialize};

/// A setting that changes while time is fenced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum FenceControl {
    /// From the end of the running slot on there are this many slots of this length.
    Slots {
        /// Slots in a rotation.
        slots: u32,
        /// Length of each.
        slot: Span,
    },
}

impl Message for FenceControl {
    const LAYER: &'static str = "fence";
}

/// A volume's terms, as far as the fence is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct FenceTerms {
    /// Time slots of its own; 0: it shares those that are left.
    pub slots: u32,
}

impl Message for FenceTerms {
    const LAYER: &'static str = "fence";
}
