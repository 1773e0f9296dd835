//! A host-managed shingled disk: zones that are written from their beginning, at a write pointer.
//!
//! Conventional zones come first, or are spread over the disk, and take any write. A sequential zone takes a write only at its write
//! pointer, and no write crosses the zone's end. A reset empties the zone.
//!
//! States and the limit of open zones are those of ZBC. A write to a zone that isn't open opens it implicitly. If the limit is reached, the
//! disk first closes another zone that was opened implicitly. Zones that were opened explicitly stay open.

use plimsoll_base::Time;

use crate::disk::{Disk, DiskOptions, DiskSpec, SpecError};
use crate::model::{Done, Model, Op, Request, assert_in_range};
use serde::{Deserialize, Serialize};

/// Division of a disk into zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneSpec {
    /// Bytes of a zone: 256 MiB on the 8 TB drives known.
    pub zone_bytes: u64,
    /// Conventional zones, from address 0.
    pub conventional: u32,
    /// Every N-th zone is conventional, too, from zone 0 on, and this is N; 0: none. Drives have unshingled bands spread over them for their own
    /// use (Manylogs §III-I3 has a surface of them).
    #[serde(default)]
    pub conventional_every: u32,
    /// Sequential zones that may be open at once.
    pub open_max: u32,
}

/// State of a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneState {
    /// Takes any write; has no pointer.
    Conventional,
    /// Nothing written since the last reset.
    Empty,
    /// Opened by a write.
    ImplicitlyOpen,
    /// Opened by [`ZonedDisk::open`].
    ExplicitlyOpen,
    /// Written in part, not open.
    Closed,
    /// Takes no more.
    Full,
}

/// One zone, as a report gives it. Addresses in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its state.
    pub state: ZoneState,
    /// Its first byte.
    pub start: u64,
    /// Its length.
    pub bytes: u64,
    /// Place of the next write; the end for full zones, without meaning for conventional ones.
    pub pointer: u64,
}

/// Reason why a zoned disk refuses a request. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneError {
    /// A write to a sequential zone isn't at its pointer: write at `pointer`, or reset the zone.
    NotAtPointer {
        /// Place at which the zone is to be written.
        pointer: u64,
    },
    /// A request goes beyond the end of a sequential zone: cut it there.
    CrossesZone {
        /// End of the zone.
        end: u64,
    },
    /// The zone is full: reset it first.
    Full,
    /// The limit of explicitly open zones is reached: close one.
    TooManyOpen {
        /// Limit of open zones.
        open_max: u32,
    },
    /// The zone is conventional (or there's no such zone): it has no state to change.
    NotSequential,
}

impl std::fmt::Display for ZoneError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ZoneError::NotAtPointer { pointer } => write!(f, "not at the zone's write pointer, which is {pointer}"),
            ZoneError::CrossesZone { end } => write!(f, "crosses the zone's end at {end}"),
            ZoneError::Full => f.write_str("the zone is full; reset it first"),
            ZoneError::TooManyOpen { open_max } => write!(f, "{open_max} zones are open explicitly; close one"),
            ZoneError::NotSequential => f.write_str("there is no such sequential zone"),
        }
    }
}
impl std::error::Error for ZoneError {}

/// A host-managed disk as a [`Model`], for callers that keep to the pointers; others use [`ZonedDisk::try_submit`].
#[derive(Clone, Debug)]
pub struct ZonedDisk {
    disk: Disk,
    spec: ZoneSpec,
    states: Vec<ZoneState>,
    /// Written bytes of each zone.
    written: Vec<u64>,
    /// Open zones, the one opened first in front.
    open: Vec<u32>,
    size: u64,
}

