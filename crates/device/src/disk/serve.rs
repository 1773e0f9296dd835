//! Service of the drive: the choice of an arm's next request, and the cost of that request.

use super::cache::{Extent, Hit};
use super::layout::Place;
use super::mech::{Access, Arm, Mech, Stream};
use super::spec::{Discipline, ReadAhead};
use super::{Disk, Waiting, Work};
use crate::model::Op;

/// More sectors than any bus is behind the media; bounds a product.
const LEAD_SECTORS_MAX: u64 = 1 << 20;

/// Returns the cost that a discipline minimises: nothing, cylinders, or nanoseconds until the first sector passes.
fn arm_cost(mech: &Mech, discipline: Discipline, at: &Arm, at_ns: u64, lbn: u64, write: bool) -> u64 {
    match discipline {
        Discipline::Fifo => 0,
        Discipline::Sstf => u64::from(mech.distance(at, lbn)),
        Discipline::Sptf => mech.positioning_ns(at, at_ns, lbn, write),
    }
}

impl Disk {
    /// Serves what needs no arm now: a read hit where the drive lets those pass, a write into the buffer.
    pub(super) fn serve_at_once(&mut self, w: &Waiting, now_ns: u64) -> bool {
        if w.cacheable && self.can_absorb(w, self.queue.len()) {
            self.absorb(w, now_ns);
            return true;
        }
        if w.op != Op::Read || !self.buffer.hits_pass_arm || self.arms[w.arm as usize].work == Work::Idle {
            return false;
        }
        match self.segments.look_up(w.lbn, w.sectors) {
            Hit::Full(segment) if self.arms.iter().all(|a| a.filling != Some(segment)) => {
                self.serve_hit(w, segment, now_ns);
                true
            }
            _ => false,
        }
    }

    /// True if the buffer takes `w` now, with `others` requests queued besides.
    fn can_absorb(&self, w: &Waiting, others: usize) -> bool {
        let arm_serves_host = self.arms[w.arm as usize].work == Work::Request;
        if arm_serves_host && !self.buffer.write_prebuffering {
            return false;
        }
        // Level 1 breaks off at anything but the one stream; level 2 doesn't mind what else waits.
        if self.buffer.write_cache_level == 1 && others > 0 {
            return false;
        }
        self.dirty.has_room() || self.dirty.appends(w.lbn, w.sectors, w.arm, self.flushing.is_empty())
    }

    /// Takes a write into the buffer, from where it completes; the media follow.
    fn absorb(&mut self, w: &Waiting, now_ns: u64) {
        let begin = now_ns.max(self.bus_free_ns);
        let ready = begin + self.costs.write_overhead_ns(true, self.last_was_read);
        self.last_was_read = false;
        let data = ready + self.costs.preparation_ns;
        let data_end = data + self.costs.bus_write_ns(w.sectors);
        self.bus_free_ns = data_end;
        let at_ns = data_end + self.costs.write_completion_ns;
        self.finish(w.tag, at_ns, begin);
        let e = Extent::new(w.lbn, w.sectors, w.arm, ready, (data + self.costs.bus_write_ns(1), data_end));
        self.dirty.push(e, self.flushing.is_empty());
        self.note_write(w.lbn, w.sectors);
        if self.arms[w.arm as usize].work == Work::Idle {
            self.dispatch(w.arm as usize, now_ns);
        }
    }

    fn note_write(&mut self, lbn: u64, sectors: u64) {
        let keep = self.buffer.read_hits_on_writes && !self.buffer.separate_write_segment;
        self.segments.note_write(lbn, sectors, keep);
        self.last_write_end = lbn + sectors;
    }

    /// Room has come free: takes in writes that waited for it, oldest first.
    pub(super) fn absorb_waiting(&mut self, now_ns: u64) {
        while let Some(i) = self.queue.iter().position(|w| w.cacheable) {
            let w = self.queue[i];
            if !self.can_absorb(&w, self.queue.len() - 1) {
                return;
            }
            self.queue.remove(i);
            self.absorb(&w, now_ns);
        }
    }

    /// Gives the idle `arm` its next work, if there is any.
    pub(super) fn dispatch(&mut self, arm: usize, now_ns: u64) {
        if self.arms[arm].work != Work::Idle {
            return;
        }
        let mine = arm as u32;
        if self.dirty.waits_for(mine) && self.destage_first(mine) {
            return self.destage(arm, now_ns);
        }
        while let Some(i) = self.pick(mine, now_ns) {
            let w = self.queue.remove(i);
            self.serve(&w, now_ns);
            if self.arms[arm].work != Work::Idle {
                return;
            }
        }
        if self.dirty.waits_for(mine) {
            self.destage(arm, now_ns);
        }
    }

