//! RBD images as pools' devices: connecting, opening, metadata over them, and the watch for the loss of their lock.

mod maps;
pub(crate) mod steering;

use crate::config::{DeviceConfig, PoolConfig};
use crate::engine::{Command, PoolHandle};
use crate::open::OpenError;
use plimsoll_rbd::{Cluster, Error, Image, LEASE, Libraries, LockState, Queue};
use plimsoll_sched::osds::Bucket;
use plimsoll_store::{DeviceFile, Expect, Look, Medium, MetaView, Remote, RemoteDevice, Uuid};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Ceph's own default.
const CONF_DEFAULT: &str = "/etc/ceph/ceph.conf";
const USER_DEFAULT: &str = "admin";
/// The lock is asked for this often. A client that lost it is refused by the OSDs in any case (blocklist): this is for idle pools.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// Connects to the cluster of a device with `rbd`, with settings beside the configured ones.
///
/// # Errors
/// The library or the step that failed, and the remedy.
pub(crate) fn connect(d: &DeviceConfig, settings: &[(&str, &str)]) -> Result<Arc<Cluster>, Error> {
    let libraries = Libraries::load(d.libraries.as_deref())?;
    let conf = d.conf.as_deref().unwrap_or(Path::new(CONF_DEFAULT));
    let user = d.user.as_deref().unwrap_or(USER_DEFAULT);
    Cluster::connect(&libraries, conf, user, settings)
}

/// Opens the image of a device.
///
/// # Errors
/// The library's.
pub(crate) fn open(cluster: &Arc<Cluster>, d: &DeviceConfig, is_read_only: bool) -> Result<Arc<Image>, Error> {
    let name = d.rbd.as_deref().expect("a device with `rbd`");
    let image = Image::open(cluster, name, is_read_only)?;
    image.set_lease(lease());
    Ok(Arc::new(image))
}

/// Most handles that read from one CRUSH bucket each: a cluster handle has a dozen threads.
pub(crate) const HANDLES_MAX: usize = 8;

/// Opens a handle that reads from the OSDs of one CRUSH bucket.
///
/// # Errors
/// The library's.
fn handle_at(d: &DeviceConfig, bucket: &Bucket) -> Result<Queue, Error> {
    let location = format!("{}={}", bucket.level, bucket.name);
    let cluster = connect(d, &[("rbd_read_from_replica_policy", "localize"), ("crush_location", &location)])?;
    Queue::new(open(&cluster, d, true)?)
}

/// Outcome of an order to take a lock.
pub(crate) struct Break {
    /// Ceph refuses the former owner from now on, whatever became of the lock.
    pub is_blocked: bool,
    /// True: the lock was the owner's until now. False: nobody had it any more. It is free now, and its former owner's lease is over.
    pub taken: Result<bool, Error>,
}

/// Takes the lock of a device's image away from `owner`, which Ceph blocks. A pool with a cache answers from it as long as the lock counts as owned
/// there. So this handle has the lock until that time is over: no gateway serves the pool while the owner may answer something older.
///
/// # Errors
/// If the image can't be opened: then nothing was changed.
pub(crate) fn break_lock(pool: &str, d: &DeviceConfig, owner: &str) -> Result<Break, Error> {
    let image = open(&connect(d, &[])?, d, false)?;
    // Ceph 16 keeps the time of an entry that exists, and the break adds one. Others may take the last time.
    let before = image.block(owner);
    // At once: OSDs drop the watch of a client that is blocked, and a lock without a watch is anybody's.
    let broken = image.break_lock(owner);
    let (is_broken, was_owned) = (broken.is_ok(), matches!(broken, Ok(true)));
    // Before the monitors are asked again, which takes a second or more: the lock is nobody's until then.
    let taken = broken.and_then(|was_owner| image.lock().map(|()| was_owner));
    let after = is_broken.then(|| image.block(owner));
    let is_blocked = before.is_ok() || matches!(after, Some(Ok(()))) || was_owned;
    if is_blocked {
        tracing::warn!(
            pool,
            image = image.name(),
            owner,
            seconds = lease().as_secs(),
            "the owner of the RBD image's lock is blocked by order, from now on; it may answer from its caches for this time, which is waited for"
        );
        if let Err(error) = before.and(after.unwrap_or(Ok(()))) {
            tracing::warn!(
                pool, owner, %error,
                "the former owner may be blocked for the cluster's default time only (an hour): end it before that"
            );
        }
    }
    if is_blocked || taken.is_ok() {
        // Nothing tells that the owner has stopped to answer from its caches: only time does.
        std::thread::sleep(lease());
    }
    Ok(Break { is_blocked, taken })
}

