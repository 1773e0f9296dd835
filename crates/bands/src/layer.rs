//! The layer: the path of each request.
//!
//! ```text
//!  read ──► each piece from its free zone, from the buffer, or from its band's zone ──► done
//!  change ──► free zones: passed on; bands: into the buffer, if it has room, else it waits ──► done (durable ones: as a flush)
//!  flush ──► every band with older changes is copied (see rewrite) ──► flush below ──► done
//! ```

use crate::config::{BandsConfig, Planted};
use crate::map::{self, Map};
use crate::pieces::{Buffer, Pieces};
use crate::rewrite::{Rewrite, Step};
use crate::shape::{Place, Places};
use plimsoll_base::{
    Completion, Data, Io, IoError, IoFlags, IoHead, Op, Origin, Outcome, OwnKind, Span, StatusExtent, Time, VolumeKey,
};
use plimsoll_stack::layer::CHECKED_EACH_MAX;
use plimsoll_stack::{Actions, Forecast, Layer, LayerState, Offer, Ports};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Runs in the buffer at most, beside those of one request: zeroes take no bytes of it.
const PIECES_MAX: usize = 65_536;

/// Pieces of a read that a forecast looks at.
const FORECAST_PIECES: usize = 4;
/// Runs that are dropped at once.
const DROPPED_AT_ONCE: usize = 1024;

/// The stage of the layer's life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Recovering,
    Ready,
    /// The map's write failed: which of two maps a start would find is unknown, so no zone may be used again.
    Stuck(&'static str),
    Failed(String),
}

/// Counts since the start.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Counters {
    /// Bands copied.
    pub copied: u64,
    /// Bands that became zeroes, without a copy.
    pub zeroed: u64,
    /// Copies that came to nothing.
    pub failed: u64,
    /// Time of all copies, from the first request to the map.
    pub copy_time: Span,
    /// The longest.
    pub copy_longest: Span,
    /// Bytes read and written by copies.
    pub copy_bytes: u64,
    /// Changes that waited for room in the buffer.
    pub waited: u64,
    /// Copies of the map that a start found corrupt or older and wrote again.
    pub repaired: u64,
}

/// State of the bands.
#[derive(Clone, Debug)]
pub struct BandsStatus {
    /// The problem, if there is one.
    pub problem: Option<String>,
    /// Number of bands, and of those that have a zone.
    pub bands: (u32, u32),
    /// Zones without a band.
    pub spares: u32,
    /// Bytes in the buffer.
    pub buffered_bytes: u64,
    /// The band being copied.
    pub copying: Option<u32>,
    /// Since the start.
    pub counters: Counters,
}

/// A place of a band that can't be read, by its address among all bands' bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BadPlace {
    pub at: u64,
    pub len: u64,
    /// Until then changes of the band fail that don't cover the place: the device may have been away for a moment only.
    pub until: Time,
    /// Copies that it has ended in a row.
    pub tries: u32,
}

/// Something sent below.
pub(crate) enum Pending {
    /// A request of the layer above, whole; the shingled zone that it reads.
    One { head: IoHead, zone: Option<u32> },
    /// One in pieces.
    Split(Box<Split>),
    /// The copy's.
    Own(Step),
    /// A start's read of a copy of the map, the flush before its repair, or that.
    Recovery(usize),
}

pub(crate) struct Split {
    head: IoHead,
    /// Length of each piece, the zone that it's read from, and its answer.
    pieces: Vec<(u64, Option<u32>, Data)>,
    outstanding: usize,
    outcome: Outcome,
    dispatched_at: Time,
    /// Parts of a change that go into the buffer when the rest has ended.
    buffered: Vec<(u64, u64, Data)>,
}

/// A device address, with the zone if it's a shingled one, or data that are known already.
type Stored = Result<(u64, Option<u32>), Data>;

/// A request that is done when all changes before `limit` are, copies excepted unless `copies`.
struct Waiter {
    io: Io,
    limit: u64,
    copies: bool,
}

/// True if a request moves or settles copies of data that the layer above has elsewhere. They may wait: nobody misses them at a power
/// loss before a flush of the same kind has ended.
fn is_of_copies(head: &IoHead) -> bool {
    head.origin == Origin::Own(OwnKind::Checkpoint)
}

