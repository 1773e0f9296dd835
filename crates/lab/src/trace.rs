//! Block traces: one record type, streaming readers for the public formats, writers and tools.
//!
//! `docs/traces.md` lists the formats with their units and an example line each.

pub mod detect;
pub mod error;
mod formats;
#[doc(hidden)]
pub mod fuzz;

pub(crate) mod lines;
pub(crate) mod parse;
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
