//! Waiting requests of one queue, in order of arrival.
//!
//! A request leaves from anywhere in logarithmic time: a client may go that has tens of thousands of them, or all their deadlines may pass
//! at once. So it is a treap. Each part of it knows how many requests it has. Ranks are hashes of the requests' numbers, so a replay builds
//! the same.

use crate::queue::Waiting;

const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Entry {
    serial: u64,
    rank: u64,
    left: u32,
    right: u32,
    /// Requests in this part.
    count: u32,
    waiting: Option<Waiting>,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Line {
    entries: Vec<Entry>,
    free: Vec<u32>,
    root: u32,
    /// Entries looked at since the start.
    #[cfg(test)]
    steps: std::cell::Cell<u64>,
}

impl Default for Line {
    fn default() -> Line {
        Line {
            entries: Vec::new(),
            free: Vec::new(),
            root: NONE,
            #[cfg(test)]
            steps: Default::default(),
        }
    }
}

fn rank(serial: u64) -> u64 {
    let mixed = serial.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl Line {
    /// Returns the number of requests.
    pub fn len(&self) -> usize {
        self.count(self.root) as usize
    }

    /// True if no request waits.
    pub fn is_empty(&self) -> bool {
        self.root == NONE
    }

    /// The oldest.
    pub fn front(&self) -> Option<&Waiting> {
        self.end(|e| e.left)
    }

    /// The newest.
    pub fn back(&self) -> Option<&Waiting> {
        self.end(|e| e.right)
    }

    /// The request with `k` older ones.
    pub fn get(&self, k: usize) -> Option<&Waiting> {
        let (mut at, mut k) = (self.root, u32::try_from(k).ok()?);
        while at != NONE {
            let e = self.entry(at);
            let before = self.count(e.left);
            at = match k.cmp(&before) {
                std::cmp::Ordering::Equal => return e.waiting.as_ref(),
                std::cmp::Ordering::Less => e.left,
                std::cmp::Ordering::Greater => {
                    k -= before + 1;
                    e.right
                }
            };
        }
        None
    }

    /// All, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Waiting> {
        (0..self.len()).map(|k| self.get(k).expect("k is below the length"))
    }

    /// One more waits, in the order of its number. No other has that number.
    pub fn push(&mut self, waiting: Waiting) {
        let serial = waiting.serial;
        let entry = Entry { serial, rank: rank(serial), left: NONE, right: NONE, count: 1, waiting: Some(waiting) };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let (before, after) = self.split(self.root, serial);
        let before = self.merge(before, at);
        self.root = self.merge(before, after);
    }

    /// Takes the oldest out.
    pub fn pop_front(&mut self) -> Option<Waiting> {
        let serial = self.front()?.serial;
        self.remove(serial)
    }

    /// Takes a request out, if it is here.
    pub fn remove(&mut self, serial: u64) -> Option<Waiting> {
        let (root, found) = self.without(self.root, serial);
        self.root = root;
        let waiting = self.entries.get_mut(found as usize)?.waiting.take();
        self.free.push(found);
        waiting
    }

    fn entry(&self, at: u32) -> &Entry {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
        &self.entries[at as usize]
    }

    fn count(&self, at: u32) -> u32 {
        if at == NONE { 0 } else { self.entries[at as usize].count }
    }

    fn end(&self, next: impl Fn(&Entry) -> u32) -> Option<&Waiting> {
        let (mut at, mut last) = (self.root, None);
        while at != NONE {
            let e = self.entry(at);
            (at, last) = (next(e), e.waiting.as_ref());
        }
        last
    }

    fn refresh(&mut self, at: u32) {
        let (left, right) = (self.entry(at).left, self.entry(at).right);
        self.entries[at as usize].count = self.count(left) + self.count(right) + 1;
    }

    /// Cuts a part into those before `serial` and the others.
    fn split(&mut self, at: u32, serial: u64) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let &Entry { serial: here, left, right, .. } = self.entry(at);
        if here < serial {
            let (inner, rest) = self.split(right, serial);
            self.entries[at as usize].right = inner;
            self.refresh(at);
            (at, rest)
        } else {
            let (rest, inner) = self.split(left, serial);
            self.entries[at as usize].left = inner;
            self.refresh(at);
            (rest, at)
        }
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE || right == NONE {
            return left.min(right);
        }
        if self.entry(left).rank > self.entry(right).rank {
            let merged = self.merge(self.entries[left as usize].right, right);
            self.entries[left as usize].right = merged;
            self.refresh(left);
            left
        } else {
            let merged = self.merge(left, self.entries[right as usize].left);
            self.entries[right as usize].left = merged;
            self.refresh(right);
            right
        }
    }

    /// A part without the request `serial`, and that one.
    fn without(&mut self, at: u32, serial: u64) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        let &Entry { serial: here, left, right, .. } = self.entry(at);
        let found = match serial.cmp(&here) {
            std::cmp::Ordering::Equal => return (self.merge(left, right), at),
            std::cmp::Ordering::Less => {
                let (part, found) = self.without(left, serial);
                self.entries[at as usize].left = part;
                found
            }
            std::cmp::Ordering::Greater => {
                let (part, found) = self.without(right, serial);
                self.entries[at as usize].right = part;
                found
            }
        };
        self.refresh(at);
        (at, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Data, Io, IoHead, Op, Rng, TenantId, Time, VolumeKey};
    use proptest::prelude::*;

    fn waiting(serial: u64) -> Waiting {
        let head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), 0, 1, Time::ZERO);
        Waiting { arrived_at: Time::ZERO, serial, io: Io::new(head, Data::Absent), of: None }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Every question is answered as a sorted list answers it.
        #[test]
        fn it_is_a_sorted_list(acts in prop::collection::vec((0u8..5, 0u64..1000), 1..200)) {
            let (mut line, mut list) = (Line::default(), Vec::new());
            let serial = |w: Option<&Waiting>| w.map(|w| w.serial);
            for (next, (act, any)) in (1000..).zip(acts) {
                let nth = any as usize % list.len().max(1);
                match act {
                    0 | 1 => {
                        line.push(waiting(next));
                        list.push(next);
                    }
                    2 => {
                        let first = (!list.is_empty()).then(|| list.remove(0));
                        prop_assert_eq!(line.pop_front().map(|w| w.serial), first);
                        // What is left of it waits in its place.
                        if let Some(first) = first.filter(|_| any % 2 == 0) {
                            line.push(waiting(first));
                            list.insert(0, first);
                        }
                    }
                    3 if !list.is_empty() => {
                        let gone = list.remove(nth);
                        prop_assert_eq!(line.remove(gone).map(|w| w.serial), Some(gone));
                        prop_assert!(line.remove(gone).is_none());
                    }
                    _ => prop_assert!(line.remove(any).is_none()),
                }
                prop_assert_eq!((line.len(), line.is_empty()), (list.len(), list.is_empty()));
                prop_assert_eq!((serial(line.front()), serial(line.back())), (list.first().copied(), list.last().copied()));
                prop_assert!(line.iter().map(|w| w.serial).eq(list.iter().copied()));
                prop_assert!(line.get(list.len()).is_none());
            }
        }
    }

    /// Sixty thousand requests come, are looked at and leave, in any order. A list that is searched takes a thousand times as many steps.
    #[test]
    fn no_request_is_looked_for_among_all() {
        const MANY: u64 = 60_000;
        let (mut line, mut rng) = (Line::default(), Rng::new(1, "line"));
        (0..MANY).for_each(|serial| line.push(waiting(serial)));
        assert!(line.steps.get() < MANY * 100, "{} steps to come", line.steps.get());
        let mut serials: Vec<u64> = (0..MANY).collect();
        rng.shuffle(&mut serials);
        let before = line.steps.get();
        for serial in serials {
            assert!(line.front().is_some() && line.get(line.len() / 2).is_some());
            assert!(line.remove(serial).is_some());
        }
        let steps = line.steps.get() - before;
        assert!(line.is_empty() && steps < MANY * 200, "{steps} steps to leave");
    }
}
