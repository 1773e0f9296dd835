//! Hosts' controllers: their numbers, and which connections are queues of theirs.

use super::No;
use crate::config::PATHS_MAX;
use crate::crowd::PeerKey;
use crate::replica::Replica;
use crate::turns::Turns;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::opening::{Connect, Parameter};
use rustix::net::Shutdown;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// Controllers of one node, whose numbers differ from those of other nodes with the same subsystem.
const CONTROLLERS_MAX: u16 = 4000;
/// Numbers of discovery controllers: behind those of all paths.
pub(super) const DISCOVERY_IDS: Range<u16> = PATHS_MAX * CONTROLLERS_MAX + 1..0xfff0;
/// Discovery controllers at a time. No grant is needed for one, so the oldest makes room for the next.
const DISCOVERIES_MAX: usize = 256;
/// Once half of a path's numbers are taken, controllers of one peer. It may be a network, or all that comes over loopback: see [`PeerKey`].
const OF_PEER_MAX: usize = 1000;

/// A host's association with a subsystem.
pub(super) struct Association {
    /// The host's identifier and NQN: whoever claims the one and proves the other isn't the same host.
    host: ([u8; 16], String),
    peer: PeerKey,
    subsystem: String,
    of: Of,
    queues_max: u16,
    is_ready: bool,
    queues: BTreeMap<u16, Weak<OwnedFd>>,
}

/// Namespace of an association.
#[derive(Clone, Debug)]
pub(super) enum Of {
    Discovery,
    /// The volume that its host was shown. Its name may be another volume's by the time a queue comes.
    Volume(Weak<Replica>),
    /// A volume on an RBD image, which may be served elsewhere. The configuration identifies it.
    Image,
}

impl Of {
    pub(super) fn volume(replica: &Arc<Replica>) -> Of {
        Of::Volume(Arc::downgrade(replica))
    }

    fn is(&self, other: &Of) -> bool {
        match (self, other) {
            (Of::Volume(one), Of::Volume(other)) => one.ptr_eq(other),
            (Of::Image, Of::Image) => true,
            _ => false,
        }
    }
}

impl Association {
    pub(super) fn new(connect: &Connect, peer: PeerKey, of: Of, queues_max: u16) -> Association {
        let (host, subsystem) = ((connect.host_id, connect.host.clone()), connect.subsystem.clone());
        Association { host, peer, subsystem, of, queues_max, is_ready: false, queues: BTreeMap::new() }
    }

    /// Ends its I/O queues. Until their connections are gone, with what they have under way, no others take their places.
    fn end_queues(&self) {
        for queue in self.queues.values().filter_map(Weak::upgrade) {
            let _ = rustix::net::shutdown(queue, Shutdown::Both); // its host may have closed it
        }
    }
}

/// Discovery controllers in the order in which they were made. One whose sender is dropped ends.
#[derive(Default)]
struct Discoveries(VecDeque<(PeerKey, oneshot::Sender<()>)>);

impl Discoveries {
    /// One more of a peer, and its end. If there are too many, the oldest one of the peer with the most ends.
    fn add(&mut self, peer: PeerKey) -> oneshot::Receiver<()> {
        self.0.retain(|(_, ends)| !ends.is_closed());
        let (sender, ends) = oneshot::channel();
        self.0.push_back((peer, sender));
        while self.0.len() > DISCOVERIES_MAX {
            let mut of: BTreeMap<PeerKey, usize> = BTreeMap::new();
            self.0.iter().for_each(|(peer, _)| *of.entry(*peer).or_default() += 1);
            let most = of.into_iter().max_by_key(|(_, n)| *n).map(|(peer, _)| peer);
            let oldest = self.0.iter().position(|(peer, _)| Some(*peer) == most);
            self.0.remove(oldest.expect("that peer has some"));
        }
        ends
    }
}

