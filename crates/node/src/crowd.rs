//! Bounded sets of connections before their service: clients in their handshake, and clients of the control API.
//!
//! When a crowd is full, or a peer has its share of it, a newcomer takes the place of a member. A peer at its share replaces only its own
//! members; otherwise the peer with the most members gives way. Of that peer's members, one that has sent nothing, or nothing since
//! its last answer, gives way first. Of several, the one that has been silent longest gives way. So a flood of silent connections keeps
//! out neither other peers nor the active ones of its own.
//!
//! A member is safe while the server works for it, for [`LEAST_AGE`] after it came, and for [`LEAST_AGE`] after each message. If no
//! member may be replaced, the newcomer waits for up to 50 ms, and is then refused.

use crate::planted::{self, Mistake};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// A member isn't replaced sooner than this after it came or last spoke: a client on this host answers in less.
///
/// With the node's crowds of 512 for a peer, a flood has to bring 100,000 connections a second to refuse anybody.
pub const LEAST_AGE: Duration = Duration::from_millis(5);

/// Before one of a full crowd gives way, what the others have sent is read: newcomers wait this long, once for
/// [`BETWEEN_PAUSES`] of them. More waiting would let the listener's queue grow longer than clients are patient.
const PAUSE: Duration = Duration::from_millis(1);
/// See [`PAUSE`].
const BETWEEN_PAUSES: u32 = 16;
/// A newcomer waits this long for a member that may give way, then it's refused.
const PATIENCE: Duration = Duration::from_millis(50);

/// Notes that come no more than once a second, however often there is a reason.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Instant>>);

impl Seldom {
    /// Notes that have not begun.
    pub const fn new() -> Seldom {
        Seldom(Mutex::new(None))
    }

    /// Returns whether one may be made now.
    pub fn may(&self) -> bool {
        self.may_at(Instant::now())
    }

    /// Returns whether one may be made then.
    pub(crate) fn may_at(&self, now: Instant) -> bool {
        let mut last = self.0.lock().expect("no panic while held");
        let may = last.is_none_or(|at| now.saturating_duration_since(at) >= Duration::from_secs(1));
        if may {
            *last = Some(now);
        }
        may
    }
}

/// The peer of a connection, for bounds per peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PeerKey {
    /// A user of this host.
    Uid(u32),
    /// A host; for IPv6 its /64 network, of which one host may have all addresses.
    Host(IpAddr),
}

impl PeerKey {
    /// The peer with this address. A client on this host may choose among all of its loopback addresses.
    pub fn host(address: IpAddr) -> PeerKey {
        PeerKey::Host(match address.to_canonical() {
            own if own.is_loopback() => IpAddr::V6(Ipv6Addr::LOCALHOST),
            IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64)),
            v4 => v4,
        })
    }
}

/// Rank of a member when a newcomer needs its place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Standing {
    /// It has sent nothing, or nothing since its last answer.
    Silent = 0,
    /// It is in the middle of saying or hearing something.
    Speaking = 1,
    /// The server works for it.
    Served = 2,
}

/// A member's standing, and when it last did something.
#[derive(Debug)]
pub struct Pulse {
    began: Instant,
    standing: AtomicU8,
    last_ms: AtomicU64,
}

impl Pulse {
    pub(crate) fn new() -> Pulse {
        Pulse { began: Instant::now(), standing: AtomicU8::new(Standing::Silent as u8), last_ms: AtomicU64::new(0) }
    }

    /// The member did something.
    pub fn beat(&self, standing: Standing) {
        self.last_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.standing.store(standing as u8, Ordering::Relaxed);
    }

    /// The member's standing, without its having done anything.
    pub fn stands(&self, standing: Standing) {
        self.standing.store(standing as u8, Ordering::Relaxed);
    }

    /// The member has been answered: it has nothing to show until it speaks again. Nothing changes while the server works
    /// for it.
    pub fn flushed(&self) {
        let (speaking, silent) = (Standing::Speaking as u8, Standing::Silent as u8);
        let _ = self.standing.compare_exchange(speaking, silent, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn standing(&self) -> u8 {
        self.standing.load(Ordering::Relaxed)
    }

    fn silent_for(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.last_ms.load(Ordering::Relaxed)))
    }
}

