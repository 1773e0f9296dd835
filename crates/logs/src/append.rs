//! Small writes on their way into a log.
//!
//! Waiting writes go out as one record: a header that lists them, and their bytes. A record goes to the log that is nearest when it
//! is built. Records of one log are acknowledged in their order there: recovery follows the chain and must not find a hole before
//! something acknowledged.

use crate::clean::CROWDED_PERCENT;
use crate::config::Planted;
use crate::format::{
    Entry, EntryKind, Place, UNIT_BYTES, empty_header_bytes, encode_record, header_bytes, sum_of, sum_of_units, units,
    witnesses_max,
};
use crate::layer::{Life, Logs, Pending};
use crate::log::State;
use crate::mtl::{Mapped, Unit};
use crate::status::Why;
use crate::walk::LOOK_BYTES;
use plimsoll_base::{
    Buf, Completion, Data, Io, IoError, IoFlags, IoHead, IoId, Op, Outcome, OwnKind, Span, Time, VolumeKey,
};
use plimsoll_stack::Actions;
use std::num::NonZeroU32;

/// Entries in one record at most: its header is then 4 KiB.
const ENTRIES_MAX: usize = 99;
/// Witnesses in an empty record at most: its header is then 4 KiB.
const WITNESSES_MAX: usize = 336;
/// A log's first record since an image is at most this long, or an empty one goes before it (one that was under way when the image
/// was begun may be longer: then the image says so): so a recovery that looks at a log's
/// first [`LOOK_BYTES`] sees that it has records even if the first one is corrupt.
const FIRST_BYTES_MAX: u64 = LOOK_BYTES / 2;

/// A record more than there should be goes out when what waits has waited this long, about a disk's rotation: where the device has
/// much else to do, records would else wait for records, each behind all of that.
const PATIENCE: Span = Span::from_millis(10);

/// An entry that waits for a record.
pub(crate) enum Queued {
    Write(Io),
    Kill { home: u64, len: u32, key: VolumeKey, sequence: u64 },
}

impl Queued {
    pub fn id(&self) -> Option<IoId> {
        match self {
            Queued::Write(io) => Some(io.id),
            Queued::Kill { .. } => None,
        }
    }

    pub fn data_bytes(&self) -> u64 {
        match self {
            Queued::Write(io) => io.len,
            Queued::Kill { .. } => 0,
        }
    }

    fn is_fua(&self) -> bool {
        matches!(self, Queued::Write(io) if io.flags.has(IoFlags::FUA))
    }
}

/// A record under way.
pub(crate) struct Append {
    pub log: u32,
    start: u32,
    end: u32,
    sum: u64,
    /// Written with FUA.
    fua: bool,
    /// Its header's bytes, to be used again.
    header: Buf,
    items: Vec<Queued>,
    /// The sums of the writes' units, in order.
    sums: Vec<u64>,
    pub outcome: Option<Outcome>,
    dispatched_at: Time,
}

/// A record before its header is made.
struct Building {
    entries: Vec<Entry>,
    header_len: u64,
    data_bytes: u64,
    fua: bool,
    /// Room for the header, then the data.
    parts: Vec<(u64, Data)>,
    items: Vec<Queued>,
    sums: Vec<u64>,
}

impl Logs {
    /// True if this write should be logged, and can be.
    pub(crate) fn wants_log(&mut self, now: Time, head: &IoHead) -> bool {
        self.adapt.saw_write(head.len);
        let (logs, size) = (&self.logs, self.layout.shape.log_bytes);
        let room = |l: &crate::log::Log| if l.state == State::Open { size - u64::from(l.tail) } else { 0 };
        self.adapt.turn(now, &self.layout, || logs.iter().map(room).sum());
        if !self.is_logged(head) {
            return false;
        }
        let waiting = self.queue.len() + (self.queue_bytes / UNIT_BYTES) as usize;
        let full = self.mtl.len() + waiting >= self.extents_high();
        if full || self.open.len() == 0 {
            self.counters.spilled += 1;
            self.need_clean();
        }
        !full && self.open.len() > 0 && !self.notes.is_stalled()
    }

