//! A pool's scattered logs: from what the configuration says to a layer over a formatted device, and what is told of them.

use crate::config::{ByteSize, LogsConfig as Section};
use plimsoll_base::{Span, Time};
use plimsoll_logs::{CleanConfig, Formatted, Layout, LogsConfig, OffHours, Shape};
use plimsoll_pool::LogsPlan;
use plimsoll_store::superblock::{REGION_ALIGN, Region, Superblock};
use std::fs::File;
use std::os::unix::fs::FileExt;

const DAY_S: u64 = 24 * 3600;

/// What an operator chose about the layout, defaults filled in.
fn shape(c: &Section) -> Shape {
    let default = Shape::default();
    let bytes = |b: Option<ByteSize>, otherwise| b.map_or(otherwise, |b| b.0);
    Shape {
        group_bytes: bytes(c.group, default.group_bytes),
        log_bytes: bytes(c.log, default.log_bytes),
        extents_max: c.extents.unwrap_or(default.extents_max),
    }
}

fn behaviour(c: &Section, started_s_of_day: u64) -> Result<LogsConfig, String> {
    let default = LogsConfig::default();
    let off_hours = match &c.off_hours {
        None => None,
        Some(text) => Some(parse_off_hours(text, started_s_of_day)?),
    };
    Ok(LogsConfig {
        logged_write_bytes: c.logged_write.map_or(default.logged_write_bytes, |b| b.0),
        clean: CleanConfig {
            off_hours,
            every: c.every.map(|s| s.0),
            idle_after: c.idle.map_or(default.clean.idle_after, |s| Some(s.0)),
            when_idle: c.clean_when_idle,
            ..default.clean
        },
        adaptive: c.adaptive,
        accept_loss: c.accept_loss,
        ..default
    })
}

/// `01:00-05:30`, UTC, on the pool's clock, which began `started_s` seconds after midnight.
fn parse_off_hours(text: &str, started_s: u64) -> Result<OffHours, String> {
    let bad = || format!("off_hours `{text}` is not a time of day: write HH:MM-HH:MM (UTC), such as 01:00-05:00");
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
/// What is wrong.
pub fn check(c: &Section) -> Result<(), String> {
    behaviour(c, 0)?;
    let (wanted, largest) = logged_write(c);
    if wanted > largest {
        return Err(format!("logs: logged_write of {wanted} bytes is more than a quarter of a log: at most {largest}"));
    }
    Ok(())
}

/// LoggedWriteSize as configured, and the most that it may be.
pub fn logged_write(c: &Section) -> (u64, u64) {
    (c.logged_write.map_or(LogsConfig::default().logged_write_bytes, |b| b.0), shape(c).log_bytes / 4)
}

/// Translates the configuration's section into the logs' part of a pool's plan. `started_s_of_day`: seconds after midnight, UTC,
/// at which the pool starts.
///
/// # Errors
/// Names the invalid setting and its limit.
pub fn plan(c: &Section, started_s_of_day: u64) -> Result<LogsPlan, String> {
    Ok(LogsPlan { shape: shape(c), config: behaviour(c, started_s_of_day)? })
}

fn layout(c: &Section, bytes: u64, block_bytes: u32) -> Result<Layout, String> {
    Layout::new(bytes, block_bytes, shape(c), 0).map_err(|e| format!("logs: {e}"))
}

/// How many bytes the tables of logs take on a device of `device_bytes`, in whole regions.
///
/// # Errors
/// If the logs don't fit the device.
pub fn table_bytes(c: &Section, device_bytes: u64) -> Result<u64, String> {
    let metadata = Superblock::region_map(device_bytes, 0).last().expect("home").offset;
    let device_bytes = device_bytes / REGION_ALIGN * REGION_ALIGN;
    // Which block it has makes no difference here.
    let layout = layout(c, device_bytes - metadata, 512)?;
    Ok(layout.base.next_multiple_of(REGION_ALIGN))
}

/// What the pool's device is to the logs: the tables and home, which follow on each other.
pub fn device_of(tables: Region, home: Region) -> Region {
    Region { len: tables.len + home.len, ..tables }
}

/// How much home the logs leave, in whole regions, on `device` of that block.
///
/// # Errors
/// If the logs don't fit the device.
pub fn home_bytes(c: &Section, device_bytes: u64, block_bytes: u32) -> Result<u64, String> {
    Ok(layout(c, device_bytes, block_bytes)?.home_bytes / REGION_ALIGN * REGION_ALIGN)
}

/// Returns where the logs themselves lie on the pool's device: offset and length of each run.
///
/// # Errors
/// If the logs don't fit the device.
pub fn log_runs(c: &Section, device: Region, block_bytes: u32) -> Result<Vec<(u64, u64)>, String> {
    let layout = layout(c, device.len, block_bytes)?;
    let run = |log| (device.offset + layout.log_start(log), layout.shape.log_bytes);
    Ok((0..layout.logs).map(run).collect())
}

/// Formats the logs of a device that has none yet; true if it did. The layout page is written last: until then it has none.
/// `was_formatted`: the device's superblock says that it had logs.
///
/// # Errors
/// Those of reading and writing, in words; or if logs were in use there whose layout pages are blank.
pub fn format_if_blank(
    c: &Section,
    file: &File,
    device: Region,
    block_bytes: u32,
    salt: u64,
    was_formatted: bool,
) -> Result<bool, String> {
    let failed = |e: std::io::Error| format!("logs: formatting failed: {e}");
    let mut first = vec![0; plimsoll_logs::format::LOOK_BYTES as usize];
    file.read_exact_at(&mut first, device.offset).map_err(failed)?;
    match plimsoll_logs::is_formatted(&first) {
        Formatted::No if !was_formatted => {}
        Formatted::Yes => return Ok(false), // the layer sees for itself whether it is what it should be
        Formatted::No | Formatted::LayoutLost => {
            let what = "logs: the layout pages are blank, but logs were in use: not formatted again, as that would lose what is logged; restore the device from a copy";
            return Err(what.into());
        }
    }
    let layout = Layout::new(device.len, block_bytes, shape(c), salt).map_err(|e| format!("logs: {e}"))?;
    for (at, bytes) in plimsoll_logs::format_device(&layout) {
        if at == 0 {
            file.sync_data().map_err(failed)?;
        }
        file.write_all_at(&bytes, device.offset + at).map_err(failed)?;
    }
    file.sync_data().map_err(failed)?;
    Ok(true)
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
            assert!(at(bad, 0).unwrap_err().contains("HH:MM-HH:MM"), "{bad}");
        }
    }
}
