//! The engine's devices: what carries out the requests that leave a stack at the bottom.

use super::ring::{Op as RingOp, Ring};
use super::statuses::{Question, Statuses, status_of};
use super::syncs::Syncs;
use super::volatile::VolatileFile;
use plimsoll_base::{Buf, BufMut, BufPool, Completion, Data, Io, IoError, IoFlags, Op, Origin, Outcome, Time};
use plimsoll_rbd::{LockState, Queue};
use plimsoll_stack::Offer;
use slab::Slab;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The store of a pool's bytes.
pub enum Device {
    /// Nowhere: reads are zeroes, writes are forgotten. For measuring the node itself.
    Null {
        /// Size.
        size_bytes: u64,
    },
    /// It can't be opened, or isn't yet: every request fails, and nothing is changed.
    Absent {
        /// Size that the layers above reckon with.
        size_bytes: u64,
    },
    /// In a region of a file or block device.
    File(FileDevice),
    /// The same behind a volatile cache that loses, tears and reorders what isn't flushed when the process is killed.
    /// For testing only.
    Volatile(VolatileFile),
    /// In a region of an RBD image.
    Rbd(RbdDevice),
}

/// A region of an RBD image.
///
/// It has no [`FileDevice::has_failed_sync`]: librbd's caches are off, so what is acknowledged is durable, and no flush reports the loss of it.
pub struct RbdDevice {
    /// Requests in flight at the image.
    pub queue: Queue,
    /// Start of the region in the image.
    pub start: u64,
    /// Its length.
    pub len: u64,
}

/// Librbd takes any byte; clients' smallest unit is this.
const RBD_BLOCK_BYTES: u32 = 512;

/// A region of an open file.
pub struct FileDevice {
    /// Opened for direct I/O where the file system allows it.
    pub file: File,
    /// The region's beginning in the file.
    pub start: u64,
    /// Its length.
    pub len: u64,
    /// Requests must be multiples of it.
    pub block_bytes: u32,
    /// True since a sync of the same device failed that others asked for, until a flush says so.
    pub has_failed_sync: Arc<AtomicBool>,
}

impl FileDevice {
    /// Returns whether a sync that others asked for failed since the last call.
    fn take_failed_sync(&self) -> bool {
        self.has_failed_sync.swap(false, Ordering::SeqCst)
    }
}

impl Device {
    /// True if it is a file that isn't open for direct I/O, or whose flags can't be read.
    fn is_buffered(&self) -> bool {
        let Device::File(f) = self else { return false };
        !rustix::fs::fcntl_getfl(&f.file).is_ok_and(|flags| flags.contains(rustix::fs::OFlags::DIRECT))
    }

    /// Its offer to the stack.
    pub fn offer(&self) -> Offer {
        let (size_bytes, block_bytes) = match self {
            Device::Null { size_bytes } | Device::Absent { size_bytes } => (*size_bytes, 512),
            Device::File(f) => (f.len, f.block_bytes),
            Device::Volatile(v) => (v.inner.len, v.inner.block_bytes),
            Device::Rbd(d) => (d.len, RBD_BLOCK_BYTES),
        };
        Offer { size_bytes, block_bytes, io_bytes_max: 64 << 20, atomic_bytes: 512, queue_max: 4096 }
    }
}

/// A request at a device.
struct InFlight {
    device: usize,
    io: Io,
    dispatched_at: Time,
    /// The rest of a request that is done in steps.
    rest: Rest,
}

enum Rest {
    /// The next completion ends it.
    Last,
    /// Zeroes are being written from here on, piece by piece, because the file can't zero a range by itself.
    Zeroing { at: u64 },
    /// A flush makes it durable.
    Durable,
}

const ZERO_PIECE_BYTES: usize = 1 << 20;
/// Number of the pool's main device. The others are its cache's.
const MAIN: usize = 0;