    /// Serves a request whose turn it is.
    pub(super) fn serve(&mut self, w: &Waiting, now_ns: u64) {
        match w.op {
            Op::Read => self.serve_read(w, now_ns),
            _ if w.cacheable && self.can_absorb(w, self.queue.len()) => self.absorb(w, now_ns),
            _ => self.serve_write(w, now_ns),
        }
    }

    /// True if cached writes go before whatever is queued: somebody waits for them, or the drive always does so.
    fn destage_first(&self, arm: u32) -> bool {
        self.buffer.destage_before_reads
            || !self.flushing.is_empty()
            || self.queue.iter().any(|w| w.cacheable && w.arm == arm)
    }

    /// The queued request that `arm` serves next.
    fn pick(&self, arm: u32, now_ns: u64) -> Option<usize> {
        let mut mine = self.queue.iter().enumerate().filter(|(_, w)| w.arm == arm).peekable();
        let oldest = mine.next()?;
        if self.queue_spec.discipline == Discipline::Fifo || mine.peek().is_none() {
            return Some(oldest.0);
        }
        let mut best = (self.cost(arm, now_ns, oldest.1), oldest.0);
        for (i, w) in mine {
            let cost = self.cost(arm, now_ns, w);
            if cost < best.0 {
                best = (cost, i);
            }
        }
        Some(best.1)
    }

    /// Returns the cost of choosing `w`, less the credit of its age: the worst access for each `age_max_ms`. So a request is
    /// passed over only by those that arrived less than that time after it.
    fn cost(&self, arm: u32, now_ns: u64, w: &Waiting) -> i64 {
        let write = w.op != Op::Read;
        let overhead = if write {
            self.costs.write_overhead_ns(false, self.last_was_read)
        } else {
            self.costs.read_overhead_ns(false, self.last_was_read)
        };
        let local = w.lbn - u64::from(arm) * self.arm_sectors;
        let at = &self.arms[arm as usize].at;
        let cost = arm_cost(&self.mech, self.queue_spec.discipline, at, now_ns + overhead, local, write);
        let age_us = (now_ns - w.arrived_ns) / 1000;
        cost as i64 - (age_us * self.age_credit_per_ms / 1000) as i64
    }

    fn destage(&mut self, arm: usize, now_ns: u64) {
        self.stop_stream(arm, now_ns);
        let (mech, discipline, at) = (&self.mech, self.queue_spec.discipline, &self.arms[arm].at);
        let base = arm as u64 * self.arm_sectors;
        let next =
            self.dirty.start(arm as u32, |e| arm_cost(mech, discipline, at, now_ns.max(e.arm_ns), e.lbn - base, true));
        let Some(e) = next else { return };
        let free_ns = self.write_media(arm, now_ns.max(e.arm_ns), e.data_ns, e.lbn, e.sectors);
        self.occupy(arm, Work::Destage, free_ns);
    }

    /// Puts a run on the media; gives the end. The data's first and last sector are there at `data_ns`.
    fn write_media(&mut self, arm: usize, at_ns: u64, data_ns: (u64, u64), lbn: u64, sectors: u64) -> u64 {
        let local = lbn - arm as u64 * self.arm_sectors;
        // The media must not overtake the bus: begin when the last sector will be there just in time.
        let place = self.mech.layout.place(local);
        let lead_ns = self.mech.layout.transfer_ns(&place, (sectors - 1).min(LEAD_SECTORS_MAX));
        let data_ns = data_ns.0.max(data_ns.1.saturating_sub(lead_ns));
        let (n, rest) = self.split(local, sectors);
        let mut at = self.arms[arm].at;
        let a = self.mech.access(&mut at, at_ns, data_ns, local, n, true);
        let end_ns = match rest {
            0 => a.end_ns,
            _ => self.mech.access(&mut at, a.end_ns, 0, 0, rest, true).end_ns,
        };
        self.arms[arm].at = at;
        end_ns
    }

    /// Splits a run at the end of an arm's share: what lies beyond is timed as the same arm's first sectors,
    /// a full stroke away, which is dearer than asking the other arm and happens at one place of the disk only.
    fn split(&self, local: u64, sectors: u64) -> (u64, u64) {
        let n = sectors.min(self.arm_sectors - local);
        (n, sectors - n)
    }

