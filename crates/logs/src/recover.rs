//! The layer's state after a start: the image in force, and the records since (Manylogs §III-H, ML-M8).
//!
//! Reads both layout pages and both notes, the image that the notes name, and then of each log that the note names the records
//! beyond the image's end of it. Then it judges what it found:
//!
//! | found | means |
//! | --- | --- |
//! | a layout page or a note is corrupt | the other copy is used |
//! | the two notes differ | the power was lost between them: the newer one is used, and both are written again |
//! | the image that the notes name is corrupt | the other copy is used; without one the pool fails |
//! | an image that no note names | it was cut off, or not yet in force: ignored |
//! | a log ends before a witness says | a durable record is lost: of which ranges isn't known, the pool fails |
//! | a record's data are corrupt, and a witness says it was durable | reads of those ranges fail, the pool is degraded |
//! | a record is corrupt, and no witness says that it was durable | it was torn: the log ends before it |
//!
//! Writes nothing unless something is to be repaired or converted: then an image, or where only a note is concerned both of its
//! copies, are written before anything is served.

use crate::config::Planted;
use crate::format::{
    Entry, EntryKind, Image, ImageHeader, NOTE_BYTES, Note, VERSION, Witness, decode_image, decode_image_header,
    decode_note, encode_image, epoch_of,
};
use crate::format_v1;
use crate::layer::{Life, Logs, Own};
use crate::layout::{IMAGE_HEADER_BYTES, LAYOUTS_AT, NOTES_AT, PAGE_BYTES};
use crate::layout_pages::{Chosen, LayoutPages};
use crate::log::{Log, Open, State};
use crate::mtl::Mapped;
use crate::status::Why;
use crate::walk::{Found, Next, READ_BYTES, RECORD_HEADER_MAX, Rules, Sums, Walk};
use plimsoll_base::{Buf, Completion, Data, Op, OwnKind, Time};
use plimsoll_stack::Actions;
use std::collections::VecDeque;

/// Attempts to bring home what makes the table too full for an image. One that fails retires a log that can't be read.
const ROOM_TRIES: u32 = 8;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Layout(usize),
    Note(usize),
    Header(usize),
    Body {
        slot: usize,
        from: u64,
    },
    Scan,
    /// All that was found is made durable.
    Flush,
}

/// See the module's documentation.
pub(crate) struct Recovery {
    phase: Phase,
    begun_at: Time,
    version: u32,
    layouts: LayoutPages,
    /// The copies that are whole.
    notes: [Option<Note>; 2],
    is_blank: [bool; 2],
    headers: [Option<ImageHeader>; 2],
    /// Slots of images that may be in force, the best first.
    candidates: VecDeque<usize>,
    body: Vec<u8>,
    image: Option<Image>,
    to_scan: VecDeque<u32>,
    walk: Option<Walk>,
    found: Vec<Found>,
    witnesses: Vec<Witness>,
    /// Logs that could not be read to their ends.
    unreadable: Vec<u32>,
    /// Logs with a record whose data can't be read now, and perhaps at a later start: they are retired before anything is served.
    sealed: Vec<u32>,
    /// Logs with what may be left of a record behind the end of their chain.
    torn: Vec<u32>,
    /// An image is to be written before anything is served.
    repair: bool,
    /// Both copies of the note are.
    renote: bool,
}

