//! Giving up the dirty data of a lost cache, while no node serves the pool.

use super::own::{Held, open_device, open_image};
use super::{OpenError, Unfit};
use crate::config::PoolConfig;
use plimsoll_store::Look;
use std::fmt;

/// The reason for which nothing was given up.
#[derive(Debug)]
pub enum GiveUpError {
    /// The pool isn't on a device, and so has no cache.
    NoDevice,
    /// Its device can't be opened, or can't record it.
    Open(OpenError),
    /// There is no such volume.
    NoVolume {
        /// The pool.
        pool: String,
        /// The volume's name.
        volume: String,
    },
    /// Nothing of the volume is in the cache alone.
    NothingDirty {
        /// The volume.
        volume: String,
    },
}

impl fmt::Display for GiveUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GiveUpError::NoDevice => write!(f, "a pool without a device has no cache"),
            GiveUpError::Open(e) => e.fmt(f),
            GiveUpError::NoVolume { pool, volume } => write!(f, "pool `{pool}` has no volume `{volume}`"),
            GiveUpError::NothingDirty { volume } => {
                write!(f, "the cache has nothing of volume `{volume}` that isn't on the pool's own device")
            }
        }
    }
}

impl std::error::Error for GiveUpError {}

impl From<OpenError> for GiveUpError {
    fn from(e: OpenError) -> GiveUpError {
        GiveUpError::Open(e)
    }
}

/// Gives up what only a pool's cache has of a volume, while no node serves the pool.
///
/// # Errors
/// The reason, before anything was given up.
pub fn give_up(config: &PoolConfig, volume: &str) -> Result<(), GiveUpError> {
    let is_there = |main: Option<&Look>| match main {
        Some(Look { found: Ok(_), .. }) => Ok(()),
        _ => Err(Unfit::NoPool.of(config.device.label())),
    };
    let (_held, mut store) = match (&config.device.file, &config.device.rbd) {
        (None, None) => return Err(GiveUpError::NoDevice),
        (Some(path), _) => {
            let (device, store) = open_device(config, path, is_there)?;
            (Held::File(device), store)
        }
        (None, Some(_)) => {
            let (device, store, image) = open_image(config, is_there)?;
            (Held::Image(device, image), store)
        }
    };
    match store.volume(volume) {
        None => Err(GiveUpError::NoVolume { pool: config.name.get_ref().clone(), volume: volume.into() }),
        Some(v) if !store.may_be_behind(v) => Err(GiveUpError::NothingDirty { volume: volume.into() }),
        Some(_) => Ok(store.give_up(volume).map(drop).map_err(OpenError::from)?),
    }
}
