//! Any device by its name: one place that turns the configured name into a model.
//!
//! A name is a profile's (`cheetah-15k5`, `nvme-modern`, `seagate-archive-8tb`), a profile file's (`drive.toml`, of any
//! kind: its keys tell), or one of these with prefixes:
//!
//! | prefix | what it makes |
//! | --- | --- |
//! | `raid0:MEMBERS:CHUNK:` | that many of the device, striped by chunks |
//! | `zoned:ZONE:` | a disk as host-managed zones, the first eighth of them conventional, at most 128 open |
//! | `spread:N:` | a disk with zones, every N-th of them conventional instead of the first eighth |
//! | `cached:MEMORY:` | the device behind that much page cache |
//! | `sized:BYTES:` | a flash drive shrunk to about that capacity |
//! | `fresh:`, `aged:` | a flash drive never written; or filled and then overwritten three times over |
//! | `used:PERCENT:` | a flash drive of which the first PERCENT % were written once, and the rest never |
//!
//! So `raid0:6:64K:cheetah-15k5` is Manylogs' array. By default a flash drive is filled once and is at most 16 GiB large: its
//! maps take memory by capacity.

use crate::cached::Cached;
use crate::disk::{Disk, DiskOptions, DiskSpec, Mismatch, SpecError};
use crate::flash::{Flash, FlashOptions, FlashSpec, History};
use crate::model::{Done, Model, Request};
use crate::profile;
use crate::raid0::Raid0;
use crate::smr::zoned::{ZoneSpec, ZonedDisk};
use crate::smr::{SmrDisk, SmrSpec};
use plimsoll_base::{Time, parse_bytes};
use plimsoll_stack::inside::FlashInside;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Differences between two devices of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceOptions {
    /// Draws what a specification leaves open: the platters' angle, an aged drive's overwrites.
    pub seed: u64,
    /// Half width of the deviation from the specification, 0 to 0.5; 0: none.
    pub mismatch: f64,
}

/// A device's parameters, whatever its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum DeviceSpec {
    /// A disk.
    Disk(Box<DiskSpec>),
    /// A flash drive.
    Flash {
        /// Its parameters.
        spec: Box<FlashSpec>,
        /// Writes before the experiment.
        history: History,
        /// Shrunk to about this capacity.
        bytes_max: u64,
    },
    /// A drive-managed shingled disk.
    Shingled(Box<SmrSpec>),
    /// A disk as host-managed zones.
    Zoned(Box<DiskSpec>, ZoneSpec),
    /// Several of one kind, striped.
    Raid0 {
        /// Each of them.
        member: Box<DeviceSpec>,
        /// Number of members.
        members: u32,
        /// Striped by this many bytes.
        chunk_bytes: u64,
    },
    /// Behind a page cache of this size in bytes.
    Cached(Box<DeviceSpec>, u64),
}

const FLASH_BYTES_MAX: u64 = 16 << 30;
/// Three times over: what [`History::Aged`] calls a steady state.
const AGED: History = History::Aged { overwrites_permille: 3000 };
const MEMBERS_MAX: u32 = 64;
/// A device in a device in a device: more is a slip.
const PREFIXES_MAX: usize = 4;
const ZONES_OPEN_MAX: u32 = 128;

/// Names of all embedded profiles: disks, then flash drives, then shingled disks.
pub fn names() -> impl Iterator<Item = &'static str> {
    profile::names().chain(FlashSpec::names()).chain(SmrSpec::names())
}

/// The name of the same device with its profile's file, where a relative path names one, taken from the folder `base`.
pub fn name_from(base: &Path, name: &str) -> String {
    let mut file = name;
    while let Some((prefix, rest)) = file.split_once(':') {
        let words = match prefix {
            "raid0" => 2,
            "zoned" | "spread" | "cached" | "sized" | "used" => 1,
            "fresh" | "aged" => 0,
            _ => break, // a file's name may have a colon in it
        };
        let after = (0..words).try_fold(rest, |rest, _| Some(rest.split_once(':')?.1));
        let Some(after) = after else { break };
        file = after;
    }
    let prefixes = &name[..name.len() - file.len()];
    match Path::new(file).extension().is_some_and(|e| e == "toml") {
        true => format!("{prefixes}{}", base.join(file).display()),
        false => name.to_string(),
    }
}

