//! Packing against the bytes that it writes, and mistakes that are found.

use super::*;
use crate::config::Shape;
use crate::format::{
    ChunkEntry, ChunkHeader, EXTENT_HEAD_BYTES, Packing as Form, Slot, chunk_header_bytes, headers, headers_or_copies,
};
use crate::index::{Key, UNIT_BYTES};
use plimsoll_base::{Buf, Data, Rng};
use std::collections::BTreeMap;

const SALT: u64 = 5;
const BLOCK_BYTES: u32 = 512;
const EXTENT_BYTES: u32 = 4096;
const WEU_BYTES: u32 = 32 << 10;
/// The first numbers of a WEU and of a chunk that a start has found unused.
const FIRST: (u64, u64) = (100, 200);
/// A WEU of other packing, in which names' bytes are.
const ELSEWHERE: u32 = 7000;

fn layout() -> Layout {
    Layout::new(4 << 20, BLOCK_BYTES, Shape { extent_bytes: EXTENT_BYTES, weu_bytes: WEU_BYTES }, SALT).unwrap()
}

fn name(extent: u64) -> ExtentName {
    ExtentName { volume: VolumeKey { id: extent as u32 % 3, generation: 1 }, extent }
}

fn head(extent: u64, payload_bytes: u32) -> ExtentHead {
    ExtentHead { payload_bytes, packing: Form::Raw, name: name(extent), sum: extent * 3 }
}

/// The bytes of an extent's payload, which no other extent has.
fn payload(extent: u64, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|i| (extent as u32 * 7 + i / 8) as u8).collect()
}

/// An entry that was added.
#[derive(Clone)]
struct Added {
    /// As its header must say it.
    entry: ChunkEntry,
    /// The place of its bytes in the WEU, and its head. A name has none.
    packed: Option<(Loc, ExtentHead)>,
}

/// A chunk, open or closed.
struct Known {
    weu: u32,
    part: u16,
    is_dirty: bool,
    first_slot: u32,
    entries: Vec<Added>,
    /// Entries that wait for it, in order.
    supersedes: Vec<Superseded>,
    /// Its number, if it is closed.
    number: Option<u64>,
    sent_at: Option<Time>,
    is_written: bool,
}

impl Known {
    fn slots(&self) -> Range<u32> {
        self.first_slot..self.first_slot + self.entries.len() as u32
    }

    fn header_bytes(&self) -> u32 {
        chunk_header_bytes(self.entries.len(), BLOCK_BYTES)
    }
}

/// Packing as a cache drives it, WEUs as they are on the device, and all that should be there.
struct Model {
    p: Packing,
    rng: Rng,
    device: BTreeMap<u32, Vec<u8>>,
    /// By WEU.
    sequences: Vec<u64>,
    /// Of each WEU in the order of their slots.
    chunks: Vec<Known>,
    /// Chunks and indexes of entries that are true.
    left: Vec<(usize, usize)>,
    /// Writes under way.
    writes: Vec<Outgoing>,
    extent: u64,
    seen: Seen,
}

/// Cases that a run has met.
#[derive(Default, Debug)]
struct Seen {
    written: u32,
    killed_behind_others: u32,
    superseding_several: u32,
    behind: u32,
    not_last: u32,
    empty: u32,
}

type Checked = Result<(), String>;

