//! A look at a pool's devices that changes and creates nothing, and the decision to open or to create them. A start and
//! `plimsoll check` share the decision.

mod mounts;

use crate::config::{BadConfig, CacheConfig, DeviceConfig, PoolConfig};
use crate::engine::tape::TapeWriter;
use crate::open::{OpenError, Unfit};
use plimsoll_store::{
    DeviceError, DeviceErrorKind, DeviceFile, Expect, Look, MetaView, ROLE_MAIN, RegionKind, RemoteDevice, Superblock,
    Uuid,
};
use std::io;
use std::path::{Path, PathBuf};

/// Decides whether a pool's own device that was found grows.
type Grows<'a> = dyn Fn(&Look, &Superblock) -> Growth + 'a;

/// A device as configured.
pub(crate) struct Wanted<'a> {
    pub path: &'a Path,
    /// For messages: the words for the file, and the key of its size.
    words: (&'static str, &'static str),
    size: Option<u64>,
    uuid: Option<Uuid>,
    /// A block device that holds nothing may be overwritten.
    format: bool,
}

impl<'a> Wanted<'a> {
    /// A pool's own device.
    pub fn main(d: &'a DeviceConfig, path: &'a Path) -> Wanted<'a> {
        let size = d.size.map(|s| s.0);
        Wanted { path, words: ("the file", "size"), size, uuid: d.uuid, format: d.format }
    }

    /// A cache's fast device.
    pub fn fast(c: &'a CacheConfig) -> Wanted<'a> {
        let size = c.device_size.map(|s| s.0);
        Wanted { path: &c.file, words: ("the cache's file", "device_size"), size, uuid: None, format: true }
    }

    /// Decides by what is there, which is returned with the decision.
    ///
    /// # Errors
    /// If it can be neither opened nor made: why, and what to do.
    pub fn step(&self, look: Option<Look>) -> Result<(Step, Option<Look>), OpenError> {
        self.step_where(look, mounts::unmounted_above)
    }

    /// The same. `unmounted_above` returns the mount point above a folder on which nothing is mounted.
    fn step_where(
        &self,
        look: Option<Look>,
        unmounted_above: impl Fn(&Path) -> Option<PathBuf>,
    ) -> Result<(Step, Option<Look>), OpenError> {
        let path = self.path.display();
        let Some(look) = look else {
            let (file, key) = self.words;
            self.may_be_made()?;
            if self.path.starts_with("/dev") && !self.path.starts_with("/dev/shm") {
                return Err(Unfit::NoSuchDevice.of(path));
            }
            let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !parent.is_dir() {
                return Err(Unfit::NoFolder.of(path));
            }
            // An empty file is the operator's answer.
            if let Some(at) = unmounted_above(parent).filter(|_| !self.path.exists()) {
                return Err(Unfit::NotMounted(at).of(path));
            }
            return self.size.map(|size| (Step::Make(size), None)).ok_or_else(|| Unfit::NoFile { file, key }.of(path));
        };
        match look.found {
            Ok(_) => Ok((Step::Open, Some(look))),
            Err(DeviceError { kind: DeviceErrorKind::Blank, .. }) if look.is_block_device && !self.format => {
                Err(Unfit::Blank.of(path))
            }
            Err(DeviceError { kind: DeviceErrorKind::Blank | DeviceErrorKind::CreationInterrupted, .. })
                if if look.is_block_device { self.format } else { self.size.is_some() } =>
            {
                self.may_be_made().map(|()| (Step::Make(self.size.unwrap_or(0)), Some(look)))
            }
            Err(e) => Err(e.into()),
        }
    }

    /// A mount that failed, most likely: an empty device in the place of one with data would be found too late.
    fn may_be_made(&self) -> Result<(), OpenError> {
        self.uuid.map_or(Ok(()), |uuid| Err(Unfit::Missing(uuid).of(self.path.display())))
    }

    /// Judges what was found of a device.
    /// Of a pool's own device `growth` decides whether it grows.
    fn judge(
        &self,
        looked: Result<Option<Look>, OpenError>,
        growth: Option<&Grows<'_>>,
        seen: &mut Seen,
    ) -> Option<u64> {
        let path = self.path.display();
        let look = match looked.and_then(|look| self.step(look)) {
            Ok(found) => found,
            Err(what) => {
                seen.errors.push(what);
                return None;
            }
        };
        let (key, warnings) = (self.words.1, &mut seen.warnings);
        match look {
            (Step::Make(size), None) => {
                seen.sparse.push((self.path.to_path_buf(), size));
                Some(size)
            }
            (Step::Make(size), Some(look)) => {
                if look.is_block_device && key == "size" {
                    warnings.push(format!("{path}: `format`: the first start zeroes ALL of this device"));
                }
                Some(if size == 0 { look.size_bytes } else { size })
            }
            (Step::Open, look) => {
                let look = look.expect("nothing can be opened where nothing is");
                let made = look.found.as_ref().map_or(look.size_bytes, |superblock| superblock.end());
                if let Some(pid) = look.used_by {
                    warnings.push(format!("{path}: process {pid} has it open now: a second node would be refused"));
                }
                if let Some(growth) = growth {
                    let superblock = look.found.as_ref().ok()?;
                    return Some(self.judge_growth(&look, superblock, growth(&look, superblock), seen));
                }
                if self.size.is_some_and(|size| size >> 20 != made >> 20) {
                    warnings.push(format!(
                        "{path}: `{key}` is ignored: the device was made with {made} bytes, and a cache's device doesn't grow"
                    ));
                } else if look.size_bytes >> 20 > made >> 20 {
                    let unused = look.size_bytes - made;
                    warnings.push(format!("{path}: its last {unused} bytes aren't used: it was made with {made}"));
                }
                if !look.is_block_device {
                    seen.sparse.push((self.path.to_path_buf(), made));
                }
                Some(made)
            }
        }
    }
}

