//! The layer: what becomes of each request.
//!
//! ```text
//!  read ──► MTL ──► home, log, or pieces of both
//!  small write ──► queue ──► record at the log nearest the last non-logged I/O ──► MTL ──► done
//!  large write, trim, zeroes ──► home ──► what was logged of it is killed ──► done
//!  flush ──► flush below ──► (kills that aren't recorded: a record, flush below) ──► done
//! ```
//! Overlapping client requests don't meet here: the front serialises them. The layer's own writes home wait for no
//! client; a client's write home waits for an overlapping one of the layer's own.

use crate::adapt::Adapt;
use crate::append::{Append, Queued};
use crate::clean::Clean;
use crate::config::{LogsConfig, Planted};
use crate::control::LogsControl;
use crate::flush::{FlushJob, Kill};
use crate::format::is_as_written;
use crate::image::{CopyJob, ImageJob, Notes, Trouble};
use crate::layout::Layout;
use crate::log::{Log, Open, State, Tail};
use crate::mtl::{Mapped, Mtl};
use crate::recover::Recovery;
use crate::stale::StaleCopies;
use crate::status::Counters;
use crate::witness::Claims;
use plimsoll_base::{
    Buf, BufPool, Completion, Data, Io, IoError, IoFlags, IoHead, IoId, Op, Origin, Outcome, OwnKind, StatusExtent,
    Time, VolumeKey,
};
use plimsoll_stack::layer::CHECKED_MAX;
use plimsoll_stack::{Actions, Forecast, Layer, LayerState, Message, Offer, Port, Ports};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The state of the layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Recovering,
    Ready,
    /// A flush or a durable write failed: nothing more is moved.
    Degraded(&'static str),
    /// Not this device, or it can't be read.
    Failed(String),
}

/// See the module's documentation.
pub struct Logs {
    /// Bytes of a band below: home addresses of one band are copied together. 0: homes can be written one by one.
    pub(crate) band_bytes: u64,
    pub(crate) config: LogsConfig,
    pub(crate) layout: Layout,
    pub(crate) life: Life,
    /// A flush or a durable write failed: nothing is promised durable any more. Records written since the last good flush may be
    /// gone, and only a recovery from the device shows which.
    pub(crate) durability_lost: bool,
    /// Data that the start could not find, if any.
    pub(crate) lost: Option<String>,
    /// The image in force, to be copied as soon as both notes name it.
    pub(crate) copy_due: Option<Buf>,
    /// The last logged bytes that were not what had been written there.
    pub(crate) corrupt: Option<String>,
    /// A table's write failed and is tried again.
    pub(crate) trouble: Option<Trouble>,
    /// Durable records that no durable witness names.
    pub(crate) claims: Claims,
    pub(crate) mtl: Mtl,
    pub(crate) logs: Vec<Log>,
    pub(crate) open: Open,
    /// Logs with records that no flush has covered.
    pub(crate) dirty: BTreeSet<u32>,
    /// Logs that idle time is worth spending on.
    pub(crate) crowded: BTreeSet<u32>,
    /// Retired logs with data that a checkpoint couldn't read: those data by home, with their place and length. While all of them are valid, the
    /// next checkpoints leave the log out.
    pub(crate) unreadable: BTreeMap<u32, BTreeMap<u64, (u64, u64)>>,
    /// Logs with data whose places could not be written: the next checkpoint leaves them out, if there are others.
    pub(crate) unwritten: BTreeSet<u32>,
    pub(crate) ops: Slab<Pending>,
    /// Device address of the last non-logged I/O.
    pub(crate) head_at: u64,
    pub(crate) next_sequence: u64,
    /// Small writes and kills that wait for a record.
    pub(crate) queue: VecDeque<Queued>,
    /// Bytes of those writes.
    pub(crate) queue_bytes: u64,
    /// The time since which the queue waits: its first entry's, or the last record's.
    pub(crate) queue_since: Time,
    pub(crate) gather_until: Time,
    pub(crate) records_inflight: u32,
    /// Headers of records that have ended, to be used again.
    pub(crate) buffers: BufPool,
    /// Client writes home that wait for an own one.
    pub(crate) held: Vec<Io>,
    /// Requests that came while recovering.
    pub(crate) early: Vec<Io>,
    /// Superseded by something at home, and no record or image says so yet.
    pub(crate) kills: Vec<Kill>,
    /// A number that no other start of these logs has, in all its records. 0 where nothing was recovered.
    pub(crate) start: u64,
    /// Copies of writes in records that failed.
    pub(crate) stale: StaleCopies,
    pub(crate) flush_job: Option<FlushJob>,
    /// Flushes that wait for the next job.
    pub(crate) flush_next: Vec<Completion>,
    pub(crate) image: Option<ImageJob>,
    pub(crate) copy: Option<CopyJob>,
    /// The image in force and its slot.
    pub(crate) image_number: u64,
    pub(crate) image_slot: u64,
    /// The layout pages must be written with the next image.
    pub(crate) layouts_due: bool,
    /// The page that is written first: the corrupt or blank one.
    pub(crate) layouts_first: usize,
    /// Log to which an abandoned swap wrote: closed until an image knows the end of its data.
    pub(crate) closed_until_image: Vec<u32>,
    pub(crate) image_at: Time,
    /// Records and kills since the last image.
    pub(crate) changed: u64,
    pub(crate) image_wanted: bool,
    pub(crate) notes: Notes,
    pub(crate) clean: Option<Clean>,
    /// The operator asked for a checkpoint.
    pub(crate) clean_asked: bool,
    pub(crate) cleaned_at: Time,
    /// The beginning of the off-hours in which everything was last checkpointed.
    pub(crate) window_done: Time,
    pub(crate) clean_retry_at: Time,
    /// Draining: no new jobs of its own.
    pub(crate) stopping: bool,
    pub(crate) clients_inside: usize,
    pub(crate) client_at: Time,
    pub(crate) recovery: Option<Box<Recovery>>,
    /// A start needs an image before it serves; attempts to make room for it.
    pub(crate) making_room: Option<u32>,
    pub(crate) adapt: Adapt,
    pub(crate) counters: Counters,
}

