//! A tape: all inputs of a stack and all its decisions, in order.
//!
//! A live pool that records a tape can be replayed in the simulator. The same layers with the same inputs at the same times
//! must decide the same. Client bytes are left out: a policy that looked at them could not be replayed. A layer's reads of its
//! own structures are kept, as it decides by them. A checkpoint reads clients' data: those bytes are left out, too. A layer
//! that verifies what it reads skips the verification of [`Data::Absent`].
//!
//! Recovery's reads are kept whole. Records of logs, and of an NVRAM, hold clients' data between the headers that recovery
//! decides by, under one checksum. So a tape is as confidential as the pool that it was recorded of.

use crate::front::{Front, FrontVolume};
use crate::layer::{Forecast, LayerState, Terms, VolumeTerms};
use crate::map::{Extent, Map};
use crate::message::{Addressed, OwnTerms};
use crate::stack::{Offered, Stack};
use crate::work::{Answer, WORDS, Work, Worked};
use plimsoll_base::{
    Buf, Class, Completion, Confidence, Data, Io, IoError, IoFlags, IoHead, IoId, Objective, Op, Origin, Outcome,
    OwnKind, Priority, PriorityClass, Span, StatusExtent, TenantId, Time, VolumeKey,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;

/// A client's request, as it was offered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecordedRequest {
    op: u8,
    flags: u8,
    tenant: u16,
    priority: (u8, u8),
    volume: (u32, u32),
    offset: u64,
    len: u64,
    arrived_ns: u64,
    /// Absolute; `None` without a promise.
    deadline_ns: Option<u64>,
}

/// Payload of a request, as far as a tape keeps it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RecordedData {
    /// Nothing, or a client's bytes.
    Absent,
    /// Zeroes.
    Zeroes,
    /// Bytes that a layer read of its own structures.
    Bytes(Vec<u8>),
    /// A block status answer: length, hole, zero.
    Status(Vec<(u64, bool, bool)>),
}

/// Result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Ended {
    /// As asked.
    Done,
    /// Refused after all: the wait in ns, and the confidence in thousandths.
    Busy(u64, u16),
    /// Failed; the error's number.
    Failed(u8),
}

/// A change of the pool while it serves.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A volume is made known, or grows: id and generation, size in bytes, read-only, extents (device offset, length).
    SetVolume((u32, u32), u64, bool, Vec<(u64, u64)>),
    /// A volume takes no more requests.
    CloseVolume((u32, u32)),
    /// A closed volume's extents are zeroed, as this job.
    ZeroVolume((u32, u32), u64, Vec<(u64, u64)>),
    /// Flushes are trusted again after one failed.
    Recovered,
    /// A message to one layer.
    Message(Addressed),
    /// The pool will end.
    Stop,
    /// A tenant's terms; `None`: it goes.
    SetTenant(u16, Option<RecordedTerms>),
    /// Terms of a volume for all layers.
    SetTerms((u32, u32), VolumeTerms),
    /// Deletion of a volume, for all layers.
    ForgetVolume((u32, u32)),
}

/// A tenant's terms as a tape has them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecordedTerms {
    class: RecordedClass,
    weight: u32,
    budget: Option<(u16, u32)>,
    in_flight_max: u32,
    own: OwnTerms,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum RecordedClass {
    /// Percentile in hundredths of a percent, and bound in ns, of each objective; weight.
    LatencyCritical(Vec<(u16, u64)>, u32),
    /// Weight.
    BestEffort(u32),
    /// Slots.
    Fenced(u32),
}

impl RecordedTerms {
    fn of(t: &Terms) -> RecordedTerms {
        let class = match &t.class {
            Class::LatencyCritical { objectives, weight } => {
                let kept = |o: &Objective| (o.percentile_bp, o.bound.as_nanos());
                RecordedClass::LatencyCritical(objectives.iter().map(kept).collect(), *weight)
            }
            Class::BestEffort { weight } => RecordedClass::BestEffort(*weight),
            Class::Fenced { slots } => RecordedClass::Fenced(*slots),
        };
        let Terms { weight, budget, in_flight_max, own, .. } = t;
        RecordedTerms { class, weight: *weight, budget: *budget, in_flight_max: *in_flight_max, own: own.clone() }
    }

