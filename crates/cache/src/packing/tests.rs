//! Packing against the bytes that it writes, and mistakes that are found.

use super::*;
use crate::config::Shape;
use crate::format::{Packing as Form, headers};
use crate::index::Key;
use plimsoll_base::{Buf, Data, Rng};
use std::collections::BTreeMap;

fn layout() -> Layout {
    Layout::new(4 << 20, 512, Shape { extent_bytes: 4096, weu_bytes: 32 << 10 }, 5).unwrap()
}

fn name(extent: u64) -> ExtentName {
    ExtentName { volume: VolumeKey { id: 1, generation: 1 }, extent }
}

fn head(extent: u64, payload_bytes: u32) -> ExtentHead {
    ExtentHead { payload_bytes, packing: Form::Raw, name: name(extent), sum: extent }
}

/// An entry that was added: its extent, and whether it was killed while its chunk was open.
struct Added {
    extent: u64,
    is_dead: bool,
}

/// Packing as a cache drives it, WEUs as they are on the device, and all that should be there.
struct Model {
    p: Packing,
    rng: Rng,
    device: BTreeMap<u32, Vec<u8>>,
    sequences: BTreeMap<u32, u64>,
    added: BTreeMap<(u32, u32), Added>,
    /// Writes under way.
    writes: Vec<(Outgoing, u32)>,
    /// Entries that wait for a chunk, by the place that supersedes them.
    waiting: Vec<(Loc, Superseded)>,
    next_weu: u32,
    extent: u64,
    written: u32,
}

type Checked = Result<(), String>;

