//! What flash that the host manages shows of its inside, and what predicts waits from it (MittOS §4.3).
//!
//! A model of such a device implements [`FlashInside`], a predictor [`FlashPredictor`]; neither knows the other.

use plimsoll_base::{Confidence, IoHead, Span, Time};

/// What one unit (a chip, or what in it works alone) has to do.
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
    /// What a unit has to do.
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
    /// How sure that is.
    pub confidence: Confidence,
}

/// What a predictor rests on, for who watches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Knowledge {
    /// Completions that it has learned from.
    pub learned: u64,
    /// Did it start from a measured profile?
    pub profiled: bool,
    /// How sure it is by now.
    pub confidence: Confidence,
}

/// Predicts from the inside; told of what becomes of requests, so that it learns.
pub trait FlashPredictor: Send {
    /// What would `head` wait if it came at `at`? Changes nothing.
    fn predict(&self, inside: &dyn FlashInside, at: Time, head: &IoHead) -> Predicted;
    /// `head` goes to the device now, and is called `token` until it has ended.
    fn submitted(&mut self, inside: &dyn FlashInside, now: Time, head: &IoHead, token: u64);
    /// It has ended.
    fn ended(&mut self, now: Time, token: u64);
    /// What its predictions rest on.
    fn knowledge(&self) -> Knowledge;
}
