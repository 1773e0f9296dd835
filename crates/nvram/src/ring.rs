//! The NVRAM's ring, in two copies: records one after the other. Each record has the number of the first record that was still needed
//! when it was written.
//!
//! ```text
//!  NVRAM   │ ring │ the same ring │
//!  record  │ magic 4 │ bytes 4 │ salt 8 │ number 8 │ first number that counts 8 │ offset 8 │ checksum 8 │ whole below 8 │ place 8 │ data
//! ```
//! A record takes whole blocks and is acknowledged when both copies have it. So a record that is corrupt in one copy is read from the
//! other. A record that is whole in neither copy was never acknowledged, unless a later one states that it was: then the NVRAM is
//! corrupt.
//!
//! NVRAM of version 1 has one ring, which takes all of it, and no number below which all records are whole. Its records are moved on to
//! the device under the rules of version 1. Then a ring of this version begins. NVRAM with records of a later version is refused: they
//! may be all that there is of a write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: u32 = u32::from_le_bytes(*b"NVR2");
const MAGIC_1: u32 = u32::from_le_bytes(*b"NVR1");
/// The version in a magic is a digit after these bytes. Length, salt and checksum of a record are at the same place in each version.
const MAGIC_BEGINS: &[u8; 3] = b"NVR";
/// Bytes before a record's data.
const RECORD_HEAD_BYTES: usize = 64;
const SUM_AT: usize = 40;

/// A record, read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub number: u64,
    /// The first number that counted when it was written.
    pub first: u64,
    /// The offset of its data on the device.
    pub offset: u64,
    pub data: Vec<u8>,
    /// All records below this number were durable when it was written.
    whole: u64,
    /// Its offset in the ring.
    at: u64,
}

/// No NVRAM is written that often, and no device is that large: a number above it is damage that its checksum doesn't show.
const NUMBER_MAX: u64 = 1 << 62;
const SENSELESS: &str = "the NVRAM's records make no sense";

impl Record {
    fn is_possible(&self) -> bool {
        [self.number, self.first, self.whole, self.offset].iter().all(|n| *n <= NUMBER_MAX)
    }

