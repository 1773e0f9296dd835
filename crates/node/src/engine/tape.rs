//! A pool's tape in a file: written beside the pool's thread, read back to be replayed in the simulator.
//!
//! The file is a magic number, a header, then frames of entries. Header and frames have a length and a checksum each. So a tape that was cut
//! (the node was killed) is good up to the cut. A checksum covers the frame's number, too: a frame that is missing in the middle is
//! noticed.

use plimsoll_stack::Offer;
use plimsoll_stack::tape::{Entry, Recorder};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

const MAGIC: &[u8; 8] = b"PLIMTAPE";
/// Since version 5 the header has the pool's plan, and no configuration; since version 6 the plan has `throttle` and `admission`;
/// since version 7 a read may wait beyond its deadline.
const VERSION: u32 = 7;
/// Entries are handed to the writer in pieces of about this size, ...
const FRAME_BYTES: usize = 256 << 10;
/// ... or after this long, and whenever the pool sleeps with this much: little is missing when the node is killed.
const FRAME_NS: u64 = 100_000_000;
/// A pool that sleeps with at least this much recorded has it written.
const PAUSE_BYTES: usize = 4 << 10;
/// Frames that may wait for the writer: 16 MiB. When a slow disk lets more gather, the tape ends.
const FRAMES_WAITING_MAX: usize = 64;
/// No frame is larger: one entry's own bytes (a layer's read of 64 MiB at most) beside the others.
const FRAME_BYTES_MAX: u32 = 128 << 20;

/// The stack that a tape was recorded of.
#[derive(Debug, Serialize, Deserialize)]
pub struct TapeHeader {
    /// The version of the node that wrote it.
    pub plimsoll: String,
    /// Unix time of the pool's start, s.
    pub started_unix_s: u64,
    /// The pool's name.
    pub pool: String,
    /// The pool's plan, as JSON (see [`crate::plan::recorded`]).
    pub plan: String,
    /// Offers of its devices: size, block, largest request, atomic unit (bytes each), and queue length.
    offers: Vec<(u64, u32, u64, u32, u32)>,
}

impl TapeHeader {
    /// The devices' offers.
    pub fn offers(&self) -> Vec<Offer> {
        let offer = |&(size_bytes, block_bytes, io_bytes_max, atomic_bytes, queue_max): &(u64, u32, u64, u32, u32)| {
            Offer { size_bytes, block_bytes, io_bytes_max, atomic_bytes, queue_max }
        };
        self.offers.iter().map(offer).collect()
    }
}

/// Writes a tape. Its methods never wait: the file is written on a thread of its own.
pub struct TapeWriter {
    path: PathBuf,
    frame: Vec<u8>,
    frame_began_ns: u64,
    last_ns: u64,
    bytes_left: u64,
    writer: Option<SyncSender<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl TapeWriter {
    /// Checks that a tape can be made at `path`, and makes nothing.
    ///
    /// # Errors
    /// If something else than a tape is there or where the older one is kept, or nothing can be made in its folder.
    pub fn check(path: &Path) -> io::Result<()> {
        has_a_tape(path)?;
        may_be_an_older_one(&older_tape(path))?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(rustix::fs::access(folder, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)?)
    }

    /// Makes the file at `path`, for at most `bytes_max` bytes. A tape that is there is kept beside it as `….1`: after a
    /// crash it's the one that is wanted.
    ///
    /// # Errors
    /// If it can't be written, or something else than a tape is there or where the older one is kept.
    pub fn create(
        path: &Path,
        bytes_max: u64,
        pool: &str,
        plan: &impl Serialize,
        offers: &[Offer],
    ) -> io::Result<TapeWriter> {
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let offer = |o: &Offer| (o.size_bytes, o.block_bytes, o.io_bytes_max, o.atomic_bytes, o.queue_max);
        let header = TapeHeader {
            plimsoll: env!("CARGO_PKG_VERSION").to_string(),
            started_unix_s: since_1970.map_or(0, |d| d.as_secs()),
            pool: pool.to_string(),
            plan: serde_json::to_string(plan).map_err(io::Error::other)?,
            offers: offers.iter().map(offer).collect(),
        };
        keep_older(path)?;
        // Names, offsets and, of what recovery read, clients' data are nobody's but the operator's.
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(MAGIC)?;
        file.write_all(&VERSION.to_le_bytes())?;
        write_frame(&mut file, 0, &postcard::to_stdvec(&header).map_err(io::Error::other)?)?;
        let (writer, frames) = sync_channel::<Vec<u8>>(FRAMES_WAITING_MAX);
        let shown = path.display().to_string();
        let thread = std::thread::Builder::new().name("tape".into()).spawn(move || {
            for (number, frame) in (1..).zip(frames) {
                crate::panics::point("tape");
                if let Err(error) = write_frame(&mut file, number, &frame) {
                    tracing::error!(tape = shown, %error, "the tape ends here: it cannot be written");
                    return;
                }
            }
        })?;
        Ok(TapeWriter {
            path: path.to_owned(),
            frame: Vec::new(),
            frame_began_ns: 0,
            last_ns: 0,
            bytes_left: bytes_max,
            writer: Some(writer),
            thread: Some(thread),
        })
    }

    fn hand_over(&mut self) {
        if self.frame.is_empty() {
            return;
        }
        let frame = std::mem::take(&mut self.frame);
        self.bytes_left = self.bytes_left.saturating_sub(frame.len() as u64);
        let Some(writer) = &self.writer else { return };
        let sent = writer.try_send(frame);
        if sent.is_err() || self.bytes_left == 0 {
            let why = if sent.is_err() { "its disk is too slow, or failed" } else { "it has its full size" };
            tracing::warn!(tape = %self.path.display(), "the tape ends here: {why}");
            self.writer = None;
        }
    }
}

impl Recorder for TapeWriter {
    fn record(&mut self, entry: Entry) {
        if self.writer.is_none() {
            return;
        }
        let began = self.frame.is_empty();
        let frame = std::mem::take(&mut self.frame);
        self.frame = postcard::to_extend(&entry, frame).expect("entries are plain values");
        if let Entry::Input(ns, _) = entry {
            self.last_ns = ns;
            if began {
                self.frame_began_ns = ns;
            }
        }
        let overdue = entry == Entry::End || self.last_ns - self.frame_began_ns >= FRAME_NS;
        if overdue || self.frame.len() >= FRAME_BYTES {
            self.hand_over();
        }
    }

