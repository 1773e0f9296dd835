//! Residency against a model that knows each header's entry, and mistakes that it finds.

use super::*;
use plimsoll_base::Rng;

const WEUS: u32 = 10;
const SLOTS: u32 = 6;
const VOLUMES: u16 = 2;
const EXTENTS: u64 = 8;
const CONTENTS: u64 = 5;

/// A header's entry, as it will be on the device.
#[derive(Clone, Debug)]
struct Header {
    key: Key,
    is_name: bool,
    fp: Option<Fingerprint>,
    is_dead: bool,
    /// It is the one that says where its extent is.
    is_true: bool,
    /// Its volume is gone. Another one may have the slot.
    is_gone: bool,
}

impl Header {
    fn new(key: Key, is_name: bool, fp: Option<Fingerprint>) -> Header {
        Header { key, is_name, fp, is_dead: false, is_true: true, is_gone: false }
    }
}

/// An extent's place: that of its bytes, and of the entry that names it.
#[derive(Clone, Copy, PartialEq, Debug)]
struct At {
    loc: Loc,
    named: Option<Loc>,
    /// Its bytes are there, which may be gone of a clean duplicate.
    is_here: bool,
}

/// Residency as a cache drives it, and all that it should know.
struct Model {
    r: Residency,
    rng: Rng,
    headers: BTreeMap<(u32, u32), Header>,
    extents: BTreeMap<Key, At>,
    /// The open WEUs for clean and for dirty extents, and their next slots.
    open: [Option<(u32, u32)>; 2],
    reads: Vec<u32>,
    /// Entries superseded by what isn't durable yet.
    pending: Vec<Superseded>,
    volumes: [u16; VOLUMES as usize],
    /// Slots of volumes that are gone.
    gone: BTreeSet<u16>,
    /// Slots that can be given out again.
    free_slots: BTreeSet<u16>,
    next: u64,
    evicted: u32,
    /// Slots that were given out again.
    reused: u32,
}

type Checked = Result<(), String>;

fn rule(holds: bool, why: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(why()) }
}

impl Model {
    fn new(seed: u64, planted: Option<Planted>) -> Model {
        // A start finds a device that has more WEUs or fewer than it took it for.
        let mut r = Residency::new([WEUS, 3, WEUS * 2][seed as usize % 3], 4, 100, Eviction::Lru, planted);
        r.add_partition(3);
        r.set_weus(WEUS);
        r.set_quota(0, WEUS - 1);
        assert_eq!((r.index().weus().len(), r.index().free_weus()), (WEUS as usize, WEUS));
        Model {
            r,
            rng: Rng::new(seed, "residency"),
            headers: BTreeMap::new(),
            extents: BTreeMap::new(),
            open: [None; 2],
            reads: Vec::new(),
            pending: Vec::new(),
            volumes: std::array::from_fn(|v| v as u16),
            gone: BTreeSet::new(),
            free_slots: BTreeSet::new(),
            next: 1,
            evicted: 0,
            reused: 0,
        }
    }

    fn key(&mut self) -> Key {
        let volume = self.volumes[self.rng.below(u64::from(VOLUMES)) as usize];
        Key::new(volume, self.rng.below(EXTENTS))
    }

    /// A slot of the open WEU, if there is one or one is free.
    fn slot(&mut self, is_dirty: bool) -> Option<Loc> {
        let open = &mut self.open[usize::from(is_dirty)];
        let (weu, slot) = match *open {
            Some(o) => o,
            None => (self.r.open(0, self.next, is_dirty)?, 0),
        };
        self.next += 1;
        let is_full = slot + 1 == SLOTS;
        *open = (!is_full).then_some((weu, slot + 1));
        if is_full {
            self.r.closed(weu, 512, SLOTS, true);
        }
        Some(Loc::new(weu, slot * 10, 10, slot).dirty(is_dirty))
    }

