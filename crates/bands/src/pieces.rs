//! Changes of bands that wait in memory: runs by address, the newest where they overlap.

use plimsoll_base::Data;
use std::collections::BTreeMap;

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub len: u64,
    /// Its bytes; `Data::Zeroes` takes no memory.
    pub data: Data,
    /// Its place in the order of changes.
    pub sequence: u64,
    /// It and all that it replaced are copies of data that the layer above has elsewhere ([`OwnKind::Checkpoint`]).
    ///
    /// [`OwnKind::Checkpoint`]: plimsoll_base::OwnKind::Checkpoint
    pub is_copy: bool,
}

impl Piece {
    fn part(&self, start: u64, len: u64) -> Piece {
        Piece { len, data: self.data.slice(self.len, start, len), ..*self }
    }

    fn bytes(&self) -> u64 {
        if matches!(self.data, Data::Zeroes) { 0 } else { self.len }
    }
}

/// See the module's documentation.
#[derive(Default, Debug)]
pub(crate) struct Pieces {
    runs: BTreeMap<u64, Piece>,
    bytes: u64,
    /// Runs that aren't copies.
    of_clients: usize,
}

impl Pieces {
    /// Bytes of memory that they hold.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// True if some are changes of clients.
    pub fn has_clients(&self) -> bool {
        self.of_clients > 0
    }

    fn insert(&mut self, at: u64, p: Piece) {
        self.bytes += p.bytes();
        self.of_clients += usize::from(!p.is_copy);
        self.runs.insert(at, p);
    }

    fn remove(&mut self, at: u64) -> Option<Piece> {
        let p = self.runs.remove(&at)?;
        self.bytes -= p.bytes();
        self.of_clients -= usize::from(!p.is_copy);
        Some(p)
    }

    /// Takes out what is in `from..to`.
    pub fn take(&mut self, from: u64, to: u64) -> Pieces {
        let mut taken = Pieces::default();
        while let Some((&at, p)) = self.runs.range(..to).next_back()
            && at + p.len > from
        {
            let p = self.remove(at).expect("just found");
            let (start, end) = (at.max(from), (at + p.len).min(to));
            if at < from {
                self.insert(at, p.part(0, from - at));
            }
            if at + p.len > to {
                self.insert(to, p.part(to - at, at + p.len - to));
            }
            taken.insert(start, p.part(start - at, end - start));
        }
        taken
    }

    /// From now on `at` and what follows is `data`. Its place in the order is that of the oldest change that it replaces: whoever waits for
    /// that one to be durable now waits for this one. So it is a copy only if all that it replaces are.
    pub fn put(&mut self, at: u64, len: u64, data: Data, sequence: u64, is_copy: bool) {
        let replaced = self.take(at, at + len);
        let sequence = replaced.iter().map(|(_, p)| p.sequence).chain([sequence]).min().expect("at least one");
        let is_copy = is_copy && replaced.iter().all(|(_, p)| p.is_copy);
        self.insert(at, Piece { len, data, sequence, is_copy });
    }

    /// Puts `older` back where nothing newer is.
    pub fn put_back(&mut self, older: Pieces) {
        for (at, p) in older.runs {
            let gaps: Vec<(u64, u64)> =
                self.over(at, at + p.len).filter(|(.., d)| d.is_none()).map(|(at, len, _)| (at, len)).collect();
            gaps.into_iter().for_each(|(gap, len)| self.insert(gap, p.part(gap - at, len)));
        }
    }

    /// `from..to` in runs that are either here or not, in order.
    pub fn over(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, Option<Data>)> + '_ {
        let before = self.runs.range(..from).next_back().filter(|(at, p)| **at + p.len > from).map(|(at, _)| *at);
        let mut runs = self.runs.range(before.unwrap_or(from)..to).peekable();
        let mut at = from;
        std::iter::from_fn(move || {
            if at >= to {
                return None;
            }
            let found = match runs.peek() {
                Some(&(&start, p)) if start <= at => {
                    runs.next();
                    let len = (start + p.len).min(to) - at;
                    (at, len, Some(p.data.slice(p.len, at - start, len)))
                }
                Some(&(&start, _)) => (at, start - at, None),
                None => (at, to - at, None),
            };
            at += found.1;
            Some(found)
        })
    }

    /// True if the data of every byte of `from..to` are here.
    pub fn covers(&self, from: u64, to: u64) -> bool {
        self.over(from, to).all(|(.., data)| data.is_some())
    }

    /// True if every byte of `from..to` is here, and zero.
    pub fn is_zero(&self, from: u64, to: u64) -> bool {
        self.over(from, to).all(|(.., data)| matches!(data, Some(Data::Zeroes)))
    }

    /// Addresses, lengths and sequence numbers, in order of address.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Piece)> {
        self.runs.iter().map(|(at, p)| (*at, p))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Buf;
    use proptest::prelude::*;

    proptest! {
        /// Against an array of bytes.
        #[test]
        fn they_are_bytes_over_nothing(acts in prop::collection::vec((0u8..6, 0u64..80, 1u64..30), 1..60)) {
            let mut pieces = Pieces::default();
            let mut plain: Vec<Option<u8>> = vec![None; 120];
            for (n, (kind, at, len)) in acts.into_iter().enumerate() {
                let range = at as usize..(at + len) as usize;
                match kind {
                    0..3 => {
                        pieces.put(at, len, Data::Bytes(Buf::copy_of(&vec![n as u8 + 1; len as usize])), n as u64, false);
                        plain[range].fill(Some(n as u8 + 1));
                    }
                    3 => {
                        pieces.put(at, len, Data::Zeroes, n as u64, false);
                        plain[range].fill(Some(0));
                    }
                    4 => {
                        pieces.take(at, at + len);
                        plain[range].fill(None);
                    }
                    _ => {
                        // Something newer comes while they are out.
                        let out = pieces.take(at, at + len);
                        pieces.put(at, 1, Data::Zeroes, n as u64, false);
                        plain[at as usize] = Some(0);
                        pieces.put_back(out);
                    }
                }
                let mut found = Vec::new();
                for (at, len, data) in pieces.over(0, 120) {
                    prop_assert_eq!(at as usize, found.len());
                    let mut bytes = vec![0; len as usize];
                    data.iter().for_each(|d| d.copy_to(&mut bytes));
                    found.extend(bytes.into_iter().map(|b| data.is_some().then_some(b)));
                }
                prop_assert_eq!(&found, &plain);
                let held: u64 = pieces.iter().filter(|(_, p)| !matches!(p.data, Data::Zeroes)).map(|(_, p)| p.len).sum();
                prop_assert_eq!(pieces.bytes(), held);
            }
        }
    }
}
