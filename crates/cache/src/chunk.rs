//! A chunk in the packing: the part of a WEU that isn't on the device yet, header and extents.

use crate::format::{
    CHUNK_ENTRY_BYTES, CHUNK_HEAD_BYTES, ChunkEntry, ChunkHeader, EXTENT_HEAD_BYTES, ExtentHead, ExtentName,
    FLASH_PAGE_BYTES, Slot, chunk_header_bytes,
};
use crate::index::{Loc, UNIT_BYTES};
use crate::layout::Layout;
use crate::place::Superseded;
use plimsoll_base::{Buf, Data, Time};
use std::ops::Range;

/// A write of a chunk's bytes: where in the WEU, how many, and the pieces they are made of.
pub type ChunkWrite = (u32, u32, Vec<(u64, Data)>);

/// An extent packed into a chunk.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Its slot.
    slot: u32,
    /// Its offset in the WEU, in bytes.
    at: u32,
    /// It has no head before it.
    bare: bool,
    /// Its head: length, packing and checksum of the payload, and the extent's name.
    pub head: ExtentHead,
    /// Its bytes, or what stands for them.
    pub payload: Data,
}

impl Packed {
    /// All that lies there, head and payload, in the WEU of number `sequence`; and how many bytes that is.
    pub fn stored(&self, sequence: u64) -> (Vec<(u64, Data)>, u64) {
        let payload = u64::from(self.head.payload_bytes);
        if self.bare {
            return (vec![(payload, self.payload.clone())], payload);
        }
        let head = Data::Bytes(Buf::copy_of(&self.head.encode(sequence)));
        let head_bytes = EXTENT_HEAD_BYTES as u64;
        (vec![(head_bytes, head), (payload, self.payload.clone())], head_bytes + payload)
    }
}

/// The place for an extent, and the space that remains free after it.
struct Place {
    at: u32,
    takes: u32,
    low: u32,
    gap: Range<u32>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Chunk {
    /// The WEU it is a part of.
    pub weu: u32,
    /// The WEU's partition.
    pub part: u16,
    /// The WEU's number.
    pub sequence: u64,
    /// Its own number once it's being written.
    pub number: u64,
    /// Its extents are dirty.
    pub dirty: bool,
    /// The slot of its first entry.
    pub first_slot: u32,
    /// Its entries, by slot.
    pub entries: Vec<ChunkEntry>,
    /// Of them and of those of the WEU's chunks before, names of duplicates.
    pub names: u32,
    /// Its extents, in the order of their slots (a reference has none).
    pub packed: Vec<Packed>,
    /// Writes that haven't ended; none yet if it's still open.
    pub writes: u32,
    /// Writes that weren't sent yet.
    pub held: Vec<ChunkWrite>,
    /// The time at which its writes were sent.
    pub sent_at: Time,
    /// It takes no more.
    pub closed: bool,
    /// Entries that this chunk's extents supersede: each is dead when this chunk is durable.
    pub supersedes: Vec<Superseded>,
    /// The offset of its header in the WEU.
    head_at: u32,
    /// Its extents lie below this ...
    top: u32,
    /// ... and above this, ...
    low: u32,
    /// ... and none here: a bare one left that free.
    gap: Range<u32>,
    extent_bytes: u32,
    block_bytes: u32,
}

impl Chunk {
    /// The first chunk of an empty WEU.
    pub fn first(weu: u32, part: u16, sequence: u64, dirty: bool, layout: &Layout) -> Chunk {
        let top = layout.shape.weu_bytes;
        Chunk {
            weu,
            part,
            sequence,
            number: 0,
            dirty,
            first_slot: 0,
            entries: Vec::new(),
            names: 0,
            packed: Vec::new(),
            writes: 0,
            held: Vec::new(),
            sent_at: Time::NEVER,
            closed: false,
            supersedes: Vec::new(),
            head_at: 0,
            top,
            low: top,
            gap: top..top,
            extent_bytes: layout.shape.extent_bytes,
            block_bytes: layout.block_bytes,
        }
    }

