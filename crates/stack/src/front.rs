//! The front: the layer of every pool above which requests are as clients sent them.
//!
//! It turns clients' requests (any offset and length, overlapping, in any order) into requests that the layers below can rely
//! on. Those have ranges inside the volume and multiples of the block, and two overlapping ones are in flight together only if
//! both read. A write that isn't a multiple of the block becomes a read-modify-write, which is safe because the whole blocks
//! are serialised. Requests that wait here for an overlap are declared below and count in every forecast.
//!
//! Long ranges (trims, zeroes, prefetches) go below in parts, one after the other, at the pace of [`crate::ranges`]. The whole
//! range stays serialised until the last part has ended. The first part that fails ends the request, and the rest isn't begun.
//! Neither is the rest of a request that is withdrawn, or whose pool ends. The rest isn't declared: whatever comes later reaches
//! the layers below before it.
//!
//! It also keeps the rule of the failed flush: after one, every later flush fails until recovery. The rule is kept for
//! the whole pool, which is stricter than per volume: the kernel reports a lost write to one flush only, and the
//! volumes share the device.

use crate::conflicts::{Conflicts, Noted, Range};
use crate::layer::{Actions, CHECKED_MAX, Forecast, Layer, Offer, Port, Ports};
use crate::ranges::{Next, Parts, Ranges, State};
use plimsoll_base::{
    BufMut, Completion, Data, Io, IoError, IoFlags, IoHead, IoId, Op, Origin, Outcome, OwnKind, Span, Time, VolumeKey,
};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// Properties of a volume that the front needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrontVolume {
    /// Its size in bytes; any number (the last block may be partial for the client, never below).
    pub size_bytes: u64,
    /// Refuse what changes it.
    pub read_only: bool,
}

/// See the module's documentation.
pub struct Front {
    volumes: BTreeMap<VolumeKey, FrontVolume>,
    block_bytes: u64,
    entries: Slab<Entry>,
    /// Index of each entry by its request's id: a client that leaves withdraws thousands.
    places: Places,
    conflicts: Conflicts,
    /// Withdrawn requests that nothing blocks any more: they end in stretches.
    over: VecDeque<usize>,
    ranges: Ranges,
    waiting: usize,
    flush_failed: bool,
    /// Failures of flushes so far: a request that is durable only if none happened while it was here keeps the number at its arrival.
    flushes_failed: u32,
    stopping: bool,
    /// Moving averages of service time below, in nanoseconds. The first index separates reads from all other operations. The
    /// second separates requests that went down at once from those that had waited here: these follow a change at the same
    /// address and so have another cost.
    lately_ns: [[u64; 2]; 2],
}

/// True if a request's end says that something is durable.
fn is_durable(head: &IoHead) -> bool {
    head.op == Op::Flush || (head.op.is_change() && head.flags.has(IoFlags::FUA))
}

/// Shift of the moving averages: each new sample has the weight 1/2 to the power of this.
const LATELY_SHIFT: u32 = 4;

struct Entry {
    /// As the client asked; its tag is the stack's.
    head: IoHead,
    /// The request itself, with a write's bytes, while it isn't below.
    ///
    /// It goes down and comes back as it is, its head changed: a new one costs an allocation.
    io: Option<Io>,
    /// `head`'s range widened to whole blocks: what is serialised.
    from: u64,
    to: u64,
    /// That range among those in flight; none for a flush.
    noted: Option<Noted>,
    /// The part of `from..to` that was passed on last: nothing yet, all of it, or a part of a range.
    part: (u64, u64),
    /// The id of that part, if it was passed on as it is.
    part_id: IoId,
    /// Its client doesn't want it any more: what isn't below yet isn't begun.
    is_withdrawn: bool,
    /// Number of earlier requests that must end first: one with which it conflicts may be among them or before one of them.
    blockers: u32,
    /// Requests that wait for this one: their place and id.
    dependents: Vec<(usize, IoId)>,
    phase: Phase,
    /// Time at which it was passed on, and whether it had waited.
    passed_at: Time,
    has_waited: bool,
    dispatched_at: Time,
    /// [`Front::flushes_failed`] at its arrival.
    flushes_failed: u32,
}

