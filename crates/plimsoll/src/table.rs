//! Plain text tables.

pub use plimsoll_base::bytes_text as bytes;

/// Rows in columns two spaces apart, numbers to the right.
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let columns = columns(head, rows);
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(&columns).map(|(cell, (width, right))| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    let mut text = line(head.to_vec());
    rows.iter().for_each(|r| text.push_str(&line(r.iter().map(String::as_str).collect())));
    text
}

/// Each column's width, and whether it goes to the right: if all its cells begin with a digit, with or without a sign, or are empty (`-`).
pub fn columns(head: &[&str], rows: &[Vec<String>]) -> Vec<(usize, bool)> {
    let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0).max(head[c].len());
    let signs = ['+', '-', '<'];
    let number = |text: &str| text == "-" || text.trim_start_matches(signs).starts_with(|c: char| c.is_ascii_digit());
    let right = |c: usize| !rows.is_empty() && rows.iter().all(|r| number(&r[c]));
    (0..head.len()).map(|c| (width(c), right(c))).collect()
}

/// A time in microseconds: `85us`, `1.20ms`.
pub fn micros(us: u64) -> String {
    plimsoll_base::Span::from_micros(us).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = vec![vec!["a".into(), "5".into()], vec!["long".into(), "10".into()]];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME   N\na      5\nlong  10\n");
        assert_eq!(table(&["NAME"], &[]), "NAME\n");
    }
}
