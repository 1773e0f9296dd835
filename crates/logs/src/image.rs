//! Images of the MTL table, and notes of which logs may have records that the last image doesn't know of.
//!
//! An image is the point at which anything is given up: what went home, was swapped or killed before it counts only with
//! the image that says so, and a log is emptied by nothing else. Its instant is when it is begun. What went home by then is
//! flushed before the image is written, and the image is flushed before it counts. Records that were under way at that
//! instant are beyond the logs' ends in the image, so a recovery reads them.

use crate::config::Planted;
use crate::format::{Image, LogEntry, NOTE_BYTES, Note, encode_image, encode_note, first_sum, logs_per_chunk};
use crate::layer::{Life, Logs, Own};
use crate::layout::{Layout, NOTES_AT};
use crate::log::{State, Tail};
use plimsoll_base::{Buf, Completion, Data, IoFlags, Op, OwnKind, Time};
use plimsoll_stack::Actions;

/// An image is written in pieces of this size, one after the other.
const PIECE_BYTES: u64 = 1 << 20;

/// An image under way.
pub(crate) struct ImageJob {
    number: u64,
    sequence: u64,
    /// Logs that it empties.
    resets: Vec<u32>,
    bytes: Buf,
    written: u64,
    tails: Vec<Tail>,
    changed: u64,
    begun_at: Time,
}

/// See the module's documentation.
pub(crate) struct Notes {
    logs_per_chunk: u32,
    number: u64,
    /// What the note on the device says, and the one on its way to it.
    noted: Vec<bool>,
    writing: Option<Vec<bool>>,
    /// What the next must say besides.
    wanted: Vec<bool>,
    /// Chunks with records since the last image (or the one under way) was begun.
    since: Vec<bool>,
    /// Write one that says `since` only.
    shrink: bool,
    /// A recovery looks at all logs anyway.
    off: bool,
}

impl Notes {
    pub fn new(layout: &Layout, off: bool) -> Notes {
        let logs_per_chunk = logs_per_chunk(layout.logs);
        let none = vec![false; layout.logs.div_ceil(logs_per_chunk) as usize];
        Notes {
            logs_per_chunk,
            number: 1,
            noted: none.clone(),
            writing: None,
            wanted: none.clone(),
            since: none,
            shrink: false,
            off,
        }
    }

    /// What a recovery found.
    pub fn recovered(&mut self, note: Note) {
        self.number = note.number;
        self.since.clone_from(&note.chunks);
        self.noted = note.chunks;
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

    /// Will a recovery look at `log`, now and after the note under way?
    pub fn covers(&self, log: u32) -> bool {
        let c = self.chunk(log);
        self.off || (self.noted[c] && self.writing.as_ref().is_none_or(|w| w[c]))
    }

    fn next(&mut self) -> Option<Note> {
        let wants = self.shrink || self.wanted.contains(&true);
        if self.off || self.writing.is_some() || !wants {
            return None;
        }
        let base = if self.shrink { &self.since } else { &self.noted };
        let chunks: Vec<bool> = base.iter().zip(&self.wanted).map(|(a, b)| *a || *b).collect();
        self.shrink = false;
        self.wanted.fill(false);
        self.number += 1;
        self.writing = Some(chunks.clone());
        Some(Note { number: self.number, chunks })
    }
}

impl Logs {
    /// Writes a note if one is needed and none is under way.
    pub(crate) fn write_note(&mut self, now: Time, out: &mut Actions) {
        let Some(note) = self.notes.next() else { return };
        let at = NOTES_AT[(note.number % 2) as usize];
        let len = u64::from(self.layout.block_bytes).max(NOTE_BYTES as u64);
        let mut bytes = encode_note(&self.layout, &note);
        bytes.resize(len as usize, 0);
        let mut io = self.own(now, Op::Write, at, len, OwnKind::Metadata, out);
        io.head.flags = IoFlags::FUA;
        io.data = Data::Bytes(Buf::copy_of(&bytes));
        self.counters.notes += 1;
        self.send_own(io, Own::Note, out);
    }

    pub(crate) fn note_written(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        let chunks = self.notes.writing.take().expect("one was under way");
        if c.outcome.is_done() {
            self.notes.noted = chunks;
        } else {
            self.degrade("a note can't be written");
        }
        self.write_note(now, out);
        self.write_records(now, out);
    }

    /// Begins an image that empties `resets`. False if the table is too large: something must go home first.
    pub(crate) fn begin_image(&mut self, now: Time, resets: Vec<u32>, out: &mut Actions) -> bool {
        assert!(self.image.is_none(), "one image at a time");
        let number = self.image_number + 1;
        let mut emptied = vec![false; self.layout.logs as usize];
        resets.iter().for_each(|log| emptied[*log as usize] = true);
        let extents: Vec<_> = self.mtl.from(0).filter(|(_, m)| !emptied[m.log as usize]).collect();
        if extents.len() > self.layout.shape.extents_max as usize {
            return false;
        }
        self.image_wanted = false;
        let entry = |(i, l): (usize, &crate::log::Log)| {
            // Nothing in a retired log is believed but what the image says.
            let end = self.layout.shape.log_bytes as u32;
            match emptied[i] {
                _ if l.state == State::Bad => LogEntry { tail: end, bad: true, sum: l.sum },
                true => LogEntry { tail: 0, bad: false, sum: first_sum(&self.layout, i as u32, number) },
                false => LogEntry { tail: l.done_tail, bad: false, sum: l.done_sum },
            }
        };
        let logs = self.logs.iter().enumerate().map(entry).collect();
        let image = Image { number, complete: false, next_sequence: self.next_sequence, logs, extents };
        let bytes = Buf::copy_of(&encode_image(&self.layout, &image));
        self.notes.since.fill(false);
        for log in 0..self.layout.logs {
            if !self.logs[log as usize].order.is_empty() {
                let c = self.notes.chunk(log);
                self.notes.since[c] = true;
            }
        }
        self.image = Some(ImageJob {
            number,
            sequence: self.next_sequence,
            resets,
            bytes,
            written: 0,
            tails: self.dirty_tails(),
            changed: std::mem::take(&mut self.changed),
            begun_at: now,
        });
        if self.has(Planted::ResetTooEarly) {
            self.empty_logs();
        }
        if self.has(Planted::ImageBeforeHome) {
            self.write_image(now, out);
        } else {
            let io = self.own(now, Op::Flush, 0, 0, OwnKind::Metadata, out);
            self.send_own(io, Own::ImageFlush, out);
        }
        true
    }

