//! The page cache as a layer, and what a read would wait in it (MittOS §4.4: MittCache; MT-M19 to M22).
//!
//! A read whose pages are in memory waits for nothing. One whose pages were swapped out is judged by the forecast of the layers
//! below. So it's refused at once if its deadline is below the smallest possible I/O. Its pages are then brought in in the
//! background, so that the next read finds them in memory (MT-M20). A first read is never refused (MT-M21): it is no sign that
//! memory is short. Lookup and read are one step, so no page is evicted in between (MT-M22): a hit has its bytes from then on.
//!
//! Writes go through, and what they write is in memory once they are done. Changes that overlap come one after the other. A read
//! may overlap a change in flight: a client's read that a layer above widened, or this layer's own background read. The pages
//! that the two share are not kept (see "Overlaps" in `plimsoll_stack::layer`).
//! Pages are whole: the layer offers blocks of one page, so that the front reads the rest of a page that a client writes in
//! part. Where requests carry bytes, so do the pages; a simulation of timing alone carries none.

#![expect(
    clippy::disallowed_types,
    reason = "its maps have a hasher without a seed, and nothing depends on their order"
)]

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use plimsoll_base::{
    Buf, BufMut, Completion, Confidence, Data, Io, IoHead, IoId, Op, Origin, Outcome, OwnKind, Span, Time,
};
use plimsoll_stack::layer::CHECKED_EACH_MAX;
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Port, Ports};

use super::{EvictionOrder, Lru, PageCache, PageHasher, Residency};

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Background reads under way at most, and waiting for that at most.
const FILLS_MAX: usize = 16;
const FILLS_WAITING_MAX: usize = 1024;

/// State of a range's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    InMemory,
    SwappedOut,
    /// None was swapped out, but some were never read.
    Unread,
}

/// A change that is in flight below, by where it starts: changes in flight never overlap.
struct Change {
    id: IoId,
    end: u64,
    /// Data that it writes; nothing for a change that isn't kept in memory.
    data: Option<Data>,
}

/// A background read that is under way.
struct Fill {
    id: IoId,
    start: u64,
    end: u64,
    /// Something in its range was changed since it began: what it brings may be what was there before.
    stale: bool,
}

/// A page that client reads in flight will bring.
#[derive(Clone, Copy, Default)]
struct Reading {
    reads: u32,
    /// A change of the page was in flight with one of them: they may bring what was there before it.
    stale: bool,
}

/// Mistakes to plant, each of which a test's oracle must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// Keep what a read brings though a change of the same page was in flight.
    KeepOverlapped,
    /// Look again for a hit's pages when it ends: what was evicted meanwhile is read from below.
    LookTwice,
}

/// See the module's documentation.
pub struct PageCacheLayer<O: EvictionOrder = Lru> {
    cache: PageCache<O>,
    /// The resident pages' bytes, where there are any.
    bytes: HashMap<u64, Buf, BuildHasherDefault<PageHasher>>,
    /// Hits that are being copied, by when they are done.
    hits: VecDeque<(Time, Io)>,
    changes: BTreeMap<u64, Change>,
    reading: HashMap<u64, Reading, BuildHasherDefault<PageHasher>>,
    fills: Vec<Fill>,
    /// First reads under way, which no layer below may give back for being late, and their deadlines.
    first_reads: BTreeMap<IoId, Time>,
    /// Refused reads whose pages are to be brought in.
    to_fill: VecDeque<IoHead>,
    /// Their pages, from and to: each waits once, however often it's refused.
    waiting_to_fill: BTreeSet<(u64, u64)>,
    in_flight: usize,
    found: CacheCounts,
    planted: Option<Planted>,
}

/// Counters since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct CacheCounts {
    /// Reads answered from memory.
    pub hits: u64,
    /// Reads that went below.
    pub misses: u64,
    /// Pages in memory.
    pub resident: u64,
    /// Background reads after a refusal.
    pub fills: u64,
    /// Refused reads whose pages weren't brought in, since too many others waited for that.
    pub fills_dropped: u64,
}

