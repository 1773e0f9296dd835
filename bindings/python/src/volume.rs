//! A volume over its replicas, or a set of objects, for callers that wait and for event loops.

use crate::completions::{Completions, Ending, Started};
use crate::trouble::{Trouble, unopened};
use plimsoll_base::Span;
use plimsoll_client::PolicyKind;
use plimsoll_client::live::{Address, Ask, Blocking, LinkState, Options, WriteError, Writer};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::ops::Range;
use std::sync::{Arc, RwLock};
use std::time::Duration;

/// Addresses of a volume's replicas, or of those of each group of a set.
#[derive(FromPyObject)]
enum Replicas {
    One(Vec<String>),
    Groups(Vec<Vec<String>>),
}

/// Bytes to be written. Immutable bytes are sent from their place; other buffers are copied first, as their owner may change them.
#[derive(FromPyObject)]
enum Source {
    Bytes(PyBackedBytes),
    Buffer(PyBuffer<u8>),
}

/// An offset or a length. One that can't be is a `ValueError`, as one is that the volume doesn't have.
struct Bytes(u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Bytes {
    type Error = PyErr;

    fn extract(number: Borrowed<'a, 'py, PyAny>) -> PyResult<Bytes> {
        number.extract().map(Bytes).map_err(|e| match e.is_instance_of::<PyOverflowError>(number.py()) {
            true => PyValueError::new_err(format!("{}: offsets and lengths are from 0 to below 2^64", *number)),
            false => e,
        })
    }
}

enum Payload {
    Bytes(PyBackedBytes),
    Copied(Vec<u8>),
}

impl Payload {
    fn of(py: Python<'_>, source: Source) -> PyResult<Payload> {
        Ok(match source {
            Source::Bytes(bytes) => Payload::Bytes(bytes),
            Source::Buffer(buffer) => Payload::Copied(buffer.to_vec(py)?),
        })
    }

    fn as_slice(&self) -> &[u8] {
        match self {
            Payload::Bytes(bytes) => bytes,
            Payload::Copied(bytes) => bytes,
        }
    }
}

enum Change {
    Write(u64, Payload),
    Trim(u64, u64),
    Flush,
}

struct Open {
    /// Before `client`, whose thread carries its connections.
    writer: Option<Arc<Writer>>,
    client: Blocking,
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.client.is_forked() {
            std::mem::forget(self.writer.take());
        } else if let Some(writer) = self.writer.take() {
            self.client.wait(writer.close());
        }
    }
}

/// A share of what is open, held by a thread that is attached to Python. The last one waits for nodes and a thread: Python's other threads
/// go on meanwhile.
struct Share(Option<Arc<Open>>);

impl std::ops::Deref for Share {
    type Target = Open;

    fn deref(&self) -> &Open {
        self.0.as_ref().expect("only its end takes it")
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut last = self.0.take().and_then(Arc::into_inner);
        if last.is_some() {
            // None: the interpreter has ended, and nobody is held up by what is dropped here.
            Python::try_attach(|py| py.detach(|| drop(last.take())));
        }
    }
}

impl Open {
    fn writer(&self) -> PyResult<Arc<Writer>> {
        let read_only = || PyValueError::new_err("the volume is open for reads: open it with writable=True");
        self.writer.clone().ok_or_else(read_only)
    }
}

/// A volume over its replicas, or a set of objects.
#[pyclass(subclass, frozen)]
pub struct Volume {
    open: RwLock<Option<Share>>,
    process: u32,
}

fn seconds(name: &str, s: f64) -> PyResult<Duration> {
    let bad = |_| PyValueError::new_err(format!("{name}={s}: no time"));
    Duration::try_from_secs_f64(s).map_err(bad)
}

fn asked(deadline: Option<f64>, limit: Option<f64>, refusable: bool) -> PyResult<Ask> {
    let deadline = deadline.map(|s| seconds("deadline", s)).transpose()?;
    let limit = limit.map(|s| seconds("limit", s)).transpose()?;
    Ok(Ask { deadline, limit, refusable })
}

fn range(Bytes(offset): Bytes, Bytes(length): Bytes) -> PyResult<Range<u64>> {
    let end = offset.checked_add(length).ok_or_else(|| PyValueError::new_err("the range ends beyond 2^64"))?;
    Ok(offset..end)
}

async fn change(writer: &Writer, change: &Change) -> Result<(), WriteError> {
    match change {
        Change::Write(offset, payload) => writer.write(*offset, payload.as_slice()).await,
        Change::Trim(offset, length) => writer.trim(*offset, *length).await,
        Change::Flush => writer.flush().await,
    }
}

impl Volume {
    fn is_forked(&self) -> bool {
        std::process::id() != self.process
    }

