//! The devices of a pool's cache: opened, made and formatted.

use super::shape;
use crate::config::CacheConfig as Section;
use crate::look::{Step, Wanted};
use plimsoll_cache::Layout;
use plimsoll_store::superblock::Region;
use plimsoll_store::{CreateOptions, DeviceError, DeviceErrorKind, DeviceFile, Expect, Uuid};
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};

/// The role of a pool's fast device.
const ROLE_FAST: &str = "fast";
/// That of its NVRAM.
const ROLE_NVRAM: &str = "nvram";

/// The most write-evict units that a cache may have on a device of this size. A device that an earlier program made has more than one
/// made now, as its journal is smaller.
///
/// # Errors
/// If it's too small.
pub fn weus_most(c: &Section, bytes: u64, block_bytes: u32) -> Result<u32, String> {
    let earlier = Layout::earlier(bytes, block_bytes, shape(c), 0).map_or(0, |l| l.weus);
    Ok(layout(c, bytes, block_bytes, 0)?.weus.max(earlier))
}

/// Write-evict units of the cache on a device: those that its page says, or those of a cache made now if the page can't be decoded.
///
/// # Errors
/// If it's too small, or can't be read.
pub fn weus_of(c: &Section, file: &File, region: Region, block_bytes: u32) -> Result<u32, String> {
    match Layout::decode(&page_of(file, region)?) {
        Ok(there) => Ok(there.weus),
        Err(_) => Ok(layout(c, region.len, block_bytes, 0)?.weus),
    }
}

fn layout(c: &Section, bytes: u64, block_bytes: u32, salt: u64) -> Result<Layout, String> {
    let layout = Layout::new(bytes, block_bytes, shape(c), salt).map_err(|e| format!("cache: {e}"))?;
    Ok(Layout { nvram: c.nvram.is_some(), ..layout })
}

/// Opens a cache's NVRAM; makes it when the cache is made, before anything says that there is a cache. `file` is the fast device.
///
/// # Errors
/// If the device can't be used; the error names the reason and the remedy.
pub fn open_nvram(c: &Section, pool_uuid: Uuid, file: &File, fast: &Opened) -> Result<Option<DeviceFile>, String> {
    let page = page_of(file, fast.region)?;
    // What is wrong with the page is the layer's to say.
    let layout = Layout::decode(&page).ok();
    let made_with = layout.is_some_and(|l| l.nvram);
    let Some(n) = &c.nvram else {
        return match made_with {
            true => {
                Err("cache: it was made with NVRAM, which may have what was written last: configure `nvram`".into())
            }
            false => Ok(None),
        };
    };
    if layout.is_some() && !made_with {
        return Err("cache: it was made without NVRAM: take `nvram` out, or make it anew on an empty device".into());
    }
    let is_new = fast.new || is_blank(&page);
    let expect = Expect { pool_uuid: Some(pool_uuid), device_uuid: None, role: ROLE_NVRAM.into() };
    let create = |size_bytes| {
        let options = CreateOptions { size_bytes, pool_uuid, role: ROLE_NVRAM.into(), logs_bytes: 0 };
        DeviceFile::create(&n.file, &options).map(Some).map_err(|e| format!("cache: {e}"))
    };
    let missing = !matches!(std::fs::metadata(&n.file).map(|m| (m.file_type().is_block_device(), m.len())), Ok(m) if m != (false, 0));
    if missing && !is_new {
        let what = "the cache's NVRAM isn't here, and only it may have what was written last: attach it";
        return Err(format!("{}: {what}", n.file.display()));
    }
    if missing {
        let none =
            || format!("{}: the cache's NVRAM doesn't exist: say how large to make it with `size`", n.file.display());
        return create(n.size.ok_or_else(none)?.0);
    }
    match DeviceFile::open(&n.file, &expect) {
        Err(DeviceError { kind: DeviceErrorKind::Blank | DeviceErrorKind::CreationInterrupted, .. }) if is_new => {
            create(n.size.map_or(0, |size| size.0))
        }
        opened => opened.map(Some).map_err(|e| format!("cache: {e}")),
    }
}

/// The page of a fast device.
fn page_of(file: &File, region: Region) -> Result<Vec<u8>, String> {
    let mut page = vec![0; plimsoll_cache::layout::PAGE_BYTES as usize];
    file.read_exact_at(&mut page, region.offset).map_err(|e| format!("cache: its device can't be read: {e}"))?;
    Ok(page)
}

fn is_blank(page: &[u8]) -> bool {
    page.iter().all(|b| *b == 0)
}

/// The device that a pool's fast one must be.
pub fn expect(pool_uuid: Uuid) -> Expect {
    Expect { pool_uuid: Some(pool_uuid), device_uuid: None, role: ROLE_FAST.into() }
}

/// A fast device that is there, or has just been made.
pub struct Opened {
    /// Keeps it locked.
    pub device: DeviceFile,
    /// Part of the device that the cache uses.
    pub region: Region,
    /// It held nothing before.
    pub new: bool,
}

