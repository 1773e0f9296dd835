//! `plimsoll mkfs`.

use super::fs::{blocks_of, now, random};
use crate::alone::{is_blank, lock, options};
use anyhow::{Context, Result, bail};
use clap::Args;
use plimsoll_fs::{BLOCK, FileDisk, Format, Mode};
use plimsoll_node::config::ByteSize;
use rustix::fs::OFlags;
use std::path::PathBuf;
use std::sync::Arc;

/// Make a file system with scattered journals. ALL DATA on the device is lost
#[derive(Args)]
#[command(
    after_help = "The format is still young: keep no only copy on it (docs/guides/fs.md).\n\nExample:\n  plimsoll mkfs fs.img --size 1GiB --journal manylogs"
)]
pub struct Mkfs {
    /// A file or a block device.
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// Create the file, or make it this large.
    #[arg(long)]
    size: Option<ByteSize>,
    /// Journaling mode: ordered, data, adaptive, manylogs.
    #[arg(long, default_value = "manylogs", value_parser = mode)]
    journal: Mode,
    /// Size of a block group [default: 100MiB].
    #[arg(long, value_name = "SIZE")]
    group_size: Option<ByteSize>,
    /// Size of each group's log (manylogs) or of the journal [default: a tenth of the group; 128MiB].
    #[arg(long, value_name = "SIZE")]
    log_size: Option<ByteSize>,
    /// Inodes of a group, a multiple of 8 [default: one per 32KiB].
    #[arg(long, value_name = "N")]
    inodes_per_group: Option<u64>,
    /// Longest run of a file's dirty bytes that goes to a log.
    #[arg(long, default_value = "32KiB", value_name = "SIZE")]
    logged_write_size: ByteSize,
    /// Overwrite a file system that is there.
    #[arg(long)]
    force: bool,
}

/// A journaling mode by its name.
pub fn mode(name: &str) -> Result<Mode, String> {
    Mode::named(name).ok_or_else(|| "use ordered, data, adaptive or manylogs".to_owned())
}

impl Mkfs {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let path = self.device.display();
        let file = options(&self.device, true, OFlags::empty()).create(self.size.is_some()).open(&self.device);
        let file = file.with_context(|| format!("{path}: open it for writing (--size creates a file)"))?;
        lock(&file, &self.device, true)?;
        if !self.force && !is_blank(&file).with_context(|| format!("{path}: read its ends"))? {
            bail!("{path}: it isn't empty; add --force to lose what is there");
        }
        if let Some(size) = self.size {
            file.set_len(size.0).with_context(|| format!("{path}: make it {} bytes", size.0))?;
        }
        let bytes = blocks_of(&file)? * BLOCK as u64;
        let disk = Arc::new(FileDisk::new(file, bytes));
        let fs_id = random();
        let mut format = Format::new(fs_id, self.journal, bytes / BLOCK as u64);
        format.hash_seed = random();
        let in_blocks = |size: ByteSize| size.0 / BLOCK as u64;
        if let Some(size) = self.group_size {
            format.group_blocks = in_blocks(size);
            format.log_blocks = format.group_blocks / 10;
        }
        if let Some(size) = self.log_size {
            (format.log_blocks, format.journal_blocks) = (in_blocks(size), in_blocks(size));
        }
        format.inodes_per_group = self.inodes_per_group.unwrap_or(format.inodes_per_group);
        format.logged_write_blocks = in_blocks(self.logged_write_size);
        plimsoll_fs::mkfs(disk, format, now()).with_context(|| format!("{path}: make a file system"))?;
        println!("{path}: file system {fs_id:016x}, {bytes} bytes, journal {}", self.journal.name());
        Ok(())
    }
}
