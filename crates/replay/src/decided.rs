//! One hash over every decision of the pools of one sample.
//!
//! An experiment's result has the hash of every decision of every pool that it simulated, so that a change that should change no
//! decision can be held against it. Pools add their hash when they end, on the thread that fills the sample; the runner takes it.

use plimsoll_stack::sim::EventHash;
use std::cell::Cell;

thread_local! {
    static HASH: Cell<EventHash> = const { Cell::new(EventHash::from(0)) };
}

/// Adds the decisions of a pool that ends.
pub fn note(decisions: u64) {
    HASH.with(|h| {
        let mut hash = h.get();
        hash.note([decisions]);
        h.set(hash);
    });
}

/// Returns the hash of the decisions recorded on this thread, and begins anew; 0 without any.
pub fn take() -> u64 {
    HASH.take().value()
}