    fn encode(&self, salt: u64, block_bytes: u32, magic: u32) -> Vec<u8> {
        let len = (RECORD_HEAD_BYTES + self.data.len()).next_multiple_of(block_bytes as usize);
        let mut b = vec![0; len];
        b[..4].copy_from_slice(&magic.to_le_bytes());
        b[4..8].copy_from_slice(&(self.data.len() as u32).to_le_bytes());
        for (at, word) in [(8, salt), (16, self.number), (24, self.first), (32, self.offset)] {
            b[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        if magic == MAGIC {
            b[48..56].copy_from_slice(&self.whole.to_le_bytes());
            b[56..64].copy_from_slice(&self.at.to_le_bytes());
        }
        b[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + self.data.len()].copy_from_slice(&self.data);
        let sum = xxh3_64(&b[..RECORD_HEAD_BYTES + self.data.len()]);
        b[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        b
    }

    fn decode(b: &[u8], salt: u64, magic: u32, unchecked: bool) -> Option<Record> {
        let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        if b.len() < RECORD_HEAD_BYTES || u32_at(0) != magic || u64_at(8) != salt {
            return None;
        }
        let mut whole = b.get(..RECORD_HEAD_BYTES.checked_add(u32_at(4) as usize)?)?.to_vec();
        whole[SUM_AT..SUM_AT + 8].fill(0);
        let record = Record {
            number: u64_at(16),
            first: u64_at(24),
            offset: u64_at(32),
            data: whole[RECORD_HEAD_BYTES..].to_vec(),
            whole: u64_at(48),
            at: u64_at(56),
        };
        (unchecked || xxh3_64(&whole) == u64_at(SUM_AT)).then_some(record)
    }

    fn bytes(&self, block_bytes: u32) -> u64 {
        (RECORD_HEAD_BYTES + self.data.len()).next_multiple_of(block_bytes as usize) as u64
    }
}

/// The version of a whole record that begins here, if it is of a version that this program doesn't know.
fn unknown_version(b: &[u8], salt: u64) -> Option<char> {
    let magic: [u8; 4] = b.get(..4)?.try_into().expect("four bytes");
    let version = magic.strip_prefix(MAGIC_BEGINS)?[0];
    let is_unknown = version.is_ascii_alphanumeric() && !b"12".contains(&version);
    (is_unknown && Record::decode(b, salt, u32::from_le_bytes(magic), false).is_some()).then_some(char::from(version))
}

/// The cache whose record begins in a block of NVRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordOf {
    /// That with the salt.
    This,
    /// Another one, or the block is data that look like it.
    Another,
    /// No record begins here.
    Nobody,
}

impl RecordOf {
    /// Judges a block by its first bytes. Nothing else is checked: nobody writes the salt of a cache but the cache.
    pub fn of(block: &[u8], salt: u64) -> RecordOf {
        match (block.strip_prefix(MAGIC_BEGINS), block.get(8..16)) {
            (Some([version, ..]), Some(found)) if version.is_ascii_alphanumeric() => {
                if found == salt.to_le_bytes() {
                    RecordOf::This
                } else {
                    RecordOf::Another
                }
            }
            _ => RecordOf::Nobody,
        }
    }
}

/// Options of reading a ring; anything but the default is a planted mistake.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Reading {
    /// Records that are missing are taken for never written.
    pub trusting: bool,
    /// Only the first copy is looked at.
    pub one_copy: bool,
    /// Checksums are ignored.
    pub unchecked: bool,
}

/// See the module's documentation.
pub(crate) struct Ring {
    device_bytes: u64,
    /// Of one copy.
    bytes: u64,
    block_bytes: u32,
    salt: u64,
    next: u64,
    /// The first number that counts.
    first: u64,
    head: u64,
    /// Those that count: number, where, how many bytes.
    live: VecDeque<(u64, u64, u64)>,
    /// Numbers of those that are on their way.
    writing: BTreeSet<u64>,
    /// It is of version 1: one copy, all of the device.
    old: bool,
}

impl Ring {
    pub(crate) fn new(device_bytes: u64, block_bytes: u32, salt: u64) -> Ring {
        let block = u64::from(block_bytes);
        let bytes = device_bytes / 2 / block * block;
        let device_bytes = device_bytes / block * block;
        let (next, first, head) = (1, 1, 0);
        let (live, writing) = (VecDeque::new(), BTreeSet::new());
        Ring { device_bytes, bytes, block_bytes, salt, next, first, head, live, writing, old: false }
    }

    /// Bytes of the NVRAM.
    pub(crate) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// Offsets on the NVRAM of the two copies of ring offset `at`.
    pub(crate) fn places(&self, at: u64) -> Vec<u64> {
        if self.old { vec![at] } else { vec![at, self.bytes + at] }
    }

    /// True if the ring is of version 1.
    pub(crate) fn is_old(&self) -> bool {
        self.old
    }

    /// The number that the next record will have.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next
    }

    fn used(&self) -> u64 {
        self.live.iter().map(|r| r.2).sum()
    }

    /// True if its content should move on.
    pub(crate) fn is_rather_full(&self) -> bool {
        self.used() > self.bytes / 2
    }

    /// The place for a record of `bytes` bytes; `spare` bytes after it stay free.
    fn place(&self, bytes: u64, spare: u64) -> Option<u64> {
        let need = bytes + spare;
        let Some(&(_, oldest, _)) = self.live.front() else {
            return Some(if self.head + need <= self.bytes { self.head } else { 0 });
        };
        if self.head >= oldest {
            if self.head + need <= self.bytes {
                return Some(self.head);
            }
            return (need < oldest).then_some(0);
        }
        (self.head + need < oldest).then_some(self.head)
    }

    fn add(&mut self, offset: u64, data: &[u8], first: u64, spare: u64) -> Option<(u64, Vec<u8>)> {
        let whole = self.writing.first().copied().unwrap_or(self.next);
        let mut record = Record { number: self.next, first, offset, data: data.to_vec(), whole, at: 0 };
        record.at = self.place(record.bytes(self.block_bytes), spare)?;
        let bytes = record.encode(self.salt, self.block_bytes, if self.old { MAGIC_1 } else { MAGIC });
        self.live.push_back((self.next, record.at, bytes.len() as u64));
        self.writing.insert(self.next);
        self.next += 1;
        self.head = record.at + bytes.len() as u64;
        Some((record.at, bytes))
    }

