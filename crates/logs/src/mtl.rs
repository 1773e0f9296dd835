//! The MTL table: which home ranges are in a log, and where (Manylogs §III-E).
//!
//! Block-level as in the paper: any block of a write may be superseded alone. Kept as extents, cut where they overlap, so
//! that memory follows writes instead of blocks and each operation is O(log n) in their number.

use plimsoll_base::VolumeKey;
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// The log of an extent whose bytes are known lost: a read of it fails until something newer is written.
pub const LOST: u32 = u32::MAX - 1;

/// The checksum that covers an extent's bytes. It is one of a run of bytes in the log that was written at once, of which the
/// extent may be a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unit {
    /// The run's checksum.
    pub sum: u64,
    /// Bytes of the run before the extent.
    pub skip: u32,
    /// The run's bytes.
    pub len: NonZeroU32,
}

/// One run of logged bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapped {
    /// Its first byte on the device; of a lost one, its home.
    pub at: u64,
    /// Bytes.
    pub len: u32,
    /// The log it lies in, or [`LOST`].
    pub log: u32,
    /// The volume of the data.
    pub key: VolumeKey,
    /// Checksum of the data. `None`: format version 1 kept none.
    pub unit: Option<Unit>,
}

impl Mapped {
    fn end_of(&self, home: u64) -> u64 {
        home + u64::from(self.len)
    }

    /// True if `next`, whose home range follows this one's, also follows it in the log.
    fn goes_on_with(&self, next: &Mapped) -> bool {
        self.end_of(self.at) == next.at
            && (self.log, self.key) == (next.log, next.key)
            && self.unit.is_none()
            && next.unit.is_none()
            && self.len.checked_add(next.len).is_some()
    }

    /// The part `from..to` of what is mapped at `home`.
    fn part(&self, home: u64, from: u64, to: u64) -> Mapped {
        let unit = self.unit.map(|u| Unit { skip: u.skip + (from - home) as u32, ..u });
        Mapped { at: self.at + (from - home), len: (to - from) as u32, unit, ..*self }
    }

    /// An extent of `len` bytes at `home` that is known lost.
    pub fn lost(home: u64, len: u32, key: VolumeKey) -> Mapped {
        Mapped { at: home, len, log: LOST, key, unit: None }
    }

    /// True if it is known lost.
    pub fn is_lost(&self) -> bool {
        self.log == LOST
    }

