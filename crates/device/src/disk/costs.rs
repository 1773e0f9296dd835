//! The controller's and the bus's times, in nanoseconds.

use super::spec::DiskSpec;

/// Compiled [`super::Overheads`] and [`super::Bus`].
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// `[hit][after read]`.
    read_ns: [[u64; 2]; 2],
    write_ns: [[u64; 2]; 2],
    pub preparation_ns: u64,
    pub reselect_ns: u64,
    pub write_reselect_ns: u64,
    pub read_completion_ns: u64,
    pub write_completion_ns: u64,
    /// A command without data or media.
    pub command_ns: u64,
    pub disconnect: Option<Disconnect>,
    /// [`super::Buffer::read_watermark`] in 1024ths.
    pub read_watermark_per_1024: u64,
    read_ps_per_sector: u64,
    write_ps_per_sector: u64,
}

/// Compiled [`super::WriteDisconnect`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disconnect {
    /// From arrival to the arm's start, and to the data's.
    pub arm_ns: u64,
    pub data_ns: u64,
    pub minimum_seek_ns: u64,
}

fn ns(ms: f64) -> u64 {
    (ms * 1e6).round() as u64
}

impl Costs {
    pub(crate) fn new(spec: &DiskSpec) -> Costs {
        let o = &spec.overheads;
        Costs {
            read_ns: [
                [ns(o.read_miss_after_write_ms), ns(o.read_miss_after_read_ms)],
                [ns(o.read_hit_after_write_ms), ns(o.read_hit_after_read_ms)],
            ],
            write_ns: [
                [ns(o.write_miss_after_write_ms), ns(o.write_miss_after_read_ms)],
                [ns(o.write_hit_after_write_ms), ns(o.write_hit_after_read_ms)],
            ],
            preparation_ns: ns(o.data_preparation_ms),
            reselect_ns: ns(o.reselect_ms),
            write_reselect_ns: ns(o.write_reselect_ms),
            read_completion_ns: ns(o.read_completion_ms),
            write_completion_ns: ns(o.write_completion_ms),
            command_ns: ns(o.write_hit_after_write_ms + o.write_completion_ms).max(1),
            disconnect: o.write_disconnect.as_ref().map(|d| Disconnect {
                arm_ns: ns(d.command_ms + d.seek_delay_ms),
                data_ns: ns(d.command_ms + d.disconnect_ms + d.away_ms + o.reselect_ms + o.data_preparation_ms),
                minimum_seek_ns: ns(d.minimum_seek_ms),
            }),
            read_watermark_per_1024: (spec.buffer.read_watermark * 1024.0).round() as u64,
            read_ps_per_sector: (spec.bus.read_us_per_sector * 1e6).round() as u64,
            write_ps_per_sector: (spec.bus.write_us_per_sector * 1e6).round() as u64,
        }
    }

    pub(crate) fn read_overhead_ns(&self, hit: bool, after_read: bool) -> u64 {
        self.read_ns[usize::from(hit)][usize::from(after_read)]
    }

    pub(crate) fn write_overhead_ns(&self, hit: bool, after_read: bool) -> u64 {
        self.write_ns[usize::from(hit)][usize::from(after_read)]
    }

    pub(crate) fn bus_read_ns(&self, sectors: u64) -> u64 {
        sectors.saturating_mul(self.read_ps_per_sector) / 1000
    }

    pub(crate) fn bus_write_ns(&self, sectors: u64) -> u64 {
        sectors.saturating_mul(self.write_ps_per_sector) / 1000
    }
}
