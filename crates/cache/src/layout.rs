//! The layout of the fast device.
//!
//! ```text
//!  page │ journal, even: copy, copy │ journal, odd: copy, copy │ WEU 0 │ WEU 1 │ ...
//! ```
//! The page describes the rest of the device. Each of its eight sectors has the whole description. Integers are little-endian; bytes
//! that aren't named are zero.
//!
//! A device of version 2 has the same places. It has one copy of each half of the journal, which takes all of the half. It has one
//! description, whose checksum is at the end of the page. A start converts such a device.

use crate::config::Shape;
use crate::format::{RECORD_BYTES, records_per_block};
use crate::index::{SLOTS_MAX, WEUS_MAX};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of the page.
pub const PAGE_BYTES: u64 = 4096;
/// The version that this code writes.
pub const VERSION: u32 = 3;
/// The version before, which this code converts.
pub const VERSION_2: u32 = 2;

const MAGIC: &[u8; 8] = b"PLIMNTRO";
/// A sector of the page.
const SECTOR_BYTES: usize = 512;
const SUM_AT: usize = SECTOR_BYTES - 8;
const SUM_2_AT: usize = PAGE_BYTES as usize - 8;
/// Records that each journal half takes at least, beside what a snapshot needs.
const RECORDS_MIN: u64 = 64;

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Extents and WEUs.
    pub shape: Shape,
    /// Number of WEUs.
    pub weus: u32,
    /// Requests must be multiples of it.
    pub block_bytes: u32,
    /// Bytes of each half of the journal, both copies.
    pub half_bytes: u64,
    /// The version of what is on the device.
    pub version: u32,
    /// Drawn when the cache was made: what has another is from another cache.
    pub salt: u64,
    /// It was made with NVRAM before its device, and means nothing without.
    pub nvram: bool,
}

impl Layout {
    /// A cache on `device_bytes`.
    ///
    /// # Errors
    /// If the shape is invalid, or the device is too small.
    pub fn new(device_bytes: u64, block_bytes: u32, shape: Shape, salt: u64) -> Result<Layout, String> {
        Layout::with(device_bytes, block_bytes, shape, salt, half_bytes)
    }

    /// The same as earlier programs made it: a full snapshot left room for hardly any records. Such a device keeps its places.
    ///
    /// # Errors
    /// Those of [`Layout::new`].
    pub fn earlier(device_bytes: u64, block_bytes: u32, shape: Shape, salt: u64) -> Result<Layout, String> {
        Layout::with(device_bytes, block_bytes, shape, salt, earlier_half_bytes)
    }

    fn with(
        device_bytes: u64,
        block_bytes: u32,
        shape: Shape,
        salt: u64,
        half_bytes: fn(Shape, u64, u32) -> u64,
    ) -> Result<Layout, String> {
        shape.check()?;
        if block_bytes > PAGE_BYTES as u32 || !block_bytes.is_power_of_two() {
            return Err(format!("a device with blocks of {block_bytes} bytes: at most {PAGE_BYTES}"));
        }
        let weu = u64::from(shape.weu_bytes);
        let mut weus = (device_bytes / weu).min(u64::from(WEUS_MAX));
        loop {
            let l = Layout {
                shape,
                weus: weus as u32,
                block_bytes,
                half_bytes: half_bytes(shape, weus, block_bytes),
                version: VERSION,
                salt,
                nvram: false,
            };
            if weus < 4 {
                return Err(format!(
                    "{device_bytes} bytes are too few for a cache with WEUs of {weu} bytes: make it larger"
                ));
            }
            if l.weu_at(weus as u32) <= device_bytes {
                return Ok(l);
            }
            weus -= 1 + (l.weu_at(weus as u32) - device_bytes) / (2 * weu);
        }
    }

    /// The beginning of a half of the journal.
    pub fn half_at(&self, half: u64) -> u64 {
        PAGE_BYTES + half % 2 * self.half_bytes
    }

    /// Offsets of the copies of a half of the journal.
    pub fn copies_at(&self, half: u64) -> [u64; 2] {
        [self.half_at(half), self.half_at(half) + self.copy_bytes()]
    }

