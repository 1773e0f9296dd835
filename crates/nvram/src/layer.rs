//! NVRAM before the fast device (NI-M14): a small device that survives a loss of power, for writes that must be durable at once.
//!
//! ```text
//!  small write ──► record in both copies of the NVRAM's ring ──► done, and durable;  now and then: to the device, flush, the ring
//!                  begins later
//!  large write ──► the device
//!  flush ──► done, unless something large was written since the last one
//!  start ──► records that are whole in either copy, in order ──► the device, flush ──► the ring is empty ──► serving
//! ```
//! The cache above doesn't know of the NVRAM. Its journal and the ends of its WEUs are small writes, so a client's flush in write-back
//! mode waits for the NVRAM only.

use crate::planted::Planted;
use crate::ring::{Reading, Record, Ring};
use plimsoll_base::{
    Buf, BufMut, Completion, Data, Io, IoError, IoFlags, IoHead, Op, Origin, Outcome, OwnKind, TenantId, Time,
    VolumeKey,
};
use plimsoll_stack::layer::{CHECKED_EACH_MAX, CHECKED_MAX};
use plimsoll_stack::pieces::Pieces;
use plimsoll_stack::{Actions, Layer, LayerState, Offer, Port};
use slab::Slab;
use std::collections::VecDeque;

/// The port to the NVRAM, all of which is this layer's.
pub const NVRAM: Port = 0;
/// The port to the device it stands before.
pub const DEVICE: Port = 1;
/// Writes up to this go to the NVRAM, up to an eighth of what it keeps, and up to a quarter of a unit that the device is written in.
const SMALL_MAX: u64 = 128 << 10;
/// Less isn't worth it.
const BYTES_MIN: u64 = 64 << 10;
/// Of fewer blocks a ring may have no room for the largest record although it holds nothing.
const BLOCKS_MIN: u64 = 64;
/// Requests of the device at once when moving on.
const MOVES_MAX: usize = 16;
/// The NVRAM is read in pieces of this size.
const PIECE_BYTES: u64 = 1 << 20;

/// The purpose of a request sent below.
enum Pending {
    /// A client's, at the device; a read's answer goes below what is in the NVRAM.
    Pass {
        head: IoHead,
        over: Option<Pieces>,
    },
    /// A client's flush at the device: how many large writes it covers.
    Flush {
        head: IoHead,
        covers: u64,
    },
    /// A copy of a record of a client's write.
    Log(usize),
    Move,
    MovesFlushed,
    /// A copy of the record that says that the ring begins later.
    Begins,
    /// A range of the NVRAM.
    Recover((u64, u64)),
}

/// A client's write on its way into the ring.
struct Logged {
    io: Io,
    number: u64,
    /// Copies that haven't ended.
    left: usize,
    failed: Option<Outcome>,
}

/// The steps of moving data on to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Moving {
    No,
    Writing,
    Flushing,
    Saying,
}

/// See the module's documentation.
pub struct Nvram {
    ring: Ring,
    logged: Slab<Logged>,
    /// Copies of the record that the ring begins later that haven't ended, and its number.
    saying: (usize, u64),
    /// Size and block of the device.
    device: (u64, u64),
    /// The reason of its failure.
    why: Option<String>,
    small_max: u64,
    state: LayerState,
    /// In the NVRAM and not on the device: not being moved, and being moved.
    fresh: Pieces,
    leaving: Pieces,
    /// Of records from this number on, while those before it are on their way to the NVRAM and are to be moved then.
    newer: Pieces,
    cut: Option<u64>,
    moving: Moving,
    to_move: Vec<(u64, u64, Data)>,
    moves: usize,
    /// The first record that isn't being moved.
    moved_until: u64,
    wants_move: bool,
    /// Large writes that the device has acknowledged, and how many of them are flushed.
    large: u64,
    flushed: u64,
    waiting: VecDeque<Io>,
    pending: Slab<Pending>,
    read: Vec<u8>,
    /// Ranges that couldn't be read.
    lost: Vec<(u64, u64)>,
    planted: Option<Planted>,
}

