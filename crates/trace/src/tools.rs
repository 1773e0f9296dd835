//! Tools on traces: describe ([`info`]), pick a window ([`window`]), cut ([`cut`]), change the pace ([`rerate`]),
//! mix several into one ([`mix`]), convert ([`convert`]). Each streams.

pub mod cut;
pub mod footprint;
pub mod info;
pub mod mix;
pub mod rerate;
pub mod window;

use crate::error::TraceError;
use crate::stream::RecordStream;
use crate::writer::{TraceWriter, Written};

/// Writes all of `stream` to `writer` and completes it.
///
/// # Errors
/// The stream's first error, or the writer's; the file is then incomplete.
pub fn convert(stream: &mut impl RecordStream, mut writer: TraceWriter) -> Result<Written, TraceError> {
    while let Some(record) = stream.next_record() {
        writer.write(&record?, stream.tables())?;
    }
    writer.finish()
}