impl<O: EvictionOrder> PageCacheLayer<O> {
    /// A layer with this cache.
    pub fn new(cache: PageCache<O>) -> PageCacheLayer<O> {
        PageCacheLayer {
            cache,
            bytes: HashMap::default(),
            hits: VecDeque::new(),
            changes: BTreeMap::new(),
            reading: HashMap::default(),
            fills: Vec::new(),
            first_reads: BTreeMap::new(),
            to_fill: VecDeque::new(),
            waiting_to_fill: BTreeSet::new(),
            in_flight: 0,
            found: CacheCounts::default(),
            planted: None,
        }
    }

    /// Makes this mistake from now on.
    pub fn plant(&mut self, mistake: Planted) {
        self.planted = Some(mistake);
    }

    /// The cache, to fill or to drop from.
    pub fn cache(&mut self) -> &mut PageCache<O> {
        &mut self.cache
    }

    /// Returns the counters since the start.
    pub fn counts(&self) -> CacheCounts {
        CacheCounts { resident: u64::from(self.cache.resident()), ..self.found }
    }

    /// Pages that a request touches.
    fn pages(head: &IoHead) -> std::ops::Range<u64> {
        head.offset / PAGE..head.end().div_ceil(PAGE)
    }

    fn find(&self, head: &IoHead) -> Found {
        if head.end() > self.cache.file_pages() * PAGE {
            return Found::Unread; // what is below says what is wrong with it
        }
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

    /// Copies the range out of memory; nothing in a simulation without bytes.
    fn copy_out(&self, head: &IoHead) -> Data {
        let mut out = BufMut::zeroed(head.len as usize);
        for page in Self::pages(head) {
            let Some(bytes) = self.bytes.get(&page) else { return Data::Absent };
            let (from, to) = (head.offset.max(page * PAGE), head.end().min((page + 1) * PAGE));
            let into = &mut out.as_mut_slice()[(from - head.offset) as usize..(to - head.offset) as usize];
            into.copy_from_slice(&bytes.as_slice()[(from % PAGE) as usize..][..into.len()]);
        }
        Data::Bytes(out.freeze())
    }

    /// Pages that a request covers whole.
    fn whole_pages(&self, head: &IoHead) -> std::ops::Range<u64> {
        head.offset.div_ceil(PAGE)..(head.end() / PAGE).min(self.cache.file_pages())
    }

    /// Keeps the whole pages of a range that was read or written.
    fn bring_in(&mut self, head: &IoHead, data: &Data) {
        self.whole_pages(head).for_each(|page| self.keep(head, data, page));
    }

    /// Keeps one page of what was read or written.
    fn keep(&mut self, head: &IoHead, data: &Data, page: u64) {
        if let Some(evicted) = self.cache.insert(page) {
            self.bytes.remove(&evicted);
        }
        if matches!(data, Data::Absent) {
            self.bytes.remove(&page);
            return;
        }
        // A copy of its own: a part of a large read would keep all of it in memory.
        let mut copy = BufMut::zeroed(PAGE as usize);
        data.slice(head.len, page * PAGE - head.offset, PAGE).copy_to(copy.as_mut_slice());
        self.bytes.insert(page, copy.freeze());
    }

    /// True if a change that touches `start..end` is in flight. Changes don't overlap, so only the last one that starts before
    /// `end` is compared.
    fn is_changing(&self, start: u64, end: u64) -> bool {
        self.changes.range(..end).next_back().is_some_and(|(_, c)| c.end > start)
    }

    /// A client's read goes below: notes which pages it will bring, and which of them are being changed.
    fn begin_read(&mut self, head: &IoHead) {
        for page in self.whole_pages(head) {
            let stale = self.is_changing(page * PAGE, (page + 1) * PAGE);
            let r = self.reading.entry(page).or_default();
            r.reads += 1;
            r.stale |= stale;
        }
    }

    /// A client's read has ended: keeps the pages that it brought, but for those that were changed meanwhile.
    fn end_read(&mut self, c: &Completion) {
        for page in self.whole_pages(&c.io.head) {
            let Some(r) = self.reading.get_mut(&page) else { continue };
            r.reads -= 1;
            let Reading { reads, stale } = *r;
            if reads == 0 {
                self.reading.remove(&page);
            }
            if c.outcome.is_done() && (!stale || self.planted == Some(Planted::KeepOverlapped)) {
                self.keep(&c.io.head, &c.io.data, page);
            }
        }
    }

    /// A change goes below: what memory has of its range is true no more.
    fn begin_change(&mut self, io: &Io) {
        // A large range is mostly not in memory, but each page of it must be asked: nothing remembers ranges.
        let pages = Self::pages(&io.head);
        for page in pages.start..pages.end.min(self.cache.file_pages()) {
            self.cache.drop_page(page);
            self.bytes.remove(&page);
            if let Some(r) = self.reading.get_mut(&page) {
                r.stale = true;
            }
        }
        let (start, end) = (io.offset, io.end());
        self.fills.iter_mut().filter(|f| f.start < end && start < f.end).for_each(|f| f.stale = true);
        let data = (io.op == Op::Write).then(|| io.data.clone());
        self.changes.insert(start, Change { id: io.id, end, data });
    }

    fn start_fills(&mut self, out: &mut Actions) {
        while self.fills.len() < FILLS_MAX
            && let Some(mut head) = self.to_fill.pop_front()
        {
            let pages = Self::pages(&head);
            self.waiting_to_fill.remove(&(pages.start, pages.end));
            let most = self.cache.file_pages() * PAGE;
            (head.offset, head.len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
            let (start, end) = (head.offset, head.end());
            let changing = self.is_changing(start, end);
            let known = self.fills.iter().any(|f| f.start <= start && end <= f.end);
            if changing || known || end > most || self.find(&head) == Found::InMemory {
                continue;
            }
            self.found.fills += 1;
            let mut io = out.child(&head, Op::Read, head.offset, head.len, 0);
            io.head.origin = Origin::Own(OwnKind::Fill);
            io.head.deadline = Time::NEVER;
            self.fills.push(Fill { id: io.id, start, end, stale: false });
            out.submit(0, io);
        }
    }

    fn filled(&mut self, c: &Completion, out: &mut Actions) {
        let at = self.fills.iter().position(|f| f.id == c.io.id).expect("it was begun here");
        let fill = self.fills.swap_remove(at);
        if c.outcome.is_done() && !fill.stale {
            self.bring_in(&c.io.head, &c.io.data);
        }
        self.start_fills(out);
    }

    /// The pages of a refused read are to come in, if they aren't about to.
    fn want(&mut self, head: &IoHead) {
        let pages = Self::pages(head);
        let (start, end) = (pages.start * PAGE, pages.end * PAGE);
        let comes = self.fills.iter().any(|f| !f.stale && f.start <= start && end <= f.end);
        if comes || self.waiting_to_fill.contains(&(pages.start, pages.end)) {
            return;
        }
        if self.to_fill.len() == FILLS_WAITING_MAX {
            self.found.fills_dropped += 1;
            return;
        }
        self.waiting_to_fill.insert((pages.start, pages.end));
        self.to_fill.push_back(*head);
    }
}

impl<O: EvictionOrder + Send + 'static> Layer for PageCacheLayer<O> {
    fn name(&self) -> &'static str {
        "pagecache"
    }