impl Wanted<'_> {
    /// Decides by the sizes whether a pool's own device, which has `there` bytes, grows when it is opened: up to `size`, or without one to all
    /// that is there. A file may become longer, a block device can't.
    fn growth(&self, there: u64, is_block_device: bool, superblock: &Superblock) -> Growth {
        let (path, made) = (self.path.display(), superblock.end());
        let none = |warning| Growth { to: None, warning };
        let wanted = match self.size {
            Some(size) if is_block_device => size.min(there),
            Some(size) => size,
            None => there,
        };
        if self.size.is_some_and(|size| size >> 20 < made >> 20) {
            return none(Some(format!("{path}: `size` is ignored: the pool has {made} bytes, and pools don't shrink")));
        }
        if wanted >> 20 <= made >> 20 {
            let missing = self.size.filter(|size| size >> 20 > there >> 20 && is_block_device);
            let unused = there.saturating_sub(made);
            return none(match (missing, unused >> 20) {
                (Some(size), _) => Some(format!("{path}: `size` is {size} bytes, and the device has {there}")),
                (None, 0) => None,
                (None, _) => Some(format!("{path}: its last {unused} bytes aren't used: `size` leaves them out")),
            });
        }
        let kept = |why: String| none(Some(format!("{path}: its last {} bytes aren't used: {why}", wanted - made)));
        if superblock.region(RegionKind::Logs).is_some() {
            return kept("a pool with logs doesn't grow: make a new pool, and move its volumes there".into());
        }
        let end_max = superblock.end_max();
        if end_max <= made {
            return kept(beyond_metadata(superblock));
        }
        let to = wanted.min(end_max) >> 20 << 20;
        let warning = (wanted > end_max)
            .then(|| format!("{path}: its last {} bytes aren't used: {}", wanted - to, beyond_metadata(superblock)));
        Growth { to: Some(to), warning }
    }

    /// Judges a pool's own device that is there: its size after the next start.
    fn judge_growth(&self, look: &Look, superblock: &Superblock, growth: Growth, seen: &mut Seen) -> u64 {
        let (Growth { to, warning }, made) = (growth, superblock.end());
        seen.warnings.extend(warning);
        let bytes = to.unwrap_or(made);
        if !look.is_block_device {
            seen.sparse.push((self.path.to_path_buf(), bytes));
        }
        seen.layered_bytes = Some(bytes - layers_at(superblock));
        seen.grows = to.map(|to| (made, to));
        bytes
    }
}