impl ZonedDisk {
    /// Divides the disk that `disk` describes. The last zone may be shorter.
    pub fn new(disk: &DiskSpec, options: DiskOptions, spec: ZoneSpec) -> Result<ZonedDisk, SpecError> {
        let disk = Disk::new(disk, options)?;
        let size = disk.size_bytes();
        if spec.zone_bytes == 0 || !spec.zone_bytes.is_multiple_of(u64::from(disk.block_bytes())) {
            return Err(SpecError::new("zone_bytes", format!("{} is not whole blocks", spec.zone_bytes)));
        }
        let zones = size.div_ceil(spec.zone_bytes);
        if u64::from(spec.conventional) >= zones {
            return Err(SpecError::new("conventional", format!("leaves no sequential zone of {zones}")));
        }
        if spec.open_max == 0 {
            return Err(SpecError::new("open_max", "is 0; then nothing could be written"));
        }
        if spec.conventional_every == 1 {
            return Err(SpecError::new("conventional_every", "is 1; then no zone would be sequential"));
        }
        let spread = u64::from(spec.conventional_every);
        let is_conventional = |z: u64| z < u64::from(spec.conventional) || (spread > 0 && z.is_multiple_of(spread));
        let state = |z| if is_conventional(z) { ZoneState::Conventional } else { ZoneState::Empty };
        Ok(ZonedDisk {
            states: (0..zones).map(state).collect(),
            written: vec![0; zones as usize],
            open: Vec::with_capacity(spec.open_max as usize),
            disk,
            spec,
            size,
        })
    }

    /// Number of zones.
    pub fn zones(&self) -> u32 {
        self.states.len() as u32
    }

    /// The zone numbered `zone`; `None` beyond the last.
    pub fn zone(&self, zone: u32) -> Option<Zone> {
        let state = *self.states.get(zone as usize)?;
        let start = u64::from(zone) * self.spec.zone_bytes;
        let bytes = self.spec.zone_bytes.min(self.size - start);
        Some(Zone { state, start, bytes, pointer: start + self.written[zone as usize] })
    }

    fn zone_at(&self, offset: u64) -> u32 {
        (offset / self.spec.zone_bytes) as u32
    }

    /// Says whether `req` would be taken, and changes nothing.
    pub fn check(&self, req: &Request) -> Result<(), ZoneError> {
        if !matches!(req.op, Op::Write { .. } | Op::WriteZeroes) {
            return Ok(());
        }
        let number = self.zone_at(req.offset);
        let zone = self.zone(number).ok_or(ZoneError::NotSequential)?;
        let end = zone.start + zone.bytes;
        if zone.state == ZoneState::Conventional {
            let is_conventional = |z: &u32| self.states.get(*z as usize) == Some(&ZoneState::Conventional);
            let last = (number..=self.zone_at((req.offset + req.len).max(1) - 1))
                .take_while(is_conventional)
                .last()
                .unwrap_or(number);
            let conventional_end = (u64::from(last) + 1) * self.spec.zone_bytes;
            let crosses = req.offset + req.len > conventional_end;
            return if crosses { Err(ZoneError::CrossesZone { end: conventional_end }) } else { Ok(()) };
        }
        if zone.state == ZoneState::Full {
            return Err(ZoneError::Full);
        }
        if req.offset != zone.pointer {
            return Err(ZoneError::NotAtPointer { pointer: zone.pointer });
        }
        if req.offset + req.len > end {
            return Err(ZoneError::CrossesZone { end });
        }
        self.check_open(number)
    }

    fn is_open(&self, zone: u32) -> bool {
        matches!(self.states[zone as usize], ZoneState::ImplicitlyOpen | ZoneState::ExplicitlyOpen)
    }

    /// An open zone too many can be made room for unless all were opened explicitly.
    fn check_open(&self, zone: u32) -> Result<(), ZoneError> {
        let explicit = |z: &u32| self.states[*z as usize] == ZoneState::ExplicitlyOpen;
        if !self.is_open(zone) && self.open.len() >= self.spec.open_max as usize && self.open.iter().all(explicit) {
            return Err(ZoneError::TooManyOpen { open_max: self.spec.open_max });
        }
        Ok(())
    }

    fn enter(&mut self, zone: u32, state: ZoneState) {
        if !self.is_open(zone) {
            if self.open.len() >= self.spec.open_max as usize {
                let implicit = |z: &u32| self.states[*z as usize] == ZoneState::ImplicitlyOpen;
                let oldest = self.open.iter().position(implicit).expect("checked");
                let closed = self.open.remove(oldest);
                self.states[closed as usize] = ZoneState::Closed;
            }
            self.open.push(zone);
        }
        self.states[zone as usize] = state;
    }

    fn leave(&mut self, zone: u32, state: ZoneState) {
        self.open.retain(|z| *z != zone);
        self.states[zone as usize] = state;
    }

