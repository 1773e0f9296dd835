//! Places of bands, cache and the unshingled surface on the disk, in sectors.
//!
//! A band is a fixed number of neighbouring shingled tracks. A zone is a range of cylinders with equally long tracks. No band
//! crosses the end of a zone, so each zone ends with a rest that holds no data.
//!
//! ```text
//!  outer edge                                                                       inner edge
//!  | cache, room aside | band 0 | band 1 | …  zone 0 … | rest | band … zone 1 … | rest | …
//! ```
//! One surface may be unshingled. The bands then skip its tracks. Their sectors have the logical addresses behind the last band, cylinder
//! after cylinder.

use std::ops::Range;

use super::spec::SmrSpec;
use crate::disk::{Disk, Mapping, SpecError};

/// Cylinders with equally long tracks, those of the cache left out.
#[derive(Clone, Debug)]
struct Zone {
    first_lbn: u64,
    track: u64,
    first_band: u64,
    /// First logical sector, and first sector on the unshingled surface.
    logical: u64,
    unshingled: u64,
    bands: u64,
    cylinders: u64,
    /// Parity of the first cylinder in its zone of the disk: which way the heads go.
    odd: u64,
}

/// The map from logical sectors to LBNs.
#[derive(Clone, Debug)]
pub(crate) struct Bands {
    zones: Vec<Zone>,
    surfaces: u64,
    /// Surfaces with bands.
    shingled: u64,
    serpentine: bool,
    tracks: u64,
    cache: u64,
    logical: u64,
    unshingled: u64,
}

/// One band.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Band {
    pub first: u64,
    pub sectors: u64,
}

impl Bands {
    pub(crate) fn new(spec: &SmrSpec, disk: &Disk) -> Result<Bands, SpecError> {
        let g = &spec.disk.geometry;
        let surfaces = u64::from(g.surfaces);
        let shingled = surfaces - u64::from(spec.unshingled_surface);
        let sector = u64::from(g.sector_bytes);
        let cache = (spec.cache.mib << 20).div_ceil(sector);
        let band_max =
            u64::from(spec.band_tracks) * g.zones.iter().map(|z| u64::from(z.sectors_per_track)).max().unwrap_or(0);
        // A write leaves at most two pieces that are less than a band, and a log's end a stub as long.
        if cache < 4 * band_max {
            return Err(SpecError::new("cache.mib", "must hold four bands"));
        }
        let mut cache_left = cache + band_max;
        let mut bands = Bands {
            zones: Vec::with_capacity(g.zones.len()),
            surfaces,
            shingled,
            serpentine: g.mapping == Mapping::Serpentine,
            tracks: u64::from(spec.band_tracks),
            cache,
            logical: 0,
            unshingled: 0,
        };
        let mut lbn = 0;
        for (i, z) in g.zones.iter().enumerate() {
            let (track, end) = (u64::from(z.sectors_per_track), zone_end(disk, lbn, z.last_cylinder));
            let cylinder = track * surfaces;
            let whole = (end - lbn) / cylinder;
            // Pairs of cylinders, so that the heads' direction stays what it was.
            let taken = cache_left.div_ceil(2 * cylinder) * 2;
            if cache_left > 0 && (i > 0 || taken >= whole) {
                return Err(SpecError::new("cache.mib", "must fit into the outermost zone, with room for a band"));
            }
            cache_left = 0;
            let cylinders = whole - taken;
            let count = cylinders * shingled / bands.tracks;
            bands.zones.push(Zone {
                first_lbn: lbn + taken * cylinder,
                track,
                first_band: bands.zones.last().map_or(0, |z| z.first_band + z.bands),
                logical: bands.logical,
                unshingled: bands.unshingled,
                bands: count,
                cylinders,
                odd: taken % 2,
            });
            bands.logical += count * bands.tracks * track;
            bands.unshingled += if spec.unshingled_surface { cylinders * track } else { 0 };
            lbn = end;
        }
        if bands.logical == 0 {
            return Err(SpecError::new("band_tracks", "no zone is large enough for a band"));
        }
        Ok(bands)
    }

    /// Sectors in bands.
    pub(crate) fn logical(&self) -> u64 {
        self.logical
    }
    /// Sectors on the unshingled surface, addressed behind those in bands.
    pub(crate) fn unshingled(&self) -> u64 {
        self.unshingled
    }
    /// LBNs of the cache, from 0; behind them is room for one band.
    pub(crate) fn cache(&self) -> u64 {
        self.cache
    }

    pub(crate) fn count(&self) -> u64 {
        self.zones.last().map_or(0, |z| z.first_band + z.bands)
    }

    fn zone(&self, logical: u64) -> &Zone {
        &self.zones[self.zones.partition_point(|z| z.logical <= logical) - 1]
    }

    /// The band of a logical sector.
    pub(crate) fn band(&self, logical: u64) -> Band {
        // Zones without a band have the same first sector as the next; partition_point finds the last of them.
        let z = self.zone(logical);
        let sectors = self.tracks * z.track;
        Band { first: z.logical + (logical - z.logical) / sectors * sectors, sectors }
    }

    /// Place of a shingled track in its zone's cylinders: cylinder and place in that cylinder's order.
    fn shingled_track(&self, z: &Zone, track: u64) -> (u64, u64) {
        let (cylinder, place) = (track / self.shingled, track % self.shingled);
        let reversed = self.serpentine && (cylinder + z.odd) % 2 == 1;
        (cylinder, place + if reversed { self.surfaces - self.shingled } else { 0 })
    }

