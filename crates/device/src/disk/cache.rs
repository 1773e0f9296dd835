//! The on-board buffer: segments that reads may hit, and written runs that wait for the media.

/// Segments, each one run of sectors `[start, start + len)`.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    runs: Box<[Run]>,
    /// The runs again in units of 2^coarse_shift sectors, begin and end apart, so that one look at all of them is
    /// a handful of vector instructions: most reads touch none.
    coarse_start: Box<[u32]>,
    coarse_len: Box<[u32]>,
    coarse_shift: u32,
    written: Box<[bool]>,
    /// Segments in a ring from the most to the least recently used: `links[i]` are the neighbours of `i`, and
    /// one more element is the ring's fixed point.
    links: Box<[Links]>,
    written_count: usize,
    size: u64,
    write_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    len: u64,
}

#[derive(Clone, Copy, Debug)]
struct Links {
    newer: u32,
    older: u32,
}

/// Part of a read's range that the buffer holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hit {
    /// Nothing usable.
    Miss,
    /// Its first sector is in the segment, or is the next that the segment would get.
    Part(u32),
    /// All of it.
    Full(u32),
}

impl Segments {
    /// `count` segments of `size` sectors each, `write_max` of them for written data, on a disk of `disk` sectors.
    pub(crate) fn new(count: u32, size: u32, write_max: u32, disk: u64) -> Segments {
        let n = count as usize;
        let neighbours =
            |i: u32| Links { newer: if i == 0 { count } else { i - 1 }, older: if i == count { 0 } else { i + 1 } };
        Segments {
            runs: vec![Run { start: 0, len: 0 }; n].into(),
            coarse_start: vec![0; n].into(),
            coarse_len: vec![0; n].into(),
            coarse_shift: 64 - (disk >> 31).leading_zeros(),
            written: vec![false; n].into(),
            links: (0..=count).map(neighbours).collect(),
            written_count: 0,
            size: u64::from(size),
            write_max: write_max as usize,
        }
    }

    pub(crate) fn look_up(&self, lbn: u64, sectors: u64) -> Hit {
        let coarse = (lbn >> self.coarse_shift) as u32;
        let pairs = self.coarse_start.iter().zip(&self.coarse_len);
        // No early end: that would keep it from being done four at a time.
        if !pairs.fold(false, |near, (&start, &len)| near | (coarse.wrapping_sub(start) <= len)) {
            return Hit::Miss;
        }
        let mut part = Hit::Miss;
        for (i, run) in self.runs.iter().enumerate() {
            if lbn.wrapping_sub(run.start) <= run.len && run.len > 0 {
                if lbn + sectors <= run.start + run.len {
                    return Hit::Full(i as u32);
                }
                part = Hit::Part(i as u32);
            }
        }
        part
    }

    fn set(&mut self, i: usize, run: Run) {
        self.runs[i] = run;
        let start = run.start >> self.coarse_shift;
        self.coarse_start[i] = start as u32;
        self.coarse_len[i] = (((run.start + run.len) >> self.coarse_shift) - start) as u32;
    }

    pub(crate) fn start(&self, segment: u32) -> u64 {
        self.runs[segment as usize].start
    }
    pub(crate) fn end(&self, segment: u32) -> u64 {
        let run = &self.runs[segment as usize];
        run.start + run.len
    }

    /// Marks a segment as just used.
    pub(crate) fn touch(&mut self, segment: u32) {
        let Links { newer, older } = self.links[segment as usize];
        self.links[newer as usize].older = older;
        self.links[older as usize].newer = newer;
        let fixed = self.links.len() - 1;
        let first = std::mem::replace(&mut self.links[fixed].older, segment);
        self.links[first as usize].newer = segment;
        self.links[segment as usize] = Links { newer: fixed as u32, older: first };
    }

    /// Empties the least recently used segment for a read from `lbn` on.
    pub(crate) fn allocate(&mut self, lbn: u64) -> u32 {
        let segment = self.links[self.links.len() - 1].newer;
        self.reset(segment, lbn, false);
        segment
    }

    fn reset(&mut self, segment: u32, lbn: u64, written: bool) {
        let i = segment as usize;
        self.written_count += usize::from(written);
        self.written_count -= usize::from(self.written[i]);
        self.written[i] = written;
        self.set(i, Run { start: lbn, len: 0 });
        self.touch(segment);
    }

