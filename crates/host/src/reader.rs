//! Reads with deadlines (MittOS §4.4).
//!
//! ```text
//!  forecast in time, or none ───────────────────────────────► read
//!  late, resident ──────────────────────────────────────────► read, without waiting
//!  late, not resident, never read before ───────────────────► read
//!  late, not resident, read before ─► Busy; pages come in in the background
//! ```
//! A read that can't be forecast is a plain read, and the reason is reported once. Reasons are a missing agent, a file system
//! without a disk, and residency that the process may not know.

use crate::disk;
use crate::fetch::{Fetcher, Order, Pages};
use crate::forecast::Forecast;
use crate::layout::{SLOTS, number};
use crate::link::{self, DiskView, Link, Search};
use crate::mapped::{Mapping, Mappings};
use crate::ordered::Ordered;
use crate::resident::{PAGE, cachestat, is_mapped_resident, page_bytes, read_resident};
use crate::seen::{Of, Seen};
use crate::shared::now_ns;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::Duration;

/// Settings of a reader.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's socket.
    pub socket: PathBuf,
    /// A read is refused if its lateness is at least this probable, in thousandths.
    pub busy_at_permille: u32,
    /// Refuse reads of pages that were never in memory too.
    pub refuse_first: bool,
    /// Takes each reason for plain reads, once. The default is [`crate::say::error`].
    pub say: fn(&str),
}

impl Default for Options {
    fn default() -> Options {
        Options { socket: link::socket(), busy_at_permille: 500, refuse_first: false, say: crate::say::error }
    }
}

/// A refusal.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Busy {
    /// Time until the data would be here.
    pub wait: Duration,
    /// The probability of missing the deadline, 0 to 1.
    pub confidence: f64,
}

/// The outcome of a read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Answer {
    /// It read this number of bytes, 0 at the end of the file.
    Read(usize),
    /// It would be late, and nothing was read.
    Busy(Busy),
}

/// Counts of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Reads and checks with a deadline.
    pub asked: u64,
    /// Of these, refused.
    pub busy: u64,
    /// Of these, without a forecast: plain reads.
    pub plain: u64,
    /// Refused reads whose pages weren't ordered, as too many orders waited.
    pub unfetched: u64,
}

/// Reasons for a plain read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plain {
    NoAgent,
    Stale,
    NoDisk,
    Unwatched,
    Learning,
    Residency,
    NoWait,
    PageSize,
}

impl Plain {
    /// Not of one that passes by itself soon.
    fn words(self) -> Option<&'static str> {
        Some(match self {
            Plain::Learning => return None,
            Plain::NoAgent => "no host agent can be reached: reads go on without deadlines",
            Plain::Stale => "the host agent has stopped: reads go on without deadlines until it runs again",
            Plain::NoDisk => "a file's file system has no disk of its own: its reads go on without deadlines",
            Plain::Unwatched => "the host agent doesn't watch a file's disk: its reads go on without deadlines",
            Plain::Residency => {
                "the kernel doesn't tell which pages of a file are in memory (neither ours nor writable, or a kernel before 6.5): its reads go on without deadlines"
            }
            Plain::PageSize => "the kernel's pages aren't of 4096 bytes: reads go on without deadlines",
            Plain::NoWait => "a file's file system can't read without waiting: its reads go on without deadlines",
        })
    }
}

/// Reads files with deadlines. One a process is enough; all its methods may be called from any thread.
///
/// No method waits for a lock: another thread may hold it at a fork, and is missing in the child.
pub struct Reader {
    options: Options,
    link: Arc<RwLock<Option<Arc<Link>>>>,
    fetcher: Fetcher,
    seen: Seen,
    disks: RwLock<BTreeMap<u64, (u64, Vec<u32>)>>,
    mappings: Mappings,
    said: AtomicU32,
    search: Arc<Searched>,
    /// Time of the first refusal since a read was at the disk or let through, by the disk's slot; 0: none.
    refusing: [AtomicU64; SLOTS],
    ordered: Ordered,
    asked: AtomicU64,
    busy: AtomicU64,
    plain: AtomicU64,
}