/// Opens a pool's fast device; makes it at the first use, unless `needed` says what only it can have.
///
/// # Errors
/// If the device can't be used; the error names the reason and the remedy.
pub fn open(c: &Section, pool_uuid: Uuid, needed: Option<String>) -> Result<Opened, String> {
    let path = &c.file;
    let expect = expect(pool_uuid);
    let create = |size_bytes| {
        if let Some(what) = &needed {
            return Err(format!(
                "{}: the cache's device isn't here, and only it may have {what}: attach it; if it is gone for good, see `plimsoll \
                 cache give-up`",
                path.display()
            ));
        }
        let options = CreateOptions { size_bytes, pool_uuid, role: ROLE_FAST.into(), logs_bytes: 0 };
        DeviceFile::create(path, &options).map_err(|e| e.to_string())
    };
    let look = DeviceFile::look(path, &expect).map_err(|e| format!("cache: {e}"))?;
    let step = Wanted::fast(c).step(look.as_ref()).map_err(|what| format!("cache: {what}"))?;
    let device = match step {
        Step::Open => DeviceFile::open(path, &expect).map_err(|e| format!("cache: {e}"))?,
        Step::Make(size_bytes) => create(size_bytes)?,
    };
    let new = step != Step::Open;
    let region = device.home();
    Ok(Opened { device, region, new })
}

/// Refuses a device whose page is blank although only its cache may have what `needed` says: it was lost, it isn't new.
///
/// # Errors
/// That.
pub fn check_page(file: &File, fast: &Opened, needed: Option<&str>) -> Result<(), String> {
    match needed {
        Some(what) if is_blank(&page_of(file, fast.region)?) => Err(format!(
            "cache: the page that describes it is blank, and only the cache may have {what}: restore the device; if it is lost, see \
             `plimsoll cache give-up`"
        )),
        _ => Ok(()),
    }
}

/// Formats the cache of a device that has none yet, with `salt`. Returns the salt of the cache that is there then; `None` if its page can't
/// be read as one, which the layer reports.
///
/// # Errors
/// Those of reading and writing, in words.
pub fn format_if_blank(
    c: &Section,
    file: &File,
    region: Region,
    block_bytes: u32,
    generation: u16,
    salt: u64,
) -> Result<Option<u64>, String> {
    let failed = |e: std::io::Error| format!("cache: formatting failed: {e}");
    let page = page_of(file, region)?;
    if !is_blank(&page) {
        return Ok(Layout::decode(&page).ok().map(|l| l.salt)); // the layer sees for itself whether it is what it should be
    }
    let layout = layout(c, region.len, block_bytes, salt)?;
    for (at, bytes) in plimsoll_cache::format_device(&layout, generation) {
        file.write_all_at(&bytes, region.offset + at).map_err(failed)?;
        file.sync_data().map_err(failed)?;
    }
    Ok(Some(layout.salt))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use plimsoll_cache::Shape;

    /// A device size on which a cache made by an earlier program has more WEUs than one made now, and both numbers.
    fn larger_before() -> (u64, u32, u32) {
        let sizes = (8..400).map(|n| n * plimsoll_store::DEVICE_BYTES_MIN.max(4 << 20));
        let counts = sizes.map(|bytes| {
            let of = |make: fn(u64, u32, Shape, u64) -> Result<Layout, String>| {
                make(bytes, 4096, Shape::default(), 7).map_or(0, |l| l.weus)
            };
            (bytes, of(Layout::earlier), of(Layout::new))
        });
        counts.into_iter().find(|(_, earlier, now)| earlier > now).expect("some size is like that")
    }

    /// Volumes whose parts fill the cache of a device that an earlier program made, and one unit more of one of them.
    #[test]
    fn a_configuration_over_a_device_of_an_earlier_program_is_not_refused() {
        let (bytes, earlier, now) = larger_before();
        let unit = u64::from(Shape::default().weu_bytes);
        let (a, b) = (u64::from(earlier) / 2 * unit, u64::from(earlier).div_ceil(2) * unit);
        assert!(a + b > u64::from(now) * unit);
        let check = |b: u64| {
            let volume = |name: &str, bytes: u64| {
                format!(
                    "[[volume]]\nname = \"{name}\"\npool = \"p\"\nsize = \"64MiB\"\ntenant = \"t\"\ncache_size = {bytes}\n"
                )
            };
            let text = format!(
                "[[pool]]\nname = \"p\"\n[pool.device]\nfile = \"/nowhere/a\"\n[pool.cache]\nfile = \"/nowhere/b\"\n\
                 device_size = {bytes}\nsharing = \"pervolume\"\n[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\n{}{}",
                volume("a", a),
                volume("b", b)
            );
            let config: Config = toml::from_str(&text).expect("it is a configuration");
            <crate::parts::cache::Cache as crate::parts::Part>::check_config(&config, &config.pool[0])
        };
        assert_eq!(check(b), Ok(()));
        assert!(check(b + unit).expect_err("more than the device has").contains("add up to"));
    }

    /// The layout on the device decides, not the layout of a new cache.
    #[test]
    fn a_device_says_how_many_units_it_has() {
        let (bytes, earlier, now) = larger_before();
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(bytes + 8192).expect("it is sparse");
        let kind = plimsoll_store::superblock::RegionKind::Home;
        let region = Region { kind, offset: 8192, len: bytes };
        let section: Section = toml::from_str("file = \"/nowhere/b\"").expect("it is a section");
        assert_eq!(weus_of(&section, &file, region, 4096), Ok(now), "none is made yet");
        let page = Layout::earlier(bytes, 4096, Shape::default(), 7).expect("it fits").encode();
        file.write_all_at(&page, region.offset).expect("it is written");
        assert_eq!(weus_of(&section, &file, region, 4096), Ok(earlier));
    }
}
