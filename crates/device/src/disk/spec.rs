//! A disk as it is written down: every figure with its unit in its key, unknown keys refused.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::seek::SeekCurve;

/// Reason why a specification isn't one of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    key: String,
    what: String,
}

impl SpecError {
    pub(crate) fn new(key: impl Into<String>, what: impl Into<String>) -> SpecError {
        SpecError { key: key.into(), what: what.into() }
    }
    /// The key at fault, such as `geometry.zones[3].sectors_per_track`.
    pub fn key(&self) -> &str {
        &self.key
    }
}
impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.what)
    }
}
impl std::error::Error for SpecError {}

/// Everything about one kind of disk.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DiskSpec {
    /// Name in reports.
    pub name: String,
    /// Sources of the figures.
    pub source: Vec<String>,
    /// Figures that no source gives, and the assumptions in their place.
    #[serde(default)]
    pub assumed: Vec<String>,
    /// Places of the sectors.
    pub geometry: Geometry,
    /// Motion of arm and platters.
    pub mechanics: Mechanics,
    /// Transfer of data between drive and host.
    pub bus: Bus,
    /// Overhead of the controller for each command.
    #[serde(default)]
    pub overheads: Overheads,
    /// The on-board buffer.
    pub buffer: Buffer,
    /// The on-board queue.
    pub queue: Queue,
}

/// Order of LBNs over surfaces and cylinders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mapping {
    /// Through a cylinder surface by surface, then surface 0 of the next cylinder.
    Cylinder,
    /// The next cylinder is entered on the surface where the last was left; every zone starts on surface 0.
    Serpentine,
    /// As `serpentine`, but even cylinders of the disk (not of the zone) go up.
    SerpentineEven,
}

/// Places of spare sectors, which determine the place of each LBN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Sparing {
    /// No spares, no slipped sectors.
    #[default]
    None,
    /// Whole spare tracks at the end of a zone; `spares` and `slips` count tracks.
    TracksPerZone,
    /// At the end of each track.
    SectorsPerTrack,
    /// At the end of each cylinder.
    SectorsPerCylinder,
    /// At the end of each range of `sparing_range_cylinders` cylinders.
    SectorsPerRange,
    /// At the end of each zone.
    SectorsPerZone,
    /// At the end of the disk: slipped sectors shift everything behind them in the zone.
    EndOfDisk,
}

/// Places of the sectors.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Geometry {
    /// Bytes of a sector (default 512).
    #[serde(default = "sector_512")]
    pub sector_bytes: u32,
    /// Data surfaces, one head each.
    pub surfaces: u32,
    /// Cylinders, spare and unused ones included.
    pub cylinders: u32,
    /// Order of LBNs.
    pub mapping: Mapping,
    /// Places of spares.
    #[serde(default)]
    pub sparing: Sparing,
    /// For `sectors-per-range`: cylinders of a range.
    #[serde(default = "one")]
    pub sparing_range_cylinders: u32,
    /// Zones, outermost first, cylinders ascending.
    pub zones: Vec<Zone>,
}

fn sector_512() -> u32 {
    512
}
fn one() -> u32 {
    1
}

/// Cylinders with equally many sectors per track.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// First cylinder.
    pub first_cylinder: u32,
    /// Last cylinder, inclusive.
    pub last_cylinder: u32,
    /// Sectors of a track.
    pub sectors_per_track: u32,
    /// Angle of the zone's first sector, in sectors.
    #[serde(default)]
    pub offset_sectors: f64,
    /// Sectors at the front of the zone that carry no LBN.
    #[serde(default)]
    pub front_sectors: u64,
    /// Sectors skipped where a track is followed by one of the same cylinder; without it, the fewest that a
    /// head switch (and a write's settling) need.
    #[serde(default)]
    pub track_skew_sectors: Option<f64>,
    /// Sectors skipped where a cylinder is followed by the next; without it, the fewest that the seek needs.
    #[serde(default)]
    pub cylinder_skew_sectors: Option<f64>,
    /// Spares of each unit that the sparing scheme names.
    #[serde(default)]
    pub spares: u64,
    /// Slipped places, counted in physical sectors (or tracks) of the zone, ascending.
    #[serde(default)]
    pub slips: Vec<u64>,
}

