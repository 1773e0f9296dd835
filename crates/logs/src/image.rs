//! Images of the MTL table, and notes of which image is in force and which logs may have records that it doesn't know.
//!
//! An image is the point at which anything is given up. Data that was checkpointed, swapped or killed before it is settled only by
//! the image that records so, and a log is emptied by nothing else. Its instant is when it is begun:
//!
//! ```text
//! body, header ─► flush ─► note, both copies ─► in force: logs are emptied ─► the same image to the other slot
//!                 (also of what went home)
//! ```
//! A recovery uses the image that the notes name. So an image that isn't whole is corrupt if a note names it, and was cut off if
//! none does. Records that were under way at its instant are beyond the logs' ends in it, so a recovery reads them.
//!
//! A write of an image or a note that fails for another reason than lost durability (a full file system) is tried again;
//! meanwhile the layer is degraded and says why, serves, and logs where it may.

use crate::config::Planted;
use crate::format::{
    Image, LogEntry, NOTE_BYTES, Note, Witness, encode_image, encode_layout, encode_note, epoch_of, first_sum,
    logs_per_chunk,
};
use crate::layer::{Life, Logs, Own};
use crate::layout::{IMAGE_HEADER_BYTES, LAYOUTS_AT, Layout, NOTES_AT};
use crate::log::{State, Tail};
use plimsoll_base::{Buf, Completion, Data, Io, IoFlags, Op, OwnKind, Span, Time};
use plimsoll_stack::Actions;

/// An image is written in pieces of this size, one after the other.
const PIECE_BYTES: u64 = 1 << 20;
/// A write of a table that failed is tried again after this, then after twice as long, up to [`RETRY_MAX_DOUBLINGS`] times that.
const RETRY_AFTER: Span = Span::from_secs(1);
const RETRY_MAX_DOUBLINGS: u32 = 5;

/// Step that an image waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Its own writes.
    Write,
    /// The flush of these, and of the checkpointed data before.
    Sync,
    /// Both copies of the note that names it.
    Note,
    /// The layout pages: only where one is corrupt, or of format version 1.
    Layout(usize),
}

/// An image under way.
pub(crate) struct ImageJob {
    number: u64,
    slot: u64,
    stage: Stage,
    sequence: u64,
    /// Logs that it empties.
    resets: Vec<u32>,
    bytes: Buf,
    /// The next piece of the body; after the body the header is written.
    next: u64,
    tails: Vec<Tail>,
    claims: Vec<Witness>,
    changed: u64,
    begun_at: Time,
}

impl ImageJob {
    /// True if a note on the device may already name it.
    fn is_noted(&self) -> bool {
        matches!(self.stage, Stage::Note | Stage::Layout(_))
    }
}

/// The image in force on its way to the other slot.
pub(crate) struct CopyJob {
    slot: u64,
    bytes: Buf,
    next: u64,
}

/// The piece of an image after `next` bytes of its body, header last: place and length. `None` when all is written.
fn piece(bytes: &Buf, next: &mut u64) -> Option<(u64, u64)> {
    let total = bytes.len() as u64;
    let at = *next;
    let (at, len) = match at {
        0 => return None,
        at if at < total => (at, PIECE_BYTES.min(total - at)),
        _ => (0, IMAGE_HEADER_BYTES),
    };
    *next = if at == 0 { 0 } else { at + len };
    Some((at, len))
}

/// A table's write that failed and is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub why: &'static str,
    pub retry_at: Time,
    tries: u32,
}

/// A note under way.
struct Writing {
    note: Note,
    /// Copies that are durable.
    done: usize,
    /// The last write failed; when to try again is in [`Trouble`].
    stalled: bool,
}