    fn serve_write(&mut self, w: &Waiting, now_ns: u64) {
        let arm = w.arm as usize;
        self.stop_stream(arm, now_ns);
        let cached = self.buffer.write_cache_level > 0;
        let overhead = self.costs.write_overhead_ns(cached, self.last_was_read);
        self.last_was_read = false;
        let begin = now_ns.max(self.bus_free_ns);
        let (mut arm_ns, mut data) = (begin + overhead, begin + overhead + self.costs.preparation_ns);
        let mut floor_ns = 0;
        if let Some(d) = self.costs.disconnect {
            (arm_ns, data) = (begin + d.arm_ns, begin + d.data_ns);
            if self.last_write_end != w.lbn {
                floor_ns = arm_ns + d.minimum_seek_ns;
            }
        }
        let mut data_ns = (floor_ns.max(data + self.costs.bus_write_ns(1)), data + self.costs.bus_write_ns(w.sectors));
        if w.op == Op::WriteZeroes {
            data_ns = (0, 0);
        } else {
            self.bus_free_ns = data_ns.1;
        }
        let end_ns = self.write_media(arm, arm_ns, data_ns, w.lbn, w.sectors);
        self.note_write(w.lbn, w.sectors);
        let at_ns = end_ns + self.costs.write_reselect_ns + self.costs.write_completion_ns;
        self.finish(w.tag, at_ns, now_ns);
        self.occupy(arm, Work::Request, if self.buffer.preseek { end_ns } else { at_ns });
    }

    /// Lets read-ahead come to where it is at `now_ns`.
    fn catch_up(&mut self, arm: usize, now_ns: u64) {
        let a = &mut self.arms[arm];
        if let Some(stream) = &mut a.stream {
            let whole = self.segments.end(stream.segment) == stream.lbn;
            self.mech.run_stream(&mut a.at, stream, arm as u64 * self.arm_sectors, now_ns);
            if whole {
                self.segments.extend(stream.segment, stream.lbn);
            } else {
                // A write has cut the segment short or taken it over: what was read since is of no use.
                a.stream = None;
            }
        }
    }

    fn stop_stream(&mut self, arm: usize, now_ns: u64) {
        self.catch_up(arm, now_ns);
        self.arms[arm].stream = None;
    }

    fn serve_read(&mut self, w: &Waiting, now_ns: u64) {
        let arm = w.arm as usize;
        self.catch_up(arm, now_ns);
        match self.segments.look_up(w.lbn, w.sectors) {
            Hit::Full(segment) => {
                let at_ns = self.serve_hit(w, segment, now_ns);
                if !self.buffer.preseek {
                    self.occupy(arm, Work::Request, at_ns);
                }
            }
            Hit::Part(segment) => self.serve_part(w, segment, now_ns),
            Hit::Miss => {
                self.arms[arm].stream = None;
                let segment = self.segments.allocate(w.lbn);
                self.read_media(w, segment, w.lbn, now_ns, false);
            }
        }
    }

    /// A read wholly in the buffer; gives its completion.
    fn serve_hit(&mut self, w: &Waiting, segment: u32, now_ns: u64) -> u64 {
        let begin = now_ns.max(self.bus_free_ns);
        let miss_ns = self.costs.read_overhead_ns(false, self.last_was_read);
        let data = begin + self.costs.read_overhead_ns(true, self.last_was_read) + self.costs.preparation_ns;
        self.last_was_read = true;
        self.bus_free_ns = data + self.costs.bus_read_ns(w.sectors);
        let at_ns = self.bus_free_ns + self.costs.read_completion_ns;
        self.finish(w.tag, at_ns, now_ns);
        self.segments.touch(segment);
        let limit = self.read_ahead_limit(w, segment, (0, 0));
        let end = self.segments.end(segment);
        let arm = &mut self.arms[w.arm as usize];
        match &mut arm.stream {
            Some(s) if s.segment == segment && s.lbn < s.limit => s.limit = s.limit.max(limit),
            _ if self.buffer.read_ahead_after_hit && arm.work == Work::Idle && end < limit => {
                let under_head = (Place::default(), 0);
                arm.stream = Some(Stream { segment, lbn: end, at_ns: begin + miss_ns, limit, under_head });
            }
            _ => {}
        }
        at_ns
    }

    /// A read whose beginning is in the buffer, or is what read-ahead would bring next.
    fn serve_part(&mut self, w: &Waiting, segment: u32, now_ns: u64) {
        let arm = w.arm as usize;
        self.segments.touch(segment);
        let end = self.segments.end(segment);
        let running = self.arms[arm].stream.filter(|s| s.segment == segment && s.lbn == end && s.lbn < s.limit);
        let Some(stream) = running else {
            self.arms[arm].stream = None;
            return self.read_media(w, segment, end, now_ns, end > w.lbn);
        };
        // The arm is there already: the read rides on.
        let media = self.read_run(arm, stream.at_ns, end, w.lbn + w.sectors - end);
        let hit_ns = now_ns + self.costs.read_overhead_ns(end > w.lbn, self.last_was_read);
        self.finish_read(w, segment, hit_ns, &media, now_ns);
    }

