//! Records with their names, one after the other: what readers, tools and generators have in common.

use crate::error::TraceError;
use crate::reader::TraceReader;
use crate::record::{Tables, TraceRecord};

/// A source of records in order of arrival. Tools take one and are one, so they chain.
pub trait RecordStream {
    /// The next record; `None` at the end, and for ever after an error.
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>>;

    /// The names behind the numbers of the records given so far.
    fn tables(&self) -> &Tables;

    /// The rest as an iterator.
    fn records(&mut self) -> Records<'_, Self>
    where
        Self: Sized,
    {
        Records { stream: self }
    }
}

/// A stream's rest as an iterator; see [`RecordStream::records`].
pub struct Records<'a, S> {
    stream: &'a mut S,
}

impl<S: RecordStream> Iterator for Records<'_, S> {
    type Item = Result<TraceRecord, TraceError>;
    fn next(&mut self) -> Option<Self::Item> {
        self.stream.next_record()
    }
}

impl RecordStream for TraceReader {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        self.next()
    }
    fn tables(&self) -> &Tables {
        TraceReader::tables(self)
    }
}

impl<S: RecordStream + ?Sized> RecordStream for Box<S> {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        (**self).next_record()
    }
    fn tables(&self) -> &Tables {
        (**self).tables()
    }
}

/// Records that are already in memory: generated ones, and tests'.
pub struct Held {
    records: std::vec::IntoIter<TraceRecord>,
    tables: Tables,
}

impl Held {
    /// `records`, in order of arrival, with the names of `tables`.
    ///
    /// # Panics
    /// If an arrival lies before the one ahead of it.
    pub fn new(records: Vec<TraceRecord>, tables: Tables) -> Held {
        assert!(records.is_sorted_by_key(|r| r.arrived_at), "records must be in order of arrival");
        Held { records: records.into_iter(), tables }
    }
}

impl RecordStream for Held {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        self.records.next().map(Ok)
    }
    fn tables(&self) -> &Tables {
        &self.tables
    }
}
