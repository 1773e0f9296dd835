//! The policy alone: what is a hit, what is a duplicate, what is evicted, without devices, time or bytes. It is the layer's own
//! [`Index`] that decides; headers are remembered instead of read. For hit ratios of long traces.

use crate::config::{Admission, Eviction, Shape};
use crate::format::EXTENT_HEAD_BYTES;
use crate::index::{Fingerprint, Index, Key, Loc, UNIT_BYTES, WEUS_MAX};
use crate::layout::slots_max;
use crate::policy::admission::Admissions;
use crate::residency::NAMES_SHARE;
use crate::tasks::modelled_payload_bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The unit of writing and eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// WEUs of this many bytes.
    Weu(u32),
    /// Each extent by itself, in its place: a plain cache. It can't be compressed.
    Extent,
}

/// A policy to replay.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PolicyConfig {
    /// Bytes of the cache.
    pub cache_bytes: u64,
    /// Bytes of an extent.
    pub extent_bytes: u32,
    /// The unit of eviction.
    pub unit: Unit,
    /// Compress by the modelled ratio of each content.
    pub compress: bool,
    /// Fingerprints kept, in percent of the extents that fit uncompressed; 0: no deduplication.
    pub fingerprints_percent: u32,
    /// The unit that leaves.
    pub eviction: Eviction,
    /// The extents that come in.
    pub admission: Admission,
}

/// Counters of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PolicyCounters {
    /// Extents read.
    pub reads: u64,
    /// Of them, those in the cache.
    pub read_hits: u64,
    /// Extents written.
    pub writes: u64,
    /// Extents that the policy of admission did not let in.
    pub rejected: u64,
    /// Extents put in.
    pub inserted: u64,
    /// Of them, those whose content was there.
    pub duplicates: u64,
    /// Bytes written to the fast device: extents with their heads, headers.
    pub written_bytes: u64,
    /// WEUs (or extents) evicted.
    pub evicted: u64,
    /// Extents put in again, as they were used, when their WEU left.
    pub reinserted: u64,
}

/// A policy's request to its device, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastIo {
    /// Write from this offset on, with this length in bytes.
    Write(u64, u64),
    /// The same range isn't needed any more.
    Evict(u64, u64),
}

type Entry = (u32, Option<Key>, Option<Fingerprint>);

fn header_bytes(slots: u32) -> u32 {
    crate::format::chunk_header_bytes(slots as usize, 4096)
}

/// A WEU that is being filled: bytes of extents, and names of duplicates.
#[derive(Clone, Copy)]
struct Open {
    weu: u32,
    used: u32,
    names: u32,
}

/// See the module's documentation.
pub struct Policy {
    config: PolicyConfig,
    index: Index,
    admissions: Admissions,
    open: Option<Open>,
    /// The entries of each WEU's header.
    headers: BTreeMap<u32, Vec<Entry>>,
    /// The WEU and slot at which a header names each duplicate.
    names: BTreeMap<Key, (u32, u32)>,
    /// Those that an eviction left without.
    unnamed: Vec<Key>,
    /// Extents of an evicted WEU that are to be put in again: the bytes of each, and its content.
    again: Vec<(Key, u32, Option<Fingerprint>)>,
    /// WEUs that are mostly names.
    of_names: BTreeSet<u32>,
    /// Extents whose content is in each place of a deduplicated extent cache.
    sharers: BTreeMap<u32, BTreeSet<Key>>,
    next: u64,
    counters: PolicyCounters,
    /// Requests to the device, if a caller asked for them.
    done: Option<Vec<FastIo>>,
}

impl Policy {
    /// An empty cache.
    pub fn new(config: PolicyConfig) -> Policy {
        let weu_bytes = match config.unit {
            Unit::Weu(bytes) => bytes,
            Unit::Extent => config.extent_bytes,
        };
        let weus = (config.cache_bytes / u64::from(weu_bytes)).min(u64::from(WEUS_MAX)) as u32;
        let extents = config.cache_bytes / u64::from(config.extent_bytes);
        let mut index =
            Index::new(weus, (extents * u64::from(config.fingerprints_percent) / 100) as usize, extents as usize)
                .evicting(config.eviction);
        index.add_partition(weus);
        let counters = PolicyCounters::default();
        Policy {
            config,
            index,
            admissions: Admissions::new(config.admission),
            open: None,
            headers: BTreeMap::new(),
            names: BTreeMap::new(),
            unnamed: Vec::new(),
            again: Vec::new(),
            of_names: BTreeSet::new(),
            sharers: BTreeMap::new(),
            next: 1,
            counters,
            done: None,
        }
    }