    fn terms(&self) -> Terms {
        let class = match &self.class {
            RecordedClass::LatencyCritical(kept, weight) => {
                let objective =
                    |&(percentile_bp, ns): &(u16, u64)| Objective { percentile_bp, bound: Span::from_nanos(ns) };
                Class::LatencyCritical { objectives: kept.iter().map(objective).collect(), weight: *weight }
            }
            RecordedClass::BestEffort(weight) => Class::BestEffort { weight: *weight },
            RecordedClass::Fenced(slots) => Class::Fenced { slots: *slots },
        };
        let RecordedTerms { weight, budget, in_flight_max, own, .. } = self;
        Terms { class, weight: *weight, budget: *budget, in_flight_max: *in_flight_max, own: own.clone() }
    }
}

/// Input of a stack.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Input {
    /// Start what isn't started.
    Start,
    /// Time has passed.
    Wake,
    /// Write out what must survive.
    Drain,
    /// A client asks.
    Offer(RecordedRequest, RecordedData),
    /// A client's request, by its id, is no longer wanted.
    Cancel(u64),
    /// A device has answered.
    DeviceDone {
        /// Device.
        device: u8,
        /// The request's id.
        id: u64,
        /// Time at which it reached the device; `None` if never.
        dispatched_ns: Option<u64>,
        /// Result.
        ended: Ended,
        /// Data that it brought.
        data: RecordedData,
    },
    /// The pool changes.
    Change(Change),
    /// Work is done: its node, its tag, and what was found.
    Worked(u8, u64, [u64; WORDS]),
}

/// Decision of a stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Decided {
    /// The offered request is accepted, under this id.
    Accepted(u64),
    /// The offered request is refused: the predicted wait in ns, and its confidence in thousandths.
    Busy(u64, u16),
    /// A request goes to a device: device, id, operation, offset, length.
    ToDevice(u8, u64, u8, u64, u64),
    /// A client's request ends.
    Ended(u64, Ended),
    /// Work goes to a worker: node, tag.
    ToWorker(u8, u64),
}

/// One entry of a tape.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Entry {
    /// Input at this time (ns since the pool's start).
    Input(u64, Input),
    /// And the stack decided this.
    Decided(Decided),
    /// The pool ended in order: nothing is missing.
    End,
}

const OPS: [Op; 7] = [Op::Read, Op::Write, Op::Flush, Op::Trim, Op::WriteZeroes, Op::Cache, Op::BlockStatus];
const ERRORS: [IoError; 8] = [
    IoError::Device,
    IoError::FlushFailed,
    IoError::NoSpace,
    IoError::Invalid,
    IoError::ReadOnly,
    IoError::NotSupported,
    IoError::Cancelled,
    IoError::Unavailable,
];
const CLASSES: [PriorityClass; 3] = [PriorityClass::RealTime, PriorityClass::BestEffort, PriorityClass::Idle];

/// A value's place in its table: the number that a tape has for it.
fn number<T: PartialEq>(table: &[T], value: &T) -> u8 {
    table.iter().position(|v| v == value).expect("the table has all values") as u8
}

fn set(t: Time) -> Option<u64> {
    t.is_set().then(|| t.as_nanos())
}

fn time(ns: Option<u64>) -> Time {
    ns.map_or(Time::NEVER, Time::from_nanos)
}

fn key(k: VolumeKey) -> (u32, u32) {
    (k.id, k.generation)
}

fn volume_key((id, generation): (u32, u32)) -> VolumeKey {
    VolumeKey { id, generation }
}

fn extents(pairs: &[(u64, u64)]) -> Vec<Extent> {
    pairs.iter().map(|&(device_offset, len)| Extent { device_offset, len }).collect()
}

fn pairs(extents: &[Extent]) -> Vec<(u64, u64)> {
    extents.iter().map(|e| (e.device_offset, e.len)).collect()
}

impl RecordedRequest {
    fn of(h: &IoHead) -> RecordedRequest {
        RecordedRequest {
            op: number(&OPS, &h.op),
            flags: h.flags.bits(),
            tenant: h.tenant.0,
            priority: (number(&CLASSES, &h.priority.class), h.priority.level),
            volume: key(h.volume),
            offset: h.offset,
            len: h.len,
            arrived_ns: h.arrived_at.as_nanos(),
            deadline_ns: set(h.deadline),
        }
    }

