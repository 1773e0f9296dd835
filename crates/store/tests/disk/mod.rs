//! A disk in memory that loses, tears and reorders what wasn't synced when its power goes.

use plimsoll_base::Rng;
use plimsoll_store::{Medium, MetaError, MetaStore, Owner, Region, RegionBackend, RegionKind, Remote, Uuid};
use std::io::{Error, Result};
use std::sync::{Arc, Mutex, MutexGuard};

pub const SECTOR_BYTES: usize = 512;
const PAGE_BYTES: usize = 4096;
/// The metadata region; it is all of a new disk.
pub const REGION: Region = Region { kind: RegionKind::Metadata, offset: 0, len: 4 << 20 };
pub const OWNER: Owner = Owner { device_uuid: Uuid::from_u128(0x70e5), sequence: 1 };

/// A handle; clones are the same disk.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<Inner>>);

/// Pages that copies share until one is changed.
#[derive(Clone, Debug)]
struct Pages(Vec<Arc<[u8; PAGE_BYTES]>>);

#[derive(Clone, Debug)]
struct Inner {
    durable: Pages,
    /// Content that reads return.
    current: Pages,
    /// Sectors, or parts of one, written since the last sync.
    unsynced: Vec<(usize, Vec<u8>)>,
    /// Writes and syncs so far.
    calls: u64,
    /// Power goes at that call.
    fails_at: Option<u64>,
    lies_about_sync: bool,
}

impl Pages {
    /// Writes bytes that don't cross a page.
    fn write(&mut self, at: usize, bytes: &[u8]) {
        let page = Arc::make_mut(&mut self.0[at / PAGE_BYTES]);
        page[at % PAGE_BYTES..][..bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        let mut done = 0;
        while done < out.len() {
            let from = (at + done) % PAGE_BYTES;
            let len = (out.len() - done).min(PAGE_BYTES - from);
            out[done..done + len].copy_from_slice(&self.0[(at + done) / PAGE_BYTES][from..from + len]);
            done += len;
        }
    }
}

impl Disk {
    pub fn new() -> Disk {
        Disk::of(REGION.len)
    }

    /// A blank disk of this size.
    pub fn of(size_bytes: u64) -> Disk {
        let blank = Arc::new([0; PAGE_BYTES]);
        Disk::with(Pages(vec![blank; size_bytes as usize / PAGE_BYTES]), false)
    }

    fn with(pages: Pages, lies_about_sync: bool) -> Disk {
        let (durable, current) = (pages.clone(), pages);
        Disk(Arc::new(Mutex::new(Inner {
            durable,
            current,
            unsynced: vec![],
            calls: 0,
            fails_at: None,
            lies_about_sync,
        })))
    }

    /// Another disk with the same synced contents.
    pub fn copy(&self) -> Disk {
        let inner = self.lock();
        assert!(inner.unsynced.is_empty() || inner.lies_about_sync);
        Disk::with(inner.durable.clone(), inner.lies_about_sync)
    }

    /// An empty metadata region over all of it.
    pub fn format(&self) -> RegionBackend<Disk> {
        RegionBackend::format(self.clone(), REGION, OWNER).expect("formats")
    }

    /// The metadata region in it.
    pub fn backend(&self) -> std::result::Result<RegionBackend<Disk>, MetaError> {
        RegionBackend::open(self.clone(), REGION, OWNER).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidData => MetaError::Corrupt { what: e.to_string() },
            _ => MetaError::Io(e),
        })
    }

    /// The metadata store in it.
    pub fn open(&self, home: Region) -> std::result::Result<MetaStore, MetaError> {
        MetaStore::open(self.backend()?, home)
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
            inner.durable.write(at, &bytes[..kept]);
        }
        inner.current = inner.durable.clone();
        inner.fails_at = None;
    }

    /// Returns the offsets of bytes that aren't zero.
    pub fn used_bytes(&self) -> Vec<usize> {
        let inner = self.lock();
        let bytes = |(n, page): (usize, &Arc<[u8; PAGE_BYTES]>)| {
            let page = page.clone();
            (0..PAGE_BYTES).filter(move |at| page[*at] != 0).map(move |at| n * PAGE_BYTES + at)
        };
        inner.durable.0.iter().enumerate().flat_map(bytes).collect()
    }

    /// The sectors that aren't all zero.
    pub fn used_sectors(&self) -> Vec<usize> {
        let mut sectors: Vec<usize> = self.used_bytes().into_iter().map(|at| at / SECTOR_BYTES).collect();
        sectors.dedup();
        sectors
    }

    pub fn flip(&self, at: usize, bits: u8) {
        let mut sector = self.sector(at / SECTOR_BYTES);
        sector[at % SECTOR_BYTES] ^= bits;
        self.put_sector(at / SECTOR_BYTES, &sector);
    }

    /// A sector as it is durably.
    pub fn sector(&self, n: usize) -> [u8; SECTOR_BYTES] {
        let mut b = [0; SECTOR_BYTES];
        self.lock().durable.read(n * SECTOR_BYTES, &mut b);
        b
    }

    /// Replaces a sector behind the store's back.
    pub fn put_sector(&self, n: usize, bytes: &[u8; SECTOR_BYTES]) {
        let inner = &mut *self.lock();
        inner.durable.write(n * SECTOR_BYTES, bytes);
        inner.current.write(n * SECTOR_BYTES, bytes);
    }

    fn len(&self) -> u64 {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("no test panics with it")
    }
}

impl Inner {
    fn len(&self) -> u64 {
        (self.current.0.len() * PAGE_BYTES) as u64
    }

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

impl Medium for Disk {
    fn read_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        if offset + out.len() as u64 > self.len() {
            return Err(Error::other("beyond the end"));
        }
        self.lock().current.read(offset as usize, out);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let inner = &mut *self.lock();
        let power_goes = inner.call()?;
        if offset + data.len() as u64 > inner.len() {
            return Err(Error::other("beyond the end"));
        }
        let (mut at, mut rest) = (offset as usize, data);
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.len().min(SECTOR_BYTES - at % SECTOR_BYTES));
            inner.current.write(at, part);
            inner.unsynced.push((at, part.to_vec()));
            (at, rest) = (at + part.len(), after);
        }
        Inner::end_call(power_goes)
    }

    fn sync(&self) -> Result<()> {
        let inner = &mut *self.lock();
        let power_goes = inner.call()?;
        if !power_goes && !inner.lies_about_sync {
            inner.unsynced.clear();
            inner.durable = inner.current.clone();
        }
        Inner::end_call(power_goes)
    }
}

impl Remote for Disk {
    fn size_bytes(&self) -> Result<u64> {
        Ok(self.len())
    }

    fn zero(&self, offset: u64, len: u64) -> Result<()> {
        const STEP_BYTES: u64 = 1 << 20;
        let steps = (0..len).step_by(STEP_BYTES as usize);
        steps
            .map(|at| (at, STEP_BYTES.min(len - at)))
            .try_for_each(|(at, step)| self.write_at(&vec![0; step as usize], offset + at))
    }
}