    /// Hands in a request that arrives at `now`, or refuses it. A trim of exactly one sequential zone resets it: stacks of layers have no
    /// other word for that.
    ///
    /// # Panics
    /// As [`Model::submit`], for what isn't about zones.
    pub fn try_submit(&mut self, now: Time, req: Request) -> Result<(), ZoneError> {
        assert_in_range(&req, self.size, self.block_bytes());
        self.check(&req)?;
        let number = self.zone_at(req.offset);
        if req.op == Op::Trim && self.is_whole(number, &req) {
            self.reset(number)?;
        }
        let writes = matches!(req.op, Op::Write { .. } | Op::WriteZeroes);
        if writes && self.states[number as usize] != ZoneState::Conventional {
            if self.states[number as usize] != ZoneState::ExplicitlyOpen {
                self.enter(number, ZoneState::ImplicitlyOpen);
            }
            self.written[number as usize] += req.len;
            if self.zone(number).is_some_and(|z| z.pointer == z.start + z.bytes) {
                self.leave(number, ZoneState::Full);
            }
        }
        self.disk.submit(now, req);
        Ok(())
    }

    /// True if a request covers exactly one zone that isn't conventional.
    fn is_whole(&self, number: u32, req: &Request) -> bool {
        let whole = |z: &Zone| (z.start, z.bytes) == (req.offset, req.len) && z.state != ZoneState::Conventional;
        self.zone(number).as_ref().is_some_and(whole)
    }

    fn sequential(&self, zone: u32) -> Result<ZoneState, ZoneError> {
        match self.states.get(zone as usize) {
            None | Some(ZoneState::Conventional) => Err(ZoneError::NotSequential),
            Some(s) => Ok(*s),
        }
    }

    /// Empties a zone: it's to be written from its start again. Takes no time of the disk.
    pub fn reset(&mut self, zone: u32) -> Result<(), ZoneError> {
        self.sequential(zone)?;
        self.leave(zone, ZoneState::Empty);
        self.written[zone as usize] = 0;
        Ok(())
    }

    /// Opens a zone so that no other closes it.
    pub fn open(&mut self, zone: u32) -> Result<(), ZoneError> {
        if self.sequential(zone)? == ZoneState::Full {
            return Err(ZoneError::Full);
        }
        self.check_open(zone)?;
        self.enter(zone, ZoneState::ExplicitlyOpen);
        Ok(())
    }

    /// Closes an open zone; one that isn't open stays as it is.
    pub fn close(&mut self, zone: u32) -> Result<(), ZoneError> {
        self.sequential(zone)?;
        if self.is_open(zone) {
            let state = if self.written[zone as usize] == 0 { ZoneState::Empty } else { ZoneState::Closed };
            self.leave(zone, state);
        }
        Ok(())
    }

    /// Declares a zone full.
    pub fn finish(&mut self, zone: u32) -> Result<(), ZoneError> {
        self.sequential(zone)?;
        self.written[zone as usize] = self.zone(zone).map_or(0, |z| z.bytes);
        self.leave(zone, ZoneState::Full);
        Ok(())
    }
}