/// See the module's documentation.
pub struct Bands {
    pub(crate) places: Places,
    pub(crate) config: BandsConfig,
    pub(crate) life: Life,
    pub(crate) map: Map,
    /// Bands with a zone.
    pub(crate) with_zone: u32,
    /// Zones without a band.
    pub(crate) spare: BTreeSet<u32>,
    /// Requests that read a shingled zone.
    pub(crate) readers: BTreeMap<u32, u32>,
    pub(crate) dirty: Buffer,
    /// Changes that are in their zones, and are dropped a part at a time.
    pub(crate) spent: Vec<Pieces>,
    pub(crate) rewrite: Option<Rewrite>,
    /// Requests that wait for all changes but copies, then those that wait for copies, too.
    waiters: [VecDeque<Waiter>; 2],
    /// Changes that wait for room in the buffer.
    pub(crate) held: VecDeque<Io>,
    pub(crate) ops: Slab<Pending>,
    next_sequence: u64,
    /// Requests of clients, or made for them, that are below: all but copies and their flushes.
    pub(crate) clients_below: u32,
    /// The time at which one of them last came or ended.
    pub(crate) client_at: Time,
    pub(crate) stepped_at: Time,
    /// The pool ends: all changes in the buffer are to be in their zones soon.
    pub(crate) draining: bool,
    /// A copy failed since the last change, and others would: what is in the buffer may stay there.
    pub(crate) gave_up: bool,
    /// The order number behind the newest copy that came into the buffer.
    copied_until: u64,
    /// Copies were dropped, and no flush has failed for it. The next one does: the layer above forgets what it calls durable.
    copies_dropped: bool,
    /// Bands that can't be copied, as a place of theirs can't be read.
    pub(crate) bad: BTreeMap<u32, BadPlace>,
    /// Spare zones that a copy failed to write, and how often.
    pub(crate) suspect: BTreeMap<u32, u32>,
    found: [Option<Map>; 2],
    /// The version of a copy that a later program wrote.
    later: Option<u32>,
    recovering: usize,
    pub(crate) counters: Counters,
}

impl Bands {
    /// A layer over a formatted device, whose map it reads before it serves.
    pub fn new(places: Places, config: BandsConfig) -> Bands {
        Bands {
            places,
            config,
            life: Life::Recovering,
            map: Map::empty(&places),
            with_zone: 0,
            spare: BTreeSet::new(),
            readers: BTreeMap::new(),
            dirty: Buffer::new(places.shape.zone_bytes),
            spent: Vec::new(),
            rewrite: None,
            waiters: Default::default(),
            held: VecDeque::new(),
            ops: Slab::new(),
            next_sequence: 1,
            clients_below: 0,
            client_at: Time::ZERO,
            stepped_at: Time::ZERO,
            draining: false,
            gave_up: false,
            copied_until: 0,
            copies_dropped: false,
            bad: BTreeMap::new(),
            suspect: BTreeMap::new(),
            found: [None, None],
            later: None,
            recovering: 0,
            counters: Counters::default(),
        }
    }

    /// A layer over a device whose bands are all full of data, spares spread among them: there is nothing to read. For simulations.
    pub fn full(places: Places, config: BandsConfig) -> Bands {
        let mut b = Bands::new(places, config);
        let every = places.zones / places.shape.spares;
        let is_spare = |z: &u32| z % every == every / 2 && z / every < places.shape.spares;
        let (spare, taken): (Vec<u32>, Vec<u32>) = (0..places.zones).partition(is_spare);
        b.with_zone = taken.len() as u32;
        b.map.zones = taken.into_iter().map(Some).collect();
        b.spare = spare.into_iter().collect();
        b.life = Life::Ready;
        b
    }

    /// True if the configuration plants this mistake (for tests).
    pub(crate) fn has(&self, planted: Planted) -> bool {
        self.config.planted == Some(planted)
    }

    /// Places of everything on the device.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// Returns the counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns their state.
    pub fn status(&self) -> BandsStatus {
        BandsStatus {
            problem: self.problem(),
            bands: (self.places.bands, self.with_zone),
            spares: self.spare.len() as u32,
            buffered_bytes: self.dirty.bytes() + self.rewrite.as_ref().map_or(0, |r| r.frozen.bytes()),
            copying: self.rewrite.as_ref().map(|r| r.band),
            counters: self.counters,
        }
    }

    /// Returns why it doesn't serve, or not all.
    pub fn problem(&self) -> Option<String> {
        match &self.life {
            Life::Recovering => None,
            Life::Stuck(why) => Some((*why).into()),
            Life::Failed(why) => Some(why.clone()),
            Life::Ready => self.trouble(),
        }
    }

