//! A request, what it carries, and how it ends.

use crate::buf::Buf;
use crate::tenant::{Priority, TenantId};
use crate::time::{Span, Time};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// Read `len` bytes at `offset`.
    Read,
    /// Write the payload at `offset`.
    Write,
    /// Make durable every write of the volume that was acknowledged before this request arrived.
    Flush,
    /// The range's content is no longer needed: it reads as zeroes from now on.
    Trim,
    /// The range reads as zeroes from now on.
    WriteZeroes,
    /// A hint that the range will be read soon.
    Cache,
    /// Reports which parts of the range hold data and which are holes.
    BlockStatus,
}

impl Op {
    /// True if the operation changes what a later read returns: a write, a trim, or a write of zeroes.
    pub const fn is_change(self) -> bool {
        matches!(self, Op::Write | Op::Trim | Op::WriteZeroes)
    }
    /// Returns whether it names a range that it may change or read, and carries no bytes: a few bytes on the wire can mean gigabytes.
    pub const fn is_range(self) -> bool {
        matches!(self, Op::Trim | Op::WriteZeroes | Op::Cache)
    }
    /// A short name for logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Trim => "trim",
            Op::WriteZeroes => "write_zeroes",
            Op::Cache => "cache",
            Op::BlockStatus => "block_status",
        }
    }
}

/// Modifiers of an [`Op`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Hash)]
pub struct IoFlags(u8);

impl IoFlags {
    /// None set.
    pub const NONE: IoFlags = IoFlags(0);
    /// Durable, with the mapping to find it, before it's done (write, trim, write-zeroes).
    pub const FUA: IoFlags = IoFlags(1);
    /// Write-zeroes must leave space allocated.
    pub const NO_HOLE: IoFlags = IoFlags(2);
    /// Write-zeroes only if it's faster than writing; else fail with [`IoError::NotSupported`].
    pub const FAST_ZERO: IoFlags = IoFlags(4);
    /// A read is served however late it will be: its client takes a refusal for a failed device.
    pub const WAITS: IoFlags = IoFlags(8);
    /// A read that waits was forecast to miss its deadline: without [`IoFlags::WAITS`] the stack would have refused it. Set by
    /// the stack alone.
    pub const LATE: IoFlags = IoFlags(16);

    /// True if all flags of `other` are set here, too.
    pub const fn has(self, other: IoFlags) -> bool {
        self.0 & other.0 == other.0
    }
    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: IoFlags) -> IoFlags {
        IoFlags(self.0 | other.0)
    }
    /// Without `other`'s.
    #[must_use]
    pub const fn without(self, other: IoFlags) -> IoFlags {
        IoFlags(self.0 & !other.0)
    }
    /// As a number, for tapes.
    pub const fn bits(self) -> u8 {
        self.0
    }
    /// From a number; bits that no engine sets are dropped.
    pub const fn from_bits(bits: u8) -> IoFlags {
        IoFlags(bits & 15)
    }
}

/// Identifies one request within a pool, from the pool's start to its end. A layer that passes a request on keeps its id. A
/// request that a layer makes gets a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct IoId(pub u64);

impl fmt::Debug for IoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A volume's number, and which of the volumes with that number it is: data kept under one key never show under another, so a
/// deleted volume's can't come back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct VolumeKey {
    /// The volume's number in its pool; 0 is no volume (a pool's own I/O).
    pub id: u32,
    /// Higher than that of every earlier volume with this number; with gaps.
    pub generation: u32,
}

impl VolumeKey {
    /// No volume: the pool itself.
    pub const POOL: VolumeKey = VolumeKey { id: 0, generation: 0 };
}

/// Reason for a request's existence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Origin {
    /// A client asked.
    Client,
    /// A part of a client's request that a layer split or widened.
    Piece(OfParent),
    /// A layer made it: tagged, bounded, charged to the tenant that it serves, never refused Busy.
    Own(OwnKind),
}

/// Shows that a request was derived from a client's, and so has its account: only [`IoHead::piece`] makes one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct OfParent(());

