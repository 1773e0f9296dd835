//! What is on a modelled device: bytes where there are bytes (headers, journals), names where contents are names.

use plimsoll_base::{Completion, Data, Io, Op, Outcome, Time};
use plimsoll_cache::tasks::extract;
use plimsoll_stack::{Actions, Layer, Offer};
use std::collections::BTreeMap;

/// The layer below a device's model: it answers at once, the model says when.
pub struct Held {
    size_bytes: u64,
    /// By where each begins: its length, and what it is.
    pieces: BTreeMap<u64, (u64, Data)>,
}

impl Held {
    /// Nothing but zeroes.
    pub fn new(size_bytes: u64) -> Held {
        Held { size_bytes, pieces: BTreeMap::new() }
    }

    /// Writes.
    pub fn put(&mut self, offset: u64, len: u64, data: &Data) {
        if let Data::Parts(parts) = data {
            let mut at = offset;
            for (n, d) in parts.iter() {
                self.put(at, *n, d);
                at += n;
            }
            return;
        }
        self.clear(offset, offset + len);
        if !matches!(data, Data::Zeroes) {
            self.pieces.insert(offset, (len, data.clone()));
        }
    }

    /// Nothing is held of `from..to` any more.
    fn clear(&mut self, from: u64, to: u64) {
        if let Some((&at, (len, data))) = self.pieces.range(..from).next_back()
            && at + len > from
        {
            let (len, data) = (*len, data.clone());
            self.pieces.insert(at, (from - at, extract(&data, len, 0, from - at)));
            if at + len > to {
                self.pieces.insert(to, (at + len - to, extract(&data, len, to - at, at + len - to)));
            }
        }
        let inside: Vec<u64> = self.pieces.range(from..to).map(|p| *p.0).collect();
        for at in inside {
            let (len, data) = self.pieces.remove(&at).expect("just seen");
            if at + len > to {
                self.pieces.insert(to, (at + len - to, extract(&data, len, to - at, at + len - to)));
            }
        }
    }

    /// Reads.
    pub fn get(&self, offset: u64, len: u64) -> Data {
        let end = offset + len;
        let before = self.pieces.range(..offset).next_back();
        let mut parts: Vec<(u64, Data)> = Vec::new();
        let mut at = offset;
        for (&from, (n, data)) in before.into_iter().chain(self.pieces.range(offset..end)) {
            let (first, last) = (from.max(offset), (from + n).min(end));
            if first >= last {
                continue;
            }
            if first > at {
                parts.push((first - at, Data::Zeroes));
            }
            parts.push((last - first, extract(data, *n, first - from, last - first)));
            at = last;
        }
        if at < end {
            parts.push((end - at, Data::Zeroes));
        }
        if parts.len() == 1 { parts.pop().expect("one").1 } else { Data::Parts(parts.into()) }
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
                    (cut, extract(&whole, len as u64, 0, cut)),
                    (len as u64 - cut, extract(&whole, len as u64, cut, len as u64 - cut)),
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