fn rule(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

impl Model {
    fn new(seed: u64, planted: Option<Planted>) -> Model {
        let mut p = Packing::new(layout(), Codec::Lz4, planted);
        p.restore(layout(), FIRST);
        Model {
            p,
            rng: Rng::new(seed, "packing"),
            device: BTreeMap::new(),
            sequences: Vec::new(),
            chunks: Vec::new(),
            left: Vec::new(),
            writes: Vec::new(),
            extent: 0,
            seen: Seen::default(),
        }
    }

    fn open(&self, part: u16, is_dirty: bool) -> Option<usize> {
        self.chunks.iter().position(|k| k.number.is_none() && (k.part, k.is_dirty) == (part, is_dirty))
    }

    fn begin(&mut self, weu: u32, part: u16, is_dirty: bool, first_slot: u32) {
        let (entries, supersedes) = (Vec::new(), Vec::new());
        let (number, sent_at, is_written) = (None, None, false);
        self.chunks.push(Known { weu, part, is_dirty, first_slot, entries, supersedes, number, sent_at, is_written });
    }

    fn close(&mut self, c: usize, full: bool) -> Checked {
        let (part, is_dirty) = (self.p.all()[c].part, self.p.all()[c].dirty);
        let at = self.open(part, is_dirty).ok_or("an open chunk was begun")?;
        let weu = self.chunks[at].weu;
        let closed = self.p.close(c, full);
        self.chunks[at].number = Some(FIRST.1 + self.chunks.iter().filter(|k| k.number.is_some()).count() as u64);
        let of_weu: u32 = self.chunks.iter().filter(|k| k.weu == weu).map(Known::header_bytes).sum();
        let k = &self.chunks[at];
        let expected = (weu, is_dirty, k.entries.is_empty(), of_weu, k.slots().end);
        let got = (closed.weu, closed.is_dirty, closed.is_empty, closed.header_bytes, closed.slots);
        rule(got == expected, || format!("chunk {got:?} was closed, not {expected:?}"))?;
        let volumes: BTreeSet<VolumeKey> =
            k.entries.iter().filter(|_| !is_dirty).map(|e| e.entry.name.volume).collect();
        rule(closed.volumes == volumes, || format!("WEU {weu} is of {volumes:?}, not {:?}", closed.volumes))?;
        self.seen.empty += u32::from(closed.is_empty);
        let goes_on = self.p.open(part, is_dirty).is_some();
        rule(closed.is_full != goes_on && (closed.is_full || !full), || format!("WEU {weu} takes more: {goes_on}"))?;
        if goes_on {
            self.begin(weu, part, is_dirty, closed.slots);
        }
        Ok(())
    }

    fn room(&mut self, part: u16, is_dirty: bool, bytes: u32) -> Result<usize, String> {
        let room = self.p.room(part, is_dirty, bytes);
        let is_open = self.open(part, is_dirty).is_some();
        rule(is_open != (room == Room::Nowhere), || format!("partition {part} has {room:?}"))?;
        match room {
            Room::Here(c) => return Ok(c),
            Room::Full(c) => self.close(c, true)?,
            Room::Nowhere => {}
        }
        let (weu, sequence) = (self.sequences.len() as u32, self.p.next_sequence());
        let had = self.sequences.iter().position(|s| *s == sequence);
        rule(had.is_none(), || format!("number {sequence} of WEU {weu} was given to WEU {had:?}"))?;
        self.sequences.push(sequence);
        self.begin(weu, part, is_dirty, 0);
        Ok(self.p.begin(weu, part, is_dirty))
    }

    fn add(&mut self) -> Checked {
        let (part, is_dirty) = (self.rng.below(2) as u16, self.rng.chance(0.5));
        self.extent += 1;
        let extent = self.extent;
        let (place, added) = if self.rng.chance(0.2) {
            let c = self.room(part, is_dirty, 0)?;
            self.check_room_for_name(c)?;
            let (weu, slot, sequence) = (ELSEWHERE + extent as u32, extent as u32 % 6, 50 + extent);
            let (target, sum) = (Loc::new(weu, 8 + slot, 9, slot), extent as u32);
            let place = self.p.add_name(c, name(extent), target, sequence, sum);
            let what = Slot::Ref { weu, sequence, slot };
            let entry =
                ChunkEntry { name: name(extent), dead: false, what, at_unit: 8 + slot as u16, len_units: 9, sum };
            (place, Added { entry, packed: None })
        } else {
            let bytes = if self.rng.chance(0.3) { EXTENT_BYTES } else { 100 + self.rng.below(3000) as u32 };
            let c = self.room(part, is_dirty, bytes)?;
            let (head, fp) = (head(extent, bytes), self.rng.chance(0.5).then_some([extent, !extent]));
            let loc = self.p.add(c, head, Data::Bytes(Buf::copy_of(&payload(extent, bytes))), fp);
            let is_bare = bytes == EXTENT_BYTES;
            rule((loc.is_bare(EXTENT_BYTES.into()), loc.is_dirty()) == (is_bare, is_dirty), || format!("{loc:?}"))?;
            let entry = ChunkEntry {
                name: name(extent),
                dead: false,
                what: Slot::Base(fp),
                at_unit: (loc.at_bytes() / UNIT_BYTES) as u16,
                len_units: (loc.len_bytes() / UNIT_BYTES) as u16,
                sum: if is_bare { head.sum as u32 } else { 0 },
            };
            (loc, Added { entry, packed: Some((loc, head)) })
        };
        let at = self.open(part, is_dirty).ok_or("it has room")?;
        let k = &mut self.chunks[at];
        let next = (k.weu, k.slots().end);
        rule((place.weu(), place.slot()) == next, || format!("{place:?} is the entry after {next:?}"))?;
        k.entries.push(added);
        // It supersedes one that is left of those before: one of the newest as often as any.
        let n = self.left.len() as u64;
        if n > 0 && self.rng.chance(0.4) {
            let newest = if self.rng.chance(0.5) { n.min(12) } else { n };
            let old = self.left.remove((n - 1 - self.rng.below(newest)) as usize);
            self.supersede(old, at, place)?;
        }
        self.left.push((at, self.chunks[at].entries.len() - 1));
        Ok(())
    }

    /// The entry at `old` is superseded by the one at `place`, which is in chunk `by`.
    fn supersede(&mut self, (chunk, i): (usize, usize), by: usize, place: Loc) -> Checked {
        let k = &mut self.chunks[chunk];
        let slot = k.first_slot + i as u32;
        let (weu, e) = (k.weu, &mut k.entries[i].entry);
        let old = Loc::new(weu, 0, 0, slot);
        let is_killed = self.p.kill(old);
        rule(is_killed == k.number.is_none(), || format!("{old:?} never becomes true: {is_killed}"))?;
        if is_killed {
            e.dead = true;
            self.seen.killed_behind_others += u32::from(k.first_slot > 0);
            return Ok(());
        }
        let bytes_in = if let Slot::Ref { weu, .. } = e.what { weu } else { weu };
        let s = Superseded { key: Key::new(0, e.name.extent), place: old, bytes_in };
        let k = &mut self.chunks[by];
        let waits = k.is_dirty && self.p.supersede(place, s);
        rule(waits == k.is_dirty, || format!("{old:?} is dead before {place:?} is durable"))?;
        if waits {
            k.supersedes.push(s);
            let parts = self.p.superseding(|o| *o == s);
            rule(parts == [k.part].into(), || format!("{s:?} waits for partitions {parts:?}, not {}", k.part))?;
        }
        Ok(())
    }

    /// Names take at most half of a WEU's slots, and no more room than there is.
    fn check_room_for_name(&self, c: usize) -> Checked {
        let chunk = &self.p.all()[c];
        let of_weu = self.chunks.iter().filter(|k| k.weu == chunk.weu).flat_map(|k| &k.entries);
        let names = of_weu.filter(|e| e.packed.is_none()).count() as u32;
        let has_room = self.p.room(chunk.part, chunk.dirty, 0) == Room::Here(c);
        let expected = if names < layout().slots_max() / 2 { Ok(has_room) } else { Err(chunk.weu) };
        let got = self.p.room_for_name(c);
        rule(got == expected, || format!("WEU {} has {names} names, and room: {got:?}", chunk.weu))
    }

    fn send(&mut self, now: Time) -> Checked {
        for c in 0..self.p.len() {
            let Sending::Now(send) = self.p.send(c, now, false) else { continue };
            let mine = |k: &&mut Known| (k.weu, k.first_slot) == (send.weu, send.first_slot) && k.sent_at.is_none();
            let k = self.chunks.iter_mut().filter(|k| k.number.is_some()).find(mine).ok_or("it was sent before")?;
            k.sent_at = Some(now);
            let expected = (k.is_dirty, k.entries.first().map(|e| e.entry.name.volume));
            rule((send.is_dirty, send.volume) == expected, || format!("of WEU {} {expected:?} is sent", send.weu))?;
            self.writes.push(send);
        }
        Ok(())
    }

    /// One write of those under way ends.
    fn write(&mut self, now: Time) -> Checked {
        if self.writes.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.writes.len() as u64) as usize;
        let send = &mut self.writes[at];
        let (weu, first_slot) = (send.weu, send.first_slot);
        let n = self.rng.below(send.writes.len() as u64) as usize;
        let (offset, len, parts) = send.writes.swap_remove(n);
        let is_over = send.writes.is_empty();
        if is_over {
            self.writes.swap_remove(at);
        }
        let device = self.device.entry(weu).or_insert_with(|| vec![0; WEU_BYTES as usize]);
        Data::Parts(parts.into()).copy_to(&mut device[offset as usize..(offset + len) as usize]);
        let written = self.p.written(weu, first_slot);
        rule(written.is_some() == is_over, || format!("the chunk of WEU {weu} from slot {first_slot} is written"))?;
        let Some(w) = written else { return Ok(()) };
        let is_it = |k: &Known| (k.weu, k.first_slot, k.number) == (weu, first_slot, Some(w.number));
        let at = self.chunks.iter().position(is_it).ok_or_else(|| format!("no chunk {} of WEU {weu}", w.number))?;
        let k = &mut self.chunks[at];
        rule(!std::mem::replace(&mut k.is_written, true), || format!("chunk {} is written again", w.number))?;
        let k = &self.chunks[at];
        let got = (w.weu, w.part, w.sequence, w.is_dirty, w.slots, Some(w.sent_at));
        let expected = (weu, k.part, self.sequences[weu as usize], k.is_dirty, k.slots(), k.sent_at);
        rule(got == expected, || format!("chunk {} is {got:?}, not {expected:?}", w.number))?;
        rule(w.supersedes == k.supersedes, || format!("{:?} are dead, not {:?}", w.supersedes, k.supersedes))?;
        let is_last = !self.chunks.iter().any(|k| k.weu == weu && k.number.is_some() && !k.is_written);
        rule(w.is_last == is_last, || format!("chunk {} is the last of WEU {weu}: {}", w.number, w.is_last))?;
        self.seen.written += 1;
        self.seen.superseding_several += u32::from(k.supersedes.len() > 1);
        self.seen.not_last += u32::from(!is_last);
        if !w.is_dirty && self.rng.chance(0.3) {
            self.p.pause(now, w.sent_at);
        }
        self.check_weu(weu)
    }

    /// The headers of a WEU are there of all chunks that are written and have no gap before them, and say the truth. The extents of
    /// written chunks are there.
    fn check_weu(&self, weu: u32) -> Checked {
        let (bytes, sequence) = (&self.device[&weu], self.sequences[weu as usize]);
        let closed = || self.chunks.iter().filter(|k| k.weu == weu && k.number.is_some());
        let expected = closed().map(|k| ChunkHeader {
            salt: SALT,
            weu,
            sequence,
            chunk: k.number.unwrap_or(0),
            dirty: k.is_dirty,
            first_slot: k.first_slot,
            entries: k.entries.iter().map(|e| e.entry).collect(),
        });
        let expected: Vec<ChunkHeader> = expected.collect();
        let found = headers(bytes, SALT, BLOCK_BYTES, weu, Some(sequence), false);
        rule(expected.starts_with(&found), || format!("WEU {weu} has {found:?}, not {expected:?}"))?;
        let there = closed().take_while(|k| k.is_written).count();
        rule(found.len() >= there, || format!("of WEU {weu} {} chunks are found, not {there}", found.len()))?;
        for (loc, head) in closed().filter(|k| k.is_written).flat_map(|k| &k.entries).filter_map(|e| e.packed) {
            let (extent, mut at) = (head.name.extent, loc.at_bytes() as usize);
            if !loc.is_bare(EXTENT_BYTES.into()) {
                let its_head = bytes[at..at + EXTENT_HEAD_BYTES].try_into().ok();
                let found = its_head.and_then(|b| ExtentHead::decode(b, sequence));
                rule(found == Some(head), || format!("at {loc:?} is {found:?}, not {head:?}"))?;
                at += EXTENT_HEAD_BYTES;
            }
            let is_there = bytes[at..].starts_with(&payload(extent, head.payload_bytes));
            rule(is_there, || format!("extent {extent} isn't at {loc:?}"))?;
        }
        if there < expected.len() {
            return Ok(());
        }
        // Without its headers a WEU of dirty extents has their copies.
        let mut headless = bytes.clone();
        headless[..closed().map(Known::header_bytes).sum::<u32>() as usize].fill(0);
        let copies = headers_or_copies(&headless, SALT, BLOCK_BYTES, weu, sequence);
        let expected = if closed().any(|k| k.is_dirty) { expected } else { Vec::new() };
        rule(copies == expected, || format!("WEU {weu} has copies {copies:?}, not {expected:?}"))
    }

    /// Everything that isn't written is in memory, and nothing else.
    fn check_memory(&mut self) -> Checked {
        for k in &self.chunks {
            for (e, slot) in k.entries.iter().zip(k.first_slot..) {
                let place = Loc::new(k.weu, 0, 0, slot);
                rule(self.p.has(place) != k.is_written, || format!("{place:?} is in memory: {}", k.is_written))?;
                let (found, expected) = (self.p.packed(place), e.packed.filter(|_| !k.is_written).map(|p| p.1));
                let head = found.map(|p| p.head);
                rule(head == expected, || format!("{place:?} has {head:?} in memory, not {expected:?}"))?;
                if let Some(found) = found {
                    let mut bytes = vec![0; found.head.payload_bytes as usize];
                    found.payload.copy_to(&mut bytes);
                    let is_it = bytes == payload(found.head.name.extent, found.head.payload_bytes);
                    rule(is_it, || format!("{place:?} has others' bytes in memory"))?;
                }
            }
        }
        let waiting = self.chunks.iter().filter(|k| !k.is_dirty && k.number.is_some() && !k.is_written).count();
        let is_behind = waiting >= CLEAN_CHUNKS_MAX;
        self.seen.behind += u32::from(is_behind);
        rule(self.p.is_behind() == is_behind, || format!("{waiting} clean chunks wait, and more may: {is_behind}"))?;
        let has_dirty = self.chunks.iter().any(|k| k.is_dirty && !k.is_written);
        rule(self.p.has_dirty() == has_dirty, || format!("dirty chunks are in memory: {has_dirty}"))
    }

    fn step(&mut self, step: u64) -> Checked {
        let now = Time::from_nanos(step * 1000);
        match self.rng.below(10) {
            0..=5 => self.add()?,
            6 => {
                let parts: BTreeSet<u16> = [self.rng.below(2) as u16].into();
                while let Some(c) = self.p.open_of(Some(&parts)) {
                    self.close(c, false)?;
                }
                let has_open = |k: &Known| k.number.is_none() && k.is_dirty && !k.entries.is_empty();
                let is_left = self.chunks.iter().any(|k| parts.contains(&k.part) && has_open(k));
                rule(!is_left, || "a flush leaves dirty extents in memory".into())?;
            }
            7 if self.rng.chance(0.1) => {
                while let Some(c) = self.p.open_in(1) {
                    self.close(c, true)?;
                }
            }
            _ => self.write(now)?,
        }
        self.send(now)?;
        self.check_memory()?;
        self.p.check()
    }

    /// Everything is closed and written: all that was added is on the device.
    fn end(&mut self) -> Checked {
        for part in 0..2 {
            while let Some(c) = self.p.open_in(part) {
                self.close(c, true)?;
            }
        }
        let now = Time::from_nanos(1 << 40);
        self.send(now)?;
        while self.p.len() > 0 {
            self.write(now)?;
            self.send(now)?;
        }
        let entries: usize = self.chunks.iter().map(|k| k.entries.len()).sum();
        rule(entries as u64 == self.extent, || format!("{entries} of {} entries are known", self.extent))?;
        for weu in 0..self.sequences.len() as u32 {
            self.check_weu(weu)?;
        }
        let numbers = (self.sequences.len() as u64, self.chunks.len() as u64);
        let next = (self.p.unused_sequence(), self.p.next_chunk());
        rule(next == (FIRST.0 + numbers.0, FIRST.1 + numbers.1), || format!("{next:?} come next after {numbers:?}"))?;
        rule((FIRST.0..).zip(&self.sequences).all(|(n, s)| n == *s), || format!("numbers {:?}", self.sequences))?;
        self.check_memory()
    }
}

