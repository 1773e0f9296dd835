//! The gate: extents that are being changed, requests that wait for that, and fills that may still go on.
//!
//! An extent that is changed *in the cache* is closed for all other changes until that one has ended. Changes that go *through* to
//! the slow device may be in flight together; overlapping ones are ordered above. Nothing changes the extent in the cache
//! meanwhile. A *fill* brings data into the cache that was read or written some time ago. It holds a token, and any change of the
//! extent takes the token away. A fill that went on without its token would cache an older content than the slow device has.
//!
//! The gate doesn't know what a change does, and where.

use crate::config::Planted;
use crate::index::Key;
use plimsoll_base::Io;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The right to fill some extents: one number for all that are read together.
pub(crate) type Token = u64;

/// See the module's documentation.
pub(crate) struct Gate {
    planted: Option<Planted>,
    /// Extents being changed in the cache, each by one change.
    closed: BTreeSet<Key>,
    /// Extents with changes on their way to the slow device, and the number of those.
    passing: BTreeMap<Key, u32>,
    /// Client requests that wait for one of those to end.
    waiting: BTreeMap<Key, VecDeque<Io>>,
    /// Fills under way: only who has the extent's token may fill it.
    fills: BTreeMap<Key, Token>,
    next_token: Token,
}

impl Gate {
    pub(crate) fn new(planted: Option<Planted>) -> Gate {
        Gate {
            planted,
            closed: BTreeSet::new(),
            passing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            fills: BTreeMap::new(),
            next_token: 1,
        }
    }

    /// True if the extent is being changed in the cache.
    pub(crate) fn is_closed(&self, key: &Key) -> bool {
        self.closed.contains(key)
    }

    /// True if the extent is being changed, wherever. Then it can't be changed in the cache, and bytes read of it aren't its content.
    pub(crate) fn is_busy(&self, key: &Key) -> bool {
        self.closed.contains(key) || self.passing.contains_key(key)
    }