    /// Points an extent at a place, and takes the entry that this supersedes.
    fn point(&mut self, key: Key, loc: Loc, own: Option<Loc>) -> Checked {
        let old = self.r.point(key, loc, own);
        self.supersede(key, old, loc.is_dirty())?;
        self.extents.insert(key, At { loc, named: own, is_here: true });
        Ok(())
    }

    fn supersede(&mut self, key: Key, old: Option<Superseded>, by_dirty: bool) -> Checked {
        let was = self.extents.remove(&key);
        let named = was.and_then(|w| w.named);
        rule(old.map(|o| o.place.place()) == named.map(Loc::place), || {
            format!("{old:?} is superseded, which {key:?} was {was:?}")
        })?;
        let Some(old) = old else { return Ok(()) };
        let header = self.headers.get_mut(&(old.place.weu(), old.place.slot())).ok_or("no header has it")?;
        rule(header.key == key && std::mem::replace(&mut header.is_true, false), || format!("{old:?}: {header:?}"))?;
        if by_dirty && self.rng.chance(0.7) {
            self.r.pin(old.place.weu());
            self.r.pin(old.bytes_in);
            self.pending.push(old);
            return Ok(());
        }
        self.kill(old)
    }

    /// A start must not trust the entry any more.
    fn kill(&mut self, old: Superseded) -> Checked {
        let weu = old.place.weu();
        let is_open = self.open.iter().flatten().any(|o| o.0 == weu);
        match is_open && self.rng.chance(0.5) {
            true => self.headers.get_mut(&(weu, old.place.slot())).ok_or("no header has it")?.is_dead = true,
            false => rule(self.r.bits().set_dead(old.place).is_some(), || format!("{old:?} was dead already"))?,
        }
        Ok(())
    }

    fn insert(&mut self, is_dirty: bool) -> Checked {
        let key = self.key();
        if !is_dirty && self.extents.get(&key).is_some_and(|at| at.loc.is_dirty()) {
            return Ok(());
        }
        let fp: Fingerprint = [1 + self.rng.below(CONTENTS), 0];
        if let Some(loc) = self.r.find_content(fp, 0)
            && self.rng.chance(0.7)
        {
            return self.duplicate(key, loc.dup(true).dirty(is_dirty));
        }
        let Some(loc) = self.slot(is_dirty) else { return self.evict() };
        self.headers.insert((loc.weu(), loc.slot()), Header::new(key, false, Some(fp)));
        self.point(key, loc, Some(loc))?;
        self.r.set_content(fp, loc);
        Ok(())
    }

    fn duplicate(&mut self, key: Key, loc: Loc) -> Checked {
        let bad = self.r.bad.contains(&(loc.weu(), loc.at_bytes()));
        rule(!bad, || format!("{key:?} is pointed at corrupt bytes at {loc:?}"))?;
        if !loc.is_dirty() && self.extents.get(&key).is_some_and(|at| at.is_here && at.loc.same_place(loc)) {
            return Ok(()); // it may be the very extent
        }
        let own = self.name(key, loc.is_dirty());
        match own.is_some() || !loc.is_dirty() {
            true => self.point(key, loc, own),
            false => Ok(()),
        }
    }

    /// A slot that names a duplicate; a clean one may go without.
    fn name(&mut self, key: Key, is_dirty: bool) -> Option<Loc> {
        let own = if is_dirty || self.rng.chance(0.7) { self.slot(is_dirty)? } else { return None };
        self.headers.insert((own.weu(), own.slot()), Header::new(key, true, None));
        Some(Loc::new(own.weu(), 0, 0, own.slot()))
    }

    fn remove(&mut self, key: Key) -> Checked {
        let (was_there, old) = self.r.remove(key);
        let here = self.extents.get(&key).is_some_and(|at| at.is_here);
        rule(was_there == here, || format!("{key:?} was there: {was_there}"))?;
        self.supersede(key, old, false)
    }