    /// The number of extents from which on nothing more is logged until some have been checkpointed.
    pub(crate) fn extents_high(&self) -> usize {
        let fits = self.config.capacitor.map_or(u64::MAX, |c| self.layout.extents_in(c.budget_bytes()));
        (u64::from(self.layout.shape.extents_max).min(fits) / 4 * 3) as usize
    }

    pub(crate) fn enqueue(&mut self, now: Time, io: Io, out: &mut Actions) {
        out.declare(0, self.derived(&io.head));
        if self.queue.is_empty() {
            self.queue_since = now;
            if !self.gather_until.is_set() {
                self.gather_until = now + self.config.gather;
            }
        }
        self.queue_bytes += io.len;
        self.queue.push_back(Queued::Write(io));
        if now >= self.gather_until || self.is_record_full() {
            self.write_records(now, out);
        }
    }

    /// True if the queued entries fill one record.
    fn is_record_full(&self) -> bool {
        self.queue.len() >= ENTRIES_MAX || self.queue_bytes >= self.config.record_bytes_max
    }

    fn may_send(&self, now: Time) -> bool {
        let few = self.records_inflight < self.config.records_inflight_max;
        few || self.is_record_full() || now >= self.queue_since + PATIENCE
    }

    /// Builds records as long as something waits and some may go out.
    pub(crate) fn write_records(&mut self, now: Time, out: &mut Actions) {
        self.gather_until = Time::NEVER;
        if matches!(self.life, Life::Degraded(_)) {
            return self.spill(now, out);
        }
        while !self.queue.is_empty() {
            if !self.may_send(now) {
                self.gather_until = self.queue_since + PATIENCE;
                return;
            }
            let Some(log) = self.log_for_next() else { return self.spill(now, out) };
            // A recovery must look at every log that has a record beyond the last image, acknowledged or not: one that it
            // passed over once would come back in a later one. So the note goes first.
            if !self.notes.covers(log) && !self.has(Planted::NoteForgotten) {
                if self.notes.is_stalled() {
                    return self.spill(now, out);
                }
                self.notes.want(log);
                return self.write_note(now, out);
            }
            let first = header_bytes(1, self.layout.block()) + self.queue[0].data_bytes();
            if first > FIRST_BYTES_MAX && !self.logs[log as usize].has_new {
                // It needs no room of its own: without any left the next round finds another log.
                self.write_empty(now, log, out);
                continue;
            }
            self.write_record(now, log, out);
        }
    }

    /// The nearest log with room for what waits first. One without is full: it takes no more.
    fn log_for_next(&mut self) -> Option<u32> {
        let need = header_bytes(1, self.layout.block()) + self.queue.front()?.data_bytes();
        loop {
            let log = self.open.nearest(&self.layout, &self.logs, self.head_at)?;
            if u64::from(self.logs[log as usize].tail) + need <= self.layout.shape.log_bytes {
                return Some(log);
            }
            self.open.remove(log);
        }
    }

    /// No log has room: writes go to their home addresses, kills wait for an image.
    fn spill(&mut self, now: Time, out: &mut Actions) {
        self.queue_bytes = 0;
        for q in std::mem::take(&mut self.queue) {
            match q {
                Queued::Write(io) => {
                    self.counters.spilled += 1;
                    out.retract(0, io.id);
                    self.change(io, out);
                }
                Queued::Kill { .. } => self.kill_needs_image(),
            }
        }
        self.ask_to_clean(now, Why::Full, out);
    }

