//! The devices of a pool's cache: opened, made and formatted.

use super::shape;
use crate::config::{BadConfig, CacheConfig as Section};
use crate::look::{Step, Wanted};
use crate::open::OpenError;
use plimsoll_cache::Layout;
use plimsoll_nvram::RecordOf;
use plimsoll_store::superblock::{Region, RegionKind};
use plimsoll_store::{
    CreateOptions, DeviceError, DeviceErrorKind, DeviceFile, Expect, Look, MetaError, Superblock, Uuid,
};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// The role of a pool's fast device.
const ROLE_FAST: &str = "fast";
/// That of its NVRAM.
const ROLE_NVRAM: &str = "nvram";
/// Bytes of NVRAM that are read at a time; whole blocks.
const NVRAM_READ_BYTES: usize = 1 << 20;

/// The reason for which the devices of a cache can't be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CacheError {
    /// The configuration is wrong, or a device is another one than it says: the pool isn't served before that is corrected.
    Refused(String),
    /// A device isn't there, or can't be opened, read or written. A pool whose volumes don't need the cache is served without it.
    Unusable(String),
}

impl fmt::Display for CacheError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (CacheError::Refused(what) | CacheError::Unusable(what)) = self;
        f.write_str(what)
    }
}

impl std::error::Error for CacheError {}

impl From<BadConfig> for CacheError {
    fn from(e: BadConfig) -> CacheError {
        CacheError::Refused(e.to_string())
    }
}

/// The pool's own device, or its metadata, fail: nothing is served without the cache.
impl From<OpenError> for CacheError {
    fn from(e: OpenError) -> CacheError {
        CacheError::Refused(e.to_string())
    }
}

impl From<MetaError> for CacheError {
    fn from(e: MetaError) -> CacheError {
        OpenError::from(e).into()
    }
}

impl From<DeviceError> for CacheError {
    /// A device that answers with other data than the cache's is refused: it may be anybody's.
    fn from(e: DeviceError) -> CacheError {
        let what = format!("cache: {e}");
        match e.kind {
            DeviceErrorKind::Io { .. } => CacheError::Unusable(what),
            _ => CacheError::Refused(what),
        }
    }
}

impl CacheError {
    /// That of an operation on the fast device itself.
    pub fn of_io(e: std::io::Error) -> CacheError {
        CacheError::Unusable(format!("cache: its device can't be used: {e}"))
    }
}

/// The most write-evict units that a cache may have on a device of this size. A device that an earlier program made has more than one
/// made now, as its journal is smaller.
///
/// # Errors
/// If it's too small.
pub fn weus_most(c: &Section, bytes: u64, block_bytes: u32) -> Result<u32, BadConfig> {
    let earlier = Layout::earlier(bytes, block_bytes, shape(c), 0).map_or(0, |l| l.weus);
    Ok(layout(c, bytes, block_bytes, 0)?.weus.max(earlier))
}

/// Write-evict units of the cache on a device: those that its page says, or those of a cache made now if the page can't be decoded.
///
/// # Errors
/// If it's too small, or can't be read.
pub fn weus_of(c: &Section, file: &File, region: Region, block_bytes: u32) -> Result<u32, CacheError> {
    match Layout::decode(&page_of(file, region)?) {
        Ok(there) => Ok(there.weus),
        Err(_) => Ok(layout(c, region.len, block_bytes, 0)?.weus),
    }
}

fn layout(c: &Section, bytes: u64, block_bytes: u32, salt: u64) -> Result<Layout, BadConfig> {
    let layout = Layout::new(bytes, block_bytes, shape(c), salt).map_err(|e| BadConfig::found(e).about("cache"))?;
    Ok(Layout { nvram: c.nvram.is_some(), ..layout })
}

