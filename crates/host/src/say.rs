//! Messages on standard error of a program that knows nothing of this library.
//!
//! Descriptor 2 may be anything: closed, a file of the program's data, a connection, a serial line, a pipe that nobody reads. So a
//! message is written only to the session's own terminal, a pipe, or the socket that systemd gave as standard error, if it's open for
//! writing and has room. Otherwise it is left out.
//!
//! Limits: a pipe that the program opened as descriptor 2 for its data can't be distinguished from its standard error. If another writer fills a
//! pipe between the question and the write, the write waits for the pipe's reader; so with a terminal that is stopped in that moment.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::net::{SendFlags, send};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A pipe that has room takes this number of bytes at once.
const MOST: usize = 4096;

/// Prints a line on standard error. It never waits, raises no signal and writes to no regular file.
pub fn error(words: &str) {
    // SAFETY: a descriptor that isn't open makes system calls fail, and nothing else.
    say(unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) }, words, std::env::var("JOURNAL_STREAM").ok().as_deref());
}

/// `journal`: `DEVICE:INODE` of the socket that leads to the journal, as systemd sets it.
fn say(fd: BorrowedFd, words: &str, journal: Option<&str>) {
    let Ok(stat) = fstat(fd) else { return };
    let kind = FileType::from_raw_mode(stat.st_mode);
    let is_ours = match kind {
        FileType::Fifo => true,
        // SAFETY: the call changes nothing, and fails if this isn't the session's terminal.
        FileType::CharacterDevice => unsafe { libc::tcgetsid(fd.as_raw_fd()) >= 0 },
        FileType::Socket => journal == Some(&format!("{}:{}", stat.st_dev, stat.st_ino)),
        _ => false,
    };
    if !is_ours {
        return;
    }
    if fcntl_getfl(fd).is_ok_and(|f| f & OFlags::RWMODE == OFlags::RDONLY) {
        return;
    }
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    if poll(&mut polled, Some(&now)) != Ok(1) || polled[0].revents() != PollFlags::OUT {
        return;
    }
    let mut line = format!("plimsoll: {words}").into_bytes();
    line.truncate(MOST - 1);
    line.push(b'\n');
    if kind == FileType::Socket {
        let _ = send(fd, &line, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    } else {
        write_without_signals(fd, &line);
    }
}

/// The reader of a pipe may go between the question and the write. A terminal may stop those in the background that write.
fn write_without_signals(fd: BorrowedFd, line: &[u8]) {
    let (mut pipe, mut before, mut pending) = (
        std::mem::MaybeUninit::<libc::sigset_t>::uninit(),
        std::mem::MaybeUninit::uninit(),
        std::mem::MaybeUninit::uninit(),
    );
    // SAFETY: the sets are ours, and each is filled by a call before another reads it; `line` is read only.
    unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        let mut blocked = pipe;
        libc::sigaddset(blocked.as_mut_ptr(), libc::SIGTTOU);
        libc::sigemptyset(pending.as_mut_ptr());
        libc::sigpending(pending.as_mut_ptr());
        let was_pending = libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1;
        libc::pthread_sigmask(libc::SIG_BLOCK, blocked.as_ptr(), before.as_mut_ptr());
        let n = libc::write(fd.as_raw_fd(), line.as_ptr().cast(), line.len());
        if n < 0 && *libc::__errno_location() == libc::EPIPE && !was_pending {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &raw const now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn a_message_goes_to_what_is_no_file_and_has_room() {
        let file = tempfile::tempfile().unwrap();
        say(file.as_fd(), "a message", None);
        assert_eq!(file.metadata().unwrap().len(), 0, "a regular file");
        let (mut reader, writer) = std::io::pipe().unwrap();
        say(reader.as_fd(), "a message", None);
        say(writer.as_fd(), &"a message".repeat(1000), None);
        let mut text = vec![0; MOST];
        reader.read_exact(&mut text).unwrap();
        assert!(text.starts_with(b"plimsoll: a message") && text.ends_with(b"\n"));
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        while (&writer).write(&[0; 4096]).is_ok() {}
        say(writer.as_fd(), "it's full", None);
        drop(reader);
        say(writer.as_fd(), "nobody reads it", None);
        write_without_signals(writer.as_fd(), b"nor this, which failed without a signal");
        let (mut a, b) = std::os::unix::net::UnixStream::pair().unwrap();
        say(b.as_fd(), "to a connection of the program", None);
        say(b.as_fd(), "to another than the journal's", Some("1:2"));
        let stat = fstat(&b).unwrap();
        say(b.as_fd(), "a message", Some(&format!("{}:{}", stat.st_dev, stat.st_ino)));
        drop(b);
        let mut text = String::new();
        a.read_to_string(&mut text).unwrap();
        assert_eq!(text, "plimsoll: a message\n");
        say(a.as_fd(), "its other end is closed", None);
    }
}