    /// Faults of a layer that serves.
    fn trouble(&self) -> Option<String> {
        let zone = self.places.shape.zone_bytes;
        let mut found = Vec::new();
        let mut bad = self.bad.iter().filter(|(band, _)| self.is_bad(**band));
        if let Some((band, place)) = bad.next() {
            let device = self.on_device(place.at).map_or(0, |d| d.0);
            let others = bad.count();
            let more = if others == 0 { String::new() } else { format!(", and places of {others} other bands") };
            found.push(format!(
                "band {band} can't be read at its byte {} (byte {device} of the layers' part of the device){more}: what is durable only in a copy of it \
                 fails until that place is written over",
                place.at % zone
            ));
        }
        if !self.suspect.is_empty() {
            found.push(format!("{} spare zones couldn't be written; others are taken first", self.suspect.len()));
        }
        if self.dirty.has_clients() && (self.gave_up || !found.is_empty()) {
            found.push(
                "changes of clients wait in memory for a copy that failed: they are lost if the node ends".into(),
            );
        }
        (!found.is_empty()).then(|| found.join("; "))
    }

    /// True if a band can't be copied: the changes in the buffer don't cover the place that can't be read.
    pub(crate) fn is_bad(&self, band: u32) -> bool {
        let covers = |b: &BadPlace| self.dirty.over(b.at, b.at + b.len).all(|(.., data)| data.is_some());
        self.bad.get(&band).is_some_and(|b| !covers(b))
    }

    /// True if a band's copy isn't to be tried now.
    pub(crate) fn is_barred(&self, now: Time, band: u32) -> bool {
        self.bad.get(&band).is_some_and(|b| now < b.until) && self.is_bad(band)
    }

    /// True if the pool ends without a band's changes: its copy was tried again at the end, and failed.
    pub(crate) fn is_left(&self, band: u32) -> bool {
        self.bad.get(&band).is_some_and(|b| b.until != Time::ZERO) && self.is_bad(band)
    }

    /// True if a change of a band fails at once: it doesn't cover the rest of a place that can't be read.
    fn is_refused(&self, now: Time, at: u64, len: u64) -> bool {
        let band = (at / self.places.shape.zone_bytes) as u32;
        // Its copy is being tried again.
        if self.bad.is_empty() || self.rewrite.as_ref().is_some_and(|r| r.band == band) {
            return false;
        }
        let Some(b) = self.bad.get(&band).filter(|b| now < b.until) else { return false };
        let is_new = |from: u64, n: u64| at <= from && from + n <= at + len;
        // The parts of the place that are in the buffer, or in this change.
        let cut = [b.at, at.clamp(b.at, b.at + b.len), (at + len).clamp(b.at, b.at + b.len), b.at + b.len];
        cut.windows(2)
            .filter(|w| w[0] < w[1])
            .any(|w| !is_new(w[0], w[1] - w[0]) && self.dirty.over(w[0], w[1]).any(|(.., data)| data.is_none()))
    }

    /// A request of the layer's own.
    pub(crate) fn send_own(&mut self, now: Time, op: Op, at: u64, len: u64, what: Pending, out: &mut Actions) -> Io {
        let kind = if matches!(what, Pending::Recovery(_)) { OwnKind::Recovery } else { OwnKind::Checkpoint };
        let mut head = IoHead::new(op, VolumeKey::POOL, Default::default(), at, len, now);
        head.id = out.new_id();
        head.origin = Origin::Own(kind);
        head.tag = self.ops.insert(what) as u64;
        Io::new(head, Data::Absent)
    }

    /// Device address of a band's byte, and its zone.
    fn on_device(&self, at: u64) -> Option<(u64, u32)> {
        let zone = self.map.zones[(at / self.places.shape.zone_bytes) as usize]?;
        Some((self.places.zone_at(zone) + at % self.places.shape.zone_bytes, zone))
    }

    /// A read's pieces: the length of each, and where it is. About `most` of them, if it has more.
    fn segments(&self, from: u64, to: u64, most: usize) -> Vec<(u64, Stored)> {
        let mut found = Vec::new();
        for place in self.places.of(from, to) {
            if found.len() >= most {
                break;
            }
            let (at, len) = match place {
                Place::Free { at, len } => {
                    found.push((len, Ok((at, None))));
                    continue;
                }
                Place::Band { at, len } => (at, len),
            };
            for (at, len, newest) in self.dirty.over(at, at + len).take(most) {
                let frozen = self.rewrite.as_ref().filter(|_| !self.has(Planted::FrozenUnread));
                match (newest, frozen) {
                    (Some(data), _) => found.push((len, Err(data))),
                    (None, Some(r)) => {
                        for (at, len, data) in r.frozen.over(at, at + len).take(most) {
                            found.push((len, self.stored(at, data)));
                        }
                    }
                    (None, None) => found.push((len, self.stored(at, None))),
                }
            }
        }
        found
    }

