//! What the layer knows after a start: the newest image, and what records say since (Manylogs §III-H, ML-M8).
//!
//! Reads the layout, both images' headers, the newest image's body, the newest note, and then of each log that the note
//! names the records beyond the image's end of it. Writes nothing: the checkpoint is skipped.

use crate::config::Planted;
use crate::format::{
    Entry, EntryKind, Image, ImageHeader, NOTE_BYTES, Note, Place, data_sum, decode_image, decode_image_header,
    decode_layout, decode_note, decode_record, header_length,
};
use crate::layer::{Life, Logs, Own};
use crate::layout::{IMAGE_HEADER_BYTES, NOTES_AT, PAGE_BYTES};
use crate::log::{Log, Open};
use crate::mtl::Mapped;
use plimsoll_base::{Completion, Data, Op, OwnKind, Time};
use plimsoll_stack::Actions;
use std::collections::VecDeque;

/// How much of a log is read at first: enough to see that nothing is there, or a few records.
const LOOK_BYTES: u64 = 64 << 10;
/// And then.
const READ_BYTES: u64 = 1 << 20;

enum Phase {
    Layout,
    Header(u64),
    Body { from: u64 },
    Note(usize),
    Scan,
}

/// See the module's documentation.
pub(crate) struct Recovery {
    phase: Phase,
    begun_at: Time,
    headers: [Option<ImageHeader>; 2],
    /// The image that is being read, and what of it has been.
    body_of: u64,
    body: Vec<u8>,
    notes: [Option<Note>; 2],
    image: Option<Image>,
    to_scan: VecDeque<u32>,
    scan: Option<Scan>,
    found: Vec<(Entry, u64, u32)>,
}

/// A log that is being looked at.
struct Scan {
    log: u32,
    /// Where the next record would be, and what it would have to name.
    at: u64,
    sum: u64,
    /// Bytes read from `at` on.
    bytes: Vec<u8>,
}

enum Step {
    Read(u64),
    End,
}

impl Logs {
    pub(crate) fn recover(&mut self, now: Time, out: &mut Actions) {
        self.recovery = Some(Box::new(Recovery {
            phase: Phase::Layout,
            begun_at: now,
            headers: [None, None],
            body_of: 0,
            body: Vec::new(),
            notes: [None, None],
            image: None,
            to_scan: VecDeque::new(),
            scan: None,
            found: Vec::new(),
        }));
        self.recovery_ask(now, 0, PAGE_BYTES, out);
    }

    fn recovery_ask(&mut self, now: Time, at: u64, len: u64, out: &mut Actions) {
        self.counters.recovery.bytes_read += len;
        let io = self.own(now, Op::Read, at, len, OwnKind::Recovery, out);
        self.send_own(io, Own::Recovery, out);
    }

    pub(crate) fn refuse(&mut self, what: String, out: &mut Actions) {
        self.recovery = None;
        self.life = Life::Failed(what);
        for io in std::mem::take(&mut self.early) {
            out.end(io, plimsoll_base::Outcome::Failed(plimsoll_base::IoError::Unavailable));
        }
    }

    pub(crate) fn recovery_read(&mut self, now: Time, c: Completion, out: &mut Actions) {
        let mut r = self.recovery.take().expect("it is recovering");
        if !c.outcome.is_done() && !matches!(r.phase, Phase::Scan) {
            return self.refuse(format!("the logs' tables at {} can't be read", c.io.offset), out);
        }
        let mut bytes = vec![0; c.io.len as usize];
        if c.outcome.is_done() && !matches!(c.io.data, Data::Absent) {
            c.io.data.copy_to(&mut bytes);
        }
        match r.phase {
            Phase::Layout => {
                match decode_layout(&bytes) {
                    Err(e) => return self.refuse(e.0, out),
                    Ok(l) if !l.is_laid_out_as(&self.layout) => {
                        return self.refuse(
                            format!("the logs on the device are laid out otherwise ({:?}) than asked for ({:?}): correct the configuration", l.shape, self.layout.shape),
                            out,
                        );
                    }
                    // Its salt is its own.
                    Ok(l) => self.layout = l,
                }
                r.phase = Phase::Header(0);
                self.recovery_ask(now, self.layout.image_at(0), IMAGE_HEADER_BYTES, out);
            }
            Phase::Header(n) => {
                r.headers[n as usize] = decode_image_header(&self.layout, &bytes);
                if n == 0 {
                    r.phase = Phase::Header(1);
                    self.recovery_ask(now, self.layout.image_at(1), IMAGE_HEADER_BYTES, out);
                } else {
                    self.read_newest(now, &mut r, out);
                }
            }
            Phase::Body { from } => {
                r.body.extend_from_slice(&bytes);
                let all = r.headers[r.body_of as usize].expect("it is being read").body_bytes;
                if from + (bytes.len() as u64) < all {
                    self.read_body(now, &mut r, from + bytes.len() as u64, out);
                } else {
                    self.body_read(now, &mut r, out);
                }
            }
            Phase::Note(n) => {
                r.notes[n] = decode_note(&self.layout, &bytes);
                if n == 0 {
                    self.read_note(now, &mut r, 1, out);
                } else {
                    self.begin_scan(&mut r);
                    return self.scan(now, r, None, out);
                }
            }
            Phase::Scan => {
                let readable = c.outcome.is_done();
                return self.scan(now, r, readable.then_some(bytes), out);
            }
        }
        if matches!(self.life, Life::Recovering) {
            self.recovery = Some(r);
        }
    }

