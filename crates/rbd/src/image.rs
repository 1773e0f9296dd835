//! An open RBD image: its facts, blocking I/O, and the exclusive lock.

use crate::api::{ConfigOption, Handle, ImageInfo};
use crate::cluster::{Cluster, c_string};
use crate::error::{Error, check};
use std::ffi::{CStr, c_char, c_int};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
const EXCLUSIVE_LOCK: u64 = 4;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
const MODE_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const THICK: c_int = 1;

/// A lock counts as owned for this long after the cluster confirmed it. It is shorter than the time after which another client may take
/// the lock of an owner that can't be reached (30 s by Ceph's default).
pub const LEASE: Duration = Duration::from_secs(20);
/// Time for which an owner whose lock was taken by an operator's order is kept out: it may have hung, and go on much later.
pub const FENCE: Duration = Duration::from_secs(365 * 24 * 3600);
/// After this number of answers in a row that nobody has the lock it is lost. librbd gives the lock up for a moment when it repairs its watch.
const NOBODYS_MAX: u32 = 8;
/// Room for an image's settings; librbd has about seventy.
const OPTIONS_MAX: usize = 512;

/// State of an image's exclusive lock as its owner sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockState {
    /// This handle has it.
    Owned,
    /// It wasn't confirmed for longer than [`LEASE`]: another may have it by now. It is owned again once the cluster confirms it.
    Unconfirmed,
    /// Another may have it: nothing may be written any more.
    Lost,
}

/// Tells when an image has been closed: then librbd has given its lock back.
#[derive(Clone, Default, Debug)]
pub struct Closed(Arc<(Mutex<bool>, Condvar)>);

impl Closed {
    /// Waits until the image is closed, `at_most` that long. Returns false if it isn't closed by then.
    pub fn wait(&self, at_most: Duration) -> bool {
        let (is_closed, changes) = &*self.0;
        let is_closed = is_closed.lock().expect("no panic while held");
        let waited = changes.wait_timeout_while(is_closed, at_most, |is_closed| !*is_closed);
        *waited.expect("no panic while held").0
    }

    fn note(&self) {
        let (is_closed, changes) = &*self.0;
        *is_closed.lock().expect("no panic while held") = true;
        changes.notify_all();
    }
}

/// An open image.
pub struct Image {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) handle: Handle,
    pool: Handle,
    name: String,
    is_read_only: bool,
    lost: AtomicBool,
    opened_at: Instant,
    /// Milliseconds after `opened_at` at which the lock was last asked for and confirmed, plus 1; 0: there is none.
    confirmed_ms: AtomicU64,
    lease_ms: AtomicU64,
    /// This client as the lock's owner; set with the lock.
    own: OnceLock<String>,
    /// Answers in a row that nobody has the lock.
    nobodys: AtomicU32,
    /// Descriptor at which librbd announces completions. Closed after the image.
    event: OwnedFd,
    closed: Closed,
}

/// The monitors' own time of a block. A shorter one lets an owner in again too early.
const BLOCK_SECONDS_MIN: u64 = 3600;