impl Nvram {
    /// NVRAM of `bytes`, whose blocks are `block_bytes`; `salt` tells its records from those of other caches.
    ///
    /// # Errors
    /// If it is too small.
    pub fn new(bytes: u64, block_bytes: u32, salt: u64) -> Result<Nvram, String> {
        let least = BYTES_MIN.max(BLOCKS_MIN * u64::from(block_bytes));
        if bytes < least {
            return Err(format!("{bytes} bytes of NVRAM are too few: at least {least}"));
        }
        Ok(Nvram {
            ring: Ring::new(bytes, block_bytes, salt),
            logged: Slab::new(),
            saying: (0, 0),
            device: (0, 1),
            why: None,
            // The ring is in two copies.
            small_max: SMALL_MAX.min(bytes / 16),
            state: LayerState::Recovering,
            fresh: Pieces::default(),
            leaving: Pieces::default(),
            newer: Pieces::default(),
            cut: None,
            moving: Moving::No,
            to_move: Vec::new(),
            moves: 0,
            moved_until: 0,
            wants_move: false,
            large: 0,
            flushed: 0,
            waiting: VecDeque::new(),
            pending: Slab::new(),
            read: Vec::new(),
            lost: Vec::new(),
            planted: None,
        })
    }

    /// Before a device that is written in units of `bytes`: writes of a quarter of one or more aren't small.
    #[must_use]
    pub fn with_units(mut self, bytes: u64) -> Nvram {
        self.small_max = self.small_max.min(bytes / 4);
        self
    }

    /// With a mistake, which the crash tests must find.
    #[must_use]
    pub fn with_planted(mut self, planted: Option<Planted>) -> Nvram {
        self.planted = planted;
        self
    }

    /// The reason of its failure, if it failed.
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// True while data of records are moved to the device.
    pub fn is_moving(&self) -> bool {
        self.moving != Moving::No
    }

    #[allow(clippy::too_many_arguments)] // a request has that many parts
    fn own(
        &mut self,
        now: Time,
        port: Port,
        (op, kind): (Op, OwnKind),
        (at, len): (u64, u64),
        data: Data,
        what: Pending,
        out: &mut Actions,
    ) {
        let mut head = IoHead::new(op, VolumeKey::POOL, TenantId::default(), at, len, now);
        (head.id, head.origin) = (out.new_id(), Origin::Own(kind));
        if port == NVRAM && op == Op::Write {
            head.flags = IoFlags::FUA;
        }
        head.tag = self.pending.insert(what) as u64;
        out.submit(port, Io::new(head, data));
    }

    fn pass(&mut self, mut io: Io, over: Option<Pieces>, out: &mut Actions) {
        io.head.tag = self.pending.insert(Pending::Pass { head: io.head, over }) as u64;
        out.submit(DEVICE, io);
    }

    fn overlaps(&self, head: &IoHead) -> bool {
        let hit = |p: &Pieces| p.within(head.offset, head.end()).next().is_some();
        hit(&self.fresh) || hit(&self.leaving) || hit(&self.newer)
    }

    fn route(&mut self, now: Time, io: Io, out: &mut Actions) {
        match io.op {
            Op::Read if self.overlaps(&io.head) => {
                let mut over = Pieces::default();
                for p in [&self.leaving, &self.fresh, &self.newer] {
                    p.within(io.offset, io.end()).for_each(|(at, len, data)| over.put(at, len, &data));
                }
                self.pass(io, Some(over), out);
            }
            Op::Write if io.len <= self.small_max => self.log(now, io, out),
            // What the NVRAM has of it must not come after it.
            Op::Write | Op::Trim | Op::WriteZeroes if self.overlaps(&io.head) => {
                self.wants_move = true;
                self.waiting.push_back(io);
            }
            Op::Flush if self.large == self.flushed => out.done(io, Data::Absent),
            Op::Flush => {
                let (mut io, covers) = (io, self.large);
                io.head.tag = self.pending.insert(Pending::Flush { head: io.head, covers }) as u64;
                out.submit(DEVICE, io);
            }
            _ => self.pass(io, None, out),
        }
    }