    fn open(&self) -> PyResult<Share> {
        if self.is_forked() {
            // First of all: another thread may have held a lock when this process was forked.
            return Err(PyValueError::new_err(
                "the volume was opened by another process, from which this one was forked: open it in this process",
            ));
        }
        let open = self.open.read().expect("no panic while held");
        let share = open.as_ref().and_then(|share| share.0.clone());
        share.map(|open| Share(Some(open))).ok_or_else(|| PyValueError::new_err("the volume is closed"))
    }

    fn read_now(&self, py: Python<'_>, range: Range<u64>, ask: Ask) -> PyResult<Vec<u8>> {
        let open = self.open()?;
        let client = &open.client;
        let outcome = py.detach(|| client.wait(client.volume().ask(range, ask)));
        outcome.map_err(|e| Trouble::Read(e).raised(py))
    }

    fn change_now(&self, py: Python<'_>, what: Change) -> PyResult<()> {
        let open = self.open()?;
        let writer = open.writer()?;
        let client = &open.client;
        let outcome = py.detach(|| client.wait(change(&writer, &what)));
        outcome.map_err(|e| Trouble::Write(e).raised(py))
    }

    /// Starts a change on the client's thread. It runs to its end, as half a change would end the writer.
    fn change_soon(&self, what: Change, to: &Completions, number: u64) -> PyResult<()> {
        let open = self.open()?;
        let (writer, ending) = (open.writer()?, Ending::new(to, number));
        open.client.spawn(async move {
            let outcome = change(&writer, &what).await.map(|()| Vec::new()).map_err(Trouble::Write);
            drop(writer); // before its caller hears of the end, and closes the volume
            ending.with(outcome);
        });
        Ok(())
    }
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (replicas, *, policy="mitt+wait", deadline=0.02, limit=30.0, stall=5.0, connect=5.0, monotonic=true, foreign=false, object_bytes=None, writable=false))]
    #[allow(clippy::too_many_arguments)] // they are keywords
    fn new(
        py: Python<'_>,
        replicas: Replicas,
        policy: &str,
        deadline: f64,
        limit: f64,
        stall: f64,
        connect: f64,
        monotonic: bool,
        foreign: bool,
        object_bytes: Option<Bytes>,
        writable: bool,
    ) -> PyResult<Volume> {
        let value = |e: &dyn std::fmt::Display| PyValueError::new_err(e.to_string());
        let addresses = |replicas: &Vec<String>| {
            replicas.iter().map(|r| r.parse::<Address>().map_err(|e| value(&e))).collect::<PyResult<Vec<_>>>()
        };
        let mut options = Options {
            policy: policy.parse::<PolicyKind>().map_err(|e| value(&e))?,
            limit: seconds("limit", limit)?,
            stall: seconds("stall", stall)?,
            connect: seconds("connect", connect)?,
            monotonic,
            foreign,
            ..Options::default()
        };
        options.settings.limit = Span::from(seconds("deadline", deadline)?);
        let opened = match (&replicas, &object_bytes) {
            (Replicas::One(replicas), None) => {
                let replicas = addresses(replicas)?;
                if writable && foreign {
                    return Err(PyValueError::new_err(
                        "foreign servers don't mark replicas that lack a write: read only",
                    ));
                }
                py.detach(|| {
                    let client = Blocking::open(&replicas, &options)?;
                    let writer = if writable { Some(client.wait(Writer::open(&replicas, &options))?) } else { None };
                    Ok(Open { writer: writer.map(Arc::new), client })
                })
            }
            (Replicas::Groups(_), Some(_)) if writable => {
                return Err(PyValueError::new_err(
                    "a set of objects is read only: open the volume of a group to write it",
                ));
            }
            (Replicas::Groups(groups), Some(Bytes(object_bytes))) => {
                let groups = groups.iter().map(addresses).collect::<PyResult<Vec<_>>>()?;
                let open = || Ok(Open { writer: None, client: Blocking::open_set(&groups, *object_bytes, &options)? });
                py.detach(open)
            }
            _ => {
                let what = "a set has groups of replicas and object_bytes, a volume replicas only";
                return Err(PyValueError::new_err(what));
            }
        };
        let opened = opened.map_err(unopened)?;
        Ok(Volume { open: RwLock::new(Some(Share(Some(Arc::new(opened))))), process: std::process::id() })
    }

    /// Its size in bytes.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        Ok(self.open()?.client.volume().size_bytes())
    }

    /// Reads `length` bytes at `offset`; `deadline` and `limit` in seconds.
    #[pyo3(signature = (offset, length, deadline=None, limit=None, *, refusable=false))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: Bytes,
        length: Bytes,
        deadline: Option<f64>,
        limit: Option<f64>,
        refusable: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let data = self.read_now(py, range(offset, length)?, asked(deadline, limit, refusable)?)?;
        Ok(PyBytes::new(py, &data))
    }

    /// Fills a buffer of bytes from `offset` on.
    #[pyo3(signature = (offset, buffer, deadline=None, limit=None, *, refusable=false))]
    fn readinto(
        &self,
        py: Python<'_>,
        offset: Bytes,
        buffer: PyBuffer<u8>,
        deadline: Option<f64>,
        limit: Option<f64>,
        refusable: bool,
    ) -> PyResult<usize> {
        if buffer.readonly() {
            return Err(PyValueError::new_err("the buffer is read only"));
        }
        let length = buffer.len_bytes();
        let data = self.read_now(py, range(offset, Bytes(length as u64))?, asked(deadline, limit, refusable)?)?;
        buffer.copy_from_slice(py, &data)?;
        Ok(length)
    }

    /// Writes a buffer's bytes at `offset` on all replicas.
    fn write(&self, py: Python<'_>, offset: Bytes, data: Source) -> PyResult<()> {
        let payload = Payload::of(py, data)?;
        self.change_now(py, Change::Write(offset.0, payload))
    }

    /// Gives up a range's content on all replicas.
    fn trim(&self, py: Python<'_>, offset: Bytes, length: Bytes) -> PyResult<()> {
        self.change_now(py, Change::Trim(offset.0, length.0))
    }

    /// Makes everything durable that was written before.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.change_now(py, Change::Flush)
    }

    #[pyo3(signature = (to, number, offset, length, deadline, limit, refusable))]
    #[allow(clippy::too_many_arguments)] // those of a read, and where its end is told
    fn _start_read(
        &self,
        to: &Completions,
        number: u64,
        offset: Bytes,
        length: Bytes,
        deadline: Option<f64>,
        limit: Option<f64>,
        refusable: bool,
    ) -> PyResult<Started> {
        let open = self.open()?;
        let (range, ask) = (range(offset, length)?, asked(deadline, limit, refusable)?);
        let (volume, ending) = (open.client.volume().clone(), Ending::new(to, number));
        let task = open.client.spawn(async move {
            let outcome = volume.ask(range, ask).await.map_err(Trouble::Read);
            drop(volume);
            ending.with(outcome);
        });
        Ok(Started { task })
    }

    fn _start_write(&self, py: Python<'_>, to: &Completions, number: u64, offset: Bytes, data: Source) -> PyResult<()> {
        self.change_soon(Change::Write(offset.0, Payload::of(py, data)?), to, number)
    }

    fn _start_trim(&self, to: &Completions, number: u64, offset: Bytes, length: Bytes) -> PyResult<()> {
        self.change_soon(Change::Trim(offset.0, length.0), to, number)
    }

    fn _start_flush(&self, to: &Completions, number: u64) -> PyResult<()> {
        self.change_soon(Change::Flush, to, number)
    }

    /// Counts since it was opened.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let c = self.open()?.client.volume().counts();
        let dict = PyDict::new(py);
        for (name, n) in [
            ("gets", c.gets),
            ("failed", c.failed),
            ("tries", c.tries),
            ("busy", c.busy),
            ("errors", c.errors),
            ("cancels", c.cancels),
            ("probes", c.probes),
        ] {
            dict.set_item(name, n)?;
        }
        Ok(dict)
    }

    /// States of its replicas.
    fn replicas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for r in self.open()?.client.volume().replicas() {
            let (state, why) = match r.state {
                LinkState::Opening => ("opening", String::new()),
                LinkState::Down(why) => ("down", why),
                LinkState::Behind(why) => ("behind", why),
                LinkState::Up => ("up", String::new()),
            };
            let dict = PyDict::new(py);
            dict.set_item("address", r.address)?;
            dict.set_item("state", state)?;
            dict.set_item("why", why)?;
            dict.set_item("generation", r.generation)?;
            list.append(dict)?;
        }
        Ok(list)
    }

    /// Closes it, and waits until its writer has ended in order, whoever else still uses it. Reads of other threads that have begun go on to their
    /// end, and the connections close after the last of them. A change that is under way ends, too; those that wait for it fail. Calls of
    /// event loops end: reads with ValueError, changes with their outcome. In a child that was forked it does nothing.
    fn close(&self, py: Python<'_>) {
        if !self.is_forked() {
            let open = self.open.write().expect("no panic while held").take();
            if let Some(open) = open {
                let Open { writer, client } = &*open;
                if let Some(writer) = writer {
                    py.detach(|| client.wait(writer.close()));
                }
            }
        }
    }
}