/// Something sent below.
pub(crate) enum Pending {
    /// A client's request, whole.
    One {
        head: IoHead,
        read: Logged,
    },
    /// A client's request in pieces.
    Split(Box<Split>),
    /// A client's flush, and what it makes durable: log and position.
    Flush {
        head: IoHead,
        tails: Vec<Tail>,
    },
    Record(Box<Append>),
    /// A flush of the layer's own, and what it makes durable.
    OwnFlush {
        tails: Vec<Tail>,
    },
    /// A flush before anything is moved, and what it makes durable.
    CleanFlush {
        tails: Vec<Tail>,
    },
    /// The layer's own.
    Own(Own),
}

impl Pending {
    /// True if it is a client's change of any of this home range, on its way to the home address.
    pub fn changes(&self, from: u64, to: u64) -> bool {
        let overlaps = |h: &IoHead| h.op.is_change() && h.offset < to && from < h.end();
        match self {
            Pending::One { head, .. } => overlaps(head),
            Pending::Split(s) => overlaps(&s.head),
            _ => false,
        }
    }
}

/// Own requests, by who hears of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    JobFlush,
    ImageFlush,
    ImageWrite,
    ImageCopy,
    Note,
    Layout,
    CleanRead(usize),
    CleanWrite(usize),
    Recovery,
}

pub(crate) struct Split {
    head: IoHead,
    /// Range that is read of each piece, and its answer.
    pieces: Vec<(Logged, Data)>,
    outstanding: usize,
    failed: Option<Outcome>,
    dispatched_at: Time,
}

/// The report to the operator after such a failure.
pub(crate) const DURABILITY_LOST: &str =
    "a flush or a durable write failed: nothing is promised durable until the node is started again";

/// No log.
pub(crate) const HOME: u32 = u32::MAX;

/// The range that is read below for a piece of a client's request: in a log whole units, so that they can be checked.
pub(crate) struct Logged {
    log: u32,
    /// Bytes read.
    len: u64,
    /// The first of them that the client asked for, and how many it did.
    skip: u64,
    take: u64,
    sums: Sums,
}

/// The sums of what is read, in order: of all of it, or of runs of these lengths.
enum Sums {
    None,
    One(u64),
    Many(Vec<(u64, u64)>),
}

/// One piece of a client's request.
struct Piece {
    at: u64,
    read: Logged,
}

