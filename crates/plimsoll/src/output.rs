//! Files that commands write, and standard output.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Standard output couldn't be written to. Its own type tells a reader of a pipe that has gone, which is no fault, from a peer of a
/// socket that has.
#[derive(Debug)]
pub struct Unwritten(pub std::io::Error);

impl std::fmt::Display for Unwritten {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{UNWRITTEN}{}", self.0)
    }
}

impl std::error::Error for Unwritten {}

/// Begin of the message that standard output can't be written to.
pub const UNWRITTEN: &str = "cannot write to standard output: ";

/// Writes a text to standard output.
///
/// # Errors
/// [`Unwritten`].
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    Ok(out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Unwritten)?)
}

/// Writes a text to a new file, durably, or to stdout for `-`.
///
/// # Errors
/// If the file exists or can't be written.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return print(text);
    }
    if path.exists() {
        bail!("{}: exists already: choose another --out", path.display());
    }
    let write = || {
        let mut file = File::options().write(true).create_new(true).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a file, or stdin for `-`.
///
/// # Errors
/// If it can't be read, or is no text.
pub fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        return Ok(std::io::read_to_string(std::io::stdin().lock())?);
    }
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