    /// The segment now holds sectors up to `end`; the oldest go if it is full.
    pub(crate) fn extend(&mut self, segment: u32, end: u64) {
        let run = self.runs[segment as usize];
        let len = run.len.max(end.saturating_sub(run.start));
        let over = len.saturating_sub(self.size);
        self.set(segment as usize, Run { start: run.start + over, len: len - over });
    }

    /// Sectors before the segment were read, too.
    pub(crate) fn prepend(&mut self, segment: u32, sectors: u64) {
        let run = self.runs[segment as usize];
        let n = sectors.min(self.size - run.len).min(run.start);
        self.set(segment as usize, Run { start: run.start - n, len: run.len + n });
    }

    /// `[lbn, lbn + sectors)` was written: what overlaps is dropped, and if `keep` the new data stay readable.
    pub(crate) fn note_write(&mut self, lbn: u64, sectors: u64, keep: bool) {
        let end = lbn + sectors;
        for i in 0..self.runs.len() {
            let Run { start, len } = self.runs[i];
            if start < end && lbn < start + len {
                self.set(i, Run { start, len: lbn.saturating_sub(start) });
            }
        }
        if keep {
            let segment = self.appended(lbn).unwrap_or_else(|| {
                let segment = self.oldest_for_write();
                self.reset(segment, lbn, true);
                segment
            });
            self.extend(segment, end);
            self.touch(segment);
        }
    }

    fn appended(&self, lbn: u64) -> Option<u32> {
        (0..self.runs.len() as u32).find(|&i| self.written[i as usize] && self.end(i) == lbn && self.start(i) < lbn)
    }

    /// Returns the least recently used segment, among the written ones if their number is at its limit.
    fn oldest_for_write(&self) -> u32 {
        let mut i = self.links[self.links.len() - 1].newer;
        while self.written_count >= self.write_max && !self.written[i as usize] {
            i = self.links[i as usize].newer;
        }
        i
    }
}

/// A written run that waits for the media, or is on its way there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub lbn: u64,
    pub sectors: u64,
    /// Time at which the arm may start for it.
    pub arm_ns: u64,
    /// Times at which its first sector and its last one are in the buffer.
    pub data_ns: (u64, u64),
    /// Rises with acceptance: a flush waits for all below its own.
    pub order: u64,
    pub arm: u32,
    /// The arm is at it.
    active: bool,
    /// Continues the active one, so shares its room.
    follows: bool,
}

/// The written runs. Their number is bounded by `rooms` plus one continuation for each arm.
#[derive(Clone, Debug)]
pub(crate) struct Dirty {
    extents: Vec<Extent>,
    rooms: usize,
    rooms_used: usize,
    extent_max: u64,
    order: u64,
}

