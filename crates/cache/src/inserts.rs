//! Extents on their way into the cache, and those of them that wait for room.
//!
//! [`Inserts`] owns an extent from its first task for a worker on. It ends exactly once, by [`Inserts::end`]: it is packed, points at a
//! duplicate, goes to the slow device instead, is dropped, or has failed.

use crate::format::ExtentHead;
use crate::index::{Fingerprint, Key};
use plimsoll_base::{Data, Priority, TenantId};
use slab::Slab;
use std::collections::{BTreeSet, VecDeque};

/// Clean extents on their way into the cache at once; more are not cached.
const INSERTS_MAX: usize = 4096;

/// A clean extent isn't cached either if this number of inserts wait for room.
const STARVED_CLEAN_MAX: usize = 512;

/// An extent on its way into the cache.
pub(crate) struct Insert {
    pub key: Key,
    data: Data,
    /// A clean one goes in only if it still has the extent's token.
    pub token: u64,
    /// The change that waits for it, if it's dirty.
    pub op: Option<usize>,
    pub fp: Option<Fingerprint>,
    /// Its head, once it is packed.
    pub head: Option<ExtentHead>,
    /// An older content of it was cached when it was written: that counts as a use of the new one.
    was_cached: bool,
    /// It waits for room.
    is_starved: bool,
    pub tenant: TenantId,
    pub priority: Priority,
}

impl Insert {
    /// A clean extent, that has a token for the fill.
    pub(crate) fn clean(key: Key, data: Data, token: u64, whose: (TenantId, Priority)) -> Insert {
        Insert {
            key,
            data,
            token,
            op: None,
            fp: None,
            head: None,
            was_cached: false,
            is_starved: false,
            tenant: whose.0,
            priority: whose.1,
        }
    }

    /// A dirty extent, for a part of a change.
    pub(crate) fn dirty(key: Key, data: Data, op: usize, whose: (TenantId, Priority)) -> Insert {
        Insert { op: Some(op), ..Insert::clean(key, data, 0, whose) }
    }

    /// The same, of which an older content `was_cached`.
    pub(crate) fn over(self, was_cached: bool) -> Insert {
        Insert { was_cached, ..self }
    }

    /// True if an older content of it was cached when it was written.
    pub(crate) fn was_cached(&self) -> bool {
        self.was_cached
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.op.is_some()
    }