/// See the module's documentation.
pub(crate) struct Notes {
    logs_per_chunk: u32,
    number: u64,
    /// The image that the notes on the device name, or will.
    image: u64,
    /// Chunks that both notes on the device name, and those in flight.
    noted: Vec<bool>,
    writing: Option<Writing>,
    /// Chunks that the next note must name besides.
    wanted: Vec<bool>,
    /// Chunks with records since the last image (or the one under way) was begun.
    since: Vec<bool>,
    /// The next is to name this image and say `since` only.
    names: Option<u64>,
    /// Both copies are to say again what the newer one says.
    renew: bool,
    /// The copy that is written first: the corrupt or older one, if one is.
    first: usize,
    /// A recovery looks at all logs anyway.
    off: bool,
    /// A note of this start is durable: its number is in all records of the start.
    is_started: bool,
}

impl Notes {
    pub fn new(layout: &Layout, off: bool) -> Notes {
        let logs_per_chunk = logs_per_chunk(layout.logs);
        let none = vec![false; layout.logs.div_ceil(logs_per_chunk) as usize];
        Notes {
            logs_per_chunk,
            number: 1,
            image: 1,
            noted: none.clone(),
            writing: None,
            wanted: none.clone(),
            since: none,
            names: None,
            renew: false,
            first: 0,
            off,
            is_started: false,
        }
    }

    /// Logs that were never recovered begin without a note.
    pub fn start_afresh(&mut self) {
        self.is_started = true;
    }

    /// Takes the notes that a recovery found; without a note any log may have records. `bad` is the copy that can't be used or is older.
    pub fn recovered(&mut self, note: Option<Note>, image: u64, bad: Option<usize>) {
        let chunks = note.as_ref().map_or_else(|| vec![true; self.noted.len()], |n| n.chunks.clone());
        // Where none can be read, one that can be read again later must not be newer.
        self.number = note.map_or(1 << 40, |n| n.number);
        self.image = image;
        self.since.clone_from(&chunks);
        self.noted = chunks;
        self.first = bad.unwrap_or(0);
    }

    fn chunk(&self, log: u32) -> usize {
        (log / self.logs_per_chunk) as usize
    }

    /// A record goes to `log`, which is covered.
    pub fn appended_to(&mut self, log: u32) {
        let c = self.chunk(log);
        self.since[c] = true;
    }

    /// A record is to go to `log`.
    pub fn want(&mut self, log: u32) {
        let c = self.chunk(log);
        self.wanted[c] = true;
    }

    /// True if the notes on the device name `log`.
    pub fn names(&self, log: u32) -> bool {
        self.off || self.noted[self.chunk(log)]
    }

    /// True if a record may go to `log`: a recovery will look at it, now and after the note under way.
    pub fn covers(&self, log: u32) -> bool {
        let c = self.chunk(log);
        let stays = self.writing.as_ref().is_none_or(|w| w.note.chunks[c]);
        self.is_started && self.names(log) && (self.off || stays)
    }

    /// A note waits to be tried again.
    pub fn is_stalled(&self) -> bool {
        self.writing.as_ref().is_some_and(|w| w.stalled)
    }

    /// The two copies are to be the same again.
    pub fn renew(&mut self) {
        self.renew = true;
    }

    fn next(&mut self) -> bool {
        let wants = self.names.is_some() || self.renew || (!self.off && self.wanted.contains(&true));
        if self.writing.is_some() || !wants {
            return false;
        }
        let base = if self.names.is_some() { &self.since } else { &self.noted };
        let chunks: Vec<bool> = base.iter().zip(&self.wanted).map(|(a, b)| *a || *b).collect();
        self.image = self.names.take().unwrap_or(self.image);
        self.wanted.fill(false);
        self.renew = false;
        self.number += 1;
        let note = Note { number: self.number, image: self.image, chunks };
        self.writing = Some(Writing { note, done: 0, stalled: false });
        true
    }
}

impl Logs {
    /// Writes a note if one is needed and none is under way.
    pub(crate) fn write_note(&mut self, now: Time, out: &mut Actions) {
        if self.notes.next() {
            self.counters.notes += 1;
            self.write_note_copy(now, out);
        }
    }