    fn stored(&self, at: u64, held: Option<Data>) -> Stored {
        match (held, self.on_device(at)) {
            (Some(data), _) => Err(data),
            (None, Some((device, zone))) => Ok((device, Some(zone))),
            (None, None) => Err(Data::Zeroes),
        }
    }

    fn read(&mut self, io: Io, out: &mut Actions) {
        let segments = self.segments(io.offset, io.end(), usize::MAX);
        if let [(_, Ok((at, zone)))] = segments[..] {
            return self.pass(io, at, zone, out);
        }
        let outstanding = segments.iter().filter(|s| s.1.is_ok()).count();
        if outstanding == 0 {
            let parts: Vec<(u64, Data)> = segments.into_iter().map(|(n, d)| (n, d.expect_err("known"))).collect();
            return out.done(io, Data::Parts(parts.into()));
        }
        let op = self.ops.vacant_key() as u64;
        let mut pieces = Vec::with_capacity(segments.len());
        for (i, (len, what)) in segments.into_iter().enumerate() {
            pieces.push(match what {
                Ok((at, zone)) => {
                    self.reads(zone);
                    let piece = out_piece(out, &io, at, len, op, i);
                    out.submit(0, piece);
                    (len, zone, Data::Absent)
                }
                Err(data) => (len, None, data),
            });
        }
        self.split(io.head, pieces, outstanding, Vec::new());
    }

    fn split(
        &mut self,
        head: IoHead,
        pieces: Vec<(u64, Option<u32>, Data)>,
        outstanding: usize,
        buffered: Vec<(u64, u64, Data)>,
    ) {
        self.clients_below += u32::from(!is_of_copies(&head));
        let (outcome, dispatched_at) = (Outcome::Done, Time::NEVER);
        let split = Split { head, pieces, outstanding, outcome, dispatched_at, buffered };
        self.ops.insert(Pending::Split(Box::new(split)));
    }

    fn reads(&mut self, zone: Option<u32>) {
        if let Some(z) = zone {
            *self.readers.entry(z).or_default() += 1;
        }
    }

    fn has_read(&mut self, zone: Option<u32>) {
        let Some(z) = zone else { return };
        if let Some(n) = self.readers.get_mut(&z) {
            *n -= 1;
            if *n == 0 {
                self.readers.remove(&z);
            }
        }
    }

    fn pass(&mut self, mut io: Io, at: u64, zone: Option<u32>, out: &mut Actions) {
        self.clients_below += u32::from(!is_of_copies(&io.head));
        self.reads(zone);
        io.head.tag = self.ops.insert(Pending::One { head: io.head, zone }) as u64;
        io.head.offset = at;
        out.submit(0, io);
    }

    fn change(&mut self, now: Time, io: Io, out: &mut Actions) {
        let of_bands = |p: &Place| matches!(p, Place::Band { .. });
        let bytes: u64 = self.places.of(io.offset, io.end()).filter(of_bands).map(|p| p.len()).sum();
        if bytes == 0 {
            self.change_parts(io, out);
            return;
        }
        if matches!(self.life, Life::Stuck(_)) {
            return out.end(io, Outcome::Failed(IoError::Device));
        }
        let refused = |p: Place| matches!(p, Place::Band { at, len } if self.is_refused(now, at, len));
        if self.places.of(io.offset, io.end()).any(refused) {
            return out.end(io, Outcome::Failed(IoError::Device));
        }
        if !self.held.is_empty() || !self.has_room(&io) {
            self.counters.waited += 1;
            self.held.push_back(io);
            return self.work(now, out);
        }
        if self.change_parts(io, out) {
            self.work(now, out);
        }
    }

    /// True if the buffer has room for this change. Zeroes take no bytes of it. An empty buffer takes a change of any length.
    fn has_room(&self, io: &Io) -> bool {
        let bytes = if io.op == Op::Write { io.len } else { 0 };
        let (frozen, runs) = self.rewrite.as_ref().map_or((0, 0), |r| (r.frozen.bytes(), r.frozen.len()));
        let all = self.dirty.bytes() + frozen;
        let fits = all == 0 || all + bytes <= self.config.buffer_bytes;
        fits && self.dirty.len() + runs < PIECES_MAX
    }