    fn clean(&mut self) -> Checked {
        let key = self.key();
        let Some(at) = self.extents.get_mut(&key).filter(|at| at.loc.is_dirty()) else { return Ok(()) };
        let named = self.r.clean(key);
        rule(named.map(Loc::place) == at.named.map(Loc::place), || format!("{named:?} is clean, not {at:?}"))?;
        at.loc = at.loc.dirty(false);
        Ok(())
    }

    /// The next step of all that leave.
    fn evict(&mut self) -> Checked {
        if self.r.leaving_len() < 2 {
            self.r.begin_eviction(0);
        }
        for (weu, stage) in self.r.leaving().collect::<Vec<_>>() {
            match stage {
                Evict::Waiting if !self.r.must_stay(weu) => self.r.read_header(weu),
                Evict::Waiting => {}
                Evict::Reading if self.r.may_retire(weu) => self.retire(weu)?,
                Evict::Reading => {}
                Evict::Journaling(_) => self.r.trim(weu),
                Evict::Trimming => {
                    rule(self.r.free(weu) && !self.r.free(weu), || format!("WEU {weu} is free once"))?;
                    self.evicted += 1;
                }
            }
        }
        Ok(())
    }

    fn retire(&mut self, weu: u32) -> Checked {
        let is_in = |loc: Loc| loc.weu() == weu;
        let relies = |at: &&At| at.loc.is_dirty() && (is_in(at.loc) || at.named.is_some_and(is_in));
        rule(!self.extents.values().any(|at| relies(&at)), || {
            format!("WEU {weu} goes, which something dirty relies on")
        })?;
        rule(!self.reads.contains(&weu), || format!("WEU {weu} goes, and is being read"))?;
        let needed = self.pending.iter().any(|s| s.place.weu() == weu || s.bytes_in == weu);
        rule(!needed, || format!("WEU {weu} goes, and a start still needs it"))?;
        let mine = (0..SLOTS).filter_map(|slot| Some((slot, self.headers.get(&(weu, slot))?.clone())));
        let mut all: Vec<(u32, Header)> = mine.collect();
        // A header may be damaged: then the entries from some slot on aren't known.
        let most = if self.rng.chance(0.1) { self.rng.below(u64::from(SLOTS)) as usize } else { all.len() };
        let unread: Vec<(u32, Header)> = all.split_off(most);
        let entry = |(slot, h): &(u32, Header)| Entry {
            slot: *slot,
            key: Some(h.key).filter(|_| !h.is_gone),
            is_name: h.is_name,
            fp: h.fp,
            is_dead: h.is_dead,
        };
        let entries = all.iter().map(entry).collect();
        let trusted: Vec<Key> = all.iter().filter(|(_, h)| h.is_true && !h.is_gone).map(|(_, h)| h.key).collect();
        let got = self.r.retire(weu, entries);
        rule(got.trusted == trusted, || format!("of WEU {weu} a start trusts {trusted:?}, not {:?}", got.trusted))?;
        rule(got.is_damaged != unread.is_empty(), || format!("WEU {weu} is damaged: {}", got.is_damaged))?;
        self.headers.retain(|at, _| at.0 != weu);
        // Bytes go, and names go. A duplicate stays while it has one of them.
        for at in self.extents.values_mut() {
            at.is_here &= !is_in(at.loc);
            at.named = at.named.filter(|own| !is_in(*own));
        }
        let mut nameless = Vec::new();
        let in_order = all.iter().filter(|(_, h)| h.is_name && h.is_true && !h.is_gone).map(|(_, h)| h.key);
        for key in in_order {
            let at = self.extents[&key];
            if at.is_here {
                nameless.push((key, at.loc));
            }
        }
        self.extents.retain(|_, at| at.is_here || at.named.is_some());
        rule(got.nameless == nameless, || format!("WEU {weu} named {nameless:?}, not {:?}", got.nameless))?;
        for (key, loc) in nameless {
            if let Some(own) = self.name(key, false) {
                self.r.name(key, own);
                self.extents.insert(key, At { loc, named: Some(own), is_here: true });
            }
        }
        self.r.retired(weu, 7);
        Ok(())
    }

