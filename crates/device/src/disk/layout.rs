//! Place of an LBN: zone, cylinder, head, sector and angle.

use super::divide::Divider;
use super::spec::{DiskSpec, Mapping, Sparing, SpecError};

/// The place of one sector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    pub zone: u32,
    pub cylinder: u32,
    /// Physical head.
    pub head: u32,
    /// Place of the track in the cylinder's order, which decides its skew.
    pub turn: u32,
    /// Physical sector on the track.
    pub sector: u32,
}

#[derive(Clone, Debug)]
struct Zone {
    first_lbn: u64,
    end_lbn: u64,
    first_cylinder: u32,
    track: Divider,
    cylinder: Divider,
    front: u64,
    /// Granule: what slips and spares count, in sectors (a track or a sector).
    granule: u64,
    /// Granules with an LBN, and all granules, of one sparing unit.
    unit_lbns: u64,
    unit_slots: u64,
    /// True if the zone is one unit without slips: the common case, free of divisions.
    plain: bool,
    /// For each slip, the first granule number (in the zone's LBN order) that lies behind it.
    slip_keys: Box<[u64]>,
    /// Nanoseconds of a sector, times 2^20.
    sector_fixed: Divider,
    offset_ns: u64,
    track_skew_ns: u64,
    cylinder_step_ns: u64,
}

/// Nanoseconds are kept with this many binary digits behind the point, so that a track's sectors add up to a turn.
const FIXED: u32 = 20;

/// The map from LBNs to places, of one arm.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    zones: Box<[Zone]>,
    /// Zone of the first LBN of each bucket of 2^shift LBNs.
    bucket_zone: Box<[u16]>,
    bucket_shift: u32,
    surfaces: u32,
    mapping: Mapping,
    sectors: u64,
    period: Divider,
}

impl Layout {
    /// Builds the map of one of `spec`'s arms. `switch_ns` are the times of a head switch and of a seek to the
    /// next cylinder, for skews that the spec leaves open.
    pub(crate) fn new(spec: &DiskSpec, period_ns: u64, switch_ns: (u64, u64)) -> Result<Layout, SpecError> {
        let g = &spec.geometry;
        let surfaces = g.surfaces / spec.mechanics.actuators;
        let mut first_lbn = 0;
        let mut zones = Vec::with_capacity(g.zones.len());
        for (i, z) in g.zones.iter().enumerate() {
            let spt = u64::from(z.sectors_per_track);
            let sector_fixed = (period_ns << FIXED) / spt;
            let sectors_ns = |n: f64| ((n * sector_fixed as f64) / (1u64 << FIXED) as f64).ceil() as u64;
            let skew = |given: Option<f64>, need_ns: u64| {
                sectors_ns(given.unwrap_or((need_ns as f64 * spt as f64 / period_ns as f64).ceil()))
            };
            let track_skew_ns = skew(z.track_skew_sectors, switch_ns.0);
            let cylinder_skew_ns = skew(z.cylinder_skew_sectors, switch_ns.1);
            let mut zone = Zone {
                first_lbn,
                end_lbn: 0,
                first_cylinder: z.first_cylinder,
                track: Divider::new(spt),
                cylinder: Divider::new(spt * u64::from(surfaces)),
                front: z.front_sectors,
                granule: 1,
                unit_lbns: 0,
                unit_slots: 0,
                plain: false,
                slip_keys: Box::default(),
                sector_fixed: Divider::new(sector_fixed),
                offset_ns: sectors_ns(z.offset_sectors) % period_ns,
                track_skew_ns: track_skew_ns % period_ns,
                cylinder_step_ns: (u64::from(surfaces - 1) * track_skew_ns + cylinder_skew_ns) % period_ns,
            };
            let cylinders = u64::from(z.last_cylinder - z.first_cylinder + 1);
            zone.set_sparing(g.sparing, cylinders, u64::from(g.sparing_range_cylinders), z.spares, &z.slips);
            let lbns = zone.lbns(g.sparing, cylinders, z.spares, z.slips.len() as u64);
            if lbns == 0 {
                return Err(SpecError::new(format!("geometry.zones[{i}]"), "has no usable sector"));
            }
            zone.end_lbn = first_lbn + lbns;
            first_lbn = zone.end_lbn;
            zones.push(zone);
        }
        let bucket_shift = 64 - (first_lbn / 1024).leading_zeros();
        let bucket_zone = (0..=first_lbn >> bucket_shift)
            .map(|b| zones.partition_point(|z: &Zone| z.end_lbn <= b << bucket_shift).min(zones.len() - 1) as u16)
            .collect();
        Ok(Layout {
            zones: zones.into(),
            bucket_zone,
            bucket_shift,
            surfaces,
            mapping: g.mapping,
            sectors: first_lbn,
            period: Divider::new(period_ns),
        })
    }

