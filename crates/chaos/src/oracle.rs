//! The judge: which content each unit of each volume may have, whatever happened. It knows nothing of layers, only which requests were
//! sent, which were answered, and when in relation to each other.
//!
//! Requests that were in flight together may have happened in either order. A change that was answered before another was sent
//! happened before it. After a crash each unit has any version that is not older than a durable one.

use plimsoll_base::Op;
use std::collections::BTreeMap;

/// Bytes of what is judged: smaller than a sector, so that requests of any alignment to it can be judged.
pub const UNIT: u64 = 64;
/// An instant that hasn't come.
const NEVER: u64 = u64::MAX;
/// A unit with more versions than this is tidied up.
const TIDY_ABOVE: usize = 12;

/// A flag of NBD's that a request has beside FUA.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Flag {
    /// None of them.
    #[default]
    None,
    /// NO_HOLE: zeroes that stay allocated.
    NoHole,
    /// FAST_ZERO: zeroes that are refused if they take as long as a write.
    FastZero,
    /// Both of them.
    FastNoHole,
    /// DF: a read's answer is one chunk.
    OneChunk,
    /// REQ_ONE: a block status is one extent.
    OneExtent,
    /// A flag that the command doesn't have, or nobody: the request is refused, and has no effect.
    Foreign,
}

/// A request on a volume. Offsets and lengths are multiples of [`UNIT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The operation.
    pub op: Op,
    /// The volume's number in the plan.
    pub volume: usize,
    /// The first byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Durable when it is answered.
    pub fua: bool,
    /// Another flag.
    pub flag: Flag,
}

/// A version that a unit may have.
#[derive(Clone, Copy, Debug)]
struct Version {
    /// The change that brought it; its content follows from that. 0 for zeroes.
    content: u64,
    /// The change.
    change: u64,
    /// Time at which the change was sent; 0 for contents of an earlier run.
    begun: u64,
    /// Time of the answer.
    ended: u64,
    durable: bool,
    /// The unit has this version once the change has been answered. False for the edges of a trim and for a change that failed.
    sure: bool,
}

impl Version {
    /// Of an earlier life: one of several, which one shows when it is read.
    fn left(content: u64) -> Version {
        Version { content, change: 0, begun: 0, ended: 0, durable: true, sure: true }
    }
}

/// A unit's versions, in the order in which their changes were sent.
type Unit = Vec<Version>;

#[derive(Clone, Debug)]
struct Volume {
    generation: u64,
    units: Vec<Unit>,
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    asked: Asked,
    begun: u64,
}

/// See the module's documentation.
#[derive(Clone)]
pub struct Oracle {
    salt: u64,
    volumes: Vec<Volume>,
    in_flight: BTreeMap<u64, InFlight>,
    next: u64,
    /// Orders what is sent and what is answered.
    tick: u64,
    compared: u64,
}

impl Oracle {
    /// Volumes of these sizes, all zeroes. Contents differ by `salt`.
    pub fn new(salt: u64, sizes: &[u64]) -> Oracle {
        let volumes = sizes.iter().map(|bytes| Volume { generation: 1, units: zeroes(*bytes) }).collect();
        Oracle { salt, volumes, in_flight: BTreeMap::new(), next: 3, tick: 1, compared: 0 }
    }

    /// Units that were compared so far.
    pub fn compared(&self) -> u64 {
        self.compared
    }

    /// Requests in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Requests in flight on a volume.
    pub fn in_flight_of(&self, volume: usize) -> usize {
        self.in_flight.values().filter(|i| i.asked.volume == volume).count()
    }

    /// The requests in flight.
    pub fn asked(&self) -> Vec<Asked> {
        self.in_flight.values().map(|i| i.asked).collect()
    }

    /// Bytes of a volume.
    pub fn size_bytes(&self, volume: usize) -> u64 {
        self.volumes[volume].units.len() as u64 * UNIT
    }

