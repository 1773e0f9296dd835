//! Reads traces and prints what they hold and how fast that went.
//!
//! ```text
//! cargo run --release -p plimsoll-trace --example read_speed -- TRACE…
//! ```

#![expect(clippy::disallowed_methods, reason = "it measures")]

use plimsoll_trace::{ReadOptions, TraceError, TraceReader};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

fn read(path: &str) -> Result<(), TraceError> {
    let started = Instant::now();
    let mut reader = TraceReader::open(Path::new(path), &ReadOptions::default())?;
    let (mut records, mut bytes) = (0u64, 0u64);
    for record in reader.by_ref() {
        records += 1;
        bytes = bytes.saturating_add(record?.len);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{path}: {}, {records} records of {bytes} bytes, {} skipped, {seconds:.3} s, {:.2} M records/s",
        reader.format(),
        reader.skipped(),
        records as f64 / seconds / 1e6
    );
    Ok(())
}

fn main() -> ExitCode {
    for path in std::env::args().skip(1) {
        if let Err(e) = read(&path) {
            eprintln!("read_speed: {e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
