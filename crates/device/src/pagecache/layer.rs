//! The page cache as a layer, and what a read would wait in it (MittOS §4.4: MittCache; MT-M19 to M22).
//!
//! A read whose pages are in memory waits for nothing. One whose pages were swapped out is judged by what the layers below
//! say, so it's refused at once if its deadline is below the smallest possible I/O; its pages are then brought in
//! in the background, so that who expects them in memory finds them there next time (MT-M20). A first read is never
//! refused (MT-M21): it says nothing of memory being short. Looking and reading are one step, so no page is evicted in
//! between (MT-M22).

use std::collections::VecDeque;

use plimsoll_base::{Completion, Confidence, Data, Io, IoHead, Op, Origin, OwnKind, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};

use super::{EvictionOrder, Lru, PageCache, Residency};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Background reads under way at most, and waiting for that at most.
const FILLS_MAX: usize = 16;
const FILLS_WAITING_MAX: usize = 1024;

/// What a range's pages are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    InMemory,
    SwappedOut,
    /// None was swapped out, but some were never read.
    Unread,
}

/// See the module's documentation. Times only: bytes are the business of what is below.
pub struct PageCacheLayer<O: EvictionOrder = Lru> {
    cache: PageCache<O>,
    /// Hits that are being copied, by when they are done.
    hits: VecDeque<(Time, Io)>,
    fills: usize,
    /// Refused reads whose pages are to be brought in.
    to_fill: VecDeque<IoHead>,
    in_flight: usize,
}

impl<O: EvictionOrder> PageCacheLayer<O> {
    /// A layer with this cache.
    pub fn new(cache: PageCache<O>) -> PageCacheLayer<O> {
        PageCacheLayer { cache, hits: VecDeque::new(), fills: 0, to_fill: VecDeque::new(), in_flight: 0 }
    }

    /// The cache, to fill or to drop from.
    pub fn cache(&mut self) -> &mut PageCache<O> {
        &mut self.cache
    }

    fn pages(head: &IoHead) -> std::ops::Range<u64> {
        head.offset / PAGE..head.end().div_ceil(PAGE)
    }

    fn find(&self, head: &IoHead) -> Found {
        let mut found = Found::InMemory;
        for page in Self::pages(head) {
            match self.cache.residency(page) {
                Residency::Resident => {}
                Residency::SwappedOut => return Found::SwappedOut,
                Residency::NeverRead => found = Found::Unread,
            }
        }
        found
    }

    fn hit_time(&self, head: &IoHead) -> Span {
        let pages = Self::pages(head);
        self.cache.hit_latency(pages.end - pages.start)
    }

    fn bring_in(&mut self, head: &IoHead) {
        Self::pages(head).for_each(|page| {
            self.cache.insert(page);
        });
    }

    fn start_fills(&mut self, out: &mut Actions) {
        while self.fills < FILLS_MAX
            && let Some(head) = self.to_fill.pop_front()
        {
            if self.find(&head) == Found::InMemory {
                continue;
            }
            self.fills += 1;
            let mut io = out.child(&head, Op::Read, head.offset, head.len, 0);
            io.head.origin = Origin::Own(OwnKind::Fill);
            io.head.deadline = Time::NEVER;
            out.submit(0, io);
        }
    }
}

