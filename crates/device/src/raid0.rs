//! RAID-0: chunk after chunk round the members; a request completes when all its parts have.

use plimsoll_base::Time;

use crate::model::{Done, Model, Op, Request, assert_in_range};

/// A request whose parts are at the members.
#[derive(Clone, Copy, Debug)]
struct Parent {
    tag: u64,
    left: u32,
    started_at: Time,
    at: Time,
}

/// A part that its member has no room for yet.
#[derive(Clone, Copy, Debug)]
struct Part {
    member: u32,
    parent: u32,
    op: Op,
    offset: u64,
    len: u64,
}

/// Equal devices striped by chunks.
///
/// A request touches each member with at most one part, as consecutive chunks of one member are consecutive on
/// it. Parts that find a member's queue full wait here, in order.
#[derive(Clone, Debug)]
pub struct Raid0<M> {
    members: Vec<M>,
    chunk_bytes: u64,
    /// Indexed by the parts' tags; `left` is 0 in free ones.
    parents: Vec<Parent>,
    free: Vec<u32>,
    waiting: Vec<Part>,
    scratch: Vec<Done>,
    ready: Vec<Done>,
    now: Time,
}

/// Reason why devices can't be striped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadStripe(String);

impl std::fmt::Display for BadStripe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadStripe {}

impl<M: Model> Raid0<M> {
    /// Stripes `members` in chunks of `chunk_bytes`. Their sizes may differ; each counts with the smallest one's
    /// whole chunks.
    pub fn new(members: Vec<M>, chunk_bytes: u64) -> Result<Raid0<M>, BadStripe> {
        let Some(first) = members.first() else {
            return Err(BadStripe("a stripe needs at least one member".into()));
        };
        if members.iter().any(|m| m.block_bytes() != first.block_bytes()) {
            return Err(BadStripe("the members differ in block size".into()));
        }
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(u64::from(first.block_bytes())) {
            let block = first.block_bytes();
            return Err(BadStripe(format!("a chunk of {chunk_bytes} bytes is not whole blocks of {block}")));
        }
        if members.iter().any(|m| m.size_bytes() < chunk_bytes) {
            return Err(BadStripe(format!("a member is smaller than one chunk of {chunk_bytes} bytes")));
        }
        let slots: usize = members.iter().map(M::queue_max).sum();
        let none = Parent { tag: 0, left: 0, started_at: Time::NEVER, at: Time::ZERO };
        Ok(Raid0 {
            chunk_bytes,
            parents: vec![none; slots],
            free: (0..slots as u32).rev().collect(),
            waiting: Vec::with_capacity(slots * members.len()),
            scratch: Vec::with_capacity(slots),
            ready: Vec::with_capacity(slots),
            members,
            now: Time::ZERO,
        })
    }

    /// The members, in order.
    pub fn members(&self) -> &[M] {
        &self.members
    }

    /// The part of `[offset, offset + len)` that lies on `member`: its offset there and its length.
    fn part(&self, member: u64, offset: u64, len: u64) -> Option<(u64, u64)> {
        let (chunk, n) = (self.chunk_bytes, self.members.len() as u64);
        let (first, last) = (offset / chunk, (offset + len - 1) / chunk);
        let first_own = first + (member + n - first % n) % n;
        if first_own > last {
            return None;
        }
        let last_own = last - (last % n + n - member) % n;
        let begin = first_own / n * chunk + if first_own == first { offset % chunk } else { 0 };
        let end_in_chunk = if last_own == last { (offset + len - 1) % chunk + 1 } else { chunk };
        Some((begin, last_own / n * chunk + end_in_chunk - begin))
    }

    fn hand_in(&mut self, now: Time, p: Part) {
        let member = &mut self.members[p.member as usize];
        if member.outstanding() < member.queue_max() {
            member.submit(now, Request { tag: u64::from(p.parent), op: p.op, offset: p.offset, len: p.len });
        } else {
            self.waiting.push(p);
        }
    }