    fn write_record(&mut self, now: Time, log: u32, out: &mut Actions) {
        let block = self.layout.block();
        let room = self.layout.shape.log_bytes - u64::from(self.logs[log as usize].tail);
        let limit = room.min(self.config.record_bytes_max.max(header_bytes(1, block) + self.queue[0].data_bytes()));
        let limit = if self.logs[log as usize].has_new { limit } else { limit.min(FIRST_BYTES_MAX) };
        let (mut items, mut data_bytes) = (Vec::new(), 0);
        while let Some(q) = self.queue.front()
            && items.len() < ENTRIES_MAX
            && header_bytes(items.len() + 1, block) + data_bytes + q.data_bytes() <= limit
        {
            data_bytes += q.data_bytes();
            items.push(self.queue.pop_front().expect("just seen"));
        }
        self.queue_bytes -= data_bytes;
        self.queue_since = now;
        let mut sums = Vec::with_capacity(items.len());
        let entries: Vec<Entry> = items.iter().map(|q| self.entry(q, &mut sums)).collect();
        let mut parts = Vec::with_capacity(items.len() + 1);
        parts.push((0, Data::Absent));
        for q in &items {
            if let Queued::Write(io) = q {
                out.retract(0, io.id);
                // Shared, not moved: if the record fails they go elsewhere.
                parts.push((io.len, io.data.clone()));
            }
        }
        let header_len = header_bytes(items.len(), block);
        let fua = items.iter().any(Queued::is_fua);
        let record = Building { entries, header_len, data_bytes, fua, parts, items, sums };
        self.send_record(now, log, record, out);
    }

    /// Writes a record without entries to `log`: for its witnesses, or to show that the log is in use.
    fn write_empty(&mut self, now: Time, log: u32, out: &mut Actions) {
        let wanted = self.claims.unwritten().clamp(1, WITNESSES_MAX);
        let header_len = empty_header_bytes(wanted, self.layout.block());
        let parts = vec![(0, Data::Absent)];
        let (entries, items, sums) = (Vec::new(), Vec::new(), Vec::new());
        let record = Building { entries, header_len, data_bytes: 0, fua: true, parts, items, sums };
        self.send_record(now, log, record, out);
    }

    /// Writes the witnesses that are due, if no record came to hold them.
    pub(crate) fn write_witnesses(&mut self, now: Time, out: &mut Actions) {
        let due = now >= self.claims.due_at(self.config.witness_after);
        if !due || self.life != Life::Ready || self.durability_lost || self.has(Planted::WitnessNeverWritten) {
            return;
        }
        let need = empty_header_bytes(self.claims.unwritten().clamp(1, WITNESSES_MAX), self.layout.block());
        let has_room = |log: u32| u64::from(self.logs[log as usize].tail) + need <= self.layout.shape.log_bytes;
        match self.open.nearest(&self.layout, &self.logs, self.head_at).filter(|log| has_room(*log)) {
            // An image has what they would say.
            None => self.image_wanted = true,
            Some(log) if self.notes.covers(log) => {
                self.counters.witness_records += 1;
                self.write_empty(now, log, out);
            }
            Some(log) if !self.notes.is_stalled() => {
                self.notes.want(log);
                self.write_note(now, out);
            }
            Some(_) => {}
        }
    }

