//! Figures of results: [`table`] writes rows as CSV or Parquet, [`plot`] draws distributions as SVG.
#![forbid(unsafe_code)]

pub mod plot;
pub mod table;

use plimsoll_base::Span;

/// Microseconds with a fraction.
pub fn micros(s: Span) -> f64 {
    s.as_nanos() as f64 / 1e3
}