    /// The next copy: one after the other, so that a power loss leaves one of them whole.
    fn write_note_copy(&mut self, now: Time, out: &mut Actions) {
        let first = self.notes.first;
        let writing = self.notes.writing.as_mut().expect("a note is under way");
        writing.stalled = false;
        let at = NOTES_AT[(first + writing.done) % 2];
        let len = u64::from(self.layout.block_bytes).max(NOTE_BYTES as u64);
        let mut bytes = encode_note(&self.layout, &writing.note);
        bytes.resize(len as usize, 0);
        let io = self.table_write(now, at, Buf::copy_of(&bytes), out);
        self.send_own(io, Own::Note, out);
    }

    /// A durable write of a table's page.
    fn table_write(&self, now: Time, at: u64, bytes: Buf, out: &mut Actions) -> Io {
        let mut io = self.own(now, Op::Write, at, bytes.len() as u64, OwnKind::Metadata, out);
        io.head.flags = IoFlags::FUA;
        io.data = Data::Bytes(bytes);
        io
    }

    pub(crate) fn note_written(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        let copies = if self.has(Planted::NoteOnce) { 1 } else { NOTES_AT.len() };
        let writing = self.notes.writing.as_mut().expect("one was under way");
        if !c.outcome.is_done() {
            writing.stalled = true;
            self.note_failed(now, out);
        } else if writing.done + 1 < copies {
            writing.done += 1;
            return self.write_note_copy(now, out);
        } else {
            let note = self.notes.writing.take().expect("just seen").note;
            self.notes.noted = note.chunks;
            self.notes.first = 0;
            if self.start == 0 && !self.has(Planted::StartsAlike) {
                self.start = note.number;
            }
            self.notes.is_started = true;
            let named = self.image.as_ref().is_some_and(|j| j.stage == Stage::Note && j.number == note.image);
            match (named, self.layouts_due) {
                (true, true) => self.write_layout(now, 0, out),
                (true, false) => self.commit_image(now, out),
                (false, _) if self.life == Life::Recovering && self.image.is_none() => self.begin_serving(now, out),
                (false, _) => {
                    if self.image.is_none() && !self.image_wanted {
                        self.trouble = None;
                    }
                }
            }
        }
        self.write_note(now, out);
        self.write_records(now, out);
    }

    fn note_failed(&mut self, now: Time, out: &mut Actions) {
        let image_waits = self.image.as_ref().is_some_and(ImageJob::is_noted);
        if self.is_degraded() || self.life == Life::Recovering {
            if image_waits {
                self.abandon_image(now, "a note can't be written", out);
            } else if self.life == Life::Recovering {
                self.notes.writing = None;
                self.refuse("at the start a note can't be written: replace the device, or start again".into(), out);
            }
        } else if self.stopping && image_waits {
            // Whether the image is in force the next start sees: until then nothing may depend on it.
            self.degrade("a note couldn't be written at the stop");
            self.abandon_image(now, "a note can't be written", out);
        } else {
            self.in_trouble(now, "a note can't be written; trying again");
        }
    }

    /// A table's write failed: it is tried again. The end of a pool is waited for, so then it is tried each second.
    fn in_trouble(&mut self, now: Time, why: &'static str) {
        let tries = if self.stopping { 0 } else { self.trouble.map_or(0, |t| t.tries + 1).min(RETRY_MAX_DOUBLINGS) };
        let after = Span::from_nanos(RETRY_AFTER.as_nanos() << tries);
        self.trouble = Some(Trouble { why, retry_at: now + after, tries });
        self.counters.table_errors += 1;
    }

    /// The pool ends: whatever failed is tried again at once.
    pub(crate) fn retry_now(&mut self, now: Time) {
        if let Some(t) = &mut self.trouble {
            t.retry_at = t.retry_at.min(now);
        }
    }

    /// Tries a note again whose time has come.
    pub(crate) fn retry_note(&mut self, now: Time, out: &mut Actions) {
        let due = self.trouble.is_none_or(|t| now >= t.retry_at);
        if due && self.notes.is_stalled() && !self.is_degraded() {
            self.write_note_copy(now, out);
        }
    }