    /// Number of LBNs.
    pub(crate) fn sectors(&self) -> u64 {
        self.sectors
    }

    /// One turn.
    pub(crate) fn period_ns(&self) -> u64 {
        self.period.by()
    }

    /// The angle at an instant that is `ns` after the angle was zero.
    pub(crate) fn turn_ns(&self, ns: u64) -> u64 {
        self.period.rem(ns)
    }

    fn zone_of(&self, lbn: u64) -> u32 {
        let mut zone = u32::from(self.bucket_zone[(lbn >> self.bucket_shift) as usize]);
        while lbn >= self.zones[zone as usize].end_lbn {
            zone += 1;
        }
        zone
    }

    /// The place of `lbn`, which must be below [`Layout::sectors`].
    pub(crate) fn place(&self, lbn: u64) -> Place {
        let zone_no = self.zone_of(lbn);
        let zone = &self.zones[zone_no as usize];
        let physical = zone.physical(lbn - zone.first_lbn);
        let (cylinder, in_cylinder) = zone.cylinder.div_rem(physical);
        let (turn, sector) = zone.track.div_rem(in_cylinder);
        let (cylinder, turn) = (cylinder as u32, turn as u32);
        let down = match self.mapping {
            Mapping::Cylinder => false,
            Mapping::Serpentine => cylinder % 2 == 1,
            Mapping::SerpentineEven => (zone.first_cylinder + cylinder) % 2 == 1,
        };
        Place {
            zone: zone_no,
            cylinder: zone.first_cylinder + cylinder,
            head: if down { self.surfaces - 1 - turn } else { turn },
            turn,
            sector: sector as u32,
        }
    }

    /// Returns the moment of a revolution at which the sector at `p` comes under the head, in nanoseconds below
    /// [`Layout::period_ns`].
    pub(crate) fn angle_ns(&self, p: &Place) -> u64 {
        let zone = &self.zones[p.zone as usize];
        let sector_ns = (u64::from(p.sector) * zone.sector_fixed.by()) >> FIXED;
        let cylinders = u64::from(p.cylinder - zone.first_cylinder);
        let skew_ns = cylinders * zone.cylinder_step_ns + u64::from(p.turn) * zone.track_skew_ns;
        self.period.rem(zone.offset_ns + skew_ns + sector_ns)
    }

    /// Nanoseconds that `sectors` take to pass in the zone of `p`.
    pub(crate) fn transfer_ns(&self, p: &Place, sectors: u64) -> u64 {
        (sectors * self.zones[p.zone as usize].sector_fixed.by()) >> FIXED
    }

    /// Whole sectors that pass in `ns` in the zone of `p`.
    pub(crate) fn sectors_in(&self, p: &Place, ns: u64) -> u64 {
        self.zones[p.zone as usize].sector_fixed.div(ns << FIXED)
    }

    /// From `lbn` at `p` to the end of its track: how many LBNs, and how many sectors pass with the last of
    /// at most `want` of them (slipped sectors pass, too).
    pub(crate) fn run(&self, lbn: u64, p: &Place, want: u64) -> (u64, u64) {
        let zone = &self.zones[p.zone as usize];
        let room = zone.track.by() - u64::from(p.sector);
        if zone.plain {
            let n = want.min(room).min(zone.end_lbn - lbn);
            return (n, n);
        }
        let in_zone = lbn - zone.first_lbn;
        let here = zone.physical(in_zone);
        let on_track = |k: u64| lbn + k < zone.end_lbn && zone.physical(in_zone + k) < here + room;
        // The last LBN on the track: `room - 1` further unless slips or spares take places of it.
        let (mut lo, mut hi) = (0, want.min(room) - 1);
        if on_track(hi) {
            lo = hi;
        }
        while lo < hi {
            let mid = lo + (hi - lo).div_ceil(2);
            if on_track(mid) { lo = mid } else { hi = mid - 1 }
        }
        (lo + 1, zone.physical(in_zone + lo) - here + 1)
    }