    /// Begins to read the newest image whose header is valid.
    fn read_newest(&mut self, now: Time, r: &mut Recovery, out: &mut Actions) {
        let newest = (0..2).filter(|n| r.headers[*n].is_some()).max_by_key(|n| r.headers[*n].map(|h| h.number));
        let Some(n) = newest else {
            return self
                .refuse("neither image of the MTL table can be used: where logged data lie is lost".into(), out);
        };
        r.body_of = n as u64;
        r.body.clear();
        self.read_body(now, r, 0, out);
    }

    fn read_body(&mut self, now: Time, r: &mut Recovery, from: u64, out: &mut Actions) {
        let all = r.headers[r.body_of as usize].expect("it is valid").body_bytes;
        let len = READ_BYTES.min(all - from).next_multiple_of(self.layout.block());
        r.phase = Phase::Body { from };
        self.recovery_ask(now, self.layout.image_at(r.body_of) + IMAGE_HEADER_BYTES + from, len, out);
    }

    fn body_read(&mut self, now: Time, r: &mut Recovery, out: &mut Actions) {
        let header = r.headers[r.body_of as usize].expect("it was read");
        let image = decode_image(&self.layout, &header, &r.body);
        let image = match image {
            None if self.has(Planted::ImageSumIgnored) => Some(Image {
                number: header.number,
                complete: false,
                next_sequence: header.next_sequence,
                logs: (0..self.layout.logs).map(|_| crate::format::LogEntry { tail: 0, bad: false, sum: 0 }).collect(),
                extents: Vec::new(),
            }),
            other => other,
        };
        let Some(image) = image else {
            // Cut off while it was written: the one before holds.
            r.headers[r.body_of as usize] = None;
            return self.read_newest(now, r, out);
        };
        self.counters.recovery.image_extents = image.extents.len() as u64;
        r.image = Some(image);
        self.read_note(now, r, 0, out);
    }

    fn read_note(&mut self, now: Time, r: &mut Recovery, n: usize, out: &mut Actions) {
        r.phase = Phase::Note(n);
        let len = self.layout.block().max(NOTE_BYTES as u64);
        self.recovery_ask(now, NOTES_AT[n], len, out);
    }

    /// The image holds; the note says which logs may know more.
    fn begin_scan(&mut self, r: &mut Recovery) {
        let image = r.image.as_ref().expect("it was read");
        self.image_number = image.number;
        self.next_sequence = image.next_sequence;
        for &(home, m) in &image.extents {
            self.mtl.put(home, m);
        }
        self.logs = image.logs.iter().map(|l| Log::new(l.tail, l.sum, l.bad)).collect();
        self.counters.logs_retired = image.logs.iter().filter(|l| l.bad).count() as u64;
        let note = r.notes.iter().flatten().max_by_key(|n| n.number).cloned();
        if let Some(note) = note.clone() {
            self.notes.recovered(note);
        }
        // Without a note nothing can be left out.
        let all = note.is_none() || self.config.capacitor.is_some();
        let of_interest = |log: &u32| !image.complete && (all || self.notes.covers(*log));
        self.counters.recovery.from_dump = image.complete;
        r.to_scan = (0..self.layout.logs).filter(of_interest).collect();
        r.phase = Phase::Scan;
    }

    /// Follows the chain of the log in hand with what was read of it, then goes on to the next.
    fn scan(&mut self, now: Time, mut r: Box<Recovery>, read: Option<Vec<u8>>, out: &mut Actions) {
        if let Some(scan) = &mut r.scan {
            match read {
                Some(bytes) => scan.bytes = bytes,
                None => {
                    let log = scan.log;
                    self.counters.recovery.logs_unreadable += 1;
                    self.retire(log);
                    r.scan = None;
                }
            }
        }
        loop {
            let Some(scan) = &mut r.scan else {
                let Some(log) = r.to_scan.pop_front() else { return self.recovered(now, *r, out) };
                self.counters.recovery.logs_scanned += 1;
                let l = &self.logs[log as usize];
                let at = self.layout.log_start(log) + u64::from(l.tail);
                r.scan = Some(Scan { log, at, sum: l.sum, bytes: Vec::new() });
                continue;
            };
            match self.follow(scan, &mut r.found) {
                Step::Read(len) => {
                    let at = scan.at;
                    self.recovery = Some(r);
                    return self.recovery_ask(now, at, len, out);
                }
                Step::End => {
                    let start = self.layout.log_start(scan.log);
                    let bad = self.logs[scan.log as usize].state == crate::log::State::Bad;
                    self.logs[scan.log as usize] = Log::new((scan.at - start) as u32, scan.sum, bad);
                    r.scan = None;
                }
            }
        }
    }