enum Phase {
    Waiting,
    /// A range whose next part waits for its turn.
    Due,
    /// Sent below as it is (or widened, for an unaligned read).
    Passed,
    /// Reading the blocks that the client changes in part: the first and the last.
    Reading {
        outstanding: u8,
        failed: Option<IoError>,
        edges: [Option<Data>; 2],
    },
    /// Writing whole blocks.
    Writing {
        outstanding: u8,
        failed: Option<IoError>,
    },
}

/// Tags below: the entry's place, and for a read-modify-write which edge.
const EDGE_SHIFT: u32 = 48;

impl Default for Front {
    fn default() -> Front {
        Front::new()
    }
}

impl Front {
    /// A front without volumes.
    pub fn new() -> Front {
        Front {
            volumes: BTreeMap::new(),
            block_bytes: 512,
            entries: Slab::new(),
            places: Places::default(),
            conflicts: Conflicts::new(),
            over: VecDeque::new(),
            ranges: Ranges::default(),
            waiting: 0,
            flush_failed: false,
            flushes_failed: 0,
            stopping: false,
            lately_ns: [[0; 2]; 2],
        }
    }

    /// Passes ranges on in parts of at most `bytes`, instead of [`crate::ranges::RANGE_BYTES`]: a power of two.
    #[must_use]
    pub fn with_parts(mut self, bytes: u64) -> Front {
        self.set_parts(bytes);
        self
    }

    /// See [`Front::with_parts`].
    pub fn set_parts(&mut self, bytes: u64) {
        self.ranges.parts = Parts::of(bytes).in_blocks(self.block_bytes);
    }

    /// Returns the longest part of a range.
    pub fn parts(&self) -> u64 {
        self.ranges.parts.bytes
    }

    /// Adds a volume or changes its size or mode.
    pub fn set_volume(&mut self, key: VolumeKey, volume: FrontVolume) {
        self.volumes.insert(key, volume);
    }

    /// Takes a volume out; requests for it fail from here on.
    pub fn remove_volume(&mut self, key: VolumeKey) {
        self.volumes.remove(&key);
    }

    /// True if a flush has failed since the start, or since the last [`Front::recovered`].
    pub fn flush_failed(&self) -> bool {
        self.flush_failed
    }

    /// Ends the refusal of flushes: the devices were reopened, and the losses are known.
    pub fn recovered(&mut self) {
        self.flush_failed = false;
    }

    /// Returns the number of requests that wait here for an overlapping one.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns whether there is a volume `key`, which takes requests.
    pub fn knows(&self, key: VolumeKey) -> bool {
        self.volumes.contains_key(&key)
    }

    /// Requests under way for `key`.
    pub fn inflight_of(&self, key: VolumeKey) -> usize {
        self.entries.iter().filter(|(_, e)| e.head.volume == key).count()
    }

    fn validate(&self, head: &IoHead) -> Result<(), IoError> {
        let volume = self.volumes.get(&head.volume).ok_or(IoError::Unavailable)?;
        if is_durable(head) && self.flush_failed {
            return Err(IoError::FlushFailed);
        }
        if head.op == Op::Flush {
            return Ok(());
        }
        if head.op.is_change() && volume.read_only {
            return Err(IoError::ReadOnly);
        }
        let inside = head.offset.checked_add(head.len).is_some_and(|end| end <= volume.size_bytes);
        match (inside, head.op) {
            (true, _) => Ok(()),
            (false, Op::Write) => Err(IoError::NoSpace),
            (false, _) => Err(IoError::Invalid),
        }
    }