impl<O: EvictionOrder + Send + 'static> Layer for PageCacheLayer<O> {
    fn name(&self) -> &'static str {
        "pagecache"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        if head.op != Op::Read {
            return below.ask(0, at, head);
        }
        match self.find(head) {
            Found::InMemory => below.serve(Span::ZERO, self.hit_time(head), Confidence::CERTAIN),
            Found::SwappedOut => below.ask(0, at, head),
            Found::Unread => {
                let mut f = below.ask(0, at, head);
                // Whatever it waits, it isn't refused for it.
                let most = head.deadline.since(at);
                if head.deadline.is_set() && f.total() > most {
                    f = Forecast { wait: f.wait.min(most), confidence: Confidence::NONE, ..f };
                    f.service = most.saturating_sub(f.wait);
                }
                f
            }
        }
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if io.op == Op::Read && self.find(&io.head) == Found::InMemory {
            Self::pages(&io.head).for_each(|page| {
                self.cache.touch(page);
            });
            let done_at = now + self.hit_time(&io.head);
            let place = self.hits.partition_point(|h| h.0 <= done_at);
            self.hits.insert(place, (done_at, io));
            return out.wake_at(done_at);
        }
        self.in_flight += 1;
        out.submit(0, io);
    }

    fn completed(&mut self, _now: Time, c: Completion, out: &mut Actions) {
        if c.outcome.is_done() && matches!(c.io.op, Op::Read | Op::Write) {
            self.bring_in(&c.io.head);
        }
        if c.io.origin == Origin::Own(OwnKind::Fill) {
            self.fills -= 1;
            return self.start_fills(out);
        }
        self.in_flight -= 1;
        out.complete(c);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        while self.hits.front().is_some_and(|h| h.0 <= now) {
            let (_, io) = self.hits.pop_front().expect("just seen");
            out.done(io, Data::Absent);
        }
        if let Some((at, _)) = self.hits.front() {
            out.wake_at(*at);
        }
    }

    fn refused(&mut self, _now: Time, head: &IoHead, _forecast: &Forecast, out: &mut Actions) {
        if self.to_fill.len() < FILLS_WAITING_MAX {
            self.to_fill.push_back(*head);
        }
        self.start_fills(out);
    }

    fn is_idle(&self) -> bool {
        self.hits.is_empty() && self.fills == 0 && self.to_fill.is_empty() && self.in_flight == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, DiskOptions};
    use crate::layer::ModelLayer;
    use plimsoll_base::{TenantId, VolumeKey};
    use plimsoll_stack::{Offered, Stack, StackConfig, Target};

    const US: fn(u64) -> Span = Span::from_micros;

    /// A disk that says that it takes 5 ms, under a cache of 64 pages.
    struct Says(Span);
    impl Layer for Says {
        fn name(&self) -> &'static str {
            "says"
        }
        fn offer(&self, below: &[Offer]) -> Offer {
            below[0]
        }
        fn forecast(&self, _: Time, _: &IoHead, below: Ports<'_>) -> Forecast {
            below.serve(Span::ZERO, self.0, Confidence::CERTAIN)
        }
        fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
            out.submit(0, io);
        }
        fn is_idle(&self) -> bool {
            true
        }
    }

    fn stack() -> Stack {
        let spec = crate::profile::by_name("hdd-160g-7200").unwrap();
        let disk = Disk::new(&spec, DiskOptions::default()).unwrap();
        let cache: PageCache = PageCache::new(64, 1 << 20, US(2));
        let mut s = Stack::new(StackConfig::default(), vec![]);
        s.push(Box::new(PageCacheLayer::new(cache)), vec![Target::Node(1)]);
        s.push(Box::new(Says(US(5000))), vec![Target::Node(2)]);
        s.push(Box::new(ModelLayer::new(disk)), vec![]);
        s.start(Time::ZERO);
        s
    }

    fn offer(s: &mut Stack, now: Time, page: u64, deadline_us: u64) -> bool {
        let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), page * PAGE, PAGE, now);
        head.deadline = now + US(deadline_us);
        matches!(s.offer(now, Io::new(head, Data::Absent)), Offered::Accepted(_))
    }

    fn settle(s: &mut Stack, mut now: Time) -> Time {
        while s.next_wake().is_set() && !s.is_idle() {
            now = s.next_wake();
            s.wake(now);
            while s.next_done().is_some() {}
        }
        now
    }

    #[test]
    fn busy_is_said_of_swapped_out_pages_only_and_brings_them_in() {
        let mut s = stack();
        assert!(offer(&mut s, Time::ZERO, 7, 100), "a first read is never refused, however short its deadline");
        let now = settle(&mut s, Time::ZERO);
        assert!(offer(&mut s, now, 7, 100), "it's in memory now");
        let now = settle(&mut s, now);
        s.with_layer(now, |l: &mut PageCacheLayer, _| l.cache().drop_page(7)).unwrap();
        assert!(offer(&mut s, now, 8, 100), "another first read");
        let now = settle(&mut s, now);
        assert!(!offer(&mut s, now, 7, 100), "swapped out, and the disk takes 5 ms at least");
        let now = settle(&mut s, now);
        assert!(offer(&mut s, now, 7, 100), "it was brought in in the background");
        let (_, stats) = s.node_stats(0);
        assert_eq!(stats.own_ios, 1, "tagged as the layer's own");
        settle(&mut s, now);
        assert!(s.is_idle());
    }

    #[test]
    fn a_deadline_that_the_disk_can_meet_goes_down() {
        let mut s = stack();
        assert!(offer(&mut s, Time::ZERO, 7, 100));
        let now = settle(&mut s, Time::ZERO);
        s.with_layer(now, |l: &mut PageCacheLayer, _| l.cache().drop_page(7)).unwrap();
        assert!(offer(&mut s, now, 7, 8000), "swapped out, but 5 ms are within 8");
    }
}
