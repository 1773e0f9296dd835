//! The judge of crash tests: the contents that each sector of some volumes may have, whatever happened. It knows nothing of
//! layers, only requests and their results, and it works across several restarts.

use plimsoll_base::{Buf, Completion, Data, Io, IoFlags, IoHead, Op, TenantId, Time, VolumeKey};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a sector.
const SECTOR: u64 = super::disk::SECTOR_BYTES;

/// A request: which volume (from 0), first sector, sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Operation.
    pub op: Op,
    /// Of which volume.
    pub volume: u32,
    /// From which sector on.
    pub first: u64,
    /// Length.
    pub len: u64,
    /// Durable at once.
    pub fua: bool,
}

/// The content that version `version` (0: zeroes) brings to a sector of a volume.
pub type Content = fn(volume: u32, sector: u64, version: u64) -> Vec<u8>;

/// Sectors whose newest data were given up, and the changes of each before that. Reads below this number had begun then.
#[derive(Clone)]
struct GivenUp {
    reads_below: u64,
    volume: u32,
    first: u64,
    possible: Vec<Vec<(u64, u64)>>,
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Oracle {
    sectors: u64,
    content: Content,
    /// Changes by volume and sector, in the order of submission: each has its number and the version that it writes. Number 0
    /// marks contents that an earlier run may have left. The sector permanently has one of these, and a read reveals which.
    possible: Vec<Vec<Vec<(u64, u64)>>>,
    generations: Vec<u32>,
    acknowledged: BTreeSet<u64>,
    durable: BTreeSet<u64>,
    /// Changes that a flush in flight will make durable.
    covers: BTreeMap<u64, Vec<u64>>,
    /// Changes and their volumes.
    volumes: BTreeMap<u64, u32>,
    /// Reads under way.
    reads: BTreeSet<u64>,
    /// Changes that failed: they may show or not.
    failed: BTreeSet<u64>,
    given_up: Vec<GivenUp>,
    next: u64,
}

impl Oracle {
    /// `volumes` volumes of `sectors` sectors each, all zeroes.
    pub fn new(volumes: u32, sectors: u64, content: Content) -> Oracle {
        Oracle {
            sectors,
            content,
            possible: vec![vec![vec![(0, 0)]; sectors as usize]; volumes as usize],
            generations: vec![1; volumes as usize],
            acknowledged: BTreeSet::new(),
            durable: BTreeSet::new(),
            covers: BTreeMap::new(),
            volumes: BTreeMap::new(),
            reads: BTreeSet::new(),
            failed: BTreeSet::new(),
            given_up: Vec::new(),
            next: 1,
        }
    }

    /// The key of a volume: number from 1, generation from 1.
    pub fn key(&self, volume: u32) -> VolumeKey {
        VolumeKey { id: volume + 1, generation: self.generations[volume as usize] }
    }

    /// The request, entered into the books; its tag is the version that a write brings.
    pub fn ask(&mut self, ask: Ask, now: Time) -> Io {
        let Ask { op, volume, first, len, fua } = ask;
        let n = self.next;
        self.next += 1;
        let mut head = IoHead::new(op, self.key(volume), TenantId(1), first * SECTOR, len * SECTOR, now);
        head.tag = n;
        head.flags = if fua { IoFlags::FUA } else { IoFlags::NONE };
        let mut io = Io::new(head, Data::Absent);
        let sectors = first..first + len;
        let possible = &mut self.possible[volume as usize];
        match op {
            Op::Write => {
                let bytes: Vec<u8> = sectors.clone().flat_map(|s| (self.content)(volume, s, n)).collect();
                io.data = Data::Bytes(Buf::copy_of(&bytes));
                sectors.for_each(|s| possible[s as usize].push((n, n)));
            }
            Op::Trim | Op::WriteZeroes => sectors.for_each(|s| possible[s as usize].push((n, 0))),
            Op::Read | Op::BlockStatus => drop(self.reads.insert(n)),
            Op::Flush => {
                let mine = |n: &&u64| self.volumes[n] == volume;
                self.covers.insert(n, self.acknowledged.iter().filter(mine).copied().collect());
            }
            Op::Cache => {}
        }
        if op.is_change() {
            self.volumes.insert(n, volume);
        }
        io
    }