    /// Enters a request into the books when it is sent. Returns its number and a write's payload. `block_bytes` is what trims are
    /// cut to.
    pub fn ask(&mut self, asked: Asked, block_bytes: u64) -> (u64, Vec<u8>) {
        assert!(
            asked.offset.is_multiple_of(UNIT) && asked.len.is_multiple_of(UNIT),
            "no multiple of a unit: {asked:?}"
        );
        let n = self.next;
        (self.next, self.tick) = (n + 1, self.tick + 1);
        let begun = self.tick;
        let whole =
            (asked.offset.next_multiple_of(block_bytes), (asked.offset + asked.len) / block_bytes * block_bytes);
        let mut payload = Vec::new();
        if asked.op.is_change() {
            let (salt, generation) = (self.salt, self.volumes[asked.volume].generation);
            for unit in units(&asked) {
                let at = unit as u64 * UNIT;
                let sure = asked.op != Op::Trim || (whole.0 <= at && at < whole.1);
                let version = Version { content: 0, change: n, begun, ended: NEVER, durable: false, sure };
                let content = if asked.op == Op::Write { n } else { 0 };
                if asked.op == Op::Write {
                    payload.extend_from_slice(&content_of((salt, asked.volume, generation), unit, n));
                }
                self.volumes[asked.volume].units[unit].push(Version { content, ..version });
            }
        }
        self.in_flight.insert(n, InFlight { asked, begun });
        (n, payload)
    }

    /// A change, a flush or a hint was answered.
    pub fn done(&mut self, n: u64) {
        let Some(InFlight { asked, begun }) = self.in_flight.remove(&n) else { return };
        self.tick += 1;
        let now = self.tick;
        let volume = &mut self.volumes[asked.volume];
        if asked.op == Op::Flush {
            let covered = volume.units.iter_mut().flatten().filter(|v| v.ended < begun);
            covered.for_each(|v| v.durable = true);
        }
        if asked.op.is_change() {
            let oldest = self.in_flight.values().map(|i| i.begun).min().unwrap_or(now);
            for unit in units(&asked) {
                let versions = &mut volume.units[unit];
                if let Some(v) = versions.iter_mut().find(|v| v.change == n) {
                    (v.ended, v.durable) = (now, asked.fua);
                }
                if versions.len() > TIDY_ABOVE {
                    tidy(versions, oldest);
                }
            }
        }
    }

    /// A request failed or its answer is lost: a change of it may show at any time, or never.
    pub fn failed(&mut self, n: u64) {
        let Some(InFlight { asked, .. }) = self.in_flight.remove(&n) else { return };
        if asked.op.is_change() {
            for unit in units(&asked) {
                let found = self.volumes[asked.volume].units[unit].iter_mut().find(|v| v.change == n);
                found.into_iter().for_each(|v| v.sure = false);
            }
        }
    }

    /// The client of a request has left before the answer, and come again: a change of it shows or doesn't, but not over one that is sent
    /// from now on.
    pub fn left(&mut self, n: u64) {
        let Some(InFlight { asked, .. }) = self.in_flight.remove(&n) else { return };
        self.tick += 1;
        if asked.op.is_change() {
            for unit in units(&asked) {
                let found = self.volumes[asked.volume].units[unit].iter_mut().find(|v| v.change == n);
                found.into_iter().for_each(|v| (v.sure, v.ended) = (false, self.tick));
            }
        }
    }

    /// A request was refused before it had any effect: nobody may see one.
    pub fn refused(&mut self, n: u64) {
        let Some(InFlight { asked, .. }) = self.in_flight.remove(&n) else { return };
        if asked.op.is_change() {
            for unit in units(&asked) {
                self.volumes[asked.volume].units[unit].retain(|v| v.change != n);
            }
        }
    }