    /// The chunk that comes after this one in the same WEU, if there is room for `extent_bytes` more.
    pub fn next(&self, extent_bytes: u32, slots_max: u32) -> Option<Chunk> {
        assert!(self.closed);
        let head_at = self.head_at + self.header_bytes();
        let top = self.low / self.block_bytes * self.block_bytes - self.copy_bytes();
        let next = Chunk {
            weu: self.weu,
            part: self.part,
            sequence: self.sequence,
            number: 0,
            dirty: self.dirty,
            first_slot: self.first_slot + self.entries.len() as u32,
            entries: Vec::new(),
            names: self.names,
            packed: Vec::new(),
            writes: 0,
            held: Vec::new(),
            sent_at: Time::NEVER,
            closed: false,
            supersedes: Vec::new(),
            head_at,
            top,
            low: top,
            gap: top..top,
            extent_bytes: self.extent_bytes,
            block_bytes: self.block_bytes,
        };
        next.has_room(extent_bytes, slots_max).then_some(next)
    }

    fn header_bytes(&self) -> u32 {
        chunk_header_bytes(self.entries.len(), self.block_bytes)
    }

    /// Bytes of its header's copy, below its extents: there is one of what only the cache has.
    fn copy_bytes(&self) -> u32 {
        if self.dirty { self.header_bytes() } else { 0 }
    }

    /// The end of its header in the WEU.
    pub fn header_end(&self) -> u32 {
        self.head_at + self.header_bytes()
    }

    /// The place for an extent whose payload takes `payload_bytes`. A bare extent, whose payload is as long as an extent, has flash
    /// pages of its own; the gap that this leaves is for others.
    fn place(&self, payload_bytes: u32) -> Option<Place> {
        if payload_bytes == self.extent_bytes {
            let at = self.low.checked_sub(payload_bytes)? / FLASH_PAGE_BYTES * FLASH_PAGE_BYTES;
            let above = at + payload_bytes..self.low;
            let gap = if above.len() > self.gap.len() { above } else { self.gap.clone() };
            return Some(Place { at, takes: payload_bytes, low: at, gap });
        }
        let takes = (payload_bytes + EXTENT_HEAD_BYTES as u32).next_multiple_of(UNIT_BYTES);
        if self.gap.len() >= takes as usize {
            let at = self.gap.end - takes;
            return Some(Place { at, takes, low: self.low, gap: self.gap.start..at });
        }
        let at = self.low.checked_sub(takes)?;
        Some(Place { at, takes, low: at, gap: self.gap.clone() })
    }

    /// True if there is room for one more extent whose payload takes `payload_bytes`.
    pub fn has_room(&self, payload_bytes: u32, slots_max: u32) -> bool {
        let Some(place) = self.place(payload_bytes) else { return false };
        let header = (CHUNK_HEAD_BYTES + (self.entries.len() + 1) * CHUNK_ENTRY_BYTES) as u32;
        let header = header.next_multiple_of(self.block_bytes);
        let header_end = self.head_at + header + if self.dirty { header } else { 0 };
        let slots = self.first_slot + self.entries.len() as u32;
        slots < slots_max && header_end <= place.low / self.block_bytes * self.block_bytes
    }

    /// Packs an extent.
    ///
    /// # Panics
    /// If there is no room.
    pub fn add(&mut self, head: ExtentHead, payload: Data, fp: Option<crate::index::Fingerprint>) -> Loc {
        let Place { at, takes, low, gap } = self.place(head.payload_bytes).expect("there is room");
        (self.low, self.gap) = (low, gap);
        let bare = head.payload_bytes == self.extent_bytes;
        let slot = self.first_slot + self.entries.len() as u32;
        let loc = Loc::new(self.weu, at / UNIT_BYTES, takes / UNIT_BYTES, slot).dirty(self.dirty);
        self.entry(head.name, Slot::Base(fp), loc, if bare { head.sum as u32 } else { 0 });
        self.packed.push(Packed { slot, at, bare, head, payload });
        loc
    }

