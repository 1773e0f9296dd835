//! A band's copy: its zone, merged with what is newer, goes to a spare one, and the map says so.
//!
//! ```text
//! reset the spare ─► read a run ─► write it ─┐  ─► flush ─► map's first copy ─► its second ─► the old zone is spare
//!                        ▲───────────────────┘
//! ```
//! One request is under way at a time. A copy that fails before its map comes to nothing: what it held is in the buffer again. If a map's write fails, nobody
//! knows which map a start will find, and no zone may be used again.

use crate::config::{BandsConfig, Planted};
use crate::layer::{BadPlace, Bands, Life, Pending};
use crate::map::Map;
use crate::pieces::Pieces;
use crate::shape::PAGE_BYTES;
use plimsoll_base::{Completion, Data, IoError, IoFlags, Op, Outcome, Span, Time};
use plimsoll_stack::Actions;

/// Kinds of the copy's requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Reset,
    Read,
    Write,
    Flush,
    Map(usize),
}

/// A band being copied.
pub(crate) struct Rewrite {
    pub band: u32,
    /// Changes that are merged into it.
    pub frozen: Pieces,
    /// The zone that it's read from.
    source: Option<u32>,
    /// The zone that it's written to; none for zeroes.
    pub target: Option<u32>,
    next: Step,
    /// Bytes of the band that are read, and written.
    read: u64,
    written: u64,
    /// Lengths and bytes that were read and aren't written yet.
    run: Vec<(u64, Data)>,
    /// A read failed before this byte: up to it only what isn't known is read, in pieces of the second number of bytes at most.
    careful: (u64, u64),
    busy: bool,
    /// The device has lost writes that it had acknowledged.
    pub lost: bool,
    began: Time,
}

/// A band with a place that can't be read isn't copied for this long, then for twice as long, doubled [`BARRED_DOUBLINGS`] times at most.
const BARRED_FOR: Span = Span::from_secs(60);
const BARRED_DOUBLINGS: u32 = 3;

const STUCK: &str = "a write of the bands' map failed: nothing is written to bands until the node is started again";

impl Bands {
    /// Takes one step of a copy, or begins one, if it's time. False if there's nothing to do now.
    pub(crate) fn step(&mut self, now: Time, out: &mut Actions) -> bool {
        if self.life != Life::Ready {
            if matches!(self.life, Life::Stuck(_)) {
                self.fail_waiting(IoError::FlushFailed, out);
            }
            return false;
        }
        let Some(r) = &self.rewrite else { return self.begin(now, out) };
        if r.busy {
            return false;
        }
        let wanted = self.clients_wait();
        let due = self.stepped_at + if wanted { self.config.patience } else { self.config.copy_patience };
        // Between two requests of a client under load a transfer of a copy would delay the next one.
        let quiet_at = if wanted { Time::ZERO } else { self.client_at + self.config.quiet };
        let may_wait = self.held.is_empty() && (self.clients_below > 0 || now < quiet_at);
        if may_wait && now < due {
            out.wake_at(if self.clients_below > 0 { due } else { due.min(quiet_at) });
            return false;
        }
        self.send_step(now, out);
        false
    }

    /// The band whose copy is wanted most: of what a flush waits for the first, of what fills the buffer the one with most bytes. Last one
    /// with changes of clients that may be tried again.
    fn wanted_band(&self, now: Time) -> Option<u32> {
        if let Some(band) = self.wanted_by_waiters() {
            return Some(band);
        }
        let any = if self.draining && !self.gave_up { self.dirty.with_clients(|b| !self.is_left(b)) } else { None };
        any.or_else(|| if self.held.is_empty() { None } else { self.dirty.fullest(|b| !self.is_barred(now, b)) })
            .or_else(|| self.bad.keys().copied().find(|b| !self.is_barred(now, *b) && self.retries(*b)))
    }

    /// True if a band with a place that can't be read is copied again although nobody asks for it.
    fn retries(&self, band: u32) -> bool {
        !self.draining && !self.gave_up && self.dirty.has_clients_in(band)
    }

    /// Asks to be woken when the next band may be tried again.
    fn wake_to_retry(&self, out: &mut Actions) {
        let due = self.bad.iter().filter(|(band, _)| self.retries(**band)).map(|(_, b)| b.until).min();
        due.into_iter().for_each(|due| out.wake_at(due));
    }