    /// First LBN and end (exclusive) of the track of `lbn` at `p`; empty in a zone with slips or spares, where
    /// that takes a search.
    pub(crate) fn plain_track(&self, lbn: u64, p: &Place) -> (u64, u64) {
        let zone = &self.zones[p.zone as usize];
        if !zone.plain {
            return (0, 0);
        }
        let first = lbn - u64::from(p.sector);
        (first, (first + zone.track.by()).min(zone.end_lbn))
    }

    /// Returns the number of LBNs before `lbn` on its track, back to back.
    pub(crate) fn before_on_track(&self, lbn: u64, p: &Place) -> u64 {
        u64::from(p.sector).min(lbn - self.zones[p.zone as usize].first_lbn)
    }
}

impl Zone {
    fn set_sparing(&mut self, sparing: Sparing, cylinders: u64, range: u64, spares: u64, slips: &[u64]) {
        let (spt, per_cylinder) = (self.track.by(), self.cylinder.by());
        let total = per_cylinder * cylinders;
        (self.granule, self.unit_slots) = match sparing {
            Sparing::None | Sparing::SectorsPerZone | Sparing::EndOfDisk => (1, total),
            Sparing::TracksPerZone => (spt, total / spt),
            Sparing::SectorsPerTrack => (1, spt),
            Sparing::SectorsPerCylinder => (1, per_cylinder),
            Sparing::SectorsPerRange => (1, per_cylinder * range),
        };
        self.unit_lbns = if sparing == Sparing::EndOfDisk { total } else { self.unit_slots - spares };
        let mut keys = Vec::with_capacity(slips.len());
        let (mut unit, mut nth) = (0, 0);
        for &slot in slips {
            if slot / self.unit_slots != unit {
                (unit, nth) = (slot / self.unit_slots, 0);
            }
            let in_unit = slot % self.unit_slots;
            // A slip among the unit's spares shifts nothing.
            if in_unit >= nth && in_unit - nth < self.unit_lbns {
                keys.push(unit * self.unit_lbns + in_unit - nth);
                nth += 1;
            }
        }
        self.slip_keys = keys.into();
        self.plain = self.slip_keys.is_empty() && self.front == 0 && self.unit_slots * self.granule == total;
    }

    fn lbns(&self, sparing: Sparing, cylinders: u64, spares: u64, slips: u64) -> u64 {
        let total = self.cylinder.by() * cylinders;
        let gross = match sparing {
            Sparing::EndOfDisk => total.saturating_sub(spares + slips),
            // A last, shorter range keeps its sectors: nothing says that it has spares.
            _ => {
                let units = total / (self.unit_slots * self.granule);
                let rest = total % (self.unit_slots * self.granule);
                units * self.unit_lbns * self.granule + rest.min(self.unit_lbns * self.granule)
            }
        };
        gross.saturating_sub(self.front)
    }