    /// Names a duplicate, whose bytes are at `target` in the WEU of number `sequence`, with this checksum if they are bare; its slot.
    pub fn add_reference(&mut self, name: ExtentName, target: Loc, sequence: u64, sum: u32) -> u32 {
        self.names += 1;
        self.entry(name, Slot::Ref { weu: target.weu(), sequence, slot: target.slot() }, target, sum);
        self.first_slot + self.entries.len() as u32 - 1
    }

    fn entry(&mut self, name: ExtentName, what: Slot, at: Loc, sum: u32) {
        let (at_unit, len_units) = ((at.at_bytes() / UNIT_BYTES) as u16, (at.len_bytes() / UNIT_BYTES) as u16);
        self.entries.push(ChunkEntry { name, dead: false, what, at_unit, len_units, sum });
    }

    /// Marks a slot's entry as no longer true; false if the chunk hasn't that slot, or its header is already made.
    pub fn kill(&mut self, slot: u32) -> bool {
        let Some(e) = slot.checked_sub(self.first_slot).and_then(|i| self.entries.get_mut(i as usize)) else {
            return false;
        };
        e.dead |= !self.closed;
        !self.closed
    }

    /// The extent in a slot of the WEU.
    pub fn packed_in(&self, slot: u32) -> Option<&Packed> {
        let i = self.packed.binary_search_by_key(&slot, |p| p.slot).ok()?;
        Some(&self.packed[i])
    }

