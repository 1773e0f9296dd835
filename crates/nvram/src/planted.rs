//! Mistakes to plant, which the crash tests must find.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Moved records are forgotten before the device was flushed.
    ForgetsEarly,
    /// The NVRAM's content is not looked at when starting.
    Ignored,
    /// The checksum of a record is ignored.
    Unchecked,
    /// A record that was acknowledged, and that is corrupt, is taken for one that was never written.
    GapsTrusted,
    /// Only the first copy of the ring is read.
    ReadOnce,
}

impl Planted {
    /// Returns true if a test has planted this mistake. Without the feature `mutants` it never is, and its code is not built.
    pub const fn is_in(self, planted: Option<Planted>) -> bool {
        cfg!(any(test, feature = "mutants")) && matches!(planted, Some(p) if p as u8 == self as u8)
    }

    /// All of them.
    pub const ALL: [Planted; 5] =
        [Planted::ForgetsEarly, Planted::Ignored, Planted::Unchecked, Planted::GapsTrusted, Planted::ReadOnce];
}
