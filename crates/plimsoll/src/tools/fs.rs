//! `plimsoll fs info`, and what the commands of the file system share.

use crate::alone::{lock, options};
use crate::client::print_json;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use plimsoll_fs::{BLOCK, FileDisk, Fs, Options, Stamp};
use rustix::fs::OFlags;
use serde_json::json;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Show a file system's layout, space and logs
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
        let FsCommands::Info(info) = self.command;
        let disk = open(&info.device, false)?;
        let options = Options { read_only: true, ..Options::default() };
        let fs =
            Fs::mount(disk, options).with_context(|| format!("{}: read the file system", info.device.display()))?;
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
        if info.json {
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
