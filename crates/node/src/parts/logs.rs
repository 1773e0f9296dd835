//! A pool's scattered logs (Manylogs).

use super::page::{Family, Page};
use super::settings::{Setting, Unit};
use super::{About, Acting, Action, Part, Shown};
use crate::config::{BadConfig, ByteSize, LogsConfig as Section, PoolConfig};
use crate::open::{OpenError, Unfit};
use plimsoll_bands::{Place, Places};
use plimsoll_base::{Span, Time, bytes_text};
use plimsoll_device::ZonesLayout;
use plimsoll_logs::{CleanConfig, Formatted, Layout, LogsConfig, LogsControl, LogsStatus, OffHours, Shape};
use plimsoll_pool::LogsPlan;
use plimsoll_stack::{Addressed, Offer, Stack};
use plimsoll_store::superblock::{REGION_ALIGN, Region, Superblock};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const DAY_S: u64 = 24 * 3600;

/// The layout that the operator chose, defaults filled in.
fn shape(c: &Section) -> Shape {
    let default = Shape::default();
    let bytes = |b: Option<ByteSize>, otherwise| b.map_or(otherwise, |b| b.0);
    Shape {
        group_bytes: bytes(c.group, default.group_bytes),
        log_bytes: bytes(c.log, default.log_bytes),
        extents_max: c.extents.unwrap_or(default.extents_max),
    }
}

/// LoggedWriteSize over bands, unless a quarter of a log is less: a write beside the logs costs a copy of its whole band.
const LOGGED_OVER_BANDS: u64 = 2 << 20;

fn behaviour(c: &Section, over_bands: bool, started_s_of_day: u64) -> Result<LogsConfig, BadConfig> {
    let mut default = LogsConfig::default();
    if over_bands {
        default.record_bytes_max = default.record_bytes_max.max(LOGGED_OVER_BANDS);
        // However fast the logs fill, bands are slower.
        default.off_below = Span::ZERO;
    }
    let off_hours = match &c.off_hours {
        None => None,
        Some(text) => Some(parse_off_hours(text, started_s_of_day)?),
    };
    Ok(LogsConfig {
        logged_write_bytes: logged_write(c, over_bands).0,
        clean: CleanConfig {
            off_hours,
            every: c.every.map(|s| s.0),
            idle_after: c.idle.map_or(default.clean.idle_after, |s| Some(s.0)),
            when_idle: c.clean_when_idle,
            ..default.clean
        },
        adaptive: c.adaptive && !over_bands,
        accept_loss: c.accept_loss,
        ..default
    })
}

/// `01:00-05:30`, UTC, on the pool's clock, which began `started_s` seconds after midnight.
fn parse_off_hours(text: &str, started_s: u64) -> Result<OffHours, BadConfig> {
    let bad = || {
        let what = "is not a time of day: write HH:MM-HH:MM (UTC), such as 01:00-05:00";
        BadConfig::new(format!("off_hours `{text}` {what}"))
    };
    let minute = |t: &str| {
        let (h, m) = t.trim().split_once(':')?;
        let (h, m): (u64, u64) = (h.parse().ok()?, m.parse().ok()?);
        (h < 24 && m < 60).then_some(h * 3600 + m * 60)
    };
    let (from, to) = text.split_once('-').ok_or_else(bad)?;
    let (from, to) = (minute(from).ok_or_else(bad)?, minute(to).ok_or_else(bad)?);
    let lasts = (to + DAY_S - from) % DAY_S;
    if lasts == 0 {
        return Err(bad());
    }
    let first = (from + DAY_S - started_s % DAY_S) % DAY_S;
    Ok(OffHours { first: Time::ZERO + Span::from_secs(first), lasts: Span::from_secs(lasts) })
}

/// Seconds since midnight, UTC.
pub fn seconds_of_day() -> u64 {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since_1970.map_or(0, |d| d.as_secs()) % DAY_S
}

