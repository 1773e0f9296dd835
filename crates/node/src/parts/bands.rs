//! A pool's bands: a shingled drive below its scattered logs.

use super::page::{Family, Page};
use super::{About, Part, Shown};
use crate::config::{BadConfig, BandsConfig as Section, ByteSize, PoolConfig};
use plimsoll_bands::{BandsConfig, BandsStatus};
use plimsoll_base::{Span, Time, bytes_text};
use plimsoll_device::smr::zoned::ZoneSpec;
use plimsoll_device::zones::ZonesCounters;
use plimsoll_device::{DeviceSpec, Zones, ZonesSpec};
use plimsoll_pool::BandsPlan;
use plimsoll_stack::Stack;
use plimsoll_store::superblock::REGION_ALIGN;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Of drives on sale: their zones, and about the share of them that is unshingled.
const ZONE_BYTES: u64 = 256 << 20;
const FREE_EVERY: u32 = 50;
const SPARES: u32 = 2;
/// The logs' layout pages and notes are in the first zone, in one piece.
const ZONE_BYTES_MIN: u64 = 64 << 10;

/// Zones of the pool's own device, if its file is to keep their rules.
pub fn zones(pool: &PoolConfig, salt: u64) -> Option<ZonesSpec> {
    let z = pool.device.zones.as_ref()?;
    Some(ZonesSpec { zone_bytes: z.size.0, conventional_every: z.conventional_every, salt, planted: None })
}

