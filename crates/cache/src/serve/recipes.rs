//! Extents that aren't in the file index, found by their recipes; recipes read from the slow device.

use crate::index::{Key, Loc};
use crate::recipes::{PAGE_EXTENTS, page_of};
use crate::request::Pending;
use crate::serve::{Cache, SLOW};
use crate::tasks::MakeFingerprint;
use plimsoll_base::{Completion, Data, Op, OwnKind, TenantId, Time};
use plimsoll_stack::{Actions, Task};

impl Cache {
    /// The place of content of an extent that isn't in the file index, if its recipe is known and the content is cached. Asks for the
    /// recipe if it isn't known: the next read of it may profit.
    pub(crate) fn find_by_recipe(&mut self, now: Time, key: Key, size: u64, out: &mut Actions) -> Option<Loc> {
        if self.config.recipe_bytes == 0 || self.config.fingerprints_percent == 0 {
            return None;
        }
        let page = page_of(key);
        if !self.recipes.has(page) {
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
        if count == 0 || self.stopping || self.recipes.is_asked(page) {
            return;
        }
        self.recipes.ask(page);
        let whose = (self.volumes[page.volume() as usize].key, TenantId::default());
        let range = (page.extent() * e, count * e);
        self.send_own(now, SLOW, (Op::Read, OwnKind::Recipe), whose, range, Data::Absent, Pending::Recipe(page), out);
    }

    /// A recipe is here, or the store has none.
    pub(crate) fn recipe_read(&mut self, page: Key, c: Completion) {
        let whole = self.recipes.was_read(page);
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
        self.recipes.add(page, fps, self.config.recipe_bytes);
    }
}