    /// Sends what goes to free zones, and keeps what goes to bands. True if the change is in the buffer now.
    fn change_parts(&mut self, io: Io, out: &mut Actions) -> bool {
        let places: Vec<Place> = self.places.of(io.offset, io.end()).collect();
        if let [Place::Free { at, .. }] = places[..] {
            self.pass(io, at, None, out);
            return false;
        }
        let zeroes = io.op != Op::Write;
        let op = self.ops.vacant_key() as u64;
        let (mut pieces, mut buffered, mut covered) = (Vec::new(), Vec::new(), 0);
        for place in places {
            match place {
                Place::Free { at, len } => {
                    let mut child = out_piece(out, &io, at, len, op, pieces.len());
                    child.data = io.data.slice(io.len, covered, len);
                    out.submit(0, child);
                    pieces.push((len, None, Data::Absent));
                }
                Place::Band { at, len } => {
                    let data = if zeroes { Data::Zeroes } else { io.data.slice(io.len, covered, len) };
                    buffered.push((at, len, data));
                }
            }
            covered += place.len();
        }
        if pieces.is_empty() {
            self.buffer(io, buffered, out);
            return true;
        }
        let outstanding = pieces.len();
        self.split(io.head, pieces, outstanding, buffered);
        false
    }

    fn buffer(&mut self, io: Io, parts: Vec<(u64, u64, Data)>, out: &mut Actions) {
        let forgotten = io.op == Op::Trim && self.has(Planted::TrimForgotten);
        let is_copy = is_of_copies(&io.head) || self.has(Planted::ClientTakenForCopy);
        self.gave_up = false;
        for (at, len, data) in parts.into_iter().filter(|_| !forgotten) {
            self.dirty.put(at, len, data, self.next_sequence, is_copy);
            self.next_sequence += 1;
        }
        if is_copy {
            self.copied_until = self.next_sequence;
        }
        if io.flags.has(IoFlags::FUA) && !self.has(Planted::FuaBuffered) {
            let limit = self.next_sequence;
            self.waiters[usize::from(is_copy)].push_back(Waiter { io, limit, copies: is_copy });
            return;
        }
        out.done(io, Data::Absent);
    }

    /// The order number before which all changes are in their zones, copies excepted unless `copies`.
    fn settled(&self, copies: bool) -> u64 {
        let frozen = self.rewrite.as_ref().map_or(u64::MAX, |r| r.frozen.first(copies));
        self.dirty.first(copies).min(frozen)
    }

    /// Returns the first band with changes that a request waits for: clients' before copies.
    pub(crate) fn wanted_by_waiters(&self) -> Option<u32> {
        self.waiters.iter().filter_map(VecDeque::front).find_map(|w| self.dirty.before(w.limit, w.copies))
    }

    /// True if clients wait for a copy, or will: for a flush or durable write of theirs, for room, or because changes of theirs are in the buffer.
    /// Logs above send some only when they are full.
    pub(crate) fn clients_wait(&self) -> bool {
        let held = self.dirty.has_clients() || self.rewrite.as_ref().is_some_and(|r| r.frozen.has_clients());
        held || !self.held.is_empty() || !self.waiters[0].is_empty()
    }

    fn flush(&mut self, now: Time, io: Io, out: &mut Actions) {
        let limit = if self.has(Planted::FlushNotAwaited) { 0 } else { self.next_sequence };
        let copies = is_of_copies(&io.head) && !self.has(Planted::CopiesNotAwaited);
        if copies && std::mem::take(&mut self.copies_dropped) {
            out.end(io, Outcome::Failed(IoError::Device));
            return self.work(now, out);
        }
        self.waiters[usize::from(copies)].push_back(Waiter { io, limit, copies });
        self.work(now, out);
    }

    /// Performs the layer's work beside single requests: ends flushes that were waited for, and rewrites bands.
    pub(crate) fn work(&mut self, now: Time, out: &mut Actions) {
        self.drop_spent(now, out);
        loop {
            while self.held.front().is_some_and(|io| self.has_room(io)) {
                let io = self.held.pop_front().expect("just looked");
                self.change_parts(io, out);
            }
            self.end_waiters(out);
            if !self.step(now, out) {
                return;
            }
        }
    }

    /// Ends flushes and durable changes that were waited for.
    fn end_waiters(&mut self, out: &mut Actions) {
        for copies in [false, true] {
            let (queue, settled) = (usize::from(copies), self.settled(copies));
            while let Some(w) = self.waiters[queue].pop_front_if(|w| settled >= w.limit) {
                if w.io.op != Op::Flush || self.has(Planted::FlushNotPassed) {
                    out.done(w.io, Data::Absent);
                } else {
                    self.pass(w.io, 0, None, out);
                }
            }
        }
    }