/// Knowledge of a pool about the NVRAM of its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownNvram {
    /// UUID of the pool, which follows from its name.
    pub pool_uuid: Uuid,
    /// Its UUID by the pool's metadata. `None` if they don't name the NVRAM of the fast device that is there.
    pub named: Option<Uuid>,
    /// Only the cache may have some volume's data.
    pub is_needed: bool,
    /// The fast device was replaced once and is back: nothing of its content counts.
    pub is_outdated: bool,
}

/// Opens a cache's NVRAM; makes it when the cache is made, before anything says that there is a cache. `file` is the fast device.
///
/// # Errors
/// If the device can't be used, or belongs to another cache; the error names the reason and the remedy.
pub fn open_nvram(
    c: &Section,
    known: KnownNvram,
    file: &File,
    fast: &Opened,
) -> Result<Option<DeviceFile>, CacheError> {
    let pool_uuid = known.pool_uuid;
    let page = page_of(file, fast.region)?;
    // What is wrong with the page is the layer's to say.
    let layout = Layout::decode(&page).ok();
    let made_with = layout.is_some_and(|l| l.nvram);
    let Some(n) = &c.nvram else {
        let what = "cache: it was made with NVRAM, which may have what was written last: configure `nvram`";
        return if made_with { Err(CacheError::Refused(what.into())) } else { Ok(None) };
    };
    if layout.is_some() && !made_with {
        let what = "cache: it was made without NVRAM: take `nvram` out, or make it anew on an empty device";
        return Err(CacheError::Refused(what.into()));
    }
    let is_new = fast.new || is_blank(&page);
    let expect = Expect { pool_uuid: Some(pool_uuid), device_uuid: None, role: ROLE_NVRAM.into() };
    let create = |size_bytes| {
        let options = CreateOptions {
            size_bytes,
            pool_uuid,
            role: ROLE_NVRAM.into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        };
        DeviceFile::create(&n.file, &options).map(Some).map_err(CacheError::from)
    };
    let missing = !matches!(std::fs::metadata(&n.file).map(|m| (m.file_type().is_block_device(), m.len())), Ok(m) if m != (false, 0));
    if missing && !is_new {
        let what = "the cache's NVRAM isn't here, and only it may have what was written last: attach it";
        return Err(CacheError::Unusable(format!("{}: {what}", n.file.display())));
    }
    if missing {
        let none = || {
            let what = "the cache's NVRAM doesn't exist: say how large to make it with `size`";
            CacheError::Refused(format!("{}: {what}", n.file.display()))
        };
        return create(n.size.ok_or_else(none)?.0);
    }
    match DeviceFile::open(&n.file, &expect) {
        Err(DeviceError { kind: DeviceErrorKind::Blank | DeviceErrorKind::CreationInterrupted, .. }) if is_new => {
            create(n.size.map_or(0, |size| size.0))
        }
        Err(e) => Err(e.into()),
        Ok(opened) => {
            if let Some(layout) = layout.filter(|_| !is_new) {
                judge_nvram(&n.file, &opened, known, layout.salt)?;
            }
            Ok(Some(opened))
        }
    }
}

/// Refuses NVRAM that isn't that of the cache with this salt: what the cache wrote last is in another one.
fn judge_nvram(path: &Path, opened: &DeviceFile, known: KnownNvram, salt: u64) -> Result<(), CacheError> {
    let found = opened.superblock().device_uuid;
    let refused = |why: String| {
        Err(CacheError::Refused(format!(
            "cache: {}: {why}. Configure the cache's own `nvram`. If that is lost, make a new cache: docs/guides/cache.md, The NVRAM is missing \
             or fails",
            path.display()
        )))
    };
    match known.named {
        Some(own) if own == found => Ok(()),
        Some(own) => refused(format!(
            "is another NVRAM than that of this pool's cache, which may have what nothing else has: it is {found}, and the pool's metadata \
             have {own}"
        )),
        None if known.is_outdated => Ok(()),
        // An earlier program made the cache.
        None => match owner_of_records(opened, salt)? {
            RecordOf::This => Ok(()),
            RecordOf::Nobody if !known.is_needed => Ok(()),
            RecordOf::Nobody => {
                refused(format!("{found} has no records, and only the cache's NVRAM may have what was written last"))
            }
            RecordOf::Another => refused(format!("{found} has records of another cache only")),
        },
    }
}

