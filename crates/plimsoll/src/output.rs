//! Files that commands write.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Writes a text to a new file, durably, or to stdout for `-`.
///
/// # Errors
/// If the file exists or can't be written.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    if path == Path::new("-") {
        return Ok(std::io::stdout().lock().write_all(text.as_bytes())?);
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