    /// Begins an image that empties `resets`. False if the table is too large: something must be checkpointed first.
    pub(crate) fn begin_image(&mut self, now: Time, resets: Vec<u32>, out: &mut Actions) -> bool {
        assert!(!self.is_image_busy(), "one image at a time");
        let number = self.image_number + 1;
        let mut emptied = vec![false; self.layout.logs as usize];
        resets.iter().for_each(|log| emptied[*log as usize] = true);
        let stays = |m: &crate::mtl::Mapped| m.is_lost() || !emptied[m.log as usize];
        let extents: Vec<_> = self.mtl.from(0).filter(|(_, m)| stays(m)).collect();
        if extents.len() > self.layout.shape.extents_max as usize {
            return false;
        }
        self.image_wanted = false;
        let entry = |(i, l): (usize, &crate::log::Log)| {
            // Of a retired log nothing is used but what the image says.
            let end = self.layout.shape.log_bytes as u32;
            let first = first_sum(&self.layout, i as u32, number);
            match emptied[i] {
                true if l.state != State::Bad || l.no_space => {
                    LogEntry { tail: 0, busy: false, bad: false, sum: first, epoch: epoch_of(number) }
                }
                _ if l.state == State::Bad => {
                    LogEntry { tail: end, busy: false, bad: !l.no_space, sum: l.sum, epoch: l.epoch }
                }
                _ => {
                    let busy = !l.order.is_empty() && !self.has(Planted::BusyForgotten);
                    let sum = if l.has_torn { first } else { l.done_sum };
                    LogEntry { tail: l.done_tail, busy, bad: false, sum, epoch: l.epoch }
                }
            }
        };
        let logs = self.logs.iter().enumerate().map(entry).collect();
        let has_loss = self.has_loss();
        let image = Image { number, complete: false, has_loss, next_sequence: self.next_sequence, logs, extents };
        let bytes = Buf::copy_of(&encode_image(&self.layout, &image));
        self.notes.since.fill(false);
        for log in 0..self.layout.logs {
            let busy = !self.logs[log as usize].order.is_empty();
            self.logs[log as usize].has_new = busy;
            if busy {
                let c = self.notes.chunk(log);
                self.notes.since[c] = true;
            }
        }
        self.image = Some(ImageJob {
            number,
            slot: 1 - self.image_slot,
            stage: Stage::Write,
            sequence: self.next_sequence,
            resets,
            bytes,
            next: IMAGE_HEADER_BYTES,
            tails: Vec::new(),
            claims: self.claims.snapshot(),
            changed: std::mem::take(&mut self.changed),
            begun_at: now,
        });
        if self.has(Planted::ResetTooEarly) {
            self.empty_logs();
        }
        self.write_image(now, out)
    }

    /// True if a later start must know of the loss, too.
    fn has_loss(&self) -> bool {
        self.lost.is_some() && !self.has(Planted::LossNotKept)
    }

    /// True if an image or a copy of one is under way.
    pub(crate) fn is_image_busy(&self) -> bool {
        self.image.is_some() || self.copy.is_some()
    }

    /// Sends the next piece of the image. False if all are written.
    fn write_image(&mut self, now: Time, out: &mut Actions) -> bool {
        let job = self.image.as_mut().expect("an image is under way");
        let Some((from, len)) = piece(&job.bytes, &mut job.next) else { return false };
        let (slot, data) = (job.slot, job.bytes.slice(from as usize, len as usize));
        let mut io = self.own(now, Op::Write, self.layout.image_at(slot) + from, len, OwnKind::Metadata, out);
        io.data = Data::Bytes(data);
        self.send_own(io, Own::ImageWrite, out);
        true
    }

    pub(crate) fn image_written(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        if !c.outcome.is_done() || self.is_degraded() {
            return self.abandon_image(now, "the MTL table can't be written", out);
        }
        if self.write_image(now, out) {
            return;
        }
        if self.has(Planted::ImageNotFlushed) {
            return self.name_image(now, out);
        }
        let tails = self.dirty_tails();
        let job = self.image.as_mut().expect("an image is under way");
        (job.stage, job.tails) = (Stage::Sync, tails);
        let empties = !job.resets.is_empty();
        // An image that empties logs waits for the writes home, which a layer below may leave out of every other flush. Others don't: what a
        // job that came to nothing wrote home is in its logs still.
        let kind = if empties { OwnKind::Checkpoint } else { OwnKind::Metadata };
        let io = self.own(now, Op::Flush, 0, 0, kind, out);
        self.send_own(io, Own::ImageFlush, out);
    }

