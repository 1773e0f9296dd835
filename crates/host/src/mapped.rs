//! Files that are mapped at addresses of this process.

use crate::resident::PAGE;
use crate::seen::Of;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::RwLock;

/// A mapped file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    range: Range<usize>,
    /// The device of its file system.
    pub dev: u64,
    inode: u64,
    /// The file's byte at the range's start.
    offset: u64,
}

/// Mappings as they were at a time, for kernels that can't be asked for one (before 6.11).
#[derive(Default)]
pub struct Mappings(RwLock<(u64, Vec<Mapping>)>);

/// Such a copy is used for this time, to remember pages; never to refuse.
const COPY_NS: u64 = 1_000_000_000;

/// `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    addr: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name: u64,
    build_id: u64,
}

/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: u64 = 0xc000_6611 | (size_of::<Query>() as u64) << 16;

impl Mapping {
    /// The file that is mapped at an address now.
    pub fn now(addr: usize) -> Option<Mapping> {
        match ask(addr) {
            Some(found) => found,
            None => find(&all(), addr),
        }
    }

    /// The owner of its pages.
    pub fn owner(&self) -> Of {
        Of::file(self.dev, self.inode)
    }

    /// The file's pages at an address.
    pub fn pages(&self, addr: usize, len: usize) -> Range<u64> {
        let start = self.offset.saturating_add(addr.saturating_sub(self.range.start) as u64);
        start / PAGE..start.saturating_add(len as u64).div_ceil(PAGE)
    }
}

impl Mappings {
    /// The file that is mapped at an address, or was less than a second ago.
    pub fn at(&self, addr: usize, now_ns: u64) -> Option<Mapping> {
        if let Some(found) = ask(addr) {
            return found;
        }
        if let Ok(copy) = self.0.try_read()
            && now_ns.saturating_sub(copy.0) < COPY_NS
        {
            return find(&copy.1, addr);
        }
        let fresh = all();
        let found = find(&fresh, addr);
        if let Ok(mut copy) = self.0.try_write() {
            *copy = (now_ns, fresh);
        }
        found
    }
}

/// `None`: the kernel can't be asked for one mapping.
fn ask(addr: usize) -> Option<Option<Mapping>> {
    let maps = File::open("/proc/self/maps").ok()?;
    let mut query = Query { size: size_of::<Query>() as u64, addr: addr as u64, ..Query::default() };
    // SAFETY: the kernel reads and writes `query`, of the size that it's told, and no name or identifier is asked for.
    let result = unsafe { libc::ioctl(maps.as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if result < 0 {
        let is_none = std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT);
        return is_none.then_some(None);
    }
    let dev = libc::makedev(query.major, query.minor);
    let range = query.start as usize..query.end as usize;
    Some((dev != 0).then_some(Mapping { range, dev, inode: query.inode, offset: query.offset }))
}

fn all() -> Vec<Mapping> {
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default().lines().filter_map(line).collect()
}

fn find(all: &[Mapping], addr: usize) -> Option<Mapping> {
    all.iter().find(|m| m.range.contains(&addr)).cloned()
}

fn line(line: &str) -> Option<Mapping> {
    let mut words = line.split_ascii_whitespace();
    let (from, to) = words.next()?.split_once('-')?;
    let offset = u64::from_str_radix(words.nth(1)?, 16).ok()?;
    let (major, minor) = words.next()?.split_once(':')?;
    let inode = words.next()?.parse().ok()?;
    let hex = |s: &str| usize::from_str_radix(s, 16).ok();
    let dev = libc::makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    (dev != 0).then_some(Mapping { range: hex(from)?..hex(to)?, dev, inode, offset })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_parsed() {
        let text = "7f0000000000-7f0000002000 r--s 00001000 fe:01 1234  /a file";
        let range = 0x7f00_0000_0000..0x7f00_0000_2000;
        let mapping = Mapping { range, dev: libc::makedev(0xfe, 1), inode: 1234, offset: 0x1000 };
        assert_eq!(mapping.pages(0x7f00_0000_1fff, 2), 2..4);
        assert_eq!(line(text), Some(mapping));
        assert_eq!(line("7f0000000000-7f0000002000 rw-p 00000000 00:00 0"), None);
        assert_eq!(line(""), None);
    }

    #[test]
    fn a_new_mapping_at_an_address_is_seen_at_once() {
        let (a, b) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let mappings = Mappings::default();
        let mut at: *mut libc::c_void = std::ptr::null_mut();
        for file in [&a, &b] {
            file.set_len(8192).unwrap();
            let flags = libc::MAP_SHARED | if at.is_null() { 0 } else { libc::MAP_FIXED };
            // SAFETY: anywhere at first, then over our own mapping; nobody reads there.
            at = unsafe { libc::mmap(at, 8192, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
            use std::os::unix::fs::MetadataExt;
            let inode = file.metadata().unwrap().ino();
            let addr = at as usize + 4096;
            assert_eq!(Mapping::now(addr).map(|m| (m.inode, m.pages(addr, 1))), Some((inode, 1..2)));
            assert_eq!(find(&all(), addr), Mapping::now(addr), "both ways");
            mappings.at(addr, 1);
        }
        // SAFETY: our own mapping.
        unsafe { libc::munmap(at, 8192) };
        assert_eq!(Mapping::now(at as usize), None);
    }
}
