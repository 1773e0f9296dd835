//! A pool's metadata as the node's threads share it. One thread at a time changes it, and may wait for the device. All threads read it
//! without waiting for that.

use plimsoll_store::{MetaReader, MetaStore, MetaView};
use std::sync::{Arc, Mutex, MutexGuard, RwLockReadGuard};

/// See the module's documentation.
#[derive(Debug)]
pub struct PoolStore {
    store: Mutex<MetaStore>,
    reader: MetaReader,
    turns: Arc<tokio::sync::Mutex<()>>,
}

impl PoolStore {
    /// Shares `store`.
    pub fn new(store: MetaStore) -> PoolStore {
        PoolStore { reader: store.reader(), store: Mutex::new(store), turns: Arc::default() }
    }

    /// For changes. The holder of the guard may wait for the device, so no async task may wait for the guard: take it on a blocking thread.
    pub fn change(&self) -> MutexGuard<'_, MetaStore> {
        self.store.lock().expect("no panic while held")
    }

    /// Waits, without a thread, until no other task's change for a client waits for the device. Hundreds of clients that open the volumes of
    /// one slow pool would otherwise take all blocking threads from the other pools' clients.
    pub async fn turn(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.turns.clone().lock_owned().await
    }

    /// Returns why nothing can be changed until the pool is opened again, if that is so.
    pub fn failed(&self) -> Option<&str> {
        self.reader.failed()
    }

    /// For reading, anywhere: never waits for the device.
    pub fn view(&self) -> RwLockReadGuard<'_, MetaView> {
        self.reader.view()
    }
}