impl Piece {
    fn home(at: u64, len: u64) -> Piece {
        Piece { at, read: Logged { log: HOME, len, skip: 0, take: len, sums: Sums::None } }
    }

    fn logged(m: &Mapped) -> Piece {
        let (at, len) = m.checked_range();
        let sums = m.unit.map_or(Sums::None, |u| Sums::One(u.sum));
        Piece { at, read: Logged { log: m.log, len, skip: m.at - at, take: u64::from(m.len), sums } }
    }

    /// Takes `next` into the same read, if it is the whole of what follows in the same log.
    fn extend(&mut self, next: Piece) -> Option<Piece> {
        let (a, b) = (&mut self.read, next.read);
        let whole = a.skip + a.take == a.len && a.skip == 0 && b.take == b.len;
        if a.log == HOME || a.log != b.log || !whole || self.at + a.len != next.at {
            return Some(Piece { at: next.at, read: b });
        }
        let mut sums = match std::mem::replace(&mut a.sums, Sums::None) {
            Sums::Many(sums) => sums,
            Sums::One(sum) => vec![(a.len, sum)],
            Sums::None => return Some(Piece { at: next.at, read: b }),
        };
        let Sums::One(sum) = b.sums else {
            a.sums = Sums::Many(sums);
            return Some(Piece { at: next.at, read: b });
        };
        sums.push((b.len, sum));
        (a.len, a.take, a.sums) = (a.len + b.len, a.take + b.take, Sums::Many(sums));
        None
    }
}

impl Logged {
    /// True if the bytes read are those that were logged.
    fn is_as_written(&self, layout: &Layout, data: &Data) -> bool {
        match &self.sums {
            Sums::None => true,
            Sums::One(sum) => is_as_written(layout, self.len, data, *sum),
            Sums::Many(sums) => {
                let mut at = 0;
                sums.iter().all(|(len, sum)| {
                    at += len;
                    is_as_written(layout, *len, &data.slice(self.len, at - len, *len), *sum)
                })
            }
        }
    }

    /// The client's range of the data that were read.
    fn cut(&self, data: Data) -> Data {
        if self.take == self.len { data } else { data.slice(self.len, self.skip, self.take) }
    }
}

impl Logs {
    /// A layer over a formatted device, whose tables and records it reads before it serves.
    pub fn new(layout: Layout, config: LogsConfig) -> Logs {
        let first = |log| Log::new(0, crate::format::first_sum(&layout, log, 1), 1, false);
        let mut open = Open::default();
        (0..layout.logs).for_each(|log| open.insert(log));
        Logs {
            life: Life::Recovering,
            durability_lost: false,
            lost: None,
            copy_due: None,
            corrupt: None,
            trouble: None,
            claims: Claims::default(),
            mtl: Mtl::new(layout.logs).misplacing_cuts(config.planted == Some(Planted::CutMisplaced)),
            logs: (0..layout.logs).map(first).collect(),
            open,
            dirty: BTreeSet::new(),
            crowded: BTreeSet::new(),
            unreadable: BTreeMap::new(),
            unwritten: BTreeSet::new(),
            ops: Slab::new(),
            head_at: layout.base,
            next_sequence: 1,
            queue: VecDeque::new(),
            queue_bytes: 0,
            queue_since: Time::ZERO,
            gather_until: Time::NEVER,
            records_inflight: 0,
            buffers: BufPool::new(),
            held: Vec::new(),
            early: Vec::new(),
            kills: Vec::new(),
            start: 0,
            stale: StaleCopies::default(),
            band_bytes: 0,
            flush_job: None,
            flush_next: Vec::new(),
            image: None,
            copy: None,
            image_number: 1,
            image_slot: 0,
            layouts_due: false,
            layouts_first: 0,
            closed_until_image: Vec::new(),
            image_at: Time::ZERO,
            changed: 0,
            image_wanted: false,
            notes: Notes::new(&layout, config.capacitor.is_some()),
            clean: None,
            clean_asked: false,
            cleaned_at: Time::ZERO,
            window_done: Time::NEVER,
            clean_retry_at: Time::ZERO,
            stopping: false,
            clients_inside: 0,
            client_at: Time::ZERO,
            recovery: None,
            making_room: None,
            adapt: Adapt::new(&config),
            counters: Counters::default(),
            config,
            layout,
        }
    }

