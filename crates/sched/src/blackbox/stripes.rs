//! Parts of a hidden device, and the part that a request needs: learned from observed slowness.
//!
//! Drives work at many requests at once because addresses are spread over parts (chips, planes, disks of an array). Most spread
//! them by stripes: piece n is on part n mod N. The drive reports neither the piece's size nor N. So this module keeps a dozen
//! candidates side by side. Each counts the outstanding requests on its parts, and predicts a read's time from that alone. The
//! one with the smallest errors is the likeliest. (SSDcheck, MICRO 2018, finds such rules by probing; here the served requests
//! are enough.) On a device without stripes no candidate predicts anything, and nothing is lost.

use super::log::OCTAVE;
use plimsoll_base::{IoHead, Op, Time};

/// Pieces of 4, 16 and 64 KiB over 32 to 256 parts, as powers of two.
const RULES: [(u32, u32); RULES_N] = {
    let mut rules = [(0, 0); RULES_N];
    let mut i = 0;
    while i < RULES_N {
        rules[i] = (12 + 2 * (i as u32 / 4), 5 + i as u32 % 4);
        i += 1;
    }
    rules
};
pub(crate) const RULES_N: usize = 12;
/// Requests over more pieces are taken to need this many.
const PIECES_MAX: u64 = 256;

/// Levels of what is outstanding on a part: reads, writes, and how long ago a write there ended.
const LEVELS: usize = 4;
const CLASSES: usize = LEVELS * LEVELS * LEVELS;
/// A class's time follows by 1/2 to the power of this, a rule's error more slowly.
const CLASS_SHIFT: u32 = 4;
const ERROR_SHIFT: u32 = 9;

/// One part, as far as the host has to do with it.
#[derive(Clone, Copy)]
pub(crate) struct Part {
    /// Reads that need it.
    pub reads: u32,
    /// Writes that need it.
    pub writes: u32,
    /// Time at which its last write ended, or at which a write began with none before it: the part has worked on the next write
    /// since.
    pub wrote_at: Time,
    /// Time at which its last read ended, and the duration of that read, as a logarithm.
    pub read_at: Time,
    pub read_log: i32,
    /// Time at which its last request ended, or at which one began with none before it: the part has worked on the next since.
    pub moved_at: Time,
}

impl Part {
    /// Nothing was ever sent to it.
    pub(crate) const IDLE: Part =
        Part { reads: 0, writes: 0, wrote_at: Time::ZERO, read_at: Time::ZERO, read_log: 0, moved_at: Time::ZERO };

    fn class(&self, now: Time) -> usize {
        let few = |n: u32| (n as usize).min(LEVELS - 1);
        // Under 1 ms, 8 ms, 64 ms, longer; a part that was never written is as one written long ago.
        let since = if self.wrote_at == Time::ZERO { u64::MAX } else { now.since(self.wrote_at).as_nanos() >> 20 };
        let age = match since {
            0 => 0,
            1..8 => 1,
            8..64 => 2,
            _ => 3,
        };
        (few(self.writes) * LEVELS + few(self.reads)) * LEVELS + age
    }
}

/// One candidate.
struct Rule {
    piece_shift: u32,
    parts: Vec<Part>,
    /// Times of reads by class of the part that they waited for longest.
    logs: [i32; CLASSES],
    error: u64,
    /// Time of a part for a read's piece, and for a write's, while it has several, in nanoseconds.
    read_ns: u64,
    write_ns: u64,
}

impl Rule {
    fn new((piece_shift, bits): (u32, u32)) -> Rule {
        let parts = vec![Part::IDLE; 1 << bits];
        Rule { piece_shift, parts, logs: [0; CLASSES], error: 0, read_ns: 0, write_ns: 0 }
    }

    fn pieces(&self, head: &IoHead) -> impl Iterator<Item = usize> + use<> {
        let first = head.offset >> self.piece_shift;
        let last = (head.end().max(head.offset + 1) - 1) >> self.piece_shift;
        let n = (last - first + 1).min(PIECES_MAX).min(self.parts.len() as u64);
        let mask = self.parts.len() as u64 - 1;
        (first..first + n).map(move |piece| (piece & mask) as usize)
    }

    /// The part that is expected to keep `head` longest, by its class.
    fn slowest(&self, now: Time, head: &IoHead) -> (usize, usize) {
        let of = |part: usize| (part, self.parts[part].class(now));
        self.pieces(head).map(of).max_by_key(|&(_, class)| self.logs[class]).expect("a request has a piece")
    }