    fn head(&self) -> Option<IoHead> {
        let op = *OPS.get(usize::from(self.op))?;
        let arrived_at = Time::from_nanos(self.arrived_ns);
        let (volume, tenant) = (volume_key(self.volume), TenantId(self.tenant));
        let mut h = IoHead::new(op, volume, tenant, self.offset, self.len, arrived_at);
        h.flags = IoFlags::from_bits(self.flags);
        h.priority = Priority { class: *CLASSES.get(usize::from(self.priority.0))?, level: self.priority.1 };
        h.deadline = time(self.deadline_ns);
        Some(h)
    }
}

impl Ended {
    fn of(outcome: Outcome) -> Ended {
        match outcome {
            Outcome::Done => Ended::Done,
            Outcome::Busy { wait, confidence } => Ended::Busy(wait.as_nanos(), confidence.0),
            Outcome::Failed(e) => Ended::Failed(number(&ERRORS, &e)),
        }
    }

    fn outcome(self) -> Option<Outcome> {
        Some(match self {
            Ended::Done => Outcome::Done,
            Ended::Busy(ns, c) => Outcome::Busy { wait: Span::from_nanos(ns), confidence: Confidence(c) },
            Ended::Failed(n) => Outcome::Failed(*ERRORS.get(usize::from(n))?),
        })
    }
}

impl RecordedData {
    fn of(data: &Data, len: u64, keep_bytes: bool) -> RecordedData {
        match data {
            Data::Zeroes => RecordedData::Zeroes,
            Data::Status(s) => RecordedData::Status(s.iter().map(|e| (e.len, e.hole, e.zero)).collect()),
            Data::Bytes(_) | Data::Parts(_) if keep_bytes => {
                let mut bytes = vec![0; len as usize];
                data.copy_to(&mut bytes);
                RecordedData::Bytes(bytes)
            }
            Data::Bytes(_) | Data::Parts(_) | Data::Content(_) | Data::Absent => RecordedData::Absent,
        }
    }

    fn data(&self) -> Data {
        match self {
            RecordedData::Absent => Data::Absent,
            RecordedData::Zeroes => Data::Zeroes,
            RecordedData::Bytes(b) => Data::Bytes(Buf::copy_of(b)),
            RecordedData::Status(s) => {
                Data::Status(s.iter().map(|&(len, hole, zero)| StatusExtent { len, hole, zero }).collect())
            }
        }
    }
}

/// A read by which a layer learns what it wrote earlier: it decides by the bytes.
fn decides_by(head: &IoHead) -> bool {
    let kinds = [OwnKind::Recovery, OwnKind::Metadata];
    head.op == Op::Read && kinds.iter().any(|k| head.origin == Origin::Own(*k))
}

/// Receives the entries of a tape.
pub trait Recorder {
    /// Takes the next entry.
    fn record(&mut self, entry: Entry);

    /// The engine has nothing to do: a good moment to write out what was recorded.
    fn pause(&mut self);
}

/// A stack whose inputs may be recorded: the engine passes all of them through here. Calls that only look go straight to the stack.
pub struct Taped<R> {
    stack: Stack,
    recorder: Option<R>,
}

impl<R> Deref for Taped<R> {
    type Target = Stack;
    fn deref(&self) -> &Stack {
        &self.stack
    }
}

impl<R: Recorder> Taped<R> {
    /// Wraps `stack`, which has had no input yet; `recorder`, if there is one, records it.
    pub fn new(stack: Stack, recorder: Option<R>) -> Taped<R> {
        Taped { stack, recorder }
    }

    /// As [`Stack::forget_account`]: nothing is decided by it, so a tape doesn't hold it.
    pub fn forget_account(&mut self, account: u16) {
        self.stack.forget_account(account);
    }

    fn told(&mut self, now: Time, told: impl FnOnce() -> Input) {
        if let Some(r) = &mut self.recorder {
            r.record(Entry::Input(now.as_nanos(), told()));
        }
    }

    fn decided(&mut self, decided: impl FnOnce() -> Decided) {
        if let Some(r) = &mut self.recorder {
            r.record(Entry::Decided(decided()));
        }
    }

    /// As [`Stack::start`].
    pub fn start(&mut self, now: Time) {
        self.told(now, || Input::Start);
        self.stack.start(now);
    }

    /// As [`Stack::wake`].
    pub fn wake(&mut self, now: Time) {
        self.told(now, || Input::Wake);
        self.stack.wake(now);
    }

    /// As [`Stack::drain`].
    pub fn drain(&mut self, now: Time) {
        self.told(now, || Input::Drain);
        self.stack.drain(now);
    }