/// Checks what can be checked without the device.
///
/// # Errors
/// The fault.
pub fn check(c: &Section, over_bands: bool) -> Result<(), BadConfig> {
    behaviour(c, over_bands, 0)?;
    let (wanted, largest) = logged_write(c, over_bands);
    if wanted > largest {
        return Err(BadConfig::new(format!(
            "logs: logged_write of {wanted} bytes is more than a quarter of a log: at most {largest}"
        )));
    }
    Ok(())
}

/// LoggedWriteSize as configured, and the most that it may be.
pub fn logged_write(c: &Section, over_bands: bool) -> (u64, u64) {
    let largest = shape(c).logged_write_max();
    let default = if over_bands { LOGGED_OVER_BANDS.min(largest) } else { LogsConfig::default().logged_write_bytes };
    (c.logged_write.map_or(default, |b| b.0), largest)
}

/// The same of a pool; zeroes without logs.
fn logged_write_of(pool: &PoolConfig) -> (u64, u64) {
    pool.logs.as_ref().map_or((0, 0), |logs| logged_write(logs, pool.bands.is_some()))
}

/// Translates the configuration's section into the logs' part of a pool's plan. `started_s_of_day`: seconds after midnight, UTC,
/// at which the pool starts. `over_bands`: bands lie below.
///
/// # Errors
/// Names the invalid setting and its limit.
pub fn plan(c: &Section, over_bands: bool, started_s_of_day: u64) -> Result<LogsPlan, BadConfig> {
    // Every field is named, so that a new one can't be forgotten here.
    let Section {
        group: _,
        log: _,
        extents: _,
        logged_write: _,
        off_hours: _,
        every: _,
        idle: _,
        clean_when_idle: _,
        adaptive: _,
        accept_loss: _,
    } = c;
    Ok(LogsPlan { shape: shape(c), config: behaviour(c, over_bands, started_s_of_day)? })
}

/// Places of a pool's logs on its device, and of what lies below them.
pub struct Arranged {
    /// The logs, on what the layers below show them.
    pub logs: Layout,
    /// The bands below them.
    pub bands: Option<Places>,
    /// The zones that the device's file keeps.
    pub zones: Option<ZonesLayout>,
}

impl Arranged {
    /// The arrangement on a device whose layers have `bytes` of it. `salt`: of the logs' checksums, and of those below.
    ///
    /// # Errors
    /// If the logs, or what lies below them, don't fit the device.
    pub fn new(pool: &PoolConfig, bytes: u64, block_bytes: u32, salts: [u64; 2]) -> Result<Arranged, BadConfig> {
        let [salt, below] = salts;
        let c = pool.logs.as_ref().expect("a pool with logs is arranged");
        let device = Offer { size_bytes: bytes, block_bytes, io_bytes_max: 64 << 20, atomic_bytes: 512, queue_max: 64 };
        let zones = super::bands::zones(pool, below).map(|spec| plimsoll_pool::zones_layout(spec, device));
        let zones = zones.transpose().map_err(BadConfig::found)?;
        let device = Offer { size_bytes: zones.map_or(bytes, |z| z.size_bytes()), ..device };
        // A modelled disk may be smaller than the file behind it.
        let model = pool.device.model.as_deref().map(crate::plan::model).transpose()?;
        let seen = plimsoll_pool::seen(model.as_ref(), device).map_err(BadConfig::found)?.offer;
        let bands = pool.bands.as_ref().map(|b| super::bands::plan(b, pool, below)).transpose()?;
        let logs = LogsPlan { shape: shape(c), config: LogsConfig::default() };
        let (mut logs, bands) = plimsoll_pool::logs_layout(&logs, bands.as_ref(), seen).map_err(BadConfig::found)?;
        logs.salt = salt;
        Ok(Arranged { logs, bands, zones })
    }

    /// Pieces of the device that are a range which the logs see: address and length.
    fn pieces(&self, at: u64, len: u64) -> Vec<(u64, u64)> {
        let Some(places) = &self.bands else { return vec![(at, len)] };
        let free = |place| match place {
            Place::Free { at, len } => (at, len),
            Place::Band { .. } => unreachable!("logs and their tables are in free zones"),
        };
        places.of(at, at + len).map(free).collect()
    }