    /// Writes a record of a small write, or has it wait for room.
    fn log(&mut self, now: Time, mut io: Io, out: &mut Actions) {
        let bytes = record_bytes(&io.data, io.len);
        let number = self.ring.next_sequence();
        let Some((at, record)) = self.ring.record(io.offset, bytes.as_slice()) else {
            self.wants_move = true;
            return self.waiting.push_back(io);
        };
        if is_of_bytes(&io.data) {
            io.data = Data::Bytes(bytes); // in one piece, as the device wants it later
        }
        let places = self.ring.places(at);
        let left = places.len();
        let logged = self.logged.insert(Logged { io, number, left, failed: None });
        self.write_record(now, places, &record, || Pending::Log(logged), out);
    }

    fn write_record(
        &mut self,
        now: Time,
        places: Vec<u64>,
        record: &[u8],
        what: impl Fn() -> Pending,
        out: &mut Actions,
    ) {
        let data = Data::Bytes(plimsoll_base::Buf::copy_of(record));
        for at in places {
            let range = (at, record.len() as u64);
            self.own(now, NVRAM, (Op::Write, OwnKind::Metadata), range, data.clone(), what(), out);
        }
    }

    /// A copy of a record is written, or not.
    fn logged(&mut self, at: usize, c: Completion, out: &mut Actions) {
        let l = &mut self.logged[at];
        l.left -= 1;
        if !c.outcome.is_done() {
            l.failed = Some(c.outcome);
        }
        if l.left > 0 {
            return;
        }
        let Logged { io, number, failed, .. } = self.logged.remove(at);
        let into = if self.cut.is_some_and(|cut| number >= cut) { &mut self.newer } else { &mut self.fresh };
        if failed.is_none() {
            self.ring.written(number);
            into.put_whole(io.offset, io.len, &io.data); // as the device wants it later: whole blocks
        }
        out.complete(Completion { io, outcome: failed.unwrap_or(Outcome::Done), dispatched_at: c.dispatched_at });
        if failed.is_some() {
            // No later record could say that those after this one are whole: were one corrupt, a start would take it for never written.
            self.why.get_or_insert_with(|| format!("record {number} of the NVRAM couldn't be written"));
            self.failed(out);
        }
    }

    /// Moves on to the device what the NVRAM has, if that is wanted.
    fn progress(&mut self, now: Time, out: &mut Actions) {
        if !matches!(self.state, LayerState::Ready) {
            return;
        }
        self.wants_move |= self.ring.is_rather_full();
        if self.moving != Moving::No || !self.wants_move {
            return;
        }
        // Records on their way to the NVRAM aren't in its pieces yet: the ring must not begin after them. Those that begin from now
        // on aren't waited for.
        let cut = *self.cut.get_or_insert(self.ring.next_sequence());
        if self.logged.iter().any(|(_, l)| l.number < cut) {
            return;
        }
        let newer = std::mem::take(&mut self.newer);
        self.cut = None;
        if self.fresh.is_empty() {
            self.fresh = newer;
            // Nothing else may ever happen.
            if !self.fresh.is_empty() {
                self.progress(now, out);
            }
            return;
        }
        self.wants_move = false;
        self.begin_moving(now, cut, out);
        self.fresh = newer;
    }

    /// Begins to move the data of records below `until` to the device.
    fn begin_moving(&mut self, now: Time, until: u64, out: &mut Actions) {
        self.leaving = std::mem::take(&mut self.fresh);
        self.to_move = self.leaving.iter().map(|(at, len, data)| (at, len, data.clone())).collect();
        self.moved_until = until;
        self.moving = Moving::Writing;
        self.move_more(now, out);
    }

    fn move_more(&mut self, now: Time, out: &mut Actions) {
        while self.moves < MOVES_MAX
            && let Some((at, len, data)) = self.to_move.pop()
        {
            self.moves += 1;
            self.own(now, DEVICE, (Op::Write, OwnKind::WriteBack), (at, len), data, Pending::Move, out);
        }
        if self.moves == 0 && Planted::ForgetsEarly.is_in(self.planted) {
            return self.say_so(now, out);
        }
        if self.moves == 0 {
            self.moving = Moving::Flushing;
            let flush = (Op::Flush, OwnKind::WriteBack);
            self.own(now, DEVICE, flush, (0, 0), Data::Absent, Pending::MovesFlushed, out);
        }
    }