    fn send_record(&mut self, now: Time, log: u32, record: Building, out: &mut Actions) {
        let Building { entries, header_len, data_bytes, fua, mut parts, items, sums } = record;
        let at = self.layout.log_start(log) + u64::from(self.logs[log as usize].tail);
        let len = header_len + data_bytes;
        let l = &mut self.logs[log as usize];
        let place = Place { at, log, previous: l.sum, epoch: l.epoch };
        let room = witnesses_max(entries.len(), header_len);
        let witnesses = self.claims.take(now, room, (log, l.epoch, l.tail + len as u32), items.is_empty());
        let (header, record_sum) =
            encode_record(&mut self.buffers, &self.layout, place, &entries, &witnesses, self.start);
        assert_eq!(header.len() as u64, header_len, "a header is as long as planned");
        parts[0] = (header_len, Data::Bytes(header.clone()));
        // FUA makes it durable, but only a chain without volatile records makes it findable.
        let fua = fua && l.flushed_tail == l.tail;
        let record = Append {
            log,
            start: l.tail,
            end: l.tail + len as u32,
            sum: record_sum,
            fua,
            header,
            items,
            sums,
            outcome: None,
            dispatched_at: Time::NEVER,
        };
        (l.tail, l.sum) = (record.end, record_sum);
        l.used_at_sequence = self.next_sequence;
        l.swapped_in = false;
        l.has_new = true;
        if u64::from(l.tail) * 100 > self.layout.shape.log_bytes * CROWDED_PERCENT {
            self.crowded.insert(log);
        }
        let mut io = self.record_io(now, &record, at, len, out);
        io.data = Data::Parts(parts.into());
        self.notes.appended_to(log);
        self.records_inflight += 1;
        self.changed += record.items.len() as u64;
        self.counters.records += 1;
        self.counters.record_bytes += len;
        let key = self.ops.insert(Pending::Record(Box::new(record)));
        self.logs[log as usize].order.push_back(key);
        io.head.tag = key as u64;
        out.submit(0, io);
    }

    fn entry(&mut self, q: &Queued, sums: &mut Vec<u64>) -> Entry {
        match *q {
            Queued::Write(ref io) => {
                let sequence = self.next_sequence;
                self.next_sequence += 1;
                let first = sums.len();
                if io.len <= UNIT_BYTES {
                    sums.push(sum_of(&self.layout, io.len, &io.data));
                } else {
                    let of = |(from, len)| sum_of(&self.layout, len, &io.data.slice(io.len, from, len));
                    sums.extend(units(io.len).map(of));
                }
                let sum = sum_of_units(&self.layout, &sums[first..]);
                Entry { home: io.offset, len: io.len as u32, kind: EntryKind::Data, key: io.volume, sequence, sum }
            }
            Queued::Kill { home, len, key, sequence } => {
                Entry { home, len, kind: EntryKind::Kill, key, sequence, sum: 0 }
            }
        }
    }

    /// Enters logged bytes into the table, one extent per unit.
    pub(crate) fn map_units(&mut self, home: u64, whole: Mapped, sums: &[u64]) {
        for ((from, len), sum) in units(u64::from(whole.len)).zip(sums) {
            let unit = NonZeroU32::new(len as u32).map(|len| Unit { sum: *sum, skip: 0, len });
            self.mtl.put(home + from, Mapped { at: whole.at + from, len: len as u32, unit, ..whole });
        }
    }

    /// The write of a record: for its first client, or for the pool where it holds kills only.
    fn record_io(&self, now: Time, record: &Append, at: u64, len: u64, out: &mut Actions) -> Io {
        let first = record.items.iter().find_map(|q| match q {
            Queued::Write(io) => Some(io.head),
            Queued::Kill { .. } => None,
        });
        let mut io = match first {
            None => self.own(now, Op::Write, at, len, OwnKind::Metadata, out),
            Some(head) => out.piece(&head, Op::Write, at, len, 0),
        };
        io.head.flags = if record.fua || self.config.capacitor.is_some() { IoFlags::FUA } else { IoFlags::NONE };
        io
    }

    /// A record's write has ended: it counts when all before it in its log do.
    pub(crate) fn record_done(&mut self, now: Time, key: usize, c: Completion, out: &mut Actions) {
        let Pending::Record(record) = &mut self.ops[key] else { unreachable!("tagged as a record") };
        record.outcome = Some(c.outcome);
        record.dispatched_at = c.dispatched_at;
        let log = record.log;
        self.records_inflight -= 1;
        let failed = !c.outcome.is_done();
        let no_space = c.outcome == Outcome::Failed(IoError::NoSpace);
        drop(c); // it holds the header too, which is to be used again
        if failed {
            self.retire(log);
            self.logs[log as usize].no_space = no_space;
            self.claims.confirm(&self.logs);
        }
        if self.has(Planted::AckedOutOfOrder) {
            let order = &mut self.logs[log as usize].order;
            let i = order.iter().position(|k| *k == key).expect("it is under way");
            order.swap(0, i);
        }
        self.finish_records(now, log, out);
        self.write_records(now, out);
    }