impl DeviceSpec {
    /// The device called `name`: see the module's documentation.
    ///
    /// # Errors
    /// If there is no such profile or file, or it isn't a device's, or a prefix doesn't fit.
    pub fn named(name: &str) -> Result<DeviceSpec, SpecError> {
        DeviceSpec::prefixed(name, PREFIXES_MAX)
    }

    fn prefixed(name: &str, prefixes_left: usize) -> Result<DeviceSpec, SpecError> {
        let bad = |what: &str| SpecError::new("device", format!("`{name}`: {what}"));
        let Some((prefix, rest)) = name.split_once(':') else { return DeviceSpec::plain(name) };
        let Some(left) = prefixes_left.checked_sub(1) else { return Err(bad("too many prefixes")) };
        let with_size = |usage: &str| {
            let (size, rest) = rest.split_once(':').ok_or_else(|| bad(&format!("write {usage}")))?;
            Ok((parse_bytes(size).map_err(|e| bad(&e))?, rest))
        };
        match prefix {
            "raid0" => {
                let usage = "write raid0:MEMBERS:CHUNK:DEVICE, such as raid0:6:64K:cheetah-15k5";
                let mut parts = rest.splitn(3, ':');
                let (Some(members), Some(chunk), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
                    return Err(bad(usage));
                };
                let members = members.parse().ok().filter(|n| (1..=MEMBERS_MAX).contains(n));
                let members = members.ok_or_else(|| bad(&format!("an array has 1 to {MEMBERS_MAX} members")))?;
                let chunk_bytes = parse_bytes(chunk).map_err(|e| bad(&e))?;
                let member = Box::new(DeviceSpec::prefixed(rest, left)?);
                if member.is_zoned() {
                    // Its parts may wait for a full member, and so come to a pointer that has moved on.
                    return Err(bad("zoned disks can't be striped"));
                }
                Ok(DeviceSpec::Raid0 { member, members, chunk_bytes })
            }
            "zoned" => {
                let (zone_bytes, rest) = with_size("zoned:ZONE:DISK, such as zoned:256M:constellation-es3-1tb")?;
                let DeviceSpec::Disk(disk) = DeviceSpec::prefixed(rest, left)? else {
                    return Err(bad("only a disk has zones"));
                };
                let zones = Disk::new(&disk, DiskOptions::default())?.size_bytes() / zone_bytes.max(1);
                let conventional = u32::try_from(zones / 8).unwrap_or(u32::MAX);
                let zones = ZoneSpec { zone_bytes, conventional, conventional_every: 0, open_max: ZONES_OPEN_MAX };
                Ok(DeviceSpec::Zoned(disk, zones))
            }
            "spread" => {
                let usage = "write spread:EVERY:zoned:ZONE:DISK, such as spread:10:zoned:32M:constellation-es3-1tb";
                let (every, rest) = rest.split_once(':').ok_or_else(|| bad(usage))?;
                let every = every.parse::<u32>().ok().filter(|n| *n >= 2).ok_or_else(|| bad(usage))?;
                let DeviceSpec::Zoned(disk, zones) = DeviceSpec::prefixed(rest, left)? else { return Err(bad(usage)) };
                Ok(DeviceSpec::Zoned(disk, ZoneSpec { conventional: 0, conventional_every: every, ..zones }))
            }
            "cached" => {
                let (memory, rest) = with_size("cached:MEMORY:DEVICE, such as cached:1G:cheetah-15k5")?;
                Ok(DeviceSpec::Cached(Box::new(DeviceSpec::prefixed(rest, left)?), memory))
            }
            "sized" => {
                let (bytes, rest) = with_size("sized:BYTES:DRIVE, such as sized:64G:nvme-modern")?;
                DeviceSpec::prefixed(rest, left)?
                    .flash(|_, bytes_max| *bytes_max = bytes)
                    .ok_or_else(|| bad("only a flash drive can be shrunk: a disk's size is its geometry"))
            }
            "fresh" | "aged" => {
                let wanted = if prefix == "aged" { AGED } else { History::Fresh };
                let device = DeviceSpec::prefixed(rest, left)?.flash(|history, _| *history = wanted);
                device.ok_or_else(|| bad("only a flash drive has a history"))
            }
            "used" => {
                let usage = "write used:PERCENT:DRIVE, such as used:8:nvme-modern";
                let (percent, rest) = rest.split_once(':').ok_or_else(|| bad(usage))?;
                let percent = percent.parse::<u32>().ok().filter(|p| (1..=100).contains(p));
                let percent = percent.ok_or_else(|| bad(usage))?;
                let wanted = History::Part { permille: 10 * percent };
                let device = DeviceSpec::prefixed(rest, left)?.flash(|history, _| *history = wanted);
                device.ok_or_else(|| bad("only a flash drive has a history"))
            }
            // A file's name may have a colon in it.
            _ if name.ends_with(".toml") => DeviceSpec::plain(name),
            _ => Err(bad("no such prefix: there are raid0, zoned, spread, cached, sized, fresh, aged and used")),
        }
    }