    fn write_image(&mut self, now: Time, out: &mut Actions) {
        let job = self.image.as_mut().expect("an image is under way");
        let (total, from) = (job.bytes.len() as u64, job.written);
        let len = PIECE_BYTES.min(total - from);
        job.written += len;
        let data = Data::Bytes(job.bytes.slice(from as usize, len as usize));
        let at = self.layout.image_at(job.number) + from;
        let mut io = self.own(now, Op::Write, at, len, OwnKind::Metadata, out);
        io.data = data;
        self.send_own(io, Own::ImageWrite, out);
    }

    pub(crate) fn image_written(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        let job = self.image.as_ref().expect("an image is under way");
        if !c.outcome.is_done() || self.is_degraded() {
            return self.abandon_image(now, "the MTL table can't be written", out);
        }
        if job.written < job.bytes.len() as u64 {
            return self.write_image(now, out);
        }
        if self.has(Planted::ImageNotFlushed) {
            return self.commit_image(now, out);
        }
        let io = self.own(now, Op::Flush, 0, 0, OwnKind::Metadata, out);
        self.send_own(io, Own::ImageFlush, out);
    }

    /// One of an image's two flushes has ended.
    pub(crate) fn image_flushed(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        let job = self.image.as_mut().expect("an image is under way");
        let tails = std::mem::take(&mut job.tails);
        let is_first = job.written == 0;
        let outcome = self.flushed(c.outcome, tails);
        match (outcome.is_done() && !self.is_degraded(), is_first) {
            (false, _) => self.abandon_image(now, "a flush failed", out),
            (true, true) => self.write_image(now, out),
            (true, false) => self.commit_image(now, out),
        }
    }

    fn is_degraded(&self) -> bool {
        matches!(self.life, Life::Degraded(_))
    }

    fn abandon_image(&mut self, now: Time, why: &'static str, out: &mut Actions) {
        let job = self.image.take().expect("an image is under way");
        self.changed += job.changed;
        if self.life == Life::Recovering {
            return self.refuse(format!("at the start {why}: replace the device, or start again"), out);
        }
        self.degrade(why);
        self.clean_failed(now);
        self.no_image_comes(now, out);
    }

    fn commit_image(&mut self, now: Time, out: &mut Actions) {
        if !self.has(Planted::ResetTooEarly) {
            self.empty_logs();
        }
        let job = self.image.take().expect("an image is under way");
        self.image_number = job.number;
        self.image_at = now;
        self.counters.images += 1;
        self.counters.image_bytes = job.bytes.len() as u64;
        self.counters.image_time = now.since(job.begun_at);
        self.notes.shrink = true;
        if self.life == Life::Recovering {
            self.life = Life::Ready;
            self.serve_early(now, out);
        }
        self.image_discharges(now, job.number, job.sequence, out);
        self.clean_committed(now, out);
        self.write_note(now, out);
    }

    /// What capacitor-backed RAM writes out when the power is lost, and where: the table as it is, after which no record need
    /// be looked at. `None` without a capacitor. As far as it comes: a part of it counts as nothing.
    pub fn dump(&self) -> Option<(u64, Vec<u8>)> {
        self.config.capacitor?;
        let fits = self.mtl.len() <= self.layout.shape.extents_max as usize;
        if !matches!(self.life, Life::Ready) || !fits {
            return None;
        }
        let number = self.image_number + 1;
        // Another first sum: a record that was under way and came through must not follow on what this says.
        let entry = |(i, l): (usize, &crate::log::Log)| LogEntry {
            tail: if l.state == State::Bad { self.layout.shape.log_bytes as u32 } else { l.done_tail },
            bad: l.state == State::Bad,
            sum: first_sum(&self.layout, i as u32, number),
        };
        let logs = self.logs.iter().enumerate().map(entry).collect();
        let extents = self.mtl.from(0).collect();
        let image = Image { number, complete: true, next_sequence: self.next_sequence, logs, extents };
        Some((self.layout.image_at(number), encode_image(&self.layout, &image)))
    }

    /// The image that empties logs counts (or a planted mistake says so).
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
            let l = &mut self.logs[log as usize];
            if l.state == State::Bad {
                continue;
            }
            l.reset(first_sum(&self.layout, log, number));
            if l.state == State::Open || ignore_readers {
                l.state = State::Open;
                self.open.insert(log);
            }
        }
    }
}
