//! Places on the device: its zones, and the addresses that are shown above.
//!
//! ```text
//! device   │ free 0   │ zone │ … │ zone │ free 1 │ zone │ … │ free 2 │ … │ last free: the map, twice │ zone │ …
//! above    │ head │ bands ─ free 1 ─ bands │ bands ─ free 2 ─ bands │ …
//! ```
//! A *free* zone takes any write. The head is where the layer above has its tables. A group follows for every other free zone but the last, each with `log_bytes` of its free zone in the middle of its share of the bands.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Structures above are aligned to this.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Choices of the operator, and properties of the drive. It can't change once the device is formatted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Bytes of a zone.
    pub zone_bytes: u64,
    /// One zone in N is free, from zone 0 on: 2 or more.
    pub free_every: u32,
    /// Shingled zones that hold no band: 1 or more.
    pub spares: u32,
    /// Bytes of the head.
    pub head_bytes: u64,
    /// Bytes of each free zone that are shown in its group, at most a zone's.
    pub log_bytes: u64,
    /// Makes this device's checksums its own.
    pub salt: u64,
}

/// The reason why a device can't have a shape, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadShape(pub String);

impl fmt::Display for BadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadShape {}

/// A part of the device at an address that is shown above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A free zone's bytes, by their device address.
    Free {
        /// Device address.
        at: u64,
        /// Bytes from there that lie together.
        len: u64,
    },
    /// A band's bytes, by their address among all bands' bytes.
    Band {
        /// Address: band number times zone size, plus the offset in it.
        at: u64,
        /// Bytes from there in the same band.
        len: u64,
    },
}

impl Place {
    /// Its bytes.
    pub fn len(&self) -> u64 {
        match *self {
            Place::Free { len, .. } | Place::Band { len, .. } => len,
        }
    }

    /// True if the place has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A device divided by a shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// The shape.
    pub shape: Shape,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Shingled zones.
    pub zones: u32,
    /// Bands.
    pub bands: u32,
    /// Groups, and so logs.
    pub groups: u32,
    /// Free zones before that of group 0.
    head_zones: u32,
    free_zones: u32,
    /// Bytes of a group, its log's included.
    pub group_bytes: u64,
    /// Bytes of bands in a group before its log.
    half_bytes: u64,
    /// Bytes that are shown above.
    pub shown_bytes: u64,
    /// Bytes of one copy of the map.
    pub map_bytes: u64,
}

impl Places {
    /// The places on a device of `device_bytes` in blocks of `block_bytes`. Space behind its last whole zone isn't used.
    ///
    /// # Errors
    /// If the shape doesn't fit the device; says which number to change.
    pub fn new(device_bytes: u64, block_bytes: u32, shape: Shape) -> Result<Places, BadShape> {
        let bad = |what: String| Err(BadShape(what));
        let Shape { zone_bytes, free_every, spares, head_bytes, log_bytes, .. } = shape;
        if !block_bytes.is_power_of_two() || u64::from(block_bytes) > PAGE_BYTES {
            return bad(format!("bands need blocks of at most {PAGE_BYTES} bytes, the device has {block_bytes}"));
        }
        let wrong = |n: u64| n == 0 || !n.is_multiple_of(PAGE_BYTES);
        if wrong(zone_bytes) || wrong(head_bytes) || wrong(log_bytes) || log_bytes > zone_bytes {
            return bad(format!(
                "zone ({zone_bytes} bytes), head ({head_bytes}) and log ({log_bytes}) must be multiples of {PAGE_BYTES}, and the log no larger than the zone"
            ));
        }
        let Ok(all) = u32::try_from(device_bytes / zone_bytes) else {
            return bad(format!("more than 2^32 zones of {zone_bytes} bytes: choose larger ones"));
        };
        if free_every < 2 || spares == 0 {
            return bad(format!("one free zone in {free_every} and {spares} spares: at least 2 and 1 are needed"));
        }
        let free_zones = all.div_ceil(free_every);
        let zones = all - free_zones;
        let head_zones = u32::try_from(head_bytes.div_ceil(zone_bytes)).unwrap_or(u32::MAX);
        let (Some(groups), Some(bands)) =
            (free_zones.checked_sub(head_zones.saturating_add(1)), zones.checked_sub(spares))
        else {
            return bad(format!("{all} zones are too few for a head of {head_bytes} bytes and {spares} spares"));
        };
        let map_bytes = (crate::map::HEADER_BYTES + 4 * u64::from(bands)).next_multiple_of(PAGE_BYTES);
        if groups == 0 || bands == 0 || 2 * map_bytes > zone_bytes {
            return bad(format!(
                "{all} zones of {zone_bytes} bytes leave {groups} logs, {bands} bands and half a zone for a map of {map_bytes} bytes: choose other zones"
            ));
        }
        let bands_bytes = u64::from(bands) * zone_bytes;
        let share = bands_bytes / u64::from(groups) / PAGE_BYTES * PAGE_BYTES;
        Ok(Places {
            shape,
            block_bytes,
            zones,
            bands,
            groups,
            head_zones,
            free_zones,
            group_bytes: share + log_bytes,
            half_bytes: share / 2 / PAGE_BYTES * PAGE_BYTES,
            shown_bytes: head_bytes + u64::from(groups) * log_bytes + bands_bytes,
            map_bytes,
        })
    }