    fn forget_volume(&mut self) -> Checked {
        let at = self.rng.below(u64::from(VOLUMES)) as usize;
        let gone = self.volumes[at];
        let dirty = self.extents.iter().filter(|(k, at)| k.volume() == gone && at.loc.is_dirty()).map(|e| *e.0);
        for key in dirty.collect::<Vec<_>>() {
            let _ = self.r.remove(key);
        }
        self.r.forget_volume(gone);
        self.extents.retain(|k, _| k.volume() != gone);
        self.headers.values_mut().for_each(|h| h.is_gone |= h.key.volume() == gone);
        self.gone.insert(gone);
        if self.rng.chance(0.5) {
            // Slots that something still uses can't be given out again.
            let (stay, free) = std::mem::take(&mut self.gone).into_iter().partition(|_| self.rng.chance(0.5));
            self.gone = stay;
            self.free_slots.extend::<BTreeSet<u16>>(free);
            self.r.sweep_gone(self.gone.iter().copied());
            let (files, known) = (self.r.index().files(), self.r.index().entries().count());
            rule(files == known, || format!("{files} entries are there after a sweep, and {known} are true"))?;
        }
        self.reused += u32::from(!self.free_slots.is_empty());
        let new = || (0..).find(|v| !self.volumes.contains(v) && !self.gone.contains(v));
        self.volumes[at] = self.free_slots.pop_first().or_else(new).ok_or("there are many slots")?;
        Ok(())
    }

    /// Something that was under way when its volume went comes into the cache: nothing may be resident by that.
    fn insert_late(&mut self) -> Checked {
        let Some(&gone) = self.gone.first() else { return Ok(()) };
        let Some(loc) = self.slot(false) else { return self.evict() };
        let key = Key::new(gone, self.rng.below(EXTENTS));
        self.headers.insert((loc.weu(), loc.slot()), Header { is_gone: true, ..Header::new(key, false, None) });
        let old = self.r.point(key, loc, Some(loc));
        rule(old.is_none() && self.r.look(key).is_none(), || format!("{key:?} of a volume that is gone is resident"))
    }

    fn step(&mut self) -> Checked {
        match self.rng.below(40) {
            0..=9 => self.insert(false)?,
            10..=19 => self.insert(true)?,
            20..=25 => self.clean()?,
            26..=27 => {
                let key = self.key();
                if self.extents.get(&key).is_none_or(|at| !at.loc.is_dirty()) {
                    self.remove(key)?;
                }
            }
            28..=30 => {
                let key = self.key();
                if let Some(loc) = self.r.find(key) {
                    self.r.touch(loc);
                    self.r.pin(loc.weu());
                    self.reads.push(loc.weu());
                    if self.rng.chance(0.1) {
                        self.r.set_bad(loc);
                    }
                }
            }
            31..=34 if !self.reads.is_empty() => {
                let weu = self.reads.swap_remove(self.rng.below(self.reads.len() as u64) as usize);
                self.r.unpin(weu);
            }
            35 => match self.rng.below(10) {
                0 => self.forget_volume()?,
                1 => self.insert_late()?,
                _ => self.evict()?,
            },
            36 => {
                for s in std::mem::take(&mut self.pending) {
                    self.kill(s)?;
                    self.r.unpin(s.place.weu());
                    self.r.unpin(s.bytes_in);
                }
            }
            _ => self.evict()?,
        }
        self.compare()
    }

