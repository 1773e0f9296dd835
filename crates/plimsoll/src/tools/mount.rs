//! `plimsoll mount`.

use super::fs::{now, open, random};
use super::mkfs::mode;
use anyhow::{Context, Result};
use clap::Args;
use plimsoll_fs::mount::{Mount, mount};
use plimsoll_fs::{Fs, Mode, Options};
use std::path::PathBuf;

/// Mount a file system through FUSE, and serve it until it is unmounted
///
/// SIGINT and SIGTERM unmount it, as `umount DIR` does. While a program has files of it open that is refused, and it goes on; a second signal then
/// makes all durable and detaches it: programs may use their open files until they close them.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll mount fs.img /mnt --anywhere '*.wal' --anywhere 'commitlog/*'")]
pub struct MountCommand {
    /// A file or a block device.
    #[arg(value_name = "DEVICE")]
    device: PathBuf,
    /// An empty directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Journaling mode, if another than made: ordered, data or adaptive.
    #[arg(long, value_parser = mode)]
    journal: Option<Mode>,
    /// New files of this name need durability, not a place: their content stays in logs. Repeatable.
    #[arg(long, value_name = "PATTERN")]
    anywhere: Vec<String>,
    /// Threads that serve requests.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Let other users in; permissions decide.
    #[arg(long)]
    allow_other: bool,
    /// Change nothing.
    #[arg(long)]
    read_only: bool,
}

impl MountCommand {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        plimsoll_node::panics::end_the_process();
        let path = self.device.display();
        let disk = open(&self.device, !self.read_only)?;
        let options = Options {
            mode: self.journal,
            read_only: self.read_only,
            anywhere: self.anywhere,
            nonce: random(),
            ..Options::default()
        };
        let mut fs = Fs::mount(disk.clone(), options).with_context(|| format!("{path}: mount the file system"))?;
        fs.set_now(now());
        let how = Mount {
            source: path.to_string(),
            allow_other: self.allow_other,
            threads: self.threads.into(),
            read_only: self.read_only,
        };
        let mounted = mount(fs, disk, &self.directory, &how)
            .with_context(|| format!("{}: mount (is /dev/fuse there?)", self.directory.display()))?;
        let unmounter = mounted.unmounter();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let terminated = runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            anyhow::Ok((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?))
        });
        let (mut terminate, mut interrupt) = terminated?;
        std::thread::spawn(move || {
            let mut wait = || {
                runtime.block_on(async {
                    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
                });
                plimsoll_node::panics::point("unmount");
            };
            wait();
            let Err(e) = unmounter.unmount() else { return };
            eprintln!("plimsoll: unmount: {e}: end the programs that use it; a second signal detaches it from them");
            loop {
                wait();
                match unmounter.unmount().or_else(|_| unmounter.detach()) {
                    Ok(()) => return,
                    Err(e) => eprintln!("plimsoll: detach: {e}"),
                }
            }
        });
        println!("mounted");
        mounted.wait().with_context(|| format!("{path}: serve the file system"))
    }
}
