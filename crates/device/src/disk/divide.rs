//! Division by a number that is known beforehand: a multiplication, where the processor's own division would be
//! the dearest instruction of a simulated request.

/// Divides by `by`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Divider {
    by: u64,
    inverse: u64,
}

impl Divider {
    /// # Panics
    /// If `by` is zero.
    pub(crate) fn new(by: u64) -> Divider {
        Divider { by, inverse: u64::MAX / by }
    }

    /// The divisor.
    pub(crate) fn by(self) -> u64 {
        self.by
    }

    /// Quotient and remainder.
    pub(crate) fn div_rem(self, x: u64) -> (u64, u64) {
        // The inverse is too small by less than one part in 2^64 of x, so the quotient by two at most.
        let mut quotient = ((u128::from(x) * u128::from(self.inverse)) >> 64) as u64;
        let mut rest = x - quotient * self.by;
        while rest >= self.by {
            rest -= self.by;
            quotient += 1;
        }
        (quotient, rest)
    }

    pub(crate) fn div(self, x: u64) -> u64 {
        self.div_rem(x).0
    }

    pub(crate) fn rem(self, x: u64) -> u64 {
        self.div_rem(x).1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_divides(x in any::<u64>(), by in 1u64.., small in 1u64..10_000_000) {
            for by in [by, small, 1, u64::MAX] {
                for x in [x, x / by * by, (x / by * by).wrapping_sub(1), u64::MAX, 0] {
                    prop_assert_eq!(Divider::new(by).div_rem(x), (x / by, x % by));
                }
            }
        }
    }
}
