//! Entry points for fuzzers: every reader must answer any bytes with records that keep their promises, or with an error.
//!
//! One libFuzzer binary per [`Format`] calls [`as_format`] with it, one more calls [`detected`]; `tests/seeds` is their
//! corpus to begin with. The Parquet decoder panics on some damaged files, which our reader catches: what may read Parquet
//! calls [`outlive_decoder_panics`] first.

use crate::detect::Format;
use crate::reader::{ReadOptions, TraceReader};
use std::io::Cursor;
use std::sync::Once;

/// Puts a panic hook in place of libFuzzer's, which ends the process at every panic: this one ends it only for panics that our
/// own checks raise.
pub fn outlive_decoder_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            if info.location().is_none_or(|l| l.file().contains("crates/trace")) {
                eprintln!("{info}");
                std::process::abort();
            }
        }));
    });
}

/// Reads `data` with the detected format and compression.
pub fn detected(data: &[u8]) {
    read(None, data);
}

/// Reads `data` as `format`.
pub fn as_format(format: Format, data: &[u8]) {
    read(Some(format), data);
}

/// Most records read from one input. A gzip stream of a kilobyte can hold a million lines.
const RECORDS_MAX: usize = 100_000;

fn read(format: Option<Format>, data: &[u8]) {
    let options = ReadOptions { format, ..ReadOptions::default() };
    let is_parquet = format == Some(Format::Parquet) || (format.is_none() && data.starts_with(b"PAR1"));
    let reader = if is_parquet {
        TraceReader::from_parquet_bytes("fuzz", data.to_vec(), &options)
    } else {
        TraceReader::from_read("fuzz", Box::new(Cursor::new(data.to_vec())), &options)
    };
    match reader {
        Ok(reader) => check(reader),
        Err(e) => assert!(!e.to_string().contains('\n'), "an error is one line"),
    }
}

fn check(mut reader: TraceReader) {
    let mut last = None;
    for _ in 0..RECORDS_MAX {
        match reader.next() {
            None => return,
            Some(Err(e)) => {
                assert!(!e.to_string().contains('\n'), "an error is one line");
                assert!(reader.next().is_none(), "nothing follows an error");
                return;
            }
            Some(Ok(r)) => {
                assert!(last <= Some(r.arrived_at), "arrivals never go back");
                last = Some(r.arrived_at);
                assert!(r.end() <= i64::MAX as u64);
                assert!((r.device as usize) < reader.tables().devices.len());
                assert!(r.context.is_none_or(|c| (c as usize) < reader.tables().contexts.len()));
            }
        }
    }
}
