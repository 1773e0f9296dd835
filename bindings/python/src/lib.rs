//! The client for Python; `python/plimsoll/__init__.py` says what it is for its users.

use plimsoll_base::Span;
use plimsoll_client::PolicyKind;
use plimsoll_client::live::{Address, Blocking, LinkState, Options, ReadError};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};
use std::sync::{Arc, RwLock};
use std::time::Duration;

create_exception!(plimsoll, OpenError, PyException, "A volume can't be opened.");
create_exception!(plimsoll, ReadFailed, PyException, "No replica answered.");
create_exception!(plimsoll, ReadTimeout, PyTimeoutError, "The read's limit came.");

/// What is opened: a volume's replicas, or those of each group of a set.
#[derive(FromPyObject)]
enum Replicas {
    One(Vec<String>),
    Groups(Vec<Vec<String>>),
}

/// A volume over its replicas, or a set of objects.
#[pyclass(subclass, frozen)]
struct Volume {
    open: RwLock<Option<Arc<Blocking>>>,
}

fn seconds(name: &str, s: f64) -> PyResult<Duration> {
    let bad = |_| PyValueError::new_err(format!("{name}={s}: no time"));
    Duration::try_from_secs_f64(s).map_err(bad)
}

impl Volume {
    fn open(&self) -> PyResult<Arc<Blocking>> {
        let open = self.open.read().expect("no panic while held").clone();
        open.ok_or_else(|| PyValueError::new_err("the volume is closed"))
    }
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (replicas, *, policy="mitt+wait", deadline=0.02, limit=30.0, stall=5.0, connect=5.0, monotonic=true, foreign=false, object_bytes=None))]
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
        object_bytes: Option<u64>,
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
        let opened = match (&replicas, object_bytes) {
            (Replicas::One(replicas), None) => {
                let replicas = addresses(replicas)?;
                py.detach(|| Blocking::open(&replicas, &options))
            }
            (Replicas::Groups(groups), Some(object_bytes)) => {
                let groups = groups.iter().map(addresses).collect::<PyResult<Vec<_>>>()?;
                py.detach(|| Blocking::open_set(&groups, object_bytes, &options))
            }
            _ => {
                let what = "a set has groups of replicas and object_bytes, a volume replicas only";
                return Err(PyValueError::new_err(what));
            }
        };
        let opened = opened.map_err(|e| OpenError::new_err(e.to_string()))?;
        Ok(Volume { open: RwLock::new(Some(Arc::new(opened))) })
    }

    /// Its size in bytes.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        Ok(self.open()?.volume().size_bytes())
    }

    /// Reads `length` bytes at `offset`; `deadline` and `limit` in seconds.
    #[pyo3(signature = (offset, length, deadline=None, limit=None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u64,
        deadline: Option<f64>,
        limit: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let open = self.open()?;
        let end = offset.checked_add(length).ok_or_else(|| PyValueError::new_err("the range ends beyond 2^64"))?;
        let deadline = deadline.map(|s| seconds("deadline", s)).transpose()?;
        let limit = limit.map(|s| seconds("limit", s)).transpose()?;
        let outcome = py.detach(|| {
            open.wait(async {
                match limit {
                    None => open.volume().read(offset..end, deadline).await,
                    Some(limit) => open.volume().read_within(offset..end, deadline, limit).await,
                }
            })
        });
        let data = outcome.map_err(|e| match &e {
            ReadError::Range(_) | ReadError::Deadline(_) => PyValueError::new_err(e.to_string()),
            ReadError::Limit { .. } => ReadTimeout::new_err(e.to_string()),
            ReadError::Failed(_) => ReadFailed::new_err(e.to_string()),
        })?;
        Ok(PyBytes::new(py, &data))
    }

    /// What was counted since it was opened.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let c = self.open()?.volume().counts();
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

    /// How its replicas are.
    fn replicas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for r in self.open()?.volume().replicas() {
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

    /// Closes it; reads that are under way end first.
    fn close(&self, py: Python<'_>) {
        let open = self.open.write().expect("no panic while held").take();
        py.detach(|| drop(open));
    }
}

#[pymodule]
fn _plimsoll(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Volume>()?;
    m.add("OpenError", m.py().get_type::<OpenError>())?;
    m.add("ReadError", m.py().get_type::<ReadFailed>())?;
    m.add("ReadTimeout", m.py().get_type::<ReadTimeout>())
}