/// All devices of a pool, and what they have in flight.
pub struct Devices {
    devices: Vec<Device>,
    in_flight: Slab<InFlight>,
    /// Answered without the kernel.
    ready: VecDeque<(usize, Completion)>,
    zeroes: Buf,
    statuses: Statuses,
    /// The devices' files, for questions about block status; opened with the first one.
    status_files: Vec<Option<Arc<OwnedFd>>>,
    /// Of files that the page cache lies under.
    syncs: Vec<Option<Syncs>>,
    has_caches: bool,
    trims_must_zero: bool,
}

impl Devices {
    /// The devices by number.
    pub fn new(devices: Vec<Device>) -> Devices {
        let zeroes = BufMut::zeroed(ZERO_PIECE_BYTES).freeze();
        let status_files = devices.iter().map(|_| None).collect();
        let syncs = devices.iter().map(|d| d.is_buffered().then(Syncs::default)).collect();
        let (in_flight, ready, statuses) = (Slab::new(), VecDeque::new(), Statuses::default());
        let (has_caches, trims_must_zero) = (false, false);
        Devices { devices, in_flight, ready, zeroes, statuses, status_files, syncs, has_caches, trims_must_zero }
    }

    /// Announces answers of other threads through `wakeup`; [`Devices::next_status`] returns them.
    pub fn wake_through(&mut self, wakeup: Arc<OwnedFd>) {
        self.statuses.wake_through(wakeup);
    }

    /// The devices' offers, by number.
    pub fn offers(&self) -> Vec<Offer> {
        self.devices.iter().map(Device::offer).collect()
    }

    /// Makes everything durable, waiting for it: the last thing a pool does. Returns the devices that failed.
    pub fn sync(&mut self) -> Vec<(usize, io::Error)> {
        let sync = |d: &mut Device| match d {
            Device::Null { .. } | Device::Absent { .. } => Ok(()),
            Device::File(f) => match f.file.sync_data() {
                Ok(()) if f.take_failed_sync() => Err(io::Error::other("a sync of the metadata failed before")),
                synced => synced,
            },
            Device::Volatile(v) => v.flush(),
            Device::Rbd(d) => d.queue.image().flush().map_err(plimsoll_rbd::Error::io),
        };
        let failed = |(n, d): (usize, &mut Device)| Some((n, sync(d).err()?));
        self.devices.iter_mut().enumerate().filter_map(failed).collect()
    }

    /// Puts a device of the same size into the place of an absent one. False if there is no such place.
    pub fn put(&mut self, number: usize, device: Device) -> bool {
        match self.devices.get_mut(number) {
            Some(absent @ Device::Absent { .. }) => {
                *absent = device;
                true
            }
            _ => false,
        }
    }

    /// Waits for what devices announce.
    pub fn listen(&self, ring: &mut Ring) -> io::Result<()> {
        (0..self.devices.len()).try_for_each(|device| self.listen_to(device, ring))
    }

    /// Waits for the next announcement of a device, if it makes any.
    pub fn listen_to(&self, device: usize, ring: &mut Ring) -> io::Result<()> {
        let Device::Rbd(d) = &self.devices[device] else { return Ok(()) };
        ring.submit(RingOp::Announced { device, fd: d.queue.event().as_raw_fd(), count: Box::new([0; 8]) })
    }

    /// The next completion of a device that announced some.
    pub fn next_announced(&mut self, device: usize, pool: &mut BufPool) -> Option<Completion> {
        let Device::Rbd(d) = &mut self.devices[device] else { return None };
        let done = d.queue.next_done()?;
        let InFlight { mut io, dispatched_at, .. } = self.in_flight.remove(done.tag);
        if let Some(data) = done.written {
            pool.give(data);
        }
        let mut outcome = done.result.map_or_else(failed_with, |()| Outcome::Done);
        io.data = done.read.map_or(Data::Absent, Data::Bytes);
        // The cluster doesn't refuse the handles that only read: they may have read the bytes of a new owner.
        if io.op == Op::Read && outcome.is_done() {
            let refused = match (self.is_lost(), device) {
                (true, _) => Some(IoError::Device),
                (false, 0) => None,
                (false, _) => self.is_unconfirmed().then_some(IoError::Unavailable),
            };
            if let Some(why) = refused {
                (outcome, io.data) = (Outcome::Failed(why), Data::Absent);
            }
        }
        Some(Completion { io, outcome, dispatched_at })
    }

