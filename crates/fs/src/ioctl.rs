//! Numbers of the ioctls that a mount has beside the kernel's own. `docs/guides/fs.md` documents them for programs.

use rustix::ioctl::{Opcode, opcode};

/// Reads a file's or directory's durability into a `u32`: `_IOR('P', 0xb1, __u32)`.
pub const GET_DURABILITY: Opcode = opcode::read::<u32>(b'P', 0xb1);
/// Sets a file's or directory's durability to a `u32`: `_IOW('P', 0xb2, __u32)`. It is for the owner and root.
pub const SET_DURABILITY: Opcode = opcode::write::<u32>(b'P', 0xb2);
/// Makes the whole file system durable: `_IO('P', 0xb3)`.
pub const SYNC: Opcode = opcode::none(b'P', 0xb3);

/// Durability: each block of the file's content has a fixed place.
pub const AT_ITS_PLACE: u32 = 0;
/// Durability: the file's content may be anywhere, as with `user.plimsoll.durability=anywhere`.
pub const ANYWHERE: u32 = 1;