    /// Drops a part of the changes that are in their zones: all at once would hold up clients.
    fn drop_spent(&mut self, now: Time, out: &mut Actions) {
        let Some(pieces) = self.spent.last_mut() else { return };
        pieces.forget(DROPPED_AT_ONCE);
        if pieces.len() == 0 {
            self.spent.pop();
        }
        if !self.spent.is_empty() {
            out.wake_at(now);
        }
    }

    /// No change will get to its zone: who waits for one hears so.
    pub(crate) fn fail_waiting(&mut self, error: IoError, out: &mut Actions) {
        for w in self.waiters.iter_mut().flat_map(|w| w.drain(..)) {
            out.end(w.io, Outcome::Failed(error));
        }
        self.fail_held(if error == IoError::FlushFailed { IoError::Device } else { error }, out);
    }

    /// There will be no room.
    pub(crate) fn fail_held(&mut self, error: IoError, out: &mut Actions) {
        for io in self.held.drain(..) {
            out.end(io, Outcome::Failed(error));
        }
    }

    /// Fails what waits for a band that can't be copied, and drops its copies: the layer above has their data.
    pub(crate) fn fail_band(&mut self, band: u32, out: &mut Actions) {
        let (first, has_dropped) = self.dirty.drop_copies(band);
        let mut told_until = 0;
        for (waiters, first) in self.waiters.iter_mut().zip(first) {
            let others = waiters.partition_point(|w| w.limit <= first);
            for w in waiters.drain(others..) {
                told_until = told_until.max(if w.copies { w.limit } else { 0 });
                out.end(w.io, Outcome::Failed(IoError::Device));
            }
        }
        self.copies_dropped |= has_dropped && told_until < self.copied_until;
    }

    fn end_above(&mut self, now: Time, mut c: Completion, head: IoHead, out: &mut Actions) {
        if !is_of_copies(&head) {
            self.client_at = now;
        }
        self.clients_below -= u32::from(!is_of_copies(&head));
        c.io.head = head;
        out.complete(c);
        self.work(now, out);
    }

    fn split_ended(&mut self, now: Time, op: usize, c: Completion, out: &mut Actions) {
        let i = (c.io.tag >> 32) as usize;
        let Pending::Split(split) = &mut self.ops[op] else { unreachable!("a piece of a split request") };
        if !c.outcome.is_done() {
            split.outcome = c.outcome;
        }
        split.dispatched_at = split.dispatched_at.min(c.dispatched_at);
        split.outstanding -= 1;
        let (ended, zone) = (split.outstanding == 0, split.pieces[i].1);
        if split.head.op == Op::Read {
            split.pieces[i].2 = c.io.into_data();
        }
        self.has_read(zone);
        if !ended {
            return;
        }
        let Pending::Split(split) = self.ops.remove(op) else { unreachable!("just looked") };
        let Split { head, pieces, outcome, dispatched_at, buffered, .. } = *split;
        let mut io = Io::new(head, Data::Absent);
        if head.op == Op::Read {
            let parts: Vec<(u64, Data)> = pieces.into_iter().map(|(len, _, data)| (len, data)).collect();
            io.data = Data::Parts(parts.into());
        } else if outcome.is_done() && !buffered.is_empty() {
            self.clients_below -= u32::from(!is_of_copies(&head));
            self.buffer(io, buffered, out);
            return self.work(now, out);
        }
        self.end_above(now, Completion { io, outcome, dispatched_at }, head, out);
    }

    fn recovery_ended(&mut self, now: Time, i: usize, c: Completion, out: &mut Actions) {
        let failed = |why: &str| Life::Failed(why.into());
        match (c.io.op, c.outcome.is_done()) {
            (Op::Read, is_read) => {
                if is_read {
                    let mut bytes = vec![0; c.io.len as usize];
                    c.io.data.copy_to(&mut bytes);
                    self.found[i] = Map::decode(&bytes, &self.places, !self.has(Planted::SumIgnored));
                    self.later = self.later.max(Map::later_version(&bytes, &self.places));
                }
                self.recovering -= 1;
                if self.recovering == 0 {
                    self.recovered(now, out);
                }
            }
            (Op::Flush, true) => self.repair(now, i, out),
            (Op::Flush, false) => {
                let why = "the device can't be flushed: the bands' map may not be durable; look at the device, then start again";
                self.life = failed(why);
            }
            (_, true) => self.life = Life::Ready,
            (_, false) => {
                let why = "one copy of the bands' map is corrupt and can't be written: replace the device";
                self.life = failed(why);
            }
        }
    }

