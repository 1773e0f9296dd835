//! Arm and platters: when a run of sectors passes under the head.

use super::layout::{Layout, Place};
use super::seek::SeekTable;
use super::spec::{DiskSpec, SpecError};

/// A head this little past a sector's start still reads it: sums of rounded nanoseconds, not physics.
const ROUNDING_NS: u64 = 100;

/// Position of an arm.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arm {
    pub cylinder: u32,
    pub head: u32,
}

/// One access to the media, of one or more runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// Time at which the first wanted sector began to pass.
    pub begin_ns: u64,
    /// Time at which the last one had passed.
    pub end_ns: u64,
    /// Nanoseconds of one sector where it began.
    pub sector_ns: u64,
    /// Whole sectors that passed between arrival on the first track and the first wanted sector.
    pub passed: u64,
    /// Place at which the last track was entered.
    pub last: Place,
    /// First LBN and end (exclusive) of the last track; empty where slips make that costly to know.
    pub track: (u64, u64),
}

/// Read-ahead under way: sectors up to `lbn` had passed at `at_ns`, and it goes on to `limit`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub segment: u32,
    pub lbn: u64,
    pub at_ns: u64,
    pub limit: u64,
    /// A place on the track under the head, and up to where (exclusive) sectors follow there without a gap.
    pub under_head: (Place, u64),
}

/// The mechanics that every arm of a disk shares.
#[derive(Clone, Debug)]
pub(crate) struct Mech {
    keep_passing: bool,
    pub layout: Layout,
    read_seek: SeekTable,
    write_seek: SeekTable,
    head_switch_ns: u64,
    write_settle_ns: i64,
    /// Angle at time zero.
    phase_ns: u64,
    zero_latency: [bool; 2],
}

impl Mech {
    /// Compiles a checked spec; `phase` in [0, 1) is the angle at time zero.
    pub(crate) fn new(spec: &DiskSpec, phase: f64) -> Result<Mech, SpecError> {
        let m = &spec.mechanics;
        let cylinders = spec.geometry.cylinders;
        let period_ns = (60e9 / m.rpm).round() as u64;
        let settle_ms = m.write_settle_ms;
        let write_curve = m.write_seek.as_ref().unwrap_or(&m.seek);
        let slowest_ms = |d| m.seek.millis(d, cylinders).max(write_curve.millis(d, cylinders) + settle_ms).max(0.0);
        let switch_ns = ((m.head_switch_ms + settle_ms.max(0.0)) * 1e6) as u64;
        let next_cylinder_ns = ((slowest_ms(1) * 1e6) as u64).max(switch_ns);
        Ok(Mech {
            keep_passing: spec.buffer.keep_passing_sectors,
            layout: Layout::new(spec, period_ns, (switch_ns, next_cylinder_ns))?,
            read_seek: SeekTable::new(cylinders, |d| m.seek.millis(d, cylinders)),
            write_seek: SeekTable::new(cylinders, |d| write_curve.millis(d, cylinders)),
            head_switch_ns: (m.head_switch_ms * 1e6).round() as u64,
            write_settle_ns: (settle_ms * 1e6).round() as i64,
            phase_ns: (phase * period_ns as f64) as u64 % period_ns,
            zero_latency: [m.zero_latency_reads, m.zero_latency_writes],
        })
    }

    /// Time to bring `arm` to the track of `p`: the longer of arm movement and head switch, and settling.
    fn reposition_ns(&self, arm: &Arm, p: &Place, write: bool) -> u64 {
        let distance = arm.cylinder.abs_diff(p.cylinder);
        let switches = arm.head != p.head;
        if distance == 0 && !switches {
            return 0;
        }
        let table = if write { &self.write_seek } else { &self.read_seek };
        let seek_ns = table.nanos(distance);
        let ns = if switches { seek_ns.max(self.head_switch_ns) } else { seek_ns };
        if write { ns.saturating_add_signed(self.write_settle_ns) } else { ns }
    }