    /// Returns the time that a part still works on its present requests, in nanoseconds.
    fn work_ns(&self, now: Time, part: &Part) -> u64 {
        let of = |n: u32, each: u64| u64::from(n).saturating_mul(each);
        let all = of(part.reads, self.read_ns).saturating_add(of(part.writes, self.write_ns));
        let one = if part.writes > 0 { self.write_ns } else { self.read_ns };
        all.saturating_sub(now.since(part.moved_at).as_nanos().min(one))
    }
}

/// All candidates, and the likeliest of them.
pub(crate) struct Stripes {
    rules: Vec<Rule>,
    likeliest: usize,
}

/// The classes under which a read is learned, one for each candidate.
pub(crate) type Classes = [u8; RULES_N];

impl Stripes {
    /// Nothing is known.
    pub(crate) fn new() -> Stripes {
        Stripes { rules: RULES.map(Rule::new).into(), likeliest: 0 }
    }

    /// All of the device is one part.
    pub(crate) fn one() -> Stripes {
        Stripes { rules: vec![Rule::new((u64::BITS - 1, 0))], likeliest: 0 }
    }

    /// The part that will keep `head` longest, if the likeliest rule is right, and for how long others' requests keep it, in
    /// nanoseconds.
    pub(crate) fn slowest(&self, now: Time, head: &IoHead) -> (&Part, u64) {
        let rule = &self.rules[self.likeliest];
        let of = |at: usize| (&rule.parts[at], rule.work_ns(now, &rule.parts[at]));
        rule.pieces(head).map(of).max_by_key(|&(_, work)| work).expect("a request has a piece")
    }

    /// The likeliest rule: bytes of a piece, and the number of parts.
    #[cfg(test)]
    pub(crate) fn likeliest(&self) -> (u64, usize) {
        let rule = &self.rules[self.likeliest];
        (1 << rule.piece_shift, rule.parts.len())
    }

    /// A read's classes before it's sent.
    pub(crate) fn classes(&self, now: Time, head: &IoHead) -> Classes {
        std::array::from_fn(|i| self.rules.get(i).map_or(0, |rule| rule.slowest(now, head).1 as u8))
    }

    /// A request is outstanding from now on.
    pub(crate) fn sent(&mut self, now: Time, head: &IoHead) {
        for rule in &mut self.rules {
            for at in rule.pieces(head) {
                let part = &mut rule.parts[at];
                if part.reads + part.writes == 0 {
                    part.moved_at = now;
                }
                if head.op == Op::Read {
                    part.reads += 1;
                } else {
                    if part.writes == 0 {
                        part.wrote_at = now;
                    }
                    part.writes += 1;
                }
            }
        }
    }

    /// It has ended, sent at `sent_at`; a read took so long, as a logarithm.
    pub(crate) fn ended(&mut self, now: Time, sent_at: Time, head: &IoHead, took_log: i32) {
        for rule in &mut self.rules {
            let is_one = rule.pieces(head).nth(1).is_none();
            for at in rule.pieces(head) {
                let part = &mut rule.parts[at];
                if is_one {
                    let each = if head.op == Op::Read { &mut rule.read_ns } else { &mut rule.write_ns };
                    let busy_ns = now.since(part.moved_at.max(sent_at)).as_nanos();
                    *each = *each - (*each >> CLASS_SHIFT) + (busy_ns >> CLASS_SHIFT);
                }
                part.moved_at = now;
                if head.op == Op::Read {
                    part.reads -= 1;
                    (part.read_at, part.read_log) = (now, took_log);
                } else {
                    part.writes -= 1;
                    part.wrote_at = now;
                }
            }
        }
    }

    /// It was taken back before the device had it.
    pub(crate) fn withdrawn(&mut self, head: &IoHead) {
        for rule in &mut self.rules {
            for at in rule.pieces(head) {
                let part = &mut rule.parts[at];
                let count = if head.op == Op::Read { &mut part.reads } else { &mut part.writes };
                *count -= 1;
            }
        }
    }