/// Motion of arm and platters.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Mechanics {
    /// Turns per minute.
    pub rpm: f64,
    /// Arm movement for reads.
    pub seek: SeekCurve,
    /// Arm movement for writes; without it, the reads' curve plus `write_settle_ms`.
    #[serde(default)]
    pub write_seek: Option<SeekCurve>,
    /// Switching to another head of the same cylinder.
    pub head_switch_ms: f64,
    /// Extra settling after any movement, for writes; extraction can make it negative.
    #[serde(default)]
    pub write_settle_ms: f64,
    /// Independent arms, each over its own share of the LBNs: 1 or 2.
    #[serde(default = "one")]
    pub actuators: u32,
    /// A read starts at whatever wanted sector passes first ("read on arrival").
    #[serde(default)]
    pub zero_latency_reads: bool,
    /// The same for writes.
    #[serde(default)]
    pub zero_latency_writes: bool,
}

/// Transfer of data between drive and host.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Bus {
    /// One sector to the host.
    pub read_us_per_sector: f64,
    /// One sector from the host.
    pub write_us_per_sector: f64,
}

/// Overhead of the controller for each command, before arm or data move. All in milliseconds.
#[derive(Clone, Debug, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
#[allow(
    missing_docs,
    reason = "each name says all there is: command, buffer hit or miss, kind of the previous command"
)]
pub struct Overheads {
    pub read_hit_after_read_ms: f64,
    pub read_hit_after_write_ms: f64,
    pub read_miss_after_read_ms: f64,
    pub read_miss_after_write_ms: f64,
    pub write_hit_after_read_ms: f64,
    pub write_hit_after_write_ms: f64,
    pub write_miss_after_read_ms: f64,
    pub write_miss_after_write_ms: f64,
    /// Before any transfer over the bus.
    pub data_preparation_ms: f64,
    /// Taking the bus again for a read's data, once the media have been reached.
    pub reselect_ms: f64,
    /// Taking the bus again to report a write that is on the media.
    pub write_reselect_ms: f64,
    pub read_completion_ms: f64,
    pub write_completion_ms: f64,
    /// Some drives leave the bus between a write command and its data.
    pub write_disconnect: Option<WriteDisconnect>,
}

/// A write whose drive leaves the bus before it takes the data: replaces the write overheads.
#[derive(Clone, Debug, PartialEq, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct WriteDisconnect {
    /// Command processing.
    pub command_ms: f64,
    /// Leaving the bus.
    pub disconnect_ms: f64,
    /// Until the drive asks for the bus again.
    pub away_ms: f64,
    /// Until the arm starts, counted from the end of command processing.
    pub seek_delay_ms: f64,
    /// The least time from the arm's start to the media for a write that doesn't follow its predecessor.
    pub minimum_seek_ms: f64,
}

/// Reach of a read's own continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadAhead {
    /// Not at all.
    None,
    /// To the end of the track.
    Track,
    /// To the end of the cylinder.
    Cylinder,
    /// Until the segment is full.
    Segment,
    /// To the end of the track, and of the next one too once a stream has crossed into this track.
    NextTrack,
}

/// The on-board buffer.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    /// Segments, each holding one run of sectors; the least recently used is replaced.
    pub segments: u32,
    /// Sectors of a segment.
    pub segment_sectors: u32,
    /// Segments that written data may use.
    pub write_segments: u32,
    /// Written data have a segment of their own, which reads never hit.
    #[serde(default)]
    pub separate_write_segment: bool,
    /// Reach of a read's own continuation.
    pub read_ahead: ReadAhead,
    /// Upper bound of read-ahead behind the request's end.
    pub read_ahead_max_sectors: u32,
    /// Read-ahead may overwrite what the host has just been given.
    #[serde(default)]
    pub read_ahead_over_requested: bool,
    /// A full hit starts read-ahead again.
    #[serde(default)]
    pub read_ahead_after_hit: bool,
    /// Sectors that pass before the wanted ones come are kept.
    #[serde(default)]
    pub keep_passing_sectors: bool,
    /// Share of a request that must be in the buffer before the bus is taken, 0 to 1.
    #[serde(default)]
    pub read_watermark: f64,
    /// 0: a write completes on the media. 1: in the buffer, if it is alone or appends to the last one.
    /// 2: in the buffer while there is room.
    pub write_cache_level: u8,
    /// Writes can be in the buffer while the arm works on another request; otherwise only one run at a time.
    #[serde(default)]
    pub write_prebuffering: bool,
    /// Cached writes go to the media before any later read; otherwise reads go first.
    #[serde(default)]
    pub destage_before_reads: bool,
    /// Full hits are served while the arm is busy with another request.
    #[serde(default)]
    pub hits_pass_arm: bool,
    /// Reads may hit written data.
    #[serde(default)]
    pub read_hits_on_writes: bool,
    /// The arm starts on the next request while the last one's data are still on the bus.
    #[serde(default)]
    pub preseek: bool,
}

