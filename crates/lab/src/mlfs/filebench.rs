//! Threads of Filebench's varmail and fileserver, at a capped rate (Manylogs §V-A3).

use super::{FILE, Turn, Work};
use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_fs::{Fs, Result};

/// The personality.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Personality {
    /// Mails: create, append, sync; read, append, sync; read.
    Varmail,
    /// Files: create and write whole, append, read, delete; no syncs.
    Fileserver,
}

impl Personality {
    /// Threads of an instance, by default.
    pub fn threads(self) -> u64 {
        match self {
            Personality::Varmail => 16,
            Personality::Fileserver => 50,
        }
    }

    /// Reads, writes and syncs of a loop of a thread.
    fn ops(self) -> u64 {
        match self {
            Personality::Varmail => 6,
            Personality::Fileserver => 3,
        }
    }

    /// Mean size of a file.
    fn file_bytes(self) -> f64 {
        match self {
            Personality::Varmail => 16e3,
            Personality::Fileserver => 128e3,
        }
    }
}

/// Mean size of an append.
const APPEND_BYTES: f64 = 16e3;
/// An operation's largest size: ten times the mean of files.
const BYTES_MAX: f64 = 1.28e6;

/// One thread, with a directory and files of its own in it.
pub struct Thread {
    personality: Personality,
    dir: u64,
    /// Its files' names begin with it.
    number: u64,
    /// Names of its files.
    names: Vec<u64>,
    next_name: u64,
    period: Span,
    due: Time,
    /// Number of the step in the loop, and the begin of the operation that is timed.
    step: usize,
    began: Time,
    rng: Rng,
    /// Times of varmail's syncs, and of fileserver's writes and appends.
    pub timed: LatencyHistogram,
}

impl Thread {
    /// A thread with `files` files, which are made now, for one of an instance's that do `per_s` operations a second together.
    ///
    /// # Errors
    /// The file system's.
    pub fn new(
        personality: Personality,
        fs: &mut Fs,
        dir: u64,
        number: u64,
        files: u64,
        per_s: u64,
        seed: u64,
    ) -> Result<Thread> {
        let period = Span::from_nanos(personality.threads() * personality.ops() * 1_000_000_000 / per_s);
        let mut t = Thread {
            personality,
            dir,
            number,
            names: Vec::new(),
            next_name: 0,
            period,
            due: Time::ZERO,
            step: 0,
            began: Time::ZERO,
            rng: Rng::new(seed, &format!("thread {dir} {number}")),
            timed: LatencyHistogram::new(),
        };
        for _ in 0..files {
            if fs.must_commit() {
                fs.sync(None)?;
            }
            let ino = t.create(fs)?;
            t.append(fs, ino, personality.file_bytes())?;
        }
        Ok(t)
    }

    /// Starts it, so that threads don't all begin at once.
    pub fn start(&mut self, from: Time) {
        self.due = from + self.period.scale(self.rng.below(1000), 1000);
    }

    fn name(&self, n: u64) -> Vec<u8> {
        format!("t{}-{n}", self.number).into_bytes()
    }

    fn create(&mut self, fs: &mut Fs) -> Result<u64> {
        let n = self.next_name;
        self.next_name += 1;
        self.names.push(n);
        Ok(fs.create(self.dir, &self.name(n), FILE, (0, 0), 0)?.ino)
    }

    fn delete(&mut self, fs: &mut Fs) -> Result<()> {
        let at = self.rng.below(self.names.len() as u64) as usize;
        let n = self.names.swap_remove(at);
        fs.unlink(self.dir, &self.name(n))
    }

    fn any(&mut self, fs: &mut Fs) -> Result<u64> {
        let n = self.names[self.rng.below(self.names.len() as u64) as usize];
        Ok(fs.lookup(self.dir, &self.name(n))?.ino)
    }

    fn append(&mut self, fs: &mut Fs, ino: u64, mean: f64) -> Result<()> {
        let bytes = (self.rng.exp1() * mean).clamp(1.0, BYTES_MAX) as usize;
        let size = fs.getattr(ino)?.size;
        fs.write(ino, size, &vec![9; bytes])?;
        Ok(())
    }

    fn read(&mut self, fs: &mut Fs) -> Result<u64> {
        let ino = self.any(fs)?;
        let size = fs.getattr(ino)?.size;
        fs.read(ino, 0, size as usize)?;
        Ok(ino)
    }

    /// A step of varmail's loop; `None` at its end.
    fn mail(&mut self, fs: &mut Fs) -> Result<Option<u64>> {
        let ino = match self.step {
            0 => {
                self.delete(fs)?;
                self.create(fs)?
            }
            1 => self.read(fs)?,
            _ => {
                self.read(fs)?;
                return Ok(None);
            }
        };
        self.append(fs, ino, APPEND_BYTES)?;
        Ok(Some(ino))
    }
}

impl Work for Thread {
    fn turn(&mut self, fs: &mut Fs, now: Time) -> Result<Turn> {
        if self.step == 0 && now < self.due {
            return Ok(Turn::Sleep(self.due));
        }
        if self.step > 0 {
            self.timed.record(now.since(self.began));
        }
        let next = match self.personality {
            Personality::Varmail => self.mail(fs)?.map(|ino| Turn::Sync(Some(ino))),
            // The write whole and the append are operations of their own, which take the time until the thread's next turn.
            Personality::Fileserver if self.step < 2 => {
                let ino = if self.step == 0 { self.create(fs)? } else { self.any(fs)? };
                let mean = if self.step == 0 { self.personality.file_bytes() } else { APPEND_BYTES };
                self.append(fs, ino, mean)?;
                Some(Turn::Sleep(now))
            }
            Personality::Fileserver => {
                self.read(fs)?;
                self.delete(fs)?;
                None
            }
        };
        if let Some(turn) = next {
            self.step += 1;
            // Of varmail the sync is timed: it begins when the page has been written.
            self.began = now;
            return Ok(turn);
        }
        self.step = 0;
        self.due = now.max(self.due + self.period);
        Ok(Turn::Sleep(self.due))
    }
}
