#![allow(
    unsafe_op_in_unsafe_fn,
    clippy::undocumented_unsafe_blocks,
    clippy::missing_safety_doc,
    reason = "C interface of a test library: each function is called as Ceph headers say"
)]
//! A small fake of librados and librbd in one library, for tests: images are files, OSDs are delays, and a control file gives it faults.
//!
//! The configuration file (`rados_conf_read_file`) is a folder's `ceph.conf`, a line `KEY = VALUE` per setting. In that folder:
//!
//! ```text
//! control        faults, a line each, read again at every request:
//!                  slow OSD MICROSECONDS    requests of objects whose serving OSD it is take longer
//!                  fail OPERATION ERRNO     read, write, zero, flush
//!                  stolen                   another client has taken the lock: this one is refused from now on
//!                  full                     writes are answered ENOSPC
//!                  size BYTES               the image was resized elsewhere
//!                  setting SOURCE KEY VALUE a setting of librbd for the pool (1) or the image (2)
//!                  settings-fail ERRNO      settings can't be listed
//!                  parent BYTES             the image is a clone, with this number of bytes of its parent
//!                  lock-hangs               the question for the lock isn't answered as long as this word is there
//!                  lock-fails ERRNO         it is answered with an error; taking the lock, too
//!                  lock-is ADDRESS          this client isn't the lock's owner; 0: nobody is
//!                  block-fails ERRNO        the monitors refuse to block a client
//!                  break-fails ERRNO        a lock can't be broken
//!                  slow-close MICROSECONDS  closing an image whose lock this client has takes longer
//!                  stripe-unit BYTES        of an image with one object a stripe
//! osd_dump.json, pg_dump.json, osd_tree.json, image.id   answers of the monitors and the manager, and the image's id
//! POOL.IMAGE     the image's bytes
//! POOL.IMAGE.lock  the owner's address, locked with flock as long as it has the lock
//! blocklist      addresses of clients that are refused, a line each
//! lock-asked     a question for the lock hangs
//! served         a line per read: the host of the handle, and the OSD that served it
//! ```
//! One thread an image ends requests in an order of its own: of those that are due, one drawn by a seeded generator.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

type Handle = *mut c_void;

const OBJECT_BYTES: u64 = 4 << 20;

#[derive(Default)]
struct Cluster {
    folder: PathBuf,
    settings: BTreeMap<String, String>,
}

struct Pool {
    cluster: *const Cluster,
    name: String,
}

/// Action at a request's end.
enum Work {
    Read { at: usize, len: usize, offset: u64 },
    Write { at: usize, len: usize, offset: u64 },
    Zero { len: u64, offset: u64 },
    Flush,
}

struct Request {
    due: Instant,
    work: Work,
    completion: usize,
}

struct Completion {
    argument: usize,
    value: isize,
}

#[derive(Default)]
struct State {
    waiting: Vec<Request>,
    ended: Vec<usize>,
    event: Option<c_int>,
    random: u64,
    closing: bool,
}

struct Image {
    /// This client's, as the lock's owner.
    address: String,
    folder: PathBuf,
    settings: BTreeMap<String, String>,
    host: Option<String>,
    is_read_only: bool,
    file: File,
    lock: Mutex<Option<File>>,
    lock_path: PathBuf,
    state: Mutex<State>,
    wake: Condvar,
    /// A request has ended: there is room for another.
    room: Condvar,
}

/// The lines of a folder's control file.
fn control_of(folder: &Path) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(folder.join("control")).unwrap_or_default();
    text.lines().map(|l| l.split_whitespace().map(String::from).collect()).collect()
}

impl Image {
    fn control(&self) -> Vec<Vec<String>> {
        control_of(&self.folder)
    }

    fn find(&self, word: &str) -> Option<Vec<String>> {
        self.control().into_iter().find(|l| l.first().is_some_and(|w| w == word))
    }

    fn is_blocked(&self) -> bool {
        let blocked = std::fs::read_to_string(self.folder.join("blocklist")).unwrap_or_default();
        blocked.lines().any(|l| l == self.address)
    }

    fn number(&self, word: &str) -> Option<u64> {
        self.find(word)?.get(1)?.parse().ok()
    }

    fn size(&self) -> u64 {
        let resized = self.find("size").and_then(|l| l.get(1)?.parse().ok());
        resized.unwrap_or_else(|| self.file.metadata().map_or(0, |m| m.len()))
    }

