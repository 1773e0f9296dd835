//! The layout of the logs: LogSize in every GroupSize (Manylogs §III-B, ML-M1), and a home address's place on the device.
//!
//! ```text
//! device  │ layout │ note × 2 │ layout │ image × 2 │ group 0              │ group 1 …            │ rest │
//!         0                                        base    ┌───────┐                   ┌───────┐
//!         group                                    │ home  │  log  │   home    │ home  │  log  │ home …
//! home    0 ───────────────────────────────────────┴─ (logs left out, the rest follows on) ─────────►
//! ```
//! A log lies in the middle of its group, so that no place is farther from a log than half a group; the paper's file
//! system has it at the group's end, its block layer doesn't say.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An operator's choice of a device's layout. It can't change once the device is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// GroupSize: one log lies in each run of this number of bytes (Manylogs §VI: 100 MB).
    pub group_bytes: u64,
    /// LogSize (10 MB).
    pub log_bytes: u64,
    /// Extents that the MTL table holds at most: bounds memory (about 80 bytes each) and the image on the device (32 each).
    pub extents_max: u32,
}

impl Shape {
    /// The largest `logged_write_bytes` that the operator can choose.
    pub const fn logged_write_max(&self) -> u64 {
        self.log_bytes / 4
    }
}

impl Default for Shape {
    fn default() -> Shape {
        Shape { group_bytes: 100 << 20, log_bytes: 10 << 20, extents_max: 1 << 20 }
    }
}

/// The reason why a device can't be laid out, or isn't laid out as expected, and the remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadLayout(pub String);

impl fmt::Display for BadLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadLayout {}

/// Bytes of the layout block and of each note: what every device writes without being asked for less.
pub const PAGE_BYTES: u64 = 4096;
/// Places of the two notes.
pub const NOTES_AT: [u64; 2] = [PAGE_BYTES, 2 * PAGE_BYTES];
/// Offsets of the two copies of the layout page.
pub const LAYOUTS_AT: [u64; 2] = [0, 3 * PAGE_BYTES];
/// The first image's place.
const IMAGES_AT: u64 = 4 * PAGE_BYTES;
/// Groups begin at multiples of this, where the device is large enough to afford it.
const BASE_ALIGN: u64 = 1 << 20;
/// The smallest log: several records of the largest size that is logged.
pub const LOG_BYTES_MIN: u64 = 16 << 10;
/// An image's header.
pub const IMAGE_HEADER_BYTES: u64 = PAGE_BYTES;
/// A log's entry in an image.
pub const IMAGE_LOG_BYTES: u64 = 16;
/// An extent's entry in an image.
pub const IMAGE_EXTENT_BYTES: u64 = 32;

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The device's bytes that are used.
    pub device_bytes: u64,
    /// The device's block.
    pub block_bytes: u32,
    /// As chosen.
    pub shape: Shape,
    /// Makes this device's checksums its own: what another device (or a client) wrote can't pass for a record.
    pub salt: u64,
    /// Number of groups, and so of logs.
    pub logs: u32,
    /// The beginning of group 0.
    pub base: u64,
    /// Bytes of one image's place.
    pub image_bytes: u64,
    /// Home bytes before a group's log.
    half_bytes: u64,
    /// Home bytes that are offered above.
    pub home_bytes: u64,
}

impl Layout {
    /// The layout of a device of `device_bytes` in blocks of `block_bytes`.
    ///
    /// # Errors
    /// If the shape doesn't fit the device; says which number to change.
    pub fn new(device_bytes: u64, block_bytes: u32, shape: Shape, salt: u64) -> Result<Layout, BadLayout> {
        let bad = |what: String| Err(BadLayout(what));
        let block = u64::from(block_bytes);
        if !block_bytes.is_power_of_two() || !(512..=PAGE_BYTES).contains(&block) {
            return bad(format!("logs need blocks of 512 to 4096 bytes, the device has {block_bytes}"));
        }
        let Shape { group_bytes, log_bytes, extents_max } = shape;
        if !group_bytes.is_multiple_of(PAGE_BYTES) || !log_bytes.is_multiple_of(PAGE_BYTES) {
            return bad(format!("group ({group_bytes} bytes) and log ({log_bytes}) must be multiples of 4096"));
        }
        if log_bytes < LOG_BYTES_MIN || log_bytes > u64::from(u32::MAX) || log_bytes >= group_bytes {
            return bad(format!(
                "a log of {log_bytes} bytes in a group of {group_bytes}: it must have {LOG_BYTES_MIN} bytes to 4 GiB and be smaller than its group"
            ));
        }
        if extents_max < 64 {
            return bad(format!("an MTL table of {extents_max} extents is too small: 64 or more"));
        }
        let groups_max = device_bytes / group_bytes;
        let image_bytes =
            (IMAGE_HEADER_BYTES + groups_max * IMAGE_LOG_BYTES + u64::from(extents_max) * IMAGE_EXTENT_BYTES)
                .next_multiple_of(PAGE_BYTES);
        let align = if group_bytes >= BASE_ALIGN { BASE_ALIGN } else { PAGE_BYTES };
        let base = (IMAGES_AT + 2 * image_bytes).next_multiple_of(align);
        let groups = device_bytes.saturating_sub(base) / group_bytes;
        if groups == 0 {
            return bad(format!(
                "a device of {device_bytes} bytes has no room for the MTL table ({base} bytes) and one group of {group_bytes}: choose a smaller group, or fewer extents"
            ));
        }
        let Ok(logs) = u32::try_from(groups) else { return bad("more than 2^32 groups: choose a larger group".into()) };
        let device_bytes = device_bytes / block * block;
        let home_bytes = device_bytes - base - groups * log_bytes;
        let half_bytes = (group_bytes - log_bytes) / 2 / PAGE_BYTES * PAGE_BYTES;
        Ok(Layout { device_bytes, block_bytes, shape, salt, logs, base, image_bytes, half_bytes, home_bytes })
    }