    /// As [`Stack::offer`].
    pub fn offer(&mut self, now: Time, io: Io) -> Offered {
        self.told(now, || Input::Offer(RecordedRequest::of(&io.head), RecordedData::of(&io.data, io.len, false)));
        let offered = self.stack.offer(now, io);
        self.decided(|| decision(&offered));
        offered
    }

    /// As [`Stack::cancel`].
    pub fn cancel(&mut self, now: Time, id: IoId) {
        self.told(now, || Input::Cancel(id.0));
        self.stack.cancel(now, id);
    }

    /// As [`Stack::device_done`].
    pub fn device_done(&mut self, now: Time, device: usize, c: Completion) {
        self.told(now, || Input::DeviceDone {
            device: device as u8,
            id: c.io.id.0,
            dispatched_ns: set(c.dispatched_at),
            ended: Ended::of(c.outcome),
            data: RecordedData::of(&c.io.data, c.io.len, decides_by(&c.io.head)),
        });
        self.stack.device_done(now, device, c);
    }

    /// As [`Stack::next_device_io`].
    pub fn next_device_io(&mut self) -> Option<(usize, Io)> {
        let (device, io) = self.stack.next_device_io()?;
        self.decided(|| to_device(device, &io));
        Some((device, io))
    }

    /// As [`Stack::next_report`]: the pool's owner answers a report by a message, which is on the tape.
    pub fn next_report(&mut self) -> Option<Addressed> {
        self.stack.next_report()
    }

    /// As [`Stack::next_work`].
    pub fn next_work(&mut self) -> Option<(usize, Work)> {
        let (node, work) = self.stack.next_work()?;
        self.decided(|| Decided::ToWorker(node as u8, work.tag));
        Some((node, work))
    }

    /// As [`Stack::worked`].
    pub fn worked(&mut self, now: Time, node: usize, done: Worked) {
        self.told(now, || Input::Worked(node as u8, done.tag, done.answer.words));
        self.stack.worked(now, node, done);
    }

    /// As [`Stack::next_done`].
    pub fn next_done(&mut self) -> Option<Completion> {
        let c = self.stack.next_done()?;
        self.decided(|| Decided::Ended(c.io.id.0, Ended::of(c.outcome)));
        Some(c)
    }

    /// Makes a volume known, or larger.
    pub fn set_volume(&mut self, now: Time, volume: VolumeKey, front: FrontVolume, extents: &[Extent]) {
        let change = Change::SetVolume(key(volume), front.size_bytes, front.read_only, pairs(extents));
        self.change(now, change);
    }

    /// As [`Stack::set_volume`].
    pub fn set_terms(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms) {
        self.change(now, Change::SetTerms(key(volume), terms.clone()));
    }

    /// As [`Stack::forget_volume`].
    pub fn forget_volume(&mut self, now: Time, volume: VolumeKey) {
        self.change(now, Change::ForgetVolume(key(volume)));
    }

    /// Takes no more requests for a volume.
    pub fn close_volume(&mut self, now: Time, volume: VolumeKey) {
        self.change(now, Change::CloseVolume(key(volume)));
    }

    /// Zeroes a closed volume's extents, as `job`.
    pub fn zero_volume(&mut self, now: Time, volume: VolumeKey, job: u64, extents: &[Extent]) {
        self.change(now, Change::ZeroVolume(key(volume), job, pairs(extents)));
    }

    /// Trusts flushes again after one failed. Returns false and changes nothing if a layer can't ([`Stack::can_trust_flush`]).
    pub fn recovered(&mut self, now: Time) -> bool {
        let may = self.stack.can_trust_flush();
        if may {
            self.change(now, Change::Recovered);
        }
        may
    }

    /// As [`Stack::tell`].
    pub fn tell(&mut self, now: Time, to: Addressed) -> bool {
        self.told(now, || Input::Change(Change::Message(to.clone())));
        self.stack.tell(now, &to)
    }

    /// As [`Stack::stop`].
    pub fn stop(&mut self, now: Time) {
        self.change(now, Change::Stop);
    }

    /// As [`Stack::set_tenant`].
    pub fn set_tenant(&mut self, now: Time, tenant: TenantId, terms: Option<&Terms>) {
        self.change(now, Change::SetTenant(tenant.0, terms.map(RecordedTerms::of)));
    }

    fn change(&mut self, now: Time, change: Change) {
        self.told(now, || Input::Change(change.clone()));
        apply(&mut self.stack, now, &change);
    }

