//! Large requests into the file system's core, without FUSE, on a file in memory (`/dev/shm`): `cargo bench -p plimsoll-fs`.
//!
//! Beside it the same requests to the file itself: what a file system costs that passes each on. A file of 256 MiB is written from its
//! beginning to its end and again, as `make fs-fuser` does; what is dirty is made durable as by a mount.
//! `cargo bench -p plimsoll-fs -- write` does the writes only.
#![allow(missing_docs)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_fs::{FileDisk, Format, Fs, Mode, Options, ROOT, mkfs};

const MIB: usize = 1 << 20;
const FILE_MIB: usize = 256;
const ROUNDS: usize = 16;
const DISK_MIB: usize = 1024;

fn file() -> File {
    let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
    file.set_len((DISK_MIB * MIB) as u64).expect("its size");
    file
}

/// The process' time on processors: other programs change it less than the time of day.
fn busy() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Performs each request of all rounds, and prints the first round's and the others' throughput while on a processor.
fn measure(title: &str, mut request: impl FnMut(u64)) {
    if !std::env::args().skip(1).filter(|a| !a.starts_with('-')).all(|part| title.contains(&part)) {
        return;
    }
    let mut pass = |rounds: usize| {
        let begun = busy();
        (0..rounds * FILE_MIB).for_each(|i| request((i % FILE_MIB * MIB) as u64));
        (rounds * FILE_MIB * MIB) as f64 / (busy() - begun).as_secs_f64() / 1e6
    };
    let (first, again) = (pass(1), pass(ROUNDS));
    println!("{title:<24} first {first:>6.0} MB/s, again {again:>6.0} MB/s");
}

fn main() {
    let data = vec![7; MIB];
    let raw = file();
    measure("write, the file itself", |at| raw.write_all_at(&data, at).expect("written"));
    let mut into = vec![0; MIB];
    measure("read, the file itself", |at| raw.read_exact_at(&mut into, at).expect("read"));
    drop(raw);

    for mode in [Mode::Ordered, Mode::Manylogs] {
        let disk = Arc::new(FileDisk::new(file(), (DISK_MIB * MIB) as u64));
        mkfs(disk.clone(), Format::new(9, mode, (DISK_MIB * MIB / 4096) as u64), (0, 0)).expect("made");
        let mut fs = Fs::mount(disk, Options::default()).expect("mounted");
        let ino = fs.create(ROOT, b"a", 0o100_644, (0, 0), 0).expect("created").ino;
        measure(&format!("write, {mode:?}"), |at| {
            if fs.must_commit() {
                fs.sync(None).expect("synced");
            }
            assert_eq!(fs.write(ino, at, &data).expect("written"), MIB);
        });
        fs.sync(None).expect("synced");
        measure(&format!("read, {mode:?}"), |at| assert_eq!(fs.read(ino, at, MIB).expect("read").len(), MIB));
    }
}