    /// The device range that must be read to check it: its unit's, or its own.
    pub fn checked_range(&self) -> (u64, u64) {
        match self.unit {
            Some(u) => (self.at - u64::from(u.skip), u64::from(u.len.get())),
            None => (self.at, u64::from(self.len)),
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Mtl {
    map: BTreeMap<u64, Mapped>,
    /// Valid bytes per log.
    valid: Vec<u64>,
    bytes: u64,
    /// Bytes known lost.
    lost: u64,
    /// A mistake for tests to find: see [`crate::Planted::CutMisplaced`].
    misplaces_cuts: bool,
}

impl Mtl {
    /// An empty table for `logs` logs.
    pub fn new(logs: u32) -> Mtl {
        Mtl { map: BTreeMap::new(), valid: vec![0; logs as usize], bytes: 0, lost: 0, misplaces_cuts: false }
    }

    /// The same with a mistake in it, if asked for: a test must find it.
    pub(crate) fn misplacing_cuts(mut self, planted: bool) -> Mtl {
        self.misplaces_cuts = planted;
        self
    }

    /// Extents held.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// True if nothing is logged.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Valid logged bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes known lost.
    pub fn lost_bytes(&self) -> u64 {
        self.lost
    }

    /// Adds to what is valid in a log, or lost, or takes from it.
    fn account(&mut self, log: u32, bytes: u64, add: bool) {
        if log == LOST {
            self.lost = if add { self.lost + bytes } else { self.lost - bytes };
            return;
        }
        let valid = &mut self.valid[log as usize];
        (*valid, self.bytes) =
            if add { (*valid + bytes, self.bytes + bytes) } else { (*valid - bytes, self.bytes - bytes) };
    }

    /// Valid bytes in a log.
    pub fn valid_in(&self, log: u32) -> u64 {
        self.valid[log as usize]
    }

    /// The logged parts of `from..to`: home address and place of each piece, ascending, cut to the range.
    pub fn lookup(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        let before = self.map.range(..from).next_back().filter(move |(home, m)| m.end_of(**home) > from);
        before.into_iter().chain(self.map.range(from..to)).map(move |(&home, m)| {
            let (start, end) = (home.max(from), m.end_of(home).min(to));
            (start, m.part(home, start, end))
        })
    }

    /// True if any of `from..to` is logged.
    pub fn touches(&self, from: u64, to: u64) -> bool {
        self.map.range(..to).next_back().is_some_and(|(home, m)| m.end_of(*home) > from)
    }

    /// Extents from the one that begins at or after `from` on.
    pub fn from(&self, from: u64) -> impl Iterator<Item = (u64, Mapped)> + '_ {
        self.map.range(from..).map(|(&home, m)| (home, *m))
    }

    /// The range is no longer logged. True if any of it was.
    pub fn kill(&mut self, from: u64, to: u64) -> bool {
        let mut any = false;
        while let Some((&home, &m)) = self.map.range(..to).next_back()
            && m.end_of(home) > from
        {
            any = true;
            let end = m.end_of(home);
            let gone = end.min(to) - home.max(from);
            self.account(m.log, gone, false);
            self.map.remove(&home);
            if end > to {
                let rest = if self.misplaces_cuts {
                    Mapped { at: m.at, ..m.part(home, to, end) }
                } else {
                    m.part(home, to, end)
                };
                self.map.insert(to, rest);
            }
            if home < from {
                self.map.insert(home, m.part(home, home, from));
            }
        }
        any
    }

    /// `home` and what follows is now logged at `m`, whatever was before.
    pub fn put(&mut self, home: u64, m: Mapped) {
        let end = m.end_of(home);
        self.account(m.log, u64::from(m.len), true);
        loop {
            // One look says whether anything of it is logged, and whether it goes on where another ends.
            match self.map.range_mut(..end).next_back() {
                Some((before, b)) if b.end_of(*before) > home => {}
                Some((before, b)) if b.end_of(*before) == home && b.goes_on_with(&m) => {
                    b.len += m.len;
                    return;
                }
                _ => {
                    self.map.insert(home, m);
                    return;
                }
            }
            self.kill(home, end);
        }
    }

    /// Drops everything in logs for which `gone` says so.
    pub fn drop_logs(&mut self, gone: impl Fn(u32) -> bool) {
        for (log, valid) in self.valid.iter_mut().enumerate() {
            if gone(log as u32) {
                self.bytes -= *valid;
                *valid = 0;
            }
        }
        self.map.retain(|_, m| m.is_lost() || !gone(m.log));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        /// Against an array with one entry per block.
        #[test]
        fn it_is_a_map_of_blocks(acts in prop::collection::vec((0u8..10, 0u64..64, 1u64..20, 0u32..4), 1..120)) {
            let mut mtl = Mtl::new(4);
            let mut plain: Vec<Option<(u64, u32)>> = vec![None; 96];
            let mut at = 0u64;
            for (kind, from, len, log) in acts {
                let (from, to) = (from, from + len);
                match kind {
                    0..7 => {
                        let m = Mapped { at: at * 512, len: (len * 512) as u32, log, key: VolumeKey { id: 1, generation: 1 }, unit: None };
                        mtl.put(from * 512, m);
                        for (i, b) in (from..to).enumerate() { plain[b as usize] = Some((at + i as u64, log)); }
                        at += len;
                    }
                    7..9 => {
                        let any = plain[from as usize..to as usize].iter().any(Option::is_some);
                        prop_assert_eq!(mtl.touches(from * 512, to * 512), any);
                        prop_assert_eq!(mtl.kill(from * 512, to * 512), any);
                        plain[from as usize..to as usize].fill(None);
                    }
                    _ => {
                        mtl.drop_logs(|l| l == log);
                        for p in &mut plain { if p.is_some_and(|(_, l)| l == log) { *p = None; } }
                    }
                }
                for l in 0..4 {
                    let valid = plain.iter().flatten().filter(|(_, of)| *of == l).count() as u64;
                    prop_assert_eq!(mtl.valid_in(l), valid * 512);
                }
                prop_assert_eq!(mtl.bytes(), plain.iter().flatten().count() as u64 * 512);
            }
            for (from, to) in [(0, 96), (10, 20), (31, 32)] {
                let mut found = vec![None; 96];
                let mut last = from;
                for (home, m) in mtl.lookup(from * 512, to * 512) {
                    prop_assert!(home >= last * 512 && home + u64::from(m.len) <= to * 512);
                    for i in 0..u64::from(m.len) / 512 { found[(home / 512 + i) as usize] = Some((m.at / 512 + i, m.log)); }
                    last = home / 512 + u64::from(m.len) / 512;
                }
                prop_assert_eq!(&found[from as usize..to as usize], &plain[from as usize..to as usize]);
            }
        }
    }
}