    fn flash(mut self, change: impl FnOnce(&mut History, &mut u64)) -> Option<DeviceSpec> {
        let DeviceSpec::Flash { history, bytes_max, .. } = &mut self else { return None };
        change(history, bytes_max);
        Some(self)
    }

    fn plain(name: &str) -> Result<DeviceSpec, SpecError> {
        if Path::new(name).extension().is_some_and(|e| e == "toml") {
            let text = std::fs::read_to_string(name).map_err(|e| SpecError::new("device", format!("{name}: {e}")))?;
            return DeviceSpec::from_toml(&text).map_err(|e| SpecError::new("device", format!("{name}: {e}")));
        }
        if profile::names().any(|n| n == name) {
            return Ok(DeviceSpec::Disk(Box::new(profile::by_name(name)?)));
        }
        if FlashSpec::names().any(|n| n == name) {
            return Ok(DeviceSpec::of_flash(FlashSpec::by_name(name)?));
        }
        if SmrSpec::names().any(|n| n == name) {
            return Ok(DeviceSpec::Shingled(Box::new(SmrSpec::by_name(name)?)));
        }
        let known: Vec<_> = names().collect();
        Err(SpecError::new("device", format!("`{name}` is unknown; there are {}", known.join(", "))))
    }

    /// A profile in TOML, of the kind that its keys tell: shingled disks have `band_tracks`, flash drives `timing`.
    ///
    /// # Errors
    /// With line and key, if it isn't one.
    pub fn from_toml(text: &str) -> Result<DeviceSpec, SpecError> {
        let table: toml::Table =
            text.parse().map_err(|e: toml::de::Error| SpecError::new("profile", e.to_string().trim_end()))?;
        Ok(if table.contains_key("band_tracks") {
            DeviceSpec::Shingled(Box::new(SmrSpec::from_toml(text)?))
        } else if table.contains_key("timing") {
            DeviceSpec::of_flash(FlashSpec::from_toml(text)?)
        } else {
            DeviceSpec::Disk(Box::new(DiskSpec::from_toml(text)?))
        })
    }

    fn of_flash(spec: FlashSpec) -> DeviceSpec {
        DeviceSpec::Flash { spec: Box::new(spec), history: History::Filled, bytes_max: FLASH_BYTES_MAX }
    }

    /// The disk's parameters, if it is a plain disk.
    pub fn disk(&self) -> Option<&DiskSpec> {
        match self {
            DeviceSpec::Disk(spec) => Some(spec),
            _ => None,
        }
    }

    /// True if the device has an arm that must move: every kind but flash, and sets or caches of such.
    pub fn is_rotational(&self) -> bool {
        match self {
            DeviceSpec::Disk(_) | DeviceSpec::Shingled(_) | DeviceSpec::Zoned(..) => true,
            DeviceSpec::Flash { .. } => false,
            DeviceSpec::Raid0 { member, .. } | DeviceSpec::Cached(member, _) => member.is_rotational(),
        }
    }