    /// True if any extent is being changed in the cache.
    pub(crate) fn is_any_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Extents of a range that are being changed in the cache.
    pub(crate) fn closed_in(&self, from: Key, to: Key) -> impl Iterator<Item = Key> + '_ {
        self.closed.range(from..to).copied()
    }

    /// True if an extent of a slot's volume is being changed in the cache.
    pub(crate) fn is_changing(&self, slot: u16) -> bool {
        self.closed.range(Key::new(slot, 0)..Key::new(slot + 1, 0)).next().is_some()
    }

    /// A change in the cache begins, of an extent that isn't busy.
    pub(crate) fn close(&mut self, key: Key) {
        assert!(!self.is_busy(&key), "one change in the cache at a time");
        self.stop_fill(&key);
        self.closed.insert(key);
        self.check();
    }

    /// A change begins that goes through to the slow device.
    pub(crate) fn pass(&mut self, key: Key) {
        assert!(!self.closed.contains(&key), "nothing passes what is changed in the cache");
        self.stop_fill(&key);
        *self.passing.entry(key).or_default() += 1;
        self.check();
    }

    /// A change of an extent in the cache becomes one that goes through.
    pub(crate) fn divert(&mut self, key: Key) {
        let was = self.closed.remove(&key);
        assert!(was, "it was closed when the change began");
        self.pass(key);
    }

    fn stop_fill(&mut self, key: &Key) {
        if !Planted::StaleFill.is_in(self.planted) {
            self.fills.remove(key);
        }
    }

    /// A change has ended: its extents that were changed in the cache, and those that went through.
    pub(crate) fn leave(&mut self, closed: &[Key], passed: impl Iterator<Item = Key>) {
        for key in closed {
            let was = self.closed.remove(key);
            debug_assert!(was, "it was closed when the change began");
        }
        for key in passed {
            let n = self.passing.get_mut(&key).expect("counted when it began");
            *n -= 1;
            if *n == 0 {
                self.passing.remove(&key);
            }
        }
        self.check();
    }

    /// A request waits until `key` isn't busy.
    pub(crate) fn wait(&mut self, key: Key, io: Io) {
        assert!(self.is_busy(&key), "nobody would wake who waits for what is free");
        self.waiting.entry(key).or_default().push_back(io);
    }

    /// Requests that waited for an extent, if it is free now.
    pub(crate) fn take_waiting(&mut self, key: &Key) -> VecDeque<Io> {
        if self.waiting.is_empty() || self.is_busy(key) {
            return VecDeque::new();
        }
        self.waiting.remove(key).unwrap_or_default()
    }

    /// All that wait, whatever for: nothing is changed in the cache any more.
    pub(crate) fn take_all_waiting(&mut self) -> impl Iterator<Item = Io> + use<> {
        std::mem::take(&mut self.waiting).into_values().flatten()
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A token for fills that begin together.
    pub(crate) fn new_token(&mut self) -> Token {
        self.next_token += 1;
        self.next_token - 1
    }

    /// A fill of an extent begins; an earlier one of it ends. Not to be asked for of what is busy, unless what fills it is the newest content.
    pub(crate) fn begin_fill(&mut self, key: Key, token: Token) {
        self.fills.insert(key, token);
    }

    /// True if a fill of the extent is under way.
    pub(crate) fn is_filling(&self, key: &Key) -> bool {
        self.fills.contains_key(key)
    }

    /// True if the fill with this token may continue.
    pub(crate) fn may_fill(&self, key: &Key, token: Token) -> bool {
        self.fills.get(key) == Some(&token)
    }

    /// Ends a fill, if it hasn't been ended by another; true if it hadn't.
    pub(crate) fn end_fill(&mut self, key: &Key, token: Token) -> bool {
        let may = self.may_fill(key, token);
        if may {
            self.fills.remove(key);
        }
        may
    }

    /// Ends whatever fill of an extent is under way.
    pub(crate) fn drop_fill(&mut self, key: &Key) {
        self.fills.remove(key);
    }

    /// Ends all fills with a token.
    pub(crate) fn end_fills(&mut self, token: Token) {
        self.fills.retain(|_, t| *t != token);
    }

    /// Ends all fills: the fast device failed.
    pub(crate) fn end_all_fills(&mut self) {
        self.fills.clear();
    }

    /// Nothing of a volume is filled any more: it is gone.
    pub(crate) fn forget(&mut self, slot: u16) {
        self.fills.retain(|k, _| k.volume() != slot);
    }

    /// Checks what must hold after each event: cheap parts always, the rest in tests.
    fn check(&self) {
        debug_assert!(self.closed.iter().all(|k| !self.passing.contains_key(k)), "an extent is changed in two places");
        debug_assert!(self.passing.values().all(|n| *n > 0));
        debug_assert!(
            self.planted.is_some() || self.closed.iter().all(|k| !self.fills.contains_key(k)),
            "what is being changed in the cache is filled"
        );
        debug_assert!(self.fills.values().all(|t| *t < self.next_token), "no token was given twice");
    }

    /// Checks what must hold whenever the cache has no more to do for an event: who waits will be woken.
    pub(crate) fn check_waiting(&self) {
        debug_assert!(self.waiting.keys().all(|k| self.is_busy(k)), "a request waits for an extent that is free");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Data, IoHead, Op, Rng, TenantId, Time, VolumeKey};

    fn key(n: u64) -> Key {
        Key::new(0, n)
    }

    fn io(n: u64) -> Io {
        let volume = VolumeKey { id: 1, generation: 0 };
        Io::new(IoHead::new(Op::Write, volume, TenantId(0), n, 1, Time::ZERO), Data::Absent)
    }

    /// A fill that a change has overtaken must not go on: a former mistake, `StaleFill`.
    fn a_fill_goes_on_after_a_change(planted: Option<Planted>) -> bool {
        let mut gate = Gate::new(planted);
        let token = gate.new_token();
        gate.begin_fill(key(1), token);
        gate.begin_fill(key(2), token);
        gate.pass(key(1));
        gate.leave(&[], [key(1)].into_iter());
        assert!(gate.may_fill(&key(2), token), "nobody has changed this one");
        gate.may_fill(&key(1), token)
    }

    #[test]
    fn a_change_takes_the_token_from_a_fill_and_the_mistake_is_found() {
        assert!(!a_fill_goes_on_after_a_change(None));
        assert!(a_fill_goes_on_after_a_change(Some(Planted::StaleFill)), "the test finds the mistake");
    }

    #[test]
    fn of_two_fills_of_an_extent_only_the_later_may_go_on() {
        let mut gate = Gate::new(None);
        let (first, second) = (gate.new_token(), gate.new_token());
        gate.begin_fill(key(1), first);
        gate.begin_fill(key(1), second);
        assert!(!gate.end_fill(&key(1), first) && gate.may_fill(&key(1), second));
        gate.end_fills(first);
        assert!(gate.end_fill(&key(1), second) && !gate.is_filling(&key(1)));
    }

    #[test]
    fn changes_through_share_an_extent_and_one_in_the_cache_waits_for_all() {
        let mut gate = Gate::new(None);
        gate.pass(key(7));
        gate.pass(key(7));
        gate.wait(key(7), io(1));
        gate.leave(&[], [key(7)].into_iter());
        assert!(gate.is_busy(&key(7)) && gate.take_waiting(&key(7)).is_empty());
        gate.leave(&[], [key(7)].into_iter());
        assert_eq!(gate.take_waiting(&key(7)).len(), 1);
        gate.close(key(7));
        assert!(gate.is_closed(&key(7)) && gate.is_changing(0) && !gate.is_changing(1));
        gate.leave(&[key(7)], std::iter::empty());
        assert!(!gate.is_any_closed() && !gate.has_waiting());
    }

    #[test]
    fn a_change_that_is_diverted_passes_and_nothing_is_changed_in_the_cache_before_it_ends() {
        let mut gate = Gate::new(None);
        gate.close(key(7));
        gate.divert(key(7));
        assert!(!gate.is_closed(&key(7)) && gate.is_busy(&key(7)));
        gate.wait(key(7), io(1));
        gate.leave(&[], [key(7)].into_iter());
        assert_eq!(gate.take_waiting(&key(7)).len(), 1);
    }

    #[test]
    #[should_panic(expected = "one change in the cache at a time")]
    fn two_changes_in_the_cache_of_one_extent_are_refused() {
        let mut gate = Gate::new(None);
        gate.close(key(1));
        gate.close(key(1));
    }

    #[test]
    #[should_panic(expected = "nobody would wake")]
    fn nobody_waits_for_what_is_free() {
        Gate::new(None).wait(key(1), io(1));
    }

    /// Random changes, waits and fills: at any instant a token may fill only if nothing has changed the extent since it was given, each
    /// request that waited is handed back once, in order, and nothing is left at the end.
    #[test]
    fn whatever_happens_tokens_and_waiters_are_neither_lost_nor_stale() {
        for seed in 0..50 {
            let (mut rng, mut gate) = (Rng::new(seed, "gate"), Gate::new(None));
            let mut under_way: Vec<(bool, Key)> = Vec::new();
            let mut fills: BTreeMap<Key, (Token, bool)> = BTreeMap::new();
            let mut waits: BTreeMap<Key, VecDeque<u64>> = BTreeMap::new();
            for n in 0..400 {
                let k = key(rng.below(4));
                match rng.below(5) {
                    0 if gate.is_busy(&k) => {
                        gate.wait(k, io(n));
                        waits.entry(k).or_default().push_back(n);
                    }
                    0 => {
                        gate.close(k);
                        under_way.push((true, k));
                        fills.entry(k).and_modify(|f| f.1 = false);
                    }
                    1 if !gate.is_closed(&k) => {
                        gate.pass(k);
                        under_way.push((false, k));
                        fills.entry(k).and_modify(|f| f.1 = false);
                    }
                    2 if !gate.is_busy(&k) => {
                        let token = gate.new_token();
                        gate.begin_fill(k, token);
                        fills.insert(k, (token, true));
                    }
                    _ if !under_way.is_empty() => {
                        let (closed, k) = under_way.swap_remove(rng.below(under_way.len() as u64) as usize);
                        let all = [k];
                        match closed {
                            true => gate.leave(&all, std::iter::empty()),
                            false => gate.leave(&[], all.into_iter()),
                        }
                        let got: VecDeque<u64> = gate.take_waiting(&k).iter().map(|io| io.offset).collect();
                        let free = !under_way.iter().any(|u| u.1 == k);
                        let expected = if free { waits.remove(&k).unwrap_or_default() } else { VecDeque::new() };
                        assert_eq!(got, expected, "seed {seed}");
                    }
                    _ => {}
                }
                gate.check();
                gate.check_waiting();
                assert!(fills.iter().all(|(k, (token, may))| gate.may_fill(k, *token) == *may), "seed {seed}");
            }
        }
    }
}
