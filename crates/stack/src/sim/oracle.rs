//! What may be found on each sector of some volumes, whatever happened: the judge of crash tests. It knows nothing of layers, only
//! what was asked and what was answered.

use plimsoll_base::{Buf, Completion, Data, Io, IoFlags, IoHead, Op, TenantId, Time, VolumeKey};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of a sector.
const SECTOR: u64 = super::disk::SECTOR_BYTES;

/// A request: which volume (from 0), first sector, sectors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// What.
    pub op: Op,
    /// Of which volume.
    pub volume: u32,
    /// From which sector on.
    pub first: u64,
    /// How many.
    pub len: u64,
    /// Durable at once.
    pub fua: bool,
}

/// The content that version `version` (0: zeroes) brings to a sector of a volume.
pub type Content = fn(volume: u32, sector: u64, version: u64) -> Vec<u8>;

/// See the module's documentation.
#[derive(Clone)]
pub struct Oracle {
    sectors: u64,
    content: Content,
    /// Per volume and sector: number of the change and the version it brings, in the order in which they were asked for.
    possible: Vec<Vec<Vec<(u64, u64)>>>,
    generations: Vec<u32>,
    acknowledged: BTreeSet<u64>,
    durable: BTreeSet<u64>,
    /// What a flush under way will make durable.
    covers: BTreeMap<u64, Vec<u64>>,
    /// Changes and their volumes.
    volumes: BTreeMap<u64, u32>,
    /// Reads under way: what each sector is.
    reads: BTreeMap<u64, Vec<u64>>,
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
            durable: BTreeSet::from([0]),
            covers: BTreeMap::new(),
            volumes: BTreeMap::new(),
            reads: BTreeMap::new(),
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
            Op::Read => {
                let newest = |s: u64| possible[s as usize].last().expect("never empty").1;
                self.reads.insert(n, sectors.map(newest).collect());
            }
            Op::Flush => {
                let mine = |n: &&u64| self.volumes[n] == volume;
                self.covers.insert(n, self.acknowledged.iter().filter(mine).copied().collect());
            }
            Op::Cache | Op::BlockStatus => {}
        }
        if op.is_change() {
            self.volumes.insert(n, volume);
        }
        io
    }

    /// A request ended.
    ///
    /// # Errors
    /// What is wrong with it.
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
        let Some(expected) = self.reads.remove(&n) else { return Ok(()) };
        let mut bytes = vec![0; c.io.len as usize];
        c.io.data.copy_to(&mut bytes);
        let volume = c.io.volume.id - 1;
        for (i, version) in expected.into_iter().enumerate() {
            let s = c.io.offset / SECTOR + i as u64;
            let got = &bytes[i * SECTOR as usize..][..SECTOR as usize];
            if got != (self.content)(volume, s, version) {
                return Err(format!(
                    "read of volume {volume} sector {s}: {:02x?}..., not version {version}",
                    &got[..16]
                ));
            }
        }
        Ok(())
    }

    /// A volume was deleted, and another made in its place: nothing of the old one may show.
    pub fn deleted(&mut self, volume: u32) {
        self.generations[volume as usize] += 1;
        self.possible[volume as usize] = vec![vec![(0, 0)]; self.sectors as usize];
        for (n, _) in self.volumes.iter().filter(|(_, v)| **v == volume) {
            self.acknowledged.remove(n);
        }
    }

    /// After a power loss: is every sector of every volume what it may be? What is found is then the only thing it may be.
    ///
    /// # Errors
    /// The first sector that isn't.
    pub fn check(&mut self, found: &[Vec<u8>]) -> Result<(), String> {
        for (volume, sectors) in self.possible.iter_mut().enumerate() {
            for (s, all) in sectors.iter_mut().enumerate() {
                let from = all.iter().rposition(|(n, _)| self.durable.contains(n)).expect("the first is durable");
                let got = &found[volume][s * SECTOR as usize..][..SECTOR as usize];
                let is = |v: u64| got == (self.content)(volume as u32, s as u64, v);
                let Some(&(_, version)) = all[from..].iter().find(|(_, v)| is(*v)) else {
                    let may: Vec<u64> = all[from..].iter().map(|a| a.1).collect();
                    let was = all.iter().find(|(_, v)| is(*v)).map(|a| a.1);
                    return Err(format!(
                        "volume {volume} sector {s} is {:02x?}... (version {was:?}), may be {may:?}",
                        &got[..16]
                    ));
                };
                *all = vec![(0, version)];
            }
        }
        self.acknowledged.clear();
        self.covers.clear();
        self.reads.clear();
        Ok(())
    }
}