    /// Both copies of the map have been looked at.
    fn recovered(&mut self, now: Time, out: &mut Actions) {
        // The other copy may be whole, and older: a change by the later program may have ended between the two.
        if let Some(version) = self.later {
            let known = map::VERSION;
            self.life = Life::Failed(format!(
                "the bands' map has version {version}, the newest this program knows is {known}: use the program that wrote it, or a newer one"
            ));
            return;
        }
        let number = |m: &Option<Map>| m.as_ref().map_or(0, |m| m.number);
        let numbers = [number(&self.found[0]), number(&self.found[1])];
        let mut best = usize::from(numbers[1] > numbers[0]);
        if self.has(Planted::OlderMapTaken) && numbers[0].min(numbers[1]) > 0 {
            best = 1 - best;
        }
        let Some(map) = self.found[best].take() else {
            let why =
                "both copies of the bands' map are corrupt, or the device was never formatted: restore it from a copy";
            self.life = Life::Failed(why.into());
            return;
        };
        let taken: BTreeSet<u32> = map.zones.iter().flatten().copied().collect();
        self.spare = (0..self.places.zones).filter(|z| !taken.contains(z)).collect();
        self.with_zone = taken.len() as u32;
        self.map = map;
        let other = 1 - best;
        if self.has(Planted::StartUnflushed) {
            return self.repair(now, other, out);
        }
        // The map may be in a volatile cache only: the process before was killed, and the power wasn't lost. From now on zones are used by
        // it, and its copies are written over.
        let io = self.send_own(now, Op::Flush, 0, 0, Pending::Recovery(other), out);
        out.submit(0, io);
    }

    /// The map is durable: copy `other` becomes like it, if it isn't.
    fn repair(&mut self, now: Time, other: usize, out: &mut Actions) {
        if self.found[other].as_ref() == Some(&self.map) || self.has(Planted::OlderMapLeft) {
            self.life = Life::Ready;
            return;
        }
        self.counters.repaired += 1;
        let at = self.places.maps_at()[other];
        let mut io = self.send_own(now, Op::Write, at, self.places.map_bytes, Pending::Recovery(other), out);
        io.head.flags = IoFlags::FUA;
        io.data = Data::Bytes(self.map.encode(&self.places));
        out.submit(0, io);
    }

    /// Returns what `head` asks of the device, for forecasts: its first piece there, or nothing.
    fn derived(&self, head: &IoHead) -> Option<IoHead> {
        let mut below = *head;
        if head.op == Op::Flush || head.end() > self.places.shown_bytes || head.len == 0 {
            return Some(below);
        }
        if head.op == Op::Read {
            let pieces = self.segments(head.offset, head.end(), FORECAST_PIECES);
            let (len, at) = pieces.into_iter().find_map(|(len, what)| Some((len, what.ok()?.0)))?;
            (below.offset, below.len) = (at, len);
            return Some(below);
        }
        match self.places.place(head.offset) {
            Place::Free { at, len } => (below.offset, below.len) = (at, len.min(head.len)),
            Place::Band { .. } => return None,
        }
        Some(below)
    }
}

/// A piece of a request of the layer above, to `at`.
fn out_piece(out: &mut Actions, io: &Io, at: u64, len: u64, op: u64, i: usize) -> Io {
    out.piece(&io.head, io.op, at, len, op | (i as u64) << 32)
}