/// Kind of a device, as far as bands can lie on it.
enum Drive {
    /// A host-managed drive with zones of this size, one in N of them conventional, and the key that says so.
    Zoned(u64, u32, &'static str),
    /// A shingled drive that takes any write, or a device of which nothing is known.
    Any,
    /// Another: why bands make no sense there.
    Unfit(&'static str),
}

fn drive_of(spec: &DeviceSpec) -> Drive {
    match spec {
        DeviceSpec::Zoned(_, ZoneSpec { zone_bytes, conventional: 0, conventional_every, .. }) => {
            Drive::Zoned(*zone_bytes, *conventional_every, "the model's")
        }
        DeviceSpec::Zoned(..) => Drive::Unfit(
            "logs need conventional zones all over the drive, and this model's are its first ones: name `spread:N:zoned:…`",
        ),
        DeviceSpec::Shingled(_) => Drive::Any,
        DeviceSpec::Cached(inner, _) => drive_of(inner),
        DeviceSpec::Flash { .. } => Drive::Unfit("a flash drive isn't shingled: take out `bands`, and `logs`, too"),
        DeviceSpec::Raid0 { .. } => Drive::Unfit("a striped array has no zones of its own: take out `bands`"),
        DeviceSpec::Disk(_) => Drive::Unfit(
            "the modelled disk isn't shingled: logs alone spare its arm. Take out `bands`, or add `zones` to its device",
        ),
    }
}

/// True if a device refuses writes beside its zones' pointers.
fn is_zoned(spec: &DeviceSpec) -> bool {
    match spec {
        DeviceSpec::Zoned(..) => true,
        DeviceSpec::Cached(inner, _) => is_zoned(inner),
        _ => false,
    }
}

fn model(pool: &PoolConfig) -> Result<Option<DeviceSpec>, BadConfig> {
    pool.device.model.as_deref().map(DeviceSpec::named).transpose().map_err(BadConfig::found)
}

fn drive(pool: &PoolConfig) -> Result<Drive, BadConfig> {
    let model = model(pool)?;
    Ok(match (&pool.device.zones, model.as_ref().map(drive_of)) {
        (Some(z), Some(Drive::Zoned(size, every, _))) if (z.size.0, z.conventional_every) != (size, every) => {
            return Err(BadConfig::new(format!(
                "the device has zones of {} and one conventional in {}, its model zones of {} and one in {every}: make them the same",
                z.size,
                z.conventional_every,
                ByteSize(size)
            )));
        }
        // Zones make a shingled drive of any disk.
        (Some(_), Some(unfit @ Drive::Unfit(_))) if !matches!(model, Some(DeviceSpec::Disk(_))) => unfit,
        (Some(z), _) => Drive::Zoned(z.size.0, z.conventional_every, "`zones` of the device"),
        (None, drive) => drive.unwrap_or(Drive::Any),
    })
}

/// Size of a zone, and the N of which one zone is free.
fn zone_and_every(c: &Section, drive: &Drive) -> Result<(u64, u32), BadConfig> {
    let Drive::Zoned(size, every, whose) = *drive else {
        return Ok((c.zone.map_or(ZONE_BYTES, |b| b.0), c.free_every.unwrap_or(FREE_EVERY)));
    };
    let differs = |key: &str, is: String| {
        Err(BadConfig::new(format!("bands: `{key}` is another than {whose}, {is}: take it out, or make them the same")))
    };
    if c.zone.is_some_and(|b| b.0 != size) {
        return differs("zone", ByteSize(size).to_string());
    }
    if c.free_every.is_some_and(|n| n != every) {
        return differs("free_every", every.to_string());
    }
    Ok((size, every))
}

/// Layers of a pool with bands begin at a multiple of this on its device, so that zones are the drive's own; 0 if it doesn't matter, or zones
/// have no whole regions.
///
/// # Errors
/// Names the invalid setting.
pub fn align_bytes(pool: &PoolConfig) -> Result<u64, BadConfig> {
    let Some(bands) = &pool.bands else { return Ok(0) };
    let (zone_bytes, _) = zone_and_every(bands, &drive(pool)?)?;
    // 1 MiB is a multiple of smaller ones.
    Ok(if zone_bytes.is_multiple_of(REGION_ALIGN) { zone_bytes } else { 0 })
}

/// Translates the configuration's section into the bands' part of a pool's plan.
///
/// # Errors
/// Names the invalid setting.
pub fn plan(c: &Section, pool: &PoolConfig, salt: u64) -> Result<BandsPlan, BadConfig> {
    // Every field is named, so that a new one can't be forgotten here.
    let Section { zone: _, free_every: _, spares, buffer, idle, copy_patience, patience } = c;
    let drive = drive(pool)?;
    let (zone_bytes, free_every) = zone_and_every(c, &drive)?;
    if zone_bytes < ZONE_BYTES_MIN {
        let [zone, least] = [zone_bytes, ZONE_BYTES_MIN].map(ByteSize);
        return Err(BadConfig::new(format!("bands: a zone of {zone} is too small: at least {least}")));
    }
    let log_bytes = pool.logs.as_ref().and_then(|l| l.log).map_or(plimsoll_logs::Shape::default().log_bytes, |b| b.0);
    let default = BandsConfig::default();
    Ok(BandsPlan {
        zone_bytes,
        free_every,
        spares: spares.unwrap_or(SPARES),
        log_bytes,
        salt,
        config: BandsConfig {
            buffer_bytes: buffer.map_or(default.buffer_bytes, |b| b.0),
            quiet: idle.map_or(default.quiet, |t| t.0),
            copy_patience: copy_patience.map_or(default.copy_patience, |t| t.0),
            patience: patience.map_or(default.patience, |t| t.0),
            // Elsewhere the kernel would write a zone of zeroes in one request.
            resets: matches!(drive, Drive::Zoned(..)),
            ..default
        },
    })
}

/// State of the bands, and of the zones that the device keeps.
#[derive(Clone, Debug)]
pub struct BandsSeen {
    status: BandsStatus,
    zone_bytes: u64,
    zones: Option<ZonesSeen>,
}

#[derive(Clone, Debug)]
struct ZonesSeen {
    problem: Option<String>,
    refusal: Option<String>,
    counters: ZonesCounters,
}

/// `GET /v1/pools/{name}/bands`: a pool's bands.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BandsView {
    /// The fault, if there is one.
    pub problem: Option<String>,
    /// Bytes of a band, and of a zone.
    pub zone_bytes: u64,
    /// Number of bands.
    pub bands: u32,
    /// Bands that have a zone; the others are zeroes.
    pub bands_with_zone: u32,
    /// Zones without a band.
    pub spares: u32,
    /// Bytes of changes that wait in memory for their bands' copies.
    pub buffered_bytes: u64,
    /// The band that is being copied.
    pub copying: Option<u32>,
    /// Since the start: bands copied to another zone.
    pub copied: u64,
    /// Bands that became zeroes, without a copy.
    pub zeroed: u64,
    /// Copies that failed: another zone was taken, or their changes stay in memory.
    pub copy_errors: u64,
    /// Time of all copies.
    pub copy_us: u64,
    /// Time of the longest.
    pub copy_longest_us: u64,
    /// Bytes read and written by copies.
    pub copy_bytes: u64,
    /// Changes that waited for room in memory.
    pub waited: u64,
    /// Copies of the map that a start found corrupt or older, and wrote again.
    pub maps_repaired: u64,
    /// Writes that the device's zones refused; none without `zones`.
    pub zones_refused: Option<u64>,
    /// The write that they refused last, and why.
    pub zones_refusal: Option<String>,
    /// Zones reset.
    pub zones_reset: Option<u64>,
}

/// The part.
pub struct Bands;

impl Part for Bands {
    type Seen = BandsSeen;
    type View = BandsView;
    const NAME: &'static str = "bands";
    const SUMMARY: &'static str = "Bands of a pool's shingled drive";
    const HOW: &'static str = "bands are made with a pool's device: see [pool.bands]";

