//! The time that a read would take, from a device's state and what is known of it (MittOS §4.1).
//!
//! ```text
//!       in flight           queued              the read
//!  now ───────────┤├──── their costs ────┤├── its own ──┤
//!            next free time
//! ```
//! The forecast is the length of this line, or the time of a read alone if that is longer. The second case is a device that serves
//! several requests at once: there a read's cost, its delay of those behind it, is less than its own time.
//!
//! Integers only, no clock: the caller passes the time.

use crate::layout::{CLASSES, Known, QUANTILES, State, bytes, load, number};
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// A state as it was at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Load {
    /// In flight, as words.
    pub reads: u64,
    /// In flight, as words.
    pub writes: u64,
    /// In the I/O scheduler.
    pub queued_reads: u32,
    /// In the I/O scheduler.
    pub queued_writes: u32,
    /// Time at which everything in flight will be done.
    pub next_free_ns: u64,
}

impl Load {
    /// A device's load now.
    pub fn of(state: &State) -> Load {
        let queued = state.queued.load(Relaxed);
        Load {
            reads: state.reads.load(Relaxed),
            writes: state.writes.load(Relaxed),
            queued_reads: queued as u32,
            queued_writes: (queued >> 32) as u32,
            next_free_ns: state.next_free_ns.load(Relaxed),
        }
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> u64 {
        number(self.reads) + number(self.writes)
    }

    /// Requests in flight or queued.
    pub fn requests(&self) -> u64 {
        self.in_flight() + u64::from(self.queued_reads) + u64::from(self.queued_writes)
    }

    /// Bytes in flight.
    pub fn bytes_in_flight(&self) -> u64 {
        bytes(self.reads) + bytes(self.writes)
    }
}

/// Costs of requests, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Costs {
    /// A read alone.
    pub alone_ns: u32,
    /// A read alone, for each KiB.
    pub alone_ns_per_kib: u32,
    /// Delay of those behind a read: less than its time alone if the device does several at once.
    pub read_ns: u32,
    /// The same, for each KiB.
    pub read_ns_per_kib: u32,
    /// Delay of those behind a write.
    pub write_ns: u32,
    /// The same, for each KiB.
    pub write_ns_per_kib: u32,
    /// Delay of a read by one that is in the I/O scheduler.
    pub queued_read_ns: u32,
    /// The same of a write.
    pub queued_write_ns: u32,
}

/// Actual by forecast time in thousandths: quantiles, rising, by class.
pub type Ratios = [[u32; QUANTILES]; CLASSES];

/// The time that a read would take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forecast {
    /// Until it would be the device's only one.
    pub wait_ns: u64,
    /// Until it would be done.
    pub total_ns: u64,
}

impl Costs {
    /// The forecast for a read of `len` bytes that would begin at `now_ns`.
    pub fn forecast(&self, load: &Load, now_ns: u64, len: u64) -> Forecast {
        let kib = len.div_ceil(1024);
        let linear = |base: u32, per_kib: u32| u64::from(base) + kib * u64::from(per_kib);
        // A device that is behind its time will be so for about as long again: nothing else is known of a stall.
        let in_flight = if load.in_flight() == 0 { 0 } else { load.next_free_ns.abs_diff(now_ns) };
        let queued = u64::from(load.queued_reads) * u64::from(self.queued_read_ns)
            + u64::from(load.queued_writes) * u64::from(self.queued_write_ns);
        let alone = linear(self.alone_ns, self.alone_ns_per_kib);
        let behind = in_flight.saturating_add(queued).saturating_add(linear(self.read_ns, self.read_ns_per_kib));
        // What a read holds up is unknown until some wait for others; one that finds the device idle takes the time of a read alone.
        let total_ns = if load.requests() == 0 { alone } else { alone.max(behind) };
        Forecast { wait_ns: total_ns - alone, total_ns }
    }
}

impl Forecast {
    /// Forecasts of one class err alike.
    pub fn class(&self) -> usize {
        let alone = (self.total_ns - self.wait_ns).max(1);
        match self.wait_ns / alone {
            0 if self.wait_ns < alone / 4 => 0,
            0..2 => 1,
            2..8 => 2,
            _ => 3,
        }
    }

    /// The probability, in thousandths, that the read takes longer than `deadline_ns`.
    pub fn late_permille(&self, ratios: &Ratios, deadline_ns: u64) -> u32 {
        self.late_permille_by(&ratios[self.class()], deadline_ns)
    }

