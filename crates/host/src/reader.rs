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
use crate::fetch::{Fetcher, Order};
use crate::forecast::Forecast;
use crate::link::{DiskView, Link, SOCKET};
use crate::resident::{PAGE, cachestat, is_mapped_resident, read_resident};
use crate::seen::{Of, Seen};
use crate::shared::now_ns;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
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
    /// Takes each reason for plain reads, once.
    pub say: fn(&str),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            socket: std::env::var_os("PLIMSOLL_HOST_SOCKET").map_or_else(|| SOCKET.into(), PathBuf::from),
            busy_at_permille: 500,
            refuse_first: false,
            say: |words| eprintln!("plimsoll: {words}"),
        }
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
            Plain::NoWait => "a file's file system can't read without waiting: its reads go on without deadlines",
        })
    }
}

/// Reads files with deadlines. One a process is enough; all its methods may be called from any thread.
pub struct Reader {
    options: Options,
    link: Arc<RwLock<Option<Arc<Link>>>>,
    fetcher: Fetcher,
    seen: Seen,
    disks: RwLock<BTreeMap<u64, Vec<u32>>>,
    maps: RwLock<Maps>,
    said: AtomicU32,
    tried_ns: AtomicU64,
    asked: AtomicU64,
    busy: AtomicU64,
    plain: AtomicU64,
}

/// Mapped files as they were at a time.
#[derive(Default)]
struct Maps {
    at_ns: u64,
    of: Vec<(Range<usize>, u64)>,
}

/// The agent is looked for, and mappings are looked at, no more often than this.
const RETRY_NS: u64 = 1_000_000_000;