struct Member {
    peer: PeerKey,
    pulse: Arc<Pulse>,
    task: AbortHandle,
}

/// See the module's documentation.
pub struct Crowd {
    members_max: usize,
    peer_max: usize,
    members: Mutex<Vec<Member>>,
    /// Newcomers that found it full.
    crowded: AtomicU32,
}

impl Crowd {
    /// At most `members_max` at once, of one peer at most `peer_max`.
    pub fn new(members_max: usize, peer_max: usize) -> Crowd {
        Crowd {
            members_max: members_max.max(1),
            peer_max: peer_max.clamp(1, members_max.max(1)),
            members: Mutex::default(),
            crowded: AtomicU32::new(0),
        }
    }

    /// Tells whether a member must give way for a newcomer, and whether there is one that may.
    fn is_full_for(&self, peer: PeerKey) -> (bool, bool) {
        let mut members = self.members.lock().expect("no panic while held");
        members.retain(|m| !m.task.is_finished());
        let of_peer = members.iter().filter(|m| m.peer == peer).count();
        let is_full = of_peer >= self.peer_max || members.len() >= self.members_max;
        let only = (of_peer >= self.peer_max).then_some(peer);
        (is_full, is_full && members.iter().any(|m| may_give_way(m, only)))
    }

    /// Waits where the crowd is full for a newcomer: now and then, so that what its members have sent is read before one of
    /// them gives way; and for a moment, where all are too young to.
    pub async fn make_room(&self, peer: PeerKey) {
        let (mut is_full, mut one_may) = self.is_full_for(peer);
        if !is_full {
            return;
        }
        if self.crowded.fetch_add(1, Ordering::Relaxed).is_multiple_of(BETWEEN_PAUSES) {
            tokio::time::sleep(PAUSE).await;
            (is_full, one_may) = self.is_full_for(peer);
        }
        let end = Instant::now() + PATIENCE;
        while is_full && !one_may && Instant::now() < end {
            tokio::time::sleep(PAUSE).await;
            (is_full, one_may) = self.is_full_for(peer);
        }
    }

    /// Takes a member in, which `spawn` starts as a task; another may be ended for it. False if there is no room.
    pub fn admit(&self, peer: PeerKey, spawn: impl FnOnce(Arc<Pulse>) -> AbortHandle) -> bool {
        let mut members = self.members.lock().expect("no panic while held");
        members.retain(|m| !m.task.is_finished());
        let of_peer = members.iter().filter(|m| m.peer == peer).count();
        if of_peer >= self.peer_max || members.len() >= self.members_max {
            let only = (of_peer >= self.peer_max).then_some(peer);
            let Some(victim) = victim(&members, only) else { return false };
            members.swap_remove(victim).task.abort();
        }
        let pulse = Arc::new(Pulse::new());
        members.push(Member { peer, pulse: pulse.clone(), task: spawn(pulse) });
        true
    }
}

fn may_give_way(m: &Member, only: Option<PeerKey>) -> bool {
    if planted::is(Mistake::OldestGivesWay) {
        return true;
    }
    only.is_none_or(|peer| m.peer == peer)
        && m.pulse.standing() < Standing::Served as u8
        && m.pulse.silent_for() >= LEAST_AGE
}

