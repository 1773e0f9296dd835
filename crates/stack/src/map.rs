//! The map: where a volume's bytes live on the device.
//!
//! Above it addresses count from a volume's start, below it from the device's. A volume is a list of extents; a
//! request that crosses from one to another becomes pieces. The table itself is durable in the node's metadata store;
//! this layer only holds it.
//!
//! Space that changes owner is zeroed here ([`Map::zero`]) before the store hands it out again.

use crate::layer::{Actions, Forecast, Layer, Offer, Port, Ports};
use plimsoll_base::{Completion, Data, Io, IoError, IoHead, IoId, Op, Origin, Outcome, OwnKind, Time, VolumeKey};
use slab::Slab;
use std::collections::BTreeMap;

/// A run of a volume's bytes and where they live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First byte on the device.
    pub device_offset: u64,
    /// Length in bytes; a multiple of the device's block.
    pub len: u64,
}

/// See the module's documentation.
pub struct Map {
    volumes: BTreeMap<VolumeKey, Table>,
    pending: Slab<Pending>,
    zeroing: BTreeMap<u64, ZeroJob>,
    zeroed: Vec<(u64, Result<(), IoError>)>,
    stopping: bool,
    block_bytes: u32,
    piece_bytes: u64,
}

impl Default for Map {
    fn default() -> Map {
        Map {
            volumes: BTreeMap::new(),
            pending: Slab::new(),
            zeroing: BTreeMap::new(),
            zeroed: Vec::new(),
            stopping: false,
            block_bytes: 0,
            piece_bytes: ZERO_BYTES,
        }
    }
}

/// A volume's extents with the volume address at which each starts, ascending.
struct Table(Vec<(u64, Extent)>);

struct Pending {
    head: IoHead,
    /// Answers by piece, in address order, filled as they come. Empty for a request that wasn't cut.
    pieces: Vec<(u64, Data)>,
    outstanding: usize,
    failed: Option<Outcome>,
    dispatched_at: Time,
}

struct ZeroJob {
    extents: Vec<Extent>,
    next: usize,
    done_in_extent: u64,
    /// The device may have lost zeroes that it had acknowledged. Its next flush says nothing of them.
    doubted: bool,
}

const ZERO_TAG: u64 = 1 << 63;
/// Zeroing goes in pieces of this size, or smaller ones, one at a time per job, so that clients' requests pass between them.
const ZERO_BYTES: u64 = 64 << 20;

impl Table {
    fn new(extents: &[Extent]) -> Table {
        let mut at = 0;
        let with_start = |e: &Extent| {
            let start = at;
            at += e.len;
            (start, *e)
        };
        Table(extents.iter().map(with_start).collect())
    }

    fn size_bytes(&self) -> u64 {
        self.0.last().map_or(0, |(start, e)| start + e.len)
    }

    /// The device offset of `offset`, and how many bytes from there lie together.
    fn locate(&self, offset: u64) -> (u64, u64) {
        let i = self.0.partition_point(|(start, _)| *start <= offset) - 1;
        let (start, e) = self.0[i];
        (e.device_offset + (offset - start), e.len - (offset - start))
    }
}

impl Map {
    /// A map without volumes.
    pub fn new() -> Map {
        Map::default()
    }

    /// Zeroes in pieces of at most `bytes`, whole blocks, instead of 64 MiB: where time is cut into slots, they must fit.
    pub fn with_pieces(mut self, bytes: u64) -> Map {
        self.piece_bytes = bytes.clamp(1 << 12, ZERO_BYTES);
        self
    }

    /// Sets a volume's extents, in the order of its addresses. Existing data stays where the table's beginning is the
    /// same as before (growing).
    pub fn set_volume(&mut self, key: VolumeKey, extents: &[Extent]) {
        self.volumes.insert(key, Table::new(extents));
    }

    /// Forgets a volume.
    ///
    /// # Panics
    /// If requests for it are under way.
    pub fn remove_volume(&mut self, key: VolumeKey) {
        assert!(self.pending.iter().all(|(_, p)| p.head.volume != key), "volume {key:?} is removed while in use");
        self.volumes.remove(&key);
    }

