//! The state of a controller's namespace as its host is shown it: what changes it, and what ends the controller.

use crate::directory::{Directory, Identity, ImagePath};
use crate::engine::Health;
use crate::replica::{Behind, Replica};
use plimsoll_nvme::wire::AnaState;
use plimsoll_stack::LayerState;
use std::future::pending;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;
use tokio::sync::{oneshot, watch};

/// Interval between two looks whether a replica lacks writes or was changed.
const REPLICA_LOOK: Duration = Duration::from_secs(1);

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
    is_failing: watch::Receiver<bool>,
    /// Its number of changes, where its namespace's identifier depends on it.
    changes: Option<u64>,
}

impl WatchedCopy {
    pub(super) fn new(replica: Arc<Replica>, changes: Option<u64>) -> WatchedCopy {
        WatchedCopy { is_failing: replica.failing(), replica, changes }
    }

    fn ana(&self) -> AnaState {
        // Its host may have joined it with other paths' copies by an identifier that it has no longer.
        let has_changed = self.changes.is_some_and(|changes| changes != self.replica.generation());
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
    fn ana(&self) -> AnaState {
        match (self.health.borrow().state, &self.copy) {
            (LayerState::Recovering | LayerState::Failed, _) => AnaState::Inaccessible,
            (_, Some(copy)) => copy.ana(),
            (_, None) => AnaState::Optimized,
        }
    }

    /// Waits until the state may have changed. False once the pool has ended: its controllers end, too, and keep nothing of it.
    async fn changes(&mut self) -> bool {
        let looks = async {
            match &mut self.copy {
                // The pool's end is noticed by its health.
                Some(copy) => tokio::select! {
                    _ = copy.is_failing.changed() => (),
                    () = tokio::time::sleep(REPLICA_LOOK) => (),
                },
                None => pending().await,
            }
        };
        tokio::select! {
            changed = self.health.changed() => changed.is_ok(),
            () = looks => true,
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