    /// The device has the moved data durably: the ring may begin later. The NVRAM must record that before the space is used again.
    fn say_so(&mut self, now: Time, out: &mut Actions) {
        self.moving = Moving::Saying;
        let number = self.ring.next_sequence();
        let (at, record) = self.ring.begins_at(self.moved_until);
        let places = self.ring.places(at);
        self.saying = (places.len(), number);
        self.write_record(now, places, &record, || Pending::Begins, out);
    }

    /// A copy of the record that the ring begins later is written.
    fn said(&mut self, now: Time, out: &mut Actions) {
        self.saying.0 -= 1;
        if self.saying.0 > 0 {
            return;
        }
        self.ring.written(self.saying.1);
        if self.ring.is_old() {
            // Nothing counts any more, under the old rules: the same under the new ones.
            self.ring.forget(self.saying.1);
            self.ring.convert();
            self.moved_until = self.ring.next_sequence();
            return self.say_so(now, out);
        }
        self.moved(now, out);
    }

    fn moved(&mut self, now: Time, out: &mut Actions) {
        self.ring.forget(self.moved_until);
        self.leaving = Pieces::default();
        self.moving = Moving::No;
        if self.state == LayerState::Recovering {
            self.state = LayerState::Ready;
        }
        self.route_waiting(now, out);
    }

    /// Those that waited try again. New ones may come to wait meanwhile, which stand behind them.
    fn route_waiting(&mut self, now: Time, out: &mut Actions) {
        for io in std::mem::take(&mut self.waiting) {
            self.route(now, io, out);
        }
    }

    fn failed(&mut self, out: &mut Actions) {
        self.state = LayerState::Failed;
        for io in std::mem::take(&mut self.waiting) {
            out.end(io, Outcome::Failed(IoError::Device));
        }
    }

    /// Asserts what `Layer::check` asserts of requests in flight, one by one.
    fn check_in_flight(&self) {
        if self.pending.len() > CHECKED_MAX || self.logged.len() > CHECKED_MAX {
            return;
        }
        let of = |what: &dyn Fn(&Pending) -> bool| self.pending.iter().filter(|p| what(p.1)).count();
        assert_eq!(of(&|p| matches!(p, Pending::Move)), self.moves, "the moves in flight");
        let flushes = usize::from(self.moving == Moving::Flushing);
        assert_eq!(of(&|p| matches!(p, Pending::MovesFlushed)), flushes, "the flush of moves");
        assert_eq!(
            of(&|p| matches!(p, Pending::Begins)),
            self.saying.0,
            "the copies of the record that the ring begins"
        );
        let is_reading = self.state == LayerState::Recovering && self.moving == Moving::No;
        assert!(
            of(&|p| matches!(p, Pending::Recover(_))) <= usize::from(is_reading),
            "the NVRAM is read while it serves"
        );
        for (i, l) in &self.logged {
            assert_eq!(of(&|p| matches!(p, Pending::Log(n) if *n == i)), l.left, "the copies of record {}", l.number);
            assert!(self.ring.is_writing(l.number), "record {} is durable, and its client waits", l.number);
        }
        let pieces = || [&self.fresh, &self.leaving, &self.newer].into_iter().flat_map(Pieces::iter);
        if pieces().nth(CHECKED_EACH_MAX).is_some() {
            return;
        }
        // What is being recorded as moved is durable on the device.
        let left =
            [&self.fresh, &self.newer].into_iter().chain((self.moving != Moving::Saying).then_some(&self.leaving));
        let bytes: u64 = left.flat_map(Pieces::iter).map(|p| p.1).sum();
        assert!(bytes <= self.ring.data_bytes_max(), "{bytes} bytes are on no record that counts");
        for (_, p) in &self.pending {
            if let Pending::Pass { head, .. } = p
                && head.op.is_change()
            {
                assert!(
                    !self.overlaps(head),
                    "a change goes to the device, and what the NVRAM has of it may come after it"
                );
            }
        }
    }