    /// A request ended.
    ///
    /// # Errors
    /// If the outcome or the data isn't allowed; the error names the difference.
    pub fn ended(&mut self, c: &Completion) -> Result<(), String> {
        let n = c.io.tag;
        if !c.outcome.is_done() {
            return Err(format!("{:?} ended {:?}", c.io.head, c.outcome));
        }
        if c.io.op.is_change() {
            self.acknowledged.insert(n);
            if c.io.flags.has(IoFlags::FUA) {
                self.durable.insert(n);
            }
        }
        self.durable.extend(self.covers.remove(&n).unwrap_or_default());
        if !self.reads.remove(&n) {
            return Ok(());
        }
        if c.io.op == Op::BlockStatus {
            return self.status_ended(c);
        }
        let mut bytes = vec![0; c.io.len as usize];
        c.io.data.copy_to(&mut bytes);
        let volume = c.io.volume.id - 1;
        for (s, got) in (c.io.offset / SECTOR..).zip(bytes.chunks_exact(SECTOR as usize)) {
            if !self.may_be_read(n, volume, s, got) {
                let may = &self.possible[volume as usize][s as usize];
                return Err(format!(
                    "read {n} of volume {volume} sector {s}: {:02x?}..., not the newest of {may:?}",
                    &got[..16]
                ));
            }
        }
        Ok(())
    }

    /// A BLOCK_STATUS ended: what it calls zero must read as zeroes. Its answer may cover less than was asked, not nothing.
    fn status_ended(&mut self, c: &Completion) -> Result<(), String> {
        let Data::Status(extents) = &c.io.data else {
            return Err(format!("{:?} ended without a status", c.io.head));
        };
        let (volume, mut at) = (c.io.volume.id - 1, c.io.offset);
        if at + extents.iter().map(|e| e.len).sum::<u64>() > c.io.end() || (extents.is_empty() && c.io.len > 0) {
            return Err(format!("{:?} ended with {extents:?}", c.io.head));
        }
        for e in extents.iter() {
            for s in (at / SECTOR..(at + e.len).div_ceil(SECTOR)).filter(|_| e.zero) {
                if !self.may_be_read(c.io.tag, volume, s, &[0; SECTOR as usize]) {
                    let may = &self.possible[volume as usize][s as usize];
                    return Err(format!("volume {volume} sector {s} is called zero, not the newest of {may:?}"));
                }
            }
            at += e.len;
        }
        Ok(())
    }

