//! Pages of files and mappings that are in memory, asked of the kernel. The system calls that rustix hasn't are here.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The page size that the page cache must count in for forecasts to be of use: that of most kernels.
pub const PAGE: u64 = 4096;
/// The same number on all architectures.
const SYS_CACHESTAT: libc::c_long = 451;

/// The page size of this kernel.
pub fn page_bytes() -> usize {
    // SAFETY: it only returns a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(PAGE as usize)
}

#[repr(C)]
struct CachestatRange {
    offset: u64,
    len: u64,
}

/// `struct cachestat`.
#[repr(C)]
#[derive(Default, Clone, Copy, Debug)]
pub struct Cached {
    /// Pages in memory, also those that are being read.
    pub pages: u64,
    dirty: u64,
    writeback: u64,
    /// Pages that were in memory, and were evicted.
    pub evicted: u64,
    recently_evicted: u64,
}

/// Asks the page cache for its pages of a range. `PermissionDenied`: of a file that is neither the caller's own nor writable.
pub fn cachestat(fd: BorrowedFd, offset: u64, len: u64) -> io::Result<Cached> {
    let (range, mut found) = (CachestatRange { offset, len }, Cached::default());
    // SAFETY: the kernel reads `range` and writes `found`, both of the types that it expects, both alive during the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, fd.as_raw_fd(), &raw const range, &raw mut found, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(found) }
}

/// Reads what is in memory, and nothing else. `WouldBlock`: the first page isn't.
pub fn read_resident(fd: BorrowedFd, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let iov = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: one vector that describes `buf`, which is ours to write for the whole call.
    let n = unsafe { libc::preadv2(fd.as_raw_fd(), &raw const iov, 1, to_offset(offset)?, libc::RWF_NOWAIT) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// An offset that the kernel can take.
pub fn to_offset(offset: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// True if all pages of mapped memory are resident. The kernel also reports pages as resident whose state it may not reveal. Fails
/// where nothing is mapped.
pub fn is_mapped_resident(addr: usize, len: usize) -> io::Result<bool> {
    const MOST: usize = 512;
    let page = page_bytes();
    let (mut at, end) = (addr & !(page - 1), addr.saturating_add(len));
    while at < end {
        let pages = (end - at).div_ceil(page).min(MOST);
        let mut found = [0u8; MOST];
        // SAFETY: the kernel reads no memory of ours by this address, whatever it is; it writes `pages` bytes at most.
        if unsafe { libc::mincore(at as *mut libc::c_void, pages * page, found.as_mut_ptr()) } < 0 {
            return Err(io::Error::last_os_error());
        }
        if found[..pages].iter().any(|b| b & 1 == 0) {
            return Ok(false);
        }
        at += pages * page;
    }
    Ok(true)
}

/// Asks the kernel to read mapped memory in, from the beginning of a page on. Returns without waiting for the reads. The kernel reads no
/// more than its read-ahead at once. Fails where nothing is mapped.
pub fn will_need(addr: usize, len: usize) -> io::Result<()> {
    // SAFETY: advice changes no memory, wherever it points; where nothing is mapped any more the call fails.
    let result = unsafe { libc::madvise(addr as *mut libc::c_void, len, libc::MADV_WILLNEED) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
