//! libCacheSim's oracleGeneral: 24 bytes a request, with the number of the next request for the same object.

use crate::error::Problem;
use crate::formats::binary::ORACLE_BYTES;
use crate::parse::SECTOR;
use crate::record::{Op, Tables, TraceRecord};
use crate::writer::{Sink, io};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};

/// Objects at most: 2^27 of them take some 5 GiB of memory here.
const OBJECTS_MAX: usize = 1 << 27;
/// Next accesses gathered before they are written into the records already in the file.
const PATCHES_MAX: usize = 1 << 20;
/// Bits of an object's number that are the sector on its device; the device is above. 2^40 sectors are 512 TiB.
const SECTOR_BITS: u32 = 40;
/// "Never again".
const NEVER: i64 = -1;

/// oracleGeneral being written. Memory grows with the number of distinct objects.
pub(super) struct OracleSink {
    file: BufWriter<File>,
    records: u64,
    /// Number of each object's last access.
    last: BTreeMap<u64, u64>,
    /// A record's number and its next access.
    patches: Vec<(u64, i64)>,
}

impl OracleSink {
    pub fn new(file: File) -> OracleSink {
        OracleSink {
            file: BufWriter::with_capacity(128 << 10, file),
            records: 0,
            last: BTreeMap::new(),
            patches: Vec::new(),
        }
    }

    /// Writes the gathered next accesses where they belong.
    fn patch(&mut self) -> std::io::Result<()> {
        self.patches.sort_unstable();
        self.file.flush()?;
        let file = self.file.get_mut();
        for (record, next) in self.patches.drain(..) {
            file.seek(SeekFrom::Start(record * ORACLE_BYTES as u64 + 16))?;
            file.write_all(&next.to_le_bytes())?;
        }
        file.seek(SeekFrom::End(0))?;
        Ok(())
    }
}

impl Sink for OracleSink {
    fn write(&mut self, r: &TraceRecord, _: &Tables) -> Result<bool, Problem> {
        if !matches!(r.op, Op::Read | Op::Write) {
            return Ok(false);
        }
        let does_not_fit = |what: &str, v: u64| {
            Problem::new(format!("{what} {v} doesn't fit into oracleGeneral"), "write csv or parquet, or cut the trace")
        };
        let sector = r.offset / SECTOR;
        if sector >> SECTOR_BITS != 0 {
            return Err(does_not_fit("offset", r.offset));
        }
        let object = u64::from(r.device) << SECTOR_BITS | sector;
        let seconds = r.arrived_at.as_nanos() / 1_000_000_000;
        let seconds = u32::try_from(seconds).map_err(|_| does_not_fit("second", seconds))?;
        let len = u32::try_from(r.len).map_err(|_| does_not_fit("length", r.len))?;
        // libCacheSim numbers requests from 1.
        if let Some(before) = self.last.insert(object, self.records) {
            self.patches.push((before, self.records as i64 + 1));
        }
        if self.last.len() > OBJECTS_MAX {
            return Err(does_not_fit("number of objects", self.last.len() as u64));
        }
        let mut record = [0; ORACLE_BYTES];
        record[..4].copy_from_slice(&seconds.to_le_bytes());
        record[4..12].copy_from_slice(&object.to_le_bytes());
        record[12..16].copy_from_slice(&len.to_le_bytes());
        record[16..].copy_from_slice(&NEVER.to_le_bytes());
        self.file.write_all(&record).map_err(|e| io(&e))?;
        self.records += 1;
        if self.patches.len() >= PATCHES_MAX {
            self.patch().map_err(|e| io(&e))?;
        }
        Ok(true)
    }

    fn finish(mut self: Box<Self>) -> Result<(), Problem> {
        self.patch().and_then(|()| self.file.flush()).map_err(|e| io(&e))
    }
}