    fn is_zoned(&self) -> bool {
        match self {
            DeviceSpec::Zoned(..) => true,
            DeviceSpec::Cached(inner, _) => inner.is_zoned(),
            _ => false,
        }
    }

    /// The same device, a flash drive in it at most `bytes` large if nothing smaller was asked for.
    #[must_use]
    pub fn at_most(self, bytes: u64) -> DeviceSpec {
        match self {
            DeviceSpec::Flash { spec, history, bytes_max } => {
                DeviceSpec::Flash { spec, history, bytes_max: bytes_max.min(bytes) }
            }
            DeviceSpec::Raid0 { member, members, chunk_bytes } => {
                let each = bytes.div_ceil(u64::from(members));
                DeviceSpec::Raid0 { member: Box::new(member.at_most(each)), members, chunk_bytes }
            }
            DeviceSpec::Cached(inner, memory) => DeviceSpec::Cached(Box::new(inner.at_most(bytes)), memory),
            other => other,
        }
    }

    /// Builds the device.
    ///
    /// # Errors
    /// The key at fault.
    pub fn build(&self, options: DeviceOptions) -> Result<AnyModel, SpecError> {
        let seed = options.seed;
        let mismatch = (options.mismatch > 0.0).then_some(Mismatch { seed, spread: options.mismatch });
        let disk_options = DiskOptions { seed, mismatch };
        Ok(match self {
            DeviceSpec::Disk(spec) => AnyModel::Disk(Box::new(Disk::new(spec, disk_options)?)),
            DeviceSpec::Flash { spec, history, bytes_max } => {
                let options = FlashOptions { seed, mismatch, history: *history, bytes_max: Some(*bytes_max) };
                AnyModel::Flash(Box::new(Flash::new(spec, options)?))
            }
            DeviceSpec::Shingled(spec) => AnyModel::Shingled(Box::new(SmrDisk::new(spec, disk_options)?)),
            DeviceSpec::Zoned(disk, zones) => AnyModel::Zoned(Box::new(ZonedDisk::new(disk, disk_options, *zones)?)),
            DeviceSpec::Raid0 { member, members, chunk_bytes } => {
                // Members of one array differ as two drives of one kind do.
                let each = (0..u64::from(*members))
                    .map(|i| member.build(DeviceOptions { seed: seed.wrapping_mul(0x9e37).wrapping_add(i), ..options }))
                    .collect::<Result<Vec<_>, _>>()?;
                let striped = Raid0::new(each, *chunk_bytes);
                AnyModel::Raid0(Box::new(striped.map_err(|e| SpecError::new("raid0", e.to_string()))?))
            }
            DeviceSpec::Cached(inner, memory) => {
                AnyModel::Cached(Box::new(Cached::new(inner.build(options)?, *memory)?))
            }
        })
    }
}

/// A model of any kind.
#[derive(Clone, Debug)]
pub enum AnyModel {
    /// A disk.
    Disk(Box<Disk>),
    /// A flash drive.
    Flash(Box<Flash>),
    /// A drive-managed shingled disk.
    Shingled(Box<SmrDisk>),
    /// A disk as host-managed zones.
    Zoned(Box<ZonedDisk>),
    /// An array.
    Raid0(Box<Raid0<AnyModel>>),
    /// Behind a page cache.
    Cached(Box<Cached<AnyModel>>),
}

macro_rules! each {
    ($any:expr, $model:ident => $call:expr) => {
        match $any {
            AnyModel::Disk($model) => $call,
            AnyModel::Flash($model) => $call,
            AnyModel::Shingled($model) => $call,
            AnyModel::Zoned($model) => $call,
            AnyModel::Raid0($model) => $call,
            AnyModel::Cached($model) => $call,
        }
    };
}

