//! Times as logarithms: twice the time is one step further.

/// Steps of an octave.
const STEP_BITS: u32 = 8;
/// One octave.
pub(crate) const OCTAVE: i32 = 1 << STEP_BITS;
/// A microsecond is where counting begins, in octaves of nanoseconds.
const FROM_BITS: u32 = 10;
/// Number of octaves with bins of their own: up to hours.
pub(crate) const OCTAVES: usize = 32;

/// A time in parts of an octave from a microsecond on: linear within an octave.
pub(crate) fn log_of(ns: u64) -> i32 {
    let ns = ns.max(1 << FROM_BITS);
    let exponent = ns.ilog2();
    let rest = (ns - (1 << exponent)) >> (exponent.saturating_sub(STEP_BITS));
    let log = (((exponent - FROM_BITS) << STEP_BITS) + rest as u32) as i32;
    log.min(OCTAVES as i32 * OCTAVE - 1)
}

/// The time that a logarithm stands for, in nanoseconds.
pub(crate) fn ns_of(log: i32) -> u64 {
    let log = log.clamp(0, OCTAVES as i32 * OCTAVE) as u64;
    let exponent = (log >> STEP_BITS) as u32 + FROM_BITS;
    let rest = log & (OCTAVE as u64 - 1);
    (1 << exponent) + ((rest << exponent) >> STEP_BITS)
}

/// Returns the octave from 16 us on, at most `levels`; 0 is less than 16 us.
pub(crate) fn octave(ns: u64, levels: usize) -> usize {
    ((64 - (ns >> 14).leading_zeros()) as usize).min(levels - 1)
}

/// Returns the number of binary digits, at most `levels - 1`.
pub(crate) fn digits(n: u64, levels: usize) -> usize {
    ((64 - n.leading_zeros()) as usize).min(levels - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for ns in [1_024, 1_500, 99_000, 1_000_000, 6_000_000_000] {
            let back = ns_of(log_of(ns));
            assert!(back.abs_diff(ns) <= ns / 200, "{ns} became {back}");
            assert_eq!(log_of(2 * ns) - log_of(ns), OCTAVE);
        }
        assert_eq!((log_of(0), log_of(7), ns_of(0)), (0, 0, 1024));
        assert!(ns_of(i32::MAX) > 3600 * 1_000_000_000);
        assert_eq!((octave(16_000, 8), octave(17_000, 8), octave(u64::MAX, 8)), (0, 1, 7));
    }
}