fn rule(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

impl Model {
    fn new(seed: u64, planted: Option<Planted>) -> Model {
        let mut p = Packing::new(layout(), Codec::Lz4, planted);
        p.restore(layout(), (100, 200));
        Model {
            p,
            rng: Rng::new(seed, "packing"),
            device: BTreeMap::new(),
            sequences: BTreeMap::new(),
            added: BTreeMap::new(),
            writes: Vec::new(),
            waiting: Vec::new(),
            next_weu: 0,
            extent: 0,
            written: 0,
        }
    }

    fn close(&mut self, c: usize, full: bool) {
        let closed = self.p.close(c, full);
        let slots = self.added.keys().filter(|(weu, _)| *weu == closed.weu).count() as u32;
        assert_eq!(closed.slots, slots, "each entry has a slot");
        assert!(closed.is_full || !full);
    }

    fn room(&mut self, part: u16, is_dirty: bool, bytes: u32) -> Result<usize, String> {
        match self.p.room(part, is_dirty, bytes) {
            Room::Here(c) => return Ok(c),
            Room::Full(c) => self.close(c, true),
            Room::Nowhere => {}
        }
        let (weu, sequence) = (self.next_weu, self.p.next_sequence());
        self.next_weu += 1;
        let highest = self.sequences.values().copied().max().unwrap_or(99);
        rule(sequence > highest, || format!("WEU {weu} is begun under {sequence}, and {highest} was given"))?;
        self.sequences.insert(weu, sequence);
        Ok(self.p.begin(weu, part, is_dirty))
    }

    fn add(&mut self) -> Checked {
        let (part, is_dirty) = (self.rng.below(2) as u16, self.rng.chance(0.5));
        self.extent += 1;
        let extent = self.extent;
        let place = if self.rng.chance(0.2) {
            let c = self.room(part, is_dirty, 0)?;
            self.p.add_name(c, name(extent), Loc::new(77, 8, 8, 3), 55, 0)
        } else {
            let bytes = if self.rng.chance(0.3) { 4096 } else { 100 + self.rng.below(3000) as u32 };
            let c = self.room(part, is_dirty, bytes)?;
            self.p.add(c, head(extent, bytes), Data::Bytes(Buf::copy_of(&vec![extent as u8; bytes as usize])), None)
        };
        rule(self.p.has(place), || format!("{place:?} isn't in memory"))?;
        self.added.insert((place.weu(), place.slot()), Added { extent, is_dead: false });
        let Some((&(weu, slot), old)) = self.added.iter().next().filter(|_| self.rng.chance(0.3)) else {
            return Ok(());
        };
        // It supersedes the oldest that is left of all.
        let (key, old_place) = (Key::new(0, old.extent), Loc::new(weu, 0, 0, slot));
        if old_place.same_place(Loc::new(place.weu(), 0, 0, place.slot())) {
            return Ok(());
        }
        if self.p.kill(old_place) {
            self.added.get_mut(&(weu, slot)).ok_or("just seen")?.is_dead = true;
            return Ok(());
        }
        let s = Superseded { key, place: old_place, bytes_in: weu };
        let waits = is_dirty && self.p.supersede(place, s);
        rule(waits == is_dirty, || format!("{old_place:?} is dead before {place:?} is durable"))?;
        if waits {
            rule(self.p.superseding(|o| *o == s).contains(&part), || format!("{s:?} waits for nothing"))?;
            self.waiting.push((place, s));
        }
        Ok(())
    }

    fn send(&mut self, now: Time) {
        for c in 0..self.p.len() {
            if let Sending::Now(send) = self.p.send(c, now, false) {
                let n = send.writes.len() as u32;
                self.writes.push((send, n));
            }
        }
    }

    /// One write of those under way ends.
    fn write(&mut self, now: Time) -> Checked {
        if self.writes.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.writes.len() as u64) as usize;
        let (send, _) = &mut self.writes[at];
        let (weu, first_slot) = (send.weu, send.first_slot);
        let n = self.rng.below(send.writes.len() as u64) as usize;
        let (offset, len, parts) = send.writes.swap_remove(n);
        let is_over = send.writes.is_empty();
        if is_over {
            self.writes.swap_remove(at);
        }
        let device = self.device.entry(weu).or_insert_with(|| vec![0; 32 << 10]);
        Data::Parts(parts.into()).copy_to(&mut device[offset as usize..(offset + len) as usize]);
        let written = self.p.written(weu, first_slot);
        rule(written.is_some() == is_over, || format!("the chunk of WEU {weu} from slot {first_slot} is written"))?;
        let Some(written) = written else { return Ok(()) };
        self.written += 1;
        let is_mine = |p: &Loc| p.weu() == weu && written.slots.contains(&p.slot());
        let mine: Vec<Superseded> = self.waiting.extract_if(.., |w| is_mine(&w.0)).map(|w| w.1).collect();
        rule(written.supersedes == mine, || format!("{:?} are dead now, not {mine:?}", written.supersedes))?;
        if !written.is_dirty && self.rng.chance(0.3) {
            self.p.pause(now, written.sent_at);
        }
        // Chunks before it may not be there yet; if they are, all that was added is.
        let sequence = self.sequences[&weu];
        let found = headers(&self.device[&weu], 5, 512, weu, Some(sequence), false);
        for (h, slot) in found.iter().flat_map(|h| h.entries.iter().zip(h.first_slot..)) {
            let added = self.added.get(&(weu, slot)).ok_or("nobody added it")?;
            let is_it = (h.name.extent, h.dead) == (added.extent, added.is_dead);
            rule(is_it, || format!("slot {slot} of WEU {weu} is {h:?}"))?;
        }
        Ok(())
    }

    fn step(&mut self, step: u64) -> Checked {
        let now = Time::from_nanos(step * 1000);
        match self.rng.below(10) {
            0..=5 => self.add()?,
            6 => {
                let parts: BTreeSet<u16> = [self.rng.below(2) as u16].into();
                while let Some(c) = self.p.open_of(Some(&parts)) {
                    self.close(c, false);
                }
                let has_open = |part: &u16| self.p.all().iter().any(|c| is_open_dirty(c, *part));
                rule(!parts.iter().any(has_open), || "a flush leaves dirty extents in memory".into())?;
            }
            7 if self.rng.chance(0.1) => {
                while let Some(c) = self.p.open_in(1) {
                    self.close(c, true);
                }
            }
            _ => self.write(now)?,
        }
        self.send(now);
        self.p.check()
    }
}

/// True of an open dirty chunk of a partition that has something.
fn is_open_dirty(c: &Chunk, part: u16) -> bool {
    !c.closed && c.dirty && c.part == part && !c.entries.is_empty()
}

fn run(seed: u64, planted: Option<Planted>) -> Result<u32, String> {
    let mut model = Model::new(seed, planted);
    for step in 0..400 {
        model.step(step).map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
    }
    Ok(model.written)
}

#[test]
fn whatever_happens_what_was_added_is_on_the_device_and_what_it_supersedes_is_handed_back_once() {
    let written: u32 = (0..20).map(|seed| run(seed, None).unwrap_or_else(|why| panic!("{why}"))).sum();
    assert!(written > 500, "{written} chunks were written");
}

#[test]
fn mistakes_are_found() {
    for planted in [Planted::ReuseSequence, Planted::DeadBeforeDurable, Planted::FlushWithoutChunk] {
        let found = (0..20).find_map(|seed| run(seed, Some(planted)).err());
        assert!(found.is_some(), "{planted:?} was not found");
    }
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