/// The member that gives way, of `only` or of all.
fn victim(members: &[Member], only: Option<PeerKey>) -> Option<usize> {
    let mut of_peer: BTreeMap<PeerKey, usize> = BTreeMap::new();
    members.iter().for_each(|m| *of_peer.entry(m.peer).or_default() += 1);
    let key =
        |m: &Member| (std::cmp::Reverse(of_peer[&m.peer]), m.pulse.standing(), std::cmp::Reverse(m.pulse.silent_for()));
    if planted::is(Mistake::OldestGivesWay) {
        return members.iter().enumerate().min_by_key(|(_, m)| m.pulse.began).map(|(at, _)| at);
    }
    let candidates = members.iter().enumerate().filter(|(_, m)| may_give_way(m, only));
    candidates.min_by_key(|(_, m)| key(m)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: PeerKey = PeerKey::Uid(1);
    const OTHER: PeerKey = PeerKey::Uid(2);

    /// A crowd whose members wait for ever, and what became of them.
    struct Scene(Crowd, Vec<(Arc<Pulse>, tokio::task::JoinHandle<()>)>);

    impl Scene {
        fn new(members_max: usize, peer_max: usize) -> Scene {
            Scene(Crowd::new(members_max, peer_max), Vec::new())
        }

        fn admit(&mut self, peer: PeerKey) -> bool {
            let mut new = None;
            let admitted = self.0.admit(peer, |pulse| {
                let task = tokio::spawn(std::future::pending());
                let abort = task.abort_handle();
                new = Some((pulse, task));
                abort
            });
            self.1.extend(new);
            admitted
        }

        /// As if all of the crowd had done nothing for a while.
        fn age(&mut self) {
            self.began(Instant::now() - 2 * LEAST_AGE);
        }

        /// As if all of the crowd had just come, however slow this machine is.
        fn rejuvenate(&mut self) {
            self.began(Instant::now() + Duration::from_secs(3600));
        }

        fn began(&mut self, at: Instant) {
            for m in self.0.members.get_mut().unwrap() {
                let standing = m.pulse.standing();
                let aged = Pulse { began: at, standing: AtomicU8::new(standing), last_ms: AtomicU64::new(0) };
                m.pulse = Arc::new(aged);
            }
        }

        /// Numbers of the members that are there, in the order in which they came.
        async fn left(&self) -> Vec<usize> {
            // An aborted task ends when this thread's runtime comes to it.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            (0..self.1.len()).filter(|n| !self.1[*n].1.is_finished()).collect()
        }
    }

    #[tokio::test]
    async fn who_says_nothing_gives_way_to_who_speaks() {
        let mut s = Scene::new(3, 3);
        assert!((0..3).all(|_| s.admit(ME)));
        s.rejuvenate();
        assert!(!s.admit(ME), "all are too young to give way");
        s.0.members.get_mut().unwrap()[0].pulse.beat(Standing::Speaking);
        s.age();
        assert!(s.admit(OTHER));
        assert_eq!(s.left().await.len(), 3);
        assert!(s.left().await.contains(&0), "the one that spoke stays");
    }

    #[tokio::test]
    async fn a_newcomer_waits_until_one_is_old_enough() {
        let mut s = Scene::new(3, 3);
        s.0.make_room(ME).await;
        assert!((0..3).all(|_| s.admit(ME)));
        s.age();
        s.0.make_room(OTHER).await;
        assert!(s.admit(OTHER));
        s.0.members.get_mut().unwrap().iter().for_each(|m| m.pulse.beat(Standing::Served));
        s.0.make_room(OTHER).await;
        assert!(!s.admit(OTHER), "it waits for a moment only");
    }

    #[tokio::test]
    async fn a_peer_above_its_share_competes_with_its_own() {
        let mut s = Scene::new(10, 2);
        assert!(s.admit(OTHER) && s.admit(ME) && s.admit(ME));
        s.age();
        assert!(s.admit(ME));
        assert_eq!(s.left().await.len(), 3);
        assert!(s.left().await.contains(&0), "the other peer's member is untouched");
    }

    #[tokio::test]
    async fn whom_the_server_works_for_is_safe() {
        let mut s = Scene::new(2, 2);
        assert!(s.admit(ME) && s.admit(ME));
        s.1.iter().for_each(|(pulse, _)| pulse.beat(Standing::Served));
        s.age();
        assert!(!s.admit(OTHER));
        assert_eq!(s.left().await, [0, 1]);
    }

    #[test]
    fn an_ipv6_network_is_one_peer() {
        let key = |text: &str| PeerKey::host(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
        assert!(["127.0.0.2", "127.255.0.1", "::ffff:127.0.0.1"].iter().all(|own| key(own) == key("::1")));
    }
}
