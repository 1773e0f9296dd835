//! A virtual disk that is a file of the host's file system: it lies in pieces, and changing it changes metadata, too.

use plimsoll_base::{Completion, Data, Io, IoFlags, Op, Origin, OwnKind, Time};
use plimsoll_stack::{Actions, Layer, Offer};

/// A piece of the file.
const PIECE: u64 = 128 << 20;
/// Number of writes for each one of metadata.
const WRITES: u64 = 8;

/// See the module's documentation. All machines' files are in one file system, whose metadata is in front.
pub struct FileBacked {
    /// Length of each machine's part; parts follow each other.
    each: u64,
    /// Every write is durable when it ends.
    through: bool,
    writes: u64,
    metadata: u32,
}

/// Marks its own requests.
const OWN: u64 = u64::MAX;

impl FileBacked {
    /// Machines' parts are `each` bytes.
    pub fn new(each: u64, through: bool) -> FileBacked {
        FileBacked { each, through, writes: 0, metadata: 0 }
    }

    /// Pieces are dealt out over the part in steps that visit all of it.
    fn place(&self, offset: u64) -> u64 {
        let pieces = (self.each / PIECE).max(1);
        let (part, within) = (offset / self.each, offset % self.each);
        let (piece, rest) = (within / PIECE, within % PIECE);
        if piece >= pieces {
            return offset;
        }
        let step = (1..).map(|i| pieces / 3 + i).find(|s| gcd(*s, pieces) == 1).expect("the next prime is one");
        part * self.each + piece * step % pieces * PIECE + rest
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Layer for FileBacked {
    fn name(&self) -> &'static str {
        "file"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn submit(&mut self, _now: Time, mut io: Io, out: &mut Actions) {
        if io.op == Op::Write {
            if self.through {
                io.head.flags = io.flags.with(IoFlags::FUA);
            }
            self.writes += 1;
            if self.writes.is_multiple_of(WRITES) {
                let at = io.offset / self.each * self.each;
                let mut own = out.child(&io.head, Op::Write, at, 4096, OWN);
                own.head.origin = Origin::Own(OwnKind::Metadata);
                self.metadata += 1;
                out.submit(0, own);
            }
        }
        // A request over a piece's end is taken to lie in the first: they are few.
        io.head.offset = self.place(io.offset).min(u64::MAX - io.len);
        out.submit(0, io);
    }

    fn completed(&mut self, _now: Time, mut c: Completion, out: &mut Actions) {
        if c.io.tag == OWN {
            self.metadata -= 1;
            return;
        }
        c.io.data = Data::Absent;
        out.complete(c);
    }

    fn is_idle(&self) -> bool {
        self.metadata == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_spread_and_none_lies_on_another() {
        let f = FileBacked::new(10 << 30, false);
        let mut places: Vec<u64> = (0..80).map(|i| f.place((10 << 30) + i * PIECE + 5)).collect();
        assert!(places.iter().all(|p| (10 << 30..20 << 30).contains(p) && p % PIECE == 5));
        assert!(places.windows(2).all(|w| w[0].abs_diff(w[1]) > 2 * PIECE));
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), 80);
    }
}