fn run(seed: u64, planted: Option<Planted>) -> Result<Seen, String> {
    let mut model = Model::new(seed, planted);
    for step in 0..400 {
        model.step(step).map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
    }
    model.end().map_err(|why| format!("seed {seed}, at the end: {why}"))?;
    Ok(model.seen)
}

#[test]
fn whatever_happens_what_was_added_is_on_the_device_and_what_it_supersedes_is_handed_back_once() {
    let all: Vec<Seen> = (0..20).map(|seed| run(seed, None).unwrap_or_else(|why| panic!("{why}"))).collect();
    let sum = |of: fn(&Seen) -> u32| all.iter().map(of).sum::<u32>();
    assert!(sum(|s| s.written) > 500 && sum(|s| s.killed_behind_others) > 50, "{all:?}");
    assert!(sum(|s| s.superseding_several) > 50 && sum(|s| s.behind) > 50 && sum(|s| s.not_last) > 50, "{all:?}");
    assert!(sum(|s| s.empty) > 0, "{all:?}");
}

#[test]
fn mistakes_are_found() {
    for (planted, why) in [
        (Planted::ReuseSequence, "was given to"),
        (Planted::DeadBeforeDurable, "is dead before"),
        (Planted::FlushWithoutChunk, "a flush leaves dirty extents"),
    ] {
        let found = (0..20).find_map(|seed| run(seed, Some(planted)).err());
        assert!(found.as_ref().is_some_and(|f| f.contains(why)), "{planted:?} was not found: {found:?}");
    }
}

