//! The file system of `plimsoll-fs` on a modelled disk in virtual time (Manylogs §V-A).
//!
//! The core is the one that FUSE serves. [`Machine`] stands in the front's place: it has clients instead of threads, one of which acts at a time.
//! A client's sync is [`Fs::prepare`], the steps of its commit, and [`Fs::finish`]; other clients act while its requests are under way. A call
//! that reads the disk within the core holds up all clients, as it holds the front's lock.

mod disk;
mod filebench;
mod work;

pub use disk::{Host, PIECE, SimDisk};
pub use filebench::{Personality, Thread};
pub use work::{Batches, CommitLog, LOG_BYTES, LargeWrites};

use plimsoll_base::{Span, Time};
use plimsoll_device::Op;
use plimsoll_fs::{BLOCK, Commit, Fallocate, Format, Fs, Mode, Options, Prepared, ROOT, Result, Step, mkfs};
use std::sync::Arc;

/// Order of a client to the machine.
pub enum Turn {
    /// Waits until then.
    Sleep(Time),
    /// Makes a file, or everything, durable.
    Sync(Option<u64>),
    /// Writes what is in logs to its place, once no sync is under way.
    Checkpoint,
}

/// A client's work.
pub trait Work {
    /// Acts on the file system, at once. It has its next turn when its order has been done.
    ///
    /// # Errors
    /// The file system's.
    fn turn(&mut self, fs: &mut Fs, now: Time) -> Result<Turn>;
}

/// State of a client.
enum State {
    Ready,
    Sleeping(Time),
    Prepare(Option<u64>),
    /// The logs are full: until another sync ends. With the number of those that had ended.
    Full(Option<u64>, u64),
    /// Until the record is durable that the commit must follow.
    After(Commit),
    /// This step is under way.
    Writing(Commit, usize),
    /// Until this record is durable.
    Durable(u64),
    Checkpoint,
}

/// A mounted file system with a directory in each block group, and a large file.
pub struct Machine {
    /// The core.
    pub fs: Fs,
    /// The disk.
    pub disk: Arc<SimDisk>,
    /// A directory in each block group but a few, in their order.
    pub dirs: Vec<u64>,
    /// The large file in the middle of the disk.
    pub large: u64,
    /// Syncs that wrote something: begun and ended.
    begun: u64,
    ended: u64,
}

/// Bytes of the large file (§V-A1).
pub const LARGE_BYTES: u64 = 2 << 30;
/// The paper's journal: 5 GB.
const JOURNAL_BYTES: u64 = 5 << 30;
/// Root may write, all may read.
pub(crate) const FILE: u32 = 0o100_644;
const DIRECTORY: u32 = 0o040_755;

impl Machine {
    /// Makes and mounts a file system in the paper's parameters: logs of 10 MB in 100 MB, or a journal of 5 GB. It takes no virtual time.
    ///
    /// # Errors
    /// The file system's.
    pub fn new(disk: SimDisk, mode: Mode) -> Result<Machine> {
        let disk = Arc::new(disk);
        let blocks = plimsoll_fs::Disk::blocks(&*disk);
        let format = Format { journal_blocks: JOURNAL_BYTES / BLOCK as u64, ..Format::new(1, mode, blocks) };
        mkfs(disk.clone(), format, (0, 0))?;
        let mut fs = Fs::mount(disk.clone(), Options::default())?;
        let groups = fs.info().groups;
        let mut dirs = Vec::new();
        for i in 0..groups - 4 {
            if fs.must_commit() {
                fs.sync(None)?;
            }
            dirs.push(fs.create(ROOT, format!("d{i}").as_bytes(), DIRECTORY, (0, 0), 0)?.ino);
        }
        let large = fs.create(dirs[dirs.len() / 2], b"large", FILE, (0, 0), 0)?.ino;
        fs.fallocate(large, Fallocate::Allocate, 0, LARGE_BYTES, false)?;
        Ok(Machine { fs, disk, dirs, large, begun: 0, ended: 0 })
    }

    /// A file of `bytes` bytes in the directory of a share of the disk, 0 to 1.
    ///
    /// # Errors
    /// The file system's.
    pub fn file(&mut self, share: f64, name: &str, bytes: u64) -> Result<u64> {
        let dir = self.dirs[((self.dirs.len() - 1) as f64 * share) as usize];
        let ino = self.fs.create(dir, name.as_bytes(), FILE, (0, 0), 0)?.ino;
        self.fs.write(ino, 0, &vec![1; bytes as usize])?;
        self.fs.sync(Some(ino))?;
        Ok(ino)
    }

    /// Files of that number of pages, one in each equal part of the disk.
    ///
    /// # Errors
    /// The file system's.
    pub fn small_files(&mut self, count: usize, pages: u64) -> Result<Vec<u64>> {
        let share = |i| (i as f64 + 0.5) / count as f64;
        (0..count).map(|i| self.file(share(i), "small", pages * BLOCK as u64)).collect()
    }

    /// Ends the preparation: all is at its place, and requests take time from now on.
    ///
    /// # Errors
    /// The file system's.
    pub fn start(&mut self) -> Result<()> {
        self.fs.sync(None)?;
        self.fs.checkpoint()?;
        self.disk.turn_on();
        Ok(())
    }

