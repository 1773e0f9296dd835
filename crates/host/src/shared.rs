//! Memory that several processes map. The only `unsafe` of the mapping is here.

use crate::layout::Shared;
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};

/// A mapped `T`.
pub struct Mapped<T> {
    map: MmapRaw,
    of: PhantomData<T>,
}

impl<T: Shared> Mapped<T> {
    /// Maps a file or BPF map for reading. Its size must be `T`'s at least: a page beyond the end would end the process.
    pub fn read_only(fd: BorrowedFd) -> io::Result<Mapped<T>> {
        Ok(Mapped { map: options::<T>().map_raw_read_only(&fd)?, of: PhantomData })
    }

    /// The same for writing too.
    pub fn writable(fd: BorrowedFd) -> io::Result<Mapped<T>> {
        Ok(Mapped { map: options::<T>().map_raw(&fd)?, of: PhantomData })
    }
}

fn options<T>() -> MmapOptions {
    let mut options = MmapOptions::new();
    options.len(size_of::<T>());
    options
}

impl<T: Shared> Deref for Mapped<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a mapping of `T`'s size that begins at a page; `Shared` allows whatever is in it.
        unsafe { &*self.map.as_ptr().cast::<T>() }
    }
}

/// A file in memory of `T`'s size. After [`seal`] nobody can map it for writing who hasn't yet, nor write or resize it.
pub fn memory_file<T: Shared>(name: &str) -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.set_len(size_of::<T>() as u64)?;
    Ok(file)
}

/// Leaves a file in memory to those who have mapped it already.
pub fn seal(file: &File) -> io::Result<()> {
    use rustix::fs::{SealFlags, fcntl_add_seals};
    let all = SealFlags::FUTURE_WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    Ok(fcntl_add_seals(file.as_fd(), all)?)
}

/// True if this file is sealed against becoming shorter. A mapping of an unsealed file may vanish.
pub fn is_sealed(fd: BorrowedFd) -> bool {
    use rustix::fs::{SealFlags, fcntl_get_seals};
    fcntl_get_seals(fd).is_ok_and(|s| s.contains(SealFlags::SHRINK))
}

/// CLOCK_MONOTONIC, which BPF programs read too.
pub fn now_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}
