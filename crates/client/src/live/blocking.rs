//! A volume for callers without a runtime: a thread of its own carries the connections, callers' threads only wait.

use super::address::Address;
use super::error::OpenError;
use super::home::Home;
use super::options::Options;
use super::volume::Volume;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// See the module's documentation. It is of use in the process that opened it only: a child that was forked has no such thread. There reads
/// fail, and dropping it does nothing.
pub struct Blocking {
    home: Home,
    volume: Option<Volume>,
    handle: Handle,
    /// Ends the thread when it is dropped.
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Blocking {
    fn drop(&mut self) {
        if self.home.is_left() {
            std::mem::forget((self.volume.take(), self.end.take(), self.thread.take(), self.handle.clone()));
            return;
        }
        self.volume = None;
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has nothing to say
        }
    }
}

impl Blocking {
    /// As [`Volume::open`].
    ///
    /// # Errors
    /// As [`Volume::open`], or if no thread can be made.
    pub fn open(replicas: &[Address], options: &Options) -> Result<Blocking, OpenError> {
        Blocking::running(Volume::open(replicas, options))
    }

    /// As [`Volume::open_set`].
    ///
    /// # Errors
    /// As [`Volume::open_set`], or if no thread can be made.
    pub fn open_set(groups: &[Vec<Address>], object_bytes: u64, options: &Options) -> Result<Blocking, OpenError> {
        Blocking::running(Volume::open_set(groups, object_bytes, options))
    }

    fn running(open: impl Future<Output = Result<Volume, OpenError>>) -> Result<Blocking, OpenError> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(OpenError::Thread)?;
        let handle = runtime.handle().clone();
        let (end, ends) = oneshot::channel::<()>();
        let run = move || {
            // An error is the end, too: the sender was dropped.
            let _ = runtime.block_on(ends);
            // A look-up of a name, or a read of a certificate, may take for ever: it isn't waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("plimsoll-client".into()).spawn(run);
        let thread = Some(thread.map_err(OpenError::Thread)?);
        let mut opened = Blocking { home: Home::here(), volume: None, handle, end: Some(end), thread };
        opened.volume = Some(opened.handle.block_on(open)?);
        Ok(opened)
    }

    /// Returns whether this process was forked from the one that opened it.
    pub fn is_forked(&self) -> bool {
        self.home.is_left()
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        self.volume.as_ref().expect("set when opened")
    }

    /// Waits on the calling thread. A child that was forked must not call it ([`Blocking::is_forked`]): another thread may have held a lock of the
    /// runtime at the fork.
    ///
    /// # Panics
    /// Inside of a runtime, which would stand still.
    pub fn wait<T>(&self, what: impl Future<Output = T>) -> T {
        self.handle.block_on(what)
    }

    /// Starts a task on the volume's thread, which a child that was forked doesn't have. The returned handle aborts it.
    pub fn spawn(&self, what: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.handle.spawn(what).abort_handle()
    }
}
