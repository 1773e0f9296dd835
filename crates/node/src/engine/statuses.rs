//! Allocation status of a file, asked on a thread of its own.
//!
//! The file system may have to read its metadata for an answer, and examines one extent after the other. On the pool's thread, one client's
//! questions would stop all tenants. The thread starts with the first question. An answer describes at most [`EXTENTS_MAX`] extents. NBD
//! lets an answer cover less than was asked, and the client asks again for the rest. The permits that questions take bound the number of
//! those that wait.

use crate::planted::{self, Mistake};
use plimsoll_base::{Data, StatusExtent};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;

/// An answer describes at most this many extents.
pub const EXTENTS_MAX: usize = 16;

/// A range of a file.
pub struct Question {
    /// The asker's own.
    pub slot: usize,
    /// The file.
    pub file: Arc<OwnedFd>,
    /// Offset of the range in the file.
    pub start: u64,
    /// Its length.
    pub len: u64,
}

struct Running {
    questions: Sender<Question>,
    answers: Receiver<(usize, Data)>,
    thread: JoinHandle<()>,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Statuses {
    wakeup: Option<Arc<OwnedFd>>,
    running: Option<Running>,
}

impl Statuses {
    /// The thread will call through `wakeup` when it has an answer.
    pub fn wake_through(&mut self, wakeup: Arc<OwnedFd>) {
        self.wakeup = Some(wakeup);
    }

    /// Asks. Each question is answered once.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn ask(&mut self, question: Question) -> io::Result<()> {
        if planted::is(Mistake::StatusOnPool) {
            file_status(question.file.as_fd(), question.start, question.len);
        }
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        let questions = &self.running.as_ref().expect("just started").questions;
        questions.send(question).map_err(|_| io::Error::other("the thread for block status has ended"))
    }

    fn start(&self) -> io::Result<Running> {
        let wakeup = self.wakeup.clone().ok_or_else(|| io::Error::other("nobody would hear of block status"))?;
        let (questions, asked) = channel::<Question>();
        let (found, answers) = channel();
        let thread = std::thread::Builder::new().name("block-status".into()).spawn(move || {
            for q in asked {
                crate::panics::point("block-status");
                let status = file_status(q.file.as_fd(), q.start, q.len);
                // The pool outlives this thread; were it gone, nobody would wait for this.
                if found.send((q.slot, status)).is_err()
                    || rustix::io::write(wakeup.as_fd(), &1u64.to_ne_bytes()).is_err()
                {
                    return;
                }
            }
        })?;
        Ok(Running { questions, answers, thread })
    }

    /// The next answer.
    ///
    /// # Errors
    /// If the thread has ended: its questions would never be answered.
    pub fn next_answer(&mut self) -> io::Result<Option<(usize, Data)>> {
        let Some(running) = &self.running else { return Ok(None) };
        match running.answers.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the thread for block status has panicked")),
        }
    }
}

impl Drop for Statuses {
    fn drop(&mut self) {
        if let Some(Running { questions, thread, .. }) = self.running.take() {
            drop(questions);
            let _ = thread.join(); // a panic was reported already
        }
    }
}

/// One extent of `len` bytes.
pub fn status_of(len: u64, hole: bool) -> Data {
    Data::Status(vec![StatusExtent { len, hole, zero: hole }].into())
}

/// Holes and data from `start` on, from the file system's own map; all data where it has none.
fn file_status(fd: BorrowedFd<'_>, start: u64, len: u64) -> Data {
    let (end, mut at) = (start + len, start);
    let mut extents = Vec::new();
    let extents_max = if planted::is(Mistake::StatusOnPool) { 1024 } else { EXTENTS_MAX };
    while at < end && extents.len() < extents_max {
        let data = match rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(at)) {
            Ok(found) => found.min(end),
            Err(rustix::io::Errno::NXIO) => end, // nothing but a hole up to the file's end
            Err(_) => return status_of(len, false),
        };
        if data > at {
            extents.push(StatusExtent { len: data - at, hole: true, zero: true });
        }
        if data == end || extents.len() == extents_max {
            break;
        }
        let Ok(hole) = rustix::fs::seek(fd, rustix::fs::SeekFrom::Hole(data)) else { return status_of(len, false) };
        // Whoever writes or trims meanwhile may move the map below the two questions: an extent is never empty.
        let hole = if hole > data { hole.min(end) } else { end };
        extents.push(StatusExtent { len: hole - data, hole: false, zero: false });
        at = hole;
    }
    Data::Status(extents.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    const PIECE: u64 = 64 << 10;

    #[test]
    fn an_answer_is_true_and_short() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(200 * PIECE).unwrap();
        for n in (0..200).step_by(2) {
            file.write_all_at(&[1; PIECE as usize], n * PIECE).unwrap();
        }
        let wakeup = Arc::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap());
        let fd = Arc::new(OwnedFd::from(file));
        let mut statuses = Statuses::default();
        statuses.wake_through(wakeup.clone());
        assert!(statuses.next_answer().unwrap().is_none());
        for slot in 0..50 {
            let question = Question { slot, file: fd.clone(), start: slot as u64 * PIECE, len: 150 * PIECE };
            statuses.ask(question).unwrap();
        }
        let mut answered = Vec::new();
        while answered.len() < 50 {
            rustix::io::read(wakeup.as_fd(), &mut [0; 8]).unwrap();
            while let Some((slot, Data::Status(extents))) = statuses.next_answer().unwrap() {
                assert!((1..=EXTENTS_MAX).contains(&extents.len()));
                let mut at = slot as u64;
                for e in extents.iter() {
                    for piece in at..at + e.len / PIECE {
                        assert!(!e.zero || piece % 2 == 1, "piece {piece} has data");
                    }
                    at += e.len / PIECE;
                }
                answered.push(slot);
            }
        }
        answered.sort_unstable();
        assert_eq!(answered, (0..50).collect::<Vec<_>>());
    }
}