    fn begin(&mut self, now: Time, out: &mut Actions) -> bool {
        let Some(band) = self.wanted_band(now) else {
            // All that fills the buffer is of bands that can't be copied.
            self.fail_held(IoError::Device, out);
            self.wake_to_retry(out);
            return false;
        };
        if self.is_barred(now, band) {
            self.fail_band(band, out);
            return true;
        }
        let zone_bytes = self.places.shape.zone_bytes;
        let (from, to) = (u64::from(band) * zone_bytes, (u64::from(band) + 1) * zone_bytes);
        let source = self.map.zones[band as usize];
        let zero = self.dirty.is_zero(from, to);
        let target = if zero {
            None
        } else {
            let Some(t) = self.nearest_spare(source.unwrap_or(band)) else {
                // Clients read all of them; one ends soon.
                return false;
            };
            self.spare.remove(&t);
            Some(t)
        };
        let target = if self.has(Planted::InPlace) && source.is_some() {
            self.spare.extend(target);
            source
        } else {
            target
        };
        if self.has(Planted::SourceFreedEarly) {
            self.spare.extend(source);
        }
        if !self.clients_wait() {
            self.stepped_at = now;
        }
        let frozen = self.dirty.take(band);
        let next = match target {
            Some(_) if !self.config.resets || self.has(Planted::ResetForgotten) => Step::Read,
            Some(_) => Step::Reset,
            None => Step::Map(0),
        };
        self.rewrite = Some(Rewrite {
            band,
            frozen,
            source,
            target,
            next,
            read: 0,
            written: 0,
            run: Vec::new(),
            careful: (0, 0),
            busy: false,
            lost: false,
            began: now,
        });
        true
    }

    /// The spare zone nearest to `zone` that nobody reads. Those that couldn't be written come last.
    fn nearest_spare(&self, zone: u32) -> Option<u32> {
        let free = |z: &&u32| !self.readers.contains_key(z) || self.has(Planted::ReaderIgnored);
        if !self.suspect.is_empty() {
            let failures = |z: &u32| self.suspect.get(z).copied().unwrap_or(0);
            return self.spare.iter().filter(free).min_by_key(|z| (failures(z), z.abs_diff(zone))).copied();
        }
        let below = self.spare.range(..=zone).rev().find(free);
        let above = self.spare.range(zone..).find(free);
        below.into_iter().chain(above).min_by_key(|z| z.abs_diff(zone)).copied()
    }

    /// The map with this copy's change.
    fn next_map(&self) -> Map {
        let r = self.rewrite.as_ref().expect("a copy is under way");
        let mut map = Map { number: self.map.number + 1, zones: self.map.zones.clone() };
        map.zones[r.band as usize] = r.target;
        map
    }

    fn send_step(&mut self, now: Time, out: &mut Actions) {
        let zone_bytes = self.places.shape.zone_bytes;
        let r = self.rewrite.as_mut().expect("a copy is under way");
        let start = u64::from(r.band) * zone_bytes;
        let target = r.target.map(|t| self.places.zone_at(t));
        // What is all new or was never written isn't read.
        let mut len = 0;
        while r.next == Step::Read {
            let known;
            (len, known) = r.next_read(&self.config, start, zone_bytes);
            if len == 0 {
                r.next = Step::Write;
                break;
            }
            if !known {
                break;
            }
            r.run.push((len, Data::Zeroes));
            r.read += len;
        }
        r.busy = true;
        let next = r.next;
        let what = Pending::Own(next);
        let io = match next {
            Step::Reset => self.send_own(now, Op::Trim, target.expect("a zone is reset"), zone_bytes, what, out),
            Step::Read => {
                let source = self.places.zone_at(r.source.expect("it's read from somewhere")) + r.read;
                self.send_own(now, Op::Read, source, len, what, out)
            }
            Step::Write => {
                let (len, old) = r.run.first().cloned().expect("a run is written");
                let from = start + r.written;
                let merged: Vec<(u64, Data)> = r
                    .frozen
                    .over(from, from + len)
                    .map(|(at, n, new)| (n, new.unwrap_or_else(|| old.slice(len, at - from, n))))
                    .collect();
                let at = target.expect("it's written somewhere") + r.written;
                let mut io = self.send_own(now, Op::Write, at, len, what, out);
                io.data = Data::Parts(merged.into());
                io
            }
            Step::Flush => self.send_own(now, Op::Flush, 0, 0, what, out),
            Step::Map(i) => {
                let bytes = self.next_map().encode(&self.places);
                let mut io = self.send_own(now, Op::Write, self.places.maps_at()[i], self.places.map_bytes, what, out);
                io.head.flags = IoFlags::FUA;
                io.data = Data::Bytes(bytes);
                io
            }
        };
        out.submit(0, io);
    }