    /// Bytes of a copy of a half of the journal.
    pub fn copy_bytes(&self) -> u64 {
        let block = u64::from(self.block_bytes);
        self.half_bytes / 2 / block * block
    }

    /// Records that an epoch of the journal takes.
    pub fn records_max(&self) -> usize {
        (self.copy_bytes() / u64::from(self.block_bytes)) as usize * records_per_block(self.block_bytes)
    }

    /// The beginning of a WEU.
    pub fn weu_at(&self, weu: u32) -> u64 {
        let base = (PAGE_BYTES + 2 * self.half_bytes).next_multiple_of(u64::from(self.shape.weu_bytes).min(1 << 20));
        base + u64::from(weu) * u64::from(self.shape.weu_bytes)
    }

    /// Deletions that a snapshot of the journal tells of at most: a quarter of what it has room for, beside the WEUs.
    pub fn gone_max(&self) -> usize {
        self.records_max() / 4
    }

    /// Slots that a WEU may have: four times what it holds uncompressed.
    pub fn slots_max(&self) -> u32 {
        slots_max(self.shape)
    }

    /// Extents that fit uncompressed.
    pub fn extents(&self) -> u64 {
        self.capacity_bytes() / u64::from(self.shape.extent_bytes)
    }

    /// Bytes for extents, uncompressed.
    pub fn capacity_bytes(&self) -> u64 {
        u64::from(self.weus) * u64::from(self.shape.weu_bytes)
    }