impl Layer for Bands {
    fn name(&self) -> &'static str {
        "bands"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { size_bytes: self.places.shown_bytes, ..below[0] }
    }

    fn start(&mut self, now: Time, below: &[Offer], out: &mut Actions) {
        if self.life == Life::Ready {
            return;
        }
        if below[0].io_bytes_max < self.places.map_bytes {
            self.life = Life::Failed(format!(
                "the bands' map has {} bytes and the device takes {} at once: choose larger zones",
                self.places.map_bytes, below[0].io_bytes_max
            ));
            return;
        }
        self.recovering = 2;
        for (i, at) in self.places.maps_at().into_iter().enumerate() {
            let io = self.send_own(now, Op::Read, at, self.places.map_bytes, Pending::Recovery(i), out);
            out.submit(0, io);
        }
    }

    fn state(&self) -> LayerState {
        match self.life {
            Life::Recovering => LayerState::Recovering,
            Life::Ready if self.dirty.has_clients() && (self.gave_up || !self.bad.is_empty()) => LayerState::Degraded,
            Life::Ready => LayerState::Ready,
            Life::Stuck(_) => LayerState::Degraded,
            Life::Failed(_) => LayerState::Failed,
        }
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        if head.op != Op::Read || head.len == 0 || head.end() > self.places.shown_bytes {
            return self.derived(head).map_or(Forecast::NONE, |first| below.ask(0, at, &first));
        }
        // Of a read in very many pieces the first ones say enough.
        let pieces = self.segments(head.offset, head.end(), FORECAST_PIECES).into_iter();
        let stored = pieces.filter_map(|(len, what)| Some((what.ok()?.0, len)));
        let asked = stored.map(|(offset, len)| below.ask(0, at, &IoHead { offset, len, ..*head }));
        asked.reduce(|all, part| all.and_part(&part)).unwrap_or(Forecast::NONE)
    }

    fn below_as(&self, head: &IoHead) -> IoHead {
        self.derived(head).unwrap_or(*head)
    }

    fn declared(&mut self, head: &IoHead, out: &mut Actions) {
        if let Some(first) = self.derived(head) {
            out.declare(0, first);
        }
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if matches!(self.life, Life::Failed(_) | Life::Recovering) {
            return out.end(io, Outcome::Failed(IoError::Unavailable));
        }
        if io.op != Op::Flush && (io.len == 0 || io.end() > self.places.shown_bytes) {
            return out.end(io, Outcome::Failed(IoError::Invalid));
        }
        if !is_of_copies(&io.head) {
            self.client_at = now;
        }
        match io.op {
            Op::Read => self.read(io, out),
            Op::Write | Op::WriteZeroes | Op::Trim => self.change(now, io, out),
            Op::Flush => self.flush(now, io, out),
            Op::Cache => out.done(io, Data::Absent),
            Op::BlockStatus => {
                let all = StatusExtent { len: io.len, hole: false, zero: false };
                out.done(io, Data::Status(vec![all].into()));
            }
        }
    }

    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        let op = c.io.tag as u32 as usize;
        match self.ops[op] {
            Pending::Split(_) => self.split_ended(now, op, c, out),
            Pending::One { head, zone } => {
                self.ops.remove(op);
                self.has_read(zone);
                let mut c = c;
                if head.op == Op::Flush && !c.outcome.is_done() {
                    // The device's own, as opposed to one that waited for a band.
                    c.outcome = Outcome::Failed(IoError::FlushFailed);
                }
                self.end_above(now, c, head, out);
            }
            Pending::Own(step) => {
                self.ops.remove(op);
                self.stepped(now, step, c, out);
                self.work(now, out);
            }
            Pending::Recovery(i) => {
                self.ops.remove(op);
                self.recovery_ended(now, i, c, out);
            }
        }
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.work(now, out);
    }

    fn durability_lost(&mut self, _now: Time, _port: u8) -> bool {
        if let Some(r) = &mut self.rewrite {
            r.lost = true;
        }
        true
    }

    fn is_idle(&self) -> bool {
        let at_rest = self.ops.is_empty() && self.waiters.iter().all(VecDeque::is_empty) && self.held.is_empty();
        // Changes that no flush has covered may wait, as in a drive's cache. At the pool's end clients' get to their zones; the layer above
        // has the data of copies.
        let written = !self.draining || self.gave_up || self.dirty.with_clients(|band| !self.is_left(band)).is_none();
        at_rest && self.rewrite.is_none() && written
    }

    fn drain(&mut self, now: Time, out: &mut Actions) {
        if !std::mem::replace(&mut self.draining, true) {
            // The last chance: each band is tried once more. A pool asks for its end again and again.
            self.bad.values_mut().for_each(|b| b.until = Time::ZERO);
        }
        self.work(now, out);
    }

    fn left_behind(&self) -> Option<String> {
        let why = || self.problem().unwrap_or_else(|| "changes of clients aren't in their bands".into());
        (self.draining && self.dirty.has_clients()).then(why)
    }

    fn check(&self) {
        if self.config.planted.is_some() || self.life != Life::Ready {
            return;
        }
        self.dirty.check(CHECKED_EACH_MAX);
        let frozen = self.rewrite.as_ref().map(|r| &r.frozen).filter(|f| f.len() <= CHECKED_EACH_MAX);
        frozen.into_iter().for_each(Pieces::check);
        let target = self.rewrite.as_ref().and_then(|r| r.target);
        let zones = self.spare.len() as u32 + self.with_zone + u32::from(target.is_some());
        assert_eq!(zones, self.places.zones, "a zone is spare and a band's, or neither");
        assert!(target.is_none_or(|t| !self.spare.contains(&t)), "the zone that a copy writes is spare");
        assert!(target.is_none_or(|t| !self.readers.contains_key(&t)), "the zone that a copy writes is read");
        if self.readers.len() <= CHECKED_EACH_MAX {
            let counted = |(zone, n): (&u32, &u32)| *zone < self.places.zones && *n > 0;
            assert!(self.readers.iter().all(counted), "readers of a zone that nobody reads");
        }
    }
}
