//! The control segment: a file that the server under the shim and the controller map, with the gate, its knobs and counters.
//!
//! ```text
//! Control (magic, version, sizes, lock, heartbeat) | Head | rules | users | connections
//! ```
//! A change of the gate needs the lock: a futex word with its owner's thread id. The lock is taken over from an owner that died or
//! failed, and the gate is then repaired. It can't be taken from an owner that was stopped, as that thread may go on at any time. A
//! server under the shim and the proxy then go on without the gate ([`Segment::lock_in_time`]). Across pid namespaces a thread
//! id has no meaning, and no owner is taken for dead. A process of another namespace that only looks takes the lock under a
//! name that no thread has.
//!
//! The file's owner and root, who may write to it, can stop the server with a bus error by cutting the file. The only unsafe code
//! of this crate is here: mapping the file, and views into the mapping.
#![allow(unsafe_code)]

use crate::gate::{Conn, ConnId, Gate, Head, Knobs, USERS_MAX, User};
use crate::profile::Profile;
use crate::sync::{BROKEN, CONTENDED, FutexWord, Lock, Owner, PATIENCE, Taken};
use crate::users::{RULES_MAX, Rule};
use bytemuck::Zeroable;
use plimsoll_base::Time;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"PLMSHAPE");
/// Raised with every change of the layout.
pub const VERSION: u32 = 6;
/// Users in a segment.
pub const USERS: usize = USERS_MAX;
/// Connections in a segment.
pub const CONNS: usize = 16_384;
/// The controller is taken for dead when it was silent for so long: the gate opens.
pub const HEARTBEAT_MAX_NS: u64 = 1_000_000_000;

/// The segment's first part: what is read without the lock.
#[repr(C)]
pub struct Control {
    magic: u64,
    version: u32,
    users: u32,
    conns: u32,
    /// The gate's lock.
    lock: Lock<AtomicU32, AtomicU64>,
    /// Time of the controller's last sign of life, on the monotonic clock.
    pub heartbeat_ns: AtomicU64,
    /// Reason why everything passes although it wasn't ordered: [`FAILED_SILENT`], [`FAILED_SHIM`].
    pub failed_open: AtomicU32,
    /// The server's process, once its shim is in.
    pub server_pid: AtomicU32,
    /// The controller's.
    pub controller_pid: AtomicU32,
    /// See [`crate::users::GroupBy::code`].
    pub group_by: AtomicU32,
    /// Connections taken in over TCP, and how many of these were read from: equal to zero reads means the shim sees nothing.
    pub accepted: AtomicU64,
    /// See `accepted`.
    pub reads_seen: AtomicU64,
    /// Rules in use.
    pub rules: AtomicU32,
    /// Bit 0: the tuner holds P; bit 1: the gate is off by the operator.
    pub flags: AtomicU32,
    /// Forecast of a storage node: P is multiplied by this number of thousandths (joint control); 0 and 1000 change nothing.
    pub pressure_milli: AtomicU32,
    /// Code of how the server under the shim reads: see [`Profile::code`]; 0 for a proxy.
    pub profile: AtomicU32,
    /// P that is asked for before pressure, [`P_WANTED_AUTO`] by the tuner.
    pub p_wanted: AtomicU32,
    /// Bounds of the tuner's P; 0 as usual.
    pub p_floor: AtomicU32,
    /// See `p_floor`.
    pub p_ceiling: AtomicU32,
    /// ζ that is asked for; 0: by feedback, …
    pub zeta_wanted: AtomicU32,
    /// … with unfairness of this number of thousandths at most (0: the default) …
    pub unfairness_max_milli: AtomicU32,
    /// … and a coefficient of variation of latency of this number of thousandths (0: any).
    pub variability_max_milli: AtomicU32,
    /// 1 once a server or controller of another pid namespace than the maker's has joined: a pid then doesn't show whether its
    /// process still runs.
    mixed: AtomicU32,
    /// Pid namespace of the process that made it.
    pid_namespace: AtomicU64,
    /// Pid namespace of the last server under the shim; 0 before the first.
    server_namespace: AtomicU64,
}