    /// A read was answered.
    ///
    /// # Errors
    /// The first unit that can't have been read so.
    pub fn read(&mut self, n: u64, bytes: &[u8]) -> Result<(), String> {
        let InFlight { asked, begun } = self.in_flight.remove(&n).ok_or("an answer that nobody waits for")?;
        if bytes.len() as u64 != asked.len {
            return Err(format!("{} bytes came for {asked:?}", bytes.len()));
        }
        self.tick += 1;
        for (unit, got) in units(&asked).zip(bytes.chunks_exact(UNIT as usize)) {
            self.compared += 1;
            let whose = (self.salt, asked.volume, self.volumes[asked.volume].generation);
            let versions = &mut self.volumes[asked.volume].units[unit];
            let is = |v: &Version| got == content_of(whose, unit, v.content);
            let found: Vec<u64> = allowed(versions, begun).filter(|v| is(v)).map(|v| v.begun).collect();
            if found.is_empty() {
                let may: Vec<u64> = allowed(versions, begun).map(|v| v.content).collect();
                return Err(self.explained(&asked, unit, got, &may));
            }
            // It shows which version an earlier life left only if no change of this life brings the same content.
            if found.iter().all(|&begun| begun == 0) {
                versions.retain(|v| v.begun > 0 || is(v));
            }
        }
        Ok(())
    }

    /// A block status was answered: lengths from the request's offset on, and whether each is reported as zeroes.
    ///
    /// # Errors
    /// The first unit that is reported as zeroes and can't have been.
    pub fn status(&mut self, n: u64, extents: &[(u64, bool)]) -> Result<(), String> {
        let InFlight { asked, begun } = self.in_flight.remove(&n).ok_or("an answer that nobody waits for")?;
        self.tick += 1;
        let covered: u64 = extents.iter().map(|e| e.0).sum();
        let one = asked.flag == Flag::OneExtent;
        if extents.is_empty() || extents.iter().any(|e| e.0 == 0) || (one && (extents.len() > 1 || covered > asked.len))
        {
            return Err(format!("{extents:?} is no answer to {asked:?}"));
        }
        let whose = (self.salt, asked.volume, self.volumes[asked.volume].generation);
        let mut at = asked.offset;
        for (len, zero) in extents {
            let to = (at + len).min(asked.offset + asked.len.min(covered));
            for unit in (at / UNIT..to / UNIT).map(|u| u as usize).filter(|_| *zero) {
                self.compared += 1;
                let versions = &self.volumes[asked.volume].units[unit];
                let is_zero =
                    |v: &Version| v.content == 0 || content_of(whose, unit, v.content).iter().all(|&b| b == 0);
                if !allowed(versions, begun).any(is_zero) {
                    let may: Vec<u64> = allowed(versions, begun).map(|v| v.content).collect();
                    return Err(self.explained(&asked, unit, &[0; UNIT as usize], &may));
                }
            }
            at = to;
        }
        Ok(())
    }

    fn explained(&self, asked: &Asked, unit: usize, got: &[u8], may: &[u64]) -> String {
        let whose = (self.salt, asked.volume, self.volumes[asked.volume].generation);
        let is = |n: &u64| got == content_of(whose, unit, *n);
        let which = match (0..self.next).find(is) {
            Some(0) => "zeroes".to_string(),
            Some(n) => format!("version {n}"),
            None => format!("{:02x?}...", &got[..16]),
        };
        let versions = &self.volumes[asked.volume].units[unit];
        format!(
            "{:?} of volume {} at {}+{}: byte {} is {which}, may be {may:?} (0: zeroes); all: {versions:?}",
            asked.op,
            asked.volume,
            asked.offset,
            asked.len,
            unit as u64 * UNIT
        )
    }

    /// A volume was deleted, and another of this size made under its name: zeroes.
    pub fn remade(&mut self, volume: usize, size_bytes: u64) {
        assert_eq!(self.in_flight_of(volume), 0, "requests on a deleted volume");
        let generation = self.volumes[volume].generation + 1;
        self.volumes[volume] = Volume { generation, units: zeroes(size_bytes) };
    }

    /// Number of a volume among those that had its name.
    pub fn generation(&self, volume: usize) -> u64 {
        self.volumes[volume].generation
    }

    /// A volume grew.
    pub fn grown(&mut self, volume: usize, size_bytes: u64) {
        self.volumes[volume].units.resize_with((size_bytes / UNIT) as usize, || vec![Version::left(0)]);
    }

