//! Changes of bands that wait in memory: runs by address, the newest where they overlap.

use plimsoll_base::{Buf, BufMut, Data};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Memory comes in pages.
const PAGE_BYTES: u64 = 4096;

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

    fn is_zero(&self) -> bool {
        matches!(self.data, Data::Zeroes)
    }

    /// Bytes of memory that it counts for.
    fn bytes(&self) -> u64 {
        if self.is_zero() { 0 } else { self.len.next_multiple_of(PAGE_BYTES) }
    }

    /// The same without the rest of a larger buffer that it's a part of: that would stay in memory as long as the part does.
    fn alone(mut self) -> Piece {
        if kept_bytes(&self.data) > 2 * self.bytes().max(1) {
            let mut own = BufMut::zeroed(self.len as usize);
            self.data.copy_to(own.as_mut_slice());
            self.data = Data::Bytes(own.freeze());
        }
        self
    }
}

/// Bytes of the buffers that data are parts of.
pub(crate) fn kept_bytes(data: &Data) -> u64 {
    match data {
        Data::Bytes(b) => Buf::kept_bytes(b) as u64,
        Data::Parts(parts) => parts.iter().map(|(_, d)| kept_bytes(d)).sum(),
        _ => 0,
    }
}

/// Changes of one band, or those that a copy holds.
#[derive(Default, Debug)]
pub(crate) struct Pieces {
    runs: BTreeMap<u64, Piece>,
    bytes: u64,
    /// Bytes of all runs, zeroes too.
    covered: u64,
    /// Clients' runs by their place in the order of changes, with the address; then copies.
    order: [BTreeSet<(u64, u64)>; 2],
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
        !self.order[0].is_empty()
    }

    /// The place in the order of the oldest: of copies, or of clients' changes.
    fn first_of(&self, copies: bool) -> Option<u64> {
        self.order[usize::from(copies)].first().map(|(sequence, _)| *sequence)
    }

    /// The same of clients' changes, and of copies if `copies`; the greatest number if there is none.
    pub fn first(&self, copies: bool) -> u64 {
        let of_copies = self.first_of(true).filter(|_| copies);
        self.first_of(false).into_iter().chain(of_copies).min().unwrap_or(u64::MAX)
    }

    fn insert(&mut self, at: u64, p: Piece) {
        let p = p.alone();
        self.bytes += p.bytes();
        self.covered += p.len;
        self.order[usize::from(p.is_copy)].insert((p.sequence, at));
        self.runs.insert(at, p);
    }

    fn remove(&mut self, at: u64) -> Option<Piece> {
        let p = self.runs.remove(&at)?;
        self.bytes -= p.bytes();
        self.covered -= p.len;
        self.order[usize::from(p.is_copy)].remove(&(p.sequence, at));
        Some(p)
    }

    /// Drops what is in `from..to`. Returns the place in the order of the oldest of it, and whether some of it is of clients.
    fn clear(&mut self, from: u64, to: u64) -> (u64, bool) {
        let (mut first, mut of_clients) = (u64::MAX, false);
        while let Some((&at, p)) = self.runs.range(..to).next_back()
            && at + p.len > from
        {
            let p = self.remove(at).expect("just found");
            if at < from {
                self.insert(at, p.part(0, from - at));
            }
            if at + p.len > to {
                self.insert(to, p.part(to - at, at + p.len - to));
            }
            (first, of_clients) = (first.min(p.sequence), of_clients || !p.is_copy);
        }
        (first, of_clients)
    }

    /// From now on `at` and what follows is `data`. Its place in the order is that of the oldest change that it replaces: whoever waits for
    /// that one to be durable now waits for this one. So it is a copy only if all that it replaces are.
    pub fn put(&mut self, mut at: u64, mut len: u64, data: Data, sequence: u64, is_copy: bool) {
        let (first, of_clients) = self.clear(at, at + len);
        let (mut sequence, is_copy) = (first.min(sequence), is_copy && !of_clients);
        if matches!(data, Data::Zeroes) {
            // Many small ones side by side are one.
            let joins = |p: &Piece| p.is_zero() && p.is_copy == is_copy;
            if let Some((&before, p)) = self.runs.range(..at).next_back()
                && before + p.len == at
                && joins(p)
            {
                let p = self.remove(before).expect("just found");
                (at, len, sequence) = (before, len + p.len, sequence.min(p.sequence));
            }
            if self.runs.get(&(at + len)).is_some_and(joins) {
                let p = self.remove(at + len).expect("just found");
                (len, sequence) = (len + p.len, sequence.min(p.sequence));
            }
        }
        self.insert(at, Piece { len, data, sequence, is_copy });
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

    /// True if the data of some bytes of `from..to` are here.
    pub fn touches(&self, from: u64, to: u64) -> bool {
        self.over(from, to).any(|(.., data)| data.is_some())
    }

    /// Drops all copies. True if there were any.
    fn drop_copies(&mut self) -> bool {
        let copies: Vec<u64> = self.order[1].iter().map(|(_, at)| *at).collect();
        copies.iter().for_each(|at| drop(self.remove(*at)));
        !copies.is_empty()
    }

    /// Drops `most` runs at most.
    pub fn forget(&mut self, most: usize) {
        for _ in 0..most {
            let Some((&at, _)) = self.runs.first_key_value() else { return };
            self.remove(at);
        }
    }

    /// Asserts what `Layer::check` asserts of all.
    pub fn check(&self) {
        let runs = || self.runs.values();
        let kept = (runs().map(Piece::bytes).sum::<u64>(), runs().map(|p| p.len).sum::<u64>());
        assert_eq!((self.bytes, self.covered), kept, "the bytes of a band's changes are wrong");
        let clients = runs().filter(|p| !p.is_copy).count();
        assert_eq!(
            (self.order[0].len(), self.order[1].len()),
            (clients, self.runs.len() - clients),
            "the order is wrong"
        );
    }

    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = (u64, &Piece)> {
        self.runs.iter().map(|(at, p)| (*at, p))
    }
}