    /// The first and last block that a request covers only in part.
    fn edges(&self, head: &IoHead) -> [Option<u64>; 2] {
        let b = self.block_bytes;
        let (first, last) = (head.offset / b, (head.end() - 1) / b);
        let first_partial = !head.offset.is_multiple_of(b) || (first == last && !head.end().is_multiple_of(b));
        let last_partial = first != last && !head.end().is_multiple_of(b);
        [first_partial.then_some(first * b), last_partial.then_some(last * b)]
    }

    /// Sends an entry below that nothing blocks. The turn of a range that must be cut, or for which the pace is too high, comes in
    /// [`Front::pass_ranges`].
    fn dispatch(&mut self, now: Time, at: usize, was_waiting: bool, out: &mut Actions) {
        let e = &mut self.entries[at];
        (e.passed_at, e.has_waited) = (now, was_waiting);
        let at_once =
            |r: &mut Ranges| r.parts.end(e.from, e.to) == e.to && r.pass_at_once(now, e.head.tenant, e.to - e.from);
        if e.head.op.is_range() && !at_once(&mut self.ranges) {
            if was_waiting {
                out.retract(0, e.head.id);
            }
            e.phase = Phase::Due;
            return self.ranges.enter(e.head.tenant, (at, e.head.id));
        }
        e.part = (e.from, e.to);
        self.pass(at, was_waiting, out);
    }

    /// Passes on what is due of ranges: their next parts, as their pace allows.
    fn pass_ranges(&mut self, now: Time, out: &mut Actions) {
        while !self.ranges.is_idle() {
            // Put back at once: those that wait are asked meanwhile.
            let mut ranges = std::mem::take(&mut self.ranges);
            let parts = ranges.parts;
            let next = ranges.next(now, |which| self.state_of(which, parts));
            self.ranges = ranges;
            match next {
                Next::Pass((at, _)) => {
                    let e = &mut self.entries[at];
                    e.part = (e.part.1, parts.end(e.part.1, e.to));
                    self.pass(at, false, out);
                }
                Next::End((at, _)) => {
                    let why = self.must_end(&self.entries[at], parts).expect("asked just now");
                    self.finish(now, at, Outcome::Failed(why), Data::Absent, out);
                }
                Next::Wait(until) => {
                    if until.is_set() {
                        out.wake_at(until);
                    }
                    return;
                }
            }
        }
    }

    /// State of a range that waits for its turn, unless it was withdrawn meanwhile.
    fn state_of(&self, (at, id): (usize, IoId), parts: Parts) -> State {
        match self.entries.get(at).filter(|e| e.head.id == id) {
            None => State::Gone,
            Some(e) if self.must_end(e, parts).is_some() => State::Over,
            Some(e) => State::Has(parts.end(e.part.1, e.to) - e.part.1),
        }
    }

    /// Returns why a range's next part isn't begun, if it isn't.
    fn must_end(&self, e: &Entry, parts: Parts) -> Option<IoError> {
        let is_cut = e.part.1 > e.from || parts.end(e.from, e.to) < e.to;
        if self.stopping && is_cut {
            return Some(IoError::Unavailable);
        }
        // Its volume may have been deleted since it came, or a flush may have failed.
        self.validate(&e.head).err()
    }