/// See [`Control::p_wanted`].
pub const P_WANTED_AUTO: u32 = u32::MAX - 1;
/// In [`Control::failed_open`]: the controller was silent. It closes the gate when it's back.
pub const FAILED_SILENT: u32 = 1;
/// In [`Control::failed_open`]: the shim failed, and is off until the server is started again.
pub const FAILED_SHIM: u32 = 2;

/// Names of a new file that are tried.
const NAMES_MAX: u32 = 100;
/// Looks at the lock's owner so often.
const LOOK_NS: u64 = 10_000_000;

impl FutexWord for AtomicU32 {
    /// About 2 µs, longer than the lock is ever held by a thread that runs.
    const SPINS: u32 = 200;
    fn compare_exchange(&self, from: u32, to: u32, success: Ordering) -> Result<u32, u32> {
        AtomicU32::compare_exchange(self, from, to, success, Ordering::Relaxed)
    }
    fn load(&self) -> u32 {
        AtomicU32::load(self, Ordering::Acquire)
    }
    fn swap(&self, to: u32) -> u32 {
        AtomicU32::swap(self, to, Ordering::Release)
    }
    fn wait(&self, value: u32) -> bool {
        // Signals of the server don't put off looking at the owner.
        let end = monotonic().as_nanos() + LOOK_NS;
        loop {
            let left = end.saturating_sub(monotonic().as_nanos());
            match futex_wait(self.as_ptr(), value, left) {
                Slept::Interrupted if left > 0 => {}
                slept => return slept == Slept::Woken,
            }
        }
    }
    fn wake(&self) {
        futex_wake(self.as_ptr());
    }
}

struct Offsets {
    head: usize,
    rules: usize,
    users: usize,
    conns: usize,
    end: usize,
}

const fn offsets() -> Offsets {
    const fn up(n: usize) -> usize {
        n.next_multiple_of(64)
    }
    let head = up(size_of::<Control>());
    let rules = up(head + size_of::<Head>());
    let users = up(rules + RULES_MAX * size_of::<Rule>());
    let conns = up(users + USERS * size_of::<User>());
    Offsets { head, rules, users, conns, end: up(conns + CONNS * size_of::<Conn>()) }
}
const AT: Offsets = offsets();

/// Stands in the lock word for an owner of another pid namespace than the segment's maker, server and controller. No thread has this id.
const FOREIGN: u32 = BROKEN - 1;

/// A mapped control segment.
pub struct Segment {
    base: *mut u8,
    /// This process is of another pid namespace than the segment's maker.
    foreign: bool,
}

