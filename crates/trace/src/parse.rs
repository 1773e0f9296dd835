//! Bytes to numbers, exactly: a trace's seconds with nine digits must not pass through a float.

use crate::error::Problem;
use crate::record::{Op, TraceRecord};

/// Bytes of a sector: what every format that counts sectors means by one.
pub(crate) const SECTOR: u64 = 512;

/// Without leading and trailing blanks (and the carriage return of files that passed through Windows).
pub fn trim(field: &[u8]) -> &[u8] {
    field.trim_ascii()
}

/// A decimal whole number.
///
/// # Errors
/// If it isn't one, or doesn't fit 64 bits.
pub fn whole(name: &str, field: &[u8]) -> Result<u64, Problem> {
    digits(trim(field)).ok_or_else(|| Problem::field(name, "a whole number below 2^64", field))
}

fn digits(field: &[u8]) -> Option<u64> {
    if field.is_empty() {
        return None;
    }
    // 19 digits can't overflow 64 bits: the common case needs no checked arithmetic.
    if field.len() <= 19 {
        let mut v = 0u64;
        for &b in field {
            let d = b.wrapping_sub(b'0');
            if d > 9 {
                return None;
            }
            v = v * 10 + u64::from(d);
        }
        return Some(v);
    }
    field.iter().try_fold(0u64, |v, &b| {
        let d = b.is_ascii_digit().then(|| u64::from(b - b'0'))?;
        v.checked_mul(10)?.checked_add(d)
    })
}

/// A whole number written `0x…` or in decimal.
pub(crate) fn hex_or_whole(name: &str, field: &[u8]) -> Result<u64, Problem> {
    let t = trim(field);
    match t.strip_prefix(b"0x").or_else(|| t.strip_prefix(b"0X")) {
        Some(h) => hex(h)
            .and_then(|v| u64::try_from(v).ok())
            .ok_or_else(|| Problem::field(name, "a hexadecimal number below 2^64", field)),
        None => whole(name, field),
    }
}

/// Up to 32 hexadecimal digits.
pub(crate) fn hex(digits: &[u8]) -> Option<u128> {
    if digits.is_empty() || digits.len() > 32 {
        return None;
    }
    digits.iter().try_fold(0u128, |v, &b| Some(v << 4 | u128::from((b as char).to_digit(16)?)))
}

/// Parses a non-negative decimal with a fraction, as nanoseconds when one unit is `unit_ns` of them. Digits beyond a nanosecond
/// are dropped: no later step could use them.
pub(crate) fn nanos(name: &str, field: &[u8], unit_ns: u64) -> Result<u64, Problem> {
    let bad = || Problem::field(name, "a time, as a non-negative decimal number", field);
    let t = trim(field);
    let (int, frac) = match t.iter().position(|&b| b == b'.') {
        Some(dot) => (&t[..dot], &t[dot + 1..]),
        None => (t, &t[..0]),
    };
    if int.is_empty() && frac.is_empty() {
        return Err(bad());
    }
    let int = if int.is_empty() { 0 } else { digits(int).ok_or_else(bad)? };
    let mut ns = int.checked_mul(unit_ns).ok_or_else(bad)?;
    let mut unit = unit_ns;
    for &b in frac {
        if !b.is_ascii_digit() {
            return Err(bad());
        }
        unit /= 10;
        ns = ns.checked_add(u64::from(b - b'0') * unit).ok_or_else(bad)?;
    }
    Ok(ns)
}

/// Longest plausible read or write: 4 GiB. Block layers split requests far below that, so more is a slip in format
/// or unit, and the tools that walk a request's blocks would walk for hours.
const LEN_MAX: u64 = 1 << 32;

/// `sectors` in bytes.
pub(crate) fn sectors(name: &str, field: &[u8]) -> Result<u64, Problem> {
    let n = whole(name, field)?;
    n.checked_mul(SECTOR).ok_or_else(|| Problem::field(name, "sectors of 512 bytes, below 2^55", field))
}

/// `N` fields parted by `separator`, no more and no fewer.
pub(crate) fn fields<'a, const N: usize>(
    line: &'a [u8],
    separator: u8,
    expected: &str,
) -> Result<[&'a [u8]; N], Problem> {
    let mut out = [&line[..0]; N];
    let mut n = 0;
    for f in line.split(|&b| b == separator) {
        if n == N {
            return Err(Problem::shape(expected, line));
        }
        out[n] = f;
        n += 1;
    }
    if n == N { Ok(out) } else { Err(Problem::shape(expected, line)) }
}

/// The words of a line parted by blanks.
pub(crate) fn words(line: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    line.split(|b| b.is_ascii_whitespace()).filter(|w| !w.is_empty())
}

/// The record if it is a request: `None` for reads, writes and trims of no bytes, which some tracers log and no
/// device ever sees; an error if it is too long or reaches beyond what a file offset can say.
pub(crate) fn checked(record: TraceRecord) -> Result<Option<TraceRecord>, Problem> {
    if record.op == Op::Flush {
        return Ok(Some(TraceRecord { offset: 0, len: 0, ..record }));
    }
    if record.len == 0 {
        return Ok(None);
    }
    if record.len > LEN_MAX && record.op != Op::Trim {
        return Err(Problem::new(
            format!("a request of {} bytes, beyond 4 GiB", record.len),
            "check the format and its unit of length",
        ));
    }
    match record.offset.checked_add(record.len) {
        Some(end) if end <= i64::MAX as u64 => Ok(Some(record)),
        _ => Err(Problem::new(
            format!("the request at byte {} of length {} ends beyond 2^63", record.offset, record.len),
            "check the format and its unit of address",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact_to_the_nanosecond() {
        assert_eq!(nanos("t", b"1456135200.013118000", 1_000_000_000), Ok(1_456_135_200_013_118_000));
        assert_eq!(nanos("t", b" 0.0000000019 ", 1_000_000_000), Ok(1));
        assert_eq!(nanos("t", b"128166372003061629", 100), Ok(12_816_637_200_306_162_900));
        assert_eq!(nanos("t", b".5", 1_000), Ok(500));
        for bad in [&b""[..], b".", b"-1", b"1e3", b"1.2.3", b"99999999999999999999", b"1.x"] {
            assert!(nanos("t", bad, 1_000_000_000).is_err(), "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn numbers_are_checked_at_both_lengths() {
        assert_eq!(whole("n", b"18446744073709551615"), Ok(u64::MAX));
        for bad in [&b"18446744073709551616"[..], b"", b"+1", b"1_0", b"99999999999999999999999999"] {
            assert!(whole("n", bad).is_err());
        }
        assert_eq!(hex_or_whole("n", b" 0x6c80556e00"), Ok(0x6c_8055_6e00));
        assert!(hex_or_whole("n", b"0x").is_err());
        assert!(sectors("n", b"36028797018963968").is_err());
    }

    #[test]
    fn a_request_beyond_a_file_offset_is_refused() {
        let r = |offset, len| TraceRecord::new(plimsoll_base::Time::ZERO, 0, Op::Read, offset, len);
        assert!(checked(r(u64::MAX, 1)).is_err());
        assert!(checked(r(i64::MAX as u64, 1)).is_err());
        assert_eq!(checked(r(5, 0)), Ok(None));
    }
}
