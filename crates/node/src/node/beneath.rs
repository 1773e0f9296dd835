//! The file systems below the pools' files. A pool's file is sparse: when its file system is full, writes fail although the pool has space.

use super::Node;
use super::pool::RunningPool;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Time that somebody who looks waits for a file system. One that hangs shows what was seen last.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// Space below a pool's file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beneath {
    /// Number of the file system's device: pools' files with the same one share the space.
    pub device: u64,
    /// The file system's.
    pub size_bytes: u64,
    /// Of that, free for this process.
    pub free_bytes: u64,
    /// Bytes that the file has no space for yet, and takes as its volumes fill up.
    pub unallocated_bytes: u64,
}

impl Beneath {
    fn of(path: &Path) -> io::Result<Beneath> {
        let file = File::open(path)?;
        let (there, system) = (file.metadata()?, rustix::fs::fstatvfs(&file)?);
        Ok(Beneath {
            device: there.dev(),
            size_bytes: system.f_blocks * system.f_frsize,
            free_bytes: system.f_bavail * system.f_frsize,
            unallocated_bytes: there.len().saturating_sub(there.blocks() * 512),
        })
    }
}

/// The newest look at the space below a pool's file.
#[derive(Debug, Default)]
pub(super) struct Looks {
    seen: Mutex<Option<Beneath>>,
    /// One look at a time: a file system that hangs takes one thread.
    is_looking: AtomicBool,
}

impl RunningPool {
    /// Space below the pool's file by the newest look; `None` for a pool that has no file.
    pub fn beneath(&self) -> Option<Beneath> {
        *self.looks.seen.lock().expect("no panic while held")
    }
}

impl Node {
    /// Looks at the space below all pools' files.
    pub async fn look_beneath(&self) {
        let mut all = Vec::new();
        for (_, p) in self.pools.all() {
            let Some(path) = p.file() else { continue };
            let looks: Arc<Looks> = p.looks.clone();
            if !looks.is_looking.swap(true, Relaxed) {
                all.push(tokio::task::spawn_blocking(move || {
                    let seen = Beneath::of(&path).ok();
                    *looks.seen.lock().expect("no panic while held") = seen;
                    looks.is_looking.store(false, Relaxed);
                }));
            }
        }
        let done = async {
            for look in all {
                let _ = look.await; // one that fails has nothing to show
            }
        };
        let _ = tokio::time::timeout(LOOK_TIME, done).await; // one that hangs shows what was seen last
    }
}
