//! The client for Python; `python/plimsoll/__init__.py` has its documentation for users.

mod completions;
mod trouble;
mod volume;

use pyo3::prelude::*;

#[pymodule]
fn _plimsoll(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<volume::Volume>()?;
    m.add_class::<completions::Completions>()?;
    m.add_class::<completions::Started>()?;
    m.add_class::<completions::Bytes>()?;
    m.add("OpenError", m.py().get_type::<trouble::OpenError>())?;
    m.add("ReadError", m.py().get_type::<trouble::ReadFailed>())?;
    m.add("ReadTimeout", m.py().get_type::<trouble::ReadTimeout>())?;
    m.add("WriteError", m.py().get_type::<trouble::WriteFailed>())
}