    /// The same by the ratios of its class.
    pub fn late_permille_by(&self, ratios: &[u32; QUANTILES], deadline_ns: u64) -> u32 {
        let over = |r: &&u32| (u128::from(self.total_ns) * u128::from(**r) / 1000) > u128::from(deadline_ns);
        let late = ratios.iter().filter(over).count();
        (late * 1000 / QUANTILES) as u32
    }
}

impl Known {
    /// The device's costs, if they are known well enough to forecast.
    pub fn costs(&self) -> Option<Costs> {
        if self.samples.load(Relaxed) == 0 {
            return None;
        }
        Some(Costs {
            alone_ns: self.alone_ns.load(Relaxed),
            alone_ns_per_kib: self.alone_ns_per_kib.load(Relaxed),
            read_ns: self.read_ns.load(Relaxed),
            read_ns_per_kib: self.read_ns_per_kib.load(Relaxed),
            write_ns: 0,
            write_ns_per_kib: 0,
            queued_read_ns: self.queued_read_ns.load(Relaxed),
            queued_write_ns: self.queued_write_ns.load(Relaxed),
        })
    }

    /// The probability, in thousandths, that a read with this forecast takes longer than `deadline_ns`.
    pub fn late_permille(&self, forecast: &Forecast, deadline_ns: u64) -> u32 {
        let mut ratios = [[0; QUANTILES]; CLASSES];
        let class = forecast.class();
        for (to, from) in ratios[class].iter_mut().zip(&self.ratio_permille[class]) {
            *to = load(from) as u32;
        }
        forecast.late_permille(&ratios, deadline_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::COUNT_SHIFT;

    const DISK: Costs = Costs {
        alone_ns: 8_000_000,
        alone_ns_per_kib: 10_000,
        read_ns: 8_000_000,
        read_ns_per_kib: 10_000,
        write_ns: 8_000_000,
        write_ns_per_kib: 10_000,
        queued_read_ns: 8_000_000,
        queued_write_ns: 1_000_000,
    };

    #[test]
    fn an_idle_device_takes_the_time_of_a_read_alone() {
        let idle = Load { next_free_ns: 5, ..Load::default() };
        assert_eq!(DISK.forecast(&idle, 1_000_000_000, 4096), Forecast { wait_ns: 0, total_ns: 8_040_000 });
    }

    #[test]
    fn an_idle_device_has_no_costs_of_those_behind() {
        let known_alone = Costs { alone_ns: 4_000, alone_ns_per_kib: 0, ..DISK };
        assert_eq!(known_alone.forecast(&Load::default(), 9, 4096), Forecast { wait_ns: 0, total_ns: 4_000 });
    }

    #[test]
    fn what_is_in_flight_and_queued_comes_first() {
        let load =
            Load { reads: 1 << COUNT_SHIFT, queued_reads: 2, queued_writes: 3, next_free_ns: 104_000_000, writes: 0 };
        let f = DISK.forecast(&load, 100_000_000, 4096);
        assert_eq!(f.wait_ns, 4_000_000 + 16_000_000 + 3_000_000);
        assert_eq!(f.total_ns, f.wait_ns + 8_040_000);
    }

    #[test]
    fn a_stalled_device_is_expected_to_stall_on() {
        let load = Load { writes: 1 << COUNT_SHIFT, next_free_ns: 100_000_000, ..Load::default() };
        assert_eq!(DISK.forecast(&load, 700_000_000, 4096).wait_ns, 600_000_000);
    }

    #[test]
    fn flash_does_several_at_once() {
        let flash = Costs { alone_ns: 80_000, read_ns: 10_000, ..Costs::default() };
        let four = Load { reads: 4 << COUNT_SHIFT, next_free_ns: 40_000, ..Load::default() };
        assert_eq!(flash.forecast(&four, 0, 4096), Forecast { wait_ns: 0, total_ns: 80_000 });
        let many = Load { reads: 40 << COUNT_SHIFT, next_free_ns: 400_000, ..Load::default() };
        assert_eq!(flash.forecast(&many, 0, 4096).total_ns, 410_000);
    }

    #[test]
    fn lateness_is_read_off_the_errors() {
        let mut ratios = [[1000; QUANTILES]; CLASSES];
        ratios[0][12..].fill(3000);
        let f = Forecast { wait_ns: 0, total_ns: 10_000 };
        assert_eq!(f.late_permille(&ratios, 10_000), 250);
        assert_eq!(f.late_permille(&ratios, 9_999), 1000);
        assert_eq!(f.late_permille(&ratios, 30_000), 0);
    }
}