    fn pause(&mut self) {
        // Not each time: a pool sleeps between any two requests of a client with only one in flight.
        if self.frame.len() >= PAUSE_BYTES || self.last_ns - self.frame_began_ns >= FRAME_NS / 10 {
            self.hand_over();
        }
    }
}

impl Drop for TapeWriter {
    fn drop(&mut self) {
        self.hand_over();
        self.writer = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has told its error itself
        }
    }
}

/// The file that a tape is kept in when the next one is made.
pub fn older_tape(path: &Path) -> PathBuf {
    let mut older = path.as_os_str().to_owned();
    older.push(".1");
    older.into()
}

/// Keeps the tape that is there.
fn keep_older(path: &Path) -> io::Result<()> {
    let older = older_tape(path);
    if has_a_tape(path)? {
        may_be_an_older_one(&older)?;
        // Earlier versions left it to the umask who may read a tape.
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))?;
        std::fs::rename(path, older)?;
    }
    Ok(())
}

/// Refuses what isn't a tape where the older one will be kept; the error names it.
fn may_be_an_older_one(path: &Path) -> io::Result<()> {
    has_a_tape(path)
        .map(drop)
        .map_err(|e| io::Error::new(e.kind(), format!("{}, for the older tape: {e}", path.display())))
}

/// True if a tape is at `path`, false if nothing is.
fn has_a_tape(path: &Path) -> io::Result<bool> {
    let mut magic = [0; 8];
    // The open of a FIFO mustn't wait for a writer.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let opened = File::options().read(true).custom_flags(nonblocking).open(path);
    match opened.and_then(|mut f| f.read_exact(&mut magic)) {
        Ok(()) if &magic == MAGIC => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) if e.kind() != io::ErrorKind::UnexpectedEof => Err(e),
        _ => Err(io::Error::other("holds something else than a tape: name another file, or remove it")),
    }
}

/// The checksum of a frame.
fn sum_of(number: u64, bytes: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&number.to_le_bytes());
    sum.update(bytes);
    sum.finalize()
}

fn write_frame(file: &mut File, number: u64, bytes: &[u8]) -> io::Result<()> {
    file.write_all(&(bytes.len() as u32).to_le_bytes())?;
    file.write_all(&sum_of(number, bytes).to_le_bytes())?;
    file.write_all(bytes)
}

/// A tape that can't be read.
#[derive(Debug)]
pub struct BadTape {
    /// The file.
    pub path: PathBuf,
    /// Place of the frame in the file; `None` for its beginning.
    pub at: Option<u64>,
    /// The fault.
    pub fault: TapeFault,
}

/// Faults of a tape.
#[derive(Debug)]
pub enum TapeFault {
    /// The file can't be read.
    Io(io::Error),
    /// It is too short for a tape.
    TooShort,
    /// It is something else.
    NoTape,
    /// Another version of this program recorded it.
    Version(u32),
    /// Its header was cut.
    NoHeader,
    /// Its header can't be decoded.
    BadHeader(postcard::Error),
    /// A frame's length can't be.
    Length,
    /// A frame was changed, or one before it is missing.
    Checksum {
        /// The frame.
        number: u64,
    },
    /// An entry can't be decoded.
    NoEntry(postcard::Error),
}

