//! A device behind a host's page cache: a read whose pages are all in memory never reaches the device.
//!
//! Reads of resident pages are answered from memory; anything else goes to the device whole, and its pages are resident
//! once it has ended. Writes go through to the device (a write-back cache would need the kernel's flusher to be
//! modelled, too) and leave their pages resident. Trims and zeroings go to the device and drop their pages; a flush has no
//! pages.

use crate::disk::SpecError;
use crate::model::{Done, Model, Op, Request, assert_in_range};
use crate::pagecache::PageCache;
use plimsoll_base::{Span, Time};

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;

/// Time to find and copy a page of 4 KiB: an assumption, 8 GB/s of memory copy.
const HIT: Span = Span::from_nanos(500);

/// The largest device behind a cache: the cache remembers one bit of each page that was ever read.
const PAGES_MAX: u64 = 1 << 32;

#[derive(Clone, Copy, Debug)]
struct AtDevice {
    tag: u64,
    /// First page, and the first behind the last, that are resident in the end.
    pages: (u64, u64),
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Cached<M> {
    device: M,
    cache: PageCache,
    at_device: Vec<AtDevice>,
    free: Vec<usize>,
    /// Hits, latest first.
    hits: Vec<Done>,
    scratch: Vec<Done>,
    now: Time,
}

impl<M: Model> Cached<M> {
    /// `device` behind `memory_bytes` of page cache.
    ///
    /// # Errors
    /// If the memory isn't at least a page, or the device is too large to remember its pages.
    pub fn new(device: M, memory_bytes: u64) -> Result<Cached<M>, SpecError> {
        let file_pages = device.size_bytes().div_ceil(PAGE_BYTES);
        let pages = memory_bytes / PAGE_BYTES;
        let capacity = u32::try_from(pages).ok().filter(|&n| (1..u32::MAX - 1).contains(&n));
        let Some(capacity) = capacity else {
            return Err(SpecError::new(
                "cached",
                format!("{memory_bytes} bytes: between 4 KiB and 15 TiB are possible"),
            ));
        };
        if file_pages > PAGES_MAX {
            return Err(SpecError::new("cached", "a device of more than 16 TiB can't be behind a page cache here"));
        }
        let depth = device.queue_max();
        Ok(Cached {
            cache: PageCache::new(capacity.min(file_pages as u32), file_pages, HIT),
            at_device: vec![AtDevice { tag: 0, pages: (0, 0) }; depth],
            free: (0..depth).rev().collect(),
            hits: Vec::new(),
            scratch: Vec::new(),
            now: Time::ZERO,
            device,
        })
    }

    /// The cache, to inspect.
    pub fn cache(&self) -> &PageCache {
        &self.cache
    }

    /// Lets the device come to `now`; what it has ended is resident from then on.
    fn run(&mut self, now: Time, done: &mut Vec<Done>) {
        self.now = now;
        self.device.advance(now, &mut self.scratch);
        for d in self.scratch.drain(..) {
            let AtDevice { tag, pages } = self.at_device[d.tag as usize];
            self.free.push(d.tag as usize);
            for page in pages.0..pages.1 {
                self.cache.insert(page);
            }
            done.push(Done { tag, ..d });
        }
    }
}

impl<M: Model> Model for Cached<M> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn block_bytes(&self) -> u32 {
        self.device.block_bytes()
    }

    fn submit(&mut self, now: Time, req: Request) {
        assert_in_range(&req, self.size_bytes(), self.block_bytes());
        assert!(now >= self.now, "time went backwards");
        assert!(self.outstanding() < self.queue_max(), "more than queue_max requests are outstanding");
        self.now = now;
        let pages = match req.op {
            Op::Flush => (0, 0),
            _ => (req.offset / PAGE_BYTES, (req.offset + req.len).div_ceil(PAGE_BYTES)),
        };
        if req.op == Op::Read && (pages.0..pages.1).all(|p| self.cache.touch(p)) {
            let at = now + self.cache.hit_latency(pages.1 - pages.0);
            let place = self.hits.partition_point(|h| h.at > at);
            self.hits.insert(place, Done { tag: req.tag, at, started_at: now });
            return;
        }
        let resident = match req.op {
            Op::Trim | Op::WriteZeroes => {
                (pages.0..pages.1).for_each(|p| _ = self.cache.drop_page(p));
                (0, 0)
            }
            _ => pages,
        };
        let slot = self.free.pop().expect("fewer than queue_max are outstanding");
        self.at_device[slot] = AtDevice { tag: req.tag, pages: resident };
        self.device.submit(now, Request { tag: slot as u64, ..req });
    }

    fn next_event(&self) -> Time {
        self.hits.last().map_or(Time::NEVER, |h| h.at).min(self.device.next_event())
    }

    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        let first = done.len();
        self.run(now, done);
        while self.hits.last().is_some_and(|h| h.at <= now) {
            done.extend(self.hits.pop());
        }
        done[first..].sort_by_key(|d| d.at);
    }

    fn outstanding(&self) -> usize {
        self.at_device.len() - self.free.len() + self.hits.len()
    }

    fn queue_max(&self) -> usize {
        self.device.queue_max()
    }

    fn accepts(&self, req: &Request) -> bool {
        self.device.accepts(req)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, DiskOptions};

    fn run(m: &mut Cached<Disk>, at: Time, op: Op, offset: u64, len: u64) -> (Time, Span) {
        m.submit(at, Request { tag: 7, op, offset, len });
        let mut done = Vec::new();
        while done.is_empty() {
            m.advance(m.next_event(), &mut done);
        }
        assert_eq!(done[0].tag, 7);
        (done[0].at, done[0].at.since(at))
    }

    #[test]
    fn the_second_read_comes_from_memory_until_it_is_evicted() {
        let spec = crate::profile::by_name("cheetah-15k5").expect("embedded");
        let disk = Disk::new(&spec, DiskOptions::default()).expect("valid");
        let mut m = Cached::new(disk, 4 * PAGE_BYTES).expect("valid");
        let (at, cold) = run(&mut m, Time::ZERO, Op::Read, 1 << 30, 8192);
        assert!(cold > Span::from_micros(100), "a disk takes its time: {cold}");
        let (at, warm) = run(&mut m, at, Op::Read, 1 << 30, 8192);
        assert_eq!(warm, HIT * 2);
        let (at, _) = run(&mut m, at, Op::Write { fua: false }, 2 << 30, 16_384);
        let (at, written) = run(&mut m, at, Op::Read, 2 << 30, 4096);
        assert_eq!(written, HIT, "what was written is in memory");
        let (at, evicted) = run(&mut m, at, Op::Read, 1 << 30, 4096);
        assert!(evicted > HIT * 10, "four pages came in since: {evicted}");
        let (at, _) = run(&mut m, at, Op::Trim, 2 << 30, 16_384);
        let (_, trimmed) = run(&mut m, at, Op::Read, (2 << 30) + 8192, 4096);
        assert!(trimmed > HIT, "what was trimmed is no longer in memory");
    }
}