    /// Passes on the part of an entry that is next.
    fn pass(&mut self, at: usize, was_waiting: bool, out: &mut Actions) {
        let b = self.block_bytes;
        let e = &mut self.entries[at];
        let (from, to) = e.part;
        let aligned = e.head.offset <= from && to <= e.head.end();
        match e.head.op {
            Op::Write | Op::WriteZeroes if !aligned => {
                let head = cut(&e.head, from, to);
                if was_waiting {
                    out.retract(0, head.id);
                }
                let mut outstanding = 0;
                for (i, edge) in self.edges(&head).into_iter().enumerate() {
                    if let Some(offset) = edge {
                        outstanding += 1;
                        let tag = at as u64 | (i as u64) << EDGE_SHIFT;
                        let read = out.child(&head, Op::Read, offset, b, tag);
                        out.submit(0, own_child(read, OwnKind::ReadModifyWrite));
                    }
                }
                self.entries[at].phase = Phase::Reading { outstanding, failed: None, edges: [None, None] };
            }
            _ if (from, to) != (e.from, e.to) => {
                let part = out.piece(&e.head, e.head.op, from, to - from, at as u64);
                (e.phase, e.part_id) = (Phase::Passed, part.id);
                out.submit(0, part);
            }
            _ => {
                e.phase = Phase::Passed;
                let mut io = e.io.take().expect("it is passed on whole once");
                (io.head.tag, io.head.offset, io.head.len) = (at as u64, from, to - from);
                out.submit(0, io);
            }
        }
    }

    /// The edges of a read-modify-write have been read: writes the whole blocks.
    fn write_merged(&mut self, at: usize, out: &mut Actions) {
        let b = self.block_bytes;
        let e = &mut self.entries[at];
        let (from, to) = e.part;
        let head = cut(&e.head, from, to);
        let Phase::Reading { edges, .. } = &mut e.phase else { unreachable!("only after reading") };
        let edges = std::mem::take(edges);
        let data = e.io.as_mut().map(|io| std::mem::take(&mut io.data)).unwrap_or_default();
        let mut writes: Vec<(Op, u64, u64, Data)> = Vec::new();
        if head.op == Op::Write {
            writes.push((Op::Write, from, to - from, merge(&head, &data, from, to, &edges, b)));
        } else {
            let (mut inner_from, mut inner_to) = (from, to);
            if let Some(first) = &edges[0] {
                inner_from += b;
                let zeroes = cut(&head, from, from + b);
                writes.push((
                    Op::Write,
                    from,
                    b,
                    merge(&zeroes, &Data::Zeroes, from, from + b, &[Some(first.clone()), None], b),
                ));
            }
            if let Some(last) = &edges[1] {
                inner_to -= b;
                let zeroes = cut(&head, inner_to, to);
                writes.push((
                    Op::Write,
                    inner_to,
                    b,
                    merge(&zeroes, &Data::Zeroes, inner_to, to, &[Some(last.clone()), None], b),
                ));
            }
            if inner_from < inner_to {
                writes.push((Op::WriteZeroes, inner_from, inner_to - inner_from, Data::Absent));
            }
        }
        e.phase = Phase::Writing { outstanding: writes.len() as u8, failed: None };
        for (op, offset, len, data) in writes {
            let mut io = out.child(&head, op, offset, len, at as u64);
            io.data = data;
            if op == Op::Write {
                io.head.flags = head.flags.without(IoFlags::NO_HOLE.with(IoFlags::FAST_ZERO));
            }
            out.submit(0, own_child(io, OwnKind::ReadModifyWrite));
        }
    }

    /// Takes the end of what was passed on of an entry: the whole of it, or a part of a range.
    fn part_ended(&mut self, now: Time, at: usize, outcome: Outcome, data: Data, out: &mut Actions) {
        let e = &mut self.entries[at];
        if e.head.op.is_range() {
            let (tenant, id, (from, to)) = (e.head.tenant, e.head.id, e.part);
            self.ranges.ended(tenant, to - from);
            if outcome.is_done() && to < e.to {
                if e.is_withdrawn {
                    return self.finish(now, at, Outcome::Failed(IoError::Cancelled), Data::Absent, out);
                }
                e.phase = Phase::Due;
                return self.ranges.go_on(tenant, (at, id));
            }
        }
        self.finish(now, at, outcome, data, out);
    }