    /// A read that had these classes took so long: every candidate learns, and the best becomes the likeliest.
    pub(crate) fn learn(&mut self, classes: &Classes, took_log: i32) {
        for (rule, &class) in self.rules.iter_mut().zip(classes) {
            let log = &mut rule.logs[usize::from(class)];
            let off = took_log - *log;
            // A few octaves too long are no more than that: one collection says nothing of the rule.
            let bounded = u64::from(off.unsigned_abs()).min(4 * OCTAVE as u64) << 16;
            rule.error = rule.error - (rule.error >> ERROR_SHIFT) + (bounded >> ERROR_SHIFT);
            *log += off >> CLASS_SHIFT;
        }
        // The likeliest stays so unless another is clearly better.
        let error = |at: usize| self.rules[at].error;
        let best = (0..self.rules.len()).min_by_key(|&at| error(at)).expect("there are some");
        if error(best) < error(self.likeliest) - error(self.likeliest) / 32 {
            self.likeliest = best;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blackbox::log::log_of;
    use plimsoll_base::{Rng, Span, TenantId, VolumeKey};

    fn head(op: Op, offset: u64, len: u64) -> IoHead {
        IoHead::new(op, VolumeKey::POOL, TenantId(0), offset, len, Time::ZERO)
    }

    /// A read is slow if a write is under way on its part of a device of 64 parts, 16 KiB a piece.
    #[test]
    fn the_right_rule_is_found_from_times_alone() {
        let mut s = Stripes::new();
        let mut rng = Rng::new(1, "stripes");
        let mut now = Time::ZERO + Span::from_secs(1);
        let part = |h: &IoHead| h.offset / 16_384 % 64;
        for _ in 0..6000 {
            now += Span::from_millis(1);
            let writes: Vec<IoHead> = (0..16).map(|_| head(Op::Write, rng.below(1 << 16) * 16_384, 16_384)).collect();
            writes.iter().for_each(|w| s.sent(now, w));
            let read = head(Op::Read, rng.below(1 << 18) * 4096, 4096);
            let classes = s.classes(now, &read);
            s.sent(now, &read);
            let slow = writes.iter().any(|w| part(w) == part(&read));
            let log = log_of(if slow { 1_500_000 } else { 100_000 });
            s.ended(now, now, &read, log);
            s.learn(&classes, log);
            now += Span::from_millis(100);
            writes.iter().for_each(|w| s.ended(now, now, w, 0));
            now += Span::from_millis(100);
        }
        // Finer pieces that come round as often tell the same.
        let (piece, parts) = s.likeliest();
        assert_eq!((piece * parts as u64, piece <= 16_384), (1 << 20, true));
        s.sent(now, &head(Op::Write, 5 * 16_384, 16_384));
        s.rules.iter_mut().for_each(|r| r.write_ns = 1_000_000);
        let (touched, work_ns) = s.slowest(now, &head(Op::Read, (5 + 64 * 7) * 16_384, 4096));
        assert_eq!(work_ns, 1_000_000);
        assert_eq!((touched.writes, s.slowest(now, &head(Op::Read, 6 * 16_384, 4096)).0.writes), (1, 0));
        assert_eq!(s.slowest(now, &head(Op::Read, 3 * 16_384, 64 << 10)).0.writes, 1, "the slowest of four pieces");
    }

    /// The tables of stripes are most of a predictor.
    #[test]
    fn a_device_of_one_part_has_one() {
        let mut s = Stripes::one();
        let all = [head(Op::Write, 0, 4096), head(Op::Read, u64::MAX - 8192, 4096)];
        all.iter().for_each(|h| s.sent(Time::ZERO, h));
        let (part, _) = s.slowest(Time::ZERO, &all[1]);
        assert_eq!((part.reads, part.writes, s.likeliest().1), (1, 1, 1));
        let classes = s.classes(Time::ZERO, &all[1]);
        all.iter().for_each(|h| s.ended(Time::ZERO, Time::ZERO, h, 5));
        s.learn(&classes, 5);
        assert_eq!(s.slowest(Time::ZERO, &all[0]).0.reads, 0);
    }

    #[test]
    fn what_is_sent_and_ended_leaves_nothing() {
        let mut s = Stripes::new();
        let mut rng = Rng::new(2, "stripes");
        let all: Vec<IoHead> = (0..500)
            .map(|i| head(if i % 3 == 0 { Op::Write } else { Op::Read }, rng.below(1 << 30), rng.below(1 << 22)))
            .collect();
        all.iter().for_each(|h| s.sent(Time::ZERO, h));
        all.iter().rev().for_each(|h| s.ended(Time::ZERO, Time::ZERO, h, 5));
        assert!(s.rules.iter().flat_map(|r| &r.parts).all(|p| (p.reads, p.writes) == (0, 0)));
    }
}