impl Logs {
    pub(crate) fn recover(&mut self, now: Time, out: &mut Actions) {
        self.recovery = Some(Box::new(Recovery {
            phase: Phase::Layout(0),
            begun_at: now,
            version: VERSION,
            layouts: LayoutPages::default(),
            notes: [None, None],
            is_blank: [false; 2],
            headers: [None, None],
            candidates: VecDeque::new(),
            body: Vec::new(),
            image: None,
            to_scan: VecDeque::new(),
            walk: None,
            found: Vec::new(),
            witnesses: Vec::new(),
            unreadable: Vec::new(),
            sealed: Vec::new(),
            torn: Vec::new(),
            repair: false,
            renote: false,
        }));
        self.recovery_ask(now, LAYOUTS_AT[0], PAGE_BYTES, out);
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
        let bytes = c.outcome.is_done().then(|| {
            let mut bytes = vec![0; c.io.len as usize];
            if !matches!(c.io.data, Data::Absent) {
                c.io.data.copy_to(&mut bytes);
            }
            bytes
        });
        match r.phase {
            Phase::Layout(n) => {
                r.layouts.add(bytes.as_deref());
                if n == 0 {
                    r.phase = Phase::Layout(1);
                    self.recovery_ask(now, LAYOUTS_AT[1], PAGE_BYTES, out);
                } else if let Err(what) = self.take_layout(&mut r) {
                    return self.refuse(what, out);
                } else {
                    self.read_note(now, &mut r, 0, out);
                }
            }
            Phase::Note(n) => {
                let bytes = bytes.unwrap_or_default();
                r.is_blank[n] = !bytes.is_empty() && bytes.iter().all(|b| *b == 0);
                r.notes[n] = match r.version {
                    1 => format_v1::decode_note(&self.layout, &bytes),
                    _ => decode_note(&self.layout, &bytes),
                };
                if n == 0 {
                    self.read_note(now, &mut r, 1, out);
                } else {
                    r.phase = Phase::Header(0);
                    self.recovery_ask(now, self.layout.image_at(0), IMAGE_HEADER_BYTES, out);
                }
            }
            Phase::Header(n) => {
                let bytes = bytes.unwrap_or_default();
                r.headers[n] = match r.version {
                    1 => format_v1::decode_image_header(&self.layout, &bytes),
                    _ => decode_image_header(&self.layout, &bytes),
                };
                if n == 0 {
                    r.phase = Phase::Header(1);
                    self.recovery_ask(now, self.layout.image_at(1), IMAGE_HEADER_BYTES, out);
                } else if let Err(what) = self.choose_images(&mut r) {
                    return self.refuse(what, out);
                } else {
                    self.read_body(now, &mut r, 0, out);
                }
            }
            Phase::Body { slot, from } => {
                let Some(bytes) = bytes else { return self.next_image(now, r, out) };
                r.body.extend_from_slice(&bytes);
                let all = r.headers[slot].expect("it is being read").body_bytes;
                if from + (bytes.len() as u64) < all {
                    self.read_body(now, &mut r, from + bytes.len() as u64, out);
                } else {
                    return self.body_read(now, r, out);
                }
            }
            Phase::Scan => return self.scanned(now, r, bytes, out),
            Phase::Flush if bytes.is_none() => {
                let what =
                    "the device can't be flushed: its logs may not be durable; look at the device, then start again";
                return self.refuse(what.into(), out);
            }
            Phase::Flush => return self.recovered(now, *r, out),
        }
        self.recovery = Some(r);
    }

    /// Takes the layout that the pages say.
    fn take_layout(&mut self, r: &mut Recovery) -> Result<(), String> {
        let Chosen { layout, version, is_damaged, write_first } = r.layouts.choose()?;
        if !layout.is_laid_out_as(&self.layout) {
            return Err(format!(
                "the logs on the device are laid out otherwise ({:?}) than asked for ({:?}): set `log`, `group` and `extents` of [pool.logs] as they were, and [pool.bands] if the device was made with it",
                layout.shape, self.layout.shape
            ));
        }
        // Its salt is its own.
        self.layout = layout;
        r.version = version;
        if is_damaged {
            self.counters.recovery.repaired += 1;
            r.repair = true;
        }
        self.layouts_due |= is_damaged || version < VERSION;
        self.layouts_first = write_first;
        Ok(())
    }

    fn read_note(&mut self, now: Time, r: &mut Recovery, n: usize, out: &mut Actions) {
        r.phase = Phase::Note(n);
        let len = self.layout.block().max(NOTE_BYTES as u64);
        self.recovery_ask(now, NOTES_AT[n], len, out);
    }