    /// Returns the time from `at_ns` until the angle is under the head.
    fn wait_ns(&self, at_ns: u64, angle_ns: u64) -> u64 {
        let period_ns = self.layout.period_ns();
        let here = self.layout.turn_ns(at_ns + self.phase_ns);
        let wait = if angle_ns >= here { angle_ns - here } else { angle_ns + period_ns - here };
        if wait + ROUNDING_NS > period_ns { 0 } else { wait }
    }

    /// The longest seek and a turn.
    pub(crate) fn worst_positioning_ns(&self) -> u64 {
        self.read_seek.last_nanos().max(self.write_seek.last_nanos()) + self.layout.period_ns()
    }

    /// Cylinders between `arm` and `lbn`.
    pub(crate) fn distance(&self, arm: &Arm, lbn: u64) -> u32 {
        arm.cylinder.abs_diff(self.layout.place(lbn).cylinder)
    }

    /// Nanoseconds from `at_ns` until `lbn` begins to pass.
    pub(crate) fn positioning_ns(&self, arm: &Arm, at_ns: u64, lbn: u64, write: bool) -> u64 {
        let p = self.layout.place(lbn);
        let move_ns = self.reposition_ns(arm, &p, write);
        move_ns + self.wait_ns(at_ns + move_ns, self.layout.angle_ns(&p))
    }

    /// Moves `arm` from `at_ns` on over `sectors` from `lbn` (an arm-local LBN); the first may not pass
    /// before `data_ns` (a write needs its data).
    pub(crate) fn access(
        &self,
        arm: &mut Arm,
        at_ns: u64,
        data_ns: u64,
        lbn: u64,
        sectors: u64,
        write: bool,
    ) -> Access {
        let mut at = at_ns;
        let (mut lbn, mut left) = (lbn, sectors);
        let last = Place::default();
        let mut out = Access { begin_ns: 0, end_ns: 0, sector_ns: 0, passed: 0, last, track: (0, 0) };
        let mut first = true;
        loop {
            let p = self.layout.place(lbn);
            at += self.reposition_ns(arm, &p, write);
            (arm.cylinder, arm.head) = (p.cylinder, p.head);
            if first {
                at = at.max(data_ns);
            }
            let (n, passing) = self.layout.run(lbn, &p, left);
            let transfer_ns = self.layout.transfer_ns(&p, passing);
            let wait_ns = self.wait_ns(at, self.layout.angle_ns(&p));
            let inside = wait_ns > self.layout.period_ns() - transfer_ns;
            if first {
                first = false;
                out.begin_ns = at + wait_ns;
                out.sector_ns = self.layout.transfer_ns(&p, 1);
                if self.keep_passing {
                    out.passed = self.layout.sectors_in(&p, wait_ns).min(self.layout.before_on_track(lbn, &p));
                }
            }
            at += if inside && self.zero_latency[usize::from(write)] {
                // Landed among the wanted sectors: one turn shows them all, in another order.
                self.layout.period_ns()
            } else {
                wait_ns + transfer_ns
            };
            left -= n;
            if left == 0 {
                out.end_ns = at;
                out.last = p;
                out.track = self.layout.plain_track(lbn, &p);
                return out;
            }
            lbn += n;
        }
    }