    /// One member has finished a part of a request.
    fn part_done(&mut self, part: Done) {
        let slot = part.tag as usize;
        let p = &mut self.parents[slot];
        p.left -= 1;
        p.at = p.at.max(part.at);
        p.started_at = p.started_at.min(part.started_at);
        if p.left == 0 {
            self.ready.push(Done { tag: p.tag, at: p.at, started_at: p.started_at });
            self.free.push(slot as u32);
        }
    }

    /// Runs the members to `now`, event by event, so that waiting parts go in when room comes free.
    fn run(&mut self, now: Time) {
        loop {
            let next = self.members.iter().map(M::next_event).min().unwrap_or(Time::NEVER);
            if next > now || !next.is_set() {
                break;
            }
            let mut scratch = std::mem::take(&mut self.scratch);
            for m in &mut self.members {
                m.advance(next, &mut scratch);
            }
            scratch.sort_unstable_by_key(|d| (d.at, d.tag));
            for d in scratch.drain(..) {
                self.part_done(d);
            }
            self.scratch = scratch;
            self.hand_in_waiting(next);
        }
        self.now = self.now.max(now);
    }

    fn hand_in_waiting(&mut self, now: Time) {
        let mut i = 0;
        while i < self.waiting.len() {
            let p = self.waiting[i];
            let member = &self.members[p.member as usize];
            if member.outstanding() < member.queue_max() {
                self.waiting.remove(i);
                self.hand_in(now, p);
            } else {
                i += 1;
            }
        }
    }
}

impl<M: Model> Model for Raid0<M> {
    fn size_bytes(&self) -> u64 {
        let smallest = self.members.iter().map(M::size_bytes).min().unwrap_or(0);
        smallest / self.chunk_bytes * self.chunk_bytes * self.members.len() as u64
    }

    fn block_bytes(&self) -> u32 {
        self.members[0].block_bytes()
    }

    fn submit(&mut self, now: Time, req: Request) {
        assert_in_range(&req, self.size_bytes(), self.block_bytes());
        assert!(now >= self.now, "time went backwards");
        self.run(now);
        let parent = self.free.pop().expect("more than queue_max requests are outstanding");
        self.parents[parent as usize] = Parent { tag: req.tag, left: 0, started_at: Time::NEVER, at: now };
        for member in 0..self.members.len() as u64 {
            let part = match req.op {
                Op::Flush => Some((0, 0)),
                _ => self.part(member, req.offset, req.len),
            };
            if let Some((offset, len)) = part {
                self.parents[parent as usize].left += 1;
                self.hand_in(now, Part { member: member as u32, parent, op: req.op, offset, len });
            }
        }
    }