    /// Addresses and bytes of the format, in the order of their writing. The last ones are the logs' layout page.
    fn format(&self) -> Vec<(u64, Vec<u8>)> {
        let zones = self.zones.iter().map(ZonesLayout::format);
        let mut writes: Vec<_> = zones.chain(self.bands.iter().flat_map(plimsoll_bands::format_device)).collect();
        for (at, bytes) in plimsoll_logs::format_device(&self.logs) {
            let mut done = 0;
            for (at, len) in self.pieces(at, bytes.len() as u64) {
                writes.push((at, bytes[done..done + len as usize].to_vec()));
                done += len as usize;
            }
        }
        writes
    }

    /// Offset and length of each run of the device that holds logs, and what is written beside them in place.
    fn runs(&self) -> Vec<(u64, u64)> {
        let logs = (0..self.logs.logs).map(|log| (self.logs.log_start(log), self.logs.shape.log_bytes));
        let mut runs: Vec<_> = logs.flat_map(|(at, len)| self.pieces(at, len)).collect();
        if let Some(places) = &self.bands {
            runs.extend(self.pieces(0, self.logs.base));
            runs.extend(places.maps_at().map(|at| (at, places.map_bytes)));
        }
        runs.extend(self.zones.iter().map(|z| (z.format().0, z.format().1.len() as u64)));
        runs
    }
}

/// Bytes that the tables of logs take on a device of `device_bytes`, in whole regions.
///
/// # Errors
/// If the logs don't fit the device.
pub fn table_bytes(pool: &PoolConfig, device_bytes: u64) -> Result<u64, BadConfig> {
    let align = super::bands::align_bytes(pool)?;
    let device_bytes = device_bytes / REGION_ALIGN * REGION_ALIGN;
    if align > 0 && device_bytes < plimsoll_store::DEVICE_BYTES_MIN + align {
        return Err(BadConfig::new(format!("a device of {device_bytes} bytes has no room for zones and logs")));
    }
    let regions = Superblock::region_map_aligned(device_bytes, 0, align.max(REGION_ALIGN));
    let metadata = regions.last().expect("home").offset;
    // Which block it has makes no difference here.
    let Arranged { logs, .. } = Arranged::new(pool, device_bytes - metadata, 512, [0; 2])?;
    Ok(logs.base.next_multiple_of(REGION_ALIGN))
}

/// The part of the pool's device that the logs have: the tables and home, which follow on each other.
pub fn device_of(tables: Region, home: Region) -> Region {
    Region { len: tables.len + home.len, ..tables }
}

/// Bytes of home that the logs leave, in whole regions, on a device whose layers have `bytes` of it, with that block.
///
/// # Errors
/// If the logs don't fit the device.
pub fn home_bytes(pool: &PoolConfig, bytes: u64, block_bytes: u32) -> Result<u64, BadConfig> {
    Ok(Arranged::new(pool, bytes, block_bytes, [0; 2])?.logs.home_bytes / REGION_ALIGN * REGION_ALIGN)
}

/// The same by the layout pages of a device that has logs; `None` if neither can be read.
pub fn home_bytes_on(path: &Path, tables: Region) -> Option<u64> {
    let mut first = vec![0; plimsoll_logs::format::LOOK_BYTES as usize];
    File::open(path).and_then(|file| file.read_exact_at(&mut first, tables.offset)).ok()?;
    let page = |at: u64| plimsoll_logs::decode_layout(&first[at as usize..]).ok();
    let (layout, _) = plimsoll_logs::layout::LAYOUTS_AT.into_iter().find_map(page)?;
    Some(layout.home_bytes / REGION_ALIGN * REGION_ALIGN)
}