/// The cache whose records are in this NVRAM: this one with `salt`, if any are.
fn owner_of_records(opened: &DeviceFile, salt: u64) -> Result<RecordOf, CacheError> {
    let (region, block) = (opened.home(), opened.block_bytes() as usize);
    let file = File::open(opened.path()).map_err(CacheError::of_io)?;
    let mut owner = RecordOf::Nobody;
    let mut bytes = vec![0; NVRAM_READ_BYTES];
    let mut at = 0;
    while at < region.len {
        let piece = &mut bytes[..(region.len - at).min(NVRAM_READ_BYTES as u64) as usize];
        if file.read_exact_at(piece, region.offset + at).is_err() {
            // The ring has two copies, and outlives the loss of one: a block that can't be read says nothing.
            for (n, one) in (0..).zip(piece.chunks_mut(block)) {
                if file.read_exact_at(one, region.offset + at + n * block as u64).is_err() {
                    one.fill(0);
                }
            }
        }
        for block in piece.chunks(block) {
            match RecordOf::of(block, salt) {
                RecordOf::This => return Ok(RecordOf::This),
                RecordOf::Another => owner = RecordOf::Another,
                RecordOf::Nobody => {}
            }
        }
        at += piece.len() as u64;
    }
    Ok(owner)
}

/// The page of a fast device.
fn page_of(file: &File, region: Region) -> Result<Vec<u8>, CacheError> {
    let mut page = vec![0; plimsoll_cache::layout::PAGE_BYTES as usize];
    let unreadable = |e| CacheError::Unusable(format!("cache: its device can't be read: {e}"));
    file.read_exact_at(&mut page, region.offset).map_err(unreadable)?;
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

/// Knowledge of a pool about the device of its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// UUID of the pool, which follows from its name.
    pub pool_uuid: Uuid,
    /// UUID of its main device. `None`: it is made at this start.
    pub main_uuid: Option<Uuid>,
    /// By its metadata, once they are open.
    pub metadata: Option<InMetadata>,
}

/// Knowledge of a pool's metadata about the device of its cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InMetadata {
    /// They have known a cache.
    pub had_one: bool,
    /// UUID of its device, if that named the pool's main device.
    pub device: Option<Uuid>,
    /// Only the cache may have some volume's data.
    pub is_needed: bool,
}

/// Refuses a device that holds the cache of a former pool of this name, or one of a version that this program doesn't know, before anything
/// is made, converted or written. A device that isn't there, is new or can't be read is judged when it is opened.
///
/// # Errors
/// The reason and the remedy.
pub fn check_before(c: &Section, known: Known) -> Result<(), CacheError> {
    match DeviceFile::look(&c.file, &expect(known.pool_uuid)) {
        Ok(Some(Look { found: Ok(superblock), .. })) => judge(&c.file, &superblock, known),
        _ => Ok(()),
    }
}