    /// A layer over a device that was just formatted: there is nothing to read.
    pub fn fresh(layout: Layout, config: LogsConfig) -> Logs {
        let mut logs = Logs { life: Life::Ready, ..Logs::new(layout, config) };
        logs.notes.start_afresh();
        logs
    }

    /// The same over bands of `band_bytes`, counted from home address 0: the logs to empty are chosen by the bands that they cost.
    #[must_use]
    pub fn over_bands(self, band_bytes: u64) -> Logs {
        Logs { band_bytes, ..self }
    }

    /// True if this mistake is planted.
    pub(crate) fn has(&self, planted: Planted) -> bool {
        self.config.planted == Some(planted)
    }

    /// An own request for the pool itself.
    pub(crate) fn own(&self, now: Time, op: Op, at: u64, len: u64, kind: OwnKind, out: &mut Actions) -> Io {
        let mut head = IoHead::new(op, VolumeKey::POOL, Default::default(), at, len, now);
        head.id = out.new_id();
        head.origin = Origin::Own(kind);
        Io::new(head, Data::Absent)
    }

    /// Sends an own request; `own` hears of its end.
    pub(crate) fn send_own(&mut self, mut io: Io, own: Own, out: &mut Actions) {
        io.head.tag = self.ops.insert(Pending::Own(own)) as u64;
        out.submit(0, io);
    }

    /// True if the device may have lost it, so that other content is found there, perhaps another volume's.
    fn is_doubtful(&self, m: &Mapped) -> bool {
        if m.is_lost() {
            return true;
        }
        let known = self.layout.log_start(m.log) + u64::from(self.logs[m.log as usize].flushed_tail);
        m.at + u64::from(m.len) > known
    }

    /// True if durability is lost and a read of a home range may find older data than was durable, or another volume's.
    fn reads_doubt(&self, from: u64, to: u64) -> bool {
        let superseded = |k: &Kill| k.home < to && from < k.home + k.len;
        self.kills.iter().any(superseded) || self.mtl.lookup(from, to).any(|(_, m)| self.is_doubtful(&m))
    }

    fn read(&mut self, now: Time, io: Io, out: &mut Actions) {
        let (from, to) = (io.offset, io.end());
        if self.durability_lost && self.reads_doubt(from, to) {
            let c = Completion { io, outcome: Outcome::Failed(IoError::Device), dispatched_at: Time::NEVER };
            return self.end_client(now, c, out);
        }
        let (device, run) = self.layout.to_device(from);
        if run >= io.len && !self.mtl.touches(from, to) {
            return self.pass(io, Piece::home(device, to - from), out);
        }
        let mut pieces = Vec::new();
        let mut at = from;
        // Collected first: the table is borrowed while it's looked through.
        let mapped: Vec<_> = self.mtl.lookup(from, to).collect();
        for (home, m) in mapped {
            if m.key != io.volume && io.volume != VolumeKey::POOL {
                self.counters.foreign_hidden += 1;
                continue;
            }
            if m.is_lost() {
                self.counters.reads_lost += 1;
                let c = Completion { io, outcome: Outcome::Failed(IoError::Device), dispatched_at: Time::NEVER };
                return self.end_client(now, c, out);
            }
            self.in_place(at, home, &mut pieces);
            at = home + u64::from(m.len);
            let piece = Piece::logged(&m);
            let apart = match pieces.last_mut() {
                Some(last) => last.extend(piece),
                None => Some(piece),
            };
            pieces.extend(apart);
        }
        self.in_place(at, to, &mut pieces);
        self.counters.reads_from_logs += u64::from(pieces.iter().any(|p| p.read.log != HOME));
        self.send_pieces(io, pieces, out);
    }

    /// Pieces of a home range, cut where a log lies between.
    fn in_place(&self, mut from: u64, to: u64, pieces: &mut Vec<Piece>) {
        while from < to {
            let (at, run) = self.layout.to_device(from);
            let len = run.min(to - from);
            pieces.push(Piece::home(at, len));
            from += len;
        }
    }