    /// Offset of image slot `n`: 0 or 1. (Format version 1 wrote image number n to slot n % 2.)
    pub const fn image_at(&self, n: u64) -> u64 {
        IMAGES_AT + n % 2 * self.image_bytes
    }

    /// The log that the device range `at..at + len` lies in.
    pub fn log_of(&self, at: u64, len: u64) -> Option<u32> {
        let log = self.group_of(at);
        let start = self.log_start(log);
        (at >= start && at.checked_add(len)? <= start + self.shape.log_bytes).then_some(log)
    }

    /// The device address of `home`, and how many bytes from there lie together.
    pub const fn to_device(&self, home: u64) -> (u64, u64) {
        let step = self.shape.group_bytes - self.shape.log_bytes;
        let passed = if home < self.half_bytes { 0 } else { (home - self.half_bytes) / step + 1 };
        let (passed, end) = if passed < self.logs as u64 {
            (passed, self.half_bytes + passed * step)
        } else {
            (self.logs as u64, self.home_bytes)
        };
        (self.base + home + passed * self.shape.log_bytes, end - home)
    }

    /// Number of extents in an image of `bytes` bytes.
    pub const fn extents_in(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(IMAGE_HEADER_BYTES + self.logs as u64 * IMAGE_LOG_BYTES) / IMAGE_EXTENT_BYTES
    }

    /// The beginning of log `log` on the device.
    pub const fn log_start(&self, log: u32) -> u64 {
        self.base + log as u64 * self.shape.group_bytes + self.half_bytes
    }

    /// The group that a device address lies in (the nearest, outside all groups).
    pub fn group_of(&self, device: u64) -> u32 {
        let group = device.saturating_sub(self.base) / self.shape.group_bytes;
        group.min(u64::from(self.logs) - 1) as u32
    }

    /// True if both are the same but for the salt.
    pub fn is_laid_out_as(&self, other: &Layout) -> bool {
        *self == Layout { salt: self.salt, ..*other }
    }

    /// The block as a length.
    pub const fn block(&self) -> u64 {
        self.block_bytes as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPE: Shape = Shape { group_bytes: 256 << 10, log_bytes: 64 << 10, extents_max: 64 };

    proptest! {
        /// Every home block has a device block of its own, outside logs and tables, in order.
        #[test]
        fn home_and_logs_share_the_device(mib in 1u64..9, odd in 0u64..200, group in 2u64..40, log in 4u64..9) {
            let shape = Shape { group_bytes: group * 16384, log_bytes: (log * 4096).min(group * 8192), extents_max: 64 };
            let Ok(l) = Layout::new((mib << 20) + odd * 512, 512, shape, 7) else { return Ok(()) };
            let mut used = vec![0u8; (l.device_bytes / 512) as usize];
            used[..(l.base / 512) as usize].fill(1);
            for log in 0..l.logs {
                let from = (l.log_start(log) / 512) as usize;
                used[from..from + (l.shape.log_bytes / 512) as usize].iter_mut().for_each(|u| *u += 1);
                prop_assert_eq!(l.group_of(l.log_start(log)), log);
            }
            let (mut home, mut last) = (0, 0);
            while home < l.home_bytes {
                let (device, run) = l.to_device(home);
                prop_assert!(run > 0 && device >= last, "{} at {}", home, device);
                for b in device / 512..(device + run) / 512 {
                    used[b as usize] += 1;
                }
                last = device + run;
                home += run;
            }
            prop_assert!(used.iter().all(|&n| n == 1), "each block once: {:?}", l);
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let says = |size, shape| Layout::new(size, 512, shape, 0).unwrap_err().0;
        assert!(says(1 << 20, Shape::default()).contains("choose a smaller group"));
        assert!(says(1 << 30, Shape { log_bytes: 100 << 20, ..Shape::default() }).contains("smaller than its group"));
        assert!(says(1 << 30, Shape { log_bytes: 1000, ..SHAPE }).contains("multiples of 4096"));
        assert!(Layout::new(1 << 30, 8192, SHAPE, 0).is_err());
    }

    /// ML-M15: on a RAID-0 each member has its part of each log.
    #[test]
    fn each_member_of_a_raid_has_its_share() {
        let l = Layout::new(4 * 146_000_000_000 / 512 * 512, 512, Shape::default(), 0).unwrap();
        let (members, chunk) = (4, 64 << 10);
        for log in [0, 1, 7, l.logs - 1] {
            let mut share = [0; 4];
            for at in (0..l.shape.log_bytes).step_by(4096) {
                share[((l.log_start(log) + at) / chunk % members) as usize] += 4096;
            }
            assert_eq!(share, [l.shape.log_bytes / members; 4], "2.5 MiB of 10 in 25 of 100");
        }
    }

    #[test]
    fn a_terabyte_has_ten_thousand_logs() {
        let l = Layout::new(1_000_204_886_016, 512, Shape::default(), 0).unwrap();
        assert!((9_400..10_100).contains(&l.logs), "{l:?}");
        assert!(l.home_bytes * 10 > l.device_bytes * 8);
    }
}