/// Changes of all bands. Each is of one band.
#[derive(Debug)]
pub(crate) struct Buffer {
    zone_bytes: u64,
    bands: BTreeMap<u32, Pieces>,
    none: Pieces,
    bytes: u64,
    runs: usize,
    /// Of each band with changes of clients, the oldest one's place in the order; then of each with copies.
    first: [BTreeSet<(u64, u32)>; 2],
}

impl Buffer {
    /// An empty one of bands of `zone_bytes`.
    pub fn new(zone_bytes: u64) -> Buffer {
        Buffer {
            zone_bytes,
            bands: BTreeMap::new(),
            none: Pieces::default(),
            bytes: 0,
            runs: 0,
            first: Default::default(),
        }
    }

    /// Bytes of memory that they hold.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of runs.
    pub fn len(&self) -> usize {
        self.runs
    }

    /// True if some are changes of clients.
    pub fn has_clients(&self) -> bool {
        !self.first[0].is_empty()
    }

    /// The place in the order of the oldest change of clients, or of copies too if `copies`; the greatest number if there is none.
    pub fn first(&self, copies: bool) -> u64 {
        let of = |kind: usize| self.first[kind].first().map(|(sequence, _)| *sequence);
        of(0).into_iter().chain(of(1).filter(|_| copies)).min().unwrap_or(u64::MAX)
    }

    fn of(&self, band: u32) -> &Pieces {
        self.bands.get(&band).unwrap_or(&self.none)
    }

    fn band(&self, at: u64) -> u32 {
        (at / self.zone_bytes) as u32
    }

    fn remove(&mut self, band: u32) -> Pieces {
        let Some(pieces) = self.bands.remove(&band) else { return Pieces::default() };
        self.bytes -= pieces.bytes;
        self.runs -= pieces.len();
        for copies in [false, true] {
            if let Some(sequence) = pieces.first_of(copies) {
                self.first[usize::from(copies)].remove(&(sequence, band));
            }
        }
        pieces
    }

    fn insert(&mut self, band: u32, pieces: Pieces) {
        if pieces.len() == 0 {
            return;
        }
        self.bytes += pieces.bytes;
        self.runs += pieces.len();
        for copies in [false, true] {
            self.first[usize::from(copies)].extend(pieces.first_of(copies).map(|sequence| (sequence, band)));
        }
        self.bands.insert(band, pieces);
    }

    /// As [`Pieces::put`].
    pub fn put(&mut self, at: u64, len: u64, data: Data, sequence: u64, is_copy: bool) {
        let band = self.band(at);
        let mut pieces = self.remove(band);
        pieces.put(at, len, data, sequence, is_copy);
        self.insert(band, pieces);
    }

    /// Takes out all changes of a band.
    pub fn take(&mut self, band: u32) -> Pieces {
        self.remove(band)
    }

    /// Puts changes of a band back that were taken out: what came since is newer, and whoever waits for what it replaces waits for it.
    pub fn put_back(&mut self, band: u32, mut older: Pieces) {
        let newer = self.remove(band);
        for (at, p) in newer.runs {
            older.put(at, p.len, p.data, p.sequence, p.is_copy);
        }
        self.insert(band, older);
    }