    /// Physical sector, counted through the zone, of the zone's `lbn`-th LBN.
    fn physical(&self, lbn: u64) -> u64 {
        if self.plain {
            return lbn;
        }
        let lbn = lbn + self.front;
        let (granule, rest) = if self.granule == 1 { (lbn, 0) } else { (lbn / self.granule, lbn % self.granule) };
        let unit = granule / self.unit_lbns;
        let first = unit * self.unit_lbns;
        let slips = if self.slip_keys.is_empty() {
            0
        } else {
            let before = if unit == 0 { 0 } else { self.slip_keys.partition_point(|&k| k < first) };
            self.slip_keys.partition_point(|&k| k <= granule) - before
        };
        (unit * self.unit_slots + (granule - first) + slips as u64) * self.granule + rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::spec::Zone as ZoneSpec;
    use proptest::prelude::*;

    fn spec(mapping: Mapping, sparing: Sparing, zones: Vec<ZoneSpec>) -> DiskSpec {
        let mut s = crate::profile::by_name("hdd-160g-7200").expect("embedded");
        let g = &mut s.geometry;
        (g.surfaces, g.mapping, g.sparing, g.sparing_range_cylinders) = (3, mapping, sparing, 2);
        g.cylinders = zones.last().expect("a zone").last_cylinder + 1;
        g.zones = zones;
        s
    }

    fn zone(first: u32, last: u32, spt: u32, spares: u64, slips: Vec<u64>) -> ZoneSpec {
        ZoneSpec {
            first_cylinder: first,
            last_cylinder: last,
            sectors_per_track: spt,
            offset_sectors: 0.0,
            front_sectors: 0,
            track_skew_sectors: Some(2.0),
            cylinder_skew_sectors: Some(3.0),
            spares,
            slips,
        }
    }

    /// The obvious way: walk over every physical place in order and give out LBNs.
    fn oracle(s: &DiskSpec) -> Vec<(u32, u32, u32, u32)> {
        let g = &s.geometry;
        let mut places = Vec::new();
        for z in &g.zones {
            let unit = match g.sparing {
                Sparing::SectorsPerTrack => z.sectors_per_track,
                Sparing::SectorsPerCylinder => z.sectors_per_track * g.surfaces,
                Sparing::SectorsPerRange => z.sectors_per_track * g.surfaces * g.sparing_range_cylinders,
                _ => z.sectors_per_track * g.surfaces * (z.last_cylinder - z.first_cylinder + 1),
            };
            let total = z.sectors_per_track * g.surfaces * (z.last_cylinder - z.first_cylinder + 1);
            for u in 0..total / unit {
                let good: Vec<u32> = (u * unit..(u + 1) * unit).filter(|&p| !z.slips.contains(&u64::from(p))).collect();
                let keep = unit - z.spares as u32;
                for &p in good.iter().take(keep as usize) {
                    let cyl = p / (z.sectors_per_track * g.surfaces);
                    let turn = p / z.sectors_per_track % g.surfaces;
                    let odd = match g.mapping {
                        Mapping::Cylinder => 0,
                        Mapping::Serpentine => cyl % 2,
                        Mapping::SerpentineEven => (z.first_cylinder + cyl) % 2,
                    };
                    let head = if odd == 1 { g.surfaces - 1 - turn } else { turn };
                    places.push((z.first_cylinder + cyl, head, turn, p % z.sectors_per_track));
                }
            }
        }
        places
    }

    proptest! {
        #[test]
        fn every_lbn_is_where_counting_puts_it(
            sparing in prop::sample::select(vec![Sparing::SectorsPerTrack, Sparing::SectorsPerCylinder,
                Sparing::SectorsPerRange, Sparing::SectorsPerZone]),
            mapping in prop::sample::select(vec![Mapping::Cylinder, Mapping::Serpentine, Mapping::SerpentineEven]),
            // One slip a track at most, never more than the two spares of any unit.
            slips in prop::collection::btree_set(0u64..2, 0..=2),
        ) {
            let slips: Vec<u64> = slips.into_iter().map(|k| k * 13 + 1).collect();
            let s = spec(mapping, sparing, vec![zone(0, 3, 11, 2, slips.clone()), zone(5, 8, 9, 2, slips)]);
            let layout = Layout::new(&s, 6_000_000, (0, 0)).unwrap();
            let expected = oracle(&s);
            prop_assert_eq!(layout.sectors(), expected.len() as u64);
            for (lbn, e) in expected.iter().enumerate() {
                let p = layout.place(lbn as u64);
                prop_assert_eq!((p.cylinder, p.head, p.turn, p.sector), *e, "lbn {}", lbn);
                let (n, passing) = layout.run(lbn as u64, &p, 100);
                let same = expected[lbn..].iter().take_while(|q| (q.0, q.1) == (e.0, e.1)).count();
                prop_assert_eq!(n, same as u64, "run at lbn {}", lbn);
                prop_assert_eq!(passing, u64::from(expected[lbn + same - 1].3 - e.3) + 1);
            }
        }
    }

    #[test]
    fn skews_add_up_along_a_zone() {
        let s = spec(Mapping::Cylinder, Sparing::None, vec![zone(0, 9, 10, 0, vec![])]);
        let l = Layout::new(&s, 1000, (0, 0)).unwrap();
        // Sector 0 of track 1 is two sectors further round; cylinder 1's first is 2+2+3 sectors.
        assert_eq!(l.angle_ns(&l.place(0)), 0);
        assert_eq!(l.angle_ns(&l.place(10)), 200);
        assert_eq!(l.angle_ns(&l.place(30)), 700);
        assert_eq!(l.angle_ns(&l.place(60)), 400);
    }
}
