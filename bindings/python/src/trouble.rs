//! Errors, from the client's to Python's.

use plimsoll_client::live::{self, ReadError, WriteError};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyTimeoutError, PyValueError};
use pyo3::prelude::*;
use std::time::Duration;

create_exception!(plimsoll, OpenError, PyException, "A volume can't be opened.");
create_exception!(plimsoll, ReadFailed, PyException, "No replica answered.");
create_exception!(plimsoll, ReadTimeout, PyTimeoutError, "The read's limit came.");
create_exception!(plimsoll, WriteFailed, PyException, "Not all replicas have the change.");

/// A failure, on threads that have nothing to do with Python.
pub enum Trouble {
    Read(ReadError),
    Write(WriteError),
    /// The volume was closed first.
    Closed,
}

impl Trouble {
    /// The exception to be raised.
    pub fn raised(self, py: Python<'_>) -> PyErr {
        match self {
            Trouble::Closed => PyValueError::new_err("the volume was closed before the call had ended"),
            Trouble::Read(ReadError::Busy { wait, confidence_permille, .. }) => {
                busy(py, wait, confidence_permille).unwrap_or_else(|e| e)
            }
            Trouble::Read(e @ (ReadError::Range(_) | ReadError::Deadline(_) | ReadError::Forked)) => {
                PyValueError::new_err(e.to_string())
            }
            Trouble::Read(e @ ReadError::Limit { .. }) => ReadTimeout::new_err(e.to_string()),
            Trouble::Read(e @ ReadError::Failed(_)) => ReadFailed::new_err(e.to_string()),
            Trouble::Write(e @ WriteError::Range(_)) => PyValueError::new_err(e.to_string()),
            Trouble::Write(e @ (WriteError::Failed(_) | WriteError::Closed(_))) => WriteFailed::new_err(e.to_string()),
        }
    }
}

/// The exception for a volume that wasn't opened: arguments that make no sense, or its nodes.
pub fn unopened(e: live::OpenError) -> PyErr {
    match e {
        live::OpenError::Replicas(_)
        | live::OpenError::Twice(_)
        | live::OpenError::Deadline(_)
        | live::OpenError::Policy(_)
        | live::OpenError::Time(_) => PyValueError::new_err(e.to_string()),
        _ => OpenError::new_err(e.to_string()),
    }
}

/// The class is Python's: host mode raises the same one, and needs nothing that is compiled.
fn busy(py: Python<'_>, wait: Duration, confidence_permille: Option<u32>) -> PyResult<PyErr> {
    let class = py.import("plimsoll.host")?.getattr("Busy")?;
    let confidence = confidence_permille.map(|p| f64::from(p) / 1000.0);
    Ok(PyErr::from_value(class.call1((wait.as_secs_f64(), confidence))?))
}