    /// As [`Pieces::over`], within one band.
    pub fn over(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, Option<Data>)> + '_ {
        self.of(self.band(from)).over(from, to)
    }

    /// As [`Pieces::is_zero`], within one band.
    pub fn is_zero(&self, from: u64, to: u64) -> bool {
        self.of(self.band(from)).is_zero(from, to)
    }

    /// The first band with a change before `limit` in the order: clients' only, unless `copies`.
    pub fn before(&self, limit: u64, copies: bool) -> Option<u32> {
        if self.first(copies) >= limit {
            return None;
        }
        self.bands.iter().find(|(_, pieces)| pieces.first(copies) < limit).map(|(band, _)| *band)
    }

    /// The first band with changes of clients that `wanted` takes.
    pub fn with_clients(&self, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        self.bands.iter().find(|(band, pieces)| pieces.has_clients() && wanted(**band)).map(|(band, _)| *band)
    }

    /// True if a band has changes of clients.
    pub fn has_clients_in(&self, band: u32) -> bool {
        self.bands.get(&band).is_some_and(Pieces::has_clients)
    }

    /// The band with most bytes of changes that `wanted` takes.
    pub fn fullest(&self, wanted: impl Fn(u32) -> bool) -> Option<u32> {
        let found = self.bands.iter().filter(|(band, _)| wanted(**band));
        found.max_by_key(|(band, pieces)| (pieces.covered, Reverse(**band))).map(|(band, _)| *band)
    }

    /// Drops a band's copies. Returns the places in the order of the oldest change of clients, and of the oldest of all before; and whether it
    /// had copies.
    pub fn drop_copies(&mut self, band: u32) -> ([u64; 2], bool) {
        let mut pieces = self.remove(band);
        let first = [pieces.first(false), pieces.first(true)];
        let has_dropped = pieces.drop_copies();
        self.insert(band, pieces);
        (first, has_dropped)
    }

    /// Asserts what `Layer::check` asserts, if they are `most` runs at most.
    pub fn check(&self, most: usize) {
        if self.runs > most {
            return;
        }
        self.bands.values().for_each(Pieces::check);
        let all = self.bands.values().fold((0, 0), |(bytes, runs), p| (bytes + p.bytes, runs + p.len()));
        assert_eq!((self.bytes, self.runs), all, "the buffer's bytes are wrong");
        for copies in [false, true] {
            let first = self.bands.iter().filter_map(|(band, p)| Some((p.first_of(copies)?, *band)));
            assert!(first.collect::<BTreeSet<_>>() == self.first[usize::from(copies)], "the order of bands is wrong");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against an array of bytes.
        #[test]
        fn they_are_bytes_over_nothing(acts in prop::collection::vec((0u8..7, 0u64..80, 1u64..30, any::<bool>()), 1..60)) {
            let mut buffer = Buffer::new(120);
            let mut plain: Vec<Option<u8>> = vec![None; 120];
            // Each byte's place in the order, and whether it's a copy: no later, and no copy where one was of a client.
            let mut order: Vec<Option<(u64, bool)>> = vec![None; 120];
            for (n, (kind, at, len, is_copy)) in acts.into_iter().enumerate() {
                let range = at as usize..(at + len) as usize;
                let mut put = |buffer: &mut Buffer, at: u64, len: u64, fill: u8| {
                    let data = match fill {
                        0 => Data::Zeroes,
                        _ => Data::Bytes(Buf::copy_of(&vec![fill; len as usize])),
                    };
                    buffer.put(at, len, data, n as u64, is_copy);
                    let range = at as usize..(at + len) as usize;
                    let replaced = order[range.clone()].iter().flatten();
                    let oldest = replaced.fold((n as u64, is_copy), |a, b| (a.0.min(b.0), a.1 && b.1));
                    order[range].fill(Some(oldest));
                };
                match kind {
                    0..3 => {
                        put(&mut buffer, at, len, n as u8 + 1);
                        plain[range].fill(Some(n as u8 + 1));
                    }
                    3 | 4 => {
                        put(&mut buffer, at, len, 0);
                        plain[range].fill(Some(0));
                    }
                    5 => {
                        buffer.take(0);
                        plain.fill(None);
                        order.fill(None);
                    }
                    _ => {
                        // Something newer comes while they are out.
                        let out = buffer.take(0);
                        put(&mut buffer, at, 1, 0);
                        plain[at as usize] = Some(0);
                        buffer.put_back(0, out);
                    }
                }
                buffer.check(usize::MAX);
                let mut found = Vec::new();
                for (at, len, data) in buffer.over(0, 120) {
                    prop_assert_eq!(at as usize, found.len());
                    let mut bytes = vec![0; len as usize];
                    data.iter().for_each(|d| d.copy_to(&mut bytes));
                    found.extend(bytes.into_iter().map(|b| data.is_some().then_some(b)));
                }
                prop_assert_eq!(&found, &plain);
                let of_clients = order.iter().flatten().filter(|(_, is_copy)| !is_copy).map(|(sequence, _)| *sequence).min();
                prop_assert!(buffer.first(false) <= of_clients.unwrap_or(u64::MAX));
                let all = order.iter().flatten().map(|(sequence, _)| *sequence).min();
                prop_assert!(buffer.first(true) <= all.unwrap_or(u64::MAX));
                prop_assert_eq!(buffer.has_clients(), of_clients.is_some());
            }
        }
    }

    /// The rest of a large change doesn't keep the memory of all of it.
    #[test]
    fn a_small_rest_keeps_little_memory() {
        const LARGE: u64 = 24 << 20;
        let mut buffer = Buffer::new(1 << 30);
        for k in 0..80 {
            let at = k * PAGE_BYTES;
            buffer.put(at, LARGE, Data::Bytes(BufMut::zeroed(LARGE as usize).freeze()), k, false);
            buffer.put(at + PAGE_BYTES, LARGE - PAGE_BYTES, Data::Zeroes, k, false);
        }
        let kept: u64 = buffer.of(0).iter().map(|(_, p)| kept_bytes(&p.data)).sum();
        assert!(kept <= 2 * buffer.bytes() && buffer.bytes() == 80 * PAGE_BYTES, "{kept}");
    }
}
