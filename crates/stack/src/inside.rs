//! State inside host-managed flash, and predictors of waits from that state (MittOS §4.3).
//!
//! A model of such a device implements [`FlashInside`], a predictor implements [`FlashPredictor`]; neither knows the other.

use plimsoll_base::{Confidence, IoHead, Span, Time};

/// Outstanding work of one unit: a chip, or a part of a chip that works alone.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct UnitWork {
    /// Page reads, those of garbage collection included.
    pub reads: u32,
    /// Page programs by class of page, those of garbage collection included (MT-M15, MT-M18).
    pub programs: [u32; 9],
    /// Block erases.
    pub erases: u32,
    /// Since when it has been at what it does now.
    pub busy_since: Option<Time>,
}

/// Host-managed flash as its manager sees it.
pub trait FlashInside {
    /// Bytes of a page.
    fn page_bytes(&self) -> u32;
    /// Units over the device; consecutive pages go round them.
    fn units(&self) -> u32;
    /// Channel and unit of the page at `offset`.
    fn place(&self, offset: u64) -> (u32, u32);
    /// Returns the outstanding work of a unit.
    fn unit_work(&self, unit: u32) -> UnitWork;
    /// Page reads on all units of a channel that haven't ended: what needs the channel soon. A program has it for a moment of
    /// its long time, an erase never.
    fn channel_reads(&self, channel: u32) -> u32;
}

/// A request's forecast by one who sees the inside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Predicted {
    /// Until its own service starts.
    pub wait: Span,
    /// Its own service.
    pub service: Span,
    /// Confidence of these two.
    pub confidence: Confidence,
}

/// Knowledge that a predictor rests on, for operators and metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knowledge {
    /// Completions that it has learned from.
    pub learned: u64,
    /// True if the predictor started from a measured profile.
    pub profiled: bool,
    /// Present confidence.
    pub confidence: Confidence,
}

/// Predicts waits from the device's inner state, and learns from how requests end.
pub trait FlashPredictor: Send {
    /// Predicts the wait of `head` if it arrived at `at`. Changes nothing.
    fn predict(&self, inside: &dyn FlashInside, at: Time, head: &IoHead) -> Predicted;
    /// `head` goes to the device now, and is called `token` until it has ended.
    fn submitted(&mut self, inside: &dyn FlashInside, now: Time, head: &IoHead, token: u64);
    /// It has ended.
    fn ended(&mut self, now: Time, token: u64);
    /// Returns the knowledge that predictions rest on.
    fn knowledge(&self) -> Knowledge;
}