    /// Reads a run from the media.
    fn read_run(&mut self, arm: usize, at_ns: u64, lbn: u64, sectors: u64) -> Access {
        // What the buffer holds may end beyond this arm's share; see `split`.
        let local = lbn - arm as u64 * self.arm_sectors;
        let local = if local < self.arm_sectors { local } else { local - self.arm_sectors };
        let (n, rest) = self.split(local, sectors);
        let at = &mut self.arms[arm].at;
        let first = self.mech.access(at, at_ns, 0, local, n, false);
        if rest == 0 {
            return first;
        }
        let Access { end_ns, last, track, .. } = self.mech.access(at, first.end_ns, 0, 0, rest, false);
        Access { end_ns, last, track, ..first }
    }

    /// A read that needs the media from LBN `from` on; what lies before is in the buffer (`part`).
    fn read_media(&mut self, w: &Waiting, segment: u32, from: u64, now_ns: u64, part: bool) {
        let arm = w.arm as usize;
        let overhead_ns = self.costs.read_overhead_ns(false, self.last_was_read);
        let a = self.read_run(arm, now_ns + overhead_ns, from, w.lbn + w.sectors - from);
        let bus_ns = if part {
            now_ns + self.costs.read_overhead_ns(true, self.last_was_read)
        } else {
            let mark = (w.sectors * self.costs.read_watermark_per_1024 / 1024).max(1);
            // With gaps between tracks the mark comes later than this, but never after the end.
            (a.begin_ns + mark * a.sector_ns).min(a.end_ns) + self.costs.reselect_ns
        };
        self.finish_read(w, segment, bus_ns, &a, now_ns);
        if self.buffer.keep_passing_sectors && from == w.lbn && self.segments.start(segment) == w.lbn {
            self.segments.prepend(segment, a.passed);
        }
    }

    /// The media part of a read is known: adds the bus, and starts read-ahead.
    fn finish_read(&mut self, w: &Waiting, segment: u32, bus_ns: u64, media: &Access, now_ns: u64) {
        let arm = w.arm as usize;
        self.last_was_read = true;
        let begin = (bus_ns + self.costs.preparation_ns).max(self.bus_free_ns);
        // The bus moves while the media do, but its last sector comes after the media's last.
        let bus_end = (begin + self.costs.bus_read_ns(w.sectors)).max(media.end_ns + self.costs.bus_read_ns(1));
        let at_ns = bus_end + self.costs.read_completion_ns;
        self.finish(w.tag, at_ns, now_ns);
        let end = w.lbn + w.sectors;
        let base = arm as u64 * self.arm_sectors;
        let track = (base + media.track.0, base + media.track.1);
        let limit = self.read_ahead_limit(w, segment, track);
        self.segments.extend(segment, end);
        self.occupy(arm, Work::Request, if self.buffer.preseek { media.end_ns } else { at_ns });
        let under_head = (media.last, track.1);
        self.arms[arm].filling = Some(segment);
        self.arms[arm].stream =
            (end < limit).then_some(Stream { segment, lbn: end, at_ns: media.end_ns, limit, under_head });
    }

    fn track_bounds(&self, base: u64, local: u64) -> (u64, u64) {
        let (first, end) = self.mech.track_bounds(local);
        (base + first, base + end)
    }

    /// Returns the limit of read-ahead after `w`, into `segment`. `track` are the bounds of the track where it ended, if they
    /// are known.
    fn read_ahead_limit(&self, w: &Waiting, segment: u32, track: (u64, u64)) -> u64 {
        let end = w.lbn + w.sectors;
        let base = u64::from(w.arm) * self.arm_sectors;
        let last = base + self.arm_sectors;
        if end >= last {
            return end;
        }
        let local = end - base;
        let limit = match self.buffer.read_ahead {
            ReadAhead::None => return end,
            ReadAhead::Segment => last,
            ReadAhead::Track if track.0 < end && end <= track.1 => track.1,
            ReadAhead::Track => self.track_bounds(base, local - 1).1,
            ReadAhead::Cylinder => base + self.mech.cylinder_end(local - 1),
            ReadAhead::NextTrack => {
                let known = track.0 <= end && end < track.1;
                let (first, next) = if known { track } else { self.track_bounds(base, local) };
                let streams = self.segments.start(segment) < first;
                if streams { next + (next - first) } else { next }
            }
        };
        let mut most = end + u64::from(self.buffer.read_ahead_max_sectors);
        if !self.buffer.read_ahead_over_requested {
            most = most.min((w.lbn + u64::from(self.buffer.segment_sectors)).max(end));
        }
        limit.min(most).min(last)
    }
}
