//! A drive whose inside can't be seen.

use plimsoll_base::Time;

use super::{Flash, FlashOptions, FlashSpec, FtlStats};
use crate::disk::SpecError;
use crate::model::{Done, Model, Request};

/// A [`Flash`] as a commodity drive: blocks in, completions out, and the counters that such drives report.
#[derive(Clone, Debug)]
pub struct BlackBox(Flash);

impl BlackBox {
    /// Builds the drive that `spec` describes. The error names the key at fault.
    pub fn new(spec: &FlashSpec, options: FlashOptions) -> Result<BlackBox, SpecError> {
        Flash::new(spec, options).map(BlackBox)
    }

    /// Host and internal writes, as a drive's SMART page gives them.
    pub fn stats(&self) -> FtlStats {
        self.0.stats()
    }
}

impl Model for BlackBox {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }
    fn submit(&mut self, now: Time, req: Request) {
        self.0.submit(now, req);
    }
    fn next_event(&self) -> Time {
        self.0.next_event()
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        self.0.advance(now, done);
    }
    fn outstanding(&self) -> usize {
        self.0.outstanding()
    }
    fn queue_max(&self) -> usize {
        self.0.queue_max()
    }
}
