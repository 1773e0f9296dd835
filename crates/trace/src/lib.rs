//! Block traces: one record type, streaming readers for the public formats, writers and tools.
//!
//! `docs/reference/traces.md` lists the formats with their units and an example line each.
//!
//! The crate makes two promises. Memory does not grow with the length of a trace; each structure that grows with something else
//! states it. Any content of a trace file gives records or an error with file and line.
//!
//! A request's path: file → [`TraceReader::open`] → decompression → detected format's parser → re-ordering window →
//! [`TraceRecord`] → [`tools`] → a [`TraceWriter`], or a replay.
#![forbid(unsafe_code)]

pub mod detect;
pub mod error;
mod formats;
#[doc(hidden)]
pub mod fuzz;
pub mod lines;
pub mod parse;
pub mod reader;
pub mod record;
pub mod stream;
pub mod tools;
pub mod writer;

pub use detect::Format;
pub use error::{Position, TraceError};
pub use reader::{ReadOptions, TraceReader};
pub use record::{Names, Op, Tables, TraceRecord};
pub use stream::RecordStream;
pub use writer::{OutputFormat, TraceWriter, Written};