// SAFETY: an rbd_image_t may be used by several threads at once (qemu and others do); the pointers are only passed to the library.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    /// Opens `pool/image`. One that is opened read-only is for looking, or for reading beside the lock's owner.
    ///
    /// # Errors
    /// If there is no such pool or image, or it can't be served: why, and the remedy.
    pub fn open(cluster: &Arc<Cluster>, name: &str, is_read_only: bool) -> Result<Image, Error> {
        let l = cluster.libraries.clone();
        let (pool_name, image_name) =
            name.split_once('/').ok_or_else(|| Error::says(format!("`{name}` is no `pool/image`")))?;
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC)
            .map_err(|e| Error::of(format!("RBD image {name}: no event descriptor"), -e.raw_os_error()))?;
        let (c_pool, c_image) = (c_string(pool_name)?, c_string(image_name)?);
        let mut pool = null_mut();
        // SAFETY: the cluster is connected; the name is a C string; `pool` is written.
        let found = unsafe { (l.rados_ioctx_create)(cluster.handle, c_pool.as_ptr(), &mut pool) };
        check(found, || format!("RBD image {name}: there is no pool `{pool_name}`, or this user may not use it"))?;
        // SAFETY: `pool` is live. A full pool then answers that it is full; otherwise writes would wait until it isn't.
        unsafe { (l.rados_set_pool_full_try)(pool) };
        let open = if is_read_only { l.rbd_open_read_only } else { l.rbd_open };
        let mut handle = null_mut();
        // SAFETY: `pool` is live; the name is a C string; no snapshot; `handle` is written.
        let opened = unsafe { open(pool, c_image.as_ptr(), &mut handle, null()) };
        if opened < 0 {
            // SAFETY: nothing was opened that uses `pool`.
            unsafe { (l.rados_ioctx_destroy)(pool) };
            let hint = if opened == -libc::ENOENT {
                format!(": make it with `rbd create --size … {name}`")
            } else {
                String::new()
            };
            return Err(Error::of(format!("RBD image {name} can't be opened{hint}"), opened));
        }
        let lost = AtomicBool::new(false);
        let image = Image {
            cluster: cluster.clone(),
            handle,
            pool,
            name: name.into(),
            is_read_only,
            lost,
            opened_at: Instant::now(),
            confirmed_ms: AtomicU64::new(0),
            lease_ms: AtomicU64::new(LEASE.as_millis() as u64),
            own: OnceLock::new(),
            nobodys: AtomicU32::new(0),
            event,
            closed: Closed::default(),
        };
        image.check_settings()?;
        Ok(image)
    }

    /// Refuses an image for which the cluster's settings for the pool or the image override the client's: with librbd's cache a write that is
    /// done would not be durable, and without the blocklist an owner whose lock was broken could go on writing.
    fn check_settings(&self) -> Result<(), Error> {
        let name = &self.name;
        for (key, value, source) in self.settings()? {
            let required = self.cluster.required.iter().find(|(k, _)| *k == key).map(|(_, value)| value);
            let is_fit = |required: &str| is_same(required, &value) || is_long_block(&key, &value);
            let Some(required) = required.filter(|required| !is_fit(required)) else { continue };
            let pool = name.split('/').next().unwrap_or(name);
            let (whose, remedy) = match source {
                1 => (format!("pool `{pool}`"), format!("rbd config pool remove {pool} {key}")),
                2 => ("the image".into(), format!("rbd config image remove {name} {key}")),
                _ => ("this client".into(), format!("rbd config image set {name} {key} {required:?}")),
            };
            let why = match key.as_str() {
                "rbd_blocklist_on_break_lock" => "an owner whose lock was broken could go on writing",
                "rbd_blocklist_expire_seconds" => {
                    "an owner whose lock was broken may be let in again too early (0, which is the cluster's time, or at least 3600 is needed)"
                }
                "rbd_read_from_replica_policy" => "reads wouldn't go to the OSDs that their forecasts are of",
                _ => "writes would be acknowledged from a cache",
            };
            return Err(Error::says(format!(
                "RBD image {name}: {key} = {value} is set for {whose}, and {why}: `{remedy}`"
            )));
        }
        Ok(())
    }

    /// Settings as they hold for this image: name, value, and their source's number.
    fn settings(&self) -> Result<Vec<(String, String, c_int)>, Error> {
        let l = &self.cluster.libraries;
        let mut options = vec![ConfigOption { name: null_mut(), value: null_mut(), source: 0 }; OPTIONS_MAX];
        let mut count = OPTIONS_MAX as c_int;
        // SAFETY: the image is open; at most `count` entries are written, and `count` becomes their number.
        let got = unsafe { (l.rbd_config_image_list)(self.handle, options.as_mut_ptr(), &mut count) };
        check(got, || {
            format!("RBD image {}: its settings can't be read, such as whether librbd's cache is on", self.name)
        })?;
        let listed = usize::try_from(count).unwrap_or(0).min(options.len());
        let text = |at: *mut c_char| {
            // SAFETY: the library filled in C strings, which it frees below.
            unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
        };
        let settings = options[..listed].iter().map(|o| (text(o.name), text(o.value), o.source)).collect();
        // SAFETY: the strings were copied; `listed` entries are the library's.
        unsafe { (l.rbd_config_image_list_cleanup)(options.as_mut_ptr(), listed as c_int) };
        Ok(settings)
    }

    /// `pool/image`.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn number<T: Default>(
        &self,
        what: &str,
        function: unsafe extern "C" fn(Handle, *mut T) -> c_int,
    ) -> Result<T, Error> {
        let mut number = T::default();
        // SAFETY: the image is open; the number is written.
        let got = unsafe { function(self.handle, &mut number) };
        check(got, || format!("RBD image {}: its {what} can't be found", self.name))?;
        Ok(number)
    }

    /// Bytes of the image now.
    ///
    /// # Errors
    /// The library's.
    pub fn size_bytes(&self) -> Result<u64, Error> {
        self.number("size", self.cluster.libraries.rbd_get_size)
    }

    /// Prefix of the names of its objects, the number of the pool that has them, and the bytes of an object; `None` for an image that is
    /// striped otherwise than object by object.
    ///
    /// # Errors
    /// The library's.
    pub fn layout(&self) -> Result<Option<(String, i64, u64)>, Error> {
        let l = &self.cluster.libraries;
        let mut prefix = [0u8; 256];
        // SAFETY: the image is open; at most the buffer's length is written.
        let got =
            unsafe { (l.rbd_get_block_name_prefix)(self.handle, prefix.as_mut_ptr().cast::<c_char>(), prefix.len()) };
        check(got, || format!("RBD image {}: its objects' name can't be found", self.name))?;
        let mut info = ImageInfo {
            size: 0,
            object_bytes: 0,
            objects: 0,
            order: 0,
            prefix: [0; 24],
            parent_pool: 0,
            parent_name: [0; 96],
        };
        // SAFETY: the image is open; at most the structure's size is written, whose fields are those of rbd/librbd.h.
        let got = unsafe { (l.rbd_stat)(self.handle, &mut info, size_of::<ImageInfo>()) };
        check(got, || format!("RBD image {}: its objects' size can't be found", self.name))?;
        let count: u64 = self.number("stripe count", l.rbd_get_stripe_count)?;
        // SAFETY: the image is open.
        let pool = unsafe { (l.rbd_get_data_pool_id)(self.handle) };
        // With a count of 1 the stripe unit makes no difference: all of an object's stripes follow each other.
        Ok((count == 1 && info.object_bytes > 0).then(|| (text_of(&prefix), pool, info.object_bytes)))
    }

    /// True if the image is a clone that still has bytes of its parent. A handle that was opened read-only doesn't hear when they are
    /// copied (`rbd flatten`), and would go on reading the parent's.
    ///
    /// # Errors
    /// The library's.
    pub fn has_parent(&self) -> Result<bool, Error> {
        let overlap: u64 = self.number("parent", self.cluster.libraries.rbd_get_overlap)?;
        Ok(overlap > 0)
    }

    /// Takes the exclusive lock, and keeps it from those who ask for it. Waits for one whose owner has died (30 s by Ceph's default).
    ///
    /// # Errors
    /// If the image has no such lock, or another client has it.
    pub fn lock(&self) -> Result<(), Error> {
        let name = &self.name;
        let features: u64 = self.number("features", self.cluster.libraries.rbd_get_features)?;
        if features & EXCLUSIVE_LOCK == 0 {
            return Err(Error::says(format!(
                "RBD image {name}: it has no exclusive lock, and two gateways could write to it: `rbd feature enable {name} exclusive-lock`"
            )));
        }
        let asked_at = Instant::now();
        // SAFETY: the image is open.
        let locked = unsafe { (self.cluster.libraries.rbd_lock_acquire)(self.handle, MODE_EXCLUSIVE) };
        check(locked, || {
            let why = match -locked {
                libc::EROFS | libc::EBUSY | libc::EAGAIN => {
                    format!("another client has it (`rbd lock list {name}` shows which)")
                }
                libc::ESHUTDOWN => "the cluster has blocked this client (`ceph osd blocklist ls`)".into(),
                libc::EPERM | libc::EACCES => "this user may not take it: it needs `profile rbd` on the pool".into(),
                _ => "the cluster doesn't give it".into(),
            };
            format!("RBD image {name}: its exclusive lock can't be had: {why}")
        })?;
        let nobody = || Error::says(format!("RBD image {name}: its exclusive lock was lost as soon as it was had"));
        let own = self.owner()?.ok_or_else(nobody)?;
        let _ = self.own.set(own); // the handle's address doesn't change
        self.confirm(asked_at);
        Ok(())
    }

    /// True if a client has the image's exclusive lock, or ended without giving it back.
    ///
    /// # Errors
    /// The library's.
    pub fn has_owner(&self) -> Result<bool, Error> {
        self.owner().map(|owner| owner.is_some())
    }

    /// Address of the client that has the image's exclusive lock, or ended without giving it back; `None` if nobody has.
    ///
    /// # Errors
    /// The library's. librbd refuses the question of a handle that was opened read-only.
    pub fn owner(&self) -> Result<Option<String>, Error> {
        let l = &self.cluster.libraries;
        let mut mode = 0;
        let mut owners = [null_mut::<c_char>(); 8];
        let mut count = owners.len();
        // SAFETY: the image is open; the mode and the number are written, and at most as many pointers as the number says.
        let asked = unsafe { (l.rbd_lock_get_owners)(self.handle, &mut mode, owners.as_mut_ptr(), &mut count) };
        if asked == -libc::ENOENT {
            return Ok(None);
        }
        check(asked, || format!("RBD image {}: the owner of its exclusive lock can't be found", self.name))?;
        let listed = count.min(owners.len());
        // SAFETY: the library filled in `count` C strings, which it frees below. An exclusive lock has one owner.
        let owner = (listed > 0).then(|| unsafe { CStr::from_ptr(owners[0]) }.to_string_lossy().into_owned());
        // SAFETY: the name was copied.
        unsafe { (l.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), listed) };
        Ok(owner)
    }

    /// Tells when this image has been closed, which may take as long as the cluster takes.
    pub fn closed(&self) -> Closed {
        self.closed.clone()
    }

    /// Address of this client as the lock's owner. `None` if this handle never had the lock.
    pub fn own_address(&self) -> Option<&str> {
        self.own.get().map(String::as_str)
    }

    /// Takes the exclusive lock away from its owner; false if nobody has it any more. Ceph blocks the owner before: OSDs
    /// refuse its requests from then on, for the monitors' own time, or for that of an earlier [`Image::block`].
    ///
    /// # Errors
    /// The library's: then the owner may still have the lock. An owner that isn't `owner` keeps it.
    pub fn break_lock(&self, owner: &str) -> Result<bool, Error> {
        let c_owner = c_string(owner)?;
        // SAFETY: the image is open; the owner is a C string.
        let broken = unsafe { (self.cluster.libraries.rbd_lock_break)(self.handle, MODE_EXCLUSIVE, c_owner.as_ptr()) };
        if broken == -libc::ENOENT {
            return Ok(false);
        }
        check(broken, || {
            let why = match -broken {
                libc::EPERM | libc::EACCES => "this user may not block it: it needs `profile rbd` for the monitors",
                libc::EBUSY => "it has another owner now: try again",
                _ => "the cluster refuses it",
            };
            format!("RBD image {}: its exclusive lock can't be taken from {owner}: {why}", self.name)
        })?;
        Ok(true)
    }

    /// Keeps an owner whose lock is to be broken out for [`FENCE`]. librbd's own entry on the blocklist ends earlier; Ceph 16 keeps the time of the
    /// first entry.
    ///
    /// # Errors
    /// The monitors'.
    pub fn block(&self, owner: &str) -> Result<(), Error> {
        let seconds = FENCE.as_secs();
        let command =
            format!(r#"{{"prefix":"osd blocklist","blocklistop":"add","addr":{owner:?},"expire":{seconds}.0}}"#);
        self.cluster.ask_monitors(&command).map(drop)
    }

    /// Asks the cluster whether the lock is still there, without a time limit. Once it was lost, it stays lost for this handle. If the
    /// cluster answers with an error, the lock isn't confirmed and isn't lost.
    pub fn lock_state(&self) -> LockState {
        let (mut is_owner, asked_at) = (0, Instant::now());
        // SAFETY: the image is open; the answer is written.
        let asked = unsafe { (self.cluster.libraries.rbd_is_exclusive_lock_owner)(self.handle, &mut is_owner) };
        match asked {
            0.. if is_owner != 0 => self.confirm(asked_at),
            0.. => self.look_for_owner(),
            // The cluster refuses this client, or the image isn't there any more.
            e if e == -libc::ESHUTDOWN || e == -libc::ENOENT => self.lose(),
            _ => {}
        }
        self.known_lock_state()
    }

    /// This handle hasn't the lock under the name that it knows. librbd repairs a broken watch by itself: meanwhile the lock has an earlier
    /// name of this client, or for a moment nobody. The lock is lost if another client has it, or nobody does any more.
    fn look_for_owner(&self) {
        match self.owner() {
            Ok(Some(owner)) if self.own.get() == Some(&owner) => self.nobodys.store(0, Ordering::Release),
            Ok(Some(_)) => self.lose(),
            Ok(None) => {
                if self.nobodys.fetch_add(1, Ordering::AcqRel) + 1 >= NOBODYS_MAX {
                    self.lose();
                }
            }
            Err(e) if e.errno == libc::ESHUTDOWN => self.lose(),
            // It isn't known.
            Err(_) => {}
        }
    }

    /// The lock was there when the cluster answered, which was after `asked_at`.
    fn confirm(&self, asked_at: Instant) {
        let at = asked_at.saturating_duration_since(self.opened_at).as_millis() as u64 + 1;
        self.confirmed_ms.fetch_max(at, Ordering::AcqRel);
        self.nobodys.store(0, Ordering::Release);
    }

    /// Sets the time for which a confirmed lock counts as owned; [`LEASE`] by default.
    pub fn set_lease(&self, lease: Duration) {
        self.lease_ms.store(lease.as_millis() as u64, Ordering::Release);
    }

    /// State of the lock as it was last seen, without asking. It never waits: a cluster that can't be reached doesn't answer.
    pub fn known_lock_state(&self) -> LockState {
        if self.lost.load(Ordering::Acquire) {
            return LockState::Lost;
        }
        let confirmed_ms = self.confirmed_ms.load(Ordering::Acquire);
        if confirmed_ms == 0 {
            return LockState::Owned;
        }
        let now_ms = self.opened_at.elapsed().as_millis() as u64;
        if now_ms > confirmed_ms + self.lease_ms.load(Ordering::Acquire) {
            LockState::Unconfirmed
        } else {
            LockState::Owned
        }
    }

    /// Notes that the lock is lost: the cluster has refused this client, or the image isn't what it was.
    pub fn lose(&self) {
        if !self.is_read_only {
            self.lost.store(true, Ordering::Release);
        }
    }

    /// Reads all of `out` from `offset`, waiting for it.
    ///
    /// # Errors
    /// The library's; an end of the image before `out` is full.
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<(), Error> {
        let at = out.as_mut_ptr().cast();
        // SAFETY: the image is open; the call writes at most `out`'s length there and has ended when it returns.
        let n = unsafe { (self.cluster.libraries.rbd_read)(self.handle, offset, out.len(), at) };
        self.whole("read", offset, out.len(), n)
    }

    /// Writes all of `data` at `offset`, waiting for it.
    ///
    /// # Errors
    /// The library's; the lock is lost.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<(), Error> {
        self.may_write()?;
        // SAFETY: the image is open; the call only reads `data` and has ended when it returns.
        let n = unsafe { (self.cluster.libraries.rbd_write)(self.handle, offset, data.len(), data.as_ptr().cast()) };
        self.whole("written", offset, data.len(), n)
    }

    /// Makes durable what was written, waiting for it.
    ///
    /// # Errors
    /// The library's; the lock is lost.
    pub fn flush(&self) -> Result<(), Error> {
        self.may_write()?;
        // SAFETY: the image is open.
        let flushed = unsafe { (self.cluster.libraries.rbd_flush)(self.handle) };
        check(flushed, || format!("RBD image {}: can't be flushed", self.name)).map(drop)
    }

    /// Makes a range read as zeroes, waiting for it.
    ///
    /// # Errors
    /// The library's; the lock is lost.
    pub fn zero_at(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.may_write()?;
        // SAFETY: the image is open.
        let n = unsafe { (self.cluster.libraries.rbd_write_zeroes)(self.handle, offset, len as usize, 0, 0) };
        self.whole("zeroed", offset, len as usize, n)
    }

    fn may_write(&self) -> Result<(), Error> {
        match self.known_lock_state() {
            // A change of one that has lost it is refused by the OSDs.
            LockState::Owned | LockState::Unconfirmed => Ok(()),
            LockState::Lost => Err(Error::says(format!("RBD image {}: its exclusive lock is lost", self.name))),
        }
    }

    fn whole(&self, done: &str, offset: u64, len: usize, n: isize) -> Result<(), Error> {
        let name = &self.name;
        match usize::try_from(n) {
            Ok(n) if n == len => Ok(()),
            Ok(n) => Err(Error::says(format!("RBD image {name}: {n} of {len} bytes at {offset} could be {done}"))),
            Err(_) => Err(Error::of(format!("RBD image {name}: {len} bytes at {offset} can't be {done}"), n as i32)),
        }
    }
}

/// True for a time of blocks that is long enough: at least the monitors' own.
fn is_long_block(key: &str, value: &str) -> bool {
    key == "rbd_blocklist_expire_seconds" && value.parse().is_ok_and(|seconds: u64| seconds >= BLOCK_SECONDS_MIN)
}

/// True if two values of a setting mean the same.
fn is_same(a: &str, b: &str) -> bool {
    let plain = |text: &str| match text {
        "yes" | "on" | "1" => "true".to_string(),
        "no" | "off" | "0" => "false".to_string(),
        text => text.to_ascii_lowercase(),
    };
    plain(a) == plain(b)
}

fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: nobody else has the handle: a queue keeps its image alive. Closing waits for what is in flight and gives the lock back.
        unsafe {
            (self.cluster.libraries.rbd_close)(self.handle);
            (self.cluster.libraries.rados_ioctx_destroy)(self.pool);
        }
        self.closed.note();
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Image").field(&self.name).finish()
    }
}