    /// First LBN of a logical sector, and how many of the `want` sectors from it are in one run.
    pub(crate) fn locate(&self, logical: u64, want: u64) -> (u64, u64) {
        if logical >= self.logical {
            return self.locate_unshingled(logical - self.logical, want);
        }
        let z = self.zone(logical);
        let (track, sector) = ((logical - z.logical) / z.track, (logical - z.logical) % z.track);
        let (cylinder, place) = self.shingled_track(z, track);
        let lbn = z.first_lbn + (cylinder * self.surfaces + place) * z.track + sector;
        let in_zone = z.bands * self.tracks * z.track - (logical - z.logical);
        let run = if self.shingled == self.surfaces {
            in_zone
        } else {
            in_zone.min((self.shingled - track % self.shingled) * z.track - sector)
        };
        (lbn, run.min(want))
    }

    fn locate_unshingled(&self, at: u64, want: u64) -> (u64, u64) {
        let z = &self.zones[self.zones.partition_point(|z| z.unshingled <= at) - 1];
        let (cylinder, sector) = ((at - z.unshingled) / z.track, (at - z.unshingled) % z.track);
        let reversed = self.serpentine && (cylinder + z.odd) % 2 == 1;
        let place = if reversed { 0 } else { self.surfaces - 1 };
        (z.first_lbn + (cylinder * self.surfaces + place) * z.track + sector, (z.track - sector).min(want))
    }

    /// The unshingled track of the cylinder that holds `logical`, as addresses; `None` without such a surface.
    pub(crate) fn unshingled_near(&self, logical: u64) -> Option<Range<u64>> {
        if self.unshingled == 0 {
            return None;
        }
        if let Some(at) = logical.checked_sub(self.logical) {
            let z = &self.zones[self.zones.partition_point(|z| z.unshingled <= at) - 1];
            return Some(self.track_range(z, (at - z.unshingled) / z.track));
        }
        let z = self.zone(logical);
        let (cylinder, _) = self.shingled_track(z, (logical - z.logical) / z.track);
        Some(self.track_range(z, cylinder))
    }

    fn track_range(&self, z: &Zone, cylinder: u64) -> Range<u64> {
        let first = self.logical + z.unshingled + cylinder.min(z.cylinders - 1) * z.track;
        first..first + z.track
    }
}

/// First LBN behind the last of `cylinder`.
fn zone_end(disk: &Disk, from: u64, cylinder: u32) -> u64 {
    let (mut lo, mut hi) = (from, disk.lbns());
    while lo < hi {
        let mid = lo + (hi - lo) / 2;
        if disk.track(mid).cylinder <= cylinder { lo = mid + 1 } else { hi = mid }
    }
    lo
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::DiskOptions;

    fn small(unshingled_surface: bool, mapping: Mapping) -> (SmrSpec, Disk) {
        let mut s = SmrSpec::by_name("seagate-archive-8tb").expect("embedded");
        let g = &mut s.disk.geometry;
        g.surfaces = 4;
        g.mapping = mapping;
        g.cylinders = 60;
        g.zones.truncate(2);
        for (i, z) in g.zones.iter_mut().enumerate() {
            (z.first_cylinder, z.last_cylinder) = (i as u32 * 30, i as u32 * 30 + 29);
            z.sectors_per_track = 64 - 16 * i as u32;
            z.spares = 0;
        }
        (s.band_tracks, s.unshingled_surface, s.cache.mib) = (7, unshingled_surface, 1);
        s.disk.mechanics.seek = crate::disk::SeekCurve::Table { points: vec![(1, 1.0), (59, 10.0)] };
        let disk = Disk::new(&s.disk, DiskOptions::default()).expect("valid");
        (s, disk)
    }

    /// Every address has an LBN of its own, off the cache; the unshingled ones are on the last surface and no
    /// others are; nearness means the same cylinder.
    #[test]
    fn addresses_and_lbns_are_one_to_one() {
        for mapping in [Mapping::Cylinder, Mapping::Serpentine] {
            for unshingled in [false, true] {
                let (spec, disk) = small(unshingled, mapping);
                let bands = Bands::new(&spec, &disk).expect("fits");
                assert_eq!(bands.unshingled() > 0, unshingled);
                let mut used = vec![false; disk.lbns() as usize];
                used[..bands.cache() as usize + 7 * 64].fill(true);
                for at in 0..bands.logical() + bands.unshingled() {
                    let (lbn, run) = bands.locate(at, 1_000_000);
                    assert!(!std::mem::replace(&mut used[lbn as usize], true), "LBN {lbn} has two addresses");
                    let track = disk.track(lbn);
                    assert_eq!(at >= bands.logical(), unshingled && track.head == 3, "{at} at {track:?}");
                    assert!(run > 0);
                    if run > 1 {
                        assert_eq!(bands.locate(at + 1, 1).0, lbn + 1, "a run is a run");
                    }
                    if let Some(near) = bands.unshingled_near(at) {
                        let other = disk.track(bands.locate(near.start, 1).0);
                        assert_eq!((other.cylinder, other.head), (track.cylinder, 3));
                        assert_eq!(other.sectors, near.end - near.start);
                    }
                }
            }
        }
    }

    #[test]
    fn bands_cover_the_addresses_without_gaps() {
        let (spec, disk) = small(true, Mapping::Serpentine);
        let bands = Bands::new(&spec, &disk).expect("fits");
        let (mut at, mut n) = (0, 0);
        while at < bands.logical() {
            let b = bands.band(at);
            assert_eq!((b.first, bands.band(at + b.sectors - 1)), (at, b));
            (at, n) = (at + b.sectors, n + 1);
        }
        assert_eq!(n, bands.count());
    }
}