    /// Ends an entry and lets go what waited for it.
    fn finish(&mut self, now: Time, at: usize, outcome: Outcome, data: Data, out: &mut Actions) {
        let e = self.entries.remove(at);
        // It was under way when a flush failed, though the pool may be recovered since: the device may have told that one of what this one
        // owes.
        let doubtful = outcome.is_done() && e.flushes_failed != self.flushes_failed && is_durable(&e.head);
        let outcome = if doubtful { Outcome::Failed(IoError::FlushFailed) } else { outcome };
        // A range that was cut went at a pace of its own.
        let whole = e.part == (e.from, e.to);
        if outcome.is_done() && e.head.op != Op::Flush && whole {
            let lately = &mut self.lately_ns[usize::from(e.head.op != Op::Read)][usize::from(e.has_waited)];
            *lately = *lately - (*lately >> LATELY_SHIFT) + (now.since(e.passed_at).as_nanos() >> LATELY_SHIFT);
        }
        self.let_go(now, e.noted, e.dependents, out);
        complete(e.head, e.io, outcome, data, e.dispatched_at, out);
    }

    /// A request has ended: passes on those that waited for it alone.
    fn let_go(&mut self, now: Time, noted: Option<Noted>, dependents: Vec<(usize, IoId)>, out: &mut Actions) {
        if let Some(noted) = noted {
            self.conflicts.remove(noted);
        }
        for (at, id) in dependents {
            let Some(dependent) = self.entries.get_mut(at).filter(|d| d.head.id == id) else {
                continue; // withdrawn since, and its place perhaps taken by another
            };
            dependent.blockers -= 1;
            match (dependent.blockers, dependent.is_withdrawn) {
                (0, false) => {
                    self.waiting -= 1;
                    self.dispatch(now, at, true, out);
                }
                (0, true) => {
                    self.over.push_back(at);
                    out.wake_at(now);
                }
                _ => {}
            }
        }
    }

    /// A request that waits here is withdrawn. It ends at once, unserved, unless it is a change that others wait for.
    ///
    /// That one stays until what it waits for has ended: those behind it may wait for that through this one only (see [`crate::conflicts`]).
    fn withdraw_waiting(&mut self, now: Time, at: usize, out: &mut Actions) {
        if self.entries[at].is_withdrawn {
            return;
        }
        out.retract(0, self.entries[at].head.id);
        let lives = |(d, id): &(usize, IoId)| self.entries.get(*d).is_some_and(|e| e.head.id == *id);
        if self.entries[at].head.op.is_change() && self.entries[at].dependents.iter().any(lives) {
            self.entries[at].is_withdrawn = true;
        } else {
            self.waiting -= 1;
            self.finish(now, at, Outcome::Failed(IoError::Cancelled), Data::Absent, out);
        }
    }

    /// Ends withdrawn requests that nothing blocks any more, not more of them than a stretch allows: one request's end may be the
    /// end of sixty thousand.
    fn end_withdrawn(&mut self, now: Time, out: &mut Actions) {
        for _ in 0..STRETCH_MAX {
            let Some(at) = self.over.pop_front() else { return };
            self.waiting -= 1;
            self.finish(now, at, Outcome::Failed(IoError::Cancelled), Data::Absent, out);
        }
        if !self.over.is_empty() {
            out.wake_at(now);
        }
    }
}

/// `head`'s range in whole blocks.
fn range(head: &IoHead, from: u64, to: u64) -> Range {
    Range { volume: head.volume, from, to, is_change: head.op.is_change() }
}

/// Notes that `who` waits for the request at `blocker`.
///
/// Before their list grows, those of them go that were withdrawn: clients may come and go for as long as a device stalls.
fn add_dependent(entries: &mut Slab<Entry>, blocker: usize, who: (usize, IoId)) {
    let mut dependents = std::mem::take(&mut entries[blocker].dependents);
    if dependents.len() >= DEPENDENTS_MIN && dependents.len() == dependents.capacity() {
        dependents.retain(|(at, id)| entries.get(*at).is_some_and(|e| e.head.id == *id));
        dependents.reserve(dependents.len().max(1)); // half of it is free, or it would be looked through each time
    }
    dependents.push(who);
    entries[blocker].dependents = dependents;
}