    /// An image's flush has ended.
    pub(crate) fn image_flushed(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        let job = self.image.as_mut().expect("an image is under way");
        let tails = std::mem::take(&mut job.tails);
        let outcome = self.flushed(now, c.outcome, tails);
        if outcome.is_done() && !self.is_degraded() {
            self.name_image(now, out);
        } else {
            self.abandon_image(now, "a flush failed", out);
        }
    }

    /// The image is durable: the notes are to name it.
    fn name_image(&mut self, now: Time, out: &mut Actions) {
        if self.has(Planted::ReusedBeforeNote) {
            self.empty_logs();
        }
        let job = self.image.as_mut().expect("an image is under way");
        job.stage = Stage::Note;
        self.notes.names = Some(job.number);
        self.write_note(now, out);
    }

    /// Writes a layout page: what the notes name can be read by these rules only. First the one that isn't in use, so that one of
    /// them is whole even if the write tears.
    fn write_layout(&mut self, now: Time, copy: usize, out: &mut Actions) {
        self.image.as_mut().expect("an image is under way").stage = Stage::Layout(copy);
        let at = LAYOUTS_AT[(self.layouts_first + copy) % LAYOUTS_AT.len()];
        let io = self.table_write(now, at, Buf::copy_of(&encode_layout(&self.layout)), out);
        self.send_own(io, Own::Layout, out);
    }

    pub(crate) fn layout_written(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        let Some(Stage::Layout(copy)) = self.image.as_ref().map(|j| j.stage) else { unreachable!("it was written") };
        if !c.outcome.is_done() {
            return self.abandon_image(now, "the layout page can't be written", out);
        }
        if copy + 1 < LAYOUTS_AT.len() {
            return self.write_layout(now, copy + 1, out);
        }
        self.layouts_due = false;
        self.commit_image(now, out);
    }

    pub(crate) fn is_degraded(&self) -> bool {
        matches!(self.life, Life::Degraded(_))
    }

    fn abandon_image(&mut self, now: Time, why: &'static str, out: &mut Actions) {
        let job = self.image.take().expect("an image is under way");
        self.changed += job.changed;
        if self.life == Life::Recovering {
            return self.refuse(format!("at the start {why}: replace the device, or start again"), out);
        }
        if !self.is_degraded() {
            assert!(!job.is_noted(), "an image that a note may name is finished");
            self.in_trouble(now, why);
            self.image_wanted = true;
        }
        self.clean_failed(now);
        self.no_image_comes(now, out);
        self.image_abandoned();
    }

    /// No note is tried again after durability was lost: an image that waits for one is given up. Whether it is in force the next start sees.
    pub(crate) fn give_up_image(&mut self, now: Time, out: &mut Actions) {
        if self.notes.is_stalled() && self.image.as_ref().is_some_and(ImageJob::is_noted) {
            self.abandon_image(now, "a note can't be written", out);
        }
    }

    fn commit_image(&mut self, now: Time, out: &mut Actions) {
        if !self.has(Planted::ResetTooEarly) && !self.has(Planted::ReusedBeforeNote) {
            self.empty_logs();
        }
        let job = self.image.take().expect("an image is under way");
        (self.image_number, self.image_slot) = (job.number, job.slot);
        self.image_at = now;
        self.trouble = None;
        self.counters.images += 1;
        self.counters.image_bytes = job.bytes.len() as u64;
        self.counters.image_time = now.since(job.begun_at);
        self.claims.close(job.begun_at, &job.claims);
        self.claims.confirm(&self.logs);
        for log in std::mem::take(&mut self.closed_until_image) {
            let l = &mut self.logs[log as usize];
            if l.has_torn {
                let sum = first_sum(&self.layout, log, job.number);
                (l.sum, l.done_sum, l.has_torn) = (sum, sum, false);
            }
            if l.state == State::Closed {
                l.state = State::Open;
                self.open.insert(log);
            }
        }
        self.begin_copy(now, job.bytes, out);
        if self.life == Life::Recovering {
            self.life = Life::Ready;
            self.serve_early(now, out);
        }
        self.image_discharges(now, job.number, job.sequence, out);
        self.clean_committed(now, out);
    }

