//! A disk in memory that loses, tears and reorders what wasn't synced when its power goes.

use plimsoll_base::Rng;
use redb::StorageBackend;
use std::io::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR_BYTES: usize = 512;

/// A handle; clones are the same disk.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<Inner>>);

#[derive(Clone, Debug, Default)]
struct Inner {
    durable: Vec<u8>,
    /// What reads see.
    current: Vec<u8>,
    /// Sectors, or parts of one, written since the last sync.
    unsynced: Vec<(usize, Vec<u8>)>,
    /// Writes, syncs and changes of length so far.
    calls: u64,
    /// Power goes at that call.
    fails_at: Option<u64>,
    lies_about_sync: bool,
}

impl Disk {
    pub fn new() -> Disk {
        Disk(Arc::default())
    }

    /// Another disk with the same synced contents.
    pub fn copy(&self) -> Disk {
        let inner = self.lock();
        assert!(inner.unsynced.is_empty() || inner.lies_about_sync);
        let lies_about_sync = inner.lies_about_sync;
        let (durable, current) = (inner.durable.clone(), inner.durable.clone());
        Disk(Arc::new(Mutex::new(Inner { durable, current, lies_about_sync, ..Inner::default() })))
    }

    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Power goes in the middle of the call after the next `calls`.
    pub fn fail_after(&self, calls: u64) {
        let mut inner = self.lock();
        inner.fails_at = Some(inner.calls + calls);
    }

    pub fn lie_about_sync(&self) {
        self.lock().lies_about_sync = true;
    }

    /// Each unsynced sector, in any order, is kept, dropped, or kept in part. Then power is back.
    pub fn lose_power(&self, rng: &mut Rng) {
        let inner = &mut *self.lock();
        let mut unsynced = std::mem::take(&mut inner.unsynced);
        rng.shuffle(&mut unsynced);
        for (at, bytes) in unsynced {
            let kept = match rng.below(3) {
                0 => 0,
                1 => bytes.len(),
                _ => rng.below(bytes.len() as u64) as usize,
            };
            if at + kept <= inner.durable.len() {
                inner.durable[at..at + kept].copy_from_slice(&bytes[..kept]);
            }
        }
        inner.current.clone_from(&inner.durable);
        inner.fails_at = None;
    }

    /// Where bytes are not zero.
    pub fn used_bytes(&self) -> Vec<usize> {
        self.lock().durable.iter().enumerate().filter(|(_, b)| **b != 0).map(|(at, _)| at).collect()
    }

    pub fn flip(&self, at: usize, bits: u8) {
        let inner = &mut *self.lock();
        inner.durable[at] ^= bits;
        inner.current.clone_from(&inner.durable);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no test panics with it")
    }
}

impl Inner {
    /// True if power goes now; an error if it went before.
    fn call(&mut self) -> Result<bool> {
        let now = self.calls;
        self.calls += 1;
        match self.fails_at {
            Some(at) if now > at => Err(Error::other("power is off")),
            Some(at) => Ok(now == at),
            None => Ok(false),
        }
    }

    fn end_call(power_goes: bool) -> Result<()> {
        if power_goes { Err(Error::other("power goes")) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> Result<u64> {
        Ok(self.lock().current.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let inner = self.lock();
        let from = offset as usize;
        let bytes = inner.current.get(from..from + out.len()).ok_or_else(|| Error::other("beyond the end"))?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    /// As `RegionBackend`'s: a new length is durable at once.
    fn set_len(&self, len: u64) -> Result<()> {
        let inner = &mut *self.lock();
        let power_goes = inner.call()?;
        if !power_goes || inner.calls.is_multiple_of(2) {
            inner.current.resize(len as usize, 0);
            inner.durable.resize(len as usize, 0);
        }
        Inner::end_call(power_goes)
    }

    fn sync_data(&self) -> Result<()> {
        let inner = &mut *self.lock();
        let power_goes = inner.call()?;
        if !power_goes && !inner.lies_about_sync {
            inner.unsynced.clear();
            inner.durable.clone_from(&inner.current);
        }
        Inner::end_call(power_goes)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let inner = &mut *self.lock();
        let power_goes = inner.call()?;
        let mut at = offset as usize;
        if at + data.len() > inner.current.len() {
            return Err(Error::other("beyond the end"));
        }
        inner.current[at..at + data.len()].copy_from_slice(data);
        let mut rest = data;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(SECTOR_BYTES - at % SECTOR_BYTES));
            inner.unsynced.push((at, part.to_vec()));
            (at, rest) = (at + part.len(), after);
        }
        Inner::end_call(power_goes)
    }
}