/// Withdrawn requests that end in one stretch.
const STRETCH_MAX: usize = 256;

/// Fewer are never looked through for requests that were withdrawn.
const DEPENDENTS_MIN: usize = 64;

/// Ends a request: the one that was passed on and came back, or one made from its head.
fn complete(head: IoHead, io: Option<Io>, outcome: Outcome, data: Data, dispatched_at: Time, out: &mut Actions) {
    let io = match io {
        Some(mut io) => {
            (io.head, io.data) = (head, data);
            io
        }
        None => Io::new(head, data),
    };
    out.complete(Completion { io, outcome, dispatched_at });
}

fn own_child(mut io: Io, kind: OwnKind) -> Io {
    io.head.origin = Origin::Own(kind);
    io
}

/// The part of `head`'s range inside `from..to`.
fn cut(head: &IoHead, from: u64, to: u64) -> IoHead {
    let mut h = *head;
    h.offset = head.offset.max(from);
    h.len = head.end().min(to) - h.offset;
    h
}

/// Whole blocks `from..to`: the edges as read, and over them the client's bytes.
fn merge(head: &IoHead, data: &Data, from: u64, to: u64, edges: &[Option<Data>; 2], block: u64) -> Data {
    if matches!(data, Data::Absent) {
        return Data::Absent;
    }
    let mut merged = BufMut::zeroed((to - from) as usize);
    let bytes = merged.as_mut_slice();
    if let Some(first) = &edges[0] {
        first.copy_to(&mut bytes[..block as usize]);
    }
    if let Some(last) = &edges[1] {
        let start = bytes.len() - block as usize;
        last.copy_to(&mut bytes[start..]);
    }
    let start = (head.offset - from) as usize;
    data.copy_to(&mut bytes[start..start + head.len as usize]);
    Data::Bytes(merged.freeze())
}

impl Layer for Front {
    fn name(&self) -> &'static str {
        "front"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { block_bytes: 1, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.block_bytes = u64::from(below[0].block_bytes);
        self.ranges.parts = self.ranges.parts.in_blocks(self.block_bytes);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        if self.validate(head).is_err() || head.op == Op::Flush || head.len == 0 {
            return below.ask(0, at, head);
        }
        let b = self.block_bytes;
        let (from, to) = (head.offset / b * b, head.end().next_multiple_of(b));
        let mut blocked_until = None;
        self.conflicts.blockers(&range(head, from, to), |place| {
            let expected_at = self.entries[place].head.expected_at;
            blocked_until = blocked_until.max(Some(if expected_at.is_set() { expected_at } else { at }));
        });
        let Some(blocked_until) = blocked_until else { return below.ask(0, at, head) };
        // While it waits here, what is queued below now is worked off, and others come. What it finds when it is let go nobody
        // knows; that requests then take what they took lately is the best guess, if it isn't less than what is known.
        let wait = blocked_until.since(at);
        let f = below.ask(0, at, head);
        let [at_once, after_waiting] = self.lately_ns[usize::from(head.op != Op::Read)];
        let lately = Span::from_nanos(if after_waiting > 0 { after_waiting } else { at_once });
        let whole = wait + f.total().saturating_sub(wait).max(lately);
        below.after(whole.saturating_sub(f.total()), f)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if let Err(e) = self.validate(&io.head) {
            return out.end(io, Outcome::Failed(e));
        }
        let b = self.block_bytes;
        let head = io.head;
        let (mut from, mut to) = (head.offset / b * b, head.end().next_multiple_of(b));
        if head.op == Op::Flush {
            (from, to) = (head.offset, head.end());
        } else if head.op == Op::Trim {
            // Trimming is advice: whole blocks only, the rest stays as it is.
            (from, to) = (head.offset.next_multiple_of(b), head.end() / b * b);
        }
        let is_ragged = from != head.offset || to != head.end();
        if head.op == Op::WriteZeroes && head.flags.has(IoFlags::FAST_ZERO) && is_ragged {
            // Its edges must be read and written, which is no faster than writing; and nothing may change if it isn't.
            return out.end(io, Outcome::Failed(IoError::NotSupported));
        }
        if head.op != Op::Flush && from >= to {
            return out.done(io, Data::Absent);
        }
        let mut entry = Entry {
            head,
            io: Some(io),
            from,
            to,
            noted: None,
            part: (from, from),
            part_id: head.id,
            is_withdrawn: false,
            blockers: 0,
            dependents: Vec::new(),
            phase: Phase::Waiting,
            passed_at: now,
            has_waited: false,
            dispatched_at: Time::NEVER,
            flushes_failed: self.flushes_failed,
        };
        let at = self.entries.vacant_key();
        if head.op != Op::Flush {
            let range = range(&head, from, to);
            self.conflicts.blockers(&range, |place| {
                if self.entries[place].dependents.last() != Some(&(at, head.id)) {
                    add_dependent(&mut self.entries, place, (at, head.id));
                    entry.blockers += 1;
                }
            });
            entry.noted = Some(self.conflicts.add(range, at));
        }
        let blocked = entry.blockers > 0;
        self.entries.insert(entry);
        self.places.add(head.id, at, &self.entries);
        if blocked {
            self.waiting += 1;
            // Others' requests pass between the parts of a range.
            let first = if head.op.is_range() { cut(&head, from, self.ranges.parts.end(from, to)) } else { head };
            out.declare(0, first);
        } else {
            self.dispatch(now, at, false, out);
            if head.op.is_range() {
                self.pass_ranges(now, out);
            }
        }
    }

