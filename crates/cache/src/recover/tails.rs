//! Dirty chunks that a power loss may have torn. Each is checked whole before it is trusted: its own extents by reading its WEU, the
//! extents that its duplicates rely on one by one. A few reads at a time; only the verdict is kept.

use super::{Recovery, Step, World};
use crate::format::{ChunkHeader, EXTENT_HEAD_BYTES, ExtentHead, Slot};
use crate::index::{UNIT_BYTES, bit};
use crate::tasks::{Expected, unpack};
use plimsoll_base::{Buf, Data};
use std::collections::BTreeSet;
use xxhash_rust::xxh3::xxh3_64;

/// Reads at once; of a whole WEU each, at most.
const READS_MAX: u32 = 4;

/// Something to read and check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Check {
    /// The extents of a WEU's doubtful chunks.
    Weu(u32),
    /// The place that a duplicate relies on: a WEU, the WEU's number, the first unit, the number of units, and the checksum if the
    /// extent is bare.
    Place(u32, u64, u16, u16, u32),
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Tails {
    /// WEUs with dirty chunks that no flush is known to have covered.
    pub(super) weus: Vec<(u32, Vec<ChunkHeader>)>,
    checks: Vec<Check>,
    next: usize,
    /// Chunks with extents that aren't what they should be, by their numbers.
    wrong: BTreeSet<u64>,
    wrong_places: BTreeSet<Check>,
}

/// True if the expected extent is at `at` bytes.
fn is_there(bytes: &Buf, at: usize, expected: Expected, extent_bytes: u64) -> bool {
    let (name, sequence) = match expected {
        Expected::Head { name, sequence } => (name, sequence),
        Expected::Sum(sum) => {
            let extent = bytes.as_slice().get(at..at + extent_bytes as usize);
            return extent.is_some_and(|b| xxh3_64(b) as u32 == sum);
        }
    };
    let Some(head) = bytes.as_slice().get(at..at + EXTENT_HEAD_BYTES) else { return false };
    let Some(head) = ExtentHead::decode(head.try_into().expect("as long as a head"), sequence) else { return false };
    let from = at + EXTENT_HEAD_BYTES;
    let fits = from + head.payload_bytes as usize <= bytes.len();
    fits && name.is_none_or(|n| n == head.name)
        && unpack(Data::Bytes(bytes.slice(from, head.payload_bytes as usize)), &head, extent_bytes, false).is_some()
}

/// The expectation of `len_units` units: bare if they are a whole extent's.
fn expected(len_units: u16, extent_bytes: u64, sum: u32, head: Expected) -> Expected {
    if u64::from(len_units) * u64::from(UNIT_BYTES) == extent_bytes { Expected::Sum(sum) } else { head }
}

impl Recovery {
    /// Begins to read the WEUs whose last chunks may be torn, and what those refer to.
    pub(super) fn check_tails(&mut self, world: &mut World) -> Step {
        let mut checks: BTreeSet<Check> = BTreeSet::new();
        for (weu, chunks) in &self.tails.weus {
            checks.insert(Check::Weu(*weu));
            for h in chunks.iter().filter(|h| self.is_doubtful(h)) {
                checks.extend(self.places(h, world).into_iter().flatten());
            }
        }
        self.report.doubtful = self.tails.weus.len() as u32;
        self.tails.checks = checks.into_iter().collect();
        self.check_more(world)
    }

    fn check_more(&mut self, world: &mut World) -> Step {
        let block = u64::from(self.layout.block_bytes);
        while self.outstanding < READS_MAX
            && let Some(check) = self.tails.checks.get(self.tails.next).copied()
        {
            let what = self.tails.next as u32;
            self.tails.next += 1;
            let (from, to) = match check {
                Check::Weu(weu) => (self.layout.weu_at(weu), self.layout.weu_at(weu + 1)),
                Check::Place(weu, _, at, len, _) => {
                    let from = self.layout.weu_at(weu) + u64::from(at) * 64;
                    (from, (from + u64::from(len) * 64).min(self.layout.weu_at(weu + 1)))
                }
            };
            let (from, to) = (from / block * block, to.next_multiple_of(block));
            self.order_read((from, to - from), what);
        }
        if self.outstanding == 0 { self.judge(world) } else { Ok(None) }
    }

    /// Takes the result of a check's read; nothing if the place is unreadable. Then the headers are trusted: a read of an extent that
    /// they name fails, and no older content is served in its place.
    pub(super) fn tail_read(&mut self, what: u32, bytes: Option<Buf>, world: &mut World) -> Step {
        let e = self.extent_bytes();
        let block = self.layout.block_bytes as usize;
        let check = self.tails.checks[what as usize];
        match (check, bytes) {
            (_, None) => {}
            (Check::Weu(weu), Some(bytes)) => {
                let chunks = self.tails.weus.iter().find(|t| t.0 == weu).map_or(&[][..], |t| &t.1);
                let whole = |h: &ChunkHeader| {
                    let mut own = h.entries.iter().filter(|e| matches!(e.what, Slot::Base(_)));
                    own.all(|x| {
                        let head = Expected::Head { name: Some(x.name), sequence: h.sequence };
                        is_there(&bytes, usize::from(x.at_unit) * 64, expected(x.len_units, e, x.sum, head), e)
                    })
                };
                let wrong = chunks.iter().filter(|h| self.is_doubtful(h) && !whole(h)).map(|h| h.chunk);
                let wrong: Vec<u64> = wrong.collect();
                self.tails.wrong.extend(wrong);
            }
            (Check::Place(_, sequence, at, len, sum), Some(bytes)) => {
                let wanted = expected(len, e, sum, Expected::Head { name: None, sequence });
                if !is_there(&bytes, usize::from(at) * 64 % block, wanted, e) {
                    self.tails.wrong_places.insert(check);
                }
            }
        }
        self.check_more(world)
    }

    /// True if every extent of a chunk is there, and right. The place that a duplicate relied on may be gone when the duplicate is, and
    /// a WEU whose header isn't there will be written again, whatever of it is there.
    pub(super) fn is_whole(&self, h: &ChunkHeader, world: &World) -> bool {
        let tails = &self.tails;
        !tails.wrong.contains(&h.chunk)
            && self.places(h, world).into_iter().all(|p| p.is_some_and(|check| !tails.wrong_places.contains(&check)))
    }

    /// The places that a chunk's duplicates rely on, of duplicates that are still valid; `None` for a place that can't exist.
    fn places(&self, h: &ChunkHeader, world: &World) -> Vec<Option<Check>> {
        let marks = &self.marks[h.weu as usize];
        let past = |slot, volume| bit(&marks.dead, slot) || bit(&marks.cleaned, slot) || self.is_gone(volume, world);
        let mut all = Vec::new();
        for (entry, slot) in h.entries.iter().zip(h.first_slot..) {
            if let Slot::Ref { weu, sequence, .. } = entry.what
                && !entry.dead
                && !past(slot, &entry.name.volume)
            {
                let is_there = weu < self.layout.weus && world.index.weu(weu).sequence == sequence;
                let place = Check::Place(weu, sequence, entry.at_unit, entry.len_units, entry.sum);
                all.push(is_there.then_some(place));
            }
        }
        all
    }
}