    fn free_at(&self, free: u32) -> u64 {
        u64::from(free) * u64::from(self.shape.free_every) * self.shape.zone_bytes
    }

    /// Device address of a shingled zone.
    pub fn zone_at(&self, zone: u32) -> u64 {
        let behind = self.shape.free_every - 1;
        (u64::from(zone / behind) * u64::from(self.shape.free_every) + 1 + u64::from(zone % behind))
            * self.shape.zone_bytes
    }

    /// Device addresses of the map's copies.
    pub fn maps_at(&self) -> [u64; 2] {
        let at = self.free_at(self.free_zones - 1);
        [at, at + self.shape.zone_bytes / 2 / PAGE_BYTES * PAGE_BYTES]
    }

    /// Returns the place of address `at`, which is shown above, and how far it goes on.
    pub fn place(&self, at: u64) -> Place {
        let Shape { zone_bytes, head_bytes, log_bytes, .. } = self.shape;
        if at < head_bytes {
            let len = (zone_bytes - at % zone_bytes).min(head_bytes - at);
            return Place::Free { at: self.free_at((at / zone_bytes) as u32) + at % zone_bytes, len };
        }
        let behind = at - head_bytes;
        let group = (behind / self.group_bytes).min(u64::from(self.groups));
        let within = behind - group * self.group_bytes;
        let (mut logs, mut end) = (group, u64::MAX);
        if group < u64::from(self.groups) {
            let in_log = within.checked_sub(self.half_bytes);
            match in_log {
                None => end = self.half_bytes - within,
                Some(n) if n < log_bytes => {
                    let free = self.free_at(self.head_zones + group as u32);
                    return Place::Free { at: free + n, len: log_bytes - n };
                }
                Some(_) => (logs, end) = (group + 1, self.group_bytes - within),
            }
        }
        let at = behind - logs * log_bytes;
        Place::Band { at, len: end.min(zone_bytes - at % zone_bytes) }
    }

    /// The places of `from..to`, in order.
    pub fn of(&self, from: u64, to: u64) -> impl Iterator<Item = Place> + '_ {
        let mut at = from;
        std::iter::from_fn(move || {
            let most = to.checked_sub(at).filter(|n| *n > 0)?;
            let place = match self.place(at) {
                Place::Free { at, len } => Place::Free { at, len: len.min(most) },
                Place::Band { at, len } => Place::Band { at, len: len.min(most) },
            };
            at += place.len();
            Some(place)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every shown block has a device block or a band's block of its own, beside the map.
        #[test]
        fn everything_shown_has_a_place(zones in 8u64..60, every in 2u32..7, spares in 1u32..4, head in 1u64..20, log in 1u64..9) {
            let shape = Shape { zone_bytes: 32 << 10, free_every: every, spares, head_bytes: head << 12, log_bytes: log << 12, salt: 1 };
            let Ok(p) = Places::new((zones << 15) + 7777, 512, shape) else { return Ok(()) };
            let mut device = vec![0u8; (zones * 8) as usize];
            let mut bands = vec![0u8; (u64::from(p.bands) * 8) as usize];
            for at in p.maps_at() {
                (0..p.map_bytes >> 12).for_each(|i| device[((at >> 12) + i) as usize] += 1);
            }
            (0..p.zones).for_each(|z| (0..8).for_each(|i| device[((p.zone_at(z) >> 12) + i) as usize] += 1));
            let mut at = 0;
            for place in p.of(0, p.shown_bytes) {
                let (first, of) = match place {
                    Place::Free { at, .. } => (at >> 12, &mut device),
                    Place::Band { at, .. } => (at >> 12, &mut bands),
                };
                prop_assert!(!place.is_empty() && place.len().is_multiple_of(PAGE_BYTES));
                (0..place.len() >> 12).for_each(|i| of[(first + i) as usize] += 1);
                at += place.len();
            }
            prop_assert_eq!(at, p.shown_bytes);
            prop_assert!(device.iter().all(|n| *n <= 1), "{:?}", p);
            prop_assert!(bands.iter().all(|n| *n == 1), "{:?}", p);
        }
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let fits =
            Shape { zone_bytes: 1 << 20, free_every: 4, spares: 2, head_bytes: 1 << 20, log_bytes: 1 << 20, salt: 0 };
        assert!(Places::new(64 << 20, 512, fits).is_ok());
        let says = |shape| Places::new(64 << 20, 512, shape).unwrap_err().0;
        assert!(says(Shape { log_bytes: 2 << 20, ..fits }).contains("no larger than the zone"));
        assert!(says(Shape { free_every: 1, ..fits }).contains("one free zone in 1"));
        assert!(says(Shape { head_bytes: 1 << 40, ..fits }).contains("too few"));
        assert!(says(Shape { zone_bytes: 16 << 20, ..fits }).contains("too few"));
        assert!(says(Shape { zone_bytes: 8 << 20, ..fits }).contains("leave 0 logs"));
    }
}