    /// The OSD that serves a request: object N's primary is OSD N mod 3 of `acting` in the folder, or a read's replica of the handle's host.
    fn osd(&self, offset: u64, is_read: bool) -> u64 {
        let object = offset / OBJECT_BYTES;
        let line = std::fs::read_to_string(self.folder.join("acting")).unwrap_or_default();
        let acting: Vec<u64> = line
            .lines()
            .nth(object as usize)
            .map(|l| l.split_whitespace().filter_map(|w| w.parse().ok()).collect())
            .unwrap_or_else(|| vec![object % 3, (object + 1) % 3, (object + 2) % 3]);
        let local = self.host.as_ref().and_then(|h| h.strip_prefix("host=h")?.parse().ok());
        match local.filter(|o| is_read && acting.contains(o)) {
            Some(osd) => osd,
            None => acting[0],
        }
    }

    fn refusal(&self, operation: &str, is_change: bool) -> Option<isize> {
        if self.is_blocked() || is_change && self.find("stolen").is_some() {
            return Some(-(libc::ESHUTDOWN as isize));
        }
        if operation == "write" && self.find("full").is_some() {
            return Some(-(libc::ENOSPC as isize));
        }
        let fails = |l: &Vec<String>| l.len() == 3 && l[0] == "fail" && l[1] == operation;
        self.control().iter().find(|l| fails(l)).and_then(|l| l[2].parse().ok()).map(|n: isize| -n)
    }

    fn run(&self, work: &Work) -> isize {
        let (operation, is_change) = match work {
            Work::Read { .. } => ("read", false),
            Work::Write { .. } => ("write", true),
            Work::Zero { .. } => ("zero", true),
            Work::Flush => ("flush", true),
        };
        if let Some(refused) = self.refusal(operation, is_change) {
            return refused;
        }
        let size = self.size();
        match *work {
            Work::Read { at, len, offset } => {
                let n = size.saturating_sub(offset).min(len as u64) as usize;
                // SAFETY: librbd's contract: the caller keeps `len` bytes at `at` until the completion.
                let out = unsafe { std::slice::from_raw_parts_mut(at as *mut u8, n) };
                if self.file.read_exact_at(out, offset).is_err() {
                    return -(libc::EIO as isize);
                }
                if let Ok(mut served) = File::options().create(true).append(true).open(self.folder.join("served")) {
                    let line = format!("{} {}\n", self.host.as_deref().unwrap_or("-"), self.osd(offset, true));
                    let _ = served.write_all(line.as_bytes());
                }
                n as isize
            }
            Work::Write { at, len, offset } => {
                if offset + len as u64 > size {
                    return -(libc::EINVAL as isize);
                }
                // SAFETY: as above.
                let data = unsafe { std::slice::from_raw_parts(at as *const u8, len) };
                self.file.write_all_at(data, offset).map_or(-(libc::EIO as isize), |()| 0)
            }
            Work::Zero { len, offset } => {
                let zeroes = vec![0; len.min(size.saturating_sub(offset)) as usize];
                self.file.write_all_at(&zeroes, offset).map_or(-(libc::EIO as isize), |()| 0)
            }
            Work::Flush => 0,
        }
    }

    fn begin(&self, work: Work, completion: Handle) -> c_int {
        let (offset, is_read) = match work {
            Work::Read { offset, .. } => (offset, true),
            Work::Write { offset, .. } | Work::Zero { offset, .. } => (offset, false),
            Work::Flush => (0, false),
        };
        let osd = self.osd(offset, is_read).to_string();
        let slow = self
            .control()
            .iter()
            .find(|l| l.len() == 3 && l[0] == "slow" && l[1] == osd)
            .and_then(|l| l[2].parse().ok());
        let due = Instant::now() + Duration::from_micros(slow.unwrap_or(100));
        // librados takes no more, of whichever OSD.
        let most = self.settings.get("objecter_inflight_ops").and_then(|n| n.parse().ok()).unwrap_or(1024);
        let state = self.state.lock().unwrap();
        let mut state = self.room.wait_while(state, |state| state.waiting.len() >= most).unwrap();
        state.waiting.push(Request { due, work, completion: completion as usize });
        drop(state);
        self.wake.notify_one();
        0
    }