    /// A zeroing job that ended.
    pub fn next_zeroed(&mut self, now: Time) -> Option<(u64, Result<(), IoError>)> {
        self.stack.with_layer(now, |m: &mut Map, _| m.next_zeroed()).flatten()
    }

    /// The engine will wait, perhaps for long.
    pub fn pause(&mut self) {
        if let Some(r) = &mut self.recorder {
            r.pause();
        }
    }

    /// As [`Stack::tell_of_loss`], after the end: a tape doesn't hold it.
    pub fn tell_of_loss(&mut self, now: Time, device: usize) -> bool {
        self.stack.tell_of_loss(now, device)
    }

    /// The pool ends in order.
    pub fn end(&mut self) {
        if let Some(r) = &mut self.recorder {
            r.record(Entry::End);
        }
    }
}

fn decision(offered: &Offered) -> Decided {
    match offered {
        Offered::Accepted(id) => Decided::Accepted(id.0),
        Offered::Busy(Forecast { wait, confidence, .. }) => Decided::Busy(wait.as_nanos(), confidence.0),
    }
}

fn to_device(device: usize, io: &Io) -> Decided {
    Decided::ToDevice(device as u8, io.id.0, number(&OPS, &io.op), io.offset, io.len)
}

fn apply(stack: &mut Stack, now: Time, change: &Change) {
    match change {
        Change::SetVolume(k, size_bytes, read_only, at) => {
            let front = FrontVolume { size_bytes: *size_bytes, read_only: *read_only };
            stack.with_layer(now, |f: &mut Front, _| f.set_volume(volume_key(*k), front));
            stack.with_layer(now, |m: &mut Map, _| m.set_volume(volume_key(*k), &extents(at)));
        }
        Change::CloseVolume(k) => {
            stack.with_layer(now, |f: &mut Front, _| f.remove_volume(volume_key(*k)));
        }
        Change::ZeroVolume(k, job, at) => {
            stack.with_layer(now, |m: &mut Map, out| {
                m.remove_volume(volume_key(*k));
                m.zero(now, *job, extents(at), out);
            });
        }
        Change::SetTerms(k, terms) => stack.set_volume(now, volume_key(*k), terms),
        Change::ForgetVolume(k) => stack.forget_volume(now, volume_key(*k)),
        Change::Message(to) => drop(stack.tell(now, to)),
        Change::Stop => stack.stop(now),
        Change::SetTenant(tenant, kept) => {
            let terms = kept.as_ref().map(RecordedTerms::terms);
            stack.set_tenant(now, TenantId(*tenant), terms.as_ref());
        }
        Change::Recovered => {
            stack.with_layer(now, |f: &mut Front, _| f.recovered());
        }
    }
}

/// Summary of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Replayed {
    /// Number of inputs replayed.
    pub told: u64,
    /// Decisions, all as recorded.
    pub decided: u64,
    /// Client requests accepted.
    pub accepted: u64,
    /// Client requests refused at once.
    pub refused: u64,
    /// Requests sent to devices.
    pub to_devices: u64,
    /// End of the tape, in ns since the pool's start.
    pub ends_at_ns: u64,
    /// The pool ended in order; else the tape was cut.
    pub complete: bool,
}

/// First difference between a tape and its replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divergence {
    /// The entry's number, from 0.
    pub entry: u64,
    /// The time on the tape.
    pub at: Time,
    /// Recorded decision.
    pub recorded: String,
    /// Decision of the replay.
    pub replayed: String,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.as_secs_f64();
        write!(f, "entry {} at {at:.6} s: recorded {}, now {}", self.entry, self.recorded, self.replayed)
    }
}
impl std::error::Error for Divergence {}

/// Tells `stack` what a tape has, and compares what it decides.
pub struct Replay {
    stack: Stack,
    /// Requests at each device.
    outstanding: BTreeMap<(u8, u64), Io>,
    /// Tasks at the workers, with the tenants that they are for.
    working: BTreeMap<(u8, u64), TenantId>,
    last: Option<Decided>,
    seen: Replayed,
    entry: u64,
    at: Time,
}

impl Replay {
    /// A replay on a stack as it was built for the recording.
    pub fn new(stack: Stack) -> Replay {
        let (outstanding, working, seen) = (BTreeMap::new(), BTreeMap::new(), Replayed::default());
        Replay { stack, outstanding, working, last: None, seen, entry: 0, at: Time::ZERO }
    }