    /// A request of the copy's has ended.
    pub(crate) fn stepped(&mut self, now: Time, step: Step, c: Completion, out: &mut Actions) {
        self.stepped_at = now;
        let zone_bytes = self.places.shape.zone_bytes;
        let early = self.has(Planted::MapBeforeData);
        let once = self.has(Planted::MapOnce);
        let r = self.rewrite.as_mut().expect("a copy is under way");
        r.busy = false;
        if !c.outcome.is_done() || (r.lost && !matches!(step, Step::Map(_))) {
            return self.copy_failed(now, step, &c, out);
        }
        let len = c.io.len;
        match step {
            Step::Reset => r.next = Step::Read,
            Step::Read => {
                self.counters.copy_bytes += len;
                r.run.push((len, c.io.into_data()));
                r.read += len;
                let run = r.read - r.written;
                if r.read == zone_bytes || run >= self.config.run_bytes {
                    r.next = Step::Write;
                }
            }
            Step::Write => {
                self.counters.copy_bytes += len;
                r.run.remove(0);
                r.written += len;
                if r.written == zone_bytes {
                    r.next = if early { Step::Map(0) } else { Step::Flush };
                } else if r.run.is_empty() {
                    r.next = Step::Read;
                }
            }
            Step::Flush => r.next = Step::Map(0),
            Step::Map(0) if !once => r.next = Step::Map(1),
            Step::Map(_) => self.copied(now),
        }
    }

    /// Both copies of the map name the new zone.
    fn copied(&mut self, now: Time) {
        self.map = self.next_map();
        let r = self.rewrite.take().expect("a copy is under way");
        self.with_zone = self.with_zone + u32::from(r.target.is_some()) - u32::from(r.source.is_some());
        self.bad.remove(&r.band);
        if let Some(target) = r.target {
            self.suspect.remove(&target);
        }
        self.spare.extend(r.source.filter(|s| r.target != Some(*s)));
        if self.has(Planted::NewerDropped) {
            self.dirty.take(r.band);
        }
        self.spent.push(r.frozen);
        let took = now.since(r.began);
        let c = &mut self.counters;
        c.copied += u64::from(r.target.is_some());
        c.zeroed += u64::from(r.target.is_none());
        c.copy_time += took;
        c.copy_longest = c.copy_longest.max(took);
    }

    fn copy_failed(&mut self, now: Time, step: Step, c: &Completion, out: &mut Actions) {
        let zone_bytes = self.places.shape.zone_bytes;
        let r = self.rewrite.as_mut().expect("a copy is under way");
        let (start, len) = (u64::from(r.band) * zone_bytes, c.io.len);
        if step == Step::Read && !r.lost && r.reads_less(start, len) {
            return;
        }
        let r = self.rewrite.take().expect("a copy is under way");
        self.counters.failed += 1;
        self.dirty.put_back(r.band, r.frozen);
        if matches!(step, Step::Map(_)) {
            // Neither zone is spare: a start may find either map.
            self.life = Life::Stuck(STUCK);
            self.gave_up = true;
            return self.fail_waiting(IoError::FlushFailed, out);
        }
        self.spare.extend(r.target);
        let error = match c.outcome {
            Outcome::Failed(error) if !r.lost && step != Step::Flush => error,
            _ => IoError::FlushFailed,
        };
        match (step, error) {
            (Step::Read, IoError::Device) => {
                let tries = self.bad.get(&r.band).map_or(0, |b| b.tries);
                let until = now + Span::from_nanos(BARRED_FOR.as_nanos() << tries.min(BARRED_DOUBLINGS));
                self.bad.insert(r.band, BadPlace { at: start + r.read, len, until, tries: tries + 1 });
                return self.fail_band(r.band, out);
            }
            (Step::Reset | Step::Write, IoError::Device) => {
                *self.suspect.entry(r.target.expect("a zone was written")).or_default() += 1;
                if self.spare.iter().any(|z| !self.suspect.contains_key(z)) {
                    return; // Another zone may do.
                }
            }
            _ => {}
        }
        self.gave_up = true;
        self.fail_waiting(error, out);
    }
}

impl Rewrite {
    /// The length of the next read, 0 if the run is full; and true if its bytes are known.
    fn next_read(&self, config: &BandsConfig, start: u64, zone_bytes: u64) -> (u64, bool) {
        let run_left = config.run_bytes.max(config.io_bytes) - (self.read - self.written);
        let len = config.io_bytes.min(zone_bytes - self.read).min(run_left);
        let (from, (careful_to, most)) = (start + self.read, self.careful);
        if self.read >= careful_to || len == 0 {
            return (len, self.source.is_none() || self.frozen.covers(from, from + len));
        }
        let to = from + len.min(careful_to - self.read);
        let (_, n, data) = self.frozen.over(from, to).next().expect("there are bytes");
        if data.is_some() { (n, true) } else { (n.min(most), false) }
    }

    /// A read of `len` bytes failed. True if less is to be read there: only what isn't known, or half of it.
    fn reads_less(&mut self, start: u64, len: u64) -> bool {
        let from = start + self.read;
        let known = self.read >= self.careful.0 && self.frozen.touches(from, from + len);
        if !known && len <= PAGE_BYTES {
            return false;
        }
        let most = if known { len } else { (len / 2).next_multiple_of(PAGE_BYTES) };
        self.careful = (self.careful.0.max(self.read + len), most);
        true
    }
}