    /// The pool ended in order: all that was answered is durable.
    pub fn stopped(&mut self) {
        for v in self.volumes.iter_mut().flat_map(|v| &mut v.units).flatten() {
            v.durable |= v.ended != NEVER;
        }
        self.crashed();
    }

    /// The process was killed or the power was lost: each unit has one of the versions that aren't older than a durable one.
    pub fn crashed(&mut self) {
        self.in_flight.clear();
        for versions in self.volumes.iter_mut().flat_map(|v| &mut v.units) {
            let all = std::mem::take(versions);
            let older = |v: &Version| all.iter().any(|w| w.sure && w.durable && w.begun > v.ended);
            for v in all.iter().filter(|v| !older(v)) {
                if versions.iter().all(|w| w.content != v.content) {
                    versions.push(Version::left(v.content));
                }
            }
        }
        self.tick += 1;
    }
}

fn zeroes(bytes: u64) -> Vec<Unit> {
    vec![vec![Version::left(0)]; (bytes / UNIT) as usize]
}

fn units(asked: &Asked) -> std::ops::Range<usize> {
    (asked.offset / UNIT) as usize..((asked.offset + asked.len) / UNIT) as usize
}

/// The versions that a read which was sent at `begun` may find: those that no other one replaced before.
fn allowed(versions: &[Version], begun: u64) -> impl Iterator<Item = &Version> {
    let replaced = move |v: &Version| versions.iter().any(|w| w.sure && w.begun > v.ended && w.ended < begun);
    versions.iter().filter(move |v| !replaced(v))
}

/// Takes out versions that neither a read in flight (the oldest was sent at `oldest`) nor a crash can show.
fn tidy(versions: &mut Unit, oldest: u64) {
    let all = versions.clone();
    versions.retain(|v| !all.iter().any(|w| w.sure && w.durable && w.begun > v.ended && w.ended < oldest));
}

