//! The state of a controller's namespace as its host is shown it: what changes it, and what ends the controller.

use crate::directory::{Directory, Identity, ImagePath};
use crate::engine::Health;
use crate::replica::{Behind, Replica};
use plimsoll_nvme::wire::AnaState;
use plimsoll_stack::LayerState;
use std::future::pending;
use std::sync::{Arc, RwLock, Weak};
use tokio::sync::{oneshot, watch};

/// Reason for a controller to change, or to end, though its host does nothing.
pub(super) enum Watched {
    Volume(WatchedVolume),
    Image(WatchedImage),
    /// A discovery controller has no volume. It ends when others need its place.
    Nothing(oneshot::Receiver<()>),
}

impl Watched {
    pub(super) fn ana(&mut self) -> AnaState {
        match self {
            Watched::Volume(volume) => volume.ana(),
            Watched::Image(volume) => volume.ana(),
            Watched::Nothing(_) => AnaState::Optimized,
        }
    }

    /// Waits until the state may have changed.
    ///
    /// # Errors
    /// The reason why the controller ends.
    pub(super) async fn changes(&mut self) -> Result<(), &'static str> {
        match self {
            Watched::Volume(volume) => match volume.changes().await {
                true => Ok(()),
                false => Err("its volume's pool has ended"),
            },
            Watched::Image(volume) => {
                volume.changes().await;
                Ok(())
            }
            Watched::Nothing(ends) => {
                let _ = ends.await; // nothing is ever sent
                Err("newer discovery controllers need its place")
            }
        }
    }
}

/// A volume as one of several replicas.
pub(super) struct WatchedCopy {
    replica: Arc<Replica>,
    news: watch::Receiver<()>,
    /// Its number of changes, where its namespace's identifier depends on it.
    changes: Option<u64>,
}

impl WatchedCopy {
    pub(super) fn new(replica: Arc<Replica>, changes: Option<u64>) -> WatchedCopy {
        WatchedCopy { news: replica.news(), replica, changes }
    }

    fn ana(&mut self) -> AnaState {
        // What is news from here on wakes this once more.
        self.news.mark_unchanged();
        // Its host may have joined it with other paths' copies by an identifier that it has no longer.
        let has_changed = self.changes.is_some_and(|changes| {
            // Once it has changed, no further change is awaited: each would cost its write a notification.
            changes != self.replica.generation() || changes != self.replica.await_generation()
        });
        match () {
            () if has_changed || self.replica.behind() != Behind::No => AnaState::Inaccessible,
            () if self.replica.is_failing() => AnaState::NonOptimized,
            () => AnaState::Optimized,
        }
    }
}

/// State of a subsystem's volume.
pub(super) struct WatchedVolume {
    pub(super) health: watch::Receiver<Health>,
    /// The volume as one of several replicas, if its export says so.
    pub(super) copy: Option<WatchedCopy>,
}

impl WatchedVolume {
    fn ana(&mut self) -> AnaState {
        match (self.health.borrow().state, &mut self.copy) {
            (LayerState::Recovering | LayerState::Failed, _) => AnaState::Inaccessible,
            (_, Some(copy)) => copy.ana(),
            (_, None) => AnaState::Optimized,
        }
    }

    /// Waits until the state may have changed. False once the pool has ended: its controllers end, too, and keep nothing of it.
    async fn changes(&mut self) -> bool {
        let news = async {
            match &mut self.copy {
                // Its sender is there as long as the copy. The pool's end is noticed by its health.
                Some(copy) => _ = copy.news.changed().await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = self.health.changed() => changed.is_ok(),
            () = news => true,
        }
    }
}

/// A volume on an RBD image, which this node serves while it has the image's lock.
pub(super) struct WatchedImage {
    directory: Arc<RwLock<Directory>>,
    who: Identity,
    export: String,
    image: ImagePath,
    changes: watch::Receiver<u64>,
    /// Of the volume, while it is served here.
    health: Option<watch::Receiver<Health>>,
    /// The volume that was accessible when it was last looked at.
    served: Weak<Replica>,
}

impl WatchedImage {
    pub(super) fn new(
        directory: &Arc<RwLock<Directory>>,
        who: &Identity,
        export: &str,
        image: &ImagePath,
    ) -> WatchedImage {
        let changes = directory.read().expect("no panic while held").changes.subscribe();
        WatchedImage {
            directory: directory.clone(),
            who: who.clone(),
            export: export.to_string(),
            image: image.clone(),
            changes,
            health: None,
            served: Weak::new(),
        }
    }

    pub(super) fn ana(&mut self) -> AnaState {
        self.changes.mark_unchanged();
        let served = self.look();
        self.served = served.as_ref().map(Arc::downgrade).unwrap_or_default();
        if served.is_some() { AnaState::Optimized } else { AnaState::Inaccessible }
    }