    /// The page.
    pub fn encode(&self) -> Vec<u8> {
        let mut sector = vec![0; SECTOR_BYTES];
        self.encode_into(&mut sector, VERSION);
        let sum = xxh3_64(&sector[..SUM_AT]);
        sector[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        sector.repeat(PAGE_BYTES as usize / SECTOR_BYTES)
    }

    fn encode_into(&self, b: &mut [u8], version: u32) {
        b[..8].copy_from_slice(MAGIC);
        b[8..12].copy_from_slice(&version.to_le_bytes());
        b[12..16].copy_from_slice(&self.block_bytes.to_le_bytes());
        b[16..20].copy_from_slice(&self.shape.extent_bytes.to_le_bytes());
        b[20..24].copy_from_slice(&self.shape.weu_bytes.to_le_bytes());
        b[24..28].copy_from_slice(&self.weus.to_le_bytes());
        b[28..32].copy_from_slice(&u32::from(self.nvram).to_le_bytes());
        b[32..40].copy_from_slice(&self.half_bytes.to_le_bytes());
        b[40..48].copy_from_slice(&self.salt.to_le_bytes());
    }

    /// Decodes a page: from any whole sector of it, or from all of it if it's of version 2.
    ///
    /// # Errors
    /// Why it isn't one that this program can use.
    pub fn decode(page: &[u8]) -> Result<Layout, String> {
        if let Some(what) = Layout::of_unknown_version(page) {
            return Err(what);
        }
        match layout_in(page) {
            Some(bytes) => Layout::decode_from(bytes),
            None if page.chunks_exact(SECTOR_BYTES).any(|b| b.starts_with(MAGIC)) => {
                Err("the page that describes its cache is damaged".into())
            }
            None if page.iter().all(|b| *b == 0) => Err("there is no cache on this device".into()),
            None => Err("there is no cache on this device, or the page that describes it is damaged".into()),
        }
    }

    /// The words for a page of a version that this program doesn't know; `None` for any other page. One whole sector of a later version is
    /// enough: a program that knows it was converting the device.
    pub fn of_unknown_version(page: &[u8]) -> Option<String> {
        let version = |b: &[u8]| u32_at(b, 8);
        let newer = page.chunks_exact(SECTOR_BYTES).find(|b| is_whole_sector(b) && version(b) > VERSION);
        let first = page.get(..SECTOR_BYTES)?;
        let is_other = first.starts_with(MAGIC) && !(VERSION_2..=VERSION).contains(&version(first));
        let found = newer.or_else(|| Some(first).filter(|_| is_other && layout_in(page).is_none()))?;
        Some(format!(
            "its cache is of version {}; this program knows versions {VERSION_2} and {VERSION}",
            version(found)
        ))
    }

    fn decode_from(b: &[u8]) -> Result<Layout, String> {
        let shape = Shape { extent_bytes: u32_at(b, 16), weu_bytes: u32_at(b, 20) };
        shape.check()?;
        let layout = Layout {
            shape,
            weus: u32_at(b, 24),
            block_bytes: u32_at(b, 12),
            half_bytes: u64_at(b, 32),
            version: u32_at(b, 8),
            salt: u64_at(b, 40),
            nvram: u32_at(b, 28) == 1,
        };
        let sane = layout.weus <= WEUS_MAX
            && layout.block_bytes.is_power_of_two()
            && (512..=PAGE_BYTES as u32).contains(&layout.block_bytes)
            && [half_bytes, earlier_half_bytes]
                .iter()
                .any(|of| layout.half_bytes == of(shape, u64::from(layout.weus), layout.block_bytes));
        if sane { Ok(layout) } else { Err("the page that describes its cache makes no sense".into()) }
    }
}

fn is_whole_sector(b: &[u8]) -> bool {
    b.starts_with(MAGIC) && u64_at(b, SUM_AT) == xxh3_64(&b[..SUM_AT])
}

/// The bytes of a page that say the layout: a whole sector of it, or all of it if it's of version 2. While a device is converted a power
/// loss may leave sectors of both versions: all that they need was there before.
fn layout_in(page: &[u8]) -> Option<&[u8]> {
    let page = page.get(..PAGE_BYTES as usize)?;
    let sector = page.chunks_exact(SECTOR_BYTES).find(|b| is_whole_sector(b) && u32_at(b, 8) == VERSION);
    let is_2 = || {
        page.starts_with(MAGIC) && u32_at(page, 8) == VERSION_2 && u64_at(page, SUM_2_AT) == xxh3_64(&page[..SUM_2_AT])
    };
    sector.or_else(|| is_2().then_some(page))
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}

pub(crate) fn slots_max(shape: Shape) -> u32 {
    (shape.weu_bytes / shape.extent_bytes * 4).min(SLOTS_MAX)
}

/// Records of a snapshot of everything: what each WEU's number is, what is durable of it, and which of its slots are dead or clean.
fn snapshot_max(shape: Shape, weus: u64) -> u64 {
    let words = u64::from(slots_max(shape)).div_ceil(64);
    weus * (2 + 2 * words)
}

/// Room for twice the records of a full snapshot, in each of two copies. With less room a full cache writes a snapshot for
/// every few records.
fn half_bytes(shape: Shape, weus: u64, block_bytes: u32) -> u64 {
    // However small the cache: a snapshot's block, and some for records, whatever the blocks.
    bytes_for(2 * (2 * snapshot_max(shape, weus) + RECORDS_MIN)).max(4 * u64::from(block_bytes))
}

/// The same of devices that earlier programs made: no more than [`RECORDS_MIN`] records beside two copies of a snapshot.
fn earlier_half_bytes(shape: Shape, weus: u64, block_bytes: u32) -> u64 {
    bytes_for(2 * snapshot_max(shape, weus) + RECORDS_MIN).max(4 * u64::from(block_bytes))
}

/// Bytes of `records` journal records: a block of 512 bytes has 464 for them.
fn bytes_for(records: u64) -> u64 {
    (records * RECORD_BYTES * 512 / 464).next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fits_and_says_so_again() {
        for (mib, shape) in
            [(64, Shape::default()), (400_000, Shape::default()), (8, Shape { extent_bytes: 4096, weu_bytes: 1 << 19 })]
        {
            let bytes = mib << 20;
            let l = Layout::new(bytes, 512, shape, 7).unwrap();
            assert!(l.weu_at(l.weus) <= bytes);
            let used = l.capacity_bytes() * 100 / bytes;
            assert!(used >= 80, "{used} % of {mib} MiB are for extents");
            assert_eq!(Layout::decode(&l.encode()), Ok(l));
        }
        assert!(Layout::new(4 << 20, 512, Shape::default(), 7).unwrap_err().contains("too few"));
    }

    #[test]
    fn a_device_of_an_earlier_program_keeps_its_places() {
        for (mib, block) in [(64, 512), (64, 4096), (400_000, 512)] {
            let new = Layout::new(mib << 20, block, Shape::default(), 7).unwrap();
            let old = Layout::earlier(mib << 20, block, Shape::default(), 7).unwrap();
            assert!(new.records_max() >= 2 * snapshot_max(new.shape, u64::from(new.weus)) as usize, "{new:?}");
            assert!(new.half_bytes > old.half_bytes && new.weus <= old.weus);
            assert_eq!((Layout::decode(&old.encode()), Layout::decode(&new.encode())), (Ok(old), Ok(new)));
            let lost = u64::from(old.weus - new.weus) * 1000 / u64::from(old.weus);
            assert!(mib < 1000 || lost < 4, "{lost} thousandths of the WEUs go to the journal");
        }
        let wrong = Layout { half_bytes: 8192, ..Layout::new(64 << 20, 512, Shape::default(), 7).unwrap() };
        assert!(Layout::decode(&wrong.encode()).is_err());
    }

    #[test]
    fn a_small_cache_on_large_blocks_has_room_for_its_journal() {
        for block_bytes in [512, 4096] {
            let shape = Shape { extent_bytes: 8192, weu_bytes: 64 << 10 };
            let l = Layout::new(1 << 20, block_bytes, shape, 7).unwrap();
            assert!(l.half_bytes >= 4 * u64::from(block_bytes) && l.weus >= 8, "{l:?}");
            assert!(l.copy_bytes() >= 2 * u64::from(block_bytes), "{l:?}");
        }
    }

    /// After a power loss at any sector of the new page, the page is valid in exactly one of the two versions.
    #[test]
    fn a_page_that_is_being_converted_is_one_of_both() {
        let new = Layout::new(64 << 20, 512, Shape::default(), 7).unwrap();
        let old = Layout { version: VERSION_2, ..new };
        let mut page = vec![0; PAGE_BYTES as usize];
        old.encode_into(&mut page, VERSION_2);
        let sum = xxh3_64(&page[..SUM_2_AT]);
        page[SUM_2_AT..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Layout::decode(&page), Ok(old));
        for kept in 0..256usize {
            let mut torn = page.clone();
            for sector in (0..8).filter(|s| kept >> s & 1 == 1) {
                torn[sector * 512..][..512].copy_from_slice(&new.encode()[..512]);
            }
            assert_eq!(Layout::decode(&torn), Ok(if kept == 0 { old } else { new }));
        }
    }

    #[test]
    fn a_page_of_something_else_is_refused() {
        let l = Layout::new(64 << 20, 512, Shape::default(), 7).unwrap();
        assert!(Layout::decode(&[0; 4096]).unwrap_err().contains("no cache"));
        let mut page = vec![0; PAGE_BYTES as usize];
        l.encode_into(&mut page, 9);
        assert!(Layout::decode(&page).unwrap_err().contains("version 9"));
        // One sector of a later version is enough: a program that knows it was converting the device.
        for sector in 0..8 {
            let mut page = l.encode();
            let b = &mut page[sector * SECTOR_BYTES..][..SECTOR_BYTES];
            b[8..12].copy_from_slice(&(VERSION + 1).to_le_bytes());
            assert_eq!(Layout::decode(&page), Ok(l), "sector {sector} is damaged");
            let b = &mut page[sector * SECTOR_BYTES..][..SECTOR_BYTES];
            let sum = xxh3_64(&b[..SUM_AT]);
            b[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
            assert!(Layout::decode(&page).unwrap_err().contains("version 4"), "sector {sector}");
        }
        page = l.encode();
        for sector in 0..8 {
            assert_eq!(Layout::decode(&page), Ok(l), "any sector says it");
            page[sector * 512 + 24] ^= 1;
        }
        assert!(Layout::decode(&page).unwrap_err().contains("damaged"));
        assert!(Shape { extent_bytes: 5000, ..Shape::default() }.check().is_err());
        assert!(Shape { weu_bytes: 8192, ..Shape::default() }.check().is_err());
    }
}