/// The content that write `n` brings to a unit; zeroes for 0. Three writes in ten bring one of a few contents that are the same in all
/// volumes: duplicates. The others name themselves, so that a misplaced or torn one can't pass for another.
fn content_of((salt, volume, generation): (u64, usize, u64), unit: usize, n: u64) -> [u8; UNIT as usize] {
    let mut bytes = [0; UNIT as usize];
    if n == 0 {
        return bytes;
    }
    let unit = unit as u64;
    let words = match n % 10 {
        0..3 => [0xd0b1_e000 + n / 10 % 4, unit % 64],
        _ => [(volume as u64) << 56 | generation << 40 | unit, salt << 32 | n],
    };
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        // Some contents are noise, so that they don't compress.
        let mix =
            if n % 10 > 7 { (words[0] ^ words[1] << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ i as u64) } else { 0 };
        word.copy_from_slice(&(words[i % 2] ^ if i < 2 { 0 } else { mix }).to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(op: Op, fua: bool) -> Asked {
        Asked { op, volume: 0, offset: 0, len: if op == Op::Flush { 0 } else { UNIT }, fua, flag: Flag::None }
    }

    fn change(o: &mut Oracle, op: Op, fua: bool) -> u64 {
        let (n, _) = o.ask(asked(op, fua), 512);
        o.done(n);
        n
    }

    /// Versions among these that a read may find now.
    fn may(o: &Oracle, candidates: &[u64]) -> Vec<u64> {
        let is = |n: &u64| {
            let mut o = o.clone();
            let (read, _) = o.ask(asked(Op::Read, false), 512);
            o.read(read, &content_of((o.salt, 0, 1), 0, *n)).is_ok()
        };
        candidates.iter().copied().filter(is).collect()
    }

    #[test]
    fn what_was_answered_before_is_read_and_what_is_in_flight_may_be() {
        let mut o = Oracle::new(1, &[4096]);
        let first = change(&mut o, Op::Write, false);
        assert_eq!(may(&o, &[0, first]), [first]);
        let (second, _) = o.ask(asked(Op::Write, false), 512);
        assert_eq!(may(&o, &[0, first, second]), [first, second]);
        o.done(second);
        assert_eq!(may(&o, &[0, first, second]), [second]);
        let zero = change(&mut o, Op::WriteZeroes, false);
        assert_eq!(may(&o, &[0, first, second, zero]), [0]);
    }

    #[test]
    fn what_was_refused_is_never_read() {
        let mut o = Oracle::new(1, &[4096]);
        let first = change(&mut o, Op::Write, false);
        let (second, _) = o.ask(Asked { flag: Flag::Foreign, ..asked(Op::Write, false) }, 512);
        o.refused(second);
        assert_eq!(may(&o, &[0, first, second]), [first]);
        o.crashed();
        assert_eq!(may(&o, &[0, first, second]), [0, first]);
    }

    #[test]
    fn one_extent_is_one_inside_the_range() {
        let mut o = Oracle::new(1, &[4096]);
        let mut status = |flag, extents: &[(u64, bool)]| {
            let (n, _) = o.ask(Asked { flag, len: 2 * UNIT, ..asked(Op::BlockStatus, false) }, 512);
            o.status(n, extents).is_ok()
        };
        for extents in [&[(UNIT, true), (UNIT, false)][..], &[(3 * UNIT, true)]] {
            assert!(status(Flag::None, extents) && !status(Flag::OneExtent, extents), "{extents:?}");
        }
        assert!(status(Flag::OneExtent, &[(UNIT, true)]));
    }

    /// Zeroes that a change of this life may have brought say nothing of what an earlier life left.
    #[test]
    fn a_read_shows_what_was_left_only_if_nothing_newer_has_the_same_content() {
        let mut o = Oracle::new(1, &[4096]);
        let write = change(&mut o, Op::Write, false);
        o.crashed();
        let mut unread = o.clone();
        change(&mut unread, Op::WriteZeroes, false);
        let (read, _) = unread.ask(asked(Op::Read, false), 512);
        assert!(unread.read(read, &[0; UNIT as usize]).is_ok());
        unread.crashed();
        assert_eq!(may(&unread, &[0, write]), [0, write]);
        let (read, _) = o.ask(asked(Op::Read, false), 512);
        assert!(o.read(read, &[0; UNIT as usize]).is_ok());
        assert_eq!(may(&o, &[0, write]), [0], "nothing newer: zeroes were left");
    }

    #[test]
    fn a_crash_takes_what_is_not_durable_and_nothing_else() {
        let mut o = Oracle::new(1, &[4096]);
        let all: Vec<u64> = (0..4).map(|_| change(&mut o, Op::Write, false)).collect();
        change(&mut o, Op::Flush, false);
        let last = change(&mut o, Op::Write, false);
        let mut crashed = o.clone();
        crashed.crashed();
        assert_eq!(may(&crashed, &[0, all[0], all[3], last]), [all[3], last]);
        let (read, _) = crashed.ask(asked(Op::Read, false), 512);
        crashed.read(read, &content_of((1, 0, 1), 0, all[3])).unwrap();
        assert_eq!(may(&crashed, &[all[3], last]), [all[3]], "which one it is shows when it is read");
        o.stopped();
        assert_eq!(may(&o, &[all[3], last]), [last]);
    }

    #[test]
    fn fua_is_durable_and_a_flush_covers_only_what_was_answered_before() {
        let mut o = Oracle::new(1, &[4096]);
        let fua = change(&mut o, Op::Write, true);
        let (flush, _) = o.ask(asked(Op::Flush, false), 512);
        let later = change(&mut o, Op::Write, false);
        o.done(flush);
        o.crashed();
        assert_eq!(may(&o, &[0, fua, later]), [fua, later]);
    }

    #[test]
    fn what_is_reported_as_zero_must_be() {
        let mut o = Oracle::new(1, &[4096]);
        change(&mut o, Op::Write, false);
        let status = |o: &mut Oracle, zero| {
            let (n, _) = o.ask(asked(Op::BlockStatus, false), 512);
            o.status(n, &[(UNIT, zero)])
        };
        assert!(status(&mut o, true).is_err() && status(&mut o, false).is_ok());
        change(&mut o, Op::WriteZeroes, false);
        assert!(status(&mut o, true).is_ok());
    }
}