    /// Its content, as it is or packed.
    pub(crate) fn data(&self) -> &Data {
        &self.data
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Inserts {
    all: Slab<Insert>,
    /// Those without room, oldest first.
    starved: VecDeque<usize>,
}

impl Inserts {
    /// Returns true if no more clean extents should be begun.
    pub(crate) fn is_full(&self) -> bool {
        self.all.len() >= INSERTS_MAX
    }

    /// Begins one. Returns its number.
    pub(crate) fn begin(&mut self, insert: Insert) -> usize {
        self.all.insert(insert)
    }

    pub(crate) fn get(&self, insert: usize) -> &Insert {
        &self.all[insert]
    }

    /// The fingerprint of one is known.
    pub(crate) fn set_fingerprint(&mut self, insert: usize, fp: Fingerprint) {
        self.all[insert].fp = Some(fp);
    }

    /// One is packed: its head and its bytes.
    pub(crate) fn set_packed(&mut self, insert: usize, head: ExtentHead, data: Data) {
        let i = &mut self.all[insert];
        (i.head, i.data) = (Some(head), data);
    }

    /// The bytes of one, which ends next.
    pub(crate) fn take_data(&mut self, insert: usize) -> Data {
        std::mem::take(&mut self.all[insert].data)
    }

    /// Ends one that doesn't wait for room.
    pub(crate) fn end(&mut self, insert: usize) -> Insert {
        let i = self.all.remove(insert);
        debug_assert!(!i.is_starved, "an insert ends that waits for room");
        i
    }

    /// Volumes' slots of all.
    pub(crate) fn volumes(&self) -> BTreeSet<u16> {
        self.all.iter().map(|(_, i)| i.key.volume()).collect()
    }

    // Room.

    /// Returns true if one more clean extent may wait for room.
    pub(crate) fn may_starve(&self) -> bool {
        self.starved.len() < STARVED_CLEAN_MAX
    }

    /// One that is packed waits for room, and didn't yet.
    pub(crate) fn starve(&mut self, insert: usize) {
        let i = &mut self.all[insert];
        debug_assert!(i.head.is_some(), "an insert waits for room that isn't packed");
        debug_assert!(!i.is_starved, "an insert waits for room twice");
        i.is_starved = true;
        self.starved.push_back(insert);
    }

    pub(crate) fn has_starved(&self) -> bool {
        !self.starved.is_empty()
    }

    /// Those that wait for room.
    pub(crate) fn starved(&self) -> impl Iterator<Item = &Insert> {
        self.starved.iter().map(|i| &self.all[*i])
    }

    /// All that wait for room, in order; none waits then.
    pub(crate) fn take_starved(&mut self) -> VecDeque<usize> {
        for i in &self.starved {
            self.all[*i].is_starved = false;
        }
        std::mem::take(&mut self.starved)
    }

    /// The same, the dirty ones and the clean ones.
    pub(crate) fn take_starved_apart(&mut self) -> (Vec<usize>, Vec<usize>) {
        self.take_starved().into_iter().partition(|i| self.all[*i].is_dirty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{ExtentName, Packing};
    use plimsoll_base::{PriorityClass, VolumeKey};

    const WHOSE: (TenantId, Priority) = (TenantId(0), Priority { class: PriorityClass::Idle, level: 0 });

    fn packed(inserts: &mut Inserts, insert: Insert) -> usize {
        let name = ExtentName { volume: VolumeKey { id: 1, generation: 0 }, extent: insert.key.extent() };
        let i = inserts.begin(insert);
        let head = ExtentHead { payload_bytes: 100, packing: Packing::Raw, name, sum: 0 };
        inserts.set_packed(i, head, Data::Absent);
        i
    }

    #[test]
    fn dirty_ones_get_room_first_and_each_keeps_its_turn() {
        let mut inserts = Inserts::default();
        let all: Vec<usize> = (0..6)
            .map(|n| {
                let key = Key::new(n as u16 % 2, n);
                let insert = match n % 3 {
                    0 => Insert::dirty(key, Data::Absent, 9, WHOSE),
                    _ => Insert::clean(key, Data::Absent, 7, WHOSE),
                };
                packed(&mut inserts, insert)
            })
            .collect();
        all.iter().for_each(|i| inserts.starve(*i));
        assert_eq!((inserts.starved().count(), inserts.volumes()), (6, [0, 1].into()));
        assert_eq!(inserts.take_starved_apart(), (vec![all[0], all[3]], vec![all[1], all[2], all[4], all[5]]));
        assert!(!inserts.has_starved());
        assert_eq!(inserts.end(all[3]).op, Some(9));
        inserts.starve(all[0]);
        assert_eq!(
            (inserts.take_starved().into_iter().collect::<Vec<_>>(), inserts.has_starved()),
            (vec![all[0]], false)
        );
        assert_eq!(inserts.end(all[0]).key, Key::new(0, 0));
    }

    #[test]
    #[should_panic(expected = "waits for room twice")]
    fn one_that_waits_twice_is_found() {
        let mut inserts = Inserts::default();
        let i = packed(&mut inserts, Insert::clean(Key::new(0, 1), Data::Absent, 7, WHOSE));
        inserts.starve(i);
        inserts.starve(i);
    }

    #[test]
    #[should_panic(expected = "isn't packed")]
    fn one_that_waits_unpacked_is_found() {
        let mut inserts = Inserts::default();
        let i = inserts.begin(Insert::clean(Key::new(0, 1), Data::Absent, 7, WHOSE));
        inserts.starve(i);
    }

    #[test]
    #[should_panic(expected = "an insert ends that waits for room")]
    fn one_that_ends_and_waits_is_found() {
        let mut inserts = Inserts::default();
        let i = packed(&mut inserts, Insert::clean(Key::new(0, 1), Data::Absent, 7, WHOSE));
        inserts.starve(i);
        inserts.end(i);
    }
}
