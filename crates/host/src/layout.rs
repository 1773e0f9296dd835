//! Memory that is shared with the BPF programs (the same in C: `bpf/layout.h`) and with readers.
//!
//! All members are atomic: others write while we read. A number may be newer than its neighbour; forecasts stand that.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Devices at once. 64 have room if their numbers are usual ones (a test has them); beyond that two may want the same slots.
pub const SLOTS: usize = 128;
/// Slots that a device may be in, from its own on.
pub const CHAIN: usize = 8;
/// Reads of a device that are timed at once.
pub const PROBES: usize = 4;
/// Timed reads of a device that wait for the agent.
pub const SAMPLES: usize = 64;
/// A word of requests has their number above this bit, their bytes below.
pub const COUNT_SHIFT: u32 = 40;
/// Numbers of a device's error distribution for each of [`CLASSES`]: its quantiles at (i + 1/2) / `QUANTILES`.
pub const QUANTILES: usize = 16;
/// Forecasts by how long the wait is beside the read's own time: their errors differ.
pub const CLASSES: usize = 4;
/// All of a state is to be dropped.
pub const DROP_ALL: u32 = u32::MAX;
/// "plimhost" as a number.
pub const MAGIC: u64 = 0x706c_696d_686f_7374;
/// Of everything in this file.
pub const VERSION: u64 = 2;

/// A device as readers see it: the sum of everyone's requests.
#[repr(C)]
pub struct State {
    /// `major << 20 | minor`; 0: none.
    pub dev: AtomicU32,
    /// Of the orders, as far as they were carried out.
    pub epoch: AtomicU32,
    /// In flight, a word.
    pub reads: AtomicU64,
    /// In flight, a word; also discards and the like, without bytes.
    pub writes: AtomicU64,
    /// In the I/O scheduler: reads below, writes in the upper 32 bits.
    pub queued: AtomicU64,
    /// Time at which everything in flight will be done.
    pub next_free_ns: AtomicU64,
    /// Last completion.
    pub done_ns: AtomicU64,
    /// Requests, since the epoch.
    pub completed: AtomicU64,
    pad: [AtomicU64; 9],
}

/// All devices' states: the frozen map.
#[repr(C)]
pub struct States {
    /// By slot.
    pub of: [State; SLOTS],
}

/// The agent's orders to the BPF programs for a device.
#[repr(C)]
pub struct Orders {
    /// As [`State::dev`].
    pub dev: AtomicU32,
    /// Another one than the state's: the programs first drop what the next two say.
    pub epoch: AtomicU32,
    /// Reads counted that the kernel doesn't have; [`DROP_ALL`]: begin anew.
    pub drop_reads: AtomicU32,
    /// The same of writes.
    pub drop_writes: AtomicU32,
    /// Delay of those behind a read in flight.
    pub read_ns: AtomicU32,
    /// The same, for each KiB.
    pub read_ns_per_kib: AtomicU32,
    /// Delay of those behind a write in flight.
    pub write_ns: AtomicU32,
    /// The same, for each KiB.
    pub write_ns_per_kib: AtomicU32,
}

/// All devices' orders: the agent's own map.
#[repr(C)]
pub struct AllOrders {
    /// By slot.
    pub of: [Orders; SLOTS],
}

#[repr(C)]
struct Probe {
    words: [AtomicU64; 6],
}

/// A read that was timed.
#[repr(C)]
pub struct RawSample {
    /// `arrived, done, free, reads, writes, queued, bytes, dev`.
    pub words: [AtomicU64; 8],
}

/// A device's timed reads.
#[repr(C)]
pub struct Samples {
    /// Timed so far.
    pub head: AtomicU64,
    /// Taken by the agent. No read is timed while there is no room.
    pub tail: AtomicU64,
    probes: [Probe; PROBES],
    /// The last of them.
    pub ring: [RawSample; SAMPLES],
}

/// All devices' timed reads: the agent's own map.
#[repr(C)]
pub struct AllSamples {
    /// By slot.
    pub of: [Samples; SLOTS],
}