/// Returns where the logs themselves lie on the pool's device: offset and length of each run.
///
/// # Errors
/// If the logs don't fit the device.
pub fn log_runs(pool: &PoolConfig, device: Region, block_bytes: u32) -> Result<Vec<(u64, u64)>, BadConfig> {
    let runs = Arranged::new(pool, device.len, block_bytes, [0; 2])?.runs();
    Ok(runs.into_iter().map(|(at, len)| (device.offset + at, len)).collect())
}

/// Refuses logs of a version that this program doesn't know, before anything on the device is converted; and those that were made with
/// other settings than `pool` has. Metadata that address what other logs leave of the device would be taken for corrupt. A device that can't
/// be read is judged when it is opened, and bands with their logs are, too.
///
/// # Errors
/// That.
pub fn check_before(path: &Path, tables: Region, pool: Option<&PoolConfig>) -> Result<(), OpenError> {
    let mut first = vec![0; plimsoll_logs::format::LOOK_BYTES as usize];
    let read = File::open(path).and_then(|file| file.read_exact_at(&mut first, tables.offset));
    match plimsoll_logs::of_unknown_version(&first).filter(|_| read.is_ok()) {
        Some(what) => return Err(Unfit::UnknownLogs(what).of(path.display())),
        None if read.is_err() => return Ok(()),
        None => {}
    }
    let page = |at: u64| plimsoll_logs::decode_layout(&first[at as usize..]).ok();
    let found = plimsoll_logs::layout::LAYOUTS_AT.into_iter().find_map(page).map(|(layout, _)| layout.shape);
    let asked = pool.filter(|p| p.bands.is_none()).and_then(|p| p.logs.as_ref()).map(shape);
    match found.zip(asked).filter(|(found, asked)| found != asked) {
        Some((found, _)) => Err(Unfit::OtherLogs(found).of(path.display())),
        None => Ok(()),
    }
}

/// Formats the logs of a device that has none yet; true if it did. The layout page is written last: until then it has none.
/// `was_formatted`: the device's superblock says that it had logs. `salts`: of the logs' checksums, and of those of bands and zones below.
///
/// # Errors
/// Those of reading and writing; or if logs were in use there whose layout pages are blank, or that lie over other bands.
pub fn format_if_blank(
    pool: &PoolConfig,
    file: &File,
    device: Region,
    block_bytes: u32,
    salts: [u64; 2],
    was_formatted: bool,
) -> Result<bool, OpenError> {
    let failed = OpenError::Formatting;
    let mut first = vec![0; plimsoll_logs::format::LOOK_BYTES as usize];
    file.read_exact_at(&mut first, device.offset).map_err(failed)?;
    let arranged = Arranged::new(pool, device.len, block_bytes, salts)?;
    match plimsoll_logs::is_formatted(&first) {
        Formatted::No if !was_formatted => {}
        // The layers see for themselves whether it is what it should be. Bands find only that no map is theirs.
        Formatted::Yes if arranged.bands.is_none() => return Ok(false),
        Formatted::Yes => {
            let zone_bytes = arranged.bands.as_ref().filter(|_| arranged.zones.is_none()).map(|b| b.shape.zone_bytes);
            // Behind the last whole zone lies no band. Where the table has no room there, its place is in the bands of a device without
            // zones, and has clients' bytes: a device made with zones has one zone less then, which `check_bands` sees.
            let behind_bands = |zone: u64| {
                ZonesLayout::place(device.len, block_bytes, zone).filter(|at| *at == device.len / zone * zone)
            };
            if let Some(at) = zone_bytes.and_then(behind_bands) {
                let mut sector = [0; 8];
                file.read_exact_at(&mut sector, device.offset + at).map_err(failed)?;
                if ZonesLayout::is_table(&sector) {
                    return Err(Unfit::HasZones.of("bands"));
                }
            }
            return check_bands(&first, &arranged.logs).map(|()| false);
        }
        Formatted::No | Formatted::LayoutLost => return Err(Unfit::LogsLost.of("logs")),
    }
    for (at, bytes) in arranged.format() {
        if at == 0 {
            file.sync_data().map_err(failed)?;
        }
        file.write_all_at(&bytes, device.offset + at).map_err(failed)?;
    }
    file.sync_data().map_err(failed)?;
    Ok(true)
}

