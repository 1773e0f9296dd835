//! Content of a modelled device: bytes where there are bytes (headers, journals), names where contents are names.

use plimsoll_base::{Completion, Data, Io, Op, Outcome, Time};
use plimsoll_stack::pieces::Pieces;
use plimsoll_stack::{Actions, Layer, Offer};

/// The layer below a device's model: it answers at once, the model says when.
pub struct Held {
    size_bytes: u64,
    pieces: Pieces,
}

impl Held {
    /// Nothing but zeroes.
    pub fn new(size_bytes: u64) -> Held {
        Held { size_bytes, pieces: Pieces::default() }
    }

    /// Writes.
    pub fn put(&mut self, offset: u64, len: u64, data: &Data) {
        match data {
            Data::Zeroes => self.clear(offset, offset + len), // what isn't held is zeroes, and costs nothing
            _ => self.pieces.put(offset, len, data),
        }
    }

    /// Nothing is held of `from..to` any more.
    fn clear(&mut self, from: u64, to: u64) {
        self.pieces.clear(from, to);
    }

    /// Reads.
    pub fn get(&self, offset: u64, len: u64) -> Data {
        self.pieces.over(offset, len, &Data::Zeroes)
    }
}

impl Layer for Held {
    fn name(&self) -> &'static str {
        "held"
    }

    fn offer(&self, _below: &[Offer]) -> Offer {
        Offer {
            size_bytes: self.size_bytes,
            block_bytes: 512,
            io_bytes_max: 64 << 20,
            atomic_bytes: 512,
            queue_max: 1 << 16,
        }
    }

    fn submit(&mut self, now: Time, mut io: Io, out: &mut Actions) {
        match io.op {
            Op::Read => io.data = self.get(io.offset, io.len),
            Op::Write => {
                let data = std::mem::take(&mut io.data);
                self.put(io.offset, io.len, &data);
            }
            Op::Trim | Op::WriteZeroes => self.clear(io.offset, io.end()),
            Op::Flush | Op::Cache | Op::BlockStatus => {}
        }
        out.complete(Completion { io, outcome: Outcome::Done, dispatched_at: now });
    }

    fn is_idle(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Buf, Rng};

    /// Against a plain array of bytes.
    #[test]
    fn what_was_written_is_read() {
        const SIZE: usize = 300;
        let (mut held, mut model) = (Held::new(SIZE as u64), vec![0u8; SIZE]);
        let mut rng = Rng::new(1, "held");
        for _ in 0..3000 {
            let at = rng.below(SIZE as u64) as usize;
            let len = 1 + rng.below((SIZE - at) as u64) as usize;
            if rng.chance(0.3) {
                held.clear(at as u64, (at + len) as u64);
                model[at..at + len].fill(0);
            } else {
                let bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                let cut = rng.below(len as u64);
                let whole = Data::Bytes(Buf::copy_of(&bytes));
                let parts = [
                    (cut, whole.part(len as u64, 0, cut)),
                    (len as u64 - cut, whole.part(len as u64, cut, len as u64 - cut)),
                ];
                held.put(at as u64, len as u64, &Data::Parts(parts.into_iter().filter(|p| p.0 > 0).collect()));
                model[at..at + len].copy_from_slice(&bytes);
            }
            let at = rng.below(SIZE as u64);
            let len = 1 + rng.below(SIZE as u64 - at);
            let mut read = vec![1; len as usize];
            held.get(at, len).copy_to(&mut read);
            assert_eq!(read, model[at as usize..(at + len) as usize]);
        }
    }
}