    fn send_pieces(&mut self, io: Io, mut pieces: Vec<Piece>, out: &mut Actions) {
        if pieces.len() == 1 {
            return self.pass(io, pieces.remove(0), out);
        }
        let at = self.ops.vacant_key() as u64;
        let split = Split {
            head: io.head,
            pieces: Vec::with_capacity(pieces.len()),
            outstanding: pieces.len(),
            failed: None,
            dispatched_at: Time::NEVER,
        };
        let mut split = Box::new(split);
        let mut covered = 0;
        for (i, p) in pieces.into_iter().enumerate() {
            let mut child = out.piece(&io.head, io.op, p.at, p.read.len, at | (i as u64) << 32);
            child.data = io.data.slice(io.len, covered, p.read.take);
            covered += p.read.take;
            self.reads_from(&p);
            split.pieces.push((p.read, Data::Absent));
            out.submit(0, child);
        }
        self.ops.insert(Pending::Split(split));
    }

    fn pass(&mut self, mut io: Io, p: Piece, out: &mut Actions) {
        self.reads_from(&p);
        let len = p.read.len;
        let pending = Pending::One { head: io.head, read: p.read };
        io.head.tag = self.ops.insert(pending) as u64;
        (io.head.offset, io.head.len) = (p.at, len);
        out.submit(0, io);
    }

    fn reads_from(&mut self, p: &Piece) {
        self.head_at = p.at;
        if p.read.log != HOME {
            self.logs[p.read.log as usize].readers += 1;
        }
    }

    /// Returns the data read for a client's piece, if they are what was logged there.
    fn checked(&mut self, head: &IoHead, read: &Logged, data: Data) -> Option<Data> {
        if read.is_as_written(&self.layout, &data) || self.has(Planted::ReadUnchecked) {
            return Some(read.cut(data));
        }
        self.is_corrupt(read.log, head.volume, head.offset);
        None
    }

    /// Notes that logged bytes are not what was written.
    pub(crate) fn is_corrupt(&mut self, log: u32, key: VolumeKey, home: u64) {
        self.counters.reads_corrupt += 1;
        self.corrupt = Some(format!(
            "log {log} has other bytes than were written to it, last seen for volume {} near byte {home} of the pool: such reads fail; write the range again or restore it, and replace the device",
            key.id
        ));
    }

    /// A request no longer reads from `log`.
    fn read_ended(&mut self, log: u32, failed: bool) {
        if log == HOME {
            return;
        }
        let l = &mut self.logs[log as usize];
        l.readers -= 1;
        if l.readers == 0 && l.state == State::Draining {
            l.state = State::Open;
            self.open.insert(log);
        }
        if failed {
            self.retire(log);
        }
    }

    /// A log is used no more: what is in it stays readable as far as it is.
    pub(crate) fn retire(&mut self, log: u32) {
        let l = &mut self.logs[log as usize];
        if l.state != State::Bad {
            l.state = State::Bad;
            self.open.remove(log);
            self.crowded.remove(&log);
            self.claims.moved(log);
            self.counters.logs_retired += 1;
            self.changed += 1;
        }
    }

    /// Sends a change to its home address.
    pub(crate) fn change(&mut self, mut io: Io, out: &mut Actions) {
        let (from, to) = (io.offset, io.end());
        if self.config.capacitor.is_some() && self.mtl.touches(from, to) {
            // The capacitor's table says at once that the log's is no longer valid: then this must be.
            io.head.flags = io.head.flags.with(IoFlags::FUA);
        }
        let busy = self.clean.as_ref().is_some_and(|c| c.writes(from, to));
        if busy && !self.has(Planted::HomeUnordered) {
            out.declare(0, self.derived(&io.head));
            return self.held.push(io);
        }
        let mut pieces = Vec::new();
        self.in_place(from, to, &mut pieces);
        self.send_pieces(io, pieces, out);
    }

    /// A request that overlapped an own write home may go now.
    pub(crate) fn release_held(&mut self, out: &mut Actions) {
        for io in std::mem::take(&mut self.held) {
            out.retract(0, io.id);
            self.change(io, out);
        }
    }