/// Refuses logs that were made over other bands, by the layout pages of the device.
fn check_bands(first: &[u8], logs: &Layout) -> Result<(), OpenError> {
    let page = |at: u64| plimsoll_logs::decode_layout(&first[at as usize..]).ok();
    let Some((found, _)) = plimsoll_logs::layout::LAYOUTS_AT.into_iter().find_map(page) else { return Ok(()) };
    let same = |a: &Layout, b: &Layout| (a.device_bytes, a.shape, a.logs) == (b.device_bytes, b.shape, b.logs);
    if same(&found, logs) { Ok(()) } else { Err(Unfit::OtherBands.of("bands")) }
}

/// The part.
pub struct Logs;

impl Part for Logs {
    type Seen = LogsStatus;
    type View = LogsView;
    const NAME: &'static str = "logs";
    const SUMMARY: &'static str = "A pool's scattered logs";
    const HOW: &'static str = "logs are made with a pool's device: see [pool.logs]";

    fn look(stack: &Stack, now: Time) -> Option<LogsStatus> {
        stack.layer::<plimsoll_logs::Logs>().map(|l| l.status(now))
    }

    fn view(seen: &LogsStatus, _: &About) -> LogsView {
        LogsView::from(seen)
    }

    fn shown(v: &LogsView) -> Shown {
        let full = v.occupancy_percent.iter().filter(|p| **p <= 100).max().copied().unwrap_or(0);
        let mut shown = Shown::new(format!(
            "{} logs of {}, one in every {}, the fullest {full} %",
            v.logs,
            bytes_text(v.log_bytes),
            bytes_text(v.group_bytes)
        ));
        shown.problem = v.problem.clone();
        let why = match (v.switched_off, v.logged_write_bytes < v.logged_write_bytes_configured) {
            (true, _) => " (off: the load writes more than logs help with)",
            (false, true) => " (lowered: the logs fill too fast)",
            _ => "",
        };
        shown.line("logged", format!("writes up to {}{why}", bytes_text(v.logged_write_bytes)));
        picture(&v.occupancy_percent).into_iter().for_each(|line| shown.line("", line));
        shown.line("", format!("· empty   ▁ to █ fuller   x retired ({})", v.logs_retired));
        let valid = bytes_text(v.valid_bytes);
        shown.line("in logs", format!("{valid} in {} extents of at most {}", v.extents, v.extents_max));
        shown.line("MTL table", format!("{}, written {} times", bytes_text(v.mtl_bytes), v.images));
        let bytes = bytes_text(v.logged_bytes);
        let writes = format!("{} logged ({bytes}) in {} records, {} found no room", v.logged, v.records, v.spilled);
        shown.line("writes", writes);
        shown.line("reads", format!("{} found something in a log", v.reads_from_logs));
        if v.reads_corrupt + v.reads_lost + v.lost_bytes + v.table_errors > 0 {
            let (corrupt, lost, failed) = (v.reads_corrupt, v.reads_lost, v.table_errors);
            let bytes = bytes_text(v.lost_bytes);
            let damage = format!(
                "{corrupt} reads found corrupt data, {lost} found data that are lost; {bytes} lost; {failed} writes of tables failed"
            );
            shown.line("damage", damage);
        }
        shown.line("swaps", v.swaps.to_string());
        let us = |us: u64| Span::from_micros(us).to_string();
        if v.clean_errors > 0 {
            let what = "reads and writes of checkpoints failed: what they move stays logged, and is tried again";
            shown.line("errors", format!("{} {what}", v.clean_errors));
        }
        shown.line(
            "checkpoints",
            match &v.cleaning {
                None => format!("{}, {} moved", v.checkpoints, bytes_text(v.cleaned_bytes)),
                Some(why) => {
                    let left = v.cleaning_left_us.map_or(String::new(), |left| format!(", about {} more", us(left)));
                    format!("{}; one ({why}) has {} to go{left}", v.checkpoints, bytes_text(v.cleaning_left_bytes))
                }
            },
        );
        let recovery =
            format!("{}, {} logs looked at, {} records", us(v.recovery_us), v.recovery_logs, v.recovery_records);
        shown.line("recovery", recovery);
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, LogsView)]) {
        let of: Vec<_> = pools.iter().map(|(pool, v)| (vec![("pool", *pool)], v)).collect();
        page.families(POOLS, &of);
    }

    fn check(pool: &PoolConfig) -> Result<(), BadConfig> {
        let Some(logs) = &pool.logs else { return Ok(()) };
        check(logs, pool.bands.is_some())?;
        match (pool.device.null, pool.device.rbd.is_some()) {
            (true, _) => Err(BadConfig::new("a null device forgets what it logs: take out `logs`")),
            (_, true) => Err(BadConfig::new(
                "logs spare a disk's arm its way to small writes, and an RBD image has none: its OSDs have journals of their own. Take out \
                 `logs`",
            )),
            _ => Ok(()),
        }
    }

    const SETTINGS: &'static [Setting] = &[Setting {
        key: "logged_write_bytes",
        unit: Unit::Bytes,
        help: "Writes up to this are logged (LoggedWriteSize); 0: none. The logs may choose less while they fill too fast.",
        get: |pool| pool.logs.as_ref().map(|_| logged_write_of(pool).0),
        put: |pool, bytes| {
            if let Some(logs) = &mut pool.logs {
                logs.logged_write = Some(ByteSize(bytes));
            }
        },
        range: |live| 0..=logged_write_of(&live.config).1,
        message: |pool| Addressed::new(&LogsControl::LoggedWriteBytes(logged_write_of(pool).0)),
    }];

    const ACTIONS: &'static [Action] = &[Action {
        name: "checkpoint",
        summary: "Write all logged data back to their places",
        body: None,
        act: |node, pool, _| -> Acting {
            Box::pin(async move { node.tell_layer::<Logs>(&pool, &LogsControl::Checkpoint).await })
        },
    }];
}

