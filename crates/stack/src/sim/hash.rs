//! A hash over events in their order: two runs that decide the same have the same one.

/// Hash of events in their order. Not for untrusted input.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EventHash(u64);

impl EventHash {
    /// A hash that continues from an earlier [`EventHash::value`].
    pub const fn from(value: u64) -> EventHash {
        EventHash(value)
    }

    /// Adds an event's words. Multiply and fold: order matters, and every bit of each word reaches the value.
    pub fn note<const N: usize>(&mut self, words: [u64; N]) {
        for w in words {
            let p = u128::from(self.0 ^ w ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f_u128;
            self.0 = (p as u64) ^ (p >> 64) as u64 ^ self.0.rotate_left(23);
        }
    }

    /// The hash of all events so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_and_every_bit_matter() {
        let of = |words: &[[u64; 2]]| {
            let mut hash = EventHash::default();
            words.iter().for_each(|w| hash.note(*w));
            hash.value()
        };
        let base = of(&[[1, 2], [3, 4]]);
        assert_ne!(base, of(&[[3, 4], [1, 2]]));
        for bit in 0..64 {
            assert_ne!(base, of(&[[1, 2], [3, 4 ^ (1 << bit)]]), "bit {bit}");
        }
    }
}