    /// A client's request to home addresses has ended.
    fn ended_in_place(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        let head = c.io.head;
        if !head.op.is_change() {
            return self.end_client(now, c, out);
        }
        if !c.outcome.is_done() {
            self.stale.ended(head.id, head.offset, head.len, head.volume);
            return self.end_client(now, c, out);
        }
        let forgotten = head.op == Op::Trim && self.has(Planted::TrimForgotten);
        self.stale.ended(head.id, head.offset, head.len, head.volume);
        let killed = !forgotten && self.kill(head.offset, head.len, head.volume);
        if head.flags.has(IoFlags::FUA) && self.durability_lost {
            // It is there, but maybe not what makes a recovery look for it there.
            c.outcome = Outcome::Failed(IoError::FlushFailed);
            return self.end_client(now, c, out);
        }
        // Durable at home is not enough while a recovery would believe a log instead, whoever superseded that.
        if head.flags.has(IoFlags::FUA) && (killed || self.has_unrecorded_kill(head.offset, head.end())) {
            return self.flush_for(now, c, out);
        }
        self.end_client(now, c, out);
    }

    /// A client's request ends.
    pub(crate) fn end_client(&mut self, now: Time, c: Completion, out: &mut Actions) {
        self.clients_inside -= 1;
        self.client_at = now;
        out.complete(c);
    }

    fn split_done(&mut self, now: Time, at: usize, piece: usize, c: Completion, out: &mut Actions) {
        let Pending::Split(s) = &mut self.ops[at] else { unreachable!("tagged as a split request") };
        s.outstanding -= 1;
        s.dispatched_at = s.dispatched_at.min(c.dispatched_at);
        let last = s.outstanding == 0;
        let head = s.head;
        // Put back below: it is borrowed while it's checked.
        let read = std::mem::replace(&mut s.pieces[piece].0, Piece::home(0, 0).read);
        let mut outcome = c.outcome;
        let mut data = Data::Absent;
        if outcome.is_done() && head.op == Op::Read {
            match self.checked(&head, &read, c.io.into_data()) {
                Some(checked) => data = checked,
                None => outcome = Outcome::Failed(IoError::Device),
            }
        }
        self.read_ended(read.log, is_device(outcome));
        let Pending::Split(s) = &mut self.ops[at] else { unreachable!("tagged as a split request") };
        s.pieces[piece] = (read, data);
        if !outcome.is_done() {
            s.failed = Some(outcome);
        }
        if last {
            let Pending::Split(s) = self.ops.remove(at) else { unreachable!("just seen") };
            let outcome = s.failed.unwrap_or(Outcome::Done);
            let data = if outcome.is_done() && s.head.op == Op::Read { join(s.pieces) } else { Data::Absent };
            let c = Completion { io: Io::new(s.head, data), outcome, dispatched_at: s.dispatched_at };
            self.ended_in_place(now, c, out);
        }
    }

    /// Cached data and holes: an answer may cover less than was asked, and where something is logged it's data.
    fn block_status(&mut self, io: Io, out: &mut Actions) {
        let (at, run) = self.layout.to_device(io.offset);
        if self.mtl.touches(io.offset, io.end()) {
            let all = StatusExtent { len: io.len, hole: false, zero: false };
            self.clients_inside -= 1;
            return out.done(io, Data::Status(vec![all].into()));
        }
        let len = io.len.min(run);
        let head = io.head;
        let mut below = io;
        below.head.len = len;
        below.head.offset = at;
        below.head.tag = self.ops.insert(Pending::One { head, read: Piece::home(at, len).read }) as u64;
        out.submit(0, below);
    }

    /// The predicted place of `head` on the device, for forecasts.
    pub(crate) fn derived(&self, head: &IoHead) -> IoHead {
        let mut below = *head;
        if head.op == Op::Flush || head.end() > self.layout.home_bytes || head.len == 0 {
            return below;
        }
        if self.is_logged(head)
            && let Some(log) = self.open.nearest(&self.layout, &self.logs, self.head_at)
        {
            let l = &self.logs[log as usize];
            let end = self.layout.shape.log_bytes - head.len.min(self.layout.shape.log_bytes);
            below.offset = self.layout.log_start(log) + u64::from(l.tail).min(end);
            return below;
        }
        let (at, run) = self.layout.to_device(head.offset);
        let mapped = if head.op == Op::Read { self.mtl.lookup(head.offset, head.end()).next() } else { None };
        (below.offset, below.len) = match mapped {
            Some((home, m)) if home == head.offset && !m.is_lost() => (m.at, u64::from(m.len)),
            Some((home, _)) if home == head.offset => (at, run.min(head.len)),
            Some((home, _)) => (at, run.min(home - head.offset)),
            None => (at, run.min(head.len)),
        };
        below
    }

