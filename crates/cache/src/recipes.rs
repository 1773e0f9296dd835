//! The recipe cache (NI-M12, NI-M13): over a store that has file recipes, the fingerprints of what isn't in the file index. An
//! extent whose content is cached under another name is found without a read of the store.

use crate::index::{Fingerprint, Key};
use std::collections::BTreeMap;

/// Extents of a recipe's page.
pub(crate) const PAGE_EXTENTS: u64 = 128;
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

/// The page with an extent: its first one.
pub(crate) fn page_of(key: Key) -> Key {
    Key::new(key.volume(), key.extent() / PAGE_EXTENTS * PAGE_EXTENTS)
}

impl Recipes {
    /// True if the page is known.
    pub(crate) fn has(&self, page: Key) -> bool {
        self.pages.contains_key(&page)
    }

    /// True if the page is being read.
    pub(crate) fn is_asked(&self, page: Key) -> bool {
        self.asked.contains_key(&page)
    }

    /// The page is being read from now on.
    pub(crate) fn ask(&mut self, page: Key) {
        self.asked.insert(page, true);
    }

    /// The page was read, or not. True if nothing of it has changed meanwhile.
    pub(crate) fn was_read(&mut self, page: Key) -> bool {
        self.asked.remove(&page).unwrap_or(false)
    }

    /// The fingerprint of an extent, if its page is known and has it.
    pub(crate) fn fingerprint(&mut self, key: Key) -> Option<Fingerprint> {
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

    /// A page, with its extents' fingerprints; `bytes_max` are what all pages may take.
    pub(crate) fn add(&mut self, key: Key, fps: Vec<Option<Fingerprint>>, bytes_max: u64) {
        let pages_max = bytes_max / (PAGE_EXTENTS * FINGERPRINT_BYTES);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_not_believed_and_the_oldest_page_goes() {
        let (mut r, two) = (Recipes::default(), 2 * PAGE_EXTENTS * FINGERPRINT_BYTES);
        let fps = |n: u64| (0..PAGE_EXTENTS).map(|i| Some([n, i])).collect::<Vec<_>>();
        r.add(Key::new(1, 0), fps(1), two);
        r.add(Key::new(1, 128), fps(2), two);
        assert_eq!(r.fingerprint(Key::new(1, 5)), Some([1, 5]));
        r.changed(Key::new(1, 5));
        assert_eq!((r.fingerprint(Key::new(1, 5)), r.fingerprint(Key::new(1, 6))), (None, Some([1, 6])));
        r.add(Key::new(2, 0), fps(3), two);
        assert_eq!(r.fingerprint(Key::new(1, 130)), None, "used longest ago");
        assert!(r.fingerprint(Key::new(1, 7)).is_some() && r.fingerprint(Key::new(2, 7)).is_some());
        r.ask(Key::new(1, 256));
        r.changed(Key::new(1, 300));
        assert!(r.is_asked(Key::new(1, 256)) && !r.was_read(Key::new(1, 256)), "what is on its way is out of date");
        r.forget(|k| k.volume() == 1);
        assert_eq!((r.fingerprint(Key::new(1, 7)), r.pages.len(), r.by_use.len()), (None, 1, 1));
    }
}
