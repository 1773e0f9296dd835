//! Turns for long calculations that clients cause before they have proved anything: few at once, and each peer has one at a time. So a
//! peer that causes many waits for itself; another one waits for at most one turn of each peer before it.

use crate::crowd::PeerKey;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// See the module's documentation.
#[derive(Debug)]
pub struct Turns {
    all: Arc<Semaphore>,
    /// Peers that have a turn or wait for one.
    peers: Mutex<BTreeMap<PeerKey, Weak<Semaphore>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn {
    _of_all: OwnedSemaphorePermit,
    _of_peer: OwnedSemaphorePermit,
}

impl Default for Turns {
    /// Turns for half of the processors: the other half serves.
    fn default() -> Turns {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Turns::new((processors / 2).max(1))
    }
}

impl Turns {
    /// At most `at_once` turns at a time.
    pub fn new(at_once: usize) -> Turns {
        Turns { all: Arc::new(Semaphore::new(at_once)), peers: Mutex::default() }
    }

    /// Waits for a peer's next turn. A caller that stops waiting loses only its own place.
    pub async fn next(&self, peer: PeerKey) -> Turn {
        let own = self.of_peer(peer);
        let of_peer = own.acquire_owned().await.expect("never closed");
        let of_all = self.all.clone().acquire_owned().await.expect("never closed");
        Turn { _of_all: of_all, _of_peer: of_peer }
    }

    fn of_peer(&self, peer: PeerKey) -> Arc<Semaphore> {
        let mut peers = self.peers.lock().expect("no panic while held");
        if let Some(own) = peers.get(&peer).and_then(Weak::upgrade) {
            return own;
        }
        peers.retain(|_, semaphore| semaphore.strong_count() > 0);
        let own = Arc::new(Semaphore::new(1));
        peers.insert(peer, Arc::downgrade(&own));
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::task::JoinSet;

    const MANY: usize = 100;

    fn peer(n: u8) -> PeerKey {
        PeerKey::host([192, 0, 2, n].into())
    }

    /// Everybody waits before the first turn ends; then all go on, one at a time.
    #[tokio::test]
    async fn a_peer_with_many_calculations_waits_for_itself() {
        let turns = Arc::new(Turns::new(1));
        let order = Arc::new(Mutex::new(Vec::new()));
        let first = turns.next(peer(1)).await;
        let mut waiting = JoinSet::new();
        for n in (0..MANY).map(|_| 1).chain([2, 3]) {
            let (turns, order) = (turns.clone(), order.clone());
            waiting.spawn(async move {
                let _turn = turns.next(peer(n)).await;
                order.lock().unwrap().push(n);
            });
            tokio::task::yield_now().await; // it waits now
        }
        let abandoned = tokio::spawn({
            let turns = turns.clone();
            async move { drop(turns.next(peer(4)).await) }
        });
        tokio::task::yield_now().await;
        abandoned.abort();
        assert!(order.lock().unwrap().is_empty(), "one at a time");
        drop(first);
        waiting.join_all().await;
        let order = order.lock().unwrap().clone();
        assert_eq!(order.len(), MANY + 2);
        assert_eq!(&order[..3], [2, 3, 1], "the peer of many has one place among them");
        assert_eq!(turns.all.available_permits(), 1);
        drop(turns.next(peer(5)).await);
        assert_eq!(turns.peers.lock().unwrap().len(), 1, "nothing is kept of peers that wait no more");
    }
}