/// Order in which queued requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// As they came.
    Fifo,
    /// Fewest cylinders away first.
    Sstf,
    /// Soonest under the head first: seek and rotation.
    Sptf,
}

/// The on-board queue.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Commands the drive accepts at once.
    pub depth: u32,
    /// Their order.
    pub discipline: Discipline,
    /// A command that is older than another by this much goes before it, wherever it is; in between, age counts
    /// in proportion. 0 for no ageing (starvation is possible).
    #[serde(default)]
    pub age_max_ms: f64,
}

impl DiskSpec {
    /// Reads a specification in TOML; the error names line and key.
    pub fn from_toml(text: &str) -> Result<DiskSpec, SpecError> {
        let spec: DiskSpec =
            toml::from_str(text).map_err(|e| SpecError::new("disk profile", e.to_string().trim_end().to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    /// The specification as a profile.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a specification is tables, numbers and strings")
    }

    /// Refuses what no disk can be; the error names the key.
    pub fn check(&self) -> Result<(), SpecError> {
        let g = &self.geometry;
        in_range("geometry.sector_bytes", f64::from(g.sector_bytes), 128.0, 65_536.0)?;
        in_range("geometry.surfaces", f64::from(g.surfaces), 1.0, 256.0)?;
        in_range("geometry.cylinders", f64::from(g.cylinders), 2.0, 16_777_216.0)?;
        in_range("geometry.sparing_range_cylinders", f64::from(g.sparing_range_cylinders), 1.0, 1e6)?;
        self.check_zones()?;
        let m = &self.mechanics;
        in_range("mechanics.rpm", m.rpm, 300.0, 100_000.0)?;
        in_range("mechanics.head_switch_ms", m.head_switch_ms, 0.0, 100.0)?;
        in_range("mechanics.write_settle_ms", m.write_settle_ms, -100.0, 100.0)?;
        in_range("mechanics.actuators", f64::from(m.actuators), 1.0, 2.0)?;
        if !g.surfaces.is_multiple_of(m.actuators) {
            return Err(SpecError::new("mechanics.actuators", "two arms need an even number of surfaces"));
        }
        m.seek.check("mechanics.seek", g.cylinders)?;
        if let Some(w) = &m.write_seek {
            w.check("mechanics.write_seek", g.cylinders)?;
        }
        in_range("bus.read_us_per_sector", self.bus.read_us_per_sector, 0.0, 1e5)?;
        in_range("bus.write_us_per_sector", self.bus.write_us_per_sector, 0.0, 1e5)?;
        for (key, ms) in self.overheads.each() {
            in_range(&format!("overheads.{key}"), ms, 0.0, 1000.0)?;
        }
        let b = &self.buffer;
        in_range("buffer.segments", f64::from(b.segments), 1.0, 4096.0)?;
        in_range("buffer.segment_sectors", f64::from(b.segment_sectors), 1.0, 1e8)?;
        in_range("buffer.write_segments", f64::from(b.write_segments), 1.0, f64::from(b.segments))?;
        in_range("buffer.read_watermark", b.read_watermark, 0.0, 1.0)?;
        in_range("buffer.write_cache_level", f64::from(b.write_cache_level), 0.0, 2.0)?;
        in_range("queue.depth", f64::from(self.queue.depth), 1.0, 1024.0)?;
        in_range("queue.age_max_ms", self.queue.age_max_ms, 0.0, 1e6)
    }

    fn check_zones(&self) -> Result<(), SpecError> {
        let g = &self.geometry;
        in_range("geometry.zones", g.zones.len() as f64, 1.0, 1000.0)?;
        let mut next = 0;
        for (i, z) in g.zones.iter().enumerate() {
            let key = |field: &str| format!("geometry.zones[{i}].{field}");
            let (from, to) = (f64::from(z.first_cylinder), f64::from(z.last_cylinder));
            in_range(&key("first_cylinder"), from, f64::from(next), f64::from(g.cylinders) - 1.0)?;
            in_range(&key("last_cylinder"), to, from, f64::from(g.cylinders) - 1.0)?;
            in_range(&key("sectors_per_track"), f64::from(z.sectors_per_track), 1.0, 1e6)?;
            let spt = f64::from(z.sectors_per_track);
            for (field, sectors) in [
                ("offset_sectors", z.offset_sectors),
                ("track_skew_sectors", z.track_skew_sectors.unwrap_or(0.0)),
                ("cylinder_skew_sectors", z.cylinder_skew_sectors.unwrap_or(0.0)),
            ] {
                in_range(&key(field), sectors, 0.0, spt * 100.0)?;
            }
            let surfaces = g.surfaces / self.mechanics.actuators.clamp(1, 2);
            let cylinder = u64::from(z.sectors_per_track) * u64::from(surfaces.max(1));
            let total = cylinder * u64::from(z.last_cylinder - z.first_cylinder + 1);
            in_range(&key("front_sectors"), z.front_sectors as f64, 0.0, total as f64 - 1.0)?;
            let unit = match g.sparing {
                Sparing::SectorsPerTrack => u64::from(z.sectors_per_track),
                Sparing::SectorsPerCylinder => cylinder,
                Sparing::SectorsPerRange => cylinder * u64::from(g.sparing_range_cylinders),
                Sparing::TracksPerZone => total / u64::from(z.sectors_per_track),
                _ => total,
            };
            in_range(&key("spares"), z.spares as f64, 0.0, unit as f64 - 1.0)?;
            if let Some(w) = z.slips.windows(2).find(|w| w[0] >= w[1]) {
                return Err(SpecError::new(key("slips"), format!("must rise, but {} follows {}", w[1], w[0])));
            }
            next = z.last_cylinder + 1;
        }
        Ok(())
    }
}

impl Overheads {
    fn each(&self) -> Vec<(&'static str, f64)> {
        let mut all = vec![
            ("read_hit_after_read_ms", self.read_hit_after_read_ms),
            ("read_hit_after_write_ms", self.read_hit_after_write_ms),
            ("read_miss_after_read_ms", self.read_miss_after_read_ms),
            ("read_miss_after_write_ms", self.read_miss_after_write_ms),
            ("write_hit_after_read_ms", self.write_hit_after_read_ms),
            ("write_hit_after_write_ms", self.write_hit_after_write_ms),
            ("write_miss_after_read_ms", self.write_miss_after_read_ms),
            ("write_miss_after_write_ms", self.write_miss_after_write_ms),
            ("data_preparation_ms", self.data_preparation_ms),
            ("reselect_ms", self.reselect_ms),
            ("write_reselect_ms", self.write_reselect_ms),
            ("read_completion_ms", self.read_completion_ms),
            ("write_completion_ms", self.write_completion_ms),
        ];
        if let Some(d) = &self.write_disconnect {
            all.extend([
                ("write_disconnect.command_ms", d.command_ms),
                ("write_disconnect.disconnect_ms", d.disconnect_ms),
                ("write_disconnect.away_ms", d.away_ms),
                ("write_disconnect.seek_delay_ms", d.seek_delay_ms),
                ("write_disconnect.minimum_seek_ms", d.minimum_seek_ms),
            ]);
        }
        all
    }
}

fn in_range(key: &str, value: f64, lo: f64, hi: f64) -> Result<(), SpecError> {
    if (lo..=hi).contains(&value) {
        Ok(())
    } else {
        Err(SpecError::new(key, format!("is {value}; it must lie between {lo} and {hi}")))
    }
}
