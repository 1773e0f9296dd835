//! Data at ranges of addresses: of each address, the latest that was put there.

use plimsoll_base::Data;
use std::collections::BTreeMap;

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    /// By where each begins: its length, and what it is. They don't overlap.
    pieces: BTreeMap<u64, (u64, Data)>,
}

impl Pieces {
    /// True if there are no pieces.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Each piece, in order: where, how long, what.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &Data)> {
        self.pieces.iter().map(|(at, (len, data))| (*at, *len, data))
    }

    /// Puts data there, over what was.
    pub fn put(&mut self, offset: u64, len: u64, data: &Data) {
        if let Data::Parts(parts) = data {
            let mut at = offset;
            for (n, d) in parts.iter() {
                self.put(at, *n, d);
                at += n;
            }
            return;
        }
        self.put_whole(offset, len, data);
    }

    /// Puts data there as one piece, whatever it is made of.
    pub fn put_whole(&mut self, offset: u64, len: u64, data: &Data) {
        self.clear(offset, offset + len);
        self.pieces.insert(offset, (len, data.clone()));
    }

    /// Nothing is at `from..to` any more.
    pub fn clear(&mut self, from: u64, to: u64) {
        if let Some((&at, (len, data))) = self.pieces.range(..from).next_back()
            && at + len > from
        {
            let (len, data) = (*len, data.clone());
            self.pieces.insert(at, (from - at, data.part(len, 0, from - at)));
            if at + len > to {
                self.pieces.insert(to, (at + len - to, data.part(len, to - at, at + len - to)));
            }
        }
        let inside: Vec<u64> = self.pieces.range(from..to).map(|p| *p.0).collect();
        for at in inside {
            let (len, data) = self.pieces.remove(&at).expect("just seen");
            if at + len > to {
                self.pieces.insert(to, (at + len - to, data.part(len, to - at, at + len - to)));
            }
        }
    }

    /// The pieces at `from..to`, in order, cut to that range.
    pub fn within(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, Data)> {
        let before = self.pieces.range(..from).next_back();
        before.into_iter().chain(self.pieces.range(from..to)).filter_map(move |(&at, (len, data))| {
            let (first, last) = (at.max(from), (at + len).min(to));
            (first < last).then(|| (first, last - first, data.part(*len, first - at, last - first)))
        })
    }

    /// Data of `offset..offset + len`: `under`, and over it what lies here.
    pub fn over(&self, offset: u64, len: u64, under: &Data) -> Data {
        let mut parts: Vec<(u64, Data)> = Vec::new();
        let mut at = offset;
        for (from, n, data) in self.within(offset, offset + len) {
            if from > at {
                parts.push((from - at, under.part(len, at - offset, from - at)));
            }
            parts.push((n, data));
            at = from + n;
        }
        if at < offset + len {
            parts.push((offset + len - at, under.part(len, at - offset, offset + len - at)));
        }
        if parts.len() == 1 { parts.pop().expect("one").1 } else { Data::Parts(parts.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Buf, Rng};

    /// A device is written in whole blocks, whatever is in them.
    #[test]
    fn a_piece_that_is_put_whole_stays_one() {
        let parts = Data::Parts([(16, Data::Bytes(Buf::copy_of(&[7; 16]))), (1008, Data::Content([9].into()))].into());
        let mut pieces = Pieces::default();
        pieces.put_whole(512, 1024, &parts);
        assert_eq!(pieces.iter().map(|(at, len, _)| (at, len)).collect::<Vec<_>>(), [(512, 1024)]);
        pieces.clear(0, 1024);
        assert_eq!(pieces.iter().map(|(at, len, _)| (at, len)).collect::<Vec<_>>(), [(1024, 512)]);
    }

    /// Against a plain array of bytes.
    #[test]
    fn what_was_put_last_is_there() {
        const SIZE: usize = 300;
        let (mut pieces, mut model) = (Pieces::default(), vec![0u8; SIZE]);
        let mut rng = Rng::new(1, "pieces");
        for _ in 0..3000 {
            let at = rng.below(SIZE as u64) as usize;
            let len = 1 + rng.below((SIZE - at) as u64) as usize;
            if rng.chance(0.3) {
                pieces.clear(at as u64, (at + len) as u64);
                model[at..at + len].fill(0);
            } else {
                let bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                let (len64, cut) = (len as u64, rng.below(len as u64));
                let whole = Data::Bytes(Buf::copy_of(&bytes));
                let parts = [(cut, whole.part(len64, 0, cut)), (len64 - cut, whole.part(len64, cut, len64 - cut))];
                pieces.put(at as u64, len64, &Data::Parts(parts.into_iter().filter(|p| p.0 > 0).collect()));
                model[at..at + len].copy_from_slice(&bytes);
            }
            let at = rng.below(SIZE as u64);
            let len = 1 + rng.below(SIZE as u64 - at);
            let mut read = vec![1; len as usize];
            pieces.over(at, len, &Data::Zeroes).copy_to(&mut read);
            assert_eq!(read, model[at as usize..(at + len) as usize]);
        }
    }
}
