//! Owners of the slots.

use plimsoll_base::VolumeKey;
use std::collections::{BTreeMap, VecDeque};

/// Slots and their owners; each volume's are spread over the rotation, so that it waits as little as can be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slots {
    owners: Vec<Option<VolumeKey>>,
}

impl Slots {
    /// Creates `slots` slots without owners.
    pub fn new(slots: usize) -> Slots {
        Slots { owners: vec![None; slots] }
    }

    /// Returns the number of slots.
    pub fn len(&self) -> usize {
        self.owners.len()
    }

    /// True if there are no slots.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// Returns the owner of a slot.
    pub fn owner(&self, slot: usize) -> Option<VolumeKey> {
        self.owners[slot]
    }

    /// Returns the number of slots without an owner.
    pub fn free(&self) -> usize {
        self.owners.iter().filter(|o| o.is_none()).count()
    }

    /// Returns the number of slots of a volume.
    pub fn count(&self, volume: VolumeKey) -> usize {
        self.owners.iter().filter(|o| **o == Some(volume)).count()
    }

    /// Takes a volume's slots back.
    pub fn release(&mut self, volume: VolumeKey) {
        self.owners.iter_mut().filter(|o| **o == Some(volume)).for_each(|o| *o = None);
    }

    /// Gives a volume that has none `wanted` slots, or all free ones if there are fewer. Volumes arrive in the order of their
    /// places and are dealt slots there and back, from both ends by turns (0, 2, 3, 1). So the places of successive turns are
    /// never much further apart than half of the disk. In the order of arrival the last and the first would be the whole disk
    /// apart.
    pub fn assign(&mut self, volume: VolumeKey, wanted: usize) {
        let n = self.owners.len();
        let is_free = |s: &usize| self.owners[*s].is_none();
        let first = if self.dealt().len().is_multiple_of(2) { (0..n).find(is_free) } else { (0..n).rfind(is_free) };
        let Some(first) = first else { return };
        for i in 0..wanted.min(self.free()) {
            let ideal = first + i * n / wanted;
            let near = (0..n).flat_map(|d| [(ideal + d) % n, (ideal + n - d) % n]);
            let slot = near.into_iter().find(|s| self.owners[*s].is_none()).expect("one is free");
            self.owners[slot] = Some(volume);
        }
    }

    /// Owners in the order in which they were dealt their first slots: from both ends by turns.
    fn dealt(&self) -> Vec<VolumeKey> {
        let mut owners: VecDeque<VolumeKey> = self.owners.iter().copied().flatten().collect();
        let mut dealt = Vec::new();
        while let Some(v) = if dealt.len() % 2 == 0 { owners.pop_front() } else { owners.pop_back() } {
            dealt.push(v);
            owners.retain(|o| *o != v);
        }
        dealt
    }

    /// Deals `slots` slots out anew, in the order in which they were dealt; who doesn't fit any more has none.
    pub fn resize(&mut self, slots: usize, wanted: &BTreeMap<VolumeKey, u32>) {
        let dealt = self.dealt();
        let place = |v: &VolumeKey| dealt.iter().position(|d| d == v).unwrap_or(dealt.len());
        self.owners = vec![None; slots];
        // Who wants most is spread first.
        let mut order: Vec<(VolumeKey, u32)> = wanted.iter().map(|(v, n)| (*v, *n)).collect();
        order.sort_by_key(|(v, n)| (std::cmp::Reverse(*n), place(v), *v));
        for (volume, n) in order {
            self.assign(volume, n as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v(id: u32) -> VolumeKey {
        VolumeKey { id, generation: 0 }
    }

    #[test]
    fn several_slots_of_a_volume_are_spread() {
        let mut s = Slots::new(8);
        s.assign(v(1), 1);
        s.assign(v(2), 4);
        let of = |s: &Slots, id| (0..s.len()).filter(|i| s.owner(*i) == Some(v(id))).collect::<Vec<_>>();
        assert_eq!((of(&s, 1), of(&s, 2)), (vec![0], vec![1, 3, 5, 7]));
        s.assign(v(3), 9);
        assert_eq!((s.free(), s.count(v(3))), (0, 3));
        s.release(v(2));
        assert_eq!(s.free(), 4);
    }

    /// Four in the order of their places: nobody follows one further than half away, however often slots change.
    #[test]
    fn slots_are_dealt_there_and_back() {
        let mut s = Slots::new(4);
        (0..4).for_each(|id| s.assign(v(id), 1));
        let order = |s: &Slots| (0..s.len()).filter_map(|i| s.owner(i)).map(|v| v.id).collect::<Vec<_>>();
        assert_eq!(order(&s), [0, 2, 3, 1]);
        let wanted = (0..4).map(|id| (v(id), 1)).collect();
        for slots in [8, 4, 5] {
            s.resize(slots, &wanted);
            assert_eq!(order(&s), [0, 2, 3, 1], "{slots} slots");
        }
        s.release(v(2));
        s.assign(v(9), 1);
        assert_eq!(order(&s).len(), 4, "who comes later has what is free: {:?}", order(&s));
    }

    #[test]
    fn resizing_keeps_everybodys_number_where_it_fits() {
        let mut s = Slots::new(4);
        let wanted = BTreeMap::from([(v(1), 1), (v(2), 2), (v(3), 1)]);
        s.resize(10, &wanted);
        assert_eq!((s.count(v(1)), s.count(v(2)), s.count(v(3)), s.free()), (1, 2, 1, 6));
        s.resize(3, &wanted);
        assert_eq!((s.count(v(2)), s.count(v(1)), s.count(v(3))), (2, 1, 0));
    }
}