/// Judges a fast device with this superblock, by what is known.
fn judge(path: &Path, superblock: &Superblock, known: Known) -> Result<(), CacheError> {
    match (known.main_uuid, superblock.main_uuid) {
        (None, Some(_)) => return Err(without_main(path)),
        (Some(main), Some(found)) if found != main => {
            return Err(foreign(path, &format!("it was made for the device {found}, and this pool's is {main}")));
        }
        _ => {}
    }
    let region = superblock.region(RegionKind::Home).expect("every superblock has one");
    let Ok(page) = File::open(path).map_err(CacheError::of_io).and_then(|file| page_of(&file, region)) else {
        return Ok(());
    };
    if let Some(what) = Layout::of_unknown_version(&page) {
        return Err(CacheError::Refused(format!("cache: {}: {what}: use the program that wrote it", path.display())));
    }
    if is_blank(&page) {
        return Ok(());
    }
    if known.main_uuid.is_none() {
        return Err(without_main(path));
    }
    let Some(InMetadata { had_one, device: own, is_needed }) = known.metadata else { return Ok(()) };
    let is_own = own == Some(superblock.device_uuid);
    match own {
        // Whoever made it noted the cache before: these metadata are from before it. Volumes may have been written without it since.
        _ if superblock.main_uuid.is_some() && !had_one => Err(CacheError::Refused(format!(
            "cache: {}: is the device of this pool's cache, and the pool's metadata don't know that there ever was one: they were restored from \
             a backup from before it. It may have data that nothing else has. If no volume was written since, repeat `plimsoll pool restore` with \
             --had-cache (and --older, if it asks for that); otherwise keep the device's data from being used: clear its first 2 MiB (remove it if it is a file)",
            path.display()
        ))),
        _ if superblock.main_uuid.is_none() && !is_own && (!had_one || own.is_some()) => {
            Err(foreign(path, "it names no pool's device, and this pool has known no such cache, or has one that does"))
        }
        Some(own) if is_needed && !is_own => Err(CacheError::Refused(format!(
            "cache: {}: is another device than that of this pool's cache, which may have what nothing else has: it is {}, and the pool's \
             metadata have {own}. Attach that one; if it is lost, see `plimsoll cache give-up`",
            path.display(),
            superblock.device_uuid
        ))),
        _ => Ok(()),
    }
}

/// The pool's own device is made at this start, and there is a cache.
fn without_main(path: &Path) -> CacheError {
    CacheError::Refused(format!(
        "cache: {}: holds a pool's cache, but the pool's own device isn't here, or is blank: attach it, it belongs to this cache. Only for a \
         new, empty pool make a new cache: docs/guides/backup-and-recover.md, A new, empty pool",
        path.display()
    ))
}

/// The cache is another pool's.
fn foreign(path: &Path, why: &str) -> CacheError {
    CacheError::Refused(format!(
        "cache: {}: holds the cache of another pool, or of a former one of this name: {why}. Attach this pool's own. Only if nobody needs \
         what is on it, clear its first 2 MiB (remove it if it is a file)",
        path.display()
    ))
}

/// Opens a pool's fast device; makes it at the first use, unless `needed` says what only it can have.
///
/// # Errors
/// If the device can't be used; the error names the reason and the remedy.
pub fn open(c: &Section, known: Known, needed: Option<&str>) -> Result<Opened, CacheError> {
    let path = &c.file;
    let Known { pool_uuid, main_uuid, .. } = known;
    let expect = expect(pool_uuid);
    let missing = |what| {
        CacheError::Refused(format!(
            "{}: the cache's device isn't here, and only it may have {what}: attach it; if it is lost, see `plimsoll cache give-up`",
            path.display()
        ))
    };
    let create = |size_bytes| {
        if let Some(what) = needed {
            return Err(missing(what));
        }
        let options =
            CreateOptions { size_bytes, pool_uuid, role: ROLE_FAST.into(), logs_bytes: 0, align_bytes: 0, main_uuid };
        DeviceFile::create(path, &options).map_err(CacheError::from)
    };
    let look = DeviceFile::look(path, &expect)?;
    if let Some(Look { found: Ok(superblock), .. }) = &look {
        judge(path, superblock, known)?;
    }
    let is_there = look.is_some();
    let step = match Wanted::fast(c).step(look) {
        Ok((step, _)) => step,
        // Nothing is there, and nothing can be made there.
        Err(e) if !is_there => return Err(CacheError::Unusable(format!("cache: {e}"))),
        Err(OpenError::Device(e)) => return Err(e.into()),
        Err(e) => return Err(CacheError::Refused(format!("cache: {e}"))),
    };
    let mut device = match step {
        Step::Open => {
            let device = DeviceFile::open(path, &expect)?;
            // Made by a start that was cut short: nothing was ever in it.
            match needed.filter(|_| !device.is_formatted()) {
                Some(what) => return Err(missing(what)),
                None => device,
            }
        }
        Step::Make(size_bytes) => create(size_bytes)?,
    };
    if let (None, Some(main)) = (device.superblock().main_uuid, main_uuid) {
        tracing::info!(device = %path.display(), "an earlier program made the cache's device: it names the pool's own from now on");
        device.set_main(main).map_err(CacheError::of_io)?;
    }
    let new = step != Step::Open;
    let region = device.home();
    Ok(Opened { device, region, new })
}

