//! Mistakes that tests plant, to see that their oracles find them.
//!
//! Each undoes a bound on what a client can take of the node, or a step that a layer's data depend on. Only builds with debug assertions have them.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// A permit comes back when its request is done, not when its answer has been sent.
    PermitsUntilDone,
    /// The block of a payload whose client has gone is lost.
    PayloadsLost,
    /// A payload that has come enters a stack that is full.
    StackOverfilled,
    /// No client is disconnected for a payload that doesn't arrive.
    PayloadsForEver,
    /// Block status is asked on the pool's thread, of the whole range.
    StatusOnPool,
    /// The oldest client in its handshake gives way, whatever it has sent.
    OldestGivesWay,
    /// Connections have nothing of their own of their tenant's permits.
    NothingOwn,
    /// Long zeroes, trims and prefetches go through the stack in one part.
    RangesWhole,
    /// Bands don't reset a zone before they write it.
    ZonesUnreset,
}

/// True if the test that runs this process plants the mistake, by its name in `PLIMSOLL_TEST_MISTAKE`.
#[cfg(debug_assertions)]
pub fn is(mistake: Mistake) -> bool {
    use std::sync::OnceLock;
    static ASKED: OnceLock<Option<String>> = OnceLock::new();
    let asked = ASKED.get_or_init(|| std::env::var("PLIMSOLL_TEST_MISTAKE").ok());
    asked.as_ref().is_some_and(|name| *name == format!("{mistake:?}"))
}

/// Never: this build has none.
#[cfg(not(debug_assertions))]
pub const fn is(_: Mistake) -> bool {
    false
}