/// `GET /v1/pools/{name}/logs`: a pool's scattered logs.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LogsView {
    /// The fault, if there is one.
    pub problem: Option<String>,
    /// Number of logs.
    pub logs: u32,
    /// One log's bytes.
    pub log_bytes: u64,
    /// One group's bytes.
    pub group_bytes: u64,
    /// Writes up to this are logged now; 0: none.
    pub logged_write_bytes: u64,
    /// The same as configured.
    pub logged_write_bytes_configured: u64,
    /// Logging is off because the load doesn't gain by it.
    pub switched_off: bool,
    /// Occupancy of each log in percent, in the order of their places on the device; 255: retired.
    pub occupancy_percent: Vec<u8>,
    /// Valid logged bytes: what a checkpoint would bring home.
    pub valid_bytes: u64,
    /// Extents in the MTL table.
    pub extents: u64,
    /// Most extents that it may have.
    pub extents_max: u64,
    /// Bytes of the table.
    pub mtl_bytes: u64,
    /// Reason of the current checkpoint: `full`, `asked`, `off-hours`, `periodic`, `idle`, `swap`.
    pub cleaning: Option<String>,
    /// Bytes that still have to move.
    pub cleaning_left_bytes: u64,
    /// Estimated time for that, from the time so far.
    pub cleaning_left_us: Option<u64>,
    /// Since the start: writes logged.
    pub logged: u64,
    /// Their bytes.
    pub logged_bytes: u64,
    /// Records written for them.
    pub records: u64,
    /// Small writes that were written in place because no log had room.
    pub spilled: u64,
    /// Reads that found something in a log.
    pub reads_from_logs: u64,
    /// Images of the table written.
    pub images: u64,
    /// Logs swapped.
    pub swaps: u64,
    /// Checkpoints, whole or piece by piece.
    pub checkpoints: u64,
    /// Bytes brought home or swapped.
    pub cleaned_bytes: u64,
    /// Reads and writes of checkpoints that failed.
    #[serde(default)]
    pub clean_errors: u64,
    /// Logs retired after an error.
    pub logs_retired: u64,
    /// Reads that found other bytes in a log than were written there.
    pub reads_corrupt: u64,
    /// Reads of logged data that are known lost.
    pub reads_lost: u64,
    /// Bytes whose reads fail until they are written again, as what was logged of them is lost.
    pub lost_bytes: u64,
    /// Records written only to say what was durable before them.
    pub witness_records: u64,
    /// Writes of the MTL table and its notes that failed.
    pub table_errors: u64,
    /// Duration of the last checkpoint or swap.
    pub last_cleaning_us: Option<u64>,
    /// Duration of the recovery at the start.
    pub recovery_us: u64,
    /// Logs that it looked at.
    pub recovery_logs: u32,
    /// Records that it found.
    pub recovery_records: u64,
}