impl Dirty {
    pub(crate) fn new(rooms: usize, extent_max: u64) -> Dirty {
        Dirty { extents: Vec::with_capacity(rooms + 2), rooms, rooms_used: 0, extent_max, order: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// True if a write at `lbn` continues a run that is in the buffer, with room for it. `may_merge` as in
    /// [`Dirty::push`].
    pub(crate) fn appends(&self, lbn: u64, sectors: u64, arm: u32, may_merge: bool) -> bool {
        self.tail(lbn, arm).is_some_and(|i| {
            let e = &self.extents[i];
            e.active || (may_merge && e.sectors + sectors <= self.extent_max)
        })
    }

    fn tail(&self, lbn: u64, arm: u32) -> Option<usize> {
        self.extents.iter().position(|e| e.lbn + e.sectors == lbn && e.arm == arm)
    }

    /// True if there is room for a run of its own.
    pub(crate) fn has_room(&self) -> bool {
        self.rooms_used < self.rooms
    }

    /// Largest run.
    pub(crate) fn extent_max(&self) -> u64 {
        self.extent_max
    }

    /// Takes a write in. `may_merge` is false while a flush waits, which must not wait for later data.
    pub(crate) fn push(&mut self, mut e: Extent, may_merge: bool) {
        self.order += 1;
        e.order = self.order;
        match self.tail(e.lbn, e.arm) {
            Some(i)
                if !self.extents[i].active && may_merge && self.extents[i].sectors + e.sectors <= self.extent_max =>
            {
                let last = &mut self.extents[i];
                last.sectors += e.sectors;
                last.data_ns.1 = e.data_ns.1;
                return;
            }
            Some(_) => e.follows = true,
            None => self.rooms_used += 1,
        }
        self.extents.push(e);
    }

    /// Picks the run with the least `cost` for `arm` and marks it active.
    pub(crate) fn start(&mut self, arm: u32, cost: impl Fn(&Extent) -> u64) -> Option<Extent> {
        let e = self.extents.iter_mut().filter(|e| e.arm == arm && !e.active).min_by_key(|e| (cost(e), e.order))?;
        e.active = true;
        Some(*e)
    }

    /// True if `arm` has a run to write.
    pub(crate) fn waits_for(&self, arm: u32) -> bool {
        self.extents.iter().any(|e| e.arm == arm && !e.active)
    }

    /// The active run of `arm` is on the media.
    pub(crate) fn finish(&mut self, arm: u32) {
        let i = self.extents.iter().position(|e| e.active && e.arm == arm).expect("an active run");
        let e = self.extents.swap_remove(i);
        let end = e.lbn + e.sectors;
        match self.extents.iter_mut().find(|n| n.follows && n.lbn == end) {
            // Of a run in the middle the room stays with what it follows.
            Some(next) if !e.follows => next.follows = false,
            None if !e.follows => self.rooms_used -= 1,
            _ => {}
        }
    }

    /// The order that a flush arriving now waits for.
    pub(crate) fn flush_mark(&self) -> u64 {
        self.order
    }

    /// True if everything up to `mark` is on the media.
    pub(crate) fn flushed(&self, mark: u64) -> bool {
        self.extents.iter().all(|e| e.order > mark)
    }
}

impl Extent {
    pub(crate) fn new(lbn: u64, sectors: u64, arm: u32, arm_ns: u64, data_ns: (u64, u64)) -> Extent {
        Extent { lbn, sectors, arm_ns, data_ns, order: 0, arm, active: false, follows: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_segment_goes() {
        let mut s = Segments::new(2, 100, 1, 1 << 40);
        for lbn in [1000, 2000] {
            let i = s.allocate(lbn);
            s.extend(i, lbn + 10);
        }
        let Hit::Full(first) = s.look_up(1002, 4) else { panic!("it was just read") };
        s.touch(first);
        let i = s.allocate(3000);
        s.extend(i, 3010);
        assert_eq!(s.look_up(2000, 1), Hit::Miss);
        assert_eq!(s.look_up(1008, 4), Hit::Part(first));
    }

    #[test]
    fn a_segment_is_a_window() {
        let mut s = Segments::new(1, 100, 1, 1 << 40);
        let i = s.allocate(0);
        s.extend(i, 250);
        assert_eq!((s.start(i), s.end(i)), (150, 250));
        s.prepend(i, 10);
        assert_eq!(s.start(i), 150, "a full segment takes no more");
    }

    #[test]
    fn written_data_replace_what_they_overlap() {
        let mut s = Segments::new(3, 100, 1, 1 << 40);
        let i = s.allocate(0);
        s.extend(i, 50);
        s.note_write(20, 10, true);
        assert_eq!(s.look_up(0, 20), Hit::Full(i));
        assert_eq!(s.look_up(35, 1), Hit::Miss);
        assert!(matches!(s.look_up(20, 10), Hit::Full(_)));
        // The one write segment is used again.
        s.note_write(500, 10, true);
        assert_eq!(s.look_up(22, 2), Hit::Miss);
    }

    /// Three runs one after the other share a room; the one in the middle is written first.
    #[test]
    fn a_room_is_given_back_once_whatever_the_order() {
        for order in [[108, 100, 116], [116, 108, 100], [100, 116, 108], [108, 116, 100]] {
            let mut d = Dirty::new(4, 8);
            [100, 108, 116].into_iter().for_each(|lbn| d.push(Extent::new(lbn, 8, 0, 0, (0, 0)), true));
            assert_eq!(d.rooms_used, 1);
            for lbn in order {
                d.start(0, |e| u64::from(e.lbn != lbn)).expect("it waits");
                d.finish(0);
            }
            assert!(d.is_empty() && d.rooms_used == 0, "{order:?}: {}", d.rooms_used);
        }
    }

    #[test]
    fn rooms_are_given_back() {
        let mut d = Dirty::new(1, 64);
        d.push(Extent::new(0, 8, 0, 0, (0, 0)), true);
        assert!(!d.has_room() && d.appends(8, 8, 0, true) && !d.appends(8, 60, 0, true));
        d.start(0, |_| 0).expect("one run");
        d.push(Extent::new(8, 8, 0, 0, (0, 0)), true);
        let mark = d.flush_mark();
        d.finish(0);
        assert!(!d.has_room() && !d.flushed(mark), "the continuation keeps the room");
        d.start(0, |_| 0).expect("the continuation");
        d.finish(0);
        assert!(d.has_room() && d.flushed(mark) && d.is_empty());
    }
}
