//! Ends of calls, for an event loop: the loop watches a descriptor, and takes them on its own thread.

use crate::trouble::Trouble;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use tokio::task::AbortHandle;

/// Outcome of a call: its data, empty for a change.
pub type Outcome = Result<Vec<u8>, Trouble>;

/// Ended calls, by their caller's number.
pub struct Ended {
    /// Readable while there are calls that haven't been taken.
    event: OwnedFd,
    calls: Mutex<Vec<(u64, Outcome)>>,
}

impl Ended {
    /// Adds one. It needs no lock of Python's, so that the client's thread never waits for a Python thread.
    fn add(&self, number: u64, outcome: Outcome) {
        let mut calls = self.calls.lock().expect("no panic while held");
        calls.push((number, outcome));
        if calls.len() == 1 {
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes()); // fails only where 2^64 - 1 weren't read
        }
    }
}

/// A call that is to end, in whichever way: also when its volume is closed, which drops it.
pub struct Ending {
    to: Arc<Ended>,
    number: u64,
    outcome: Option<Outcome>,
}

impl Ending {
    /// Its end, when it comes, is the call of this `number`.
    pub fn new(to: &Completions, number: u64) -> Ending {
        Ending { to: to.ended.clone(), number, outcome: None }
    }

    /// Ends it.
    pub fn with(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.to.add(self.number, self.outcome.take().unwrap_or(Err(Trouble::Closed)));
    }
}

/// The calls of one event loop.
#[pyclass(frozen)]
pub struct Completions {
    ended: Arc<Ended>,
}

#[pymethods]
impl Completions {
    #[new]
    fn new() -> PyResult<Completions> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let event = event.map_err(|e| PyOSError::new_err((e.raw_os_error(), "no eventfd for the event loop")))?;
        Ok(Completions { ended: Arc::new(Ended { event, calls: Mutex::new(Vec::new()) }) })
    }

    /// The descriptor that is readable when a call has ended.
    fn fileno(&self) -> i32 {
        self.ended.event.as_raw_fd()
    }

    /// Takes all that have ended: (number, data or None, error or None).
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let calls = {
            let mut calls = self.ended.calls.lock().expect("no panic while held");
            let _ = rustix::io::read(&self.ended.event, &mut [0; 8]); // nothing is there if nothing has ended
            std::mem::take(&mut *calls)
        };
        let list = PyList::empty(py);
        for (number, outcome) in calls {
            match outcome {
                Ok(data) => list.append((number, Bytes { data }, py.None()))?,
                Err(e) => list.append((number, py.None(), e.raised(py)))?,
            }
        }
        Ok(list)
    }
}

/// Data of a read that nobody has copied yet.
#[pyclass(frozen)]
pub struct Bytes {
    data: Vec<u8>,
}

#[pymethods]
impl Bytes {
    /// As bytes.
    fn bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.data)
    }

    /// Copied into a buffer of the same length.
    fn into_buffer(&self, py: Python<'_>, buffer: PyBuffer<u8>) -> PyResult<usize> {
        buffer.copy_from_slice(py, &self.data)?;
        Ok(self.data.len())
    }
}

/// A call under way.
#[pyclass(frozen)]
pub struct Started {
    pub task: AbortHandle,
}

#[pymethods]
impl Started {
    /// Withdraws it, where it is a read.
    fn cancel(&self) {
        self.task.abort();
    }
}
