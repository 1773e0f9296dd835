//! Users by their names: found, added, and given back.
//!
//! An entry stays as long as there is room: its figures and its user's debt go on. A new user takes an entry only in a full
//! table. It takes the entry unused for longest among those without connections and without settings, if that is long enough.
//! Without such an entry, the newcomer shares the entry `others`: it is served in that entry's turns.

use super::list::{Link, List};
use super::{Gate, NAME_BYTES, Time, USER_OTHERS, User, WEIGHT_ONE_MILLI};
use plimsoll_base::Span;

/// A user's entry is its own for so long after its last connection was closed. Long against a connection pool's breaks, and against the
/// time in which what a user owes is worked off.
pub const USER_KEPT: Span = Span::from_secs(60);

impl Gate<'_> {
    /// The user of this name, added with a weight of one if it's new; `None`, and counted, if the table is full and no entry is unused.
    pub fn user(&mut self, now: Time, name: &str) -> Option<u32> {
        self.user_of_bytes(now, name.as_bytes())
    }

    /// As [`Gate::user`], for a name as it came over the wire.
    pub fn user_of_bytes(&mut self, now: Time, name: &[u8]) -> Option<u32> {
        let mut key = [0; NAME_BYTES];
        let len = name.len().min(NAME_BYTES);
        key[..len].copy_from_slice(&name[..len]);
        let (used, hash) = (self.head.users_used as usize, hash(&key));
        let same = |(i, h): (usize, &u64)| *h == hash && self.users[i].name == key;
        if let Some(i) = self.head.name_hash[..used].iter().enumerate().position(same) {
            return Some(i as u32);
        }
        if used < self.users.len() {
            self.users[used].begin(now, key);
            self.head.name_hash[used] = hash;
            self.head.users_used += 1;
            return Some(used as u32);
        }
        let Some(i) = self.unused_for_longest(now) else {
            self.head.counters.overflow += 1;
            return None;
        };
        self.users[i].begin(now, key);
        self.head.name_hash[i] = hash;
        self.head.counters.given_back += 1;
        Some(i as u32)
    }

    /// Hashes are of the names again, whatever somebody died over.
    pub(super) fn repair_names(&mut self) {
        for (h, u) in self.head.name_hash.iter_mut().zip(self.users.iter()) {
            *h = hash(&u.name);
        }
    }

    fn unused_for_longest(&self, now: Time) -> Option<usize> {
        let old = now.as_nanos().checked_sub(USER_KEPT.as_nanos())?;
        let all = self.users.iter().enumerate().skip(USER_OTHERS as usize + 1);
        all.filter(|(_, u)| u.is_unused() && u.used_at <= old).min_by_key(|(_, u)| u.used_at).map(|(i, _)| i)
    }

    /// The users known so far.
    pub fn known_users(&self) -> &[User] {
        &self.users[..self.head.users_used as usize]
    }

    /// Says whose connection it is. While it waits or is inside that is settled for the user it was; it becomes the other's after.
    pub fn identify(&mut self, conn: super::ConnId, user: u32) {
        let c = &mut self.conns[conn.0 as usize];
        if c.phase == super::phase::FREE || user as usize >= self.users.len() {
            return;
        }
        if let Some(other) = std::mem::replace(&mut c.next_user, user + 1).checked_sub(1) {
            self.users[other as usize].promised -= 1;
        }
        self.users[user as usize].promised += 1;
        self.become_next(conn.0);
    }

    /// At rest, a connection becomes its next user's.
    pub(super) fn become_next(&mut self, i: u32) {
        let c = &mut self.conns[i as usize];
        if c.phase == super::phase::REST
            && let Some(next) = std::mem::take(&mut c.next_user).checked_sub(1)
        {
            let before = std::mem::replace(&mut c.user, next);
            self.users[before as usize].conns -= 1;
            let user = &mut self.users[next as usize];
            user.promised -= 1;
            user.conns += 1;
        }
    }
}

/// FNV-1a, of words.
fn hash(name: &[u8; NAME_BYTES]) -> u64 {
    let word = |w: &[u8]| w.iter().fold(0, |v, b| v << 8 | u64::from(*b));
    name.chunks(8).fold(0xcbf2_9ce4_8422_2325, |h: u64, w| (h ^ word(w)).wrapping_mul(0x100_0000_01b3))
}

impl User {
    /// Becomes the entry of this name. The name comes last: a process that dies in the middle leaves an entry that is nobody's.
    fn begin(&mut self, now: Time, name: [u8; NAME_BYTES]) {
        let generation = self.generation.wrapping_add(1);
        *self = bytemuck::Zeroable::zeroed();
        (self.generation, self.weight_milli, self.used_at) = (generation, WEIGHT_ONE_MILLI, now.as_nanos());
        (self.queue, self.link) = (List::EMPTY, Link::NONE);
        self.name = name;
    }

    /// Returns whether no connection is or becomes its own, and nothing was set for it: a weight or an objective that was set
    /// stays known.
    fn is_unused(&self) -> bool {
        let in_use = self.conns + self.promised + self.waiting + self.inside;
        in_use == 0 && (self.weight_milli, self.class, self.objective_us) == (WEIGHT_ONE_MILLI, 0, 0)
    }

    /// Its entry among copies of some time ago; `None` if that was another user's, or not there yet.
    pub fn earlier<'a>(&self, copies: &'a [User], at: usize) -> Option<&'a User> {
        copies.get(at).filter(|c| c.generation == self.generation)
    }
}