impl fmt::Display for BadTape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        self.at.map_or(Ok(()), |at| write!(f, "at byte {at}: "))?;
        match &self.fault {
            TapeFault::Io(e) => e.fmt(f),
            TapeFault::TooShort => write!(f, "is not a tape: too short"),
            TapeFault::NoTape => write!(f, "is not a tape"),
            TapeFault::Version(version) => write!(
                f,
                "is a tape of version {version}; this program reads version {VERSION}: replay it with the version of plimsoll that \
                 recorded it"
            ),
            TapeFault::NoHeader => write!(f, "its header was cut"),
            TapeFault::BadHeader(e) => write!(f, "its header makes no sense: {e}"),
            TapeFault::Length => write!(f, "damaged: a frame of impossible length"),
            TapeFault::Checksum { number } => {
                write!(f, "damaged: the checksum of frame {number} is wrong, or a frame before it is missing")
            }
            TapeFault::NoEntry(e) => write!(f, "no entry: {e}"),
        }
    }
}

impl std::error::Error for BadTape {}

/// Reads a tape, frame by frame: memory doesn't grow with its length.
pub struct TapeReader {
    path: PathBuf,
    file: BufReader<File>,
    at: u64,
    /// The next frame's number.
    number: u64,
    /// The stack that it was recorded of.
    pub header: TapeHeader,
}

impl TapeReader {
    /// Opens a tape.
    ///
    /// # Errors
    /// The file, and what is wrong with it.
    pub fn open(path: &Path) -> Result<TapeReader, BadTape> {
        let fail = |fault| BadTape { path: path.to_owned(), at: None, fault };
        let file = File::open(path).map_err(|e| fail(TapeFault::Io(e)))?;
        let mut file = BufReader::new(file);
        let mut magic = [0; 12];
        file.read_exact(&mut magic).map_err(|_| fail(TapeFault::TooShort))?;
        if &magic[..8] != MAGIC {
            return Err(fail(TapeFault::NoTape));
        }
        let version = u32::from_le_bytes(magic[8..].try_into().expect("four bytes"));
        if version != VERSION {
            return Err(fail(TapeFault::Version(version)));
        }
        let mut at = 12;
        let frame = read_frame(&mut file, 0, &mut at).map_err(fail)?.ok_or_else(|| fail(TapeFault::NoHeader))?;
        let header = postcard::from_bytes(&frame).map_err(|e| fail(TapeFault::BadHeader(e)))?;
        Ok(TapeReader { path: path.to_owned(), file, at, number: 1, header })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of bytes of the file that have been read.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The next entries; `None` at the end, be it cut or not.
    ///
    /// # Errors
    /// The file, the offset, and what is wrong there.
    pub fn next_frame(&mut self) -> Result<Option<Vec<Entry>>, BadTape> {
        let began = self.at;
        let fail = |fault| BadTape { path: self.path.clone(), at: Some(began), fault };
        let frame = read_frame(&mut self.file, self.number, &mut self.at).map_err(fail)?;
        let Some(frame) = frame else { return Ok(None) };
        self.number += 1;
        let mut rest = &frame[..];
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, left) = postcard::take_from_bytes(rest).map_err(|e| fail(TapeFault::NoEntry(e)))?;
            entries.push(entry);
            rest = left;
        }
        Ok(Some(entries))
    }
}

/// A frame's bytes; `None` where the file ends, also in the middle of it.
fn read_frame(file: &mut impl Read, number: u64, at: &mut u64) -> Result<Option<Vec<u8>>, TapeFault> {
    let mut head = [0; 8];
    if file.read_exact(&mut head).is_err() {
        return Ok(None);
    }
    let (len, sum) = head.split_at(4);
    let len = u32::from_le_bytes(len.try_into().expect("four bytes"));
    if len > FRAME_BYTES_MAX {
        return Err(TapeFault::Length);
    }
    let mut bytes = Vec::new();
    file.take(u64::from(len)).read_to_end(&mut bytes).map_err(TapeFault::Io)?;
    if bytes.len() < len as usize {
        return Ok(None);
    }
    if sum_of(number, &bytes).to_le_bytes() != sum {
        return Err(TapeFault::Checksum { number });
    }
    *at += 8 + u64::from(len);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    #[test]
    fn a_fifo_is_no_tape_and_nobody_waits_for_its_writer() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let why = TapeWriter::check(&path).unwrap_err().to_string();
        assert!(why.contains("something else than a tape"), "{why}");
    }
}