// SAFETY: the mapping lives as long as the process; plain parts are only reached under the lock, the rest is atomic.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes a new file at `path` (replacing what is there) and begins with `knobs`.
    ///
    /// # Errors
    /// If the file can't be made or mapped.
    pub fn create(path: &Path, knobs: Knobs, now: Time) -> io::Result<Segment> {
        // A new file, never the old one's pages: a server that still maps those must not see them change.
        let (file, fresh) = fresh_file(path)?;
        Segment::fill(&file, knobs, now)
            .and_then(|segment| std::fs::rename(&fresh, path).map(|()| segment))
            .inspect_err(|_| {
                let _ = std::fs::remove_file(&fresh); // the first error is returned
            })
    }

    fn fill(file: &File, knobs: Knobs, now: Time) -> io::Result<Segment> {
        // Allocated, not only long: a page that a full file system can't provide later is a bus error in the server.
        rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, AT.end as u64)?;
        let mut header = Vec::new();
        header.extend(MAGIC.to_le_bytes());
        for n in [VERSION, USERS as u32, CONNS as u32] {
            header.extend(n.to_le_bytes());
        }
        file.write_all_at(&header, 0)?;
        let segment = Segment::map(file)?;
        segment.control().pid_namespace.store(pid_namespace(), Ordering::Relaxed);
        segment.control().heartbeat_ns.store(now.as_nanos(), Ordering::Relaxed);
        segment.control().p_wanted.store(knobs.p, Ordering::Relaxed);
        segment.lock(1, now).gate().init(knobs, now);
        Ok(segment)
    }

    /// Maps the segment at `path`.
    ///
    /// # Errors
    /// If it can't be read, isn't one, or is of another version.
    pub fn open(path: &Path) -> io::Result<Segment> {
        let file = File::options().read(true).write(true).open(path)?;
        let mut header = [0; 20];
        let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        file.read_exact_at(&mut header, 0).map_err(|_| wrong("too short for a control segment".into()))?;
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if header[..8] != MAGIC.to_le_bytes() {
            return Err(wrong("not a control segment of the shaper".into()));
        }
        if word(8) != VERSION {
            return Err(wrong(format!("version {} of the control segment; this program has {VERSION}", word(8))));
        }
        let len = file.metadata()?.len();
        if (word(12), word(16), len) != (USERS as u32, CONNS as u32, AT.end as u64) {
            return Err(wrong(format!("{len} bytes for {} users and {} connections don't fit", word(12), word(16))));
        }
        let mut segment = Segment::map(&file)?;
        segment.foreign = segment.control().pid_namespace.load(Ordering::Relaxed) != pid_namespace();
        Ok(segment)
    }

    /// Notes that this process serves clients or looks after the gate. Others only come by: they change nothing of how processes know
    /// of each other.
    pub fn join(&self) {
        if self.foreign {
            self.control().mixed.store(1, Ordering::Relaxed);
        }
    }

    fn map(file: &File) -> io::Result<Segment> {
        // SAFETY: a fresh shared mapping of an open file of this length; nothing else of this process is there.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                AT.end,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Segment { base: base.cast(), foreign: false })
    }

    /// The part that needs no lock.
    pub fn control(&self) -> &Control {
        // SAFETY: the mapping is at least this long, page-aligned, and lives as long as `self`; plain fields never change.
        unsafe { &*self.base.cast::<Control>() }
    }

    /// Returns how the server under the shim reads; none before a proxy.
    pub fn profile(&self) -> Option<Profile> {
        Profile::of_code(self.control().profile.load(Ordering::Relaxed))
    }

    /// Sleeps until this connection's wait ends (its epoch is no longer `epoch`), for at most so long.
    pub fn wait(&self, conn: ConnId, epoch: u32, timeout_ns: u64) {
        futex_wait(self.epoch_word(conn), epoch, timeout_ns);
    }

    /// Wakes whoever sleeps for this connection.
    pub fn wake(&self, conn: ConnId) {
        futex_wake(self.epoch_word(conn));
    }

    fn epoch_word(&self, conn: ConnId) -> *mut u32 {
        let at = AT.conns + (conn.0 as usize).min(CONNS - 1) * size_of::<Conn>() + std::mem::offset_of!(Conn, epoch);
        self.base.wrapping_add(at).cast()
    }

    /// Waits for the lock. `tid`: this thread's id, never 0.
    pub fn lock(&self, tid: u32, now: Time) -> Guard<'_> {
        self.take(tid, now, None).expect("it is waited for without a bound")
    }

    /// Waits for the lock, but not for ever: `None` if its owner runs and was stopped for a second (see [`PATIENCE`]). Such an
    /// owner keeps the lock: the gate must not be used without it.
    pub fn lock_in_time(&self, tid: u32, now: Time) -> Option<Guard<'_>> {
        self.take(tid, now, Some(PATIENCE))
    }

    /// Takes the lock without waiting: `None` if its owner still runs.
    pub fn lock_now(&self, tid: u32, now: Time) -> Option<Guard<'_>> {
        let taken = self.control().lock.take_now(self.name(tid), &|id| self.owner(id))?;
        Some(self.guard(taken, now))
    }

    fn take(&self, tid: u32, now: Time, patience: Option<u32>) -> Option<Guard<'_>> {
        let taken = self.control().lock.take(self.name(tid), &|id| self.owner(id), patience)?;
        Some(self.guard(taken, now))
    }

    fn guard(&self, taken: Taken, now: Time) -> Guard<'_> {
        let mut guard = Guard { segment: self };
        if taken == Taken::FromDead {
            guard.gate().repair(now);
        }
        guard
    }

    /// This thread, as the others know it.
    fn name(&self, tid: u32) -> u32 {
        if self.foreign { FOREIGN } else { tid }
    }

    fn owner(&self, id: u32) -> Owner {
        if id == FOREIGN || self.is_mixed() { Owner::Waits } else { state_of(id) }
    }

    /// The lock's present owner, for a message.
    pub fn lock_owner(&self) -> String {
        match self.control().lock.word().load(Ordering::Acquire) & !CONTENDED {
            0 => "nobody".into(),
            BROKEN => "an owner that failed".into(),
            FOREIGN => "a process of another pid namespace".into(),
            id if self.is_mixed() => format!("thread {id} of some pid namespace"),
            id => {
                let does = match self.owner(id) {
                    Owner::Dead => "is dead",
                    Owner::Stopped => "is stopped",
                    Owner::Waits => "sleeps",
                    Owner::Runs => "runs",
                };
                format!("thread {id}, which {does}")
            }
        }
    }

    /// Processes of several pid namespaces use it, or this one is of another: none can name another's.
    pub fn is_mixed(&self) -> bool {
        self.foreign || self.control().mixed.load(Ordering::Relaxed) != 0
    }

    /// Takes back what an earlier server left, when one starts in this process.
    /// False if the lock can't be had.
    pub fn reap_earlier_server(&self, tid: u32, now: Time) -> bool {
        let Some(mut guard) = self.lock_in_time(tid, now) else { return false };
        let own = pid_namespace();
        let before = self.control().server_namespace.swap(own, Ordering::Relaxed);
        // The server's own processes name each other, whatever the controller's namespace. In a new one the earlier server can't be asked
        // for; it has ended, as a segment has one server.
        guard.gate().reap(now, &mut |pid| before != own || is_dead(pid));
        true
    }

    /// Returns whether no process or thread that uses this segment has this id any more. Never where they are of several pid
    /// namespaces, in which numbers mean different processes.
    pub fn is_dead(&self, id: u32) -> bool {
        !self.is_mixed() && is_dead(id)
    }
}