    /// Layers of the pool answer reads by themselves, from a cache.
    pub fn with_caches(mut self, has_caches: bool) -> Devices {
        self.has_caches = has_caches;
        self
    }

    /// Layers of the pool keep newer data than the main device has, and forget them when a trim there is done. Where a file can't take
    /// the trim, it is carried out as zeroes: else older data would show again.
    pub fn with_trims_that_zero(mut self, must: bool) -> Devices {
        self.trims_must_zero = must;
        self
    }

    /// True if a device has been lost to another owner. Then nothing is read or written there.
    pub fn is_lost(&self) -> bool {
        self.has_lock(LockState::Lost)
    }

    /// True if answers from the pool's caches may be older than another owner's writes: the lock isn't confirmed. The cluster itself
    /// answers an old owner with an error, so a pool without a cache needs no such care.
    pub fn may_be_stale(&self) -> bool {
        self.has_caches && self.is_unconfirmed()
    }

    fn is_unconfirmed(&self) -> bool {
        self.has_lock(LockState::Unconfirmed)
    }

    fn has_lock(&self, state: LockState) -> bool {
        self.devices.iter().any(|d| matches!(d, Device::Rbd(d) if d.queue.image().known_lock_state() == state))
    }

    /// A completion that needs no waiting.
    pub fn next_ready(&mut self) -> Option<(usize, Completion)> {
        self.ready.pop_front()
    }

    /// Begins a request.
    pub fn begin(
        &mut self,
        now: Time,
        device: usize,
        mut io: Io,
        ring: &mut Ring,
        pool: &mut BufPool,
    ) -> io::Result<()> {
        if self.is_lost() {
            let outcome = Outcome::Failed(IoError::Device);
            io.data = Data::Absent;
            self.ready.push_back((device, Completion { io, outcome, dispatched_at: now }));
            return Ok(());
        }
        match &mut self.devices[device] {
            Device::Rbd(d) => {
                let slot = self.in_flight.vacant_key();
                match begin_at_image(d, slot, &mut io, pool) {
                    Begun::InFlight => {
                        self.in_flight.insert(InFlight { device, io, dispatched_at: now, rest: Rest::Last });
                    }
                    Begun::Answered(outcome, data) => {
                        io.data = data;
                        self.ready.push_back((device, Completion { io, outcome, dispatched_at: now }));
                    }
                }
                Ok(())
            }
            Device::Absent { .. } => {
                let outcome = Outcome::Failed(IoError::Device);
                io.data = Data::Absent;
                self.ready.push_back((device, Completion { io, outcome, dispatched_at: now }));
                Ok(())
            }
            Device::Null { size_bytes } => {
                let outcome = if io.end() > *size_bytes { Outcome::Failed(IoError::Invalid) } else { Outcome::Done };
                if let Data::Bytes(b) = std::mem::take(&mut io.data) {
                    pool.give(b);
                }
                io.data = match io.op {
                    Op::Read => Data::Zeroes,
                    Op::BlockStatus => status_of(io.len, true),
                    _ => Data::Absent,
                };
                self.ready.push_back((device, Completion { io, outcome, dispatched_at: now }));
                Ok(())
            }
            Device::Volatile(v) => {
                let (outcome, data) = v.apply(&io);
                io.data = data;
                self.ready.push_back((device, Completion { io, outcome, dispatched_at: now }));
                Ok(())
            }
            Device::File(f) if io.op == Op::BlockStatus => {
                let slot = self.in_flight.vacant_key();
                let file = match &mut self.status_files[device] {
                    Some(file) => Ok(file.clone()),
                    none => f.file.as_fd().try_clone_to_owned().map(|file| none.insert(Arc::new(file)).clone()),
                };
                let question = |file| Question { slot, file, start: f.start + io.offset, len: io.len };
                if let Err(error) = file.and_then(|file| self.statuses.ask(question(file))) {
                    // Out of descriptors or threads, most likely. That all is data may always be said.
                    tracing::warn!(%error, "block status isn't asked of the file system: all is data");
                    io.data = status_of(io.len, false);
                    self.ready.push_back((device, Completion { io, outcome: Outcome::Done, dispatched_at: now }));
                    return Ok(());
                }
                self.in_flight.insert(InFlight { device, io, dispatched_at: now, rest: Rest::Last });
                Ok(())
            }
            Device::File(f) => {
                let (fd, offset, len) = (f.file.as_raw_fd(), f.start + io.offset, io.len);
                assert!(io.end() <= f.len, "a request beyond the device: {:?}", io.head);
                let slot = self.in_flight.vacant_key();
                let mut durable = io.flags.has(IoFlags::FUA);
                let mut rest = Rest::Last;
                let op = match io.op {
                    Op::Read => RingOp::Read { slot, fd, offset, buf: pool.take(len as usize), start: 0 },
                    Op::Flush => {
                        self.in_flight.insert(InFlight { device, io, dispatched_at: now, rest });
                        return self.sync_later(slot, ring);
                    }
                    Op::Write => {
                        if self.syncs[device].is_some() && std::mem::take(&mut durable) {
                            rest = Rest::Durable;
                        }
                        let data = aligned(std::mem::take(&mut io.data), len as usize, pool);
                        RingOp::Write { slot, fd, offset, data, start: 0, durable }
                    }
                    Op::Trim | Op::WriteZeroes => {
                        if durable {
                            rest = Rest::Durable;
                        }
                        // What a layer trims of its own stays allocated: a file system that others filled must not refuse it later.
                        let own = io.op == Op::Trim && matches!(io.origin, Origin::Own(_));
                        let keep_allocated = own || io.op == Op::WriteZeroes && io.flags.has(IoFlags::NO_HOLE);
                        RingOp::Zero { slot, fd, offset, len, keep_allocated }
                    }
                    Op::Cache => RingOp::Prefetch { slot, fd, offset, len },
                    Op::BlockStatus => unreachable!("asked of another thread"),
                };
                self.in_flight.insert(InFlight { device, io, dispatched_at: now, rest });
                ring.submit(op)
            }
        }
    }