    /// True if a write goes to a log (ML-M2).
    pub(crate) fn is_logged(&self, head: &IoHead) -> bool {
        head.op == Op::Write && head.len <= self.adapt.logged_write_bytes() && matches!(self.life, Life::Ready)
    }

    fn own_done(&mut self, now: Time, own: Own, c: Completion, out: &mut Actions) {
        match own {
            Own::JobFlush => self.job_flushed(now, &c, out),
            Own::ImageFlush => self.image_flushed(now, &c, out),
            Own::ImageWrite => self.image_written(now, &c, out),
            Own::ImageCopy => self.copy_written(now, &c, out),
            Own::Note => self.note_written(now, &c, out),
            Own::Layout => self.layout_written(now, &c, out),
            Own::CleanRead(i) => self.clean_read(i, c),
            Own::CleanWrite(i) => self.clean_written(i, &c, out),
            Own::Recovery => self.recovery_read(now, c, out),
        }
    }

    fn accept(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.clients_inside += 1;
        self.client_at = now;
        if io.op != Op::Flush && io.end() > self.layout.home_bytes {
            self.clients_inside -= 1;
            return out.end(io, Outcome::Failed(IoError::Invalid));
        }
        match io.op {
            Op::Flush => self.flush(now, io, out),
            Op::BlockStatus => self.block_status(io, out),
            _ if io.len == 0 => {
                self.clients_inside -= 1;
                out.done(io, Data::Absent);
            }
            Op::Read | Op::Cache => {
                self.adapt.saw_other(io.len);
                self.read(now, io, out);
            }
            Op::Write if self.wants_log(now, &io.head) => self.enqueue(now, io, out),
            Op::Write | Op::WriteZeroes | Op::Trim => {
                self.adapt.saw_other(io.len);
                self.change(io, out);
            }
        }
    }
}

/// True if the device itself failed (as against a request that was withdrawn).
pub(crate) fn is_device(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Failed(IoError::Device))
}

fn join(pieces: Vec<(Logged, Data)>) -> Data {
    if pieces.iter().all(|(_, d)| matches!(d, Data::Absent)) {
        return Data::Absent;
    }
    Data::Parts(pieces.into_iter().map(|(read, d)| (read.take, d)).collect())
}