/// Makes a file beside `path` that nobody can have put there. The folder may be one that others write to if its sticky bit is set.
fn fresh_file(path: &Path) -> io::Result<(File, PathBuf)> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = std::fs::metadata(folder)?.mode();
    if mode & libc::S_IWOTH != 0 && mode & libc::S_ISVTX == 0 {
        let what =
            format!("anybody may replace files in {}: use a folder that only its owner writes to", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    for n in 0..NAMES_MAX {
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(format!(".{}-{}-{n}", std::process::id(), monotonic().as_nanos()));
        let fresh = PathBuf::from(fresh);
        // Exclusive: neither a file nor a link that is there already is followed.
        match File::options().read(true).write(true).create_new(true).mode(0o600).open(&fresh) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (file, fresh)),
        }
    }
    Err(io::Error::new(io::ErrorKind::AlreadyExists, "all names that were tried beside it are taken"))
}

/// This process' pid namespace; 0 where that can't be seen.
fn pid_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino())
}

/// The lock, held.
pub struct Guard<'a> {
    segment: &'a Segment,
}

impl Guard<'_> {
    /// The gate.
    pub fn gate(&mut self) -> Gate<'_> {
        let base = self.segment.base;
        // SAFETY: the lock is held, so nobody else has references to these parts; they lie within the mapping, aligned to 64
        // bytes, apart from each other; any bytes are valid for these types (Pod).
        unsafe {
            Gate {
                head: &mut *base.add(AT.head).cast::<Head>(),
                users: std::slice::from_raw_parts_mut(base.add(AT.users).cast::<User>(), USERS),
                conns: std::slice::from_raw_parts_mut(base.add(AT.conns).cast::<Conn>(), CONNS),
            }
        }
    }

    /// The rules in use.
    pub fn rules(&self) -> &[Rule] {
        let n = self.segment.control().rules.load(Ordering::Relaxed) as usize;
        // SAFETY: as above; only the holder of the lock reads or writes rules.
        let all = unsafe { std::slice::from_raw_parts(self.segment.base.add(AT.rules).cast::<Rule>(), RULES_MAX) };
        &all[..n.min(RULES_MAX)]
    }

    /// Replaces the rules; they hold for connections to come. Rules beyond [`RULES_MAX`] are dropped.
    pub fn set_rules(&mut self, rules: &[Rule]) {
        let n = rules.len().min(RULES_MAX);
        // SAFETY: as above.
        let all = unsafe { std::slice::from_raw_parts_mut(self.segment.base.add(AT.rules).cast::<Rule>(), RULES_MAX) };
        all.fill(Rule::zeroed());
        all[..n].copy_from_slice(&rules[..n]);
        self.segment.control().rules.store(n as u32, Ordering::Relaxed);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // A panic within leaves the gate half changed: who takes the lock next repairs it.
        let lock = &self.segment.control().lock;
        if std::thread::panicking() { lock.break_off() } else { lock.give_back() }
    }
}