    /// Drops all pages: writes since the last successful flush may be gone from the device, and must not survive in memory
    /// only.
    fn durability_lost(&mut self, _now: Time, _port: Port) -> bool {
        self.cache.drop_fraction(1000, 0);
        self.bytes.clear();
        self.fills.iter_mut().for_each(|f| f.stale = true);
        self.reading.values_mut().for_each(|r| r.stale = true);
        true
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { block_bytes: below[0].block_bytes.max(PAGE as u32), ..below[0] }
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        if head.op != Op::Read {
            return below.ask(0, at, head);
        }
        match self.find(head) {
            Found::InMemory => below.serve(Span::ZERO, self.hit_time(head), Confidence::CERTAIN),
            Found::SwappedOut => below.ask(0, at, head),
            Found::Unread => Forecast { never_refused: true, ..below.ask(0, at, head) },
        }
    }

    fn submit(&mut self, now: Time, mut io: Io, out: &mut Actions) {
        if io.op == Op::Read {
            let found = self.find(&io.head);
            if found == Found::InMemory {
                self.found.hits += 1;
                Self::pages(&io.head).for_each(|page| {
                    self.cache.touch(page);
                });
                let data = self.copy_out(&io.head);
                let took = self.hit_time(&io.head);
                if took == Span::ZERO {
                    return out.done(io, data);
                }
                io.data = data;
                let done_at = now + took;
                let place = self.hits.partition_point(|h| h.0 <= done_at);
                self.hits.insert(place, (done_at, io));
                return out.wake_at(done_at);
            }
            self.found.misses += 1;
            self.begin_read(&io.head);
            if found == Found::Unread && io.deadline.is_set() {
                // Not refused, so not given back later either (MT-M21).
                self.first_reads.insert(io.id, io.deadline);
                io.head.deadline = Time::NEVER;
            }
        } else if io.op.is_change() {
            self.begin_change(&io);
        }
        self.in_flight += 1;
        out.submit(0, io);
    }