impl Model for ZonedDisk {
    fn size_bytes(&self) -> u64 {
        self.size
    }
    fn block_bytes(&self) -> u32 {
        self.disk.block_bytes()
    }
    /// # Panics
    /// Also if the zone refuses: [`ZonedDisk::check`] asks first.
    fn submit(&mut self, now: Time, req: Request) {
        if let Err(e) = self.try_submit(now, req) {
            panic!("{req:?}: {e}");
        }
    }
    fn next_event(&self) -> Time {
        self.disk.next_event()
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        self.disk.advance(now, done);
    }
    fn outstanding(&self) -> usize {
        self.disk.outstanding()
    }
    fn queue_max(&self) -> usize {
        self.disk.queue_max()
    }
    fn accepts(&self, req: &Request) -> bool {
        self.check(req).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn disk() -> ZonedDisk {
        let spec = crate::profile::by_name("atlas-10k").expect("embedded");
        let zones = ZoneSpec { zone_bytes: 16 * MIB, conventional: 2, conventional_every: 0, open_max: 2 };
        ZonedDisk::new(&spec, DiskOptions::default(), zones).expect("valid")
    }

    /// Each at an instant of its own, long after the one before.
    fn write(d: &mut ZonedDisk, now_s: &mut u64, offset: u64, len: u64) -> Result<(), ZoneError> {
        *now_s += 100;
        let now = Time::from_nanos(*now_s * 1_000_000_000);
        d.advance(now, &mut Vec::new());
        d.try_submit(now, Request { tag: offset, op: Op::Write { fua: false }, offset, len })
    }

    fn state(d: &ZonedDisk, zone: u32) -> ZoneState {
        d.zone(zone).expect("exists").state
    }

    #[test]
    fn a_zone_is_written_at_its_pointer_only() {
        let (mut d, mut now_s) = (disk(), 0);
        assert_eq!(write(&mut d, &mut now_s, 5 * MIB, MIB), Ok(()), "conventional zones take any write");
        let start = 32 * MIB;
        assert_eq!(write(&mut d, &mut now_s, start + MIB, MIB), Err(ZoneError::NotAtPointer { pointer: start }));
        assert_eq!(write(&mut d, &mut now_s, start, MIB), Ok(()));
        assert_eq!(write(&mut d, &mut now_s, start, MIB), Err(ZoneError::NotAtPointer { pointer: start + MIB }));
        assert_eq!(write(&mut d, &mut now_s, start + MIB, 16 * MIB), Err(ZoneError::CrossesZone { end: 48 * MIB }));
        assert_eq!(write(&mut d, &mut now_s, 31 * MIB, 2 * MIB), Err(ZoneError::CrossesZone { end: 32 * MIB }));
        assert_eq!(write(&mut d, &mut now_s, start + MIB, 15 * MIB), Ok(()));
        assert_eq!(state(&d, 2), ZoneState::Full);
        assert_eq!(write(&mut d, &mut now_s, start, MIB), Err(ZoneError::Full));
        d.reset(2).expect("sequential");
        assert_eq!((state(&d, 2), write(&mut d, &mut now_s, start, MIB)), (ZoneState::Empty, Ok(())));
        assert_eq!(d.reset(0), Err(ZoneError::NotSequential));
        assert_eq!(d.reset(1 << 30), Err(ZoneError::NotSequential));
    }

    #[test]
    fn conventional_zones_may_be_spread_and_a_trim_resets_a_zone() {
        let spec = crate::profile::by_name("atlas-10k").expect("embedded");
        let zones = ZoneSpec { zone_bytes: 16 * MIB, conventional: 0, conventional_every: 4, open_max: 2 };
        let mut d = ZonedDisk::new(&spec, DiskOptions::default(), zones).expect("valid");
        let mut now_s = 0;
        let conventional: Vec<u32> = (0..12).filter(|z| state(&d, *z) == ZoneState::Conventional).collect();
        assert_eq!(conventional, [0, 4, 8]);
        assert_eq!(write(&mut d, &mut now_s, 64 * MIB + MIB, MIB), Ok(()));
        assert_eq!(write(&mut d, &mut now_s, 79 * MIB, 2 * MIB), Err(ZoneError::CrossesZone { end: 80 * MIB }));
        write(&mut d, &mut now_s, 80 * MIB, MIB).expect("at its pointer");
        let trim = |offset, len| Request { tag: 0, op: Op::Trim, offset, len };
        for (request, after) in [(trim(80 * MIB, MIB), 81), (trim(80 * MIB, 16 * MIB), 80)] {
            now_s += 100;
            let now = Time::from_nanos(now_s * 1_000_000_000);
            d.advance(now, &mut Vec::new());
            d.try_submit(now, request).expect("a trim is never refused");
            assert_eq!(d.zone(5).expect("exists").pointer, after * MIB);
        }
    }

    #[test]
    fn open_zones_are_limited() {
        let (mut d, mut now_s) = (disk(), 0);
        for zone in [2, 3, 4] {
            write(&mut d, &mut now_s, zone * 16 * MIB, MIB).expect("implicit");
        }
        assert_eq!(state(&d, 2), ZoneState::Closed, "the first one opened was closed for the third");
        d.open(3).expect("open already");
        d.open(4).expect("open already");
        assert_eq!(write(&mut d, &mut now_s, 5 * 16 * MIB, MIB), Err(ZoneError::TooManyOpen { open_max: 2 }));
        assert_eq!(d.open(5), Err(ZoneError::TooManyOpen { open_max: 2 }));
        d.close(3).expect("open");
        assert_eq!((state(&d, 3), write(&mut d, &mut now_s, 5 * 16 * MIB, MIB)), (ZoneState::Closed, Ok(())));
        d.finish(4).expect("open");
        assert_eq!(write(&mut d, &mut now_s, 4 * 16 * MIB + MIB, MIB), Err(ZoneError::Full));
        d.open(6).expect("room again");
        d.close(6).expect("open");
        assert_eq!(state(&d, 6), ZoneState::Empty);
    }
}