/// Reason for which a sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slept {
    /// It was woken, or the word had another value.
    Woken,
    /// By a signal.
    Interrupted,
    /// The time was up.
    InTime,
}

/// Sleeps while the word has this value, for at most `timeout_ns`.
fn futex_wait(word: *mut u32, value: u32, timeout_ns: u64) -> Slept {
    let timeout = libc::timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (timeout_ns % 1_000_000_000) as libc::c_long,
    };
    // SAFETY: the kernel checks the address; the word lies in a mapping that lives as long as the process. Not private:
    // other processes wake it too.
    let r = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, value, &timeout) };
    // SAFETY: errno's address is always valid.
    match unsafe { *libc::__errno_location() } {
        libc::ETIMEDOUT if r != 0 => Slept::InTime,
        libc::EINTR if r != 0 => Slept::Interrupted,
        _ => Slept::Woken,
    }
}

/// Wakes one that sleeps on the word.
fn futex_wake(word: *mut u32) {
    // SAFETY: as for waiting.
    unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, 1) };
}

/// No process or thread has this id, or only what is left of one that has ended and that nobody has waited for.
pub fn is_dead(id: u32) -> bool {
    state_of(id) == Owner::Dead
}

/// State of a process or thread of this pid namespace.
fn state_of(id: u32) -> Owner {
    // SAFETY: signal 0 only asks.
    let r = unsafe { libc::kill(id as libc::pid_t, 0) };
    // SAFETY: errno's address is always valid.
    if r == -1 && unsafe { *libc::__errno_location() } == libc::ESRCH {
        return Owner::Dead;
    }
    match state_letter(id) {
        Some(b'Z' | b'X' | b'x') => Owner::Dead,
        Some(b'T' | b't') => Owner::Stopped,
        Some(b'R') => Owner::Runs,
        _ => Owner::Waits,
    }
}

/// Tells a process that sleeps for its latch (PostgreSQL) that it was let in.
pub fn wake_process(pid: u32) {
    // SAFETY: only sends a signal. It may be gone: then it's reaped.
    unsafe { libc::kill(pid as libc::pid_t, libc::SIGURG) };
}