/// Time for which a confirmed lock counts as owned. Tests may want another one.
#[cfg(debug_assertions)]
fn lease() -> Duration {
    let asked = std::env::var("PLIMSOLL_TEST_LEASE_MS").ok();
    asked.and_then(|ms| ms.parse().ok()).map_or(LEASE, Duration::from_millis)
}

/// Time for which a confirmed lock counts as owned.
#[cfg(not(debug_assertions))]
const fn lease() -> Duration {
    LEASE
}

/// Looks at the image of a device without its lock.
///
/// # Errors
/// If it can't be opened.
pub(crate) fn look(cluster: &Arc<Cluster>, d: &DeviceConfig, expect: &Expect) -> Result<Look, OpenError> {
    let image = open(cluster, d, true)?;
    Ok(RemoteDevice::look(Path::new(&d.label()), medium(&image), expect)?)
}

/// Reads the metadata of an image, which nobody may have locked: its owner may be changing them. `None` if somebody has, before or after.
///
/// # Errors
/// If they can't be read.
pub(crate) fn look_meta(
    cluster: &Arc<Cluster>,
    d: &DeviceConfig,
    expect: &Expect,
) -> Result<Option<MetaView>, OpenError> {
    let image = open(cluster, d, true)?;
    let locked = asks_for_lock(cluster, d)?;
    let has_owner = || locked.has_owner();
    if has_owner()? {
        return Ok(None);
    }
    let read = RemoteDevice::look_meta(Path::new(&d.label()), medium(&image), expect);
    if has_owner()? { Ok(None) } else { Ok(Some(read?)) }
}

/// Opens a handle that may ask who has the image's lock. One that is read-only may not. The handle takes no lock.
fn asks_for_lock(cluster: &Arc<Cluster>, d: &DeviceConfig) -> Result<Arc<Image>, Error> {
    open(cluster, d, false)
}

/// Facts of an image that another client may have locked.
#[derive(Default)]
pub(crate) struct Survey {
    /// UUID of the pool's device. `None` if the image has no pool.
    pub device_uuid: Option<Uuid>,
    /// Address of the lock's owner.
    pub owner: Option<String>,
    /// Volumes of which only a cache may have the newest data. `None` if the metadata can't be read.
    pub behind: Option<Vec<String>>,
    /// The device of the configured cache is the one that the metadata name.
    pub has_its_cache: bool,
}

/// Looks at an image and its lock, and writes nothing. The lock's owner may be changing the metadata: what is read of them may be a moment old.
///
/// # Errors
/// If the image can't be opened, or the lock's owner can't be found.
pub(crate) fn survey(config: &PoolConfig, expect: &Expect) -> Result<Survey, OpenError> {
    let d = &config.device;
    let cluster = connect(d, &[])?;
    let owner = asks_for_lock(&cluster, d)?.owner()?;
    let image = open(&cluster, d, true)?;
    let label = d.label();
    let look = RemoteDevice::look(Path::new(&label), medium(&image), expect)?;
    let device_uuid = look.found.ok().map(|superblock| superblock.device_uuid);
    let read = device_uuid.and_then(|_| RemoteDevice::look_meta(Path::new(&label), medium(&image), expect).ok());
    let its_cache = read.as_ref().and_then(|view| view.cache().device);
    let has_its_cache = its_cache.is_some() && its_cache == cache_there(config);
    Ok(Survey { device_uuid, owner, behind: read.map(|view| crate::open::behind(&view)), has_its_cache })
}

