//! Checks of mapped memory under a posed agent: no privilege is needed.

#[path = "common/posed.rs"]
mod posed;

use plimsoll_host::{Options, Reader};
use plimsoll_testkit::until;
use posed::Posed;
use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::time::Duration;

#[test]
fn a_large_range_that_is_refused_comes_in() {
    const LEN: usize = 16 << 20;
    // On the disk that has the build, as /tmp may have none.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let socket = dir.path().join("host.sock");
    let _agent = Posed::start(dir.path(), &socket, false);
    std::fs::write(dir.path().join("f"), vec![7; LEN]).unwrap();
    let file = File::options().read(true).write(true).open(dir.path().join("f")).unwrap();
    file.sync_all().unwrap();
    let map = memmap2::MmapOptions::new().len(LEN).map_raw_read_only(&file).unwrap();
    let reader = Reader::new(Options { socket, refuse_first: true, ..Options::default() });
    until("it is refused", || {
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        reader.addrcheck(map.as_ptr() as usize, LEN, Duration::from_millis(20)).unwrap().is_some()
    });
    // No check orders it again.
    let mut found = vec![0u8; LEN / 4096];
    until("all of it comes in", || {
        // SAFETY: the mapping has this length, and `found` a byte for each of its pages.
        assert_eq!(unsafe { libc::mincore(map.as_mut_ptr().cast(), LEN, found.as_mut_ptr()) }, 0);
        found.iter().all(|b| b & 1 == 1)
    });
}