    /// Lets read-ahead run until `now_ns`; the stream's LBNs are `base` above the arm's own.
    pub(crate) fn run_stream(&self, arm: &mut Arm, stream: &mut Stream, base: u64, now_ns: u64) {
        while stream.lbn < stream.limit && stream.at_ns < now_ns {
            let (place, gapless) = stream.under_head;
            if stream.lbn < gapless {
                let n = gapless.min(stream.limit) - stream.lbn;
                let end = stream.at_ns + self.layout.transfer_ns(&place, n);
                if end > now_ns {
                    // Whole sectors only; the stream stays anchored where they end.
                    let k = self.layout.sectors_in(&place, now_ns - stream.at_ns).min(n - 1);
                    stream.lbn += k;
                    stream.at_ns += self.layout.transfer_ns(&place, k);
                    return;
                }
                stream.lbn += n;
                stream.at_ns = end;
                continue;
            }
            let local = stream.lbn - base;
            let p = self.layout.place(local);
            let ready = stream.at_ns + self.reposition_ns(arm, &p, false);
            let begin = ready + self.wait_ns(ready, self.layout.angle_ns(&p));
            if begin >= now_ns {
                // Not there yet: asked again later, or the arm goes elsewhere from where it was.
                return;
            }
            (arm.cylinder, arm.head) = (p.cylinder, p.head);
            stream.at_ns = begin;
            let (n, passing) = self.layout.run(local, &p, stream.limit - stream.lbn);
            if n == passing {
                stream.under_head = (p, stream.lbn + n);
                continue;
            }
            // Slipped sectors in between: as one piece, which is at most a track long.
            let end = begin + self.layout.transfer_ns(&p, passing);
            if end > now_ns {
                let k = self.layout.sectors_in(&p, now_ns - begin).min(n - 1);
                stream.lbn += k;
                stream.at_ns = begin + self.layout.transfer_ns(&p, k);
                return;
            }
            stream.lbn += n;
            stream.at_ns = end;
        }
    }

    /// First and end (exclusive) arm-local LBN of the track of `lbn`.
    pub(crate) fn track_bounds(&self, lbn: u64) -> (u64, u64) {
        let p = self.layout.place(lbn);
        let (n, _) = self.layout.run(lbn, &p, u64::from(u32::MAX));
        (lbn - self.layout.before_on_track(lbn, &p), lbn + n)
    }

