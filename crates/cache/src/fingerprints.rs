//! Fingerprints of cached content, and its places. There is a limit on their number; the least recently used one makes room.

use crate::place::{Fingerprint, Loc, mix};
use crate::table::{Entry, Table};

/// No fingerprint, in links.
const NONE: u32 = u32::MAX;

/// 32 bytes: there are tens of millions. It goes when its WEU does, so that it needs no generation.
#[derive(Clone, Copy)]
pub(crate) struct FpEntry {
    fp: Fingerprint,
    loc: u64,
    newer: u32,
    older: u32,
}

impl Entry for FpEntry {
    type Key = Fingerprint;
    fn key(&self) -> Fingerprint {
        self.fp
    }
    fn hash(key: Fingerprint) -> u64 {
        mix(key[0])
    }
}

impl FpEntry {
    /// Content of this fingerprint is at `loc`.
    pub(crate) fn new(fp: Fingerprint, loc: Loc) -> FpEntry {
        let loc = loc.dirty(false).dup(true).bits();
        FpEntry { fp, loc, newer: NONE, older: NONE }
    }

    /// Its place.
    pub(crate) fn loc(&self) -> Loc {
        Loc::of_bits(self.loc)
    }
}

/// See the module's documentation.
pub(crate) struct Fingerprints {
    table: Table<FpEntry>,
    newest: u32,
    oldest: u32,
    max: usize,
    dropped: u64,
}

impl Fingerprints {
    /// At most `max`.
    pub(crate) fn new(max: usize) -> Fingerprints {
        Fingerprints { table: Table::with_room(max), newest: NONE, oldest: NONE, max, dropped: 0 }
    }

    /// Their number.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// All places.
    pub(crate) fn places(&self) -> impl Iterator<Item = Loc> + '_ {
        (0..self.table.len() as u32).map(|at| self.table.get(at).loc())
    }

    /// Those dropped because there may be no more.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The most fingerprints that there may be.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// At most `max` from now on, at least 1: those used longest ago go at once.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.max = max;
        while self.table.len() > max {
            self.dropped += 1;
            self.remove_at(self.oldest);
        }
    }

    /// The bytes that they take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.table.memory_bytes()
    }

    /// Returns the place of content with this fingerprint, and makes it the most recently used one.
    pub(crate) fn find(&mut self, fp: Fingerprint) -> Option<Loc> {
        let at = self.table.find(fp)?;
        self.unlink(at);
        self.link(at);
        Some(self.table.get(at).loc())
    }

    /// Content of this fingerprint is here now.
    pub(crate) fn set(&mut self, new: FpEntry) {
        if self.max == 0 {
            return;
        }
        let at = match self.table.find(new.fp) {
            Some(at) => {
                self.table.change(at, |e| e.loc = new.loc);
                self.unlink(at);
                at
            }
            None => {
                if self.table.len() >= self.max {
                    self.dropped += 1;
                    self.remove_at(self.oldest);
                }
                self.table.insert(new)
            }
        };
        self.link(at);
    }

    /// Content of this fingerprint was here, too, when nobody looked: it is the one used longest ago, if it's wanted at all.
    pub(crate) fn add_oldest(&mut self, new: FpEntry) {
        if self.table.len() >= self.max || self.table.find(new.fp).is_some() {
            return;
        }
        let at = self.table.insert(new);
        let newer = std::mem::replace(&mut self.oldest, at);
        self.table.change(at, |e| (e.newer, e.older) = (newer, NONE));
        match newer {
            NONE => self.newest = at,
            _ => self.table.change(newer, |e| e.older = at),
        }
    }

    /// Forgets a fingerprint if it is for this slot of this WEU.
    pub(crate) fn forget(&mut self, fp: Fingerprint, weu: u32, slot: u32) {
        if let Some(at) = self.table.find(fp) {
            let loc = self.table.get(at).loc();
            if loc.weu() == weu && loc.slot() == slot {
                self.remove_at(at);
            }
        }
    }

    /// Forgets all of a WEU.
    pub(crate) fn forget_weu(&mut self, weu: u32) {
        let mut at = 0;
        while at < self.table.len() as u32 {
            if self.table.get(at).loc().weu() == weu {
                self.remove_at(at);
            } else {
                at += 1;
            }
        }
    }

    fn link(&mut self, at: u32) {
        let older = self.newest;
        self.table.change(at, |e| (e.newer, e.older) = (NONE, older));
        match older {
            NONE => self.oldest = at,
            _ => self.table.change(older, |e| e.newer = at),
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let e = self.table.get(at);
        let (newer, older) = (e.newer, e.older);
        match newer {
            NONE => self.newest = older,
            _ => self.table.change(newer, |e| e.older = older),
        }
        match older {
            NONE => self.oldest = newer,
            _ => self.table.change(older, |e| e.newer = newer),
        }
    }

    fn remove_at(&mut self, at: u32) {
        self.unlink(at);
        if self.table.remove(at).is_none() {
            return;
        }
        // The last entry is here now: its neighbours must know.
        let e = self.table.get(at);
        let (newer, older) = (e.newer, e.older);
        match newer {
            NONE => self.newest = at,
            _ => self.table.change(newer, |e| e.older = at),
        }
        match older {
            NONE => self.oldest = at,
            _ => self.table.change(older, |e| e.newer = at),
        }
    }
}