    /// A record of data for the device, and where it goes; `None` if there is no room.
    pub(crate) fn record(&mut self, offset: u64, data: &[u8]) -> Option<(u64, Vec<u8>)> {
        // Two blocks stay free for a record that the ring begins later, also if it must begin anew at its start.
        self.add(offset, data, self.first, 2 * u64::from(self.block_bytes))
    }

    /// The record that says that those below `first` don't count any more; its number is the last.
    pub(crate) fn begins_at(&mut self, first: u64) -> (u64, Vec<u8>) {
        self.add(0, &[], first, 0).expect("a block is kept free for it")
    }

    /// A record is durable in all places.
    pub(crate) fn written(&mut self, number: u64) {
        let was_writing = self.writing.remove(&number);
        assert!(was_writing, "record {number} of the NVRAM is durable, and wasn't being written");
    }

    /// True if a record is being written.
    pub(crate) fn is_writing(&self, number: u64) -> bool {
        self.writing.contains(&number)
    }

    /// That is durable.
    pub(crate) fn forget(&mut self, first: u64) {
        // Its client would be told that it is durable.
        assert!(self.writing.first().is_none_or(|n| *n >= first), "a record is forgotten while it is being written");
        assert!(self.first <= first && first <= self.next, "the ring begins where it never was");
        self.first = first;
        while self.live.front().is_some_and(|r| r.0 < first) {
            self.live.pop_front();
        }
    }

    /// Bytes of data for the device that the records which count can have at most.
    pub(crate) fn data_bytes_max(&self) -> u64 {
        self.used().saturating_sub(self.live.len() as u64 * RECORD_HEAD_BYTES as u64)
    }

    /// Asserts what `Layer::check` asserts of the ring; of each record if `most` count at most. `begins` is true while the record that the
    /// ring begins later is being written.
    pub(crate) fn check(&self, most: usize, begins: bool) {
        assert!(self.head <= self.bytes, "the ring's head is beyond its end");
        let numbers = self.live.front().map(|r| r.0).into_iter().chain(self.live.back().map(|r| r.0));
        let writing = self.writing.first().into_iter().chain(self.writing.last()).copied();
        let is_of_ring = |n: u64| self.first <= n && n < self.next;
        assert!(numbers.chain(writing).all(is_of_ring), "a record counts that doesn't");
        let end = self.live.back().map_or(self.head, |r| r.1 + r.2);
        assert!(self.head == end, "the ring's head isn't at its last record's end");
        let has_room = || self.place(u64::from(self.block_bytes), 0).is_some();
        assert!(begins || self.old || has_room(), "no block is free for the record that the ring begins later");
        if self.live.len() > most {
            return;
        }
        let pairs = || self.live.iter().zip(self.live.iter().skip(1));
        assert!(pairs().all(|(a, b)| a.0 < b.0), "records of the ring are out of order");
        let turns: Vec<_> = pairs().filter(|(a, b)| b.1 < a.1 + a.2).collect();
        let meets = || self.live.front().is_some_and(|oldest| self.head > oldest.1);
        let ends = self.live.iter().all(|r| r.2 > 0 && r.1 + r.2 <= self.bytes);
        assert!(ends && (turns.is_empty() || turns.len() == 1 && !meets()), "records of the ring overlap");
        let counts = |number: &u64| self.live.iter().any(|r| r.0 == *number);
        assert!(self.writing.iter().all(counts), "a record is being written that doesn't count");
    }

    /// Begins a ring of this version in the place of one of version 1, of which nothing counts but the record that says so. That one
    /// stays until a record of this version is durable.
    pub(crate) fn convert(&mut self) {
        let (_, kept, _) = self.live.pop_back().expect("the record that says that the others don't count");
        let (block, next) = (u64::from(self.block_bytes), self.next);
        *self = Ring::new(self.device_bytes, self.block_bytes, self.salt);
        (self.next, self.first) = (next, next);
        self.head = if kept == 0 || kept == self.bytes { block } else { 0 };
    }