    /// The next answer to a question about block status.
    ///
    /// # Errors
    /// If the thread that answers has ended.
    pub fn next_status(&mut self) -> io::Result<Option<(usize, Completion)>> {
        let Some((slot, data)) = self.statuses.next_answer()? else { return Ok(None) };
        let InFlight { device, mut io, dispatched_at, .. } = self.in_flight.remove(slot);
        io.data = data;
        Ok(Some((device, Completion { io, outcome: Outcome::Done, dispatched_at })))
    }

    /// The kernel has answered; the completion, unless the request goes on.
    pub fn completed(
        &mut self,
        op: RingOp,
        result: io::Result<usize>,
        ring: &mut Ring,
        pool: &mut BufPool,
    ) -> io::Result<Option<(usize, Completion)>> {
        let (slot, outcome, data) = match op {
            RingOp::Read { slot, fd, offset, buf, start } => match result {
                Ok(n) if n > 0 && start + n < buf.len() => {
                    ring.submit(RingOp::Read { slot, fd, offset, buf, start: start + n })?;
                    return Ok(None);
                }
                Ok(n) if start + n == buf.len() => (slot, Outcome::Done, Data::Bytes(buf.freeze())),
                // The file is shorter than its superblock says.
                Ok(_) => (slot, Outcome::Failed(IoError::Device), Data::Absent),
                Err(e) => (slot, failed(&e), Data::Absent),
            },
            RingOp::Write { slot, fd, offset, data, start, durable } => match result {
                Ok(n) if n > 0 && start + n < data.len() => {
                    ring.submit(RingOp::Write { slot, fd, offset, data, start: start + n, durable })?;
                    return Ok(None);
                }
                Ok(n) if start + n == data.len() => {
                    let InFlight { rest, io, .. } = &self.in_flight[slot];
                    if let &Rest::Zeroing { at } = rest
                        && (at + (data.len() as u64) < io.len || io.flags.has(IoFlags::FUA))
                    {
                        return self.zero_next(slot, at + data.len() as u64, ring).map(|()| None);
                    }
                    pool.give(data);
                    if matches!(rest, Rest::Durable) {
                        return self.sync_last(slot, ring).map(|()| None);
                    }
                    (slot, Outcome::Done, Data::Absent)
                }
                Ok(_) => (slot, Outcome::Failed(IoError::Device), Data::Absent),
                Err(e) => (slot, failed(&e), Data::Absent),
            },
            // Whatever the kernel calls it: data that was acknowledged may be lost.
            RingOp::Sync { slot, .. } => {
                let is_lost = self.file(slot).take_failed_sync();
                let outcome = match result {
                    Ok(_) if !is_lost => Outcome::Done,
                    _ => Outcome::Failed(IoError::Device),
                };
                self.synced(slot, outcome, ring)?;
                (slot, outcome, Data::Absent)
            }
            RingOp::Zero { slot, .. } => match result {
                Ok(_) if matches!(self.in_flight[slot].rest, Rest::Durable) => {
                    return self.sync_last(slot, ring).map(|()| None);
                }
                Ok(_) => (slot, Outcome::Done, Data::Absent),
                Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    let InFlight { io, device, .. } = &self.in_flight[slot];
                    let is_advice = !self.trims_must_zero || *device != MAIN || matches!(io.origin, Origin::Own(_));
                    match io.op {
                        Op::Trim if is_advice => (slot, Outcome::Done, Data::Absent), // this file can't take it
                        _ if io.flags.has(IoFlags::FAST_ZERO) => {
                            (slot, Outcome::Failed(IoError::NotSupported), Data::Absent)
                        }
                        _ => return self.zero_next(slot, 0, ring).map(|()| None),
                    }
                }
                Err(e) => (slot, failed(&e), Data::Absent),
            },
            // Advice: whether the kernel takes it changes nothing for the client.
            RingOp::Prefetch { slot, .. } => (slot, Outcome::Done, Data::Absent),
            RingOp::Recv { .. } | RingOp::Send { .. } | RingOp::Wakeup { .. } | RingOp::Announced { .. } => {
                unreachable!("not a device's")
            }
        };
        let InFlight { device, mut io, dispatched_at, .. } = self.in_flight.remove(slot);
        io.data = data;
        Ok(Some((device, Completion { io, outcome, dispatched_at })))
    }

    /// Writes the next piece of zeroes of a request from `at` on; after the last, makes them durable.
    fn zero_next(&mut self, slot: usize, at: u64, ring: &mut Ring) -> io::Result<()> {
        let fd = self.fd(slot);
        let f = &mut self.in_flight[slot];
        let left = f.io.len - at;
        if left == 0 {
            return self.sync_last(slot, ring);
        }
        f.rest = Rest::Zeroing { at };
        let data = self.zeroes.slice(0, (ZERO_PIECE_BYTES as u64).min(left) as usize);
        let Device::File(file) = &self.devices[f.device] else { unreachable!("only files zero in pieces") };
        ring.submit(RingOp::Write { slot, fd, offset: file.start + f.io.offset + at, data, start: 0, durable: false })
    }

    /// A flush makes a request durable, and ends it.
    fn sync_last(&mut self, slot: usize, ring: &mut Ring) -> io::Result<()> {
        self.in_flight[slot].rest = Rest::Last;
        self.sync_later(slot, ring)
    }

    /// Begins a flush for a request, or leaves that for the end of the one under way.
    fn sync_later(&mut self, slot: usize, ring: &mut Ring) -> io::Result<()> {
        let begins = self.syncs[self.in_flight[slot].device].as_mut().is_none_or(|s| s.add(slot));
        if begins { ring.submit(RingOp::Sync { slot, fd: self.fd(slot) }) } else { Ok(()) }
    }

    /// The flush that began with a request has ended: so have the others that it was for, and the next one begins.
    fn synced(&mut self, slot: usize, outcome: Outcome, ring: &mut Ring) -> io::Result<()> {
        let Some(syncs) = &mut self.syncs[self.in_flight[slot].device] else { return Ok(()) };
        let (ended, next) = syncs.ended();
        for other in ended.into_iter().filter(|other| *other != slot) {
            let InFlight { device, io, dispatched_at, .. } = self.in_flight.remove(other);
            self.ready.push_back((device, Completion { io, outcome, dispatched_at }));
        }
        next.map_or(Ok(()), |slot| ring.submit(RingOp::Sync { slot, fd: self.fd(slot) }))
    }

    fn file(&self, slot: usize) -> &FileDevice {
        let Device::File(f) = &self.devices[self.in_flight[slot].device] else {
            unreachable!("only files are in flight")
        };
        f
    }

    fn fd(&self, slot: usize) -> std::os::fd::RawFd {
        self.file(slot).file.as_raw_fd()
    }
}