/// Hosts' controllers.
#[derive(Default)]
pub struct Controllers {
    by_id: Mutex<BTreeMap<u16, Association>>,
    discoveries: Mutex<Discoveries>,
    /// Turns of hosts that are to prove themselves, for Diffie-Hellman powers.
    powers: Turns,
    sessions: Mutex<JoinSet<()>>,
}

impl Controllers {
    fn with<R>(&self, f: impl FnOnce(&mut BTreeMap<u16, Association>) -> R) -> R {
        f(&mut self.by_id.lock().expect("no panic while held"))
    }

    /// Turns of hosts that are to prove themselves.
    pub(super) fn powers(&self) -> &Turns {
        &self.powers
    }

    /// A discovery controller of a peer has come. It ends when nothing more can be received.
    pub(super) fn add_discovery(&self, peer: PeerKey) -> oneshot::Receiver<()> {
        self.discoveries.lock().expect("no panic while held").add(peer)
    }

    /// A new one's number, of these.
    pub(super) fn add(&self, mut ids: Range<u16>, association: Association) -> Result<u16, No> {
        self.with(|all| {
            let (taken, peer) = (all.range(ids.clone()).count(), association.peer);
            if ids != DISCOVERY_IDS && taken >= usize::from(CONTROLLERS_MAX / 2) {
                let of_peer = all.range(ids.clone()).filter(|(_, a)| a.peer == peer).count();
                if of_peer >= OF_PEER_MAX {
                    tracing::warn!(
                        ?peer,
                        of_peer,
                        "an NVMe peer has its share of the controllers: no more while half of them are taken"
                    );
                    return Err((Status::CONNECT_BUSY, None));
                }
            }
            let free = ids.find(|id| !all.contains_key(id));
            let id = free.ok_or((Status::CONNECT_BUSY, None))?;
            all.insert(id, association);
            Ok(id)
        })
    }

    /// Checks that a host may connect this queue, for a namespace.
    pub(super) fn check(&self, connect: &Connect, of: &Of) -> Result<(), No> {
        self.with(|all| may_join(all, connect, of))
    }

    /// An I/O queue's socket, which is shut down with the controller. False if the controller has ended since [`Controllers::check`], or
    /// another connection has become the queue.
    pub(super) fn join(&self, connect: &Connect, of: &Of, socket: &Arc<OwnedFd>) -> bool {
        self.with(|all| {
            if may_join(all, connect, of).is_err() {
                return false;
            }
            let association = all.get_mut(&connect.controller).expect("just seen");
            association.queues.insert(connect.queue, Arc::downgrade(socket));
            true
        })
    }

    pub(super) fn set_ready(&self, id: u16, is_ready: bool) {
        self.with(|all| {
            if let Some(a) = all.get_mut(&id) {
                a.is_ready = is_ready;
                if !is_ready {
                    a.end_queues();
                }
            }
        });
    }

    pub(super) fn remove(&self, id: u16) {
        if let Some(gone) = self.with(|all| all.remove(&id)) {
            gone.end_queues();
        }
    }

    /// Serves a host on a task of its own, which ends with the node.
    pub(super) fn add_session(
        &self,
        session: impl Future<Output = io::Result<()>> + Send + 'static,
        end: &'static str,
    ) {
        let mut sessions = self.sessions.lock().expect("no panic while held");
        while sessions.try_join_next().is_some() {} // those that have ended meanwhile
        sessions.spawn(async move {
            if let Err(error) = session.await {
                tracing::debug!(%error, "{end}");
            }
        });
    }

    /// Ends all controllers.
    pub async fn end(&self) {
        let mut sessions = std::mem::take(&mut *self.sessions.lock().expect("no panic while held"));
        sessions.shutdown().await;
    }
}