    /// The volume, if its host may use it here now.
    fn look(&mut self) -> Option<Arc<Replica>> {
        let directory = self.directory.read().expect("no panic while held");
        let volume = directory.volumes.get(&self.image.volume);
        // Without its sender the pool's thread has ended.
        self.health = volume.map(|v| v.health.clone()).filter(|health| health.has_changed().is_ok());
        let state = self.health.as_mut()?.borrow_and_update().state;
        let volume = volume.filter(|v| self.image.fits(v))?;
        // A failed flush closes the volume to those who come later.
        let goes_on = std::ptr::eq(self.served.as_ptr(), Arc::as_ptr(&volume.replica));
        let is_open = match state {
            LayerState::Recovering | LayerState::Failed => false,
            LayerState::Ready | LayerState::Degraded => goes_on || directory.look_up(&self.who, &self.export).is_ok(),
        };
        is_open.then(|| volume.replica.clone())
    }

    /// Waits until the state may have changed.
    pub(super) async fn changes(&mut self) {
        let health = async {
            match &mut self.health {
                Some(health) => _ = health.changed().await,
                None => pending().await,
            }
        };
        tokio::select! {
            // The directory is there as long as the node.
            _ = self.changes.changed() => (),
            () = health => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::{Claim, ReplicaUse};
    use std::time::Duration;

    const READY: Health = Health { state: LayerState::Ready, flush_failed: false };

    /// A copy, one of several nodes' or the only one, as its controller watches it.
    struct Copy {
        replica: Arc<Replica>,
        watched: WatchedVolume,
        _health: watch::Sender<Health>,
    }

    impl Copy {
        fn new(is_one_of_several: bool) -> Copy {
            let replica = Replica::new(1 << 20, Default::default(), None);
            let changes = is_one_of_several.then(|| replica.generation());
            let (_health, health) = watch::channel(READY);
            let copy = Some(WatchedCopy::new(replica.clone(), changes));
            let mut watched = WatchedVolume { health, copy };
            assert_eq!(watched.ana(), AnaState::Optimized);
            Copy { replica, watched, _health }
        }

        /// The state that its host hears of. Nothing but a notification wakes the controller.
        async fn hears(&mut self) -> AnaState {
            let heard = tokio::time::timeout(Duration::from_secs(60), self.watched.changes()).await;
            assert!(heard.expect("its host hears of it"), "the pool is there");
            self.watched.ana()
        }

        fn has_news(&self) -> bool {
            self.watched.copy.as_ref().is_some_and(|copy| copy.news.has_changed().unwrap())
        }
    }

    /// Until its hosts hear of it, they send it reads that it refuses.
    #[tokio::test]
    async fn hosts_of_a_copy_hear_at_once_that_it_lacks_changes_or_has_caught_up() {
        let mut c = Copy::new(false);
        c.replica.lost();
        assert_eq!(c.hears().await, AnaState::Inaccessible);
        c.replica.lost();
        assert!(!c.has_news(), "it is as before");
        c.replica.catch_up(7, true).unwrap().unwrap();
        assert_eq!(c.hears().await, AnaState::Inaccessible);
        assert!(!c.replica.caught_up(6, 0).unwrap() && !c.has_news(), "another attempt");
        assert!(c.replica.caught_up(7, 0).unwrap());
        assert_eq!(c.hears().await, AnaState::Optimized);
        // A client ends a copy whose copier has gone.
        c.replica.catch_up(8, true).unwrap().unwrap();
        assert_eq!(c.hears().await, AnaState::Inaccessible);
        drop(Claim::of(&c.replica, Some(ReplicaUse::Copy), false).unwrap());
        let _client = Claim::of(&c.replica, None, false).unwrap();
        assert!(c.has_news() && c.hears().await == AnaState::Inaccessible);
        c.replica.catch_up(9, false).unwrap().unwrap();
        assert!(c.replica.caught_up(9, 0).unwrap());
        assert_eq!(c.hears().await, AnaState::Optimized);
        c.replica.set_failing(true);
        assert_eq!(c.hears().await, AnaState::NonOptimized);
    }

    /// A write that isn't the first after its hosts connected notifies nobody: notifications take locks.
    #[tokio::test]
    async fn hosts_of_a_copy_hear_at_once_of_its_first_change_and_of_no_other() {
        let mut c = Copy::new(true);
        c.replica.changed(0, 512);
        assert_eq!(c.hears().await, AnaState::Inaccessible);
        c.replica.changed(0, 512);
        assert!(!c.has_news());
        // Another host connects.
        let mut later = WatchedCopy::new(c.replica.clone(), Some(c.replica.generation()));
        assert_eq!(later.ana(), AnaState::Optimized);
        c.replica.changed(0, 512);
        assert!(later.news.has_changed().unwrap() && later.ana() == AnaState::Inaccessible);
        // A resync brings the first one back to what its identifier stands for.
        c.replica.catch_up(7, true).unwrap().unwrap();
        assert!(c.replica.caught_up(7, -3).unwrap());
        assert_eq!((c.hears().await, later.ana()), (AnaState::Optimized, AnaState::Inaccessible));
        c.replica.changed(0, 512);
        assert_eq!(c.hears().await, AnaState::Inaccessible);
        // Nobody joined a single copy with another by its number of changes.
        let alone = Copy::new(false);
        alone.replica.changed(0, 512);
        assert!(!alone.has_news());
    }
}
