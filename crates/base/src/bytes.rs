//! Sizes in bytes as people write them.

/// `64KiB`, `64K`, `8GiB`, `512B`, `4096` as bytes; units are powers of 1024.
///
/// # Errors
/// If the text isn't a size; the error shows a valid form.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let t = text.trim();
    let split = t.find(|c: char| !c.is_ascii_digit()).unwrap_or(t.len());
    let bad = || format!("`{text}` is not a size: write a whole number and a unit, such as 64KiB, 8GiB or 512");
    let n: u64 = t[..split].parse().map_err(|_| bad())?;
    let unit: u64 = match t[split..].trim() {
        "" | "B" => 1,
        "KiB" | "K" => 1 << 10,
        "MiB" | "M" => 1 << 20,
        "GiB" | "G" => 1 << 30,
        "TiB" | "T" => 1 << 40,
        _ => return Err(bad()),
    };
    n.checked_mul(unit).ok_or_else(bad)
}

/// A number of bytes for people: `512 B`, `2.0 GiB`.
pub fn bytes_text(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let power = (n.ilog2() / 10).min(UNITS.len() as u32);
    format!("{:.1} {}", n as f64 / (1u64 << (10 * power)) as f64, UNITS[power as usize - 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_of_1024() {
        for (text, bytes) in [("64KiB", 65_536), (" 8G ", 8 << 30), ("512", 512), ("0B", 0)] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "K", "-1", "1.5G", "4kb", "99999999999T"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_for_people() {
        for (n, text) in
            [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (2 << 30, "2.0 GiB"), (u64::MAX, "16384.0 PiB")]
        {
            assert_eq!(bytes_text(n), text);
        }
    }
}
