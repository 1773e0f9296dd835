//! A file system whose journal is scattered over the disk (MLFS, Manylogs §IV): small writes and metadata become durable in a
//! log near the disk's head, large writes go to their place.
//!
//! [`Fs`] is the core: it knows no thread, no clock and no FUSE. It receives the time ([`Fs::set_now`]) and asks a [`Disk`].
//! [`mount`] serves it through FUSE (`front.rs`), on several threads (`shared.rs`). The path of one `fsync`:
//! 1. [`Fs::prepare`] gives blocks to dirty pages, encodes changed inodes and makes one [`Commit`] (`commit.rs`).
//! 2. [`Commit::execute`] writes large data to its place, then the record to a log, then flushes. It needs no lock.
//! 3. [`Fs::finish`] notes that the record is durable. Records are durable in order, whatever order their writes end in.
//!
//! Reading order: `format.rs`, `geometry.rs`, `alloc.rs`, `extents.rs`, `dir.rs`, `file.rs`, `commit.rs`, `recover.rs`, `fsck.rs`.
//! `docs/guides/fs.md` is the guide; `docs/design/fs.md` has the format and the order of writes.

#![forbid(unsafe_code)]

mod alloc;
mod commit;
pub mod crash;
mod dir;
mod disk;
mod error;
mod extents;
mod file;
mod format;
mod front;
mod fs;
mod fsck;
mod geometry;
pub mod ioctl;
mod mkfs;
pub mod mount;
mod names;
mod recover;
mod shared;
mod tell;
mod xattr;

pub use commit::{Commit, Prepared, Step};
pub use dir::Entry;
pub use disk::{BLOCK, Disk, FileDisk, MemDisk, Write};
pub use error::{Error, Result};
pub use file::Fallocate;
pub use format::{Kind, Mode};
pub use fs::{Attr, Fs, Info, Options, Planted, ROOT, SetAttr, Stamp, StatFs};
pub use fsck::{Report, fsck};
pub use mkfs::{Format, mkfs};
pub use names::Rename;