    /// True if a request has bytes, and all of them lie in a known volume.
    fn knows(&self, head: &IoHead) -> bool {
        self.volumes.get(&head.volume).is_some_and(|t| head.len > 0 && head.end() <= t.size_bytes())
    }

    /// Begins to zero `extents` and to make that durable; [`Map::next_zeroed`] tells when job `job` has ended. It fails if any flush of the
    /// device fails before: that may have lost zeroes.
    pub fn zero(&mut self, now: Time, job: u64, extents: Vec<Extent>, out: &mut Actions) {
        assert!(job < ZERO_TAG && !self.zeroing.contains_key(&job), "zeroing job {job} exists");
        self.zeroing.insert(job, ZeroJob { extents, next: 0, done_in_extent: 0, doubted: false });
        self.zero_more(now, job, out);
    }

    /// A zeroing job that has ended.
    pub fn next_zeroed(&mut self) -> Option<(u64, Result<(), IoError>)> {
        self.zeroed.pop()
    }

    fn zero_more(&mut self, now: Time, job: u64, out: &mut Actions) {
        let z = self.zeroing.get_mut(&job).expect("job exists");
        let mut head = IoHead::new(Op::WriteZeroes, VolumeKey::POOL, Default::default(), 0, 0, now);
        head.id = out.new_id();
        head.origin = Origin::Own(OwnKind::Zeroing);
        head.tag = ZERO_TAG | job;
        if let Some(e) = z.extents.get(z.next) {
            head.offset = e.device_offset + z.done_in_extent;
            head.len = self.piece_bytes.min(e.len - z.done_in_extent);
            z.done_in_extent += head.len;
            if z.done_in_extent == e.len {
                (z.next, z.done_in_extent) = (z.next + 1, 0);
            }
        } else {
            head.op = Op::Flush;
        }
        out.submit(0, Io::new(head, Data::Absent));
    }

    fn zero_done(&mut self, now: Time, job: u64, c: &Completion, out: &mut Actions) {
        let result = match c.outcome {
            Outcome::Done if self.zeroing[&job].doubted => Err(IoError::Device),
            Outcome::Done if c.io.op == Op::Flush => Ok(()),
            Outcome::Done if self.stopping => Err(IoError::Unavailable),
            Outcome::Done => return self.zero_more(now, job, out),
            Outcome::Failed(e) => Err(e),
            Outcome::Busy { .. } => unreachable!("own I/O is never refused"),
        };
        self.zeroing.remove(&job);
        self.zeroed.push((job, result));
    }

    /// Ends a request in `last`, the last that came back from below for it: a new one costs an allocation.
    fn finish(&mut self, at: usize, mut last: Io, out: &mut Actions) {
        let p = self.pending.remove(at);
        let outcome = p.failed.unwrap_or(Outcome::Done);
        let is_whole = p.pieces.is_empty();
        last.head = p.head;
        last.data = match (outcome, p.head.op) {
            (Outcome::Done, Op::Read) if is_whole => std::mem::take(&mut last.data),
            (Outcome::Done, Op::Read) => join(p.pieces),
            (Outcome::Done, Op::BlockStatus) if is_whole => {
                join_status(vec![(p.head.len, std::mem::take(&mut last.data))])
            }
            (Outcome::Done, Op::BlockStatus) => join_status(p.pieces),
            _ => Data::Absent,
        };
        out.complete(Completion { io: last, outcome, dispatched_at: p.dispatched_at });
    }
}

fn join(pieces: Vec<(u64, Data)>) -> Data {
    if pieces.iter().all(|(_, d)| matches!(d, Data::Absent)) {
        return Data::Absent;
    }
    Data::Parts(pieces.into())
}

fn join_status(pieces: Vec<(u64, Data)>) -> Data {
    let mut all: Vec<plimsoll_base::StatusExtent> = Vec::new();
    for (len, d) in pieces {
        let Data::Status(extents) = d else { return Data::Absent };
        let mut covered = 0;
        for e in extents.iter() {
            covered += e.len;
            match all.last_mut() {
                Some(last) if (last.hole, last.zero) == (e.hole, e.zero) => last.len += e.len,
                _ => all.push(*e),
            }
        }
        if covered < len {
            break; // an answer may stop early; what follows would not adjoin
        }
    }
    Data::Status(all.into())
}