    /// Takes over what the NVRAM has: the records that count, in order. Ranges of `read` that couldn't be read are in `lost`.
    ///
    /// # Errors
    /// If one is missing that was acknowledged, or may be, or if one is of an unknown version.
    pub(crate) fn recover(&mut self, read: &[u8], lost: &[(u64, u64)], how: Reading) -> Result<Vec<Record>, String> {
        let (block, half) = (self.block_bytes as usize, self.bytes);
        if let Some(version) = (0..read.len()).step_by(block).find_map(|i| unknown_version(&read[i..], self.salt)) {
            return Err(format!(
                "the NVRAM is of version {version}, this program knows 1 and 2: use the program that wrote it"
            ));
        }
        let mut found: BTreeMap<u64, Record> = BTreeMap::new();
        for copy in 0..if how.one_copy { 1 } else { 2 } {
            let from = (copy * half) as usize;
            let Some(read) = read.get(from..from + half as usize) else { break };
            for i in (0..read.len()).step_by(block) {
                let here = Record::decode(&read[i..], self.salt, MAGIC, how.unchecked);
                if let Some(r) = here.filter(|r| r.at == i as u64) {
                    found.entry(r.number).or_insert(r);
                }
            }
        }
        let lost_in = |copy: u64| {
            let bounds = (copy * half, (copy + 1) * half);
            let cut =
                move |(a, b): &(u64, u64)| (*a.max(&bounds.0) - bounds.0, (*b).min(bounds.1).saturating_sub(bounds.0));
            lost.iter().map(cut).filter(|(a, b)| a < b)
        };
        let twice = lost_in(0).any(|(a, b)| lost_in(1).any(|(c, d)| a < d && c < b));
        if twice {
            return Err("both copies of a part of the NVRAM can't be read".into());
        }
        if found.is_empty() {
            return self.recover_old(read, lost);
        }
        if !found.values().all(Record::is_possible) {
            return Err(SENSELESS.into());
        }
        let first = found.values().map(|r| r.first).max().unwrap_or(1);
        let whole = found.values().map(|r| r.whole).max().unwrap_or(1);
        found.retain(|n, _| *n >= first);
        let mut expected = first;
        for number in found.keys().copied().chain([whole]) {
            if number > expected && expected < whole && !how.trusting {
                return Err(format!("record {expected} of the NVRAM was acknowledged, and is corrupt in both copies"));
            }
            expected = number + 1;
        }
        let Some(last) = found.keys().next_back().copied() else { return Err(SENSELESS.into()) };
        (self.next, self.first) = (last + 1, first);
        self.take_over(found.into_values().collect())
    }

    /// Refuses records that can't have been written so: they lie one after the other, and leave a block for the record that the ring
    /// begins later. A record that was being written when the power went, and isn't there, leaves a gap.
    fn take_over(&mut self, found: Vec<Record>) -> Result<Vec<Record>, String> {
        self.live = found.iter().map(|r| (r.number, r.at, r.bytes(self.block_bytes))).collect();
        self.head = self.live.back().map_or(0, |r| r.1 + r.2);
        let ends = |r: &(u64, u64, u64)| r.1 + r.2;
        let turns = self.live.iter().zip(self.live.iter().skip(1)).filter(|(a, b)| b.1 < ends(a)).count();
        let is_beyond = self.live.iter().any(|r| ends(r) > self.bytes);
        let meets = turns == 1 && self.live.front().is_some_and(|oldest| self.head >= oldest.1);
        if turns > 1 || is_beyond || meets {
            return Err(format!("{SENSELESS}: they don't lie one after the other"));
        }
        if self.place(u64::from(self.block_bytes), 0).is_none() {
            return Err(format!("{SENSELESS}: they leave no block free"));
        }
        Ok(found.into_iter().filter(|r| !r.data.is_empty()).collect())
    }