    fn next_event(&self) -> Time {
        let next = self.members.iter().map(M::next_event).min().unwrap_or(Time::NEVER);
        self.ready.first().map_or(next, |d| next.min(d.at))
    }

    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        self.run(now);
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.parents.len() - self.free.len() + self.ready.len()
    }

    /// Returns the sum of the members' limits, so that small requests can keep each of them full.
    fn queue_max(&self) -> usize {
        self.parents.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::{Disk, DiskOptions};
    use proptest::prelude::*;

    /// Takes `len` nanoseconds, one request at a time, `depth` accepted.
    #[derive(Clone, Debug)]
    struct Fixed {
        depth: usize,
        free_at: Time,
        queue: Vec<Done>,
        seen: Vec<Request>,
    }

    impl Fixed {
        fn new(depth: usize) -> Fixed {
            Fixed { depth, free_at: Time::ZERO, queue: Vec::new(), seen: Vec::new() }
        }
    }

    impl Model for Fixed {
        fn size_bytes(&self) -> u64 {
            10_000
        }
        fn block_bytes(&self) -> u32 {
            1
        }
        fn submit(&mut self, now: Time, req: Request) {
            let started_at = now.max(self.free_at);
            self.free_at = started_at + plimsoll_base::Span::from_nanos(req.len.max(1));
            self.queue.push(Done { tag: req.tag, at: self.free_at, started_at });
            self.seen.push(req);
        }
        fn next_event(&self) -> Time {
            self.queue.first().map_or(Time::NEVER, |d| d.at)
        }
        fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
            while self.queue.first().is_some_and(|d| d.at <= now) {
                done.push(self.queue.remove(0));
            }
        }
        fn outstanding(&self) -> usize {
            self.queue.len()
        }
        fn queue_max(&self) -> usize {
            self.depth
        }
    }

    fn finish(raid: &mut Raid0<Fixed>) -> Vec<Done> {
        let mut done = Vec::new();
        while raid.outstanding() > 0 {
            raid.advance(raid.next_event(), &mut done);
        }
        done
    }

    proptest! {
        #[test]
        fn every_byte_lands_where_counting_puts_it(n in 1usize..5, chunk in 1u64..40, offset in 0u64..2000, len in 1u64..400) {
            let mut raid = Raid0::new(vec![Fixed::new(4); n], chunk).unwrap();
            raid.submit(Time::ZERO, Request { tag: 9, op: Op::Read, offset, len });
            let mut expected = vec![Vec::new(); n];
            for byte in offset..offset + len {
                let c = byte / chunk;
                expected[(c % n as u64) as usize].push(c / n as u64 * chunk + byte % chunk);
            }
            for (m, bytes) in raid.members().iter().zip(&expected) {
                let got: Vec<u64> = m.seen.iter().flat_map(|r| r.offset..r.offset + r.len).collect();
                prop_assert_eq!(&got, bytes);
                prop_assert!(m.seen.len() <= 1);
            }
            let slowest = expected.iter().map(Vec::len).max().unwrap() as u64;
            let done = finish(&mut raid);
            prop_assert_eq!(done.len(), 1);
            prop_assert_eq!((done[0].tag, done[0].at), (9, Time::from_nanos(slowest)));
        }
    }

    #[test]
    fn full_members_make_parts_wait_and_nothing_is_lost() {
        let mut raid = Raid0::new(vec![Fixed::new(1), Fixed::new(3)], 10).unwrap();
        for tag in 0..4 {
            raid.submit(Time::ZERO, Request { tag, op: Op::Read, offset: 0, len: 20 });
        }
        assert_eq!(raid.outstanding(), 4);
        let done = finish(&mut raid);
        let got: Vec<_> = done.iter().map(|d| (d.tag, d.at.as_nanos())).collect();
        assert_eq!(got, [(0, 10), (1, 20), (2, 30), (3, 40)]);
    }

    #[test]
    fn a_flush_goes_to_every_member() {
        let mut raid = Raid0::new(vec![Fixed::new(2); 3], 10).unwrap();
        raid.submit(Time::ZERO, Request { tag: 1, op: Op::Flush, offset: 0, len: 0 });
        assert!(raid.members().iter().all(|m| m.seen.len() == 1));
        assert_eq!(finish(&mut raid).len(), 1);
    }

    #[test]
    fn two_disks_read_a_long_run_about_twice_as_fast() {
        let spec = crate::profile::by_name("cheetah-15k5").expect("embedded");
        let disk = |seed| Disk::new(&spec, DiskOptions { seed, mismatch: None }).expect("valid");
        let time = |model: &mut dyn Model| {
            let mut done = Vec::new();
            model.submit(Time::ZERO, Request { tag: 0, op: Op::Read, offset: 0, len: 64 << 20 });
            while done.is_empty() {
                model.advance(model.next_event(), &mut done);
            }
            done[0].at.as_secs_f64()
        };
        let one = time(&mut disk(1));
        let two = time(&mut Raid0::new(vec![disk(1), disk(2)], 64 << 10).expect("stripes"));
        assert!((1.8..2.1).contains(&(one / two)), "{one} s against {two} s");
    }
}