    /// Returns the requests to its device since the last call; it records them from the first call on.
    pub fn take_done(&mut self) -> Vec<FastIo> {
        self.done.replace(Vec::new()).unwrap_or_default()
    }

    fn do_to_device(&mut self, what: FastIo) {
        if let FastIo::Write(_, bytes) = what {
            self.counters.written_bytes += bytes;
        }
        if let Some(done) = &mut self.done {
            done.push(what);
        }
    }

    /// Bytes of what is evicted as one.
    fn unit_bytes(&self) -> u64 {
        match self.config.unit {
            Unit::Weu(bytes) => u64::from(bytes),
            Unit::Extent => u64::from(self.config.extent_bytes),
        }
    }

    /// The counters.
    pub fn counters(&self) -> PolicyCounters {
        self.counters
    }

    /// Forgets what was counted, keeps what is cached: the end of a warm-up.
    pub fn reset_counters(&mut self) {
        self.counters = PolicyCounters::default();
    }

    /// Memory of the indexes, and how many extents are cached.
    pub fn memory(&self) -> (u64, u64) {
        (self.index.memory_bytes(), self.index.files() as u64)
    }

    /// Reads an extent that has this content. True if it is a hit.
    pub fn read(&mut self, key: Key, content: u128) -> bool {
        self.counters.reads += 1;
        if let Some(loc) = self.index.find(key) {
            self.counters.read_hits += 1;
            self.index.touch(loc);
            return true;
        }
        if self.admits(key) {
            self.insert(key, content);
        }
        false
    }

    fn admits(&mut self, key: Key) -> bool {
        let extents = self.config.cache_bytes / u64::from(self.config.extent_bytes);
        let admits = self.admissions.admits(0, extents, key);
        self.counters.rejected += u64::from(!admits);
        admits
    }

    /// A write of an extent; true if it was cached before.
    pub fn write(&mut self, key: Key, content: u128) -> bool {
        self.counters.writes += 1;
        let was = self.index.find(key);
        if let Some(loc) = was
            && self.config.unit == Unit::Extent
        {
            self.write_extent(key, loc, content);
            return true;
        }
        self.index.remove(key);
        self.names.remove(&key);
        if was.is_none() && !self.admits(key) {
            return false;
        }
        self.insert(key, content);
        if was.is_some()
            && let Some(loc) = self.index.look(key)
        {
            self.index.touch(loc);
        }
        was.is_some()
    }

    /// A write of an extent that has a place of its own: there, unless others share the place, or the content is somewhere else.
    fn write_extent(&mut self, key: Key, loc: Loc, content: u128) {
        let place = loc.weu();
        let Some(fp) = self.fingerprint(content) else {
            self.index.touch(loc);
            self.counters.inserted += 1;
            return self.do_to_device(FastIo::Write(u64::from(place) * self.unit_bytes(), self.unit_bytes()));
        };
        let found = self.index.find_content(fp).map(Loc::weu);
        if found == Some(place) {
            // The same content once more.
            self.index.touch(loc);
            (self.counters.inserted, self.counters.duplicates) =
                (self.counters.inserted + 1, self.counters.duplicates + 1);
            return;
        }
        self.index.remove(key);
        let sharers = self.sharers.get_mut(&place).expect("a place in use has a sharer");
        sharers.remove(&key);
        if sharers.is_empty() {
            // Free now, so the next extent that needs a place takes this one: the content, if it is nowhere else.
            self.index.begin_eviction_of(place);
            self.leave(place);
            if found.is_some() {
                self.do_to_device(FastIo::Evict(u64::from(place) * self.unit_bytes(), self.unit_bytes()));
            }
        }
        self.insert(key, content);
    }

    fn fingerprint(&self, content: u128) -> Option<Fingerprint> {
        (self.config.fingerprints_percent > 0).then_some([content as u64, (content >> 64) as u64])
    }

