//! BLOCK_STATUS. An extent is data if it is dirty, being written back, or being changed in the cache. For all others, clean cached
//! ones included, the slow device's answer is right. A range of the former only is answered from memory.

use crate::config::Planted;
use crate::index::Key;
use crate::request::Pending;
use crate::serve::{Cache, SLOW};
use plimsoll_base::{Completion, Data, Io, IoHead, StatusExtent};
use plimsoll_stack::Actions;
use std::ops::Range;

/// Extents looked at for one request; an answer that would need more covers less than was asked.
const KEYS_MAX: usize = 4096;

const DATA: StatusExtent = StatusExtent { len: 0, hole: false, zero: false };

impl Cache {
    /// Answers a BLOCK_STATUS, or asks the slow device for the part that it knows about.
    pub(crate) fn block_status(&mut self, mut io: Io, out: &mut Actions) {
        let slot = self.volumes.slot(&io.volume).filter(|_| !self.planted(Planted::StatusFromBelow));
        let Some(slot) = slot else { return self.pass(io, out) };
        let (runs, end) = self.only_here(slot, io.offset..io.end());
        match runs.first() {
            None if end == io.end() => self.pass(io, out),
            Some(r) if *r == (io.offset..end) => {
                let all = StatusExtent { len: end - io.offset, ..DATA };
                out.done(io, Data::Status(vec![all].into()));
            }
            _ => {
                let head = io.head;
                io.head.len = end - head.offset;
                io.head.tag = self.pending.insert(Pending::Status { head, runs }) as u64;
                out.submit(SLOW, io);
            }
        }
    }

    /// The slow device has answered.
    pub(crate) fn status_read(&mut self, head: IoHead, runs: &[Range<u64>], mut c: Completion, out: &mut Actions) {
        if let Data::Status(below) = &c.io.data {
            c.io.data = Data::Status(overlaid(head.offset, below, runs).into());
        }
        c.io.head = head;
        out.complete(c);
    }

    /// Runs of a range of a volume that are dirty, being written back or being changed in the cache, in order; and up to where that is
    /// known.
    fn only_here(&self, slot: u16, asked: Range<u64>) -> (Vec<Range<u64>>, u64) {
        let e = self.extent_bytes();
        let (from, to) = (Key::new(slot, asked.start / e), Key::new(slot, asked.end.div_ceil(e)));
        let mut end = asked.end;
        let mut keys: Vec<Key> = Vec::new();
        let mut add = |some: &mut dyn Iterator<Item = Key>| {
            let before = keys.len();
            keys.extend(some.take(KEYS_MAX));
            if keys.len() - before == KEYS_MAX {
                end = end.min((keys[keys.len() - 1].extent() + 1) * e);
            }
        };
        add(&mut self.dirty.range(from, to));
        add(&mut self.destaging.range(from..to).copied());
        add(&mut self.gate.closed_in(from, to));
        keys.sort_unstable();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for key in keys {
            let (start, stop) = ((key.extent() * e).max(asked.start), ((key.extent() + 1) * e).min(end));
            match runs.last_mut() {
                _ if start >= stop => {}
                Some(r) if r.end >= start => r.end = r.end.max(stop),
                _ => runs.push(start..stop),
            }
        }
        (runs, end)
    }
}

/// The slow device's answer from `at` on, with `runs` as data.
fn overlaid(mut at: u64, below: &[StatusExtent], runs: &[Range<u64>]) -> Vec<StatusExtent> {
    let mut all: Vec<StatusExtent> = Vec::new();
    let mut push = |e: StatusExtent| match all.last_mut() {
        _ if e.len == 0 => {}
        Some(last) if (last.hole, last.zero) == (e.hole, e.zero) => last.len += e.len,
        _ => all.push(e),
    };
    let mut runs = runs.iter().peekable();
    for e in below {
        let end = at + e.len;
        while at < end {
            while runs.next_if(|r| r.end <= at).is_some() {}
            let (start, stop) = runs.peek().map_or((end, end), |r| (r.start.clamp(at, end), r.end.min(end)));
            push(StatusExtent { len: start - at, ..*e });
            at = start;
            if at < stop {
                push(StatusExtent { len: stop - at, ..DATA });
                at = stop;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    /// Against bytes, one by one.
    #[test]
    fn runs_lie_over_the_answer_from_below() {
        let mut rng = Rng::new(3, "status");
        for _ in 0..500 {
            let at = rng.below(50);
            let below: Vec<StatusExtent> = (0..rng.below(5))
                .map(|_| {
                    let hole = rng.chance(0.5);
                    StatusExtent { len: 1 + rng.below(20), hole, zero: hole || rng.chance(0.3) }
                })
                .collect();
            let mut runs: Vec<Range<u64>> = Vec::new();
            let mut from = at;
            for _ in 0..rng.below(5) {
                from += rng.below(15) + 1;
                let to = from + 1 + rng.below(15);
                runs.push(from..to);
                from = to;
            }
            let flat = |all: &[StatusExtent]| -> Vec<(bool, bool)> {
                all.iter().flat_map(|e| vec![(e.hole, e.zero); e.len as usize]).collect()
            };
            let mut model = flat(&below);
            for (n, m) in (at..).zip(&mut model) {
                if runs.iter().any(|r| r.contains(&n)) {
                    *m = (false, false);
                }
            }
            let all = overlaid(at, &below, &runs);
            assert_eq!(flat(&all), model, "{at} {below:?} {runs:?}");
            assert!(all.windows(2).all(|w| (w[0].hole, w[0].zero) != (w[1].hole, w[1].zero)));
        }
    }
}