fn beyond_metadata(superblock: &Superblock) -> String {
    let metadata = superblock.region(RegionKind::Metadata).map_or(0, |region| region.len);
    format!(
        "the pool's metadata region of {metadata} bytes describes a device of {} at most: make a new pool, and move volumes there",
        superblock.end_max()
    )
}

/// Beginning of what a pool's layers get of its device: the logs' tables if it has any, and home.
pub(crate) fn layers_at(superblock: &Superblock) -> u64 {
    let logs = superblock.region(RegionKind::Logs);
    logs.or(superblock.region(RegionKind::Home)).map_or(0, |region| region.offset)
}

/// A pool's own device that is open, or could be.
pub(crate) struct Grower<'a> {
    /// The pool with the settings that were changed live, and as configured: the first of them that can be served is.
    pub configs: [&'a PoolConfig; 2],
    /// The device's name, for messages.
    pub path: &'a Path,
    /// Bytes that it has.
    pub there: u64,
    /// It can't become longer by itself.
    pub is_block_device: bool,
}

impl Grower<'_> {
    /// Decides whether the device grows when its pool is opened: by the sizes, whether the pool could be served then, and whether the new
    /// space is free. `is_used` looks for data in a range; it is asked only if nothing else is in the way.
    pub fn decide(&self, superblock: &Superblock, is_used: impl FnOnce(u64, u64) -> io::Result<Option<u64>>) -> Growth {
        let wanted = Wanted::main(&self.configs[1].device, self.path);
        let growth = wanted.growth(self.there, self.is_block_device, superblock);
        let Some(to) = growth.to else { return growth };
        // A profile is of one device.
        let len = to - layers_at(superblock);
        let rehearse = |config| crate::open::rehearse_layers(config, len);
        if let Err(why) = rehearse(self.configs[0]).or_else(|_| rehearse(self.configs[1])) {
            let what = not_served(&self.path.display().to_string(), superblock, to, &why);
            return Growth { to: None, warning: Some(what) };
        }
        let (path, made, end) = (self.path.display(), superblock.end(), to.min(self.there));
        let what = match if made < end { is_used(made, end) } else { Ok(None) } {
            Ok(None) => return growth,
            Ok(Some(at)) => format!(
                "{path}: it doesn't grow: its bytes from {made} to {end} hold data, as at {at}: if nobody needs them, zero that range, and start again"
            ),
            Err(e) => format!("{path}: it doesn't grow: its bytes from {made} to {end} can't be read: {e}"),
        };
        Growth { to: None, warning: Some(what) }
    }
}

/// Tells that a pool couldn't be served with its device as large as that.
pub(crate) fn not_served(path: &str, superblock: &Superblock, to: u64, why: &BadConfig) -> String {
    let unused = to - superblock.end();
    format!("{path}: its last {unused} bytes aren't used: with them, {why}")
}

/// A decision about the space that a device has beyond its superblock's regions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct Growth {
    /// Bytes that the device's regions get; `None` if they stay.
    pub to: Option<u64>,
    /// Space that isn't used, why, and what to do; or a `size` that has no effect.
    pub warning: Option<String>,
}

/// A start's first step with a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// It is opened.
    Open,
    /// It is made, with a number of bytes; 0: all of a block device.
    Make(u64),
}

