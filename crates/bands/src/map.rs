//! The map of bands as it lies on the device: which zone holds each band. All little-endian.
//!
//! ```text
//! 0 magic │ 8 version, bands │ 16 number │ 24 xxh3-64 of all of it with this field 0, seeded with the salt │ 64 a word per band
//! ```
//! A word is the zone's number plus one, or 0 for a band of zeroes. It is kept twice, and both copies are durable before anything is done that a map
//! allows. So one copy that is corrupt proves nothing, and the other is good: either the newest, or the one before, of which nothing was given up yet.
//!
//! Magic, version and checksum stay where they are in every version. So a whole copy of a later version isn't taken for a corrupt one: it may be
//! newer than the other copy, whatever that has.

use crate::shape::{PAGE_BYTES, Places, Shape};
use plimsoll_base::{Buf, BufMut};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: &[u8; 8] = b"PLIMBAND";
pub(crate) const VERSION: u32 = 1;
const SUM_AT: usize = 24;
/// Bytes before the first word.
pub(crate) const HEADER_BYTES: u64 = 64;

/// A map that was read or is to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Map {
    /// It grows by one with each change.
    pub number: u64,
    /// Each band's zone, if it has one.
    pub zones: Vec<Option<u32>>,
}

impl Map {
    /// The map of a device without data: every band is zeroes.
    pub fn empty(places: &Places) -> Map {
        Map { number: 1, zones: vec![None; places.bands as usize] }
    }

    /// Its bytes.
    pub fn encode(&self, places: &Places) -> Buf {
        let mut b = BufMut::zeroed(places.map_bytes as usize);
        let bytes = b.as_mut_slice();
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&places.bands.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.number.to_le_bytes());
        for (word, zone) in bytes[HEADER_BYTES as usize..].chunks_exact_mut(4).zip(&self.zones) {
            word.copy_from_slice(&zone.map_or(0, |z| z + 1).to_le_bytes());
        }
        let sum = sum_of(bytes, &places.shape);
        bytes[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        b.freeze()
    }

    /// The version of the map that these bytes are, if a later program wrote it.
    pub fn later_version(bytes: &[u8], places: &Places) -> Option<u32> {
        let fits = bytes.len() as u64 == places.map_bytes && &bytes[..8] == MAGIC;
        let version = u32::from_le_bytes(bytes.get(8..12)?.try_into().expect("four bytes"));
        let sum = bytes.get(SUM_AT..SUM_AT + 8)?.try_into().expect("eight bytes");
        let is_whole = fits && u64::from_le_bytes(sum) == sum_of(bytes, &places.shape);
        Some(version).filter(|version| is_whole && *version > VERSION)
    }

    /// The map that these bytes are, unless they are something else or corrupt. Trusts nothing.
    pub fn decode(bytes: &[u8], places: &Places, check: bool) -> Option<Map> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let fits = bytes.len() as u64 == places.map_bytes && &bytes[..8] == MAGIC;
        if !fits || word(8) != VERSION || word(12) != places.bands {
            return None;
        }
        if check && long(SUM_AT) != sum_of(bytes, &places.shape) {
            return None;
        }
        let mut taken = vec![false; places.zones as usize];
        let mut zones = Vec::with_capacity(places.bands as usize);
        for i in 0..places.bands as usize {
            let zone = word(HEADER_BYTES as usize + 4 * i).checked_sub(1);
            if let Some(z) = zone
                && std::mem::replace(taken.get_mut(z as usize)?, true)
            {
                return None;
            }
            zones.push(zone);
        }
        Some(Map { number: long(16), zones })
    }
}

fn sum_of(bytes: &[u8], shape: &Shape) -> u64 {
    let mut sum = Xxh3::with_seed(shape.salt);
    for n in [shape.zone_bytes, u64::from(shape.free_every), u64::from(shape.spares), shape.head_bytes, shape.log_bytes]
    {
        sum.update(&n.to_le_bytes());
    }
    sum.update(&bytes[..SUM_AT]);
    sum.update(&bytes[SUM_AT + 8..]);
    sum.digest()
}

/// Returns the addresses and bytes that format a device: both copies of the map. All bands read as zeroes then.
pub fn format_device(places: &Places) -> Vec<(u64, Vec<u8>)> {
    let map = Map::empty(places).encode(places);
    debug_assert!((map.len() as u64).is_multiple_of(PAGE_BYTES));
    places.maps_at().map(|at| (at, map.as_slice().to_vec())).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn places() -> Places {
        let shape =
            Shape { zone_bytes: 16 << 10, free_every: 4, spares: 2, head_bytes: 4096, log_bytes: 8192, salt: 77 };
        Places::new(1 << 20, 512, shape).unwrap()
    }

    #[test]
    fn a_map_is_what_was_written_and_any_change_shows() {
        let p = places();
        let mut map = Map::empty(&p);
        (map.number, map.zones[3], map.zones[7]) = (9, Some(12), Some(0));
        let bytes = map.encode(&p).as_slice().to_vec();
        assert_eq!(Map::decode(&bytes, &p, true), Some(map));
        let other = Places::new(1 << 20, 512, Shape { salt: 78, ..p.shape }).unwrap();
        assert_eq!(Map::decode(&bytes, &other, true), None, "another device's");
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Map::decode(&b, &p, true), None, "bit {bit}");
        }
    }

    #[test]
    fn a_later_version_is_told_from_corruption() {
        let p = places();
        let mut bytes = Map::empty(&p).encode(&p).as_slice().to_vec();
        assert_eq!(Map::later_version(&bytes, &p), None);
        bytes[8] += 1;
        assert_eq!(Map::later_version(&bytes, &p), None, "a changed byte");
        let sum = sum_of(&bytes, &p.shape);
        bytes[SUM_AT..SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        assert_eq!((Map::later_version(&bytes, &p), Map::decode(&bytes, &p, true)), (Some(VERSION + 1), None));
        assert_eq!(Map::later_version(&bytes[..4], &p), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_map_or_none(mut bytes in prop::collection::vec(any::<u8>(), 4096), good in any::<bool>()) {
            if good {
                bytes[..16].copy_from_slice(&Map::empty(&places()).encode(&places()).as_slice()[..16]);
            }
            let _ = Map::later_version(&bytes, &places());
            let found = Map::decode(&bytes, &places(), false);
            let zones = found.iter().flat_map(|m| m.zones.iter().flatten());
            prop_assert!(zones.max().is_none_or(|z| *z < places().zones));
        }
    }
}