impl Reader {
    /// Connects to the agent, if there is one; otherwise it's looked for in the background while reads are plain.
    pub fn new(options: Options) -> Reader {
        let link: Arc<RwLock<Option<Arc<Link>>>> = Arc::default();
        let (socket, to) = (options.socket.clone(), link.clone());
        let connect = move || {
            if let Ok(found) = Link::connect(&socket)
                && let Ok(mut to) = to.write()
            {
                *to = Some(Arc::new(found));
            }
        };
        connect();
        Reader {
            options,
            link,
            fetcher: Fetcher::new(Arc::new(connect)),
            seen: Seen::default(),
            disks: RwLock::default(),
            maps: RwLock::default(),
            said: AtomicU32::new(0),
            tried_ns: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            plain: AtomicU64::new(0),
        }
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
        let stat = fstat(fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let (dev, end) = match kind {
            FileType::RegularFile => (stat.st_dev, stat.st_size as u64),
            FileType::BlockDevice => (stat.st_rdev, u64::MAX),
            _ => return plain(fd, buf, offset), // nothing to forecast, and nothing to say of it
        };
        let of = Of::file(stat.st_dev, stat.st_ino);
        let pages = pages_of(offset, offset.saturating_add(buf.len() as u64).min(end));
        let busy = match self.late(dev, buf.len() as u64, deadline) {
            Ok(None) => None,
            Ok(Some(busy)) => self.refuse(fd, buf, offset, &pages, of, busy)?,
            Err(why) => {
                self.say(why);
                None
            }
        };
        match busy {
            Some(Answer::Busy(busy)) => {
                self.busy.fetch_add(1, Relaxed);
                return Ok(Answer::Busy(busy));
            }
            Some(read) => {
                self.seen.mark(of, pages);
                return Ok(read);
            }
            None => {}
        }
        let n = plain(fd, buf, offset)?;
        self.seen.mark(of, pages);
        Ok(n)
    }

    /// Checks mapped memory before it's touched: `None`, or the refusal if it isn't resident and bringing it in would take longer than
    /// `deadline`. Fails where nothing is mapped.
    pub fn addrcheck(&self, addr: usize, len: usize, deadline: Duration) -> io::Result<Option<Busy>> {
        self.asked.fetch_add(1, Relaxed);
        let pages = pages_of(addr as u64, addr.saturating_add(len) as u64);
        if is_mapped_resident(addr, len)? {
            self.seen.mark(Of::ADDRESSES, pages);
            return Ok(None);
        }
        let dev = self.mapped_dev(addr);
        match self.late(dev, len as u64, deadline) {
            Ok(Some(busy)) if self.options.refuse_first || self.seen.has(Of::ADDRESSES, pages.clone()) => {
                self.fetcher.order(Order::Memory(addr, len));
                self.busy.fetch_add(1, Relaxed);
                return Ok(Some(busy));
            }
            Ok(_) => {}
            Err(why) => self.say(why),
        }
        self.seen.mark(Of::ADDRESSES, pages);
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

    /// The forecast of the disk that would take longest, and a look at how probable lateness is.
    fn with_forecast<T>(
        &self,
        dev: u64,
        len: u64,
        then: impl FnOnce(Forecast, &dyn Fn(u64) -> u32) -> T,
    ) -> Result<T, Plain> {
        let now = now_ns();
        let link = self.link.read().ok().and_then(|l| l.clone());
        let Some(link) = link else { return Err(self.look(now, Plain::NoAgent)) };
        if !link.is_fresh(now) {
            return Err(self.look(now, Plain::Stale));
        }
        self.with_disks(dev, |disks| {
            let mut slowest: Option<(Forecast, DiskView)> = None;
            for dev in disks {
                let view = link.disk(*dev).ok_or(Plain::Unwatched)?;
                let forecast = view.forecast(now, len).ok_or(Plain::Learning)?;
                if slowest.is_none_or(|(s, _)| s.total_ns < forecast.total_ns) {
                    slowest = Some((forecast, view));
                }
            }
            let (forecast, view) = slowest.ok_or(Plain::NoDisk)?;
            Ok(then(forecast, &|deadline_ns| view.late_permille(&forecast, deadline_ns)))
        })
    }

    fn with_disks<T>(&self, dev: u64, then: impl FnOnce(&[u32]) -> T) -> T {
        if let Ok(disks) = self.disks.read()
            && let Some(found) = disks.get(&dev)
        {
            return then(found);
        }
        let found = disk::under(disk::from_libc(dev));
        let result = then(&found);
        // Numbers of devices that come and go are used again: not kept for ever.
        if let Ok(mut disks) = self.disks.write() {
            if disks.len() >= 1024 {
                disks.clear();
            }
            disks.insert(dev, found);
        }
        result
    }

    /// The refusal, if a read that goes to the disk would be late.
    fn late(&self, dev: u64, len: u64, deadline: Duration) -> Result<Option<Busy>, Plain> {
        let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
        self.with_forecast(dev, len, |forecast, late_permille| {
            let late = late_permille(deadline_ns);
            (late >= self.options.busy_at_permille)
                .then(|| Busy { wait: Duration::from_nanos(forecast.total_ns), confidence: f64::from(late) / 1000.0 })
        })
    }

    /// Decides on a read that would be late if it went to the disk; `None`: a plain read.
    fn refuse(
        &self,
        fd: BorrowedFd,
        buf: &mut [u8],
        offset: u64,
        pages: &Range<u64>,
        of: Of,
        busy: Busy,
    ) -> io::Result<Option<Answer>> {
        if pages.is_empty() {
            return Ok(None); // the end of the file
        }
        if fcntl_getfl(fd)?.contains(OFlags::DIRECT) {
            return Ok(Some(Answer::Busy(busy)));
        }
        let (start, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        let Ok(cached) = cachestat(fd, start, len) else {
            self.say(Plain::Residency);
            return Ok(None);
        };
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
            return Ok(Some(Answer::Busy(busy)));
        }
        if !(self.options.refuse_first || cached.evicted >= missing || self.seen.has(of, pages.clone())) {
            return Ok(None);
        }
        if let Ok(again) = fd.try_clone_to_owned() {
            self.fetcher.order(Order::File(again, start, len));
        }
        Ok(Some(Answer::Busy(busy)))
    }

    /// Orders a search for the agent, if one is due. Returns `why`.
    fn look(&self, now: u64, why: Plain) -> Plain {
        let tried = self.tried_ns.load(Relaxed);
        if now.saturating_sub(tried) >= RETRY_NS && self.tried_ns.compare_exchange(tried, now, Relaxed, Relaxed).is_ok()
        {
            self.fetcher.order(Order::Link);
        }
        why
    }

    fn say(&self, why: Plain) {
        self.plain.fetch_add(1, Relaxed);
        let bit = 1 << why as u32;
        if self.said.load(Relaxed) & bit == 0 && self.said.fetch_or(bit, Relaxed) & bit == 0 {
            why.words().into_iter().for_each(self.options.say);
        }
    }

    /// The device of the file that is mapped at an address, 0 if it's none.
    fn mapped_dev(&self, addr: usize) -> u64 {
        let now = now_ns();
        if let Ok(maps) = self.maps.read()
            && now.saturating_sub(maps.at_ns) < RETRY_NS
            && let Some((_, dev)) = maps.of.iter().find(|(range, _)| range.contains(&addr))
        {
            return *dev;
        }
        let of = read_maps();
        let dev = of.iter().find(|(range, _)| range.contains(&addr)).map_or(0, |(_, dev)| *dev);
        if let Ok(mut maps) = self.maps.write() {
            *maps = Maps { at_ns: now, of };
        }
        dev
    }
}

fn pages_of(start: u64, end: u64) -> Range<u64> {
    start / PAGE..end.div_ceil(PAGE).max(start / PAGE)
}

fn plain(fd: BorrowedFd, buf: &mut [u8], offset: u64) -> io::Result<Answer> {
    // SAFETY: `buf` is ours to write, and of that length.
    let n =
        unsafe { libc::pread(fd.as_raw_fd(), buf.as_mut_ptr().cast(), buf.len(), crate::resident::to_offset(offset)?) };
    usize::try_from(n).map(Answer::Read).map_err(|_| io::Error::last_os_error())
}

/// Mapped files: addresses and devices.
fn read_maps() -> Vec<(Range<usize>, u64)> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(map_line).collect()
}

fn map_line(line: &str) -> Option<(Range<usize>, u64)> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let hex = |s: &str| usize::from_str_radix(s, 16).ok();
    let dev = libc::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    (dev != 0).then_some((hex(from)?..hex(to)?, dev))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_parsed() {
        let line = "7f0000000000-7f0000002000 r--s 00001000 fe:01 1234  /a file";
        assert_eq!(map_line(line), Some((0x7f00_0000_0000..0x7f00_0000_2000, libc::makedev(0xfe, 1))));
        assert_eq!(map_line("7f0000000000-7f0000002000 rw-p 00000000 00:00 0"), None);
        assert_eq!(map_line(""), None);
    }

    #[test]
    fn ranges_are_whole_pages() {
        assert_eq!(pages_of(0, 1), 0..1);
        assert_eq!(pages_of(4095, 4097), 0..2);
        assert_eq!(pages_of(8192, 8192), 2..2);
        assert_eq!(pages_of(9000, 8192), 2..2, "beyond the end of the file");
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
        let (a, _b) = std::io::pipe().unwrap();
        assert!(reader.read(a.as_fd(), &mut buf, 0, Duration::ZERO).is_err(), "as pread of a pipe");
    }
}