/// Purpose of a layer's own I/O.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum OwnKind {
    /// The other half of a block that a client wrote in part.
    ReadModifyWrite,
    /// Moving logged data to its home.
    Checkpoint,
    /// Bringing data into a cache.
    Fill,
    /// Moving dirty data out of a cache.
    WriteBack,
    /// Asking a store that has it for a file's recipe: the fingerprints of a range instead of its data (Nitro §3.3.1).
    Recipe,
    /// Reading what is needed to start.
    Recovery,
    /// Zeroing space between two owners.
    Zeroing,
    /// A layer's tables, headers and journals.
    Metadata,
}

/// All of a request but its bytes.
#[derive(Clone, Copy, Debug)]
pub struct IoHead {
    /// Its name in the pool.
    pub id: IoId,
    /// The submitter's own: comes back unchanged in the completion, so that it can find its state without a map.
    pub tag: u64,
    /// Operation.
    pub op: Op,
    /// Flags.
    pub flags: IoFlags,
    /// Tenant that is charged for the request.
    pub tenant: TenantId,
    /// For schedulers that know priorities.
    pub priority: Priority,
    /// Reason for the request.
    pub origin: Origin,
    /// Under which number the engine accounts for it; requests made for it keep the number.
    pub account: u16,
    /// The stack's number of the client request that this request is, or is made for.
    pub root: u32,
    /// By which of its faces it entered the layer that now has it; kept by the stack, 0 for layers with one.
    pub face: u8,
    /// Volume whose data it concerns.
    pub volume: VolumeKey,
    /// First byte. Volume address above the map layer, device address below.
    pub offset: u64,
    /// Length in bytes. Zero for [`Op::Flush`].
    pub len: u64,
    /// Time of arrival at the pool, or of creation if a layer made it.
    pub arrived_at: Time,
    /// Time of entry into the layer that now has it; kept by the stack.
    pub entered_at: Time,
    /// By when it must be done; [`Time::NEVER`] without a promise.
    pub deadline: Time,
    /// Completion time that the stack forecast at admission; [`Time::NEVER`] without a forecast.
    pub expected_at: Time,
}

impl IoHead {
    /// A client's request with neither deadline nor flags, arriving at `now`. The id is given by the stack.
    pub fn new(op: Op, volume: VolumeKey, tenant: TenantId, offset: u64, len: u64, now: Time) -> IoHead {
        IoHead {
            id: IoId(0),
            tag: 0,
            op,
            flags: IoFlags::NONE,
            tenant,
            priority: Priority::DEFAULT,
            origin: Origin::Client,
            account: 0,
            root: 0,
            face: 0,
            volume,
            offset,
            len,
            arrived_at: now,
            entered_at: now,
            deadline: Time::NEVER,
            expected_at: Time::NEVER,
        }
    }

    /// A part of this request, for whoever derives it to give an id, an address and a length: it has the tenant, the account and the
    /// promise of this one. A part of a layer's own request is of the same kind.
    #[must_use]
    pub fn piece(&self) -> IoHead {
        let origin = match self.origin {
            Origin::Client | Origin::Piece(_) => Origin::Piece(OfParent(())),
            own @ Origin::Own(_) => own,
        };
        IoHead { origin, ..*self }
    }

    /// One past the last byte (saturating).
    pub const fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }

    /// True if both requests touch a common byte of the same volume.
    pub fn overlaps(&self, other: &IoHead) -> bool {
        self.volume == other.volume && self.offset < other.end() && other.offset < self.end()
    }

    /// True if the request comes from a client; false if it is a layer's own I/O.
    pub const fn is_client(&self) -> bool {
        matches!(self.origin, Origin::Client)
    }

    /// Returns whether it may end [`Outcome::Busy`]. Only a client's read with a deadline may, and only if its client doesn't wait.
    pub const fn may_be_refused(&self) -> bool {
        self.is_client() && matches!(self.op, Op::Read) && self.deadline.is_set() && !self.flags.has(IoFlags::WAITS)
    }

    /// Returns whether it is a client's request or a part of one.
    pub const fn is_of_client(&self) -> bool {
        matches!(self.origin, Origin::Client | Origin::Piece(_))
    }
}

/// A request on its way: its head and what it carries, both on the heap. It is moved a dozen times between queues and
/// layers, and moving 120 bytes each time was a third of what a simulated request cost.
///
/// Its fields are [`IoParts`]'s, and the head's are its own too: `io.data`, `io.head`, `io.offset`.
#[derive(Clone, Debug)]
pub struct Io(Box<IoParts>);