/// The agent's knowledge of a device, for readers.
#[repr(C)]
pub struct Known {
    /// As [`State::dev`].
    pub dev: AtomicU32,
    /// Epoch of the last order to begin anew: a state of an older one is empty.
    pub reset_epoch: AtomicU32,
    /// 0: nothing yet, no forecast.
    pub samples: AtomicU32,
    /// A read alone.
    pub alone_ns: AtomicU32,
    /// The same, for each KiB.
    pub alone_ns_per_kib: AtomicU32,
    /// As the orders'.
    pub read_ns: AtomicU32,
    /// As the orders'.
    pub read_ns_per_kib: AtomicU32,
    /// Delay of a read by one that is in the I/O scheduler.
    pub queued_read_ns: AtomicU32,
    /// The same of a write.
    pub queued_write_ns: AtomicU32,
    /// Actual by forecast time in thousandths: quantiles, rising, by class.
    pub ratio_permille: [[AtomicU32; QUANTILES]; CLASSES],
}

/// The agent's page: written by it alone, mapped by readers.
#[repr(C)]
pub struct Notice {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: AtomicU64,
    /// Time of the agent's last heartbeat, by CLOCK_MONOTONIC.
    pub heartbeat_ns: AtomicU64,
    pad: [AtomicU64; 5],
    /// By slot.
    pub of: [Known; SLOTS],
}

/// Memory of this layout may be all zeros, and anything that other processes write.
///
/// # Safety
/// All members are atomic numbers.
pub unsafe trait Shared: Sync {}
// SAFETY: an atomic.
unsafe impl Shared for AtomicU64 {}
// SAFETY: atomics only, above.
unsafe impl Shared for States {}
// SAFETY: atomics only, above.
unsafe impl Shared for AllOrders {}
// SAFETY: atomics only, above.
unsafe impl Shared for AllSamples {}
// SAFETY: atomics only, above.
unsafe impl Shared for Notice {}

const _: () = assert!(size_of::<State>() == 128 && size_of::<Orders>() == 32);
const _: () = assert!(size_of::<Samples>() == 16 + PROBES * 48 + SAMPLES * 64);

/// The number of requests in a word.
pub fn number(word: u64) -> u64 {
    word >> COUNT_SHIFT
}

/// The bytes of the requests in a word.
pub fn bytes(word: u64) -> u64 {
    word & ((1 << COUNT_SHIFT) - 1)
}

/// The slots that a device may be in, best first.
pub fn slots(dev: u32) -> impl Iterator<Item = usize> {
    // Minors rise by 1, by 16 (SCSI), or by a disk's partitions (NVMe): the product spreads each of these.
    let own = (dev ^ (dev >> 20)).wrapping_mul(0x9e37_79b1) >> (u32::BITS - SLOTS.ilog2());
    (0..CHAIN).map(move |i| (own as usize + i) % SLOTS)
}

/// `major << 20 | minor` of a device number as the C library has it.
pub fn dev_of(major: u32, minor: u32) -> u32 {
    major << 20 | (minor & 0xf_ffff)
}

/// Loads a number that others write.
pub fn load(from: &AtomicU32) -> u64 {
    from.load(Relaxed).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Disks that find a slot, in this order.
    fn with_room(disks: impl Iterator<Item = u32>) -> usize {
        let mut taken = BTreeSet::new();
        disks.filter_map(|dev| slots(dev).find(|slot| taken.insert(*slot))).count()
    }

    #[test]
    fn sixty_four_disks_have_room() {
        // sda … sdbl: each major number has sixteen disks.
        const SCSI: [u32; 4] = [8, 65, 66, 67];
        let scsi = (0..64).map(|i| dev_of(SCSI[i / 16], i as u32 % 16 * 16));
        assert_eq!(with_room(scsi), 64);
        // nvme0n1 …, each with this number of partitions less one; then other drivers' numbers.
        for step in 1..=16 {
            assert_eq!(with_room((0..64).map(|i| dev_of(259, i * step))), 64, "{step}");
        }
        for (major, step) in [(254, 16), (7, 1), (7, 8), (253, 1)] {
            assert_eq!(with_room((0..64).map(|i| dev_of(major, i * step))), 64, "{major} {step}");
        }
        // In another order, as disks come and go: 27 has no divisor in common with 64.
        assert_eq!(with_room((0..64).map(|i| i * 27 % 64).map(|i| dev_of(SCSI[i / 16], i as u32 % 16 * 16))), 64);
        assert_eq!(with_room((0..64).map(|i| dev_of(259, i * 27 % 64 * 4))), 64);
    }
}