/// A request at an image that was begun.
enum Begun {
    InFlight,
    Answered(Outcome, Data),
}

/// Begins a request at an image. A trim zeroes, since librbd's discard leaves what isn't a whole 64 KiB. Writes are on all replicas when
/// they end, so that FUA needs nothing more.
fn begin_at_image(d: &mut RbdDevice, slot: usize, io: &mut Io, pool: &mut BufPool) -> Begun {
    let (offset, len) = (d.start + io.offset, io.len);
    assert!(io.op == Op::Flush || io.end() <= d.len, "a request beyond the device: {:?}", io.head);
    let begun = match io.op {
        Op::Read => d.queue.read(slot, offset, pool.take(len as usize)),
        Op::Write => {
            let data = aligned(std::mem::take(&mut io.data), len as usize, pool);
            d.queue.write(slot, offset, data)
        }
        Op::Flush => d.queue.flush(slot),
        Op::Trim => d.queue.zero(slot, offset, len, false),
        Op::WriteZeroes => d.queue.zero(slot, offset, len, io.flags.has(IoFlags::NO_HOLE)),
        // That all is data may always be said.
        Op::BlockStatus => return Begun::Answered(Outcome::Done, status_of(len, false)),
        Op::Cache => return Begun::Answered(Outcome::Done, Data::Absent),
    };
    begun.map_or_else(|errno| Begun::Answered(failed_with(errno), Data::Absent), |()| Begun::InFlight)
}