    /// The image's thread.
    fn serve(&self) {
        let mut state = self.state.lock().unwrap();
        loop {
            let now = Instant::now();
            let due: Vec<usize> = (0..state.waiting.len()).filter(|&i| state.waiting[i].due <= now).collect();
            if due.is_empty() {
                if state.closing && state.waiting.is_empty() {
                    return;
                }
                let next = state.waiting.iter().map(|r| r.due).min();
                let wait = next.map_or(Duration::from_secs(3600), |d| d.saturating_duration_since(now));
                state = self.wake.wait_timeout(state, wait).unwrap().0;
                continue;
            }
            state.random = state.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let chosen = due[(state.random >> 33) as usize % due.len()];
            let request = state.waiting.swap_remove(chosen);
            self.room.notify_one();
            drop(state);
            let value = self.run(&request.work);
            // SAFETY: a completion lives until it is released, which its owner does after it was handed out.
            unsafe { (*(request.completion as *mut Completion)).value = value };
            state = self.state.lock().unwrap();
            state.ended.push(request.completion);
            if let Some(event) = state.event {
                let one = 1u64.to_ne_bytes();
                // SAFETY: eight bytes are written to a descriptor.
                unsafe { libc::write(event, one.as_ptr().cast(), 8) };
            }
        }
    }
}

unsafe fn text(at: *const c_char) -> String {
    // SAFETY: callers pass C strings.
    unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned()
}

unsafe fn cluster<'a>(at: Handle) -> &'a mut Cluster {
    // SAFETY: made by `rados_create`.
    unsafe { &mut *at.cast() }
}