    /// Reads the next piece, of one copy of the ring.
    fn read_more(&mut self, now: Time, out: &mut Actions) {
        let at = self.read.len() as u64;
        let whole = self.ring.device_bytes();
        let half = self.ring.places(0).get(1).copied().unwrap_or(whole);
        let end = if at < half { half } else { whole };
        let range = (at, PIECE_BYTES.min(end - at));
        self.own(now, NVRAM, (Op::Read, OwnKind::Recovery), range, Data::Absent, Pending::Recover(range), out);
    }

    fn recovered(&mut self, now: Time, (at, len): (u64, u64), c: Completion, out: &mut Actions) {
        let mut piece = vec![0; len as usize];
        match c.outcome.is_done() {
            true => c.io.data.copy_to(&mut piece),
            false => self.lost.push((at, at + len)), // the other copy may have it
        }
        self.read.extend(piece);
        if (self.read.len() as u64) < self.ring.device_bytes() {
            return self.read_more(now, out);
        }
        let (read, lost) = (std::mem::take(&mut self.read), std::mem::take(&mut self.lost));
        let how = Reading {
            trusting: Planted::GapsTrusted.is_in(self.planted),
            one_copy: Planted::ReadOnce.is_in(self.planted),
            unchecked: Planted::Unchecked.is_in(self.planted),
        };
        let found = match self.ring.recover(&read, &lost, how) {
            Ok(found) => found,
            Err(why) => {
                self.why = Some(why);
                return self.failed(out);
            }
        };
        let found = if Planted::Ignored.is_in(self.planted) { Vec::new() } else { found };
        let (size, block) = self.device;
        let fits = |r: &Record| {
            let len = r.data.len() as u64;
            r.offset.is_multiple_of(block) && len.is_multiple_of(block) && r.offset.saturating_add(len) <= size
        };
        if let Some(r) = found.iter().find(|r| !fits(r)) {
            self.why = Some(format!("record {} of the NVRAM isn't one for its device", r.number));
            return self.failed(out);
        }
        for Record { offset, data, .. } in found {
            let len = data.len() as u64;
            self.fresh.put(offset, len, &Data::Bytes(plimsoll_base::Buf::copy_of(&data)));
        }
        self.begin_moving(now, self.ring.next_sequence(), out);
    }
}

/// A record's bytes. Where a tape left clients' bytes out, or a simulation has only names of contents, there are zeroes: the record is as
/// long as it was.
fn record_bytes(data: &Data, len: u64) -> Buf {
    if let Data::Bytes(b) = data {
        return b.clone();
    }
    let mut bytes = BufMut::zeroed(len as usize);
    data.copy_to(bytes.as_mut_slice());
    bytes.freeze()
}

/// True if the data is all there. Absent data stays absent: a layer that verifies what it reads skips it; and a name stays a name.
fn is_of_bytes(data: &Data) -> bool {
    match data {
        Data::Parts(parts) => parts.iter().all(|(_, d)| is_of_bytes(d)),
        Data::Absent | Data::Content(_) => false,
        _ => true,
    }
}