/// Fields of an [`Io`], to build one from.
#[derive(Clone, Debug)]
pub struct IoParts {
    /// Everything but the bytes.
    pub head: IoHead,
    /// A write's bytes; once done, a read's.
    pub data: Data,
}

impl Io {
    /// A request of `head` that carries `data`.
    pub fn new(head: IoHead, data: Data) -> Io {
        Io(Box::new(IoParts { head, data }))
    }

    /// Returns the data of the request and drops the rest.
    pub fn into_data(self) -> Data {
        self.0.data
    }
}

impl Deref for Io {
    type Target = IoParts;
    fn deref(&self) -> &IoParts {
        &self.0
    }
}
impl DerefMut for Io {
    fn deref_mut(&mut self) -> &mut IoParts {
        &mut self.0
    }
}
impl Deref for IoParts {
    type Target = IoHead;
    fn deref(&self) -> &IoHead {
        &self.head
    }
}
impl DerefMut for IoParts {
    fn deref_mut(&mut self) -> &mut IoHead {
        &mut self.head
    }
}

/// Payload of a request. A live request carries bytes or zeroes; in simulation it may be absent or only the name of a content.
#[derive(Clone, Debug, Default)]
pub enum Data {
    /// Nothing is carried (reads on their way down; simulations of timing alone).
    #[default]
    Absent,
    /// Zeroes over the request's whole length.
    Zeroes,
    /// Real bytes, exactly of the request's length.
    Bytes(Buf),
    /// Several pieces in address order that together have the request's length.
    Parts(Arc<[(u64, Data)]>),
    /// One content name per equal share of the range (simulated deduplication).
    Content(Arc<[u128]>),
    /// A block status answer: adjoining extents from the request's offset on, at least one.
    Status(Arc<[StatusExtent]>),
}

impl Data {
    /// The part `start..start + len` of data that describe `total` bytes.
    ///
    /// # Panics
    /// If the part isn't inside, or would split a content name.
    pub fn slice(&self, total: u64, start: u64, len: u64) -> Data {
        assert!(start + len <= total, "slice {start}+{len} of {total}");
        match self {
            Data::Absent => Data::Absent,
            Data::Zeroes => Data::Zeroes,
            Data::Bytes(b) => Data::Bytes(b.slice(start as usize, len as usize)),
            Data::Parts(parts) => {
                let mut at = 0;
                let mut cut = Vec::new();
                for (n, d) in parts.iter() {
                    let (from, to) = (start.max(at), (start + len).min(at + n));
                    if from < to {
                        cut.push((to - from, d.slice(*n, from - at, to - from)));
                    }
                    at += n;
                }
                Data::Parts(cut.into())
            }
            Data::Content(names) => {
                let unit = total / names.len() as u64;
                assert!(start.is_multiple_of(unit) && len.is_multiple_of(unit), "a content name can't be split");
                Data::Content(names[(start / unit) as usize..((start + len) / unit) as usize].into())
            }
            Data::Status(_) => unreachable!("a block status answer isn't sliced"),
        }
    }

    /// The same part; absent where a content name would be split, as nothing is known of its halves.
    ///
    /// # Panics
    /// If the part isn't inside.
    pub fn part(&self, total: u64, start: u64, len: u64) -> Data {
        match self {
            Data::Content(_) if (start, len) == (0, total) => self.clone(),
            Data::Content(names) => {
                let unit = total / names.len() as u64;
                let whole =
                    total.is_multiple_of(names.len() as u64) && start.is_multiple_of(unit) && len.is_multiple_of(unit);
                if whole && len > 0 { self.slice(total, start, len) } else { Data::Absent }
            }
            Data::Parts(parts) => {
                let mut at = 0;
                let mut cut: Vec<(u64, Data)> = Vec::new();
                for (n, d) in parts.iter() {
                    let (from, to) = (start.max(at), (start + len).min(at + n));
                    if from < to {
                        cut.push((to - from, d.part(*n, from - at, to - from)));
                    }
                    at += n;
                }
                match cut.len() {
                    1 => cut.pop().expect("one").1,
                    _ => Data::Parts(cut.into()),
                }
            }
            _ => self.slice(total, start, len),
        }
    }