    fn completed(&mut self, _now: Time, mut c: Completion, out: &mut Actions) {
        if c.io.origin == Origin::Own(OwnKind::Fill) && self.fills.iter().any(|f| f.id == c.io.id) {
            return self.filled(&c, out);
        }
        if !self.first_reads.is_empty()
            && let Some(deadline) = self.first_reads.remove(&c.io.id)
        {
            c.io.head.deadline = deadline;
        }
        if c.io.op.is_change()
            && self.changes.get(&c.io.offset).is_some_and(|change| change.id == c.io.id)
            && let Some(Change { data: Some(data), .. }) = self.changes.remove(&c.io.offset)
            && c.outcome.is_done()
        {
            self.bring_in(&c.io.head, &data);
        } else if c.io.op == Op::Read {
            self.end_read(&c);
            // Given back after it was accepted: its pages come in all the same.
            if let Outcome::Busy { .. } = c.outcome {
                self.want(&c.io.head);
                self.start_fills(out);
            }
        }
        self.in_flight -= 1;
        out.complete(c);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        while self.hits.front().is_some_and(|h| h.0 <= now) {
            let (_, mut io) = self.hits.pop_front().expect("just seen");
            if self.planted == Some(Planted::LookTwice) && self.find(&io.head) != Found::InMemory {
                self.begin_read(&io.head);
                self.in_flight += 1;
                out.submit(0, io);
                continue;
            }
            let data = std::mem::take(&mut io.data);
            out.done(io, data);
        }
        if let Some((at, _)) = self.hits.front() {
            out.wake_at(*at);
        }
    }

    fn declared(&mut self, head: &IoHead, out: &mut Actions) {
        if head.op != Op::Read || self.find(head) != Found::InMemory {
            out.declare(0, *head);
        }
    }

    fn refused(&mut self, _now: Time, head: &IoHead, _forecast: &Forecast, out: &mut Actions) {
        if head.op == Op::Read && head.len > 0 {
            self.want(head);
            self.start_fills(out);
        }
    }

    fn is_idle(&self) -> bool {
        self.hits.is_empty() && self.fills.is_empty() && self.to_fill.is_empty() && self.in_flight == 0
    }

    fn check(&self) {
        assert_eq!(
            self.to_fill.len(),
            self.waiting_to_fill.len(),
            "a range waits twice to be brought in, or is forgotten"
        );
        assert!(self.fills.len() <= FILLS_MAX && self.to_fill.len() <= FILLS_WAITING_MAX, "too many background reads");
        assert!(
            self.to_fill.is_empty() || self.fills.len() == FILLS_MAX,
            "a background read waits though there is room"
        );
        assert!(self.changes.len() + self.first_reads.len() <= self.in_flight, "what has ended is still kept");
        if self.changes.len() > CHECKED_EACH_MAX || self.reading.len() > CHECKED_EACH_MAX {
            return;
        }
        let overlaps = self.changes.values().zip(self.changes.keys().skip(1)).find(|(a, next)| a.end > **next);
        assert!(overlaps.is_none(), "two changes of the same bytes are in flight");
        assert!(self.reading.values().all(|r| r.reads > 0), "a page is kept for reads that have ended");
    }
}

#[cfg(test)]
mod tests;