impl Layer for Nvram {
    fn name(&self) -> &'static str {
        "nvram"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[DEVICE as usize]
    }

    fn start(&mut self, now: Time, below: &[Offer], out: &mut Actions) {
        let device = below[DEVICE as usize];
        self.device = (device.size_bytes, u64::from(device.block_bytes));
        self.read_more(now, out);
    }

    fn state(&self) -> LayerState {
        self.state
    }

    fn forecast(&self, at: Time, head: &IoHead, below: plimsoll_stack::Ports<'_>) -> plimsoll_stack::Forecast {
        below.ask(DEVICE, at, head)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if self.state == LayerState::Failed {
            return out.end(io, Outcome::Failed(IoError::Device));
        }
        self.route(now, io, out);
        self.progress(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        let what = self.pending.remove(c.io.tag as usize);
        let done = c.outcome.is_done();
        match what {
            Pending::Pass { head, over } => {
                c.io.head.tag = head.tag;
                self.large += u64::from(head.op == Op::Write && done);
                if let Some(over) = over.filter(|_| done) {
                    c.io.data = over.over(head.offset, head.len, &c.io.data);
                }
                let lost = !done && head.op != Op::Read;
                out.complete(c);
                if lost {
                    self.failed(out);
                }
            }
            Pending::Flush { head, covers } => {
                c.io.head.tag = head.tag;
                self.flushed = if done { self.flushed.max(covers) } else { self.flushed };
                out.complete(c);
                if !done {
                    self.failed(out);
                }
            }
            Pending::Log(at) => self.logged(at, c, out),
            Pending::Recover(range) => self.recovered(now, range, c, out),
            _ if !done => self.failed(out),
            // What was moved may be lost with what failed, of which the device tells once only: it stays here for the next start.
            _ if self.state == LayerState::Failed => {}
            Pending::Move => {
                self.moves -= 1;
                self.move_more(now, out);
            }
            Pending::MovesFlushed => self.say_so(now, out),
            Pending::Begins => self.said(now, out),
        }
        self.progress(now, out);
    }

    /// All of it moves on: what was stopped in order needs no NVRAM to start again.
    fn drain(&mut self, now: Time, out: &mut Actions) {
        self.wants_move |= !self.fresh.is_empty() || !self.newer.is_empty();
        self.progress(now, out);
    }

    fn cancel(&mut self, _now: Time, _id: plimsoll_base::IoId, _out: &mut Actions) {}

    fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.waiting.is_empty()
    }

    fn check(&self) {
        if self.planted.is_some() {
            return;
        }
        assert!(self.flushed <= self.large, "more large writes are flushed than there were");
        if self.state == LayerState::Failed {
            return assert!(self.waiting.is_empty(), "a request waits for NVRAM that has failed");
        }
        assert!(self.waiting.is_empty() || !self.pending.is_empty(), "requests wait, and nothing is in flight");
        assert!(self.cut.is_some() || self.newer.is_empty(), "records are newer than those that are moved next");
        assert!(self.cut.is_none() || self.moving == Moving::No, "records are moved, and others are waited for");
        assert_eq!(self.moving == Moving::Writing, self.moves > 0, "{:?}, {} moves", self.moving, self.moves);
        assert!(self.to_move.is_empty() || self.moves == MOVES_MAX, "data to move wait, and more could be in flight");
        assert!(self.leaving.is_empty() || self.moving != Moving::No, "data are moved, and aren't");
        assert_eq!(self.moving == Moving::Saying, self.saying.0 > 0, "{:?}, {:?}", self.moving, self.saying);
        self.ring.check(CHECKED_MAX, self.moving == Moving::Saying);
        self.check_in_flight();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Rng, Span};
    use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
    use plimsoll_stack::{Stack, StackConfig, Target};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const BLOCK: u64 = 512;
    const NVRAM_BYTES: u64 = 64 << 10;

    fn pool(seed: u64) -> SimPool {
        let us = Span::from_micros;
        let device = SimDisk::new(1 << 20, (us(50), us(900)), seed, DiskFaults::default());
        let ring = SimDisk::new(NVRAM_BYTES, (us(1), us(20)), seed + 1, DiskFaults::default());
        SimPool::with_stack(vec![device, ring], |offers| {
            let mut s = Stack::new(StackConfig::default(), offers);
            let nvram = Nvram::new(NVRAM_BYTES, BLOCK as u32, 7).expect("large enough");
            s.push(Box::new(nvram), vec![Target::Device(1), Target::Device(0)]);
            s
        })
    }

    fn write(p: &mut SimPool, block: u64, blocks: u64) {
        let now = p.now();
        let head = IoHead::new(Op::Write, VolumeKey::POOL, TenantId(1), block * BLOCK, blocks * BLOCK, now);
        p.offer(now, Io::new(head, Data::Bytes(Buf::copy_of(&vec![7; (blocks * BLOCK) as usize]))));
    }

    /// Writes small ones until `there` holds.
    fn until(there: impl Fn(&Nvram) -> bool) -> SimPool {
        let (mut p, mut rng) = (pool(1), Rng::new(1, "until"));
        assert_eq!(p.start(), LayerState::Ready);
        for n in 0..10_000 {
            if p.with_layer(|n: &mut Nvram, _| there(n)).expect("it's there") {
                return p;
            }
            match rng.below(3) {
                0 => write(&mut p, n * 2 % 2000, 1 + rng.below(2)),
                _ => drop(p.step()),
            }
        }
        panic!("it never comes to that");
    }

    /// The words of the assertion that finds a state that was spoiled so.
    fn found(mut p: SimPool, spoil: impl FnOnce(&mut Nvram)) -> String {
        let spoilt = catch_unwind(AssertUnwindSafe(|| p.with_layer(|n: &mut Nvram, _| spoil(n))));
        let said = spoilt.expect_err("nothing is found");
        said.downcast_ref::<String>().cloned().or(said.downcast_ref::<&str>().map(|s| s.to_string())).expect("words")
    }

    #[test]
    fn each_rule_is_checked_after_each_event() {
        let serving = || until(|n| !n.logged.is_empty() && !n.fresh.is_empty() && n.moving == Moving::No);
        let writing = || until(|n| n.moving == Moving::Writing && !n.to_move.is_empty());
        let flushing = || until(|n| n.moving == Moving::Flushing);
        let saying = || until(|n| n.moving == Moving::Saying);
        let newer = || until(|n| !n.newer.is_empty());
        let io = |at, len| IoHead::new(Op::Write, VolumeKey::POOL, TenantId(1), at, len, Time::ZERO);
        let pass = |n: &mut Nvram, at, len| n.pending.insert(Pending::Pass { head: io(at, len), over: None });
        let spoilt: Vec<(&str, String)> = vec![
            ("more large writes", found(serving(), |n| n.flushed = n.large + 1)),
            (
                "has failed",
                found(serving(), |n| {
                    n.state = LayerState::Failed;
                    n.waiting.push_back(Io::new(io(0, BLOCK), Data::Zeroes));
                }),
            ),
            (
                "nothing is in flight",
                found(serving(), |n| {
                    n.waiting.push_back(Io::new(io(0, BLOCK), Data::Zeroes));
                    n.pending.clear();
                }),
            ),
            ("are newer than those", found(newer(), |n| n.cut = None)),
            ("others are waited for", found(saying(), |n| n.cut = Some(1))),
            ("moves", found(writing(), |n| n.moves = 0)),
            ("more could be in flight", found(writing(), |n| n.moves -= 1)),
            ("data are moved, and aren't", found(serving(), |n| n.leaving = std::mem::take(&mut n.fresh))),
            ("Saying", found(saying(), |n| n.saying.0 = 0)),
            ("the moves in flight", found(writing(), |n| _ = n.pending.insert(Pending::Move))),
            ("the flush of moves", found(flushing(), |n| _ = n.pending.insert(Pending::MovesFlushed))),
            ("the ring begins", found(saying(), |n| n.saying.0 += 1)),
            ("is read while", found(serving(), |n| _ = n.pending.insert(Pending::Recover((0, 1))))),
            ("the copies of record", found(serving(), |n| n.logged.iter_mut().for_each(|(_, l)| l.left += 1))),
            (
                "its client waits",
                found(serving(), |n| {
                    let number = n.logged.iter().next().expect("one").1.number;
                    n.ring.written(number);
                }),
            ),
            ("on no record", found(serving(), |n| n.fresh.put(512 << 10, 60 << 10, &Data::Zeroes))),
            (
                "may come after it",
                found(serving(), |n| {
                    let (at, len, _) = n.fresh.iter().next().expect("one");
                    pass(n, at, len);
                }),
            ),
        ];
        for (expected, said) in spoilt {
            assert!(said.contains(expected), "{expected:?} isn't in {said:?}");
        }
    }
}
