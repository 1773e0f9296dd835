//! Rules that hold of what is resident after each event.

use super::{Evict, Residency};
use crate::index::{Key, Loc, WeuState};
use std::collections::BTreeMap;

impl Residency {
    /// Checks what must hold after each event, for `Cache::check_truth`. It looks at everything that is resident.
    ///
    /// # Errors
    /// The rule that is broken, and where.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.index.check()?;
        let state = |weu: &u32| self.index.weu(*weu).state;
        let holds = |weu: &u32| !matches!(state(weu), WeuState::Free | WeuState::Retired);
        let rule = |holds: bool, why: &dyn Fn() -> String| if holds { Ok(()) } else { Err(why()) };
        for (weu, n) in &self.pins {
            rule(*n > 0 && state(weu) != WeuState::Free, &|| format!("WEU {weu} is pinned {n} times and free"))?;
        }
        for (weu, stage) in &self.leaving {
            let fits = match stage {
                Evict::Waiting | Evict::Reading => state(weu) == WeuState::Leaving,
                Evict::Journaling(_) | Evict::Trimming => state(weu) == WeuState::Retired,
            };
            rule(fits, &|| format!("WEU {weu} is {:?}, and leaves: {stage:?}", state(weu)))?;
        }
        for (key, own) in &self.refs {
            let (weu, at) = (own.weu(), self.index.look(*key));
            let is_true = holds(&weu) && !self.index.weu(weu).is_dead(own.slot());
            rule(is_true, &|| format!("{key:?} is named by {own:?}, which is not true"))?;
            rule(at.is_none_or(Loc::is_dup), &|| format!("{key:?} is named by {own:?}, and is no duplicate"))?;
        }
        for (key, loc) in self.index.entries() {
            match loc.is_dup() {
                true => rule(!loc.is_dirty() || self.refs.contains_key(&key), &|| {
                    format!("{key:?} at {loc:?} is a dirty duplicate that no header names")
                })?,
                false => rule(!self.index.weu(loc.weu()).is_dead(loc.slot()), &|| {
                    format!("{key:?} is at {loc:?}, and the header's entry is dead")
                })?,
            }
        }
        for (weu, at) in &self.bad {
            rule(holds(weu), &|| format!("WEU {weu} holds nothing, and is corrupt at {at}"))?;
        }
        for (partition, weus) in &self.name_weus {
            let mine = |weu: &u32| holds(weu) && self.index.weu(*weu).partition == *partition;
            rule(weus.iter().all(mine), &|| format!("of WEUs {weus:?} one is none of names of partition {partition}"))?;
        }
        Ok(())
    }

    /// Checks that WEUs are pinned exactly by the names of dirty duplicates and by `others`, a WEU for each reason.
    ///
    /// # Errors
    /// A WEU whose pins are not these.
    pub(crate) fn check_pins(&self, others: impl Iterator<Item = u32>) -> Result<(), String> {
        let is_dirty = |key: &Key| self.index.look(*key).is_some_and(Loc::is_dirty);
        let names = self.refs.iter().filter(|(key, _)| is_dirty(key)).map(|(_, own)| own.weu());
        let mut pins: BTreeMap<u32, u32> = BTreeMap::new();
        others.chain(names).for_each(|weu| *pins.entry(weu).or_default() += 1);
        let differs = |weu: &&u32| pins.get(weu) != self.pins.get(weu);
        match pins.keys().chain(self.pins.keys()).find(differs) {
            Some(weu) => Err(format!("WEU {weu} is pinned {:?} times, not {:?}", self.pins.get(weu), pins.get(weu))),
            None => Ok(()),
        }
    }
}
