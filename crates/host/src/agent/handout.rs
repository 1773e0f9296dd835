//! The state's descriptors, given to whoever may connect to a unix socket.
//!
//! A connection is given one message and closed. Nothing is read from it, so a client has nothing to send that could be malformed, and a client
//! that doesn't read holds one socket buffer of its own.

use crate::layout::VERSION;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Users who may connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Everyone.
    All,
    /// The agent's user and this group.
    Group(u32),
    /// The agent's user alone.
    Owner,
}

/// A socket that hands the state out, in a thread of its own. Its file is removed in the end.
pub struct Handout {
    path: PathBuf,
}

impl Handout {
    /// Listens at `path`. A socket that nobody listens at any more is replaced.
    pub fn listen(path: &Path, access: Access, states: BorrowedFd, notice: BorrowedFd) -> io::Result<Handout> {
        let at = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        if path.exists() {
            if UnixStream::connect(path).is_ok() {
                return Err(at(io::Error::new(io::ErrorKind::AddrInUse, "another agent listens here; end it first")));
            }
            std::fs::remove_file(path).map_err(at)?;
        }
        // Nobody may connect before the mode is right: made under another name.
        let fresh = path.with_extension(format!("new-{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        let listener = UnixListener::bind(&fresh).map_err(at)?;
        let mode = match access {
            Access::All => 0o666,
            Access::Group(group) => {
                chown(&fresh, None, Some(group)).map_err(at)?;
                0o660
            }
            Access::Owner => 0o600,
        };
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(mode)).map_err(at)?;
        std::fs::rename(&fresh, path).map_err(at)?;
        let fds = [states.try_clone_to_owned()?, notice.try_clone_to_owned()?];
        std::thread::Builder::new().name("handout".into()).spawn(move || serve(&listener, &fds))?;
        Ok(Handout { path: path.to_path_buf() })
    }
}

impl Drop for Handout {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn serve(listener: &UnixListener, fds: &[OwnedFd; 2]) {
    loop {
        match listener.accept() {
            // A client that has gone, or holds too many already, does without.
            Ok((client, _)) => drop(give(&client, fds)),
            // Out of descriptors, most likely: those who wait are served when there are some.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn give(client: &UnixStream, fds: &[OwnedFd; 2]) -> io::Result<()> {
    client.set_nonblocking(true)?;
    let fds = [fds[0].as_fd(), fds[1].as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(io::Error::other("no room for two descriptors"));
    }
    let hello = VERSION.to_le_bytes();
    sendmsg(client, &[IoSlice::new(&hello)], &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}