    /// Ends the records of a log that have ended and follow on each other.
    pub(crate) fn finish_records(&mut self, now: Time, log: u32, out: &mut Actions) {
        while let Some(&key) = self.logs[log as usize].order.front() {
            let Pending::Record(r) = &self.ops[key] else { unreachable!("a record is under way") };
            let failed = self.logs[log as usize].state == State::Bad;
            if r.outcome.is_none() {
                return;
            }
            self.logs[log as usize].order.pop_front();
            let Pending::Record(r) = self.ops.remove(key) else { unreachable!("just seen") };
            if failed {
                self.record_failed(*r, out);
            } else {
                self.record_finished(now, *r, out);
            }
        }
    }

    fn record_finished(&mut self, now: Time, r: Append, out: &mut Actions) {
        let block = self.layout.block();
        self.buffers.give(r.header);
        let l = &mut self.logs[r.log as usize];
        (l.done_tail, l.done_sum) = (l.done_tail.max(r.end), r.sum);
        let durable = r.fua && l.flushed_tail == r.start;
        if !r.items.is_empty() {
            l.record_tail = r.end;
        }
        if durable {
            l.flushed_tail = r.end;
            self.claims.moved(r.log);
            self.claim_durable(now, r.log);
            self.claims.confirm(&self.logs);
        } else {
            self.dirty.insert(r.log);
            if r.items.is_empty() {
                self.flush_own(now, out);
            }
            if self.has(Planted::WitnessTooEarly) {
                self.claims.add(now, r.log, self.logs[r.log as usize].epoch, r.end);
            }
        }
        let mut at = self.layout.log_start(r.log) + u64::from(r.start) + header_bytes(r.items.len(), block);
        let mut sums = &r.sums[..];
        for q in r.items {
            match q {
                Queued::Write(mut io) => {
                    io.data = Data::Absent;
                    let (head, len) = (io.head, io.len);
                    let (mine, rest) = sums.split_at(units(len).count());
                    let whole = Mapped { at, len: len as u32, log: r.log, key: head.volume, unit: None };
                    self.map_units(head.offset, whole, mine);
                    if let Some(sequence) = self.stale.replaced(head.id) {
                        self.add_kill_of(head.offset, len, head.volume, sequence);
                    }
                    sums = rest;
                    at += len;
                    self.counters.logged += 1;
                    self.counters.logged_bytes += len;
                    let c = Completion { io, outcome: Outcome::Done, dispatched_at: r.dispatched_at };
                    if head.flags.has(IoFlags::FUA) && !durable && !self.has(Planted::FuaNotFlushed) {
                        self.flush_for(now, c, out);
                    } else {
                        self.end_client(now, c, out);
                    }
                }
                Queued::Kill { .. } => self.kill_recorded(now, out),
            }
        }
    }

    /// Nothing of the record counts, although all of it may be on the device: what it holds is logged anew elsewhere, and killed when
    /// that is durable.
    fn record_failed(&mut self, r: Append, out: &mut Actions) {
        self.counters.records_failed += 1;
        for q in r.items {
            if let Queued::Write(io) = &q {
                if self.has(Planted::KilledBeforeReplaced) {
                    self.add_kill(io.offset, io.len, io.volume);
                } else {
                    self.stale.failed(io.id, self.next_sequence);
                    self.next_sequence += 1;
                }
                self.queue_bytes += io.len;
                out.declare(0, self.derived(&io.head));
            }
            self.queue.push_back(q);
        }
    }
}
