//! `plimsoll fs`, and what the commands of the file system share.

use crate::alone::{lock, options};
use crate::client::print_json;
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Subcommand};
use plimsoll_fs::ioctl::SYNC;
use plimsoll_fs::{BLOCK, FileDisk, Fs, Options, Stamp};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{NoArg, ioctl};
use serde_json::json;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Show a file system's layout, space and logs, or make its files durable
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll fs info fs.img --json")]
pub struct FsCommand {
    #[command(subcommand)]
    command: FsCommands,
}

#[derive(Subcommand)]
enum FsCommands {
    /// Show layout, space and logs of a file system that isn't mounted
    Info(Info),
    Sync(Sync),
}

#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll fs info fs.img")]
struct Info {
    /// A file or a block device.
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Make all files of a mounted file system durable
///
/// `sync` and `sync -f` don't: the kernel doesn't forward them.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll fs sync /mnt")]
struct Sync {
    /// A file or a directory of the file system.
    #[arg(value_name = "PATH")]
    path: PathBuf,
}

/// The present time.
pub fn now() -> Stamp {
    let d = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (d.as_secs() as i64, d.subsec_nanos())
}

/// A random number.
pub fn random() -> u64 {
    let (a, b) = uuid::Uuid::new_v4().as_u64_pair();
    // Each half has bits that say what kind of a UUID it is.
    a ^ b
}

/// Whole blocks of a file or a block device.
pub fn blocks_of(mut file: &File) -> Result<u64> {
    Ok(file.seek(SeekFrom::End(0)).context("find its size")? / BLOCK as u64)
}

/// Opens a device, and locks it against other commands of the file system.
pub fn open(path: &Path, write: bool) -> Result<Arc<FileDisk>> {
    let file =
        options(path, write, OFlags::empty()).open(path).with_context(|| format!("{}: open it", path.display()))?;
    lock(&file, path, write)?;
    let blocks = blocks_of(&file)?;
    Ok(Arc::new(FileDisk::new(file, blocks * BLOCK as u64)))
}

impl FsCommand {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        match self.command {
            FsCommands::Info(info) => info.run(),
            FsCommands::Sync(sync) => sync.run(),
        }
    }
}

impl Sync {
    fn run(self) -> Result<()> {
        let path = self.path.display();
        // Opening a pipe would wait, and a driver may have an ioctl of this number.
        let kind = std::fs::metadata(&self.path).with_context(|| format!("{path}: look at it"))?;
        ensure!(kind.is_file() || kind.is_dir(), "{path}: is neither a file nor a directory");
        let file = File::open(&self.path).with_context(|| format!("{path}: open it"))?;
        // SAFETY: by its number the ioctl reads and writes no memory.
        let result = unsafe { ioctl(&file, NoArg::<{ SYNC }>::new()) };
        match result {
            Err(Errno::NOTTY) => bail!("{path}: isn't in a file system that `plimsoll mount` serves"),
            result => result.with_context(|| format!("{path}: make the file system durable")),
        }
    }
}

impl Info {
    fn run(self) -> Result<()> {
        let disk = open(&self.device, false)?;
        let options = Options { read_only: true, ..Options::default() };
        let fs =
            Fs::mount(disk, options).with_context(|| format!("{}: read the file system", self.device.display()))?;
        let i = fs.info();
        let rows = [
            ("groups", i.groups),
            ("logs", i.logs),
            ("log_blocks", i.log_blocks),
            ("log_blocks_used", i.log_blocks_used),
            ("logged_blocks", i.logged_blocks),
            ("anywhere_blocks", i.anywhere_blocks),
            ("records", i.seq),
            ("blocks", i.space.blocks),
            ("blocks_free", i.space.blocks_free),
            ("inodes", i.space.inodes),
            ("inodes_free", i.space.inodes_free),
        ];
        if self.json {
            let mut object =
                json!({ "id": format!("{:016x}", i.fs_id), "journal": i.mode.name(), "block_bytes": BLOCK });
            rows.iter().for_each(|(name, value)| object[name] = json!(value));
            return print_json(&object);
        }
        println!("{:<16} {:016x}", "id", i.fs_id);
        println!("{:<16} {}", "journal", i.mode.name());
        rows.iter().for_each(|(name, value)| println!("{:<16} {value}", name.replace('_', " ")));
        Ok(())
    }
}