    /// Chooses the slots that may have the image in force.
    fn choose_images(&mut self, r: &mut Recovery) -> Result<(), String> {
        let headers = r.headers;
        let slots = |is: &dyn Fn(&ImageHeader) -> bool| {
            let mut slots: Vec<usize> = (0..2).filter(|n| headers[*n].as_ref().is_some_and(is)).collect();
            slots.sort_by_key(|n| std::cmp::Reverse(headers[*n].expect("just seen").number));
            slots
        };
        let newest = r.notes.iter().flatten().max_by_key(|n| n.number);
        let trusts_any = self.has(Planted::OlderImageUsed) || self.has(Planted::ImageOnce);
        r.candidates = match newest {
            _ if r.version == 1 || trusts_any => slots(&|_| true).into(),
            // What a capacitor wrote at the end is newer than what the notes name.
            Some(note) => {
                let dump = slots(&|h| h.complete && h.number == note.image + 1);
                let named = slots(&|h| h.number == note.image);
                dump.into_iter().chain(named).collect()
            }
            // An image is copied when it is in force. Of two that differ nobody knows which one is.
            None if headers[0].is_some_and(|a| headers[1].is_some_and(|b| a.number == b.number)) => {
                slots(&|_| true).into()
            }
            None => VecDeque::new(),
        };
        if r.version == VERSION && !trusts_any {
            let bad = r.notes.iter().filter(|n| n.is_none()).count();
            self.counters.recovery.repaired += bad as u32;
            r.repair |= bad == 2;
            r.renote = self.older_note(r).is_some();
        }
        if r.candidates.is_empty() { Err(self.no_image(r)) } else { Ok(()) }
    }

    /// The copy of the note that doesn't say what the other does: it is corrupt, or the power was lost before it was written. As
    /// long as it stays so, logs may be lost with the other copy.
    fn older_note(&self, r: &Recovery) -> Option<usize> {
        let number = |n: usize| r.notes[n].as_ref().map(|n| n.number);
        if r.version == 1 || self.has(Planted::OlderNoteLeft) {
            return (0..2).find(|n| r.notes[*n].is_none());
        }
        (number(0) != number(1)).then(|| if number(0) < number(1) { 0 } else { 1 })
    }

    fn no_image(&self, r: &Recovery) -> String {
        let named = r.notes.iter().flatten().max_by_key(|n| n.number).map(|n| n.image).filter(|n| *n > 0);
        match named {
            Some(n) => format!(
                "image {n} of the MTL table, which the notes name, is corrupt in both places: where logged data lie is lost; restore the device from a copy, or make a new one and restore its volumes"
            ),
            None => "neither image of the MTL table can be used: where logged data lie is lost; restore the device from a copy, or make a new one and restore its volumes".into(),
        }
    }

    fn read_body(&mut self, now: Time, r: &mut Recovery, from: u64, out: &mut Actions) {
        let slot = *r.candidates.front().expect("there is one");
        let all = r.headers[slot].expect("it is valid").body_bytes;
        if from == 0 {
            r.body.clear();
        }
        let len = READ_BYTES.min(all - from).next_multiple_of(self.layout.block());
        r.phase = Phase::Body { slot, from };
        self.recovery_ask(now, self.layout.image_at(slot as u64) + IMAGE_HEADER_BYTES + from, len, out);
    }

    /// An image isn't whole: the next candidate.
    fn next_image(&mut self, now: Time, mut r: Box<Recovery>, out: &mut Actions) {
        let slot = r.candidates.pop_front().expect("it was read");
        // What a capacitor's table says is in records, too: it may be cut off.
        if r.version == VERSION && r.headers[slot].is_some_and(|h| !h.complete) {
            self.counters.recovery.repaired += 1;
            r.repair = true;
        }
        r.headers[slot] = None;
        if r.candidates.is_empty() {
            let what = self.no_image(&r);
            return self.refuse(what, out);
        }
        self.read_body(now, &mut r, 0, out);
        self.recovery = Some(r);
    }