unsafe fn image<'a>(at: Handle) -> &'a Arc<Image> {
    // SAFETY: made by `open`.
    unsafe { &*at.cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_create(out: *mut Handle, _user: *const c_char) -> c_int {
    unsafe { *out = Box::into_raw(Box::<Cluster>::default()).cast() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_conf_read_file(at: Handle, path: *const c_char) -> c_int {
    let path = PathBuf::from(unsafe { text(path) });
    if !path.exists() {
        return -libc::ENOENT;
    }
    let cluster = unsafe { cluster(at) };
    cluster.folder = path.parent().unwrap_or(Path::new("/")).to_path_buf();
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let settings = text.lines().filter_map(|l| l.split_once(" = "));
    cluster.settings.extend(settings.map(|(key, value)| (key.trim().to_string(), value.trim().to_string())));
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_conf_set(at: Handle, key: *const c_char, value: *const c_char) -> c_int {
    unsafe { cluster(at).settings.insert(text(key), text(value)) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_connect(at: Handle) -> c_int {
    if unsafe { cluster(at) }.folder.join("down").exists() { -libc::ETIMEDOUT } else { 0 }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_shutdown(at: Handle) {
    drop(unsafe { Box::from_raw(at.cast::<Cluster>()) });
}

type Lens = (*const *const c_char, *mut *mut c_char, *mut usize);

unsafe fn answer(at: Handle, (commands, out, len): Lens) -> c_int {
    let command = unsafe { text(*commands) };
    let word = command.split("\"prefix\":\"").nth(1).and_then(|r| r.split('"').next()).unwrap_or_default();
    if word == "osd blocklist" {
        let folder = unsafe { &cluster(at).folder };
        let refused = control_of(folder).into_iter().find(|l| l.len() == 2 && l[0] == "block-fails");
        if let Some(errno) = refused.and_then(|l| l[1].parse::<c_int>().ok()) {
            return -errno;
        }
        let asked = std::fs::write(folder.join("blocklist-order"), command);
        return asked.map_or(-libc::EIO, |()| 0);
    }
    let name = format!("{}.json", word.replace(' ', "_"));
    let Ok(bytes) = std::fs::read(unsafe { cluster(at) }.folder.join(name)) else { return -libc::EINVAL };
    unsafe {
        *len = bytes.len();
        let to = libc::malloc(bytes.len().max(1)).cast::<u8>();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        *out = to.cast();
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_mon_command(
    at: Handle,
    commands: *const *const c_char,
    _count: usize,
    _input: *const c_char,
    _input_len: usize,
    out: *mut *mut c_char,
    len: *mut usize,
    _status: *mut *mut c_char,
    _status_len: *mut usize,
) -> c_int {
    unsafe { answer(at, (commands, out, len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_mgr_command(
    at: Handle,
    commands: *const *const c_char,
    _count: usize,
    _input: *const c_char,
    _input_len: usize,
    out: *mut *mut c_char,
    len: *mut usize,
    _status: *mut *mut c_char,
    _status_len: *mut usize,
) -> c_int {
    unsafe { answer(at, (commands, out, len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_buffer_free(at: *mut c_char) {
    unsafe { libc::free(at.cast()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_ioctx_create(at: Handle, name: *const c_char, out: *mut Handle) -> c_int {
    let pool = Pool { cluster: at.cast(), name: unsafe { text(name) } };
    unsafe { *out = Box::into_raw(Box::new(pool)).cast() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rados_ioctx_destroy(at: Handle) {
    drop(unsafe { Box::from_raw(at.cast::<Pool>()) });
}

#[unsafe(no_mangle)]
extern "C" fn rados_set_pool_full_try(_at: Handle) {}

unsafe fn open(at: Handle, name: *const c_char, out: *mut Handle, is_read_only: bool) -> c_int {
    let pool = unsafe { &*at.cast::<Pool>() };
    let (folder, settings) = unsafe { (&(*pool.cluster).folder, &(*pool.cluster).settings) };
    let path = folder.join(format!("{}.{}", pool.name, unsafe { text(name) }));
    let Ok(file) = File::options().read(true).write(true).open(&path) else { return -libc::ENOENT };
    let localized = settings.get("rbd_read_from_replica_policy").is_some_and(|p| p == "localize");
    static IMAGES: AtomicU32 = AtomicU32::new(0);
    let nonce = u64::from(std::process::id()) * 1000 + u64::from(IMAGES.fetch_add(1, Ordering::Relaxed));
    let image = Arc::new(Image {
        address: format!("127.0.0.1:0/{nonce}"),
        folder: folder.clone(),
        settings: settings.clone(),
        host: settings.get("crush_location").filter(|_| localized).cloned(),
        is_read_only,
        file,
        lock: Mutex::new(None),
        lock_path: path.with_extension(format!("{}.lock", path.extension().unwrap_or_default().to_string_lossy())),
        state: Mutex::new(State { random: 7, ..State::default() }),
        wake: Condvar::new(),
        room: Condvar::new(),
    });
    let serving = image.clone();
    std::thread::spawn(move || serving.serve());
    unsafe { *out = Box::into_raw(Box::new(image)).cast() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_open(at: Handle, name: *const c_char, out: *mut Handle, _snap: *const c_char) -> c_int {
    unsafe { open(at, name, out, false) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_open_read_only(
    at: Handle,
    name: *const c_char,
    out: *mut Handle,
    _snap: *const c_char,
) -> c_int {
    unsafe { open(at, name, out, true) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_close(at: Handle) -> c_int {
    let image = unsafe { Box::from_raw(at.cast::<Arc<Image>>()) };
    let mut state = image.state.lock().unwrap();
    state.event = None;
    state.closing = true;
    drop(state);
    image.wake.notify_one();
    let slow = image.number("slow-close").filter(|_| image.lock.lock().unwrap().is_some());
    std::thread::sleep(Duration::from_micros(slow.unwrap_or(0)));
    *image.lock.lock().unwrap() = None;
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_size(at: Handle, out: *mut u64) -> c_int {
    unsafe { *out = image(at).size() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_features(at: Handle, out: *mut u64) -> c_int {
    let without = unsafe { image(at) }.find("no-exclusive-lock").is_some();
    unsafe { *out = if without { 1 } else { 5 } };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_stripe_unit(at: Handle, out: *mut u64) -> c_int {
    unsafe { *out = image(at).number("stripe-unit").unwrap_or(OBJECT_BYTES) };
    0
}

#[repr(C)]
struct ImageInfo {
    size: u64,
    object_bytes: u64,
    objects: u64,
    order: c_int,
    prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_stat(at: Handle, out: *mut ImageInfo, len: usize) -> c_int {
    assert_eq!(len, 160, "the size of rbd_image_info_t on 64 bits");
    let size = unsafe { image(at) }.size();
    let objects = size.div_ceil(OBJECT_BYTES);
    let (prefix, parent_name) = ([0; 24], [0; 96]);
    let info = ImageInfo { size, object_bytes: OBJECT_BYTES, objects, order: 22, prefix, parent_pool: -1, parent_name };
    unsafe { out.write(info) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_overlap(at: Handle, out: *mut u64) -> c_int {
    unsafe { *out = image(at).number("parent").unwrap_or(0) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_stripe_count(_at: Handle, out: *mut u64) -> c_int {
    unsafe { *out = 1 };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_get_block_name_prefix(at: Handle, out: *mut c_char, len: usize) -> c_int {
    let id = std::fs::read_to_string(unsafe { image(at) }.folder.join("image.id")).unwrap_or("fake".into());
    let prefix = CString::new(format!("rbd_data.{}", id.trim())).unwrap();
    let bytes = prefix.as_bytes_with_nul();
    if bytes.len() > len {
        return -libc::ERANGE;
    }
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len()) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn rbd_get_data_pool_id(_at: Handle) -> i64 {
    2
}

#[repr(C)]
struct ConfigOption {
    name: *mut c_char,
    value: *mut c_char,
    source: c_int,
}

/// The client's settings; before them go those of the pool and of the image.
#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_config_image_list(at: Handle, out: *mut ConfigOption, count: *mut c_int) -> c_int {
    let image = unsafe { image(at) };
    if let Some(errno) = image.number("settings-fail") {
        return -(errno as c_int);
    }
    let mut settings: BTreeMap<String, (String, c_int)> =
        image.settings.iter().map(|(key, value)| (key.clone(), (value.clone(), 0))).collect();
    for l in image.control().iter().filter(|l| l.len() == 4 && l[0] == "setting") {
        settings.insert(l[2].clone(), (l[3].clone(), l[1].parse().unwrap_or(0)));
    }
    if unsafe { *count } < settings.len() as c_int {
        unsafe { *count = settings.len() as c_int };
        return -libc::ERANGE;
    }
    for (n, (key, (value, source))) in settings.iter().enumerate() {
        let copy = |text: &str| unsafe { libc::strdup(CString::new(text).unwrap().as_ptr()) };
        unsafe { out.add(n).write(ConfigOption { name: copy(key), value: copy(value), source: *source }) };
    }
    unsafe { *count = settings.len() as c_int };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_config_image_list_cleanup(options: *mut ConfigOption, count: c_int) {
    for n in 0..count as usize {
        unsafe {
            libc::free((*options.add(n)).name.cast());
            libc::free((*options.add(n)).value.cast());
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_lock_acquire(at: Handle, _mode: c_int) -> c_int {
    let image = unsafe { image(at) };
    if let Some(errno) = image.number("lock-fails") {
        return -(errno as c_int);
    }
    let Ok(file) = File::options().create(true).truncate(false).write(true).open(&image.lock_path) else {
        return -libc::EIO;
    };
    // SAFETY: a call on an open descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } < 0 {
        return -libc::EROFS;
    }
    let written = file.set_len(0).and_then(|()| file.write_all_at(image.address.as_bytes(), 0));
    if written.is_err() {
        return -libc::EIO;
    }
    *image.lock.lock().unwrap() = Some(file);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_lock_get_owners(
    at: Handle,
    mode: *mut c_int,
    owners: *mut *mut c_char,
    count: *mut usize,
) -> c_int {
    let image = unsafe { image(at) };
    if image.is_read_only {
        return -libc::EINVAL; // as librbd: such a handle has no part for the lock
    }
    let said = image.find("lock-is").and_then(|l| l.get(1).cloned());
    let said = said.or_else(|| image.find("stolen").map(|_| "127.0.0.1:0/2".to_string()));
    let owner = match said {
        Some(nobody) if nobody == "0" => return -libc::ENOENT,
        Some(owner) => owner,
        None => {
            let Ok(file) = File::open(&image.lock_path) else { return -libc::ENOENT };
            // SAFETY: a call on an open descriptor, which gives the lock back when it is closed.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH | libc::LOCK_NB) } == 0 {
                return -libc::ENOENT;
            }
            std::fs::read_to_string(&image.lock_path).unwrap_or_default()
        }
    };
    let owner = CString::new(owner).unwrap();
    unsafe {
        *mode = 0;
        *owners = libc::strdup(owner.as_ptr());
        *count = 1;
    }
    0
}

/// The owner goes on having the file that was at the path.
#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_lock_break(at: Handle, _mode: c_int, owner: *const c_char) -> c_int {
    let (image, owner) = unsafe { (image(at), text(owner)) };
    if let Some(errno) = image.number("break-fails") {
        return -(errno as c_int);
    }
    match std::fs::read_to_string(&image.lock_path) {
        Err(_) => return -libc::ENOENT,
        Ok(now) if now != owner => return -libc::EBUSY,
        Ok(_) => {}
    }
    let blocklist = File::options().create(true).append(true).open(image.folder.join("blocklist"));
    let blocked = blocklist.and_then(|mut list| list.write_all(format!("{owner}\n").as_bytes()));
    match blocked.and_then(|()| std::fs::remove_file(&image.lock_path)) {
        Ok(()) => 0,
        Err(_) => -libc::EIO,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_lock_get_owners_cleanup(owners: *mut *mut c_char, count: usize) {
    for n in 0..count {
        unsafe { libc::free((*owners.add(n)).cast()) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_is_exclusive_lock_owner(at: Handle, out: *mut c_int) -> c_int {
    let image = unsafe { image(at) };
    if image.find("lock-hangs").is_some() {
        let _ = std::fs::write(image.folder.join("lock-asked"), ""); // tests that don't wait for it don't miss it
    }
    while image.find("lock-hangs").is_some() {
        std::thread::sleep(Duration::from_millis(1));
    }
    if let Some(errno) = image.number("lock-fails") {
        return -(errno as c_int);
    }
    if image.is_blocked() {
        return -libc::ESHUTDOWN;
    }
    let owned = image.lock.lock().unwrap().is_some() && image.find("stolen").or(image.find("lock-is")).is_none();
    unsafe { *out = c_int::from(owned) };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_read(at: Handle, offset: u64, len: usize, out: *mut c_char) -> isize {
    unsafe { image(at) }.run(&Work::Read { at: out as usize, len, offset })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_write(at: Handle, offset: u64, len: usize, data: *const c_char) -> isize {
    let done = unsafe { image(at) }.run(&Work::Write { at: data as usize, len, offset });
    if done == 0 { len as isize } else { done }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_flush(at: Handle) -> c_int {
    unsafe { image(at) }.run(&Work::Flush) as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_write_zeroes(at: Handle, offset: u64, len: usize, _flags: c_int, _op: c_int) -> isize {
    let done = unsafe { image(at) }.run(&Work::Zero { len: len as u64, offset });
    if done == 0 { len as isize } else { done }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_set_image_notification(at: Handle, event: c_int, _kind: c_int) -> c_int {
    unsafe { image(at) }.state.lock().unwrap().event = Some(event);
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_poll_io_events(at: Handle, out: *mut Handle, most: c_int) -> c_int {
    let mut state = unsafe { image(at) }.state.lock().unwrap();
    let n = state.ended.len().min(most as usize);
    for (i, completion) in state.ended.drain(..n).enumerate() {
        unsafe { *out.add(i) = completion as Handle };
    }
    n as c_int
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_create_completion(argument: Handle, _callback: Handle, out: *mut Handle) -> c_int {
    unsafe { *out = Box::into_raw(Box::new(Completion { argument: argument as usize, value: 0 })).cast() };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_read(at: Handle, offset: u64, len: usize, out: *mut c_char, completion: Handle) -> c_int {
    unsafe { image(at) }.begin(Work::Read { at: out as usize, len, offset }, completion)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_write(
    at: Handle,
    offset: u64,
    len: usize,
    data: *const c_char,
    completion: Handle,
) -> c_int {
    unsafe { image(at) }.begin(Work::Write { at: data as usize, len, offset }, completion)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_write_zeroes(
    at: Handle,
    offset: u64,
    len: usize,
    completion: Handle,
    _flags: c_int,
    _op: c_int,
) -> c_int {
    unsafe { image(at) }.begin(Work::Zero { len: len as u64, offset }, completion)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_flush(at: Handle, completion: Handle) -> c_int {
    unsafe { image(at) }.begin(Work::Flush, completion)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_get_return_value(at: Handle) -> isize {
    unsafe { (*at.cast::<Completion>()).value }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_get_arg(at: Handle) -> Handle {
    unsafe { (*at.cast::<Completion>()).argument as Handle }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn rbd_aio_release(at: Handle) {
    drop(unsafe { Box::from_raw(at.cast::<Completion>()) });
}
