//! A medium that is read and never written: what is written stays in memory. So a metadata store can be opened, and recovered, without
//! changing its device.

use crate::region::Medium;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

const PAGE_BYTES: u64 = 4096;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Overlay<M> {
    below: M,
    /// Pages that were written, by number.
    pages: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl<M> Overlay<M> {
    pub(crate) fn over(below: M) -> Overlay<M> {
        Overlay { below, pages: Mutex::default() }
    }

    fn pages(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u8>>> {
        // Nothing panics while it is held.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The parts of `offset..offset + len` by page: the page, the part's place in it, and its place in the range.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let (page, from) = (at / PAGE_BYTES, (at % PAGE_BYTES) as usize);
        let part = (len - done).min(PAGE_BYTES as usize - from);
        let range = (page, from..from + part, done);
        done += part;
        (part > 0).then_some(range)
    })
}

impl<M: Medium> Medium for Overlay<M> {
    fn read_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        self.below.read_at(out, offset)?;
        let pages = self.pages();
        for (page, of_page, at) in parts(offset, out.len()) {
            if let Some(written) = pages.get(&page) {
                out[at..at + of_page.len()].copy_from_slice(&written[of_page]);
            }
        }
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        let mut pages = self.pages();
        for (page, of_page, at) in parts(offset, data.len()) {
            let written = match pages.entry(page) {
                Entry::Occupied(written) => written.into_mut(),
                Entry::Vacant(place) => {
                    let mut below = vec![0; PAGE_BYTES as usize];
                    self.below.read_at(&mut below, page * PAGE_BYTES)?;
                    place.insert(below)
                }
            };
            written[of_page.clone()].copy_from_slice(&data[at..at + of_page.len()]);
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