    /// Replays the next entry.
    ///
    /// # Errors
    /// The first decision that differs, or an entry that no stack could have had as input.
    pub fn step(&mut self, entry: &Entry) -> Result<(), Box<Divergence>> {
        match entry {
            Entry::Input(ns, told) => {
                let at = Time::from_nanos(*ns);
                if at < self.at {
                    return Err(self.diverged(told, "time goes backwards"));
                }
                self.at = at;
                self.seen.told += 1;
                self.tell(told)?;
            }
            Entry::Decided(recorded) => {
                let now = self.decide(recorded);
                if now != Some(*recorded) {
                    return Err(self.diverged(recorded, &now.map_or("nothing".into(), |d| format!("{d:?}"))));
                }
                self.seen.decided += 1;
            }
            Entry::End => {
                let left = (self.stack.next_device_io().map(|(d, io)| to_device(d, &io)), self.stack.next_done());
                if left.0.is_some() || left.1.is_some() {
                    return Err(self.diverged(entry, &format!("{left:?} is left")));
                }
                self.seen.complete = true;
            }
        }
        self.entry += 1;
        Ok(())
    }

    /// Returns the summary so far.
    pub fn seen(&self) -> Replayed {
        Replayed { ends_at_ns: self.at.as_nanos(), ..self.seen }
    }

    /// The state that the layers are in now.
    pub fn state(&self) -> LayerState {
        self.stack.state()
    }

    fn diverged(&self, recorded: &dyn fmt::Debug, replayed: &str) -> Box<Divergence> {
        let (recorded, replayed) = (format!("{recorded:?}"), replayed.to_string());
        Box::new(Divergence { entry: self.entry, at: self.at, recorded, replayed })
    }

    fn tell(&mut self, told: &Input) -> Result<(), Box<Divergence>> {
        let now = self.at;
        match told {
            Input::Start => self.stack.start(now),
            Input::Wake => self.stack.wake(now),
            Input::Drain => self.stack.drain(now),
            Input::Cancel(id) => self.stack.cancel(now, IoId(*id)),
            Input::Change(change) => apply(&mut self.stack, now, change),
            Input::Offer(asked, carried) => {
                let head = asked.head().ok_or_else(|| self.diverged(told, "there is no such operation"))?;
                if self.stack.is_full() {
                    return Err(self.diverged(told, "the stack is full"));
                }
                let offered = self.stack.offer(now, Io::new(head, carried.data()));
                self.last = Some(decision(&offered));
            }
            Input::DeviceDone { device, id, dispatched_ns, ended, data } => {
                let outcome = ended.outcome().ok_or_else(|| self.diverged(told, "there is no such error"))?;
                let Some(mut io) = self.outstanding.remove(&(*device, *id)) else {
                    return Err(self.diverged(told, "that device has no such request"));
                };
                io.data = data.data();
                let c = Completion { io, outcome, dispatched_at: time(*dispatched_ns) };
                self.stack.device_done(now, usize::from(*device), c);
            }
            Input::Worked(node, tag, words) => {
                let Some(tenant) = self.working.remove(&(*node, *tag)) else {
                    return Err(self.diverged(told, "that node ordered no such work"));
                };
                let answer = Answer { words: *words, data: Data::Absent };
                self.stack.worked(now, usize::from(*node), Worked { tag: *tag, tenant, answer });
            }
        }
        Ok(())
    }

    /// The decision of the kind that was recorded.
    fn decide(&mut self, recorded: &Decided) -> Option<Decided> {
        match recorded {
            Decided::Accepted(_) | Decided::Busy(..) => {
                let decided = self.last.take()?;
                match decided {
                    Decided::Accepted(_) => self.seen.accepted += 1,
                    _ => self.seen.refused += 1,
                }
                Some(decided)
            }
            Decided::ToDevice(..) => {
                let (device, io) = self.stack.next_device_io()?;
                let decided = to_device(device, &io);
                self.seen.to_devices += 1;
                self.outstanding.insert((device as u8, io.id.0), io);
                Some(decided)
            }
            Decided::ToWorker(..) => {
                let (node, work) = self.stack.next_work()?;
                self.working.insert((node as u8, work.tag), work.tenant);
                Some(Decided::ToWorker(node as u8, work.tag))
            }
            Decided::Ended(..) => {
                let c = self.stack.next_done()?;
                Some(Decided::Ended(c.io.id.0, Ended::of(c.outcome)))
            }
        }
    }
}