/// A pool's devices, looked at.
#[derive(Debug, Default)]
pub struct Seen {
    /// Reasons for a start to fail.
    pub errors: Vec<OpenError>,
    /// Settings that are lawful and yet probably not meant.
    pub warnings: Vec<String>,
    /// Size of the pool's own device, where it is known.
    pub bytes: Option<u64>,
    /// Bytes of it that the pool's layers have, where it is made already.
    pub layered_bytes: Option<u64>,
    /// Size of it now and after the next start, where it grows then.
    pub grows: Option<(u64, u64)>,
    /// Files that take space in their file system as they fill up, with the bytes that they may have.
    pub sparse: Vec<(PathBuf, u64)>,
    /// The pool's metadata, if they could be read.
    pub meta: Option<MetaView>,
    /// Parts that weren't looked at, with the reason.
    pub unseen: Vec<String>,
}

/// Looks at a pool's own device, its metadata, and its cache's device. Logs and the content of a cache aren't examined: only a start reads them.
pub fn look(config: &PoolConfig) -> Seen {
    let mut seen = Seen::default();
    let (d, expect) = (&config.device, expect(config));
    let label = d.label();
    let cluster = d.rbd.as_ref().map(|_| crate::rbd::connect(d, &[]));
    let (cluster, unconnected) = match cluster.transpose() {
        Ok(cluster) => (cluster, None),
        Err(e) => (None, Some(e)),
    };
    let main = match &d.file {
        Some(path) => Some((path.as_path(), DeviceFile::look(path, &expect).map_err(OpenError::from))),
        None if let Some(cluster) = &cluster => {
            Some((Path::new(&label), crate::rbd::look(cluster, d, &expect).map(Some)))
        }
        None => unconnected.map(|e| (Path::new(&label), Err(e.into()))),
    };
    match (&d.file, &cluster, &main) {
        (Some(path), _, Some((_, Ok(Some(main))))) => {
            let tables =
                main.found.as_ref().ok().and_then(|s| s.region(RegionKind::Logs)).filter(|_| config.logs.is_some());
            let judged = tables.map_or(Ok(()), |t| crate::parts::logs::check_before(path, t, Some(config)));
            seen.errors.extend(judged.err());
            read_meta(path, main, &expect, &mut seen);
        }
        (None, Some(cluster), Some((_, Ok(Some(main))))) if main.found.is_ok() => {
            match crate::rbd::look_meta(cluster, d, &expect) {
                Ok(Some(view)) => seen.meta = Some(view),
                Ok(None) => seen.unseen.push(
                    "its metadata weren't read: a client has the image's exclusive lock, or ended without giving it back".into(),
                ),
                Err(e) => seen.errors.push(e),
            }
        }
        _ => {}
    }
    let mut live = config.clone();
    if let Some(view) = &seen.meta {
        let behind = crate::open::behind(view);
        if config.cache.is_none() && !behind.is_empty() {
            seen.errors.push(OpenError::NeedsCache { volumes: behind });
        }
        let faults = crate::parts::settings::keep(&mut live, &view.settings());
        let warning =
            |what| format!("settings that were changed live don't fit any more: the configured ones hold: {what}");
        seen.warnings.extend(faults.into_iter().map(warning));
    }
    if let (Some(view), Some((path, Ok(Some(Look { found: Ok(superblock), .. }))))) = (&seen.meta, &main) {
        seen.errors.extend(crate::open::check_modelled(config, superblock, view, path).err());
    }
    // Nothing is said of a cache whose pool's own device can't be looked at.
    if let (Some(c), Some((_, Ok(main)))) = (&config.cache, &main) {
        look_at_cache(config, c, main.as_ref(), &mut seen);
    }
    seen.bytes = match main {
        Some((path, looked)) => {
            let growth = |look: &Look, superblock: &Superblock| {
                let Look { size_bytes: there, is_block_device, .. } = *look;
                let grower = Grower { configs: [&live, config], path, there, is_block_device };
                grower.decide(superblock, |from, to| match &cluster {
                    Some(cluster) => {
                        let image = crate::rbd::open(cluster, d, true).map_err(io::Error::other)?;
                        RemoteDevice::is_used_beyond(&crate::rbd::medium(&image), from, to)
                    }
                    _ => DeviceFile::is_used_beyond(path, from, to),
                })
            };
            Wanted::main(d, path).judge(looked, Some(&growth), &mut seen)
        }
        None => d.size.map(|size| size.0),
    };
    if let Some(Err(e)) = config.tape.as_deref().map(TapeWriter::check) {
        seen.errors.push(crate::open::tape_fault(config.tape.as_deref().unwrap_or(Path::new("")), e));
    }
    if d.format && d.file.as_deref().is_some_and(Path::is_file) {
        seen.warnings.push("`format` is ignored: it is for block devices".into());
    }
    seen
}