/// Refuses a device whose page is blank although only its cache may have what `needed` says: it was lost, it isn't new.
///
/// # Errors
/// That.
pub fn check_page(file: &File, fast: &Opened, needed: Option<&str>) -> Result<(), CacheError> {
    match needed {
        Some(what) if is_blank(&page_of(file, fast.region)?) => Err(CacheError::Refused(format!(
            "cache: the page that describes it is blank, and only the cache may have {what}: restore the device; if it is lost, see \
             `plimsoll cache give-up`"
        ))),
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
) -> Result<Option<u64>, CacheError> {
    let failed = |e: std::io::Error| CacheError::Unusable(format!("cache: formatting failed: {e}"));
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

    /// Without a name in the metadata, which programs from before it leave so, its records tell whose the NVRAM is.
    #[test]
    fn nvram_of_another_cache_is_refused_by_name() {
        const SALT: u64 = 7;
        let dir = tempfile::tempdir().expect("a directory");
        let pool_uuid = Uuid::new_v4();
        let make = |name: &str| {
            let options = CreateOptions {
                size_bytes: 8 << 20,
                pool_uuid,
                role: ROLE_NVRAM.into(),
                logs_bytes: 0,
                align_bytes: 0,
                main_uuid: None,
            };
            DeviceFile::create(&dir.path().join(name), &options).expect("made")
        };
        let add_record = |device: &DeviceFile, salt: u64| {
            let mut block = [0; 512];
            block[..4].copy_from_slice(b"NVR2");
            block[8..16].copy_from_slice(&salt.to_le_bytes());
            let file = File::options().write(true).open(device.path()).expect("opened");
            file.write_all_at(&block, device.home().offset + device.home().len - 4096).expect("written");
        };
        let judge = |device: &DeviceFile, named: Option<Uuid>, is_needed: bool| {
            judge_nvram(device.path(), device, KnownNvram { pool_uuid, named, is_needed, is_outdated: false }, SALT)
        };
        let refused = |judged: Result<(), CacheError>, parts: &[&str]| match judged {
            Err(CacheError::Refused(what)) => assert!(parts.iter().all(|p| what.contains(p)), "{what}"),
            other => panic!("{other:?}"),
        };
        let (own, other) = (make("own"), make("other"));
        let (own_uuid, other_uuid) = (own.superblock().device_uuid, other.superblock().device_uuid);
        for is_needed in [true, false] {
            assert_eq!(judge(&own, Some(own_uuid), is_needed), Ok(()));
            let named = [own_uuid.to_string(), other_uuid.to_string()];
            refused(judge(&other, Some(own_uuid), is_needed), &["is another NVRAM than that of", &named[0], &named[1]]);
        }
        assert_eq!(judge(&own, None, false), Ok(()), "nothing needs it");
        refused(judge(&own, None, true), &["has no records", &own_uuid.to_string()]);
        add_record(&own, SALT);
        add_record(&other, SALT + 1);
        for is_needed in [true, false] {
            assert_eq!(judge(&own, None, is_needed), Ok(()));
            refused(judge(&other, None, is_needed), &["has records of another cache only"]);
        }
        let outdated = KnownNvram { pool_uuid, named: None, is_needed: false, is_outdated: true };
        assert_eq!(judge_nvram(other.path(), &other, outdated, SALT), Ok(()), "nothing of the cache counts");
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
        assert!(check(b + unit).expect_err("more than the device has").to_string().contains("add up to"));
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