    /// Takes the records that are whole in what was read; says how much more to read, or that the chain ends.
    fn follow(&mut self, scan: &mut Scan, found: &mut Vec<(Entry, u64, u32)>) -> Step {
        let end = self.layout.log_start(scan.log) + self.layout.shape.log_bytes;
        let block = self.layout.block();
        loop {
            let (left, have) = (end - scan.at, scan.bytes.len() as u64);
            let want = |need: u64| Step::Read(need.max(if have == 0 { LOOK_BYTES } else { READ_BYTES }).min(left));
            if left < block {
                return Step::End;
            }
            if have < block {
                return want(block);
            }
            let Some(header) = header_length(&scan.bytes).filter(|h| *h <= left) else { return Step::End };
            if header > have {
                return want(header);
            }
            let place = Place { at: scan.at, log: scan.log, previous: scan.sum };
            let place = if self.has(Planted::ChainIgnored) {
                Place { previous: u64::from_le_bytes(scan.bytes[32..40].try_into().expect("eight")), ..place }
            } else {
                place
            };
            let Some(record) = decode_record(&self.layout, place, &scan.bytes) else { return Step::End };
            let total = record.header_bytes.saturating_add(record.data_bytes);
            if total > left {
                return Step::End;
            }
            if total > have {
                return want(total);
            }
            let data = &scan.bytes[record.header_bytes as usize..total as usize];
            if data_sum(&self.layout, data) != record.data_sum && !self.has(Planted::DataSumIgnored) {
                return Step::End;
            }
            let mut at = scan.at + record.header_bytes;
            for e in record.entries {
                found.push((e, at, scan.log));
                at += if e.kind == EntryKind::Data { u64::from(e.len) } else { 0 };
            }
            self.counters.recovery.records += 1;
            scan.sum = record.sum;
            scan.at += total;
            scan.bytes.drain(..total as usize);
        }
    }

    /// Everything is read: what records say is applied in the order in which it was said.
    fn recovered(&mut self, now: Time, mut r: Recovery, out: &mut Actions) {
        r.found.sort_by_key(|(e, ..)| e.sequence);
        let entries = r.found.len() as u64;
        let known = r.image.as_ref().map_or(0, |i| i.next_sequence);
        for (e, at, log) in r.found {
            match e.kind {
                EntryKind::Data => self.mtl.put(e.home, Mapped { at, len: e.len, log, key: e.key }),
                // The image knew of it already, and may hold something newer of the range.
                EntryKind::Kill if e.sequence < known => {}
                EntryKind::Kill => {
                    self.mtl.kill(e.home, e.home + u64::from(e.len));
                }
            }
            if !self.has(Planted::SequenceReused) {
                self.next_sequence = self.next_sequence.max(e.sequence + 1);
            }
        }
        self.open = Open::default();
        for log in 0..self.layout.logs {
            let l = &self.logs[log as usize];
            if l.state == crate::log::State::Open {
                self.open.insert(log);
                if u64::from(l.tail) * 100 > self.layout.shape.log_bytes * crate::clean::CROWDED_PERCENT {
                    self.crowded.insert(log);
                }
            }
        }
        self.changed = entries;
        self.image_at = now;
        self.cleaned_at = now;
        self.counters.recovery.took = now.since(r.begun_at);
        let unreadable = self.counters.recovery.logs_unreadable;
        if unreadable > 0 {
            self.lost = Some(format!(
                "{unreadable} logs could not be read at the start: what was written there last may be lost; they are retired"
            ));
        }
        if self.counters.recovery.from_dump || unreadable > 0 {
            // What was passed over now must never be looked at again: what the capacitor wrote says that there are no later
            // records, and a log that can't be read today might be tomorrow. Until an image says otherwise, nothing is
            // served.
            let begun = self.begin_image(now, Vec::new(), out);
            assert!(begun, "an image that was written fits");
            return;
        }
        self.life = Life::Ready;
        self.serve_early(now, out);
    }

    /// What came while recovering is served.
    pub(crate) fn serve_early(&mut self, now: Time, out: &mut Actions) {
        for io in std::mem::take(&mut self.early) {
            plimsoll_stack::Layer::submit(self, now, io, out);
        }
    }
}