/// Reads the metadata of a pool's own device, unless a node has it open: it may be changing them.
fn read_meta(path: &Path, main: &Look, expect: &Expect, seen: &mut Seen) {
    if main.found.is_err() {
        return; // that is said already
    }
    let used = || match main.used_by {
        Some(by) => {
            Some(format!("its metadata weren't read: process {by} serves it, and `plimsoll status` shows its volumes"))
        }
        None => match DeviceFile::is_in_use(path) {
            Ok(false) => None,
            Ok(true) => Some("its metadata weren't read: another process (or a mount) uses the device".into()),
            Err(e) => Some(format!("its metadata weren't read: it can't be locked: {e}")),
        },
    };
    if let Some(why) = used() {
        return seen.unseen.push(why);
    }
    let read = DeviceFile::look_meta(path, expect, u64::MAX);
    match (used(), read) {
        (Some(why), _) => seen.unseen.push(why), // since a moment ago
        (None, Ok(view)) => seen.meta = Some(view),
        (None, Err(e)) => seen.errors.push(e.into()),
    }
}

/// Looks at the device of a cache beside what was found of the pool's own.
fn look_at_cache(config: &PoolConfig, c: &CacheConfig, main: Option<&Look>, seen: &mut Seen) {
    if let Err(what) = check_cache(config, main) {
        return seen.errors.push(what);
    }
    let fast = Wanted::fast(c);
    let looked = DeviceFile::look(&c.file, &crate::parts::cache::expect(pool_uuid(config))).map_err(OpenError::from);
    match (&looked, main.is_some_and(|m| m.found.is_ok())) {
        (Ok(None), true) if let Err(what) = fast.step(None) => match seen.meta.as_ref().map(crate::open::behind) {
            None => seen.warnings.push(format!(
                "cache: {what}. A start refuses the pool if only the cache may have some of its data, and serves it without its cache otherwise"
            )),
            Some(behind) if behind.is_empty() => {
                seen.warnings.push(format!("cache: {what}. No volume needs it: a start serves the pool without its cache"));
            }
            Some(volumes) => seen.errors.push(OpenError::CacheMissing { fault: Box::new(what), volumes }),
        },
        _ => drop(fast.judge(looked, None, seen)),
    }
}

/// Refuses the cache of a former pool of this name, by what was found of the pool's own device (`main`).
///
/// # Errors
/// That, before anything is made or changed.
pub(crate) fn check_cache(config: &PoolConfig, main: Option<&Look>) -> Result<(), OpenError> {
    let Some(c) = &config.cache else { return Ok(()) };
    let main_uuid = match main.map(|look| &look.found) {
        Some(Ok(superblock)) => Some(superblock.device_uuid),
        None => None,
        Some(Err(DeviceError { kind: DeviceErrorKind::Blank | DeviceErrorKind::CreationInterrupted, .. })) => None,
        // It has an error of its own, and nothing tells whose the cache is.
        Some(Err(_)) => return Ok(()),
    };
    let known = crate::parts::cache::Known { pool_uuid: pool_uuid(config), main_uuid, metadata: None };
    crate::parts::cache::check_before(c, known).map_err(OpenError::Cache)
}