    fn body_read(&mut self, now: Time, mut r: Box<Recovery>, out: &mut Actions) {
        let slot = *r.candidates.front().expect("it was read");
        let header = r.headers[slot].expect("it was read");
        let image = match r.version {
            1 => format_v1::decode_image(&self.layout, &header, &r.body),
            _ => decode_image(&self.layout, &header, &r.body),
        };
        let image = match image {
            None if self.has(Planted::ImageSumIgnored) => {
                let log = |_| crate::format::LogEntry { tail: 0, busy: false, bad: false, sum: 0, epoch: 0 };
                let logs = (0..self.layout.logs).map(log).collect();
                let (number, next_sequence) = (header.number, header.next_sequence);
                Some(Image { number, complete: false, has_loss: false, next_sequence, logs, extents: Vec::new() })
            }
            other => other,
        };
        let Some(image) = image else { return self.next_image(now, r, out) };
        self.counters.recovery.image_extents = image.extents.len() as u64;
        self.image_slot = slot as u64;
        r.body = Vec::new();
        r.image = Some(image);
        self.begin_scan(&mut r);
        self.scan(now, r, out);
    }

    /// The image is in force; the note says which logs may know more.
    fn begin_scan(&mut self, r: &mut Recovery) {
        let image = r.image.as_ref().expect("it was read");
        self.image_number = image.number;
        self.next_sequence = image.next_sequence;
        for &(home, m) in &image.extents {
            self.mtl.put(home, m);
        }
        // Version 1 has no epochs: they begin with the image that converts it.
        let epoch = |e: u32| if r.version == 1 { epoch_of(image.number + 1) } else { e };
        self.logs = image.logs.iter().map(|l| Log::new(l.tail, l.sum, epoch(l.epoch), l.bad)).collect();
        self.counters.logs_retired = image.logs.iter().filter(|l| l.bad).count() as u64;
        let newest = r.notes.iter().flatten().max_by_key(|n| n.number).cloned();
        let bad = self.older_note(r);
        // Version 1 writes one of two notes in turn: one that isn't whole may be the newer one. Only the first is without another.
        let v1_doubt =
            r.version == 1 && bad.is_some_and(|n| !r.is_blank[n] || newest.as_ref().is_some_and(|n| n.number > 1));
        let newest = newest.filter(|_| !v1_doubt);
        // Without a note nothing can be left out.
        let all = newest.is_none() || self.config.capacitor.is_some();
        self.notes.recovered(newest, image.number, bad);
        let of_interest = |log: &u32| !image.complete && (all || self.notes.names(*log));
        self.counters.recovery.from_dump = image.complete;
        r.to_scan = (0..self.layout.logs).filter(of_interest).collect();
        r.phase = Phase::Scan;
    }

    /// A read of a log has ended, or failed.
    fn scanned(&mut self, now: Time, mut r: Box<Recovery>, read: Option<Vec<u8>>, out: &mut Actions) {
        let walk = r.walk.as_mut().expect("a log is being looked at");
        if let Some((at, len)) = walk.read(read, &self.rules(r.version)) {
            self.recovery = Some(r);
            return self.recovery_ask(now, at, len, out);
        }
        self.scan(now, r, out);
    }

    /// Walks along the log in hand with what was read of it, then goes on to the next.
    fn scan(&mut self, now: Time, mut r: Box<Recovery>, out: &mut Actions) {
        loop {
            let Some(walk) = &mut r.walk else {
                let Some(log) = r.to_scan.pop_front() else { return self.all_scanned(now, r, out) };
                self.counters.recovery.logs_scanned += 1;
                let is_busy = r.image.as_ref().is_some_and(|i| i.logs[log as usize].busy);
                r.walk = Some(Walk::new(&self.layout, log, &self.logs[log as usize], is_busy));
                continue;
            };
            match walk.next(&self.rules(r.version)) {
                Next::Read(at, len) => {
                    self.recovery = Some(r);
                    return self.recovery_ask(now, at, len, out);
                }
                Next::End => self.log_scanned(&mut r),
            }
        }
    }