    /// Ends the packing: the writes that bring it to the device. A WEU that was never written is one write, if `whole`.
    pub fn close(&mut self, salt: u64, number: u64, whole: bool) -> Vec<ChunkWrite> {
        assert!(!self.closed);
        (self.closed, self.number) = (true, number);
        let header = ChunkHeader {
            salt,
            weu: self.weu,
            sequence: self.sequence,
            chunk: number,
            dirty: self.dirty,
            first_slot: self.first_slot,
            entries: self.entries.clone(),
        };
        let header = header.encode(self.block_bytes);
        let header_end = self.head_at + header.len() as u32;
        let mut head: Vec<(u64, Data)> = vec![(header.len() as u64, Data::Bytes(Buf::copy_of(&header)))];
        let from = self.low / self.block_bytes * self.block_bytes - self.copy_bytes();
        let mut body: Vec<(u64, Data)> = Vec::with_capacity(self.packed.len() * 3 + 2);
        if self.dirty {
            body.push(head[0].clone());
        }
        let mut by_place: Vec<&Packed> = self.packed.iter().collect();
        by_place.sort_unstable_by_key(|p| p.at);
        let mut at = from + self.copy_bytes();
        for p in by_place {
            if p.at > at {
                body.push((u64::from(p.at - at), Data::Zeroes));
            }
            let (parts, bytes) = p.stored(self.sequence);
            body.extend(parts);
            at = p.at + bytes as u32;
        }
        if self.top > at {
            body.push((u64::from(self.top - at), Data::Zeroes));
        }
        let writes = if whole && self.head_at == 0 {
            if from > header_end {
                head.push((u64::from(from - header_end), Data::Zeroes));
            }
            head.extend(body);
            vec![(0, self.top, head)]
        } else if body.is_empty() {
            vec![(self.head_at, header_end - self.head_at, head)]
        } else {
            vec![(from, self.top - from, body), (self.head_at, header_end - self.head_at, head)]
        };
        self.writes = writes.len() as u32;
        writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Shape;
    use crate::format::Packing;
    use plimsoll_base::VolumeKey;

    fn layout() -> Layout {
        Layout::new(4 << 20, 512, Shape { extent_bytes: 4096, weu_bytes: 64 << 10 }, 5).unwrap()
    }

    fn name(extent: u64) -> ExtentName {
        ExtentName { volume: VolumeKey { id: 1, generation: 1 }, extent }
    }

    fn add(c: &mut Chunk, n: u64, bytes: u32) -> Loc {
        let payload = Data::Bytes(Buf::copy_of(&vec![n as u8; bytes as usize]));
        c.add(ExtentHead { payload_bytes: bytes, packing: Packing::Raw, name: name(n), sum: n }, payload, None)
    }

    fn put(weu: &mut [u8], writes: Vec<ChunkWrite>) {
        for (at, len, parts) in writes {
            assert!(at.is_multiple_of(512) && len.is_multiple_of(512));
            assert_eq!(parts.iter().map(|p| p.0).sum::<u64>(), u64::from(len));
            Data::Parts(parts.into()).copy_to(&mut weu[at as usize..(at + len) as usize]);
        }
    }

    #[test]
    fn chunks_of_one_weu_never_touch_each_other() {
        let mut weu = vec![0xee; 64 << 10];
        let mut c = Chunk::first(3, 0, 9, true, &layout());
        let mut all = Vec::new();
        let mut ends = Vec::new();
        for n in 0.. {
            // Every fifth is bare.
            let bytes = if n % 5 == 2 { 4096 } else { 100 + n as u32 * 37 };
            if !c.has_room(bytes, 100) || n % 4 == 3 {
                put(&mut weu, c.close(7, 100 + n, false));
                ends.push(c.header_end());
                match c.next(bytes, 100) {
                    Some(next) => c = next,
                    None => break,
                }
            }
            let loc = add(&mut c, n, bytes);
            assert_eq!(c.packed_in(loc.slot()).unwrap().head.name, name(n));
            all.push((n, loc, bytes));
        }
        assert!(ends.len() > 5 && all.len() > 15, "{} chunks, {} extents", ends.len(), all.len());
        for (n, loc, bytes) in all {
            let at = loc.at_bytes() as usize;
            if loc.is_bare(4096) {
                assert!(
                    at.is_multiple_of(FLASH_PAGE_BYTES as usize) && weu[at..at + 4096].iter().all(|&b| b == n as u8)
                );
                continue;
            }
            let head = ExtentHead::decode(weu[at..at + 32].try_into().unwrap(), 9).unwrap();
            assert_eq!((head.name, head.sum), (name(n), n));
            assert!(weu[at + 32..at + 32 + bytes as usize].iter().all(|&b| b == n as u8));
        }
        let mut at = 0;
        let mut slots = 0;
        for end in ends {
            let h = ChunkHeader::decode(&weu[at..], 7, 512, false).unwrap();
            assert_eq!((h.first_slot, h.weu, h.sequence, h.dirty), (slots, 3, 9, true));
            slots += h.entries.len() as u32;
            at = end as usize;
        }
    }

    /// Space that bare extents leave free between them is filled.
    #[test]
    fn bare_extents_waste_little() {
        let mut c = Chunk::first(0, 0, 1, false, &layout());
        let (mut payload, mut n) = (0, 0);
        while c.has_room([4096, 700][n as usize % 2], 100) {
            add(&mut c, n, [4096, 700][n as usize % 2]);
            payload += [4096, 700][n as usize % 2];
            n += 1;
        }
        assert!(payload > 56 << 10, "{payload} bytes in {n} extents");
        let mut weu = vec![0; 64 << 10];
        put(&mut weu, c.close(7, 0, true));
        let h = ChunkHeader::decode(&weu, 7, 512, false).unwrap();
        assert!(h.entries.iter().zip(0..).all(|(e, n)| e.sum == if n % 2 == 0 { n } else { 0 }));
    }

    #[test]
    fn a_weu_that_fills_up_is_one_write() {
        let mut c = Chunk::first(0, 0, 1, false, &layout());
        let mut n = 0;
        while c.has_room(4096, 100) {
            add(&mut c, n, 4096);
            n += 1;
        }
        assert_eq!(n, 15);
        assert!(c.kill(2) && !c.kill(15));
        let writes = c.close(7, 0, true);
        assert_eq!((writes.len(), writes[0].0, writes[0].1), (1, 0, 64 << 10));
        assert!(!c.kill(3), "its header is made");
        let mut weu = vec![0; 64 << 10];
        put(&mut weu, writes);
        let dead: Vec<bool> =
            ChunkHeader::decode(&weu, 7, 512, false).unwrap().entries.iter().map(|e| e.dead).collect();
        assert_eq!(dead.iter().position(|d| *d), Some(2));
    }
}