    fn insert(&mut self, key: Key, content: u128) {
        self.counters.inserted += 1;
        let fp = self.fingerprint(content);
        if let Some(loc) = fp.and_then(|fp| self.index.find_content(fp)) {
            self.counters.duplicates += 1;
            self.index.touch(loc);
            self.index.set(key, loc.dup(true));
            if self.config.unit == Unit::Extent {
                self.sharers.entry(loc.weu()).or_default().insert(key);
            }
            return self.name(key);
        }
        let (loc, weu) = match self.config.unit {
            Unit::Extent => {
                let weu = self.begin();
                self.fill(weu);
                if fp.is_some() {
                    self.sharers.insert(weu, BTreeSet::from([key]));
                }
                (Loc::new(weu, 0, self.config.extent_bytes / UNIT_BYTES, 0), weu)
            }
            Unit::Weu(_) => self.append(self.packed_bytes(content)),
        };
        self.point(key, loc, weu, fp);
    }

    /// An extent is in its place.
    fn point(&mut self, key: Key, loc: Loc, weu: u32, fp: Option<Fingerprint>) {
        let entries = self.headers.entry(weu).or_default();
        entries.push((loc.slot(), Some(key), fp));
        self.index.set(key, loc);
        if let Some(fp) = fp {
            self.index.set_content(fp, loc);
        }
    }

    fn slots_max(&self) -> u32 {
        slots_max(Shape { extent_bytes: self.config.extent_bytes, weu_bytes: self.unit_bytes() as u32 })
    }

    /// True if the open WEU has room for one more entry with `takes` bytes.
    fn has_room(&self, open: Open, takes: u32) -> bool {
        let slots = self.headers.get(&open.weu).map_or(0, Vec::len) as u32 + 1;
        slots <= self.slots_max() && open.used + takes + header_bytes(slots) <= self.unit_bytes() as u32
    }

    /// Adds a duplicate's name to the open WEU's header, as the layer does. Names take up to half of a WEU's slots. A few WEUs may
    /// consist mostly of names.
    fn name(&mut self, key: Key) {
        if self.config.unit == Unit::Extent {
            return;
        }
        let mut open = self.open.unwrap_or_else(|| self.begin_open());
        if open.names >= self.slots_max() / 2 {
            let most = (self.index.use_of(0).1 / NAMES_SHARE).max(1) as usize;
            if !self.of_names.contains(&open.weu) && self.of_names.len() >= most {
                return;
            }
            self.of_names.insert(open.weu);
            if !self.has_room(open, UNIT_BYTES) {
                self.fill(open.weu);
                open = self.begin_open();
            }
        }
        if !self.has_room(open, UNIT_BYTES) {
            return;
        }
        let entries = self.headers.entry(open.weu).or_default();
        let slot = entries.len() as u32;
        entries.push((slot, Some(key), None));
        self.names.insert(key, (open.weu, slot));
        self.open = Some(Open { names: open.names + 1, ..open });
    }

    /// The open WEU is written.
    fn fill(&mut self, weu: u32) {
        self.index.filled(weu);
        self.do_to_device(FastIo::Write(u64::from(weu) * self.unit_bytes(), self.unit_bytes()));
        self.open = None;
    }

    /// Bytes of an extent in a WEU: with a head before it if it was compressed, as in the layer.
    fn packed_bytes(&self, content: u128) -> u32 {
        let payload = match self.config.compress {
            true => modelled_payload_bytes(content, u64::from(self.config.extent_bytes)) as u32,
            false => self.config.extent_bytes,
        };
        let bare = payload == self.config.extent_bytes;
        if bare { payload } else { (payload + EXTENT_HEAD_BYTES as u32).next_multiple_of(UNIT_BYTES) }
    }

    /// Appends an extent to the open WEU as the layer does: an entry in the header for each.
    fn append(&mut self, takes: u32) -> (Loc, u32) {
        let open = self.open.unwrap_or_else(|| self.begin_open());
        if !self.has_room(open, takes) {
            self.fill(open.weu);
            return self.append(takes);
        }
        self.open = Some(Open { used: open.used + takes, ..open });
        let slot = self.headers.get(&open.weu).map_or(0, Vec::len) as u32;
        (Loc::new(open.weu, open.used / UNIT_BYTES, takes / UNIT_BYTES, slot), open.weu)
    }