    fn durability_lost(&mut self, _now: Time, _port: Port) -> bool {
        self.flush_failed = true;
        self.flushes_failed = self.flushes_failed.wrapping_add(1);
        true
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        let at = (c.io.tag & ((1 << EDGE_SHIFT) - 1)) as usize;
        let edge = (c.io.tag >> EDGE_SHIFT) as usize;
        let e = &mut self.entries[at];
        e.dispatched_at = e.dispatched_at.min(c.dispatched_at);
        match &mut e.phase {
            Phase::Waiting | Phase::Due => unreachable!("nothing was sent below for a waiting request"),
            Phase::Passed => {
                let (head, from, to) = (e.head, e.from, e.to);
                let narrowed = head.offset != from || head.end() != to;
                let outcome = c.outcome;
                let data = match (outcome, head.op) {
                    (Outcome::Done, Op::Read) if narrowed => c.io.data.slice(to - from, head.offset - from, head.len),
                    (Outcome::Done, Op::BlockStatus) if narrowed => {
                        clip_status(std::mem::take(&mut c.io.data), head.offset - from, head.len)
                    }
                    (Outcome::Done, _) => std::mem::take(&mut c.io.data),
                    _ => Data::Absent,
                };
                e.io = Some(c.io);
                self.part_ended(now, at, outcome, data, out);
            }
            Phase::Reading { outstanding, failed, edges } => {
                *outstanding -= 1;
                match c.outcome {
                    Outcome::Done => edges[edge] = Some(c.io.into_data()),
                    other => *failed = Some(as_error(other)),
                }
                match (*outstanding, *failed) {
                    (0, None) => self.write_merged(at, out),
                    (0, Some(err)) => self.part_ended(now, at, Outcome::Failed(err), Data::Absent, out),
                    _ => {}
                }
            }
            Phase::Writing { outstanding, failed } => {
                *outstanding -= 1;
                if !c.outcome.is_done() {
                    *failed = Some(as_error(c.outcome));
                }
                if *outstanding == 0 {
                    let outcome = failed.map_or(Outcome::Done, Outcome::Failed);
                    self.part_ended(now, at, outcome, Data::Absent, out);
                }
            }
        }
        self.pass_ranges(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.end_withdrawn(now, out);
        self.pass_ranges(now, out);
    }

    fn cancel(&mut self, now: Time, id: IoId, out: &mut Actions) {
        let Some(at) = self.places.find(id, &self.entries) else { return };
        match self.entries[at].phase {
            Phase::Waiting => self.withdraw_waiting(now, at, out),
            Phase::Due => self.finish(now, at, Outcome::Failed(IoError::Cancelled), Data::Absent, out),
            Phase::Passed => {
                self.entries[at].is_withdrawn = true;
                out.cancel(0, self.entries[at].part_id);
            }
            // Half of a read-modify-write is under way: it ends as it would have.
            Phase::Reading { .. } | Phase::Writing { .. } => self.entries[at].is_withdrawn = true,
        }
        self.pass_ranges(now, out);
    }

    /// The rest of a range that was cut isn't begun.
    fn stop(&mut self, now: Time, out: &mut Actions) {
        self.stopping = true;
        self.pass_ranges(now, out);
    }

    fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    fn check(&self) {
        if self.entries.len() > CHECKED_MAX {
            return;
        }
        let entries = || self.entries.iter().map(|(_, e)| e);
        let waiting = entries().filter(|e| matches!(e.phase, Phase::Waiting)).count();
        assert_eq!(self.waiting, waiting, "the number of requests that wait is wrong");
        let is_let_go = |at: usize| self.over.contains(&at);
        for (at, e) in &self.entries {
            let waits = matches!(e.phase, Phase::Waiting);
            assert!(
                waits == (e.blockers > 0 || is_let_go(at)),
                "a request waits for nothing, or goes on beside what it waits for"
            );
            assert_eq!(e.noted.is_some(), e.head.op != Op::Flush, "a request in flight isn't in the way of others");
        }
    }
}

fn as_error(outcome: Outcome) -> IoError {
    match outcome {
        Outcome::Failed(e) => e,
        Outcome::Busy { .. } | Outcome::Done => unreachable!("own I/O is never refused"),
    }
}

/// A status answer for whole blocks, cut to what was asked.
fn clip_status(data: Data, skip: u64, len: u64) -> Data {
    let Data::Status(extents) = data else { return data };
    let (mut skip, mut left) = (skip, len);
    let mut clipped = Vec::new();
    for e in extents.iter() {
        let from = skip.min(e.len);
        skip -= from;
        let n = (e.len - from).min(left);
        left -= n;
        if n > 0 {
            clipped.push(plimsoll_base::StatusExtent { len: n, ..*e });
        }
    }
    Data::Status(clipped.into())
}

/// Places of entries by their requests' ids, ascending. Places of entries that have ended stay until they are most of all.
#[derive(Default)]
struct Places(VecDeque<(IoId, usize)>);

/// Fewer are never looked through for places of entries that have ended.
const PLACES_MIN: usize = 1024;

impl Places {
    fn add(&mut self, id: IoId, at: usize, entries: &Slab<Entry>) {
        if self.0.len() >= PLACES_MIN.max(2 * entries.len()) {
            self.0.retain(|(id, at)| entries.get(*at).is_some_and(|e| e.head.id == *id));
        }
        match self.0.back() {
            // Ids ascend, unless a layer above lets one request pass another.
            Some((last, _)) if *last > id => {
                let before = self.0.partition_point(|(other, _)| *other < id);
                self.0.insert(before, (id, at));
            }
            _ => self.0.push_back((id, at)),
        }
    }

    fn find(&self, id: IoId, entries: &Slab<Entry>) -> Option<usize> {
        let found = self.0.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        let at = self.0[found].1;
        entries.get(at).is_some_and(|e| e.head.id == id).then_some(at)
    }
}