/// Refuses a queue that a host may not connect.
fn may_join(all: &BTreeMap<u16, Association>, connect: &Connect, of: &Of) -> Result<(), No> {
    let no = |parameter| Err((Status::CONNECT_PARAMETER, Some(parameter)));
    match all.get(&connect.controller) {
        None => no(Parameter::Controller),
        Some(a) if a.subsystem != connect.subsystem => no(Parameter::Subsystem),
        Some(a) if (a.host.0, &a.host.1) != (connect.host_id, &connect.host) => no(Parameter::Host),
        // The host's controller identifies a volume that is gone: it makes another one.
        Some(a) if !a.of.is(of) => no(Parameter::Controller),
        Some(a) if !a.is_ready => Err((Status::SEQUENCE, None)),
        Some(a) if connect.queue > a.queues_max => no(Parameter::Queue),
        // Its connection may have broken, which isn't noticed yet: the host tries again.
        Some(a) if a.queues.get(&connect.queue).is_some_and(|q| q.strong_count() > 0) => {
            Err((Status::CONNECT_BUSY, None))
        }
        Some(_) => Ok(()),
    }
}

/// Numbers of the controllers of one of several nodes.
pub(super) fn ids_of(path: u16) -> Range<u16> {
    let first = (path - 1) * CONTROLLERS_MAX + 1;
    first..first + CONTROLLERS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: PeerKey = PeerKey::Uid(1);

    fn connect_of(host: &str, subsystem: &str) -> Connect {
        let (host, subsystem) = (host.to_string(), subsystem.to_string());
        Connect { queue: 1, entries: 32, keep_alive_ms: 0, controller: 0, host_id: [7; 16], host, subsystem }
    }

    fn volume() -> Arc<Replica> {
        Replica::new(1 << 20, Default::default(), None)
    }

    fn socket() -> Arc<OwnedFd> {
        Arc::new(OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0))
    }

    /// Two connections may both be checked before one of them joins: while they prove themselves, for instance.
    #[test]
    fn a_queue_is_one_connection_and_its_controllers() {
        let (all, volume) = (Controllers::default(), volume());
        let mut connect = connect_of("nqn.h", "nqn.a");
        let ready = |connect: &Connect| Association {
            is_ready: true,
            ..Association::new(connect, PEER, Of::volume(&volume), 2)
        };
        connect.controller = all.add(ids_of(1), ready(&connect)).unwrap();
        let controller = connect.controller;
        let (first, second) = (socket(), socket());
        assert!(all.check(&connect, &Of::volume(&volume)).is_ok() && all.check(&connect, &Of::volume(&volume)).is_ok());
        assert!(all.join(&connect, &Of::volume(&volume), &first));
        assert!(!all.join(&connect, &Of::volume(&volume), &second), "the first one would outlive its controller");
        drop(first);
        assert!(all.join(&connect, &Of::volume(&volume), &second), "the queue is free again");
        all.remove(controller);
        // Another controller has its number by now.
        assert_eq!(all.add(ids_of(1), ready(&connect_of("nqn.h", "nqn.b"))).unwrap(), controller);
        assert!(!all.join(&connect, &Of::volume(&volume), &socket()));
    }

    /// It would be a part of the controller's namespace, which has another's data and size.
    #[test]
    fn a_queue_for_another_volume_than_the_controllers_is_refused() {
        let (all, volume) = (Controllers::default(), volume());
        let mut connect = connect_of("nqn.h", "nqn.a");
        let association = Association { is_ready: true, ..Association::new(&connect, PEER, Of::volume(&volume), 2) };
        connect.controller = all.add(ids_of(1), association).unwrap();
        let made_again = self::volume();
        assert_eq!(
            all.check(&connect, &Of::volume(&made_again)),
            Err((Status::CONNECT_PARAMETER, Some(Parameter::Controller)))
        );
        assert!(
            !all.join(&connect, &Of::volume(&made_again), &socket())
                && all.join(&connect, &Of::volume(&volume), &socket())
        );
    }

    /// A host that is granted the same subsystem claims another's identifier, and connects a queue of that one's controller.
    #[test]
    fn a_queue_of_another_hosts_controller_is_refused() {
        let (all, volume) = (Controllers::default(), volume());
        let mut theirs = connect_of("nqn.theirs", "nqn.a");
        let association = Association { is_ready: true, ..Association::new(&theirs, PEER, Of::volume(&volume), 2) };
        theirs.controller = all.add(ids_of(1), association).unwrap();
        let ours = Connect { host: "nqn.ours".into(), ..theirs.clone() };
        assert_eq!(all.check(&ours, &Of::volume(&volume)), Err((Status::CONNECT_PARAMETER, Some(Parameter::Host))));
        assert!(
            !all.join(&ours, &Of::volume(&volume), &socket()) && all.join(&theirs, &Of::volume(&volume), &socket())
        );
    }

    #[test]
    fn numbers_of_discovery_controllers_are_no_paths() {
        assert!((1..=PATHS_MAX).map(ids_of).all(|ids| ids.end <= DISCOVERY_IDS.start));
        assert!(DISCOVERY_IDS.len() > 4 * DISCOVERIES_MAX, "those that are ending still have theirs");
    }

    #[test]
    fn the_oldest_discovery_controllers_make_room() {
        let mut all = Discoveries::default();
        let mut ends: Vec<_> = (0..DISCOVERIES_MAX).map(|_| all.add(PEER)).collect();
        drop(ends.remove(7));
        let mut is_over = |n: usize| ends[n].try_recv() == Err(oneshot::error::TryRecvError::Closed);
        let _in_its_place = all.add(PEER);
        assert!(!is_over(0), "one had ended by itself");
        let _one_more = all.add(PEER);
        assert!(is_over(0) && !is_over(1));
        // One of another peer costs that one none of its own.
        let mut others = all.add(PeerKey::Uid(2));
        let _one_more = all.add(PEER);
        assert!(is_over(1) && is_over(2) && !is_over(3));
        assert_eq!(others.try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }

    /// One peer's controllers leave numbers for the others.
    #[test]
    fn a_peer_has_a_share_of_the_controllers() {
        let (all, connect) = (Controllers::default(), connect_of("nqn.h", "nqn.a"));
        let add = |peer| all.add(ids_of(1), Association::new(&connect, peer, Of::Discovery, 2));
        let ids: Vec<u16> = (0..CONTROLLERS_MAX / 2).map(|_| add(PEER).unwrap()).collect();
        assert_eq!(
            add(PEER),
            Err((Status::CONNECT_BUSY, None)),
            "it has more than its share, and half of all are taken"
        );
        assert!((0..OF_PEER_MAX).all(|_| add(PeerKey::Uid(2)).is_ok()));
        assert!(add(PeerKey::Uid(2)).is_err() && add(PeerKey::Uid(3)).is_ok());
        ids[OF_PEER_MAX - 1..].iter().for_each(|id| all.remove(*id));
        assert!(add(PEER).is_ok());
    }

    /// A controller that its host disables has no queues. Those of its next life wait for what they had under way.
    #[test]
    fn queues_end_when_their_controller_is_disabled() {
        let (all, volume) = (Controllers::default(), volume());
        let mut connect = connect_of("nqn.h", "nqn.a");
        let association = Association { is_ready: true, ..Association::new(&connect, PEER, Of::volume(&volume), 2) };
        connect.controller = all.add(ids_of(1), association).unwrap();
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let queue = Arc::new(OwnedFd::from(ours));
        assert!(all.join(&connect, &Of::volume(&volume), &queue));
        assert_eq!(all.check(&connect, &Of::volume(&volume)), Err((Status::CONNECT_BUSY, None)));
        all.set_ready(connect.controller, false);
        assert_eq!(std::io::Read::read(&mut theirs, &mut [0; 8]).unwrap(), 0, "its connection is over");
        assert_eq!(all.check(&connect, &Of::volume(&volume)), Err((Status::SEQUENCE, None)));
        all.set_ready(connect.controller, true);
        assert_eq!(
            all.check(&connect, &Of::volume(&volume)),
            Err((Status::CONNECT_BUSY, None)),
            "its requests may be under way"
        );
        drop(queue);
        assert!(all.check(&connect, &Of::volume(&volume)).is_ok());
    }
}