    fn look(stack: &Stack, _: Time) -> Option<BandsSeen> {
        let bands = stack.layer::<plimsoll_bands::Bands>()?;
        let zones = stack.layer::<Zones>().map(|z| ZonesSeen {
            problem: z.problem(),
            refusal: z.refusal().map(str::to_owned),
            counters: *z.counters(),
        });
        Some(BandsSeen { status: bands.status(), zone_bytes: bands.places().shape.zone_bytes, zones })
    }

    fn view(seen: &BandsSeen, _: &About) -> BandsView {
        let BandsSeen { status: s, zone_bytes, zones } = seen;
        let c = &s.counters;
        BandsView {
            problem: zones.as_ref().and_then(|z| z.problem.clone()).or_else(|| s.problem.clone()),
            zone_bytes: *zone_bytes,
            bands: s.bands.0,
            bands_with_zone: s.bands.1,
            spares: s.spares,
            buffered_bytes: s.buffered_bytes,
            copying: s.copying,
            copied: c.copied,
            zeroed: c.zeroed,
            copy_errors: c.failed,
            copy_us: c.copy_time.as_micros(),
            copy_longest_us: c.copy_longest.as_micros(),
            copy_bytes: c.copy_bytes,
            waited: c.waited,
            maps_repaired: c.repaired,
            zones_refused: zones.as_ref().map(|z| z.counters.refused),
            zones_refusal: zones.as_ref().and_then(|z| z.refusal.clone()),
            zones_reset: zones.as_ref().map(|z| z.counters.resets),
        }
    }

    fn shown(v: &BandsView) -> Shown {
        let copying = v.copying.map_or(String::new(), |band| format!(", band {band} is being copied"));
        let zone = bytes_text(v.zone_bytes);
        let mut shown = Shown::new(format!("{} bands of {zone}, {} with data{copying}", v.bands, v.bands_with_zone));
        shown.problem = v.problem.clone();
        shown.line("spare zones", v.spares.to_string());
        shown.line("in memory", format!("{} wait for their bands' copies", bytes_text(v.buffered_bytes)));
        let took = |us: u64| Span::from_micros(us).to_string();
        let mean = v.copy_us.checked_div(v.copied + v.zeroed).unwrap_or(0);
        let (copied, zeroed, longest) = (v.copied, v.zeroed, took(v.copy_longest_us));
        let copies = format!("{copied} bands, {zeroed} became zeroes, {} each, {longest} at most", took(mean));
        shown.line("copied", copies);
        shown.line("moved", format!("{} read and written by copies", bytes_text(v.copy_bytes)));
        shown.line("waited", format!("{} changes found no room in memory", v.waited));
        if v.copy_errors > 0 {
            let what = "copies failed: another zone is taken, or the changes wait in memory";
            shown.line("errors", format!("{} {what}", v.copy_errors));
        }
        if v.maps_repaired > 0 {
            shown.line(
                "map",
                format!("{} copies were corrupt or older at the start, and were written again", v.maps_repaired),
            );
        }
        if let (Some(refused), Some(resets)) = (v.zones_refused, v.zones_reset) {
            let last = v.zones_refusal.as_ref().map_or(String::new(), |why| format!(", the last: {why}"));
            shown.line("zones", format!("{resets} resets, {refused} writes refused{last}"));
        }
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, BandsView)]) {
        let of: Vec<_> = pools.iter().map(|(pool, v)| (vec![("pool", *pool)], v)).collect();
        page.families(POOLS, &of);
    }

    fn check(pool: &PoolConfig) -> Result<(), BadConfig> {
        let Some(bands) = &pool.bands else {
            return match pool.device.zones.is_some() || model(pool)?.as_ref().is_some_and(is_zoned) {
                true => Err(BadConfig::new(
                    "a drive with zones takes writes at their pointers only: add [pool.bands] and [pool.logs]",
                )),
                false => Ok(()),
            };
        };
        let drive = drive(pool)?;
        let Some(logs) = &pool.logs else {
            return Err(BadConfig::new(
                "bands: without logs each flush would wait for copies of whole bands: add [pool.logs]",
            ));
        };
        if logs.group.is_some() {
            return Err(BadConfig::new("logs: over bands each log is in a free zone of its own: take out `group`"));
        }
        if pool.fence.is_some() {
            return Err(BadConfig::new(
                "bands: copies of whole bands would pass a fence's slots: take out [pool.fence], or [pool.bands]",
            ));
        }
        if let Drive::Unfit(why) = drive {
            return Err(BadConfig::new(format!("bands: {why}")));
        }
        plan(bands, pool, 0).map(drop)
    }
}

