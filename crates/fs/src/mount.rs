//! A mount: the session with the kernel, the periodic work beside it, and its end.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;

use crate::front::Front;
use crate::shared::{Shared, Wake};
use crate::{Disk, Fs};

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Mount {
    /// Shown as the source in the list of mounts.
    pub source: String,
    /// Other users may use it.
    pub allow_other: bool,
    /// Threads that serve requests.
    pub threads: usize,
    /// No changes.
    pub read_only: bool,
}

/// A mounted file system, served by threads of its own.
pub struct Mounted {
    session: Option<std::thread::JoinHandle<io::Result<()>>>,
    at: PathBuf,
    shared: Arc<Shared>,
    tender: Option<std::thread::JoinHandle<()>>,
    end: std::sync::mpsc::Sender<Wake>,
}

/// Mounts a file system on a directory.
///
/// # Errors
/// If the kernel or `fusermount3` refuses.
pub fn mount(fs: Fs, disk: Arc<dyn Disk>, at: &Path, how: &Mount) -> io::Result<Mounted> {
    let (end, told) = std::sync::mpsc::channel();
    let shared = Arc::new(Shared::new(fs, disk, end.clone()));
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(how.source.clone()),
        MountOption::Subtype("plimsoll".into()),
        MountOption::DefaultPermissions,
        if how.read_only { MountOption::RO } else { MountOption::RW },
    ];
    if rustix::process::getuid().is_root() {
        config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
    }
    config.acl = if how.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(how.threads.max(1));
    config.clone_fd = how.threads > 1;
    // The process may have another folder when it unmounts.
    let at = std::path::absolute(at)?;
    let session = Session::new(Front::new(shared.clone()), &at, &config)?;
    let session = std::thread::spawn(move || session.run());
    let tended = shared.clone();
    let tender = std::thread::spawn(move || tended.tend_until_end(&told));
    Ok(Mounted { session: Some(session), at, shared, tender: Some(tender), end })
}

impl Mounted {
    /// Waits until somebody unmounts it, then makes all durable.
    ///
    /// # Errors
    /// If not all could be made durable.
    pub fn wait(mut self) -> io::Result<()> {
        let served = match self.session.take() {
            Some(session) => ended(session.join().map_err(|_| io::Error::other("a thread of the front panicked"))?),
            None => Ok(()),
        };
        self.close()?;
        served
    }

    /// Unmounts it from any thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { at: self.at.clone(), shared: self.shared.clone() }
    }

    /// It hears of nothing else: it holds a sender itself.
    fn end_tender(&self) {
        let _ = self.end.send(Wake::End); // the thread may have ended
    }

    fn close(&mut self) -> io::Result<()> {
        self.end_tender();
        if let Some(t) = self.tender.take() {
            t.join().map_err(|_| io::Error::other("the background thread panicked"))?;
        }
        let result = self.shared.lock().unmount();
        result.map_err(|e| io::Error::other(e.to_string()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.end_tender();
    }
}

/// Ends a mount, by `umount` or, for users other than root, `fusermount3`. (The library's own unmounter can be used once only.)
pub struct Unmounter {
    at: PathBuf,
    shared: Arc<Shared>,
}

impl Unmounter {
    /// Unmounts it; [`Mounted::wait`] then returns.
    ///
    /// # Errors
    /// If it is refused, as a program has a file or a folder of it open. It may be tried again.
    pub fn unmount(&self) -> io::Result<()> {
        self.run(&["umount"], &["fusermount3", "-u"])
    }

    /// Makes all durable, and takes the file system out of the folders' tree. It is served until the last program has closed its files.
    ///
    /// # Errors
    /// If not all could be made durable; it is detached all the same. If it is refused.
    pub fn detach(&self) -> io::Result<()> {
        let synced = self.shared.sync(None);
        self.run(&["umount", "--lazy"], &["fusermount3", "-u", "-z"])?;
        synced.map_err(|e| io::Error::other(format!("not all is durable: {e}")))
    }

    fn run(&self, of_root: &[&str], of_others: &[&str]) -> io::Result<()> {
        let words = if rustix::process::geteuid().is_root() { of_root } else { of_others };
        let said = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", words[0]));
        let done =
            Command::new(words[0]).args(&words[1..]).arg(&self.at).stdin(Stdio::null()).output().map_err(said)?;
        if done.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_string()))
    }
}

/// The end of a session. The kernel ends the connection at an unmount. A thread that is just reading a request then gets
/// `ECONNABORTED` and not `ENODEV`, which is as good an end.
fn ended(served: io::Result<()>) -> io::Result<()> {
    match served {
        Err(e) if e.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => Ok(()),
        served => served,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The race itself takes about ten unmounts of a busy mount: `make fs-conformance` meets it.
    #[test]
    fn a_connection_that_an_unmount_aborts_has_ended_well() {
        let error = |e: Errno| io::Error::from_raw_os_error(e.raw_os_error());
        assert!(ended(Err(error(Errno::CONNABORTED))).is_ok());
        assert_eq!(ended(Err(error(Errno::IO))).unwrap_err().raw_os_error(), Some(5));
    }
}
