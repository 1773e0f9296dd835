//! The end of a pool that isn't served any more: its thread, then its devices.

use super::Pools;
use super::pool::RunningPool;
use crate::directory::Volume;
use crate::engine::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time that others may go on looking at a pool whose thread has ended, and interval of the looks whether they still do.
const LOOKERS_TIME: Duration = Duration::from_secs(10);

const LOOKERS_LOOK: Duration = Duration::from_millis(2);

/// Time that closing an RBD image may take: librbd waits for the cluster.
const IMAGE_TIME: Duration = Duration::from_secs(60);

/// Closes a pool that was opened and isn't to be served. Its thread may be recovering and write: its devices stay locked until that has
/// ended, and nobody waits for it.
pub(super) fn discard(pools: Arc<Pools>, pool: Arc<RunningPool>) {
    pools.leaves(pool.clone());
    let _ = pool.handle.send(Command::Shutdown); // a pool that is gone has ended already
    let name = pool.name.clone();
    let close = move || {
        for what in close(&pools, pool, Vec::new()) {
            tracing::error!(error = what, "a pool that was opened and isn't served didn't end in order");
        }
    };
    if let Err(error) = std::thread::Builder::new().name(format!("close-{name}")).spawn(close) {
        tracing::error!(pool = name, %error, "no thread to close it: it stays locked until the node ends");
    }
}

/// Waits for the end of a pool's thread, then closes its devices. Returns the faults. Blocks.
pub(super) fn close(pools: &Pools, pool: Arc<RunningPool>, volumes: Vec<Volume>) -> Vec<String> {
    let mut faults = pool.end(volumes.iter());
    drop(volumes); // they have its metadata
    // A device is locked as long as anybody looks at its pool, which takes moments. Nothing tells of the last look's end, so this thread,
    // which only closes the pool, asks for it again and again.
    let began = Instant::now();
    while (Arc::strong_count(&pool) > 2 || pool.is_stored_elsewhere()) && began.elapsed() < LOOKERS_TIME {
        std::thread::sleep(LOOKERS_LOOK);
    }
    let (name, image) = (pool.name.clone(), pool.image_closed());
    drop(pool);
    // The list has had it, too.
    pools.has_left(&name);
    // The threads that watch an image have it for moments, and the last one closes it. Its lock is free when librbd has done so.
    if image.is_some_and(|image| !image.wait(IMAGE_TIME)) {
        faults.push(format!(
            "its RBD image isn't closed after {} s: the cluster doesn't answer, and the image's lock isn't free",
            IMAGE_TIME.as_secs()
        ));
    }
    faults
}