impl From<&plimsoll_logs::LogsStatus> for LogsView {
    fn from(s: &plimsoll_logs::LogsStatus) -> LogsView {
        let c = &s.counters;
        LogsView {
            problem: s.problem.clone(),
            logs: s.logs,
            log_bytes: s.log_bytes,
            group_bytes: s.group_bytes,
            logged_write_bytes: s.logged_write_bytes,
            logged_write_bytes_configured: s.logged_write_bytes_configured,
            switched_off: s.switched_off,
            occupancy_percent: s.occupancy.clone(),
            valid_bytes: s.valid_bytes,
            extents: s.extents,
            extents_max: s.extents_max,
            mtl_bytes: s.mtl_bytes,
            cleaning: s.cleaning.map(|(why, _)| why.name().to_string()),
            cleaning_left_bytes: s.cleaning.map_or(0, |(_, left)| left),
            cleaning_left_us: s.cleaning_left.map(|l| l.as_micros()),
            logged: c.logged,
            logged_bytes: c.logged_bytes,
            records: c.records,
            spilled: c.spilled,
            reads_from_logs: c.reads_from_logs,
            images: c.images,
            swaps: c.swaps,
            checkpoints: c.checkpoints,
            cleaned_bytes: c.cleaned_bytes,
            clean_errors: c.clean_errors,
            logs_retired: c.logs_retired,
            reads_corrupt: c.reads_corrupt,
            reads_lost: c.reads_lost,
            lost_bytes: s.lost_bytes,
            witness_records: c.witness_records,
            table_errors: c.table_errors,
            last_cleaning_us: c.last_clean.map(|r| r.took.as_micros()),
            recovery_us: c.recovery.took.as_micros(),
            recovery_logs: c.recovery.logs_scanned,
            recovery_records: c.recovery.records,
        }
    }
}