    /// A WEU to fill. Extents of the one that goes for it are put in again, and its header names anew the duplicates that that one named.
    fn begin_open(&mut self) -> Open {
        self.open = Some(Open { weu: self.begin(), used: 0, names: 0 });
        for (key, takes, fp) in std::mem::take(&mut self.again) {
            let (loc, weu) = self.append(takes);
            self.point(key, loc, weu, fp);
            self.counters.reinserted += 1;
        }
        for key in std::mem::take(&mut self.unnamed) {
            if self.index.look(key).is_some_and(Loc::is_dup) {
                self.name(key);
            }
        }
        self.open.expect("just begun")
    }

    /// A WEU to fill; the one used longest ago goes if none is free.
    fn begin(&mut self) -> u32 {
        self.next += 1;
        if let Some(weu) = self.index.take_free(0, self.next, false) {
            return weu;
        }
        let old = self.index.begin_eviction(0).expect("a cache has at least two WEUs");
        self.leave(old);
        let share = self.index.files() / self.index.weus().len().max(1);
        self.index.sweep(64 + 2 * share);
        self.counters.evicted += 1;
        self.do_to_device(FastIo::Evict(u64::from(old) * self.unit_bytes(), self.unit_bytes()));
        self.index.take_free(0, self.next, false).expect("just freed")
    }

    /// A WEU that is leaving is free again.
    fn leave(&mut self, old: u32) {
        self.of_names.remove(&old);
        self.sharers.remove(&old);
        let entries = self.headers.remove(&old).unwrap_or_default();
        for (slot, key, fp) in &entries {
            if let Some((key, loc)) = key.and_then(|key| Some((key, self.index.look(key)?)))
                && (loc.weu(), loc.slot(), loc.is_dup()) == (old, *slot, false)
                && self.index.must_reinsert(loc)
            {
                self.again.push((key, loc.len_bytes(), *fp));
            }
        }
        for (slot, key, _) in &entries {
            if let Some(key) = key.filter(|k| self.names.get(k) == Some(&(old, *slot))) {
                self.names.remove(&key);
                self.unnamed.push(key);
            }
        }
        self.index.retire(old, entries.into_iter());
        self.index.free(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extents(places: u64) -> Policy {
        let mut policy = Policy::new(PolicyConfig {
            cache_bytes: places * 8192,
            extent_bytes: 8192,
            unit: Unit::Extent,
            compress: false,
            fingerprints_percent: 100,
            eviction: Eviction::Lru,
            admission: Admission::All,
        });
        policy.take_done();
        policy
    }

    fn key(n: u64) -> Key {
        Key::new(0, n)
    }

    /// A deduplicated extent that shares its place with nobody is written in that place, and reads find the new content as a duplicate.
    #[test]
    fn an_extent_alone_in_its_place_is_overwritten_there() {
        let mut p = extents(2);
        p.read(key(1), 100);
        let [FastIo::Write(place, _)] = p.take_done()[..] else { panic!("one write") };
        assert!(p.write(key(1), 200));
        assert_eq!(p.take_done(), [FastIo::Write(place, 8192)], "in the same place");
        assert!(!p.write(key(2), 200), "not cached before");
        assert_eq!((p.take_done(), p.counters().duplicates), (vec![], 1), "the new content is known, ");
        p.write(key(3), 100);
        assert_eq!(p.take_done().len(), 1, "and the old one isn't any more");
    }

    /// A place that others share keeps its content. One that nobody shares any more is free at once: nothing useful is evicted for it.
    #[test]
    fn a_shared_place_keeps_its_content_until_the_last_one_leaves() {
        let mut p = extents(2);
        p.read(key(1), 100);
        p.read(key(2), 100);
        assert!(p.write(key(1), 200) && p.read(key(2), 100), "2 still has the old content");
        p.take_done();
        // 2 joins 1: the place of the old content is free, and 3 takes it.
        assert!(p.write(key(2), 200));
        p.read(key(3), 300);
        assert!(
            p.read(key(1), 200) && p.read(key(2), 200) && p.read(key(3), 300),
            "all three are cached in two places"
        );
        assert!(matches!(p.take_done()[..], [FastIo::Evict(a, _), FastIo::Write(b, _)] if a == b));
    }
}
