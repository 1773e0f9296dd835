//! The NVRAM's ring: records one after the other, each with where the ring began when it was written.
//!
//! ```text
//!  magic 4 │ bytes 4 │ salt 8 │ number 8 │ first number that counts 8 │ offset 8 │ checksum 8 │ … 64 │ data
//! ```
//! A record takes whole blocks. What isn't whole was never acknowledged.

use std::collections::VecDeque;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: u32 = u32::from_le_bytes(*b"NVR1");
/// Bytes before a record's data.
const RECORD_HEAD_BYTES: usize = 64;
const SUM_AT: usize = 40;

/// A record, read back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Record {
    pub number: u64,
    /// The first number that counted when it was written.
    pub first: u64,
    /// Where its data belong on the device.
    pub offset: u64,
    pub data: Vec<u8>,
}

impl Record {
    fn encode(&self, salt: u64, block_bytes: u32) -> Vec<u8> {
        let len = (RECORD_HEAD_BYTES + self.data.len()).next_multiple_of(block_bytes as usize);
        let mut b = vec![0; len];
        b[..4].copy_from_slice(&MAGIC.to_le_bytes());
        b[4..8].copy_from_slice(&(self.data.len() as u32).to_le_bytes());
        for (at, word) in [(8, salt), (16, self.number), (24, self.first), (32, self.offset)] {
            b[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        b[RECORD_HEAD_BYTES..RECORD_HEAD_BYTES + self.data.len()].copy_from_slice(&self.data);
        let sum = xxh3_64(&b[..RECORD_HEAD_BYTES + self.data.len()]);
        b[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        b
    }

    fn decode(b: &[u8], salt: u64) -> Option<Record> {
        let u32_at = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        if b.len() < RECORD_HEAD_BYTES || u32_at(0) != MAGIC || u64_at(8) != salt {
            return None;
        }
        let mut whole = b.get(..RECORD_HEAD_BYTES + u32_at(4) as usize)?.to_vec();
        whole[SUM_AT..SUM_AT + 8].fill(0);
        let record = Record {
            number: u64_at(16),
            first: u64_at(24),
            offset: u64_at(32),
            data: whole[RECORD_HEAD_BYTES..].to_vec(),
        };
        (xxh3_64(&whole) == u64_at(SUM_AT)).then_some(record)
    }
}

/// See the module's documentation.
pub(crate) struct Ring {
    bytes: u64,
    block_bytes: u32,
    salt: u64,
    next: u64,
    /// The first number that counts.
    first: u64,
    head: u64,
    /// Those that count: number, where, how many bytes.
    live: VecDeque<(u64, u64, u64)>,
}

impl Ring {
    pub(crate) fn new(bytes: u64, block_bytes: u32, salt: u64) -> Ring {
        Ring { bytes, block_bytes, salt, next: 1, first: 1, head: 0, live: VecDeque::new() }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The number that the next record will have.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next
    }

    fn used(&self) -> u64 {
        self.live.iter().map(|r| r.2).sum()
    }

    /// Should what it holds move on?
    pub(crate) fn is_rather_full(&self) -> bool {
        self.used() > self.bytes / 2
    }

    /// Where a record of so many bytes goes; `spare` bytes after it stay free.
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
        let record = Record { number: self.next, first, offset, data: data.to_vec() };
        let bytes = record.encode(self.salt, self.block_bytes);
        let at = self.place(bytes.len() as u64, spare)?;
        self.live.push_back((self.next, at, bytes.len() as u64));
        self.next += 1;
        self.head = at + bytes.len() as u64;
        Some((at, bytes))
    }

    /// A record of data for the device, and where it goes; `None` if there is no room.
    pub(crate) fn record(&mut self, offset: u64, data: &[u8]) -> Option<(u64, Vec<u8>)> {
        // Two blocks stay free for a record that the ring begins later, also if it must begin anew at its start.
        self.add(offset, data, self.first, 2 * u64::from(self.block_bytes))
    }

    /// The record that says that those below `first` don't count any more.
    pub(crate) fn begins_at(&mut self, first: u64) -> (u64, Vec<u8>) {
        self.add(0, &[], first, 0).expect("a block is kept free for it")
    }

    /// That is durable.
    pub(crate) fn forget(&mut self, first: u64) {
        self.first = first;
        while self.live.front().is_some_and(|r| r.0 < first) {
            self.live.pop_front();
        }
    }

    /// Takes over what the NVRAM has: the records that count, in order.
    pub(crate) fn recover(&mut self, read: &[u8]) -> Vec<Record> {
        let block = self.block_bytes as usize;
        let mut found: Vec<(u64, Record)> = (0..read.len() / block)
            .filter_map(|i| Record::decode(&read[i * block..], self.salt).map(|r| ((i * block) as u64, r)))
            .collect();
        found.sort_unstable_by_key(|(_, r)| r.number);
        let Some((_, last)) = found.last() else { return Vec::new() };
        let (next, first) = (last.number + 1, found.iter().map(|(_, r)| r.first).max().unwrap_or(1));
        found.retain(|(_, r)| r.number >= first);
        (self.next, self.first) = (next, first);
        let bytes = |r: &Record| (RECORD_HEAD_BYTES + r.data.len()).next_multiple_of(block) as u64;
        self.live = found.iter().map(|(at, r)| (r.number, *at, bytes(r))).collect();
        self.head = self.live.back().map_or(0, |r| r.1 + r.2);
        found.into_iter().map(|(_, r)| r).filter(|r| !r.data.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    const BLOCK: u32 = 512;
    const BYTES: u64 = 16 << 10;

    /// Written, forgotten and found again at any instant, also with a torn last record.
    #[test]
    fn what_counts_is_found_in_order() {
        let mut rng = Rng::new(1, "ring");
        let (mut ring, mut memory) = (Ring::new(BYTES, BLOCK, 7), vec![0u8; BYTES as usize]);
        let mut model: VecDeque<(u64, u64, Vec<u8>)> = VecDeque::new();
        let put = |memory: &mut Vec<u8>, (at, bytes): (u64, Vec<u8>)| {
            memory[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
        };
        let mut rounds = 0;
        for step in 0..2000u64 {
            let data: Vec<u8> = (0..1 + rng.below(1500)).map(|_| rng.below(256) as u8).collect();
            let number = ring.next_sequence();
            match ring.record(step, &data) {
                Some(r) => {
                    put(&mut memory, r);
                    model.push_back((number, step, data));
                }
                None => {
                    rounds += 1;
                    let first = model[rng.below(model.len() as u64) as usize].0 + 1;
                    let r = ring.begins_at(first);
                    put(&mut memory, r);
                    ring.forget(first);
                    model.retain(|m| m.0 >= first);
                }
            }
            if rng.chance(0.2) {
                let mut again = Ring::new(BYTES, BLOCK, 7);
                let found = again.recover(&memory);
                let found: Vec<_> = found.into_iter().map(|r| (r.number, r.offset, r.data)).collect();
                assert_eq!(found, Vec::from(model.clone()), "step {step}");
                assert_eq!(again.next_sequence(), ring.next_sequence());
                ring = again;
            }
        }
        assert!(rounds > 50);
        let (at, bytes) = ring
            .record(1, &[1; 900])
            .or_else(|| {
                ring.forget(u64::MAX);
                ring.record(1, &[1; 900])
            })
            .unwrap();
        memory[at as usize..at as usize + 512].copy_from_slice(&bytes[..512]);
        let torn = Ring::new(BYTES, BLOCK, 7).recover(&memory).iter().all(|r| r.data != [1; 900]);
        assert!(torn, "half a record is none");
        assert!(Ring::new(BYTES, BLOCK, 8).recover(&memory).is_empty(), "another cache's records are nobody's");
    }
}