impl Model for AnyModel {
    fn size_bytes(&self) -> u64 {
        each!(self, m => m.size_bytes())
    }
    fn block_bytes(&self) -> u32 {
        each!(self, m => m.block_bytes())
    }
    fn submit(&mut self, now: Time, req: Request) {
        each!(self, m => m.submit(now, req));
    }
    fn next_event(&self) -> Time {
        each!(self, m => m.next_event())
    }
    fn next_completion(&self) -> Time {
        each!(self, m => m.next_completion())
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        each!(self, m => m.advance(now, done));
    }
    fn outstanding(&self) -> usize {
        each!(self, m => m.outstanding())
    }
    fn queue_max(&self) -> usize {
        each!(self, m => m.queue_max())
    }
    fn accepts(&self, req: &Request) -> bool {
        each!(self, m => m.accepts(req))
    }
    fn flash(&self) -> Option<&dyn FlashInside> {
        each!(self, m => m.flash())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Op;
    use plimsoll_base::Span;

    /// The mean response of 200 random 4 KiB reads one after the other, and the model.
    fn mean_read(name: &str, seed: u64) -> (Span, AnyModel) {
        let spec = DeviceSpec::named(name).expect(name).at_most(1 << 30);
        let mut m = spec.build(DeviceOptions { seed, mismatch: 0.0 }).expect(name);
        let mut rng = plimsoll_base::Rng::new(seed, "reads");
        let (mut now, mut sum, mut done) = (Time::ZERO, Span::ZERO, Vec::new());
        for tag in 0..200 {
            let offset = rng.below(m.size_bytes() / 4096) * 4096;
            m.submit(now, Request { tag, op: Op::Read, offset, len: 4096 });
            while done.is_empty() {
                m.advance(m.next_event(), &mut done);
            }
            let d = done.remove(0);
            sum += d.at.since(now);
            now = d.at;
        }
        (sum / 200, m)
    }

    #[test]
    fn a_profiles_file_is_taken_from_a_folder() {
        let from = |name| name_from(Path::new("/etc/plimsoll"), name);
        assert_eq!(from("drive.toml"), "/etc/plimsoll/drive.toml");
        assert_eq!(from("sized:1G:drives/a:b.toml"), "sized:1G:/etc/plimsoll/drives/a:b.toml");
        assert_eq!(from("raid0:3:64K:used:8:drive.toml"), "raid0:3:64K:used:8:/etc/plimsoll/drive.toml");
        for same in ["aged:/tmp/drive.toml", "nvme-modern", "cached:1G:cheetah-15k5", "sized:1G"] {
            assert_eq!(from(same), same);
        }
    }

    /// A predictor that looks inside a drive (MittSSD) must find the flash under every name that a drive has.
    #[test]
    fn flash_shows_its_inside_by_name_and_nothing_else_does() {
        for (name, shows) in [
            ("mittos-openchannel", true),
            ("sized:1G:nvme-modern", true),
            ("cheetah-15k5", false),
            ("raid0:2:64K:nvme-modern", false),
        ] {
            let spec = DeviceSpec::named(name).expect(name).at_most(1 << 30);
            let model = spec.build(DeviceOptions::default()).expect(name);
            assert_eq!(model.flash().is_some(), shows, "{name}");
        }
    }

    #[test]
    fn every_profile_is_a_device_by_its_name() {
        for name in names() {
            let (mean, m) = mean_read(name, 1);
            let rotational = DeviceSpec::named(name).expect(name).is_rotational();
            println!("{name:<28} {:>6} GB  random 4 KiB read {mean}", m.size_bytes() / 1_000_000_000);
            // A disk takes milliseconds, flash tenths of them: the wrong kind would show.
            assert_eq!(mean > Span::from_millis(3), rotational, "{name}: {mean}");
            assert_eq!(mean_read(name, 1).0, mean, "{name} twice");
        }
    }

    #[test]
    fn prefixes_compose() {
        let size = |name: &str| mean_read(name, 1).1.size_bytes();
        let one = size("cheetah-15k5");
        assert_eq!(size("raid0:6:64K:cheetah-15k5"), one / 65_536 * 65_536 * 6);
        let (mean, m) = mean_read("cached:64M:raid0:2:64K:sized:256M:aged:nvme-modern", 1);
        assert!(matches!(m, AnyModel::Cached(_)) && mean < Span::from_millis(1), "{mean}");
        assert!(matches!(mean_read("zoned:256M:hdd-160g-7200", 1).1, AnyModel::Zoned(_)));
        let fresh = mean_read("fresh:vf-sata-60g", 1).0;
        let (used, filled) = (mean_read("used:40:vf-sata-60g", 1).0, mean_read("vf-sata-60g", 1).0);
        assert!(
            fresh < used && used < filled,
            "pages never written are not read from the flash: {fresh} {used} {filled}"
        );
    }

    #[test]
    fn a_zoned_disk_says_what_it_does_not_take() {
        let (_, mut m) = mean_read("zoned:256M:hdd-160g-7200", 1);
        let zone = m.size_bytes() / (256 << 20) / 2;
        let write = |offset| Request { tag: 1, op: Op::Write { fua: false }, offset, len: 4096 };
        assert!(m.accepts(&write(0)) && m.accepts(&write(zone * (256 << 20))));
        assert!(!m.accepts(&write(zone * (256 << 20) + 4096)), "not at the pointer");
        let now = Time::from_nanos(u64::MAX / 2);
        m.advance(now, &mut Vec::new());
        m.submit(now, write(zone * (256 << 20)));
        assert!(m.accepts(&write(zone * (256 << 20) + 4096)));
    }

    #[test]
    fn what_is_no_device_is_said_so() {
        for (name, said) in [
            ("floppy", "`floppy` is unknown; there are cheetah-15k5"),
            ("raid0:0:64K:cheetah-15k5", "1 to 64 members"),
            ("raid0:2:cheetah-15k5", "write raid0:MEMBERS:CHUNK:DEVICE"),
            ("raid0:2:1x:cheetah-15k5", "is not a size"),
            ("aged:cheetah-15k5", "only a flash drive has a history"),
            ("used:8:cheetah-15k5", "only a flash drive has a history"),
            ("used:0:nvme-modern", "write used:PERCENT:DRIVE"),
            ("used:nvme-modern", "write used:PERCENT:DRIVE"),
            ("sized:1G:cheetah-15k5", "only a flash drive can be shrunk"),
            ("zoned:256M:nvme-modern", "only a disk has zones"),
            ("raid0:2:64K:zoned:256M:hdd-160g-7200", "can't be striped"),
            ("raid1:2:cheetah-15k5", "no such prefix"),
            ("fresh:fresh:fresh:fresh:fresh:nvme-modern", "too many prefixes"),
            ("absent.toml", "absent.toml: No such file"),
        ] {
            let error = DeviceSpec::named(name).expect_err(name).to_string();
            assert!(error.contains(said), "{name}: {error}");
        }
        let bad_chunk = DeviceSpec::named("raid0:2:100:cheetah-15k5").expect("parses").build(DeviceOptions::default());
        assert!(bad_chunk.expect_err("no whole blocks").to_string().contains("not whole blocks"));
        let error = DeviceSpec::from_toml("band_tracks = 3\n[disk]\nname = 4").expect_err("not a profile").to_string();
        assert!(error.contains("line"), "{error}");
    }

    #[test]
    fn a_profile_file_is_of_the_kind_its_keys_tell() {
        let flash = FlashSpec::by_name("nvme-modern").expect("embedded").to_toml();
        assert!(matches!(DeviceSpec::from_toml(&flash), Ok(DeviceSpec::Flash { .. })));
        let smr = SmrSpec::by_name("seagate-archive-8tb").expect("embedded").to_toml();
        assert!(matches!(DeviceSpec::from_toml(&smr), Ok(DeviceSpec::Shingled(_))));
        let disk = profile::by_name("atlas-10k").expect("embedded").to_toml();
        assert!(matches!(DeviceSpec::from_toml(&disk), Ok(DeviceSpec::Disk(_))));
    }
}
