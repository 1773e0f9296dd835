//! The on-board buffer: segments that reads may hit, and written runs that wait for the media.

/// Segments, each one run of sectors `[start, end)`.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    start: Box<[u64]>,
    end: Box<[u64]>,
    used: Box<[u64]>,
    written: Box<[bool]>,
    clock: u64,
    size: u64,
    write_max: usize,
}

/// What the buffer holds of a read's range.
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
    pub(crate) fn new(count: u32, size: u32, write_max: u32) -> Segments {
        let n = count as usize;
        Segments {
            start: vec![0; n].into(),
            end: vec![0; n].into(),
            used: vec![0; n].into(),
            written: vec![false; n].into(),
            clock: 0,
            size: u64::from(size),
            write_max: write_max as usize,
        }
    }

    pub(crate) fn look_up(&self, lbn: u64, sectors: u64) -> Hit {
        let mut part = Hit::Miss;
        for (i, (&start, &end)) in self.start.iter().zip(&self.end).enumerate() {
            if start <= lbn && lbn <= end && start < end {
                if lbn + sectors <= end {
                    return Hit::Full(i as u32);
                }
                part = Hit::Part(i as u32);
            }
        }
        part
    }

    pub(crate) fn start(&self, segment: u32) -> u64 {
        self.start[segment as usize]
    }
    pub(crate) fn end(&self, segment: u32) -> u64 {
        self.end[segment as usize]
    }

    /// Marks a segment as just used.
    pub(crate) fn touch(&mut self, segment: u32) {
        self.clock += 1;
        self.used[segment as usize] = self.clock;
    }

    /// Empties the least recently used segment for a read from `lbn` on.
    pub(crate) fn allocate(&mut self, lbn: u64) -> u32 {
        let i = self.oldest(|_| true);
        (self.start[i], self.end[i], self.written[i]) = (lbn, lbn, false);
        self.touch(i as u32);
        i as u32
    }

    fn oldest(&self, wanted: impl Fn(usize) -> bool) -> usize {
        let mut best = (u64::MAX, 0);
        for (i, &used) in self.used.iter().enumerate() {
            if used < best.0 && wanted(i) {
                best = (used, i);
            }
        }
        best.1
    }

    /// The segment now holds sectors up to `end`; the oldest go if it is full.
    pub(crate) fn extend(&mut self, segment: u32, end: u64) {
        let i = segment as usize;
        self.end[i] = self.end[i].max(end);
        self.start[i] = self.start[i].max(self.end[i].saturating_sub(self.size));
    }

    /// Sectors before the segment were read, too.
    pub(crate) fn prepend(&mut self, segment: u32, sectors: u64) {
        let i = segment as usize;
        let room = self.size.saturating_sub(self.end[i] - self.start[i]);
        self.start[i] -= sectors.min(room).min(self.start[i]);
    }

    /// `[lbn, lbn + sectors)` was written: what overlaps is dropped, and if `keep` the new data stay readable.
    pub(crate) fn note_write(&mut self, lbn: u64, sectors: u64, keep: bool) {
        let end = lbn + sectors;
        for i in 0..self.start.len() {
            if self.start[i] < end && lbn < self.end[i] {
                if self.start[i] < lbn {
                    self.end[i] = lbn;
                } else {
                    (self.start[i], self.end[i]) = (0, 0);
                }
            }
        }
        if !keep {
            return;
        }
        let appended = (0..self.start.len()).find(|&i| self.written[i] && self.end[i] == lbn && self.start[i] < lbn);
        let i = appended.unwrap_or_else(|| {
            let full = self.written.iter().filter(|&&w| w).count() >= self.write_max;
            let i = self.oldest(|i| !full || self.written[i]);
            (self.start[i], self.end[i], self.written[i]) = (lbn, lbn, true);
            i
        });
        self.extend(i as u32, end);
        self.touch(i as u32);
    }
}

/// A written run that waits for the media, or is on its way there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub lbn: u64,
    pub sectors: u64,
    /// When the arm may start for it.
    pub arm_ns: u64,
    /// When its first sector is in the buffer, and its last.
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
    pub(crate) fn appends(&self, lbn: u64, sectors: u64, may_merge: bool) -> bool {
        self.tail(lbn).is_some_and(|i| {
            let e = &self.extents[i];
            e.active || (may_merge && e.sectors + sectors <= self.extent_max)
        })
    }

    fn tail(&self, lbn: u64) -> Option<usize> {
        self.extents.iter().position(|e| e.lbn + e.sectors == lbn)
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
        match self.tail(e.lbn) {
            Some(i) if !self.extents[i].active && may_merge => {
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
            Some(next) => next.follows = false,
            None if !e.follows => self.rooms_used -= 1,
            None => {}
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
        let mut s = Segments::new(2, 100, 1);
        for lbn in [1000, 2000] {
            let i = s.allocate(lbn);
            s.extend(i, lbn + 10);
        }
        assert_eq!(s.look_up(1002, 4), Hit::Full(0));
        s.touch(0);
        let i = s.allocate(3000);
        s.extend(i, 3010);
        assert_eq!(s.look_up(2000, 1), Hit::Miss);
        assert_eq!(s.look_up(1008, 4), Hit::Part(0));
    }

    #[test]
    fn a_segment_is_a_window() {
        let mut s = Segments::new(1, 100, 1);
        let i = s.allocate(0);
        s.extend(i, 250);
        assert_eq!((s.start(i), s.end(i)), (150, 250));
        s.prepend(i, 10);
        assert_eq!(s.start(i), 150, "a full segment takes no more");
    }

    #[test]
    fn written_data_replace_what_they_overlap() {
        let mut s = Segments::new(3, 100, 1);
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

    #[test]
    fn rooms_are_given_back() {
        let mut d = Dirty::new(1, 64);
        d.push(Extent::new(0, 8, 0, 0, (0, 0)), true);
        assert!(!d.has_room() && d.appends(8, 8, true) && !d.appends(8, 60, true));
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