    /// End (exclusive) of the cylinder of `lbn`, arm-local.
    pub(crate) fn cylinder_end(&self, lbn: u64) -> u64 {
        let cylinder = self.layout.place(lbn).cylinder;
        let mut end = self.track_bounds(lbn).1;
        while end < self.layout.sectors() && self.layout.place(end).cylinder == cylinder {
            end = self.track_bounds(end).1;
        }
        end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The obvious way, in floating point: sector after sector, each waited for on its own.
    fn naive_end_ns(spec: &DiskSpec, mech: &Mech, arm: &Arm, at_ns: u64, lbn: u64, sectors: u64, write: bool) -> f64 {
        let period = 60e9 / spec.mechanics.rpm;
        let (mut at, mut track) = (at_ns as f64, (arm.cylinder, arm.head));
        for l in lbn..lbn + sectors {
            let p = mech.layout.place(l);
            let zone = &spec.geometry.zones[p.zone as usize];
            if track != (p.cylinder, p.head) {
                let distance = track.0.abs_diff(p.cylinder);
                let mut ms = spec.mechanics.seek.millis(distance, spec.geometry.cylinders);
                if track.1 != p.head {
                    ms = ms.max(spec.mechanics.head_switch_ms);
                }
                if write {
                    ms = (ms + spec.mechanics.write_settle_ms).max(0.0);
                }
                at += ms * 1e6;
                track = (p.cylinder, p.head);
            }
            let sector = period / f64::from(zone.sectors_per_track);
            let (c, t) = (f64::from(p.cylinder - zone.first_cylinder), f64::from(p.turn));
            let (track_skew, cylinder_skew) =
                (zone.track_skew_sectors.expect("given"), zone.cylinder_skew_sectors.expect("given"));
            let turns = f64::from(spec.geometry.surfaces - 1);
            let skew = c * (turns * track_skew + cylinder_skew) + t * track_skew;
            let angle = (zone.offset_sectors + skew + f64::from(p.sector)) * sector;
            let wait = (angle - at).rem_euclid(period);
            // Rounding may leave the head a hair past the sector's start.
            at += if wait > period - 20_000.0 { 0.0 } else { wait } + sector;
        }
        at
    }

    #[test]
    fn track_by_track_is_sector_by_sector() {
        for name in ["atlas-10k", "hp-c2247a"] {
            let mut spec = crate::profile::by_name(name).expect("embedded");
            (spec.mechanics.zero_latency_reads, spec.mechanics.zero_latency_writes) = (false, false);
            let mech = Mech::new(&spec, 0.0).expect("valid");
            let period_ns = 60e9 / spec.mechanics.rpm;
            let mut rng = plimsoll_base::Rng::new(1, "sector by sector");
            let mut turn_off = 0;
            for _ in 0..2000 {
                let lbn = rng.below(mech.layout.sectors() - 3_000);
                let (sectors, at_ns, write) = (1 + rng.below(2_500), rng.below(50_000_000), rng.chance(0.5));
                let head = rng.below(u64::from(spec.geometry.surfaces)) as u32;
                let arm = Arm { cylinder: rng.below(u64::from(spec.geometry.cylinders)) as u32, head };
                let fast = mech.access(&mut arm.clone(), at_ns, 0, lbn, sectors, write).end_ns as f64;
                let slow = naive_end_ns(&spec, &mech, &arm, at_ns, lbn, sectors, write);
                let apart_ns = (fast - slow).abs();
                // A knot of the seek table may be 2 us off: where just that decides about a turn, both are right.
                turn_off += u32::from((apart_ns - period_ns).abs() < 5_000.0);
                let close = apart_ns < 5_000.0 || (apart_ns - period_ns).abs() < 5_000.0;
                assert!(close, "{name}: {fast} against {slow} for {sectors} sectors at {lbn} from {arm:?}");
            }
            assert!(turn_off <= 10, "{name}: {turn_off} of 2000 are a turn off");
        }
    }

    fn mech() -> Mech {
        let mut s = crate::profile::by_name("hdd-160g-7200").expect("embedded");
        s.mechanics.rpm = 6000.0;
        Mech::new(&s, 0.0).expect("valid")
    }

    #[test]
    fn a_sector_waits_for_its_angle() {
        let m = mech();
        let mut arm = Arm::default();
        // At time zero sector 0 is under the head: reading it takes one sector's time.
        let a = m.access(&mut arm, 0, 0, 0, 1, false);
        assert_eq!((a.begin_ns, a.end_ns), (0, a.sector_ns));
        // Asked again a microsecond late, it takes a whole turn of 10 ms.
        let b = m.access(&mut arm, 1_000, 0, 0, 1, false);
        assert_eq!(b.begin_ns, 10_000_000);
    }

    #[test]
    fn a_track_then_the_next_loses_only_the_skew() {
        let m = mech();
        let (_, end) = m.track_bounds(0);
        let a = m.access(&mut Arm::default(), 0, 0, 0, end * 3, false);
        let ideal = 30_000_000;
        assert!(a.end_ns > ideal, "skew costs something");
        assert!(a.end_ns < ideal + 2 * 3_000_000, "but never a turn: {}", a.end_ns);
    }

    #[test]
    fn read_ahead_and_one_long_read_end_at_the_same_time() {
        let m = mech();
        let mut arm = Arm::default();
        let a = m.access(&mut arm, 0, 0, 100, 5000, false);
        let mut arm2 = Arm::default();
        let first = m.access(&mut arm2, 0, 0, 100, 10, false);
        let under_head = (first.last, first.track.1);
        let mut s = Stream { segment: 0, lbn: 110, at_ns: first.end_ns, limit: 5100, under_head };
        // Asked at odd moments, it ends as if it had been asked once.
        for t in [first.end_ns, first.end_ns + 1, 5_000_000, 13_333_333, 13_333_334, 1_000_000_000] {
            m.run_stream(&mut arm2, &mut s, 0, t);
        }
        assert_eq!(s.lbn, 5100);
        assert!(s.at_ns.abs_diff(a.end_ns) <= 200, "{} against {}", s.at_ns, a.end_ns);
    }
}