/// By `/proc`, without allocation: it's asked within a server's own calls.
fn state_letter(id: u32) -> Option<u8> {
    let mut path = [0u8; 32];
    let mut left = &mut path[..31];
    if io::Write::write_fmt(&mut left, format_args!("/proc/{id}/stat")).is_err() {
        return None;
    }
    let mut text = [0u8; 128];
    // SAFETY: the path ends with a NUL, the buffer is as long as is said, and the descriptor is closed once. System calls are made directly,
    // as the C library's names may be the shim's.
    let n = unsafe {
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return None;
        }
        let n = libc::syscall(libc::SYS_read, fd, text.as_mut_ptr(), text.len());
        libc::syscall(libc::SYS_close, fd);
        n
    };
    let text = &text[..usize::try_from(n).unwrap_or(0)];
    // The state stands behind the name, which may have any characters.
    text.iter().rposition(|b| *b == b')').and_then(|at| text.get(at + 2)).copied()
}

/// Now, on the monotonic clock that all processes share.
pub fn monotonic() -> Time {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the struct it's given.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    Time::from_nanos(t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::Verdict;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn two_mappings_are_one_gate_and_other_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let a = Segment::create(&path, Knobs { p: 1, ..Knobs::default() }, monotonic()).unwrap();
        let b = Segment::open(&path).unwrap();
        let now = monotonic();
        let id = a.lock(1, now).gate().open(0).unwrap();
        assert_eq!(b.lock(2, now).gate().request(now, id), Verdict::Go);
        assert_eq!(a.lock(1, now).gate().head.normal, 1);
        std::fs::write(dir.path().join("x"), [0; 64]).unwrap();
        let wrong = |name: &str| Segment::open(&dir.path().join(name)).err().unwrap().to_string();
        assert_eq!(wrong("x"), "not a control segment of the shaper");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[8] = 99;
        std::fs::write(dir.path().join("y"), &bytes).unwrap();
        assert_eq!(wrong("y"), "version 99 of the control segment; this program has 6");
        bytes[8] = VERSION as u8;
        std::fs::write(dir.path().join("z"), &bytes[..4096]).unwrap();
        assert!(wrong("z").contains("don't fit"));
    }

    #[test]
    fn who_has_ended_is_dead_before_anybody_waits_for_it() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while !is_dead(child.id()) {
            assert!(std::time::Instant::now() < end, "it has ended");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        child.wait().unwrap();
        assert!(!is_dead(std::process::id()) && is_dead(0x3fff_ffff));
    }

    #[test]
    fn the_lock_excludes_and_is_taken_from_the_dead() {
        let dir = tempfile::tempdir().unwrap();
        let s = Segment::create(&dir.path().join("s"), Knobs::default(), monotonic()).unwrap();
        std::thread::scope(|scope| {
            for t in 0..4 {
                let s = &s;
                scope.spawn(move || {
                    // SAFETY: asks for this thread's id.
                    let tid = unsafe { libc::gettid() } as u32;
                    for _ in 0..20_000 {
                        let mut g = s.lock(tid, monotonic());
                        let n = &mut g.gate().head.counters.unparsed;
                        *n = std::hint::black_box(*n) + 1;
                    }
                    t
                });
            }
        });
        assert_eq!(s.lock(1, monotonic()).gate().head.counters.unparsed, 80_000);
        // An id that no process has, as the largest is far below.
        std::mem::forget(s.lock(0x3fff_ffff, monotonic()));
        let before = std::time::Instant::now();
        assert_eq!(s.lock(2, monotonic()).gate().head.counters.repairs, 1);
        assert!(before.elapsed() < std::time::Duration::from_secs(1));
    }

    #[test]
    fn a_lock_without_waiting_is_had_from_nobody_and_from_the_dead() {
        let dir = tempfile::tempdir().unwrap();
        let s = Segment::create(&dir.path().join("s"), Knobs::default(), monotonic()).unwrap();
        let guard = s.lock(1, monotonic());
        assert!(s.lock_now(2, monotonic()).is_none() && s.lock_now(2, monotonic()).is_none());
        drop(guard);
        let repairs = || s.lock_now(2, monotonic()).expect("it is free").gate().head.counters.repairs;
        assert_eq!((repairs(), repairs()), (0, 0));
        std::mem::forget(s.lock(0x3fff_ffff, monotonic()));
        assert_eq!((repairs(), repairs()), (1, 1));
        s.control().lock.break_off();
        assert_eq!((repairs(), repairs()), (2, 2));
    }

    #[test]
    fn a_change_that_a_panic_broke_off_is_repaired() {
        let dir = tempfile::tempdir().unwrap();
        let s = Segment::create(&dir.path().join("s"), Knobs::default(), monotonic()).unwrap();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut guard = s.lock(1, monotonic());
            guard.gate().head.waiting = 5; // which isn't so
            std::panic::resume_unwind(Box::new("broken off"));
        }));
        assert!(failed.is_err());
        let mut guard = s.lock(2, monotonic());
        let mut gate = guard.gate();
        gate.check();
        assert_eq!(gate.head.counters.repairs, 1);
    }

    #[test]
    fn across_pid_namespaces_nobody_is_dead() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let s = Segment::create(&path, Knobs::default(), monotonic()).unwrap();
        assert!(s.is_dead(0x3fff_ffff) && Segment::open(&path).unwrap().is_dead(0x3fff_ffff));
        // As if another namespace's process had made it. Who only looks in changes nothing for the others, ...
        s.control().pid_namespace.store(1, Ordering::Relaxed);
        let looks_in = Segment::open(&path).unwrap();
        assert!(!looks_in.is_dead(0x3fff_ffff) && s.is_dead(0x3fff_ffff));
        // ... and is not dead to them.
        let guard = looks_in.lock(0x3fff_ffff, monotonic());
        assert!(s.lock_now(1, monotonic()).is_none());
        assert_eq!(s.lock_owner(), "a process of another pid namespace");
        drop(guard);
        std::mem::forget(s.lock(0x3fff_ffff, monotonic()));
        assert!(looks_in.lock_now(1, monotonic()).is_none(), "it can't see who is dead");
        assert_eq!(s.lock_now(1, monotonic()).expect("its owner is dead").gate().head.counters.repairs, 1);
        // A server or controller is there for as long as the segment is.
        looks_in.join();
        assert!(!s.is_dead(0x3fff_ffff));
        // A server's own processes are of one namespace, or the earlier server of another has ended.
        let me = std::process::id();
        let left = |s: &Segment| s.lock(1, monotonic()).gate().owners();
        s.reap_earlier_server(1, monotonic());
        for pid in [me, 0x3fff_ffff] {
            s.lock(1, monotonic()).gate().open(pid).unwrap();
        }
        s.reap_earlier_server(1, monotonic());
        assert_eq!(left(&s), [me]);
        s.control().server_namespace.store(1, Ordering::Relaxed);
        s.reap_earlier_server(1, monotonic());
        assert_eq!(left(&s), []);
    }

    #[test]
    fn a_link_beside_it_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("s"), dir.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join("s.new")).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        Segment::create(&path, Knobs::default(), monotonic()).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
        assert_eq!(left.len(), 3, "{left:?}");
    }

    #[test]
    fn all_of_it_is_allocated_and_only_its_owners() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        Segment::create(&path, Knobs::default(), monotonic()).unwrap();
        let made = std::fs::metadata(&path).unwrap();
        assert!(made.blocks() * 512 >= AT.end as u64, "{} blocks", made.blocks());
        assert_eq!(made.mode() & 0o7777, 0o600);
        let mode = |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o777);
        let refused = Segment::create(&path, Knobs::default(), monotonic()).err().expect("anybody may replace it");
        assert!(refused.to_string().contains("anybody may replace files in"), "{refused}");
        mode(0o1777);
        assert!(Segment::create(&path, Knobs::default(), monotonic()).is_ok());
    }
}
