//! The recipe cache (NI-M12, NI-M13): over a store that has file recipes, the fingerprints of what isn't in the file index. An
//! extent whose content is cached under another name is found without a read of the store.

use crate::index::{Fingerprint, Key, Loc};
use crate::layer::{Cache, SLOW};
use crate::request::Pending;
use crate::tasks::MakeFingerprint;
use plimsoll_base::{Completion, Data, Op, OwnKind, TenantId, Time};
use plimsoll_stack::{Actions, Task};
use std::collections::BTreeMap;

/// Extents of a recipe's page.
const PAGE_EXTENTS: u64 = 128;
/// Memory of one of them, as the paper counts.
const FINGERPRINT_BYTES: u64 = 20;

struct Page {
    fps: Vec<Option<Fingerprint>>,
    used: u64,
}

/// Pages of recipes, by their first extents.
#[derive(Default)]
pub(crate) struct Recipes {
    pages: BTreeMap<Key, Page>,
    by_use: BTreeMap<u64, Key>,
    /// Being read; false if something of it changed meanwhile.
    asked: BTreeMap<Key, bool>,
    clock: u64,
}

fn page_of(key: Key) -> Key {
    Key::new(key.volume(), key.extent() / PAGE_EXTENTS * PAGE_EXTENTS)
}

impl Recipes {
    fn fingerprint(&mut self, key: Key) -> Option<Fingerprint> {
        let page = self.pages.get_mut(&page_of(key))?;
        self.clock += 1;
        self.by_use.remove(&page.used);
        page.used = self.clock;
        self.by_use.insert(self.clock, page_of(key));
        *page.fps.get((key.extent() % PAGE_EXTENTS) as usize)?
    }

    /// The store has, or will have, something else of this extent.
    pub(crate) fn changed(&mut self, key: Key) {
        if let Some(whole) = self.asked.get_mut(&page_of(key)) {
            *whole = false;
        }
        if let Some(fp) =
            self.pages.get_mut(&page_of(key)).and_then(|p| p.fps.get_mut((key.extent() % PAGE_EXTENTS) as usize))
        {
            *fp = None;
        }
    }

    /// Those for which `mine` holds are gone.
    pub(crate) fn forget(&mut self, mine: impl Fn(&Key) -> bool) {
        self.pages.retain(|k, _| !mine(k));
        self.by_use.retain(|_, k| !mine(k));
        self.asked.iter_mut().filter(|(k, _)| mine(k)).for_each(|(_, whole)| *whole = false);
    }

    fn add(&mut self, key: Key, fps: Vec<Option<Fingerprint>>, pages_max: u64) {
        self.clock += 1;
        self.pages.insert(key, Page { fps, used: self.clock });
        self.by_use.insert(self.clock, key);
        while self.pages.len() as u64 > pages_max.max(1) {
            let (_, oldest) = self.by_use.pop_first().expect("one use for each page");
            self.pages.remove(&oldest);
        }
    }

    /// The bytes that it takes, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.pages.len() as u64 * PAGE_EXTENTS * size_of::<Option<Fingerprint>>() as u64
    }
}

impl Cache {
    /// The place of content of an extent that isn't in the file index, if its recipe is known and the content is cached. Asks for the
    /// recipe if it isn't known: the next read of it may profit.
    pub(crate) fn find_by_recipe(&mut self, now: Time, key: Key, size: u64, out: &mut Actions) -> Option<Loc> {
        if self.config.recipe_bytes == 0 || self.config.fingerprints_percent == 0 {
            return None;
        }
        let page = page_of(key);
        if !self.recipes.pages.contains_key(&page) {
            self.ask_for_recipe(now, page, size, out);
            return None;
        }
        if self.gate.is_busy(&key) {
            return None;
        }
        let whose = self.volumes[key.volume() as usize].partition;
        let loc = self.recipes.fingerprint(key).and_then(|fp| self.residency.find_content(fp, whose))?;
        self.counters.recipe_hits += 1;
        self.gate.drop_fill(&key);
        self.point(key, loc.dup(true), None);
        Some(loc.dup(true))
    }

    fn ask_for_recipe(&mut self, now: Time, page: Key, size: u64, out: &mut Actions) {
        let e = self.extent_bytes();
        let count = (size / e).saturating_sub(page.extent()).min(PAGE_EXTENTS);
        if count == 0 || self.stopping || self.recipes.asked.contains_key(&page) {
            return;
        }
        self.recipes.asked.insert(page, true);
        let whose = (self.volumes[page.volume() as usize].key, TenantId::default());
        let range = (page.extent() * e, count * e);
        self.send_own(now, SLOW, (Op::Read, OwnKind::Recipe), whose, range, Data::Absent, Pending::Recipe(page), out);
    }

    /// A recipe is here, or the store has none.
    pub(crate) fn recipe_read(&mut self, page: Key, c: Completion) {
        let whole = self.recipes.asked.remove(&page).unwrap_or(false);
        let Data::Content(names) = &c.io.data else {
            self.config.recipe_bytes = 0;
            return;
        };
        if !whole || !c.outcome.is_done() || !self.is_ready() {
            return;
        }
        let (e, hash_key) = (self.extent_bytes(), self.volumes[page.volume() as usize].hash_key);
        let fingerprint = |(i, name): (u64, &u128)| {
            let key = Key::new(page.volume(), page.extent() + i);
            // The store's is older than what only the cache has, or about to be.
            let other = self.dirty.contains(&key) || self.destaging.contains(&key) || self.gate.is_busy(&key);
            let data = Data::Content(vec![*name].into());
            let task =
                MakeFingerprint { data, len: e, hash: self.config.hash, key: hash_key, speeds: self.config.speeds };
            let words = Box::new(task).run().words;
            (!other).then_some([words[0], words[1]])
        };
        let fps = (0..).zip(names.iter()).map(fingerprint).collect();
        self.recipes.add(page, fps, self.config.recipe_bytes / (PAGE_EXTENTS * FINGERPRINT_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_not_believed_and_the_oldest_page_goes() {
        let mut r = Recipes::default();
        let fps = |n: u64| (0..PAGE_EXTENTS).map(|i| Some([n, i])).collect::<Vec<_>>();
        r.add(Key::new(1, 0), fps(1), 2);
        r.add(Key::new(1, 128), fps(2), 2);
        assert_eq!(r.fingerprint(Key::new(1, 5)), Some([1, 5]));
        r.changed(Key::new(1, 5));
        assert_eq!((r.fingerprint(Key::new(1, 5)), r.fingerprint(Key::new(1, 6))), (None, Some([1, 6])));
        r.add(Key::new(2, 0), fps(3), 2);
        assert_eq!(r.fingerprint(Key::new(1, 130)), None, "used longest ago");
        assert!(r.fingerprint(Key::new(1, 7)).is_some() && r.fingerprint(Key::new(2, 7)).is_some());
        r.asked.insert(Key::new(1, 256), true);
        r.changed(Key::new(1, 300));
        assert!(!r.asked[&Key::new(1, 256)], "what is on its way is out of date");
        r.forget(|k| k.volume() == 1);
        assert_eq!((r.fingerprint(Key::new(1, 7)), r.pages.len(), r.by_use.len()), (None, 1, 1));
    }
}