/// UUID of the device of a pool's configured cache, if it is there.
fn cache_there(config: &PoolConfig) -> Option<Uuid> {
    let expect = crate::parts::cache::expect(crate::look::expect(config).pool_uuid?);
    let look = DeviceFile::look(&config.cache.as_ref()?.file, &expect).ok()??;
    look.found.ok().map(|superblock| superblock.device_uuid)
}

/// An image as the bytes under a device's metadata.
pub(crate) fn medium(image: &Arc<Image>) -> Arc<dyn Remote> {
    Arc::new(Bytes(image.clone()))
}

#[derive(Debug)]
struct Bytes(Arc<Image>);

impl Medium for Bytes {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(out, offset).map_err(Error::io)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(data, offset).map_err(Error::io)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.flush().map_err(Error::io)
    }
}

impl Remote for Bytes {
    fn size_bytes(&self) -> io::Result<u64> {
        self.0.size_bytes().map_err(Error::io)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.zero_at(offset, len).map_err(Error::io)
    }
}

/// Watches an image's lock and size from a thread of its own, as long as the pool has the image. A lost lock, or an image that was made
/// smaller, fails the pool. The cluster may take for ever to answer, so another thread watches the lease by the clock.
///
/// # Errors
/// If there is no thread for it, or the image has no size.
pub(crate) fn watch(pool: String, image: &Arc<Image>, handle: PoolHandle) -> io::Result<()> {
    let mut size_bytes = image.size_bytes().map_err(Error::io)?;
    // The start may have taken longer than the lease.
    image.lock_state();
    watch_lease(pool.clone(), image, handle.clone())?;
    let (name, watched) = (image.name().to_string(), Arc::downgrade(image));
    let watch = move || {
        while let Some(image) = watched.upgrade() {
            let now_bytes = image.size_bytes().unwrap_or(size_bytes);
            if now_bytes < size_bytes {
                tracing::error!(
                    pool,
                    image = name,
                    was = size_bytes,
                    is = now_bytes,
                    "the RBD image was made smaller: its volumes are no longer served. Give it its size back and restart the node"
                );
                image.lose();
            } else if now_bytes > size_bytes {
                tracing::info!(
                    pool,
                    image = name,
                    was = size_bytes,
                    is = now_bytes,
                    "the RBD image was made larger: the pool grows at the next start"
                );
                size_bytes = now_bytes;
            }
            if image.lock_state() == LockState::Lost {
                tracing::error!(
                    pool,
                    image = name,
                    "the RBD image's exclusive lock is lost: another client has taken it, or the image was deleted. The pool's volumes are no longer served here. Restart the node if this one is to have it"
                );
                // The pool hears of it in its next round; it has one now.
                let _ = handle.send(Command::Look(Box::new(|_, _| ())));
                return;
            }
            drop(image);
            std::thread::sleep(WATCH_EVERY);
        }
    };
    std::thread::Builder::new().name("rbd-lock".into()).spawn(watch).map(drop)
}

/// Watches whether the lock is still confirmed. Without it a pool with a cache refuses all requests: another client may have written by now.
fn watch_lease(pool: String, image: &Arc<Image>, handle: PoolHandle) -> io::Result<()> {
    let (name, watched) = (image.name().to_string(), Arc::downgrade(image));
    let watch = move || {
        let mut known = LockState::Owned;
        while let Some(image) = watched.upgrade() {
            let state = image.known_lock_state();
            drop(image);
            if state != known {
                match state {
                    LockState::Unconfirmed => tracing::error!(
                        pool,
                        image = name,
                        seconds = lease().as_secs(),
                        "the cluster hasn't confirmed the RBD image's exclusive lock for this time: another client may have it. Requests of a pool with a cache fail until it does, others wait for the cluster. Check the network to the monitors and OSDs, and the OSD of the image's header"
                    ),
                    LockState::Owned => {
                        tracing::info!(pool, image = name, "the RBD image's exclusive lock is confirmed again");
                    }
                    // The other thread reports it.
                    LockState::Lost => return,
                }
                known = state;
                let _ = handle.send(Command::Look(Box::new(|_, _| ())));
            }
            std::thread::sleep(WATCH_EVERY);
        }
    };
    std::thread::Builder::new().name("rbd-lease".into()).spawn(watch).map(drop)
}
