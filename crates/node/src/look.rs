//! A look at a pool's devices that locks, changes and creates nothing, and the decision to open or to create them. A start and
//! `plimsoll check` share the decision.

use crate::config::{CacheConfig, DeviceConfig, PoolConfig};
use plimsoll_store::{DeviceError, DeviceErrorKind, DeviceFile, Expect, Look, ROLE_MAIN, Uuid};
use std::path::{Path, PathBuf};

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

    /// Decides by what is there.
    ///
    /// # Errors
    /// If it can be neither opened nor made: why, and what to do.
    pub fn step(&self, look: Option<&Look>) -> Result<Step, String> {
        let path = self.path.display();
        let Some(look) = look else {
            let (file, key) = self.words;
            self.may_be_made()?;
            if self.path.starts_with("/dev") && !self.path.starts_with("/dev/shm") {
                return Err(format!(
                    "{path}: there is no such device, and a file in /dev would be in memory: attach the device, or correct the path"
                ));
            }
            let parent = self.path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            if !parent.is_dir() {
                return Err(format!("{path}: its folder doesn't exist: create it, or correct the path"));
            }
            let none = || format!("{path}: {file} doesn't exist: set `{key}` to create it, or correct the path");
            return self.size.map(Step::Make).ok_or_else(none);
        };
        match &look.found {
            Ok(_) => Ok(Step::Open),
            Err(DeviceError { kind: DeviceErrorKind::Blank, .. }) if look.is_block_device && !self.format => {
                Err(format!(
                    "{path}: the device is blank: to initialise it for Plimsoll (ALL OF IT IS ZEROED), set `format = true`"
                ))
            }
            Err(DeviceError { kind: DeviceErrorKind::Blank | DeviceErrorKind::CreationInterrupted, .. })
                if if look.is_block_device { self.format } else { self.size.is_some() } =>
            {
                self.may_be_made().map(|()| Step::Make(self.size.unwrap_or(0)))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// A mount that failed, most likely: an empty device in the place of one with data would be found too late.
    fn may_be_made(&self) -> Result<(), String> {
        self.uuid.map_or(Ok(()), |uuid| {
            let path = self.path.display();
            Err(format!("{path}: the device {uuid} is missing: attach it, or remove `uuid` from the configuration to create a new one"))
        })
    }

    /// Judges what was found of a device.
    fn judge(&self, looked: Result<Option<Look>, String>, seen: &mut Seen) -> Option<u64> {
        let path = self.path.display();
        let look = match looked.and_then(|look| self.step(look.as_ref()).map(|step| (step, look))) {
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
                if self.size.is_some_and(|size| size >> 20 != made >> 20) {
                    warnings.push(format!(
                        "{path}: `{key}` is ignored: the device was made with {made} bytes, and devices don't grow"
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
    pub errors: Vec<String>,
    /// Settings that are lawful and yet probably not meant.
    pub warnings: Vec<String>,
    /// Size of the pool's own device, where it is known.
    pub bytes: Option<u64>,
    /// Files that take space in their file system as they fill up, with the bytes that they may have.
    pub sparse: Vec<(PathBuf, u64)>,
}

/// Looks at a pool's own device and at its cache's. Parts that only an open device shows, such as its metadata and its logs, aren't
/// examined.
pub fn look(config: &PoolConfig) -> Seen {
    let mut seen = Seen::default();
    let (d, expect) = (&config.device, expect(config));
    let label = d.label();
    let main = match &d.file {
        None if d.rbd.is_some() => {
            let looked = crate::rbd::connect(d, &[]).and_then(|cluster| crate::rbd::look(&cluster, d, &expect));
            Some((Path::new(&label), looked.map(Some)))
        }
        None => None,
        Some(path) => Some((path.as_path(), DeviceFile::look(path, &expect).map_err(|e| e.to_string()))),
    };
    // Nothing is said of a cache whose pool's own device can't be looked at.
    if let (Some(c), Some((_, Ok(main)))) = (&config.cache, &main) {
        look_at_cache(config, c, main.as_ref(), &mut seen);
    }
    seen.bytes = match main {
        Some((path, looked)) => Wanted::main(d, path).judge(looked, &mut seen),
        None => d.size.map(|size| size.0),
    };
    if d.format && d.file.as_deref().is_some_and(Path::is_file) {
        seen.warnings.push("`format` is ignored: it is for block devices".into());
    }
    seen
}

/// Looks at the device of a cache beside what was found of the pool's own.
fn look_at_cache(config: &PoolConfig, c: &CacheConfig, main: Option<&Look>, seen: &mut Seen) {
    if let Err(what) = check_cache(config, main) {
        return seen.errors.push(what);
    }
    let fast = Wanted::fast(c);
    let looked = DeviceFile::look(&c.file, &crate::parts::cache::expect(pool_uuid(config))).map_err(|e| e.to_string());
    match (&looked, main.is_some_and(|m| m.found.is_ok())) {
        (Ok(None), true) if let Err(what) = fast.step(None) => seen.warnings.push(format!(
            "cache: {what}. A start refuses the pool if only the cache may have some of its data, and serves it without its cache otherwise"
        )),
        _ => drop(fast.judge(looked, seen)),
    }
}

/// Refuses the cache of a former pool of this name, by what was found of the pool's own device (`main`).
///
/// # Errors
/// That, before anything is made or changed.
pub(crate) fn check_cache(config: &PoolConfig, main: Option<&Look>) -> Result<(), String> {
    let Some(c) = &config.cache else { return Ok(()) };
    let main_uuid = match main.map(|look| &look.found) {
        Some(Ok(superblock)) => Some(superblock.device_uuid),
        None => None,
        Some(Err(DeviceError { kind: DeviceErrorKind::Blank | DeviceErrorKind::CreationInterrupted, .. })) => None,
        // It has an error of its own, and nothing tells whose the cache is.
        Some(Err(_)) => return Ok(()),
    };
    let known = crate::parts::cache::Known { pool_uuid: pool_uuid(config), main_uuid, metadata: None };
    crate::parts::cache::check_before(c, known)
}

/// Derived from the pool's name, so that two pools' devices can't be taken for each other.
fn pool_uuid(config: &PoolConfig) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, config.name.get_ref().as_bytes())
}

/// The device that a pool's own must be.
pub(crate) fn expect(config: &PoolConfig) -> Expect {
    Expect { pool_uuid: Some(pool_uuid(config)), device_uuid: config.device.uuid, role: ROLE_MAIN.into() }
}