#[test]
fn two_weus_in_memory_under_one_number_are_found() {
    let mut p = Packing::new(layout(), Codec::None, Some(Planted::ReuseSequence));
    for part in 0..8 {
        p.begin(u32::from(part), part, false);
        assert_eq!(p.check(), Ok(()));
    }
    p.begin(8, 8, false);
    assert!(p.check().unwrap_err().contains("has the number of WEU 0"), "{:?}", p.check());
}

/// Names take half of a WEU's slots, in however many chunks. After that the caller decides.
#[test]
fn names_take_half_of_a_weus_slots() {
    let mut p = Packing::new(layout(), Codec::None, None);
    let mut c = p.begin(3, 0, false);
    for n in 0..u64::from(layout().slots_max()) / 2 {
        assert_eq!(p.room_for_name(c), Ok(true));
        p.add_name(c, name(n), Loc::new(7, 8, 8, 3), 55, 0);
        if n == 5 {
            assert!(!p.close(c, false).is_full);
            c = p.open(0, false).unwrap();
        }
    }
    assert_eq!(p.room_for_name(c), Err(3));
    // Extents have all slots.
    let c = p.begin(4, 1, false);
    let mut n = 0;
    while p.room(1, false, 500) == Room::Here(c) {
        p.add(c, head(n, 500), Data::Absent, None);
        n += 1;
    }
    assert_eq!((p.room_for_name(c), n), (Ok(false), u64::from(layout().slots_max())));
}

/// While changes wait for the journal clean chunks pause, and dirty ones don't.
#[test]
fn a_pause_holds_up_clean_chunks_only() {
    let mut p = Packing::new(layout(), Codec::None, None);
    let at = |us: u64| Time::from_nanos(us * 1000);
    p.pause(at(20), at(10));
    for is_dirty in [false, true] {
        let c = p.begin(u32::from(is_dirty), 0, is_dirty);
        p.add_name(c, name(1), Loc::new(7, 8, 8, 3), 55, 0);
        p.close(c, true);
    }
    let until = at(20 + 10 * CLEAN_PAUSE);
    assert!(matches!(p.send(0, at(21), false), Sending::Later(t) if t == until));
    assert!(matches!(p.send(1, at(21), false), Sending::Now(s) if s.is_dirty));
    assert!(matches!(p.send(1, at(21), false), Sending::Nothing), "it was sent");
    assert!(matches!(p.send(0, at(21), true), Sending::Now(s) if !s.is_dirty), "the cache stops");
    p.check().unwrap();
}