/// The search for the agent.
#[derive(Default)]
struct Searched {
    tried_ns: AtomicU64,
    /// Interval between searches, in units of [`RETRY_NS`] beyond the first one: agents that hang are asked ever more seldom.
    rest: AtomicU64,
    /// A search has ended without an agent.
    failed: AtomicBool,
}

/// The agent is looked for no more often than this.
const RETRY_NS: u64 = 1_000_000_000;
/// An agent that hangs is looked for at this number of [`RETRY_NS`] at least.
const REST: u64 = 16;
/// The disks under a file system are looked up again after this time.
const DISKS_NS: u64 = 5_000_000_000;
/// A refused read is let through after this time, if nothing else can show that it would be in time.
const AGAIN_NS: u64 = 1_000_000_000;
/// The kernel reads no more than this number of bytes at once.
const MOST: usize = 0x7fff_f000;

/// A refusal that is due, and the slot of the disk that it's for.
struct Late {
    busy: Busy,
    slot: usize,
    /// No read is at the disk.
    is_idle: bool,
}

impl Late {
    /// Ordered pages are here after this time, if they ever come.
    fn due_ns(&self) -> u64 {
        AGAIN_NS.saturating_add(u64::try_from(self.busy.wait.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Reader {
    /// Begins to look for the agent in the background. Until it's found reads are plain.
    pub fn new(options: Options) -> Reader {
        let link: Arc<RwLock<Option<Arc<Link>>>> = Arc::default();
        let search: Arc<Searched> = Arc::default();
        let (socket, to, of) = (options.socket.clone(), link.clone(), search.clone());
        let look = move |search: &mut Search| match search.look(&socket) {
            Ok(found) => {
                if let Ok(mut to) = to.write() {
                    *to = Some(Arc::new(found));
                }
                of.rest.store(0, Relaxed);
            }
            Err(e) => {
                let rest =
                    if e.kind() == io::ErrorKind::WouldBlock { (of.rest.load(Relaxed) * 2).clamp(1, REST) } else { 0 };
                of.rest.store(rest, Relaxed);
                of.failed.store(true, Relaxed);
            }
        };
        let reader = Reader {
            options,
            link,
            fetcher: Fetcher::new(Arc::new(look)),
            seen: Seen::default(),
            disks: RwLock::default(),
            mappings: Mappings::default(),
            said: AtomicU32::new(0),
            search,
            refusing: [const { AtomicU64::new(0) }; SLOTS],
            ordered: Ordered::default(),
            asked: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            plain: AtomicU64::new(0),
        };
        reader.look(now_ns(), Plain::NoAgent);
        reader
    }

    /// Returns the counts.
    pub fn counts(&self) -> Counts {
        let of = |n: &AtomicU64| n.load(Relaxed);
        Counts {
            asked: of(&self.asked),
            busy: of(&self.busy),
            plain: of(&self.plain),
            unfetched: self.fetcher.dropped(),
        }
    }

    /// Reads as pread(2) does, unless that would take longer than `deadline`.
    pub fn read(&self, fd: BorrowedFd, buf: &mut [u8], offset: u64, deadline: Duration) -> io::Result<Answer> {
        self.asked.fetch_add(1, Relaxed);
        let most = buf.len().min(MOST);
        let buf = &mut buf[..most];
        let stat = fstat(fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let (dev, end) = match kind {
            FileType::RegularFile => (stat.st_dev, stat.st_size as u64),
            FileType::BlockDevice => (stat.st_rdev, u64::MAX),
            _ => return plain(fd, buf, offset), // nothing to forecast, and nothing to say of it
        };
        let file = (stat.st_dev, stat.st_ino);
        let of = Of::file(file.0, file.1);
        let pages = pages_of(offset, offset.saturating_add(buf.len() as u64).min(end));
        let answer = match self.late(dev, buf.len() as u64, deadline) {
            Ok(Some(late)) => self.refuse(fd, buf, offset, &pages, file, &late)?,
            Ok(None) => None,
            Err(why) => {
                self.say(why);
                None
            }
        };
        if let Some(Answer::Busy(busy)) = answer {
            self.busy.fetch_add(1, Relaxed);
            return Ok(Answer::Busy(busy));
        }
        let answer = match answer {
            Some(read) => read,
            None => plain(fd, buf, offset)?,
        };
        self.ordered.clear(of, pages.start);
        self.seen.mark(of, pages);
        Ok(answer)
    }

    /// Checks mapped memory before it's touched: `None`, or the refusal if it isn't resident and bringing it in would take longer than
    /// `deadline`. Fails where nothing is mapped.
    pub fn addrcheck(&self, addr: usize, len: usize, deadline: Duration) -> io::Result<Option<Busy>> {
        self.asked.fetch_add(1, Relaxed);
        let now = now_ns();
        // An order is the address's: no system call is needed to know it.
        let at = (Of::addresses(0), addr as u64 / PAGE);
        if is_mapped_resident(addr, len)? {
            self.ordered.clear(at.0, at.1);
            // Pages are remembered as the file's: a later mapping at this address may be another file's.
            let (of, pages) = (Of::addresses(now), pages_of(addr as u64, addr.saturating_add(len) as u64));
            if !self.seen.has(of, pages.clone()) {
                if let Some(mapping) = self.mappings.at(addr, now) {
                    self.seen.mark(mapping.owner(), mapping.pages(addr, len));
                }
                self.seen.mark(of, pages);
            }
            return Ok(None);
        }
        let mapping = Mapping::now(addr);
        let (dev, of, pages) = mapping.map_or((0, Of::file(0, 0), 0..0), |m| (m.dev, m.owner(), m.pages(addr, len)));
        match self.late(dev, len as u64, deadline) {
            Ok(Some(late)) if self.options.refuse_first || self.seen.has(of, pages.clone()) => {
                // Pages that can't be brought in, or are evicted each time, are the program's to touch in the end.
                if self.ordered.is_overdue(at.0, at.1, now, late.due_ns()) {
                    self.ordered.clear(at.0, at.1);
                } else if !self.is_let_through(&late, now) {
                    self.fetcher.order(Order::Memory(addr, len));
                    self.busy.fetch_add(1, Relaxed);
                    return Ok(Some(late.busy));
                }
            }
            Ok(_) => {}
            Err(why) => self.say(why),
        }
        self.seen.mark(of, pages);
        Ok(None)
    }

    /// Forecasts a read of `len` bytes from the disks under a device, if costs are known.
    pub fn forecast(&self, dev: u64, len: u64) -> Option<Forecast> {
        self.with_forecast(dev, len, |f, _| f).ok()
    }

    /// The same for the disks that a file lies on.
    pub fn forecast_file(&self, fd: BorrowedFd, len: u64) -> io::Result<Option<Forecast>> {
        let stat = fstat(fd)?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        Ok(self.forecast(if is_device { stat.st_rdev } else { stat.st_dev }, len))
    }

    /// The forecast of the disk that would take longest.
    fn with_forecast<T>(&self, dev: u64, len: u64, then: impl FnOnce(Forecast, DiskView) -> T) -> Result<T, Plain> {
        let now = now_ns();
        if page_bytes() as u64 != PAGE {
            return Err(Plain::PageSize);
        }
        // It's just being replaced.
        let Ok(link) = self.link.try_read().map(|l| l.clone()) else { return Err(Plain::Learning) };
        let Some(link) = link else { return Err(self.look(now, Plain::NoAgent)) };
        if !link.is_fresh(now) {
            return Err(self.look(now, Plain::Stale));
        }
        self.with_disks(dev, now, |disks| {
            let mut slowest: Option<(Forecast, DiskView)> = None;
            for dev in disks {
                let view = link.disk(*dev).ok_or(Plain::Unwatched)?;
                let forecast = view.forecast(now, len).ok_or(Plain::Learning)?;
                if slowest.is_none_or(|(s, _)| s.total_ns < forecast.total_ns) {
                    slowest = Some((forecast, view));
                }
            }
            let (forecast, view) = slowest.ok_or(Plain::NoDisk)?;
            Ok(then(forecast, view))
        })
    }

    fn with_disks<T>(&self, dev: u64, now: u64, then: impl FnOnce(&[u32]) -> T) -> T {
        if let Ok(disks) = self.disks.try_read()
            && let Some((at_ns, found)) = disks.get(&dev)
            && now.saturating_sub(*at_ns) < DISKS_NS
        {
            return then(found);
        }
        let found = disk::under(disk::from_libc(dev));
        let result = then(&found);
        // Numbers of devices that come and go are used again: not kept for ever.
        if let Ok(mut disks) = self.disks.try_write() {
            if disks.len() >= 1024 {
                disks.clear();
            }
            disks.insert(dev, (now, found));
        }
        result
    }

    /// The refusal, if a read that goes to the disk would be late.
    fn late(&self, dev: u64, len: u64, deadline: Duration) -> Result<Option<Late>, Plain> {
        let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.with_forecast(dev, len, |forecast, view| {
            let permille = view.late_permille(&forecast, deadline_ns);
            let is_late = permille >= self.options.busy_at_permille;
            let is_idle = number(view.now().0.reads) == 0;
            // Not by a forecast in time: its read may find its pages in memory.
            if !is_idle {
                let refusing = &self.refusing[view.slot()];
                if refusing.load(Relaxed) != 0 {
                    refusing.store(0, Relaxed);
                }
            }
            is_late.then(|| Late {
                busy: Busy { wait: Duration::from_nanos(forecast.total_ns), confidence: f64::from(permille) / 1000.0 },
                slot: view.slot(),
                is_idle,
            })
        })
    }

    /// True for one refusal after a second without a read at the disk. Costs are learned from reads: if all were refused, wrong ones
    /// would stay.
    fn is_let_through(&self, late: &Late, now: u64) -> bool {
        if !late.is_idle {
            return false;
        }
        let since = &self.refusing[late.slot];
        let begun = since.load(Relaxed);
        if begun == 0 {
            let _ = since.compare_exchange(0, now, Relaxed, Relaxed);
            return false;
        }
        now.saturating_sub(begun) >= AGAIN_NS && since.compare_exchange(begun, now, Relaxed, Relaxed).is_ok()
    }

    /// Decides on a read that would be late if it went to the disk; `None`: a plain read.
    fn refuse(
        &self,
        fd: BorrowedFd,
        buf: &mut [u8],
        offset: u64,
        pages: &Range<u64>,
        file: (u64, u64),
        late: &Late,
    ) -> io::Result<Option<Answer>> {
        if pages.is_empty() {
            return Ok(None); // the end of the file, or no bytes
        }
        let now = now_ns();
        let busy = || Ok((!self.is_let_through(late, now)).then_some(Answer::Busy(late.busy)));
        if fcntl_getfl(fd)?.contains(OFlags::DIRECT) {
            return busy();
        }
        let (start, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        let Ok(cached) = cachestat(fd, start, len) else {
            self.say(Plain::Residency);
            return Ok(None);
        };
        let of = Of::file(file.0, file.1);
        let due = late.due_ns();
        let missing = (pages.end - pages.start).saturating_sub(cached.pages);
        if missing == 0 {
            match read_resident(fd, buf, offset) {
                Ok(n) if n == buf.len() || (offset + n as u64).div_ceil(PAGE) >= pages.end => {
                    return Ok(Some(Answer::Read(n)));
                }
                // Evicted since it was asked, or still being read.
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    self.say(Plain::NoWait);
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
            // Pages that nobody ordered may be locked for another reason, and may have failed.
            let age = self.ordered.age_ns(of, pages.start, now);
            return if age.is_some_and(|age| age < due) { busy() } else { Ok(None) };
        }
        if !(self.options.refuse_first || cached.evicted >= missing || self.seen.has(of, pages.clone())) {
            return Ok(None);
        }
        if self.ordered.is_overdue(of, pages.start, now, due) {
            return Ok(None); // they can't be brought in, or are evicted each time
        }
        self.fetcher.order(Order::File(Pages { fd: fd.as_raw_fd(), file, start, len }));
        busy()
    }

    /// Orders a search for the agent, if one is due. Returns `why`, or a reason to say nothing while the first search goes on.
    fn look(&self, now: u64, why: Plain) -> Plain {
        let tried = self.search.tried_ns.load(Relaxed);
        let rest = RETRY_NS * (1 + self.search.rest.load(Relaxed));
        if (tried == 0 || now.saturating_sub(tried) >= rest)
            && self.search.tried_ns.compare_exchange(tried, now, Relaxed, Relaxed).is_ok()
        {
            // A program on a machine without an agent has no thread for it.
            if self.options.socket.exists() {
                self.fetcher.order(Order::Link);
            } else {
                self.search.failed.store(true, Relaxed);
            }
        }
        if matches!(why, Plain::NoAgent) && !self.search.failed.load(Relaxed) { Plain::Learning } else { why }
    }

    fn say(&self, why: Plain) {
        self.plain.fetch_add(1, Relaxed);
        let bit = 1 << why as u32;
        if self.said.load(Relaxed) & bit == 0 && self.said.fetch_or(bit, Relaxed) & bit == 0 {
            why.words().into_iter().for_each(self.options.say);
        }
    }
}

/// The pages of the bytes from `start` to `end`: none if there are no bytes.
fn pages_of(start: u64, end: u64) -> Range<u64> {
    start / PAGE..if end > start { end.div_ceil(PAGE) } else { start / PAGE }
}

fn plain(fd: BorrowedFd, buf: &mut [u8], offset: u64) -> io::Result<Answer> {
    // SAFETY: `buf` is ours to write, and of that length.
    let n =
        unsafe { libc::pread(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), crate::resident::to_offset(offset)?) };
    usize::try_from(n).map(Answer::Read).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_pages() {
        assert_eq!(pages_of(0, 1), 0..1);
        assert_eq!(pages_of(4095, 4097), 0..2);
        assert_eq!(pages_of(8192, 8192), 2..2);
        assert_eq!(pages_of(9000, 8192), 2..2, "beyond the end of the file");
        assert_eq!(pages_of(8292, 8292), 2..2, "its end");
    }

    #[test]
    fn without_an_agent_reads_are_plain_and_it_is_said_once() {
        use std::io::Write;
        use std::os::fd::AsFd;
        static SAID: AtomicU32 = AtomicU32::new(0);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"contents").unwrap();
        let reader = Reader::new(Options {
            socket: "/nowhere".into(),
            say: |_| {
                SAID.fetch_add(1, Relaxed);
            },
            ..Options::default()
        });
        let mut buf = [0; 16];
        for _ in 0..10 {
            assert_eq!(reader.read(file.as_fd(), &mut buf, 0, Duration::ZERO).unwrap(), Answer::Read(8));
        }
        assert_eq!((&buf[..8], SAID.load(Relaxed), reader.counts().plain), (&b"contents"[..], 1, 10));
        let stat = fstat(&file).unwrap();
        let of = Of::file(stat.st_dev, stat.st_ino);
        assert!(!reader.ordered.is_overdue(of, 0, now_ns(), u64::MAX));
        reader.read(file.as_fd(), &mut buf, 0, Duration::ZERO).unwrap();
        assert_eq!(reader.ordered.age_ns(of, 0, now_ns()), None, "an order of pages that were read since");
        let (a, _b) = std::io::pipe().unwrap();
        assert!(reader.read(a.as_fd(), &mut buf, 0, Duration::ZERO).is_err(), "as pread of a pipe");
    }
}
