//! Fingerprints after a start: they are read from the headers once more, while requests are already served. Until then a duplicate
//! of an extent whose fingerprint isn't known yet is stored again. Reading fingerprints before the first request would triple the
//! time of a start.

/// Headers read at once.
const READS_MAX: usize = 4;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Relearn {
    /// WEUs with fingerprints, each under its number; the next one to read is the last.
    weus: Vec<(u64, u32)>,
    reading: usize,
}

impl Relearn {
    /// Of WEUs (number, which, how many fingerprints) those written last that have no more than `max` together.
    pub(crate) fn of(mut found: Vec<(u64, u32, u32)>, max: usize) -> Relearn {
        found.sort_unstable();
        let mut sum = 0;
        let within = |f: &&(u64, u32, u32)| {
            sum += f.2 as usize;
            sum <= max
        };
        let mut weus: Vec<(u64, u32)> = found.iter().rev().take_while(within).map(|f| (f.0, f.1)).collect();
        weus.reverse();
        Relearn { weus, reading: 0 }
    }

    /// The next one to read: its number, and which. Nothing while [`READS_MAX`] are being read.
    pub(crate) fn next(&mut self) -> Option<(u64, u32)> {
        if self.reading < READS_MAX { self.weus.pop() } else { None }
    }

    /// One is being read.
    pub(crate) fn begin(&mut self) {
        self.reading += 1;
    }

    /// One was read, or not.
    pub(crate) fn end(&mut self) {
        self.reading -= 1;
    }
}