    /// All that was found may be in a volatile cache only: the process before was killed, and the power wasn't lost. Records and notes
    /// from now on say that it is durable, and the next image takes the place of one of two copies. So it is flushed first.
    fn all_scanned(&mut self, now: Time, mut r: Box<Recovery>, out: &mut Actions) {
        if self.has(Planted::StartUnflushed) {
            return self.recovered(now, *r, out);
        }
        r.phase = Phase::Flush;
        self.recovery = Some(r);
        let io = self.own(now, Op::Flush, 0, 0, OwnKind::Recovery, out);
        self.send_own(io, Own::Recovery, out);
    }

    fn rules(&self, version: u32) -> Rules<'_> {
        Rules { layout: &self.layout, version, search_bytes: self.search_bytes(), planted: self.config.planted }
    }

    /// The log in hand ends where its chain does; what of that is taken is judged when all are known.
    fn log_scanned(&mut self, r: &mut Recovery) {
        let walk = r.walk.take().expect("a log was looked at");
        let (tail, sum) = walk.tail();
        let l = &mut self.logs[walk.log as usize];
        *l = Log::new(tail, sum, walk.epoch, l.state == State::Bad);
        l.has_new = !walk.found.is_empty();
        r.sealed.extend(walk.is_sealed.then_some(walk.log));
        r.torn.extend(walk.is_torn.then_some(walk.log));
        if walk.is_unreadable {
            self.counters.recovery.logs_unreadable += 1;
            r.unreadable.push(walk.log);
        }
        r.found.extend(walk.found);
        r.witnesses.extend(walk.witnesses);
    }

    /// Longest distance from a log's end to a record that follows a corrupt one: the length of the longest record.
    ///
    /// Today's `logged_write_bytes` isn't enough: the record may have been written under a larger one that was configured before.
    fn search_bytes(&self) -> u64 {
        let today = self.config.logged_write_bytes;
        let longest =
            if self.has(Planted::SearchByToday) { today } else { today.max(self.layout.shape.logged_write_max()) };
        let one = self.config.record_bytes_max.max(longest.saturating_add(RECORD_HEADER_MAX));
        // No record is longer than its log, and a setting may be u64::MAX.
        one.saturating_add(RECORD_HEADER_MAX).min(self.layout.shape.log_bytes)
    }

    /// Everything is read: judges the records, and applies them in the order in which they were written.
    fn recovered(&mut self, now: Time, mut r: Recovery, out: &mut Actions) {
        let missing = match self.judge(&mut r) {
            Ok(missing) => missing,
            Err(what) => return self.refuse(what, out),
        };
        if let Some(what) = missing {
            if !self.config.accept_loss {
                return self.refuse(what, out);
            }
            self.lost = Some(what);
            r.repair = true;
        }
        let records = r.found.iter().filter(|f| !f.entries.is_empty()).count();
        self.counters.recovery.records = r.found.len() as u64;
        self.apply(&mut r);
        self.close_torn(&r.torn);
        self.open = Open::default();
        for log in 0..self.layout.logs {
            let l = &self.logs[log as usize];
            if l.state == State::Open {
                self.open.insert(log);
            }
            let crowded = u64::from(l.tail) * 100 > self.layout.shape.log_bytes * crate::clean::CROWDED_PERCENT;
            if l.state != State::Bad && crowded {
                self.crowded.insert(log);
            }
        }
        for f in &r.found {
            // Whether a witness of it is durable isn't known: another one is written.
            let l = &self.logs[f.log as usize];
            if l.state != State::Bad {
                self.claims.add(now, f.log, l.epoch, l.tail);
            }
        }
        self.changed = records as u64;
        self.image_at = now;
        self.cleaned_at = now;
        self.counters.recovery.took = now.since(r.begun_at);
        self.counters.recovery.converted = r.version < VERSION;
        self.counters.recovery.lost_bytes = self.mtl.lost_bytes();
        if !r.unreadable.is_empty() && self.lost.is_none() {
            self.lost = Some(format!(
                "{} logs could not be read at the start: what was written there last may be lost; they are retired",
                r.unreadable.len()
            ));
        }
        if self.lost.is_none() && r.image.as_ref().is_some_and(|i| i.has_loss) {
            if self.config.accept_loss {
                // The next image doesn't say it any more.
                self.image_wanted = true;
            } else {
                self.lost = Some(
                    "an earlier start did not find all that the logs held: ranges that aren't known may hold older data; check the volumes, then start once with `accept_loss = true` in [pool.logs]".into(),
                );
            }
        }
        let old = r.version < VERSION;
        if self.counters.recovery.from_dump || !r.unreadable.is_empty() || !r.sealed.is_empty() || r.repair || old {
            // What was passed over now must never be looked at again: what the capacitor wrote says that there are no later
            // records, and a log that can't be read today might be tomorrow. Until an image says otherwise, nothing is
            // served.
            self.making_room = Some(0);
            return self.image_at_start(now, out);
        }
        let number = r.image.as_ref().map(|i| i.number);
        let other = 1 - self.image_slot as usize;
        if r.headers[other].map(|h| h.number) != number {
            let image = r.image.expect("it was read");
            self.copy_due = Some(Buf::copy_of(&encode_image(&self.layout, &image)));
        }
        // The new note's number is this start's, and no record of another start has it: records wait for it.
        if self.has(Planted::OlderNoteLeft) && !r.renote {
            self.notes.start_afresh();
        } else {
            self.notes.renew();
            self.write_note(now, out);
        }
        if r.renote {
            // No record may go to a log that one copy only names, and the image that the older one names isn't overwritten.
            return;
        }
        self.begin_serving(now, out);
    }

    /// Closes logs behind whose end a record was torn, until an image has another sum for their ends.
    ///
    /// A record written over what is left of it could be torn, too, and between them the sectors of both make up the older one. That one
    /// would bring back what this start passes over, and what follows on it.
    fn close_torn(&mut self, torn: &[u32]) {
        // A log that is closed hides in nearly all cases that it isn't sealed.
        if self.has(Planted::TornRevived) || self.has(Planted::UnreadableUnsealed) {
            return;
        }
        for &log in torn {
            let l = &mut self.logs[log as usize];
            if l.state == State::Open {
                (l.state, l.has_torn) = (State::Closed, true);
                self.closed_until_image.push(log);
                self.image_wanted = true;
            }
        }
    }

    /// Begins the image that a start needs before anything is served. If the table is too full for one, logged blocks are written back first,
    /// as in a checkpoint; the image that empties the logs then is the one. A power loss before that changes nothing of what the next start
    /// finds.
    pub(crate) fn image_at_start(&mut self, now: Time, out: &mut Actions) {
        while let Some(tries) = self.making_room
            && self.life == Life::Recovering
            && self.clean.is_none()
        {
            if self.begin_image(now, Vec::new(), out) {
                self.making_room = None;
                return;
            }
            if self.stopping {
                // A job begun now would be given up again. The next start finds what this one did.
                let what =
                    "the pool was stopped while its start made room in the MTL table: nothing is lost; start again";
                return self.refuse(what.into(), out);
            }
            let mut logs = self.logs_in_use();
            if tries > 0 {
                // What can't be read stays where it is.
                logs.retain(|log| self.logs[*log as usize].state != State::Bad);
            }
            if tries >= ROOM_TRIES || logs.is_empty() {
                let what = "the MTL table is too full to be written at the start, and what is logged can't be brought home: restore the device from a copy";
                return self.refuse(what.into(), out);
            }
            self.making_room = Some(tries + 1);
            self.begin_clean(now, Why::Full, logs, None, out);
        }
    }

    /// Begins serving, and a missing second copy of the image if recovery found only one.
    pub(crate) fn begin_serving(&mut self, now: Time, out: &mut Actions) {
        if let Some(bytes) = self.copy_due.take() {
            self.begin_copy(now, bytes, out);
        }
        self.life = Life::Ready;
        self.serve_early(now, out);
    }

    /// Cuts off what was torn; says what durable records are missing, if any are.
    fn judge(&mut self, r: &mut Recovery) -> Result<Option<String>, String> {
        let mut durable = vec![0u32; self.layout.logs as usize];
        if !self.has(Planted::WitnessIgnored) {
            for w in &r.witnesses {
                let epoch = self.logs[w.log as usize].epoch;
                let ahead = w.epoch.wrapping_sub(epoch) & 0x7fff_ffff;
                if ahead == 0 {
                    durable[w.log as usize] = durable[w.log as usize].max(w.tail);
                } else if ahead < 1 << 30 {
                    return Err(format!(
                        "a record in a log says that image {} of the MTL table was in force, the notes name an older one: the tables are corrupt; restore the device from a copy",
                        w.epoch
                    ));
                }
            }
        }
        // A record that isn't whole ends its log, unless it was durable.
        let image = r.image.as_ref().expect("it was read");
        let mut ends: Vec<(u32, u64, bool)> = image.logs.iter().map(|l| (l.tail, l.sum, false)).collect();
        r.found.retain(|f| {
            let (end, sum, cut) = &mut ends[f.log as usize];
            *cut |= !f.is_whole && f.end > durable[f.log as usize];
            if *cut {
                r.torn.push(f.log);
            } else {
                (*end, *sum) = (f.end, f.sum);
            }
            !*cut
        });
        let mut missing = Vec::new();
        for (log, &(end, sum, _)) in ends.iter().enumerate() {
            let unreadable = r.unreadable.contains(&(log as u32));
            let l = &mut self.logs[log];
            let (bad, epoch) = (l.state == State::Bad, l.epoch);
            *l = Log::new(end, sum, epoch, bad);
            if end < durable[log] && !bad {
                missing.push(format!("log {log} bytes {end} to {}", durable[log]));
            }
            if unreadable || r.sealed.contains(&(log as u32)) || (end < durable[log] && !bad) {
                self.retire(log as u32);
            }
        }
        for f in &r.found {
            self.logs[f.log as usize].has_new = true;
        }
        r.repair |= r.found.iter().any(|f| !f.is_whole);
        Ok((!missing.is_empty()).then(|| {
            missing.truncate(4);
            format!(
                "durable records in the logs are corrupt or can't be read ({}): which ranges they wrote isn't known, and older data would be read there; restore the device from a copy, or start with `accept_loss = true` in [pool.logs] and check the volumes",
                missing.join(", ")
            )
        }))
    }

    fn apply(&mut self, r: &mut Recovery) {
        let known = r.image.as_ref().map_or(0, |i| i.next_sequence);
        let mut entries: Vec<(Entry, u64, u32, Sums)> = Vec::new();
        for f in &mut r.found {
            let log = f.log;
            entries.extend(std::mem::take(&mut f.entries).into_iter().map(|(e, at, sums)| (e, at, log, sums)));
        }
        entries.sort_by_key(|(e, ..)| e.sequence);
        for (e, at, log, sums) in entries {
            let whole = Mapped { at, len: e.len, log, key: e.key, unit: None };
            match (e.kind, sums) {
                (EntryKind::Data, Sums::Corrupt) if self.has(Planted::LossForgotten) => {}
                (EntryKind::Data, Sums::Corrupt) => self.mtl.put(e.home, Mapped::lost(e.home, e.len, e.key)),
                (EntryKind::Data, Sums::None) => self.mtl.put(e.home, whole),
                (EntryKind::Data, Sums::One(sum)) => self.map_units(e.home, whole, &[sum]),
                (EntryKind::Data, Sums::Many(sums)) => self.map_units(e.home, whole, &sums),
                // The image knew of it already, and may hold something newer of the range.
                (EntryKind::Kill, _) if e.sequence < known => {}
                (EntryKind::Kill, _) => {
                    self.mtl.kill(e.home, e.home + u64::from(e.len));
                }
            }
            if !self.has(Planted::SequenceReused) {
                self.next_sequence = self.next_sequence.max(e.sequence + 1);
            }
        }
    }

    /// Serves the requests that came while recovering.
    pub(crate) fn serve_early(&mut self, now: Time, out: &mut Actions) {
        for io in std::mem::take(&mut self.early) {
            plimsoll_stack::Layer::submit(self, now, io, out);
        }
    }
}