impl Layer for Map {
    fn name(&self) -> &'static str {
        "map"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.block_bytes = below[0].block_bytes;
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let Some(table) = self.volumes.get(&head.volume) else { return Forecast::NONE };
        if head.op == Op::Flush || head.len == 0 || head.end() > table.size_bytes() {
            return Forecast::NONE;
        }
        let (device_offset, run) = table.locate(head.offset);
        let mut first = *head;
        (first.offset, first.len) = (device_offset, head.len.min(run));
        let mut forecast = below.ask(0, at, &first);
        let mut covered = first.len;
        // Pieces are served one after the other on one device: their services add up.
        while covered < head.len {
            let (device_offset, run) = table.locate(head.offset + covered);
            let mut piece = *head;
            (piece.offset, piece.len) = (device_offset, (head.len - covered).min(run));
            forecast = forecast.and_part(&below.ask(0, at, &piece));
            covered += piece.len;
        }
        forecast
    }

    fn submit(&mut self, _now: Time, mut io: Io, out: &mut Actions) {
        let Some(table) = self.volumes.get(&io.volume) else {
            return out.end(io, Outcome::Failed(IoError::Unavailable));
        };
        let head = io.head;
        let mut pending =
            Pending { head, pieces: Vec::new(), outstanding: 1, failed: None, dispatched_at: Time::NEVER };
        let at = self.pending.vacant_key() as u64;
        if head.op == Op::Flush {
            io.head.tag = at;
            self.pending.insert(pending);
            return out.submit(0, io);
        }
        if head.end() > table.size_bytes() {
            return out.end(io, Outcome::Failed(IoError::Invalid));
        }
        let (device_offset, run) = table.locate(head.offset);
        if head.len <= run {
            self.pending.insert(pending);
            (io.head.tag, io.head.offset) = (at, device_offset);
            return out.submit(0, io);
        }
        let mut covered = 0;
        while covered < head.len {
            let (device_offset, run) = table.locate(head.offset + covered);
            let len = (head.len - covered).min(run);
            let tag = at | (pending.pieces.len() as u64) << 32;
            let mut piece = out.piece(&head, head.op, device_offset, len, tag);
            piece.data = io.data.slice(head.len, covered, len);
            pending.pieces.push((len, Data::Absent));
            out.submit(0, piece);
            covered += len;
        }
        pending.outstanding = pending.pieces.len();
        self.pending.insert(pending);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        if c.io.tag & ZERO_TAG != 0 {
            return self.zero_done(now, c.io.tag & !ZERO_TAG, &c, out);
        }
        let (at, piece) = ((c.io.tag & 0xffff_ffff) as usize, (c.io.tag >> 32) as usize);
        let p = &mut self.pending[at];
        p.outstanding -= 1;
        p.dispatched_at = p.dispatched_at.min(c.dispatched_at);
        match c.outcome {
            Outcome::Done if p.pieces.is_empty() => {}
            Outcome::Done => p.pieces[piece].1 = std::mem::take(&mut c.io.data),
            other => p.failed = Some(other),
        }
        if p.outstanding == 0 {
            self.finish(at, c.io, out);
        }
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        // Pieces have ids of their own: below, nobody knows the id of a request that was cut.
        out.cancel(0, id);
    }

    fn durability_lost(&mut self, _now: Time, _port: Port) -> bool {
        self.zeroing.values_mut().for_each(|z| z.doubted = true);
        true
    }

    fn declared(&mut self, head: &IoHead, out: &mut Actions) {
        if head.op != Op::Flush && self.knows(head) {
            out.declare(0, self.below_as(head));
        }
    }

    fn below_as(&self, head: &IoHead) -> IoHead {
        let mut below = *head;
        if head.op != Op::Flush && self.knows(head) {
            let (device_offset, run) = self.volumes[&head.volume].locate(head.offset);
            (below.offset, below.len) = (device_offset, head.len.min(run));
        }
        below
    }

    /// Zeroing can wait for the next start: each job ends as unavailable after the piece that is under way.
    fn stop(&mut self, _now: Time, _out: &mut Actions) {
        self.stopping = true;
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.zeroing.is_empty()
    }
}