/// Metrics of a pool's bands.
const POOLS: &[Family<BandsView>] = &[
    ("plimsoll_bands_size_bytes", "Bytes of all bands.", |b| (u64::from(b.bands) * b.zone_bytes) as f64),
    ("plimsoll_bands_used_bytes", "Bytes of bands that have a zone.", |b| {
        (u64::from(b.bands_with_zone) * b.zone_bytes) as f64
    }),
    ("plimsoll_bands_buffered_bytes", "Changes that wait in memory for their bands' copies.", |b| {
        b.buffered_bytes as f64
    }),
    ("plimsoll_bands_copying", "1 while a band is copied.", |b| f64::from(u8::from(b.copying.is_some()))),
    ("plimsoll_bands_copied_total", "Bands copied to another zone.", |b| b.copied as f64),
    ("plimsoll_bands_zeroed_total", "Bands that became zeroes, without a copy.", |b| b.zeroed as f64),
    ("plimsoll_bands_copy_errors_total", "Copies of bands that failed.", |b| b.copy_errors as f64),
    ("plimsoll_bands_copy_seconds_total", "Time of all copies.", |b| b.copy_us as f64 / 1e6),
    ("plimsoll_bands_copy_bytes_total", "Bytes read and written by copies.", |b| b.copy_bytes as f64),
    ("plimsoll_bands_waited_total", "Changes that waited for room in memory.", |b| b.waited as f64),
    ("plimsoll_bands_zones_refused_total", "Writes that the zones of the device's file refused.", |b| {
        b.zones_refused.unwrap_or(0) as f64
    }),
];

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use std::path::Path;

    fn parsed(device: &str, sections: &str) -> Result<Config, String> {
        let pool = format!("[[pool]]\nname = \"p\"\ndevice = {{ {device} }}\n{sections}\n");
        Config::parse(&pool, Path::new("test.toml")).map_err(|e| e.to_string())
    }

    const FILE: &str = "file = \"p.img\", size = \"1GiB\"";
    const LOGS: &str = "[pool.logs]\nlog = \"1MiB\"\nextents = 4096\n";

    #[test]
    fn bands_take_zones_from_the_device_or_its_model() {
        let zoned = format!("{FILE}, zones = {{ size = \"4MiB\", conventional_every = 8 }}");
        let of_model = format!("{FILE}, model = \"spread:8:zoned:4M:hdd-160g-7200\"");
        let of_both = format!("{zoned}, model = \"spread:8:zoned:4M:hdd-160g-7200\"");
        let bands = |keys: &str| format!("{LOGS}[pool.bands]\n{keys}");
        for device in [&zoned, &of_model, &of_both] {
            for keys in ["", "zone = \"4MiB\"\nfree_every = 8"] {
                let config = parsed(device, &bands(keys)).unwrap();
                let (room, plan) = crate::open::rehearse(&config.pool[0], 1 << 30).unwrap();
                let found = plan.bands.unwrap();
                assert_eq!((found.zone_bytes, found.free_every, found.log_bytes), (4 << 20, 8, 1 << 20), "{device}");
                assert!(found.config.resets, "{device}");
                assert!(room > 700 << 20, "{room}");
            }
            let refused = parsed(device, &bands("zone = \"8MiB\"")).unwrap_err();
            assert!(refused.contains("bands: `zone` is another than"), "{refused}");
            let refused = parsed(device, &bands("free_every = 9")).unwrap_err();
            assert!(refused.contains("bands: `free_every` is another than"), "{refused}");
        }
        let shingled = format!("{FILE}, model = \"seagate-archive-8tb\"");
        let config = parsed(&shingled, &bands("zone = \"4MiB\"\nfree_every = 8")).unwrap();
        let plan = crate::open::rehearse(&config.pool[0], 1 << 30).unwrap().1.bands.unwrap();
        assert_eq!((plan.zone_bytes, plan.config.resets), (4 << 20, false), "it knows no reset");
    }

    #[test]
    fn zones_are_the_drives_own() {
        for (zone, align) in [("256MiB", 256 << 20), ("64KiB", 0), ("3MiB", 3 << 20), ("1100KiB", 0)] {
            let config = parsed(FILE, &format!("{LOGS}[pool.bands]\nzone = \"{zone}\"\n")).unwrap();
            assert_eq!(super::align_bytes(&config.pool[0]).unwrap(), align, "{zone}");
        }
        assert_eq!(super::align_bytes(&parsed(FILE, LOGS).unwrap().pool[0]).unwrap(), 0);
        // The first region of the layers, and so each zone, is at a multiple of the zone.
        let device = format!("{FILE}, zones = {{ size = \"4MiB\", conventional_every = 8 }}");
        let pool = &parsed(&device, &format!("{LOGS}[pool.bands]\n")).unwrap().pool[0];
        let (tables, align) =
            (crate::parts::logs::table_bytes(pool, 1 << 30).unwrap(), super::align_bytes(pool).unwrap());
        let regions = plimsoll_store::Superblock::region_map_aligned(1 << 30, tables, align);
        let first = regions[2].offset;
        let arranged = crate::parts::logs::Arranged::new(pool, (1 << 30) - first, 512, [0; 2]).unwrap();
        let places = arranged.bands.unwrap();
        assert!((0..places.zones).all(|z| (first + places.zone_at(z)).is_multiple_of(4 << 20)));
    }

    #[test]
    fn bands_are_refused_where_they_make_no_sense() {
        let zones = "zones = { size = \"4MiB\", conventional_every = 8 }";
        let with = |more: &str| format!("{FILE}, {more}");
        let bands = format!("{LOGS}[pool.bands]\n");
        let cases = [
            (FILE.to_string(), "[pool.bands]\n".to_string(), "without logs each flush would wait"),
            (FILE.into(), format!("{bands}zone = \"32KiB\""), "a zone of 32KiB is too small"),
            (FILE.into(), bands.replace("log =", "group = \"8MiB\"\nlog ="), "take out `group`"),
            (FILE.into(), format!("{bands}[pool.fence]\nslots = 8\n"), "would pass a fence's slots"),
            (with("model = \"nvme-modern\""), bands.clone(), "a flash drive isn't shingled"),
            (with("model = \"hdd-160g-7200\""), bands.clone(), "the modelled disk isn't shingled"),
            (with("model = \"raid0:2:64K:hdd-160g-7200\""), bands.clone(), "no zones of its own"),
            (with("model = \"zoned:4M:hdd-160g-7200\""), bands.clone(), "name `spread:N:zoned:…`"),
            (with(&format!("{zones}, model = \"nvme-modern\"")), bands.clone(), "a flash drive isn't shingled"),
            (
                with(&format!("{zones}, model = \"spread:9:zoned:4M:hdd-160g-7200\"")),
                bands.clone(),
                "make them the same",
            ),
            (with(&format!("{zones}, model = \"nvme-modern\"")), String::new(), "takes writes at their pointers only"),
            (with("model = \"zoned:4M:hdd-160g-7200\""), String::new(), "takes writes at their pointers only"),
            (with(zones), LOGS.into(), "takes writes at their pointers only"),
            (with("model = \"spread:8:zoned:4M:hdd-160g-7200\""), LOGS.into(), "takes writes at their pointers only"),
            (format!("null = true, size = \"1GiB\", {zones}"), bands.clone(), "`zones` need a file"),
            (format!("rbd = \"a/b\", {zones}"), bands, "`zones`: they need a file"),
        ];
        for (device, sections, expected) in cases {
            let refused = parsed(&device, &sections).unwrap_err();
            assert!(refused.contains(expected), "{device}: {refused}");
        }
        // A disk becomes a shingled one by zones.
        assert!(
            parsed(&with(&format!("{zones}, model = \"hdd-160g-7200\"")), &format!("{LOGS}[pool.bands]\n")).is_ok()
        );
    }
}