    /// Begins a stream of requests to the large file's blocks.
    ///
    /// # Errors
    /// The file system's.
    pub fn stream_large(&mut self, op: Op) -> Result<()> {
        let runs: Vec<(u64, u64)> = self.fs.map(self.large)?.into_iter().map(|(_, at, len)| (at, len)).collect();
        self.disk.stream(op, &runs);
        Ok(())
    }

    /// Runs clients until then. Syncs under way at the end stay undone, so the machine is of no use afterwards unless there were no clients.
    ///
    /// # Errors
    /// The file system's.
    pub fn run(&mut self, works: &mut [&mut dyn Work], until: Time) -> Result<()> {
        let mut states: Vec<State> = works.iter().map(|_| State::Ready).collect();
        while self.disk.now() < until {
            let mut moved = false;
            for (client, work) in works.iter_mut().enumerate() {
                let state = std::mem::replace(&mut states[client], State::Ready);
                let (state, goes_on) = self.act(client, *work, state)?;
                states[client] = state;
                moved |= goes_on;
            }
            if !moved {
                let wakes = states.iter().filter_map(|s| if let State::Sleeping(t) = s { Some(*t) } else { None });
                self.disk.step(wakes.fold(until, Time::min));
            }
        }
        Ok(())
    }

    /// A client's next state, and whether it differs.
    fn act(&mut self, client: usize, work: &mut dyn Work, state: State) -> Result<(State, bool)> {
        let now = self.disk.now();
        let next = match state {
            State::Sleeping(until) if now < until => return Ok((state, false)),
            State::Full(_, ended) if self.ended == ended => return Ok((state, false)),
            State::After(ref c) if self.fs.durable_seq() < c.after => return Ok((state, false)),
            State::Writing(..) if !self.disk.is_idle(client) => return Ok((state, false)),
            State::Durable(seq) if self.fs.durable_seq() < seq => return Ok((state, false)),
            State::Checkpoint if self.begun > self.ended => return Ok((state, false)),
            State::Ready | State::Sleeping(_) | State::Durable(_) => {
                self.fs.set_now((now.as_secs_f64() as i64, 0));
                if self.fs.must_commit() {
                    State::Prepare(None)
                } else {
                    match work.turn(&mut self.fs, now)? {
                        Turn::Sleep(until) => State::Sleeping(until),
                        Turn::Sync(file) => State::Prepare(file),
                        Turn::Checkpoint => State::Checkpoint,
                    }
                }
            }
            State::Prepare(file) | State::Full(file, _) => {
                if let Some(block) = self.disk.head() {
                    self.fs.set_head(block);
                }
                match self.fs.prepare(file)? {
                    Prepared::Clean => State::Ready,
                    Prepared::Wait(seq) => State::Durable(seq),
                    Prepared::Busy => State::Full(file, self.ended),
                    Prepared::Commit(c) => {
                        self.begun += 1;
                        State::After(c)
                    }
                }
            }
            State::After(c) => self.begin(client, c, 0)?,
            State::Writing(c, step) => self.begin(client, c, step + 1)?,
            State::Checkpoint => {
                self.fs.checkpoint()?;
                State::Ready
            }
        };
        Ok((next, true))
    }

    /// Begins a step of a commit, or ends it.
    fn begin(&mut self, client: usize, commit: Commit, step: usize) -> Result<State> {
        match commit.steps().nth(step) {
            Some(Step::Write(writes)) => self.disk.begin(client, writes),
            Some(Step::Flush) => self.disk.begin(client, &[]),
            None => {
                self.ended += 1;
                self.fs.finish(commit.seq, Ok(()))?;
                return Ok(State::Durable(commit.seq));
            }
        }
        Ok(State::Writing(commit, step))
    }
}

/// Periodic work of the front: single journals are checkpointed.
pub struct Tender {
    every: Span,
    due: Time,
    is_synced: bool,
}

impl Tender {
    /// Of the front's period or another one, from `from` on.
    pub fn new(from: Time, every: Span) -> Tender {
        Tender { every, due: from + every, is_synced: false }
    }
}

impl Work for Tender {
    fn turn(&mut self, fs: &mut Fs, now: Time) -> Result<Turn> {
        if now < self.due {
            return Ok(Turn::Sleep(self.due));
        }
        if !self.is_synced && fs.is_dirty() {
            self.is_synced = true;
            return Ok(Turn::Sync(None));
        }
        self.is_synced = false;
        self.due = now + self.every;
        if fs.info().mode != Mode::Manylogs || fs.logs_used_percent() > 80 {
            return Ok(Turn::Checkpoint);
        }
        Ok(Turn::Sleep(self.due))
    }
}

/// Bandwidth of the stream in a part of a run.
pub struct Meter {
    from: Time,
    bytes: u64,
}

impl Meter {
    /// Begins now.
    pub fn new(disk: &SimDisk) -> Meter {
        Meter { from: disk.now(), bytes: disk.stream_bytes() }
    }

    /// MB/s since then.
    pub fn mb_per_s(&self, disk: &SimDisk) -> f64 {
        (disk.stream_bytes() - self.bytes) as f64 / 1e6 / disk.now().since(self.from).as_secs_f64()
    }
}