    /// Writes the image in force to the other slot, so that a corrupt one can be done without.
    pub(crate) fn begin_copy(&mut self, now: Time, bytes: Buf, out: &mut Actions) {
        if self.has(Planted::ImageOnce) {
            return;
        }
        self.copy = Some(CopyJob { slot: 1 - self.image_slot, bytes, next: IMAGE_HEADER_BYTES });
        self.write_copy(now, out);
    }

    fn write_copy(&mut self, now: Time, out: &mut Actions) {
        let job = self.copy.as_mut().expect("a copy is under way");
        let Some((from, len)) = piece(&job.bytes, &mut job.next) else {
            self.copy = None;
            return;
        };
        let (slot, data) = (job.slot, job.bytes.slice(from as usize, len as usize));
        let mut io = self.own(now, Op::Write, self.layout.image_at(slot) + from, len, OwnKind::Metadata, out);
        io.data = Data::Bytes(data);
        self.send_own(io, Own::ImageCopy, out);
    }

    pub(crate) fn copy_written(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        if c.outcome.is_done() && !self.is_degraded() {
            return self.write_copy(now, out);
        }
        // One copy is enough until the next image.
        self.copy = None;
        self.counters.table_errors += 1;
    }

    /// The bytes that capacitor-backed RAM writes out when the power is lost, and their place: the table as it is, after which no record
    /// need be looked at. `None` without a capacitor. A dump that is cut off is ignored.
    pub fn dump(&self) -> Option<(u64, Vec<u8>)> {
        self.config.capacitor?;
        let fits = self.mtl.len() <= self.layout.shape.extents_max as usize;
        // While an image is being named both slots may be needed.
        let named = self.image.as_ref().is_some_and(ImageJob::is_noted);
        if !matches!(self.life, Life::Ready) || !fits || named {
            return None;
        }
        let number = self.image_number + 1;
        // Another first sum: a record that was under way and came through must not follow on what this says.
        let entry = |(i, l): (usize, &crate::log::Log)| LogEntry {
            busy: false,
            tail: if l.state == State::Bad { self.layout.shape.log_bytes as u32 } else { l.done_tail },
            bad: l.state == State::Bad && !l.no_space,
            sum: first_sum(&self.layout, i as u32, number),
            epoch: l.epoch,
        };
        let logs = self.logs.iter().enumerate().map(entry).collect();
        let extents = self.mtl.from(0).collect();
        let has_loss = self.has_loss();
        let image = Image { number, complete: true, has_loss, next_sequence: self.next_sequence, logs, extents };
        Some((self.layout.image_at(1 - self.image_slot), encode_image(&self.layout, &image)))
    }

    /// The image that empties logs is in force (or a planted mistake says so).
    fn empty_logs(&mut self) {
        let job = self.image.as_ref().expect("an image is under way");
        let (number, resets) = (job.number, job.resets.clone());
        if resets.is_empty() {
            return;
        }
        let mut emptied = vec![false; self.layout.logs as usize];
        resets.iter().for_each(|log| emptied[*log as usize] = true);
        self.mtl.drop_logs(|log| emptied[log as usize]);
        let ignore_readers = self.has(Planted::ReaderIgnored);
        for log in resets {
            self.dirty.remove(&log);
            self.crowded.remove(&log);
            self.unreadable.remove(&log);
            self.claims.remove(log);
            self.claims.moved(log);
            let l = &mut self.logs[log as usize];
            if l.state == State::Bad && !l.no_space {
                continue;
            }
            l.reset(first_sum(&self.layout, log, number), epoch_of(number));
            if l.state == State::Open || ignore_readers {
                l.state = State::Open;
                self.open.insert(log);
            }
        }
    }
}
