//! Room for payloads that were announced and have no permit yet.

use super::held::OWN;

/// Bytes of a tenant's announced payloads.
#[derive(Debug, Default)]
pub struct Room {
    /// All of them.
    announced: u64,
    /// Those of payloads that are larger than a connection's own.
    shared: u64,
}

impl Room {
    /// Keeps room for a payload, if `bytes_max` has any for it. One larger than `bytes_max` gets it alone, one of at most
    /// [`OWN`]'s bytes always.
    pub fn take(&mut self, bytes: u64, bytes_max: u64) -> bool {
        let own = bytes <= OWN.bytes;
        let fits = own || self.shared == 0 || self.shared.saturating_add(bytes) <= bytes_max;
        if fits {
            self.announced += bytes;
            self.shared += if own { 0 } else { bytes };
        }
        fits
    }

    /// Gives a payload's room back.
    ///
    /// # Panics
    /// If none is out.
    pub fn give(&mut self, bytes: u64) {
        let shared = if bytes <= OWN.bytes { 0 } else { bytes };
        for (of, bytes) in [(&mut self.announced, bytes), (&mut self.shared, shared)] {
            *of = of.checked_sub(bytes).expect("a payload's room was given back twice");
        }
    }

    /// Bytes of all announced payloads.
    pub fn bytes(&self) -> u64 {
        self.announced
    }
}