    /// The changes of a sector of which read `n` may return any: the last before it, and later ones that failed. If that is an old
    /// content, it may be any of those.
    fn readable<'a>(&self, n: u64, all: &'a [(u64, u64)]) -> &'a [(u64, u64)] {
        let before = &all[..all.partition_point(|p| p.0 < n)];
        let newest = before.iter().rposition(|p| !self.failed.contains(&p.0)).expect("never empty");
        &before[if before[newest].0 == 0 { 0 } else { newest }..]
    }

    /// Checks the content that read `n` returned for a sector. If the sector was given up meanwhile, it may be from before that, and
    /// says nothing about the sector.
    fn may_be_read(&mut self, n: u64, volume: u32, sector: u64, got: &[u8]) -> bool {
        let all = &self.possible[volume as usize][sector as usize];
        let is = |p: &(u64, u64)| got == (self.content)(volume, sector, p.1);
        let meanwhile = self.given_up.iter().filter(|g| n < g.reads_below && g.volume == volume);
        let mut earlier = meanwhile.filter_map(|g| g.possible.get(sector.checked_sub(g.first)? as usize)).peekable();
        if earlier.peek().is_some() {
            return earlier.chain([all]).any(|all| self.readable(n, all).iter().any(is));
        }
        let readable = self.readable(n, all);
        readable.iter().any(|p| p.0 > 0 && is(p)) || (readable[0].0 == 0 && self.was_left(volume, sector, got))
    }

    /// A request failed: a change of it may show or not, from now on or later.
    pub fn failed(&mut self, c: &Completion) {
        self.reads.remove(&c.io.tag);
        self.covers.remove(&c.io.tag);
        if c.io.op.is_change() {
            self.failed.insert(c.io.tag);
        }
    }

    /// Handles a flush that reported the loss of acknowledged data: changes that aren't durable may show or not.
    pub fn device_lost(&mut self) {
        for all in self.possible.iter().flatten() {
            let newest = all.iter().rposition(|(n, _)| self.durable.contains(n)).map_or(0, |at| at + 1);
            self.failed.extend(all[newest..].iter().map(|p| p.0).filter(|n| *n > 0));
        }
    }

    /// The newest data of these sectors were given up: each has any content that it ever had, until it is written again. Changes in flight
    /// come after that. Reads in flight may have begun before.
    pub fn given_up(&mut self, volume: u32, sectors: std::ops::Range<u64>) {
        let possible = self.possible[volume as usize][sectors.start as usize..sectors.end as usize].to_vec();
        self.given_up.push(GivenUp { reads_below: self.next, volume, first: sectors.start, possible });
        let any: Vec<(u64, u64)> = (0..self.next).map(|version| (0, version)).collect();
        for s in sectors {
            let all = &mut self.possible[volume as usize][s as usize];
            all.retain(|(n, _)| *n > 0 && !self.acknowledged.contains(n));
            all.splice(..0, any.iter().copied());
        }
    }

    /// Returns whether `got` can be the content that an earlier life left in a sector. If it can, this life's sector has no other
    /// old content.
    fn was_left(&mut self, volume: u32, sector: u64, got: &[u8]) -> bool {
        let all = &mut self.possible[volume as usize][sector as usize];
        let is = |(n, version): &(u64, u64)| *n == 0 && got == (self.content)(volume, sector, *version);
        let found = all.iter().any(is);
        if found {
            all.retain(|p| p.0 > 0 || is(p));
        }
        found
    }

    /// A volume was deleted, and another made in its place: nothing of the old one may show.
    pub fn deleted(&mut self, volume: u32) {
        self.generations[volume as usize] += 1;
        self.possible[volume as usize] = vec![vec![(0, 0)]; self.sectors as usize];
        for (n, _) in self.volumes.iter().filter(|(_, v)| **v == volume) {
            self.acknowledged.remove(n);
        }
    }

    /// The power was lost: of each sector any version is there that wasn't older than a durable one.
    pub fn power_lost(&mut self) {
        for all in self.possible.iter_mut().flatten() {
            let from = all.iter().rposition(|(n, _)| self.durable.contains(n)).unwrap_or(0);
            all.drain(..from);
            all.iter_mut().for_each(|p| p.0 = 0);
        }
        self.forget_asked();
    }

    /// True if a sector may hold `got` after [`Oracle::power_lost`]. The call decides nothing.
    pub fn allows(&self, volume: u32, sector: u64, got: &[u8]) -> bool {
        let all = &self.possible[volume as usize][sector as usize];
        all.iter().any(|p| got == (self.content)(volume, sector, p.1))
    }

    /// Versions that were ever asked for have lower numbers.
    pub fn versions(&self) -> u64 {
        self.next
    }

    fn forget_asked(&mut self) {
        self.acknowledged.clear();
        self.covers.clear();
        self.reads.clear();
        self.given_up.clear();
    }

    /// Checks after a power loss that every sector of every volume has a content that it may have. From then on the content found
    /// is the only one allowed.
    ///
    /// # Errors
    /// The first sector with another content.
    pub fn check(&mut self, found: &[Vec<u8>]) -> Result<(), String> {
        let before = self.possible.clone();
        self.power_lost();
        for (volume, bytes) in (0u32..).zip(found) {
            for (s, got) in (0..self.sectors).zip(bytes.chunks_exact(SECTOR as usize)) {
                if !self.was_left(volume, s, got) {
                    let (may, were) =
                        (&self.possible[volume as usize][s as usize], &before[volume as usize][s as usize]);
                    let may: Vec<u64> = may.iter().map(|p| p.1).collect();
                    let was = were.iter().map(|p| p.1).find(|v| got == (self.content)(volume, s, *v));
                    return Err(format!(
                        "volume {volume} sector {s} is {:02x?}... (version {was:?}), may be {may:?}",
                        &got[..16]
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks, after a kill of the process without a power loss, that every sector has a content that it may have. The content
    /// found stays from now on. Until it is flushed, a power loss may still bring an earlier content back.
    ///
    /// # Errors
    /// The first sector with another content.
    pub fn check_killed(&mut self, found: &[Vec<u8>]) -> Result<(), String> {
        self.forget_asked();
        for (volume, bytes) in (0u32..).zip(found) {
            for (s, got) in (0..self.sectors).zip(bytes.chunks_exact(SECTOR as usize)) {
                let all = &mut self.possible[volume as usize][s as usize];
                let from = all.iter().rposition(|(n, _)| self.durable.contains(n)).unwrap_or(0);
                let is = |(_, version): &(u64, u64)| got == (self.content)(volume, s, *version);
                let Some(last) = all.iter().rposition(is).filter(|last| *last >= from) else {
                    let may: Vec<u64> = all[from..].iter().map(|p| p.1).collect();
                    return Err(format!("volume {volume} sector {s} is {:02x?}..., may be {may:?}", &got[..16]));
                };
                all.truncate(last + 1);
                if all[last].0 == 0 {
                    all.retain(is);
                }
                // Whoever reads it may have it flushed, acknowledged or not.
                self.acknowledged.extend(all.iter().map(|p| p.0).filter(|n| *n > 0));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Outcome;

    fn content(_: u32, _: u64, version: u64) -> Vec<u8> {
        vec![version as u8; SECTOR as usize]
    }

    fn write(o: &mut Oracle, op: Op) -> Io {
        let len = u64::from(op != Op::Flush);
        o.ask(Ask { op, volume: 0, first: 0, len, fua: false }, Time::ZERO)
    }

    fn end(o: &mut Oracle, mut io: Io, version: u64) -> Result<(), String> {
        if io.op == Op::Read {
            io.data = Data::Bytes(Buf::copy_of(&content(0, 0, version)));
        }
        o.ended(&Completion { io, outcome: Outcome::Done, dispatched_at: Time::ZERO })
    }

    fn is(version: u64) -> Vec<Vec<u8>> {
        vec![content(0, 0, version)]
    }

    /// Version 1 flushed, 3 acknowledged, 4 not.
    fn three() -> Oracle {
        let mut o = Oracle::new(1, 1, content);
        for op in [Op::Write, Op::Flush, Op::Write] {
            let io = write(&mut o, op);
            end(&mut o, io, 0).unwrap();
        }
        write(&mut o, Op::Write);
        o
    }

    #[test]
    fn what_was_flushed_stays_and_what_was_not_may() {
        assert!(three().check(&is(0)).unwrap_err().contains("may be [1, 3, 4]"));
        for kept in [1, 3, 4] {
            let mut o = three();
            o.check(&is(kept)).unwrap();
            let (read, again) = (write(&mut o, Op::Read), write(&mut o, Op::Read));
            assert!(end(&mut o, read, 2).is_err() && end(&mut o, again, kept).is_ok());
            assert!((0..5).filter(|v| o.clone().check(&is(*v)).is_ok()).eq([kept]), "for good");
        }
    }

    #[test]
    fn what_nobody_read_is_one_of_several_until_somebody_does() {
        let mut o = three();
        o.power_lost();
        o.power_lost();
        let (one, other) = (write(&mut o, Op::Read), write(&mut o, Op::Read));
        let new = write(&mut o, Op::Write).head.tag;
        assert!(
            end(&mut o, one, 3).is_ok() && end(&mut o, other, 4).is_err(),
            "it is one of them, not now this, now that"
        );
        assert!((0..=new).filter(|v| o.clone().check(&is(*v)).is_ok()).eq([3, new]));
    }

    /// Versions that a read may return during which versions 1 and 2 were given up. Another read finds 1 afterwards, or a version 3
    /// that was in flight then ends well.
    fn read_over_a_give_up(has_change: bool) -> Vec<u64> {
        let may = |version: &u64| {
            let mut o = Oracle::new(1, 1, content);
            for op in [Op::Write, Op::Write] {
                let io = write(&mut o, op);
                end(&mut o, io, 0).unwrap();
            }
            let change = has_change.then(|| write(&mut o, Op::Write));
            let read = write(&mut o, Op::Read);
            o.given_up(0, 0..1);
            match change {
                Some(io) => end(&mut o, io, 0).unwrap(),
                None => {
                    let later = write(&mut o, Op::Read);
                    end(&mut o, later, 1).unwrap();
                }
            }
            end(&mut o, read, *version).is_ok()
        };
        (0..9).filter(may).collect()
    }

    #[test]
    fn a_read_during_a_give_up_returns_data_from_before_or_after() {
        assert_eq!(read_over_a_give_up(false), [1, 2]);
        assert_eq!(read_over_a_give_up(true), [3], "it was asked after that change");
    }

    #[test]
    fn a_killed_process_leaves_what_a_power_loss_may_take() {
        let mut o = three();
        assert!(o.clone().check_killed(&is(0)).is_err());
        o.check_killed(&is(3)).unwrap();
        assert!((0..5).filter(|v| o.clone().check(&is(*v)).is_ok()).eq([1, 3]));
        assert!((0..5).filter(|v| o.clone().check_killed(&is(*v)).is_ok()).eq([1, 3]));
        let flush = write(&mut o, Op::Flush);
        end(&mut o, flush, 0).unwrap();
        assert!((0..5).filter(|v| o.clone().check(&is(*v)).is_ok()).eq([3]), "whatever was there is flushed");
    }
}