/// Derived from the pool's name, so that two pools' devices can't be taken for each other.
fn pool_uuid(config: &PoolConfig) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, config.name.get_ref().as_bytes())
}

/// The device that a pool's own must be.
pub(crate) fn expect(config: &PoolConfig) -> Expect {
    Expect { pool_uuid: Some(pool_uuid(config)), device_uuid: config.device.uuid, role: ROLE_MAIN.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    const MIB: u64 = 1 << 20;

    fn superblock(size_bytes: u64, logs_bytes: u64) -> Superblock {
        Superblock {
            device_uuid: Uuid::from_u128(1),
            pool_uuid: Uuid::from_u128(2),
            role: ROLE_MAIN.into(),
            sequence: 1,
            created_unix_s: 0,
            block_bytes: 512,
            formatted: false,
            main_uuid: None,
            regions: Superblock::region_map(size_bytes, logs_bytes),
        }
    }

    #[test]
    fn a_device_grows_up_to_its_size_and_to_all_of_it_without_one() {
        const FILE: bool = false;
        const BLOCK: bool = true;
        let decide = |is_block_device, there: u64, size: Option<u64>, logs| {
            let wanted = Wanted { path: Path::new("p"), words: ("the file", "size"), size, uuid: None, format: false };
            let Growth { to, warning } = wanted.growth(there, is_block_device, &superblock(64 * MIB, logs));
            (to.map(|to| to / MIB), warning.unwrap_or_default())
        };
        let quiet = |to: Option<u64>| (to, String::new());
        assert_eq!(decide(FILE, 64 * MIB, None, 0), quiet(None));
        assert_eq!(decide(FILE, 65 * MIB - 1, None, 0), quiet(None));
        assert_eq!(decide(FILE, 70 * MIB, None, 0), quiet(Some(70)));
        assert_eq!(decide(FILE, 64 * MIB, Some(80 * MIB + 5), 0), quiet(Some(80)));
        assert_eq!(decide(FILE, 90 * MIB, Some(80 * MIB), 0), quiet(Some(80)));
        assert_eq!(decide(BLOCK, 90 * MIB, None, 0), quiet(Some(90)));
        assert_eq!(decide(BLOCK, 90 * MIB, Some(80 * MIB), 0), quiet(Some(80)));
        assert_eq!(decide(BLOCK, 90 * MIB, Some(100 * MIB), 0), quiet(Some(90)));
        let warned = |(to, warning): (Option<u64>, String), wanted: Option<u64>, part: &str| {
            assert!(to == wanted && warning.contains(part), "{to:?} {warning}");
        };
        warned(
            decide(BLOCK, 64 * MIB, Some(100 * MIB), 0),
            None,
            "`size` is 104857600 bytes, and the device has 67108864",
        );
        warned(decide(FILE, 64 * MIB, Some(32 * MIB), 0), None, "pools don't shrink");
        warned(
            decide(FILE, 90 * MIB, Some(64 * MIB), 0),
            None,
            "its last 27262976 bytes aren't used: `size` leaves them out",
        );
        warned(decide(FILE, 90 * MIB, None, MIB), None, "a pool with logs doesn't grow");
        let most = (64 << 10) + 5;
        warned(decide(FILE, 1 << 40, None, 0), Some(most), "describes a device of 68724719616 at most");
    }

    /// An empty pool would be served in the place of the one behind the mount.
    #[test]
    fn a_file_is_not_made_where_a_mount_is_missing() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.img");
        let size = Some(64 * MIB);
        let wanted = Wanted { path: &path, words: ("the file", "size"), size, uuid: None, format: false };
        let missing = |folder: &Path| {
            assert_eq!(folder, dir.path());
            Some(folder.to_path_buf())
        };
        let refused = wanted.step_where(None, missing);
        assert!(matches!(refused, Err(OpenError::Unfit { fault: Unfit::NotMounted(at), .. }) if at == dir.path()));
        assert!(matches!(wanted.step_where(None, |_| None), Ok((Step::Make(bytes), None)) if bytes == 64 * MIB));
        std::fs::File::create(&path).expect("made");
        let expect = Expect { pool_uuid: None, device_uuid: None, role: ROLE_MAIN.into() };
        let look = DeviceFile::look(&path, &expect).expect("it can be read");
        assert!(look.is_none(), "an empty file holds as much as none");
        assert!(matches!(wanted.step_where(look, missing), Ok((Step::Make(bytes), None)) if bytes == 64 * MIB));
    }

    /// In another container, and on file systems whose device numbers aren't those of /proc/locks, the holder isn't visible.
    #[test]
    fn metadata_that_an_invisible_process_may_be_changing_are_not_read() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.img");
        let (pool_uuid, role) = (Uuid::from_u128(2), ROLE_MAIN.to_string());
        let options = plimsoll_store::CreateOptions {
            size_bytes: 64 * MIB,
            pool_uuid,
            role: role.clone(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        };
        let expect = Expect { pool_uuid: Some(pool_uuid), device_uuid: None, role };
        let held = DeviceFile::create(&path, &options).expect("created");
        let read = || -> (bool, Vec<String>, Vec<String>) {
            let look = DeviceFile::look(&path, &expect).expect("it can be read").expect("it is there");
            let mut seen = Seen::default();
            read_meta(&path, &Look { used_by: None, ..look }, &expect, &mut seen);
            (seen.meta.is_some(), seen.errors.iter().map(ToString::to_string).collect(), seen.unseen)
        };
        let note = "its metadata weren't read: another process (or a mount) uses the device";
        assert_eq!(read(), (false, vec![], vec![note.to_string()]));
        drop(held);
        assert_eq!(read(), (true, vec![], vec![]));
    }

    /// Only the range that the device takes on is looked at, and only if it would. Nothing found there refuses the pool.
    #[test]
    fn data_in_the_new_space_and_errors_of_reading_it_leave_the_size() {
        let decide = |there: u64, size: &str, logs, found: io::Result<Option<u64>>| {
            let text = format!("[[pool]]\nname = \"p\"\ndevice = {{ file = \"/dev/p\"{size} }}");
            let config = crate::config::Config::parse(&text, Path::new("/node.toml")).expect("lawful");
            let pool = &config.pool[0];
            let grower = Grower { configs: [pool, pool], path: Path::new("/dev/p"), there, is_block_device: true };
            let mut asked = None;
            let growth = grower.decide(&superblock(64 * MIB, logs), |from, to| {
                asked = Some((from / MIB, to / MIB));
                found
            });
            (asked, growth.to.map(|to| to / MIB), growth.warning.unwrap_or_default())
        };
        let unreadable = || Err(io::Error::other("a bad sector"));
        assert_eq!(decide(90 * MIB, "", 0, Ok(None)), (Some((64, 90)), Some(90), String::new()));
        assert_eq!(decide(90 * MIB, ", size = \"80MiB\"", 0, Ok(None)), (Some((64, 80)), Some(80), String::new()));
        let (asked, to, warning) = decide(90 * MIB, "", 0, Ok(Some(70 * MIB)));
        assert_eq!((asked, to), (Some((64, 90)), None));
        assert!(warning.contains("its bytes from 67108864 to 94371840 hold data, as at 73400320"), "{warning}");
        let (_, to, warning) = decide(90 * MIB, "", 0, unreadable());
        assert!(to.is_none() && warning.contains("can't be read: a bad sector"), "{warning}");
        // It doesn't grow anyway.
        assert_eq!(decide(64 * MIB, "", 0, unreadable()), (None, None, String::new()));
        assert_eq!(decide(90 * MIB, "", MIB, unreadable()).0, None);
        assert_eq!(decide(90 * MIB, ", size = \"64MiB\"", 0, unreadable()).0, None);
    }
}
