//! The state's descriptors, given to whoever may connect to a unix socket.
//!
//! A connection is given one message and closed. Nothing is read from it, so a client has nothing to send that could be malformed, and a client
//! that doesn't read holds one socket buffer of its own.

use crate::layout::VERSION;
use crate::link::reach;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt, chown};
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
    /// Listens at `path`. A socket that nobody listens at any more is replaced; a folder that is missing is made.
    pub fn listen(path: &Path, access: Access, states: BorrowedFd, notice: BorrowedFd) -> io::Result<Handout> {
        let at = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        make_room(path).map_err(at)?;
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

/// Removes a socket without a listener. Everything else stays, and is an error.
fn make_room(path: &Path) -> io::Result<()> {
    let taken = |kind, words| Err(io::Error::new(kind, words));
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            taken(io::ErrorKind::AlreadyExists, "it's no socket, and isn't replaced; name another path by --socket")
        }
        Ok(_) => match reach(path) {
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            Ok(_) => taken(io::ErrorKind::AddrInUse, "another agent listens here; end it first"),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                taken(io::ErrorKind::AddrInUse, "another agent listens here, and hangs; end it first")
            }
            Err(e) => Err(e),
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => match path.parent().filter(|p| !p.as_os_str().is_empty()) {
            Some(folder) if !folder.exists() => std::fs::DirBuilder::new().mode(0o755).create(folder),
            _ => Ok(()),
        },
        Err(e) => Err(e),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn listen(path: &Path) -> Result<Handout, String> {
        let null = std::fs::File::open("/dev/null").unwrap();
        Handout::listen(path, Access::Owner, null.as_fd(), null.as_fd()).map_err(|e| e.to_string())
    }

    #[test]
    fn only_a_socket_without_a_listener_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "of the user").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link, &dir.path().to_path_buf()] {
            assert!(listen(path).err().unwrap().contains("it's no socket"), "{path:?}");
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"of the user");
        // It never accepts, and its backlog is full: connecting may not wait.
        let hung = dir.path().join("hung");
        let listener = UnixListener::bind(&hung).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut held = Vec::new();
        held.extend(std::iter::from_fn(|| reach(&hung).ok()));
        assert!(listen(&hung).err().unwrap().contains("hangs"));
        drop((held, listener));
        drop(listen(&hung).unwrap());
        let datagrams = dir.path().join("datagrams");
        let _socket = std::os::unix::net::UnixDatagram::bind(&datagrams).unwrap();
        assert!(listen(&datagrams).is_err() && datagrams.exists());
    }

    #[test]
    fn the_folder_is_made_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plimsoll-host/host.sock");
        let handout = listen(&path).unwrap();
        assert!(reach(&path).is_ok());
        drop(handout);
        assert!(listen(&dir.path().join("no/such/host.sock")).is_err());
    }
}