    /// Copies the bytes into `to` (all of it); zeroes where nothing is carried.
    pub fn copy_to(&self, to: &mut [u8]) {
        match self {
            Data::Bytes(b) => to.copy_from_slice(b.as_slice()),
            Data::Parts(parts) => {
                let mut rest = to;
                for (n, d) in parts.iter() {
                    let (head, tail) = rest.split_at_mut(*n as usize);
                    d.copy_to(head);
                    rest = tail;
                }
            }
            _ => to.fill(0),
        }
    }
}

/// One run of a block status answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusExtent {
    /// Its length in bytes, never zero.
    pub len: u64,
    /// No space is allocated for it.
    pub hole: bool,
    /// It reads as zeroes.
    pub zero: bool,
}

/// Confidence of a forecast, in thousandths: 0 is ignorance, 1000 is exact knowledge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Confidence(pub u16);

impl Confidence {
    /// A guess.
    pub const NONE: Confidence = Confidence(0);
    /// Known exactly.
    pub const CERTAIN: Confidence = Confidence(1000);
}

/// Result of a request. Each request ends exactly once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// A byte as tag leaves odd bytes that are moved apart and then read across, which stalls: 3 % of a simulated request.
#[repr(u32)]
pub enum Outcome {
    /// As asked.
    Done,
    /// Refused: it would not meet its deadline. Nothing of it reached a device.
    Busy {
        /// Wait before service that was forecast.
        wait: Span,
        /// Confidence of that forecast.
        confidence: Confidence,
    },
    /// It went wrong.
    Failed(IoError),
}

impl Outcome {
    /// True if the request succeeded.
    pub const fn is_done(self) -> bool {
        matches!(self, Outcome::Done)
    }
}

/// Reason for a failure, in terms of what the caller can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum IoError {
    /// The device failed; the data may be lost. Retrying is unlikely to help.
    Device,
    /// A flush failed earlier: durability can't be promised until the volume is recovered.
    FlushFailed,
    /// No space left.
    NoSpace,
    /// Outside the volume or otherwise malformed: the caller's mistake.
    Invalid,
    /// The volume is read-only.
    ReadOnly,
    /// Not offered here.
    NotSupported,
    /// The caller withdrew it before anything happened.
    Cancelled,
    /// The pool is closing or isn't ready.
    Unavailable,
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IoError::Device => "the device failed",
            IoError::FlushFailed => "an earlier flush failed; the volume must be recovered",
            IoError::NoSpace => "no space left",
            IoError::Invalid => "outside the volume or malformed",
            IoError::ReadOnly => "the volume is read-only",
            IoError::NotSupported => "not supported here",
            IoError::Cancelled => "cancelled by the caller",
            IoError::Unavailable => "the pool is closing or not ready",
        })
    }
}
impl std::error::Error for IoError {}

/// A request that ended. `io` is the request as it was submitted (a read's bytes are in its `data`).
#[derive(Clone, Debug)]
pub struct Completion {
    /// The request.
    pub io: Io,
    /// Result.
    pub outcome: Outcome,
    /// Time at which its first part reached a device; [`Time::NEVER`] if none did.
    pub dispatched_at: Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slicing_parts_keeps_bytes_in_place() {
        let bytes: Vec<u8> = (0..=255).collect();
        let d = Data::Parts(
            vec![
                (100, Data::Bytes(Buf::copy_of(&bytes[..100]))),
                (50, Data::Zeroes),
                (106, Data::Bytes(Buf::copy_of(&bytes[150..]))),
            ]
            .into(),
        );
        let mut want = bytes.clone();
        want[100..150].fill(0);
        for (start, len) in [(0, 256), (90, 20), (100, 50), (120, 100), (255, 1), (7, 0)] {
            let mut got = vec![1; len];
            d.slice(256, start as u64, len as u64).copy_to(&mut got);
            assert_eq!(got, want[start..start + len], "{start}+{len}");
        }
    }

    #[test]
    fn overlap_needs_a_common_byte_of_one_volume() {
        let v = |id| VolumeKey { id, generation: 1 };
        let at = |id, o, l| IoHead::new(Op::Read, v(id), TenantId(0), o, l, Time::ZERO);
        assert!(at(1, 0, 10).overlaps(&at(1, 9, 1)));
        assert!(!at(1, 0, 10).overlaps(&at(1, 10, 1)));
        assert!(!at(1, 0, 10).overlaps(&at(2, 0, 10)));
        assert!(!at(1, 5, 0).overlaps(&at(1, 5, 1)));
    }
}