    /// The same of NVRAM of version 1: what isn't whole was never acknowledged.
    fn recover_old(&mut self, read: &[u8], lost: &[(u64, u64)]) -> Result<Vec<Record>, String> {
        let block = self.block_bytes as usize;
        let mut found: Vec<Record> = (0..read.len() / block)
            .filter_map(|i| {
                let r = Record::decode(&read[i * block..], self.salt, MAGIC_1, false)?;
                Some(Record { at: (i * block) as u64, ..r })
            })
            .collect();
        if !found.iter().all(Record::is_possible) {
            return Err(SENSELESS.into());
        }
        found.sort_unstable_by_key(|r| r.number);
        let Some(last) = found.last().map(|r| r.number) else { return Ok(Vec::new()) };
        if !lost.is_empty() {
            return Err("the NVRAM can't be read".into());
        }
        (self.old, self.bytes) = (true, self.device_bytes);
        (self.next, self.first) = (last + 1, found.iter().map(|r| r.first).max().unwrap_or(1));
        found.retain(|r| r.number >= self.first);
        self.take_over(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    const BLOCK: u32 = 512;
    const BYTES: u64 = 32 << 10;

    /// Written, forgotten and found again at any instant, also with a torn last record.
    #[test]
    fn what_counts_is_found_in_order() {
        let mut rng = Rng::new(1, "ring");
        let (mut ring, mut memory) = (Ring::new(BYTES, BLOCK, 7), vec![0u8; BYTES as usize]);
        let mut model: VecDeque<(u64, u64, Vec<u8>)> = VecDeque::new();
        let mut rounds = 0;
        for step in 0..2000u64 {
            let data: Vec<u8> = (0..1 + rng.below(1500)).map(|_| rng.below(256) as u8).collect();
            let number = ring.next_sequence();
            match ring.record(step, &data) {
                Some(r) => {
                    put(&mut memory, &mut ring, number, &r);
                    model.push_back((number, step, data));
                }
                None => {
                    rounds += 1;
                    let first = model[rng.below(model.len() as u64) as usize].0 + 1;
                    let r = ring.begins_at(first);
                    put(&mut memory, &mut ring, number, &r);
                    ring.forget(first);
                    model.retain(|m| m.0 >= first);
                }
            }
            if rng.chance(0.2) {
                let mut again = Ring::new(BYTES, BLOCK, 7);
                // What is corrupt in one copy is in the other.
                let mut rotted = memory.clone();
                let copy = rng.below(2) * BYTES / 2;
                for _ in 0..rng.below(4) {
                    rotted[(copy + rng.below(BYTES / 2)) as usize] ^= 1 << rng.below(8);
                }
                let found = again.recover(&rotted, &[], Reading::default()).unwrap();
                let found: Vec<_> = found.into_iter().map(|r| (r.number, r.offset, r.data)).collect();
                assert_eq!(found, Vec::from(model.clone()), "step {step}");
                assert_eq!(again.next_sequence(), ring.next_sequence());
                ring = again;
            }
        }
        assert!(rounds > 50);
        assert!(
            Ring::new(BYTES, BLOCK, 8).recover(&memory, &[], Reading::default()).unwrap().is_empty(),
            "another cache's"
        );
    }

    fn put(memory: &mut [u8], ring: &mut Ring, number: u64, (at, bytes): &(u64, Vec<u8>)) {
        for at in ring.places(*at) {
            memory[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }
        ring.written(number);
    }

    fn recover(memory: &[u8], lost: &[(u64, u64)]) -> Result<Vec<Vec<u8>>, String> {
        let found = Ring::new(BYTES, BLOCK, 7).recover(memory, lost, Reading::default());
        found.map(|f| f.into_iter().map(|r| r.data).collect())
    }

    /// The ring's own rules, of each a state that breaks it.
    #[test]
    fn a_ring_that_breaks_its_rules_is_found() {
        let found = |spoil: &dyn Fn(&mut Ring)| {
            let mut ring = Ring::new(BYTES, BLOCK, 7);
            for n in 0..5 {
                ring.record(n, &[1; 700]).expect("room");
            }
            (1..4).for_each(|n| ring.written(n));
            ring.forget(2);
            ring.check(9, false);
            spoil(&mut ring);
            let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ring.check(9, false)));
            *said.expect_err("nothing is found").downcast::<&str>().expect("words")
        };
        assert!(found(&|r| r.head = r.bytes + 1).contains("beyond its end"));
        assert!(found(&|r| r.first = 3).contains("counts that doesn't"));
        assert!(found(&|r| r.next = 5).contains("counts that doesn't"));
        assert!(found(&|r| r.head += 512).contains("last record's end"));
        assert!(found(&|r| r.live.swap(1, 2)).contains("out of order"));
        assert!(found(&|r| r.live[1].1 -= 512).contains("overlap"));
        assert!(found(&|r| r.live[1].2 += 512).contains("overlap"));
        assert!(found(&|r| _ = r.live.remove(2)).contains("doesn't count"));
        let full = |r: &mut Ring| while r.add(0, &[1; 400], 2, 0).is_some() {};
        assert!(found(&|r| full(r)).contains("no block is free"));
    }

    #[test]
    #[should_panic(expected = "while it is being written")]
    fn a_record_that_is_being_written_is_not_forgotten() {
        let mut ring = Ring::new(BYTES, BLOCK, 7);
        ring.record(0, &[1; 100]);
        ring.forget(2);
    }

    /// No ring was left so: a start would find no place for the record that the ring begins later.
    #[test]
    fn a_ring_that_leaves_no_block_free_is_refused() {
        let (mut ring, mut memory) = (Ring::new(BYTES, BLOCK, 7), vec![0u8; BYTES as usize]);
        let mut before = Vec::new();
        loop {
            let number = ring.next_sequence();
            let Some(r) = ring.add(0, &[1; 100], 1, 0) else { break };
            before.clone_from(&memory);
            put(&mut memory, &mut ring, number, &r);
        }
        assert!(recover(&memory, &[]).unwrap_err().contains("no block free"));
        // One is enough.
        let mut one = Ring::new(BYTES, BLOCK, 7);
        one.recover(&before, &[], Reading::default()).unwrap();
        one.begins_at(one.next_sequence());
    }

    #[test]
    fn records_that_do_not_lie_one_after_the_other_are_refused() {
        let found = |places: &[u64]| {
            let mut memory = vec![0u8; BYTES as usize];
            for (number, block) in (1..).zip(places) {
                let at = block * u64::from(BLOCK);
                let bytes = Record { number, first: 1, offset: 0, data: vec![1; 500], whole: number, at };
                let bytes = bytes.encode(7, BLOCK, MAGIC);
                memory[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
            }
            recover(&memory, &[])
        };
        for good in [&[0, 2, 4][..], &[0, 4, 6], &[20, 24, 2], &[20, 22, 0, 2]] {
            assert_eq!(found(good).map(|f| f.len()), Ok(good.len()), "{good:?}");
        }
        for wrong in [&[4, 2, 0][..], &[20, 2, 24], &[20, 10, 2], &[2, 6, 0, 4], &[2, 6, 0]] {
            assert!(found(wrong).is_err_and(|e| e.contains("one after the other")), "{wrong:?}");
        }
    }

    #[test]
    fn an_acknowledged_record_that_is_corrupt_in_both_copies_is_missed() {
        let (mut ring, mut memory) = (Ring::new(BYTES, BLOCK, 7), vec![0u8; BYTES as usize]);
        let mut places = Vec::new();
        for n in 0..6u8 {
            let number = ring.next_sequence();
            let r = ring.record(0, &[n; 600]).unwrap();
            put(&mut memory, &mut ring, number, &r);
            places.push(r.0 as usize);
        }
        let all: Vec<Vec<u8>> = (0..6u8).map(|n| vec![n; 600]).collect();
        assert_eq!(recover(&memory, &[]).unwrap(), all);
        let half = BYTES as usize / 2;
        for (n, at) in places.iter().enumerate() {
            let mut rotted = memory.clone();
            rotted[at + 300] ^= 1;
            assert_eq!(recover(&rotted, &[]).unwrap(), all);
            rotted[half + at..half + at + 512].fill(0);
            match n {
                // Torn everywhere: it looks like one that was never acknowledged.
                5 => assert_eq!(recover(&rotted, &[]).unwrap(), all[..5]),
                _ => assert!(recover(&rotted, &[]).unwrap_err().contains(&format!("record {}", n + 1))),
            }
            // In the place of another.
            let mut rotted = memory.clone();
            let other = places[(n + 1) % 6];
            rotted.copy_within(other..other + 1024, *at);
            assert_eq!(recover(&rotted, &[]).unwrap(), all);
        }
        let (h, at) = (half as u64, places[2] as u64);
        let mut gone = memory.clone();
        gone[places[2]..places[2] + 512].fill(0);
        assert_eq!(recover(&gone, &[(at, at + 512)]).unwrap(), all);
        assert!(recover(&gone, &[(at, at + 512), (h + at, h + at + 512)]).unwrap_err().contains("both copies"));
    }

    /// Several are on their way when the power goes: any of them may be there, and none is missed.
    #[test]
    fn records_on_their_way_may_be_missing() {
        let (mut ring, mut memory) = (Ring::new(BYTES, BLOCK, 7), vec![0u8; BYTES as usize]);
        let first = ring.record(0, &[1; 100]).unwrap();
        let second = ring.record(0, &[2; 100]).unwrap();
        let third = ring.record(0, &[3; 100]).unwrap();
        drop(second);
        put(&mut memory, &mut ring, 1, &first);
        put(&mut memory, &mut ring, 3, &third);
        let fourth = ring.record(0, &[4; 100]).unwrap();
        put(&mut memory, &mut ring, 4, &fourth);
        assert_eq!(recover(&memory, &[]).unwrap(), [vec![1; 100], vec![3; 100], vec![4; 100]]);
    }

    /// A cache's own records are known by their salt, of whatever version; clients' data in them aren't taken for another cache's without them.
    #[test]
    fn a_record_tells_whose_it_is() {
        let of = |magic: &[u8; 4], salt| {
            let record = Record { number: 1, first: 1, offset: 0, data: vec![1; 100], whole: 1, at: 0 };
            RecordOf::of(&record.encode(salt, BLOCK, u32::from_le_bytes(*magic)), 7)
        };
        for magic in [b"NVR1", b"NVR2", b"NVR3"] {
            assert_eq!((of(magic, 7), of(magic, 8)), (RecordOf::This, RecordOf::Another));
        }
        for nothing in [&[0; 512][..], &[], b"NVR2", b"NVR2\0\0\0\0\x07", &[7; 512]] {
            assert_eq!(RecordOf::of(nothing, 7), RecordOf::Nobody);
        }
    }

    /// A record of a later version, in either copy, is never taken for an empty ring; one of another salt is not this cache's.
    #[test]
    fn a_record_of_an_unknown_version_is_refused_by_name() {
        let magic = u32::from_le_bytes(*b"NVR3");
        let record = |salt| {
            Record { number: 1, first: 1, offset: 0, data: vec![1; 100], whole: 1, at: 0 }.encode(salt, BLOCK, magic)
        };
        for at in [0, 512, BYTES as usize / 2] {
            let recovered = |salt, rotted| {
                let mut memory = vec![0; BYTES as usize];
                memory[at..at + 512].copy_from_slice(&record(salt));
                memory[at + 100] ^= rotted;
                Ring::new(BYTES, BLOCK, 7).recover(&memory, &[], Reading::default())
            };
            let refused = recovered(7, 0).unwrap_err();
            assert!(refused.contains("version 3") && refused.contains("use the program"), "{refused}");
            assert_eq!(recovered(8, 0), Ok(Vec::new()), "another salt");
            assert_eq!(recovered(7, 1), Ok(Vec::new()), "a version that is damage");
        }
    }

    /// Version 1 under its own rules; then a ring of this version, and at no instant do old records count again.
    #[test]
    fn a_ring_of_version_1_is_converted() {
        for fill in 1..20 {
            let mut memory = vec![0u8; BYTES as usize];
            let mut old = Ring { old: true, bytes: BYTES, ..Ring::new(BYTES, BLOCK, 7) };
            for n in 0..fill {
                let number = old.next_sequence();
                let r = match old.record(n, &vec![n as u8; 900]) {
                    Some(r) => r,
                    None => break,
                };
                put(&mut memory, &mut old, number, &r);
            }
            let mut ring = Ring::new(BYTES, BLOCK, 7);
            let found = ring.recover(&memory, &[], Reading::default()).unwrap();
            assert!(ring.is_old() && !found.is_empty());
            let number = ring.next_sequence();
            let r = ring.begins_at(number);
            put(&mut memory, &mut ring, number, &r);
            ring.forget(number);
            assert!(recover(&memory, &[]).unwrap().is_empty());
            ring.convert();
            let number = ring.next_sequence();
            let (at, bytes) = ring.begins_at(number);
            // Torn in both copies, in any way: nothing counts.
            for kept in 0..4usize {
                let mut torn = memory.clone();
                for (copy, at) in ring.places(at).into_iter().enumerate() {
                    let part = if kept >> copy & 1 == 1 { &bytes[..] } else { &[7; 512][..] };
                    torn[at as usize..at as usize + part.len()].copy_from_slice(part);
                }
                assert!(recover(&torn, &[]).unwrap().is_empty(), "fill {fill}, kept {kept}");
            }
            put(&mut memory, &mut ring, number, &(at, bytes));
            ring.forget(number);
            let number = ring.next_sequence();
            let r = ring.record(5, &[9; 1000]).unwrap();
            put(&mut memory, &mut ring, number, &r);
            assert_eq!(recover(&memory, &[]).unwrap(), [vec![9; 1000]]);
        }
    }
}