/// Metrics of a pool's logs.
const POOLS: &[Family<LogsView>] = &[
    ("plimsoll_logs_logged_write_bytes", "Largest write that is logged at present.", |l| l.logged_write_bytes as f64),
    ("plimsoll_logs_valid_bytes", "Valid logged bytes, which a checkpoint writes to their place.", |l| {
        l.valid_bytes as f64
    }),
    ("plimsoll_logs_used_bytes", "Bytes of logs in use, valid or not.", |l| {
        let percent: u64 = l.occupancy_percent.iter().filter(|p| **p <= 100).map(|p| u64::from(*p)).sum();
        (percent * (l.log_bytes / 100)) as f64
    }),
    ("plimsoll_logs_size_bytes", "Bytes of all logs.", |l| (u64::from(l.logs) * l.log_bytes) as f64),
    ("plimsoll_logs_mtl_extents", "Extents in the MTL table.", |l| l.extents as f64),
    ("plimsoll_logs_mtl_extents_max", "Extents that the MTL table may have.", |l| l.extents_max as f64),
    ("plimsoll_logs_retired", "Logs retired after an error.", |l| l.logs_retired as f64),
    ("plimsoll_logs_cleaning", "1 while logs are being emptied.", |l| f64::from(u8::from(l.cleaning.is_some()))),
    ("plimsoll_logs_writes_total", "Writes logged.", |l| l.logged as f64),
    ("plimsoll_logs_written_bytes_total", "Bytes of logged writes.", |l| l.logged_bytes as f64),
    ("plimsoll_logs_records_total", "Records written for logged writes.", |l| l.records as f64),
    ("plimsoll_logs_spilled_total", "Small writes that were written in place because no log had room.", |l| {
        l.spilled as f64
    }),
    ("plimsoll_logs_reads_total", "Reads that were answered from a log, in whole or in part.", |l| {
        l.reads_from_logs as f64
    }),
    ("plimsoll_logs_images_total", "Images of the MTL table written.", |l| l.images as f64),
    ("plimsoll_logs_swaps_total", "Logs swapped.", |l| l.swaps as f64),
    ("plimsoll_logs_checkpoints_total", "Checkpoints, whole or in idle time.", |l| l.checkpoints as f64),
    ("plimsoll_logs_cleaned_bytes_total", "Bytes checkpointed or swapped.", |l| l.cleaned_bytes as f64),
    ("plimsoll_logs_clean_errors_total", "Reads and writes of checkpoints that failed.", |l| l.clean_errors as f64),
    ("plimsoll_logs_reads_corrupt_total", "Reads of logged data whose checksum was wrong.", |l| l.reads_corrupt as f64),
    ("plimsoll_logs_reads_lost_total", "Reads of logged data that are recorded as lost.", |l| l.reads_lost as f64),
    ("plimsoll_logs_lost_bytes", "Bytes whose reads fail until they are written again.", |l| l.lost_bytes as f64),
    (
        "plimsoll_logs_witness_records_total",
        "Empty records, which only confirm that earlier records are durable.",
        |l| l.witness_records as f64,
    ),
    ("plimsoll_logs_table_errors_total", "Writes of the MTL table and its notes that failed.", |l| {
        l.table_errors as f64
    }),
    ("plimsoll_logs_recovery_seconds", "Time of the logs' recovery at the start.", |l| l.recovery_us as f64 / 1e6),
];

/// Cells of a line of the picture.
const COLUMNS: usize = 64;
const LINES_MAX: usize = 16;

/// The disk from its beginning on: each cell the fullest of its logs.
fn picture(occupancy: &[u8]) -> Vec<String> {
    let per_cell = occupancy.len().div_ceil(COLUMNS * LINES_MAX).max(1);
    let cell = |logs: &[u8]| match logs.iter().copied().filter(|p| *p <= 100).max() {
        _ if logs.contains(&255) => 'x',
        None | Some(0) => '·',
        Some(p) => ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'][usize::from(p.min(99)) * 8 / 100],
    };
    let cells: Vec<char> = occupancy.chunks(per_cell).map(cell).collect();
    cells.chunks(COLUMNS).map(|line| line.iter().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn off_hours_are_times_of_day() {
        let at = |text, started| parse_off_hours(text, started).map(|o| (o.first.as_nanos() / 1_000_000_000, o.lasts));
        assert_eq!(at("01:00-05:30", 0), Ok((3600, Span::from_secs(16_200))));
        assert_eq!(at("22:00-02:00", 23 * 3600), Ok((23 * 3600, Span::from_secs(4 * 3600))));
        for bad in ["", "1-5", "01:00", "25:00-02:00", "01:00-01:00", "01:60-02:00"] {
            assert!(at(bad, 0).unwrap_err().to_string().contains("HH:MM-HH:MM"), "{bad}");
        }
    }

    #[test]
    fn the_picture_shows_the_fullest_log_of_each_cell() {
        assert_eq!(picture(&[0, 1, 50, 100, 255]), ["·▁▅█x"]);
        let many: Vec<u8> = (0..2048).map(|i| if i == 1 { 100 } else { 0 }).collect();
        let drawn = picture(&many);
        assert_eq!((drawn.len(), drawn[0].chars().next()), (16, Some('█')));
    }
}
