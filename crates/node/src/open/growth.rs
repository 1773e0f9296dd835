//! The growth of a pool's own device at a start.

use super::OpenError;
use super::own::{Held, home_bytes};
use super::stack::{Built, build_live};
use crate::config::PoolConfig;
use crate::engine::Device;
use crate::look::{Grower, Growth};
use crate::plan::Facts;
use plimsoll_store::{DeviceFile, GrowError, MetaStore, RemoteDevice};
use std::ops::Range;
use std::path::Path;

/// A pool's devices, in the order of its stack's ports.
pub(super) struct Ports {
    pub devices: Vec<Device>,
    /// Numbers of those that are the pool's own device: itself, and places for handles of the same bytes.
    of_main: [Range<usize>; 2],
}

impl Ports {
    /// The pool's own device, those of its cache, and a number of places for handles of the former.
    pub fn new(main: Device, fast: Vec<Device>, handles: usize) -> Ports {
        let places = 1 + fast.len()..1 + fast.len() + handles;
        let size_bytes = main.offer().size_bytes;
        let mut devices: Vec<Device> = std::iter::once(main).chain(fast).collect();
        devices.resize_with(places.end, || Device::Absent { size_bytes });
        Ports { devices, of_main: [0..1, places] }
    }

    /// Numbers of the places for handles.
    pub fn places(&self) -> Range<usize> {
        self.of_main[1].clone()
    }

    /// Gives the pool's own device, whose region is at the end of it, another length.
    fn set_len(&mut self, len: u64) {
        for number in self.of_main.iter().cloned().flatten() {
            match &mut self.devices[number] {
                Device::File(f) => f.len = len,
                Device::Volatile(v) => v.inner.len = len,
                Device::Rbd(d) => d.len = len,
                Device::Absent { size_bytes } => *size_bytes = len,
                Device::Null { .. } => {}
            }
        }
    }
}

/// A pool over its own device as large as it is from now on.
pub(super) struct Grown {
    /// Its plan and stack.
    pub built: Built,
    /// Its metadata.
    pub store: MetaStore,
    /// Bytes of its own device before and now, if it has grown.
    pub grown: Option<(u64, u64)>,
}

/// Builds a pool's stack over all that its own device has, if it can be served so; otherwise over what the device had before. The device
/// grows last, as it can't be taken back: a start that is refused leaves the device as it is.
///
/// # Errors
/// If the pool can't be served either way, or nobody knows whether the device has grown.
pub(super) fn build_grown(
    configs: [&PoolConfig; 2],
    facts: &Facts,
    held: &mut Held,
    home_start: u64,
    mut store: MetaStore,
    ports: &mut Ports,
) -> Result<Grown, OpenError> {
    let [config, _] = configs;
    let from = held.superblock().end();
    let growth = growth(configs, held);
    let mut warning = growth.warning;
    let mut larger = None;
    if let Some(to) = growth.to {
        ports.set_len(to - home_start);
        match build_live(configs, facts, &ports.devices) {
            Ok(built) => larger = Some((built, to)),
            Err(why) => {
                warning = Some(crate::look::not_served(&config.device.label(), held.superblock(), to, &why));
            }
        }
    }
    if let Some(what) = &warning {
        warn_of_growth(config, what);
    }
    if let Some((built, to)) = larger {
        let is_grown;
        (store, is_grown) = grow(config, held, store, to)?;
        if is_grown {
            return Ok(Grown { built, store, grown: Some((from, to)) });
        }
    }
    if growth.to.is_some() {
        ports.set_len(from - home_start);
    }
    Ok(Grown { built: build_live(configs, facts, &ports.devices)?, store, grown: None })
}

/// Decides whether a pool's own device, open, grows now. Its metadata were opened before: they tell if an older superblock came back, beyond
/// which somebody's data would be zeroed.
fn growth(configs: [&PoolConfig; 2], held: &Held) -> Growth {
    let label = configs[1].device.label();
    let (path, d) = (Path::new(&label), &configs[1].device);
    let (there, is_block_device) = match held {
        Held::File(device) => (device.size_bytes(), device.is_block_device()),
        Held::Image(device, _) => (device.size_bytes(), true),
    };
    let there = match there {
        Ok(there) => there,
        Err(e) => {
            let warning = Some(format!("{label}: it doesn't grow: its size can't be found: {e}"));
            return Growth { to: None, warning };
        }
    };
    let path = d.file.as_deref().unwrap_or(path);
    let grower = Grower { configs, path, there, is_block_device };
    grower.decide(held.superblock(), |from, to| match held {
        Held::File(device) => DeviceFile::is_used_beyond(device.path(), from, to),
        Held::Image(_, image) => RemoteDevice::is_used_beyond(&crate::rbd::medium(&image.image), from, to),
    })
}

/// Tells that a pool doesn't have all of its device.
fn warn_of_growth(config: &PoolConfig, what: &str) {
    tracing::warn!(pool = config.name.get_ref(), what, "the pool doesn't have all of its device");
}

/// Takes on what a pool's own device has beyond its regions, up to `to` bytes; its metadata are opened anew. False, after a warning, if there
/// is no room for that, or it can't be zeroed: the device is as it was.
fn grow(config: &PoolConfig, held: &mut Held, store: MetaStore, to: u64) -> Result<(MetaStore, bool), OpenError> {
    let (label, from) = (config.device.label(), held.superblock().end());
    drop(store);
    if !matches!(held, Held::File(device) if !device.is_block_device()) {
        let (pool, bytes) = (config.name.get_ref(), to - from);
        tracing::info!(
            pool,
            device = label,
            bytes,
            "zeroing the space that the pool grows by; a start of the node waits for it"
        );
    }
    let grown = match held {
        Held::File(device) => device.grow(to),
        Held::Image(device, _) => device.grow(to),
    };
    let is_grown = grown.is_ok();
    match grown {
        Ok(()) => {}
        Err(GrowError::Kept(e)) => {
            warn_of_growth(config, &format!("{label}: cannot grow from {from} to {to} bytes: {e}"));
        }
        Err(GrowError::Unclear(error)) => {
            return Err(OpenError::MayHaveGrown { device: label, to, error });
        }
    }
    let store = match held {
        Held::File(device) => device.open_meta(home_bytes(config, device.home())?),
        Held::Image(device, _) => device.open_meta(),
    };
    Ok((store.map_err(|error| OpenError::Meta { device: label, error })?, is_grown))
}