    /// Each extent is where it should be, nothing else is resident, and all agrees.
    fn compare(&self) -> Checked {
        for (key, at) in &self.extents {
            let expected = Some(at.loc).filter(|_| at.is_here);
            let found = self.r.look(*key);
            rule(found == expected, || format!("{key:?} is at {found:?}, not {at:?}"))?;
        }
        let known = |key: &Key| self.extents.get(key).is_some_and(|at| at.is_here);
        let other = self.r.index().entries().find(|e| !known(&e.0));
        rule(other.is_none(), || format!("{other:?} is resident, and shouldn't be"))?;
        let names = self.extents.iter().filter_map(|(key, at)| Some((*key, at.named.filter(|_| at.loc.is_dup())?)));
        let names: BTreeMap<Key, Loc> = names.collect();
        rule(self.r.refs == names, || format!("duplicates are named {:?}, not {names:?}", self.r.refs))?;
        let superseded = self.pending.iter().flat_map(|s| [s.place.weu(), s.bytes_in]);
        self.r.check_pins(self.reads.iter().copied().chain(superseded))?;
        self.r.check()
    }
}

fn run(seed: u64, planted: Option<Planted>) -> Result<[u32; 2], String> {
    let mut model = Model::new(seed, planted);
    for step in 0..1500 {
        model.step().map_err(|why| format!("seed {seed}, step {step}: {why}"))?;
    }
    Ok([model.evicted, model.reused])
}

#[test]
fn whatever_happens_each_entry_is_handed_back_once_and_nothing_goes_that_is_needed() {
    let all: Vec<[u32; 2]> = (0..30).map(|seed| run(seed, None).unwrap_or_else(|why| panic!("{why}"))).collect();
    let [evicted, reused] = [0, 1].map(|i| all.iter().map(|n| n[i]).sum::<u32>());
    assert!(evicted > 1000 && reused > 30, "{evicted} WEUs were evicted, {reused} slots given out again");
}

#[test]
fn mistakes_are_found() {
    for planted in [Planted::NameUnpinned, Planted::NameKept, Planted::RetireUnlooked, Planted::CorruptReused] {
        let found = (0..30).find_map(|seed| run(seed, Some(planted)).err());
        assert!(found.is_some(), "{planted:?} was not found");
    }
}

/// A former mistake, `ForgetDirtyDuplicates`: after a start nothing would know of the extent.
#[test]
fn a_dirty_duplicate_that_no_header_names_is_found() {
    let mut m = Model::new(1, None);
    let loc = m.slot(false).unwrap();
    m.r.point(Key::new(0, 1), loc, Some(loc));
    assert_eq!(m.r.check(), Ok(()));
    m.r.point(Key::new(0, 2), loc.dup(true).dirty(true), None);
    assert!(m.r.check().unwrap_err().contains("no header names"));
}

/// A WEU whose slots are mostly names is one of a partition's few.
#[test]
fn few_weus_are_of_names() {
    let mut m = Model::new(1, None);
    m.r.set_quota(0, NAMES_SHARE * 2);
    let weus: Vec<u32> = (0..3).map(|n| m.r.open(0, 10 + n, false).unwrap()).collect();
    assert!(m.r.may_be_of_names(0, weus[0]) && m.r.may_be_of_names(0, weus[0]) && m.r.may_be_of_names(0, weus[1]));
    assert!(!m.r.may_be_of_names(0, weus[2]), "two of sixteen are");
    m.r.check().unwrap();
}

/// Dirty duplicates that a start has found are as if they had been pointed at.
#[test]
fn found_names_of_dirty_duplicates_pin_their_weus() {
    let mut m = Model::new(1, None);
    let (base, own) = (m.slot(false).unwrap(), m.slot(true).unwrap());
    let (dup, base_key) = (Key::new(0, 2), Key::new(0, 1));
    m.r.index_to_fill().set(base_key, base);
    m.r.index_to_fill().set(dup, base.dup(true).dirty(true));
    let found = m.r.restore([(dup, own)].into(), Vec::new(), vec![dup, base_key, dup]);
    assert_eq!(found.iter().map(|f| (f.key, f.own)).collect::<Vec<_>>(), [(dup, Some(own))]);
    assert!(m.r.must_stay(own.weu()) && m.r.must_stay(base.weu()));
    m.r.check().unwrap();
    assert_eq!(m.r.clean(dup), Some(own));
    assert!(!m.r.must_stay(own.weu()) && !m.r.must_stay(base.weu()));
}
