//! The files that are served.

use anyhow::{Context, Result, bail};
use plimsoll_base::Rng;
use plimsoll_replay::workload::web::{FileSizes, place_file};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Files that a folder may have.
const FILES_MAX: usize = 1 << 20;

/// One file, open.
pub struct Served {
    /// Its name, as a URL's path without the slash.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Begin on the modelled disk.
    pub offset: u64,
    /// The file's bytes.
    pub file: File,
}

/// Writes `count` files of web servers' sizes, named by numbers, up to `largest` bytes each; their content is any.
pub fn make(root: &Path, count: usize, largest: u64, seed: u64) -> Result<()> {
    fs::create_dir_all(root).with_context(|| format!("cannot make {}", root.display()))?;
    if fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))?.next().is_some() {
        bail!("{}: isn't empty: name a new folder for --make", root.display());
    }
    let mut rng = Rng::new(seed, "web files");
    let content: Vec<u8> = (0..1 << 17).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    for n in 0..count {
        let (name, bytes) = (format!("{n:06}"), FileSizes::OPTUNE.draw(largest, &mut rng));
        let path = root.join(&name);
        write(&path, &name, bytes, &content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Header that tells a file from the others.
fn write(path: &Path, name: &str, bytes: u64, content: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    let head = name.len().min(bytes as usize);
    file.write_all(&name.as_bytes()[..head])?;
    let mut left = bytes - head as u64;
    while left > 0 {
        let part = left.min(content.len() as u64);
        file.write_all(&content[..part as usize])?;
        left -= part;
    }
    Ok(())
}

/// All plain files of a folder, by name, each somewhere on a disk of `disk_bytes`.
pub fn open(root: &Path, disk_bytes: u64, seed: u64) -> Result<Vec<Served>> {
    let at = || format!("cannot list {}", root.display());
    let mut names: Vec<(String, PathBuf)> = Vec::new();
    for entry in fs::read_dir(root).with_context(at)? {
        let entry = entry.with_context(at)?;
        if let Ok(name) = entry.file_name().into_string()
            && entry.file_type().with_context(at)?.is_file()
        {
            names.push((name, entry.path()));
        }
        if names.len() > FILES_MAX {
            bail!("{}: has more than {FILES_MAX} files", root.display());
        }
    }
    if names.is_empty() {
        bail!("{}: has no files to serve: --make writes some", root.display());
    }
    names.sort();
    let mut rng = Rng::new(seed, "web places");
    let one = |(name, path): (String, PathBuf)| -> Result<Served> {
        let about = || format!("cannot open {}", path.display());
        let file = File::open(&path).with_context(about)?;
        let bytes = file.metadata().with_context(about)?.len();
        Ok(Served { name, bytes, offset: place_file(disk_bytes, &mut rng), file })
    };
    names.into_iter().map(one).collect()
}
