//! Former copies: cached copies of extents that changes replace on their way to the slow device.
//!
//! Such a copy is dead for every later start before its change is sent. Until the first change of the extent has ended, it is read
//! nevertheless. The part that no change in flight overlaps is in it as it is on the slow device. The rest is undefined while the change is in
//! flight ("Overlaps" in `plimsoll_stack::layer`).
//!
//! [`Former`] owns the places. The caller pins the WEU of each as long as it is here.

use crate::config::Planted;
use crate::place::{Key, Loc};
use std::collections::BTreeMap;

/// See the module's documentation.
pub(crate) struct Former {
    planted: Option<Planted>,
    places: BTreeMap<Key, Loc>,
}

impl Former {
    /// None yet.
    pub(crate) fn new(planted: Option<Planted>) -> Former {
        Former { planted, places: BTreeMap::new() }
    }

    /// A change of an extent begins, whose copy at `loc` is in the index no more.
    pub(crate) fn keep(&mut self, key: Key, loc: Loc) {
        debug_assert!(!loc.is_dirty(), "only the cache has {key:?}");
        let other = self.places.insert(key, loc);
        debug_assert!(other.is_none() || self.planted.is_some(), "{key:?} was cached while it was changed");
    }

    /// The place of an extent's former copy.
    pub(crate) fn place(&self, key: Key) -> Option<Loc> {
        self.places.get(&key).copied()
    }

    /// A change of an extent has ended: nobody may read its former copy any more. Its place.
    pub(crate) fn end(&mut self, key: Key) -> Option<Loc> {
        match Planted::FormerKept.is_in(self.planted) {
            true => None,
            false => self.places.remove(&key),
        }
    }

    /// Nobody may read any former copy any more; their places.
    pub(crate) fn end_all(&mut self) -> impl Iterator<Item = Loc> + use<> {
        std::mem::take(&mut self.places).into_values()
    }

    /// The WEU of each, for checks.
    pub(crate) fn weus(&self) -> impl Iterator<Item = u32> + '_ {
        self.places.values().map(|loc| loc.weu())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_read_until_it_ends() {
        let (mut former, at) = (Former::new(None), |weu| Loc::new(weu, 0, 64, 0));
        let key = |n| Key::new(0, n);
        (1..4).for_each(|n| former.keep(key(n), at(n as u32)));
        assert_eq!((former.place(key(2)), former.place(key(9))), (Some(at(2)), None));
        assert_eq!((former.end(key(2)), former.end(key(2)), former.place(key(2))), (Some(at(2)), None, None));
        assert_eq!(former.weus().collect::<Vec<_>>(), [1, 3]);
        assert!(former.end_all().eq([at(1), at(3)]) && former.place(key(1)).is_none());
    }

    #[test]
    #[should_panic(expected = "was cached while it was changed")]
    fn two_copies_of_an_extent_are_found() {
        let mut former = Former::new(None);
        former.keep(Key::new(0, 1), Loc::new(1, 0, 64, 0));
        former.keep(Key::new(0, 1), Loc::new(2, 0, 64, 0));
    }
}
