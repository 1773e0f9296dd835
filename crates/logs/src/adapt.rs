//! The largest write that is logged, set by how fast the logs fill (Manylogs §VI and §VIII; ML-M17).
//!
//! Once a minute of arrivals, the time is computed until all logs are full at that minute's rate. If that is sooner than their next
//! checkpoint, LoggedWriteSize is halved. If it is much later, LoggedWriteSize is doubled again, up to the configured size. A load
//! that would fill the logs within [`LogsConfig::off_below`] even at the smallest size is not logged until it has calmed down.
//! Every byte of it would be written twice, and the checkpoint would fall into the same busy hours.

use crate::config::{LogsConfig, OffHours};
use crate::layout::Layout;
use plimsoll_base::{Span, Time};

/// The rate is measured over this.
const WINDOW: Span = Span::from_secs(60);
/// LoggedWriteSize isn't lowered below this: one page of most file systems and databases.
const LOGGED_MIN: u64 = 4096;
/// Without off-hours, logs should hold this long (the paper's eight busy hours).
const HORIZON: Span = Span::from_secs(8 * 3600);

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Adapt {
    configured: u64,
    now_bytes: u64,
    adaptive: bool,
    off_below: Span,
    off_hours: Option<OffHours>,
    off: bool,
    window_began: Time,
    /// Bytes of this window's writes by size class: at most 4 KiB, 8 KiB, … of what could be logged as configured.
    by_size: [u64; 20],
    /// Bytes of all else.
    other_bytes: u64,
}

impl Adapt {
    pub fn new(config: &LogsConfig) -> Adapt {
        Adapt {
            configured: config.logged_write_bytes,
            now_bytes: config.logged_write_bytes,
            adaptive: config.adaptive,
            off_below: config.off_below,
            off_hours: config.clean.off_hours,
            off: false,
            window_began: Time::ZERO,
            by_size: [0; 20],
            other_bytes: 0,
        }
    }

    /// The largest write that is logged now; 0 while logging is off.
    pub fn logged_write_bytes(&self) -> u64 {
        if self.off { 0 } else { self.now_bytes }
    }

    /// Another LoggedWriteSize from now on. Counts by size no longer show what would be logged, so the window begins anew.
    pub fn configure(&mut self, bytes: u64) {
        (self.configured, self.now_bytes) = (bytes, bytes);
        self.by_size = [0; 20];
        self.other_bytes = 0;
    }

    pub fn is_off(&self) -> bool {
        self.off
    }

    pub fn saw_write(&mut self, len: u64) {
        if len <= self.configured {
            self.by_size[class(len)] += len;
        }
    }

    pub fn saw_other(&mut self, len: u64) {
        self.other_bytes += len;
    }

    /// Looks at the window that has ended, if one has. `free_bytes` is the logs' room.
    pub fn turn(&mut self, now: Time, layout: &Layout, free_bytes: impl Fn() -> u64) {
        let took = now.since(self.window_began);
        if took < WINDOW {
            return;
        }
        let by_size = std::mem::take(&mut self.by_size);
        let other = std::mem::take(&mut self.other_bytes);
        self.window_began = now;
        let full_in = |size: u64, room: u64| {
            let bytes: u64 = by_size[..=class(size)].iter().sum();
            if bytes == 0 { Span::MAX } else { took.scale(room, bytes) }
        };
        if self.off_below > Span::ZERO {
            let all = u64::from(layout.logs) * layout.shape.log_bytes;
            let small: u64 = by_size.iter().sum();
            let soon = full_in(LOGGED_MIN.min(self.configured), all);
            // Where large requests share the disk, small writes near them still pay: then only they are kept apart.
            let alone = small > other;
            self.off = if self.off { soon < self.off_below * 2 && alone } else { soon < self.off_below && alone };
        }
        if !self.adaptive || self.off || self.configured == 0 {
            return;
        }
        let room = free_bytes();
        let wanted = self.off_hours.map_or(HORIZON, |o| o.next(now).since(now).min(HORIZON));
        if full_in(self.now_bytes, room) < wanted {
            self.now_bytes = (self.now_bytes / 2).max(LOGGED_MIN.min(self.configured));
        } else if self.now_bytes < self.configured && full_in(self.now_bytes * 2, room) > wanted * 2 {
            self.now_bytes = (self.now_bytes * 2).min(self.configured);
        }
    }
}

/// The smallest class whose size, 4 KiB doubled so often, holds `len`.
fn class(len: u64) -> usize {
    (len.div_ceil(LOGGED_MIN).max(1).next_power_of_two().trailing_zeros() as usize).min(19)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Shape;

    fn layout() -> Layout {
        Layout::new(10 << 30, 512, Shape { extents_max: 1 << 16, ..Shape::default() }, 1).unwrap()
    }

    fn adapt() -> Adapt {
        Adapt::new(&LogsConfig::default())
    }

    /// A minute of writes and of other requests; what is logged after it.
    fn minute(a: &mut Adapt, now: &mut Time, writes: &[(u64, u64)], other: u64, free: u64) -> u64 {
        for &(len, count) in writes {
            (0..count).for_each(|_| a.saw_write(len));
        }
        a.saw_other(other);
        *now += WINDOW;
        a.turn(*now, &layout(), || free);
        a.logged_write_bytes()
    }

    #[test]
    fn logs_that_would_fill_too_soon_take_smaller_writes_only() {
        let (mut a, mut now) = (adapt(), Time::ZERO);
        // 1 GiB free, 8 h to go: 2.2 MB a minute is the most. 256 KiB writes bring 25 MB, 4 KiB ones 0.4 MB.
        let mix = [(256 << 10, 100), (4096, 100)];
        let sizes: Vec<u64> = (0..8).map(|_| minute(&mut a, &mut now, &mix, 1 << 30, 1 << 30)).collect();
        assert_eq!(sizes[..2], [128 << 10, 128 << 10], "the large ones alone were too much");
        // They go away: after that everything may be logged again.
        assert_eq!(minute(&mut a, &mut now, &[(4096, 100)], 1 << 30, 1 << 30), 256 << 10);
    }

    #[test]
    fn a_flood_of_small_writes_switches_it_off_until_it_calms() {
        let (mut a, mut now) = (adapt(), Time::ZERO);
        // All logs of 10 GiB hold about 1 GB: 300 MB a minute fills them in three minutes.
        assert_eq!(minute(&mut a, &mut now, &[(4096, 75_000)], 0, 1 << 30), 0);
        assert!(a.is_off());
        assert_eq!(minute(&mut a, &mut now, &[(4096, 20_000)], 0, 1 << 30), 0, "not quite calm");
        assert!(minute(&mut a, &mut now, &[(4096, 1000)], 0, 1 << 30) > 0);
        // Beside a stream of large requests the same flood is logged: that is what logs are for.
        assert!(minute(&mut a, &mut now, &[(4096, 75_000)], 4 << 30, 1 << 30) > 0);
    }
}
