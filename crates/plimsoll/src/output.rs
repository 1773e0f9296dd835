//! Files that commands write, and standard output.

use anyhow::{Context, Result, bail};
use plimsoll_store::{DeviceError, DeviceErrorKind, DeviceFile, Expect, ROLE_MAIN};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileTypeExt;
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

/// Refuses to have something replaced that is no earlier output: a block device, a file that a process has locked (a node's, a mount's),
/// a pool's device. A path without a file, or one that can't be looked at, is left to the write itself.
///
/// # Errors
/// If it is one of these.
pub fn may_be_replaced(path: &Path) -> Result<()> {
    let shown = path.display();
    let Ok(kind) = std::fs::metadata(path).map(|m| m.file_type()) else { return Ok(()) };
    if kind.is_block_device() {
        bail!("{shown}: is a block device: name a file to write to");
    }
    if !kind.is_file() {
        return Ok(());
    }
    if DeviceFile::is_in_use(path).unwrap_or(false) {
        bail!("{shown}: a process has it locked, as a node has its pools: name another file to write to");
    }
    let expect = Expect { pool_uuid: None, device_uuid: None, role: ROLE_MAIN.into() };
    let nobodys = |e: &DeviceError| {
        matches!(e.kind, DeviceErrorKind::Foreign | DeviceErrorKind::Blank | DeviceErrorKind::TooSmall { .. })
    };
    match DeviceFile::look(path, &expect) {
        Ok(Some(look)) if !look.found.as_ref().is_err_and(nobodys) => {
            bail!("{shown}: is a pool's device: name another file to write to")
        }
        _ => Ok(()),
    }
}

/// Writes a text to a file, in place of an earlier text.
///
/// # Errors
/// If something else than a text is there, or it can't be written.
pub fn write_over(path: &Path, text: &str) -> Result<()> {
    may_be_replaced(path)?;
    let is_file = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    let mut head = Vec::new();
    if is_file && File::open(path).and_then(|f| f.take(4096).read_to_end(&mut head)).is_ok() && head.contains(&0) {
        bail!("{}: is no text, so no earlier output: name another file to write to", path.display());
    }
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
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