/// The outcome of a request that an image's library refused.
fn failed_with(errno: i32) -> Outcome {
    failed(&io::Error::from_raw_os_error(errno))
}

/// Requests were checked before, so the kernel's EINVAL, and a device that has become read-only, are faults of the device: `Invalid` and
/// `ReadOnly` tell who asked that it asked wrongly.
fn failed(e: &io::Error) -> Outcome {
    Outcome::Failed(match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => IoError::NoSpace,
        Some(libc::EOPNOTSUPP) => IoError::NotSupported,
        _ => IoError::Device,
    })
}

/// A write's bytes in one aligned buffer, as direct I/O needs them.
fn aligned(data: Data, len: usize, pool: &mut BufPool) -> Buf {
    match data {
        Data::Bytes(b) if b.is_aligned() => b,
        other => {
            let mut buf = pool.take(len);
            other.copy_to(buf.as_mut_slice());
            buf.freeze()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{IoHead, TenantId, VolumeKey};
    use std::os::unix::fs::FileExt;

    /// Every request was checked before it got here: a device that finds one invalid is at fault. `Invalid` would have told a client, or the
    /// cache at a write-back, that it asked wrongly.
    #[test]
    fn what_a_device_refuses_is_its_fault() {
        let of = failed_with;
        let device = Outcome::Failed(IoError::Device);
        for errno in [libc::EINVAL, libc::EIO, libc::ENXIO, libc::ERANGE, libc::EROFS, libc::EPERM, libc::EBADF] {
            assert_eq!(of(errno), device, "{errno}");
        }
        let of_client = [IoError::Invalid, IoError::ReadOnly].map(Outcome::Failed);
        assert!((1..200).all(|errno| !of_client.contains(&of(errno))));
        assert_eq!(of(libc::ENOSPC), Outcome::Failed(IoError::NoSpace));
    }

    /// Flushes and durable writes of a buffered file: one flush at a time, so that a failure that the kernel reports to one is everybody's
    /// that it concerns.
    #[test]
    fn flushes_of_a_buffered_file_end_together() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let device = FileDevice { file, start: 0, len: 1 << 20, block_bytes: 512, has_failed_sync: Arc::default() };
        let mut devices = Devices::new(vec![Device::File(device)]);
        let (mut ring, mut pool) = (Ring::new(8).unwrap(), BufPool::new());
        let io = |op, offset, len, flags, data| {
            let volume = VolumeKey { id: 1, generation: 1 };
            let mut head = IoHead::new(op, volume, TenantId(1), offset, len, Time::ZERO);
            head.flags = flags;
            Io::new(head, data)
        };
        let flush = || io(Op::Flush, 0, 0, IoFlags::NONE, Data::Absent);
        let block = Data::Bytes(BufMut::zeroed(4096).freeze());
        let durable = io(Op::Write, 4096, 4096, IoFlags::FUA, block);
        for request in [flush(), flush(), durable, flush()] {
            devices.begin(Time::ZERO, 0, request, &mut ring, &mut pool).unwrap();
        }
        let (mut flushes, mut ended) = (0, Vec::new());
        while !devices.in_flight.is_empty() {
            ring.wait(None).unwrap();
            while let Some((op, result)) = ring.next_completed() {
                let is_flush = matches!(op, RingOp::Sync { .. });
                if let RingOp::Write { durable, .. } = &op {
                    assert!(!durable, "its flush is one of the others");
                }
                // The second one fails.
                flushes += usize::from(is_flush);
                let result =
                    if is_flush && flushes == 2 { Err(io::Error::from_raw_os_error(libc::EIO)) } else { result };
                let last = devices.completed(op, result, &mut ring, &mut pool).unwrap();
                ended
                    .extend(std::iter::from_fn(|| devices.next_ready()).chain(last).map(|(_, c)| (flushes, c.outcome)));
            }
        }
        assert_eq!(ended.len(), 4);
        for (flush, outcome) in &ended {
            assert_eq!(outcome.is_done(), *flush != 2, "{ended:?}");
        }
        assert!(ended.iter().filter(|(_, outcome)| !outcome.is_done()).count() >= 2, "{ended:?}");
    }

    /// A trim that the file can't take is advice, unless layers above forget newer data for it: then it is carried out as zeroes. The devices of
    /// a cache, and trims of a layer's own, are never written for it.
    #[test]
    fn a_trim_that_the_file_cannot_take_is_zeroes_where_layers_forget_newer_data() {
        const LEN: u64 = (2 << 20) + 4096;
        let own = Origin::Own(plimsoll_base::OwnKind::Metadata);
        let client = Origin::Client;
        let cases =
            [(false, 0, client, false), (true, 0, client, true), (true, 1, client, false), (true, 0, own, false)];
        for ((must, device, origin, is_zeroed), flags) in
            cases.into_iter().flat_map(|case| [IoFlags::NONE, IoFlags::FUA].map(|flags| (case, flags)))
        {
            let files = [(); 2].map(|()| tempfile::tempfile().unwrap());
            let made = files.each_ref().map(|file| {
                file.set_len(LEN).unwrap();
                Device::File(FileDevice {
                    file: file.try_clone().unwrap(),
                    start: 0,
                    len: LEN,
                    block_bytes: 512,
                    has_failed_sync: Arc::default(),
                })
            });
            let mut devices = Devices::new(made.into()).with_trims_that_zero(must);
            let (mut ring, mut pool) = (Ring::new(8).unwrap(), BufPool::new());
            let volume = VolumeKey { id: 1, generation: 1 };
            let mut head = IoHead::new(Op::Trim, volume, TenantId(1), 0, LEN, Time::ZERO);
            (head.flags, head.origin) = (flags, origin);
            devices.begin(Time::ZERO, device, Io::new(head, Data::Absent), &mut ring, &mut pool).unwrap();
            let next = |ring: &mut Ring| {
                loop {
                    if let Some(done) = ring.next_completed() {
                        return done;
                    }
                    ring.wait(None).unwrap();
                }
            };
            // This file takes it: the answer is planted.
            let (op, _) = next(&mut ring);
            files[device].write_all_at(&vec![7; LEN as usize], 0).unwrap();
            let planted = Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
            let mut done = devices.completed(op, planted, &mut ring, &mut pool).unwrap();
            while done.is_none() {
                let (op, result) = next(&mut ring);
                done = devices.completed(op, result, &mut ring, &mut pool).unwrap();
            }
            let (at, done) = done.expect("just seen");
            assert_eq!((at, done.outcome), (device, Outcome::Done));
            let mut bytes = vec![1; LEN as usize];
            files[device].read_exact_at(&mut bytes, 0).unwrap();
            let expected = if is_zeroed { 0 } else { 7 };
            assert!(bytes.iter().all(|b| *b == expected), "{must} {device} {origin:?} {flags:?}");
        }
    }

    /// The drive said to a sync of the metadata that it lost writes, and says it once: the next flush fails, and only that one.
    #[test]
    fn a_flush_fails_after_a_failed_sync_of_the_metadata() {
        const LEN: u64 = 1 << 20;
        let has_failed_sync = Arc::new(AtomicBool::new(false));
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN).unwrap();
        let device =
            FileDevice { file, start: 0, len: LEN, block_bytes: 512, has_failed_sync: has_failed_sync.clone() };
        let mut devices = Devices::new(vec![Device::File(device)]);
        let (mut ring, mut pool) = (Ring::new(8).unwrap(), BufPool::new());
        let mut flush = || {
            let volume = VolumeKey { id: 1, generation: 1 };
            let head = IoHead::new(Op::Flush, volume, TenantId(1), 0, 0, Time::ZERO);
            devices.begin(Time::ZERO, 0, Io::new(head, Data::Absent), &mut ring, &mut pool).unwrap();
            let (op, result) = loop {
                if let Some(done) = ring.next_completed() {
                    break done;
                }
                ring.wait(None).unwrap();
            };
            devices.completed(op, result, &mut ring, &mut pool).unwrap().expect("it ends").1.outcome
        };
        assert_eq!(flush(), Outcome::Done);
        has_failed_sync.store(true, Ordering::SeqCst);
        assert_eq!(flush(), Outcome::Failed(IoError::Device));
        assert_eq!(flush(), Outcome::Done);
        has_failed_sync.store(true, Ordering::SeqCst);
        assert_eq!(devices.sync().len(), 1, "the last flush of a pool that ends");
        assert!(devices.sync().is_empty());
    }

    /// Without a thread to ask, and after one that has ended, block status is answered all the same: all is data.
    #[test]
    fn block_status_without_a_thread_is_all_data() {
        const LEN: u64 = 1 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN).unwrap();
        let device = FileDevice { file, start: 0, len: LEN, block_bytes: 512, has_failed_sync: Arc::default() };
        // Nobody has said whom to wake: the thread can't be started.
        let mut devices = Devices::new(vec![Device::File(device)]);
        let (mut ring, mut pool) = (Ring::new(8).unwrap(), BufPool::new());
        for _ in 0..3 {
            let volume = VolumeKey { id: 1, generation: 1 };
            let head = IoHead::new(Op::BlockStatus, volume, TenantId(1), 0, LEN, Time::ZERO);
            devices.begin(Time::ZERO, 0, Io::new(head, Data::Absent), &mut ring, &mut pool).unwrap();
            let (at, done) = devices.next_ready().expect("answered at once");
            assert_eq!((at, done.outcome), (0, Outcome::Done));
            let Data::Status(extents) = done.io.into_data() else { panic!("no extents") };
            let found: Vec<_> = extents.iter().map(|e| (e.len, e.hole, e.zero)).collect();
            assert_eq!(found, [(LEN, false, false)], "a hole in truth, but that may not be known");
        }
        assert!(devices.in_flight.is_empty() && devices.next_status().unwrap().is_none());
    }
}