impl Layer for Logs {
    fn name(&self) -> &'static str {
        "logs"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { size_bytes: self.layout.home_bytes, ..below[0] }
    }

    fn start(&mut self, now: Time, below: &[Offer], out: &mut Actions) {
        let b = &below[0];
        if b.size_bytes < self.layout.device_bytes || b.block_bytes != self.layout.block_bytes {
            self.life = Life::Failed(format!(
                "the logs were made for {} bytes in blocks of {}, the device has {} in blocks of {}",
                self.layout.device_bytes, self.layout.block_bytes, b.size_bytes, b.block_bytes
            ));
        }
        self.image_at = now;
        self.cleaned_at = now;
        if self.life == Life::Recovering {
            self.recover(now, out);
        }
    }

    fn state(&self) -> LayerState {
        match self.life {
            Life::Recovering => LayerState::Recovering,
            Life::Ready if self.problem().is_some() => LayerState::Degraded,
            Life::Ready => LayerState::Ready,
            Life::Degraded(_) => LayerState::Degraded,
            Life::Failed(_) => LayerState::Failed,
        }
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let first = self.derived(head);
        let mut f = below.ask(0, at, &first);
        // What a split request's other pieces take comes on top; they lie close by.
        if first.len > 0 && first.len < head.len {
            let mut rest = first;
            (rest.offset, rest.len) = (first.end(), head.len - first.len);
            f = f.and_part(&below.ask(0, at, &rest));
        }
        f
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        match self.life {
            Life::Recovering => self.early.push(io),
            Life::Failed(_) => out.end(io, Outcome::Failed(IoError::Unavailable)),
            Life::Ready | Life::Degraded(_) => {
                self.accept(now, io, out);
                self.arm(now, out);
            }
        }
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        let (at, piece) = ((c.io.tag & 0xffff_ffff) as usize, (c.io.tag >> 32) as usize);
        match self.ops[at] {
            Pending::Split(_) => self.split_done(now, at, piece, c, out),
            Pending::Record(_) => self.record_done(now, at, c, out),
            _ => match self.ops.remove(at) {
                Pending::One { head, read } => {
                    if head.op == Op::Read && c.outcome.is_done() && read.log != HOME {
                        let data = std::mem::replace(&mut c.io.data, Data::Absent);
                        match self.checked(&head, &read, data) {
                            Some(data) => c.io.data = data,
                            None => c.outcome = Outcome::Failed(IoError::Device),
                        }
                    }
                    c.io.head = head;
                    self.read_ended(read.log, is_device(c.outcome));
                    self.ended_in_place(now, c, out);
                }
                Pending::Flush { head, tails } => {
                    c.io.head = head;
                    c.outcome = self.flushed(now, c.outcome, tails);
                    self.end_client(now, c, out);
                }
                Pending::OwnFlush { tails } => {
                    self.flushed(now, c.outcome, tails);
                }
                Pending::CleanFlush { tails } => self.clean_flushed(now, c.outcome, tails),
                Pending::Own(own) => self.own_done(now, own, c, out),
                Pending::Split(_) | Pending::Record(_) => unreachable!("handled above"),
            },
        }
        self.work(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        if now >= self.gather_until {
            self.write_records(now, out);
        }
        self.work(now, out);
    }

    fn cancel(&mut self, now: Time, id: IoId, out: &mut Actions) {
        if let Some(i) = self.queue.iter().position(|q| q.id() == Some(id)) {
            let Some(Queued::Write(io)) = self.queue.remove(i) else { unreachable!("only writes have an id") };
            self.queue_bytes -= io.len;
            self.stale.ended(id, io.offset, io.len, io.volume);
            out.retract(0, id);
            let io = Completion { io, outcome: Outcome::Failed(IoError::Cancelled), dispatched_at: Time::NEVER };
            return self.end_client(now, io, out);
        }
        if self.ops.iter().any(|(_, p)| matches!(p, Pending::One { head, .. } if head.id == id)) {
            out.cancel(0, id);
        }
    }

    fn can_trust_flush(&self) -> bool {
        !self.durability_lost
    }

    fn durability_lost(&mut self, _now: Time, _port: Port) -> bool {
        if !self.has(Planted::LossUnheard) {
            self.durability_lost = true;
            self.degrade(DURABILITY_LOST);
        }
        true
    }

    fn declared(&mut self, head: &IoHead, out: &mut Actions) {
        out.declare(0, self.derived(head));
    }

    fn told(&mut self, now: Time, message: &[u8], out: &mut Actions) -> bool {
        let Some(control) = LogsControl::decode(message) else { return false };
        match control {
            LogsControl::Checkpoint => {
                self.clean_asked = true;
                // Perhaps it succeeds everywhere by now.
                self.unreadable.clear();
                self.unwritten.clear();
            }
            LogsControl::LoggedWriteBytes(bytes) => {
                self.config.logged_write_bytes = bytes;
                self.adapt.configure(bytes);
            }
        }
        self.work(now, out);
        true
    }

    fn stop(&mut self, now: Time, out: &mut Actions) {
        self.begin_stop(now);
        self.work(now, out);
    }

    fn drain(&mut self, now: Time, out: &mut Actions) {
        self.stopping = true;
        if (self.changed > 0 || !self.claims.is_empty()) && self.life == Life::Ready {
            self.image_wanted = true;
        }
        self.work(now, out);
    }

    fn is_idle(&self) -> bool {
        self.ops.is_empty()
            && self.queue.is_empty()
            && self.held.is_empty()
            && self.early.is_empty()
            && self.flush_job.is_none()
            && !self.is_image_busy()
            && self.recovery.is_none()
    }

    fn check(&self) {
        if self.queue.len().max(self.ops.len()) > CHECKED_MAX {
            return;
        }
        let queued: u64 = self.queue.iter().map(Queued::data_bytes).sum();
        assert_eq!(self.queue_bytes, queued, "the queue's bytes are wrong");
        let is_written = |p: &Pending| matches!(p, Pending::Record(r) if r.outcome.is_none());
        let records = self.ops.iter().filter(|(_, p)| is_written(p)).count();
        assert_eq!(self.records_inflight as usize, records, "the number of records in flight is wrong");
        assert!(!self.is_idle() || self.clients_inside == 0, "an idle layer has requests of clients");
    }
}
